"""Answers of bytes and of stored slices, mapped and read, torn at every byte of theirs.

Method: `writev` takes as few bytes as a test says, over a real socket: then the socket is full, or the peer is gone, or
the file lost its bytes under the mapping. What comes is compared byte for byte.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from log.batch import build_batch
from log.disk import FileSlice, RealDisk
from service.api.broker_door import BrokerDoor
from service.api.listener import Listener
from service.client.connection import Client
from service.net import outbox
from service.net.server import serve
from service.wire.messages import (
    CreatableTopic,
    CreateTopicsRequest,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
    DeleteTopicsRequest,
    DeleteTopicState,
    FetchPartition,
    FetchRequest,
    FetchTopic,
)
from tests.service.api.admin_stage import Stage, on_stage
from tests.service.net.kit import EchoDoor, Peer, connect, frame, run, serving, until

pytestmark = pytest.mark.filterwarnings("error")
real_loops = pytest.mark.parametrize("loop", ["uvloop", "asyncio"])

STORED = bytes(range(256)) * 40
# Head, a mapped slice, one that is read, bytes between, one that begins off a page, the end.
SLICES = ((0, 40), (7, 3), (4_100, 50), (10_000, 1))
WHOLE = 8 + 4 + sum(size for _, size in SLICES) + 4
Writev = Callable[[int, Sequence[bytes | memoryview]], int]


@pytest.fixture(autouse=True)
def _small_slices_are_mapped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "READ_BYTES", 0)
    monkeypatch.setattr(outbox, "MAPPED_FROM_BYTES", 30)


@contextmanager
def writing(writev: Writev) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "writev", writev)
        yield


def first(buffers: Sequence[bytes | memoryview], count: int) -> list[memoryview]:
    """So much of the beginning, with nobody but the kernel looking at it."""
    taken = []
    for buffer in buffers:
        view = memoryview(buffer)[:count]
        count -= len(view)
        if len(view):
            taken.append(view)
    return taken


really = os.writev


class World:
    """A door whose first answer is the one that is torn."""

    def __init__(self, folder: Path) -> None:
        (folder / "segment").write_bytes(STORED)
        self.path = folder / "segment"
        self.file = RealDisk(str(folder)).open("segment")
        self.door = EchoDoor()
        slices = [FileSlice(self.file, *each) for each in SLICES]
        self.door.answers[1] = lambda body: [b"head", *slices[:2], b"mid.", *slices[2:]]
        pieces = [STORED[at : at + size] for at, size in SLICES]
        self.body = b"".join([b"head", *pieces[:2], b"mid.", *pieces[2:]])

    def is_let_go(self) -> bool:
        return self.file._pins == 0


def torn_at(cut: int, pieces: list[int]) -> Callable[[int, Sequence[bytes | memoryview]], int]:
    """Takes so many bytes, then none, so that the transport has its turn, then all. Notes the pieces of each call."""
    calls = [cut, 0]

    def torn(descriptor: int, buffers: Sequence[bytes | memoryview]) -> int:
        pieces.append(len(buffers))
        taken = first(buffers, calls.pop(0)) if calls else [memoryview(each) for each in buffers]
        if not taken:
            raise BlockingIOError
        return really(descriptor, taken)

    return torn


@real_loops
def test_an_answer_is_whole_wherever_the_socket_was_full(loop: str, tmp_path: Path) -> None:
    world = World(tmp_path)

    async def main() -> None:
        async with serving(world.door) as server:
            for cut in range(WHOLE):
                peer = await connect(server)
                with writing(torn_at(cut, [])):
                    await peer.send(frame(1))
                    assert await peer.answer() == (1, world.body), cut
                peer.close()
            await until(world.is_let_go)

    run(loop, main)


@real_loops
def test_a_short_answer_leaves_in_one_piece_and_is_whole_wherever_the_socket_was_full(
    loop: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox, "READ_BYTES", WHOLE)
    world = World(tmp_path)

    async def main() -> None:
        async with serving(world.door) as server:
            for cut in range(WHOLE):
                pieces: list[int] = []
                peer = await connect(server)
                with writing(torn_at(cut, pieces)):
                    await peer.send(frame(1))
                    assert await peer.answer() == (1, world.body), cut
                assert set(pieces) == {1}
                assert world.is_let_go()
                peer.close()

    run(loop, main)


@real_loops
@pytest.mark.parametrize("at_once", [1, 2, 3, 7, 41])
def test_an_answer_is_whole_in_pieces_of_any_size(loop: str, tmp_path: Path, at_once: int) -> None:
    world = World(tmp_path)

    async def main() -> None:
        async with serving(world.door) as server:
            peer = await connect(server)
            with writing(lambda descriptor, buffers: really(descriptor, first(buffers, at_once))):
                await peer.send(frame(1))
                assert await peer.answer() == (1, world.body)
            assert world.is_let_go()

    run(loop, main)


async def _torn_by(world: World, happens: Callable[[Peer], None]) -> None:
    """At every byte of an answer something happens between two calls; a second peer is served all the same."""
    async with serving(world.door) as server:
        honest = await connect(server)
        for cut in range(1, WHOLE):
            peer = await connect(server)
            calls = [cut]

            def torn(
                descriptor: int, buffers: Sequence[bytes | memoryview], calls: list[int] = calls, peer: Peer = peer
            ) -> int:
                if calls:
                    return really(descriptor, first(buffers, calls.pop()))
                happens(peer)
                return really(descriptor, list(buffers))

            with writing(torn):
                await peer.send(frame(1))
                await until(lambda calls=calls: not calls and world.is_let_go())  # type: ignore[misc]
                peer.close()
                await until(lambda: server.connections == 1)
            await honest.send(frame(2, b"fine"))
            assert await honest.answer() == (2, b"fine")


@real_loops
def test_a_peer_that_is_gone_in_the_middle_costs_its_connection(loop: str, tmp_path: Path) -> None:
    world = World(tmp_path)
    run(loop, lambda: _torn_by(world, lambda peer: peer.reset()))


@real_loops
def test_a_file_cut_short_under_its_mapping_costs_a_connection_and_not_the_process(loop: str, tmp_path: Path) -> None:
    """Nobody but the kernel looks at a mapping: a page that is gone is an error of the call."""
    world = World(tmp_path)

    def cut(peer: Peer) -> None:
        os.truncate(world.path, 0)

    async def main() -> None:
        async with serving(world.door) as server:
            peer, honest = await connect(server), await connect(server)

            def torn(descriptor: int, buffers: Sequence[bytes | memoryview]) -> int:
                cut(peer)
                return really(descriptor, list(buffers))

            with writing(torn):
                await peer.send(frame(1))
                await until(lambda: server.connections == 1)
            assert world.is_let_go()
            await honest.send(frame(2, b"fine"))
            assert await honest.answer() == (2, b"fine")

    run(loop, main)


@pytest.mark.parametrize("how", ["deleted", "cut off at the beginning", "made again"])
def test_what_was_promised_of_a_log_leaves_whole_whatever_becomes_of_it(tmp_path: Path, how: str) -> None:
    """A reader is half way through an answer of stored bytes when its topic, or their segments, go."""
    size, batches = 900_000, 28  # the first segment is more than kernels hold

    async def change(client: Client) -> None:
        if how == "cut off at the beginning":
            partitions = [DeleteRecordsPartition(0, batches)]
            answer = await client.request(DeleteRecordsRequest([DeleteRecordsTopic("events", partitions)], 5_000))
            assert answer.topics[0].partitions[0].error_code == 0
            return
        deleted = await client.request(DeleteTopicsRequest([DeleteTopicState("events")], timeout_ms=5_000))
        assert deleted.responses[0].error_code == 0
        if how == "made again":
            made = await client.request(CreateTopicsRequest([CreatableTopic("events", 1, 1)], 5_000))
            assert made.topics[0].error_code == 0

    async def scene(stage: Stage) -> None:
        await stage.create("events", segment_bytes=str(24 << 20))
        partition = await stage.served("events")
        for _ in range(batches):
            batch = bytearray(build_batch([(None, os.urandom(size), (), 1)]))
            partition.append_from_client(memoryview(batch), acks=1, now_ms=1)
        if (committed := partition.committed(partition.log.end_offset)) is not None:
            await committed
        wanted = FetchPartition(0, fetch_offset=0, partition_max_bytes=1 << 30)
        request = FetchRequest(max_bytes=1 << 30, topics=[FetchTopic("events", partitions=[wanted])], session_epoch=-1)
        stored = b"".join(bytes(each) for _, each in partition.log.scan(0))
        server = await serve(
            asyncio.get_running_loop(), "127.0.0.1", 0, BrokerDoor(stage.broker, Listener("PLAINTEXT"))
        )
        try:
            async with Client("127.0.0.1", server.port) as reader, Client("127.0.0.1", server.port) as other:
                assert reader._wire is not None
                reader._wire._transport.pause_reading()
                asking = asyncio.create_task(reader.request(request, 11))
                await until(lambda: any(connection._outbox.busy for connection in server._connections))
                await change(other)
                reader._wire._transport.resume_reading()
                answer = await asking
        finally:
            await server.close(grace_s=0.2)
        records = answer.responses[0].partitions[0].records
        assert isinstance(records, memoryview)
        found = bytes(records)
        assert found and stored.startswith(found)

    on_stage(tmp_path, scene)

"""Fetch of very many partitions: in turns, and as it is otherwise."""

import asyncio
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import pytest

import service.api.broker_door
import service.api.fetch
import service.broker.reading
from log.batch import build_batch, read_records
from log.disk import RealFile
from service.api.broker_door import LONG_ANSWER, BrokerDoor
from service.api.listener import Listener
from service.api.routes import ROUTES
from service.broker.fetch_sessions import FetchSession
from service.broker.partition import Partition
from service.broker.reading import Reading
from service.broker.session import Session
from service.client.connection import Client
from service.net.server import serve
from service.wire.codec import RequestHeader, encode_response_in_steps
from service.wire.error_codes import ErrorCode
from service.wire.messages import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic
from tests.service.api.admin_stage import Stage, on_stage
from tests.service.broker.cluster_stage import until
from tests.service.broker.topic_stage import abort_together

FETCH, VERSION = 1, 12
AT_ONCE = 5
MANY = 8 * AT_ONCE
THERE, ELSEWHERE = MANY // 2, "no such topic"


async def write(partition: Partition, value: bytes) -> None:
    partition.append_from_client(memoryview(bytearray(build_batch([(None, value, (), 1)]))), acks=1, now_ms=1)
    if (committed := partition.committed(partition.log.end_offset)) is not None:
        await committed


@pytest.fixture(autouse=True)
def few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (service.api.fetch, service.broker.reading):
        monkeypatch.setattr(module, "READ_AT_ONCE", AT_ONCE)


def request(*, max_wait_ms: int = 0, session: tuple[int, int] = (0, -1), at: int = 0) -> FetchRequest:
    """Very many partitions, of which only one exists, in the middle; nobody else knows where the others are."""
    topics = [FetchTopic(f"{ELSEWHERE} {index}", partitions=[FetchPartition(0)]) for index in range(MANY - 1)]
    topics.insert(THERE, FetchTopic("orders", partitions=[FetchPartition(0, fetch_offset=at, partition_max_bytes=999)]))
    return FetchRequest(
        topics=topics, max_bytes=1 << 20, max_wait_ms=max_wait_ms, session_id=session[0], session_epoch=session[1]
    )


async def ask(stage: Stage, asked: FetchRequest, caller: Session) -> Any:
    answer = ROUTES[FETCH].bound(stage.broker)(caller, RequestHeader(FETCH, VERSION, 1, "c"), asked)
    return await answer if isinstance(answer, Awaitable) else answer


def test_no_turn_of_the_loop_reads_more_partitions_than_it_may(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And every one is answered for."""
    looks: list[int] = [0]
    look = Reading._partition

    def counted(reading: Reading, key: Any) -> Any:
        looks[-1] += 1
        return look(reading, key)

    monkeypatch.setattr(Reading, "_partition", counted)

    async def scene(stage: Stage) -> None:
        await stage.create("orders")
        await write(await stage.served("orders"), b"one")

        async def others() -> None:
            while True:
                looks.append(0)
                await asyncio.sleep(0)

        other = asyncio.ensure_future(others())
        caller = Session("10.0.0.9", 1)
        answer = await ask(stage, request(), caller)
        other.cancel()
        found = {topic.topic: topic.partitions[0] for topic in answer.responses}
        assert len(found) == MANY
        assert [topic for topic, each in found.items() if not each.error_code] == ["orders"]
        caller.unpin()

    on_stage(tmp_path, scene)
    assert sum(looks) == MANY
    assert max(looks) <= AT_ONCE


def test_a_session_is_told_in_turns_of_what_is_named_again_and_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 60,000 partitions it took 29 ms, and 24 ms."""
    updates: list[int] = []
    update = FetchSession.update

    def noted(session: FetchSession, changed: Any, forgotten: Any) -> None:
        changed, forgotten = list(changed), list(forgotten)
        updates.append(len(changed) + len(forgotten))
        update(session, changed, forgotten)

    monkeypatch.setattr(FetchSession, "update", noted)

    async def scene(stage: Stage) -> None:
        await stage.create("orders")
        await write(await stage.served("orders"), b"one")
        caller = Session("10.0.0.9", 1)
        opened = (await ask(stage, request(session=(0, 0)), caller)).session_id
        assert (await ask(stage, request(session=(opened, 7)), caller)).error_code
        assert not updates, "what is refused changes nothing"
        again = await ask(stage, request(session=(opened, 1), at=1), caller)
        told = [each.topic for each in again.responses]
        assert len(told) == MANY - 1, "of the one that exists there is nothing new"
        rest = FetchRequest(max_wait_ms=0, session_id=opened, session_epoch=2)
        rest.forgotten_topics_data = [ForgottenTopic(topic, partitions=[0]) for topic in told]
        assert (await ask(stage, rest, caller)).session_id == opened
        session = stage.broker.fetch_sessions.find(opened)
        assert session is not None
        assert {key: wanted.fetch_offset for key, wanted in session.wanted.items()} == {("orders", 0): 1}
        assert not session.stirred
        caller.unpin()

    on_stage(tmp_path, scene)
    assert sum(updates) == 2 * MANY - 1
    assert max(updates) <= AT_ONCE


def test_what_was_read_in_an_earlier_turn_is_there_when_the_answer_leaves(tmp_path: Path) -> None:
    """The topic is deleted meanwhile, and its files with it. Afterwards nothing is kept open."""

    async def scene(stage: Stage) -> None:
        await stage.create("orders")
        partition = await stage.served("orders")
        await write(partition, b"one")
        door = BrokerDoor(stage.broker, Listener("PLAINTEXT"))
        server = await serve(asyncio.get_running_loop(), "127.0.0.1", 0, door)
        file = partition.log.segments[0].file
        assert isinstance(file, RealFile)

        async def discard() -> None:
            for _ in iter(lambda: file._pins > 0, True):
                await asyncio.sleep(0)
            await partition.log.discard()

        async with Client("127.0.0.1", server.port) as client:
            discarding = asyncio.ensure_future(discard())

            answer = await client.request(request(), VERSION)
            await discarding
        await server.close()
        (records,) = [topic.partitions[0].records for topic in answer.responses if topic.topic == "orders"]
        assert isinstance(records, memoryview)
        assert [record.value for record in read_records(records)] == [b"one"]
        assert file._pins == 0

    on_stage(tmp_path, scene)


def test_very_many_aborted_transactions_are_told_in_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They were open together, so that each batch among them comes with all of them."""
    in_steps: list[int] = []

    def encode(api_key: int, *answer: Any) -> Any:
        in_steps.append(api_key)
        return encode_response_in_steps(api_key, *answer)

    monkeypatch.setattr(service.api.broker_door, "encode_response_in_steps", encode)
    monkeypatch.setattr(service.broker.reading, "LISTED_AT_ONCE", AT_ONCE)
    topics = [FetchTopic("orders", partitions=[FetchPartition(0, partition_max_bytes=1 << 20)])]

    async def scene(stage: Stage) -> None:
        await stage.create("orders")
        partition = await stage.served("orders")
        told = abort_together(partition, LONG_ANSWER)
        if (committed := partition.committed(partition.log.end_offset)) is not None:
            await committed
        server = await serve(
            asyncio.get_running_loop(), "127.0.0.1", 0, BrokerDoor(stage.broker, Listener("PLAINTEXT"))
        )
        async with Client("127.0.0.1", server.port) as client:
            answer = await client.request(FetchRequest(topics=topics, max_bytes=1 << 20, isolation_level=1), VERSION)
        await server.close()
        aborted = answer.responses[0].partitions[0].aborted_transactions
        assert aborted is not None
        assert [(each.producer_id, each.first_offset) for each in aborted] == told

    on_stage(tmp_path, scene)
    assert FETCH in in_steps


@pytest.mark.parametrize("turns", [0, 1, 3, 6, 10, 20])
def test_what_comes_while_a_reader_of_many_reads_wakes_it(tmp_path: Path, turns: int) -> None:
    """All partitions are there and empty; one is written to after so many turns."""
    count = 2 * AT_ONCE + 1

    async def scene(stage: Stage) -> None:
        await stage.create("orders", count)
        for index in range(count):
            await stage.served("orders", index)
        last = await stage.served("orders", 0)
        partitions = [FetchPartition(index, partition_max_bytes=999) for index in range(count)]
        asked = FetchRequest(
            topics=[FetchTopic("orders", partitions=partitions)], min_bytes=1, max_bytes=1 << 20, max_wait_ms=60_000
        )
        caller = Session("10.0.0.9", 1)
        async with asyncio.timeout(10):
            reading = asyncio.ensure_future(ask(stage, asked, caller))
            for _ in range(turns):
                await asyncio.sleep(0)
            await write(last, b"one")
            answer = await reading
        caller.unpin()
        (topic,) = answer.responses
        assert [each.partition_index for each in topic.partitions if each.records] == [0]

    on_stage(tmp_path, scene)


def test_a_session_that_outgrows_what_a_request_can_name_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a client could let it grow without bound, some thousands of partitions a request."""
    monkeypatch.setattr(service.api.fetch, "MAX_REQUEST_ELEMENTS", MANY + 15)

    async def scene(stage: Stage) -> None:
        caller = Session("10.0.0.9", 1)
        answer = await ask(stage, request(session=(0, 0)), caller)
        errors = []
        for epoch in (1, 2):
            partitions = [FetchPartition(10 * epoch + number) for number in range(10)]
            topics = [FetchTopic("wide", partitions=partitions)]
            more = FetchRequest(topics=topics, session_id=answer.session_id, session_epoch=epoch)
            errors.append((await ask(stage, more, caller)).error_code)
        assert errors == [ErrorCode.NONE, ErrorCode.FETCH_SESSION_ID_NOT_FOUND]
        assert len(stage.broker.fetch_sessions) == 0

    on_stage(tmp_path, scene)


@pytest.mark.parametrize(("interval_bytes", "a_turn"), [(4_096, 24), (65_536, 7)])
def test_records_of_partitions_that_fit_into_one_request_are_found_in_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interval_bytes: int, a_turn: int
) -> None:
    """To find records takes longer than to see that there are none: 500 at random offsets took 30 ms in one turn. The
    sparser the index is, the longer it takes.
    """
    count = 60
    monkeypatch.undo()
    reads: list[int] = [0]
    read = Partition.read

    def counted(*given: Any, **how: Any) -> Any:
        reads[-1] += 1
        return read(*given, **how)

    monkeypatch.setattr(Partition, "read", counted)

    async def scene(stage: Stage) -> None:
        await stage.create("orders", count, index_interval_bytes=str(interval_bytes))
        for index in range(count):
            await write(await stage.served("orders", index), b"one")

        async def others() -> None:
            while True:
                reads.append(0)
                await asyncio.sleep(0)

        partitions = [FetchPartition(index, partition_max_bytes=999) for index in range(count)]
        caller = Session("10.0.0.9", 1)
        other = asyncio.ensure_future(others())
        topics = [FetchTopic("orders", partitions=partitions)]
        answer = await ask(stage, FetchRequest(topics=topics, max_bytes=1 << 20, min_bytes=1, session_epoch=-1), caller)
        other.cancel()
        assert len([each for each in answer.responses[0].partitions if each.records]) == count
        files = [piece.file for each in answer.responses[0].partitions for piece in each.records]
        assert all(file._pins == 1 for file in files)
        caller.unpin()
        assert all(file._pins == 0 for file in files)

    on_stage(tmp_path, scene)
    assert sum(reads) == count
    assert max(reads) <= a_turn


def test_a_follower_takes_a_clients_session_and_what_waits_in_it_is_answered(tmp_path: Path) -> None:
    """It would hear nothing any more, and come 60 s later."""

    async def scene(stage: Stage) -> None:
        await stage.create("orders")
        partition = await stage.served("orders")
        await write(partition, b"one")
        topics = [FetchTopic("orders", partitions=[FetchPartition(0, fetch_offset=1, partition_max_bytes=999)])]
        client, follower = Session("10.0.0.9", 1), Session("10.0.0.2", 2)
        lost = (await ask(stage, FetchRequest(topics=topics, max_wait_ms=0, session_epoch=0), client)).session_id
        assert lost
        waits = FetchRequest(max_wait_ms=60_000, min_bytes=1, session_id=lost, session_epoch=1)
        waiting = asyncio.ensure_future(ask(stage, waits, client))
        await until(lambda: bool(stage.broker.fetch_sessions._sessions[lost].readers))
        copies = FetchRequest(topics=topics, replica_id=2, max_wait_ms=0, session_epoch=0)
        assert (await ask(stage, copies, follower)).session_id
        async with asyncio.timeout(10):
            answer = await waiting
        assert (answer.error_code, answer.session_id, answer.responses) == (ErrorCode.NONE, lost, [])
        again = FetchRequest(session_id=lost, session_epoch=2)
        assert (await ask(stage, again, client)).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND

    on_stage(tmp_path, scene, {"max.incremental.fetch.session.cache.slots": "1"})

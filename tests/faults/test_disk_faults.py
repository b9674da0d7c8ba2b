"""The disk refuses in the middle of a transaction: what was promised stays, what was not is nowhere, and after the
restart the transaction goes on or ends as if nothing had been.

A limit on the size of the broker's files, set from outside while it runs, makes every write that would pass it fail, as
an I/O error would; a small disk of its own gets full.
"""

from __future__ import annotations

import resource
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.client.connection import Client
from service.wire.error_codes import ErrorCode
from tests.clients.topics import Topics
from tests.faults.scenario import in_loop
from tests.faults.writer import COMING, Writer, group_offset, seen, settled, until
from tests.outside import missing
from tests.peers.chosen import new_broker
from tests.peers.process import BrokerProcess
from tests.rules import rule

OUT_OF_SERVICE = (
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
)
"""What clients hear of a disk that has failed: each makes them look for the leader or the coordinator again."""


def refuse_writes(broker: BrokerProcess) -> None:
    """From now on every write fails that would make a file longer than the longest partition's is."""
    longest = max(file.stat().st_size for file in broker.data.glob("*/*.log"))
    resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (longest, resource.RLIM_INFINITY))


async def began(client: Client, name: str, topic: str) -> Writer:
    """A transaction with a record and an offset in it."""
    writer = Writer(client, name)
    await writer.begin()
    await writer.sent(topic, "before " * 1000)
    await writer.committed_offset(name, topic, 7)
    return writer


@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
@rule("C", "a write that fails during a transaction: nothing is acknowledged any more; after a restart it goes on")
@in_loop
async def test_a_disk_that_refuses_writes_during_a_transaction(
    own_broker: BrokerProcess, name: str, commit: bool
) -> None:
    topic = Topics(own_broker.bootstrap, name).create()
    async with Client("127.0.0.1", own_broker.port) as client:
        writer = await began(client, name, topic)
        refuse_writes(own_broker)
        assert await writer.send(topic, "never") in OUT_OF_SERVICE
        assert await writer.send(topic, "never") in OUT_OF_SERVICE
        assert await writer.end(commit=commit) in OUT_OF_SERVICE
        assert await writer.commit_offset(name, topic, 8) in OUT_OF_SERVICE
    own_broker.kill()
    own_broker.start()
    async with Client("127.0.0.1", own_broker.port) as client:
        writer = writer.twin(client)
        found = await until(lambda: seen(client, topic), lambda now: bool(now.uncommitted))
        assert (len(found.uncommitted), found.committed, found.open) == (1, [], True)
        await writer.sent(topic, "after")
        await (writer.commit() if commit else writer.abort())
        assert (await settled(client, topic)).committed == (["before " * 1000, "after"] if commit else [])
        assert await group_offset(client, name, topic) == (7 if commit else -1)


@rule("C", "a decision that cannot be written is none: it is not told, and the next owner aborts the transaction")
@in_loop
async def test_a_disk_that_refuses_the_decision(own_broker: BrokerProcess, name: str) -> None:
    topic = Topics(own_broker.bootstrap, name).create()
    async with Client("127.0.0.1", own_broker.port) as client:
        writer = Writer(client, name)
        await writer.begin()
        await writer.sent(topic, "undecided")
        refuse_writes(own_broker)
        assert await writer.end(commit=True) in OUT_OF_SERVICE
    own_broker.kill()
    own_broker.start()
    async with Client("127.0.0.1", own_broker.port) as client:
        heir = Writer(client, name)
        await heir.begin()
        assert await writer.twin(client).end(commit=True) is ErrorCode.PRODUCER_FENCED
        await heir.sent(topic, "decided")
        await heir.commit()
        assert (await settled(client, topic)).committed == ["decided"]


@pytest.fixture
def broker_on_a_small_disk(tmp_path: Path) -> Iterator[BrokerProcess]:
    if why := missing("mount"):
        pytest.skip(why)
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "none", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("this machine lets nobody mount a small disk")
    broker = new_broker(folder, log_index_size_max_bytes="40000")
    try:
        broker.start()
        yield broker
        if broker.running():
            broker.kill()
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def make_room(broker: BrokerProcess) -> None:
    subprocess.run(["mount", "-o", "remount,size=64m", str(broker.folder)], check=True)


@rule(
    "C",
    "a disk that is full during a transaction: it ends as it was told; the next one is written when there is room",
)
@in_loop
async def test_a_disk_that_gets_full_during_a_transaction(broker_on_a_small_disk: BrokerProcess, name: str) -> None:
    broker = broker_on_a_small_disk
    topic = Topics(broker.bootstrap, name).create()
    sent = 0
    async with Client("127.0.0.1", broker.port) as client:
        writer = Writer(client, name)
        await writer.begin()
        while (error := await until(lambda: writer.send(topic, "x" * 100_000), lambda code: code not in COMING)) == 0:
            sent += 1
        assert error is ErrorCode.NOT_ENOUGH_REPLICAS
        assert 0 < sent < 60
        await writer.commit()
        assert len((await settled(client, topic)).committed) == sent
        make_room(broker)
        await until(lambda: writer.send(topic, "last"), lambda code: code is not ErrorCode.NOT_ENOUGH_REPLICAS)
        await writer.commit()
        assert len((await settled(client, topic)).committed) == sent + 1

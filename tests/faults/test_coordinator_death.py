"""The broker dies in each of the six states of a transaction, and between its decision and each of its markers.

A death between two writes is a death after both with the second cut off (surgery.py). After the restart: all or
nothing, what was decided gets its markers, the client's repeated request is answered as if nothing had happened, and
the id goes on.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import pytest
from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]

from service.client.connection import Client
from service.wire.error_codes import ErrorCode
from tests.clients.topics import Topics
from tests.faults.scenario import in_loop
from tests.faults.surgery import cut_back_to, cut_last_marker, stored
from tests.faults.writer import COMING, NEWEST, OLD, Writer, group_offset, seen, settled, until
from tests.peers.process import BrokerProcess
from tests.rules import rule

KINDS = (("new", NEWEST), ("old", OLD))


@asynccontextmanager
async def connected(broker: BrokerProcess) -> AsyncIterator[Client]:
    async with Client("127.0.0.1", broker.port) as client:
        yield client


def a_topic(broker: BrokerProcess, name: str, partitions: int = 1) -> str:
    return Topics(broker.bootstrap, name).create(partitions=partitions)


async def goes_on(client: Client, topic: str, name: str, before: list[str]) -> None:
    """A new instance of the producer writes, and readers find it behind what was there."""
    heir = Writer(client, name)
    await heir.begin()
    await heir.sent(topic, "afterwards")
    await heir.commit()
    assert (await settled(client, topic)).committed == [*before, "afterwards"]


@rule("C", "death in Empty: the instance goes on with its pair")
@in_loop
async def test_death_in_empty(own_broker: BrokerProcess, name: str) -> None:
    topics = Topics(own_broker.bootstrap, name)
    async with connected(own_broker) as client:
        cases = [(Writer(client, f"{name}-{number}", versions), topics.create()) for number, versions in KINDS]
        for writer, _ in cases:
            await writer.begin()
    own_broker.kill()
    own_broker.start()
    async with connected(own_broker) as client:
        for before, topic in cases:
            writer = before.twin(client)
            assert (await until(writer.described, lambda told: not told.error_code)).transaction_state == "Empty"
            await writer.sent(topic, "kept")
            await writer.commit()
            assert (await settled(client, topic)).committed == ["kept"]
            await goes_on(client, topic, writer.transactional_id, ["kept"])


@rule("C", "death in Ongoing: the same instance writes on and ends it; its writes before and after are one whole")
@in_loop
async def test_death_in_ongoing(own_broker: BrokerProcess, name: str) -> None:
    topics = Topics(own_broker.bootstrap, name)
    async with connected(own_broker) as client:
        cases = [
            (Writer(client, f"{name}-{number}-{commit}", versions), topics.create(partitions=2), commit)
            for number, versions in KINDS
            for commit in (True, False)
        ]
        for writer, topic, _ in cases:
            await writer.begin()
            await writer.sent(topic, "before")
            await writer.committed_offset(writer.transactional_id, topic, 7)
    own_broker.kill()
    own_broker.start()
    async with connected(own_broker) as client:
        for before, topic, commit in cases:
            writer = before.twin(client)
            found = await until(functools.partial(seen, client, topic), lambda now: now.uncommitted == ["before"])
            assert (found.committed, found.open) == ([], True)
            await writer.sent(topic, "after")
            await writer.sent(topic, "after", partition=1)
            await (writer.commit() if commit else writer.abort())
            assert (await settled(client, topic)).committed == (["before", "after"] if commit else [])
            assert (await settled(client, topic, 1)).committed == (["after"] if commit else [])
            assert await group_offset(client, writer.transactional_id, topic) == (7 if commit else -1)


@rule("C", "death in Ongoing, the client too: the next instance aborts what was open")
@in_loop
async def test_death_in_ongoing_with_the_client(own_broker: BrokerProcess, name: str) -> None:
    topic = a_topic(own_broker, name)
    async with connected(own_broker) as client:
        writer = Writer(client, name)
        await writer.begin()
        await writer.sent(topic, "half")
        await writer.committed_offset(name, topic, 7)
    own_broker.kill()
    own_broker.start()
    async with connected(own_broker) as client:
        zombie = writer.twin(client)
        await goes_on(client, topic, name, [])
        assert await group_offset(client, name, topic) == -1
        assert await zombie.send(topic, "zombie") is ErrorCode.INVALID_PRODUCER_EPOCH
        assert await zombie.end(commit=True) is ErrorCode.PRODUCER_FENCED


@pytest.mark.parametrize(
    ("versions", "commit", "markers"),
    [
        pytest.param(NEWEST, True, 0, id="commit, no marker written"),
        pytest.param(NEWEST, False, 1, id="abort, one marker of three"),
        pytest.param(NEWEST, True, 3, id="commit, all markers but the last word"),
        pytest.param(OLD, True, 1, id="older versions, commit, one marker of three"),
        pytest.param(OLD, False, 0, id="older versions, abort, no marker written"),
    ],
)
@rule("C", "death in PrepareCommit, PrepareAbort: every marker is written, the repeated end is answered as before")
@in_loop
async def test_death_between_the_decision_and_its_markers(
    own_broker: BrokerProcess, name: str, versions: Mapping[str, int], commit: bool, markers: int
) -> None:
    topic = a_topic(own_broker, name, partitions=2)
    async with connected(own_broker) as client:
        writer = Writer(client, name, versions)
        await writer.begin()
        await writer.sent(topic, "left")
        await writer.sent(topic, "right", partition=1)
        await writer.committed_offset(name, topic, 7)
        before = writer.twin()
        assert await writer.end(commit=commit) is ErrorCode.NONE
        decided = "Commit" if commit else "Abort"
        assert await writer.settled() == f"Complete{decided}"
    own_broker.kill()
    cut_back_to(own_broker.data, name, f"Prepare{decided}")
    for partition in range(2)[markers:]:
        cut_last_marker(own_broker.data, topic, partition)
    if markers < 3:
        cut_last_marker_of_group(own_broker)
    own_broker.start()

    async with connected(own_broker) as client:
        repeated = before.twin(client)
        error = await until(lambda: repeated.end(commit=commit), lambda code: code not in COMING)
        assert error is ErrorCode.NONE, error
        assert (repeated.id, repeated.epoch) == (writer.id, writer.epoch)
        assert await repeated.settled() == f"Complete{decided}"
        assert (await settled(client, topic)).committed == (["left"] if commit else [])
        assert (await settled(client, topic, 1)).committed == (["right"] if commit else [])
        assert await group_offset(client, name, topic) == (7 if commit else -1)
        other_way = before.twin(client)
        refused = await other_way.end(commit=not commit)
        fenced = versions is NEWEST and not commit  # KAFKA-20785
        assert refused is (ErrorCode.PRODUCER_FENCED if fenced else ErrorCode.INVALID_TXN_STATE)
        await goes_on(client, topic, name, ["left"] if commit else [])


def cut_last_marker_of_group(broker: BrokerProcess) -> None:
    """The group's partition is the one with batches in it."""
    for folder in sorted(broker.data.glob("__consumer_offsets-*")):
        if list(stored(folder)):
            cut_last_marker(broker.data, "__consumer_offsets", int(folder.name.rpartition("-")[2]))


@rule("C", "death in CompleteCommit, CompleteAbort: the repeated end is answered as before, the next transaction runs")
@in_loop
async def test_death_in_complete(own_broker: BrokerProcess, name: str) -> None:
    topics = Topics(own_broker.bootstrap, name)
    cases = []
    async with connected(own_broker) as client:
        for number, versions in KINDS:
            for commit in (True, False):
                writer, topic = Writer(client, f"{name}-{number}-{commit}", versions), topics.create()
                await writer.begin()
                await writer.sent(topic, "decided")
                cases.append((writer.twin(), topic, commit))
                assert await writer.end(commit=commit) is ErrorCode.NONE
                await writer.settled()
    own_broker.kill()
    own_broker.start()
    async with connected(own_broker) as client:
        for before, topic, commit in cases:
            writer = before.twin(client)
            await (writer.commit() if commit else writer.abort())
            await writer.sent(topic, "next")
            await writer.commit()
            assert (await settled(client, topic)).committed == (["decided", "next"] if commit else ["next"])


@rule("B.6", "a topic deleted between the decision and its marker owes none; the other partitions get theirs")
@in_loop
async def test_a_topic_that_is_deleted_before_its_marker(own_broker: BrokerProcess, name: str) -> None:
    topics = Topics(own_broker.bootstrap, name)
    doomed, kept = topics.create(), topics.create()
    async with connected(own_broker) as client:
        writer = Writer(client, name)
        await writer.begin()
        await writer.sent(doomed, "gone")
        await writer.sent(kept, "kept")
        topics.admin.delete_topics([doomed])[doomed].result(20)
        assert await writer.end(commit=True) is ErrorCode.NONE
        assert await writer.settled() == "CompleteCommit"
        assert (await settled(client, kept)).committed == ["kept"]
        await writer.sent(kept, "next")
        again = NewTopic(doomed, num_partitions=1, replication_factor=1)
        topics.admin.create_topics([again])[doomed].result(20)
        await writer.sent(doomed, "new topic, same name")
        await writer.commit()
        assert (await settled(client, doomed)).committed == ["new topic, same name"]


@rule("B.6", "a topic deleted after the decision, its marker unwritten, keeps no transaction prepared after a restart")
@in_loop
async def test_a_marker_that_meets_a_deleted_topic_after_a_restart(own_broker: BrokerProcess, name: str) -> None:
    topics = Topics(own_broker.bootstrap, name)
    doomed, kept = topics.create(), topics.create()
    async with connected(own_broker) as client:
        writer = Writer(client, name)
        await writer.begin()
        await writer.sent(doomed, "gone")
        await writer.sent(kept, "kept")
        await writer.commit()
        await writer.settled()
        topics.admin.delete_topics([doomed])[doomed].result(20)
    own_broker.kill()
    cut_back_to(own_broker.data, name, "PrepareCommit")
    cut_last_marker(own_broker.data, kept)
    own_broker.start()
    async with connected(own_broker) as client:
        writer = writer.twin(client)
        state = await until(writer.described, lambda told: told.transaction_state == "CompleteCommit")
        assert not state.topics
        assert (await settled(client, kept)).committed == ["kept"]

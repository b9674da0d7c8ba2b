"""A lookup by time that had to wait for its turn answers by what is true when it comes. One that finds nothing is
answered by who leads for certain.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from log.time_search import stored_payload
from service.api.list_offsets import MAX_TIMESTAMP, ListOffsetsParts, handle
from service.broker.session import Session
from service.cluster.controller import RemoveFromLeadership
from service.ports import Env
from service.wire.codec import RequestHeader
from service.wire.error_codes import ErrorCode
from service.wire.messages import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from service.wire.messages.versions import ApiKey
from tests.service.api.admin_stage import Stage, on_stage
from tests.service.broker.cluster_stage import TOPIC, ClusterStage, on_cluster_stage, told_late
from tests.service.broker.topic_stage import write
from tests.turns import with_turns

OLD_MS = 0


@pytest.mark.parametrize("meanwhile", ["it stops leading", "more is committed"])
def test_after_its_turn_a_lookup_asks_again_who_leads_and_how_far_may_be_seen(tmp_path: Path, meanwhile: str) -> None:
    async def scene(stage: Stage) -> None:
        await stage.create("orders")
        partition = await stage.served("orders")
        parts = ListOffsetsParts(stage.broker.partitions, stage.broker.env, stage.broker.replication.in_sync)
        await parts.time_lookups.acquire()
        wanted = ListOffsetsTopic("orders", [ListOffsetsPartition(0, -1, OLD_MS)])
        request, header = ListOffsetsRequest(-1, 0, [wanted]), RequestHeader(ApiKey.LIST_OFFSETS, 11, 1, "client")
        asking = asyncio.ensure_future(handle(parts, Session("10.0.0.9", 1234), header, request))
        await asyncio.sleep(0)
        assert not asking.done()
        if meanwhile == "it stops leading":
            partition.resign()
        else:
            await write(partition, b"x")
        parts.time_lookups.release()
        [answer] = (await asking).topics[0].partitions
        if meanwhile == "it stops leading":
            assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        else:
            assert (answer.error_code, answer.offset) == (0, 0)

    on_stage(tmp_path, scene, {"log.durability": "os"})


@pytest.mark.parametrize("timestamp", [OLD_MS, MAX_TIMESTAMP], ids=["at or after a time", "the latest time"])
def test_each_lookup_by_time_of_a_request_has_a_turn_of_its_own(tmp_path: Path, timestamp: int) -> None:
    """It may look at hundreds of headers and records."""
    count = 40

    async def scene(stage: Stage) -> None:
        await stage.create("orders", count)
        for index in range(count):
            await stage.served("orders", index)
        parts = ListOffsetsParts(stage.broker.partitions, stage.broker.env, stage.broker.replication.in_sync)
        wanted = [ListOffsetsPartition(index, -1, timestamp) for index in range(count)]
        request = ListOffsetsRequest(-1, 0, [ListOffsetsTopic("orders", wanted)])
        header = RequestHeader(ApiKey.LIST_OFFSETS, 11, 1, "client")
        answer, turns = await with_turns(handle(parts, Session("10.0.0.9", 1234), header, request))
        assert len(answer.topics[0].partitions) == count
        assert turns >= count

    on_stage(tmp_path, scene)


def lookup(*names: str, timestamp: int = OLD_MS) -> ListOffsetsRequest:
    return ListOffsetsRequest(
        -1, 0, [ListOffsetsTopic(name, [ListOffsetsPartition(0, -1, timestamp)]) for name in names]
    )


@pytest.mark.parametrize("timestamp", [OLD_MS, MAX_TIMESTAMP], ids=["at or after a time", "the latest time"])
def test_a_leader_that_was_replaced_does_not_say_that_nothing_is_there(tmp_path: Path, timestamp: int) -> None:
    """Its successor has a record that was acknowledged. It said -1, and clients that start at the end then skip the
    record.
    """

    async def scene(stage: ClusterStage) -> None:
        await stage.create(1, 2)
        await stage.in_sync(1, 2)
        with told_late(stage.broker(1)) as heard:
            await stage.broker(2).metadata.execute(RemoveFromLeadership(1, 1))
            await stage.write("acknowledged")
            asking = asyncio.ensure_future(stage.wire(1).ask(lookup(TOPIC, timestamp=timestamp)))
            await asyncio.wait([asking], timeout=0.2)
            heard.set()
            [answer] = (await asking).topics[0].partitions
            assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        [answer] = (await stage.wire(2).ask(lookup(TOPIC, timestamp=timestamp))).topics[0].partitions
        assert (answer.error_code, answer.offset) == (ErrorCode.NONE, 0)

    on_cluster_stage(tmp_path, scene, 1, 2, given={"log.durability": "os"})


def test_the_store_is_asked_once_for_all_partitions_in_which_nothing_is_found(tmp_path: Path) -> None:
    async def scene(stage: ClusterStage) -> None:
        names = [f"{TOPIC}-{number}" for number in range(20)]
        for name in names:
            await stage.create(1, 2, name=name)
        metadata, asked = stage.broker(1).metadata, 0
        catch_up = metadata.catch_up

        async def counted() -> None:
            nonlocal asked
            asked += 1
            await catch_up()

        metadata.catch_up = counted  # type: ignore[method-assign]
        answer = await stage.wire(1).ask(lookup(*names))
        outcomes = [(each.error_code, each.offset) for topic in answer.topics for each in topic.partitions]
        assert outcomes == [(ErrorCode.NONE, -1)] * len(names)
        assert asked == 1

    on_cluster_stage(tmp_path, scene, 1, 2)


class Threads:
    """What is done in a thread."""

    def __init__(self) -> None:
        self.done: list[object] = []

    async def blocking(self, function: Callable[..., Any], *arguments: Any) -> Any:
        self.done.append(function)
        return function(*arguments)


@pytest.mark.parametrize("timestamp", [OLD_MS, MAX_TIMESTAMP], ids=["at or after a time", "the latest time"])
def test_a_large_batch_is_read_in_a_thread(tmp_path: Path, timestamp: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of 80 MB held the loop for 115 to 262 ms, as often as a client asked."""

    async def scene(stage: Stage) -> None:
        for name, size in (("small", 100), ("large", 400)):
            await stage.create(name)
            await write(await stage.served(name), bytes(size))
        monkeypatch.setattr("log.laying.LARGE_BYTES", 300)
        threads = Threads()
        parts = ListOffsetsParts(stage.broker.partitions, cast(Env, threads), stage.broker.replication.in_sync)
        header = RequestHeader(ApiKey.LIST_OFFSETS, 11, 1, "client")
        for name, in_thread in (("small", []), ("large", [stored_payload])):
            threads.done.clear()
            found = await handle(parts, Session("10.0.0.9", 1234), header, lookup(name, timestamp=timestamp))
            assert (found.topics[0].partitions[0].offset, threads.done) == (0, in_thread)

    on_stage(tmp_path, scene)

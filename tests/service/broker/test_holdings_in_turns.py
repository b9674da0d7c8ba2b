"""Changes of many partitions are followed in turns, and the metadata may change again before they are done."""

import asyncio
import errno
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from log.batch import build_batch
from log.disk import DiskFault
from log.ids import TopicPartition
from service.broker import holdings
from service.broker.data_folder import META_FILE
from service.broker.partition import Appended, Partition
from service.turns import Turn
from service.wire.messages import (
    AlterConfigsRequest,
    AlterConfigsRequestAlterableConfig,
    AlterConfigsRequestAlterConfigsResource,
    DeleteTopicsRequest,
    DeleteTopicState,
)
from tests.service.api.admin_stage import Stage, on_stage
from tests.service.broker.cluster_stage import until

MANY = 40


@pytest.fixture(autouse=True)
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each partition takes a turn of its own, and a change of more than three is a long one."""
    monkeypatch.setattr(holdings, "AT_ONCE", 3 * (1 + holdings.A_NEW_PARTITION) + holdings.A_TOPIC)
    monkeypatch.setattr(holdings, "Turn", lambda room: Turn(1))


def held(stage: Stage, topic: str = "orders") -> list[Partition]:
    return list((stage.broker.partitions.topic(topic) or {}).values())


async def half_done(stage: Stage) -> None:
    """Until some partitions of the topic are there, and some are not."""
    for _ in iter(lambda: len(held(stage)) < MANY // 2, False):
        await asyncio.sleep(0)
    assert len(held(stage)) < MANY


async def deleted(stage: Stage) -> None:
    await stage.ask(DeleteTopicsRequest([DeleteTopicState("orders")]))


async def created_anew(stage: Stage) -> None:
    await deleted(stage)
    await stage.create("orders", MANY)


async def altered(stage: Stage) -> None:
    retention = AlterConfigsRequestAlterableConfig("retention.ms", "77777")
    await stage.ask(AlterConfigsRequest([AlterConfigsRequestAlterConfigsResource(2, "orders", [retention])]))


async def lost_and_regained(stage: Stage) -> None:
    stage.broker.holdings.step_down()
    await asyncio.sleep(0)
    assert not any(partition.is_leading for partition in held(stage))
    stage.broker.holdings.begin()


CHANGES: list[Callable[[Stage], Awaitable[None]]] = [deleted, created_anew, altered, lost_and_regained]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@pytest.mark.parametrize("when", ["half way", "at once", "done"])
def test_what_changes_while_a_large_change_is_followed_is_what_holds_in_the_end(
    tmp_path: Path, change: Callable[[Stage], Awaitable[None]], when: str
) -> None:
    async def scene(stage: Stage) -> None:
        await stage.create("orders", MANY)
        if when == "half way":
            await half_done(stage)
        elif when == "done":
            await stage.broker.holdings.even()
        await change(stage)
        async with asyncio.timeout(20):
            wanted = 0 if change is deleted else MANY
            for _ in iter(lambda: bool(stage.broker.holdings._leaving or len(held(stage)) < wanted), False):
                await asyncio.sleep(0.001)
        await stage.broker.holdings.even()
        image = stage.broker.metadata.image
        assert len(held(stage)) == (0 if change is deleted else MANY)
        assert all(partition.is_leading for partition in held(stage))
        assert {partition.topic_id for partition in held(stage)} == {
            topic.id for topic in image.topics.values() if topic.name == "orders"
        }
        if change is altered:
            assert {partition.log.config.retention_ms for partition in held(stage)} == {77777}

    on_stage(tmp_path, scene)


def test_partitions_of_a_topic_that_is_gone_are_not_found_although_they_go_in_turns(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        topic_id = await stage.create("orders", MANY)
        await stage.broker.holdings.even()
        known, going = stage.broker.partitions.topic("orders"), held(stage)
        await deleted(stage)
        assert known == {}, "a request that is under way does not find them either"
        assert stage.broker.partitions.topic("orders") is None
        assert stage.broker.partitions.topic_by_id(topic_id) is None
        assert any(partition.is_leading for partition in going), "they go in turns"
        await stage.broker.holdings.even()
        assert not any(partition.is_leading for partition in going)

    on_stage(tmp_path, scene)


def test_a_small_change_waits_for_no_large_one(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        await stage.create("orders", MANY)
        await half_done(stage)
        await stage.create("payments")
        assert len(held(stage)) < MANY
        partition = stage.broker.partitions.get(TopicPartition("payments", 0))
        assert partition is not None
        assert partition.is_leading

    on_stage(tmp_path, scene)


def test_a_broker_that_stops_half_way_takes_nothing_on_any_more(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        await stage.create("orders", MANY)
        await half_done(stage)
        before = len(held(stage))
        stage.broker.holdings.stop()
        for _ in range(MANY):
            await asyncio.sleep(0)
        assert len(held(stage)) <= before + 1
        assert not any(partition.is_leading for partition in held(stage))

    on_stage(tmp_path, scene)


def test_a_broker_that_leaves_lets_go_of_its_partitions_in_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 15,000 of them its clients heard nothing for a tenth of a second, although others led already."""
    monkeypatch.setattr(holdings, "NAMED_A_TURN", 4)
    monkeypatch.setattr(holdings, "FAREWELL_S", 0)

    async def scene(stage: Stage) -> None:
        await stage.create("orders", MANY)
        await stage.broker.holdings.even()
        leading: set[int] = set()

        async def look() -> None:
            while True:
                leading.add(sum(partition.is_leading for partition in held(stage)))
                await asyncio.sleep(0)

        looking = asyncio.create_task(look())
        await stage.broker.holdings._part()
        looking.cancel()
        assert leading >= set(range(0, MANY, 4))

    on_stage(tmp_path, scene)


@pytest.mark.parametrize("at_once", [1, MANY], ids=["in turns", "at once"])
def test_one_partition_of_a_failed_disk_that_can_t_be_let_go_keeps_no_other_in_service_and_fails_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(holdings, "FAIL_AGAIN_S", 0.1)

    async def scene(stage: Stage) -> None:
        await stage.create("orders", MANY)
        await stage.broker.holdings.even()
        monkeypatch.setattr(holdings, "AT_ONCE", at_once)
        fail, bad, mistakes = stage.broker.replication.fail, held(stage)[1], 3

        def fails(partition: Partition) -> None:
            nonlocal mistakes
            if partition is bad and mistakes:
                mistakes -= 1
                raise AssertionError("this broker's own mistake")
            fail(partition)

        monkeypatch.setattr(stage.broker.replication, "fail", fails)
        stage.broker.folders[0].fail(DiskFault(errno.EIO, "broken"))
        await until(lambda: all(partition.offline for partition in held(stage) if partition is not bad))
        assert not bad.offline
        await until(lambda: bad.offline)

    on_stage(tmp_path, scene, {"log.durability": "os"})


@pytest.mark.parametrize("is_removed", [False, True], ids=["failed", "removed"])
def test_very_many_partitions_of_a_failed_disk_fail_in_turns_and_none_takes_a_write_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, is_removed: bool
) -> None:
    monkeypatch.setattr(holdings, "A_TURN", 1)

    async def scene(stage: Stage) -> None:
        await stage.create("orders", MANY)
        await stage.broker.holdings.even()
        given_up: list[Partition] = []
        monkeypatch.setattr(stage.broker.replication.in_sync, "give_up", given_up.append)
        (folder,) = stage.broker.folders
        if is_removed:  # what is open is written on, and would be gone after the stop
            (tmp_path / META_FILE).unlink()
            stage.broker.housekeeper._look_for_folders()
        else:
            folder.fail(DiskFault(errno.EIO, "broken"))
        assert folder.failed is not None
        *_, last = partitions = held(stage)
        turns = 0
        while any(not partition.offline for partition in partitions):
            batch = memoryview(bytearray(build_batch([(b"k", b"v", (), 1)])))
            assert not isinstance(last.append_from_client(batch, acks=1, now_ms=1), Appended)
            await asyncio.sleep(0)
            turns += 1
        assert turns >= MANY - 1
        await asyncio.sleep(0.01)
        assert given_up == partitions, "also the one that was written to"
        assert "damaged" not in caplog.text

    on_stage(tmp_path, scene)

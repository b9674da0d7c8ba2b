"""A coordinator is where its partition is led, and answers once it is replayed. If a passing error has dropped its
shard, it is replayed again.
"""

import asyncio
import errno
import math
from pathlib import Path
from typing import Any

import pytest

import service.broker.coordinators
from log.disk import DiskFault, RealDisk
from service.broker.shard import CoordinatorLoading, NotCoordinator, Shard
from service.cluster.image import NO_LEADER
from service.wire.error_codes import ErrorCode
from tests.service.api.admin_stage import Stage, on_stage
from tests.service.api.txn_stage import FEW, TxnStage, Writer, find_coordinator, on_txn_stage, until, values
from tests.service.broker.test_shard import NONE, answered, loaded_again, shard_of


def test_a_shard_dropped_by_a_passing_error_is_replayed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No descriptor is left for the coordinator's log at the moment of a decision: the transaction ends all the same,
    without a restart.
    """

    async def scene(stage: TxnStage) -> None:
        writer = Writer(stage, "pay")
        assert await writer.init() == NONE
        assert await writer.write("orders", "a") == NONE
        shard, original = shard_of(stage), RealDisk.open_descriptor

        def none_left(disk: Any, file: Any, path: str, flags: int) -> int:
            if "__transaction_state" in path:
                raise DiskFault(errno.EMFILE, "Too many open files", path)
            return original(disk, file, path, flags)

        shard.partition.log.segments[-1].file.release()  # type: ignore[attr-defined]
        with monkeypatch.context() as shortage:
            shortage.setattr(RealDisk, "open_descriptor", none_left)
            assert (await writer.end(commit=True)).error_code == ErrorCode.NOT_COORDINATOR
        assert shard.partition.folder.failed is None

        async def end() -> int:
            return (await writer.end(commit=True)).error_code

        assert await answered(end) == NONE
        assert await values(stage, "orders") == ["a"]
        assert stage.broker.coordination.transactions.mishaps.rebuilt >= 1

    on_txn_stage(tmp_path, scene)


def test_a_log_that_cannot_be_opened_now_is_replayed_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the folder nor the partition goes out of service because the process is short of descriptors."""

    async def scene(stage: TxnStage) -> None:
        assert await Writer(stage, "pay").init() == NONE
        shard = shard_of(stage)
        attempts = 0

        def none_left(*_: Any) -> Any:
            nonlocal attempts
            attempts += 1
            raise DiskFault(errno.EMFILE, "Too many open files", "segment")

        with monkeypatch.context() as shortage:
            shortage.setattr(type(shard.partition.log), "scan", none_left)
            stage.broker.coordination.transactions.led(shard.partition)
            await until(lambda: attempts == 2)
        await loaded_again(stage, shard)
        assert shard.partition.folder.failed is None
        assert await Writer(stage, "pay").init() == NONE

    on_txn_stage(tmp_path, scene)


def test_a_shard_that_keeps_failing_is_replayed_ever_more_seldom_until_it_has_served_for_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So an in-sync set that is too small every few seconds keeps clients waiting for a moment each time, not for the
    longest pause.
    """
    monkeypatch.setattr(service.broker.coordinators, "REBUILD_S_MIN", 0.001)
    monkeypatch.setattr(service.broker.coordinators, "REBUILD_S_MAX", 0.005)

    async def scene(stage: TxnStage) -> None:
        coordinators, now_s, pauses = stage.broker.coordination.transactions, 100.0, []
        monkeypatch.setattr(stage.broker.env.clock, "monotonic", lambda: now_s)
        for served_s in (0, 0, 0.9, 0, 0.5, 1, 1):
            shard = shard_of(stage)
            now_s += served_s
            shard._give_up()
            pauses.append(coordinators._pauses_s[shard.partition.topic_partition.partition])
            await loaded_again(stage, shard)
        shard = shard_of(stage)
        shard.loaded_s = math.inf  # while it is replayed
        now_s += 100
        shard._give_up()
        pauses.append(coordinators._pauses_s[shard.partition.topic_partition.partition])
        assert pauses == [0.001, 0.002, 0.004, 0.005, 0.005, 0.001, 0.001, 0.002]

    on_txn_stage(tmp_path, scene)


def test_a_leadership_that_served_leaves_no_pause_to_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(stage: TxnStage) -> None:
        coordinators, now_s = stage.broker.coordination.transactions, 100.0
        monkeypatch.setattr(stage.broker.env.clock, "monotonic", lambda: now_s)
        shard = shard_of(stage)
        index = shard.partition.topic_partition.partition
        coordinators._pauses_s[index] = 10.0
        shard.loaded_s = now_s
        now_s += 1
        coordinators.lost(index)
        coordinators.led(shard.partition)
        again = coordinators.at(index)
        assert again is not None
        again._give_up()
        assert coordinators._pauses_s[index] == service.broker.coordinators.REBUILD_S_MIN

    on_txn_stage(tmp_path, scene)


def test_a_key_is_answered_for_by_the_leader_of_its_partition_once_it_is_replayed(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        coordinators = stage.broker.coordination.transactions
        with pytest.raises(NotCoordinator):
            coordinators.shard("pay")  # the topic is not there yet
        assert coordinators.leader("pay") == NO_LEADER
        await find_coordinator(TxnStage(stage.broker), "pay")
        index = coordinators.partition_index("pay")
        assert coordinators.shard("pay") is coordinators.at(index)
        assert coordinators.partition_index("pay::7/part") == index, "branches live with their root"
        assert coordinators.leader("pay") == 1
        partition = coordinators.shard("pay").partition
        coordinators.led(partition)  # in a new epoch, nothing is replayed yet
        with pytest.raises(CoordinatorLoading):
            coordinators.shard("pay")
        await until(lambda: all(shard.loaded for shard in coordinators.shards()))
        assert coordinators.shard("pay").partition is partition
        coordinators.lost(index)
        with pytest.raises(NotCoordinator):
            coordinators.shard("pay")
        assert coordinators.at(index) is None

    on_stage(tmp_path, scene, FEW)


def test_a_shard_that_is_lost_takes_no_command_and_a_later_one_knows_what_it_knew(tmp_path: Path) -> None:
    async def scene(stage: TxnStage) -> None:
        coordinators = stage.broker.coordination.transactions
        assert await Writer(stage, "pay").init() == NONE
        former = coordinators.shard("pay")
        coordinators.led(former.partition)
        assert former.dropped
        await until(lambda: all(shard.loaded for shard in coordinators.shards()))
        later = coordinators.shard("pay")
        assert later is not former
        assert [txn.transactional_id for txn in later.machine.all()] == ["pay"]

    on_txn_stage(tmp_path, scene)


def test_what_is_told_to_all_reaches_those_that_are_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[int] = []
    monkeypatch.setattr(Shard, "tell", lambda shard, _: told.append(shard.partition.topic_partition.partition))

    async def scene(stage: TxnStage) -> None:
        coordinators = stage.broker.coordination.transactions
        assert await Writer(stage, "pay").init() == NONE
        await until(lambda: all(shard.loaded for shard in coordinators.shards()))
        indexes = [shard.partition.topic_partition.partition for shard in coordinators.shards()]
        assert indexes == sorted(indexes)
        coordinators.led(coordinators.shard("pay").partition)
        coordinators.tell_all("a command")
        assert len(told) == 1, "the others have turns of their own"
        await until(lambda: len(told) == len(indexes) - 1)
        assert told == [index for index in indexes if index != coordinators.partition_index("pay")]

    on_txn_stage(tmp_path, scene)


def test_what_is_due_in_all_shards_at_once_is_done_by_one_in_each_turn_of_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shards that were loaded at the same moment look for expired offsets at the same moment, too."""
    turn = [0]
    at: list[int] = []
    original = Shard._expire

    def expire(shard: Shard[Any]) -> None:
        at.append(turn[0])
        original(shard)

    async def scene(stage: TxnStage) -> None:
        coordinators = stage.broker.coordination.transactions
        assert await Writer(stage, "pay").init() == NONE
        await until(lambda: all(shard.loaded for shard in coordinators.shards()))
        monkeypatch.setattr(Shard, "_expire", expire)
        shards = list(coordinators.shards())
        for shard in shards:
            shard._come_due()
        while len(at) < len(shards):
            turn[0] += 1
            await asyncio.sleep(0)
        assert len(set(at)) == len(shards) > 1

    on_txn_stage(tmp_path, scene)

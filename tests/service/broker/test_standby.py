"""A follower of a coordinator's partition has its machine ready."""

import asyncio
from dataclasses import replace
from errno import EMFILE
from functools import partial
from pathlib import Path
from shutil import rmtree
from types import SimpleNamespace
from typing import Any

import pytest

import service.broker.replay
import service.broker.standby
from log.batch import BatchHeader, CorruptBatch, build_plain_batch, read_header, restamp
from log.checkpoints import DAMAGED_OFFSET
from log.disk import DiskFault
from log.ids import TopicPartition
from log.steps import done_at_once
from service.broker.coordinators import Coordinators
from service.broker.machine import Mishaps
from service.broker.partition import Partition
from service.broker.replay import Replay
from service.broker.standby import Standby
from service.cluster.image import PartitionState
from service.turns import Steps
from tests.service.api.txn_stage import TxnStage, find_coordinator, on_txn_stage, until
from tests.service.broker.cluster_stage import ClusterStage, on_cluster_stage
from tests.sim.replicas import applied_one_by_one
from txn.records import write_key, write_value
from txn.states import State, Txn

ONE_PARTITION = {
    "transaction.state.log.num.partitions": "1",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.min.isr": "1",
}
RECORDS = 500
STATES = TopicPartition("__transaction_state", 0)


def batch_of(number: int) -> bytearray:
    name = f"pay-{number % 7}"
    told = Txn(name, 7, 0, State.COMPLETE_COMMIT, 60_000, number, (TopicPartition("orders", 0),))
    return build_plain_batch([(write_key(name), write_value(told))], 1)


def append(partition: Partition, number: int) -> None:
    partition.append_own(batch_of(number), now_ms=1)


def all_are_at(others: list[Standby[Any]], end_offset: int) -> bool:
    return all(replay.at_offset == end_offset for other in others for replay in other.replays())


def follows_from_its_log(replay: Replay[Any], coordinators: Coordinators[Any]) -> bool:
    anew = applied_one_by_one(coordinators._new_machine(replay.partition), replay.partition, replay.at_offset)
    known, expected = ({txn.transactional_id: txn for txn in each.all()} for each in (replay.machine, anew))
    return known == expected


def test_who_takes_over_reads_only_what_it_had_not_heard_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once by a death of the leader, once by its stop."""
    read_by_leaders: list[int] = []
    take = Replay._take

    def counted(replay: Replay[Any], header: BatchHeader, batch: memoryview) -> Steps[None]:
        if replay.partition.is_leading:
            read_by_leaders.append(header.base_offset)
        return take(replay, header, batch)

    async def scene(stage: ClusterStage) -> None:
        await find_coordinator(stage.wire(1), "pay")

        def leaders() -> list[int]:
            found = {at: life.broker.coordination.transactions.at(0) for at, life in stage.lives.items()}
            return [at for at, shard in found.items() if shard is not None and shard.loaded and not shard.dropped]

        monkeypatch.setattr(Replay, "_take", counted)
        for ends in (stage.kill, stage.stop):
            await until(lambda: len(leaders()) == 1)
            (leads,) = leaders()
            partition = stage.broker(leads).coordination.transactions.shard("pay").partition
            for number in range(RECORDS):
                append(partition, number)
            others = [stage.broker(at).coordination.transactions.standby for at in stage.lives if at != leads]
            await until(partial(all_are_at, others, partition.log.end_offset))
            read_by_leaders.clear()
            await ends(leads)
            await until(lambda: len(leaders()) == 1)
            coordinators = stage.broker(leaders()[0]).coordination.transactions
            assert len(read_by_leaders) <= 5
            assert len(list(coordinators.shard("pay").machine.all())) == 7

    on_cluster_stage(tmp_path, scene, given=ONE_PARTITION)


@pytest.mark.parametrize("taken_back", ["cut", "start over"])
def test_what_was_made_of_records_that_were_taken_back_is_thrown_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken_back: str
) -> None:
    """After an unclean election another log holds. Of what nobody had committed nothing is known, so a cut of that
    changes nothing.
    """

    monkeypatch.setattr(service.broker.standby, "EVERY_S", 0.005)

    async def scene(stage: TxnStage) -> None:
        coordinators = stage.broker.coordination.transactions
        partition = coordinators.shard("pay").partition
        for number in range(20):
            append(partition, number)
        committed = partition.high_watermark
        stage.broker.replication.stop(partition)
        partition.follow(2, partition.leader_epoch + 1, fsync=False)
        leave = stage.broker.replication.leave_to_others
        standby: Standby[Any] = Standby("states", coordinators._new_replay, stage.broker.env, leave)
        standby.keep(partition)
        await until(lambda: standby.replays()[0].at_offset == committed)
        (before,) = standby.replays()
        copied = batch_of(99)
        restamp(copied, base_offset=committed, leader_epoch=partition.leader_epoch)
        partition.append_replicated(memoryview(copied), read_header(copied), now_ms=1)
        await asyncio.sleep(0.05)
        assert before.at_offset == committed
        done_at_once(partition.cut(committed))
        assert standby.replays() == [before]
        assert follows_from_its_log(before, coordinators)
        if taken_back == "cut":
            done_at_once(partition.cut(committed - 15))
        else:
            done_at_once(partition.start_over(committed - 15))
        partition.learn_high_watermark(committed)
        await until(lambda: standby.replays()[0] is not before)
        await until(lambda: standby.replays()[0].at_offset == committed - 15)
        assert follows_from_its_log(standby.replays()[0], coordinators)
        assert not follows_from_its_log(before, coordinators)
        standby.keep(partition)
        assert standby.take(partition) is not None
        assert standby.take(partition) is None

    on_txn_stage(tmp_path, scene)


def test_who_is_behind_deletions_that_have_left_the_log_reads_it_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had taken up an id. Compaction then removed the id's record together with the tombstone further on."""
    monkeypatch.setattr(service.broker.standby, "AT_ONCE_BYTES", 1)
    passes_are_over = asyncio.Event()

    async def rest(seconds: float) -> None:
        if seconds == service.broker.standby.REST_S:
            await passes_are_over.wait()
        await asyncio.sleep(seconds)

    monkeypatch.setattr(service.broker.standby, "asyncio", SimpleNamespace(sleep=rest))

    async def scene(stage: TxnStage) -> None:
        coordinators = stage.broker.coordination.transactions
        partition = coordinators.shard("pay").partition
        append(partition, 0)
        append(partition, 1)
        partition.append_own(build_plain_batch([(write_key("pay-0"), None)], 1), now_ms=1)
        stage.broker.replication.stop(partition)
        coordinators.lost(partition.topic_partition.partition)
        partition.follow(2, partition.leader_epoch + 1, fsync=False)
        settings = replace(partition.log.config, delete_retention_ms=0, min_cleanable_dirty_ratio=0.0)
        partition.log.set_config(settings)
        coordinators.standby.keep(partition)
        (before,) = coordinators.standby.replays()
        await until(lambda: before.at_offset == 1)
        for number in (2, 3, 4):  # a pass dates the tombstone, a later one removes it
            partition.log.roll(1)
            await partition.log.flush()
            async with stage.broker.env.apart() as apart:
                await stage.broker.compactor._compact(partition, apart)
            copied = batch_of(number)
            restamp(copied, base_offset=partition.log.end_offset, leader_epoch=partition.leader_epoch)
            partition.append_replicated(memoryview(copied), read_header(copied), now_ms=1)
            partition.learn_high_watermark(partition.log.end_offset)
        assert partition.log.times_forgotten
        assert before.at_offset == 1
        passes_are_over.set()
        await until(lambda: coordinators.standby.replays()[0].at_offset == partition.log.end_offset)
        (replay,) = coordinators.standby.replays()
        assert replay.machine.describe("pay-0") is None
        assert follows_from_its_log(replay, coordinators)

    on_txn_stage(tmp_path, scene)


def test_the_end_of_a_session_makes_no_follower_read_anew(tmp_path: Path) -> None:
    """One hiccup of the metadata store ends the sessions of all brokers, and then all partitions get leaders."""

    async def scene(stage: ClusterStage) -> None:
        await find_coordinator(stage.wire(1), "pay")

        def leaders() -> list[int]:
            return [at for at, life in stage.lives.items() if life.broker.coordination.transactions.at(0) is not None]

        await until(lambda: len(leaders()) == 1)
        (leads,) = leaders()
        partition = stage.broker(leads).coordination.transactions.shard("pay").partition
        append(partition, 1)
        follower = stage.broker(next(at for at in stage.lives if at != leads))
        standby = follower.coordination.transactions.standby
        await until(lambda: all_are_at([standby], partition.log.end_offset))
        before = standby.replays()
        follower.holdings.step_down()
        follower.holdings.begin()
        assert standby.replays() == before != []

    on_cluster_stage(tmp_path, scene, given=ONE_PARTITION)


def states(stage: ClusterStage, node_id: int) -> Partition:
    partition = stage.broker(node_id).partitions.get(STATES)
    assert partition is not None
    return partition


def image_of_states(stage: ClusterStage, node_id: int) -> PartitionState:
    state = stage.broker(node_id).metadata.image.partition(STATES)
    assert state is not None
    return state


async def let_rot(stage: ClusterStage, node_id: int) -> None:
    """What this follower holds. Its standby reads it anew, and finds out."""
    follower = states(stage, node_id)
    path = Path(follower.folder.name) / follower.log.segments[0].path()
    rotten = bytearray(path.read_bytes())
    rotten[-1] ^= 1
    path.write_bytes(rotten)
    standby = stage.broker(node_id).coordination.transactions.standby
    standby.drop(0)
    standby.keep(follower)
    await until(lambda: follower.offline)


def test_a_follower_whose_copy_is_damaged_is_not_elected(tmp_path: Path) -> None:
    """It leaves the in-sync set at once, so that no commit waits for it, and stays away from it. If it led, nobody
    would be the coordinator.
    """
    given = ONE_PARTITION | {"replica.lag.time.max.ms": "60000"}

    async def scene(stage: ClusterStage) -> None:
        await find_coordinator(stage.wire(1), "pay")
        await until(lambda: sorted(image_of_states(stage, 1).isr) == [1, 2, 3])
        leads, damaged, sound = image_of_states(stage, 1).replicas
        leader = states(stage, leads)
        assert leader.is_leading
        append(leader, 1)
        await until(lambda: states(stage, damaged).high_watermark == 1)
        await let_rot(stage, damaged)
        append(leader, 2)
        await until(lambda: leader.high_watermark == 2)
        assert sorted(image_of_states(stage, leads).isr) == sorted([leads, sound])
        await asyncio.sleep(1)
        assert sorted(image_of_states(stage, leads).isr) == sorted([leads, sound])
        await stage.kill(leads)
        await until(lambda: image_of_states(stage, sound).leader == sound)

    on_cluster_stage(tmp_path, scene, given=given)


def test_a_copy_that_was_found_damaged_is_not_in_sync_again_after_a_restart(tmp_path: Path) -> None:
    """Until it is found damaged again, the leader would die, and nobody else could lead. When its folder is removed, it
    is copied anew.
    """
    given = ONE_PARTITION | {"replica.lag.time.max.ms": "60000", "transaction.state.log.replication.factor": "2"}

    async def scene(stage: ClusterStage) -> None:
        await find_coordinator(stage.wire(1), "pay")
        await until(lambda: len(image_of_states(stage, 1).isr) == 2)
        leads, damaged = image_of_states(stage, 1).replicas
        (third,) = {1, 2, 3} - {leads, damaged}
        append(states(stage, leads), 1)
        await until(lambda: states(stage, damaged).high_watermark == 1)
        await let_rot(stage, damaged)
        await until(lambda: image_of_states(stage, third).isr == (leads,))
        copy = Path(states(stage, damaged).folder.name) / states(stage, damaged).log.folder
        await until(lambda: (copy / DAMAGED_OFFSET).exists())
        for ends in (stage.stop, stage.kill):
            await ends(damaged)
            await stage.start(damaged)
            assert states(stage, damaged).offline
            await asyncio.sleep(0.5)
            assert image_of_states(stage, third).isr == (leads,)
        await stage.stop(leads)
        await asyncio.sleep(0.5)
        assert image_of_states(stage, third).leader != damaged
        await stage.start(leads)
        await until(lambda: states(stage, leads).is_leading)
        await stage.stop(damaged)
        rmtree(copy)
        await stage.start(damaged)
        await until(lambda: sorted(image_of_states(stage, third).isr) == sorted([leads, damaged]))

    on_cluster_stage(tmp_path, scene, given=given)


@pytest.mark.parametrize("begins", [0, 10])
def test_a_log_that_starts_over_before_a_standby_reads_it_is_read_from_its_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begins: int
) -> None:
    """The standby waits for the log, which starts over, once with as many records and once below all that it had. If
    the standby took up nothing and led, it would fence nobody.
    """
    monkeypatch.setattr(service.broker.standby, "EVERY_S", 0.005)

    async def scene(stage: TxnStage) -> None:
        coordinators = stage.broker.coordination.transactions
        partition = coordinators.shard("pay").partition
        stage.broker.replication.stop(partition)
        coordinators.lost(partition.topic_partition.partition)
        partition.follow(2, partition.leader_epoch + 1, fsync=False)

        def copy(number: int) -> None:
            copied = batch_of(number)
            restamp(copied, base_offset=partition.log.end_offset, leader_epoch=partition.leader_epoch)
            partition.append_replicated(memoryview(copied), read_header(copied), now_ms=1)

        done_at_once(partition.start_over(begins))
        copy(0)
        partition.learn_high_watermark(begins + 1)
        standby = coordinators.standby
        async with partition.log.alone():
            standby.keep(partition)
            await asyncio.sleep(0.05)
            done_at_once(partition.start_over(0))
        await asyncio.sleep(0.05)
        for number in range(1, 3):
            copy(number)
        partition.learn_high_watermark(2)
        await until(lambda: all_are_at([standby], 2))
        (replay,) = standby.replays()
        assert replay.machine.describe("pay-2") is not None
        assert follows_from_its_log(replay, coordinators)
        index = partition.topic_partition.partition
        standby.drop(index)
        done_at_once(partition.start_over(begins))
        standby.keep(partition)
        done_at_once(partition.start_over(0))
        copy(1)
        partition.lead(partition.leader_epoch + 1, 1, (1,), (1,), fsync=False)
        coordinators.led(partition)
        await until(lambda: coordinators._shards[index].loaded)
        assert coordinators.shard("pay").machine.describe("pay-1") is not None

    on_txn_stage(tmp_path, scene)


@pytest.mark.parametrize("has_read", [False, True])
def test_a_machine_that_is_known_to_be_wrong_does_not_take_over(tmp_path: Path, has_read: bool) -> None:
    """One that has read nothing would begin where the log began before."""

    async def scene(stage: TxnStage) -> None:
        coordinators = stage.broker.coordination.transactions
        partition = coordinators.shard("pay").partition
        append(partition, 1)
        leave = stage.broker.replication.leave_to_others
        standby: Standby[Any] = Standby("states", coordinators._new_replay, stage.broker.env, leave)
        standby.keep(partition)
        (replay,) = standby.replays()
        if has_read:
            await until(lambda: replay.at_offset == 1)
        partition.committed_taken_back += 1
        assert not replay.holds
        assert standby.take(partition) is None

    on_txn_stage(tmp_path, scene)


def test_a_fault_that_passes_ends_no_standby(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service.broker.standby, "EVERY_S", 0.005)

    async def scene(stage: TxnStage) -> None:
        coordinators = stage.broker.coordination.transactions
        partition = coordinators.shard("pay").partition
        append(partition, 1)
        up_to = Replay.up_to

        def fails_once(replay: Replay[Any], end_offset: int, at_most_bytes: int | None = None) -> Steps[None]:
            monkeypatch.setattr(Replay, "up_to", up_to)
            raise DiskFault(EMFILE, "no descriptor is left")

        monkeypatch.setattr(Replay, "up_to", fails_once)
        coordinators.standby.keep(partition)
        await until(lambda: [each.at_offset for each in coordinators.standby.replays()] == [1])

    on_txn_stage(tmp_path, scene)


def test_a_busy_partition_keeps_nobody_from_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More comes to it while what has come is read."""
    monkeypatch.setattr(service.broker.standby, "REST_S", 0.001)
    up_to = Replay.up_to

    async def scene(stage: TxnStage) -> None:
        coordinators = stage.broker.coordination.transactions
        busy, other = (shard.partition for shard in coordinators.shards())
        for partition in (busy, other):
            append(partition, 1)

        def and_more_comes(replay: Replay[Any], end_offset: int, at_most_bytes: int | None = None) -> Steps[None]:
            yield from up_to(replay, end_offset, at_most_bytes)
            if replay.partition is busy:
                append(busy, end_offset)

        monkeypatch.setattr(Replay, "up_to", and_more_comes)
        for partition in (busy, other):
            coordinators.standby.keep(partition)
        await until(lambda: [each.at_offset for each in coordinators.standby.replays()][1] == 1)

    on_txn_stage(tmp_path, scene)


@pytest.mark.parametrize("error", [CorruptBatch("its bytes are others"), ValueError("its bytes are others")])
def test_a_log_that_can_not_be_read_ends_nothing_but_its_own_standby(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    """A damaged one is not served any more. After an error of our own it is read when this broker leads."""

    async def scene(stage: TxnStage) -> None:
        coordinators = stage.broker.coordination.transactions
        broken, sound = (shard.partition for shard in coordinators.shards())
        for partition in (broken, sound):
            append(partition, 1)
        take = Replay._take

        def fails(replay: Replay[Any], header: BatchHeader, batch: memoryview) -> Steps[None]:
            if replay.partition is broken:
                raise error
            return take(replay, header, batch)

        monkeypatch.setattr(Replay, "_take", fails)
        leave = stage.broker.replication.leave_to_others
        standby: Standby[Any] = Standby("states", coordinators._new_replay, stage.broker.env, leave)
        for partition in (broken, sound):
            standby.keep(partition)
        await until(lambda: [each.partition for each in standby.replays()] == [sound])
        await until(lambda: standby.replays()[0].at_offset == sound.log.end_offset)
        assert "its bytes are others" in caplog.text
        assert broken.offline is isinstance(error, CorruptBatch)
        if not broken.offline:
            standby.keep(broken)
            assert [each.partition for each in standby.replays()] == [sound], "it is not read again with each change"
        standby.drop(sound.topic_partition.partition)
        await until(lambda: not standby._running)

    on_txn_stage(tmp_path, scene)


def test_a_machine_whose_replay_came_to_no_end_is_not_the_coordinator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was being extended when this broker became the leader, and that failed."""

    async def scene(stage: TxnStage) -> None:
        coordinators = stage.broker.coordination.transactions
        partition = coordinators.shard("pay").partition
        append(partition, 1)
        monkeypatch.setattr(service.broker.replay, "WORK_A_TURN", 1)
        standing_by = Replay(partition, coordinators._new_machine(partition), Mishaps())
        steps = standing_by.up_to(partition.log.end_offset)
        next(steps)
        steps.close()
        assert not standing_by.holds
        index = partition.topic_partition.partition
        coordinators.standby._replays[index] = standing_by
        coordinators.led(partition)
        await asyncio.sleep(0)
        await until(lambda: coordinators._shards[index].loaded)
        shard = coordinators.shard("pay")
        assert shard.machine is not standing_by.machine
        assert shard.machine.describe("pay-1") is not None

    on_txn_stage(tmp_path, scene)

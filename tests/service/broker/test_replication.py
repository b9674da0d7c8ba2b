"""Followers copy what their leader has: over connections, through other leaders, deaths and lost tails."""

import asyncio
import errno
import socket
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import log.partition_log
import service.broker.node
from log.batch import build_batch, read_header, restamp
from log.checkpoints import START_OFFSET, read_offset
from log.cutting import distrust
from log.disk import PARTITION_METADATA, DiskFault, RealDisk
from log.durability import REMOVED_A_STEP
from log.ids import TopicPartition
from log.partition_log import PartitionLog
from log.removal import raise_start_offset
from log.segment import LOG_SUFFIX, Segment, segment_name
from log.snapshots import SUFFIX as SNAPSHOT_SUFFIX
from log.views import whole
from service.broker import fetch_sessions, health, replication
from service.broker.acceptance import RefusedBatch
from service.broker.closing import close_logs
from service.broker.partition import Appended, Partition, PartitionLost
from service.broker.reading import Reading
from service.broker.replication import BATCHES_A_TURN, SEGMENT_WORTH, Fetcher, FollowedPartition
from service.client.cluster import Cluster
from service.client.connection import Client
from service.client.pool import Address
from service.turns import Steps, done_in_turns
from service.wire.error_codes import ErrorCode
from service.wire.messages import (
    AlterPartitionReassignmentsRequest,
    CreatableReplicaAssignment,
    CreatableTopic,
    CreateTopicsRequest,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
    ReassignablePartition,
    ReassignableTopic,
)
from tests import batches
from tests.log.building import restart_log
from tests.service.broker.cluster_stage import ALL, BROKERS, TOPIC, ClusterStage, on_cluster_stage, stored, until
from tests.service.broker.test_deletions import compacted, put
from tests.turns import with_turns

OS = {"log.durability": "os"}


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_what_is_committed_is_on_every_replica_byte_for_byte(tmp_path: Path, durability: str) -> None:
    async def scene(stage: ClusterStage) -> None:
        await stage.create(1, 2, 3, min_insync_replicas="3")
        for number in range(20):
            appended = await stage.write(f"value {number}")
            for node_id in (1, 2, 3):
                log = stage.partition(node_id).log
                assert log.end_offset >= appended.end_offset
                assert durability == "os" or log.flushed_offset >= appended.end_offset
        await stage.alike(1, 2, 3)
        await until(lambda: all(stage.partition(each).high_watermark == 20 for each in (1, 2, 3)))

    on_cluster_stage(tmp_path, scene, given={"log.durability": durability})


def test_who_leads_after_a_death_has_everything_that_was_committed(tmp_path: Path) -> None:
    async def scene(stage: ClusterStage) -> None:
        await stage.create(1, 2, 3, min_insync_replicas="2")
        for number in range(5):
            await stage.write(f"before {number}")
        await stage.kill(1)
        await stage.write("after")
        assert stage.leader() is not None
        await stage.in_sync(2, 3)
        await stage.alike(2, 3)
        assert stage.partition(2).log.end_offset == 6
        await stage.start(1)
        await stage.in_sync(1, 2, 3)
        await stage.alike(1, 2, 3)

    on_cluster_stage(tmp_path, scene, given=OS)


def test_the_last_in_sync_is_not_the_only_one_that_may_lead(tmp_path: Path) -> None:
    """Who left while too few were in sync has all that was committed: nobody waits for the last one's return (R14)."""

    async def scene(stage: ClusterStage) -> None:
        await stage.create(1, 2, 3, min_insync_replicas="2")
        await stage.write("a", "b")
        for follower in (3, 2):
            await stage.stop(follower)
        await until(lambda: stage.state().eligible == (2,))
        host, port = stage.broker(1).bootstrap.rsplit(":", 1)
        async with Cluster([Address(host, int(port))], client_id="test", timeout_s=10) as cluster:
            assert await cluster.eligible([TOPIC]) == [[2]]
        await stage.write("only the leader has it", acks=1)
        await stage.kill(1)
        for follower in (3, 2):
            await stage.start(follower)
        await stage.in_sync(2, 3)
        assert stage.state().eligible == ()
        await stage.write("c")
        await stage.start(1)
        await stage.in_sync(1, 2, 3)
        await stage.alike(1, 2, 3)
        assert [offset for offset, _, _ in stored(stage.partition(1))] == [0, 2]

    on_cluster_stage(tmp_path, scene)


def test_a_reassignment_minds_how_many_must_be_in_sync_now(tmp_path: Path) -> None:
    """It was set for the whole cluster after the brokers had started."""

    async def scene(stage: ClusterStage) -> None:
        await stage.create(1, 2, 3)
        await stage.configure(BROKERS, ALL, "min.insync.replicas", "2")
        await until(lambda: all(stage.partition(each).log.config.min_insync_replicas == 2 for each in (1, 2, 3)))
        await stage.stop(3)
        await stage.in_sync(1, 2)
        moved = ReassignableTopic(TOPIC, [ReassignablePartition(0, [2, 3])])
        answer = await stage.wire(1).ask(AlterPartitionReassignmentsRequest(topics=[moved]))
        assert answer.responses[0].partitions[0].error_code == 0
        await until(lambda: stage.state().removing == (1,))
        await stage.start(3)
        await until(lambda: (stage.state().replicas, set(stage.state().isr)) == ((2, 3), {2, 3}))

    on_cluster_stage(tmp_path, scene)


async def lose_a_tail(stage: ClusterStage) -> None:
    """1 appends what 2 never gets, stops leading, and follows 2."""
    await stage.create(1, 2, min_insync_replicas="1")
    await stage.write("kept")
    await stage.stop(2)
    await stage.in_sync(1)
    for number in range(3):
        await stage.write(f"for 1 alone {number}")
    assert stage.partition(1).high_watermark == 4
    await stage.start(2)
    await stage.in_sync(1, 2)
    stage.broker(2).replication.stop(stage.partition(2))
    await stage.write("lost", "with its leader", acks=1)
    await stage.kill(1)
    await stage.write("by 2", acks=1)
    await stage.start(1)
    await stage.in_sync(1, 2)
    await stage.alike(1, 2)
    offsets = [offset for offset, _, _ in stored(stage.partition(1))]
    assert offsets == [0, 1, 2, 3, 4]


PATIENT = {"replica.lag.time.max.ms": "60000"}
"""Who follows stays in sync, however long the other one takes to die."""


def test_a_tail_that_the_new_leader_does_not_have_is_cut_off(tmp_path: Path) -> None:
    on_cluster_stage(tmp_path, lose_a_tail, 3, 1, 2, given=OS | PATIENT)


def test_what_was_never_committed_does_not_survive_in_a_gap(tmp_path: Path) -> None:
    """A leader dies with a record that nobody copied. In its place the next one commits another, which a compaction
    removes. Who copied the log with the gap knew the next epoch only from behind the gap, and as the third leader it
    told the first that the epoch of its record had ended there: the record stayed.
    """

    async def scene(stage: ClusterStage) -> None:
        await stage.create(1, 2, 3, min_insync_replicas="1", cleanup_policy="compact", min_cleanable_dirty_ratio="0.0")
        await put(stage, b"a", b"1")
        await stage.in_sync(1, 2, 3)
        await until(lambda: all(stage.partition(each).log.end_offset == 1 for each in (1, 2, 3)))
        await stage.stop(3)
        stage.broker(2).replication.stop(stage.partition(2))
        await stage.write("never committed", acks=1)
        await stage.kill(1)
        await until(lambda: stage.state().leader == 2 and stage.leader() is not None)
        for value in (b"1", b"2"):
            await put(stage, b"b", value)
        await compacted(stage, 2)
        await put(stage, b"c", b"1")
        await compacted(stage, 2)
        assert [offset for offset, _, _ in stored(stage.partition(2))] == [0, 2, 3]
        await stage.start(3)
        await stage.in_sync(2, 3)
        await stage.alike(2, 3)
        await stage.kill(2)
        await until(lambda: stage.state().leader == 3 and stage.leader() is not None)
        await put(stage, b"d", b"1")
        asked = OffsetForLeaderTopic(TOPIC, [OffsetForLeaderPartition(0, -1, 0)])
        answer = await stage.wire(3).ask(OffsetForLeaderEpochRequest(topics=[asked]))
        assert answer.topics[0].partitions[0].end_offset == 2, "for a reader nothing was taken back in the gap"
        await stage.start(1)
        await stage.in_sync(1, 3)
        await stage.alike(1, 3)

    on_cluster_stage(tmp_path, scene, 4, 1, 2, 3, given=OS | PATIENT | {"log.cleaner.backoff.ms": "3600000"})


@pytest.mark.parametrize(("ends", "policy"), [("stop", "compact"), ("kill", "compact"), ("stop", "delete")])
def test_a_log_that_ends_in_a_gap_is_followed_to_its_end(tmp_path: Path, ends: str, policy: str) -> None:
    """A former cleaner left such a log, or a cut in a gap did. Nobody writes behind it. The policy may have changed
    since then.
    """

    async def scene(stage: ClusterStage) -> None:
        await ending_in_a_gap(stage, policy)
        await (stage.stop(1) if ends == "stop" else stage.kill(1))
        await stage.start(1)
        await stage.start(2)
        await followed_to_its_end(stage)

    on_cluster_stage(tmp_path, scene, 3, 1, 2, given=OS)


def test_a_gap_for_whose_end_there_is_no_room_is_closed_when_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With no follower in sync, nobody would write behind it either."""

    def full(*_: object, **__: object) -> None:
        raise DiskFault(errno.ENOSPC, "no room")

    async def scene(stage: ClusterStage) -> None:
        await ending_in_a_gap(stage, "compact")
        await stage.stop(1)
        with monkeypatch.context() as patch:
            patch.setattr(PartitionLog, "append", full)
            await stage.start(1)
            await until(lambda: stage.partition(1).is_leading)
            assert stage.partition(1).log.ends_in_gap
        await stage.start(2)
        await followed_to_its_end(stage)

    on_cluster_stage(tmp_path, scene, 3, 1, 2, given=OS)


async def ending_in_a_gap(stage: ClusterStage, policy: str) -> None:
    """The log of broker 1, which has no follower now."""
    await stage.create(1, 2, min_insync_replicas="1", cleanup_policy=policy)
    for value in "abc":
        await stage.write(value)
    await stage.stop(2)
    await stage.in_sync(1)
    partition = stage.partition(1)
    log = partition.log
    log.end_offset += 7
    log.start_segment(1)
    log.durability.gaps_left = log.end_offset
    await partition.flush()


async def followed_to_its_end(stage: ClusterStage) -> None:
    await stage.in_sync(1, 2)
    await stage.alike(1, 2)
    assert [offset for offset, _, _ in stored(stage.partition(2))] == [0, 1, 2, 10]
    assert (await stage.write("d")).base_offset == 11


def test_a_cut_that_is_another_one_when_the_log_is_free_is_prepared_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Retention removes segments while a cut waits: it would restart the log, and 4 would still count as durable."""
    left_durable = iter((4,))
    prepared, cuts = [], []

    async def distrust(log: PartitionLog, durable: int, offset: int) -> None:
        prepared.append(durable)

    def cut(partition: Partition, end_offset: int) -> Steps[bool]:
        cuts.append(prepared[-1])
        return carry_out(partition, end_offset)

    carry_out = Partition.cut
    monkeypatch.setattr(replication, "durable_after_cut", lambda log, offset: next(left_durable, 0))
    monkeypatch.setattr(replication, "distrust", distrust)
    monkeypatch.setattr(Partition, "cut", cut)
    on_cluster_stage(tmp_path, lose_a_tail, 3, 1, 2, given=OS | PATIENT)
    assert (prepared[0], cuts) == (4, [0])


def test_that_a_follower_has_begun_another_life_is_told_to_its_partitions_in_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replication, "LIVES_A_TURN", 1)
    many = 8

    async def scene(stage: ClusterStage) -> None:
        for number in range(many):
            await stage.create(1, 2, name=f"topic-{number}")
        leader = stage.broker(1)
        life = leader.metadata.image.brokers[2].epoch + 1
        _, turns = await with_turns(leader.replication._began(2, life))
        assert turns >= many - 1
        lives = [partition.replicas.followers[2].broker_epoch for partition in leader.partitions]
        assert lives == [life] * many

    on_cluster_stage(tmp_path, scene, 1, 2, given=OS)


@pytest.mark.parametrize("how", ["cut", "start over"])
def test_others_have_turns_while_a_follower_of_very_many_producers_takes_back(tmp_path: Path, how: str) -> None:
    """What its views knew is read again, from a snapshot, or is freed."""
    many = 20_000

    async def scene(stage: ClusterStage) -> None:
        await stage.create(1, 2)
        await stage.write("a")
        await stage.alike(1, 2)
        follower = stage.partition(2)
        for producer_id in range(1000, 1000 + many):
            follower.producers.apply(*batches.data(producer_id))
        follower.log.roll(0)
        await follower.log.flush()
        known = whole(follower.producers.snapshot())
        await stage.write("b", "c", "d")
        await stage.alike(1, 2)
        (fetcher,) = stage.broker(2).replication._fetchers.values()
        (followed,) = (followed for followed in fetcher.followed() if followed.partition is follower)
        if how == "cut":
            _, turns = await with_turns(fetcher._cut(followed, follower.leader_epoch, 1))
            assert turns > many // 1000
            assert whole(follower.producers.snapshot()) == known
            await stage.alike(1, 2)
        else:
            _, turns = await with_turns(fetcher._start_over(followed, 4))
            assert turns > many // 4096
            assert len(follower.producers) == 0

    on_cluster_stage(tmp_path, scene, 1, 2, given=OS)


@pytest.mark.parametrize("how", ["cut", "start over"])
def test_others_have_turns_while_a_follower_takes_back_very_many_segments(
    tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = 70
    removed: list[int] = [0]

    def counting(change: Callable[[RealDisk, str], None]) -> Callable[[RealDisk, str], None]:
        def counted(disk: RealDisk, path: str) -> None:
            removed[-1] += path.endswith((LOG_SUFFIX, SNAPSHOT_SUFFIX))
            change(disk, path)

        return counted

    async def turns() -> None:
        while True:
            removed.append(0)
            await asyncio.sleep(0)

    async def scene(stage: ClusterStage) -> None:
        await stage.create(1, 2, segment_index_bytes="4")
        for number in range(many):
            await stage.write(f"{number}")
        await stage.alike(1, 2)
        follower = stage.partition(2)
        await follower.log.flush()
        assert len(follower.log.segments) == many
        stage.broker(2).replication.stop(follower)
        for change in ("discard", "unlink"):
            monkeypatch.setattr(RealDisk, change, counting(getattr(RealDisk, change)))
        other = asyncio.ensure_future(turns())
        async with follower.log.alone():
            await done_in_turns(follower.cut(1) if how == "cut" else follower.start_over(0))
        other.cancel()
        left = 1 if how == "cut" else 0
        assert follower.log.end_offset == left
        assert sum(removed) > 2 * (many - 2)
        assert max(removed) <= REMOVED_A_STEP
        assert sorted(stored_bases(follower.log)) == [0]

    on_cluster_stage(tmp_path, scene, 3, 1, 2, given=OS)


def stored_bases(log: PartitionLog) -> list[int]:
    names = log.disk.listdir(log.folder)
    return [int(name.removesuffix(LOG_SUFFIX)) for name in names if name.endswith(LOG_SUFFIX)]


def test_who_leads_while_a_cut_is_carried_out_appends_when_it_is(tmp_path: Path) -> None:
    async def scene(stage: ClusterStage) -> None:
        await stage.create(1, 2, segment_index_bytes="4", min_insync_replicas="1")
        for number in range(40):
            await stage.write(f"{number}")
        await stage.alike(1, 2)
        follower = stage.partition(2)
        async with follower.log.alone():
            steps = follower.cut(3)
            while follower.log.end_offset > 3:
                next(steps)
            await stage.kill(1)
            await until(lambda: stage.leader() is follower)
            early = memoryview(bytearray(build_batch([(b"k", b"too early", (), 1)])))
            refused = follower.append_from_client(early, acks=1, now_ms=1, needs_guard=False)
            assert isinstance(refused, RefusedBatch)
            assert refused.error is ErrorCode.NOT_ENOUGH_REPLICAS
            for _ in steps:
                pass
        assert (await stage.write("behind", acks=1)).base_offset == 3
        assert [offset for offset, _, _ in stored(follower)] == [0, 1, 2, 3]

    on_cluster_stage(tmp_path, scene, 3, 1, 2, given=OS)


def test_a_cut_under_which_this_broker_begins_to_lead_is_not_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the views will know after a cut is made in steps. In between they are whole: this broker leads by them. The
    steps that are left are not made: the log is locked meanwhile.
    """

    async def scene(stage: ClusterStage) -> None:
        await stage.create(1, 2, min_insync_replicas="2")
        for number in range(7):
            await stage.write(f"{number}", producer_id=5, producer_epoch=0, base_sequence=number)
        await stage.alike(1, 2)
        follower = stage.partition(2)
        known = whole(follower.producers.snapshot())
        steps = follower.cut(5)
        next(steps)
        assert (follower.log.end_offset, whole(follower.producers.snapshot())) == (7, known)
        await stage.kill(1)
        await until(lambda: stage.leader() is follower)
        with pytest.raises(StopIteration) as end:
            next(steps)
        assert end.value.value is False
        assert (follower.log.end_offset, whole(follower.producers.snapshot())) == (7, known)
        again = await stage.write("6", acks=1, producer_id=5, producer_epoch=0, base_sequence=6)
        assert (again.duplicate, again.base_offset) == (True, 6)

    monkeypatch.setattr(log.partition_log, "BATCHES_A_STEP", 1)
    on_cluster_stage(tmp_path, scene, 3, 1, 2, given=OS)


@pytest.mark.parametrize("befalls", ["a full disk", "a stop"])
def test_a_restart_of_the_log_that_does_not_come_about_gives_back_nothing_that_was_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, befalls: str
) -> None:
    """The start was lowered for it."""

    async def distrust_and_stop(log: PartitionLog, durable: int, offset: int) -> None:
        await distrust(log, durable, offset)
        (restart,) = (task for task in asyncio.all_tasks() if task.get_name() == "restart")
        restart.cancel()
        await asyncio.sleep(0)

    def no_room(*_: object) -> None:
        raise DiskFault(errno.ENOSPC, "no room")

    async def scene(stage: ClusterStage) -> None:
        await stage.create(1, 2)
        await stage.write(*"abcd")
        await stage.alike(1, 2)
        partition = stage.partition(2)
        log = partition.log
        await raise_start_offset(log, 3)
        (fetcher,) = stage.broker(2).replication._fetchers.values()
        (followed,) = (followed for followed in fetcher.followed() if followed.partition is partition)
        with monkeypatch.context() as planted:
            if befalls == "a stop":
                planted.setattr(replication, "distrust", distrust_and_stop)
            else:
                planted.setattr(Partition, "start_over", no_room)
            restart = asyncio.create_task(fetcher._start_over(followed, 1), name="restart")
            await asyncio.wait([restart])
        assert restart.cancelled() if befalls == "a stop" else isinstance(restart.exception(), DiskFault)
        assert log.start_offset == 3
        assert read_offset(log.disk, log.folder, START_OFFSET) == 3

    on_cluster_stage(tmp_path, scene, 1, 2, given=OS)


def test_who_does_not_keep_up_falls_out_and_comes_in_again(tmp_path: Path) -> None:
    async def scene(stage: ClusterStage) -> None:
        await stage.create(1, 2, 3, min_insync_replicas="2")
        await stage.write("all")
        await stage.in_sync(1, 2, 3)
        follower = stage.partition(3)
        stage.broker(3).replication.stop(follower)
        await stage.write("nobody waits for 3 for ever")
        await stage.in_sync(1, 2)
        stage.broker(3).replication.follow(follower, stage.state(), fsync=False)
        await stage.in_sync(1, 2, 3)
        await stage.alike(1, 2, 3)

    on_cluster_stage(tmp_path, scene, given=OS)


def test_a_write_that_too_few_hold_is_answered_with_that(tmp_path: Path) -> None:
    async def scene(stage: ClusterStage) -> None:
        await stage.create(1, 2, min_insync_replicas="2")
        await stage.write("both")
        stage.broker(2).replication.stop(stage.partition(2))
        with pytest.raises(PartitionLost) as lost:
            await stage.write("one")
        assert lost.value.error is ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        assert stage.partition(1).high_watermark == 1
        stage.broker(2).replication.follow(stage.partition(2), stage.state(), fsync=False)
        await stage.in_sync(1, 2)
        await until(lambda: stage.partition(1).high_watermark == 2)

    on_cluster_stage(tmp_path, scene, 1, 2, given=OS)


def test_a_follower_below_the_leaders_start_begins_there(tmp_path: Path) -> None:
    async def scene(stage: ClusterStage) -> None:
        await stage.create(1, 2, min_insync_replicas="1")
        await stage.write("old", "older")
        await stage.stop(2)
        await stage.in_sync(1)
        await stage.write(*map(str, range(10)))
        await raise_start_offset(stage.partition(1).log, 7)
        await stage.start(2)
        await stage.in_sync(1, 2)
        assert stage.partition(2).log.start_offset == 7
        await stage.write("next")
        assert stage.partition(2).log.end_offset == 13

    on_cluster_stage(tmp_path, scene, 1, 2, given=OS)


def test_a_follower_that_holds_nothing_above_its_leaders_end_begins_where_that_begins(tmp_path: Path) -> None:
    async def scene(stage: ClusterStage) -> None:
        await stage.create(1, 2, min_insync_replicas="1")
        await stage.write("all", "there is")
        follower = stage.partition(2)
        stage.broker(2).replication.stop(follower)
        await stage.write("for 1 alone")
        await stage.in_sync(1)
        restart_log(follower.log, 100)  # all of it had expired, and then a leader was elected that lacks what was there
        stage.broker(2).replication.follow(follower, stage.state(), fsync=False)
        await stage.in_sync(1, 2)
        await stage.alike(1, 2)

    on_cluster_stage(tmp_path, scene, 1, 2, given=OS)


def test_a_follower_that_is_empty_inside_its_leaders_log_begins_where_that_begins(tmp_path: Path) -> None:
    """It went on from where it stood, and came in sync without what is below."""

    async def scene(stage: ClusterStage) -> None:
        await stage.create(1, 2, min_insync_replicas="1")
        for value in ("0", "1", "2"):
            await stage.write(value)
        await stage.in_sync(1, 2)
        await stage.kill(2)
        await stage.in_sync(1)
        await stage.write("3")
        folder = tmp_path / "2" / f"{TOPIC}-0"
        for path in folder.iterdir():
            if path.name != PARTITION_METADATA:
                path.unlink()
        (folder / segment_name(2)).touch()
        await stage.start(2)
        follower = stage.partition(2)
        assert follower.log.start_offset == 2
        await stage.in_sync(1, 2)
        assert stored(follower) == stored(stage.partition(1))

    on_cluster_stage(tmp_path, scene, 1, 2, given=OS)


def test_a_follower_that_is_told_to_cut_hears_of_the_start_afterwards(tmp_path: Path) -> None:
    """It takes nothing but the cut from that answer. The leader took the start for told: the follower kept what was
    deleted, and so it came in sync no more until somebody wrote.
    """

    async def scene(stage: ClusterStage) -> None:
        await stage.create(1, 2, min_insync_replicas="1")
        await stage.write("everywhere")
        stage.broker(2).replication.stop(stage.partition(2))
        await stage.write("lost", "with its leader", acks=1)
        await stage.kill(1)
        await until(lambda: stage.state().leader == 2 and stage.leader() is not None)
        await raise_start_offset(stage.partition(2).log, 1)
        await stage.start(1)
        await stage.in_sync(1, 2)
        assert (stage.partition(1).log.start_offset, stage.partition(1).log.end_offset) == (1, 1)

    on_cluster_stage(tmp_path, scene, 3, 1, 2, given=OS | PATIENT)


def test_what_is_deleted_does_not_come_back_with_the_next_leader(tmp_path: Path) -> None:
    async def scene(stage: ClusterStage) -> None:
        await stage.create(1, 2)
        await stage.write(*map(str, range(10)))
        await stage.in_sync(1, 2)
        wanted = DeleteRecordsTopic(TOPIC, [DeleteRecordsPartition(0, 7)])
        answer = await stage.wire(1).ask(DeleteRecordsRequest([wanted], timeout_ms=5_000))
        assert answer.topics[0].partitions[0].error_code == 0
        assert stage.partition(2).log.start_offset == 7

    on_cluster_stage(tmp_path, scene, 1, 2, given=OS)


SLOW = TopicPartition("slow", 0)
CHANGES = ["its start rises", "it starts over", "it is cut", "deletions have left the leader's log"]


async def slow_beside(stage: ClusterStage) -> tuple[Partition, Partition]:
    """A second partition that broker 1 leads and broker 2 follows, with two records: its leader and its follower."""
    for name in (TOPIC, SLOW.topic):
        await stage.create(1, 2, name=name, min_insync_replicas="1")
    await stage.write("first")
    await stage.in_sync(1, 2)
    leads, follows = [stage.broker(each).partitions.get(SLOW) for each in (1, 2)]
    assert leads is not None
    assert follows is not None
    await until(lambda: leads.is_leading)
    for _ in range(2):
        write_one(leads)
    await until(lambda: follows.log.end_offset == leads.high_watermark == 2)
    return leads, follows


def write_one(partition: Partition) -> None:
    batch = memoryview(bytearray(build_batch([(b"k", b"v", (), 1)])))
    assert isinstance(partition.append_from_client(batch, acks=1, now_ms=1, needs_guard=False), Appended)


async def copied(stage: ClusterStage, names: list[str], *, records: int) -> list[tuple[Partition, Partition]]:
    """The leader and the follower of each topic, which has so many records on both; and a topic beside these."""
    await stage.create(1, 2, min_insync_replicas="1")
    pairs = []
    for name in names:
        await stage.create(1, 2, name=name, min_insync_replicas="1")
        leads, follows = [stage.broker(each).partitions.get(TopicPartition(name, 0)) for each in (1, 2)]
        assert leads is not None
        assert follows is not None
        pairs.append((leads, follows))
    await stage.write("first")
    await stage.in_sync(1, 2)
    for leads, _ in pairs:
        await until(lambda leads=leads: leads.is_leading)  # type: ignore[misc]
        for _ in range(records):
            write_one(leads)
    await until(lambda: all(follows.log.end_offset == leads.high_watermark == records for leads, follows in pairs))
    return pairs


def test_an_answer_by_which_many_logs_must_change_is_held_up_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was for each of them, so with a hundred a healthy partition's follower fell out of sync."""
    monkeypatch.setattr(replication, "SLOW_S", 1.0)
    names = [f"slow{number}" for number in range(20)]

    async def scene(stage: ClusterStage) -> None:
        pairs = await copied(stage, names, records=2)
        async with AsyncExitStack() as held:
            for leads, follows in pairs:
                await held.enter_async_context(follows.log.alone())
                await raise_start_offset(leads.log, 1)
                write_one(leads)
            await stage.write("acknowledged")  # which waits for 15 s at most

    on_cluster_stage(tmp_path, scene, 1, 2, given=OS | {"replica.lag.time.max.ms": "60000"})


async def must_change(stage: ClusterStage, leads: Partition, follows: Partition, what: str) -> None:
    """The follower's log must change more than at its end, and waits until others are done with its files."""
    state = stage.broker(2).metadata.image.partition(SLOW)
    assert state is not None
    if what == "its start rises":
        await raise_start_offset(leads.log, 1)
        write_one(leads)
    else:
        stage.broker(2).replication.stop(follows)
        if what == "it is cut":
            follows.lead(state.leader_epoch, 2, (1, 2), (2,), fsync=False)
            write_one(follows)
        else:
            write_one(leads)
            if what == "it starts over":
                await raise_start_offset(leads.log, 3)
            else:
                leads.log.forgotten_below = 3
            write_one(leads)
        stage.broker(2).replication.follow(follows, state, fsync=False)
    await until(lambda: bool(follows.log.alone()._waiters))


def changes() -> int:
    """How many changes of the slow log are under way."""
    return [task.get_name() for task in asyncio.all_tasks()].count(f"change of {SLOW}")


@pytest.mark.parametrize("what", CHANGES)
def test_a_log_whose_files_are_in_use_holds_up_no_other_that_the_same_broker_leads(tmp_path: Path, what: str) -> None:
    """Retention, the cleaner or a flush may use them for seconds: acks=all of all others waited as long."""

    async def scene(stage: ClusterStage) -> None:
        leads, follows = await slow_beside(stage)
        async with follows.log.alone():
            await must_change(stage, leads, follows, what)
            before = follows.log.start_offset
            for number in range(3):
                async with asyncio.timeout(5):
                    await stage.write(str(number))
            assert changes() == 1, "nothing is asked about it meanwhile"
            assert follows.log.start_offset == before
        await until(lambda: (follows.log.start_offset, stored(follows)) == (leads.log.start_offset, stored(leads)))
        await until(lambda: changes() == 0)
        assert follows.log.forgotten_below == leads.log.forgotten_below
        assert stage.partition(2).log.end_offset == 4

    on_cluster_stage(tmp_path, scene, 1, 2, given=OS | {"replica.lag.time.max.ms": "60000"})


def test_a_log_whose_files_are_in_use_for_long_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its follower did nothing for minutes, and only its leader said that it was behind."""
    monkeypatch.setattr(health, "LASTS_S", 0.2)

    async def scene(stage: ClusterStage) -> None:
        leads, follows = await slow_beside(stage)
        look = stage.broker(2).health
        async with follows.log.alone():
            await must_change(stage, leads, follows, "its start rises")
            await asyncio.sleep(0.5)
            await look.look()
            [trouble] = look.troubles
            assert (trouble.kind, trouble.about, trouble.partitions) == ("stuck", "broker 1", 1)
            why = f"its files in {follows.folder.name} have to change first, and are in use for long"
            assert trouble.says.startswith(f"{SLOW} can't be copied from broker 1: {why}")
        await until(lambda: stored(follows) == stored(leads) and changes() == 0)
        await look.look()
        assert not look.troubles

    on_cluster_stage(tmp_path, scene, 1, 2, given=OS | {"replica.lag.time.max.ms": "60000"})


def test_answers_for_logs_whose_files_are_in_use_take_so_much_memory_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each partition on a slow disk kept one: a mebibyte or a large batch, and there may be thousands."""
    monkeypatch.setattr(replication, "CHANGES_BYTES", 150)
    names = [f"slow{number}" for number in range(6)]

    async def scene(stage: ClusterStage) -> None:
        pairs = await copied(stage, names, records=1)
        kept = stage.broker(2).replication._kept
        async with AsyncExitStack() as held:
            for leads, follows in pairs:
                await held.enter_async_context(follows.log.alone())
                await raise_start_offset(leads.log, 1)
                write_one(leads)
            await until(lambda: kept.is_full)
            for number in range(5):
                await stage.write(f"acknowledged {number}")
            of_answers = [each for each in asyncio.all_tasks() if each.get_name().startswith("change of slow")]
            assert 150 <= kept.bytes < 300
            assert len(of_answers) < len(names)
        await until(lambda: all(stored(leads) == stored(follows) for leads, follows in pairs))
        await until(lambda: not kept.bytes)

    on_cluster_stage(tmp_path, scene, 1, 2, given=OS | {"replica.lag.time.max.ms": "60000"})


@pytest.mark.parametrize("what", CHANGES[1:])
def test_a_log_that_has_another_role_by_then_is_not_changed_for_the_former_one(tmp_path: Path, what: str) -> None:
    async def scene(stage: ClusterStage) -> None:
        leads, follows = await slow_beside(stage)
        async with follows.log.alone():
            await must_change(stage, leads, follows, what)
            stage.broker(2).replication.stop(follows)
            before = follows.log.start_offset, stored(follows)
        await until(lambda: changes() == 0)
        assert (follows.log.start_offset, stored(follows)) == before
        assert not follows.log.forgotten_below

    on_cluster_stage(tmp_path, scene, 1, 2, given=OS | {"replica.lag.time.max.ms": "60000"})


def test_a_deletion_that_a_replica_does_not_confirm_holds_up_no_other(tmp_path: Path) -> None:
    async def scene(stage: ClusterStage) -> None:
        of: dict[str, list[Partition]] = {}
        for name in (TOPIC, "others"):
            await stage.create(1, 2, name=name)
            held = [stage.broker(node_id).partitions.get(TopicPartition(name, 0)) for node_id in (1, 2)]
            of[name] = [each for each in held if each is not None]
            await until(lambda name=name: of[name][0].is_leading)  # type: ignore[misc]
            batch = memoryview(bytearray(build_batch([(b"k", b"old", (), 1)])))
            of[name][0].append_from_client(batch, acks=-1, now_ms=1, needs_guard=False)
            await until(lambda name=name: of[name][0].high_watermark == 1)  # type: ignore[misc]
        stage.broker(2).replication._forget(of[TOPIC][1])
        wanted = [DeleteRecordsTopic(name, [DeleteRecordsPartition(0, 1)]) for name in (TOPIC, "others")]
        asked = asyncio.ensure_future(stage.wire(1).ask(DeleteRecordsRequest(wanted, timeout_ms=600_000)))
        await until(lambda: len(of[TOPIC][0]._start_waiters) == 1)
        await until(lambda: of["others"][1].log.start_offset == 1)
        await until(lambda: all(waiter.done() for waiter in of["others"][0]._start_waiters))
        assert not asked.done()
        asked.cancel()
        await until(lambda: not of[TOPIC][0]._start_waiters)  # who has gone is not remembered

    on_cluster_stage(tmp_path, scene, 1, 2, given=OS)


def test_a_deletion_waits_for_all_that_may_lead_next_also_for_one_that_is_down(tmp_path: Path) -> None:
    async def scene(stage: ClusterStage) -> None:
        await stage.create(1, 2, 3, min_insync_replicas="2")
        await stage.write(*map(str, range(10)))
        for follower in (3, 2):
            await stage.stop(follower)
        await until(lambda: stage.state().eligible == (2,))

        async def delete(timeout_ms: int) -> int:
            wanted = DeleteRecordsTopic(TOPIC, [DeleteRecordsPartition(0, 7)])
            answer = await stage.wire(1).ask(DeleteRecordsRequest([wanted], timeout_ms=timeout_ms))
            return int(answer.topics[0].partitions[0].error_code)

        assert await delete(50) == ErrorCode.REQUEST_TIMED_OUT
        assert stage.partition(1).log.start_offset == 7
        await until(lambda: not stage.partition(1)._start_waiters)  # who has given up is not remembered
        again = asyncio.ensure_future(delete(10_000))
        await stage.start(2)
        assert await again == ErrorCode.NONE
        assert stage.partition(2).log.start_offset == 7

    on_cluster_stage(tmp_path, scene, given=OS)


def test_a_broker_that_is_taken_for_dead_while_it_stops_does_not_join_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its next start would not count as clean: the manifest names the life that it ended."""

    async def scene(stage: ClusterStage) -> None:
        await stage.create(1, 2, min_insync_replicas="1")
        await stage.write("both")
        await stage.in_sync(1, 2)
        life = stage.broker(2).metadata.life

        async def close_late(*of: Any, **named: Any) -> None:
            await until(lambda: 2 not in stage.broker(1).metadata.image.brokers)
            await asyncio.sleep(0.5)
            await close_logs(*of, **named)

        with monkeypatch.context() as planted:
            planted.setattr(service.broker.node, "close_logs", close_late)
            await stage.stop(2)
        assert stage.broker(1).metadata.image.lives[2].epoch == life
        await stage.start(2)
        await stage.in_sync(1, 2)

    on_cluster_stage(tmp_path, scene, 1, 2, given=OS)


def test_a_leader_whose_disk_has_failed_leaves_its_partitions_to_others(tmp_path: Path) -> None:
    async def scene(stage: ClusterStage) -> None:
        await stage.create(1, 2)
        await stage.write("before")
        await stage.in_sync(1, 2)
        stage.broker(1).folders[0].fail(DiskFault(errno.EIO, "a bad sector"))
        await until(lambda: stage.leader() is stage.partition(2))
        await stage.write("after")
        assert stage.state().isr == (2,)

    on_cluster_stage(tmp_path, scene, 1, 2, given=OS)


def test_folds_of_a_follower_are_those_of_its_leader(tmp_path: Path) -> None:
    """The next leader knows every producer's last batches, and what was aborted."""

    async def scene(stage: ClusterStage) -> None:
        await stage.create(1, 2, min_insync_replicas="2")
        for number in range(7):
            await stage.write(f"{number}", producer_id=5, producer_epoch=0, base_sequence=number)
        await stage.alike(1, 2)
        leader, follower = stage.partition(1), stage.partition(2)
        assert whole(leader.producers.snapshot()) == whole(follower.producers.snapshot())
        await stage.kill(1)
        await until(lambda: stage.leader() is follower)
        again = await stage.write("6", acks=1, producer_id=5, producer_epoch=0, base_sequence=6)
        assert again.duplicate
        assert again.base_offset == 6

    on_cluster_stage(tmp_path, scene, 3, 1, 2, given=OS)


def test_replicas_of_many_partitions_share_one_session(tmp_path: Path) -> None:
    async def scene(stage: ClusterStage) -> None:
        await stage.create(1, 2)
        await stage.in_sync(1, 2)
        await asyncio.sleep(0.3)
        assert len(stage.broker(1).fetch_sessions) == 1

    on_cluster_stage(tmp_path, scene, 1, 2, given=OS)


def test_a_write_costs_the_replicas_what_it_changes_whatever_else_they_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = {"leader": 0, "follower": 0}
    read, asked = Reading._read, Fetcher._wanted

    def counted_read(reading: Reading, *of: Any, **limits: Any) -> Any:
        looks["leader"] += 1
        return read(reading, *of, **limits)

    def counted_asked(fetcher: Fetcher, place: FollowedPartition) -> FetchPartition:
        looks["follower"] += 1
        return asked(fetcher, place)

    monkeypatch.setattr(Reading, "_read", counted_read)
    monkeypatch.setattr(Fetcher, "_wanted", counted_asked)
    monkeypatch.setattr(fetch_sessions, "LOOK_AROUND_MS", 3_600_000)

    async def scene(stage: ClusterStage) -> None:
        await stage.create(1, 2, min_insync_replicas="2")
        others = CreatableTopic(
            "others", -1, -1, assignments=[CreatableReplicaAssignment(index, [1, 2]) for index in range(200)]
        )
        await stage.wire(1).ask(CreateTopicsRequest([others]))
        await until(lambda: len(list(stage.broker(2).partitions)) == 201)
        await stage.in_sync(1, 2)
        await asyncio.sleep(0.5)  # the leader has told all of them what there is
        looks.update(leader=0, follower=0)
        for number in range(10):
            await stage.write(f"{number}")
        assert looks["leader"] < 100
        assert looks["follower"] < 40
        await stage.alike(1, 2)

    on_cluster_stage(tmp_path, scene, 1, 2, given=OS)


def test_a_follower_in_another_life_of_its_broker_is_counted_anew(tmp_path: Path) -> None:
    async def scene(stage: ClusterStage) -> None:
        await stage.create(1, 2, min_insync_replicas="2")
        await stage.write("first")
        await asyncio.sleep(0.3)  # quiet
        sessions = stage.broker(1).fetch_sessions._sessions
        replicas = stage.partition(1).replicas
        metadata = stage.broker(2).metadata
        later = metadata.broker_epoch + 100
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(metadata, "broker_epoch", later)
            brokers = stage.broker(1).metadata.image.brokers
            patch.setitem(brokers, 2, replace(brokers[2], epoch=later))
            replicas.began_another_life(2, later, now_ms=stage.broker(1).replication.in_sync.now_ms())
            assert replicas.followers[2].held_end_offset == -1
            await until(lambda: replicas.followers[2].held_end_offset == 1, within_s=2)
        assert len(sessions) == 1  # it was the same session

    on_cluster_stage(tmp_path, scene, 1, 2, given=OS)


@pytest.mark.parametrize("checks", ["leader", "follower"])
@pytest.mark.parametrize("bit", [1, 8, 4])
def test_a_follower_does_not_go_on_behind_a_base_offset_that_has_rotted_at_its_leader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bit: int, checks: str
) -> None:
    """It took what is left out for a gap, as compaction leaves them. It came in sync, and the offsets were gone once it
    led.
    """
    if checks == "follower":
        monkeypatch.setattr(PartitionLog, "checked", lambda log, offset, stored: stored)

    async def scene(stage: ClusterStage) -> None:
        await stage.create(1, 2, min_insync_replicas="1")
        await stage.in_sync(1, 2)
        await stage.kill(2)
        await stage.in_sync(1)
        for number in range(20):
            await stage.write(f"{number}")
        segment = stage.partition(1).log.segments[0]
        position = segment.position_of(6)
        with (tmp_path / "1" / segment.path()).open("r+b") as file:
            file.seek(position)
            file.write((6 ^ bit).to_bytes(8, "big"))
        await stage.start(2)
        replication = stage.broker(2).replication
        await until(lambda: stage.holds(2) and any(each.trouble for each in replication.followed()))
        await asyncio.sleep(0.5)
        rotten = 6 ^ bit
        told = f"{rotten} to {rotten}, and then 7" if rotten > 6 else f"5 to 5, and then {rotten}"
        refused = {"leader": "it answers CORRUPT_MESSAGE", "follower": f"the leader sent offsets {told}"}
        assert [each.trouble for each in replication.followed()] == [refused[checks]]
        assert stage.partition(2).log.end_offset <= 6
        assert stage.state().isr == (1,)

    on_cluster_stage(tmp_path, scene, 1, 2, given=OS)


async def lacking_batches(stage: ClusterStage, count: int) -> None:
    """The broker 2 follows, is down, and lacks so many batches."""
    await stage.create(1, 2)
    await stage.in_sync(1, 2)
    await stage.kill(2)
    await stage.in_sync(1)
    for number in range(count):
        await stage.write(f"{number}")


def test_others_have_turns_while_a_follower_appends_very_many_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_once = 0
    longest = 0
    append = Partition.append_replicated

    def counted(partition: Partition, *of: Any, **now: Any) -> None:
        nonlocal at_once, longest
        at_once += 1
        longest = max(longest, at_once)
        append(partition, *of, **now)

    monkeypatch.setattr(Partition, "append_replicated", counted)

    async def scene(stage: ClusterStage) -> None:
        nonlocal at_once
        await lacking_batches(stage, 3 * BATCHES_A_TURN)
        await stage.start(2)
        async with asyncio.timeout(15):
            while not stage.holds(2) or stage.partition(2).log.end_offset < 3 * BATCHES_A_TURN:
                at_once = 0
                await asyncio.sleep(0)
        assert 0 < longest <= BATCHES_A_TURN
        await stage.alike(1, 2)

    on_cluster_stage(tmp_path, scene, 1, 2, given=OS)


def test_others_have_turns_while_each_batch_of_a_follower_begins_a_segment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client may set `segment.index.bytes` so that they do. That takes ten times as long as an append."""
    at_once = longest = 0
    start = PartitionLog.start_segment

    def counted(log: PartitionLog, now_ms: int) -> Segment:
        nonlocal at_once, longest
        at_once += 1
        longest = max(longest, at_once)
        return start(log, now_ms)

    async def scene(stage: ClusterStage) -> None:
        nonlocal at_once
        await lacking_batches(stage, BATCHES_A_TURN)
        await stage.configure(2, TOPIC, "segment.index.bytes", "4")
        await stage.start(2)
        monkeypatch.setattr(PartitionLog, "start_segment", counted)
        async with asyncio.timeout(15):
            while not stage.holds(2) or stage.partition(2).log.end_offset < BATCHES_A_TURN:
                at_once = 0
                await asyncio.sleep(0)
        assert 0 < longest <= BATCHES_A_TURN / SEGMENT_WORTH + 1
        await stage.alike(1, 2)

    on_cluster_stage(tmp_path, scene, 1, 2, given=OS)


def test_others_have_turns_while_a_follower_takes_an_answer_about_very_many_partitions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_once = 0
    longest = 0
    take = Fetcher._take_one

    async def counted(fetcher: Fetcher, *of: Any) -> None:
        nonlocal at_once, longest
        at_once += 1
        longest = max(longest, at_once)
        await take(fetcher, *of)

    monkeypatch.setattr(Fetcher, "_take_one", counted)

    async def scene(stage: ClusterStage) -> None:
        nonlocal at_once, longest
        await stage.create(1, 2)
        many = [CreatableReplicaAssignment(index, [1, 2]) for index in range(3 * BATCHES_A_TURN)]
        await stage.wire(1).ask(CreateTopicsRequest([CreatableTopic("many", -1, -1, assignments=many)]))
        await until(lambda: len(list(stage.broker(2).partitions)) == 1 + len(many))
        sessions = stage.broker(1).fetch_sessions
        for session_id in list(sessions._sessions):
            sessions.close(session_id)  # the first answer of the next one is about all of them
        longest = 0
        async with asyncio.timeout(15):
            while longest < BATCHES_A_TURN:
                at_once = 0
                await asyncio.sleep(0)
        assert longest == BATCHES_A_TURN

    on_cluster_stage(tmp_path, scene, 1, 2, given=OS)


def test_others_have_turns_while_a_follower_asks_about_very_many_partitions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of which nobody knows whether there is news are asked about in several requests; those that have news in
    one, which is made in several turns.
    """
    at_most = 100
    count = 3 * at_most
    asked: list[int] = []
    at_once = longest = 0
    wanted, request = Fetcher._wanted, Client.request

    def counted(fetcher: Fetcher, followed: FollowedPartition) -> FetchPartition:
        nonlocal at_once, longest
        at_once += 1
        longest = max(longest, at_once)
        return wanted(fetcher, followed)

    async def noted(client: Client, message: Any, version: int | None = None) -> Any:
        if isinstance(message, FetchRequest):
            asked.append(sum(len(topic.partitions) for topic in message.topics))
        return await request(client, message, version)

    monkeypatch.setattr(replication, "ASKED_A_TURN", at_most)
    monkeypatch.setattr(Fetcher, "_wanted", counted)
    monkeypatch.setattr(Client, "request", noted)

    async def watch() -> None:
        nonlocal at_once
        while True:
            at_once = 0
            await asyncio.sleep(0)

    async def scene(stage: ClusterStage) -> None:
        nonlocal longest
        assignments = [CreatableReplicaAssignment(index, [1, 2]) for index in range(count)]
        await stage.wire(1).ask(CreateTopicsRequest([CreatableTopic("many", -1, -1, assignments=assignments)]))
        await until(lambda: len(list(stage.broker(2).partitions)) == count)
        await until(lambda: sum(asked) >= count)
        (fetcher,) = stage.broker(2).replication._fetchers.values()
        assert max(asked) <= at_most
        watching = asyncio.create_task(watch())
        await asyncio.sleep(0)
        longest = 0
        for partition in stage.broker(1).partitions:
            batch = bytearray(build_batch([(None, b"news", (), 0)]))
            assert isinstance(
                partition.append_from_client(memoryview(batch), acks=1, now_ms=1, needs_guard=False), Appended
            )
        await until(lambda: all(each.partition.log.end_offset == 1 for each in fetcher.followed()))
        await until(lambda: max(asked) > at_most)
        watching.cancel()
        assert longest <= at_most + 1

    on_cluster_stage(tmp_path, scene, 1, 2, given=OS)


def test_new_partitions_are_copied_at_once_in_the_same_session(tmp_path: Path) -> None:
    """The fetch that waits for news of the others is answered, because another request comes behind it."""

    async def scene(stage: ClusterStage) -> None:
        await stage.create(1, 2)
        await stage.write("the session begins")
        await asyncio.sleep(0.3)  # quiet
        (fetcher,) = stage.broker(2).replication._fetchers.values()
        client, session_id = fetcher._client, fetcher._session_id
        assert fetcher._is_parked

        def follows(count: int) -> bool:
            return len(fetcher.followed()) == count

        for number in range(5):
            fresh = CreatableTopic(f"fresh-{number}", -1, -1, assignments=[CreatableReplicaAssignment(0, [1, 2])])
            await stage.wire(1).ask(CreateTopicsRequest([fresh]))
            await until(partial(follows, number + 2))
            await until(lambda: len(fetcher._told) == len(fetcher.followed()) and fetcher._is_parked)
        assert fetcher._client is client
        assert fetcher._session_id == session_id

    on_cluster_stage(tmp_path, scene, 1, 2, given={**OS, "replica.fetch.wait.max.ms": "60000"})


def test_a_leader_that_is_back_elsewhere_is_asked_there_though_its_former_address_is_silent(tmp_path: Path) -> None:
    """The follower waited for that address until `replica.socket.timeout.ms` were over."""

    async def scene(stage: ClusterStage) -> None:
        await stage.create(1, 2)
        await stage.in_sync(1, 2)
        await stage.kill(2)
        await stage.in_sync(1)
        leader = stage.lives[1]
        port = leader.broker.metadata.image.brokers[1].endpoints[0].port
        for server in leader.servers:
            await server.close()
        leader.servers.clear()
        with socket.create_server(("127.0.0.1", port)):  # takes connections, and says nothing
            await stage.start(2)
            await until(lambda: stage.broker(2).replication._fetchers[1]._connecting is not None)
            await stage.kill(1)
            await stage.start(1)
            await stage.in_sync(1, 2)

    on_cluster_stage(tmp_path, scene, 1, 2, given=OS)


def test_a_leader_that_comes_back_while_its_answer_is_taken_is_asked_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The follower asked once more at the former address, and waited there if that was silent."""

    async def scene(stage: ClusterStage) -> None:
        await stage.create(1, 2)
        await stage.write("one")
        fetcher = stage.broker(2).replication._fetchers[1]
        former, take = fetcher._client, Fetcher._take

        async def take_as_it_comes_back(self: Fetcher, answer: FetchResponse) -> None:
            monkeypatch.setattr(Fetcher, "_take", take)
            self.leader_is_back()
            await take(self, answer)

        monkeypatch.setattr(Fetcher, "_take", take_as_it_comes_back)
        await stage.write("two", acks=1)
        await until(lambda: fetcher._client not in (None, former))

    on_cluster_stage(tmp_path, scene, 1, 2, given=OS)


def test_what_came_while_it_connected_is_not_asked_beyond_before_it_is_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a follower asks from says what it holds on its platter (R12)."""

    async def scene(stage: ClusterStage) -> None:
        await stage.create(1, 2)
        await stage.write("both")
        await stage.in_sync(1, 2)
        follower, broker = stage.partition(2), stage.broker(2)
        broker.replication.stop(follower)
        connected, asks = Fetcher._connected, Fetcher._ask
        unflushed: list[int] = []

        async def connects(fetcher: Fetcher) -> Client:
            client = await connected(fetcher)
            if not unflushed:  # meanwhile its role was another for a while, and left what is not on the platter
                monkeypatch.setattr(follower.folder.flusher, "request", lambda partition: None)
                batch = bytearray(build_batch([(None, b"not durable", (), 0)]))
                restamp(memoryview(batch), base_offset=follower.log.end_offset, leader_epoch=follower.leader_epoch)
                follower.append_replicated(memoryview(batch), read_header(batch), now_ms=0)
                unflushed.append(follower.log.end_offset)
            return client

        async def ask(fetcher: Fetcher, client: Client, news: list[FetchTopic], until_next_s: float) -> FetchResponse:
            for question in (each for topic in news for each in topic.partitions):
                asked.append(question.fetch_offset == follower.log.flushed_offset == follower.log.end_offset)
            return await asks(fetcher, client, news, until_next_s)

        asked: list[bool] = []
        monkeypatch.setattr(Fetcher, "_connected", connects)
        monkeypatch.setattr(Fetcher, "_ask", ask)
        broker.replication.follow(follower, stage.state(), fsync=True)
        await until(lambda: len(asked) > 0)
        assert unflushed
        assert all(asked)

    on_cluster_stage(tmp_path, scene, 1, 2, given={"log.durability": "fsync"})


def test_a_partition_whose_flush_takes_long_holds_up_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(stage: ClusterStage) -> None:
        await stage.create(1, 2, name="slow")
        await stage.create(1, 2)
        await stage.write("both")
        slow = stage.broker(2).partitions.get(TopicPartition("slow", 0))
        leader = stage.broker(1).partitions.get(TopicPartition("slow", 0))
        assert slow is not None and leader is not None
        flush, flushed = PartitionLog.flush, asyncio.Event()

        async def flushes(log: PartitionLog) -> int:
            if log is slow.log:
                await flushed.wait()
            return await flush(log)

        monkeypatch.setattr(PartitionLog, "flush", flushes)
        batch = bytearray(build_batch([(None, b"waits for the platter", (), 0)]))
        assert isinstance(leader.append_from_client(memoryview(batch), acks=-1, now_ms=1), Appended)
        await until(lambda: slow.must_flush)
        for number in range(3):
            await stage.write(f"value {number}")
        assert leader.high_watermark == 0
        flushed.set()
        await until(lambda: leader.high_watermark == 1)

    patient = {"log.durability": "fsync", "replica.lag.time.max.ms": "60000"}
    on_cluster_stage(tmp_path, scene, 1, 2, given=patient)

"""R15: what compaction has deleted stays deleted, whichever replica was away meanwhile and whichever led."""

import asyncio
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from log.batch import build_batch, read_header
from log.control import ControlType
from log.removal import raise_start_offset
from log.segment import LOG_SUFFIX, segment_name
from service.broker.partition import Appended, Partition
from tests.log.building import cut_log
from tests.service.broker.cluster_stage import TOPIC, TOPICS, ClusterStage, on_cluster_stage, until
from tests.sim.replicas import last_values


async def put(stage: ClusterStage, key: bytes, value: bytes | None, **of: Any) -> None:
    leader = stage.leader()
    assert leader is not None
    batch = memoryview(bytearray(build_batch([(key, value, (), 1)], **of)))
    appended = leader.append_from_client(batch, acks=-1, now_ms=1, needs_guard=False)
    assert isinstance(appended, Appended)
    if (committed := leader.committed(appended.end_offset)) is not None:
        await committed


async def compacted(stage: ClusterStage, node_id: int) -> None:
    log = stage.partition(node_id).log
    log.roll(1)
    await log.flush()
    await stage.broker(node_id).compactor._round()


async def forget(stage: ClusterStage) -> None:
    """The tombstone at offset 1 leaves the leader's log."""
    await put(stage, b"b", b"1")
    await compacted(stage, 1)
    await put(stage, b"c", b"1")
    assert stage.partition(1).log.forgotten_below == 0
    await compacted(stage, 1)
    await put(stage, b"d", b"1")
    await compacted(stage, 1)
    assert stage.partition(1).log.forgotten_below == 2


FORGETFUL = {
    "cleanup_policy": "compact",
    "delete_retention_ms": "0",
    "min_cleanable_dirty_ratio": "0.0",
    "min_insync_replicas": "1",
}
NEVER_BY_ITSELF = {"log.durability": "os", "log.cleaner.backoff.ms": "3600000"}


async def deleted_on_all(stage: ClusterStage, *replicas: int) -> None:
    """A topic with a key that was deleted. All have the tombstone, which is at offset 1."""
    await stage.create(*replicas, **FORGETFUL)
    await put(stage, b"a", b"deleted later")
    await put(stage, b"a", None)
    await stage.in_sync(*replicas)
    for replica in replicas:
        await until(lambda replica=replica: stage.partition(replica).log.end_offset == 2)  # type: ignore[misc]


async def away_while_deleted(stage: ClusterStage) -> None:
    """Broker 3 has a key whose deletion broker 2 has, and broker 1 has forgotten."""
    await stage.create(1, 2, 3, **FORGETFUL)
    await put(stage, b"a", b"deleted later")
    await stage.in_sync(1, 2, 3)
    await until(lambda: stage.partition(3).log.end_offset == 1)
    await stage.stop(3)
    await put(stage, b"a", None)
    await forget(stage)


def test_a_key_that_was_deleted_while_a_follower_was_away_does_not_come_back_with_it(tmp_path: Path) -> None:
    async def scene(stage: ClusterStage) -> None:
        await away_while_deleted(stage)
        await stage.start(3)
        await stage.in_sync(1, 2, 3)
        back = stage.partition(3)
        assert last_values(back) == dict.fromkeys((b"b", b"c", b"d"), b"1")
        assert back.log.forgotten_below >= 2, "a follower that copies from here later lacks the same tombstone"
        assert stage.partition(2).log.forgotten_below == 0, "who was never away has forgotten nothing"

    on_cluster_stage(tmp_path, scene, given=NEVER_BY_ITSELF)


def test_a_follower_that_holds_all_that_was_forgotten_goes_on_where_it_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started_over: list[Partition] = []
    monkeypatch.setattr(Partition, "start_over", lambda partition, offset: started_over.append(partition))

    async def scene(stage: ClusterStage) -> None:
        await deleted_on_all(stage, 1, 2)
        await stage.stop(2)
        await forget(stage)
        await stage.start(2)
        await stage.in_sync(1, 2)
        assert last_values(stage.partition(2)) == last_values(stage.partition(1))
        assert not started_over

    on_cluster_stage(tmp_path, scene, 1, 2, given=NEVER_BY_ITSELF)


def test_a_replica_that_is_counted_on_to_lead_next_keeps_what_it_holds(tmp_path: Path) -> None:
    """It has lost its tail. Should its leader die before it is out of the in-sync set, it has all the rest."""

    async def scene(stage: ClusterStage) -> None:
        await deleted_on_all(stage, 1, 2)
        await forget(stage)
        follower = stage.partition(2)
        await until(lambda: follower.log.end_offset == stage.partition(1).log.end_offset)
        stage.broker(2).replication.stop(follower)
        cut_log(follower.log, 1)
        stage.broker(2).replication.follow(follower, stage.state(), fsync=False)
        await until(lambda: follower.log.end_offset == stage.partition(1).log.end_offset)
        assert follower.log.start_offset == 0
        assert b"a" in last_values(follower), "it went on where it stood"

    on_cluster_stage(tmp_path, scene, 1, 2, given=NEVER_BY_ITSELF | {"replica.lag.time.max.ms": "60000"})


async def new_disk(stage: ClusterStage, tmp_path: Path, node_id: int, *in_sync: int) -> None:
    shutil.rmtree(tmp_path / str(node_id))
    await stage.start(node_id)
    await stage.in_sync(*in_sync)


async def one_away_and_one_anew(stage: ClusterStage, tmp_path: Path) -> None:
    """Broker 3 is away with a key that was deleted meanwhile. Broker 2 has copied what is left of the log, and alone is
    in sync: broker 1 has stopped.
    """
    await away_while_deleted(stage)
    await stage.stop(2)
    await new_disk(stage, tmp_path, 2, 1, 2)
    await until(lambda: stage.partition(2).log.end_offset == 5)
    await stage.stop(1)
    await stage.in_sync(2)


RARE_WATERMARKS = {"replica.high.watermark.checkpoint.interval.ms": "3600000"}


@pytest.mark.parametrize("returns", [3, 1])
def test_a_leader_that_knows_little_of_what_was_committed_knows_what_it_lacks(tmp_path: Path, returns: int) -> None:
    """Its process was killed, and it last noted at the beginning what is committed. No replica that comes in sync next
    has a key that was deleted.
    """

    async def scene(stage: ClusterStage) -> None:
        await one_away_and_one_anew(stage, tmp_path)
        await stage.configure(TOPICS, TOPIC, "min.insync.replicas", "2", asked=2)
        await until(lambda: stage.partition(2).log.config.min_insync_replicas == 2)
        await stage.kill(2)
        await stage.start(2)
        await until(lambda: stage.leader() is not None)
        assert stage.partition(2).high_watermark == 0
        assert stage.partition(2).log.forgotten_below == 2
        assert sorted(map(str, last_values(stage.partition(2)))) == ["b'b'", "b'c'", "b'd'"], "no copy with gaps is cut"
        if returns == 1:
            await new_disk(stage, tmp_path, 1, 1, 2)
            await stage.stop(2)
        await stage.start(3)
        await stage.in_sync(3, 1 if returns == 1 else 2)
        assert b"a" not in last_values(stage.partition(3))

    on_cluster_stage(tmp_path, scene, given=NEVER_BY_ITSELF | RARE_WATERMARKS)


def test_what_was_copied_while_the_topic_was_not_compacted_lacks_deletions_too(tmp_path: Path) -> None:
    async def scene(stage: ClusterStage) -> None:
        await away_while_deleted(stage)
        await stage.stop(2)
        await stage.configure(TOPICS, TOPIC, "cleanup.policy", "delete")
        await new_disk(stage, tmp_path, 2, 1, 2)
        await stage.configure(TOPICS, TOPIC, "cleanup.policy", "compact")
        await stage.stop(1)
        await stage.in_sync(2)
        await stage.start(3)
        await stage.in_sync(2, 3)
        assert last_values(stage.partition(3)) == last_values(stage.partition(2))

    on_cluster_stage(tmp_path, scene, given=NEVER_BY_ITSELF)


def test_a_transaction_whose_marker_has_left_is_not_open_where_its_records_were_deleted(tmp_path: Path) -> None:
    """A follower with nothing to read may still know of an open transaction."""

    async def scene(stage: ClusterStage) -> None:
        await stage.create(1, 2, **FORGETFUL | {"cleanup_policy": "compact,delete"})
        leader = stage.partition(1)
        await until(lambda: leader.is_leading)
        await put(stage, b"a", b"1", producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
        follower = stage.partition(2)
        await until(lambda: follower.log.end_offset == 1 and leader.high_watermark == 1)
        await raise_start_offset(leader.log, 1)
        await until(lambda: follower.log.start_offset == 1)
        await stage.stop(2)
        marked = leader.append_marker(
            *(ControlType.COMMIT,),
            producer_id=7,
            producer_epoch=0,
            coordinator_epoch=0,
            transaction_version=1,
            now_ms=1,
        )
        assert isinstance(marked, Appended)
        await put(stage, b"a", b"2")
        for _ in leader.producers.expire(10**15, 1, clock_set_ms=0):
            pass  # the producer is forgotten, in steps
        for number in range(4):
            await put(stage, b"b", b"%d" % number)
            await compacted(stage, 1)
        assert leader.log.forgotten_below == 2
        await stage.start(2)
        await stage.in_sync(1, 2)
        assert not stage.partition(2).stable.open_transactions

    on_cluster_stage(tmp_path, scene, 1, 2, given=NEVER_BY_ITSELF)


def test_a_leader_that_has_lost_its_tail_does_not_ask_others_for_more_than_it_has(tmp_path: Path) -> None:
    async def scene(stage: ClusterStage) -> None:
        await deleted_on_all(stage, 1, 2)
        await stage.stop(2)
        await forget(stage)
        await new_disk(stage, tmp_path, 2, 1, 2)
        await until(lambda: stage.partition(2).log.end_offset == 5)
        log = stage.partition(2).log
        assert log.forgotten_below == 2
        path = tmp_path / "2" / log.folder / segment_name(log.segments[0].base_offset, LOG_SUFFIX)
        await stage.stop(1)
        await stage.in_sync(2)
        await stage.kill(2)
        for checkpoint in (tmp_path / "2" / log.folder).glob("gaps-*"):
            checkpoint.unlink()
        os.truncate(path, read_header(path.read_bytes()).size_bytes // 2)  # nothing whole is left
        await stage.start(2)
        await until(lambda: stage.leader() is not None)
        assert stage.partition(2).log.forgotten_below <= stage.partition(2).log.end_offset
        await stage.start(1)
        await stage.in_sync(1, 2)
        await stage.configure(TOPICS, TOPIC, "min.insync.replicas", "2")
        await until(lambda: stage.partition(2).log.config.min_insync_replicas == 2)
        await put(stage, b"new", b"1")

    on_cluster_stage(tmp_path, scene, 1, 2, given=NEVER_BY_ITSELF)


def test_a_broker_that_lost_its_tail_waits_until_its_leader_has_heard_of_its_new_life(tmp_path: Path) -> None:
    """Until then its leader takes it for the former life, which was in sync and had all deletions."""

    async def scene(stage: ClusterStage) -> None:
        await deleted_on_all(stage, 1, 2)
        await forget(stage)
        await until(lambda: stage.partition(2).log.end_offset == 5)
        metadata, heard = stage.broker(1).metadata, asyncio.Event()
        take = metadata._take

        async def late(change: Any) -> None:
            await heard.wait()
            await take(change)

        metadata._take = late  # type: ignore[method-assign]
        path = tmp_path / "2" / stage.partition(2).log.folder / segment_name(0, LOG_SUFFIX)
        await stage.kill(2)
        os.truncate(path, read_header(path.read_bytes()).size_bytes)
        await stage.start(2)
        await until(
            lambda: any("OFFSET_NOT_AVAILABLE" in each.trouble for each in stage.broker(2).replication.followed())
        )
        assert stage.partition(2).log.end_offset == 1
        heard.set()
        await stage.in_sync(1, 2)
        assert b"a" not in last_values(stage.partition(2))

    on_cluster_stage(tmp_path, scene, given=NEVER_BY_ITSELF)

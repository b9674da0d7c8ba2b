"""What a partition promises while who is in sync changes, and when its role does."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from log.batch import build_batch, read_header
from log.control import ControlType
from log.ids import TopicPartition
from service.broker.acceptance import RefusedBatch
from service.broker.partition import Appended, Partition, PartitionLost
from service.broker.session import Session
from service.broker.writing import Write, WriteTerms, Writing
from service.wire.error_codes import ErrorCode
from service.wire.messages import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from tests.service.api.admin_stage import Stage, on_stage

LIFE = 7
OS = {"log.durability": "os"}


async def led(stage: Stage, *, isr: tuple[int, ...] = (1, 2), min_in_sync: int = 2) -> Partition:
    """A partition that this broker leads, with 2 and 3 as followers that are only talked of."""
    await stage.create("orders")
    partition = await stage.served("orders")
    partition.lead(partition.leader_epoch + 1, 1, (1, 2, 3), isr, fsync=False)
    partition.set_config(replace(partition.log.config, min_insync_replicas=min_in_sync), fsync=False)
    return partition


def write(partition: Partition, value: bytes = b"x", *, acks: int = -1) -> Appended | RefusedBatch:
    batch = bytearray(build_batch([(None, value, (), 1)]))
    return partition.append_from_client(memoryview(batch), acks=acks, now_ms=1)


def appended(partition: Partition) -> int:
    outcome = write(partition)
    assert isinstance(outcome, Appended)
    return outcome.end_offset


async def told(waiter: asyncio.Future[None] | None) -> ErrorCode:
    assert waiter is not None
    try:
        async with asyncio.timeout(5):
            await waiter
    except PartitionLost as lost:
        return lost.error
    return ErrorCode.NONE


def test_who_waits_is_told_when_too_few_are_in_sync_to_keep_it(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        partition = await led(stage)
        end_offset = appended(partition)
        waiter = partition.committed(end_offset)
        partition.decided((1,), 9, ())
        assert await told(waiter) is ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        assert partition.high_watermark == 0
        assert write(partition) == RefusedBatch(ErrorCode.NOT_ENOUGH_REPLICAS)

    on_stage(tmp_path, scene, OS)


def test_who_waits_is_told_when_the_one_that_lagged_is_in_sync_no_more(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        partition = await led(stage, isr=(1, 2, 3))
        waiter = partition.committed(appended(partition))
        partition.fetched(2, 1, start_offset=0, broker_epoch=LIFE, now_ms=1)
        assert waiter is not None
        assert not waiter.done()
        partition.decided((1, 2), 9, ())
        assert await told(waiter) is ErrorCode.NONE

    on_stage(tmp_path, scene, OS)


def test_settings_that_want_more_in_sync_are_minded_by_who_waits_already(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        partition = await led(stage)
        waiter = partition.committed(appended(partition))
        partition.set_config(replace(partition.log.config, min_insync_replicas=3), fsync=False)
        assert await told(waiter) is ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND

    on_stage(tmp_path, scene, OS)


def test_a_marker_and_a_coordinators_record_need_as_many_in_sync_as_anything_else(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        partition = await led(stage, isr=(1,))
        marker = partition.append_marker(
            ControlType.COMMIT,
            producer_id=1,
            producer_epoch=0,
            coordinator_epoch=0,
            transaction_version=1,
            now_ms=1,
        )
        record = partition.append_own(bytearray(build_batch([(b"k", b"v", (), 1)])), now_ms=1)
        assert marker == record == RefusedBatch(ErrorCode.NOT_ENOUGH_REPLICAS)
        assert partition.log.end_offset == 0
        waiter = partition.enough_in_sync()
        partition.decided((1, 2), 9, ())
        assert await told(waiter) is ErrorCode.NONE

    on_stage(tmp_path, scene, OS)


def test_a_new_leader_begins_with_what_it_was_told_is_committed(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        partition = await led(stage)
        for _ in range(3):
            appended(partition)
        partition.fetched(2, 2, start_offset=0, broker_epoch=LIFE, now_ms=1)
        partition.follow(2, 5, fsync=False)
        assert partition.high_watermark == 2
        partition.learn_high_watermark(9)
        assert partition.high_watermark == 3
        partition.lead(6, 1, (1, 2, 3), (1, 2), fsync=False)
        assert (partition.high_watermark, partition.is_catching_up) == (3, False)

    on_stage(tmp_path, scene, OS)


def test_what_is_known_to_be_committed_outlives_a_stop(tmp_path: Path) -> None:
    """Otherwise readers that saw it would be told that it is not there yet."""

    async def write_some(stage: Stage) -> None:
        partition = await led(stage)
        for _ in range(3):
            appended(partition)
        partition.fetched(2, 2, start_offset=0, broker_epoch=LIFE, now_ms=1)

    on_stage(tmp_path, write_some, OS)
    assert b"orders 0 2" in (tmp_path / "replication-offset-checkpoint").read_bytes()


def test_records_are_not_deleted_by_a_leader_that_does_not_know_yet_what_is_committed(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        partition = await led(stage)
        appended(partition)
        partition.lead(partition.leader_epoch + 1, 1, (1, 2, 3), (1, 2), fsync=False)
        assert partition.is_catching_up
        topic = DeleteRecordsTopic("orders", [DeleteRecordsPartition(0, -1)])
        answer = await stage.ask(DeleteRecordsRequest([topic]))
        assert answer.topics[0].partitions[0].error_code == ErrorCode.LEADER_NOT_AVAILABLE

    on_stage(tmp_path, scene, OS)


def test_a_follower_forgets_the_epochs_in_which_it_led_and_wrote_nothing(tmp_path: Path) -> None:
    """The next leader may have written there in an earlier epoch; it would be taken for this one's."""

    async def scene(stage: Stage) -> None:
        partition = await led(stage)
        appended(partition)
        wrote_in = partition.leader_epoch
        partition.lead(wrote_in + 1, 1, (1, 2, 3), (1, 2), fsync=False)
        partition.follow(2, wrote_in + 2, fsync=False)
        batch = bytearray(build_batch([(None, b"tail", (), 1)]))
        batch[:8], batch[12:16] = (1).to_bytes(8, "big"), wrote_in.to_bytes(4, "big")
        partition.append_replicated(memoryview(batch), read_header(batch), now_ms=1)
        assert partition.log.epochs.epoch_at(1) == wrote_in

    on_stage(tmp_path, scene, OS)


@pytest.mark.parametrize("wrong", ["checksum", "offset", "epoch"])
def test_a_follower_takes_no_batch_that_can_not_be_next(tmp_path: Path, wrong: str) -> None:
    async def scene(stage: Stage) -> None:
        partition = await led(stage)
        appended(partition)
        partition.follow(2, 5, fsync=False)
        batch = bytearray(build_batch([(None, b"next", (), 1)]))
        offset, epoch = (0 if wrong == "offset" else 1), (6 if wrong == "epoch" else 5)
        batch[:8], batch[12:16] = offset.to_bytes(8, "big"), epoch.to_bytes(4, "big")
        if wrong == "checksum":
            batch[-1] ^= 1
        with pytest.raises(ValueError, match="the leader"):
            partition.append_replicated(memoryview(batch), read_header(batch), now_ms=1)
        assert partition.log.end_offset == 1

    on_stage(tmp_path, scene, OS)


def test_a_partition_whose_disk_has_failed_stays_offline_under_any_leader(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        partition = await led(stage)
        partition.fail()
        partition.resign()
        assert partition.offline
        assert write(partition) == RefusedBatch(ErrorCode.KAFKA_STORAGE_ERROR)
        assert stage.broker.partitions.get(TopicPartition("orders", 0)) is partition

    on_stage(tmp_path, scene, OS)


def test_a_partition_is_not_asked_for_more_in_sync_than_it_has_replicas(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        await stage.create("alone")
        partition = await stage.served("alone")
        partition.set_config(replace(partition.log.config, min_insync_replicas=2), fsync=False)
        assert isinstance(write(partition), Appended)

    on_stage(tmp_path, scene, OS)


def test_a_leader_that_was_out_of_session_still_counts_whom_it_proposed(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        partition = await led(stage, isr=(1,), min_in_sync=1)
        epoch = partition.leader_epoch
        assert partition.replicas is not None
        partition.replicas.proposed(((1, LIFE), (2, LIFE)))
        partition.resign()
        partition.lead(epoch, 1, (1, 2, 3), (1,), fsync=False)
        end_offset = appended(partition)
        waiter = partition.committed(end_offset)
        assert partition.high_watermark == 0  # the store may name 2 by now, and 2 does not have it
        partition.fetched(2, end_offset, start_offset=0, broker_epoch=LIFE, now_ms=1)
        assert await told(waiter) is ErrorCode.NONE
        partition.resign()
        partition.lead(epoch, 1, (1, 2, 3), (1,), fsync=False, partition_epoch=1)
        appended(partition)
        assert partition.high_watermark == 2  # nothing that was proposed before can be accepted any more

    on_stage(tmp_path, scene, OS)


def test_who_waits_for_enough_in_sync_is_told_when_others_take_the_place_of_a_replica(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        partition = await led(stage, isr=(1,))
        enough = partition.enough_in_sync()
        # The end of a reassignment changes the replicas and who is in sync in one commit.
        partition.lead(partition.leader_epoch, 1, (1, 3), (1, 3), fsync=False, partition_epoch=9)
        assert await told(enough) is ErrorCode.NONE
        waiter = partition.committed(appended(partition))
        partition.lead(partition.leader_epoch, 1, (1, 2), (1,), fsync=False, partition_epoch=10)
        assert await told(waiter) is ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND

    on_stage(tmp_path, scene, OS)


def test_a_batch_is_not_confirmed_by_what_a_later_leadership_has_at_its_offset(tmp_path: Path) -> None:
    """Between the append and the wait for it there may be the waits for other partitions."""

    async def scene(stage: Stage) -> None:
        partition = await led(stage)
        batch = memoryview(bytearray(build_batch([(None, b"x", (), 1)])))
        terms = WriteTerms(
            -1, 5_000, None, adds_partitions=False, knows_abortable=False, knows_zstd=True, may_write_internal=False
        )
        write = Write({0: partition}, 0, batch)
        writing = Writing(stage.broker.writing, terms, [write])
        writing.append()
        epoch = partition.leader_epoch
        partition.follow(2, epoch + 1, fsync=False)
        partition.cut(0)
        partition.lead(epoch + 2, 1, (1, 2, 3), (1, 2), fsync=False)
        write_of_another = partition.committed(appended(partition))
        partition.fetched(2, 1, start_offset=0, broker_epoch=LIFE, now_ms=1)
        assert await told(write_of_another) is ErrorCode.NONE
        await writing.settle(Session("here", 1))
        assert write.outcome == RefusedBatch(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    on_stage(tmp_path, scene, OS)

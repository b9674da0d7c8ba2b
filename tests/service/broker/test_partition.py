"""What a partition promises while who is in sync changes, and when its role does."""

from dataclasses import replace
from errno import ENOSPC
from pathlib import Path

import pytest

from log.batch import build_batch, read_header, restamp
from log.control import ControlType
from log.disk import DiskFault
from log.ids import TopicPartition
from log.segment import Segment
from log.steps import done_at_once
from service.broker.acceptance import RefusedBatch
from service.broker.partition import SENT_BEHIND_MS, Appended, Partition
from service.ports import RealClock
from service.stores.memory import MemoryServer
from service.wire.error_codes import ErrorCode
from service.wire.messages import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from tests.service.api.admin_stage import Stage, on_stage
from tests.service.broker.topic_stage import LIFE, OS, led, told


def write(partition: Partition, value: bytes = b"x", *, acks: int = -1) -> Appended | RefusedBatch:
    batch = bytearray(build_batch([(None, value, (), 1)]))
    return partition.append_from_client(memoryview(batch), acks=acks, now_ms=1)


def appended(partition: Partition) -> int:
    outcome = write(partition)
    assert isinstance(outcome, Appended)
    return outcome.end_offset


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


def test_all_who_wait_are_told_at_their_offsets_in_any_order_of_coming(tmp_path: Path) -> None:
    """A duplicate waits for an older offset than the newest append."""

    async def scene(stage: Stage) -> None:
        partition = await led(stage)
        ends = [appended(partition) for _ in range(4)]
        waiters = {number: partition.committed(ends[at]) for number, at in enumerate((3, 1, 0, 1, 2))}
        for at, reached in ((0, [2]), (1, [1, 2, 3]), (2, [1, 2, 3, 4])):
            partition.fetched(2, ends[at], start_offset=0, broker_epoch=LIFE, now_ms=1)
            partition.fetched(3, ends[at], start_offset=0, broker_epoch=LIFE, now_ms=1)
            assert [number for number, waiter in waiters.items() if waiter is None or waiter.done()] == reached
        late = partition.committed(ends[3] - 1) or partition.committed(ends[3])
        partition.resign()
        assert await told(waiters[0]) is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert await told(late) is ErrorCode.NOT_LEADER_OR_FOLLOWER

    on_stage(tmp_path, scene, OS)


def test_settings_that_want_more_in_sync_are_minded_by_who_waits_already(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        partition = await led(stage)
        waiter = partition.committed(appended(partition))
        partition.set_config(replace(partition.log.config, min_insync_replicas=3), fsync=False)
        assert await told(waiter) is ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND

    on_stage(tmp_path, scene, OS)


def send(partition: Partition, sequence: int, *, now_ms: int = 1) -> Appended | ErrorCode:
    batch = bytearray(build_batch([(None, b"x", (), 1)], producer_id=5, producer_epoch=0, base_sequence=sequence))
    outcome = partition.append_from_client(memoryview(batch), acks=-1, now_ms=now_ms)
    return outcome if isinstance(outcome, Appended) else outcome.error


def test_who_sends_on_behind_a_batch_that_found_no_room_finds_none_either(tmp_path: Path) -> None:
    """Told that it is out of order, a producer of librdkafka begins a new epoch in all its partitions, and what it has
    no answer for in the others it writes again.
    """

    async def scene(stage: Stage) -> None:
        partition = await led(stage)
        assert isinstance(send(partition, 0), Appended)
        partition.folder.headroom.run_out()
        assert [send(partition, sequence) for sequence in (1, 2, 3)] == 3 * [ErrorCode.NOT_ENOUGH_REPLICAS]
        again = send(partition, 0)
        assert isinstance(again, Appended)
        assert again.duplicate

    on_stage(tmp_path, scene, OS)


def test_what_was_sent_behind_a_batch_that_too_few_could_keep_is_sent_again_as_well(tmp_path: Path) -> None:
    """Others come in sync after the first of several batches under way was refused."""

    async def scene(stage: Stage) -> None:
        partition = await led(stage)
        assert isinstance(send(partition, 0), Appended)
        partition.decided((1,), 9, ())
        assert send(partition, 1) is ErrorCode.NOT_ENOUGH_REPLICAS
        partition.decided((1, 2), 10, ())
        assert [send(partition, sequence) for sequence in (2, 3)] == 2 * [ErrorCode.NOT_ENOUGH_REPLICAS]
        assert all(isinstance(send(partition, sequence), Appended) for sequence in (1, 2, 3))

    on_stage(tmp_path, scene, OS)


def test_what_was_sent_behind_a_batch_that_came_before_this_broker_led_is_sent_again_as_well(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        partition = await led(stage)
        assert isinstance(send(partition, 0), Appended)
        partition.follow(2, partition.leader_epoch + 1, fsync=False)
        assert send(partition, 1) is ErrorCode.NOT_LEADER_OR_FOLLOWER
        partition.lead(partition.leader_epoch + 1, 1, (1, 2, 3), (1, 2), fsync=False)
        assert send(partition, 2) is ErrorCode.NOT_ENOUGH_REPLICAS
        assert all(isinstance(send(partition, sequence), Appended) for sequence in (1, 2))

    on_stage(tmp_path, scene, OS)


def test_a_batch_is_out_of_order_if_the_one_before_it_does_not_come_again(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        partition = await led(stage)
        assert isinstance(send(partition, 0), Appended)
        assert send(partition, 2) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER  # nothing was refused before
        partition.decided((1,), 9, ())
        assert send(partition, 1) is ErrorCode.NOT_ENOUGH_REPLICAS
        partition.decided((1, 2), 10, ())
        for now_ms in range(2, SENT_BEHIND_MS, 1000):  # what is told here doesn't prolong it
            assert send(partition, 2, now_ms=now_ms) is ErrorCode.NOT_ENOUGH_REPLICAS
        assert send(partition, 2, now_ms=1 + SENT_BEHIND_MS) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert send(partition, 2, now_ms=0) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER  # the clock was set back

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


def test_a_marker_that_was_given_up_is_written_again_only_if_it_may_end_something(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        partition = await led(stage)

        def marked(kind: ControlType = ControlType.COMMIT, *, of: int = 0) -> Appended:
            outcome = partition.append_marker(
                kind, producer_id=1, producer_epoch=0, coordinator_epoch=of, transaction_version=1, now_ms=1
            )
            assert isinstance(outcome, Appended)
            return outcome

        def given_up(marker: Appended) -> int:
            partition.gave_up_marker(1, (ControlType.COMMIT, 0, 0), marker)
            return marker.base_offset

        first = marked()
        assert given_up(first) == 0
        assert marked() is first, "who sends it again waits for the first one"
        assert marked().base_offset == 1, "nobody gave it up since"
        assert given_up(marked()) == 2
        assert marked(ControlType.ABORT).base_offset == 3, "another marker"
        assert given_up(marked()) == 4
        batch = build_batch([(None, b"x", (), 1)], producer_id=1, producer_epoch=0, base_sequence=0, transactional=True)
        partition.append_from_client(memoryview(bytearray(batch)), acks=1, now_ms=1, needs_guard=False)
        assert marked().base_offset == 6, "it ends what was written since"
        given_up(marked())
        partition.resign()
        partition.lead(6, 1, (1, 2, 3), (1, 2), fsync=False)
        assert marked().base_offset == 8, "the log may have been cut meanwhile"
        assert given_up(marked()) == 9
        assert marked(of=1).base_offset == 10, "of another coordinator"

    on_stage(tmp_path, scene, OS)


def test_a_marker_ends_what_is_being_verified_though_it_was_written_before(tmp_path: Path) -> None:
    """The coordinator answered before it ended the transaction. A batch that came behind the marker would hang."""

    async def scene(stage: Stage) -> None:
        partition = await led(stage)

        def marked() -> Appended | RefusedBatch:
            return partition.append_marker(
                ControlType.ABORT, producer_id=1, producer_epoch=0, coordinator_epoch=0, transaction_version=1, now_ms=1
            )

        marker = marked()
        assert isinstance(marker, Appended)
        partition.gave_up_marker(1, (ControlType.ABORT, 0, 0), marker)
        guard = partition.producers.start_verification(1, epoch=0, sequence=0, newest_protocol=False, now_ms=1)
        assert marked() is marker
        batch = build_batch([(None, b"x", (), 1)], producer_id=1, producer_epoch=0, base_sequence=0, transactional=True)
        late = partition.append_from_client(memoryview(bytearray(batch)), acks=1, now_ms=1, guard=guard)
        assert isinstance(late, RefusedBatch)
        assert late.error is ErrorCode.NOT_ENOUGH_REPLICAS, "it comes again, and the coordinator is asked again"
        assert not partition.stable.open_transactions

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


@pytest.mark.parametrize("of_another_topic", [False, True])
def test_what_is_known_to_be_committed_outlives_a_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of_another_topic: bool
) -> None:
    """Otherwise readers that saw it would be told that it is not there yet. A topic that was deleted and made again
    shortly before a crash begins anew: what was committed in its predecessor is nothing to it.
    """

    async def write_some(stage: Stage) -> None:
        partition = await led(stage)
        for _ in range(3):
            appended(partition)
        partition.fetched(2, 2, start_offset=0, broker_epoch=LIFE, now_ms=1)

    async def nothing(stage: Stage) -> None:
        pass

    learned: list[int] = []
    metadata = MemoryServer(RealClock())
    monkeypatch.setattr(Partition, "learn_high_watermark", lambda _, offset: learned.append(offset))
    on_stage(tmp_path, write_some, OS, metadata=metadata)
    note = tmp_path / "replication-offset-checkpoint"
    head, line = note.read_text().rsplit("\n", 2)[:2]
    topic_id, index, offset = line.split()
    assert (index, offset) == ("0", "2")
    if of_another_topic:
        note.write_text(f"{head}\n{'5' * len(topic_id)} 0 2\n")
    on_stage(tmp_path, nothing, OS, metadata=metadata)
    assert learned == ([] if of_another_topic else [2])


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


def test_a_cut_that_finds_no_room_behind_a_gap_leaves_nothing_committed_that_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Led by this log, a new record would have been committed before any follower had it."""

    def no_room(*_: object) -> None:
        raise DiskFault(ENOSPC, "no room")

    async def scene(stage: Stage) -> None:
        partition = await led(stage)
        partition.follow(2, 5, fsync=False)
        for offset in (0, 1, 20):
            batch = memoryview(bytearray(build_batch([(b"key", b"value", (), 1)])))
            restamp(batch, base_offset=offset, leader_epoch=5)
            partition.append_replicated(batch, read_header(batch), now_ms=1)
        partition.learn_high_watermark(21)
        with monkeypatch.context() as planted, pytest.raises(DiskFault):
            planted.setattr(Segment, "create", no_room)
            done_at_once(partition.cut(20))
        assert partition.log.end_offset == partition.high_watermark == 2
        partition.lead(6, 1, (1, 2), (1, 2), fsync=False)
        assert partition.committed(appended(partition)) is not None

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

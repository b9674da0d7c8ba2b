"""What a broker holds follows the metadata. Topics go, and come again under the same name, while their logs are at
work: nothing old is left in the new. A broker that stops hands over what it leads, and begins nothing any more.

Found by deleting topics under load: a flush that came back after its folder was gone took the whole data folder out of
service.
"""

import asyncio
import errno
from collections.abc import Awaitable
from pathlib import Path

import pytest

from log.batch import build_batch
from log.disk import DiskFault, RealDisk
from log.ids import TopicPartition
from log.manifest import RECOVERY_POINTS
from service.broker import holdings as holdings_module
from service.broker.acceptance import RefusedBatch
from service.broker.holdings import Holdings
from service.broker.opening import PartitionMaker
from service.broker.partition import NOBODY, Appended, Following, Partition
from service.cluster.image import Delta, Image
from service.ports import RealClock
from service.stores.memory import MemoryServer
from service.wire.error_codes import ErrorCode
from service.wire.messages import (
    AlterPartitionReassignmentsRequest,
    CreatableReplicaAssignment,
    CreatableTopic,
    CreateTopicsRequest,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
    DeleteTopicsRequest,
    DeleteTopicState,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestAlterableConfig,
    IncrementalAlterConfigsRequestAlterConfigsResource,
    ReassignablePartition,
    ReassignableTopic,
)
from tests.service.api.admin_stage import Stage, on_stage
from tests.service.broker.cluster_stage import BROKERS, TOPIC, TOPICS, ClusterStage, on_cluster_stage, until
from tests.service.broker.topic_stage import FSYNC, HERE, OS, delete, values, write


@pytest.mark.parametrize("slow", ["sync_dir", "write_atomic"])
def test_a_flush_that_comes_back_after_its_topic_was_deleted_harms_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slow: str
) -> None:
    held = asyncio.Event()
    begun = asyncio.Event()
    original = getattr(RealDisk, slow)

    async def slowly(disk: RealDisk, path: str, *more: object) -> None:
        if path.startswith("orders"):
            begun.set()
            await held.wait()
        await original(disk, path, *more)

    async def scene(stage: Stage) -> None:
        await stage.create("orders", segment_ms="1")
        old = await stage.served("orders")
        monkeypatch.setattr(RealDisk, slow, slowly)
        # Each begins a segment, so that the one before leaves a snapshot to be written.
        writing = [asyncio.ensure_future(write(old, b"x", timestamp_ms=at)) for at in (0, 10, 20)]
        await begun.wait()
        await delete(stage)
        new_id = await stage.create("orders")
        assert stage.broker.partitions.get(HERE) is None, "the name is not free yet"
        held.set()
        new = await stage.served("orders")
        assert new.topic_id == new_id
        await write(new, b"4")
        await asyncio.gather(*writing, return_exceptions=True)
        assert (new.log.start_offset, new.log.end_offset, values(new)) == (0, 1, 1)
        assert old.log.gone
        assert stage.broker.folders[0].failed is None

    on_stage(tmp_path, scene, FSYNC)


def test_whose_records_were_to_be_deleted_when_the_topic_went_is_told_so(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        await stage.create("orders")
        partition = await stage.served("orders")
        await write(partition, b"1", b"2")
        async with partition.log.alone():
            wanted = DeleteRecordsTopic("orders", [DeleteRecordsPartition(0, 1)])
            asked = asyncio.ensure_future(stage.ask(DeleteRecordsRequest([wanted], 5000)))
            removing = asyncio.ensure_future(delete(stage))
            await asyncio.sleep(0.05)
            partition.log.gone = True  # as if the removal had come first
        answer = (await asked).topics[0].partitions[0]
        assert (answer.error_code, answer.low_watermark) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)
        await removing

    on_stage(tmp_path, scene, FSYNC)


def test_a_topic_may_be_deleted_and_made_again_many_times_under_load(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        for _ in range(30):
            await stage.create("orders")
            partition = await stage.served("orders")
            assert values(partition) == 0
            writing = [asyncio.ensure_future(write(partition, b"x" * 100)) for _ in range(20)]
            await asyncio.sleep(0)
            await delete(stage)
            await asyncio.gather(*writing, return_exceptions=True)
        assert stage.broker.folders[0].failed is None

    on_stage(tmp_path, scene, FSYNC)
    assert not (tmp_path / "orders-0").exists()


def test_a_topic_made_again_while_its_disk_has_failed_holds_nothing_old_and_keeps_nobody_from_following(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its predecessor's folder can't be set aside, and must not be read for it either."""

    def refuses(disk: RealDisk, path: str) -> None:
        disk.fault = DiskFault(errno.EIO, "broken", path)
        raise disk.fault

    async def scene(stage: Stage) -> None:
        await stage.create("orders")
        await write(await stage.served("orders"), b"old")
        monkeypatch.setattr(RealDisk, "discard", refuses)
        await delete(stage)
        new_id = await stage.create("orders")
        while True:
            partition = stage.broker.partitions.get(HERE)
            if partition is not None:
                break
            await asyncio.sleep(0.005)
        assert (partition.topic_id, partition.log.end_offset) == (new_id, 0)
        assert partition.offline
        assert stage.broker.folders[0].failed is not None
        await stage.create("another")
        assert stage.broker.metadata.image.topics.get("another") is not None, "it follows the metadata still"

    on_stage(tmp_path, scene, FSYNC)


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EMFILE])
def test_no_folder_is_removed_before_its_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int) -> None:
    """Found by the simulation: killed in between, the broker began the next topic of the name where this one had ended,
    and said that its records were lost. A full disk can't wait: room comes with the removal.
    """
    write_atomic, sync_dir, points = RealDisk.write_atomic, RealDisk.sync_dir, tmp_path / RECOVERY_POINTS
    refusals, removed = iter(range(3)), False

    async def refuses(disk: RealDisk, path: str, data: bytes) -> None:
        if next(refusals, None) is not None:
            raise DiskFault(error, "not now", path)
        await write_atomic(disk, path, data)

    async def looks(disk: RealDisk, path: str) -> None:
        nonlocal removed
        if not (tmp_path / "orders-0").exists():
            removed = True
            assert not points.exists() or "orders 0" not in points.read_text()
        await sync_dir(disk, path)

    async def scene(stage: Stage) -> None:
        await stage.create("orders")
        await write(await stage.served("orders"), b"1", b"2")
        await stage.broker.housekeeper.write_points(stage.broker.folders[0])
        assert "orders 0 2" in points.read_text()
        monkeypatch.setattr(RealDisk, "write_atomic", refuses)
        monkeypatch.setattr(RealDisk, "sync_dir", looks)
        await delete(stage)
        await stage.create("orders")
        await stage.served("orders")  # the name is free
        assert removed

    on_stage(tmp_path, scene, FSYNC)


@pytest.mark.parametrize("refused", ["write_atomic", "discard"])
def test_a_name_is_free_only_when_nothing_of_its_former_owner_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    """Found by the simulation: without descriptors the point stayed, the next topic of the name was measured by it
    after a power cut, and was not served.
    """
    points, original, refusals = tmp_path / RECOVERY_POINTS, getattr(RealDisk, refused), iter(range(3))

    def has_no_descriptor(disk: RealDisk, path: str, *more: object) -> Awaitable[None] | None:
        if next(refusals, None) is not None:
            raise DiskFault(errno.EMFILE, "too many open files", path)
        result: Awaitable[None] | None = original(disk, path, *more)
        return result

    async def scene(stage: Stage) -> None:
        await stage.create("orders")
        await write(await stage.served("orders"), b"1", b"2")
        await stage.broker.housekeeper.write_points(stage.broker.folders[0])
        monkeypatch.setattr(RealDisk, refused, has_no_descriptor)
        await delete(stage)
        new_id = await stage.create("orders")
        new = await stage.served("orders")
        assert next(refusals, None) is None, "it was refused and tried again"
        assert "orders 0" not in points.read_text()
        assert (new.topic_id, values(new)) == (new_id, 0)

    on_stage(tmp_path, scene, FSYNC)


def test_a_broker_that_stops_follows_nobody_any_more_whatever_it_hears(tmp_path: Path) -> None:
    """What it copied after its logs were closed would contradict the manifest of its clean stop."""

    async def scene(stage: ClusterStage) -> None:
        await stage.create(1, 2)
        await stage.write("before")
        await stage.in_sync(1, 2)
        broker, state = stage.broker(2), stage.state()
        life = stage.lives.pop(2)
        for server in life.servers:
            await server.close()
        stopping = asyncio.ensure_future(broker.stop())
        await asyncio.sleep(0)
        follower = broker.partitions.get(TopicPartition(TOPIC, 0))
        assert follower is not None
        broker.holdings.follow(
            Delta(broker.metadata.image, broker.metadata.image, partitions=(TopicPartition(TOPIC, 0),))
        )
        assert state.leader == 1
        assert isinstance(follower.role, Following)
        assert follower.role.leader == NOBODY
        await stopping
        for disk in life.disks:
            disk.close()

    on_cluster_stage(tmp_path, scene, 1, 2, given=OS)


def test_who_stops_tells_its_clients_first_and_is_gone_for_them_before_its_port_is_closed(tmp_path: Path) -> None:
    """Clients try a broker they know of again and again, and wait longer each time: also when it is back."""

    async def scene(stage: ClusterStage) -> None:
        await stage.create(1, 2, 3)
        leaving, other = stage.broker(1), stage.broker(2)
        handing_over = asyncio.create_task(leaving.holdings.hand_over())
        await until(lambda: stage.state().leader == 2)
        assert isinstance(
            stage.partition(1).append_from_client(memoryview(bytearray(61)), acks=1, now_ms=1), RefusedBatch
        )
        assert 1 in other.metadata.image.brokers, "who is told now may connect still"
        await stage.write("a")
        while not handing_over.done():
            assert 1 not in stage.state().isr
            await asyncio.sleep(0.005)
        await handing_over
        await until(lambda: 1 not in other.metadata.image.brokers and other.metadata.image.controller_id in (2, 3))
        await asyncio.sleep(0.3)
        assert 1 not in other.metadata.image.brokers, "and does not join again"

    on_cluster_stage(tmp_path, scene)


def test_a_broker_that_stops_begins_nothing_that_the_metadata_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its folder would be there without a line in the manifest, and its files open."""

    async def scene(stage: ClusterStage) -> None:
        broker = stage.broker(2)
        cancel_all = broker.env.tasks.cancel_all

        async def meanwhile() -> None:
            more = CreatableTopic("late", -1, -1, assignments=[CreatableReplicaAssignment(0, [1, 2])])
            answer = await stage.wire(1).ask(CreateTopicsRequest([more]))
            assert answer.topics[0].error_code == 0
            await until(lambda: "late" in broker.metadata.image.topics)
            await cancel_all()

        monkeypatch.setattr(broker.env.tasks, "cancel_all", meanwhile)
        await stage.stop(2)
        assert broker.partitions.get(TopicPartition("late", 0)) is None

    on_cluster_stage(tmp_path, scene, 1, 2, given=OS)


def test_a_topic_that_can_not_be_followed_takes_no_other_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(stage: ClusterStage) -> None:
        await stage.create(1, 2)
        settle = Holdings._settle

        def settles(holdings: Holdings, partition: Partition) -> None:
            if partition.topic_partition.topic == "poison":
                raise AssertionError("this broker's own mistake")
            settle(holdings, partition)

        monkeypatch.setattr(Holdings, "_settle", settles)
        more = [
            CreatableTopic(name, -1, -1, assignments=[CreatableReplicaAssignment(0, [1, 2])])
            for name in ("poison", "sound")
        ]
        answer = await stage.wire(1).ask(CreateTopicsRequest(more))
        assert [topic.error_code for topic in answer.topics] == [0, 0]
        sound, poison = (stage.broker(1).partitions.get(TopicPartition(name, 0)) for name in ("sound", "poison"))
        assert sound is not None and sound.is_leading
        assert poison is not None and not poison.is_leading
        assert stage.broker(1).metadata.sessions_lost == 0

    on_cluster_stage(tmp_path, scene, 1, 2, given=OS)


def test_what_changes_while_a_broker_opens_its_logs_is_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long recovery, in which a topic is deleted. Its partitions stayed, and another topic of the name was not served
    before the next restart.
    """
    open_all = PartitionMaker.open_all

    async def scene(stage: ClusterStage) -> None:
        await stage.create(1, 2, min_insync_replicas="1")
        await stage.write("old")
        await stage.in_sync(1, 2)
        await stage.stop(2)

        async def meanwhile(maker: PartitionMaker, image: Image, node_id: int) -> None:
            await open_all(maker, image, node_id)
            await stage.wire(1).ask(DeleteTopicsRequest([DeleteTopicState(TOPIC)], timeout_ms=5000))
            await until(lambda: not stage.holds(1))
            await asyncio.sleep(0.2)  # the broker that opens its logs hears of it

        with monkeypatch.context() as planted:
            planted.setattr(PartitionMaker, "open_all", meanwhile)
            await stage.start(2)
        await until(lambda: not stage.holds(2) and not (tmp_path / "2" / f"{TOPIC}-0").exists())
        await stage.create(1, 2, min_insync_replicas="1")
        await stage.write("new")
        await stage.in_sync(1, 2)
        await stage.alike(1, 2)

    on_cluster_stage(tmp_path, scene, 1, 2, given=OS)


def test_settings_that_were_changed_while_a_broker_ran_hold_after_its_restart(tmp_path: Path) -> None:
    """They came into force again only when another setting of a broker was changed."""
    metadata = MemoryServer(RealClock())

    async def first(stage: Stage) -> None:
        await stage.create("orders")
        changes = [
            IncrementalAlterConfigsRequestAlterableConfig("log.cleaner.backoff.ms", 0, "12345"),
            IncrementalAlterConfigsRequestAlterableConfig("log.segment.bytes", 0, "2000000"),
        ]
        resource = IncrementalAlterConfigsRequestAlterConfigsResource(BROKERS, "1", changes)
        answer = await stage.ask(IncrementalAlterConfigsRequest([resource]))
        assert answer.responses[0].error_code == 0

    async def second(stage: Stage) -> None:
        assert stage.broker.config.log_cleaner_backoff_ms == 12345
        assert (await stage.served("orders")).log.config.segment_bytes == 2000000

    on_stage(tmp_path, first, metadata=metadata)
    on_stage(tmp_path, second, metadata=metadata)


def test_a_broker_out_of_session_has_nothing_to_hand_over(tmp_path: Path) -> None:
    """And waits for nobody when it stops."""

    async def scene(stage: Stage) -> None:
        holdings = stage.broker.holdings
        await holdings.hand_over()
        await stage.broker.metadata.close()
        async with asyncio.timeout(1):
            await holdings.hand_over()

    on_stage(tmp_path, scene)


def test_a_broker_that_can_hand_nothing_over_in_time_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene(stage: Stage) -> None:
        async def never(command: object, **how: object) -> None:
            await asyncio.Event().wait()

        monkeypatch.setattr(stage.broker.metadata, "execute", never)
        monkeypatch.setattr(holdings_module, "HAND_OVER_S", 0.01)
        await stage.broker.holdings.hand_over()
        assert "could not be handed over: the metadata store has not answered" in caplog.text

    on_stage(tmp_path, scene)


def test_a_mistake_as_it_hands_over_keeps_no_broker_from_a_stop_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(stage: Stage) -> None:
        async def fails(command: object) -> None:
            raise RuntimeError("this broker's own mistake")

        monkeypatch.setattr(stage.broker.metadata, "execute", fails)
        await stage.broker.holdings.hand_over()

    on_stage(tmp_path, scene)


def test_out_of_session_nothing_is_led_whatever_the_metadata_says(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        await stage.create("orders")
        partition = await stage.served("orders")
        holdings, image, epoch = stage.broker.holdings, stage.broker.metadata.image, partition.leader_epoch
        holdings.step_down()
        holdings.follow(Delta(image, image, partitions=(HERE,)))
        led = [partition.is_leading]
        holdings.begin()
        led.append(partition.is_leading)
        assert led == [False, True]
        assert partition.leader_epoch == epoch

    on_stage(tmp_path, scene)


@pytest.mark.parametrize(("durability", "flushes"), [("auto", True), ("fsync", True), ("os", False)])
def test_where_one_replica_holds_a_write_it_is_flushed_unless_the_operator_says_otherwise(
    tmp_path: Path, durability: str, flushes: bool
) -> None:
    async def scene(stage: Stage) -> None:
        await stage.create("orders")
        partition = await stage.served("orders")
        batch = bytearray(build_batch([(None, b"x", (), 1)]))
        assert isinstance(partition.append_from_client(memoryview(batch), acks=1, now_ms=1), Appended)
        assert (partition.must_flush, partition.high_watermark) == (flushes, 0 if flushes else 1)

    on_stage(tmp_path, scene, {"log.durability": durability})


def test_where_two_replicas_must_hold_a_write_none_of_them_flushes_it(tmp_path: Path) -> None:
    """The setting of the topic counts, from the moment when it changes."""

    async def scene(stage: ClusterStage) -> None:
        await stage.create(1, 2, min_insync_replicas="2")
        await stage.in_sync(1, 2)
        batch = bytearray(build_batch([(None, b"x", (), 1)]))
        assert isinstance(stage.partition(1).append_from_client(memoryview(batch), acks=1, now_ms=1), Appended)
        assert not stage.partition(1).must_flush
        await until(lambda: stage.partition(2).log.end_offset == 1)
        assert not stage.partition(2).must_flush
        await stage.configure(TOPICS, TOPIC, "min.insync.replicas", "1")
        await until(lambda: stage.partition(1).log.flushed_offset == stage.partition(2).log.flushed_offset == 1)

    on_cluster_stage(tmp_path, scene, 1, 2)


def test_a_partition_that_is_held_no_longer_leaves_no_folder(tmp_path: Path) -> None:
    async def scene(stage: ClusterStage) -> None:
        await stage.create(1, 2)
        await stage.write("a")
        await stage.in_sync(1, 2)
        assert (tmp_path / "2" / "orders-0").exists()
        moved = ReassignableTopic(TOPIC, [ReassignablePartition(0, [1])])
        await stage.wire(1).ask(AlterPartitionReassignmentsRequest(topics=[moved]))
        await until(lambda: not stage.holds(2))
        await until(lambda: not (tmp_path / "2" / "orders-0").exists())
        assert stage.partition(1).log.end_offset == 1

    on_cluster_stage(tmp_path, scene, 1, 2, given=OS)

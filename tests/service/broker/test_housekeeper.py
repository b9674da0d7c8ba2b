"""What the housekeeper writes down, while logs are being cut."""

import asyncio
import errno
import logging
import shutil
import struct
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import log.manifest
import service.broker.housekeeper
from log.disk import Disk, DiskFault
from log.ids import TopicId, TopicPartition
from log.manifest import RECOVERY_POINTS, read_high_watermarks, read_recovery_points, write_high_watermarks
from log.partition_log import PartitionLog
from log.removal import expired_segments, remove_oldest
from log.segment import Segment
from service.broker.housekeeper import RETENTION, Housekeeper
from service.broker.partition import Partition
from service.ports import RealClock
from service.stores.memory import MemoryServer
from service.wire.messages import DeleteTopicsRequest, DeleteTopicState
from tests.log.building import cut_log
from tests.monitoring.scraped import scraped
from tests.service.api.admin_stage import Stage, on_stage
from tests.service.broker.cluster_stage import until
from tests.service.broker.topic_stage import led, write
from tests.turns import with_turns


async def ten_flushed(stage: Stage) -> Partition:
    await stage.create("orders")
    partition = await stage.served("orders")
    for _ in range(10):
        await write(partition, b"x")
    await partition.flush()
    return partition


def test_of_two_cuts_of_one_log_that_overlap_each_is_kept_in_mind_until_it_is_done(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        partition = await ten_flushed(stage)
        keeper, folder = stage.broker.housekeeper, partition.folder

        async def point() -> int | None:
            await keeper.write_points(folder)
            return read_recovery_points(folder.disk).get(partition.topic_partition)

        assert await point() == 10
        async with keeper.distrusting(partition, 6):
            assert await point() == 6
            shorter = keeper.distrusting(partition, 3)
            await shorter.__aenter__()
            assert await point() == 3
        assert await point() == 3
        await shorter.__aexit__(None, None, None)
        assert await point() == 10

    on_stage(tmp_path, scene, {"log.durability": "os"})


def test_a_cut_that_ends_while_points_are_gathered_is_kept_in_mind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The list said that what was cut is durable: after a crash, the cut was taken for damage."""
    monkeypatch.setattr(service.broker.housekeeper, "PARTITIONS_A_TURN", 1)

    async def scene(stage: Stage) -> None:
        partition = await ten_flushed(stage)
        await stage.create("others", 20)
        await stage.served("others", 19)
        keeper, folder = stage.broker.housekeeper, partition.folder
        async with keeper.distrusting(partition, 6):
            writing = asyncio.ensure_future(keeper.write_points(folder))
            for _ in range(5):
                await asyncio.sleep(0)
            cut_log(partition.log, 6)
        await writing
        assert read_recovery_points(folder.disk)[partition.topic_partition] == 6
        assert not keeper._distrusted
        await partition.flush()
        await keeper.write_points(folder)
        assert read_recovery_points(folder.disk)[partition.topic_partition] == 6

    on_stage(tmp_path, scene, {"log.durability": "os"})


@pytest.mark.parametrize(
    ("work", "method", "settings"),
    [
        ("flush", "_is_flush_due", {}),
        ("retention", "_has_expired", {"log.retention.check.interval.ms": "1"}),
        ("producers", "_forget_idle_producers", {"producer.id.expiration.check.interval.ms": "1"}),
    ],
)
def test_what_fails_in_one_partition_is_told_counted_tried_again_and_leaves_the_others_alone(
    work: str,
    method: str,
    settings: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(service.broker.housekeeper, "FLUSH_CHECK_MS", 10)
    tried: Counter[str] = Counter()
    original = getattr(Housekeeper, method)

    def failing(keeper: Housekeeper, partition: Partition) -> Any:
        tried[partition.topic_partition.topic] += 1
        if partition.topic_partition.topic == "evil":
            raise ZeroDivisionError
        return original(keeper, partition)

    monkeypatch.setattr(Housekeeper, method, failing)

    async def scene(stage: Stage) -> None:
        for topic in ("early", "evil", "late"):
            await stage.create(topic, 1)
        await until(lambda: min(tried[topic] for topic in ("early", "evil", "late")) >= 3)
        failures = stage.broker.housekeeper.failures
        assert failures == {"flush": 0, "retention": 0, "producers": 0, work: tried["evil"]}
        assert scraped(stage.broker).one("oncelog_partition_failures_total", work=work) == failures[work]
        assert scraped(stage.broker).one("oncelog_partition_failures_total", work="compaction") == 0
        assert stage.broker.env.tasks.failed == 0

    with caplog.at_level(logging.ERROR):
        on_stage(tmp_path, scene, settings)
    assert f"evil-0: {work} failed; it is tried again later" in caplog.text


def test_a_flush_that_fails_unforeseen_is_told_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(service.broker.housekeeper, "FLUSH_CHECK_MS", 10)
    flush = PartitionLog.flush

    async def failing(log: PartitionLog) -> int:
        if log.folder == "evil-0" and stage_is_on:
            raise ZeroDivisionError
        return await flush(log)

    monkeypatch.setattr(PartitionLog, "flush", failing)
    stage_is_on = True

    async def scene(stage: Stage) -> None:
        nonlocal stage_is_on
        for topic in ("evil", "late"):
            await stage.create(topic, 1)
            await write(await stage.served(topic), b"x")
            (await stage.served(topic)).log.roll(1)
        late = await stage.served("late")
        await until(lambda: not late.log.durability.flush_due and stage.broker.housekeeper.failures["flush"] > 2)
        stage_is_on = False
        evil = await stage.served("evil")
        await until(lambda: not evil.log.durability.flush_due)

    on_stage(tmp_path, scene, {"log.durability": "os"})
    assert "evil-0: flush failed; it is tried again later" in caplog.text


def test_a_partition_that_somebody_is_at_work_on_holds_up_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One partition's long flush stopped retention, flushes and checkpoints of the whole broker."""
    monkeypatch.setattr(service.broker.housekeeper, "FLUSH_CHECK_MS", 10)

    async def scene(stage: Stage) -> None:
        for topic in ("first", "other"):
            await stage.create(topic, 1, retention_ms="1")
        first, other = await stage.served("first"), await stage.served("other")
        async with first.log.alone():
            for each in (first, other):
                await write(each, b"x")
                each.log.roll(1)
            await until(lambda: other.log.start_offset == 1 and not other.log.durability.flush_due)
            await until(lambda: read_recovery_points(other.folder.disk).get(other.topic_partition) == 1)
            assert first.log.start_offset == 0
        await until(lambda: first.log.start_offset == 1)

    intervals = {"log.retention.check.interval.ms": "1", "log.flush.offset.checkpoint.interval.ms": "1"}
    on_stage(tmp_path, scene, {"log.durability": "os", **intervals})


def test_a_slow_disk_holds_up_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service.broker.housekeeper, "FLUSH_CHECK_MS", 10)
    disks = [tmp_path / name for name in "ab"]
    for each in disks:
        each.mkdir()
    slow: Disk | None = None
    goes_on, hold, original = asyncio.Event(), Segment.fsync, log.manifest.write_recovery_points

    async def fsync(segment: Segment) -> None:
        if segment._disk is slow:
            await goes_on.wait()
        await hold(segment)

    async def write_points(disk: Disk, points: Mapping[TopicPartition, int]) -> None:
        if disk is slow:
            await goes_on.wait()
        await original(disk, points)

    monkeypatch.setattr(Segment, "fsync", fsync)
    monkeypatch.setattr(service.broker.housekeeper, "write_recovery_points", write_points)

    async def scene(stage: Stage) -> None:
        nonlocal slow
        for topic in ("first", "other"):
            await stage.create(topic, 1, retention_ms="1")
        first, other = await stage.served("first"), await stage.served("other")
        assert first.folder is not other.folder
        slow = first.folder.disk
        for each in (first, other):
            await write(each, b"x")
            each.log.roll(1)
        await until(lambda: other.log.start_offset == 1)
        await until(lambda: read_recovery_points(other.folder.disk).get(other.topic_partition) == 1)
        writing = asyncio.ensure_future(stage.broker.housekeeper.write_points(first.folder))
        await asyncio.sleep(0.02)
        async with asyncio.timeout(5), stage.broker.housekeeper.distrusting(other, 0):
            assert read_recovery_points(other.folder.disk)[other.topic_partition] == 0
        goes_on.set()
        await writing

    intervals = {"log.retention.check.interval.ms": "1", "log.flush.offset.checkpoint.interval.ms": "1"}
    on_stage(disks[0], scene, {"log.durability": "os", **intervals}, more_folders=disks[1:])


def test_the_name_of_a_deleted_topic_is_free_while_a_disk_hangs_that_knows_nothing_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disks = [tmp_path / name for name in "ab"]
    for each in disks:
        each.mkdir()
    hangs: Disk | None = None
    goes_on, original = asyncio.Event(), log.manifest.write_recovery_points

    async def write_points(disk: Disk, points: Mapping[TopicPartition, int]) -> None:
        if disk is hangs:
            await goes_on.wait()
        await original(disk, points)

    monkeypatch.setattr(service.broker.housekeeper, "write_recovery_points", write_points)

    async def scene(stage: Stage) -> None:
        nonlocal hangs
        partitions = []
        for topic in ("first", "other"):
            await stage.create(topic)
            partitions.append(await stage.served(topic))
            await write(partitions[-1], b"x")
            await partitions[-1].flush()
        first, other = partitions
        assert first.folder is not other.folder
        await stage.broker.housekeeper.write_points(other.folder)
        hangs = first.folder.disk
        writing = asyncio.ensure_future(stage.broker.housekeeper.write_points(first.folder))
        await asyncio.sleep(0)
        await stage.ask(DeleteTopicsRequest([DeleteTopicState("other")]))
        try:
            await until(lambda: not stage.broker.holdings._leaving, within_s=5)
            assert not writing.done()
        finally:
            goes_on.set()
        await writing

    on_stage(disks[0], scene, {"log.durability": "os"}, more_folders=disks[1:])


def test_a_partition_that_goes_while_points_are_gathered_leaves_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had been gathered already, or still came: the next topic of the name was judged by the point."""
    monkeypatch.setattr(service.broker.housekeeper, "PARTITIONS_A_TURN", 1)

    async def scene(stage: Stage) -> None:
        partition = await ten_flushed(stage)
        await stage.create("others", 20)
        await stage.served("others", 19)
        keeper, folder = stage.broker.housekeeper, partition.folder
        writing = asyncio.ensure_future(keeper.write_points(folder))
        for _ in range(5):
            await asyncio.sleep(0)
        stage.broker.partitions.remove(partition)
        assert await keeper.forget_point(folder, partition.topic_partition)
        await writing
        assert not read_recovery_points(folder.disk).get(partition.topic_partition)
        stage.broker.partitions.add(partition)

    on_stage(tmp_path, scene, {"log.durability": "os"})


def test_a_point_that_is_being_written_is_lowered_before_a_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    goes_on, original = asyncio.Event(), log.manifest.write_recovery_points

    async def slowly(disk: Disk, points: Mapping[TopicPartition, int]) -> None:
        await goes_on.wait()
        await original(disk, points)

    monkeypatch.setattr(service.broker.housekeeper, "write_recovery_points", slowly)

    async def scene(stage: Stage) -> None:
        partition = await ten_flushed(stage)
        keeper, folder = stage.broker.housekeeper, partition.folder
        writing = asyncio.ensure_future(keeper.write_points(folder))
        await asyncio.sleep(0)
        distrusting = keeper.distrusting(partition, 6)
        begun = asyncio.ensure_future(distrusting.__aenter__())
        await asyncio.sleep(0.02)
        assert not begun.done(), "what is being written says that all is durable"
        goes_on.set()
        await begun
        await writing
        assert read_recovery_points(folder.disk)[partition.topic_partition] == 6
        await distrusting.__aexit__(None, None, None)

    on_stage(tmp_path, scene, {"log.durability": "os"})


def test_retention_removes_what_was_there_when_it_began_though_more_expires_without_a_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[Partition] = []

    async def removing(log: PartitionLog, how_many: Callable[[], int]) -> int:
        freed_bytes = await remove_oldest(log, how_many)
        for _ in range(3):
            await write(written[0], b"x", timestamp_ms=1)
            log.roll(1)
        return freed_bytes

    monkeypatch.setattr("log.removal.EXPIRED_AT_ONCE", 3)
    monkeypatch.setattr(service.broker.housekeeper, "remove_oldest", removing)

    async def scene(stage: Stage) -> None:
        await stage.create("orders", 1, retention_ms="1000")
        partition = await stage.served("orders")
        written.append(partition)
        for _ in range(9):
            await write(partition, b"x", timestamp_ms=1)
            partition.log.roll(1)
        async with asyncio.timeout(10):
            await stage.broker.housekeeper._remove_expired(partition)
        assert 9 <= partition.log.start_offset < partition.log.end_offset

    on_stage(tmp_path, scene)


def test_a_log_with_flush_ms_is_flushed_so_long_after_the_flush_before_though_it_is_written_to_without_a_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked for every four seconds, it was flushed at each look from the first time on."""
    at_ms = 0

    class Clock(RealClock):
        @staticmethod
        def monotonic() -> float:
            return at_ms / 1000

    async def scene(stage: Stage) -> None:
        nonlocal at_ms
        await stage.create("orders", 1, flush_ms="4000")
        partition, keeper = await stage.served("orders"), stage.broker.housekeeper
        monkeypatch.setattr(keeper._env, "clock", Clock())
        flushed = []
        for at_ms in range(0, 20_000, 1_000):
            keeper._unflushed_before, keeper._unflushed = keeper._unflushed, {}
            await write(partition, b"x")
            if keeper._is_flush_due(partition):
                flushed.append(at_ms)
                await partition.flush()
                await write(partition, b"x")
        assert flushed == [4_000, 9_000, 14_000, 19_000]

    on_stage(tmp_path, scene, {"log.durability": "os"})


def test_nothing_is_kept_of_partitions_that_are_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service.broker.housekeeper, "FLUSH_CHECK_MS", 10)

    async def scene(stage: Stage) -> None:
        keeper = stage.broker.housekeeper
        await stage.create("orders", 1, flush_ms="60000")
        await write(await stage.served("orders"), b"x")
        await until(lambda: len(keeper._unflushed) == len(keeper._unflushed_before) == 1)
        await stage.ask(DeleteTopicsRequest([DeleteTopicState("orders")], timeout_ms=30_000))
        await until(lambda: not keeper._unflushed and not keeper._unflushed_before)

    on_stage(tmp_path, scene, {"log.durability": "os"})


def test_partitions_of_many_segments_are_looked_at_in_more_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One turn looked at 256 partitions with up to 1,000 segments each, which took 200 ms."""
    monkeypatch.setattr(service.broker.housekeeper, "SEGMENTS_A_TURN", 256)

    async def scene(stage: Stage) -> None:
        await stage.create("orders", 20)
        partition = await stage.served("orders", 19)
        keeper = stage.broker.housekeeper
        _, few = await with_turns(keeper._look(RETENTION, keeper._has_expired))
        for _ in range(60):
            await write(partition, b"x")
            partition.log.roll(1)
        monkeypatch.setattr(keeper, "_partitions", [partition] * 40)
        _, many = await with_turns(keeper._look(RETENTION, keeper._has_expired))
        assert (few < 4, many >= 5) == (True, True)

    on_stage(tmp_path, scene, {"log.durability": "os"})


def test_retention_goes_on_where_that_of_another_partition_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service.broker.housekeeper, "FLUSH_CHECK_MS", 10)

    def refusing(log: PartitionLog, *limits: int) -> int:
        if log.folder == "evil-0":
            raise struct.error("no room in this number")
        return expired_segments(log, *limits)

    monkeypatch.setattr(service.broker.housekeeper, "expired_segments", refusing)

    async def scene(stage: Stage) -> None:
        for topic in ("evil", "late"):
            await stage.create(topic, 1, retention_ms="1")
            await write(await stage.served(topic), b"x")
        evil, late = await stage.served("evil"), await stage.served("late")
        await until(lambda: late.log.start_offset == 1 and stage.broker.housekeeper.failures["retention"] > 2)
        assert evil.log.start_offset == 0

    on_stage(tmp_path, scene, {"log.retention.check.interval.ms": "1"})


def test_a_disk_that_runs_full_is_not_left_so_until_the_next_regular_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Producers were refused for up to five minutes beside segments that had long expired."""
    monkeypatch.setattr(service.broker.housekeeper, "FLUSH_CHECK_MS", 10)
    monkeypatch.setattr(service.broker.housekeeper, "SHORT_OF_ROOM_CHECK_MS", 100)

    async def scene(stage: Stage) -> None:
        await stage.create("orders", 1, retention_ms="1")
        partition = await stage.served("orders")
        await write(partition, b"x")
        await asyncio.sleep(0.3)
        assert partition.log.start_offset == 0, "there is room: nothing hurries"
        partition.folder.headroom.run_out()
        await until(lambda: partition.log.start_offset == 1)

    on_stage(tmp_path, scene)


def test_what_is_in_folders_that_nobody_uses_is_known(tmp_path: Path) -> None:
    """They were left by a start, and take up room until an operator removes them."""
    strays = [tmp_path / f"{'A' * 22}-0.{number}.stray" for number in (1, 2)]

    async def nothing(stage: Stage) -> None:
        pass

    async def scene(stage: Stage) -> None:
        keeper, (folder,) = stage.broker.housekeeper, stage.broker.folders
        await until(lambda: set(folder.unused.values()) == {3000})
        assert list(folder.unused) == [each.name for each in (*strays, tmp_path / "orders-0")]
        shutil.rmtree(strays[0])
        await keeper.look_at_unused()
        assert list(folder.unused) == [strays[1].name, "orders-0"]
        await stage.create("orders")
        assert list(folder.unused) == [strays[1].name, strays[0].name], "that name was free again"

    metadata = MemoryServer(RealClock())
    on_stage(tmp_path, nothing, metadata=metadata)
    for each in (*strays, tmp_path / "orders-0"):
        each.mkdir()
        for name, size_bytes in (("0.log", 2000), ("0.index", 1000)):
            (each / name).write_bytes(bytes(size_bytes))
    on_stage(tmp_path, scene, metadata=metadata)


def test_nothing_is_cut_while_a_recovery_point_can_not_be_lowered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a crash, the next start would miss what was cut, and would not serve the partition."""

    async def scene(stage: Stage) -> None:
        partition = await with_a_point(stage)
        keeper, folder = stage.broker.housekeeper, partition.folder
        with monkeypatch.context() as patch, pytest.raises(DiskFault):
            patch.setattr(service.broker.housekeeper, "write_recovery_points", failing(errno.EMFILE))
            async with keeper.distrusting(partition, 6):
                pytest.fail("the list still says that 10 records are durable")
        assert folder.failed is None
        async with keeper.distrusting(partition, 6):
            assert read_recovery_points(folder.disk)[partition.topic_partition] == 6

    on_stage(tmp_path, scene, {"log.durability": "os"})


def test_a_full_disk_has_no_list_of_points_while_a_log_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A list with lower points has no room. Until there is room, no partition would be cut, and none move away."""

    async def scene(stage: Stage) -> None:
        partition = await with_a_point(stage)
        keeper, folder = stage.broker.housekeeper, partition.folder
        with monkeypatch.context() as patch:
            patch.setattr(service.broker.housekeeper, "write_recovery_points", failing(errno.ENOSPC))
            async with keeper.distrusting(partition, 6):
                assert not folder.disk.exists(RECOVERY_POINTS)
            await keeper.write_points(folder)
            assert read_recovery_points(folder.disk) == {}
        await keeper.write_points(folder)
        assert read_recovery_points(folder.disk)[partition.topic_partition] == 10

    on_stage(tmp_path, scene, {"log.durability": "os"})


async def with_a_point(stage: Stage) -> Partition:
    """A partition with 10 records, of which the list of recovery points says that they are durable."""
    partition = await ten_flushed(stage)
    await stage.broker.housekeeper.write_points(partition.folder)
    return partition


def failing(errno: int) -> Callable[..., Awaitable[None]]:
    async def fail(*_: object) -> None:
        raise DiskFault(errno, "it can't be written")

    return fail


def test_a_list_of_high_watermarks_that_is_being_written_is_not_taken_for_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A move found nothing to change, and went on. Then the list was there that said of its partition: it is empty."""
    original, disk_goes_on = write_high_watermarks, asyncio.Event()

    async def slowly(disk: Disk, known: Mapping[tuple[TopicId, int], int]) -> None:
        await disk_goes_on.wait()
        await original(disk, known)

    monkeypatch.setattr(service.broker.housekeeper, "write_high_watermarks", slowly)

    async def scene(stage: Stage) -> None:
        partition = await led(stage)
        keeper, folder = stage.broker.housekeeper, partition.folder
        regular = asyncio.create_task(keeper.write_high_watermarks(folder))
        await asyncio.sleep(0)
        async with keeper.distrusting(partition, 0):
            of_a_move = asyncio.create_task(keeper.write_high_watermarks(folder))
            await asyncio.sleep(0)
            disk_goes_on.set()
            await regular
            await of_a_move
            assert read_high_watermarks(folder.disk) == {}

    on_stage(tmp_path, scene)


@pytest.mark.parametrize("what", ["gathered", "written"])
def test_the_points_of_very_many_partitions_are_written_down_in_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Of 15,000 they took 65 ms, once a minute."""
    if what == "gathered":
        monkeypatch.setattr(service.broker.housekeeper, "PARTITIONS_A_TURN", 1)
    else:
        monkeypatch.setattr(log.manifest, "LINES_A_TURN", 1)

    async def scene(stage: Stage) -> None:
        await stage.create("orders", 20)
        for number in range(20):
            partition = await stage.served("orders", number)
            await write(partition, b"x")
            await partition.flush()
        _, turns = await with_turns(stage.broker.housekeeper.write_points(partition.folder))
        assert turns >= 20
        assert len(read_recovery_points(partition.folder.disk)) == 20

    on_stage(tmp_path, scene, {"log.durability": "os"})


def test_a_check_removes_all_that_has_expired_though_it_looks_at_some_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("log.removal.EXPIRED_AT_ONCE", 3)

    async def scene(stage: Stage) -> None:
        await stage.create("orders", 1, segment_bytes="1048576", retention_ms="1000")
        partition = await stage.served("orders")
        for _ in range(10):
            await write(partition, bytes(1_000_000), timestamp_ms=1)
        assert len(partition.log.segments) == 10
        await stage.broker.housekeeper._remove_expired(partition)
        assert (len(partition.log.segments), partition.log.start_offset) == (1, 10)

    on_stage(tmp_path, scene)


def test_no_log_of_a_folder_is_cut_before_it_is_durable_that_its_points_are_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A power cut could bring back the list, with a point above the cut of the second log, which is damage."""
    events: list[str] = []

    class FullFolder:
        name, failed = "full", None

        def __init__(self) -> None:
            self.disk = self
            self.synced = asyncio.Event()

        def fail(self, fault: DiskFault) -> None: ...

        def unlink(self, path: str) -> None:
            events.append("removed")

        async def sync_dir(self, path: str) -> None:
            await self.synced.wait()
            events.append("durable")

    async def no_room(*_: object) -> None:
        raise DiskFault(errno.ENOSPC, "no room", RECOVERY_POINTS)

    async def main() -> None:
        folder: Any = FullFolder()
        nothing: Any = None
        housekeeper = Housekeeper(nothing, nothing, nothing, [folder])
        places = [TopicPartition(name, 0) for name in "ab"]
        housekeeper.written_points[folder] = dict.fromkeys(places, 10)

        async def cut(place: TopicPartition) -> None:
            partition: Any = SimpleNamespace(topic_partition=place)
            async with housekeeper.distrusting(partition, 5):
                events.append("cut")

        cuts = [asyncio.ensure_future(cut(place)) for place in places]
        for _ in range(20):
            await asyncio.sleep(0)
        folder.synced.set()
        await asyncio.gather(*cuts)

    monkeypatch.setattr(service.broker.housekeeper, "write_recovery_points", no_room)
    asyncio.run(main())
    assert events == ["removed", "durable", "cut", "cut"]

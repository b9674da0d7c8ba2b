"""Batches that take longer to write than a turn of the loop: they are laid beside the log first, and anything may
happen to their partition meanwhile.
"""

import asyncio
import errno
import struct
import threading
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from log.batch import (
    CHECKED_FROM,
    CRC_AT,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    build_batch,
    checksum_ok,
    crc32c,
    read_header,
    read_records,
    set_max_timestamp,
)
from log.config import LogConfig
from log.control import ControlType
from log.disk import TEMPORARY, RealDisk, RealFile
from log.ids import TopicPartition
from log.laying import LARGE_BYTES, LaidBatch
from service.broker.acceptance import RefusedBatch, inspect_at_once
from service.broker.log_folder import LogFolder
from service.broker.partition import Appended, Partition
from service.broker.writing import BYTES_AT_ONCE, Write, WriteTerms, Writing
from service.wire.error_codes import ErrorCode
from tests.service.api.admin_stage import Stage, on_stage
from tests.service.broker.cluster_stage import SECOND, ClusterStage, on_cluster_stage, until
from tests.service.broker.topic_stage import OS, delete

PATIENCE_S = 10.0
LARGE = b"large" * 100
TERMS = WriteTerms(
    -1, 5_000, None, adds_partitions=False, knows_abortable=False, knows_zstd=True, may_write_internal=False
)


@pytest.fixture
def small_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("log.laying.LARGE_BYTES", 300)


class SlowDisk:
    """Large batches are written when `go_on` is called, and not before."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._may = threading.Event()
        self._writing = threading.Semaphore(0)
        self.written = 0
        fill = LaidBatch.fill

        def slow(laid: LaidBatch, batch: Any) -> None:
            self._writing.release()
            assert self._may.wait(PATIENCE_S)
            fill(laid, batch)
            self.written += 1

        monkeypatch.setattr(LaidBatch, "fill", slow)

    async def is_writing(self) -> None:
        assert await asyncio.to_thread(self._writing.acquire, timeout=PATIENCE_S)

    def go_on(self) -> None:
        self._may.set()


def batch(value: bytes = LARGE, **given: Any) -> memoryview:
    return memoryview(bytearray(build_batch([(b"k", value, (), 1)], **given)))


def write_to(stage: Stage, partition: Partition, data: memoryview) -> tuple[Write, Awaitable[None]]:
    table = stage.broker.partitions.topic(partition.topic_partition.topic)
    assert table is not None
    write = Write(table, 0, data)
    writing = Writing(stage.broker.writing, TERMS, [write])
    return write, asyncio.ensure_future(writing.append_when_ready(is_ready=writing.begin()))


def outcome(write: Write) -> int | ErrorCode:
    return write.outcome.base_offset if isinstance(write.outcome, Appended) else write.outcome.error


def stored(partition: Partition) -> list[bytes | None]:
    found = list(partition.log.scan(0))
    assert all(checksum_ok(data, header) for header, data in found)
    return [record.value for header, data in found for record in read_records(data, header)]


def left_beside(partition: Partition) -> list[str]:
    return [name for name in partition.log.disk.listdir(partition.log.folder) if name.endswith(TEMPORARY)]


async def orders(stage: Stage, **configs: str) -> Partition:
    await stage.create("orders", 1, **configs)
    return await stage.served("orders")


OWN: dict[str, Any] = {"producer_id": 5, "producer_epoch": 0}


async def refuses_what_is_behind(stage: Stage, partition: Partition) -> None:
    """The second batch of OWN was refused for now: so is the third, and both are taken when they come again."""
    found = list[int | ErrorCode]()
    for sequence in (2, 1, 2):
        write, done = write_to(stage, partition, batch(b"small", **OWN, base_sequence=sequence))
        await done
        found.append(outcome(write))
    assert found == [ErrorCode.NOT_ENOUGH_REPLICAS, 1, 2]


Meanwhile = Callable[[Stage, Partition], Awaitable[None]]


def meanwhile(
    folder: Path, monkeypatch: pytest.MonkeyPatch, happens: Meanwhile, settings: dict[str, str] | None = None
) -> tuple[int | ErrorCode, list[bytes | None]]:
    """What becomes of a large batch if this happens while it is being written, and what the partition holds then."""
    found: list[tuple[int | ErrorCode, list[bytes | None]]] = []

    async def scene(stage: Stage) -> None:
        partition = await orders(stage)
        disk = SlowDisk(monkeypatch)
        write, done = write_to(stage, partition, batch())
        await disk.is_writing()
        try:
            await happens(stage, partition)
        finally:
            disk.go_on()
            await done
        now = stage.broker.partitions.get(partition.topic_partition)
        if now is not None and now.log.disk.exists(now.log.folder):
            assert not left_beside(now)
        found.append((outcome(write), [] if now is None else stored(now)))

    on_stage(folder, scene, {**OS, **(settings or {})})
    return found[0]


# ---------------------------------------------------------------- the loop


def test_others_have_their_turns_while_a_large_batch_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Method: the disk does not take the batch before another task has had a turn."""
    begun, others_had_a_turn, held_up = threading.Event(), threading.Event(), list[bool]()
    append = RealFile.append

    def slow(file: RealFile, buffers: Any) -> int:
        if sum(map(len, buffers)) > LARGE_BYTES:
            begun.set()
            held_up.append(not others_had_a_turn.wait(3.0))
        return append(file, buffers)

    async def other() -> None:
        await until(begun.is_set)
        others_had_a_turn.set()

    async def scene(stage: Stage) -> None:
        partition = await orders(stage, max_message_bytes=str(2 * LARGE_BYTES))
        monkeypatch.setattr(RealFile, "append", slow)
        task = asyncio.ensure_future(other())
        value = bytes(LARGE_BYTES)
        write, done = write_to(stage, partition, batch(value))
        await done
        assert outcome(write) == 0
        assert stored(partition) == [value]
        assert not left_beside(partition)
        await task

    on_stage(tmp_path, scene, OS)
    assert held_up == [False]


def test_the_checksum_of_a_large_batch_is_reckoned_beside_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = threading.get_ident()
    reckoned = list[bool]()

    def noted(data: Any, *so_far: int) -> int:
        if len(data) > LARGE_BYTES:
            reckoned.append(threading.get_ident() != here)
        return crc32c(data, *so_far)

    async def scene(stage: Stage) -> None:
        partition = await orders(stage, max_message_bytes=str(2 * LARGE_BYTES), message_timestamp_type="LogAppendTime")
        data = batch(bytes(LARGE_BYTES))
        for module in ("log.batch", "service.broker.acceptance", "service.broker.large", "service.broker.partition"):
            monkeypatch.setattr(f"{module}.crc32c", noted)
        write, done = write_to(stage, partition, data)
        await done
        assert outcome(write) == 0

    on_stage(tmp_path, scene, OS)
    assert reckoned == [True], "as it came; the time of the append is worked into it"


# ---------------------------------------------------------------- meanwhile


@pytest.mark.usefixtures("small_bound")
def test_others_write_to_the_partition_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def happens(stage: Stage, partition: Partition) -> None:
        write, done = write_to(stage, partition, batch(b"small"))
        await done
        assert outcome(write) == 0

    assert meanwhile(tmp_path, monkeypatch, happens) == (1, [b"small", LARGE])


@pytest.mark.usefixtures("small_bound")
def test_the_time_of_the_append_does_not_go_back_behind_others_that_were_written_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(stage: Stage) -> None:
        partition = await orders(stage, message_timestamp_type="LogAppendTime")
        now_ms = stage.broker.env.clock.wall_ms()
        monkeypatch.setattr(stage.broker.env.clock, "wall_ms", lambda: now_ms, raising=False)
        disk = SlowDisk(monkeypatch)
        large, large_done = write_to(stage, partition, batch())
        await disk.is_writing()
        now_ms += 1_000
        small, small_done = write_to(stage, partition, batch(b"small"))
        await small_done
        now_ms += 1_000
        disk.go_on()
        await large_done
        assert [header.max_timestamp for header, _ in partition.log.scan(0)] == [now_ms - 1_000, now_ms]
        for write, written_ms in ((small, now_ms - 1_000), (large, now_ms)):
            assert isinstance(write.outcome, Appended)
            assert write.outcome.log_append_time_ms == written_ms
        assert stored(partition) == [b"small", LARGE]

    on_stage(tmp_path, scene, OS)


@pytest.mark.usefixtures("small_bound")
def test_two_large_batches_enter_one_after_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(stage: Stage) -> None:
        partition = await orders(stage)
        disk = SlowDisk(monkeypatch)
        first, first_done = write_to(stage, partition, batch(LARGE + b"1"))
        second, second_done = write_to(stage, partition, batch(LARGE + b"2"))
        disk.go_on()
        await asyncio.gather(first_done, second_done)
        assert {outcome(first), outcome(second)} == {0, 1}
        expected = sorted([(outcome(first), LARGE + b"1"), (outcome(second), LARGE + b"2")])
        assert stored(partition) == [value for _, value in expected]

    on_stage(tmp_path, scene, OS)


@pytest.mark.usefixtures("small_bound")
def test_the_same_batch_comes_again_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client whose connection broke sends it again on another one."""
    own: dict[str, Any] = {"producer_id": 5, "producer_epoch": 0, "base_sequence": 0}

    async def scene(stage: Stage) -> None:
        partition = await orders(stage)
        disk = SlowDisk(monkeypatch)
        tries = [write_to(stage, partition, batch(**own)) for _ in range(3)]
        await disk.is_writing()
        disk.go_on()
        for _, done in tries:
            await done
        assert [outcome(write) for write, _ in tries] == [0, 0, 0]
        assert stored(partition) == [LARGE]
        assert not left_beside(partition)
        again, done = write_to(stage, partition, batch(**own))
        await done
        assert outcome(again) == 0
        assert disk.written == 1, "what is known to be a repeat is not written again"

    on_stage(tmp_path, scene, OS)


@pytest.mark.usefixtures("small_bound")
def test_leadership_is_lost_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def happens(stage: Stage, partition: Partition) -> None:
        partition.resign()

    assert meanwhile(tmp_path, monkeypatch, happens) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, [])


@pytest.mark.usefixtures("small_bound")
def test_another_leadership_begins_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def happens(stage: Stage, partition: Partition) -> None:
        partition.resign()
        partition.lead(partition.leader_epoch + 7, 1, (1,), (1,), fsync=False)
        written.append(partition)

    written: list[Partition] = []
    epochs: list[int] = []
    original = Partition.append_from_client

    def noted(partition: Partition, *of: Any, **how: Any) -> Any:
        appended = original(partition, *of, **how)
        if isinstance(appended, Appended):
            epochs.extend(header.leader_epoch - partition.leader_epoch for header, _ in partition.log.scan(0))
        return appended

    monkeypatch.setattr(Partition, "append_from_client", noted)
    assert meanwhile(tmp_path, monkeypatch, happens) == (0, [LARGE])
    assert epochs == [0], "it is written in the epoch of the append"


@pytest.mark.usefixtures("small_bound")
def test_the_topic_is_deleted_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def happens(stage: Stage, partition: Partition) -> None:
        await delete(stage)
        await until(lambda: partition.log.gone)

    assert meanwhile(tmp_path, monkeypatch, happens) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, [])


@pytest.mark.usefixtures("small_bound")
def test_the_topic_is_deleted_and_made_again_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def happens(stage: Stage, partition: Partition) -> None:
        await delete(stage)
        await until(lambda: partition.log.gone)
        again = await orders(stage)
        write, done = write_to(stage, again, batch(b"of the new topic"))
        await done
        assert outcome(write) == 0

    refused, held = meanwhile(tmp_path, monkeypatch, happens)
    assert refused == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert held == [b"of the new topic"]


@pytest.mark.usefixtures("small_bound")
def test_a_batch_that_waits_for_its_file_makes_no_folder_of_a_deleted_topic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(stage: Stage) -> None:
        partition = await orders(stage)
        await partition.folder.laying.acquire()
        write, done = write_to(stage, partition, batch())
        await asyncio.sleep(0.05)
        await delete(stage)
        await until(lambda: partition.log.gone)
        partition.folder.laying.release()
        await done
        assert outcome(write) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert not partition.folder.disk.exists("orders-0")

    on_stage(tmp_path, scene, OS)


@pytest.mark.usefixtures("small_bound")
def test_the_settings_change_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is laid once more, as the new settings want it."""

    async def happens(stage: Stage, partition: Partition) -> None:
        changed = replace(partition.log.config, message_timestamp_type="LogAppendTime", compression_type="zstd")
        partition.set_config(changed, fsync=False)
        kept.append(partition)

    kept: list[Partition] = []
    assert meanwhile(tmp_path, monkeypatch, happens) == (0, [LARGE])


@pytest.mark.usefixtures("small_bound")
@pytest.mark.parametrize("timestamp_type", ["CreateTime", "LogAppendTime"])
@pytest.mark.parametrize("compression", ["producer", "zstd"])
@pytest.mark.parametrize("base_ms", [1, -1])
def test_a_large_batch_is_stored_as_a_small_one_would_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, timestamp_type: str, compression: str, base_ms: int
) -> None:
    def made() -> memoryview:
        data = bytearray(build_batch([(b"k", LARGE, (), base_ms), (None, b"x", (), 5)]))
        set_max_timestamp(data, -1)  # as some clients leave it
        struct.pack_into(">h", data, CHECKED_FROM, 0x48)  # bits that only brokers may set
        struct.pack_into(">I", data, CRC_AT, crc32c(bytes(data[CHECKED_FROM:])))
        return memoryview(data)

    async def scene(stage: Stage) -> None:
        now_ms = stage.broker.env.clock.wall_ms()
        monkeypatch.setattr(stage.broker.env.clock, "wall_ms", lambda: now_ms, raising=False)
        configs = {"message_timestamp_type": timestamp_type, "compression_type": compression}
        partition = await orders(stage, **configs)
        for bound in (300, 1 << 20):
            monkeypatch.setattr("log.laying.LARGE_BYTES", bound)
            write, done = write_to(stage, partition, made())
            await done
            assert isinstance(write.outcome, Appended)
            assert write.outcome.log_append_time_ms == (now_ms if timestamp_type == "LogAppendTime" else -1)
        large, small = [(header, bytes(data)) for header, data in partition.log.scan(0)]
        assert large[0][2:] == small[0][2:]
        assert large[1][HEADER_BYTES:] == small[1][HEADER_BYTES:]
        assert all(checksum_ok(data, header) for header, data in (large, small))
        assert bool(large[0].attributes & LOG_APPEND_TIME) is (timestamp_type == "LogAppendTime")
        assert len(partition.log.segments) == 1, "the small one follows in the same segment"

    on_stage(tmp_path, scene, OS)


@pytest.mark.usefixtures("small_bound")
def test_the_transaction_ends_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its last batch comes too late: it must not begin another transaction."""
    own: dict[str, Any] = {"producer_id": 5, "producer_epoch": 0, "transactional": True}

    async def scene(stage: Stage) -> None:
        partition = await orders(stage)
        partition.append_from_client(batch(b"a", **own, base_sequence=0), acks=1, now_ms=1, needs_guard=False)
        disk = SlowDisk(monkeypatch)
        terms = WriteTerms(
            -1, 5_000, "t", adds_partitions=True, knows_abortable=True, knows_zstd=True, may_write_internal=False
        )
        table = stage.broker.partitions.topic("orders")
        assert table is not None
        write = Write(table, 0, batch(**own, base_sequence=1))
        writing = Writing(stage.broker.writing, terms, [write])
        assert writing.begin(), "the transaction is open"
        done = asyncio.ensure_future(writing.append_when_ready(is_ready=True))
        await disk.is_writing()
        marker: dict[str, int] = {"producer_id": 5, "producer_epoch": 0, "coordinator_epoch": 0}
        partition.append_marker(ControlType.COMMIT, **marker, transaction_version=1, now_ms=1)
        disk.go_on()
        await done
        assert isinstance(write.outcome, RefusedBatch)
        assert write.outcome.error is ErrorCode.NOT_ENOUGH_REPLICAS
        assert partition.log.end_offset == 2

    on_stage(tmp_path, scene, OS)


@pytest.mark.usefixtures("small_bound")
def test_the_disk_is_full_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told to come again, nothing is left of it, and there is service again when there is room."""

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "no room")

    async def scene(stage: Stage) -> None:
        partition = await orders(stage)
        with monkeypatch.context() as patch:
            patch.setattr("os.posix_fallocate", full)
            write, done = write_to(stage, partition, batch())
            await done
            assert outcome(write) == ErrorCode.NOT_ENOUGH_REPLICAS
        assert partition.folder.failed is None
        assert not left_beside(partition)
        await partition.folder.headroom.look()
        write, done = write_to(stage, partition, batch())
        await done
        assert outcome(write) == 0

    on_stage(tmp_path, scene, OS)


@pytest.mark.usefixtures("small_bound")
def test_what_was_sent_behind_a_batch_that_found_no_room_is_not_out_of_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client sends both again, in their order."""

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "no room")

    async def scene(stage: Stage) -> None:
        partition = await orders(stage)
        partition.append_from_client(batch(b"small", **OWN, base_sequence=0), acks=1, now_ms=1)
        with monkeypatch.context() as patch:
            patch.setattr("os.posix_fallocate", full)
            write, done = write_to(stage, partition, batch(**OWN, base_sequence=1))
            await done
            assert outcome(write) == ErrorCode.NOT_ENOUGH_REPLICAS
        await partition.folder.headroom.look()
        await refuses_what_is_behind(stage, partition)

    on_stage(tmp_path, scene, OS)


@pytest.mark.usefixtures("small_bound")
def test_what_was_sent_behind_a_batch_that_was_laid_too_often_is_not_out_of_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill = LaidBatch.fill

    async def scene(stage: Stage) -> None:
        partition = await orders(stage)
        partition.append_from_client(batch(b"small", **OWN, base_sequence=0), acks=1, now_ms=1)
        loop = asyncio.get_running_loop()

        async def changed() -> None:
            partition.set_config(replace(partition.log.config), fsync=False)

        def filled(laid: LaidBatch, data: Any) -> None:
            fill(laid, data)
            asyncio.run_coroutine_threadsafe(changed(), loop).result(PATIENCE_S)

        with monkeypatch.context() as patch:
            patch.setattr(LaidBatch, "fill", filled)
            write, done = write_to(stage, partition, batch(**OWN, base_sequence=1))
            await done
            assert outcome(write) == ErrorCode.NOT_ENOUGH_REPLICAS
        await refuses_what_is_behind(stage, partition)

    on_stage(tmp_path, scene, OS)


@pytest.mark.usefixtures("small_bound")
def test_the_disk_fails_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(stage: Stage) -> None:
        partition = await orders(stage)

        def broken(laid: LaidBatch, data: Any) -> None:
            disk = partition.log.disk
            assert isinstance(disk, RealDisk)
            raise disk.fail(OSError(errno.EIO, "broken"), laid.path)

        monkeypatch.setattr(LaidBatch, "fill", broken)
        write, done = write_to(stage, partition, batch())
        await done
        assert outcome(write) == ErrorCode.KAFKA_STORAGE_ERROR
        assert partition.folder.failed is not None

    on_stage(tmp_path, scene, OS)


@pytest.mark.usefixtures("small_bound")
def test_a_full_disk_is_not_blamed_on_the_one_that_the_log_has_left(tmp_path: Path) -> None:
    """The log moves while the batch waits for its file. There is no room where it has moved to."""

    async def scene(stage: Stage) -> None:
        partition = await orders(stage)
        log, left, disk = partition.log, partition.folder, RealDisk(str(tmp_path / "other"))

        def full(path: str) -> None:
            raise disk.fail(OSError(errno.ENOSPC, "no room"), path)

        disk.mkdir = full  # type: ignore[method-assign]
        moved_to = LogFolder("other", disk, lambda _: None, reserve_bytes=0)
        async with left.laying:
            write, done = write_to(stage, partition, batch())
            await asyncio.sleep(0.05)
            log.disk, partition.folder = disk, moved_to
        await done
        assert outcome(write) == ErrorCode.NOT_ENOUGH_REPLICAS
        assert (left.headroom.is_short, moved_to.headroom.is_short) == (False, True)
        log.disk, partition.folder = left.disk, left
        disk.close()

    on_stage(tmp_path, scene, OS)


@pytest.mark.usefixtures("small_bound")
def test_the_disk_fails_that_the_log_has_left_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch is laid again, where the log is now."""
    fill = LaidBatch.fill

    async def scene(stage: Stage) -> None:
        partition = await orders(stage)
        left, disk = partition.folder, RealDisk(str(tmp_path / "other"))
        loop = asyncio.get_running_loop()

        async def moves() -> None:
            partition.log.disk = disk
            partition.folder = LogFolder("other", disk, lambda _: None, reserve_bytes=0)

        def broken(laid: LaidBatch, data: Any) -> None:
            if partition.folder is not left:
                fill(laid, data)
                return
            asyncio.run_coroutine_threadsafe(moves(), loop).result(PATIENCE_S)
            assert isinstance(left.disk, RealDisk)
            raise left.disk.fail(OSError(errno.EIO, "broken"), laid.path)

        monkeypatch.setattr(LaidBatch, "fill", broken)
        write, done = write_to(stage, partition, batch())
        await done
        assert outcome(write) == 0
        assert not partition.offline
        assert left.failed is not None
        assert stored(partition) == [LARGE]
        await partition.log.close()
        partition.folder = left

    on_stage(tmp_path, scene, OS)


@pytest.mark.usefixtures("small_bound")
def test_the_broker_stops_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits for what is being written, which then does not enter the log. What waits for its file gets none."""

    async def scene(stage: Stage) -> None:
        partition = await orders(stage)
        disk = SlowDisk(monkeypatch)
        tries = [write_to(stage, partition, batch()) for _ in range(2)]
        await disk.is_writing()
        stopping = asyncio.ensure_future(stage.broker.stop())
        await asyncio.wait([stopping], timeout=0.3)
        stopped_too_soon = stopping.done()
        disk.go_on()
        await stopping
        assert not stopped_too_soon
        assert not left_beside(partition)
        for write, done in tries:
            await done
            assert outcome(write) == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert disk.written == 1

    on_stage(tmp_path, scene, OS)


@pytest.mark.usefixtures("small_bound")
def test_the_client_gives_up_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The task is cancelled, as when the broker stops: what is being written is not taken away under the thread."""

    async def scene(stage: Stage) -> None:
        partition = await orders(stage)
        disk = SlowDisk(monkeypatch)
        _, done = write_to(stage, partition, batch())
        await disk.is_writing()
        assert isinstance(done, asyncio.Future)
        done.cancel()
        await asyncio.sleep(0)
        assert not done.done()
        assert left_beside(partition)
        disk.go_on()
        await asyncio.wait([done])
        assert done.cancelled()
        assert not left_beside(partition)
        assert partition.log.end_offset == 0

    on_stage(tmp_path, scene, OS)


# ---------------------------------------------------------------- followers


@pytest.mark.usefixtures("small_bound")
def test_followers_copy_large_batches_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(stage: ClusterStage) -> None:
        await stage.create(1, 2)
        await stage.in_sync(1, 2)
        await stage.write("small")
        await stage.write("large" * 100)
        await stage.write("small again")
        await stage.write("larger" * 100)
        await stage.alike(1, 2)
        follower = stage.partition(2)
        assert follower.log.batches_laid == 2
        assert len(follower.log.segments) == 3
        assert not left_beside(follower)

    on_cluster_stage(tmp_path, scene)


@pytest.mark.usefixtures("small_bound")
def test_a_follower_does_not_wait_behind_the_large_batches_of_clients(tmp_path: Path) -> None:
    async def scene(stage: ClusterStage) -> None:
        await stage.create(1, 2)
        await stage.in_sync(1, 2)
        async with stage.partition(2).folder.laying:
            await stage.write("large" * 100)
            await stage.alike(1, 2)

    on_cluster_stage(tmp_path, scene)


@pytest.mark.usefixtures("small_bound")
def test_a_follower_that_is_to_lead_meanwhile_does_not_take_what_it_was_copying(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(stage: ClusterStage) -> None:
        await stage.create(1, 2)
        await stage.in_sync(1, 2)
        await stage.write("small")
        await stage.alike(1, 2)
        disk = SlowDisk(monkeypatch)
        await stage.write("large" * 100, acks=1)
        await disk.is_writing()
        follower = stage.partition(2)
        end_offset = follower.log.end_offset
        follower.resign()
        disk.go_on()
        await until(lambda: not left_beside(follower))
        assert follower.log.end_offset == end_offset

    on_cluster_stage(tmp_path, scene)


# ---------------------------------------------------------------- records that are looked at


def test_a_batch_that_is_packed_anew_is_as_large_as_it_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(stage: Stage) -> None:
        here, reckoned = threading.get_ident(), list[bool]()

        def noted(data: Any, *so_far: int) -> int:
            if len(data) > LARGE_BYTES:
                reckoned.append(threading.get_ident() != here)
            return crc32c(data, *so_far)

        partition = await orders(stage, compression_type="zstd", max_message_bytes=str(4 * LARGE_BYTES))
        monkeypatch.setattr("service.broker.large.crc32c", noted)
        monkeypatch.setattr("service.broker.acceptance.crc32c", noted)
        value = bytes(2 * LARGE_BYTES)
        for _ in range(2):
            write, done = write_to(stage, partition, batch(value))
            await done
            assert isinstance(write.outcome, Appended)
        assert (partition.log.batches_laid, len(partition.log.segments)) == (0, 1), "a few bytes need no file"
        assert reckoned == [True, True], "the checksum of what came, beside the loop"
        partition.set_config(replace(partition.log.config, compression_type="uncompressed"), fsync=False)
        for laid in (1, 2):
            write, done = write_to(stage, partition, batch(value, codec=4))
            await done
            assert isinstance(write.outcome, Appended)
            assert partition.log.batches_laid == laid, "what came as a few bytes takes long to write"
        assert stored(partition) == [value] * 4

    on_stage(tmp_path, scene, OS)


def test_small_batches_that_become_long_are_not_appended_in_one_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They come in one request, in their order with one that becomes large."""
    values = [bytes([number]) * (BYTES_AT_ONCE * 2 // 3) for number in range(3)]
    values[1:1] = [bytes(LARGE_BYTES)]
    turn, appended = 0, list[int]()

    async def turns() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    append = Partition.append_from_client

    def noted(partition: Partition, *of: Any, **how: Any) -> Any:
        outcome = append(partition, *of, **how)
        if isinstance(outcome, Appended):
            appended.append(turn)
        return outcome

    async def scene(stage: Stage) -> None:
        await orders(stage, compression_type="uncompressed", max_message_bytes=str(2 * LARGE_BYTES))
        monkeypatch.setattr(Partition, "append_from_client", noted)
        table = stage.broker.partitions.topic("orders")
        assert table is not None
        writes = [Write(table, 0, batch(value, codec=4)) for value in values]
        writing = Writing(stage.broker.writing, TERMS, writes)
        counting = asyncio.ensure_future(turns())
        await writing.append_when_ready(is_ready=writing.begin())
        counting.cancel()
        assert [outcome(write) for write in writes] == [0, 1, 2, 3]
        partition = stage.broker.partitions.get(TopicPartition("orders", 0))
        assert partition is not None
        assert stored(partition) == values
        assert partition.log.batches_laid == 1

    on_stage(tmp_path, scene, OS)
    assert len(set(appended)) == 4


@pytest.mark.parametrize("codec", range(5))
@pytest.mark.parametrize("wanted", ["producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"])
def test_the_records_of_a_large_batch_are_looked_at_where_they_are(
    codec: int, wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are judged, and packed anew, as those of a small one are, from a view instead of a copy."""
    records = [(b"k", bytes([number]) * 50, (), number) for number in range(20)]
    config = LogConfig(cleanup_policy=("compact",), compression_type=wanted)
    made = list[bytes | None]()
    for bound in (1, 1 << 20):
        monkeypatch.setattr("log.laying.LARGE_BYTES", bound)
        data = memoryview(bytearray(build_batch(records, codec=codec)))
        inspected = inspect_at_once(data, read_header(data), config, 30)
        assert inspected.refused is None
        made.append(None if inspected.records is None else bytes(inspected.records))
    large, small = made
    assert large == small
    lying = memoryview(bytearray(build_batch([(None, b"no key", (), 1)], codec=codec)))
    monkeypatch.setattr("log.laying.LARGE_BYTES", 1)
    assert inspect_at_once(lying, read_header(lying), config, 30).refused is not None


@pytest.mark.usefixtures("small_bound")
def test_a_slow_folder_of_a_follower_holds_up_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that it copies from the leader waited, so it left the in-sync set of a partition in the other folder."""
    (tmp_path / f"2{SECOND}").mkdir()

    async def scene(stage: ClusterStage) -> None:
        names = ("orders", "others")
        for name in names:
            await stage.create(1, 2, name=name, min_insync_replicas="2")
        await stage.in_sync(1, 2)
        led, followed = (
            [stage.broker(number).partitions.get(TopicPartition(name, 0)) for name in names] for number in (1, 2)
        )
        assert led[0] and led[1] and followed[0] and followed[1]
        assert followed[0].folder is not followed[1].folder

        def put(partition: Partition, data: memoryview, acks: int) -> int:
            appended = partition.append_from_client(data, acks=acks, now_ms=1, needs_guard=False)
            assert isinstance(appended, Appended)
            return appended.end_offset

        disk = SlowDisk(monkeypatch)
        try:
            monkeypatch.setattr("log.laying.LARGE_BYTES", 1 << 20)  # the leader takes it as it is
            large = put(led[0], batch(), 1)
            monkeypatch.setattr("log.laying.LARGE_BYTES", 300)
            await disk.is_writing()
            for _ in range(3):
                committed = led[1].committed(put(led[1], batch(b"small"), -1))
                assert committed is not None
                await asyncio.wait_for(committed, PATIENCE_S)
        finally:
            disk.go_on()
        slow = followed[0]
        await until(lambda: slow.log.end_offset == large)

    on_cluster_stage(tmp_path, scene, 1, 2)

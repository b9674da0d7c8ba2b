"""The broker's compactor: what goes wrong in one partition stays there."""

import asyncio
import errno
import itertools
import logging
import struct
import time
from pathlib import Path

import pytest

import log.compaction
from log.batch import build_batch
from log.compaction import compact, find_work
from log.disk import DiskFault, Space
from log.partition_log import PartitionLog
from log.swap import CLEANED
from service.broker import compactor
from service.broker.partition import Partition
from service.ports import HelperNotStarted, LoopTasks, report_failure
from tests.service.api.admin_stage import Stage, on_stage
from tests.turns import with_turns

TABLE = {"cleanup_policy": "compact", "segment_bytes": "1048576", "min_cleanable_dirty_ratio": "0.0"}


def fill(stage: Stage, partition: Partition, batches: int = 40) -> None:
    now_ms = stage.broker.env.clock.wall_ms()
    for number in range(batches):
        batch = bytearray(build_batch([(b"%d" % (number % 3), bytes(60_000), (), now_ms)]))
        partition.append_from_client(memoryview(batch), acks=1, now_ms=now_ms)


async def until_smaller(partition: Partition, size_bytes: int) -> None:
    async with asyncio.timeout(30):
        while partition.log.size_bytes >= size_bytes:  # noqa: ASYNC110 - nobody tells of it
            await asyncio.sleep(0.02)


def test_a_partition_that_cannot_be_compacted_keeps_no_other_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tried: list[str] = []

    def refusing(log: PartitionLog, *args: object, **how: object) -> object:
        tried.append(log.folder)
        if log.folder == "evil-0":
            raise struct.error("no room in this number")
        return find_work(log, *args, **how)  # type: ignore[arg-type]

    monkeypatch.setattr(compactor, "find_work", refusing)

    async def scene(stage: Stage) -> None:
        for topic in ("evil", "innocent"):
            await stage.create(topic, 1, **TABLE)
        evil, innocent = await stage.served("evil"), await stage.served("innocent")
        fill(stage, evil)
        for _ in range(2):
            fill(stage, innocent)
            await until_smaller(innocent, 2_000_000)
        assert tried.count("evil-0") == 1, "it is tried again later"
        assert stage.broker.compactor.failures == 1
        assert stage.broker.env.tasks.failed == 0

    with caplog.at_level(logging.ERROR):
        on_stage(tmp_path, scene, {"log.cleaner.backoff.ms": "20"})
    assert "evil-0 can't be compacted; the next try is in 60 s" in caplog.text


def passes_fail(monkeypatch: pytest.MonkeyPatch, error: Exception, *, times: int) -> list[float]:
    """The first passes of the cleaner raise this. Returns when each pass began, as they come."""
    tries: list[float] = []

    def failing(log: PartitionLog, *args: object, **how: object) -> object:
        tries.append(asyncio.get_running_loop().time())
        if len(tries) <= times:
            raise error
        return find_work(log, *args, **how)  # type: ignore[arg-type]

    monkeypatch.setattr(compactor, "find_work", failing)
    return tries


def test_a_partition_that_failed_rests_twice_as_long_each_time_and_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compactor, "REST_S_MIN", 0.05)
    monkeypatch.setattr(compactor, "REST_S_MAX", 0.2)
    tries = passes_fail(monkeypatch, ZeroDivisionError(), times=4)

    async def scene(stage: Stage) -> None:
        await stage.create("table", 1, **TABLE)
        table = await stage.served("table")
        fill(stage, table)
        await until_smaller(table, 2_000_000)
        assert stage.broker.compactor.failures == 4
        pauses = [later - earlier for earlier, later in itertools.pairwise(tries)]
        # 0.05, 0.1 and 0.2 s, of which uvloop may leave out a part of a millisecond
        assert all(pause >= least for pause, least in zip(pauses, (0.045, 0.09, 0.18, 0.18), strict=False))

    on_stage(tmp_path, scene, {"log.cleaner.backoff.ms": "10"})


def test_a_pass_takes_no_room_that_producers_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A table that fits no second time beside itself would fill the disk at each try, and end service to everybody."""
    monkeypatch.setattr(compactor, "REST_S_MIN", 0.05)

    async def scene(stage: Stage) -> None:
        await stage.create("table", 1, **TABLE)
        table = await stage.served("table")
        headroom = table.folder.headroom
        kept_bytes = 1 << 60
        monkeypatch.setattr(type(headroom), "kept_for_producers", property(lambda self: kept_bytes))
        fill(stage, table)
        async with asyncio.timeout(30):
            while not stage.broker.compactor.failures:  # noqa: ASYNC110 - nobody tells of it
                await asyncio.sleep(0.02)
        assert not headroom.is_short
        assert not [name for name in table.folder.disk.listdir("table-0") if name.endswith(CLEANED)]
        kept_bytes = 0
        await until_smaller(table, 2_000_000)

    with caplog.at_level(logging.ERROR):
        on_stage(tmp_path, scene, {"log.cleaner.backoff.ms": "10"})
    assert "table-0 can't be compacted: " in caplog.text
    assert "Traceback" not in caplog.text


def hang(*arguments: object) -> None:
    time.sleep(600)


def test_a_pass_that_hangs_is_ended_counted_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(compactor, "REST_S_MIN", 0.05)

    async def scene(stage: Stage) -> None:
        await stage.create("table", 1, **TABLE)
        table = await stage.served("table")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(compactor, "PATIENCE_S", -3.0)
            patch.setattr(log.compaction, "CLEAN", f"{__name__}:hang")
            fill(stage, table, 60)
            async with asyncio.timeout(60):
                while not stage.broker.compactor.failures:  # noqa: ASYNC110 - nobody tells of it
                    await asyncio.sleep(0.02)
        await until_smaller(table, 2_000_000)

    with caplog.at_level(logging.ERROR):
        on_stage(tmp_path, scene, {"log.cleaner.backoff.ms": "10"})
    assert "table-0 can't be compacted: the process that reads and writes has not ended within" in caplog.text
    assert "Traceback" not in caplog.text


def test_partitions_of_many_segments_are_looked_at_in_more_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One turn looked at 64 partitions, however many segments they had."""
    monkeypatch.setattr(compactor, "SEGMENTS_A_TURN", 256)

    async def scene(stage: Stage) -> None:
        await stage.create("orders", 1, cleanup_policy="compact", min_compaction_lag_ms="3600000")
        partition = await stage.served("orders")
        monkeypatch.setattr(stage.broker.compactor, "_partitions", [partition] * 40)
        _, few = await with_turns(stage.broker.compactor._round())
        for _ in range(60):
            fill(stage, partition, 1)
            partition.log.roll(stage.broker.env.clock.wall_ms())
        _, many = await with_turns(stage.broker.compactor._round())
        assert many >= few + 8

    on_stage(tmp_path, scene, {"log.cleaner.backoff.ms": "1000000"})


def test_a_task_that_dies_is_told_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    async def fails() -> None:
        raise ZeroDivisionError

    async def main() -> LoopTasks:
        tasks = LoopTasks(report_failure)
        await asyncio.wait([tasks.spawn("the undertaker", fails())])
        return tasks

    with caplog.at_level(logging.CRITICAL):
        assert asyncio.run(main()).failed == 1
    assert "task the undertaker ended with an error" in caplog.text


def test_a_process_that_can_not_be_started_is_no_partitions_fault_and_is_tried_again_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each partition had a longer rest for it, up to an hour, though descriptors were back.

    Which partition is tried in a round depends on whose segments are flushed first. What holds in any order: a round
    ends with the first try that fails, so the next partition that is looked at is the first one of all.
    """
    looked_at: list[str] = []
    next_look: list[int] = []

    def looking(log: PartitionLog, *args: object, **how: object) -> object:
        looked_at.append(log.folder)
        return find_work(log, *args, **how)  # type: ignore[arg-type]

    async def without_process(log: PartitionLog, *args: object, **how: object) -> object:
        if len(next_look) < 20:
            next_look.append(len(looked_at))
            raise HelperNotStarted("no process for it can be started: unknown error -1")
        return await compact(log, *args, **how)  # type: ignore[arg-type]

    monkeypatch.setattr(compactor, "find_work", looking)
    monkeypatch.setattr(compactor, "compact", without_process)

    async def scene(stage: Stage) -> None:
        for topic in ("first", "second"):
            await stage.create(topic, 1, **TABLE)
        first, second = await stage.served("first"), await stage.served("second")
        fill(stage, first)
        fill(stage, second)
        await until_smaller(first, 2_000_000)
        await until_smaller(second, 2_000_000)
        assert [looked_at[place] for place in next_look] == [looked_at[0]] * 20, "one try tells that it is no use"

    with caplog.at_level(logging.ERROR):
        on_stage(tmp_path, scene, {"log.cleaner.backoff.ms": "10"})
    assert caplog.text.count("nothing can be compacted: no process for it can be started") == 1
    assert "Traceback" not in caplog.text


def test_a_pass_that_lacked_room_is_tried_again_as_soon_as_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(stage: Stage) -> None:
        await stage.create("table", 1, **TABLE)
        table = await stage.served("table")
        kept_bytes = 1 << 60
        monkeypatch.setattr(type(table.folder.headroom), "kept_for_producers", property(lambda self: kept_bytes))
        fill(stage, table)
        async with asyncio.timeout(30):
            while not stage.broker.compactor.failures:  # noqa: ASYNC110 - nobody tells of it
                await asyncio.sleep(0.02)
        await asyncio.sleep(0.2)
        assert stage.broker.compactor.failures == 1, "it rests"
        kept_bytes = 0
        await until_smaller(table, 2_000_000)

    on_stage(tmp_path, scene, {"log.cleaner.backoff.ms": "10"})


def test_half_a_log_more_room_is_worth_another_try_of_a_pass_that_lacked_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A partition whose pass needed less than twice its log rested for an hour, though it had room."""

    async def scene(stage: Stage) -> None:
        await stage.create("table", 1, **TABLE)
        table = await stage.served("table")
        free_bytes = kept_bytes = 1 << 60
        monkeypatch.setattr(type(table.folder.disk), "space", lambda self: Space(free_bytes, free_bytes))
        monkeypatch.setattr(type(table.folder.headroom), "kept_for_producers", property(lambda self: kept_bytes))
        fill(stage, table)
        passes = stage.broker.compactor
        async with asyncio.timeout(30):
            while not passes.failures:  # noqa: ASYNC110 - nobody tells of it
                await asyncio.sleep(0.02)
            free_bytes += table.log.size_bytes // 2 - 1
            await asyncio.sleep(0.2)
            assert passes.failures == 1, "it rests"
            free_bytes += 1
            while passes.failures == 1:  # noqa: ASYNC110
                await asyncio.sleep(0.02)

    on_stage(tmp_path, scene, {"log.cleaner.backoff.ms": "10"})


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EMFILE])
def test_a_pass_for_which_a_passing_fault_was_too_much_is_tried_again_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """However often it has failed."""
    monkeypatch.setattr(compactor, "PASSING_S", 0.05)
    passes_fail(monkeypatch, DiskFault(number, "for now"), times=8)

    async def scene(stage: Stage) -> None:
        await stage.create("table", 1, **TABLE)
        table = await stage.served("table")
        fill(stage, table)
        await until_smaller(table, 2_000_000)

    on_stage(tmp_path, scene, {"log.cleaner.backoff.ms": "10"})

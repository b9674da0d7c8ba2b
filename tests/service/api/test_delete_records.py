"""DeleteRecords while logs are busy."""

import asyncio
from pathlib import Path

from service.api import delete_records
from service.wire.error_codes import ErrorCode
from service.wire.messages import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from tests.service.api.admin_stage import Stage, on_stage
from tests.service.broker.cluster_stage import until
from tests.service.broker.topic_stage import write

SLOW, OTHER = "slow", "other"


async def deleted(stage: Stage, *topics: str, timeout_ms: int) -> list[DeleteRecordsPartitionResult]:
    """What is told of the first partition of each topic, whose first two records are to be deleted."""
    wanted = [DeleteRecordsTopic(name, [DeleteRecordsPartition(0, 2)]) for name in topics]
    answer = await stage.ask(DeleteRecordsRequest(wanted, timeout_ms))
    return [topic.partitions[0] for topic in answer.topics]


async def filled(stage: Stage, topic: str) -> None:
    await stage.create(topic)
    await write(await stage.served(topic), b"1", b"2", b"3")


def test_a_log_that_is_busy_holds_up_no_other_and_is_answered_in_time(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        for topic in (SLOW, OTHER):
            await filled(stage, topic)
        slow, other = [(await stage.served(topic)).log for topic in (SLOW, OTHER)]
        async with slow.alone():  # it is flushed, or cleaned files take the place of others
            asked = asyncio.ensure_future(deleted(stage, SLOW, OTHER, timeout_ms=1_500))
            await until(lambda: other.start_offset == 2)
            assert not asked.done(), "the slow one has its time"
            async with asyncio.timeout(10):
                told = await asked
        assert [each.error_code for each in told] == [ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NONE]
        assert [each.low_watermark for each in told] == [-1, 2]
        await asyncio.sleep(0.05)
        assert slow.start_offset == 0, "nobody waits for the log any more"
        assert [each.error_code for each in await deleted(stage, SLOW, timeout_ms=5_000)] == [ErrorCode.NONE]

    on_stage(tmp_path, scene)


def test_who_gives_no_time_deletes_all_the_same(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        await filled(stage, OTHER)
        (told,) = await deleted(stage, OTHER, timeout_ms=0)
        assert (told.error_code, told.low_watermark) == (ErrorCode.NONE, 2)

    on_stage(tmp_path, scene)


def test_what_is_named_behind_many_busy_logs_is_answered_in_time(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        await filled(stage, SLOW)
        many = int(20 * delete_records.LEAST_S / delete_records.SLOW_S)
        async with (await stage.served(SLOW)).log.alone(), asyncio.timeout(10 * delete_records.LEAST_S):
            told = await deleted(stage, *[SLOW] * many, "unknown", timeout_ms=0)
        timed_out = [ErrorCode.REQUEST_TIMED_OUT] * many
        assert [each.error_code for each in told] == [*timed_out, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]

    on_stage(tmp_path, scene)

"""Each setting of a log that is a 64-bit number, at the least and the largest value that a topic takes: sums with the
time must not leave what a field can hold.
"""

import asyncio
from dataclasses import replace

import pytest

from log.batch import build_batch, read_header
from log.config import UNLIMITED, LogConfig
from log.control import ControlType
from log.removal import expired_segments, remove_oldest
from log.time_search import offset_for_timestamp
from service.broker.acceptance import inspect_at_once, must_inspect
from service.settings.setting import ConfigError, ConfigType
from service.settings.topic import TOPIC_SETTINGS
from tests.log.building import open_batch
from tests.log.compacting import NOW_MS, Bench, committed_records, table
from tests.log.memory_disk import MemoryDisk

EDGES = (-2, -1, 0, 1, 2**62, UNLIMITED - NOW_MS - 3, UNLIMITED - NOW_MS, UNLIMITED - 1, UNLIMITED)
LONGS = [
    setting
    for setting in TOPIC_SETTINGS.values()
    if setting.kind is ConfigType.LONG and setting.name.replace(".", "_") in LogConfig.__dataclass_fields__
]


def taken(name: str) -> list[int]:
    """The edges that a topic takes for this setting."""
    found = []
    for value in EDGES:
        try:
            found.append(TOPIC_SETTINGS[name].parse(str(value)))
        except ConfigError:
            continue
    return found


CASES = [(setting.name.replace(".", "_"), value) for setting in LONGS for value in taken(setting.name)]


async def a_life(bench: Bench) -> None:
    """Values, deletions, a committed and an aborted transaction; and passes, the second of which sees the horizons."""
    for number in range(4):
        bench.put((b"kept", b"%d" % number), (b"deleted", b"1"))
        bench.put((b"deleted", None))
        bench.put((b"kept", b"aborted"), producer=1, transactional=True)
        bench.end(1, ControlType.ABORT)
        bench.put((b"done", b"%d" % number), producer=2, transactional=True)
        bench.end(2, ControlType.COMMIT)
        before = table(committed_records(bench.log, bench.stable))
        assert before == {b"kept": b"%d" % number, b"done": b"%d" % number}
        await bench.clean(now_ms=NOW_MS + number)
        assert table(committed_records(bench.log, bench.stable)) == before


def test_there_are_such_settings() -> None:
    names = {setting.name for setting in LONGS}
    assert {"delete.retention.ms", "retention.ms", "segment.ms", "min.compaction.lag.ms", "flush.ms"} <= names
    assert all(UNLIMITED in taken(name) for name in names)


@pytest.mark.parametrize(("field", "value"), CASES)
def test_a_log_is_written_compacted_and_read_at_the_edges_of_its_settings(field: str, value: int) -> None:
    settings = {"segment_jitter_ms": 0, field: value}
    bench = Bench(MemoryDisk())
    bench.log.set_config(replace(bench.config, **settings))  # type: ignore[arg-type]
    asyncio.run(a_life(bench))
    if field in ("delete_retention_ms", "retention_ms", "segment_ms", "segment_jitter_ms"):
        assert bench.log.times_compacted >= 3
    end = bench.log.end_offset
    found = asyncio.run(offset_for_timestamp(bench.log, 1, limit_offset=end, open_batch=open_batch))
    assert found is not None
    assert found.timestamp >= 1


@pytest.mark.parametrize(("field", "value"), CASES)
def test_only_what_is_too_old_or_too_much_is_removed_at_the_edges_of_the_settings(field: str, value: int) -> None:
    bench = Bench(MemoryDisk(), LogConfig(segment_bytes=600, index_interval_bytes=100, retention_ms=UNLIMITED))
    bench.log.set_config(replace(bench.log.config, **{field: value}))  # type: ignore[arg-type]
    for number in range(12):
        bench.put((b"%d" % number, bytes(100)))
    end, count = bench.log.end_offset, len(bench.log.segments)
    asyncio.run(remove_oldest(bench.log, lambda: expired_segments(bench.log, NOW_MS, end)))
    assert bench.log.end_offset == end
    leaves = field in ("retention_ms", "retention_bytes") and 0 <= value <= 1
    assert (bench.log.start_offset > 0) == (len(bench.log.segments) < count) == leaves


@pytest.mark.parametrize(("field", "value"), [case for case in CASES if case[0].startswith("message_timestamp")])
@pytest.mark.parametrize("timestamp", [-1, 0, NOW_MS, 2**63 - 1])
def test_times_at_the_edge_are_judged_at_the_edges_of_the_settings(field: str, value: int, timestamp: int) -> None:
    config = replace(LogConfig(message_timestamp_after_max_ms=UNLIMITED), **{field: value})  # type: ignore[arg-type]
    batch = build_batch([(b"k", b"v", (), timestamp)])
    header = read_header(batch)
    in_time = NOW_MS - config.message_timestamp_before_max_ms <= timestamp
    in_time &= timestamp <= NOW_MS + config.message_timestamp_after_max_ms
    if must_inspect(header, config, NOW_MS):
        refused = inspect_at_once(batch, header, config, NOW_MS).refused
        assert (refused is None) == (in_time or timestamp == -1)
    else:
        assert in_time or timestamp == -1

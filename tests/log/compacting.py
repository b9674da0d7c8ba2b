"""What the tests of compaction share: the facts a cleaner asks for, and a reader of committed records."""

import asyncio
from collections.abc import Generator, Iterator

from idempotence.producers import KnownBy
from isolation.stable import StableOffsets
from log.batch import BatchHeader, Buffer, build_batch, read_records
from log.compaction import MEMORY_BYTES, Apart, CompactionReport, Work, compact, find_work
from log.config import LogConfig
from log.control import ControlType, build_marker, read_marker
from log.disk import Disk
from log.partition_log import PartitionLog
from tests.log.building import append
from tests.log.plain_cleaning import twice

NOW_MS = 1_000_000
RETENTION_MS = 1_000


class LastOfProducers:
    """A view: the last data batch of every producer."""

    name = "last"
    must_see_all = True

    def __init__(self) -> None:
        self.last: dict[int, int] = {}

    def apply(self, header: BatchHeader, batch: Buffer) -> None:
        if header.has_producer and not header.is_control:
            self.last[header.producer_id] = header.last_offset

    def snapshot(self) -> bytes:
        return b",".join(b"%d=%d" % item for item in sorted(self.last.items()))

    def restoring(self, data: Buffer | None) -> Generator[None, None, None]:
        yield
        pairs = [pair.split(b"=") for pair in bytes(data or b"").split(b",") if pair]
        self.last = {int(producer): int(offset) for producer, offset in pairs}

    def anew(self) -> "LastOfProducers":
        return LastOfProducers()

    def swap(self, other: "LastOfProducers") -> None:
        self.last, other.last = other.last, self.last

    def set_start_offset(self, offset: int) -> None:
        pass


class Facts:
    """What the broker will tell the cleaner."""

    def __init__(self, stable: StableOffsets, producers: LastOfProducers) -> None:
        self.stable = stable
        self.producers = producers

    def known_by(self, below: int) -> Iterator[KnownBy]:
        return (KnownBy(producer, offset, 0, 0) for producer, offset in self.producers.last.items())


class Bench:
    """A log with the views that compaction needs."""

    def __init__(self, disk: Disk, config: LogConfig | None = None, *, recovery_point: int = 0) -> None:
        self.disk = disk
        self.config = config or LogConfig(
            cleanup_policy=("compact",),
            segment_bytes=600,
            index_interval_bytes=100,
            min_cleanable_dirty_ratio=0.0,
            delete_retention_ms=RETENTION_MS,
        )
        self.stable = StableOffsets()
        self.producers = LastOfProducers()
        self.log = PartitionLog.open(
            disk,
            "table-0",
            self.config,
            [self.stable, self.producers],
            known=None,
            now_ms=0,
            recovery_point=recovery_point,
        )

    def put(
        self, *pairs: tuple[bytes | None, bytes | None], producer: int = -1, transactional: bool = False, codec: int = 0
    ) -> None:
        """One batch; the timestamps are the offsets."""
        base = self.log.end_offset
        records = [(key, value, (), base + index) for index, (key, value) in enumerate(pairs)]
        append(
            self.log,
            build_batch(
                records,
                base_offset=base,
                leader_epoch=0,
                codec=codec,
                producer_id=producer,
                producer_epoch=0 if producer >= 0 else -1,
                base_sequence=0 if producer >= 0 else -1,
                transactional=transactional,
            ),
        )

    def end(self, producer: int, outcome: ControlType) -> None:
        marker = build_marker(
            outcome,
            producer_id=producer,
            producer_epoch=0,
            coordinator_epoch=0,
            timestamp_ms=self.log.end_offset,
            base_offset=self.log.end_offset,
            leader_epoch=0,
        )
        append(self.log, marker)

    async def clean(
        self,
        *,
        now_ms: int = NOW_MS,
        memory_bytes: int = MEMORY_BYTES,
        apart: Apart = twice,
        keeps_deletions: bool = False,
    ) -> CompactionReport | None:
        """Roll, flush and clean all that is decided, by the cleaner and by its plain twin."""
        self.log.roll(now_ms)
        await self.log.flush()
        limit = self.stable.last_stable_offset(self.log.end_offset, self.log.start_offset)
        work = find_work(self.log, self.disk, now_ms=now_ms, limit_offset=limit)
        if work is None:
            return None
        return await self.compact(
            work, now_ms=now_ms, memory_bytes=memory_bytes, apart=apart, keeps_deletions=keeps_deletions
        )

    async def compact(
        self,
        work: Work,
        *,
        now_ms: int = NOW_MS,
        memory_bytes: int = MEMORY_BYTES,
        apart: Apart = twice,
        keeps_deletions: bool = False,
    ) -> CompactionReport:
        facts = Facts(self.stable, self.producers)
        return await compact(
            *(self.log, self.disk, work, facts),
            now_ms=now_ms,
            secret=b"sixteen bytes :)",
            apart=apart,
            breathe=breathe,
            memory_bytes=memory_bytes,
            keeps_deletions=keeps_deletions,
        )


async def breathe() -> None:
    await asyncio.sleep(0)


def committed_records(log: PartitionLog, stable: StableOffsets) -> list[tuple[int, bytes | None, bytes | None]]:
    """Offset, key and value of what a reader of committed data gets, filtered as clients filter it."""
    limit = stable.last_stable_offset(log.end_offset, log.start_offset)
    waiting = sorted(stable.aborted_ranges(log.start_offset, limit), key=lambda aborted: aborted.first_offset)
    skipping: set[int] = set()
    found = []
    for header, batch in log.scan(log.start_offset, limit):
        while waiting and waiting[0].first_offset <= header.last_offset:
            skipping.add(waiting.pop(0).producer_id)
        if header.is_control:
            if read_marker(batch).type is ControlType.ABORT:
                skipping.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in skipping):
            found += [(record.offset, record.key, record.value) for record in read_records(batch, header)]
    return found


def table(records: list[tuple[int, bytes | None, bytes | None]]) -> dict[bytes | None, bytes]:
    """What somebody who reads everything knows in the end: the last value of every key that was not deleted."""
    known = {key: value for _, key, value in records}
    return {key: value for key, value in known.items() if value is not None}

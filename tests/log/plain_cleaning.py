"""The plain twin of `log.cleaning`: record by record, with a dictionary of all keys. Slow, and easy to believe."""

from collections.abc import Iterable, Iterator

from log import cleaning
from log.batch import BatchHeader, CorruptBatch, StoredRecord, build_from_stored, checksum_ok, read_header
from log.batch import read_stored_records as open_records
from log.cleaning import clean
from log.cleaning_job import Cleaned, CleaningJob, groups_of
from log.cleaning_rules import AbortedTransactions, LastBatches
from log.control import ControlType, read_marker
from log.disk import Disk
from log.ids import NO_OFFSET
from log.segment import SUFFIXES, Segment, SegmentFacts, segment_name
from log.swap import CLEANED


def is_oversized(header: BatchHeader) -> bool:
    return header.record_count > cleaning.RECORDS_OPENED


def plain_clean(disk: Disk, job: CleaningJob) -> Cleaned:
    return PlainCleaner(disk, job).clean()


class PlainCleaner:
    def __init__(self, disk: Disk, job: CleaningJob) -> None:
        self.disk = disk
        self.job = job
        self.cleaned = Cleaned()
        self.transactions = AbortedTransactions(job.aborted)
        ends = [header.next_offset for _, header, _ in self.batches(job.segments)]
        self.last = LastBatches(job.last_batches, job.last_markers, ends[-1] if ends else NO_OFFSET)
        self.with_data: set[int] = set()
        self.latest: dict[bytes, tuple[int, int]] = {}

    def clean(self) -> Cleaned:
        for _, header, batch in self.batches(self.job.segments):
            if not header.is_control and not self.transactions.is_aborted(header) and not is_oversized(header):
                for index, record in enumerate(self.opened(header, batch) or ()):
                    if record.key is not None:
                        self.latest[record.key] = header.base_offset, index
        self.cleaned.keys = len(self.latest)
        for group in groups_of(self.job.segments, self.job.segment_bytes):
            self.write(group)
        return self.cleaned

    def write(self, group: list[SegmentFacts]) -> None:
        target = Segment.create(self.disk, self.job.folder, group[0].base_offset, 0, name_suffix=CLEANED)
        for facts in group:
            target.appended_ms = max(target.appended_ms, facts.appended_ms)
            for _, header, batch in self.batches((facts,)):
                kept = self.keep(header, batch)
                if kept is not None:
                    target.append(kept, read_header(kept), target.appended_ms, self.job.index_interval_bytes)
        target.end_offset = group[-1].end_offset
        target.seal()
        self.cleaned.segments.add(target.facts())
        target.close()

    def batches(self, segments: Iterable[SegmentFacts]) -> Iterator[tuple[int, BatchHeader, bytes]]:
        for facts in segments:
            segment = Segment(self.disk, self.job.folder, facts, sealed=True)
            yield from ((at, header, bytes(batch)) for at, header, batch in segment.batches(0))
            segment.close()

    @staticmethod
    def opened(header: BatchHeader, batch: bytes) -> list[StoredRecord] | None:
        if not checksum_ok(batch, header):
            return None
        try:
            if header.is_control:
                read_marker(batch)
            return list(open_records(batch, header))
        except CorruptBatch:
            return None

    def keep(self, header: BatchHeader, batch: bytes) -> bytes | None:
        aborted = not header.is_control and self.transactions.is_aborted(header)
        if not header.is_control and not aborted and is_oversized(header) and checksum_ok(batch, header):
            self.cleaned.oversized_batches += 1
            self.cleaned.records_before += header.record_count
            self.cleaned.records_after += header.record_count
            if header.is_transactional:
                self.with_data.add(header.producer_id)
            return batch
        records = self.opened(header, batch)
        if records is None and not (aborted and checksum_ok(batch, header)):
            self.cleaned.unreadable_batches += 1
            return batch
        if header.is_control:
            return self.keep_marker(header, batch)
        if header.is_transactional:
            self.with_data.add(header.producer_id)
        horizon_ms = header.delete_horizon_ms
        kept: list[StoredRecord] = []
        if not aborted:
            for index, record in enumerate(records or ()):
                if not record.has_value and self.may_forget(horizon_ms):
                    self.cleaned.forgotten_below = header.next_offset
                if self.stays(record, (header.base_offset, index), horizon_ms):
                    kept.append(record)
        self.cleaned.records_before += header.record_count
        self.cleaned.records_after += len(kept)
        if not kept and not self.last.is_last(header):
            return None
        if horizon_ms is None and not all(record.has_value for record in kept):
            horizon_ms = self.job.horizon_ms
        if len(kept) == header.record_count and horizon_ms == header.delete_horizon_ms:
            return batch
        return build_from_stored(header, kept, delete_horizon_ms=horizon_ms)

    def stays(self, record: StoredRecord, place: tuple[int, int], horizon_ms: int | None) -> bool:
        if record.key is None or self.latest[record.key] > place:
            return False
        return record.has_value or not self.may_forget(horizon_ms)

    def may_forget(self, horizon_ms: int | None) -> bool:
        """Whether a tombstone may go: not behind a batch that may hold the value that it deletes."""
        return self.is_over(horizon_ms) and not self.cleaned.unreadable_batches and not self.cleaned.oversized_batches

    def is_over(self, horizon_ms: int | None) -> bool:
        return horizon_ms is not None and horizon_ms <= self.job.now_ms and not self.job.keeps_deletions

    def keep_marker(self, header: BatchHeader, batch: bytes) -> bytes | None:
        kind = read_marker(batch).type
        if kind is None or self.cleaned.unreadable_batches:
            return batch
        if header.producer_id in self.with_data:
            self.with_data.remove(header.producer_id)
            return batch
        horizon_ms = header.delete_horizon_ms
        if horizon_ms is None:
            later_ms = self.job.horizon_ms
            return build_from_stored(header, list(open_records(batch, header)), delete_horizon_ms=later_ms)
        if not self.is_over(horizon_ms) or self.last.is_last(header):
            return batch
        if kind is ControlType.ABORT:
            self.cleaned.dropped_abort_markers.append(header.base_offset)
        self.cleaned.forgotten_below = header.next_offset
        return None


def files_of(disk: Disk, cleaned: Cleaned, folder: str) -> dict[str, bytes]:
    names = [segment_name(facts.base_offset, suffix) + CLEANED for facts in cleaned.segments for suffix in SUFFIXES]
    return {name: disk.read(f"{folder}/{name}") for name in names}


async def once(function: str, disk: Disk, job: CleaningJob) -> Cleaned:
    """What the cleaner makes of it, here and now."""
    assert function == f"{clean.__module__}:{clean.__name__}"
    return clean(disk, job)


async def twice(function: str, disk: Disk, job: CleaningJob) -> Cleaned:
    """What both make of it, which is the same to the byte."""
    plain = plain_clean(disk, job)
    expected = files_of(disk, plain, job.folder)
    cleaned = await once(function, disk, job)
    assert cleaned == plain
    assert files_of(disk, cleaned, job.folder) == expected
    return cleaned


async def twice_alike(function: str, disk: Disk, job: CleaningJob) -> Cleaned:
    """What both make of it, which reads the same: numbers may be written in more bytes than they need."""
    plain = plain_clean(disk, job)
    expected = contents_of(disk, plain, job.folder)
    cleaned = await once(function, disk, job)
    assert contents_of(disk, cleaned, job.folder) == expected
    plain.segments = cleaned.segments
    assert cleaned == plain
    return cleaned


def contents_of(disk: Disk, cleaned: Cleaned, folder: str) -> list[tuple[BatchHeader, list[StoredRecord] | bytes]]:
    found: list[tuple[BatchHeader, list[StoredRecord] | bytes]] = []
    for facts in cleaned.segments:
        segment = Segment(disk, folder, facts, sealed=True, name_suffix=CLEANED)
        for _, header, batch in segment.batches(0):
            records = PlainCleaner.opened(header, bytes(batch))
            found.append((header._replace(size_bytes=0, crc=0), bytes(batch) if records is None else records))
        segment.close()
    return found

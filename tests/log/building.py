"""What the tests of `log` build their logs from."""

import asyncio
import json
from collections.abc import Generator, Sequence

from log.batch import BatchHeader, Buffer, build_batch, read_header, restamp
from log.config import LogConfig
from log.cutting import restart_at, truncate_to, views_below
from log.disk import Disk, FileSlice
from log.ids import TopicId
from log.partition_log import CleanState, PartitionLog
from log.steps import done_at_once
from log.time_search import stored_payload

FOLDER = "events-0"


class SeenBatches:
    """A view that knows every batch it was given: base offset and checksum."""

    name = "seen"
    must_see_all = True

    def __init__(self) -> None:
        self.seen: list[tuple[int, int]] = []
        self.start_offset = 0

    def apply(self, header: BatchHeader, batch: Buffer) -> None:
        assert read_header(batch) == header
        assert len(batch) == header.size_bytes
        self.seen.append((header.base_offset, header.crc))

    def snapshot(self) -> bytes:
        return json.dumps(self.seen).encode()

    def restoring(self, data: Buffer | None) -> Generator[None, None, None]:
        yield
        self.seen = [(base, crc) for base, crc in json.loads(bytes(data))] if data is not None else []

    def anew(self) -> "SeenBatches":
        return SeenBatches()

    def swap(self, other: "SeenBatches") -> None:
        self.seen, other.seen = other.seen, self.seen

    def set_start_offset(self, offset: int) -> None:
        self.start_offset = offset


def stamped(
    values: Sequence[bytes | None],
    *,
    base_offset: int,
    leader_epoch: int = 0,
    timestamp: int = 1000,
    key: bytes | None = b"key",
) -> bytearray:
    """A batch in its place; one record a millisecond."""
    records = [(key, value, (), timestamp + index) for index, value in enumerate(values)]
    batch = bytearray(build_batch(records))
    restamp(batch, base_offset=base_offset, leader_epoch=leader_epoch)
    return batch


def append(log: PartitionLog, batch: bytes | bytearray, now_ms: int = 0) -> None:
    log.append(batch, read_header(batch), now_ms=now_ms)


def cut_log(log: PartitionLog, offset: int) -> None:
    """Take back everything from `offset` on, in one go."""
    try:
        truncate_to(log, offset, done_at_once(views_below(log, offset)))
    finally:
        done_at_once(log.durability.clearing())


def restart_log(log: PartitionLog, offset: int) -> None:
    """Forget everything, in one go."""
    restart_at(log, offset)
    done_at_once(log.durability.clearing())


def fill(log: PartitionLog, count: int, *, size: int = 100, leader_epoch: int = 0, records: int = 1) -> None:
    """`count` batches; the timestamps are the offsets plus 1000."""
    for _ in range(count):
        base = log.end_offset
        values = [b"%d" % (base + index) + bytes(size) for index in range(records)]
        append(log, stamped(values, base_offset=base, leader_epoch=leader_epoch, timestamp=1000 + base))


def open_log(
    disk: Disk,
    *,
    config: LogConfig | None = None,
    known: CleanState | None = None,
    recovery_point: int = 0,
    folder: str = FOLDER,
    topic_id: TopicId | None = None,
) -> tuple[PartitionLog, SeenBatches]:
    view = SeenBatches()
    log = PartitionLog.open(
        disk,
        folder,
        config or LogConfig(),
        [view],
        known=known,
        now_ms=0,
        recovery_point=recovery_point,
        topic_id=topic_id,
    )
    return log, view


async def open_batch(stored: FileSlice, header: BatchHeader) -> Buffer:
    """What the broker does beside the loop, so others have their turns first."""
    stored.pin()
    try:
        await asyncio.sleep(0)
        return stored_payload(stored, header)
    finally:
        stored.unpin()


def contents(log: PartitionLog) -> list[tuple[int, int]]:
    """Base offset and checksum of every batch in the log."""
    return [(header.base_offset, header.crc) for header, _ in log.scan(log.start_offset)]


def base_offsets(log: PartitionLog) -> list[int]:
    return [base for base, _ in contents(log)]

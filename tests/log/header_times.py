"""Batches by the times that their headers and records tell: how long each lives, and which time is its latest."""

from __future__ import annotations

from typing import NamedTuple

from log.batch import CHECKED_FROM, CRC_AT, MAX_TIMESTAMP_AT, build_batch, crc32c
from log.config import DAY_MS

NO_TIME, ZERO = (0, -1), (0, 0)


class TimedBatch(NamedTuple):
    """Two records with these times, and a header that says which is the newest."""

    times: tuple[int, int]
    newest: int
    stays: bool
    """Whether it outlives a look of retention after a day, right after it was appended."""
    latest: tuple[int, int] | None
    """Offset and time that are told when the latest time is asked for."""

    def built(self, codec: int) -> bytes:
        batch = bytearray(build_batch([(b"k", b"v", (), time) for time in self.times], codec=codec, leader_epoch=0))
        batch[MAX_TIMESTAMP_AT : MAX_TIMESTAMP_AT + 8] = self.newest.to_bytes(8, "big", signed=True)
        batch[CRC_AT:CHECKED_FROM] = crc32c(batch[CHECKED_FROM:]).to_bytes(4, "big")
        return bytes(batch)


def timed_batches(now_ms: int) -> list[TimedBatch]:
    """`python -m tests.conformance.retention` shows that Apache Kafka does the same with each."""
    old_ms = now_ms - 30 * DAY_MS
    return [
        TimedBatch((-1, -1), 0, True, NO_TIME),  # librdkafka, of records without a time
        TimedBatch((-1, -1), -1, True, NO_TIME),  # the Java client
        TimedBatch((0, 0), 0, False, ZERO),  # 1970 is a time
        TimedBatch((-5, -7), 0, True, None),
        TimedBatch((-7, -5), -5, True, None),
        TimedBatch((-1, now_ms), now_ms, True, (1, now_ms)),
        TimedBatch((-1, old_ms), old_ms, False, (1, old_ms)),
        TimedBatch((now_ms, -1), now_ms, True, (0, now_ms)),
        TimedBatch((old_ms, old_ms), old_ms, False, (0, old_ms)),
        TimedBatch((now_ms, now_ms + 1), now_ms + 1, True, (1, now_ms + 1)),
        TimedBatch((now_ms + 1000, now_ms), now_ms + 1000, True, (0, now_ms + 1000)),
        TimedBatch((now_ms, now_ms), 0, True, (0, now_ms)),  # a newest that is older than the first
        TimedBatch((now_ms, now_ms), -1, True, (0, now_ms)),
        TimedBatch((now_ms, now_ms), old_ms, True, (0, now_ms)),
    ]


def hiding_batches(now_ms: int) -> list[TimedBatch]:
    """Their headers tell of a newest record that is older than another one. They are corrected before the append."""
    old_ms = now_ms - 30 * DAY_MS
    return [
        TimedBatch((old_ms, now_ms), old_ms, True, (1, now_ms)),  # KafkaJS, if one of two records has a time
        TimedBatch((now_ms, old_ms), old_ms + 1, True, (0, now_ms)),
        TimedBatch((0, now_ms), 0, True, (1, now_ms)),
        TimedBatch((-1, now_ms), -1, True, (1, now_ms)),
        TimedBatch((-1, now_ms), 0, True, (1, now_ms)),
        TimedBatch((-5, now_ms), 3, True, (1, now_ms)),
    ]

"""What a topic's settings do to a batch on its way into the log."""

import dataclasses
import random
from typing import Any

import pytest

from log.batch import NewRecord, build_batch, read_header, read_records
from log.config import LogConfig
from service.broker.acceptance import CODECS, Refused, inspect_batch, recompressed
from service.wire.error_codes import ErrorCode

WORDS = [f"word{number} ".encode() for number in range(500)]


def records() -> list[NewRecord]:
    chance = random.Random(3)
    return [(b"key", b"".join(chance.choices(WORDS, k=20)), (), 1_000 + number) for number in range(200)]


def packed(codec: str, **settings: Any) -> bytearray | Refused:
    plain = build_batch(records(), producer_id=7, producer_epoch=1, base_sequence=3, transactional=True)
    config = dataclasses.replace(LogConfig(), compression_type=codec, **settings)
    return recompressed(memoryview(plain), read_header(plain), CODECS[codec], config)


@pytest.mark.parametrize(
    ("codec", "low", "high"),
    [
        ("gzip", {"compression_gzip_level": 1}, {"compression_gzip_level": 9}),
        # lz4's default, 9, is the fast method: see log.compress.
        ("lz4", {}, {"compression_lz4_level": 17}),
        ("zstd", {"compression_zstd_level": -50}, {"compression_zstd_level": 19}),
    ],
)
def test_the_level_that_a_topic_asks_for_is_used(codec: str, low: dict[str, int], high: dict[str, int]) -> None:
    fast, thorough = packed(codec, **low), packed(codec, **high)
    assert not isinstance(fast, Refused)
    assert not isinstance(thorough, Refused)
    assert len(thorough) < 0.95 * len(fast)
    for batch in (fast, thorough):
        header = read_header(batch)
        assert header.codec == CODECS[codec]
        assert (header.producer_id, header.base_sequence, header.is_transactional) == (7, 3, True)
        found = [(record.key, record.value, record.headers, record.timestamp) for record in read_records(batch, header)]
        assert found == records()


def test_a_batch_that_is_too_large_once_it_is_unpacked_is_refused() -> None:
    small = build_batch([(None, bytes(5_000), (), 0)], codec=CODECS["zstd"])
    config = LogConfig(compression_type="uncompressed", max_message_bytes=1_000)
    assert len(small) < config.max_message_bytes
    refused = recompressed(memoryview(small), read_header(small), CODECS["uncompressed"], config)
    assert isinstance(refused, Refused)
    assert refused.error is ErrorCode.MESSAGE_TOO_LARGE


def test_a_record_that_is_too_old_is_found_wherever_it_stands_in_its_batch() -> None:
    """A batch's header tells of its first record and of its newest, not of its oldest."""
    now_ms, hour_ms = 10**12, 3_600_000
    times = (now_ms, now_ms - 2 * hour_ms, now_ms)
    batch = memoryview(build_batch([(None, b"x", (), time) for time in times]))
    assert not isinstance(inspect_batch(batch, LogConfig(), now_ms), Refused)
    refused = inspect_batch(batch, LogConfig(message_timestamp_before_max_ms=hour_ms), now_ms)
    assert isinstance(refused, Refused)
    assert (refused.error, refused.culprits) == (ErrorCode.INVALID_TIMESTAMP, (1,))
    assert not isinstance(inspect_batch(batch, LogConfig(message_timestamp_before_max_ms=3 * hour_ms), now_ms), Refused)

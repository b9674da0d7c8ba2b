"""What a topic's settings do to a batch on its way into the log."""

import dataclasses
import random
from typing import Any

import pytest

from log.batch import HEADER_BYTES, NewRecord, Record, assemble, build_batch, read_header, read_records
from log.compress import MAX_PLAIN_BYTES
from log.config import LogConfig
from service.broker.acceptance import (
    BYTES_AT_ONCE,
    CODECS,
    CULPRITS_MAX,
    RECORDS_AT_ONCE,
    Inspected,
    RefusedBatch,
    inspect_at_once,
    inspect_batch,
    must_inspect,
)
from service.wire.error_codes import ErrorCode

WORDS = [f"word{number} ".encode() for number in range(500)]


def records() -> list[NewRecord]:
    chance = random.Random(3)
    return [(b"key", b"".join(chance.choices(WORDS, k=20)), (), 1_000 + number) for number in range(200)]


NOW_MS = 10**12


def look(batch: bytes, config: LogConfig, now_ms: int = NOW_MS) -> Inspected:
    return inspect_at_once(batch, read_header(batch), config, now_ms)


def packed(codec: str, **settings: Any) -> bytearray:
    plain = build_batch(records(), producer_id=7, producer_epoch=1, base_sequence=3, transactional=True)
    inspected = look(plain, dataclasses.replace(LogConfig(), compression_type=codec, **settings))
    assert inspected.refused is None
    assert inspected.records is not None
    return inspected.records


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
    assert len(thorough) < 0.95 * len(fast)
    for batch in (fast, thorough):
        header = read_header(batch)
        assert header.codec == CODECS[codec]
        assert (header.producer_id, header.base_sequence, header.is_transactional) == (7, 3, True)
        found = [(record.key, record.value, record.headers, record.timestamp) for record in read_records(batch, header)]
        assert found == records()


def refusal(batch: bytes, config: LogConfig, now_ms: int = NOW_MS) -> RefusedBatch:
    """Why a batch that must be looked into is not taken."""
    header = inspect_batch(memoryview(batch), config, now_ms)
    assert not isinstance(header, RefusedBatch)
    assert must_inspect(header, config, now_ms)
    refused = look(batch, config, now_ms).refused
    assert refused is not None
    return refused


COMPACTED = LogConfig(cleanup_policy=("compact",))


def with_header(batch: bytes, **fields: int) -> bytes:
    """The same batch, with a header that says something else."""
    return bytes(assemble(read_header(batch)._replace(**fields), batch[HEADER_BYTES:]))


def test_a_transactional_batch_has_a_producer() -> None:
    batch = build_batch([(None, b"v", (), NOW_MS)], transactional=True)
    refused = inspect_batch(memoryview(batch), LogConfig(), NOW_MS)
    assert isinstance(refused, RefusedBatch)
    assert refused.error is ErrorCode.INVALID_RECORD


def test_a_batch_that_is_too_large_once_it_is_unpacked_is_refused() -> None:
    small = build_batch([(None, bytes(5_000), (), 0)], codec=CODECS["zstd"])
    config = LogConfig(compression_type="uncompressed", max_message_bytes=1_000)
    assert len(small) < config.max_message_bytes
    assert refusal(small, config).error is ErrorCode.MESSAGE_TOO_LARGE


@pytest.mark.parametrize("codec", [CODECS["gzip"], CODECS["zstd"]])
def test_what_unpacks_to_a_hundred_times_its_size_is_taken_and_a_bomb_is_refused(codec: int) -> None:
    """A batch of 1 MB may hold 100 MB; that a bomb is too large, and not broken, lets a client split its batch."""
    tenth = MAX_PLAIN_BYTES // 10
    honest = build_batch([(b"k", bytes(tenth), (), NOW_MS)] * 9, codec=codec)
    assert look(honest, COMPACTED).refused is None
    bomb = build_batch([(b"k", bytes(tenth), (), NOW_MS)] * 11, codec=codec)
    refused = look(bomb, COMPACTED).refused
    assert refused is not None
    assert refused.error is ErrorCode.MESSAGE_TOO_LARGE


def test_what_cannot_be_unpacked_is_refused_for_good() -> None:
    garbage = bytes(assemble(read_header(build_batch(records()))._replace(attributes=CODECS["gzip"]), b"\0" * 500))
    assert refusal(garbage, COMPACTED).error is ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("codec", CODECS.values())
def test_a_batch_with_another_number_of_records_than_it_counts_is_refused_where_it_is_opened(codec: int) -> None:
    honest = build_batch(records(), codec=codec)
    for count in (199, 201):
        lying = with_header(honest, record_count=count, last_offset_delta=count - 1)
        assert refusal(lying, COMPACTED).error is ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("codec", CODECS.values())
def test_a_batch_takes_no_more_offsets_than_it_can_have_records(codec: int) -> None:
    """Without a look inside: else every batch of 70 bytes could take 2^31 offsets, and fill a segment with them."""
    honest = build_batch([(b"k", b"v", (), NOW_MS)], codec=codec)
    lying = with_header(honest, record_count=2**31 - 1, last_offset_delta=2**31 - 2)
    refused = inspect_batch(memoryview(lying), LogConfig(), NOW_MS)
    assert isinstance(refused, RefusedBatch)
    assert refused.error is ErrorCode.INVALID_RECORD
    densest = build_batch([(b"", b"", (), NOW_MS)] * 100_000, codec=codec)
    assert not isinstance(inspect_batch(memoryview(densest), LogConfig(), NOW_MS), RefusedBatch)


def test_records_that_say_other_numbers_than_their_place_are_refused_where_they_are_seen() -> None:
    swapped = build_batch([Record(1, NOW_MS, b"a", b""), Record(0, NOW_MS, b"b", b"")])
    lying = with_header(swapped, last_offset_delta=1)
    assert refusal(lying, COMPACTED).error is ErrorCode.INVALID_RECORD


def test_every_record_without_a_key_is_named_up_to_a_number() -> None:
    some = build_batch([(b"k", b"", (), NOW_MS), (None, b"", (), NOW_MS), (None, b"", (), NOW_MS)])
    refused = refusal(some, COMPACTED)
    assert (refused.error, refused.culprits) == (ErrorCode.INVALID_RECORD, (1, 2))
    many = build_batch([(None, b"", (), NOW_MS)] * 5_000)
    assert refusal(many, COMPACTED).culprits == tuple(range(CULPRITS_MAX))


@pytest.mark.parametrize("latest_ms", [NOW_MS, 2**63 - 1])
def test_times_that_run_out_of_their_field_are_refused(latest_ms: int) -> None:
    """As Kafka does, whatever the header says of the newest record."""
    batch = build_batch([(b"k", b"1", (), NOW_MS), (b"k", b"2", (), NOW_MS + 5)])
    lying = with_header(batch, base_timestamp=2**63 - 1, max_timestamp=latest_ms)
    takes_any_time = dataclasses.replace(COMPACTED, message_timestamp_after_max_ms=2**63 - 1)
    for config in (LogConfig(), COMPACTED, takes_any_time):
        assert refusal(lying, config).error is ErrorCode.INVALID_TIMESTAMP


def test_a_batch_whose_header_is_out_of_time_is_not_searched_for_the_records_to_blame_when_it_is_long() -> None:
    """Nobody has cut that search into steps: a topic that opens no batches shall not be held up by one."""
    later_ms = NOW_MS + 2 * 3_600_000
    short = build_batch([(b"k", b"", (), NOW_MS), (b"k", b"", (), later_ms)])
    assert refusal(short, LogConfig()).culprits == (1,)
    for long in (
        build_batch([(b"k", b"", (), later_ms)] * (RECORDS_AT_ONCE + 1)),
        build_batch([(b"k", bytes(BYTES_AT_ONCE + 1), (), later_ms)], codec=4),
    ):
        refused = refusal(long, LogConfig())
        assert (refused.error, refused.culprits) == (ErrorCode.INVALID_TIMESTAMP, ())


def test_a_record_that_is_too_old_is_found_wherever_it_stands_in_its_batch() -> None:
    """A batch's header tells of its first record and of its newest, not of its oldest."""
    hour_ms = 3_600_000
    times = (NOW_MS, NOW_MS - 2 * hour_ms, NOW_MS, -1)
    batch = build_batch([(None, b"x", (), time) for time in times])
    assert not must_inspect(read_header(batch), LogConfig(), NOW_MS)
    refused = refusal(batch, LogConfig(message_timestamp_before_max_ms=hour_ms))
    assert (refused.error, refused.culprits) == (ErrorCode.INVALID_TIMESTAMP, (1,))
    assert look(batch, LogConfig(message_timestamp_before_max_ms=3 * hour_ms)).refused is None


def test_topics_that_ask_for_nothing_have_nothing_looked_into() -> None:
    for codec in CODECS.values():
        assert not must_inspect(read_header(build_batch(records(), codec=codec)), LogConfig(), NOW_MS)
        stored = LogConfig(compression_type=next(name for name in CODECS if CODECS[name] == codec))
        assert not must_inspect(read_header(build_batch(records(), codec=codec)), stored, NOW_MS)

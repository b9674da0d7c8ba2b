"""The columnar decoder agrees with the plain twin, on what clients may write and on what nobody should."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import UTC
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from log.batch import build_from_stored, read_header, read_stored_records
from log.control import ControlType, build_marker
from spark_sink import decode
from spark_sink.decode import Decoder, visible, whole_batches
from spark_sink.errors import CorruptBatch
from tests.spark_sink import plain
from tests.spark_sink.plain import ABORT, COMMIT, NONE, SNAPPY, Record, StoredBatch, marker, varint, write_batch

FOREVER = 1 << 62


def rows_of(batch: pa.RecordBatch) -> list[Record]:
    columns = batch.to_pydict()
    stamps = batch.column("timestamp").cast(pa.int64()).to_pylist()
    headers = columns.get("headers", [None] * batch.num_rows)
    for topic, partition in zip(columns["topic"], columns["partition"], strict=True):
        assert (topic, partition) == ("a-topic", 7)
    return [
        Record(offset, stamp // 1000, kind, key, value, tuple((h["key"], h["value"]) for h in heads or ()))
        for offset, stamp, kind, key, value, heads in zip(
            columns["offset"], stamps, columns["timestampType"], columns["key"], columns["value"], headers, strict=True
        )
    ]


def decoded(
    chunk: bytes,
    *,
    start: int = 0,
    end: int = FOREVER,
    aborted: list[tuple[int, int]] | None = None,
    rows: int = 50,
    headers: bool = True,
) -> list[Record]:
    decoder = Decoder("a-topic", 7, headers=headers, rows=rows)
    found = []
    batches = visible(whole_batches(chunk), chunk, aborted or [])
    for batch in decoder.record_batches(chunk, batches, start=start, end=end):
        batch.validate(full=True)
        assert 0 < batch.num_rows <= rows
        found += rows_of(batch)
    return found


def small_lanes() -> AbstractContextManager[object]:
    """Walk in lanes from a few records on, so that small examples do."""
    return patch.multiple(decode, LANE_RECORDS=3, FEWEST_LANES=2, MOST_STEPS=24)


payloads = st.one_of(
    st.none(),
    st.binary(max_size=40),
    st.integers(0, 200).map(bytes),  # zeros: every byte looks like the attributes of a record
    st.integers(60, 9000).map(lambda size: b"x" * size),
    st.integers(0, 255).map(lambda byte: bytes([byte]) * 70),
)
record_headers = st.lists(st.tuples(st.text(max_size=5), st.one_of(st.none(), st.binary(max_size=9))), max_size=3).map(
    tuple
)


@st.composite
def logs(draw: st.DrawFn) -> tuple[list[StoredBatch], list[tuple[int, int]]]:
    """A piece of a log, and the aborted transactions that reach into it."""
    offset = draw(st.integers(0, 1 << 40))
    stamp = draw(st.integers(-1, 1 << 41))
    batches: list[StoredBatch] = []
    aborted = []
    open_since: dict[int, int] = {}
    coin = st.booleans()
    for _ in range(draw(st.integers(1, 6))):
        offset += draw(st.sampled_from([0, 0, 0, 1, 70]))
        if draw(coin) and open_since:
            producer_id = draw(st.sampled_from(sorted(open_since)))
            kind = draw(st.sampled_from([ABORT, COMMIT]))
            if kind == ABORT:
                aborted.append((producer_id, open_since[producer_id]))
            del open_since[producer_id]
            batches.append(marker(offset, producer_id, kind))
            offset += 1
            continue
        transactional = draw(coin)
        producer_id = draw(st.integers(1, 3)) if transactional else -1
        if transactional:
            open_since.setdefault(producer_id, offset)
        appended = draw(coin)
        records = []
        first = offset
        for _ in range(draw(st.one_of(st.integers(0, 4), st.integers(5, 30)))):
            offset += draw(st.sampled_from([0, 0, 0, 0, 3, 200]))  # gaps that compaction left
            shown = stamp + 100 if appended else stamp + draw(st.integers(-70, 20_000))
            value = draw(payloads)
            records.append(Record(offset, shown, int(appended), draw(payloads), value, draw(record_headers)))
            offset += 1
        offset += draw(st.sampled_from([0, 0, 5]))
        codec = draw(st.integers(0, 4))
        batches.append(
            StoredBatch(
                first, tuple(records), max(offset - 1, first), codec, codec == SNAPPY and draw(coin), appended,
                transactional, producer_id, None, stamp, stamp + 100,
            )
        )  # fmt: skip
        offset = batches[-1].last_offset + 1
    return (draw(cleaned(batches)) if draw(coin) else batches), aborted


@st.composite
def cleaned(draw: st.DrawFn, batches: list[StoredBatch]) -> list[StoredBatch]:
    """What a cleaner may leave: batches go, or lose records, or are kept for their producer without any; and where a
    deletion or a marker is kept for a time, that time takes the place of the first timestamp.
    """
    horizon = draw(st.integers(0, 1 << 42))
    left = []
    for batch in batches:
        if batch.marker is None:
            if draw(st.integers(0, 3)) == 0:
                continue
            records = tuple(record for record in batch.records if draw(st.booleans()))
            codec = batch.codec if records else NONE
            batch = replace(batch, records=records, codec=codec)
        if draw(st.booleans()):
            batch = replace(batch, first_timestamp=horizon, horizon=True)
        left.append(batch)
    return left or batches


@st.composite
def transactions(draw: st.DrawFn) -> tuple[list[StoredBatch], list[tuple[int, int]]]:
    """Many small transactions of few producers, and the aborted ones."""
    batches: list[StoredBatch] = []
    aborted = []
    open_since: dict[int, int] = {}
    for offset, (producer_id, ending) in enumerate(
        draw(st.lists(st.tuples(st.integers(1, 2), st.sampled_from([None, COMMIT, ABORT])), min_size=5, max_size=30))
    ):
        if ending is not None and (first := open_since.pop(producer_id, None)) is not None:
            batches.append(marker(offset, producer_id, ending))
            if ending == ABORT:
                aborted.append((producer_id, first))
        else:
            open_since.setdefault(producer_id, offset)
            record = Record(offset, 0, 0, b"k", b"v")
            batches.append(StoredBatch(offset, (record,), offset, transactional=True, producer_id=producer_id))
    return batches, aborted


@settings(deadline=None, max_examples=150)
@given(log=transactions(), data=st.data())
def test_what_was_aborted_is_left_out_and_nothing_else_also_after_a_cleaning(
    log: tuple[list[StoredBatch], list[tuple[int, int]]], data: st.DataObject
) -> None:
    batches, aborted = log
    chunk = b"".join(map(write_batch, data.draw(cleaned(batches))))
    assert decoded(chunk, aborted=aborted) == plain.read(chunk, start=0, end=FOREVER, aborted=aborted)


@settings(deadline=None, max_examples=60)
@given(log=logs(), rows=st.sampled_from([1, 7, 50, 1000]), data=st.data(), lanes=st.booleans())
def test_the_decoder_agrees_with_its_plain_twin(
    log: tuple[list[StoredBatch], list[tuple[int, int]]], rows: int, data: st.DataObject, lanes: bool
) -> None:
    batches, aborted = log
    chunk = b"".join(map(write_batch, batches))
    chunk = chunk[: len(chunk) - data.draw(st.sampled_from([0, 0, 1, 40, 70]))]  # the last batch is cut off
    first, last = batches[0].first_offset, batches[-1].last_offset
    start = data.draw(st.integers(first, last))
    end = data.draw(st.integers(start, last + 1))
    wanted = plain.read(chunk, start=start, end=end, aborted=aborted)
    if lanes:
        with small_lanes():
            found = decoded(chunk, start=start, end=end, aborted=aborted, rows=rows)
    else:
        found = decoded(chunk, start=start, end=end, aborted=aborted, rows=rows)
    assert found == wanted


@settings(deadline=None, max_examples=60)
@given(log=logs(), data=st.data())
def test_malformed_records_are_reported_and_never_misread(
    log: tuple[list[StoredBatch], list[tuple[int, int]]], data: st.DataObject
) -> None:
    """Records that lie under a right checksum: their writer is at fault, and nothing is made up from them."""
    batch = data.draw(st.sampled_from([batch for batch in log[0] if batch.marker is None] or [marker(0, 1, ABORT)]))
    stored = bytearray(plain.compress(b"".join(plain.write_record(batch, each) for each in batch.records), batch.codec))
    for _ in range(data.draw(st.integers(1, 3))):
        if stored:
            stored[data.draw(st.integers(0, len(stored) - 1))] = data.draw(st.integers(0, 255))
    count = len(batch.records) + data.draw(st.sampled_from([0, 0, 0, 1, -1, 1 << 20]))
    if batch.marker is not None or count <= 0:
        return
    chunk = plain.frame(batch, bytes(stored), count=count)
    try:
        wanted = plain.read(chunk, start=-FOREVER, end=FOREVER)
    except Exception:  # noqa: BLE001 - each codec has errors of its own, and all mean the same here
        wanted = None
    try:
        with small_lanes():
            found = decoded(chunk, start=-FOREVER)
    except CorruptBatch:
        return
    except (UnicodeDecodeError, pa.ArrowInvalid):  # a header's name, read by the test
        return
    assert found == wanted


@pytest.mark.parametrize("kind", ["fixed", "text", "bytes", "integers", "tiny", "some large"])
def test_large_batches_are_walked_in_lanes_and_rightly(kind: str) -> None:
    rnd = random.Random(kind)
    make: dict[str, Callable[[], bytes]] = {
        "fixed": lambda: b"v" * 100,
        "text": lambda: bytes(rnd.choices(b'abcdefgh {}:,"0123', k=rnd.randrange(40, 150))),
        "bytes": lambda: rnd.randbytes(rnd.randrange(40, 150)),
        "integers": lambda: b"".join(rnd.randrange(1000).to_bytes(8, "big") for _ in range(rnd.randrange(5, 20))),
        "tiny": lambda: b"x" * rnd.randrange(10),
        "some large": lambda: b"y" * (20_000 if rnd.random() < 0.001 else 90),
    }
    records = tuple(Record(offset, offset // 30, 0, b"k", make[kind]()) for offset in range(12_000))
    batches = [StoredBatch(at, records[at : at + 4000], at + 3999) for at in (0, 4000, 8000)]
    chunk = b"".join(map(write_batch, batches))
    assert decoded(chunk, rows=32_768, headers=False) == list(records)
    found = list(whole_batches(chunk))
    begins, ends = np.array([batch.begin for batch in found]), np.array([batch.end for batch in found])
    in_lanes = decode._starts_in_lanes(chunk, begins, ends, np.full(3, 4000))
    if kind != "some large":  # a record of 8 KiB and more is walked over one by one
        assert in_lanes is not None
        assert len(in_lanes) == 12_000


def starts_of_equals(chunk: bytes) -> list[int] | None:
    found = list(whole_batches(chunk))
    begins, ends, counts = (np.array([getattr(one, name) for one in found]) for name in ("begin", "end", "count"))
    starts = decode._starts_of_equals(chunk, begins, ends, counts)
    return None if starts is None else starts.tolist()


def test_records_of_one_size_are_found_at_once_and_others_never_taken_for_them() -> None:
    """Their number takes two bytes from 64 on, and three from 8192 on."""
    sizes = [(9000, 100), (64, 7), (65, 40), (1, 0)]
    batches = []
    at = 0
    for count, size in sizes:
        records = tuple(Record(offset, 0, 0, b"k", bytes(size)) for offset in range(at, at + count))
        batches.append(StoredBatch(at, records, at + count - 1))
        at += count
    chunk = b"".join(map(write_batch, batches))
    starts = starts_of_equals(chunk)
    assert starts is not None
    assert len(starts) == at
    assert decoded(chunk, rows=32_768, headers=False) == [each for batch in batches for each in batch.records]

    for first, other in ((1, 2), (100, 101), (3, 60)):  # the same bytes in all, differently shared
        changed = list(batches[0].records)
        longer, shorter = (replace(changed[first], value=bytes(110)), replace(changed[other], value=bytes(90)))
        changed[first], changed[other] = longer, shorter
        chunk = write_batch(StoredBatch(0, tuple(changed), 8999))
        assert starts_of_equals(chunk) is None
        assert decoded(chunk, rows=32_768, headers=False) == changed


def test_a_number_of_records_below_one_is_corrupt() -> None:
    for records in (b"", bytes(20)):
        chunk = plain.frame(StoredBatch(0, (), 0), records, count=-1)
        with pytest.raises(CorruptBatch):
            decoded(chunk)


@pytest.mark.parametrize("bits", [6, 13, 20, 63])
def test_numbers_of_any_length_are_read_also_where_the_bytes_end(bits: int) -> None:
    """Columns of numbers of one byte, of one or two, and of more are read in ways of their own."""
    numbers = [number for bit in range(bits + 1) for number in ((1 << bit) - 1, -(1 << bit))]
    for column in (numbers, numbers[:2], numbers[-2:], numbers[::-1]):
        written = [varint(number) for number in column]
        ends = np.cumsum([len(one) for one in written])
        begins = ends - [len(one) for one in written]
        found, after = decode._varints(np.frombuffer(b"".join(written), np.uint8), begins)
        assert found.tolist() == column
        assert after.tolist() == ends.tolist()
        with pytest.raises(IndexError):
            decode._varints(np.frombuffer(b"".join(written)[:-1], np.uint8), begins)


@pytest.mark.parametrize("later_ms", [0, 63, 64, 1 << 20, 86_400_000, 1 << 40, -(1 << 40), -1])
def test_a_marker_ends_its_transaction_also_when_a_cleaner_has_written_it_again(later_ms: int) -> None:
    """With the time until which it is kept in place of its own. The range is still named while the marker is there."""
    now_ms = 1_790_000_000_000
    fresh = build_marker(
        ControlType.ABORT, producer_id=7, producer_epoch=1, coordinator_epoch=0, timestamp_ms=now_ms, base_offset=5
    )
    header = read_header(fresh)
    again = build_from_stored(header, list(read_stored_records(fresh, header)), delete_horizon_ms=now_ms + later_ms)
    later = StoredBatch(6, (Record(6, 0, 0, b"k", b"committed later"),), 6, transactional=True, producer_id=7)
    for kept in (fresh, again):
        chunk = kept + write_batch(later)
        assert decoded(chunk, aborted=[(7, 3)]) == list(later.records)


@pytest.mark.parametrize(
    "record", [b"", b"\x80" * 30, b"\x20\0\0\0\x08\0\0", b"\x0c\0\0\0\x01\x0c" + bytes(7), b"\x12\0\0\0\x06" + bytes(6)]
)
def test_a_marker_that_does_not_say_what_it_is_is_corrupt(record: bytes) -> None:
    chunk = plain.frame(marker(5, 7, ABORT), record, count=1) + write_batch(StoredBatch(6, (), 6))
    with pytest.raises(CorruptBatch, match="the marker at offset 5"):
        decoded(chunk, aborted=[(7, 3)])


def test_a_flipped_bit_is_noticed() -> None:
    chunk = bytearray(write_batch(StoredBatch(5, (Record(5, 0, 0, None, b"value"),), 5)))
    chunk[-3] ^= 1
    with pytest.raises(CorruptBatch, match="batch at offset 5 does not have the checksum"):
        decoded(bytes(chunk))


def test_an_old_format_is_named() -> None:
    chunk = bytearray(write_batch(StoredBatch(5, (Record(5, 0, 0, None, b"value"),), 5)))
    chunk[16] = 1
    with pytest.raises(CorruptBatch, match="format 1"):
        decoded(bytes(chunk))


def test_columns_are_what_sparks_own_source_gives() -> None:
    records = (Record(0, 1_700_000_000_123, 0, None, b"v", (("a", None), ("a", b"\xff"))), Record(1, -1, 0, b"", None))
    chunk = write_batch(StoredBatch(0, records, 1, NONE))
    (batch,) = Decoder("a-topic", 7, headers=True).record_batches(chunk, whole_batches(chunk), start=0, end=9)
    first, second = batch.to_pylist()
    assert first["headers"] == [{"key": "a", "value": None}, {"key": "a", "value": b"\xff"}]
    assert (second["key"], second["value"], second["headers"]) == (b"", None, None)
    assert first["timestamp"].astimezone(UTC).isoformat() == "2023-11-14T22:13:20.123000+00:00"
    assert [str(field.type) for field in batch.schema] == [
        "binary", "binary", "string", "int32", "int64", "timestamp[us, tz=UTC]", "int32",
        "list<element: struct<key: string, value: binary>>",
    ]  # fmt: skip

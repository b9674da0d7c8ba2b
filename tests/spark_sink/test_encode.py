"""What the sink encodes, byte for byte as a plain writer would, and as the clients of others read it."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from crc32c import crc32c
from hypothesis import example, given, settings
from hypothesis import strategies as st

from spark_sink.branch import Branch, await_visible, decide
from spark_sink.client import Client
from spark_sink.columns import BadRow, read
from spark_sink.compress import CODES, compressor
from spark_sink.encode import HEADER, Encoder, RecordBatch, Rows, RowTooLarge, Target
from tests.spark_sink.plain import decompress, sized, varint
from tests.spark_sink.reading import committed

NOW_MS = 1_700_000_000_000
HEADERS = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
Row = tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]] | None, int | None]

# Lengths around every step of the variable-length integers, without hundreds of megabytes.
contents = st.none() | st.binary(max_size=20) | st.sampled_from([0, 62, 63, 64, 65, 8191, 8192]).map(bytes)
times = st.integers(-(1 << 52), 1 << 52) | st.integers(NOW_MS, NOW_MS + 100_000)
headers = st.none() | st.lists(st.tuples(st.text(max_size=5), contents), max_size=3)
rows_of_one_kind = st.lists(st.tuples(contents, contents, headers, st.none() | times), min_size=1, max_size=40)


def plain_record(row: Row, first_time: int, number: int) -> bytes:
    key, value, pairs, time = row
    body = b"\0" + varint((NOW_MS if time is None else time) - first_time) + varint(number) + sized(key) + sized(value)
    body += varint(len(pairs or ()))
    for name, content in pairs or ():
        body += sized(name.encode()) + sized(content)
    return varint(len(body)) + body


def plain_batch(rows: list[Row], producer: tuple[int, int], sequence: int) -> bytes:
    moments = [NOW_MS if row[3] is None else row[3] for row in rows]
    records = b"".join(plain_record(row, moments[0], number) for number, row in enumerate(rows))
    checked = struct.pack(">hiqqqhii", 0x10, len(rows) - 1, moments[0], max(moments), *producer, sequence, len(rows))
    checked += records
    return struct.pack(">qiibI", 0, 9 + len(checked), -1, 2, crc32c(checked)) + checked


def columns_of(rows: list[Row]) -> Rows:
    table = pa.table(
        {
            "key": pa.array([row[0] for row in rows], pa.binary()),
            "value": pa.array([row[1] for row in rows], pa.binary()),
            "headers": pa.array(
                [None if row[2] is None else [{"key": k, "value": v} for k, v in row[2]] for row in rows], HEADERS
            ),
            "timestamp": pa.array(
                [None if row[3] is None else row[3] * 1000 for row in rows], pa.timestamp("us", "UTC")
            ),
        }
    )
    found = read(table, "t", NOW_MS)
    return Rows(found.key, found.value, found.headers, found.timestamps, np.zeros(len(rows), np.uint8))


def one_target(largest_bytes: int = 1 << 30) -> list[Target]:
    return [Target("t", 0, largest_bytes)]


def values(count: int, size: int = 10) -> pa.BinaryArray:
    return pa.array([b"%0*d" % (size, number) for number in range(count)], pa.binary())


def simple(value: pa.BinaryArray, targets: list[int] | None = None) -> Rows:
    return Rows(None, value, None, None, np.array(targets or [0] * len(value), np.uint16))


def header_of(batch: RecordBatch) -> Any:
    return HEADER.unpack_from(batch.data)


@given(rows=rows_of_one_kind)
@example(rows=[(None, None, None, None)])
@example(rows=[(b"", b"", [], None)] * 200)
@settings(max_examples=200, deadline=None)
def test_rows_are_encoded_as_a_plain_writer_does(rows: list[Row]) -> None:
    (batch,) = Encoder(7, 3).encode(columns_of(rows), one_target(), NOW_MS)
    assert batch.data == plain_batch(rows, (7, 3), 0)
    assert batch.count == len(rows)


@given(
    sizes=st.lists(st.integers(0, 300), min_size=1, max_size=60),
    limit=st.integers(400, 2000),
    spread=st.integers(1, 5),
)
@settings(max_examples=200, deadline=None)
def test_batches_are_cut_by_partition_and_size_and_keep_the_order_of_each(
    sizes: list[int], limit: int, spread: int
) -> None:
    rows: list[Row] = [(b"%d" % number, bytes(size), None, None) for number, size in enumerate(sizes)]
    columns = columns_of(rows)
    of_rows = [number % spread for number in range(len(rows))]
    targets = [Target("t", number, limit) for number in range(spread)]
    encoder = Encoder(7, 3)
    given_rows = Rows(columns.key, columns.value, columns.headers, None, np.array(of_rows, np.uint16))
    batches = encoder.encode(given_rows, targets, NOW_MS)
    for target in targets:
        mine = [row for row, number in zip(rows, of_rows, strict=True) if number == target.partition]
        at = 0
        for batch in (batch for batch in batches if batch.target == target):
            assert len(batch.data) <= limit
            assert batch.data == plain_batch(mine[at : at + batch.count], (7, 3), at)
            at += batch.count
        assert at == len(mine)


def test_sequences_go_on_and_wrap_where_kafka_wraps_them() -> None:
    encoder = Encoder(7, 3)
    encoder._sequences["t", 0] = (1 << 31) - 2
    batches = [encoder.encode(simple(values(3)), one_target(), NOW_MS)[0] for _ in range(2)]
    assert [header_of(batch)[11] for batch in batches] == [(1 << 31) - 2, 1]


def test_a_column_that_is_a_slice_or_has_wide_offsets_is_read_where_it_begins() -> None:
    table = pa.table({"key": values(9).cast(pa.large_binary()), "value": values(9).cast(pa.string())}).slice(3, 4)
    found = read(table, "t", NOW_MS)
    rows = Rows(found.key, found.value, None, None, np.zeros(4, np.uint8))
    (batch,) = Encoder(1, 1).encode(rows, one_target(), NOW_MS)
    wanted: list[Row] = [(b"%010d" % number,) * 2 + (None, None) for number in range(3, 7)]
    assert batch.data == plain_batch(wanted, (1, 1), 0)


def test_a_row_too_large_is_named_before_its_chunk_is_written() -> None:
    value = pa.array([b"small", bytes(5000)], pa.binary())
    with pytest.raises(RowTooLarge, match=r"topic 't'.*5000 bytes in its column 'value'.*limit is 4000"):
        Encoder(1, 1).encode(simple(value), one_target(4000), NOW_MS)


@pytest.mark.parametrize("name", [name for name in CODES if name != "none"])
@pytest.mark.parametrize("content", [bytes(200_000), bytes(range(256)) * 3, np.random.default_rng(1).bytes(150_000)])
def test_compressed_batches_hold_what_plain_ones_do(name: str, content: bytes) -> None:
    value = pa.array([content], pa.binary())
    (plain,) = Encoder(1, 1).encode(simple(value), one_target(), NOW_MS)
    (packed,) = Encoder(1, 1, CODES[name], compressor(name)).encode(simple(value), one_target(), NOW_MS)
    codec = header_of(packed)[5] & 7
    assert codec in (CODES[name], 0)
    assert len(packed.data) <= len(plain.data)
    assert decompress(packed.data[HEADER.size :], codec) == plain.data[HEADER.size :]
    assert struct.unpack_from(">I", packed.data, 17)[0] == crc32c(packed.data[21:])


def test_what_compression_does_not_make_small_enough_is_refused() -> None:
    random = pa.array([np.random.default_rng(1).bytes(5000)], pa.binary())
    with pytest.raises(RowTooLarge, match="5000 bytes"):
        Encoder(1, 1, CODES["zstd"], compressor("zstd")).encode(simple(random), one_target(4000), NOW_MS)
    zeros = pa.array([bytes(50_000)], pa.binary())
    (batch,) = Encoder(1, 1, CODES["zstd"], compressor("zstd")).encode(simple(zeros), one_target(4000), NOW_MS)
    assert len(batch.data) < 4000


def test_a_header_without_a_key_is_refused() -> None:
    good, bad = {"key": "k", "value": b"x"}, {"key": None, "value": b"x"}
    column = pa.array([[good, good], [], None, [good, bad]], HEADERS)
    value = pa.array([b"a", b"b", b"c", b"d"], pa.binary())
    with pytest.raises(BadRow, match="the row with value 'd': its column 'headers' has a header without a key"):
        read(pa.table({"value": value, "headers": column}), "t", NOW_MS)


def test_a_row_without_a_topic_is_refused_unless_the_option_names_one() -> None:
    table = pa.table({"value": values(2), "topic": pa.array(["a", None])})
    with pytest.raises(BadRow, match=r"the row with value '.*': its column 'topic' is null"):
        read(table, None, NOW_MS)
    assert read(table, "b", NOW_MS).topics == ["b"]


@pytest.mark.parametrize("codec", CODES)
def test_other_clients_read_what_was_encoded(
    client: Client, bootstrap: str, new_topic: Callable[..., str], name: str, codec: str
) -> None:
    """Through librdkafka, which checks checksums and decompresses itself."""
    topic = new_topic()
    rows: list[Row] = [
        (
            None if n % 5 == 0 else b"k%d" % n,
            None if n % 7 == 0 else b"v" * (n * 3),
            [("a", b"b"), ("n", None)],
            NOW_MS + n,
        )
        for n in range(500)
    ]
    branch = Branch(client, name, 1, "one")
    branch.open(60_000)
    compress = None if codec == "none" else compressor(codec)
    encoder = Encoder(branch.producer_id, branch.producer_epoch, CODES[codec], compress)
    branch.send(encoder.encode(columns_of(rows), [Target(topic, 0, 50_000)], NOW_MS))
    sealed = [branch.seal()]
    decide(client, name, 1, sealed)
    await_visible(client, name, sealed)
    messages = committed(bootstrap, topic)
    assert [(m.key(), m.value(), m.headers(), m.timestamp()[1]) for m in messages] == rows

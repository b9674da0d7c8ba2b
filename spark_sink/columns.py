"""What Spark hands to the sink: is its schema one that can be written, and its Arrow batches as columns to encode.

The columns are those of Spark's own Kafka sink: `value` (required), `key`, `headers`, `topic`, `partition`; and
`timestamp`, which Spark's sink ignores and ours keeps. Other columns are ignored, as there.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    StringType,
    StructType,
    TimestampType,
)

from spark_sink.encode import Longs, header_bytes
from spark_sink.errors import OncelogError, SchemaError

BYTES = (BinaryType, StringType)
TYPES: dict[str, tuple[type[DataType], ...]] = {
    "key": BYTES,
    "value": BYTES,
    "headers": (ArrayType,),
    "topic": (StringType,),
    "partition": (IntegerType,),
    "timestamp": (TimestampType,),
}
WANTED = {
    "key": "STRING or BINARY",
    "value": "STRING or BINARY",
    "headers": "ARRAY<STRUCT<key: STRING, value: BINARY>>",
    "topic": "STRING",
    "partition": "INT",
    "timestamp": "TIMESTAMP (CAST(timestamp AS TIMESTAMP) takes it for the session's time zone)",
}
MICROSECONDS = pa.timestamp("us")
SHOWN_BYTES = 40


class BadRow(OncelogError, ValueError):
    """One row can't be written: the message names the column, and the row by its key and value."""


def check_schema(schema: StructType, topic: str | None) -> None:
    """Raise unless rows of this schema can be written; `topic` is what the option says."""
    for name in schema.names:
        if name not in TYPES and name.lower() in TYPES:
            raise SchemaError(
                f"the column {name!r} would be left out: names are in small letters, so rename it to {name.lower()!r}"
            )
    if "value" not in schema.names:
        raise SchemaError(f"the column 'value' is missing; there are {', '.join(map(repr, schema.names)) or 'none'}")
    if topic is None and "topic" not in schema.names:
        raise SchemaError("no topic: set the option 'topic', or have a column 'topic'")
    for field in schema.fields:
        wanted = TYPES.get(field.name)
        if wanted is None:
            continue
        if schema.names.count(field.name) > 1:
            raise SchemaError(f"there is more than one column {field.name!r}")
        fits = _are_headers(field.dataType) if field.name == "headers" else isinstance(field.dataType, wanted)
        if not fits:
            raise SchemaError(
                f"the column {field.name!r} is of type {field.dataType.simpleString().upper()}, and must be"
                f" {WANTED[field.name]}"
            )


def _are_headers(found: DataType) -> bool:
    pair = found.elementType if isinstance(found, ArrayType) else None
    return (
        isinstance(pair, StructType)
        and pair.names == ["key", "value"]
        and isinstance(pair["key"].dataType, StringType)
        and isinstance(pair["value"].dataType, BYTES)
    )


@dataclass(frozen=True, slots=True)
class Columns:
    """A chunk of rows, ready to be placed and encoded."""

    key: pa.BinaryArray | None
    value: pa.BinaryArray
    headers: pa.BinaryArray | None
    timestamps: Longs | None
    partition: pa.Int32Array | None
    topic_codes: npt.NDArray[np.int32] | None  # where in `topics` each row's is; None: there is one for all
    topics: list[str]
    size_bytes: int


def read(chunk: pa.Table, topic: str | None, now_ms: int) -> Columns:
    """The columns of a chunk of less than 2 GB."""

    def column(name: str) -> pa.Array | None:
        return _whole(chunk.column(name)) if name in chunk.column_names else None

    value = _bytes(column("value"))
    key = None if (given := column("key")) is None else _bytes(given)
    timestamp = column("timestamp")
    try:
        codes, topics = _topics(column("topic"), topic)
        headers = _headers(column("headers"))
    except _Bad as bad:
        raise BadRow(f"{described(key, value, bad.row)}: {bad}") from None
    return Columns(
        key,
        value,
        headers,
        None if timestamp is None else _milliseconds(timestamp, now_ms),
        column("partition"),
        codes,
        topics,
        chunk.nbytes,
    )


def described(key: pa.BinaryArray | None, value: pa.BinaryArray, row: int) -> str:
    """What tells a row from others, for a message."""
    named = {"key": key, "value": value}
    shown = [f"{name} {_shown(column[row].as_py())}" for name, column in named.items() if column is not None]
    return f"the row with {' and '.join(shown)}"


def _shown(content: bytes | None) -> str:
    if content is None:
        return "NULL"
    text = repr(content[:SHOWN_BYTES].decode(errors="backslashreplace"))
    return text + "…" if len(content) > SHOWN_BYTES else text


class _Bad(Exception):
    def __init__(self, row: int, problem: str) -> None:
        super().__init__(problem)
        self.row = row


def _first(flags: pa.BooleanArray) -> int:
    return int(np.flatnonzero(flags.to_numpy(zero_copy_only=False))[0])


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _bytes(column: pa.Array) -> pa.BinaryArray:
    return column.cast(pa.binary())


def _milliseconds(column: pa.Array, now_ms: int) -> Longs:
    found: Longs = column.cast(MICROSECONDS).cast(pa.int64()).fill_null(now_ms * 1000).to_numpy()
    return found // 1000


def _topics(column: pa.Array | None, topic: str | None) -> tuple[npt.NDArray[np.int32] | None, list[str]]:
    if topic is not None:
        return None, [topic]  # the option goes before the column, as in Spark's own sink
    assert column is not None, "the schema was checked"
    if column.null_count:
        problem = "its column 'topic' is null, and every row needs a topic unless the option 'topic' is set"
        raise _Bad(_first(column.is_null()), problem)
    coded = column.cast(pa.string()).dictionary_encode()
    return coded.indices.to_numpy(), coded.dictionary.to_pylist()


def _headers(column: pa.Array | None) -> pa.BinaryArray | None:
    if column is None or column.null_count == len(column):
        return None
    counts = column.value_lengths().fill_null(0).to_numpy().astype(np.int64)
    if not counts.any():
        return None
    pairs = column.flatten()
    keys = pairs.field("key")
    if pairs.null_count or keys.null_count:
        bad = _first(pc.or_(pairs.is_null(), keys.is_null()))
        row = int(np.searchsorted(np.cumsum(counts), bad, side="right"))
        raise _Bad(row, "its column 'headers' has a header without a key, which can't be written")
    return header_bytes(_bytes(keys), _bytes(pc.struct_field(pairs, "value")), counts)

"""What can't be written is refused before any row is read, and the error names the option or the column."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructType,
    TimestampType,
)

from spark_sink import OncelogDataSource, sink
from spark_sink.errors import OncelogError
from spark_sink.sink_options import TRANSACTION_TIMEOUT_MS, read_sink_options
from tests.clients.topics import Topics

HEADERS = ArrayType(StructType().add("key", StringType()).add("value", BinaryType()))
VALUE = StructType().add("value", StringType())
NOWHERE = {"kafka.bootstrap.servers": "localhost:1", "topic": "t"}


@pytest.fixture(autouse=True)
def disconnect() -> Iterator[None]:
    """Spark's processes keep their connections; this one ends them."""
    yield
    for connected in sink._connected.values():
        connected.client.close()
    sink._connected.clear()


@pytest.mark.parametrize(
    ("message", "schema"),
    [
        (
            r"the column 'value' is missing; there are 'valu', 'key'",
            StructType().add("valu", "string").add("key", "integer"),
        ),
        (r"the column 'value' is missing; there are none", StructType()),
        (r"'value' is of type INT, and must be STRING or BINARY", StructType().add("value", IntegerType())),
        (
            r"'key' is of type BIGINT, and must be STRING or BINARY",
            StructType().add("value", StringType()).add("key", LongType()),
        ),
        (
            r"'headers' is of type ARRAY<STRING>, and must be ARRAY<STRUCT<key",
            StructType().add("value", StringType()).add("headers", ArrayType(StringType())),
        ),
        (r"'headers' is of type STRING", StructType().add("value", StringType()).add("headers", StringType())),
        (r"'partition' is of type BIGINT", StructType().add("value", StringType()).add("partition", LongType())),
        (r"'topic' is of type BINARY", StructType().add("value", StringType()).add("topic", BinaryType())),
        (r"'timestamp' is of type STRING", StructType().add("value", StringType()).add("timestamp", StringType())),
        (
            r"column 'Key' would be left out: .* rename it to 'key'",
            StructType().add("value", "string").add("Key", "string"),
        ),
        (r"column 'VALUE' would be left out: .* rename it to 'value'", StructType().add("VALUE", "string")),
        (
            r"'timestamp' is of type TIMESTAMP_NTZ, and must be TIMESTAMP \(CAST\(timestamp AS TIMESTAMP\)",
            StructType().add("value", "string").add("timestamp", "timestamp_ntz"),
        ),
        (r"more than one column 'value'", StructType().add("value", StringType()).add("value", StringType())),
    ],
)
@pytest.mark.parametrize("streaming", [False, True], ids=["batch", "stream"])
def test_a_column_that_can_not_be_written_is_named(message: str, schema: StructType, streaming: bool) -> None:
    source = OncelogDataSource(NOWHERE)
    with pytest.raises(OncelogError, match=message):
        source.streamWriter(schema, False) if streaming else source.writer(schema, False)


@pytest.mark.parametrize(
    ("message", "options"),
    [
        (r"'kafka.bootstrap.servers': must name the brokers", {"kafka.bootstrap.servers": ""}),
        (
            r"brokers, .*; 'bootstrap.servers' is given, did you mean 'kafka.bootstrap.servers'\?",
            {"kafka.bootstrap.servers": "", "bootstrap.servers": "b:1"},
        ),
        (r"'path': not supported: a topic is named by an option: \.option\('topic'", {"path": "other"}),
        (r"'topci': there is no such option; did you mean 'topic'", {"topci": "t"}),
        (r"'topic': is empty", {"topic": " "}),
        (r"'kafka.acks': must be all", {"kafka.acks": "1"}),
        (r"'kafka.enable.idempotence': must be true", {"kafka.enable.idempotence": "false"}),
        (r"'kafka.transactional.id': not supported", {"kafka.transactional.id": "x"}),
        (r"'kafka.value.serializer': not supported", {"kafka.value.serializer": "x"}),
        (r"'kafka.partitioner.class': not supported", {"kafka.partitioner.class": "x"}),
        (r"'kafka.partitioner.ignore.keys': not supported", {"kafka.partitioner.ignore.keys": "true"}),
        (r"'kafka.compression.gzip.level': must be at most 9", {"kafka.compression.gzip.level": "10"}),
        (r"'kafka.compression.type': must be none or gzip", {"kafka.compression.type": "lzma"}),
        (r"'kafka.max.request.size': 'big' is not a whole number", {"kafka.max.request.size": "big"}),
        (r"'kafka.transaction.timeout.ms': must be at least 1", {"kafka.transaction.timeout.ms": "0"}),
    ],
)
@pytest.mark.parametrize("streaming", [False, True], ids=["batch", "stream"])
def test_an_option_that_can_not_be_honoured_is_named(message: str, options: dict[str, str], streaming: bool) -> None:
    with pytest.raises(OncelogError, match=message):
        read_sink_options(NOWHERE | options, streaming=streaming)


@pytest.mark.parametrize(
    ("message", "options", "streaming"),
    [
        (r"'root': is for streams", {"root": "r"}, False),
        (r"'txnVersion': must be set together with 'txnAppId'", {"txnAppId": "a"}, False),
        (r"'txnAppId': must be set together with 'txnVersion'", {"txnVersion": "1"}, False),
        (r"'txnVersion': must be at most", {"txnAppId": "a", "txnVersion": str(2**63)}, False),
        (r"'txnVersion': must be at least 0", {"txnAppId": "a", "txnVersion": "-1"}, False),
        (r"'txnAppId': is for batch writes", {"txnAppId": "a", "txnVersion": "1"}, True),
        (r"'root': must not be empty or hold '::'", {"root": "a::1/b"}, True),
    ],
)
def test_what_names_the_write_is_asked_where_it_means_something(
    message: str, options: dict[str, str], streaming: bool
) -> None:
    with pytest.raises(OncelogError, match=message):
        read_sink_options(NOWHERE | options, streaming=streaming)


def test_without_any_option_the_table_is_named_whose_options_spark_keeps_to_itself() -> None:
    for refused in (
        lambda: OncelogDataSource({}).writer(VALUE, overwrite=False),
        lambda: OncelogDataSource({}).schema(),
    ):
        with pytest.raises(OncelogError, match=r"Spark hands none of a table's .* INSERT INTO … WITH"):
            refused()


def test_a_topic_is_not_replaced() -> None:
    with pytest.raises(OncelogError, match=r"'mode': must be append"):
        OncelogDataSource(NOWHERE).writer(VALUE, overwrite=True)


def test_a_row_needs_a_topic() -> None:
    source = OncelogDataSource({"kafka.bootstrap.servers": "localhost:1"})
    with pytest.raises(OncelogError, match="set the option 'topic', or have a column 'topic'"):
        source.writer(StructType().add("value", StringType()), False)


def test_a_missing_topic_is_noticed_before_any_row_is_read(bootstrap: str, topics: Topics) -> None:
    missing = topics.name()
    source = OncelogDataSource({"kafka.bootstrap.servers": bootstrap, "topic": missing})
    with pytest.raises(OncelogError, match=f"there is no topic '{missing}'"):
        source.writer(StructType().add("value", StringType()), False)
    assert missing not in topics.admin.list_topics(timeout=20).topics


def test_options_are_read_in_any_case_and_those_of_the_source_and_of_spark_are_passed_over() -> None:
    options = read_sink_options(
        {
            "KAFKA.BOOTSTRAP.SERVERS": "a:1,b:2",
            "kafka.Compression.Type": "zstd",
            "kafka.compression.zstd.level": "7",
            "kafka.delivery.timeout.ms": "5000",
            "subscribe": "in",
            "checkpointLocation": "/somewhere",
            "kafka.linger.ms": "5",
            "kafka.metadata.max.idle.ms": "5",
            "kafka.security.protocol": "PLAINTEXT",
        },
        streaming=True,
    )
    assert options.client.bootstrap == (("a", 1), ("b", 2))
    assert options.client.patience_seconds == 5
    assert (options.codec, options.level) == ("zstd", 7)
    assert options.transaction_timeout_ms == TRANSACTION_TIMEOUT_MS
    assert options.root is None and options.topic is None


def test_all_types_that_can_be_written_are_taken(bootstrap: str, topics: Topics) -> None:
    schema = StructType()
    for name, kind in {
        "key": BinaryType(), "value": BinaryType(), "headers": HEADERS, "topic": StringType(),
        "partition": IntegerType(), "timestamp": TimestampType(), "more": LongType(),
    }.items():  # fmt: skip
        schema.add(name, kind)
    OncelogDataSource({"kafka.bootstrap.servers": bootstrap, "topic": topics.create()}).writer(schema, False)

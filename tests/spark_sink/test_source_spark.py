"""The source in a real Spark: what only Spark's own ways of calling it can show."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamReader

from tests.clients.topics import Topics
from tests.spark_sink.producing import numbers, produce, producer

pytestmark = pytest.mark.timeout(300)  # whichever comes first starts Spark
PATIENCE_SECONDS = 60
ONE_BATCH_A_RUN = pyspark.__version__ < "4.2"


def read(spark: SparkSession, bootstrap: str, topic: str, **options: str) -> DataFrame:
    reader = spark.read.format("oncelog").option("kafka.bootstrap.servers", bootstrap)
    return reader.option("subscribe", topic).options(**options).load()


def stream(spark: SparkSession, bootstrap: str, topic: str, **options: str) -> DataStreamReader:
    reader = spark.readStream.format("oncelog").option("kafka.bootstrap.servers", bootstrap)
    return reader.option("subscribe", topic).options(**options)


class Collected:
    """What each micro-batch brought, however often it was tried."""

    def __init__(self, *, fail_in: int | None = None) -> None:
        self.batches: dict[int, list[bytes]] = {}
        self._fail_in = fail_in

    def __call__(self, rows: DataFrame, number: int) -> None:
        self.batches[number] = sorted((row.value for row in rows.select("value").collect()), key=int)
        if number == self._fail_in:
            raise RuntimeError("planned")

    @property
    def values(self) -> list[bytes]:
        return [value for number in sorted(self.batches) for value in self.batches[number]]


def run(reader: DataStreamReader, sink: Collected, checkpoint: Path, **trigger: Any) -> StreamingQuery:
    writer = reader.load().writeStream.foreachBatch(sink).option("checkpointLocation", str(checkpoint))
    return writer.trigger(**(trigger or {"availableNow": True})).start()


def read_all(reader: DataStreamReader, sink: Collected, checkpoint: Path) -> StreamingQuery:
    """What is there now. For sources in Python, PySpark 4.0 and 4.1 know no availableNow: it is one batch, as large as
    the source makes it."""
    while True:
        before = len(sink.batches)
        query = run(reader, sink, checkpoint)
        assert query.awaitTermination(PATIENCE_SECONDS), query.status
        if not ONE_BATCH_A_RUN or len(sink.batches) == before:
            return query


def fail(reader: DataStreamReader, sink: Collected, checkpoint: Path) -> None:
    with pytest.raises(StreamingQueryException, match="planned"):
        while True:
            run(reader, sink, checkpoint).awaitTermination(PATIENCE_SECONDS)


def test_a_batch_has_the_columns_of_sparks_own_source(
    spark: SparkSession, bootstrap: str, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(2)
    client = producer(bootstrap)
    client.produce(topic, b"v", b"k", partition=1, timestamp=1_700_000_000_123, headers={"h": b"x"})
    client.produce(topic, None, None, partition=0, timestamp=1_700_000_000_456)
    assert client.flush(20) == 0
    rows = read(spark, bootstrap, topic, includeHeaders="true").selectExpr(
        "key", "value", "topic", "partition", "offset", "unix_millis(timestamp) ts", "timestampType", "headers"
    )
    assert [tuple(row) for row in rows.orderBy("partition").collect()] == [
        (None, None, topic, 0, 0, 1_700_000_000_456, 0, None),
        (b"k", b"v", topic, 1, 0, 1_700_000_000_123, 0, [("h", b"x")]),
    ]
    assert read(spark, bootstrap, topic).dtypes == [
        ("key", "binary"), ("value", "binary"), ("topic", "string"), ("partition", "int"), ("offset", "bigint"),
        ("timestamp", "timestamp"), ("timestampType", "int"),
    ]  # fmt: skip


def test_tasks_in_two_workers_read_every_row_once(
    spark: SparkSession, bootstrap: str, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(3)
    for partition in range(3):
        first = partition * 20_000
        produce(bootstrap, topic, numbers(first, first + 20_000), partition=partition, compression_type="zstd")
    rows = read(spark, bootstrap, topic, minPartitions="8").selectExpr("*", "spark_partition_id() AS task")
    total = rows.selectExpr(
        "count(*)", "count(distinct value)", "sum(cast(cast(value as string) as int))", "count(distinct task)"
    )
    assert tuple(total.first() or ()) == (60_000, 60_000, 60_000 * 59_999 // 2, 9)
    assert len(rows.limit(3).collect()) == 3
    assert read(spark, bootstrap, new_topic()).count() == 0


def test_a_view_in_sql(spark: SparkSession, bootstrap: str, new_topic: Callable[..., str]) -> None:
    topic = new_topic()
    produce(bootstrap, topic, numbers(0, 5))
    spark.sql(
        "CREATE OR REPLACE TEMPORARY VIEW events USING oncelog OPTIONS "
        f"(`kafka.bootstrap.servers` '{bootstrap}', subscribe '{topic}')"
    )
    rows = spark.sql("SELECT CAST(value AS STRING) AS text FROM events WHERE offset >= 3 ORDER BY offset").collect()
    assert [row.text for row in rows] == ["3", "4"]
    with pytest.raises(Exception, match="CREATE TEMPORARY VIEW"):
        spark.sql(
            f"CREATE TABLE t USING oncelog OPTIONS (`kafka.bootstrap.servers` '{bootstrap}', subscribe '{topic}')"
        )


def test_a_wrong_option_and_a_missing_topic_are_named(
    spark: SparkSession, bootstrap: str, topics: Topics, tmp_path: Path
) -> None:
    with pytest.raises(Exception, match="option 'startingoffset': there is no such option; did you mean"):
        read(spark, bootstrap, "t", startingOffset="earliest")
    missing = topics.name()
    with pytest.raises(Exception, match=f"option 'subscribe': there is no topic '{missing}'"):
        read(spark, bootstrap, missing).count()
    reader = spark.read.format("oncelog").option("kafka.bootstrap.servers", bootstrap).option("subscribe", missing)
    with pytest.raises(Exception, match="the columns can't be chosen: they are key, value, topic"):
        reader.schema("value string").load().count()
    query = run(stream(spark, bootstrap, missing), Collected(), tmp_path / "missing")
    with pytest.raises(StreamingQueryException, match=f"option 'subscribe': there is no topic '{missing}'"):
        query.awaitTermination(PATIENCE_SECONDS)


def test_a_query_goes_on_where_it_stopped_in_batches_of_the_size_asked(
    spark: SparkSession, bootstrap: str, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic = new_topic(2)
    produce(bootstrap, topic, numbers(0, 100))
    produce(bootstrap, topic, numbers(100, 200), partition=1)
    reader = stream(spark, bootstrap, topic, startingOffsets="earliest", maxOffsetsPerTrigger="80")
    first = Collected()
    read_all(reader, first, tmp_path / "cp")
    assert [len(batch) for batch in first.batches.values()] == [80, 80, 40]
    produce(bootstrap, topic, numbers(200, 230))
    second = Collected()
    query = read_all(reader, second, tmp_path / "cp")
    assert first.values != second.values
    assert sorted(first.values + second.values, key=int) == numbers(0, 230)
    if ONE_BATCH_A_RUN:
        return  # nor is the latest offset shown
    progress = [json.loads(each.json) for each in query.recentProgress]
    assert progress[-1]["sources"][0]["latestOffset"] == {"@offsetsBehindLatest": 0, topic: {"0": 130, "1": 100}}


def test_a_query_killed_in_its_first_batch_reads_it_again_from_where_it_was(
    spark: SparkSession, bootstrap: str, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    """The default start is the latest offset, and Spark does not log it. The batch failed after its end was logged;
    what arrived meanwhile must be in no other batch, and nothing may be missing."""
    topic = new_topic()
    produce(bootstrap, topic, numbers(0, 3))
    reader = stream(spark, bootstrap, topic, maxOffsetsPerTrigger="1000")
    failing = Collected(fail_in=0)
    fail(reader, failing, tmp_path / "cp")
    assert failing.batches == {0: []}
    produce(bootstrap, topic, numbers(3, 10))
    again = Collected()
    read_all(reader, again, tmp_path / "cp")
    assert again.batches == {0: [], 1: numbers(3, 10)}


def test_a_batch_that_failed_is_read_again_as_it_was(
    spark: SparkSession, bootstrap: str, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic = new_topic()
    produce(bootstrap, topic, numbers(0, 50))
    reader = stream(spark, bootstrap, topic, startingOffsets="earliest", maxOffsetsPerTrigger="20")
    failing = Collected(fail_in=1)
    fail(reader, failing, tmp_path / "cp")
    produce(bootstrap, topic, numbers(50, 60))
    again = Collected()
    read_all(reader, again, tmp_path / "cp")
    assert again.batches[1] == failing.batches[1] == numbers(20, 40)
    assert failing.batches[0] + again.values == numbers(0, 60)

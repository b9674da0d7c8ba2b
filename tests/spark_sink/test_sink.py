"""Spark writes, librdkafka reads: batch writes, streams, foreachBatch and SQL, in a real Spark on a real broker."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from spark_sink.branch import decide, last_decided
from spark_sink.client import Client
from tests.clients.topics import Topics
from tests.peers.process import ROOT
from tests.spark_sink.reading import committed, open_branches, values

PARTITIONS = 3
SECONDS_PER_QUERY = 60
pytestmark = pytest.mark.timeout(180)  # the first one also starts Spark

Write = Callable[..., None]


@pytest.fixture
def write(bootstrap: str) -> Write:
    """A batch write with these options; underscores stand for dots."""

    def append(frame: DataFrame, mode: str = "append", **options: str) -> None:
        writer = frame.write.format("oncelog").option("kafka.bootstrap.servers", bootstrap).mode(mode)
        for name, value in options.items():
            writer = writer.option(name.replace("_", "."), value)
        writer.save()

    return append


class Stream:
    """A stream from a folder of text files to a topic, a file a batch, with a checkpoint that outlives it."""

    def __init__(self, spark: SparkSession, bootstrap: str, folder: Path) -> None:
        self._spark = spark
        self._bootstrap = bootstrap
        self._input = folder / "input"
        self.checkpoint = folder / "checkpoint"
        self._input.mkdir()

    def add(self, *rows: str) -> None:
        number = len(list(self._input.iterdir()))
        file = self._input / f"{number:04}.txt"
        file.write_text("\n".join(rows) + "\n")
        os.utime(file, (number, number))  # Spark reads the oldest first

    def lines(self, files: int = 1) -> DataFrame:
        return self._spark.readStream.format("text").option("maxFilesPerTrigger", str(files)).load(str(self._input))

    def run(self, frame: DataFrame | None = None, **options: str) -> None:
        """Until everything is read."""
        writer = (self.lines() if frame is None else frame).writeStream.format("oncelog")
        writer = writer.option("kafka.bootstrap.servers", self._bootstrap)
        for name, value in options.items():
            writer = writer.option(name.replace("_", "."), value)
        self.finish(writer)

    def finish(self, writer: Any) -> None:
        query: StreamingQuery = (
            writer.option("checkpointLocation", str(self.checkpoint)).trigger(availableNow=True).start()
        )
        assert query.awaitTermination(SECONDS_PER_QUERY), "the query does not end"

    def forget_the_last_commit(self) -> None:
        """As after a crash between `commit` and Spark's own commit log: the last batch will run again."""
        commits = self.checkpoint / "commits"
        last = max(int(file.name) for file in commits.iterdir() if file.name.isdecimal())
        (commits / str(last)).unlink()
        (commits / f".{last}.crc").unlink()


@pytest.fixture
def stream(spark: SparkSession, bootstrap: str, tmp_path: Path) -> Stream:
    return Stream(spark, bootstrap, tmp_path)


def numbers(spark: SparkSession, first: int, end: int) -> DataFrame:
    return spark.range(first, end, 1, 2).selectExpr("cast(id as string) value")


def texts(*ranges: range) -> list[str]:
    return sorted(str(number) for each in ranges for number in each)


# -- batch writes


def test_every_column_arrives(spark: SparkSession, write: Write, bootstrap: str, topics: Topics) -> None:
    topic, other = topics.create(PARTITIONS), topics.create(PARTITIONS)
    rows = [
        (b"k0", "v0", [("h", b"x"), ("h", None)], topic, 2, 1_700_000_000.123),
        (None, None, None, topic, 0, 0.0),
        (b"", "", [], other, 1, 1_600_000_000.0),
    ]
    frame = spark.createDataFrame(
        rows,
        "key binary, value string, headers array<struct<key: string, value: binary>>, topic string, partition int,"
        " seconds double",
    ).selectExpr(
        "key", "value", "headers", "topic", "partition", "timestamp_micros(cast(seconds * 1e6 as long)) timestamp"
    )
    write(frame)
    found = [
        (m.key(), m.value(), m.headers(), m.topic(), m.partition(), m.timestamp()[1])
        for m in [*committed(bootstrap, topic), *committed(bootstrap, other)]
    ]
    assert sorted(found, key=str) == sorted(
        [
            (b"k0", b"v0", [("h", b"x"), ("h", None)], topic, 2, 1_700_000_000_123),
            (None, None, None, topic, 0, 0),
            (b"", b"", None, other, 1, 1_600_000_000_000),
        ],
        key=str,
    )


def test_the_option_topic_goes_before_the_column_and_other_columns_are_left_out(
    spark: SparkSession, write: Write, bootstrap: str, topics: Topics
) -> None:
    topic = topics.create()
    write(spark.sql("select 'v' value, 'nowhere' topic, 1.5 price"), topic=topic)
    assert values(bootstrap, topic) == ["v"]


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_compressed_writes_are_read_by_others(
    spark: SparkSession, write: Write, bootstrap: str, topics: Topics, codec: str
) -> None:
    topic = topics.create(PARTITIONS)
    write(numbers(spark, 0, 3000), topic=topic, kafka_compression_type=codec)
    assert values(bootstrap, topic) == texts(range(3000))


def test_a_batch_write_whose_task_fails_leaves_nothing(
    spark: SparkSession, write: Write, bootstrap: str, topics: Topics
) -> None:
    topic = topics.create(PARTITIONS)
    rows = spark.range(0, 100_000, 1, 2)
    with pytest.raises(PySparkException, match="poison"):
        write(rows.selectExpr("if(id = 99999, raise_error('poison'), cast(id as string)) value"), topic=topic)
    assert values(bootstrap, topic) == []


def test_a_write_of_the_same_version_is_made_once_for_each_topic(
    spark: SparkSession, write: Write, bootstrap: str, topics: Topics, name: str
) -> None:
    topic, other = topics.create(PARTITIONS), topics.create()
    for _ in range(2):
        write(numbers(spark, 0, 50), topic=topic, txnAppId=name, txnVersion="7")
        write(numbers(spark, 0, 5), topic=other, txnAppId=name, txnVersion="7")
    write(numbers(spark, 50, 60), topic=topic, txnAppId=name, txnVersion="3")  # older: it was made, or never will be
    write(numbers(spark, 60, 70), topic=topic, txnAppId=name, txnVersion="8")
    assert values(bootstrap, topic) == texts(range(50), range(60, 70))
    assert values(bootstrap, other) == texts(range(5))


def test_a_version_that_an_earlier_package_may_have_written_is_refused_as_documented(
    spark: SparkSession, write: Write, bootstrap: str, client: Client, topics: Topics, name: str
) -> None:
    """With what docs/spark.md says, and its two ways on."""
    told = "may have been written by an earlier version of this package"
    assert told in (ROOT / "docs" / "spark.md").read_text()
    topic, app = topics.create(), f"{name}/nightly"
    decide(client, app, 5, [])  # as that one did, for rows with a topic each
    rows = numbers(spark, 0, 3).selectExpr(f"'{topic}' topic", "value")
    with pytest.raises(PySparkException, match=f"version 5 of '{app}' {told}"):
        write(rows, txnAppId=app, txnVersion="5")
    assert values(bootstrap, topic) == []
    write(rows, txnAppId=app, txnVersion="6")
    write(rows, txnAppId=f"{name}-nightly", txnVersion="5")
    assert values(bootstrap, topic) == sorted(2 * texts(range(3)))


def test_a_large_row_goes_where_the_topic_takes_it(
    spark: SparkSession, write: Write, bootstrap: str, topics: Topics
) -> None:
    topic = topics.create(max_message_bytes="5000000")
    write(spark.sql("select repeat('x', 4900000) value"), topic=topic)
    assert [len(value) for value in values(bootstrap, topic)] == [4_900_000]


@pytest.mark.parametrize(
    ("message", "query"),
    [
        (r"'value' is missing", "select 'v' valu"),
        (r"2000000 bytes in its column 'value' .* limit is 1048588", "select repeat('x', 2000000) value"),
    ],
)
def test_what_is_wrong_is_named_and_nothing_is_written(
    spark: SparkSession, write: Write, bootstrap: str, topics: Topics, message: str, query: str
) -> None:
    """Through Spark, what a driver sees and what only a task sees; test_sink_options.py has the others."""
    topic = topics.create(PARTITIONS)
    with pytest.raises(PySparkException, match=message):
        write(spark.sql(query), topic=topic)
    assert values(bootstrap, topic) == []


# -- streams


def test_a_batch_that_spark_runs_again_writes_nothing(stream: Stream, bootstrap: str, topics: Topics) -> None:
    topic = topics.create(PARTITIONS)
    stream.add("a", "b")
    stream.add("c")
    stream.run(topic=topic)
    stream.forget_the_last_commit()
    stream.add("d")
    stream.run(topic=topic)
    assert values(bootstrap, topic) == ["a", "b", "c", "d"]


def test_a_failed_batch_is_written_once_when_it_runs_again_and_leaves_nothing_open(
    stream: Stream, client: Client, bootstrap: str, topics: Topics, name: str
) -> None:
    topic = topics.create(PARTITIONS)
    stream.add(*map(str, range(1000)))
    poisoned = stream.lines().repartition(2).selectExpr("if(value = '999', raise_error('poison'), value) value")
    with pytest.raises(PySparkException, match="poison"):
        stream.run(poisoned, topic=topic, root=name)
    assert last_decided(client, name) == -1
    stream.run(stream.lines().repartition(2), topic=topic, root=name)
    assert last_decided(client, name) == 0
    assert open_branches(client, name) == ()
    assert values(bootstrap, topic) == texts(range(1000))


def test_a_query_that_is_stopped_in_the_middle_of_a_batch_leaves_nothing_open(
    spark: SparkSession, stream: Stream, client: Client, bootstrap: str, topics: Topics
) -> None:
    """Readers of committed data would wait behind it. Spark tells the sink of its end, but not which query it was."""
    topic = topics.create(PARTITIONS)
    stream.add(*"x" * 400)
    slow = "concat(repeat(value, 1000000), java_method('java.lang.Thread', 'sleep', 50L)) value"  # ten seconds a task
    writer = stream.lines().repartition(2).selectExpr(slow).writeStream.format("oncelog").option("topic", topic)
    writer = writer.option("kafka.bootstrap.servers", bootstrap).option("checkpointLocation", str(stream.checkpoint))
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "1")
    try:
        query = writer.start()
        deadline = time.monotonic() + SECONDS_PER_QUERY
        while len(open_branches(client, query.id)) < 2:
            assert time.monotonic() < deadline, query.status
            time.sleep(0.05)
        query.stop()
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert open_branches(client, query.id) == ()
    assert values(bootstrap, topic) == []


def test_a_second_query_with_the_same_root_fails_instead_of_dropping_its_rows(
    stream: Stream, spark: SparkSession, bootstrap: str, topics: Topics, name: str, tmp_path: Path
) -> None:
    topic = topics.create()
    stream.add("a")
    stream.run(topic=topic, root=name)
    (tmp_path / "other").mkdir()
    other = Stream(spark, bootstrap, tmp_path / "other")
    other.add("lost?")
    with pytest.raises(PySparkException, match=r"batch 0 of .* was not written: it was decided by another one, query"):
        other.run(topic=topic, root=name)
    other.run(topic=topic)
    stream.forget_the_last_commit()
    stream.add("b")
    stream.run(topic=topic, root=name)
    assert values(bootstrap, topic) == ["a", "b", "lost?"]


def test_a_checkpoint_restored_from_a_backup_fails_instead_of_dropping_what_has_come_since(
    stream: Stream, spark: SparkSession, write: Write, bootstrap: str, topics: Topics, name: str, tmp_path: Path
) -> None:
    """Spark plans the batch anew then, wider than it was. Where Python can't read the checkpoint: the conf names it."""
    topic, versions = topics.create(), topics.create()
    spark.conf.set("spark.sql.streaming.checkpointLocation", str(tmp_path / "of the conf"))

    def to_topic() -> None:
        writer = stream.lines(files=2).writeStream.format("oncelog").option("topic", topic).queryName("backed-up")
        query = writer.option("kafka.bootstrap.servers", bootstrap).trigger(availableNow=True).start()
        assert query.awaitTermination(SECONDS_PER_QUERY)

    def each(frame: DataFrame, batch: int) -> None:
        write(frame, topic=versions, txnAppId=name, txnVersion=str(batch))

    def by_versions() -> None:
        stream.finish(stream.lines(files=2).writeStream.foreachBatch(each))

    try:
        for row in ("a", "b", "c"):
            stream.add(row)
            if row == "c":  # "b" and "c" are one batch now
                shutil.rmtree(tmp_path / "of the conf")
                shutil.rmtree(stream.checkpoint)
                shutil.copytree(tmp_path / "backup" / "conf", tmp_path / "of the conf")
                shutil.copytree(tmp_path / "backup" / "versions", stream.checkpoint)
                for run in (to_topic, by_versions):
                    with pytest.raises(PySparkException, match="with 1 rows, and has 2 now: the checkpoint was copied"):
                        run()
                break
            to_topic()
            by_versions()
            if row == "a":
                shutil.copytree(tmp_path / "of the conf", tmp_path / "backup" / "conf")
                shutil.copytree(stream.checkpoint, tmp_path / "backup" / "versions")
    finally:
        spark.conf.unset("spark.sql.streaming.checkpointLocation")
    assert values(bootstrap, topic) == values(bootstrap, versions) == ["a", "b"]


@pytest.mark.parametrize("versions", [False, True])
def test_a_stateful_batch_that_spark_runs_again_keeps_its_state(
    stream: Stream, spark: SparkSession, write: Write, bootstrap: str, topics: Topics, name: str, versions: bool
) -> None:
    """With more rows than Spark hands over at once: the state of a task is kept when all its rows were taken."""
    topic = topics.create(PARTITIONS)
    rows = 40_000

    def each(frame: DataFrame, batch: int) -> None:
        write(frame, topic=topic, txnAppId=name, txnVersion=str(batch))

    def run() -> None:
        ids = stream.lines().selectExpr(f"explode(sequence(1, {rows})) n", "value").selectExpr("concat(value, n) id")
        once = ids.dropDuplicates(["id"]).selectExpr("rpad(id, 1000, '.') value")
        if versions:
            stream.finish(once.writeStream.foreachBatch(each))
        else:
            stream.run(once, topic=topic)

    confs = {
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.streaming.stateStore.checkpointFormatVersion": "2",
        "spark.sql.streaming.stateStore.providerClass": (
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
        ),
    }
    before = {key: spark.conf.get(key) for key in confs}
    for key, value in confs.items():
        spark.conf.set(key, value)
    try:
        stream.add("a")
        run()
        stream.forget_the_last_commit()
        run()
        stream.add("a", "b")
        run()
    finally:
        for key, default in before.items():
            spark.conf.set(key, str(default))
    assert len(values(bootstrap, topic)) == 2 * rows


def test_a_stream_in_complete_mode_writes_the_whole_result_of_each_batch(
    stream: Stream, bootstrap: str, topics: Topics
) -> None:
    topic = topics.create()
    stream.add("a", "b", "a")
    stream.add("a")
    counts = stream.lines().groupBy("value").count().selectExpr("concat(value, count) value")
    writer = counts.writeStream.format("oncelog").outputMode("complete").option("topic", topic)
    stream.finish(writer.option("kafka.bootstrap.servers", bootstrap))
    assert values(bootstrap, topic) == ["a2", "a3", "b1", "b1"]


def test_foreach_batch_writes_each_version_once(
    stream: Stream, write: Write, bootstrap: str, topics: Topics, name: str
) -> None:
    topic, totals = topics.create(PARTITIONS), topics.create()

    def write_both(frame: DataFrame, batch: int) -> None:
        version = {"txnAppId": name, "txnVersion": str(batch)}
        write(frame, topic=topic, **version)
        write(frame.groupBy().count().selectExpr("cast(count as string) value"), topic=totals, **version)

    stream.add("a", "b")
    stream.add("c")
    stream.finish(stream.lines().writeStream.foreachBatch(write_both))
    stream.forget_the_last_commit()
    stream.add("d", "e", "f")
    stream.finish(stream.lines().writeStream.foreachBatch(write_both))
    assert values(bootstrap, topic) == ["a", "b", "c", "d", "e", "f"]
    assert values(bootstrap, totals) == ["1", "2", "3"]
    shutil.rmtree(stream.checkpoint)  # another query then, whose batches are counted anew
    with pytest.raises(PySparkException, match=f"txnAppId '{name}' to topic '{topic}' in query"):
        stream.finish(stream.lines().writeStream.foreachBatch(write_both))


# -- SQL


def test_sql_inserts_into_a_view(spark: SparkSession, bootstrap: str, topics: Topics) -> None:
    topic = topics.create()
    spark.sql(
        "CREATE OR REPLACE TEMPORARY VIEW orders (key STRING, value STRING) USING oncelog"
        f" OPTIONS ('kafka.bootstrap.servers' '{bootstrap}', topic '{topic}')"
    )
    spark.sql("INSERT INTO orders VALUES ('k', 'one'), (NULL, 'two')")
    spark.sql("INSERT INTO orders SELECT NULL, CAST(id AS STRING) FROM range(2)")
    assert values(bootstrap, topic) == ["0", "1", "one", "two"]
    with pytest.raises(PySparkException, match=f"To read it, say subscribe '{topic}'; in SQL in a view of its own"):
        spark.sql("SELECT * FROM orders").collect()
    spark.sql(
        "CREATE OR REPLACE TEMPORARY VIEW seen USING oncelog"
        f" OPTIONS ('kafka.bootstrap.servers' '{bootstrap}', subscribe '{topic}')"
    )
    assert spark.sql("SELECT CAST(value AS STRING) FROM seen").count() == 4


def test_sql_inserts_into_a_table_with_its_options_said_again(
    spark: SparkSession, bootstrap: str, topics: Topics
) -> None:
    """Spark does not hand a table's own options to a sink in Python."""
    topic = topics.create()
    spark.sql("CREATE TABLE paid (value STRING) USING oncelog")
    try:
        spark.sql(f"INSERT INTO paid WITH (`kafka.bootstrap.servers` = '{bootstrap}', topic = '{topic}') VALUES ('a')")
        for statement in (
            "INSERT INTO paid VALUES ('b')",
            f"CREATE TABLE bought USING oncelog OPTIONS (topic '{topic}') AS SELECT 'b' value",
        ):
            with pytest.raises(PySparkException, match=r"Spark hands none of a table's .* INSERT INTO … WITH"):
                spark.sql(statement)
    finally:
        spark.sql("DROP TABLE paid")
    assert values(bootstrap, topic) == ["a"]

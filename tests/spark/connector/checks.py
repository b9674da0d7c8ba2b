"""The checks themselves, one PySpark application for all of them. Run by `python -m tests.spark.connector`.

Each arranges its topics through librdkafka or through Spark, and looks at what the other one, or Spark, reads. They
hold for Spark's own connector and, but for what stands at the end, for ours: its options have the same names.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import itertools
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyspark
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import NewPartitions  # type: ignore[attr-defined]
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from tests.clients.programs import CheckFailed, main
from tests.clients.topics import Topics

FORMAT = os.environ.get("SPARK_FORMAT", "kafka")
PATIENCE_SECONDS = 60.0
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")

_numbers = itertools.count()


@functools.cache
def spark() -> SparkSession:
    session = (
        SparkSession.builder.master("local[2]")
        .appName("connector")
        .config("spark.jars", os.environ.get("SPARK_CONNECTOR_JARS", ""))
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")  # some checks make queries fail on purpose
    return session


@functools.cache
def topics_at(bootstrap: str) -> Topics:
    return Topics(bootstrap, f"spark-{os.getpid()}")


def new_topic(bootstrap: str, partitions: int = 1, **settings: str) -> str:
    return topics_at(bootstrap).create(partitions, **settings)


def read(bootstrap: str, topic: str, **options: object) -> DataFrame:
    given = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic, **options}
    return spark().read.format(FORMAT).options(**_texts(given)).load()


def read_stream(bootstrap: str, topic: str | None, **options: object) -> DataFrame:
    given = {"kafka.bootstrap.servers": bootstrap, "startingOffsets": "earliest", **options}
    if topic is not None:
        given["subscribe"] = topic
    return spark().readStream.format(FORMAT).options(**_texts(given)).load()


def write(frame: DataFrame, bootstrap: str, **options: object) -> None:
    given = {"kafka.bootstrap.servers": bootstrap, **options}
    frame.write.format(FORMAT).mode("append").options(**_texts(given)).save()


def dotted(**options: object) -> dict[str, object]:
    return {name.replace("_", "."): value for name, value in options.items()}


def _texts(options: dict[str, object]) -> dict[str, str]:
    return {name: value if isinstance(value, str) else json.dumps(value) for name, value in options.items()}


def rows(frame: DataFrame) -> list[Row]:
    return sorted(frame.collect(), key=lambda row: (row.topic, row.partition, row.offset))


def values(frame: DataFrame) -> list[str]:
    return [row.value.decode() for row in rows(frame)]


def numbers(first: int, end: int) -> DataFrame:
    """Rows with a value and, of it, a key."""
    return spark().range(first, end).selectExpr("cast(id % 10 as string) as key", "cast(id as string) as value")


def produce(bootstrap: str, topic: str, texts: list[str], partition: int = 0, timestamp_ms: int = 0) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    for text in texts:
        producer.produce(topic, text.encode(), partition=partition, timestamp=timestamp_ms)
    if producer.flush(PATIENCE_SECONDS):
        raise CheckFailed("librdkafka could not write")


def stored(bootstrap: str, topic: str, partitions: int) -> list[tuple[int, bytes | None, bytes | None]]:
    """Partition, key and value of every committed record, as librdkafka reads them."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reads-after-spark", "enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, index, 0) for index in range(partitions)])
    found: list[tuple[int, bytes | None, bytes | None]] = []
    ended, until = 0, time.monotonic() + PATIENCE_SECONDS
    while ended < partitions:
        if time.monotonic() > until:
            raise CheckFailed(f"{topic} could not be read to its end")
        message = consumer.poll(0.5)
        if message is None:
            continue
        if message.error() is not None:
            ended += 1
            continue
        partition = message.partition()
        assert partition is not None
        found.append((partition, message.key(), message.value()))
    consumer.close()
    return found


def same(got: object, wanted: object) -> None:
    if got != wanted:
        raise CheckFailed(f"got {str(got)[:600]}, not {str(wanted)[:600]}")


@contextlib.contextmanager
def checkpoint() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="oncelog-connector-") as folder:
        yield folder


def until_done(query: StreamingQuery) -> StreamingQuery:
    """Wait for a query that ends by itself; its failure is raised."""
    if not query.awaitTermination(int(PATIENCE_SECONDS)):
        query.stop()
        raise CheckFailed(f"the query did not end: {query.status}")
    return query


def wait_for(what: Callable[[], bool], told: str) -> None:
    until = time.monotonic() + PATIENCE_SECONDS
    while not what():
        if time.monotonic() > until:
            raise CheckFailed(f"waited in vain for {told}")
        time.sleep(0.05)


class Kept:
    """A stream's output, batch by batch, collected on the driver."""

    def __init__(self) -> None:
        self.batches: dict[int, list[str]] = {}
        self._lock = threading.Lock()

    def __call__(self, frame: DataFrame, batch: int) -> None:
        texts = [row.value.decode() for row in frame.select("value").collect()]
        with self._lock:
            self.batches[batch] = texts

    def all(self) -> list[str]:
        with self._lock:
            return sorted((text for batch in self.batches.values() for text in batch), key=int)

    def sizes(self) -> list[int]:
        return [len(self.batches[batch]) for batch in sorted(self.batches)]


def texts(first: int, end: int) -> list[str]:
    return [str(number) for number in range(first, end)]


# -- batch


def batch_write_and_read(bootstrap: str) -> None:
    topic = new_topic(bootstrap, 3)
    write(numbers(0, 1000), bootstrap, topic=topic)
    same(sorted(values(read(bootstrap, topic)), key=int), texts(0, 1000))
    by_librdkafka = stored(bootstrap, topic, 3)
    same(sorted(int(value or b"-1") for _, _, value in by_librdkafka), list(range(1000)))
    by_key = collections.defaultdict(set)
    for partition, key, _ in by_librdkafka:
        by_key[key].add(partition)
    same({len(partitions) for partitions in by_key.values()}, {1})
    (row, *_) = rows(read(bootstrap, topic))
    same(row.topic, topic)
    same(row.timestampType, 0)
    if abs(row.timestamp.timestamp() - time.time()) > 86_400:
        raise CheckFailed(f"written at {row.timestamp}?")


def nulls_and_empty_values(bootstrap: str) -> None:
    topic = new_topic(bootstrap)
    frame = spark().createDataFrame([("a", None), (None, "b"), ("", ""), (None, None)], "key string, value string")
    write(frame.coalesce(1), bootstrap, topic=topic)
    wanted = [(b"a", None), (None, b"b"), (b"", b""), (None, None)]
    same([(key, value) for _, key, value in stored(bootstrap, topic, 1)], wanted)
    got = [
        tuple(None if field is None else bytes(field) for field in (row.key, row.value))
        for row in rows(read(bootstrap, topic))
    ]
    same(got, wanted)


def topic_and_partition_columns(bootstrap: str) -> None:
    first, second = new_topic(bootstrap, 4), new_topic(bootstrap, 4)
    frame = numbers(0, 100).selectExpr(
        "key", "value", f"if(key < 5, '{first}', '{second}') as topic", "cast(key % 4 as int) as partition"
    )
    write(frame, bootstrap)
    for topic, keys in ((first, range(5)), (second, range(5, 10))):
        got = {(int(key or b"-1"), partition) for partition, key, _ in stored(bootstrap, topic, 4)}
        same(got, {(key, key % 4) for key in keys})


def headers(bootstrap: str) -> None:
    topic = new_topic(bootstrap)
    frame = spark().sql(
        "select 'k' as key, 'v' as value, array(named_struct('key', 'trace', 'value', cast('7' as binary)), "
        "named_struct('key', 'trace', 'value', cast(null as binary))) as headers"
    )
    write(frame, bootstrap, topic=topic, includeHeaders="true")
    (row,) = rows(read(bootstrap, topic, includeHeaders="true"))
    same([(header.key, header.value) for header in row.headers], [("trace", bytearray(b"7")), ("trace", None)])


def every_codec(bootstrap: str) -> None:
    topic = new_topic(bootstrap)
    for turn, codec in enumerate(CODECS):
        write(numbers(turn * 200, turn * 200 + 200), bootstrap, topic=topic, **dotted(kafka_compression_type=codec))
    same(sorted(values(read(bootstrap, topic)), key=int), texts(0, 200 * len(CODECS)))


def producer_settings(bootstrap: str) -> None:
    topic = new_topic(bootstrap, 2)
    kinds: tuple[dict[str, object], ...] = (
        dotted(kafka_acks="0", kafka_enable_idempotence="false"),
        dotted(kafka_acks="1", kafka_enable_idempotence="false"),
        dotted(kafka_acks="all", kafka_enable_idempotence="true", kafka_linger_ms="20", kafka_batch_size="1000"),
    )
    for turn, kind in enumerate(kinds):
        write(numbers(turn * 100, turn * 100 + 100), bootstrap, topic=topic, **kind)
    wait_for(lambda: len(values(read(bootstrap, topic))) >= 300, "what nobody acknowledged")
    same(sorted(values(read(bootstrap, topic)), key=int), texts(0, 300))


def offsets_as_json(bootstrap: str) -> None:
    topic = new_topic(bootstrap, 2)
    for partition in (0, 1):
        produce(bootstrap, topic, texts(partition * 10, partition * 10 + 10), partition)
    got = read(bootstrap, topic, startingOffsets={topic: {"0": 4, "1": -2}}, endingOffsets={topic: {"0": 6, "1": -1}})
    same(values(got), texts(4, 6) + texts(10, 20))
    same(values(read(bootstrap, topic, startingOffsets="earliest", endingOffsets="latest")), texts(0, 20))
    assigned = spark().read.format(FORMAT).option("kafka.bootstrap.servers", bootstrap)
    same(values(assigned.option("assign", json.dumps({topic: [1]})).load()), texts(10, 20))


def timestamps(bootstrap: str) -> None:
    topic = new_topic(bootstrap, 2, retention_ms="-1")
    began = 1_700_000_000_000
    for minute in range(6):
        produce(bootstrap, topic, [str(minute)], minute % 2, began + 60_000 * minute)
    third = began + 120_000
    same(sorted(values(read(bootstrap, topic, startingTimestamp=third))), texts(2, 6))
    same(sorted(values(read(bootstrap, topic, startingTimestamp=third, endingTimestamp=third + 120_000))), texts(2, 4))
    by_partition = {topic: {"0": began + 240_000, "1": began + 1}}
    same(sorted(values(read(bootstrap, topic, startingOffsetsByTimestamp=by_partition))), ["1", "3", "4", "5"])
    too_late = read(bootstrap, topic, startingTimestamp=began + 3_600_000)
    with refused("startingTimestamp beyond the end"):
        too_late.collect()
    late_is_latest = dotted(startingTimestamp=began + 3_600_000, startingOffsetsByTimestampStrategy="latest")
    same(values(read(bootstrap, topic, **late_is_latest)), [])


@contextlib.contextmanager
def refused(what: str) -> Iterator[None]:
    """Spark says no."""
    try:
        yield
    except (PySparkException, Py4JError):
        return
    raise CheckFailed(f"{what} was let through")


def min_partitions(bootstrap: str) -> None:
    topic = new_topic(bootstrap, 2)
    write(numbers(0, 1000), bootstrap, topic=topic)
    split = read(bootstrap, topic, minPartitions=9)
    if split.rdd.getNumPartitions() < 9:
        raise CheckFailed(f"{split.rdd.getNumPartitions()} partitions")
    same(sorted(values(split), key=int), texts(0, 1000))
    tasks: list[int] = []

    def look(frame: DataFrame, _: int) -> None:
        tasks.extend(len(rows) for rows in frame.rdd.glom().collect())

    with checkpoint() as folder:  # a batch read alone does not keep to maxRecordsPerPartition, on Kafka either
        stream = read_stream(bootstrap, topic, maxRecordsPerPartition=100).writeStream.foreachBatch(look)
        until_done(stream.option("checkpointLocation", folder).trigger(availableNow=True).start())
    same(sum(tasks), 1000)
    if max(tasks) > 100:
        raise CheckFailed(f"a task was given more than maxRecordsPerPartition: {tasks}")


def patterns(bootstrap: str) -> None:
    first, second = new_topic(bootstrap), new_topic(bootstrap)
    produce(bootstrap, first, ["1"])
    produce(bootstrap, second, ["2"])
    same(sorted(values(read(bootstrap, f"{first},{second}"))), ["1", "2"])
    reader = spark().read.format(FORMAT).option("kafka.bootstrap.servers", bootstrap)
    same(sorted(values(reader.option("subscribePattern", f"{first}|{second}").load())), ["1", "2"])


def open_and_aborted_transactions(bootstrap: str) -> None:
    topic = new_topic(bootstrap)
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": f"writer of {topic}", "linger.ms": 0})
    producer.init_transactions(PATIENCE_SECONDS)
    for text, commits in (("1", True), ("2", False), ("3", True)):
        producer.begin_transaction()
        producer.produce(topic, text.encode())
        producer.flush(PATIENCE_SECONDS)
        if commits:
            producer.commit_transaction(PATIENCE_SECONDS)
        else:
            producer.abort_transaction(PATIENCE_SECONDS)
    producer.begin_transaction()
    producer.produce(topic, b"4")
    producer.flush(PATIENCE_SECONDS)
    committed = dotted(kafka_isolation_level="read_committed")
    same(values(read(bootstrap, topic, **committed)), ["1", "3"])
    everything = dotted(kafka_isolation_level="read_uncommitted")
    same(values(read(bootstrap, topic, **everything)), ["1", "2", "3", "4"])
    same(len(values(read(bootstrap, topic))), 4 if FORMAT == "kafka" else 2)
    with checkpoint() as folder:
        kept = Kept()
        for _ in range(2):
            stream = read_stream(bootstrap, topic, **committed).writeStream.foreachBatch(kept)
            until_done(stream.option("checkpointLocation", folder).trigger(availableNow=True).start())
            if kept.all() == ["1", "3"]:
                producer.commit_transaction(PATIENCE_SECONDS)
    same(kept.all(), ["1", "3", "4"])


# -- streams


def stream_write_and_read(bootstrap: str) -> None:
    """A stream from topic to topic, ended and begun again from its checkpoint."""
    source, target = new_topic(bootstrap, 3), new_topic(bootstrap, 3)
    with checkpoint() as folder:
        for turn in range(3):
            write(numbers(turn * 500, turn * 500 + 500), bootstrap, topic=source)
            sink = read_stream(bootstrap, source).select("key", "value").writeStream.format(FORMAT)
            sink = sink.option("kafka.bootstrap.servers", bootstrap).option("topic", target)
            until_done(sink.option("checkpointLocation", folder).trigger(availableNow=True).start())
            same(sorted(values(read(bootstrap, target)), key=int), texts(0, turn * 500 + 500))


def stream_from_latest(bootstrap: str) -> None:
    topic = new_topic(bootstrap, 2)
    produce(bootstrap, topic, texts(0, 5))
    kept = Kept()
    with checkpoint() as folder:
        stream = read_stream(bootstrap, topic, startingOffsets="latest").writeStream.foreachBatch(kept)
        query = stream.option("checkpointLocation", folder).start()
        try:
            wait_for(lambda: 0 in kept.batches or bool(query.recentProgress), "the first batch")
            produce(bootstrap, topic, texts(5, 10), 1)
            wait_for(lambda: len(kept.all()) >= 5, "rows written after the start")
        finally:
            query.stop()
    same(kept.all(), texts(5, 10))


def stream_from_offsets_and_timestamps(bootstrap: str) -> None:
    topic = new_topic(bootstrap, retention_ms="-1")
    began = 1_700_000_000_000
    for minute in range(6):
        produce(bootstrap, topic, [str(minute)], 0, began + 60_000 * minute)
    kinds: tuple[tuple[dict[str, object], list[str]], ...] = (
        ({"startingOffsets": {topic: {"0": 4}}}, texts(4, 6)),
        ({"startingTimestamp": began + 120_000}, texts(2, 6)),
        ({"startingOffsetsByTimestamp": {topic: {"0": began + 180_000}}}, texts(3, 6)),
    )
    for options, wanted in kinds:
        kept = Kept()
        with checkpoint() as folder:
            stream = read_stream(bootstrap, topic, **options).writeStream.foreachBatch(kept)
            until_done(stream.option("checkpointLocation", folder).trigger(availableNow=True).start())
        same(kept.all(), wanted)


def rate_limits(bootstrap: str) -> None:
    """`maxOffsetsPerTrigger` is kept by every batch, `availableNow` ends at what was there when it began."""
    topic = new_topic(bootstrap, 2)
    write(numbers(0, 1000), bootstrap, topic=topic)
    kept = Kept()
    with checkpoint() as folder:
        stream = read_stream(bootstrap, topic, maxOffsetsPerTrigger=300, minPartitions=4).writeStream
        query = until_done(
            stream.foreachBatch(kept).option("checkpointLocation", folder).trigger(availableNow=True).start()
        )
    same(kept.all(), texts(0, 1000))
    if max(kept.sizes()) > 300 or len(kept.sizes()) < 4:
        raise CheckFailed(f"batches of {kept.sizes()}")
    progress = query.lastProgress
    assert progress is not None
    if FORMAT == "kafka":
        same(progress["sources"][0]["metrics"]["maxOffsetsBehindLatest"], "0")


def patient_triggers(bootstrap: str) -> None:
    """`minOffsetsPerTrigger` waits for enough, `maxTriggerDelay` not for ever."""
    topic = new_topic(bootstrap)
    produce(bootstrap, topic, texts(0, 10))
    kept = Kept()
    with checkpoint() as folder:
        stream = read_stream(bootstrap, topic, minOffsetsPerTrigger=20, maxTriggerDelay="4s").writeStream
        query = stream.foreachBatch(kept).option("checkpointLocation", folder).start()
        try:
            wait_for(lambda: len(kept.all()) >= 10, "the first batch, which does not wait")
            produce(bootstrap, topic, texts(10, 15))
            began = time.monotonic()
            wait_for(lambda: len(kept.all()) >= 15, "maxTriggerDelay to pass")
            if time.monotonic() - began < 1:
                raise CheckFailed("five rows did not wait for twenty")
        finally:
            query.stop()
    same(kept.all(), texts(0, 15))


def new_topics_and_partitions(bootstrap: str) -> None:
    """A running stream finds topics that match its pattern, and partitions that are added."""
    topics = topics_at(bootstrap)
    prefix = topics.name()
    first = Topics(bootstrap, f"{prefix}-found")
    one = first.create()
    produce(bootstrap, one, ["0"])
    kept = Kept()
    with checkpoint() as folder:
        options = {"subscribePattern": f".*{prefix}-found.*", "kafka.metadata.max.age.ms": "500"}
        query = (
            read_stream(bootstrap, None, **options)
            .writeStream.foreachBatch(kept)
            .option("checkpointLocation", folder)
            .start()
        )
        try:
            wait_for(lambda: kept.all() == ["0"], "the first topic")
            two = first.create(2)
            produce(bootstrap, two, ["1"], 0)
            produce(bootstrap, two, ["2"], 1)
            wait_for(lambda: kept.all() == texts(0, 3), "the second topic")
            for future in topics.admin.create_partitions([NewPartitions(one, 3)]).values():
                future.result(20)
            produce(bootstrap, one, ["3"], 2)
            wait_for(lambda: kept.all() == texts(0, 4), "the added partition")
        finally:
            query.stop()


def data_loss(bootstrap: str) -> None:
    """Records that are gone before they were read end a query, unless it is told to go on."""
    topic = new_topic(bootstrap)
    produce(bootstrap, topic, texts(0, 10))

    def available(folder: str, kept: Kept, fail: str) -> None:
        stream = read_stream(bootstrap, topic, failOnDataLoss=fail).writeStream.foreachBatch(kept)
        until_done(stream.option("checkpointLocation", folder).trigger(availableNow=True).start())

    with checkpoint() as folder:
        kept = Kept()
        available(folder, kept, "true")
        same(kept.all(), texts(0, 10))
        produce(bootstrap, topic, texts(10, 20))
        for future in topics_at(bootstrap).admin.delete_records([TopicPartition(topic, 0, 15)]).values():
            future.result(20)
        try:
            available(folder, kept, "true")
        except StreamingQueryException as failure:
            if "failOnDataLoss" not in str(failure):
                raise
        else:
            raise CheckFailed("five lost records went unnoticed")
        available(folder, kept, "false")
        same(kept.all(), texts(0, 10) + texts(15, 20))
    same(values(read(bootstrap, topic)), texts(15, 20))


def groups(bootstrap: str) -> None:
    topic = new_topic(bootstrap)
    produce(bootstrap, topic, texts(0, 10))
    same(values(read(bootstrap, topic, groupIdPrefix="nightly")), texts(0, 10))
    same(values(read(bootstrap, topic, **dotted(kafka_group_id="a-fixed-group"))), texts(0, 10))


def offsets_through_a_consumer_group(bootstrap: str) -> None:
    """The way Spark looked for offsets before it used Kafka's admin client: a group with a real rebalance."""
    spark().conf.set("spark.sql.streaming.kafka.useDeprecatedOffsetFetching", "true")
    try:
        rate_limits(bootstrap)
        timestamps(bootstrap)
        stream_from_offsets_and_timestamps(bootstrap)
    finally:
        spark().conf.set("spark.sql.streaming.kafka.useDeprecatedOffsetFetching", "false")


def stateful_stream(bootstrap: str) -> None:
    """Windows over the records' timestamps, with a watermark, into a topic: each once, when it is over."""
    source, target = new_topic(bootstrap, 2, retention_ms="-1"), new_topic(bootstrap)
    began = 1_700_000_040_000  # where a window begins
    counted = (
        read_stream(bootstrap, source)
        .withWatermark("timestamp", "1 minute")
        .groupBy(F.window("timestamp", "2 minutes"))
        .count()
        .selectExpr("cast(unix_millis(window.start) as string) as key", "cast(count as string) as value")
    )
    with checkpoint() as folder:
        for minutes in (range(10), range(30, 31)):
            for minute in minutes:
                produce(bootstrap, source, ["x", "y"], minute % 2, began + 60_000 * minute)
            sink = counted.writeStream.format(FORMAT).outputMode("append")
            sink = sink.option("kafka.bootstrap.servers", bootstrap).option("topic", target)
            until_done(sink.option("checkpointLocation", folder).trigger(availableNow=True).start())
    windows = [(key, value) for _, key, value in stored(bootstrap, target, 1)]
    four = [(str(began + 120_000 * window).encode(), b"4") for window in range(5)]
    if sorted(windows)[:4] != four[:4] or sorted(windows)[4:] not in ([], four[4:]):
        raise CheckFailed(f"windows {windows}")


def continuous_stream(bootstrap: str) -> None:
    """Continuous processing: one long task a partition, epochs instead of batches."""
    source, target = new_topic(bootstrap, 1), new_topic(bootstrap, 1)
    produce(bootstrap, source, texts(0, 10))
    with checkpoint() as folder:
        sink = read_stream(bootstrap, source).select("key", "value").writeStream.format(FORMAT)
        sink = sink.option("kafka.bootstrap.servers", bootstrap).option("topic", target)
        query = sink.option("checkpointLocation", folder).trigger(continuous="1 second").start()
        try:
            wait_for(lambda: len(stored(bootstrap, target, 1)) >= 10, "the first rows")
            produce(bootstrap, source, texts(10, 20))
            wait_for(lambda: len(stored(bootstrap, target, 1)) >= 20, "the rows written while it ran")
            wait_for(lambda: any(Path(folder, "commits").glob("[0-9]*")), "an epoch")
        finally:
            query.stop()
    same(sorted(values(read(bootstrap, target)), key=int), texts(0, 20))


def missing_topic(bootstrap: str) -> None:
    with refused("a topic that is not there"):
        values(read(bootstrap, topics_at(bootstrap).name(), **dotted(kafka_allow_auto_create_topics="false")))


CHECKS = {
    "batch write and read": batch_write_and_read,
    "nulls and empty values": nulls_and_empty_values,
    "topic and partition columns": topic_and_partition_columns,
    "headers": headers,
    "codecs": every_codec,
    "producer settings": producer_settings,
    "offsets as JSON, assign": offsets_as_json,
    "timestamps": timestamps,
    "minPartitions, maxRecordsPerPartition": min_partitions,
    "several topics, subscribePattern": patterns,
    "read_committed": open_and_aborted_transactions,
    "stream write and read, restarts": stream_write_and_read,
    "stream from the latest": stream_from_latest,
    "stream from offsets and timestamps": stream_from_offsets_and_timestamps,
    "maxOffsetsPerTrigger, availableNow": rate_limits,
    "minOffsetsPerTrigger, maxTriggerDelay": patient_triggers,
    "topics and partitions found while running": new_topics_and_partitions,
    "failOnDataLoss after DeleteRecords": data_loss,
    "groupIdPrefix, kafka.group.id": groups,
    "offsets through a consumer group": offsets_through_a_consumer_group,
    "stateful stream": stateful_stream,
    "continuous stream": continuous_stream,
    "a missing topic": missing_topic,
}


def told(check: Callable[[str], None]) -> Callable[[str], None]:
    """What Spark raises is a failed check, and the next one still runs."""

    @functools.wraps(check)
    def guarded(bootstrap: str) -> None:
        try:
            check(bootstrap)
        except (PySparkException, Py4JError) as failure:
            raise CheckFailed(f"{type(failure).__name__}: {str(failure)[:2000]}") from failure

    return guarded


KAFKA_ONLY = {
    "producer settings": "less than acks=all is refused",
    "offsets through a consumer group": "an older way of Spark's own source",
    "continuous stream": "Spark offers it to no Python source",
}
SINCE_4_2 = {"maxOffsetsPerTrigger, availableNow", "minOffsetsPerTrigger, maxTriggerDelay"}
"""Before, Spark asked a Python source for everything that is there."""


def chosen() -> dict[str, Callable[[str], None]]:
    left_out = set() if FORMAT == "kafka" else {*KAFKA_ONLY}
    if FORMAT != "kafka" and tuple(map(int, pyspark.__version__.split(".")[:2])) < (4, 2):
        left_out |= SINCE_4_2
    return {name: told(check) for name, check in CHECKS.items() if name not in left_out}


if __name__ == "__main__":
    sys.exit(main(chosen(), lambda: None))

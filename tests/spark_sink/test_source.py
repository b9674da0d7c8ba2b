"""The readers of the source, asked as Spark asks them, against a broker process and with records of real clients.

No Spark in here but its classes: what needs a session is in `test_source_spark.py`.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic  # type: ignore[attr-defined]
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable

from spark_sink import fetch as source_fetch
from spark_sink import source
from spark_sink.client import Client
from spark_sink.decode import Decoder
from spark_sink.errors import CorruptBatch, DataLost, OptionError
from spark_sink.fetch import NotYetReadable, _Fetcher
from spark_sink.log_offsets import assigned, edges
from spark_sink.options import Edge
from spark_sink.source import OncelogReader, OncelogStreamReader
from tests.clients.topics import Topics
from tests.peers.process import BrokerProcess
from tests.spark_sink import plain
from tests.spark_sink.producing import numbers, produce, producer
from tests.spark_sink.test_client import fetch

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
Row = dict[str, Any]
Part = tuple[str, int]


class Source:
    """A reader and its options, with what Spark does around it."""

    def __init__(self, bootstrap: str, **options: str) -> None:
        named = {name.replace("__", "."): value for name, value in options.items()}
        self.options = {"kafka.bootstrap.servers": bootstrap, "kafkaConsumer.pollTimeoutMs": "20000", **named}

    def batch(self) -> list[Row]:
        reader = OncelogReader(self.options)
        return self._rows(reader, reader.partitions())

    def stream(self) -> OncelogStreamReader:
        return OncelogStreamReader(self.options)

    def rows_between(self, start: dict[str, Any], end: dict[str, Any]) -> list[Row]:
        """What another run of the query makes of a batch: all it has is the offsets as text."""
        reader = self.stream()
        start, end = json.loads(json.dumps(start)), json.loads(json.dumps(end))
        return self._rows(reader, reader.partitions(start, end))

    @staticmethod
    def _rows(reader: OncelogReader | OncelogStreamReader, partitions: Iterable[InputPartition]) -> list[Row]:
        return [row for part in partitions for batch in reader.read(part) for row in batch.to_pylist()]


def values(rows: list[Row]) -> list[bytes]:
    return [row["value"] for row in rows]


def test_the_schema_is_what_spark_expects() -> None:
    for headers in (False, True):
        options = {"kafka.bootstrap.servers": "b:1", "subscribe": "t", "includeHeaders": str(headers)}
        expected = to_arrow_schema(source.schema(options), timezone="UTC")
        assert Decoder("t", 0, headers=headers).schema.equals(expected)


@pytest.mark.parametrize("codec", CODECS)
def test_every_codec_of_a_real_client(bootstrap: str, new_topic: Callable[..., str], codec: str) -> None:
    topic = new_topic()
    client = producer(bootstrap, compression_type=codec)
    written = []
    all_headers: list[tuple[str, str | bytes | None]]
    for number in range(3000):
        key = None if number % 3 else b"k%d" % number
        value = None if number % 7 == 0 else b"v%d " % number * (number % 11)
        all_headers = [("a", b"%d" % number), ("b", None), ("a", b"")]
        headers = all_headers[: number % 4]
        client.produce(topic, value, key, partition=0, headers=headers, timestamp=1_700_000_000_000 + number)
        written.append((key, value, headers, number))
    assert client.flush(20) == 0
    rows = Source(bootstrap, subscribe=topic, includeHeaders="true").batch()
    found = [
        (row["key"], row["value"], [(h["key"], h["value"]) for h in row["headers"] or ()], row["offset"])
        for row in rows
    ]
    assert found == written
    assert {(row["topic"], row["partition"], row["timestampType"]) for row in rows} == {(topic, 0, 0)}
    assert [int(row["timestamp"].timestamp() * 1000) for row in rows[:3]] == [1_700_000_000_000 + n for n in range(3)]


def test_the_plain_twin_reads_what_real_clients_write(
    bootstrap: str, new_topic: Callable[..., str], client: Client
) -> None:
    """Who believes the twin may believe the decoder, which is tested against it."""
    from kio.schema.fetch.v12 import FetchResponse

    topic = new_topic()
    for codec in CODECS:
        produce(bootstrap, topic, [codec.encode() * 30, None, b""], compression_type=codec)
    answer = client.ask(client.leader(topic, 0), fetch(topic, 0), FetchResponse)
    chunk = answer.responses[0].partitions[0].records or b""
    assert [record.value for record in plain.read(chunk, start=0, end=99)] == [
        value for codec in CODECS for value in (codec.encode() * 30, None, b"")
    ]
    assert {batch.codec for batch in plain.read_batches(chunk)} == {0, 1, 2, 3, 4}


def test_only_committed_records_are_read_unless_asked_otherwise(
    bootstrap: str, new_topic: Callable[..., str], name: str
) -> None:
    topic = new_topic()
    client = producer(bootstrap, transactional_id=name)
    client.init_transactions(20)
    for number, commit in enumerate((True, False, True)):
        client.begin_transaction()
        for each in range(3):
            client.produce(topic, b"%d.%d" % (number, each), partition=0)
        client.flush(20)
        (client.commit_transaction if commit else client.abort_transaction)(20)
    client.begin_transaction()
    client.produce(topic, b"open", partition=0)
    client.flush(20)
    produce(bootstrap, topic, [b"behind the open one"])

    committed = Source(bootstrap, subscribe=topic)
    assert values(committed.batch()) == [b"0.0", b"0.1", b"0.2", b"2.0", b"2.1", b"2.2"]
    everything = Source(bootstrap, subscribe=topic, kafka__isolation__level="read_uncommitted")
    assert values(everything.batch())[3:6] == [b"1.0", b"1.1", b"1.2"]
    assert values(everything.batch())[-2:] == [b"open", b"behind the open one"]
    client.commit_transaction(20)
    deadline = time.monotonic() + 20
    while values(committed.batch())[-2:] != [b"open", b"behind the open one"]:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_start_and_end_by_offset_and_by_time(bootstrap: str, new_topic: Callable[..., str]) -> None:
    topic = new_topic(2)
    client = producer(bootstrap)
    for number in range(20):
        client.produce(topic, b"%d" % number, partition=number % 2, timestamp=1_700_000_000_000 + number)
    assert client.flush(20) == 0

    def read(**options: str) -> list[bytes]:
        return sorted(values(Source(bootstrap, subscribe=topic, **options).batch()), key=int)

    def each(first: int, second: int) -> str:
        return json.dumps({topic: {"0": first, "1": second}})

    assert read() == numbers(0, 20)
    assert read(startingOffsets=each(9, -2), endingOffsets=each(-1, 1)) == [b"1", b"18"]
    assert read(startingTimestamp="1700000000004", endingTimestamp="1700000000008") == numbers(4, 8)
    by_time = each(1_700_000_000_018, 1_700_000_000_001)
    assert read(startingOffsetsByTimestamp=by_time) == [b"%d" % n for n in (*range(1, 18, 2), 18, 19)]
    assert read(endingOffsetsByTimestamp=by_time) == [b"%d" % n for n in range(0, 18, 2)]
    with pytest.raises(OptionError, match=r"startingTimestamp': .*-0 has no record from that time on.*Strategy=latest"):
        read(startingTimestamp="1700000000019")
    assert read(startingTimestamp="1800000000000", startingOffsetsByTimestampStrategy="latest") == []
    with pytest.raises(OptionError, match=r"startingOffsets': names nothing for .*-1, which is read"):
        read(startingOffsets=json.dumps({topic: {"0": 1}}))


def test_offsets_that_are_not_there(bootstrap: str, new_topic: Callable[..., str]) -> None:
    topic = new_topic()
    produce(bootstrap, topic, numbers(0, 5))
    named = json.dumps({topic: {"0": 9}})
    for option in ("startingOffsets", "endingOffsets"):
        with pytest.raises(
            DataLost, match=f"'{option}' names offset 9 of {topic}-0, which holds 0 to 5.*failOnDataLoss"
        ):
            Source(bootstrap, subscribe=topic, **{option: named}).batch()
    assert values(Source(bootstrap, subscribe=topic, endingOffsets=named, failOnDataLoss="false").batch()) == numbers(
        0, 5
    )


def test_partitions_named_or_matched(bootstrap: str, topics: Topics) -> None:
    one, two = topics.create(2), topics.create(1)
    for topic, partition in ((one, 0), (one, 1), (two, 0)):
        produce(bootstrap, topic, [f"{topic}-{partition}".encode()], partition=partition)
    assert values(Source(bootstrap, assign=json.dumps({one: [1], two: [0]})).batch()) == [
        f"{one}-1".encode(), f"{two}-0".encode()
    ]  # fmt: skip
    assert len(Source(bootstrap, subscribe=f"{one},{two}").batch()) == 3
    common = one[: one.rindex("-") + 1]
    assert len(Source(bootstrap, subscribePattern=f"{common}\\d+").batch()) == 3
    assert len(Source(bootstrap, subscribePattern=f"{common}").batch()) == 0, "a pattern matches whole names"


def test_what_is_missing_is_named_before_anything_is_read(bootstrap: str, topics: Topics) -> None:
    topic, missing = topics.create(), topics.name()
    with pytest.raises(OptionError, match=f"option 'subscribe': there is no topic '{missing}'"):
        Source(bootstrap, subscribe=f"{topic},{missing}").batch()
    with pytest.raises(OptionError, match=f"option 'assign': there is no partition {topic}-7"):
        Source(bootstrap, assign=json.dumps({topic: [0, 7]})).batch()
    stream = Source(bootstrap, subscribe=missing).stream()
    with pytest.raises(OptionError, match=f"option 'subscribe': there is no topic '{missing}'"):
        stream.latestOffset(stream.initialOffset())


def test_tasks_share_a_partition_and_read_it_once(bootstrap: str, new_topic: Callable[..., str]) -> None:
    topic = new_topic()
    produce(bootstrap, topic, numbers(0, 1000), compression_type="lz4")  # few batches: tasks begin inside of one
    reader = OncelogReader(Source(bootstrap, subscribe=topic, minPartitions="7").options)
    assert len(reader.partitions()) == 7
    assert values(Source(bootstrap, subscribe=topic, minPartitions="7").batch()) == numbers(0, 1000)
    assert values(Source(bootstrap, subscribe=topic, maxRecordsPerPartition="300").batch()) == numbers(0, 1000)


def test_the_brokers_time_is_told_apart(bootstrap: str, new_topic: Callable[..., str]) -> None:
    topic = new_topic(message_timestamp_type="LogAppendTime")
    client = producer(bootstrap)
    client.produce(topic, b"v", timestamp=1)
    assert client.flush(20) == 0
    (row,) = Source(bootstrap, subscribe=topic).batch()
    assert row["timestampType"] == 1
    assert abs(row["timestamp"].timestamp() - time.time()) < 60


def test_small_fetches_read_the_same(bootstrap: str, new_topic: Callable[..., str]) -> None:
    topic = new_topic()
    client = producer(bootstrap, batch_num_messages=10)
    for number in range(2000):
        client.produce(topic, b"%d" % number, partition=0)
    assert client.flush(20) == 0
    assert values(Source(bootstrap, subscribe=topic, kafka__fetch__max__bytes="500").batch()) == numbers(0, 2000)


# --- streams ---


def test_the_start_of_the_first_batch_is_pinned(bootstrap: str, new_topic: Callable[..., str]) -> None:
    """Spark doesn't log where the first batch starts. A query killed in it must read the same rows again, though it
    started at the latest offset and that has moved."""
    topic = new_topic()
    produce(bootstrap, topic, numbers(0, 5))
    query = Source(bootstrap, subscribe=topic)
    reader = query.stream()
    start = reader.initialOffset()
    assert json.dumps(start) == json.dumps(query.stream().initialOffset())
    end = reader.latestOffset(start)
    assert query.rows_between(start, end) == []
    produce(bootstrap, topic, numbers(5, 8))
    again = query.stream()
    assert query.rows_between(again.initialOffset(), end) == []
    then = again.latestOffset(end)
    assert values(query.rows_between(end, then)) == numbers(5, 8)

    late = Source(bootstrap, subscribe=topic, startingOffsets="earliest").stream()
    end = late.latestOffset(late.initialOffset())
    produce(bootstrap, topic, numbers(8, 10))
    assert values(query.rows_between(late.initialOffset(), end)) == numbers(0, 8)


def test_an_idle_stream_stays_where_it_is(bootstrap: str, new_topic: Callable[..., str]) -> None:
    topic = new_topic(3)
    reader = Source(bootstrap, subscribe=topic).stream()
    first = reader.latestOffset(reader.initialOffset())
    assert "@init" in first
    assert reader.latestOffset(first) is first
    assert list(reader.partitions(first, first)) == []


def test_new_partitions_and_topics_are_read_from_their_first_record(
    bootstrap: str, topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "LOOK_AROUND_SECONDS", 0)
    topic = topics.create()
    pattern = topic[: topic.rindex("-") + 1] + "\\d+"
    query = Source(bootstrap, subscribePattern=pattern)
    reader = query.stream()
    end = reader.latestOffset(reader.initialOffset())
    topics.admin.create_partitions([NewPartitions(topic, 2)])[topic].result(20)
    other = topics.create()
    produce(bootstrap, topic, [b"new partition"], partition=1)
    produce(bootstrap, other, [b"new topic"])
    then = _when(lambda: reader.latestOffset(end), lambda then: other in then and "1" in then[topic])
    assert then["@init"] == {topic: {"1": 0}, other: {"0": 0}}
    produce(bootstrap, other, [b"later"])
    assert sorted(values(query.rows_between(end, then))) == [b"new partition", b"new topic"]


def _when(ask: Callable[[], Any], enough: Callable[[Any], bool]) -> Any:
    deadline = time.monotonic() + 20
    while not enough(answer := ask()):
        assert time.monotonic() < deadline, answer
        time.sleep(0.05)
    return answer


def test_a_pattern_that_matches_nothing_yet(bootstrap: str, topics: Topics, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "LOOK_AROUND_SECONDS", 0)
    pattern = topics.name() + ".*"
    query = Source(bootstrap, subscribePattern=pattern)
    reader = query.stream()
    end = reader.latestOffset(reader.initialOffset())
    assert end == {}
    assert reader.latestOffset(end) is end


def test_a_batch_is_no_larger_than_asked(bootstrap: str, new_topic: Callable[..., str]) -> None:
    topic = new_topic(2)
    produce(bootstrap, topic, numbers(0, 100))
    produce(bootstrap, topic, numbers(100, 110), partition=1)
    query = Source(bootstrap, subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger="30")
    reader = query.stream()
    offsets = [reader.initialOffset()]
    sizes, found = [], []
    while len(offsets) < 2 or offsets[-1] is not offsets[-2]:
        offsets.append(reader.latestOffset(offsets[-1], reader.getDefaultReadLimit()))
        rows = query.rows_between(offsets[-2], offsets[-1])
        found += values(rows)
        sizes.append(len(rows))
    assert sorted(found, key=int) == numbers(0, 110)
    assert max(sizes) <= 30
    assert sizes[:3] == [29, 29, 30] or sum(sizes[:3]) > 80


def test_spark_may_ask_for_everything_in_spite_of_a_limit(bootstrap: str, new_topic: Callable[..., str]) -> None:
    topic = new_topic()
    produce(bootstrap, topic, numbers(0, 100))
    options = {"subscribe": topic, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "30"}
    reader = Source(bootstrap, **options).stream()
    assert reader.latestOffset(reader.initialOffset(), ReadAllAvailable())[topic] == {"0": 100}


def test_a_batch_waits_for_enough_records_but_not_for_ever(bootstrap: str, new_topic: Callable[..., str]) -> None:
    topic = new_topic()
    patient = Source(bootstrap, subscribe=topic, minOffsetsPerTrigger="10").stream()
    hasty = Source(bootstrap, subscribe=topic, minOffsetsPerTrigger="10", maxTriggerDelay="300ms").stream()
    first = patient.latestOffset(patient.initialOffset())
    produce(bootstrap, topic, numbers(0, 9))
    limit = patient.getDefaultReadLimit()
    assert patient.latestOffset(first, limit) is first
    _when(lambda: hasty.latestOffset(first, limit), lambda end: end[topic] == {"0": 9})
    produce(bootstrap, topic, numbers(9, 10))
    assert patient.latestOffset(first, limit)[topic] == {"0": 10}


def test_available_now_reads_what_was_there_and_ends(bootstrap: str, topics: Topics) -> None:
    topic = topics.create()
    produce(bootstrap, topic, numbers(0, 50))
    pattern = topic[: topic.rindex("-") + 1] + "\\d+"
    options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "40", "minOffsetsPerTrigger": "20"}
    reader = Source(bootstrap, subscribePattern=pattern, **options).stream()
    reader.prepareForTriggerAvailableNow()
    produce(bootstrap, topic, numbers(50, 500))
    produce(bootstrap, topics.create(), [b"another topic"])
    limit = reader.getDefaultReadLimit()
    first = reader.latestOffset(reader.initialOffset(), limit)
    assert first[topic] == {"0": 40}
    second = reader.latestOffset(first, limit)
    assert second[topic] == {"0": 50}
    assert reader.latestOffset(second, limit) is second


def test_older_sparks_ask_without_saying_from_where(bootstrap: str, new_topic: Callable[..., str]) -> None:
    """PySpark 4.0 and 4.1: `latestOffset()`. After a restart they plan an empty batch at the last offset first."""
    topic = new_topic()
    produce(bootstrap, topic, numbers(0, 100))
    query = Source(bootstrap, subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger="30")
    reader = query.stream()
    first = reader.latestOffset()
    start = reader.initialOffset()
    assert values(query.rows_between(start, first)) == numbers(0, 30)
    reader.partitions(start, first)
    second = reader.latestOffset()
    assert values(query.rows_between(first, second)) == numbers(30, 60)
    restarted = query.stream()
    restarted.partitions(second, second)
    assert restarted.latestOffset()[topic] == {"0": 90}


def test_how_far_behind_a_stream_is(bootstrap: str, new_topic: Callable[..., str]) -> None:
    topic = new_topic()
    produce(bootstrap, topic, numbers(0, 100))
    reader = Source(bootstrap, subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger="30").stream()
    reader.latestOffset(reader.initialOffset())
    assert reader.reportLatestOffset() == {"@offsetsBehindLatest": 70, topic: {"0": 100}}


def test_the_position_is_published_to_a_group(bootstrap: str, new_topic: Callable[..., str], name: str) -> None:
    topic = new_topic()
    produce(bootstrap, topic, numbers(0, 3))
    reader = Source(bootstrap, subscribe=topic, kafka__group__id=name).stream()
    end = reader.latestOffset(reader.initialOffset())
    reader.commit(end)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    asked = [ConsumerGroupTopicPartitions(name, [TopicPartition(topic, 0)])]
    (partition,) = admin.list_consumer_group_offsets(asked)[name].result(20).topic_partitions
    assert partition.offset == 3


# --- loss and faults ---


def test_a_position_in_a_topic_that_is_gone_holds_up_no_batch(
    bootstrap: str, topics: Topics, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It is kept, and so it is published with each batch. All of them were tried again for five seconds."""
    topic, gone = topics.create(), topics.name()
    produce(bootstrap, topic, numbers(0, 5))
    reader = Source(bootstrap, subscribe=f"{topic},{gone}", kafka__group__id=name, failOnDataLoss="false").stream()
    began = time.monotonic()
    reader.commit({"@ids": {}, gone: {"0": 3}, topic: {"0": 5}})
    assert time.monotonic() - began < source.PUBLISH_SECONDS
    assert not caplog.records
    asked = [ConsumerGroupTopicPartitions(name, [TopicPartition(topic, 0)])]
    found = topics.admin.list_consumer_group_offsets(asked)[name].result(20)
    assert [part.offset for part in found.topic_partitions] == [5]


def _delete_before(bootstrap: str, topic: str, offset: int) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    part = TopicPartition(topic, 0, offset)
    admin.delete_records([part])[part].result(20)


def test_deleted_records_are_an_error_or_are_passed_over(bootstrap: str, new_topic: Callable[..., str]) -> None:
    topic = new_topic()
    produce(bootstrap, topic, numbers(0, 10))
    query = Source(bootstrap, subscribe=topic, startingOffsets="earliest")
    reader = query.stream()
    start = reader.initialOffset()
    end = reader.latestOffset(start)
    _delete_before(bootstrap, topic, 4)
    with pytest.raises(
        DataLost, match=f"{topic}-0 should be read from offset 0 to 10, but begins at 4.*failOnDataLoss"
    ):
        query.rows_between(start, end)
    careless = Source(bootstrap, subscribe=topic, failOnDataLoss="false")
    assert values(careless.rows_between(start, end)) == numbers(4, 10)
    assert values(Source(bootstrap, subscribe=topic).batch()) == numbers(4, 10)


class Remade:
    """A topic of which a stream has read ten records, and which is then deleted and may be made again."""

    def __init__(self, bootstrap: str, topics: Topics) -> None:
        self._bootstrap = bootstrap
        self._admin = topics.admin
        self.topic = topics.create()
        produce(bootstrap, self.topic, numbers(0, 10))
        self.begin = self.query().stream().initialOffset()
        self.end = self.query().stream().latestOffset(self.begin)

    def query(self, *, lax: bool = False, patience_ms: int = 300, subscribe: str | None = None) -> Source:
        given = {"kafkaConsumer__pollTimeoutMs": str(patience_ms), "kafka__fetch__max__wait__ms": "50"}
        strict = str(not lax).lower()
        topic = subscribe or self.topic
        return Source(self._bootstrap, subscribe=topic, startingOffsets="earliest", failOnDataLoss=strict, **given)

    def delete(self) -> None:
        self._admin.delete_topics([self.topic])[self.topic].result(20)

    def make_again(self, records: int, partitions: int = 1) -> None:
        self.delete()
        self._admin.create_topics([NewTopic(self.topic, partitions, 1)])[self.topic].result(20)
        produce(self._bootstrap, self.topic, [b"new %d" % number for number in range(records)])

    def goes_on(self, start: dict[str, Any] | None = None) -> list[bytes]:
        """What a query that may lose data reads next, and the same after a restart in the middle of that."""
        start = self.end if start is None else start
        end = self.query(lax=True).stream().latestOffset(start)
        found = values(self.query(lax=True).rows_between(start, end))
        assert values(self.query(lax=True).rows_between(start, end)) == found
        return found


@pytest.fixture
def remade(bootstrap: str, topics: Topics, monkeypatch: pytest.MonkeyPatch) -> Remade:
    monkeypatch.setattr(source, "LOOK_AROUND_SECONDS", 0)
    return Remade(bootstrap, topics)


@pytest.mark.parametrize("lax", [False, True], ids=["strict", "lax"])
def test_a_topic_that_a_broker_does_not_tell_of_is_waited_for_and_nothing_comes_again(
    remade: Remade, monkeypatch: pytest.MonkeyPatch, lax: bool
) -> None:
    """A broker that has just started may not know it yet."""
    asked = 0

    def forgetful(*given: Any) -> set[tuple[str, int]]:
        nonlocal asked
        asked += 1
        return assigned(*given) if asked > 3 else set()

    reader = remade.query(lax=lax, patience_ms=20_000).stream()
    monkeypatch.setattr(source, "assigned", forgetful)
    assert reader.latestOffset(remade.end) is remade.end
    assert asked == 4


def test_available_now_reads_a_topic_too_that_was_not_told_of_when_it_began(
    remade: Remade, bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    produce(bootstrap, remade.topic, [b"more"])
    query = remade.query()
    reader = query.stream()
    monkeypatch.setattr(source, "assigned", lambda *_: set())
    reader.prepareForTriggerAvailableNow()
    monkeypatch.setattr(source, "assigned", assigned)
    end = reader.latestOffset(remade.end)
    assert values(query.rows_between(remade.end, end)) == [b"more"]
    produce(bootstrap, remade.topic, [b"too late"])
    assert reader.latestOffset(end) is end


def test_a_topic_that_stays_away_is_an_error_or_its_position_waits_for_it(
    remade: Remade, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(source, "assigned", lambda *_: set())
    with pytest.raises(DataLost, match=f"{remade.topic}-0 was read up to offset 10 and is gone"):
        remade.query().stream().latestOffset(remade.end)
    reader = remade.query(lax=True).stream()
    for _ in range(2):  # the second time nobody waits
        assert reader.latestOffset(remade.end) is remade.end
    assert len([record for record in caplog.records if "is gone" in record.getMessage()]) == 1
    monkeypatch.setattr(source, "assigned", assigned)
    assert reader.latestOffset(remade.end) is remade.end


def test_a_topic_that_is_not_subscribed_to_any_more_is_an_error_or_is_passed_over_at_once(
    remade: Remade, topics: Topics, caplog: pytest.LogCaptureFixture
) -> None:
    other = topics.create()
    with pytest.raises(DataLost, match=f"{remade.topic}-0 was read up to offset 10, and is not subscribed to any more"):
        remade.query(subscribe=other, patience_ms=600_000).stream().latestOffset(remade.end)
    reader = remade.query(subscribe=other, lax=True, patience_ms=600_000).stream()
    end = reader.latestOffset(remade.end)
    assert (end[remade.topic], end[other]) == ({"0": 10}, {"0": 0})
    assert reader.latestOffset(end) is end
    assert len([record for record in caplog.records if "not subscribed" in record.getMessage()]) == 1


@pytest.mark.parametrize("records", [15, 10, 3], ids=["longer", "as long", "shorter"])
def test_a_topic_that_was_made_anew_is_an_error_or_is_read_from_its_beginning(remade: Remade, records: int) -> None:
    remade.make_again(records)
    with pytest.raises(DataLost, match=f"{remade.topic}-0 was read up to offset 10, and was made anew.*failOnDataLoss"):
        remade.query().stream().latestOffset(remade.end)
    assert remade.goes_on() == [b"new %d" % number for number in range(records)]


def test_a_topic_that_was_made_anew_with_more_or_fewer_partitions_is_read_whole(remade: Remade) -> None:
    remade.make_again(3, partitions=2)
    more = remade.query(lax=True).stream().latestOffset(remade.end)
    assert more[remade.topic] == {"0": 3, "1": 0}
    remade.make_again(2)
    fewer = remade.query(lax=True).stream().latestOffset(more)
    assert fewer[remade.topic] == {"0": 2}
    assert values(remade.query(lax=True).rows_between(more, fewer)) == [b"new 0", b"new 1"]


def test_a_topic_that_was_made_anew_since_a_batch_was_planned_is_not_read_in_its_place(remade: Remade) -> None:
    remade.make_again(15)
    with pytest.raises(DataLost, match=f"from offset 0 to 10, but topic '{remade.topic}' was deleted and made anew"):
        remade.query().rows_between(remade.begin, remade.end)
    assert remade.query(lax=True).rows_between(remade.begin, remade.end) == []
    remade.delete()
    with pytest.raises(DataLost, match=f"{remade.topic}-0 should be read from offset 0 to 10, and is gone"):
        remade.query().rows_between(remade.begin, remade.end)
    assert remade.query(lax=True).rows_between(remade.begin, remade.end) == []


def test_a_topic_that_lost_its_end_is_an_error_or_goes_on_at_its_end(remade: Remade) -> None:
    """Not made anew: what is there was read."""
    beyond = remade.end | {remade.topic: {"0": 99}}
    with pytest.raises(DataLost, match=f"{remade.topic}-0 was read up to offset 99 and ends at 10 now"):
        remade.query().stream().latestOffset(beyond)
    end = remade.query(lax=True).stream().latestOffset(beyond)
    assert end[remade.topic] == {"0": 10}
    assert remade.query(lax=True).rows_between(beyond, end) == []
    assert remade.query(lax=True).stream().latestOffset(end)[remade.topic] == {"0": 10}


def test_an_end_that_one_answer_puts_too_low_is_not_believed(remade: Remade, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that leads the log no more, and doesn't know it yet."""
    stale = [6, 6]

    def with_stale(client: Client, parts: Iterable[Part], edge: Edge, *, committed: bool) -> dict[Part, int]:
        found = edges(client, parts, edge, committed=committed)
        if edge is Edge.LATEST and stale:
            found |= dict.fromkeys(found, stale.pop())
        return found

    monkeypatch.setattr(source, "edges", with_stale)
    query = remade.query(lax=True, patience_ms=20_000)
    assert query.stream().latestOffset(remade.end) == remade.end
    assert not stale


def test_a_range_that_one_answer_puts_beyond_the_end_is_read_all_the_same(
    remade: Remade, monkeypatch: pytest.MonkeyPatch
) -> None:
    true = _Fetcher._send
    beyond = [99, 99]
    monkeypatch.setattr(_Fetcher, "_send", lambda self, position: true(self, beyond.pop() if beyond else position))
    query = remade.query(lax=True, patience_ms=20_000)
    assert values(query.rows_between(remade.begin, remade.end)) == numbers(0, 10)
    assert not beyond


def test_a_log_that_lost_its_end_after_a_batch_was_planned_is_waited_for_and_passed_over(
    remade: Remade, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_fetch, "LAGGING_SECONDS", 0.3)
    beyond = [remade.end | {remade.topic: {"0": end}} for end in (20, 30)]
    with pytest.raises(DataLost, match=f"{remade.topic}-0 should be read from offset 20 to 30, but ends before"):
        remade.query().rows_between(*beyond)
    assert remade.query(lax=True, patience_ms=20_000).rows_between(*beyond) == []


def test_a_checkpoint_of_an_earlier_version_is_read_with_a_warning_and_names_its_topics_from_then_on(
    remade: Remade, caplog: pytest.LogCaptureFixture
) -> None:
    old = {remade.topic: remade.end[remade.topic]}
    reader = remade.query().stream()
    then = reader.latestOffset(old)
    assert then == {"@ids": remade.end["@ids"], **old}
    assert remade.query().rows_between(old, then) == []
    assert reader.latestOffset(then) is then
    (warning,) = [record.getMessage() for record in caplog.records]
    assert f"earlier version and does not tell which topics it means by '{remade.topic}'" in warning
    remade.make_again(3)
    with pytest.raises(
        DataLost, match=f"{remade.topic}-0 was read up to offset 10 and ends at 3 now: it was made anew"
    ):
        remade.query().stream().latestOffset(old)
    assert remade.goes_on(old) == [b"new 0", b"new 1", b"new 2"]


def test_what_is_not_readable_yet_is_waited_for_and_then_named(
    bootstrap: str, new_topic: Callable[..., str], name: str
) -> None:
    topic = new_topic()
    client = producer(bootstrap, transactional_id=name)
    client.init_transactions(20)
    client.begin_transaction()
    client.produce(topic, b"open", partition=0)
    client.flush(20)
    query = Source(bootstrap, subscribe=topic, kafkaConsumer__pollTimeoutMs="700", kafka__fetch__max__wait__ms="50")
    with pytest.raises(NotYetReadable, match=f"{topic}-0 has nothing readable at offset 0.*last stable offset is 0"):
        query.rows_between({topic: {"0": 0}}, {topic: {"0": 1}})
    threading.Timer(0.3, client.commit_transaction).start()
    query = Source(bootstrap, subscribe=topic, kafka__fetch__max__wait__ms="50")
    assert values(query.rows_between({topic: {"0": 0}}, {topic: {"0": 1}})) == [b"open"]


def test_a_start_behind_an_open_transaction_is_no_loss(
    bootstrap: str, new_topic: Callable[..., str], name: str
) -> None:
    """The offset is there, though it can't be read yet."""
    topic = new_topic()
    produce(bootstrap, topic, numbers(0, 3))
    client = producer(bootstrap, transactional_id=name)
    client.init_transactions(20)
    client.begin_transaction()
    for value in (b"open", b"open, too"):
        client.produce(topic, value, partition=0)
    client.flush(20)
    named = json.dumps({topic: {"0": 5}})
    query = Source(bootstrap, subscribe=topic, startingOffsets=named)
    assert query.batch() == []
    reader = query.stream()
    end = reader.latestOffset(reader.initialOffset())
    assert end[topic] == {"0": 5}
    assert reader.latestOffset(end) is end
    available_now = query.stream()
    available_now.prepareForTriggerAvailableNow()
    assert available_now.latestOffset(end) is end
    client.commit_transaction(20)
    produce(bootstrap, topic, [b"later"])
    then = _when(lambda: reader.latestOffset(end), lambda then: then[topic]["0"] == 7)
    assert values(query.rows_between(end, then)) == [b"later"]


def test_a_broker_that_is_killed_during_a_read_is_waited_for(own_broker: BrokerProcess) -> None:
    topic = Topics(own_broker.bootstrap, "killed").create()
    client = producer(own_broker.bootstrap, batch_num_messages=100, linger_ms=1)
    for number in range(20_000):
        client.produce(topic, b"%d" % number, partition=0)
    assert client.flush(20) == 0
    query = Source(own_broker.bootstrap, subscribe=topic, kafka__fetch__max__bytes="20000")
    reader = OncelogReader(query.options)
    (part,) = reader.partitions()
    found: list[bytes] = []
    kills = 0
    for batch in reader.read(part):
        found += batch.column("value").to_pylist()
        if kills < 2 and len(found) > 5000 * (kills + 1):
            kills += 1
            own_broker.kill()
            threading.Timer(0.2, own_broker.start).start()
    assert kills == 2
    assert found == numbers(0, 20_000)


def test_a_stream_waits_for_its_broker(own_broker: BrokerProcess) -> None:
    topic = Topics(own_broker.bootstrap, "waits").create()
    reader = Source(own_broker.bootstrap, subscribe=topic).stream()
    end = reader.latestOffset(reader.initialOffset())
    own_broker.kill()
    threading.Timer(0.5, own_broker.start).start()
    assert reader.latestOffset(end) == end


def test_a_corrupt_answer_is_an_error(
    bootstrap: str, new_topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Never an endless loop: a broker that answers half a batch would be asked for it again and again."""
    topic = new_topic()
    produce(bootstrap, topic, numbers(0, 10))
    monkeypatch.setattr("spark_sink.fetch.whole_batches", lambda chunk: iter(()))
    with pytest.raises(CorruptBatch, match="hold no whole batch at offset 0"):
        Source(bootstrap, subscribe=topic).batch()


def test_giving_up_half_way_leaves_nothing_behind(bootstrap: str, new_topic: Callable[..., str]) -> None:
    """Spark stops reading at a LIMIT. The same process then serves the next task over the same client."""
    topic = new_topic()
    produce(bootstrap, topic, numbers(0, 5000), batch_num_messages=100)
    reader = OncelogReader(Source(bootstrap, subscribe=topic, kafka__fetch__max__bytes="2000").options)
    (part,) = reader.partitions()
    for _ in range(3):
        reading = reader.read(part)
        first = next(reading)
        assert isinstance(first, pa.RecordBatch)
        reading.close()  # type: ignore[attr-defined]
    assert values(Source._rows(reader, [part])) == numbers(0, 5000)

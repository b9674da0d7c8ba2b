"""Each row goes to the partition that its key has in the topic as it is, in requests that a broker takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import Any, cast

import pyarrow as pa
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import NewPartitions, NewTopic, OffsetSpec  # type: ignore[attr-defined]
from pyspark import TaskContext
from pyspark.sql.types import StructType

from service.net.server import BUFFER_BYTES
from spark_sink import branch, sink
from spark_sink.client import Client
from spark_sink.errors import ConnectionLost, OncelogError, TopicMadeAnew
from spark_sink.sink_options import read_sink_options
from tests.clients.topics import Topics
from tests.peers.chosen import new_broker
from tests.spark_sink.reading import committed, values
from tests.spark_sink.test_sink_branch import Task

KEYS = [f"key {number}" for number in range(300)]
BY_OPTION = StructType().add("key", "string").add("value", "string")
BY_COLUMN = StructType([*BY_OPTION.fields]).add("topic", "string")
ROWS = pa.record_batch({"key": KEYS, "value": KEYS})


@pytest.fixture(autouse=True)
def disconnect() -> Iterator[None]:
    yield
    for connected in sink._connected.values():
        connected.client.close()
    sink._connected.clear()


class Query:
    """A stream whose batches write the same rows; its tasks run in one process, which remembers what it learned."""

    def __init__(self, bootstrap: str, root: str, topic: str, *, by_column: bool = False) -> None:
        given = {"kafka.bootstrap.servers": bootstrap, "kafka.delivery.timeout.ms": "15000"}
        self._options = read_sink_options(given if by_column else given | {"topic": topic}, streaming=True)
        self._root = root
        self._schema = BY_COLUMN if by_column else BY_OPTION
        self._rows = ROWS.append_column("topic", pa.array([topic] * len(KEYS))) if by_column else ROWS
        self._stage = 0

    def plan(self) -> sink.StreamSink:
        self._stage += 1
        return sink.StreamSink(self._options, self._schema)

    def run(self, writer: sink.StreamSink, batch: int) -> sink.Written:
        task = Task()
        task.stage = self._stage
        return sink.write(self._options, self._root, batch, cast(TaskContext, task), iter([self._rows]), writer._topics)

    def batch(self, number: int) -> None:
        writer = self.plan()
        sink.commit(self._options, self._root, number, [self.run(writer, number)])


def make_again(topics: Topics, topic: str, partitions: int) -> None:
    topics.admin.delete_topics([topic])[topic].result(20)
    topics.admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(20)
    ends = {TopicPartition(topic, number): OffsetSpec.latest() for number in range(partitions)}  # type: ignore[no-untyped-call]
    deadline = monotonic() + 20
    while any(told.exception(20) for told in topics.admin.list_offsets(ends).values()):
        assert monotonic() < deadline, "the topic is not led"


def widen(topics: Topics, topic: str, partitions: int) -> None:
    topics.admin.create_partitions([NewPartitions(topic, partitions)])[topic].result(20)


def places(bootstrap: str, topic: str) -> dict[bytes, set[int]]:
    found: dict[bytes, set[int]] = {}
    for message in committed(bootstrap, topic):
        key: Any = message.key()
        found.setdefault(key, set()).add(message.partition() or 0)
    return found


@pytest.mark.parametrize("by_column", [False, True], ids=["by the option", "by the column"])
@pytest.mark.parametrize("partitions", [16, 2])
def test_a_topic_that_was_made_again_is_written_to_as_it_is(
    bootstrap: str, topics: Topics, name: str, by_column: bool, partitions: int
) -> None:
    topic, fresh = topics.create(4), topics.create(partitions)
    query = Query(bootstrap, name, topic, by_column=by_column)
    query.batch(0)
    make_again(topics, topic, partitions)
    query.batch(1)
    Query(bootstrap, f"{name}-fresh", fresh).batch(0)
    assert places(bootstrap, topic) == places(bootstrap, fresh)


def test_partitions_that_are_added_are_used_from_the_next_batch_on_and_a_key_has_one_place_in_each(
    bootstrap: str, topics: Topics, name: str
) -> None:
    topic = topics.create(2)
    query = Query(bootstrap, name, topic)
    writer = query.plan()
    first = query.run(writer, 0)
    widen(topics, topic, 6)
    sink.connected(query._options.client).client.forget()
    sink.commit(query._options, name, 0, [first, query.run(writer, 0)])
    assert all(len(found) == 1 for found in places(bootstrap, topic).values())
    query.batch(1)
    assert set.union(*places(bootstrap, topic).values()) == set(range(6))


def test_tasks_that_saw_a_topic_differently_commit_nothing(bootstrap: str, topics: Topics, name: str) -> None:
    """The topic comes by a column, so each process asks for itself."""
    topic = topics.create(2)
    query = Query(bootstrap, name, topic, by_column=True)
    writer = query.plan()
    written = [query.run(writer, 0)]
    widen(topics, topic, 6)
    sink._connected.popitem()[1].client.close()  # another process
    written.append(query.run(writer, 0))
    with pytest.raises(sink.TopicChanged, match=f"topic '{topic}' was changed.* had 2 partitions, to another 6"):
        sink.commit(query._options, name, 0, written)
    writer.abort(list(written), 0)
    assert values(bootstrap, topic) == []


@pytest.mark.parametrize("change", [widen, make_again])
def test_a_batch_that_failed_because_its_topic_changed_runs_again_in_the_process_that_saw_the_former_one(
    bootstrap: str, topics: Topics, name: str, change: Callable[[Topics, str, int], None]
) -> None:
    """The query is started again in the same session, whose Python workers live on."""
    topic = topics.create(2)
    query = Query(bootstrap, name, topic, by_column=True)
    failed = query.plan()
    failed.abort([query.run(failed, 0)], 0)
    change(topics, topic, 6)
    query.batch(0)
    assert set.union(*places(bootstrap, topic).values()) == set(range(6))


@pytest.mark.parametrize("partitions", [2, 4, 16])
def test_a_topic_that_is_made_again_while_it_is_written_to_fails_the_task_at_once(
    bootstrap: str, topics: Topics, name: str, partitions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = topics.create(4)
    query = Query(bootstrap, name, topic)
    query.batch(0)
    writer = query.plan()
    make_again(topics, topic, partitions)
    tries = 0
    forget = Client.forget

    def counted(client: Client) -> None:
        nonlocal tries
        tries += 1
        forget(client)

    monkeypatch.setattr(Client, "forget", counted)
    with pytest.raises(TopicMadeAnew, match=f"topic '{topic}' was deleted and made anew while it was written to"):
        query.run(writer, 1)
    assert tries <= 2
    assert values(bootstrap, topic) == []


# -- rows that can't be written


@pytest.mark.parametrize(
    ("message", "columns"),
    [
        (
            r"the row with key 'k1' and value 'v1' for topic 't-.*': column 'partition' is 7, and .* partitions 0 to 3",
            {"partition": pa.array([0, 7], pa.int32())},
        ),
        (
            r"message\.timestamp\.before\.max\.ms allow; the row with key 'k1' and value 'v1' has 1960-01-01",
            {"timestamp": pa.array([datetime.now(UTC), datetime(1960, 1, 1, tzinfo=UTC)], pa.timestamp("us", "UTC"))},
        ),
    ],
)
def test_a_row_that_can_not_be_written_is_named_with_its_key_and_value(
    bootstrap: str, topics: Topics, name: str, message: str, columns: dict[str, pa.Array]
) -> None:
    topic = topics.create(4, message_timestamp_before_max_ms="3600000")
    query = Query(bootstrap, name, topic)
    query._rows = pa.record_batch({"key": ["k0", "k1"], "value": ["v0", "v1"], **columns})
    with pytest.raises(OncelogError, match=message):
        query.run(query.plan(), 0)


# -- bytes


def test_a_batch_of_rows_is_cut_by_its_bytes_wherever_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink, "LARGEST_CHUNK_BYTES", 10_000)
    rows = ["tiny"] * 5000 + ["large" * 1000] * 20 + ["huge" * 5000]
    pieces = list(sink._of_bounded_size(iter([pa.record_batch({"value": rows})])))
    assert [value for piece in pieces for value in piece.column("value").to_pylist()] == rows
    assert all(piece.nbytes <= 10_000 or piece.num_rows == 1 for piece in pieces)
    assert len(pieces) < 40, "and no smaller than need be"


def test_many_large_rows_for_many_partitions_go_in_requests_of_bounded_size(
    bootstrap: str, topics: Topics, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small rows first, so that many are taken at a time; then one large row for each partition."""
    monkeypatch.setattr(branch, "REQUEST_BYTES", 200_000)
    sizes: list[int] = []
    launch = branch.Branch._launch

    def measured(writer: branch.Branch, node: int, batches: list[Any]) -> Any:
        sizes.append(sum(len(batch.data) for batch in batches))
        return launch(writer, node, batches)

    monkeypatch.setattr(branch.Branch, "_launch", measured)
    topic = topics.create(20)
    query = Query(bootstrap, name, topic)
    numbers = [*range(1000), *range(20)]
    query._rows = pa.record_batch(
        {
            "value": ["tiny"] * 1000 + ["large" * 10_000] * 20,
            "partition": pa.array([n % 20 for n in numbers], pa.int32()),
        }
    )
    query._schema = StructType().add("value", "string").add("partition", "integer")
    query.batch(0)
    assert len(values(bootstrap, topic)) == 1020
    assert max(sizes) <= 200_000


def test_small_rows_go_in_requests_that_fit_into_the_buffers_that_a_broker_keeps(
    bootstrap: str, topics: Topics, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    send = Client.send

    def measured(self: Client, *given: Any, **named: Any) -> Any:
        pending = send(self, *given, **named)
        sizes.append(pending.size_bytes)
        return pending

    monkeypatch.setattr(Client, "send", measured)
    query = Query(bootstrap, name, topics.create(4))
    query._rows = pa.record_batch({"value": ["a row of a hundred bytes".ljust(100)] * 50_000})
    query.batch(0)
    assert 1 << 19 < max(sizes) < BUFFER_BYTES


def test_a_broker_that_takes_no_request_of_this_size_is_named_with_the_size_and_names_the_client(
    tmp_path: Path, name: str
) -> None:
    broker = new_broker(tmp_path, socket_request_max_bytes="2000000", message_max_bytes="8000000")
    broker.start()
    try:
        topic = Topics(broker.bootstrap, name).create()
        query = Query(broker.bootstrap, name, topic)
        query._options = read_sink_options(
            {
                "kafka.bootstrap.servers": broker.bootstrap, "topic": topic, "kafka.delivery.timeout.ms": "100",
                "kafka.client.id": "the nightly job",
            },
            streaming=True,
        )  # fmt: skip
        query._rows = pa.record_batch({"value": ["x" * 3_000_000]})
        with pytest.raises(OncelogError, match=r"a request of 3000\d{3} bytes .*socket\.request\.max\.bytes") as error:
            query.batch(0)
        assert isinstance(error.value, ConnectionLost)
    finally:
        broker.stop()
    assert "client 'the nightly job', announced a request of 3000" in broker.log_path.read_text()

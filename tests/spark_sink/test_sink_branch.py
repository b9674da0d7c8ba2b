"""A branch is written once, whatever is lost on the way and dies; late writers write nothing."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import cast

import numpy as np
import pyarrow as pa
import pytest
from kio.schema.describe_transactions.v0 import DescribeTransactionsRequest, DescribeTransactionsResponse
from kio.schema.describe_transactions.v0.response import TransactionState
from kio.schema.errors import ErrorCode
from kio.schema.types import ProducerId, TransactionalId
from kio.static.primitive import TZAware, i16
from pyspark import TaskContext
from pyspark.sql.types import StructType

from service.wire.messages import EndBranchesRequest, EndTxnRequest, InitProducerIdRequest, ProduceRequest
from spark_sink import sink
from spark_sink.branch import (
    UNANSWERED_PER_PARTITION,
    Branch,
    BranchFenced,
    abandon,
    await_visible,
    decide,
    last_decided,
)
from spark_sink.client import Client, milliseconds
from spark_sink.encode import Encoder, RecordBatch, Rows, Target
from spark_sink.errors import BrokerError, OncelogError, OptionError
from spark_sink.messages import NamedBranch
from spark_sink.sink_options import read_sink_options
from tests.clients.topics import Topics
from tests.faults.proxy import Fault, Proxy
from tests.peers.process import BrokerProcess
from tests.spark_sink.conftest import settings_for
from tests.spark_sink.reading import committed, open_branches, values

PARTITIONS = 3
FAULTS = [
    (request, fault)
    for request in (InitProducerIdRequest, ProduceRequest, EndTxnRequest, EndBranchesRequest)
    for fault in (Fault.LOSE_REQUEST, Fault.LOSE_ANSWER, Fault.TWICE)
    # To initialize a second time is to take over from the first: that is no fault of the network's to repair.
    if (request, fault) != (InitProducerIdRequest, Fault.TWICE)
]


class Writing:
    """A branch with its encoder, writing numbered rows round the partitions."""

    def __init__(self, client: Client, topic: str, root: str, token: int, name: str = "one") -> None:
        self.branch = Branch(client, root, token, name)
        self.branch.open(60_000)
        self._targets = [Target(topic, partition, 1 << 20) for partition in range(PARTITIONS)]
        self._encoder = Encoder(self.branch.producer_id, self.branch.producer_epoch)

    def batches(self, *numbers: int) -> list[RecordBatch]:
        value = pa.array([b"%04d" % number for number in numbers], pa.binary())
        places = np.array([number % PARTITIONS for number in numbers], np.uint8)
        return self._encoder.encode(Rows(None, value, None, None, places), self._targets, 1)

    def send(self, *numbers: int) -> None:
        self.branch.send(self.batches(*numbers))


def decide_over(client: Client, root: str, token: int, *sealed: NamedBranch) -> bool:
    """Says whether it was decided now, when readers see it."""
    answer = decide(client, root, token, sealed)
    await_visible(client, root, sealed)
    return answer.decided_now


def texts(numbers: range) -> list[str]:
    return [f"{number:04}" for number in numbers]


def write_and_decide(bootstrap: str, topic: str, root: str) -> bool:
    """Many small requests under way at once. Says whether the decision was made now."""
    with Client(settings_for(bootstrap)) as client:
        writing = Writing(client, topic, root, 1)
        for first in range(0, 300, 10):
            writing.send(*range(first, first + 10))
        return decide_over(client, root, 1, writing.branch.seal())


@pytest.mark.parametrize(
    ("request_type", "fault"), FAULTS, ids=lambda given: given.name if isinstance(given, Fault) else given.__name__
)
def test_a_branch_is_written_once_whatever_is_lost(
    bootstrap: str, topics: Topics, name: str, request_type: type, fault: Fault
) -> None:
    topic = topics.create(PARTITIONS)

    async def through_proxy() -> None:
        async with Proxy("127.0.0.1", int(bootstrap.rpartition(":")[2])) as proxy:
            rule = proxy.rule(request_type, fault, times=3 if request_type is ProduceRequest else 1)
            await asyncio.to_thread(write_and_decide, proxy.bootstrap, topic, name)
            assert rule.left == 0, "the fault befell nobody"

    asyncio.run(through_proxy())
    found = committed(bootstrap, topic)
    for partition in range(PARTITIONS):
        mine = [message.value() for message in found if message.partition() == partition]
        assert mine == [text.encode() for text in texts(range(partition, 300, PARTITIONS))]


def test_a_broker_that_is_killed_while_it_is_written_to_has_everything_once(
    own_broker: BrokerProcess, name: str
) -> None:
    topic = Topics(own_broker.bootstrap, name).create(PARTITIONS)
    with Client(settings_for(own_broker.bootstrap)) as client:
        writing = Writing(client, topic, name, 1)
        for first in range(0, 100, 10):
            writing.send(*range(first, first + 10))
        own_broker.kill()  # some are acknowledged, some stored, some neither
        back = threading.Thread(target=own_broker.start)
        back.start()
        for first in range(100, 200, 10):
            writing.send(*range(first, first + 10))
        sealed = writing.branch.seal()
        back.join()
        assert decide_over(client, name, 1, sealed)
    assert values(own_broker.bootstrap, topic) == texts(range(200))


def test_a_broker_killed_between_decision_and_answer_is_asked_again(own_broker: BrokerProcess, name: str) -> None:
    topic = Topics(own_broker.bootstrap, name).create(PARTITIONS)

    async def through_proxy() -> bool:
        async with Proxy("127.0.0.1", own_broker.port) as proxy:
            rule = proxy.rule(EndBranchesRequest, Fault.SWALLOW_ANSWER)
            writer = asyncio.create_task(asyncio.to_thread(write_and_decide, proxy.bootstrap, topic, name))
            await rule.caught()
            await asyncio.to_thread(wait_until_decided, own_broker.bootstrap, name)
            own_broker.kill()
            proxy.break_connections()
            await asyncio.to_thread(own_broker.start)
            return await writer

    assert asyncio.run(through_proxy()) is False, "it was decided before"
    assert values(own_broker.bootstrap, topic) == texts(range(300))


def wait_until_decided(bootstrap: str, root: str) -> None:
    deadline = time.monotonic() + 20
    with Client(settings_for(bootstrap)) as client:
        while last_decided(client, root) < 1:
            assert time.monotonic() < deadline, "never decided"
            time.sleep(0.01)


def test_who_comes_after_the_decision_writes_nothing(client: Client, bootstrap: str, topics: Topics, name: str) -> None:
    """A speculative loser: its branch was open when the other attempt's was named."""
    topic = topics.create(PARTITIONS)
    winner, loser = (Writing(client, topic, name, 4, attempt) for attempt in ("attempt-0", "attempt-1"))
    for writing in (winner, loser):
        writing.send(*range(30))
    loser.branch.flush()
    assert decide_over(client, name, 4, winner.branch.seal())
    loser.send(*range(30, 60))
    with pytest.raises(BranchFenced):
        loser.branch.seal()
    with pytest.raises(BranchFenced):
        Branch(client, name, 4, "attempt-2").open(60_000)
    assert last_decided(client, name) == 4
    assert values(bootstrap, topic) == texts(range(30))


def test_a_decision_over_a_branch_that_is_not_sealed_changes_nothing(
    client: Client, bootstrap: str, topics: Topics, name: str
) -> None:
    topic = topics.create(PARTITIONS)
    one, other = (Writing(client, topic, name, 1, part) for part in ("part-0", "part-1"))
    one.send(*range(10))
    other.send(*range(10, 20))
    other.branch.flush()
    sealed, unsealed = one.branch.seal(), other.branch
    from_other = type(sealed)(
        transactional_id=unsealed.transactional_id,
        producer_id=unsealed.producer_id,
        producer_epoch=unsealed.producer_epoch,
    )
    with pytest.raises(BrokerError, match=r"INVALID_TXN_STATE.*part-1"):
        decide(client, name, 1, [sealed, from_other])
    assert last_decided(client, name) == -1
    assert decide_over(client, name, 1, sealed, unsealed.seal())
    assert values(bootstrap, topic) == texts(range(20))


def test_what_is_given_up_or_abandoned_is_never_seen_and_the_token_can_be_used_again(
    client: Client, bootstrap: str, topics: Topics, name: str
) -> None:
    topic = topics.create(PARTITIONS)
    given_up, abandoned = (Writing(client, topic, name, 1, attempt) for attempt in ("attempt-0", "attempt-1"))
    given_up.send(*range(10))
    given_up.branch.give_up()
    abandoned.send(*range(10))
    abandoned.branch.seal()
    abandon(client, name, 1)
    again = Writing(client, topic, name, 1, "attempt-2")
    again.send(*range(10))
    assert decide_over(client, name, 1, again.branch.seal())
    abandon(client, name, 1)  # can't undo what is decided
    assert values(bootstrap, topic) == texts(range(10))


def test_a_coordinator_that_does_not_know_yet_is_asked_again_before_a_decision_counts_as_visible(
    client: Client, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    branch = NamedBranch(transactional_id=TransactionalId(f"{name}::1/a"))
    told = [
        (ErrorCode.not_coordinator, ""), (ErrorCode.coordinator_load_in_progress, ""),
        (ErrorCode.none, "PrepareCommit"), (ErrorCode.transactional_id_not_found, ""),
        (ErrorCode.none, "not asked for any more"),
    ]  # fmt: skip

    began = TZAware.parse(datetime(2020, 1, 1, tzinfo=UTC))

    def ask(node: int, request: DescribeTransactionsRequest, answer: type) -> DescribeTransactionsResponse:
        code, state = told.pop(0)
        described = TransactionState(
            error_code=code, transactional_id=branch.transactional_id, transaction_state=state,
            transaction_timeout=milliseconds(0), transaction_start_time=began, producer_id=ProducerId(-1),
            producer_epoch=i16(-1), topics=(),
        )  # fmt: skip
        return DescribeTransactionsResponse(throttle_time=milliseconds(0), transaction_states=(described,))

    monkeypatch.setattr(client, "coordinator", lambda kind, key: 0)
    monkeypatch.setattr(client, "ask", ask)
    await_visible(client, name, [branch])
    assert len(told) == 1


def test_a_timeout_the_broker_does_not_take_names_the_option(client: Client, name: str) -> None:
    with pytest.raises(OptionError, match=r"kafka\.transaction\.timeout\.ms.*transaction\.max\.timeout\.ms"):
        Branch(client, name, 1, "one").open(10 * 86_400_000)


def test_many_partitions_and_many_batches_of_each_go_in_order(
    client: Client, bootstrap: str, new_topic: Callable[..., str], name: str
) -> None:
    """More batches of a partition in one call than may be unanswered at a time."""
    topic = new_topic(PARTITIONS)
    writing = Writing(client, topic, name, 1)
    writing.branch.send([batch for number in range(60) for batch in writing.batches(number)])
    assert decide_over(client, name, 1, writing.branch.seal())
    assert values(bootstrap, topic) == texts(range(60))


def test_a_connection_that_is_lost_while_room_is_made_for_a_batch_costs_nothing(
    client: Client, bootstrap: str, topics: Topics, name: str
) -> None:
    """The first of two batches waits for the second, whose partition has as many unanswered as may be."""
    topic = topics.create(PARTITIONS)
    writing = Writing(client, topic, name, 1)
    for number in range(UNANSWERED_PER_PARTITION):
        writing.send(PARTITIONS * number + 1)
    client.close()  # every connection, with the answers under way
    writing.send(0, PARTITIONS * UNANSWERED_PER_PARTITION + 1)
    assert decide_over(client, name, 1, writing.branch.seal())
    written = [0, *(PARTITIONS * number + 1 for number in range(UNANSWERED_PER_PARTITION + 1))]
    assert values(bootstrap, topic) == [f"{number:04}" for number in written]


class Task:
    """What the sink asks of Spark's TaskContext."""

    def __init__(self, **properties: str) -> None:
        self.stage = 0
        self._properties = {name.replace("_", "."): value for name, value in properties.items()}

    def stageId(self) -> int:
        return self.stage

    def partitionId(self) -> int:
        return 0

    def attemptNumber(self) -> int:
        return 0

    def getLocalProperty(self, name: str) -> str | None:
        return self._properties.get(name)


@pytest.fixture
def write(bootstrap: str, topics: Topics) -> Iterator[Callable[..., sink.Written]]:
    """One attempt of one task."""
    options = read_sink_options({"kafka.bootstrap.servers": bootstrap, "topic": topics.create()}, streaming=True)

    def write(root: str, token: int, *batches: pa.RecordBatch, task: Task | None = None) -> sink.Written:
        return sink.write(options, root, token, cast(TaskContext, task or Task()), iter(batches))

    yield write
    sink.connected(options.client).client.close()


def test_a_task_of_a_batch_that_is_decided_is_skipped(
    client: Client, write: Callable[..., sink.Written], name: str
) -> None:
    rows = pa.record_batch({"value": ["a"]})
    assert decide_over(client, name, 5, *filter(None, [write(name, 5, rows).branch]))
    late = write(name, 5, rows)
    assert late.skipped and late.branch is None
    assert write(name, 6, rows).branch is not None


def test_a_task_that_is_skipped_takes_all_its_rows(
    client: Client, write: Callable[..., sink.Written], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark keeps the state of an aggregation or a join when the last of its rows was taken."""
    monkeypatch.setattr(sink, "CHUNK_BYTES", 1)
    rows = [pa.record_batch({"value": [text] * 3}) for text in "abc"]
    assert decide_over(client, name, 5, *filter(None, [write(name, 5, *rows).branch]))
    late = write(name, 5, *rows)
    assert late.skipped and late.rows == 9


def test_a_task_without_rows_opens_no_branch(write: Callable[..., sink.Written], name: str) -> None:
    written = write(name, 1, pa.record_batch({"value": pa.array([], pa.string())}))
    assert written == sink.Written(name, 1, None)


@pytest.mark.parametrize("way", ["by its message", "by the option root", "by its open branches"])
def test_a_batch_that_is_given_up_leaves_nothing_open_also_of_tasks_that_come_later(
    client: Client, bootstrap: str, topics: Topics, name: str, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """A query that is stopped: Spark gives no messages, doesn't say which query it is, and lets its tasks go on for a
    moment, whose rows end as if there were no more. Another query writes the batch of the same number."""
    schema = StructType().add("value", "string")
    root = {"root": name} if way == "by the option root" else {}
    given = {"kafka.bootstrap.servers": bootstrap, "topic": topics.create(), "checkpointLocation": f"/{name}", **root}
    writer, other = (
        sink.StreamSink(read_sink_options(options, streaming=True), schema)
        for options in (given, given | {"checkpointLocation": f"/{name}/other", "root": f"{name}-other"})
    )

    def run(writer: sink.StreamSink) -> sink.Written:
        task = Task(sql_streaming_queryId=name, streaming_sql_batchId="3")
        monkeypatch.setattr(TaskContext, "get", lambda: task)
        return writer.write(iter([pa.record_batch({"value": ["a"]})]))

    early = run(writer)
    others = run(other).branch
    assert others is not None
    message = early if way == "by its message" else None
    late: list[Branch] = []
    now = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds
        if not late:
            assert open_branches(client, name) == (), "the early one is aborted at once"
            late.append(Branch(client, name, 3, f"{writer._options.mark}late"))
            late[0].open(60_000)

    monkeypatch.setattr(sink, "monotonic", lambda: now)
    monkeypatch.setattr(sink, "sleep", sleep)
    writer.abort([message, None], 3)
    assert late
    assert open_branches(client, name) == ()
    assert open_branches(client, f"{name}-other") == (others.transactional_id,)
    sink.connected(writer._options.client).client.close()


def test_null_arrays_are_reported_as_slow_unless_spark_does_not_measure_them(
    write: Callable[..., sink.Written], name: str
) -> None:
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    nulls = pa.record_batch({"value": ["a", "b"], "headers": pa.array([[], None], kind)})
    none = pa.record_batch({"value": ["a", "b"], "headers": pa.array([[], []], kind)})
    sizing_off = Task(spark_sql_execution_arrow_maxBytesPerBatch="2147483647")
    assert write(name, 1, nulls).slow
    assert write(name, 1, pa.record_batch({"value": ["a", "b"], "not written": pa.array([[1], None])})).slow
    assert not write(name, 1, none).slow
    assert not write(name, 1, nulls, task=sizing_off).slow


def test_the_warning_of_slow_arrays_names_the_line_to_set_and_comes_once(
    client: Client, write: Callable[..., sink.Written], name: str, caplog: pytest.LogCaptureFixture, bootstrap: str
) -> None:
    rows = pa.record_batch({"value": ["a"]})
    options = read_sink_options({"kafka.bootstrap.servers": bootstrap, "topic": "t"}, streaming=True)
    sink.warn_of_slow_arrays.cache_clear()
    for token in (3, 4):
        sink.commit(options, name, token, [replace(write(name, token, rows), slow=True)])
    sink.connected(options.client).client.close()
    (slow_arrays,) = [record.getMessage() for record in caplog.records]
    assert 'spark.conf.set("spark.sql.execution.arrow.maxBytesPerBatch", "2147483647")' in slow_arrays


def test_a_decision_that_was_forgotten_is_not_made_again_without_what_was_skipped(
    client: Client, write: Callable[..., sink.Written], name: str, bootstrap: str
) -> None:
    options = read_sink_options({"kafka.bootstrap.servers": bootstrap, "topic": "t"}, streaming=True)
    wrote = write(name, 1, pa.record_batch({"value": ["a"]}))
    with pytest.raises(OncelogError, match="forgot"):
        sink.commit(options, name, 1, [wrote, sink.Written(name, 1, None, skipped=True)])
    sink.connected(options.client).client.close()
    assert last_decided(client, name) == -1


@pytest.mark.parametrize("also", [0, 1])
def test_a_batch_of_whose_tasks_one_left_no_message_is_not_decided(
    client: Client, write: Callable[..., sink.Written], name: str, bootstrap: str, also: int
) -> None:
    options = read_sink_options({"kafka.bootstrap.servers": bootstrap, "topic": "t"}, streaming=True)
    wrote = [write(name, 1, pa.record_batch({"value": ["a"]})) for _ in range(also)]
    with pytest.raises(OncelogError, match=f"1 of {also + 1} tasks left no word"):
        sink.commit(options, name if also else None, 1, [*wrote, None])
    assert last_decided(client, name) == -1

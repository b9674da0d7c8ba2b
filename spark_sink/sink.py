"""Writing exactly once: what Spark calls for a batch write, and for each micro-batch of a stream.

Spark calls `write` in a process on an executor, once for each attempt of each task, and `commit` or `abort` in a
process beside the driver. Between the calls only the messages are kept. All that one batch writes is one transaction
with many writers: `write` opens a branch of (root, token) and seals it, and `commit` decides over the root with the
branches from the messages. The token of a stream is its batch id. So if Spark runs a batch again after a crash, its
transaction is decided already, and nothing is written.

What always holds: nothing of a (root, token) is visible before its decision. Branches that the decision does not name
never become visible. A task that comes too late can't write, because its branch can't be opened or sealed any more.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from random import randrange
from time import monotonic, sleep, time
from types import MappingProxyType
from typing import Final
from uuid import UUID, uuid4

import numpy as np
import pyarrow as pa
from kio.schema.describe_configs.v4 import DescribeConfigsRequest, DescribeConfigsResponse
from kio.schema.describe_configs.v4.request import DescribeConfigsResource
from kio.static.primitive import i8
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from spark_sink.branch import (
    Branch,
    BranchFenced,
    abandon,
    await_visible,
    decide,
    last_decided,
    last_decision,
    roots_with_open,
)
from spark_sink.client import Client, ClientSettings
from spark_sink.columns import BadRow, Columns, check_schema, described, read
from spark_sink.compress import CODES, NONE, compressor
from spark_sink.decider import Decider, conflict, digest_of_offsets, name_of_app
from spark_sink.encode import Encoder, Rows, Target
from spark_sink.errors import OncelogError, OptionError
from spark_sink.messages import EndBranchesResponse, NamedBranch
from spark_sink.partitioner import NoSuchPartition, Partitioner
from spark_sink.sink_options import SinkOptions
from spark_sink.worker import SentToWorkers, keep_freed_memory, spare_collections

try:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
except ImportError:  # PySpark 4.0, which gives Arrow batches to whatever also is an Arrow writer of batches
    from pyspark.sql.datasource import DataSourceStreamWriter

    class DataSourceStreamArrowWriter(DataSourceStreamWriter, DataSourceArrowWriter):  # type: ignore[no-redef, misc]
        pass


logger = logging.getLogger(__name__)

SIZING: Final = "spark.sql.execution.arrow.maxBytesPerBatch"
SIZING_OFF: Final = "2147483647"  # at exactly this value Spark does not measure at all

QUERY_ID: Final = "sql.streaming.queryId"
RUN_ID: Final = "spark.jobGroup.id"  # in a streaming query
BATCH_ID: Final = "streaming.sql.batchId"

# Rows are encoded when there are so many bytes of them: enough for large batches to each partition, few enough to stay
# in the CPU's cache.
CHUNK_BYTES: Final = 1 << 20
CHUNK_BYTES_PER_PARTITION: Final = 64 << 10
LARGEST_CHUNK_BYTES: Final = 16 << 20
# A task that Spark has given up is killed two seconds later (spark.python.task.killTimeout). Until then it may write
# on, and even open its branch: Spark ends its rows as if there were no more.
LATE_TASKS_SECONDS: Final = 4.0
LATE_TASKS_POLL_SECONDS: Final = 0.2
TOPIC_RESOURCE: Final = i8(2)
LARGEST_BATCH: Final = "max.message.bytes"
KAFKA_LARGEST_BATCH_BYTES: Final = 1_048_588  # Kafka's default, where we may not ask


class DecidedByAnother(OncelogError):
    """Another query wrote under the root and number of this batch, so the rows of this batch would be dropped."""


class TopicChanged(OncelogError):
    """Tasks of one batch saw a topic differently."""


class NoSuchTopic(OncelogError, ValueError):
    """A topic that rows are for does not exist. It is not created, because its number of partitions is not known."""


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """What determines the partitions of rows, and the largest batch of them."""

    id: UUID
    partitions: int
    largest_bytes: int


@dataclass
class Written(WriterCommitMessage):
    """The message of a task to `commit`."""

    root: str
    token: int
    branch: NamedBranch | None  # None: nothing was written
    rows: int = 0
    skipped: bool = False  # because the token is decided
    slow: bool = False  # a column of arrays held NULLs, and Spark measured it after every row
    topics: Mapping[str, TopicFacts] = field(default_factory=dict)  # as this task saw them
    # The streaming query that it is part of, its run and its batch: the driver's side isn't told.
    query: str = ""
    run: str = ""
    batch: int | None = None


class StreamSink(SentToWorkers, DataSourceStreamArrowWriter):
    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        self._options = options
        self._topics = check_target(options, schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        task = TaskContext.get()
        assert task is not None, "Spark calls this inside a task"
        root = self._options.root or task.getLocalProperty(QUERY_ID)
        token = task.getLocalProperty(BATCH_ID)
        assert root and token, "Spark names the query and the batch to every task of a stream"
        return write(self._options, root, int(token), task, iterator, self._topics)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        commit(self._options, self._root(messages), batchId, messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        client, mark = connected(self._options.client).client, self._options.mark
        root = self._root(messages)

        def roots() -> Collection[str]:
            return [root] if root is not None else roots_with_open(client, batchId, mark) if mark else ()

        abandon_with_late_tasks(client, roots, batchId, messages)

    def _root(self, messages: Sequence[WriterCommitMessage | None]) -> str | None:
        """The root of the batch. Spark doesn't tell the query here, but the tasks that wrote do."""
        return self._options.root or next((one.root for one in messages if isinstance(one, Written)), None)


class BatchSink(SentToWorkers, DataSourceArrowWriter):
    """All or nothing. If `txnAppId` and `txnVersion` identify the write, it also happens only once."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        self._options = options
        self._root = options.root or str(uuid4())
        self._token = options.token or 0
        self._id = uuid4().hex
        self._topics = check_target(options, schema)
        if options.app is not None and self._root == f"{options.app}/":
            self._check_former_root(options.app)

    def _check_former_root(self, app: str) -> None:
        """In former versions the root was the name alone, which may also be that of another application's writes to a
        topic.
        """
        client = connected(self._options.client).client
        former = last_decision(client, app)
        unnamed = Decider.read(former.decided_by) is None
        if former.last_token >= self._token and unnamed and last_decided(client, self._root) < 0:
            raise OptionError(
                "txnAppId",
                f"version {self._token} of {app!r} may have been written by an earlier version of this package, or by"
                " another application: go on with a higher txnVersion, or with a txnAppId without '/'",
            )

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        task = TaskContext.get()
        assert task is not None, "Spark calls this inside a task"
        if self._options.root is None and task.getLocalProperty(BATCH_ID):
            logger.warning(
                "a batch write inside foreachBatch is written again whenever Spark runs the batch again, unless the"
                " options txnAppId and txnVersion (the batch id) say which write it is"
            )
        return write(self._options, self._root, self._token, task, iterator, self._topics)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        commit(self._options, self._root, self._token, messages, self._id)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        client = connected(self._options.client).client
        if self._options.root is None:  # then it is this write's alone
            abandon(client, self._root, self._token, for_good=True)
        else:
            abandon_with_late_tasks(client, lambda: [self._root], self._token, messages)


def check_target(options: SinkOptions, schema: StructType) -> dict[str, TopicFacts]:
    """Check what can be known before any row is written. All tasks of a batch use the driver's view of the topic. So a
    key has one partition, even if partitions are added meanwhile.
    """
    check_schema(schema, options.topic)
    found = {} if options.topic is None else {options.topic: connected(options.client).ask(options.topic)}
    spare_collections()
    return found


def write(
    options: SinkOptions,
    root: str,
    token: int,
    task: TaskContext,
    iterator: Iterator[pa.RecordBatch],
    topics: Mapping[str, TopicFacts] = MappingProxyType({}),
) -> Written:
    """One attempt of one task. The branch is opened when there is a row to write."""
    keep_freed_memory()
    client = connected(options.client).client
    # What an operator should see, and what makes the name unique: attempts are counted from 0 by every driver.
    name = f"{options.mark}part-{task.partitionId()}.attempt-{task.attemptNumber()}.{uuid4().hex}"
    branch = Branch(client, root, token, name)
    known = connected(options.client).topics_of(task.stageId())
    known.update(topics)
    share = _Share(options, branch, known)
    given = _Counted(iterator)
    written = _of_query(Written(root, token, None), task)
    try:
        share.write(given)
        if not given.rows:
            return written
        slow = share.null_arrays and not (task.getLocalProperty(SIZING) or "").startswith(SIZING_OFF)
        return replace(written, branch=branch.seal(), rows=given.rows, slow=slow, topics=share.topics)
    except BranchFenced:
        if last_decided(client, root) < token:
            raise
        # To the end: Spark keeps the state of aggregations and joins only when their rows were all taken.
        deque(given, maxlen=0)
        return replace(written, rows=given.rows, skipped=True)
    except BaseException:
        if share.opened:
            branch.give_up()
        raise
    finally:
        spare_collections()


def _of_query(written: Written, task: TaskContext) -> Written:
    query = task.getLocalProperty(QUERY_ID)
    if not query:
        return written
    batch = task.getLocalProperty(BATCH_ID)
    return replace(written, query=query, run=task.getLocalProperty(RUN_ID) or "", batch=int(batch) if batch else None)


def commit(
    options: SinkOptions,
    root: str | None,
    token: int,
    messages: Sequence[WriterCommitMessage | None],
    write_id: str = "",
) -> None:
    written = [one for one in messages if isinstance(one, Written)]
    if missing := len(messages) - len(written):
        raise OncelogError(
            f"{missing} of {len(messages)} tasks left no word of what they wrote; nothing was decided now"
        )
    if root is None:
        return  # no task ran, so nothing was written
    client = connected(options.client).client
    if any(one.skipped for one in written) and last_decided(client, root) < token:
        raise OncelogError(f"the brokers forgot that {token} of {root!r} was decided; nothing was decided now")
    branches = [one.branch for one in written if one.branch is not None]
    check_all_saw_the_same(written)
    me = _decider(options, token, written, write_id)
    answer = decide(client, root, token, branches, str(me))
    if not answer.decided_now:
        check_is_ours(options, root, token, me, answer)
    if branches:
        await_visible(client, root, branches)
    if any(one.slow for one in written):
        warn_of_slow_arrays()


def check_all_saw_the_same(written: Collection[Written]) -> None:
    """Check that all tasks saw the same topics. A task asks for itself if a column of its rows names the topic."""
    seen: dict[str, TopicFacts] = {}
    for one in written:
        for topic, facts in one.topics.items():
            other = seen.setdefault(topic, facts)
            if (other.id, other.partitions) != (facts.id, facts.partitions):
                raise TopicChanged(
                    f"topic {topic!r} was changed while a batch was written: to one task it had {other.partitions}"
                    f" partitions, to another {facts.partitions}, or it was made anew. A key could be in two places, so"
                    " nothing is written; the batch can run again"
                )


def _decider(options: SinkOptions, token: int, written: Collection[Written], write_id: str) -> Decider:
    query, run, batch = next(((one.query, one.run, one.batch) for one in written if one.query), ("", "", None))
    me = Decider(query=query, run=run, rows=sum(one.rows for one in written))
    if options.app is not None:
        app, topic = name_of_app(options.app), options.topic or ""
        return replace(me, run=_own_run(run), app=app, topic=topic, batch=batch, write=write_id)
    return replace(me, reads=digest_of_offsets(options.checkpoint, token))


def _own_run(group: str) -> str:
    """The run, unless the function of foreachBatch gave its jobs another group: that may be the same in all runs."""
    try:
        return str(UUID(group))
    except ValueError:
        return ""


def check_is_ours(options: SinkOptions, root: str, token: int, me: Decider, answer: EndBranchesResponse) -> None:
    """Check that a batch that was decided before was written by this query. Otherwise its rows would be dropped."""
    last, before = Decider.read(answer.decided_by), Decider.read(answer.decided_before)
    problem = conflict(me, token, answer.last_token, last, before)
    if problem is None:
        if last is None:
            logger.warning(
                "batch %s of %r was decided before, by a version of this package that left no name: it is taken for the"
                " same batch, and not written again", token, root,
            )  # fmt: skip
        return
    dropped = f"batch {token} of {root!r} was not written: {problem}"
    if not options.skip_decided:
        own = "a txnAppId of its own" if me.app else "a root of its own (the option 'root', or a new checkpoint)"
        raise DecidedByAnother(
            f"{dropped}. So that its rows are written, give it {own}; to go on without them, set skipDecided=true"
        )
    logger.warning("%s", dropped)


def abandon_with_late_tasks(
    client: Client, roots: Callable[[], Collection[str]], token: int, messages: Sequence[WriterCommitMessage | None]
) -> None:
    """Abort what is open, including branches of tasks without a message. Otherwise readers of committed data would wait
    behind it until the next decision, or for a quarter of an hour.
    """
    until = monotonic() + (LATE_TASKS_SECONDS if None in messages else 0)
    while True:
        for root in roots():
            abandon(client, root, token)
        if monotonic() >= until:
            return
        sleep(LATE_TASKS_POLL_SECONDS)


@cache
def warn_of_slow_arrays() -> None:
    """Warn once in each process; its standard error is the driver's."""
    logger.warning(
        "Spark measures every row that it hands over, which is slow when a column of arrays ('headers') holds NULLs,"
        " also one that is not written. Turn it off"
        ' before the query starts: spark.conf.set("%s", "%s")', SIZING, SIZING_OFF,
    )  # fmt: skip


class _Counted:
    """The rows that Spark gives to one task, and how many they were so far."""

    def __init__(self, iterator: Iterator[pa.RecordBatch]) -> None:
        self.rows = 0
        self._iterator = iterator

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for batch in self._iterator:
            self.rows += batch.num_rows
            yield batch


class _Share:
    """The rows of one task on their way into its branch."""

    def __init__(self, options: SinkOptions, branch: Branch, topics: dict[str, TopicFacts]) -> None:
        self.opened = False
        self.null_arrays = False
        self.topics: dict[str, TopicFacts] = {}
        self._known = topics
        self._options = options
        self._branch = branch
        self._connected = connected(options.client)
        self._partitioner = Partitioner(randrange(1 << 16))
        self._encoder: Encoder | None = None
        self._enough_bytes = CHUNK_BYTES

    def write(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Send all rows. Some may not be acknowledged yet then."""
        waiting: list[pa.RecordBatch] = []
        waiting_bytes = 0
        for batch in _of_bounded_size(batches):
            waiting.append(batch)
            waiting_bytes += batch.nbytes
            if waiting_bytes >= self._enough_bytes:
                self._send(waiting)
                waiting, waiting_bytes = [], 0
        if waiting:
            self._send(waiting)

    def _send(self, waiting: list[pa.RecordBatch]) -> None:
        now_ms = int(time() * 1000)
        chunk = pa.Table.from_batches(waiting)
        self.null_arrays |= any(pa.types.is_list(column.type) and column.null_count for column in chunk.columns)
        columns = read(chunk, self._options.topic, now_ms)
        rows, targets = self._placed(columns)
        per_partition = CHUNK_BYTES_PER_PARTITION * len(targets)
        self._enough_bytes = min(max(CHUNK_BYTES, per_partition), LARGEST_CHUNK_BYTES)
        self._branch.send(self._opened_encoder().encode(rows, targets, now_ms))

    def _placed(self, columns: Columns) -> tuple[Rows, list[Target]]:
        of_topics = [self._targets(topic) for topic in columns.topics]
        counts = np.array([len(targets) for targets in of_topics])
        codes = np.zeros(len(columns.value), np.int64) if columns.topic_codes is None else columns.topic_codes
        try:
            chosen = self._partitioner.choose(columns.key, columns.partition, counts[codes], columns.size_bytes)
        except NoSuchPartition as error:
            row = f"{described(columns.key, columns.value, error.row)} for topic {columns.topics[codes[error.row]]!r}"
            raise BadRow(f"{row}: {error}") from None
        targets = [target for of_topic in of_topics for target in of_topic]
        chosen += (np.cumsum(counts) - counts)[codes]
        numbers = chosen.astype(np.min_scalar_type(len(targets)))
        return Rows(columns.key, columns.value, columns.headers, columns.timestamps, numbers), targets

    def _targets(self, topic: str) -> list[Target]:
        if topic not in self._known:
            self._known[topic] = self._connected.ask(topic)
        facts = self.topics[topic] = self._known[topic]
        largest_bytes = min(facts.largest_bytes, self._options.largest_request_bytes or facts.largest_bytes)
        return [Target(topic, partition, largest_bytes, facts.id) for partition in range(facts.partitions)]

    def _opened_encoder(self) -> Encoder:
        if self._encoder is None:
            self.opened = True
            self._branch.open(self._options.transaction_timeout_ms)
            name = self._options.codec
            compress = None if CODES[name] == NONE else compressor(name, self._options.level)
            pair = (self._branch.producer_id, self._branch.producer_epoch)
            self._encoder = Encoder(*pair, CODES[name], compress)
        return self._encoder


def _of_bounded_size(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The batches in pieces of limited size. Spark's limit on bytes can be turned off, and its limit on rows allows
    gigabytes, even in a few rows.
    """
    for batch in batches:
        if batch.num_rows:
            yield from _halved(batch)


def _halved(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    if batch.nbytes <= LARGEST_CHUNK_BYTES or batch.num_rows == 1:
        yield batch
        return
    middle = batch.num_rows // 2
    yield from _halved(batch.slice(0, middle))
    yield from _halved(batch.slice(middle))


class Connected:
    """A client, and the facts about topics that were learned with it. It outlives tasks, because Spark keeps its Python
    processes.
    """

    def __init__(self, settings: ClientSettings) -> None:
        self.client = Client(settings)
        self._stage = -1
        self._topics: dict[str, TopicFacts] = {}

    def topics_of(self, stage: int) -> dict[str, TopicFacts]:
        """What tasks of this stage learned in this process. The facts of other stages may be outdated, even of the same
        batch: that may have failed because a topic changed.
        """
        if self._stage != stage:
            self._stage, self._topics = stage, {}
        return self._topics

    def ask(self, topic: str) -> TopicFacts:
        """The present facts about a topic."""
        return self.client.retrying(lambda: self._ask(topic))

    def _ask(self, topic: str) -> TopicFacts:
        question = DescribeConfigsRequest(
            resources=(
                DescribeConfigsResource(
                    resource_type=TOPIC_RESOURCE, resource_name=topic, configuration_keys=(LARGEST_BATCH,)
                ),
            )
        )
        asked = self.client.send(None, question, DescribeConfigsResponse)  # both on their way at once
        found = self.client.topics([topic]).get(topic)
        if found is None:
            raise NoSuchTopic(f"there is no topic {topic!r}; create it with as many partitions as it should have")
        (told,) = asked.result().results
        values = [one.value for one in told.configs if one.name == LARGEST_BATCH]
        largest_bytes = int(values[0] or 0) if values else KAFKA_LARGEST_BATCH_BYTES
        return TopicFacts(found.id, len(found.leaders), largest_bytes)


_connected: dict[tuple[int, ClientSettings], Connected] = {}


def connected(settings: ClientSettings) -> Connected:
    """The connections of this process; a fork has its own."""
    key = (os.getpid(), settings)
    if key not in _connected:
        _connected[key] = Connected(settings)
    return _connected[key]

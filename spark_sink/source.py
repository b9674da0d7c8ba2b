"""Reads topics into Spark, as a batch and as a stream.

Both plan on the driver which offsets are read (`partitions`) and read them on the executors (`read`). What always
holds: planning once decides what a batch holds; reading it again, after any failure, gives the same rows, except for
those that a cleaner has taken out of a compacted topic meanwhile. Positions live in Spark's checkpoint alone; see
`offsets.py` for how the first one is pinned.

Spark makes several readers for one query, in several processes, and pickles them: a reader holds no connection.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from spark_sink.client import NO_ID, Client, client_of
from spark_sink.errors import OncelogError, OptionError, SchemaError, TopicGone
from spark_sink.fetch import LAGGING_SECONDS, read_range, report_loss
from spark_sink.log_offsets import assigned, check_exist, edges, ends, publish, starts
from spark_sink.offsets import (
    INITIAL,
    Ids,
    Offsets,
    Range,
    begins_of,
    end_of_batch,
    from_json,
    ids_of,
    is_initial,
    limited,
    remade,
    tasks,
    to_json,
)
from spark_sink.options import AtOffsets, Bound, Edge, SourceOptions, TopicPartition, source_options
from spark_sink.worker import SentToWorkers, keep_freed_memory, spare_collections

try:  # since PySpark 4.2
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxRows,
        ReadMinRows,
        SupportsTriggerAvailableNow,
    )
except ImportError:  # 4.0 and 4.1 ask without saying from where or how much, and read all that is there at once

    class SupportsTriggerAvailableNow: ...  # type: ignore[no-redef]


logger = logging.getLogger(__name__)

# New partitions and topics are noticed this long after they are made. An idle query asks fifty times a second.
LOOK_AROUND_SECONDS = 1.0
# Publishing a position is a courtesy: no batch waits longer for it.
PUBLISH_SECONDS = 5.0

HEADERS = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
SCHEMA = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
    ]
)


def schema(options: Mapping[str, str]) -> StructType:
    """The columns of Spark's own Kafka source. Spark asks without saying whether it reads a batch or a stream. Options
    that are wrong for both are refused now, the others when the reader is made.
    """
    try:
        headers = source_options(options, streaming=False).headers
    except OptionError as error:
        try:
            headers = source_options(options, streaming=True).headers
        except OptionError:
            raise error from None
    return StructType([*SCHEMA.fields, StructField("headers", HEADERS)]) if headers else SCHEMA


def check_schema(given: StructType, options: Mapping[str, str]) -> None:
    """Refuse the user's own columns. Spark allows them, and would notice only in a task that the source has others."""
    fixed = schema(options)
    if given.simpleString() != fixed.simpleString():
        raise SchemaError(
            f"the columns can't be chosen: they are {', '.join(fixed.names)}; leave the schema out, and select them"
        )


class OncelogReader(SentToWorkers, DataSourceReader):
    """A batch: the offsets at which it begins and ends are fixed when the query is planned."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = source_options(options, streaming=False)

    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        client = client_of(options.client)

        def plan() -> list[Range]:
            parts = assigned(client, options.subscription)
            check_exist(options.subscription, parts)
            start = starts(client, parts, options)
            end = ends(client, parts, options)
            _check_within_log(client, start, options.starting, options)
            _check_within_log(client, end, options.ending, options)
            ids = _ids(client, parts)
            return [Range(*part, start[part], end[part], ids.get(part[0], "")) for part in sorted(parts)]

        return _tasks(client.retrying(plan), options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(partition, self._options)


class OncelogStreamReader(SentToWorkers, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream. In one long-lived process Spark asks how far the next batch goes, and then lets it be planned."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = source_options(options, streaming=True)
        self._planned = INITIAL  # where the last batch ended. PySpark 4.0 and 4.1 plan it again first, after a restart
        self._known: set[TopicPartition] = set()
        self._ids: Ids = {}
        self._given_up: set[TopicPartition] = set()  # they are gone, and were waited for
        self._others_since: float | None = None  # when topics were first seen that were made anew
        self._shorter_since: float | None = None  # when logs were first seen that had lost their end
        self._looked_at = float("-inf")
        self._latest: Offsets = {}
        self._taken: Offsets = {}
        self._target: Offsets | None = None  # of availableNow: no batch goes further
        self._last_batch_at = time.monotonic()
        self._warned = False

    def initialOffset(self) -> dict[str, Any]:
        return INITIAL

    def latestOffset(self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None) -> dict[str, Any]:
        """Where the next batch ends; `start` itself if there is nothing to read."""
        client = client_of(self._options.client)
        start = self._planned if start is None else start
        try:
            return client.retrying(lambda: self._next_end(start, limit))
        except TopicGone as error:
            report_loss(self._options, str(error))
            self._given_up = from_json(start).keys() - self._latest.keys()
        return client.retrying(lambda: self._next_end(start, limit))

    def getDefaultReadLimit(self) -> ReadLimit:
        options = self._options
        if options.max_offsets_per_trigger:
            return ReadMaxRows(options.max_offsets_per_trigger)
        if options.min_offsets_per_trigger:
            return ReadMinRows(options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        client = client_of(self._options.client)
        self._target = client.retrying(lambda: self._look(look_around=True))

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """The position of the log's end, which the progress of the query shows beside the end of the batch."""
        behind = sum(latest - self._taken.get(part, latest) for part, latest in self._latest.items())
        return {"@offsetsBehindLatest": behind, **to_json(self._latest)}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        self._planned = end
        begins = begins_of({} if is_initial(start) else start, end)
        ends, ids = from_json(end), ids_of(end)
        unnamed = ends.keys() - begins.keys()
        if unnamed:
            client = client_of(self._options.client)
            begins |= client.retrying(lambda: self._begins_of_unnamed(start, unnamed))
        ranges = [Range(*part, begins[part], offset, ids.get(part[0], "")) for part, offset in ends.items()]
        return _tasks(ranges, self._options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(partition, self._options)

    def commit(self, end: dict[str, Any]) -> None:
        """Tell the consumer group, if one is named. Nothing ever reads its position from there, so a failure does not
        matter.
        """
        group = self._options.group
        if group is None:
            return
        client = client_of(self._options.client)
        try:
            client.retrying(lambda: publish(client, group, from_json(end)), patience_seconds=PUBLISH_SECONDS)
        except OncelogError as error:
            logger.warning("the position was not published: %s", error)

    def _look(self, *, look_around: bool) -> Offsets:
        """Where each partition ends now."""
        client = client_of(self._options.client)
        if look_around or time.monotonic() - self._looked_at > LOOK_AROUND_SECONDS:
            self._known = assigned(client, self._options.subscription)
            self._ids = _ids(client, self._known)
            self._looked_at = time.monotonic()
        self._latest = edges(client, self._known, Edge.LATEST, committed=self._options.committed)
        return self._latest

    def _next_end(self, start: dict[str, Any], limit: ReadLimit | None) -> dict[str, Any]:
        options, client = self._options, client_of(self._options.client)
        latest = self._look(look_around=is_initial(start))
        ids = self._ids
        before = from_json(start)
        if self._target is not None:  # what is known to exist belongs to it, though it was not told of when it was set
            exist = before if before or options.subscription.pattern else latest
            self._target = {part: latest[part] for part in exist if part in latest} | self._target
        if is_initial(start):
            check_exist(options.subscription, self._known)
            parts = self._known if self._target is None else self._known & self._target.keys()
            begins = new = starts(client, parts, options)
            _check_within_log(client, begins, options.starting, options)
            latest = _not_before(client, begins, latest)
        else:
            known = ids_of(start)
            self._warn_of_unknown(before, known)
            others = remade(before, known, ids)
            self._check_there(before, others, latest)
            same = {part: offset for part, offset in before.items() if part not in others}
            latest = _not_before(client, same, latest)
            new = self._begins_of_new(before, latest) | self._begins_of_lost(before, others, known, latest)
            begins = same | new
            latest = {
                part: begins[part] for part in same
            } | latest  # a partition that is waited for stays at its position
            ids = {topic: known[topic] for topic, _ in same if topic in known} | ids
        end = self._limited(begins, {part: latest[part] for part in begins}, limit)
        self._taken = end
        then = end_of_batch(end, new, ids)
        idle = not new and not is_initial(start) and end == begins and ids_of(then) == ids_of(start)
        return start if idle else then

    def _warn_of_unknown(self, before: Offsets, known: Ids) -> None:
        unknown = sorted({topic for topic, _ in before} - known.keys())
        if unknown and not self._warned:
            self._warned = True
            logger.warning(
                "the checkpoint was written by an earlier version and does not tell which topics it means by %s: those"
                " that are there now are taken for them", ", ".join(map(repr, unknown)),
            )  # fmt: skip

    def _check_there(self, before: Offsets, others: set[TopicPartition], latest: Offsets) -> None:
        """A broker that has just started may not know a topic, or may know a former one. So such a topic is waited for,
        and its position is kept.
        """
        self._given_up -= latest.keys()
        left_out = {part for part in before.keys() - latest.keys() if not self._options.subscription.names(part)}
        for part in sorted(left_out - self._given_up):
            what = f"{_name(part)} was read up to offset {before[part]}, and is not subscribed to any more"
            report_loss(self._options, what)
        self._given_up |= left_out
        gone = sorted(before.keys() - latest.keys() - others - self._given_up)
        if gone:
            self._looked_at = float("-inf")
            raise TopicGone(
                ", ".join(f"{_name(part)} was read up to offset {before[part]} and is gone" for part in gone)
            )
        if not others:
            self._others_since = None
        elif not self._options.fail_on_data_loss:
            self._others_since = self._others_since or time.monotonic()
            what = "another topic is in the place of " + ", ".join(sorted({topic for topic, _ in others}))
            self._look_again(self._others_since, what)

    def _look_again(self, since: float, what: str) -> None:
        """Loss that may be passed over is not believed at the word of a broker that lags behind."""
        if time.monotonic() - since < min(LAGGING_SECONDS, self._options.client.patience_seconds):
            self._looked_at = float("-inf")
            raise TopicGone(what)

    def _begins_of_lost(self, before: Offsets, others: set[TopicPartition], known: Ids, latest: Offsets) -> Offsets:
        """Where to go on if records that were to be read are gone: at the first record of a topic that was made again,
        or at the end of one that was cut. An error unless loss is allowed.
        """
        shorter = {
            part: f"{_name(part)} was read up to offset {before[part]} and ends at {latest[part]} now"
            for part in sorted(before.keys() & latest.keys() - others)
            if latest[part] < before[part]
        }
        if not shorter:
            self._shorter_since = None
        elif not self._options.fail_on_data_loss:
            self._shorter_since = self._shorter_since or time.monotonic()
            self._look_again(self._shorter_since, ", ".join(shorter.values()))
        for part in sorted(others):
            report_loss(self._options, f"{_name(part)} was read up to offset {before[part]}, and was made anew")
        for part, what in shorter.items():
            report_loss(self._options, what if part[0] in known else f"{what}: it was made anew")
        anew = others & latest.keys() | {part for part in shorter if part[0] not in known}
        client = client_of(self._options.client)
        first = edges(client, anew, Edge.EARLIEST, committed=self._options.committed)
        return {part: latest[part] for part in shorter} | first

    def _begins_of_new(self, before: Offsets, latest: Offsets) -> Offsets:
        """Partitions that appeared since the query began are read from their first record on."""
        new = latest.keys() - before.keys()
        if self._target is not None:
            new &= self._target.keys()
        begins = edges(client_of(self._options.client), new, Edge.EARLIEST, committed=self._options.committed)
        for (topic, partition), offset in sorted(begins.items()):
            if offset > 0:
                report_loss(self._options, f"{topic}-{partition} is new, and begins at offset {offset} already")
        return begins

    def _begins_of_unnamed(self, start: dict[str, Any], parts: set[TopicPartition]) -> Offsets:
        """PySpark 4.0 and 4.1 ask for the end of a first batch, and of the first after a restart, before they tell its
        start. So that end could not name these partitions. The batch ends where it was asked to, all the same.
        """
        if is_initial(start):
            return starts(client_of(self._options.client), parts, self._options)
        return edges(client_of(self._options.client), parts, Edge.EARLIEST, committed=self._options.committed)

    def _limited(self, begins: Offsets, latest: Offsets, limit: ReadLimit | None) -> Offsets:
        """How far the next batch goes, by the options and by what Spark asks for."""
        options = self._options
        if self._target is not None:
            target = {part: max(begin, self._target.get(part, begin)) for part, begin in begins.items()}
            latest = {part: min(offset, target[part]) for part, offset in latest.items()}
        if limit is not None and isinstance(limit, ReadAllAvailable):
            return latest
        fewest = options.min_offsets_per_trigger
        if fewest and self._target is None:
            waited_ms = (time.monotonic() - self._last_batch_at) * 1000
            size = sum(max(offset - begins[part], 0) for part, offset in latest.items())
            if size < fewest and waited_ms < options.max_trigger_delay_ms:
                return {part: begins[part] for part in latest}
            self._last_batch_at = time.monotonic()
        most = options.max_offsets_per_trigger
        return limited(begins, latest, most) if most else latest


def _not_before(client: Client, begins: Offsets, latest: Offsets) -> Offsets:
    """Where a stream begins at an offset that the user named, or read uncommitted records so far, a transaction may be
    open before: then there is nothing to read yet, and nothing is lost."""
    before = [part for part, begin in begins.items() if latest.get(part, begin) < begin]
    written = edges(client, before, Edge.LATEST, committed=False)
    return latest | {part: begins[part] for part in before if written[part] >= begins[part]}


def _name(part: TopicPartition) -> str:
    return f"{part[0]}-{part[1]}"


def _ids(client: Client, parts: set[TopicPartition]) -> Ids:
    found = {topic: client.topic(topic).id for topic in {topic for topic, _ in parts}}
    return {topic: str(id_) for topic, id_ in found.items() if id_ != NO_ID}


def _check_within_log(client: Client, offsets: Offsets, bound: Bound, options: SourceOptions) -> None:
    """Offsets that an option names must be there. If loss is allowed, another one is moved to the nearest that is
    there.
    """
    if not isinstance(bound, AtOffsets):
        return
    first = edges(client, offsets, Edge.EARLIEST, committed=options.committed)
    last = edges(client, offsets, Edge.LATEST, committed=False)
    for part, offset in sorted(offsets.items()):
        if not first[part] <= offset <= last[part]:
            where = f"{part[0]}-{part[1]}, which holds {first[part]} to {last[part]}"
            report_loss(options, f"option {bound.option!r} names offset {offset} of {where}")
            offsets[part] = min(max(offset, first[part]), last[part])


def _tasks(ranges: list[Range], options: SourceOptions) -> list[Range]:
    return tasks(ranges, at_least=options.min_partitions, most_records=options.max_records_per_partition)


def _read(partition: InputPartition, options: SourceOptions) -> Iterator[pa.RecordBatch]:
    try:
        keep_freed_memory()
        if isinstance(partition, Range):  # Spark makes up another one where there is nothing to read
            yield from read_range(client_of(options.client), partition, options)
    finally:
        spare_collections()

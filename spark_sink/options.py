"""The options of source and sink: their names, what is read from them, and what is wrong with them.

They are Spark's own names for Kafka, in any case. What always holds: every option that is given is honoured, named
below as one that has no effect here, or refused with an error that names it; nothing is asked of a broker before that.
Each side knows the other's names, because a table in SQL carries the options of both.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from enum import Enum
from typing import Any, Final, TypeVar

from spark_sink.client import Address, ClientSettings
from spark_sink.errors import OptionError

TopicPartition = tuple[str, int]
T = TypeVar("T")
INT_MAX: Final = 2**31 - 1
LONG_MAX: Final = 2**63 - 1

SOURCE_NAMES: Final = (
    "assign", "subscribe", "subscribePattern", "startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy", "endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp",
    "failOnDataLoss", "maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "minPartitions",
    "maxRecordsPerPartition", "groupIdPrefix", "includeHeaders", "kafkaConsumer.pollTimeoutMs",
)  # fmt: skip
# The sink reads them in its own modules.
SINK_NAMES: Final = ("topic", "root", "skipDecided", "txnAppId", "txnVersion")

# Options of Spark's source and of Kafka's clients that mean nothing to this one: taken, so that a job can be moved.
WITHOUT_EFFECT: Final = frozenset(
    [
        "fetchoffset.numretries", "fetchoffset.retryintervalms", "kafka.allow.auto.create.topics",
        "kafka.auto.commit.interval.ms", "kafka.auto.include.jmx.reporter", "kafka.check.crcs",
        "kafka.client.dns.lookup", "kafka.client.rack", "kafka.connections.max.idle.ms",
        "kafka.default.api.timeout.ms", "kafka.enable.metrics.push", "kafka.exclude.internal.topics",
        "kafka.fetch.min.bytes", "kafka.group.instance.id", "kafka.group.protocol", "kafka.group.remote.assignor",
        "kafka.heartbeat.interval.ms", "kafka.max.poll.interval.ms", "kafka.max.poll.records",
        "kafka.metadata.max.age.ms", "kafka.metadata.recovery.strategy", "kafka.metric.reporters",
        "kafka.metrics.num.samples", "kafka.metrics.recording.level", "kafka.metrics.sample.window.ms",
        "kafka.partition.assignment.strategy", "kafka.receive.buffer.bytes", "kafka.reconnect.backoff.max.ms",
        "kafka.reconnect.backoff.ms", "kafka.retry.backoff.max.ms", "kafka.retry.backoff.ms",
        "kafka.send.buffer.bytes", "kafka.session.timeout.ms", "kafka.socket.connection.setup.timeout.max.ms",
    ]
)  # fmt: skip

# What Spark's source refuses too, and its reasons.
REFUSED_BY_SOURCE: Final = {
    "kafka.auto.offset.reset": "set startingOffsets instead; Spark keeps track of what was read, not the consumer",
    "kafka.key.deserializer": "keys are given as binary; turn them into what they are with Spark's functions",
    "kafka.value.deserializer": "values are given as binary; turn them into what they are with Spark's functions",
    "kafka.enable.auto.commit": "positions are kept in Spark's checkpoint; kafka.group.id publishes them as well",
    "kafka.interceptor.classes": "an interceptor is Java code, and could change what was read",
    "path": "topics are named by an option: .option('subscribe', '…').load()",
}
BROKERS: Final = "kafka.bootstrap.servers"
OF_TABLES: Final = (
    "; there is no option at all, and Spark hands none of a table's to what is written in Python. Say them with the"
    " statement, INSERT INTO … WITH (`kafka.bootstrap.servers` = '…', topic = '…'), or make a TEMPORARY VIEW instead of"
    " a table; CREATE TABLE … AS SELECT can't be told any"
)
SECURITY: Final = ("kafka.security.", "kafka.sasl.", "kafka.ssl.")

DURATION_UNITS_MS: Final = {
    "": 1, "ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000,
}  # fmt: skip
BY_PARTITION: Final = '{"topic": {"0": 23}}'
# How much a fetch may bring: long enough that asking costs nothing beside decoding, short enough to stay in the cache.
FETCH_BYTES: Final = 4 << 20
FETCH_WAIT_MS: Final = 500
TRUE_OR_FALSE: Final = {"true": True, "false": False}


class OptionReader:
    """Takes options one by one, and at the end refuses what nobody took."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._given = {name.lower(): value for name, value in options.items()}
        self._taken: dict[str, str] = {}

    def text(self, name: str) -> str | None:
        self._taken[name.lower()] = name
        return self._given.get(name.lower())

    def number(self, name: str, *, lowest: int = 1, highest: int = INT_MAX) -> int | None:
        text = self.text(name)
        if text is None:
            return None
        try:
            number = int(text)
        except ValueError:
            raise OptionError(name, f"{text!r} is not a whole number") from None
        if number < lowest:
            raise OptionError(name, f"must be at least {lowest}, not {number}")
        if number > highest:
            raise OptionError(name, f"must be at most {highest}, not {number}")
        return number

    def flag(self, name: str, default: bool) -> bool:
        return self.choice(name, TRUE_OR_FALSE, default)

    def choice(self, name: str, choices: Mapping[str, T], default: T) -> T:
        text = self.text(name)
        if text is None:
            return default
        if text.lower() not in choices:
            raise OptionError(name, f"must be {' or '.join(choices)}, not {text!r}")
        return choices[text.lower()]

    def duration_ms(self, name: str, default_ms: int) -> int:
        text = self.text(name)
        if text is None:
            return default_ms
        match = re.fullmatch(r"(\d+)\s*([a-z]*)", text.strip().lower())
        if match is None or match[2] not in DURATION_UNITS_MS:
            raise OptionError(name, f"{text!r} is not a duration like 500ms, 30s, 15m or 2h")
        return int(match[1]) * DURATION_UNITS_MS[match[2]]

    def hint_at(self, name: str) -> str:
        """Why an option that must be given may be missing."""
        if not self._given:
            return OF_TABLES
        near = get_close_matches(name, self._given.keys() - {name}, n=1)
        return f"; {near[0]!r} is given, did you mean {name!r}?" if near else ""

    def refuse_the_rest(self, *, also_known: Iterable[str] = ()) -> None:
        known = self._taken | {name.lower(): name for name in also_known}
        for name in self._given:
            if name in known or name in WITHOUT_EFFECT:
                continue
            if name.startswith(SECURITY):
                raise OptionError(name, "encrypted and authenticated connections are not supported yet")
            near = get_close_matches(name, [*known, *WITHOUT_EFFECT], n=1)
            hint = f"; did you mean {known.get(near[0], near[0])!r}?" if near else ""
            raise OptionError(name, f"there is no such option{hint}")


def client_settings(options: OptionReader) -> ClientSettings:
    """What source and sink need to reach the brokers."""
    bootstrap = [part.strip() for part in (options.text(BROKERS) or "").split(",") if part.strip()]
    if not bootstrap:
        raise OptionError(BROKERS, f"must name the brokers, as host:port[,host:port…]{options.hint_at(BROKERS)}")
    options.choice("kafka.security.protocol", {"plaintext": None}, None)
    defaults = ClientSettings(())
    connect_ms = options.number("kafka.socket.connection.setup.timeout.ms")
    request_ms = options.number("kafka.request.timeout.ms")
    patience_ms = options.number("kafkaConsumer.pollTimeoutMs")
    return ClientSettings(
        tuple(_address(part) for part in bootstrap),
        options.text("kafka.client.id") or defaults.client_id,
        connect_ms / 1000 if connect_ms else defaults.connect_timeout_seconds,
        request_ms / 1000 if request_ms else defaults.request_timeout_seconds,
        patience_ms / 1000 if patience_ms else defaults.patience_seconds,
    )


def _address(text: str) -> Address:
    host, _, port = text.removeprefix("PLAINTEXT://").rpartition(":")
    if not host or "/" in host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise OptionError(BROKERS, f"{text!r} is not host:port")
    return host.strip("[]"), int(port)


class Edge(Enum):
    """Either end of a partition."""

    EARLIEST = -2
    LATEST = -1


@dataclass(frozen=True)
class AtOffsets:
    """An offset for each partition; -2 is the earliest, -1 the latest."""

    option: str
    offsets: Mapping[TopicPartition, int]


@dataclass(frozen=True)
class AtTimestamps:
    """The first record from a time on: one for all partitions (None), or one for each."""

    option: str
    timestamps_ms: Mapping[TopicPartition, int] | None
    timestamp_ms: int = 0


Bound = Edge | AtOffsets | AtTimestamps


@dataclass(frozen=True)
class Subscription:
    """Which partitions are read: those named, those of topics named, or those of topics that match."""

    option: str
    partitions: frozenset[TopicPartition] = frozenset()
    topics: frozenset[str] = frozenset()
    pattern: str = ""

    def names(self, partition: TopicPartition) -> bool:
        """Whether the partition is meant, be it there or not."""
        if self.pattern:
            return re.fullmatch(self.pattern, partition[0]) is not None
        return partition in self.partitions if self.partitions else partition[0] in self.topics


@dataclass(frozen=True)
class SourceOptions:
    client: ClientSettings
    subscription: Subscription
    starting: Bound
    ending: Bound
    latest_where_no_timestamp: bool
    committed: bool
    fail_on_data_loss: bool
    headers: bool
    min_partitions: int | None
    max_records_per_partition: int | None
    max_offsets_per_trigger: int | None
    min_offsets_per_trigger: int | None
    max_trigger_delay_ms: int
    group: str | None
    fetch_bytes: int
    fetch_wait_ms: int


def source_options(options: Mapping[str, str], *, streaming: bool) -> SourceOptions:
    """Read and check the options of `spark.read` (or `readStream`)."""
    read = OptionReader(options)
    if read.text("provider") is not None:  # so it is with CREATE TABLE
        raise OptionError(
            "provider",
            "Spark tells no source written in Python the options of its tables, so a table could be made but not read; "
            "CREATE TEMPORARY VIEW … USING oncelog OPTIONS (…) can",
        )
    for name, reason in REFUSED_BY_SOURCE.items():
        if read.text(name) is not None:
            raise OptionError(name, f"is not supported: {reason}")
    client = client_settings(read)
    subscription = _subscription(read)
    starting = _starting(read, streaming=streaming)
    ending = _ending(read, streaming=streaming)
    for bound in (starting, ending):
        _check_is_assigned(bound, subscription)
    most = read.number("maxOffsetsPerTrigger", highest=LONG_MAX)
    fewest = read.number("minOffsetsPerTrigger", highest=LONG_MAX)
    if most and fewest and fewest > most:
        raise OptionError("minOffsetsPerTrigger", f"is {fewest}, which is more than maxOffsetsPerTrigger: {most}")
    fetch_bytes = read.number("kafka.max.partition.fetch.bytes") or FETCH_BYTES
    found = SourceOptions(
        client=client,
        subscription=subscription,
        starting=starting,
        ending=ending,
        latest_where_no_timestamp=read.choice(
            "startingOffsetsByTimestampStrategy", {"error": False, "latest": True}, False
        ),
        committed=read.choice("kafka.isolation.level", {"read_committed": True, "read_uncommitted": False}, True),
        fail_on_data_loss=read.flag("failOnDataLoss", True),
        headers=read.flag("includeHeaders", False),
        min_partitions=read.number("minPartitions"),
        max_records_per_partition=read.number("maxRecordsPerPartition", highest=LONG_MAX),
        max_offsets_per_trigger=most,
        min_offsets_per_trigger=fewest,
        max_trigger_delay_ms=read.duration_ms("maxTriggerDelay", 15 * 60_000),
        group=_group(read, subscription),
        fetch_bytes=min(fetch_bytes, read.number("kafka.fetch.max.bytes") or fetch_bytes),
        fetch_wait_ms=read.number("kafka.fetch.max.wait.ms") or FETCH_WAIT_MS,
    )
    read.refuse_the_rest(also_known=SINK_NAMES)
    return found


def _subscription(read: OptionReader) -> Subscription:
    given = [(name, text) for name in ("assign", "subscribe", "subscribePattern") if (text := read.text(name))]
    if len(given) != 1:
        problem = "is given along with " + given[1][0] if given else "or assign or subscribePattern must be given"
        if not given and (topic := read.text("topic")) is not None:
            problem += (
                f": 'topic' is where rows are written to. To read it, say subscribe {topic!r}; in SQL in a view of its"
                " own without columns: CREATE TEMPORARY VIEW … USING oncelog OPTIONS ('kafka.bootstrap.servers' '…',"
                f" subscribe {topic!r})"
            )
        raise OptionError(given[0][0] if given else "subscribe", problem)
    ((name, text),) = given
    if name == "assign":
        named = _json(name, text, '{"topic": [0, 1]}')
        if not all(isinstance(numbers, list) and all(map(_is_partition, numbers)) for numbers in named.values()):
            raise OptionError(name, 'must be JSON like {"topic": [0, 1]}')
        partitions = frozenset((topic, number) for topic, numbers in named.items() for number in numbers)
        if not partitions:
            raise OptionError(name, "names no partition")
        return Subscription(name, partitions=partitions, topics=frozenset(topic for topic, _ in partitions))
    if name == "subscribe":
        topics = frozenset(part.strip() for part in text.split(",") if part.strip())
        if not topics:
            raise OptionError(name, "names no topic")
        return Subscription(name, topics=topics)
    try:
        re.compile(text)
    except re.error as error:
        raise OptionError(name, f"{text!r} is not a regular expression: {error}") from None
    return Subscription(name, pattern=text)


def _is_partition(number: object) -> bool:
    return type(number) is int and 0 <= number <= INT_MAX


def _starting(read: OptionReader, *, streaming: bool) -> Bound:
    timestamps = _timestamps(read, "startingTimestamp", "startingOffsetsByTimestamp")
    bound = _offsets(read, "startingOffsets", Edge.LATEST if streaming else Edge.EARLIEST)
    if timestamps is not None:
        return timestamps
    if not streaming and (bound is Edge.LATEST or (isinstance(bound, AtOffsets) and -1 in bound.offsets.values())):
        raise OptionError("startingOffsets", "a batch query can't start at the latest offset: there is nothing behind")
    return bound


def _ending(read: OptionReader, *, streaming: bool) -> Bound:
    timestamps = _timestamps(read, "endingTimestamp", "endingOffsetsByTimestamp")
    bound = _offsets(read, "endingOffsets", Edge.LATEST)
    for name in ("endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets"):
        if streaming and read.text(name) is not None:
            raise OptionError(name, "a streaming query has no end")
    if timestamps is not None:
        return timestamps
    if bound is Edge.EARLIEST or (isinstance(bound, AtOffsets) and -2 in bound.offsets.values()):
        raise OptionError("endingOffsets", "a query can't end at the earliest offset: there is nothing before")
    return bound


def _timestamps(read: OptionReader, for_all: str, for_each: str) -> AtTimestamps | None:
    timestamp_ms, text = read.number(for_all, lowest=0, highest=LONG_MAX), read.text(for_each)
    if timestamp_ms is not None:
        return AtTimestamps(for_all, None, timestamp_ms)
    return AtTimestamps(for_each, _numbers_by_partition(for_each, text, lowest=0)) if text is not None else None


def _offsets(read: OptionReader, name: str, default: Edge) -> Bound:
    text = read.text(name)
    if text is None:
        return default
    if text.strip().upper() in Edge.__members__:
        return Edge[text.strip().upper()]
    if not text.lstrip().startswith("{"):
        raise OptionError(name, f"must be earliest, latest or JSON like {BY_PARTITION}, not {text!r}")
    return AtOffsets(name, _numbers_by_partition(name, text, lowest=-2))


def _numbers_by_partition(name: str, text: str, *, lowest: int) -> dict[TopicPartition, int]:
    numbers = {}
    for topic, by_partition in _json(name, text, BY_PARTITION).items():
        if not isinstance(by_partition, dict):
            raise OptionError(name, f"must be JSON like {BY_PARTITION}")
        for partition, number in by_partition.items():
            known = partition.isdecimal() and _is_partition(int(partition))
            if not known or type(number) is not int or not lowest <= number <= LONG_MAX:
                raise OptionError(name, f"must be JSON like {BY_PARTITION}; {topic}: {{{partition!r}: {number!r}}}")
            numbers[topic, int(partition)] = number
    return numbers


def _json(name: str, text: str, example: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise OptionError(name, f"must be JSON like {example}: {error}") from None
    if not isinstance(value, dict):
        raise OptionError(name, f"must be JSON like {example}")
    return value


def _check_is_assigned(bound: Bound, subscription: Subscription) -> None:
    """Where all partitions are known from the options alone, so is what is missing."""
    named = None if isinstance(bound, Edge) else bound.offsets if isinstance(bound, AtOffsets) else bound.timestamps_ms
    if named is not None and subscription.partitions:
        check_names_all(bound, named, subscription.partitions)


def check_names_all(bound: Bound, named: Iterable[TopicPartition], assigned: Iterable[TopicPartition]) -> None:
    """As in Spark, a user who names partitions names all of them."""
    missing, unknown = sorted({*assigned} - {*named}), sorted({*named} - {*assigned})
    if missing or unknown:
        assert not isinstance(bound, Edge)
        parts = ", ".join(f"{topic}-{partition}" for topic, partition in missing or unknown)
        problem = f"names nothing for {parts}, which is read" if missing else f"names {parts}, which is not read"
        raise OptionError(bound.option, f"{problem}; all partitions that are read must be named, and no others")


def _group(read: OptionReader, subscription: Subscription) -> str | None:
    """The consumer group that is told the position, for lag tools. A name made from a prefix is the same after a
    restart: a group for every run would be a trail of dead groups."""
    group, prefix = read.text("kafka.group.id"), read.text("groupIdPrefix")
    if group or not prefix:
        return group
    parts = (*sorted(subscription.partitions), *sorted(subscription.topics), subscription.pattern)
    return f"{prefix}-{zlib.crc32(repr(parts).encode()):08x}"

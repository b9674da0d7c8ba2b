"""The options of the sink. `options.py` holds what source and sink have in common, and how options are read."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from spark_sink.client import ClientSettings
from spark_sink.compress import CODES, LEVELS
from spark_sink.errors import OptionError
from spark_sink.options import LONG_MAX, SOURCE_NAMES, OptionReader, client_settings

# Branches wait for a decision no longer than this. As long as Kafka's brokers allow by default: the first task of a
# large batch waits for the last.
TRANSACTION_TIMEOUT_MS: Final = 900_000
DELIVERY_TIMEOUT_MS: Final = 120_000

# Spark hands these to every sink.
OF_SPARK: Final = ("checkpointLocation", "queryName", "outputMode")

# Options of Kafka's producer that have no counterpart: taken, so that a job can be moved.
WITHOUT_EFFECT: Final = (
    "kafka.batch.size", "kafka.buffer.memory", "kafka.linger.ms", "kafka.max.block.ms",
    "kafka.max.in.flight.requests.per.connection", "kafka.metadata.max.idle.ms",
    "kafka.partitioner.adaptive.partitioning.enable", "kafka.partitioner.availability.timeout.ms", "kafka.retries",
)  # fmt: skip

# The source's own among Kafka's names: a view in SQL carries the options of both.
OF_CONSUMERS: Final = (
    "kafka.fetch.max.bytes", "kafka.fetch.max.wait.ms", "kafka.group.id", "kafka.isolation.level",
    "kafka.max.partition.fetch.bytes",
)  # fmt: skip

REFUSED: Final = {
    "kafka.transactional.id": "the sink names its transactions itself: set 'root', or 'txnAppId' and 'txnVersion'",
    "path": "a topic is named by an option: .option('topic', '…').save(), or .start() for a stream",
    "kafka.key.serializer": "keys are written as they are; turn them into bytes with Spark's functions",
    "kafka.value.serializer": "values are written as they are; turn them into bytes with Spark's functions",
    "kafka.interceptor.classes": "an interceptor is Java code, and could change what is written",
    "kafka.partitioner.class": "a partitioner is Java code; set the partition in the column 'partition'",
    "kafka.partitioner.ignore.keys": "a row with a key goes where its key says, or where the column 'partition' does",
}


@dataclass(frozen=True)
class SinkOptions:
    """What can be said about writing, as it was understood. Picklable: it travels to the executors."""

    client: ClientSettings
    topic: str | None
    root: str | None  # streams: instead of the query's id
    token: int | None  # batch writes: txnVersion, with the root made of txnAppId
    app: str | None
    skip_decided: bool
    checkpoint: str | None
    codec: str
    level: int | None
    largest_request_bytes: int | None
    transaction_timeout_ms: int
    # What the names of a stream's branches begin with, the same for tasks and driver: Spark doesn't tell the driver's
    # side which query it is, but the options, and the checkpoint is the query's alone. Empty if it is not among them.
    mark: str


def read_sink_options(given: Mapping[str, str], *, streaming: bool) -> SinkOptions:
    """Raises OptionError for what can't be honoured."""
    options = OptionReader(given)
    for name, reason in REFUSED.items():
        if options.text(name) is not None:
            raise OptionError(name, f"not supported: {reason}")
    if (options.text("kafka.acks") or "all").lower() not in ("all", "-1"):
        raise OptionError("kafka.acks", "must be all: with less, what was acknowledged may be lost")
    if not options.flag("kafka.enable.idempotence", True):
        raise OptionError("kafka.enable.idempotence", "must be true: without it nothing is written exactly once")
    delivery_ms = options.number("kafka.delivery.timeout.ms") or DELIVERY_TIMEOUT_MS
    codec = options.choice("kafka.compression.type", {name: name for name in CODES}, "none")
    levels = {
        name: options.number(f"kafka.compression.{name}.level", lowest=lowest, highest=highest)
        for name, (lowest, highest) in LEVELS.items()
    }
    root, token = _root_and_token(options, streaming)
    read = SinkOptions(
        client=replace(client_settings(options), patience_seconds=delivery_ms / 1000),
        topic=_topic(options),
        root=root,
        token=token,
        app=_name(options, "txnAppId"),
        skip_decided=options.flag("skipDecided", False),
        checkpoint=options.text("checkpointLocation"),
        codec=codec,
        level=levels.get(codec),
        largest_request_bytes=options.number("kafka.max.request.size"),
        transaction_timeout_ms=options.number("kafka.transaction.timeout.ms") or TRANSACTION_TIMEOUT_MS,
        mark=_mark(given) if streaming else "",
    )
    options.refuse_the_rest(also_known=(*SOURCE_NAMES, *OF_CONSUMERS, *OF_SPARK, *WITHOUT_EFFECT))
    return read


def _topic(options: OptionReader) -> str | None:
    topic = options.text("topic")
    if topic is not None and not topic.strip():
        raise OptionError("topic", "is empty")
    return topic


def _mark(given: Mapping[str, str]) -> str:
    options = {name.lower(): value for name, value in given.items()}
    return f"{zlib.crc32(repr(sorted(options.items())).encode()):08x}." if "checkpointlocation" in options else ""


def _root_and_token(options: OptionReader, streaming: bool) -> tuple[str | None, int | None]:
    root = _name(options, "root")
    app = _name(options, "txnAppId")
    version = options.number("txnVersion", lowest=0, highest=LONG_MAX)
    if streaming:
        if app is not None or version is not None:
            name = "txnAppId" if app is not None else "txnVersion"
            raise OptionError(name, "is for batch writes, as in foreachBatch; a stream has 'root'")
        return root, None
    if root is not None:
        raise OptionError("root", "is for streams; a batch write has 'txnAppId' and 'txnVersion'")
    if (app is None) != (version is None):
        missing, has = ("txnVersion", "txnAppId") if version is None else ("txnAppId", "txnVersion")
        raise OptionError(missing, f"must be set together with {has!r}")
    topic = options.text("topic")
    if app is None:
        return None, None
    # As in Delta Lake, where each table counts for itself: one application may write one version to two topics. No
    # topic's name holds a slash, so a name that holds one can be that of no application alone.
    return (f"{app}/{topic}" if topic is not None else f"{app}/" if "/" in app else app), version


def _name(options: OptionReader, option: str) -> str | None:
    name = options.text(option)
    if name is not None and (not name.strip() or "::" in name):
        raise OptionError(option, f"must not be empty or hold '::': {name!r}")
    return name

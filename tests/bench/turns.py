"""How long one request may hold the event loop: for each API the largest requests that the protocol lets through, at a
live broker in this process. What is measured is the processor time that the loop's thread spends between two looks for
events, so that others on the machine count little. The names of everything that is asked for are made up once, and once
they exist.

    python -m tests.bench.turns                   each API, its longest turn in ms with the collector and without
    python -m tests.bench.turns --only metadata   those whose name contains the text
    python -m tests.bench.turns --only groups     ListGroups and others, and members of very many topics
    python -m tests.bench.turns --only http       bodies as long as HTTP takes, and streams to which nothing comes
    python -m tests.bench.turns --where 10        and where the loop was in turns of more than 10 ms
    python -m tests.bench.turns --shapes          each shape of the requests by itself

The status is 1 if a turn was longer than 10 ms without the collector, whose passes are in the second column.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import socket
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from http.client import HTTPException
from pathlib import Path
from typing import Any, Final

from log.batch import build_batch, set_max_timestamp
from service.api.routes import ROUTES
from service.garbage import Garbage
from service.net.server import OTHER_REQUEST_BYTES
from service.process import run_broker
from service.settings.broker import BrokerConfig, Endpoint
from service.wire import messages
from service.wire.base import Struct
from service.wire.codec import (
    MAX_REQUEST_ELEMENTS,
    MOST_ELEMENTS,
    decode_response,
    encode_request,
    read_response_header,
    write_request_header,
)
from service.wire.layout import Field
from service.wire.messages.schemas import MESSAGES
from service.wire.messages.versions import ApiKey
from tests.bench import http_turns
from tests.bench.group_turns import longest_turns
from tests.bench.timed import TimedSelector, Turns
from tests.service.wire.making import known_layout

TOPICS: Final = 1_000
"""There are so many topics of one partition, and one of so many partitions."""
HEADERS_LIE, FIRST_DELETED = "topic.1", "topic.2"
BATCHES: Final = 20_000
"""So many small batches are in each of these two."""
WIDE, GROUP, TRANSACTION = "wide", "group", "transaction"
LARGE: Final = "large"
"""It takes batches of 100 MB."""
CONSUMER_GROUP: Final = 32
MOST_MS: Final = 10.0
PATIENCE_S: Final = 120.0
SETTLED_S: Final = 0.1
LAST: Final = (ApiKey.END_TXN, ApiKey.DELETE_RECORDS, ApiKey.DELETE_GROUPS, ApiKey.DELETE_TOPICS)
"""These take away what others ask for."""
SETTINGS: Final = {
    "node.id": "1",
    "listeners": "PLAINTEXT://127.0.0.1:0",
    "log.reserve.bytes": "0",
    "auto.create.topics.enable": "false",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "2",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "2",
    "group.initial.rebalance.delay.ms": "0",
}


# ---------------------------------------------------------------- the broker


class LiveBroker:
    """A broker on a loop of its own, in a thread of this process."""

    def __init__(self, folder: Path, turns: Turns) -> None:
        self._config = BrokerConfig({**SETTINGS, "log.dirs": f"{folder}/a,{folder}/b"})
        self._turns = turns
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self.port = self.http_port = 0

    def __enter__(self) -> LiveBroker:
        self._thread.start()
        self._ready.wait(PATIENCE_S)
        if self._failure is not None:
            raise self._failure
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(PATIENCE_S)

    def _run(self) -> None:
        self._turns.thread = threading.get_ident()
        try:
            with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(TimedSelector(self._turns))) as runner:
                runner.run(self._serve())
        except BaseException as failure:  # noqa: BLE001 - told by the thread that waits
            self._failure = failure
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()

        def ready(broker: Any, web: Sequence[Endpoint]) -> None:
            (endpoint,) = web
            self.http_port = endpoint.port
            self.port = broker.metadata.image.brokers[broker.metadata.broker_id].endpoint("PLAINTEXT").port
            self._ready.set()

        await run_broker(self._config, on_opening=lambda _: None, on_ready=ready, stop=self._stop)


class Connection:
    """A blocking client that knows no more than it needs: the answer to a large request is only counted."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)

    def close(self) -> None:
        self._socket.close()

    def send(self, frame: bytes) -> bytes:
        self._socket.sendall(frame)
        size = struct.unpack(">i", self._receive(4))[0]
        return self._receive(size)

    def _receive(self, size: int) -> bytes:
        data = bytearray(size)
        view, at = memoryview(data), 0
        while at < size:
            got = self._socket.recv_into(view[at:])
            if not got:
                raise ConnectionError("the broker closed the connection")
            at += got
        return bytes(data)

    def ask(self, request: Struct, version: int | None = None) -> Any:
        key, version = _key_and_version(request, version)
        answer = self.send(frame_of(request, version))
        return decode_response(key, version, answer[read_response_header(key, version, answer)[1] :])

    def produce(self, topic: str, topic_id: bytes, batches: Sequence[bytes]) -> None:
        """One request for each batch, a hundred of them on their way at once."""
        for first in range(0, len(batches), 100):
            some = batches[first : first + 100]
            for records in some:
                data = messages.TopicProduceData(topic, topic_id, [messages.PartitionProduceData(0, records)])
                self._socket.sendall(frame_of(messages.ProduceRequest(None, -1, 1000, [data])))
            for _ in some:
                self._receive(struct.unpack(">i", self._receive(4))[0])


def _key_and_version(request: Struct, version: int | None) -> tuple[ApiKey, int]:
    key = MESSAGES[type(request).__name__][1]
    assert key is not None
    return ApiKey(key), ROUTES[key].highest if version is None else version


def frame_of(request: Struct, version: int | None = None) -> bytes:
    key, version = _key_and_version(request, version)
    data = write_request_header(key, version, 7, "turns") + encode_request(key, version, request)
    return struct.pack(">i", len(data)) + data


# ---------------------------------------------------------------- the requests


@dataclass
class Known:
    """What there is to ask for."""

    topics: dict[str, bytes]
    """Ids by name."""
    producer: tuple[int, int]
    records: bytes = build_batch([(b"k", b"v", (), 1)])

    def __post_init__(self) -> None:
        self.names = [name for name in self.topics if name != WIDE]


@dataclass(frozen=True)
class Shape:
    """One request that is as large as it may be."""

    what: str
    make: Callable[[], tuple[Struct, int]]

    def frame(self) -> bytes:
        return frame_of(*self.make())


def shapes(key: ApiKey, known: Known) -> Iterator[Shape]:
    """For each array of the API's newest version: as many elements as may be, all in one parent, or each in a parent of
    its own. Then what takes more than that to be looked at closely.
    """
    message = next(name for name, (kind, its, *_) in MESSAGES.items() if kind == "request" and its == key)
    version = ROUTES[key].highest
    for path in arrays(message, version):
        for spread in (False, True) if len(path) > 1 else (False,):
            for exists in (False, True):
                what = f"{'each its own ' if spread else ''}{'/'.join(path)}{', known' if exists else ''}"
                maker = Maker(message, version, known, path, spread=spread, exists=exists)
                yield Shape(what, maker.make)
    for what, special in SPECIAL.get(key, {}).items():
        yield Shape(what, partial(special, known))


def arrays(struct_name: str, version: int, above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    layout = known_layout(struct_name, version)
    for each in (*layout.plain, *layout.tagged):
        if each.is_array:
            yield (*above, each.name)
        if each.is_struct and each.is_array:
            yield from arrays(each.type, version, (*above, each.name))


class Maker:
    """A request in which the array at `path` has as many elements as the limits allow."""

    def __init__(self, message: str, version: int, known: Known, path: Sequence[str], *, spread: bool, exists: bool):
        self.message, self.version, self.known = message, version, known
        self.path, self.spread, self.exists = path, spread, exists
        self.number = 0

    def make(self) -> tuple[Struct, int]:
        key = MESSAGES[self.message][1]
        assert key is not None
        most = MOST_ELEMENTS.get(key, MAX_REQUEST_ELEMENTS)
        depth = len(self.path)
        count = most // depth if self.spread else most - depth + 1
        sample = self._made(1)
        room = OTHER_REQUEST_BYTES - 64 * 1024
        each = len(frame_of(self._made(101), self.version)) - len(frame_of(sample, self.version))
        count = min(count, room * 100 // max(each, 1))
        request = self._made(count)
        while len(frame_of(request, self.version)) > room:
            count = count * 9 // 10
            request = self._made(count)
        return request, self.version

    def of(self, count: int) -> Struct:
        """The same with so many elements."""
        return self._made(count)

    def _made(self, count: int) -> Struct:
        self.number = 0
        return self._struct(self.message, 0, count)

    def _struct(self, name: str, depth: int, count: int) -> Struct:
        made: Struct = getattr(messages, name)()
        layout = known_layout(name, self.version)
        for each in (*layout.plain, *layout.tagged):
            on_path = depth < len(self.path) and each.name == self.path[depth]
            if each.tag is not None and not on_path:
                continue
            setattr(made, each.name, self._value(name, each, depth, count, on_path=on_path))
        return made

    def _value(self, owner: str, each: Field, depth: int, count: int, *, on_path: bool) -> Any:
        if not each.is_array:
            if each.is_struct:
                return None if each.nullable else self._struct(each.type, len(self.path), 0)
            return self._element(owner, each)
        if not on_path:
            return []
        leaf = depth == len(self.path) - 1
        wide = depth == 0 if self.spread else leaf
        found = []
        for _ in range(count if wide else 1):
            if (self.spread and depth == 0) or (not self.spread and leaf):
                self.number += 1
            found.append(self._struct(each.type, depth + 1, count) if each.is_struct else self._element(owner, each))
        return found

    def _element(self, owner: str, each: Field) -> Any:
        if each.name in DULL:
            return DULL[each.name]
        match each.type:
            case "string":
                return self._text(owner, each)
            case "uuid":
                return self._topic_id() if self.exists else self.number.to_bytes(16, "big")
            case "records":
                return self.known.records
            case "bytes":
                return b"" if self.exists else b"some"
            case "bool":
                return False
            case "float64":
                return 0.0
        if "producer_id" in each.name:
            return self.known.producer[0]
        if "producer_epoch" in each.name:
            return self.known.producer[1]
        if each.name in ("partition_index", "partition", "partition_indexes", "partitions", "index"):
            return 0 if self.exists and self.spread else self.number % TOPICS if self.exists else self.number
        if each.name in ("broker_ids", "replicas", "preferred_leader"):
            return 1
        number = self.number % 100 if each.type == "int8" else self.number
        return each.default if isinstance(each.default, int) and not each.is_array else number

    def _text(self, owner: str, each: Field) -> str:
        name = each.name
        if name in ("config_name", "configuration_keys"):
            return "retention.ms" if self.exists else f"no.such.key.{self.number}"
        if name == "config_value" or (owner.endswith("AlterableConfig") and name == "value"):
            return "1000"
        if name == "path":
            return "/nowhere"
        if "group" in name and "instance" not in name:
            return f"{GROUP}" if self.exists and name != "groups_names" else f"no group {self.number}"
        if "transactional_id" in name:
            return TRANSACTION if self.exists else f"no id {self.number}"
        if name in ("member_id", "group_instance_id", "instance_id", "protocol_type", "protocol_name", "rack_id"):
            return f"{name} {self.number}" if self.number else ""
        if not self.exists:
            return f"no.such.{self.number}"
        return self.known.names[self.number % TOPICS] if self.spread or len(self.path) == 1 else WIDE

    def _topic_id(self) -> bytes:
        name = self.known.names[self.number % TOPICS] if self.spread or len(self.path) == 1 else WIDE
        return self.known.topics[name]


DULL: Final[dict[str, Any]] = {
    "replica_id": -1,
    "replica_epoch": -1,
    "current_leader_epoch": -1,
    "committed_leader_epoch": -1,
    "generation_id": -1,
    "generation_id_or_member_epoch": -1,
    "member_epoch": -1,
    "acks": -1,
    "timeout_ms": 1000,
    "max_wait_ms": 0,
    "max_bytes": 1 << 20,
    "partition_max_bytes": 1 << 10,
    "timestamp": -1,
    "resource_type": 2,
    "key_type": 0,
    "election_type": 0,
    "coordinator_epoch": 0,
    "transaction_result": True,
    "replication_factor": 1,
    "session_timeout_ms": 30_000,
    "rebalance_timeout_ms": 30_000,
    "session_id": 0,
    "session_epoch": -1,
    "user_data": b"",
    "response_partition_limit": 10_000,
}


def _wide(count: int) -> list[int]:
    return [number % TOPICS for number in range(count)]


def _settings(kind: int, named: Iterable[str], **values: str) -> tuple[Struct, int]:
    """Sets these values, whose names have no dots here, of all that are named."""
    changes = [
        messages.IncrementalAlterConfigsRequestAlterableConfig(name.replace("_", "."), 0, value)
        for name, value in values.items()
    ]
    resource = messages.IncrementalAlterConfigsRequestAlterConfigsResource
    return messages.IncrementalAlterConfigsRequest([resource(kind, name, changes) for name in named]), 1


def _conditional(known: Known, name: str, partitions: int, expected_offset: int) -> tuple[Struct, int]:
    """As many batches as may be, for the topic's first so many partitions in turn."""
    batches = [
        messages.ConditionalBatch(name, number % partitions, expected_offset, known.records)
        for number in range(MOST_ELEMENTS[ApiKey.CONDITIONAL_PRODUCE] - 1)
    ]
    return messages.ConditionalProduceRequest(None, 1000, batches), 0


MANY: Final = MAX_REQUEST_ELEMENTS - 10
REPLICAS: Final = ",".join(f"{number}:1" for number in range(4_500))


def _by_time(topic: str, timestamp: int) -> tuple[Struct, int]:
    wanted = [messages.ListOffsetsTopic(topic, [messages.ListOffsetsPartition(0, timestamp=timestamp)])]
    return messages.ListOffsetsRequest(-1, 0, wanted), 11


def _produce_large(known: Known) -> tuple[Struct, int]:
    records = build_batch([(b"k", bytes(1 << 20), (), 1)] * 90)
    data = [messages.PartitionProduceData(0, records)]
    return messages.ProduceRequest(None, -1, 60_000, [messages.TopicProduceData(LARGE, known.topics[LARGE], data)]), 13


SPECIAL: Final[dict[ApiKey, dict[str, Callable[[Known], tuple[Struct, int]]]]] = {
    ApiKey.PRODUCE: {"a batch of 90 MB": _produce_large},
    ApiKey.FETCH: {
        "a session of very many": lambda known: (
            messages.FetchRequest(
                max_wait_ms=0,
                min_bytes=0,
                max_bytes=1 << 20,
                session_epoch=0,
                topics=[
                    messages.FetchTopic(
                        topic_id=known.topics[WIDE],
                        partitions=[messages.FetchPartition(number) for number in range(MANY)],
                    )
                ],
            ),
            17,
        ),
    },
    ApiKey.LIST_OFFSETS: {
        "a time that only headers name": lambda known: _by_time(HEADERS_LIE, 500),
        "a time that only a deleted record has": lambda known: _by_time(FIRST_DELETED, 500),
        "the latest time, which a deleted record had": lambda known: _by_time(FIRST_DELETED, -3),
    },
    ApiKey.METADATA: {
        "all topics": lambda known: (messages.MetadataRequest(None), 12),
        "by name, known": lambda known: (
            messages.MetadataRequest(
                [messages.MetadataRequestTopic(bytes(16), known.names[n % TOPICS]) for n in range(MANY)]
            ),
            12,
        ),
    },
    ApiKey.CREATE_TOPICS: {
        "validated": lambda known: (
            messages.CreateTopicsRequest(
                [messages.CreatableTopic(f"new.{number}", 1, 1) for number in range(MANY)], validate_only=True
            ),
            7,
        ),
        "one of 9,000 partitions, validated": lambda known: (
            messages.CreateTopicsRequest([messages.CreatableTopic("new", 9_000, 1)], validate_only=True),
            7,
        ),
        "many assignments, validated": lambda known: (
            messages.CreateTopicsRequest(
                [
                    messages.CreatableTopic(
                        "new", -1, -1, [messages.CreatableReplicaAssignment(n, [1]) for n in range(MANY // 2)]
                    )
                ],
                validate_only=True,
            ),
            7,
        ),
    },
    ApiKey.CREATE_PARTITIONS: {
        "validated": lambda known: (
            messages.CreatePartitionsRequest(
                [messages.CreatePartitionsTopic(name, 9, None) for name in known.names], 1000, True
            ),
            3,
        ),
    },
    ApiKey.ADD_PARTITIONS_TO_TXN: {
        "by a client": lambda known: (
            messages.AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=TRANSACTION,
                v3_and_below_producer_id=known.producer[0],
                v3_and_below_producer_epoch=known.producer[1],
                v3_and_below_topics=[messages.AddPartitionsToTxnTopic(WIDE, _wide(MANY))],
            ),
            3,
        ),
        "topics by a client": lambda known: (
            messages.AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=TRANSACTION,
                v3_and_below_producer_id=known.producer[0],
                v3_and_below_producer_epoch=known.producer[1],
                v3_and_below_topics=[
                    messages.AddPartitionsToTxnTopic(known.names[n % TOPICS], [0]) for n in range(MANY // 2)
                ],
            ),
            3,
        ),
    },
    ApiKey.END_TXN: {
        "with 2,000 partitions": lambda known: (
            messages.EndTxnRequest(TRANSACTION, *known.producer, True),
            3,
        ),
    },
    ApiKey.CONDITIONAL_PRODUCE: {
        "to one topic": lambda known: _conditional(known, WIDE, TOPICS, -1),
        "to one topic, expected near its end": lambda known: _conditional(known, WIDE, TOPICS, 1),
        "to one partition, expected far back": lambda known: _conditional(known, known.names[0], 1, 1),
        "to no topic": lambda known: _conditional(known, "no.such", TOPICS, 1),
    },
    ApiKey.DESCRIBE_LOG_DIRS: {"all": lambda known: (messages.DescribeLogDirsRequest(None), 4)},
    ApiKey.ELECT_LEADERS: {"all": lambda known: (messages.ElectLeadersRequest(0, None, 1000), 2)},
    ApiKey.LIST_PARTITION_REASSIGNMENTS: {
        "all": lambda known: (messages.ListPartitionReassignmentsRequest(1000, None), 0)
    },
    ApiKey.OFFSET_FETCH: {
        "all of a group": lambda known: (
            messages.OffsetFetchRequest(groups=[messages.OffsetFetchRequestGroup(GROUP, None, -1, None)]),
            9,
        ),
        "in the form of one group": lambda known: (
            messages.OffsetFetchRequest(GROUP, [messages.OffsetFetchRequestTopic(WIDE, _wide(MANY))]),
            7,
        ),
        "each its own topic, in the form of one group": lambda known: (
            messages.OffsetFetchRequest(
                GROUP, [messages.OffsetFetchRequestTopic(known.names[n % TOPICS], [0]) for n in range(MANY // 2)]
            ),
            7,
        ),
    },
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: {
        "all": lambda known: (messages.DescribeTopicPartitionsRequest([], 10_000), 0),
    },
    ApiKey.DESCRIBE_CONFIGS: {
        "groups": lambda known: (
            messages.DescribeConfigsRequest(
                [messages.DescribeConfigsResource(CONSUMER_GROUP, f"g{n}", None) for n in range(2_000)]
            ),
            4,
        ),
    },
    ApiKey.INCREMENTAL_ALTER_CONFIGS: {
        "a list of blanks": lambda known: _settings(2, known.names[:1], cleanup_policy=f"a{' ' * 32_000}b"),
        "long lists": lambda known: _settings(2, known.names[:200], leader_replication_throttled_replicas=REPLICAS),
        "all lists, long ones of few words": lambda known: _settings(
            2, known.names[:200], cleanup_policy="compact," * 4_000 + "delete"
        ),
        "very many of a broker": lambda known: _settings(4, ["1"], **{f"no_such_{n}": "x" for n in range(500)}),
    },
    ApiKey.ALTER_CONFIGS: {
        "groups": lambda known: (
            messages.AlterConfigsRequest(
                [messages.AlterConfigsRequestAlterConfigsResource(CONSUMER_GROUP, f"g{n}", []) for n in range(MANY)],
                True,
            ),
            2,
        ),
        "topics, each with a key, validated": lambda known: (
            messages.AlterConfigsRequest(
                [
                    messages.AlterConfigsRequestAlterConfigsResource(
                        2, name, [messages.AlterConfigsRequestAlterableConfig("retention.ms", "77777777")] * 20
                    )
                    for name in known.names
                ],
                True,
            ),
            2,
        ),
    },
}


# ---------------------------------------------------------------- the measurement


def prepare(port: int) -> Known:
    connection = Connection(port)
    names = [WIDE, *(f"topic.{number}" for number in range(TOPICS))]
    wanted = [messages.CreatableTopic(name, TOPICS if name == WIDE else 1, 1) for name in names]
    large = [messages.CreatableTopicConfig("max.message.bytes", str(100 << 20))]
    wanted.append(messages.CreatableTopic(LARGE, 1, 1, configs=large))
    connection.ask(messages.CreateTopicsRequest(wanted, timeout_ms=60_000))
    for kind, key in ((0, GROUP), (1, TRANSACTION)):
        while (
            connection.ask(messages.FindCoordinatorRequest(key_type=kind, coordinator_keys=[key]))
            .coordinators[0]
            .error_code
        ):
            time.sleep(0.1)
    while True:
        begun = connection.ask(messages.InitProducerIdRequest(TRANSACTION, 900_000))
        if not begun.error_code:
            break
        time.sleep(0.1)
    found = connection.ask(messages.MetadataRequest(None))
    topics = {topic.name: topic.topic_id for topic in found.topics if not topic.is_internal}
    offsets = [
        messages.OffsetCommitRequestTopic(
            topic_id=topics[WIDE],
            partitions=[messages.OffsetCommitRequestPartition(index, 1) for index in range(TOPICS)],
        )
    ]
    while True:
        committed = connection.ask(messages.OffsetCommitRequest(GROUP, -1, topics=offsets))
        if not committed.topics[0].partitions[0].error_code:
            break
        time.sleep(0.1)
    long_already = build_batch([(None, b"v", (), 1)] * 1_000)
    connection.produce(names[1], topics[names[1]], [long_already])
    lying = bytearray(build_batch([(None, b"v", (), 1)]))
    set_max_timestamp(lying, 1_000)
    connection.produce(HEADERS_LIE, topics[HEADERS_LIE], [bytes(lying)] * BATCHES)
    of_fast_clock, ordinary = (build_batch([(None, b"v", (), timestamp)]) for timestamp in (1_000, 1))
    connection.produce(FIRST_DELETED, topics[FIRST_DELETED], [of_fast_clock, *[ordinary] * BATCHES])
    deleted = [messages.DeleteRecordsTopic(FIRST_DELETED, [messages.DeleteRecordsPartition(0, 1)])]
    connection.ask(messages.DeleteRecordsRequest(deleted, 5000))
    connection.close()
    return Known(topics, (begun.producer_id, begun.producer_epoch))


def measured(what: str, ask: Callable[[], object], turns: Turns, *, collector: bool) -> tuple[float, float]:
    """The longest turn, and the longest pass of the collector, in ms."""
    (gc.enable if collector else gc.disable)()
    time.sleep(SETTLED_S)
    turns.take()
    try:
        ask()
    except (OSError, struct.error, HTTPException) as failure:
        print(f"{what}: {failure!r}", file=sys.stderr)
    time.sleep(SETTLED_S)
    gc.enable()
    return turns.take()


def send(frame: bytes, port: int) -> None:
    connection = Connection(port)
    try:
        time.sleep(SETTLED_S / 5)
        connection.send(frame)
    finally:
        connection.close()


Row = tuple[float, str, float, float, float]


def row(name: str, what: str, ask: Callable[[], object], turns: Turns) -> Row:
    """The longest turn of all, what was asked, and the longest turn with the collector, its pass, and without it."""
    gc.collect()
    gc.freeze()
    with_it, a_pass = measured(what, ask, turns, collector=True)
    turns.where.clear()
    without, _ = measured(what, ask, turns, collector=False)
    if turns.where:
        print(f"{name}, {what}:")
        for place, times in turns.where.most_common(6):
            print(f"    {times:5} {place}")
    return max(with_it, without), what, with_it, a_pass, without


def of_http(port: int, turns: Turns) -> Iterator[Row]:
    http_turns.prepare(port)
    for way in http_turns.ways(port):
        yield row("HTTP", way.what, partial(way.send, port, way.make()), turns)
    with contextlib.ExitStack() as connections:
        yield row("HTTP", "streams to which nothing comes", partial(http_turns.idle_streams, port, connections), turns)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.turns", description=__doc__.partition("\n")[0])
    parser.add_argument("--only", action="append", metavar="NAME", help="a part of their name; can be given again")
    parser.add_argument("--where", type=float, metavar="MS", help="tell where the loop was in longer turns")
    parser.add_argument("--shapes", action="store_true", help="a line for each shape of an API's requests")
    chosen = parser.parse_args()
    # The requests are made in this process, too: to count their objects takes far longer than to count a broker's.
    Garbage.count = lambda self: None  # type: ignore[method-assign]
    turns = Turns()
    too_long: list[str] = []
    gc.callbacks.append(turns.collected)
    over = threading.Event()
    if chosen.where is not None:
        sys.setswitchinterval(0.0005)
        turns.over_s = chosen.where / 1000
        threading.Thread(target=turns.sample, args=(over,), daemon=True).start()

    def tell(name: str, rows: Iterable[Row], *, all_rows: bool) -> None:
        found = sorted(rows, reverse=True)
        too_long.extend(f"{name}, {what}" for _, what, _, _, without in found if without > MOST_MS)
        for _, what, with_it, a_pass, without in found if all_rows else found[:1]:
            print(f"{name + ', ' + what:66.66} {with_it:7.0f} {a_pass:7.0f} {without:7.0f}", flush=True)

    with tempfile.TemporaryDirectory(prefix="oncelog-turns-") as folder, LiveBroker(Path(folder), turns) as broker:
        known = prepare(broker.port)
        print(f"{'longest turn, ms':40} {'collector':>10} {'of it one pass':>15} {'no collector':>13}")
        for key in sorted(ROUTES, key=lambda each: (LAST.index(ApiKey(each)) if each in LAST else -1, each)):
            name = ROUTES[key].name
            if chosen.only and not any(part.lower() in name.lower().replace("_", "") for part in chosen.only):
                continue
            asked = ((shape.what, partial(send, shape.frame(), broker.port)) for shape in shapes(ApiKey(key), known))
            tell(name, (row(name, what, ask, turns) for what, ask in asked), all_rows=chosen.shapes)
        if not chosen.only or "http" in chosen.only:
            tell("HTTP", of_http(broker.http_port, turns), all_rows=chosen.shapes)
        over.set()
    gc.collect()
    gc.freeze()
    gc.disable()
    for what, took_ms in longest_turns() if not chosen.only or "groups" in chosen.only else ():
        too_long += [what] if took_ms > MOST_MS else []
        print(f"{'a coordinator of groups, ' + what:66.66} {'':15} {took_ms:7.0f}", flush=True)
    if too_long:
        print(f"longer than {MOST_MS:.0f} ms: {', '.join(too_long)}")
    return 1 if too_long else 0


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main())

"""Writing records: JSON batches (atomic), NDJSON streams (with a report for each line), and raw bytes (one record in
each request).

What always holds: a JSON body is written as a whole or not at all: in one batch if that is enough, otherwise in a
transaction of this broker. A line of a stream is written independently of the others, and its report tells whether it
was written.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from sys import getsizeof
from types import MappingProxyType
from typing import Any, Protocol, TypeVar

import msgspec
from aiohttp import web
from msgspec import UNSET, Raw, UnsetType
from msgspec.structs import replace

from log.batch import HEADER_BYTES, NewRecord, build_plain_batch
from log.ids import TopicPartition
from service.broker.internal_topics import GROUPS
from service.client.partitioner import partition_for_key
from service.cluster.image import Topic
from service.turns import NAMED_A_TURN, Turn, in_turns
from service.web.answers import as_one, query_bytes, query_int, read_json, refuse_query, tell
from service.web.forwarding import RECORD_HEADER, headers_of_records, media_of
from service.web.gateway import PAUSE_S, TIMEOUT_S, Gateway
from service.web.holding import HOLDER, Holder
from service.web.looking import RECORD_BYTES_MAX, TOP, BodyScan, refuse_doubles
from service.web.problems import Outcome, Problem, of_error
from service.web.producers import Producer
from service.web.quick import read_lines
from service.web.records import Partitioner, RecordIn, asked_time, new_record
from service.web.routing import (
    IDEMPOTENCY_KEY,
    JSON,
    NDJSON,
    OCTETS,
    STREAMING,
    Parameter,
    Route,
    header,
    integer,
    text,
)
from service.web.sending import AROUND_BYTES, OutgoingBatch, batch_of, bytes_of, send
from service.web.unpacking import Pace, body_of, pieces_of
from service.wire.error_codes import ErrorCode
from service.wire.messages import (
    MetadataRequest,
    MetadataRequestTopic,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)

BATCH_BYTES = 800_000
"""The most bytes of records, as JSON, in one batch: below the 1 MiB that topics accept by default."""
RECORDS_AT_ONCE = 500
"""How many records are made into batches in one turn of the loop: 4 ms."""
RUN_RECORDS = 4 * RECORDS_AT_ONCE
"""The most records in one batch."""
HEADERS_OF_RECORD, BYTES_OF_RECORD = 5, BATCH_BYTES // RECORDS_AT_ONCE
"""So many headers, or bytes, are as much work as a record."""
DECODED_AT_ONCE = 128 << 10
"""A longer body is scanned first, and its records are decoded in several turns of the loop."""
NAMED_BYTES = 250
"""What is made of a header that is a member of an object, until it is answered. A header that is an object itself is
counted as that (`OBJECT_BYTES`).
"""
LINE_BYTES = 57
"""What a line takes beside its own bytes."""
SCANNED_AT_ONCE = 8 << 10
"""How many bytes of short lines, or events, are scanned and made into records in one turn of the loop: 8 ms, if they
are nothing but brackets.
"""
PLACES_AT_ONCE = 5_000
"""How many places of records are made into JSON in one turn of the loop: 1 ms."""
NO_PLACES = b'"results":[]'
REST_BYTES_MAX = 1 << 20
"""The most bytes of a long body without its records."""
ZSTD = 4
COMPRESSED_FROM_BYTES = 1000
COMPRESSED_AT_ONCE_BYTES = 256 << 10
"""Longer records of keys are compressed beside the loop."""


class OffsetIn(msgspec.Struct, forbid_unknown_fields=True):
    topic: str
    partition: int
    offset: int
    metadata: str | None = None
    leader_epoch: int = -1


class OffsetsIn(msgspec.Struct, forbid_unknown_fields=True):
    """The offsets that a group has read, committed together with the records."""

    group: str
    offsets: list[OffsetIn]
    member_id: str = ""
    generation: int = -1
    group_instance_id: str | None = None


class ExpectedIn(msgspec.Struct, forbid_unknown_fields=True):
    """Write only if the partition's log ends here. Markers of transactions after it do not count."""

    topic: str
    partition: int
    next_offset: int


class BatchIn(msgspec.Struct, forbid_unknown_fields=True):
    """Records that are written together or not at all."""

    records: list[RecordIn]
    offsets: OffsetsIn | None = None
    expected: list[ExpectedIn] = []


class RecordPlace(msgspec.Struct, omit_defaults=True, gc=False):
    """The place of a record."""

    partition: int
    offset: int
    topic: str | UnsetType = UNSET
    timestamp: int | UnsetType = UNSET


class TransactionOut(msgspec.Struct):
    """The transaction in which it was written. Requests with an Idempotency-Key may share one."""

    producer_id: int
    epoch: int


class BatchOut(msgspec.Struct, omit_defaults=True):
    """The answer if everything was written."""

    outcome: Outcome
    results: list[RecordPlace]
    topic: str | UnsetType = UNSET
    transaction: TransactionOut | UnsetType = UNSET


_batches = msgspec.json.Decoder(BatchIn)
_lists = msgspec.json.Decoder(list[RecordIn])
_records = msgspec.json.Decoder(RecordIn)
_encode = msgspec.json.Encoder().encode
_IN_BODY, _IN_LIST = re.compile(r"`\$\.records\[(\d+)\]"), re.compile(r"`\$\[(\d+)\]")
T = TypeVar("T")


# -- topics


async def topic_to_write(gateway: Gateway, name: str) -> Topic:
    """The topic. If it does not exist, it is created, provided the settings allow that."""
    topic = gateway.image.topics.get(name)
    if topic is not None:
        return topic
    if not gateway.config.auto_create_topics_enable:
        return gateway.topic(name)
    deadline = asyncio.get_running_loop().time() + TIMEOUT_S
    while True:
        request = MetadataRequest([MetadataRequestTopic(name=name)], allow_auto_topic_creation=True)
        answer = await gateway.ask(gateway.node_id, request)
        code = answer.topics[0].error_code
        topic = gateway.image.topics.get(name)
        if topic is not None and all(state.leader >= 0 for state in topic.partitions.values()):
            return topic
        if code not in (0, ErrorCode.LEADER_NOT_AVAILABLE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
            raise of_error(code, f"topic {name[:300]!r}")
        if asyncio.get_running_loop().time() > deadline:
            raise of_error(ErrorCode.LEADER_NOT_AVAILABLE, f"topic {name!r} is not there yet")
        await asyncio.sleep(PAUSE_S)


# -- a batch


@dataclass(slots=True)
class PlacedRecords:
    """The records of a request by their partitions. `order` has the order in which they came. If the request's path
    names the topic, the places in the answer don't.
    """

    by_partition: dict[TopicPartition, list[NewRecord]]
    order: list[tuple[TopicPartition, int]]
    topic_name: str | None = None

    def add(self, partition: TopicPartition, record: NewRecord) -> None:
        records = self.by_partition.setdefault(partition, [])
        self.order.append((partition, len(records)))
        records.append(record)

    @property
    def lists(self) -> tuple[list[Any], ...]:
        return self.order, *self.by_partition.values()


async def let_go(*lists: list[Any]) -> None:
    """Free what is in these lists, which nobody needs any more. Of a long request that takes several turns."""
    for each in lists:
        while len(each) > RUN_RECORDS:
            del each[-RUN_RECORDS:]
            await asyncio.sleep(0)


def _decode(body: bytes, decoder: msgspec.json.Decoder[T], place: re.Pattern[str], first: int = 0) -> T:
    """The body, or a problem that says in which record it is. `place` finds that record in what the decoder says, and
    `first` is the number of the body's first one.
    """
    try:
        return read_json(body, decoder)
    except Problem as problem:
        if found := place.search(problem.detail or ""):
            index = first + int(found[1])
            problem.detail = f"{problem.detail}".replace(found[0], f"`$.records[{index}]")
            problem.more["records"] = [index]
        raise


async def read_batch(body: bytes, holder: Holder) -> tuple[BatchIn, list[RecordIn]]:
    """The body and its records. A long body is decoded in several turns of the loop. `holder` counts the body, and gets
    what was not seen of it before: headers that are members of an object.
    """
    if len(body) <= DECODED_AT_ONCE:
        try:
            batch = _decode(body, _batches, _IN_BODY)
        except Problem as problem:
            raise await about_its_record(problem, BodyScan(body, cut_bytes=0)) from None
        await refuse_doubles(body, batch.records)
        await _hold_headers(holder, batch.records)
        return batch, batch.records
    scan = BodyScan(body)
    await scan.look()
    if scan.records_end < 0:
        raise Problem("malformed", "the body is not JSON, or has no list of records")
    if scan.rest_bytes > REST_BYTES_MAX:
        raise Problem("record-too-large", "there is more beside the records than a request may have")
    try:
        batch = read_json(scan.rest, _batches)
    except Problem as problem:
        raise await about_its_record(problem, BodyScan(body, cut_bytes=0)) from None
    records: list[RecordIn] = []
    for piece in scan.pieces:
        try:
            some: list[RecordIn] = _decode(piece, _lists, _IN_LIST, len(records))
        except Problem as problem:
            scan = BodyScan(b'{"records":%b}' % piece, cut_bytes=0)
            raise await about_its_record(problem, scan, len(records)) from None
        records += some
        await _hold_headers(holder, some)
        await asyncio.sleep(0)
    return batch, records


async def _hold_headers(holder: Holder, records: Sequence[RecordIn]) -> None:
    if named := sum(len(each.headers) for each in records if isinstance(each.headers, dict)):
        await holder.take(holder.bytes + NAMED_BYTES * named)


async def about_its_record(
    problem: Problem, scan: BodyScan, first: int = 0, decoder: msgspec.json.Decoder[Any] = _records
) -> Problem:
    """The problem of the first record that is no JSON, or no UTF-8; the given one, if that says where it is, or if no
    record alone is to blame. `first` is the number of the first record; `decoder` is that of a record.
    """
    if "records" in problem.more:
        return problem
    await scan.look()
    for index, piece in enumerate(scan.pieces if scan.records_end >= 0 else (), first):
        try:
            read_json(piece[1:-1], decoder)
        except Problem as found:
            found.detail = f"{found.detail}".replace("the body", "it", 1)
            return found.about_record(index)
        if index % RECORDS_AT_ONCE == 0:
            await asyncio.sleep(0)
    return problem


async def place_all(
    gateway: Gateway,
    records: Sequence[RecordIn],
    topic_name: str | None,
    partitioner: Partitioner,
    now_ms: int,
    topics: dict[str, Topic] | None = None,
) -> PlacedRecords:
    """The records by partition. `topics` has those by which they were placed before, and gets the others: what is
    placed again goes to the same partitions, although its topic has more by now. `now_ms` is the time of records that
    have none.
    """
    topics = {} if topics is None else topics
    placed, turn = PlacedRecords({}, [], topic_name), Turn(RECORDS_AT_ONCE)
    for index, given in enumerate(records):
        name = given.topic or topic_name
        try:
            if name is None or (topic_name is not None and given.topic not in (None, topic_name)):
                raise Problem("invalid-record", "the topic is missing, or another than the path's")
            topic = topics.get(name)
            if topic is None:
                topic = topics[name] = await topic_to_write(gateway, name)
            record = new_record(given, now_ms)
            placed.add(partitioner.place(topic, given.partition, record[0]), record)
        except Problem as problem:
            raise problem.about_record(index) from None
        if turn.is_over(work_of(record) + bytes_of(record) // BYTES_OF_RECORD):
            await asyncio.sleep(0)
    return placed


def work_of(record: NewRecord) -> int:
    """How much it is to place and to build, as a number of records without headers."""
    return 1 + len(record[2]) // HEADERS_OF_RECORD


def cut(records: Iterable[NewRecord], bytes_max: int = BATCH_BYTES) -> Iterator[list[NewRecord]]:
    """The records in runs, each of which fits into a batch and takes one turn of the loop to make and to build."""
    run: list[NewRecord] = []
    size_bytes = size = 0
    for record in records:
        own_bytes, own = bytes_of(record), work_of(record)
        if run and (size_bytes + own_bytes > bytes_max or size + own > RUN_RECORDS):
            yield run
            run, size_bytes, size = [], 0, 0
        run.append(record)
        size_bytes += own_bytes
        size += own
    if run:
        yield run


def batch_bytes(gateway: Gateway, topic: str) -> int:
    """The most bytes of records in one batch: they must not be too many together where each alone is not."""
    allowed = gateway.topic(topic).config.get("max.message.bytes", gateway.config.message_max_bytes)
    return min(BATCH_BYTES, int(allowed) - HEADER_BYTES)


async def in_runs(
    gateway: Gateway, placed: PlacedRecords, limits: dict[str, int] | None = None
) -> list[tuple[TopicPartition, list[NewRecord]]]:
    """All runs, made in several turns of the loop. Each partition's records keep their order. `limits` has the most
    bytes in a batch of the topics that are known, and gets the others: what is cut again is cut at the same places.
    """
    limits = {} if limits is None else limits
    runs: list[tuple[TopicPartition, list[NewRecord]]] = []
    turn = Turn(RUN_RECORDS)
    for partition, records in placed.by_partition.items():
        if partition.topic not in limits:
            limits[partition.topic] = batch_bytes(gateway, partition.topic)
        for run in cut(records, limits[partition.topic]):
            runs.append((partition, run))
            if turn.is_over(sum(map(work_of, run))):
                await asyncio.sleep(0)
    return runs


def point_out(problem: Problem, batches: Sequence[OutgoingBatch], placed: PlacedRecords) -> Problem:
    """Let the problem say which records of the request are to blame, if it is single ones."""
    if problem.slug not in ("invalid-record", "record-too-large"):
        return problem
    before: dict[TopicPartition, int] = {}
    for batch in batches:
        first = before.get(batch.partition, 0)
        before[batch.partition] = first + batch.records
        if batch.error:
            blamed = {(batch.partition, first + each) for each in batch.culprits or range(batch.records == 1)}
            if found := [index for index, place in enumerate(placed.order) if place in blamed]:
                problem.more["records"] = found
            return problem
    return problem


class Seal(Protocol):
    """The record of a request's key, which is written last in its transaction, when the answer is known."""

    where: TopicPartition
    is_shared: bool
    """The request shares a transaction. The task that writes it tells what has become of it."""

    def record(self, answer: bytes) -> NewRecord: ...

    def written(self, offset: int) -> None:
        """Raises a problem if the record may be in the wrong place; then nothing may be committed."""

    def over(self, failure: BaseException | None) -> None:
        """Nothing is written any more, and this is why; or all is committed."""


async def write_together(
    gateway: Gateway,
    placed: PlacedRecords,
    offsets: OffsetsIn | None = None,
    expected: Sequence[ExpectedIn] = (),
    seal: Seal | None = None,
) -> BatchOut:
    """Write all of it, or raise a problem and write nothing."""
    wanted: dict[TopicPartition, int] = {}
    for each in expected:
        partition = TopicPartition(each.topic, each.partition)
        where = f"{partition.topic} partition {partition.partition}"
        if partition not in placed.by_partition:
            raise Problem("invalid-request", f"nothing is written to {where}")
        if partition in wanted:
            raise Problem("invalid-request", f"two things are expected of {where}")
        if not 0 <= each.next_offset < 2**63:
            raise Problem("invalid-request", f"{each.next_offset} is no offset")
        wanted[partition] = each.next_offset
    if seal is not None and offsets is None and not wanted and gateway.sharing.takes(placed, seal):
        return await gateway.sharing.write(placed, seal)
    return await write_alone(gateway, placed, offsets, wanted, seal)


async def write_alone(
    gateway: Gateway,
    placed: PlacedRecords,
    offsets: OffsetsIn | None = None,
    expected: Mapping[TopicPartition, int] = MappingProxyType({}),
    seal: Seal | None = None,
) -> BatchOut:
    """Write it in one batch if that is enough, otherwise in a transaction of its own."""
    runs = await in_runs(gateway, placed)
    if len(runs) == 1 and offsets is None and seal is None:
        ((partition, run),) = runs
        batches = [OutgoingBatch(partition, await batch_of(run), len(run), expected.get(partition))]
        await send(gateway, batches)
        if batches[0].error:
            raise point_out(batches[0].problem(), batches, placed)
        return await answer_of(placed, offsets_of(batches))
    where = list(placed.by_partition)
    if seal is not None:
        where.append(seal.where)
    if offsets is not None:
        where.append(gateway.home(GROUPS, offsets.group))
    async with gateway.producers.transaction(gateway.needed_by(where)) as producer:
        batches = []
        turn = Turn(RECORDS_AT_ONCE)
        first: set[TopicPartition] = set()
        for partition, run in runs:
            batches.append(await producer.build_any(partition, run))
            if partition not in first:
                first.add(partition)
                batches[-1].expected_offset = expected.get(partition)
            if turn.is_over(sum(map(work_of, run)) + len(batches[-1].batch) // BYTES_OF_RECORD):
                await asyncio.sleep(0)
        if offsets is not None:
            await commit_offsets(producer, offsets)
        try:
            await producer.write(batches)
        except Problem as problem:
            raise point_out(problem, batches, placed) from None
        transaction = TransactionOut(producer.producer_id, producer.epoch)
        answer = await answer_of(placed, offsets_of(batches), transaction)
        if seal is not None:
            await seal_all(gateway, producer, [(seal, answer)])
    return answer


async def seal_all(gateway: Gateway, producer: Producer, answered: Sequence[tuple[Seal, BatchOut]]) -> None:
    """Write the records of the requests' keys, and tell each where its record is."""
    of_partition: dict[TopicPartition, tuple[list[Seal], list[NewRecord]]] = {}
    for seal, answer in answered:
        seals, records = of_partition.setdefault(seal.where, ([], []))
        seals.append(seal)
        records.append(seal.record(await written_down(answer)))
    batches = []
    for where, (_, records) in of_partition.items():
        sizes = [len(value or b"") for _, value, _, _ in records]
        codec = ZSTD if max(sizes) > COMPRESSED_FROM_BYTES else 0
        if sum(sizes) > COMPRESSED_AT_ONCE_BYTES:
            batches.append(await gateway.env.blocking(producer.build, where, records, codec))
        else:
            batches.append(producer.build(where, records, codec))
    await producer.write(batches, internal=True)
    for batch, (seals, _) in zip(batches, of_partition.values(), strict=True):
        for offset, seal in enumerate(seals, batch.base_offset):
            seal.written(offset)


async def commit_offsets(producer: Producer, offsets: OffsetsIn) -> None:
    topics: dict[str, TxnOffsetCommitRequestTopic] = {}
    named: set[tuple[str, int]] = set()
    if not -1 <= offsets.generation < 2**31:
        raise Problem("invalid-request", f"{offsets.generation} is no generation")
    async for each in in_turns(offsets.offsets, NAMED_A_TURN):
        if not (0 <= each.offset < 2**63 and 0 <= each.partition < 2**31 and -1 <= each.leader_epoch < 2**31):
            raise Problem("invalid-request", f"{each.topic} {each.partition}: {each.offset} is no offset")
        if (each.topic, each.partition) in named:
            raise Problem("invalid-request", f"two offsets are given of {each.topic} partition {each.partition}")
        named.add((each.topic, each.partition))
        topic = topics.setdefault(each.topic, TxnOffsetCommitRequestTopic(each.topic))
        topic.partitions.append(
            TxnOffsetCommitRequestPartition(each.partition, each.offset, each.leader_epoch, each.metadata)
        )
    await producer.commit_offsets(
        offsets.group,
        list(topics.values()),
        member_id=offsets.member_id,
        generation=offsets.generation,
        instance_id=offsets.group_instance_id,
    )


Offsets = Mapping[TopicPartition, Iterator[tuple[int, int]]]
"""For each partition the offset of each record, and the time at which the broker says that it was appended."""


def offsets_of(batches: Sequence[OutgoingBatch]) -> Offsets:
    of_partition: dict[TopicPartition, list[OutgoingBatch]] = {}
    for batch in batches:
        of_partition.setdefault(batch.partition, []).append(batch)
    return {partition: _offsets(those) for partition, those in of_partition.items()}


async def answer_of(
    placed: PlacedRecords, offsets: Offsets, transaction: TransactionOut | UnsetType = UNSET
) -> BatchOut:
    topic = UNSET if placed.topic_name is None else placed.topic_name
    return BatchOut("applied", await results_of(placed, offsets), topic, transaction)


async def results_of(placed: PlacedRecords, offsets: Offsets) -> list[RecordPlace]:
    """The place of each record, in the order in which they came. Made in several turns of the loop."""
    results: list[RecordPlace] = []
    is_named = placed.topic_name is not None
    for partition, number in placed.order:
        offset, append_time_ms = next(offsets[partition])
        timestamp = append_time_ms if append_time_ms >= 0 else placed.by_partition[partition][number][3]
        results.append(RecordPlace(partition.partition, offset, UNSET if is_named else partition.topic, timestamp))
        if len(results) % RUN_RECORDS == 0:
            await asyncio.sleep(0)
    return results


async def written_down(answer: BatchOut) -> bytes:
    """The answer as JSON. A long one is made in several turns of the loop, and its places are freed in them."""
    results = answer.results
    if len(results) <= PLACES_AT_ONCE:
        return _encode(answer)
    before, _, after = _encode(replace(answer, results=[])).partition(NO_PLACES)
    parts = [before, b'"results":[']
    results.reverse()
    while results:
        parts += (_encode(results[: -PLACES_AT_ONCE - 1 : -1])[1:-1], b",")
        del results[-PLACES_AT_ONCE:]
        await asyncio.sleep(0)
    parts[-1] = b"]"
    return await as_one([*parts, after])


def _offsets(batches: Sequence[OutgoingBatch]) -> Iterator[tuple[int, int]]:
    for batch in batches:
        for offset in range(batch.base_offset, batch.base_offset + batch.records):
            yield offset, batch.append_time_ms


async def write_batch(gateway: Gateway, request: web.Request) -> web.StreamResponse:
    """Write records of one topic, which the path names, or of any topics."""
    topic_name = request.match_info.get("topic")
    media = media_of(request)
    if media != OCTETS:
        refuse_query(request, ())  # a record says itself what the query says of raw bytes
    if media == NDJSON:
        if IDEMPOTENCY_KEY in request.headers:
            raise Problem("bad-key", "a stream of lines has no Idempotency-Key: send a batch")
        return await write_stream(gateway, request, topic_name)
    if media == OCTETS and topic_name is not None:
        return await write_octets(gateway, request, topic_name)
    if media not in ("application/json", OCTETS) or (media == OCTETS and topic_name is None):
        raise Problem("unsupported-media-type", f"{media}: JSON, NDJSON and, to one topic, octet-stream are known")
    body = await body_of(request)

    async def write(seal: Seal | None) -> BatchOut:
        return await answer_to(gateway, body, topic_name, seal, request[HOLDER])

    return await once(gateway, request, body, write)


async def answer_to(
    gateway: Gateway, body: bytes, topic_name: str | None, seal: Seal | None, holder: Holder
) -> BatchOut:
    batch, records = await read_batch(body, holder)
    if not records and (batch.offsets is None or not batch.offsets.offsets):
        raise Problem("invalid-request", "there are no records, and no offsets")
    now_ms = gateway.env.clock.wall_ms()
    placed = await place_all(gateway, records, topic_name, Partitioner(gateway.next_turn()), now_ms)
    answer = await write_together(gateway, placed, batch.offsets, batch.expected, seal)
    await let_go(records, *placed.lists)
    return answer


async def once(
    gateway: Gateway, request: web.Request, body: bytes, write: Callable[[Seal | None], Awaitable[BatchOut]]
) -> web.StreamResponse:
    """Write the request: with an Idempotency-Key once, otherwise each time that the client sends it. What depends on
    the state of the broker is looked at in `write`: a request that was written before is answered as then.
    """
    if IDEMPOTENCY_KEY not in request.headers:
        return web.Response(body=await written_down(await write(None)), content_type=JSON)
    return await gateway.keys.serve(request, body, write)


# -- one record as it is


async def write_octets(gateway: Gateway, request: web.Request, topic_name: str) -> web.StreamResponse:
    value = await body_of(request)
    key = query_bytes(request, "key")
    number = query_int(request, "partition", -1, most=2**31 - 1)
    given_time = request.query.get("timestamp")
    timestamp = gateway.env.clock.wall_ms() if given_time is None else asked_time(given_time)
    headers = tuple(
        (name[len(RECORD_HEADER) :], content.encode("utf-8", "surrogateescape"))
        for name, content in headers_of_records(request).items()
        if name.lower().startswith(RECORD_HEADER)
    )

    async def write(seal: Seal | None) -> BatchOut:
        topic = await topic_to_write(gateway, topic_name)
        placed = PlacedRecords({}, [], topic_name)
        partition = Partitioner(gateway.next_turn()).place(topic, None if number < 0 else number, key)
        placed.add(partition, (key, value, headers, timestamp))
        return await write_together(gateway, placed, seal=seal)

    return await once(gateway, request, value, write)


async def put_file(gateway: Gateway, request: web.Request) -> web.StreamResponse:
    """Write a file as one record, as `curl -T` sends it: whatever its media type is. Libraries and proxies may repeat a
    PUT without asking, so it must have a key.
    """
    if IDEMPOTENCY_KEY not in request.headers:
        raise Problem("bad-key", "anybody on the way may repeat a PUT: with an Idempotency-Key it is written once")
    return await write_octets(gateway, request, request.match_info["topic"])


# -- a stream


class Report(msgspec.Struct, omit_defaults=True, gc=False):
    """What became of a line."""

    line: int
    partition: int | UnsetType = UNSET
    offset: int | UnsetType = UNSET
    topic: str | UnsetType = UNSET
    problem: Raw | UnsetType = UNSET


async def write_stream(gateway: Gateway, request: web.Request, topic_name: str | None) -> web.StreamResponse:
    """Write lines as they come, and report on them in their order."""
    response = web.StreamResponse(headers={"Content-Type": NDJSON, "X-Accel-Buffering": "no"})
    await response.prepare(request)
    request[STREAMING] = True
    number = 0
    try:
        async for empty, lines in _lines(request, min(RECORD_BYTES_MAX, gateway.config.http_max_body_bytes)):
            number += empty
            for at in range(0, len(lines), RECORDS_AT_ONCE):
                some = lines[at : at + RECORDS_AT_ONCE]
                if not any(map(bytes.strip, some)):
                    number += len(some)
                    continue
                told = None if topic_name is None else await _write_plain_lines(gateway, some, number, topic_name)
                if told is None:
                    reports = await _write_lines(gateway, some, number, topic_name)
                    told = b"".join(_encode(each) + b"\n" for each in reports)
                await tell(request, response, told)
                await asyncio.sleep(0)
                number += len(some)
            some = []
            lines.clear()  # what is done is not held while more comes
    except Problem as problem:
        await response.write(_encode(Report(number, problem=Raw(problem.body()))) + b"\n")
    await response.write_eof()
    return response


async def _lines(request: web.Request, line_bytes_max: int) -> AsyncIterator[tuple[int, list[bytes]]]:
    """How many empty lines are before them, and whole lines, as many as have come. A small body may unpack to a hundred
    million empty lines.
    """
    rest: list[bytes] = []
    rest_bytes = held_bytes = 0
    pace, holder = Pace(), request[HOLDER]
    async for chunk in pieces_of(request, pace):
        empty, lines, more = 0, [], chunk
        if b"\n" in chunk:
            whole = b"".join([*rest, chunk])
            text = whole.lstrip()
            empty = whole.count(b"\n", 0, len(whole) - len(text))
            rest, rest_bytes, held_bytes = [], 0, 0
            await holder.take(len(text) + LINE_BYTES * text.count(b"\n") + pace.window_bytes)
            *lines, more = text.split(b"\n")
            whole = text = b""
        if not rest:
            more = more.lstrip()  # what begins the next line is no blank
        if more:
            rest.append(more)
            rest_bytes += len(more)
            held_bytes += getsizeof(more)
        if rest_bytes > line_bytes_max:
            raise Problem("record-too-large", f"a line is longer than {line_bytes_max} bytes")
        if lines or empty:
            yield empty, lines
            pace.moved()
        await holder.take(held_bytes + pace.window_bytes)
    if rest:
        yield 0, [b"".join(rest)]


async def _write_plain_lines(
    gateway: Gateway, lines: Sequence[bytes], first_number: int, topic_name: str
) -> bytes | None:
    """The reports on lines that have nothing but keys and values, at half the cost of `_write_lines`. None: other lines
    are among them, and nothing was done.
    """
    topic = gateway.image.topics.get(topic_name)
    if topic is None or sum(map(len, lines)) + AROUND_BYTES * len(lines) > batch_bytes(gateway, topic_name):
        return None
    if (records := read_lines(lines)) is None:
        return None
    count, turn = len(topic.partitions), gateway.next_turn()
    of_partition: dict[int, Sequence[int]] = {}
    if count == 1:
        of_partition[0] = range(len(records))
    else:
        places: dict[int, list[int]] = {}
        for number, (key, _) in enumerate(records):
            places.setdefault(turn % count if key is None else partition_for_key(key, count), []).append(number)
        of_partition |= places
    now_ms = gateway.env.clock.wall_ms()
    batches = []
    for index, those in of_partition.items():
        batch = build_plain_batch([records[each] for each in those], now_ms)
        batches.append(OutgoingBatch(TopicPartition(topic_name, index), batch, len(those)))
    await send(gateway, batches)
    reports = [b""] * len(records)
    for sent, those in zip(batches, of_partition.values(), strict=True):
        index = sent.partition.partition
        if not sent.error:
            form = b'{"line":%%d,"partition":%d,"offset":%%d}\n' % index
            for offset, line in enumerate(those, sent.base_offset):
                reports[line] = form % (first_number + line, offset)
            continue
        told: ToldRecords = [(Report(first_number + line), (*records[line], (), now_ms)) for line in those]
        runs = {sent.partition: [told]}
        _tell(runs, [sent], is_named=True)
        await _write_told(gateway, runs, is_named=True)
        for line, (report, _) in zip(those, told, strict=True):
            reports[line] = _encode(report) + b"\n"
    return b"".join(reports)


ToldRecords = list[tuple["Report", NewRecord]]
"""Records that make up a batch, each with the report on it."""


async def _write_told(gateway: Gateway, runs: dict[TopicPartition, list[ToldRecords]], *, is_named: bool) -> None:
    """Write the records in this order, and tell each report what became of its record."""
    while runs:
        batches = [
            OutgoingBatch(partition, await batch_of([record for _, record in those[0]]), len(those[0]))
            for partition, those in runs.items()
        ]
        await send(gateway, batches)
        _tell(runs, batches, is_named=is_named)


def _tell(runs: dict[TopicPartition, list[ToldRecords]], batches: Sequence[OutgoingBatch], *, is_named: bool) -> None:
    """Tell the reports on the first run of each partition. If single records are to blame, the others are to be sent
    again, before those that follow them: every line stands for itself. Not so if the batch may be written all the same,
    because another leader had it before.
    """
    for batch in batches:
        partition, run = batch.partition, runs[batch.partition].pop(0)
        blamed = set(batch.culprits)
        if batch.error and not batch.in_doubt and len(blamed) < len(run) and blamed:
            runs[partition].insert(0, [each for index, each in enumerate(run) if index not in blamed])
            run = [run[index] for index in sorted(blamed)]
        if not runs[partition]:
            del runs[partition]
        problem = Raw(batch.problem().body()) if batch.error else UNSET
        for index, (report, _) in enumerate(run):
            if problem is not UNSET:
                report.problem = problem
                continue
            report.partition, report.offset = partition.partition, batch.base_offset + index
            if not is_named:
                report.topic = partition.topic


async def _read_line(line: bytes) -> RecordIn:
    """The record. A long line is scanned before anything is made of it."""
    if len(line) > DECODED_AT_ONCE:
        await BodyScan(line, TOP).look()
        return read_json(line, _records)
    given = read_json(line, _records)
    await refuse_doubles(line, [given], is_record=True)
    return given


async def _write_lines(
    gateway: Gateway, lines: Sequence[bytes], first_number: int, topic_name: str | None
) -> list[Report]:
    reports: list[Report] = []
    told: dict[TopicPartition, ToldRecords] = {}
    now_ms = gateway.env.clock.wall_ms()
    partitioner = Partitioner(gateway.next_turn())
    topics: dict[str, Topic] = {}
    turn = Turn(SCANNED_AT_ONCE)
    for index, line in enumerate(lines):
        if not line or line.isspace():
            continue
        if turn.is_over(len(line)):
            await asyncio.sleep(0)
        report = Report(first_number + index)
        reports.append(report)
        try:
            given = await _read_line(line)
            name = given.topic or topic_name
            if name is None or (topic_name is not None and given.topic not in (None, topic_name)):
                raise Problem("invalid-record", "the topic is missing, or another than the path's")
            if name not in topics:
                topics[name] = await topic_to_write(gateway, name)
            record = new_record(given, now_ms)
            told.setdefault(partitioner.place(topics[name], given.partition, record[0]), []).append((report, record))
        except Problem as problem:
            report.problem = Raw(problem.body())
    runs: dict[TopicPartition, list[ToldRecords]] = {}
    for partition, those in told.items():
        left = iter(those)
        lengths = map(len, cut([record for _, record in those], batch_bytes(gateway, partition.topic)))
        runs[partition] = [list(islice(left, length)) for length in lengths]
    await _write_told(gateway, runs, is_named=topic_name is not None)
    return reports


_ABOUT = "Written together or not at all: as one batch, or in a transaction of the broker's."
_STREAM = " NDJSON: a record a line, reported line by line while the body is still coming."
_PROBLEMS = (400, 404, 409, 413, 415, 422, 503, 504)
KEY_HEADER = header(
    IDEMPOTENCY_KEY,
    "Makes the request safe to repeat: the same key again is given the first answer, for 24 hours"
    " (`http.idempotency.retention.ms`), also after a restart.",
)
_OCTETS: tuple[Parameter, ...] = (
    text("key", "Of a raw record."),
    integer("partition", "Of a raw record.", most=2**31 - 1),
    text("timestamp", "Of a raw record: milliseconds since 1970, or RFC 3339."),
)
ROUTES = (
    Route(
        *("POST", "/v1/topics/{topic}/records", write_batch, f"Write records to a topic. {_ABOUT}{_STREAM}", "records"),
        body=BatchIn,
        body_bytes_max=None,
        body_media=(NDJSON, OCTETS),
        answer=BatchOut,
        problems=_PROBLEMS,
        line=Report,
        parameters=(KEY_HEADER, *_OCTETS),
    ),
    Route(
        *("PUT", "/v1/topics/{topic}/records", put_file, "Write a file as one record, once for each key.", "records"),
        body_media=(OCTETS,),
        body_bytes_max=None,
        answer=BatchOut,
        problems=_PROBLEMS,
        parameters=(
            Parameter(KEY_HEADER.name, KEY_HEADER.schema, KEY_HEADER.about, "header", is_needed=True),
            *_OCTETS,
        ),
    ),
    Route(
        *("POST", "/v1/records", write_batch, f"Write records to any topics. {_ABOUT}{_STREAM}", "records"),
        body=BatchIn,
        body_bytes_max=None,
        body_media=(NDJSON,),
        answer=BatchOut,
        line=Report,
        problems=_PROBLEMS,
        parameters=(KEY_HEADER,),
    ),
)

"""Transactions as resources: they are begun, filled with numbered batches, committed or aborted, and may be asked about
at any time.

A transaction's name holds the producer id and epoch with which it was begun. So a client that has the name can abort
it or ask about it at any broker, also after restarts. The numbers of its batches are known to the broker that has begun
it, which coordinated it then, and other brokers forward to who coordinates it. A number names a batch for good, because
it stands for sequence numbers of the producer: a batch that is sent again is written once, and answered as before.

What always holds:
 - Every answer tells what became of the transaction. If the outcome is `unknown`, asking resolves it.
 - Only the broker that has begun a transaction writes to it, and commits or seals it, one request at a time. So nothing
   is on its way to a leader then, and no batch is there in part. Another broker could tell neither of them: leaders
   take what was sent before the end until they have its marker, and of a seal they never hear.
 - Of a batch no answer is kept, but its digest and where its records are. The answer is made again from the body that
   comes again. What open transactions keep is counted, and has a limit.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from array import array
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from sys import getsizeof
from typing import TypeVar
from weakref import WeakValueDictionary

import msgspec
from aiohttp import web
from msgspec import UNSET, UnsetType

from log.ids import NO_TIMESTAMP, TopicPartition
from service.api.wire_codes import looked_up
from service.broker.internal_topics import TRANSACTIONS
from service.broker.writing import MAY_BE_WRITTEN
from service.client.failures import ClientFailure
from service.client.transactions import (
    TransactionState,
    abort_hanging,
    find_transaction,
    list_transactions,
    producers_of,
    transactions_of,
)
from service.cluster.image import Topic
from service.turns import NAMED_A_TURN, in_turns
from service.web.answers import as_json, path_int, query_choice, query_int, read_json, sha256_of
from service.web.branches import COMMITTED, LAST_EPOCH, BranchName
from service.web.forwarding import forward
from service.web.gateway import Gateway
from service.web.holding import HOLDER
from service.web.problems import Outcome, Problem, of_error
from service.web.producers import AGAIN, FENCED, Producer, owned_by_another
from service.web.producing import (
    BatchIn,
    BatchOut,
    OffsetIn,
    OffsetsIn,
    commit_offsets,
    in_runs,
    let_go,
    offsets_of,
    place_all,
    point_out,
    read_batch,
    results_of,
    written_down,
)
from service.web.records import Partitioner
from service.web.routing import JSON, LIST_BYTES, Route, integer, text
from service.web.sending import OutgoingBatch
from service.web.unpacking import body_of
from service.wire.error_codes import ErrorCode
from service.wire.messages import ProducerState
from txn.branches import branch_of
from txn.coordinator import TxnCoordinator
from txn.states import Txn

TIMEOUT_MS = 60_000
ID_BYTES_MAX = 8_000
"""A transaction's name, in which its id takes a third more, stands in paths, and behind it a group's."""
SESSIONS_MAX = 10_000
KEPT_BYTES_MAX = 128 << 20
"""What open transactions may keep of a broker's memory together: 400,000 batches."""
KEPT_ANYWAY_BYTES = 8 << 10
"""A transaction that keeps less gets more although others keep all of that. So one alone shuts nobody out."""
OPEN_BYTES = 2000
WRITTEN_BYTES = 300
THING_BYTES = 250
"""About what is kept of a transaction and a batch, and of a topic, a partition, or a run in doubt."""
SLACK_S = 5.0
ABORTED = ("PrepareAbort", "CompleteAbort", "PrepareEpochFence")
STATES = ("Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort")


class Begin(msgspec.Struct, forbid_unknown_fields=True):
    transactional_id: str
    timeout_ms: int = TIMEOUT_MS
    steal: bool = True
    """Abort what another owner of the id has open, and shut it out. False: that is a conflict, also if the transaction
    was begun here and has nothing yet.
    """


class Begun(msgspec.Struct):
    txn: str
    transactional_id: str
    producer_id: int
    epoch: int
    expires_at: int
    """Milliseconds since 1970: until then the first batch may come. From that one on, the transaction is aborted when
    `timeout_ms` is over; a branch also `timeout_ms` after it was sealed.
    """
    outcome: Outcome = "none"


class TransactionOutcome(msgspec.Struct):
    outcome: Outcome


class TransactionStatus(msgspec.Struct, omit_defaults=True):
    """What became of a transaction: nothing is visible (`none`), all is visible (`applied`), or this is not known
    (`unknown`).
    """

    state: str
    outcome: Outcome
    transactional_id: str
    producer_id: int
    epoch: int
    coordinator: int | UnsetType = UNSET
    timeout_ms: int | UnsetType = UNSET
    started_at: int | UnsetType = UNSET
    next_batch: int | UnsetType = UNSET
    """How many batches are in it, if the broker that answers knows them."""
    partitions: list[PartitionName] | UnsetType = UNSET
    branch: BranchName | UnsetType = UNSET
    """If the transaction is a sealed branch: its name for the decision."""


class PartitionName(msgspec.Struct, forbid_unknown_fields=True):
    topic: str
    partition: int


class GroupOffsetsIn(msgspec.Struct, forbid_unknown_fields=True):
    offsets: list[OffsetIn]
    member_id: str = ""
    generation: int = -1
    group_instance_id: str | None = None


class TransactionInList(msgspec.Struct):
    transactional_id: str
    state: str
    producer_id: int
    coordinator: int


class TransactionList(msgspec.Struct):
    transactions: list[TransactionInList]


class HangingOut(msgspec.Struct):
    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    start_offset: int
    last_timestamp: int


class Hanging(msgspec.Struct):
    hanging: list[HangingOut]


class Find(msgspec.Struct, forbid_unknown_fields=True):
    topics: list[str] = []
    """The topics to look at; by default all topics."""


class AbortIn(msgspec.Struct, forbid_unknown_fields=True):
    topic: str
    partition: int
    producer_id: int


_begins = msgspec.json.Decoder(Begin)
_offsets = msgspec.json.Decoder(GroupOffsetsIn)
_finds = msgspec.json.Decoder(Find)
_aborts = msgspec.json.Decoder(AbortIn)
T = TypeVar("T")


# -- names


@dataclass(frozen=True, slots=True)
class Name:
    """The parts of a transaction's name."""

    transactional_id: str
    producer_id: int
    epoch: int

    def __str__(self) -> str:
        encoded = base64.urlsafe_b64encode(self.transactional_id.encode()).decode().rstrip("=")
        return f"{self.producer_id}-{self.epoch}-{encoded}"


def name_of(text: str) -> Name:
    producer_id, _, rest = text.partition("-")
    epoch, _, encoded = rest.partition("-")
    try:
        if not (producer_id.isdigit() and epoch.isdigit() and producer_id.isascii() and epoch.isascii()):
            raise ValueError
        if len(producer_id) > 19 or int(epoch) > 0x7FFF or int(producer_id) >= 2**63 or not encoded:
            raise ValueError
        padded = encoded + "=" * (-len(encoded) % 4)
        transactional_id = base64.b64decode(padded, altchars=b"-_", validate=True).decode()
        return Name(transactional_id, int(producer_id), int(epoch))
    except (ValueError, binascii.Error):
        raise Problem("unknown-transaction", f"{text[:60]!r} is no transaction's name") from None


# -- what the coordinator's broker knows of an open transaction


@dataclass(frozen=True, slots=True)
class WrittenOnce:
    """A batch that is there. Together with its body it tells where its records are."""

    fingerprint: bytes
    now_ms: int
    """The time of its records that have none."""
    counts: tuple[int, ...]
    """How many partitions its topics had then, in the order of the topics in the body: that chose the partitions."""
    places: array[int]
    """Partition by partition the runs of its records: first offset, how many, and the time if the leader said it."""

    @property
    def size_bytes(self) -> int:
        return WRITTEN_BYTES + self.places.itemsize * (len(self.counts) + len(self.places))


@dataclass(slots=True)
class InPart:
    """A batch of which only a part may be written. It must be put again unchanged, or the transaction be aborted."""

    fingerprint: bytes
    now_ms: int
    """The time of its records that have none. A leader that has the batch already keeps it as it came first."""
    topics: dict[str, Topic] = field(default_factory=dict)
    """The topics as they were: the batch goes to the same partitions again, although there may be more by now."""
    limits: dict[str, int] = field(default_factory=dict)
    """How long a batch of each topic may be. The settings may be others by now, and the runs must stay the same."""
    written: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Offset and time of the runs that are certainly there. The leader remembers the last few only."""


@dataclass(slots=True)
class Open:
    """An open transaction: its producer, and the batches that it was given."""

    producer: Producer
    until_s: float = 0.0
    """For how long it is remembered."""
    batches: list[WrittenOnce] = field(default_factory=list)
    is_empty: bool = True
    in_part: InPart | None = None
    topics: dict[str, Topic] = field(default_factory=dict)
    """The topics that it was written to. What is in one that is deleted since is lost, and what comes to another of its
    name would begin in the middle.
    """
    is_broken: bool = False
    """A part of what it was given was written, and the rest can't be. The transaction can only be aborted."""
    is_ending: bool = False
    """Its commit, or its seal, was asked for: it may be decided, or sealed, although nobody was told."""
    is_over: bool = False
    """It was ended with nothing in it. Its coordinator knows nothing of that, and would let more be written."""
    unsure: set[str] = field(default_factory=set)
    """The groups whose offsets may be there or on their way. They must be put again, or the transaction be aborted."""
    batches_bytes: int = 0
    kept_bytes: int = 0
    """What it kept when that was counted last."""

    def written(self, batch: WrittenOnce) -> None:
        self.in_part = None
        self.batches.append(batch)
        self.batches_bytes += batch.size_bytes

    def size_bytes(self) -> int:
        """About what it keeps, without its name."""
        part = self.in_part
        things = len(self.producer.sequences) + len(self.topics) + len(self.unsure)
        things += 0 if part is None else len(part.topics) + len(part.limits) + len(part.written)
        return self.batches_bytes + THING_BYTES * things + sum(map(getsizeof, self.unsure))

    def started(self) -> None:
        """Something is about to be written. The transaction's time begins with the first that is."""
        if self.is_empty:
            self.is_empty = False
            self.extend()

    def lost(self, now: Mapping[str, Topic]) -> str | None:
        """A topic that it was written to and that is deleted, although there may be another of its name."""
        topics = self.topics if self.in_part is None else {**self.in_part.topics, **self.topics}
        return next((name for name, topic in topics.items() if name not in now or now[name].id != topic.id), None)

    def extend(self) -> None:
        """The transaction's time begins now, or anew."""
        self.until_s = asyncio.get_running_loop().time() + self.producer.timeout_ms / 1000 + SLACK_S


class OpenTransactions:
    """The open transactions that were begun at this broker, one of each transactional id: the last."""

    def __init__(self) -> None:
        self._open: dict[str, tuple[Name, Open]] = {}
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._begins: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._places = 0
        """How many are taken by transactions that are being begun."""
        self.kept_bytes = 0

    def turn(self, name: Name) -> asyncio.Lock:
        """For what writes to a transaction or ends it, one request at a time; also if it was begun elsewhere."""
        return self._turns.setdefault(str(name), asyncio.Lock())

    @asynccontextmanager
    async def beginning(self, transactional_id: str) -> AsyncGenerator[None]:
        """For what begins a transaction of the id, one request at a time. There is a place for it, or it is refused
        before anything is done: to take the id over aborts what its owner has open.
        """
        async with self._begins.setdefault(transactional_id, asyncio.Lock()):
            self._forget_old()
            if transactional_id not in self._open and len(self._open) + self._places >= SESSIONS_MAX:
                raise Problem("throttled", f"{SESSIONS_MAX} transactions are open here")
            self.refuse_more(_size_of_name(transactional_id))
            self._places += 1
            try:
                yield
            finally:
                self._places -= 1

    def _forget_old(self) -> None:
        now_s = asyncio.get_running_loop().time()
        for each in [each for each, (_, known) in self._open.items() if known.until_s < now_s]:
            self._forget(each)

    def _forget(self, transactional_id: str) -> None:
        _, known = self._open.pop(transactional_id)
        self.kept_bytes -= known.kept_bytes

    def refuse_more(self, kept_bytes: int) -> None:
        """Raise a problem if a transaction that keeps this may not keep more now."""
        if kept_bytes <= KEPT_ANYWAY_BYTES or self.kept_bytes < KEPT_BYTES_MAX:
            return
        self._forget_old()
        if self.kept_bytes >= KEPT_BYTES_MAX:
            raise Problem("throttled", "open transactions keep all the memory that they may have here: end some")

    def count(self, name: Name) -> None:
        """Count what the transaction keeps now."""
        if (known := self.find(name)) is not None:
            kept_bytes = known.size_bytes() + _size_of_name(name.transactional_id)
            self.kept_bytes += kept_bytes - known.kept_bytes
            known.kept_bytes = kept_bytes

    def add(self, name: Name, producer: Producer) -> None:
        if name.transactional_id in self._open:
            self._forget(name.transactional_id)
        begun = Open(producer)
        begun.extend()
        self._open[name.transactional_id] = name, begun
        self.count(name)

    def is_begun(self, name: Name) -> bool:
        """Whether the transaction was begun at this broker, and may still be written to."""
        return (known := self.find(name)) is not None and not known.is_over

    def find(self, name: Name) -> Open | None:
        of_id, known = self._open.get(name.transactional_id, (None, None))
        return known if of_id == name else None

    def close(self, name: Name) -> None:
        if self.find(name) is not None:
            self._forget(name.transactional_id)


def _size_of_name(transactional_id: str) -> int:
    """What is kept of any transaction of the id, which stands in its name and in its producer."""
    return OPEN_BYTES + 2 * getsizeof(transactional_id)


async def _elsewhere(gateway: Gateway, transactional_id: str) -> int | None:
    """The broker that coordinates the id; None if this broker does."""
    node = await gateway.coordinator(TRANSACTIONS, transactional_id)
    return None if node == gateway.node_id else node


# -- begin, write, end


async def begin(gateway: Gateway, request: web.Request) -> web.StreamResponse:
    body = await body_of(request)
    wanted = read_json(body, _begins)
    if not wanted.transactional_id or wanted.transactional_id.startswith("__http-"):
        raise Problem("invalid-request", "a transactional id must be named, and be none of the brokers' own")
    if len(wanted.transactional_id.encode()) > ID_BYTES_MAX:
        raise Problem("invalid-request", f"a transactional id has {ID_BYTES_MAX} bytes at most by HTTP")
    branch = branch_of(wanted.transactional_id)
    if branch is not None and str(branch) != wanted.transactional_id:
        raise Problem("invalid-request", f"the token of a branch has no zeros in front: {str(branch)[:200]!r}")
    if not 0 < wanted.timeout_ms < 2**31:
        raise Problem("invalid-request", "timeout_ms is a time", error=ErrorCode.INVALID_TRANSACTION_TIMEOUT)
    if (node := await _elsewhere(gateway, wanted.transactional_id)) is not None:
        return await forward(gateway, node, request, body)
    producer = Producer(gateway, wanted.transactional_id, wanted.timeout_ms, ends_anywhere=True)
    async with gateway.open_transactions.beginning(wanted.transactional_id):
        if not wanted.steal:
            await _refuse_owned(gateway, wanted.transactional_id)
        await producer.own(steals=wanted.steal)
        name = Name(wanted.transactional_id, producer.producer_id, producer.epoch)
        gateway.open_transactions.add(name, producer)
    expires_ms = gateway.env.clock.wall_ms() + wanted.timeout_ms
    begun = Begun(str(name), wanted.transactional_id, producer.producer_id, producer.epoch, expires_ms)
    return as_json(begun, status=201, headers={"Location": f"/v1/transactions/{name}"})


async def _refuse_owned(gateway: Gateway, transactional_id: str) -> None:
    """Raise a problem if somebody has a transaction of the id open, or has begun one here to write to."""
    now = await find_transaction(gateway.cluster, transactional_id)
    if now is None:
        return
    last = Name(transactional_id, now.producer_id, now.producer_epoch)
    if now.is_open or gateway.open_transactions.is_begun(last):
        raise owned_by_another(transactional_id)


async def put_batch(gateway: Gateway, request: web.Request) -> web.StreamResponse:
    name, number = name_of(request.match_info["txn"]), path_int(request, "number")
    body = await body_of(request)
    if (node := await _elsewhere(gateway, name.transactional_id)) is not None:
        return await forward(gateway, node, request, body)
    fingerprint = bytes.fromhex(await sha256_of(gateway, body))
    async with gateway.open_transactions.turn(name):
        open_one = gateway.open_transactions.find(name)
        if open_one is None:
            raise await _is_not_open(gateway, name)
        if number < len(open_one.batches):
            written = open_one.batches[number]
            if written.fingerprint != fingerprint:
                raise Problem("batch-changed", f"batch {number} was written with another body")
            again = await _answer_again(gateway, request, open_one, number, body)
            replayed = {"Batch-Replayed": "true"}
            return web.Response(body=await written_down(again), content_type=JSON, headers=replayed)
        if open_one.is_over:
            raise _over()
        if open_one.is_broken:
            raise _broken()
        if open_one.in_part is not None and open_one.in_part.fingerprint != fingerprint:
            raise Problem("batch-changed", f"batch {number} was written in part with another body")
        if number > len(open_one.batches):
            raise Problem("batch-gap", f"the next batch is {len(open_one.batches)}", next_batch=len(open_one.batches))
        if open_one.in_part is None:
            gateway.open_transactions.refuse_more(open_one.kept_bytes)
        try:
            answer = await _write(gateway, request, name, open_one, number, body, fingerprint)
            return web.Response(body=await written_down(answer), content_type=JSON)
        finally:
            gateway.open_transactions.count(name)


async def _answer_again(gateway: Gateway, request: web.Request, open_one: Open, number: int, body: bytes) -> BatchOut:
    """The answer to a batch that is there. Its records go the way that they went when it was written."""
    written = open_one.batches[number]
    _, records = await read_batch(body, request[HOLDER])
    names = dict.fromkeys(each.topic or "" for each in records)
    topics = {name: _as_then(open_one.topics[name], count) for name, count in zip(names, written.counts, strict=True)}
    placed = await place_all(gateway, records, None, Partitioner(number), written.now_ms, topics)
    runs, batches = iter(written.places), list[OutgoingBatch]()
    async for partition, those in in_turns(placed.by_partition.items(), NAMED_A_TURN):
        left = len(those)
        while left:
            first, count, time_ms = next(runs), next(runs), next(runs)
            batches.append(OutgoingBatch(partition, b"", count, base_offset=first, append_time_ms=time_ms))
            left -= count
    answer = BatchOut("none", await results_of(placed, offsets_of(batches)))
    await let_go(records, *placed.lists)
    return answer


def _as_then(topic: Topic, count: int) -> Topic:
    """The topic when it had so many partitions."""
    if len(topic.partitions) == count:
        return topic
    return replace(topic, partitions={each: state for each, state in topic.partitions.items() if each < count})


def _places(batches: Sequence[OutgoingBatch]) -> array[int]:
    """Where the records of these batches are; those of a partition follow each other."""
    places, before = array("q"), None
    for each in batches:
        is_next = before == each.partition and places[-3] + places[-2] == each.base_offset
        if is_next and places[-1] == each.append_time_ms:
            places[-2] += each.records
        else:
            places.extend((each.base_offset, each.records, each.append_time_ms))
        before = each.partition
    return places


async def _is_not_open(gateway: Gateway, name: Name) -> Problem:
    """What is wrong with a batch, or offsets, of a transaction that this broker does not know."""
    if (code := await _producer_of(gateway, name).refusal()) in FENCED:
        await _complain(gateway, name)
    return of_error(code, _who(name)) if code else _not_known()


def _not_known() -> Problem:
    return Problem(
        "invalid-txn-state",
        "this broker does not know the transaction's batches: it has begun elsewhere, or before a restart, or too long"
        " ago; abort it, and begin another",
    )


def _over() -> Problem:
    return Problem("invalid-txn-state", "the transaction was ended, with nothing in it: begin another")


def _broken(error: int | None = None) -> Problem:
    detail = "a part of what it was given is not there, and can't be written any more: abort the transaction"
    return Problem("invalid-txn-state", detail, error=error)


async def _refuse_lost(gateway: Gateway, name: Name, open_one: Open) -> None:
    """Raise a problem if something of the transaction is gone with its topic."""
    if (topic := open_one.lost(gateway.image.topics)) is None:
        return
    if await open_one.producer.refusal() in FENCED:
        await _complain(gateway, name)  # it is over
    detail = f"topic {topic!r} was deleted, and what the transaction had written there: abort the transaction"
    raise Problem("invalid-txn-state", detail, outcome="unknown" if open_one.is_ending else "none")


def _who(name: Name) -> str:
    return f"transactional id {name.transactional_id!r}"


async def _write(
    gateway: Gateway, request: web.Request, name: Name, open_one: Open, number: int, body: bytes, fingerprint: bytes
) -> BatchOut:
    batch, records = await read_batch(body, request[HOLDER])
    if not records or batch.offsets is not None or batch.expected:
        raise Problem("invalid-request", "a batch of a transaction has records, and nothing else")
    await _refuse_lost(gateway, name, open_one)
    # The number chooses the partitions, so that the same batch, sent again, goes to the same ones.
    part = open_one.in_part or InPart(fingerprint, gateway.env.clock.wall_ms())
    placed = await place_all(gateway, records, None, Partitioner(number), part.now_ms, part.topics)
    await _refuse_lost(gateway, name, open_one)  # a topic may have been made again meanwhile, and be found so
    producer = open_one.producer
    before = dict(producer.sequences)
    batches: list[OutgoingBatch] = []
    for partition, run in await in_runs(gateway, placed, part.limits):
        batches.append(await producer.build_any(partition, run))
        await asyncio.sleep(0)
    for index, (offset, time_ms) in part.written.items():
        batches[index].written(offset, time_ms)
    open_one.started()
    try:
        await producer.write([each for each in batches if each.base_offset < 0])
    except Problem as problem:
        producer.sequences = before
        if problem.error in FENCED:
            await _complain(gateway, name)
        # If nobody answered, the batch may be sent again unchanged: its sequence numbers tell whether it is there
        # already.
        may_repeat = problem.outcome == "unknown" or problem.kind.retriable
        part.written.update(
            (index, (each.base_offset, each.append_time_ms))
            for index, each in enumerate(batches)
            if each.base_offset >= 0 and not each.error
        )
        if open_one.in_part is not None or part.written or any(each.in_doubt for each in batches):
            open_one.in_part = part
            open_one.is_broken = not may_repeat
        if problem.error == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:  # what was before it is gone
            open_one.is_broken = True
            raise _broken(problem.error) from None
        problem.outcome = "none" if not may_repeat else problem.outcome
        raise point_out(problem, batches, placed) from None
    open_one.topics |= part.topics
    counts = tuple(len(topic.partitions) for topic in part.topics.values())
    open_one.written(WrittenOnce(fingerprint, part.now_ms, counts, _places(batches)))
    answer = BatchOut("none", await results_of(placed, offsets_of(batches)))
    await let_go(records, *placed.lists)
    return answer


async def put_offsets(gateway: Gateway, request: web.Request) -> web.StreamResponse:
    name, group = name_of(request.match_info["txn"]), request.match_info["group"]
    body = await body_of(request)
    wanted = read_json(body, _offsets)
    if (node := await _elsewhere(gateway, name.transactional_id)) is not None:
        return await forward(gateway, node, request, body)
    given = OffsetsIn(group, wanted.offsets, wanted.member_id, wanted.generation, wanted.group_instance_id)
    async with gateway.open_transactions.turn(name):
        open_one = gateway.open_transactions.find(name)
        if open_one is None:
            raise await _is_not_open(gateway, name)
        if open_one.is_over:
            raise _over()
        if group not in open_one.unsure:
            gateway.open_transactions.refuse_more(open_one.kept_bytes)
        open_one.started()
        was_unsure = group in open_one.unsure
        open_one.unsure.add(group)
        try:
            await commit_offsets(open_one.producer, given)
        except Problem as problem:
            if not was_unsure and problem.error not in AGAIN | MAY_BE_WRITTEN:
                open_one.unsure.remove(group)
            if problem.error in FENCED:
                await _complain(gateway, name)
            raise
        else:
            open_one.unsure.remove(group)
        finally:
            gateway.open_transactions.count(name)
    return as_json(TransactionOutcome("none"))


def _producer_of(gateway: Gateway, name: Name) -> Producer:
    producer = Producer(gateway, name.transactional_id, ends_anywhere=True)
    producer.producer_id, producer.epoch = name.producer_id, name.epoch
    return producer


async def commit(gateway: Gateway, request: web.Request) -> web.StreamResponse:
    return await _end(gateway, request, is_commit=True)


async def abort(gateway: Gateway, request: web.Request) -> web.StreamResponse:
    return await _end(gateway, request, is_commit=False)


async def _refuse_parts(gateway: Gateway, name: Name, known: Open | None) -> None:
    """Raise a problem if the transaction can't be committed here, because of its batches."""
    if known is None:
        code = await _producer_of(gateway, name).refusal()
        if code not in FENCED:
            raise of_error(code, _who(name), in_doubt=True) if code else _not_known()
        # Nothing is decided with its pair any more: the end tells what was.
    elif known.is_broken:
        raise _broken()
    elif known.in_part is not None:
        raise Problem("invalid-txn-state", "a batch was written in part: put it again, or abort the transaction")
    elif known.unsure:
        groups = ", ".join(sorted(known.unsure))[:300]
        raise Problem("invalid-txn-state", f"offsets of {groups} may be missing: put them again, or abort it")
    elif not known.is_ending or await known.producer.refusal() not in FENCED:
        await _refuse_lost(gateway, name, known)  # otherwise it is decided, and its end tells how


async def _end(gateway: Gateway, request: web.Request, *, is_commit: bool) -> web.StreamResponse:
    name = name_of(request.match_info["txn"])
    if (node := await _elsewhere(gateway, name.transactional_id)) is not None:
        return await forward(gateway, node, request, b"")
    producer = _producer_of(gateway, name)
    meant: Outcome = "applied" if is_commit else "none"
    async with gateway.open_transactions.turn(name):
        known = gateway.open_transactions.find(name)
        was_ending = known is not None and known.is_ending
        if is_commit:
            await _refuse_parts(gateway, name, known)
            if known is not None:
                known.is_ending = True
        try:
            await gateway.see_through(producer.end(commit=is_commit))
        except Problem as problem:
            if known is not None and problem.outcome == "none":
                known.is_ending = was_ending
            try:
                state = await _seen(gateway, name, await find_transaction(gateway.cluster, name.transactional_id))
            except ClientFailure:
                raise problem from None
            if known is not None:
                state.next_batch = len(known.batches)
                known.is_ending = known.is_ending and state.state != "Empty"
            if problem.error == ErrorCode.INVALID_TXN_STATE and state.state == "Empty":
                if known is not None:
                    known.is_over = True
                return as_json(state)  # nothing was written
            if state.state != "Ongoing" and state.outcome == meant and state.state != "Empty":
                gateway.open_transactions.close(name)
                return as_json(state)  # it is decided, and in the way that the caller wants
            if problem.error in FENCED or problem.error == ErrorCode.INVALID_TXN_STATE:
                _complain_of(name, state, is_fenced=problem.error in FENCED)
            raise
        if is_commit and (branch := branch_of(name.transactional_id)) is not None:
            if known is not None:
                known.extend()
            sealed = TransactionStatus("Sealed", "none", name.transactional_id, name.producer_id, name.epoch)
            sealed.branch = BranchName(branch.name, producer.producer_id, producer.epoch)
            if known is not None:
                sealed.next_batch = len(known.batches)
            return as_json(sealed)
        gateway.open_transactions.close(name)
    await producer.until_visible()
    try:
        found = await find_transaction(gateway.cluster, name.transactional_id)
    except ClientFailure as failure:
        raise Problem("not-now", f"it is ended; its state can't be told: {failure.message}", outcome=meant) from None
    state = _shown(name, found, was_committed=is_commit)
    state.outcome = meant  # also if the id has another owner by now
    if known is not None:
        state.next_batch = len(known.batches)
    return as_json(state)


async def describe(gateway: Gateway, request: web.Request) -> web.StreamResponse:
    name = name_of(request.match_info["txn"])
    if (node := await _elsewhere(gateway, name.transactional_id)) is not None:
        return await forward(gateway, node, request, b"")
    state = await _seen(gateway, name, await find_transaction(gateway.cluster, name.transactional_id))
    if state.state in ("Ongoing", "Empty") and (branch := branch_of(name.transactional_id)) is not None:
        sealed = await _ask_here(gateway, name, _seal_of)
        if sealed is not None and not isinstance(sealed, ErrorCode):
            state.state, state.branch = "Sealed", BranchName(branch.name, *sealed)
    if (known := gateway.open_transactions.find(name)) is not None:
        state.next_batch = len(known.batches)
    return as_json(state)


def _seal_of(txn: Txn, name: Name) -> tuple[int, int] | None:
    """The pair by which a decision names the branch; None: it is not sealed."""
    is_same = (txn.producer_id, txn.producer_epoch) == (name.producer_id, name.epoch)
    return txn.holder if is_same and txn.handed_on and txn.sealed_ms != NO_TIMESTAMP else None


def _shown(name: Name, found: TransactionState | None, *, was_committed: bool | None) -> TransactionStatus:
    """What became of this transaction. `was_committed` is what is known of that once another pair has its id; None:
    nothing. The present state may be another's, which has taken the id over: its commit need not raise the epoch.
    """
    state = "Superseded"
    outcome: Outcome = "unknown" if was_committed is None else "applied" if was_committed else "none"
    steps = 1 if branch_of(name.transactional_id) is None else 2  # what may raise the epoch: the seal, and the end
    if found is not None:
        is_next = found.producer_id == name.producer_id and name.epoch < found.producer_epoch <= name.epoch + steps
        is_renamed = name.epoch >= LAST_EPOCH and found.producer_id != name.producer_id and found.producer_epoch == 0
        if (found.producer_id, found.producer_epoch) == (name.producer_id, name.epoch):
            state, outcome = found.state, "applied" if found.state in COMMITTED else "none"
        elif was_committed and found.state in COMMITTED:
            state = found.state
        elif not was_committed and found.state in ABORTED and (is_next or (is_renamed and was_committed is False)):
            state, outcome = found.state, "none"  # had it been committed, the next one would have a higher epoch
    shown = TransactionStatus(state, outcome, name.transactional_id, name.producer_id, name.epoch)
    if found is not None and state != "Superseded":
        shown.coordinator, shown.timeout_ms = found.coordinator, found.timeout_ms
        shown.partitions = [PartitionName(*each) for each in found.partitions]
        if found.started_ms >= 0:
            shown.started_at = found.started_ms
    return shown


async def _seen(gateway: Gateway, name: Name, found: TransactionState | None) -> TransactionStatus:
    """What became of this transaction, as far as its coordinator, which is this broker, knows it. Raises a problem if
    the coordinator has forgotten the id, or never knew the transaction.
    """
    if found is None:
        detail = f"{_who(name)} is not known: there never was a transaction of it, or it was forgotten since"
        raise Problem("unknown-transaction", detail, outcome="unknown")
    if found.producer_id == name.producer_id and name.epoch > found.producer_epoch:  # epochs never go back
        raise Problem("unknown-transaction", f"{_who(name)} never had producer id {name.producer_id} in this epoch")
    known = await _ask_here(gateway, name, lambda txn, name: txn.was_committed(name.producer_id, name.epoch))
    was_committed = known if isinstance(known, bool) else None
    open_one = gateway.open_transactions.find(name)
    if was_committed is None and open_one is not None and not open_one.is_ending:
        was_committed = False  # nobody else commits it
    return _shown(name, found, was_committed=was_committed)


async def _ask_here(gateway: Gateway, name: Name, look: Callable[[Txn, Name], T]) -> T | ErrorCode | None:
    """What is found in this broker's knowledge of the id, which it coordinates; None: it knows no such id."""

    def looked(machine: TxnCoordinator, transactional_id: str) -> T | None:
        described = machine.describe(transactional_id)
        return None if described is None else look(described.txn, name)

    (found,) = (await looked_up(gateway.here.coordination.transactions, [name.transactional_id], looked)).values()
    return found


async def _complain(gateway: Gateway, name: Name) -> None:
    """Raise the problem of a transaction whose coordinator, or a leader, lets nothing more be written in it."""
    found = await find_transaction(gateway.cluster, name.transactional_id)
    _complain_of(name, await _seen(gateway, name, found), is_fenced=True)


def _complain_of(name: Name, state: TransactionStatus, *, is_fenced: bool) -> None:
    """Raise the problem for a transaction that can't be written to or ended any more."""
    if state.state in ("Ongoing", "Empty"):
        if is_fenced and branch_of(name.transactional_id) is not None:  # a seal keeps the pair that is shown
            raise Problem("invalid-txn-state", "the branch is sealed: it waits for the decision", state=state.state)
        return
    if state.outcome == "applied":
        raise Problem("invalid-txn-state", "the transaction is committed", outcome="applied", state=state.state)
    if state.state != "Superseded":
        raise Problem("transaction-expired", "the transaction was aborted", state=state.state)
    raise Problem(
        "producer-fenced",
        f"transactional id {name.transactional_id!r} was taken over since; what this transaction left open was aborted",
        error=ErrorCode.PRODUCER_FENCED,
        outcome=state.outcome,
    )


# -- what an operator asks


async def list_all(gateway: Gateway, request: web.Request) -> web.Response:
    states = [query_choice(request, "state", *STATES)] if "state" in request.query else []
    producer_id = query_int(request, "producer_id", -1)
    listed = await list_transactions(
        gateway.cluster,
        states=states,
        producer_ids=[producer_id] if producer_id >= 0 else [],
        longer_than_ms=query_int(request, "min_age_ms", -1),
    )
    found = [
        TransactionInList(
            *(each.transaction.transactional_id, each.transaction.transaction_state, each.transaction.producer_id),
            each.coordinator,
        )
        for each in listed
    ]
    return as_json(TransactionList(found))


async def find_hanging(gateway: Gateway, request: web.Request) -> web.Response:
    """Transactions that are open in a partition and that no coordinator knows. Nothing will ever end them by itself."""
    body = await body_of(request)
    wanted = read_json(body or b"{}", _finds)
    names = dict.fromkeys(wanted.topics or gateway.image.topics)
    partitions = [TopicPartition(name, index) for name in names for index in gateway.topic(name).partitions]
    return as_json(Hanging(await _hanging(gateway, partitions)))


async def _hanging(gateway: Gateway, partitions: list[TopicPartition]) -> list[HangingOut]:
    opened = await _opened(gateway, partitions)
    known = await transactions_of(gateway.cluster, (producer.producer_id for _, producer in opened))
    # A transaction that ended while we asked is open in the first answer and unknown in the second. A third answer no
    # longer shows it.
    still = {(partition, each.current_txn_start_offset) for partition, each in await _opened(gateway, partitions)}
    return [
        HangingOut(
            *(partition.topic, partition.partition, producer.producer_id, producer.producer_epoch),
            *(producer.current_txn_start_offset, producer.last_timestamp),
        )
        for partition, producer in opened
        if (partition, producer.current_txn_start_offset) in still
        and not any(each.is_open and partition in each.partitions for each in known.get(producer.producer_id, ()))
    ]


async def _opened(gateway: Gateway, partitions: list[TopicPartition]) -> list[tuple[TopicPartition, ProducerState]]:
    found = await producers_of(gateway.cluster, partitions)
    return [
        (partition, producer)
        for partition, producers in found.items()
        for producer in producers
        if producer.current_txn_start_offset >= 0
    ]


async def abort_in_partition(gateway: Gateway, request: web.Request) -> web.Response:
    wanted = read_json(await body_of(request), _aborts)
    partition = TopicPartition(wanted.topic, wanted.partition)
    gateway.state(partition)
    for _, producer in await _opened(gateway, [partition]):
        if producer.producer_id == wanted.producer_id:
            outcome = await abort_hanging(gateway.cluster, partition, producer)
            if isinstance(outcome, TransactionState):
                raise Problem("conflict", "its coordinator has it open: end the transaction itself")
            if outcome:
                raise of_error(outcome, f"{partition.topic} partition {partition.partition}", writing=True)
            return as_json(TransactionOutcome("none"))
    raise Problem("unknown-transaction", f"producer {wanted.producer_id} has nothing open there")


_ALL = "/v1/transactions"
_ONE = _ALL + "/{txn:[^/:]+}"
ROUTES = (
    Route("POST", _ALL, begin, "Begin a transaction; what the id's former owner left open is aborted.", "transactions",
          body=Begin, answer=Begun, status=201, problems=(400, 403, 409, 422, 429, 503, 504),
          headers={"Location": "The transaction."}),
    Route("GET", _ALL, list_all, "Transactional ids and what they do.", "transactions", answer=TransactionList,
          problems=(400, 503), parameters=(
              text("state", "Those in this state.", *STATES),
              integer("min_age_ms", "Only transactions that are open for longer."),
              integer("producer_id", "Those of this producer."))),
    Route("GET", _ONE, describe, "What became of a transaction.", "transactions", answer=TransactionStatus,
          problems=(404, 503)),
    Route("PUT", _ONE + "/batches/{number}", put_batch,
          "Write a batch: 0, then 1, and so on. The same number again is answered again, and written once.",
          "transactions", body=BatchIn, body_bytes_max=None, answer=BatchOut,
          problems=(400, 404, 409, 410, 413, 422, 429, 503, 504),
          headers={"Batch-Replayed": "`true` if the batch was written before."}),
    Route("PUT", _ONE + "/offsets/{group}", put_offsets, "Commit what a group has read, with the transaction.",
          "transactions", body=GroupOffsetsIn, body_bytes_max=LIST_BYTES, answer=TransactionOutcome,
          problems=(400, 404, 409, 410, 422, 429, 503, 504)),
    Route("POST", _ONE + ":commit", commit, "Make everything visible at once. May be repeated.", "transactions",
          answer=TransactionStatus, problems=(404, 409, 410, 503, 504)),
    Route("POST", _ONE + ":abort", abort, "Let nothing become visible. May be repeated.", "transactions",
          answer=TransactionStatus, problems=(404, 409, 410, 503, 504)),
    Route("POST", _ALL + ":find-hanging", find_hanging, "Transactions that no coordinator will end.", "transactions",
          body=Find, answer=Hanging, problems=(400, 404, 503), only_asks=True),
    Route("POST", "/v1/partitions:abort-transaction", abort_in_partition, "End a hanging transaction in a partition.",
          "transactions", body=AbortIn, answer=TransactionOutcome, problems=(400, 404, 409, 503, 504)),
)  # fmt: skip

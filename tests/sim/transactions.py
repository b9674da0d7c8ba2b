"""The transactional clients of a run: transactions over several partitions, consume-transform-produce, thieves of ids,
committed readers.

They follow Kafka's client rules where correctness rests on them (sequences, fencing, resuming from the group's
committed offsets after every doubt) and break the others: a client may leave a transaction open, come back under the
same id, be robbed of it in the middle, be paused beyond the timeout, or abort while a write of it is on its way.

What always holds: a transaction is `FAILED` in the history only if its commit was never asked for or was refused at the
first asking, `OK` only if the commit was acknowledged; everything else is unknown.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial

from log.batch import CorruptBatch, build_batch, checksum_ok, read_records, split
from log.control import ControlType, read_marker
from log.ids import TopicPartition
from service.wire.error_codes import ErrorCode
from service.wire.messages import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    EndTxnRequest,
    FetchPartition,
    FetchRequest,
    FetchResponsePartitionData,
    FetchTopic,
    FindCoordinatorRequest,
    InitProducerIdRequest,
    OffsetFetchRequest,
    OffsetFetchRequestTopic,
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from tests.sim.checkers import EARLIEST
from tests.sim.history import CommittedRead, Outcome, Owned, Record, Transaction, Write
from tests.sim.plan import INPUT, LEDGER, OUTPUT, PASSING
from tests.sim.postman import Postman
from tests.sim.workload import FETCH_BYTES, SETTLE_WITHIN, Actor, Clients, Reader, Unanswered

GROUP_KEY, TRANSACTION_KEY = 0, 1
TRIES = 12  # of one request, before the transaction is given up

AGAIN = {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNSTABLE_OFFSET_COMMIT,
    ErrorCode.NETWORK_EXCEPTION,
}
LOST_THE_ID = {
    ErrorCode.PRODUCER_FENCED,
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
}


class Refused(Exception):
    """The broker said no, for good."""

    def __init__(self, code: int) -> None:
        super().__init__(ErrorCode(code).name)
        self.code = code


@dataclass(slots=True)
class Ownership:
    """What InitProducerId gave: the producer id and epoch, and the sequence numbers that were used."""

    producer_id: int
    epoch: int
    sequences: dict[TopicPartition, int] = field(default_factory=dict)
    first_sequence: int = 0


@dataclass(frozen=True, slots=True)
class Sending:
    """A batch that is being sent, and its entry in the history."""

    request: ProduceRequest
    version: int
    write: Write


class ExactlyOnce(Actor):
    """A client that asks again until it knows, or has asked often enough."""

    async def insist(self, what: str, key: str, ask: Callable[[], Awaitable[int]]) -> None:
        """`ask` answers an error code. Returns when it is none; raises Refused, or Unanswered when
        it stays in doubt.
        """
        doubtful = Unanswered(f"{what}: no answer in {TRIES} tries")
        for _ in range(TRIES):
            try:
                code = await ask()
            except Unanswered as error:
                doubtful = error
                await asyncio.sleep(0.3 * self.chance.random())
                continue
            self.clients.judge_error(code, what)
            if code == ErrorCode.NONE:
                return
            if code not in AGAIN:
                raise Refused(code)
            await self.find_coordinator(key, TRANSACTION_KEY if what != "the group's offsets" else GROUP_KEY, code)
            await asyncio.sleep(0.05 + 0.2 * self.chance.random())
        raise doubtful

    async def find_coordinator(self, key: str, key_type: int, code: int) -> None:
        if code in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE):
            try:
                await self.line.ask(FindCoordinatorRequest(key=key, key_type=key_type), self.chance.choice((1, 2, 3)))
            except Unanswered:
                await asyncio.sleep(0.1)

    async def initialize(self, transactional_id: str | None, timeout_ms: int) -> Ownership:
        owned: list[Ownership] = []

        async def ask() -> int:
            request = InitProducerIdRequest(transactional_id, timeout_ms)
            response = await self.line.ask(request, self.chance.choice((2, 3, 4, 5)))
            if response.error_code == ErrorCode.NONE:
                owned.append(Ownership(response.producer_id, response.producer_epoch))
            return response.error_code

        await self.insist(f"InitProducerId of {transactional_id}", transactional_id or "", ask)
        return owned[0]

    def values(self, count: int, name: str) -> list[bytes]:
        made = []
        for _ in range(count):
            self.clients.values += 1
            filler = self.chance.randbytes(self.chance.randrange(self.plan.value_bytes) // 4).hex()
            made.append(f"{name}:{self.clients.values}:{filler}".encode())
        return made

    def prepare(
        self,
        owner: Ownership,
        partition: TopicPartition,
        values: list[bytes],
        *,
        transactional_id: str | None,
        version: int,
        order: int,
        key: bytes | None = None,
        age_ms: int = 0,
    ) -> Sending:
        """The owner's next batch for this partition. Without a key given there are some where there must be. The
        records say that they are as old as `age_ms`.
        """
        name, index = partition
        first = owner.sequences.get(partition, owner.first_sequence)
        stamp = int((self.clients.world.epoch_seconds + self.clients.now) * 1000) - age_ms
        compacted = self.history.topics[name].compacted
        keys = [b"k%d" % self.chance.randrange(6) if compacted and key is None else key for _ in values]
        records = tuple(zip(keys, values, strict=True))
        batch = build_batch(
            [(key, value, (), stamp) for key, value in records],
            producer_id=owner.producer_id,
            producer_epoch=owner.epoch,
            base_sequence=first,
            transactional=transactional_id is not None,
        )
        owner.sequences[partition] = (first + len(values)) % 2**31
        write = Write(self.name, order, partition, records, -1, self.plan.held(-1), self.clients.now)
        self.history.writes.append(write)
        data = TopicProduceData(name, self.clients.topic_ids[name], [PartitionProduceData(index, batch)])
        return Sending(ProduceRequest(transactional_id, -1, 5000, [data]), version, write)

    async def send(self, sending: Sending) -> int:
        """Once; the error code."""
        write = sending.write
        response = await self.line.ask(sending.request, sending.version)
        [answer] = response.responses[0].partition_responses
        if answer.error_code == ErrorCode.NONE:
            write.completed, write.outcome, write.base_offset = self.clients.now, Outcome.OK, answer.base_offset
        return ErrorCode.NONE if answer.error_code == ErrorCode.DUPLICATE_SEQUENCE_NUMBER else answer.error_code


# ---------------------------------------------------------------- transactions


class Transactor(ExactlyOnce):
    """Runs one transaction after the other under an id that others want too."""

    def __init__(
        self, clients: Clients, name: str, transactional_id: str, postman: Postman, *, transforms: bool, patience: float
    ) -> None:
        super().__init__(clients, name)
        self.postman = postman
        self.patience = patience  # seconds, at most, before it takes the id again
        self.transactional_id = transactional_id
        self.transforms = transforms
        self.group = f"group-of-{transactional_id}"
        self.newest = self.chance.random() < (0.2 if self.plan.late_markers else 0.6)  # transaction version 2
        self.timeout_ms = self.chance.choice((2000, 10_000, 60_000))
        self._member_id, self._member_epoch = "", -1  # of none, unless a group gives it its input
        self._owner: Ownership | None = None
        self._former: tuple[Ownership, Transaction] | None = (
            None  # the producer id and epoch from before, and the transaction that was open then
        )
        self._positions: dict[TopicPartition, int] = {}

    async def turn(self) -> None:
        if self._owner is None:
            await asyncio.sleep(self.patience * self.chance.random())
            await self._haunt()
            await self._take_the_id()
        for _ in range(self.chance.choice((1, 5, 20))):
            if self._owner is None or self.clients.stopping:
                return
            await self._one_transaction(self._owner)
            await asyncio.sleep(self.plan.pace_seconds * self.chance.random())
        if self.chance.random() < 0.3:
            self._owner = None  # as after a crash of the client

    async def _haunt(self) -> None:
        """Now and then a former owner goes on writing in its last transaction, as if it had slept. No reader may see
        that.
        """
        former, self._former = self._former, None
        if former is None or self.chance.random() < 0.5:
            return
        owner, txn = former
        # While an older client's marker is under way, its partition takes such a write for one of that transaction.
        # Once the coordinator has added a partition to the next one, none is.
        if not self.newest and (self.plan.late_markers or not txn.values):
            return
        with contextlib.suppress(Refused, Unanswered):
            await self._write(owner, txn, self.chance.choice(self._outputs()), dict.fromkeys(self._outputs()))

    async def settle(self) -> None:
        """After healing: take the id, commit one transaction.

        Its rival settles too, and a slow disk makes both slow: nobody's transaction ends by time now, and they make
        room for each other, the longer the oftener they met.
        """
        deadline = self.clients.now + 2 * SETTLE_WITHIN
        self.timeout_ms = 60_000
        longest_pause = 15.0
        while self.clients.now < deadline:
            try:
                await self._take_the_id()
                assert self._owner is not None
                if await self._one_transaction(self._owner, commit=True):
                    return
            except Unanswered:
                await asyncio.sleep(0.3)
            except Refused as refused:
                self.history.stuck.append(f"{self.name} is refused {self.transactional_id}: {refused}")
                return
            await asyncio.sleep(longest_pause * self.chance.random())
            longest_pause += 10.0
        self.history.stuck.append(f"{self.name} can't commit a transaction of {self.transactional_id}")

    async def _take_the_id(self) -> None:
        self._owner = None
        owner = await self.initialize(self.transactional_id, self.timeout_ms)
        self.history.owned.append(Owned(self.transactional_id, owner.producer_id, owner.epoch, self.clients.now))
        self._positions = {}
        if self.transforms:
            for partition in self._inputs():
                await self._resume(partition)
        self._owner = owner

    def _inputs(self) -> list[TopicPartition]:
        return [partition for partition in self.clients.partitions() if partition.topic == INPUT]

    def _outputs(self) -> list[TopicPartition]:
        return [partition for partition in self.clients.partitions() if partition.topic == OUTPUT]

    def _elsewhere(self) -> list[TopicPartition]:
        """Where a transaction writes besides: often to one topic alone, several times. Who transforms leaves a trace in
        an output before, which stays.
        """
        wanted = [PASSING]
        if self.chance.random() < 0.7:
            wanted += [OUTPUT] if self.transforms else [INPUT, OUTPUT, LEDGER]
        return [partition for partition in self.clients.partitions() if partition.topic in wanted]

    async def _one_transaction(self, owner: Ownership, *, commit: bool = False) -> bool:
        """Begin, write, perhaps take input, end. True if it was committed for sure."""
        clients = self.clients
        number = clients.world.identity()
        txn = Transaction(number, self.transactional_id, owner.producer_id, owner.epoch, clients.now, group=self.group)
        self.history.transactions.append(txn)
        added: dict[TopicPartition, None] = {}
        try:
            if self.transforms and not commit:
                await self._transform(owner, txn, added)
            partitions = self._elsewhere()
            for _ in range(self.chance.randrange(1, 5)):
                await self._write(owner, txn, self.chance.choice(partitions), added)
                if not commit and self.chance.random() < 0.03:
                    await asyncio.sleep(3 * self.timeout_ms / 1000 * self.chance.random())
            if not commit and self.chance.random() < 0.05:
                self._owner, self._former = None, (owner, txn)  # leave it open
                return False
            if not commit and self.chance.random() < 0.15:
                self._ask_and_go(owner, txn)
                return False
            given_up = not commit and self.chance.random() < 0.05
            if given_up:
                await self._write(owner, txn, self.chance.choice(self._outputs()), added, left_behind=True)
            await self._end(owner, txn, committed=commit or (not given_up and self.chance.random() < 0.8))
            if given_up and not self.newest:
                self._owner = None  # goes on in the next epoch (KIP-360)
            if not txn.committed_asked:
                self._positions.update((partition, start) for partition, (start, _) in txn.consumed.items())
        except Refused as refused:
            self._owner = None
            if refused.code not in LOST_THE_ID:
                clients.world.note("transaction refused", self.name, str(refused))
        except Unanswered:
            self._owner = None
        if self._owner is None and not txn.committed_asked:
            self._former = (owner, txn)
        return txn.outcome is Outcome.OK

    async def _write(
        self,
        owner: Ownership,
        txn: Transaction,
        partition: TopicPartition,
        added: dict[TopicPartition, None],
        *,
        left_behind: bool = False,
    ) -> None:
        """`left_behind`: it is on its way still when its transaction is aborted, and must get into no other."""
        if not self.newest and partition not in added:
            await self._add_partition(owner, partition)
        added[partition] = None
        values = self.values(self.chance.randrange(1, 4), f"t{txn.number}")
        txn.values.extend((partition, value) for value in values)
        version = self.chance.choice((12, 13)) if self.newest else self.chance.choice((7, 9, 11))
        sending = self.prepare(
            owner, partition, values, transactional_id=self.transactional_id, version=version, order=-txn.number
        )
        if left_behind:
            self.postman.keep(sending.request, version)
            return
        self.postman.see(sending.request, version)
        try:
            await self.insist(f"a batch to {partition}", self.transactional_id, partial(self.send, sending))
        except Refused as refused:
            sending.write.error = str(refused)
            raise

    async def _add_partition(self, owner: Ownership, partition: TopicPartition) -> None:
        async def ask() -> int:
            topic = AddPartitionsToTxnTopic(partition.topic, [partition.partition])
            request = AddPartitionsToTxnRequest([], self.transactional_id, owner.producer_id, owner.epoch, [topic])
            response = await self.line.ask(request, self.chance.choice((1, 2, 3)))
            return response.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code

        await self.insist(f"AddPartitionsToTxn of {self.transactional_id}", self.transactional_id, ask)

    def _ask_and_go(self, owner: Ownership, txn: Transaction) -> None:
        """Ask for the commit once, and die. Nothing asks again, whatever becomes of it."""
        self._owner = None
        txn.committed_asked, txn.end_invoked, txn.outcome = True, self.clients.now, Outcome.UNKNOWN
        request = EndTxnRequest(self.transactional_id, owner.producer_id, owner.epoch, True)
        asking = asyncio.ensure_future(self.line.ask(request, 5 if self.newest else 3))
        asking.add_done_callback(lambda asked: asked.cancelled() or asked.exception())

    async def _end(self, owner: Ownership, txn: Transaction, *, committed: bool) -> None:
        """Ask for the end until it is known how it went."""
        txn.committed_asked, txn.end_invoked = committed, self.clients.now
        if committed:
            txn.outcome = Outcome.UNKNOWN
        asked = 0

        async def ask() -> int:
            nonlocal asked
            asked += 1
            request = EndTxnRequest(self.transactional_id, owner.producer_id, owner.epoch, committed)
            version = 5 if self.newest else self.chance.choice((1, 2, 3, 4))
            if self.newest:  # older clients are torn by such repeats, and no broker can help it
                self.postman.see(request, version)
            response = await self.line.ask(request, version)
            if response.error_code == ErrorCode.NONE and self.newest:
                self._owner = Ownership(response.producer_id, response.producer_epoch)
            elif response.error_code in AGAIN:
                asked -= (
                    response.error_code == ErrorCode.CONCURRENT_TRANSACTIONS
                )  # this error comes before anything is decided
            return response.error_code

        try:
            await self.insist(f"EndTxn of {self.transactional_id}", self.transactional_id, ask)
        except Refused:
            if committed and asked == 1:
                txn.outcome = Outcome.FAILED  # nothing of ours was under way when it was refused
            raise
        txn.completed = self.clients.now
        if committed:
            txn.outcome = Outcome.OK

    # -- consume, transform, produce

    async def _resume(self, partition: TopicPartition) -> None:
        """Where the group's last committed transaction left off."""
        found: list[int] = []

        async def ask() -> int:
            topic = OffsetFetchRequestTopic(partition.topic, [partition.partition])
            response = await self.line.ask(OffsetFetchRequest(self.group, [topic], require_stable=True), 7)
            answer = response.topics[0].partitions[0] if response.topics else None
            if response.error_code or answer is None:
                return response.error_code or ErrorCode.COORDINATOR_NOT_AVAILABLE
            if answer.error_code == ErrorCode.NONE:
                found.append(max(answer.committed_offset, 0))
            return answer.error_code

        await self.insist("the group's offsets", self.group, ask)
        self._positions[partition] = found[0]

    async def _transform(self, owner: Ownership, txn: Transaction, added: dict[TopicPartition, None]) -> None:
        """Take some input, write something for it, and let the group's offset go with the transaction."""
        partition = self.chance.choice(self._inputs())
        start = self._positions[partition]
        read = await self.read_committed(partition, start)
        if read is None or read.to_offset == start:
            return
        await self._write(owner, txn, self.chance.choice(self._outputs()), added)
        if not self.newest:
            await self._add_offsets(owner)
        txn.consumed[partition] = (start, read.to_offset)
        await self._send_offsets(owner, partition, read.to_offset)
        self._positions[partition] = read.to_offset

    async def _add_offsets(self, owner: Ownership) -> None:
        async def ask() -> int:
            request = AddOffsetsToTxnRequest(self.transactional_id, owner.producer_id, owner.epoch, self.group)
            return (await self.line.ask(request, self.chance.choice((1, 2, 3)))).error_code

        await self.insist(f"AddOffsetsToTxn of {self.transactional_id}", self.transactional_id, ask)

    async def _send_offsets(self, owner: Ownership, partition: TopicPartition, offset: int) -> None:
        async def ask() -> int:
            topic = TxnOffsetCommitRequestTopic(
                partition.topic, [TxnOffsetCommitRequestPartition(partition.partition, offset)]
            )
            member = self._member_epoch, self._member_id
            request = TxnOffsetCommitRequest(
                *(self.transactional_id, self.group, owner.producer_id, owner.epoch, *member), topics=[topic]
            )
            version = 5 if self.newest else 3
            if self.newest:
                self.postman.see(request, version)
            response = await self.line.ask(request, version)
            return response.topics[0].partitions[0].error_code

        await self.insist("the group's offsets", self.group, ask)

    async def read_committed(self, partition: TopicPartition, offset: int) -> CommittedRead | None:
        return await fetch_committed(self, partition, offset)


# ---------------------------------------------------------------- committed readers


class CommittedReader(Reader):
    """Reads under read_committed from anywhere, and reads on for a while. Where records go it often begins with the
    first that is left, which may be one in the middle of a transaction.
    """

    async def turn(self) -> None:
        topics = self.history.topics
        partition = self.chance.choice([each for each in self.clients.partitions() if topics[each.topic].transactional])
        if topics[partition.topic].passes and self.chance.random() < 0.8:
            offset = await self.list_offset(partition, EARLIEST)
            if offset is None:
                return
        else:
            offset = self.chance.randrange(self.clients.known_ends.get(partition, 0) + 1)
        for _ in range(self.chance.choice((1, 3, 10))):
            read = await fetch_committed(self, partition, offset)
            if read is None:
                return
            offset = read.to_offset


async def fetch_committed(actor: Actor, partition: TopicPartition, offset: int) -> CommittedRead | None:
    """One fetch under read_committed, filtered as clients do, and written down; None if there is
    nothing to go on from.
    """
    clients, chance = actor.clients, actor.chance
    name, index = partition
    wanted = FetchPartition(index, fetch_offset=offset, partition_max_bytes=chance.choice(FETCH_BYTES))
    request = FetchRequest(
        max_wait_ms=chance.choice((0, 50, 500)),
        min_bytes=1,
        max_bytes=chance.choice(FETCH_BYTES),
        isolation_level=1,
        topics=[FetchTopic(name, clients.topic_ids[name], [wanted])],
    )
    invoked = clients.now
    response = await actor.line.ask(request, chance.choice((4, 6, 10, 12, 13, 16)))
    if response.error_code or not response.responses:
        return None
    [data] = response.responses[0].partitions
    clients.judge_error(data.error_code, f"a committed fetch of {partition}")
    if data.error_code:
        return None
    clients.known_ends[partition] = max(clients.known_ends.get(partition, 0), data.high_watermark)
    try:
        records, to_offset = only_committed(data, offset)
    except CorruptBatch as error:
        if partition not in actor.history.rotten:
            actor.history.wrong.append(f"{clients.now:.6f} {actor.name} got damaged bytes of {partition}: {error}")
        return None
    read = CommittedRead(
        actor.name,
        partition,
        offset,
        to_offset,
        tuple(records),
        data.last_stable_offset,
        data.high_watermark,
        actor.plan.visible_held,
        invoked,
        clients.now,
    )
    actor.history.committed_reads.append(read)
    return read


def only_committed(data: FetchResponsePartitionData, offset: int) -> tuple[list[Record], int]:
    """What a consumer shows of an answer: no markers, and nothing of the transactions that the answer calls aborted."""
    stored = b"" if data.records is None else bytes(data.records)  # type: ignore[arg-type]
    waiting = sorted((each.first_offset, each.producer_id) for each in data.aborted_transactions or ())
    aborted: dict[int, None] = {}
    records: list[Record] = []
    to_offset = offset
    for header, batch in split(stored):
        if not checksum_ok(batch, header):
            raise CorruptBatch(f"wrong checksum at offset {header.base_offset}")
        while waiting and waiting[0][0] <= header.last_offset:
            aborted[waiting.pop(0)[1]] = None
        if header.is_control:
            if read_marker(batch).type is ControlType.ABORT:
                aborted.pop(header.producer_id, None)
        elif not (header.is_transactional and header.producer_id in aborted):
            records += [
                Record(record.offset, record.timestamp, record.key, record.value)
                for record in read_records(batch, header)
                if record.offset >= offset
            ]
        to_offset = header.next_offset
    return records, to_offset

"""What the clients of a run do: write, read, look up offsets, delete, commit; and write down what they did and saw.

Clients are raw: they speak the wire's messages through `service.client.connection`, repeat nothing that was not
answered, and send what no good client would: several versions of each API, damaged batches, offsets out of range. Each
value is sent once.

What always holds: an operation is in the history before its request leaves. `FAILED` is written only for an error code
that says nothing was changed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from log.batch import CorruptBatch, build_batch, checksum_ok, read_records, split
from log.ids import TopicPartition
from service.client.connection import Client, ClientError
from service.wire.base import Request, Struct
from service.wire.error_codes import ErrorCode
from service.wire.messages import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
    FetchPartition,
    FetchRequest,
    FetchTopic,
    FindCoordinatorRequest,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
    MetadataRequest,
    MetadataRequestTopic,
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestTopic,
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from tests.sim.checkers import EARLIEST, LATEST, MAX_TIMESTAMP
from tests.sim.history import Commit, CommitSeen, Deletion, FinalLog, History, Listed, Outcome, Read, Record, Write
from tests.sim.plan import Plan
from tests.sim.world import Host, World, come_true

BROKER, PORT = "broker", 9092
ANSWER_WITHIN = 4.0  # seconds; longer than most stalls, shorter than some pauses
SETTLE_WITHIN = 60.0  # seconds after healing in which everybody must get through
BRISK_TURNS = 150  # batches of a writer before it slows down
FETCH_BYTES = (1, 300, 5000, 1 << 20)
EPOCH_NAMED_SINCE = 9  # version of Fetch

NOTHING_CHANGED = {
    ErrorCode.CORRUPT_MESSAGE,
    ErrorCode.MESSAGE_TOO_LARGE,
    ErrorCode.INVALID_RECORD,
    ErrorCode.INVALID_TIMESTAMP,
    ErrorCode.INVALID_REQUIRED_ACKS,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.OFFSET_OUT_OF_RANGE,
    ErrorCode.POLICY_VIOLATION,
}
NEVER_EXPECTED = {ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.UNSUPPORTED_VERSION, ErrorCode.INVALID_REQUEST}

ResponseT = TypeVar("ResponseT", bound=Struct)


class Unanswered(Exception):
    """No answer came. Whether the request was carried out, nobody knows."""


class Line:
    """A connection that is made anew when it breaks. `number` tells one connection from the next."""

    def __init__(self, clients: Clients, name: str, broker: str = BROKER) -> None:
        self.number = 0
        self._clients = clients
        self._name = name
        self._broker = broker
        self._client: Client | None = None
        self._connecting: asyncio.Future[None] | None = None
        self._closing: dict[str, asyncio.Task[None]] = {}

    async def ask(
        self, request: Request[ResponseT], version: int | None = None, *, leaves: Callable[[int], None] = lambda _: None
    ) -> ResponseT:
        """The answer, or Unanswered. Requests that are asked one after the other leave in that order.

        `leaves` is called with the connection's number at the moment the request leaves, if it does.
        """
        client = await self._connected()
        leaves(self.number)
        try:
            async with asyncio.timeout(ANSWER_WITHIN):
                return await client.request(request, version)
        except (OSError, ClientError, TimeoutError) as error:
            if isinstance(error, ClientError):
                self._clients.history.wrong.append(f"{self._clients.now:.6f} {type(request).__name__}: {error}")
            self.drop(client)
            raise Unanswered(repr(error)) from error

    async def ready(self, request: Struct | None = None) -> None:
        """There is a connection, so that what is asked now leaves at once."""
        await self._connected()

    def drop(self, client: Client | None = None) -> None:
        """Leave this connection; nothing that was asked on it is answered any more."""
        if self._client is not None and client in (None, self._client):
            closing = asyncio.get_running_loop().create_task(self._client.close())
            self._closing[closing.get_name()] = closing
            closing.add_done_callback(lambda task: self._closing.pop(task.get_name()))
            self._client = None

    async def _connected(self) -> Client:
        while self._client is None:
            if self._connecting is not None:
                await asyncio.wait([self._connecting])
                continue
            self._connecting = asyncio.get_running_loop().create_future()
            try:
                client = Client(self._broker, PORT, self._name)
                async with asyncio.timeout(ANSWER_WITHIN):
                    await client.connect()
                self.number = self._clients.world.identity()
                self._client = client
            except (OSError, ClientError, TimeoutError) as error:
                raise Unanswered(repr(error)) from error
            finally:
                self._connecting.set_result(None)
                self._connecting = None
        return self._client


@dataclass(slots=True)
class Clients:
    """What all clients of a run share: the plan, the history, and what they know of the topics."""

    world: World
    plan: Plan
    history: History
    topic_ids: dict[str, bytes] = field(default_factory=dict)
    known_ends: dict[TopicPartition, int] = field(default_factory=dict)
    timestamps: dict[TopicPartition, list[int]] = field(default_factory=dict)
    epochs: dict[tuple[bytes, int], int] = field(default_factory=dict)
    """By topic id and partition: the newest leader epoch that anybody has read a batch of."""
    stopping: bool = False
    created: bool = False
    settled: int = 0  # actors that got through after everything healed
    expected: int = 0
    values: int = 0
    waited_for: set[str] = field(default_factory=set)  # folders of logs that somebody waits for (`busy_logs`)
    node_ids: dict[str, int] = field(default_factory=dict)  # of the brokers of a cluster
    answered: Callable[[str, Struct], None] = lambda broker, request: None  # by a broker of a cluster
    new_line: Callable[[Clients, str], Any] = lambda clients, name: Line(clients, name)

    @property
    def now(self) -> float:
        return self.world.now

    def partitions(self) -> list[TopicPartition]:
        return list(self.history.partitions())

    def busy_partitions(self) -> list[TopicPartition]:
        return [partition for partition in self.partitions() if not self.history.topics[partition.topic].quiet]

    def judge_error(self, code: int, what: str) -> None:
        if code in NEVER_EXPECTED:
            self.history.wrong.append(f"{self.now:.6f} {what} was answered with {ErrorCode(code).name}")


class Actor:
    """One client: a connection, a source of chance, and something it does again and again until the run stops it."""

    def __init__(self, clients: Clients, name: str) -> None:
        self.clients = clients
        self.history = clients.history
        self.plan = clients.plan
        self.name = name
        self.chance = clients.world.stream(f"client/{name}")
        self.line: Line = clients.new_line(clients, name)

    async def run(self) -> None:
        await come_true(lambda: self.clients.created)
        while not self.clients.stopping:
            try:
                await self.turn()
            except Unanswered:
                await asyncio.sleep(0.1 * self.chance.random())
            await asyncio.sleep(self.plan.pace_seconds * 2 * self.chance.random())
        await self.settle()
        self.clients.settled += 1

    async def turn(self) -> None:
        """Do it once."""
        raise NotImplementedError

    async def settle(self) -> None:
        """After everything healed: get through, or be written down as stuck."""

    def some_partition(self) -> TopicPartition:
        return self.chance.choice(self.clients.partitions())


# ---------------------------------------------------------------- writing


class Writer(Actor):
    """Sends batches, several in flight on one connection."""

    def __init__(self, clients: Clients, name: str) -> None:
        super().__init__(clients, name)
        self._in_flight = 0
        self._turns = 0
        self._brief_keys: dict[TopicPartition, list[bytes]] = {}
        """Keys of compacted topics that were written once, are deleted next, and never come again."""

    async def turn(self) -> None:
        self._turns += 1
        if self._turns > BRISK_TURNS:  # a run says no more for being longer
            await asyncio.sleep(self.chance.random())
        await self.line.ready()
        await come_true(lambda: self._in_flight < self.plan.in_flight, every=0.005)
        writes = [self._new_write(partition) for partition in self._choose_partitions()]
        self._in_flight += 1
        asyncio.get_running_loop().create_task(self._send(writes)).add_done_callback(self._sent)
        await asyncio.sleep(0)  # the request leaves before the next one is thought of

    def _sent(self, sending: asyncio.Task[None]) -> None:
        self._in_flight -= 1
        sending.result()

    def _choose_partitions(self) -> list[TopicPartition]:
        partitions = self.clients.busy_partitions()
        most = 1 if self.plan.brokers > 1 else 2  # which have one leader
        return self.chance.sample(partitions, min(len(partitions), self.chance.choice((1, 1, most))))

    def _new_write(self, partition: TopicPartition, acks: int | None = None) -> Write:
        plan, clients, chance = self.plan, self.clients, self.chance
        compacted = self.history.topics[partition.topic].compacted
        records: list[tuple[bytes | None, bytes | None]] = []
        for _ in range(chance.randrange(1, plan.records_per_batch + 1)):
            clients.values += 1
            filler = chance.randbytes(chance.randrange(plan.value_bytes) // 2).hex()
            key = b"k%d" % chance.randrange(8) if compacted or chance.random() < 0.3 else None
            value = f"{self.name}:{clients.values}:{filler}".encode()
            if compacted and chance.random() < 0.3:
                records.append(self._brief(partition, value))
            else:
                records.append((key, None if compacted and chance.random() < 0.1 else value))
        if acks is None:
            acks = chance.choice((-1, -1, -1, 1, 0)) if plan.brokers == 1 else -1
        return Write(self.name, -1, partition, tuple(records), acks, plan.held(acks), clients.now)

    def _brief(self, partition: TopicPartition, value: bytes) -> tuple[bytes, bytes | None]:
        """A key that is new, or the deletion of one: no newer value hides that it comes back."""
        keys = self._brief_keys.setdefault(partition, [])
        if keys and self.chance.random() < 0.5:
            return keys.pop(self.chance.randrange(len(keys))), None
        keys.append(b"brief %s %d" % (self.name.encode(), self.clients.values))
        return keys[-1], value

    async def _send(self, writes: Sequence[Write]) -> None:
        acks = writes[0].acks
        for write in writes:
            write.acks, write.held = acks, self.plan.held(acks)
        damage = self.chance.choice(DAMAGES) if self.chance.random() < 0.04 else None
        request = ProduceRequest(acks=acks, timeout_ms=self.chance.choice((1, 2000, 30_000)))
        request.topic_data = [self._data(write, damage if write is writes[0] else None) for write in writes]
        version = self.chance.choice((3, 7, 8, 9, 11, 12, 13))
        try:
            response = await self.line.ask(request, version, leaves=lambda number: self._note(writes, number))
        except Unanswered as error:
            for write in writes:
                write.error = str(error)
            return
        if acks == 0:
            return
        answers = [answer for topic in response.responses for answer in topic.partition_responses]
        assert len(answers) == len(writes)
        for write, answer in zip(writes, answers, strict=True):
            self._take(write, answer.error_code, answer.base_offset)
        if damage is not None and writes[0].outcome is not Outcome.FAILED and not writes[0].error:
            self.history.wrong.append(
                f"{self.clients.now:.6f} {writes[0].partition} took a batch with {damage.__name__}"
            )

    def _note(self, writes: Sequence[Write], connection: int) -> None:
        for write in writes:
            write.connection, write.invoked = connection, self.clients.now
            self.history.writes.append(write)

    def _take(self, write: Write, error_code: int, base_offset: int) -> None:
        self.clients.judge_error(error_code, f"a batch to {write.partition}")
        write.completed = self.clients.now
        if error_code == ErrorCode.NONE:
            write.outcome, write.base_offset = Outcome.OK, base_offset
            known = self.clients.known_ends
            known[write.partition] = max(known.get(write.partition, 0), base_offset + len(write.records))
            return
        write.error = ErrorCode(error_code).name
        if error_code in NOTHING_CHANGED:
            write.outcome = Outcome.FAILED

    def _data(self, write: Write, damage: Callable[[bytearray], None] | None) -> TopicProduceData:
        now_ms = int((self.clients.world.epoch_seconds + self.clients.now) * 1000)
        stamps = [now_ms + self.aside_ms() for _ in write.records]
        write.stamped = max(stamps) / 1000 - self.clients.world.epoch_seconds
        write.last_stamped = stamps[-1] / 1000 - self.clients.world.epoch_seconds
        self.clients.timestamps.setdefault(write.partition, []).append(stamps[0])
        records = [(key, value, (), stamp) for (key, value), stamp in zip(write.records, stamps, strict=True)]
        batch = bytearray(build_batch(records, codec=self.chance.choice((0, 0, 0, 1, 2, 3, 4))))
        if damage is not None:
            damage(batch)
        name, index = write.partition
        data = PartitionProduceData(index, bytes(batch))
        return TopicProduceData(name, self.clients.topic_ids[name], [data])

    def aside_ms(self) -> int:
        """How far a record's time is from the truth."""
        return self.chance.randrange(-2000, 500)

    async def settle(self) -> None:
        """Write to every partition until one batch of it is acknowledged."""
        await come_true(lambda: self._in_flight == 0, within=2 * ANSWER_WITHIN)
        for partition in self.clients.partitions():
            write = self._new_write(partition, acks=-1)
            if partition in self.history.rotten or await until_true(self.clients, partial(self._write_again, write)):
                continue
            self.history.stuck.append(f"{self.name} is not acknowledged by {partition}: {write.error}")

    async def _write_again(self, model: Write) -> bool:
        write = self._new_write(model.partition, acks=-1)
        await self._send_plainly(write)
        model.error = write.error
        return write.outcome is Outcome.OK

    async def _send_plainly(self, write: Write) -> None:
        request = ProduceRequest(acks=-1, timeout_ms=3000, topic_data=[self._data(write, None)])
        try:
            response = await self.line.ask(request, leaves=lambda number: self._note([write], number))
        except Unanswered as error:
            write.error = str(error)
            return
        [answer] = response.responses[0].partition_responses
        self._take(write, answer.error_code, answer.base_offset)


def wrong_checksum(batch: bytearray) -> None:
    batch[18] ^= 1


def wrong_record_count(batch: bytearray) -> None:
    batch[60] ^= 1


def wrong_length(batch: bytearray) -> None:
    batch[11] ^= 1


def wrong_magic(batch: bytearray) -> None:
    batch[16] = 1


def flipped_byte(batch: bytearray) -> None:
    batch[-1] ^= 0x40


DAMAGES = (wrong_checksum, wrong_record_count, wrong_length, wrong_magic, flipped_byte)


# ---------------------------------------------------------------- reading


class Reader(Actor):
    """Reads from anywhere, and reads on for a while. At times it names a leader epoch that it knows, as clients do."""

    def __init__(self, clients: Clients, name: str) -> None:
        super().__init__(clients, name)
        self._epochs: dict[tuple[bytes, int], int] = {}
        self._names_epochs = clients.world.stream(f"epochs/{name}")

    async def turn(self) -> None:
        partition = self.some_partition()
        offset = self._somewhere(self.clients.known_ends.get(partition, 0))
        for _ in range(self.chance.choice((1, 3, 10))):
            read = await self.read(partition, offset)
            if read is None:
                return
            offset = read.to_offset

    def _somewhere(self, end: int) -> int:
        if self.chance.random() < 0.5:
            return max(0, end - self.chance.randrange(10))
        return self.chance.randrange(end + 3)

    async def read(self, partition: TopicPartition, offset: int, *, patient: bool = False) -> Read | None:
        """One fetch, written down; None if there is nothing to go on from."""
        clients, chance = self.clients, self.chance
        name, index = partition
        place = clients.topic_ids[name], index
        wanted = FetchPartition(index, fetch_offset=offset, partition_max_bytes=chance.choice(FETCH_BYTES))
        request = FetchRequest(
            max_wait_ms=500 if patient else chance.choice((0, 50, 500)),
            min_bytes=1 if patient else chance.choice((0, 1, 10_000)),
            max_bytes=chance.choice(FETCH_BYTES),
            topics=[FetchTopic(name, place[0], [wanted])],
        )
        invoked, newest = clients.now, clients.epochs.get(place, -1)
        version = chance.choice((4, 6, 7, 10, 12, 13, 16, 17))
        # In a cluster, a leader that does not know yet that it was replaced answers in its own epoch.
        if self.plan.brokers == 1 and version >= EPOCH_NAMED_SINCE and self._names_epochs.random() < 0.5:
            wanted.current_leader_epoch = self._epochs.get(place, -1)
        response = await self.line.ask(request, version)
        clients.judge_error(response.error_code, f"a fetch of {partition}")
        if response.error_code or not response.responses:
            return None
        [data] = response.responses[0].partitions
        clients.judge_error(data.error_code, f"a fetch of {partition}")
        if data.error_code == ErrorCode.FENCED_LEADER_EPOCH:
            self._epochs[place] = -1  # it names none any more
        if data.error_code:
            return None
        if 0 <= wanted.current_leader_epoch < newest:
            self.history.wrong.append(
                f"{clients.now:.6f} {self.name} read {partition} in epoch {wanted.current_leader_epoch}, after {newest}"
            )
        end = max(clients.known_ends.get(partition, 0), data.high_watermark)
        clients.known_ends[partition] = end
        stored = b"" if data.records is None else bytes(data.records)  # type: ignore[arg-type]
        records, to_offset = self._open(partition, stored, offset)
        read = Read(
            self.name,
            partition,
            offset,
            to_offset,
            records,
            data.high_watermark,
            data.log_start_offset,
            self.plan.visible_held,
            invoked,
            clients.now,
        )
        self.history.reads.append(read)
        return read

    def _open(self, partition: TopicPartition, stored: bytes, offset: int) -> tuple[tuple[Record, ...], int]:
        """The records from `offset` on, and the offset after the last whole batch."""
        records, to_offset = [], offset
        try:
            for header, batch in split(stored):
                if not checksum_ok(batch, header):
                    raise CorruptBatch(f"wrong checksum at offset {header.base_offset}")
                self._note_epoch(partition, header.leader_epoch)
                if not header.is_control:
                    records += [
                        Record(record.offset, record.timestamp, record.key, record.value)
                        for record in read_records(batch, header)
                        if record.offset >= offset
                    ]
                to_offset = header.next_offset
        except CorruptBatch as error:
            if partition not in self.history.rotten:
                self.history.wrong.append(
                    f"{self.clients.now:.6f} {self.name} got damaged bytes of {partition}: {error}"
                )
        return tuple(records), to_offset

    def _note_epoch(self, partition: TopicPartition, epoch: int) -> None:
        if partition not in self.history.rotten:  # no checksum covers the epoch
            place = self.clients.topic_ids[partition.topic], partition.partition
            self.clients.epochs[place] = max(self.clients.epochs.get(place, -1), epoch)
            self._epochs.setdefault(place, epoch)

    async def read_everything(self, partition: TopicPartition) -> FinalLog | None:
        """The whole partition from its start to its high watermark; None if that can't be read in time."""
        deadline = self.clients.now + SETTLE_WITHIN
        while self.clients.now < deadline:
            try:
                start = await self.list_offset(partition, EARLIEST)
                log = None if start is None else await self._read_from(partition, start, deadline)
            except Unanswered:
                log = None
            if log is not None:
                return log
            await asyncio.sleep(0.2)
        return None

    async def _read_from(self, partition: TopicPartition, start: int, deadline: float) -> FinalLog | None:
        records: list[Record] = []
        offset = start
        while self.clients.now < deadline:
            read = await self.read(partition, offset, patient=True)
            if read is None:  # in a cluster, one of a hundred fetches goes to the wrong broker
                await asyncio.sleep(0.2)
                if await self.list_offset(partition, EARLIEST) != start:
                    return None
                continue
            records += read.records
            if read.to_offset >= read.high_watermark:
                return FinalLog(start, read.high_watermark, tuple(records), read_at=self.clients.now)
            if read.to_offset == offset:  # what rotted is handed out at once, again and again
                await asyncio.sleep(0.2)
            offset = read.to_offset
        return None

    async def list_offset(self, partition: TopicPartition, asked: int) -> int | None:
        name, index = partition
        wanted = ListOffsetsPartition(index, timestamp=asked, current_leader_epoch=-1)
        request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name, [wanted])])
        invoked = self.clients.now
        versions = (7, 8, 9, 10, 11) if asked == MAX_TIMESTAMP else (1, 2, 4, 6, 7, 10)
        response = await self.line.ask(request, self.chance.choice(versions))
        [answer] = response.topics[0].partitions
        self.clients.judge_error(answer.error_code, f"ListOffsets {asked} of {partition}")
        if answer.error_code:
            return None
        held = self.plan.visible_held
        self.history.listed.append(
            Listed(partition, asked, answer.offset, answer.timestamp, held, invoked, self.clients.now)
        )
        return answer.offset


class Lookup(Reader):
    """Asks for offsets."""

    async def turn(self) -> None:
        partition = self.some_partition()
        stamps = self.clients.timestamps.get(partition)
        asked = self.chance.choice((LATEST, EARLIEST, MAX_TIMESTAMP))
        if stamps and self.chance.random() < 0.6:
            asked = self.chance.choice(stamps) + self.chance.choice((0, 0, 1, -1, 700))
        await self.list_offset(partition, asked)


class Trimmer(Actor):
    """Deletes what is below some offset."""

    async def turn(self) -> None:
        await asyncio.sleep(self.chance.random())
        partitions = [each for each in self.clients.busy_partitions() if self.history.topics[each.topic].trimmed]
        partition = self.chance.choice(partitions)
        end = self.clients.known_ends.get(partition, 0)
        is_near_the_end = self.history.topics[partition.topic].transactional and self.chance.random() < 0.7
        least = max(0, end - 5) if is_near_the_end else 0  # transactions that are open have begun there
        await self.delete(partition, self.chance.randrange(least, end + 1))

    async def delete(self, partition: TopicPartition, before_offset: int) -> None:
        deletion = Deletion(partition, before_offset, self.plan.visible_held, self.clients.now)
        self.history.deletions.append(deletion)
        wanted = DeleteRecordsPartition(partition.partition, deletion.before_offset)
        request = DeleteRecordsRequest([DeleteRecordsTopic(partition.topic, [wanted])], timeout_ms=3000)
        response = await self.line.ask(request)
        [answer] = response.topics[0].partitions
        self.clients.judge_error(answer.error_code, f"DeleteRecords of {partition}")
        deletion.completed = self.clients.now
        if answer.error_code == ErrorCode.NONE:
            deletion.outcome = Outcome.OK
        elif answer.error_code in NOTHING_CHANGED:
            deletion.outcome = Outcome.FAILED


# ---------------------------------------------------------------- groups


class Committer(Actor):
    """Commits one group's offsets, never less than before, and asks for them."""

    def __init__(self, clients: Clients, name: str) -> None:
        super().__init__(clients, name)
        self.group = f"group-{name}"
        self._positions: dict[TopicPartition, int] = {}

    async def turn(self) -> None:
        partition = self.some_partition()
        if self.chance.random() < 0.6:
            await self.commit(partition)
        else:
            await self.look(partition)

    async def commit(self, partition: TopicPartition) -> bool:
        clients = self.clients
        offset = self._positions.get(partition, 0) + self.chance.randrange(1, 5)
        self._positions[partition] = offset
        held = self.plan.held(-1)
        commit = Commit(self.group, partition, offset, held, clients.now)
        self.history.commits.append(commit)
        name, index = partition
        asked = OffsetCommitRequestPartition(index, offset, -1, "")
        topic = OffsetCommitRequestTopic(name, clients.topic_ids[name], [asked])
        version = self.chance.choice((2, 5, 7, 8, 9, 10))
        response = await self.line.ask(OffsetCommitRequest(self.group, topics=[topic]), version)
        [answer] = response.topics[0].partitions
        clients.judge_error(answer.error_code, f"a commit of {self.group}")
        commit.completed = clients.now
        if answer.error_code == ErrorCode.NONE:
            commit.outcome = Outcome.OK
            return True
        commit.error = ErrorCode(answer.error_code).name
        if answer.error_code in NOTHING_CHANGED:
            commit.outcome = Outcome.FAILED
        await self._find_coordinator(answer.error_code)
        return False

    async def look(self, partition: TopicPartition) -> bool:
        invoked = self.clients.now
        name, index = partition
        # A coordinator that does not know yet that it was replaced may tell older offsets, but not stable ones.
        is_stable = self.plan.brokers > 1
        request = OffsetFetchRequest(self.group, [OffsetFetchRequestTopic(name, [index])], require_stable=is_stable)
        response = await self.line.ask(request, 7 if is_stable else self.chance.choice((1, 5, 7)))
        answer = response.topics[0].partitions[0] if response.topics else None
        code = response.error_code or (answer.error_code if answer is not None else 0)
        self.clients.judge_error(code, f"the offsets of {self.group}")
        if code or answer is None:
            await self._find_coordinator(code)
            return False
        self.history.commits_seen.append(
            CommitSeen(self.group, partition, answer.committed_offset, invoked, self.clients.now)
        )
        return True

    async def _find_coordinator(self, code: int) -> None:
        if code in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE):
            await self.line.ask(FindCoordinatorRequest(key=self.group), self.chance.choice((0, 2, 3)))

    async def settle(self) -> None:
        """Commit, and see it."""
        for partition in self.clients.partitions():
            for step in (self.commit, self.look):
                if not await until_true(self.clients, partial(step, partition)):
                    self.history.stuck.append(f"{self.group} gets no answer to its {step.__name__} of {partition}")


async def until_true(clients: Clients, step: Callable[[], Awaitable[bool]]) -> bool:
    """Try until it works or the time to settle is over."""
    deadline = clients.now + SETTLE_WITHIN
    while clients.now < deadline:
        try:
            if await step():
                return True
        except Unanswered:
            pass
        await asyncio.sleep(0.2)
    return False


# ---------------------------------------------------------------- all of them


class Creator(Actor):
    """Creates the topics, at the beginning."""

    async def run(self) -> None:
        for wanted in self.plan.topics:
            while wanted.topic.name not in self.clients.topic_ids:
                try:
                    await self._create(wanted.topic.name, wanted.topic.partitions, wanted.configs)
                except Unanswered:
                    await asyncio.sleep(0.1)
        self.clients.created = True

    async def _create(self, name: str, partitions: int, configs: dict[str, str]) -> None:
        asked = [CreatableTopicConfig(key, value) for key, value in configs.items()]
        request = CreateTopicsRequest(
            [CreatableTopic(name, partitions, self.plan.replication, [], asked)], timeout_ms=5000
        )
        [result] = (await self.line.ask(request, 7)).topics
        self.clients.judge_error(result.error_code, f"the creation of {name}")
        if result.error_code == ErrorCode.NONE:
            self.clients.topic_ids[name] = result.topic_id
        elif result.error_code == ErrorCode.TOPIC_ALREADY_EXISTS:  # an earlier attempt of ours, not answered
            [known] = (await self.line.ask(MetadataRequest([MetadataRequestTopic(name=name)]), 12)).topics
            if known.error_code == ErrorCode.NONE:
                self.clients.topic_ids[name] = known.topic_id
        else:
            await asyncio.sleep(0.2)


def plain_actors(clients: Clients) -> list[Actor]:
    actors: list[Actor] = [Writer(clients, f"writer{number}") for number in range(clients.plan.writers)]
    actors += [Reader(clients, f"reader{number}") for number in range(2)]
    actors += [Lookup(clients, "lookup"), Trimmer(clients, "trimmer")]
    actors += [Committer(clients, f"committer{number}") for number in range(2)]
    return actors


def start_clients(world: World, clients: Clients, others: Sequence[Actor]) -> dict[str, Actor]:
    """Hosts for all actors; they begin when the topics are there and stop when told."""
    actors = [Creator(clients, "creator"), *plain_actors(clients), *others]
    for actor in actors:
        world.host(actor.name, forever(actor.run))
    clients.expected = len(actors) - 1
    return {actor.name: actor for actor in actors}


def forever(work: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[Host], Coroutine[Any, Any, None]]:
    """A process that stays when its work is done, as the connections it holds do."""

    async def main(host: Host) -> None:
        await work()
        await asyncio.get_running_loop().create_future()

    return main

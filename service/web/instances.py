"""Consumer instances of version 2 of Confluent's REST Proxy: consumers with a name, which subscribe to topics or are
assigned partitions by hand, and are read by their name.

What always holds: an instance lives at the broker that coordinates its group. Its position moves only with an answer
that shows the records before that position; it moves back if its client does not get that answer: the end of the
connection tells it (`taking.py`), or the next request for the instance that comes after the answer was written, at
which the client has what its system has acknowledged. Nothing is read for it before that is known, unless a read has
waited since before the answer was written: that one goes on once the client's system has all, and the instance goes
back later if need be. When a request came that another broker has sent on is known but for its time on the way, by
which it counts as later: one that is held up there until an answer is written is taken for a next one. A broker that
forwards a read names it, and tells later if the client did not get its answer; the instance goes back then, although it
may have served other reads meanwhile: records are given twice rather than never. It goes back, too, when the life of
that broker is over. It reads nothing that its group has given to another member. It commits on its own only what it has
shown to a client that has sent another request since, and only if the partition has been its own ever since. That
request may have come by another broker while the answer was still stalled at the one in front. So that one is asked
before a commit, and nothing is committed of which it does not say that the client has taken it. An instance that is
lost with its broker is made again under its name; it takes its place in the group at once, and goes on where the group
is. Whatever its name was before, it is another instance: it waits for no answer of the one before, and a read that had
waited for that one does not go on with it. A position counts in the topic in which it was found: in one that was made
again under the same name, the instance begins where the group is, or else where its client's setting says.
"""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import Collection, Iterable, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from enum import Enum
from http import HTTPStatus
from typing import Final, NamedTuple
from urllib.parse import quote
from uuid import UUID
from weakref import WeakValueDictionary

import msgspec
from aiohttp import ClientError, web
from msgspec import UNSET, Raw

from isolation.read_view import Isolation
from log.ids import TopicId, TopicPartition
from service.client.cluster import MOVED, by_topic
from service.client.failures import ClientFailure
from service.cluster.image import NO_LEADER
from service.web.consuming import PAGE_BYTES_MAX, RECORDS_MAX
from service.web.fetching import Held, Lens, Piece, before_the_next, fetch_all, left_ms, opened
from service.web.following import passes
from service.web.forwarding import FORWARDED, client_gone, url_of, waited
from service.web.gateway import PAUSE_S, Gateway
from service.web.groups import offsets_by_now
from service.web.holding import HOLDER, Holder, NoRoom
from service.web.members import (
    EARLIEST,
    LATEST,
    MEMBERS_MAX,
    SOMEWHERE,
    STEP_MS,
    HttpMember,
    Join,
    Members,
    commit_by,
)
from service.web.problems import Problem, of_error
from service.web.records import RecordOut
from service.web.taking import Given, is_there
from service.web.topics import at_time
from service.wire.error_codes import ErrorCode

logger = logging.getLogger("oncelog.http")

COMMIT_EVERY_S = 5.0
COMMIT_TRIES = 3
READS_MAX = 16
"""How many reads that were forwarded are remembered one by one: an answer may be lost while others are given."""
BEGINS_MAX = 1_000
"""How many positions they have together. The older ones of each broker are remembered as one, which has one position of
each partition.
"""
ALL_BEGINS_MAX = 200_000
"""How many positions all instances remember by single reads, about: 30 MB. Each has its share. What is remembered as
one takes no more for each broker than the instance's own positions do.
"""
NAMES_MAX = 200
"""How many names such a one has: so many fit into a header."""
READ_CHARACTERS: Final = 32
"""How many characters the name of a read has."""
FOLDED: Final = "-"
"""How a name begins that no broker has given: a broker that is asked for it calls it lost."""
LOST_MAX = 1_000
ASK_S = 1.0
"""How long a broker in front is asked what its clients have taken. A client waits for that when it deletes its
instance.
"""
SILENT_S = 5.0
"""For how long a broker that has not answered is asked no more, unless for a commit."""
ACKNOWLEDGED_S = 0.3
"""How long a system may take to acknowledge what it has: it waits for more to come with that."""
ASKED: Final = "X-Oncelog-Asked"
"""A request header with names of reads that another broker has forwarded: which of them were taken?"""


class Form(Enum):
    BINARY = "binary"
    JSON = "json"


class InstanceProblem(Problem):
    """A refusal with an error code of the REST Proxy."""

    def __init__(self, slug: str, code: int, message: str) -> None:
        super().__init__(slug, message)
        self.code = code


def not_found() -> InstanceProblem:
    return InstanceProblem("not-found", 40403, "Consumer instance not found.")


def conflict(message: str) -> InstanceProblem:
    return InstanceProblem("conflict", 40903, f"Illegal state: {message}")


def not_in_form(message: str) -> InstanceProblem:
    return InstanceProblem("not-acceptable", 40601, message)


class RecordV2(msgspec.Struct):
    """A record as the answer shows it."""

    topic: str
    key: Raw | str | None
    value: Raw | str | None
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class Wishes:
    """The settings with which a client made its instance."""

    form: Form = Form.BINARY
    auto_offset_reset: str = "latest"
    commits_itself: bool = True
    min_bytes: int = 1
    timeout_ms: int = 1000


class Fates(msgspec.Struct):
    """What a broker in front knows of some reads that it has forwarded. Its clients have taken the others' answers."""

    on_their_way: list[str]
    lost: list[str]


_fates = msgspec.json.Decoder(Fates)


async def settle(answers: Iterable[Given], came_s: float) -> None:
    """Wait a moment for what the systems of clients have not acknowledged yet, of answers that were written before a
    request came.
    """
    answers = [each for each in answers if each.written_s < came_s]
    for each in answers:
        each.look_on(came_s)
    if waiting := [each.known for each in answers if not each.known.done()]:
        await asyncio.wait(waiting, timeout=ACKNOWLEDGED_S)


class Turn(asyncio.Lock):
    """Held by one read of an instance at a time, where the instance lives or at a broker that forwards it, until its
    answer was taken by the client, or by the broker that has forwarded it. A read that came before the answer was
    written does not tell whether the client takes it, and has its turn once the client's system has all.
    """

    life = ""
    """Of the instance whose answer is being given, once that is known."""
    _waiting = 0

    def __init__(self) -> None:
        super().__init__()
        self.given: dict[Given, None] = {}
        """Answers that were written, of which it is not known whether the client has them."""

    @property
    def is_wanted(self) -> bool:
        """Somebody waits for the turn."""
        return self._waiting > 0

    async def take(self, came_s: float) -> None:
        """For a request that came then."""
        self._waiting += 1
        try:
            for each in list(self.given):
                each.look_on(came_s)
            await self.acquire()
        finally:
            self._waiting -= 1

    def look(self, came_s: float) -> None:
        """A request for the instance has come then."""
        for each in list(self.given):
            each.look(came_s)


class ForwardedReads:
    """The reads that this broker forwards, by their names."""

    def __init__(self, life: str) -> None:
        self._life = life
        self._on_their_way: dict[str, Given | None] = {}
        self._lost: dict[str, None] = {}
        """Of which the broker where the instance lives could not be told."""
        self._turns = WeakValueDictionary[tuple[str, str], Turn]()

    def turn(self, group: str, member_id: str) -> Turn:
        return self._turns.setdefault((group, member_id), Turn())

    def end_turn(self, group: str, member_id: str, turn: Turn) -> None:
        """It is of an instance that is gone. One that is made again under its name does not wait for its answer."""
        if self._turns.get((group, member_id)) is turn:
            del self._turns[group, member_id]

    def begin(self, unique: str) -> str:
        """The name of a new one. It tells which process has given it: a later one knows nothing of its clients."""
        name = self._life + unique
        self._on_their_way[name] = None
        return name

    def given(self, name: str, given: Given) -> None:
        """The answer was written."""
        self._on_their_way[name] = given

    async def look(self, names: Iterable[str], came_s: float) -> None:
        """A request that came then asks which of them were taken."""
        await settle([given for name in names if (given := self._on_their_way.get(name)) is not None], came_s)

    def ended(self, name: str) -> None:
        """The answer was taken by the client, or nobody has moved on by it, or it was told to be lost."""
        self._on_their_way.pop(name, None)

    def is_lost(self, name: str) -> None:
        self._lost[name] = None
        if len(self._lost) > LOST_MAX:
            del self._lost[next(iter(self._lost))]

    def fates(self, names: Iterable[str]) -> Fates:
        found = Fates([], [])
        for name in names:
            if name in self._on_their_way:
                found.on_their_way.append(name)
            elif name in self._lost or not name.startswith(self._life):
                found.lost.append(name)
        return found


class Front(NamedTuple):
    """By which broker a read has come."""

    read: str = ""
    """The name that the broker has given to it; none if it comes from the client itself."""
    node: int = 0
    epoch: int | None = None
    """Which life of the broker it is; None: it does not tell."""


@dataclass(slots=True)
class ForwardedRead:
    """A read that came by another broker, and the positions before its answer."""

    node: int
    epoch: int | None
    """Which life of that broker it was; None: that is not known yet."""
    begins: dict[TopicPartition, int]
    names: list[str] = field(default_factory=list)
    """The names of reads that are remembered as this one."""


@dataclass(slots=True, eq=False)
class Instance(HttpMember):
    wishes: Wishes = field(default_factory=Wishes)
    life: str = ""
    """Tells it from others of its name, before and after."""
    reader: Turn = field(default_factory=Turn)
    is_named: bool = False
    """The client chose the name, and may make the instance again."""
    is_assigned: bool = False
    """Partitions were assigned by hand: the instance is no member of its group."""
    shown: dict[TopicPartition, int] = field(default_factory=dict)
    """The positions after the last answer. It is not known whether the client got that answer."""
    is_being_given: bool = False
    """The last answer is on its way. A request that comes meanwhile does not tell that the client got it."""
    uncommitted: dict[TopicPartition, int] = field(default_factory=dict)
    """The positions that the client is known to have read to since the last commit, or that `latest` has given."""
    before: dict[TopicPartition, int] = field(default_factory=dict)
    """The positions before the answer that is being written."""
    reads: dict[str, ForwardedRead] = field(default_factory=dict)
    """The reads that were forwarded, by their names, as long as it is not known that the client has the answer. The
    older ones of each broker are one, under a name that the broker does not know. If one of them is lost, all are.
    """
    committed_s: float = 0.0
    asked_s: float = 0.0
    """When the last request of its client came."""

    @property
    def is_subscribed(self) -> bool:
        return bool(self.join.topics or self.pattern)

    @property
    def who(self) -> tuple[str, int]:
        """The instance's member id and epoch in its group."""
        return (self.member_id, self.epoch) if self.is_subscribed else ("", -1)

    def lose(self, partitions: Iterable[TopicPartition]) -> None:
        for each in partitions:
            self.untold.pop(each, None)
            for known in (self.positions, self.shown, self.uncommitted, *self.begins()):
                known.pop(each, None)

    def stands(self, partition: TopicPartition, position: int, ids: Mapping[str, TopicId]) -> bool:
        """Whether its position there is this one. `ids`: those of the topics in which that was."""
        return self.positions.get(partition) == position and self.ids.get(partition.topic) == ids.get(partition.topic)

    def holds(self, partition: TopicPartition) -> bool:
        """Whether the instance reads from there, and knows where it stands."""
        return self.positions.get(partition, SOMEWHERE) != SOMEWHERE

    def is_committed(self, offsets: Mapping[TopicPartition, int], ids: Mapping[str, TopicId]) -> None:
        """`ids`: those of the topics in which that was."""
        for each, offset in offsets.items():
            if self.uncommitted.get(each) == offset and self.ids.get(each.topic) == ids.get(each.topic):
                del self.uncommitted[each]

    @property
    def remembered(self) -> int:
        """How many reads are remembered, alone or with others."""
        return sum(len(each.names) or 1 for each in self.reads.values())

    def remember(self, name: str, read: ForwardedRead, begins_max: int = BEGINS_MAX) -> None:
        """This read is given an answer now."""
        self.reads[name] = read
        by_itself = [each for each in self.reads if not each.startswith(FOLDED)]
        count = sum(len(self.reads[each].begins) for each in by_itself)
        for older in by_itself[:-1]:
            if len(self.reads) <= READS_MAX and count <= begins_max:
                break
            count -= len(self.reads[older].begins)
            self._fold(older)

    def _fold(self, name: str) -> None:
        read = self.reads.pop(name)
        folded = self.reads.setdefault(f"{FOLDED}{read.node}", read)
        folded.names.append(name)
        if len(folded.names) > NAMES_MAX:
            folded.names[:2] = [FOLDED]
        for partition, begin in read.begins.items():
            folded.begins[partition] = min(begin, folded.begins.get(partition, begin))

    def asked(self, read: str) -> None:
        """Its client asks for something: so it has the last answer, unless that is on its way. `read`: the name of a
        read that was forwarded.
        """
        if not self.is_being_given and (
            not read or read not in self.reads
        ):  # else the client still waits for an answer
            self.uncommitted.update(self.shown)
            self.shown.clear()

    def begins(self) -> list[dict[TopicPartition, int]]:
        """The positions before each answer of which it is not known whether the client has it."""
        return [self.before, *(read.begins for read in self.reads.values())]

    def lost(self, name: str, node: int = 0) -> None:
        """Nobody will get the answer to this read, which that broker has forwarded."""
        if name not in self.reads:
            folded = self.reads.get(f"{FOLDED}{node}")
            if folded is None or (name not in folded.names and FOLDED not in folded.names):
                return
            name = f"{FOLDED}{node}"
        self.take_back(self.reads.pop(name).begins)

    def take_back(self, begins: Mapping[TopicPartition, int]) -> None:
        """Nobody got an answer that began at these positions."""
        for partition, begin in begins.items():
            if self.shown.get(partition, begin) > begin:
                del self.shown[partition]
            for known in (self.positions, self.uncommitted):
                if known.get(partition, begin) > begin:
                    known[partition] = begin
        for others in self.reads.values():  # what they gave is given again
            for partition in [each for each, offset in others.begins.items() if offset >= begins.get(each, offset + 1)]:
                del others.begins[partition]

    def ended(self, *, is_taken: bool) -> None:
        """The last answer was written, or its client is gone."""
        self.is_being_given = False
        begins, self.before = self.before, {}
        if not is_taken:
            self.take_back(begins)

    def passes_on(self, name: str, node: int, epoch: int, begins_max: int) -> None:
        """Others read on, although it is not known whether the client has the last answer. It is remembered as one of
        a read that this broker has forwarded to itself.
        """
        self.remember(name, ForwardedRead(node, epoch, self.before), begins_max)
        self.ended(is_taken=True)

    def taken(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """These offsets; lower where it is not known whether the client has all answers that led there."""
        found = dict(offsets)
        for begins in self.begins():
            for partition in begins.keys() & found.keys():
                found[partition] = min(found[partition], begins[partition])
        return found

    def is_done(self, offsets: Mapping[TopicPartition, int], ids: Mapping[str, TopicId]) -> None:
        """The client has said that it is done with what is before these offsets, in topics with these ids."""
        done = {each: offset for each, offset in offsets.items() if self.ids.get(each.topic) == ids.get(each.topic)}
        for begins in self.begins():
            begins.update({each: max(begin, done.get(each, begin)) for each, begin in begins.items()})

    def move(self, positions: Mapping[TopicPartition, int]) -> None:
        for partition, offset in positions.items():
            self.positions.pop(partition, None)  # other partitions come first next time
            self.positions[partition] = self.shown[partition] = offset


class Instances(Members):
    """The instances whose groups this broker coordinates. An instance that subscribes is a member of its group."""

    _members: dict[tuple[str, str], Instance]  # type: ignore[assignment]

    def __init__(self, gateway: Gateway) -> None:
        super().__init__(gateway)
        self._silent_until_s: dict[int, float] = {}
        """Brokers that have not answered, and until when they are not asked again."""
        self.forwarded = ForwardedReads(gateway.env.unique().hex()[: READ_CHARACTERS // 2])

    @property
    def begins_max(self) -> int:
        """How many positions an instance may remember by single reads."""
        return min(BEGINS_MAX, ALL_BEGINS_MAX // max(len(self._members), 1))

    def make(self, group: str, name: str | None, wishes: Wishes) -> Instance:
        gateway = self._gateway
        known = name or f"rest-consumer-{UUID(bytes=gateway.env.unique(), version=4)}"
        if (group, known) in self._members:
            taken = "Consumer with specified consumer ID already exists in the specified consumer group."
            raise InstanceProblem("exists", 40902, taken)
        if len(self._members) >= MEMBERS_MAX:
            raise Problem("throttled", f"{MEMBERS_MAX} consumer instances are here")
        join = Join([], session_timeout_ms=gateway.config.http_consumer_instance_timeout_ms)
        now_s = asyncio.get_running_loop().time()
        instance = Instance(group, known, join, now_s, pattern="", wishes=wishes, is_named=name is not None)
        instance.committed_s, instance.life = now_s, gateway.env.unique().hex()
        self._members[group, known] = instance
        gateway.env.tasks.spawn(f"consumer instance {known}", self._live(instance))
        return instance

    def find(self, group: str, member_id: str, read: str = "", came_s: float = 0.0) -> Instance:
        """The instance, for a request of its client that came then. `read`: the name of a read that was forwarded."""
        instance = self._members.get((group, member_id))
        if instance is None or instance.is_gone:
            raise not_found()
        instance.touched_s = asyncio.get_running_loop().time()
        instance.asked_s = max(instance.asked_s, came_s)
        instance.reader.look(came_s)
        instance.asked(read)
        return instance

    async def lost(self, group: str, member_id: str, life: str, name: str, node: int) -> None:
        """Nobody got the answer to this read, which that broker has forwarded. `life`: of the instance that gave it, if
        that is known.
        """
        instance = self._members.get((group, member_id))
        if instance is None or (life and life != instance.life):
            raise not_found()
        await instance.reader.take(0.0)  # it may still be given that answer; no client asks
        instance.lost(name, node)
        instance.reader.release()

    def _lose_with_brokers(self, instance: Instance) -> None:
        """Take back the answers of brokers whose life is over: nobody can be asked who has them."""
        image = self._gateway.image
        for name, read in list(instance.reads.items()):
            epoch = image.brokers[read.node].epoch if read.node in image.brokers else None
            if read.epoch is None:
                read.epoch = epoch
            elif read.epoch != epoch and read.epoch <= image.broker_epoch.value:  # else it was not heard of yet
                instance.lost(name)

    async def _ask_in_front(self, instance: Instance, *, commits: bool = True) -> bool:
        """Find out which answers the client has, and take back those that it will not get. Returns whether all brokers
        say it. One that does not is asked again before the next commit.
        """
        self._lose_with_brokers(instance)
        instance.reads = {name: read for name, read in instance.reads.items() if read.begins}
        asked: dict[int, dict[str, ForwardedRead]] = {}
        for name, read in instance.reads.items():
            asked.setdefault(read.node, {})[name] = read
        silent = 0
        now_s = asyncio.get_running_loop().time
        for node, reads in asked.items():
            if not commits and now_s() < self._silent_until_s.get(node, 0.0):
                silent += 1
                continue
            names = [each for name, read in reads.items() for each in read.names or [name]]
            try:
                async with asyncio.timeout(ASK_S):
                    fates = await self._fates(instance, node, names)
            except (Problem, ClientError, OSError):  # `TimeoutError` is an OSError
                silent += 1
                self._silent_until_s[node] = now_s() + SILENT_S
                continue
            for name, read in reads.items():
                if instance.reads.get(name) is not read:
                    continue  # it was told meanwhile
                of_read = set(read.names or [name])
                if not of_read.isdisjoint(fates.lost):
                    instance.lost(name)
                elif of_read.isdisjoint(fates.on_their_way):
                    del instance.reads[name]
        return not silent

    async def _fates(self, instance: Instance, node: int, names: Collection[str]) -> Fates:
        gateway = self._gateway
        if node == gateway.node_id:
            await self.forwarded.look(names, instance.asked_s)
            return self.forwarded.fates(names)
        path = f"/consumers/{quote(instance.group, safe='')}/instances/{quote(instance.member_id, safe='')}/records"
        headers = {FORWARDED: str(gateway.node_id), ASKED: ",".join(names), **waited(gateway, instance.asked_s)}
        async with gateway.http().get(url_of(gateway, node, path), headers=headers) as answer:
            if answer.status != HTTPStatus.OK:
                raise Problem("not-now", f"broker {node} answers with status {answer.status}")
            try:
                return _fates.decode(await answer.read())
            except msgspec.DecodeError as error:
                raise Problem("not-now", f"broker {node}: {error}") from None

    async def leave(self, member: HttpMember) -> None:
        """Delete an instance, at the wish of its client."""
        assert isinstance(member, Instance)
        await self._commit_last(member)
        if member.is_gone:
            raise not_found()  # one that was made again under its name would leave the group
        await super().leave(member)

    async def expire(self, member: HttpMember, *, has_moved: bool) -> None:
        """Remove a silent instance. If its client chose the name, it may have made the instance again elsewhere; that
        one has its place in the group by now.
        """
        assert isinstance(member, Instance)
        if has_moved and member.is_named:
            self.forget(member)
        else:
            await super().leave(member)

    async def give_up_on(self, member: HttpMember) -> None:
        """If its client chose the name, it makes the instance again, which takes over its place in the group."""
        assert isinstance(member, Instance)
        if member.is_named:
            self.forget(member)
        else:
            await super().give_up_on(member)

    def belongs(self, member: HttpMember) -> bool:
        assert isinstance(member, Instance)
        return member.is_subscribed and super().belongs(member)

    async def depart(self, member: HttpMember) -> None:
        if member.epoch > 0:
            await super().depart(member)

    # -- what an instance reads

    async def subscribe(self, instance: Instance, topics: list[str], pattern: str, size: int) -> None:
        async with instance.turn:
            if instance.is_gone:
                raise not_found()
            if instance.is_assigned or (instance.pattern if topics else instance.join.topics):
                raise conflict("Subscription to topics, partitions and pattern are mutually exclusive")
            self._keep(instance, size)
            before = instance.join.topics, instance.pattern
            instance.join.topics, instance.pattern = topics, pattern
            instance.must_say_all = True
        try:
            await self.beat(instance)
        except (Problem, ClientFailure):
            if instance.join.topics is topics and instance.pattern == pattern:  # else it is another's wish by now
                instance.join.topics, instance.pattern = before
            raise

    async def assign(self, instance: Instance, partitions: Iterable[TopicPartition], size: int) -> None:
        await self._commit_last(instance)
        async with instance.turn:
            if instance.is_gone:
                raise not_found()
            if instance.is_subscribed:
                raise conflict("Subscription to topics, partitions and pattern are mutually exclusive")
            self._keep(instance, size)
            instance.is_assigned = True
            positions = {each: instance.positions.get(each, SOMEWHERE) for each in partitions}
            instance.lose(instance.positions.keys() - positions)
            instance.positions = positions
        instance.stir()

    async def unsubscribe(self, instance: Instance) -> None:
        await self._commit_last(instance)
        async with instance.turn:
            if instance.is_gone:
                raise not_found()
            await self.depart(instance)
            instance.join.topics, instance.pattern, instance.epoch = [], "", 0
            instance.is_assigned = False
            instance.lose(list(instance.positions))
            self._keep(instance, 0)

    async def beat(self, member: HttpMember, *, if_due: bool = False) -> None:
        assert isinstance(member, Instance)
        if member.is_subscribed:
            await super().beat(member, if_due=if_due)

    async def give_up(self, member: HttpMember, partitions: list[TopicPartition]) -> None:
        assert isinstance(member, Instance)
        await self._commit_itself(member)

    async def starts(self, member: HttpMember, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        """No positions yet: like any consumer, an instance finds them when it reads."""
        return dict.fromkeys(partitions, SOMEWHERE)

    async def seek(self, instance: Instance, offsets: Mapping[TopicPartition, int]) -> None:
        """Move to these offsets; EARLIEST and LATEST may be among them. They are places in the topics that have the
        names now: refused if the group has not named those yet, or if another has the name by the end. The next
        heartbeat would drop the positions.
        """
        self._look_up_topics(instance)
        topics = self._gateway.image.topics
        if any(each.topic in topics and topics[each.topic].id != instance.ids.get(each.topic) for each in offsets):
            await self.beat(instance)
        for partition in offsets:
            if partition not in instance.positions:
                raise conflict(f"No current assignment for partition {partition.topic}-{partition.partition}")
            self._gateway.state(partition)
        ids = {each.topic: instance.ids[each.topic] for each in offsets if each.topic in instance.ids}
        found = {each: await self._place(each, offset) for each, offset in offsets.items()}
        for name, topic_id in ids.items():
            self._gateway.same_topic(name, topic_id)
        for each in found:
            for begins in instance.begins():
                begins.pop(each, None)  # an answer that is lost takes the instance back elsewhere only
        instance.move({each: offset for each, offset in found.items() if each in instance.positions})

    async def _place(self, partition: TopicPartition, offset: int) -> int:
        if offset >= 0:
            return offset
        return await at_time(self._gateway, partition, offset, Isolation.READ_COMMITTED.value)

    def _look_up_topics(self, instance: Instance) -> None:
        """Partitions that were assigned by hand are those of the topics that have the names now. A group tells an
        instance that subscribes, which topics it is to read.
        """
        if instance.is_subscribed:
            return
        for name, partitions in by_topic(instance.positions).items():
            topic, known = self._gateway.image.topics.get(name), instance.ids.get(name)
            if topic is None or topic.id == known:
                continue
            instance.ids[name] = topic.id
            if known is not None:
                instance.lose(partitions)
                instance.positions.update(dict.fromkeys(partitions, SOMEWHERE))

    async def _begin(self, instance: Instance, deadline: float) -> Problem | ClientFailure | None:
        """Find the position of each partition that has none: where the group is, or else where the client's setting
        says. A leader that is silent, or has an error, does not keep the client from reading the other partitions.
        Returns an error.
        """
        self._look_up_topics(instance)
        image = self._gateway.image
        fresh = [
            each
            for each, offset in instance.positions.items()
            if offset == SOMEWHERE and (state := image.partition(each)) is not None and state.leader != NO_LEADER
        ]
        if not fresh:
            return None
        ids = dict(instance.ids)
        committed, unsettled = await offsets_by_now(self._gateway, instance.group, fresh)
        nowhere: dict[TopicPartition, int] = {}
        for each in fresh:
            if each not in committed:
                if each not in unsettled:  # while a transaction is about to commit there, the instance goes on beating
                    nowhere[each] = SOMEWHERE
            elif instance.stands(each, SOMEWHERE, ids):
                instance.positions[each] = committed[each][0]
        failure = await self._reset_all(instance, nowhere, ids, deadline)
        if failure is not None and instance.wishes.auto_offset_reset == "none":
            raise failure  # its client wants to be told before it reads on
        return failure

    async def _reset_all(
        self, instance: Instance, places: Mapping[TopicPartition, int], ids: Mapping[str, TopicId], deadline: float
    ) -> Problem | ClientFailure | None:
        """Move the partitions that are still at these places to where the client's setting says. Each leader is asked
        beside the others. Returns an error.
        """
        by_leader: dict[int, list[TopicPartition]] = {}
        for each in places:
            state = self._gateway.image.partition(each)
            by_leader.setdefault(NO_LEADER if state is None else state.leader, []).append(each)
        failures: list[Problem | ClientFailure] = []

        async def at_leader(partitions: list[TopicPartition]) -> None:
            for each in partitions:
                try:
                    offset = await self._reset(instance, each)
                except (Problem, ClientFailure) as failure:
                    failures.append(failure)
                    continue
                if instance.stands(each, places[each], ids):  # or the client has sent the instance elsewhere meanwhile
                    instance.lose([each])
                    instance.positions[each] = offset
                    if instance.wishes.auto_offset_reset == "latest":
                        instance.uncommitted[each] = (
                            offset  # if it is made again, what comes until then is not left out
                        )

        with suppress(TimeoutError):
            async with asyncio.timeout_at(max(deadline, asyncio.get_running_loop().time() + STEP_MS / 1000)):
                await asyncio.gather(*map(at_leader, by_leader.values()))
        return failures[0] if failures else None

    async def _reset(self, instance: Instance, partition: TopicPartition) -> int:
        if instance.wishes.auto_offset_reset == "none":
            raise Problem("offset-out-of-range", f"nothing says where to read {partition.topic}-{partition.partition}")
        return await self._place(partition, EARLIEST if instance.wishes.auto_offset_reset == "earliest" else LATEST)

    # -- reading

    async def read(
        self, instance: Instance, request: web.Request, front: Front, max_bytes: int, wait_ms: int
    ) -> list[RecordV2]:
        """What there is for an answer. The caller holds the instance's reader, and tells when the answer has ended."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_ms / 1000
        if not instance.is_subscribed and not instance.is_assigned:
            raise conflict("Consumer is not subscribed to any topics or assigned any partitions")
        with self._gateway.waiting():
            self._lose_with_brokers(instance)
            instance.lost(front.read)
            is_due = loop.time() - instance.committed_s >= COMMIT_EVERY_S
            if is_due or instance.remembered >= READS_MAX:
                # What was lost is given again soon, although nothing is committed.
                await self._ask_in_front(instance, commits=False)
            if is_due:
                instance.committed_s = loop.time()
                await self._commit_known(instance)
            instance.tell_unreadable()
            records: list[RecordV2] = []
            while not records:
                answer = RecordsAnswer(self._gateway, request[HOLDER], instance, max_bytes)
                try:
                    await self._fill(answer, request, deadline)
                except (Problem, ClientFailure):
                    if not answer.records:
                        answer.pass_over()
                        raise
                if not is_there(request):
                    raise client_gone()
                instance.touched_s = loop.time()
                stands = answer.stands
                records = answer.given()
                if stands or loop.time() >= deadline:
                    break  # otherwise it was sent elsewhere as it read, or had lost an answer
            instance.is_being_given = True
            if front.read and instance.before:
                read = ForwardedRead(front.node, front.epoch, dict(instance.before))
                instance.remember(front.read, read, self.begins_max)
            return records

    async def _fill(self, answer: RecordsAnswer, request: web.Request, deadline: float) -> None:
        loop = asyncio.get_running_loop()
        wait_ms = 0
        while True:
            began_s = answer.instance.touched_s = loop.time()  # a client that waits is not silent
            try:
                await self._fill_once(answer, request, deadline, wait_ms)
            except (Problem, ClientFailure) as failure:
                if not passes(failure) or loop.time() >= deadline:
                    raise
            waited_ms, wait_ms = wait_ms, min(left_ms(deadline), STEP_MS)
            if answer.is_enough or not answer.stands or not wait_ms or request.transport is None:
                return
            if answer.instance.positions:
                await before_the_next(began_s, waited_ms)
            else:
                await self.idle(answer.instance, wait_ms)

    async def _fill_once(self, answer: RecordsAnswer, request: web.Request, deadline: float, wait_ms: int) -> None:
        instance = answer.instance
        if instance.is_gone:
            raise not_found()
        if self.is_due(instance):
            await self.beat(instance, if_due=True)
        async with instance.turn:
            if request.transport is None:  # a leader that is silent holds up all that wait here, one by one
                raise client_gone()
            failure = await self._begin(instance, deadline)
            ids = dict(instance.ids)
            elsewhere = await answer.take(wait_ms, deadline)
            failure = await self._reset_all(instance, elsewhere, ids, deadline) or answer.problem or failure
            if failure is not None and not answer.records:
                raise failure

    # -- commits

    async def commit(self, instance: Instance, offsets: Mapping[TopicPartition, tuple[int, str | None]]) -> None:
        """Commit these offsets. They are refused if the group has removed the instance meanwhile, or has taken away a
        partition that it was reading: another member may have gone on there.
        """
        self._look_up_topics(instance)
        ids = instance.ids_read
        held = {each for each in offsets if instance.holds(each)}
        for tries_left in reversed(range(COMMIT_TRIES)):
            try:
                await commit_by(self._gateway, instance.group, instance.who, None, ids, offsets)
            except Problem as problem:
                if problem.error != ErrorCode.STALE_MEMBER_EPOCH or not tries_left:
                    raise
                await self.beat(instance)  # the group has moved on, and still has this member
                if not all(map(instance.holds, held)):
                    raise
            else:
                done = {each: offset for each, (offset, _) in offsets.items()}
                instance.is_done(done, ids)
                instance.is_committed(done, ids)
                return

    async def commit_all(self, instance: Instance) -> None:
        """Commit all that was shown, without answers that are on their way, and in topics that are still there."""
        await settle(instance.reader.given, instance.asked_s)
        all_said = await self._ask_in_front(instance)
        self._look_up_topics(instance)
        shown = {
            each: offset
            for each, offset in instance.positions.items()
            if offset != SOMEWHERE and self._is_there(instance, each)
        }
        given = instance.taken(shown)
        await self.commit(instance, {each: (offset, None) for each, offset in given.items()})
        if given != shown and not all_said:
            raise Problem("not-now", "a broker does not say whether the client has all that it was given by it")

    def _is_there(self, instance: Instance, partition: TopicPartition) -> bool:
        """Whether its topic is still the one that the instance reads. In one that is gone nothing can be committed."""
        topic = self._gateway.image.topics.get(partition.topic)
        return topic is not None and topic.id == instance.ids.get(partition.topic)

    async def _commit_last(self, instance: Instance) -> None:
        """Its client is done with what it reads: so it has the last answer, as soon as its system acknowledges that."""
        await settle(instance.reader.given, instance.asked_s)
        instance.asked("")
        await self._commit_itself(instance)

    async def _commit_itself(self, instance: Instance) -> None:
        """Commit without being asked. An error is not told to the client; the next attempt comes later."""
        instance.committed_s = asyncio.get_running_loop().time()
        if instance.wishes.commits_itself and instance.uncommitted:
            await self._ask_in_front(instance)
            await self._commit_known(instance)

    async def _commit_known(self, instance: Instance) -> None:
        """As far as it is known that the client has it."""
        if not instance.wishes.commits_itself:
            return
        ids = dict(instance.ids)
        ready = {
            each: offset
            for each, offset in instance.taken(instance.uncommitted).items()
            if each in instance.positions and self._is_there(instance, each)
        }
        if not ready:
            return
        try:
            await commit_by(
                *(self._gateway, instance.group, instance.who, None, ids),
                {each: (offset, None) for each, offset in ready.items()},
            )
        except (Problem, ClientFailure) as failure:
            logger.info("consumer instance %s of group %s: %s", instance.member_id, instance.group, failure)
            return
        instance.is_committed(ready, ids)


class RecordsAnswer:
    """The records for one answer. The instance's position moves only when they are handed over (`given`)."""

    def __init__(self, gateway: Gateway, holder: Holder, instance: Instance, max_bytes: int) -> None:
        self.instance = instance
        self._held = Held(holder)
        self.records: list[RecordV2] = []
        self._gateway = gateway
        self._left = min(max_bytes, PAGE_BYTES_MAX)
        self._bytes = 0
        self._is_full = False
        self._begins: dict[TopicPartition, int] = {}
        self._ends: dict[TopicPartition, int] = {}
        self._ids: dict[TopicPartition, TopicId] = {}
        """In which topic that is."""
        self._unreadable: dict[TopicPartition, Problem] = {}
        """Where something can't be read or shown."""
        is_json = instance.wishes.form is Form.JSON
        self._lens = Lens(form="json" if is_json else "base64")  # however long it is
        self._show = _in_json if is_json else _in_binary

    @property
    def is_enough(self) -> bool:
        return self._is_full or (bool(self.records) and self._bytes >= self.instance.wishes.min_bytes)

    @property
    def problem(self) -> Problem | None:
        """What can't be read or shown, if there is something."""
        return next(iter(self._unreadable.values()), None)

    @property
    def stands(self) -> bool:
        """Nothing of it was given to another member meanwhile, and the client has moved nothing: it can be read on."""
        return all(map(self._is_still, self._begins))

    def _is_still(self, partition: TopicPartition) -> bool:
        begin, topic_id = self._begins[partition], self._ids[partition]
        return self.instance.stands(partition, begin, {partition.topic: topic_id})

    def pass_over(self) -> None:
        """Move on behind what shows nothing: a read that is refused would begin with it each time."""
        self.instance.positions.update({each: end for each, end in self._ends.items() if self._is_still(each)})

    def given(self) -> list[RecordV2]:
        """The records, without those of partitions that were given to another member or that the client has moved
        meanwhile.
        """
        kept = {each: end for each, end in self._ends.items() if self._is_still(each)}
        self.instance.before = {each: self._begins[each] for each in kept}
        self.instance.move(kept)
        self.instance.untold = {
            each: (self.instance.positions[each], problem)
            for each, problem in self._unreadable.items()
            if each in self.instance.positions and not passes(problem)
        }
        return [each for each in self.records if (each.topic, each.partition) in kept]

    async def take(self, wait_ms: int, deadline: float) -> dict[TopicPartition, int]:
        """Read on; if there is nothing, wait for this long. Returns the positions that are in their logs no more. What
        can't be read may fill a leader's answer each time, so the other partitions are read without it.
        """
        elsewhere = dict[TopicPartition, int]()
        self._unreadable = {each: problem for each, problem in self._unreadable.items() if not passes(problem)}
        while True:
            known = len(self._unreadable)
            elsewhere |= await self._take_once(wait_ms, deadline, elsewhere)
            wait_ms = 0
            if self.records or len(self._unreadable) == known:
                return elsewhere

    async def _take_once(
        self, wait_ms: int, deadline: float, but: Collection[TopicPartition]
    ) -> dict[TopicPartition, int]:
        image, instance = self._gateway.image, self.instance
        ids = dict(instance.ids)
        asked = {
            each: offset
            for each, offset in instance.positions.items()
            if offset != SOMEWHERE and (topic_id := ids.get(each.topic)) and self._ids.get(each, topic_id) == topic_id
            if each not in self._unreadable and each not in but
        }
        by_leader: dict[int, dict[TopicPartition, int]] = {}
        for partition, offset in asked.items():
            state = image.partition(partition)
            if state is not None and state.leader != NO_LEADER:
                by_leader.setdefault(state.leader, {})[partition] = self._ends.get(partition, offset)
        if not by_leader:
            await asyncio.sleep(min(wait_ms / 1000, PAUSE_S))
        elsewhere = dict[TopicPartition, int]()
        asked_for = self._gateway, by_leader, ids, Isolation.READ_COMMITTED, self._held
        pieces = await fetch_all(*asked_for, max_bytes=self._left, wait_ms=wait_ms, deadline=deadline)
        try:
            for piece in pieces:
                begin = asked.get(piece.partition, SOMEWHERE)
                topic_id = ids[piece.partition.topic]
                if begin == SOMEWHERE or instance.positions.get(piece.partition) != begin:
                    continue  # the instance was sent elsewhere meanwhile, or has lost the partition
                if instance.ids.get(piece.partition.topic) != topic_id:
                    continue  # or is to read another topic of its name
                if piece.error == ErrorCode.OFFSET_OUT_OF_RANGE and piece.partition not in self._ends:
                    elsewhere[piece.partition] = begin
                elif not self._is_full and piece.error not in PASSING:
                    self._ids[piece.partition] = topic_id
                    try:
                        if piece.error:
                            raise of_error(piece.error, f"{piece.partition.topic}-{piece.partition.partition}")
                        await self._open(piece, begin)
                    except Problem as problem:
                        if isinstance(problem, NoRoom):
                            raise  # the others will find none either
                        self._unreadable[piece.partition] = problem.with_traceback(None)  # that has all pieces
        finally:
            self._held.drop(pieces)
        return elsewhere

    async def _open(self, piece: Piece, begin: int) -> None:
        offset = self._ends.get(piece.partition, begin)
        most = RECORDS_MAX - len(self.records)
        async with aclosing(opened(self._gateway, piece, offset, self._lens, most, self._held)) as portions:
            async for some, next_offset in portions:
                self._begins.setdefault(piece.partition, begin)
                for each in some:
                    assert isinstance(each, RecordOut), "the lens asks for no events"
                    self._ends[piece.partition] = each.offset
                    record, size = self._show(each)
                    if self.records and size > self._left:
                        self._is_full = True
                        return
                    self.records.append(record)
                    self._bytes += size
                    self._left = max(self._left - size, 0)
                self._ends[piece.partition] = next_offset
        self._is_full = self._left == 0 or self._held.is_enough or len(self.records) >= RECORDS_MAX


PASSING = MOVED | {ErrorCode.OFFSET_OUT_OF_RANGE}


def _in_binary(record: RecordOut) -> tuple[RecordV2, int]:
    key = None if record.key is None else base64.b64encode(record.key.encode()).decode()
    if record.key_base64 is not UNSET:
        key = record.key_base64
    value = None if record.value_base64 is UNSET else record.value_base64
    size = (len(key or "") + len(value or "")) * 3 // 4
    return RecordV2(record.topic, key, value, record.partition, record.offset), size


_any_json = msgspec.json.Decoder(Raw).decode


def _in_json(record: RecordOut) -> tuple[RecordV2, int]:
    where = f"{record.topic}-{record.partition} at offset {record.offset}"
    if record.key_base64 is not UNSET or record.value is UNSET:
        raise not_in_form(f"{where} is not JSON")
    key = None
    if record.key is not None:
        try:
            key = _any_json(record.key)
        except (msgspec.DecodeError, RecursionError):
            raise not_in_form(f"the key of {where} is not JSON") from None
    size = len(key or b"") + len(record.value or b"")
    return RecordV2(record.topic, key, record.value, record.partition, record.offset), size

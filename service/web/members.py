"""Members of consumer groups that speak HTTP. The broker that coordinates the group acts as the member: it sends the
heartbeats, knows the positions, and serves requests that came to other brokers.

What always holds: a member reads only partitions that its group has assigned to it, beginning at what the group has
committed. Its positions move only by what an answer holds whose client is still there. An offset is committed only by a
request that says so, and refused if the group has moved on meanwhile. A client that is silent for longer than its
session leaves the group. A position counts in the topic of the id that the group has named, and in none that was made
again under the same name: there the member begins anew, once the group names that one.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
import zlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from sys import getsizeof
from types import MappingProxyType
from typing import Any, Literal
from urllib.parse import quote
from uuid import UUID

import msgspec
from aiohttp import web

from isolation.read_view import Isolation
from log.ids import TopicId, TopicPartition
from service.broker.internal_topics import GROUPS
from service.client.cluster import MOVED, by_topic
from service.client.failures import ClientFailure
from service.cluster.image import NO_LEADER, Topic
from service.turns import NAMED_A_TURN, in_turns
from service.web.answers import as_json, list_in_turns, query_int, read_json
from service.web.consuming import (
    LENS,
    PAGE_BYTES,
    PAGE_BYTES_MAX,
    PAGE_HEAD,
    RECORDS_MAX,
    WAIT_MS_MAX,
    asks_for_batch,
    batch_of,
    lens_of,
    records_inside,
)
from service.web.event_format import BATCHED
from service.web.fetching import Held, Lens, Shown, before_the_next, fetch_all, left_ms, opened
from service.web.following import passes
from service.web.forwarding import client_gone, forward
from service.web.gateway import Gateway
from service.web.groups import Assigned, commit_offsets, offsets_by_now
from service.web.holding import HOLDER, Holder, NoRoom
from service.web.problems import Problem, of_error
from service.web.records import RecordOut, with_text_numbers
from service.web.routing import JSON, LIST_BYTES, Route, integer, text
from service.web.topics import at_time
from service.web.unpacking import body_of
from service.wire.error_codes import ErrorCode
from service.wire.messages import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatRequestTopicPartitions,
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)

logger = logging.getLogger("oncelog.http")
_encode = msgspec.json.Encoder().encode

EARLIEST, LATEST = -2, -1
SOMEWHERE = -1
"""The position of a partition that can't be read yet, because it is not known where the group is in it."""
LEAVE = -1
MEMBERS_MAX = 10_000
KEPT_BYTES_MAX = 16 << 20
"""The most bytes of subscriptions of all members together, and of subscriptions and assignments of all instances."""
STEP_MS = 500
"""How often a poll checks whether the partitions still belong to its member."""
REJOIN = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH)
REBALANCE_TIMEOUT_MS = 60_000
FIRST_WITHIN_S = 5.0
IDLE_BEAT_S, POLL_BEAT_S = 0.1, 1.0
"""The shortest pauses between heartbeats that are sent before they are due, because a client waits and the group has
changed: of a member that has nothing to read, and of every other one.
"""


class Join(msgspec.Struct, forbid_unknown_fields=True):
    topics: list[str]
    instance_id: str | None = None
    auto_offset_reset: Literal["earliest", "latest"] = "earliest"
    """Where to begin in a partition for which the group has committed nothing."""
    session_timeout_ms: int = 60_000


class MemberJoined(msgspec.Struct):
    member_id: str
    generation: int
    assignment: list[Assigned]


class Polled(msgspec.Struct):
    """Records of the member's partitions. `commit_token` commits them and everything before them."""

    records: list[RecordOut]
    commit_token: str
    generation: int
    assignment: list[Assigned]


class MemberOffsetIn(msgspec.Struct, forbid_unknown_fields=True):
    topic: str
    partition: int
    offset: int
    metadata: str | None = None


class Commit(msgspec.Struct, forbid_unknown_fields=True):
    commit_token: str | None = None
    offsets: list[MemberOffsetIn] = []


_joins = msgspec.json.Decoder(Join)
_commits = msgspec.json.Decoder(Commit)
Places = Mapping[str, Mapping[int, int]]
"""Offsets by topic and partition."""
_tokens = msgspec.json.Decoder(tuple[int, dict[str, dict[int, int]]])
TOKEN_BYTES_MAX = 384 << 10
"""The most bytes of a token as unpacked: it is decoded in one turn of the loop. One of 15,000 partitions has 290 KB."""


class Idler:
    """A poll of a member that has nothing to read. It waits until what the group's coordinator keeps has moved."""

    def __init__(self) -> None:
        self.woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def moved(self) -> None:
        if not self.woken.done():
            self.woken.set_result(None)

    committed = moved


@dataclass(slots=True, eq=False)
class HttpMember:
    group: str
    member_id: str
    join: Join
    touched_s: float
    epoch: int = 0
    pattern: str | None = None
    """Topics that match this are read besides those that are named."""
    must_say_all: bool = False
    """The next heartbeat must tell the group the list of topics: it is new, or an answer was lost that may have told
    the assignment. The group tells that once, and again to a heartbeat that says all.
    """
    positions: dict[TopicPartition, int] = field(default_factory=dict)
    begun: dict[TopicPartition, int] = field(default_factory=dict)
    """Where the member began in the partitions that it has had; lower if the log ended before that."""
    ids: dict[str, TopicId] = field(default_factory=dict)
    """Which topics the names are of. A topic that was made again under its name is another one."""
    since: dict[str, int] = field(default_factory=dict)
    """The epoch in which the group named that topic."""
    interval_s: float = 3.0
    beaten_s: float = 0.0
    is_gone: bool = False
    kept_bytes: int = 0
    said: int = 0
    """How many polls have said how far the client has got. What an earlier poll would find, the last one gives."""
    stamp: tuple[int, int, int] | None = None
    """The group's at the last heartbeat."""
    topics: Mapping[str, Topic] | None = None
    """Those of the cluster when it was last looked at what the member may be given of them."""
    offered: tuple[int, int] = (0, 0)
    """What there was of them at the last heartbeat."""
    idlers: dict[Idler, None] = field(default_factory=dict)
    untold: dict[TopicPartition, tuple[int, Problem]] = field(default_factory=dict)
    """Where the last answer with records had met what can't be read, and what that is."""
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by one poll or heartbeat at a time, because both change positions."""

    @property
    def is_idle(self) -> bool:
        """Nothing can be read until a heartbeat tells what, and from where."""
        return all(offset == SOMEWHERE for offset in self.positions.values())

    @property
    def ids_read(self) -> dict[str, TopicId]:
        """Which topics it reads. Of others it is known only which once had the names."""
        names = {each.topic for each in self.positions}
        return {name: topic_id for name, topic_id in self.ids.items() if name in names}

    @property
    def assignment(self) -> list[Assigned]:
        return [Assigned(*each) for each in sorted(self.positions)]

    def stir(self) -> None:
        """Something has changed for those who wait."""
        for each in self.idlers:
            each.moved()

    def lose(self, partitions: Iterable[TopicPartition]) -> None:
        """Forget all that was true of these partitions while they were the member's. Others move the group on there."""
        for each in partitions:
            self.positions.pop(each, None)

    def tell_unreadable(self) -> None:
        """Raises a problem if the member still stands where the last answer had met one, but gave other records."""
        untold, self.untold = self.untold, {}
        for partition, (offset, problem) in untold.items():
            if self.positions.get(partition) == offset:
                raise problem

    def go_back(self, generation: int, seen: Places) -> None:
        """The client has got answers up to these positions in this generation, and of other partitions nothing. What it
        got before another member had the partition does not count: the group is further now. What it got of an earlier
        topic of the same name does not either.
        """
        for partition, offset in self.positions.items():
            is_same = generation >= self.since.get(partition.topic, 0)
            known = seen.get(partition.topic, {}).get(partition.partition, 0) if is_same else 0
            self.positions[partition] = min(offset, max(known, self.begun[partition]))

    @property
    def state(self) -> MemberJoined:
        return MemberJoined(self.member_id, self.epoch, self.assignment)


def _offered(member: HttpMember, topics: Mapping[str, Topic]) -> tuple[int, int]:
    """How many partitions the member's topics have; and how many topics there are, if it reads those of a pattern."""
    names = {*member.join.topics, *member.ids} if member.pattern else member.join.topics
    partitions = sum(len(topics[name].partitions) for name in names if name in topics)
    return partitions, len(topics) if member.pattern else 0


class Members:
    """The members whose groups this broker coordinates."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._members: dict[tuple[str, str], HttpMember] = {}
        self._kept_bytes = 0

    async def add(self, group: str, join: Join) -> HttpMember:
        if len(self._members) >= MEMBERS_MAX:
            raise Problem("throttled", f"{MEMBERS_MAX} members read by HTTP here")
        member_id = str(UUID(bytes=self._gateway.env.unique(), version=4))
        member = HttpMember(group, member_id, join, asyncio.get_running_loop().time())
        self._keep(member, sum(map(getsizeof, join.topics)))
        self._members[group, member_id] = member  # it counts while it joins
        try:
            await self.beat(member)
        except BaseException as failure:
            self.forget(member)
            if isinstance(failure, Problem | ClientFailure):
                self._gateway.env.tasks.spawn(f"member {member_id} leaves", self._depart_unseen(member))
            raise
        self._gateway.env.tasks.spawn(f"member {member_id}", self._live(member))
        return member

    async def _depart_unseen(self, member: HttpMember) -> None:
        """Nobody knows of the member, but its group may have given it partitions."""
        try:
            await self.depart(member)
        except (Problem, ClientFailure) as failure:
            logger.info("member %s of group %s may be left there: %s", member.member_id, member.group, failure)

    def find(self, group: str, member_id: str) -> HttpMember:
        member = self._members.get((group, member_id))
        if member is None or member.is_gone:
            raise Problem("member-expired", f"group {group!r} has no such member here: join again")
        member.touched_s = asyncio.get_running_loop().time()
        return member

    async def leave(self, member: HttpMember) -> None:
        self.forget(member)
        await self.depart(member)

    async def expire(self, member: HttpMember, *, has_moved: bool) -> None:
        """Remove a member whose client is silent. With `has_moved` another broker coordinates the group, and the client
        can't reach the member here any more.
        """
        await self.leave(member)

    def forget(self, member: HttpMember) -> None:
        member.is_gone = True
        member.positions.clear()
        member.stir()
        if self._members.get((member.group, member.member_id)) is member:
            del self._members[member.group, member.member_id]
        self._keep(member, 0)

    def _keep(self, member: HttpMember, size_bytes: int) -> None:
        """Count what a member keeps of names. Raises a problem if that is too much."""
        kept_bytes = self._kept_bytes - member.kept_bytes + size_bytes
        if size_bytes and kept_bytes > KEPT_BYTES_MAX:
            raise Problem("throttled", "the members here read too many topics")
        self._kept_bytes, member.kept_bytes = kept_bytes, size_bytes

    async def depart(self, member: HttpMember) -> None:
        """Leave the group, so that others take over the partitions."""
        request = ConsumerGroupHeartbeatRequest(member.group, member.member_id, LEAVE, member.join.instance_id)
        await self._gateway.ask_coordinator(GROUPS, member.group, request)

    async def _live(self, member: HttpMember) -> None:
        now_s, session_s = asyncio.get_running_loop().time, member.join.session_timeout_ms / 1000
        try:
            while True:
                left_s = self._beats_in_s(member)
                silent_in_s = max(member.touched_s + session_s - now_s(), 0.0)
                await asyncio.sleep(min(left_s if left_s > 0 else member.interval_s, silent_in_s))
                asked_s = now_s()
                home = await self._gateway.coordinator(GROUPS, member.group)
                if member.is_gone:
                    return
                # The client may have asked meanwhile. If it waits for the same answer, that time does not count.
                is_silent = asked_s >= member.touched_s + session_s
                has_moved = home != self._gateway.node_id
                if is_silent or has_moved:
                    await self.expire(member, has_moved=has_moved)
                    return
                await self.beat(member, if_due=True)  # a poll may have sent one meanwhile
        except (Problem, ClientFailure) as failure:
            logger.info("member %s of group %s is gone: %s", member.member_id, member.group, failure)
            await self.give_up_on(member)
        finally:
            self.forget(member)

    async def give_up_on(self, member: HttpMember) -> None:
        """Remove a member whose heartbeats fail."""
        self.forget(member)
        await self._depart_unseen(member)

    async def beat(self, member: HttpMember, *, if_due: bool = False) -> None:
        """Send a heartbeat and take over what the group assigns. If that changed, send another one at once."""
        async with member.turn:
            if if_due and not self.is_due(member):
                return  # it has been sent while this one waited for its turn
            member.stamp, member.topics = self._gateway.stamp_of(member.group), self._gateway.image.topics
            member.offered = _offered(member, member.topics)
            for _ in range(5):
                member.beaten_s = asyncio.get_running_loop().time()
                if not self.belongs(member) or not await self._beat_once(member):
                    break
            if waiting := [each for each, offset in member.positions.items() if offset == SOMEWHERE]:
                begun = await self.starts(member, waiting)
                if not member.is_gone:
                    member.begun.update(begun)
                    member.positions.update(begun)
                    member.stir()

    def is_due(self, member: HttpMember) -> bool:
        """Whether a heartbeat is to be sent for a client that waits."""
        since_s = asyncio.get_running_loop().time() - member.beaten_s
        least_s = IDLE_BEAT_S if member.is_idle else POLL_BEAT_S
        return self._beats_in_s(member) <= 0 or (since_s > least_s and self._has_news(member))

    def _beats_in_s(self, member: HttpMember) -> float:
        """When the member is to beat, as its group has told it."""
        return member.beaten_s + member.interval_s - asyncio.get_running_loop().time()

    def _has_news(self, member: HttpMember) -> bool:
        """Whether a heartbeat may tell the member what to read, or where to begin."""
        if SOMEWHERE in member.positions.values() or self._gateway.stamp_of(member.group) != member.stamp:
            return True
        topics = self._gateway.image.topics  # of these a group hears by heartbeats only
        if topics is not member.topics:
            if _offered(member, topics) != member.offered:
                return True
            member.topics = topics  # not to be counted again
        return False

    async def idle(self, member: HttpMember, wait_ms: int) -> None:
        """Wait until a member that has nothing to read is due; but not for longer than this, and for a step at most.
        Its group changes only when its coordinator's partition moves. Commits and other groups move that as well, and
        then the group is looked at ten times a second.
        """
        loop = asyncio.get_running_loop()
        until_s = loop.time() + min(wait_ms, STEP_MS) / 1000
        while not member.is_gone and member.is_idle and not self.is_due(member):
            if (left_s := until_s - loop.time()) <= 0:
                return
            if not self._has_news(member):
                await self._moved(member, left_s)
            await asyncio.sleep(min(left_s, IDLE_BEAT_S))

    async def _moved(self, member: HttpMember, wait_s: float) -> None:
        idler = Idler()
        partition = self._gateway.partitions.get(self._gateway.home(GROUPS, member.group))
        member.idlers[idler] = None
        timer = asyncio.get_running_loop().call_later(wait_s, idler.moved)
        if partition is not None:
            partition.watch(idler)
        try:
            await idler.woken
        finally:
            timer.cancel()
            del member.idlers[idler]
            if partition is not None:
                partition.unwatch(idler)

    def belongs(self, member: HttpMember) -> bool:
        """Whether it is a member, or is to be one. A request that waited for its turn may have slept through that the
        member left, and would make it join the group again.
        """
        return not member.is_gone

    async def _beat_once(self, member: HttpMember) -> bool:
        joins = member.epoch == 0
        says_all = joins or member.must_say_all
        owned = [
            ConsumerGroupHeartbeatRequestTopicPartitions(member.ids[name], [each.partition for each in partitions])
            for name, partitions in by_topic(member.positions).items()
            if name in member.ids
        ]
        request = ConsumerGroupHeartbeatRequest(
            *(member.group, member.member_id, member.epoch, member.join.instance_id),
            rebalance_timeout_ms=REBALANCE_TIMEOUT_MS if says_all else -1,
            subscribed_topic_names=member.join.topics if says_all else None,
            subscribed_topic_regex=member.pattern if says_all else None,
            topic_partitions=owned,
        )
        member.must_say_all = True  # until an answer is there
        answer, in_doubt = await self._gateway.ask_to_change(GROUPS, member.group, request)
        if member.is_gone:
            return False
        if answer.error_code in REJOIN and not joins:
            member.epoch = 0
            member.lose(list(member.positions))
            return True
        if answer.error_code:
            raise of_error(answer.error_code, answer.error_message)
        member.must_say_all = in_doubt
        member.epoch = answer.member_epoch
        member.interval_s = answer.heartbeat_interval_ms / 1000
        if answer.assignment is None:
            return in_doubt
        # The answer may name a topic that was not there when the heartbeat left. The group names it only once.
        image = self._gateway.image
        ids: dict[str, Any] = {}
        given: dict[TopicPartition, None] = {}
        for topic in answer.assignment.topic_partitions:
            name = image.topic_names.get(topic.topic_id)  # type: ignore[call-overload]
            if name is not None:
                ids[name] = topic.topic_id
                given.update(dict.fromkeys(TopicPartition(name, index) for index in topic.partitions))
        lost = [each for each in member.positions if each not in given or ids[each.topic] != member.ids.get(each.topic)]
        changed = bool(lost) or given.keys() != member.positions.keys()
        if lost:
            await self.give_up(member, lost)
            member.lose(lost)
        for name, topic_id in ids.items():
            if member.ids.get(name) != topic_id:
                member.ids[name], member.since[name] = topic_id, member.epoch
        fresh = dict.fromkeys((each for each in given if each not in member.positions), SOMEWHERE)
        member.begun.update(fresh)
        member.positions.update(fresh)  # also if it can't be found out now where to begin there
        return changed

    async def give_up(self, member: HttpMember, partitions: list[TopicPartition]) -> None:
        """The group wants these partitions back. It gives them to another member after the next heartbeat, which says
        that they are no longer read.
        """

    async def starts(self, member: HttpMember, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        """Where the group is in these partitions: SOMEWHERE while a transaction is about to commit offsets there, or
        the leader doesn't tell where its log begins or ends. The member goes on beating until then, and is asked for
        again with each heartbeat.
        """
        who = member.member_id, member.epoch
        committed, unsettled = await offsets_by_now(self._gateway, member.group, partitions, who)
        found = dict.fromkeys(partitions, SOMEWHERE) | {each: offset for each, (offset, _) in committed.items()}
        new = [each for each in partitions if each not in committed and each not in unsettled]
        found.update(zip(new, await asyncio.gather(*(self._first(member, each) for each in new)), strict=True))
        return found

    async def _first(self, member: HttpMember, partition: TopicPartition) -> int:
        """Where to begin in a partition for which the group has committed nothing. A leader that is silent must not
        keep the member from beating.
        """
        where = EARLIEST if member.join.auto_offset_reset == "earliest" else LATEST
        try:
            async with asyncio.timeout(FIRST_WITHIN_S):
                return await at_time(self._gateway, partition, where, Isolation.READ_COMMITTED.value)
        except TimeoutError:
            return SOMEWHERE
        except (Problem, ClientFailure) as failure:
            is_deleted = isinstance(failure, Problem) and failure.slug == "unknown-topic"
            if not (is_deleted or passes(failure)):
                raise
            return SOMEWHERE


async def commit_by(
    gateway: Gateway,
    group: str,
    who: tuple[str, int],
    instance_id: str | None,
    ids: Mapping[str, TopicId],
    offsets: Mapping[TopicPartition, tuple[int, str | None]],
) -> None:
    """Commit offsets of these topics. A topic that is not among `ids` is the one that has the name now."""
    ids = dict(ids)  # the offsets are of these topics: others get a turn, and the caller's may become those of new ones
    topics: dict[str, OffsetCommitRequestTopic] = {}
    async for each, (offset, metadata) in in_turns(list(offsets.items()), NAMED_A_TURN):
        if not 0 <= offset < 2**63:
            raise Problem("invalid-request", f"{offset} is no offset")
        if each.topic not in topics:
            topic_id = ids[each.topic] if each.topic in ids else gateway.topic(each.topic).id
            topics[each.topic] = OffsetCommitRequestTopic(each.topic, topic_id)
        topics[each.topic].partitions.append(OffsetCommitRequestPartition(each.partition, offset, -1, metadata))
    if not topics:
        return
    member_id, epoch = who
    asked = OffsetCommitRequest(group, epoch, member_id, instance_id, topics=list(topics.values()))
    await commit_offsets(gateway, asked)


# -- requests


async def home(
    gateway: Gateway, request: web.Request, body: bytes, more: Mapping[str, str] = MappingProxyType({})
) -> web.StreamResponse | None:
    """The answer of the broker that coordinates the group; None if this broker does."""
    node = await gateway.coordinator(GROUPS, request.match_info["group"])
    return None if node == gateway.node_id else await forward(gateway, node, request, body, more)


async def join(gateway: Gateway, request: web.Request) -> web.StreamResponse:
    body = await body_of(request)
    wanted = read_json(body, _joins)
    if not wanted.topics or not 1000 <= wanted.session_timeout_ms <= 3_600_000:
        raise Problem("invalid-request", "a member names topics, and a session of a second to an hour")
    if (elsewhere := await home(gateway, request, body)) is not None:
        return elsewhere
    wanted.topics = list(dict.fromkeys(wanted.topics))
    group = request.match_info["group"]
    member = await gateway.members.add(group, wanted)
    where = f"/v1/groups/{quote(group, safe='')}/members/{member.member_id}"  # the name may not fit a header
    return as_json(member.state, status=201, headers={"Location": where})


async def describe(gateway: Gateway, request: web.Request) -> web.StreamResponse:
    if (elsewhere := await home(gateway, request, b"")) is not None:
        return elsewhere
    return as_json(_member(gateway, request).state)


def _member(gateway: Gateway, request: web.Request) -> HttpMember:
    return gateway.members.find(request.match_info["group"], request.match_info["member"])


async def poll(gateway: Gateway, request: web.Request) -> web.StreamResponse:
    if (elsewhere := await home(gateway, request, b"")) is not None:
        return elsewhere
    member = _member(gateway, request)
    lens = lens_of(request)
    lens.as_events = asks_for_batch(request, lens)
    most = query_int(request, "max_records", 500, least=1, most=RECORDS_MAX)
    max_bytes = query_int(request, "max_bytes", PAGE_BYTES, least=1, most=PAGE_BYTES_MAX)
    after = request.query.get("after")
    seen = None if after is None else _read_token(after)
    deadline = asyncio.get_running_loop().time() + query_int(request, "wait_ms", 0, most=WAIT_MS_MAX) / 1000
    with gateway.waiting():
        records = await _poll(gateway, request, member, seen, lens, most, max_bytes, deadline)
    member.touched_s = asyncio.get_running_loop().time()
    token = _token(member)
    if lens.as_events:
        return await batch_of(records, {"Commit-Token": token})
    show = with_text_numbers if lens.text_numbers else _encode
    rest = show(Polled([], token, member.epoch, member.assignment))[len(PAGE_HEAD) :]
    content = await list_in_turns(records, partial(records_inside, show=show), PAGE_HEAD, rest)
    return web.Response(body=content, content_type=JSON)


async def _poll(
    gateway: Gateway,
    request: web.Request,
    member: HttpMember,
    seen: tuple[int, Places] | None,
    lens: Lens,
    most: int,
    max_bytes: int,
    deadline: float,
) -> list[Shown]:
    """`seen` is in which generation and how far the client has got, if it says so: answers that it did not get are
    given once more.
    """
    loop = asyncio.get_running_loop()
    if seen is not None:
        member.said += 1
    said = member.said
    while True:
        if member.is_gone:
            raise Problem("member-expired", "the member has left its group")
        member.touched_s = loop.time()  # a client that waits is not silent
        if gateway.members.is_due(member):
            await gateway.members.beat(member, if_due=True)
        async with member.turn:
            _is_wanted(request, member, said)  # a leader that is silent holds up all that wait here, one by one
            if seen is not None:
                member.go_back(*seen)
                seen = None
            member.tell_unreadable()
            began_s, wait_ms = loop.time(), min(left_ms(deadline), STEP_MS)
            records, positions = await _read(gateway, request[HOLDER], member, lens, most, max_bytes, wait_ms, deadline)
            _is_wanted(request, member, said)
            for partition, offset in positions.items():
                if partition in member.positions:  # else the member has left meanwhile
                    del member.positions[partition]  # other partitions come first next time
                    member.positions[partition] = offset
                    member.begun[partition] = min(member.begun[partition], offset)
        if records or not left_ms(deadline):
            return records
        if positions:
            await asyncio.sleep(0)
        elif member.is_idle:
            await gateway.members.idle(member, left_ms(deadline))
        else:
            await before_the_next(began_s, wait_ms)


def _is_wanted(request: web.Request, member: HttpMember, said: int) -> None:
    """Raises a problem if nobody is to get what this poll finds."""
    if request.transport is None:
        raise client_gone()
    if member.said != said:
        raise Problem("not-now", "a later request says how far the client has got")


async def _read(
    gateway: Gateway,
    holder: Holder,
    member: HttpMember,
    lens: Lens,
    most: int,
    max_bytes: int,
    wait_ms: int,
    deadline: float,
) -> tuple[list[Shown], dict[TopicPartition, int]]:
    """Records, and the positions behind them. The member itself does not move. What can't be read in one partition may
    fill its leader's answer each time, so the others are read without it. It is told if they have nothing, else before
    the next records.
    """
    records: list[Shown] = []
    moved: dict[TopicPartition, int] = {}
    held = Held(holder)
    elsewhere: list[TopicPartition] = []
    unreadable: dict[TopicPartition, Problem] = {}
    while True:
        known = len(unreadable)
        asked: dict[TopicPartition, int] = {}
        by_leader: dict[int, dict[TopicPartition, int]] = {}
        for partition, offset in member.positions.items():
            state = gateway.image.partition(partition)
            if offset == SOMEWHERE or partition in unreadable or partition in elsewhere:
                continue
            if state is not None and state.leader != NO_LEADER:
                asked[partition] = by_leader.setdefault(state.leader, {})[partition] = moved.get(partition, offset)
        asked_for = gateway, by_leader, member.ids, lens.isolation, held
        pieces = await fetch_all(*asked_for, max_bytes=max_bytes, wait_ms=wait_ms, deadline=deadline)
        try:
            for piece in pieces:
                if piece.error in MOVED or piece.partition not in member.positions:
                    continue
                if piece.error == ErrorCode.OFFSET_OUT_OF_RANGE:
                    elsewhere.append(piece.partition)
                    continue
                if len(records) >= most:
                    continue
                try:
                    if piece.error:
                        raise of_error(piece.error, f"{piece.partition.topic} partition {piece.partition.partition}")
                    offset = asked[piece.partition]
                    async for some, next_offset in opened(gateway, piece, offset, lens, most - len(records), held):
                        records += some
                        moved[piece.partition] = next_offset
                except NoRoom:
                    if not records:
                        raise
                    break
                except Problem as problem:
                    unreadable[piece.partition] = problem.with_traceback(None)  # that has all pieces
        finally:
            held.drop(pieces)
        if records or len(unreadable) == known:
            break
        wait_ms = 0
    failures: list[Problem | ClientFailure] = list(unreadable.values())
    if elsewhere:
        failures += await _look_up_all(gateway, member, elsewhere, lens, moved)
    if failures and not records and not moved:
        raise failures[0]
    member.untold = {
        each: (moved.get(each, member.positions[each]), problem)
        for each, problem in unreadable.items()
        if each in member.positions and not passes(problem)
    }
    return records, moved


async def _look_up_all(
    gateway: Gateway,
    member: HttpMember,
    partitions: Sequence[TopicPartition],
    lens: Lens,
    found: dict[TopicPartition, int],
) -> list[Problem | ClientFailure]:
    """Where to go on in these partitions, because their logs do not have what is asked for. What a silent leader has is
    asked for again with the next poll. Returns what went wrong.
    """
    where = EARLIEST if member.join.auto_offset_reset == "earliest" else LATEST
    failures: list[Problem | ClientFailure] = []

    async def look_up(partition: TopicPartition) -> None:
        try:
            found[partition] = await at_time(gateway, partition, where, lens.isolation.value)
        except (Problem, ClientFailure) as failure:
            failures.append(failure)

    with suppress(TimeoutError):
        async with asyncio.timeout(FIRST_WITHIN_S):
            await asyncio.gather(*map(look_up, partitions))
    return failures


def _token(member: HttpMember) -> str:
    """How far the member is. It is packed: a client sends it in a request's first line, too, which has 8 KiB."""
    places: dict[str, dict[int, int]] = {}
    for each, offset in sorted(member.positions.items()):
        if offset != SOMEWHERE:
            places.setdefault(each.topic, {})[each.partition] = offset
    return base64.urlsafe_b64encode(zlib.compress(msgspec.json.encode((member.epoch, places)), 1)).decode()


def _read_token(given: str) -> tuple[int, Places]:
    """The generation and the positions of a token."""
    unpacker = zlib.decompressobj()
    try:
        content = unpacker.decompress(base64.b64decode(given, altchars=b"-_", validate=True), TOKEN_BYTES_MAX)
        if not unpacker.eof:
            raise ValueError("it is too long, or cut off")
        return _tokens.decode(content)
    except (binascii.Error, zlib.error, ValueError, msgspec.MsgspecError):
        raise Problem("malformed", "a commit_token of this API is wanted: poll again for one") from None


async def commit(gateway: Gateway, request: web.Request) -> web.StreamResponse:
    body = await body_of(request)
    wanted = read_json(body, _commits)
    if (wanted.commit_token is None) == (not wanted.offsets):
        raise Problem("invalid-request", "what to commit: commit_token, or offsets")
    if (elsewhere := await home(gateway, request, body)) is not None:
        return elsewhere
    member = _member(gateway, request)
    offsets: dict[TopicPartition, tuple[int, str | None]] = {}
    generation, ids = member.epoch, member.ids_read
    if wanted.commit_token is not None:
        ids = dict(member.ids)  # its offsets are in topics that this member has read
        generation, places = _read_token(wanted.commit_token)
        of_token = ((TopicPartition(topic, index), places[topic][index]) for topic in places for index in places[topic])
        async for each, offset in in_turns(of_token, NAMED_A_TURN):
            gateway.state(each)  # or the others would be committed without it
            offsets[each] = offset, None
    async for named in in_turns(wanted.offsets, NAMED_A_TURN):
        gateway.state(each := TopicPartition(named.topic, named.partition))
        if each in offsets:
            raise Problem("invalid-request", f"two offsets are given of {each.topic} partition {each.partition}")
        offsets[each] = named.offset, named.metadata
    who = member.member_id, generation
    await commit_by(gateway, member.group, who, member.join.instance_id, ids, offsets)
    return web.Response(status=204)


async def leave(gateway: Gateway, request: web.Request) -> web.StreamResponse:
    if (elsewhere := await home(gateway, request, b"")) is not None:
        return elsewhere
    await gateway.members.leave(_member(gateway, request))
    return web.Response(status=204)


_MEMBERS = "/v1/groups/{group}/members"
_ONE = _MEMBERS + "/{member}"
ROUTES = (
    Route("POST", _MEMBERS, join, "Join a group; the broker beats for the member while its client asks now and then.",
          "groups", body=Join, answer=MemberJoined, status=201, problems=(400, 409, 422, 429, 503, 504),
          headers={"Location": "The member."}),
    Route("GET", _ONE, describe, "What a member reads.", "groups", answer=MemberJoined,
          tells_of_client=True, problems=(410, 503)),
    Route("GET", _ONE + "/records", poll, "Records of the member's partitions.", "groups", answer=Polled,
          more_media=(BATCHED,), problems=(400, 406, 409, 410, 503), answers_head=False,
          headers={"Commit-Token": "Of a batch of events: commits them, and everything before them."},
          tells_of_client=True, parameters=(
              integer("max_records", "At most so many records.", least=1, most=RECORDS_MAX),
              integer("max_bytes", "About so many stored bytes.", least=1, most=PAGE_BYTES_MAX),
              integer("wait_ms", "Wait this long if there is nothing.", most=WAIT_MS_MAX),
              text("after", "The commit_token of the last answer that came: what later answers held that did not come"
                            " is given again."), *LENS)),
    Route("POST", _ONE + "/offsets", commit, "Commit what was read.", "groups", body=Commit,
          body_bytes_max=LIST_BYTES, status=204, problems=(400, 404, 409, 410, 422, 503, 504)),
    Route("DELETE", _ONE, leave, "Leave the group: others take over at once.", "groups", status=204,
          problems=(409, 410, 503, 504)),
)  # fmt: skip

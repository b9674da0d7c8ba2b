# Hot path: once for each event and client; `python -m tests.bench --only http` answers for it.
"""Streams: a topic as it grows, for very many clients at once.

What always holds: an event says where to go on. A reader that goes on there misses nothing and gets nothing twice. A
client that does not read holds up no other client, and no memory besides that of its own stream.

Streams that are at the same place and show the same read together: one of them fetches and shows, and the others get
what it has found. A partition whose leader has nothing new does not hold up those of other leaders.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import aclosing
from dataclasses import astuple, dataclass
from typing import Any, NamedTuple

import msgspec
from aiohttp import web

from log.copies import Buffer
from log.ids import TopicId, TopicPartition, format_topic_id
from service.client.cluster import MOVED
from service.client.failures import ClientFailure, FailureKind
from service.cluster.image import Delta, Topic
from service.web.answers import ENCODED_AT_ONCE, GIVEN_AT_ONCE, as_one, in_pieces, without_long
from service.web.event_format import CURSOR, EventOut
from service.web.fetching import Held, Lens, Piece, Shown, fetch, opened, refused
from service.web.gateway import PAUSE_S, TIMEOUT_S, Gateway
from service.web.holding import Holder
from service.web.problems import Problem
from service.web.records import RecordOut, with_text_numbers

STREAM_BYTES = 512 << 10
SHARED_BYTES = 32 << 10
"""More than this, as stored, each stream reads for itself: it is not new, and shown in several turns of the loop."""
SHARED_TEXT_BYTES = 256 << 10
"""More than this, as it is shown, as well: well packed records would be held as a whole."""
KEPT_BYTES, KEPT_S = 4 << 20, 1.0
"""How much of what was read together is kept, and for how long, for streams that were writing just then."""
TOLD_A_TURN = 50
"""How many streams are told in one turn of the loop what was found. To send it takes each a tenth of a millisecond."""
QUIET_S = 15.0
"""A stream that has nothing to send says so this often, so that proxies keep it open."""
LEADERLESS_S = 0.5
"""How often a leader is looked for while other partitions are read."""
LAST_S = 0.5
"""So long a stream that ends with a failure of one leader still waits for what others have."""
SMALL_BYTES = 16 << 10
"""So much is taken at once by a connection on which nothing waits to be sent."""
STALLED_S = 0.5
"""When a client has not taken what was sent by then, what was read behind it is dropped, and read again later."""
TOLD_BYTES = 128 << 10
"""No more than about so much is sent at once."""
GATHERED_BYTES = 32 << 10
"""So much of small batches is sent together."""
PARTITIONS_MAX = 256
"""So many fit into a cursor that a client can give back in a request, and each event has the whole of it."""
UNREAD_S = 120.0
"""A client that reads nothing for this long is cut off."""
ALL_THE_TIME = 1 << 62

_encode = msgspec.json.Encoder().encode


class Cursor:
    """The position of a reader of several partitions, as text: the topic's id and `0:15,2:7`, with an `@` between."""

    def __init__(self, topic_id: TopicId, offsets: dict[int, int]) -> None:
        self.topic_id = topic_id
        self.offsets = offsets
        self._of_topic = format_topic_id(topic_id) + "@"
        self._parts = {index: f"{index}:{offset}" for index, offset in sorted(offsets.items())}

    def moved(self, index: int, offset: int) -> None:
        self.offsets[index] = offset
        self._parts[index] = f"{index}:{offset}"

    def around(self, index: int) -> tuple[str, str]:
        """The text before and after the offset of one partition."""
        places = list(self._parts)
        at = places.index(index)
        parts = list(self._parts.values())
        before, after = ",".join(parts[:at]), ",".join(parts[at + 1 :])
        return f"{self._of_topic}{before}{before and ','}{index}:", f"{after and ','}{after}"

    @property
    def text(self) -> str:
        return self._of_topic + ",".join(self._parts.values())

    @property
    def bytes(self) -> int:
        """How long it is, about: its numbers may get longer."""
        return len(self._of_topic) + 16 * len(self._parts)


def refuse_wide(topic: str, partitions: int) -> None:
    """Raise a problem if a stream of so many partitions has no cursor that could be given back."""
    if partitions > PARTITIONS_MAX:
        wide = f"a stream reads {PARTITIONS_MAX} partitions at most, {partitions} of topic {topic!r} are wanted"
        raise Problem("invalid-request", f"{wide}: name some in each stream (?partitions=0,1,2)")


def read_cursor(given: str, topic_id: TopicId) -> dict[int, int]:
    """The offsets in a cursor. One that a client has made itself need not name the topic."""
    of_topic, _, places = given.rpartition("@")
    if of_topic not in ("", format_topic_id(topic_id)):
        raise Problem("malformed", f"{given[:60]!r} is a cursor of another topic, or of one that had this name before")
    found = {}
    for part in places.split(","):
        index, _, offset = part.partition(":")
        is_number = index.isascii() and offset.isascii() and index.isdigit() and offset.isdigit() and len(part) < 32
        if not (is_number and int(index) < 2**31 and int(offset) < 2**63):
            raise Problem("malformed", f"{given[:60]!r} is no cursor of this stream")
        if int(index) in found:
            raise Problem("malformed", f"{given[:60]!r} has partition {int(index)} twice")
        found[int(index)] = int(offset)
    return found


@dataclass(slots=True)
class Portion:
    """Records of a partition as JSON, each with its offset, and where to go on after them."""

    partition: int
    lines: Sequence[tuple[int, bytes]]
    next_offset: int
    told_bytes: int
    """How long they are as they are sent, about."""
    told: tuple[str, list[Buffer], str] | None = None
    """How they were sent to the last one that has read them together with others, from which cursor on, and to which it
    led: the others are at the same place, and mostly at the same cursor.
    """


class Place(NamedTuple):
    """Streams with the same place get the same."""

    topic_id: bytes
    node: int
    positions: tuple[tuple[TopicPartition, int], ...]
    form: tuple[object, ...]


class SharedReading:
    """Who reads at which place, and who waits there for what is found.

    What always holds: while anybody waits at a place, somebody reads there. When a topic has got other partitions,
    nobody waits any longer at a place that lacks them.

    It is read in the name of the client that came first. Once not every client may read everything, who it is belongs
    to the `Place`.
    """

    def __init__(self) -> None:
        self._waiting: dict[Place, dict[asyncio.Future[list[Portion] | None], None]] = {}
        self._kept: dict[Place, tuple[float, int, list[Portion]]] = {}
        """What was found last: the oldest first."""
        self._kept_bytes = 0
        self._fetching: dict[str, dict[asyncio.Task[list[Piece]], None]] = {}
        """By topic."""

    def heard(self, delta: Delta) -> None:
        """The metadata has changed. A stream of a topic that has other partitions now, and those that wait for what it
        finds, find nothing and look again.
        """
        if not self._fetching:
            return
        old, new = delta.old.topics, delta.new.topics
        for name in self._fetching.keys() & {*delta.topics, *(each.topic for each in delta.partitions)}:
            before, now = old.get(name), new.get(name)
            if before and now and has_same_partitions(before, now):
                continue
            for task in self._fetching[name]:
                task.cancel()
            for place, others in self._waiting.items():
                if place.positions[0][0].topic == name:
                    _tell_in_turns(list(others), [])

    async def fetched(self, topic: str, fetching: Coroutine[None, None, list[Piece]]) -> list[Piece]:
        """What is fetched; nothing, if the topic gets other partitions meanwhile."""
        task = asyncio.get_running_loop().create_task(fetching)
        task.add_done_callback(_ended)
        tasks = self._fetching.setdefault(topic, {})
        tasks[task] = None
        try:
            await asyncio.wait([task])
        finally:
            task.cancel()
            del tasks[task]
            if not tasks:
                self._fetching.pop(topic, None)
        return [] if task.cancelled() else task.result()

    async def join(self, place: Place, wait_s: float) -> list[Portion] | None:
        """What somebody else finds at this place; nothing if that takes longer than `wait_s`. None: nobody reads there.
        The caller must do it, and say by `leave` what it has found.
        """
        if (known := self.known(place)) is not None:
            return known
        others = self._waiting.get(place)
        if others is None:
            self._waiting[place] = {}
            return None
        loop = asyncio.get_running_loop()
        found: asyncio.Future[list[Portion] | None] = loop.create_future()
        others[found] = None
        timer = loop.call_later(wait_s, _end_with, found, [])
        try:
            return await found
        except asyncio.CancelledError:
            if found.done() and not found.cancelled() and found.result() is None:
                self.leave(place, [])  # the turn to read had come just now
            raise
        finally:
            timer.cancel()
            others.pop(found, None)

    def leave(self, place: Place, found: list[Portion]) -> None:
        """The caller has read at this place. What was found leads further than the place. If nothing was found, the
        next one that waits there reads.
        """
        others = self._waiting[place]
        if not found:
            while others:
                next_one = next(iter(others))
                del others[next_one]
                if not next_one.done():
                    next_one.set_result(None)
                    return
            del self._waiting[place]
            return
        del self._waiting[place]
        self._keep(place, found)
        _tell_in_turns(list(others), found)

    def known(self, place: Place) -> list[Portion] | None:
        """What was found at this place just now."""
        known = self._kept.get(place)
        if known is None or known[0] < asyncio.get_running_loop().time() - KEPT_S:
            return None
        return known[2]

    def _keep(self, place: Place, found: list[Portion]) -> None:
        size_bytes = sum(len(line) for portion in found for _, line in portion.lines)
        size_bytes += sum(portion.told_bytes for portion in found)
        now_s = asyncio.get_running_loop().time()
        self._kept_bytes += size_bytes - self._kept.pop(place, (0.0, 0, []))[1]
        self._kept[place] = now_s, size_bytes, found
        while True:
            oldest, (found_s, size_bytes, _) = next(iter(self._kept.items()))
            if found_s > now_s - KEPT_S and self._kept_bytes <= KEPT_BYTES:
                return
            del self._kept[oldest]
            self._kept_bytes -= size_bytes
            if not self._kept:
                return


def has_same_partitions(before: Topic, now: Topic) -> bool:
    return (before.id, before.partitions.keys()) == (now.id, now.partitions.keys())


def _ended(task: asyncio.Task[Any]) -> None:
    """If its stream has ended, nobody else asks how it went."""
    if not task.cancelled():
        task.exception()


def _tell_in_turns(waiting: list[asyncio.Future[list[Portion] | None]], found: list[Portion]) -> None:
    """Each that is told sends to its client in the next turn."""
    for each in waiting[:TOLD_A_TURN]:
        _end_with(each, found)
    if rest := waiting[TOLD_A_TURN:]:
        asyncio.get_running_loop().call_soon(_tell_in_turns, rest, found)


def _end_with(waiting: asyncio.Future[list[Portion] | None], found: list[Portion]) -> None:
    if not waiting.done():
        waiting.set_result(found)


Damaged = dict[TopicPartition, Problem]
"""Partitions that can't be read on, and why."""


class Stream:
    """A stream to one client."""

    def __init__(
        self,
        gateway: Gateway,
        holder: Holder,
        response: web.StreamResponse,
        transport: asyncio.Transport | None,
        topic: str,
        chosen: set[int] | None,
        cursor: Cursor,
        lens: Lens,
        *,
        is_sse: bool,
        most: int,
        until: dict[int, int] | None,
    ) -> None:
        self._gateway = gateway
        self._held = Held(holder, times=1)  # it is opened and sent portion by portion
        """What was fetched that is not shown yet."""
        self._response = response
        self._transport = transport
        self._topic = topic
        self._seen: Topic
        """The topic as each step finds it."""
        self._chosen = chosen
        self._cursor = cursor
        self._lens = lens
        self._is_sse = is_sse
        self._left = most
        self._until = until
        self._ahead = {index for index, end in (until or {}).items() if cursor.offsets.get(index, 0) > end}
        """Partitions whose cursor is behind the end that was told. Their leaders have not said yet that it may be."""
        self._form = (is_sse, *astuple(lens)) if until is None and most == ALL_THE_TIME else None
        """None: the stream has an end of its own, so it reads alone."""
        self._reading: dict[asyncio.Task[None], dict[TopicPartition, int]] = {}
        """What is read of several leaders."""
        self._stalled: asyncio.Task[None] | None = None
        """Sends what the client has not taken in time. Nothing is read for the client meanwhile."""
        self._unsent_bytes = 0
        """So much of that the transport does not have yet."""
        self._turn = asyncio.Lock()
        self._loop = asyncio.get_running_loop()
        self._said_s = self._loop.time()
        self._told = cursor.text

    async def run(self) -> None:
        """Send records until the client is gone or has all that it has asked for."""
        try:
            await self._send_all()
            await self._until_taken()
            await self._end("end", {"cursor": self._cursor.text})
        finally:
            if self._stalled is not None:
                self._stalled.cancel()
                self._stalled = None

    async def _send_all(self) -> None:
        patience = self._loop.time() + TIMEOUT_S
        try:
            while not self._is_over:
                try:
                    await self._until_taken()
                    await self._step()
                except (Problem, ClientFailure) as failure:
                    if not passes(failure) or self._loop.time() > patience:
                        raise
                    await asyncio.sleep(PAUSE_S)
                else:
                    patience = self._loop.time() + TIMEOUT_S
                await self._keep_alive()
        finally:
            for task in self._reading:
                task.cancel()
            await asyncio.gather(*self._reading, return_exceptions=True)

    @property
    def _is_over(self) -> bool:
        return self._left <= 0 or (self._until is not None and all(map(self._is_read, self._until)))

    def _is_read(self, index: int) -> bool:
        """Whether all was sent that was to be sent of this partition."""
        if self._until is None or index in self._ahead:
            return False
        return self._cursor.offsets.get(index, 0) >= self._until.get(index, 0)

    @property
    def _quiet_for_s(self) -> float:
        """How long the stream may still be silent."""
        return max(self._said_s + QUIET_S - self._loop.time(), 0.1) if self._until is None else 0.1

    def _partitions(self) -> list[int]:
        """The partitions to read. A partition that was added to the topic later is read from its start."""
        self._seen = self._gateway.same_topic(self._topic, self._cursor.topic_id)
        wanted = [index for index in self._seen.partitions if self._chosen is None or index in self._chosen]
        new = [index for index in wanted if index not in self._cursor.offsets]
        refuse_wide(self._topic, len(self._cursor.offsets) + len(new))
        for index in new:
            self._cursor.moved(index, 0)
        return [index for index in wanted if not self._is_read(index)]

    async def _step(self) -> None:
        """Read what is not being read, and wait until something has come of any leader."""
        by_leader: dict[int, dict[TopicPartition, int]] = {}
        busy = {partition for positions in self._reading.values() for partition in positions}
        leaderless: Problem | None = None
        for index in self._partitions():
            partition = TopicPartition(self._topic, index)
            if partition in busy:
                continue
            try:
                leader = self._gateway.leader(partition)
            except Problem as problem:
                leaderless = problem
                continue
            by_leader.setdefault(leader, {})[partition] = self._cursor.offsets[index]
        if len(by_leader) == 1 and not busy and leaderless is None:
            for node, positions in by_leader.items():
                await self._read(node, positions)
            return
        for node, positions in by_leader.items():
            self._reading[self._loop.create_task(self._read(node, positions))] = positions
        if not self._reading:
            if leaderless is not None:
                raise leaderless
            await asyncio.sleep(PAUSE_S)
            return
        wait_s = self._quiet_for_s if leaderless is None else LEADERLESS_S
        done, _ = await asyncio.wait(self._reading, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            del self._reading[task]
        failures = [failure for task in done if (failure := task.exception()) is not None]
        if failures:
            failure = failures[0]
            if isinstance(failure, Problem | ClientFailure):
                if self._reading and not passes(failure):
                    await asyncio.wait(self._reading, timeout=LAST_S)  # a client that comes back meets it again
                if self._is_over:
                    return
            raise failure

    async def _read(self, node: int, positions: dict[TopicPartition, int]) -> None:
        """Read what this leader has. What is behind damage may fill its answer each time, so its other partitions are
        read without the damaged ones before that is told.
        """
        damaged = found = await self._read_together(node, positions)
        while found and (others := [each for each in positions if each not in damaged]):
            here = {each: self._cursor.offsets[each.partition] for each in others}
            found = await self._read_alone(node, here, wait_s=0.0)
            damaged = damaged | found
        if self._stalled is None and not self._is_over:
            for problem in damaged.values():
                raise problem

    async def _read_alone(self, node: int, positions: dict[TopicPartition, int], wait_s: float) -> Damaged:
        pieces: list[Piece] = []
        try:
            pieces = await self._fetch(node, positions, wait_s)
            return await self._take_all(pieces, positions)
        finally:
            self._held.drop(pieces)

    async def _read_together(self, node: int, positions: dict[TopicPartition, int]) -> Damaged:
        """With other streams that read from the same place on, if this one has no end of its own."""
        if self._form is None:
            return await self._read_alone(node, positions, self._quiet_for_s)
        pieces: list[Piece] = []
        place, reading = self._place(node, positions), self._gateway.reading
        found = await reading.join(place, self._quiet_for_s)
        if found is not None:
            await self._take(found, node, positions)
            return {}
        found = []
        try:
            try:
                pieces = await self._fetch(node, positions, self._quiet_for_s)
                is_shared = sum(len(piece.data) for piece in pieces) <= SHARED_BYTES
                if is_shared and not any(piece.error for piece in pieces):
                    found = await self._shared(pieces, positions)
            finally:
                reading.leave(place, found)
            if not found:
                return await self._take_all(pieces, positions)
            await self._take(found, node, positions)
            return {}
        finally:
            self._held.drop(pieces)

    def _place(self, node: int, positions: dict[TopicPartition, int]) -> Place:
        assert self._form is not None
        return Place(self._cursor.topic_id, node, tuple(positions.items()), self._form)

    async def _fetch(self, node: int, positions: dict[TopicPartition, int], wait_s: float) -> list[Piece]:
        if not has_same_partitions(self._seen, self._gateway.topic(self._topic)):
            return []  # while this waited for its turn to read; what is to be read is looked at again
        wait_ms = int(1000 * wait_s)
        asked = node, positions, {self._topic: self._cursor.topic_id}, self._lens.isolation, self._held
        fetching = fetch(self._gateway, *asked, max_bytes=STREAM_BYTES, wait_ms=wait_ms)
        return await self._gateway.reading.fetched(self._topic, fetching)

    async def _shared(self, pieces: Sequence[Piece], positions: dict[TopicPartition, int]) -> list[Portion]:
        """What others that read here get as well; nothing if it is long, or not all of it can be read."""
        found = []
        size_bytes = 0
        for piece in pieces:
            try:
                async with aclosing(self._portions(piece, positions)) as portions:
                    async for portion in portions:
                        found.append(portion)
                        size_bytes += portion.told_bytes
                        if size_bytes > SHARED_TEXT_BYTES:
                            return []
            except Problem as problem:
                if passes(problem):
                    raise
                return []
        return found

    async def _portions(self, piece: Piece, positions: dict[TopicPartition, int]) -> AsyncGenerator[Portion, None]:
        """What the piece has to show. Nothing comes of a piece that leads no further: streams that read together would
        find that at their place again and again, within one turn of the loop.
        """
        lens, index = self._lens, piece.partition.partition
        line = self._line if lens.as_events or lens.text_numbers else _encode
        held, beside_bytes = self._held, self._cursor.bytes
        begin = behind = positions[piece.partition]
        held.hand_over()
        held.looked_at_bytes = size_bytes = 0
        ready: list[tuple[int, bytes]] = []
        async with aclosing(opened(self._gateway, piece, behind, lens, self._left, held)) as found:
            try:
                async for records, next_offset in found:
                    lines = [(record.offset, line(record)) for record in records[:-1]]
                    lines += [(record.offset, await self._whole_line(record, line)) for record in records[-1:]]
                    del records
                    held.hand_over()
                    some_bytes = sum([len(text) for _, text in lines]) + beside_bytes * len(lines)
                    if size_bytes + some_bytes < TOLD_BYTES:
                        ready += lines
                        size_bytes += some_bytes
                    else:
                        for each in lines:
                            ready.append(each)
                            size_bytes += len(each[1]) + beside_bytes
                            if size_bytes >= TOLD_BYTES:
                                yield Portion(index, ready, each[0] + 1, size_bytes)
                                ready, size_bytes = [], 0
                    behind = next_offset
                    if size_bytes >= GATHERED_BYTES:
                        yield Portion(index, ready, behind, size_bytes)
                        ready, size_bytes = [], 0
            except Problem:
                if behind > begin:
                    yield Portion(index, ready, behind, size_bytes)  # what is before the damage
                raise
        if behind > begin:
            yield Portion(index, ready, behind, size_bytes)

    async def _take_all(self, pieces: Sequence[Piece], positions: dict[TopicPartition, int]) -> Damaged:
        """Send the records of all pieces. What comes of many small batches is sent together. What is wrong with a piece
        is told once all else is sent: a client that comes back meets it again. Returns what is damaged.
        """
        found: list[Portion] = []
        size_bytes = 0
        damaged: Damaged = {}
        no_room: Problem | None = None
        for piece in pieces:
            if piece.error:
                continue
            self._ahead.discard(piece.partition.partition)
            try:
                async with aclosing(self._portions(piece, positions)) as portions:
                    async for portion in portions:
                        found.append(portion)
                        size_bytes += portion.told_bytes
                        if size_bytes >= GATHERED_BYTES:
                            if not await self._send(found):
                                return {}
                            found, size_bytes = [], 0
            except Problem as problem:
                # Its trace has this frame, and with it all pieces.
                if passes(problem):
                    no_room = problem.with_traceback(None)
                    break  # the others will find no room either
                damaged[piece.partition] = problem.with_traceback(None)
        if not await self._send(found):
            return {}
        if damaged := {each: problem for each, problem in damaged.items() if not self._is_read(each.partition)}:
            return damaged
        if no_room is not None:
            try:
                raise no_room
            finally:
                del no_room
        for piece in pieces:
            if piece.error and piece.error not in MOVED:
                raise await refused(self._gateway, piece.partition, piece, positions[piece.partition])
        if any(piece.error for piece in pieces):
            await asyncio.sleep(PAUSE_S)
        return {}

    async def _send(self, found: Sequence[Portion]) -> bool:
        """Send what was read. Returns whether the client takes more: what it does not take is read again later."""
        async with self._turn:
            if self._stalled is not None:
                return False
            await self._write_all([piece for portion in found for piece in self._told_of(portion)])
        return not self._is_over

    async def _take(self, found: Sequence[Portion] | None, node: int, positions: dict[TopicPartition, int]) -> None:
        """Send what was read together, and what was read after it meanwhile."""
        async with self._turn:
            if self._stalled is not None:
                return
            told: list[Buffer] = []
            size_bytes = 0
            while found and size_bytes < STREAM_BYTES:
                for portion in found:
                    some = self._told_together(portion)
                    told += some
                    size_bytes += sum(map(len, some))
                here = {partition: self._cursor.offsets[partition.partition] for partition in positions}
                found = self._gateway.reading.known(self._place(node, here))
            await self._write_all(told)

    def _told_together(self, portion: Portion) -> list[Buffer]:
        """The portion as it is sent, by a stream without an end of its own."""
        cursor = self._cursor.text
        if portion.told is not None and portion.told[0] == cursor:
            _, told, self._told = portion.told
            self._cursor.moved(portion.partition, portion.next_offset)
            return told
        told = self._told_of(portion)
        if told:
            portion.told = cursor, told, self._told
        return told

    def _told_of(self, portion: Portion) -> list[Buffer]:
        """The portion as it is sent, in one piece if it is short; the cursor is behind it then."""
        index = portion.partition
        lines = portion.lines[: self._left]
        told: list[Buffer] = []
        if lines:
            before, after = (each.encode() for each in self._cursor.around(index))
            if self._is_sse:
                tail = after + b"\nevent: record\ndata: "
                if portion.told_bytes >= ENCODED_AT_ONCE:
                    for offset, line in lines:
                        told += b"id: %b%d%b" % (before, offset + 1, tail), line, b"\n\n"
                else:
                    told = [
                        b"".join([b"id: %b%d%b%b\n\n" % (before, offset + 1, tail, line) for offset, line in lines])
                    ]
            else:
                name = CURSOR.encode() if self._lens.as_events else b"cursor"
                head, tail = b',"%b":"%b' % (name, before), after + b'"}\n'
                if portion.told_bytes >= ENCODED_AT_ONCE:
                    for offset, line in lines:
                        told += memoryview(line)[:-1], b"%b%d%b" % (head, offset + 1, tail)
                else:
                    told = [b"".join([b"%b%b%d%b" % (line[:-1], head, offset + 1, tail) for offset, line in lines])]
            self._cursor.moved(index, lines[-1][0] + 1)
            self._left -= len(lines)
            self._told = self._cursor.text
        if self._left > 0:
            self._cursor.moved(index, portion.next_offset)
        return told

    async def _whole_line(self, record: Shown, line: Callable[[Any], bytes]) -> bytes:
        """The line of the last record of a portion: it alone may be long."""
        if isinstance(record, EventOut):
            content, long = without_long(record.content)
            record = EventOut(record.offset, content)
        else:
            record, long = without_long(record)
        return await as_one([*in_pieces(line(record), long)]) if long else line(record)

    def _line(self, record: Shown) -> bytes:
        if isinstance(record, RecordOut):
            return with_text_numbers(record) if self._lens.text_numbers else _encode(record)
        if not self._is_sse:
            record.content.pop(CURSOR, None)  # the stream's own is added
        return _encode(record.content)

    async def _write_all(self, told: Sequence[Buffer]) -> None:
        size_bytes = sum(map(len, told))
        if size_bytes:
            await self._write(*([b"".join(told)] if size_bytes <= ENCODED_AT_ONCE else told))

    async def _write(self, *pieces: Buffer) -> None:
        transport = self._transport
        if transport is None:
            raise ConnectionResetError("the client is gone")
        size_bytes = sum(map(len, pieces))
        if size_bytes <= SMALL_BYTES and not transport.get_write_buffer_size() and self._stalled is None:
            for piece in pieces:
                await self._response.write(piece)  # does not wait, so no time need be set for it
        else:
            self._unsent_bytes += size_bytes
            sending = self._loop.create_task(self._give(pieces, self._stalled))
            sending.add_done_callback(_ended)
            try:
                with self._held.holder.given(self._unsent_bytes + self._held.bytes, transport):
                    await asyncio.wait([sending], timeout=STALLED_S)
            finally:  # also if what is read of other leaders has ended the stream: the cursor is behind this
                if not sending.done():
                    self._stalled = sending
            self._held.holder.hold(self._held.bytes)
            if sending.done():
                sending.result()
        self._said_s = self._loop.time()

    async def _give(self, pieces: Sequence[Buffer], before: asyncio.Task[None] | None) -> None:
        """Write these behind what is being written. The transport copies what the client does not take at once."""
        if before is not None:
            await before
        for piece in pieces:
            for at in range(0, len(piece), GIVEN_AT_ONCE):
                some = memoryview(piece)[at : at + GIVEN_AT_ONCE]
                self._unsent_bytes -= len(some)
                await self._response.write(some)

    async def _until_taken(self) -> None:
        """Wait until the client has taken most of what was sent."""
        stalled = self._stalled
        if stalled is None or self._transport is None:
            return
        unsent_bytes = self._unsent_bytes + self._transport.get_write_buffer_size()
        with self._held.holder.given(unsent_bytes, self._transport):
            async with asyncio.timeout(UNREAD_S):
                await stalled
        self._held.holder.hold(self._held.bytes)
        self._stalled = None

    async def _keep_alive(self) -> None:
        if self._loop.time() - self._said_s < QUIET_S or self._turn.locked():
            return
        async with self._turn:
            cursor = self._cursor.text
            if cursor == self._told:
                await self._write(b": still here\n\n" if self._is_sse else b"\n")
                return
            self._told = cursor
            if self._is_sse:
                await self._write(b"id: %s\nevent: progress\ndata: {}\n\n" % cursor.encode())
            else:
                await self._write(progress_line(self._cursor))

    async def _end(self, event: str, content: object) -> None:
        if self._is_sse:
            await self._write(b"event: %s\ndata: %s\n\n" % (event.encode(), _encode(content)))
        else:
            await self._write(_encode({event: content}) + b"\n")
        await self._until_taken()

    async def failed(self, problem: Problem) -> None:
        problem.more["cursor"] = self._cursor.text
        await self._end("error", msgspec.Raw(problem.body()))


def progress_line(cursor: Cursor) -> bytes:
    """How a stream of lines tells where its reader is without a record."""
    return _encode({"progress": True, "cursor": cursor.text}) + b"\n"


def passes(failure: Problem | ClientFailure) -> bool:
    """Whether waiting may help."""
    if isinstance(failure, Problem):
        return failure.slug == "not-now"
    return failure.kind is FailureKind.UNREACHABLE

"""Fetches stored batches from the leaders, and opens them into the records that a reader may see.

What always holds: a reader gets the records of a partition in order. With `read_committed` it gets no aborted or
undecided record, unless it asks for aborted ones. It gets markers only if it asks for them. The position moves past
records that were handed out or that must not be shown, and no further. A position is one in the topic of which its
reader knows the id: of a topic that was made again under the same name nothing is given there.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from msgspec import Raw

from isolation.read_filter import AbortedBatches
from isolation.read_view import Isolation
from log.batch import HEADER_BYTES, BatchHeader, CorruptBatch, Record, plain_payload, read_header, read_records
from log.compress import MAX_PLAIN_BYTES, UnpacksTooLarge, told_plain_bytes
from log.control import read_marker
from log.copies import COPIED_AT_ONCE, joined
from log.disk import DiskFault, FileSlice
from log.ids import TopicId, TopicPartition
from service.broker.fetch_sessions import SessionKey, WantedPartition
from service.broker.reading import Reading, ReadTerms
from service.broker.session import Session
from service.client.cluster import by_topic
from service.client.failures import ClientFailure
from service.turns import Turn, done_in_turns
from service.web.event_format import EventOut, long_event, shown_event
from service.web.gateway import CLIENT_ID, PAUSE_S, Gateway, not_yet
from service.web.holding import SMALL_BYTES, Holder, NoRoom
from service.web.long_values import SHOWN_AT_ONCE, shown_long
from service.web.problems import Problem, of_error
from service.web.records import (
    HEADERS_MAX,
    NUMBERS_AT_ONCE,
    RecordOut,
    long_numbers_as_text,
    plain_record,
    shown,
    shown_headers,
    shown_key,
)
from service.web.topics import at_time
from service.wire.error_codes import ErrorCode
from service.wire.messages import AbortedTransaction, FetchPartition, FetchRequest, FetchTopic

EARLIEST, LATEST = -2, -1
RECORDS_AT_ONCE = 1000
"""How many records are opened in one turn of the loop. A header counts as one more, and a batch as `OF_BATCH`."""
OF_BATCH = 4
LEADER_S = 2.0
"""So long a leader has for what it has, at least: one that is slow would never be read by clients that wait briefly."""
CROWDED_S = 0.5
"""The pause of a reader for which there is no room to wait at another broker: it asks again and again."""
STORED_AT_ONCE = 2 << 20
"""How many stored bytes are read in one turn of the loop: a millisecond, if the system has them in memory."""
UNPACKED_AT_ONCE = 512 << 10
"""A batch that may be longer when it is unpacked is unpacked beside the loop."""
PLAIN_TIMES = 8
"""How many times as long a packed batch is taken to be, if it does not tell; each time that it is longer, once more."""
READ_BYTES_MAX = 16 << 20
"""How much of records is read at once, or the first of them if that is longer."""
LOOKED_AT_BYTES_MAX = 128 << 20
"""How much of batches is unpacked at once, or the first of them if that is longer: a filter may pass none of it."""
LEAST_BYTES = 256 << 10
"""So much is asked for where there is no room for more, and waited for."""
HELD_TIMES = 3
"""What was fetched is there as stored, as records, and as their text when it was opened. Readers that took room for the
first alone would all be in the way of each other.
"""
PORTION_BYTES = 1 << 20
PLAIN_RECORDS_MAX, PLAIN_BYTES_MAX = 500, 128 << 10
"""A batch that is no longer than this is opened at once, if its records are plain."""
RECORD_BYTES = 200
"""What a record that was read holds beside its key and value, and their text as well: measured 394 together."""


Shown = RecordOut | EventOut


@dataclass(slots=True)
class Piece:
    """What a leader has of one partition from a position on."""

    partition: TopicPartition
    error: int
    log_start_offset: int = -1
    last_stable_offset: int = -1
    high_watermark: int = -1
    aborted: Sequence[AbortedTransaction] | None = None
    data: bytes = b""


@dataclass(slots=True)
class Held:
    """What a reading holds. There was room for all of it."""

    holder: Holder
    times: int = HELD_TIMES
    """How many times its length what was fetched is taken to hold."""
    stored_bytes: int = 0
    unpacked_bytes: int = 0
    """Of the batches that are being opened."""
    records_bytes: int = 0
    looked_at_bytes: int = 0
    """Of all batches that were unpacked. They are not held any more."""
    uncounted_bytes: int = 0
    """Of the last records, which are little so far. Those of many partitions may be much together."""
    looked_at: int = 0
    """How much was looked at in this turn of the loop: records, their headers, and their KiB."""
    numbers: Turn = field(default_factory=partial(Turn, NUMBERS_AT_ONCE))

    @property
    def bytes(self) -> int:
        return self._with()

    def _with(self, *, stored: int = 0, unpacked: int = 0, records: int = 0) -> int:
        """What would be held with so much more."""
        stored_bytes = self.stored_bytes + stored
        opened_bytes = self.unpacked_bytes + unpacked + 2 * (self.records_bytes + records)  # and as their text
        return max(stored_bytes + opened_bytes, self.times * stored_bytes)

    @property
    def is_full(self) -> bool:
        return self.records_bytes >= READ_BYTES_MAX

    @property
    def is_enough(self) -> bool:
        """Whether no other batch is opened."""
        return self.is_full or self.looked_at_bytes >= LOOKED_AT_BYTES_MAX

    async def take(self, *, stored: int = 0, unpacked: int = 0, records: int = 0) -> None:
        """Hold so much more."""
        needed_bytes = self._with(stored=stored, unpacked=unpacked, records=records)
        if needed_bytes > self.holder.bytes:
            await self.holder.take(needed_bytes)
        self.stored_bytes += stored
        self.unpacked_bytes += unpacked
        self.records_bytes += records
        self.holder.hold(self.bytes)  # what others have taken for the same request meanwhile counts as well

    def takes(self, *, stored: int) -> bool:
        """Hold so much more, if there is room now."""
        if not self.holder.takes(self._with(stored=stored)):
            return False
        self.stored_bytes += stored
        return True

    def leave(self, *, stored: int) -> None:
        """Hold so much less. This may come when the request has ended, so it never makes that more."""
        self.stored_bytes -= stored
        self.holder.hold(min(self.bytes, self.holder.bytes))

    async def count(self) -> None:
        """Hold the last records as well."""
        size_bytes, self.uncounted_bytes = self.uncounted_bytes, 0
        await self.take(records=size_bytes)

    def hand_over(self) -> None:
        """Hold the records no longer."""
        self.records_bytes = self.uncounted_bytes = 0

    async def breathe(self) -> None:
        """Let others have a turn, if enough was looked at in this one."""
        if self.looked_at >= RECORDS_AT_ONCE:
            self.looked_at = 0
            await asyncio.sleep(0)

    def drop(self, pieces: Iterable[Piece]) -> None:
        """Hold no longer what was fetched."""
        self.leave(stored=sum(len(piece.data) for piece in pieces))


@dataclass(slots=True)
class Lens:
    """Which records a reader wants to see, and in which form."""

    isolation: Isolation = Isolation.READ_COMMITTED
    control: bool = False
    aborted: bool = False
    form: str = "auto"
    key: bytes | None = None
    key_prefix: bytes | None = None
    header: tuple[str, bytes | None] | None = None
    with_producers: bool = False
    as_events: bool = False
    in_lines: bool = True
    """An event has no line breaks, not even those of its JSON data."""
    text_numbers: bool = False

    @property
    def shows_all(self) -> bool:
        """Whether every record passes."""
        return self.key is None and self.key_prefix is None and self.header is None

    @property
    def shows_plain(self) -> bool:
        """Whether every record without headers is shown as `plain_record` shows it."""
        is_auto = self.form == "auto" and not (self.as_events or self.text_numbers or self.with_producers)
        return is_auto and self.shows_all

    def passes(self, record: Record) -> bool:
        if self.key is not None and record.key != self.key:
            return False
        if self.key_prefix is not None and not (record.key or b"").startswith(self.key_prefix):
            return False
        if self.header is not None:
            name, content = self.header
            return any(each == name and content in (None, value) for each, value in record.headers)
        return True


def left_ms(deadline: float) -> int:
    """Whole milliseconds until the deadline. A leader can't be asked to wait for less than one. A reader that went on
    until the deadline itself would ask again and again during the last fraction.
    """
    return max(int((deadline - asyncio.get_running_loop().time()) * 1000), 0)


async def before_the_next(began_s: float, wait_ms: int) -> None:
    """The pause of a reader that was given nothing, and had asked to wait. A leader answers at once if it does not lead
    yet, or not any more; a reader that asked again at once would do nothing else until that is over.
    """
    due_s = min(wait_ms / 1000, PAUSE_S)
    is_early = asyncio.get_running_loop().time() - began_s < due_s / 2
    await asyncio.sleep(due_s if is_early else 0)


@dataclass(slots=True)
class Room:
    """Room for what is fetched. It is taken in the turn of the loop in which that is there."""

    held: Held
    waited_bytes: int
    """Of this there is room already, because it was waited for."""
    wanted_bytes: int = 0
    """What there was no room for."""

    def takes(self, size_bytes: int) -> bool:
        self.wanted_bytes = size_bytes
        return self.held.takes(stored=size_bytes - self.waited_bytes)


class Together:
    """Fetches from several leaders for one answer. Once one of them has something, none waits for room any more: what
    is held meanwhile would be in the way of other readers.
    """

    def __init__(self) -> None:
        self._has_some = False
        self._waits: dict[asyncio.Timeout, None] = {}

    def has(self, pieces: Iterable[Piece]) -> None:
        if any(piece.data for piece in pieces):
            self._has_some = True
            for each in self._waits:
                if not each.expired():
                    each.reschedule(0)

    async def take(self, held: Held, *, stored: int) -> None:
        if self._has_some:
            raise NoRoom
        try:
            async with asyncio.timeout(None) as patience:
                self._waits[patience] = None
                try:
                    await held.take(stored=stored)
                finally:
                    del self._waits[patience]
        except TimeoutError:
            raise NoRoom from None


async def fetch(
    gateway: Gateway,
    node: int,
    positions: Mapping[TopicPartition, int],
    ids: Mapping[str, TopicId],
    isolation: Isolation,
    held: Held,
    *,
    max_bytes: int,
    wait_ms: int,
    together: Together | None = None,
) -> list[Piece]:
    """What one leader has, as far as there is room. It is held, until the caller drops it. If there is nothing, this
    waits for so long, and holds nothing meanwhile. What comes and finds no room is dropped before that is waited for.
    `ids` are those of the topics.
    """
    once = _fetch_here if node == gateway.node_id else _fetch_there
    together = together or Together()
    room_bytes = 0
    try:
        while True:
            asked_bytes = min(max_bytes, max(held.holder.room_bytes // held.times, LEAST_BYTES))
            room = Room(held, room_bytes)
            found = await once(gateway, node, positions, isolation, room, asked_bytes, wait_ms, ids)
            if found is not None:
                room_bytes = 0
                together.has(found)
                return found
            wait_ms = 0
            if asked_bytes > LEAST_BYTES:
                max_bytes = LEAST_BYTES
            else:
                await together.take(held, stored=room.wanted_bytes - room_bytes)
                room_bytes = room.wanted_bytes
    finally:
        held.leave(stored=room_bytes)


async def fetch_all(
    gateway: Gateway,
    by_leader: Mapping[int, Mapping[TopicPartition, int]],
    ids: Mapping[str, TopicId],
    isolation: Isolation,
    held: Held,
    *,
    max_bytes: int,
    wait_ms: int,
    deadline: float,
) -> list[Piece]:
    """What these leaders have. An error of one of them, or that it has not answered in time, is told if no other one
    has records, or tells that a position is not in its log. Those that have are not kept waiting for the others until
    the deadline.
    """
    together = Together()
    how: dict[str, Any] = {"max_bytes": max_bytes, "wait_ms": wait_ms, "together": together}
    soon_s = asyncio.get_running_loop().time() + wait_ms / 1000 + LEADER_S
    until_s = max(deadline, soon_s)
    under_way: dict[asyncio.Timeout, None] = {}

    async def of_leader(node: int, positions: Mapping[TopicPartition, int]) -> list[Piece]:
        nonlocal until_s
        async with asyncio.timeout_at(until_s) as patience:
            under_way[patience] = None
            try:
                found = await fetch(gateway, node, positions, ids, isolation, held, **how)
            finally:
                del under_way[patience]
        if _has_some(found):
            until_s = soon_s
            for each in under_way:
                if not each.expired():
                    each.reschedule(soon_s)
        return found

    # All are waited for: what comes after the end of the request would be held for ever.
    work = (of_leader(node, positions) for node, positions in by_leader.items())
    found = await asyncio.gather(*work, return_exceptions=True)
    pieces = [piece for each in found if not isinstance(each, BaseException) for piece in each]
    passed_over = (Problem, ClientFailure, TimeoutError) if _has_some(pieces) else ()
    for node, each in zip(by_leader, found, strict=True):
        if isinstance(each, BaseException) and not isinstance(each, passed_over):
            held.drop(pieces)
            if isinstance(each, TimeoutError):
                raise Problem("not-now", f"broker {node} does not answer in time") from None
            raise each
    return pieces


def _has_some(pieces: Iterable[Piece]) -> bool:
    return any(piece.data or piece.error == ErrorCode.OFFSET_OUT_OF_RANGE for piece in pieces)


async def _fetch_there(
    gateway: Gateway,
    node: int,
    positions: Mapping[TopicPartition, int],
    isolation: Isolation,
    room: Room,
    max_bytes: int,
    wait_ms: int,
    ids: Mapping[str, TopicId],
) -> list[Piece] | None:
    """What another broker has. None: there is no room for it."""
    topics = [
        FetchTopic(
            name,
            ids[name],
            [
                FetchPartition(each.partition, fetch_offset=positions[each], partition_max_bytes=max_bytes)
                for each in of_topic
            ],
        )
        for name, of_topic in by_topic(positions).items()
    ]
    request = FetchRequest(
        max_wait_ms=wait_ms, min_bytes=1, max_bytes=max_bytes, isolation_level=isolation.value, topics=topics
    )
    waits_there = wait_ms > 0 and gateway.may_wait_at(node)
    if not waits_there:
        request.max_wait_ms = 0
    answer = await gateway.ask(node, request, wait_s=wait_ms / 1000 if waits_there else 0.0)
    if not room.takes(sum(len(data.records or b"") for topic in answer.responses for data in topic.partitions)):
        return None
    names = {topic.topic_id: topic.topic for topic in topics}
    pieces = [
        Piece(
            TopicPartition(topic.topic or names.get(topic.topic_id, ""), data.partition_index),
            *(not_yet(data.error_code), data.log_start_offset, data.last_stable_offset, data.high_watermark),
            data.aborted_transactions,
            bytes(data.records or b""),  # type: ignore[arg-type]
        )
        for topic in answer.responses
        for data in topic.partitions
    ]
    if wait_ms > 0 and not waits_there and not any(piece.data or piece.error for piece in pieces):
        await asyncio.sleep(min(wait_ms / 1000, CROWDED_S))
    return pieces


async def _fetch_here(
    gateway: Gateway,
    _: int,
    positions: Mapping[TopicPartition, int],
    isolation: Isolation,
    room: Room,
    max_bytes: int,
    wait_ms: int,
    ids: Mapping[str, TopicId],
) -> list[Piece] | None:
    """What this broker has. None: there is no room for it. It is not read then."""
    wanted: dict[SessionKey, WantedPartition] = {
        (ids[each.topic], each.partition): WantedPartition(each.partition, offset, max_bytes, -1, -1, -1)
        for each, offset in positions.items()
    }
    terms = ReadTerms(isolation, 1, max_bytes, wait_ms)
    reading = Reading(gateway.partitions, Session(CLIENT_ID, 0), terms, wanted)
    try:
        if not await reading.read() and wait_ms > 0:
            await reading.wait()
        size_bytes = sum(len(each.records or b"") for each in reading.found.values())
        if not room.takes(size_bytes):
            return None
        pieces = await _pieces(gateway, reading, {topic_id: name for name, topic_id in ids.items()})
        room.held.leave(stored=size_bytes - sum(len(piece.data) for piece in pieces))  # a disk may have failed
        return pieces
    finally:
        reading.caller.unpin()


async def _pieces(gateway: Gateway, reading: Reading, names: Mapping[str | bytes, str]) -> list[Piece]:
    """What was found. A long one is read in a thread."""
    pieces = []
    pinned = [found.records for found in reading.found.values() if found.records is not None]
    for each in pinned:
        each.pin()
    try:
        for (topic_id, index), found in reading.found.items():
            piece = Piece(
                TopicPartition(names[topic_id], index),
                *(not_yet(found.error), found.log_start_offset, found.last_stable_offset, found.high_watermark),
                found.aborted,
            )
            if (stored := found.records) is not None:
                try:
                    if len(stored) > STORED_AT_ONCE:
                        piece.data = await stored.in_thread(gateway.env.blocking, FileSlice.read)
                    else:
                        piece.data = stored.read()
                except DiskFault as fault:
                    partition = gateway.partitions.get(piece.partition)
                    piece.error = ErrorCode.KAFKA_STORAGE_ERROR if partition is None else partition.unreadable(fault)
            pieces.append(piece)
    finally:
        for each in pinned:
            each.unpin()
    return pieces


async def opened(
    gateway: Gateway, piece: Piece, offset: int, lens: Lens, most: int, held: Held
) -> AsyncGenerator[tuple[list[Shown], int], None]:
    """The records to show from `offset` on, in portions, `most` in all, and until it is enough that is held or was
    unpacked. Each portion comes with the next position.
    """
    aborted = AbortedBatches((each.producer_id, each.first_offset) for each in piece.aborted or ())
    view = memoryview(piece.data)
    at = unpacked_bytes = 0
    place, at_offset = offset, -1  # behind the last whole batch; of the last record
    shows_all, text_numbers, partition = lens.shows_all, lens.text_numbers, piece.partition
    shows_plain = lens.shows_plain
    try:
        while at + HEADER_BYTES <= len(view) and most > 0 and not held.is_enough:
            await held.breathe()
            held.looked_at += OF_BATCH
            header = read_header(view, at)
            if at + header.size_bytes > len(view):
                return
            batch = view[at : at + header.size_bytes]
            at += header.size_bytes
            is_aborted = aborted.covers(header, batch)
            if (header.is_control and not lens.control) or (is_aborted and not lens.aborted):
                place = header.next_offset
                yield [], place
                continue
            held.unpacked_bytes -= unpacked_bytes
            unpacked_bytes, payload = 0, None
            if header.codec:
                payload = await unpacked(gateway, batch, header, held)
                unpacked_bytes = len(payload)
                held.looked_at_bytes += unpacked_bytes
            elif len(batch) > COPIED_AT_ONCE:
                payload = await done_in_turns(joined([batch[HEADER_BYTES:]]))
            control = None
            if header.is_control:
                kind = read_marker(batch).type
                control = "unknown" if kind is None else kind.name.lower()
            found: list[Shown] | None = None
            records: Iterable[Record] = ()
            if shows_plain and control is None and not is_aborted and offset <= header.base_offset:
                found = _plain_records(batch, header, payload, partition, most, held)
            if found is None:
                found, records = [], read_records(batch, header, payload=payload, most_headers=HEADERS_MAX + 1)
            else:
                most -= len(found)
            for record in records:
                at_offset, _, key, value, headers = record
                looked_at = 1 + len(headers)
                if at_offset < offset:
                    held.looked_at += looked_at
                    await held.breathe()
                    continue
                if shows_all or control is not None or lens.passes(record):
                    if value is not None and len(value) > SHOWN_AT_ONCE and control is None:
                        out = await _shown_in_turns(partition, record, header, lens, is_aborted)
                    else:
                        out = shown_record(partition, record, header, lens, control, is_aborted)
                    if text_numbers:
                        await _make_text_numbers(out, held.numbers)
                    found.append(out)
                    size_bytes = RECORD_BYTES + len(key or b"") + len(value or b"")
                    if headers:
                        size_bytes += sum(RECORD_BYTES + len(name) + len(content or b"") for name, content in headers)
                    held.uncounted_bytes += size_bytes
                    looked_at += size_bytes >> 10
                    most -= 1
                held.looked_at += looked_at
                if most == 0 or held.looked_at >= RECORDS_AT_ONCE or held.uncounted_bytes >= PORTION_BYTES:
                    await held.count()
                    yield found, at_offset + 1
                    found = []
                    if most == 0 or held.is_full:
                        return
                    await held.breathe()
            if held.uncounted_bytes >= SMALL_BYTES:
                await held.count()
            place = header.next_offset
            yield found, place
    except CorruptBatch as failure:
        raise Problem(
            "server-error", f"{piece.partition} is damaged at offset {max(place, at_offset + 1)}: {failure}",
            error=ErrorCode.CORRUPT_MESSAGE,
        ) from None  # fmt: skip
    finally:
        held.unpacked_bytes -= unpacked_bytes


def _plain_records(
    batch: memoryview, header: BatchHeader, payload: bytes | None, partition: TopicPartition, most: int, held: Held
) -> list[Shown] | None:
    """All records of a short batch, in two thirds of the time that it takes to look at each for itself. None: it is not
    short, or a record is not plain, or damaged.
    """
    size_bytes = header.size_bytes if payload is None else len(payload)
    if size_bytes > PLAIN_BYTES_MAX or header.record_count > min(PLAIN_RECORDS_MAX, most):
        return None
    topic, index = partition
    found: list[Shown] = []
    try:
        for offset, timestamp, key, value, headers in read_records(batch, header, payload=payload, most_headers=1):
            if headers:
                return None
            found.append(plain_record(topic, index, offset, timestamp, key, value))
    except CorruptBatch:
        return None
    held.looked_at += len(found) // 2 + (size_bytes >> 10)
    held.uncounted_bytes += RECORD_BYTES * len(found) + size_bytes
    return found


async def unpacked(gateway: Gateway, batch: memoryview, header: BatchHeader, held: Held) -> bytes:
    """The batch's records, for which there is room. Raises a problem if there is none."""
    told_bytes = told_plain_bytes(header.codec, batch[HEADER_BYTES:]) or PLAIN_TIMES * len(batch)
    limit_bytes = min(told_bytes, MAX_PLAIN_BYTES)
    while True:
        await held.take(unpacked=limit_bytes)
        payload = None
        try:
            unpack = partial(plain_payload, batch, header, limit_bytes=limit_bytes)
            payload = await gateway.env.blocking(unpack) if limit_bytes > UNPACKED_AT_ONCE else unpack()
        except CorruptBatch as failure:
            if not isinstance(failure.__cause__, UnpacksTooLarge) or limit_bytes == MAX_PLAIN_BYTES:
                raise
        finally:
            held.unpacked_bytes -= limit_bytes - (0 if payload is None else len(payload))
        if payload is not None:
            return payload
        limit_bytes = min(PLAIN_TIMES * limit_bytes, MAX_PLAIN_BYTES)


def shown_record(
    partition: TopicPartition, record: Record, header: BatchHeader, lens: Lens, control: str | None, is_aborted: bool
) -> Shown:
    if lens.as_events:
        return shown_event(partition, record, in_lines=lens.in_lines)
    offset, timestamp, key, value, headers = record
    out = RecordOut(*partition, offset, timestamp)
    if control is not None:
        out.control = control
    else:
        if key is not None:
            shown_key(key, out)
        shown(value, lens.form, out)
        if headers:
            out.headers = shown_headers(headers[:HEADERS_MAX])
            out.headers_cut = len(headers) > HEADERS_MAX
    if is_aborted:
        out.aborted = True
    if lens.with_producers and header.producer_id >= 0:
        out.producer_id, out.producer_epoch = header.producer_id, header.producer_epoch
    return out


async def _shown_in_turns(
    partition: TopicPartition, record: Record, header: BatchHeader, lens: Lens, is_aborted: bool
) -> Shown:
    """A record with a long value."""
    value = record.value
    assert value is not None
    if lens.as_events:
        return await done_in_turns(long_event(partition, record, in_lines=lens.in_lines))
    out = shown_record(partition, record._replace(value=None), header, lens, None, is_aborted)
    assert isinstance(out, RecordOut)
    await done_in_turns(shown_long(value, lens.form, out))
    return out


async def _make_text_numbers(out: Shown, turn: Turn) -> None:
    """Make strings of the long numbers that stand in a record's value, or in an event."""
    if isinstance(out, RecordOut):
        if isinstance(out.value, Raw):
            out.value = Raw(await done_in_turns(long_numbers_as_text(bytes(out.value), turn)))
        return
    for name, content in out.content.items():
        if isinstance(content, Raw):
            out.content[name] = Raw(await done_in_turns(long_numbers_as_text(bytes(content), turn)))


async def refused(gateway: Gateway, partition: TopicPartition, piece: Piece, offset: int) -> Problem:
    """The problem for a reader whose leader can give nothing from this offset on."""
    where = f"{partition.topic} partition {partition.partition}"
    if piece.error != ErrorCode.OFFSET_OUT_OF_RANGE:
        return of_error(piece.error, where)
    earliest = await at_time(gateway, partition, EARLIEST, 0)
    latest = await at_time(gateway, partition, LATEST, 0)
    detail = f"{where} holds {earliest} to {latest}, not {offset}"
    return of_error(piece.error, detail, earliest=earliest, latest=latest)

"""Clients whose requests or answers do not end: lines that are written as they come, and a topic that is followed.

Both are cut off at any byte. The writer sends again what nobody has reported on, as a new line, because a line has no
key; each line that was sent may stand there once at most. The follower goes on at its last cursor, at any broker. What
it is given between one cursor and the next is judged as a read of each partition: every committed record, once, in
order.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from log.ids import TopicPartition
from service.client.partitioner import partition_for_key
from tests.sim.history import UNTOLD, CommittedRead, Outcome, Record, Transaction, Write
from tests.sim.plan import INPUT, LEDGER, OUTPUT
from tests.sim.web_clients import WEB_PORT, Told, WebActor, record_of
from tests.sim.workload import ANSWER_WITHIN, SETTLE_WITHIN, Clients, Unanswered

TOPICS = (INPUT, OUTPUT, LEDGER)
LINES, EVENTS = "application/x-ndjson", "text/event-stream"
AS_EVENTS = f"application/cloudevents+json, {LINES}"
NO_TIME = -1


class Exchange:
    """One request whose body goes, and whose answer comes, in pieces."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.status = 0

    @classmethod
    async def begin(cls, broker: str, method: str, path: str, *headers: str) -> Exchange:
        try:
            async with asyncio.timeout(ANSWER_WITHIN):
                exchange = cls(*await asyncio.open_connection(broker, WEB_PORT))
        except (OSError, TimeoutError) as error:
            raise Unanswered(repr(error)) from error
        exchange._writer.write("\r\n".join([f"{method} {path} HTTP/1.1", "Host: b", *headers, "\r\n"]).encode())
        return exchange

    def send(self, piece: bytes) -> None:
        self._writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))

    def end(self) -> None:
        self._writer.write(b"0\r\n\r\n")

    async def lines(self) -> AsyncIterator[bytes]:
        """Whole lines of an answer of status 200. Nothing, if it is another one."""
        if not self.status:
            head = (await self._reader.readuntil(b"\r\n\r\n")).decode()
            self.status = int(head.split()[1])
        rest = b""
        while self.status == 200:
            size = int(await self._reader.readuntil(b"\r\n"), 16)
            piece = await self._reader.readexactly(size + 2)
            if not size:
                return
            *whole, rest = (rest + piece[:-2]).split(b"\n")
            for line in whole:
                yield line

    def cut(self) -> None:
        self._writer.transport.abort()


@dataclass(slots=True)
class Line:
    """A line of a stream in: the bytes and what is known of it."""

    content: bytes
    txn: Transaction
    write: Write
    told: bool = False


class LineWriter(WebActor):
    def __init__(self, clients: Clients, name: str, brokers: Sequence[str], told: Told) -> None:
        super().__init__(clients, name, brokers, told)
        self._brokers = brokers

    async def turn(self) -> None:
        await asyncio.sleep(2 * self.chance.random())
        wanted = self.chance.randrange(1, 20)
        for _ in range(self.chance.choice((1, 2, 5))):
            done = await self._stream(wanted, self.chance.choice((None, *TOPICS)))
            wanted -= done
            if wanted <= 0:
                return

    async def settle(self) -> None:
        deadline = self.clients.now + 4 * SETTLE_WITHIN
        while self.clients.now < deadline:
            with suppress(Unanswered):
                if await self._stream(3, OUTPUT, is_cut=False) == 3:
                    return
            await asyncio.sleep(0.5)
        self.history.stuck.append(f"{self.name} can't write lines")

    async def _stream(self, count: int, topic: str | None, *, is_cut: bool | None = None) -> int:
        """How many lines of a new stream are written for sure."""
        chance = self.chance
        is_cut = chance.random() < 0.4 if is_cut is None else is_cut
        is_plain = topic is not None and chance.random() < 0.5
        number = self.clients.world.identity()
        lines = [self._line(number, topic, is_plain) for _ in range(count)]
        body = b"".join(each.content for each in lines)
        sent = chance.choice(self._cuts(body, lines)) if is_cut else len(body)
        path = "/v1/records" if topic is None else f"/v1/topics/{topic}/records"
        exchange = await Exchange.begin(
            chance.choice(self._brokers), "POST", path, f"Content-Type: {LINES}", "Transfer-Encoding: chunked"
        )
        self._leave(lines, body, sent)
        reading = asyncio.ensure_future(self._hear(exchange, lines))
        try:
            at = 0
            while at < sent:
                size = min(chance.choice((1, 40, 1000, 10_000)) + chance.randrange(20), sent - at)
                exchange.send(body[at : at + size])
                at += size
                if chance.random() < 0.5:
                    await asyncio.sleep(0.2 * chance.random())
            if is_cut:
                await asyncio.sleep(chance.choice((0.0, 0.05, 1.0)) * chance.random())
            else:
                exchange.end()
                await asyncio.wait([reading], timeout=10 * ANSWER_WITHIN)
        finally:
            exchange.cut()
            reading.cancel()
            with suppress(asyncio.CancelledError, OSError, EOFError):
                await reading
        return sum(each.txn.outcome is Outcome.OK for each in lines)

    def _line(self, stream: int, topic: str | None, is_plain: bool) -> Line:
        chance, topics = self.chance, self.history.topics
        (value,) = self.values(1, f"{self.name}l{stream}")
        name = topic or chance.choice(TOPICS)
        key = b"k%d" % chance.randrange(6) if name == LEDGER or is_plain or chance.random() < 0.3 else None
        if is_plain:
            assert key is not None
            content = {"key": key.decode(), "value": value.decode()}
            value = json.dumps(value.decode()).encode()
            partition = TopicPartition(name, partition_for_key(key, topics[name].partitions))
        else:
            partition = TopicPartition(name, chance.randrange(topics[name].partitions))
            content = record_of(partition, key, value)
        txn = self.open_transaction(f"{self.name}-stream-{stream}")
        txn.transactional_id = f"{self.name}-stream-{stream}"  # its lines stay in order
        (write,) = self.note(txn, [(partition, key, value)])
        write.connection = -stream
        return Line(json.dumps(content).encode() + b"\n", txn, write)

    @staticmethod
    def _cuts(body: bytes, lines: Sequence[Line]) -> list[int]:
        """Where the stream may be cut: anywhere, and as often behind a line that lacks nothing but its end."""
        ends, at = [], 0
        for each in lines:
            at += len(each.content)
            ends.append(at - 1)
        return [*ends, *(len(body) * part // len(lines) for part in range(len(lines)))]

    def _leave(self, lines: Sequence[Line], body: bytes, sent: int) -> None:
        """What does not leave as a whole line is not written."""
        at = 0
        for each in lines:
            at += len(each.content)
            each.txn.began = each.txn.end_invoked = each.write.invoked = self.clients.now
            if at <= sent:
                each.txn.committed_asked, each.txn.outcome = True, Outcome.UNKNOWN
            else:
                each.write.outcome = Outcome.FAILED

    async def _hear(self, exchange: Exchange, lines: Sequence[Line]) -> None:
        number = 0
        async for told in exchange.lines():
            report = json.loads(told)
            if report["line"] != number:
                self.wrong(f"line {number} is next, and told is {report}")
            problem = report.get("problem")
            if number < len(lines) and problem is None:
                line = lines[number]
                line.told = True
                where = TopicPartition(report.get("topic", line.write.partition.topic), report["partition"])
                if where != line.write.partition:
                    self.wrong(f"{line.content!r} is told to be in {where}")
                self.take(line.txn, [line.write], [{"topic": where.topic, **report}])
            elif number < len(lines) and problem["outcome"] == "none":
                lines[number].txn.outcome = Outcome.FAILED
            number += 1


@dataclass(frozen=True, slots=True)
class Event:
    """What a stream has told: a cursor, and a record unless it only says how far it is."""

    cursor: dict[int, int]
    partition: int = -1
    record: Record | None = None


class Follower(WebActor):
    """Follows topics, in each form, and goes on at its cursor when it was cut off."""

    def __init__(self, clients: Clients, name: str, brokers: Sequence[str], told: Told) -> None:
        super().__init__(clients, name, brokers, told)
        self._brokers = brokers
        self._places: dict[str, dict[int, int]] = {}
        self._cursors: dict[str, str] = {}
        """The text of each place."""

    async def turn(self) -> None:
        await asyncio.sleep(self.chance.random())
        topic = self.chance.choice(TOPICS)
        if self.chance.random() < 0.05:
            self._places.pop(topic, None)
        await self._follow(topic, self.chance.choice((0.3, 2.0, 20.0)) * self.chance.random())

    async def settle(self) -> None:
        deadline = self.clients.now + 4 * SETTLE_WITHIN
        for topic in TOPICS:
            while not await self._is_read_to_its_end(topic):
                if self.clients.now > deadline:
                    self.history.stuck.append(f"{self.name} can't follow {topic} to its end")
                    return
                await asyncio.sleep(0.5)

    async def _is_read_to_its_end(self, topic: str) -> bool:
        with suppress(Unanswered):
            return await self._follow(topic, ANSWER_WITHIN, "&until=end")
        return False

    async def _follow(self, topic: str, for_s: float, more: str = "") -> bool:
        """Whether the stream has come to an end of its own."""
        chance = self.chance
        accept = chance.choice((EVENTS, LINES, AS_EVENTS))
        place = self._places.get(topic)
        path = f"/v1/topics/{topic}/stream?values=base64{more}"
        headers = [f"Accept: {accept}"]
        if place is None:
            path += "&from=earliest"
        elif chance.random() < 0.5:
            headers.append(f"Last-Event-ID: {self._cursors[topic]}")
        else:
            path += f"&cursor={self._cursors[topic]}"
        begun = self.clients.now
        exchange = await Exchange.begin(chance.choice(self._brokers), "GET", path, *headers)
        try:
            async with asyncio.timeout(for_s):
                async for event in self._events(exchange, topic, is_sse=accept == EVENTS):
                    self._note(topic, place or {}, event, begun)
                    place = self._places[topic] = event.cursor
        except (OSError, EOFError, TimeoutError):
            return False
        finally:
            exchange.cut()
        if exchange.status != 200:
            if exchange.status not in (404, 429, 503):
                self.wrong(f"a stream of {topic} from {place} was answered with {exchange.status}")
            raise Unanswered(f"status {exchange.status}")
        return self._has_ended

    _has_ended = False

    async def _events(self, exchange: Exchange, topic: str, *, is_sse: bool) -> AsyncIterator[Event]:
        self._has_ended = False
        kind, cursor = "", ""
        async for line in exchange.lines():
            if is_sse:
                name, _, content = line.decode().partition(": ")
                if name == "id":
                    cursor = content
                elif name == "event":
                    kind = content
                if name != "data":
                    continue
                told = json.loads(content)
            elif line:
                told = json.loads(line)
                kind = next((each for each in ("end", "error", "progress") if each in told), "record")
                cursor = told.get("cursor") or told.get("oncelogcursor") or ""
                told = told.get(kind, told)
            else:
                continue
            if kind == "end":
                self._has_ended = True
            elif kind == "error":
                if told["type"] != "/problems/not-now":
                    self.wrong(f"a stream of {topic} ends with {told}")
            else:
                self._cursors[topic] = cursor
                yield _event(topic, cursor, told if kind == "record" else None)

    def _note(self, topic: str, before: dict[int, int], event: Event, begun: float) -> None:
        held, now = self.plan.visible_held, self.clients.now
        for index, offset in event.cursor.items():
            start = before.get(index, 0)
            records = (event.record,) if event.record is not None and index == event.partition else ()
            if offset < start:
                self.wrong(f"a stream of {topic} goes back from {before} to {event.cursor}")
            if offset != start or records:
                partition = TopicPartition(topic, index)
                self.history.committed_reads.append(
                    CommittedRead(self.name, partition, start, offset, records, UNTOLD, UNTOLD, held, begun, now)
                )


def _event(topic: str, cursor: str, told: dict[str, Any] | None) -> Event:
    place = {
        int(index): int(offset)
        for index, _, offset in (each.partition(":") for each in cursor.partition("@")[2].split(","))
    }
    if told is None:
        return Event(place)
    if "specversion" not in told:
        value = base64.b64decode(told["value_base64"]) if "value_base64" in told else None
        key = told["key"].encode() if told.get("key") is not None else None
        return Event(place, told["partition"], Record(told["offset"], told["timestamp"], key, value))
    told.pop("oncelogcursor", None)
    index = int(told["source"].rpartition("/")[2])
    key = told["partitionkey"].encode() if "partitionkey" in told else None
    if told["type"] != "oncelog.record":  # it came as an event, which does not tell its record's time
        content = json.dumps(told, separators=(",", ":")).encode()
        return Event(place, index, Record(place[index] - 1, NO_TIME, key, content))
    time_ms = round(datetime.fromisoformat(told["time"]).timestamp() * 1000)
    value = None
    if "data" in told:
        is_json = told["datacontenttype"] == "application/json"
        value = (json.dumps(told["data"]) if is_json else told["data"]).encode()
    return Event(place, index, Record(int(told["id"]), time_ms, key, value))

"""Requests that are safe to repeat: the Idempotency-Key header, as the IETF's draft has it.

The record of a key has the request and its answer. It is written to an internal topic, in the same transaction as the
data. A key belongs to one partition of that topic, and the partition's leader serves every request with the key; other
brokers forward to it. So the key's record exists if and only if the data does, whatever dies in between.

What always holds: while a key is remembered, at most one request with it is applied. A repeated request gets the first
one's answer. While the first is still being written, it is told to wait (409); if it is another request, it is refused
(422). A leader answers for keys only when everything written before its leadership is decided, and the leader has read
it. Where stored bytes have rotted it answers for none (503): one of the keys in them may be what is asked for.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from aiohttp import web

from isolation.read_filter import AbortedBatches
from log.batch import BatchHeader, CorruptBatch, NewRecord, Record, checksum_ok, read_records, split
from log.disk import DiskFault, FileSlice
from log.ids import TopicPartition
from service.broker.internal_topics import HTTP_KEYS
from service.broker.partition import Partition
from service.turns import FREED_A_TURN, breathe
from service.web.answers import sha256, sha256_of
from service.web.forwarding import OF_EVENTS, RECORD_HEADER, forward, headers_of_records, media_of
from service.web.gateway import PAUSE_S, TIMEOUT_S, Gateway
from service.web.problems import Problem
from service.web.routing import IDEMPOTENCY_KEY, JSON, REPLAYED

if TYPE_CHECKING:
    from service.broker.session import Session
    from service.web.producing import BatchOut, PlacedRecords, Seal

IS_NEW = web.RequestKey("is_new", bool)
"""A request with a key has this once it is known that none was applied with that key."""
KEY_MAX = 255
KEYS_MAX = 1_000_000
"""How many keys are remembered for one partition of the topic, in 300 bytes of memory each. Beyond that new keys are
refused; no remembered key is forgotten early.
"""
FORGOTTEN_AT_ONCE = 200
"""How many old keys each request forgets at most. It brings one key, so they are all forgotten in time."""
LEARNT_AT_ONCE_BYTES = 64 << 10
"""How much is read of the stored keys in one turn of the loop: some hundred of them, in a few milliseconds."""
UNPACKED_AT_ONCE_BYTES = 64 << 10
"""Longer batches of keys are unpacked beside the loop."""
_STRING = r'"((?:[\x20\x21\x23-\x5b\x5d-\x7e]|\\["\\])*)"'
_BARE = r"([A-Za-z0-9._~:/+*-]+)"
_BARE_ITEM = (
    r"@?-?[0-9]{1,15}(?:\.[0-9]{1,3})?"  # a number, or a date
    r"|[A-Za-z*][A-Za-z0-9!#$%&'*+.^_`|~:/-]*"  # a token
    r'|%?"(?:[\x20\x21\x23-\x5b\x5d-\x7e]|\\["\\])*"'  # a string, also with characters beyond ASCII
    r"|:[A-Za-z0-9+/=]*:"  # bytes
    r"|\?[01]"  # a truth value
)
_PARAMETERS = rf"(?:; *[a-z*][a-z0-9_.*-]*(?:=(?:{_BARE_ITEM}))?)*"
_ESCAPED = re.compile(r"\\(.)")
_ITEM = re.compile(rf" *(?:{_STRING}{_PARAMETERS}|{_BARE}) *")
Digest = bytes


class Remembered(msgspec.Struct):
    """The value of a key's record."""

    fingerprint: str
    answer: msgspec.Raw


_remembered = msgspec.json.Decoder(Remembered)
_encode = msgspec.json.Encoder().encode


def key_of(request: web.Request) -> str:
    given = request.headers.getall(IDEMPOTENCY_KEY)
    if len(given) != 1:
        raise Problem("bad-key", "one key is enough")
    return read_key(given[0])


def read_key(given: str) -> str:
    """The key: a string of structured fields (RFC 9651), also accepted without quotes. Parameters, none of which means
    anything yet, are passed over behind quotes; a key without them has none, so that no two such keys are one.
    """
    item = _ITEM.fullmatch(given)
    if item is None:
        raise Problem("bad-key", 'a key is a string in double quotes: "8e03978e-40d5-43e8-bc93-6894a57f9324"')
    key = item[2] if item[1] is None else _ESCAPED.sub(r"\1", item[1]) if "\\" in item[1] else item[1]
    if not 0 < len(key) <= KEY_MAX:
        raise Problem("bad-key", f"a key has 1 to {KEY_MAX} characters")
    return key


def asked_by(request: web.Request) -> bytes:
    """All that tells this request from another one, but for the body."""
    given = headers_of_records(request).items()
    # The names of a record's headers are written as they are, and in their order. Those of an event tell nothing so.
    of_record = [f"{name}:{content}\n" for name, content in given if name.lower().startswith(RECORD_HEADER)]
    of_event = sorted(f"{name.lower()}:{content}\n" for name, content in given if name.lower().startswith(OF_EVENTS))
    return asked_for(request.method, request.path_qs, media_of(request), *of_record, *of_event)


def asked_for(method: str, path: str, media: str, *headers: str) -> bytes:
    return "".join((f"{method}\n{path}\n{media}\n", *headers)).encode("utf-8", "surrogateescape")


class Once(NamedTuple):
    """The answer to a request with a key."""

    body: bytes
    is_replayed: bool


class Keys:
    """All keys that this broker answers for."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._memories: dict[int, Memory] = {}
        self._under_way: dict[Digest, str] = {}
        """The fingerprints of requests that are being written, by key."""

    def count(self) -> dict[str, int]:
        """How many keys are known here, by their state. Partitions of which no key was asked for are not known yet."""
        led = (memory for memory in self._memories.values() if memory.partition.is_leading)
        return {"in_flight": len(self._under_way), "remembered": sum(len(memory.offsets) for memory in led)}

    async def serve(
        self, request: web.Request, body: bytes, write: Callable[[Seal], Awaitable[BatchOut]]
    ) -> web.StreamResponse:
        gateway, key = self._gateway, key_of(request)
        leader = await gateway.coordinator(HTTP_KEYS, key)
        if leader != gateway.node_id:
            self._drop_not_led()
            return await forward(gateway, leader, request, body)

        async def write_new(seal: Seal) -> BatchOut:
            request[IS_NEW] = True
            return await write(seal)

        answer = await self.once(key, asked_by(request), body, write_new)
        headers = {REPLAYED: "true"} if answer.is_replayed else None
        return web.Response(body=answer.body, content_type=JSON, headers=headers)

    async def once(self, key: str, asked: bytes, body: bytes, write: Callable[[Seal], Awaitable[BatchOut]]) -> Once:
        """Write what is asked for, or find what was answered. This broker leads the partition of the key."""
        gateway = self._gateway
        fingerprint = await sha256_of(gateway, asked, body)
        memory = await self._memory(key)
        memory.forget_old(gateway)
        digest = _digest(key.encode())
        known = memory.find(gateway, digest)
        if known is not None:
            remembered = await memory.recall(gateway, known, key)
            if remembered is not None:
                if remembered.fingerprint != fingerprint:
                    raise _reused()
                gateway.count_replayed()
                return Once(bytes(remembered.answer), is_replayed=True)
        if digest in self._under_way:
            if self._under_way[digest] != fingerprint:
                raise _reused()
            raise Problem("request-in-flight", outcome="unknown")
        if len(memory.offsets) >= KEYS_MAX:
            raise Problem("throttled", f"{KEYS_MAX} Idempotency-Keys are remembered, and none of them is old")
        return Once(await self._write(KeyRecord(self, memory, key, fingerprint), write), is_replayed=False)

    def claim(self, index: int, key: str, asked: bytes, body: bytes) -> KeyRecord | None:
        """The record of a key that nobody has used, if that is known at once; it is to be shared in the same turn of
        the loop. None: `once` finds out. `index` is that of the key's partition.
        """
        memory = self._memories.get(index)
        if memory is None or not memory.is_loaded or not memory.is_led(self._gateway.partitions.get(memory.where)):
            return None
        memory.forget_old(self._gateway)
        sealed = KeyRecord(self, memory, key, sha256(asked, body))
        if memory.find(self._gateway, sealed.digest) is not None or sealed.digest in self._under_way:
            return None
        return sealed if len(memory.offsets) < KEYS_MAX else None

    def share(self, sealed: KeyRecord, placed: PlacedRecords, asker: Session) -> asyncio.Future[BatchOut]:
        self._under_way[sealed.digest] = sealed.fingerprint
        return self._gateway.sharing.add(placed, sealed, asker)

    async def _write(self, sealed: KeyRecord, write: Callable[[Seal], Awaitable[BatchOut]]) -> bytes:
        self._under_way[sealed.digest] = sealed.fingerprint
        try:
            await write(sealed)
        except BaseException as failure:
            if not sealed.is_shared:
                sealed.over(failure)
            raise
        if not sealed.is_shared:
            sealed.over(None)
        return sealed.answer

    def over(self, sealed: KeyRecord, failure: BaseException | None) -> None:
        """A request is not being written any more."""
        del self._under_way[sealed.digest]
        index = sealed.where.partition
        if failure is None:
            memory = self._memories.get(index)  # another, if it was learnt anew meanwhile
            if memory is not None:
                memory.note(sealed.digest, sealed.offset, sealed.now_ms)
        elif not isinstance(failure, Problem) or failure.outcome == "unknown" or sealed.offset >= 0:
            self._drop(index)  # the log knows, once it is decided

    def _drop(self, index: int) -> None:
        if (memory := self._memories.pop(index, None)) is not None:
            memory.stop_learning()
            if memory.offsets and not self._gateway.closing.is_set():  # who stops ends no tasks that come later
                self._gateway.env.tasks.spawn(f"forget the keys of {memory.where}", memory.forget_all())

    def _drop_not_led(self) -> None:
        """What is known of partitions that are led elsewhere now, or again, is of no use."""
        for index, memory in [*self._memories.items()]:
            if not memory.is_led(self._gateway.partitions.get(memory.where)):
                self._drop(index)

    def now_ms(self) -> int:
        return self._gateway.env.clock.wall_ms()

    async def _memory(self, key: str) -> Memory:
        """The keys of this key's partition, as far as they are known in this leadership. Who asks waits for them for a
        limited time, and they are learnt meanwhile and afterwards.
        """
        topic = self._gateway.topic(HTTP_KEYS.name)
        index = HTTP_KEYS.partition_of(key, len(topic.partitions))
        where = TopicPartition(HTTP_KEYS.name, index)
        now_s = asyncio.get_running_loop().time
        deadline_s = now_s() + TIMEOUT_S
        while True:
            self._drop_not_led()
            partition = self._gateway.partitions.get(where)
            if partition is not None and partition.is_leading:
                memory = self._memories.get(index)
                if memory is None:
                    memory = self._memories[index] = Memory(where, partition)
                if not memory.is_loaded:
                    await asyncio.wait((memory.learning(self._gateway),), timeout=max(deadline_s - now_s(), 0))
                # During the wait a write may have failed, and another memory may have taken this one's place.
                if memory.is_loaded and self._memories.get(index) is memory:
                    return memory
                if memory.is_rotten:
                    raise _not_known(f"can't be read, in {where.topic} partition {index}")
            if now_s() > deadline_s:
                raise _not_known("is not known yet")
            await asyncio.sleep(PAUSE_S)


class KeyRecord:
    """The record of a key that is being written (a `Seal`)."""

    def __init__(self, keys: Keys, memory: Memory, key: str, fingerprint: str) -> None:
        self.where = memory.where
        self.is_shared = False
        self.digest = _digest(key.encode())
        self.fingerprint = fingerprint
        self.now_ms = keys.now_ms()
        self.answer = b""
        self.offset = -1
        self._keys = keys
        self._memory = memory
        self._key = key

    def record(self, answer: bytes) -> NewRecord:
        self.answer = answer
        return self._key.encode(), _encode(Remembered(self.fingerprint, msgspec.Raw(self.answer))), (), self.now_ms

    def written(self, offset: int) -> None:
        self.offset = offset
        if self._memory.partition.leader_epoch != self._memory.epoch:
            raise Problem("not-now", "another broker answered for the key meanwhile")

    def over(self, failure: BaseException | None) -> None:
        self._keys.over(self, failure)


class Memory:
    """The keys of one partition of the internal topic, in one leadership."""

    def __init__(self, where: TopicPartition, partition: Partition) -> None:
        self.where = where
        self.partition = partition
        self.epoch = partition.leader_epoch
        self.offsets: OrderedDict[Digest, tuple[int, int]] = OrderedDict()
        """Where the record of each key is, and when it was written; the oldest first."""
        self._until = partition.log.end_offset
        self._noted: dict[Digest, tuple[int, int]] = {}
        """The keys that were written while the older ones are learnt."""
        self._read_to = 0
        """What is below was learnt."""
        self._learning: asyncio.Task[None] | None = None
        self._told = ""
        """Which failure to read was told last."""
        self.is_loaded = False
        self.is_rotten = False
        """Whether stored bytes have rotted. Reading is tried anew for whom asks next: the log may begin behind them by
        now.
        """

    def is_led(self, partition: Partition | None) -> bool:
        """Whether the key's partition, which is this one now, is led as when the memory began."""
        return partition is self.partition and partition.is_leading and partition.leader_epoch == self.epoch

    def learning(self, gateway: Gateway) -> asyncio.Task[None]:
        """The task that reads the keys that were written before. It is begun anew if it has failed."""
        if self._learning is None or self._learning.done():
            name = f"learn the keys of {self.where}"
            self._learning = gateway.env.tasks.spawn(name, self._learn(gateway))
        return self._learning

    def stop_learning(self) -> None:
        if self._learning is not None:
            self._learning.cancel()

    async def _learn(self, gateway: Gateway) -> None:
        """`is_loaded` tells whether the keys are known in the end, or this leadership has ended, or stored bytes can't
        be read.
        """
        partition = self.partition
        while partition.last_stable_offset < self._until:
            if not self.is_led(partition):
                return
            await asyncio.sleep(PAUSE_S)
        try:
            await self._read(gateway)
        except (DiskFault, CorruptBatch) as failure:
            if self._told != str(failure):  # once, however often it is tried
                partition.unreadable(failure)
            self._told = str(failure)
            self.is_rotten = isinstance(failure, CorruptBatch)
            return
        if self.is_led(partition):
            self.is_loaded = True
            for digest, known in self._noted.items():
                self._remember(digest, *known)
            self._noted.clear()

    async def _read(self, gateway: Gateway) -> None:
        """Read the log up to where it ended when this leadership began, in several turns of the loop. It goes on where
        it failed before.
        """
        log = self.partition.log
        while True:
            await breathe()
            if not self.is_led(self.partition):
                return
            at = max(self._read_to, log.start_offset)
            stored = log.read(at, max_bytes=LEARNT_AT_ONCE_BYTES, limit_offset=self._until, at_least_one=True)
            if stored is None:
                return
            stored = log.checked(at, stored)
            ranges = self.partition.stable.aborted_ranges(at, min(log.reach_of(stored), self._until))
            aborted = [(each.producer_id, each.first_offset) for each in ranges]
            oldest_ms = _oldest_ms(gateway)
            if len(stored) > UNPACKED_AT_ONCE_BYTES:
                found, behind = await stored.in_thread(gateway.env.blocking, _keys_in, aborted, oldest_ms)
            else:
                found, behind = _keys_in(stored, aborted, oldest_ms)
            for digest, offset, written_ms in found:
                self._remember(digest, offset, written_ms)
            self._read_to = behind

    def note(self, digest: Digest, offset: int, written_ms: int) -> None:
        """The key was written just now."""
        if self.is_loaded:
            self._remember(digest, offset, written_ms)
        else:  # it is newer than all that is still to be learnt
            self._noted[digest] = offset, written_ms

    def _remember(self, digest: Digest, offset: int, written_ms: int) -> None:
        known = self.offsets.get(digest)
        if known is None or known[0] <= offset:  # a key that is used again after its time is the newest now
            self.offsets[digest] = offset, written_ms
            self.offsets.move_to_end(digest)

    def find(self, gateway: Gateway, digest: Digest) -> int | None:
        """Where the record of the key is; None if there is none, or its time is over."""
        known = self.offsets.get(digest)
        return None if known is None or known[1] < _oldest_ms(gateway) else known[0]

    async def recall(self, gateway: Gateway, offset: int, key: str) -> Remembered | None:
        """The record of a key; None if it is gone because its time is over."""
        log = self.partition.log
        if offset < log.start_offset:
            return None
        try:
            stored = log.read(offset, max_bytes=0, limit_offset=log.end_offset, at_least_one=True)
            if stored is None:
                records = []
            elif len(stored) > UNPACKED_AT_ONCE_BYTES:
                records = await stored.in_thread(gateway.env.blocking, _records_in)
            else:
                records = _records_in(stored)
            for record in records:
                if record.offset == offset and record.key == key.encode() and record.value is not None:
                    return _remembered.decode(record.value)
        except (DiskFault, CorruptBatch) as failure:
            self.partition.unreadable(failure)
            raise Problem("not-now", "the record of the key can't be read", outcome="unknown") from None
        except msgspec.DecodeError as error:
            self.partition.unreadable(CorruptBatch(f"the record at offset {offset} is none of a key: {error}"))
            raise Problem("not-now", "the record of the key can't be read", outcome="unknown") from None
        # Whatever has become of it, to write the request once more would be wrong.
        raise Problem("not-now", f"the record of the key is not at offset {offset}", outcome="unknown")

    def forget_old(self, gateway: Gateway) -> None:
        """Forget some keys whose time is over, the oldest ones."""
        offsets, oldest_ms = self.offsets, _oldest_ms(gateway)
        for _ in range(FORGOTTEN_AT_ONCE):
            if not offsets or next(iter(offsets.values()))[1] >= oldest_ms:
                return
            offsets.popitem(last=False)

    async def forget_all(self) -> None:
        """Nobody asks this memory any more. To free a million keys at once takes 0.1 s."""
        while self.offsets:
            await breathe()
            for _ in range(min(FREED_A_TURN, len(self.offsets))):
                self.offsets.popitem()


def _oldest_ms(gateway: Gateway) -> int:
    """A key that was written before may be used again."""
    return gateway.env.clock.wall_ms() - gateway.config.http_idempotency_retention_ms


def _keys_in(
    stored: FileSlice, aborted: list[tuple[int, int]], oldest_ms: int
) -> tuple[list[tuple[Digest, int, int]], int]:
    """The keys in these batches that are not old, where their records are and when they were written; and the offset
    behind these batches.
    """
    ranges, found, behind = AbortedBatches(aborted), list[tuple[Digest, int, int]](), 0
    for header, batch in _batches_in(stored):
        behind = header.next_offset
        if not ranges.covers(header, batch) and not header.is_control and header.max_timestamp >= oldest_ms:
            for record in read_records(batch, header):
                found.append((_digest(record.key or b""), record.offset, record.timestamp))
    return found, behind


def _records_in(stored: FileSlice) -> list[Record]:
    return [record for header, batch in _batches_in(stored) for record in read_records(batch, header)]


def _batches_in(stored: FileSlice) -> Iterator[tuple[BatchHeader, memoryview]]:
    """These batches. `CorruptBatch` if one has rotted."""
    for header, batch in split(stored.read()):
        if not checksum_ok(batch, header):
            raise CorruptBatch(f"the checksum of the batch at offset {header.base_offset} is wrong")
        yield header, batch


def _digest(key: bytes) -> Digest:
    return hashlib.blake2b(key, digest_size=16).digest()


def _not_known(why: str) -> Problem:
    """The request may be a repetition of one that was applied."""
    return Problem("not-now", f"what was written with Idempotency-Keys before {why}", outcome="unknown")


def _reused() -> Problem:
    return Problem("key-reused", "the key was used for another request: another method, path or body")

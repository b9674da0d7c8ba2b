"""Requests that are safe to repeat: the Idempotency-Key header, as the IETF's draft has it.

The record of a key has the request and its answer. It is written to an internal topic, in the same transaction as the
data. A key belongs to one partition of that topic, and the partition's leader serves every request with the key; other
brokers forward to it. So the key's record exists if and only if the data does, whatever dies in between.

What always holds: while a key is remembered, at most one request with it is applied. A repeated request gets the first
one's answer. While the first is still being written, it is told to wait (409); if it is another request, it is refused
(422). A leader answers for keys only when everything written before its leadership is decided, and the leader has read
it.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from aiohttp import web

from isolation.read_filter import AbortedBatches
from log.batch import CorruptBatch, NewRecord, read_records
from log.disk import DiskFault
from log.ids import TopicPartition
from service.broker.internal_topics import HTTP_KEYS
from service.broker.partition import Partition
from service.web.answers import sha256, sha256_of
from service.web.forwarding import OF_EVENTS, RECORD_HEADER, forward, headers_of_records, media_of
from service.web.gateway import PAUSE_S, TIMEOUT_S, Gateway
from service.web.problems import Problem
from service.web.routing import IDEMPOTENCY_KEY, JSON

if TYPE_CHECKING:
    from service.broker.session import Session
    from service.web.producing import BatchOut, PlacedRecords, Seal

REPLAYED = "Idempotency-Replayed"
KEY_MAX = 255
KEYS_MAX = 1_000_000
"""How many keys are remembered for one partition of the topic, in 250 bytes of memory each. Beyond that new keys are
refused; no remembered key is forgotten early.
"""
RECORDS_AT_ONCE = 1_000
"""How many keys are read in one turn of the loop: a few milliseconds. A kilobyte of answers counts as one more."""
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
            return await forward(gateway, leader, request, body)
        answer = await self.once(key, asked_by(request), body, write)
        headers = {REPLAYED: "true"} if answer.is_replayed else None
        return web.Response(body=answer.body, content_type=JSON, headers=headers)

    async def once(self, key: str, asked: bytes, body: bytes, write: Callable[[Seal], Awaitable[BatchOut]]) -> Once:
        """Write what is asked for, or find what was answered. This broker leads the partition of the key."""
        gateway = self._gateway
        fingerprint = await sha256_of(gateway, asked, body)
        memory = await self._memory(key)
        memory.forget_old(gateway)
        digest = _digest(key.encode())
        known = memory.offsets.get(digest)
        if known is not None:
            remembered = await memory.recall(gateway, known[0], key)
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
        if sealed.digest in memory.offsets or sealed.digest in self._under_way or len(memory.offsets) >= KEYS_MAX:
            return None
        return sealed

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
            self._memories.pop(index, None)  # the log knows, once it is decided

    def now_ms(self) -> int:
        return self._gateway.env.clock.wall_ms()

    async def _memory(self, key: str) -> Memory:
        """The keys of this key's partition, as far as they are known in this leadership."""
        topic = self._gateway.topic(HTTP_KEYS.name)
        index = HTTP_KEYS.partition_of(key, len(topic.partitions))
        where = TopicPartition(HTTP_KEYS.name, index)
        deadline = asyncio.get_running_loop().time() + TIMEOUT_S
        while True:
            partition = self._gateway.partitions.get(where)
            if partition is not None and partition.is_leading:
                memory = self._memories.get(index)
                if memory is None or not memory.is_led(partition):
                    memory = self._memories[index] = Memory(where, partition)
                # During the wait a write may have failed, and another memory may have taken this one's place.
                if memory.is_loaded or (await memory.load(deadline) and self._memories.get(index) is memory):
                    return memory
            if asyncio.get_running_loop().time() > deadline:
                raise Problem("not-now", "what was written with Idempotency-Keys before is not decided yet")
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
        self.offsets: dict[Digest, tuple[int, int]] = {}
        """Where the record of each key is, and when it was written; the oldest first."""
        self._until = partition.log.end_offset
        self._loading = asyncio.Lock()
        self.is_loaded = False

    def is_led(self, partition: Partition | None) -> bool:
        """Whether the key's partition, which is this one now, is led as when the memory began."""
        return partition is self.partition and partition.is_leading and partition.leader_epoch == self.epoch

    async def load(self, deadline: float) -> bool:
        """Read the keys that were written before. False: this leadership ended meanwhile."""
        async with self._loading:
            if self.is_loaded:
                return True
            partition = self.partition
            while partition.last_stable_offset < self._until:
                if not partition.is_leading or partition.leader_epoch != self.epoch:
                    return False
                if asyncio.get_running_loop().time() > deadline:
                    return False
                await asyncio.sleep(PAUSE_S)
            try:
                await self._scan()
            except (DiskFault, CorruptBatch) as failure:
                partition.unreadable(failure)
                return False
            self.is_loaded = partition.leader_epoch == self.epoch
            return self.is_loaded

    async def _scan(self) -> None:
        partition, log = self.partition, self.partition.log
        ranges = partition.stable.aborted_ranges(log.start_offset, self._until)
        aborted = AbortedBatches((each.producer_id, each.first_offset) for each in ranges)
        read = 0
        for header, batch in log.scan(log.start_offset, self._until):
            if not aborted.covers(header, batch) and not header.is_control:
                for record in read_records(batch, header):
                    self.note(_digest(record.key or b""), record.offset, record.timestamp)
                    read += len(record.value or b"") >> 10
            read += max(header.record_count, 1)
            if read >= RECORDS_AT_ONCE:
                read = 0
                await asyncio.sleep(0)

    def note(self, digest: Digest, offset: int, written_ms: int) -> None:
        known = self.offsets.pop(digest, None)  # a key that is used again after its time is the newest now
        if known is not None and known[0] > offset:  # it was used again while the log was read
            offset, written_ms = known
        self.offsets[digest] = offset, written_ms

    async def recall(self, gateway: Gateway, offset: int, key: str) -> Remembered | None:
        """The record of a key; None if it is gone because its time is over."""
        log = self.partition.log
        if offset < log.start_offset:
            return None
        try:
            for header, batch in log.scan(offset):
                if len(batch) > UNPACKED_AT_ONCE_BYTES:
                    records = await gateway.env.blocking(list, read_records(batch, header))
                else:
                    records = list(read_records(batch, header))
                for record in records:
                    if record.offset == offset and record.key == key.encode() and record.value is not None:
                        return _remembered.decode(record.value)
                break
        except (DiskFault, CorruptBatch) as failure:
            self.partition.unreadable(failure)
            raise Problem("not-now", "the record of the key can't be read") from None
        # Whatever has become of it, to write the request once more would be wrong.
        raise Problem("not-now", f"the record of the key is not at offset {offset}", outcome="unknown")

    def forget_old(self, gateway: Gateway) -> None:
        """Forget keys whose time is over, so that they may be used again."""
        oldest_ms = gateway.env.clock.wall_ms() - gateway.config.http_idempotency_retention_ms
        while self.offsets:
            digest, (_, written_ms) = next(iter(self.offsets.items()))
            if written_ms >= oldest_ms:
                break
            del self.offsets[digest]


def _digest(key: bytes) -> Digest:
    return hashlib.blake2b(key, digest_size=16).digest()


def _reused() -> Problem:
    return Problem("key-reused", "the key was used for another request: another method, path or body")

"""A metadata store over a ledger: numbered records that many processes append to, one after the other.

The state is the fold over the records. Every process in session keeps the state in memory and follows the ledger. A
commit is decided on that memory, and appended under the next number, which only one process can take. A writer that was
too late reads what came before, and decides again. So a commit of any size is one record, commits have one order, and
conditions on versions hold although the ledger itself knows no keys.

What always holds: the memory is the fold up to `number`. Watchers hear of each record once, in order. A conflict is
only answered if no other process has appended since the decision. An ephemeral key names its session. When that session
is over, the remaining processes try to append the record that removes the key, and one of them succeeds.

ZooKeeper and PostgreSQL serve as ledgers (`zookeeper.py`, `postgres.py`). Nothing here knows what the keys mean.
"""

import asyncio
import json
import logging
import zlib
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from enum import Enum
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from service.ports import Env
from service.stores.port import (
    Change,
    Check,
    Create,
    Delete,
    Entry,
    Event,
    Op,
    Put,
    Result,
    SessionExpired,
    StoreError,
    StoreSnapshot,
)
from service.stores.seen_through import seen_through
from service.stores.watching import ChangeWatcher
from service.turns import Turn, breathe

logger = logging.getLogger("oncelog.store")

T = TypeVar("T")

BASE_EVERY: Final = 500
"""The number of records between two bases. A new process reads a base and about this many records at most."""
KEPT_RECORDS: Final = 2 * BASE_EVERY
"""How many records before a base are kept, for processes that follow slowly."""
KEYS_A_TURN: Final = 1_000
"""How many keys are worked on before other tasks run. That takes 2 ms."""
REREAD_S: Final = 5.0
"""After this time the ledger is read without a hint, because a hint can be lost."""


_DECODER: Final = json.JSONDecoder()


class AppendOutcome(Enum):
    """How an append ended."""

    OK = "ok"
    BEHIND = "behind"
    """Another process has taken the number."""
    EXPIRED = "expired"
    UNKNOWN = "unknown"


class LedgerSession(Protocol):
    """One session of a process in the ledger. Every call but `append` raises `SessionExpired` when the session is over,
    and `LedgerAway` when the ledger does not answer now.
    """

    id: int

    def lease_left(self) -> float: ...

    async def newest(self) -> int:
        """The number of the newest record. It includes every append that was answered before the call, unless the
        server that answers was replaced and does not know it.
        """
        ...

    async def confirmed_newest(self) -> int:
        """As `newest`, but a server that was replaced can't answer, as it can't append."""
        ...

    async def append(self, number: int, record: bytes) -> AppendOutcome:
        """Append `record` as `number`, if that is the next number and this session is not over."""
        ...

    async def read(self, after: int) -> list[bytes] | None:
        """The records after number `after`, in order. None if they were removed: read the base then."""
        ...

    async def base(self) -> tuple[int, bytes]:
        """The newest base and its number; 0 and nothing if there is none yet."""
        ...

    async def set_base(self, number: int, base: bytes, *, drop_to: int) -> None:
        """Store a base, unless there is a newer one. Records up to `drop_to` may be removed."""
        ...

    async def living(self) -> frozenset[int]:
        """The sessions that are not over."""
        ...

    async def hint(self) -> bool:
        """Wait until something may have changed. Returns False when this session is over."""
        ...

    async def close(self) -> None: ...


class LedgerAway(Exception):
    """The ledger does not answer now."""


class StoredValue(NamedTuple):
    """The value of a key, its version, and the session of an ephemeral key."""

    value: bytes
    version: int
    session: int | None


class Conflict(Exception):
    """The condition of an op does not hold."""


Changed = dict[str, StoredValue | None]


async def slices(many: Sequence[T]) -> AsyncIterator[Sequence[T]]:
    """All items, in slices. Other tasks run between two slices."""
    for start in range(0, len(many), KEYS_A_TURN):
        if start:
            await breathe()
        yield many[start : start + KEYS_A_TURN]


def stage(changed: Changed, entries: Mapping[str, StoredValue], ops: Sequence[Op], session: int) -> None:
    """Add to `changed` the results of `ops` on `entries`, in the order of the ops. Raises `Conflict`."""

    def at(key: str, version: int) -> StoredValue:
        held = changed[key] if key in changed else entries.get(key)
        if held is None or held.version != version:
            raise Conflict
        return held

    for op in ops:
        match op:
            case Create(key, value, ephemeral):
                if (changed[key] if key in changed else entries.get(key)) is not None:
                    raise Conflict
                _put(changed, key, StoredValue(value, 0, session if ephemeral else None))
            case Put(key, value, version):
                _put(changed, key, StoredValue(value, version + 1, at(key, version).session))
            case Delete(key, version):
                at(key, version)
                _put(changed, key, None)
            case Check(key, version):
                at(key, version)


def _put(changed: Changed, key: str, held: StoredValue | None) -> None:
    changed.pop(key, None)  # keys are in the order of their last ops
    changed[key] = held


async def encoded(changed: Mapping[str, StoredValue | None]) -> bytes:
    """The bytes of a record or a base. Values are usually small JSON, so a thousand of them compress well."""
    packer = zlib.compressobj(1)
    packed, before = bytearray(), "["
    async for some in slices(list(changed.items())):
        rows = [
            [key, None] if held is None else [key, held.value.decode("latin-1"), held.version, held.session]
            for key, held in some
        ]
        packed += packer.compress((before + json.dumps(rows, separators=(",", ":"))[1:-1]).encode("ascii"))
        before = ","
    return bytes(packed + packer.compress(b"]" if before == "," else b"[]") + packer.flush())


async def decoded(record: bytes) -> Changed:
    """What `encoded` has made these bytes of. One row is read after the other, because a base has very many."""
    changed: Changed = {}
    text, at, turn = zlib.decompress(record).decode("ascii") if record else "[]", 1, Turn(KEYS_A_TURN)
    while at < len(text) - 1:
        (key, value, *rest), end = _DECODER.raw_decode(text, at)
        changed[key] = None if value is None else StoredValue(value.encode("latin-1"), *rest)
        at = end + 1  # behind the comma
        if turn.is_over():
            await breathe()
    return changed


class LedgerStoreSession:
    """One session of a broker in the store."""

    def __init__(self, ledger: LedgerSession, env: Env) -> None:
        self.id = ledger.id
        self._ledger = ledger
        self._env = env
        self._entries: dict[str, StoredValue] = {}
        self._owners: dict[str, int] = {}
        """The session of each ephemeral key."""
        self._number = 0
        self._watchers: list[ChangeWatcher] = []
        self._turn = asyncio.Lock()  # one task at a time reads, or decides and appends
        self._ended = False
        self.on_close: Callable[[LedgerStoreSession], None] = lambda session: None

    @classmethod
    async def open(cls, ledger: LedgerSession, env: Env) -> "LedgerStoreSession":
        session = cls(ledger, env)
        try:
            await session._catch_up()
            await session._reap()
        except BaseException as error:  # whatever it is: nobody else knows of this session
            await session.close()
            if isinstance(error, LedgerAway | SessionExpired):
                raise StoreError(f"the metadata store was lost while it was read: {error!r}") from None
            raise
        env.tasks.spawn(f"metadata session {ledger.id}", session._follow())
        return session

    def lease_left(self) -> float:
        return 0.0 if self._ended else self._ledger.lease_left()

    async def commit(self, *ops: Op) -> tuple[Result, int]:
        return await seen_through(self._env, self._commit(ops))

    async def read(self, prefix: str) -> dict[str, Entry]:
        return await seen_through(self._env, self._read(prefix))

    async def newest(self) -> int | None:
        return await seen_through(self._env, self._newest())

    async def watch(self) -> AsyncIterator[Event]:
        if self._ended:
            return
        watcher = ChangeWatcher(self._newest_snapshot)
        self._watchers.append(watcher)
        try:
            async for happened in watcher.events():
                yield happened
        finally:
            self._watchers.remove(watcher)

    async def close(self) -> None:
        self._end()
        self.on_close(self)
        await self._ledger.close()

    # -- deciding

    async def _commit(self, ops: tuple[Op, ...]) -> tuple[Result, int]:
        async with self._turn:
            try:
                while not self._ended:
                    outcome = await self._try(ops)
                    if outcome is not None:
                        return outcome, self._number
            except LedgerAway:
                return Result.UNKNOWN, self._number
            except SessionExpired:
                self._end()
            return Result.EXPIRED, self._number

    async def _try(self, ops: tuple[Op, ...]) -> Result | None:
        """Decide, and append. Returns None if another process was faster, so that the commit must be decided again on
        the new state.
        """
        try:
            changed: Changed = {}
            async for some in slices(ops):
                stage(changed, self._entries, some, self.id)
        except Conflict:
            decided_on = self._number
            await self._catch_up()
            return Result.CONFLICT if self._number == decided_on else None
        match await self._append(changed):
            case AppendOutcome.OK:
                return Result.OK
            case AppendOutcome.UNKNOWN:
                return Result.UNKNOWN
            case AppendOutcome.EXPIRED:
                raise SessionExpired
            case AppendOutcome.BEHIND:
                await self._catch_up()
                return None

    async def _append(self, changed: Changed) -> AppendOutcome:
        decided_on = self._number
        outcome = await self._ledger.append(decided_on + 1, await encoded(changed))
        assert self._number == decided_on, "one task at a time decides, appends and reads"
        if outcome is AppendOutcome.OK:
            await self._apply(changed)
            if self._number % BASE_EVERY == 0:
                self._env.tasks.spawn("metadata base", self._set_base(self._number, dict(self._entries)))
        return outcome

    async def _set_base(self, number: int, entries: Mapping[str, StoredValue | None]) -> None:
        base = await encoded(entries)
        try:
            await self._ledger.set_base(number, base, drop_to=number - KEPT_RECORDS)
        except (LedgerAway, SessionExpired) as error:
            logger.warning(
                "old records of the metadata store could not be removed: %r", error
            )  # the next base may remove it

    # -- following

    async def _follow(self) -> None:
        try:
            while not self._ended and await self._hinted():
                async with self._turn:
                    try:
                        await self._catch_up()
                        await self._reap()
                    except LedgerAway:
                        continue
                    except SessionExpired:
                        break
        finally:  # also after an error that nobody foresaw: a broker in session that hears nothing more would lead on
            self._end()

    async def _hinted(self) -> bool:
        try:
            async with asyncio.timeout(REREAD_S):
                return await self._ledger.hint()
        except TimeoutError:
            return True

    async def _catch_up(self) -> None:
        while self._number < (newest := await self._ledger.newest()):
            records = await self._ledger.read(self._number)
            if records is not None:
                for record in records:
                    await self._apply(await decoded(record))
                continue
            number, base = await self._ledger.base()
            if number > self._number:
                self._entries = {key: held for key, held in (await decoded(base)).items() if held is not None}
                owners = ((key, held.session) for key, held in self._entries.items())
                self._owners = {key: owner for key, owner in owners if owner is not None}
                self._number = number
                for watcher in self._watchers:
                    watcher.miss()
        if newest < self._number:
            # A database that failed over without what it had answered. Appends would never succeed, or would continue
            # another history than this session's.
            logger.error("the metadata store has gone back from commit %d to %d", self._number, newest)
            raise SessionExpired

    async def _reap(self) -> None:
        """Remove the ephemeral keys of sessions that are over. Raises `SessionExpired` if this session is over."""
        while True:
            living = await self._ledger.living()
            if self.id not in living:
                raise SessionExpired
            left: Changed = {key: None for key, owner in self._owners.items() if owner not in living}
            if not left or await self._append(left) is AppendOutcome.OK:
                return
            await self._catch_up()

    async def _read(self, prefix: str) -> dict[str, Entry]:
        async with self._turn:
            try:
                await self._catch_up()
                await self._reap()
            except SessionExpired:
                self._end()
                raise
            return {key: entry for key, entry in self._snapshot().entries.items() if key.startswith(prefix)}

    async def _newest(self) -> int | None:
        """The watchers have heard of the commit then: a hint of it may come late."""
        async with self._turn:
            if self._ended:
                raise SessionExpired
            try:
                number = await self._ledger.confirmed_newest()
                if number != self._number:
                    await self._catch_up()
            except LedgerAway:
                return None
            except SessionExpired:
                self._end()
                raise
            return number

    async def _newest_snapshot(self) -> StoreSnapshot:
        async with self._turn:
            try:
                await self._catch_up()
            except LedgerAway as away:
                logger.warning("session %d can't read the newest metadata, and begins with older: %s", self.id, away)
            except SessionExpired:
                self._end()
            return self._snapshot()

    def _snapshot(self) -> StoreSnapshot:
        return StoreSnapshot(self._number, {key: Entry(*self._entries[key][:2]) for key in sorted(self._entries)})

    async def _apply(self, changed: Changed) -> None:
        """What watchers are told, and what changes here, is made in turns. Then all changes in one turn: a task that is
        cancelled before leaves nothing half done.
        """
        told: list[tuple[str, Entry | None]] = []
        kept: dict[str, StoredValue] = {}
        owned: dict[str, int] = {}
        gone: list[str] = []
        async for some in slices(list(changed.items())):
            told += [(key, None if held is None else Entry(held.value, held.version)) for key, held in some]
            kept.update((key, held) for key, held in some if held is not None)
            owned.update((key, held.session) for key, held in some if held is not None and held.session is not None)
            gone += [key for key, held in some if held is None]
        for key in gone:
            self._entries.pop(key, None)
        self._entries.update(kept)
        for key in [key for key in self._owners if key in changed]:
            del self._owners[key]
        self._owners.update(owned)
        self._number += 1
        for watcher in self._watchers:
            watcher.publish(Change(self._number, tuple(told)))

    def _end(self) -> None:
        self._ended = True
        for watcher in self._watchers:
            watcher.end()


class LedgerStore:
    """The store as the broker uses it. `connect` begins a session of the ledger."""

    def __init__(self, connect: Callable[[float], Coroutine[Any, Any, LedgerSession]], env: Env) -> None:
        self._connect = connect
        self._env = env
        self._open: dict[LedgerStoreSession, None] = {}
        """Those alone: each keeps all the metadata in memory."""

    async def session(self, timeout_s: float) -> LedgerStoreSession:
        session = await LedgerStoreSession.open(await self._connect(timeout_s), self._env)
        self._open[session] = None
        session.on_close = lambda closed: self._open.pop(closed, None)
        return session

    async def close(self) -> None:
        for session in list(self._open):
            await session.close()

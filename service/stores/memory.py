"""A metadata store in memory, for tests and the simulation: the same seed gives the same run.

`MemoryServer` is the shared state, and outlives the brokers. A `MemoryStore` is one broker's connection to it, on which
`Faults` may delay a request, lose it, or lose its answer. Sessions expire by the server's clock. This is checked by
every request, and by `expire_due`, which the simulation calls.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from enum import Enum

from service.ports import Clock, Env
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
    StoreSnapshot,
)
from service.stores.watching import ChangeWatcher

RENEWALS_PER_TIMEOUT = 3


class Fate(Enum):
    """What happens to one request."""

    ANSWERED = "answered"
    REQUEST_LOST = "request lost"
    ANSWER_LOST = "answer lost"


class Faults:
    """No faults. The simulation has a subclass that draws faults from its seed."""

    def delay_s(self) -> float:
        return 0.0

    def fate(self) -> Fate:
        return Fate.ANSWERED


@dataclass(slots=True)
class _Stored:
    value: bytes
    version: int
    session: int | None


class MemoryServer:
    """The state of the store. Every method is plain `def`, so it happens at one moment."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._entries: dict[str, _Stored] = {}
        self._expiry: dict[int, float] = {}
        self._last_session = 0
        self._watchers: dict[int, list[ChangeWatcher]] = {}
        self.number = 0

    def open_session(self, timeout_s: float) -> int:
        self.expire_due()
        self._last_session += 1
        self._expiry[self._last_session] = self._clock.monotonic() + timeout_s
        return self._last_session

    def renew(self, session: int, timeout_s: float) -> bool:
        self.expire_due()
        if session not in self._expiry:
            return False
        self._expiry[session] = self._clock.monotonic() + timeout_s
        return True

    def expire_due(self) -> None:
        now = self._clock.monotonic()
        for session in [session for session, expiry in self._expiry.items() if expiry <= now]:
            self.end_session(session)

    def end_session(self, session: int) -> None:
        """End the session, and remove its ephemeral keys in one commit."""
        if self._expiry.pop(session, None) is None:
            return
        own = [key for key, stored in self._entries.items() if stored.session == session]
        for key in own:
            del self._entries[key]
        if own:
            self._publish(tuple((key, None) for key in own))
        for watcher in self._watchers.pop(session, []):
            watcher.end()

    def alive(self, session: int) -> bool:
        self.expire_due()
        return session in self._expiry

    def commit(self, session: int, ops: tuple[Op, ...]) -> Result:
        if not self.alive(session):
            return Result.EXPIRED
        staged = dict(self._entries)
        changed: list[tuple[str, Entry | None]] = []
        for op in ops:
            if not _stage(op, staged, changed, session):
                return Result.CONFLICT
        self._entries = staged
        self._publish(tuple(changed))
        return Result.OK

    def snapshot(self, prefix: str = "") -> StoreSnapshot:
        found = {key: self._entries[key] for key in sorted(self._entries) if key.startswith(prefix)}
        return StoreSnapshot(self.number, {key: Entry(one.value, one.version) for key, one in found.items()})

    def add_watcher(self, session: int, watcher: ChangeWatcher) -> None:
        self._watchers.setdefault(session, []).append(watcher)

    def _publish(self, changed: tuple[tuple[str, Entry | None], ...]) -> None:
        self.number += 1
        for watchers in self._watchers.values():
            for watcher in watchers:
                watcher.publish(Change(self.number, changed))


def _stage(op: Op, entries: dict[str, _Stored], changed: list[tuple[str, Entry | None]], session: int) -> bool:
    """Apply `op` to `entries`. Returns False if its condition does not hold."""
    stored = entries.get(op.key)
    match op:
        case Create(key, value, ephemeral):
            if stored is not None:
                return False
            entries[key] = _Stored(value, 0, session if ephemeral else None)
            changed.append((key, Entry(value, 0)))
            return True
        case Put(key, value, version):
            if stored is None or stored.version != version:
                return False
            entries[key] = _Stored(value, version + 1, stored.session)
            changed.append((key, Entry(value, version + 1)))
            return True
        case Delete(key, version):
            if stored is None or stored.version != version:
                return False
            del entries[key]
            changed.append((key, None))
            return True
        case Check(_, version):
            return stored is not None and stored.version == version


class MemorySession:
    def __init__(self, server: MemoryServer, env: Env, faults: Faults, timeout_s: float) -> None:
        self._server = server
        self._env = env
        self._faults = faults
        self._timeout_s = timeout_s
        self._renewed_at = env.clock.monotonic()
        self.id = server.open_session(timeout_s)
        self._keeping = env.tasks.spawn(f"store session {self.id}", self._keep_alive())

    def lease_left(self) -> float:
        return self._renewed_at + self._timeout_s * 0.75 - self._env.clock.monotonic()

    async def commit(self, *ops: Op) -> tuple[Result, int]:
        results: list[Result] = []
        if await self._request(lambda: results.append(self._server.commit(self.id, ops))):
            return results[0], self._server.number
        return Result.UNKNOWN, self._server.number

    async def read(self, prefix: str) -> dict[str, Entry]:
        while True:  # a read changes nothing, so it is repeated until the session is over
            found: list[StoreSnapshot | None] = []
            ask = lambda: found.append(self._server.snapshot(prefix) if self._server.alive(self.id) else None)  # noqa: B023, E731
            if await self._request(ask):
                if (snapshot := found[0]) is None:
                    raise SessionExpired
                return snapshot.entries

    async def newest(self) -> int | None:
        found: list[int | None] = []
        if not await self._request(lambda: found.append(self._server.number if self._server.alive(self.id) else None)):
            return None
        if found[0] is None:
            raise SessionExpired
        return found[0]

    async def watch(self) -> AsyncIterator[Event]:
        if not self._server.alive(self.id):
            return
        watcher = ChangeWatcher(self._snapshot)
        self._server.add_watcher(self.id, watcher)
        async for event in watcher.events():
            yield event

    async def close(self) -> None:
        self._keeping.cancel()
        self._server.end_session(self.id)

    async def _snapshot(self) -> StoreSnapshot:
        await self._request(lambda: None)
        return self._server.snapshot()

    async def _request(self, act: Callable[[], object]) -> bool:
        """Do `act` at the server. Returns False if its answer does not come back."""
        delay_s, fate = self._faults.delay_s(), self._faults.fate()
        if delay_s:
            await asyncio.sleep(delay_s)
        if fate is not Fate.REQUEST_LOST:
            act()
        return fate is Fate.ANSWERED

    async def _keep_alive(self) -> None:
        while True:
            await asyncio.sleep(self._timeout_s / RENEWALS_PER_TIMEOUT)
            sent_at = self._env.clock.monotonic()
            renewed: list[bool] = []
            if await self._request(lambda: renewed.append(self._server.renew(self.id, self._timeout_s))):  # noqa: B023
                if not renewed[0]:
                    return
                self._renewed_at = sent_at


class MemoryStore:
    """One broker's connection to the server."""

    def __init__(self, server: MemoryServer, env: Env, faults: Faults | None = None) -> None:
        self._server = server
        self._env = env
        self._faults = faults or Faults()
        self._sessions: list[MemorySession] = []

    async def session(self, timeout_s: float) -> MemorySession:
        session = MemorySession(self._server, self._env, self._faults, timeout_s)
        self._sessions.append(session)
        return session

    async def close(self) -> None:
        sessions, self._sessions = self._sessions, []
        for session in sessions:
            await session.close()

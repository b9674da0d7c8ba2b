"""A metadata store that one process has open, and that other processes on the same machine use through a Unix socket.

The holder (`StoreServer`) has a store open, usually the embedded one in the data folder. A connection is a session: the
session begins and ends with it. So a process that died is out of session at once. A process that hangs is out of
session when nothing has come from it for the timeout of its session: the holder ends the connection. It counts the time
in which it has read itself, so that its own pause ends nobody's session.

Messages are lines of JSON. The first has the timeout, and is answered with the id of the session. Requests have
numbers, and are answered in any order. Events of a watch come as lines without a number.
"""

import asyncio
import json
import logging
import os
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any, Final

from service.ports import Env
from service.stores import watching
from service.stores.lease import BEATS, Leased
from service.stores.port import (
    Change,
    Check,
    Create,
    Delete,
    Entry,
    Event,
    Gap,
    MetadataStore,
    Op,
    Put,
    Result,
    SessionExpired,
    StoreError,
    StoreFailed,
    StoreSession,
    StoreSnapshot,
)

logger = logging.getLogger("oncelog.store")

LONGEST_LINE: Final = 1 << 30
SCHEME: Final = "unix://"
OPS: Final[dict[str, type[Op]]] = {kind.__name__: kind for kind in (Create, Put, Delete, Check)}


def _encode(message: Any) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode("ascii") + b"\n"


def _entry(entry: Entry | None) -> list[Any] | None:
    return None if entry is None else [entry.value.decode("latin-1"), entry.version]


def _entry_of(told: list[Any] | None) -> Entry | None:
    return None if told is None else Entry(told[0].encode("latin-1"), told[1])


def encode_op(op: Op) -> list[Any]:
    match op:
        case Create(key, value, ephemeral):
            return ["Create", key, value.decode("latin-1"), ephemeral]
        case Put(key, value, version):
            return ["Put", key, value.decode("latin-1"), version]
        case Delete(key, version) | Check(key, version):
            return [type(op).__name__, key, version]


def decode_op(told: list[Any]) -> Op:
    match told:
        case ["Create", key, value, ephemeral]:
            return Create(key, value.encode("latin-1"), ephemeral)
        case ["Put", key, value, version]:
            return Put(key, value.encode("latin-1"), version)
        case ["Delete", key, version]:
            return Delete(key, version)
        case _:
            _, key, version = told
            return Check(key, version)


def encode_event(event: Event) -> Any:
    match event:
        case StoreSnapshot(number, entries):
            return ["snapshot", number, {key: _entry(entry) for key, entry in entries.items()}]
        case Change(number, changed):
            return ["change", number, [[key, _entry(entry)] for key, entry in changed]]
        case Gap():
            return ["gap"]


def decode_event(told: Any) -> Event:
    match told:
        case ["snapshot", number, entries]:
            return StoreSnapshot(
                number, {key: Entry(value.encode("latin-1"), at) for key, (value, at) in entries.items()}
            )
        case ["change", number, changed]:
            return Change(number, tuple((key, _entry_of(entry)) for key, entry in changed))
        case _:
            return Gap()


async def _closed(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(OSError):  # the other end may have closed it already
        await writer.wait_closed()


# --- who holds the store ---------------------------------------------------------------------------------------------


class StoreServer:
    """Lets other processes use `store` through a socket at `path`, which only this user can open."""

    def __init__(self, store: MetadataStore, env: Env, path: str) -> None:
        self._store = store
        self._env = env
        self._path = path
        self._server: asyncio.AbstractServer | None = None
        self._sessions: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    async def begin(self) -> None:
        self._server = await asyncio.start_unix_server(self._connected, self._path, limit=LONGEST_LINE)
        os.chmod(self._path, 0o600)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for writer in self._sessions.values():
            writer.close()
        if self._sessions:
            await asyncio.wait(list(self._sessions))

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = self._env.tasks.spawn("a session of the shared store", self._serve(reader, writer))
        self._sessions[task] = writer
        task.add_done_callback(self._sessions.pop)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            timeout_s = float(json.loads(await reader.readline()))
            session = await self._store.session(timeout_s)
            try:
                await self._answer_all(session, timeout_s, reader, writer)
            finally:
                await session.close()
        except (OSError, ValueError, StoreError) as error:
            logger.info("a session of the shared store ends: %r", error)
        finally:
            await _closed(writer)

    async def _answer_all(
        self, session: StoreSession, timeout_s: float, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        loop, looks = asyncio.get_running_loop(), 0

        async def end_silent() -> None:
            """Between two looks the loop has read what had arrived. So a pause of this process is one look, however
            long it was, and what came meanwhile counts.
            """
            nonlocal looks
            while looks <= BEATS:
                await asyncio.sleep(timeout_s / BEATS)
                looks += 1
            logger.warning("session %d of the shared store is ended: its broker was silent for too long", session.id)
            writer.transport.abort()  # `close` would wait until the broker has read everything

        running = {loop.create_task(end_silent()): None}
        try:
            writer.write(_encode(session.id))
            follows: asyncio.Task[None] | None = None
            while line := await reader.readline():
                looks = 0
                request = json.loads(line)
                task = loop.create_task(self._answer(session, request, writer))
                running[task] = None
                task.add_done_callback(running.pop)
                if request[1] == "watch":
                    if follows is not None:
                        follows.cancel()
                    follows = task
        finally:
            for task in list(running):
                task.cancel()

    async def _answer(self, session: StoreSession, request: Any, writer: asyncio.StreamWriter) -> None:
        number, what, *told = request
        try:
            if what == "commit":
                result, at = await session.commit(*map(decode_op, told))
                answer: list[Any] = [number, result.value, at]
            elif what == "read":
                entries = await session.read(told[0])
                answer = [number, {key: _entry(entry) for key, entry in entries.items()}]
            elif what == "newest":
                answer = [number, await session.newest()]
            elif what == "beat":  # without the database: others may have a long commit there
                answer = [number] if session.lease_left() > 0 else [number, "expired", 0]
            else:
                async for event in session.watch():
                    writer.write(_encode(encode_event(event)))
                    await writer.drain()
                writer.close()  # the session is over
                return
        except SessionExpired:
            answer = [number, "expired", 0]
        except StoreFailed as failed:
            answer = [number, "failed", str(failed)]
        except OSError:
            return  # the other end is gone
        except Exception:
            # Without an answer the broker would wait, and without the events go on by what it knows, for ever.
            logger.exception("session %d of the shared store is ended", session.id)
            writer.close()
            return
        writer.write(_encode(answer))


# --- who uses it -----------------------------------------------------------------------------------------------------


class SharedSession(Leased):
    """One session of a broker in the store; it lasts as long as its connection."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        session: int,
        timeout_s: float,
        asked_s: float,
        env: Env,
    ) -> None:
        super().__init__(timeout_s, env)
        self.id = session
        self._heard_s = asked_s
        self._reader = reader
        self._writer = writer
        self._asked: dict[int, asyncio.Future[list[Any]]] = {}
        self._last = 0
        self._events: asyncio.Queue[Event | None] = asyncio.Queue()
        self._missed = False
        env.tasks.spawn(f"metadata session {session}", self._hear())
        env.tasks.spawn(f"heartbeat of session {session}", self._beat())

    async def commit(self, *ops: Op) -> tuple[Result, int]:
        told = await self._ask("commit", *map(encode_op, ops))
        if told is None:
            return Result.UNKNOWN, 0
        if told[0] == "failed":
            raise StoreFailed(told[1])
        return Result(told[0]), told[1]

    async def read(self, prefix: str) -> dict[str, Entry]:
        told = await self._ask("read", prefix)
        if told is None or told[0] == "expired":
            raise SessionExpired
        return {key: Entry(value.encode("latin-1"), version) for key, (value, version) in told[0].items()}

    async def newest(self) -> int | None:
        told = await self._ask("newest")
        if told is None or told[0] == "expired":
            raise SessionExpired
        newest: int | None = told[0]
        return newest

    async def watch(self) -> AsyncIterator[Event]:
        if self._over:
            return
        self._writer.write(_encode([0, "watch"]))
        while (event := await self._events.get()) is not None:
            yield event
            if isinstance(event, Gap):
                self._writer.write(_encode([0, "watch"]))  # the answer begins with a snapshot

    async def close(self) -> None:
        self._end()
        await _closed(self._writer)

    async def _ask(self, what: str, *told: Any) -> list[Any] | None:
        """The answer; None if it does not come."""
        if self._over:
            return ["expired", 0]
        self._last += 1
        number, answer = self._last, asyncio.get_running_loop().create_future()
        self._asked[number] = answer
        try:
            self._writer.write(_encode([number, what, *told]))
            answered: list[Any] | None = await answer
        finally:
            self._asked.pop(number, None)
        if answered and answered[0] == "expired":
            self._end()
        return answered

    async def _beat(self) -> None:
        try:
            while not self._over:
                asked_s = self._env.clock.monotonic()
                if await self._ask("beat") == []:
                    self._heard_s = asked_s
                await asyncio.sleep(self._timeout_s / BEATS)
        finally:
            self._end()  # after an error that nobody foresaw: another session may get on

    async def _hear(self) -> None:
        try:
            while line := await self._reader.readline():
                match json.loads(line):
                    case [int(number), *told]:
                        if (answer := self._asked.get(number)) is not None and not answer.done():
                            answer.set_result(told)
                    case told:
                        self._take(decode_event(told))
        except (OSError, ValueError) as error:  # a holder that was killed may have sent half a line
            logger.debug("session %d: %r", self.id, error)
        finally:
            self._end()

    def _take(self, event: Event) -> None:
        if isinstance(event, StoreSnapshot):
            self._missed = False
        if self._missed:
            return
        if self._events.qsize() >= watching.MAX_WAITING_CHANGES:
            while not self._events.empty():
                self._events.get_nowait()
            self._missed, event = True, Gap()
        self._events.put_nowait(event)

    def _end(self) -> None:
        super()._end()
        self._events.put_nowait(None)
        for answer in self._asked.values():
            if not answer.done():
                answer.set_result(None)  # type: ignore[arg-type]


class SharedStore:
    """The store of another process, used through its socket."""

    def __init__(self, path: str, env: Env) -> None:
        self._path = path
        self._env = env
        self._session: SharedSession | None = None

    async def session(self, timeout_s: float) -> SharedSession:
        try:
            asked_s = self._env.clock.monotonic()
            reader, writer = await asyncio.open_unix_connection(self._path, limit=LONGEST_LINE)
            writer.write(_encode(timeout_s))
            line = await reader.readline()
        except OSError as error:
            raise StoreError(f"the process that holds the metadata store is gone: {error.strerror}") from None
        if not line.endswith(b"\n"):
            await _closed(writer)
            raise StoreError("the process that holds the metadata store is stopping, or can't begin a session now")
        self._session = SharedSession(reader, writer, json.loads(line), timeout_s, asked_s, self._env)
        return self._session

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

"""The metadata store in SQLite, through SQLAlchemy: embedded, one file in the data folder, one process.

The process that has the file open has locked it for itself. A session lasts as long as the store is open, and sessions
of an earlier process end when the file is opened again. A commit is one transaction (BEGIN IMMEDIATE, write-ahead log,
synchronous=FULL), so a commit that was answered is on disk. All statements run one after the other in a thread, by the
`blocking` of the broker's `Env`. The statements are SQLAlchemy's, so that another database can be a second dialect;
what only SQLite needs is in `_prepare_sqlite`.

A new file gets its tables at once. An older file is migrated by Alembic, which is imported only then, because the
import would add a tenth of a second to every start. A newer file is refused.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable
from functools import wraps
from itertools import groupby
from pathlib import Path
from sqlite3 import SQLITE_FULL
from threading import Lock
from typing import Any, TypeVar

from sqlalchemy import (
    Connection,
    Engine,
    bindparam,
    create_engine,
    delete,
    event,
    exc,
    func,
    insert,
    inspect,
    select,
    text,
    update,
)
from sqlalchemy.engine import make_url
from sqlalchemy.pool import StaticPool

from service.ports import Env
from service.stores.ledger import Conflict
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
    StoreFailed,
    StoreSnapshot,
    StoreTooNew,
)
from service.stores.seen_through import seen_through
from service.stores.sql_schema import COMMITS, ENTRIES, METADATA, REVISIONS, SESSIONS
from service.stores.watching import ChangeWatcher

logger = logging.getLogger("oncelog.store")

T = TypeVar("T")

END_AGAIN_S = 1.0
"""The pause before the end of a session is written again that could not be written."""

_PUT = (
    update(ENTRIES)
    .where(ENTRIES.c.key == bindparam("of"), ENTRIES.c.version == bindparam("at"))
    .values(value=bindparam("new"), version=bindparam("next"))
)
_DELETE = delete(ENTRIES).where(ENTRIES.c.key == bindparam("of"), ENTRIES.c.version == bindparam("at"))


Method = TypeVar("Method", bound=Callable[..., Any])


def _one_at_a_time(method: Method) -> Method:
    """Makes calls wait for each other. A call whose task was cancelled goes on in its thread, and the next one must
    wait for it.
    """

    @wraps(method)
    def guarded(database: "SqlDatabase", *arguments: Any) -> Any:
        with database.guard:
            return method(database, *arguments)

    return guarded  # type: ignore[return-value]


class SqlDatabase:
    """The database. Its methods block, and run one at a time."""

    def __init__(self, url: str) -> None:
        self.guard = Lock()
        self.engine = _engine_of(url)
        try:
            with self.engine.begin() as connection:
                _bring_up_to_date(connection, url)
                _end_sessions(connection, select(SESSIONS.c.id))
        except exc.OperationalError as error:
            self.engine.dispose()
            if "locked" in str(error.orig):
                raise StoreError(
                    f"the metadata store {url} is in use by another broker; --data FOLDER (or store.url) takes another"
                ) from error
            raise StoreError(f"the metadata store {url} can't be opened: {error.orig}") from error
        except exc.DatabaseError as error:
            self.engine.dispose()
            raise StoreError(f"the metadata store {url} can't be read: {error.orig}") from error
        except BaseException:
            self.engine.dispose()
            raise

    @_one_at_a_time
    def open_session(self) -> int:
        try:
            with self.engine.begin() as connection:
                (session,) = connection.execute(insert(SESSIONS)).inserted_primary_key or (None,)
                assert isinstance(session, int)
                return session
        except exc.DBAPIError as error:
            raise StoreFailed(f"the metadata store can't be written: {error.orig}") from error

    @_one_at_a_time
    def end_session(self, session: int) -> Change | None:
        """End the session. Returns the commit that removed its ephemeral keys, if it had any."""
        with self.engine.begin() as connection:
            return _end_sessions(connection, select(SESSIONS.c.id).where(SESSIONS.c.id == session))

    @_one_at_a_time
    def commit(self, session: int, ops: tuple[Op, ...]) -> tuple[Result, int]:
        try:
            with self.engine.begin() as connection:
                alive = select(SESSIONS.c.id).where(SESSIONS.c.id == session)
                if connection.execute(alive).first() is None:
                    return Result.EXPIRED, _number(connection)
                for kind, run in groupby(ops, type):
                    _carry_out(connection, kind, list(run), session)
                return Result.OK, _next_number(connection)
        except Conflict:
            with self.engine.connect() as connection:
                return Result.CONFLICT, _number(connection)
        except exc.DBAPIError as error:
            if getattr(error.orig, "sqlite_errorcode", None) == SQLITE_FULL:  # SQLite has rolled it back
                raise StoreFailed(f"the metadata store can't be written: {error.orig}") from error
            logger.error("the metadata store could not commit: %s", error.orig)
            return Result.UNKNOWN, 0

    @_one_at_a_time
    def alive(self, session: int) -> bool:
        with self.engine.connect() as connection:
            return connection.execute(select(SESSIONS.c.id).where(SESSIONS.c.id == session)).first() is not None

    @_one_at_a_time
    def number(self) -> int:
        with self.engine.connect() as connection:
            return _number(connection)

    @_one_at_a_time
    def snapshot(self, prefix: str = "") -> StoreSnapshot:
        found = select(ENTRIES.c.key, ENTRIES.c.value, ENTRIES.c.version).order_by(ENTRIES.c.key)
        if prefix:
            found = found.where(func.substr(ENTRIES.c.key, 1, len(prefix)) == prefix)
        with self.engine.begin() as connection:
            rows = connection.execute(found)
            return StoreSnapshot(_number(connection), {key: Entry(value, version) for key, value, version in rows})

    @_one_at_a_time
    def close(self) -> None:
        self.engine.dispose()


def _engine_of(url: str) -> Engine:
    try:
        parsed = make_url(url)
    except exc.ArgumentError:
        raise StoreError(f"store.url {url} is no URL: leave it out, or use sqlite:///FILE") from None
    if parsed.drivername != "sqlite":
        raise StoreError(
            f"store.url {url} names a database that is not offered: leave it out, or use sqlite:///FILE or postgresql://"
        )
    if parsed.database in (None, "", ":memory:"):
        raise StoreError(f"store.url {url} would forget every topic at the stop: leave it out, or use sqlite:///FILE")
    # One connection. One call at a time uses it, on whatever thread that call runs.
    engine = create_engine(parsed, poolclass=StaticPool, connect_args={"check_same_thread": False, "timeout": 0})
    event.listen(engine, "connect", _prepare_sqlite)
    event.listen(engine, "begin", _begin_immediately)
    return engine


def _prepare_sqlite(connection: Any, record: object) -> None:
    connection.isolation_level = None  # the driver's own BEGIN comes too late, and locks too little
    for pragma in ("locking_mode = EXCLUSIVE", "journal_mode = WAL", "synchronous = FULL"):
        connection.execute(f"PRAGMA {pragma}").fetchall()


def _begin_immediately(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")


def _bring_up_to_date(connection: Connection, url: str) -> None:
    if not inspect(connection).has_table("alembic_version"):
        METADATA.create_all(connection)
        connection.execute(insert(COMMITS), {"id": 1, "number": 0})
        connection.execute(text("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL PRIMARY KEY)"))
        connection.execute(text("INSERT INTO alembic_version VALUES (:revision)"), {"revision": REVISIONS[-1]})
        return
    stored = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
    if stored not in REVISIONS:
        raise StoreTooNew(
            f"the metadata store {url} was written by a newer oncelog (revision {stored}): start that version"
        )
    if stored != REVISIONS[-1]:
        migrate(connection, REVISIONS[-1])


def migrate(connection: Connection, revision: str) -> None:
    """Bring the tables to `revision`, inside the open transaction."""
    from alembic.command import upgrade
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    config.attributes["connection"] = connection
    upgrade(config, revision)


def _number(connection: Connection) -> int:
    number: int = connection.execute(select(COMMITS.c.number)).scalar_one()
    return number


def _next_number(connection: Connection) -> int:
    connection.execute(update(COMMITS).values(number=COMMITS.c.number + 1))
    return _number(connection)


def _end_sessions(connection: Connection, which: Any) -> Change | None:
    own = connection.execute(select(ENTRIES.c.key).where(ENTRIES.c.session.in_(which)).order_by(ENTRIES.c.key))
    keys = [key for (key,) in own]
    connection.execute(delete(ENTRIES).where(ENTRIES.c.session.in_(which)))
    connection.execute(delete(SESSIONS).where(SESSIONS.c.id.in_(which)))
    return Change(_next_number(connection), tuple((key, None) for key in keys)) if keys else None


def _carry_out(connection: Connection, kind: type[Op], run: list[Any], session: int) -> None:
    """Do consecutive ops of one kind in one statement. The partitions of a new topic, perhaps a thousand, are then one
    insert.
    """
    if kind is Create:
        rows = [
            {"key": op.key, "value": op.value, "version": 0, "session": session if op.ephemeral else None} for op in run
        ]
        try:
            connection.execute(insert(ENTRIES), rows)
        except exc.IntegrityError as error:
            raise Conflict from error
    elif kind is Put:
        puts = [{"of": op.key, "at": op.version, "new": op.value, "next": op.version + 1} for op in run]
        _all_or_conflict(connection.execute(_PUT, puts).rowcount, puts)
    elif kind is Delete:
        deletes = [{"of": op.key, "at": op.version} for op in run]
        _all_or_conflict(connection.execute(_DELETE, deletes).rowcount, deletes)
    else:
        for check in run:
            assert isinstance(check, Check)
            found = select(ENTRIES.c.version).where(ENTRIES.c.key == check.key)
            if connection.execute(found).scalar() != check.version:
                raise Conflict


def _all_or_conflict(changed: int, wanted: list[dict[str, Any]]) -> None:
    if changed != len(wanted):
        raise Conflict


def changes_of(ops: Iterable[Op]) -> tuple[tuple[str, Entry | None], ...]:
    """What `ops` did to each key, once they have been committed."""
    changed: list[tuple[str, Entry | None]] = []
    for op in ops:
        match op:
            case Create(key, value):
                changed.append((key, Entry(value, 0)))
            case Put(key, value, version):
                changed.append((key, Entry(value, version + 1)))
            case Delete(key):
                changed.append((key, None))
            case Check():
                pass
    return tuple(changed)


class SqlSession:
    """One session of a broker in the store. It lasts until it is closed, or the store is closed."""

    def __init__(self, store: "SqlStore", session: int) -> None:
        self.id = session
        self._store = store
        self._watchers: list[ChangeWatcher] = []
        self._ended = False

    def lease_left(self) -> float:
        # While the store is open no other process can use the file, so nobody else can end the session.
        return 0.0 if self._ended else float("inf")

    async def commit(self, *ops: Op) -> tuple[Result, int]:
        if self._ended:  # the file may not say so yet
            return Result.EXPIRED, 0

        def commit(database: SqlDatabase) -> tuple[tuple[Result, int], Change]:
            outcome = database.commit(self.id, ops)
            return outcome, Change(outcome[1], changes_of(ops))  # here, not in the loop: there may be very many

        def publish(made: tuple[tuple[Result, int], Change]) -> None:
            (result, _), change = made
            if result is Result.OK:
                self._store.publish(change)

        outcome, _ = await self._store.run(commit, publish)
        return outcome

    async def read(self, prefix: str) -> dict[str, Entry]:
        if self._ended:
            raise SessionExpired
        snapshot = await self._store.run(
            lambda database: database.snapshot(prefix) if database.alive(self.id) else None
        )
        if snapshot is None:
            raise SessionExpired
        return snapshot.entries

    async def newest(self) -> int | None:
        if self._ended:
            raise SessionExpired
        try:
            number = await self._store.run(lambda database: database.number() if database.alive(self.id) else None)
        except exc.DBAPIError as error:
            logger.error("the metadata store can't be read: %s", error.orig)
            return None
        if number is None:
            raise SessionExpired
        return number

    async def watch(self) -> AsyncIterator[Event]:
        if self._ended:
            return
        watcher = ChangeWatcher(lambda: self._store.run(lambda database: database.snapshot()))
        self._watchers.append(watcher)
        try:
            async for happened in watcher.events():
                yield happened
        finally:
            self._watchers.remove(watcher)

    async def close(self) -> None:
        await self._store.end_session(self)

    def publish(self, change: Change) -> None:
        for watcher in self._watchers:
            watcher.publish(change)

    def end(self) -> None:
        self._ended = True
        for watcher in self._watchers:
            watcher.end()


class SqlStore:
    """The store as the broker uses it. Open it with `SqlStore.open`."""

    def __init__(self, database: SqlDatabase, env: Env) -> None:
        self._database = database
        self._env = env
        self._sessions: list[SqlSession] = []
        self._turn = asyncio.Lock()
        self._is_closed = False

    @classmethod
    async def open(cls, url: str, env: Env) -> "SqlStore":
        """Raises `StoreError` with one clear line when the store can't be used."""
        return cls(await env.blocking(SqlDatabase, url), env)

    async def session(self, timeout_s: float) -> SqlSession:
        session = SqlSession(self, await self.run(SqlDatabase.open_session))
        self._sessions.append(session)
        return session

    async def end_session(self, session: SqlSession) -> None:
        """End the session at once, and remove its ephemeral keys. If the file can't be written now, that is tried again
        for as long as the store is open. Keys that stayed would say that a broker is there that is gone.
        """
        session.end()
        if session in self._sessions:
            self._sessions.remove(session)
            if trouble := await self._remove(session):
                logger.error("session %d of the metadata store can't be ended yet: %s", session.id, trouble)
                self._env.tasks.spawn(f"end of session {session.id}", self._remove_later(session))

    async def _remove_later(self, session: SqlSession) -> None:
        while True:
            await asyncio.sleep(END_AGAIN_S)
            if not await self._remove(session):
                return

    async def _remove(self, session: SqlSession) -> str:
        """Remove the session from the file. Returns why that was not possible; otherwise nothing."""

        def removed(change: Change | None) -> None:
            if change is not None:
                self.publish(change)

        if not self._is_closed:
            try:
                await self.run(lambda database: database.end_session(session.id), removed)
            except exc.DBAPIError as error:
                return str(error.orig)
        return ""

    async def close(self) -> None:
        """Close the file. Sessions still open end when it is opened again."""
        self._is_closed = True  # no later call would close what it opens
        for session in self._sessions:
            session.end()
        await self.run(SqlDatabase.close)

    def publish(self, change: Change) -> None:
        for session in self._sessions:
            session.publish(change)

    async def run(self, call: Callable[[SqlDatabase], T], then: Callable[[T], None] = lambda _: None) -> T:
        """Run `call` in a thread, after all earlier calls, and then `then` in the loop, before any later call. Both run
        even if the caller is cancelled.
        """

        async def job() -> T:
            async with self._turn:
                result = await self._env.blocking(call, self._database)
                then(result)
                return result

        return await seen_through(self._env, job())

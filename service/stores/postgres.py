"""PostgreSQL as a ledger, through SQLAlchemy and psycopg: a cluster's metadata without ZooKeeper.

| table | |
|---|---|
| `oncelog_head` | one row: the number of the newest record. To append is to raise it by one |
| `oncelog_records` | the records |
| `oncelog_base` | one row: the newest base and its number |
| `oncelog_sessions` | the sessions that are alive, and until when each is without a further sign of life |

What always holds: an append is one transaction of the database, so a record is there wholly or not at all. A session is
over when its row is gone, and not before. An append reads the row of its session under a lock, so it happens before the
session ends or not at all. `living` first removes the rows whose time is up, by the database's clock. If the answer to
an append was lost, the next append waits for the lost one at the row of the head.

A database may hang, or wait for a standby that is gone, while its machine answers for its connections. So a call that
has taken the session's timeout loses its connection, and with it its answer.

The database announces new records by NOTIFY. That is a hint, and may be lost. Of several addresses
(`postgresql://one,two:5433/metadata`) libpq takes the first whose database can be written to. If the database fails
over, what it had answered must still be there, so its replication must be synchronous.
"""

import asyncio
import logging
import os
import re
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, TypeVar

import psycopg
from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    DateTime,
    Engine,
    Identity,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    create_engine,
    delete,
    event,
    exc,
    func,
    insert,
    literal_column,
    select,
    text,
    update,
)
from sqlalchemy.dialects.postgresql import insert as insert_or_leave
from sqlalchemy.engine import URL, make_url

from service.ports import Env
from service.stores.lease import BEATS, Leased
from service.stores.ledger import AppendOutcome, LedgerAway
from service.stores.port import SessionExpired, StoreError

logger = logging.getLogger("oncelog.store")

T = TypeVar("T")

CHANNEL: Final = "oncelog"
DRIVER: Final = "postgresql+psycopg"
READ_AT_ONCE: Final = 500
RECONNECT_S: Final = 0.5
MAKING_TABLES: Final = 7_355_608
"""The lock under which the tables are created: any number that others do not use."""
_PARTS: Final = re.compile(r"(?P<before>\w+://(?:[^/:]*(?::[^@]*)?@)?)(?P<where>[^/?]*)(?P<after>.*)")
_ADDRESS: Final = re.compile(r"(?:\[(?P<six>[^]]+)]|(?P<name>[^]:[@]+))(?::(?P<port>\d*))?")

METADATA = MetaData()
HEAD = Table(
    "oncelog_head", METADATA, Column("id", Integer, primary_key=True), Column("number", BigInteger, nullable=False)
)
RECORDS = Table(
    "oncelog_records",
    METADATA,
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("record", LargeBinary, nullable=False),
)
BASE = Table(
    "oncelog_base",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("number", BigInteger, nullable=False),
    Column("base", LargeBinary, nullable=False),
)
SESSIONS = Table(
    "oncelog_sessions",
    METADATA,
    Column("id", BigInteger, Identity(), primary_key=True),
    Column("lives_until", DateTime(timezone=True), nullable=False),
)
NOW = func.clock_timestamp()


class PostgresSession(Leased):
    """See `LedgerSession`."""

    def __init__(self, url: URL, timeout_s: float, env: Env) -> None:
        super().__init__(timeout_s, env)
        self.id = -1
        self._url = url
        self._engine = _engine_of(url, timeout_s)
        self._turn = asyncio.Lock()  # one call at a time, on one connection
        self._wires: list[socket.socket] = []
        """The sockets of the connections that were made, duplicated: shutting one ends what a thread waits for on it.
        The newest is the one in use.
        """
        event.listen(self._engine, "connect", self._connected, insert=True)  # before SQLAlchemy asks anything on it
        self._hearing: psycopg.AsyncConnection[object] | None = None
        self._listening: asyncio.Task[None] | None = None

    @classmethod
    async def connect(cls, url: str, timeout_s: float, env: Env) -> "PostgresSession":
        """A session, once the database answers. Raises `StoreError`."""
        session = cls(_parsed(url), timeout_s, env)
        try:
            session.id = await session._run(session._begin)
            session._hearing = await session._hear()
        except (LedgerAway, psycopg.Error, TimeoutError) as away:
            await session._leave()
            where = session._url.render_as_string(hide_password=True)
            raise StoreError(f"the metadata store {where} can't be used: {_in_one_line(away)}") from None
        env.tasks.spawn(f"heartbeat of session {session.id}", session._beat())
        session._listening = env.tasks.spawn(f"hints of session {session.id}", session._listen())
        return session

    def _begin(self, connection: Connection) -> int:
        connection.execute(select(func.pg_advisory_xact_lock(MAKING_TABLES)))
        METADATA.create_all(connection)
        connection.execute(insert_or_leave(HEAD).values(id=1, number=0).on_conflict_do_nothing())
        connection.execute(insert_or_leave(BASE).values(id=1, number=0, base=b"").on_conflict_do_nothing())
        made = connection.execute(insert(SESSIONS).values(lives_until=self._lives_until()).returning(SESSIONS.c.id))
        session: int = made.scalar_one()
        return session

    def _lives_until(self) -> object:
        return NOW + text(f"interval '{self._timeout_s} seconds'")

    # -- life

    async def _beat(self) -> None:
        try:
            while not self._over:
                await asyncio.sleep(self._timeout_s / BEATS)
                try:
                    await self.confirmed_newest()
                    await self.living()  # ends the sessions of brokers that died
                except LedgerAway as away:
                    logger.warning("the metadata store does not answer: %s", away)  # the lease limits how long
                except SessionExpired:
                    break
        except Exception:  # nobody foresaw it: another session may get on
            self._end()
            raise

    async def _hear(self) -> psycopg.AsyncConnection[object]:
        """A connection that receives the database's notifications."""
        connection = await psycopg.AsyncConnection.connect(**_arguments(self._engine.url), autocommit=True)
        try:
            async with asyncio.timeout(self._timeout_s):
                await connection.execute(f"LISTEN {CHANNEL}")
        except BaseException:
            await connection.close()
            raise
        return connection

    async def _listen(self) -> None:
        while not self._over:
            try:
                if self._hearing is None or self._hearing.closed:
                    self._hearing = await self._hear()
                    self._stirred.set()  # notifications may have been missed until now
                async for _ in self._hearing.notifies():
                    self._stirred.set()
            except (psycopg.Error, OSError) as error:
                logger.debug("no hints from the metadata store: %s", error)
            await asyncio.sleep(RECONNECT_S)

    async def close(self) -> None:
        is_heard = self.lease_left() > 0
        self._end()
        if is_heard:  # otherwise nobody may answer, and the session's time is nearly up
            try:
                async with self._turn:
                    await self._in_thread(lambda connection: _end_sessions(connection, SESSIONS.c.id == self.id))
            except LedgerAway as away:
                logger.warning("the session ends when its time is up: %s", away)
        if self._listening is not None:
            self._listening.cancel()  # before its connection closes: the next may get its descriptor
            await asyncio.wait([self._listening])
        if self._hearing is not None:
            await self._hearing.close()
        async with self._turn:  # otherwise a call in work would leave its connection open
            await self._leave()

    async def _leave(self) -> None:
        self._cut()
        await self._env.blocking(self._engine.dispose)
        self._cut()  # a call that was given up may have connected again
        while self._wires:
            self._wires.pop().close()

    async def _run(self, call: Callable[[Connection], T]) -> T:
        """Run `call` in a transaction, in a thread. Raises `LedgerAway` and `SessionExpired`."""
        asked_s = self._env.clock.monotonic()
        async with self._turn:
            if self._over:
                raise SessionExpired
            found = await self._in_thread(call)
        if self._heard_s == float("-inf"):
            self._heard_s = asked_s
        return found

    async def _in_thread(self, call: Callable[[Connection], T]) -> T:
        """In one's turn. A thread ends before the next one begins: each that hung would be one less for others."""
        limit = self._env.tasks.spawn(f"time limit of session {self.id}", self._limit())
        try:
            return await self._env.blocking(_in_transaction, self._engine, call)
        except exc.SQLAlchemyError as error:
            raise LedgerAway(_in_one_line(getattr(error, "orig", None) or error)) from None
        except asyncio.CancelledError:
            self._cut()  # nobody limits the thread any more, and a process waits for its threads at its end
            raise
        finally:
            limit.cancel()
            while len(self._wires) > 1:
                self._wires.pop(0).close()

    async def _limit(self) -> None:
        """Again and again, because the thread goes on with a new connection if it only looked whether the old was good.
        To connect has a limit of its own.
        """
        while True:
            await asyncio.sleep(self._timeout_s)
            self._cut()

    def _cut(self) -> None:
        for wire in self._wires:
            with suppress(OSError):  # it is shut already
                wire.shutdown(socket.SHUT_RDWR)

    def _connected(self, connection: Any, _: object) -> None:
        """In a thread."""
        self._wires.append(socket.socket(fileno=os.dup(connection.fileno())))

    # -- the ledger

    async def newest(self) -> int:
        return await self._run(lambda connection: connection.execute(select(HEAD.c.number)).scalar_one())

    async def confirmed_newest(self) -> int:
        """A sign of life: a database that was replaced can't write it, because its standby does not follow it any more.
        It touches no row of another broker, so nobody's append waits for it or comes too late by it.
        """
        mine = update(SESSIONS).where(SESSIONS.c.id == self.id).values(lives_until=self._lives_until())
        asking = mine.returning(select(HEAD.c.number).scalar_subquery())
        asked_s = self._env.clock.monotonic()
        number: int | None = await self._run(lambda connection: connection.execute(asking).scalar_one_or_none())
        if number is None:
            self._end()
            raise SessionExpired
        self._heard_s = max(self._heard_s, asked_s)
        return number

    async def append(self, number: int, record: bytes) -> AppendOutcome:
        def append(connection: Connection) -> AppendOutcome:
            alive = select(SESSIONS.c.id).where(SESSIONS.c.id == self.id).with_for_update(read=True)
            if connection.execute(alive).first() is None:
                return AppendOutcome.EXPIRED
            raised = update(HEAD).where(HEAD.c.number == number - 1).values(number=number)
            if not connection.execute(raised).rowcount:
                return AppendOutcome.BEHIND
            connection.execute(insert(RECORDS).values(number=number, record=record))
            _notify(connection)
            return AppendOutcome.OK

        try:
            outcome = await self._run(append)
        except LedgerAway as away:
            logger.warning("whether a change of the metadata was stored is unknown: %s", away)
            return AppendOutcome.UNKNOWN
        except SessionExpired:
            return AppendOutcome.EXPIRED
        if outcome is AppendOutcome.EXPIRED:
            self._end()
        return outcome

    async def read(self, after: int) -> list[bytes] | None:
        wanted = (
            select(RECORDS.c.number, RECORDS.c.record)
            .where(RECORDS.c.number > after)
            .order_by(RECORDS.c.number)
            .limit(READ_AT_ONCE)
        )
        rows = await self._run(lambda connection: connection.execute(wanted).all())
        if not rows or rows[0].number != after + 1:
            return None
        return [bytes(row.record) for row in rows]

    async def base(self) -> tuple[int, bytes]:
        row = await self._run(lambda connection: connection.execute(select(BASE.c.number, BASE.c.base)).one())
        return row.number, bytes(row.base)

    async def set_base(self, number: int, base: bytes, *, drop_to: int) -> None:
        def set_base(connection: Connection) -> None:
            connection.execute(update(BASE).where(BASE.c.number < number).values(number=number, base=base))
            connection.execute(delete(RECORDS).where(RECORDS.c.number <= drop_to))

        await self._run(set_base)

    async def living(self) -> frozenset[int]:
        def living(connection: Connection) -> frozenset[int]:
            if _end_sessions(connection, SESSIONS.c.lives_until < NOW):
                _notify(connection)
            return frozenset(connection.execute(select(SESSIONS.c.id)).scalars())

        return await self._run(living)


def _in_one_line(error: BaseException) -> str:
    """The library says it in several."""
    return " ".join(str(error).split())


def _end_sessions(connection: Connection, which: object) -> int:
    ended: int = connection.execute(delete(SESSIONS).where(which)).rowcount  # type: ignore[arg-type]
    if ended:
        _notify(connection)
    return ended


def _notify(connection: Connection) -> None:
    connection.execute(select(func.pg_notify(CHANNEL, literal_column("''"))))


def _in_transaction(engine: Engine, call: Callable[[Connection], T]) -> T:
    try:
        with engine.begin() as connection:
            return call(connection)
    except exc.SQLAlchemyError:
        engine.dispose()  # the connection may be good, and the database one that can't be written to any more
        raise


def _parsed(url: str) -> URL:
    """SQLAlchemy does not know several addresses where one stands (`one:1,[::2]:2`), as libpq and its users write them.
    Raises `StoreError`.
    """
    try:
        parts = _PARTS.fullmatch(url)
        if parts is None or "," not in parts["where"]:
            made = make_url(url)
        else:
            hosts, ports = zip(*map(_address, parts["where"].split(",")), strict=True)
            made = make_url(parts["before"] + parts["after"]).update_query_dict({"host": ",".join(hosts)})
            if any(ports):
                made = made.update_query_dict({"port": ",".join(ports)})
        _arguments(made)  # which refuses what nobody could connect to
    except (exc.ArgumentError, ValueError):
        raise StoreError("store.url is no postgresql://USER:PASSWORD@HOST:PORT,HOST:PORT/DATABASE") from None
    return made


def _address(written: str) -> tuple[str, str]:
    """A host and its port, which may be empty. Raises `ValueError`."""
    if (address := _ADDRESS.fullmatch(written)) is None:
        raise ValueError(written)
    return address["six"] or address["name"], address["port"] or ""


def _engine_of(url: URL, timeout_s: float) -> Engine:
    patience_s = max(int(timeout_s / 2), 2)  # libpq accepts no less than 2
    terms = {
        "target_session_attrs": "read-write",
        "connect_timeout": str(patience_s),
        "tcp_user_timeout": str(patience_s * 1000),
        # A connection that waits for notifications sends nothing by itself: it would never learn that the other end is
        # gone.
        "keepalives_idle": str(patience_s),
        "keepalives_interval": "1",
        "keepalives_count": str(patience_s),
        "options": f"-c statement_timeout={patience_s * 1000}",
    }
    return create_engine(
        url.set(drivername=DRIVER).update_query_dict({**terms, **url.query}),
        pool_size=1,
        pool_pre_ping=True,
        isolation_level="READ COMMITTED",  # whatever the database's default: a stricter one refuses what comes together
    )


def _arguments(url: URL) -> dict[str, Any]:
    """What psycopg is given to connect. Raises `ArgumentError` and `ValueError`."""
    _, arguments = url.set(drivername=DRIVER).get_dialect()().create_connect_args(url)
    return dict(arguments)

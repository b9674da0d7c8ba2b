"""What the contract leaves open, on the real PostgreSQL: a database that crashes, sessions that run out, newcomers,
hints that are lost, failing over to a standby.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, LiteralString

import psycopg
import pytest

from log.disk import RealDisk
from service.ports import RealEnv
from service.stores import ledger, postgres
from service.stores.ledger import LedgerStore
from service.stores.port import Change, Create, Put, Result, StoreError, StoreSession, StoreSnapshot
from service.stores.postgres import RECONNECT_S, PostgresSession
from tests.peers.postgres import PostgresServer, missing
from tests.service.broker.cluster_stage import until
from tests.service.stores.ledgers import Connect, keys_until, play, store_over, until_ok

pytestmark = pytest.mark.skipif(missing() is not None, reason=missing() or "")
PATIENCE_S = 60.0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[PostgresServer]:
    server = PostgresServer(tmp_path / "postgres")
    server.start()
    yield server
    server.stop()


def at(url: str) -> Connect:
    return lambda timeout_s, env: PostgresSession.connect(url, timeout_s, env)


def test_a_session_outlives_a_crash_of_the_database(server: PostgresServer, caplog: pytest.LogCaptureFixture) -> None:
    async def promise(store: LedgerStore) -> None:
        one, other = await store.session(20), await store.session(20)
        events = aiter(other.watch())
        await anext(events)
        await one.commit(Create("mine", b"", ephemeral=True))
        await asyncio.to_thread(server.stop)
        assert (await one.commit(Create("lost", b"")))[0] is Result.UNKNOWN
        (told,) = [each for each in caplog.messages if "stored is unknown: connection failed" in each]
        assert "\n" not in told
        await asyncio.to_thread(server.start)
        await until_ok(one, "after")
        assert await keys_until(events, "after") == ["mine", "after"]
        assert "mine" in await other.read("")
        assert one.lease_left() > 0

    play(at(server.url), promise)


@contextmanager
def pair(folder: Path) -> Iterator[tuple[PostgresServer, PostgresServer]]:
    """A database, and its standby that has everything that was committed."""
    first = PostgresServer(folder / "first")
    servers = [first]
    try:
        first.start()
        servers.append(standby := PostgresServer(folder / "standby", copies=first))
        standby.start()
        order(first, "ALTER SYSTEM SET synchronous_standby_names = '*'", "SELECT pg_reload_conf()")
        yield first, standby
    finally:
        for server in servers:
            server.stop()


def order(server: PostgresServer, *orders: LiteralString) -> None:
    with psycopg.connect(server.url, autocommit=True) as connection:
        for each in orders:
            connection.execute(each)


def either(one: PostgresServer, other: PostgresServer) -> str:
    return f"postgresql://oncelog@127.0.0.1:{one.port},127.0.0.1:{other.port}/postgres"


def test_a_session_goes_on_at_the_next_address_when_the_database_fails_over(tmp_path: Path) -> None:
    with pair(tmp_path) as (first, standby):

        async def promise(store: LedgerStore) -> None:
            one, other = await store.session(20), await store.session(20)
            events = aiter(other.watch())
            await anext(events)
            await one.commit(Create("mine", b"", ephemeral=True))
            await asyncio.to_thread(first.stop)
            await asyncio.to_thread(standby.promote)
            await until_ok(one, "after")
            assert await keys_until(events, "after") == ["mine", "after"]
            await asyncio.sleep(2 * RECONNECT_S)
            at_s = time.monotonic()
            assert (await one.commit(Create("hinted", b"")))[0] is Result.OK
            await anext(events)
            assert time.monotonic() - at_s < ledger.REREAD_S / 2, "the new database announces what is new"
            assert one.lease_left() > 0

        # The standby is asked first, as long as nobody may write to it.
        play(at(either(standby, first)), promise)


def test_a_session_leaves_a_database_that_was_made_read_only(tmp_path: Path) -> None:
    """As an operator does who lets the standby take its place: it stays up, and so does the connection."""
    with pair(tmp_path) as (first, standby):

        async def promise(store: LedgerStore) -> None:
            one = await store.session(20)
            await until_ok(one, "before")
            await asyncio.to_thread(
                order,
                first,
                "ALTER SYSTEM SET default_transaction_read_only = on",
                "ALTER SYSTEM SET synchronous_standby_names = ''",
                "SELECT pg_reload_conf()",
            )
            await asyncio.to_thread(standby.promote)
            await asyncio.wait_for(until_ok(one, "after"), 10)
            assert one.lease_left() > 0

        play(at(either(first, standby)), promise)


def test_a_database_that_hangs_is_left_after_the_timeout(tmp_path: Path) -> None:
    """Its machine still answers for its connections, so nothing but the time tells."""
    with pair(tmp_path) as (first, standby):

        async def promise(store: LedgerStore) -> None:
            one = await store.session(3)
            await until_ok(one, "before")
            first.pause()
            try:
                doubtful = asyncio.ensure_future(one.commit(Create("doubtful", b"")))
                await asyncio.to_thread(standby.promote)
                at_s = time.monotonic()
                await asyncio.wait_for(doubtful, 10)  # stored by the new database, of unknown outcome, or too late
                another = await store.session(3)
                await until_ok(another, "after")
                await one.close()
                assert time.monotonic() - at_s < 30
            finally:
                first.resume()

        play(at(either(first, standby)), promise)


def test_a_session_is_closed_in_time_while_nobody_answers(server: PostgresServer) -> None:
    async def promise(store: LedgerStore) -> None:
        one = await store.session(2)
        await until_ok(one, "before")
        order(server, "ALTER SYSTEM SET synchronous_standby_names = 'gone'", "SELECT pg_reload_conf()")
        threads, at_s = threading.active_count(), time.monotonic()
        waiting = asyncio.ensure_future(one.commit(Create("waits", b"")))
        assert (await waiting)[0] in (Result.UNKNOWN, Result.EXPIRED)
        assert one.lease_left() <= 0
        await one.close()
        assert time.monotonic() - at_s < 10
        assert threading.active_count() <= threads + 1

    play(at(server.url), promise)


def test_a_call_that_is_given_up_leaves_no_thread_behind(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that was to stop while it started waited for that thread for ever."""
    in_work, in_transaction = [0], postgres._in_transaction

    def counted(*of: Any) -> Any:
        in_work[0] += 1
        try:
            return in_transaction(*of)
        finally:
            in_work[0] -= 1

    monkeypatch.setattr(postgres, "_in_transaction", counted)

    async def main() -> None:
        env = RealEnv(RealDisk("."))
        one = await PostgresSession.connect(server.url, 60, env)
        order(server, "ALTER SYSTEM SET synchronous_standby_names = 'gone'", "SELECT pg_reload_conf()")
        try:
            waiting = asyncio.ensure_future(one.append(1, b""))
            await asyncio.sleep(1)
            assert in_work == [1]
            waiting.cancel()
            await until(lambda: in_work == [0], within_s=5)
        finally:
            order(server, "ALTER SYSTEM SET synchronous_standby_names = ''", "SELECT pg_reload_conf()")
        await one.close()
        await env.tasks.cancel_all()

    asyncio.run(main())


@pytest.mark.parametrize("isolation", ["serializable", "repeatable read"])
def test_a_database_whose_transactions_are_isolated_more_by_default_is_used_all_the_same(
    server: PostgresServer, isolation: LiteralString
) -> None:
    """Every third commit was of unknown outcome, though nothing had happened to it."""
    order(server, f"ALTER SYSTEM SET default_transaction_isolation = '{isolation}'", "SELECT pg_reload_conf()")

    async def promise(store: LedgerStore) -> None:
        several = [await store.session(20) for _ in range(4)]

        async def commits(session: StoreSession, name: str) -> None:
            for number in range(15):
                result, _ = await session.commit(Create(f"{name}{number}", b""))
                assert result is Result.OK

        await asyncio.gather(*(commits(session, f"of{at}-") for at, session in enumerate(several)))

    play(at(server.url), promise)


def test_a_database_whose_standby_is_gone_confirms_nothing(server: PostgresServer) -> None:
    """The standby may have taken its place, and have answered commits that this one does not know. It still reads."""
    with psycopg.connect(server.url, autocommit=True) as connection:

        def followed_by(names: str) -> None:
            connection.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{names}'")
            connection.execute("SELECT pg_reload_conf()")

        async def promise(store: LedgerStore) -> None:
            one = await store.session(20)
            _, number = await one.commit(Create("a", b""))
            assert await one.newest() == number
            followed_by("gone")
            try:
                await asyncio.sleep(0.5)  # every process of the database reads it
                asking = asyncio.ensure_future(one.newest())
                await asyncio.wait([asking], timeout=1)
                assert not asking.done()
            finally:
                followed_by("")
            assert await asking == number

        play(at(server.url), promise)


def test_what_a_silent_session_left_goes_when_its_time_is_up(server: PostgresServer) -> None:
    async def promise(store: LedgerStore) -> None:
        other = await store.session(2)
        events = aiter(other.watch())
        assert isinstance(await anext(events), StoreSnapshot)
        env = RealEnv(RealDisk("."))
        fallen_silent = LedgerStore(lambda timeout_s: PostgresSession.connect(server.url, timeout_s, env), env)
        one = await fallen_silent.session(2)
        await one.commit(Create("mine", b"", ephemeral=True))
        assert isinstance(await anext(events), Change)
        await env.tasks.cancel_all()  # no sign of life any more
        change = await anext(events)
        assert isinstance(change, Change)
        assert change.entries == (("mine", None),)
        assert (await one.commit(Create("late", b"")))[0] is Result.EXPIRED
        await fallen_silent.close()
        await env.tasks.cancel_all()

    play(at(server.url), promise)


def test_a_session_is_gone_at_once_when_its_process_stops(server: PostgresServer) -> None:
    """The tasks of a broker end first, the sign of life among them."""

    async def promise(store: LedgerStore) -> None:
        other = await store.session(20)
        async with store_over(at(server.url)) as stopping:
            one = await stopping.session(60)
            await one.commit(Create("mine", b"", ephemeral=True))
            events = aiter(other.watch())
            await anext(events)
            await asyncio.sleep(1)  # nothing is being asked: a thread that is given up may leave its connection open
            await stopping._env.tasks.cancel_all()
        change = await asyncio.wait_for(anext(events), 10)
        assert isinstance(change, Change)
        assert change.entries == (("mine", None),)

    play(at(server.url), promise)


def test_a_newcomer_begins_with_the_base_and_old_records_go(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger, "BASE_EVERY", 20)
    monkeypatch.setattr(ledger, "KEPT_RECORDS", 40)

    async def promise(store: LedgerStore) -> None:
        one = await store.session(20)
        await one.commit(Create("count", b"0"))
        commits = 80
        for version in range(commits):
            assert (await one.commit(Put("count", b"%d" % version, version)))[0] is Result.OK
        newcomer = await store.session(20)
        assert (await newcomer.read("count"))["count"] == (b"%d" % (commits - 1), commits)
        async with await psycopg.AsyncConnection.connect(server.url) as connection:
            for _ in range(100):
                row = await (await connection.execute("SELECT count(*) FROM oncelog_records")).fetchone()
                await connection.rollback()
                if row is not None and row[0] <= 60:
                    return
                await asyncio.sleep(0.1)
        raise AssertionError(row)

    play(at(server.url), promise)


def test_a_database_that_is_not_there_is_told_in_one_line() -> None:
    async def promise(store: LedgerStore) -> None:
        with pytest.raises(StoreError, match=r"postgresql://me:\*\*\*@127\.0\.0\.1:1/nothing can't be used.*TCP/IP"):
            await store.session(1)

    play(at("postgresql://me:secret@127.0.0.1:1/nothing"), promise)


@pytest.mark.parametrize(
    "where",
    ["one:here", "one,two:here", "[::1", "[::1]:1,::2", "[::1]:1,", "me@one,two", "/?host=[::1]:1&host=[::2]:2"],
)
def test_an_address_that_is_none_is_told_in_one_line(where: str) -> None:
    async def promise(store: LedgerStore) -> None:
        with pytest.raises(StoreError, match=r"store\.url is no postgresql://"):
            await store.session(1)

    play(at(f"postgresql://me:secret@{where}/nothing"), promise)


def test_several_addresses_may_be_of_ipv6(server: PostgresServer) -> None:
    async def promise(store: LedgerStore) -> None:
        assert (await (await store.session(20)).commit(Create("a", b"")))[0] is Result.OK

    play(at(f"postgresql://oncelog:[,@[::1]:1,[::2],127.0.0.1:{server.port}/postgres"), promise)

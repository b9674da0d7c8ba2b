"""The metadata store's contract, held on every implementation.

Each test is a promise of `service.stores.port`. A `Harness` makes sessions on one store and can end one as a
failure would.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol
from uuid import uuid4

import psycopg
import pytest
from kazoo.client import KazooClient

from log.disk import RealDisk
from service.ports import RealEnv
from service.stores import watching
from service.stores.ledger import LedgerStore
from service.stores.memory import MemoryServer, MemoryStore
from service.stores.port import (
    Change,
    Check,
    Create,
    Delete,
    Entry,
    Event,
    Gap,
    Op,
    Put,
    Result,
    SessionExpired,
    StoreSession,
    StoreSnapshot,
)
from service.stores.postgres import PostgresSession
from service.stores.shared import SharedStore, StoreServer
from service.stores.sql import SqlStore
from service.stores.zookeeper import ZooKeeper, ZooKeeperSession
from tests.peers.postgres import PostgresServer
from tests.peers.postgres import missing as postgres_missing
from tests.peers.zookeeper import ZooKeeperServer, missing


class Harness(Protocol):
    async def session(self) -> StoreSession: ...

    async def expire(self, session: StoreSession) -> None:
        """End the session from the store's side."""
        ...


class MemoryHarness:
    def __init__(self, env: RealEnv) -> None:
        self.server = MemoryServer(env.clock)
        self.store = MemoryStore(self.server, env)

    async def session(self) -> StoreSession:
        return await self.store.session(60)

    async def expire(self, session: StoreSession) -> None:
        self.server.end_session(session.id)


class SqlHarness:
    def __init__(self, store: SqlStore) -> None:
        self.store = store

    async def session(self) -> StoreSession:
        return await self.store.session(60)

    async def expire(self, session: StoreSession) -> None:
        await session.close()


class ZooKeeperHarness:
    def __init__(self, place: ZooKeeper, env: RealEnv) -> None:
        self._env = env
        self._ledgers: dict[int, ZooKeeperSession] = {}
        self._place = place
        self.store = LedgerStore(self._connect, env)

    async def _connect(self, timeout_s: float) -> ZooKeeperSession:
        ledger = await self._place.session(timeout_s, self._env)
        self._ledgers[ledger.id] = ledger
        return ledger

    async def session(self) -> StoreSession:
        return await self.store.session(60)

    async def expire(self, session: StoreSession) -> None:
        """As another client that has the session's password: ZooKeeper then ends it for both."""
        twin = KazooClient(self._place.connect, client_id=self._ledgers[session.id]._client.client_id)
        await self._env.blocking(twin.start)
        await self._env.blocking(twin.stop)
        await self._env.blocking(twin.close)


class PostgresHarness:
    def __init__(self, url: str, env: RealEnv) -> None:
        self._url = url
        self._env = env
        self.store = LedgerStore(self._connect, env)

    async def _connect(self, timeout_s: float) -> PostgresSession:
        return await PostgresSession.connect(self._url, timeout_s, self._env)

    async def session(self) -> StoreSession:
        return await self.store.session(60)

    async def expire(self, session: StoreSession) -> None:
        """As the database's clock would."""
        async with await psycopg.AsyncConnection.connect(self._url, autocommit=True) as connection:
            timed_out = "UPDATE oncelog_sessions SET lives_until = '-infinity' WHERE id = %s"
            await connection.execute(timed_out, (session.id,))
        observer = await self.store.session(60)
        await observer.read("")  # a look for the living ends the others


class SharedHarness:
    """Every session has a connection of its own, as every broker of a machine has."""

    def __init__(self, sql: SqlStore, path: str, env: RealEnv) -> None:
        self._path = path
        self._env = env
        self._sql = sql
        self.server = StoreServer(sql, env, path)
        self.stores: list[SharedStore] = []

    async def session(self) -> StoreSession:
        self.stores.append(SharedStore(self._path, self._env))
        return await self.stores[-1].session(60)

    async def expire(self, session: StoreSession) -> None:
        [held] = [each for each in self._sql._sessions if each.id == session.id]
        await held.close()


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], str]]:
    """Starts the real server when somebody first asks for its address; each gets a database of its own."""
    servers: list[PostgresServer] = []

    def url() -> str:
        if reason := postgres_missing():
            pytest.skip(reason)
        if not servers:
            servers.append(PostgresServer(tmp_path_factory.mktemp("postgres") / "server"))
            servers[0].start()
        name = f"d{uuid4().hex}"
        with psycopg.connect(servers[0].url, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        return servers[0].url.removesuffix("postgres") + name

    yield url
    for server in servers:
        server.stop()


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], str]]:
    """Starts the real server when somebody first asks for its address."""
    servers: list[ZooKeeperServer] = []

    def address() -> str:
        if reason := missing():
            pytest.skip(reason)
        if not servers:
            servers.append(ZooKeeperServer(tmp_path_factory.mktemp("zookeeper")))
            servers[0].start()
        return servers[0].address

    yield address
    for server in servers:
        server.stop()


@asynccontextmanager
async def harness_of(
    kind: str, folder: Path, zookeeper: Callable[[], str], postgres: Callable[[], str]
) -> AsyncIterator[Harness]:
    env = RealEnv(RealDisk(str(folder)))
    if kind == "memory":
        memory = MemoryHarness(env)
        yield memory
        await memory.store.close()
    elif kind == "zookeeper":
        place = ZooKeeper(f"{zookeeper()}/{uuid4()}")
        zoo = ZooKeeperHarness(place, env)
        yield zoo
        await zoo.store.close()
    elif kind == "postgres":
        sql_server = PostgresHarness(postgres(), env)
        yield sql_server
        await sql_server.store.close()
    elif kind == "shared":
        held = await SqlStore.open(f"sqlite:///{folder}/metadata.db", env)
        shared = SharedHarness(held, f"{folder}/socket", env)
        await shared.server.begin()
        yield shared
        for store in shared.stores:
            await store.close()
        await shared.server.close()
        await held.close()
    else:
        sql = SqlHarness(await SqlStore.open(f"sqlite:///{folder}/metadata.db", env))
        yield sql
        await sql.store.close()
    await env.tasks.cancel_all()


Test = Callable[[Callable[[Harness], Awaitable[None]]], None]


@pytest.fixture(params=["memory", "sqlite", "shared", "zookeeper", "postgres"])
def holds(
    request: pytest.FixtureRequest, tmp_path: Path, zookeeper: Callable[[], str], postgres: Callable[[], str]
) -> Test:
    """Run a promise against the store."""

    def run(promise: Callable[[Harness], Awaitable[None]]) -> None:
        async def main() -> None:
            async with harness_of(request.param, tmp_path, zookeeper, postgres) as harness:
                await promise(harness)

        asyncio.run(main())

    return run


async def result(session: StoreSession, *ops: Op) -> Result:
    return (await session.commit(*ops))[0]


def test_versions_start_at_zero_and_rise_by_one(holds: Test) -> None:
    async def promise(harness: Harness) -> None:
        session = await harness.session()
        assert await result(session, Create("a", b"1")) is Result.OK
        assert await session.read("") == {"a": (b"1", 0)}
        assert await result(session, Put("a", b"2", 0)) is Result.OK
        assert await result(session, Put("a", b"3", 1)) is Result.OK
        assert await session.read("") == {"a": (b"3", 2)}

    holds(promise)


@pytest.mark.parametrize(
    "op",
    [
        Create("a", b"x"),
        Put("a", b"x", 1),
        Put("b", b"x", 0),
        Delete("a", 1),
        Delete("b", 0),
        Check("a", 1),
        Check("b", 0),
    ],
    ids=str,
)
def test_one_failed_condition_leaves_everything_as_it_was(holds: Test, op: Op) -> None:
    async def promise(harness: Harness) -> None:
        session = await harness.session()
        _, before = await session.commit(Create("a", b"1"), Create("c", b"1"))
        assert await result(session, Create("new", b"1"), Put("c", b"2", 0), op) is Result.CONFLICT
        assert await result(session, op, Create("new", b"1"), Delete("c", 0)) is Result.CONFLICT
        assert await session.read("") == {"a": (b"1", 0), "c": (b"1", 0)}
        _, after = await session.commit(Check("a", 0))
        assert after == before + 1

    holds(promise)


def test_ops_of_one_commit_see_each_other_in_order(holds: Test) -> None:
    async def promise(harness: Harness) -> None:
        session = await harness.session()
        await session.commit(Create("a", b"1"), Put("a", b"2", 0), Check("a", 1), Delete("a", 1), Create("a", b"3"))
        assert await session.read("") == {"a": (b"3", 0)}

    holds(promise)


def test_many_keys_in_one_commit(holds: Test) -> None:
    async def promise(harness: Harness) -> None:
        session = await harness.session()
        keys = [f"partitions/{number}" for number in range(2000)]
        assert await result(session, *(Create(key, b"1") for key in keys)) is Result.OK
        assert await result(session, *(Put(key, b"2", 0) for key in keys)) is Result.OK
        stale = [Put(key, b"3", 1) for key in keys[:-1]] + [Put(keys[-1], b"3", 0)]
        assert await result(session, *stale) is Result.CONFLICT
        assert set((await session.read("partitions/")).values()) == {(b"2", 1)}
        assert await result(session, *(Delete(key, 1) for key in keys)) is Result.OK
        assert await session.read("") == {}

    holds(promise)


def test_a_prefix_is_read_literally(holds: Test) -> None:
    async def promise(harness: Harness) -> None:
        session = await harness.session()
        await session.commit(*(Create(key, b"") for key in ("a_b/1", "a%b/1", "aXb/1", "a_b", "A_B/1")))
        assert list(await session.read("a_b/")) == ["a_b/1"]
        assert list(await session.read("a%")) == ["a%b/1"]

    holds(promise)


def test_values_are_bytes_of_any_kind(holds: Test) -> None:
    async def promise(harness: Harness) -> None:
        session = await harness.session()
        value = bytes(range(256)) * 100
        await session.commit(Create("k", value), Create("empty", b""))
        assert await session.read("") == {"empty": (b"", 0), "k": (value, 0)}

    holds(promise)


def test_commit_numbers_rise_by_one_over_all_sessions(holds: Test) -> None:
    async def promise(harness: Harness) -> None:
        one, other = await harness.session(), await harness.session()
        _, first = await one.commit(Create("a", b""))
        _, second = await other.commit(Create("b", b""))
        failed, newest = await one.commit(Create("b", b""))
        assert (second, failed, newest) == (first + 1, Result.CONFLICT, second)

    holds(promise)


def test_the_newest_number_includes_what_others_were_answered_and_to_ask_for_it_commits_nothing(holds: Test) -> None:
    async def promise(harness: Harness) -> None:
        one, other = await harness.session(), await harness.session()
        events = aiter(one.watch())
        await anext(events)
        for version in range(-1, 5):
            _, number = await other.commit(Create("a", b"") if version < 0 else Put("a", b"", version))
            assert await one.newest() == number
            told = await asyncio.wait_for(anext(events), 5)
            assert isinstance(told, Change) and told.number == number
        assert [await session.newest() for session in (one, other, one)] == [number] * 3
        assert (await one.commit(Check("a", 5)))[1] == number + 1

    holds(promise)


def test_session_ids_are_never_used_again(holds: Test) -> None:
    async def promise(harness: Harness) -> None:
        seen = []
        for _ in range(3):
            session = await harness.session()
            seen.append(session.id)
            await session.close()
        assert sorted(set(seen)) == seen

    holds(promise)


def test_ephemeral_keys_go_with_their_session_and_only_they(holds: Test) -> None:
    async def promise(harness: Harness) -> None:
        one, other = await harness.session(), await harness.session()
        await one.commit(Create("mine", b"", ephemeral=True), Create("kept", b""))
        await one.commit(Put("mine", b"2", 0))
        await other.commit(Create("theirs", b"", ephemeral=True))
        await harness.expire(one)
        assert list(await other.read("")) == ["kept", "theirs"]

    holds(promise)


def test_an_ended_session_does_nothing_any_more(holds: Test) -> None:
    async def promise(harness: Harness) -> None:
        one, other = await harness.session(), await harness.session()
        await harness.expire(one)
        assert await result(one, Create("a", b"")) is Result.EXPIRED
        with pytest.raises(SessionExpired):
            await one.read("")
        with pytest.raises(SessionExpired):
            await one.newest()
        assert [event async for event in one.watch()] == []
        assert await other.read("") == {}

    holds(promise)


def test_a_key_made_again_starts_at_zero(holds: Test) -> None:
    async def promise(harness: Harness) -> None:
        session = await harness.session()
        await session.commit(Create("a", b"1"))
        await session.commit(Put("a", b"2", 0))
        await session.commit(Delete("a", 1))
        await session.commit(Create("a", b"3"))
        assert await session.read("") == {"a": (b"3", 0)}

    holds(promise)


def test_concurrent_commits_of_one_version_have_one_winner(holds: Test) -> None:
    async def promise(harness: Harness) -> None:
        sessions = [await harness.session() for _ in range(5)]
        await sessions[0].commit(Create("a", b""))
        results = await asyncio.gather(*(result(session, Put("a", b"x", 0)) for session in sessions))
        assert sorted(one.value for one in results) == ["conflict"] * 4 + ["ok"]

    holds(promise)


def test_a_watch_opens_with_everything_and_then_tells_each_commit_in_order(holds: Test) -> None:
    async def promise(harness: Harness) -> None:
        one, other = await harness.session(), await harness.session()
        _, number = await one.commit(Create("a", b"1"))
        events = aiter(one.watch())
        assert await anext(events) == StoreSnapshot(number, {"a": Entry(b"1", 0)})
        await other.commit(Create("b", b"2", ephemeral=True), Put("a", b"3", 0), Check("a", 1))
        await other.commit(Put("a", b"3", 0))  # a conflict is no news
        await other.commit(Delete("a", 1))
        await harness.expire(other)
        assert await anext(events) == Change(number + 1, (("b", Entry(b"2", 0)), ("a", Entry(b"3", 1))))
        assert await anext(events) == Change(number + 2, (("a", None),))
        assert await anext(events) == Change(number + 3, (("b", None),))

    holds(promise)


def test_a_watcher_too_slow_is_told_of_the_gap_and_given_everything(
    holds: Test, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = 50
    monkeypatch.setattr(watching, "MAX_WAITING_CHANGES", limit)

    async def promise(harness: Harness) -> None:
        one, other = await harness.session(), await harness.session()
        await one.commit(Create("a", b""))
        events = aiter(one.watch())
        await anext(events)
        for version in range(limit + 4):
            await other.commit(Put("a", b"", version))
        await one.commit(Put("a", b"", limit + 4))  # whose session has then seen all before it
        seen: list[Event] = [await anext(events), await anext(events)]
        assert isinstance(seen[0], Gap)
        assert isinstance(seen[1], StoreSnapshot)
        assert seen[1].entries == {"a": (b"", limit + 5)}
        _, number = await other.commit(Create("b", b""))
        assert await anext(events) == Change(number, (("b", Entry(b"", 0)),))

    holds(promise)


def test_a_watch_ends_with_its_session(holds: Test) -> None:
    async def promise(harness: Harness) -> None:
        session = await harness.session()

        async def follow() -> int:
            return len([event async for event in session.watch()])

        following = asyncio.create_task(follow())
        await asyncio.sleep(0.01)
        await harness.expire(session)
        assert await asyncio.wait_for(following, 5) == 1

    holds(promise)


def test_a_commit_whose_caller_went_away_still_reaches_the_watchers(holds: Test) -> None:
    async def promise(harness: Harness) -> None:
        session = await harness.session()
        events = aiter(session.watch())
        await anext(events)
        caller = asyncio.create_task(session.commit(Create("a", b"")))
        await asyncio.sleep(0)
        caller.cancel()
        change = await asyncio.wait_for(anext(events), 5)
        assert isinstance(change, Change) and change.entries == (("a", (b"", 0)),)

    holds(promise)


def test_the_lease_holds_while_the_session_lives(holds: Test) -> None:
    async def promise(harness: Harness) -> None:
        session = await harness.session()
        assert session.lease_left() > 30

    holds(promise)

"""What the contract leaves open, on the real ZooKeeper: servers that stop and stand still, sessions that run out,
commits larger than ZooKeeper takes at once, newcomers, strangers.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError

from service.stores import ledger
from service.stores.ledger import LedgerAway, LedgerStore
from service.stores.port import Change, Create, Put, Result, SessionExpired, StoreError, StoreSnapshot
from service.stores.zookeeper import PART_BYTES, ZooKeeper
from tests.peers.process import free_port
from tests.peers.zookeeper import ZooKeeperServer, missing
from tests.service.stores.ledgers import keys_until, play, store_over, until_ok

pytestmark = pytest.mark.skipif(missing() is not None, reason=missing() or "")
PATIENCE_S = 30.0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ZooKeeperServer]:
    server = ZooKeeperServer(tmp_path / "zookeeper")
    server.start()
    yield server
    server.stop()


@contextmanager
def ensemble(folder: Path) -> Iterator[list[ZooKeeperServer]]:
    """Three servers that have a leader."""
    members = [("127.0.0.1", free_port(), free_port()) for _ in range(3)]
    servers = [ZooKeeperServer(folder / str(index), members=members, index=index) for index in range(3)]
    try:
        for server in servers:
            server.launch()
        for server in servers:
            server.wait()
        yield servers
    finally:
        for server in servers:
            server.stop()


class Wire:
    """Connections to a server that are looked through and disturbed: a request or an answer is a frame with its length
    before it, and but for the first of each way its number in front.
    """

    def __init__(self, server: ZooKeeperServer) -> None:
        self._server = server
        self._open: list[asyncio.StreamWriter] = []
        self.address = f"127.0.0.1:{free_port()}"
        self.connections = 0
        self.requests: list[int] = []
        """The numbers of all requests but pings."""
        self.leaves_out = 0
        """So many answers do not come."""

    async def take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        from_server, to_server = await asyncio.open_connection(self._server.place.host, self._server.port)
        self._open += [writer, to_server]
        await asyncio.gather(
            self._pass_on(reader, to_server, self._asked), self._pass_on(from_server, writer, self._answered)
        )

    def cut(self) -> None:
        for writer in self._open:
            writer.transport.abort()
        self._open.clear()

    def _asked(self, number: int) -> bool:
        if number > 0:
            self.requests.append(number)
        return True

    def _answered(self, number: int) -> bool:
        if number > 0 and self.leaves_out:
            self.leaves_out -= 1
            return False
        return True

    async def _pass_on(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, passes: Callable[[int], bool]
    ) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            is_first = True
            while True:
                length = await reader.readexactly(4)
                frame = await reader.readexactly(int.from_bytes(length))
                if is_first or passes(int.from_bytes(frame[:4], signed=True)):
                    writer.write(length + frame)
                is_first = False
        writer.close()


@asynccontextmanager
async def between(server: ZooKeeperServer) -> AsyncIterator[Wire]:
    wire = Wire(server)
    host, _, port = wire.address.partition(":")
    async with await asyncio.start_server(wire.take, host, int(port)):
        yield wire
        wire.cut()


def test_a_commit_larger_than_a_request_may_be_is_there_wholly(server: ZooKeeperServer) -> None:
    async def promise(store: LedgerStore) -> None:
        one, other = await store.session(20), await store.session(20)
        values = {f"large/{number}": os.urandom(PART_BYTES) for number in range(5)}
        events = aiter(other.watch())
        assert isinstance(await anext(events), StoreSnapshot)
        assert (await one.commit(*(Create(key, value) for key, value in values.items())))[0] is Result.OK
        change = await anext(events)
        assert isinstance(change, Change)
        assert {key: entry and entry.value for key, entry in change.entries} == values
        assert {key: entry.value for key, entry in (await other.read("large/")).items()} == values

    play(ZooKeeper(server.address).session, promise)


def test_a_newcomer_begins_with_the_base_and_old_records_go(
    server: ZooKeeperServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger, "BASE_EVERY", 20)
    monkeypatch.setattr(ledger, "KEPT_RECORDS", 40)

    async def promise(store: LedgerStore) -> None:
        one = await store.session(20)
        await one.commit(Create("count", b"0"), Create("large", os.urandom(2 * PART_BYTES)))
        commits = 80
        for version in range(commits):
            assert (await one.commit(Put("count", b"%d" % version, version)))[0] is Result.OK
        newcomer = await store.session(20)
        assert (await newcomer.read("count"))["count"] == (b"%d" % (commits - 1), commits)
        zookeeper = KazooClient(server.address)
        zookeeper.start()

        def swept() -> bool:
            bases = {name.split("-")[1] for name in zookeeper.get_children("/parts") if name.startswith("b-")}
            return len(zookeeper.get_children("/records")) <= 60 and len(bases) == 1

        for _ in range(int(PATIENCE_S / 0.05)):
            if swept():
                break
            await asyncio.sleep(0.05)
        assert swept()
        zookeeper.stop()
        zookeeper.close()

    play(ZooKeeper(server.address).session, promise)


def test_a_session_outlives_a_server_that_is_killed_and_comes_back_in_time(server: ZooKeeperServer) -> None:
    async def promise(store: LedgerStore) -> None:
        # As long as a session may be: what comes back is a Java process, which a busy machine starts slowly.
        one, other = await store.session(60), await store.session(60)
        events = aiter(other.watch())
        await anext(events)
        await one.commit(Create("mine", b"", ephemeral=True))
        server.stop()
        doubtful = asyncio.create_task(one.commit(Create("lost", b"")))
        await asyncio.sleep(0.5)
        await asyncio.to_thread(server.start)
        assert (await doubtful)[0] in (Result.UNKNOWN, Result.OK)
        await until_ok(one, "after")
        assert (await keys_until(events, "after"))[0] == "mine"
        assert "mine" in await other.read("")
        assert one.lease_left() > 0

    play(ZooKeeper(server.address).session, promise)


def test_a_server_that_takes_a_connection_and_does_not_answer_is_tried_again(server: ZooKeeperServer) -> None:
    taken: list[asyncio.StreamWriter] = []

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            writer.write(data)
        writer.close()

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        taken.append(writer)
        if len(taken) > 1:
            host, _, port = server.address.partition(":")
            from_server, to_server = await asyncio.open_connection(host, int(port))
            await asyncio.gather(copy(reader, to_server), copy(from_server, writer))

    async def main() -> None:
        async with await asyncio.start_server(take, "127.0.0.1", port := free_port()):
            async with store_over(ZooKeeper(f"127.0.0.1:{port}").session) as store:
                session = await store.session(9)  # it ends with its timeout
                await until_ok(session, "written")
            assert len(taken) == 2
            taken[0].close()

    asyncio.run(main())


def test_a_number_names_one_request_of_a_session_however_often_the_connection_is_made_anew(
    server: ZooKeeperServer,
) -> None:
    """An ensemble takes a request that still comes through another server for the one of the same number that waits
    here, and answers the one with the outcome of the other.
    """

    async def main() -> None:
        async with between(server) as wire, store_over(ZooKeeper(wire.address).session) as store:
            session = await store.session(20)
            for key in ("first", "second", "third"):
                await until_ok(session, key)
                wire.cut()
            await until_ok(session, "fourth")
            assert wire.connections == 4
            assert len(wire.requests) == len(set(wire.requests))

    asyncio.run(asyncio.wait_for(main(), PATIENCE_S))


def test_an_answer_that_is_left_out_costs_the_connection_and_not_the_session(server: ZooKeeperServer) -> None:
    async def main() -> None:
        async with between(server) as wire, store_over(ZooKeeper(wire.address).session) as store:
            session = await store.session(9)  # a sign of life each 1.5 s: if no other answer, its own is out of turn
            await until_ok(session, "before")
            wire.leaves_out = 1
            await until_ok(session, "after")
            assert wire.connections == 2

    asyncio.run(asyncio.wait_for(main(), PATIENCE_S))


def test_a_session_that_was_moved_to_another_server_goes_on(tmp_path: Path) -> None:
    """An attempt to connect that was given up may reach the ensemble late, and the session is then taken to be there.
    Where it really is, writes are not answered any more, and what was asked behind one is, in a third of all cases.
    """
    with ensemble(tmp_path) as servers:
        one, other = (server for server in servers if server.leads() is False)

        async def promise(store: LedgerStore) -> None:
            session = await store.session(20)
            ledger: Any = session._ledger
            for number in range(20):
                await until_ok(session, f"key {number}")
                await asyncio.to_thread(_take_session, other, *ledger._client.client_id)
                await session.newest()
            await until_ok(session, "last")

        play(ZooKeeper(one.address).session, promise)


def _take_session(server: ZooKeeperServer, session: int, password: bytes) -> None:
    """As a client that connects to `server`, and goes on at another without waiting for the answer."""
    request = struct.pack(">iqiqi", 0, 0, 20_000, session, len(password)) + password + b"\0"
    with socket.create_connection((server.place.host, server.port), timeout=PATIENCE_S) as connection:
        connection.sendall(struct.pack(">i", len(request)) + request)
        assert connection.recv(4)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_when_kazoos_thread_dies_the_session_ends_at_once_and_another_can_be_begun(server: ZooKeeperServer) -> None:
    async def promise(store: LedgerStore) -> None:
        session = await store.session(9)
        ledger: Any = session._ledger

        def fail(*_: object) -> None:
            raise ZeroDivisionError("an error that nobody foresaw")

        ledger._client._connection._read_response = fail
        with pytest.raises((LedgerAway, SessionExpired)):
            await ledger.living()
        while (await session.commit(Create("late", b"")))[0] is not Result.EXPIRED:
            pass
        assert session.lease_left() == 0
        await until_ok(await store.session(9), "after")

    play(ZooKeeper(server.address).session, promise)


def test_a_lease_is_over_before_the_session_is(server: ZooKeeperServer) -> None:
    """The server stands still; nobody hears of us, and so we must not act when the session may have run out."""

    async def promise(store: LedgerStore) -> None:
        one = await store.session(4)
        assert 0 < one.lease_left() <= 4
        server.pause()
        try:
            await asyncio.sleep(4)
            assert one.lease_left() <= 0
        finally:
            server.resume()
        result, _ = await one.commit(Create("late", b""))
        assert result in (Result.EXPIRED, Result.OK, Result.UNKNOWN)

    play(ZooKeeper(server.address).session, promise)


def test_what_a_session_left_goes_when_its_process_is_gone(server: ZooKeeperServer) -> None:
    async def promise(store: LedgerStore) -> None:
        other = await store.session(20)
        async with store_over(ZooKeeper(server.address).session) as third:
            one = await third.session(2)
            await one.commit(Create("mine", b"", ephemeral=True))
            events = aiter(other.watch())
            opening = await anext(events)
            assert isinstance(opening, StoreSnapshot)
            assert "mine" in opening.entries
        change = await anext(events)
        assert isinstance(change, Change)
        assert change.entries == (("mine", None),)

    play(ZooKeeper(server.address).session, promise)


def test_an_ensemble_goes_on_without_one_member_and_waits_without_two(tmp_path: Path) -> None:
    with ensemble(tmp_path) as servers:

        async def promise(store: LedgerStore) -> None:
            one = await store.session(10)
            await until_ok(one, "first")
            servers[0].stop()
            await until_ok(one, "second")
            servers[1].stop()
            result, _ = await one.commit(Create("third", b""))
            assert result is not Result.OK
            await asyncio.to_thread(servers[1].start)
            again = await store.session(10)
            await until_ok(again, "fourth")
            assert {"first", "second", "fourth"} <= set(await again.read(""))

        play(ZooKeeper(",".join(server.address for server in servers)).session, promise)


def test_a_server_that_lost_its_leader_extends_no_lease(tmp_path: Path) -> None:
    """It answers reads for some seconds more. The rest of the ensemble may elect a leader and end the session then."""
    with ensemble(tmp_path) as servers:
        follower = next(server for server in servers if server.leads() is False)

        async def promise(store: LedgerStore) -> None:
            one = await store.session(2)
            await until_ok(one, "first")
            await asyncio.sleep(0.5)  # nothing is asked any more but signs of life
            for server in servers:
                if server is not follower:
                    server.pause()
            await asyncio.sleep(2)
            still_serves = await asyncio.to_thread(follower.leads)
            assert still_serves is False, "it has not noticed yet"
            assert one.lease_left() <= 0
            for server in servers:
                if server is not follower:
                    server.resume()

        play(ZooKeeper(follower.address).session, promise)


def test_a_leader_without_a_majority_extends_no_lease(tmp_path: Path) -> None:
    """It answers a `sync` for some seconds more."""
    with ensemble(tmp_path) as servers:
        leader = next(server for server in servers if server.leads())

        async def promise(store: LedgerStore) -> None:
            one = await store.session(2)
            await until_ok(one, "first")
            for server in servers:
                if server is not leader:
                    server.pause()
            try:
                await asyncio.sleep(2.5)
                assert await asyncio.to_thread(leader.leads), "it has not noticed yet"
                assert one.lease_left() <= 0
            finally:
                for server in servers:
                    if server is not leader:
                        server.resume()

        play(ZooKeeper(leader.address).session, promise)


def test_a_leader_without_a_majority_confirms_nothing(tmp_path: Path) -> None:
    """The others may have elected another, and have answered commits that this one does not know. It still syncs."""
    with ensemble(tmp_path) as servers:
        leader = next(server for server in servers if server.leads())

        async def promise(store: LedgerStore) -> None:
            one = await store.session(20)
            await until_ok(one, "first")
            number = await one.newest()
            others = [server for server in servers if server is not leader]
            for server in others:
                server.pause()
            try:
                asking = asyncio.ensure_future(one.newest())
                await asyncio.wait([asking], timeout=2)
                assert not asking.done()
                assert await asyncio.to_thread(leader.leads), "it has not noticed yet"
            finally:
                for server in others:
                    server.resume()
            assert await asking in (number, None)

        play(ZooKeeper(leader.address).session, promise)


def test_with_a_user_the_metadata_is_closed_to_strangers(server: ZooKeeperServer) -> None:
    async def promise(store: LedgerStore) -> None:
        one = await store.session(20)
        assert (await one.commit(Create("secret", b"")))[0] is Result.OK
        stranger = KazooClient(server.address)
        stranger.start()
        for path in ("/oncelog/head", "/oncelog/records/0000000001"):
            with pytest.raises(NoAuthError):
                stranger.get(path)
        stranger.stop()
        stranger.close()

    play(ZooKeeper(server.address + "/oncelog", user="oncelog", password="clue").session, promise)


def test_an_ensemble_that_is_not_there_is_told_in_one_line() -> None:
    async def promise(store: LedgerStore) -> None:
        with pytest.raises(StoreError, match=r"no ZooKeeper answered at 127\.0\.0\.1:1 within 1 s"):
            await store.session(1)

    play(ZooKeeper("127.0.0.1:1").session, promise)

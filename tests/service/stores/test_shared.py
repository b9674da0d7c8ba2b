"""What brokers see of the store that another process holds, when that process can't read or write it for a moment."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import exc

from log.disk import RealDisk
from service.ports import RealEnv
from service.stores import sql
from service.stores.port import Change, Create, Event, Result, StoreError, StoreFailed, StoreSnapshot
from service.stores.shared import SharedSession, SharedStore, StoreServer
from service.stores.sql import SqlDatabase, SqlStore


def on_shared_store(folder: Path, scene: Callable[[SharedStore], Awaitable[None]]) -> None:
    async def main() -> None:
        env = RealEnv(RealDisk(str(folder)))
        holder = await SqlStore.open(f"sqlite:///{folder}/meta.db", env)
        server = StoreServer(holder, env, f"{folder}/store")
        await server.begin()
        store = SharedStore(f"{folder}/store", env)
        try:
            async with asyncio.timeout(10):
                await scene(store)
        finally:
            await store.close()
            await server.close()
            await holder.close()
            await env.tasks.cancel_all()

    asyncio.run(main())


def broken(*_: object) -> Any:
    raise exc.OperationalError("select", {}, Exception("disk I/O error"))


def full(*_: object) -> Any:
    raise StoreFailed("the metadata store can't be written: database or disk is full")


async def over(events: AsyncIterator[Event]) -> None:
    async for _ in events:
        pass


def test_a_session_that_can_not_begin_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(store: SharedStore) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(SqlDatabase, "open_session", full)
            with pytest.raises(StoreError):
                await store.session(6.0)
        session = await store.session(6.0)
        assert (await session.commit(Create("a", b"1")))[0] is Result.OK

    on_shared_store(tmp_path, scene)


@pytest.mark.parametrize("what", ["snapshot", "commit"])
def test_a_session_ends_with_an_error_that_nobody_foresaw(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    async def ask(session: SharedSession) -> object:
        return await (over(session.watch()) if what == "snapshot" else session.commit(Create("a", b"1")))

    async def scene(store: SharedStore) -> None:
        session = await store.session(6.0)
        with monkeypatch.context() as patch:
            patch.setattr(SqlDatabase, what, broken)
            assert await ask(session) in (None, (Result.UNKNOWN, 0))
        assert session.lease_left() == 0.0
        await session.close()
        assert (await (await store.session(6.0)).commit(Create("b", b"1")))[0] is Result.OK

    on_shared_store(tmp_path, scene)


@pytest.mark.parametrize("end", ["closed", "process died"])
def test_a_session_whose_end_can_not_be_written_ends_when_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """Its keys stayed until the holder's next start. If one of them said who controls the cluster, nobody did."""
    monkeypatch.setattr(sql, "END_AGAIN_S", 0.05)

    async def scene(store: SharedStore) -> None:
        other, session = await store.session(6.0), await store.session(6.0)
        assert (await session.commit(Create("controller", b"one", ephemeral=True)))[0] is Result.OK
        events = other.watch()
        assert isinstance(await anext(events), StoreSnapshot)
        with monkeypatch.context() as patch:
            patch.setattr(SqlDatabase, "end_session", broken)
            if end == "closed":
                await session.close()
            else:
                session._writer.transport.abort()
            await asyncio.sleep(0.2)
            assert "controller" in await other.read("")
        event = await anext(events)
        assert isinstance(event, Change)
        assert event.entries == (("controller", None),)
        assert (await other.commit(Create("controller", b"another", ephemeral=True)))[0] is Result.OK
        await other.close()

    on_shared_store(tmp_path, scene)


@pytest.mark.parametrize("begun", [True, False])
def test_half_a_line_of_a_holder_that_was_killed_is_the_end_of_the_session(
    tmp_path: Path, begun: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def killed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        if begun:
            writer.write(b"7\n")
            await reader.readline()
        writer.write(b'["chan')
        writer.close()

    async def main() -> None:
        env = RealEnv(RealDisk(str(tmp_path)))
        async with await asyncio.start_unix_server(killed, f"{tmp_path}/store"):
            store = SharedStore(f"{tmp_path}/store", env)
            if not begun:
                with pytest.raises(StoreError, match="stopping"):
                    await store.session(6.0)
                return
            session = await store.session(6.0)
            assert await session.commit(Create("a", b"1")) == (Result.UNKNOWN, 0)
            assert session.lease_left() == 0.0
            await store.close()

    asyncio.run(asyncio.wait_for(main(), 5))
    assert not caplog.records


def test_the_session_of_a_broker_that_hangs_ends(tmp_path: Path) -> None:
    async def scene(store: SharedStore) -> None:
        events = (await store.session(60.0)).watch()
        assert isinstance(await anext(events), StoreSnapshot)
        reader, writer = await asyncio.open_unix_connection(f"{tmp_path}/store")
        for line in b"0.6", b'[1,"commit",["Create","controller","one",true]]':
            writer.write(line + b"\n")
        began_s = time.monotonic()
        assert [await reader.readline() for _ in range(2)][1] == b'[1,"ok",1]\n'
        assert await reader.read() == b""
        assert time.monotonic() - began_s >= 0.6
        changes = await anext(events), await anext(events)
        assert changes[1] == Change(2, (("controller", None),))
        writer.close()

    on_shared_store(tmp_path, scene)


def test_a_pause_of_the_process_that_holds_the_store_ends_no_session(tmp_path: Path) -> None:
    """A broker that was not heard either trusts its session again only when it is."""

    async def scene(store: SharedStore) -> None:
        session = await store.session(0.6)
        await asyncio.sleep(0.1)
        for _ in range(3):
            time.sleep(1.0)  # noqa: ASYNC251 - nobody runs
            assert session.lease_left() <= 0
            await asyncio.sleep(0.15)
            assert session.lease_left() > 0
        assert (await session.commit(Create("a", b"1")))[0] is Result.OK

    on_shared_store(tmp_path, scene)

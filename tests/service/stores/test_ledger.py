"""A ledger's records: read as they were written, and made in turns, however many keys one commit touches."""

import asyncio
import gc
import weakref
import zlib
from typing import cast

import pytest

from log.disk import RealDisk
from service.ports import RealEnv
from service.stores.ledger import (
    KEYS_A_TURN,
    AppendOutcome,
    LedgerAway,
    LedgerSession,
    LedgerStore,
    LedgerStoreSession,
    StoredValue,
    decoded,
    encoded,
    slices,
)
from service.stores.port import Create, Result, StoreError
from tests.service.stores.watches import assert_watches_are_not_kept
from tests.turns import with_turns


@pytest.mark.parametrize("count", [0, 1, KEYS_A_TURN - 1, KEYS_A_TURN, KEYS_A_TURN + 1, 3 * KEYS_A_TURN])
def test_a_record_is_read_as_it_was_written(count: int) -> None:
    changed: dict[str, StoredValue | None] = {
        f"k{number}": StoredValue(bytes([number % 256, 0xFF]), number, number % 3 or None) for number in range(count)
    }
    changed |= {"gone": None}

    async def main() -> None:
        read = await decoded(await encoded(changed))
        assert read == changed
        assert list(read) == list(changed)
        assert await decoded(await encoded({})) == {}
        assert await decoded(b"") == {}

    asyncio.run(main())


def test_others_have_their_turns_while_very_many_keys_are_worked_on() -> None:
    async def all_slices() -> None:
        async for _ in slices(range(15 * KEYS_A_TURN)):
            pass

    async def main() -> None:
        changed: dict[str, StoredValue | None] = {
            f"k{number}": StoredValue(b"v", 0, None) for number in range(15 * KEYS_A_TURN)
        }
        record, turns = await with_turns(encoded(changed))
        assert turns >= 14
        for work in (decoded(record), all_slices()):
            _, turns = await with_turns(work)
            assert turns >= 14

    asyncio.run(main())


def test_others_have_their_turns_while_a_change_of_very_many_keys_is_told() -> None:
    async def main() -> None:
        changed: dict[str, StoredValue | None] = {
            f"k{number}": StoredValue(b"v", 0, None) for number in range(15 * KEYS_A_TURN)
        }
        session = LedgerStoreSession(cast(LedgerSession, Forgetful()), RealEnv(RealDisk(".")))
        _, turns = await with_turns(session._apply(changed))
        assert turns >= 14
        assert session._entries == changed

    asyncio.run(main())


class Forgetful:
    """A ledger of a database that may fail over without its newest records."""

    id = 1

    def __init__(self) -> None:
        self.records: list[bytes] = []
        self.appends = 0

    def lease_left(self) -> float:
        return 1.0

    async def newest(self) -> int:
        return len(self.records)

    async def append(self, number: int, record: bytes) -> AppendOutcome:
        self.appends += 1
        if number != len(self.records) + 1:
            return AppendOutcome.BEHIND
        self.records.append(record)
        return AppendOutcome.OK

    async def read(self, after: int) -> list[bytes]:
        return self.records[after:]

    async def living(self) -> frozenset[int]:
        return frozenset([self.id])

    async def hint(self) -> bool:
        await asyncio.Event().wait()
        return True

    async def close(self) -> None:
        return


def test_a_session_that_is_closed_is_not_kept() -> None:
    """It holds all the metadata, and a broker that loses the store for a day begins thousands of sessions."""

    async def main() -> None:
        env = RealEnv(RealDisk("."))

        async def connect(_timeout_s: float) -> LedgerSession:
            return cast(LedgerSession, Forgetful())

        store = LedgerStore(connect, env)
        begun: weakref.WeakSet[LedgerStoreSession] = weakref.WeakSet()
        for _ in range(5):
            session = await store.session(1.0)
            begun.add(session)
            await session.close()
        staying = await store.session(1.0)
        begun.add(staying)
        del session
        await env.tasks.cancel_all()
        gc.collect()
        assert list(begun) == [staying]
        await store.close()
        assert staying.lease_left() <= 0, "what is open is closed with the store"

    asyncio.run(main())


class Odd(Forgetful):
    """A ledger with a record that nobody can read."""

    async def hint(self) -> bool:
        self.records.append(b"no record")
        return True


def test_a_session_ends_when_what_it_follows_can_not_be_read() -> None:
    async def main() -> None:
        env = RealEnv(RealDisk("."))
        session = await LedgerStoreSession.open(cast(LedgerSession, Odd()), env)
        async with asyncio.timeout(5):
            while not env.tasks.failed:  # noqa: ASYNC110 (only the log is told)
                await asyncio.sleep(0)
        assert session.lease_left() <= 0, "its broker would lead by what it knows for ever"
        await env.tasks.cancel_all()

    asyncio.run(main())


def test_a_session_ends_when_the_store_has_lost_what_it_had_answered() -> None:
    async def main() -> None:
        ledger, env = Forgetful(), RealEnv(RealDisk("."))
        session = await LedgerStoreSession.open(cast(LedgerSession, ledger), env)
        for key in ("a", "b"):
            assert (await session.commit(Create(key, b"")))[0] is Result.OK
        ledger.records.pop()
        async with asyncio.timeout(5):
            assert (await session.commit(Create("c", b"")))[0] is Result.EXPIRED
        assert len(ledger.records) == 1, "it continues no history that is not its own"
        assert session.lease_left() <= 0
        await env.tasks.cancel_all()

    asyncio.run(main())


@pytest.mark.parametrize("error", [zlib.error("no record"), LedgerAway("silent")], ids=["unforeseen", "away"])
def test_a_session_that_can_not_begin_is_closed(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """A broker that can't read a record tries again for ever: each attempt left a session alive in the ledger."""
    closed = 0

    async def close(ledger: Forgetful) -> None:
        nonlocal closed
        closed += 1

    async def read(ledger: Forgetful, after: int) -> list[bytes]:
        raise error

    async def main() -> None:
        monkeypatch.setattr(Forgetful, "close", close)
        monkeypatch.setattr(Forgetful, "read", read)
        ledger, env = Forgetful(), RealEnv(RealDisk("."))
        ledger.records.append(b"")
        with pytest.raises(StoreError if isinstance(error, LedgerAway) else type(error)):
            await LedgerStoreSession.open(cast(LedgerSession, ledger), env)
        assert closed == 1

    asyncio.run(main())


def test_a_watch_that_is_over_is_not_kept() -> None:
    async def main() -> None:
        env = RealEnv(RealDisk("."))
        session = await LedgerStoreSession.open(cast(LedgerSession, Forgetful()), env)
        await assert_watches_are_not_kept(session, session._watchers)
        await env.tasks.cancel_all()

    asyncio.run(main())

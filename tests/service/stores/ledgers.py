"""A store over a real server's ledger, for the time of a scene."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from log.disk import RealDisk
from service.ports import Env, RealEnv
from service.stores.ledger import LedgerSession, LedgerStore
from service.stores.port import Change, Create, Event, Result, StoreSession

Connect = Callable[[float, Env], Coroutine[Any, Any, LedgerSession]]
"""A session of so many seconds with the server."""


@asynccontextmanager
async def store_over(connect: Connect) -> AsyncIterator[LedgerStore]:
    env = RealEnv(RealDisk("."))
    store = LedgerStore(lambda timeout_s: connect(timeout_s, env), env)
    try:
        yield store
    finally:
        await store.close()
        await env.tasks.cancel_all()


def play(connect: Connect, promise: Callable[[LedgerStore], Awaitable[None]], within_s: float = 60.0) -> None:
    async def main() -> None:
        async with store_over(connect) as store:
            await asyncio.wait_for(promise(store), within_s)

    asyncio.run(main())


async def until_ok(session: StoreSession, key: str) -> None:
    """Create `key` again and again until that is done, however often the answer is lost."""
    while True:
        result, _ = await session.commit(Create(key, b""))
        if result is Result.OK or (result is Result.CONFLICT and key in await session.read(key)):
            return
        assert result is Result.UNKNOWN, result
        await asyncio.sleep(0.1)


async def keys_until(events: AsyncIterator[Event], key: str) -> list[str]:
    """The keys of the changes that are told of, up to the one with `key`."""
    seen: list[str] = []
    while key not in seen:
        event = await anext(events)
        assert isinstance(event, Change)
        seen += [changed for changed, _ in event.entries]
    return seen

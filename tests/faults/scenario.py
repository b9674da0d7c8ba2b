"""What every fault test does: run in a loop, connect, and find out how things stand in the end."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, ParamSpec

from service.client.connection import Client
from tests.faults.proxy import Proxy

P = ParamSpec("P")


def in_loop(scenario: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """A test that awaits."""

    @functools.wraps(scenario)
    def test(*arguments: P.args, **named: P.kwargs) -> None:
        asyncio.run(scenario(*arguments, **named))

    return test


class Stage(AsyncExitStack):
    """A broker, a proxy before it, and as many connections to either as a test wants."""

    def __init__(self, port: int) -> None:
        super().__init__()
        self.port = port
        self.proxy = Proxy("127.0.0.1", port)

    async def connect(self) -> Client:
        """A connection to the broker itself."""
        return await self.enter_async_context(Client("127.0.0.1", self.port))

    async def connect_behind_proxy(self) -> Client:
        return await self.enter_async_context(Client("127.0.0.1", self.proxy.port))


@asynccontextmanager
async def stage(port: int) -> AsyncIterator[Stage]:
    async with Stage(port) as stage:
        await stage.enter_async_context(stage.proxy)
        yield stage

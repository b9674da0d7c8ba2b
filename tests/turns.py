"""How often other tasks have their turns, for tests of what must not hold the loop."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


async def with_turns(asked: Awaitable[T]) -> tuple[T, int]:
    """What is asked for, and how many turns another task has meanwhile."""
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.ensure_future(other())
    found = await asked
    task.cancel()
    return found, turns

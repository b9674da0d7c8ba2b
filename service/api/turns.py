"""Work on much, with turns for others in between: one request may name 200,000 things."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import TypeVar

Thing = TypeVar("Thing")


async def in_turns(things: Iterable[Thing], at_once: int) -> AsyncIterator[Thing]:
    """`things`, one after the other. Others have their turn after each `at_once` of them."""
    for count, thing in enumerate(things, 1):
        yield thing
        if count % at_once == 0:
            await asyncio.sleep(0)

"""Work on much, with turns for others in between: one request may name 60,000 things, and one answer any number."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Generator, Iterable
from itertools import islice
from typing import TypeVar

Thing = TypeVar("Thing")


async def in_turns(things: Iterable[Thing], at_once: int) -> AsyncIterator[Thing]:
    """`things`, one after the other. Others have their turn between one `at_once` of them and the next."""
    for count, thing in enumerate(things):
        if count and count % at_once == 0:
            await asyncio.sleep(0)
        yield thing


async def slices_in_turns(things: Iterable[Thing], at_once: int) -> AsyncIterator[list[Thing]]:
    """`things`, so many at a time; nothing, once, of nothing. Others have their turn between one slice and the next."""
    ahead = iter(things)
    yield (some := list(islice(ahead, at_once)))
    while len(some) == at_once and (some := list(islice(ahead, at_once))):
        await asyncio.sleep(0)
        yield some


async def done_in_turns(steps: Generator[None, None, Thing]) -> Thing:
    """What comes of these steps. Others have their turn after each."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            made: Thing = end.value
            return made
        await asyncio.sleep(0)


def now_or_in_turns(steps: Generator[None, None, Thing]) -> Thing | Awaitable[Thing]:
    """What comes of these steps: at once if the first is the last."""
    try:
        next(steps)
    except StopIteration as end:
        made: Thing = end.value
        return made
    return _after_a_turn(steps)


async def _after_a_turn(steps: Generator[None, None, Thing]) -> Thing:
    await asyncio.sleep(0)
    return await done_in_turns(steps)

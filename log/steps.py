"""Work in steps: a generator that yields wherever other work may be done."""

from collections.abc import Awaitable, Callable, Generator
from typing import TypeVar

Result = TypeVar("Result")


def done_at_once(steps: Generator[None, None, Result]) -> Result:
    """What comes of these steps, one after the other, with nothing in between."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: Result = end.value
            return result


async def done_in_steps(steps: Generator[None, None, Result], breathe: Callable[[], Awaitable[None]]) -> Result:
    """What comes of these steps. `breathe` lets others work between two of them."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: Result = end.value
            return result
        await breathe()

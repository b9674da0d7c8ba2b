"""Work that takes longer than one turn of the loop: a generator yields after each step of a microsecond or two, and so
many steps are taken in one turn.
"""

from collections.abc import Generator
from typing import TypeVar

Result = TypeVar("Result")

STEPS_AT_ONCE = 1_000

Steps = Generator[None, None, Result]


def take(work: Steps[Result], count: int) -> Result | None:
    """Take up to `count` steps. The result, if the work is over with them."""
    try:
        for _ in range(count):
            next(work)
    except StopIteration as end:
        result: Result = end.value
        return result
    return None

"""Work that takes longer than one turn of the loop: a generator yields after each step of a microsecond or two, and a
thousand steps are taken in one turn. (Those of `service.turns` yield when a turn is over.)
"""

from collections.abc import Generator
from typing import TypeVar

Result = TypeVar("Result")

SMALL_STEPS_A_TURN = 1_000

SmallSteps = Generator[None, None, Result]


def take(work: SmallSteps[Result], count: int) -> Result | None:
    """Take up to `count` steps. The result, if the work is over with them."""
    try:
        for _ in range(count):
            next(work)
    except StopIteration as end:
        result: Result = end.value
        return result
    return None

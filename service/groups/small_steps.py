"""Work that takes longer than one turn of the loop: a generator yields after each step of a microsecond or two, and a
thousand steps are taken in one turn. (Those of `service.turns` yield when a turn is over.)
"""

from collections.abc import Generator, Iterable
from itertools import repeat
from typing import TypeVar

Result = TypeVar("Result")

SMALL_STEPS_A_TURN = 1_000

# So many names are looked up or compared in one step.
NAMES_A_STEP = 50

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


def steps_for(names: int) -> Iterable[None]:
    """As many steps as it takes to look up so many names. To be yielded when that is done."""
    return repeat(None, names // NAMES_A_STEP)

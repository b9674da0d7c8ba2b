"""Work that takes longer than one turn of the loop: a generator yields after each step of a microsecond or two, and a
thousand steps are taken in one turn. (Those of `service.turns` yield when a turn is over.)
"""

from collections.abc import Generator, Iterable
from heapq import merge
from itertools import islice, repeat
from typing import TypeVar

Result = TypeVar("Result")
Name = TypeVar("Name", str, bytes)

SMALL_STEPS_A_TURN = 1_000

# So many names are looked up or compared in one step.
NAMES_A_STEP = 50

# So many are sorted in one step. All that are sorted so are merged then.
SORTED_A_STEP = 250

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


def sorted_in_small_steps(names: Iterable[Name]) -> SmallSteps[list[Name]]:
    runs: list[list[Name]] = []
    ahead = iter(names)
    while run := sorted(islice(ahead, SORTED_A_STEP)):
        runs.append(run)
        yield from steps_for(len(run))
    if len(runs) == 1:
        return runs[0]
    whole: list[Name] = []
    for name in merge(*runs):
        whole.append(name)
        yield
    return whole

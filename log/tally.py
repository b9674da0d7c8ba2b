"""Histograms: plain numbers that are counted while work is done and can be read at any time.

To add a value costs a search among a dozen bounds and two additions. Nothing is locked or formatted here.
"""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final, NamedTuple

SECONDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
LONG_SECONDS: Final = (0.01, 0.05, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 900.0, 3600.0)
HOW_MANY: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)


class Example(NamedTuple):
    """One of the counted values, with a name by which its cause can be looked up."""

    names: tuple[tuple[str, str], ...]
    value: float
    wall_ms: int


class Histogram:
    """For each bound: how many values were at most as large as it, and larger than the bound before. The last count has
    no bound.
    """

    __slots__ = ("bounds", "counts", "examples", "total")

    def __init__(self, bounds: Sequence[float] = SECONDS) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0
        self.examples: dict[int, Example] = {}
        """The latest named value for each count, by the index of the count."""

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def add_named(self, value: float, names: tuple[tuple[str, str], ...], wall_ms: int) -> None:
        slot = bisect_left(self.bounds, value)
        self.counts[slot] += 1
        self.total += value
        self.examples[slot] = Example(names, value, wall_ms)

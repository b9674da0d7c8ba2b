"""Whether a group keeps up, judged only by its last commits, by the rules of LinkedIn's Burrow.

The lag alone says little: a group may be a million records behind and catching up, or ten behind and stopped. So the
last commits of each partition are kept, with the lag at each of them, and judged together.

Commits are noted when a scrape or a page looks at the group. Two within a second count as one, as in Burrow. One thing
is ours: a single commit tells nothing of how often a group commits, so it says "stopped" only when it is a minute old.
Burrow says it at once, of every group that it has just come to know.
"""

from array import array
from enum import IntEnum
from itertools import pairwise
from typing import Final

COMMITS: Final = 10
REACHED_MAX: Final = 32
"""How many ends of a partition are kept in which a group is behind."""
NEAREST_MS: Final = 1_000
ALONE_MS: Final = 60_000
_FIELDS: Final = 3


class BurrowStatus(IntEnum):
    """Burrow's codes."""

    OK = 1
    WARN = 2
    STOP = 4
    STALL = 5
    REWIND = 6


class Window:
    """The last commits of a group in one partition, and the last ends of that partition that were seen."""

    __slots__ = ("_commits", "_ends", "_reached")

    def __init__(self) -> None:
        self._commits: array[int] = array("q")  # offset, time, lag at that time; oldest first
        self._ends: array[int] = array("q")
        self._reached: array[int] = array("q")  # ends of what can be read, each with when it was seen; oldest first

    def take(self, offset: int, at_ms: int, end_offset: int) -> None:
        """Note the committed offset, the time since when it is committed, and the end of the partition."""
        ends, commits = self._ends, self._commits
        ends.append(end_offset)
        if len(ends) > COMMITS:
            del ends[0]
        lag = max(end_offset - offset, 0)
        if commits and commits[-2] == at_ms and commits[-3] == offset:
            return
        if commits and 0 <= at_ms - commits[-2] < NEAREST_MS:
            del commits[-_FIELDS:]
        commits.extend((offset, at_ms, lag))
        if len(commits) > COMMITS * _FIELDS:
            del commits[:_FIELDS]

    def behind_ms(self, offset: int, end_offset: int, now_ms: int) -> int:
        """For how long, at least, the record at the committed offset has been there to be read; 0 if there is none.
        Of the ends seen, the first one beyond it tells. If there are too many, every other one is forgotten: then less
        is told than there is.
        """
        reached = self._reached
        if end_offset <= offset:
            del reached[:]
        while reached and reached[0] <= offset:
            del reached[:2]
        if end_offset > offset and (not reached or reached[-2] < end_offset):
            reached.extend((end_offset, now_ms))
            if len(reached) > 2 * REACHED_MAX:
                kept = [value for at in range(0, len(reached), 4) for value in reached[at : at + 2]]
                self._reached = reached = array("q", kept)
        return max(now_ms - reached[1], 0) if reached else 0

    def judge(self, lag: int, now_ms: int) -> BurrowStatus:
        """The status by the first rule that fits, in Burrow's order."""
        commits = self._commits
        if lag <= 0 or not commits:
            return BurrowStatus.OK
        offsets, times, lags = commits[0::_FIELDS], commits[1::_FIELDS], commits[2::_FIELDS]
        is_alone = len(times) == 1
        usual_ms = ALONE_MS if is_alone else times[-1] - times[0]
        if now_ms - times[-1] > usual_ms and min(self._ends) > offsets[-1]:
            return BurrowStatus.STOP
        if is_alone:
            return BurrowStatus.OK
        if _went_back(offsets):
            return BurrowStatus.REWIND
        if min(lags) <= 0:
            return BurrowStatus.OK
        if offsets[0] == offsets[-1]:
            return BurrowStatus.STALL
        if all(later >= earlier for earlier, later in pairwise(lags)):
            return BurrowStatus.WARN
        return BurrowStatus.OK


def _went_back(offsets: "array[int]") -> bool:
    """Whether an offset fell and was not reached again."""
    highest = -1
    for offset in offsets:
        highest = max(highest, offset)
    return offsets[-1] < highest

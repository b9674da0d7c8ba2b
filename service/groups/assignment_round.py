"""A new target assignment of a consumer group while it is being made.

For ten thousand members that takes longer than one turn of the loop. So the target is computed in several turns, and
then written in several turns, while the old target stays in force. The record of the epoch is written last, so that
members move towards the new target only when all of it is written. None of this survives a crash: the group's epoch is
still ahead of its target then, and a new assignment is begun.
"""

from collections.abc import Mapping

from service.groups.assignors import Target
from service.groups.small_steps import SmallSteps, take

TARGETS_AT_ONCE = 150  # in one turn of the loop: writing and applying a record takes some ten microseconds

NewTarget = tuple[str, str | None, Mapping[bytes, frozenset[int]]]  # of which member and instance
TargetInSteps = SmallSteps[tuple[Target, list[NewTarget]]]


class AssignmentRound:
    def __init__(self, epoch: int, steps: TargetInSteps) -> None:
        self.epoch = epoch
        self.is_computed = False
        self.target: Target = {}
        self.unwritten: list[NewTarget] = []
        self._steps = steps

    def compute(self, steps: int) -> bool:
        """Take up to `steps` steps. Returns whether the target is complete."""
        computed = take(self._steps, steps)
        if computed is not None:
            self.target, self.unwritten = computed
            self.is_computed = True
        return self.is_computed

    def next_unwritten(self, count: int) -> list[NewTarget]:
        some, self.unwritten = self.unwritten[:count], self.unwritten[count:]
        return some

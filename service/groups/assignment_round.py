"""A new target assignment of a consumer group while it is being made.

For ten thousand members that takes longer than one turn of the loop. So the target is computed in several turns, and
then written in several turns, while the old target stays in force. The record of the epoch is written last, so that
members move towards the new target only when all of it is written. None of this survives a crash: the group's epoch is
still ahead of its target then, and the next heartbeat begins a new assignment.
"""

from collections.abc import Generator, Mapping

from service.groups.assignors import Target

# What fits into one turn of the loop: a step takes a microsecond or two, writing and applying a record some ten.
STEPS_AT_ONCE = 1_000
TARGETS_AT_ONCE = 150

NewTarget = tuple[str, str | None, Mapping[bytes, frozenset[int]]]  # of which member and instance
Assignment = Generator[None, None, tuple[Target, list[NewTarget]]]


class AssignmentRound:
    def __init__(self, epoch: int, steps: Assignment) -> None:
        self.epoch = epoch
        self.is_computed = False
        self.target: Target = {}
        self.unwritten: list[NewTarget] = []
        self._steps = steps

    def compute(self, steps: int) -> bool:
        """Take up to `steps` steps. Returns whether the target is complete."""
        try:
            for _ in range(steps):
                next(self._steps)
        except StopIteration as end:
            self.target, self.unwritten = end.value
            self.is_computed = True
        return self.is_computed

    def next_unwritten(self, count: int) -> list[NewTarget]:
        some, self.unwritten = self.unwritten[:count], self.unwritten[count:]
        return some

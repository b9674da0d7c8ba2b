"""A new target assignment of a consumer group while it is being made.

For ten thousand members that takes longer than one turn of the loop. So the target is computed in several turns, and
then written in several turns, while the old target stays in force. The record of the epoch is written last, so that
members move towards the new target only when all of it is written. None of this survives a crash: the group's epoch is
still ahead of its target then, and a new assignment is begun.
"""

from collections.abc import Mapping

from service.groups.assignors import Target
from service.groups.small_steps import SmallSteps, take
from service.groups.verdicts import PART_BYTES

# In one turn of the loop: writing and applying a record takes some ten microseconds, and so do so many topics of one.
TARGETS_AT_ONCE = 150
TOPICS_AS_ONE = 50
TOPIC_BYTES = 24
PARTITION_BYTES = 4
# So many steps take two or three milliseconds. While they are few a turn, heartbeats come before the target is there,
# and each of those costs twice as much, because it is asked again.
STEPS_AT_ONCE = 3_000

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

    def next_unwritten(self, group_id: str, at_once: int) -> list[NewTarget]:
        """The next targets, one at least: as many as take the time of `at_once` small ones, and fit into a batch."""
        count, room, of_group = 0, PART_BYTES, len(group_id.encode())
        for member_id, _, part in self.unwritten:
            at_once -= 1 + len(part) // TOPICS_AS_ONE
            room -= of_group + len(member_id.encode()) + TOPIC_BYTES * len(part)
            room -= PARTITION_BYTES * sum(map(len, part.values()))
            if count and room < 0:
                break
            count += 1
            if at_once <= 0:
                break
        some, self.unwritten = self.unwritten[:count], self.unwritten[count:]
        return some

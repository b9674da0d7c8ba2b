"""One target assignment of a consumer group in the making.

Ten thousand members take longer than one turn of the loop: it is computed in turns, then written in turns, while the
old target holds. The epoch's record comes last, so that members walk towards the new target only when all of it is
there. All of this is soft: after a crash the group's epoch is still ahead of its target, whatever was written of it,
and the next heartbeat begins anew. Driven by consumer_decisions.py.
"""

from collections.abc import Generator, Mapping

from service.groups.assignors import Target

# Steps of some microseconds; records of some ten, written and applied.
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
        """Take so many steps, and say whether those were the last."""
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

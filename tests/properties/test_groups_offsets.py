"""Committed offsets under commits, transactions, deletions and restarts, against a list of what happened."""

from typing import Any

from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from hypothesis.strategies import booleans, integers, sampled_from

from service.groups.commands import DeleteOffsets
from service.groups.verdicts import Fault
from tests.service.groups.driver import Driver

GROUPS = sampled_from(["g", "h"])
PARTITIONS = integers(0, 1)
PRODUCERS = integers(1, 2)


class OffsetsMachine(RuleBasedStateMachine):
    """The model keeps every write in order and derives what is committed by going through all of them."""

    @initialize()
    def begin(self) -> None:
        self.driver = Driver()
        self.offset = 0
        self.history: list[tuple[Any, ...]] = []  # (kind, producer, group, partition, offset)

    @rule(group=GROUPS, partition=PARTITIONS)
    def commit(self, group: str, partition: int) -> None:
        self.offset += 1
        assert self.driver.commit(self.offset, group=group, partition=partition) is None
        self.history.append(("plain", None, group, partition, self.offset))

    @rule(producer=PRODUCERS, group=GROUPS, partition=PARTITIONS)
    def commit_in_transaction(self, producer: int, group: str, partition: int) -> None:
        self.offset += 1
        assert self.driver.commit_in_transaction(producer, self.offset, group=group, partition=partition) is None
        self.history.append(("pending", producer, group, partition, self.offset))

    @rule(producer=PRODUCERS, committed=booleans())
    def end(self, producer: int, committed: bool) -> None:
        self.driver.end_transaction(producer, committed=committed)
        self.history.append(("commit" if committed else "abort", producer, None, None, None))

    @rule(group=GROUPS, partition=PARTITIONS)
    def delete_offset(self, group: str, partition: int) -> None:
        reply = self.driver.ask(DeleteOffsets(group, (("orders", (partition,)),)))
        assert reply.fault in (None, Fault.GROUP_ID_NOT_FOUND)
        self.history.append(("delete", None, group, partition, None))

    @rule(group=GROUPS)
    def delete_group(self, group: str) -> None:
        assert self.driver.delete_group(group) in (None, Fault.GROUP_ID_NOT_FOUND)
        for partition in (0, 1):
            self.history.append(("delete", None, group, partition, None))

    @rule()
    def restart(self) -> None:
        self.driver.restart()

    @invariant()
    def committed_and_pending_are_as_the_history_says(self) -> None:
        for group in ("g", "h"):
            for partition in (0, 1):
                offset, pending = self._expected(group, partition)
                assert self.driver.committed(group, partition=partition) == offset
                stable = Fault.UNSTABLE_OFFSET_COMMIT if pending else offset
                assert self.driver.committed(group, partition=partition, stable=True) == stable

    def _expected(self, group: str, partition: int) -> tuple[int, bool]:
        """The newest write that counts, and whether one waits for its transaction."""
        counts: tuple[int, int] = (-1, -1)  # place in the history, offset
        waiting: dict[int, tuple[int, int]] = {}
        for place, (kind, producer, its_group, its_partition, offset) in enumerate(getattr(self, "history", ())):
            concerns = (its_group, its_partition) == (group, partition)
            if kind == "plain" and concerns:
                counts = (place, offset)
            elif kind == "pending" and concerns:
                waiting[producer] = (place, offset)
            elif kind == "delete" and concerns:
                counts, waiting = (-1, -1), {}
            elif kind == "abort":
                waiting.pop(producer, None)
            elif kind == "commit" and producer in waiting:
                counts = max(counts, waiting.pop(producer))
        return counts[1], bool(waiting)


TestOffsets = OffsetsMachine.TestCase
TestOffsets.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)

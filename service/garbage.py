"""When Python looks for cycles of dead objects: always among what is new, hardly ever among what has stayed.

What is no part of a cycle is freed at once, without a look. A look at all objects of a broker with large groups takes
a tenth of a second, in which nobody is served. So what has survived one full look is set aside (`gc.freeze`), and the
next looks only at what came since. A cycle that dies later is not found then: what is set aside is looked at again when
there is twice as much of everything, and a million objects more, as before, or when the process has held a quarter of
a gigabyte more for half a minute: few objects may hold much, and what a batch takes to be packed is given back before.
So memory can't grow without bound. How much there is, the allocator knows:
to count what is set aside takes 80 ms if that is 15,000 partitions.

Started by `service.process`, beside the broker. A process has one collector: this is state of the process.
"""

import asyncio
import gc
import resource
import sys
from typing import Final

THRESHOLDS: Final = (500, 5, 3)
"""New objects between looks at the newest; how many of those between looks at the middle-aged, and of these between
full looks. A full look sees what 12,000 net allocations left, and takes a millisecond or two."""
SPARED: Final = 1_500_000
"""So many blocks are a million objects that the collector knows, with what they hold."""
SPARED_KIB: Final = 256 << 10
COUNTED_EVERY_S: Final = 1.0
HELD_FOR: Final = 30
"""For so many counts."""
PAGE_KIB: Final = resource.getpagesize() >> 10


def resident_kib() -> int:
    """The memory that the process has now; where the system does not tell that, the most that it has had."""
    try:
        with open("/proc/self/statm", "rb") as told:
            return int(told.read().split()[1]) * PAGE_KIB
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


class Garbage:
    def __init__(self, spared: int = SPARED) -> None:
        self._spared = spared
        self._blocks = 0  # as it was after the last look at everything
        self._resident_kib = resident_kib()  # as it was at that look
        self._counts_with_more = 0

    async def run(self) -> None:
        """All that there is now is set aside. Until this is cancelled nothing else may change the collector."""
        before = gc.get_threshold()
        gc.set_threshold(*THRESHOLDS)
        gc.callbacks.append(self._looked)
        try:
            gc.freeze()
            self._blocks = sys.getallocatedblocks()
            gc.enable()
            while True:
                await asyncio.sleep(COUNTED_EVERY_S)
                self.count()
        finally:
            gc.callbacks.remove(self._looked)
            gc.set_threshold(*before)

    def _looked(self, phase: str, info: dict[str, int]) -> None:
        if phase == "stop" and info["generation"] == 2:
            gc.freeze()

    def count(self) -> None:
        has_much_more = resident_kib() > self._resident_kib + SPARED_KIB
        self._counts_with_more = self._counts_with_more + 1 if has_much_more else 0
        if self._counts_with_more >= HELD_FOR or sys.getallocatedblocks() > 2 * self._blocks + self._spared:
            self._look_at_all()

    def _look_at_all(self) -> None:
        gc.unfreeze()
        gc.collect()
        self._blocks = sys.getallocatedblocks()
        gc.collect()  # of nothing: the collector waits for a quarter of what its last full look left
        self._resident_kib, self._counts_with_more = resident_kib(), 0

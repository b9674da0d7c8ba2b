"""What makes Spark's Python workers faster at our work."""

from __future__ import annotations

import gc

_spared = False


def spare_collections() -> None:
    """Call it when a task ends. A worker collects garbage after each task and looks at all that was ever imported for
    it: 40 ms and more, in which the next task waits. What is there after its first task is there to stay.
    """
    global _spared
    if not _spared:
        gc.freeze()
        _spared = True

"""Changes of several steps on disk that a cancellation must not cut in half.

A broker that stops cancels its tasks, but the disk's writer thread finishes what it has begun. If a cancelled caller
undid the first steps of a change meanwhile, only the last step would be on the disk.
"""

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")


async def unbroken(work: Coroutine[Any, Any, T], *, patience_s: float | None = None) -> T:
    """The result of `work`. If the caller is cancelled meanwhile, however often, the cancellation takes effect when
    `work` is done, or after `patience_s`: work that waits for what may never come is cut short then.
    """
    task = asyncio.get_running_loop().create_task(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        give_up = None if patience_s is None else asyncio.get_running_loop().call_later(patience_s, task.cancel)
        while not task.done():
            with suppress(asyncio.CancelledError):  # the caller is cancelled once more
                await asyncio.wait([task])
        if give_up is not None:
            give_up.cancel()
        task.cancelled() or task.exception()  # a failure may be dropped here: the disk remembers its own faults
        raise

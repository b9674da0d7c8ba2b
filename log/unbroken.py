"""Changes of several steps on disk that a cancellation must not cut in half.

A broker that stops cancels its tasks, and the disk's writer goes on with what it has begun. A caller that undid the
first steps of such a change meanwhile would leave the disk with the last one alone.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def unbroken(work: Coroutine[Any, Any, T]) -> T:
    """What `work` returns. A caller that is cancelled while it runs is so when it is done."""
    task = asyncio.get_running_loop().create_task(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        task.cancelled() or task.exception()  # a fault of the disk is remembered by the disk
        raise

"""Buffers for very long frames. To fill 50 MB with zeros, or to copy them into a longer buffer, takes 40 ms.

What always holds: a buffer costs no more than twice of what has come of its frame. The memory of a mapping is given
page by page, to what is written there, so a mapping may be as long as its frame says from the beginning. Ordinary
memory is filled with zeros at once, so it grows with what has come.

Why not in large pages: the kernel may have to make them first, and a read took 24 ms.
"""

from __future__ import annotations

import asyncio
import mmap
from contextlib import suppress

MAPPED_FROM_BYTES = 4 << 20
"""Shorter ones are ordinary memory, which the process uses again."""
FREED_AT_ONCE = 16 << 20
"""So many bytes are freed in 1.5 ms."""


def fresh(wanted: int, have: int) -> memoryview:
    """The first `wanted` bytes of a buffer of zeros, but not more than twice of what has come."""
    size = min(wanted, 2 * have)
    if wanted >= MAPPED_FROM_BYTES:
        with suppress(OSError):  # the machine promises no more memory than it has
            return memoryview(mmap.mmap(-1, wanted, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))[:size]
    return memoryview(bytearray(size))


def longer(part: memoryview, wanted: int, have: int) -> memoryview | None:
    """The first `wanted` bytes of the buffer of which this is the beginning, but not more than twice of what has come.
    None if there are not so many.
    """
    whole = part.obj
    return memoryview(whole)[: min(wanted, 2 * have)] if isinstance(whole, mmap.mmap) and len(whole) >= wanted else None


async def free(whole: mmap.mmap) -> None:
    """Give the memory back, step by step. If somebody still has a view of it after a while, it is left to them."""
    patience = 10
    with suppress(BufferError, OSError, SystemError):  # the last one: this system can't shorten a mapping
        while len(whole) > FREED_AT_ONCE:
            try:
                whole.resize(len(whole) - FREED_AT_ONCE)
                await asyncio.sleep(0)
            except BufferError:  # a thread that has read it has not let go of it yet
                if not (patience := patience - 1):
                    raise
                await asyncio.sleep(0.01)

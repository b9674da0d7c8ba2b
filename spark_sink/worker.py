"""What makes Spark's Python workers faster at our work."""

from __future__ import annotations

import ctypes
import gc
import os
import socket
import sys
from contextlib import suppress
from typing import Any

# Of mallopt(3).
M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
KEPT_BYTES = 32 << 20
SHORT_LIVED_BYTES = 8 << 20

_spared = False


def spare_collections() -> None:
    """Call it when a task, or another call of Spark's, ends. Its Python processes collect garbage after each call and
    look at all that was ever imported for it: 40 ms and more, in which the next call waits. All that is there after
    the first call stays there, so it need not be looked at again.
    """
    global _spared
    if not _spared:
        gc.freeze()
        _spared = True


def keep_freed_memory() -> None:
    """Call it when a task begins. Columns come and go by the dozen, and glibc hands each back to the kernel when it is
    freed, which clears and maps its pages anew for the next one: a third of the time that encoding takes. Other C
    libraries do as they please.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, SHORT_LIVED_BYTES)
        mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)


class SentToWorkers:
    """What Spark pickles into the command of each task. It sends the task's input after the command over TCP, in small
    pieces, and the kernel keeps the second piece back until the first one is acknowledged. In a worker that has
    answered before that takes 40 ms, unless somebody asks for it: the command is being read just now.
    """

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        acknowledge_what_came()


def acknowledge_what_came() -> None:
    """On every TCP connection of this process, at once; and what comes from now on when it is read, until something is
    sent. Only Linux can be asked."""
    if sys.platform != "linux":
        return
    descriptors: list[str] = []
    with suppress(OSError):  # a task goes on without, where there is no /proc
        descriptors = os.listdir("/proc/self/fd")
    for descriptor in descriptors:
        with suppress(OSError):  # it is no TCP connection
            connection = socket.socket(fileno=int(descriptor))
            try:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
            finally:
                connection.detach()

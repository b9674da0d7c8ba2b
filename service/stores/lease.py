"""How long a session may be relied on: the common part of sessions in stores that another process holds."""

import asyncio
from typing import Final

from service.ports import Env

SAFE_SHARE: Final = 0.8
"""The fraction of the session's timeout that is relied on, because clocks may run at different speeds and the loop may
be late.
"""
BEATS: Final = 6
"""How many signs of life are sent during one session timeout."""


class Leased:
    """A session from which the store was last heard at `_heard_s`. A waiting `hint` returns when something may have
    changed or the session is over.
    """

    def __init__(self, timeout_s: float, env: Env) -> None:
        self._timeout_s = timeout_s
        self._env = env
        self._heard_s = float("-inf")
        self._stirred = asyncio.Event()
        self._over = False

    def lease_left(self) -> float:
        if self._over:
            return 0.0
        return self._heard_s + SAFE_SHARE * self._timeout_s - self._env.clock.monotonic()

    async def hint(self) -> bool:
        await self._stirred.wait()
        self._stirred.clear()
        return not self._over

    def _end(self) -> None:
        self._over = True
        self._stirred.set()

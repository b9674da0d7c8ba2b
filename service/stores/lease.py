"""How long a session may be counted on: what sessions of ZooKeeper and of PostgreSQL have in common."""

import asyncio
from typing import Final

from service.ports import Env

SAFE_SHARE: Final = 0.8
"""Of the session's timeout: clocks may run at different speeds, and the loop may be late."""
BEATS: Final = 6
"""Signs of life in the time of a session."""


class Leased:
    """A session that was last heard of at `_heard_s`, whose watchers are woken when it is stirred or over."""

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

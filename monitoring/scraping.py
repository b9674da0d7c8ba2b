"""A scrape in steps, so that no other task waits for it. One runs at a time, and requests within a second share it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping
from typing import Final

from monitoring.collectors import Scrape
from monitoring.exposition import OPENMETRICS, TEXT, Lines

FRESH_S: Final = 1.0


Places = Iterable[tuple[str, int]]
Elsewhere = Callable[[Places], Awaitable[Mapping[tuple[str, int], tuple[int, int]]]]
"""Asks leaders for stable offsets and high watermarks of partitions. Those that are not learned are left out."""
Holders = Callable[[Collection[int]], Awaitable[Mapping[int, str] | None]]
"""Asks all coordinators for the open transactions of these producer ids; None if not all of them answered."""
STRANGERS_MAX: Final = 200


class Scraper:
    def __init__(self, scrape: Scrape, elsewhere: Elsewhere | None = None, holders: Holders | None = None) -> None:
        self._scrape = scrape
        self._elsewhere = elsewhere
        self._holders = holders
        self._lock = asyncio.Lock()
        self._lines = Lines()
        self._gathered_s = -FRESH_S

    async def lines(self) -> Lines:
        """The lines, at most a second old."""
        async with self._lock:
            loop = asyncio.get_running_loop()
            if loop.time() - self._gathered_s >= FRESH_S:
                lines = Lines()
                await self._look_elsewhere()
                for _ in self._scrape.gather(lines):
                    await asyncio.sleep(0)
                before, self._lines, self._gathered_s = self._lines, lines, loop.time()
                if not before.readers:
                    for _ in before.forget():
                        await asyncio.sleep(0)
            return self._lines

    async def _look_elsewhere(self) -> None:
        """Ask other brokers for what the last scrape lacked. So the lag of a new group is known one scrape later."""
        wanted, self._scrape.wanted = self._scrape.wanted, {}
        if wanted and self._elsewhere is not None:
            self._scrape.elsewhere = await self._elsewhere(wanted)
        strangers = sorted(self._scrape.strangers)[:STRANGERS_MAX]
        self._scrape.strangers = {}
        if self._holders is None or not strangers:
            self._scrape.holders_elsewhere, self._scrape.nobodys = {}, frozenset()
            return
        holders = await self._holders({each.producer_id for each in strangers})
        self._scrape.holders_elsewhere = holders or {}
        unknown = (each for each in strangers if holders is not None and each.producer_id not in holders)
        self._scrape.nobodys = frozenset(unknown)

    async def status_of_groups(self, names: Collection[str]) -> dict[str, int]:
        """The present status of the groups that are coordinated here, as Burrow's codes, from the commits that were
        seen so far.
        """
        async with self._lock:
            for _ in self._scrape.judge_groups(Lines(), only=frozenset(names)):
                await asyncio.sleep(0)
        known = self._scrape.group_status
        return {name: known[name] for name in names if name in known}

    async def text(self, *, openmetrics: bool) -> AsyncIterator[bytes]:
        """The whole text, in pieces."""
        lines = await self.lines()
        lines.readers += 1
        try:
            for piece in lines.render(openmetrics=openmetrics):
                yield piece.encode("utf-8", "replace")
                await asyncio.sleep(0)
        finally:
            lines.readers -= 1


def wants_openmetrics(accept: str) -> bool:
    """Whether the request's header prefers OpenMetrics. Prometheus names it first, browsers do not name it."""
    return "application/openmetrics-text" in accept


def content_type(*, openmetrics: bool) -> str:
    return OPENMETRICS if openmetrics else TEXT

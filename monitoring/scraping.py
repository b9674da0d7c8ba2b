"""A scrape in steps, so that no other task waits for it. One runs at a time, and requests within a second share it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping
from typing import Final

from monitoring.collectors import Scrape
from monitoring.exposition import OPENMETRICS, TEXT, Lines, Unwritten

FRESH_S: Final = 1.0
JUDGED_S: Final = 10.0
"""How long what is known of late groups is told without another look, if looks cost next to nothing."""
SHARE: Final = 0.01
"""The share of the broker's time for looks at all groups that no scrape asked for."""

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
        self._look_again_s = 0.0

    async def lines(self) -> Lines:
        """The lines, at most a second old."""
        async with self._lock:
            loop = asyncio.get_running_loop()
            if loop.time() - self._gathered_s >= FRESH_S:
                lines = Lines()
                await self._ask_for_offsets()
                await self._ask_for_holders()
                for _ in self._scrape.gather(lines):
                    await asyncio.sleep(0)
                before, self._lines, self._gathered_s = self._lines, lines, loop.time()
                self._look_again_s = max(self._look_again_s, self._gathered_s + JUDGED_S)
                if not before.readers:
                    for _ in before.forget():
                        await asyncio.sleep(0)
            return self._lines

    async def _ask_for_offsets(self) -> None:
        """Ask other brokers for what the last look lacked. So the lag of a new group is known one look later."""
        wanted, self._scrape.wanted = self._scrape.wanted, {}
        if wanted and self._elsewhere is not None:
            self._scrape.elsewhere = await self._elsewhere(wanted)

    async def _ask_for_holders(self) -> None:
        strangers = sorted(self._scrape.strangers)[:STRANGERS_MAX]
        self._scrape.strangers = {}
        if self._holders is None or not strangers:
            self._scrape.holders_elsewhere, self._scrape.nobodys = {}, frozenset()
            return
        holders = await self._holders({each.producer_id for each in strangers})
        self._scrape.holders_elsewhere = holders or {}
        unknown = (each for each in strangers if holders is not None and each.producer_id not in holders)
        self._scrape.nobodys = frozenset(unknown)

    async def late_groups(self) -> Mapping[str, int]:
        """The groups coordinated here that don't keep up, with Burrow's codes, from the commits that were seen so far.
        While nobody scrapes, this looks itself, but seldom where looks are long.
        """
        loop = asyncio.get_running_loop()
        async with self._lock:
            if loop.time() >= self._look_again_s:
                await self._ask_for_offsets()
                began_s, took_s = loop.time(), 0.0
                for _ in self._scrape.judge_groups(Unwritten()):
                    took_s += loop.time() - began_s
                    await asyncio.sleep(0)
                    began_s = loop.time()
                self._look_again_s = loop.time() + max(JUDGED_S, took_s / SHARE)
        return self._scrape.late_groups

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

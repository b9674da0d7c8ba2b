"""A scrape in steps, so that nobody waits for it: one at a time, and one for all who ask within a second."""

import asyncio
from collections.abc import AsyncIterator
from typing import Final

from monitoring.collectors import Scrape
from monitoring.exposition import OPENMETRICS, TEXT, Lines

FRESH_S: Final = 1.0
JUDGED_S: Final = 5.0


class Scraper:
    def __init__(self, scrape: Scrape) -> None:
        self._scrape = scrape
        self._lock = asyncio.Lock()
        self._lines = Lines()
        self._gathered_s = self._judged_s = -JUDGED_S

    async def lines(self) -> Lines:
        """What there is to say, at most a second old."""
        async with self._lock:
            loop = asyncio.get_running_loop()
            if loop.time() - self._gathered_s >= FRESH_S:
                lines = Lines()
                for _ in self._scrape.gather(lines):
                    await asyncio.sleep(0)
                before, self._lines, self._gathered_s = self._lines, lines, loop.time()
                if not before.readers:
                    for _ in before.forget():
                        await asyncio.sleep(0)
            return self._lines

    async def status_of_groups(self) -> dict[str, int]:
        """By Burrow's codes, of the groups that are coordinated here; judged anew if nobody has scraped for a while."""
        async with self._lock:
            loop = asyncio.get_running_loop()
            if loop.time() - max(self._gathered_s, self._judged_s) >= JUDGED_S:
                for _ in self._scrape.judge_groups(Lines()):
                    await asyncio.sleep(0)
                self._judged_s = loop.time()
            return self._scrape.group_status

    async def text(self, *, openmetrics: bool) -> AsyncIterator[bytes]:
        """The whole page, piece by piece."""
        lines = await self.lines()
        lines.readers += 1
        try:
            for piece in lines.render(openmetrics=openmetrics):
                yield piece.encode("utf-8", "replace")
                await asyncio.sleep(0)
        finally:
            lines.readers -= 1


def wants_openmetrics(accept: str) -> bool:
    """Whether the header of a request prefers that format: Prometheus names it first, browsers don't at all."""
    return "application/openmetrics-text" in accept


def content_type(*, openmetrics: bool) -> str:
    return OPENMETRICS if openmetrics else TEXT

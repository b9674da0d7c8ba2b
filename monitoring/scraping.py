"""A scrape in steps, so that no other task waits for it.

One runs at a time, and requests within a second share it. Where a scrape is much work they share it for longer, so that
somebody who scrapes without a pause takes no more than a tenth of the broker's time; one every five seconds is always
new.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping
from typing import Final

from monitoring import shapes
from monitoring.collectors import Scrape
from monitoring.exposition import OPENMETRICS, TEXT, Lines, Unwritten

FRESH_S: Final = 1.0
FRESH_MOST_S: Final = 4.0
GATHERING: Final = 0.1
"""The share of the broker's time for scrapes, as long as they are not older than that."""
PAUSE_S: Final = 0.002
"""Between two pieces of a text that somebody has got already: fifty megabytes a second."""
JUDGED_S: Final = 10.0
"""How long what is known of late groups is told without another look, if looks cost next to nothing."""
WAITED_S: Final = 0.02
"""How long a look at all groups is waited for. At 10,000 groups it takes half a second, and no page waits for that."""
SHARE: Final = 0.01
"""The share of the broker's time for looks at all groups that no scrape asked for."""

LowestOffsets = Mapping[tuple[str, int], int]
"""Partitions, and for each the lowest offset that a group has there."""
Elsewhere = Callable[[LowestOffsets], Awaitable[Mapping[tuple[str, int], shapes.Ends]]]
"""Asks leaders for the ends of partitions. Those that are not learned are left out."""
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
        self._new_s = 0.0
        """When the lines are gathered anew, if somebody asks."""
        self._look_again_s = 0.0
        self._looking: asyncio.Task[None] | None = None

    async def lines(self) -> Lines:
        """The lines, a second old at most, or four seconds if they are many."""
        async with self._lock:
            began_s = asyncio.get_running_loop().time()
            if began_s >= self._new_s:
                lines = Lines()
                await self._ask_for_offsets()
                await self._ask_for_holders()
                took_s = await _in_steps(self._scrape.gather(lines))
                before, self._lines = self._lines, lines
                self._new_s = began_s + min(max(FRESH_S, took_s / GATHERING), FRESH_MOST_S)
                self._look_again_s = max(self._look_again_s, began_s + JUDGED_S)
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
        if holders is None:  # what was known of those that are still open is as true as before
            self._scrape.nobodys &= frozenset(strangers)
            return
        self._scrape.holders_elsewhere = holders
        self._scrape.nobodys = frozenset(each for each in strangers if each.producer_id not in holders)

    async def late_groups(self) -> Mapping[str, int] | None:
        """The groups coordinated here that don't keep up, with Burrow's codes, from the commits that were seen so far.
        While nobody scrapes, a look at all groups is begun here, but seldom where looks are long. It is not waited for
        for long: what is told then is as of the look before, or None if there was none.
        """
        is_due = asyncio.get_running_loop().time() >= self._look_again_s
        if is_due and (self._looking is None or self._looking.done()):
            self._looking = self._scrape.tasks.spawn("a look at all groups", self._look_at_groups())
        if self._looking is not None:
            await asyncio.wait([self._looking], timeout=WAITED_S)
        return self._scrape.late_groups

    async def _look_at_groups(self) -> None:
        async with self._lock:
            await self._ask_for_offsets()
            took_s = await _in_steps(self._scrape.judge_groups(Unwritten()), pause_s=PAUSE_S)
            self._look_again_s = asyncio.get_running_loop().time() + max(JUDGED_S, took_s / SHARE)

    async def text(self, *, openmetrics: bool) -> AsyncIterator[bytes]:
        """The whole text, in pieces."""
        lines = await self.lines()
        pause_s, lines.was_told = PAUSE_S if lines.was_told else 0.0, True
        lines.readers += 1
        try:
            for piece in lines.render(openmetrics=openmetrics):
                yield piece.encode("utf-8", "replace")
                await asyncio.sleep(pause_s)
        finally:
            lines.readers -= 1


async def _in_steps(steps: Iterable[None], pause_s: float = 0.0) -> float:
    """Take the steps, with a turn for others after each, and tell how long they took. `pause_s`: between two steps, for
    work that can wait.
    """
    loop = asyncio.get_running_loop()
    began_s, took_s = loop.time(), 0.0
    for _ in steps:
        took_s += loop.time() - began_s
        await asyncio.sleep(pause_s)
        began_s = loop.time()
    return took_s


def wants_openmetrics(accept: str) -> bool:
    """Whether the request's header prefers OpenMetrics. Prometheus names it first, browsers do not name it."""
    return "application/openmetrics-text" in accept


def content_type(*, openmetrics: bool) -> str:
    return OPENMETRICS if openmetrics else TEXT

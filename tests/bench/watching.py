"""What it costs a broker to be watched: a scrape every five seconds, ten pages that are open, and every transaction's
spans sent to a collector. The same load is given by turns to a broker that is watched and to one that is not; what is
compared is the processor time of their processes, so that others on the machine count little.
"""

from __future__ import annotations

import contextlib
import statistics
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from email.message import Message
from typing import Final

from tests.peers.process import BrokerProcess
from tests.peers.receiver import OK, Receiver

SCRAPED_EVERY_S: Final = 5.0
PAGES: Final = (
    *("/ui", "/ui/transactions", "/ui/transactions?which=all", "/ui/transactions/load-transact", "/ui/topics"),
    *("/ui/topics/{topic}", "/ui/producers", "/ui/groups", "/ui/brokers", "/ui?of=somebody-else"),
)
PATIENCE_S: Final = 60.0

Rows = dict[str, float]


class Collector(Receiver):
    """Takes spans and forgets them."""

    def __init__(self) -> None:
        self.batches = 0
        super().__init__()

    def take(self, path: str, headers: Message, body: bytes) -> int:
        self.batches += 1
        return OK


@contextlib.contextmanager
def watched(url: str, topic: str) -> Iterator[None]:
    """Watch the broker for as long as the context lasts."""
    over = threading.Event()
    threads = [threading.Thread(target=_scrape, args=(url, over))]
    threads += [threading.Thread(target=_look, args=(url + path.format(topic=topic), over)) for path in PAGES]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


def _scrape(url: str, over: threading.Event) -> None:
    request = urllib.request.Request(f"{url}/metrics", headers={"Accept": "application/openmetrics-text"})
    while True:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            answer.read()
        if over.wait(SCRAPED_EVERY_S):
            return


def _look(url: str, over: threading.Event) -> None:
    """Keep a page open. It gets a line at least every two seconds."""
    live = f"{url}{'&' if '?' in url else '?'}live=1"
    with urllib.request.urlopen(live, timeout=PATIENCE_S) as answer:
        while not over.is_set():
            assert answer.readline(), "the broker ended the page"


def cost(
    what: str,
    plain: BrokerProcess,
    other: BrokerProcess,
    url: str,
    topic: str,
    load: Callable[[BrokerProcess], None],
    rounds: int,
) -> Rows:
    """`load` writes the same to either broker; `other` is the one that sends spans and can be watched, at `url`. What
    scrapes and pages cost is told by the same process with and without them. The order changes with each round, so that
    it favours none.
    """
    alone, spans, pages = list[float](), list[float](), list[float]()

    def is_watched() -> tuple[float, float]:
        with watched(url, topic):
            time.sleep(1.0)  # pages are drawn for the first time
            return _spent(other, load)

    for number in range(rounds):
        ways = [lambda: _spent(plain, load), lambda: _spent(other, load), is_watched]
        found = [way() for way in (ways if number % 2 else reversed(ways))]
        (plain_s, _), (sending_s, sent_in_s), (watched_s, watched_in_s) = found if number % 2 else reversed(found)
        alone.append(plain_s)
        spans.append((sending_s - plain_s) / sent_in_s * 100)
        pages.append((watched_s - sending_s) / watched_in_s * 100)
    return {
        f"{what}, user CPU s": statistics.median(alone),
        f"{what}, spans cost of a core %": statistics.median(spans),
        f"{what}, scrapes and pages cost of a core %": statistics.median(pages),
    }


def _spent(broker: BrokerProcess, load: Callable[[BrokerProcess], None]) -> tuple[float, float]:
    """The time of the processor, for the process itself, and of the clock, in seconds."""
    before_s, began_s = broker.cpu_seconds()[0], time.monotonic()
    load(broker)
    return broker.cpu_seconds()[0] - before_s, time.monotonic() - began_s

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
    pairs: int,
) -> Rows:
    """`load` writes the same to either broker; `other` is the one that can be watched, at `url`."""
    found: list[tuple[float, float, float]] = []
    for _ in range(pairs):
        alone_s, _ = _spent(plain, load)
        with watched(url, topic):
            time.sleep(1.0)  # pages are drawn for the first time
            with_s, took_s = _spent(other, load)
        found.append((alone_s, with_s, took_s))
    more = [(with_s - alone_s) / took_s * 100 for alone_s, with_s, took_s in found]
    return {
        f"{what}, CPU s": statistics.median(alone_s for alone_s, _, _ in found),
        f"{what} and watched, CPU s": statistics.median(with_s for _, with_s, _ in found),
        f"{what}, watching costs of a core %": statistics.median(more),
    }


def _spent(broker: BrokerProcess, load: Callable[[BrokerProcess], None]) -> tuple[float, float]:
    """The time of the processor, and of the clock, in seconds."""
    before_s, began_s = sum(broker.cpu_seconds()), time.monotonic()
    load(broker)
    return sum(broker.cpu_seconds()) - before_s, time.monotonic() - began_s

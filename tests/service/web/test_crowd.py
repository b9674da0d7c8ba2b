"""A hundred open pages and somebody who scrapes without a pause cost clients nothing that they notice: a real broker
process, a real producer and a real consumer.
"""

from __future__ import annotations

import selectors
import socket
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import requests
from confluent_kafka import Consumer, Producer, TopicPartition

from monitoring.scraping import FRESH_S
from service.web.pages.views import LIVE_S
from tests.service.web.kit import PATIENCE_S, Http, Served

PAGES, SCRAPERS = 100, 4
SAME = ("/ui", "/ui/transactions", "/ui/topics", "/ui/topics/orders", "/ui/groups", "/ui/brokers", "/ui/producers")
"""Half of the pages are these, again and again. The other half are all different."""
TRIPS, PAUSE_S = 200, 0.05
SLOWEST_S, USUAL_S = 10.0, 0.5
"""Far above what a trip takes on a machine that is busy, and far below what a broker takes that serves others first."""


class Crowd:
    """Who watches, and what they were told."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._over = threading.Event()
        self.texts: set[str] = set()
        """The different scrapes that somebody got."""
        self.scrapes = 0
        self.drawn: dict[str, int] = {}
        """By page, how often new content came."""
        self._threads = [threading.Thread(target=self._look)]
        self._threads += [threading.Thread(target=self._scrape) for _ in range(SCRAPERS)]

    def _scrape(self) -> None:
        with requests.Session() as session:
            while not self._over.is_set():
                answer = session.get(f"{self._url}/metrics", timeout=PATIENCE_S)
                assert answer.status_code == 200
                self.texts.add(answer.text)
                self.scrapes += 1

    def _look(self) -> None:
        place = urlsplit(self._url)
        assert place.hostname is not None and place.port is not None
        with selectors.DefaultSelector() as selector:
            for number in range(PAGES):
                path = SAME[number % len(SAME)] if number % 2 else f"/ui/topics?search={number}"
                connection = socket.create_connection((place.hostname, place.port), PATIENCE_S)
                connection.sendall(
                    f"GET {path}{'&' if '?' in path else '?'}live=1 HTTP/1.1\r\nHost: {place.netloc}\r\n\r\n".encode()
                )
                selector.register(connection, selectors.EVENT_READ, f"{number} {path}")
            while not self._over.is_set():
                for key, _ in selector.select(0.2):
                    assert isinstance(key.fileobj, socket.socket)
                    told = key.fileobj.recv(1 << 20)
                    assert told, f"{key.data} ended"
                    self.drawn[key.data] = self.drawn.get(key.data, 0) + told.count(b"\n\n")
            for key in list(selector.get_map().values()):
                assert isinstance(key.fileobj, socket.socket)
                key.fileobj.close()

    @contextmanager
    def here(self) -> Iterator[None]:
        for thread in self._threads:
            thread.start()
        try:
            until = time.monotonic() + PATIENCE_S
            while len(self.drawn) < PAGES or not self.texts:
                assert time.monotonic() < until, f"{len(self.drawn)} pages are open"
                time.sleep(0.05)
            yield
        finally:
            self._over.set()
            for thread in self._threads:
                thread.join()


def trips(bootstrap: str) -> list[float]:
    """How long each record took from its producer to its consumer, in seconds. They go one by one, for ten seconds."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "readers", "fetch.wait.max.ms": 50})
    consumer.assign([TopicPartition("orders", 0, 0)])
    found = []
    seen = -1
    try:
        for _ in range(TRIPS + 1):
            time.sleep(PAUSE_S)
            began_s = time.monotonic()
            producer.produce("orders", b"x", partition=0)
            assert producer.flush(PATIENCE_S) == 0
            wanted = seen + 1
            while seen < wanted:
                message = consumer.poll(PATIENCE_S)
                assert message is not None and message.error() is None, message
                offset = message.offset()
                assert offset is not None
                seen = offset
            found.append(time.monotonic() - began_s)
    finally:
        consumer.close()
    return found[1:]  # the first also connects


@pytest.mark.timeout(240)
def test_a_crowd_that_watches_costs_clients_nothing_that_they_notice(tmp_path: Path) -> None:
    served = Served(tmp_path / "data")
    client = Http(served.url)
    try:
        assert client.post("/v1/topics", {"name": "orders", "partitions": 3}).status == 201
        crowd, began_s = Crowd(served.url), time.monotonic()
        with crowd.here():
            took = trips(served.bootstrap)
        passed_s = time.monotonic() - began_s
    finally:
        client.session.close()
        assert served.stop() == 0
    assert len(took) == TRIPS
    print(f"median {statistics.median(took) * 1000:.1f} ms, slowest {max(took) * 1000:.0f} ms, {crowd.scrapes} scrapes")
    assert statistics.median(took) < USUAL_S
    assert max(took) < SLOWEST_S
    # However many ask, so often at most is something gathered or drawn anew.
    assert crowd.scrapes > len(crowd.texts)
    assert len(crowd.texts) <= passed_s / FRESH_S + 1
    assert max(crowd.drawn.values()) <= passed_s / LIVE_S + 1
    assert "Traceback" not in served.log

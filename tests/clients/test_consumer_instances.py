"""A program written for the REST Proxy's version 2, and three brokers, of which the one dies that has its instance."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.clients.three import three_brokers
from tests.peers import zookeeper
from tests.peers.ours import Oncelog

TOPIC, GROUP, NAME = "orders", "clerks", "clerk-1"
MEDIA = "application/vnd.kafka.v2+json"
PATIENCE_S = 120.0
RECORDS = 200


class Proxies:
    """Several places that say they are the REST Proxy; a program asks the next one when one does not answer."""

    def __init__(self, urls: list[str]) -> None:
        self._urls = itertools.cycle(urls)
        self._url = next(self._urls)

    def ask(self, method: str, path: str, body: Any = None, **more: str) -> requests.Response:
        """Again while there is no answer, or one that says it may come later."""
        headers = {"Accept": MEDIA} | ({} if body is None else {"Content-Type": MEDIA}) | more
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                answer = requests.request(method, self._url + path, json=body, headers=headers, timeout=30)
            except requests.RequestException as failure:
                why = str(failure)
            else:
                if answer.status_code not in (503, 504):
                    return answer
                why = answer.text
            assert time.monotonic() < deadline, why
            self._url = next(self._urls)
            time.sleep(0.2)


class Clerk:
    """Makes its instance when there is none, reads, and commits what it has worked off."""

    def __init__(self, proxies: Proxies) -> None:
        self._proxies = proxies
        self._place = f"/consumers/{GROUP}/instances/{NAME}"
        self.made = 0
        self.worked_off: Counter[int] = Counter()
        self.committed: set[int] = set()

    def once(self) -> None:
        answer = self._proxies.ask(
            "GET", self._place + "/records?timeout=500", Accept="application/vnd.kafka.json.v2+json"
        )
        if answer.status_code in (404, 409):  # there is none, or one that was made and not subscribed
            wishes = {"name": NAME, "format": "json", "auto.offset.reset": "earliest", "auto.commit.enable": "false"}
            made = self._proxies.ask("POST", f"/consumers/{GROUP}", wishes)
            assert made.status_code in (200, 409), made.text
            self.made += made.status_code == 200
            subscribed = self._proxies.ask("POST", self._place + "/subscription", {"topics": [TOPIC]})
            assert subscribed.status_code in (204, 404), subscribed.text
            return
        assert answer.status_code == 200, answer.text
        values = [each["value"] for each in answer.json()]
        self.worked_off.update(values)
        committed = self._proxies.ask("POST", self._place + "/offsets")
        if committed.status_code == 200:
            self.committed.update(values)
        else:
            assert committed.status_code in (404, 409), committed.text


def coordinator(proxies: Proxies) -> int:
    found: int = proxies.ask("GET", f"/v1/groups/{GROUP}").json()["coordinator"]
    return found


def lag(proxies: Proxies) -> int | None:
    answer = proxies.ask("GET", f"/v1/groups/{GROUP}/lag")
    return answer.json()["total"] if answer.ok else None


@pytest.fixture
def replicated() -> dict[str, str]:
    return {
        "http.listeners": "auto",
        "default.replication.factor": "3",
        "offsets.topic.replication.factor": "3",
        "offsets.topic.num.partitions": "4",
        "transaction.state.log.replication.factor": "3",
        "zookeeper.session.timeout.ms": "6000",
        "group.consumer.session.timeout.ms": "45000",
        "group.consumer.heartbeat.interval.ms": "5000",
    }


@pytest.mark.timeout(600)
def test_a_program_goes_on_where_its_group_is_when_the_broker_with_its_instance_dies(
    tmp_path: Path, replicated: dict[str, str]
) -> None:
    if reason := zookeeper.missing():
        pytest.skip(reason)
    with three_brokers(tmp_path, replicated) as brokers:
        proxies = Proxies([url_of(broker) for broker in brokers.values()])
        topic = {"name": TOPIC, "partitions": 6, "replication_factor": 3}
        made = proxies.ask("POST", "/v1/topics", topic, **{"Content-Type": "application/json"})
        assert made.status_code == 201, made.text
        clerk = Clerk(proxies)

        def work_until(count: int) -> None:
            deadline = time.monotonic() + PATIENCE_S
            while len(clerk.worked_off) < count:
                assert time.monotonic() < deadline, f"{len(clerk.worked_off)} of {count}"
                clerk.once()

        write(proxies, range(RECORDS))
        work_until(RECORDS)
        while lag(proxies) != 0:
            clerk.once()
        brokers[coordinator(proxies)].kill()
        before, clerk.worked_off = set(clerk.committed), Counter()
        write(proxies, range(RECORDS, 2 * RECORDS))
        began = time.monotonic()
        work_until(RECORDS)
        took_s = time.monotonic() - began
        assert clerk.made == 2
        assert not before & set(clerk.worked_off), "what was committed is not read again"
        assert set(clerk.worked_off) == set(range(RECORDS, 2 * RECORDS))
        assert took_s < 40, "its place in the group was its own, without waiting for a session to expire"
        while lag(proxies) != 0:
            clerk.once()


def url_of(broker: Oncelog) -> str:
    return f"http://127.0.0.1:{broker.port - 1010}"


def write(proxies: Proxies, values: range) -> None:
    """Each once, however often it must be sent."""
    for start in values[::50]:
        records = [{"key": str(value), "value": value} for value in range(start, start + 50)]
        how = {"Content-Type": "application/json", "Idempotency-Key": f'"{start}"'}
        answer = proxies.ask("POST", f"/v1/topics/{TOPIC}/records", {"records": records}, **how)
        assert answer.status_code == 200, answer.text

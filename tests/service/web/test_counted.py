"""What `/metrics` says after requests by HTTP: what they ask inside a broker is counted as if from outside."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from tests.monitoring.scraped import Scraped, read
from tests.service.web.kit import PATIENCE_S, Http, Served

COMMITS = 5


@pytest.fixture
def counted(tmp_path: Path) -> Iterator[Http]:
    few = {"transaction.state.log.num.partitions": "1", "offsets.topic.num.partitions": "1"}
    served = Served(tmp_path / "data", **few)
    client = Http(served.url)
    yield client
    client.session.close()
    assert served.stop() == 0
    assert "Traceback" not in served.log, served.log


def scrape(http: Http) -> Scraped:
    return read(http.get("/metrics").json)


def test_commits_by_http_are_counted_in_each_phase_and_by_their_request(counted: Http) -> None:
    counted.post("/v1/topics", {"name": "orders", "partitions": 1})
    for number in range(COMMITS):
        begun = counted.post("/v1/transactions", {"transactional_id": f"pay-{number}"})
        where = begun.headers["Location"]
        assert counted.put(f"{where}/batches/0", {"records": [{"topic": "orders", "value": number}]}).status == 200
        assert counted.post(f"{where}:commit").json["outcome"] == "applied"
        assert counted.get("/v1/topics/orders/partitions/0/records?offset=earliest").status == 200
    seen = scrape(counted)
    phases = {
        phase: seen.one("oncelog_transaction_commit_latency_seconds_count", phase=phase)
        for phase in ("prepare", "markers", "complete")
    }
    assert phases == dict.fromkeys(phases, COMMITS)
    for phase in phases:
        assert 0 <= seen.one("oncelog_transaction_commit_latency_seconds_sum", phase=phase) < 30
    assert seen.one("oncelog_request_seconds_count", api="EndTxn") == COMMITS
    assert seen.one("oncelog_request_seconds_sum", api="EndTxn") > 0
    assert seen.one("kafka_network_requestmetrics_requests_total", request="EndTxn") == COMMITS
    assert seen.one("kafka_network_requestmetrics_requests_total", request="InitProducerId") >= COMMITS


def test_idempotency_keys_are_counted_by_what_became_of_them(counted: Http) -> None:
    counted.post("/v1/topics", {"name": "orders", "partitions": 1})
    for key, value in (("a", 1), ("b", 2), ("a", 1), ("a", 3)):
        headers = {"Idempotency-Key": f'"{key}"'}
        counted.post("/v1/topics/orders/records", {"records": [{"value": value}]}, headers=headers)
    seen = scrape(counted)
    assert seen.one("oncelog_idempotency_keys", state="remembered") == 2
    assert seen.one("oncelog_idempotency_keys", state="in_flight") == 0
    assert seen.one("oncelog_idempotency_replayed_total") == 1
    assert seen.one("oncelog_idempotency_mismatch_total") == 1
    assert seen.one("oncelog_idempotency_conflict_total") == 0


def test_streams_are_counted_while_they_are_open(counted: Http) -> None:
    counted.post("/v1/topics", {"name": "orders", "partitions": 1})
    assert scrape(counted).one("oncelog_http_streams") == 0
    stream = requests.get(
        f"{counted.url}/v1/topics/orders/stream", headers={"Accept": "application/x-ndjson"}, stream=True, timeout=20
    )
    assert scrape_until(counted, "oncelog_http_streams", 1)
    stream.close()
    assert scrape_until(counted, "oncelog_http_streams", 0)
    assert scrape(counted).one("oncelog_coordination_latency_seconds_count", backend="sql") > 0
    assert scrape(counted).one("oncelog_coordination_reconnects_total", backend="sql") == 0


def scrape_until(http: Http, name: str, value: float) -> bool:
    """A scrape is shared by all who ask within a second, and a client that is gone is noticed a little later."""
    deadline = time.monotonic() + PATIENCE_S
    while scrape(http).one(name) != value:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.3)
    return True

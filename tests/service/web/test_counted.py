"""What `/metrics` says after requests by HTTP: what they ask inside a broker is counted as if from outside."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.monitoring.scraped import Scraped, read
from tests.service.web.kit import Http, Served

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

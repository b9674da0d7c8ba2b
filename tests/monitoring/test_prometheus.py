"""A real Prometheus scrapes a real broker: what boards and alerts ask for is there, and a transaction that hangs makes
the right alert fire, and no other.
"""

from __future__ import annotations

import json
import re
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import requests
from confluent_kafka import Consumer, Producer, TopicPartition

from log.batch import build_batch
from monitoring.families import REGISTRY
from monitoring.reference import page
from service.wire.codec import encode_request
from service.wire.messages import PartitionProduceData, ProduceRequest, TopicProduceData
from service.wire.messages.versions import ApiKey
from tests.monitoring.scraped import Scraped, read
from tests.monitoring.test_boards import CHARTED, WATCHED
from tests.outside import needs
from tests.service.cli.kit import oncelog
from tests.service.web.kit import Served

ROOT = Path(__file__).parents[2]
PATIENCE_S = 30.0
OPENMETRICS = {"Accept": "application/openmetrics-text; version=1.0.0"}
ONLY_WHEN_THERE_IS_SOMETHING = {
    "oncelog_http_problems_total",
    "oncelog_request_errors_total",
    "oncelog_lso_blocked_by",
    "oncelog_group_pending_offsets",
    "oncelog_trouble",
    "oncelog_clock_apart_seconds",
    "oncelog_replica_lag_records",
}
"""Without labels that somebody gave rise to there is no sample; a broker alone has no other's replicas."""


def wait_for(holds: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + PATIENCE_S
    while not (found := holds()):
        assert time.monotonic() < deadline, holds
        time.sleep(0.1)
    return found


def write_unasked(bootstrap: str, topic: str, producer_id: int) -> None:
    """A transactional batch of a transaction that no coordinator was told of, as clients older than Kafka 4 may leave
    one when they write after its end.
    """
    batch = build_batch(
        [(None, b"lost", (), time.time_ns() // 1_000_000)],
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=0,
        transactional=True,
    )
    data = TopicProduceData(topic, partition_data=[PartitionProduceData(0, batch)])
    body = encode_request(ApiKey.PRODUCE, 8, ProduceRequest("nobody", -1, 5_000, [data]))
    frame = struct.pack(">hhih", ApiKey.PRODUCE, 8, 1, -1) + body
    host, _, port = bootstrap.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as connection:
        connection.sendall(struct.pack(">i", len(frame)) + frame)
        assert connection.recv(4)


def in_transaction(bootstrap: str, transactional_id: str, topic: str) -> Producer:
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "transactional.id": transactional_id,
            "transaction.timeout.ms": 600_000,
            "linger.ms": 0,
            "log_level": 0,
        }
    )
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    producer.produce(topic, b"x", partition=0)
    assert producer.flush(PATIENCE_S) == 0
    return producer


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A broker that has done a bit of everything: committed, aborted, read, in a group."""
    few = {"transaction.state.log.num.partitions": "2", "offsets.topic.num.partitions": "2"}
    folder = tmp_path_factory.mktemp("scraped") / "data"
    served = Served(folder, **few, **{"transaction.partition.verification.enable": "false"})
    oncelog("topic", "create", "orders", bootstrap=served.bootstrap)
    in_transaction(served.bootstrap, "commits", "orders").commit_transaction(PATIENCE_S)
    in_transaction(served.bootstrap, "aborts", "orders").abort_transaction(PATIENCE_S)
    consumer = Consumer({"bootstrap.servers": served.bootstrap, "group.id": "readers"})
    consumer.commit(offsets=[TopicPartition("orders", 0, 4)], asynchronous=False)
    consumer.close()
    assert (
        requests.get(served.url + "/readyz", timeout=PATIENCE_S).status_code == 200
    )  # so that HTTP has been used, too
    yield served
    assert served.stop() == 0


def test_every_metric_of_a_board_or_alert_and_every_other_is_on_a_live_broker(broker: Served) -> None:
    answer = requests.get(broker.url + "/metrics", timeout=PATIENCE_S)
    assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    shown = {
        re.sub("_(bucket|count|sum)$", "", name) if name not in REGISTRY else name for name in read(answer.text).names
    }
    assert shown - REGISTRY.keys() == set(), "nothing is shown that is not in the registry"
    assert (CHARTED | WATCHED) - shown - ONLY_WHEN_THERE_IS_SOMETHING == set()
    assert REGISTRY.keys() - shown - ONLY_WHEN_THERE_IS_SOMETHING == set()


def test_who_asks_for_openmetrics_is_given_that_with_exemplars(broker: Served) -> None:
    answer = requests.get(broker.url + "/metrics", headers=OPENMETRICS, timeout=PATIENCE_S)
    assert answer.headers["Content-Type"].startswith("application/openmetrics-text")
    named = {dict(each.exemplar or {}).get("transactional_id") for each in read(answer.text).samples}
    assert {"commits", "aborts"} & named


@needs("promtool")
def test_promtool_finds_something_wrong_only_with_names_that_the_reference_excuses(broker: Served) -> None:
    text = requests.get(broker.url + "/metrics", timeout=PATIENCE_S).text
    checked = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True, check=False)
    found = {line.split()[0] for line in (checked.stdout + checked.stderr).splitlines()}
    excused = re.findall("`(kafka_.*?)`", page().partition("`promtool check metrics`")[2].partition("## Ours")[0])
    assert found == set(excused)


class Prometheus:
    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}/api/v1"

    def get(self, path: str, **query: str) -> Any:
        return requests.get(f"{self.url}/{path}", params=query, timeout=PATIENCE_S).json()["data"]

    def value(self, expression: str) -> float | None:
        found = self.get("query", query=expression)["result"]
        return float(found[0]["value"][1]) if found else None

    def firing(self) -> set[str]:
        firing = {each["labels"]["alertname"] for each in self.get("alerts")["alerts"] if each["state"] == "firing"}
        return firing - {"OncelogDiskFillsSoon"}  # it wants an hour of a disk that nobody else writes to


@contextmanager
def prometheus(folder: Path, *targets: str) -> Iterator[Prometheus]:
    """Debian's, with our rules; only that an alert must hold for minutes is left out."""
    rules = (ROOT / "monitoring" / "alerts" / "oncelog.rules.yml").read_text()
    (folder / "rules.yml").write_text(re.sub(r" +for: .*\n", "        for: 1s\n", rules))
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": ["rules.yml"],
        "scrape_configs": [{"job_name": "oncelog", "static_configs": [{"targets": targets}]}],
    }
    (folder / "prometheus.yml").write_text(json.dumps(config))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen(
            [
                *("prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"),
                *(f"--web.listen-address=127.0.0.1:{port}", "--enable-feature=exemplar-storage"),
            ],
            stdout=log,
            stderr=log,
        )
    try:
        running = Prometheus(port)

        def is_up() -> bool:
            try:
                return running.value("up") == 1
            except (requests.ConnectionError, requests.JSONDecodeError):  # it says in plain words that it is not ready
                return False

        wait_for(is_up)
        yield running
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


@needs("prometheus")
def test_a_transaction_that_hangs_makes_the_right_alert_fire_until_it_is_aborted(
    broker: Served, tmp_path: Path
) -> None:
    oncelog("topic", "create", "hangs", bootstrap=broker.bootstrap)
    with prometheus(tmp_path, broker.url.removeprefix("http://")) as watching:
        wait_for(lambda: watching.value("count_over_time(up[1m]) > 3") and watching.firing() == set())
        assert watching.value("oncelog_transactions_hanging") == 0
        write_unasked(broker.bootstrap, "hangs", 4_242)
        wait_for(lambda: "OncelogHangingTransaction" in watching.firing())
        # The other one is as true, and would wait for fifteen minutes.
        assert watching.firing() - {"OncelogLsoStuck"} == {"OncelogHangingTransaction"}
        assert watching.value('oncelog_lso_blocked_by{topic="hangs",producer_id="4242"}') is not None
        assert (
            oncelog("txn", "abort", "hangs", "0", "--start-offset", "0", "--yes", bootstrap=broker.bootstrap).status
            == 0
        )
        wait_for(lambda: watching.firing() == set())


def test_what_is_asked_by_http_is_counted_by_the_path_of_its_route(broker: Served) -> None:
    for path in ("/ui/topics/orders", "/ui/topics/none", "/nowhere/at/all"):
        requests.get(broker.url + path, timeout=PATIENCE_S)
    answered = {"route": "/ui/topics/{topic}", "method": "GET"}

    def shown() -> Scraped | None:
        """A scrape is shared by all who ask within a second."""
        seen = read(requests.get(broker.url + "/metrics", timeout=PATIENCE_S).text)
        return seen if seen.all("oncelog_http_requests_total", **answered) else None

    seen = wait_for(shown)
    assert seen.one("oncelog_http_requests_total", **answered, code=200) == 1
    assert seen.one("oncelog_http_requests_total", **answered, code=404) == 1
    assert seen.one("oncelog_http_request_seconds_count", route="/ui/topics/{topic}") == 2
    assert seen.one("oncelog_http_requests_total", route="none", code=404) >= 1
    assert seen.one("oncelog_http_under_way") == 1

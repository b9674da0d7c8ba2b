"""LinkedIn's Burrow, which reads `__consumer_offsets` itself, comes to the same lag and the same judgement as ours.

Debian's Burrow 1.2.1 can't: it asks for offsets in ListOffsets version 0 and reads records of offsets no newer than
version 3, neither of which Kafka 4 has. A newer one is wanted, named in BURROW.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from confluent_kafka import Consumer, Producer, TopicPartition

from monitoring.burrow import Status
from tests.monitoring.scraped import read
from tests.monitoring.test_cluster import free_port
from tests.monitoring.test_prometheus import PATIENCE_S, wait_for
from tests.outside import needs
from tests.peers.zookeeper import ZooKeeperServer, missing
from tests.service.web.kit import Http, Served

BURROW = os.environ.get("BURROW", "")
pytestmark = [
    needs("java"),
    pytest.mark.skipif(missing() is not None, reason=str(missing())),
    pytest.mark.skipif(
        not BURROW,
        reason="no Burrow of 2025: clone github.com/linkedin/Burrow, go build, and name the program in BURROW",
    ),
]
COMMITS = 6


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Served]:
    served = Served(tmp_path / "data", **{"offsets.topic.num.partitions": "3"})
    Http(served.url).post("/v1/topics", {"name": "orders", "partitions": 2})
    producer = Producer({"bootstrap.servers": served.bootstrap})
    for number in range(100):
        producer.produce("orders", b"x", partition=number % 2)
    assert producer.flush(PATIENCE_S) == 0
    yield served
    served.kill()


def test_both_see_the_same_lag_and_whether_the_group_keeps_up(broker: Served, tmp_path: Path) -> None:
    zookeeper = ZooKeeperServer(tmp_path / "zookeeper")
    zookeeper.start()
    port = free_port()
    kafka = f'class-name="kafka"\nservers=["{broker.bootstrap}"]\nclient-profile="ours"\n'
    (tmp_path / "burrow.toml").write_text(
        f'[general]\npidfile="{tmp_path}/burrow.pid"\n[zookeeper]\nservers=["{zookeeper.address}"]\n'
        f'root-path="/burrow"\n[client-profile.ours]\nclient-id="burrow"\nkafka-version="2.0.0"\n'
        f"[cluster.ours]\n{kafka}topic-refresh=5\noffset-refresh=1\n"
        f'[consumer.ours]\n{kafka}cluster="ours"\nstart-latest=false\n'
        f'[httpserver.default]\naddress="127.0.0.1:{port}"\n'
        '[storage.default]\nclass-name="inmemory"\nintervals=10\nmin-distance=1\n'
    )
    log = open(tmp_path / "burrow.log", "wb")  # noqa: SIM115 - for as long as it runs
    burrow = subprocess.Popen([BURROW, "--config-dir", str(tmp_path)], stdout=log, stderr=log)
    here = f"http://127.0.0.1:{port}/v3/kafka/ours/consumer"

    def told(group: str) -> Any:
        try:
            return requests.get(f"{here}/{group}/lag", timeout=PATIENCE_S).json().get("status")
        except requests.ConnectionError:
            return None

    def ours(group: str) -> tuple[dict[int, int], str]:
        seen = read(requests.get(broker.url + "/metrics", timeout=PATIENCE_S).text)
        lags = {
            int(each.labels["partition"]): int(each.value)
            for each in seen.samples
            if each.name == "kafka_consumergroup_lag" and each.labels["consumergroup"] == group
        }
        return lags, Status(int(seen.one("oncelog_group_status", consumergroup=group))).name

    reads, stalls = (
        Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group, "enable.auto.commit": False})
        for group in ("reads", "stalls")
    )
    try:
        wait_for(lambda: told("anybody") is not None or burrow.poll() is not None)
        assert burrow.poll() is None, (tmp_path / "burrow.log").read_text()
        for number in range(COMMITS):
            reads.commit(
                offsets=[TopicPartition("orders", each, 10 + 3 * number) for each in (0, 1)], asynchronous=False
            )
            stalls.commit(offsets=[TopicPartition("orders", each, 7) for each in (0, 1)], asynchronous=False)
            ours("reads")  # it remembers what it sees when it is looked at
            time.sleep(1.2)
        for group in ("reads", "stalls"):
            found = wait_for(lambda group=group: (seen := told(group)) and len(seen["partitions"]) == 2 and seen)
            lags, status = ours(group)
            assert lags == {each["partition"]: each["current_lag"] for each in found["partitions"]}
            worst = {each["status"] for each in found["partitions"]}
            assert {status} == worst
        assert ours("reads")[1] == "OK"
        assert ours("stalls")[1] == "STALL"
    finally:
        burrow.terminate()
        burrow.wait(PATIENCE_S)
        log.close()
        for consumer in (reads, stalls):
            consumer.close()
        zookeeper.stop()

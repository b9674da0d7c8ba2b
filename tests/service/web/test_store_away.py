"""Three brokers whose metadata store goes away, and comes back: who is told what meanwhile."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer

from tests.monitoring.scraped import read
from tests.peers import zookeeper
from tests.peers.zookeeper import ZooKeeperServer
from tests.service.web.kit import PATIENCE_S, Answer, Http, Served

pytestmark = [
    pytest.mark.skipif(zookeeper.missing() is not None, reason=zookeeper.missing() or ""),
    pytest.mark.timeout(300),
]
READ = "/v1/topics/kept/partitions/0/records?offset=earliest"


class Cluster:
    def __init__(self, folder: Path) -> None:
        self.keeper = ZooKeeperServer(folder / "keeper")
        self.keeper.start()
        settings = {"zookeeper.connect": self.keeper.address, "broker.session.timeout.ms": "3000"}
        few = {"offsets.topic.num.partitions": "1", "transaction.state.log.num.partitions": "1"}
        self.brokers = [
            Served(folder / f"broker-{number}", **settings, **few, **{"node.id": f"{number}"}) for number in (1, 2, 3)
        ]
        self.clients = [Http(broker.url) for broker in self.brokers]

    def stop(self) -> None:
        for broker in self.brokers:
            broker.kill()
        self.keeper.stop()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path)
    yield cluster
    cluster.stop()


def wait(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.2)


def test_a_broker_without_the_store_is_not_ready_and_nobody_who_could_still_read_is_sent_away(cluster: Cluster) -> None:
    """While a broker says that it is ready, it reads and writes. When it says that it is not, it says why, it has
    stopped to read for anybody by its own rules, and it lives: a consumer that is connected goes on by itself when the
    store is back.
    """
    first = cluster.clients[0]
    asked = {"name": "kept", "partitions": 1, "replication_factor": 3}
    wait(lambda: first.post("/v1/topics", asked).status == 201, "all three are there")
    assert first.post("/v1/topics/kept/records", {"records": [{"value_string": "before"}]}).status == 200
    servers = ",".join(broker.bootstrap for broker in cluster.brokers)
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "readers", "auto.offset.reset": "earliest"})
    consumer.subscribe(["kept"])
    got: list[bytes | None] = []

    def has_got(value: bytes) -> bool:
        message = consumer.poll(0.5)
        if message is not None and message.error() is None:
            got.append(message.value())
        return value in got

    wait(lambda: has_got(b"before"), "a consumer reads")
    leader = cluster.clients[first.get("/v1/topics/kept").json["partitions"][0]["leader"] - 1]
    cluster.keeper.stop()
    refused: list[Answer] = []

    def all_say_no() -> bool:
        assert leader.get(READ).status == 200 or leader.get("/readyz").status == 503
        told = [client.get("/readyz") for client in cluster.clients]
        refused[:] = [answer for answer in told if answer.status == 503]
        return len(refused) == len(told)

    wait(all_say_no, "a broker without the store says that it is not ready")
    for answer in refused:
        (session,) = [check for check in answer.json["checks"] if check["name"] == "session"]
        assert not session["ok"]
        assert "store" in session["detail"] or "session" in session["detail"], session
    wait(lambda: first.get(READ).status == 503, "a broker without the store leads nothing")
    assert all(client.get("/livez").status == 200 for client in cluster.clients)
    cluster.keeper.start()
    wait(lambda: all(client.get("/readyz").status == 200 for client in cluster.clients), "ready again")
    wait(
        lambda: first.post("/v1/topics/kept/records", {"records": [{"value_string": "after"}]}).status == 200,
        "writes go on",
    )
    wait(lambda: has_got(b"after"), "the consumer goes on")
    consumer.close()
    for number, client in enumerate(cluster.clients, 1):
        seen = read(client.get("/metrics").json)
        assert seen.one("oncelog_coordination_reconnects_total", backend="zookeeper") >= 1
        lags = {sample.labels["broker"] for sample in seen.samples if sample.name == "oncelog_replica_lag_records"}
        assert lags == {f"{other}" for other in (1, 2, 3) if other != number}


def test_what_a_replica_lacks_is_told_by_who_leads(cluster: Cluster) -> None:
    first = cluster.clients[0]
    asked = {"name": "kept", "partitions": 1, "replication_factor": 3}
    wait(lambda: first.post("/v1/topics", asked).status == 201, "all three are there")
    leader = first.get("/v1/topics/kept").json["partitions"][0]["leader"]
    asleep = leader % 3 + 1
    cluster.brokers[asleep - 1].process.send_signal(signal.SIGSTOP)
    told = cluster.clients[leader - 1]
    producer = Producer({"acks": "1", "bootstrap.servers": cluster.brokers[leader - 1].bootstrap})
    for _ in range(7):
        producer.produce("kept", b"value", partition=0)
    assert producer.flush(PATIENCE_S) == 0

    def lacks(records: int) -> bool:
        return read(told.get("/metrics").json).one("oncelog_replica_lag_records", broker=asleep) == records

    wait(lambda: lacks(7), "the one that sleeps lacks what was written")
    cluster.brokers[asleep - 1].process.send_signal(signal.SIGCONT)
    wait(lambda: lacks(0), "it has caught up")

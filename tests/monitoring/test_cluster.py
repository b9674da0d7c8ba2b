"""Three brokers, watched by a Prometheus: one dies, the right alerts fire, the others' pages say what is known, and
when it is back all is well again.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.monitoring.scraped import Scraped, read
from tests.monitoring.test_prometheus import PATIENCE_S, in_transaction, prometheus, wait_for
from tests.outside import needs
from tests.peers.postgres import PostgresServer, missing
from tests.service.cli.kit import oncelog
from tests.service.web.kit import Served

NODES = (1, 2, 3)
SUMMED, OPENED = "ledger", "orders"


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[int, Served]]:
    if reason := missing():
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("watched")
    postgres = PostgresServer(folder / "postgres")
    postgres.start()
    settings = {
        "store.url": postgres.url,
        "broker.session.timeout.ms": "3000",
        "default.replication.factor": "3",
        "min.insync.replicas": "2",
        "offsets.topic.num.partitions": "3",
        "transaction.state.log.num.partitions": "3",
    }
    started: dict[int, Served] = {}
    try:
        for node in NODES:  # each with a port of its own that it keeps: Prometheus knows it by that
            own = {"node.id": str(node), "http.listeners": f"http://127.0.0.1:{free_port()}"}
            started[node] = Served(folder / f"broker-{node}", **settings, **own)
        for topic, replicas, least in ((SUMMED, "1", 1), (OPENED, "3", 2)):
            created = oncelog(
                *("topic", "create", topic, "-p", "3", "--replicas", replicas, "-c", f"min.insync.replicas={least}"),
                bootstrap=started[1].bootstrap,
            )
            assert created.status == 0, created
        yield started
    finally:
        for broker in started.values():
            broker.kill()
        postgres.stop()


def scrape(broker: Served) -> Scraped:
    return read(requests.get(broker.url + "/metrics", timeout=PATIENCE_S).text)


def seen(broker: Served, path: str) -> str:
    answer = requests.get(broker.url + path, timeout=PATIENCE_S)
    assert answer.status_code == 200
    return answer.text


def test_sums_over_brokers_are_right(brokers: dict[int, Served]) -> None:
    producer = Producer({"bootstrap.servers": brokers[1].bootstrap, "enable.idempotence": True})
    for number in range(30):
        producer.produce(SUMMED, b"x", partition=number % 3)
    assert producer.flush(PATIENCE_S) == 0
    consumer = Consumer({"bootstrap.servers": brokers[1].bootstrap, "group.id": "readers"})
    consumer.commit(offsets=[TopicPartition(SUMMED, number, 4) for number in range(3)], asynchronous=False)
    consumer.close()
    shown = [scrape(broker) for broker in brokers.values()]
    assert sum(each.one("kafka_controller_kafkacontroller_activecontrollercount") for each in shown) == 1
    assert {each.one("kafka_brokers") for each in shown} == {3}
    offsets = [value for each in shown for value in each.all("kafka_topic_partition_current_offset", topic=SUMMED)]
    assert offsets == [10, 10, 10], "each partition is told by its leader"
    written = "kafka_server_brokertopicmetrics_messagesin_total"
    assert sum(sum(each.all(written, topic=SUMMED)) for each in shown) == 30

    def lag() -> float:
        found = (scrape(broker).all("kafka_consumergroup_lag", consumergroup="readers") for broker in brokers.values())
        return sum(value for values in found for value in values)

    wait_for(lambda: lag() == 18)  # of partitions that other brokers lead, too


def test_every_broker_shows_the_whole_cluster(brokers: dict[int, Served]) -> None:
    open_one = in_transaction(brokers[1].bootstrap, "pay", OPENED)
    for broker in brokers.values():
        assert "pay" in seen(broker, "/ui/transactions")
        page = seen(broker, f"/ui/topics/{OPENED}")
        assert page.count("high watermark") >= 3
        assert "1 wait, for" in page
        assert "pay" in page
        assert "readers" in seen(broker, "/ui/groups")
        assert seen(broker, "/ui/brokers").count('data-testid="broker"') == 3
        assert "Not everything can be told" not in page
    open_one.abort_transaction(PATIENCE_S)


@needs("prometheus")
def test_a_broker_that_dies_is_told_by_alerts_and_pages_until_it_is_back(
    brokers: dict[int, Served], tmp_path: Path
) -> None:
    targets = [broker.url.removeprefix("http://") for broker in brokers.values()]
    with prometheus(tmp_path, *targets) as watching:
        wait_for(lambda: watching.value("count(up == 1)") == 3 and watching.firing() == set())
        brokers[3].kill()
        wait_for(
            lambda: {"OncelogBrokerDown", "OncelogUnderReplicated", "OncelogOfflinePartitions"} <= watching.firing()
        )
        calm = {"OncelogUnderMinIsr", "OncelogHangingTransaction", "OncelogLogFolderFailed"}
        wait_for(lambda: watching.firing() & calm == set())
        page = wait_for(lambda: text if "lack a replica" in (text := seen(brokers[1], "/ui")) else None)
        assert re.search("Partitions that lack a replica: [1-9]", page)
        brokers[3].start()
        wait_for(
            lambda: (
                watching.firing() & {"OncelogBrokerDown", "OncelogUnderReplicated", "OncelogOfflinePartitions"} == set()
            )
        )
        wait_for(lambda: "All is well" in seen(brokers[1], "/ui"))

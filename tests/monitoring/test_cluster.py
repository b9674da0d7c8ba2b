"""Three brokers, watched by a Prometheus: one dies, the right alerts fire, the others' pages say what is known, and
when it is back all is well again.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
import requests
from confluent_kafka import Consumer, Producer, TopicPartition

from monitoring.boards import BOARDS
from monitoring.burrow import BurrowStatus
from service.cli.failures import Exit
from tests.monitoring.scraped import Scraped, read
from tests.monitoring.test_prometheus import PATIENCE_S, in_transaction, prometheus, wait_for
from tests.outside import needs
from tests.peers import zookeeper
from tests.peers.postgres import PostgresServer, missing
from tests.peers.zookeeper import ZooKeeperServer
from tests.service.cli.kit import oncelog
from tests.service.web.kit import Served

NODES = (1, 2, 3)
OTHERS = (
    # Grafana 7589, for kafka_exporter
    'sum(rate(kafka_topic_partition_current_offset{instance=~".+", topic=~".+"}[1m])) by (topic)',
    "sum(delta(kafka_topic_partition_current_offset[5m]) / 5) by (topic)",
    'sum(kafka_consumergroup_lag{topic=~".+"}) by (consumergroup, topic)',
    "sum(delta(kafka_consumergroup_current_offset[5m]) / 5) by (consumergroup, topic)",
    "sum by (topic) (kafka_topic_partitions)",
    # Strimzi, Kafka exporter
    "sum(kafka_brokers)",
    "sum(kafka_topic_partition_in_sync_replica)",
    "sum(kafka_topic_partition_under_replicated_partition)",
    "count(kafka_topic_partition_leader_is_preferred < 1) or vector(0)",
    "topk(5, sum by (consumergroup, topic) (kafka_consumergroup_lag_sum))",
    "sum(kafka_topic_partition_current_offset) - sum(kafka_topic_partition_oldest_offset)",
    # Strimzi, Kafka
    "sum(kafka_controller_kafkacontroller_activecontrollercount)",
    "sum(irate(kafka_controller_controllerstats_uncleanleaderelections_total[5m]))",
    "sum(kafka_server_replicamanager_partitioncount)",
    "sum(kafka_server_replicamanager_underreplicatedpartitions)",
    "sum(kafka_cluster_partition_atminisr)",
    "sum(kafka_cluster_partition_underminisr)",
    "sum(kafka_controller_kafkacontroller_offlinepartitionscount)",
    "sum(kafka_server_replicamanager_reassigningpartitions)",
    'sum(irate(kafka_server_brokertopicmetrics_messagesin_total{topic!=""}[5m]))',
    'sum(irate(kafka_server_brokertopicmetrics_bytesin_total{topic!=""}[5m])) by (instance)',
    'sum(irate(kafka_server_brokertopicmetrics_bytesout_total{topic!=""}[5m])) by (instance)',
    'sum(irate(kafka_server_brokertopicmetrics_totalproducerequests_total{topic!=""}[5m]))',
    'sum(irate(kafka_server_brokertopicmetrics_failedproducerequests_total{topic!=""}[5m]))',
    'sum(irate(kafka_server_brokertopicmetrics_totalfetchrequests_total{topic!=""}[5m]))',
    'sum(irate(kafka_server_brokertopicmetrics_failedfetchrequests_total{topic!=""}[5m]))',
    "avg(kafka_network_socketserver_networkprocessoravgidle_percent) by (instance)",
    "avg(kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent) by (instance)",
    "sum(kafka_server_socket_server_metrics_connection_count) by (instance, listener)",
    "sum(kafka_log_log_size) by (topic)",
    "sum(kafka_server_replicamanager_leadercount) by (instance)",
    'sum(irate(kafka_network_requestmetrics_requests_total{request="Produce"}[5m]))',
    'kafka_network_requestmetrics_totaltimems{request="Produce", quantile="0.99"}',
    "sum(irate(kafka_server_replicamanager_isrshrinks_total[5m]))",
)
"""What the boards of others ask for, as they ask it; what they ask of a JVM or of a container is left out."""
SUMMED, COUNTED, OPENED, ENDED = "ledger", "payments", "orders", "pieces"
STILL, JUDGED, STOOD = "still", "judged", "stood"
BURROW = os.environ.get("ONCELOG_TEST_BURROW", "")
"""A Burrow that can read what Kafka 4 writes; Debian's can't (docs/consoles.md)."""
ROUNDS = 8
BEHAVIOURS: dict[BurrowStatus, Callable[[int], int | None]] = {
    BurrowStatus.OK: lambda number: 100 + 10 * number,
    BurrowStatus.WARN: lambda number: 50 + 5 * number,
    BurrowStatus.STALL: lambda number: 40,
    BurrowStatus.REWIND: lambda number: 50 + number if number > 1 else 70,
    BurrowStatus.STOP: lambda number: 50 + number if number <= 3 else None,
}
"""What a group commits in each round, the first being 1, while the log grows by ten records from a hundred; and what is
to be said of it in the end.
"""


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
        write_and_read_in_part(started[1].bootstrap)
        yield started
    finally:
        for broker in started.values():
            broker.kill()
        postgres.stop()


def write(bootstrap: str, topic: str) -> None:
    """Ten records to each of three partitions."""
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for number in range(30):
        producer.produce(topic, b"x", partition=number % 3)
    assert producer.flush(PATIENCE_S) == 0


def write_and_read_in_part(bootstrap: str) -> None:
    """A group that has 18 records still to read, in partitions of several leaders."""
    write(bootstrap, SUMMED)
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "readers"})
    consumer.commit(offsets=[TopicPartition(SUMMED, number, 4) for number in range(3)], asynchronous=False)
    consumer.close()


def scrape(broker: Served) -> Scraped:
    return read(requests.get(broker.url + "/metrics", timeout=PATIENCE_S).text)


def seen(broker: Served, path: str) -> str:
    answer = requests.get(broker.url + path, timeout=PATIENCE_S)
    assert answer.status_code == 200
    return answer.text


def test_sums_over_brokers_are_right(brokers: dict[int, Served]) -> None:
    shown = [scrape(broker) for broker in brokers.values()]
    assert sum(each.one("kafka_controller_kafkacontroller_activecontrollercount") for each in shown) == 1
    assert {each.one("kafka_brokers") for each in shown} == {3}
    offsets = [value for each in shown for value in each.all("kafka_topic_partition_current_offset", topic=SUMMED)]
    assert offsets == [10, 10, 10], "each partition is told by its leader"

    def lag() -> float:
        found = (scrape(broker).all("kafka_consumergroup_lag", consumergroup="readers") for broker in brokers.values())
        return sum(value for values in found for value in values)

    wait_for(lambda: lag() == 18)  # of partitions that other brokers lead, too


def test_what_is_left_for_a_group_is_the_same_wherever_it_is_told(
    brokers: dict[int, Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In each of three partitions lie three transactions of a record each, the last marker at offset 5. Their leaders
    are three brokers, and each group has its coordinator on one of them. Metrics counted markers at the first look and
    for partitions of other leaders, pages and the command line always did.
    """
    bootstrap = brokers[1].bootstrap
    created = oncelog("topic", "create", ENDED, "-p", "3", "--replicas", "1", bootstrap=bootstrap)
    assert created.status == 0, created
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "of-one-record"})
    producer.init_transactions(PATIENCE_S)
    for _ in range(3):
        producer.begin_transaction()
        for number in range(3):
            producer.produce(ENDED, b"x", partition=number)
        producer.commit_transaction(PATIENCE_S)
    left = {"at-the-last-marker": (5, 0), "at-the-end": (6, 0), "behind-the-first": (2, 6), "at-the-start": (0, 9)}
    for group, (offset, _) in left.items():
        consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
        consumer.commit(offsets=[TopicPartition(ENDED, number, offset) for number in range(3)], asynchronous=False)
        consumer.close()
    monkeypatch.setattr("service.cli.doctor.NAMED", 99)
    groups = str(
        [row for row in oncelog("doctor", "-o", "json", bootstrap=bootstrap).json() if row["check"] == "groups"]
    )
    for group, (_, records) in left.items():
        for broker in brokers.values():
            assert requests.get(f"{broker.url}/v1/groups/{group}/lag", timeout=PATIENCE_S).json()["total"] == records
            # a page says what it could not learn soon, so it is asked again
            wait_for(partial(shows, broker, f"/ui/groups/{group}", [records // 3] * 6))
            wait_for(partial(shows, broker, f"/ui/groups?search={group}", [records] * 2))
        rows = oncelog("group", "lag", group, "-o", "json", bootstrap=bootstrap).json()
        assert [(row["lag"], row["lag_is"]) for row in rows] == [(records // 3, "exact")] * 3
        late = oncelog("group", "lag", group, "--fail-above", "0", bootstrap=bootstrap)
        assert late.status == (Exit.CONDITION if records else 0), late
        assert (f"{group} ({records})" in groups) == bool(records), groups
        # of partitions that other brokers lead, one look later
        wait_for(partial(has_in_metrics, brokers, group, records))


def shows(broker: Served, path: str, lags: list[int]) -> bool:
    """Whether a page has these figures, of each row what is left and what is readable of it."""
    return [int(each) for each in re.findall(r'data-is="(?:lag|readable)">(\d+)<', seen(broker, path))] == lags


def has_in_metrics(brokers: dict[int, Served], group: str, records: int) -> bool:
    scrapes = [scrape(broker) for broker in brokers.values()]
    metrics = ("kafka_consumergroup_lag", "kafka_consumergroup_lag_sum", "oncelog_group_stable_lag_records")
    lags = [sum(value for each in scrapes for value in each.all(name, consumergroup=group)) for name in metrics]
    return lags == [records] * 3


def test_what_is_written_is_counted_by_its_leader(brokers: dict[int, Served]) -> None:
    assert oncelog("topic", "create", COUNTED, "-p", "3", bootstrap=brokers[1].bootstrap).status == 0
    write(brokers[1].bootstrap, COUNTED)
    written = "kafka_server_brokertopicmetrics_messagesin_total"
    # a scrape of before may be told for a while
    wait_for(lambda: sum(sum(scrape(broker).all(written, topic=COUNTED)) for broker in brokers.values()) == 30)


def test_every_broker_shows_the_whole_cluster(brokers: dict[int, Served]) -> None:
    open_one = in_transaction(brokers[1].bootstrap, "pay", OPENED)
    for broker in brokers.values():
        # how soon others answer on this machine is learnt
        wait_for(lambda broker=broker: "Not everything can be told" not in seen(broker, f"/ui/topics/{OPENED}"))  # type: ignore[misc]
        wait_for(lambda broker=broker: "pay" in seen(broker, "/ui/transactions"))  # type: ignore[misc]
        page = seen(broker, f"/ui/topics/{OPENED}")
        assert page.count("high watermark") >= 3
        assert "1 wait, for" in page
        assert "pay" in page
        assert "readers" in seen(broker, "/ui/groups")
        assert seen(broker, "/ui/brokers").count('data-testid="broker"') == 3
        assert "Not everything can be told" not in page
    time.sleep(2.0)
    open_one.produce(OPENED, b"later", partition=0)
    assert open_one.flush(PATIENCE_S) == 0
    for broker in brokers.values():  # since it began, not since it wrote last
        (age,) = set(re.findall(r'data-is="open for">(\d+ m?s)<', seen(broker, f"/ui/topics/{OPENED}")))
        assert int(age.removesuffix(" s")) >= 2
    open_one.abort_transaction(PATIENCE_S)


PAGES = (
    *("/ui", "/ui/transactions", "/ui/transactions/silent", "/ui/topics", f"/ui/topics/{OPENED}", "/ui/brokers"),
    *(f"/ui/producers?topic={OPENED}", "/ui/groups", "/ui/groups/readers", "/ui/groups/readers/reset?to=earliest"),
    "/metrics",
)


def test_nobody_waits_for_a_broker_that_is_silent(brokers: dict[int, Served]) -> None:
    """It is alive, and does not answer: each page says so, and tells what the others know."""
    open_one = in_transaction(brokers[1].bootstrap, "silent", OPENED)
    silent = brokers[2].process.pid
    os.kill(silent, signal.SIGSTOP)
    try:
        time.sleep(1.1)  # a page that was drawn before is shown for a second
        took_s = {}
        told = ""
        for path in PAGES:
            began_s = time.monotonic()
            told += seen(brokers[1], path)
            took_s[path] = time.monotonic() - began_s
        assert sum(took_s.values()) < 10.0, took_s  # most of them took three seconds before, one thirty
        assert "broker 2 has not answered" in told
        assert "broker 3 has not answered" not in told
    finally:
        os.kill(silent, signal.SIGCONT)
    wait_for(lambda: "Not everything can be told" not in seen(brokers[1], "/ui/brokers"))
    wait_for(lambda: "broker 2" in seen(brokers[1], "/ui/brokers").lower())
    open_one.abort_transaction(PATIENCE_S)
    wait_for(lambda: all(scrape(broker).one("kafka_brokers") == 3 for broker in brokers.values()))


def bit_of_everything(brokers: dict[int, Served], open_one: Producer) -> None:
    """Transactions of either end, a group that reads and commits in one that stays open, HTTP that works and fails."""
    bootstrap = brokers[1].bootstrap
    for number in range(4):
        each = in_transaction(bootstrap, f"load-{number}", OPENED)
        (each.abort_transaction if number % 2 else each.commit_transaction)(PATIENCE_S)
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "loaded",
            "auto.offset.reset": "earliest",
            "isolation.level": "read_uncommitted",
        }
    )
    try:
        consumer.subscribe([OPENED])
        wait_for(lambda: consumer.poll(0.5))
        consumer.commit(asynchronous=False)
        open_one.send_offsets_to_transaction([TopicPartition(OPENED, 0, 1)], consumer.consumer_group_metadata())
        for broker in brokers.values():
            for path in ("/v1/topics", "/v1/topics/none"):
                requests.get(broker.url + path, timeout=PATIENCE_S)
    finally:
        consumer.close()


def commit_by_and_by(brokers: dict[int, Served], topic: str, groups: Sequence[str], *offsets: int) -> None:
    """These groups commit each offset in three partitions, and brokers are scraped in between."""
    consumers = [Consumer({"bootstrap.servers": brokers[1].bootstrap, "group.id": name}) for name in groups]
    for offset in offsets:
        for consumer in consumers:
            consumer.commit(offsets=[TopicPartition(topic, number, offset) for number in range(3)], asynchronous=False)
        time.sleep(1.1)  # two commits within a second count as one
        for broker in brokers.values():
            scrape(broker)
    for consumer in consumers:
        consumer.close()


@needs("prometheus")
def test_every_panel_and_every_query_of_the_boards_of_others_returns_data(
    brokers: dict[int, Served], tmp_path: Path
) -> None:
    expressions = {
        expression.replace("$__rate_interval", "1m").replace("$job", "oncelog").replace("$topic", ".*")
        for board in BOARDS
        for row in board.rows
        for panel in row.panels
        for expression, _ in panel.queries
    }
    wanted = expressions | set(OTHERS)
    targets = [broker.url.removeprefix("http://") for broker in brokers.values()]
    with prometheus(tmp_path, *targets) as watching:
        open_one = in_transaction(brokers[1].bootstrap, "stays-open", OPENED)
        bit_of_everything(brokers, open_one)
        assert oncelog("topic", "create", STILL, "-p", "3", bootstrap=brokers[1].bootstrap).status == 0
        write(brokers[1].bootstrap, STILL)
        commit_by_and_by(brokers, STILL, ["stopped"], 1, 2)
        silent = wanted

        def all_told() -> bool:
            nonlocal silent
            silent = {each for each in silent if watching.value(each) is None}
            return not silent

        try:
            wait_for(all_told)
        finally:
            open_one.abort_transaction(PATIENCE_S)
            assert silent == set()


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
        assert re.search("Broker 3 is away. It holds [1-9][0-9]* replicas", page)
        assert 'data-testid="away"' in seen(brokers[2], "/ui/brokers")
        assert "lacks 3 (away)" in seen(brokers[1], f"/ui/topics/{OPENED}")
        told = oncelog("doctor", "-o", "json", bootstrap=brokers[1].bootstrap)
        assert told.status == Exit.CONDITION
        assert [row["state"] for row in told.json() if "broker 3 is away" in row["finding"]] == ["problem"]
        rows = oncelog("cluster", "-o", "json", bootstrap=brokers[1].bootstrap).json()
        assert [(row["broker"], row["address"]) for row in rows if row["broker"] == 3] == [(3, None)]
        brokers[3].start()
        wait_for(
            lambda: (
                watching.firing() & {"OncelogBrokerDown", "OncelogUnderReplicated", "OncelogOfflinePartitions"} == set()
            )
        )
        wait_for(lambda: "lack a replica" not in seen(brokers[1], "/ui"))


def test_every_broker_names_a_group_that_stands_still_on_any_coordinator(brokers: dict[int, Served]) -> None:
    bootstrap = brokers[1].bootstrap
    assert oncelog("topic", "create", STOOD, "-p", "3", "--replicas", "3", bootstrap=bootstrap).status == 0
    write(bootstrap, STOOD)
    # so many that several brokers coordinate some
    standing, reading = ([f"{kind}-{number}" for number in range(4)] for kind in ("stands", "reads"))
    commit_by_and_by(brokers, STOOD, standing, 4, 4)
    commit_by_and_by(brokers, STOOD, reading, 4, 10)
    for broker in brokers.values():
        wait_for(lambda broker=broker: _late(broker) >= set(standing))  # type: ignore[misc]
        assert not _late(broker) & set(reading)
        assert "Groups that stand still although there is more to read" in seen(broker, "/ui")
        assert "state bad" in seen(broker, "/ui/groups/stands-0")
        assert "state bad" not in seen(broker, "/ui/groups/reads-0")


def _late(broker: Served) -> set[str]:
    return set(re.findall(r'href="/ui/groups/([a-z0-9-]+)"', seen(broker, "/ui/groups?which=late")))


@contextmanager
def burrow(folder: Path, servers: list[str]) -> Iterator[str]:
    """Burrow itself, with a ZooKeeper for its lock; where it answers about groups."""
    keeper = ZooKeeperServer(folder / "keeper")
    port = free_port()
    at_brokers = {"class-name": "kafka", "servers": servers, "client-profile": "here"}
    sections: dict[str, dict[str, object]] = {
        "general": {"pidfile": str(folder / "burrow.pid")},
        "zookeeper": {"servers": [keeper.address], "timeout": 6, "root-path": "/burrow"},
        "client-profile.here": {"client-id": "burrow", "kafka-version": "2.0.0"},
        "cluster.local": {**at_brokers, "topic-refresh": 5, "offset-refresh": 1},
        "consumer.local": {**at_brokers, "cluster": "local", "start-latest": False},
        "httpserver.default": {"address": f"127.0.0.1:{port}"},
        "storage.default": {"class-name": "inmemory", "intervals": 10, "min-distance": 1},
        "evaluator.default": {"class-name": "caching", "expire-cache": 1},
    }
    lines = []
    for name, values in sections.items():  # what TOML and JSON write alike
        lines += [f"[{name}]", *(f"{key}={json.dumps(value)}" for key, value in values.items())]
    (folder / "burrow.toml").write_text("\n".join(lines))
    try:
        keeper.start()
        with (
            open(folder / "burrow.log", "wb") as log,
            subprocess.Popen([BURROW, "-config-dir", str(folder)], stdout=log, stderr=log) as process,
        ):
            try:
                yield f"http://127.0.0.1:{port}/v3/kafka/local"
            finally:
                process.terminate()
    finally:
        keeper.stop()


@pytest.mark.skipif(not BURROW, reason="ONCELOG_TEST_BURROW names no Burrow of 2025 or later")
@pytest.mark.skipif(zookeeper.missing() is not None, reason=zookeeper.missing() or "")
def test_burrow_itself_says_the_same_of_every_group(brokers: dict[int, Served], tmp_path: Path) -> None:
    servers = [broker.bootstrap for broker in brokers.values()]
    oncelog("topic", "create", JUDGED, bootstrap=servers[0])
    producer = Producer({"bootstrap.servers": servers[0], "linger.ms": 0})
    consumers = {
        wanted: Consumer({"bootstrap.servers": servers[0], "group.id": f"burrow-{wanted.name}"})
        for wanted in BEHAVIOURS
    }

    def write(count: int) -> None:
        for _ in range(count):
            producer.produce(JUDGED, b"x")
        assert producer.flush(PATIENCE_S) == 0

    def ours() -> dict[str, str]:
        told = [sample for broker in brokers.values() for sample in scrape(broker).samples]
        return {
            each.labels["consumergroup"]: BurrowStatus(int(each.value)).name
            for each in told
            if each.name == "oncelog_group_status" and each.labels["consumergroup"].startswith("burrow-")
        }

    with burrow(tmp_path, servers) as url:

        def theirs() -> dict[str, str]:
            found = {}
            for wanted in BEHAVIOURS:
                told = requests.get(f"{url}/consumer/burrow-{wanted.name}/lag", timeout=PATIENCE_S).json()
                (partition,) = told["status"]["partitions"]
                found[f"burrow-{wanted.name}"] = partition["status"]
            return found

        write(100)
        wait_for(lambda: _burrow_knows(url))
        for number in range(1, ROUNDS + 1):
            write(10)
            time.sleep(1.5)  # until Burrow has looked at the end again: it judges by the lag at each commit
            for wanted, consumer in consumers.items():
                if (offset := BEHAVIOURS[wanted](number)) is not None:
                    consumer.commit(offsets=[TopicPartition(JUDGED, 0, offset)], asynchronous=False)
            ours()
        expected = {f"burrow-{wanted.name}": wanted.name for wanted in BEHAVIOURS}
        wait_for(lambda: theirs() == ours() == expected)
    for consumer in consumers.values():
        consumer.close()


def _burrow_knows(url: str) -> bool:
    try:
        told = requests.get(f"{url}/topic/{JUDGED}", timeout=PATIENCE_S).json()
    except requests.ConnectionError:  # it has yet to listen
        return False
    return bool(told.get("offsets") == [100])

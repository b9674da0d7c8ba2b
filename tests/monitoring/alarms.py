"""What goes wrong for real makes the right alerts fire, and no others, until it is over: `make alarms`.

Three real brokers under a light transactional load, Debian's Prometheus with our rules and its Alertmanager with the
configuration that we deploy. Only times are shorter: a minute is ten seconds.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email.message import Message
from pathlib import Path
from typing import Any

import pytest
import requests
import yaml
from confluent_kafka import KafkaException, Producer

from tests.monitoring.test_cluster import free_port
from tests.monitoring.test_prometheus import PATIENCE_S, ROOT, Prometheus, write_unasked
from tests.outside import needs
from tests.peers.postgres import PostgresServer, missing
from tests.peers.receiver import OK, Receiver
from tests.service.cli.kit import oncelog
from tests.service.web.kit import Served

pytestmark = [needs("prometheus", "prometheus-alertmanager"), pytest.mark.timeout(600)]
TIMES_FASTER = 6
CALM_S = 40.0
"""So long nothing else may fire: every alert whose condition holds for four minutes has by then."""
SMALL = "60m"
VERIFICATION = "transaction.partition.verification.enable"
STOPPED_MOST_S = 4.5
"""Shorter than a broker's session, and than a broker may be silent before it counts as down."""
GOING_S = 6.0
"""After each stop. A broker is unreachable when two looks at it find no answer, which are eight seconds apart then, so
that the second finds one. These looks are as seldom here as anywhere, while the alert about them comes six times as
soon.
"""
LOOKING_BACK_S = 600.0
"""So far back a broker looks for in-sync sets that flap, which is as long here as anywhere."""
NODES = (1, 2, 3)
ON_SMALL_DISK = 3
TOPIC, PARTITIONS = "orders", 6
NOT_JUDGED = frozenset({"OncelogDiskFillsSoon"})
"""It looks at an hour of a disk that nobody else writes to. Its unit tests let that hour pass: oncelog.test.yml."""


def faster(rules: str) -> str:
    """The rules with every `for` as much shorter."""
    seconds = {"s": 1, "m": 60, "h": 3600}

    def shorter(match: re.Match[str]) -> str:
        return f"for: {max(int(match[1]) * seconds[match[2]] * 1000 // TIMES_FASTER, 1)}ms"

    return re.sub(r"for: (\d+)([smh])$", shorter, rules, flags=re.MULTILINE)


class Load:
    """A producer that commits and now and then aborts, whatever happens to brokers."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._stop = threading.Event()
        self.committed = 0
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            producer = Producer(
                {"bootstrap.servers": self._bootstrap, "transactional.id": "load", "linger.ms": 0, "log_level": 0}
            )
            try:
                producer.init_transactions(PATIENCE_S)
                while not self._stop.wait(0.2):
                    producer.begin_transaction()
                    for partition in range(PARTITIONS):
                        producer.produce(TOPIC, b"x", partition=partition)
                    producer.commit_transaction(PATIENCE_S)
                    self.committed += 1
            except KafkaException:
                time.sleep(0.2)  # a new one goes on

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


class Told(Receiver):
    """What Alertmanager told the receiver: what fires now, and what ever did."""

    def __init__(self) -> None:
        self.firing: set[tuple[str, str]] = set()
        self.ever: set[str] = set()
        super().__init__()

    def take(self, path: str, headers: Message, body: bytes) -> int:
        for alert in json.loads(body)["alerts"]:
            each = alert["labels"]["alertname"], alert["fingerprint"]
            if alert["status"] == "firing":
                self.firing.add(each)
                self.ever.add(each[0])
            else:
                self.firing.discard(each)
        return OK

    @property
    def names(self) -> set[str]:
        return {name for name, _ in self.firing} - NOT_JUDGED


@contextmanager
def running(log: Path, *command: str) -> Iterator[None]:
    with open(log, "wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out)
    try:
        yield
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


def comes(holds: Callable[[], Any], what: object = "", patience_s: float = 150.0) -> None:
    deadline = time.monotonic() + patience_s
    while not holds():
        assert time.monotonic() < deadline, what() if callable(what) else what
        time.sleep(0.2)


class Watch:
    """The whole: brokers, their load, Prometheus and Alertmanager."""

    def __init__(self, brokers: dict[int, Served], prometheus: Prometheus, told: Told, load: Load) -> None:
        self.brokers, self.prometheus, self.told, self.load = brokers, prometheus, told, load

    def fires(self, *expected: str, perhaps: frozenset[str] = frozenset()) -> None:
        """These do, and for a while nothing else."""
        wanted = set(expected)
        comes(lambda: wanted <= self.firing, lambda: (wanted, self.firing))
        until = time.monotonic() + CALM_S
        while time.monotonic() < until:
            assert self.firing <= wanted | perhaps, self.firing
            time.sleep(0.3)
        assert self.firing - perhaps == wanted

    @property
    def firing(self) -> set[str]:
        return self.prometheus.firing() - NOT_JUDGED

    def is_calm(self, patience_s: float = 150.0) -> None:
        comes(lambda: self.firing == set() == self.told.names, lambda: (self.firing, self.told.names), patience_s)
        before = self.load.committed
        comes(lambda: self.load.committed > before + 3, "the load goes on")


@pytest.fixture(scope="module")
def watch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watch]:
    if reason := missing():
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("alarms")
    postgres = PostgresServer(folder / "postgres")
    small = folder / f"broker-{ON_SMALL_DISK}"
    small.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SMALL}", "none", str(small)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("this machine lets nobody mount a small disk")
    brokers: dict[int, Served] = {}
    told = Told()
    load: Load | None = None
    try:
        postgres.start()
        settings = {
            "store.url": postgres.url,
            "broker.session.timeout.ms": "9000",
            "replica.lag.time.max.ms": "2000",
            "default.replication.factor": "3",
            "min.insync.replicas": "2",
            "offsets.topic.num.partitions": "3",
            "transaction.state.log.num.partitions": "3",
            "log.reserve.bytes": "16777216",
            "log.segment.bytes": "1048576",
            "log.retention.check.interval.ms": "500",
        }
        for node in NODES:
            own = {"node.id": str(node), "http.listeners": f"http://127.0.0.1:{free_port()}"}
            (folder / f"broker-{node}").mkdir(exist_ok=True)
            brokers[node] = Served(folder / f"broker-{node}" / "data", **settings, **own)
        created = oncelog("topic", "create", TOPIC, "-p", str(PARTITIONS), bootstrap=brokers[1].bootstrap)
        assert created.status == 0, created
        load = Load(",".join(broker.bootstrap for broker in brokers.values()))
        with _monitors(folder, [broker.url.removeprefix("http://") for broker in brokers.values()], told) as prometheus:
            watch = Watch(brokers, prometheus, told, load)
            comes(lambda: prometheus.value("count(up == 1)") == len(NODES))
            yield watch
    finally:
        if load is not None:
            load.stop()
        told.stop()
        for broker in brokers.values():
            broker.kill()
        postgres.stop()
        subprocess.run(["umount", str(small)], check=True)


@contextmanager
def _monitors(folder: Path, targets: list[str], told: Told) -> Iterator[Prometheus]:
    alertmanager = yaml.safe_load((ROOT / "deploy" / "alertmanager.yml").read_text())
    alertmanager["receivers"] = [{"name": "nobody", "webhook_configs": [{"url": told.url, "send_resolved": True}]}]
    for route in (alertmanager["route"], *alertmanager["route"]["routes"]):
        route |= {"group_wait": "500ms", "group_interval": "1s"}
    (folder / "alertmanager.yml").write_text(json.dumps(alertmanager))
    (folder / "rules.yml").write_text(faster((ROOT / "monitoring" / "alerts" / "oncelog.rules.yml").read_text()))
    manager, port = f"127.0.0.1:{free_port()}", free_port()
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": ["rules.yml"],
        "alerting": {"alertmanagers": [{"static_configs": [{"targets": [manager]}]}]},
        "scrape_configs": [{"job_name": "oncelog", "static_configs": [{"targets": targets}]}],
    }
    (folder / "prometheus.yml").write_text(json.dumps(config))
    with (
        running(
            *(folder / "alertmanager.log", "prometheus-alertmanager", f"--config.file={folder}/alertmanager.yml"),
            *(f"--storage.path={folder}/alertmanager", f"--web.listen-address={manager}", "--cluster.listen-address="),
        ),
        running(
            *(folder / "prometheus.log", "prometheus", f"--config.file={folder}/prometheus.yml"),
            *(f"--storage.tsdb.path={folder}/prometheus", f"--web.listen-address=127.0.0.1:{port}"),
        ),
    ):
        yield_to = Prometheus(port)
        comes(lambda: _is_up(f"http://127.0.0.1:{port}/-/ready") and _is_up(f"http://{manager}/-/ready"))
        yield yield_to


def _is_up(url: str) -> bool:
    try:
        return requests.get(url, timeout=PATIENCE_S).status_code == 200
    except requests.ConnectionError:
        return False


def _controller(watch: Watch) -> int:
    value = watch.prometheus.get("query", query="kafka_controller_kafkacontroller_activecontrollercount == 1")
    (instance,) = {each["metric"]["instance"] for each in value["result"]}
    (node,) = (node for node, broker in watch.brokers.items() if broker.url == f"http://{instance}")
    return node


def _victim(watch: Watch) -> Served:
    """Somebody who does not control: who does is missed for as long as its session lasts, which is another alert."""
    return watch.brokers[next(node for node in NODES if node not in (_controller(watch), ON_SMALL_DISK))]


def _set_everywhere(watch: Watch, key: str, value: str) -> None:
    changed = oncelog("config", "set", f"{key}={value}", bootstrap=watch.brokers[1].bootstrap)
    assert changed.status == 0, changed
    for node, broker in watch.brokers.items():
        asked = ("config", "get", "--broker", str(node), key)
        comes(lambda asked=asked, broker=broker: value in oncelog(*asked, bootstrap=broker.bootstrap).out.split())  # type: ignore[misc]


def test_a_transaction_that_hangs(watch: Watch) -> None:
    watch.is_calm()
    first = watch.brokers[1].bootstrap
    created = oncelog("topic", "create", "hangs", "-p", "1", bootstrap=first)
    assert created.status == 0, created
    # For this write alone: without verification a late write of the load would hang as well, and be told rightly.
    _set_everywhere(watch, VERIFICATION, "false")
    for broker in watch.brokers.values():  # its leader takes it, and nobody else
        write_unasked(broker.bootstrap, "hangs", 4_242)
    _set_everywhere(watch, VERIFICATION, "true")
    watch.fires("OncelogHangingTransaction", perhaps=frozenset({"OncelogLsoStuck"}))  # which would be as true
    comes(lambda: "OncelogHangingTransaction" in watch.told.names)
    ended = oncelog("txn", "abort", "hangs", "0", "--start-offset", "0", "--yes", bootstrap=first)
    assert ended.status == 0, ended
    watch.is_calm()


def test_a_broker_that_died(watch: Watch) -> None:
    watch.is_calm()
    victim = _victim(watch)
    victim.kill()
    watch.fires("OncelogBrokerDown", "OncelogUnderReplicated")
    comes(lambda: watch.told.names == {"OncelogBrokerDown"}, "the one explains the other, and is told alone")
    victim.start()
    watch.is_calm()


def test_a_replica_that_is_asleep(watch: Watch) -> None:
    watch.is_calm()
    victim = _victim(watch)
    os.kill(victim.process.pid, signal.SIGSTOP)
    try:
        watch.fires("OncelogBrokerDown", "OncelogUnderReplicated")
        comes(lambda: "OncelogBrokerDown" in watch.told.names)
    finally:
        os.kill(victim.process.pid, signal.SIGCONT)
    watch.is_calm()


def test_a_disk_that_is_full(watch: Watch) -> None:
    watch.is_calm()
    broker = watch.brokers[ON_SMALL_DISK]
    filler = broker.folder.parent / "of-somebody-else"
    space = os.statvfs(broker.folder)
    with open(filler, "wb") as file:
        file.write(bytes(space.f_bavail * space.f_frsize - (32 << 10)))
    try:
        watch.fires("OncelogDiskFull")
        comes(lambda: "OncelogDiskFull" in watch.told.names)
        says = f"{broker.folder} is full: producers are refused"
        assert f"Broker {ON_SMALL_DISK}: {says}" in requests.get(f"{watch.brokers[1].url}/ui", timeout=PATIENCE_S).text
        rows = oncelog("doctor", "-o", "json", bootstrap=watch.brokers[1].bootstrap).json()
        found = [row["finding"] for row in rows if (row["check"], row["state"]) == ("disks", "problem")]
        assert found == [f"{broker.folder} of broker {ON_SMALL_DISK} is full: producers are refused"]
    finally:
        filler.unlink()
    watch.is_calm()


class Pulses:
    """A broker that is stopped until the leaders miss it, and goes on until they have it back, again and again. How
    long that takes is theirs to say, so that a slow machine changes nothing.
    """

    def __init__(self, watch: Watch, victim: Served) -> None:
        self._victim = victim.process.pid
        self._id = next(node for node, broker in watch.brokers.items() if broker is victim)
        self._asked = next(broker for broker in watch.brokers.values() if broker is not victim)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.is_set():
            os.kill(self._victim, signal.SIGSTOP)
            self._wait(in_sync=False, patience_s=STOPPED_MOST_S)
            os.kill(self._victim, signal.SIGCONT)
            self._wait(in_sync=True, patience_s=PATIENCE_S)
            self._over.wait(GOING_S)

    def _wait(self, *, in_sync: bool, patience_s: float) -> None:
        """Until the victim is in sync, or is not, wherever it follows."""
        until = time.monotonic() + patience_s
        while time.monotonic() < until:
            answer = requests.get(f"{self._asked.url}/v1/topics/{TOPIC}", timeout=PATIENCE_S).json()
            if all(
                (self._id in each["in_sync"]) == in_sync for each in answer["partitions"] if each["leader"] != self._id
            ):
                return
            time.sleep(0.05)


@pytest.mark.timeout(1500)
def test_a_replica_that_is_slow_and_answers(watch: Watch) -> None:
    """It falls behind and catches up, again and again, while Prometheus and the metadata store reach it."""
    watch.is_calm()
    with Pulses(watch, _victim(watch)):
        watch.fires("OncelogIsrFlapping", perhaps=frozenset({"OncelogEventLoopSlow"}))  # it is as late as it is stopped
        comes(lambda: "OncelogIsrFlapping" in watch.told.names)
    watch.is_calm(LOOKING_BACK_S + 150.0)

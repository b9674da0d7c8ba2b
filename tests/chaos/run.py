"""Processes are killed while they copy a topic in transactions; afterwards the sums must come out right.

A feeder writes numbered values, a few keys each in one partition. Each client library copies all of it to a topic of
its own, in transactions that commit the offsets too. Meanwhile the copiers and the broker are killed with
SIGKILL at moments that a seed chooses. When the time is up all are left in peace until the copies are whole.
`python -m tests.chaos` and tests/chaos/test_chaos.py call `run`.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from tests.chaos import java_and_spark
from tests.chaos.java_and_spark import AT_WORK, ON_JAVA
from tests.chaos.over_http import OVER_HTTP, Http, Refused, positions
from tests.chaos.whence import whence
from tests.chaos.worker import CLIENTS
from tests.clients.kits import eventually
from tests.clients.offsets import committed_offsets
from tests.clients.topics import Topics
from tests.peers.ours import Oncelog
from tests.peers.process import QUICK_SETTINGS, ROOT, BrokerProcess, free_port
from tests.spark.cluster import family, kill_all

PARTITIONS = 3
KEYS = 6
FEED_PAUSE_SECONDS = 0.02
BEHIND = 10_000
"""How many inputs the slowest copier may be behind. It catches up with them in a minute or two of peace: while there is
killing, one request after the other over HTTP copies 5 a second, in peace more than 100.
"""
ASK_EVERY_SECONDS = 1.0
DOUBLED_SHOWN = 5
LOG_BYTES = 4 << 20
"""How much a client's log holds; as much from before is kept beside it."""
PEACE_SECONDS = 120.0
"""How long each client may stand still when nobody is killed any more."""
JAVA_STARTS_WITHIN_S = 240.0
"""On a machine that is busy its classes alone take half a minute, and Spark starts one process after the other."""


@dataclass
class Report:
    """What was done, and what is wrong (nothing, if all went well)."""

    inputs: int = 0
    broker_kills: int = 0
    client_kills: dict[str, int] = field(default_factory=dict)
    restarts: dict[str, int] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        kills = ", ".join(f"{name} {count}" for name, count in self.client_kills.items())
        starts = ", ".join(f"{name} {count}" for name, count in self.restarts.items())
        lines = [
            f"{self.inputs} inputs; killed: broker {self.broker_kills}, {kills}; started again: {starts}",
            *self.faults,
            "the sums come out right" if not self.faults else f"{len(self.faults)} faults",
        ]
        return "\n".join(lines)


class Copier:
    """One client library at work; it is started again whenever it is gone."""

    def __init__(self, client: str, bootstrap: str, source: str, target: str, folder: Path, urls: str) -> None:
        self.client = client
        self.target = target
        self.group = f"copy-{client.replace(' ', '-')}"
        self.starts = 0
        self.patience_s = PEACE_SECONDS + (JAVA_STARTS_WITHIN_S if client in ON_JAVA else 0)
        self.log = folder / f"{client}.log"
        self._log_began = 0
        words = (source, target, self.group)
        on_java = java_and_spark.command(client, bootstrap, *words, folder / client / "checkpoint")
        worker = (sys.executable, "-m", "tests.chaos.worker", client, bootstrap, urls, *words, "600")
        self._command = on_java or list(worker)
        self._process: subprocess.Popen[bytes] | None = None

    def keep_running(self) -> None:
        if self.log.exists() and self.log.stat().st_size > LOG_BYTES:
            shutil.copyfile(self.log, self.log.with_suffix(".log.before"))
            os.truncate(self.log, 0)
            self._log_began = 0
        if self._process is not None and self._process.poll() is None:
            return
        self.starts += 1
        self._log_began = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(self._command, cwd=ROOT, stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def strike(self) -> bool:
        """Kill it while others go on. What takes long to start is left alone until it has copied something."""
        is_starting = self.client in ON_JAVA and AT_WORK not in self.log.read_bytes()[self._log_began :]
        return not is_starting and self.kill()

    def kill(self) -> bool:
        """With all that it has started, as Spark starts a Java machine."""
        process, self._process = self._process, None
        if process is None or process.poll() is not None:
            return False
        kill_all(family(process.pid))
        process.wait()
        return True


class Feeder:
    """Writes the inputs with an idempotent producer that outlives every restart of the broker."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        settings = {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5, "log_level": 0}
        self._producer = Producer({**settings, "message.timeout.ms": 300_000})
        self._topic = topic
        self.count = 0
        self.failures: list[str] = []

    def feed(self, count: int) -> None:
        for _ in range(count):
            key = self.count % KEYS
            self._producer.produce(
                self._topic,
                f"{self.count}".encode(),
                f"key-{key}".encode(),
                partition=key % PARTITIONS,
                on_delivery=self._delivered,
            )
            self.count += 1
        self._producer.poll(0)

    def _delivered(self, error: object, _: object) -> None:
        if error is not None:
            self.failures.append(f"an input was not written: {error}")

    def finish(self) -> None:
        if self._producer.flush(PEACE_SECONDS):
            self.failures.append("inputs were not acknowledged")


class Distance(threading.Thread):
    """How far the slowest copier is behind, as far as anybody knows: brokers are asked beside everything else, and an
    answer that does not come changes nothing.

    They are asked over HTTP: a run that asked by librdkafka's administration while brokers died ended in a segmentation
    fault.
    """

    def __init__(self, urls: str, copiers: list[Copier], source: str) -> None:
        super().__init__(name="the distance", daemon=True)
        self._http = Http(urls)
        self._source = source
        self._copied = dict.fromkeys((copier.group for copier in copiers), 0)
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.wait(ASK_EVERY_SECONDS):
            self.look()
        self._http.close()

    def look(self) -> None:
        for group in self._copied:
            with suppress(Refused, OSError):
                # Inputs are written without transactions: offsets have no gaps.
                found = positions(self._http, group, self._source, until=time.monotonic())
                self._copied[group] = sum(found.values())

    def is_short(self, inputs: int) -> bool:
        """Whether there may be more of them than these."""
        return inputs - min(self._copied.values()) < BEHIND

    def stop(self) -> None:
        self._over.set()
        self.join()  # a question has a timeout


def run(
    folder: Path,
    *,
    seconds: float,
    seed: int,
    durability: str = "auto",
    clients: Iterable[str] = (*CLIENTS, *OVER_HTTP),
    broker_pause: tuple[float, float] = (2.0, 8.0),
    client_pause: tuple[float, float] = (0.5, 3.0),
) -> Report:
    """Kill for `seconds`; then wait until the copies are whole, and judge them."""
    chance = random.Random(seed)
    clients = tuple(clients)
    url = f"http://127.0.0.1:{free_port()}"
    settings = {
        **QUICK_SETTINGS,
        "http.listeners": url,
        "log.durability": durability,
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    }
    broker = Oncelog(folder, settings=settings)
    broker.start()
    report = Report(client_kills=dict.fromkeys(clients, 0))
    topics = Topics(broker.bootstrap, "chaos")
    source = topics.create(partitions=PARTITIONS)
    copiers = [Copier(name, broker.bootstrap, source, topics.create(PARTITIONS), folder, url) for name in clients]
    feeder, distance = Feeder(broker.bootstrap, source), Distance(url, copiers, source)
    distance.start()
    try:
        until = time.monotonic() + seconds
        _disturb(chance, until, broker, copiers, feeder, distance, report, broker_pause, client_pause)
        feeder.finish()
        report.faults += feeder.failures
        report.inputs = feeder.count
        report.faults += let_finish(broker.bootstrap, copiers, source)
        for copier in copiers:
            copier.kill()
        for copier in copiers:
            report.restarts[copier.client] = copier.starts - 1
            report.faults += judge(broker.bootstrap, copier, source, report.inputs, [broker.data]).faults
    finally:
        distance.stop()
        for copier in copiers:
            copier.kill()
        if broker.running():
            broker.stop()
    return report


def _disturb(
    chance: random.Random,
    until: float,
    broker: BrokerProcess,
    copiers: list[Copier],
    feeder: Feeder,
    distance: Distance,
    report: Report,
    broker_pause: tuple[float, float],
    client_pause: tuple[float, float],
) -> None:
    next_broker = time.monotonic() + chance.uniform(*broker_pause)
    next_client = time.monotonic() + chance.uniform(*client_pause)
    while (now := time.monotonic()) < until:
        for copier in copiers:
            copier.keep_running()
        feeder.feed(5 if distance.is_short(feeder.count) else 0)
        if now >= next_broker:
            broker.kill()
            broker.start()
            report.broker_kills += 1
            next_broker = time.monotonic() + chance.uniform(*broker_pause)
        if now >= next_client:
            victim = chance.choice(copiers)
            report.client_kills[victim.client] += victim.strike()
            next_client = time.monotonic() + chance.uniform(*client_pause)
        time.sleep(FEED_PAUSE_SECONDS)


def let_finish(bootstrap: str, copiers: list[Copier], source: str) -> list[str]:
    """Nobody is killed any more: the groups reach the end of the source, as long as they get on. Who does not.

    Who has all is ended: it leaves the machine to the others.
    """
    ends = end_offsets(bootstrap, source)
    stands = {copier.client: [-1] * PARTITIONS for copier in copiers}
    moved_at = dict.fromkeys(stands, time.monotonic())
    waiting, stuck = list(copiers), []
    while waiting:
        time.sleep(0.5)
        for copier in list(waiting):
            copier.keep_running()
            now, name = committed_offsets(bootstrap, copier.group, source, PARTITIONS), copier.client
            if now != stands[name]:
                stands[name], moved_at[name] = now, time.monotonic()
            if now == ends:
                copier.kill()
                waiting.remove(copier)
                print(f"  {name} has all", flush=True)
            elif time.monotonic() - moved_at[name] > copier.patience_s:
                stuck.append(
                    f"{name} gets nothing: for {copier.patience_s:.0f} s its group has stood at {now}, the source ends"
                    f" at {ends}; its log is {copier.log}"
                )
                waiting.remove(copier)
    return stuck


def end_offsets(bootstrap: str, topic: str) -> list[int]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "chaos-unused"})
    places = [TopicPartition(topic, index) for index in range(PARTITIONS)]

    def ask() -> list[int] | None:
        try:
            return [int(consumer.get_watermark_offsets(place, 20)[1]) for place in places]
        except KafkaException as failure:
            if failure.args[0].code() != KafkaError.NOT_LEADER_FOR_PARTITION:  # another broker leads since a moment ago
                raise
            return None

    ends = eventually(ask, lambda told: told is not None)
    consumer.close()
    assert ends is not None
    return list(ends)


@dataclass
class Judged:
    """What is wrong with a copy, and how many inputs are missing in it or there more than once."""

    faults: list[str] = field(default_factory=list)
    lost: int = 0
    doubled: int = 0


def judge(bootstrap: str, copier: Copier, source: str, inputs: int, folders: Sequence[Path]) -> Judged:
    """Every input must be there exactly once, each key's in order. `folders` have the brokers' data."""
    by_key: dict[bytes, list[int]] = {}
    places: dict[int, list[tuple[int, int]]] = {}
    for key, value, partition, offset in _committed(bootstrap, copier.target):
        by_key.setdefault(key, []).append(int(value))
        places.setdefault(int(value), []).append((partition, offset))
    judged = Judged()
    for index in range(KEYS):
        got = by_key.pop(f"key-{index}".encode(), [])
        wanted = list(range(index, inputs, KEYS))
        if got == wanted:
            continue
        lost = sorted(set(wanted) - set(got))
        doubled = sorted(value for value, count in Counter(got).items() if count > 1)
        order = "" if lost or doubled else "in another order"
        judged.lost += len(lost)
        judged.doubled += len(doubled)
        judged.faults.append(f"{copier.client}, key-{index}: lost {lost[:10]}, doubled {doubled[:10]} {order}")
        for twice in doubled[:DOUBLED_SHOWN]:
            each = (f"{of}: {whence(folders, copier.target, of, [offset])}" for of, offset in places[twice])
            judged.faults.append(f"{copier.client}, doubled {twice}: in partition {', in '.join(each)}")
    if by_key:
        judged.faults.append(f"{copier.client}: keys nobody wrote: {sorted(by_key)}")
    return judged


def _committed(bootstrap: str, topic: str) -> list[tuple[bytes, bytes, int, int]]:
    """Keys, values, partitions and offsets of a topic as a read_committed reader finds them, up to the end of each."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "chaos-unused",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    consumer.assign([TopicPartition(topic, index, 0) for index in range(PARTITIONS)])
    found, ended = [], 0
    until = time.monotonic() + PEACE_SECONDS
    while ended < PARTITIONS:
        assert time.monotonic() < until, f"{topic} can't be read to its end"
        message = consumer.poll(0.5)
        if message is None:
            continue
        if message.error() is not None:
            ended += 1
            continue
        key, value, partition, offset = message.key(), message.value(), message.partition(), message.offset()
        assert key is not None
        assert value is not None
        assert partition is not None
        assert offset is not None
        found.append((key, value, partition, offset))
    consumer.close()
    return found

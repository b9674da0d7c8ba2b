"""Kafka's Java libraries of other versions than the tools': older clients, a newer one, and Kafka Streams with
exactly_once_v2, killed while it counts.
"""

from __future__ import annotations

import random
import subprocess
import tempfile
import time
from collections import Counter
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition

from tests.clients.programs import Check, CheckFailed, expect, run
from tests.clients.topics import Topics
from tests.peers.kafka import COPY_JARS
from tests.peers.process import CACHE

SOURCES = Path(__file__).parents[1] / "java"
BUILT = CACHE / "clients" / "java"
OLDEST = "2.1.1"
WORDS = 50
KILLS = 2


def older_client(version: str) -> Check:
    """One program, compiled against the oldest version that knows all it uses, on a version of the library."""

    def check(bootstrap: str) -> None:
        classes = compiled("OlderJavaClient.java", _jars("kafka-clients", OLDEST))
        program = [*java(classes, _jars("kafka-clients", version)), "OlderJavaClient", bootstrap, str(time.time_ns())]
        expect(run(program), "produced", "consumed", "administered", "transacted", "done")

    return check


def newer_client(version: str) -> Check:
    """The program of `make clients-java`, which has both protocols of groups."""

    def check(bootstrap: str) -> None:
        jars = _jars("kafka-clients", version)
        printed = run([*java(compiled("JavaClient.java", jars), jars), "JavaClient", bootstrap, str(time.time_ns())])
        said = ("produced", "consumed classic", "consumed consumer", "administered", "committed", "aborted", "done")
        expect(printed, *said)

    return check


def streams(version: str) -> Check:
    """Each word is counted once, though the program that counts is killed."""

    def check(bootstrap: str) -> None:
        jars = _jars("kafka-streams", version)
        topics = Topics(bootstrap, f"streams-{time.time_ns()}")
        source, target = topics.create(partitions=3), topics.create(partitions=3)
        with tempfile.TemporaryDirectory() as state:
            program = [*java(compiled("StreamsCounts.java", jars), jars), "StreamsCounts"]
            _count(bootstrap, [*program, bootstrap, f"app-{source}", source, target, state], source, target)

    return check


def _count(bootstrap: str, program: list[str], source: str, target: str) -> None:
    chance = random.Random(1)
    wanted: Counter[str] = Counter()
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5})
    with tempfile.TemporaryFile() as log:
        for turn in range(KILLS + 1):
            counting = subprocess.Popen(program, stdout=log, stderr=log)
            try:
                until = time.monotonic() + 15
                while time.monotonic() < until:
                    for _ in range(20):
                        word = f"word-{chance.randrange(WORDS)}"
                        wanted[word] += 1
                        producer.produce(source, word, partition=chance.randrange(3))
                    producer.flush(20)
                    time.sleep(0.02)
                if turn == KILLS:
                    found = _counted(bootstrap, target, wanted)
            finally:
                counting.kill()
                counting.wait()
    for word, counts in found.items():
        if counts != sorted(set(counts)) or counts[-1] != wanted[word]:
            raise CheckFailed(f"{word} came {wanted[word]} times and was counted {counts[-5:]}")


def _counted(bootstrap: str, target: str, wanted: Counter[str]) -> dict[str, list[int]]:
    """All counts of each word, read until the last ones are there."""
    settings = {"bootstrap.servers": bootstrap, "group.id": "streams-unused", "enable.auto.commit": False}
    consumer = Consumer({**settings, "isolation.level": "read_committed"})
    consumer.assign([TopicPartition(target, index, 0) for index in range(3)])
    found: dict[str, list[int]] = {}
    until = time.monotonic() + 90
    while {word: counts[-1] for word, counts in found.items()} != wanted:
        if time.monotonic() > until:
            raise CheckFailed(f"{sum(counts[-1] for counts in found.values())} of {wanted.total()} words were counted")
        message = consumer.poll(0.5)
        if message is not None and message.error() is None:
            key, value = message.key(), message.value()
            assert key is not None
            assert value is not None
            found.setdefault(key.decode(), []).append(int(value))
    consumer.close()
    return found


def _jars(library: str, version: str) -> Path:
    return fetched(f"{library}-{version}", "library.xml", f"-Dlibrary={library}", f"-Dlibrary.version={version}")


def fetched(name: str, pom: str, *chosen: str) -> Path:
    """The folder of this name with the jars that a file of tests/clients/java asks for."""
    folder = BUILT / name
    if not folder.is_dir():
        maven = ["mvn", "-q", "-B", "-f", str(SOURCES / pom), COPY_JARS, f"-DoutputDirectory={folder}.partial"]
        run([*maven, *chosen], patience_seconds=300)
        Path(f"{folder}.partial").rename(folder)
    return folder


def compiled(source: str, jars: Path) -> Path:
    classes = BUILT / "classes"
    run(["javac", "-nowarn", "-cp", f"{jars}/*", "-d", str(classes), str(SOURCES / source)])
    return classes


def java(classes: Path, jars: Path, *, heap: str = "256m") -> list[str]:
    quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"
    return ["java", f"-Xmx{heap}", "-XX:TieredStopAtLevel=1", quiet, "-cp", f"{classes}:{jars}/*"]

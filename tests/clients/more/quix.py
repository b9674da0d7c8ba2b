"""quixstreams with exactly-once and state, killed half way, in an environment of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition

from tests.clients.programs import CheckFailed, run
from tests.clients.topics import Topics
from tests.peers.process import CACHE

LIBRARY = "quixstreams 3.28.1"
PROGRAM = Path(__file__).with_name("quix_counts.py")
MESSAGES = 900
KEYS = 3
KILL_AFTER = 200  # between two commits of the program
PATIENCE_SECONDS = 90.0


def counts(bootstrap: str) -> None:
    """Each message comes out once, numbered within its key without a gap, though the program is killed."""
    topics = Topics(bootstrap, f"quix-{time.time_ns()}")
    source, target = topics.create(partitions=KEYS), topics.create(partitions=KEYS)
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(MESSAGES):
        partition = number % KEYS
        producer.produce(source, json.dumps({"number": number}), key=f"key-{partition}", partition=partition)
    producer.flush(20)
    python = _interpreter()
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile("w+") as log:
        for isolation, enough in (("read_uncommitted", KILL_AFTER), ("read_committed", MESSAGES)):
            command = [str(python), str(PROGRAM), bootstrap, f"of-{source}", source, target, folder]
            counting = subprocess.Popen(command, stdout=log, stderr=log)
            try:
                found = _read(bootstrap, target, isolation, enough)
            except CheckFailed as late:
                log.seek(0)
                raise CheckFailed(f"{late}: {log.read()[-1500:]}") from None
            finally:
                counting.kill()
                counting.wait()
    _read(bootstrap, target, "read_uncommitted", MESSAGES + 1)  # or else the kill aborted nothing
    # A key's messages keep their order, so the number says which count belongs to it.
    wanted = [{"number": number, "count": number // KEYS + 1} for number in range(MESSAGES)]
    if sorted(found, key=lambda one: one["number"]) != wanted:
        raise CheckFailed(f"{len(found)} messages came out, not as they should: {found[-5:]}")


def _read(bootstrap: str, topic: str, isolation: str, enough: int) -> list[dict[str, int]]:
    """Read from the start until so many messages are there."""
    settings = {"bootstrap.servers": bootstrap, "group.id": "quix-unused", "enable.auto.commit": False}
    reader = Consumer({**settings, "isolation.level": isolation})
    reader.assign([TopicPartition(topic, partition, 0) for partition in range(KEYS)])
    found: list[dict[str, int]] = []
    until = time.monotonic() + PATIENCE_SECONDS
    while len(found) < enough:
        if time.monotonic() > until:
            raise CheckFailed(f"{isolation}, {len(found)} of {enough} messages came out")
        for message in reader.consume(500, timeout=0.1):
            value = message.value()
            if message.error() is None and value is not None:
                found.append(json.loads(value))
    reader.close()
    return found


def _interpreter() -> Path:
    """The Python that has the library."""
    environment = CACHE / "clients" / LIBRARY.replace(" ", "-")
    python, installed = environment / "bin" / "python", environment / "installed"
    if not installed.exists():
        # Without a pip of its own, which Debian's Python cannot give it: ours fills it.
        run([sys.executable, "-m", "venv", "--without-pip", str(environment)])
        pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
        run([*pip, LIBRARY.replace(" ", "==")], patience_seconds=300)
        installed.touch()
    return python

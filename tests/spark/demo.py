"""`make spark-demo`: the two pipelines of spark_sink/demo, with all they need, killed half way, and checked.

python -m tests.spark.demo [transfers|sessions]
"""

from __future__ import annotations

import argparse
import collections
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from tests.peers.ours import Oncelog
from tests.peers.process import ROOT
from tests.spark.cluster import family, kill_all
from tests.spark.environment import (
    NEWEST_PYSPARK,
    environment_of,
    installed,
    interpreter,
    tidy_up_when_told_to_end,
)

DEMO = ROOT / "spark_sink" / "demo"
PARTITIONS = 4
PATIENCE_SECONDS = 600.0
ACCOUNTS = ("anna", "berta", "carl", "dora", "emil", "frida")
TRANSFERS = 20_000
USERS = 50
SESSIONS_OF_A_USER = 6
BEGAN_MS = int(time.time() * 1000) - 3 * 3_600_000  # of this day: old records are deleted in time


class Record(NamedTuple):
    key: str
    value: str
    timestamp_ms: int


class Pipeline:
    """One of the scripts as a process; started again, it goes on from its checkpoint."""

    def __init__(self, python: Path, name: str, bootstrap: str, folder: Path) -> None:
        self._command = [str(python), "-P", str(DEMO / f"{name}.py"), bootstrap, str(folder / "checkpoint")]
        self._environment = environment_of(python)
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with (self._folder / "pipeline.log").open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdout=log, stderr=log, env=self._environment, cwd=self._folder
            )

    def kill(self) -> None:
        """SIGKILL for Spark and all its helpers."""
        if self._process is not None:
            kill_all(family(self._process.pid))
            self._process.wait()

    def wait_for(self, what: Callable[[], bool], told: str) -> None:
        assert self._process is not None
        until = time.monotonic() + PATIENCE_SECONDS
        while not what():
            if self._process.poll() is not None or time.monotonic() > until:
                log = (self._folder / "pipeline.log").read_text(errors="replace")
                raise AssertionError(f"{told}: waited in vain. The end of what Spark printed:\n{log[-3000:]}")
            time.sleep(0.5)


def transfers() -> tuple[list[Record], Callable[[list[Record]], str]]:
    """Transfers between six accounts, one in twenty sent twice; and how to check the entries."""
    chance = random.Random(5)
    balance: collections.Counter[str] = collections.Counter()
    records = []
    for number in range(TRANSFERS):
        payer, payee = chance.sample(ACCOUNTS, 2)
        amount = chance.randrange(1, 100)
        balance[payer] -= amount
        balance[payee] += amount
        text = json.dumps({"id": number, "payer": payer, "payee": payee, "amount": amount})
        records += [Record(str(number), text, BEGAN_MS + number)] * (2 if chance.random() < 0.05 else 1)

    def check(entries: list[Record]) -> str:
        found: collections.Counter[str] = collections.Counter()
        for entry in entries:
            found[entry.key] += int(entry.value)
        assert sum(found.values()) == 0, f"the entries add up to {sum(found.values())}"
        assert found == balance, f"balances {dict(found)} instead of {dict(balance)}"
        assert len(entries) == 2 * TRANSFERS, f"{len(entries)} entries of {TRANSFERS} transfers"
        return (
            f"{len(entries):,} entries of {TRANSFERS:,} transfers add up to 0; balances {dict(sorted(found.items()))}"
        )

    return records, check


def sessions() -> tuple[list[Record], Callable[[list[Record]], str]]:
    """Users who click and rest, click and rest; and how to check the sessions. The last click ends all sessions."""
    chance = random.Random(6)
    clicks = []
    expected: collections.Counter[tuple[str, int]] = collections.Counter()
    for user in range(USERS):
        now_ms = BEGAN_MS + chance.randrange(10_000)
        for _ in range(SESSIONS_OF_A_USER):
            count = chance.randrange(1, 20)
            expected[f"user {user}", count] += 1
            for _ in range(count):
                clicks.append(Record(f"user {user}", "/pears", now_ms))
                now_ms += chance.randrange(1_000, 25_000)
            now_ms += chance.randrange(60_000, 120_000)
    clicks.sort(key=lambda click: click.timestamp_ms)
    clicks.append(Record("nobody", "/", clicks[-1].timestamp_ms + 3_600_000))

    def check(found: list[Record]) -> str:
        got = collections.Counter((record.key, json.loads(record.value)["clicks"]) for record in found)
        assert got == expected, f"missing {expected - got}, too many {got - expected}"
        return f"{len(found):,} sessions of {len(clicks) - 1:,} clicks, each once"

    return clicks, check


class Demo(NamedTuple):
    name: str
    source: str
    target: str
    make: Callable[[], tuple[list[Record], Callable[[list[Record]], str]]]
    outputs: int


DEMOS = {
    "transfers": Demo("transfers", "transfers", "entries", transfers, 2 * TRANSFERS),
    "sessions": Demo("sessions", "clicks", "sessions", sessions, USERS * SESSIONS_OF_A_USER),
}


def show(demo: Demo, python: Path, folder: Path) -> None:
    """In three parts; with each of the first two it is killed in the middle of its work."""
    broker = Oncelog(folder / "broker")
    broker.start()
    pipeline = Pipeline(python, demo.name, broker.bootstrap, folder)
    try:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        made = admin.create_topics([NewTopic(topic, PARTITIONS, 1) for topic in (demo.source, demo.target)])
        for future in made.values():
            future.result(20)
        records, check = demo.make()
        for part in range(3):
            feed(broker.bootstrap, demo.source, records[part * len(records) // 3 : (part + 1) * len(records) // 3])
            print(f"{demo.name}: Spark starts", flush=True)
            pipeline.start()
            if part < 2:
                batch = kill_in_a_new_batch(pipeline, folder)
                print(f"{demo.name}: killed while batch {batch} was under way", flush=True)
        pipeline.wait_for(lambda: len(read(broker.bootstrap, demo.target)) >= demo.outputs, "all of the output")
        print(f"{demo.name}: {check(read(broker.bootstrap, demo.target))}", flush=True)
    finally:
        pipeline.kill()
        broker.stop()


def kill_in_a_new_batch(pipeline: Pipeline, folder: Path) -> int:
    """Spark writes the offsets of a batch down before it runs it: the number of the batch it was killed in."""

    def begun() -> int:
        return max((int(path.name) for path in folder.glob("checkpoint/offsets/[0-9]*")), default=-1)

    before = begun()
    pipeline.wait_for(lambda: begun() > before, "a new batch")
    pipeline.kill()
    return begun()


def feed(bootstrap: str, topic: str, records: Iterable[Record]) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5})
    for record in records:
        producer.produce(topic, record.value, record.key, timestamp=record.timestamp_ms)
    assert not producer.flush(PATIENCE_SECONDS), "the input could not be written"


def read(bootstrap: str, topic: str) -> list[Record]:
    """All that a reader of committed records finds now."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "demo",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    found, ended = [], 0
    while ended < PARTITIONS:
        for message in consumer.consume(10_000, 0.2):
            error = message.error()
            if error is None:
                key, value = message.key() or b"", message.value() or b""
                found.append(Record(key.decode(), value.decode(), message.timestamp()[1]))
            elif error.code() == KafkaError._PARTITION_EOF:
                ended += 1
    consumer.close()
    return found


def main() -> int:
    tidy_up_when_told_to_end()
    parser = argparse.ArgumentParser(prog="python -m tests.spark.demo", description=__doc__.partition("\n")[0])
    parser.add_argument("only", nargs="?", choices=list(DEMOS))
    chosen = parser.parse_args()
    python = installed(lambda: interpreter(NEWEST_PYSPARK))
    for demo in [DEMOS[chosen.only]] if chosen.only else DEMOS.values():
        print(f"{demo.name}: see {(DEMO / demo.name).relative_to(ROOT)}.py", flush=True)
        with tempfile.TemporaryDirectory(prefix="oncelog-demo-") as folder:
            show(demo, python, Path(folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""What the chaos happens to: a broker behind a proxy, a Spark cluster, a driver that is started again, a feeder.

The faults in faults.py act on a `World`. What blocks runs in threads; the proxy and the faults share one event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewPartitions  # type: ignore[attr-defined]

from service.wire.base import Struct
from tests.chaos.run import Feeder
from tests.faults.proxy import Caught, Fault, Proxy
from tests.peers.process import BrokerProcess
from tests.spark.cluster import Cluster, family, kill_all
from tests.spark.environment import environment_of

JOB = Path(__file__).with_name("job.py")
FEED_PAUSE_SECONDS = 0.02
ROWS_A_BATCH = 3000
BATCHES_AHEAD = 5
FEED_AT_ONCE = 5
JUNK_EVERY_SECONDS = 2.0
START_PATIENCE_SECONDS = 120.0
CATCH_SECONDS = 20.0
WEIGH_EVERY_SECONDS = 1.0


class Driver:
    """The pipeline's driver: a Python process and its JVM, started again with the same checkpoint."""

    def __init__(self, python: Path, plan: dict[str, Any], folder: Path) -> None:
        self.starts = 0
        self.checkpoint = Path(plan["checkpoint"])
        self._command = [str(python), "-P", str(JOB), json.dumps(plan)]
        self._environment = environment_of(python)
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._left: list[psutil.Process] = []

    @property
    def log_path(self) -> Path:
        return self._folder / f"driver-{self.starts}.log"

    def start(self) -> None:
        self.starts += 1
        with self.log_path.open("wb") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment,
                cwd=self._folder,
            )

    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """The JVM first: it is Spark's driver. Its Python helpers are left to find out by themselves, as in life."""
        process, self._process = self._process, None
        if process is None:
            return
        members = family(process.pid)
        jvms = [member for member in members[1:] if _name(member) == "java"]
        kill_all([*jvms, *members[:1]])
        process.wait()
        self._left += members

    def wait(self, patience_seconds: float) -> int | None:
        assert self._process is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(patience_seconds)
        return None

    def bury(self) -> None:
        """Nothing that this driver ever started stays behind."""
        self.kill()
        kill_all(self._left)

    def batches(self) -> int:
        """How many batches Spark has written down as done."""
        return len(list(self.checkpoint.glob("commits/[0-9]*")))

    def why_it_ended(self) -> str:
        """The last error in what it printed."""
        lines = self.log_path.read_text(errors="replace").splitlines()
        told = [line for line in lines if "Exception" in line or "Error" in line]
        return told[-1].strip()[:300] if told else "no reason given"


class Growing:
    """A topic that is given partitions, one at a time."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        self.topic = topic
        self.counts = [partitions]
        self._admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})

    def grow(self) -> None:
        """Raises KafkaException if the broker can't just now."""
        wanted = self.counts[-1] + 1
        self._admin.create_partitions([NewPartitions(self.topic, wanted)])[self.topic].result(20)
        self.counts.append(wanted)


class World:
    def __init__(
        self,
        broker: BrokerProcess,
        proxy: Proxy,
        cluster: Cluster,
        driver: Driver,
        growing: list[Growing],
        chance: random.Random,
    ) -> None:
        self.broker = broker
        self.proxy = proxy
        self.cluster = cluster
        self.driver = driver
        self.growing = growing
        self.chance = chance
        self.largest_worker_bytes = 0

    async def catch(
        self,
        request: type[Struct],
        fault: Fault,
        *,
        where: Callable[[Any], bool] = lambda message: True,
    ) -> Caught | None:
        """The next request of this kind on its way from Spark; None when none comes."""
        rule = self.proxy.rule(request, fault, where=where)
        try:
            return await rule.caught()
        except TimeoutError:
            rule.left = 0
            return None

    async def weigh(self) -> None:
        """Watch how large Python workers become, until cancelled."""
        while True:
            await asyncio.sleep(WEIGH_EVERY_SECONDS)
            for worker in await asyncio.to_thread(self.cluster.python_workers):
                with contextlib.suppress(psutil.NoSuchProcess):
                    self.largest_worker_bytes = max(self.largest_worker_bytes, worker.memory_info().rss)

    async def restart_broker(self) -> None:
        await asyncio.to_thread(self.broker.kill)
        await asyncio.to_thread(self.broker.start)

    async def working(self) -> bool:
        """Start the driver if it is gone; True when it has finished a batch since the call, False when it ended."""
        if not self.driver.running():
            self.driver.start()
        done = self.driver.batches()
        until = time.monotonic() + START_PATIENCE_SECONDS
        while self.driver.running() and time.monotonic() < until:
            if self.driver.batches() > done:
                return True
            await asyncio.sleep(0.05)
        return False


async def feed(feeder: Feeder, junk: Junk, driver: Driver, over: asyncio.Event) -> None:
    """Numbered rows, some batches ahead of Spark, and now and then rows of transactions that are aborted."""
    next_junk = time.monotonic()
    while not over.is_set():
        if feeder.count < (driver.batches() + BATCHES_AHEAD) * ROWS_A_BATCH:
            feeder.feed(FEED_AT_ONCE)
        if time.monotonic() > next_junk:
            await asyncio.to_thread(junk.write)
            next_junk = time.monotonic() + JUNK_EVERY_SECONDS
        await asyncio.sleep(FEED_PAUSE_SECONDS)


class Junk:
    """Rows that nobody may ever see: their transactions are never committed."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        self._settings: Mapping[str, Any] = {
            "bootstrap.servers": bootstrap,
            "transactional.id": "junk",
            "transaction.timeout.ms": 10_000,
            "log_level": 0,
        }
        self._topic = topic
        self._partitions = partitions
        self._producer: Producer | None = None

    def write(self) -> None:
        """The broker may be dead: then a later producer fences this one, which aborts what it left."""
        try:
            if self._producer is None:
                self._producer = Producer(dict(self._settings))
                self._producer.init_transactions(5)
            self._producer.begin_transaction()
            for partition in range(self._partitions):
                self._producer.produce(self._topic, b"junk", b"key-junk", partition=partition)
            self._producer.flush(2)
            self._producer.abort_transaction(5)
        except KafkaException:
            self._producer = None


def _name(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.name()
    return ""

"""One run of the chaos with one sink: strike for some minutes, then leave everything in peace, then count.

`python -m tests.spark.chaos` calls `run`. What the feeder wrote must be in the output, each row once, and nothing
else; and no transaction may hold up readers when all is over.
"""

from __future__ import annotations

import asyncio
import collections
import functools
import random
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from spark_sink.partitioner import SIGN, murmur2
from tests.chaos.run import PARTITIONS, Feeder
from tests.clients.topics import Topics
from tests.faults.proxy import Proxy
from tests.peers.ours import Oncelog
from tests.peers.process import QUICK_SETTINGS
from tests.spark.chaos.faults import FOR_DECISIONS, FOR_EVERY_SINK, Strike
from tests.spark.chaos.world import ROWS_A_BATCH, Driver, Growing, Junk, World, feed
from tests.spark.cluster import Cluster

PEACE_SECONDS = 300.0
"""How long everything may take to come right when nobody strikes any more."""
HOPELESS_STARTS = 4
SPARK = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.executor.memory": "1g",
    # They live for seconds: what starts sooner is struck more often.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.task.maxFailures": "8",
    "spark.speculation": "true",
    "spark.speculation.interval": "200ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.minTaskRuntime": "1s",
    "spark.sql.shuffle.partitions": "3",
    # Several Arrow batches a task, so that it can fail half way.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "100",
}


@dataclass(frozen=True)
class Contender:
    """Whose source and sink, and what Spark needs to find them."""

    name: str
    format: str
    decides: bool
    python: Path
    conf: dict[str, str] = field(default_factory=dict)


@dataclass
class Report:
    inputs: int = 0
    strikes: collections.Counter[str] = field(default_factory=collections.Counter)
    driver_starts: int = 0
    batches: int = 0
    missing: list[int] = field(default_factory=list)
    doubled: int = 0
    misplaced: int = 0
    out_of_order: int = 0
    largest_worker_bytes: int = 0
    strangers: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    @property
    def exact(self) -> bool:
        wrong = self.missing or self.doubled or self.misplaced or self.out_of_order or self.strangers or self.faults
        return not wrong

    def __str__(self) -> str:
        lines = [
            f"{self.inputs:,} rows in, {self.batches} batches, {sum(self.strikes.values())} strikes, "
            f"{self.driver_starts} drivers",
            f"missing {len(self.missing)}{f' ({self.missing[:10]} …)' if self.missing else ''}, doubled {self.doubled}",
            f"misplaced {self.misplaced}, out of order {self.out_of_order}",
            f"the largest Python worker had {self.largest_worker_bytes >> 20} MB",
            *(f"rows nobody committed: {self.strangers[:5]}" for _ in self.strangers[:1]),
            *self.faults,
        ]
        return "\n".join(lines)


def run(
    folder: Path, who: Contender, *, seconds: float, seed: int, tasks: int | None, say: Callable[[str], None]
) -> Report:
    folder.mkdir(parents=True)
    broker = Oncelog(folder / "broker", settings={**QUICK_SETTINGS, "log.durability": "auto"})
    cluster = Cluster(folder / "cluster", who.python)
    report = Report()
    broker.start()
    try:
        topics = Topics(broker.bootstrap, "chaos")
        source, target = topics.create(PARTITIONS), topics.create(PARTITIONS)
        feeder, junk = Feeder(broker.bootstrap, source), Junk(broker.bootstrap, source, PARTITIONS)
        growing = {topic: Growing(broker.bootstrap, topic, PARTITIONS) for topic in (source, target)}

        async def everything() -> None:
            async with Proxy("127.0.0.1", broker.port) as proxy:
                plan = _plan(who, cluster.master, proxy.bootstrap, source, target, folder, seed, tasks)
                driver = Driver(who.python, plan, folder)
                world = World(broker, proxy, cluster, driver, [*growing.values()], random.Random(seed))
                weighing = asyncio.create_task(world.weigh())
                try:
                    await _strike(world, who, feeder, junk, seconds, report, say)
                    say("nobody strikes any more")
                    await _let_finish(world, feeder, target, report)
                finally:
                    weighing.cancel()
                    driver.bury()
                report.largest_worker_bytes = world.largest_worker_bytes
                report.driver_starts, report.batches = driver.starts, driver.batches()

        with cluster.running():
            asyncio.run(everything())
        _judge(broker.bootstrap, growing[target], feeder.count, report, in_order=who.decides and tasks is None)
    finally:
        if broker.running():
            broker.stop()
    return report


def _plan(
    who: Contender,
    master: str,
    bootstrap: str,
    source: str,
    target: str,
    folder: Path,
    seed: int,
    tasks: int | None,
) -> dict[str, Any]:
    there = {"kafka.bootstrap.servers": bootstrap}
    start = {"subscribe": source, "startingOffsets": "earliest", "maxOffsetsPerTrigger": str(ROWS_A_BATCH)}
    if tasks is not None:
        start["minPartitions"] = str(tasks)
    committed = {"kafka.isolation.level": "read_committed"}
    return {
        "master": master,
        "format": who.format,
        "conf": {**SPARK, **who.conf},
        "source": {**there, **start, **committed},
        "sink": {**there, "topic": target},
        "checkpoint": str(folder / "checkpoint"),
        "stop": str(folder / "stop"),
        "seed": seed,
    }


async def _strike(
    world: World,
    who: Contender,
    feeder: Feeder,
    junk: Junk,
    seconds: float,
    report: Report,
    say: Callable[[str], None],
) -> None:
    over = asyncio.Event()
    feeding = asyncio.create_task(feed(feeder, junk, world.driver, over))
    until = time.monotonic() + seconds
    waiting: list[Strike] = []
    try:
        while time.monotonic() < until:
            if not await world.working():
                if not world.driver.running():
                    say(f"the driver ended by itself: {world.driver.why_it_ended()}")
                if world.driver.starts >= HOPELESS_STARTS and not world.driver.batches():
                    report.faults.append(f"no batch in {HOPELESS_STARTS} starts")
                    return
                continue
            await asyncio.sleep(world.chance.uniform(0, 2))
            if not waiting:  # every kind once before any comes again, in an order that the seed chooses
                waiting = [*FOR_EVERY_SINK, *(FOR_DECISIONS if who.decides else ())]
                world.chance.shuffle(waiting)
            strike = waiting.pop()
            told = await strike(world)
            say(told or f"{strike.__name__}: its moment did not come")
            if told:
                report.strikes[strike.__name__] += 1
    finally:
        over.set()
        await feeding
    await asyncio.to_thread(feeder.finish)
    report.inputs = feeder.count
    report.faults += feeder.failures


async def _let_finish(world: World, feeder: Feeder, target: str, report: Report) -> None:
    """Until every row is there at least once; then the query is stopped as a user would."""
    until = time.monotonic() + PEACE_SECONDS
    while time.monotonic() < until:
        await world.working()
        found = await asyncio.to_thread(committed_values, world.broker.bootstrap, target)
        if len(found) >= feeder.count:
            break
    else:
        report.faults.append(f"not all rows had arrived after {PEACE_SECONDS:.0f} s of peace")
    stop = world.driver.checkpoint.with_name("stop")
    stop.touch()
    if world.driver.running() and await asyncio.to_thread(world.driver.wait, 60) is None:
        report.faults.append("the query could not be stopped")


def _judge(bootstrap: str, target: Growing, inputs: int, report: Report, *, in_order: bool) -> None:
    rows = committed_rows(bootstrap, target.topic)
    found = collections.Counter(value for _, _, value in rows)
    wanted = {str(number) for number in range(inputs)}
    report.missing = sorted(int(value) for value in wanted - found.keys())
    report.doubled = sum(count - 1 for value, count in found.items() if value in wanted)
    report.strangers = sorted(found.keys() - wanted)
    report.misplaced = sum(partition not in _places(key, target.counts) for partition, key, _ in rows)
    if in_order:  # a partition that several tasks read comes in the order in which they write
        report.out_of_order = _out_of_order(rows)
    held_up = _held_up(bootstrap, target.topic)
    if held_up:
        report.faults.append(f"readers are held up in {held_up} partitions")


@functools.cache
def _hash(key: bytes) -> int:
    return int(murmur2(pa.array([key], pa.binary()))[0] & SIGN)


def _places(key: bytes, counts: Iterable[int]) -> set[int]:
    """Where a key may be of a topic that had so many partitions, one number after the other."""
    return {_hash(key) % count for count in counts}


def _out_of_order(rows: list[tuple[int, bytes, str]]) -> int:
    """How many rows stand behind a later one of their key."""
    latest: dict[tuple[int, bytes], int] = {}
    wrong = 0
    for partition, key, value in rows:
        if value.isdecimal():
            wrong += int(value) < latest.get((partition, key), -1)
            latest[partition, key] = int(value)
    return wrong


def committed_values(bootstrap: str, topic: str) -> collections.Counter[str]:
    """How often each value is in a topic, as a read_committed reader finds it now."""
    return collections.Counter(value for _, _, value in committed_rows(bootstrap, topic))


def committed_rows(bootstrap: str, topic: str) -> list[tuple[int, bytes, str]]:
    """Partition, key and value of each row, those of a partition in order, as a read_committed reader finds them."""
    consumer = _reader(bootstrap)
    every = _partitions(consumer, topic)
    consumer.assign(every)
    found: list[tuple[int, bytes, str]] = []
    ended, until = 0, time.monotonic() + PEACE_SECONDS
    while ended < len(every):
        if time.monotonic() > until:
            raise TimeoutError(f"{topic} can't be read to its end")
        for message in consumer.consume(10_000, 0.2):
            error = message.error()
            if error is None:
                key, value = message.key() or b"", message.value() or b"(null)"
                found.append((message.partition() or 0, bytes(key), bytes(value).decode()))
            elif error.code() == KafkaError._PARTITION_EOF:
                ended += 1
    consumer.close()
    return found


def _held_up(bootstrap: str, topic: str) -> int:
    """In how many partitions committed readers can't get to the end, once there was time to decide everything."""
    until = time.monotonic() + PEACE_SECONDS
    committed, all_of_it = _reader(bootstrap), _reader(bootstrap, "read_uncommitted")
    every = _partitions(committed, topic)
    try:
        while True:
            try:
                stable = [committed.get_watermark_offsets(one, 10)[1] for one in every]
                ends = [all_of_it.get_watermark_offsets(one, 10)[1] for one in every]
            except KafkaException:
                stable, ends = [0], [1]
            if stable == ends or time.monotonic() > until:
                return sum(a != b for a, b in zip(stable, ends, strict=True))
            time.sleep(0.5)
    finally:
        committed.close()
        all_of_it.close()


def _partitions(consumer: Consumer, topic: str) -> list[TopicPartition]:
    return [TopicPartition(topic, number, 0) for number in consumer.list_topics(topic, 20).topics[topic].partitions]


def _reader(bootstrap: str, isolation: str = "read_committed") -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "chaos-unused",
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )

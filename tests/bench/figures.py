"""What is measured. Each function takes a contender, starts its broker, and returns named numbers.

The names of rows carry the unit at their end; `MORE_IS_BETTER` says which units want to be high.
"""

from __future__ import annotations

import contextlib
import re
import resource
import socket
import statistics
import struct
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
)

from log.batch import build_batch, restamp
from log.swap import PLAN
from service.wire.codec import encode_request, write_request_header
from service.wire.messages import ApiVersionsRequest, PartitionProduceData, ProduceRequest, TopicProduceData
from service.wire.messages.versions import ApiKey
from tests.bench import clusters, groups, many_small, native, prepared, watching, web
from tests.bench import many_copies as copies
from tests.bench.contenders import Contender, Ours
from tests.peers.process import BrokerProcess, free_port

PARTITIONS = 4
SMALL_BATCHES = (200, 1_000)
MORE_IS_BETTER = ("msg/s", "MB/s", "txn/s", "requests/s")
MANY_PARTITIONS = 15_398
MANY_COPIES = 15_400
PARTITIONS_A_TOPIC = 10
IDLE_CONNECTIONS = 5_000
PATIENCE_SECONDS = 300.0

Rows = dict[str, float]


@dataclass(frozen=True)
class Effort:
    """How much of everything. A quick run tells whether something broke, a full one how fast it is."""

    runs: int
    scale: float
    crashed_gb: float
    soak_minutes: float
    partitions: int

    def messages(self, full: int) -> int:
        return max(int(full * self.scale), 1000)

    def seconds(self, full: float) -> float:
        return max(full * self.scale, 2.0)


FULL = Effort(runs=3, scale=1.0, crashed_gb=10.0, soak_minutes=10.0, partitions=MANY_PARTITIONS)
QUICK = Effort(runs=1, scale=0.1, crashed_gb=1.0, soak_minutes=0.5, partitions=1_000)

Figure = Callable[[Contender, Effort], Rows]


# -- throughput through librdkafka


def throughput(contender: Contender, effort: Effort) -> Rows:
    """100-byte and 1 KB messages in and out, acks=1, linger 5 ms, through librdkafka."""
    with running(contender) as broker:
        warm_up(broker)
        return in_and_out(broker, effort)


def in_and_out(broker: BrokerProcess, effort: Effort) -> Rows:
    rows: Rows = {}
    for size, full in ((100, 8_000_000), (1_000, 1_500_000)):
        count = effort.messages(full)
        rates: list[native.Outcome] = []
        reading: list[native.Outcome] = []
        cpu_in: list[float] = []
        cpu_out: list[float] = []
        for run in range(effort.runs):
            topic = new_topic(broker, f"load-{size}-{run}")
            with measured_cpu(broker, cpu_in, gigabytes=count * size / 1e9):
                written = native.run(
                    "produce", broker.bootstrap, topic, count, size, settings={"acks": "1", "linger.ms": "5"}
                )
            with measured_cpu(broker, cpu_out, gigabytes=count * size / 1e9):
                read = native.run("consume", broker.bootstrap, topic, count, PARTITIONS)
            rates.append(written)
            reading.append(read)
            delete_topic(broker, topic)
        unit, key = ("msg/s", "per_second") if size == 100 else ("MB/s", "mb_per_second")
        rows[f"produce {size} B, {unit}"] = median(rates, key)
        rows[f"consume {size} B, {unit}"] = median(reading, key)
        rows[f"produce {size} B, user CPU s/GB"] = statistics.median(cpu_in)
        rows[f"consume {size} B, user CPU s/GB"] = statistics.median(cpu_out)
    return rows


def idempotence(contender: Contender, effort: Effort) -> Rows:
    """What idempotence and transactions cost: the same load without, with producer ids, in transactions of 100 ms."""
    count = effort.messages(1_500_000)
    kinds = ("plain", "idempotent", "transactions")
    found: dict[str, list[native.Outcome]] = {kind: [] for kind in kinds}
    with running(contender) as broker:
        warm_up(broker)
        for run in range(effort.runs):
            for kind in kinds:
                topic = new_topic(broker, f"{kind}-{run}")
                what, options = ("transact", ["-e", "100"]) if kind == "transactions" else ("produce", [])
                idempotent = "false" if kind == "plain" else "true"
                settings = {"acks": "all", "linger.ms": "5", "enable.idempotence": idempotent}
                found[kind].append(
                    native.run(what, broker.bootstrap, topic, count, 1_000, options=options, settings=settings)
                )
                delete_topic(broker, topic)
    plain = median(found["plain"], "mb_per_second")
    rows = {f"acks=all, {kind}, MB/s": median(found[kind], "mb_per_second") for kind in kinds}
    rows["idempotence costs, %"] = 100 * (1 - rows["acks=all, idempotent, MB/s"] / plain)
    rows["transactions cost, %"] = 100 * (1 - rows["acks=all, transactions, MB/s"] / plain)
    return rows


def read_committed(contender: Contender, effort: Effort) -> Rows:
    """Reading a topic of which a tenth of the transactions was aborted, in both isolations. A client that reads
    committed messages gets fewer of them, so the cost is how much longer the same log takes.
    """
    count = effort.messages(3_000_000)
    found: dict[str, list[native.Outcome]] = {"read_uncommitted": [], "read_committed": []}
    with running(contender) as broker:
        topic = new_topic(broker, "aborted")
        settings = {"linger.ms": "5"}
        written = native.run(
            "transact", broker.bootstrap, topic, count, 100, options=["-e", "20", "-a", "10"], settings=settings
        )
        handed = {"read_uncommitted": count, "read_committed": int(written["committed_messages"])}
        for _ in range(2 * effort.runs):
            for isolation, outcomes in found.items():
                settings = {"isolation.level": isolation}
                outcomes.append(
                    native.run("consume", broker.bootstrap, topic, handed[isolation], PARTITIONS, settings=settings)
                )
    seconds = {isolation: median(found[isolation], "seconds") for isolation in found}
    rows = {f"a log with a tenth aborted, {isolation}, msg/s": count / seconds[isolation] for isolation in found}
    rows["read_committed costs, %"] = 100 * (seconds["read_committed"] / seconds["read_uncommitted"] - 1)
    return rows


# -- latency


def latency(contender: Contender, effort: Effort) -> Rows:
    """10,000 messages a second, acks=all, no linger: how long a message waits, with and without fsync."""
    rows: Rows = {}
    for fsync in (False, True):
        with running(contender, fsync=fsync) as broker:
            warm_up(broker)
            outcomes = []
            for run in range(effort.runs):
                topic = new_topic(broker, f"paced-{run}")
                seconds = effort.seconds(10)
                options = ["-r", "10000"]
                settings = {"acks": "all", "linger.ms": "0"}
                outcomes.append(
                    native.run("pace", broker.bootstrap, topic, seconds, 100, options=options, settings=settings)
                )
        mode = "fsync" if fsync else "os"
        rows[f"latency at 10 k/s, {mode}, p50 ms"] = median(outcomes, "wait_p50_ms")
        rows[f"latency at 10 k/s, {mode}, p99 ms"] = median(outcomes, "wait_p99_ms")
    return rows


def small_transactions(contender: Contender, effort: Effort) -> Rows:
    """One-message transactions: one producer after another's answer, and sixteen producers at once."""
    rows: Rows = {}
    for fsync in (False, True):
        mode = "fsync" if fsync else "os"
        with running(contender, fsync=fsync) as broker:
            topic = new_topic(broker, "small")
            seconds = max(effort.seconds(8), 5.0)
            many_small.run(broker.bootstrap, topic, 5.0, 4)  # warms it up
            quick = {"linger.ms": "0"}
            alone = [
                native.run("small", broker.bootstrap, topic, seconds, 100, settings=quick) for _ in range(effort.runs)
            ]
            many = [many_small.run(broker.bootstrap, topic, seconds, 16) for _ in range(effort.runs)]
        rows[f"EndTxn, {mode}, p50 ms"] = median(alone, "end_p50_ms")
        rows[f"EndTxn, {mode}, p99 ms"] = median(alone, "end_p99_ms")
        rows[f"begin to committed, {mode}, p50 ms"] = median(alone, "whole_p50_ms")
        rows[f"begin to committed, {mode}, p99 ms"] = median(alone, "whole_p99_ms")
        rows[f"small transactions, 16 producers, {mode}, txn/s"] = median(many, "per_second")
    return rows


# -- the broker's own cost


def broker_cost(contender: Contender, effort: Effort) -> Rows:
    """Prepared batches over plain sockets: the broker's user CPU for each GB, with full batches and with small ones."""
    rows: Rows = {}
    with running(contender) as broker:
        warm_up(broker)
        full = prepared.messages_in_a_full_batch(1_000)
        shapes = {
            "full batches": (full, 1_000, 6_000),
            "100": (100, 100, 20_000),
            "10": (10, 100, 40_000),
            "1": (1, 100, 60_000),
        }
        for name, (count, size, batches) in shapes.items():
            each = max(int(batches * effort.scale / PARTITIONS), 50)
            batch = prepared.a_batch(count, size)
            gigabytes = each * PARTITIONS * count * size / 1e9
            speed: list[float] = []
            reading: list[float] = []
            cpu_in: list[float] = []
            cpu_out: list[float] = []
            for run in range(effort.runs):
                topic = new_topic(broker, f"prepared-{count}-{run}")
                shape = {"partitions": PARTITIONS, "batches": each, "count": count, "size": size}
                with measured_cpu(broker, cpu_in, gigabytes=gigabytes):
                    speed.append(prepared.produce(broker.port, topic, batch=batch, **shape).mb_per_second)
                if count == full:
                    with measured_cpu(broker, cpu_out, gigabytes=gigabytes):
                        reading.append(prepared.fetch(broker.port, topic, batch=batch, **shape).mb_per_second)
                delete_topic(broker, topic)
            label = name if count == full else f"batches of {name}"
            rows[f"prepared in, {label}, MB/s"] = statistics.median(speed)
            rows[f"prepared in, {label}, user CPU s/GB"] = statistics.median(cpu_in)
            if reading:
                rows[f"prepared out, {label}, MB/s"] = statistics.median(reading)
                rows[f"prepared out, {label}, user CPU s/GB"] = statistics.median(cpu_out)
    return rows


def start(contender: Contender, effort: Effort) -> Rows:
    """From the start of the process to the first acknowledged write of a topic that exists, and memory when idle."""
    took, resident = [], []
    for _ in range(max(effort.runs, 3)):
        with running(contender) as broker:
            topic = new_topic(broker, "started")
            broker.stop()
            broker.launch()
            took.append(
                prepared.first_write(broker.port, topic, patience_seconds=PATIENCE_SECONDS) - broker.launched_at
            )
            time.sleep(2)
            resident.append(broker.resident_bytes() / 1e6)
    return {
        "start to first acknowledged write, s": statistics.median(took),
        "resident when idle, MB": statistics.median(resident),
    }


def many_partitions(contender: Contender, effort: Effort) -> Rows:
    """A broker with 15,398 partitions, each with a batch in it: clean stop, start, memory."""
    with running(contender) as broker:
        topics = make_many(broker, effort.partitions)
        fill_once(broker, topics)
        began = time.monotonic()
        broker.stop(patience_seconds=PATIENCE_SECONDS)
        stopped = time.monotonic() - began
        broker.launch()
        name = next(iter(topics))
        started = prepared.first_write(broker.port, name, patience_seconds=PATIENCE_SECONDS) - broker.launched_at
        time.sleep(2)
        count = effort.partitions
        return {
            f"{count} partitions, clean stop, s": stopped,
            f"{count} partitions, start to first write, s": started,
            f"{count} partitions, resident, MB": broker.resident_bytes() / 1e6,
        }


def recovery(contender: Contender, effort: Effort) -> Rows:
    """A log that was being written when the broker was killed: until it takes writes again."""
    with running(contender) as broker:
        topic = new_topic(broker, "crashed")
        count = prepared.messages_in_a_full_batch(1_000)
        batch = prepared.a_batch(count, 1_000)
        batches = max(int(effort.crashed_gb * 1e9 / len(batch) / PARTITIONS), 1)
        prepared.produce(
            broker.port, topic, partitions=PARTITIONS, batches=batches, batch=batch, count=count, size=1_000
        )
        broker.kill()
        broker.launch()
        back = prepared.first_write(broker.port, topic, patience_seconds=PATIENCE_SECONDS) - broker.launched_at
        written = batches * PARTITIONS * len(batch) / 1e6
        return {
            f"crashed log of {effort.crashed_gb:g} GB, until it takes writes, s": back,
            f"crashed log of {effort.crashed_gb:g} GB, MB/s": written / back,
        }


def recovery_of_small_batches(contender: Contender, effort: Effort) -> Rows:
    """The same for a log of single small records. It is written into the log's files, because no client sends that many
    in an hour.
    """
    rows: dict[str, float] = {}
    for size in SMALL_BATCHES:
        with running(contender) as broker:
            topic = new_topic(broker, "crashed")
            batch = bytearray(prepared.a_batch(1, size - len(prepared.a_batch(1, 0))))
            first = bytes(batch)
            prepared.produce(broker.port, topic, partitions=PARTITIONS, batches=1, batch=first, count=1, size=size)
            broker.kill()
            count = int(effort.crashed_gb / 10 * 1e9 / PARTITIONS / len(batch))
            for partition in range(PARTITIONS):
                with (broker.data / f"{topic}-{partition}" / f"{0:020}.log").open("ab") as file:
                    for offset in range(1, count):
                        restamp(batch, base_offset=offset, leader_epoch=0)
                        file.write(batch)
            broker.launch()
            back = prepared.first_write(broker.port, topic, patience_seconds=PATIENCE_SECONDS) - broker.launched_at
            rows[f"crashed log of batches of {size} bytes, MB/s"] = PARTITIONS * count * len(batch) / 1e6 / back
    return rows


def idle_connections(contender: Contender, effort: Effort) -> Rows:
    """The cost of five thousand connections that sent one request and are silent."""
    wanted = IDLE_CONNECTIONS if effort.scale >= 1 else 1_000
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if most != resource.RLIM_INFINITY and most < wanted + 500:
        raise native.LoadFailed(f"only {most} files may be open here (ulimit -n)")
    body = write_request_header(ApiKey.API_VERSIONS, 3, 1, "idle") + encode_request(
        ApiKey.API_VERSIONS, 3, ApiVersionsRequest("idle", "1")
    )
    frame = struct.pack(">i", len(body)) + body
    with running(contender) as broker:
        warm_up(broker)
        time.sleep(1)
        before = broker.resident_bytes()
        with contextlib.ExitStack() as all_of_them:
            for _ in range(wanted):
                line = all_of_them.enter_context(socket.create_connection(("127.0.0.1", broker.port), timeout=30))
                line.sendall(frame)
                assert line.recv(65536), "the broker refused an idle connection"
            time.sleep(1)
            grown = broker.resident_bytes() - before
    return {
        f"{wanted} idle connections, MB": grown / 1e6,
        "an idle connection, KB": grown / wanted / 1e3,
    }


def soak(contender: Contender, effort: Effort) -> Rows:
    """Memory over minutes of load: after the first fifth, at the end, and the highest in between."""
    samples: list[float] = []
    ended = threading.Event()
    with running(contender, settings={"log.retention.bytes": "200000000", "log.segment.bytes": "50000000"}) as broker:
        topic = new_topic(broker, "soak")
        seconds = effort.soak_minutes * 60

        def sample() -> None:
            while not ended.wait(seconds / 60):
                samples.append(broker.resident_bytes() / 1e6)

        sampler = threading.Thread(target=sample)
        sampler.start()
        try:
            native.run(
                "pace", broker.bootstrap, topic, seconds, 1_000, options=["-r", "20000"], settings={"acks": "all"}
            )
        finally:
            ended.set()
            sampler.join()
    early = samples[len(samples) // 5]
    return {
        "resident early in the load, MB": early,
        "resident at the end of the load, MB": samples[-1],
        "highest resident under load, MB": max(samples),
    }


def aborted_history(contender: Contender, effort: Effort) -> Rows:
    """A partition with 100,000 aborted transactions: what a reader at its head is told, and how fast."""
    wanted = effort.messages(100_000)
    with running(contender) as broker:
        topic = new_topic(broker, "aborts", partitions=1)
        done = 0.0
        while done < wanted:
            done += many_small.run(broker.bootstrap, topic, 10, 16, abort=True)["messages"]
        # A reader at the head meets nothing of this; one at the beginning takes the aborted ones with it.
        native.run("produce", broker.bootstrap, topic, 1_000, 100, settings={"acks": "all"})
        head = native.run(
            "pace", broker.bootstrap, topic, 3, 100, options=["-r", "1000"], settings={"acks": "all", "linger.ms": "0"}
        )
        began = time.monotonic()
        native.run("consume", broker.bootstrap, topic, 1_000, 1, settings={"isolation.level": "read_committed"})
        whole = time.monotonic() - began
    return {
        "after 100 k aborts: write p99 ms": head["wait_p99_ms"],
        "after 100 k aborts: read committed from the start, s": whole,
    }


def producer_ids(contender: Contender, effort: Effort) -> Rows:
    """A million producers write one batch each to a partition: memory, and a start afterwards."""
    wanted = effort.messages(1_000_000)
    with running(contender) as broker:
        topic = new_topic(broker, "ids", partitions=1)
        rate = write_as_many_producers(broker, topic, wanted)
        resident = broker.resident_bytes() / 1e6
        broker.stop(patience_seconds=PATIENCE_SECONDS)
        broker.launch()
        back = prepared.first_write(broker.port, topic, patience_seconds=PATIENCE_SECONDS) - broker.launched_at
    return {
        f"{wanted} producer ids, batches, msg/s": rate,
        f"{wanted} producer ids, resident, MB": resident,
        f"{wanted} producer ids, start to first write, s": back,
    }


def coordinator(contender: Contender, effort: Effort) -> Rows:
    """A coordinator that has decided 100,000 transactions begins again: the time from the start of its process until it
    takes a new id, and what that costs.
    """
    wanted = effort.messages(100_000)
    took, cost = [], []
    with running(contender, settings={"transaction.state.log.num.partitions": "1"}) as broker:
        topic, done = new_topic(broker, "decided"), 0.0
        while done < wanted:
            done += many_small.run(broker.bootstrap, topic, 5, 16)["messages"]
        for _ in range(3):
            broker.stop(patience_seconds=PATIENCE_SECONDS)
            broker.launch()
            took.append(prepared.first_decision(broker.port, patience_seconds=PATIENCE_SECONDS) - broker.launched_at)
            cost.append(sum(broker.cpu_seconds()))
    return {
        f"restart after {wanted:,} transactions, until another can begin, s": statistics.median(took),
        f"restart after {wanted:,} transactions, CPU s": statistics.median(cost),
    }


def compaction(contender: Contender, effort: Effort) -> Rows:
    """A table of many keys, each written twice: how fast it is compacted, and how long a producer waits meanwhile. It
    writes for 20 seconds, again and again, until the swap is over; the worst of these counts.
    """
    keys = effort.messages(50_000_000)
    url = f"http://127.0.0.1:{free_port()}"
    settings = {"log.cleaner.backoff.ms": "500"}
    if isinstance(contender, Ours):
        settings["http.listeners"] = url
    with running(contender, settings=settings) as broker:
        warm_up(broker)
        paced = new_topic(broker, "beside")
        pace = partial(native.run, "pace", broker.bootstrap, paced, options=["-r", "2000"], settings={"acks": "all"})
        alone = pace(effort.seconds(10), 100)
        before = fill_table(broker, "table", keys)
        late = loop_lag(url) if isinstance(contender, Ours) else Counter[float]()
        started, over = time.monotonic(), threading.Event()
        set_topic(broker, "table", {"min.cleanable.dirty.ratio": "0"})

        def paced_until_over() -> list[native.Outcome]:
            outcomes = []
            while not over.is_set():
                outcomes.append(pace(effort.seconds(20), 100))
            return outcomes

        with ThreadPoolExecutor(1) as beside:
            waited = beside.submit(paced_until_over)
            try:
                while size_of(broker, "table-0") >= before or (broker.data / "table-0" / PLAN).exists():
                    time.sleep(0.05)
            finally:
                over.set()
            seconds = time.monotonic() - started
            meanwhile = waited.result()
        if isinstance(contender, Ours):
            late = loop_lag(url) - late
    rows = {
        f"compaction of {keys} keys, MB/s": before / seconds / 1e6,
        "producer alone, p99 ms": alone["wait_p99_ms"],
        "producer beside compaction, p99 ms": max(each["wait_p99_ms"] for each in meanwhile),
        "producer beside compaction, longest ms": max(each["wait_max_ms"] for each in meanwhile),
    }
    return rows | ({"event loop beside compaction, late by at most ms": 1000 * max(late)} if late else {})


def loop_lag(url: str) -> Counter[float]:
    """How often the event loop was late by at most so many seconds, and by more than the next smaller number."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=PATIENCE_SECONDS) as answer:
        told = re.findall(r'^oncelog_event_loop_lag_seconds_bucket{le="(.+?)"} (\d+)', answer.read().decode(), re.M)
    up_to = sorted((float(bound), int(times)) for bound, times in told)
    smaller = [0, *(times for _, times in up_to)]
    return Counter({bound: times - before for (bound, times), before in zip(up_to, smaller, strict=False)})


def fill_table(broker: BrokerProcess, topic: str, keys: int) -> int:
    """Every key twice, in batches of 500 records of 100 bytes. The bytes that can be compacted."""
    config = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "1", "segment.bytes": str(16 << 20)}
    admin = administrator(broker)
    admin.create_topics([NewTopic(topic, num_partitions=1, replication_factor=1, config=config)])[topic].result(60)
    time.sleep(0.3)
    now_ms, value = int(time.time() * 1000), b"x" * 75
    prepared.produce_each(
        broker.port,
        topic,
        (
            build_batch([(b"key-%011d" % key, value, (), now_ms) for key in range(first, min(first + 500, keys))])
            for _ in range(2)
            for first in range(0, keys, 500)
        ),
    )
    return size_of(broker, f"{topic}-0")


def set_topic(broker: BrokerProcess, topic: str, config: Mapping[str, str]) -> None:
    entries = [ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in config.items()]
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=entries)
    admin = administrator(broker)
    admin.incremental_alter_configs([resource])[resource].result(60)


def size_of(broker: BrokerProcess, partition: str) -> int:
    """Of all segments but the one that is written to."""
    size = 0
    for path in sorted((broker.data / partition).glob("*.log"))[:-1]:
        with contextlib.suppress(FileNotFoundError):  # it may go at any time
            size += path.stat().st_size
    return size


def rebalances(contender: Contender, effort: Effort) -> Rows:
    """Groups of both protocols: from the first join to a stable group, and again after one member has left. Also a
    group over very many topics, and how long another client waits meanwhile. All of it is done again by a broker of
    ours that measures the turns of its loop: it runs on asyncio's own loop, so the times that it takes do not count.
    """
    with running(contender) as broker:
        found = _rebalanced(broker, effort)
    turns: Rows = {}
    if contender.times_turns:
        with running(contender, timed=True) as broker:
            turns = {group: one["longest_turn_ms"] for group, one in _rebalanced(broker, effort).items()}
    rows: Rows = {}
    for group, one in found.items():
        rows[f"{group} comes together, s"] = one["formed_s"]
        if "mended_s" in one:
            rows[f"{group} after one has left, s"] = one["mended_s"]
        rows[f"{group}: others wait at most, ms"] = one["others_wait_ms"]
        if group in turns:
            rows[f"{group}: longest turn of asyncio's loop, ms of processor"] = turns[group]
    return rows


def _rebalanced(broker: BrokerProcess, effort: Effort) -> dict[str, native.Outcome]:
    found: dict[str, native.Outcome] = {}
    new_topic(broker, groups.TOPIC, partitions=groups.PARTITIONS)
    for protocol in ("classic", "consumer"):
        groups.run(broker, protocol, 300)  # warms it up
        for members in (100, 1_000, 5_000):
            count = max(int(members * effort.scale), 10)
            found[f"{protocol} group of {count}"] = groups.run(broker, protocol, count)
    topics = int(5_000 * effort.scale)
    make_many(broker, topics, 1)
    found[f"consumer group over {topics} topics"] = groups.run(broker, "expression", topics)
    return found


def group_requests(contender: Contender, effort: Effort) -> Rows:
    """Heartbeats of ten thousand members, and offsets of ten partitions committed and fetched."""
    members = int(10_000 * effort.scale)
    with running(contender) as broker:
        new_topic(broker, groups.TOPIC, partitions=groups.PARTITIONS)
        groups.run(broker, "offsets", 0)  # warms it up
        beaten = groups.run(broker, "heartbeats", members)
        asked = groups.run(broker, "offsets", 0)
    return {
        f"heartbeats of {members} members, requests/s": beaten["per_second"],
        f"heartbeats of {members} members: others wait at most, ms": beaten["others_wait_ms"],
        "OffsetCommit, requests/s": asked["commits"],
        "OffsetFetch, requests/s": asked["fetches"],
    }


def many_groups(contender: Contender, effort: Effort) -> Rows:
    """Twenty thousand groups with ten offsets each: their memory, and what it costs when all expire at once."""
    count = int(20_000 * effort.scale)
    settings = {"offsets.retention.minutes": "1", "offsets.retention.check.interval.ms": "100000"}
    with running(contender, settings=settings) as broker:
        new_topic(broker, groups.TOPIC, partitions=groups.PARTITIONS)
        groups.run(broker, "many", 400)  # warms it up
        before = broker.resident_bytes()
        made = groups.run(broker, "many", count)
        grown = broker.resident_bytes() - before
        gone = groups.run(broker, "expired", count)
    return {
        f"{count} groups committed for, s": made["committed_s"],
        f"{count} groups, MB": grown / 1e6,
        f"{count} groups expire within, s": gone["expired_s"],
        f"{count} groups expire: others wait at most, ms": gone["others_wait_ms"],
    }


def over_http(contender: Contender, effort: Effort) -> Rows:
    """JSON, keys that make requests repeatable, raw bytes, lines and events, by `wrk` and by one client."""
    if why := web.missing():
        raise RuntimeError(why)
    url = f"http://127.0.0.1:{free_port()}"
    given = {"http.listeners": url, "num.partitions": "1", "http.max.streams": str(2 * web.IDLE_STREAMS)}
    with running(contender, settings=given) as broker:
        return web.measure(broker, url, effort.seconds(20))


def being_watched(contender: Contender, effort: Effort) -> Rows:
    """Scraped every five seconds, ten pages open, spans sent, under transactions of 100 ms; ours alone has all that."""
    url = f"http://127.0.0.1:{free_port()}"
    topic = "watched"
    count = effort.messages(3_000_000)

    def load(broker: BrokerProcess) -> None:
        settings = {"acks": "all", "linger.ms": "5"}
        native.run("transact", broker.bootstrap, topic, count, 1_000, options=["-e", "100"], settings=settings)
        time.sleep(1.0)  # spans leave once a second

    collector = watching.Collector()
    given = {
        "log.retention.bytes": "100000000",
        "log.segment.bytes": "100000000",
        "log.retention.check.interval.ms": "5000",  # or 60 GB lie on the disk before anything is removed
    }
    try:
        with (
            running(contender, settings={**given, "http.listeners": ""}) as plain,
            running(contender, settings={**given, "http.listeners": url, "otlp.endpoint": collector.url}) as other,
        ):
            for broker in (plain, other):
                new_topic(broker, topic)
                load(broker)  # warms it up
            rows = watching.cost("writing", plain, other, url, topic, load, 2 * effort.runs + 1)
            assert collector.batches, "no spans came"
            seconds = effort.seconds(30)
            return rows | watching.cost("idle", plain, other, url, topic, lambda _: time.sleep(seconds), effort.runs)
    finally:
        collector.stop()


def replicated(contender: Contender, effort: Effort) -> Rows:
    """Three brokers on these cores, three copies of everything, acks=all."""
    rows: Rows = {}
    with clusters.running(contender) as cluster:
        clusters.throughput(cluster, effort.messages(2_000_000), 100)  # warms it up
        for size, full in ((100, 3_000_000), (1_000, 600_000)):
            written = [clusters.throughput(cluster, effort.messages(full), size) for _ in range(effort.runs)]
            unit, key = ("msg/s", "per_second") if size == 100 else ("MB/s", "mb_per_second")
            rows[f"three copies, acks=all, {size} B, {unit}"] = median(written, key)
        waited = [clusters.paced(cluster, effort.seconds(20), 5_000) for _ in range(effort.runs)]
        rows["three copies, acks=all at 5 k/s, p50 ms"] = median(waited, "wait_p50_ms")
        rows["three copies, acks=all at 5 k/s, p99 ms"] = median(waited, "wait_p99_ms")
        alone, many = clusters.transactions(cluster, max(effort.seconds(8), 5.0), effort.runs)
        rows["three copies, begin to committed, p50 ms"] = median(alone, "whole_p50_ms")
        rows["three copies, begin to committed, p99 ms"] = median(alone, "whole_p99_ms")
        rows["three copies, small transactions, 16 producers, txn/s"] = median(many, "per_second")
    return rows


def takeover(contender: Contender, effort: Effort) -> Rows:
    """Leaders of three brokers are killed under load, one after the other; then each broker is restarted in order."""
    with clusters.running(contender) as cluster:
        took = clusters.takeovers(cluster, max(int(clusters.KILLS * effort.scale), 6))
        written, committed = clusters.restarts(cluster, effort.seconds(60))
    return {
        "leader killed, until written again, p50 s": statistics.median(took),
        "leader killed, until written again, worst s": max(took),
        "brokers restarted in turn, longest wait of a write, s": written,
        "brokers restarted in turn, longest transaction, s": committed,
    }


def losses(contender: Contender, effort: Effort) -> Rows:
    """A follower far behind catches up; the leader of very many partitions dies."""
    behind = effort.messages(10_000_000)
    partitions = 5_000
    with clusters.running(contender) as cluster:
        spent = clusters.copied_cpu(cluster, effort.messages(2_000_000))
        copied, slower = clusters.catching_up(cluster, behind)
        led_again = clusters.many_led_again(cluster, partitions)
    return {
        "a follower's fetch, user CPU of the leader, s/GB": spent,
        f"follower {behind / 1e6:g} GB behind, catches up at MB/s": copied,
        f"follower {behind / 1e6:g} GB behind, p99 of producers meanwhile, times": slower,
        f"leader of {partitions} partitions killed, until all are led again, s": led_again,
    }


def two_brokers(contender: Contender, effort: Effort) -> Rows:
    """One broker on these cores, and two that one command starts. The load needs the same cores, so two can hardly be
    faster here. What they spend for a GB tells what more cores are worth: a broker keeps one busy.
    """
    rows: Rows = {}
    for kind, broker in (("one broker", contender.broker()), ("two brokers", contender.two_brokers())):
        broker.start()
        try:
            warm_up(broker)
            rows |= {f"{kind}, {row}": value for row, value in in_and_out(broker, effort).items()}
            topic, seconds = new_topic(broker, "small"), max(effort.seconds(8), 5.0)
            many = [many_small.run(broker.bootstrap, topic, seconds, 16) for _ in range(effort.runs)]
            rows[f"{kind}, small transactions, 16 producers, txn/s"] = median(many, "per_second")
        finally:
            contender.forget(broker)
    return rows


def many_copies(contender: Contender, effort: Effort) -> Rows:
    """Very many partitions on three brokers: changes, the death of the controller, brokers that return."""
    with clusters.running(contender, timed=True) as cluster:
        return copies.run(cluster, max(int(MANY_COPIES * effort.scale), 1_500))


FIGURES: Mapping[str, Figure] = {
    "throughput": throughput,
    "cost": broker_cost,
    "latency": latency,
    "start": start,
    "idle": idle_connections,
    "idempotence": idempotence,
    "small-transactions": small_transactions,
    "read-committed": read_committed,
    "recovery": recovery,
    "recovery-of-small-batches": recovery_of_small_batches,
    "partitions": many_partitions,
    "aborts": aborted_history,
    "producer-ids": producer_ids,
    "coordinator": coordinator,
    "compaction": compaction,
    "rebalances": rebalances,
    "group-requests": group_requests,
    "many-groups": many_groups,
    "http": over_http,
    "watched": being_watched,
    "replicated": replicated,
    "takeover": takeover,
    "losses": losses,
    "two-brokers": two_brokers,
    "many-copies": many_copies,
    "soak": soak,
}


# -- what figures have in common


@contextlib.contextmanager
def running(
    contender: Contender, *, fsync: bool = False, settings: Mapping[str, str] | None = None, timed: bool = False
) -> Iterator[BrokerProcess]:
    """A broker of this contender; its data is gone afterwards."""
    broker = contender.broker(fsync=fsync, settings=settings, timed=timed)
    broker.start()
    try:
        yield broker
    finally:
        contender.forget(broker)


def warm_up(broker: BrokerProcess) -> None:
    """Both brokers get the same load before anything counts, because a compiler that learns while it runs must have
    learnt.
    """
    for number in range(3):
        topic = new_topic(broker, f"warm-{number}")
        native.run("produce", broker.bootstrap, topic, 1_000_000, 100, settings={"acks": "1", "linger.ms": "5"})
        native.run("consume", broker.bootstrap, topic, 1_000_000, PARTITIONS)
        delete_topic(broker, topic)


def administrator(broker: BrokerProcess) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 2})


def new_topic(broker: BrokerProcess, name: str, *, partitions: int = PARTITIONS) -> str:
    admin = administrator(broker)
    admin.create_topics([NewTopic(name, num_partitions=partitions, replication_factor=1)])[name].result(60)
    # The topic is led, and known a moment later. Asking by a write would put a record into it.
    time.sleep(0.3)
    return name


def delete_topic(broker: BrokerProcess, name: str) -> None:
    admin = administrator(broker)  # it lives as long as its name does
    admin.delete_topics([name])[name].result(60)


def make_many(broker: BrokerProcess, partitions: int, a_topic: int = PARTITIONS_A_TOPIC) -> dict[str, int]:
    """Topics with this many partitions in all: their names and numbers of partitions."""
    admin = administrator(broker)
    sizes: dict[str, int] = {}
    while (left := partitions - sum(sizes.values())) > 0:
        sizes[f"{groups.MANY}{len(sizes)}"] = min(left, a_topic)
    names = list(sizes)
    for at in range(0, len(names), 50):
        wanted = [NewTopic(name, num_partitions=sizes[name], replication_factor=1) for name in names[at : at + 50]]
        for future in admin.create_topics(wanted, request_timeout=120).values():
            future.result(120)
    return sizes


def fill_once(broker: BrokerProcess, topics: Mapping[str, int]) -> None:
    """One batch into every partition, a topic a request; tried again while a partition is not led yet."""
    batch = prepared.a_batch(1, 100)
    for name, count in topics.items():
        data = [PartitionProduceData(index=number, records=batch) for number in range(count)]
        request = ProduceRequest(
            acks=1, timeout_ms=30_000, topic_data=[TopicProduceData(name=name, partition_data=data)]
        )
        prepared.send_until_accepted(broker.port, request, topic=name, patience_seconds=PATIENCE_SECONDS)


def write_as_many_producers(broker: BrokerProcess, topic: str, count: int) -> float:
    """One idempotent batch from each of `count` invented producer ids; returns batches a second."""
    now_ms = int(time.time() * 1000)

    def frames() -> Iterator[ProduceRequest]:
        for number in range(count):
            batch = build_batch(
                [(None, b"x" * 20, (), now_ms)], producer_id=10_000_000 + number, producer_epoch=0, base_sequence=0
            )
            data = [PartitionProduceData(index=0, records=batch)]
            yield ProduceRequest(
                acks=-1, timeout_ms=30_000, topic_data=[TopicProduceData(name=topic, partition_data=data)]
            )

    began = time.monotonic()
    prepared.stream(broker.port, frames(), topic=topic)
    return count / (time.monotonic() - began)


@contextlib.contextmanager
def measured_cpu(broker: BrokerProcess, into: list[float], *, gigabytes: float) -> Iterator[None]:
    before, _ = broker.cpu_seconds()
    yield
    after, _ = broker.cpu_seconds()
    into.append((after - before) / gigabytes)


def median(outcomes: list[native.Outcome], key: str) -> float:
    return statistics.median(outcome[key] for outcome in outcomes)

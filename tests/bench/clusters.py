"""Three brokers on this machine, with three copies of everything, two of them in sync at least: what that costs, and
how long writers wait when a broker goes.
"""

from __future__ import annotations

import contextlib
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from tests.bench import many_small, native
from tests.bench.contenders import BrokerCluster, Contender
from tests.chaos.cluster.writers import SteadyWriter

PARTITIONS = 4
KILLS = 20
COMMITTING = 16
PARTITIONS_A_TOPIC = 1_000
PATIENCE_S = 240.0


@contextlib.contextmanager
def running(contender: Contender, *, timed: bool = False) -> Iterator[BrokerCluster]:
    """Three brokers of this contender; their data is gone afterwards."""
    cluster = contender.cluster(timed=timed)
    try:
        cluster.start()
        yield cluster
    finally:
        contender.forget_cluster(cluster)


def throughput(cluster: BrokerCluster, count: int, size: int) -> native.Outcome:
    topic = new_topic(cluster, f"load-{size}-{time.monotonic_ns()}")
    settings = {"acks": "all", "linger.ms": "5"}
    written = native.run("produce", cluster.bootstrap, topic, count, size, settings=settings)
    administrator = admin(cluster)  # it lives as long as its name does
    administrator.delete_topics([topic])[topic].result(60)
    return written


def paced(cluster: BrokerCluster, seconds: float, rate: int, topic: str = "") -> native.Outcome:
    topic = topic or new_topic(cluster, f"paced-{time.monotonic_ns()}")
    options, settings = ["-r", str(rate)], {"acks": "all", "linger.ms": "0"}
    return native.run("pace", cluster.bootstrap, topic, seconds, 100, options=options, settings=settings)


def transactions(
    cluster: BrokerCluster, seconds: float, runs: int
) -> tuple[list[native.Outcome], list[native.Outcome]]:
    """Throughput of transactions: one after another, and of sixteen producers at once."""
    topic = new_topic(cluster, "small")
    many_small.run(cluster.bootstrap, topic, 5.0, 4)  # warms it up
    quick = {"linger.ms": "0"}
    alone = [native.run("small", cluster.bootstrap, topic, seconds, 100, settings=quick) for _ in range(runs)]
    return alone, [many_small.run(cluster.bootstrap, topic, seconds, 16) for _ in range(runs)]


def takeovers(cluster: BrokerCluster, kills: int) -> list[float]:
    """The time from each SIGKILL of a leader until all its partitions can be written to again. Other load runs beside
    it.
    """
    topic = new_topic(cluster, "killed")
    took = []
    with _writing(cluster, topic) as writer, ThreadPoolExecutor(1) as beside:
        for _ in range(kills):
            load = beside.submit(paced, cluster, 8.0, 2_000)
            time.sleep(2.0)
            victim = leader(cluster, topic)
            killed_s = time.monotonic()
            cluster.brokers[victim - 1].kill()
            time.sleep(0.1)
            until(partial(_written_since, writer, killed_s + 0.05), "written again")
            took.append(_longest(writer, killed_s, since_s=killed_s))
            load.result()
            cluster.brokers[victim - 1].start(patience_seconds=PATIENCE_S)
            until(partial(is_whole, cluster), "whole again")
    return took


def restarts(cluster: BrokerCluster, history_s: float) -> tuple[float, float]:
    """While each broker in turn was stopped and started: the longest time in which any partition acknowledged nothing,
    and the longest that any transaction took. For `history_s` many were committed before.
    """
    topic, over = new_topic(cluster, "restarted"), threading.Event()
    many_small.run(cluster.bootstrap, topic, history_s, COMMITTING)
    began_s = time.monotonic()
    with _writing(cluster, topic) as writer, ThreadPoolExecutor(COMMITTING) as beside:
        committing = [beside.submit(_longest_commit, cluster, topic, number, over) for number in range(COMMITTING)]
        try:
            for broker in cluster.brokers:
                broker.stop(patience_seconds=PATIENCE_S)
                broker.start(patience_seconds=PATIENCE_S)
                until(partial(is_whole, cluster), "whole again")
            time.sleep(1.0)
        finally:
            over.set()
        return _longest(writer, began_s), max(each.result() for each in committing)


def _longest_commit(cluster: BrokerCluster, topic: str, number: int, over: threading.Event) -> float:
    """Commit one small transaction after another."""
    settings = {"bootstrap.servers": cluster.bootstrap, "transactional.id": f"beside-{number}", "log_level": 0}
    producer = Producer({**settings, "linger.ms": 0})
    producer.init_transactions(PATIENCE_S)
    longest_s = 0.0
    while not over.is_set():
        began_s = time.monotonic()
        producer.begin_transaction()
        producer.produce(topic, b"x" * 100)
        producer.commit_transaction(PATIENCE_S)
        longest_s = max(longest_s, time.monotonic() - began_s)
        time.sleep(0.02)
    return longest_s


def many_led_again(cluster: BrokerCluster, partitions: int) -> float:
    """The time from the SIGKILL of their leader until this many partitions have another one, as clients are told."""
    administrator = admin(cluster)
    names = [f"led-{number}" for number in range(partitions // PARTITIONS_A_TOPIC)]
    for name in names:
        topic = NewTopic(name, PARTITIONS_A_TOPIC, replica_assignment=[[1, 2, 3]] * PARTITIONS_A_TOPIC)
        administrator.create_topics([topic], request_timeout=PATIENCE_S)[name].result(PATIENCE_S)
    until(lambda: is_whole(cluster) and _led_by(cluster, names) == {1}, "led by the first broker")
    time.sleep(2.0)
    killed_s = time.monotonic()
    cluster.brokers[0].kill()
    until(lambda: _led_by(cluster, names) <= {2, 3}, "led again")
    return time.monotonic() - killed_s


def _led_by(cluster: BrokerCluster, names: Sequence[str]) -> set[int]:
    """The brokers that lead some of these topics; -1 if a topic has no leader or is not known."""
    try:
        topics = admin(cluster).list_topics(timeout=30).topics
    except KafkaException:
        return {-1}
    found = {state.leader for name in names if name in topics for state in topics[name].partitions.values()}
    return found if all(name in topics for name in names) else found | {-1}


def catching_up(cluster: BrokerCluster, count: int) -> tuple[float, float]:
    """A follower that lacks `count` messages of 1 KB comes back: MB/s until it is in sync, and how many times as long
    the p99 of a producer beside it is meanwhile.
    """
    behind, beside = (new_topic(cluster, f"{name}-{time.monotonic_ns()}") for name in ("behind", "beside"))
    follower = cluster.brokers[2]
    follower.stop(patience_seconds=PATIENCE_S)
    native.run("produce", cluster.bootstrap, behind, count, 1_000, settings={"acks": "all", "linger.ms": "5"})
    before = paced(cluster, 6.0, 2_000, beside)["wait_p99_ms"]
    meanwhile = []
    with ThreadPoolExecutor(1) as pool:
        follower.start(patience_seconds=PATIENCE_S)
        began_s = time.monotonic()
        whole = pool.submit(_whole_at, cluster)
        while not whole.done():
            meanwhile.append(paced(cluster, 2.0, 2_000, beside)["wait_p99_ms"])
        took_s = whole.result() - began_s
    return count / 1_000 / took_s, statistics.median(meanwhile) / before


def copied_cpu(cluster: BrokerCluster, count: int) -> float:
    """User CPU seconds that a leader spends for each GB of `count` messages of 1 KB that a follower lacks and fetches.
    Nobody else asks it for anything.
    """
    follower, leading = cluster.brokers[2], cluster.brokers[0]
    administrator, name = admin(cluster), f"copied-{time.monotonic_ns()}"
    topic = NewTopic(name, PARTITIONS, replica_assignment=[[1, 2, 3]] * PARTITIONS)
    administrator.create_topics([topic])[name].result(60)
    until(partial(is_whole, cluster), "there")
    follower.stop(patience_seconds=PATIENCE_S)
    native.run("produce", cluster.bootstrap, name, count, 1_000, settings={"acks": "all", "linger.ms": "5"})
    time.sleep(2.0)
    before_s, _ = leading.cpu_seconds()
    follower.start(patience_seconds=PATIENCE_S)
    until(partial(is_whole, cluster), "whole again")
    return (leading.cpu_seconds()[0] - before_s) / (count / 1e6)


def _whole_at(cluster: BrokerCluster) -> float:
    until(partial(is_whole, cluster), "whole again")
    return time.monotonic()


@contextlib.contextmanager
def _writing(cluster: BrokerCluster, topic: str) -> Iterator[SteadyWriter]:
    writer = SteadyWriter(cluster.bootstrap, topic, PARTITIONS, acks="all")
    writer.start()
    time.sleep(3.0)
    try:
        yield writer
    finally:
        writer.stop()
        writer.join(PATIENCE_S)
    if writer.told.failures or writer.told.ambiguous:
        raise native.LoadFailed(f"{writer.told.ambiguous} writes failed; {writer.told.failures}")


def _written_since(writer: SteadyWriter, since_s: float) -> bool:
    return all(heard_s > since_s for heard_s in writer.heard_s)


def _longest(writer: SteadyWriter, after_s: float, *, since_s: float = 0.0) -> float:
    return max(until - max(begin, since_s) for begin, until in list(writer.told.gaps) if until > after_s)


def new_topic(cluster: BrokerCluster, name: str, partitions: int = PARTITIONS) -> str:
    administrator = admin(cluster)
    administrator.create_topics([NewTopic(name, partitions, 3)])[name].result(60)
    until(partial(is_whole, cluster), "there")
    time.sleep(0.3)
    return name


def admin(cluster: BrokerCluster) -> AdminClient:
    return AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 2})


def leader(cluster: BrokerCluster, topic: str) -> int:
    return int(admin(cluster).list_topics(topic, timeout=10).topics[topic].partitions[0].leader)


def is_whole(cluster: BrokerCluster) -> bool:
    try:
        topics = admin(cluster).list_topics(timeout=10).topics.values()
    except KafkaException:
        return False
    states = [state for topic in topics for state in topic.partitions.values()]
    return all(state.leader > 0 and len(state.isrs) == len(state.replicas) for state in states)


def until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        if time.monotonic() > deadline:
            raise native.LoadFailed(f"not {what} within {PATIENCE_S:g} s")
        time.sleep(0.02)

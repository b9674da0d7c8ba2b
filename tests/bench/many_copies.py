"""Three brokers that hold very many partitions together: how long the cluster takes for a change, for the death of its
controller, and for a broker that returns. Of our own brokers also the longest turn of the event loop in each, which is
measured by asyncio's own loop (`timed.py`).
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from functools import partial
from itertools import count

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from tests.bench.clusters import PATIENCE_S, admin, is_whole, until
from tests.bench.contenders import BrokerCluster, TimedOncelog

A_TOPIC = 1_100
CHANGES = 100
SETTLED_S = 5.0
A_LOOK_S = 0.001

Rows = dict[str, float]


def run(cluster: BrokerCluster, partitions: int) -> Rows:
    rows: Rows = {}
    longest = _LongestTurns(cluster, rows)
    administrator = admin(cluster)
    began_s = time.monotonic()
    for number, first in enumerate(range(0, partitions, A_TOPIC)):
        _make(administrator, f"many-{number}", min(A_TOPIC, partitions - first))
    rows["made in, s"] = time.monotonic() - began_s
    until(partial(is_whole, cluster), "whole")
    longest.turn("while they are made")
    time.sleep(SETTLED_S)
    longest.turn("while nothing happens")

    seen_s = sorted(_changes(cluster))
    rows["a small topic seen by every broker, p50 ms"] = statistics.median(seen_s) * 1000
    rows["a small topic seen by every broker, p99 ms"] = seen_s[len(seen_s) * 99 // 100 - 1] * 1000
    longest.turn("while small topics are made")

    controller = administrator.describe_cluster().result(PATIENCE_S).controller.id
    others = [broker.bootstrap for number, broker in enumerate(cluster.brokers, 1) if number != controller]
    killed_s = time.monotonic()
    cluster.brokers[controller - 1].kill()
    _make_soon(",".join(others))
    rows["controller killed, until a topic is made, s"] = time.monotonic() - killed_s
    survivors = AdminClient({"bootstrap.servers": ",".join(others), "log_level": 2})
    until(partial(_led_without, survivors, controller), "led again")
    rows["controller killed, until all are led again, s"] = time.monotonic() - killed_s
    longest.turn("while a dead broker's partitions move")
    time.sleep(SETTLED_S)

    _return(cluster, controller, rows, "killed")
    longest.turn("while it comes back")
    cluster.brokers[0].stop(patience_seconds=PATIENCE_S)
    longest.turn("while a broker stops")
    _return(cluster, 1, rows, "stopped")
    longest.turn("while it comes back from that")
    return {f"{partitions} partitions, three copies, {what}": value for what, value in rows.items()}


class _LongestTurns:
    """Of brokers that measure them: the longest turn of any since the last question."""

    def __init__(self, cluster: BrokerCluster, rows: Rows) -> None:
        self._timed = [broker for broker in cluster.brokers if isinstance(broker, TimedOncelog)]
        self._rows = rows
        self._take()  # their starts

    def turn(self, when: str) -> None:
        if self._timed:
            self._rows[f"longest turn {when}, ms"] = max(self._take())

    def _take(self) -> list[float]:
        return [broker.longest_turn_ms() for broker in self._timed if broker.running()]


def _make(administrator: AdminClient, name: str, partitions: int, replicas: int = 3) -> None:
    topic = NewTopic(name, partitions, replicas)
    administrator.create_topics([topic], request_timeout=PATIENCE_S)[name].result(PATIENCE_S)


def _changes(cluster: BrokerCluster) -> Iterator[float]:
    """For each of some new topics: how long after its creation was answered every broker knows who leads it."""
    administrator = admin(cluster)
    each = [AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 2}) for broker in cluster.brokers]
    for asked in each:
        asked.list_topics("none", timeout=PATIENCE_S)  # connects
    for number in range(CHANGES):
        name = f"small-{number}"
        _make(administrator, name, 1)
        made_s = time.monotonic()
        for asked in each:
            while not _knows_leader(asked, name):
                time.sleep(A_LOOK_S)
        yield time.monotonic() - made_s
        time.sleep(0.05)


def _knows_leader(asked: AdminClient, name: str) -> bool:
    topic = asked.list_topics(name, timeout=PATIENCE_S).topics[name]
    return topic.error is None and [state.leader for state in topic.partitions.values()] > [0]


def _make_soon(bootstrap: str) -> None:
    """Make a topic as soon as a controller does. Each try is a client of its own: one that has heard of the dead
    controller asks for no other for minutes.
    """
    deadline_s = time.monotonic() + PATIENCE_S
    for number in count():
        administrator, name = AdminClient({"bootstrap.servers": bootstrap, "log_level": 2}), f"after-{number}"
        try:
            administrator.create_topics([NewTopic(name, 1, 2)], request_timeout=1)[name].result(5)
            return
        except KafkaException:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(A_LOOK_S)


def _led_without(survivors: AdminClient, dead: int) -> bool:
    try:
        topics = survivors.list_topics(timeout=30).topics.values()
    except KafkaException:
        return False
    return all(state.leader not in (-1, dead) for topic in topics for state in topic.partitions.values())


def _return(cluster: BrokerCluster, number: int, rows: Rows, how: str) -> None:
    began_s, returning = time.monotonic(), cluster.brokers[number - 1]
    returning.start(patience_seconds=PATIENCE_S)
    rows[f"a {how} broker starts, until it answers, s"] = time.monotonic() - began_s
    if isinstance(returning, TimedOncelog):
        returning.longest_turn_ms()  # while its modules are loaded nobody waits for it
    until(partial(is_whole, cluster), "whole again")
    rows[f"a {how} broker starts, until all are in sync, s"] = time.monotonic() - began_s

"""What happens to the cluster: each fault begins, lasts for a while that chance chooses, and is mended.

A broker or a ZooKeeper meets one fault at a time, so that mending one does not undo another.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from confluent_kafka import KafkaException

from tests.chaos.cluster.machines import SESSION_S, Cluster, cut_off, joined
from tests.chaos.cluster.moves import move_something
from tests.peers.process import Place

Mend = Callable[[], object]
"""False while it can't be mended yet."""

BROKERS = (1, 2, 3)
KEEPERS = "keepers"
DISK_FAILED = "disk failed"
"""Of one broker at a time, where there is a C compiler."""


@dataclass
class Fault:
    kind: str
    subject: str
    began_s: float
    lasts_s: float
    concerned: frozenset[object]
    mend: Mend
    ended_s: float = 0.0

    def __str__(self) -> str:
        return f"{self.kind} ({self.subject}, {self.lasts_s:.1f} s)"


class Faults:
    """Draws faults, and keeps account of them."""

    def __init__(self, cluster: Cluster, chance: random.Random, topics: list[str], kinds: list[str]) -> None:
        self._cluster = cluster
        self._chance = chance
        self._topics = topics
        self._kinds = kinds
        self._now: list[Fault] = []
        self.past: list[Fault] = []

    @property
    def under_way(self) -> list[str]:
        return [str(fault) for fault in self._now]

    def begin_one(self) -> None:
        """Unless whom it would concern has trouble enough."""
        kind = self._chance.choice(self._kinds)
        taken = frozenset().union(*(fault.concerned for fault in self._now))
        free = [number for number in BROKERS if number not in taken and (kind != DISK_FAILED or kind not in taken)]
        wants = (
            frozenset({KEEPERS})
            if kind in KEEPERS_FAULTS
            else frozenset(BROKERS)
            if kind in EVERYBODYS_FAULTS
            else None
        )
        if (wants is not None and wants & taken) or not free:
            return
        number = self._victim(free)
        lasts_s = self._chance.choice((0.3, 1.0, SESSION_S, 2.5 * SESSION_S))
        began_s = time.monotonic()
        mend = KINDS[kind](self._cluster, number, self._chance)
        concerned = wants or frozenset({number, kind} if kind == DISK_FAILED else {number})
        subject = f"broker {number}" if wants is None else "ZooKeeper" if KEEPERS in concerned else "all brokers"
        self._now.append(Fault(kind, subject, began_s, lasts_s, concerned, mend))
        print(f"  {self._now[-1]}", flush=True)

    def _victim(self, free: list[int]) -> int:
        """Who leads something, as a rule."""
        leader = self._cluster.leader(self._chance.choice(self._topics), 0)
        return leader if leader in free and self._chance.random() < 0.6 else self._chance.choice(free)

    def mend_due(self, *, everything: bool = False) -> None:
        for fault in list(self._now):
            if (everything or time.monotonic() >= fault.began_s + fault.lasts_s) and fault.mend() is not False:
                fault.ended_s = time.monotonic()
                self._now.remove(fault)
                self.past.append(fault)


def killed(cluster: Cluster, number: int, chance: random.Random) -> Mend:
    cluster.kill(number)
    return lambda: cluster.revive(number)


def paused(cluster: Cluster, number: int, chance: random.Random) -> Mend:
    broker = cluster.brokers[number]
    if not broker.running():
        return lambda: None
    broker.pause()
    return broker.resume


def away_from_brokers(cluster: Cluster, number: int, chance: random.Random) -> Mend:
    one, others = _one_and_others(cluster, number)
    cut_off(cluster.network, one, others, both=True)
    return lambda: joined(cluster.network, one, others)


def unheard_by_brokers(cluster: Cluster, number: int, chance: random.Random) -> Mend:
    one, others = _one_and_others(cluster, number)
    cut_off(cluster.network, one, others, both=False)
    return lambda: joined(cluster.network, one, others)


def deaf_to_one_broker(cluster: Cluster, number: int, chance: random.Random) -> Mend:
    one, others = _one_and_others(cluster, number)
    other = chance.choice(others)
    cluster.network.cut(other, one)
    return lambda: cluster.network.mend(other, one)


def away_from_zookeeper(cluster: Cluster, number: int, chance: random.Random) -> Mend:
    one, keepers = cluster.brokers[number].place, [keeper.place for keeper in cluster.keepers]
    cut_off(cluster.network, one, keepers, both=True)
    return lambda: joined(cluster.network, one, keepers)


def unheard_by_zookeeper(cluster: Cluster, number: int, chance: random.Random) -> Mend:
    one, keepers = cluster.brokers[number].place, [keeper.place for keeper in cluster.keepers]
    cut_off(cluster.network, one, keepers, both=False)
    return lambda: joined(cluster.network, one, keepers)


def away_from_everybody(cluster: Cluster, number: int, chance: random.Random) -> Mend:
    """Only clients reach it."""
    one, others = _one_and_others(cluster, number)
    everybody = [*others, *(keeper.place for keeper in cluster.keepers)]
    cut_off(cluster.network, one, everybody, both=True)
    return lambda: joined(cluster.network, one, everybody)


def alone_and_killed(cluster: Cluster, number: int, chance: random.Random) -> Mend:
    """Away from the other brokers for longer than they count as in sync, and then dead: what it alone has is gone."""
    one, others = _one_and_others(cluster, number)
    cut_off(cluster.network, one, others, both=True)
    time.sleep(1.7 * SESSION_S)
    cluster.kill(number)
    joined(cluster.network, one, others)
    return lambda: cluster.revive(number)


def one_keeper_killed(cluster: Cluster, number: int, chance: random.Random) -> Mend:
    keeper = chance.choice(cluster.keepers)
    keeper.stop()
    return keeper.launch


def one_keeper_paused(cluster: Cluster, number: int, chance: random.Random) -> Mend:
    keeper = chance.choice(cluster.keepers)
    keeper.pause()
    return keeper.resume


def all_keepers_killed(cluster: Cluster, number: int, chance: random.Random) -> Mend:
    for keeper in cluster.keepers:
        keeper.stop()

    def mend() -> None:
        for keeper in cluster.keepers:
            keeper.launch()

    return mend


def all_keepers_paused(cluster: Cluster, number: int, chance: random.Random) -> Mend:
    for keeper in cluster.keepers:
        keeper.pause()

    def mend() -> None:
        for keeper in cluster.keepers:
            keeper.resume()

    return mend


def all_killed(cluster: Cluster, number: int, chance: random.Random) -> Mend:
    for each in BROKERS:
        cluster.kill(each)

    def mend() -> None:
        for each in BROKERS:
            cluster.revive(each)

    return mend


def restarted_in_turn(cluster: Cluster, number: int, chance: random.Random) -> Mend:
    """Beside everything else: what befalls the ZooKeepers begins and is mended meanwhile."""

    def restart() -> None:
        for each in BROKERS:
            cluster.restart(each)

    work = threading.Thread(target=restart, name="restarts in turn", daemon=True)
    work.start()
    return lambda: not work.is_alive()


def disk_filled(cluster: Cluster, number: int, chance: random.Random) -> Mend:
    return cluster.fill_disk(number).unlink


def disk_failed(cluster: Cluster, number: int, chance: random.Random) -> Mend:
    """Its broker is restarted with one that is sound, and as a rule empty."""
    failures_before = cluster.brokers[number].disk_failures()
    cluster.fail_disk(number, writes_too=chance.random() < 0.7)
    work = threading.Thread(
        target=cluster.replace_disk,
        args=(number,),
        kwargs={"failures_before": failures_before},
        name=f"broker {number} gets a new disk",
        daemon=True,
    )

    def mend() -> bool:
        if work.ident is None:
            work.start()
        return not work.is_alive()

    return mend


def partitions_moved(cluster: Cluster, number: int, chance: random.Random) -> Mend:
    try:
        move_something(cluster, chance)
    except (KafkaException, OSError, TimeoutError) as failure:
        print(f"  nothing was moved: {failure}", flush=True)
    return lambda: None


def _one_and_others(cluster: Cluster, number: int) -> tuple[Place, list[Place]]:
    places = {each: broker.place for each, broker in cluster.brokers.items()}
    return places.pop(number), list(places.values())


KINDS: dict[str, Callable[[Cluster, int, random.Random], Mend]] = {
    "killed": killed,
    "paused": paused,
    "away from brokers": away_from_brokers,
    "unheard by brokers": unheard_by_brokers,
    "deaf to one broker": deaf_to_one_broker,
    "away from ZooKeeper": away_from_zookeeper,
    "unheard by ZooKeeper": unheard_by_zookeeper,
    "away from everybody": away_from_everybody,
    "alone and killed": alone_and_killed,
    "one keeper killed": one_keeper_killed,
    "one keeper paused": one_keeper_paused,
    "all keepers killed": all_keepers_killed,
    "all keepers paused": all_keepers_paused,
    "all killed": all_killed,
    "restarted in turn": restarted_in_turn,
    "disk filled": disk_filled,
    DISK_FAILED: disk_failed,
    "partitions moved": partitions_moved,
}
KEEPERS_FAULTS = {"one keeper killed", "one keeper paused", "all keepers killed", "all keepers paused"}
EVERYBODYS_FAULTS = {"all killed", "restarted in turn"}

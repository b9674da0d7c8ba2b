"""How long members of very many topics hold the event loop: a coordinator of groups by itself, because so many topics
would take a broker minutes to make. Each decision is timed with what a shard does in the same turn: its records are
applied, and put into a batch. `tests.bench.turns` shows the longest of each kind.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, Final

from log.batch import build_plain_batch
from service.groups.commands import LEAVE_EPOCH, DeleteGroup, PartitionsByTopic
from service.groups.coordinator import GroupCoordinator
from service.groups.verdicts import GroupDecision
from tests.service.groups import driver as drivers
from tests.service.groups.driver import Driver, Topics

TOPICS: Final = 15_000
SETTLED_MS: Final = 10_000  # a new target has been made


class TimedCoordinator(GroupCoordinator):
    began_s = 0.0

    def decide(self, *asked: Any) -> GroupDecision:
        self.began_s = time.thread_time()
        return super().decide(*asked)

    def expire(self, now_ms: int) -> GroupDecision:
        self.began_s = time.thread_time()
        return super().expire(now_ms)


class TimedDriver(Driver):
    longest_s = 0.0

    def _new_machine(self) -> TimedCoordinator:
        wall_ms = lambda: self.now_ms + self.wall_ahead_ms  # noqa: E731
        self.timed = TimedCoordinator(self.settings, self.topics, wall_ms, self.make_kinds)
        return self.timed

    def take(self, decision: GroupDecision) -> None:
        super().take(decision)
        if decision.records:
            build_plain_batch(decision.records, self.now_ms)
        self.longest_s = max(self.longest_s, time.thread_time() - self.timed.began_s)

    def take_longest_ms(self) -> float:
        longest_ms, self.longest_s = self.longest_s * 1000, 0.0
        return longest_ms


class Member:
    def __init__(self, driver: Driver, member_id: str, **said: Any) -> None:
        self.driver, self.member_id, self.said = driver, member_id, said
        self.epoch = 0
        self.owned: PartitionsByTopic = {}

    def beat(self, **says: Any) -> None:
        if self.epoch == 0:
            says |= self.said
        answer = self.driver.beat(self.member_id, self.epoch, **{"owned": self.owned, **says})
        assert answer.fault is None, answer
        self.epoch = answer.member_epoch
        if answer.assignment is not None:
            self.owned = {topic_id: tuple(partitions) for topic_id, partitions in answer.assignment.items()}


def longest_turns() -> Iterator[tuple[str, float]]:
    """What happens, and the longest turn that it takes, in ms. Each is done twice, and the shorter one counts, because
    others on the machine empty the caches.
    """
    names = sorted(f"a topic of which there are very many {number}" for number in range(TOPICS))
    topics = Topics()
    for name in names:
        topics.put(name, 1)
    Member(Driver(topics=topics), "first", subscribed_topics=("none",)).beat()  # what is compiled once is compiled
    subscriptions: dict[str, dict[str, Any]] = {
        "by name": {"subscribed_topics": tuple(names)},
        "by expression": {"subscribed_topics": None, "subscribed_regex": "a topic.*"},
    }
    for how, said in subscriptions.items():
        lives = (_life(TimedDriver(topics=topics), said) for _ in range(2))
        for (what, once_ms), (_, again_ms) in zip(*lives, strict=True):
            yield f"{what}, {TOPICS:,} topics {how}", min(once_ms, again_ms)


def _life(driver: TimedDriver, said: dict[str, Any]) -> Iterator[tuple[str, float]]:
    drivers.REPLAYED_AT_EVERY_STEP = 0  # it would count, too
    one, other = Member(driver, "one", **said), Member(driver, "other", **said)
    one.beat()
    yield "a member joins", driver.take_longest_ms()
    driver.wait(SETTLED_MS)
    yield "its target is made", driver.take_longest_ms()
    one.beat()
    assert len(one.owned) == TOPICS
    yield "it is given all", driver.take_longest_ms()
    one.beat(rebalance_timeout_ms=60_000, **said)
    yield "it says all again", driver.take_longest_ms()
    other.beat()
    driver.wait(SETTLED_MS)
    yield "another joins", driver.take_longest_ms()
    for _ in range(3):
        one.beat()
        other.beat()
    assert len(one.owned) == len(other.owned) == TOPICS // 2
    yield "it is given half", driver.take_longest_ms()
    driver.topics.put("another", 1)
    one.beat()
    driver.wait(SETTLED_MS)
    yield "the metadata change", driver.take_longest_ms()
    yield "a record is replayed", _longest_replay_ms(driver)
    other.beat(member_epoch=LEAVE_EPOCH)
    driver.wait(SETTLED_MS)
    one.beat()
    assert len(one.owned) == TOPICS
    yield "one leaves", driver.take_longest_ms()
    one.beat(member_epoch=LEAVE_EPOCH)
    driver.ask(DeleteGroup("g"))
    assert driver.machine.group("g") is None
    yield "the last one leaves", driver.take_longest_ms()


def _longest_replay_ms(driver: TimedDriver) -> float:
    machine, longest_s = driver._new_machine(), 0.0
    for entry in driver.log:
        for key, value in entry.records:
            began_s = time.thread_time()
            machine.apply(key, value)
            longest_s = max(longest_s, time.thread_time() - began_s)
    driver.timed = driver.machine  # type: ignore[assignment]
    return longest_s * 1000

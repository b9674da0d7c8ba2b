"""How long large groups hold the event loop: members of very many topics, many members that don't all subscribe to the
same, and many expressions. A coordinator of groups by itself, because so many topics would take a broker minutes to
make. Each decision is timed with what a shard does in the same turn: its records are applied, and put into a batch.
`tests.bench.turns` shows the longest of each kind.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, Final

from log.batch import build_plain_batch
from service.broker.replay import LARGE_BYTES
from service.groups.commands import (
    LEAVE_EPOCH,
    NO_MEMBER,
    CommitOffsets,
    CommitTransactionalOffsets,
    DeleteGroup,
    DeleteOffsets,
    OffsetToCommit,
    PartitionsByTopic,
)
from service.groups.coordinator import GroupCoordinator
from service.groups.verdicts import GroupDecision
from tests.service.groups import driver as drivers
from tests.service.groups.driver import Driver, Topics

TOPICS: Final = 15_000
SETTLED_MS: Final = 10_000  # a new target has been made
MEMBERS: Final = 300  # each has named so many topics, and one of them one more
NAMED: Final = 2_000
EXPRESSIONS: Final = 200  # each of another member
MATCHED: Final = 2_000
LOOKED_AT: Final = 5_000  # offsets that may have expired
DELETED: Final = 250  # topics whose offsets one request deletes
IN_TRANSACTION: Final = 500  # topics whose offsets one transaction has
EACH: Final = 100  # partitions of each of these


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
    for life, of in (
        (_life_of_unequal, f"{MEMBERS:,} members, {NAMED:,} topics and one that is one's alone"),
        (_life_of_expressions, f"{EXPRESSIONS:,} expressions over {MATCHED:,} topics"),
        (_life_of_a_transaction, f"{IN_TRANSACTION * EACH:,} offsets"),
    ):
        for (what, once_ms), (_, again_ms) in zip(life(), life(), strict=True):
            yield f"{what}, {of}", min(once_ms, again_ms)


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


def _life_of_unequal() -> Iterator[tuple[str, float]]:
    names = tuple(f"topic {number}" for number in range(NAMED))
    driver = TimedDriver(topics=Topics(**dict.fromkeys((*names, "alone"), 1)))
    Member(driver, "first", subscribed_topics=(*names, "alone")).beat()
    members = [Member(driver, f"m{number}", subscribed_topics=names) for number in range(MEMBERS)]
    for member in members[1:]:
        member.beat()
    driver.wait(SETTLED_MS)
    yield "all join", driver.take_longest_ms()
    for member in members[1 : MEMBERS // 3]:
        member.beat(member_epoch=LEAVE_EPOCH)
    driver.wait(SETTLED_MS)
    yield "a third leave", driver.take_longest_ms()
    for number in range(MEMBERS // 3):
        Member(driver, f"new{number}", subscribed_topics=names).beat()
    driver.wait(SETTLED_MS)
    yield "as many come", driver.take_longest_ms()
    members[-1].beat(subscribed_topics=(*names, "alone"))
    driver.wait(SETTLED_MS)
    yield "another names one topic more", driver.take_longest_ms()


def _life_of_expressions() -> Iterator[tuple[str, float]]:
    driver = TimedDriver(topics=Topics(**{f"topic {number}": 1 for number in range(MATCHED)}, other=LOOKED_AT))
    members = [
        Member(driver, f"m{number}", subscribed_topics=None, subscribed_regex=f"topic.*|{number}")
        for number in range(EXPRESSIONS)
    ]
    for member in members:
        member.beat()
    driver.wait(SETTLED_MS)
    yield "all join", driver.take_longest_ms()
    new = Member(driver, "new", subscribed_topics=("another",))
    new.beat()
    new.beat(subscribed_topics=("another", "topic 1"))
    new.beat(member_epoch=LEAVE_EPOCH)
    members[1].beat(member_epoch=LEAVE_EPOCH)
    yield "one joins, another leaves", driver.take_longest_ms()
    driver.topics.put("topic that is new", 1)
    driver.now_ms += SETTLED_MS
    members[0].beat()
    driver.wait(SETTLED_MS)
    yield "the metadata change", driver.take_longest_ms()
    other = driver.topics.id_of("other")
    offsets = (OffsetToCommit("other", other, partition, 7, 0, "") for partition in range(LOOKED_AT))
    driver.ask(CommitOffsets("g", "m0", None, members[0].epoch, tuple(offsets)))
    driver.take_longest_ms()
    driver.ask(DeleteOffsets("g", tuple((f"none {number}", (0,)) for number in range(DELETED))))
    yield "offsets are deleted", driver.take_longest_ms()
    driver.wait(driver.settings.offsets_retention_check_interval_ms)
    yield "offsets are looked at, and all members are lost", driver.take_longest_ms()


def _life_of_a_transaction() -> Iterator[tuple[str, float]]:
    names = [f"topic {number}" for number in range(IN_TRANSACTION)]
    driver = TimedDriver(topics=Topics(**dict.fromkeys(names, EACH)))
    for committed in (True, False):
        for name in names:
            offsets = tuple(
                OffsetToCommit(name, driver.topics.id_of(name), partition, 7, 0, "") for partition in range(EACH)
            )
            driver.ask(CommitTransactionalOffsets("g", NO_MEMBER, None, -1, offsets, 1, 0))
        yield "committed in a transaction", driver.take_longest_ms()
        driver.wait(driver.settings.offsets_retention_check_interval_ms)
        yield "looked at", driver.take_longest_ms()
        began_s = time.thread_time()
        driver.end_transaction(1, committed=committed)
        yield f"the transaction has {'committed' if committed else 'aborted'}", (time.thread_time() - began_s) * 1000
    assert len(driver.machine.committed("g")) == IN_TRANSACTION and not driver.machine.pending("g")


def _longest_replay_ms(driver: TimedDriver) -> float:
    machine, longest_s = driver._new_machine(), 0.0
    for entry in driver.log:
        for key, value in entry.records:
            began_s = time.thread_time()
            for _ in machine.read_ahead(key, value) if value is not None and len(value) > LARGE_BYTES else ():
                longest_s = max(longest_s, time.thread_time() - began_s)
                began_s = time.thread_time()
            machine.apply(key, value)
            longest_s = max(longest_s, time.thread_time() - began_s)
    driver.timed = driver.machine  # type: ignore[assignment]
    return longest_s * 1000

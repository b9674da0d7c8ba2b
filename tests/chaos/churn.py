"""`make churn`: groups of real clients read a topic as it is written; members and the broker die and stand still.

`python -m tests.chaos.churn --minutes 10 --seed 7`; the seed chooses what befalls whom when, the machine does the rest.
Each group has members of one library and protocol. A member says what it got before it commits, so that a record that
no member ever named was lost. Checked: every record is got at least once by each group, no committed offset goes back,
and in the end every group comes to the end of the topic.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import OFFSET_INVALID, KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from tests import outside
from tests.chaos.run import FEED_PAUSE_SECONDS, PARTITIONS, PEACE_SECONDS, Feeder, end_offsets
from tests.clients.kits import PATIENCE_SECONDS
from tests.clients.members import GroupPlan, Member
from tests.clients.offsets import commits_in_log, committed_offsets
from tests.clients.topics import Topics
from tests.peers import kafka
from tests.peers.ours import Oncelog
from tests.peers.process import QUICK_SETTINGS

MEMBERS = 3
LOOK_SECONDS = 0.5
KINDS = {
    "cooperative": ("confluent-kafka", "cooperative-sticky"),
    "cooperative static": ("confluent-kafka", "cooperative-sticky"),
    "consumer": ("confluent-kafka", "consumer:uniform"),
    "consumer static": ("confluent-kafka", "consumer:uniform"),
    "aiokafka": ("aiokafka", "roundrobin"),
    "kafka-python": ("kafka-python", "range"),
    "java cooperative": ("java", "cooperative-sticky"),
    "java consumer static": ("java", "consumer:uniform"),
}
"""Java's only where there is Java 17 with its compiler, and Maven once."""


@dataclass
class Crew:
    """The members of one group, each started again when it is gone."""

    name: str
    plan: GroupPlan
    members: dict[int, Member] = field(default_factory=dict)
    paused_until: dict[int, float] = field(default_factory=dict)
    got: set[tuple[int, int]] = field(default_factory=set)
    committed: list[int] = field(default_factory=lambda: [OFFSET_INVALID] * PARTITIONS)
    fates: Counter[str] = field(default_factory=Counter)
    last_words: Counter[str] = field(default_factory=Counter)  # of those that gave up

    def keep_running(self) -> None:
        for slot, until in list(self.paused_until.items()):
            if time.monotonic() >= until:
                self.members[slot].resume()
                del self.paused_until[slot]
        for slot in range(MEMBERS):
            member = self.members.get(slot)
            if member is not None and not member.running():
                self.fates["gave up"] += 1
                self.last_words[member.last_words()] += 1
                self.bury(slot)
            if slot not in self.members:
                instance = f"{self.plan.group}-{slot}" if self.name.endswith("static") else None
                self.members[slot] = Member(self.plan, instance)

    def bury(self, slot: int) -> None:
        member = self.members.pop(slot)
        self.paused_until.pop(slot, None)
        member.crash()
        self.got |= member.got

    def suffer(self, chance: random.Random) -> None:
        slot = chance.choice(sorted(self.members))
        fate = chance.choice(("killed", "paused"))
        self.fates[fate] += 1
        if fate == "killed":
            self.bury(slot)
        else:
            self.members[slot].pause()
            self.paused_until[slot] = time.monotonic() + chance.uniform(0.5, 6.0)

    def look(self, bootstrap: str) -> list[str]:
        """Where the group stands; what is wrong with that."""
        before = self.committed
        try:
            self.committed = committed_offsets(bootstrap, self.plan.group, self.plan.topic, PARTITIONS)
        except KafkaException as failure:
            if failure.args[0].code() != KafkaError._TIMED_OUT:
                raise
            self.fates["not told of in time"] += 1  # it is looked at again
        back = [at for at, (now, then) in enumerate(zip(self.committed, before, strict=True)) if now < then]
        if not back:
            return []
        # It is a loss if the log lacks what was committed; else a member has committed less, in its right.
        logged = {at: commits_in_log(bootstrap, self.plan.group, at)[-8:] for at in back}
        told = f"committed offsets went back from {before} to {self.committed}"
        return [f"{self.name}: {told}; last in the log, by partition, are (timestamp, offset) {logged}"]

    def describe(self, bootstrap: str) -> str:
        """What the broker says of the group, and what its members hold."""
        admin = AdminClient({"bootstrap.servers": bootstrap})
        told = admin.describe_consumer_groups([self.plan.group])[self.plan.group].result(PATIENCE_SECONDS)
        held = {slot: member.assigned for slot, member in sorted(self.members.items())}
        shares = {
            member.group_instance_id or member.member_id: [
                place.partition for place in member.assignment.topic_partitions
            ]
            for member in told.members
        }
        return f"{told.state.name}, the broker says {shares}, members say {held}"

    def judge(self, ends: list[int]) -> list[str]:
        every = {(partition, offset) for partition, end in enumerate(ends) for offset in range(end)}
        lost = sorted(every - self.got)
        return [f"{self.name}: nobody got {len(lost)} records, among them {lost[:10]}"] if lost else []


def run(folder: Path, *, seconds: float, seed: int) -> list[str]:
    """What went wrong. Says meanwhile what was done."""
    chance = random.Random(seed)
    if (without_java := outside.missing("javac") or kafka.missing()) is not None:
        print(f"no Java members: {without_java}")
    broker = Oncelog(folder, settings=QUICK_SETTINGS)
    broker.start()
    topic = Topics(broker.bootstrap, "churn").create(partitions=PARTITIONS)
    crews = [
        Crew(name, GroupPlan(client, broker.bootstrap, topic, f"churn-{name.replace(' ', '-')}", protocol))
        for name, (client, protocol) in KINDS.items()
        if client != "java" or without_java is None
    ]
    feeder = Feeder(broker.bootstrap, topic)
    try:
        faults = _churn(chance, time.monotonic() + seconds, broker, crews, feeder)
        feeder.finish()
        ends = end_offsets(broker.bootstrap, topic)
        faults += feeder.failures + _come_to_the_end(broker.bootstrap, crews, ends)
        for crew in crews:
            for slot in list(crew.members):
                crew.bury(slot)
            faults += crew.judge(ends)
            print(f"{crew.name}: members {', '.join(f'{fate} {count}' for fate, count in crew.fates.items())}")
            for words, count in crew.last_words.most_common(3):
                print(f"    {count} with {words[:160]}")
    finally:
        for crew in crews:
            for member in crew.members.values():
                member.end()
        if broker.running():
            broker.kill()
    return faults


def _churn(chance: random.Random, until: float, broker: Oncelog, crews: list[Crew], feeder: Feeder) -> list[str]:
    faults: list[str] = []
    fates: Counter[str] = Counter()
    next_look = next_member = time.monotonic()
    next_broker = next_member + chance.uniform(10, 25)
    looked = 0
    while (now := time.monotonic()) < until:
        for crew in crews:
            crew.keep_running()
        feeder.feed(20)
        if now >= next_look:
            faults += crews[looked % len(crews)].look(broker.bootstrap)
            looked += 1
            next_look = now + LOOK_SECONDS
        if now >= next_member:
            chance.choice(crews).suffer(chance)
            next_member = now + chance.uniform(0.3, 2.0)
        if now >= next_broker:
            fate = chance.choice(("killed", "paused"))
            fates[fate] += 1
            if fate == "killed":
                broker.kill()
                broker.start()
            else:
                broker.pause()
                time.sleep(chance.uniform(0.5, 5.0))
                broker.resume()
            next_broker = time.monotonic() + chance.uniform(10, 25)
        time.sleep(FEED_PAUSE_SECONDS)
    print(f"{feeder.count} records; broker {dict(fates)}; looked at committed offsets {looked} times")
    return faults


def _come_to_the_end(bootstrap: str, crews: list[Crew], ends: list[int]) -> list[str]:
    """Nobody is harmed any more."""
    faults: list[str] = []
    began = time.monotonic()
    waiting = list(crews)
    while waiting and time.monotonic() < began + PEACE_SECONDS:
        for crew in crews:
            crew.keep_running()
        for crew in list(waiting):
            faults += crew.look(bootstrap)
            if crew.committed == ends:
                waiting.remove(crew)
        time.sleep(LOOK_SECONDS)
    print(f"{len(crews) - len(waiting)} of {len(crews)} groups at the end after {time.monotonic() - began:.0f} s")
    return faults + [
        f"{crew.name}: stuck at {crew.committed}, the topic ends at {ends}: {crew.describe(bootstrap)}"
        for crew in waiting
    ]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.churn", description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--seed", type=int)
    chosen = parser.parse_args()
    seed = random.randrange(1 << 32) if chosen.seed is None else chosen.seed
    print(f"seed {seed}, {chosen.minutes:g} minutes", flush=True)
    with tempfile.TemporaryDirectory(prefix="oncelog-churn-") as folder:
        faults = run(Path(folder), seconds=60 * chosen.minutes, seed=seed)
    for fault in faults:
        print(fault)
    print(f"{len(faults)} faults" if faults else "every record was got, no offset went back, no group is stuck")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())

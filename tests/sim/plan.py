"""What one seed decides before a run begins: which faults, how often, how fast the disk is, what the topics look like.

Each seed draws a mixture of its own (a swarm), for a uniform mixture of everything hides bugs that only show when, say,
nothing but power cuts happen in quick succession.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from service.broker.standby import AT_ONCE_BYTES, REST_S
from tests.sim.disk import DiskFaults
from tests.sim.history import Held, Topic

KINDS = (
    "kill",
    "power cut",
    "restart",  # SIGTERM, and up again
    "death in a disk call",
    "power cut in a disk call",
    "death after some callbacks",
    "pause",
    "connections cut",
    "blocked",
    "slow network",
    "wall clock jumps",
    "append fails",
    "fsync fails",
    "disk full",
    "no descriptors",
    "read fails",
    "index rots",
    "log rots",
)
HANGS = ("kill while the disk hangs", "power cut while the disk hangs")
MADE_AGAIN = "death as a topic is made again"
MOVED = "death as a partition moves"
MOVED_ON = "death of what moved and is made again"
SWAPPED = "death in a swap of segments"
RARE = ("log rots", "index rots", "read fails", "fsync fails", "append fails")
POWER_CUTS = ("power cut", "power cut in a disk call")
COSTS_MEMORY = (
    *POWER_CUTS,
    "death after some callbacks",
    "append fails",
    "fsync fails",
)
INPUT, OUTPUT, LEDGER, PASSING, BRIEF, CARRIED = "input", "output", "ledger", "passing", "brief", "carried"
REPEATED = "repeated", "repeated-and-swept"
OLD_MS = 7_200_000
BRIEF_SECONDS = 1.0
"""How long records of that topic are kept."""
ALWAYS_TEMPTING = ("kill", "power cut", "power cut in a disk call")


@dataclass(frozen=True, slots=True)
class TopicPlan:
    topic: Topic
    configs: dict[str, str]


@dataclass(slots=True)
class Plan:
    durability: str
    settings: dict[str, str]
    topics: tuple[TopicPlan, ...]
    kinds: tuple[str, ...]
    calm_seconds: float
    down_seconds: float
    fault_seconds: float
    disk: DiskFaults
    writers: int
    pace_seconds: float
    in_flight: int
    records_per_batch: int
    value_bytes: int
    store_delay_seconds: float
    store_loss: float
    folders: tuple[str, ...] = ("data",)
    transactional: bool = False
    brokers: int = 1
    answers_lost: float = 0.0  # of those that brokers give each other
    replication: int = 1
    busy_logs: bool = False  # who wants a log for himself often waits, as if others were at work on it
    shortens: bool = False  # a log begins in the middle of transactions that are open
    haunts: bool = False  # who has given a producer id up goes on writing beside the next who has it
    repeats: bool = False  # acknowledged batches are sent again when compaction and retention may have removed them
    carries: bool = False  # one compacted topic alone moves between the folders, slowly
    standby_bytes: int = AT_ONCE_BYTES  # how much a follower reads of a coordinator's log at once
    standby_rest_s: float = REST_S  # and how long it rests before it goes on
    late_markers: bool = False  # of older clients, of which there are more then
    moves: bool = False  # partitions are given to other brokers, and other replicas are made to lead

    def held(self, acks: int) -> Held:
        """What an acknowledgement with these acks promises."""
        if acks == 0:
            return Held.NOTHING
        return Held.POWER_CUT if acks == -1 and self.durability == "fsync" else Held.KILL

    @property
    def bears_power_cuts(self) -> bool:
        """What transactions promise, memory alone does not survive."""
        return not (self.transactional and self.durability == "os")

    @property
    def loses_acknowledged(self) -> bool:
        """The machine loses power, and with it what was acknowledged and not synced."""
        return self.durability == "os" and self.bears_power_cuts and not {*POWER_CUTS}.isdisjoint(self.kinds)

    @property
    def may_lose_memory(self) -> bool:
        """The machine may lose power, and with it what was acknowledged: also while its disk hangs."""
        return self.durability == "os" and self.bears_power_cuts

    @property
    def visible_held(self) -> Held:
        """What a record below the high watermark survives."""
        return Held.POWER_CUT if self.durability == "fsync" else Held.KILL


JUDGED_BY_TIME = {
    # What a broker forgets by its clock is looked at all the time, and nothing that clients send is refused for it.
    "transaction.remove.expired.transaction.cleanup.interval.ms": "1000",
    "producer.id.expiration.check.interval.ms": "1000",
    "log.message.timestamp.after.max.ms": "9223372036854775807",
}


def draw_plan(chance: random.Random) -> Plan:
    plan = _draw_plain_plan(chance)
    if chance.random() < 0.4:
        add_transactions(plan, chance)
    if "wall clock jumps" in plan.kinds:
        plan.settings |= JUDGED_BY_TIME
    plan.settings["log.reserve.bytes"] = str(chance.choice((0, 2000, 20_000)))
    return plan


def add_what_one_broker_has(plan: Plan, chance: random.Random) -> None:
    """Beside what clusters have too."""
    configs = {"retention.ms": str(int(1000 * BRIEF_SECONDS)), "segment.ms": "60000"}
    brief = Topic(BRIEF, 1, retained=True, retention_seconds=BRIEF_SECONDS, trimmed=True, quiet=True)
    plan.topics += (TopicPlan(brief, configs),)
    if chance.random() < 0.3:
        plan.settings["log.flush.offset.checkpoint.interval.ms"] = "200"
    for kind in HANGS if plan.bears_power_cuts else HANGS[:1]:
        if chance.random() < (0.5 if plan.transactional else 0.2):
            plan.kinds += (kind,)
    if chance.random() < 0.3:
        plan.kinds += (MADE_AGAIN,)
    if chance.random() < 0.5 and len(plan.folders) > 1:
        plan.kinds += (MOVED, MOVED)
    if chance.random() < 0.3 and len(plan.folders) > 1:
        plan.kinds += (MOVED_ON,)
        plan.settings["log.flush.offset.checkpoint.interval.ms"] = "1000"
    if chance.random() < 0.15 and len(plan.folders) > 1:
        plan.carries = True
        plan.settings["log.cleaner.backoff.ms"] = "300"
        compaction = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "delete.retention.ms": "0"}
        carried = Topic(CARRIED, 1, compacted=True, quiet=True)
        plan.topics += (TopicPlan(carried, {"segment.ms": "200", **compaction}),)
    elif len(plan.folders) > 1 and chance.random() < 0.5:
        plan.folders += ("other",)
    if chance.random() < 0.2:
        plan.kinds += (SWAPPED, SWAPPED)
    if chance.random() > 0.8:
        plan.busy_logs = True
        plan.settings["log.retention.check.interval.ms"] = "500"
    plan.shortens = chance.random() > 0.6 and any(
        each.topic.name == PASSING and each.topic.trimmed for each in plan.topics
    )
    plan.haunts = plan.transactional and chance.random() < 0.4
    if chance.random() < 0.3 and not plan.may_lose_memory:
        plan.repeats = True
        plan.settings["log.cleaner.backoff.ms"] = "100"
        plan.topics += _draw_repeated(chance)


def _draw_repeated(chance: random.Random) -> tuple[TopicPlan, ...]:
    """Segments end and are compacted all the time, and of the second topic the first goes soon: its records say that
    they are twice as old as may be.
    """
    configs = {
        "segment.ms": "200",
        "min.cleanable.dirty.ratio": "0.01",
        "delete.retention.ms": chance.choice(("0", "0", "300")),
    }
    kept, swept = REPEATED
    return (
        TopicPlan(Topic(kept, 1, compacted=True, quiet=True), {**configs, "cleanup.policy": "compact"}),
        TopicPlan(
            Topic(swept, 1, compacted=True, retained=True, quiet=True),
            {**configs, "cleanup.policy": "compact,delete", "retention.ms": str(OLD_MS // 2)},
        ),
    )


def add_transactions(plan: Plan, chance: random.Random) -> None:
    """The exactly-once workload beside a smaller one of the other."""
    plan.transactional = True
    plan.writers = 1
    plan.topics += tuple(
        TopicPlan(Topic(name, 2, transactional=True), _draw_segments(chance)) for name in (INPUT, OUTPUT)
    )
    compaction = {
        "segment.ms": chance.choice(("200", "1000")),
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": "0.01",
        "delete.retention.ms": chance.choice(("0", "1000", "86400000")),
    }
    plan.topics += (
        TopicPlan(Topic(LEDGER, 1, compacted=True, transactional=True), _draw_segments(chance) | compaction),
    )
    plan.topics += (_draw_passing(chance),)
    plan.settings |= {
        "transaction.state.log.num.partitions": str(chance.choice((1, 2))),
        "transaction.two.phase.commit.enable": "true",
        "group.consumer.min.session.timeout.ms": "2000",
        "group.consumer.session.timeout.ms": "2000",
        "group.consumer.min.heartbeat.interval.ms": "500",
        "group.consumer.heartbeat.interval.ms": "500",
    }
    if not plan.bears_power_cuts:
        kept = tuple(kind for kind in plan.kinds if kind not in COSTS_MEMORY)
        plan.kinds = kept or ("kill",)


def _draw_passing(chance: random.Random) -> TopicPlan:
    """Its log begins further on all the time, within transactions, too: by age, by size, or because clients ask so."""
    by = chance.choice(("age", "size", "clients", "clients"))
    retention = {
        "age": {"retention.ms": "3000"},
        "size": {"retention.bytes": str(chance.choice((1000, 20_000)))},
        "clients": {},
    }[by]
    topic = Topic(
        PASSING,
        1,
        retained=by != "clients",
        retention_seconds=3.0 if by == "age" else None,
        trimmed=by == "clients" or chance.random() < 0.5,
        transactional=True,
    )
    return TopicPlan(topic, _draw_segments(chance) | retention)


def _draw_plain_plan(chance: random.Random) -> Plan:
    durability = chance.choice(("fsync", "fsync", "os"))
    likely = chance.choice((0.15, 0.3, 0.6))
    kinds = [kind for kind in KINDS if chance.random() < (likely / 2 if kind in RARE else likely)]
    return Plan(
        durability=durability,
        settings=_draw_settings(chance, durability),
        topics=_draw_topics(chance),
        kinds=tuple(kinds or [chance.choice(ALWAYS_TEMPTING)]),
        calm_seconds=chance.choice((0.3, 1.0, 3.0)),
        down_seconds=chance.choice((0.02, 0.5, 5.0)),
        fault_seconds=chance.choice((6.0, 12.0)),
        disk=_draw_disk(chance),
        writers=chance.choice((1, 2, 4)),
        pace_seconds=chance.choice((0.02, 0.05, 0.2)),
        in_flight=chance.choice((1, 2, 5)),
        records_per_batch=chance.choice((1, 3, 10)),
        value_bytes=chance.choice((5, 100, 700, 3000)),
        store_delay_seconds=chance.choice((0.0, 0.002, 0.02)),
        store_loss=chance.choice((0.0, 0.0, 0.02)),
        folders=chance.choice((("data",), ("data", "more"))),
    )


def _draw_disk(chance: random.Random) -> DiskFaults:
    return DiskFaults(
        fsync_seconds=chance.choice((0.0005, 0.002, 0.01, 0.03)),
        stall_chance=chance.choice((0.0, 0.01, 0.05)),
        stall_seconds=chance.choice((0.2, 2.0)),
        eviction=chance.choice((0.0, 0.02)),
    )


def _draw_settings(chance: random.Random, durability: str) -> dict[str, str]:
    return {
        "log.durability": chance.choice((durability, "auto")) if durability == "fsync" else durability,  # on one broker
        "log.retention.check.interval.ms": str(chance.choice((500, 2000))),
        "log.cleaner.backoff.ms": str(chance.choice((300, 2000))),
        "log.flush.offset.checkpoint.interval.ms": str(chance.choice((1000, 4000, 60_000))),  # longer than most runs
        "offsets.topic.num.partitions": str(chance.choice((1, 3))),
        "log.roll.ms": str(chance.choice((500, 3000, 60_000))),  # for __consumer_offsets
        "log.index.size.max.bytes": str(chance.choice((24, 80, 10_000))),
        "log.index.interval.bytes": str(chance.choice((100, 600, 4096))),
        "group.initial.rebalance.delay.ms": "100",
    }


def _draw_topics(chance: random.Random) -> tuple[TopicPlan, ...]:
    plain = TopicPlan(Topic("plain", chance.choice((1, 3))), _draw_segments(chance))
    trimmed = TopicPlan(Topic("trimmed", 1, trimmed=True), _draw_segments(chance))
    by_age = chance.random() < 0.5
    retained = TopicPlan(
        Topic("retained", 1, retained=True, retention_seconds=3.0 if by_age else None, trimmed=chance.random() < 0.3),
        {
            **_draw_segments(chance),
            **({"retention.ms": "3000"} if by_age else {"retention.bytes": str(chance.choice((1000, 20_000)))}),
        },
    )
    swept = TopicPlan(
        Topic("swept", 1, compacted=True, retained=True, retention_seconds=3.0, trimmed=True),
        {
            **_draw_segments(chance),
            "segment.ms": chance.choice(("200", "500")),
            "cleanup.policy": "compact,delete",
            "retention.ms": "3000",
            "min.cleanable.dirty.ratio": "0.01",
            "delete.retention.ms": chance.choice(("0", "1000")),
        },
    )
    compacted = TopicPlan(
        Topic("compacted", 1, compacted=True),
        {
            **_draw_segments(chance),
            "cleanup.policy": "compact",
            "min.cleanable.dirty.ratio": chance.choice(("0.01", "0.5")),
            "delete.retention.ms": chance.choice(("0", "1000", "86400000")),
        },
    )
    stamped = TopicPlan(Topic("stamped", 1), {**_draw_segments(chance), "message.timestamp.type": "LogAppendTime"})
    return (plain, trimmed, retained, swept, compacted, stamped)


def _draw_segments(chance: random.Random) -> dict[str, str]:
    """Segments end by time or because their index is full: they can't be asked to be smaller than a megabyte."""
    return {
        "segment.ms": str(chance.choice((200, 1000, 5000, 60_000))),
        "segment.index.bytes": str(chance.choice((24, 80, 400))),
        "index.interval.bytes": str(chance.choice((50, 500, 4096))),
        "compression.type": chance.choice(("producer", "producer", "producer", "zstd", "uncompressed")),
    }

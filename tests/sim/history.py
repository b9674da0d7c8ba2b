"""What clients did and saw in one run, and what befell the broker meanwhile: the only thing the checkers look at.

What always holds: every operation has the virtual time it began and, unless it never ended, the time it ended. An
operation whose answer did not come is `UNKNOWN`: it may have happened, may still happen, or never will. `FAILED` is
said only where the broker said that nothing was changed.

Written by `tests.sim.workload`, judged by `tests.sim.checkers`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum, IntEnum

from log.ids import TopicPartition

NEVER = float("inf")
UNTOLD = 2**63 - 1
"""Where a reader was not told how far its partition is stable."""


class Outcome(Enum):
    OK = "ok"
    FAILED = "failed"
    UNKNOWN = "unknown"


class Held(IntEnum):
    """The crashes that an acknowledged or visible record survives, by the promised durability."""

    NOTHING = 0
    KILL = 1  # the end of the broker's process
    POWER_CUT = 2  # the end of the broker's machine


@dataclass(frozen=True, slots=True)
class Record:
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None


@dataclass(slots=True)
class Write:
    """One batch sent to one partition. Its values are unique in the run and never sent again."""

    writer: str
    connection: int  # requests of one connection take effect in the order they were sent
    partition: TopicPartition
    records: tuple[tuple[bytes | None, bytes | None], ...]  # key, value
    acks: int
    held: Held
    invoked: float
    completed: float = NEVER
    outcome: Outcome = Outcome.UNKNOWN
    base_offset: int = -1
    error: str = ""
    stamped: float = 0.0  # the newest timestamp of its records, as a moment of the run
    last_stamped: float = 0.0  # the timestamp of its last record


@dataclass(slots=True)
class Read:
    """One answered fetch: everything a reader was given from `from_offset` up to, not including, `to_offset`."""

    reader: str
    partition: TopicPartition
    from_offset: int
    to_offset: int
    records: tuple[Record, ...]
    high_watermark: int
    log_start_offset: int
    held: Held
    invoked: float
    completed: float


@dataclass(slots=True)
class Commit:
    """A group's offset for a partition, sent to be remembered. Each (group, partition) is committed by one client,
    never less than before.
    """

    group: str
    partition: TopicPartition
    offset: int
    held: Held
    invoked: float
    completed: float = NEVER
    outcome: Outcome = Outcome.UNKNOWN
    error: str = ""


@dataclass(slots=True)
class CommitSeen:
    """The answer to the question for a group's offset; -1: none."""

    group: str
    partition: TopicPartition
    offset: int
    invoked: float
    completed: float


@dataclass(slots=True)
class Deletion:
    """Everything below `before_offset` was to be deleted."""

    partition: TopicPartition
    before_offset: int
    held: Held
    invoked: float
    completed: float = NEVER
    outcome: Outcome = Outcome.UNKNOWN


@dataclass(slots=True)
class Listed:
    """The answer to ListOffsets: `asked` is a timestamp or one of Kafka's negative codes."""

    partition: TopicPartition
    asked: int
    offset: int
    timestamp: int
    held: Held
    invoked: float
    completed: float


@dataclass(slots=True)
class Transaction:
    """One transaction, as its owner knows it. FAILED: an abort was acknowledged, or a commit was never asked for."""

    number: int
    transactional_id: str
    producer_id: int
    epoch: int
    began: float
    values: list[tuple[TopicPartition, bytes]] = field(default_factory=list)  # in the order they were sent
    consumed: dict[TopicPartition, tuple[int, int]] = field(default_factory=dict)  # input taken: from, up to
    group: str = ""
    end_invoked: float = NEVER
    completed: float = NEVER
    outcome: Outcome = Outcome.FAILED
    committed_asked: bool = False
    many_writers: bool = False  # each in an order of its own


@dataclass(frozen=True, slots=True)
class TokenTold:
    """A client was told which token of a root was decided last, and by which attempt."""

    root: str
    token: int
    by: str
    invoked: float
    completed: float


@dataclass(frozen=True, slots=True)
class Owned:
    """A client was told that a transactional id is its own from now on, under this producer id and epoch."""

    transactional_id: str
    producer_id: int
    epoch: int
    told: float


@dataclass(slots=True)
class CommittedRead:
    """One answered fetch under read_committed, after the reader's own filter."""

    reader: str
    partition: TopicPartition
    from_offset: int
    to_offset: int
    records: tuple[Record, ...]
    last_stable_offset: int
    high_watermark: int
    held: Held
    invoked: float
    completed: float


@dataclass(slots=True)
class Reborn:
    """One life of the topic that is deleted and created again."""

    topic_id: bytes
    known: float  # since when a client knows of it
    deletion_invoked: float = NEVER
    deleted: float = NEVER  # when its deletion was acknowledged


@dataclass(slots=True)
class RebornWrite:
    """A batch sent to one life of that topic, by its id."""

    topic_id: bytes
    values: tuple[bytes, ...]
    held: Held
    invoked: float
    completed: float = NEVER
    outcome: Outcome = Outcome.UNKNOWN
    base_offset: int = -1


@dataclass(slots=True)
class RebornRead:
    """Everything that one life of that topic held, by its id."""

    topic_id: bytes
    records: tuple[tuple[int, bytes | None], ...]
    high_watermark: int
    held: Held
    invoked: float
    completed: float = NEVER


@dataclass(slots=True)
class SettingSet:
    """A setting of a topic or of all brokers was to be changed."""

    resource: str
    key: str
    value: str
    invoked: float
    completed: float = NEVER
    outcome: Outcome = Outcome.UNKNOWN


@dataclass(frozen=True, slots=True)
class SettingSeen:
    resource: str
    key: str
    value: str
    invoked: float
    completed: float


@dataclass(frozen=True, slots=True)
class Crash:
    """The broker went down: `power` if the machine did, not only the process."""

    at: float
    power: bool


@dataclass(slots=True)
class FinalLog:
    """One partition after everything healed, read from its start to its high watermark."""

    start_offset: int
    end_offset: int
    records: tuple[Record, ...]
    committed: tuple[Record, ...] = ()  # what read_committed shows of it
    last_stable_offset: int = -1
    read_at: float = NEVER  # compaction may have taken from it since


@dataclass(frozen=True, slots=True)
class Topic:
    """What the run asked of a topic."""

    name: str
    partitions: int
    compacted: bool = False
    retained: bool = False  # old segments go by size or age
    retention_seconds: float | None = None  # by age alone
    trimmed: bool = False  # clients delete records
    transactional: bool = False  # markers take offsets of their own
    quiet: bool = False  # one client alone writes here, now and then

    @property
    def passes(self) -> bool:
        """Its records go, the oldest first."""
        return self.retained or self.trimmed


@dataclass(slots=True)
class History:
    topics: dict[str, Topic] = field(default_factory=dict)
    replicas_compact: bool = False
    """Several replicas, each of which compacts in its own time."""
    writes: list[Write] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)
    commits: list[Commit] = field(default_factory=list)
    commits_seen: list[CommitSeen] = field(default_factory=list)
    deletions: list[Deletion] = field(default_factory=list)
    listed: list[Listed] = field(default_factory=list)
    transactions: list[Transaction] = field(default_factory=list)
    owned: list[Owned] = field(default_factory=list)
    tokens_told: list[TokenTold] = field(default_factory=list)
    committed_reads: list[CommittedRead] = field(default_factory=list)
    reborn: list[Reborn] = field(default_factory=list)
    moved_on: int = 0
    """How often it was moved out of a folder that had noted it, and then made again."""
    reborn_writes: list[RebornWrite] = field(default_factory=list)
    reborn_reads: list[RebornRead] = field(default_factory=list)
    settings_set: list[SettingSet] = field(default_factory=list)
    settings_seen: list[SettingSeen] = field(default_factory=list)
    clock_jumped: bool = False  # the broker's wall clock was set: nothing is said about ages any more
    unheard: list[tuple[float, float]] = field(default_factory=list)
    """When a leader may not have known that it was replaced. It lets read what its successor has deleted."""
    crashes: list[Crash] = field(default_factory=list)
    rotten: dict[TopicPartition, float] = field(default_factory=dict)  # a stored bit was flipped at that time
    final: dict[TopicPartition, FinalLog] = field(default_factory=dict)
    after_restart: dict[TopicPartition, FinalLog] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)  # answers that are wrong in themselves
    stuck: list[str] = field(default_factory=list)  # actors that did not get through although everything had healed

    def power_cut_between(self, since: float, until: float = NEVER) -> bool:
        for crash in self.crashes:  # noqa: SIM110 - asked for each read record: a generator costs more
            if crash.power and since <= crash.at <= until:
                return True
        return False

    def life(self, since: float, until: float) -> int | None:
        """The life of the broker in which this interval lies, counted from 1; None if it spans several."""
        before = sum([crash.at < since for crash in self.crashes])
        return before + 1 if before == sum([crash.at <= until for crash in self.crashes]) else None

    def excused(self, held: Held, since: float, until: float = NEVER) -> bool:
        """Whether what survives only such crashes may be lost by `until`, if it was held since then."""
        return held is Held.NOTHING or (held is Held.KILL and self.power_cut_between(since, until))

    def may_be_outdated(self, since: float, until: float) -> bool:
        """Whether a leader that was replaced may have answered what was asked in this interval."""
        return any(since <= heard and until >= begun for begun, heard in self.unheard)

    def partitions(self) -> Iterable[TopicPartition]:
        for topic in self.topics.values():
            for index in range(topic.partitions):
                yield TopicPartition(topic.name, index)

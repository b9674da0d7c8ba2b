"""One coordinator of groups, its members and what befalls them, from a seed: the real machine in a world of its own.

Simulated are the network (requests and answers come late or never), the log (what was not yet durable is lost with the
coordinator) and the clock. A run goes: members of all kinds come, work, sleep, die and come back, topics grow and are
made again, the wall clock is set, operators delete, the coordinator dies at any step; then everything heals, and within
`SETTLE_MS` every partition of a topic subscribed to must have its one owner. A run takes a fifth of a second, so that
thousands can be had.

Checked throughout: no partition has two owners, no committed offset goes back, nothing is read that no transaction has
committed, no offset expires before its time, none comes back that an operator has deleted, of an instance's processes
all but the last to join are fenced, nothing raises. And after each decision and each marker the machine that lives
equals one that has only read the log, but for the epochs that are in no record. No member that was told its epoch is
fenced at it, and none that sends heartbeats and lets go is thrown out.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from service.groups.classic_group import ClassicGroup
from service.groups.commands import (
    JOIN_EPOCH,
    NO_MEMBER,
    Command,
    CommitOffsets,
    CommitTransactionalOffsets,
    ConsumerHeartbeat,
    DeleteGroup,
    DeleteOffsets,
    FetchOffsets,
    ForgetTopic,
    Heartbeat,
    JoinGroup,
    JoinReply,
    OffsetToCommit,
    SyncGroup,
)
from service.groups.consumer_group import ConsumerGroup
from service.groups.coordinator import GroupCoordinator
from service.groups.offsets import CommittedOffset
from service.groups.records import offset_key, read_offset_key
from service.groups.settings import ConsumerTimes, GroupSettings
from service.groups.verdicts import Fault, GroupDecision
from tests.service.groups.driver import Entry, Topics, with_soft_epochs_of
from tests.sim.group_compaction import compacted

CHAOS_MS = 40_000
SETTLE_MS = 60_000
SESSION_MS = 3_000
REBALANCE_MS = 20_000
BEAT_MS = 500
ANSWER_WITHIN_MS = 1_500
BORN_MS = 1_700_000_000_000  # by the wall clock: a stamp of before 2001 tells nothing
RETENTIONS_MS = (7 * 24 * 60 * 60_000, 7 * 24 * 60 * 60_000, 5_000, 10_000)
TOLD_OF_DELETION_MS = (0, 100, 3_000)
CUTS = 5  # up to which the log is compacted, of each run

KINDS = ("classic", "static", "consumer", "static consumer")
INSTANCES = ("static", "static", "static consumer", "classic")  # many restarts may take a group to the other protocol

# All list the first one, so all go together. Each has an order of its own, and some name one twice.
ONE = {"range": (("range",),), "cooperative": (("cooperative",),)}
SEVERAL = {
    each: ((each,), (each, f"{each} 2"), (f"{each} 2", each), (each, f"{each} 2", each)) for each in ONE
}  # fmt: skip
CLOCK = ("clock", "clock")
OPERATOR = ("delete offsets", "delete offsets", "delete group", "all go", "all go")
SET_AHEAD_MS = (2 * 60 * 60_000, 3 * 24 * 60 * 60_000)  # a smaller jump ahead is ignored, see log/clock.py
UNNOTICED = -1  # no life of a coordinator
SET_BACK_MS = (700, 30_000, 2 * 60 * 60_000, 3 * 24 * 60 * 60_000)

# What names the instance whose process has sent it.
OF_PROCESSES = JoinGroup | SyncGroup | Heartbeat | ConsumerHeartbeat | CommitOffsets | CommitTransactionalOffsets

OFFSETS = offset_key("", "", 0)[:2]  # what the keys of offsets begin with

Partition = tuple[bytes, int]


class Broken(Exception):
    """A promise was broken."""


@dataclass(slots=True)
class Plan:
    policy: str
    cooperative: bool
    kinds: tuple[str, ...]
    interval_ms: int
    loss: float
    late_ms: int
    deaths: float  # of the coordinator, for each decision
    deaths_in_rebalances: float  # between the answers to all that have joined and the leader's assignment
    mishap_ms: int  # between two mishaps of members and topics
    commits_in_transactions: float
    hangs: float  # of members of the consumer protocol that are to let go of something
    converts: float  # of static members whose next process speaks the other protocol
    done_at_once: tuple[int, int]  # in one turn: steps of a target assignment, and members that are taken care of
    assignors: tuple[tuple[str, ...], ...]  # what a classic member may list
    impatient: float  # members that leave others no time in a rebalance
    keeps_ms: tuple[int, ...]  # retentions that commits of old clients say
    more_mishaps: tuple[str, ...]  # what befalls the group in this run besides
    offsets_retention_ms: int = 7 * 24 * 60 * 60_000
    switches: float = 0.0  # of classic members that are to join or to sync, and go on by the new protocol instead
    lingers: float = 0.0  # of classic members that are to join
    forgotten_at_once: tuple[int, int] = (1_000, 500)  # in one turn: offsets that are looked at, and that go
    renames: bool = False  # whether members of the new protocol may come back under their ids as other instances
    comes_back: float = 0.0  # of static members of the new protocol that leave: they come back under their own ids


def draw_plan(chance: random.Random) -> Plan:
    kinds = chance.choice((KINDS, KINDS, KINDS[:2], KINDS[2:], INSTANCES))
    converts = 0.0 if len(kinds) < len(KINDS) else chance.choice((0.3, 0.7) if kinds is INSTANCES else (0.0, 0.0, 0.5))
    cooperative = chance.random() < 0.5
    return Plan(
        policy=chance.choice(("bidirectional", "upgrade", "downgrade", "disabled")),
        cooperative=cooperative,
        kinds=tuple(chance.choice(kinds) for _ in range(chance.randint(2, 5))),
        interval_ms=chance.choice((0, 1_000)),
        loss=chance.choice((0.0, 0.02, 0.1)),
        late_ms=chance.choice((5, 50, 4_000)),
        deaths=chance.choice((0.0, 0.002, 0.02)),
        deaths_in_rebalances=chance.choice((0.0, 0.2, 0.7)),
        mishap_ms=chance.choice((300, 1_500, 5_000)),
        commits_in_transactions=chance.choice((0.0, 0.3)),
        hangs=chance.choice((0.0, 0.3, 1.0)),
        converts=converts,
        done_at_once=chance.choice(((2_000, 300), (2_000, 1), (3, 1), (1, 1))),
        assignors=chance.choice((ONE, ONE, SEVERAL))["cooperative" if cooperative else "range"],
        impatient=chance.choice((0.0, 0.0, 0.3)),
        keeps_ms=chance.choice(((-1,), (-1,), (-1, 0, 5_000))),
        more_mishaps=chance.choice(((), (), CLOCK, OPERATOR, CLOCK + OPERATOR)),
    )


@dataclass(slots=True)
class Transaction:
    offsets: dict[Partition, int]
    removed: dict[Partition, int]  # how often the offset of each had been removed when it began
    decided: bool | None = None


class Reads(Protocol):
    name: str
    topics: tuple[str, ...]

    @property
    def is_over(self) -> bool:
        """No coordinator has answered the member for a session, so it reads no more, or will not when it wakes."""
        ...

    @property
    def is_replaced(self) -> bool:
        """Another process has joined as the same instance, so this one is fenced when it is next heard of."""
        ...

    @property
    def is_put_out(self) -> bool:
        """The group went on without the member, which had been given no time, or was removed. It does not know yet."""
        ...


@dataclass
class Board:
    """The knowledge of all members together: which member reads what, and how far each partition was committed."""

    owners: dict[Partition, Reads] = field(default_factory=dict)
    acknowledged: dict[Partition, int] = field(default_factory=dict)
    never: dict[tuple[Partition, int], None] = field(default_factory=dict)  # of transactions undecided or aborted
    removed: Counter[Partition] = field(default_factory=Counter)  # how often its offset was, by its age or an operator
    deleted: dict[tuple[Partition, int], None] = field(default_factory=dict)  # as operators were told
    values: int = 0
    assigned_for: tuple[tuple[bytes, int], ...] = ()  # the topics as the last leader saw them that assigned

    def take(self, owner: Reads, partition: Partition) -> None:
        other = self.owners.get(partition)
        if other is not None and not (other.is_over or other.is_replaced or other.is_put_out):
            if owner.is_put_out:
                return  # its answer is older than that
            raise Broken(f"OneOwner: {owner.name} was given {partition}, which {other.name} reads")
        self.owners[partition] = owner

    def release(self, owner: Reads, partition: Partition) -> None:
        if self.owners.get(partition) is owner:
            del self.owners[partition]

    def remove(self, partition: Partition) -> None:
        self.acknowledged.pop(partition, None)
        self.removed[partition] += 1

    def acknowledge(self, partition: Partition, value: int) -> None:
        self.acknowledged[partition] = max(value, self.acknowledged.get(partition, -1))

    def read(self, partition: Partition, value: int, at_least: int) -> None:
        if value < at_least:
            raise Broken(f"OffsetsNeverGoBack: {partition} was committed up to {at_least} and is at {value}")
        if (partition, value) in self.never:
            raise Broken(f"OnlyCommittedIsRead: {partition} is at {value}, which no transaction has committed")
        if (partition, value) in self.deleted:
            raise Broken(f"TheDeletedIsGone: {partition} is at {value}, which an operator has deleted")

    def fresh(self) -> int:
        self.values += 1
        return self.values


class GroupWorld:
    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.plan = draw_plan(self.chance)
        self.plan.offsets_retention_ms = random.Random(f"retention {seed}").choice(RETENTIONS_MS)
        others = random.Random(f"others {seed}")
        self.plan.switches = others.choice((0.0, 0.0, 0.05, 0.3))
        self.plan.renames = others.random() < 0.4
        self.plan.forgotten_at_once = others.choice(((1_000, 500), (1_000, 1), (1, 1)))
        self.plan.lingers = random.Random(f"lingers {seed}").choice((0.0, 0.0, 0.0, 0.1, 0.3))
        self.plan.comes_back = random.Random(f"comes back {seed}").choice((0.0, 0.0, 0.5, 1.0))
        self.now_ms = 1_000_000
        self.ahead_ms = 0  # how far the wall clock has been set ahead
        self.clock_set: dict[int, int] = {}  # ahead: when that was, and in which life of the coordinator
        self.healed = False
        # Members may be put out of the group without having been told: by others, or by an operator.
        self.is_hasty = self.plan.impatient > 0 or "all go" in self.plan.more_mishaps
        self.to_die_letting_go: dict[str, None] = {}  # once, in peace: static members by their lineages
        self.board = Board()
        self.topics = Topics(orders=self.chance.randint(1, 6), events=self.chance.randint(1, 3))
        self.log: list[Entry] = []
        self.durable = 0
        self.deaths = 0
        self.machine: GroupCoordinator | None = None
        self.reader: GroupCoordinator  # has read the same log, and decides nothing
        self.transactions: dict[int, Transaction] = {}
        self.members: list[Any] = []
        self.last_to_join: dict[str | None, Any] = {}  # by instance: the process that was let in last, durably
        self._joins: list[tuple[int, str | None, Any]] = []  # since then, with how long the log must be for each
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._order = 0
        self._tokens = 0
        self._asked: dict[object, Callable[[Any], None]] = {}
        self._to_go: dict[tuple[Partition, int], None] = {}  # the offsets of groups that are being deleted
        self.committed_ms: dict[int, int] = {}  # by the steady clock; each committed value is another
        self.committed_for: dict[int, bytes] = {}  # the id of its topic, which old clients don't name
        self._life = 0
        self._steady_ahead_ms = 0
        self._timer_ms: int | None = None
        self.start_coordinator()

    @property
    def wall_ms(self) -> int:
        return BORN_MS + self.now_ms + self.ahead_ms

    @property
    def steady_ms(self) -> int:
        """The clock of this coordinator: it goes on from where the wall clock stood at its start."""
        return self.now_ms + self._steady_ahead_ms

    def set_clock(self) -> None:
        ahead_ms = self.chance.choice((*SET_AHEAD_MS, *(-each for each in SET_BACK_MS)))
        self.ahead_ms += ahead_ms
        if ahead_ms > 0:
            # One that has looked at no clock yet can't know.
            is_noticed = self.machine is not None and self.machine._is_live
            self.clock_set[self.now_ms] = self._life if is_noticed else UNNOTICED

    # Time -------------------------------------------------------------------------------------------------------------

    def after(self, ms: int, do: Callable[[], None]) -> None:
        self._order += 1
        heapq.heappush(self._events, (self.now_ms + ms, self._order, do))

    def run_until(self, end_ms: int) -> None:
        while self._events and self._events[0][0] <= end_ms:
            self.now_ms, _, do = heapq.heappop(self._events)
            do()
        self.now_ms = end_ms

    # Network ----------------------------------------------------------------------------------------------------------

    def delay(self) -> int:
        is_late = not self.healed and self.chance.random() < 0.15
        return self.chance.randint(1, self.plan.late_ms if is_late else 5)

    def is_lost(self) -> bool:
        return not self.healed and self.chance.random() < self.plan.loss

    def ask(self, command: Command, answered: Callable[[Any], None], *, sender: Any = None) -> None:
        """`answered` is called with the reply, with None if there is no coordinator, or never."""
        if not self.is_lost():
            self.after(self.delay(), lambda: self._arrive(command, answered, sender))

    def _arrive(self, command: Command, answered: Callable[[Any], None], sender: Any) -> None:
        if self.machine is None:
            self.after(self.delay(), lambda: answered(None))
            return
        if isinstance(command, CommitOffsets | CommitTransactionalOffsets) and self._is_of_a_deleted_topic(command):
            self.after(self.delay(), lambda: answered(None))  # the handler refuses it: no coordinator hears of it
            return
        self._tokens += 1
        self._asked[self._tokens] = answered
        decision = self.machine.decide(command, self._tokens, self.steady_ms)
        if isinstance(command, CommitOffsets | CommitTransactionalOffsets) and decision.records:
            self.committed_ms[command.offsets[0].offset] = self.now_ms
            self.committed_for[command.offsets[0].offset] = command.offsets[0].topic_id
            self._check_commit(command.group_id, command.offsets[0])
        if isinstance(command, FetchOffsets) and command.require_stable:
            self._check_stable(dict(decision.answers)[self._tokens])
        if isinstance(command, DeleteOffsets | DeleteGroup):
            self._note_deleted(command, self._tokens, dict(decision.answers).get(self._tokens))
        joined: tuple[str | None, Any] | None = None
        if isinstance(command, OF_PROCESSES) and sender is not None:
            reply: Any = dict(decision.answers).get(self._tokens)
            if isinstance(command, JoinGroup) and reply is not None:
                self._check_protocol(command, reply, sender)
            if _joins_anew(command):
                # It is never to be fenced itself: that is no refusal, and the check of who is fenced finds it.
                if reply is None or reply.fault in (None, Fault.FENCED_INSTANCE_ID):
                    joined = command.instance_id, sender
            elif command.instance_id is not None and (reply is None or reply.fault is None):
                self._check_it_is_the_last(command.instance_id, sender)
        self._carry_out(decision, joined=joined)

    def _check_stable(self, reply: Any) -> None:
        """Who reads on from an offset that an open transaction is about to move would read some records twice."""
        assert self.machine is not None
        told = [(topic, each) for topic in reply.topics for each in topic.offsets if each.fault is None]
        open_now = [each.offsets for each in self.transactions.values() if each.decided is None]
        for topic, each in told:
            partition = topic.topic_id, each.partition
            waiting = {offsets[partition] for offsets in open_now if partition in offsets}
            known = self.machine._offsets.all_of("g", topic.topic, each.partition)
            if any(one.offset in waiting and one.topic_id == topic.topic_id for one in known):
                raise Broken(f"StableOffsetsAreWaitedFor: {each.offset} of {partition} is told before the next one")

    def _is_of_a_deleted_topic(self, command: CommitOffsets | CommitTransactionalOffsets) -> bool:
        return any(self.topics.by_id(offset.topic_id) is None for offset in command.offsets)

    def _check_protocol(self, ask: JoinGroup, reply: JoinReply, sender: Any) -> None:
        """All list the first assignor. But after a restart of the coordinator only the chosen one is known."""
        if reply.fault is Fault.INCONSISTENT_GROUP_PROTOCOL:
            group: Any = None if self.machine is None else self.machine._groups[ask.group_id]
            speak = [getattr(member, "classic", member) for member in group.members.values()]
            known = [dict(each.protocols) for each in speak if each is not None]
            if any(all(name in names for names in known) for name, _ in ask.protocols):
                raise Broken(f"WhatAllSupportIsTaken: {sender.name} is refused, which knows {sender.assignors}")

    def _check_it_is_the_last(self, instance: str, sender: Any) -> None:
        """A process is answered well only as long as no other has joined as the same instance. One that goes on under
        the member id of another one is the same.
        """
        joined = [process for _, each, process in self._joins if each == instance]
        last = joined[-1] if joined else self.last_to_join[instance]
        if last is not sender and last.member_id != sender.member_id:
            raise Broken(
                f"TheReplacedAreFenced: {sender.name} is answered well, and another process joined as {instance}"
            )

    def _check_commit(self, group_id: str, offset: OffsetToCommit) -> None:
        """A member that may commit a partition has it to itself, so each commit is ahead of all earlier ones."""
        assert self.machine is not None
        known = self.machine._offsets.get(group_id, offset.topic, offset.partition)
        if known is not None and known.topic_id == offset.topic_id and known.offset > offset.offset:
            raise Broken(f"OffsetsNeverGoBack: {offset.offset} is taken for {offset.topic}, which is at {known.offset}")

    # The coordinator --------------------------------------------------------------------------------------------------

    def start_coordinator(self) -> None:
        policy, interval_ms = self.plan.policy, self.plan.interval_ms
        times = ConsumerTimes(SESSION_MS, BEAT_MS, interval_ms)
        settings = GroupSettings(
            group_initial_rebalance_delay_ms=100,
            group_min_session_timeout_ms=1,
            new_member_join_timeout_ms=10_000,
            consumer_times=lambda group_id: times,
            group_consumer_migration_policy=policy,
            offsets_retention_ms=self.plan.offsets_retention_ms,
            offsets_retention_check_interval_ms=self.plan.offsets_retention_ms // 5,
        )
        self._settings = settings
        self._life += 1
        self._steady_ahead_ms = BORN_MS + self.ahead_ms
        self.machine = self.replayed(self.log)
        self.reader = self.replayed(self.log)
        self._timer_ms = None
        self._set_timer()

    def replayed(self, log: Sequence[Entry]) -> GroupCoordinator:
        machine = GroupCoordinator(self._settings, self.topics, lambda: self.wall_ms)
        for entry in log:
            _read(machine, entry)
        return machine

    def check_replay(self) -> None:
        """To replay the whole log at each step would take longer than the run. The reader is what a replay makes: it
        got each entry when it was written.
        """
        if self.machine is None:
            return
        live = self.machine.durable_facts()
        if live != with_soft_epochs_of(live, self.reader.durable_facts()):
            raise Broken("LiveEqualsReplay: the machine that lives is not what its log makes")

    def check_log(self) -> None:
        """A fresh replay makes what the reader is, and so does one of the compacted log."""
        facts = self.replayed(self.log).durable_facts()
        if self.machine is not None and facts != self.reader.durable_facts():
            raise Broken("LiveEqualsReplay: what the reader was told is not what is in the log")
        whole, chance = without_empty(facts), random.Random(len(self.log))
        for _ in range(CUTS):
            if whole != without_empty(self.replayed(compacted(self.log, chance)).durable_facts()):
                raise Broken("CompactionChangesNothing: the compacted log makes another machine")

    def _carry_out(self, decision: GroupDecision, *, joined: tuple[str | None, Any] | None = None) -> None:
        machine = self.machine
        assert machine is not None
        if self._dies():
            return  # before anything was written
        for key, value in decision.records:
            machine.apply(key, value, producer_id=decision.producer_id)
        if decision.records:
            self._append(Entry(decision.records, decision.producer_id))
            self._check_target()
        self.check_replay()
        if joined is not None:
            self._joins.append((len(self.log), *joined))
        if self._dies():
            return  # written, perhaps not durable, and not answered
        life, end = self._life, len(self.log)
        self.after(1, lambda: self._commit(life, end, decision))
        self._set_timer()

    def _check_target(self) -> None:
        """A whole target gives no partition to two members."""
        group = None if self.machine is None else self.machine._groups.get("g")
        if not isinstance(group, ConsumerGroup) or group.epoch > group.assignment_epoch:
            return  # a new one is still being written, or its coordinator died meanwhile
        given = [
            (topic_id, partition)
            for target in group.target.values()
            for topic_id, partitions in target.items()
            for partition in partitions
        ]
        if len(given) != len(set(given)):
            raise Broken(f"OneTarget: {sorted(each for each, count in Counter(given).items() if count > 1)}")

    def _append(self, entry: Entry) -> None:
        self.log.append(entry)
        _read(self.reader, entry)

    def _commit(self, life: int, end: int, decision: GroupDecision) -> None:
        if life != self._life:
            return
        self.durable = max(self.durable, end)
        self._note_joins()
        if self._dies():
            return  # durable, and not answered
        for token, reply in decision.answers:
            answered = self._asked.pop(token, None)
            if answered is not None and not self.is_lost():
                self.after(self.delay(), lambda answered=answered, reply=reply: answered(reply))  # type: ignore[misc]
        if any(isinstance(reply, JoinReply) and reply.members for _, reply in decision.answers):
            self._leader_is_told()

    def _note_joins(self) -> None:
        while self._joins and self._joins[0][0] <= self.durable:
            _, instance, process = self._joins.pop(0)
            self.last_to_join[instance] = process

    def _leader_is_told(self) -> None:
        if not self.healed and self.chance.random() < self.plan.deaths_in_rebalances:
            life = self._life
            self.after(self.chance.randint(2, 8), lambda: self.kill_coordinator() if life == self._life else None)

    def _dies(self) -> bool:
        if self.machine is None or self.healed or self.chance.random() >= self.plan.deaths:
            return self.machine is None
        self.kill_coordinator()
        return True

    def kill_coordinator(self) -> None:
        self.deaths += 1
        self.machine = None
        self._life += 1
        for answered in self._asked.values():
            if not self.is_lost():  # the connection breaks
                self.after(self.delay(), lambda answered=answered: answered(None))  # type: ignore[misc]
        self._asked.clear()
        del self.log[self.chance.randint(self.durable, len(self.log)) :]
        self.durable = len(self.log)
        self._note_joins()
        self._joins.clear()
        if self.chance.random() < 0.3:
            self.plan.policy = draw_plan(self.chance).policy
        self.after(self.chance.choice((10, 500, 4_000)), self.start_coordinator)

    def _set_timer(self) -> None:
        assert self.machine is not None
        due_ms = self.machine.next_deadline_ms()
        if due_ms is None:
            return
        due_ms = max(due_ms - self._steady_ahead_ms, self.now_ms)
        if self._timer_ms is not None and self.now_ms < self._timer_ms <= due_ms:
            return
        self._timer_ms = due_ms
        life = self._life
        # Others may ask before what is due at once.
        late_ms = self.chance.choice((0, 0, 30))
        self.after(due_ms - self.now_ms + late_ms, lambda: self._expire(life, due_ms))

    def _expire(self, life: int, due_ms: int) -> None:
        if life == self._life and self.machine is not None and due_ms == self._timer_ms:
            self._timer_ms = None
            decision = self.machine.expire(self.steady_ms)
            self._check_expired(decision)
            self._carry_out(decision)

    def _check_expired(self, decision: GroupDecision) -> None:
        """Of topics that there are, only what was committed before the retention's beginning goes. What goes with its
        group was noted when that began.
        """
        for partition, known in self._removed_by(decision):
            if (partition, known.offset) in self._to_go:
                continue
            self.board.remove(partition)
            retention_ms = self.plan.offsets_retention_ms
            if known.expire_timestamp_ms is not None:  # the client said for how long
                retention_ms = known.expire_timestamp_ms - known.commit_timestamp_ms
            since_ms = self.committed_ms[known.offset]
            set_since = [(at_ms, life) for at_ms, life in self.clock_set.items() if at_ms >= since_ms]
            if any(life != self._life for _, life in set_since):
                continue  # another coordinator lived then, so this one can't know that the offset is younger
            age_ms = self.now_ms - max((at_ms for at_ms, _ in set_since), default=since_ms)
            if age_ms < retention_ms:
                raise Broken(f"OnlyOldOffsetsExpire: {known.offset} of {partition} was committed {age_ms} ms ago")

    def _removed_by(self, decision: GroupDecision) -> list[tuple[Partition, CommittedOffset]]:
        names = [read_offset_key(key) for key, value in decision.records if value is None and key[:2] == OFFSETS]
        return self._known_of(names)

    def _known_of(self, names: Iterable[tuple[str, str, int]]) -> list[tuple[Partition, CommittedOffset]]:
        """The offsets of topics that there are, those of open transactions, too."""
        assert self.machine is not None
        known_of: list[tuple[Partition, CommittedOffset]] = []
        for group_id, topic, partition in names:
            for known in self.machine._offsets.all_of(group_id, topic, partition):
                # Old clients name no id. The topic may have been made again since.
                facts = self.topics.by_id(self.committed_for.get(known.offset, known.topic_id))
                if facts is not None:
                    known_of.append(((facts.topic_id, partition), known))
        return known_of

    def _note_deleted(self, ask: DeleteOffsets | DeleteGroup, token: int, reply: Any) -> None:
        """What an operator deletes: nobody may be reading there, and it never comes back once the operator was told.
        The answer says what that is, and not the records that were written for it. The deletion of a group may take
        several turns. Then the answer comes later; but once it has begun, all that the group has must go.
        """
        removed = self._known_of(self._deleted_names(ask, reply))
        for partition, known in removed:
            reader = self.board.owners.get(partition)
            # A restarted instance is given what its predecessor had, until the group rebalances.
            is_wanted = reader is not None and self.topics.name_of(partition[0]) in reader.topics
            if reader is not None and is_wanted and not (reader.is_over or reader.is_replaced or reader.is_put_out):
                raise Broken(f"WhatIsReadIsKept: {known.offset} of {partition} is deleted, which {reader.name} reads")
            self.board.remove(partition)
        has_begun = reply is None
        if has_begun:
            self._to_go.update(((partition, known.offset), None) for partition, known in removed)
        answered = self._asked[token]

        def told(reply: Any) -> None:
            if has_begun and reply is not None and reply.fault is Fault.NON_EMPTY_GROUP:
                raise Broken(f"WhatIsBegunIsDone: {ask.group_id} has not been deleted, and lacks offsets of {removed}")
            if reply is not None:
                self.board.deleted.update(((partition, known.offset), None) for partition, known in removed)
            answered(reply)

        self._asked[token] = told

    def _deleted_names(self, ask: DeleteOffsets | DeleteGroup, reply: Any) -> list[tuple[str, str, int]]:
        assert self.machine is not None
        offsets, group_id = self.machine._offsets, ask.group_id
        if reply is not None and reply.fault is not None:
            return []
        if isinstance(ask, DeleteOffsets):
            return [(group_id, name, each) for name, parts in reply.topics for each, fault in parts if fault is None]
        topics = offsets.topics_of(group_id)
        return [(group_id, name, each) for name in topics for each in offsets.partitions(group_id, name)]

    def knows(self, member_id: str, epoch: int) -> bool:
        """Whether the group has this member, and is not ahead of it. Without a coordinator the log says it, and while a
        group is asleep it has no members yet.
        """
        machine = self.machine
        if machine is None or not machine._is_live or "g" in machine._asleep:
            machine = self.replayed(self.log)
            machine.expire(self.steady_ms)
        group = machine._groups.get("g")
        if group is None or member_id not in group.members:
            return False
        return not isinstance(group, ClassicGroup) or group.generation == epoch

    def is_ahead_of_the_log(self, member_id: str) -> bool:
        """Whether a member of a consumer group has an epoch that is in no record."""
        known = []
        for machine in (self.machine, self.reader):
            group = None if machine is None else machine._groups.get("g")
            member = group.members.get(member_id) if isinstance(group, ConsumerGroup) else None
            known.append(-1 if member is None else member.member_epoch)
        return known[0] > known[1] >= 0

    def is_free(self, partition: Partition) -> bool:
        """Whether a consumer group knows of nobody who may be reading the partition."""
        group = None if self.machine is None else self.machine._groups.get("g")
        return isinstance(group, ConsumerGroup) and not group.is_held(*partition)

    # Transactions and topics ------------------------------------------------------------------------------------------

    def open_transaction(self, offsets: dict[Partition, int]) -> int:
        producer_id = len(self.transactions) + 1
        removed = {partition: self.board.removed[partition] for partition in offsets}
        self.transactions[producer_id] = Transaction(offsets, removed)
        self.board.never.update(dict.fromkeys(offsets.items()))
        return producer_id

    def end_transaction(self, producer_id: int, *, committed: bool) -> None:
        """Its marker is written; while there is no coordinator's log to write to, that is tried again."""
        transaction = self.transactions[producer_id]
        if transaction.decided is not None:
            return
        if self.machine is None:
            self.after(100, lambda: self.end_transaction(producer_id, committed=committed))
            return
        transaction.decided = committed
        self.machine.apply_marker(producer_id, 0, committed)
        self._append(Entry(producer_id=producer_id, marker=committed))
        self.check_replay()
        self.durable = len(self.log)  # a marker is answered for when it is durable, with all before it
        if committed:
            for partition, value in transaction.offsets.items():
                self.board.never.pop((partition, value), None)
                if transaction.removed[partition] == self.board.removed[partition]:
                    self.board.acknowledge(partition, value)

    def make_topic_anew(self, name: str) -> None:
        """The coordinator is told after a while: the broker has other topics to follow. Meanwhile members commit for
        the new topic.
        """
        facts = self.topics.by_name(name)
        assert facts is not None
        self.topics.remove(name)
        self.topics.put(name, self.chance.randint(1, 6))
        self.after(self.chance.choice(TOLD_OF_DELETION_MS), lambda: self._tell_to_forget(name, facts.topic_id))

    def _tell_to_forget(self, name: str, topic_id: bytes) -> None:
        if self.machine is not None:  # otherwise the next one finds out by itself
            self._tokens += 1
            decision = self.machine.decide(ForgetTopic(name, topic_id), self._tokens, self.steady_ms)
            self._check_expired(decision)
            self._carry_out(decision)


def _read(machine: GroupCoordinator, entry: Entry) -> None:
    for key, value in entry.records:
        machine.apply(key, value, producer_id=entry.producer_id)
    if entry.marker is not None:
        machine.apply_marker(entry.producer_id, 0, entry.marker)


def _joins_anew(command: Command) -> bool:
    """Whether its sender takes the place of any other process of its instance."""
    if isinstance(command, JoinGroup):
        return command.member_id == NO_MEMBER
    return isinstance(command, ConsumerHeartbeat) and command.member_epoch == JOIN_EPOCH


def without_empty(facts: Any) -> Any:
    """Without groups that hold nothing and have no record: an offset that was deleted or aborted made them."""
    groups, offsets = facts
    return {name: known for name, known in groups.items() if known is not None}, _without_nothing(offsets)


def _without_nothing(facts: Any) -> Any:
    """Nor with places for what a transaction had, or a tombstone took."""
    if isinstance(facts, tuple) and type(facts) is tuple:
        return tuple(map(_without_nothing, facts))
    if isinstance(facts, dict):
        inner = {key: _without_nothing(value) for key, value in facts.items()}
        return {key: value for key, value in inner.items() if value != {}}
    return facts

"""Drives a GroupCoordinator as the broker does, with a list for a log and a number for a clock.

Whatever is decided is applied and logged at once, so that `restart` can replay it into a new machine.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from service.groups.commands import (
    ClassicGroupFacts,
    CommitOffsets,
    CommitReply,
    CommitTransactionalOffsets,
    ConsumerGroupFacts,
    ConsumerHeartbeat,
    ConsumerHeartbeatReply,
    DeleteGroup,
    DescribeClassicGroup,
    DescribeConsumerGroup,
    FaultReply,
    FetchOffsets,
    FetchReply,
    Heartbeat,
    JoinGroup,
    JoinReply,
    LeaveGroup,
    LeaveReply,
    LeavingMember,
    ListGroups,
    ListReply,
    NameGroups,
    NameOffsets,
    NamesReply,
    OffsetNamesReply,
    OffsetToCommit,
    PartitionsAsked,
    SyncGroup,
)
from service.groups.consumer_group import ConsumerGroup
from service.groups.consumer_protocol import write_assignment
from service.groups.coordinator import GroupCoordinator
from service.groups.kinds import MakeKinds
from service.groups.known_kinds import known_kinds
from service.groups.settings import ConsumerTimes, GroupSettings
from service.groups.states import MemberState
from service.groups.topics import TopicFacts
from service.groups.verdicts import Fault, GroupDecision, RecordPair, batch_bytes
from service.wire.codec import encode_data
from service.wire.messages import ConsumerProtocolSubscription, ConsumerProtocolSubscriptionTopicPartition

PENDING = "pending"
REPLAYED_AT_EVERY_STEP = 50  # batches of the log; a longer one is replayed at restarts only


class Topics:
    """A cluster image in miniature. Ids are the topic's name and how often it was made."""

    def __init__(self, **counts: int) -> None:
        self.version = 0
        self._made: dict[str, int] = {}
        self._facts: dict[str, TopicFacts] = {}
        self._by_id: dict[bytes, TopicFacts] = {}
        for name, partitions in counts.items():
            self.put(name, partitions)

    def put(self, name: str, partitions: int) -> TopicFacts:
        self.version += 1
        if name not in self._facts:
            self._made[name] = self._made.get(name, 0) + 1
        topic_id = f"{name}#{self._made[name]}".encode().rjust(16, b".")[-16:]
        facts = self._facts[name] = self._by_id[topic_id] = TopicFacts(topic_id, name, partitions)
        return facts

    def remove(self, name: str) -> None:
        self.version += 1
        del self._by_id[self._facts.pop(name).topic_id]

    def id_of(self, name: str) -> bytes:
        return self._facts[name].topic_id

    def by_name(self, name: str) -> TopicFacts | None:
        return self._facts.get(name)

    def by_id(self, topic_id: bytes) -> TopicFacts | None:
        return self._by_id.get(topic_id)

    def name_of(self, topic_id: bytes) -> str | None:
        facts = self.by_id(topic_id)
        return None if facts is None else facts.name

    def names(self) -> Iterable[str]:
        return list(self._facts)


@dataclass(frozen=True, slots=True)
class Entry:
    """One batch of the log: records, perhaps of a transaction, or a transaction's end."""

    records: tuple[RecordPair, ...] = ()
    producer_id: int = -1
    marker: bool | None = None


@dataclass
class Driver:
    settings: GroupSettings = field(default_factory=GroupSettings)
    topics: Topics = field(default_factory=lambda: Topics(orders=4, events=3))
    now_ms: int = 1_700_000_000_000
    wall_ahead_ms: int = 0  # how far the wall clock is ahead of the steady one
    log: list[Entry] = field(default_factory=list)
    answers: dict[object, Any] = field(default_factory=dict)
    tokens: int = 0
    most_answers: int = 0  # of one decision
    most_bytes: int = 0  # of the records of one decision
    make_kinds: MakeKinds = known_kinds

    def __post_init__(self) -> None:
        self.machine = self._new_machine()

    def _new_machine(self) -> GroupCoordinator:
        return GroupCoordinator(self.settings, self.topics, lambda: self.now_ms + self.wall_ahead_ms, self.make_kinds)

    # The machine's sides --------------------------------------------------------------------------------------------

    def ask(self, command: Any) -> Any:
        """The reply, or PENDING if the command's answer waits; its token is then `last_token`."""
        self.tokens += 1
        self.take(self.machine.decide(command, self.tokens, self.now_ms))
        return self.answers.get(self.tokens, PENDING)

    def start(self, command: Any) -> int:
        """Ask something that may have to wait, and give the token under which its answer is or will be."""
        self.ask(command)
        return self.tokens

    def take(self, decision: GroupDecision) -> None:
        for key, value in decision.records:
            self.machine.apply(key, value, producer_id=decision.producer_id, producer_epoch=decision.producer_epoch)
        if decision.records:
            self.log.append(Entry(decision.records, decision.producer_id))
            self.most_bytes = max(self.most_bytes, batch_bytes(decision.records))
            if len(self.log) <= REPLAYED_AT_EVERY_STEP:
                self.check_replay()
        self.most_answers = max(self.most_answers, len(decision.answers))
        for token, reply in decision.answers:
            assert token not in self.answers, "answered twice"
            self.answers[token] = reply

    def wait(self, ms: int) -> None:
        """Let time pass, with everything that falls due meanwhile."""
        end_ms = self.now_ms + ms
        while (due_ms := self.machine.next_deadline_ms()) is not None and due_ms <= end_ms:
            self.now_ms = max(due_ms, self.now_ms)
            self.take(self.machine.expire(self.now_ms))
        self.now_ms = end_ms

    def end_transaction(self, producer_id: int, *, committed: bool) -> None:
        self.machine.apply_marker(producer_id, 0, committed)
        self.log.append(Entry(producer_id=producer_id, marker=committed))

    def replayed(self) -> GroupCoordinator:
        machine = self._new_machine()
        for entry in self.log:
            for key, value in entry.records:
                machine.apply(key, value, producer_id=entry.producer_id)
            if entry.marker is not None:
                machine.apply_marker(entry.producer_id, 0, entry.marker)
        return machine

    def check_replay(self) -> None:
        """The machine that lives is the one that its log makes."""
        live, read = self.machine.durable_facts(), self.replayed().durable_facts()
        assert live == with_soft_epochs_of(live, read)

    def restart(self, *, down_ms: int = 0) -> None:
        self.check_replay()
        self.machine = self.replayed()
        # Every shard's steady clock begins where the wall clock stands.
        self.now_ms += self.wall_ahead_ms + down_ms
        self.wall_ahead_ms = 0

    def set(self, settings: GroupSettings) -> None:
        """A restart with other settings."""
        self.settings = settings
        self.restart()

    # Commands in short ----------------------------------------------------------------------------------------------

    def join_command(
        self,
        group: str = "g",
        member: str = "",
        *,
        topics: tuple[str, ...] = ("orders",),
        owned: tuple[tuple[str, list[int]], ...] = (),
        assignors: tuple[str, ...] = ("range",),
        **changes: Any,
    ) -> JoinGroup:
        self.tokens += 1  # also a source of fresh ids
        metadata = subscription(topics, owned)
        command = JoinGroup(
            group_id=group,
            member_id=member,
            instance_id=None,
            protocol_type="consumer",
            protocols=tuple((name, metadata) for name in assignors),
            session_timeout_ms=10_000,
            rebalance_timeout_ms=60_000,
            client_id="c",
            client_host="/127.0.0.1",
            fresh_id=f"fresh{self.tokens}",
        )
        return command._replace(**changes)

    def member_id(self, group: str = "g", **changes: Any) -> str:
        """The id that a new dynamic member is given."""
        reply = self.ask(self.join_command(group, **changes))
        assert reply.fault is Fault.MEMBER_ID_REQUIRED
        return str(reply.member_id)

    def join(self, group: str = "g", member: str = "", **changes: Any) -> Any:
        return self.ask(self.join_command(group, member, **changes))

    def start_join(self, group: str = "g", member: str = "", **changes: Any) -> int:
        return self.start(self.join_command(group, member, **changes))

    def sync(
        self,
        reply: JoinReply,
        group: str = "g",
        assignments: dict[str, bytes] | None = None,
        **changes: Any,
    ) -> Any:
        command = SyncGroup(
            group,
            reply.generation,
            reply.member_id,
            None,
            reply.protocol_type,
            reply.protocol_name,
            tuple((assignments or {}).items()),
        )
        return self.ask(command._replace(**changes))

    def heartbeat(self, reply: JoinReply, group: str = "g", **changes: Any) -> Fault | None:
        answer = self.ask(Heartbeat(group, reply.generation, reply.member_id, None)._replace(**changes))
        assert isinstance(answer, FaultReply)
        return answer.fault

    def leave(self, *members: str | LeavingMember, group: str = "g") -> LeaveReply:
        leaving = tuple(LeavingMember(each, None) if isinstance(each, str) else each for each in members)
        answer = self.ask(LeaveGroup(group, leaving))
        assert isinstance(answer, LeaveReply)
        return answer

    def stable_group(self, group: str = "g", members: int = 1, **changes: Any) -> list[JoinReply]:
        """A group of this many members in its first generation, all assigned `b"<their place>"`; the leader first."""
        tokens = [self.start_join(group, self.member_id(group, **changes), **changes) for _ in range(members)]
        self.wait(7_000)
        joined = [self.answers[token] for token in tokens]
        joined.sort(key=lambda reply: reply.member_id != reply.leader)
        followers = [self.ask_sync_later(reply, group) for reply in joined[1:]]
        assigned = self.sync(
            joined[0], group, {reply.member_id: str(place).encode() for place, reply in enumerate(joined)}
        )
        assert assigned.assignment == b"0"
        assert [self.answers[token].assignment for token in followers] == [
            str(place).encode() for place in range(1, members)
        ]
        return joined

    def ask_sync_later(self, reply: JoinReply, group: str = "g") -> int:
        assert self.sync(reply, group) == PENDING
        return self.tokens

    def commit(
        self,
        offset: int = 7,
        *,
        group: str = "g",
        member: str = "",
        generation: int = -1,
        topic: str = "orders",
        partition: int = 0,
        metadata: str = "",
        **changes: Any,
    ) -> Fault | None:
        """The fault of the whole request, or else of its one offset."""
        facts = self.topics.by_name(topic)
        topic_id = bytes(16) if facts is None else facts.topic_id
        one = OffsetToCommit(topic, topic_id, partition, offset, 5, metadata)
        answer = self.ask(CommitOffsets(group, member, None, generation, (one,))._replace(**changes))
        assert isinstance(answer, CommitReply)
        return answer.fault if answer.fault is not None else answer.faults[0]

    def commit_in_transaction(
        self,
        producer_id: int,
        offset: int = 7,
        *,
        group: str = "g",
        member: str = "",
        generation: int = -1,
        topic: str = "orders",
        partition: int = 0,
        metadata: str = "",
        instance: str | None = None,
    ) -> Fault | None:
        facts = self.topics.by_name(topic)
        topic_id = bytes(16) if facts is None else facts.topic_id
        one = OffsetToCommit(topic, topic_id, partition, offset, 5, metadata)
        answer = self.ask(CommitTransactionalOffsets(group, member, instance, generation, (one,), producer_id, 0))
        assert isinstance(answer, CommitReply)
        return answer.fault if answer.fault is not None else answer.faults[0]

    def fetch(self, group: str = "g", *, stable: bool = False, **changes: Any) -> FetchReply:
        known = self.ask(NameOffsets(group))
        assert isinstance(known, OffsetNamesReply)
        answer = self.ask(FetchOffsets(group, None, -1, known.topics, stable)._replace(**changes))
        assert isinstance(answer, FetchReply)
        return answer

    def committed(self, group: str = "g", topic: str = "orders", partition: int = 0, *, stable: bool = False) -> Any:
        """The committed offset, -1 without one, or the fault in its place."""
        asked = PartitionsAsked(topic, bytes(16), (partition,))
        (one,) = self.fetch(group, stable=stable, topics=(asked,)).topics[0].offsets
        return one.offset if one.fault is None else one.fault

    def classic(self, group: str = "g") -> ClassicGroupFacts:
        answer = self.ask(DescribeClassicGroup(group))
        assert isinstance(answer, ClassicGroupFacts)
        return answer

    def consumer(self, group: str = "g") -> ConsumerGroupFacts:
        answer = self.ask(DescribeConsumerGroup(group))
        assert isinstance(answer, ConsumerGroupFacts)
        return answer

    def delete_group(self, group: str = "g") -> Fault | None:
        answer = self.ask(DeleteGroup(group))
        assert isinstance(answer, FaultReply)
        return answer.fault

    def listed(self, *, states: tuple[str, ...] = (), types: tuple[str, ...] = ()) -> dict[str, tuple[str, str, str]]:
        named = self.ask(NameGroups())
        assert isinstance(named, NamesReply)
        answer = self.ask(ListGroups(named.group_ids, states, types))
        assert isinstance(answer, ListReply)
        return {facts.group_id: (facts.type, facts.state, facts.protocol_type) for facts in answer.groups}

    def beat(self, member: str, epoch: int, group: str = "g", **changes: Any) -> ConsumerHeartbeatReply:
        """A heartbeat of the consumer protocol that says nothing new; `epoch` 0 joins."""
        self.tokens += 1
        command = ConsumerHeartbeat(
            group_id=group,
            member_id=member,
            member_epoch=epoch,
            instance_id=None,
            rack_id=None,
            rebalance_timeout_ms=60_000 if epoch == 0 else -1,
            subscribed_topics=("orders",) if epoch == 0 else None,
            subscribed_regex=None,
            server_assignor=None,
            owned={} if epoch == 0 else None,
            client_id="c",
            client_host="/127.0.0.1",
            fresh_id=f"fresh{self.tokens}",
        )
        answer = self.ask(command._replace(**changes))
        assert isinstance(answer, ConsumerHeartbeatReply)
        return answer

    def named(self, reply: ConsumerHeartbeatReply) -> dict[str, list[int]] | None:
        """A reply's assignment by topic name."""
        if reply.assignment is None:
            return None
        named = {}
        for topic_id, partitions in reply.assignment.items():
            facts = self.topics.by_id(topic_id)
            named[facts.name if facts is not None else "gone"] = sorted(partitions)
        return named


def with_soft_epochs_of(live: Any, read: Any) -> Any:
    """The durable facts that were read from a log, as they may stand in a machine that goes on from there. All that may
    differ is the epoch of a stable member of the consumer protocol. It may be ahead, up to that of the target. The one
    before is then not below the recorded one.
    """
    (groups, _), (known, offsets) = live, read
    return {group_id: _with_soft_epochs(groups.get(group_id), known[group_id]) for group_id in known}, offsets


def _with_soft_epochs(live: object, read: object) -> object:
    if not isinstance(live, ConsumerGroup) or not isinstance(read, ConsumerGroup):
        return read
    ahead = {
        recorded.member_id: recorded._replace(member_epoch=member.member_epoch, previous_epoch=member.previous_epoch)
        for recorded in read.members.values()
        if (member := live.members.get(recorded.member_id)) is not None
        and recorded.state is MemberState.STABLE
        and recorded.classic is None
        and 0 < recorded.member_epoch < member.member_epoch <= read.assignment_epoch
        and recorded.member_epoch <= member.previous_epoch <= member.member_epoch
    }
    tallies = replace(read.tallies, stable_at=read.tallies.stable_at.copy())
    for member_id, member in ahead.items():
        tallies.count_state(read.members[member_id], -1)
        tallies.count_state(member, 1)
    return replace(read, members=read.members | ahead, tallies=tallies)


class Unwalked(dict[str, Any]):
    """Members that may be looked up, one by one."""

    def __iter__(self) -> Any:
        raise AssertionError("all members were walked over")

    keys = values = items = copy = __iter__


def assigned_at_once(group_id: str) -> ConsumerTimes:
    """Groups in which every change makes a new assignment."""
    return ConsumerTimes(assignment_interval_ms=0)


def subscription(topics: tuple[str, ...], owned: tuple[tuple[str, list[int]], ...] = (), version: int = 1) -> bytes:
    said = ConsumerProtocolSubscription(
        topics=list(topics),
        owned_partitions=[ConsumerProtocolSubscriptionTopicPartition(topic, numbers) for topic, numbers in owned],
    )
    return version.to_bytes(2, "big") + encode_data(said, version)


def assignment(**partitions: list[int]) -> bytes:
    return write_assignment(list(partitions.items()), 1)

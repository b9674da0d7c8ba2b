"""The group coordinator of one partition of `__consumer_offsets`, as a machine.

    decision = coordinator.decide(command, token, now_ms)
    for key, value in decision.records:          # at once, before the next command
        coordinator.apply(key, value)            # with the producer's id, if the decision has one
    ... write them as one batch, wait until they are committed, send the answers ...

At a start, or when the broker takes over the partition, the log is read by the same `apply`, and its transaction
markers by `apply_marker`; what is large is read in turns before (`read_ahead`, `make_ready`). Only these write durable
state. The first call of anything else makes the groups live: members keep their places, and their sessions begin anew.
Rebalances of classic groups, parked requests and deadlines are soft: they are lost with the machine, and clients join
again. There is no clock, no randomness and no I/O: time, fresh ids, and views of the topics and of the wall clock come
in. `now_ms` comes from a clock that is never set; stored times are those of the wall clock.

`next_deadline_ms` says when `expire` must be called: nothing is due before, and perhaps nothing is then. One call does
as much as fits into one batch and one turn of the loop, so it may be due again at once.

This module has the offsets, and finds the kind of group for each command, record and deadline in tables. The tables are
made from what the kinds say about themselves (`kinds.py`).
"""

from collections.abc import Callable, Generator, Iterator, Mapping
from itertools import islice
from types import NoneType
from typing import Any
from weakref import proxy

from service.groups.commands import (
    Command,
    CommitOffsets,
    CommitTransactionalOffsets,
    DeleteGroup,
    DeleteOffsets,
    FaultReply,
    FetchOffsets,
    ForgetTopic,
    ListGroups,
    ListReply,
    NameGroups,
    NameOffsets,
    NamesReply,
)
from service.groups.deadlines import DeadlineName, Deadlines
from service.groups.forgetting import FORGETTING, Forgetting
from service.groups.kinds import Decide, FallDue, Group, Kind, Kinds, MakeKinds
from service.groups.known_kinds import known_kinds
from service.groups.offset_decisions import OffsetDecisions
from service.groups.offsets import CommittedOffset, Offsets, OffsetsByTopic
from service.groups.records import OFFSET_KEYS, PREFIX_BYTES, read_ahead, read_offset, read_offset_key
from service.groups.settings import GroupSettings
from service.groups.topics import TopicView
from service.groups.verdicts import Answer, Draft, Fault, GroupDecision, OffsetsPut, RecordPair, Replacement, Token

NO_PRODUCER_ID = -1

FAILED_AGAIN_MS = 60_000
WAKING: DeadlineName = ("wake", "", "")

# One call of `expire` must not block the loop for long. So it ends at most this many sessions of members, or does one
# piece of a long work, and is due again at once.
DUE_AT_ONCE = 50
WOKEN_AT_ONCE = 1_000  # groups, and members of groups


class GroupCoordinator:
    def __init__(
        self,
        settings: GroupSettings,
        topics: TopicView,
        wall_ms: Callable[[], int],
        make_kinds: MakeKinds = known_kinds,
    ) -> None:
        self._wall_ms = wall_ms
        self._groups: dict[str, Group] = {}
        self._offsets = Offsets()
        self._deadlines: Deadlines[DeadlineName] = Deadlines()
        self._is_live = False
        self._refused: list[Answer] = []  # of a decision that has failed, for the next one
        self._replacement: Replacement | None = None  # what the last decision makes of a group
        self._put: OffsetsPut | None = None  # what the last decision commits and is not applied yet
        self._before = 0  # how many of the next records come before what it makes of a group
        self._ahead = 0  # how many of the next records were applied with one of these
        self._asleep: dict[str, None] = {}  # groups as the log left them: the first command about a group wakes it
        self._offset_decisions = OffsetDecisions(settings, self._offsets, topics)
        # Nothing here refers back to this object, so that a machine that is thrown away is freed at once. It may have
        # a hundred thousand offsets, and the next pass of the collector over all objects may be far.
        groups, weakly = self._groups, proxy(self)
        self._forgetting = Forgetting(
            settings,
            self._offsets,
            topics,
            self._deadlines,
            find=lambda group_id, draft: weakly._find(group_id, draft),
            bury=lambda group: weakly._bury(group),
            group_ids=lambda: list(groups),
        )
        known = make_kinds(settings, topics, self._deadlines)
        self._hold_offsets = known.holding_offsets
        self._kinds: dict[type, Kind[Any]] = {kind.group_type: kind for kind in known.kinds}
        self._deciders = _deciders(known)
        self._joins = {command: put_off for kind in known.kinds for command, put_off in kind.joins.items()}
        self._appliers = {prefix: kind for kind in known.kinds for prefix in kind.record_prefixes}
        self._wakers: dict[tuple[str, type], FallDue] = {
            (what, kind.group_type): fall_due for kind in known.kinds for what, fall_due in kind.deadlines.items()
        }
        self._in_turns = {WAKING[0], *FORGETTING}.union(*(kind.done_in_turns for kind in known.kinds))

    # The machine's four sides -----------------------------------------------------------------------------------------

    def decide(self, command: Command, token: Token, now_ms: int) -> GroupDecision:
        draft = Draft(now_ms, self._wall_ms())
        try:
            self._decide(command, token, draft)
        except Exception:
            # The shard refuses the command. Others that it has answered don't wait any longer: they look for the
            # coordinator, and ask anew.
            refused: list[tuple[Token, Any]] = [each for each in draft.answers if each[0] != token]
            self._refused += [(other, reply._replace(fault=Fault.NOT_COORDINATOR)) for other, reply in refused]
            raise
        return self._sealed(draft)

    def _decide(self, command: Command, token: Token, draft: Draft) -> None:
        self._become_live(draft)
        own = OWN_COMMANDS.get(type(command))
        if own is not None:
            own(self, command, token, draft)
        else:
            about: Any = command  # all other commands are about one group
            if about.group_id in self._forgetting.deleting and type(command) in self._joins:
                draft.answer(token, self._joins[type(command)](command))
            else:
                group = self._find(about.group_id, draft)
                self._deciders[type(command), type(group)](group, command, token, draft)
        if draft.replacement is None:  # a passage looks by itself, before it turns a group of thousands of members
            draft.must_fit()

    def next_deadline_ms(self) -> int | None:
        """When `expire` must be called. Before the groups are live it is due at once."""
        return self._deadlines.next_ms() if self._is_live and not self._refused else 0

    def expire(self, now_ms: int) -> GroupDecision:
        draft = Draft(now_ms, self._wall_ms())
        self._become_live(draft)
        for _ in range(DUE_AT_ONCE):
            name = self._deadlines.pop_due(now_ms)
            if name is None:
                break
            answers = len(draft.answers)
            try:
                self._fall_due(name, draft)
            except Exception:
                # A deadline that raises is not forgotten. Nor are the answers of those before it in this call: it
                # raises once more then, in the next one.
                self._deadlines.set(name, now_ms + (0 if answers else FAILED_AGAIN_MS))
                if not answers:
                    raise
                draft = Draft(now_ms, draft.wall_ms, answers=draft.answers[:answers])
                break
            # After records no more decisions are made in this call: they could depend on records not applied yet.
            if draft.records or len(draft.answers) >= DUE_AT_ONCE or name[0] in self._in_turns:
                break
        return self._sealed(draft)

    def _sealed(self, draft: Draft) -> GroupDecision:
        assert self._replacement is None and not self._ahead, "the last decision is applied whole before the next"
        self._replacement = draft.replacement
        self._before = 0 if draft.replacement is None else draft.replacement.first
        self._put = draft.offsets
        draft.answers += self._refused
        self._refused.clear()
        return draft.seal()

    def apply(
        self,
        key: bytes,
        value: bytes | None,
        *,
        producer_id: int = NO_PRODUCER_ID,
        producer_epoch: int = -1,
    ) -> None:
        """Take up one record of the partition, in the order of the log. `producer_id`: if its batch is
        transactional.
        """
        if self._ahead:
            self._ahead -= 1
            return
        if (put := self._put) is not None and put.first_key is key:
            self._ahead = put.records - 1
            self._put_offsets(put.group_id, put.offsets, producer_id)
            return
        if (made := self._replacement) is not None:
            if not self._before:
                self._ahead = made.end - made.first - 1
                self._replace(made)
                return
            self._before -= 1
        if key[:PREFIX_BYTES] in OFFSET_KEYS:
            self._apply_offset(key, value, producer_id)
        elif (kind := self._appliers.get(key[:PREFIX_BYTES])) is not None:
            kind.apply(self._groups, key, value, is_replay=not self._is_live)
        elif len(key) < PREFIX_BYTES:
            raise ValueError("the key ends before its type")
        # The records of all other types belong to kinds of groups that are unknown here: they are skipped.

    def _replace(self, made: Replacement) -> None:
        self._replacement = None
        if made.group is None:
            del self._groups[made.group_id]
        else:
            self._groups[made.group_id] = made.group

    @staticmethod
    def only_last_counts(key: bytes, value: bytes | None) -> bool:
        """An offset that is followed by another one. A tombstone leaves the group that the offset before it made."""
        return value is not None and key[:PREFIX_BYTES] in OFFSET_KEYS

    @staticmethod
    def read_ahead(key: bytes, value: bytes) -> Generator[None, None, None]:
        """Read a large record in several turns, right before `apply`. It yields when a turn is over."""
        return read_ahead(key, value)

    def make_ready(self) -> Generator[None, None, None]:
        """When the whole log was applied: do in several turns what would take long when large groups wake."""
        for place, group in enumerate(list(self._groups.values()), 1):
            yield from self._kinds[type(group)].make_ready(group)
            if place % WOKEN_AT_ONCE == 0:
                yield

    def apply_marker(self, producer_id: int, producer_epoch: int, committed: bool) -> None:
        """The producer's transaction has ended in this partition: its offsets count from now on, or are dropped."""
        self._offsets.end_transaction(producer_id, committed=committed)

    def group(self, group_id: str) -> Group | None:
        return self._groups.get(group_id)

    def groups(self) -> Iterator[Group]:
        """Every group, not to be changed. A group without a command since the replay may still be asleep."""
        return iter(self._groups.values())

    def committed(self, group_id: str) -> Mapping[str, Mapping[int, CommittedOffset]]:
        """The group's committed offsets by topic and partition. Not to be changed."""
        return self._offsets.of_group(group_id)

    def pending(self, group_id: str) -> int:
        """The number of partitions whose offsets wait for a transaction to end."""
        return self._offsets.pending_count(group_id)

    def durable_facts(self) -> object:
        """All durable facts in a form that can be compared. Two machines that applied the same log agree on them."""
        groups = {
            group_id: self._kinds[type(group)].facts(group, is_awake=self._is_live and group_id not in self._asleep)
            for group_id, group in self._groups.items()
        }
        return groups, self._offsets.facts()

    # Groups -----------------------------------------------------------------------------------------------------------

    def _become_live(self, draft: Draft) -> None:
        if self._is_live:
            return
        self._is_live = True
        self._asleep = dict.fromkeys(self._groups)
        self._forgetting.begin(draft)
        self._deadlines.set(WAKING, draft.now_ms)

    def _wake_some(self, draft: Draft) -> None:
        woken = 0
        for group_id in list(islice(self._asleep, WOKEN_AT_ONCE)):
            group = self._find(group_id, draft)
            woken += 1 if group is None else 1 + len(group.members)
            if woken >= WOKEN_AT_ONCE:
                break
        if self._asleep:
            self._deadlines.set(WAKING, draft.now_ms)

    def _find(self, group_id: str, draft: Draft) -> Group | None:
        """The live group; one that is asleep is woken."""
        group = self._groups.get(group_id)
        if group_id in self._asleep:
            del self._asleep[group_id]
            if group is not None:
                group = self._groups[group_id] = self._kinds[type(group)].wake(group, draft)
        return group

    def _bury(self, group: Group) -> list[RecordPair]:
        return self._kinds[type(group)].bury(group)

    def _fall_due(self, name: DeadlineName, draft: Draft) -> None:
        what, group_id, member_id = name
        if what in FORGETTING:
            self._forgetting.go_on(name, draft)
        elif name == WAKING:
            self._wake_some(draft)
        else:
            group = self._find(group_id, draft)
            fall_due = self._wakers.get((what, type(group)))
            if fall_due is not None:  # otherwise the deadline was set for a group of another kind with this name
                fall_due(group, member_id, draft)

    def _name_groups(self, ask: NameGroups, token: Token, draft: Draft) -> None:
        draft.answer(token, NamesReply(tuple(self._groups)))

    def _list_groups(self, ask: ListGroups, token: Token, draft: Draft) -> None:
        found = (self._find(group_id, draft) for group_id in ask.group_ids)
        listed = (group.listed() for group in found if group is not None)
        answer = tuple(
            facts
            for facts in listed
            if (not ask.states or facts.state.lower() in ask.states) and (not ask.types or facts.type in ask.types)
        )
        draft.answer(token, ListReply(answer))

    def _delete_group(self, ask: DeleteGroup, token: Token, draft: Draft) -> None:
        self._forgetting.delete_group(ask.group_id, token, draft)

    # Offsets ----------------------------------------------------------------------------------------------------------

    def _commit(self, ask: CommitOffsets, token: Token, draft: Draft) -> None:
        group = self._find(ask.group_id, draft)
        reply = self._offset_decisions.commit(group, ask, draft)
        if reply.fault is None and group is not None:
            self._kinds[type(group)].heard_of(group, ask.member_id, draft)
        draft.answer(token, reply)

    def _commit_in_transaction(self, ask: CommitTransactionalOffsets, token: Token, draft: Draft) -> None:
        group = self._find(ask.group_id, draft)
        draft.answer(token, self._offset_decisions.commit_in_transaction(group, ask, draft))

    def _name_offsets(self, ask: NameOffsets, token: Token, draft: Draft) -> None:
        draft.answer(token, self._offset_decisions.name(ask))

    def _fetch_offsets(self, ask: FetchOffsets, token: Token, draft: Draft) -> None:
        draft.answer(token, self._offset_decisions.fetch(self._find(ask.group_id, draft), ask))

    def _delete_offsets(self, ask: DeleteOffsets, token: Token, draft: Draft) -> None:
        draft.answer(token, self._offset_decisions.delete(self._find(ask.group_id, draft), ask, draft))

    def _forget_topic(self, ask: ForgetTopic, token: Token, draft: Draft) -> None:
        self._forgetting.forget_topic(ask.topic, ask.topic_id, draft)
        draft.answer(token, FaultReply())

    def _apply_offset(self, key: bytes, value: bytes | None, producer_id: int) -> None:
        group_id, topic, partition = read_offset_key(key)
        if value is None:
            self._offsets.remove(group_id, topic, partition)
            return
        self._put_offsets(group_id, {topic: {partition: read_offset(value)}}, producer_id)

    def _put_offsets(self, group_id: str, offsets: OffsetsByTopic, producer_id: int) -> None:
        if group_id not in self._groups:
            self._groups[group_id] = self._hold_offsets(group_id)
        if producer_id == NO_PRODUCER_ID:
            self._offsets.put(group_id, offsets)
        else:
            self._offsets.put_pending(group_id, offsets, producer_id=producer_id)


OWN_COMMANDS: dict[type, Callable[[GroupCoordinator, Any, Token, Draft], None]] = {
    CommitOffsets: GroupCoordinator._commit,
    CommitTransactionalOffsets: GroupCoordinator._commit_in_transaction,
    NameOffsets: GroupCoordinator._name_offsets,
    FetchOffsets: GroupCoordinator._fetch_offsets,
    DeleteOffsets: GroupCoordinator._delete_offsets,
    ForgetTopic: GroupCoordinator._forget_topic,
    NameGroups: GroupCoordinator._name_groups,
    ListGroups: GroupCoordinator._list_groups,
    DeleteGroup: GroupCoordinator._delete_group,
}


def _deciders(known: Kinds) -> dict[tuple[type, type], Decide]:
    """By command and type of group (or none): what decides the command."""
    table: dict[tuple[type, type], Decide] = {}
    for kind in known.kinds:
        for command, decide in kind.commands.items():
            for other in known.kinds:
                table[command, other.group_type] = known.passages.get((command, other.group_type), kind.refuse)
            table[command, kind.group_type] = table[command, NoneType] = decide
    return table

"""Committing, fetching and deleting offsets.

Reads offsets and the group they belong to, and writes records into the draft. A committing client must be of the group
as it stands: a member of the present generation, or nobody's member while the group is empty.
"""

from collections.abc import Callable

from service.groups.classic_group import ClassicGroup
from service.groups.commands import (
    NO_GENERATION,
    NO_MEMBER,
    CommitOffsets,
    CommitReply,
    CommitTransactionalOffsets,
    DeleteOffsets,
    DeleteOffsetsReply,
    FetchedOffset,
    FetchedTopic,
    FetchOffsets,
    FetchReply,
    NameOffsets,
    OffsetNamesReply,
    OffsetToCommit,
    PartitionsAsked,
)
from service.groups.consumer_group import ConsumerGroup, ConsumerMember
from service.groups.offsets import CommittedOffset, Offsets
from service.groups.records import fits, offset_record, offset_tombstone
from service.groups.settings import GroupSettings
from service.groups.states import ClassicState
from service.groups.verdicts import Draft, Fault

Group = ClassicGroup | ConsumerGroup
ZERO_TOPIC_ID = bytes(16)
END_OF_TIME_MS = (1 << 63) - 1

# May this offset of the committing member be taken? The fault it is refused with, else None.
OffsetCheck = Callable[[OffsetToCommit], Fault | None]


def _anything(offset: OffsetToCommit) -> Fault | None:
    return None


class OffsetDecisions:
    def __init__(self, settings: GroupSettings, offsets: Offsets) -> None:
        self._settings = settings
        self._offsets = offsets

    # Committing
    # ---------------------------------------------------------------------------------------------------------

    def commit(self, group: Group | None, ask: CommitOffsets, draft: Draft) -> CommitReply:
        if not fits(ask.group_id):
            return CommitReply(Fault.INVALID_GROUP_ID)
        check = self._may_commit(group, ask)
        if isinstance(check, Fault):
            return CommitReply(check)
        expire_ms = None if ask.retention_ms == -1 else min(draft.wall_ms + ask.retention_ms, END_OF_TIME_MS)
        return self._record(ask.group_id, ask.offsets, check, expire_ms, draft)

    def commit_in_transaction(self, group: Group | None, ask: CommitTransactionalOffsets, draft: Draft) -> CommitReply:
        if not fits(ask.group_id):
            return CommitReply(Fault.INVALID_GROUP_ID)
        check = self._may_commit_in_transaction(group, ask)
        if isinstance(check, Fault):
            return CommitReply(check)
        draft.producer_id = ask.producer_id
        draft.producer_epoch = ask.producer_epoch
        return self._record(ask.group_id, ask.offsets, check, None, draft)

    def _record(
        self,
        group_id: str,
        offsets: tuple[OffsetToCommit, ...],
        check: OffsetCheck,
        expire_ms: int | None,
        draft: Draft,
    ) -> CommitReply:
        faults: list[Fault | None] = []
        for each in offsets:
            if len(each.metadata) > self._settings.offset_metadata_max_bytes or not fits(each.metadata):
                faults.append(Fault.OFFSET_METADATA_TOO_LARGE)
                continue
            if (fault := check(each)) is not None:
                draft.records.clear()  # one foreign partition spoils the whole request
                return CommitReply(fault)
            committed = CommittedOffset(
                each.offset,
                each.leader_epoch,
                each.metadata,
                draft.wall_ms,
                expire_ms,
                each.topic_id,
            )
            draft.records.append(offset_record(group_id, each.topic, each.partition, committed))
            faults.append(None)
        return CommitReply(None, tuple(faults))

    def _may_commit(self, group: Group | None, ask: CommitOffsets) -> Fault | OffsetCheck:
        if group is None:
            if ask.generation < 0:
                return _anything  # a group that holds offsets only comes to be
            return Fault.GROUP_ID_NOT_FOUND if ask.speaks_consumer_protocol else Fault.ILLEGAL_GENERATION
        if isinstance(group, ClassicGroup):
            return _classic_fault(group, ask.member_id, ask.instance_id, ask.generation) or _anything
        if ask.generation < 0 and not group.members:
            return _anything
        member = group.members.get(ask.member_id)
        if member is None:
            return Fault.UNKNOWN_MEMBER_ID
        if member.classic is None and not ask.speaks_consumer_protocol:
            return Fault.UNSUPPORTED_VERSION
        return _consumer_check(group, member, ask.generation)

    def _may_commit_in_transaction(self, group: Group | None, ask: CommitTransactionalOffsets) -> Fault | OffsetCheck:
        says_nothing = ask.generation == NO_GENERATION and ask.member_id == NO_MEMBER and ask.instance_id is None
        if group is None:
            return _anything if ask.generation < 0 else Fault.ILLEGAL_GENERATION
        if isinstance(group, ClassicGroup):
            if says_nothing:
                return _anything
            return _classic_member_fault(group, ask.member_id, ask.instance_id, ask.generation) or _anything
        if says_nothing or (ask.generation < 0 and not group.members):
            return _anything
        member = group.members.get(ask.member_id)
        if member is None:
            return Fault.UNKNOWN_MEMBER_ID
        check = _consumer_check(group, member, ask.generation)
        if isinstance(check, Fault):
            return Fault.ILLEGAL_GENERATION  # clients of transactions know no stale epochs
        return lambda offset: None if check(offset) is None else Fault.ILLEGAL_GENERATION

    # Fetching
    # -----------------------------------------------------------------------------------------------------------

    def fetch(self, group: Group | None, ask: FetchOffsets) -> FetchReply:
        if isinstance(group, ConsumerGroup) and (fault := _fetch_fault(group, ask)) is not None:
            return FetchReply(fault)
        return FetchReply(None, tuple(self._fetch_topic(group, ask, topic) for topic in ask.topics))

    def name(self, ask: NameOffsets) -> OffsetNamesReply:
        known = self._offsets.of_group(ask.group_id)
        return OffsetNamesReply(
            tuple(PartitionsAsked(topic, ZERO_TOPIC_ID, tuple(found)) for topic, found in known.items())
        )

    def _fetch_topic(self, group: Group | None, ask: FetchOffsets, wanted: PartitionsAsked) -> FetchedTopic:
        found: list[FetchedOffset] = []
        for partition in wanted.partitions:
            committed = None if group is None else self._offsets.get(ask.group_id, wanted.topic, partition)
            if committed is not None and _is_of_another_topic(committed.topic_id, wanted.topic_id):
                committed = None
            found.append(self._fetch_one(ask, wanted.topic, partition, committed))
        return FetchedTopic(wanted.topic, wanted.topic_id, tuple(found))

    def _fetch_one(
        self, ask: FetchOffsets, topic: str, partition: int, committed: CommittedOffset | None
    ) -> FetchedOffset:
        if ask.require_stable and self._offsets.is_pending(ask.group_id, topic, partition):
            return FetchedOffset(partition, fault=Fault.UNSTABLE_OFFSET_COMMIT)
        if committed is None:
            return FetchedOffset(partition)
        return FetchedOffset(partition, committed.offset, committed.leader_epoch, committed.metadata)

    # Deleting
    # -----------------------------------------------------------------------------------------------------------

    def delete(self, group: Group | None, ask: DeleteOffsets, draft: Draft) -> DeleteOffsetsReply:
        if group is None:
            return DeleteOffsetsReply(Fault.GROUP_ID_NOT_FOUND)
        knows_topics = isinstance(group, ConsumerGroup) or group.uses_consumer_protocol
        if isinstance(group, ClassicGroup) and group.state is not ClassicState.EMPTY and not knows_topics:
            return DeleteOffsetsReply(Fault.NON_EMPTY_GROUP)  # it may need any of them
        topics: list[tuple[str, tuple[tuple[int, Fault | None], ...]]] = []
        for topic, partitions in ask.topics:
            fault = Fault.GROUP_SUBSCRIBED_TO_TOPIC if group.is_subscribed_to(topic) else None
            if fault is None:
                for partition in partitions:
                    self._delete_one(ask.group_id, topic, partition, draft)
            topics.append((topic, tuple((partition, fault) for partition in partitions)))
        return DeleteOffsetsReply(None, tuple(topics))

    def _delete_one(self, group_id: str, topic: str, partition: int, draft: Draft) -> None:
        exists = self._offsets.get(group_id, topic, partition) is not None
        if exists or self._offsets.is_pending(group_id, topic, partition):
            draft.records.append(offset_tombstone(group_id, topic, partition))


def _classic_fault(group: ClassicGroup, member_id: str, instance_id: str | None, generation: int) -> Fault | None:
    if generation < 0 and group.state is ClassicState.EMPTY:
        return None
    if generation < 0 and member_id == NO_MEMBER and instance_id is None:
        return Fault.UNKNOWN_MEMBER_ID
    fault = _classic_member_fault(group, member_id, instance_id, generation)
    if fault is None and group.state is ClassicState.COMPLETING:
        return Fault.REBALANCE_IN_PROGRESS  # it is of this generation, but what it owns is being decided
    return fault


def _classic_member_fault(
    group: ClassicGroup, member_id: str, instance_id: str | None, generation: int
) -> Fault | None:
    if generation < 0 and group.state is ClassicState.EMPTY:
        return None
    fault = group.member_fault(member_id, instance_id)
    return Fault.ILLEGAL_GENERATION if fault is None and generation != group.generation else fault


def _consumer_check(group: ConsumerGroup, member: ConsumerMember, epoch: int) -> Fault | OffsetCheck:
    """A member that missed its newest epoch may still commit what it has held since before (KIP-1251). At its newest it
    may commit anything but what another holds: it lets go of partitions within an epoch, and a commit that was long on
    its way may come after the next one's.
    """
    stale = Fault.ILLEGAL_GENERATION if member.classic is not None else Fault.STALE_MEMBER_EPOCH
    if epoch > member.member_epoch:
        return stale

    def held_since(offset: OffsetToCommit) -> Fault | None:
        given = member.epoch_given(offset.topic_id, offset.partition)
        if given is None:
            is_free = epoch == member.member_epoch and not group.is_held(offset.topic_id, offset.partition)
            return None if is_free else stale
        return None if epoch >= given else stale

    return held_since


def _fetch_fault(group: ConsumerGroup, ask: FetchOffsets) -> Fault | None:
    if ask.member_id is None and ask.member_epoch < 0:
        return None
    member = group.members.get(ask.member_id or NO_MEMBER)
    if member is None:
        return Fault.UNKNOWN_MEMBER_ID
    if member.member_epoch == ask.member_epoch:
        return None
    return Fault.ILLEGAL_GENERATION if member.classic is not None else Fault.STALE_MEMBER_EPOCH


def _is_of_another_topic(stored_id: bytes, wanted_id: bytes) -> bool:
    return ZERO_TOPIC_ID not in (stored_id, wanted_id) and stored_id != wanted_id


def idle_since(group: Group, committed: CommittedOffset) -> int | None:
    """From when the offset's retention counts; None while no offset of the group may expire."""
    if isinstance(group, ConsumerGroup) or group.protocol_type is None:
        return committed.commit_timestamp_ms
    if group.state is ClassicState.EMPTY:
        return committed.commit_timestamp_ms if group.state_timestamp_ms == -1 else group.state_timestamp_ms
    if group.uses_consumer_protocol and group.subscribed_topics is not None and group.state is ClassicState.STABLE:
        return committed.commit_timestamp_ms  # of topics that it no longer subscribes to
    return None

"""Committing, fetching and deleting offsets.

The group that the offsets belong to says who may commit them. Records are put into the draft.
"""

from service.groups.commands import (
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
from service.groups.kinds import Group, OffsetCheck, any_offset
from service.groups.offsets import CommittedOffset, Offsets
from service.groups.records import (
    OFFSET_VERSION,
    before_metadata,
    behind_metadata,
    fits,
    offset_key_stem,
    offset_tombstone,
    offset_value,
    partition_bytes,
)
from service.groups.settings import GroupSettings
from service.groups.topics import TopicView
from service.groups.verdicts import Draft, Fault, OffsetsPut

ZERO_TOPIC_ID = bytes(16)
NO_ORDER = -1

_new = tuple.__new__  # takes half the time of a class's own constructor
END_OF_TIME_MS = (1 << 63) - 1


class OffsetDecisions:
    def __init__(self, settings: GroupSettings, offsets: Offsets, topics: TopicView) -> None:
        self._settings = settings
        self._offsets = offsets
        self._topics = topics

    # Committing -------------------------------------------------------------------------------------------------------

    def commit(self, group: Group | None, ask: CommitOffsets, draft: Draft) -> CommitReply:
        if not fits(ask.group_id):
            return CommitReply(Fault.INVALID_GROUP_ID)
        check = _may_commit_for_nobody(ask) if group is None else group.may_commit(ask)
        if isinstance(check, Fault):
            return CommitReply(check)
        expire_ms = None if ask.retention_ms == -1 else min(draft.wall_ms + ask.retention_ms, END_OF_TIME_MS)
        return self._record(ask.group_id, ask.offsets, check, expire_ms, draft)

    def commit_in_transaction(self, group: Group | None, ask: CommitTransactionalOffsets, draft: Draft) -> CommitReply:
        if not ask.group_id or not fits(ask.group_id):
            return CommitReply(Fault.INVALID_GROUP_ID)
        if group is not None:
            check = group.may_commit_in_transaction(ask)
        else:
            check = any_offset if ask.generation < 0 else Fault.ILLEGAL_GENERATION
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
        faults: list[Fault | None] = [None] * len(offsets)
        wall_ms, records, put = draft.wall_ms, draft.records, dict[str, dict[int, CommittedOffset]]()
        first = len(records)
        present, present_id, stem, behind = "", b"", b"", b""
        is_usual, taken = False, dict[int, CommittedOffset]()
        for index, each in enumerate(offsets):
            topic, topic_id, partition, offset, leader_epoch, metadata = each
            if metadata and self._is_too_long(metadata):
                faults[index] = Fault.OFFSET_METADATA_TOO_LARGE
                continue
            if check is not any_offset and (fault := check(each)) is not None:
                del records[first:]  # if one partition is refused, the whole request is refused
                return CommitReply(fault)
            # The next topic, whose records share most of their bytes.
            if topic is not present or topic_id is not present_id:
                present, present_id = topic, topic_id
                stem, behind = offset_key_stem(group_id, topic), behind_metadata(wall_ms, topic_id)
                is_usual = expire_ms is None and topic_id != ZERO_TOPIC_ID
                taken = put.setdefault(topic, {})
            facts = offset, leader_epoch, metadata, wall_ms, expire_ms, topic_id, NO_ORDER
            committed = taken[partition] = _new(CommittedOffset, facts)
            if is_usual and not metadata:
                value = before_metadata(OFFSET_VERSION, offset, leader_epoch, 1) + behind
            else:
                value = offset_value(committed)
            records.append((stem + partition_bytes(partition), value))
            if expire_ms is not None:
                self._offsets.left_out_ids[group_id, topic, partition] = topic_id
        if put and expire_ms is None:  # otherwise the records are in a format that says less
            draft.offsets = OffsetsPut(records[first][0], len(records) - first, group_id, put)
        return CommitReply(None, tuple(faults))

    def _is_too_long(self, metadata: str) -> bool:
        return len(metadata) > self._settings.offset_metadata_max_bytes or not fits(metadata)

    # Fetching ---------------------------------------------------------------------------------------------------------

    def fetch(self, group: Group | None, ask: FetchOffsets) -> FetchReply:
        if group is not None and (fault := group.fetching_fault(ask)) is not None:
            return FetchReply(fault)
        return FetchReply(None, tuple(self._fetch_topic(group, ask, topic) for topic in ask.topics))

    def name(self, ask: NameOffsets) -> OffsetNamesReply:
        """All that has an offset. A topic that there is has its id here: offsets of a former topic of this name may be
        left, beside one of an open transaction.
        """
        known = self._offsets.of_group(ask.group_id)
        return OffsetNamesReply(
            tuple(PartitionsAsked(topic, self._present_id(topic), tuple(found)) for topic, found in known.items())
        )

    def _present_id(self, topic: str) -> bytes:
        facts = self._topics.by_name(topic)
        return ZERO_TOPIC_ID if facts is None else facts.topic_id

    def _fetch_topic(self, group: Group | None, ask: FetchOffsets, wanted: PartitionsAsked) -> FetchedTopic:
        known = {} if group is None else self._offsets.of_group(ask.group_id).get(wanted.topic, {})
        may_wait = ask.require_stable and self._offsets.has_pending(ask.group_id)
        found: list[FetchedOffset] = []
        topic_id = wanted.topic_id
        for partition in wanted.partitions:
            committed = known.get(partition)
            if may_wait and self._offsets.is_pending(ask.group_id, wanted.topic, partition):
                found.append(FetchedOffset(partition, fault=Fault.UNSTABLE_OFFSET_COMMIT))
            elif committed is None or (committed[5] != topic_id and ZERO_TOPIC_ID not in (committed[5], topic_id)):
                found.append(FetchedOffset(partition))  # none, or of another topic of this name
            else:
                found.append(_new(FetchedOffset, (partition, *committed[:3], None)))
        return FetchedTopic(wanted.topic, wanted.topic_id, tuple(found))

    # Deleting ---------------------------------------------------------------------------------------------------------

    def delete(self, group: Group | None, ask: DeleteOffsets, draft: Draft) -> DeleteOffsetsReply:
        if group is None:
            return DeleteOffsetsReply(Fault.GROUP_ID_NOT_FOUND)
        if (fault := group.deleting_fault()) is not None:
            return DeleteOffsetsReply(fault)
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


def _may_commit_for_nobody(ask: CommitOffsets) -> Fault | OffsetCheck:
    """Whether offsets may be committed to a group that does not exist. It is made, and has offsets only, unless the
    client says that it is a member.
    """
    if ask.generation < 0:
        return any_offset
    return Fault.GROUP_ID_NOT_FOUND if ask.speaks_consumer_protocol else Fault.ILLEGAL_GENERATION

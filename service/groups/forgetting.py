"""Removes expired offsets, offsets of deleted topics, and whole groups.

A coordinator may have a hundred thousand offsets, so this takes several turns of the loop. Each kind of work is a
generator that looks at one offset after the other, in the machine's state at that moment, and writes tombstones. A turn
ends after `LOOKED_AT_ONCE` looks or `GONE_AT_ONCE` records, and the work is due again at once. No progress is stored: a
round that a crash interrupts begins anew. Deleted topics are found again when the log has been read: the topic of each
offset is looked up then, in one pass over the groups. (A pass for each topic would be topics times groups.)
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from log.clock import ClockWatch
from service.groups.commands import FaultReply
from service.groups.deadlines import DeadlineName, Deadlines
from service.groups.kinds import Group
from service.groups.offset_decisions import ZERO_TOPIC_ID
from service.groups.offsets import Offsets
from service.groups.records import offset_tombstone
from service.groups.settings import GroupSettings
from service.groups.topics import TopicView
from service.groups.verdicts import PART_BYTES, Draft, Fault, RecordPair, Token

LOOKED_AT_ONCE = 1_000
GROUPS_A_LOOK = 10  # when those are looked for that have offsets of a topic: a hundred thousand took 30 ms
GONE_AT_ONCE = 300

EXPIRY: DeadlineName = ("offsets", "", "")
MISSED: DeadlineName = ("forget", "", "")
FORGETTING = ("offsets", "forget", "delete")  # the names of the deadlines for this work

# Yields after every look. True: the records written so far must be applied before the work goes on.
Work = Iterator[bool]


class Forgetting:
    """`find` gives a live group, `bury` the records that remove one, `group_ids` the ids of all groups."""

    def __init__(
        self,
        settings: GroupSettings,
        offsets: Offsets,
        topics: TopicView,
        deadlines: Deadlines[DeadlineName],
        *,
        find: Callable[[str, Draft], Group | None],
        bury: Callable[[Group], Iterable[RecordPair]],
        group_ids: Callable[[], list[str]],
    ) -> None:
        self._settings = settings
        self._offsets = offsets
        self._topics = topics
        self._deadlines = deadlines
        self._find = find
        self._bury = bury
        self._group_ids = group_ids
        # How each begins. Nothing here refers back to this object: one that is thrown away is to be freed at once.
        self._works: dict[DeadlineName, Callable[[Forgetting], Work]] = {
            EXPIRY: Forgetting._expire,
            MISSED: Forgetting._forget_missed,
        }
        self._under_way: dict[DeadlineName, Work] = {}
        # Groups that are being deleted, and how often. Nobody may join one: it would have a part of its offsets.
        self.deleting: Counter[str] = Counter()
        self._draft = Draft(0, 0)  # the draft of the present turn
        self._clock = ClockWatch()
        self._turn = 0

    # What is to be done -----------------------------------------------------------------------------------------------

    def begin(self, draft: Draft) -> None:
        """Begin the work after the log was read."""
        self._clock.look(draft.now_ms, draft.wall_ms)
        self._deadlines.set(EXPIRY, draft.now_ms + self._settings.offsets_retention_check_interval_ms)
        self._deadlines.set(MISSED, draft.now_ms)

    def forget_topic(self, topic: str, topic_id: bytes, draft: Draft) -> None:
        """The topic was deleted: remove its offsets."""
        name: DeadlineName = ("forget", topic, topic_id.hex())
        self._begin(name, lambda forgetting: forgetting._forget(topic, topic_id), draft)

    def delete_group(self, group_id: str, token: Token, draft: Draft) -> None:
        """Delete a group. The answer comes when all of it is removed."""
        name: DeadlineName = ("delete", group_id, str(token))
        self._begin(name, lambda forgetting: forgetting._delete(group_id, token), draft)

    def _begin(self, name: DeadlineName, work: Callable[["Forgetting"], Work], draft: Draft) -> None:
        self._works[name] = work
        self._under_way.pop(name, None)
        try:
            self.go_on(name, draft)
        except Exception:
            del self._works[name]  # the command is refused
            self._deadlines.cancel(name)
            raise

    def go_on(self, name: DeadlineName, draft: Draft) -> None:
        """Do one turn of the work with this name. What raises is begun anew."""
        work = self._under_way.pop(name, None) or self._works[name](self)
        if self._has_ended(work, draft):
            self._deadlines.cancel(name)  # it is still set if the topic was told again
            if name == EXPIRY:
                self._deadlines.set(EXPIRY, draft.now_ms + self._settings.offsets_retention_check_interval_ms)
            else:
                del self._works[name]
        else:
            self._under_way[name] = work
            self._deadlines.set(name, draft.now_ms)

    def _has_ended(self, work: Work, draft: Draft) -> bool:
        self._draft = draft
        self._clock.look(draft.now_ms, draft.wall_ms)
        self._turn += 1
        written_bytes = 0
        written = len(draft.records)
        for looks, must_apply in enumerate(work, 1):
            written_bytes += sum(len(key) for key, _ in draft.records[written:])
            written = len(draft.records)
            is_full = written >= GONE_AT_ONCE or written_bytes >= PART_BYTES
            if looks >= LOOKED_AT_ONCE or is_full or (must_apply and draft.records):
                return False
        return True

    # How --------------------------------------------------------------------------------------------------------------

    def _expire(self) -> Work:
        """Write tombstones for offsets whose retention is over, and for groups of which nothing else is left."""
        for group_id in self._group_ids():
            for topic in list(self._offsets.of_group(group_id)):
                for partition in self._offsets.partitions(group_id, topic):
                    if self._is_expired(group_id, topic, partition):
                        self._draft.records.append(offset_tombstone(group_id, topic, partition))
                    yield False
            yield False
        yield True
        for group_id in self._group_ids():
            group = self._find(group_id, self._draft)
            if group is not None and self._is_nothing(group):
                self._draft.records.extend(self._bury(group))
            yield False

    def _is_expired(self, group_id: str, topic: str, partition: int) -> bool:
        group = self._find(group_id, self._draft)
        committed = self._offsets.get(group_id, topic, partition)
        if group is None or committed is None or group.is_subscribed_to(topic):
            return False
        since_ms = group.idle_since_ms(committed)
        if since_ms is None or self._offsets.is_pending(group_id, topic, partition):
            return False
        retention_ms = self._settings.offsets_retention_ms
        if committed.expire_timestamp_ms is not None:  # old clients could say themselves for how long
            since_ms = committed.commit_timestamp_ms
            retention_ms = committed.expire_timestamp_ms - since_ms
        return self._draft.wall_ms - self._clock.since_ms(since_ms) >= retention_ms

    def _is_nothing(self, group: Group) -> bool:
        holds_offsets = self._offsets.has_any(group.group_id) or self._offsets.has_pending(group.group_id)
        return not holds_offsets and group.is_abandoned

    def _forget_missed(self) -> Work:
        """Write tombstones for the offsets of topics that were deleted while no coordinator was running."""
        for group_id in self._offsets.group_ids():
            yield False
            for topic in self._offsets.topics_of(group_id):
                yield from self._forget_in([group_id], topic, None)

    def _forget(self, topic: str, deleted_id: bytes) -> Work:
        """Write tombstones for the offsets of a deleted topic."""
        group_ids = iter(self._offsets.group_ids())
        while some := list(islice(group_ids, GROUPS_A_LOOK)):
            yield False
            yield from self._forget_in(self._offsets.with_topic(topic, some), topic, deleted_id)

    def _forget_in(self, group_ids: Iterable[str], topic: str, deleted_id: bytes | None) -> Work:
        for group_id in group_ids:
            for partition in self._offsets.partitions(group_id, topic):
                known = self._offsets.all_of(group_id, topic, partition)
                left_out_id = self._offsets.left_out_ids.get((group_id, topic, partition), ZERO_TOPIC_ID)
                # A tombstone removes all offsets of the partition, also pending ones. So it is written only if none of
                # them can still be used.
                ids = [left_out_id if each.topic_id == ZERO_TOPIC_ID else each.topic_id for each in known]
                if known and all(self._is_gone(topic, deleted_id, topic_id) for topic_id in ids):
                    self._draft.records.append(offset_tombstone(group_id, topic, partition))
                yield False

    def _is_gone(self, topic: str, deleted_id: bytes | None, topic_id: bytes) -> bool:
        # The id of an offset is not known if another coordinator has read it from a record without one: then only the
        # name counts.
        if deleted_id is not None:
            return topic_id in (ZERO_TOPIC_ID, deleted_id)
        facts = self._topics.by_name(topic)
        return facts is None or topic_id not in (ZERO_TOPIC_ID, facts.topic_id)

    def _delete(self, group_id: str, token: Token) -> Work:
        self.deleting[group_id] += 1
        try:
            yield from self._delete_offsets(group_id)
        finally:
            self.deleting[group_id] -= 1
            if not self.deleting[group_id]:
                del self.deleting[group_id]
        group = self._find(group_id, self._draft)
        if group is None:
            self._draft.answer(token, FaultReply(Fault.GROUP_ID_NOT_FOUND))
        elif not group.is_empty:
            self._draft.answer(token, FaultReply(Fault.NON_EMPTY_GROUP))
        else:
            self._draft.records.extend(self._bury(group))
            self._draft.answer(token, FaultReply())

    def _delete_offsets(self, group_id: str) -> Work:
        while self._may_be_deleted(group_id) and (topics := self._offsets.topics_of(group_id)):
            turn = self._turn
            for topic, partition in self._names(group_id, topics):
                if not self._may_be_deleted(group_id):
                    break
                self._draft.records.append(offset_tombstone(group_id, topic, partition))
                yield False
            if self._turn == turn:
                break  # all was done in one turn, so no commit can have come in between
            yield True

    def _names(self, group_id: str, topics: Iterable[str]) -> Iterator[tuple[str, int]]:
        return ((topic, partition) for topic in topics for partition in self._offsets.partitions(group_id, topic))

    def _may_be_deleted(self, group_id: str) -> bool:
        group = self._find(group_id, self._draft)
        return group is not None and group.is_empty

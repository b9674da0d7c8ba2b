"""The promises about topics that come and go, about settings, and about what retention may take; one class each, beside
those of `tests.sim.checkers`.
"""

from __future__ import annotations

from collections.abc import Iterator

from log.ids import TopicPartition
from tests.sim.history import History, Outcome, Write


class ARecreatedTopicBeginsAnew:
    """Each life of a topic holds what was sent to it and nothing else, from offset 0 on; once its deletion is
    acknowledged it is never served again.
    """

    def check(self, history: History) -> Iterator[str]:
        sent: dict[bytes, dict[bytes, None]] = {}
        for write in history.reborn_writes:
            before = sent.setdefault(write.topic_id, {})
            if write.outcome is Outcome.OK and write.base_offset > len(before):
                name = _name(write.topic_id)
                yield f"{name} had got {len(before)} records, the next one stands at {write.base_offset}"
            before.update(dict.fromkeys(write.values))
        deleted = {topic.topic_id: topic.deleted for topic in history.reborn}
        for write in history.reborn_writes:
            if write.outcome is Outcome.OK and write.invoked > deleted[write.topic_id]:
                yield f"{_name(write.topic_id)} took a batch at {write.completed:.6f}, after its deletion"
        for read in history.reborn_reads:
            name = _name(read.topic_id)
            if read.invoked > deleted[read.topic_id]:
                yield f"{name} was read at {read.completed:.6f}, after its deletion"
            known = sent.get(read.topic_id, {})
            for offset, value in read.records:
                if value not in known:
                    yield f"{name} holds {value!r:.40} at {offset}, which was not sent to it"
            found = dict(read.records)
            for write in history.reborn_writes:
                sure = write.outcome is Outcome.OK and write.completed < read.invoked
                if write.topic_id != read.topic_id or not sure:
                    continue
                if history.excused(write.held, write.invoked, read.completed):
                    continue
                for index, value in enumerate(write.values):
                    offset = write.base_offset + index
                    if offset < read.high_watermark and found.get(offset) != value:
                        yield f"{name} has lost {value!r:.40} at {offset}, read at {read.completed:.6f}"


def _name(topic_id: bytes) -> str:
    return f"the topic with the id {topic_id.hex()}"


class SettingsSurvive:
    """A setting shows the value it was given last."""

    def check(self, history: History) -> Iterator[str]:
        for seen in history.settings_seen:
            changes = [
                change
                for change in history.settings_set
                if (change.resource, change.key) == (seen.resource, seen.key) and change.invoked < seen.completed
            ]
            sure = [change for change in changes if change.outcome is Outcome.OK and change.completed < seen.invoked]
            if not sure:
                continue
            newest = max(sure, key=lambda change: change.completed)
            possible = {change.value for change in changes if change.outcome is Outcome.UNKNOWN}
            possible |= {change.value for change in changes if change.completed >= newest.completed}
            if seen.value not in possible:
                yield (
                    f"{seen.key} of {seen.resource} is {seen.value} at {seen.completed:.6f}, it was set to"
                    f" {newest.value} at {newest.completed:.6f}"
                )


class RetentionTakesTheExpiredOnly:
    """Where records go by age, an acknowledged one is there until it is as old as that, or somebody deletes it."""

    def check(self, history: History) -> Iterator[str]:
        if history.clock_jumped:
            return
        written: dict[TopicPartition, list[Write]] = {}
        for write in history.writes:
            if write.outcome is Outcome.OK and write.base_offset >= 0:
                written.setdefault(write.partition, []).append(write)
        for read in history.reads:
            kept = history.topics[read.partition.topic].retention_seconds
            if kept is None or read.partition in history.rotten:
                continue
            asked = [
                deletion.before_offset
                for deletion in history.deletions
                if deletion.partition == read.partition and deletion.invoked < read.completed
            ]
            deleted = max(asked, default=0)
            for write in written.get(read.partition, ()):
                # The cleaner may take a newer record of the batch; then the last one's own age counts.
                stamped = write.last_stamped if history.topics[write.partition.topic].compacted else write.stamped
                young = write.completed < read.invoked and stamped + kept > read.completed
                if not young or history.excused(write.held, write.invoked, read.completed):
                    continue
                last = write.base_offset + len(write.records) - 1
                if deleted <= last < read.log_start_offset and not self._superseded(history, write, written):
                    yield (
                        f"{read.partition} began at {read.log_start_offset} at {read.completed:.6f}; {last} was"
                        f" acknowledged at {write.completed:.6f}, and records are kept for {kept} seconds"
                    )

    @staticmethod
    def _superseded(history: History, write: Write, written: dict[TopicPartition, list[Write]]) -> bool:
        """Whether the cleaner may have taken the last record of this before its time: it is a deletion, or its key was
        written again.
        """
        last_key, last_value = write.records[-1]
        if not history.topics[write.partition.topic].compacted:
            return False
        return last_value is None or any(
            key == last_key
            for other in history.writes
            if other.partition == write.partition and other.outcome is not Outcome.FAILED
            if other.outcome is Outcome.UNKNOWN or other.base_offset > write.base_offset
            for key, _ in other.records
        )


ADMIN_CHECKERS = (ARecreatedTopicBeginsAnew(), SettingsSurvive(), RetentionTakesTheExpiredOnly())

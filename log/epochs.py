"""Where each leader epoch began in this log. An epoch ends where the next one begins.

What always holds: epochs and their start offsets both rise from entry to entry. From these entries two replicas find
the last offset up to which their logs agree (KIP-101, KIP-279). This is a machine; its text is that of Kafka's
`leader-epoch-checkpoint`.

Compaction may have removed an epoch's first batches. A broker that led in the epoch still knows where it began. One
that knows only the batches takes the end of the batch before the gap for its beginning. It may be later, but never
earlier: what another replica holds in the gap may be of another history, which was never committed. If it is of the
same history, and the replica has nothing of the later epoch, it is cut off although it need not be. Then it lacks
nothing: compaction has removed nothing in the gap that had not been superseded. A replica in sync is not cut so,
because it has the batch behind the gap or a later one: compaction touches only what is committed, and the last batch
that it reads stays.

    0               version
    2               number of entries
    0 0             epoch, start offset
    3 1500
"""

from bisect import bisect_right
from collections.abc import Iterable
from operator import itemgetter
from typing import Final

from log.ids import NO_EPOCH, NO_OFFSET

CHECKPOINT: Final = "leader-epoch-checkpoint"
_epoch = itemgetter(0)
_start = itemgetter(1)


class BadCheckpoint(ValueError):
    """The text is not a checkpoint of leader epochs."""


class LeaderEpochs:
    """The epochs of one log. Every change sets `changed`; storing the text clears it."""

    __slots__ = ("_entries", "changed", "latest")

    def __init__(self, entries: Iterable[tuple[int, int]] = ()) -> None:
        self._entries: list[tuple[int, int]] = []
        self.latest = NO_EPOCH
        for epoch, start_offset in entries:
            self.assign(epoch, start_offset)
        self.changed = False

    def entries(self) -> list[tuple[int, int]]:
        """(epoch, start offset), oldest first."""
        return list(self._entries)

    def assign(self, epoch: int, start_offset: int) -> None:
        """`epoch` writes from `start_offset` on. A known epoch keeps its start. Entries that contradict the new one are
        removed.
        """
        if epoch < 0 or (epoch <= self.latest and start_offset >= self._entries[-1][1]):
            return
        while self._entries and (self._entries[-1][0] >= epoch or self._entries[-1][1] >= start_offset):
            self._entries.pop()
        self._entries.append((epoch, start_offset))
        self.latest = epoch
        self.changed = True

    def epoch_at(self, offset: int) -> int:
        """The epoch that wrote `offset`, or -1 if the offset is below the start of the first known epoch."""
        slot = bisect_right(self._entries, offset, key=_start) - 1
        return self._entries[slot][0] if slot >= 0 else NO_EPOCH

    def end_offset_for_epoch(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """The largest known epoch up to `epoch` and where it ended; (-1, -1) when nothing can be said."""
        if epoch == NO_EPOCH or not self._entries or epoch > self.latest:
            return NO_EPOCH, NO_OFFSET
        if epoch == self.latest:
            return epoch, log_end_offset
        higher = bisect_right(self._entries, epoch, key=_epoch)
        known = self._entries[higher - 1][0] if higher else epoch
        return known, self._entries[higher][1]

    def truncate_from_end(self, end_offset: int) -> None:
        """The log now ends at `end_offset`: epochs that began there or later are gone."""
        while self._entries and self._entries[-1][1] >= end_offset:
            self._entries.pop()
            self.latest = self._entries[-1][0] if self._entries else NO_EPOCH
            self.changed = True

    def truncate_from_start(self, start_offset: int) -> None:
        """The log now starts at `start_offset`: epochs older than the one that wrote right before are gone. That one
        keeps its start: a replica may hold another history from there on, and must be told. So no offset from the start
        on is ever the end of an epoch that is not known.
        """
        slot = bisect_right(self._entries, start_offset - 1, key=_start) - 1
        if slot > 0:
            del self._entries[:slot]
            self.changed = True

    def clear(self) -> None:
        self._entries.clear()
        self.latest = NO_EPOCH
        self.changed = True

    def to_text(self) -> bytes:
        lines = ["0", str(len(self._entries)), *(f"{epoch} {start}" for epoch, start in self._entries)]
        return ("\n".join(lines) + "\n").encode("ascii")

    @classmethod
    def from_text(cls, text: bytes) -> "LeaderEpochs":
        """The inverse of `to_text`; `BadCheckpoint` for anything else."""
        try:
            version, count, *lines = text.decode("ascii").splitlines()
            if not text.endswith(b"\n"):
                raise BadCheckpoint("the last line has no end")
            if version != "0" or int(count) != len(lines):
                raise BadCheckpoint(f"version {version}, {count} entries announced, {len(lines)} there")
            pairs = [tuple(map(int, line.split(" "))) for line in lines]
            epochs = cls((epoch, start) for epoch, start in pairs)
        except (ValueError, UnicodeDecodeError) as error:
            raise BadCheckpoint(str(error)) from error
        if epochs._entries != pairs:
            raise BadCheckpoint("epochs and offsets do not rise")
        return epochs

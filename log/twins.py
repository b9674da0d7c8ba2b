"""Two folders of one partition: which of them holds everything that the other one holds.

They come from a move between disks whose decision a failed disk has forgotten (`relocation.py`), or from a time in
which a disk was away.

What always holds:
* Nothing is changed here: the folder that is not used is kept as it is. So a log is read by the rules of recovery, and
  ends before the first wrong batch, but that batch stays.
* A log is a part of another one if its last batch, or what compaction left of it, is there, too: two logs with the same
  leader epoch at an offset are the same below it. That is not left to the epochs alone: all batches that neither
  compaction nor retention may have touched must be there, and no batch may have records that are not in the other
  log's batch of the same offsets. A log without a batch is a part of each log that ends no lower, unless more was
  deleted in it than in that one.
* A log of which the other one may have compacted the last batch away is a part if none of the broker's data folders was
  ever away: then one of the two is the copy that a move made of the other one, and nothing was written to the other one
  since.
* A log in which compaction was changing names is read as it is when all of them are changed.
* What is not sure is no: a log that lacks what was durable in it, or one that starts above all that stands in it.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from log.batch import CHECKED_FROM, CorruptBatch, crc32c, read_records
from log.checkpoints import CLEANED_OFFSET, DAMAGED_OFFSET, GAPS_OFFSET, START_OFFSET, read_offset
from log.disk import Disk
from log.ids import NO_EPOCH
from log.recovery import whole_batches
from log.segment import LOG_SUFFIX, segment_name
from log.swap import BadPlan, names_after_swap, read_plan


@dataclass(frozen=True, slots=True)
class Seen:
    """A whole, correct batch."""

    base_offset: int
    next_offset: int
    leader_epoch: int
    crc: int
    content: bytes = field(compare=False, repr=False)


def _remains(one: Seen, other: Seen) -> bool | None:
    """Whether one of the batches is what compaction has left of the other one. None: nothing is left to tell it by."""
    if (one.base_offset, one.next_offset, one.leader_epoch) != (
        other.base_offset,
        other.next_offset,
        other.leader_epoch,
    ):
        return False
    try:
        less, more = sorted((list(read_records(each.content)) for each in (one, other)), key=len)
    except CorruptBatch:
        return False
    had = {record.offset: record for record in more}
    return all(had.get(record.offset) == record for record in less) if less else None


class Twin:
    """The log in `folder`, read and not touched. Everything below `recovery_point` was durable in it once. `doubt` says
    why it can't be judged; it is empty if it can.
    """

    def __init__(self, disk: Disk, folder: str, recovery_point: int) -> None:
        self._disk: Final = disk
        self._folder: Final = folder
        self._names: dict[int, str] = {}
        """Of the segments, by base offset and in this order."""
        self.doubt = ""
        self.kept_start = self.changed_below = self.start_offset = self.end_offset = 0
        self.copied_below = 0
        """A copy was made whole up to here, or has gaps from another broker's compaction."""
        self.trusted_offset = recovery_point
        try:
            self._look()
        except OSError as error:
            self.doubt = f"it can't be read: {error.strerror or error}"
        except BadPlan as error:
            self.doubt = str(error)

    def _look(self) -> None:
        disk, folder = self._disk, self._folder
        names = disk.listdir(folder)
        logs = {name for name in names if name.endswith(LOG_SUFFIX)}
        numbers = [name.removesuffix(LOG_SUFFIX) for name in logs]
        found = {int(number): f"{number}{LOG_SUFFIX}" for number in numbers if number.isdecimal()}
        has_others = logs != {segment_name(base_offset) for base_offset in found}
        plan = read_plan(disk, folder)
        if plan is not None:
            found = names_after_swap(plan, found, names)
        self._names = dict(sorted(found.items()))
        first = next(iter(self._names), 0)
        self.copied_below = read_offset(disk, folder, GAPS_OFFSET) or 0
        cleaned_below = plan.cleaned_offset if plan is not None else 0
        noted = (read_offset(disk, folder, CLEANED_OFFSET) or 0, cleaned_below, self.copied_below)
        self.kept_start = read_offset(disk, folder, START_OFFSET) or 0
        self.changed_below = max(first, *noted)
        self.trusted_offset = max(self.trusted_offset, *noted)
        self.start_offset = max(self.kept_start, first)
        self.end_offset = self.start_offset
        has_batches, ended = False, self.start_offset
        for ended, batch in self._read():
            self.end_offset = max(ended, self.start_offset)
            has_batches = has_batches or batch is not None
        if self.end_offset < self.trusted_offset:
            self.doubt = f"it had offsets up to {self.trusted_offset - 1} once"
        elif has_others:
            self.doubt = "it has files that are nearly called like segments"
        elif has_batches and ended < self.kept_start:
            self.doubt = "it starts above all that stands in it"
        elif read_offset(disk, folder, DAMAGED_OFFSET) is not None:
            self.doubt = "a read has found damage in it"

    def batches(self) -> Iterator[Seen]:
        return (batch for _, batch in self._read() if batch is not None)

    def _read(self) -> Iterator[tuple[int, Seen | None]]:
        """The batches, each with the offset up to which the log is read then. A segment may begin behind a gap."""
        expected, latest = next(iter(self._names), 0), NO_EPOCH
        for base_offset, name in self._names.items():
            if base_offset != expected and not expected < base_offset <= self.trusted_offset:
                return
            expected = base_offset
            yield expected, None
            file = self._disk.open(f"{self._folder}/{name}")
            try:
                size_bytes, ended = file.size, 0
                for position, header, chunk, at in whole_batches(file, 0, size_bytes):
                    follows = header.base_offset == expected or expected < header.base_offset < self.trusted_offset
                    is_older = header.leader_epoch < latest and header.leader_epoch != NO_EPOCH
                    is_right = crc32c(chunk[at + CHECKED_FROM : at + header.size_bytes]) == header.crc
                    if not follows or is_older or not is_right:
                        return
                    expected, ended = header.next_offset, position + header.size_bytes
                    latest = max(latest, header.leader_epoch)
                    content = bytes(chunk[at : at + header.size_bytes])
                    yield expected, Seen(header.base_offset, expected, header.leader_epoch, header.crc, content)
                if ended < size_bytes:
                    return
            finally:
                file.close()

    def __str__(self) -> str:
        holds = f"offsets {self.start_offset} to {self.end_offset - 1}"
        if self.start_offset == self.end_offset:
            holds = f"nothing, and ends at offset {self.end_offset}"
        return f"{holds}; {self.doubt}" if self.doubt else holds


def is_part(twin: Twin, whole: Twin, *, was_away: bool) -> bool:
    """Whether `whole` holds all batches of `twin`. False if that is not sure. `was_away`: the broker may have been
    started without one of its data folders since there are two logs.
    """
    if twin.doubt or whole.doubt or twin.end_offset > whole.end_offset:
        return False
    try:
        is_there = _are_there(twin, whole)
    except OSError:
        return False
    return is_there is True or (is_there is None and not was_away and twin.end_offset <= whole.copied_below)


def are_parts(twins: Iterable[Twin], whole: Twin, *, was_away: bool) -> bool:
    return all(is_part(twin, whole, was_away=was_away) for twin in twins)


def _are_there(twin: Twin, whole: Twin) -> bool | None:
    """None: nothing speaks against it, but the last batch is not there."""
    changed_below = max(twin.changed_below, whole.changed_below)
    # What was deleted in a log without a batch may have been another log's.
    is_there: bool | None = twin.kept_start <= whole.start_offset
    others = whole.batches()
    other = next(others, None)
    for batch in twin.batches():
        while other is not None and other.next_offset <= batch.base_offset:
            other = next(others, None)
        if other == batch:
            is_there = True
            continue
        if batch.base_offset >= changed_below:
            return False
        is_there = None
        if other is not None and other.base_offset < batch.next_offset:
            is_there = _remains(batch, other)
            if is_there is False:
                return False
    return is_there


def fullest(twins: list[Twin]) -> Twin:
    """The one that ends last. Of equal ones that of which more is known to be durable: a move makes the folder that it
    leaves count as not durable. Then the first one.
    """
    return max(twins, key=lambda twin: (twin.end_offset, twin.trusted_offset))

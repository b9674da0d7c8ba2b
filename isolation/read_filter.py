"""The reader's part of isolation: it finds, among stored batches, those that an application may see.

Kafka's clients have this filter, too, because a broker returns all batches. What always holds: markers are never shown.
A batch is dropped if it belongs to an aborted transaction of its producer. All others are shown, in the order of the
log.
"""

from collections.abc import Iterable, Iterator

from log.batch import BatchHeader, Buffer, split
from log.control import ControlType, read_marker


class AbortedBatches:
    """Which batches belong to transactions that were aborted: from the first offset of each until its marker.

    Batches are asked about in the order of the log.
    """

    def __init__(self, aborted: Iterable[tuple[int, int]]) -> None:
        """`aborted`: producer ids and first offsets, as they come with the batches."""
        self._starting = sorted(((first_offset, producer_id) for producer_id, first_offset in aborted), reverse=True)
        self._open: dict[int, None] = {}

    def covers(self, header: BatchHeader, batch: Buffer) -> bool:
        while self._starting and self._starting[-1][0] <= header.last_offset:
            self._open[self._starting.pop()[1]] = None
        if header.is_control:
            if header.producer_id in self._open and read_marker(batch).type is ControlType.ABORT:
                del self._open[header.producer_id]
            return False
        return header.is_transactional and header.producer_id in self._open


def visible_batches(
    batches: Buffer, aborted: Iterable[tuple[int, int]] | None
) -> Iterator[tuple[BatchHeader, memoryview]]:
    """The data batches to show. `aborted` is the list that came with them; None: a reader of uncommitted data, who
    sees all data.
    """
    ranges = AbortedBatches(aborted or ())
    for header, batch in split(batches):
        if not ranges.covers(header, batch) and not header.is_control:
            yield header, batch

"""Which batches a compaction takes away with their records, and which it keeps without any.

Whether a tombstone or a marker is too young to leave, `CleaningJob.may_forget` says.
"""

from bisect import bisect_left
from collections.abc import Sequence

from log.batch import BatchHeader


class AbortedTransactions:
    """Which batches belong to transactions that were aborted."""

    def __init__(self, aborted: Sequence[int]) -> None:
        self._ranges: dict[int, list[tuple[int, int]]] = {}
        triples = zip(aborted[::3], aborted[1::3], aborted[2::3], strict=True)
        for producer_id, first_offset, last_offset in sorted(triples, key=lambda triple: triple[2]):
            self._ranges.setdefault(producer_id, []).append((last_offset, first_offset))

    def is_aborted(self, header: BatchHeader) -> bool:
        ranges = self._ranges.get(header.producer_id)
        if ranges is None or not header.is_transactional:
            return False
        # The transactions of one producer never overlap. So only the first one that ends after the batch's base offset
        # can hold the batch.
        slot = bisect_left(ranges, (header.base_offset, -1))
        return slot < len(ranges) and ranges[slot][1] <= header.base_offset


class LastBatches:
    """Which batches and markers stay in the log, even without records: what producers are known by, and the last batch
    of what is cleaned, which ends at `end_offset`.
    """

    def __init__(self, batches: Sequence[int], markers: Sequence[int], end_offset: int) -> None:
        self._end_offset = end_offset
        self._offsets = dict(zip(batches[::2], batches[1::2], strict=True))
        self._markers = dict(zip(markers[::3], zip(markers[1::3], markers[2::3], strict=True), strict=True))

    def is_last(self, header: BatchHeader) -> bool:
        if header.next_offset == self._end_offset:
            return True
        if header.is_control:
            return self._markers.get(header.producer_id) == (header.producer_epoch, header.max_timestamp)
        return self._offsets.get(header.producer_id) == header.last_offset

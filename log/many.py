"""Many batches at once: their headers as columns, for a recovery that must look at millions of small batches.

What always holds: a batch that passes here would also pass the check batch by batch (`log.recovery`). Anything unusual
ends the stretch, and is then judged batch by batch. tests/properties/test_log_many.py compares both ways.

numpy takes a tenth of a second to import. So it is imported only when a large segment is read.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from log.batch import (
    CHECKED_FROM,
    CONTROL,
    DELETE_HORIZON,
    HEADER_BYTES,
    LENGTH_AT,
    LOG_APPEND_TIME,
    MAGIC,
    PREFIX_BYTES,
    TRANSACTIONAL,
    crc32c,
)
from log.ids import NO_TIMESTAMP

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]

KEPT_OF_A_PRODUCER: Final = 5
"""Between two markers the folds need to see the first of each producer's batches and so many of the last ones."""
_FIELDS: Final = (
    ("base_offset", ">i8"),
    ("length", ">i4"),
    ("leader_epoch", ">i4"),
    ("magic", "i1"),
    ("crc", ">u4"),
    ("attributes", ">i2"),
    ("last_offset_delta", ">i4"),
    ("base_timestamp", ">i8"),
    ("max_timestamp", ">i8"),
    ("producer_id", ">i8"),
    ("producer_epoch", ">i2"),
    ("base_sequence", ">i4"),
    ("record_count", ">i4"),
)
_read_length = struct.Struct(f">{LENGTH_AT}xi").unpack_from


class Stretch(NamedTuple):
    """Correct batches that follow each other in the file. Each column has one number for each batch."""

    starts: Numbers
    sizes: Numbers
    base_offsets: Numbers
    last_offsets: Numbers
    leader_epochs: Numbers
    newest_timestamps: Numbers
    attributes: Numbers
    producer_ids: Numbers
    base_sequences: Numbers


def right_stretch(chunk: bytes, *, expected: int, gaps_below: int) -> Stretch:
    """The batches at the beginning of `chunk` that are whole, have a correct checksum, and follow each other without
    gaps from the offset `expected` on. Below `gaps_below` there may be gaps. Leader epochs are not checked here.
    """
    import numpy as np

    bounds = _bounds(chunk)
    starts, ends = bounds[:-1], bounds[1:]
    if not starts:
        empty: Numbers = np.empty(0, np.int64)
        return Stretch(*[empty] * len(Stretch._fields))
    layout = np.dtype(list(_FIELDS))
    at = np.array(starts, np.int64)
    headers = np.ndarray((len(chunk) - HEADER_BYTES + 1,), layout, chunk, strides=(1,))[at]
    view = memoryview(chunk)
    checksums = np.array(
        [crc32c(view[start + CHECKED_FROM : end]) for start, end in zip(starts, ends, strict=True)], np.uint32
    )
    base_offsets, deltas = headers["base_offset"].astype(np.int64), headers["last_offset_delta"].astype(np.int64)
    last_offsets = base_offsets + deltas
    due = np.concatenate((np.array([expected], np.int64), last_offsets[:-1] + 1))
    follows = (base_offsets == due) | ((due < base_offsets) & (base_offsets < gaps_below))
    sound = (headers["magic"] == MAGIC) & (base_offsets >= 0) & (deltas >= 0) & (headers["record_count"] >= 0)
    right = follows & sound & (checksums == headers["crc"])
    count = len(starts) if right.all() else int(np.argmin(right))
    attributes = headers["attributes"].astype(np.int64)
    columns = (
        at,
        np.array(ends, np.int64) - at,
        base_offsets,
        last_offsets,
        headers["leader_epoch"].astype(np.int64),
        _newest_timestamps(headers["base_timestamp"], headers["max_timestamp"], attributes),
        attributes,
        headers["producer_id"].astype(np.int64),
        headers["base_sequence"].astype(np.int64),
    )
    return Stretch(*(column[:count] for column in columns))


def _bounds(chunk: bytes) -> list[int]:
    """Where each whole batch starts, and where the last one ends, by their lengths."""
    at, size_bytes = 0, len(chunk)
    bounds = [0]
    while at + HEADER_BYTES <= size_bytes:
        (length,) = _read_length(chunk, at)
        at += length + PREFIX_BYTES
        if length < HEADER_BYTES - PREFIX_BYTES or at > size_bytes:
            break
        bounds.append(at)
    return bounds


def _newest_timestamps(base: Numbers, newest: Numbers, attributes: Numbers) -> Numbers:
    """`BatchHeader.newest_timestamp` of many batches."""
    import numpy as np

    stamped = (attributes & (LOG_APPEND_TIME | DELETE_HORIZON)) != 0
    timed = np.where((newest <= 0) & (base < 0), NO_TIMESTAMP, np.maximum(base, newest))
    return np.where(stamped, newest, timed).astype(np.int64)


def worth_folding(stretch: Stretch) -> Sequence[int]:
    """The batches that folds over producers and transactions must see: every marker, and between two markers the first
    and the last few batches of each producer, for each kind of batch (transactional or not, with a sequence or not).
    """
    import numpy as np

    markers = (stretch.attributes & CONTROL) != 0
    written = np.flatnonzero((stretch.producer_ids >= 0) & ~markers)
    kinds = (stretch.attributes & TRANSACTIONAL) * 2 + (stretch.base_sequences < 0)
    keys = np.stack((kinds, stretch.producer_ids, np.cumsum(markers)))[:, written]
    order = np.lexsort((written, *keys))
    written, keys = written[order], keys[:, order]
    begins = np.ones(len(written) + 1, bool)
    begins[1:-1] = (keys[:, 1:] != keys[:, :-1]).any(axis=0)
    kept = begins[:-1].copy()
    for back in range(min(KEPT_OF_A_PRODUCER, len(written))):
        kept[: len(written) - back] |= begins[1 + back :]
    chosen: list[int] = np.sort(np.concatenate((np.flatnonzero(markers), written[kept]))).tolist()
    return chosen


def index_entries(stretch: Stretch, *, unindexed_bytes: int, interval_bytes: int) -> list[int]:
    """At which batches an index gets its entries. `unindexed_bytes` lie between the last entry and the first batch."""
    import numpy as np

    before = np.concatenate((np.zeros(1, np.int64), np.cumsum(stretch.sizes)[:-1]))
    entries: list[int] = []
    due = interval_bytes - unindexed_bytes
    while (at := int(np.searchsorted(before, due, side="right"))) < len(before):
        entries.append(at)
        due = int(before[at]) + interval_bytes
    return entries


def largest_so_far(stretch: Stretch, largest: int) -> tuple[Numbers, Numbers]:
    """For each batch: the largest timestamp up to it, and which batch has that (-1: `largest` was there before)."""
    import numpy as np

    so_far = np.maximum.accumulate(np.maximum(stretch.newest_timestamps, largest))
    before = np.concatenate((np.array([largest], np.int64), so_far[:-1]))
    bringers = np.where(stretch.newest_timestamps > before, np.arange(len(so_far)), -1)
    return so_far, np.maximum.accumulate(bringers)


def epoch_changes(stretch: Stretch, latest: int) -> list[tuple[int, int]]:
    """At which batches another leader epoch begins, and which epoch."""
    import numpy as np

    epochs = np.concatenate((np.array([latest], np.int64), stretch.leader_epochs))
    return [(int(at), int(epochs[at + 1])) for at in np.flatnonzero(epochs[1:] != epochs[:-1])]

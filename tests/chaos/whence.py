"""Where records come from, as the segments in a broker's data folder tell it: which batch they are in, and of which
producer it is. If a value is there twice, that tells whether it was sent twice or one append was repeated.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from idempotence.sequence import MAX_SEQUENCE
from log.batch import BatchHeader, CorruptBatch, split


def whence(folders: Iterable[Path], topic: str, partition: int, offsets: Iterable[int]) -> str:
    """One of `folders` after the other is read until all are found. They may belong to brokers that run."""
    missing, found = set(offsets), {}
    for folder in folders:
        for header in _batches(folder / f"{topic}-{partition}"):
            for offset in [each for each in missing if header.base_offset <= each <= header.last_offset]:
                found[offset] = _told(header, offset)
                missing.remove(offset)
    found |= {offset: f"offset {offset}: in no segment" for offset in missing}
    return "; ".join(found[offset] for offset in sorted(found))


def _batches(folder: Path) -> Iterator[BatchHeader]:
    for segment in sorted(folder.glob("*.log")):
        try:
            for header, _ in split(segment.read_bytes()):
                yield header
        except CorruptBatch:  # it is written to
            continue


def _told(header: BatchHeader, offset: int) -> str:
    told = f"offset {offset}: leader epoch {header.leader_epoch}, batch at {header.base_offset}"
    if header.producer_id < 0:
        return f"{told}, no producer id"
    sequence = (header.base_sequence + offset - header.base_offset) % (MAX_SEQUENCE + 1)
    return f"{told}, producer {header.producer_id}, epoch {header.producer_epoch}, sequence {sequence}"

"""Changes what a stopped broker has written: takes its newest batches away, as if it had died before it wrote them, and
ages a producer by all the epochs there are.

A process killed with SIGKILL loses nothing that it had written, so a death between two writes is made afterwards: the
later one is cut off. Works on segments of the format that Kafka and we share; the partitions of tests have one.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from log.batch import CHECKED_FROM, CRC_AT, crc32c, read_header, read_records

MARKER_BYTES = 78  # of a batch with one control record
EPOCH_AT = 2 + 8  # version, producer id
STATUS_AT = EPOCH_AT + 2 + 4  # epoch, timeout
STATES = ("Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort")


class Stored(NamedTuple):
    """One batch in a segment."""

    segment: Path
    position: int
    control: bool
    data: bytes


def stored(folder: Path) -> Iterator[Stored]:
    for segment in sorted(folder.glob("*.log")):
        whole, at = segment.read_bytes(), 0
        while at + 61 <= len(whole):
            header = read_header(whole, at)
            if header.size_bytes <= 12 or header.magic != 2:
                break  # room that was kept free
            yield Stored(segment, at, header.is_control, whole[at : at + header.size_bytes])
            at += header.size_bytes


def cut_from(batch: Stored) -> None:
    """This batch and those behind it were never written."""
    with batch.segment.open("r+b") as file:
        file.truncate(batch.position)


def cut_last_marker(data: Path, topic: str, partition: int = 0) -> None:
    *_, last = stored(data / f"{topic}-{partition}")
    assert last.control, "the last batch of the partition is no marker"
    cut_from(last)


def cut_back_to(data: Path, transactional_id: str, state: str) -> None:
    """The coordinator's last word on this id is that it is in `state`: whatever came after was never written."""
    found = False
    for folder in sorted(data.glob("__transaction_state-*")):
        for batch in stored(folder):
            for value in _values(batch, transactional_id):
                if found:
                    cut_from(batch)
                    return
                found = STATES[value[STATUS_AT]] == state
    assert found, f"{transactional_id} was never in {state}"


def set_epoch(data: Path, transactional_id: str, epoch: int) -> None:
    """The coordinator's last word on this id is that its producer has come to this epoch."""
    last = None
    for folder in sorted(data.glob("__transaction_state-*")):
        for batch in stored(folder):
            for value in _values(batch, transactional_id):
                last = batch, value
    assert last is not None, f"nobody knows {transactional_id}"
    batch, value = last
    aged = bytearray(batch.data)
    at = aged.index(value) + EPOCH_AT
    aged[at : at + 2] = struct.pack(">h", epoch)
    aged[CRC_AT:CHECKED_FROM] = crc32c(aged[CHECKED_FROM:]).to_bytes(4, "big")
    with batch.segment.open("r+b") as file:
        file.seek(batch.position)
        file.write(aged)


def _values(batch: Stored, transactional_id: str) -> Iterator[bytes]:
    """What a batch of the coordinator's says of this id."""
    if batch.control:
        return
    for record in read_records(batch.data, read_header(batch.data)):
        assert record.key is not None
        (version,) = struct.unpack_from(">h", record.key)
        if version == 0 and record.key[4:] == transactional_id.encode() and record.value is not None:
            yield record.value

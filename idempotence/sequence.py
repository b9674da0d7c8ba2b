"""Arithmetic of producer sequences.

A producer numbers its records for each partition from 0; 2147483647 is followed by 0 again. A batch carries the number
of its first record; the number of its last record follows from the batch's offset delta. -1 means "nothing written
yet"; its successor is 0.
"""

from typing import Final

MAX_SEQUENCE: Final = 2**31 - 1


def next_sequence(sequence: int) -> int:
    """What must follow `sequence` (the number of the last record written, -1 if there is none)."""
    return (sequence + 1) & MAX_SEQUENCE


def last_sequence(first_sequence: int, last_offset_delta: int) -> int:
    """The number of a batch's last record."""
    return (first_sequence + last_offset_delta) & MAX_SEQUENCE


def first_sequence(last_sequence: int, last_offset_delta: int) -> int:
    """The number of a batch's first record, from its last."""
    return (last_sequence - last_offset_delta) & MAX_SEQUENCE

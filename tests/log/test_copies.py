"""Long copies are made in steps, and are the same as those that are made at once."""

from typing import Any

import pytest

from log.batch import NewRecord, build_batch, build_long_batch
from log.copies import COPIED_AT_ONCE, Buffer, joined, joined_to_write
from log.steps import done_at_once

LONG = bytes(range(256)) * (20 * COPIED_AT_ONCE // 256)


@pytest.mark.parametrize("pieces", [[], [b""], [b"a", b"", b"bc"], [LONG], [LONG[:-1], b"x", memoryview(LONG)]])
def test_pieces_are_joined(pieces: list[Buffer]) -> None:
    whole = b"".join(pieces)
    assert done_at_once(joined(pieces)) == whole
    written = done_at_once(joined_to_write(pieces))
    assert written == whole
    if whole:
        written[0] = 255 - written[0]
        assert b"".join(pieces) == whole, "it is a copy"


@pytest.mark.parametrize("pieces", [[LONG], [LONG[: 64 << 10]] * 320, [b"x"] * 60_000])
def test_a_long_copy_takes_many_steps(pieces: list[bytes]) -> None:
    assert sum(1 for _ in joined(pieces)) >= 20


@pytest.mark.parametrize(
    "record",
    [
        (None, None, (), 0),
        (b"", b"", (("", b""), ("a", None)), 2**63 - 1),
        (b"k" * 70, LONG, (("a", b"b" * 300), ("\udcff", b"c")), 1_700_000_000_000),
        (LONG, None, tuple((str(number), b"v") for number in range(10_000)), 5),
    ],
    ids=["nothing", "empty", "a long value", "a long key and many headers"],
)
def test_a_long_batch_is_the_same_as_others(record: NewRecord) -> None:
    assert done_at_once(build_long_batch(record)) == build_batch([record])
    of: dict[str, Any] = {"producer_id": 2**40, "producer_epoch": 3, "base_sequence": 2**31 - 1}
    assert done_at_once(build_long_batch(record, **of, transactional=True)) == build_batch(
        [record], **of, transactional=True
    )


def test_a_long_record_is_built_in_steps() -> None:
    assert sum(1 for _ in build_long_batch((b"k", LONG, (), 1))) >= 20

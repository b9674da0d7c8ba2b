"""What is told of a value that is there twice: of which batches and producers the two are."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from log.batch import build_batch, restamp
from tests.chaos.cluster.verdict import Read, Verdict, judge_transactions, judge_values
from tests.chaos.cluster.writers import Ending, Told, Transaction
from tests.chaos.whence import whence
from tests.log.building import stamped


def test_offsets_are_looked_up_in_the_segments_of_the_broker_that_has_them(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        (folder / "orders-1").mkdir(parents=True)
    (first / "orders-1" / "00000000000000000000.log").write_bytes(stamped([b"a", b"b"], base_offset=0))
    records = [(b"key", value, (), 1000) for value in (b"a", b"b", b"c")]
    batch = bytearray(build_batch(records, producer_id=7, producer_epoch=3, base_sequence=2**31 - 2))
    restamp(batch, base_offset=10, leader_epoch=5)
    written_to = stamped([b"late"], base_offset=13)[:-1]
    (second / "orders-1" / "00000000000000000010.log").write_bytes(batch + written_to)
    assert whence([first, second], "orders", 1, [12, 1, 13]) == (
        "offset 1: leader epoch 0, batch at 0, no producer id; "
        "offset 12: leader epoch 5, batch at 10, producer 7, epoch 3, sequence 0; "
        "offset 13: in no segment"
    )


def _places(topic: str, partition: int, offsets: Iterable[int]) -> str:
    return f"{topic}-{partition} at {list(offsets)}"


def test_a_doubled_value_is_told_with_both_its_places() -> None:
    verdict = Verdict()
    told = Told([{3: 1}], [set()])
    judge_values(verdict, "orders", told, [[(3, None, b"1"), (4, None, b"1")]], "read_committed", _places)
    assert verdict.doubled == ["orders-0, read_committed: value 1, 2 times: orders-0 at [3, 4]"]


def test_a_doubled_value_of_a_transaction_is_told_with_both_its_places() -> None:
    verdict = Verdict()
    read: list[Read] = [[(3, b"w", b"0.0")], [(8, b"w", b"0.1"), (9, b"w", b"0.0")]]
    judge_transactions(verdict, "w", [Transaction(2, Ending.COMMITTED)], "orders", read, _places)
    assert verdict.doubled == [
        "w: transaction 0, committed: 2 of 2: value 0.0 in partition 0: orders-0 at [3], in 1: orders-1 at [9]"
    ]
    assert not verdict.lost + verdict.torn + verdict.unlike

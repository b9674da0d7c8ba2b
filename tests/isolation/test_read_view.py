from functools import partial

import pytest

from isolation.aborted import AbortedRange
from isolation.read_view import FollowerIsolation, Isolation, aborted_transactions, readable_end_offset
from isolation.stable import StableOffsets
from tests import batches
from tests.rules import rule


@rule("B.9", "isolation 0 reads below the high watermark, 1 below the last stable offset, a replica to the log's end")
@pytest.mark.parametrize(
    ("isolation", "end_offset"),
    [(Isolation.READ_UNCOMMITTED, 8), (Isolation.READ_COMMITTED, 5), (FollowerIsolation.LOG_END, 10)],
)
def test_each_reader_has_its_own_end(isolation: Isolation | FollowerIsolation, end_offset: int) -> None:
    assert readable_end_offset(isolation, log_end_offset=10, high_watermark=8, last_stable_offset=5) == end_offset


def test_an_isolation_is_its_number_on_the_wire() -> None:
    assert Isolation(0) is Isolation.READ_UNCOMMITTED
    assert Isolation(1) is Isolation.READ_COMMITTED


@rule("B.9", "a reader of uncommitted data gets no aborted list (null, not empty)")
def test_only_a_reader_of_committed_data_gets_a_list() -> None:
    stable = StableOffsets()
    told = partial(aborted_transactions, stable=stable, fetch_offset=0, next_offset=9)
    none = told(Isolation.READ_COMMITTED)
    assert none is not None
    assert list(none) == []
    stable.apply(*batches.data(4, offset=0, transactional=True))
    stable.apply(*batches.marker(4, commit=False, offset=1))
    assert list(told(Isolation.READ_COMMITTED) or ()) == [AbortedRange(4, 0, 1)]
    assert told(Isolation.READ_UNCOMMITTED) is None
    assert told(FollowerIsolation.LOG_END) is None

"""A partition's isolation against oracles that search the whole log, at every step and for every range that can be
read.
"""

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from idempotence.producers import ProducerStates
from isolation.read_filter import visible_batches
from isolation.read_view import Isolation, aborted_transactions
from isolation.stable import StableOffsets
from log.steps import done_at_once
from log.views import View, whole
from tests import batches
from tests.rules import rule


@dataclass(frozen=True)
class Written:
    """One batch and what an oracle needs to know of it."""

    batch: batches.Batch
    producer_id: int
    kind: str  # plain, data, commit, abort


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["plain", "data", "data", "data", "commit", "abort"]), st.integers(1, 4), st.integers(1, 3)
    ),
    max_size=40,
)


def build_log(steps: list[tuple[str, int, int]]) -> list[Written]:
    log, offset = [], 0
    for kind, producer_id, count in steps:
        if kind in ("commit", "abort"):
            batch = batches.marker(producer_id, commit=kind == "commit", offset=offset)
        else:
            batch = batches.data(producer_id, count=count, offset=offset, transactional=kind == "data")
        log.append(Written(batch, producer_id, kind))
        offset = batch[0].next_offset
    return log


def outcome_of(log: list[Written], index: int) -> tuple[str, int] | None:
    """How the transaction of the data batch at `index` ended, and where its marker stands; None while it is open."""
    for later in log[index + 1 :]:
        if later.producer_id == log[index].producer_id and later.kind in ("commit", "abort"):
            return later.kind, later.batch[0].base_offset
    return None


def stable_offset(log: list[Written], high_watermark: int) -> int:
    """The least offset of a transactional batch that is undecided, or decided by a marker not below the high
    watermark.
    """
    unstable = [high_watermark]
    for index, written in enumerate(log):
        if written.kind == "data":
            outcome = outcome_of(log, index)
            if outcome is None or outcome[1] >= high_watermark:
                unstable.append(written.batch[0].base_offset)
    return min(unstable)


@rule("B.9", "the last stable offset, compared with a search of the whole log at every step and high watermark")
@settings(deadline=None, max_examples=400)
@given(STEPS, st.data())
def test_the_last_stable_offset_is_that_of_a_full_search(
    steps: list[tuple[str, int, int]], data: st.DataObject
) -> None:
    log = build_log(steps)
    stable = StableOffsets()
    high_watermark, previous = 0, 0
    for index, written in enumerate(log):
        stable.apply(*written.batch)
        ends = [batch.batch[0].next_offset for batch in log[: index + 1]]
        high_watermark = data.draw(st.sampled_from([high_watermark, *(end for end in ends if end > high_watermark)]))
        found = stable.last_stable_offset(high_watermark, 0)
        assert found == stable_offset(log[: index + 1], high_watermark)
        assert previous <= found <= high_watermark
        previous = found
        if data.draw(st.booleans()):
            saved = whole(stable.snapshot())
            done_at_once(stable.restoring(saved))
            assert whole(stable.snapshot()) == saved
            assert stable.last_stable_offset(high_watermark, 0) == found


@rule(
    "B.9", "a reader of committed data sees exactly the committed batches below the last stable offset, from any offset"
)
@settings(deadline=None)
@given(STEPS)
def test_a_reader_sees_committed_batches_and_nothing_else(steps: list[tuple[str, int, int]]) -> None:
    log = build_log(steps)
    stable = StableOffsets()
    for written in log:
        stable.apply(*written.batch)
    end_offset = log[-1].batch[0].next_offset if log else 0
    limit = stable.last_stable_offset(end_offset, 0)
    readable = [written for written in log if written.batch[0].next_offset <= limit]
    shown = [
        written.batch[0].base_offset
        for index, written in enumerate(log)
        if written.kind == "plain" or (written.kind == "data" and (outcome_of(log, index) or ("", 0))[0] == "commit")
    ]
    for begin in range(len(readable)):
        for end in range(begin + 1, len(readable) + 1):
            part = readable[begin:end]
            first_offset, next_offset = part[0].batch[0].base_offset, part[-1].batch[0].next_offset
            fetched = b"".join(written.batch[1] for written in part)
            aborted = aborted_transactions(
                Isolation.READ_COMMITTED, stable, fetch_offset=first_offset, next_offset=next_offset
            )
            told = [(each.producer_id, each.first_offset) for each in aborted or ()]
            seen = [header.base_offset for header, _ in visible_batches(fetched, told)]
            assert seen == [offset for offset in shown if first_offset <= offset < next_offset]


@given(STEPS)
def test_a_reader_of_uncommitted_data_sees_all_data_and_no_marker(steps: list[tuple[str, int, int]]) -> None:
    log = build_log(steps)
    fetched = b"".join(written.batch[1] for written in log)
    seen = [header.base_offset for header, _ in visible_batches(fetched, None)]
    assert seen == [written.batch[0].base_offset for written in log if written.kind in ("plain", "data")]


def test_both_folds_are_views_of_a_log() -> None:
    stable = StableOffsets()
    views: list[View] = [stable, ProducerStates(stable.open_transactions)]
    assert [view.name for view in views] == ["stable", "producers"]

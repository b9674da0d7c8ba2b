"""The packed producers' view against a naive model written from the rules, step by step, with restarts in between."""

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from idempotence.producers import ProducerStates
from idempotence.verdicts import ACCEPTED, Duplicate, OutOfOrder, StaleEpoch, TransactionOpen, Verdict
from isolation.stable import StableOffsets
from log.steps import done_at_once
from log.views import whole
from tests import batches
from tests.rules import rule

WRAP = 2**31


@dataclass
class NaiveProducer:
    """Every batch of the producer's current epoch, as objects."""

    epoch: int
    sequences: list[tuple[int, int, int]] = field(default_factory=list)  # first, last, first offset
    open_since: int | None = None


class NaivePartition:
    """The rules of B.1 as one would tell them, without an eye to memory or time."""

    def __init__(self) -> None:
        self.producers: dict[int, NaiveProducer] = {}

    def check(self, producer_id: int, epoch: int, sequence: int, count: int, transactional: bool) -> Verdict:
        last = (sequence + count - 1) % WRAP
        known = self.producers.get(producer_id)
        if known is None:
            return ACCEPTED
        if epoch == known.epoch:
            for first, end, offset in known.sequences[-5:]:
                if (first, end) == (sequence, last):
                    return Duplicate(offset, offset + count - 1, 1_000)
        if epoch < known.epoch:
            return StaleEpoch(epoch, known.epoch)
        goes_on = epoch == known.epoch and known.sequences
        expected = (known.sequences[-1][1] + 1) % WRAP if goes_on else 0
        if sequence != expected:
            return OutOfOrder(sequence, expected)
        if known.open_since is not None and not transactional:
            return TransactionOpen(known.open_since)
        return ACCEPTED

    def append(self, producer_id: int, epoch: int, sequence: int, count: int, transactional: bool, offset: int) -> None:
        known = self.producers.setdefault(producer_id, NaiveProducer(epoch))
        if known.epoch != epoch:
            known.epoch, known.sequences = epoch, []
        known.sequences.append((sequence, (sequence + count - 1) % WRAP, offset))
        if transactional and known.open_since is None:
            known.open_since = offset

    def end(self, producer_id: int, epoch: int) -> None:
        known = self.producers.setdefault(producer_id, NaiveProducer(epoch))
        if known.epoch != epoch:
            known.epoch, known.sequences = epoch, []
        known.open_since = None


WRITES = st.tuples(
    st.just("write"),
    st.integers(1, 2),
    st.integers(0, 2),
    st.integers(0, 6) | st.sampled_from([WRAP - 3, WRAP - 2, WRAP - 1]),
    st.integers(1, 3),
    st.booleans(),
)
FOLLOWS = st.tuples(st.just("follow"), st.integers(1, 2), st.integers(1, 3), st.booleans())
REPEATS = st.tuples(st.just("repeat"), st.integers(1, 2), st.integers(1, 6))
MARKERS = st.tuples(st.just("end"), st.integers(1, 2), st.integers(0, 1), st.booleans())
RESTARTS = st.tuples(st.just("restart"))
STEPS = st.lists(st.one_of(WRITES, FOLLOWS, FOLLOWS, REPEATS, MARKERS, RESTARTS), max_size=40)


class Both:
    def __init__(self) -> None:
        self.stable = StableOffsets()
        self.producers = ProducerStates(self.stable.open_transactions)
        self.naive = NaivePartition()
        self.offset = 0
        self.log: list[batches.Batch] = []

    def write(self, producer_id: int, epoch: int, sequence: int, count: int, transactional: bool) -> None:
        batch = batches.data(
            producer_id, epoch=epoch, sequence=sequence, count=count, offset=self.offset, transactional=transactional
        )
        verdict = self.producers.check(batch[0], now_ms=0, needs_guard=False)
        assert verdict == self.naive.check(producer_id, epoch, sequence, count, transactional)
        if verdict is ACCEPTED:
            self._apply(batch)
            self.naive.append(producer_id, epoch, sequence, count, transactional, self.offset)
            self.offset += count

    def follow(self, producer_id: int, count: int, transactional: bool) -> None:
        known = self.naive.producers.get(producer_id)
        sequence = (known.sequences[-1][1] + 1) % WRAP if known and known.sequences else 0
        self.write(producer_id, known.epoch if known else 0, sequence, count, transactional)

    def repeat(self, producer_id: int, ago: int) -> None:
        known = self.naive.producers.get(producer_id)
        if known and len(known.sequences) >= ago:
            first, last, _ = known.sequences[-ago]
            self.write(producer_id, known.epoch, first, (last - first) % WRAP + 1, known.open_since is not None)

    def end(self, producer_id: int, bump: int, commit: bool) -> None:
        known = self.naive.producers.get(producer_id)
        epoch = (known.epoch if known else 0) + bump
        batch = batches.marker(producer_id, commit=commit, epoch=epoch, offset=self.offset)
        assert self.producers.check_marker(batch[0], coordinator_epoch=0, transaction_version=1) is ACCEPTED
        self._apply(batch)
        self.naive.end(producer_id, epoch)
        self.offset += 1

    def restart(self) -> None:
        snapshots = whole(self.stable.snapshot()), whole(self.producers.snapshot())
        done_at_once(self.stable.restoring(snapshots[0]))
        done_at_once(self.producers.restoring(snapshots[1]))
        assert (whole(self.stable.snapshot()), whole(self.producers.snapshot())) == snapshots

    def _apply(self, batch: batches.Batch) -> None:
        self.log.append(batch)
        self.producers.apply(*batch)
        self.stable.apply(*batch)


@rule(
    "B.1", "duplicate, fenced, out of order, open transaction or accepted: the order of checks, against a naive model"
)
@settings(deadline=None)
@given(STEPS)
def test_every_verdict_is_the_naive_models_also_after_restarts(steps: list[tuple[object, ...]]) -> None:
    both = Both()
    for name, *arguments in steps:
        getattr(both, str(name))(*arguments)


@settings(deadline=None)
@given(STEPS, st.integers(0, 40))
def test_a_follower_that_only_applied_the_log_judges_like_the_leader(steps: list[tuple[object, ...]], cut: int) -> None:
    """Same batches, same state: the follower starts from a snapshot taken anywhere and applies what came after it."""
    leader = Both()
    for name, *arguments in steps:
        getattr(leader, str(name))(*arguments)
    first, follower = Both(), Both()
    for batch in leader.log[:cut]:
        first._apply(batch)
    done_at_once(follower.stable.restoring(whole(first.stable.snapshot())))
    done_at_once(follower.producers.restoring(whole(first.producers.snapshot())))
    for batch in leader.log[cut:]:
        follower._apply(batch)
    assert list(follower.producers.describe()) == list(leader.producers.describe())
    assert whole(follower.stable.snapshot()) == whole(leader.stable.snapshot())

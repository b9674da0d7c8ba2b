"""Which seeds are known to catch planted bugs, and what it means that one does not catch its bug any more."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest

from tests.sim import caught, mutants
from tests.sim.caught import KEPT, known, note, note_run, runs, seeds

BUG = "a bug"


@pytest.fixture(autouse=True)
def _nothing_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_FILE", "_RUNS"):
        path = tmp_path / name
        path.write_text("{}")
        monkeypatch.setattr(caught, name, path)


def test_the_seeds_that_caught_it_are_tried_first_the_newest_before_the_others() -> None:
    assert list(islice(seeds(BUG), 3)) == [1, 2, 3]
    note({BUG: 2})
    assert list(islice(seeds(BUG), 3)) == [2, 1, 3]
    for seed in range(10, 10 + KEPT + 1):
        note_run(BUG, seed, -seed)
    newest = list(range(10 + KEPT, 10, -1))
    assert known(BUG) == newest
    assert runs(BUG) == [(seed, -seed) for seed in newest]
    assert list(islice(seeds(BUG), KEPT + 2)) == [*newest, 1, 2]
    assert list(islice(seeds(BUG, anew=True), 2)) == [1, 2]
    note_run(BUG, newest[-1], 4)
    assert runs(BUG)[0] == (newest[-1], 4)
    assert len(known(BUG)) == KEPT


def test_a_bug_that_is_missed_in_the_run_that_caught_it_was_overlooked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mutants, "without", lambda seed: (True, 1000 + seed))
    assert not mutants.is_blind_to(BUG)
    note_run(BUG, 5, 1005)
    assert mutants.is_blind_to(BUG)
    note_run(BUG, 6, 17)  # that run has changed since
    assert not mutants.is_blind_to(BUG)

"""The whole broker in the simulation: seeds that were never run before run clean, one replays in other processes, and
planted bugs are caught.

More of both: `make sim` and `make mutants`.
"""

from collections.abc import Callable

import pytest

from tests.sim import cluster_mutants, group_mutants, web_mutants
from tests.sim.caught import KEPT, takes_long
from tests.sim.mutants import MUTANTS, hunt_all, is_blind_to
from tests.sim.replays import run_all
from tests.sim.rotating import next_part
from tests.sim.run import fresh_seed, run

NEAR_TRIES = 4
FRESH = 40  # runs of seeds that are drawn anew each time


def outcome(seed: int) -> tuple[list[str], bool]:
    """What was broken, after the command that shows it again, and whether anything happened at all."""
    report = run(seed)
    broken = [str(violation) for violation in report.violations]
    busy = bool(report.acknowledged and report.read)
    return [f"make sim SEED={seed}", *broken] if broken else [], busy


@pytest.mark.timeout(600)
def test_runs_under_faults_that_nobody_has_seen_break_no_promise_and_replay(drawn: Callable[[str], None]) -> None:
    """One of them is run again in two processes that hash strings differently."""
    first = fresh_seed()
    seeds = range(first, first + FRESH)
    drawn(f"simulated seeds {first} to {seeds[-1]}; the same again: make sim N={FRESH} FROM={first}")
    outcomes, ways = run_all("tests.sim.run", "sim", outcome, seeds)
    broken, busy = zip(*outcomes, strict=True)
    assert [each for each in broken if each] == []
    # A run whose faults leave nobody a chance is rare; many of them would prove nothing.
    assert sum(busy) > 0.9 * FRESH
    assert ways == ""


@pytest.mark.timeout(600)
def test_planted_bugs_are_caught(drawn: Callable[[str], None], pytestconfig: pytest.Config) -> None:
    """A part of them, the next one each time, with the seeds that caught each last and, if it is caught often, a few
    more. One that is missed although the run of its seed is still the same was caught there before, so it must be now.
    If the run has changed, to hunt on can take many minutes: `make mutants ARGS=--renew` does that, for all. When most
    are missed, the simulation has become blind as well.
    """
    part = next_part(MUTANTS, "mutants/broker", pytestconfig.cache)
    far = [mutant for mutant in part if takes_long(mutant.name)]
    near = [mutant for mutant in part if mutant not in far]
    tried = [*hunt_all(near, max_seeds=NEAR_TRIES), *hunt_all(far, max_seeds=KEPT)]
    drawn("mutants caught: " + ", ".join(each.mutant for each in tried if each.broken))
    missed = [each.mutant for each in tried if not each.broken]
    drawn("mutants left to make mutants: " + ", ".join(missed))
    assert [mutant for mutant in missed if is_blind_to(mutant)] == []
    assert len(missed) < len(part) / 3, missed


def test_every_planted_bug_finds_what_it_replaces() -> None:
    plants = [mutant.plant for mutant in MUTANTS] + [plant for plant, _ in cluster_mutants.MUTANTS.values()]
    for plant in (*plants, *group_mutants.MUTANTS.values(), *web_mutants.MUTANTS.values()):
        with plant():
            pass

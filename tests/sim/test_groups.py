"""The group coordinator in its simulated world: seeds that were never run before hold beside some that were, and bugs
that are planted are found. More: `make sim-groups`, `make mutants-groups`.
"""

from collections.abc import Callable

import pytest

from tests.sim.group_mutants import MUTANTS, hunt
from tests.sim.groups import run_both
from tests.sim.rotating import next_part
from tests.sim.run import fresh_seed

FRESH = 15


@pytest.mark.parametrize("seed", range(1, 6))
def test_groups_keep_their_promises(seed: int) -> None:
    assert run_both(seed) == ""


def test_groups_keep_their_promises_in_runs_that_nobody_has_seen(drawn: Callable[[str], None]) -> None:
    first = fresh_seed()
    drawn(f"seeds of groups {first} to {first + FRESH - 1}; the same again: make sim-groups N={FRESH} FROM={first}")
    broken = {seed: run_both(seed) for seed in range(first, first + FRESH)}
    assert {f"make sim-groups SEED={seed}": each for seed, each in broken.items() if each} == {}


@pytest.mark.timeout(600)
def test_planted_bugs_are_found(drawn: Callable[[str], None], pytestconfig: pytest.Config) -> None:
    """A part of them, the next one each time; `make mutants-groups` hunts all."""
    hunted = next_part(list(MUTANTS), "mutants/groups", pytestconfig.cache)
    drawn("mutants of groups hunted: " + ", ".join(hunted))
    assert [mutant for mutant in hunted if not hunt(mutant).broken] == []

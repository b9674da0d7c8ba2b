"""The group coordinator in its simulated world: some seeds hold, and bugs that are planted are found."""

import pytest

from tests.sim.group_mutants import hunt
from tests.sim.groups import run


@pytest.mark.parametrize("seed", range(1, 21))
def test_groups_keep_their_promises(seed: int) -> None:
    assert run(seed) == ""


@pytest.mark.parametrize(
    "mutant",
    [
        "offsets_of_open_transactions_visible",
        "tombstone_lost",
        "sessions_lost_on_restart",
        "instance_replaced_in_a_rebalance_not_recorded",
        "replaced_process_goes_on",
    ],
)
def test_a_planted_bug_is_found(mutant: str) -> None:
    _, broken = hunt(mutant, max_seeds=30)
    assert broken

"""Walks of three replicas (`tests.properties.replicas`) that nobody has taken, and bugs that such walks find."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest

from tests.properties.replicas import NO_HABITS, walk
from tests.sim.run import fresh_seed

FRESH = 30


def test_three_replicas_know_what_they_were_given(drawn: Callable[[str], None]) -> None:
    first = fresh_seed()
    drawn(f"walks of replicas {first} to {first + FRESH - 1}; the same again: make walks N={FRESH} FROM={first}")
    wrong = {seed: walk(seed) for seed in range(first, first + FRESH)}
    assert {f"make walks SEED={seed}": each for seed, each in wrong.items() if each} == {}


async def _nothing(*arguments: Any, **named: Any) -> None:
    pass


class Bug(NamedTuple):
    """What is wrong where, and the habits of walks that meet it; of those the first that may."""

    planted: dict[str, Any]
    habits: Mapping[str, float] = NO_HABITS
    first_seed: int = 1


BUGS = {
    "a log moves without what it knew at its beginning": Bug(
        {
            "log.relocation.Relocation._oldest_snapshot": _nothing,
            "log.partition_log.PartitionLog.snapshot_at": _nothing,
        }
    ),
    "what was durable before a cut is believed": Bug({"tests.properties.replicas.distrust": _nothing}),
    "snapshots of what was cut off stay": Bug({"log.snapshots.Snapshots.forget_above": lambda self, offset: []}),
    "what is known of segments that leave is not stored": Bug(
        {"log.removal._keep_what_is_known": _nothing},
        {"move": 6, "retain": 6, "elect": 4, "flush": 0.3, "roll": 0.3, "copy": 0.5},
        first_seed=400,
    ),
    "epochs stay when a log starts over": Bug(
        {"log.epochs.LeaderEpochs.clear": lambda self: None},
        {"leave_or_join": 4, "elect": 3, "retain": 5, "delete_records": 5, "copy": 0.3},
        first_seed=400,
    ),
}


@pytest.mark.parametrize("name", BUGS)
def test_bugs_that_are_planted_are_found(name: str) -> None:
    bug = BUGS[name]
    with ExitStack() as planted:
        for place, wrong in bug.planted.items():
            planted.enter_context(patch(place, wrong))
        assert any(walk(seed, habits=bug.habits) for seed in range(bug.first_seed, bug.first_seed + 300))

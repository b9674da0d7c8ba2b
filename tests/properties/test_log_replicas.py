"""Walks of three replicas (`tests.properties.replicas`) that nobody has taken, and bugs that such walks find."""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import pytest

from tests.properties.replicas import walk
from tests.sim.run import fresh_seed

FRESH = 30


def test_three_replicas_know_what_they_were_given(drawn: Callable[[str], None]) -> None:
    first = fresh_seed()
    drawn(f"walks of replicas {first} to {first + FRESH - 1}; the same again: make walks N={FRESH} FROM={first}")
    wrong = {seed: walk(seed) for seed in range(first, first + FRESH)}
    assert {f"make walks SEED={seed}": each for seed, each in wrong.items() if each} == {}


async def _nothing(*arguments: Any, **named: Any) -> None:
    pass


BUGS: dict[str, dict[str, Any]] = {
    "a log moves without what it knew at its beginning": {
        "log.relocation.Relocation._oldest_snapshot": _nothing,
        "log.partition_log.PartitionLog.snapshot_at": _nothing,
    },
    "what was durable before a cut is believed": {"tests.properties.replicas.distrust": _nothing},
    "snapshots of what was cut off stay": {"log.snapshots.Snapshots.forget_above": lambda self, offset: []},
}


@pytest.mark.parametrize("bug", BUGS)
def test_bugs_that_are_planted_are_found(bug: str) -> None:
    with ExitStack() as planted:
        for place, wrong in BUGS[bug].items():
            planted.enter_context(patch(place, wrong))
        assert any(walk(seed) for seed in range(1, 300))

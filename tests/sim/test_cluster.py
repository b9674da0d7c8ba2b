"""Three brokers in one simulated world: some seeds hold, and replay.

More of it: `make sim-cluster`; that it can fail: `make mutants-cluster`.
"""

import pytest

from tests.sim.cluster import run


@pytest.mark.parametrize(("seed", "again"), [(2001, True), (2002, False), (2003, False)])
def test_a_cluster_keeps_its_promises(seed: int, *, again: bool) -> None:
    report = run(seed)
    assert [str(violation) for violation in report.violations] == [], f"make sim-cluster SEED={seed}"
    assert report.acknowledged
    assert not again or run(seed).fingerprint == report.fingerprint

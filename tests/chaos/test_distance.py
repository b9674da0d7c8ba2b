"""The feeder of the chaos waits for the slowest copier: else a long run leaves more to copy than can be waited for."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos import run
from tests.chaos.over_http import Http
from tests.chaos.run import BEHIND, Copier, Distance


def test_the_feeder_waits_for_the_slowest_copier(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stands: dict[str, dict[int, int]] = {"copy-fast": {0: BEHIND, 1: BEHIND}, "copy-slow": {0: 0, 1: 0}}

    def told(_: Http, group: str, source: str, until: float) -> dict[int, int]:
        if group not in stands:
            raise TimeoutError(source)
        return stands[group]

    monkeypatch.setattr(run, "positions", told)
    copiers = [Copier(name, "nowhere", "in", f"out-{name}", tmp_path, "") for name in ("fast", "slow")]
    distance = Distance("http://nowhere", copiers, "in")
    distance.look()
    assert distance.is_short(BEHIND - 1)
    assert not distance.is_short(BEHIND)
    stands["copy-slow"] = {0: 5, 1: 7}
    distance.look()
    assert distance.is_short(BEHIND + 11)
    assert not distance.is_short(BEHIND + 12)
    del stands["copy-slow"]
    distance.look()  # nobody says: what was known holds
    assert distance.is_short(BEHIND + 11)
    assert not distance.is_short(BEHIND + 12)

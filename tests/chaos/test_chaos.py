"""A short run of what `make chaos` does for minutes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.run import run


@pytest.mark.timeout(240)
def test_a_copy_is_exact_although_client_and_broker_are_killed(tmp_path: Path) -> None:
    """librdkafka alone: its restarts are quick enough for a run of seconds."""
    report = run(
        tmp_path, seconds=10, seed=3, clients=["confluent-kafka"], broker_pause=(2.0, 4.0), client_pause=(1.0, 3.0)
    )
    assert not report.faults, str(report)
    assert report.broker_kills
    assert report.client_kills["confluent-kafka"]


@pytest.mark.timeout(240)
def test_a_copy_over_http_is_exact_although_client_and_broker_are_killed(tmp_path: Path) -> None:
    clients = ["http with keys", "http transactions"]
    report = run(tmp_path, seconds=10, seed=3, clients=clients, broker_pause=(2.0, 4.0), client_pause=(0.5, 2.0))
    assert not report.faults, str(report)
    assert report.broker_kills
    assert sum(report.client_kills.values())


@pytest.mark.timeout(240)
def test_a_client_that_changes_its_keys_is_found_to_double(tmp_path: Path) -> None:
    report = run(tmp_path, seconds=3, seed=3, clients=["http with new keys"], client_pause=(0.5, 1.0))
    of_keys = [fault for fault in report.faults if "lost [" in fault]  # the others tell where doubled ones are
    assert of_keys, str(report)
    assert all("lost []" in fault and "doubled []" not in fault for fault in of_keys), str(report)

"""A failing disk of the chaos: of one broker at a time, and thrown away only where nobody counts on what is on it."""

from __future__ import annotations

import random
from pathlib import Path
from typing import cast

import pytest

from tests.chaos.cluster import machines
from tests.chaos.cluster.faults import DISK_FAILED, Faults
from tests.chaos.cluster.machines import FAILED, Cluster, OnItsDisk
from tests.faults.failing_disk import FailingDisk
from tests.outside import needs
from tests.peers.network import Network
from tests.peers.process import Place

pytestmark = needs("cc")


class StandIn(OnItsDisk):
    """No process: it says what it is told to say."""

    def running(self) -> bool:
        return True

    def stop(self, *, patience_seconds: float = 0.0) -> int:
        return 0

    def launch(self) -> None:
        self.log_path.write_text(self.log_path.read_text() + "starts\n")


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    monkeypatch.setattr(Cluster, "leader", lambda *_: -1)
    monkeypatch.setattr(machines, "answers_api_versions", lambda *_, **__: True)
    brokers: dict[int, OnItsDisk] = {}
    for number in (1, 2, 3):
        broker = brokers[number] = StandIn(tmp_path / str(number), port=1, place=Place(f"host-{number}"))
        broker.disk = FailingDisk(broker.data, broker.folder / "disk")
        (broker.data / "t-0").mkdir(parents=True)
        broker.log_path.touch()
    return Cluster(cast(Network, None), brokers, [])


def in_sync(monkeypatch: pytest.MonkeyPatch, told: dict[str, set[int]]) -> None:
    async def answer(host: str) -> set[int]:
        return told[host]

    monkeypatch.setattr(machines, "_in_sync", answer)


def test_no_second_disk_fails_before_the_first_is_replaced(cluster: Cluster) -> None:
    faults = Faults(cluster, random.Random(1), ["t"], [DISK_FAILED])
    faults.begin_one()
    faults.begin_one()
    assert len(faults.under_way) == 1
    while faults.under_way:
        faults.mend_due(everything=True)
    faults.begin_one()
    assert len(faults.under_way) == 1


@pytest.mark.parametrize(
    ("told", "kept"),
    [
        ({"host-2": {2, 3}, "host-3": {2, 3}}, []),
        ({"host-2": {2, 3}, "host-3": {1, 2, 3}}, ["t-0"]),
        ({"host-2": {2, 3}, "host-3": set()}, ["t-0"]),  # it knows nothing yet
    ],
)
def test_an_empty_disk_takes_the_place_of_one_that_nobody_counts_in_sync(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, told: dict[str, set[int]], kept: list[str]
) -> None:
    in_sync(monkeypatch, told)
    broker = cluster.brokers[1]
    cluster.fail_disk(1, writes_too=True)
    assert broker.disk is not None
    assert broker.disk.no_fsync.exists()
    assert broker.disk.no_writes.exists()
    broker.log_path.write_text(f"log folder data {FAILED}\n")
    cluster.replace_disk(1, failures_before=0)
    assert not broker.disk.no_fsync.exists()
    assert not broker.disk.no_writes.exists()
    assert [path.name for path in broker.data.iterdir()] == kept
    assert broker.log_path.read_text().endswith("starts\n")
    assert (cluster.down, cluster.ended) == (set(), [])


def test_a_disk_that_nobody_missed_is_sound_again_without_a_restart(cluster: Cluster) -> None:
    cluster.fail_disk(1, writes_too=False)
    cluster.replace_disk(1, failures_before=0)
    assert cluster.brokers[1].log_path.read_text() == ""
    assert cluster.down == set()


def test_a_failure_that_is_told_twice_is_wrong(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    in_sync(monkeypatch, {"host-2": {2, 3}, "host-3": {2, 3}})
    cluster.fail_disk(1, writes_too=True)
    cluster.brokers[1].log_path.write_text(f"{FAILED}\n{FAILED}\n")
    cluster.replace_disk(1, failures_before=0)
    assert cluster.ended == ["broker 1 said 2 times that its disk failed"]

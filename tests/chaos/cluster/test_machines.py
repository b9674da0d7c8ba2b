"""A broker of the chaos that ends by itself is wrong, unless it could not begin without ZooKeeper."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from tests.chaos.cluster.machines import Cluster, OnItsDisk
from tests.peers.network import Network


class Ended(OnItsDisk):
    launches = 0

    def launch(self) -> None:
        self.launches += 1


@pytest.mark.parametrize(
    ("said", "is_wrong"),
    [
        ("oncelog: no ZooKeeper answered at 10.0.0.11:2181", False),
        ("oncelog: the metadata store was lost while it was read: LedgerAway('ConnectionLoss()')", False),
        ("oncelog: the cluster refused this broker: The metadata store does not answer.", False),
        ("oncelog: a bug", True),
    ],
)
def test_an_end_for_want_of_zookeeper_is_right(tmp_path: Path, said: str, is_wrong: bool) -> None:
    broker = Ended(tmp_path, port=1)
    broker.log_path.write_text(f"{said}\n")
    cluster = Cluster(cast(Network, None), {1: broker}, [])
    cluster.keep_running()
    assert cluster.ended == ([f"broker 1 ended by itself: {said}"] if is_wrong else [])
    assert broker.launches == 1

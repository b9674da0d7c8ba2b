"""Short runs of what `make chaos-cluster` does for minutes; the second shows that the judge notices a loss."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos.java_and_spark import JAVA
from tests.chaos.over_http import OVER_HTTP
from tests.peers import network, zookeeper
from tests.peers.process import ROOT


def chaos(*arguments: str) -> tuple[int, str]:
    if why := zookeeper.missing() or network.missing():
        pytest.skip(why)
    command = [sys.executable, "-m", "tests.chaos.cluster", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=400, check=False)
    return done.returncode, done.stdout + done.stderr[-3000:]


@pytest.mark.timeout(420)
def test_nothing_acknowledged_is_lost_when_brokers_die_and_are_cut_off() -> None:
    clients = ("confluent-kafka", *OVER_HTTP, JAVA)  # Spark needs more than these seconds to begin
    named = [word for client in clients for word in ("--client", client)]
    status, told = chaos("--seconds", "12", "--kind", "killed", "--kind", "away from brokers", *named)
    assert status == 0, told
    assert "Java has all" in told or "Java is left out" in told
    assert "lost 0, doubled 0, torn 0, unlike 0" in told


@pytest.mark.timeout(420)
def test_a_loss_is_noticed_where_settings_allow_it(tmp_path: Path) -> None:
    """One acknowledgement is enough there, and any replica that lives may lead."""
    chosen = ("--seconds", "12", "--seed", "80", "--careless", "--kind", "alone and killed", "--client", "none")
    status, told = chaos(*chosen, "--keep", str(tmp_path))
    assert status == 1, told
    # Of what was committed all is lost or a part, whichever leader was away.
    assert re.search("^lost: |^torn: .* committed: ", told, re.MULTILINE), told

"""A world of its own ends with its maker: a run of chaos that is killed leaves no broker behind."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.peers import network
from tests.peers.process import ROOT

INSIDE = """
import subprocess, sys
from tests.peers.network import end_with_maker
end_with_maker()
subprocess.run(["sleep", sys.argv[1]])
"""
MAKER = """
import pathlib, sys
from tests.peers.network import in_a_world_of_its_own
sys.exit(in_a_world_of_its_own([sys.executable, "-c", *sys.argv[1:]], cwd=pathlib.Path.cwd()))
"""


def sleeping(seconds: str) -> bool:
    """Whether anybody sleeps for so long."""
    return any(_said(each) == ["sleep", seconds] for each in Path("/proc").glob("[0-9]*/cmdline"))


def _said(cmdline: Path) -> list[str]:
    try:
        return cmdline.read_text(errors="replace").split("\0")[:-1]
    except OSError:  # it is over
        return []


@pytest.mark.parametrize("by", [signal.SIGTERM, signal.SIGKILL])
def test_what_runs_in_a_world_ends_with_its_maker(by: signal.Signals) -> None:
    """`unshare` alone ignored the first, and did not notice the end of `make`."""
    if why := network.missing():
        pytest.skip(why)
    seconds = f"600.{time.time_ns()}"
    with subprocess.Popen([sys.executable, "-c", MAKER, INSIDE, seconds], cwd=ROOT) as maker:
        until = time.monotonic() + 30
        while not sleeping(seconds):
            assert time.monotonic() < until, "it never began"
            time.sleep(0.05)
        maker.send_signal(by)
    until = time.monotonic() + 10
    while sleeping(seconds):
        assert time.monotonic() < until, "it goes on"
        time.sleep(0.05)

"""A run that depends on how strings are hashed is noticed, and the command that is printed shows it again."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.sim.replays import both_again, fingerprint, run_all

LIKE_NO_OTHER = 3


def run(seed: int) -> SimpleNamespace:
    return SimpleNamespace(fingerprint=seed if seed == LIKE_NO_OTHER else hash(f"{seed}"))


def outcome(seed: int) -> int:
    return -seed


def test_a_run_that_goes_two_ways_is_told_with_both_hash_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "0")  # whatever this process was begun with
    outcomes, command = run_all(__name__, "sim", outcome, (1, 2))
    assert outcomes == [-1, -2]
    said = re.fullmatch(r"for hash in (\d+) (\d+); do PYTHONHASHSEED=\$hash make sim SEED=1; done", command)
    assert said is not None
    one, other = (fingerprint(__name__, 1, int(each)) for each in said.groups())
    assert one != other
    assert one == fingerprint(__name__, 1, int(said[1]))


def test_a_run_that_goes_one_way_is_told_of_with_nothing() -> None:
    assert run_all(__name__, "sim", outcome, (LIKE_NO_OTHER,)) == ([-LIKE_NO_OTHER], "")


def test_the_command_hands_each_process_its_hash_seed(tmp_path: Path) -> None:
    make = tmp_path / "make"
    make.write_text("#!/bin/sh\necho $PYTHONHASHSEED $*\n")
    make.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    command = ["sh", "-c", both_again("sim", 1, 17, 4711)]
    told = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert told.stdout.splitlines() == ["17 sim SEED=1", "4711 sim SEED=1"]

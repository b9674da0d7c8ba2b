"""Which part of the planted bugs a run of the tests hunts: as many runs in a row as there are parts hunt all."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, TypeVar

PARTS = 3
DAY_S = 24 * 60 * 60

T = TypeVar("T")


class Kept(Protocol):
    """What pytest keeps in a clone from run to run."""

    def get(self, key: str, default: int | None) -> int | None: ...
    def set(self, key: str, value: int) -> None: ...


def next_part(things: Sequence[T], key: str, kept: Kept) -> Sequence[T]:
    """The part whose turn it is: another one with each run in a clone, and with each commit in a clone of its own."""
    turn = kept.get(key, None)
    if turn is None:
        turn = commits()
    kept.set(key, turn + 1)
    return things[turn % PARTS :: PARTS]


def commits() -> int:
    """How many commits this clone has; where they are not all there, the number of the day."""
    git = ("git", "-C", str(Path(__file__).parent))
    try:
        is_cut = subprocess.run((*git, "rev-parse", "--is-shallow-repository"), capture_output=True, check=True).stdout
        if is_cut.strip() == b"false":
            return int(subprocess.run((*git, "rev-list", "--count", "HEAD"), capture_output=True, check=True).stdout)
    except (OSError, subprocess.CalledProcessError):  # no git, or no clone
        pass
    return int(time.time() // DAY_S)

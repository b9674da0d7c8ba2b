"""Clients of further languages against our broker: kafkajs on Node.js; franz-go, sarama and segmentio/kafka-go in Go.

    python -m tests.clients.more [PART OF A CHECK'S NAME]

A language that this machine lacks is skipped with a word on it. Libraries come from the languages' own registries and
stay in `.cache/clients`.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.clients.programs import Check, expect, main, run
from tests.peers.process import CACHE

CLIENTS = Path(__file__).parents[1]
BUILT = CACHE / "clients"
EVERYTHING = ("produced", "consumed", "administered", "transacted", "done")
WITHOUT_TRANSACTIONS = ("produced", "consumed", "administered", "done")


def kafkajs(bootstrap: str) -> None:
    folder = BUILT / "node"
    folder.mkdir(parents=True, exist_ok=True)
    for file in (CLIENTS / "node").iterdir():
        shutil.copy(file, folder)
    if not (folder / "node_modules" / "kafkajs").is_dir():
        run(["npm", "install", "--no-audit", "--no-fund", "--silent"], folder=folder, patience_seconds=300)
    quiet = {"KAFKAJS_NO_PARTITIONER_WARNING": "1"}
    expect(run(["node", "kafkajs.js", bootstrap, _word()], folder=folder, environment=quiet), *EVERYTHING)


def go(name: str, wanted: tuple[str, ...]) -> Check:
    """A program of tests/clients/go, built once and again when it changed."""

    def check(bootstrap: str) -> None:
        binary = BUILT / "go" / name
        run(["go", "build", "-o", str(binary), f"./{name}"], folder=CLIENTS / "go", patience_seconds=400)
        expect(run([str(binary), bootstrap, _word()]), *wanted)

    return check


def _word() -> str:
    """What makes the names of one run its own."""
    return str(time.time_ns())


def _available() -> dict[str, Check]:
    needed: dict[str, tuple[tuple[str, ...], Check]] = {
        "kafkajs (Node.js)": (("node", "npm"), kafkajs),
        "franz-go (Go)": (("go",), go("franz", EVERYTHING)),
        "sarama (Go)": (("go",), go("sarama", EVERYTHING)),
        "segmentio/kafka-go (Go)": (("go",), go("segmentio", WITHOUT_TRANSACTIONS)),
    }
    found = {}
    for name, (programs, check) in needed.items():
        absent = [program for program in programs if shutil.which(program) is None]
        if absent:
            print(f"skipped {name}: no {' and no '.join(absent)} on the path")
        else:
            found[name] = check
    return found


def missing(checks: dict[str, Check]) -> Callable[[], str | None]:
    return lambda: None if checks else "neither Node.js nor Go is here"


if __name__ == "__main__":
    available = _available()
    sys.exit(main(available, missing(available)))

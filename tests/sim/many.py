"""Runs of a simulation by hand: one that is replayed, or many side by side.

    --seed N          one run, replayed exactly; says what was done and what was wrong
    --runs N          N runs, of seeds that were most likely never run before; every twentieth twice, and the two must
                      be alike
    --from N          those runs begin with this seed, as they did when it was printed
    --seconds S       as many runs as fit into S seconds

Exit status 0 only if nothing was wrong. A failure prints the commit, the Python version and the seed: no more is needed
to see it again.
"""

from __future__ import annotations

import argparse
import logging
import os
import platform
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import as_completed
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Protocol

from tests.sim.checkers import Violation
from tests.sim.plan import Plan
from tests.sim.run import fresh_seed, processes

TWICE_EVERY = 20
LIBRARIES = (
    "cramjam",
    "crc32c",
    "isal",
    "lz4",
    "zstandard",
)  # what they compress differs from version to version
ROOT = Path(__file__).resolve().parents[2]


class Report(Protocol):
    seed: int
    violations: list[Violation]
    fingerprint: int
    virtual_seconds: float
    trace: list[tuple[object, ...]] | None

    @property
    def right(self) -> bool: ...
    @property
    def faults(self) -> Mapping[str, int]: ...


class Run(Protocol):
    """One run that has not begun."""

    @property
    def plan(self) -> Plan: ...
    def run(self) -> Report: ...


@dataclass(frozen=True, slots=True)
class Kind:
    """What is run: `new` makes a run from a seed, and from whether it keeps a trace and lets its brokers log. It is
    sent to other processes, so it is something with a name in its module.
    """

    new: Callable[[int, bool, bool], Run]
    target: str  # of make
    counted: tuple[str, ...]  # numbers of a report that are worth a sum


def main(kind: Kind, *, prog: str, description: str) -> int:
    parser = argparse.ArgumentParser(prog=prog, description=description)
    parser.add_argument("--seed", type=int, help="replay this run")
    parser.add_argument("--runs", type=int, default=100, help="how many runs (default 100)")
    parser.add_argument("--from", type=int, dest="first", help="the first seed (default: drawn anew)")
    parser.add_argument("--seconds", type=float, help="stop after this long")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at work (default: one a core)")
    parser.add_argument("--trace", action="store_true", help="with --seed: print what happened, moment by moment")
    parser.add_argument("--logged", action="store_true", help="with --seed: show what the brokers log")
    arguments = parser.parse_args()
    if arguments.seed is not None:
        return replay(kind, arguments.seed, trace=arguments.trace, logged=arguments.logged)
    first = fresh_seed() if arguments.first is None else arguments.first
    return many(kind, first, arguments.runs, arguments.seconds, arguments.jobs)


def replay(kind: Kind, seed: int, *, trace: bool, logged: bool) -> int:
    if logged:
        logging.basicConfig(level=logging.INFO, format="%(message)s")
    run = kind.new(seed, trace, logged)
    print(f"plan: {run.plan}")
    report = run.run()
    for moment, *what in report.trace or ():
        print(f"{moment:12.6f}", *what)
    faults = ", ".join(f"{count} {fault}" for fault, count in sorted(report.faults.items()))
    print(
        f"seed {seed}: {report.virtual_seconds:.1f} virtual seconds, faults: {faults or 'none'};"
        f" {told(counted(kind, report))}; fingerprint {report.fingerprint:08x}"
    )
    if not report.right:
        complain(kind, report)
    return 0 if report.right else 1


def many(kind: Kind, first: int, count: int, seconds: float | None, jobs: int) -> int:
    begun = time.monotonic()
    wrong, done, totals = [], 0, Counter[str]()
    again = f"make {kind.target} N={count} FROM={first}"
    print(f"seeds {first} to {first + count - 1}; the same again: {again}", flush=True)
    with processes(jobs) as pool:
        for asked in as_completed([pool.submit(checked_run, kind, seed) for seed in range(first, first + count)]):
            report = asked.result()
            done += 1
            totals.update(report.faults)
            totals.update(counted(kind, report))
            if not report.right:
                wrong.append(report.seed)
                complain(kind, report)
            if seconds is not None and time.monotonic() - begun > seconds:
                pool.shutdown(wait=False, cancel_futures=True)
                break
    took = time.monotonic() - begun
    print(f"{done} runs in {took:.0f} s ({3600 * done / took:.0f} an hour), {len(wrong)} wrong: {wrong[:20]}")
    print(told(totals))
    return 1 if wrong else 0


def checked_run(kind: Kind, seed: int) -> Report:
    """One run; now and then a second one beside it, which must be the same."""
    report = kind.new(seed, False, False).run()
    if seed % TWICE_EVERY == 0 and kind.new(seed, False, False).run().fingerprint != report.fingerprint:
        report.violations.append(Violation("TheSameSeedReplays", "a second run of this seed went another way"))
    return report


def counted(kind: Kind, report: Report) -> Counter[str]:
    return Counter({what: getattr(report, what) for what in kind.counted})


def told(totals: Counter[str]) -> str:
    return ", ".join(f"{count} {what}" for what, count in totals.most_common())


def complain(kind: Kind, report: Report) -> None:
    print(f"\nseed {report.seed} is wrong, at {setting()}:")
    for violation in report.violations:
        print(f"  {violation}")
    print(f"see it again with: make {kind.target} SEED={report.seed}\n", flush=True)


def setting() -> str:
    """What a seed is valid for."""
    git = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12"]
    commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip() or "unknown"
    libraries = ", ".join(f"{name} {version(name)}" for name in LIBRARIES)
    return f"commit {commit}, Python {platform.python_version()}, {libraries}"

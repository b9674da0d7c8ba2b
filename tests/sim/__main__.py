"""`python -m tests.sim`: run the whole broker in the simulation.

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
import os
import platform
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import as_completed
from importlib.metadata import version
from pathlib import Path

from tests.sim.checkers import Violation
from tests.sim.run import Report, fresh_seed, processes, run

TWICE_EVERY = 20
LIBRARIES = (
    "cramjam",
    "crc32c",
    "isal",
    "lz4",
    "zstandard",
)  # what they compress differs from version to version
ROOT = Path(__file__).resolve().parents[2]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, help="replay this run")
    parser.add_argument("--runs", type=int, default=100, help="how many runs (default 100)")
    parser.add_argument("--from", type=int, dest="first", help="the first seed (default: drawn anew)")
    parser.add_argument("--seconds", type=float, help="stop after this long")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes at work (default: one a core)")
    parser.add_argument("--trace", action="store_true", help="with --seed: print what happened, moment by moment")
    arguments = parser.parse_args()
    if arguments.seed is not None:
        return replay(arguments.seed, trace=arguments.trace)
    first = fresh_seed() if arguments.first is None else arguments.first
    return many(first, arguments.runs, arguments.seconds, arguments.jobs)


def replay(seed: int, *, trace: bool) -> int:
    report = run(seed, trace=trace)
    if trace and report.trace is not None:
        for moment, *what in report.trace:
            print(f"{moment:12.6f}", *what)
    print(f"plan: {report.plan}")
    print(summary(report))
    if not report.right:
        complain(report)
    return 0 if report.right else 1


def summary(report: Report) -> str:
    faults = ", ".join(f"{count} {kind}" for kind, count in sorted(report.faults.items()))
    return (
        f"seed {report.seed}: {report.virtual_seconds:.1f} virtual seconds, {report.callbacks} callbacks,"
        f" faults: {faults or 'none'};"
        f" {report.written} batches written, {report.acknowledged} acknowledged, {report.read} records read;"
        f" fingerprint {report.fingerprint:08x}"
    )


def complain(report: Report) -> None:
    print(f"\nseed {report.seed} is wrong, at {setting()}:")
    for violation in report.violations:
        print(f"  {violation}")
    print(f"see it again with: make sim SEED={report.seed}\n", flush=True)


def setting() -> str:
    """What a seed is valid for."""
    git = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12"]
    commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip() or "unknown"
    libraries = ", ".join(f"{name} {version(name)}" for name in LIBRARIES)
    return f"commit {commit}, Python {platform.python_version()}, {libraries}"


def many(first: int, count: int, seconds: float | None, jobs: int) -> int:
    begun = time.monotonic()
    wrong, done, totals = [], 0, Counter[str]()
    print(f"seeds {first} to {first + count - 1}; the same again: make sim N={count} FROM={first}", flush=True)
    with processes(jobs) as pool:
        for asked in as_completed([pool.submit(checked_run, seed) for seed in range(first, first + count)]):
            report = asked.result()
            done += 1
            totals.update(report.faults)
            totals.update(callbacks=report.callbacks, acknowledged=report.acknowledged, deaths=report.deaths)
            if not report.right:
                wrong.append(report.seed)
                complain(report)
            if seconds is not None and time.monotonic() - begun > seconds:
                pool.shutdown(wait=False, cancel_futures=True)
                break
    took = time.monotonic() - begun
    print(f"{done} runs in {took:.0f} s ({3600 * done / took:.0f} an hour), {len(wrong)} wrong: {wrong[:20]}")
    print(", ".join(f"{count} {what}" for what, count in totals.most_common()))
    return 1 if wrong else 0


def checked_run(seed: int) -> Report:
    """One run; now and then a second one beside it, which must be the same."""
    report = run(seed)
    if seed % TWICE_EVERY == 0 and run(seed).fingerprint != report.fingerprint:
        report.violations.append(Violation("TheSameSeedReplays", "a second run of this seed went another way"))
    report.history = report.plan = None  # too much to send from process to process
    return report


if __name__ == "__main__":
    sys.exit(main())

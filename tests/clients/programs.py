"""Programs of others against a broker: each check runs one or more of them and looks at what they print.

Used by `python -m tests.clients.java` and `python -m tests.clients.more`. The broker is ours;
`ONCELOG_TEST_BOOTSTRAP=host:port` points at one that runs, `ONCELOG_TEST_BROKER=kafka` starts Apache Kafka: that is
how these checks are checked.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from tests.peers import kafka
from tests.peers.kafka import ApacheKafka
from tests.peers.ours import Oncelog
from tests.peers.process import BrokerProcess

PATIENCE_SECONDS = 120.0

Check = Callable[[str], None]


class CheckFailed(AssertionError):
    """A program ended badly or printed something else."""


@contextlib.contextmanager
def chosen_broker() -> Iterator[str]:
    """The bootstrap address of the broker to check."""
    running = os.environ.get("ONCELOG_TEST_BOOTSTRAP")
    if running:
        yield running
        return
    with tempfile.TemporaryDirectory() as folder:
        broker: BrokerProcess = Oncelog(Path(folder))
        if os.environ.get("ONCELOG_TEST_BROKER") == "kafka":
            kafka.fetch_jars()
            broker = ApacheKafka(Path(folder))
        broker.start()
        try:
            yield broker.bootstrap
        finally:
            broker.stop()


def run(
    command: list[str],
    *,
    given: str = "",
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
    status: int | None = 0,
    patience_seconds: float = PATIENCE_SECONDS,
) -> str:
    """Run a program to its end; what it printed. `status` None: whatever it ends with."""
    try:
        done = subprocess.run(
            command,
            input=given,
            capture_output=True,
            text=True,
            timeout=patience_seconds,
            check=False,
            cwd=folder,
            env={**os.environ, **(environment or {})},
        )
    except subprocess.TimeoutExpired as slow:
        printed = "".join(
            part.decode(errors="replace") if isinstance(part, bytes) else part or ""
            for part in (slow.stdout, slow.stderr)
        )
        raise CheckFailed(f"did not end within {patience_seconds:.0f} s: {printed[-800:]}") from None
    printed = done.stdout + done.stderr
    if status is not None and done.returncode != status:
        raise CheckFailed(f"ended with {done.returncode}: {printed[-1500:]}")
    return printed


def expect(printed: str, *wanted: str) -> None:
    """Each of these must have been printed."""
    for one in wanted:
        if one not in printed:
            raise CheckFailed(f"{one!r} is not in: {printed[-1500:]}")


def hold(checks: Mapping[str, Check], *, only: str = "") -> int:
    """Run the checks one after another with one broker; print how each went; 0 when all went well."""
    passed = failed = 0
    with chosen_broker() as bootstrap:
        for name, check in checks.items():
            if only not in name:
                continue
            began = time.monotonic()
            try:
                check(bootstrap)
            except (CheckFailed, OSError, subprocess.CalledProcessError) as failure:
                failed += 1
                print(f"FAILED  {name}, {time.monotonic() - began:.1f} s\n        {str(failure).strip()}", flush=True)
            else:
                passed += 1
                print(f"ok      {name}, {time.monotonic() - began:.1f} s", flush=True)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


def main(checks: Mapping[str, Check], missing: Callable[[], str | None]) -> int:
    """The command line that both collections have: an optional part of a check's name."""
    why = missing()
    if why:
        print(f"skipped: {why}")
        return 0
    return hold(checks, only=sys.argv[1] if len(sys.argv) > 1 else "")

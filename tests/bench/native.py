"""The load maker on librdkafka: built from load.c when that is newer than the last build, run, its JSON read."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.peers.process import CACHE

SOURCE = Path(__file__).with_name("load.c")
BUILT = CACHE / "bench" / "load"
PATIENCE_SECONDS = 900.0

Outcome = dict[str, float]


class LoadFailed(RuntimeError):
    """The load maker lost messages or could not run."""


def missing() -> str | None:
    """Why the load maker cannot be built here, or None."""
    if shutil.which("cc") is None:
        return "no C compiler (cc)"
    if not any(Path(folder, "librdkafka/rdkafka.h").exists() for folder in ("/usr/include", "/usr/local/include")):
        return "no librdkafka headers (Debian: librdkafka-dev)"
    return None


def build() -> Path:
    if not BUILT.exists() or BUILT.stat().st_mtime < SOURCE.stat().st_mtime:
        BUILT.parent.mkdir(parents=True, exist_ok=True)
        command = ["cc", "-O2", "-Wall", "-o", str(BUILT), str(SOURCE), "-lrdkafka"]
        subprocess.run(command, check=True)
    return BUILT


def run(
    what: str,
    bootstrap: str,
    topic: str,
    amount: float,
    size: int,
    *,
    options: Sequence[str] = (),
    settings: Mapping[str, str] | None = None,
) -> Outcome:
    """One load, with librdkafka's settings and the options of load.c."""
    given = [word for name, value in (settings or {}).items() for word in ("-s", f"{name}={value}")]
    command = [str(build()), *given, *options, what, bootstrap, topic, f"{amount:.0f}", str(size)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)
    if done.returncode:
        raise LoadFailed(f"{' '.join(command)}: {done.stdout.strip()} {done.stderr.strip()[-500:]}")
    outcome: Outcome = json.loads(done.stdout)
    return outcome

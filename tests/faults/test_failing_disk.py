"""The disk that tests make fail does so for what a broker calls, and only below its folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.faults.failing_disk import FailingDisk
from tests.outside import needs

pytestmark = needs("cc")

PROGRAM = """
import ctypes, os, sys
for path in sys.argv[1:]:
    file = os.open(path, os.O_RDWR | os.O_CREAT)
    calls = {
        "write": lambda: os.write(file, b"x"), "pwrite": lambda: os.pwrite(file, b"x", 0),
        "pwritev": lambda: os.pwritev(file, [b"x"], 0),
        "fsync": lambda: os.fsync(file), "fdatasync": lambda: os.fdatasync(file),
    }
    failed = []
    for name, call in calls.items():
        try:
            call()
        except OSError as error:
            failed.append(f"{name} {error.errno}")
    if ctypes.CDLL(None, use_errno=True).syncfs(file):
        failed.append(f"syncfs {ctypes.get_errno()}")
    print(", ".join(failed))
"""


def test_what_is_refused_fails_below_the_folder_alone(tmp_path: Path) -> None:
    failing, sound = tmp_path / "failing", tmp_path / "sound"
    failing.mkdir()
    disk = FailingDisk(failing, tmp_path / "kept")

    def failures() -> list[str]:
        environment = {**os.environ, **disk.environment()}
        command = [sys.executable, "-c", PROGRAM, str(failing / "log"), str(sound)]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.splitlines()

    assert failures() == ["", ""]
    disk.no_fsync.touch()
    assert failures() == ["fsync 5, fdatasync 5, syncfs 5", ""]
    disk.no_writes.touch()
    assert failures() == ["write 5, pwrite 5, pwritev 5, fsync 5, fdatasync 5, syncfs 5", ""]
    disk.heal()
    assert failures() == ["", ""]

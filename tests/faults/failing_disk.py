"""A disk that fails under a real process: a library that is preloaded into it (`failing_disk.c`) stands between it and
the kernel. What it holds can still be read.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_suffix(".c")


class FailingDisk:
    """What lies below a folder. It fails from the next process on that is started with `environment`, at will."""

    def __init__(self, below: Path, kept_in: Path) -> None:
        """The library and the switches are kept in another folder."""
        kept_in.mkdir(parents=True, exist_ok=True)
        self._below, self._library = below, kept_in / "failing_disk.so"
        self.no_fsync, self.no_writes = kept_in / "no-fsync", kept_in / "no-writes"
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", self._library, SOURCE], check=True)

    def environment(self) -> dict[str, str]:
        return {
            "LD_PRELOAD": str(self._library),
            "FAILING_BELOW": str(self._below),
            "REFUSE_FSYNC_WHILE": str(self.no_fsync),
            "REFUSE_WRITES_WHILE": str(self.no_writes),
        }

    def heal(self) -> None:
        """What failed is not tried again for that."""
        self.no_fsync.unlink(missing_ok=True)
        self.no_writes.unlink(missing_ok=True)

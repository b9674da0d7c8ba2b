"""The real PostgreSQL as a child process, from the machine's packages, in a folder of its own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

from tests.peers.process import free_port

BINARIES = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
PATIENCE_S = 30


def missing() -> str | None:
    """Why PostgreSQL can't be run here."""
    if not BINARIES:
        return "no PostgreSQL server (Debian: postgresql)"
    if os.geteuid() == 0 and shutil.which("setpriv") is None:
        return "PostgreSQL does not run as root, and there is no setpriv to become somebody else"
    return None


class PostgresServer:
    def __init__(self, folder: Path, *, copies: PostgresServer | None = None) -> None:
        """A fresh database, or a standby that copies one that runs."""
        self.folder = folder
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True)
        if os.geteuid() == 0:
            shutil.chown(folder, "postgres", "postgres")
        if copies is None:
            self._run("initdb", "-D", f"{folder}/data", "-A", "trust", "-U", "oncelog", "--no-sync")
        else:
            self._run("pg_basebackup", "-D", f"{folder}/data", "-d", copies.url, "-R", "-c", "fast", "--no-sync")

    @property
    def url(self) -> str:
        return f"postgresql://oncelog@127.0.0.1:{self.port}/postgres"

    def _as_somebody(self, program: str, *arguments: str) -> list[str]:
        if os.geteuid() != 0:
            return [str(BINARIES[-1] / program), *arguments]
        # Each start of pytest takes the folders above from everybody but root, also while another one's server runs.
        reach = ["--inh-caps=+dac_override", "--ambient-caps=+dac_override"]
        become = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups", *reach]
        return [*become, str(BINARIES[-1] / program), *arguments]

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            self._as_somebody(program, *arguments),
            capture_output=True,
            cwd=self.folder,
            timeout=PATIENCE_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr.decode()

    def start(self) -> None:
        with (self.folder.parent / f"{self.folder.name}.log").open("ab") as log:
            self._process = subprocess.Popen(
                self._as_somebody(
                    *(
                        "postgres",
                        "-D",
                        f"{self.folder}/data",
                        "-p",
                        str(self.port),
                        "-c",
                        "listen_addresses=127.0.0.1",
                    ),
                    *("-c", f"unix_socket_directories={self.folder}", "-c", "max_connections=200", "-c", "fsync=off"),
                ),
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
            )
        self._wait()

    def _wait(self) -> None:
        for _ in range(PATIENCE_S * 20):
            ready = subprocess.run(
                [str(BINARIES[-1] / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port)], check=False
            )
            if ready.returncode == 0:
                return
            assert self._process is not None and self._process.poll() is None, "PostgreSQL ended at once"
            time.sleep(0.05)
        raise AssertionError("PostgreSQL does not answer")

    def promote(self) -> None:
        """A standby becomes the database that is written to."""
        self._run("pg_ctl", "promote", "-D", f"{self.folder}/data")

    def pause(self) -> None:
        """The processes of the database stand still, and the machine goes on answering for their connections."""
        self._signal_all(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal_all(signal.SIGCONT)

    def _signal_all(self, what: int) -> None:
        assert self._process is not None
        pid = self._process.pid
        for each in [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]:
            os.kill(each, what)

    def stop(self, how: int = signal.SIGQUIT) -> None:
        """SIGQUIT is its crash: everything ends at once, and the next start recovers."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(PATIENCE_S)
            self._process = None

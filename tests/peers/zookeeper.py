"""The real ZooKeeper as a child process, from the jars that PySpark brings; one server or an ensemble."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from importlib.util import find_spec
from pathlib import Path

from tests.peers.process import HERE, Place, free_port

PATIENCE_S = 90.0


def missing() -> str | None:
    """Why ZooKeeper can't be run here."""
    if shutil.which("java") is None:
        return "no java on the path"
    if find_spec("pyspark") is None:
        return "no pyspark, whose jars hold ZooKeeper"
    return None


class ZooKeeperServer:
    """One server. `members` are those of an ensemble (host, peer port, election port), this one at `index`."""

    def __init__(
        self,
        folder: Path,
        *,
        members: list[tuple[str, int, int]] | None = None,
        index: int = 0,
        place: Place = HERE,
    ) -> None:
        self.folder = folder
        self.place = place
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)
        lines = [
            "tickTime=500",
            "maxSessionTimeout=60000",
            "maxClientCnxns=0",
            "admin.enableServer=false",
            "4lw.commands.whitelist=*",
            f"dataDir={folder}",
            f"clientPort={self.port}",
            f"clientPortAddress={place.host}",
        ]
        if members:
            lines += ["initLimit=20", "syncLimit=10", "standaloneEnabled=false"]
            lines += [
                f"server.{number}={host}:{peer}:{election}" for number, (host, peer, election) in enumerate(members, 1)
            ]
            (folder / "myid").write_text(str(index + 1))
        (folder / "zoo.cfg").write_text("\n".join(lines) + "\n")
        self._main = "quorum.QuorumPeerMain" if members else "ZooKeeperServerMain"

    @property
    def address(self) -> str:
        return f"{self.place.host}:{self.port}"

    def launch(self) -> None:
        spec = find_spec("pyspark")
        assert spec is not None
        assert spec.origin is not None
        jars = Path(spec.origin).parent / "jars"
        with (self.folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *self.place.enter,
                    *("java", "-Xmx128m", "-XX:TieredStopAtLevel=1", "-cp", f"{jars}/*"),
                    *(f"org.apache.zookeeper.server.{self._main}", str(self.folder / "zoo.cfg")),
                ],
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def start(self) -> None:
        self.launch()
        self.wait()

    def wait(self) -> None:
        """Until it serves, in an ensemble with a quorum."""
        deadline = time.monotonic() + PATIENCE_S
        while b"Mode:" not in self._says("srvr"):
            if time.monotonic() > deadline or self._process is None or self._process.poll() is not None:
                raise RuntimeError((self.folder / "server.log").read_text()[-2000:])
            time.sleep(0.05)

    def leads(self) -> bool | None:
        """Whether it leads its ensemble; None if it does not serve."""
        mode = self._says("srvr").partition(b"Mode: ")[2]
        return mode.startswith(b"leader") if mode else None

    def _says(self, word: str) -> bytes:
        try:
            with socket.create_connection((self.place.host, self.port), timeout=1) as connection:
                connection.sendall(word.encode())
                return connection.recv(65536)
        except OSError:
            return b""

    def stop(self, how: int = signal.SIGKILL) -> None:
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(PATIENCE_S)
            self._process = None

    def pause(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED)  # on busy cores it goes on for a moment

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

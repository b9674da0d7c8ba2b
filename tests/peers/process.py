"""A broker as a child process: ours or Apache Kafka, started, stopped, killed and measured the same way.

What always holds: a broker that `start` returned from answers ApiVersions; `stop` and `kill` return only when the
process is gone. Used by the client tests, the conformance runner and the benchmarks.
"""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache"
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")

# Both brokers run the tests with these settings: short group timeouts, so that a crash is noticed in seconds.
QUICK_SETTINGS: Mapping[str, str] = {
    "num.partitions": "4",
    "log.reserve.bytes": "1048576",  # ours only
    "auto.create.topics.enable": "true",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "5",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "5",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "500",
    "group.consumer.min.session.timeout.ms": "500",
    "group.consumer.session.timeout.ms": "2000",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "300",
}


class Place(NamedTuple):
    """Where a process runs: its address, and the command that brings another there."""

    host: str = "127.0.0.1"
    enter: tuple[str, ...] = ()


HERE = Place()


class BrokerFailed(RuntimeError):
    """The process ended or stayed silent instead of serving; the message carries the end of what it printed."""


class BrokerProcess(ABC):
    """One broker with a data folder of its own, on the loopback interface unless another place is named."""

    name: str

    def __init__(
        self,
        folder: Path,
        *,
        settings: Mapping[str, str] = QUICK_SETTINGS,
        port: int | None = None,
        place: Place = HERE,
    ) -> None:
        self.folder = folder
        self.place = place
        self.settings = dict(settings)
        self.port = port or free_port()
        self.log_path = folder / "broker.log"
        self.launched_at = 0.0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def bootstrap(self) -> str:
        return f"{self.place.host}:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None, "the broker is not running"
        return self._process.pid

    @property
    @abstractmethod
    def data(self) -> Path:
        """The folder with one sub-folder per partition."""

    @abstractmethod
    def command(self) -> list[str]:
        """What starts the broker in the foreground; the data folder is ready when this is called."""

    def prepare(self) -> None:  # noqa: B027 - most brokers need nothing
        """Make the data folder what the broker expects of a first start. Called before each start."""

    def environment(self) -> dict[str, str]:
        return dict(os.environ)

    def start(self, *, patience_seconds: float = 60.0) -> None:
        """Start the process and return when it answers."""
        self.launch()
        self.wait_until_answering(patience_seconds=patience_seconds)

    def launch(self) -> None:
        """Start the process and return at once."""
        assert self._process is None, "the broker runs already"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.prepare()
        with self.log_path.open("ab") as log:
            self.launched_at = time.monotonic()
            self._process = subprocess.Popen(
                [*self.place.enter, *self.command()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self.environment(),
                cwd=self.folder,
            )

    def wait_until_answering(self, *, patience_seconds: float = 60.0) -> None:
        deadline = time.monotonic() + patience_seconds
        assert self._process is not None
        while not answers_api_versions(self.port, host=self.place.host):
            if self._process.poll() is not None:
                status = self._process.returncode
                self._process = None
                raise BrokerFailed(f"{self.name} ended with status {status}:\n{self.log_tail()}")
            if time.monotonic() > deadline:
                self.kill()
                raise BrokerFailed(f"{self.name} did not answer within {patience_seconds} s:\n{self.log_tail()}")
            time.sleep(0.005)

    def stop(self, *, patience_seconds: float = 120.0) -> int:
        """Ask the broker to end and wait for it; its exit status."""
        return self._end(signal.SIGTERM, patience_seconds)

    def kill(self) -> int:
        """End the broker without giving it a chance to tidy up."""
        return self._end(signal.SIGKILL, 30.0)

    def pause(self) -> None:
        """The process stands still until `resume`."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def restart(self) -> None:
        self.stop()
        self.start()

    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def _end(self, signal_number: signal.Signals, patience_seconds: float) -> int:
        process, self._process = self._process, None
        if process is None:
            return 0
        process.send_signal(signal_number)
        try:
            return process.wait(patience_seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise BrokerFailed(f"{self.name} did not end within {patience_seconds} s:\n{self.log_tail()}") from None

    def log_tail(self, size_bytes: int = 3000) -> str:
        if not self.log_path.exists():
            return "(it printed nothing)"
        return self.log_path.read_bytes()[-size_bytes:].decode(errors="replace")

    def cpu_seconds(self) -> tuple[float, float]:
        """User and system CPU time the process has spent so far."""
        return spent_seconds(self.pid)

    def resident_bytes(self) -> int:
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        raise BrokerFailed(f"{self.name} has no resident memory: it ended")


def spent_seconds(pid: int) -> tuple[float, float]:
    """User and system CPU time that a process has spent so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) / TICKS_PER_SECOND, int(fields[12]) / TICKS_PER_SECOND


def free_port() -> int:
    """A port nobody listens on now. Kept low so that it is outside the range of outgoing connections.

    Runs that happen at once begin far from each other: a port is only taken when its program listens.
    """
    beside = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 2
    for port in range(21_000 + os.getpid() % 250 * 20 + 5_000 * beside, 32_000):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            if port not in _handed_out:
                _handed_out.add(port)
                return port
    raise BrokerFailed("no free port")


_handed_out: set[int] = set()


def answers_api_versions(port: int, timeout_seconds: float = 5.0, *, host: str = HERE.host) -> bool:
    """True when a broker listens there and answers ApiVersions version 0."""
    request = struct.pack(">hhih", 18, 0, 7, -1)
    try:
        with socket.create_connection((host, port), timeout=timeout_seconds) as connection:
            connection.sendall(struct.pack(">i", len(request)) + request)
            answer = connection.recv(10)
    except OSError:
        return False
    return len(answer) >= 8 and answer[4:8] == struct.pack(">i", 7)

"""A standalone Spark cluster on the loopback interface: one master, and worker processes with an address each.

Different addresses, because Spark starts the copy of a slow task (speculation) on another host only.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from tests.peers.process import free_port
from tests.spark.environment import environment_of, spark_home

EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"
PATIENCE_SECONDS = 90.0


class Cluster:
    def __init__(self, folder: Path, python: Path, *, workers: int = 2, cores: int = 2) -> None:
        self._folder = folder
        self._python = python
        self._hosts = [f"127.0.0.{number + 2}" for number in range(workers)]
        self._cores = cores
        self._port = free_port()
        self._environment = environment_of(python)
        # Each daemon is told its own address, and which Python runs is the driver's word alone.
        for name in ("SPARK_LOCAL_IP", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
            del self._environment[name]
        self._daemons: list[subprocess.Popen[bytes]] = []

    @property
    def master(self) -> str:
        return f"spark://127.0.0.1:{self._port}"

    @contextlib.contextmanager
    def running(self) -> Iterator[Cluster]:
        try:
            self._start("master.Master", "--host", "127.0.0.1", "--port", str(self._port), "--webui-port", "0")
            _wait_for_listener(self._port)
            for host in self._hosts:
                where = ["--host", host, "--webui-port", "0", "--work-dir", str(self._folder / "work")]
                self._start("worker.Worker", *where, "--cores", str(self._cores), "--memory", "2g", self.master)
            yield self
        finally:
            for daemon in reversed(self._daemons):
                _end(daemon)

    def executors(self) -> list[psutil.Process]:
        """The processes in which tasks run now."""
        found = []
        for daemon in self._daemons[1:]:
            with contextlib.suppress(psutil.NoSuchProcess):
                children = psutil.Process(daemon.pid).children(recursive=True)
                found += [child for child in children if _runs(child, EXECUTOR)]
        return found

    def python_workers(self) -> list[psutil.Process]:
        """The processes in which executors run Python now."""
        found = []
        for executor in self.executors():
            with contextlib.suppress(psutil.NoSuchProcess):
                found += [child for child in executor.children(recursive=True) if _runs(child, "pyspark.daemon")]
        return found

    def hosts_with_executors(self) -> set[str]:
        return {line[line.index("--hostname") + 1] for line in (executor.cmdline() for executor in self.executors())}

    def _start(self, daemon: str, *arguments: str) -> None:
        command = [str(spark_home(self._python) / "bin" / "spark-class"), f"org.apache.spark.deploy.{daemon}"]
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / f"{daemon.partition('.')[0]}.log").open("ab") as log:
            self._daemons.append(
                subprocess.Popen(
                    [*command, *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=self._environment,
                    cwd=self._folder,
                )
            )


def family(pid: int) -> list[psutil.Process]:
    """A process and all its descendants, youngest last; none when it is gone."""
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def kill_all(processes: list[psutil.Process]) -> None:
    """SIGKILL, the given processes only; a process number that was used again is not one of them."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGKILL)


def _runs(process: psutil.Process, main_class: str) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
        return main_class in process.cmdline()
    return False


def _end(daemon: subprocess.Popen[bytes]) -> None:
    left = family(daemon.pid)
    daemon.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        daemon.wait(10)
    kill_all(left)
    daemon.wait()


def _wait_for_listener(port: int) -> None:
    until = time.monotonic() + PATIENCE_SECONDS
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        if time.monotonic() > until:
            raise TimeoutError(f"no Spark master listens on port {port} (process {os.getpid()})")
        time.sleep(0.05)

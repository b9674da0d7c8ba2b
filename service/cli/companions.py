"""The processes beside the brokers of `oncelog demo`: a load, a group that reads, Spark pipelines, Prometheus. They
write their output to files, and end with the demo.
"""

from __future__ import annotations

import importlib.resources
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final, NamedTuple

from service.cli.failures import CliError, Exit
from service.supervisor import tied

PATIENCE_S = 60.0
PROMETHEUS_PORT = 9090
STOP_S = 15.0


class Pipeline(NamedTuple):
    """A pipeline of spark_sink/demo: the name of its script, and the topics that it reads and writes."""

    name: str
    reads: str
    writes: str


PIPELINES: Final = (Pipeline("transfers", "transfers", "entries"), Pipeline("sessions", "clicks", "sessions"))


def demo_of_spark() -> Path:
    """The folder of the scripts that Spark runs. What they need is checked first."""
    spec = find_spec("spark_sink")
    if shutil.which("java") is None or find_spec("pyspark") is None or spec is None or spec.origin is None:
        raise CliError(
            "--spark needs java on the path, pyspark and oncelog-spark (make install-dev has them)", Exit.USAGE
        )
    folder = Path(spec.origin).parent / "demo"
    if not folder.exists():
        raise CliError(f"--spark needs {folder}, which is in a clone of the repository", Exit.USAGE)
    return folder


class Companions:
    """Made with the list of what is wanted; the processes are started when the brokers are up."""

    def __init__(self, folder: Path, *, load: bool, spark: Path | None, partitions: int) -> None:
        self._folder = folder
        self._load = load
        self._spark = spark
        self._partitions = partitions
        self._processes: list[subprocess.Popen[bytes]] = []
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None
        self.prometheus = _free_port(PROMETHEUS_PORT) if load and shutil.which("prometheus") else None
        """Prometheus's port; None if Prometheus is not there or not wanted."""

    def __enter__(self) -> Companions:
        return self

    def __exit__(self, *_: object) -> None:
        """End everything that was started, including Spark's own children."""
        self._ending.set()
        if self._thread is not None:
            self._thread.join()
        for process in self._processes:
            _signal(process, signal.SIGTERM)
        until = time.monotonic() + STOP_S
        for process in self._processes:
            try:
                process.wait(max(until - time.monotonic(), 0.1))
            except subprocess.TimeoutExpired:
                _signal(process, signal.SIGKILL)
                process.wait()

    def told(self) -> list[str]:
        """A line about each process, for people."""
        lines = []
        if self._load:
            written, read = " and ".join(each.reads for each in PIPELINES), " and ".join(self._read)
            lines.append(f"  load         4 producers write transactions to {written}, group demo-readers reads {read}")
        if self._spark is not None:
            lines += [
                f"  Spark        {each.name}.py makes {each.writes} of {each.reads}, exactly once" for each in PIPELINES
            ]
        if self.prometheus is not None:
            lines.append(f"  Prometheus   http://127.0.0.1:{self.prometheus}/alerts")
        elif self._load:
            lines.append("  Prometheus   not here: there is none on the path (Debian: apt install prometheus)")
        return lines

    @property
    def _read(self) -> list[str]:
        """What the group reads: the end of the way."""
        return [each.reads if self._spark is None else each.writes for each in PIPELINES]

    def begin(self, bootstrap: str, web: Sequence[str]) -> None:
        """Start everything, and return at once: topics are created in the background, because the process that runs the
        metadata store must not wait for them.
        """
        self._thread = threading.Thread(target=self._begin, args=(bootstrap, web))
        self._thread.start()

    def _begin(self, bootstrap: str, web: Sequence[str]) -> None:
        if self.prometheus is not None:
            self._watch(web, self.prometheus)
        if not (self._load or self._spark):
            self._ending.wait()
            return
        ours = [sys.executable, "-m", "service.cli"]
        until = time.monotonic() + PATIENCE_S
        for topic in (topic for pipeline in PIPELINES for topic in (pipeline.reads, pipeline.writes)):
            create = [*ours, "topic", "create", topic, "-p", str(self._partitions), "-b", bootstrap]
            while subprocess.run(create, capture_output=True, check=False).returncode not in (0, 1):
                if self._ending.wait(1) or time.monotonic() > until:
                    return
        if self._load:
            self._start("load", [sys.executable, "-m", "service.cli.demo_load", bootstrap])
        if self._spark is not None:
            python = {"PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(_findable(self._folder / "python"))}
            for name, _, _ in PIPELINES:
                command = [sys.executable, "-P", str(self._spark / f"{name}.py"), bootstrap]
                self._start(f"spark-{name}", [*command, str(self._folder / f"checkpoint-{name}")], environment=python)
        if self._load:
            self._start(
                "readers", [*ours, "consume", *self._read, "--group", "demo-readers", "-b", bootstrap], quiet=True
            )
        self._ending.wait()  # what the thread has started ends with it

    def _watch(self, web: Sequence[str], port: int) -> None:
        rules = importlib.resources.files("monitoring") / "alerts" / "oncelog.rules.yml"
        (self._folder / "rules.yml").write_text(rules.read_text())
        targets = [each.removeprefix("http://") for each in web]
        config = {
            "global": {"scrape_interval": "5s", "evaluation_interval": "5s"},
            "rule_files": ["rules.yml"],
            "scrape_configs": [{"job_name": "oncelog", "static_configs": [{"targets": targets}]}],
        }
        (self._folder / "prometheus.yml").write_text(json.dumps(config))
        data, listen = self._folder / "prometheus", f"127.0.0.1:{port}"
        settings = f"--config.file={self._folder}/prometheus.yml", f"--storage.tsdb.path={data}"
        self._start("prometheus", ["prometheus", *settings, f"--web.listen-address={listen}"])

    def _start(
        self, name: str, command: Sequence[str], *, quiet: bool = False, environment: Mapping[str, str] | None = None
    ) -> None:
        if self._ending.is_set():
            return
        with (self._folder / f"{name}.log").open("ab") as log:
            out = subprocess.DEVNULL if quiet else log
            process = subprocess.Popen(
                tied(command),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=log,
                env={**os.environ, **(environment or {})},
                start_new_session=True,
            )
        self._processes.append(process)


def _findable(folder: Path) -> Path:
    """The folder, with a link to our data source in it. Spark looks for data sources in folders, and an editable
    installation is in no folder that Python searches.
    """
    spec = find_spec("pyspark_oncelog")
    assert spec is not None and spec.origin is not None, "it comes with spark_sink"
    folder.mkdir()
    (folder / "pyspark_oncelog").symlink_to(Path(spec.origin).parent)
    return folder


def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    """Send a signal to the process and all processes that it has started."""
    if process.poll() is None:
        os.killpg(process.pid, number)


def _free_port(wanted: int) -> int:
    """The wanted port if it is free, otherwise any free one."""
    for port in (wanted, 0):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            found: int = probe.getsockname()[1]
            return found
    raise AssertionError("no port is free")

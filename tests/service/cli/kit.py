"""Runs the command line inside this process, and as the process that a user starts."""

from __future__ import annotations

import json
import logging
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from click.testing import CliRunner

from service.cli.root import main
from service.cli.serve import CAUSED_BY_CLIENTS, ENDING

ROOT = Path(__file__).resolve().parents[3]
COMMAND = [sys.executable, "-m", "service.cli"]
PATIENCE_S = 30.0


class Ended(NamedTuple):
    """What a command left behind."""

    status: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out)


def oncelog(*arguments: str, stdin: bytes | None = None, bootstrap: str | None = None) -> Ended:
    """One command in this process, into a pipe."""
    runner = CliRunner(env={"ONCELOG_BOOTSTRAP": bootstrap})
    loggers = [logging.getLogger(name) for name in CAUSED_BY_CLIENTS]
    filters = [list(logger.filters) for logger in loggers]
    is_main = threading.current_thread() is threading.main_thread()  # no other may set them
    handlers = {number: signal.getsignal(number) for number in ENDING} if is_main else {}
    # `main` is more than the click group: it is what turns errors into lines and statuses.
    with runner.isolation(input=stdin) as (out, err, _):
        try:
            main(list(arguments))
        except SystemExit as ended:
            status = ended.code
        finally:  # a broker leaves lines out; the tests that come after this one look for them
            for logger, before in zip(loggers, filters, strict=True):
                logger.filters = before
            for number, handler in handlers.items():  # a demo leaves none
                signal.signal(number, handler)
        sys.stdout.flush()
        sys.stderr.flush()
        assert isinstance(status, int)
        return Ended(status, out.getvalue().decode(), err.getvalue().decode())


def process(*arguments: str, **environment: str) -> Ended:
    """One command in a process of its own."""
    done = subprocess.run(
        [*COMMAND, *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=PATIENCE_S,
        env={**os.environ, **environment},
        cwd=ROOT,
        check=False,
    )
    return Ended(done.returncode, done.stdout.decode(), done.stderr.decode())


class Running(subprocess.Popen[bytes]):
    """A command as a process that does not outlive its test, however that ends."""

    def __init__(self, *arguments: str, stdin: int = subprocess.DEVNULL, stderr: int = subprocess.PIPE) -> None:
        # Unbuffered, so that `select` knows of every line that has not been read.
        super().__init__(
            [*COMMAND, *arguments], stdin=stdin, stdout=subprocess.PIPE, stderr=stderr, cwd=ROOT, bufsize=0
        )

    def __exit__(self, *details: Any) -> None:
        if self.poll() is None:
            self.kill()
        super().__exit__(*details)

    def line(self) -> bytes:
        """The next line it prints; nothing if it ended or none came in time."""
        assert self.stdout is not None
        ready, _, _ = select.select([self.stdout], [], [], PATIENCE_S)
        return self.stdout.readline() if ready else b""

    def ended(self) -> Ended:
        """Wait for its end."""
        out, err = self.communicate(timeout=PATIENCE_S)
        return Ended(self.returncode, out.decode(), (err or b"").decode())


class Serving:
    """`oncelog serve` as a process, on a port of its own unless told otherwise."""

    def __init__(self, *arguments: str) -> None:
        self.process = Running("serve", "-o", "json", *arguments)
        self.facts: Mapping[str, Any] = {}

    @classmethod
    def on(cls, data: Path, *, port: int = 0) -> Serving:
        return cls("--data", str(data), "--host", "127.0.0.1", "--port", str(port))

    @property
    def bootstrap(self) -> str:
        return str(self.facts["bootstrap"])

    @property
    def port(self) -> int:
        return int(self.bootstrap.rpartition(":")[2])

    def stop(self, number: int = signal.SIGTERM) -> Ended:
        """Send the signal and wait for the end."""
        self.process.send_signal(number)
        return self.process.ended()

    def kill(self) -> None:
        self.stop(signal.SIGKILL)

    def __enter__(self) -> Serving:
        """Return when it has told its address."""
        line = self.process.line()
        if not line:
            raise AssertionError(f"the broker did not come up: {self.stop(signal.SIGKILL).err}")
        self.facts = json.loads(line)
        return self

    def __exit__(self, *details: Any) -> None:
        self.process.__exit__(*details)

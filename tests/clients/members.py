"""The test's side of `member.py`: start members, watch what they report, let them leave or kill them."""

from __future__ import annotations

import itertools
import json
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass

from tests.clients.java.programs import java_program
from tests.clients.kits import eventually
from tests.peers.process import ROOT

JAVA_MEMBER = ROOT / "tests" / "clients" / "java" / "Member.java"


@dataclass(frozen=True)
class GroupPlan:
    """Which client reads which topic in which group, under which protocol."""

    client: str
    bootstrap: str
    topic: str
    group: str
    protocol: str


class Member:
    """A group member that runs until it leaves or is killed. One that `waits` joins when it is told to begin."""

    def __init__(self, plan: GroupPlan, instance: str | None = None, *, waits: bool = False) -> None:
        words = [plan.bootstrap, plan.topic, plan.group, plan.protocol, *([instance] if instance else [])]
        if plan.client == "java":
            command = java_program(JAVA_MEMBER, *words)
        else:
            command = [sys.executable, "-m", "tests.clients.member", plan.client, *words]
        self._process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        self.assigned: list[int] = []
        self.history: list[list[int]] = []
        self.reads: list[tuple[int, int, str]] = []
        self.got: set[tuple[int, int]] = set()
        self._errors = b""
        self._ready = threading.Event()
        self._threads = [threading.Thread(target=self._listen), threading.Thread(target=self._collect_errors)]
        for thread in self._threads:
            thread.start()
        if not waits:
            self.begin()

    def wait_until_ready(self) -> None:
        assert self._ready.wait(30), "the process did not come up"

    def begin(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")
        self._process.stdin.flush()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if not line.endswith(b"\n"):
                break  # it was killed meanwhile
            fact = json.loads(line)
            if "ready" in fact:
                self._ready.set()
            elif "assigned" in fact:
                self.assigned = fact["assigned"]
                self.history.append(fact["assigned"])
            elif "got" in fact:
                self.got.update((partition, offset) for partition, offset in fact["got"])
            else:
                partition, offset, value = fact["read"]
                self.reads.append((partition, offset, value))

    def _collect_errors(self) -> None:
        assert self._process.stderr is not None
        self._errors = self._process.stderr.read()

    def leave(self) -> None:
        """Close the client, which tells the broker."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._wait()
        assert self._process.returncode == 0, self._errors.decode(errors="replace")[-3000:]
        self.assigned = []

    def running(self) -> bool:
        return self._process.poll() is None

    def last_words(self) -> str:
        """Of one that has ended."""
        self._wait()
        lines = self._errors.decode(errors="replace").strip().splitlines()
        return f"status {self._process.returncode}, {lines[-1] if lines else 'without a word'}"

    def pause(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def crash(self) -> None:
        """End the process without a word to the broker."""
        self._process.kill()
        self._wait()
        self.assigned = []

    def end(self) -> None:
        """Tidy up after a test, whatever state the member is in."""
        if self._process.poll() is None:
            self._process.kill()
        self._wait()

    def _wait(self) -> None:
        self._process.wait(30)
        for thread in self._threads:
            thread.join(10)
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None and not pipe.closed:
                pipe.close()


def wait_until_shared(members: list[Member], *, partitions: int) -> None:
    """Until the members hold all partitions between them, each once, as evenly as can be."""
    wanted = list(range(partitions))

    def fair(shares: list[list[int]]) -> bool:
        sizes = [len(share) for share in shares]
        return sorted(itertools.chain(*shares)) == wanted and max(sizes) - min(sizes) <= 1

    eventually(lambda: [member.assigned for member in members], fair)

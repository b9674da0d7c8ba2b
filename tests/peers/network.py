"""Hosts inside this machine: network namespaces on one bridge, each with an address, and ways between them that can be
cut in one direction.

All of it lives in namespaces of a process of its own (`in_a_world_of_its_own`): when that ends, however it does,
everything that was started there ends with it, and nothing of it was ever seen outside.

A way is cut by sending its packets to a hardware address that nobody has: they are lost without a word, as behind a
switch that died. The other direction goes on.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from tests.peers.process import Place

OUTSIDE = "10.0.0.254"
"""Who is at no host of its own: clients, as a rule."""
NOWHERE = "02:00:00:00:00:01"
NEW_WORLD = ("unshare", "--map-root-user", "--net", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child")


def missing() -> str | None:
    """Why there can be no such network here, or None."""
    if lacking := [name for name in ("unshare", "nsenter", "ip") if shutil.which(name) is None]:
        return f"no {', '.join(lacking)} (Debian: util-linux, iproute2)"
    tried = subprocess.run(
        [*NEW_WORLD, "ip", "link", "add", "road", "type", "bridge"], capture_output=True, check=False
    )
    return None if tried.returncode == 0 else f"no network namespaces: {tried.stderr.decode().strip()}"


def in_a_world_of_its_own(command: Sequence[str], *, cwd: Path) -> int:
    """Run `command` there; its exit status. It must call `end_with_maker`: then it ends when this process does, however
    that does, and with it everything that was started there. `unshare` itself ignores SIGTERM and SIGINT, and outlives
    who started it. A SIGINT from the keyboard reaches the command too, which ends in its own way.
    """
    with subprocess.Popen([*NEW_WORLD, *command], cwd=cwd, stdin=subprocess.PIPE) as process:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        return process.wait()


def end_with_maker() -> None:
    """The standard input of a world's first process ends when its maker does."""

    def wait() -> None:
        os.read(sys.stdin.fileno(), 1)
        os._exit(1)

    threading.Thread(target=wait, name="the maker lives", daemon=True).start()


class Network:
    """Made once, in a world of its own."""

    def __init__(self) -> None:
        self._cut: set[tuple[str, str]] = set()
        self._names: dict[str, str] = {}
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/run"], check=True)
        os.mkdir("/run/netns")
        _ip("link set lo up")
        _ip("link add road type bridge")
        _ip(f"addr add {OUTSIDE}/24 dev road")
        _ip("link set road up")

    def host(self, name: str, number: int) -> Place:
        """A new host; its place."""
        address = f"10.0.0.{number}"
        _ip(f"netns add {name}")
        _ip(f"link add {name} type veth peer name eth0 netns {name}")
        _ip(f"link set {name} master road up")
        _ip(f"-n {name} link set lo up")
        _ip(f"-n {name} addr add {address}/24 dev eth0")
        _ip(f"-n {name} link set eth0 up")
        self._names[address] = name
        return Place(address, ("nsenter", f"--net=/run/netns/{name}"))

    def cut(self, sender: Place, receiver: Place) -> None:
        """Nothing that `sender` sends arrives at `receiver` any more."""
        self._cut.add((sender.host, receiver.host))
        _ip(f"-n {self._names[sender.host]} neigh replace {receiver.host} lladdr {NOWHERE} dev eth0 nud permanent")

    def mend(self, sender: Place, receiver: Place) -> None:
        """Unless it was not cut."""
        if (sender.host, receiver.host) in self._cut:
            self._cut.discard((sender.host, receiver.host))
            _ip(f"-n {self._names[sender.host]} neigh del {receiver.host} dev eth0")


def _ip(words: str) -> None:
    done = subprocess.run(["ip", *words.split()], capture_output=True, check=False)
    assert done.returncode == 0, f"ip {words}: {done.stderr.decode()}"

"""The brokers that are measured: ours as it is, ours of an earlier commit, Apache Kafka."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests.peers.kafka import ApacheKafka
from tests.peers.ours import Oncelog
from tests.peers.process import CACHE, ROOT, BrokerFailed, BrokerProcess, answers_api_versions, spent_seconds
from tests.peers.zookeeper import ZooKeeperServer

COMMON = {
    "num.partitions": "4",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
}


REPLICATED = {
    "num.partitions": "4",
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "group.initial.rebalance.delay.ms": "0",
}
BROKERS = 3
TELLS_WITHIN_S = 30.0


class BrokerCluster:
    """Three brokers, numbered from 1 on, and where ours keep their metadata. Not started."""

    def __init__(self, folder: Path, brokers: Sequence[BrokerProcess], keeper: ZooKeeperServer | None = None) -> None:
        self.folder = folder
        self.brokers = brokers
        self._keeper = keeper

    @property
    def bootstrap(self) -> str:
        return ",".join(broker.bootstrap for broker in self.brokers)

    def start(self) -> None:
        if self._keeper is not None:
            self._keeper.start()
        for broker in self.brokers:
            broker.launch()
        for broker in self.brokers:
            broker.wait_until_answering(patience_seconds=240)

    def kill(self) -> None:
        for broker in self.brokers:
            broker.kill()
        if self._keeper is not None:
            self._keeper.stop()


class TimedOncelog(Oncelog):
    """`oncelog serve` on a loop that measures its turns."""

    def command(self) -> list[str]:
        command = super().command()
        at = command.index("service.cli")
        return [*command[:at], "tests.bench.timed", str(self._told), *command[at + 1 :]]

    def longest_turn_ms(self) -> float:
        """The longest turn since the last one was told."""
        self._told.unlink(missing_ok=True)
        os.kill(self.pid, signal.SIGUSR1)
        deadline_s = time.monotonic() + TELLS_WITHIN_S
        while not self._told.exists():
            if time.monotonic() > deadline_s:
                raise BrokerFailed(f"{self.name} does not tell of its turns")
            time.sleep(0.01)
        longest_ms, _ = self._told.read_text().split()
        return float(longest_ms)

    @property
    def _told(self) -> Path:
        return self.folder / "turns"


class SeveralOncelog(Oncelog):
    """`oncelog serve --brokers N`: a supervisor and its brokers, on ports one after the other."""

    count = 2

    def command(self) -> list[str]:
        return [*super().command(), "--brokers", str(self.count)]

    @property
    def bootstrap(self) -> str:
        return ",".join(f"{self.place.host}:{self.port + number}" for number in range(self.count))

    def start(self, *, patience_seconds: float = 60.0) -> None:
        super().start(patience_seconds=patience_seconds)
        deadline_s = time.monotonic() + patience_seconds
        while not all(answers_api_versions(self.port + number) for number in range(self.count)):
            if time.monotonic() > deadline_s:
                raise BrokerFailed(f"{self.name}: not all brokers answer:\n{self.log_tail()}")
            time.sleep(0.01)

    def cpu_seconds(self) -> tuple[float, float]:
        """User and system CPU time of the supervisor and its brokers."""
        brokers = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        each = [super().cpu_seconds(), *(spent_seconds(int(pid)) for pid in brokers)]
        return sum(user for user, _ in each), sum(system for _, system in each)


class Contender:
    """One of the brokers to compare. It makes processes, each with a data folder of its own."""

    def __init__(self, name: str, scratch: Path) -> None:
        self.name = name
        self._scratch = scratch / name.replace(" ", "-")
        self._numbers = itertools.count()

    times_turns = False
    """Whether its brokers can measure the turns of their loops."""

    def broker(
        self, *, fsync: bool = False, settings: Mapping[str, str] | None = None, timed: bool = False
    ) -> BrokerProcess:
        """A broker that has not been started. `fsync`: nothing is acknowledged to acks=all before it is on the disk.
        `timed`: it measures the turns of its loop, if it can.
        """
        raise NotImplementedError

    def two_brokers(self) -> BrokerProcess:
        """Two brokers that one command starts on this machine. It has not been given yet."""
        raise RuntimeError("it has no command that starts several brokers")

    def cluster(self, *, timed: bool = False) -> BrokerCluster:
        """Three brokers that have not been started, with three copies of everything. `timed`: ours measure the turns
        of their loops.
        """
        raise NotImplementedError

    def _folder(self) -> Path:
        return self._scratch / str(next(self._numbers))

    def forget(self, broker: BrokerProcess) -> None:
        """End a broker and free what it wrote."""
        if broker.running():
            broker.kill()
        shutil.rmtree(broker.folder, ignore_errors=True)

    def forget_cluster(self, cluster: BrokerCluster) -> None:
        cluster.kill()
        shutil.rmtree(cluster.folder, ignore_errors=True)


class Ours(Contender):
    times_turns = True

    def __init__(self, name: str, scratch: Path, tree: Path = ROOT) -> None:
        super().__init__(name, scratch)
        self._tree = tree

    def broker(
        self, *, fsync: bool = False, settings: Mapping[str, str] | None = None, timed: bool = False
    ) -> BrokerProcess:
        chosen = {**COMMON, "log.durability": "fsync" if fsync else "os", **(settings or {})}
        return (TimedOncelog if timed else Oncelog)(self._folder(), settings=chosen, tree=self._tree)

    def two_brokers(self) -> BrokerProcess:
        return SeveralOncelog(self._folder(), settings={**COMMON, "log.durability": "os"}, tree=self._tree)

    def cluster(self, *, timed: bool = False) -> BrokerCluster:
        folder, kind = self._folder(), TimedOncelog if timed else Oncelog
        keeper = ZooKeeperServer(folder / "keeper")
        settings = {**REPLICATED, "zookeeper.connect": keeper.address, "http.listeners": ""}
        return BrokerCluster(
            folder,
            [
                kind(folder / str(number), settings={**settings, "node.id": str(number)}, tree=self._tree)
                for number in range(1, BROKERS + 1)
            ],
            keeper,
        )


class Kafka(Contender):
    def broker(
        self, *, fsync: bool = False, settings: Mapping[str, str] | None = None, timed: bool = False
    ) -> BrokerProcess:
        chosen = {**COMMON, **({"log.flush.interval.messages": "1"} if fsync else {}), **(settings or {})}
        return ApacheKafka(self._folder(), settings=chosen, heap="1g", quick_start=False)

    def cluster(self, *, timed: bool = False) -> BrokerCluster:
        folder = self._folder()
        brokers = [
            ApacheKafka(folder / str(number), settings=REPLICATED, heap="1g", quick_start=False)
            for number in range(1, BROKERS + 1)
        ]
        ApacheKafka.together(brokers)
        return BrokerCluster(folder, brokers)


@contextlib.contextmanager
def earlier_commit(commit: str) -> Iterator[Path]:
    """A work tree of `commit` beside this one, for as long as it is needed."""
    tree = CACHE / "bench" / "base"
    git = ["git", "-C", str(ROOT), "worktree"]
    if tree.exists():
        subprocess.run([*git, "remove", "--force", str(tree)], check=False, capture_output=True)
        shutil.rmtree(tree, ignore_errors=True)
    subprocess.run([*git, "prune"], check=True)
    tree.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run([*git, "add", "--detach", str(tree), commit], check=True, capture_output=True)
    try:
        yield tree
    finally:
        subprocess.run([*git, "remove", "--force", str(tree)], check=False, capture_output=True)

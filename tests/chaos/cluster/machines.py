"""Three brokers and an ensemble of three ZooKeepers, each process at a host of its own, and each broker with a disk of
its own, which can be made to fail.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from service.client.connection import Client
from service.wire.messages import MetadataRequest
from tests import outside
from tests.faults.failing_disk import FailingDisk
from tests.peers.network import Network
from tests.peers.ours import Oncelog
from tests.peers.process import QUICK_SETTINGS, BrokerFailed, Place, answers_api_versions
from tests.peers.zookeeper import ZooKeeperServer

BROKER_PORT, WEB_PORT = 9092, 8082
PEER_PORT, ELECTION_PORT = 2888, 3888
SESSION_S = 3.0
DISK = "1g"
"""Half an hour of faults writes 220 MB. One that is full stops the copies at the end, when nobody makes room."""
FILLER = ".filler"
NO_KEEPER = ("no ZooKeeper answered", "the metadata store was lost", "The metadata store does not answer")
"""How a broker ends that can't begin because it finds no ZooKeeper, or loses it on the way."""
FAILED = "is out of service: [Errno 5]"
RETURNS_WITHIN_S = 60.0
"""After its start; as long as ZooKeeper is away or the machine is busy it takes longer than usual."""
SETTINGS = {
    **QUICK_SETTINGS,
    "zookeeper.session.timeout.ms": f"{SESSION_S * 1000:.0f}",
    "replica.lag.time.max.ms": "3000",
    "default.replication.factor": "3",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    "leader.imbalance.check.interval.seconds": "20",
}
SAFE = {"min.insync.replicas": "2", "transaction.state.log.min.isr": "2"}
CARELESS = {"min.insync.replicas": "1", "transaction.state.log.min.isr": "1", "unclean.leader.election.enable": "true"}
"""With `acks=1` these lose what was acknowledged, and the judge must notice."""


class OnItsDisk(Oncelog):
    """A broker whose disk can be made to fail, where there is a C compiler."""

    disk: FailingDisk | None = None

    def environment(self) -> dict[str, str]:
        return super().environment() | (self.disk.environment() if self.disk is not None else {})

    def disk_failures(self) -> int:
        """How often it has said that its disk failed."""
        return self.log_path.read_text(errors="replace").count(FAILED)


@dataclass
class Cluster:
    """`down` are the brokers that shall not run now."""

    network: Network
    brokers: dict[int, OnItsDisk]
    keepers: list[ZooKeeperServer]
    down: set[int] = field(default_factory=set)
    ended: list[str] = field(default_factory=list)
    """Brokers that ended although nobody had ended them, or did not when they should, and what they said last."""

    @property
    def bootstrap(self) -> str:
        return ",".join(broker.bootstrap for broker in self.brokers.values())

    @property
    def urls(self) -> str:
        """Where the brokers speak HTTP."""
        return ",".join(_url(broker.place) for broker in self.brokers.values())

    def start(self) -> None:
        for keeper in self.keepers:
            keeper.launch()
        for keeper in self.keepers:
            keeper.wait()
        for broker in self.brokers.values():
            broker.launch()
        for broker in self.brokers.values():
            broker.wait_until_answering()

    def keep_running(self) -> None:
        """Who ended and shall not be down is started again."""
        for number, broker in self.brokers.items():
            if number in self.down or broker.running():
                continue
            said = broker.log_tail(300).strip()
            if not any(words in said for words in NO_KEEPER):  # one that runs waits
                self.ended.append(f"broker {number} ended by itself: {said}")
            broker.kill()
            broker.launch()

    def kill(self, number: int) -> None:
        self.down.add(number)
        self.brokers[number].kill()

    def revive(self, number: int) -> None:
        self.brokers[number].launch()
        self.down.discard(number)

    def fill_disk(self, number: int) -> Path:
        """The file that takes all room that the broker's disk has left."""
        filler = self.brokers[number].data / FILLER
        with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(1 << 16))
        return filler

    def fail_disk(self, number: int, *, writes_too: bool) -> None:
        """From now on nothing can be made durable on it, or not even written. Its broker may end."""
        disk = self.brokers[number].disk
        assert disk is not None
        self.down.add(number)
        for switch in (disk.no_fsync, disk.no_writes)[: 1 + writes_too]:
            switch.touch()

    def replace_disk(self, number: int, *, failures_before: int) -> None:
        """The disk is sound again, and its broker restarted; if it has failed, by an empty one where nobody counts this
        broker in sync.
        """
        broker = self.brokers[number]
        assert broker.disk is not None
        failures = broker.disk_failures() - failures_before
        if failures > 1:
            self.ended.append(f"broker {number} said {failures} times that its disk failed")
        if not failures and broker.running():  # nobody wanted to write meanwhile
            broker.disk.heal()
            self.down.discard(number)
            return
        self._stop(number)
        broker.disk.heal()
        if is_exchanged := self._is_counted_nowhere(number):
            for path in broker.data.iterdir():
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        print(f"  broker {number} gets {'an empty disk' if is_exchanged else 'its disk back'}", flush=True)
        self._return(number)

    def _is_counted_nowhere(self, number: int) -> bool:
        """Whether both others say that no partition has it in sync: then nothing is lost with what it has."""
        try:
            told = [
                asyncio.run(_in_sync(broker.place.host)) for other, broker in self.brokers.items() if other != number
            ]
        except (OSError, TimeoutError):
            return False
        return all(found and number not in found for found in told)

    def restart(self, number: int) -> None:
        """Stop it in order; return when it answers again."""
        self._stop(number)
        self._return(number)

    def _stop(self, number: int) -> None:
        self.down.add(number)
        try:
            self.brokers[number].stop()
        except BrokerFailed as failure:
            self.ended.append(f"broker {number}: {failure}")

    def _return(self, number: int) -> None:
        self.revive(number)
        broker = self.brokers[number]
        until = time.monotonic() + RETURNS_WITHIN_S
        while not answers_api_versions(broker.port, host=broker.place.host):
            if time.monotonic() > until:
                self.ended.append(f"broker {number} did not come back: {broker.log_tail(300).strip()}")
                return
            time.sleep(0.1)

    def end(self) -> None:
        for broker in self.brokers.values():
            with contextlib.suppress(BrokerFailed):
                broker.kill()
        for keeper in self.keepers:
            keeper.stop(signal.SIGKILL)
        for broker in self.brokers.values():
            _take_out(broker.data)

    # -- what it says of itself

    @cached_property
    def admin(self) -> AdminClient:
        """One for the whole run: the library may crash when one after the other is thrown away."""
        return AdminClient({"bootstrap.servers": self.bootstrap, "socket.timeout.ms": 3_000, "log_level": 0})

    def leader(self, topic: str, partition: int) -> int:
        """-1 when nobody says."""
        try:
            return int(self.admin.list_topics(topic, timeout=2).topics[topic].partitions[partition].leader)
        except (KafkaException, KeyError):
            return -1


def build(folder: Path, network: Network, *, settings: Mapping[str, str]) -> Cluster:
    places = [network.host(f"keeper{number}", 10 + number) for number in (1, 2, 3)]
    members = [(place.host, PEER_PORT, ELECTION_PORT) for place in places]
    keepers = [
        ZooKeeperServer(folder / f"keeper-{index + 1}", members=members, index=index, place=place)
        for index, place in enumerate(places)
    ]
    connect = ",".join(keeper.address for keeper in keepers)
    brokers = {}
    for number in (1, 2, 3):
        place = network.host(f"broker{number}", number)
        own = {"zookeeper.connect": connect, "node.id": str(number), "http.listeners": _url(place)}
        folder_of = folder / f"broker-{number}"
        brokers[number] = OnItsDisk(folder_of, settings={**SETTINGS, **settings, **own}, port=BROKER_PORT, place=place)
    for broker in brokers.values():
        if outside.missing("cc") is None:
            broker.disk = FailingDisk(broker.data, broker.folder / "disk")
        broker.data.mkdir(parents=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(broker.data)], check=True)
    return Cluster(network, brokers, keepers)


async def _in_sync(host: str) -> set[int]:
    """The brokers that are in sync somewhere, by the word of the one at `host`."""
    async with asyncio.timeout(5), Client(host, BROKER_PORT) as client:
        answer = await client.request(MetadataRequest(topics=None))
        return {node for topic in answer.topics for each in topic.partitions for node in each.isr_nodes}


def _url(place: Place) -> str:
    return f"http://{place.host}:{WEB_PORT}"


def _take_out(disk: Path) -> None:
    """What is on it stays in the folder."""
    kept = disk.with_name("kept")
    shutil.copytree(disk, kept)
    subprocess.run(["umount", "--lazy", str(disk)], check=True)
    disk.rmdir()
    kept.rename(disk)


def cut_off(network: Network, sender: Place, receivers: list[Place], *, both: bool) -> None:
    for receiver in receivers:
        network.cut(sender, receiver)
        if both:
            network.cut(receiver, sender)


def joined(network: Network, one: Place, others: list[Place]) -> None:
    for other in others:
        network.mend(one, other)
        network.mend(other, one)

"""Three brokers and an ensemble of three ZooKeepers, each process at a host of its own, and each broker with a disk of
its own.
"""

from __future__ import annotations

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
NO_KEEPER = "no ZooKeeper answered"
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


@dataclass
class Cluster:
    """`down` are the brokers that shall not run now."""

    network: Network
    brokers: dict[int, Oncelog]
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
            if NO_KEEPER not in said:  # who can't begin without it says so and ends; one that runs waits
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

    def restart(self, number: int) -> None:
        """Stop it in order; return when it answers again."""
        self.down.add(number)
        broker = self.brokers[number]
        try:
            broker.stop()
        except BrokerFailed as failure:
            self.ended.append(f"broker {number}: {failure}")
        self.revive(number)
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
        brokers[number] = Oncelog(folder_of, settings={**SETTINGS, **settings, **own}, port=BROKER_PORT, place=place)
    for broker in brokers.values():
        broker.data.mkdir(parents=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(broker.data)], check=True)
    return Cluster(network, brokers, keepers)


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

"""Three brokers and a ZooKeeper as child processes on the loopback interface, for tests of what several do together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from tests.clients.kits import Eventually
from tests.peers.ours import Oncelog
from tests.peers.process import QUICK_SETTINGS
from tests.peers.zookeeper import ZooKeeperServer

within_minutes = Eventually(patience_seconds=180.0)


@contextmanager
def three_brokers(folder: Path, settings: Mapping[str, str]) -> Iterator[dict[int, Oncelog]]:
    """They answer and know each other; by their numbers. Each is in a rack of its own."""
    keeper = ZooKeeperServer(folder / "keeper")
    keeper.start()
    common = {**QUICK_SETTINGS, "zookeeper.connect": keeper.address, "http.listeners": "", **settings}
    brokers = {
        number: Oncelog(
            folder / f"broker-{number}", settings={**common, "node.id": str(number), "broker.rack": f"rack-{number}"}
        )
        for number in (1, 2, 3)
    }
    try:
        for broker in brokers.values():
            broker.launch()
        for broker in brokers.values():
            broker.wait_until_answering(patience_seconds=180)
        for broker in brokers.values():  # one that answers may not have heard of the others yet
            within_minutes(
                partial(_named_by, AdminClient({"bootstrap.servers": broker.bootstrap})), brokers.keys().__eq__
            )
        yield brokers
    finally:
        for broker in brokers.values():
            broker.kill()
        keeper.stop()


def _named_by(admin: AdminClient) -> set[int]:
    """The brokers that the one which is asked first knows of."""
    try:
        return set(admin.list_topics(timeout=5).brokers)
    except KafkaException:
        return set()


def out_of_sync(admin: AdminClient, *, at_least: int = 0) -> list[str]:
    """Partitions that lack a leader, or a replica in sync: one of their own, or of so many that each is to have. One
    word when nobody says.
    """
    try:
        topics = admin.list_topics(timeout=5).topics.values()
    except KafkaException as failure:
        return [str(failure)]
    return [
        f"{topic.topic}-{number}"
        for topic in topics
        for number, each in topic.partitions.items()
        if each.leader < 0 or len(each.isrs) < max(len(each.replicas), at_least)
    ]

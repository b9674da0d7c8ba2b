"""What a reader of committed data finds in a topic, through librdkafka; and what it would wait for."""

from __future__ import annotations

import time

from confluent_kafka import Consumer, IsolationLevel, Message, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

from spark_sink.client import TRANSACTION, Client
from spark_sink.messages import DescribeBranchesRequest, DescribeBranchesResponse

PATIENCE_SECONDS = 20.0


def committed(bootstrap: str, topic: str) -> list[Message]:
    """All messages, each partition's in order, once no transaction is open."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "check.crcs": True,
        }
    )
    partitions = list(consumer.list_topics(topic, PATIENCE_SECONDS).topics[topic].partitions)
    _wait_until_nothing_is_open(bootstrap, topic, partitions)
    consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
    found: list[Message] = []
    ended = 0
    while ended < len(partitions):
        message = consumer.poll(PATIENCE_SECONDS)
        assert message is not None, "no end of the partition"
        if message.error() is None:
            found.append(message)
        else:
            ended += 1
    consumer.close()
    return found


def values(bootstrap: str, topic: str) -> list[str]:
    """Sorted, so that a row twice or missing is seen at once."""
    return sorted((message.value() or b"").decode() for message in committed(bootstrap, topic))


def _wait_until_nothing_is_open(bootstrap: str, topic: str, partitions: list[int]) -> None:
    """What lost is aborted by the decision too, but marked after its answer."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    ends = {TopicPartition(topic, partition): OffsetSpec.latest() for partition in partitions}  # type: ignore[no-untyped-call]

    def asked(isolation: IsolationLevel) -> list[int]:
        return [
            told.result(PATIENCE_SECONDS).offset
            for told in admin.list_offsets(ends, isolation_level=isolation).values()
        ]

    deadline = time.monotonic() + PATIENCE_SECONDS
    while asked(IsolationLevel.READ_COMMITTED) != asked(IsolationLevel.READ_UNCOMMITTED):
        assert time.monotonic() < deadline, "a transaction stays open"
        time.sleep(0.01)


def open_branches(client: Client, root: str) -> tuple[str, ...]:
    """Those of a root that wait for a decision."""
    node = client.coordinator(TRANSACTION, root)
    return client.ask(node, DescribeBranchesRequest(roots=(root,)), DescribeBranchesResponse).roots[0].open_branches  # type: ignore[arg-type]

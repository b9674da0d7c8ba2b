"""Reads everything back, under both isolations and from every replica, and counts what is wrong.

Kafka's own client library reads from the leaders. From each broker, leader or not, we read by plain Fetch requests: the
stored batches must be the same ones everywhere, and so must be what a reader of committed records sees of them.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from confluent_kafka import Consumer, TopicPartition

from isolation.read_filter import visible_batches
from log.batch import read_records, split
from service.client.connection import Client
from service.client.failures import error_name
from service.wire.messages import FetchPartition, FetchRequest, FetchTopic
from tests.chaos.cluster.machines import BROKER_PORT, Cluster
from tests.chaos.cluster.writers import Ending, Told, Transaction

WITHOUT_TOPIC_IDS = 12
AGREE_WITHIN_S = 30.0
READ_WITHIN_S = 180.0
SHOWN = 5
READ_UNCOMMITTED, READ_COMMITTED = "read_uncommitted", "read_committed"

Read = list[tuple[int, bytes | None, bytes | None]]
"""Of one partition: offsets, keys and values."""


@dataclass
class Verdict:
    lost: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    torn: list[str] = field(default_factory=list)
    unlike: list[str] = field(default_factory=list)
    """Where replicas differ, or a library from them."""

    def lines(self) -> list[str]:
        """What is wrong."""
        told = []
        for name in ("lost", "doubled", "torn", "unlike"):
            found: list[str] = getattr(self, name)
            told += [f"{name}: {each}" for each in found[:SHOWN]]
            if len(found) > SHOWN:
                told.append(f"{name}: and {len(found) - SHOWN} more")
        return told


Whence = Callable[[str, int, Iterable[int]], str]
"""Tells where the records at these offsets of a partition come from (`tests/chaos/whence.py`)."""


def judge_values(verdict: Verdict, topic: str, told: Told, read: list[Read], isolation: str, whence_of: Whence) -> None:
    """Each acknowledged value is there once, at its offset, and the values of a partition are in order."""
    for partition, found in enumerate(read):
        acknowledged = told.acknowledged[partition]
        where = f"{topic}-{partition}, {isolation}"
        at = {offset: int(value or b"-1") for offset, _, value in found}
        counts = Counter(at.values())
        for offset, value in acknowledged.items():
            if counts[value] == 0:
                verdict.lost.append(f"{where}: value {value}, acknowledged at offset {offset}")
            elif at.get(offset) != value:
                verdict.unlike.append(f"{where}: value {value} is not at offset {offset}, where it was acknowledged")
        verdict.lost += [
            f"{where}: value {value}, acknowledged" for value in told.somewhere[partition] if not counts[value]
        ]
        for twice in (number for number, count in counts.items() if count > 1):
            what = f"{where}: value {twice}, {counts[twice]} times"
            if len(verdict.doubled) < SHOWN:  # to find out where each of thousands comes from took hours
                offsets = [offset for offset, number in at.items() if number == twice]
                what = f"{what}: {whence_of(topic, partition, offsets)}"
            verdict.doubled.append(what)
        values = list(at.values())
        if values != sorted(values) and not any(count > 1 for count in counts.values()):
            verdict.unlike.append(f"{where}: the values are in another order")


def judge_transactions(
    verdict: Verdict, writer: str, transactions: list[Transaction], topic: str, read: list[Read], whence_of: Whence
) -> None:
    """What a reader of committed records sees of each transaction: all of it, once, or nothing, as it was told."""
    found: dict[int, dict[int, list[tuple[int, int]]]] = {}
    for partition, records in enumerate(read):
        for offset, key, value in records:
            if key == writer.encode():
                of, _, index = (value or b"").decode().partition(".")
                found.setdefault(int(of), {}).setdefault(int(index), []).append((partition, offset))
    for number, transaction in enumerate(transactions):
        seen = found.pop(number, {})
        what = f"{writer}: transaction {number}, {transaction.ending.value}: {len(seen)} of {transaction.size}"
        for which, places in seen.items():
            if len(places) > 1:
                each = (f"{partition}: {whence_of(topic, partition, [offset])}" for partition, offset in places)
                verdict.doubled.append(f"{what}: value {number}.{which} in partition {', in '.join(each)}")
        if not seen and transaction.ending is Ending.COMMITTED:
            verdict.lost.append(what)
        elif seen and (transaction.ending is Ending.ABORTED or len(seen) != transaction.size):
            verdict.torn.append(what)
    verdict.unlike += [f"{writer}: transaction {number}, which nobody began" for number in found]


def read_topic(bootstrap: str, topic: str, partitions: int, isolation: str) -> list[Read]:
    """By Kafka's client library, up to where each partition ends."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "chaos-unused",
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
    read: list[Read] = [[] for _ in range(partitions)]
    ended: set[int] = set()
    until = time.monotonic() + READ_WITHIN_S
    while len(ended) < partitions:
        assert time.monotonic() < until, f"{topic} can't be read to its end: {sorted(ended)} are"
        for message in consumer.consume(5_000, 0.5):
            partition, offset = message.partition(), message.offset()
            assert partition is not None
            if message.error() is not None:
                ended.add(partition)
                continue
            assert offset is not None
            read[partition].append((offset, message.key(), message.value()))
    consumer.close()
    return read


class Unreadable(Exception):
    """A broker does not show what it has."""


@dataclass
class Copy:
    """What one broker has of a partition: its batches by where they begin, and what of it is visible."""

    end_offset: int = 0
    batches: list[tuple[int, int, int]] = field(default_factory=list)
    """First offset, leader epoch, checksum."""
    visible: Read = field(default_factory=list)


def compare_replicas(verdict: Verdict, cluster: Cluster, topic: str, read: list[Read], isolation: str) -> None:
    """`read` is what the library found."""
    for partition, by_library in enumerate(read):
        copies = _settled_copies(cluster, topic, partition, isolation)
        first = copies[0]
        where = f"{topic}-{partition}, {isolation}"
        for number, copy in zip(cluster.brokers, copies, strict=True):
            if copy.batches != first.batches:
                verdict.unlike.append(f"{where}: broker {number} has other batches: {_parting(first, copy)}")
            if copy.visible != first.visible:
                verdict.unlike.append(f"{where}: broker {number} shows other records")
        if first.visible != by_library:
            verdict.unlike.append(f"{where}: {len(by_library)} records by the library, {len(first.visible)} by Fetch")


def _parting(one: Copy, other: Copy) -> str:
    pairs = zip(one.batches, other.batches, strict=False)
    return next((f"{a} and {b}" for a, b in pairs if a != b), f"{one.end_offset} and {other.end_offset}")


def _settled_copies(cluster: Cluster, topic: str, partition: int, isolation: str) -> list[Copy]:
    """Followers learn a moment later what is committed, and while another begins to lead nobody may be asked."""
    until = time.monotonic() + AGREE_WITHIN_S
    while True:
        late = time.monotonic() > until
        try:
            copies = asyncio.run(_copies(cluster, topic, partition, isolation))
            if late or len({copy.end_offset for copy in copies}) == 1:
                return copies
        except (Unreadable, OSError):  # also nobody who answers in time
            if late:
                raise
        time.sleep(0.3)


async def _copies(cluster: Cluster, topic: str, partition: int, isolation: str) -> list[Copy]:
    hosts: Iterable[str] = (broker.place.host for broker in cluster.brokers.values())
    async with asyncio.timeout(READ_WITHIN_S):
        return list(await asyncio.gather(*(_copy(host, topic, partition, isolation) for host in hosts)))


async def _copy(host: str, topic: str, partition: int, isolation: str) -> Copy:
    copy = Copy()
    async with Client(host, BROKER_PORT) as client:
        while True:
            wanted = FetchTopic(
                topic=topic, partitions=[FetchPartition(partition, -1, copy.end_offset, partition_max_bytes=1 << 20)]
            )
            request = FetchRequest(
                max_wait_ms=100,
                min_bytes=1,
                max_bytes=1 << 20,
                isolation_level=int(isolation == READ_COMMITTED),
                topics=[wanted],
            )
            answer = await client.request(request, version=WITHOUT_TOPIC_IDS)
            (data,) = answer.responses[0].partitions
            if data.error_code:
                raise Unreadable(f"{host} answers {error_name(data.error_code)} for {topic}-{partition}")
            records = bytes(data.records or b"")  # type: ignore[arg-type]
            if not records:
                return copy
            aborted = None
            if data.aborted_transactions is not None:
                aborted = [(each.producer_id, each.first_offset) for each in data.aborted_transactions]
            for header, batch in visible_batches(records, aborted):
                copy.visible += [(record.offset, record.key, record.value) for record in read_records(batch, header)]
            for header, _ in split(records):
                copy.batches.append((header.base_offset, header.leader_epoch, header.crc))
                copy.end_offset = header.next_offset

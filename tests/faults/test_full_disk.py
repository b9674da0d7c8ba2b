"""A disk gets full under clients that nobody here wrote: what was acknowledged is read, producers wait and finish by
themselves when there is room again, and nothing is lost or written twice. Nobody restarts the broker.

The disk is a small one of the test's own. It is filled by the producers themselves or by a file of somebody else's, and
emptied by deleting a topic or that file.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.cimpl import NewTopic

from tests.clients.libraries import kafka
from tests.outside import missing
from tests.peers.chosen import new_broker
from tests.peers.process import BrokerProcess

FULL, ROOM_AGAIN = "is full: producers are refused", "has room again"
RECORD_BYTES = 10_000


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """On a disk of 60 MB of its own."""
    if why := missing("mount"):
        pytest.skip(why)
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=60m", "none", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("this machine lets nobody mount a small disk")
    broker = new_broker(
        folder, log_reserve_bytes="16777216", log_segment_bytes="1048576", log_retention_check_interval_ms="500"
    )
    try:
        broker.start()
        yield broker
        if broker.running():
            broker.kill()
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def comes_true(holds: Callable[[], bool], what: str, patience_s: float = 60.0) -> None:
    deadline = time.monotonic() + patience_s
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def says(broker: BrokerProcess, line: str) -> int:
    return broker.log_path.read_text(errors="replace").count(line)


def create(broker: BrokerProcess, *topics: str) -> AdminClient:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for created in admin.create_topics([NewTopic(topic, 1) for topic in topics]).values():
        created.result(30)
    return admin


class Sending(threading.Thread):
    """Sends numbered records, one more as long as it is not told to stop and they are not `most`, and notes which were
    acknowledged.
    """

    def __init__(
        self, broker: BrokerProcess, topic: str, *, most: int = sys.maxsize, **settings: str | bool | int
    ) -> None:
        super().__init__()
        self._most = most
        self._producer = Producer(
            {
                "bootstrap.servers": broker.bootstrap,
                "queue.buffering.max.messages": 500,
                "compression.type": "none",
                **settings,
            }
        )
        self._topic = topic
        self.sent = 0
        self.acknowledged: list[int] = []
        self.failed: list[str] = []
        self.left = -1
        self.enough = threading.Event()
        self.start()

    def run(self) -> None:
        while not self.enough.is_set() and self.sent < self._most:
            value = b"%d " % self.sent
            try:
                self._producer.produce(self._topic, value.ljust(RECORD_BYTES, b"x"), on_delivery=self._told)
                self.sent += 1
            except BufferError:
                self._producer.poll(0.05)
            self._producer.poll(0)
        self.left = self._producer.flush(60)

    def _told(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.failed.append(str(error))
        else:
            self.acknowledged.append(number_of(message))

    def finish(self) -> None:
        self.enough.set()
        self.join(90)
        assert (self.left, self.failed) == (0, [])


def number_of(message: Message) -> int:
    value = message.value()
    assert value is not None
    return int(value.split()[0])


def stored(broker: BrokerProcess, topic: str) -> list[int]:
    """The numbers of all records that a committed reader is shown, in order."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "reader",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    found = []
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        message = consumer.poll(1.0)
        if message is None:
            continue
        if (error := message.error()) is None:
            found.append(number_of(message))
        elif error.code() == KafkaError._PARTITION_EOF:
            consumer.close()
            return found
        else:
            raise AssertionError(error)
    raise AssertionError("the end of the topic was not reached")


def test_a_producer_waits_for_room_and_finishes_without_loss_or_double(broker: BrokerProcess) -> None:
    admin = create(broker, "ballast", "events")
    ballast = Sending(broker, "ballast", most=2_000, acks="1")
    comes_true(lambda: ballast.sent == 2_000, "the ballast is not taken")
    ballast.finish()
    events = Sending(broker, "events", **{"enable.idempotence": True})
    comes_true(lambda: says(broker, FULL) == 1, "the disk does not get full")
    acknowledged = sorted(events.acknowledged)
    assert stored(broker, "events")[: len(acknowledged)] == acknowledged
    assert len(stored(broker, "ballast")) == len(ballast.acknowledged)
    events.enough.set()
    admin.delete_topics(["ballast"])["ballast"].result(30)
    events.finish()
    assert stored(broker, "events") == list(range(events.sent)) == sorted(events.acknowledged)
    assert (says(broker, FULL), says(broker, ROOM_AGAIN), says(broker, "Traceback")) == (1, 1, 0)
    assert broker.stop() == 0


def test_retention_makes_room_on_a_full_disk(broker: BrokerProcess) -> None:
    """Somebody lets the topic keep less, and all is well."""
    admin = create(broker, "events")
    events = Sending(broker, "events", **{"enable.idempotence": True})
    comes_true(lambda: says(broker, FULL) == 1, "the disk does not get full")
    events.enough.set()
    keep_less = ConfigResource(
        ConfigResource.Type.TOPIC,
        "events",
        incremental_configs=[
            ConfigEntry("retention.bytes", "5000000", incremental_operation=AlterConfigOpType.SET),
        ],
    )
    for altered in admin.incremental_alter_configs([keep_less]).values():
        altered.result(30)
    events.finish()
    reader = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "looks"})
    first, found = -1, [0]
    while first != (first := reader.get_watermark_offsets(TopicPartition("events", 0), 10)[0]):
        found = stored(broker, "events")  # and if more was removed meanwhile, again
    reader.close()
    assert found == list(range(first, events.sent))
    assert says(broker, ROOM_AGAIN) == 1


def fill(broker: BrokerProcess) -> Path:
    """Somebody else takes all there is, to the last byte."""
    path = broker.folder / "somebody else's"
    with path.open("wb", buffering=0) as file:
        for size in (1 << 20, 4096, 1):
            try:
                while True:
                    if file.write(bytes(size)) < size:
                        break
            except OSError:
                continue
    return path


def test_transactions_end_on_a_full_disk_and_their_producer_goes_on_when_there_is_room(broker: BrokerProcess) -> None:
    """What is open when somebody else fills the disk to the last byte is committed; so are offsets."""
    create(broker, "events")
    producer = Producer(
        {"bootstrap.servers": broker.bootstrap, "transactional.id": "pay", "transaction.timeout.ms": 60_000}
    )
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce("events", b"0 committed on a full disk")
    assert producer.flush(30) == 0
    strangers = fill(broker)
    producer.commit_transaction(30)
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "late"})
    consumer.commit(offsets=[TopicPartition("events", 0, 1)], asynchronous=False)
    assert stored(broker, "events") == [0]
    comes_true(lambda: says(broker, FULL) == 1, "nobody says that the disk is full")
    producer.begin_transaction()
    producer.produce("events", b"1 waits for room")
    assert producer.flush(3) == 1, "it was refused, and is sent again"
    strangers.unlink()
    producer.commit_transaction(60)
    assert stored(broker, "events") == [0, 1]
    assert [each.offset for each in consumer.committed([TopicPartition("events", 0)], 30)] == [1]
    consumer.close()
    assert (says(broker, FULL), says(broker, ROOM_AGAIN), says(broker, "Traceback")) == (1, 1, 0)


def test_a_broker_starts_on_a_full_disk_and_serves_readers(broker: BrokerProcess) -> None:
    create(broker, "events")
    few = 1_000  # so that a fast writer does not fill the disk by itself
    events = Sending(broker, "events", most=few)
    comes_true(lambda: len(events.acknowledged) > 100, "nothing is acknowledged")
    events.finish()
    strangers = fill(broker)
    broker.kill()
    broker.start()
    assert stored(broker, "events") == list(range(events.sent))
    assert broker.stop() == 0
    broker.start()
    waiting = Sending(broker, "events", most=few)
    assert stored(broker, "events") == list(range(events.sent))
    strangers.unlink()
    comes_true(lambda: bool(waiting.acknowledged), "service does not go on")
    waiting.finish()


@pytest.mark.skipif(shutil.which("kcat") is None, reason="kcat is not installed")
def test_kcat_finishes_when_there_is_room_again(broker: BrokerProcess) -> None:
    create(broker, "events")
    strangers = fill(broker)
    with subprocess.Popen(
        ["kcat", "-b", broker.bootstrap, "-P", "-t", "events", "-p", "0"],
        stdin=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as kcat:
        assert kcat.stdin is not None
        kcat.stdin.write(b"0 from kcat\n")
        kcat.stdin.close()
        comes_true(lambda: says(broker, FULL) == 1, "nobody says that the disk is full")
        assert kcat.poll() is None, "it waits"
        strangers.unlink()
        assert kcat.wait(60) == 0
    assert stored(broker, "events") == [0]


def test_aiokafka_and_kafka_python_finish_when_there_is_room_again(broker: BrokerProcess) -> None:
    """Each is idempotent, and has sent something before."""
    create(broker, "events")

    async def with_both() -> None:
        producer = AIOKafkaProducer(bootstrap_servers=broker.bootstrap, enable_idempotence=True)
        await producer.start()
        await producer.send_and_wait("events", b"0 from aiokafka")
        strangers = fill(broker)
        await asyncio.to_thread(comes_true, lambda: says(broker, FULL) == 1, "nobody says that the disk is full")
        sent = [await producer.send("events", b"%d from aiokafka" % number) for number in (1, 2)]
        sent_by_other = other.send("events", b"4 from kafka-python")
        await asyncio.sleep(1)
        assert not any(each.done() for each in sent) and not sent_by_other.is_done
        strangers.unlink()
        await asyncio.gather(*sent)
        await producer.stop()
        await asyncio.to_thread(sent_by_other.get, 60)

    other = kafka.KafkaProducer(bootstrap_servers=broker.bootstrap, enable_idempotence=True)
    other.send("events", b"3 from kafka-python").get(30)
    asyncio.run(with_both())
    other.close()
    assert sorted(stored(broker, "events")) == [0, 1, 2, 3, 4]
    assert says(broker, FULL) == 1

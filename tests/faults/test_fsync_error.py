"""A disk that answers fsync with an I/O error, under a real process: its folder is out of service, loudly and until a
restart, and nothing is acknowledged that it may have lost. The other folder's partitions are read and written as ever.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.faults.failing_disk import FailingDisk
from tests.outside import needs
from tests.peers.ours import Oncelog
from tests.service.cli.kit import oncelog

pytestmark = needs("cc")

PARTITIONS = 4
PATIENCE_S = 30


class OnTwoDisks(Oncelog):
    """The second of its data folders can be made to refuse every fsync."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.sound, self.failing = folder / "sound", folder / "failing"
        self.disk = FailingDisk(self.failing, folder / "switches")

    def command(self) -> list[str]:
        command = super().command()
        command[command.index("--data") + 1] = f"{self.sound},{self.failing}"
        return command

    def environment(self) -> dict[str, str]:
        return {**super().environment(), **self.disk.environment()}

    def says(self, text: str) -> bool:
        return text in self.log_path.read_text()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[OnTwoDisks]:
    broker = OnTwoDisks(tmp_path / "broker")
    broker.start()
    yield broker
    if broker.running():
        broker.kill()


def write(broker: OnTwoDisks, partition: int, value: str, *, acks: str = "all", patience_s: float = PATIENCE_S) -> bool:
    """Whether it was acknowledged in time."""
    settings = {"bootstrap.servers": broker.bootstrap, "acks": acks, "message.timeout.ms": int(patience_s * 1000)}
    producer = Producer(settings)
    errors: list[KafkaError | None] = []
    producer.produce("t", value, partition=partition, on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(PATIENCE_S) == 0
    (error,) = errors  # not to be compared: KafkaError trips over None
    return error is None


def read(broker: OnTwoDisks, partition: int) -> list[str]:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "looks on", "enable.partition.eof": True})
    consumer.assign([TopicPartition("t", partition, OFFSET_BEGINNING)])
    values: list[str] = []
    deadline = time.monotonic() + PATIENCE_S
    try:
        while True:
            assert time.monotonic() < deadline
            message: Message | None = consumer.poll(1)
            if message is None:
                continue
            error = message.error()
            if error is not None and error.code() == KafkaError._PARTITION_EOF:
                return values
            value = message.value()
            assert error is None
            assert value is not None
            values.append(value.decode())
    finally:
        consumer.close()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_failed_fsync_takes_its_folder_out_of_service_and_no_other(broker: OnTwoDisks) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic("t", PARTITIONS)])["t"].result()
    assert all(write(broker, partition, "before") for partition in range(PARTITIONS))
    (hit, *also_hit), (spared, *_) = (
        sorted(int(path.name.removeprefix("t-")) for path in folder.glob("t-*"))
        for folder in (broker.failing, broker.sound)
    )

    broker.disk.no_fsync.touch()
    assert not write(broker, hit, "never acknowledged", patience_s=3)
    until(lambda: broker.says(f"log folder {broker.failing} is out of service: [Errno 5] Input/output error"))
    assert write(broker, spared, "meanwhile")
    assert read(broker, spared) == ["before", "meanwhile"]
    (described,) = oncelog("topic", "describe", "t", "-o", "json", bootstrap=broker.bootstrap).json()
    offsets = {each["partition"]: each["end_offset"] for each in described["partitions"]}
    assert (offsets[hit], offsets[spared]) == (-1, 2)

    broker.disk.heal()  # the next fsync would succeed, and say nothing of what the last one lost
    for partition in (hit, *also_hit):
        assert not write(broker, partition, "refused", patience_s=3)
        assert not write(broker, partition, "refused", acks="1", patience_s=3)
    assert write(broker, spared, "afterwards")

    assert broker.stop() == 0
    assert not (broker.failing / "clean-shutdown.manifest").exists()
    broker.start()
    assert [value for value in read(broker, hit) if value != "never acknowledged"] == ["before"]
    assert write(broker, hit, "again")
    assert read(broker, hit)[-1] == "again"
    assert read(broker, spared) == ["before", "meanwhile", "afterwards"]

"""`oncelog serve --brokers`: several brokers on one machine, as processes."""

import os
import signal
import time
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.service.cli.kit import Running, Serving, oncelog

PATIENCE_S = 30.0


def _several(data: Path, count: int) -> Serving:
    return Serving("--data", str(data), "--host", "127.0.0.1", "--port", "0", "--brokers", str(count))


def _leaders(admin: AdminClient, topic: str) -> dict[int, int]:
    return {index: each.leader for index, each in admin.list_topics(topic, timeout=10).topics[topic].partitions.items()}


def _wait(condition: object, what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def _is_gone(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return True
    return False


def test_a_single_broker_becomes_the_first_of_several_and_one_that_dies_is_started_again(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with Serving.on(data) as single:
        assert oncelog("produce", "before", stdin=b"kept\n", bootstrap=single.bootstrap).status == 0
        single.stop()
    with _several(data, 2) as serving:
        admin = AdminClient({"bootstrap.servers": serving.bootstrap})
        admin.create_topics([NewTopic("orders", 4, 1)])["orders"].result(20)
        _wait(lambda: sorted(_leaders(admin, "orders").values()) == [1, 1, 2, 2], "partitions are spread")
        assert "kept" in oncelog("consume", "before", "--exit-at-end", bootstrap=serving.bootstrap).out
        second = serving.facts["brokers"][1]["process_id"]
        os.kill(second, signal.SIGKILL)
        delivered: list[int] = []
        producer = Producer({"bootstrap.servers": serving.bootstrap, "enable.idempotence": True})
        for index in range(4):
            producer.produce(
                "orders", b"value", partition=index, on_delivery=lambda error, message: delivered.append(not error)
            )
        assert producer.flush(PATIENCE_S) == 0
        assert delivered == [1] * 4, "its partitions are led again by the broker that was started again"
        assert serving.stop().status == 0
    assert _is_gone(second)
    alone = Running("serve", "--data", str(data), "--port", "0").ended()
    assert alone.status == 1
    assert "the metadata names brokers [2] too" in alone.err


def test_brokers_end_with_the_process_that_holds_their_store(tmp_path: Path) -> None:
    with _several(tmp_path / "data", 2) as serving:
        processes = [each["process_id"] for each in serving.facts["brokers"]]
        serving.kill()
        _wait(lambda: all(map(_is_gone, processes)), "they stop")


@pytest.mark.parametrize("brokers", ["0", "many", "-1"])
def test_a_number_of_brokers_that_cannot_be_is_told(tmp_path: Path, brokers: str) -> None:
    ended = Running("serve", "--data", str(tmp_path / "data"), "--brokers", brokers).ended()
    assert ended.status == 2
    assert "a number from 1 to 100, or auto" in ended.err

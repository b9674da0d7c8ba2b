"""Markers on their way to partitions that can't take them yet."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from log.ids import TopicPartition
from service.broker import marker_courier
from service.broker.marker_courier import LONGEST_RETRY_S, RETRY_S, MarkerCourier
from service.wire.error_codes import ErrorCode
from txn.commands import MarkersWritten
from txn.markers import SendMarkers

ORDERS, PAYMENTS = TopicPartition("orders", 0), TopicPartition("payments", 1)
MARKERS = SendMarkers("pay", 7, 1, True, 2, (ORDERS, PAYMENTS))


class Refusing:
    """A writer: `orders` takes its marker at once, `payments` after so many refusals."""

    def __init__(self, refusals: int) -> None:
        self.refusals = refusals
        self.written: list[TopicPartition] = []

    def partition(self, topic_partition: TopicPartition) -> None:
        return None

    def write(self, topic_partition: TopicPartition, **_: Any) -> Any:
        if topic_partition == PAYMENTS and self.refusals:
            self.refusals -= 1
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        self.written.append(topic_partition)
        return SimpleNamespace(high_watermark=1), SimpleNamespace(end_offset=1)


def test_a_marker_is_sent_until_it_is_taken_and_less_and_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    delays: list[float] = []
    told: list[MarkersWritten] = []
    carried: list[Any] = []

    async def sleep(delay_s: float) -> None:
        delays.append(delay_s)

    monkeypatch.setattr(marker_courier, "asyncio", SimpleNamespace(sleep=sleep))
    writer = Refusing(9)
    shard: Any = SimpleNamespace(tell=told.append)
    transactions: Any = SimpleNamespace(shard=lambda transactional_id: shard)
    metadata: Any = SimpleNamespace(image=SimpleNamespace(partition=lambda topic_partition: "there"))
    env: Any = SimpleNamespace(tasks=SimpleNamespace(spawn=lambda name, work: carried.append(work)))
    courier = MarkerCourier(transactions, writer, metadata, env)  # type: ignore[arg-type]
    coordinator: Any = SimpleNamespace(leader_epoch=3, replicas="led")
    courier.post(coordinator, MARKERS)
    assert told == [], "who carries tells"
    asyncio.run(carried[0])
    assert writer.written == [ORDERS, PAYMENTS]
    assert delays[:4] == [RETRY_S, 2 * RETRY_S, 4 * RETRY_S, 8 * RETRY_S]
    assert delays[-1] == LONGEST_RETRY_S
    assert told[0].partitions == (ORDERS,)
    assert told[-1].partitions == (ORDERS, PAYMENTS)


def test_who_coordinates_no_more_carries_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    coordinator: Any = SimpleNamespace(leader_epoch=3, replicas="led")
    carried: list[Any] = []

    async def sleep(delay_s: float) -> None:
        coordinator.leader_epoch = 4

    monkeypatch.setattr(marker_courier, "asyncio", SimpleNamespace(sleep=sleep))
    writer = Refusing(9)
    transactions: Any = SimpleNamespace(shard=lambda transactional_id: SimpleNamespace(tell=lambda command: None))
    metadata: Any = SimpleNamespace(image=SimpleNamespace(partition=lambda topic_partition: "there"))
    env: Any = SimpleNamespace(tasks=SimpleNamespace(spawn=lambda name, work: carried.append(work)))
    MarkerCourier(transactions, writer, metadata, env).post(coordinator, MARKERS)  # type: ignore[arg-type]
    asyncio.run(carried[0])
    assert writer.written == [ORDERS]
    assert writer.refusals == 8, "asked once, by the one who coordinated then"

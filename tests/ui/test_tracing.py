"""A transaction is found again after it ended: when it began, who ended it and why, and all that is in the logs."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from log.batch import BatchHeader, build_batch
from log.ids import TopicPartition
from service.client.cluster import Cluster
from service.web.gateway import Gateway
from service.web.metrics import scraper_of
from service.web.pages import tracing
from service.web.pages.tracing import READ_BYTES, History, PartitionTrace, Past, history, traced
from service.web.pages.views import kept_of
from service.wire.messages import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from tests.service.api.txn_stage import TxnStage, Writer, on_txn_stage

ORDERS = TopicPartition("orders", 0)
LONG_AGO_MS = 1_000_000_000_000
WIDE, OTHERS = 1_000, 5_000
"""The partitions of a large transaction, and the records of others before it in each of them."""


class Looking:
    def __init__(self, stage: TxnStage) -> None:
        self.cluster = kept_of(Gateway(stage.broker, scraper_of(stage.broker))).cluster

    async def history(self, transactional_id: str) -> History:
        return await history(self.cluster, transactional_id)

    async def trace(self, past: Past) -> dict[TopicPartition, PartitionTrace]:
        return await traced(self.cluster, past, list(past.partitions), {})


async def ended(stage: TxnStage, name: str, *, count: int) -> History:
    """As soon as the markers of so many transactions are written."""
    looking = Looking(stage)
    async with asyncio.timeout(20):
        while True:
            told = await looking.history(name)
            if sum(each.completed_ms is not None for each in told.transactions) == count:
                return told
            await asyncio.sleep(0.01)


def lines(found: PartitionTrace) -> list[tuple[str, int]]:
    return [(each.what, each.header.base_offset) for each in found.batches]


async def fill(stage: TxnStage, batches: int, *, size_bytes: int = 100, timestamp_ms: int | None = None) -> None:
    """What others write meanwhile."""
    for _ in range(batches):
        at_ms = stage.broker.env.clock.wall_ms() if timestamp_ms is None else timestamp_ms
        data = PartitionProduceData(0, build_batch([(None, bytes(size_bytes), (), at_ms)]))
        answer = await stage.ask(
            ProduceRequest(None, -1, 5_000, [TopicProduceData("orders", partition_data=[data])]), 9
        )
        assert answer.responses[0].partition_responses[0].error_code == 0


def test_each_transaction_is_told_with_its_batches_offsets_and_markers(tmp_path: Path) -> None:
    async def scene(stage: TxnStage) -> None:
        await fill(stage, 300)
        writer = Writer(stage, "pay")
        await writer.init()
        first_id = writer.producer_id
        await writer.write("orders", "a")
        await writer.write("orders", "b", sequence=1)
        await writer.write("orders", "c", partition=1)
        commit = TxnOffsetCommitRequest(
            *("pay", "billing", writer.producer_id, writer.epoch),
            topics=[TxnOffsetCommitRequestTopic("orders", [TxnOffsetCommitRequestPartition(1, 41)])],
        )
        assert (await stage.ask(commit, 5)).topics[0].partitions[0].error_code == 0
        await writer.end(commit=True)
        await ended(stage, "pay", count=1)
        await fill(stage, 50)
        await writer.write("orders", "d")
        await writer.end(commit=False)
        told = await ended(stage, "pay", count=2)
        assert [each.outcome for each in told.transactions] == ["aborted", "committed"]
        assert [each.why for each in told.transactions] == ["abort, by its producer", "commit"]
        assert told.is_whole
        looking = Looking(stage)
        found = await looking.trace(told.transactions[1])
        assert lines(found[ORDERS]) == [("records", 300), ("records", 301), ("commit marker", 302)]
        assert lines(found[TopicPartition("orders", 1)]) == [("records", 0), ("commit marker", 1)]
        (offsets,) = (found[each] for each in found if each.topic == "__consumer_offsets")
        assert [each.detail for each in offsets.batches] == ["billing: orders-1 at 41", ""]
        found = await looking.trace(told.transactions[0])
        assert lines(found[ORDERS]) == [("records", 353), ("abort marker", 354)]
        assert {each.header.producer_id for each in found[ORDERS].batches} == {first_id}

    on_txn_stage(tmp_path, scene)


def test_it_is_told_who_shut_out_whom(tmp_path: Path) -> None:
    async def scene(stage: TxnStage) -> None:
        first, second = Writer(stage, "pay"), Writer(stage, "pay")
        await first.init()
        await first.write("orders", "a")
        async with asyncio.timeout(10):
            while await second.init():  # noqa: ASYNC110 (nothing tells when the coordinator is through)
                await asyncio.sleep(0.01)
        told = await ended(stage, "pay", count=1)
        newest = told.events[0]
        assert newest.what.startswith("another producer takes the id over; producer ")
        assert "is fenced" in newest.what
        assert (newest.producer_id, newest.producer_epoch) == (second.producer_id, second.epoch)
        assert told.transactions[0].why == "abort: the id was taken over, or somebody ended it for its producer"

    on_txn_stage(tmp_path, scene)


def test_what_was_open_for_too_long_is_told_so(tmp_path: Path) -> None:
    async def scene(stage: TxnStage) -> None:
        writer = Writer(stage, "pay")
        await writer.init(timeout_ms=50)
        await writer.write("orders", "a")
        told = await ended(stage, "pay", count=1)
        assert "longer than its timeout" in told.transactions[0].why

    on_txn_stage(tmp_path, scene, transaction_abort_timed_out_transaction_cleanup_interval_ms="20")


def test_a_client_with_a_wrong_clock_is_found_too(tmp_path: Path) -> None:
    """Its records are older than its transaction: time alone finds the marker only."""

    async def scene(stage: TxnStage) -> None:
        await fill(stage, 300, timestamp_ms=LONG_AGO_MS)
        writer = Writer(stage, "pay")
        await writer.init()
        old = build_batch(
            [(None, b"old", (), LONG_AGO_MS)],
            producer_id=writer.producer_id,
            producer_epoch=writer.epoch,
            base_sequence=0,
            transactional=True,
        )
        data = TopicProduceData("orders", partition_data=[PartitionProduceData(0, old)])
        answer = await stage.ask(ProduceRequest("pay", -1, 5_000, [data]), 12)
        assert answer.responses[0].partition_responses[0].error_code == 0
        await writer.end(commit=True)
        told = await ended(stage, "pay", count=1)
        found = await Looking(stage).trace(told.transactions[0])
        assert lines(found[ORDERS]) == [("records", 300), ("commit marker", 301)]

    on_txn_stage(tmp_path, scene)


def test_a_log_is_not_read_through_for_a_marker_that_is_far(tmp_path: Path) -> None:
    """Between its records and its marker others wrote more than is read: that is said, and the marker found by time."""

    async def scene(stage: TxnStage) -> None:
        writer = Writer(stage, "pay")
        await writer.init()
        await writer.write("orders", "a")
        await fill(stage, 8, size_bytes=sum(READ_BYTES) // 6)
        await asyncio.sleep(0.01)
        await writer.end(commit=True)
        told = await ended(stage, "pay", count=1)
        found = (await Looking(stage).trace(told.transactions[0]))[ORDERS]
        assert [what for what, _ in lines(found)] == ["records", "commit marker"]
        assert found.skipped is not None
        assert found.skipped[1] <= 9

    on_txn_stage(tmp_path, scene)


def test_a_transaction_over_a_thousand_partitions_is_found_without_reading_logs_from_their_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    positions: list[tuple[TopicPartition, int]] = []
    fetch = tracing.fetched

    async def noted(
        cluster: Cluster, wanted: Mapping[TopicPartition, int], size_bytes: int
    ) -> dict[TopicPartition, list[tuple[BatchHeader, memoryview]]]:
        positions.extend(wanted.items())
        return await fetch(cluster, wanted, size_bytes)

    monkeypatch.setattr(tracing, "fetched", noted)

    async def scene(stage: TxnStage) -> None:
        await stage.create("wide", WIDE)
        long_since = build_batch([(None, b"x", (), LONG_AGO_MS)] * OTHERS)
        for first in range(0, WIDE, 100):
            data = [PartitionProduceData(index, long_since) for index in range(first, first + 100)]
            await stage.ask(ProduceRequest(None, -1, 5_000, [TopicProduceData("wide", partition_data=data)]), 9)
        writer = Writer(stage, "pay")
        await writer.init()
        for index in range(WIDE):
            await writer.write("wide", "a", partition=index)
        await writer.end(commit=True)
        (past,) = (await ended(stage, "pay", count=1)).transactions
        positions.clear()
        found = await Looking(stage).trace(past)
        assert {each.partition for each in found} == set(range(WIDE))
        assert all(lines(each) == [("records", OTHERS), ("commit marker", OTHERS + 1)] for each in found.values())
        assert min(offset for _, offset in positions) == OTHERS
        files: list[Any] = [(await stage.served("wide", index)).log.segments[-1].file for index in range(WIDE)]
        for _ in range(3_000):  # the last answers are let go of in turns
            if not any(file._pins for file in files):
                break
            await asyncio.sleep(0.01)
        assert not any(file._pins for file in files), "nothing is kept for what was read long ago"

    on_txn_stage(tmp_path, scene, broker_session_timeout_ms="600000")  # the scene takes long where others run


def test_what_no_coordinator_wrote_of_has_no_history(tmp_path: Path) -> None:
    async def scene(stage: TxnStage) -> None:
        assert (await Looking(stage).history("nobody")) == History()

    on_txn_stage(tmp_path, scene)

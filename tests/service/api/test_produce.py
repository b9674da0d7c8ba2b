"""Produce to topics whose batches must be looked into, as on one connection or on several.

Method: requests in buffers that are overwritten once a handler has returned, as a connection's are.
"""

import asyncio
import dataclasses
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import pytest

from log.batch import (
    CHECKED_FROM,
    CRC_AT,
    DELETE_HORIZON,
    HEADER_BYTES,
    MAX_TIMESTAMP_AT,
    BatchHeader,
    Record,
    assemble,
    build_batch,
    checksum_ok,
    crc32c,
    read_header,
    read_records,
)
from log.ids import TopicPartition
from log.removal import expired_segments
from service.api.broker_door import BrokerDoor
from service.api.listener import Listener
from service.api.routes import ROUTES
from service.broker.acceptance import RECORDS_AT_ONCE, BatchInspection
from service.broker.partition import Partition
from service.broker.session import Session
from service.broker.writing import WRITES_AT_ONCE
from service.client.connection import Client
from service.net.door import Held
from service.net.server import serve
from service.wire.codec import RequestHeader
from service.wire.error_codes import ErrorCode
from service.wire.messages import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from tests.service.api.txn_stage import TxnStage, on_txn_stage

PRODUCE, VERSION = 0, 12
NONE = ErrorCode.NONE
DAY_MS = 86_400_000


def long_batch(records: int = 20 * RECORDS_AT_ONCE, *, now_ms: int, key: bytes | None = b"k", **how: Any) -> bytes:
    return build_batch([(key, b"v", (), now_ms)] * records, **how)


def send(stage: TxnStage, session: Session, topic: str, *batches: bytes) -> Any:
    """One request with a batch for each of the topic's first partitions: its answer, or what it will be."""
    buffers = [bytearray(batch) for batch in batches]
    data = [PartitionProduceData(index, memoryview(buffer)) for index, buffer in enumerate(buffers)]
    request = ProduceRequest(None, 1, 5000, [TopicProduceData(topic, partition_data=data)])
    answer = ROUTES[PRODUCE].bound(stage.broker)(session, RequestHeader(PRODUCE, VERSION, 1, "test"), request)
    if isinstance(answer, Held):
        for buffer in buffers:
            buffer[:] = bytes(len(buffer))
        return asyncio.ensure_future(answer.first)
    return answer


def error_of(answer: Any) -> ErrorCode:
    assert isinstance(answer, ProduceResponse)
    return ErrorCode(answer.responses[0].partition_responses[0].error_code)


def stored(stage: TxnStage, topic: str) -> list[Record]:
    log = stage.broker.partitions.get(TopicPartition(topic, 0)).log  # type: ignore[union-attr]
    return [record for header, batch in log.scan(0) for record in read_records(batch, header)]


SETTINGS = {
    "compacted": {"cleanup_policy": "compact"},
    "recompressing": {"compression_type": "lz4"},
    "not too old": {"message_timestamp_before_max_ms": "3600000"},
}


@pytest.mark.parametrize("kind", SETTINGS)
def test_no_turn_of_the_loop_looks_into_more_records_than_it_may(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several clients send long batches and short ones at once; every callback of the loop is watched."""
    looked_at: list[int] = [0]
    judge = BatchInspection.judge

    def counted(opening: BatchInspection, records: int) -> bool:
        looked_at[-1] += min(records, opening.header.record_count)
        return judge(opening, records)

    monkeypatch.setattr(BatchInspection, "judge", counted)

    async def scene(stage: TxnStage) -> None:
        await stage.create("table", 1, **SETTINGS[kind])
        loop, now_ms = asyncio.get_running_loop(), stage.broker.env.clock.wall_ms()
        sessions = [Session("10.0.0.1", port) for port in range(4)]
        answers = [send(stage, session, "table", long_batch(now_ms=now_ms)) for session in sessions]
        short = [long_batch(30, now_ms=now_ms) for _ in range(100)]
        answers += [send(stage, Session("10.0.0.2", port), "table", batch) for port, batch in enumerate(short)]
        done = asyncio.gather(*(answer for answer in answers if isinstance(answer, Awaitable)))

        def turn() -> None:
            looked_at.append(0)
            if not done.done():
                loop.call_soon(turn)

        loop.call_soon(turn)
        finished = await done
        assert [error_of(answer) for answer in finished] == [NONE] * len(finished)
        assert len(stored(stage, "table")) == 4 * 20 * RECORDS_AT_ONCE + 100 * 30

    on_txn_stage(tmp_path, scene)
    # A turn is what stands between two of ours: one step of the row, and what came new.
    assert max(looked_at) <= 2 * RECORDS_AT_ONCE
    assert sum(looked_at) >= 4 * 20 * RECORDS_AT_ONCE


@pytest.mark.parametrize("size", [10, 40_000], ids=["many", "many and long"])
def test_a_request_with_very_many_batches_is_appended_in_turns(tmp_path: Path, size: int) -> None:
    """On one connection, with a short request behind it, whose batches follow its own."""
    count = 3 * WRITES_AT_ONCE

    async def scene(stage: TxnStage) -> None:
        await stage.create("wide", count)
        await stage.served("wide", count - 1)
        numbered: dict[str, Any] = {"producer_id": 7, "producer_epoch": 0}
        long, short = (
            ProduceRequest(
                None,
                1,
                5000,
                [
                    TopicProduceData(
                        "wide",
                        partition_data=[
                            PartitionProduceData(
                                index,
                                build_batch([(None, bytes(size), (), 1)], base_sequence=sequence, **numbered),
                            )
                            for index in reversed(range(partitions))
                        ],
                    )
                ],
            )
            for partitions, sequence in ((count, 0), (2, 1))
        )
        appended: list[int] = [0]
        append = Partition.append_from_client

        def counted(partition: Partition, *batch: Any, **how: Any) -> Any:
            appended[-1] += 1
            return append(partition, *batch, **how)

        async def turns() -> None:
            while True:
                appended.append(0)
                await asyncio.sleep(0)

        server = await serve(
            asyncio.get_running_loop(), "127.0.0.1", 0, BrokerDoor(stage.broker, Listener("PLAINTEXT"))
        )
        other = asyncio.ensure_future(turns())
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Partition, "append_from_client", counted)
            async with Client("127.0.0.1", server.port) as client:
                answers = await asyncio.gather(client.request(long, VERSION), client.request(short, VERSION))
        other.cancel()
        await server.close()
        codes = [row.error_code for answer in answers for row in answer.responses[0].partition_responses]
        assert codes == [NONE] * (count + 2)
        assert max(appended) <= WRITES_AT_ONCE + 2
        assert sum(appended) == count + 2

    on_txn_stage(tmp_path, scene)


def test_what_a_connection_sends_behind_a_long_batch_is_appended_behind_it(tmp_path: Path) -> None:
    async def scene(stage: TxnStage) -> None:
        await stage.create("table", 1, cleanup_policy="compact")
        now_ms = stage.broker.env.clock.wall_ms()
        numbered: dict[str, Any] = {"producer_id": 7, "producer_epoch": 0}
        batches = [
            long_batch(5_000, now_ms=now_ms, base_sequence=0, **numbered),
            long_batch(1, now_ms=now_ms, base_sequence=5_000, **numbered),
            long_batch(2_000, now_ms=now_ms, base_sequence=5_001, codec=4, **numbered),
            long_batch(1, now_ms=now_ms, base_sequence=7_001, **numbered),
        ]
        server = await serve(
            asyncio.get_running_loop(), "127.0.0.1", 0, BrokerDoor(stage.broker, Listener("PLAINTEXT"))
        )
        async with Client("127.0.0.1", server.port) as client:
            requests = [
                ProduceRequest(
                    None, 1, 5000, [TopicProduceData("table", partition_data=[PartitionProduceData(0, batch)])]
                )
                for batch in batches
            ]
            answers = await asyncio.gather(*(client.request(request, VERSION) for request in requests))
        await server.close()
        assert [error_of(answer) for answer in answers] == [NONE] * 4
        assert len(stored(stage, "table")) == 7_002

    on_txn_stage(tmp_path, scene)


def test_a_long_batch_is_judged_by_the_settings_at_its_append(tmp_path: Path) -> None:
    """They change while it is looked into, to what refuses it and to what takes it."""

    async def scene(stage: TxnStage) -> None:
        for topic, after, expected in (("delete", "compact", ErrorCode.INVALID_RECORD), ("compact", "delete", NONE)):
            await stage.create(topic, 1, cleanup_policy=topic, compression_type="gzip")
            partition = await stage.served(topic)
            now_ms = stage.broker.env.clock.wall_ms()
            answer = send(stage, Session("10.0.0.1", 1), topic, long_batch(now_ms=now_ms, key=None))
            await asyncio.sleep(0)
            partition.set_config(dataclasses.replace(partition.log.config, cleanup_policy=(after,)), fsync=False)
            assert error_of(await answer) is expected
            assert bool(stored(stage, topic)) is (expected is NONE)

    on_txn_stage(tmp_path, scene)


def test_what_only_a_broker_says_of_a_batch_is_taken_out_when_a_client_says_it(tmp_path: Path) -> None:
    """A delete horizon in the past would let tombstones go before every reader has seen them."""

    async def scene(stage: TxnStage) -> None:
        await stage.create("table", 1, cleanup_policy="compact")
        now_ms = stage.broker.env.clock.wall_ms()
        forged = bytearray(build_batch([(b"k", None, (), now_ms)]))
        forged[22] |= DELETE_HORIZON | 0x08
        forged[CRC_AT : CRC_AT + 4] = crc32c(forged[21:]).to_bytes(4, "big")
        assert error_of(send(stage, Session("10.0.0.1", 1), "table", bytes(forged))) is NONE
        log = stage.broker.partitions.get(TopicPartition("table", 0)).log  # type: ignore[union-attr]
        ((header, batch),) = [(header, bytes(batch)) for header, batch in log.scan(0)]
        assert header.delete_horizon_ms is None
        assert not header.log_append_time
        assert header.crc == crc32c(batch[21:])
        assert read_header(batch).base_timestamp == now_ms

    on_txn_stage(tmp_path, scene)


@pytest.mark.parametrize("newest_ms", [-1, 0, None], ids=["none", "zero", "that of the first"])
@pytest.mark.parametrize("records", [2, 2 * RECORDS_AT_ONCE], ids=["short", "long"])
@pytest.mark.parametrize("kind", ["plain", *SETTINGS])
def test_a_header_without_the_time_of_its_newest_record_is_given_it(
    tmp_path: Path, kind: str, records: int, newest_ms: int | None
) -> None:
    """Sarama left it out for years, and KafkaJS forgets records that have no time of their own. Kafka takes it from the
    records, whatever the header says. If the time of the first record counted instead, the newest would be deleted too
    early.
    """

    async def scene(stage: TxnStage) -> None:
        settings = {**SETTINGS, "plain": {}, "not too old": {"message_timestamp_before_max_ms": str(60 * DAY_MS)}}[kind]
        await stage.create("events", 1, **settings)
        now_ms = stage.broker.env.clock.wall_ms()
        times = [now_ms - 30 * DAY_MS] * (records - 1) + [now_ms]
        batch = bytearray(build_batch([(b"k", b"v", (), time) for time in times]))
        told_ms = times[0] if newest_ms is None else newest_ms
        batch[MAX_TIMESTAMP_AT : MAX_TIMESTAMP_AT + 8] = told_ms.to_bytes(8, "big", signed=True)
        batch[CRC_AT:CHECKED_FROM] = crc32c(batch[CHECKED_FROM:]).to_bytes(4, "big")
        answer = send(stage, Session("10.0.0.1", 1), "events", bytes(batch))
        assert error_of(await answer if isinstance(answer, Awaitable) else answer) is NONE
        log = (await stage.served("events")).log
        ((header, stored_batch),) = [(header, bytes(batch)) for header, batch in log.scan(0)]
        assert header.max_timestamp == now_ms
        assert checksum_ok(stored_batch, header)
        assert [record.timestamp for record in read_records(stored_batch, header)] == times
        assert expired_segments(log, now_ms + 6 * DAY_MS, records) == 0
        assert (expired_segments(log, now_ms + 8 * DAY_MS, records) == 1) is (kind != "compacted")

    on_txn_stage(tmp_path, scene)


def test_on_a_disk_that_is_nearly_full_an_answer_that_waits_for_nothing_is_held_back_and_no_error(
    tmp_path: Path,
) -> None:
    """With acks=1 a batch that is written is written: who is told that its time is up sends it twice."""

    async def scene(stage: TxnStage) -> None:
        await stage.create("t")
        partition = stage.broker.partitions.get(TopicPartition("t", 0))
        assert partition is not None
        partition.set_config(partition.log.config, fsync=True)
        partition.folder.headroom.delay_s = 0.001
        batch = memoryview(bytearray(long_batch(1, now_ms=stage.broker.env.clock.wall_ms())))
        topics = [TopicProduceData("t", partition_data=[PartitionProduceData(0, batch)])]
        request = ProduceRequest(None, 1, 0, topics)
        answer = ROUTES[PRODUCE].bound(stage.broker)(
            Session("a", 1), RequestHeader(PRODUCE, VERSION, 1, "test"), request
        )
        assert isinstance(answer, Awaitable)
        answer = await answer
        assert isinstance(answer, ProduceResponse)
        assert error_of(answer) is NONE
        assert answer.responses[0].partition_responses[0].base_offset == 0
        assert answer.throttle_time_ms == 1

    on_txn_stage(tmp_path, scene)


@pytest.mark.parametrize(("policy", "age_ms"), [("delete", 0), ("delete", 7_200_000), ("compact", 0)])
def test_a_batch_without_records_is_refused_whatever_is_looked_at(tmp_path: Path, policy: str, age_ms: int) -> None:
    """Where its records were looked at, it ended the connection, and other batches of its request had no answer."""

    async def scene(stage: TxnStage) -> None:
        await stage.create("events", 1, cleanup_policy=policy)
        time_ms = stage.broker.env.clock.wall_ms() - age_ms
        header = BatchHeader(0, HEADER_BYTES, 0, 2, 0, 0, 0, time_ms, time_ms, -1, -1, -1, 0)
        answer = send(stage, Session("10.0.0.1", 1), "events", bytes(assemble(header, b"")))
        assert error_of(await answer if isinstance(answer, Awaitable) else answer) is ErrorCode.INVALID_RECORD

    on_txn_stage(tmp_path, scene)

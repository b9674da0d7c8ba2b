"""How much an answer to Fetch carries, by how far away the client is, and that no partition starves for it."""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from log.batch import build_batch, read_header, restamp
from service.api.broker_door import BrokerDoor
from service.api.listener import Listener
from service.api.routes import ROUTES
from service.broker.reading import NEAR_ANSWER_BYTES
from service.broker.session import Session
from service.net.door import PeerInfo
from service.wire.codec import RequestHeader
from service.wire.messages import FetchPartition, FetchRequest, FetchTopic
from tests.service.api.admin_stage import Stage, on_stage

FETCH = 1
PARTITIONS = 6
BATCH_BYTES = NEAR_ANSWER_BYTES // 3
NEAR_US, FAR_US = 20, 20_000
IN_EACH = 4  # batches


async def write(stage: Stage) -> None:
    await stage.create("orders", PARTITIONS)
    for number in range(PARTITIONS):
        partition = await stage.served("orders", number)
        for _ in range(IN_EACH):
            batch = build_batch([(None, bytes(BATCH_BYTES), (), 1)])
            partition.append_from_client(memoryview(bytearray(batch)), acks=1, now_ms=1)
        if (committed := partition.committed(partition.log.end_offset)) is not None:
            await committed


async def fetched(
    stage: Stage,
    caller: Session,
    offsets: dict[int, int],
    *,
    max_bytes: int = 50_000_000,
    min_bytes: int = 1,
    max_wait_ms: int = 0,
    isolation_level: int = 0,
) -> dict[int, int]:
    """One sessionless Fetch; the bytes each partition was given, in the order of the answer."""
    partitions = [
        FetchPartition(number, fetch_offset=offset, partition_max_bytes=5 * BATCH_BYTES // 2)
        for number, offset in offsets.items()
    ]
    request = FetchRequest(
        topics=[FetchTopic("orders", partitions=partitions)],
        max_bytes=max_bytes,
        min_bytes=min_bytes,
        max_wait_ms=max_wait_ms,
        isolation_level=isolation_level,
    )
    async with asyncio.timeout(5):
        answer: Any = ROUTES[FETCH].bound(stage.broker)(caller, RequestHeader(FETCH, 12, 1, "c"), request)
        if not hasattr(answer, "responses"):
            answer = await answer
    (topic,) = answer.responses
    return {each.partition_index: sum(map(len, each.records)) for each in topic.partitions}


@pytest.mark.parametrize(("round_trip_us", "served"), [(NEAR_US, 2), (FAR_US, PARTITIONS), (None, PARTITIONS)])
def test_a_client_nearby_gets_the_rest_in_its_next_answer(
    tmp_path: Path, round_trip_us: int | None, served: int
) -> None:
    async def scene(stage: Stage) -> None:
        await write(stage)
        caller = BrokerDoor(stage.broker, Listener("PLAINTEXT")).connected(PeerInfo("10.0.0.9", 1, round_trip_us))
        got = await fetched(stage, caller, dict.fromkeys(range(PARTITIONS), 0))
        assert list(got) == list(range(PARTITIONS))
        assert [number for number, size in got.items() if size] == list(range(served))

    on_stage(tmp_path, scene)


@pytest.mark.parametrize("moved", [0, 1, 2, -1])
def test_no_partition_starves_behind_busy_ones(tmp_path: Path, moved: int) -> None:
    async def scene(stage: Stage) -> None:
        await write(stage)
        caller, numbers = Session("10.0.0.9", 1, NEAR_US), list(range(PARTITIONS))
        served = set()
        for _ in range(PARTITIONS):
            got = await fetched(stage, caller, dict.fromkeys(numbers, 0))
            assert list(got) == numbers  # as asked, whose turn it was before
            served |= {number for number, size in got.items() if size}
            numbers = numbers[moved:] + numbers[:moved]
        assert served == set(numbers)

    on_stage(tmp_path, scene)


def test_who_wants_more_at_least_is_given_it_without_waiting(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        await write(stage)
        offsets = dict.fromkeys(range(PARTITIONS), 0)
        least = 2 * NEAR_ANSWER_BYTES
        got = await fetched(stage, Session("10.0.0.9", 1, NEAR_US), offsets, min_bytes=least, max_wait_ms=60_000)
        assert sum(got.values()) >= least

    on_stage(tmp_path, scene)


def test_who_is_left_out_when_he_was_served_has_nobody_starve(tmp_path: Path) -> None:
    """A client that processes what it got before it asks for more of that."""

    async def scene(stage: Stage) -> None:
        await write(stage)
        caller, served = Session("10.0.0.9", 1, NEAR_US), dict.fromkeys(range(PARTITIONS), 0)
        last: set[int] = set()
        for _ in range(2 * PARTITIONS):
            got = await fetched(stage, caller, {number: 0 for number in served if number not in last})
            last = {number for number, size in got.items() if size}
            for number in last:
                served[number] += 1
        assert min(served.values()) >= 2

    on_stage(tmp_path, scene)


@pytest.mark.parametrize("round_trip_us", [NEAR_US, None])
def test_what_a_limit_of_the_client_cut_off_is_its_own_to_ask_for(tmp_path: Path, round_trip_us: int | None) -> None:
    async def scene(stage: Stage) -> None:
        await write(stage)
        caller = Session("10.0.0.9", 1, round_trip_us)
        await fetched(stage, caller, dict.fromkeys(range(PARTITIONS), 0))
        orders: list[list[int]] = [[3, 1], [3, 1], [1, 3], [3, 1]]
        for position, order in enumerate(orders):
            got = await fetched(stage, caller, dict.fromkeys(order, 0), max_bytes=10)
            if position:  # the first may still have its turn after an answer that we ended
                assert [number for number, size in got.items() if size] == order[:1]

    on_stage(tmp_path, scene)


@pytest.mark.parametrize(
    ("partitions", "min_bytes", "max_bytes"),
    [
        (1, 5 * BATCH_BYTES // 2, 50_000_000),  # the partition's own limit cuts its batches
        (1, 3 * BATCH_BYTES, BATCH_BYTES // 2),  # less may be given than is wanted
        (2, 7 * BATCH_BYTES // 2, 7 * BATCH_BYTES // 2),  # the second partition has no batch that still fits
    ],
)
def test_nobody_waits_for_bytes_that_a_limit_keeps_back(
    tmp_path: Path, partitions: int, min_bytes: int, max_bytes: int
) -> None:
    async def scene(stage: Stage) -> None:
        await write(stage)
        got = await fetched(
            stage,
            Session("10.0.0.9", 1, NEAR_US),
            dict.fromkeys(range(partitions), 0),
            min_bytes=min_bytes,
            max_bytes=max_bytes,
            max_wait_ms=60_000,
        )
        assert got[0] > BATCH_BYTES

    on_stage(tmp_path, scene)


def test_who_wants_more_than_there_is_waits(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        await write(stage)
        began = time.monotonic()
        got = await fetched(
            stage, Session("10.0.0.9", 1, NEAR_US), {0: IN_EACH - 1}, min_bytes=2 * BATCH_BYTES, max_wait_ms=300
        )
        assert (got[0] > BATCH_BYTES, time.monotonic() - began >= 0.3) == (True, True)

    on_stage(tmp_path, scene)


def test_who_reads_where_compaction_left_nothing_below_an_open_transaction_waits(tmp_path: Path) -> None:
    """Asked again and again it would be the same, and a reader in this process would never let go of the loop."""

    async def scene(stage: Stage) -> None:
        await stage.create("orders", 1)
        partition = await stage.served("orders", 0)
        batch = bytearray(build_batch([(b"k", b"v", (), 1)], producer_id=1, producer_epoch=0, transactional=True))
        restamp(batch, base_offset=3, leader_epoch=partition.leader_epoch)
        partition.log.append_after_gap(batch, read_header(batch), now_ms=1)
        partition.append_from_client(memoryview(bytearray(build_batch([(b"k", b"v", (), 1)]))), acks=1, now_ms=1)
        if (committed := partition.committed(partition.log.end_offset)) is not None:
            await committed
        assert (partition.last_stable_offset, partition.high_watermark) == (3, 5)
        began = time.monotonic()
        got = await fetched(stage, Session("10.0.0.9", 1, NEAR_US), {0: 0}, max_wait_ms=300, isolation_level=1)
        assert (got, time.monotonic() - began >= 0.3) == ({0: 0}, True)

    on_stage(tmp_path, scene)

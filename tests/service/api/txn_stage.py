"""What tests of the transactional requests share: a producer that sends what no good client would."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from isolation.read_filter import visible_batches
from log.batch import build_batch, read_records
from service.api.routes import OFFERED, ROUTES
from service.broker.session import Session
from service.net.door import Held
from service.wire.base import Request, Struct
from service.wire.codec import (
    RequestHeader,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)
from service.wire.error_codes import ErrorCode
from service.wire.messages import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    EndTxnRequest,
    EndTxnResponse,
    FetchPartition,
    FetchRequest,
    FetchTopic,
    FindCoordinatorRequest,
    InitProducerIdRequest,
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from service.wire.messages.schemas import MESSAGES
from tests.service.api.admin_stage import Stage, on_stage

Answer = TypeVar("Answer", bound=Struct)

COMMITTED, UNCOMMITTED = 1, 0
NEWEST = 5
FEW = {"transaction.state.log.num.partitions": "2", "offsets.topic.num.partitions": "2", "log.durability": "os"}
"""Settings for a broker that makes its internal topics quickly."""


class TxnStage(Stage):
    """Requests lie in a buffer that the broker may write to, as on a connection; answers hold what was stored."""

    async def ask(self, request: Request[Answer], version: int | None = None) -> Answer:
        _, key, *_ = MESSAGES[type(request).__name__]
        assert key is not None
        version = OFFERED[key][1] if version is None else version
        read = decode_request(key, version, memoryview(bytearray(encode_request(key, version, request))))
        answer = ROUTES[key].bound(self.broker)(Session("10.0.0.9", 1234), RequestHeader(key, version, 1, "test"), read)
        if isinstance(answer, Held):
            answer = await answer.first
        if isinstance(answer, Awaitable):
            answer = await answer
        parts = [
            part if isinstance(part, bytes) else part.file.pread(part.size, part.position)
            for part in encode_response(key, version, answer)
        ]
        decoded: Answer = decode_response(key, version, b"".join(parts))
        return decoded


def on_txn_stage(folder: Path, scene: Callable[[TxnStage], Awaitable[None]], **given: str) -> None:
    """Play `scene` with a new broker whose coordinators are ready. Dots in settings are written as underscores."""

    async def ready(stage: Stage) -> None:
        here = TxnStage(stage.broker)
        await find_coordinator(here, "pay")
        await find_coordinator(here, "group", key_type=0)
        await here.create("orders", 2)
        await scene(here)

    on_stage(folder, ready, FEW | {name.replace("_", "."): value for name, value in given.items()})


async def find_coordinator(stage: TxnStage, key: str, key_type: int = 1) -> None:
    """Brings the internal topic about, and waits until its coordinator has loaded."""
    while True:
        answer = await stage.ask(FindCoordinatorRequest(key_type=key_type, coordinator_keys=[key]))
        if answer.coordinators[0].error_code == ErrorCode.NONE:
            break
        await asyncio.sleep(0.01)
    coordinators = stage.broker.coordination.transactions if key_type == 1 else stage.broker.coordination.groups
    await until(lambda: all(shard.loaded for shard in coordinators.shards()))


async def until(holds: Callable[[], bool]) -> None:
    """Wait for what happens by itself."""
    async with asyncio.timeout(10):
        for _ in iter(holds, True):
            await asyncio.sleep(0.01)


@dataclass
class Writer:
    """A transactional producer in somebody's hands."""

    stage: TxnStage
    transactional_id: str
    producer_id: int = -1
    epoch: int = -1

    async def init(self, *, expect: tuple[int, int] = (-1, -1), timeout_ms: int = 60_000, version: int = 5) -> int:
        request = InitProducerIdRequest(self.transactional_id, timeout_ms, *expect)
        answer = await self.stage.ask(request, version)
        if answer.error_code == 0:
            self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
        return answer.error_code

    async def add(self, topic: str, *partitions: int, version: int = 3) -> list[int]:
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(topic, list(partitions))],
        )
        answer = await self.stage.ask(request, version)
        (topic_answer,) = answer.results_by_topic_v3_and_below
        return [result.partition_error_code for result in topic_answer.results_by_partition]

    def batch(self, value: str, *, sequence: int = 0, plain: bool = False) -> bytes:
        return build_batch(
            [(None, value.encode(), (), self.stage.broker.env.clock.wall_ms())],
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=sequence,
            transactional=not plain,
        )

    async def write(
        self, topic: str, value: str, *, sequence: int = 0, partition: int = 0, version: int = 12, plain: bool = False
    ) -> int:
        batch = self.batch(value, sequence=sequence, plain=plain)
        data = TopicProduceData(topic, partition_data=[PartitionProduceData(partition, batch)])
        transactional_id = None if plain else self.transactional_id
        answer = await self.stage.ask(ProduceRequest(transactional_id, -1, 5_000, [data]), version)
        return answer.responses[0].partition_responses[0].error_code

    async def end(self, *, commit: bool, version: int = NEWEST) -> EndTxnResponse:
        request = EndTxnRequest(self.transactional_id, self.producer_id, self.epoch, commit)
        answer = await self.stage.ask(request, version)
        if answer.error_code == 0 and version >= NEWEST:
            self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
        return answer

    def as_it_is_now(self) -> "Writer":
        """The same producer, for a request that is delivered later."""
        return Writer(self.stage, self.transactional_id, self.producer_id, self.epoch)


async def values(stage: TxnStage, topic: str, isolation: int = COMMITTED, partition: int = 0) -> list[str]:
    """What a reader of the whole partition is shown."""
    wanted = FetchPartition(partition, fetch_offset=0, partition_max_bytes=1 << 20)
    request = FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=1 << 20,
        isolation_level=isolation,
        topics=[FetchTopic(topic, partitions=[wanted])],
    )
    answer = await stage.ask(request, 12)
    (found,) = answer.responses[0].partitions
    assert found.error_code == 0
    aborted = None
    if isolation == COMMITTED:
        assert found.aborted_transactions is not None
        aborted = [(each.producer_id, each.first_offset) for each in found.aborted_transactions]
    else:
        assert found.aborted_transactions is None
    records = found.records
    assert records is not None
    assert not isinstance(records, list)
    return [
        (record.value or b"").decode()
        for header, batch in visible_batches(records, aborted)
        for record in read_records(batch, header)
    ]

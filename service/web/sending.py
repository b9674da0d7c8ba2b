"""Batches on their way to the leaders of their partitions.

What always holds: an outcome without an error is committed on every in-sync replica; one with an error was not written,
unless `in_doubt` says that nobody knows. What a leader refused because it leads no more is asked of the next one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from log.ids import TopicPartition
from service.broker.acceptance import Refused
from service.broker.partition import ACKS_ALL, Appended
from service.broker.partition_table import TopicPartitions
from service.broker.session import Session
from service.broker.writing import Terms, Write, Writing
from service.client.cluster import MOVED
from service.client.failures import ClientFailure
from service.web.gateway import CLIENT_ID, PAUSE_S, TIMEOUT_S, Gateway
from service.web.problems import MAY_BE_WRITTEN, Problem, of_error
from service.wire.error_codes import ErrorCode
from service.wire.messages import PartitionProduceData, ProduceRequest, TopicProduceData

REPLICAS_WITHIN_S = 3.0
NOWHERE = Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


@dataclass(slots=True)
class Outgoing:
    """A batch for a partition, and then its outcome."""

    partition: TopicPartition
    batch: bytes
    records: int
    expected_offset: int | None = None
    """Append only where the log ends here."""
    error: int = ErrorCode.NONE
    message: str | None = None
    culprits: tuple[int, ...] = ()
    base_offset: int = -1
    append_time_ms: int = -1
    in_doubt: bool = False

    def problem(self) -> Problem:
        where = f"{self.partition.topic} partition {self.partition.partition}"
        if self.expected_offset is not None and self.error == ErrorCode.OFFSET_OUT_OF_RANGE:
            return Problem(
                "expected-offset-mismatch",
                f"{where}: {self.message}",
                topic=self.partition.topic,
                partition=self.partition.partition,
                expected_offset=self.expected_offset,
            )
        detail = f"{where}: {self.message}" if self.message else where
        problem = of_error(self.error, detail, writing=True)
        if self.in_doubt:
            problem.outcome = "unknown"
        if self.culprits:
            problem.more["records"] = list(self.culprits)
        return problem


async def send(
    gateway: Gateway,
    batches: Sequence[Outgoing],
    *,
    transactional_id: str | None = None,
    internal: bool = False,
) -> None:
    """Write the batches, each where it belongs; afterwards every one has its outcome."""
    waiting = list(batches)
    deadline = asyncio.get_running_loop().time() + TIMEOUT_S
    while True:
        here: list[Outgoing] = []
        elsewhere: dict[int, list[Outgoing]] = {}
        own = gateway.broker.node_id
        for each in waiting:
            leader = gateway.leader(each.partition)
            if leader == own:
                here.append(each)
            else:
                elsewhere.setdefault(leader, []).append(each)
        if here and not elsewhere:
            await _send_here(gateway, here, transactional_id, internal)
        else:
            remote = [_send_there(gateway, node, each, transactional_id) for node, each in elsewhere.items()]
            await asyncio.gather(_send_here(gateway, here, transactional_id, internal), *remote)
        left_s = deadline - asyncio.get_running_loop().time()
        waiting = [each for each in waiting if _may_pass(each.error, left_s)]
        if not waiting:
            return
        await asyncio.sleep(PAUSE_S)


def _may_pass(error: int, left_s: float) -> bool:
    """Whether what was refused, and not written, may be taken soon."""
    if error == ErrorCode.NOT_ENOUGH_REPLICAS:  # or a transaction's coordinator that could not be asked
        return left_s > TIMEOUT_S - REPLICAS_WITHIN_S
    return error in MOVED and left_s > 0


async def _send_here(
    gateway: Gateway, batches: Sequence[Outgoing], transactional_id: str | None, internal: bool
) -> None:
    if not batches:
        return
    broker = gateway.broker
    writes = []
    for each in batches:
        topic: TopicPartitions | Refused = broker.partitions.topic(each.partition.topic) or NOWHERE
        write = Write(topic, each.partition.partition, memoryview(bytearray(each.batch)))
        write.expected_offset = each.expected_offset
        writes.append(write)
    terms = Terms(
        ACKS_ALL,
        int(TIMEOUT_S * 1000),
        transactional_id,
        adds_partitions=True,
        knows_abortable=True,
        knows_zstd=True,
        may_write_internal=internal,
    )
    writing = Writing(broker, terms, writes)
    if not writing.begin():
        await writing.prepare()
    writing.append()
    if not writing.is_settled:
        await writing.settle(Session(CLIENT_ID, 0))
    for each, write in zip(batches, writes, strict=True):
        outcome = write.outcome
        if isinstance(outcome, Appended):
            each.error, each.message, each.culprits = ErrorCode.NONE, None, ()
            each.base_offset, each.append_time_ms = outcome.base_offset, outcome.log_append_time_ms
        else:
            each.error, each.message, each.culprits = outcome.error, outcome.message, outcome.culprits
            # What was appended and then could not be promised may be committed later.
            each.in_doubt = each.error in MAY_BE_WRITTEN or write.was_appended
            if each.in_doubt and each.error in MOVED:
                each.error = ErrorCode.REQUEST_TIMED_OUT


async def _send_there(gateway: Gateway, node: int, batches: Sequence[Outgoing], transactional_id: str | None) -> None:
    image = gateway.broker.image
    topics: dict[str, TopicProduceData] = {}
    for each in batches:
        if each.expected_offset is not None:
            each.error = ErrorCode.UNSUPPORTED_VERSION
            each.message = f"broker {node} leads it: ask that one for an expected offset"
            continue
        name = each.partition.topic
        if name not in topics:
            topics[name] = TopicProduceData(name, image.topics[name].id)
        topics[name].partition_data.append(PartitionProduceData(each.partition.partition, each.batch))
    request = ProduceRequest(transactional_id, ACKS_ALL, int(TIMEOUT_S * 1000), list(topics.values()))
    by_partition = {each.partition: each for each in batches if each.expected_offset is None}
    if not by_partition:
        return
    try:
        answer = await gateway.ask(node, request)
    except ClientFailure as failure:
        for each in by_partition.values():
            each.error, each.message, each.in_doubt = ErrorCode.REQUEST_TIMED_OUT, failure.message, True
        return
    for topic, asked in zip(answer.responses, topics.values(), strict=True):
        for data in topic.partition_responses:
            each = by_partition[TopicPartition(asked.name, data.index)]
            each.error, each.message = data.error_code, data.error_message
            each.base_offset, each.append_time_ms = data.base_offset, data.log_append_time_ms
            each.in_doubt = data.error_code in MAY_BE_WRITTEN

"""The transactions of a producer that owns a transactional id.

What always holds: everything written between two commits becomes visible together or not at all. A commit without an
answer is repeated until there is one; if none comes in time, the failure says that the outcome is unknown. A producer
that initializes the id later fences this one.

This uses the older form of the protocol (partitions are added by request, the epoch stays), which every broker with
transactions understands.
"""

from __future__ import annotations

import asyncio
from typing import TypeVar

from log.ids import TopicPartition
from service.client.cluster import MOVED, RETRY_PAUSE_S, Cluster, Deadline, by_topic
from service.client.failures import ClientFailure, FailureKind, refused
from service.client.transactions import coordinator_of
from service.wire.base import Request, Struct
from service.wire.error_codes import ErrorCode
from service.wire.messages import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    EndTxnRequest,
    InitProducerIdRequest,
)

R = TypeVar("R", bound=Struct)

TIMEOUT_MS = 60_000
"""The default of Kafka's producers. If this producer dies, readers of committed data wait for its transaction this
long.
"""
ADD_PARTITIONS_VERSION = 3
END_VERSION = 4
PRODUCE_VERSION = 11

LOST = (
    ErrorCode.PRODUCER_FENCED,
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
    ErrorCode.INVALID_TXN_STATE,
)


class Transaction:
    """The transactions of one id, one after the other."""

    def __init__(self, cluster: Cluster, transactional_id: str) -> None:
        self.transactional_id = transactional_id
        self.producer_id = self.producer_epoch = -1
        self._cluster = cluster
        self._partitions: dict[TopicPartition, None] = {}

    async def own(self) -> None:
        """Take over the id. An open transaction of its last owner is aborted."""
        request = InitProducerIdRequest(transactional_id=self.transactional_id, transaction_timeout_ms=TIMEOUT_MS)
        deadline = Deadline(self._cluster.timeout_s)
        while True:
            response = await self._ask(request)
            if not response.error_code:
                self.producer_id, self.producer_epoch = response.producer_id, response.producer_epoch
                return
            await self._again(response.error_code, deadline)

    async def take_in(self, partition: TopicPartition) -> None:
        """The transaction writes to this partition from now on."""
        if partition in self._partitions:
            return
        topics = [
            AddPartitionsToTxnTopic(name, [each.partition for each in partitions])
            for name, partitions in by_topic([partition]).items()
        ]
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.producer_epoch,
            v3_and_below_topics=topics,
        )
        deadline = Deadline(self._cluster.timeout_s)
        while True:
            response = await self._ask(request, ADD_PARTITIONS_VERSION)
            code = response.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code
            if not code:
                self._partitions[partition] = None
                return
            await self._again(code, deadline)

    async def commit(self) -> None:
        """Commit everything written since the last commit. Returns when it is visible; or when it is committed, but
        whether it is visible could not be found out in time.
        """
        if self._partitions:
            await self._decide()
            self._partitions.clear()
            await self._until_visible()

    async def _decide(self) -> None:
        deadline = Deadline(self._cluster.timeout_s)
        in_doubt = False
        while True:
            try:
                code = await self._end(committed=True)
            except ClientFailure as error:
                if error.kind is not FailureKind.UNREACHABLE:
                    raise
                in_doubt = True
                if deadline.passed():
                    raise _unknown(error.message) from None
                await asyncio.sleep(RETRY_PAUSE_S)
                continue
            if not code:
                return
            try:
                await self._again(code, deadline)
            except ClientFailure as error:
                raise _unknown(error.message) if in_doubt else error from None

    async def _until_visible(self) -> None:
        """Repeat the commit until its markers are written: before that the coordinator answers "not now"."""
        deadline = Deadline(self._cluster.timeout_s)
        while not deadline.passed():
            try:
                code = await self._end(committed=True)
            except ClientFailure as error:
                if error.kind is not FailureKind.UNREACHABLE:
                    return
            else:
                if code not in MOVED and code != ErrorCode.CONCURRENT_TRANSACTIONS:
                    return
            await asyncio.sleep(RETRY_PAUSE_S)

    async def abort(self) -> None:
        """Abort everything written since the last commit. If the coordinator can't be reached, the timeout aborts
        it.
        """
        if self._partitions:
            self._partitions.clear()
            await self._end(committed=False)

    async def _end(self, *, committed: bool) -> int:
        request = EndTxnRequest(self.transactional_id, self.producer_id, self.producer_epoch, committed)
        return (await self._ask(request, END_VERSION)).error_code

    async def _ask(self, request: Request[R], version: int | None = None) -> R:
        node = await coordinator_of(self._cluster, self.transactional_id)
        return await self._cluster.ask(request, node=node, version=version)

    async def _again(self, code: int, deadline: Deadline) -> None:
        """Pause and return if the request should be repeated; otherwise raise the failure."""
        if code in LOST:
            raise self.lost()
        if (code not in MOVED and code != ErrorCode.CONCURRENT_TRANSACTIONS) or deadline.passed():
            raise refused(f"transactional id {self.transactional_id}", code)
        await asyncio.sleep(RETRY_PAUSE_S)

    def lost(self) -> ClientFailure:
        """The failure of a producer that has been fenced."""
        return ClientFailure(
            f"transactional id {self.transactional_id}: another producer has taken it over, or the transaction took "
            f"longer than {TIMEOUT_MS // 1000} s; nothing since the last commit is visible"
        )


def _unknown(message: str) -> ClientFailure:
    return ClientFailure(
        f"{message}; whether the last transaction was committed is unknown", FailureKind.OUTCOME_UNKNOWN
    )

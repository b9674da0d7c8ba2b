"""Ending by hand what no coordinator will end."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from log.ids import TopicPartition
from service.client import transactions
from service.client.transactions import TransactionState, abort_hanging
from service.wire.error_codes import ErrorCode
from service.wire.messages import (
    ProducerState,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

ORDERS = TopicPartition("orders", 0)
OPEN = ProducerState(7, 3, current_txn_start_offset=5)
HELD = TransactionState("pay", "Ongoing", 7, 3, 1, 60_000, 0, [ORDERS])
NONE, SLOW = ErrorCode.NONE, ErrorCode.REQUEST_TIMED_OUT


class Brokers:
    """What they answer, one after the other."""

    timeout_s = 10.0

    def __init__(self, named: Sequence[list[TransactionState]], opened: ProducerState, codes: Sequence[int]) -> None:
        self.named = list(named)
        self.opened = opened
        self.codes = list(codes)

    async def leader(self, partition: TopicPartition) -> int:
        return 1

    async def ask(self, request: WriteTxnMarkersRequest, *, node: int) -> WriteTxnMarkersResponse:
        result = WritableTxnMarkerPartitionResult(0, self.codes.pop(0))
        return WriteTxnMarkersResponse([WritableTxnMarkerResult(7, [WritableTxnMarkerTopicResult("orders", [result])])])


@pytest.mark.parametrize(
    ("named", "still", "codes", "outcome"),
    [
        ([[]], OPEN, [NONE], NONE),
        ([[HELD]], OPEN, [], HELD),
        ([[]], ProducerState(7, 3, current_txn_start_offset=8), [], ErrorCode.INVALID_TXN_STATE),
        ([[]], OPEN, [SLOW, SLOW, NONE], NONE),
    ],
    ids=["hangs", "held", "ended, and the next one is open", "slow"],
)
def test_only_what_no_coordinator_will_end_is_ended(
    monkeypatch: pytest.MonkeyPatch,
    named: list[list[TransactionState]],
    still: ProducerState,
    codes: list[int],
    outcome: TransactionState | int,
) -> None:
    brokers: Any = Brokers(named, still, codes)

    async def known(cluster: Brokers, producer_ids: Sequence[int]) -> dict[int, list[TransactionState]]:
        return {7: cluster.named.pop(0)}

    async def producers(
        cluster: Brokers, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, list[ProducerState]]:
        return {ORDERS: [cluster.opened]}

    monkeypatch.setattr(transactions, "transactions_of", known)
    monkeypatch.setattr(transactions, "producers_of", producers)
    assert asyncio.run(abort_hanging(brokers, ORDERS, OPEN)) == outcome
    assert (brokers.named, brokers.codes) == ([], [])

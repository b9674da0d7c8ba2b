"""How far partitions can be read, asked while one of them moves."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

import pytest

from isolation.markers import NEVER, Markers
from log.ids import TopicPartition
from service.client.cluster import Cluster
from service.client.ends import ends_of
from service.client.failures import ClientFailure
from service.web.gateway import Gateway
from service.web.metrics import ends_elsewhere, scraper_of
from service.wire.base import Struct
from service.wire.error_codes import ErrorCode
from service.wire.messages import DescribedEnds, DescribedEndsTopic, DescribeEndsResponse
from tests.service.api.txn_stage import TxnStage, on_txn_stage


def test_of_a_leader_that_leads_one_partition_no_more_the_others_are_told(tmp_path: Path) -> None:
    """Nothing of that leader was told, so all lags in what it leads were missing."""

    async def scene(stage: TxnStage) -> None:
        partition = stage.broker.partitions.get(TopicPartition("orders", 0))
        assert partition is not None
        partition.resign()
        gateway = Gateway(stage.broker, scraper_of(stage.broker))
        found = await ends_elsewhere(gateway, {("orders", 0): 0, ("orders", 1): 0})
        assert list(found) == [("orders", 1)]

    on_txn_stage(tmp_path, scene)


class Leaders(Cluster):
    """One broker that leads everything, and answers about the ends of partitions with these errors."""

    def __init__(self, *errors: dict[int, ErrorCode]) -> None:
        super().__init__([], client_id="", timeout_s=20.0)
        self._errors = iter(errors)

    async def by_leader(self, partitions: Iterable[TopicPartition]) -> dict[int, list[TopicPartition]]:
        return {1: list(partitions)}

    async def offers(self, request: Struct, *, node: int | None = None) -> bool:
        return True

    async def ask(self, request: Any, **_: Any) -> Any:
        errors = next(self._errors)
        (topic,) = request.topics
        told = [
            DescribedEnds(each.partition_index, errors.get(each.partition_index, 0), markers=NONE_KNOWN)
            for each in topic.partitions
        ]
        return DescribeEndsResponse(topics=[DescribedEndsTopic(topic.name, told)])


FIRST, SECOND = TopicPartition("orders", 0), TopicPartition("orders", 1)
NONE_KNOWN = Markers(NEVER).to_bytes()
MOVING, UNKNOWN = ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def ends(*errors: dict[int, ErrorCode]) -> Collection[TopicPartition]:
    async def asked() -> Collection[TopicPartition]:
        return await ends_of(Leaders(*errors), {FIRST: 0, SECOND: 0})

    return asyncio.run(asked())


def test_who_can_wait_asks_about_a_partition_that_moves_until_its_leader_tells() -> None:
    assert set(ends({0: MOVING}, {})) == {FIRST, SECOND}


@pytest.mark.parametrize("errors", [{0: MOVING, 1: UNKNOWN}, {0: UNKNOWN, 1: MOVING}])
def test_nobody_waits_for_a_partition_that_is_gone(errors: dict[int, ErrorCode]) -> None:
    """It was asked about again if another one moved."""
    with pytest.raises(ClientFailure, match="UNKNOWN_TOPIC_OR_PARTITION"):
        ends(errors)

"""What is known of open transactions, and what can't be known."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from service.client import transactions
from service.client.failures import ClientFailure
from service.client.transactions import Listed, transactions_of
from service.cluster.image import Image
from service.web.gateway import Gateway
from service.web.metrics import scraper_of
from tests.service.api.txn_stage import TxnStage, Writer, on_txn_stage

COORDINATORS = "__transaction_state"


def with_first(image: Image, **changes: Any) -> Image:
    """The image with other facts about the first partition of the coordinators."""
    topic = image.topics[COORDINATORS]
    changed = replace(topic, partitions={**topic.partitions, 0: topic.partitions[0]._replace(**changes)})
    return replace(image, topics={**image.topics, COORDINATORS: changed})


@pytest.mark.parametrize("leader", [-1, 9])
def test_what_a_coordinator_without_a_leader_has_open_is_not_told_to_be_unknown_to_all(
    tmp_path: Path, leader: int
) -> None:
    """Its healthy transaction was called hanging, and an abort marker was accepted: it said `applied` later, and the
    records were gone.
    """

    async def scene(stage: TxnStage) -> None:
        writer, metadata = Writer(stage, "pay"), stage.broker.metadata
        await writer.init()
        await writer.write("orders", "a")
        cluster = Gateway(stage.broker, scraper_of(stage.broker)).cluster
        assert [each.state for each in (await transactions_of(cluster, [writer.producer_id]))[writer.producer_id]]
        metadata.image = with_first(metadata.image, leader=leader)
        with pytest.raises(ClientFailure, match="partition 0 has no leader now"):
            await transactions_of(cluster, [writer.producer_id])

    on_txn_stage(tmp_path, scene)


def test_nothing_is_judged_by_what_coordinators_say_while_they_move(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that took over after it was asked, from one that was asked after that, told of nothing."""

    async def scene(stage: TxnStage) -> None:
        metadata = stage.broker.metadata

        async def move(*_: object, **__: object) -> list[Listed]:
            metadata.image = with_first(metadata.image, leader_epoch=7)
            return []

        monkeypatch.setattr(transactions, "list_transactions", move)
        with pytest.raises(ClientFailure, match="moved"):
            await transactions_of(Gateway(stage.broker, scraper_of(stage.broker)).cluster, [1])

    on_txn_stage(tmp_path, scene)

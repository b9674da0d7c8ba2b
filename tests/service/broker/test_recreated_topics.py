"""Transactions know their partitions by topic name. A topic that was deleted and made again is another topic, and
brokers hear of that at different times.
"""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from log.ids import TopicPartition
from service.wire.error_codes import ErrorCode
from service.wire.messages import DeleteTopicsRequest, DeleteTopicState
from tests.service.api.txn_stage import Writer, find_coordinator, values
from tests.service.broker.cluster_stage import TOPIC, ClusterStage, on_cluster_stage, told_late, until
from tests.service.broker.test_late_markers import GIVEN, OF_OLDER_CLIENTS

ORDERS = TopicPartition(TOPIC, 0)


@pytest.mark.parametrize("adds_itself", [True, False], ids=["newest", "older"])
def test_the_marker_goes_to_the_topic_that_was_written_to_not_to_the_one_before(
    tmp_path: Path, adds_itself: bool
) -> None:
    """The coordinator and the leader of the deleted topic hear late that it was deleted and made again. The marker went
    to the deleted topic, and the transaction in the new one stayed open.
    """

    async def scene(stage: ClusterStage) -> None:
        await find_coordinator(stage.wire(1), "pay")  # the only coordinator is broker 1, which is alone at first
        await stage.start(2)
        await stage.start(3)
        await stage.create(2)
        await until(lambda: stage.broker(1).metadata.image.partition(ORDERS) is not None)
        producer = Writer(stage.wire(1), "pay")
        assert await producer.init() == ErrorCode.NONE
        if not adds_itself:
            assert await producer.add(TOPIC, 0) == [ErrorCode.NONE]
        with told_late(stage.broker(1)) as coordinator_hears, told_late(stage.broker(2)):
            await made_again(stage)
            at_leader = Writer(stage.wire(3), "pay", producer.producer_id, producer.epoch)
            version = 12 if adds_itself else OF_OLDER_CLIENTS
            while (error := await at_leader.write(TOPIC, "paid", version=version)) == ErrorCode.NOT_ENOUGH_REPLICAS:
                coordinator_hears.set()
                await asyncio.sleep(0.02)
            assert error == ErrorCode.NONE
            assert (await producer.end(commit=True, version=5 if adds_itself else 3)).error_code == ErrorCode.NONE
            partition = stage.partition(3)
            await until(lambda: not partition.stable.open_transactions, within_s=5)
            assert await values(stage.wire(3), TOPIC) == ["paid"]

    on_cluster_stage(tmp_path, scene, 1, given=GIVEN)


def test_who_leads_the_deleted_topic_refuses_the_marker_for_the_new_one(tmp_path: Path) -> None:
    """The new topic may have been led by others before, who have its records."""

    async def scene(stage: ClusterStage) -> None:
        await find_coordinator(stage.wire(1), "pay")
        await stage.start(2)
        await stage.start(3)
        await stage.create(2)
        with told_late(stage.broker(2)) as heard:
            await made_again(stage)
            await until(lambda: stage.broker(1).metadata.image.topics == stage.broker(3).metadata.image.topics)
            sent = markers_sent_elsewhere(stage, elsewhere=2)
            producer = Writer(stage.wire(1), "pay")
            assert await producer.init() == ErrorCode.NONE
            at_leader = Writer(stage.wire(3), "pay", producer.producer_id, producer.epoch)
            assert await at_leader.write(TOPIC, "paid") == ErrorCode.NONE
            assert (await producer.end(commit=True)).error_code == ErrorCode.NONE
            await until(lambda: len(sent) > 1)
            assert stage.partition(2).log.end_offset == 0
            heard.set()
        partition = stage.partition(3)
        await until(lambda: not partition.stable.open_transactions)
        assert await values(stage.wire(3), TOPIC) == ["paid"]

    on_cluster_stage(tmp_path, scene, 1, given=GIVEN)


def markers_sent_elsewhere(stage: ClusterStage, *, elsewhere: int) -> list[object]:
    """The coordinator sends its first markers to another broker than it should, as if that one led by now. Returns all
    that it sends.
    """
    sent: list[object] = []
    peers = stage.broker(1).coordination.marker_courier._peers
    ask = peers.ask

    async def ask_another(broker_id: int, request: Any, **how: Any) -> Any:
        sent.append(request)
        return await ask(broker_id if len(sent) > 1 else elsewhere, request, **how)

    peers.ask = ask_another  # type: ignore[method-assign]
    return sent


async def made_again(stage: ClusterStage) -> None:
    """Deleted, and made again on broker 3."""
    before = stage.broker(3).metadata.image.topics[TOPIC].id
    forgotten = asyncio.ensure_future(
        stage.wire(3).ask(DeleteTopicsRequest([DeleteTopicState(TOPIC)], timeout_ms=5000))
    )
    await until(lambda: TOPIC not in stage.broker(3).metadata.image.topics)
    await stage.create(3)
    assert stage.broker(3).metadata.image.topics[TOPIC].id != before
    await forgotten

"""A marker on another broker that takes long to be committed, because a follower there is slow. It holds up the
transactions of other partitions for a short time only, and it is done when its first copy is committed.
"""

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from service.api import write_txn_markers
from service.broker.coordination import PEERS_TIMEOUT_S
from service.broker.partition import Partition
from tests.service.api.txn_stage import Writer
from tests.service.broker.cluster_stage import TOPIC, ClusterStage, on_cluster_stage, until
from tests.service.broker.test_late_markers import GIVEN, STATE, coordinated_by_one, ready

PATIENCE_S, SLOW_S = 0.3, 1.2
END_TXN_TO_PRODUCE = {3: 11, 5: 12}
"""Versions: of an older client, and of one whose epoch rises with every transaction."""


def slow_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a follower says that it has of TOPIC is heard late."""
    fetched = Partition.fetched

    def heard_late(self: Partition, *told: Any, **more: Any) -> None:
        delay_s = SLOW_S if self.topic_partition.topic == TOPIC else 0.0
        asyncio.get_running_loop().call_later(delay_s, partial(fetched, self, *told, **more))

    monkeypatch.setattr(Partition, "fetched", heard_late)


@pytest.mark.parametrize("version", END_TXN_TO_PRODUCE)
def test_a_marker_that_is_committed_late_is_written_once_and_holds_up_others_for_a_short_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    monkeypatch.setattr(write_txn_markers, "PATIENCE_S", PATIENCE_S)

    async def scene(stage: ClusterStage) -> None:
        await coordinated_by_one(stage)
        await stage.start(3)
        await stage.create(2, 3)
        await stage.create(2, name="healthy")
        slow, quick = Writer(stage.wire(1), "slow"), Writer(stage.wire(1), "quick")

        async def goes_on(writer: Writer, topic: str) -> int:
            return (await writer.add(topic, 0))[0]

        for writer, topic in ((slow, TOPIC), (quick, "healthy")):
            await ready(writer.init)
            await ready(lambda writer=writer, topic=topic: goes_on(writer, topic))  # type: ignore[misc]
            at_leader = Writer(stage.wire(2), writer.transactional_id, writer.producer_id, writer.epoch)
            assert await at_leader.write(topic, "x", version=END_TXN_TO_PRODUCE[version]) == 0
        await until(lambda: set(stage.state().isr) == {2, 3})
        state = stage.broker(1).metadata.image.partition(STATE)
        assert state is not None
        slow_commits(monkeypatch)
        for writer in (slow, quick):
            assert (await writer.end(commit=True, version=version)).error_code == 0
        await ready(lambda: goes_on(quick, "healthy"))
        assert stage.partition(2).high_watermark == 1, "the other marker isn't committed yet"
        await ready(lambda: goes_on(slow, TOPIC))
        log = stage.partition(2).log
        assert [header.is_control for header, _ in log.scan(0)] == [False, True], "the marker was written once"
        now = stage.broker(1).metadata.image.partition(STATE)
        assert now is not None
        assert now.leader_epoch == state.leader_epoch, "each marker was answered, so none is in doubt"

    on_cluster_stage(tmp_path, scene, 1, given=GIVEN | {"replica.lag.time.max.ms": "30000"})


def test_a_coordinator_is_answered_before_it_gives_up() -> None:
    assert write_txn_markers.PATIENCE_S + 1 < PEERS_TIMEOUT_S

"""DescribeEnds: which of a partition's last offsets are markers."""

from pathlib import Path

import pytest

from isolation.markers import NEVER, Left, Markers
from service.wire.error_codes import ErrorCode
from service.wire.messages import DescribedEnds, DescribeEndsRequest, EndsPartition, EndsTopic
from tests.monitoring.test_metrics import begun
from tests.service.api.txn_stage import TxnStage, on_txn_stage


def test_a_leader_tells_how_far_its_partitions_can_be_read_and_where_markers_are(tmp_path: Path) -> None:
    async def scene(stage: TxnStage) -> None:
        await (await begun(stage, "pay")).end(commit=True)
        await (await begun(stage, "pay")).end(commit=False)
        await begun(stage, "open")
        twice = EndsTopic("orders", [EndsPartition(0, 0), EndsPartition(0, 2), EndsPartition(99, 0)])
        answer = await stage.ask(DescribeEndsRequest([twice, EndsTopic("nowhere", [EndsPartition(0, 0)])]), 0)
        (told, missing), (nowhere,) = (topic.partitions for topic in answer.topics)
        assert [each.error_code for each in (missing, nowhere)] == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 2
        assert told == DescribedEnds(0, 0, 0, 4, 5, told.markers), "once, however often it is named"
        markers, _ = Markers.from_bytes(told.markers)
        assert markers.left(2, start=0, stable=4, high=5) == Left(1, 1, True)
        assert markers.left(3, start=0, stable=4, high=5) == Left(0, 1, True)
        assert not markers.left(0, start=0, stable=4, high=5).is_exact, "it was asked about offset 2 and beyond"

    on_txn_stage(tmp_path, scene)


def test_of_very_many_partitions_some_are_told_without_their_markers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.api.describe_ends.MARKERS_BYTES", 1)

    async def scene(stage: TxnStage) -> None:
        await (await begun(stage, "pay")).end(commit=True)
        (answer,) = (
            await stage.ask(DescribeEndsRequest([EndsTopic("orders", [EndsPartition(0, 0), EndsPartition(1, 0)])]), 0)
        ).topics
        first, second = (Markers.from_bytes(each.markers)[0] for each in answer.partitions)
        assert first.known_from == 0
        assert second.known_from == NEVER

    on_txn_stage(tmp_path, scene)


def test_a_broker_that_no_longer_leads_tells_nothing(tmp_path: Path) -> None:
    async def scene(stage: TxnStage) -> None:
        await (await begun(stage, "pay")).end(commit=True)
        partition = (stage.broker.partitions.topic("orders") or {})[0]
        partition.resign()
        answer = await stage.ask(DescribeEndsRequest([EndsTopic("orders", [EndsPartition(0, 0)])]), 0)
        assert [each.error_code for each in answer.topics[0].partitions] == [ErrorCode.NOT_LEADER_OR_FOLLOWER]

    on_txn_stage(tmp_path, scene)

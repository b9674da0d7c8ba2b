"""DescribeCluster, DescribeTopicPartitions, DescribeLogDirs."""

import asyncio
from pathlib import Path

import pytest

from log.batch import build_batch
from log.disk import DiskFault
from log.ids import TopicPartition
from service.broker.acceptance import RefusedBatch
from service.broker.partition import Partition
from service.ports import RealClock
from service.stores.memory import MemoryServer
from service.wire.error_codes import ErrorCode
from service.wire.messages import (
    DescribableLogDirTopic,
    DescribeClusterRequest,
    DescribeLogDirsRequest,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsRequestCursor,
    DescribeTopicPartitionsRequestTopicRequest,
    DescribeTopicPartitionsResponse,
    ListGroupsRequest,
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tests.service.api.admin_stage import Stage, on_stage
from tests.service.api.txn_stage import TxnStage, on_txn_stage


@pytest.mark.parametrize("version", range(3))
def test_the_cluster_is_described(tmp_path: Path, version: int) -> None:
    async def scene(stage: Stage) -> None:
        answer = await stage.ask(DescribeClusterRequest(True), version)
        assert (answer.error_code, answer.cluster_id, answer.controller_id) == (
            0,
            stage.broker.metadata.image.cluster_id,
            1,
        )
        assert [(one.broker_id, one.host, one.port) for one in answer.brokers] == [(1, "broker.example", 9092)]
        assert answer.cluster_authorized_operations == 8096

    on_stage(tmp_path, scene)


@pytest.mark.parametrize(
    ("endpoint_type", "error"), [(2, ErrorCode.MISMATCHED_ENDPOINT_TYPE), (9, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE)]
)
def test_there_are_no_controller_endpoints(tmp_path: Path, endpoint_type: int, error: ErrorCode) -> None:
    async def scene(stage: Stage) -> None:
        answer = await stage.ask(DescribeClusterRequest(endpoint_type=endpoint_type))
        assert (answer.error_code, answer.brokers, answer.controller_id) == (error, [], -1)

    on_stage(tmp_path, scene)


def paged(limit: int, *names: str, after: tuple[str, int] | None = None) -> DescribeTopicPartitionsRequest:
    topics = [DescribeTopicPartitionsRequestTopicRequest(name) for name in names]
    cursor = None if after is None else DescribeTopicPartitionsRequestCursor(*after)
    return DescribeTopicPartitionsRequest(topics, limit, cursor)


def seen(answer: DescribeTopicPartitionsResponse) -> list[tuple[str | None, list[int]]]:
    return [(topic.name, [one.partition_index for one in topic.partitions]) for topic in answer.topics]


@pytest.mark.parametrize("names", [(), ("c", "a", "b", "a")], ids=["all", "named"])
@pytest.mark.parametrize("limit", [1, 2, 3, 5, 100])
def test_pages_hold_everything_once_in_order(tmp_path: Path, limit: int, names: tuple[str, ...]) -> None:
    async def scene(stage: Stage) -> None:
        for name, partitions in (("b", 3), ("a", 2), ("c", 1)):
            await stage.create(name, partitions)
        collected: list[tuple[str | None, int]] = []
        after: tuple[str, int] | None = None
        while True:
            answer = await stage.ask(paged(limit, *names, after=after))
            page = [(name, index) for name, indexes in seen(answer) for index in indexes]
            assert 1 <= len(page) <= limit
            assert all(indexes for _, indexes in seen(answer))
            collected += page
            if answer.next_cursor is None:
                break
            after = answer.next_cursor.topic_name, answer.next_cursor.partition_index
        assert collected == [("a", 0), ("a", 1), ("b", 0), ("b", 1), ("b", 2), ("c", 0)]

    on_stage(tmp_path, scene)


def test_the_brokers_own_limit_holds_and_a_page_is_never_empty(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        await stage.create("a", 3)
        assert seen(await stage.ask(paged(100, "a"))) == [("a", [0, 1])]
        assert seen(await stage.ask(paged(0, "a"))) == [("a", [0])]

    on_stage(tmp_path, scene, {"max.request.partition.size.limit": "2"})


def test_unknown_topics_are_told_in_their_place(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        await stage.create("m")
        answer = await stage.ask(paged(10, "z", "m", "a b"))
        assert [(topic.name, ErrorCode(topic.error_code)) for topic in answer.topics] == [
            ("a b", ErrorCode.INVALID_TOPIC_EXCEPTION),
            ("m", ErrorCode.NONE),
            ("z", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ]
        (partition,) = answer.topics[1].partitions
        assert (partition.leader_id, partition.isr_nodes, partition.eligible_leader_replicas) == (1, [1], [])

    on_stage(tmp_path, scene)


@pytest.mark.parametrize("after", [("a", -1), ("other", 0)])
def test_a_cursor_that_fits_nothing_is_refused(tmp_path: Path, after: tuple[str, int]) -> None:
    async def scene(stage: Stage) -> None:
        await stage.create("a")
        answer = await stage.ask(paged(10, "a", after=after))
        assert [topic.error_code for topic in answer.topics] == [ErrorCode.INVALID_REQUEST]

    on_stage(tmp_path, scene)


@pytest.mark.parametrize("version", range(1, 6))
def test_folders_tell_the_size_of_their_partitions(tmp_path: Path, version: int) -> None:
    async def scene(stage: Stage) -> None:
        await stage.create("orders", 2)
        partition = stage.broker.partitions.get(TopicPartition("orders", 1))
        assert partition is not None
        batch = bytearray(build_batch([(None, b"value", (), 1)]))
        partition.append_from_client(memoryview(batch), acks=1, now_ms=stage.broker.env.clock.wall_ms())
        wanted = [DescribableLogDirTopic("orders", [0, 1, 9]), DescribableLogDirTopic("none", [0])]
        (folder,) = (await stage.ask(DescribeLogDirsRequest(wanted), version)).results
        assert (folder.error_code, folder.log_dir) == (0, str(tmp_path))
        (topic,) = folder.topics
        sizes = [(one.partition_index, one.partition_size, one.is_future_key) for one in topic.partitions]
        assert (topic.name, sizes) == ("orders", [(0, 0, False), (1, len(batch), False)])
        assert (folder.total_bytes > folder.usable_bytes > 0) == (version >= 4)
        assert version >= 4 or (folder.total_bytes, folder.usable_bytes) == (-1, -1)
        everything = await stage.ask(DescribeLogDirsRequest(None), version)
        assert [one.name for one in everything.results[0].topics] == ["orders"]

    on_stage(tmp_path, scene)


def test_a_folder_out_of_service_says_so(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        await stage.create("orders")
        (folder,) = stage.broker.folders
        folder.fail(DiskFault("no more"))
        (result,) = (await stage.ask(DescribeLogDirsRequest(None))).results
        assert (result.error_code, result.topics) == (ErrorCode.KAFKA_STORAGE_ERROR, [])

    on_stage(tmp_path, scene)


def leads(partition: Partition) -> bool:
    return partition.is_leading


def test_a_broker_that_lost_its_session_leads_nothing(tmp_path: Path) -> None:
    """What the metadata said when the session ended need not hold any more."""
    metadata = MemoryServer(RealClock())

    async def scene(stage: Stage) -> None:
        await stage.create("orders")
        (partition,) = stage.broker.partitions
        assert leads(partition)
        metadata.end_session(stage.broker.metadata.image.controller_session)
        async with asyncio.timeout(10):
            while leads(partition):  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        batch = bytearray(build_batch([(None, b"value", (), 1)]))
        refused = partition.append_from_client(memoryview(batch), acks=1, now_ms=1)
        assert refused == RefusedBatch(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    on_stage(tmp_path, scene, metadata=metadata)


def test_groups_are_listed_by_state_and_type_in_any_case(tmp_path: Path) -> None:
    async def scene(stage: TxnStage) -> None:
        offsets = [OffsetCommitRequestTopic("orders", partitions=[OffsetCommitRequestPartition(0, 5)])]
        await stage.ask(OffsetCommitRequest("group", topics=offsets), 9)
        for states, types, found in (
            ([" EMPTY "], [], ["group"]),
            ([], ["Classic"], ["group"]),
            (["Stable"], ["classic"], []),
            (["empty"], ["consumer"], []),
        ):
            answer = await stage.ask(ListGroupsRequest(states, types))
            assert [each.group_id for each in answer.groups] == found

    on_txn_stage(tmp_path, scene)

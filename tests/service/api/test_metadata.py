"""Metadata: what each version says, and which topics come about by being asked for."""

from dataclasses import replace
from pathlib import Path

import pytest

from log.ids import ZERO_TOPIC_ID
from service.cluster.image import NO_BROKER
from service.wire.error_codes import ErrorCode
from service.wire.messages import DescribeClusterRequest, MetadataRequest, MetadataRequestTopic, MetadataResponse
from tests.service.api.admin_stage import Stage, on_stage

NO_CREATION = {"auto.create.topics.enable": "false"}


def by_name(*names: str, create: bool = False) -> MetadataRequest:
    return MetadataRequest([MetadataRequestTopic(name=name) for name in names], create)


def errors(answer: MetadataResponse) -> list[tuple[str | None, ErrorCode]]:
    return [(topic.name, ErrorCode(topic.error_code)) for topic in answer.topics]


@pytest.mark.parametrize("version", range(14))
def test_every_version_describes_the_cluster_and_its_topics(tmp_path: Path, version: int) -> None:
    async def scene(stage: Stage) -> None:
        topic_id = await stage.create("orders", 2)
        answer = await stage.ask(by_name("orders"), version)
        (broker,) = answer.brokers
        assert (broker.node_id, broker.host, broker.port) == (1, "broker.example", 9092)
        assert answer.cluster_id == (stage.broker.metadata.image.cluster_id if version >= 2 else None)
        assert answer.controller_id == (1 if version >= 1 else -1)
        (topic,) = answer.topics
        assert (topic.error_code, topic.name, topic.is_internal) == (0, "orders", False)
        assert topic.topic_id == (topic_id if version >= 10 else ZERO_TOPIC_ID)
        assert [partition.partition_index for partition in topic.partitions] == [0, 1]
        for partition in topic.partitions:
            assert (partition.error_code, partition.leader_id) == (0, 1)
            assert partition.leader_epoch == (0 if version >= 7 else -1)
            assert (partition.replica_nodes, partition.isr_nodes, partition.offline_replicas) == ([1], [1], [])

    on_stage(tmp_path, scene)


def test_while_there_is_no_controller_a_broker_names_itself(tmp_path: Path) -> None:
    """Clients with librdkafka wait for minutes when they are told of nobody. DescribeCluster tells who controls."""

    async def scene(stage: Stage) -> None:
        metadata = stage.broker.metadata
        metadata.image = replace(metadata.image, controller_id=NO_BROKER)
        assert (await stage.ask(by_name())).controller_id == 1
        assert (await stage.ask(DescribeClusterRequest())).controller_id == NO_BROKER
        await stage.create("orders")
        metadata.image = replace(metadata.image, brokers={}, controller_id=NO_BROKER)
        assert (await stage.ask(by_name())).controller_id == NO_BROKER

    on_stage(tmp_path, scene)


def test_all_topics_are_asked_for_by_null_and_in_version_0_by_an_empty_list(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        await stage.create("a")
        await stage.create("b")
        assert errors(await stage.ask(MetadataRequest([]), 0)) == [("a", ErrorCode.NONE), ("b", ErrorCode.NONE)]
        assert errors(await stage.ask(MetadataRequest(None), 1)) == [("a", ErrorCode.NONE), ("b", ErrorCode.NONE)]
        assert errors(await stage.ask(MetadataRequest([]), 1)) == []

    on_stage(tmp_path, scene)


def test_topics_are_found_by_id_and_named_once(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        topic_id = await stage.create("orders")
        by_id = MetadataRequestTopic(topic_id, None)
        unknown = MetadataRequestTopic(b"\x07" * 16, None)
        answer = await stage.ask(MetadataRequest([by_id, MetadataRequestTopic(name="orders"), by_id, unknown]))
        assert errors(answer) == [("orders", ErrorCode.NONE), (None, ErrorCode.UNKNOWN_TOPIC_ID)]
        assert answer.topics[1].topic_id == b"\x07" * 16
        too_early = await stage.ask(MetadataRequest([MetadataRequestTopic(topic_id, "")]), 11)
        assert errors(too_early) == [("", ErrorCode.INVALID_REQUEST)]
        nothing = await stage.ask(MetadataRequest([MetadataRequestTopic(name=None)]))
        assert errors(nothing) == [("", ErrorCode.UNKNOWN_SERVER_ERROR)]

    on_stage(tmp_path, scene)


def test_a_topic_asked_for_is_created_with_the_brokers_defaults_and_described_at_once(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        await stage.create("there")
        answer = await stage.ask(by_name("new", "there", "bad name", create=True))
        assert errors(answer) == [
            ("new", ErrorCode.NONE),
            ("there", ErrorCode.NONE),
            ("bad name", ErrorCode.INVALID_TOPIC_EXCEPTION),
        ]
        assert [partition.leader_id for partition in answer.topics[0].partitions] == [1, 1, 1]
        assert stage.broker.partitions.topic("new") is not None

    on_stage(tmp_path, scene, {"num.partitions": "3"})


@pytest.mark.parametrize(
    ("asks", "given"), [(False, {}), (True, NO_CREATION)], ids=["the client does not ask", "the broker does not allow"]
)
def test_a_topic_is_created_only_where_both_sides_want_it(tmp_path: Path, asks: bool, given: dict[str, str]) -> None:
    async def scene(stage: Stage) -> None:
        answer = await stage.ask(by_name("new", create=asks))
        assert errors(answer) == [("new", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)]
        assert stage.broker.metadata.image.topics == {}

    on_stage(tmp_path, scene, given)


def test_a_name_that_collides_is_not_created(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        await stage.create("a.b")
        assert errors(await stage.ask(by_name("a_b", create=True))) == [("a_b", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)]

    on_stage(tmp_path, scene)


def test_an_internal_topic_is_known_as_one_before_it_exists(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        answer = await stage.ask(by_name("__consumer_offsets"))
        assert errors(answer) == [("__consumer_offsets", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)]
        assert answer.topics[0].is_internal

    on_stage(tmp_path, scene)


def test_operations_are_told_where_asked_for(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        await stage.create("orders")
        request = by_name("orders")
        answer = await stage.ask(request, 10)
        assert (answer.cluster_authorized_operations, answer.topics[0].topic_authorized_operations) == (-(2**31),) * 2
        request.include_cluster_authorized_operations = request.include_topic_authorized_operations = True
        answer = await stage.ask(request, 10)
        assert (answer.cluster_authorized_operations, answer.topics[0].topic_authorized_operations) == (8096, 3576)

    on_stage(tmp_path, scene)


def test_the_log_says_why_a_topic_that_was_asked_for_is_not_made(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene(stage: Stage) -> None:
        answer = await stage.ask(by_name("orders", create=True))
        assert errors(answer) == [("orders", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)]
        assert "10.0.0.9 asked for topic orders: Unable to replicate the partition 3 time(s)" in caplog.text

    on_stage(tmp_path, scene, {"default.replication.factor": "3"})

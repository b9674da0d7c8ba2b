"""CreateTopics, DeleteTopics, CreatePartitions: from the wire to the partitions of the broker and back."""

from pathlib import Path

import pytest

from service.api import create_topics, delete_topics
from service.wire.error_codes import ErrorCode
from service.wire.messages import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from tests.service.api.admin_stage import Stage, on_stage


def outcomes(answer: DeleteTopicsResponse) -> list[tuple[str | None, ErrorCode, str | None]]:
    return [(one.name, ErrorCode(one.error_code), one.error_message) for one in answer.responses]


@pytest.mark.parametrize("version", range(2, 8))
def test_a_topic_is_created_in_every_version(tmp_path: Path, version: int) -> None:
    async def scene(stage: Stage) -> None:
        wanted = CreatableTopic("orders", 3, 1, configs=[CreatableTopicConfig("retention.ms", "7")])
        (result,) = (await stage.ask(CreateTopicsRequest([wanted]), version)).topics
        assert (result.name, result.error_code, result.error_message) == ("orders", 0, None)
        held = stage.broker.partitions.topic("orders")
        assert held is not None and list(held) == [0, 1, 2]
        assert held[0].log.config.retention_ms == 7
        if version >= 5:
            assert (result.num_partitions, result.replication_factor) == (3, 1)
            configs = {entry.name: (entry.value, entry.config_source) for entry in result.configs or []}
            assert configs["retention.ms"] == ("7", 1)
            assert configs["segment.bytes"] == ("1073741824", 5)
        if version >= 7:
            assert result.topic_id == held[0].topic_id

    on_stage(tmp_path, scene)


def test_a_name_that_comes_twice_is_refused_and_the_others_are_created(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        topics = [CreatableTopic(name, 1, 1) for name in ("twice", "once", "twice", "bad name")]
        answer = await stage.ask(CreateTopicsRequest(topics))
        assert [(one.name, ErrorCode(one.error_code)) for one in answer.topics] == [
            ("once", ErrorCode.NONE),
            ("bad name", ErrorCode.INVALID_TOPIC_EXCEPTION),
            ("twice", ErrorCode.INVALID_REQUEST),
        ]
        assert answer.topics[2].error_message == "Duplicate topic name."
        assert list(stage.broker.metadata.image.topics) == ["once"]

    on_stage(tmp_path, scene)


def test_a_validation_tells_what_would_be_and_creates_nothing(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        request = CreateTopicsRequest([CreatableTopic("orders", -1, -1)], validate_only=True)
        (result,) = (await stage.ask(request)).topics
        assert (result.error_code, result.num_partitions, result.replication_factor) == (0, 4, 1)
        assert stage.broker.metadata.image.topics == {}

    on_stage(tmp_path, scene, {"num.partitions": "4"})


def test_replicas_are_assigned_as_told(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        assignment = [CreatableReplicaAssignment(index, [1]) for index in range(2)]
        (result,) = (await stage.ask(CreateTopicsRequest([CreatableTopic("orders", -1, -1, assignment)]))).topics
        assert (result.error_code, result.num_partitions) == (0, 2)

    on_stage(tmp_path, scene)


@pytest.mark.parametrize("version", range(1, 7))
def test_a_deleted_topic_is_gone_with_its_files(tmp_path: Path, version: int) -> None:
    async def scene(stage: Stage) -> None:
        await stage.create("orders", 2)
        request = DeleteTopicsRequest([DeleteTopicState("orders")], ["orders"])
        answer = await stage.ask(request, version)
        assert outcomes(answer) == [("orders", ErrorCode.NONE, None)]
        assert stage.broker.partitions.topic("orders") is None
        assert stage.broker.metadata.image.topics == {}

    on_stage(tmp_path, scene)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("orders-")] == []


def test_what_can_not_be_deleted_is_told_and_the_rest_goes(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        for name in ("goes", "twice", "both"):
            await stage.create(name)
        both = stage.broker.metadata.image.topics["both"].id
        wanted = [
            DeleteTopicState("goes"),
            DeleteTopicState("none"),
            DeleteTopicState(None, b"\x07" * 16),
            DeleteTopicState(None),
            DeleteTopicState("goes", b"\x07" * 16),
            DeleteTopicState("twice"),
            DeleteTopicState("twice"),
            DeleteTopicState("both"),
            DeleteTopicState(None, both),
        ]
        wanted[4].name = "named"
        answer = await stage.ask(DeleteTopicsRequest(wanted))
        assert outcomes(answer) == [
            ("goes", ErrorCode.NONE, None),
            ("none", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition."),
            (None, ErrorCode.UNKNOWN_TOPIC_ID, "This server does not host this topic ID."),
            (None, ErrorCode.INVALID_REQUEST, "Neither topic name nor id were specified."),
            ("named", ErrorCode.INVALID_REQUEST, "You may not specify both topic name and topic id."),
            ("twice", ErrorCode.INVALID_REQUEST, "Duplicate topic name."),
            ("both", ErrorCode.INVALID_REQUEST, "The provided topic name maps to an ID that was already supplied."),
        ]
        assert list(stage.broker.metadata.image.topics) == ["twice", "both"]

    on_stage(tmp_path, scene)


def test_a_topic_is_deleted_by_its_id(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        topic_id = await stage.create("orders")
        answer = await stage.ask(DeleteTopicsRequest([DeleteTopicState(None, topic_id)]))
        assert outcomes(answer) == [("orders", ErrorCode.NONE, None)]
        assert answer.responses[0].topic_id == topic_id

    on_stage(tmp_path, scene)


@pytest.mark.parametrize(("version", "error"), [(1, ErrorCode.INVALID_REQUEST), (6, ErrorCode.TOPIC_DELETION_DISABLED)])
def test_deletion_can_be_switched_off(tmp_path: Path, version: int, error: ErrorCode) -> None:
    async def scene(stage: Stage) -> None:
        await stage.create("orders")
        answer = await stage.ask(DeleteTopicsRequest([DeleteTopicState("orders")], ["orders"]), version)
        assert outcomes(answer)[0][1] is error
        assert "orders" in stage.broker.metadata.image.topics

    on_stage(tmp_path, scene, {"delete.topic.enable": "false"})


@pytest.mark.parametrize("version", range(4))
def test_partitions_are_added_and_led(tmp_path: Path, version: int) -> None:
    async def scene(stage: Stage) -> None:
        await stage.create("orders")
        answer = await stage.ask(CreatePartitionsRequest([CreatePartitionsTopic("orders", 3, None)]), version)
        assert [(one.name, one.error_code, one.error_message) for one in answer.results] == [("orders", 0, None)]
        held = stage.broker.partitions.topic("orders")
        assert held is not None and list(held) == [0, 1, 2]
        assert all(partition.is_leading for partition in held.values())

    on_stage(tmp_path, scene)


def test_partitions_that_can_not_be_added_are_told(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        await stage.create("orders", 2)
        await stage.create("twice")
        wanted = [
            CreatePartitionsTopic("orders", 2, None),
            CreatePartitionsTopic("none", 2, None),
            CreatePartitionsTopic("twice", 2, None),
            CreatePartitionsTopic("twice", 3, [CreatePartitionsAssignment([1])]),
        ]
        answer = await stage.ask(CreatePartitionsRequest(wanted))
        assert [(one.name, ErrorCode(one.error_code), one.error_message) for one in answer.results] == [
            ("twice", ErrorCode.INVALID_REQUEST, "Duplicate topic name."),
            ("orders", ErrorCode.INVALID_PARTITIONS, "Topic already has 2 partition(s)."),
            ("none", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, None),
        ]

    on_stage(tmp_path, scene)


def test_very_many_topics_are_made_and_removed_in_several_commits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker takes a commit in one turn. How many partitions may be made is counted for the whole request."""
    for module in (create_topics, delete_topics):
        monkeypatch.setattr(module, "TOPICS_A_COMMIT", 3)
    monkeypatch.setattr(create_topics, "MAX_NEW_PARTITIONS", 9)
    names = [f"topic.{number}" for number in range(7)]

    async def scene(stage: Stage) -> None:
        metadata = stage.broker.metadata
        before = metadata.image.number
        wanted = [CreatableTopic(name, 3 if name == names[0] else 1, 1) for name in [*names, "one.too.many"]]
        created = {topic.name: topic.error_code for topic in (await stage.ask(CreateTopicsRequest(wanted))).topics}
        assert created == dict.fromkeys(names, ErrorCode.NONE) | {"one.too.many": ErrorCode.POLICY_VIOLATION}
        assert metadata.image.number == before + 3
        deleted = (await stage.ask(DeleteTopicsRequest([DeleteTopicState(name) for name in names]))).responses
        assert [(topic.name, topic.error_code) for topic in deleted] == [(name, ErrorCode.NONE) for name in names]
        assert metadata.image.number == before + 6
        assert not metadata.image.topics

    on_stage(tmp_path, scene)

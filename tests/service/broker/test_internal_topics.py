"""Where a key's coordinator is, and how the topic of its memory is made."""

import asyncio
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from log.ids import TopicPartition
from service.broker.internal_topics import (
    GROUPS,
    HTTP_KEY_PARTITIONS,
    HTTP_KEYS,
    INTERNAL_TOPICS,
    TRANSACTIONS,
    InternalTopic,
    NodeAddress,
    log_config_of,
)
from service.cluster.metadata import MetadataLost
from service.settings.broker import BrokerConfig
from service.wire.error_codes import ErrorCode
from service.wire.messages import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestAlterableConfig,
    IncrementalAlterConfigsRequestAlterConfigsResource,
)
from tests.service.api.admin_stage import Stage, on_stage
from tests.service.api.txn_stage import FEW, until

ALL = pytest.mark.parametrize("topic", INTERNAL_TOPICS.values(), ids=lambda topic: topic.name)


@ALL
def test_the_first_question_makes_the_topic_and_the_address_is_that_of_the_clients_listener(
    tmp_path: Path, topic: InternalTopic
) -> None:
    async def scene(stage: Stage) -> None:
        topics, metadata = stage.broker.coordination.internal_topics, stage.broker.metadata
        assert topics.coordinator_of(topic, "pay", "PLAINTEXT") is ErrorCode.COORDINATOR_NOT_AVAILABLE
        await until(lambda: topic.name in metadata.image.topics)
        assert topics.coordinator_of(topic, "pay", "PLAINTEXT") == NodeAddress(1, "broker.example", 9092)
        assert topics.coordinator_of(topic, "pay", "ELSEWHERE") is ErrorCode.COORDINATOR_NOT_AVAILABLE
        made = metadata.image.topics[topic.name]
        assert topic.kept(stage.broker.config).items() <= made.config.items()
        assert len(made.partitions) == topic.layout(stage.broker.config).partitions
        assert {len(state.replicas) for state in made.partitions.values()} == {1}, "as many as there are brokers"

    on_stage(tmp_path, scene, FEW)


@ALL
def test_a_topic_is_made_when_its_segments_are_set_to_less_than_a_topic_may_have(
    tmp_path: Path, topic: InternalTopic
) -> None:
    small = {"offsets.topic.segment.bytes": "100", "transaction.state.log.segment.bytes": "100"}

    async def scene(stage: Stage) -> None:
        metadata = stage.broker.metadata
        stage.broker.coordination.internal_topics.bring_about(topic)
        await until(lambda: topic.name in metadata.image.topics)
        assert metadata.image.topics[topic.name].config["segment.bytes"] == "1048576"

    on_stage(tmp_path, scene, FEW | small)


@pytest.mark.parametrize("topic", [GROUPS, TRANSACTIONS])
def test_a_coordinator_finds_little_that_is_not_compacted(topic: InternalTopic) -> None:
    """What it must read before it answers."""
    assert int(topic.layout(BrokerConfig({})).settings["segment.bytes"]) <= 8 << 20


def test_a_topic_is_made_once_however_often_it_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(stage: Stage) -> None:
        metadata, topics, asked = stage.broker.metadata, stage.broker.coordination.internal_topics, 0
        execute = metadata.execute

        async def counted(command: Any) -> Any:
            nonlocal asked
            asked += 1
            return await execute(command)

        monkeypatch.setattr(metadata, "execute", counted)
        for _ in range(20):
            topics.bring_about(GROUPS)
        await until(lambda: GROUPS.name in metadata.image.topics)
        topics.bring_about(GROUPS)
        await asyncio.sleep(0)
        assert asked == 1

    on_stage(tmp_path, scene, FEW)


def test_a_topic_that_could_not_be_made_is_made_when_it_is_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)

    async def lost(command: Any) -> Any:
        raise MetadataLost(ErrorCode.UNKNOWN_SERVER_ERROR, "the store is away")

    async def scene(stage: Stage) -> None:
        metadata, topics = stage.broker.metadata, stage.broker.coordination.internal_topics
        with monkeypatch.context() as away:
            away.setattr(metadata, "execute", lost)
            topics.bring_about(TRANSACTIONS)
            await until(lambda: "__transaction_state can't be created now" in caplog.text)
        topics.bring_about(TRANSACTIONS)
        await until(lambda: TRANSACTIONS.name in metadata.image.topics)

    on_stage(tmp_path, scene, FEW)


def test_the_records_of_keys_are_kept_for_their_time_whatever_is_set_for_topics(tmp_path: Path) -> None:
    """A request whose key is forgotten too early is applied again."""
    few = {**FEW, "log.retention.bytes": "1000", "log.retention.ms": "1000", "http.idempotency.retention.ms": "90000"}

    async def scene(stage: Stage) -> None:
        broker, last = stage.broker, TopicPartition(HTTP_KEYS.name, HTTP_KEY_PARTITIONS - 1)
        broker.coordination.internal_topics.bring_about(HTTP_KEYS)
        await until(lambda: broker.partitions.get(last) is not None)
        held = broker.partitions.get(last)
        assert held is not None
        made = broker.metadata.image.topics[HTTP_KEYS.name]
        of_before = log_config_of(replace(made, config={"retention.ms": "1", "retention.bytes": "1"}), broker.config)
        for config in (held.log.config, of_before):
            assert (config.deletes, config.compacts) == (True, True)
            assert (config.retention_bytes, config.retention_ms) == (-1, 90_000)

    on_stage(tmp_path, scene, few)


def test_branches_live_with_their_root() -> None:
    assert TRANSACTIONS.partition_of("pay::7/writer", 50) == TRANSACTIONS.partition_of("pay", 50)
    assert len({TRANSACTIONS.partition_of(f"pay-{number}", 50) for number in range(100)}) > 25


@pytest.mark.parametrize("topic", [TRANSACTIONS, HTTP_KEYS], ids=lambda topic: topic.name)
def test_what_one_broker_has_decided_is_on_two_once_there_are_more(tmp_path: Path, topic: InternalTopic) -> None:
    """A topic that was made by one broker gets replicas later. Then a single one of them must not decide alone."""

    async def scene(stage: Stage) -> None:
        topics, metadata = stage.broker.coordination.internal_topics, stage.broker.metadata
        topics.bring_about(topic)
        await until(lambda: topic.name in metadata.image.topics)
        made = metadata.image.topics[topic.name]
        assert {len(state.replicas) for state in made.partitions.values()} == {1}
        assert made.config["min.insync.replicas"] == "2"
        assert made.config["unclean.leader.election.enable"] == "false", "what was decided is not forgotten"
        held = stage.broker.partitions.get(TopicPartition(topic.name, 0))
        assert held is not None and not held.replicas.is_short, "and meanwhile one is enough"

    on_stage(tmp_path, scene, FEW)


def test_what_a_smaller_cluster_required_in_sync_is_raised(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        metadata = stage.broker.metadata
        stage.broker.coordination.internal_topics.bring_about(TRANSACTIONS)
        await until(lambda: TRANSACTIONS.name in metadata.image.topics)
        topic = metadata.image.topics[TRANSACTIONS.name]
        lower = IncrementalAlterConfigsRequestAlterableConfig("min.insync.replicas", 0, "1")
        await stage.ask(
            IncrementalAlterConfigsRequest([IncrementalAlterConfigsRequestAlterConfigsResource(2, topic.name, [lower])])
        )
        assert metadata.image.topics[TRANSACTIONS.name].config["min.insync.replicas"] == "1"
        stage.broker.duties.stir()
        await until(lambda: metadata.image.topics[TRANSACTIONS.name].config["min.insync.replicas"] == "2")

    on_stage(tmp_path, scene, FEW)

"""The memory of the coordinators, in the hands of clients: they may look at it, and that is all."""

from pathlib import Path

import pytest

from service.wire.error_codes import ErrorCode
from service.wire.messages import (
    AlterConfigsRequest,
    AlterConfigsRequestAlterableConfig,
    AlterConfigsRequestAlterConfigsResource,
    CreatableTopic,
    CreatableTopicConfig,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
    DeleteTopicsRequest,
    DeleteTopicState,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestAlterableConfig,
    IncrementalAlterConfigsRequestAlterConfigsResource,
)
from tests.service.api.admin_stage import Stage, on_stage
from tests.service.api.txn_stage import TxnStage, Writer, on_txn_stage, values

TOPIC = 2
INTERNAL = ["__consumer_offsets", "__transaction_state"]


@pytest.mark.parametrize("name", INTERNAL)
def test_no_client_deletes_or_widens_the_memory_of_the_coordinators(tmp_path: Path, name: str) -> None:
    async def scene(stage: TxnStage) -> None:
        writer = Writer(stage, "pay")
        assert await writer.init() == ErrorCode.NONE
        assert await writer.write("orders", "a") == ErrorCode.NONE
        topic_id = stage.broker.metadata.image.topics[name].id
        for wanted in (DeleteTopicState(name), DeleteTopicState(None, topic_id)):
            deleted = await stage.ask(DeleteTopicsRequest(topics=[wanted, DeleteTopicState("gone")], timeout_ms=5_000))
            assert [answer.error_code for answer in deleted.responses] == [
                ErrorCode.INVALID_TOPIC_EXCEPTION,
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ]
            assert "memory" in (deleted.responses[0].error_message or "")
        more = [CreatePartitionsTopic(name, 50, None), CreatePartitionsTopic("orders", 5, None)]
        widened = await stage.ask(CreatePartitionsRequest(more, 5_000, False))
        assert {answer.name: answer.error_code for answer in widened.results} == {
            name: ErrorCode.INVALID_TOPIC_EXCEPTION,
            "orders": ErrorCode.NONE,
        }
        below = DeleteRecordsTopic(name, [DeleteRecordsPartition(0, -1)])
        emptied = await stage.ask(DeleteRecordsRequest([below], 5_000))
        assert emptied.topics[0].partitions[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        assert len(stage.broker.metadata.image.topics[name].partitions) == 2
        assert (await writer.end(commit=True)).error_code == ErrorCode.NONE
        assert await values(stage, "orders") == ["a"]

    on_txn_stage(tmp_path, scene)


@pytest.mark.parametrize("name", INTERNAL)
def test_the_memory_of_the_coordinators_stays_compacted(tmp_path: Path, name: str) -> None:
    async def scene(stage: TxnStage) -> None:
        change = IncrementalAlterConfigsRequestAlterableConfig("cleanup.policy", 0, "delete")
        resource = IncrementalAlterConfigsRequestAlterConfigsResource(TOPIC, name, [change])
        answer = await stage.ask(IncrementalAlterConfigsRequest([resource], False))
        assert answer.responses[0].error_code == ErrorCode.INVALID_CONFIG
        anew = [AlterConfigsRequestAlterableConfig("segment.bytes", "1048576")]
        older = await stage.ask(
            AlterConfigsRequest([AlterConfigsRequestAlterConfigsResource(TOPIC, name, anew)], False)
        )
        assert older.responses[0].error_code == ErrorCode.INVALID_CONFIG
        assert stage.broker.metadata.image.topics[name].config["cleanup.policy"] == "compact"

    on_txn_stage(tmp_path, scene)


@pytest.mark.parametrize("name", INTERNAL)
def test_no_client_makes_the_memory_of_the_coordinators(tmp_path: Path, name: str) -> None:
    """With settings of its own it would be none."""

    async def scene(stage: Stage) -> None:
        topic = CreatableTopic(name, 1, 1, configs=[CreatableTopicConfig("cleanup.policy", "delete")])
        answer = await stage.ask(CreateTopicsRequest([topic, CreatableTopic("orders", 1, 1)]))
        assert {result.name: result.error_code for result in answer.topics} == {
            name: ErrorCode.INVALID_TOPIC_EXCEPTION,
            "orders": ErrorCode.NONE,
        }
        assert name not in stage.broker.metadata.image.topics

    on_stage(tmp_path, scene)

"""Messages are as good as dataclasses."""

from __future__ import annotations

import copy
import dataclasses
import pickle

import pytest

from service.wire.messages import (
    ConsumerGroupDescribeResponse,
    DescribeGroupsResponse,
    MetadataRequest,
    MetadataRequestTopic,
    OffsetFetchResponsePartition,
)


def test_a_message_is_made_from_what_matters_and_holds_defaults_otherwise() -> None:
    partition = OffsetFetchResponsePartition(3, committed_offset=9)
    assert (partition.partition_index, partition.committed_offset, partition.committed_leader_epoch) == (3, 9, -1)
    assert repr(partition) == "OffsetFetchResponsePartition(partition_index=3, committed_offset=9)"


def test_two_messages_never_share_a_list_or_a_struct() -> None:
    assert MetadataRequest().topics is not MetadataRequest().topics
    assert DescribeGroupsResponse().groups is not DescribeGroupsResponse().groups
    assert ConsumerGroupDescribeResponse() == ConsumerGroupDescribeResponse()


def test_messages_compare_by_value_and_type() -> None:
    assert MetadataRequestTopic(name="a") == MetadataRequestTopic(name="a")
    assert MetadataRequestTopic(name="a") != MetadataRequestTopic(name="b")
    assert MetadataRequestTopic() != MetadataRequest()


def test_a_name_that_no_version_knows_is_an_error() -> None:
    with pytest.raises(TypeError):
        MetadataRequestTopic(nam="a")  # type: ignore[call-arg]
    with pytest.raises(AttributeError):
        MetadataRequestTopic().nam = "a"  # type: ignore[attr-defined]


def test_the_functions_of_dataclasses_work() -> None:
    request = MetadataRequest([MetadataRequestTopic(name="a")])
    assert dataclasses.replace(request, topics=None).topics is None
    assert request.__dataclass_fields__ is request.__dataclass_fields__, "built once: it costs milliseconds"
    assert dataclasses.asdict(request)["topics"] == [{"topic_id": bytes(16), "name": "a"}]
    assert copy.deepcopy(request) == request
    assert pickle.loads(pickle.dumps(request)) == request

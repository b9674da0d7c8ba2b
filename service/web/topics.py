"""Topics: create, show, add partitions, delete records, delete."""

from __future__ import annotations

import asyncio
from typing import Annotated

import msgspec
from aiohttp import web

from log.ids import TopicPartition, format_topic_id
from service.broker.internal_topics import INTERNAL_TOPICS
from service.client.transactions import producers_of, stable_offsets
from service.cluster.image import Topic
from service.web.answers import as_json, path_int, query_flag, query_int, read_json
from service.web.gateway import PAUSE_S, TIMEOUT_S, Gateway, not_yet
from service.web.problems import Problem, of_error
from service.web.routing import Route, flag, integer
from service.web.unpacking import body_of
from service.wire.messages import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
    DeleteTopicsRequest,
    DeleteTopicState,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
    ProducerState,
)

EARLIEST = -2
PATIENCE_MS = 30_000
BrokerId = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]


class TopicToCreate(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    partitions: int = -1
    replication_factor: int = -1
    configs: dict[str, str | None] = {}
    assignments: list[list[BrokerId]] | None = None
    """Broker ids by partition, the preferred leader first."""


class Topics(msgspec.Struct):
    topics: list[str]


class PartitionOut(msgspec.Struct):
    partition: int
    leader: int
    leader_epoch: int
    replicas: list[int]
    in_sync: list[int]


class TopicOut(msgspec.Struct):
    name: str
    id: str
    internal: bool
    partitions: list[PartitionOut]
    configs: dict[str, str]
    """The settings that were set for this topic."""


class OffsetsOut(msgspec.Struct):
    partition: int
    log_start_offset: int
    last_stable_offset: int
    high_watermark: int


class TopicOffsets(msgspec.Struct):
    topic: str
    partitions: list[OffsetsOut]


class Widen(msgspec.Struct, forbid_unknown_fields=True):
    count: int
    """How many partitions the topic will have."""
    assignments: list[list[BrokerId]] | None = None
    """Broker ids by new partition, the preferred leader first."""


class ProducerOut(msgspec.Struct):
    producer_id: int
    epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    transaction_start_offset: int | None


class ProducersOut(msgspec.Struct):
    producers: list[ProducerOut]


class Truncated(msgspec.Struct):
    log_start_offset: int


_new_topics = msgspec.json.Decoder(TopicToCreate)
_widenings = msgspec.json.Decoder(Widen)


def shown(topic: Topic) -> TopicOut:
    partitions = [
        PartitionOut(index, state.leader, state.leader_epoch, list(state.replicas), list(state.isr))
        for index, state in topic.partitions.items()
    ]
    is_internal = topic.name in INTERNAL_TOPICS
    return TopicOut(topic.name, format_topic_id(topic.id), is_internal, partitions, dict(topic.config))


def is_dry(request: web.Request) -> bool:
    return query_flag(request, "validate_only")


async def list_topics(gateway: Gateway, request: web.Request) -> web.Response:
    with_internal = query_flag(request, "internal")
    names = sorted(name for name in gateway.image.topics if with_internal or name not in INTERNAL_TOPICS)
    return as_json(Topics(names))


async def create(gateway: Gateway, request: web.Request) -> web.Response:
    new = read_json(await body_of(request), _new_topics)
    if not -1 <= new.partitions < 2**31 or not -1 <= new.replication_factor < 2**15:
        raise Problem("invalid-request", "there are no so many partitions or replicas")
    assignments = [CreatableReplicaAssignment(index, brokers) for index, brokers in enumerate(new.assignments or ())]
    topic = CreatableTopic(
        *(new.name, new.partitions if not assignments else -1, new.replication_factor if not assignments else -1),
        *(assignments, [CreatableTopicConfig(name, value) for name, value in new.configs.items()]),
    )
    answer = await gateway.ask_controller(CreateTopicsRequest([topic], PATIENCE_MS, is_dry(request)))
    (result,) = answer.topics
    if result.error_code:
        raise of_error(result.error_code, result.error_message, writing=True)
    if is_dry(request):
        return as_json(TopicOut(new.name, format_topic_id(result.topic_id), False, [], {}))
    made = await _heard_of(gateway, new.name, 1)
    return as_json(shown(made), status=201, headers={"Location": f"/v1/topics/{new.name}"})


async def _heard_of(gateway: Gateway, name: str, partitions: int) -> Topic:
    """The topic, once this broker knows so many partitions of it: another broker has made them."""
    deadline = asyncio.get_running_loop().time() + TIMEOUT_S
    while (topic := gateway.image.topics.get(name)) is None or len(topic.partitions) < partitions:
        if asyncio.get_running_loop().time() > deadline:
            raise Problem("not-now", "it is made, and this broker has not heard of it yet", outcome="applied")
        await asyncio.sleep(PAUSE_S)
    return topic


async def describe(gateway: Gateway, request: web.Request) -> web.Response:
    return as_json(shown(gateway.topic(request.match_info["topic"])))


async def delete(gateway: Gateway, request: web.Request) -> web.Response:
    name = gateway.topic(request.match_info["topic"]).name
    answer = await gateway.ask_controller(DeleteTopicsRequest([DeleteTopicState(name)], [name], PATIENCE_MS))
    (result,) = answer.responses
    if result.error_code:
        raise of_error(result.error_code, result.error_message, writing=True)
    return web.Response(status=204)


async def offsets(gateway: Gateway, request: web.Request) -> web.Response:
    """For each partition: where its log begins, how far it is decided, and how far it is committed."""
    topic = gateway.topic(request.match_info["topic"])
    partitions = [TopicPartition(topic.name, index) for index in topic.partitions]
    starts = await gateway.cluster.list_offsets(dict.fromkeys(partitions, EARLIEST))
    ends = await stable_offsets(gateway.cluster, partitions)
    found = [
        OffsetsOut(each.partition, starts[each].offset, ends[each].last_stable_offset, ends[each].high_watermark)
        for each in partitions
    ]
    return as_json(TopicOffsets(topic.name, found))


async def at_time(gateway: Gateway, partition: TopicPartition, timestamp: int, isolation: int) -> int:
    """The offset of the first record that is not older than this; -1 if there is none. EARLIEST and LATEST are accepted
    as times.
    """
    asked = ListOffsetsTopic(partition.topic, [ListOffsetsPartition(partition.partition, -1, timestamp)])
    request = ListOffsetsRequest(-1, isolation, [asked], PATIENCE_MS)
    answer = await gateway.ask(gateway.leader(partition), request)
    data = answer.topics[0].partitions[0]
    if data.error_code:
        raise of_error(not_yet(data.error_code), f"{partition.topic} partition {partition.partition}")
    return data.offset


async def widen(gateway: Gateway, request: web.Request) -> web.Response:
    topic = gateway.topic(request.match_info["topic"])
    wanted = read_json(await body_of(request), _widenings)
    if not 0 <= wanted.count < 2**31:
        raise Problem("invalid-request", "there are no so many partitions")
    given = wanted.assignments
    assignments = None if given is None else [CreatePartitionsAssignment(brokers) for brokers in given]
    asked = CreatePartitionsTopic(topic.name, wanted.count, assignments)
    answer = await gateway.ask_controller(CreatePartitionsRequest([asked], PATIENCE_MS, is_dry(request)))
    (result,) = answer.results
    if result.error_code:
        raise of_error(result.error_code, result.error_message, writing=True)
    wider = topic if is_dry(request) else await _heard_of(gateway, topic.name, wanted.count)
    return as_json(shown(wider))


async def truncate(gateway: Gateway, request: web.Request) -> web.Response:
    """Delete the records before an offset."""
    partition = partition_of(gateway, request)
    if "before" not in request.query:
        raise Problem("malformed", "before is missing: up to which offset, -1 for all")
    before = query_int(request, "before", -1, least=-1)
    asked = DeleteRecordsTopic(partition.topic, [DeleteRecordsPartition(partition.partition, before)])
    answer = await gateway.ask(gateway.leader(partition), DeleteRecordsRequest([asked], PATIENCE_MS))
    data = answer.topics[0].partitions[0]
    if data.error_code:
        raise of_error(data.error_code, f"{partition.topic} partition {partition.partition}", writing=True)
    return as_json(Truncated(data.low_watermark))


async def producers(gateway: Gateway, request: web.Request) -> web.Response:
    partition = partition_of(gateway, request)
    found = (await producers_of(gateway.cluster, [partition]))[partition]
    return as_json(ProducersOut([producer_out(each) for each in found]))


def producer_out(state: ProducerState) -> ProducerOut:
    return ProducerOut(
        *(state.producer_id, state.producer_epoch, state.last_sequence, state.last_timestamp, state.coordinator_epoch),
        state.current_txn_start_offset if state.current_txn_start_offset >= 0 else None,
    )


def partition_of(gateway: Gateway, request: web.Request) -> TopicPartition:
    partition = TopicPartition(request.match_info["topic"], path_int(request, "partition"))
    gateway.state(partition)
    return partition


_DRY = (flag("validate_only", "Only say whether it could be done."),)
_TOPIC = "/v1/topics/{topic}"
_PARTITION = _TOPIC + "/partitions/{partition}"
ROUTES = (
    Route("GET", "/v1/topics", list_topics, "The names of all topics.", "topics", answer=Topics,
          parameters=(flag("internal", "Those of the coordinators too."),)),
    Route("POST", "/v1/topics", create, "Make a topic.", "topics", body=TopicToCreate, answer=TopicOut, status=201,
          also=(200,), problems=(400, 409, 422, 503, 504), parameters=_DRY,
          headers={"Location": "The topic, if it was made."}),
    Route("GET", _TOPIC, describe, "A topic, its partitions and settings.", "topics", answer=TopicOut, problems=(404,)),
    Route("DELETE", _TOPIC, delete, "Delete a topic with all its records.", "topics", status=204,
          problems=(404, 422, 503, 504)),
    Route("GET", _TOPIC + "/offsets", offsets, "Where each partition begins, is decided, and is committed.", "topics",
          answer=TopicOffsets, problems=(404, 503)),
    Route("POST", _TOPIC + "/partitions", widen, "More partitions.", "topics", body=Widen, answer=TopicOut,
          problems=(400, 404, 409, 422, 503, 504), parameters=_DRY),
    Route("DELETE", _PARTITION + "/records", truncate, "Delete the records before an offset.", "topics",
          answer=Truncated, problems=(400, 404, 416, 422, 503, 504),
          parameters=(integer("before", "The first offset to keep; -1: none.", least=-1),)),
    Route("GET", _PARTITION + "/producers", producers, "The partition's producers, as its leader knows them.", "topics",
          answer=ProducersOut, problems=(400, 404, 503)),
)  # fmt: skip

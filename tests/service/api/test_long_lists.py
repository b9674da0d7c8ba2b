"""What a request that names very many things costs everybody else."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from sys import getrefcount
from typing import Any

import pytest

from service.api import broker_door
from service.api.broker_door import EACH_NAMED, FIXED_ANSWERS, LONG_ANSWER, BrokerDoor
from service.api.listener import Listener
from service.api.routes import OFFERED, ROUTES
from service.broker.session import Session
from service.client.connection import Client
from service.net.door import Held
from service.net.server import serve
from service.wire.base import Struct
from service.wire.codec import API_NAMES, RequestHeader, encode_response_in_steps
from service.wire.layout import layout_of
from service.wire.messages import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatResponse,
    ConsumerGroupHeartbeatResponseAssignment,
    ConsumerGroupHeartbeatResponseTopicPartitions,
    CreatableTopic,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteGroupsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeGroupsRequest,
    DescribeTransactionsRequest,
    DescribeUserScramCredentialsRequest,
    FindCoordinatorRequest,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
    MetadataRequest,
    MetadataRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    UserName,
)
from service.wire.messages.schemas import MESSAGES
from service.wire.messages.versions import ApiKey
from tests.bench.turns import Known, Maker
from tests.fuzz.hostile import NAME_OF_KEY
from tests.service.api.admin_stage import Stage, on_stage
from tests.turns import with_turns

MANY = 1_000


class Compared(str):
    """A name that counts how often names are compared."""

    times = 0

    def __eq__(self, other: object) -> bool:
        Compared.times += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


async def ask(stage: Stage, request: Struct) -> Any:
    """Without the codec, which would make plain names of these."""
    _, key, *_ = MESSAGES[type(request).__name__]
    assert key is not None
    header = RequestHeader(key, OFFERED[key][1], 1, "client")
    answer = ROUTES[key].bound(stage.broker)(Session("10.0.0.9", 1234), header, request)
    if isinstance(answer, Held):
        answer = await answer.first
    return await answer if isinstance(answer, Awaitable) else answer


NAMING: dict[str, Callable[[list[Any]], Struct]] = {
    "create": lambda names: CreateTopicsRequest([CreatableTopic(name, 0, 1) for name in names]),
    "delete": lambda names: DeleteTopicsRequest([DeleteTopicState(name) for name in names]),
    "widen": lambda names: CreatePartitionsRequest([CreatePartitionsTopic(name, 1, None) for name in names]),
}


@pytest.mark.parametrize("what", NAMING)
def test_each_of_many_topics_is_looked_up_and_not_compared_with_every_other(tmp_path: Path, what: str) -> None:
    async def scene(stage: Stage) -> None:
        Compared.times = 0
        answer = await ask(stage, NAMING[what]([Compared(f"topic.{index}") for index in range(MANY)]))
        assert len(getattr(answer, "topics" if what == "create" else "results" if what == "widen" else "responses"))
        assert Compared.times < 10 * MANY

    on_stage(tmp_path, scene)


NAMES = [f"name {index}" for index in range(MANY)]
LISTING: dict[str, Struct] = {
    "groups": DescribeGroupsRequest(NAMES),
    "consumer groups": ConsumerGroupDescribeRequest(NAMES),
    "groups to delete": DeleteGroupsRequest(NAMES),
    "offsets": OffsetFetchRequest(groups=[OffsetFetchRequestGroup(name, None, -1, None) for name in NAMES]),
    "coordinators": FindCoordinatorRequest(key_type=0, coordinator_keys=NAMES),
    "transactions": DescribeTransactionsRequest(NAMES),
    "users": DescribeUserScramCredentialsRequest([UserName(name) for name in NAMES]),
    "settings": DescribeConfigsRequest([DescribeConfigsResource(32, name, None) for name in NAMES]),
    "ends": ListOffsetsRequest(topics=[ListOffsetsTopic(name, [ListOffsetsPartition(0)]) for name in NAMES]),
    "ends of one topic": ListOffsetsRequest(
        topics=[ListOffsetsTopic("one", [ListOffsetsPartition(index) for index in range(MANY)])]
    ),
    "ends of nothing": ListOffsetsRequest(topics=[ListOffsetsTopic(name) for name in NAMES]),
}


@pytest.mark.parametrize("what", LISTING)
def test_who_asks_about_very_many_leaves_turns_to_others(tmp_path: Path, what: str) -> None:
    async def scene(stage: Stage) -> None:
        _, turns = await with_turns(ask(stage, LISTING[what]))
        assert turns >= MANY / 100 - 1

    on_stage(tmp_path, scene)


TWICE: dict[str, tuple[Struct, str]] = {
    "groups": (DescribeGroupsRequest(["one"] * 2), "groups"),
    "consumer groups": (ConsumerGroupDescribeRequest(["one"] * 2), "groups"),
    "offsets": (OffsetFetchRequest(groups=[OffsetFetchRequestGroup("one", None, -1, None)] * 2), "groups"),
    "settings": (DescribeConfigsRequest([DescribeConfigsResource(32, "one", None)] * 2), "results"),
}


@pytest.mark.parametrize("what", TWICE)
def test_what_is_named_many_times_is_told_once(tmp_path: Path, what: str) -> None:
    """Else a short request grows into an answer of any length."""

    async def scene(stage: Stage) -> None:
        request, field = TWICE[what]
        assert len(getattr(await ask(stage, request), field)) == 1

    on_stage(tmp_path, scene)


VERY_MANY = 5 * MANY
LONG_ARRAYS: list[tuple[ApiKey, tuple[str, ...]]] = [
    (ApiKey.PRODUCE, ("topic_data", "partition_data")),
    (ApiKey.FETCH, ("topics",)),
    (ApiKey.LIST_OFFSETS, ("topics",)),
    (ApiKey.METADATA, ("topics",)),
    (ApiKey.OFFSET_COMMIT, ("topics",)),
    (ApiKey.OFFSET_FETCH, ("groups", "topics")),
    (ApiKey.SYNC_GROUP, ("assignments",)),
    (ApiKey.LIST_GROUPS, ("states_filter",)),
    (ApiKey.LIST_GROUPS, ("types_filter",)),
    (ApiKey.CREATE_TOPICS, ("topics",)),
    (ApiKey.DELETE_TOPICS, ("topics",)),
    (ApiKey.DELETE_RECORDS, ("topics", "partitions")),
    (ApiKey.OFFSET_FOR_LEADER_EPOCH, ("topics", "partitions")),
    (ApiKey.ADD_PARTITIONS_TO_TXN, ("transactions",)),
    (ApiKey.ADD_PARTITIONS_TO_TXN, ("transactions", "topics", "partitions")),
    (ApiKey.WRITE_TXN_MARKERS, ("markers", "topics", "partition_indexes")),
    (ApiKey.TXN_OFFSET_COMMIT, ("topics",)),
    (ApiKey.DESCRIBE_CONFIGS, ("resources",)),
    (ApiKey.DESCRIBE_GROUPS, ("groups",)),
    (ApiKey.ALTER_CONFIGS, ("resources",)),
    (ApiKey.ALTER_REPLICA_LOG_DIRS, ("dirs", "topics", "partitions")),
    (ApiKey.DESCRIBE_LOG_DIRS, ("topics",)),
    (ApiKey.CREATE_PARTITIONS, ("topics",)),
    (ApiKey.ELECT_LEADERS, ("topic_partitions", "partitions")),
    (ApiKey.INCREMENTAL_ALTER_CONFIGS, ("resources",)),
    (ApiKey.ALTER_PARTITION_REASSIGNMENTS, ("topics", "partitions")),
    (ApiKey.LIST_PARTITION_REASSIGNMENTS, ("topics",)),
    (ApiKey.DESCRIBE_PRODUCERS, ("topics",)),
    (ApiKey.DESCRIBE_TOPIC_PARTITIONS, ("topics",)),
    (ApiKey.CONDITIONAL_PRODUCE, ("batches",)),
]


@pytest.mark.parametrize(
    ("key", "path"), LONG_ARRAYS, ids=[f"{key.name} {'/'.join(path)}" for key, path in LONG_ARRAYS]
)
def test_a_long_list_of_any_request_is_handled_in_turns(tmp_path: Path, key: ApiKey, path: tuple[str, ...]) -> None:
    """`make bench-turns` tells how long the turns are. The things do not exist."""
    known = Known({"wide": bytes(16)}, (5, 0))
    maker = Maker(NAME_OF_KEY[key], ROUTES[key].highest, known, path, spread=False, exists=False)
    request = maker.of(VERY_MANY)

    async def scene(stage: Stage) -> None:
        _, turns = await with_turns(ask(stage, request))
        assert turns >= VERY_MANY / 500 - 1

    on_stage(tmp_path, scene)


def test_a_long_request_and_its_answer_are_freed_in_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are the last to hold what they consist of."""
    freed: list[tuple[str, int]] = []

    def free(done_with: list[Any]) -> Iterator[None]:
        yield
        [thing] = done_with
        freed.append((type(thing).__name__, getrefcount(thing)))

    monkeypatch.setattr(broker_door, "freed", free)

    async def scene(stage: Stage) -> None:
        door = BrokerDoor(stage.broker, Listener("PLAINTEXT"))
        server = await serve(asyncio.get_running_loop(), "127.0.0.1", 0, door)
        async with Client("127.0.0.1", server.port) as client:
            await client.request(
                MetadataRequest([MetadataRequestTopic(name=f"topic {n}") for n in range(VERY_MANY)]), 12
            )
            for _ in range(10):
                await asyncio.sleep(0)
        await server.close()

    on_stage(tmp_path, scene)
    assert sorted(freed) == [("MetadataRequest", 3), ("MetadataResponse", 3)]


def lists_in(struct: str, version: int) -> list[str]:
    """The lists of a message, and of what it holds."""
    layout = layout_of(struct, version)
    found = []
    for field in (*layout.plain, *layout.tagged):
        if field.is_array:
            found.append(field.name)
        if field.is_struct:
            found += lists_in(field.type, version)
    return found


def test_what_the_door_holds_for_short_is_short() -> None:
    """Such answers are encoded in one turn of the loop, without a look at them."""
    for key in FIXED_ANSWERS:
        for version in range(OFFERED[key][0], OFFERED[key][1] + 1):
            assert lists_in(API_NAMES[key] + "Response", version) == []
    for key in EACH_NAMED:
        for version in range(OFFERED[key][0], OFFERED[key][1] + 1):
            fields = {field.name: field for field in layout_of(API_NAMES[key] + "Request", version).plain}
            assert not any(field.is_array and field.nullable for field in fields.values()), "null may stand for all"


@pytest.mark.parametrize("count", [LONG_ANSWER // 8, LONG_ANSWER * 8])
def test_a_long_answer_is_encoded_in_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    in_steps: list[int] = []

    def counted(key: int, version: int, answer: Any) -> Any:
        in_steps.append(key)
        return encode_response_in_steps(key, version, answer)

    monkeypatch.setattr(broker_door, "encode_response_in_steps", counted)
    wanted = [ListOffsetsPartition(number, timestamp=-1) for number in range(count)]

    async def scene(stage: Stage) -> None:
        door = BrokerDoor(stage.broker, Listener("PLAINTEXT"))
        server = await serve(asyncio.get_running_loop(), "127.0.0.1", 0, door)
        async with Client("127.0.0.1", server.port) as client:
            answer = await client.request(ListOffsetsRequest(-1, topics=[ListOffsetsTopic("nothing", wanted)]), 7)
            assert [each.partition_index for each in answer.topics[0].partitions] == list(range(count))
        await server.close()

    on_stage(tmp_path, scene)
    assert in_steps.count(ApiKey.LIST_OFFSETS) == (count > LONG_ANSWER)


@pytest.mark.parametrize(("topics", "partitions"), [(LONG_ANSWER, 0), (LONG_ANSWER + 1, 0), (1, LONG_ANSWER)])
def test_a_heartbeat_that_had_to_wait_may_have_a_long_answer(topics: int, partitions: int) -> None:
    each = ConsumerGroupHeartbeatResponseTopicPartitions(bytes(16), list(range(partitions)))
    given = ConsumerGroupHeartbeatResponseAssignment([each] * topics)
    assert not broker_door._is_long(ConsumerGroupHeartbeatResponse())
    is_long = topics * (1 + partitions) > LONG_ANSWER
    assert broker_door._is_long(ConsumerGroupHeartbeatResponse(assignment=given)) == is_long

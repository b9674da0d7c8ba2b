"""Members of groups over HTTP."""

from __future__ import annotations

import asyncio
import base64
import itertools
import math
import os
import random
import threading
import time
import zlib
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock, MagicMock, Mock
from uuid import UUID

import msgspec
import pytest
from aiohttp import web

from log.batch import build_plain_batch
from log.ids import TopicId, TopicPartition
from service.cluster.image import NO_LEADER
from service.turns import NAMED_A_TURN
from service.web import fetching, groups, members, transactions
from service.web.fetching import Lens, Piece
from service.web.gateway import Gateway
from service.web.holding import HOLDER, Holder, Holding
from service.web.instances import Instance, Instances
from service.web.members import SOMEWHERE, HttpMember, Join
from service.web.problems import Problem
from service.wire.error_codes import ErrorCode
from service.wire.messages import (
    OffsetCommitRequest,
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)
from tests.batches import data
from tests.service.web.kit import PATIENCE_S, Http, ask_and_go, asking, turns_of
from tests.sim.gathering import VirtualLoop

WHERE = TopicPartition("t", 0)


def joined(http: Http, group: str, *topics: str, **more: Any) -> str:
    answer = http.post(f"/v1/groups/{group}/members", {"topics": list(topics), **more})
    assert answer.status == 201, answer
    location: str = answer.headers["Location"]
    return location


def until(http: Http, member: str, partitions: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while len(http.get(f"{member}/records?wait_ms=50&max_records=1").json["assignment"]) != partitions:
        assert time.monotonic() < deadline, "the group does not come to rest"


def read(http: Http, member: str, count: int) -> tuple[list[int], str]:
    found: list[int] = []
    deadline = time.monotonic() + PATIENCE_S
    while True:
        answer = http.get(f"{member}/records?wait_ms=500")
        assert answer.status == 200, answer
        found += [each["value"] for each in answer.json["records"]]
        if len(found) >= count:
            return sorted(found), answer.json["commit_token"]
        assert time.monotonic() < deadline, found


def test_a_member_reads_commits_and_another_goes_on_behind_it(http: Http, topic: str) -> None:
    assert http.post("/v1/topics", {"name": topic, "partitions": 3}).status == 201
    records = [{"partition": number % 3, "value": number} for number in range(30)]
    assert http.post(f"/v1/topics/{topic}/records", {"records": records}).status == 200
    first = joined(http, topic, topic)
    found, token = read(http, first, 30)
    assert found == list(range(30))
    longest = base64.urlsafe_b64encode(b"[1,[%b[]]]" % (b"[]," * 3_000_000)).decode()
    assert http.post(f"{first}/offsets", {"commit_token": longest}).status == 413
    assert http.post(f"{first}/offsets", {"commit_token": token}).status == 204
    assert http.get(f"/v1/groups/{topic}/lag").json["total"] == 0
    assert http.get(f"/v1/groups/{topic}").json["state"] == "Stable"
    assert http.delete(first).status == 204
    gone = http.get(f"{first}/records")
    assert (gone.status, gone.json["type"]) == (410, "/problems/member-expired")
    assert http.post(f"/v1/topics/{topic}/records", {"records": [{"partition": 1, "value": 30}]}).status == 200
    second = joined(http, topic, topic)
    assert read(http, second, 1)[0] == [30]
    assert http.delete(second).status == 204


def test_what_members_keep_of_names_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A body of 15 MB, packed in 15 KB, was kept for an hour as 275 MB."""

    async def scene() -> None:
        gateway: Any = Coordinator([])
        gateway.env = Mock(unique=lambda: os.urandom(16))
        monkeypatch.setattr(members.Members, "_live", Mock())
        here = members.Members(gateway)
        topics = ["t", *(f"{each:04}" for each in range(60_000))]
        of_group = [await here.add("g", Join(topics)) for _ in range(5)]
        with pytest.raises(Problem, match="too many topics"):
            await here.add("g", Join(topics))
        await here.leave(of_group.pop())
        of_group.append(await here.add("g", Join(topics)))
        for each in of_group:
            await here.leave(each)
        assert here._kept_bytes == 0

    asyncio.run(scene())


def test_a_topic_that_is_named_many_times_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was looked up as often as it was named."""
    request = cast(web.Request, SimpleNamespace(match_info={"group": "g"}))
    looked_up = Mock(return_value=Mock(partitions={0: None}))
    gateway: Any = Mock(topic=looked_up, members=Mock(add=AsyncMock(side_effect=[LookupError])))
    body = AsyncMock(return_value=msgspec.json.encode({"topics": ["t"] * 3}))
    for module in members, transactions:
        monkeypatch.setattr(module, "body_of", body)
    monkeypatch.setattr(members, "home", AsyncMock(return_value=None))
    monkeypatch.setattr(transactions, "_hanging", hanging := AsyncMock(return_value=[]))
    monkeypatch.setattr(groups, "_offsets", AsyncMock(return_value={}))

    async def play() -> None:
        with pytest.raises(LookupError):
            await members.join(gateway, request)
        await transactions.find_hanging(gateway, request)
        cluster = Mock(list_offsets=AsyncMock(return_value={WHERE: Mock(offset=0)}))
        await groups.new_offsets(gateway, cluster, "g", groups.Reset("earliest", topics=["t"] * 3))

    asyncio.run(play())
    ((_, wanted),) = (each.args for each in gateway.members.add.call_args_list)
    assert wanted.topics == ["t"]
    hanging.assert_awaited_once_with(gateway, [WHERE])
    assert looked_up.call_count == 2


def test_two_members_share_a_topic_and_a_commit_of_the_former_generation_is_refused(http: Http, topic: str) -> None:
    assert http.post("/v1/topics", {"name": topic, "partitions": 2}).status == 201
    first = joined(http, topic, topic)
    until(http, first, 2)
    stale = http.get(f"{first}/records").json["commit_token"]
    second = joined(http, topic, topic)
    until(http, first, 1)
    until(http, second, 1)
    refused = http.post(f"{first}/offsets", {"commit_token": stale})
    assert (refused.status, refused.json["type"]) == (409, "/problems/stale-member"), refused
    records = [{"partition": number, "value": number} for number in range(2)]
    assert http.post(f"/v1/topics/{topic}/records", {"records": records}).status == 200
    assert read(http, first, 1)[0] + read(http, second, 1)[0] in ([0, 1], [1, 0])
    for member in (first, second):
        assert http.delete(member).status == 204


def test_a_commit_that_names_a_partition_that_is_not_there_commits_nothing(http: Http, topic: str) -> None:
    """The offsets of the others were committed, and the outcome was said to be none."""
    assert http.post("/v1/topics", {"name": topic, "partitions": 1}).status == 201
    member = joined(http, topic, topic)
    until(http, member, 1)
    offsets = [{"topic": topic, "partition": partition, "offset": 0} for partition in (0, 1)]
    refused = http.post(f"{member}/offsets", {"offsets": offsets})
    assert (refused.status, refused.json["outcome"]) == (404, "none")
    assert http.get(f"/v1/groups/{topic}/offsets").json["offsets"] == []
    assert http.delete(member).status == 204


def test_a_group_that_is_not_there_is_told_alike(http: Http, topic: str) -> None:
    """Shown it was not found, without the wire's error, by a name of its own; deleted it was an unknown group."""
    for answer in http.get(f"/v1/groups/{topic}"), http.delete(f"/v1/groups/{topic}"):
        told = answer.status, answer.json["type"], answer.json["kafka_error"], answer.json["detail"]
        assert told == (404, "/problems/unknown-group", "GROUP_ID_NOT_FOUND", f"group {topic!r}")


def test_a_group_with_members_is_not_moved(http: Http, topic: str) -> None:
    """A member was said to have expired, though the group's offsets were to be moved by somebody who is none."""
    assert http.post("/v1/topics", {"name": topic, "partitions": 1}).status == 201
    member = joined(http, topic, topic)
    until(http, member, 1)
    offsets = [{"topic": topic, "partition": 0, "offset": 0}]
    refused = http.put(f"/v1/groups/{topic}/offsets", {"offsets": offsets})
    assert (refused.status, refused.json["type"], refused.json["outcome"]) == (409, "/problems/group-active", "none")
    assert http.delete(member).status == 204
    assert http.put(f"/v1/groups/{topic}/offsets", {"offsets": offsets}).status == 200


def test_a_group_that_is_ahead_of_the_log_has_no_lag(http: Http, topic: str) -> None:
    """It had fewer than no undecided records."""
    assert http.post("/v1/topics", {"name": topic}).status == 201
    offsets = [{"topic": topic, "partition": 0, "offset": 2}]
    assert http.put(f"/v1/groups/{topic}/offsets", {"offsets": offsets}).status == 200
    (found,) = http.get(f"/v1/groups/{topic}/lag").json["partitions"]
    assert (found["lag"], found["undecided"]) == (0, 0)


def test_a_member_whose_client_is_silent_leaves(http: Http, topic: str) -> None:
    assert http.post("/v1/topics", {"name": topic}).status == 201
    member, began_s = joined(http, topic, topic, session_timeout_ms=1000), time.monotonic()
    while http.get(f"/v1/groups/{topic}").json.get("members"):
        assert time.monotonic() < began_s + PATIENCE_S
        time.sleep(0.05)
    assert http.get(member).status == 410


def test_a_silent_member_leaves_when_its_time_is_over_and_not_with_its_next_heartbeat() -> None:
    async def here(*_: object, **__: object) -> int:
        return 1

    async def scene() -> float:
        mine = members.Members(cast(Any, SimpleNamespace(coordinator=here, node_id=1)))
        mine.depart = mine.beat = here  # type: ignore[method-assign, assignment]
        began_s = asyncio.get_running_loop().time()
        member = HttpMember("g", "m", Join(["t"], session_timeout_ms=200), began_s, beaten_s=began_s, interval_s=5.0)
        mine._members["g", "m"] = member
        living = asyncio.create_task(mine._live(member))
        await asyncio.sleep(0.1)
        mine.find("g", "m")
        await living
        assert member.is_gone
        return asyncio.get_running_loop().time() - began_s

    assert 0.29 < asyncio.run(scene()) < 3.0


@pytest.mark.parametrize("asks", [True, False])
def test_a_client_that_asks_while_its_coordinator_is_looked_for_is_not_silent(asks: bool) -> None:
    """It was thrown out for the silence before it."""

    async def scene() -> float:
        loop = asyncio.get_running_loop()
        lookups = 0

        async def here(*_: object, **__: object) -> int:
            nonlocal lookups
            lookups += 1
            await asyncio.sleep(2.0 if lookups == 1 else 0.0)
            return 1

        mine = members.Members(cast(Any, SimpleNamespace(coordinator=here, node_id=1)))
        mine.depart = mine.beat = here  # type: ignore[method-assign, assignment]
        began_s = loop.time()
        member = HttpMember("g", "m", Join(["t"], session_timeout_ms=2000), began_s, beaten_s=began_s, interval_s=5.0)
        mine._members["g", "m"] = member
        living = asyncio.create_task(mine._live(member))
        await asyncio.sleep(3.0)
        if asks:
            mine.find("g", "m")
        await living
        return loop.time() - began_s

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        assert runner.run(scene()) == pytest.approx(5.0 if asks else 4.0)


def test_the_place_of_a_member_is_told_whatever_its_group_is_called(http: Http, topic: str) -> None:
    assert http.post("/v1/topics", {"name": topic}).status == 201
    place = joined(http, "line%0D%0Abreak%2F%1A", topic)
    assert place.startswith("/v1/groups/line%0D%0Abreak%2F%1A/members/")
    assert http.get(f"{place}/records?wait_ms=50").status == 200


def test_a_client_that_is_gone_has_read_nothing(http: Http, topic: str) -> None:
    """The answer went to nobody, and the next commit went past what it held."""
    assert http.post("/v1/topics", {"name": topic, "partitions": 1}).status == 201
    member = joined(http, topic, topic)
    until(http, member, 1)
    ask_and_go(http.url, f"{member}/records?wait_ms=10000")
    assert http.post(f"/v1/topics/{topic}/records", {"records": [{"value": 1}]}).status == 200
    time.sleep(0.7)  # the broker would have answered the one who is gone
    assert read(http, member, 1)[0] == [1]
    assert http.delete(member).status == 204


def test_an_answer_that_did_not_come_is_given_again(http: Http, topic: str) -> None:
    assert http.post("/v1/topics", {"name": topic, "partitions": 2}).status == 201
    member = joined(http, topic, topic)
    until(http, member, 2)
    assert http.post(f"/v1/topics/{topic}/records", {"records": [{"partition": 0, "value": 0}]}).status == 200
    _, token = read(http, member, 1)
    records = [{"partition": number % 2, "value": number} for number in range(2, 8)]
    assert http.post(f"/v1/topics/{topic}/records", {"records": records}).status == 200
    for _ in range(3):
        answer = http.get(f"{member}/records?wait_ms=500&after={token}")
        assert sorted(each["value"] for each in answer.json["records"]) == list(range(2, 8))
    assert http.post(f"{member}/offsets", {"commit_token": answer.json["commit_token"]}).status == 204
    assert http.get(f"/v1/groups/{topic}/lag").json["total"] == 0
    assert http.get(f"{member}/records?after=nonsense").status == 400
    assert http.delete(member).status == 204


def test_what_an_earlier_request_of_a_member_waits_for_is_given_to_the_last(http: Http, topic: str) -> None:
    """A network that was cut hid that its client had given it up: it took a record that nobody got, and the next commit
    went past it (make sim-web SEED=5693750032 at e84442b).
    """
    assert http.post("/v1/topics", {"name": topic, "partitions": 1}).status == 201
    member = joined(http, topic, topic)
    until(http, member, 1)
    _, token = read(http, member, 0)
    answers: dict[str, Any] = {}

    def wait(name: str) -> threading.Thread:
        def ask() -> None:
            answers[name] = Http(http.url).get(f"{member}/records?wait_ms=10000&after={token}")

        asking = threading.Thread(target=ask)
        asking.start()
        time.sleep(0.3)
        return asking

    asking = [wait("given up"), wait("last")]
    asking[0].join(PATIENCE_S)
    assert (answers["given up"].status, answers["given up"].json["retriable"]) == (503, True)
    assert http.post(f"/v1/topics/{topic}/records", {"records": [{"value": 1}]}).status == 200
    asking[1].join(PATIENCE_S)
    assert [each["value"] for each in answers["last"].json["records"]] == [1]
    assert http.delete(member).status == 204


def test_partitions_that_no_answer_has_named_begin_again_where_they_began() -> None:
    known, new = TopicPartition("orders", 0), TopicPartition("orders", 1)
    positions, begun = {known: 9, new: 8}, {known: 1, new: 5}
    member = HttpMember("group", "member", Join(["orders"]), 0.0, positions=positions, begun=begun)
    member.go_back(1, {"orders": {0: 7, 2: 3}})
    assert member.positions == {known: 7, new: 5}
    member.go_back(1, {"orders": {0: 8, 1: 8}})
    assert member.positions == {known: 7, new: 5}, "never forward: then records could be skipped"


def test_a_client_goes_back_no_further_than_to_where_the_group_was_when_the_partition_came_back() -> None:
    """Its last answer was from before another member had the partition, and what that one had committed came again."""
    member = HttpMember("group", "member", Join(["t"]), 0.0, positions={WHERE: 6}, begun={WHERE: 6})
    member.go_back(1, {WHERE.topic: {WHERE.partition: 3}})
    assert member.positions == {WHERE: 6}
    member.positions[WHERE] = 9
    member.go_back(1, {WHERE.topic: {WHERE.partition: 3}})
    assert member.positions == {WHERE: 6}, "the answer after that one did not come"


def test_an_answer_that_did_not_come_is_given_again_though_the_log_ended_before_the_member_began(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def found(*_: Any, **__: Any) -> list[Piece]:
        return [Piece(WHERE, ErrorCode.OFFSET_OUT_OF_RANGE)]

    async def end(*_: Any) -> int:
        return 2

    monkeypatch.setattr(fetching, "fetch", found)
    monkeypatch.setattr(members, "at_time", end)
    gateway: Any = Mock(leader=lambda partition: 1, members=Mock(is_due=lambda member: False, idle=AsyncMock()))
    member = HttpMember("group", "member", Join(["t"]), 0.0, positions={WHERE: 8}, begun={WHERE: 8}, beaten_s=math.inf)
    asyncio.run(members._poll(gateway, asking(), member, None, Lens(), 500, 1000, 0.0))
    assert member.positions == {WHERE: 2}
    member.positions[WHERE] = 5
    member.go_back(1, {WHERE.topic: {WHERE.partition: 2}})
    assert member.positions == {WHERE: 2}


@pytest.mark.parametrize("silent", ["fetch", "beginning"])
def test_a_poll_waits_for_no_silent_leader_beyond_its_time(monkeypatch: pytest.MonkeyPatch, silent: str) -> None:
    """It was refused half a minute later, although another leader had records for it all the time."""
    first, second = (TopicPartition("t", index) for index in range(2))

    async def for_ever(*_: Any) -> None:
        await asyncio.Event().wait()

    async def found(_: Gateway, node: int, *__: Any, **___: Any) -> list[Piece]:
        if node:
            return [Piece(second, 0, data=bytes(build_plain_batch([(None, b"v")], 0)))]
        if silent == "fetch":
            await for_ever()
        return [Piece(first, ErrorCode.OFFSET_OUT_OF_RANGE)]

    monkeypatch.setattr(fetching, "fetch", found)
    monkeypatch.setattr(fetching, "LEADER_S", 0.01)
    monkeypatch.setattr(members, "FIRST_WITHIN_S", 0.01)
    monkeypatch.setattr(members, "at_time", for_ever)
    gateway: Any = Mock(image=Mock(partition=lambda each: Mock(leader=each.partition)), members=Mock())
    gateway.members.is_due = lambda _: False
    positions = {first: 0, second: 0}
    member = HttpMember("group", "member", Join(["t"]), 0.0, positions=dict(positions), begun=positions)
    poll = members._poll(gateway, asking(), member, None, Lens(), 500, 1000, 0.0)
    assert [each.offset for each in asyncio.run(asyncio.wait_for(poll, PATIENCE_S))] == [0]
    assert member.positions == {first: 0, second: 1}


def test_places_that_are_in_no_log_any_more_are_looked_up_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """They were looked up one after the other, and a silent leader used up the time of all behind it."""
    first, second = (TopicPartition("t", index) for index in range(2))

    async def found(*_: Any, **__: Any) -> list[Piece]:
        return [Piece(each, ErrorCode.OFFSET_OUT_OF_RANGE) for each in (first, second)]

    async def at_time(_: Any, partition: TopicPartition, *__: Any) -> int:
        if partition == first:
            await asyncio.Event().wait()
        return 7

    monkeypatch.setattr(fetching, "fetch", found)
    monkeypatch.setattr(members, "FIRST_WITHIN_S", 0.01)
    monkeypatch.setattr(members, "at_time", at_time)
    gateway: Any = Mock(image=Mock(partition=lambda _: Mock(leader=1)))
    member = HttpMember("group", "member", Join(["t"]), 0.0, positions={first: 3, second: 3})
    assert asyncio.run(members._read(gateway, Holder(Holding(1)), member, Lens(), 9, 9, 0, 0.0)) == ([], {second: 7})


@pytest.mark.parametrize("error", [0, ErrorCode.UNKNOWN_SERVER_ERROR])
def test_what_can_not_be_read_in_one_partition_keeps_no_member_from_the_others(
    monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    """It came first each time, and may fill the answer of its leader: the others were never read. It is told when they
    have nothing, and between two answers with their records.
    """
    bad, good = (TopicPartition("t", index) for index in range(2))
    end = 2

    async def found(_: Gateway, __: int, positions: dict[TopicPartition, int], *___: Any, **____: Any) -> list[Piece]:
        if bad in positions:
            return [Piece(bad, error, data=b"" if error else bytes(1000))]
        offset = positions[good]
        record = offset.to_bytes(8, "big") + bytes(build_plain_batch([(None, b"1")], 0))[8:]
        return [Piece(good, 0, data=record if offset < end else b"")]

    monkeypatch.setattr(fetching, "fetch", found)
    gateway: Any = Mock(image=Mock(partition=lambda _: Mock(leader=1)), members=Mock())
    gateway.members.is_due = lambda _: False
    positions = {bad: 0, good: 0}
    member = HttpMember("group", "member", Join(["t"]), 0.0, positions=dict(positions), begun=positions)

    async def play() -> None:
        told = list[int | str]()
        for _ in range(6):
            try:
                records = await members._poll(gateway, asking(), member, None, Lens(), 500, 1000, 0.0)
                told += [each.offset for each in records]
            except Problem as problem:
                told.append(problem.slug)
        assert told == [0, "server-error", 1, "server-error", "server-error", "server-error"]
        assert member.positions == {bad: 0, good: end}

    asyncio.run(play())


def test_a_topic_that_was_made_while_the_heartbeat_was_under_way_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The group tells an assignment once, so a partition that was dropped was read by nobody."""
    topic_id = UUID(int=7)
    gateway: Any = Mock(image=Mock(topic_names={}, topics={}), stamp_of=lambda group: None)

    async def answered(*_: Any) -> tuple[Any, bool]:
        gateway.image = Mock(topic_names={topic_id: "new"}, topics={})
        assigned = Mock(topic_partitions=[Mock(topic_id=topic_id, partitions=[0, 1])])
        return Mock(error_code=0, member_epoch=1, heartbeat_interval_ms=3000, assignment=assigned), False

    async def starts(_: HttpMember, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, 0)

    gateway.ask_to_change = answered
    member = HttpMember("group", "member", Join(["new"]), 0.0)
    of_broker = members.Members(gateway)
    monkeypatch.setattr(of_broker, "starts", starts)
    asyncio.run(of_broker.beat(member))
    assert member.positions == {TopicPartition("new", 0): 0, TopicPartition("new", 1): 0}


class Coordinator:
    """A gateway that answers heartbeats with these assignments of the topic `t`, and sees every commit."""

    def __init__(self, *assigned: list[int] | ErrorCode) -> None:
        self.assigned = list(assigned)
        self.committed: list[dict[int, int]] = []
        self.refusals: list[ErrorCode] = []
        self.image = Mock(topic_names={UUID(int=7): "t"}, topics={"t": Mock(id=UUID(int=7), partitions={0: None})})
        self.topic = self.image.topics.get
        self.stamp_of: Any = {}.get
        self.env = Mock(unique=lambda: bytes(16))

    async def ask_to_change(self, where: Any, group: str, request: Any) -> tuple[Any, bool]:
        if not isinstance(request, OffsetCommitRequest):
            return await self.ask_coordinator(where, group, request), False
        (topic,) = request.topics
        self.committed.append({each.partition_index: each.committed_offset for each in topic.partitions})
        code = self.refusals.pop(0) if self.refusals else ErrorCode.NONE
        return Mock(topics=[Mock(partitions=[Mock(error_code=code)])]), False

    async def ask_coordinator(self, _: Any, __: str, request: Any) -> Any:
        given = self.assigned.pop(0) if self.assigned else None
        if isinstance(given, ErrorCode):
            return Mock(error_code=given)
        assigned = None if given is None else Mock(topic_partitions=[Mock(topic_id=UUID(int=7), partitions=given)])
        return Mock(error_code=0, member_epoch=1, heartbeat_interval_ms=3000, assignment=assigned)


def instance_of(coordinator: Coordinator, positions: dict[int, int]) -> tuple[Instances, Instance]:
    """An instance that has shown its client everything before these positions."""
    instances = Instances(cast(Any, coordinator))
    instance = Instance("group", "i1", Join(["t"]), 0.0, pattern="")
    instances._members["group", "i1"] = instance
    asyncio.run(instances.beat(instance))
    instance.move({TopicPartition("t", index): offset for index, offset in positions.items()})
    return instances, instance


@pytest.mark.parametrize("is_seen", [False, True], ids=["shown", "seen"])
@pytest.mark.parametrize("lost", [[[0], [0]], [ErrorCode.FENCED_MEMBER_EPOCH]], ids=["taken", "fenced"])
def test_an_instance_does_not_commit_what_it_showed_before_another_member_had_the_partition(
    lost: list[list[int] | ErrorCode], is_seen: bool
) -> None:
    """It committed the group back to where it had been itself, and showed again what the other had committed."""
    coordinator = Coordinator([0, 1], [0, 1], *lost, [0, 1], [0, 1])
    instances, instance = instance_of(coordinator, {0: 3, 1: 3})

    async def go_on() -> None:
        if is_seen:
            instances.find("group", "i1")
        await instances.beat(instance)
        await instances.beat(instance)
        before = len(coordinator.committed)
        instances.find("group", "i1")
        await instances._commit_itself(instance)
        assert all(1 not in each for each in coordinator.committed[before:])

    asyncio.run(go_on())
    assert set(instance.positions) == {TopicPartition("t", 0), TopicPartition("t", 1)}
    assert not coordinator.assigned


def test_an_instance_commits_nothing_by_request_that_the_group_takes_away_meanwhile() -> None:
    """The group had moved on, so the same offsets were committed once more, in the place of the new owner."""
    coordinator = Coordinator([0, 1], [0, 1], [0], [0])
    instances, instance = instance_of(coordinator, {0: 3, 1: 3})
    coordinator.refusals = [ErrorCode.STALE_MEMBER_EPOCH]
    with pytest.raises(Problem, match="group") as refused:
        asyncio.run(instances.commit_all(instance))
    assert refused.value.error == ErrorCode.STALE_MEMBER_EPOCH
    assert coordinator.committed == [{0: 3, 1: 3}]
    asyncio.run(instances.commit_all(instance))
    assert coordinator.committed[1:] == [{0: 3}]


@pytest.mark.parametrize("moves", [True, False], ids=["the coordinator moves", "nobody answers"])
def test_an_assignment_whose_answer_was_lost_is_told_again(moves: bool) -> None:
    """The group tells it once, and again to a heartbeat that says all. It was read by nobody."""
    coordinator = Coordinator([0], [0])
    instances, instance = instance_of(coordinator, {0: 3})
    tell, said = coordinator.ask_to_change, []

    async def asked(where: Any, group: str, request: Any) -> tuple[Any, bool]:
        said.append(request.subscribed_topic_names)
        if len(said) == 1 and not moves:
            raise Problem("outcome-unknown", outcome="unknown")
        coordinator.assigned = [] if said[-1] is None else [[0, 1]]
        return (await tell(where, group, request))[0], len(said) == 1

    async def play() -> None:
        if not moves:
            with pytest.raises(Problem):
                await instances.beat(instance)
        await instances.beat(instance)

    cast(Any, coordinator).ask_to_change = asked
    asyncio.run(play())
    assert set(instance.positions) == {TopicPartition("t", 0), TopicPartition("t", 1)}
    assert said[:2] == [None, ["t"]]


def test_a_client_that_waits_for_records_is_not_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was thrown out while its request was open."""
    member = HttpMember("group", "member", Join(["t"]), -math.inf)
    _, instance = instance_of(Coordinator([0]), {0: 3})
    instance.touched_s = -math.inf
    gateway = MagicMock(members=Mock(beat=AsyncMock(), idle=AsyncMock()))
    heard: list[float] = []

    async def read(*_: Any) -> tuple[list[Any], dict[TopicPartition, int]]:
        heard.append(member.touched_s)
        return [], {}

    async def fill(*_: Any) -> None:
        heard.append(instance.touched_s)

    async def play() -> None:
        soon = asyncio.get_running_loop().time() + 0.05
        await members._poll(gateway, asking(), member, None, Lens(), 10, 100, soon)
        answer = Mock(instance=instance, is_enough=False)
        await Instances(gateway)._fill(answer, asking(), soon)

    monkeypatch.setattr(members, "_read", read)
    monkeypatch.setattr(Instances, "_fill_once", fill)
    asyncio.run(play())
    assert len(heard) >= 2
    assert min(heard) > 0


def test_a_member_that_joined_in_vain_leaves_its_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its client was told of the failure, and the group kept its partitions for it until the session was over."""
    coordinator = Coordinator([0, 1])
    heartbeats = coordinator.ask_coordinator
    epochs: list[int] = []
    under_way: list[asyncio.Future[None]] = []

    async def asked(where: Any, key: str, request: Any) -> Any:
        await asyncio.sleep(0)
        if isinstance(request, OffsetFetchRequest):
            raise Problem("not-now")
        epochs.append(request.member_epoch)
        return await heartbeats(where, key, request)

    def spawn(_: str, work: Any) -> None:
        under_way.append(asyncio.ensure_future(work))

    async def play() -> None:
        gateway = cast(Any, coordinator)
        gateway.ask_coordinator = asked
        gateway.env = Mock(unique=lambda: bytes(16), tasks=Mock(spawn=spawn))
        here = members.Members(gateway)
        monkeypatch.setattr(members, "MEMBERS_MAX", 1)
        told = await asyncio.gather(here.add("g", Join(["t"])), here.add("g", Join(["t"])), return_exceptions=True)
        assert sorted(cast(Problem, each).slug for each in told) == ["not-now", "throttled"]
        await asyncio.gather(*under_way)
        assert epochs == [0, 1, -1] and not here._members

    asyncio.run(play())


NOTHING_COMMITTED = OffsetFetchResponse(groups=[OffsetFetchResponseGroup("group")])


def watched(coordinator: Coordinator, sent: asyncio.Event | None = None) -> list[int]:
    """The epochs of the heartbeats that the coordinator gets. Nothing is committed in its group."""
    heartbeats = coordinator.ask_coordinator
    epochs: list[int] = []

    async def asked(where: Any, key: str, request: Any) -> Any:
        if isinstance(request, OffsetFetchRequest):
            return NOTHING_COMMITTED
        epochs.append(request.member_epoch)
        if sent is not None:
            sent.set()
            await asyncio.sleep(0)
        return await heartbeats(where, key, request)

    cast(Any, coordinator).ask_coordinator = asked
    return epochs


@pytest.mark.parametrize("is_sent", [False, True], ids=["waiting", "sent"])
def test_a_member_that_has_left_is_not_joined_again_by_a_request_that_came_before(is_sent: bool) -> None:
    """A read waited for its turn to beat. The group no longer knew the member, which joined anew, and its partitions
    were read by nobody.
    """
    coordinator = Coordinator(*[ErrorCode.UNKNOWN_MEMBER_ID] * 3)
    sent = asyncio.Event()
    epochs = watched(coordinator, sent)

    async def play() -> None:
        here = members.Members(cast(Any, coordinator))
        member = HttpMember("group", "m1", Join(["t"]), 0.0, epoch=4)
        async with member.turn:
            beating = asyncio.ensure_future(here.beat(member))
            await asyncio.sleep(0)
            if not is_sent:
                await here.leave(member)
        if is_sent:
            await sent.wait()
            await here.leave(member)
        await beating

    asyncio.run(play())
    assert epochs == ([4, -1] if is_sent else [-1])


@pytest.mark.parametrize("name", [None, "i1"], ids=["unnamed", "named"])
def test_who_is_given_up_because_its_heartbeats_fail_leaves_its_group(name: str | None) -> None:
    """The group kept its partitions for nobody until the session was over. An instance whose client chose the name is
    made again under it, maybe elsewhere.
    """
    coordinator = Coordinator(ErrorCode.UNKNOWN_SERVER_ERROR)
    epochs = watched(coordinator)

    async def play() -> None:
        gateway = cast(Any, coordinator)
        gateway.node_id, gateway.coordinator = 1, AsyncMock(return_value=1)
        instances = Instances(gateway)
        now_s = asyncio.get_running_loop().time()
        instance = Instance("group", "i1", Join(["t"]), now_s, 4, "", interval_s=0.0, is_named=name is not None)
        instances._members["group", "i1"] = instance
        await instances._live(instance)
        assert not instances._members and instance.is_gone

    asyncio.run(play())
    assert epochs == ([4, -1] if name is None else [4])


@pytest.mark.parametrize("is_silent", [False, True], ids=["none", "silent"])
def test_a_partition_whose_leader_does_not_tell_where_it_begins_is_read_later(
    monkeypatch: pytest.MonkeyPatch, is_silent: bool
) -> None:
    """The group names an assignment once. It was dropped when an election was under way, and nobody read the partition.
    Many that a silent leader had were asked for one after the other, and the group removed the member meanwhile.
    """
    coordinator = Coordinator([0, 1, 2], [0, 1, 2])
    watched(coordinator)
    first, *others = (TopicPartition("t", index) for index in range(3))
    is_over = False

    async def at_time(_: Any, partition: TopicPartition, *__: Any) -> int:
        if partition == first or is_over:
            return 5
        if is_silent:
            await asyncio.sleep(math.inf)
        raise Problem("not-now", "no leader")

    monkeypatch.setattr(members, "at_time", at_time)
    monkeypatch.setattr(members, "FIRST_WITHIN_S", 0.3)

    async def play() -> None:
        nonlocal is_over
        here, member = members.Members(cast(Any, coordinator)), HttpMember("group", "m1", Join(["t"]), 0.0)
        async with asyncio.timeout(0.5):
            await here.beat(member)
        assert member.positions == {first: 5} | dict.fromkeys(others, SOMEWHERE)
        member.go_back(1, {first.topic: {first.partition: 5}})
        is_over = True
        await here.beat(member)
        assert member.positions == member.begun == dict.fromkeys([first, *others], 5)

    asyncio.run(play())


def test_a_partition_without_a_leader_does_not_hold_up_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = TopicPartition("t", 0), TopicPartition("t", 1)
    asked: list[dict[TopicPartition, int]] = []

    async def found(_: Any, __: int, positions: dict[TopicPartition, int], *___: Any, **____: Any) -> list[Piece]:
        asked.append(positions)
        return []

    monkeypatch.setattr(fetching, "fetch", found)
    leaders = {first: Mock(leader=3), second: Mock(leader=NO_LEADER)}
    gateway: Any = Mock(image=Mock(partition=leaders.get))
    member = HttpMember("g", "m", Join(["t"]), 0.0, positions={first: 7, second: 8, TopicPartition("gone", 0): 1})
    assert asyncio.run(members._read(gateway, Holder(Holding(1)), member, Lens(), 500, 1000, 0, 0.0)) == ([], {})
    assert asked == [{first: 7}]


@pytest.mark.parametrize("kind", ["member", "instance"])
def test_a_member_goes_on_beating_while_a_transaction_is_open_with_offsets_of_its_group(kind: str) -> None:
    """It waited for the end of the transaction without a heartbeat, so the group removed it."""
    coordinator = Coordinator([0, 1], [0, 1])
    heartbeats = coordinator.ask_coordinator
    answers = [(ErrorCode.UNSTABLE_OFFSET_COMMIT, -1)]

    async def asked(where: Any, key: str, request: Any) -> Any:
        if not isinstance(request, OffsetFetchRequest):
            return await heartbeats(where, key, request)
        (group,) = request.groups
        assert group.topics
        parts = [
            OffsetFetchResponsePartitions(index, 5, error_code=0)
            if not index
            else OffsetFetchResponsePartitions(index, answers[0][1], error_code=answers[0][0])
            for index in group.topics[0].partition_indexes
        ]
        return OffsetFetchResponse(
            groups=[OffsetFetchResponseGroup("group", topics=[OffsetFetchResponseTopics("t", partitions=parts)])]
        )

    cast(Any, coordinator).ask_coordinator = asked
    first, second = TopicPartition("t", 0), TopicPartition("t", 1)

    async def play() -> None:
        async with asyncio.timeout(10):
            if kind == "member":
                here, member = members.Members(cast(Any, coordinator)), HttpMember("group", "m1", Join(["t"]), 0.0)
                await here.beat(member)
                assert member.positions == {first: 5, second: SOMEWHERE}
                assert members._read_token(members._token(member)) == (1, {"t": {0: 5}})
                answers[0] = ErrorCode.NONE, 7
                await here.beat(member)
                assert member.begun == {first: 5, second: 7}
            else:
                there = Instances(cast(Any, coordinator))
                member = instance = Instance("group", "i1", Join(["t"]), 0.0, pattern="")
                await there.beat(instance)
                await there._begin(instance, 0.0)
                assert instance.positions == {first: 5, second: SOMEWHERE}
                answers[0] = ErrorCode.NONE, 7
                await there._begin(instance, 0.0)
            assert member.positions == {first: 5, second: 7}

    asyncio.run(play())


def test_an_error_in_one_partition_skips_nothing_in_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """The member gets what was found in the other partition, and asks for this one again."""
    good, bad = TopicPartition("orders", 0), TopicPartition("orders", 1)
    _, batch = data()

    async def found(*_: Any, **__: Any) -> list[Piece]:
        return [Piece(good, 0, data=batch), Piece(bad, ErrorCode.KAFKA_STORAGE_ERROR)]

    monkeypatch.setattr(fetching, "fetch", found)
    gateway: Any = Mock(leader=lambda partition: 1, members=Mock(is_due=lambda member: False, idle=AsyncMock()))
    member = HttpMember("group", "member", Join(["orders"]), 0.0, positions={good: 0, bad: 0}, beaten_s=math.inf)
    member.begun = dict(member.positions)
    records = asyncio.run(members._poll(gateway, asking(), member, None, Lens(), 500, 1000, 0.0))
    assert records
    assert member.positions == {good: len(records), bad: 0}


@pytest.mark.parametrize("kind", ["member", "instance"])
def test_a_leader_that_answers_at_once_with_nothing_is_not_asked_again_and_again(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """A broker may be told that it leads before it does, or lose its session: until then every read ended at once, and
    one client's poll took all of the processor.
    """
    asked = 0

    async def nothing(*_: Any) -> tuple[list[Any], dict[TopicPartition, int]]:
        nonlocal asked
        asked += 1
        return [], {}

    async def play() -> None:
        loop = asyncio.get_running_loop()
        request = asking(transport=object())
        if kind == "member":
            monkeypatch.setattr(members, "_read", nothing)
            member: Any = Mock(is_gone=False, is_idle=False, positions={WHERE: 0}, turn=asyncio.Lock())
            gateway: Any = Mock(members=Mock(is_due=lambda member: False))
            await members._poll(gateway, request, member, None, Lens(), 1, 1, loop.time() + 0.5)
        else:
            monkeypatch.setattr(Instances, "_fill_once", nothing)
            await Instances(MagicMock())._fill(Mock(is_enough=False), request, loop.time() + 0.5)

    asyncio.run(play())
    assert 5 < asked < 50


def test_polls_of_clients_that_are_gone_do_not_keep_their_member_from_beating(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them waited in its turn for a leader that was silent, and the heartbeats behind them came too late."""
    asked, answers = 0, asyncio.Event()

    async def silent(*_: Any) -> tuple[list[Any], dict[TopicPartition, int]]:
        nonlocal asked
        asked += 1
        await answers.wait()
        return [], {}

    async def play() -> None:
        monkeypatch.setattr(members, "_read", silent)
        member: Any = Mock(is_gone=False, is_idle=False, positions={WHERE: 0}, turn=asyncio.Lock(), said=0)
        gateway: Any = Mock(members=Mock(is_due=lambda member: False))
        requests = [asking(transport=object()) for _ in range(5)]
        seen: list[Any] = [None, None, None, [], None]
        polls = [
            asyncio.ensure_future(members._poll(gateway, request, member, said, Lens(), 1, 1, 0.0))
            for request, said in zip(requests, seen, strict=True)
        ]
        await asyncio.sleep(0)
        requests[0].transport = requests[1].transport = None
        answers.set()
        told = await asyncio.gather(*polls, return_exceptions=True)
        assert [isinstance(each, Problem) for each in told] == [True, True, True, False, False]

    asyncio.run(play())
    assert asked == 3


def waiting_member(
    coordinator: Coordinator,
    interval_ms: int,
    play: Callable[[members.Members, HttpMember, list[float]], Awaitable[None]],
) -> list[float]:
    """When a member beats that has joined, and lives while this is played: in seconds of a clock of its own."""
    beats: list[float] = []
    heartbeats = coordinator.ask_coordinator

    async def asked(where: Any, key: str, request: Any) -> Any:
        if isinstance(request, OffsetFetchRequest):
            return NOTHING_COMMITTED
        beats.append(asyncio.get_running_loop().time())
        answer = await heartbeats(where, key, request)
        answer.heartbeat_interval_ms = interval_ms
        return answer

    async def live() -> None:
        gateway = cast(Any, coordinator)
        gateway.ask_coordinator, gateway.node_id, gateway.coordinator = asked, 1, AsyncMock(return_value=1)
        gateway.partitions, gateway.home = {}, Mock()
        gateway.members = here = members.Members(gateway)
        living: list[asyncio.Task[None]] = []
        gateway.env.tasks = Mock(spawn=lambda _, work: living.append(asyncio.ensure_future(work)))
        member = await here.add("g", Join(["t"]))
        await play(here, member, beats)
        (life,) = living
        life.cancel()
        await asyncio.gather(life, return_exceptions=True)

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(live())
    return beats


async def polled(coordinator: Coordinator, member: HttpMember, for_s: float) -> list[Any]:
    deadline = asyncio.get_running_loop().time() + for_s
    return await members._poll(cast(Any, coordinator), asking(), member, None, Lens(), 500, 1 << 20, deadline)


@pytest.mark.parametrize("has_part", [False, True], ids=["idle", "reading"])
@pytest.mark.parametrize("interval_s", [0.2, 1, 5])
def test_a_member_beats_as_often_as_it_is_told_though_its_client_waits(
    monkeypatch: pytest.MonkeyPatch, interval_s: float, has_part: bool
) -> None:
    """One that had nothing to read sent ten heartbeats a second; two hundred of its kind took a fifth of a core. Later
    it sent one a second for its client, and besides those that it was told to send.
    """
    monkeypatch.setattr(members, "at_time", AsyncMock(return_value=5))

    async def nothing(*_: Any, wait_ms: int, **__: Any) -> list[Piece]:
        await asyncio.sleep(wait_ms / 1000)
        return []

    monkeypatch.setattr(members, "fetch_all", nothing)
    coordinator = Coordinator([0], [0]) if has_part else Coordinator([], [])
    coordinator.image.partition = lambda _: Mock(leader=1)

    async def play(_: members.Members, member: HttpMember, beats: list[float]) -> None:
        assert member.is_idle is not has_part
        beats.clear()
        assert await polled(coordinator, member, 60) == []

    beats = waiting_member(coordinator, int(1000 * interval_s), play)
    assert 60 / (interval_s + 0.5) - 1 <= len(beats) <= 60 / interval_s + 1
    assert all(later - earlier > 0.99 * interval_s for earlier, later in itertools.pairwise(beats))


def test_a_member_that_waits_for_partitions_is_given_them_as_soon_as_its_group_has_some_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(members, "at_time", AsyncMock(return_value=5))
    _, batch = data(offset=5)
    monkeypatch.setattr(members, "fetch_all", AsyncMock(return_value=[Piece(WHERE, 0, data=batch)]))
    coordinator = Coordinator([])
    coordinator.image.partition = lambda _: Mock(leader=1)

    async def play(here: members.Members, member: HttpMember, _: list[float]) -> None:
        loop = asyncio.get_running_loop()
        polling = asyncio.ensure_future(polled(coordinator, member, 60))
        await asyncio.sleep(7)
        assert not polling.done()
        coordinator.assigned += [[0], [0]]
        coordinator.stamp_of = lambda _: (1, 1, 1)
        left_s = loop.time()
        assert await polling
        assert loop.time() - left_s <= members.STEP_MS / 1000 + members.IDLE_BEAT_S

    waiting_member(coordinator, 60_000, play)


@pytest.mark.parametrize("pattern", [None, "t.*"])
@pytest.mark.parametrize("has_part", [False, True], ids=["idle", "reading"])
def test_a_member_that_waits_beats_once_as_soon_as_there_is_more_that_its_group_may_give_it(
    monkeypatch: pytest.MonkeyPatch, has_part: bool, pattern: str | None
) -> None:
    """A group hears of new topics and partitions by a heartbeat: that was sent when it was due, up to 5 s later."""
    monkeypatch.setattr(members, "at_time", AsyncMock(return_value=5))

    async def nothing(*_: Any, wait_ms: int, **__: Any) -> list[Piece]:
        await asyncio.sleep(wait_ms / 1000)
        return []

    monkeypatch.setattr(members, "fetch_all", nothing)
    coordinator = Coordinator([0], [0]) if has_part else Coordinator([], [])
    image = coordinator.image
    image.partition = lambda _: Mock(leader=1)
    (topic,) = image.topics.values()
    changed: list[float] = []

    async def play(_: members.Members, member: HttpMember, beats: list[float]) -> None:
        loop = asyncio.get_running_loop()
        member.pattern = pattern
        assert await polled(coordinator, member, 70) == []
        beats.clear()
        polling = asyncio.ensure_future(polled(coordinator, member, 40))
        for topics in (
            {"t": topic, "other": topic} if pattern is None else {"t": topic, "t2": topic},
            {"t": Mock(id=topic.id, partitions={0: None, 1: None})},
            {"t": Mock(id=topic.id, partitions={0: None, 1: None})},
        ):
            await asyncio.sleep(10)
            image.topics = topics
            changed.append(loop.time())
        assert await polling == []

    beats = waiting_member(coordinator, 60_000, play)
    expected = changed[:2] if pattern is not None else changed[1:2]
    within_s = members.STEP_MS / 1000 + members.POLL_BEAT_S
    assert len(beats) == len(expected), (beats, changed)
    assert all(0 <= beat - at <= within_s for beat, at in zip(beats, expected, strict=True))


def test_a_member_without_partitions_is_given_those_of_one_that_leaves(http: Http, topic: str) -> None:
    assert http.post("/v1/topics", {"name": topic, "partitions": 1}).status == 201
    assert http.post(f"/v1/topics/{topic}/records", {"records": [{"value": 7}]}).status == 200
    first = joined(http, topic, topic)
    until(http, first, 1)
    idle = joined(http, topic, topic)
    until(http, idle, 0)
    found: list[int] = []

    def wait() -> None:
        found.extend(read(Http(http.url), idle, 1)[0])

    waiting = threading.Thread(target=wait)
    waiting.start()
    assert http.ask("DELETE", first).status == 204
    waiting.join()
    assert found == [7]
    assert http.delete(idle).status == 204


def test_a_poll_holds_nothing_of_what_its_filter_leaves_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that such polls had thrown away was counted, and everybody else was refused."""
    _, batch = data(count=10_000)
    held: list[int] = []
    request = asking()

    async def found(*given: Any, **_: Any) -> list[Piece]:
        held.append(request[HOLDER].bytes)
        content = batch if len(held) == 1 else b""
        assert given[5].takes(stored=len(content))
        return [Piece(WHERE, 0, data=content)]

    monkeypatch.setattr(fetching, "fetch", found)
    gateway: Any = Mock(leader=lambda partition: 1, members=Mock(is_due=lambda member: False, idle=AsyncMock()))
    member = HttpMember("group", "member", Join(["t"]), 0.0, positions={WHERE: 0}, begun={WHERE: 0}, beaten_s=math.inf)

    async def poll() -> None:
        soon = asyncio.get_running_loop().time() + 1
        assert await members._poll(gateway, request, member, None, Lens(key=b"nobody"), 500, 1 << 20, soon) == []

    asyncio.run(poll())
    assert len(batch) > 32 << 10 and len(held) > 1
    assert (set(held), request[HOLDER].bytes, member.positions) == ({0}, 0, {WHERE: 10_000})


@pytest.mark.parametrize("says_how_far", [False, True], ids=["plain", "after"])
def test_a_member_begins_a_topic_anew_that_was_made_again(http: Http, topic: str, says_how_far: bool) -> None:
    """It went on in the new one where it had been in the one before: nobody was given what was before that."""
    path, records = f"/v1/topics/{topic}/records", {"records": [{"value": each} for each in range(10)]}
    assert http.post("/v1/topics", {"name": topic, "partitions": 1}).status == 201
    assert http.post(path, records).status == 200
    member = joined(http, topic, topic)
    _, token = read(http, member, 10)
    assert http.post(f"{member}/offsets", {"commit_token": token}).status == 204
    assert http.delete(f"/v1/topics/{topic}").status == 204
    assert http.post("/v1/topics", {"name": topic, "partitions": 1}).status == 201
    assert http.post(path, {"records": [{"value": each} for each in range(100, 130)]}).status == 200
    refused = http.post(f"{member}/offsets", {"commit_token": token})
    assert refused.status in (404, 409), refused
    after = f"&after={token}" if says_how_far else ""
    deadline = time.monotonic() + PATIENCE_S
    while not (found := http.get(f"{member}/records?wait_ms=500{after}").json["records"]):
        assert time.monotonic() < deadline
    assert found[0]["value"] == 100
    again = http.get(f"{member}/records?wait_ms=500&after={token}").json["records"]
    assert again[0]["value"] == 100, "who says that it got nothing of it is given it again"
    assert http.delete(member).status == 204


def test_a_member_commits_in_a_topic_that_was_made_again_since_it_has_read_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """It named the topic before, and was refused for ever. What a token tells is of the topic that the member read."""
    now = {name: TopicId(name.encode() * 16) for name in ("o", "n")}
    gateway: Any = Mock(topic=lambda name: Mock(id=now["n" if name == "t" else name]))
    member = HttpMember("group", "member", Join(["o", "t"]), 0.0, positions={TopicPartition("o", 0): 1})
    member.ids = {"o": now["o"], "t": TopicId(b"t" * 16)}
    committed = AsyncMock()
    monkeypatch.setattr(members, "home", AsyncMock(return_value=None))
    monkeypatch.setattr(members, "_member", Mock(return_value=member))
    monkeypatch.setattr(members, "commit_offsets", committed)
    token = members._token(HttpMember("group", "member", Join([]), 0.0, positions={TopicPartition("t", 0): 1}))
    offsets = [{"topic": each, "partition": 0, "offset": 1} for each in ("o", "t")]
    for wanted, ids in ({"offsets": offsets}, list(now.values())), ({"commit_token": token}, [b"t" * 16]):
        monkeypatch.setattr(members, "body_of", AsyncMock(return_value=msgspec.json.encode(wanted)))
        asyncio.run(members.commit(gateway, MagicMock()))
        (_, asked), _ = committed.call_args
        assert [each.topic_id for each in asked.topics] == ids


def test_a_token_of_many_partitions_fits_a_request_line(http: Http, topic: str) -> None:
    """It could be committed with, and not be sent as `after`: 200 partitions took 13,460 characters."""
    name = f"{topic}-{'x' * 40}"
    assert http.post("/v1/topics", {"name": name, "partitions": 500}).status == 201
    member = http.post(f"/v1/groups/{topic}/members", {"topics": [name]}).headers["Location"]
    deadline = time.monotonic() + PATIENCE_S
    while len((polled := http.get(f"{member}/records?wait_ms=100").json)["assignment"]) < 500:
        assert time.monotonic() < deadline
    again = http.get(f"{member}/records", params={"after": polled["commit_token"]})
    assert again.status == 200, again
    assert http.post(f"{member}/offsets", {"commit_token": polled["commit_token"]}).status == 204
    assert http.delete(member).status == 204


def test_a_token_is_what_was_given() -> None:
    """Unpacked it is bounded. It is unpacked no further than that."""
    chance = random.Random(1)
    places = {TopicPartition("orders-of-the-region", each): chance.randrange(10**9) for each in range(500)}
    member = HttpMember("g", "m", Join(["t"]), 0.0, positions=dict(places), epoch=7)
    token = members._token(member)
    assert len(token) < 6_000
    assert members._read_token(token) == (
        7,
        {"orders-of-the-region": {each.partition: offset for each, offset in places.items()}},
    )
    bomb = zlib.compress(b'[1,{"t":{' + b" " * (64 << 20) + b"}}]")
    for content in (bomb, zlib.compress(b"[1,{}]")[:-3], b"[1,{}]", zlib.compress(b"[1,[]]"), b""):
        with pytest.raises(Problem, match="commit_token"):
            members._read_token(base64.urlsafe_b64encode(content).decode())
    with pytest.raises(Problem, match="commit_token"):
        members._read_token("!")


def test_many_offsets_of_a_member_are_gone_through_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """26,000 of them, in a body of 1 MiB, took 20 ms in one turn."""
    gateway, member, committed = MagicMock(), MagicMock(epoch=1), AsyncMock()
    monkeypatch.setattr(members, "home", AsyncMock(return_value=None))
    monkeypatch.setattr(members, "_member", Mock(return_value=member))
    monkeypatch.setattr(members, "commit_offsets", committed)
    monkeypatch.setattr(members, "OffsetCommitRequestTopic", MagicMock(side_effect=lambda *_: Mock(partitions=[])))
    member.positions = {TopicPartition("t", each): each for each in range(26_000)}
    token = members._token(member)
    offsets = [{"topic": "t", "partition": each, "offset": each} for each in range(26_000)]
    for wanted in ({"offsets": offsets}, {"commit_token": token}):
        monkeypatch.setattr(members, "body_of", AsyncMock(return_value=msgspec.json.encode(wanted)))
        assert turns_of(members.commit(gateway, MagicMock())) > 26_000 // NAMED_A_TURN * 3 // 2
        (_, asked), _ = committed.call_args
        (topic,) = asked.topics
        assert [(each.partition_index, each.committed_offset) for each in topic.partitions] == [
            (each, each) for each in range(26_000)
        ]


def test_a_token_that_is_none_is_refused_and_the_client_told_what_to_do() -> None:
    with pytest.raises(Problem, match="poll again"):
        members._read_token("eyJvbGQiOjF9")

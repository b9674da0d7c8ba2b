"""Groups for operators: members, offsets and lag. A group without members can be moved and deleted."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Final, Literal
from urllib.parse import quote

import msgspec
from aiohttp import ClientError, web

from log.ids import TopicPartition
from service.broker.internal_topics import GROUPS
from service.client.cluster import READ_COMMITTED, Cluster, by_topic
from service.client.ends import ends_of
from service.client.failures import ClientFailure, FailureKind
from service.client.groups import committed_offsets, describe_group, list_groups
from service.turns import NAMED_A_TURN, in_turns
from service.web.answers import as_json, read_json
from service.web.forwarding import url_of, while_there
from service.web.gateway import PAUSE_S, TIMEOUT_S, Gateway
from service.web.problems import Problem, of_error
from service.web.producing import OffsetIn
from service.web.routing import LIST_BYTES, Route
from service.web.unpacking import body_of
from service.wire.error_codes import ErrorCode
from service.wire.messages import (
    DeleteGroupsRequest,
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)

EARLIEST, LATEST = -2, -1
LATE_TOLD: Final = 1_000
LATE: Final = "/v1/groups:late"


class GroupName(msgspec.Struct):
    name: str
    state: str
    type: str


class Groups(msgspec.Struct):
    groups: list[GroupName]


class Assigned(msgspec.Struct):
    topic: str
    partition: int


class MemberOut(msgspec.Struct):
    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    partitions: list[Assigned]


class GroupOut(msgspec.Struct):
    name: str
    state: str
    type: str
    assignor: str
    coordinator: int
    members: list[MemberOut]


BurrowStatus = Literal["WARN", "STOP", "STALL", "REWIND"]
CODES: Final[Mapping[int, BurrowStatus]] = {2: "WARN", 4: "STOP", 5: "STALL", 6: "REWIND"}


class LateGroup(msgspec.Struct):
    name: str
    status: BurrowStatus
    """Burrow's: it falls behind; it commits no more; it commits the same offset again and again; it went back."""


class LateGroups(msgspec.Struct):
    groups: list[LateGroup]
    """A thousand of them at most; those that stand still first."""
    total: int
    known: bool = True
    """False for a moment after the start: the groups are being looked at for the first time."""


class GroupOffset(msgspec.Struct, omit_defaults=True):
    topic: str
    partition: int
    offset: int
    metadata: str = ""
    """What was committed with the offset."""


class GroupOffsets(msgspec.Struct):
    offsets: list[GroupOffset]


class Lag(msgspec.Struct):
    topic: str
    partition: int
    offset: int
    last_stable_offset: int
    high_watermark: int
    lag: int
    """Records that are decided and not read: markers of transactions are none, records of aborted transactions are."""
    undecided: int
    """Records after those: of open transactions, or written after one."""
    at_most: bool = False
    """The group is so far back that older markers are not known: they are counted as records."""


class GroupLag(msgspec.Struct):
    total: int
    partitions: list[Lag]
    at_most: bool = False
    """Some of it is told as "at most"."""


class Reset(msgspec.Struct, forbid_unknown_fields=True):
    """Where the group is to go on: at `offsets`, or in the partitions of `topics`, or in all partitions that it has
    read.
    """

    to: Literal["earliest", "latest", "timestamp", "shift", "offsets"] = "offsets"
    offsets: list[OffsetIn] = []
    topics: list[str] = []
    timestamp: int | None = None
    shift: int | None = None


_resets = msgspec.json.Decoder(Reset)
_lates = msgspec.json.Decoder(LateGroups)


async def all_groups(gateway: Gateway, request: web.Request) -> web.Response:
    found = await list_groups(gateway.cluster)
    return as_json(Groups([GroupName(each.group_id, each.group_state, each.group_type) for each in found]))


async def late(gateway: Gateway, request: web.Request) -> web.Response:
    return as_json(await late_here(gateway))


async def late_here(gateway: Gateway) -> LateGroups:
    found = await gateway.here.scraper.late_groups()
    if found is None:
        return LateGroups([], 0, known=False)
    late = sorted((LateGroup(name, CODES[code]) for name, code in found.items()), key=standing_first)
    return LateGroups(late[:LATE_TOLD], len(found))


async def late_at(gateway: Gateway, node: int) -> LateGroups:
    """What another broker tells."""
    try:
        async with gateway.http().get(url_of(gateway, node, LATE)) as answer:
            if answer.status != HTTPStatus.OK:
                raise Problem("not-now", f"broker {node} answered {answer.status}")
            return _lates.decode(await answer.read())
    except (ClientError, OSError, msgspec.DecodeError) as error:
        raise Problem("not-now", f"broker {node}: {error or type(error).__name__}") from None


def standing_first(group: LateGroup) -> tuple[bool, str]:
    return group.status == "WARN", group.name


async def describe(gateway: Gateway, request: web.Request) -> web.Response:
    name = request.match_info["group"]
    try:
        group = await describe_group(gateway.cluster, name)
    except ClientFailure as failure:
        if failure.kind is not FailureKind.NOT_FOUND:
            raise
        raise of_error(ErrorCode.GROUP_ID_NOT_FOUND, f"group {name!r}") from None
    members = [
        MemberOut(
            *(member.member_id, member.instance_id, member.client_id, member.host),
            [Assigned(*each) for each in member.partitions],
        )
        for member in group.members
    ]
    return as_json(GroupOut(group.name, group.state, group.type, group.assignor, group.coordinator, members))


async def delete(gateway: Gateway, request: web.Request) -> web.Response:
    group = request.match_info["group"]
    answer, in_doubt = await gateway.ask_to_change(GROUPS, group, DeleteGroupsRequest([group]))
    if code := answer.results[0].error_code:
        raise of_error(code, f"group {group!r}", writing=True, in_doubt=in_doubt)
    return web.Response(status=204)


async def _offsets(cluster: Cluster, group: str) -> dict[TopicPartition, int]:
    found = await committed_offsets(cluster, group)
    return {each: found[each] for each in sorted(found)}


Committed = dict[TopicPartition, tuple[int, str | None]]
"""Committed offsets with their metadata."""
UNSETTLED_S: Final = 0.5
"""The longest pause before offsets are asked for again."""
NAMED: Final = 5
"""So many partitions are named whose offsets are not settled."""
NOBODY: tuple[str | None, int] = (None, -1)
"""Member id and epoch of a caller that is no member of the group."""


async def committed_by(
    gateway: Gateway, request: web.Request, group: str, partitions: Iterable[TopicPartition] | None
) -> Committed:
    """What the group has committed for these partitions; None: for all that it has committed something for. If a
    transaction is about to commit offsets, its end is waited for, but not for long.
    """
    with gateway.waiting():
        return await while_there(request, _settled(gateway, group, partitions))


async def _settled(gateway: Gateway, group: str, partitions: Iterable[TopicPartition] | None) -> Committed:
    """All are asked for again, so that what is told together was committed at one time."""
    pause_s = PAUSE_S
    deadline = asyncio.get_running_loop().time() + TIMEOUT_S
    while True:
        committed, unsettled = await offsets_by_now(gateway, group, partitions)
        if not unsettled:
            return committed
        if asyncio.get_running_loop().time() > deadline:
            raise held_up(gateway, group, unsettled)
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, UNSETTLED_S)


def held_up(gateway: Gateway, group: str, unsettled: Iterable[TopicPartition]) -> Problem:
    """The problem for who asks for offsets that are not settled. If the transaction hangs, it does so in the partition
    of the group's coordinator.
    """
    names = [f"{each.topic} partition {each.partition}" for each in sorted(unsettled)]
    left = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    where = gateway.home(GROUPS, group)
    return of_error(
        ErrorCode.UNSTABLE_OFFSET_COMMIT,
        f"a transaction is open with offsets of group {group!r} for {', '.join(names[:NAMED])}{left}. If it hangs "
        f"(POST /v1/transactions:find-hanging), it does so in {where.topic} partition {where.partition}. "
        f"/v1/groups/{quote(group, safe='')}/lag tells what was committed before, and does not wait",
    )


async def offsets_by_now(
    gateway: Gateway, group: str, partitions: Iterable[TopicPartition] | None, who: tuple[str | None, int] = NOBODY
) -> tuple[Committed, set[TopicPartition]]:
    """What the group has committed for these partitions, and those for which a transaction is about to commit."""
    image = gateway.image
    topics = None
    if partitions is not None:
        topics = [
            OffsetFetchRequestTopics(name, image.topics[name].id, [each.partition for each in of_topic])
            for name, of_topic in by_topic(partitions).items()
            if name in image.topics
        ]
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group, *who, topics)], require_stable=True)
    (answer,) = (await gateway.ask_coordinator(GROUPS, group, request)).groups
    if answer.error_code:
        raise of_error(answer.error_code, f"offsets of group {group!r}")
    committed: Committed = {}
    unsettled: set[TopicPartition] = set()
    for topic in answer.topics:
        name = topic.name or image.topic_names.get(topic.topic_id)  # type: ignore[call-overload]
        if name is None:
            continue  # the topic is deleted
        for part in topic.partitions:
            each = TopicPartition(name, part.partition_index)
            if part.error_code == ErrorCode.UNSTABLE_OFFSET_COMMIT:
                unsettled.add(each)
            elif part.error_code:
                raise of_error(part.error_code, f"offsets of group {group!r}")
            elif part.committed_offset >= 0:
                committed[each] = part.committed_offset, part.metadata
    return committed, unsettled


async def offsets(gateway: Gateway, request: web.Request) -> web.Response:
    """Who asks may go on there, so what a transaction is about to commit is waited for."""
    found = await committed_by(gateway, request, request.match_info["group"], None)
    told = [GroupOffset(*each, offset, metadata or "") for each, (offset, metadata) in sorted(found.items())]
    return as_json(GroupOffsets(told))


async def lag(gateway: Gateway, request: web.Request) -> web.Response:
    found = await _offsets(gateway.cluster, request.match_info["group"])
    found = {each: offset for each, offset in found.items() if gateway.image.partition(each) is not None}
    ends = await ends_of(gateway.cluster, found)
    partitions = []
    for each, offset in found.items():
        if each not in ends:
            raise of_error(ErrorCode.KAFKA_STORAGE_ERROR, f"{each.topic} partition {each.partition}")
        _, stable, high, _ = ends[each]
        left = ends[each].left_from(offset)
        partitions.append(Lag(*each, offset, stable, high, left.decided, left.undecided, not left.is_exact))
    at_most = any(each.at_most for each in partitions)
    return as_json(GroupLag(sum(each.lag for each in partitions), partitions, at_most))


async def reset(gateway: Gateway, request: web.Request) -> web.Response:
    """Move the group. It must have no members, because members would go on where they are."""
    group = request.match_info["group"]
    wanted = read_json(await body_of(request), _resets)
    _refuse_idle(wanted)
    given = {TopicPartition(each.topic, each.partition): each for each in wanted.offsets}
    if len(given) < len(wanted.offsets):
        raise Problem("invalid-request", "two offsets are given of a partition")
    new = await new_offsets(gateway, gateway.cluster, group, wanted)
    topics: dict[str, OffsetCommitRequestTopic] = {}
    async for each, offset in in_turns(new.items(), NAMED_A_TURN):
        gateway.state(each)
        if not 0 <= offset < 2**63:
            raise Problem("invalid-request", f"{offset} is no offset")
        part = OffsetCommitRequestPartition(each.partition, offset)
        if (as_given := given.get(each)) is not None:
            if not -1 <= as_given.leader_epoch < 2**31:
                raise Problem("invalid-request", f"{as_given.leader_epoch} is no leader epoch")
            part.committed_leader_epoch, part.committed_metadata = as_given.leader_epoch, as_given.metadata or ""
        topic = topics.setdefault(each.topic, OffsetCommitRequestTopic(each.topic, gateway.topic(each.topic).id))
        topic.partitions.append(part)
    await commit_offsets(gateway, OffsetCommitRequest(group, topics=list(topics.values())))
    told = [GroupOffset(*each, offset) for each, offset in sorted(new.items())]
    for place in told:
        if (as_given := given.get(TopicPartition(place.topic, place.partition))) is not None:
            place.metadata = as_given.metadata or ""
    return as_json(GroupOffsets(told))


def _refuse_idle(wanted: Reset) -> None:
    """Raise a problem if something is given that means nothing with `to`."""
    for name, given, of in (
        ("offsets", wanted.offsets, wanted.to == "offsets"),
        ("topics", wanted.topics, wanted.to != "offsets"),
        ("timestamp", wanted.timestamp is not None, wanted.to == "timestamp"),
        ("shift", wanted.shift is not None, wanted.to == "shift"),
    ):
        if given and not of:
            raise Problem("invalid-request", f"{name} means nothing if the group goes to {wanted.to!r}")


async def commit_offsets(gateway: Gateway, request: OffsetCommitRequest) -> None:
    """Commit offsets. The outcome of a refusal is `none` only if no partition's offset was committed."""
    group = request.group_id
    answer, in_doubt = await gateway.ask_to_change(GROUPS, group, request)
    codes = [each.error_code for topic in answer.topics for each in topic.partitions]
    if refused := next(filter(None, codes), 0):
        is_partly = not all(codes)
        detail = f"group {group!r}: offsets of other partitions were committed" if is_partly else f"group {group!r}"
        problem = of_error(refused, detail, writing=True, in_doubt=in_doubt or is_partly)
        if refused == ErrorCode.UNKNOWN_MEMBER_ID and not request.member_id:
            problem.slug = "group-active"  # nobody has expired: who is no member commits only what has none
        raise problem


async def new_offsets(gateway: Gateway, cluster: Cluster, group: str, wanted: Reset) -> dict[TopicPartition, int]:
    """Where the group would go on."""
    if wanted.to == "offsets":
        if not wanted.offsets:
            raise Problem("invalid-request", "no offsets are named")
        return {TopicPartition(each.topic, each.partition): each.offset for each in wanted.offsets}
    now, unsettled = await _offsets(cluster, group), set[TopicPartition]()
    if wanted.to == "shift":  # from where nothing is about to move it: an open transaction would move it there in vain
        committed, unsettled = await offsets_by_now(gateway, group, None)
        now = {each: offset for each, (offset, _) in sorted(committed.items())}
    if wanted.topics:
        partitions = [
            TopicPartition(name, index)
            for name in dict.fromkeys(wanted.topics)
            for index in gateway.topic(name).partitions
        ]
    else:
        partitions = list(now)
    if held := unsettled.intersection(partitions) if wanted.topics else unsettled:
        raise held_up(gateway, group, held)
    if not partitions:
        raise Problem("invalid-request", "the group has read nothing yet: name topics")
    starts = await cluster.list_offsets(dict.fromkeys(partitions, EARLIEST))
    ends = await cluster.list_offsets(dict.fromkeys(partitions, LATEST), isolation=READ_COMMITTED)
    if wanted.to == "earliest":
        return {each: starts[each].offset for each in partitions}
    if wanted.to == "latest":
        return {each: ends[each].offset for each in partitions}
    if wanted.to == "shift":
        if wanted.shift is None:
            raise Problem("invalid-request", "shift says by how much")
        moved = {each: now.get(each, starts[each].offset) + wanted.shift for each in partitions}
        return {each: min(max(offset, starts[each].offset), ends[each].offset) for each, offset in moved.items()}
    if wanted.timestamp is None or not 0 <= wanted.timestamp < 2**63:
        raise Problem("invalid-request", "timestamp says from when on, in milliseconds since 1970")
    found = await cluster.list_offsets(dict.fromkeys(partitions, wanted.timestamp), isolation=READ_COMMITTED)
    return {each: found[each].offset if found[each].offset >= 0 else ends[each].offset for each in partitions}


_GROUP = "/v1/groups/{group}"
ROUTES = (
    Route("GET", "/v1/groups", all_groups, "All groups.", "groups", answer=Groups, problems=(503,)),
    Route("GET", LATE, late, "Groups that this broker coordinates and that don't keep up, by Burrow's rules.",
          "groups", answer=LateGroups),
    Route("GET", _GROUP, describe, "A group and its members.", "groups", answer=GroupOut, problems=(404, 503)),
    Route("DELETE", _GROUP, delete, "Delete a group that has no members.", "groups", status=204,
          problems=(404, 409, 422, 503, 504)),
    Route("GET", _GROUP + "/offsets", offsets, "The group's committed offsets. Those that a transaction is about to "
          "commit are waited for; with 503 it is still open.", "groups", answer=GroupOffsets, problems=(503,)),
    Route("PUT", _GROUP + "/offsets", reset, "Let the group go on elsewhere; it must have no members.", "groups",
          body=Reset, body_bytes_max=LIST_BYTES, answer=GroupOffsets, problems=(400, 404, 409, 422, 503, 504)),
    Route("GET", _GROUP + "/lag", lag, "How far behind the group is, in decided and undecided records.", "groups",
          answer=GroupLag, problems=(503,)),
)  # fmt: skip

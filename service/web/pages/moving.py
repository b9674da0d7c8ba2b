"""Moves a group to other offsets, and partitions to other brokers. A page first shows what would change; the change is
confirmed by typing the name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import quote, urlencode

import msgspec
from aiohttp import web

from log.ids import TopicPartition
from service.client.cluster import Cluster
from service.client.failures import ClientFailure, error_name
from service.client.groups import commit_offsets, committed_offsets
from service.cluster.image import PartitionState, Topic
from service.cluster.placement import place
from service.web.gateway import Gateway, Inside
from service.web.groups import Reset, new_offsets
from service.web.pages.actions import ACTED_S, acted, not_meant, refuse
from service.web.pages.asking import form_of
from service.web.pages.views import Facts, PageView
from service.web.problems import Problem
from service.wire.messages import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)

SHOWN: Final = 500
TO: Final = ("earliest", "latest", "timestamp", "shift", "offsets")


# --- a group ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Moved:
    """The offset at which a group would go on."""

    partition: TopicPartition
    was: int | None
    will_be: int


async def reset_plan(look: PageView) -> Facts:
    """Where the group would go on. Nothing is changed."""
    gateway, name = look.gateway, look.match["group"]
    asked = {key: look.query.get(key, "").strip() for key in ("to", "topic", "partition", "value")}
    why, rows = "", []
    if asked["to"]:
        try:
            rows = await _moves(gateway, look.cluster, name, asked)
        except (Problem, ClientFailure) as failure:
            why = str(failure)
    committed = await look.told.ask("what it has committed", committed_offsets(look.cluster, name), {})
    return {
        "title": f"Move {name}",
        "name": name,
        "asked": asked,
        "topics": sorted({each.topic for each in committed}),
        "rows": rows[:SHOWN],
        "count": len(rows),
        "why": why,
    }


async def _moves(gateway: Gateway, cluster: Cluster, name: str, asked: Mapping[str, str]) -> list[Moved]:
    now = await committed_offsets(cluster, name)
    wanted = await new_offsets(gateway, cluster, name, _reset_of(asked))
    return [Moved(each, now.get(each), offset) for each, offset in sorted(wanted.items())]


def _reset_of(asked: Mapping[str, str]) -> Reset:
    to, value = asked["to"], asked["value"]
    if to not in TO:
        raise Problem("invalid-request", "it was not said where the group shall go on.")
    given: dict[str, Any] = {"to": to, "topics": [asked["topic"]] if asked["topic"] else []}
    try:
        if to == "timestamp":
            moment = datetime.fromisoformat(value)
            moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
            given["timestamp"] = int(moment.timestamp() * 1000)
        elif to == "shift":
            given["shift"] = int(value)
        elif to == "offsets":
            where = {"topic": asked["topic"], "partition": int(asked["partition"]), "offset": int(value)}
            given |= {"offsets": [where], "topics": []}
        return msgspec.convert(given, Reset)
    except (ValueError, OverflowError, msgspec.ValidationError):
        what = {"timestamp": "a time, as 2026-01-31T12:00", "shift": "a number of records"}
        raise Problem(
            "invalid-request", f"{value[:40]!r} is not {what.get(to, 'an offset, in a partition of a topic')}."
        ) from None


async def reset_group(gateway: Gateway, request: web.Request) -> web.StreamResponse:
    """Move a group. It must have no members, because members would go on where they are."""
    name = request.match_info["group"]
    form = await form_of(gateway, request)
    asked = {key: form.get(key, "").strip() for key in ("to", "topic", "partition", "value")}
    here = f"/ui/groups/{quote(name, safe='')}"
    back = f"{here}/reset?{urlencode(asked)}"
    if refused := not_meant(form, name):
        return refuse(gateway, refused, back)
    return await acted(gateway, back, _reset_group(gateway, name, asked, here, back))


async def _reset_group(
    gateway: Gateway, name: str, asked: Mapping[str, str], here: str, back: str
) -> web.StreamResponse:
    cluster = Inside(gateway, ACTED_S)
    wanted = {each.partition: each.will_be for each in await _moves(gateway, cluster, name, asked)}
    for each in wanted:
        gateway.state(each)
    await cluster.metadata({each.topic for each in wanted})
    if code := await commit_offsets(cluster, name, wanted):
        return refuse(gateway, f"the coordinator refused it ({error_name(code)}): is anybody in the group?", back)
    raise web.HTTPSeeOther(f"{here}?done=moved+in+{len(wanted)}+partitions")


# --- partitions ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Replicas:
    """The brokers that hold a partition, and those that would."""

    partition: int
    state: PartitionState
    will_be: tuple[int, ...]


async def replicas_plan(look: PageView) -> Facts:
    """Which brokers would hold which partitions. Nothing is changed."""
    gateway, name = look.gateway, look.match["topic"]
    topic = gateway.topic(name)
    asked = {key: look.query.get(key, "").strip() for key in ("partition", "brokers", "copies")}
    why, rows = "", []
    if asked["brokers"]:
        try:
            rows = _placed(gateway, name, asked)
        except Problem as problem:
            why = str(problem)
    moving = [(index, state) for index, state in topic.partitions.items() if state.adding or state.removing]
    return {
        "title": f"Replicas of {name}",
        "name": name,
        "asked": asked,
        "brokers": sorted(gateway.image.brokers),
        "copies": _copies(topic),
        "partitions": len(topic.partitions),
        "rows": rows[:SHOWN],
        "count": len(rows),
        "moving": moving[:SHOWN],
        "why": why,
    }


def _copies(topic: Topic) -> int:
    return max((len(state.replicas) for state in topic.partitions.values()), default=1)


def _placed(gateway: Gateway, name: str, asked: Mapping[str, str]) -> list[Replicas]:
    """The changes that are needed. For one partition the brokers are taken in their order, for all of them in turn."""
    topic, image = gateway.topic(name), gateway.image
    numbers = [part.strip() for part in asked["brokers"].split(",")]
    if not all(part.isascii() and part.isdigit() and len(part) < 10 for part in numbers):
        raise Problem("invalid-request", "brokers are numbers with commas between them, as 1,2,3")
    brokers = list(dict.fromkeys(int(part) for part in numbers))
    if unknown := [each for each in brokers if each not in image.brokers]:
        raise Problem("invalid-request", f"there is no broker {', '.join(map(str, unknown))} now")
    if asked["partition"]:
        partition = asked["partition"]
        if not (partition.isascii() and partition.isdigit() and len(partition) < 10):
            raise Problem("invalid-request", f"{partition[:20]!r} is no partition")
        state = gateway.state(TopicPartition(name, int(partition)))
        rows = [Replicas(int(partition), state, tuple(brokers))]
    else:
        wanted = asked["copies"] or str(min(_copies(topic), len(brokers)))
        copies = int(wanted) if wanted.isascii() and wanted.isdigit() and len(wanted) < 10 else 0
        if not 1 <= copies <= len(brokers):
            at_most = "one copy" if len(brokers) == 1 else f"{len(brokers)} copies"
            raise Problem(
                "invalid-request", f"of each partition these brokers can hold at least one and at most {at_most}"
            )
        chosen = [image.brokers[each] for each in brokers]
        targets = place(chosen, partitions=len(topic.partitions), replicas=copies, start=0)
        rows = [Replicas(index, topic.partitions[index], targets[at]) for at, index in enumerate(topic.partitions)]
    return [each for each in rows if each.will_be != each.state.replicas]


async def move_replicas(gateway: Gateway, request: web.Request) -> web.StreamResponse:
    name = gateway.topic(request.match_info["topic"]).name
    form = await form_of(gateway, request)
    asked = {key: form.get(key, "").strip() for key in ("partition", "brokers", "copies")}
    here = f"/ui/topics/{quote(name, safe='')}/replicas"
    back = f"{here}?{urlencode(asked)}"
    if refused := not_meant(form, name):
        return refuse(gateway, refused, back)
    try:
        rows = _placed(gateway, name, asked)
    except Problem as problem:
        return refuse(gateway, str(problem), back)
    parts = [ReassignablePartition(each.partition, list(each.will_be)) for each in rows]
    if not parts:
        return refuse(gateway, "nothing has to move.", back)
    return await acted(gateway, back, _asked(gateway, name, parts, here, back, f"begun+for+{len(parts)}+partitions"))


async def stop_moving(gateway: Gateway, request: web.Request) -> web.StreamResponse:
    """Stop moving partitions. Those that are moving stay where they were."""
    name = gateway.topic(request.match_info["topic"]).name
    here = f"/ui/topics/{quote(name, safe='')}/replicas"
    if refused := not_meant(await form_of(gateway, request), name):
        return refuse(gateway, refused, here)
    states = gateway.topic(name).partitions.items()
    parts = [ReassignablePartition(index, None) for index, state in states if state.adding or state.removing]
    if not parts:
        return refuse(gateway, "nothing is being moved.", here)
    return await acted(gateway, here, _asked(gateway, name, parts, here, here, "stopped"))


async def _asked(
    gateway: Gateway, name: str, parts: list[ReassignablePartition], here: str, back: str, done: str
) -> web.StreamResponse:
    request = AlterPartitionReassignmentsRequest(topics=[ReassignableTopic(name, parts)])
    answer = await gateway.ask(gateway.node_id, request)
    told = [each for topic in answer.responses for each in topic.partitions if each.error_code]
    if answer.error_code:
        return refuse(gateway, answer.error_message or error_name(answer.error_code), back)
    if told:
        why = told[0].error_message or error_name(told[0].error_code)
        return refuse(gateway, f"{len(told)} of {len(parts)} partitions were refused: {why}", back)
    raise web.HTTPSeeOther(f"{here}?done={done}")

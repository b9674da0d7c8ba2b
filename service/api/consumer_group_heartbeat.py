"""ConsumerGroupHeartbeat (KIP-848), versions 0 and 1 (1: regular expressions, and members name themselves).

One API to join (epoch 0), to stay, to leave (-1) and to leave for a while (-2, static members). Expressions are
RE2's (service/groups/regex.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from service.api.group_answers import Groups, answer_with, ask, error_code, fresh_member_id, host_of
from service.broker.session import Session
from service.cluster.topic_commands import MAX_NAME_LENGTH
from service.groups.commands import ConsumerHeartbeat, ConsumerHeartbeatReply, PartitionsByTopic
from service.ports import Env
from service.turns import NAMED_A_TURN, Steps, Turn, breathe, in_turns, now_or_in_turns
from service.wire.codec import RequestHeader
from service.wire.error_codes import ErrorCode
from service.wire.messages import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    ConsumerGroupHeartbeatResponseAssignment,
    ConsumerGroupHeartbeatResponseTopicPartitions,
)

_new = tuple.__new__  # takes half the time of a class's own constructor

NAMES_ITSELF_SINCE = 1
NAMES_MAX = 20_000
"""What a member subscribes to is one record, and one decision. For so many names that takes ten milliseconds, in which
no other client is served. Kafka refuses what does not fit into a batch: more than 40,000 names of 25 bytes.
"""
TOO_MANY_NAMES = f"a member may name {NAMES_MAX} topics; more can be subscribed to by a regular expression"
NAMES_MAX_BYTES = 900_000
"""What a member names must fit into a batch of the offsets topic (1 MB), with the lengths and what else it says."""
TOO_MANY_BYTES = f"the names of a member's topics may have {NAMES_MAX_BYTES} bytes; a regular expression may match more"
TOO_LONG_A_NAME = f"the name of a topic has {MAX_NAME_LENGTH} characters at most"
ASKED_AGAIN_S = (0.05, 0.15)
"""To make the target of a group of thousands of members takes about as long as the first pause, while they send their
heartbeats. Longer than both a heartbeat does not wait.
"""
PARTITIONS_AS_ONE = 30
"""To tell of so many partitions takes as long as to tell of one more topic."""
ANSWERS_IT_COSTS = 2
"""To ask again, and to answer then, takes as long as so many answers that only waited for a commit."""


def handle(
    groups: Groups, env: Env, session: Session, header: RequestHeader, request: ConsumerGroupHeartbeatRequest
) -> ConsumerGroupHeartbeatResponse | Awaitable[ConsumerGroupHeartbeatResponse]:
    names, owned = request.subscribed_topic_names, request.topic_partitions
    if names and (wrong := _wrong_with(names)) is not None:
        return ConsumerGroupHeartbeatResponse(0, ErrorCode.INVALID_REQUEST, wrong)
    if len(names or ()) > NAMED_A_TURN or len(owned or ()) > NAMED_A_TURN:
        return _beat_in_turns(groups, env, session, header, request)
    partitions = None if owned is None else {topic.topic_id: topic.partitions for topic in owned}
    return _beat(groups, env, session, header, request, names, partitions)


def _wrong_with(names: list[str]) -> str | None:
    if len(names) > NAMES_MAX:
        return TOO_MANY_NAMES
    if max(map(len, names)) > MAX_NAME_LENGTH:
        return TOO_LONG_A_NAME
    return TOO_MANY_BYTES if len("".join(names).encode()) > NAMES_MAX_BYTES else None


async def _beat_in_turns(
    groups: Groups, env: Env, session: Session, header: RequestHeader, request: ConsumerGroupHeartbeatRequest
) -> ConsumerGroupHeartbeatResponse:
    """The same for a member of very many topics. Their names are sorted before, in a turn of their own; most clients
    send them so.
    """
    names, owned = request.subscribed_topic_names, request.topic_partitions
    partitions = None
    if owned is not None:
        partitions = {topic.topic_id: topic.partitions async for topic in in_turns(owned, NAMED_A_TURN)}
    if names is not None:
        names = sorted(set(names))
    await breathe()
    answer = _beat(groups, env, session, header, request, names, partitions)
    return await answer if isinstance(answer, Awaitable) else answer


def _beat(
    groups: Groups,
    env: Env,
    session: Session,
    header: RequestHeader,
    request: ConsumerGroupHeartbeatRequest,
    names: list[str] | None,
    owned: PartitionsByTopic | None,
) -> ConsumerGroupHeartbeatResponse | Awaitable[ConsumerGroupHeartbeatResponse]:
    facts = (
        request.group_id,
        request.member_id,
        request.member_epoch,
        request.instance_id,
        request.rack_id,
        request.rebalance_timeout_ms,
        None if names is None else tuple(names),
        request.subscribed_topic_regex,
        request.server_assignor,
        owned,
        header.client_id or "",
        host_of(session),
        "" if request.member_id else fresh_member_id(env),
        header.api_version >= NAMES_ITSELF_SINCE,
    )
    command = _new(ConsumerHeartbeat, facts)

    def answer(
        reply: ConsumerHeartbeatReply | ErrorCode,
    ) -> ConsumerGroupHeartbeatResponse | Awaitable[ConsumerGroupHeartbeatResponse]:
        if isinstance(reply, ErrorCode) or not reply.comes_early:
            return _answer(reply)
        return _ask_again(groups, session, command)

    return answer_with(answer, groups, request.group_id, command, ConsumerHeartbeatReply)


async def _ask_again(groups: Groups, session: Session, command: ConsumerHeartbeat) -> ConsumerGroupHeartbeatResponse:
    """For a heartbeat that came while a new target was being made: its member would hear of it an interval later."""
    for pause_s in ASKED_AGAIN_S:
        with session.waits():
            await asyncio.sleep(pause_s)
            await groups.answers.turn(ANSWERS_IT_COSTS)  # a thousand may have waited
        reply = await ask(groups, command.group_id, command, ConsumerHeartbeatReply)
        if isinstance(reply, ErrorCode) or not reply.comes_early:
            break
    answer = _answer(reply)
    return await answer if isinstance(answer, Awaitable) else answer


def _answer(
    reply: ConsumerHeartbeatReply | ErrorCode,
) -> ConsumerGroupHeartbeatResponse | Awaitable[ConsumerGroupHeartbeatResponse]:
    if isinstance(reply, ErrorCode):
        return ConsumerGroupHeartbeatResponse(error_code=reply)
    fault, message, member_id, member_epoch, interval_ms, assignment, _ = reply
    answer = ConsumerGroupHeartbeatResponse(0, error_code(fault), message, member_id, member_epoch, interval_ms)
    return answer if assignment is None else now_or_in_turns(_with_assignment(answer, assignment))


def _with_assignment(
    answer: ConsumerGroupHeartbeatResponse, assignment: PartitionsByTopic
) -> Steps[ConsumerGroupHeartbeatResponse]:
    turn = Turn(NAMED_A_TURN)
    topics: list[ConsumerGroupHeartbeatResponseTopicPartitions] = []
    for topic_id, partitions in assignment.items():
        topics.append(ConsumerGroupHeartbeatResponseTopicPartitions(topic_id, sorted(partitions)))
        if turn.is_over(1 + len(partitions) // PARTITIONS_AS_ONE):
            yield
    answer.assignment = ConsumerGroupHeartbeatResponseAssignment(topics)
    return answer

"""ConsumerGroupDescribe (KIP-848), versions 0 and 1 (1: whether a member speaks the classic protocol).

It describes consumer groups. For this API a classic group does not exist.
"""

from collections.abc import Iterable

from service.api.group_answers import Groups, ask, error_code, operations
from service.broker.session import Session
from service.groups.commands import ConsumerGroupFacts, ConsumerMemberFacts, DescribeConsumerGroup, NamedPartitions
from service.turns import NAMED_A_TURN, Steps, Turn, done_in_turns, in_turns
from service.wire.codec import RequestHeader
from service.wire.error_codes import ErrorCode
from service.wire.messages import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupDescribeResponseAssignment,
    ConsumerGroupDescribeResponseDescribedGroup,
    ConsumerGroupDescribeResponseTopicPartitions,
    Member,
)

CLASSIC_MEMBER = 0
CONSUMER_MEMBER = 1
NAMES_AS_ONE = 10
"""So many names that a member subscribes to take as long to be told as one topic of its assignment."""


async def handle(
    groups: Groups, session: Session, header: RequestHeader, request: ConsumerGroupDescribeRequest
) -> ConsumerGroupDescribeResponse:
    named = [group_id for group_id in request.group_ids if group_id]
    unnamed = len(request.group_ids) - len(named)
    described = [ConsumerGroupDescribeResponseDescribedGroup(error_code=ErrorCode.INVALID_GROUP_ID)] * unnamed
    # Each once: otherwise a short request could ask for an answer of any length.
    async for group_id in in_turns(dict.fromkeys(named), at_once=1):
        reply = await ask(groups, group_id, DescribeConsumerGroup(group_id), ConsumerGroupFacts)
        if isinstance(reply, ErrorCode):
            described.append(ConsumerGroupDescribeResponseDescribedGroup(error_code=reply, group_id=group_id))
        else:
            members = await done_in_turns(_members(reply.members))
            described.append(_described(group_id, reply, members, request.include_authorized_operations))
    return ConsumerGroupDescribeResponse(groups=described)


def _described(
    group_id: str, facts: ConsumerGroupFacts, members: list[Member], with_operations: bool
) -> ConsumerGroupDescribeResponseDescribedGroup:
    return ConsumerGroupDescribeResponseDescribedGroup(
        error_code=error_code(facts.fault),
        error_message=facts.message,
        group_id=group_id,
        group_state=facts.state,
        group_epoch=facts.epoch,
        assignment_epoch=facts.assignment_epoch,
        assignor_name=facts.assignor,
        members=members,
        authorized_operations=operations(with_operations and facts.fault is None),
    )


def _members(described: Iterable[ConsumerMemberFacts]) -> Steps[list[Member]]:
    turn = Turn(NAMED_A_TURN)
    members: list[Member] = []
    for facts in described:
        assigned = yield from _assignment(facts.assigned, turn)
        target = yield from _assignment(facts.target, turn)
        members.append(
            Member(
                member_id=facts.member_id,
                instance_id=facts.instance_id,
                rack_id=facts.rack_id,
                member_epoch=facts.member_epoch,
                client_id=facts.client_id,
                client_host=facts.client_host,
                subscribed_topic_names=list(facts.subscribed_topics),
                subscribed_topic_regex=facts.subscribed_regex,
                assignment=assigned,
                target_assignment=target,
                member_type=CLASSIC_MEMBER if facts.uses_classic_protocol else CONSUMER_MEMBER,
            )
        )
        if turn.is_over(3 + len(facts.subscribed_topics) // NAMES_AS_ONE):
            yield
    return members


def _assignment(topics: Iterable[NamedPartitions], turn: Turn) -> Steps[ConsumerGroupDescribeResponseAssignment]:
    named: list[ConsumerGroupDescribeResponseTopicPartitions] = []
    for topic in topics:
        named.append(ConsumerGroupDescribeResponseTopicPartitions(topic.topic_id, topic.topic, list(topic.partitions)))
        if turn.is_over():
            yield
    return ConsumerGroupDescribeResponseAssignment(named)

"""How a member of a consumer group moves from the partitions it holds to those of its target, step by step.

Pure: a member, the target and the holders of partitions go in, and the member after the step comes out. At every step
two things hold: a member keeps its epoch while it still has to let go of a partition, and a partition that is newly
given to it is held by no other member.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from service.groups.commands import PartitionsByTopic
from service.groups.consumer_group import ConsumerMember, EpochsByTopic, TargetByTopic
from service.groups.states import MemberState

NO_PARTITION: frozenset[int] = frozenset()
NOT_GIVEN: Mapping[int, int] = {}


class Walk(NamedTuple):
    """What a step depends on besides the member.

    `owned`: the partitions that the member says it owns (None: it did not say). `is_held`: whether any member holds a
    partition. `is_subscribed`: whether the member subscribes to a topic. `subscription_changed`: whether the topics to
    which it subscribes have just changed.
    """

    target_epoch: int
    target: TargetByTopic
    owned: PartitionsByTopic | None
    is_held: Callable[[bytes, int], bool]
    is_subscribed: Callable[[bytes], bool]
    subscription_changed: bool


def reconcile(member: ConsumerMember, walk: Walk) -> ConsumerMember | None:
    """The member after this step; the same object if nothing changes. None: its state is unknown here, and it must join
    again.
    """
    match member.state:
        case MemberState.STABLE:
            if member.member_epoch != walk.target_epoch:
                return _towards_target(member, member.member_epoch, walk)
            return _within_subscription(member, walk) if walk.subscription_changed else member
        case MemberState.UNREVOKED_PARTITIONS:
            if _still_owns(walk.owned, member.revoking):
                return _within_subscription(member, walk) if walk.subscription_changed else member
            return _towards_target(member, member.member_epoch, walk)
        case MemberState.UNRELEASED_PARTITIONS:
            return _towards_target(member, member.member_epoch, walk)
        case MemberState.UNKNOWN:
            if walk.owned is None or any(walk.owned.values()):
                return None
            return _towards_target(member, walk.target_epoch, walk)


def _towards_target(member: ConsumerMember, epoch: int, walk: Walk) -> ConsumerMember:
    keeps: dict[bytes, Mapping[int, int]] = {}
    revokes: dict[bytes, Mapping[int, int]] = {}
    gets: dict[bytes, frozenset[int]] = {}
    others_hold_some = False
    is_held, is_subscribed = walk.is_held, walk.is_subscribed
    for topic_id in dict.fromkeys((*walk.target, *member.assigned)):
        target = walk.target.get(topic_id, NO_PARTITION)
        if target and not is_subscribed(topic_id):
            target = NO_PARTITION
        has = member.assigned.get(topic_id)
        if has and has.keys() == target:  # most topics are kept whole, or are new to the member
            keeps[topic_id] = has
            continue
        wanted = target
        if has:
            wanted = target.difference(has)
            if kept := {partition: given for partition, given in has.items() if partition in target}:
                keeps[topic_id] = kept
            if lost := {partition: given for partition, given in has.items() if partition not in target}:
                revokes[topic_id] = lost
        # The member may be given partitions that it has still to revoke itself: until then no other member holds them.
        revoking = member.revoking.get(topic_id, NOT_GIVEN)
        held = [each for each in wanted if is_held(topic_id, each) and each not in revoking]
        others_hold_some = others_hold_some or bool(held)
        if free := wanted.difference(held) if held else wanted:
            gets[topic_id] = free
    if revokes and _still_owns(walk.owned, revokes):
        return member.at_epoch(epoch, MemberState.UNREVOKED_PARTITIONS, assigned=keeps, revoking=revokes)
    alike: dict[frozenset[int], Mapping[int, int]] = {}  # of thousands of topics most have the same partitions
    for topic_id, partitions in gets.items():
        given = alike.get(partitions)
        if given is None:
            given = alike[partitions] = dict.fromkeys(partitions, walk.target_epoch)
        keeps[topic_id] = {**keeps[topic_id], **given} if topic_id in keeps else given
    state = MemberState.UNRELEASED_PARTITIONS if others_hold_some else MemberState.STABLE
    return member.at_epoch(walk.target_epoch, state, assigned=keeps, revoking={})


def _within_subscription(member: ConsumerMember, walk: Walk) -> ConsumerMember:
    """The member without the partitions of topics to which it no longer subscribes. They are taken at once, even before
    there is a new target.
    """
    leaves = {topic_id: given for topic_id, given in member.assigned.items() if not walk.is_subscribed(topic_id)}
    if not leaves:
        return member
    keeps = {topic_id: given for topic_id, given in member.assigned.items() if topic_id not in leaves}
    revokes = dict(member.revoking)
    for topic_id, given in leaves.items():
        revokes[topic_id] = {**revokes.get(topic_id, {}), **given}
    if _still_owns(walk.owned, revokes):
        return member.at_epoch(member.member_epoch, MemberState.UNREVOKED_PARTITIONS, assigned=keeps, revoking=revokes)
    return member._replace(previous_epoch=member.member_epoch, assigned=keeps)


def _still_owns(owned: PartitionsByTopic | None, revoked: EpochsByTopic) -> bool:
    """Whether the member may still own a revoked partition. If it does not say what it owns, it may own all of them."""
    if owned is None:
        return True
    return any(
        partition in revoked.get(topic_id, {}) for topic_id, partitions in owned.items() for partition in partitions
    )

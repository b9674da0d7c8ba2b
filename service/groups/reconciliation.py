"""How a member of a consumer group moves from the partitions it holds to those of its target, step by step.

Pure: a member, the target and the holders of partitions go in, and the member after the step comes out. At every step
two things hold: a member keeps its epoch while it still has to let go of a partition, and a partition that is newly
given to it is held by no other member.
"""

from collections.abc import Callable, Mapping
from itertools import product
from typing import NamedTuple

from service.groups.commands import PartitionsByTopic
from service.groups.consumer_group import ConsumerMember, EpochsByTopic, TargetByTopic
from service.groups.states import MemberState

NOT_GIVEN: Mapping[int, int] = {}


class Walk(NamedTuple):
    """What a step depends on besides the member.

    `owned`: the partitions that the member says it owns (None: it did not say). `held`: the partitions that any member
    holds. `is_subscribed`: whether the member subscribes to a topic (None: it does to all that are spoken of).
    `subscription_changed`: whether the topics to which it subscribes have just changed.
    """

    target_epoch: int
    target: TargetByTopic
    owned: PartitionsByTopic | None
    held: Mapping[tuple[bytes, int], object]
    is_subscribed: Callable[[bytes], bool] | None
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
    """A member may have thousands of topics, so little is done for each. Most are kept whole, or are new to the member,
    free, and have the same partitions as many others. And most members have all that they are to have already.
    """
    has_nothing = not walk.target and not member.assigned
    if has_nothing or (walk.is_subscribed is None and member.has_just(walk.target)):  # only the epoch is missing
        return member.at_epoch(walk.target_epoch, MemberState.STABLE, assigned=member.assigned, revoking={})
    keeps: dict[bytes, Mapping[int, int]] = {}
    revokes: dict[bytes, Mapping[int, int]] = {}
    gets: dict[bytes, Mapping[int, int]] = {}
    assigned, held, is_subscribed = member.assigned, walk.held, walk.is_subscribed
    fresh: dict[frozenset[int], list[bytes]] = {}  # topics of which it has nothing yet, by the partitions of the target
    wants: list[tuple[bytes, frozenset[int]]] = []  # what has to be looked at topic by topic
    for topic_id, target in walk.target.items():
        if is_subscribed is not None and not is_subscribed(topic_id):
            continue
        has = assigned.get(topic_id)
        if not has:
            alike = fresh.get(target)
            if alike is None:
                fresh[target] = [topic_id]
            else:
                alike.append(topic_id)
        elif has.keys() == target:
            keeps[topic_id] = has
        else:
            if kept := {partition: given for partition, given in has.items() if partition in target}:
                keeps[topic_id] = kept
                if lost := {partition: given for partition, given in has.items() if partition not in target}:
                    revokes[topic_id] = lost
            wants.append((topic_id, target.difference(has)))
    for target, topic_ids in fresh.items():
        if held.keys().isdisjoint(product(topic_ids, target)):
            if target:
                gets.update(dict.fromkeys(topic_ids, dict.fromkeys(target, walk.target_epoch)))
        else:
            wants += [(topic_id, target) for topic_id in topic_ids]
    others_hold_some = False
    given_now: dict[frozenset[int], Mapping[int, int]] = {}
    for topic_id, wanted in wants:
        # The member may be given partitions that it has still to revoke itself: until then no other member holds them.
        revoking = member.revoking.get(topic_id, NOT_GIVEN)
        if others_hold := [each for each in wanted if (topic_id, each) in held and each not in revoking]:
            others_hold_some = True
            wanted = wanted.difference(others_hold)
        if wanted:
            if wanted not in given_now:
                given_now[wanted] = dict.fromkeys(wanted, walk.target_epoch)
            gets[topic_id] = given_now[wanted]
    for topic_id, has in assigned.items():
        if has and topic_id not in keeps:
            revokes[topic_id] = has
    if revokes and _still_owns(walk.owned, revokes):
        return member.at_epoch(epoch, MemberState.UNREVOKED_PARTITIONS, assigned=keeps, revoking=revokes)
    for topic_id in keeps.keys() & gets.keys():
        gets[topic_id] = {**keeps[topic_id], **gets[topic_id]}
    state = MemberState.UNRELEASED_PARTITIONS if others_hold_some else MemberState.STABLE
    return member.at_epoch(walk.target_epoch, state, assigned=keeps | gets, revoking={})


def _within_subscription(member: ConsumerMember, walk: Walk) -> ConsumerMember:
    """The member without the partitions of topics to which it no longer subscribes. They are taken at once, even before
    there is a new target.
    """
    is_subscribed = walk.is_subscribed
    if is_subscribed is None:
        return member
    leaves = {topic_id: given for topic_id, given in member.assigned.items() if not is_subscribed(topic_id)}
    if not leaves:
        return member
    keeps = {topic_id: given for topic_id, given in member.assigned.items() if topic_id not in leaves}
    revokes = dict(member.revoking)
    for topic_id, given in leaves.items():
        revokes[topic_id] = {**revokes[topic_id], **given} if topic_id in revokes else given
    if _still_owns(walk.owned, revokes):
        return member.at_epoch(member.member_epoch, MemberState.UNREVOKED_PARTITIONS, assigned=keeps, revoking=revokes)
    return member._replace(previous_epoch=member.member_epoch, assigned=keeps)


def _still_owns(owned: PartitionsByTopic | None, revoked: EpochsByTopic) -> bool:
    """Whether the member may still own a revoked partition. If it does not say what it owns, it may own all of them."""
    if owned is None:
        return True
    return any(not revoked[topic_id].keys().isdisjoint(owned[topic_id]) for topic_id in owned.keys() & revoked.keys())

"""Who holds a partition, and how many members say what, as a group keeps them, is what a look at all its members finds.

Members take, keep, revoke and give up partitions, whole topics and parts of them, and now and then a partition goes
from one to another in the order in which the taker comes first. They change the topics and the expression to which they
subscribe, and what expressions match is found out, forgotten and found out anew.
"""

from collections import Counter
from random import Random

from hypothesis import given, settings
from hypothesis.strategies import randoms

from service.groups.consumer_group import ConsumerGroup, ConsumerMember, EpochsByTopic, ResolvedRegex
from service.groups.states import MemberState

TOPICS = [bytes([number]) * 16 for number in range(3)]
NAMES = ("a", "b", "c")
REGEXES = ("[ab]", "[bc]", ".*")
PARTITIONS = range(3)


def split(held: set[tuple[bytes, int]], chance: Random, before: EpochsByTopic) -> EpochsByTopic:
    """By topic. One that is as before is the same object, or another one that says the same."""
    found: dict[bytes, dict[int, int]] = {}
    for topic_id, partition in sorted(held):
        found.setdefault(topic_id, {})[partition] = before.get(topic_id, {}).get(partition, 7)
    return {
        topic_id: before[topic_id] if before.get(topic_id) == given and chance.random() < 0.5 else given
        for topic_id, given in found.items()
    }


def step(group: ConsumerGroup, chance: Random) -> None:
    member_id = chance.choice(("m1", "m2", "m3"))
    old = group.members.get(member_id) or ConsumerMember(member_id)
    if chance.random() < 0.5:
        matched = None if chance.random() < 0.3 else ResolvedRegex(some_names(chance), 1, 1)
        group.resolve(chance.choice(REGEXES), matched)
    if chance.random() < 0.15:
        group.unassign(member_id)
        group.drop(member_id)
        return
    others = {name for name, holder in group.holders.items() if holder != member_id}
    mine = {name for name, holder in group.holders.items() if holder == member_id}
    free = {(topic_id, partition) for topic_id in TOPICS for partition in PARTITIONS} - others
    kept = {name for name in mine if chance.random() < 0.7}
    taken = {name for name in free - mine if chance.random() < 0.4}
    let_go = {name for name in kept if chance.random() < 0.3}
    member = old._replace(
        member_epoch=old.member_epoch + 1,
        state=chance.choice((MemberState.STABLE, MemberState.UNREVOKED_PARTITIONS)),
        subscribed_topics=some_names(chance),
        subscribed_regex=chance.choice((None, "", *REGEXES, old.subscribed_regex)),
        assigned=split(kept - let_go | taken, chance, old.assigned),
        revoking=split(let_go, chance, chance.choice((old.assigned, old.revoking))),
    )
    gives = sorted(mine - kept)
    taker = chance.choice(("m1", "m2", "m3"))
    if gives and taker in group.members and taker != member_id:
        other = group.members[taker]
        group.put(other._replace(assigned=split({*names_of(other.assigned), gives[0]}, chance, other.assigned)))
    group.put(member)


def some_names(chance: Random) -> frozenset[str]:
    return frozenset(chance.sample(NAMES, chance.randint(0, 3)))


def names_of(held: EpochsByTopic) -> set[tuple[bytes, int]]:
    return {(topic_id, partition) for topic_id, partitions in held.items() for partition in partitions}


@settings(deadline=None)
@given(randoms(use_true_random=False))
def test_what_a_group_keeps_of_its_members_is_what_a_look_at_all_of_them_finds(chance: Random) -> None:
    group = ConsumerGroup("g")
    for _ in range(20):
        step(group, chance)
        members = group.members.values()
        assert group.holders == {
            name: member.member_id
            for member in members
            for name in names_of(member.assigned) | names_of(member.revoking)
        }
        assert group.tallies.naming == Counter(topic for member in members for topic in member.subscribed_topics)
        stable = (member.member_epoch for member in members if member.state is MemberState.STABLE)
        assert group.tallies.stable_at == Counter(stable)
        matching = [group.resolved[regex].topics for regex in group.tallies.using if regex in group.resolved]
        assert group.tallies.matching == Counter(topic for topics in matching for topic in topics)
        leaving = [member for member in members if chance.random() < 0.4]
        comes = chance.choice((None, *members))
        rest = [member for member in members if member not in leaving] + ([] if comes is None else [comes])
        subscribed = {topic for member in rest for topic in group.topics_of(member)}
        assert group.topics_subscribed(without=leaving, and_by=comes) == subscribed
        assert {topic for topic in NAMES if group.is_subscribed_to(topic)} == group.topics_subscribed()

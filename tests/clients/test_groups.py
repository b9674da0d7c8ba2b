"""Groups of three members with a join, a leave and a crash, under each protocol and assignor that a client here
speaks."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.clients.kits import eventually
from tests.clients.members import GroupPlan, Member, wait_until_shared
from tests.clients.offsets import committed_offsets, produce_everywhere
from tests.peers.chosen import Address

PARTITIONS = 6
PROTOCOLS = [
    ("confluent-kafka", "range"),
    ("confluent-kafka", "roundrobin"),
    ("confluent-kafka", "cooperative-sticky"),
    ("confluent-kafka", "consumer:uniform"),
    ("confluent-kafka", "consumer:range"),
    ("aiokafka", "range"),
    ("aiokafka", "roundrobin"),
    ("aiokafka", "sticky"),
    ("kafka-python", "range"),
    ("kafka-python", "roundrobin"),
    ("kafka-python", "sticky"),
    ("kafka-python", "cooperative-sticky"),
]


@pytest.fixture
def start() -> Iterator[Callable[..., Member]]:
    """Starts members and ends what is left of them."""
    started: list[Member] = []

    def start_one(plan: GroupPlan, instance: str | None = None, **how: bool) -> Member:
        started.append(Member(plan, instance, **how))
        return started[-1]

    yield start_one
    for member in started:
        member.end()


@pytest.mark.parametrize(("client", "protocol"), PROTOCOLS, ids=lambda part: part)
def test_a_join_a_leave_and_a_crash_lose_nothing_and_repeat_nothing_committed(
    broker: Address,
    new_topic: Callable[..., str],
    group: str,
    start: Callable[..., Member],
    client: str,
    protocol: str,
) -> None:
    topic = new_topic(partitions=PARTITIONS)
    plan = GroupPlan(client, broker.bootstrap, topic, group, protocol)
    written: list[str] = []
    members = [start(plan)]

    def write_and_wait_until_read() -> None:
        written.extend(produce_everywhere(broker.bootstrap, topic, partitions=PARTITIONS, first=len(written), count=24))
        eventually(lambda: sum(len(member.reads) for member in members), lambda total: total >= len(written))

    wait_until_shared(members, partitions=PARTITIONS)
    write_and_wait_until_read()

    members += [start(plan), start(plan)]
    wait_until_shared(members, partitions=PARTITIONS)
    write_and_wait_until_read()

    members[2].leave()
    wait_until_shared(members[:2], partitions=PARTITIONS)
    write_and_wait_until_read()

    members[1].crash()
    wait_until_shared(members[:1], partitions=PARTITIONS)
    write_and_wait_until_read()

    assert sorted(value for member in members for _, _, value in member.reads) == sorted(written)
    for member in members:
        for partition in range(PARTITIONS):
            offsets = [offset for where, offset, _ in member.reads if where == partition]
            assert offsets == sorted(offsets), "a member saw a partition out of order"
    assert committed_offsets(broker.bootstrap, group, topic, PARTITIONS) == [len(written) // PARTITIONS] * PARTITIONS


@pytest.mark.parametrize(
    ("client", "protocol"), [("confluent-kafka", "cooperative-sticky"), ("confluent-kafka", "consumer:uniform")]
)
def test_an_incremental_rebalance_never_takes_everything_away(
    broker: Address,
    new_topic: Callable[..., str],
    group: str,
    start: Callable[..., Member],
    client: str,
    protocol: str,
) -> None:
    topic = new_topic(partitions=PARTITIONS)
    plan = GroupPlan(client, broker.bootstrap, topic, group, protocol)
    first = start(plan)
    wait_until_shared([first], partitions=PARTITIONS)

    second = start(plan)
    wait_until_shared([first, second], partitions=PARTITIONS)

    since_complete = first.history[first.history.index(list(range(PARTITIONS))) :]
    assert all(set(first.assigned) <= set(held) for held in since_complete), "a partition it kept was taken in between"


@pytest.mark.parametrize(
    ("client", "protocol"),
    [
        ("confluent-kafka", "range"),
        ("aiokafka", "range"),
        ("kafka-python", "range"),
        ("confluent-kafka", "consumer:uniform"),
    ],
)
def test_a_static_member_that_comes_back_gets_its_partitions_without_disturbing_the_others(
    broker: Address,
    new_topic: Callable[..., str],
    group: str,
    start: Callable[..., Member],
    client: str,
    protocol: str,
) -> None:
    topic = new_topic(partitions=PARTITIONS)
    plan = GroupPlan(client, broker.bootstrap, topic, group, protocol)
    first = start(plan, "first")
    second = start(plan, "second")
    wait_until_shared([first, second], partitions=PARTITIONS)
    held = second.assigned
    seen_by_first = len(first.history)
    again = start(plan, "second", waits=True)
    again.wait_until_ready()  # it has two seconds, until the session ends, to come back

    if protocol.startswith("consumer:"):
        second.leave()  # only a KIP-848 member that says it will be back frees its instance id before its session ends
    else:
        second.crash()
    again.begin()
    wait_until_shared([first, again], partitions=PARTITIONS)

    assert again.assigned == held
    assert len(first.history) == seen_by_first, "the other member was disturbed"


def test_members_of_two_protocols_share_one_group(
    broker: Address, new_topic: Callable[..., str], group: str, start: Callable[..., Member]
) -> None:
    """A group moves from the classic protocol to KIP-848 while members of both kinds are in it."""
    topic = new_topic(partitions=PARTITIONS)
    classic = start(GroupPlan("confluent-kafka", broker.bootstrap, topic, group, "cooperative-sticky"))
    wait_until_shared([classic], partitions=PARTITIONS)

    modern = start(GroupPlan("confluent-kafka", broker.bootstrap, topic, group, "consumer:uniform"))
    wait_until_shared([classic, modern], partitions=PARTITIONS)

    classic.leave()
    wait_until_shared([modern], partitions=PARTITIONS)

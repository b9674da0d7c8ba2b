"""The plans of `oncelog cluster spread`, `rebalance`, `drain` and of `topic reassign`, and what is told afterwards."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from log.ids import TopicPartition
from service.cli import moving
from service.cli.failures import CliError
from service.cli.moving import Racks, ReplicaMove, carry_out, election_plan, lead_by_first, spread, with_factor, without
from service.cli.output import Output
from service.client.cluster import Cluster
from service.wire.error_codes import ErrorCode
from service.wire.messages import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
    PartitionResult,
    ReplicaElectionResult,
)

FOUR: Racks = dict.fromkeys((1, 2, 3, 4))


def topic(name: str, *placed: list[int], leader: int | None = None) -> MetadataResponseTopic:
    """A topic whose partitions these brokers hold."""
    partitions = [
        MetadataResponsePartition(
            partition_index=index, leader_id=replicas[0] if leader is None else leader, replica_nodes=replicas
        )
        for index, replicas in enumerate(placed)
    ]
    return MetadataResponseTopic(name=name, partitions=partitions)


def after(topics: list[MetadataResponseTopic], moves: list[ReplicaMove]) -> list[MetadataResponseTopic]:
    """The topics when all moves are done."""
    plan = {(move.topic, move.partition): move.to_brokers for move in moves}
    return [
        topic(each.name or "", *(plan.get((each.name or "", it.partition_index), it.replica_nodes) for it in parts))
        for each in topics
        for parts in [each.partitions]
    ]


def shares(topics: list[MetadataResponseTopic], *, first_only: bool = False) -> Counter[int]:
    """How many partitions each of the four brokers holds."""
    held: Counter[int] = Counter(dict.fromkeys(FOUR, 0))
    for each in topics:
        for it in each.partitions:
            held.update(it.replica_nodes[: 1 if first_only else None])
    return held


def uneven(held: Counter[int]) -> int:
    return max(held.values()) - min(held.values())


def test_new_brokers_get_their_share_of_what_one_has() -> None:
    topics = [topic("orders", *[[1]] * 8), topic("single", [1]), topic("another", [1])]
    moves = spread(topics, FOUR)
    assert Counter(move.to_brokers[0] for move in moves if move.topic == "orders") == {2: 2, 3: 2, 4: 2}
    assert uneven(shares(after(topics, moves))) <= 1
    assert all(move.from_brokers == [1] for move in moves)
    assert spread(after(topics, moves), FOUR) == []


def test_leadership_is_levelled_where_the_copies_are_already() -> None:
    moves = spread([topic("orders", [1, 2], [1, 2], [1, 2], [1, 2])], {1: None, 2: None})
    assert sorted(move.to_brokers for move in moves) == [[2, 1], [2, 1]]


def test_what_moves_already_and_what_nobody_leads_stays() -> None:
    assert spread([topic("orders", [1], [1], leader=-1)], FOUR) == []
    [move] = spread([topic("orders", [1], [1])], FOUR, moving={TopicPartition("orders", 0)})
    assert move.partition == 1


def test_no_copy_joins_another_in_its_rack() -> None:
    racks = {1: "a", 2: "a", 3: "b", 4: "b"}
    topics = [topic("orders", [1, 3], [1, 3], [1, 3], [1, 3])]
    told = after(topics, spread(topics, racks))
    assert shares(told) == {1: 2, 2: 2, 3: 2, 4: 2}
    assert all({racks[broker] for broker in it.replica_nodes} == {"a", "b"} for it in told[0].partitions)
    [drained] = without([3], [topic("orders", [1, 3])], racks)
    assert drained.to_brokers == [1, 4]
    everybody = [topic("orders", [1]), topic("more", [3], [4])]
    widened = with_factor(everybody[:1], 2, everybody, racks)
    assert widened[0].to_brokers in ([1, 3], [1, 4])
    assert len(with_factor(everybody, 2, everybody, racks)) == 3


def test_fewer_replicas_are_those_that_are_alive_and_in_sync() -> None:
    """The first ones were kept, dead or not, and the copy of a live broker was removed."""
    held = MetadataResponsePartition(partition_index=0, leader_id=3, replica_nodes=[2, 3, 4, 1], isr_nodes=[2, 3, 1])
    orders = MetadataResponseTopic(name="orders", partitions=[held])
    alive: Racks = dict.fromkeys((1, 3, 4))
    for factor, kept in ((1, [3]), (2, [3, 1]), (3, [3, 4, 1])):
        [move] = with_factor([orders], factor, [orders], alive)
        assert move.to_brokers == kept, factor


PLACED = st.lists(st.permutations([1, 2, 3, 4]), min_size=1, max_size=12)


@given(st.lists(st.tuples(PLACED, st.integers(1, 3)), min_size=1, max_size=5))
def test_every_topic_and_the_whole_are_level_afterwards(drawn: list[tuple[list[list[int]], int]]) -> None:
    topics = [topic(str(at), *(each[:factor] for each in placed)) for at, (placed, factor) in enumerate(drawn)]
    moves = spread(topics, FOUR)
    told = after(topics, moves)
    for each in told:
        assert uneven(shares([each])) <= 1
        assert all(len(set(it.replica_nodes)) == len(it.replica_nodes) for it in each.partitions)
    assert sum(shares(told).values()) == sum(shares(topics).values())
    assert spread(told, FOUR) == [], "there is nothing left to do"
    assert uneven(shares(told, first_only=True)) <= max(uneven(shares(topics, first_only=True)), len(topics))


def test_a_step_looks_at_few_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was all of them: a minute for 10,000 partitions."""
    looks: Counter[str] = Counter()
    for name in ("_given_to", "_led_by"):
        original = getattr(moving, name)

        def counted(*args: Any, name: str = name, original: Callable[..., Any] = original) -> Any:
            looks[name] += 1
            return original(*args)

        monkeypatch.setattr(moving, name, counted)
    placed = [[at % 3 + 1, (at + 1) % 3 + 1, (at + 2) % 3 + 1] for at in range(600)]
    topics = [topic("orders", *placed)]
    told = after(topics, spread(topics, FOUR))
    assert shares(told) == dict.fromkeys(FOUR, 450)
    assert uneven(shares(told, first_only=True)) <= 1
    assert sum(looks.values()) < 20 * len(placed)


class Moving:
    """A cluster in which moves are under way for some looks, and then end as `end` says."""

    timeout_s = 0.0

    def __init__(self, topics: list[MetadataResponseTopic], end: Callable[["Moving"], None], *, looks: int = 1) -> None:
        self.topics = topics
        self.end = end
        self.looks = looks
        self.alive = [1, 2]
        self.asked: dict[TopicPartition, list[int]] = {}

    async def metadata(self, names: Iterable[str]) -> list[MetadataResponseTopic]:
        return [each for each in self.topics if each.name in set(names)]

    async def ask(self, request: Any) -> Any:
        match request:
            case AlterPartitionReassignmentsRequest(topics=topics):
                for each in topics:
                    self.asked |= {
                        TopicPartition(each.name, it.partition_index): it.replicas or [] for it in each.partitions
                    }
                return AlterPartitionReassignmentsResponse()
            case ListPartitionReassignmentsRequest():
                under_way = [
                    OngoingTopicReassignment(name, [OngoingPartitionReassignment(index)]) for name, index in self.asked
                ]
                self.looks -= 1
                if not self.looks:
                    self.end(self)
                    self.asked = {}
                return ListPartitionReassignmentsResponse(topics=under_way)
            case DescribeClusterRequest():
                return DescribeClusterResponse(brokers=[DescribeClusterBroker(broker) for broker in self.alive])
        raise AssertionError(request)

    def carry_out(self, moves: list[ReplicaMove]) -> None:
        asyncio.run(carry_out(cast(Cluster, self), moves, Output.TSV, yes=True))


def arrived(cluster: Moving) -> None:
    cluster.topics = [
        topic(
            each.name or "",
            *(cluster.asked.get(TopicPartition(each.name or "", it.partition_index), it.replica_nodes) for it in parts),
        )
        for each in cluster.topics
        for parts in [each.partitions]
    ]


def deleted(cluster: Moving) -> None:
    cluster.topics = []


def made_again(cluster: Moving) -> None:
    arrived(cluster)
    for each in cluster.topics:
        each.topic_id = b"another".ljust(16)


TO_TWO = [ReplicaMove("orders", 0, [1], [2])]


@pytest.fixture
def remarks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    told: list[str] = []
    monkeypatch.setattr(moving, "remark", told.append)
    return told


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moving, "RETRY_PAUSE_S", 0)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    ("end", "why"),
    [(lambda _: None, "cancelled"), (deleted, "topic is gone"), (made_again, "topic is gone")],
    ids=["cancelled", "deleted", "deleted and made again"],
)
def test_what_is_no_longer_under_way_has_not_therefore_moved(end: Callable[[Moving], None], why: str) -> None:
    with pytest.raises(CliError, match=rf"1 of 1 partition\(s\) have not moved: orders 0.*{why}"):
        Moving([topic("orders", [1])], end).carry_out(TO_TWO)
    Moving([topic("orders", [1])], arrived).carry_out(TO_TWO)


@pytest.mark.usefixtures("impatient")
def test_what_nobody_leads_is_not_moved_and_that_is_said() -> None:
    """Nobody can copy it: the command would wait for ever."""
    cluster = Moving([topic("orders", [1]), topic("alone", [3], leader=-1)], arrived)
    with pytest.raises(CliError, match=r"1 partition\(s\) have no leader and stay.*: alone 0"):
        cluster.carry_out([*TO_TWO, ReplicaMove("alone", 0, [3], [2])])
    assert [each.partitions[0].replica_nodes for each in cluster.topics] == [[2], [3]]


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(("alive", "away"), [([1], "2"), ([2], "1"), ([], "1, 2")])
def test_moves_that_wait_for_a_broker_that_has_died_are_told_and_not_waited_for(
    remarks: list[str], alive: list[int], away: str
) -> None:
    """The command went on for ever without a word."""
    cluster = Moving([topic("orders", [1])], arrived, looks=100)
    cluster.alive = alive
    with pytest.raises(CliError, match=rf"1 of 1 partition\(s\) wait for broker {away}, which is away: orders 0\."):
        cluster.carry_out(TO_TWO)
    assert remarks == [f"1 of 1 partitions are on their way; 1 of them wait for broker {away}, which is away"]


@pytest.mark.usefixtures("impatient")
def test_a_move_goes_on_while_any_partition_can_move(remarks: list[str]) -> None:
    cluster = Moving([topic("orders", [1], [1])], arrived, looks=50)
    cluster.carry_out([*TO_TWO, ReplicaMove("orders", 1, [1], [1, 3])])
    assert remarks == [
        "2 of 2 partitions are on their way; 1 of them wait for broker 3, which is away",
        "2 partition(s) have moved",
    ]


class Led:
    """A cluster of two brokers, both of which hold everything; elections end with this code."""

    def __init__(self, *partitions: tuple[int, list[int]], ends: int = ErrorCode.NONE) -> None:
        """The leader of each partition of the topic, and who is in sync; the first replica is broker 2."""
        self.partitions, self.ends = partitions, ends
        self.elected: list[int] = []

    async def metadata(self, _: None) -> list[MetadataResponseTopic]:
        led = [
            MetadataResponsePartition(partition_index=index, leader_id=leader, replica_nodes=[2, 1], isr_nodes=in_sync)
            for index, (leader, in_sync) in enumerate(self.partitions)
        ]
        return [MetadataResponseTopic(name="orders", partitions=led)]

    async def ask(self, request: Any) -> Any:
        match request:
            case DescribeClusterRequest():
                return DescribeClusterResponse(brokers=[DescribeClusterBroker(1), DescribeClusterBroker(2)])
            case ElectLeadersRequest(topic_partitions=[named]):
                self.elected += named.partitions
                told = [PartitionResult(index, self.ends) for index in named.partitions]
                return ElectLeadersResponse(replica_election_results=[ReplicaElectionResult(named.topic, told)])
        raise AssertionError(request)

    def rebalance(self, *, yes: bool) -> None:
        asyncio.run(lead_by_first(cast(Cluster, self), Output.TSV, yes=yes))


def test_other_leaders_are_shown_before_there_are_any(remarks: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """`cluster rebalance` acted at once."""
    cluster = Led((1, [1, 2]), (2, [1, 2]), (1, [1]), (1, [1, 2]), (-1, [2]))
    with pytest.raises(CliError, match=r"Let 2 partition\(s\) be led by their first replica\?"):
        cluster.rebalance(yes=False)
    assert capsys.readouterr().out == "orders\t0\t1\t2\norders\t3\t1\t2\n"
    assert remarks == [
        "1 partition(s) stay as they are led: their first replica is not in sync",
        "broker 1 leads 3 partition(s), and then 1",
        "broker 2 leads 1 partition(s), and then 3",
    ]
    assert cluster.elected == []
    cluster.rebalance(yes=True)
    assert cluster.elected == [0, 3]
    assert remarks[-1] == "2 partition(s) are led by their first replica again"


def test_where_nobody_else_can_lead_nothing_is_asked(remarks: list[str]) -> None:
    Led((2, [1, 2])).rebalance(yes=False)
    Led((1, [1])).rebalance(yes=False)
    stays = "1 partition(s) stay as they are led: their first replica is not in sync"
    assert remarks == ["every partition is led by its first replica", stays, "nothing has to change"]


def test_an_election_that_fails_after_all_is_told() -> None:
    with pytest.raises(CliError, match=r"1 of 1 partition.*: orders 0: PREFERRED_LEADER_NOT_AVAILABLE"):
        Led((1, [1, 2]), ends=ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE).rebalance(yes=True)
    with pytest.raises(CliError, match=r"1 of 1 partition.*: orders 0: error 32000"):
        Led((1, [1, 2]), ends=32_000).rebalance(yes=True)
    Led((1, [1, 2]), ends=ErrorCode.ELECTION_NOT_NEEDED).rebalance(yes=True)


def test_what_an_election_would_change_is_told_for_the_partitions_that_are_named() -> None:
    """`topic elect` acted, or asked, without a word on which leaders change."""
    [orders] = asyncio.run(Led((1, [1, 2]), (2, [1, 2]), (-1, [2]), (1, [1, 2]), (-1, [2])).metadata(None))
    named, alive = [TopicPartition("orders", index) for index in range(4)], {1: None, 2: None}
    led = ["partition 0: led by 1, then by 2", "partition 3: led by 1, then by 2"]
    assert election_plan(orders, named, alive, unclean=False) == led
    assert election_plan(orders, named, alive, unclean=True) == ["partition 2: led by nobody, alive: 2, 1"]
    assert election_plan(orders, named, {}, unclean=True) == ["partition 2: led by nobody, alive: no replica"]
    assert election_plan(orders, named[1:3], alive, unclean=False) == []

"""Deciding about brokers, partitions and producer ids: who leads after a life ends or begins, and who may change an
in-sync set.
"""

import pytest

from idempotence.producer_ids import BLOCK_SIZE, ProducerIdBlock
from log.ids import TopicId, TopicPartition
from log.manifest import UNNAMED_LIFE
from service.cluster.controller import (
    DECIDED_A_TURN,
    FINALIZED_FEATURES,
    LAST_EPOCH_TO_JUMP_TO,
    LOOKS_IN_A_DECISION,
    MOST_AT_ONCE,
    PROPOSALS_A_TURN,
    AllocateProducerIds,
    AlterPartition,
    FenceBroker,
    FoundCluster,
    GiveUpReplica,
    PreferLeaders,
    RaiseLeaderEpoch,
    Refusal,
    RegisterBroker,
    RemoveDead,
    RemoveFromLeadership,
    Successors,
    TakeBrokerId,
    Together,
)
from service.cluster.election import best_first, candidates, claim, elect
from service.cluster.image import (
    CONTROLLER_EPOCH,
    NO_BROKER,
    NO_LEADER,
    PartitionState,
    Topic,
    encode_topic,
    life_key,
    topic_key,
)
from service.cluster.reassign_commands import UNCLEAN, ElectLeaders
from service.stores.port import Check, Delete, Put, Result
from service.wire.error_codes import ErrorCode
from tests.service.cluster.worlds import ENDPOINTS, World, decided, topic_id

ORDERS = TopicPartition("orders", 0)


def state_of(world: World) -> PartitionState:
    state = world.image.partition(ORDERS)
    assert state is not None
    return state


def three_replicas() -> tuple[World, dict[int, int]]:
    """A partition on brokers 1, 2, 3, all in sync, and the brokers' epochs."""
    world = World()
    epochs = {broker: world.add_broker(broker) for broker in (1, 2, 3)}
    world.add_topic("orders", 1, replicas=3)
    assert state_of(world) == PartitionState((1, 2, 3), (1, 2, 3), 1, 0, 0)
    return world, epochs


def test_a_cluster_is_founded_once() -> None:
    world = World()
    assert world.run(FoundCluster("first")) == "first"
    assert world.run(FoundCluster("second")) == "first"
    assert world.image.features.levels == FINALIZED_FEATURES


def test_a_taken_broker_id_is_above_every_id_in_use_or_given() -> None:
    world = World()
    assert world.run(TakeBrokerId()) == 1
    assert world.run(TakeBrokerId()) == 2
    world.add_broker(7)
    assert world.run(TakeBrokerId()) == 8
    world.add_topic("orders", 1)
    world.lose_broker(7)
    assert world.run(TakeBrokerId()) == 9


def test_every_life_of_a_broker_has_a_higher_epoch() -> None:
    world = World()
    epochs = [world.add_broker(1), world.add_broker(2)]
    world.lose_broker(1)
    epochs.append(world.add_broker(1))
    assert epochs == sorted(set(epochs))


def test_a_second_broker_with_the_same_id_is_refused_and_a_retry_of_the_first_is_not() -> None:
    world = World()
    epoch = world.add_broker(1)
    registered = world.image.brokers[1]
    refused = world.run(RegisterBroker(1, 99, 99, ENDPOINTS))
    assert isinstance(refused, Refusal) and refused.error is ErrorCode.DUPLICATE_BROKER_REGISTRATION
    again = decided(RegisterBroker(1, registered.session, registered.session, ENDPOINTS), world.image, retried=True)
    assert (again.reply, again.ops) == (epoch, ())


def test_after_a_clean_stop_the_only_replica_keeps_its_leadership() -> None:
    world = World()
    world.add_broker(1)
    world.add_topic("orders", 1)
    world.lose_broker(1)
    world.add_broker(1, clean=True)
    assert state_of(world) == PartitionState((1,), (1,), 1, 0, 0)


@pytest.mark.parametrize("closed", [-1, 0, 1, None], ids=["nobody's", "of an earlier release", "earlier", "none"])
def test_a_stop_in_order_counts_only_if_it_ended_the_last_life(closed: int | None) -> None:
    """Else the data folder is a copy of before, and lacks what was written since."""
    world, epochs = three_replicas()
    world.lose_broker(1)
    epochs[1] = world.add_broker(1, clean=False, closed_life=epochs[1])
    assert epochs[1] == 4 and state_of(world) == PartitionState((1, 2, 3), (1, 2, 3), 1, 0, 0)
    world.lose_broker(1)
    world.add_broker(1, clean=False, closed_life=closed)
    assert (state_of(world).isr, state_of(world).leader) == ((2, 3), 2)


def test_a_broker_that_an_earlier_release_has_stopped_is_trusted_once() -> None:
    """An upgrade, broker by broker, does not empty the in-sync sets."""
    world, _ = three_replicas()
    world.lose_broker(1)
    world.commit([Delete(life_key(1), world.image.lives[1].version)])  # the earlier release did not note it
    world.add_broker(1, closed_life=UNNAMED_LIFE)
    assert state_of(world) == PartitionState((1, 2, 3), (1, 2, 3), 1, 0, 0)
    world.lose_broker(1)
    world.add_broker(1, closed_life=UNNAMED_LIFE)
    assert state_of(world).isr == (2, 3)


def test_a_process_that_joins_again_has_lost_nothing_unless_another_one_was_registered_meanwhile() -> None:
    world, _ = three_replicas()
    for is_alone in (True, False):
        world.lose_broker(1)
        if not is_alone:
            world.add_broker(1)
            world.lose_broker(1)
        world.add_broker(1, clean=False, process=1)
        assert (state_of(world).isr == (1, 2, 3)) is is_alone


def test_after_an_unclean_stop_the_only_replica_leads_in_a_new_epoch() -> None:
    """R4: two logs must never differ within one leader epoch."""
    world = World()
    world.add_broker(1)
    world.add_topic("orders", 1)
    world.lose_broker(1)
    world.add_broker(1, clean=False)
    assert state_of(world) == PartitionState((1,), (1,), 1, 1, 1)


def test_a_leader_that_is_gone_is_replaced_by_one_in_sync() -> None:
    world, _ = three_replicas()
    world.lose_broker(1)
    assert world.run(RemoveDead()) == 1
    assert state_of(world) == PartitionState((1, 2, 3), (2, 3), 2, 1, 1)
    assert world.run(RemoveDead()) == 0


def test_a_follower_that_is_gone_leaves_the_in_sync_set_but_the_last_members_stay() -> None:
    world, _ = three_replicas()
    world.lose_broker(3)
    world.run(RemoveDead())
    assert state_of(world) == PartitionState((1, 2, 3), (1, 2), 1, 0, 1)
    world.lose_broker(2)
    world.lose_broker(1)
    assert world.run(RemoveDead()) == 0
    assert state_of(world) == PartitionState((1, 2, 3), (1, 2), 1, 0, 1)


def test_without_anybody_in_sync_nobody_leads_unless_the_topic_allows_it() -> None:
    world, _ = three_replicas()
    for broker in (2, 3):
        world.lose_broker(broker)
    world.run(RemoveDead())
    world.lose_broker(1)
    world.add_broker(3)
    assert world.run(RemoveDead()) == 0
    asked = Successors.asked(world.image, ORDERS, (3,))
    for other in (
        asked._replace(partition_epoch=asked.partition_epoch - 1),
        asked._replace(topic_id=TopicId(bytes(16))),
        asked._replace(replicas=((3, world.image.brokers[3].epoch - 1),)),  # its disk may have been another
    ):
        assert not decided(RemoveDead({ORDERS: other}), world.image).ops
    allowed = decided(RemoveDead({ORDERS: asked}), world.image)
    assert allowed.reply == 1
    world.add_broker(1, clean=True)
    assert state_of(world) == PartitionState((1, 2, 3), (1,), 1, 0, 1)


def test_a_commit_looks_only_at_the_settings_of_the_topics_that_it_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each commit checked those of all that may lose: 6,000 for 1,000 elections."""
    monkeypatch.setattr("service.cluster.controller.MOST_AT_ONCE", 2)
    world, _ = three_replicas()
    for number in range(2, 6):
        world.add_topic(f"more{number}", number, replicas=3)
    for broker in (3, 2, 1):
        world.run(RemoveFromLeadership(broker))
        world.lose_broker(broker)
    world.add_broker(3, clean=False)
    all_of_them = [TopicPartition(name, 0) for name in world.image.topics]
    unclean = {each: Successors.asked(world.image, each, (3,)) for each in all_of_them}
    may_lose: list[str] = []

    def asked(topic: Topic) -> bool:
        may_lose.append(topic.name)
        return topic.name != "more2"

    ops = decided(RemoveDead(unclean, may_lose=asked), world.image).ops
    assert [op.key for op in ops if isinstance(op, Check)] == ["topics/orders", "topics/more3"]
    assert may_lose == ["orders", "more2", "more3"]
    assert not any(isinstance(op, Check) for op in decided(RemoveDead(), world.image).ops)


def test_of_very_many_partitions_some_are_given_away_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.cluster.controller.MOST_AT_ONCE", 4)
    world = World()
    for broker in (1, 2):
        world.add_broker(broker)
    world.add_topic("orders", 1, partitions=10, replicas=2)
    world.lose_broker(1)
    assert [world.run(RemoveDead()) for _ in range(4)] == [4, 4, 2, 0]
    assert {state.leader for state in world.image.topics["orders"].partitions.values()} == {2}


def test_of_very_many_partitions_those_without_a_leader_are_seen_to_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """The in-sync sets of other leaders came between them, and 5,134 of 15,400 took 16 commits instead of 6."""
    monkeypatch.setattr("service.cluster.controller.MOST_AT_ONCE", 4)
    world = World()
    for broker in (1, 2):
        world.add_broker(broker)
    world.add_topic("orders", 1, partitions=6, replicas=2)
    world.add_topic("more", 2, partitions=2, replicas=2)
    world.lose_broker(1)
    states = [state for topic in world.image.topics.values() for state in topic.partitions.values()]
    assert {state.leader for state in states[:2]} == {1, 2}
    assert sum(state.leader == 1 for state in states) == 4
    assert world.run(RemoveDead()) == 4
    states = [state for topic in world.image.topics.values() for state in topic.partitions.values()]
    assert {state.leader for state in states} == {2}
    assert [world.run(RemoveDead()) for _ in range(2)] == [4, 0]
    assert {state.isr for topic in world.image.topics.values() for state in topic.partitions.values()} == {(2,)}


def test_a_broker_with_very_many_partitions_comes_and_goes_in_turns() -> None:
    world = World()
    for broker in (1, 2):
        world.add_broker(broker)
    world.add_topic("orders", 1, partitions=4 * DECIDED_A_TURN, replicas=2)
    world.add_topic("more", 2, partitions=DECIDED_A_TURN, replicas=2)
    stopping = RemoveFromLeadership(1).decide(world.image, retried=False)
    assert sum(1 for _ in stopping) == 5
    world.lose_broker(1)
    coming = RegisterBroker(1, 99, 99, ENDPOINTS).decide(world.image, retried=False)
    assert sum(1 for _ in coming) == 5
    world.add_broker(1)
    assert world.run(RemoveFromLeadership(1)) == 5 * DECIDED_A_TURN


def test_the_partitions_of_a_dead_broker_are_given_away_in_turns() -> None:
    world = World()
    for broker in (1, 2):
        world.add_broker(broker)
    world.add_topic("orders", 1, partitions=MOST_AT_ONCE, replicas=2)
    world.add_topic("more", 2, partitions=2 * LOOKS_IN_A_DECISION * DECIDED_A_TURN)
    world.lose_broker(1)
    dying = RemoveDead().decide(world.image, retried=False)
    assert sum(1 for _ in dying) >= MOST_AT_ONCE // DECIDED_A_TURN - 1
    assert world.run(RemoveDead()) == MOST_AT_ONCE
    looking = RemoveDead().decide(world.image, retried=False)
    assert sum(1 for _ in looking) >= 2, "also where nothing is to be changed"
    world.add_broker(1)
    preferring = PreferLeaders().decide(world.image, retried=False)
    assert sum(1 for _ in preferring) >= 2


def test_very_many_in_sync_sets_are_decided_on_in_turns() -> None:
    world = World()
    world.add_broker(1)
    epoch = world.image.brokers[1].epoch
    world.add_topic("orders", 1, partitions=3 * PROPOSALS_A_TURN)
    proposals = tuple(
        AlterPartition(topic_id(1), index, 1, epoch, 0, 0, ((1, epoch),)) for index in range(3 * PROPOSALS_A_TURN)
    )
    together = Together(proposals)
    assert sum(1 for _ in together.decide(world.image, retried=False)) == 3
    replies = world.run(together)
    assert not any(isinstance(reply, Refusal) for reply in replies)


def test_who_is_about_to_stop_gives_away_what_others_can_lead() -> None:
    world, _ = three_replicas()
    world.add_topic("own", 2)
    own = world.image.topics["own"].partitions[0]
    world.run(RemoveFromLeadership(1))
    assert state_of(world) == PartitionState((1, 2, 3), (2, 3), 2, 1, 1)
    world.run(RemoveFromLeadership(own.leader))
    assert world.image.topics["own"].partitions[0] == own, "nobody else holds it"


def test_who_leaves_does_not_control_any_more() -> None:
    world, epochs = three_replicas()
    session = world.server.open_session(1e9)
    world.commit(claim(world.image, broker_id=1, session=session), session=session)
    world.run(FenceBroker(2, epochs[2]))
    assert world.image.controller_id == 1
    world.run(FenceBroker(1, epochs[1]))
    assert (list(world.image.brokers), world.image.controller_id) == ([3], NO_BROKER)


def test_a_process_of_the_same_data_folder_takes_the_place_of_its_former_life() -> None:
    world = World()
    session = world.server.open_session(1e9)
    first = world.run(RegisterBroker(1, session, session, ENDPOINTS, directories=("folder",)), session=session)
    later = world.server.open_session(1e9)
    for directories in ((), ("another folder",)):
        refused = world.run(RegisterBroker(1, later, later, ENDPOINTS, directories=directories), session=later)
        assert isinstance(refused, Refusal)
    second = world.run(RegisterBroker(1, later, later, ENDPOINTS, directories=("folder",)), session=later)
    assert (first, second) == (1, 2)
    world.server.end_session(session)
    assert world.image.brokers[1].epoch == 2


def test_a_process_on_a_copy_of_the_data_folder_is_refused_while_the_other_one_is_registered() -> None:
    """It took the id, and what the other one acknowledged since the copy was made was not in it."""
    world = World()

    def come(place: str) -> int | Refusal:
        session = world.server.open_session(1e9)
        directories = ("folder", "second folder")
        command = RegisterBroker(1, session, session, ENDPOINTS, directories=directories, place=place)
        return world.run(command, session=session)

    first = come("here")
    copy = come("there")
    assert isinstance(copy, Refusal) and copy.error is ErrorCode.DUPLICATE_BROKER_REGISTRATION
    killed_and_back = come("here")
    assert (first, killed_and_back) == (1, 2)
    world.server.end_session(world.image.brokers[1].session)
    assert come("there") == 3


def test_a_fenced_broker_is_registered_no_more_unless_it_lives_anew() -> None:
    world = World()
    epoch = world.add_broker(1)
    assert world.run(FenceBroker(1, epoch + 1)) is False
    assert world.run(FenceBroker(1, epoch)) is True
    assert 1 not in world.image.brokers


def test_an_unclean_member_leaves_the_in_sync_set_before_it_can_lead() -> None:
    """R5: its log may lack what it acknowledged in its former life."""
    world, _ = three_replicas()
    world.lose_broker(1)
    world.add_broker(1, clean=False)
    assert state_of(world) == PartitionState((1, 2, 3), (2, 3), 2, 1, 1)
    world.lose_broker(3)
    world.add_broker(3, clean=False)
    assert state_of(world) == PartitionState((1, 2, 3), (2,), 2, 1, 2)


def two_must_be_in_sync() -> tuple[World, dict[int, int]]:
    world, epochs = three_replicas()
    topic = world.image.topics["orders"]
    value = encode_topic(topic.id, 1, {"min.insync.replicas": "2"})
    world.commit([Put(topic_key("orders"), value, topic.version)])
    return world, epochs


def shrunk(world: World, epochs: dict[int, int], *members: int) -> PartitionState:
    """The leader's in-sync set is these from now on."""
    isr = tuple((member, epochs[member]) for member in members)
    state = state_of(world)
    leader, leader_epoch = state.leader, state.leader_epoch
    new = world.run(AlterPartition(topic_id(1), 0, leader, epochs[leader], leader_epoch, state.partition_epoch, isr))
    assert isinstance(new, PartitionState), new
    assert new == state_of(world)
    return new


def test_who_leaves_while_too_few_are_in_sync_may_lead_next() -> None:
    """R14: nothing was committed since. Who left before that is not known to have everything."""
    world, epochs = two_must_be_in_sync()
    assert shrunk(world, epochs, 1, 2).eligible == ()
    assert shrunk(world, epochs, 1).eligible == (2,)
    world.lose_broker(1)
    assert world.run(RemoveDead()) == 1
    assert state_of(world) == PartitionState((1, 2, 3), (2,), 2, 1, 3, eligible=(1,))
    assert shrunk(world, epochs, 2, 3).eligible == ()


def test_who_did_not_stop_in_order_is_not_eligible_any_more() -> None:
    """R14: its log may lack what was committed."""
    world, epochs = two_must_be_in_sync()
    shrunk(world, epochs, 1)
    for clean in (True, False):
        for broker in (2, 3):
            world.lose_broker(broker)
            world.add_broker(broker, clean=clean or broker == 3)
    assert state_of(world) == PartitionState((1, 2, 3), (1,), 1, 0, 2, eligible=(3,), last_known=(2,))
    world.lose_broker(3)
    world.lose_broker(1)
    assert world.run(RemoveDead()) == 0, "only 2 is there"
    world.add_broker(3)
    assert world.run(RemoveDead()) == 1
    assert state_of(world) == PartitionState((1, 2, 3), (3,), 3, 1, 3, eligible=(1,), last_known=(2,))


def test_a_last_member_that_did_not_stop_in_order_leaves_it_to_who_is_eligible() -> None:
    """R5: these hold everything for certain. Without any it is the best there is."""
    world, epochs = two_must_be_in_sync()
    shrunk(world, epochs, 1)
    for broker in (1, 2, 3):
        world.lose_broker(broker)
    world.add_broker(1, clean=False)
    assert state_of(world)[:3] == ((1, 2, 3), (2, 3), NO_LEADER)
    world.add_broker(2, clean=False)
    assert state_of(world)[:3] == ((1, 2, 3), (3,), NO_LEADER)
    world.add_broker(3, clean=False)
    assert state_of(world)[:3] == ((1, 2, 3), (3,), 3)


def alone_in_sync(replicas: int = 3, *directories: str) -> World:
    """Everything stopped in order, and broker 1 was the last in sync. It had these data folders."""
    world = World()
    for broker in range(1, replicas + 1):
        world.add_broker(broker, directories=directories if broker == 1 else (f"of {broker}",))
    world.add_topic("orders", 1, replicas=replicas)
    for broker in range(replicas, 0, -1):
        world.run(RemoveFromLeadership(broker))
        world.lose_broker(broker)
    assert state_of(world)[1:3] == ((1,), 1)
    return world


@pytest.mark.parametrize(
    ("present", "lost"),
    [(("new",), True), (("new",), False), (("new", "second"), True), (("first", "second"), True)],
    ids=["replaced", "an older disk in its place", "one of two replaced", "only the partition's folder is gone"],
)
@pytest.mark.parametrize("clean", [False, True])
def test_nobody_leads_when_the_disk_of_the_last_member_is_gone_until_another_copy_is_asked_to(
    present: tuple[str, ...], lost: bool, clean: bool
) -> None:
    """R17: it led without a record, and the others cut their logs to that."""
    world = alone_in_sync(3, "first", "second")
    world.add_broker(1, clean=clean, directories=present, lost=lost)
    assert state_of(world) == PartitionState((1, 2, 3), (), NO_LEADER, 1, state_of(world)[4], last_known=(2, 3))
    for broker in (3, 2):
        world.add_broker(broker, directories=(f"of {broker}",))
        assert world.run(RemoveDead()) == 0
    world.lose_broker(1)
    world.add_broker(1, directories=present)
    assert state_of(world).leader == NO_LEADER, "nor in a later life"
    found = Successors.asked(world.image, ORDERS, candidates(state_of(world), world.image.brokers))
    world.run(ElectLeaders(UNCLEAN, (ORDERS,), unclean={ORDERS: found}))
    assert state_of(world)[:4] == ((1, 2, 3), (2,), 2, 2)


def test_the_lost_disk_leads_if_it_is_found_and_asked_to_while_the_others_are_away() -> None:
    world = alone_in_sync(3, "first")
    for directories in ("new",), ("first",):
        world.add_broker(1, directories=directories)
        assert state_of(world)[1:3] == ((), NO_LEADER)
        world.lose_broker(1)
    world.add_broker(1, directories=("first",))
    world.run(ElectLeaders(UNCLEAN, (ORDERS,), unclean={ORDERS: Successors.asked(world.image, ORDERS, (1,))}))
    assert state_of(world)[:3] == ((1, 2, 3), (1,), 1)


@pytest.mark.parametrize(
    ("known", "present"),
    [
        (("first",), ("first",)),
        (("first",), ("another", "first")),
        (("first", "second"), ("another", "first")),
        ((), ("first",)),
    ],
    ids=["the same", "one more", "another was lost", "unknown"],
)
def test_the_last_member_leads_again_where_its_disk_is_there(known: tuple[str, ...], present: tuple[str, ...]) -> None:
    world = alone_in_sync(3, *known)
    world.add_broker(1, clean=False, directories=present)
    assert state_of(world)[:3] == ((1, 2, 3), (1,), 1)
    assert world.image.directories[1].ids == present


def test_the_only_replica_leads_again_on_a_new_disk() -> None:
    world = alone_in_sync(1, "first")
    world.add_broker(1, clean=False, directories=("new",))
    assert state_of(world)[:4] == ((1,), (1,), 1, 1)


def test_where_every_disk_is_gone_the_last_one_leads() -> None:
    world = alone_in_sync(3, "first")
    for broker, leader in (1, NO_LEADER), (2, NO_LEADER), (3, 3):
        world.add_broker(broker, clean=False, directories=("new",))
        assert state_of(world).leader == leader


def test_whose_disk_is_gone_is_neither_in_sync_nor_eligible_nor_last_known() -> None:
    world, epochs = two_must_be_in_sync()
    for broker in (1, 2, 3):
        world.lose_broker(broker)
        epochs[broker] = world.add_broker(broker, directories=(f"of {broker}",))
    shrunk(world, epochs, 1)
    world.lose_broker(3)
    world.add_broker(3, clean=True, directories=("new",))
    assert state_of(world)[:4] == ((1, 2, 3), (1,), 1, 0)
    assert (state_of(world).eligible, state_of(world).last_known) == ((2,), ())
    world.lose_broker(2)
    world.add_broker(2, clean=False, directories=("of 2",))
    assert state_of(world).last_known == (2,)
    world.lose_broker(2)
    world.add_broker(2, clean=False, directories=("new",))
    assert state_of(world)[1:3] == ((1,), 1)
    assert (state_of(world).eligible, state_of(world).last_known) == ((), ())


def test_whose_disk_failed_is_not_eligible() -> None:
    world, epochs = two_must_be_in_sync()
    shrunk(world, epochs, 1)
    assert world.run(GiveUpReplica(topic_id(1), 0, 3))
    assert state_of(world) == PartitionState((1, 2, 3), (1,), 1, 0, 2, eligible=(2,), last_known=(3,))
    assert world.run(GiveUpReplica(topic_id(1), 0, 1)), "another may lead, though none is in sync"
    assert state_of(world) == PartitionState((1, 2, 3), (2,), 2, 1, 3, last_known=(1, 3))
    assert not world.run(GiveUpReplica(topic_id(1), 0, 2))


def test_candidates_are_those_that_may_lack_something_the_last_known_first() -> None:
    state = PartitionState((1, 2, 3), (1,), 1, 0, 0, eligible=(), last_known=(3,))
    assert candidates(state, (2, 3)) == (3, 2)
    assert candidates(state, (1, 2)) == () == candidates(state._replace(leader=NO_LEADER), (1, 2))
    assert candidates(state._replace(eligible=(2,)), (2, 3)) == ()
    assert elect(state, (2, 3), 2, unclean=(3, 2)) == PartitionState((1, 2, 3), (3,), 3, 1, 0)


@pytest.mark.parametrize(
    ("held", "best"),
    [
        ({}, (3, 1, 2)),
        ({1: (4, 10), 2: (4, 12), 3: (3, 99)}, (2, 1, 3)),
        ({2: (4, 10), 3: (-1, 0)}, (2, 1, 3)),
        ({3: (-1, 0)}, (1, 2, 3)),
        ({1: (0, 0), 2: (5, 7), 3: (5, 7)}, (3, 2, 1)),
    ],
    ids=["nobody tells", "by epoch, then length", "one is silent", "one has nothing", "equal"],
)
def test_the_best_copy_comes_first(held: dict[int, tuple[int, int]], best: tuple[int, ...]) -> None:
    assert best_first((3, 1, 2), held) == best


@pytest.mark.parametrize(
    ("state", "alive", "unclean", "expected"),
    [
        (PartitionState((1, 2, 3), (2, 3), 2, 4, 9), (1, 3), (), PartitionState((1, 2, 3), (3,), 3, 5, 9)),
        (PartitionState((3, 1, 2), (1, 2, 3), 3, 0, 0), (1, 2), (), PartitionState((3, 1, 2), (1, 2), 1, 1, 0)),
        (PartitionState((1, 2), (1,), 1, 0, 0), (2,), (), PartitionState((1, 2), (1,), NO_LEADER, 1, 0)),
        (PartitionState((1, 2), (1,), 1, 0, 0), (2,), (2,), PartitionState((1, 2), (2,), 2, 1, 0)),
        (PartitionState((1, 2), (1,), 1, 0, 0), (), (2,), PartitionState((1, 2), (1,), NO_LEADER, 1, 0)),
    ],
)
def test_elections(
    state: PartitionState, alive: tuple[int, ...], unclean: tuple[int, ...], expected: PartitionState
) -> None:
    assert elect(state, alive, 1, unclean=unclean) == expected


def proposal(epochs: dict[int, int], **changed: object) -> AlterPartition:
    values: dict[str, object] = {
        "topic_id": topic_id(1),
        "index": 0,
        "broker_id": 1,
        "broker_epoch": epochs[1],
        "leader_epoch": 0,
        "partition_epoch": 0,
        "isr": ((1, epochs[1]), (2, epochs[2])),
    }
    return AlterPartition(**(values | changed))  # type: ignore[arg-type]


def test_a_leader_changes_the_in_sync_set_and_a_retry_is_answered_not_repeated() -> None:
    world, epochs = three_replicas()
    command = proposal(epochs)
    expected = PartitionState((1, 2, 3), (1, 2), 1, 0, 1)
    assert world.run(command) == expected
    assert state_of(world) == expected
    again = command.decide(world.image, retried=True)
    assert (again.reply, again.ops) == (expected, ())
    repeated = world.run(command)
    assert isinstance(repeated, Refusal) and repeated.error is ErrorCode.INVALID_UPDATE_VERSION


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"topic_id": topic_id(2)}, ErrorCode.UNKNOWN_TOPIC_ID),
        ({"index": 1}, ErrorCode.UNKNOWN_TOPIC_ID),
        ({"broker_epoch": 99}, ErrorCode.STALE_BROKER_EPOCH),
        ({"broker_id": 9}, ErrorCode.STALE_BROKER_EPOCH),
        ({"leader_epoch": 1}, ErrorCode.NOT_CONTROLLER),
        ({"leader_epoch": -1}, ErrorCode.FENCED_LEADER_EPOCH),
        ({"partition_epoch": 1}, ErrorCode.INVALID_UPDATE_VERSION),
        ({"broker_id": 2, "broker_epoch": 2}, ErrorCode.INVALID_REQUEST),
        ({"isr": ((2, 2),)}, ErrorCode.INVALID_REQUEST),
        ({"isr": ((1, 1), (9, 1))}, ErrorCode.INVALID_REQUEST),
        ({"isr": ((1, 1), (2, 1))}, ErrorCode.INELIGIBLE_REPLICA),
    ],
)
def test_only_the_present_leader_with_present_facts_changes_the_in_sync_set(
    changed: dict[str, object], error: ErrorCode
) -> None:
    world, epochs = three_replicas()
    assert epochs == {1: 1, 2: 2, 3: 3}
    refused = world.run(proposal(epochs, **changed))
    assert isinstance(refused, Refusal) and refused.error is error
    assert state_of(world).isr == (1, 2, 3)


def test_a_member_admitted_from_its_former_life_is_refused() -> None:
    """R8."""
    world, epochs = three_replicas()
    world.lose_broker(2)
    world.run(RemoveDead())
    world.add_broker(2)
    refused = world.run(proposal(epochs, partition_epoch=1))
    assert isinstance(refused, Refusal) and refused.error is ErrorCode.INELIGIBLE_REPLICA


def test_producer_ids_are_never_handed_out_twice() -> None:
    world = World()
    blocks = [world.run(AllocateProducerIds()) for _ in range(3)]
    assert blocks == [ProducerIdBlock(at) for at in (0, BLOCK_SIZE, 2 * BLOCK_SIZE)]


def test_a_claim_raises_the_epoch_and_fences_the_former_controller() -> None:
    """R1: what the former controller decided fails on its check."""
    world = World()
    world.add_broker(1)
    old = world._sessions[1]
    world.commit(claim(world.image, broker_id=1, session=old), session=old)
    guard = Check(CONTROLLER_EPOCH, world.image.controller_epoch.version)
    assert (world.image.controller_id, world.image.controller_session) == (1, old)
    assert claim(world.image, broker_id=2, session=old + 1) == ()
    world.server.end_session(old)
    new = world.server.open_session(1e9)
    world.commit(claim(world.image, broker_id=2, session=new), session=new)
    assert (world.image.controller_id, world.image.controller_epoch.value) == (2, 2)
    assert world.server.commit(new, (guard,)) is Result.CONFLICT


def test_a_claim_in_doubt_is_made_again_one_epoch_up() -> None:
    """R2."""
    world = World()
    session = world.server.open_session(1e9)
    world.commit(claim(world.image, broker_id=1, session=session), session=session)
    world.commit(claim(world.image, broker_id=1, session=session), session=session)
    assert (world.image.controller_id, world.image.controller_epoch.value) == (1, 2)


def test_a_leader_leads_on_in_a_later_epoch() -> None:
    world, _ = three_replicas()
    assert world.run(RaiseLeaderEpoch(ORDERS, 1, 7)) == 7
    assert state_of(world) == PartitionState((1, 2, 3), (1, 2, 3), 1, 7, 1)
    assert world.run(RaiseLeaderEpoch(ORDERS, 1, 5)) == 7, "it never goes back"
    assert state_of(world).partition_epoch == 1
    assert world.run(RaiseLeaderEpoch(ORDERS, 2, 9)) == Refusal(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert world.run(RaiseLeaderEpoch(TopicPartition("gone", 0), 1, 9)) == Refusal(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert isinstance(world.run(RaiseLeaderEpoch(ORDERS, 1, 2**31 - 1)), Refusal), "elections need room above"


def test_who_has_jumped_as_far_as_can_be_goes_on_in_single_steps() -> None:
    """Otherwise a coordinator that a forged marker brought there could outdate no marker any more."""
    world, _ = three_replicas()
    assert world.run(RaiseLeaderEpoch(ORDERS, 1, LAST_EPOCH_TO_JUMP_TO)) == LAST_EPOCH_TO_JUMP_TO
    assert isinstance(world.run(RaiseLeaderEpoch(ORDERS, 1, LAST_EPOCH_TO_JUMP_TO + 2)), Refusal)
    assert world.run(RaiseLeaderEpoch(ORDERS, 1, LAST_EPOCH_TO_JUMP_TO + 1)) == LAST_EPOCH_TO_JUMP_TO + 1

"""Deciding about who holds partitions: reassignments go through the in-sync set, elections where they are needed."""

from typing import Any

import pytest

from log.ids import TopicPartition
from service.cluster.controller import (
    AlterPartition,
    Command,
    EndReassignments,
    Refusal,
    RemoveDead,
    Successors,
)
from service.cluster.image import PartitionState
from service.cluster.reassign_commands import PREFERRED, UNCLEAN, ElectLeaders, Reassign
from service.cluster.topic_commands import DeleteTopics
from service.wire.error_codes import ErrorCode
from tests.service.cluster.test_controller import alone_in_sync
from tests.service.cluster.worlds import World, decided, topic_id

ORDERS = TopicPartition("orders", 0)


def world_of(replicas: int = 2, brokers: int = 4) -> tuple[World, dict[int, int]]:
    world = World()
    epochs = {broker: world.add_broker(broker) for broker in range(1, brokers + 1)}
    world.add_topic("orders", 1, replicas=replicas)
    return world, epochs


def state_of(world: World) -> PartitionState:
    state = world.image.partition(ORDERS)
    assert state is not None
    return state


def reassign(world: World, replicas: tuple[int, ...] | None, **more: Any) -> ErrorCode:
    [result] = world.run(Reassign(((ORDERS, replicas),), **more))
    return result.error


def admit(world: World, epochs: dict[int, int], *members: int, min_in_sync: int = 1) -> PartitionState:
    state = state_of(world)
    isr = tuple((member, epochs[member]) for member in members)
    leader = state.leader, epochs[state.leader], state.leader_epoch
    proposed = AlterPartition(topic_id(1), 0, *leader, state.partition_epoch, isr, min_in_sync)
    decided = world.run(proposed)
    assert not isinstance(decided, Refusal)
    assert decided == state_of(world), "the leader is told what holds"
    return decided


def test_a_reassignment_ends_when_all_who_came_are_in_sync() -> None:
    world, epochs = world_of()
    assert reassign(world, (3, 4)) is ErrorCode.NONE
    assert state_of(world)[:3] == ((3, 4, 1, 2), (1, 2), 1)
    assert (state_of(world).adding, state_of(world).removing) == ((3, 4), (1, 2))
    admit(world, epochs, 1, 2, 3)
    assert state_of(world).adding == (3, 4), "one of them is missing still"
    ended = admit(world, epochs, 1, 2, 3, 4)
    assert ended == PartitionState((3, 4), (3, 4), 3, 1, ended.partition_epoch)


@pytest.mark.parametrize(
    ("wanted", "errors", "replicas"),
    [
        (((3, 2), (4, 2)), [ErrorCode.NONE, ErrorCode.NONE], (4, 2, 1)),
        (((3, 2), (3, 2)), [ErrorCode.NONE, ErrorCode.NONE], (3, 2, 1)),
        (((3, 2), (1, 2)), [ErrorCode.NONE, ErrorCode.NONE], (1, 2)),
        (((3, 2), (9,)), [ErrorCode.NONE, ErrorCode.INVALID_REPLICA_ASSIGNMENT], (3, 2, 1)),
    ],
    ids=["others", "the same", "as it is", "impossible"],
)
def test_of_a_partition_that_is_named_twice_the_last_wish_that_can_be_counts(
    wanted: tuple[tuple[int, ...], ...], errors: list[ErrorCode], replicas: tuple[int, ...]
) -> None:
    world, _ = world_of()
    assert [each.error for each in world.run(Reassign(tuple((ORDERS, each) for each in wanted)))] == errors
    assert state_of(world).replicas == replicas


def test_a_replica_more_comes_without_a_change_of_leader_and_one_less_goes_at_once() -> None:
    world, epochs = world_of()
    assert reassign(world, (1, 2, 3)) is ErrorCode.NONE
    ended = admit(world, epochs, 1, 2, 3)
    assert ended[:4] == ((1, 2, 3), (1, 2, 3), 1, 0)
    assert reassign(world, (2,)) is ErrorCode.NONE
    assert state_of(world)[:4] == ((2,), (2,), 2, 1)


@pytest.mark.parametrize("goes", [2, 3], ids=["in sync", "not in sync"])
def test_the_leader_epoch_rises_when_a_replica_goes_though_the_leader_stays(goes: int) -> None:
    """Its broker may not know it yet, and still fetch for the copy that it will delete. If that counted when it is a
    replica again, an empty copy would be in sync, and could lead (seed 3978480015).
    """
    world, epochs = world_of(replicas=3)
    admit(world, epochs, 1, 2)
    stay = tuple(replica for replica in (1, 2, 3) if replica != goes)
    assert reassign(world, stay) is ErrorCode.NONE
    assert (state_of(world).leader, state_of(world).leader_epoch) == (1, 1)
    assert reassign(world, (1, 2, 3)) is ErrorCode.NONE
    assert (state_of(world).leader, state_of(world).leader_epoch) == (1, 1)


def test_a_replica_does_not_go_before_enough_others_hold_what_was_acknowledged() -> None:
    """Else one machine that loses its memory takes it along (seed 391540031)."""
    world, epochs = world_of(replicas=3)
    admit(world, epochs, 1, 3)
    assert reassign(world, (2, 3), min_in_sync=2) is ErrorCode.NONE
    assert state_of(world)[:3] == ((2, 3, 1), (1, 3), 1)
    assert admit(world, epochs, 1, 3, 2)[:3] == ((2, 3), (3, 2), 2)


def test_a_reassignment_does_not_end_on_a_replica_that_is_gone() -> None:
    """The controller has not taken it out of the in-sync set yet. The live copies are dropped, and it may come back
    without its disk.
    """
    world, epochs = world_of(replicas=2)
    world.lose_broker(2)
    assert reassign(world, (2,)) is ErrorCode.NONE
    assert state_of(world)[:3] == ((2, 1), (1, 2), 1), "it waits"
    world.run(RemoveDead())
    epochs[2] = world.add_broker(2)
    assert admit(world, epochs, 1, 2)[:3] == ((2,), (2,), 2)


def test_a_reassignment_does_not_end_while_too_few_of_those_that_stay_are_there() -> None:
    world, _ = world_of(replicas=3)
    world.lose_broker(3)
    assert reassign(world, (2, 3), min_in_sync=2) is ErrorCode.NONE
    assert state_of(world)[:3] == ((2, 3, 1), (1, 2, 3), 1)
    reassign(world, (2, 3), min_in_sync=1)
    assert state_of(world)[:3] == ((2, 3), (2,), 2), "2 alone is enough"


def test_a_reassignment_does_not_end_before_who_comes_is_there() -> None:
    world, epochs = world_of(replicas=1)
    reassign(world, (2, 3))
    admit(world, epochs, 1, 2)
    world.lose_broker(2)
    assert reassign(world, (1, 2)) is ErrorCode.NONE
    assert (state_of(world).adding, state_of(world).isr) == ((2,), (1, 2))


def test_a_reassignment_ends_when_who_was_gone_is_back_in_order() -> None:
    """It is in sync at once, so its leader has nothing to propose, and would end nothing."""
    world, _ = world_of(replicas=2)
    world.lose_broker(2)
    reassign(world, (2,))
    assert world.run(EndReassignments()) == 0
    world.add_broker(2)
    assert state_of(world)[:3] == ((2, 1), (1, 2), 1)
    assert world.run(EndReassignments()) == 1
    assert state_of(world) == PartitionState((2,), (2,), 2, 1, state_of(world).partition_epoch)
    assert world.run(EndReassignments()) == 0


def test_what_is_under_way_is_not_taken_back_in_favour_of_a_replica_that_is_gone() -> None:
    world, epochs = world_of(replicas=1)
    reassign(world, (2, 3))
    admit(world, epochs, 1, 2)
    world.lose_broker(1)
    before = state_of(world)
    assert reassign(world, None) is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert state_of(world) == before
    world.run(RemoveDead())
    assert reassign(world, None) is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert state_of(world)[1:3] == ((2,), 2)


def test_what_is_under_way_is_not_taken_back_from_an_eligible_replica_in_favour_of_one_that_is_gone() -> None:
    world, epochs = world_of(replicas=1)
    reassign(world, (3, 4), min_in_sync=2)
    admit(world, epochs, 1, 3, min_in_sync=2)
    admit(world, epochs, 1, min_in_sync=2)
    assert state_of(world).eligible == (3,)
    world.lose_broker(1)
    assert reassign(world, None, min_in_sync=2) is ErrorCode.INVALID_REPLICA_ASSIGNMENT


def test_what_has_brought_nothing_is_taken_back_though_all_former_replicas_are_gone() -> None:
    world, _ = world_of(replicas=1)
    reassign(world, (2, 3))
    world.lose_broker(1)
    assert reassign(world, None) is ErrorCode.NONE
    assert state_of(world)[:3] == ((1,), (1,), 1)


@pytest.mark.parametrize("ends", ["at once", "with the last admission", "when one is back", "taken back"])
def test_a_reassignment_that_ends_is_refused_if_who_stays_is_gone_by_the_commit(ends: str) -> None:
    """And not if another one is gone."""

    def refused_without(gone: int) -> bool:
        world, epochs = world_of(replicas=1 if ends == "with the last admission" else 3)
        command: Command[Any] = Reassign(((ORDERS, (2, 3)),))
        if ends == "with the last admission":
            world.run(command)
            admit(world, epochs, 1, 2)
            isr = tuple((each, epochs[each]) for each in (1, 2, 3))
            command = AlterPartition(topic_id(1), 0, 1, epochs[1], 0, 2, isr)
        elif ends == "when one is back":
            world.lose_broker(2)
            world.lose_broker(3)
            world.run(command)
            world.add_broker(2)
            world.add_broker(3)
            command = EndReassignments()
        elif ends == "taken back":
            world.run(Reassign(((ORDERS, (2, 3, 4)),)))
            world.run(Reassign(((ORDERS, (4, 2)),)))
            command = Reassign(((ORDERS, None),))
        image = world.image
        world.lose_broker(gone)
        return world.refuses(command, image)

    assert refused_without(2)
    assert refused_without(1) == (ends == "taken back")


def test_what_is_under_way_is_not_taken_back_from_who_holds_what_was_acknowledged() -> None:
    world, epochs = world_of(replicas=2)
    reassign(world, (1, 3, 4), min_in_sync=2)
    admit(world, epochs, 1, 3)
    assert reassign(world, None, min_in_sync=2) is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    [again] = decided(Reassign(((ORDERS, None),), min_in_sync=2), world.image, retried=True).reply
    assert again.error is ErrorCode.INVALID_REPLICA_ASSIGNMENT, "an answer was lost, but it is not taken back"
    admit(world, epochs, 1)
    assert reassign(world, None, min_in_sync=2) is ErrorCode.NONE
    assert state_of(world)[:3] == ((1, 2), (1,), 1)


def test_a_reassignment_can_be_taken_back_and_changed() -> None:
    world, epochs = world_of()
    reassign(world, (3, 4))
    admit(world, epochs, 1, 2, 3)
    assert reassign(world, None) is ErrorCode.NONE
    assert state_of(world)[:4] == ((1, 2), (1, 2), 1, 1)
    assert reassign(world, None) is ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
    reassign(world, (3, 4))
    assert reassign(world, (1, 4)) is ErrorCode.NONE
    assert state_of(world)[:1] == ((1, 4, 3, 2),) or set(state_of(world).removing) == {2, 3}


def test_a_reassignment_whose_answer_was_lost_is_not_repeated_over_what_was_asked_for_since() -> None:
    world, epochs = world_of()
    asked = Reassign(((ORDERS, (3, 4)),), seen=world.image)

    def again() -> tuple[ErrorCode, int]:
        decision = decided(asked, world.image, retried=True)
        return decision.reply[0].error, len(decision.ops)

    assert again() == (ErrorCode.NONE, 1), "the first commit has failed"
    world.run(asked)
    assert again() == (ErrorCode.NONE, 0)
    assert reassign(world, None) is ErrorCode.NONE
    assert again() == (ErrorCode.REQUEST_TIMED_OUT, 0), "it was taken back"
    reassign(world, (3, 4))
    admit(world, epochs, 1, 2, 3, 4)
    assert again() == (ErrorCode.NONE, 0), "it was asked for once more, and has ended"
    world.run(DeleteTopics((topic_id(1),)))
    world.add_topic("orders", 2, replicas=2)
    assert again() == (ErrorCode.REQUEST_TIMED_OUT, 0), "another topic"


@pytest.mark.parametrize("ends", [True, False], ids=["it has ended", "it was cancelled"])
def test_a_cancellation_whose_answer_was_lost_says_whether_the_reassignment_was_cancelled(ends: bool) -> None:
    world, epochs = world_of()
    reassign(world, (3, 4))
    asked = Reassign(((ORDERS, None),), seen=world.image)
    if ends:
        admit(world, epochs, 1, 2, 3, 4)
    else:
        world.run(asked)
    decision = decided(asked, world.image, retried=True)
    told = ErrorCode.NO_REASSIGNMENT_IN_PROGRESS if ends else ErrorCode.NONE
    assert (decision.reply[0].error, decision.ops) == (told, ())


def test_a_cancellation_whose_answer_was_lost_does_not_take_back_what_was_asked_for_since() -> None:
    world, _ = world_of()
    reassign(world, (3, 4))
    asked = Reassign(((ORDERS, None),), seen=world.image)
    world.run(asked)
    reassign(world, (1, 4))
    decision = decided(asked, world.image, retried=True)
    assert (decision.reply[0].error, decision.ops) == (ErrorCode.REQUEST_TIMED_OUT, ())


@pytest.mark.parametrize(
    ("replicas", "error"),
    [
        ((), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ((1, 1), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ((1, 9), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ((1,), ErrorCode.INVALID_REPLICATION_FACTOR),
    ],
)
def test_an_assignment_that_cannot_be_is_refused(replicas: tuple[int, ...], error: ErrorCode) -> None:
    world, _ = world_of()
    before = state_of(world)
    assert reassign(world, replicas, may_change_factor=False) is error
    again = decided(Reassign(((ORDERS, replicas),), False, seen=world.image), world.image, retried=True)
    assert again.reply[0].error is error
    assert state_of(world) == before


def test_leaders_are_elected_where_it_is_needed() -> None:
    world, _ = world_of(replicas=3)

    def elect(kind: int) -> ErrorCode:
        unclean = {ORDERS: Successors.asked(world.image, ORDERS, sorted(world.image.brokers))}
        [result] = world.run(ElectLeaders(kind, (ORDERS,), unclean=unclean))
        return result.error

    assert elect(PREFERRED) is ErrorCode.ELECTION_NOT_NEEDED
    world.lose_broker(1)
    world.run(RemoveDead())
    assert elect(PREFERRED) is ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
    [again] = decided(ElectLeaders(PREFERRED, (ORDERS,)), world.image, retried=True).reply
    assert again.error is ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, "perhaps it led in between"
    assert elect(UNCLEAN) is ErrorCode.ELECTION_NOT_NEEDED
    world.lose_broker(2)
    world.run(RemoveDead())
    world.lose_broker(3)
    assert elect(UNCLEAN) is ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
    world.add_broker(1)
    assert elect(UNCLEAN) is ErrorCode.NONE
    assert (state_of(world).leader, state_of(world).isr) == (1, (1,))
    assert world.run(ElectLeaders(PREFERRED, None)) == []


def test_an_unclean_election_whose_answer_was_lost_elects_nobody_else_when_that_leader_has_died() -> None:
    """It found no leader, and elected another, without what the first had acknowledged alone."""
    world = alone_in_sync(3)
    for broker in (2, 3):
        world.add_broker(broker, clean=False)
    election = ElectLeaders(UNCLEAN, (ORDERS,), unclean={ORDERS: Successors.asked(world.image, ORDERS, (2, 3))})

    def again() -> tuple[ErrorCode, int]:
        decision = decided(election, world.image, retried=True)
        return decision.reply[0].error, len(decision.ops)

    assert again() == (ErrorCode.NONE, 1), "the first commit has failed"
    world.run(election)
    assert state_of(world)[1:3] == ((2,), 2)
    assert again() == (ErrorCode.NONE, 0)
    world.lose_broker(2)
    assert world.run(RemoveDead()) == 0
    assert again() == (ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, 0), "Kafka's clients may ask again then"
    world.add_broker(2)
    assert again() == (ErrorCode.NONE, 0), "it leads again"


def test_an_unclean_election_is_of_the_topic_whose_replicas_were_asked() -> None:
    world = alone_in_sync(2)
    world.add_broker(2, clean=False)
    asked = Successors.asked(world.image, ORDERS, (2,))
    election = ElectLeaders(UNCLEAN, (ORDERS,), unclean={ORDERS: asked._replace(topic_id=topic_id(9))})
    [result] = world.run(election)
    assert result.error is ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
    assert state_of(world)[1:3] == ((1,), 1)

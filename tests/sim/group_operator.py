"""What befalls a simulated group from outside: operators that delete, and members that all go at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from service.groups.commands import DeleteGroup, DeleteOffsets, LeaveGroup, LeavingMember
from service.groups.verdicts import Fault
from tests.sim.group_members import GROUP, Member
from tests.sim.group_world import Broken, GroupWorld

ARRIVED_AFTER_MS = 10
BACK_AFTER_MS = (1, 500, 8_000)
EMPTY_WITHIN_MS = 5_000  # a session, and more
DELETING_MS = 60  # about as long as a deletion in many turns takes
TOLD = (Fault.NON_EMPTY_GROUP, Fault.GROUP_ID_NOT_FOUND, Fault.GROUP_SUBSCRIBED_TO_TOPIC)


def delete_offsets(world: GroupWorld) -> None:
    topic = world.chance.choice(list(world.topics.names()))
    facts = world.topics.by_name(topic)
    assert facts is not None
    world.ask(DeleteOffsets(GROUP, ((topic, tuple(range(facts.partitions))),)), _understood)


def delete_group(world: GroupWorld) -> None:
    world.ask(DeleteGroup(GROUP), _understood)


def all_go(world: GroupWorld) -> None:
    """All members leave, and come back later. Meanwhile the group, or offsets of it, may be deleted, and transactions
    go on.
    """
    for member in world.members:
        member.leave_a_transaction_behind()
    world.after(ARRIVED_AFTER_MS, lambda: _all_leave(world))


def _all_leave(world: GroupWorld) -> None:
    chance = world.chance
    back_after_ms = BACK_AFTER_MS if chance.random() < 0.5 else BACK_AFTER_MS[-1:]
    # A deletion in many turns takes long enough for them to come back meanwhile.
    come_in_between = world.plan.forgotten_at_once[1] == 1 and chance.random() < 0.7
    gone: list[Member] = []
    for member in list(world.members):
        member.say_goodbye()
        if member.instance is not None:
            world.ask(LeaveGroup(GROUP, (LeavingMember("", member.instance),)), lambda reply: None)
        if come_in_between and member.is_alive and not member.is_superseded:
            member.die()
            gone.append(member)
        else:
            member.restart(back_after_ms)
    if come_in_between:
        _delete_when_empty(world, gone, world.now_ms + EMPTY_WITHIN_MS)
    else:
        delete = chance.choice((delete_offsets, delete_group))
        world.after(chance.choice((100, 2_000)), lambda: delete(world))


def _delete_when_empty(world: GroupWorld, gone: list[Member], until_ms: int) -> None:
    """The members come back while their group is being deleted."""
    group = None if world.machine is None else world.machine.group(GROUP)
    if (group is None or not group.is_empty) and world.now_ms < until_ms:
        world.after(20, lambda: _delete_when_empty(world, gone, until_ms))
        return
    delete_group(world)
    for member in gone:
        world.after(world.chance.randint(1, DELETING_MS), member.reborn().start)


def _understood(reply: Any) -> None:
    faults = (
        []
        if reply is None
        else [reply.fault, *(fault for _, each in getattr(reply, "topics", ()) for _, fault in each)]
    )
    if any(fault is not None and fault not in TOLD for fault in faults):
        raise Broken(f"NoSuchAnswer: {reply}")


MISHAPS: dict[str, Callable[[GroupWorld], None]] = {
    "clock": GroupWorld.set_clock,
    "delete offsets": delete_offsets,
    "delete group": delete_group,
    "all go": all_go,
}

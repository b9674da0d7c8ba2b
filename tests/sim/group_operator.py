"""What befalls a simulated group from outside: operators that delete, and members that all go at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from service.groups.commands import DeleteGroup, DeleteOffsets, LeaveGroup, LeavingMember
from service.groups.verdicts import Fault
from tests.sim.group_members import GROUP
from tests.sim.group_world import Broken, GroupWorld

ARRIVED_AFTER_MS = 10
BACK_AFTER_MS = (1, 500, 8_000)
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
    back_after_ms = BACK_AFTER_MS if world.chance.random() < 0.5 else BACK_AFTER_MS[-1:]
    for member in list(world.members):
        member.say_goodbye()
        if member.instance is not None:
            world.ask(LeaveGroup(GROUP, (LeavingMember("", member.instance),)), lambda reply: None)
        member.restart(back_after_ms)
    delete = world.chance.choice((delete_offsets, delete_group))
    world.after(world.chance.choice((100, 2_000)), lambda: delete(world))


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

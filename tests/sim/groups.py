"""`python -m tests.sim.groups`: runs of the group coordinator and its members alone, see tests/sim/group_world.py, and
of a coordinator on a real shard, see tests/sim/gathering.py.

--seed N     one run, with its traceback if it breaks a promise
--runs N     N runs from --from on (default: 1000 seeds drawn anew)
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor

from service.groups import assignment_round, classic_decisions, consumer_decisions, forgetting, migration, resuming
from service.groups.offset_decisions import ZERO_TOPIC_ID
from service.groups.states import ConsumerState
from tests.sim import gathering
from tests.sim.group_members import TOPICS, ClassicMember, ConsumerMember, Member
from tests.sim.group_operator import MISHAPS
from tests.sim.group_world import BEAT_MS, CHAOS_MS, SETTLE_MS, Broken, GroupWorld
from tests.sim.run import fresh_seed, replaced

UPGRADES = ("bidirectional", "upgrade")
RECORD_BYTES = 60  # about as many as a member's target or a tombstone has here
REPLACED_WITHIN_MS = 15_000  # a session, and what two rebalances take of members that are all there

CLASSES: dict[str, type[Member]] = {
    "classic": ClassicMember,
    "static": ClassicMember,
    "consumer": ConsumerMember,
    "static consumer": ConsumerMember,
}


def run(seed: int) -> str:
    """The promise that was broken and how; empty if none was."""
    world = GroupWorld(seed)
    try:
        live(world)
    except Broken as broken:
        return str(broken)
    except AssertionError:  # of the coordinator
        return f"NothingRaises: {traceback.format_exc()}"
    return ""


def run_both(seed: int) -> str:
    """The same of this seed's members, and of its shard."""
    return run(seed) or gathering.run(seed)


def live(world: GroupWorld) -> None:
    steps, members = world.plan.done_at_once
    looks, records = world.plan.forgotten_at_once
    with (
        replaced(consumer_decisions, "SMALL_STEPS_A_TURN", steps),
        replaced(consumer_decisions, "STEPS_AT_ONCE", steps),
        replaced(consumer_decisions, "TARGETS_AT_ONCE", members),
        replaced(consumer_decisions, "TARGETS_BYTES", RECORD_BYTES * members),
        replaced(consumer_decisions, "PART_BYTES", RECORD_BYTES * members),
        replaced(assignment_round, "PART_BYTES", RECORD_BYTES * members),
        replaced(classic_decisions, "ANSWERED_AT_ONCE", members),
        replaced(resuming, "RESUMED_AT_ONCE", members),
        replaced(migration, "PREPARED_AT_ONCE", members),
        replaced(forgetting, "LOOKED_AT_ONCE", looks),
        replaced(forgetting, "GONE_AT_ONCE", records),
        replaced(forgetting, "PART_BYTES", RECORD_BYTES * records),
        replaced(migration, "DOWNGRADED_AT_ONCE", members),
    ):
        _live(world)


def _live(world: GroupWorld) -> None:
    chance = world.chance
    for number, kind in enumerate(world.plan.kinds):
        instance = f"i{number}" if kind.startswith("static") else None
        member = CLASSES[kind](world, f"m{number}", instance=instance, topics=chance.choice(TOPICS))
        world.members.append(member)
        world.after(chance.randint(0, 10_000), member.start)
    begun_ms = world.now_ms
    world.after(world.plan.mishap_ms, lambda: mishap(world, begun_ms + CHAOS_MS))
    world.run_until(begun_ms + CHAOS_MS)
    if world.machine is not None and chance.random() < 0.5:
        world.kill_coordinator()  # the next one finds what was under way, and nothing befalls the members any more
    world.healed = True
    for member in [each for each in world.members if each.rebalance_timeout_ms <= 0]:
        member.restart()
    settle(world)
    if world.plan.lingers:
        one_lingers(world)
        settle(world)
    world.is_hasty = False
    grow(world)  # when nothing else makes anybody look
    one_comes_back(world)
    topics = settle(world)
    for befalls in (
        one_is_replaced,
        one_converts,
        one_comes_late,
        some_go,
        one_takes_another_name,
        one_goes_on_by_the_old_protocol,
    ):
        # A process that was replaced wakes late. If the group has refused its successor, it joins once more, and goes.
        world.run_until(max([world.now_ms, *(member.goes_ms for member in world.members if member.is_superseded)]))
        if members := members_in(world):
            lineages = {member.lineage for member in members}
            befalls(world, members)
            world.run_until(world.now_ms + REPLACED_WITHIN_MS)
            speaking = {type(member) for member in members_in(world)} or {ClassicMember, ConsumerMember}
            were_in = [each for each in world.members if each.lineage in lineages and type(each) in speaking]
            still = {topic for member in were_in if not member.is_superseded for topic in member.topics}
            check_all_is_read(world, topics & still, REPLACED_WITHIN_MS)


def one_lingers(world: GroupWorld) -> None:
    """A classic member goes on with its heartbeats and does not join the next rebalance. The others must not wait for
    longer than its time.
    """
    dynamic = [each for each in world.members if isinstance(each, ClassicMember) and each.instance is None]
    if len(dynamic) > 1:
        lingering, other = world.chance.sample(dynamic, 2)
        lingering.is_to_linger = True
        other.restart()


def one_comes_back(world: GroupWorld) -> None:
    """A static member comes back under its own id, perhaps with other topics, and says them once."""
    static = [each for each in members_in(world) if isinstance(each, ConsumerMember) and each.instance is not None]
    if world.plan.comes_back and static:
        world.chance.choice(static).come_back()


def one_is_replaced(world: GroupWorld, members: list[Member]) -> None:
    """Another process is started as a static member while the first is asleep, with a commit that it sends later."""
    static = [member for member in members if member.instance is not None]
    if static:
        world.chance.choice(static).supersede().start()


def one_converts(world: GroupWorld, members: list[Member]) -> None:
    """A static member comes back with the other protocol, just after a topic has grown. So the group is turned before
    anybody could assign the new partition.
    """
    static = [member for member in members if isinstance(member, ClassicMember) and member.instance is not None]
    if static and world.plan.policy in UPGRADES and all(isinstance(member, ClassicMember) for member in world.members):
        converting = world.chance.choice(static)
        converting.die()
        grow(world)
        converting.reborn(ConsumerMember).start()


def one_comes_late(world: GroupWorld, members: list[Member]) -> None:
    """Another member comes, and each static member dies once when it is to let go of what it gets. Nothing that happens
    later makes the group look again.
    """
    if not world.plan.cooperative or not any(
        isinstance(member, ClassicMember) and member.instance for member in members
    ):
        return
    newcomer = ClassicMember(world, "late", instance=world.chance.choice((None, "late")), topics=TOPICS[-1])
    world.members.append(newcomer)
    static = [member for member in world.members if member.instance is not None]
    world.to_die_letting_go = dict.fromkeys(member.lineage for member in static)
    newcomer.start()


def some_go(world: GroupWorld, members: list[Member]) -> None:
    """One member dies and comes back, or all members of one protocol leave."""
    chance = world.chance
    world.to_die_letting_go.clear()
    leaving = type(chance.choice(members))
    if chance.random() < 0.5 and any(not isinstance(member, leaving) for member in members):
        for member in [each for each in members if isinstance(each, leaving)]:
            member.depart()
    else:
        chance.choice(members).restart()


def one_takes_another_name(world: GroupWorld, members: list[Member]) -> None:
    """A member comes back under its id as an instance that is new, when it is about to be told that it gets what
    another one had. Nothing that happens later makes the group look again.
    """
    dynamic = [member for member in members if member.instance is None and isinstance(member, ConsumerMember)]
    if world.plan.renames and dynamic and len(members) > 1:
        leaving = world.chance.choice(dynamic)
        others = [member for member in members if member is not leaving]
        leaving.depart()
        wait_ms = world.plan.interval_ms + world.chance.randint(1, BEAT_MS)
        world.after(wait_ms, lambda: rename(world, world.chance.choice(others)))


def one_goes_on_by_the_old_protocol(world: GroupWorld, members: list[Member]) -> None:
    """A topic grows, which moves the members that keep what they have to an epoch that is in no record. The next
    process of one of these speaks the old protocol, under the same id, and is told that epoch as its generation.
    """

    def go_on() -> None:
        if kept := [member for member in dynamic if member.is_alive and world.is_ahead_of_the_log(member.member_id)]:
            world.chance.choice(kept).become(None, ClassicMember)

    dynamic = [member for member in members if member.instance is None and isinstance(member, ConsumerMember)]
    if dynamic:
        grow(world)
        world.after(world.plan.interval_ms + 3 * BEAT_MS, go_on)


def settle(world: GroupWorld) -> set[str]:
    """In peace every partition comes to be read; of which topics."""
    world.run_until(world.now_ms + SETTLE_MS)
    world.check_log()
    check_all_is_forgotten(world)
    check_no_more_is_read(world)
    topics = {topic for member in members_in(world) for topic in member.topics}
    check_all_is_read(world, topics, SETTLE_MS)
    return topics


def members_in(world: GroupWorld) -> list[Member]:
    """Others were not allowed in, because the group speaks another protocol, or another process took their place."""
    return [member for member in world.members if member.epoch > 0 and not member.is_superseded]


def mishap(world: GroupWorld, until_ms: int) -> None:
    if world.now_ms >= until_ms:
        return
    chance = world.chance
    awake = [member for member in world.members if member.is_alive and not member.is_asleep and member.member_id]
    usual = ("die", "die", "leave", "sleep", "sleep", "twin", "grow", "anew")
    what = chance.choice((*usual, *world.plan.more_mishaps, *(("rename",) if world.plan.renames else ())))
    if what in MISHAPS:
        MISHAPS[what](world)
    elif what == "grow":
        grow(world)
    elif what == "anew":
        world.make_topic_anew("events")
    elif awake:
        member = chance.choice(awake)
        if what == "die":
            member.restart()
        elif what == "leave":
            member.leave()
        elif what == "sleep":
            member.sleep()
        elif what == "rename":
            rename(world, member)
        elif member.instance is not None and not member.is_superseded:
            member.supersede().start()
    world.after(chance.randint(1, 2 * world.plan.mishap_ms), lambda: mishap(world, until_ms))


def rename(world: GroupWorld, member: Member) -> None:
    if isinstance(member, ConsumerMember) and member.epoch > 0:  # otherwise its join might come after that of the next
        member.become(f"r{world.board.fresh()}")


def grow(world: GroupWorld) -> None:
    name = world.chance.choice(("orders", "events"))
    facts = world.topics.by_name(name)
    assert facts is not None
    world.topics.put(name, facts.partitions + 1)


def check_all_is_forgotten(world: GroupWorld) -> None:
    """No offset is left of a topic that was deleted, by itself at its place."""
    offsets = world.replayed(world.log)._offsets
    for group_id in offsets.group_ids():
        for topic, partitions in offsets.of_group(group_id).items():
            for partition, known in partitions.items():
                is_gone = known.topic_id != ZERO_TOPIC_ID and world.topics.by_id(known.topic_id) is None
                if is_gone and not offsets.is_pending(group_id, topic, partition):
                    raise Broken(
                        f"TheDeletedIsForgotten: {group_id} has {known.offset} of a former {topic}-{partition}"
                    )


def check_no_more_is_read(world: GroupWorld) -> None:
    """By the new protocol what a member says last counts, also if it is an instance that has been there before. By the
    old one an instance that comes back keeps its assignment, and a group that is turned takes that over.
    """
    plan = world.plan
    if not plan.comes_back or plan.converts or not all("consumer" in kind for kind in plan.kinds):
        return
    for member in members_in(world):
        read = {name for partition in member.owned if (name := member.name_of(partition)) is not None}
        if more := read - set(member.topics):
            raise Broken(f"WhatIsSaidCounts: {member.name} names {member.topics}, and reads {sorted(more)}")


def check_all_is_read(world: GroupWorld, topics: Iterable[str], peace_ms: int) -> None:
    wanted = {
        (facts.topic_id, partition)
        for topic in topics
        if (facts := world.topics.by_name(topic)) is not None
        for partition in range(facts.partitions)
    }
    unread = wanted - set(world.board.owners)
    if unread:
        group = world.machine._groups.get("g") if world.machine is not None else None
        state = getattr(group, "state", ConsumerState.EMPTY)
        raise Broken(
            f"EveryPartitionHasAnOwner: after {peace_ms} ms of peace nobody reads {sorted(unread)};"
            f" the group is {state}"
        )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim.groups", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", type=int)
    parser.add_argument("--runs", type=int, default=1_000)
    parser.add_argument("--from", type=int, dest="first")
    arguments = parser.parse_args()
    if arguments.seed is not None:
        world = GroupWorld(arguments.seed)
        print(world.plan)
        live(world)
        print(f"{len(world.log)} batches, {world.deaths} deaths of the coordinator, {world.board.values} values")
        gathered = gathering.live(arguments.seed)
        print(f"{len(gathered.log)} records, {gathered.epoch} leaderships, {sum(gathered.answers.values())} answers")
        return 0
    first = fresh_seed() if arguments.first is None else arguments.first
    seeds = range(first, first + arguments.runs)
    print(f"seeds {first} to {seeds[-1]}; the same again: make sim-groups N={arguments.runs} FROM={first}", flush=True)
    begun, wrong = time.monotonic(), Counter[str]()
    with ProcessPoolExecutor(initializer=gc.freeze) as pool:
        for seed, broken in zip(seeds, pool.map(run_both, seeds, chunksize=10), strict=True):
            if broken:
                wrong[broken.partition(":")[0]] += 1
                print(f"seed {seed}: {broken}", flush=True)
    print(f"{arguments.runs} runs in {time.monotonic() - begun:.0f} s, wrong: {dict(wrong)}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

"""Who controls the cluster, who leads a partition, and when a reassignment is over, as pure functions.

The controller is the broker that holds the ephemeral key `controller`. Rule R1: every commit of a controller checks the
version of `controller_epoch`, and a claim raises it. So a controller that was replaced while it was paused can change
nothing. Rule R2: after a claim whose answer was lost, the key is read. If the key is ours, we claim again with the next
epoch, because nobody can know which of our claims succeeded.
"""

from collections.abc import Collection, Container, Mapping, Sequence

from log.ids import NO_EPOCH
from service.cluster.image import (
    ABSENT,
    CONTROLLER,
    CONTROLLER_EPOCH,
    NO_BROKER,
    NO_LEADER,
    Image,
    PartitionState,
    Topic,
    encode_controller,
    encode_counter,
)
from service.stores.port import Create, Delete, Op, Put

MIN_IN_SYNC = "min.insync.replicas"


def claim(image: Image, *, broker_id: int, session: int, dead: int = NO_BROKER) -> tuple[Op, ...]:
    """The ops by which this session becomes the controller; none if another registered broker is. `dead` is a broker
    whose process has died, although its session has not ended yet.
    """
    if image.controller is not None and image.controller_id != dead and image.controller_session != session:
        return ()
    epoch = image.controller_epoch
    raised: Op = (
        Create(CONTROLLER_EPOCH, encode_counter(1))
        if epoch == ABSENT
        else Put(CONTROLLER_EPOCH, encode_counter(epoch.value + 1), epoch.version)
    )
    own = Create(CONTROLLER, encode_controller(broker_id, session), ephemeral=True)
    if image.controller_id == NO_BROKER:
        return raised, own
    return raised, Delete(CONTROLLER, image.controller_version), own


def least_in_sync(topic: Topic, default: int) -> int:
    """How many replicas must be in sync for a write to be committed; `default` if the topic does not set it."""
    return int(topic.config.get(MIN_IN_SYNC, default))


def required(topic: Topic, least: int) -> int:
    """How many of those each partition of the topic requires: never more than it has replicas."""
    return min((least, *(len(state.replicas) for state in topic.partitions.values())))


def with_isr(state: PartitionState, isr: tuple[int, ...], least: int, *, lost: Collection[int] = ()) -> PartitionState:
    """`state` with this in-sync set, and the eligible replicas that follow from it (R14).

    While fewer than `least` replicas are in sync, nothing is committed. So a replica that leaves the set then holds
    everything that was ever committed, unless it is named in `lost`. Once enough replicas are in sync, only they are
    known to hold everything.
    """
    if len(isr) >= min(least, len(state.replicas)):
        return state._replace(isr=isr, eligible=(), last_known=())
    others = tuple(replica for replica in state.replicas if replica not in isr)
    holders = (*state.isr, *state.eligible)
    eligible = tuple(other for other in others if other in holders and other not in lost)
    last_known = tuple(
        other for other in others if other not in eligible and (other in holders or other in state.last_known)
    )
    return state._replace(isr=isr, eligible=eligible, last_known=last_known)


def candidates(state: PartitionState, alive: Container[int]) -> tuple[int, ...]:
    """The replicas that can lead only uncleanly: those that are alive, the last known ones first, where no member of
    the in-sync set and no eligible replica is. None of them is known to hold everything that was committed.
    """
    living = tuple(replica for replica in state.replicas if replica in alive)
    if state.leader in alive or any(replica in (*state.isr, *state.eligible) for replica in living):
        return ()
    first = tuple(replica for replica in state.last_known if replica in living)
    return (*first, *(replica for replica in living if replica not in first))


def best_first(replicas: Sequence[int], held: Mapping[int, tuple[int, int]]) -> tuple[int, ...]:
    """These replicas, the best copy first. `held` has the last leader epoch and the end offset of those that have told
    them. A copy with a higher epoch is better than a longer one, because the leader of that epoch had everything that
    was committed before. A replica that has told nothing may have something: it comes before those that have nothing.
    """

    def rank(replica: int) -> tuple[int, int, int]:
        epoch, end_offset = held.get(replica, (NO_EPOCH, -1))
        if end_offset < 0:
            return 1, 0, 0
        return (0, -epoch, -end_offset) if end_offset else (2, 0, 0)

    return tuple(sorted(replicas, key=rank))


def elect(state: PartitionState, alive: Container[int], least: int, *, unclean: Sequence[int] = ()) -> PartitionState:
    """Elect a leader, with the next leader epoch: the first replica that is alive and in sync, else the first that is
    alive and eligible, else nobody. `least` is the number of replicas that must be in sync for a write.

    The first replica of `unclean` that is alive may lead if there is no better one (`candidates`). It alone is then in
    sync, and records that it lacks are lost. Without a leader the in-sync set stays as it is. Together with the
    eligible replicas it names those that hold everything acknowledged.
    """
    living = tuple(replica for replica in state.replicas if replica in alive)
    in_sync = tuple(member for member in state.isr if member in alive)
    leader = next((replica for replica in living if replica in in_sync), NO_LEADER)
    if leader == NO_LEADER:
        leader = next((replica for replica in living if replica in state.eligible), NO_LEADER)
        in_sync = (leader,)
    if leader != NO_LEADER:
        return with_isr(state, in_sync, least)._replace(leader=leader, leader_epoch=state.leader_epoch + 1)
    leader = next((replica for replica in unclean if replica in living), NO_LEADER)
    if leader != NO_LEADER:
        state = state._replace(isr=(leader,), eligible=(), last_known=())
    return state._replace(leader=leader, leader_epoch=state.leader_epoch + 1)


def target_of(state: PartitionState) -> tuple[int, ...]:
    """The replicas of the partition after its reassignment."""
    return tuple(replica for replica in state.replicas if replica not in state.removing)


def is_caught_up(state: PartitionState, alive: Container[int], least: int) -> bool:
    """Whether a reassignment can end: all new replicas are in sync, and enough of those that stay are. Enough of them
    then hold what was acknowledged, and the others may go.
    """
    came = all(member in state.isr and member in alive for member in state.adding)
    return came and are_enough(target_of(state), state, alive, least)


def are_enough(replicas: tuple[int, ...], state: PartitionState, alive: Container[int], least: int) -> bool:
    """Whether enough of `replicas` are in sync and alive, if they were the only replicas of the partition. One that is
    gone may be in the in-sync set still, until the controller takes it out. It may come back with another disk.
    """
    living = sum(replica in state.isr and replica in alive for replica in replicas)
    return living >= max(min(least, len(replicas)), 1)


def settled(state: PartitionState, alive: Container[int], least: int) -> PartitionState:
    """The state after a reassignment: only the target replicas are left, and one of them leads."""
    return held_by(target_of(state), state, alive, least)


def held_by(replicas: tuple[int, ...], state: PartitionState, alive: Container[int], least: int) -> PartitionState:
    """The state in which the partition has only these of its replicas, and one of them leads. No reassignment is in
    progress then.

    If one is removed, the leader epoch rises. Until its broker is told, it goes on to fetch for the copy that it will
    delete. If it is a replica again by then, that copy must not count for the new one, which is empty.
    """
    isr = tuple(member for member in state.isr if member in replicas)
    new = with_isr(state._replace(replicas=replicas, adding=(), removing=()), isr, least)
    if new.leader not in replicas:
        return elect(new, alive, least)
    return new if len(replicas) == len(state.replicas) else new._replace(leader_epoch=new.leader_epoch + 1)

"""Who controls the cluster, who leads a partition, and when a reassignment is over, as pure functions.

The controller is the broker that holds the ephemeral key `controller`. Rule R1: every commit of a controller checks the
version of `controller_epoch`, and a claim raises it, so a controller that was replaced while it slept can change
nothing. Rule R2: a claim whose answer was lost is read back; if the key is ours, we claim again one epoch up, because
nobody can know which of our claims won.
"""

from collections.abc import Collection, Container

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


def claim(image: Image, *, broker_id: int, session: int, dead: int = NO_BROKER) -> tuple[Op, ...]:
    """The commit by which this session becomes the controller; nothing when another session is. `dead` is a broker
    whose process has died, though its session lasts.
    """
    if image.controller_id not in (NO_BROKER, dead) and image.controller_session != session:
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
    """How many replicas must be in sync for a write to be committed; `default` where the topic does not say it."""
    return int(topic.config.get("min.insync.replicas", default))


def with_isr(state: PartitionState, isr: tuple[int, ...], least: int, *, lost: Collection[int] = ()) -> PartitionState:
    """`state` with this in-sync set, and who is eligible beside it (R14).

    While fewer than `least` are in sync nothing is committed, so a replica that leaves has everything that ever was,
    unless it is among those that have `lost` some of it. Once enough are in sync they alone are known to have that.
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


def elect(state: PartitionState, alive: Container[int], least: int, *, unclean: bool = False) -> PartitionState:
    """Who leads next, in the next leader epoch: the first replica that is alive and in sync, else the first that is
    alive and eligible, else nobody. `least`: so many must be in sync for a write.

    With `unclean` a replica that is only alive will do, one that was eligible before others, and then it alone is in
    sync: records that it lacks are lost. Without a leader the in-sync set stays as it is: with those that are eligible
    these are the replicas that hold everything acknowledged.
    """
    living = tuple(replica for replica in state.replicas if replica in alive)
    in_sync = tuple(member for member in state.isr if member in alive)
    leader = next((replica for replica in living if replica in in_sync), NO_LEADER)
    if leader == NO_LEADER:
        leader = next((replica for replica in living if replica in state.eligible), NO_LEADER)
        in_sync = (leader,)
    if leader != NO_LEADER:
        return with_isr(state, in_sync, least)._replace(leader=leader, leader_epoch=state.leader_epoch + 1)
    if unclean and living:
        leader = next((replica for replica in living if replica in state.last_known), living[0])
        state = state._replace(isr=(leader,), eligible=(), last_known=())
    return state._replace(leader=leader, leader_epoch=state.leader_epoch + 1)


def target_of(state: PartitionState) -> tuple[int, ...]:
    """Who holds the partition once its reassignment is over."""
    return tuple(replica for replica in state.replicas if replica not in state.removing)


def is_caught_up(state: PartitionState, least: int) -> bool:
    """Whether a reassignment can end: everybody who came is in sync, and enough of those who stay are. What was
    acknowledged is held by so many, and some of these may go now.
    """
    return all(member in state.isr for member in state.adding) and are_enough(target_of(state), state, least)


def are_enough(replicas: tuple[int, ...], state: PartitionState, least: int) -> bool:
    """Whether enough of these are in sync, were they all that hold the partition."""
    return sum(replica in state.isr for replica in replicas) >= max(min(least, len(replicas)), 1)


def settled(state: PartitionState, alive: Container[int], least: int) -> PartitionState:
    """The end of a reassignment: only its target is left, and one of it leads."""
    return held_by(target_of(state), state, alive, least)


def held_by(replicas: tuple[int, ...], state: PartitionState, alive: Container[int], least: int) -> PartitionState:
    """The partition with these of its replicas alone, one of which leads. Nothing is under way any more."""
    isr = tuple(member for member in state.isr if member in replicas)
    new = with_isr(state._replace(replicas=replicas, adding=(), removing=()), isr, least)
    return new if new.leader in replicas else elect(new, alive, least)

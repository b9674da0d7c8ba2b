"""Who controls the cluster, who leads a partition, and when a reassignment is over, as pure functions.

The controller is the broker that holds the ephemeral key `controller`. Rule R1: every commit of a controller checks the
version of `controller_epoch`, and a claim raises it, so a controller that was replaced while it slept can change
nothing. Rule R2: a claim whose answer was lost is read back; if the key is ours, we claim again one epoch up, because
nobody can know which of our claims won.
"""

from collections.abc import Container

from service.cluster.image import (
    ABSENT,
    CONTROLLER,
    CONTROLLER_EPOCH,
    NO_BROKER,
    NO_LEADER,
    Image,
    PartitionState,
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


def elect(state: PartitionState, alive: Container[int], *, unclean: bool = False) -> PartitionState:
    """Who leads next, in the next leader epoch: the first replica that is alive and in sync, else nobody.

    With `unclean` a replica that is only alive will do, and then it alone is in sync: records that it lacks are lost.
    Without a leader the in-sync set stays as it is: those are the replicas that hold everything acknowledged.
    """
    in_sync = tuple(replica for replica in state.replicas if replica in state.isr and replica in alive)
    if in_sync:
        remaining = tuple(member for member in state.isr if member in alive)
        return state._replace(leader=in_sync[0], isr=remaining, leader_epoch=state.leader_epoch + 1)
    living = tuple(replica for replica in state.replicas if replica in alive)
    if unclean and living:
        return state._replace(leader=living[0], isr=living[:1], leader_epoch=state.leader_epoch + 1)
    return state._replace(leader=NO_LEADER, leader_epoch=state.leader_epoch + 1)


def target_of(state: PartitionState) -> tuple[int, ...]:
    """Who holds the partition once its reassignment is over."""
    return tuple(replica for replica in state.replicas if replica not in state.removing)


def is_caught_up(state: PartitionState) -> bool:
    """Whether a reassignment can end: everybody who came is in sync, and somebody who stays is."""
    return all(member in state.isr for member in state.adding) and any(
        member in state.isr for member in target_of(state)
    )


def settled(state: PartitionState, alive: Container[int]) -> PartitionState:
    """The end of a reassignment: only its target is left, and one of it leads."""
    target = target_of(state)
    isr = tuple(member for member in state.isr if member in target)
    new = state._replace(replicas=target, isr=isr, adding=(), removing=())
    return new if new.leader in target else elect(new, alive)

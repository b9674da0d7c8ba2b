"""What a controller decides: an image and a command become the ops of one commit, and the answer that leaves once it
happened.

A `Command` decides for itself: `decide` is pure, reads the image and changes nothing. If the commit meets a newer
version of what it read, the image is brought up to date and it decides again; if the commit's answer was lost it
decides again with `retried`, and must then recognise its own work. Here are the commands about brokers, partitions
and producer ids; those about topics are in `topic_commands`, about configuration in `config_commands`.
"""

from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Generic, Protocol, TypeVar

from idempotence.producer_ids import ProducerIdBlock, next_block
from log.ids import TopicId, TopicPartition
from service.cluster.election import elect, is_caught_up, least_in_sync, settled, with_isr
from service.cluster.image import (
    ABSENT,
    BROKER_EPOCH,
    BROKER_IDS,
    CLUSTER,
    CONTROLLER,
    FEATURES,
    NO_LEADER,
    PRODUCER_IDS,
    Counter,
    Image,
    PartitionState,
    Topic,
    broker_key,
    encode_broker,
    encode_cluster,
    encode_counter,
    encode_features,
    encode_partition,
    partition_key,
)
from service.settings.broker import Endpoint
from service.stores.port import Check, Create, Delete, Op, Put
from service.wire.error_codes import ErrorCode

Reply_co = TypeVar("Reply_co", covariant=True)

LAST_EPOCH_TO_JUMP_TO = 2**31 - 1 - 2**20
"""Leader epochs end at 2^31 - 1: so many are left for elections."""
MOST_AT_ONCE = 1000
"""Partitions that one commit changes for brokers that died."""
FINALIZED_FEATURES = {"group.version": 1, "transaction.version": 2}
"""The levels a new cluster begins with: the consumer group protocol, and transactions whose epoch moves with each of
them.
"""


@dataclass(frozen=True, slots=True)
class Decision(Generic[Reply_co]):
    """`reply` may leave once `ops` are committed; with no ops, at once."""

    reply: Reply_co
    ops: tuple[Op, ...] = ()


class Command(Protocol[Reply_co]):
    def decide(self, image: Image, *, retried: bool) -> Decision[Reply_co]:
        """`retried`: an earlier decision of this very command may have been committed."""
        ...


@dataclass(frozen=True, slots=True)
class Refusal:
    """Not done, and why, as the client is told."""

    error: ErrorCode
    message: str | None = None


def raised(key: str, counter: Counter, value: int) -> Op:
    """Set a counter to `value`, unless somebody else moved it meanwhile."""
    return Create(key, encode_counter(value)) if counter == ABSENT else Put(key, encode_counter(value), counter.version)


def changed(topic_id: TopicId, index: int, old: PartitionState, new: PartitionState) -> Op:
    """The compare-and-set that turns `old` into `new` (R6)."""
    return Put(partition_key(topic_id, index), encode_partition(new), old.partition_epoch)


@dataclass(frozen=True, slots=True)
class FoundCluster:
    """Give the cluster its id and its features, unless it has them. The reply is the cluster's id."""

    cluster_id: str

    def decide(self, image: Image, *, retried: bool) -> Decision[str]:
        if image.cluster_id:
            return Decision(image.cluster_id)
        made = Create(CLUSTER, encode_cluster(self.cluster_id)), Create(FEATURES, encode_features(FINALIZED_FEATURES))
        return Decision(self.cluster_id, made)


@dataclass(frozen=True, slots=True)
class TakeBrokerId:
    """A number for a broker that brought none: above all that were ever given or are in use."""

    def decide(self, image: Image, *, retried: bool) -> Decision[int]:
        replicas = (
            id for topic in image.topics.values() for state in topic.partitions.values() for id in state.replicas
        )
        taken = max((image.broker_ids.value, *image.brokers, *replicas))
        return Decision(taken + 1, (raised(BROKER_IDS, image.broker_ids, taken + 1),))


@dataclass(frozen=True, slots=True)
class RegisterBroker:
    """A broker begins a life. The reply is its epoch, or a refusal while another life with its id is registered.

    The registration and the counter its epoch comes from change in one commit, so epochs order lives (R3). `clean`
    says that its former life ended in order and lost nothing. After any other end its log may lack a tail it was
    trusted with: it gets no old grant back (R4), and where others hold everything it leaves the in-sync set and is not
    eligible (R5, R14). `min_in_sync` counts for topics that don't say it.
    """

    broker_id: int
    session: int
    endpoints: tuple[Endpoint, ...]
    rack: str | None = None
    clean: bool = False
    home: str = ""
    """The id of its data folder. Only one process can have that, so what is registered with it is a former life."""
    min_in_sync: int = 1

    def decide(self, image: Image, *, retried: bool) -> Decision[int | Refusal]:
        present = image.brokers.get(self.broker_id)
        if present is not None and present.session == self.session:
            return Decision(present.epoch)
        former: tuple[Op, ...] = ()
        if present is not None:
            if not self.home or present.home != self.home:
                message = f"Another broker is registered with that broker id: {self.broker_id}."
                return Decision(Refusal(ErrorCode.DUPLICATE_BROKER_REGISTRATION, message))
            former = (Delete(broker_key(self.broker_id), present.version),)
        epoch = image.broker_epoch.value + 1
        registration = encode_broker(epoch, self.session, self.endpoints, self.rack, self.home)
        return Decision(
            epoch,
            (
                raised(BROKER_EPOCH, image.broker_epoch, epoch),
                *former,
                Create(broker_key(self.broker_id), registration, ephemeral=True),
                *_returned(image, self.broker_id, self.min_in_sync, clean=self.clean),
            ),
        )


def _returned(image: Image, broker_id: int, min_in_sync: int, *, clean: bool) -> Iterator[Op]:
    """What becomes of the partitions of a broker that is there again."""
    alive = (*image.brokers, broker_id)
    for topic in image.topics.values():
        least = least_in_sync(topic, min_in_sync)
        for index, state in topic.partitions.items():
            if broker_id not in state.isr and broker_id not in state.eligible:
                continue
            new = _after_return(state, broker_id, alive, least, clean=clean)
            if new != state:
                yield changed(topic.id, index, state, new)


def _after_return(
    state: PartitionState, broker_id: int, alive: tuple[int, ...], least: int, *, clean: bool
) -> PartitionState:
    # While nobody leads, who is eligible holds no less than who is in sync.
    others = _but(broker_id, state.isr) or _but(broker_id, state.eligible)
    if not clean and others:
        state = with_isr(state, others, least, lost=(broker_id,))
    if state.leader == NO_LEADER or (state.leader == broker_id and not clean):
        return elect(state, alive, least)
    return state


def _but(broker_id: int, members: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(member for member in members if member != broker_id)


@dataclass(frozen=True, slots=True)
class RemoveFromLeadership:
    """A broker is about to stop: what it leads is led by others from now on, where one is in sync, and nobody waits for
    it. The reply is the number of partitions that changed.
    """

    broker_id: int
    min_in_sync: int = 1

    def decide(self, image: Image, *, retried: bool) -> Decision[int]:
        alive = tuple(broker for broker in image.brokers if broker != self.broker_id)
        ops = tuple(_without(image, alive, lambda state: self.broker_id in state.isr, self.min_in_sync))
        return Decision(len(ops), ops)


@dataclass(frozen=True, slots=True)
class RemoveDead:
    """The controller's answer to brokers that are gone: others lead what they led, where one is in sync, and nobody
    waits for them. Decided on what the image says, so it comes to the same however often it is done. The reply is
    the number of partitions that changed: of very many only some do, and then it is for the caller to go on.

    A partition whose in-sync and eligible replicas are all gone stays as it is: they hold everything acknowledged, so
    one of them leads next. Only where `unclean` allows it another one does, and what it lacks is lost.
    """

    unclean: Callable[[Topic], bool] = lambda topic: False
    min_in_sync: int = 1

    def decide(self, image: Image, *, retried: bool) -> Decision[int]:
        alive = image.brokers
        touched: dict[tuple[int, ...], bool] = {}  # many partitions have the same members

        def concerned(state: PartitionState) -> bool:
            if (known := touched.get(state.isr)) is None:
                known = touched[state.isr] = any(member not in alive for member in state.isr)
            return known or state.leader not in alive

        ops = tuple(islice(_without(image, alive, concerned, self.min_in_sync, self.unclean), MOST_AT_ONCE))
        return Decision(len(ops), ops)


@dataclass(frozen=True, slots=True)
class PreferLeaders:
    """The first replica of a partition leads it, where it lives and is in sync: of all partitions, or those named. The
    reply is the number of partitions that changed.
    """

    only: frozenset[TopicPartition] | None = None

    def decide(self, image: Image, *, retried: bool) -> Decision[int]:
        ops = tuple(islice(self._moves(image), MOST_AT_ONCE))
        return Decision(len(ops), ops)

    def _moves(self, image: Image) -> Iterator[Op]:
        for topic in image.topics.values():
            for index, state in topic.partitions.items():
                first = state.replicas[0]
                if state.leader in (first, NO_LEADER) or first not in state.isr or first not in image.brokers:
                    continue
                if self.only is None or TopicPartition(topic.name, index) in self.only:
                    new = state._replace(leader=first, leader_epoch=state.leader_epoch + 1)
                    yield changed(topic.id, index, state, new)


@dataclass(frozen=True, slots=True)
class FenceBroker:
    """A broker's process is known to be dead, or leaves: it is not registered any more, and controls nothing. Should it
    live after all, it can commit nothing, and joins again. The reply says whether that life was registered.
    """

    broker_id: int
    broker_epoch: int

    def decide(self, image: Image, *, retried: bool) -> Decision[bool]:
        broker = image.brokers.get(self.broker_id)
        if broker is None or broker.epoch != self.broker_epoch:
            return Decision(False)
        controls = image.controller_id == self.broker_id
        resigned = (Delete(CONTROLLER, image.controller_version),) if controls else ()
        return Decision(True, (*resigned, Delete(broker_key(self.broker_id), broker.version)))


def _without(
    image: Image,
    alive: Container[int],
    concerned: Callable[[PartitionState], bool],
    min_in_sync: int,
    unclean: Callable[[Topic], bool] = lambda topic: False,
) -> Iterator[Op]:
    """The changes by which partitions that are `concerned` do without brokers that are not `alive`."""
    for topic in image.topics.values():
        may_lose, least = False, least_in_sync(topic, min_in_sync)
        for index, state in topic.partitions.items():
            if not concerned(state):
                continue
            if state.leader in alive:
                new = with_isr(state, tuple(member for member in state.isr if member in alive), least)
            else:
                may_lose = may_lose or unclean(topic)
                new = elect(state, alive, least, unclean=may_lose)
            if new != state and new.leader != NO_LEADER:
                yield changed(topic.id, index, state, new)


@dataclass(frozen=True, slots=True)
class Together:
    """Several proposals in one commit. The reply is the reply to each."""

    proposals: "tuple[AlterPartition, ...]"

    def decide(self, image: Image, *, retried: bool) -> "Decision[list[PartitionState | Refusal]]":
        replies: list[PartitionState | Refusal] = []
        ops: dict[Op, None] = {}
        touched: dict[str, None] = {}
        for proposal in self.proposals:
            key = partition_key(proposal.topic_id, proposal.index)
            decision = proposal.decide(image, retried=retried)
            if decision.ops and key in touched:
                replies.append(Refusal(ErrorCode.INVALID_UPDATE_VERSION))
                continue
            touched |= dict.fromkeys([key] if decision.ops else [])
            ops |= dict.fromkeys(decision.ops)
            replies.append(decision.reply)
        return Decision(replies, tuple(ops))


@dataclass(frozen=True, slots=True)
class AlterPartition:
    """A leader proposes a new in-sync set: `isr` names each member with the broker epoch in which it caught up (R8).
    The reply is the state that holds then.
    """

    topic_id: TopicId
    index: int
    broker_id: int
    broker_epoch: int
    leader_epoch: int
    partition_epoch: int
    isr: tuple[tuple[int, int], ...]
    min_in_sync: int = 1

    def decide(self, image: Image, *, retried: bool) -> Decision[PartitionState | Refusal]:
        topic = image.topic_by_id(self.topic_id)
        state = topic.partitions.get(self.index) if topic is not None else None
        if topic is None or state is None:
            return Decision(Refusal(ErrorCode.UNKNOWN_TOPIC_ID))
        members = tuple(member for member, _ in self.isr)
        if retried and state.isr == members and state.partition_epoch == self.partition_epoch + 1:
            return Decision(state)
        if (refusal := self._refusal(image, state)) is not None:
            return Decision(refusal)
        # A replica that is admitted must live, and in the life in which it caught up (R8), when this is committed.
        admitted = [image.brokers[member] for member in members if member not in state.isr]
        lives = [Check(broker_key(broker.id), broker.version) for broker in admitted]
        if lives:
            lives.append(Check(BROKER_EPOCH, image.broker_epoch.version))
        least = least_in_sync(topic, self.min_in_sync)
        new = with_isr(state, members, least)._replace(partition_epoch=state.partition_epoch + 1)
        if (new.adding or new.removing) and is_caught_up(new, least):
            new = settled(new, image.brokers, least)
        return Decision(new, (*lives, changed(self.topic_id, self.index, state, new)))

    def _refusal(self, image: Image, state: PartitionState) -> Refusal | None:
        proposer = image.brokers.get(self.broker_id)
        if proposer is None or proposer.epoch != self.broker_epoch:
            return Refusal(ErrorCode.STALE_BROKER_EPOCH)
        if self.leader_epoch > state.leader_epoch:
            return Refusal(ErrorCode.NOT_CONTROLLER)  # it knows more than we do
        if self.leader_epoch < state.leader_epoch:
            return Refusal(ErrorCode.FENCED_LEADER_EPOCH)
        if self.broker_id != state.leader:
            return Refusal(ErrorCode.INVALID_REQUEST)
        if self.partition_epoch != state.partition_epoch:
            return Refusal(ErrorCode.INVALID_UPDATE_VERSION)
        members = [member for member, _ in self.isr]
        if state.leader not in members or any(member not in state.replicas for member in members):
            return Refusal(ErrorCode.INVALID_REQUEST)
        for member, epoch in self.isr:
            broker = image.brokers.get(member)
            if broker is None or broker.epoch != epoch:
                return Refusal(ErrorCode.INELIGIBLE_REPLICA)
        return None


@dataclass(frozen=True, slots=True)
class GiveUpReplica:
    """A broker can't serve its replica any more, for its disk has failed: another that is in sync or eligible leads,
    and nobody waits for this one. Where there is no other nothing changes. The reply says whether something did.
    """

    topic_id: TopicId
    index: int
    broker_id: int
    min_in_sync: int = 1

    def decide(self, image: Image, *, retried: bool) -> Decision[bool]:
        topic = image.topic_by_id(self.topic_id)
        state = topic.partitions.get(self.index) if topic is not None else None
        if topic is None or state is None or self.broker_id not in (*state.isr, *state.eligible):
            return Decision(False)
        least = least_in_sync(topic, self.min_in_sync)
        new = with_isr(state, _but(self.broker_id, state.isr), least, lost=(self.broker_id,))
        if state.leader == self.broker_id:
            new = elect(new, tuple(broker for broker in image.brokers if broker != self.broker_id), least)
        if not new.isr or new.leader == NO_LEADER:
            return Decision(False)
        return Decision(True, (changed(self.topic_id, self.index, state, new),))


@dataclass(frozen=True, slots=True)
class ConfirmLeader:
    """Whether a broker leads a partition in that epoch still, by the store's word: nobody else can have led before the
    answer (R9).
    """

    topic_id: TopicId
    index: int
    broker_id: int
    leader_epoch: int

    def decide(self, image: Image, *, retried: bool) -> Decision[bool]:
        topic = image.topic_by_id(self.topic_id)
        state = topic.partitions.get(self.index) if topic is not None else None
        if state is None or (state.leader, state.leader_epoch) != (self.broker_id, self.leader_epoch):
            return Decision(False)
        return Decision(True, (Check(partition_key(self.topic_id, self.index), state.partition_epoch),))


@dataclass(frozen=True, slots=True)
class RaiseLeaderEpoch:
    """A leader has met what it must obey: an epoch above its own. It leads on, in that one at least. The reply is the
    leader epoch that holds then.
    """

    partition: TopicPartition
    broker_id: int
    at_least: int

    def decide(self, image: Image, *, retried: bool) -> Decision[int | Refusal]:
        topic = image.topics.get(self.partition.topic)
        state = topic.partitions.get(self.partition.partition) if topic is not None else None
        if topic is None or state is None or state.leader != self.broker_id:
            return Decision(Refusal(ErrorCode.NOT_LEADER_OR_FOLLOWER))
        if self.at_least > LAST_EPOCH_TO_JUMP_TO:
            return Decision(Refusal(ErrorCode.INVALID_REQUEST, f"There is no room above leader epoch {self.at_least}."))
        if state.leader_epoch >= self.at_least:
            return Decision(state.leader_epoch)
        new = state._replace(leader_epoch=self.at_least)
        return Decision(self.at_least, (changed(topic.id, self.partition.partition, state, new),))


@dataclass(frozen=True, slots=True)
class AllocateProducerIds:
    """A block of producer ids. When the answer was lost the block may be, too: ids are plenty."""

    def decide(self, image: Image, *, retried: bool) -> Decision[ProducerIdBlock]:
        block = next_block(image.producer_ids.value)
        return Decision(block, (raised(PRODUCER_IDS, image.producer_ids, block.end),))

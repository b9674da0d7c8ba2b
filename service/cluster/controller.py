"""What a controller decides: from an image and a command come the ops of one commit, and the reply that is sent once
the commit has happened.

A `Command` decides for itself: `decide` is pure, reads the image and changes nothing. If the commit fails because
something that the command has read was changed, the image is brought up to date and `decide` is called again. If the
commit's answer was lost, `decide` is called again with `retried`, and must then recognise its own earlier work. This
module has the commands about brokers, partitions and producer ids. Those about topics are in `topic_commands`, those
about configuration in `config_commands`.
"""

from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, Protocol, TypeVar

from idempotence.producer_ids import ProducerIdBlock, next_block
from log.ids import TopicId, TopicPartition
from service.cluster.election import elect, is_caught_up, least_in_sync, settled, with_isr
from service.cluster.image import (
    ABSENT,
    ALL_BROKERS,
    BROKER_EPOCH,
    BROKER_IDS,
    CLUSTER,
    CONTROLLER,
    FEATURES,
    NO_CONFIG,
    NO_DIRECTORIES,
    NO_LEADER,
    NO_LIFE,
    PRODUCER_IDS,
    Image,
    PartitionState,
    RegisteredBroker,
    StoredCounter,
    StoredLife,
    Topic,
    broker_config_key,
    broker_key,
    directories_key,
    encode_broker,
    encode_cluster,
    encode_config,
    encode_counter,
    encode_directories,
    encode_features,
    encode_life,
    encode_partition,
    life_key,
    partition_key,
    topic_key,
)
from service.settings.broker import Endpoint
from service.stores.port import Check, Create, Delete, Op, Put
from service.turns import Steps, Turn
from service.wire.error_codes import ErrorCode

Reply_co = TypeVar("Reply_co", covariant=True)

LAST_EPOCH_TO_JUMP_TO = 2**31 - 1 - 2**20
"""Leader epochs end at 2^31 - 1. No jump goes beyond this, so that epochs are left for elections."""
DECIDED_A_TURN = 250
"""How many things of a request are decided about in one turn of the loop. Each takes five to twenty microseconds."""
PROPOSALS_A_TURN = 80
"""The same for proposals of in-sync sets, each of which takes a tenth of a millisecond."""
LOOKS_IN_A_DECISION = 10
"""To look at a partition that stays as it is takes about a tenth of a decision."""
MOST_AT_ONCE = 1000
"""The most partitions that one commit changes."""
FINALIZED_FEATURES = {"group.version": 1, "transaction.version": 2}
"""The feature levels of a new cluster: the consumer group protocol, and transactions that raise the producer's epoch
each time.
"""


@dataclass(frozen=True, slots=True)
class MetadataDecision(Generic[Reply_co]):
    """`reply` may be sent once `ops` are committed; immediately if there are none."""

    reply: Reply_co
    ops: tuple[Op, ...] = ()


class Command(Protocol[Reply_co]):
    def decide(self, image: Image, *, retried: bool) -> MetadataDecision[Reply_co] | Steps[MetadataDecision[Reply_co]]:
        """With `retried`, an earlier decision of this same command may have been committed. A command that names any
        number of things decides in steps.
        """
        ...


@dataclass(frozen=True, slots=True)
class Refusal:
    """The command was not carried out; the reason is for the client."""

    error: ErrorCode
    message: str | None = None


class ItemRefused(Exception):
    """One item of a command is not carried out; the others may be."""

    def __init__(self, error: ErrorCode, message: str | None = None) -> None:
        super().__init__(message)
        self.error = error
        self.message = message


def raised(key: str, counter: StoredCounter, value: int) -> Op:
    """Set a counter to `value`, unless it has changed since the image."""
    return Create(key, encode_counter(value)) if counter == ABSENT else Put(key, encode_counter(value), counter.version)


def changed(topic_id: TopicId, index: int, old: PartitionState, new: PartitionState) -> Op:
    """The op that turns `old` into `new`, if the partition is still `old` (R6)."""
    assert set(new.isr) <= set(new.replicas), "only replicas are in sync"
    assert new.leader in (NO_LEADER, *new.isr), "who leads is in sync"
    assert new.leader in (NO_LEADER, old.leader) or new.leader_epoch > old.leader_epoch, "an epoch has one leader"
    return Put(partition_key(topic_id, index), encode_partition(new), old.partition_epoch)


def alive_still(image: Image, members: Iterable[int]) -> list[Op]:
    """Checks that those of these brokers that are alive still are when this is committed, in the same lives (R8)."""
    alive = [image.brokers[member] for member in dict.fromkeys(members) if member in image.brokers]
    lives: list[Op] = [Check(broker_key(broker.id), broker.version) for broker in alive]
    return [*lives, Check(BROKER_EPOCH, image.broker_epoch.version)] if lives else []


@dataclass(frozen=True, slots=True)
class FoundCluster:
    """Give the cluster its id and its features, if it has none yet. The reply is the cluster's id."""

    cluster_id: str

    def decide(self, image: Image, *, retried: bool) -> MetadataDecision[str]:
        if image.cluster_id:
            return MetadataDecision(image.cluster_id)
        made = Create(CLUSTER, encode_cluster(self.cluster_id)), Create(FEATURES, encode_features(FINALIZED_FEATURES))
        return MetadataDecision(self.cluster_id, made)


@dataclass(frozen=True, slots=True)
class TakeBrokerId:
    """An id for a broker that has none: higher than all ids that were ever given out or are in use."""

    def decide(self, image: Image, *, retried: bool) -> MetadataDecision[int]:
        replicas = (
            id for topic in image.topics.values() for state in topic.partitions.values() for id in state.replicas
        )
        taken = max((image.broker_ids.value, *image.brokers, *replicas))
        return MetadataDecision(taken + 1, (raised(BROKER_IDS, image.broker_ids, taken + 1),))


def id_is_taken(broker_id: int) -> str:
    return f"Another broker is registered with that broker id: {broker_id}."


@dataclass(frozen=True, slots=True)
class RegisterBroker:
    """Register a broker that has started ("begins a life"). The reply is its broker epoch, or a refusal while another
    process is registered under its id.

    If the former life of this broker was killed, its registration may be there still, until its session ends. It is
    replaced at once if it names the same data folder at the same place, which no process uses any more.

    The broker epoch comes from a counter. The counter and the registration change in one commit, so the epochs order
    the lives of a broker (R3). A life is a clean start if the one before it was of the same process, which lost
    nothing, or ended in order: if `closed_life` is the broker's last one, and not an earlier one to which a copy of the
    data folder has gone back. After any other end the broker's log may lack records that it was trusted to hold. Then
    no leadership of its former life goes on: those partitions elect a leader (R4). If other replicas hold everything,
    it also leaves the in-sync set and is not eligible (R5, R14). `min_in_sync` is used for topics that do not set it.

    A broker may have lost data folders since it registered last: its disk was replaced, or is not mounted. Or folders
    of single partitions are gone. Then nobody takes it for a holder of what was there, not even where it alone was in
    sync (R17).
    """

    broker_id: int
    session: int
    process: int
    """The first session that this process began: it tells it from others with the same data folder."""
    endpoints: tuple[Endpoint, ...]
    rack: str | None = None
    closed_life: int | None = None
    """The broker epoch of the life whose clean stop the data folders tell of, or `UNNAMED_LIFE`. A broker that an
    earlier release has stopped is believed if no later one has registered it.
    """
    directories: tuple[str, ...] = ()
    """The ids of the broker's data folders, in order."""
    min_in_sync: int = 1
    lost: Container[tuple[TopicId, int]] = ()
    """The partitions that are empty now, and were not: with a data folder, or alone."""
    place: str = ""
    """Where the first data folder is (`Disk.place`). Only one process can use a folder, so an older registration with
    the same folder at the same place belongs to a former life of this broker. One with another place may be of a
    process that lives: on the folder of which this is a copy, or on a copy.
    """
    joins_again: bool = False
    """This process was registered before. It is refused if another one was since, though that may be gone: with a copy
    of the data folder, it has taken what this one lacks.
    """

    def decide(self, image: Image, *, retried: bool) -> Steps[MetadataDecision[int | Refusal]]:
        present = image.brokers.get(self.broker_id)
        if present is not None and present.session == self.session:
            return MetadataDecision(present.epoch)
        if self.joins_again and self._last(image).process != self.process:
            return MetadataDecision(Refusal(ErrorCode.DUPLICATE_BROKER_REGISTRATION, id_is_taken(self.broker_id)))
        former: tuple[Op, ...] = ()
        home = f"{self.directories[0]} {self.place}" if self.directories else ""
        if present is not None:
            if not home or present.home != home:
                return MetadataDecision(Refusal(ErrorCode.DUPLICATE_BROKER_REGISTRATION, id_is_taken(self.broker_id)))
            former = (Delete(broker_key(self.broker_id), present.version),)
        epoch = image.broker_epoch.value + 1
        registration = encode_broker(epoch, self.session, self.endpoints, self.rack, home)
        returned = yield from _decided(self._returned(image))
        return MetadataDecision(
            epoch,
            (
                raised(BROKER_EPOCH, image.broker_epoch, epoch),
                *former,
                Create(broker_key(self.broker_id), registration, ephemeral=True),
                *self._kept_directories(image),
                self._kept_life(image, epoch),
                *returned,
            ),
        )

    def _kept_directories(self, image: Image) -> tuple[Op, ...]:
        known, key = image.directories.get(self.broker_id, NO_DIRECTORIES), directories_key(self.broker_id)
        if not self.directories or known.ids == self.directories:
            return ()
        value = encode_directories(self.directories)
        return (Create(key, value) if known == NO_DIRECTORIES else Put(key, value, known.version),)

    def _kept_life(self, image: Image, epoch: int) -> Op:
        known, key, value = self._last(image), life_key(self.broker_id), encode_life(epoch, self.process)
        return Create(key, value) if known == NO_LIFE else Put(key, value, known.version)

    def _last(self, image: Image) -> StoredLife:
        return image.lives.get(self.broker_id, NO_LIFE)

    def _returned(self, image: Image) -> Iterator[Op | None]:
        """The changes to partitions of a broker that has come back, for `_decided`."""
        alive = (*image.brokers, self.broker_id)
        known = image.directories.get(self.broker_id, NO_DIRECTORIES).ids
        has_lost_some = bool(self.directories) and not set(known) <= set(self.directories)
        last = self._last(image)
        clean = not has_lost_some and (self.process == last.process or self.closed_life == last.epoch)
        has_lost_all = has_lost_some and set(known).isdisjoint(self.directories)
        for topic in image.topics.values():
            least = least_in_sync(topic, self.min_in_sync)
            for index, state in topic.partitions.items():
                if self.broker_id not in (*state.isr, *state.eligible, *state.last_known):
                    yield None
                    continue
                if has_lost_all or (topic.id, index) in self.lost:
                    new = _after_loss(state, self.broker_id, alive, least)
                else:
                    new = _after_return(state, self.broker_id, alive, least, clean=clean)
                yield changed(topic.id, index, state, new) if new != state else None


def _decided(ops: Iterator[Op | None], most: int | None = None) -> Steps[list[Op]]:
    """All these ops, or the first `most`. Each is decided on when it is asked for. None stands for a partition that
    stays as it is.
    """
    turn, decided = Turn(DECIDED_A_TURN * LOOKS_IN_A_DECISION), []
    for op in ops:
        if op is not None:
            decided.append(op)
            if len(decided) == most:
                break
        if turn.is_over(1 if op is None else LOOKS_IN_A_DECISION):
            yield
    return decided


def _after_return(
    state: PartitionState, broker_id: int, alive: tuple[int, ...], least: int, *, clean: bool
) -> PartitionState:
    if broker_id not in (*state.isr, *state.eligible):
        return state
    # While there is no leader, eligible replicas hold no less than those in sync.
    others = _but(broker_id, state.isr) or _but(broker_id, state.eligible)
    if not clean and others:
        state = with_isr(state, others, least, lost=(broker_id,))
    if state.leader == NO_LEADER or (state.leader == broker_id and not clean):
        return elect(state, alive, least)
    return state


def _after_loss(state: PartitionState, broker_id: int, alive: tuple[int, ...], least: int) -> PartitionState:
    """The state when the copy of a broker is lost (R17). If nobody else is in sync or eligible, but others have copies,
    nobody leads until an operator lets one of them lead, uncleanly. They may lack some of what was committed. If there
    was no other copy, the partition begins again without records. So it does once all replicas are alive and have
    nothing, because each has lost its copy (`Duties`).
    """
    if _but(broker_id, (*state.isr, *state.eligible)):
        new = _after_return(state, broker_id, alive, least, clean=False)
        return new._replace(last_known=_but(broker_id, new.last_known))
    known = _but(broker_id, state.last_known)
    if state.isr:  # the first loss: the other copies were not looked at yet
        known += tuple(each for each in _but(broker_id, state.replicas) if each not in known)
    if not known:
        return elect(state._replace(isr=(broker_id,)), alive, least)
    return elect(state._replace(isr=(), eligible=(), last_known=known), alive, least)


def _but(broker_id: int, members: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(member for member in members if member != broker_id)


@dataclass(frozen=True, slots=True)
class RemoveFromLeadership:
    """A broker is about to stop. Another in-sync replica leads each partition that it led, and it leaves the in-sync
    sets, so that nothing waits for it. The reply is the number of partitions that changed.
    """

    broker_id: int
    min_in_sync: int = 1

    def decide(self, image: Image, *, retried: bool) -> Steps[MetadataDecision[int]]:
        alive = tuple(broker for broker in image.brokers if broker != self.broker_id)
        ops = _without(image, alive, lambda state: self.broker_id in state.isr, self.min_in_sync)
        decided = yield from _decided(ops)
        return MetadataDecision(len(decided), tuple(decided))


class Successors(NamedTuple):
    """The replicas that may lead a partition uncleanly, in this order, while it is in the state that was asked about:
    once it has changed, another replica may hold what was acknowledged since. Each is named with the broker epoch in
    which it was asked: one that has joined again may have come back with another disk.
    """

    topic_id: TopicId
    partition_epoch: int
    replicas: tuple[tuple[int, int], ...]

    @classmethod
    def asked(cls, image: Image, partition: TopicPartition, replicas: Sequence[int]) -> "Successors":
        """These replicas were asked about a partition of `image`."""
        topic = image.topics[partition.topic]
        lives = tuple((replica, image.brokers[replica].epoch) for replica in replicas)
        return cls(topic.id, topic.partitions[partition.partition].partition_epoch, lives)


def successors(
    unclean: Mapping[TopicPartition, Successors], topic: Topic, index: int, brokers: Mapping[int, RegisteredBroker]
) -> Sequence[int]:
    """Who may lead this partition uncleanly; nobody if another state was asked about, or another life of a replica."""
    found = unclean.get(TopicPartition(topic.name, index))
    if found is None or found[:2] != (topic.id, topic.partitions[index].partition_epoch):
        return ()
    if any(replica in brokers and brokers[replica].epoch != epoch for replica, epoch in found.replicas):
        return ()
    return [replica for replica, _ in found.replicas]


@dataclass(frozen=True, slots=True)
class RemoveDead:
    """Take brokers that are gone out of their partitions. Another in-sync replica leads what they led, and they leave
    the in-sync sets. The decision depends on the image alone, so it may be repeated without harm. The reply is the
    number of partitions that changed. One commit changes at most MOST_AT_ONCE of them; the command is repeated until
    the reply is 0.

    If all in-sync and eligible replicas of a partition are gone, the partition stays as it is. They alone are known to
    hold everything that was acknowledged, so one of them leads next. Only where `unclean` names other replicas, the
    first of them that is alive leads, and the records that it lacks are lost. The topic must be one of which `may_lose`
    is true then, and its settings those on which that was decided: to ask the replicas takes a while.
    """

    unclean: Mapping[TopicPartition, Successors] = field(default_factory=dict)
    min_in_sync: int = 1
    may_lose: Callable[[Topic], bool] = lambda topic: True

    def decide(self, image: Image, *, retried: bool) -> Steps[MetadataDecision[int]]:
        alive = image.brokers
        touched: dict[tuple[int, ...], bool] = {}  # many partitions have the same members

        def concerned(state: PartitionState) -> bool:
            if (known := touched.get(state.isr)) is None:
                known = touched[state.isr] = any(member not in alive for member in state.isr)
            return known or state.leader not in alive

        lossy: dict[str, None] = {}

        def unclean(topic: Topic, index: int) -> Sequence[int]:
            found = successors(self.unclean, topic, index, alive) if self.unclean and self.may_lose(topic) else ()
            if found:
                lossy[topic.name] = None
            return found

        ops = yield from _decided(_without(image, alive, concerned, self.min_in_sync, unclean), MOST_AT_ONCE)
        return MetadataDecision(len(ops), (*ops, *_with_settings_as_now(image, lossy)))


def _with_settings_as_now(image: Image, names: Collection[str]) -> Iterator[Op]:
    """Checks that nobody has changed the settings of these topics, or those of brokers that hold for them. Where
    nothing is set, an empty key is made: that fails if somebody has set something.
    """
    yield from (Check(topic_key(name), image.topics[name].version) for name in names)
    for whose in (ALL_BROKERS, str(image.controller_id)) if names else ():
        key, stored = broker_config_key(whose), image.broker_config(whose)
        yield Create(key, encode_config({})) if stored == NO_CONFIG else Check(key, stored.version)


@dataclass(frozen=True, slots=True)
class EndReassignments:
    """End the reassignments that wait for nobody any more. One waits while replicas that count are gone. Who comes back
    in order is in sync at once, so no leader proposes a set that would end it. The reply is the number of partitions
    that changed. One commit changes at most MOST_AT_ONCE of them.
    """

    min_in_sync: int = 1

    def decide(self, image: Image, *, retried: bool) -> Steps[MetadataDecision[int]]:
        counted: dict[int, None] = {}
        ops = yield from _decided(self._ends(image, counted), MOST_AT_ONCE)
        return MetadataDecision(len(ops), (*alive_still(image, counted), *ops))

    def _ends(self, image: Image, counted: dict[int, None]) -> Iterator[Op | None]:
        for topic in image.topics.values():
            least = least_in_sync(topic, self.min_in_sync)
            for index, state in topic.partitions.items():
                if (state.adding or state.removing) and is_caught_up(state, image.brokers, least):
                    new = settled(state, image.brokers, least)
                    counted.update(dict.fromkeys(new.isr))
                    yield changed(topic.id, index, state, new)
                else:
                    yield None


@dataclass(frozen=True, slots=True)
class PreferLeaders:
    """Make the first replica of a partition its leader, if it is alive and in sync: for all partitions, or for those
    named. The reply is the number of partitions that changed.
    """

    only: frozenset[TopicPartition] | None = None

    def decide(self, image: Image, *, retried: bool) -> Steps[MetadataDecision[int]]:
        ops = yield from _decided(self._moves(image), MOST_AT_ONCE)
        return MetadataDecision(len(ops), tuple(ops))

    def _moves(self, image: Image) -> Iterator[Op | None]:
        for topic in image.topics.values():
            for index, state in topic.partitions.items():
                first = state.replicas[0]
                if state.leader in (first, NO_LEADER) or first not in state.isr or first not in image.brokers:
                    yield None
                elif self.only is None or TopicPartition(topic.name, index) in self.only:
                    new = state._replace(leader=first, leader_epoch=state.leader_epoch + 1)
                    yield changed(topic.id, index, state, new)
                else:
                    yield None


@dataclass(frozen=True, slots=True)
class FenceBroker:
    """Remove the registration of a broker whose process is known to be dead, or which leaves; it does not control the
    cluster any more either. If its process lives after all, it can commit nothing, and has to join again. The reply
    says whether that life of the broker was registered.
    """

    broker_id: int
    broker_epoch: int

    def decide(self, image: Image, *, retried: bool) -> MetadataDecision[bool]:
        broker = image.brokers.get(self.broker_id)
        if broker is None or broker.epoch != self.broker_epoch:
            return MetadataDecision(False)
        controls = image.controller_id == self.broker_id
        resigned = (Delete(CONTROLLER, image.controller_version),) if controls else ()
        return MetadataDecision(True, (*resigned, Delete(broker_key(self.broker_id), broker.version)))


def _without(
    image: Image,
    alive: Container[int],
    concerned: Callable[[PartitionState], bool],
    min_in_sync: int,
    unclean: Callable[[Topic, int], Sequence[int]] = lambda topic, index: (),
) -> Iterator[Op | None]:
    """The changes that take brokers that are not `alive` out of the partitions for which `concerned` is true, for
    `_decided`. Those without a leader come first: nobody can use them meanwhile.
    """
    led: list[tuple[Topic, int, int]] = []
    for topic in image.topics.values():
        least = least_in_sync(topic, min_in_sync)
        for index, state in topic.partitions.items():
            if not concerned(state):
                yield None
            elif state.leader in alive:
                led.append((topic, index, least))
                yield None
            else:
                new = elect(state, alive, least, unclean=unclean(topic, index))
                yield changed(topic.id, index, state, new) if new.leader != NO_LEADER else None
    for topic, index, least in led:
        state = topic.partitions[index]
        new = with_isr(state, tuple(member for member in state.isr if member in alive), least)
        yield changed(topic.id, index, state, new) if new != state else None


class OfOnePartition(Protocol[Reply_co]):
    """A command that changes one partition."""

    @property
    def topic_id(self) -> TopicId: ...
    @property
    def index(self) -> int: ...
    def decide(self, image: Image, *, retried: bool) -> MetadataDecision[Reply_co]: ...


@dataclass(frozen=True, slots=True)
class Together(Generic[Reply_co]):
    """Several proposals in one commit. The reply is a list with the reply to each."""

    proposals: tuple[OfOnePartition[Reply_co], ...]

    def decide(self, image: Image, *, retried: bool) -> Steps[MetadataDecision[list[Reply_co | Refusal]]]:
        replies: list[Reply_co | Refusal] = []
        ops: dict[Op, None] = {}
        touched: dict[str, None] = {}
        turn = Turn(PROPOSALS_A_TURN)
        for proposal in self.proposals:
            if turn.is_over():
                yield
            key = partition_key(proposal.topic_id, proposal.index)
            decision = proposal.decide(image, retried=retried)
            if decision.ops and key in touched:
                replies.append(Refusal(ErrorCode.INVALID_UPDATE_VERSION))
                continue
            touched |= dict.fromkeys([key] if decision.ops else [])
            ops |= dict.fromkeys(decision.ops)
            replies.append(decision.reply)
        return MetadataDecision(replies, tuple(ops))


@dataclass(frozen=True, slots=True)
class AlterPartition:
    """A leader proposes a new in-sync set. `isr` names each member with the broker epoch in which it caught up (R8).
    The reply is the state of the partition afterwards.
    """

    topic_id: TopicId
    index: int
    broker_id: int
    broker_epoch: int
    leader_epoch: int
    partition_epoch: int
    isr: tuple[tuple[int, int], ...]
    min_in_sync: int = 1

    def decide(self, image: Image, *, retried: bool) -> MetadataDecision[PartitionState | Refusal]:
        topic = image.topic_by_id(self.topic_id)
        state = topic.partitions.get(self.index) if topic is not None else None
        if topic is None or state is None:
            return MetadataDecision(Refusal(ErrorCode.UNKNOWN_TOPIC_ID))
        members = tuple(member for member, _ in self.isr)
        if retried and state.isr == members and state.partition_epoch == self.partition_epoch + 1:
            return MetadataDecision(state)
        if (refusal := self._refusal(image, state)) is not None:
            return MetadataDecision(refusal)
        # When this is committed, each new member must be alive, in the same life in which it caught up (R8).
        counted = [member for member in members if member not in state.isr]
        least = least_in_sync(topic, self.min_in_sync)
        new = with_isr(state, members, least)._replace(partition_epoch=state.partition_epoch + 1)
        if (new.adding or new.removing) and is_caught_up(new, image.brokers, least):
            new = settled(new, image.brokers, least)
            counted += new.isr
        return MetadataDecision(new, (*alive_still(image, counted), changed(self.topic_id, self.index, state, new)))

    def _refusal(self, image: Image, state: PartitionState) -> Refusal | None:
        proposer = image.brokers.get(self.broker_id)
        if proposer is None or proposer.epoch != self.broker_epoch:
            return Refusal(ErrorCode.STALE_BROKER_EPOCH)
        if self.leader_epoch > state.leader_epoch:
            return Refusal(ErrorCode.NOT_CONTROLLER)  # the leader has seen a later image
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
    """The disk of a broker has failed, so it can't serve a replica. Another replica that is in sync or eligible leads,
    and this one leaves the in-sync set. If there is no other replica, nothing changes. The reply says whether something
    changed.
    """

    topic_id: TopicId
    index: int
    broker_id: int
    min_in_sync: int = 1

    def decide(self, image: Image, *, retried: bool) -> MetadataDecision[bool]:
        topic = image.topic_by_id(self.topic_id)
        state = topic.partitions.get(self.index) if topic is not None else None
        if topic is None or state is None or self.broker_id not in (*state.isr, *state.eligible):
            return MetadataDecision(False)
        least = least_in_sync(topic, self.min_in_sync)
        new = with_isr(state, _but(self.broker_id, state.isr), least, lost=(self.broker_id,))
        if state.leader == self.broker_id:
            new = elect(new, tuple(broker for broker in image.brokers if broker != self.broker_id), least)
        if not new.isr or new.leader == NO_LEADER:
            return MetadataDecision(False)
        return MetadataDecision(True, (changed(self.topic_id, self.index, state, new),))


@dataclass(frozen=True, slots=True)
class RaiseLeaderEpoch:
    """A leader has seen a leader epoch above its own. It goes on to lead, in that epoch or a later one. The reply is
    the leader epoch afterwards.
    """

    partition: TopicPartition
    broker_id: int
    at_least: int

    def decide(self, image: Image, *, retried: bool) -> MetadataDecision[int | Refusal]:
        topic = image.topics.get(self.partition.topic)
        state = topic.partitions.get(self.partition.partition) if topic is not None else None
        if topic is None or state is None or state.leader != self.broker_id:
            return MetadataDecision(Refusal(ErrorCode.NOT_LEADER_OR_FOLLOWER))
        if self.at_least > max(LAST_EPOCH_TO_JUMP_TO, state.leader_epoch + 1):  # a single step is no jump
            return MetadataDecision(
                Refusal(ErrorCode.INVALID_REQUEST, f"There is no room above leader epoch {self.at_least}.")
            )
        if state.leader_epoch >= self.at_least:
            return MetadataDecision(state.leader_epoch)
        new = state._replace(leader_epoch=self.at_least)
        return MetadataDecision(self.at_least, (changed(topic.id, self.partition.partition, state, new),))


@dataclass(frozen=True, slots=True)
class AllocateProducerIds:
    """A block of producer ids. If the answer is lost, the block may be lost too. There are enough ids for that."""

    def decide(self, image: Image, *, retried: bool) -> MetadataDecision[ProducerIdBlock]:
        block = next_block(image.producer_ids.value)
        return MetadataDecision(block, (raised(PRODUCER_IDS, image.producer_ids, block.end),))

"""The cluster's metadata as of one commit of the store, and the keys and values that hold it there.

An `Image` never changes. `after` makes the next one, which shares everything that the change did not touch, and says
what was touched. So an image that is held across an await stays consistent. The first load and later changes are
decoded by the same code, so there is one path to state.

| key | value |
|---|---|
| `cluster` | the cluster's id |
| `controller` | ephemeral: which broker controls, in which session |
| `controller_epoch` | counter: every commit of a controller checks its version (R1) |
| `broker_epoch` | counter: a broker's registration takes the next one in the same commit (R3) |
| `broker_ids` | counter: the highest id ever given to a broker that brought none |
| `brokers/<id>` | ephemeral: a registered broker |
| `directories/<broker id>` | the ids of the data folders with which the broker registered last |
| `lives/<broker id>` | the broker epoch of its last registration, and the process: the first session that it began |
| `topics/<name>` | a topic: id, partitions, own configuration |
| `partitions/<topic id>/<index>` | `[replicas, isr, leader, leader epoch]`, and perhaps more (see below) |
| `broker_configs/<id, or default>` | dynamic configuration of a broker, or of all |
| `group_configs/<group id, percent-encoded>` | what was set for one group |
| `producer_ids` | counter: the first producer id not handed out yet |
| `dotted_names` | counter: raised by every commit that creates a topic with '.' or '_' in its name |
| `features` | finalized feature levels |

Values are small JSON. The version of a partition's key is the partition epoch. While a partition is reassigned, or too
few of its replicas are in sync, its value goes on with the replicas that are adding, removing, eligible and last known.
Topic names that differ only in '.' and '_' collide in metrics; `dotted_names` makes commits conflict that create such
names at the same time.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from log.ids import TopicId, TopicPartition, format_topic_id, parse_topic_id
from log.steps import done_at_once
from service.settings.broker import Endpoint
from service.stores.port import Change, Entry, StoreSnapshot
from service.turns import Steps, Turn

NO_LEADER = -1
NO_BROKER = -1
NO_SESSION = -1

CLUSTER = "cluster"
CONTROLLER = "controller"
CONTROLLER_EPOCH = "controller_epoch"
BROKER_EPOCH = "broker_epoch"
BROKER_IDS = "broker_ids"
BROKERS = "brokers/"
DIRECTORIES = "directories/"
LIVES = "lives/"
TOPICS = "topics/"
PARTITIONS = "partitions/"
BROKER_CONFIGS = "broker_configs/"
GROUP_CONFIGS = "group_configs/"
PRODUCER_IDS = "producer_ids"
DOTTED_NAMES = "dotted_names"
FEATURES = "features"
ALL_BROKERS = "default"

APPLIED_A_TURN = 500


class PartitionState(NamedTuple):
    """The replicas and the leader of a partition. `partition_epoch` rises with every change, `leader_epoch` with every
    change of leader.
    """

    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int
    leader_epoch: int
    partition_epoch: int = 0
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    eligible: tuple[int, ...] = ()
    """The eligible replicas: they are not in sync, but hold everything that was ever committed, and may lead if no
    replica in sync can (R14).
    """
    last_known: tuple[int, ...] = ()
    """Replicas that were in sync or eligible since too few are in sync, and are neither now: they may lack some of what
    was committed. If those that had everything have lost it (R17), these are all that have something, the best first,
    and `isr` is empty.
    """


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic. `partitions` is in the order of the indexes; `config` holds what was set for this topic alone."""

    name: str
    id: TopicId
    version: int
    config: Mapping[str, str]
    partitions: Mapping[int, PartitionState] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RegisteredBroker:
    """A registered broker. Each registration has an `epoch` of its own, which is never used twice. `session` is the
    store's session in which the broker registered.
    """

    id: int
    epoch: int
    session: int
    endpoints: tuple[Endpoint, ...]
    rack: str | None = None
    version: int = 0
    home: str = ""
    """The id of the broker's first data folder."""

    def endpoint(self, listener: str) -> Endpoint | None:
        return next((endpoint for endpoint in self.endpoints if endpoint.listener == listener), None)


class StoredCounter(NamedTuple):
    """A number in the store, and the version that a change must name; `ABSENT` while the key does not exist."""

    value: int
    version: int


class StoredDirectories(NamedTuple):
    """The ids of a broker's data folders; none while it has not registered with any."""

    ids: tuple[str, ...]
    version: int


class StoredLife(NamedTuple):
    """A broker's last registration: its broker epoch, and the process that registered, named by the first session that
    it began. It stays when the registration ends.
    """

    epoch: int
    process: int
    version: int


class StoredConfig(NamedTuple):
    values: Mapping[str, str]
    version: int


class Features(NamedTuple):
    levels: Mapping[str, int]
    version: int


ABSENT = StoredCounter(0, -1)
NO_DIRECTORIES = StoredDirectories((), -1)
NO_LIFE = StoredLife(0, NO_SESSION, -1)
"""Of a broker that never registered, or only with earlier releases, whose folders name no life (0) either."""
NO_CONFIG = StoredConfig(MappingProxyType({}), -1)
NO_FEATURES = Features(MappingProxyType({}), -1)


@dataclass(frozen=True, slots=True)
class Image:
    """The metadata as of commit `number`; -1 while nothing was read."""

    number: int = -1
    cluster_id: str = ""
    controller_id: int = NO_BROKER
    controller_session: int = NO_SESSION
    controller_version: int = -1
    controller_epoch: StoredCounter = ABSENT
    broker_epoch: StoredCounter = ABSENT
    broker_ids: StoredCounter = ABSENT
    producer_ids: StoredCounter = ABSENT
    dotted_names: StoredCounter = ABSENT
    features: Features = NO_FEATURES
    brokers: Mapping[int, RegisteredBroker] = field(default_factory=dict)
    directories: Mapping[int, StoredDirectories] = field(default_factory=dict)
    lives: Mapping[int, StoredLife] = field(default_factory=dict)
    topics: Mapping[str, Topic] = field(default_factory=dict)
    topic_names: Mapping[TopicId, str] = field(default_factory=dict)
    broker_configs: Mapping[str, StoredConfig] = field(default_factory=dict)
    group_configs: Mapping[str, StoredConfig] = field(default_factory=dict)

    @property
    def controller(self) -> RegisteredBroker | None:
        """The broker that controls the cluster; None if that broker is not registered: it does nothing then."""
        broker = self.brokers.get(self.controller_id)
        return broker if broker is not None and broker.session == self.controller_session else None

    def topic_by_id(self, topic_id: TopicId) -> Topic | None:
        name = self.topic_names.get(topic_id)
        return None if name is None else self.topics[name]

    def partition(self, topic_partition: TopicPartition) -> PartitionState | None:
        topic = self.topics.get(topic_partition.topic)
        return None if topic is None else topic.partitions.get(topic_partition.partition)

    def holders(self) -> set[int]:
        """The brokers that hold partitions, whether they are alive or not."""
        return {
            replica
            for topic in self.topics.values()
            for state in topic.partitions.values()
            for replica in state.replicas
        }

    def broker_config(self, whose: str) -> StoredConfig:
        """What is stored for broker `whose` (an id), or for all brokers (`ALL_BROKERS`)."""
        return self.broker_configs.get(whose, NO_CONFIG)

    def after(self, change: Change) -> "Delta":
        return done_at_once(self.making(change))

    def making(self, change: Change) -> Steps["Delta"]:
        """The image after a change."""
        draft = _ImageDraft(self)
        yield from draft.apply(change.entries)
        return draft.finish(change.number)


@dataclass(frozen=True, slots=True)
class Delta:
    """The change from one image to a later one. It names what was touched. Whether that was created, changed or removed
    shows in the images.
    """

    old: Image
    new: Image
    topics: tuple[str, ...] = ()
    partitions: tuple[TopicPartition, ...] = ()
    brokers: tuple[int, ...] = ()
    broker_configs: tuple[str, ...] = ()


def load(snapshot: StoreSnapshot) -> Image:
    return done_at_once(loading(snapshot))


def loading(snapshot: StoreSnapshot) -> Steps[Image]:
    """The image of everything the store holds."""
    # Topics come first: a partition's key names its topic by id only.
    entries = snapshot.entries
    topics_first = sorted(entries, key=lambda key: not key.startswith(TOPICS))
    draft = _ImageDraft(Image())
    yield from draft.apply((key, entries[key]) for key in topics_first)
    return draft.finish(snapshot.number).new


def difference(old: Image, new: Image) -> Delta:
    return done_at_once(differing(old, new))


def differing(old: Image, new: Image) -> Steps[Delta]:
    """The difference of two images, computed without the changes between them."""
    topics, partitions, turn = [], [], Turn(APPLIED_A_TURN)
    for name in {**old.topics, **new.topics}:
        if turn.is_over():
            yield
        was, now = old.topics.get(name), new.topics.get(name)
        if was == now:
            continue
        topics.append(name)
        before = {} if was is None else was.partitions
        after = {} if now is None else now.partitions
        same_topic = was is not None and now is not None and was.id == now.id
        for index in sorted({**before, **after}):
            if turn.is_over():
                yield
            if not same_topic or before.get(index) != after.get(index):
                partitions.append(TopicPartition(name, index))
    brokers = [id for id in {**old.brokers, **new.brokers} if old.brokers.get(id) != new.brokers.get(id)]
    configs = {**old.broker_configs, **new.broker_configs}
    changed_configs = [who for who in configs if old.broker_configs.get(who) != new.broker_configs.get(who)]
    return Delta(old, new, tuple(topics), tuple(partitions), tuple(brokers), tuple(changed_configs))


# --- values ----------------------------------------------------------------------------------------------------------


def _encode(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def encode_counter(value: int) -> bytes:
    return b"%d" % value


def encode_cluster(cluster_id: str) -> bytes:
    return cluster_id.encode()


def encode_controller(broker_id: int, session: int) -> bytes:
    return _encode([broker_id, session])


def encode_broker(epoch: int, session: int, endpoints: Iterable[Endpoint], rack: str | None, home: str = "") -> bytes:
    return _encode({"epoch": epoch, "session": session, "endpoints": list(endpoints), "rack": rack, "home": home})


def encode_directories(ids: Iterable[str]) -> bytes:
    return _encode(list(ids))


def encode_life(epoch: int, process: int) -> bytes:
    return _encode([epoch, process])


def encode_topic(topic_id: TopicId, partition_count: int, config: Mapping[str, str]) -> bytes:
    return _encode({"id": format_topic_id(topic_id), "partitions": partition_count, "config": dict(config)})


def encode_partition(state: PartitionState) -> bytes:
    value: list[Any] = [state.replicas, state.isr, state.leader, state.leader_epoch]
    more = (state.adding, state.removing, state.eligible, state.last_known)
    if any(more):
        value += more
    return _encode(value)


def encode_config(values: Mapping[str, str]) -> bytes:
    return _encode(dict(values))


def encode_features(levels: Mapping[str, int]) -> bytes:
    return _encode(dict(levels))


def broker_key(broker_id: int) -> str:
    return f"{BROKERS}{broker_id}"


def directories_key(broker_id: int) -> str:
    return f"{DIRECTORIES}{broker_id}"


def life_key(broker_id: int) -> str:
    return f"{LIVES}{broker_id}"


def topic_key(name: str) -> str:
    return f"{TOPICS}{name}"


def partition_key(topic_id: TopicId, index: int) -> str:
    return f"{PARTITIONS}{format_topic_id(topic_id)}/{index}"


def broker_config_key(whose: str) -> str:
    return f"{BROKER_CONFIGS}{whose}"


def group_config_key(group_id: str) -> str:
    return f"{GROUP_CONFIGS}{quote(group_id, safe='')}"  # unlike other names, a group id may hold slashes


def _decode_partition(entry: Entry) -> PartitionState:
    replicas, isr, leader, leader_epoch, *more = json.loads(entry.value)
    return PartitionState(tuple(replicas), tuple(isr), leader, leader_epoch, entry.version, *map(tuple, more))


# --- the next image --------------------------------------------------------------------------------------------------


class _ImageDraft:
    """The image that is being made. It copies what is touched, once, and shares the rest."""

    def __init__(self, old: Image) -> None:
        self._old = old
        self._fields: dict[str, Any] = {}
        self._brokers: dict[int, RegisteredBroker] | None = None
        self._directories: dict[int, StoredDirectories] | None = None
        self._lives: dict[int, StoredLife] | None = None
        self._topics: dict[str, Topic] = {}
        self._names: dict[TopicId, str] = {}
        self._configs: dict[str, StoredConfig] | None = None
        self._group_configs: dict[str, StoredConfig] | None = None
        self._topics_copied = False
        self._partitions_of: dict[str, dict[int, PartitionState]] = {}
        self._ids: dict[str, TopicId] = {}
        self._states: dict[Entry, PartitionState] = {}
        self._touched_topics: dict[str, None] = {}
        self._touched_partitions: dict[TopicPartition, None] = {}
        self._touched_brokers: dict[int, None] = {}
        self._touched_configs: dict[str, None] = {}

    def apply(self, entries: Iterable[tuple[str, Entry | None]]) -> Steps[None]:
        turn = Turn(APPLIED_A_TURN)
        for key, entry in entries:
            if turn.is_over():
                yield
            # Partitions first: they are by far the most keys.
            if key.startswith(PARTITIONS):
                self._partition(key, entry)
            elif key.startswith(TOPICS):
                self._topic(key[len(TOPICS) :], entry)
            elif key.startswith(BROKERS):
                self._broker(int(key[len(BROKERS) :]), entry)
            elif key.startswith(DIRECTORIES):
                self._directories_of(int(key[len(DIRECTORIES) :]), entry)
            elif key.startswith(LIVES):
                self._life(int(key[len(LIVES) :]), entry)
            elif key.startswith(BROKER_CONFIGS):
                self._config(key[len(BROKER_CONFIGS) :], entry)
            elif key.startswith(GROUP_CONFIGS):
                self._group_config(unquote(key[len(GROUP_CONFIGS) :]), entry)
            else:
                self._single(key, entry)

    def finish(self, number: int) -> Delta:
        if self._topics_copied:
            for name, partitions in self._partitions_of.items():
                if name in self._topics:
                    ordered = dict(sorted(partitions.items()))
                    self._topics[name] = replace(self._topics[name], partitions=ordered)
            self._fields.update(topics=self._topics, topic_names=self._names)
        if self._brokers is not None:
            self._fields["brokers"] = dict(sorted(self._brokers.items()))
        if self._directories is not None:
            self._fields["directories"] = self._directories
        if self._lives is not None:
            self._fields["lives"] = self._lives
        if self._configs is not None:
            self._fields["broker_configs"] = self._configs
        if self._group_configs is not None:
            self._fields["group_configs"] = self._group_configs
        return Delta(
            self._old,
            replace(self._old, number=number, **self._fields),
            tuple(self._touched_topics),
            tuple(self._touched_partitions),
            tuple(self._touched_brokers),
            tuple(self._touched_configs),
        )

    def _copy_topics(self) -> None:
        if not self._topics_copied:
            self._topics_copied = True
            self._topics, self._names = dict(self._old.topics), dict(self._old.topic_names)

    def _partitions(self, name: str) -> dict[int, PartitionState]:
        partitions = self._partitions_of.get(name)
        if partitions is None:
            partitions = self._partitions_of[name] = dict(self._topics[name].partitions)
        return partitions

    def _topic(self, name: str, entry: Entry | None) -> None:
        self._copy_topics()
        self._touched_topics[name] = None
        old = self._topics.get(name)
        if entry is None:
            if old is not None:
                self._touched_partitions.update((TopicPartition(name, index), None) for index in self._partitions(name))
                del self._topics[name], self._names[old.id], self._partitions_of[name]
            return
        value = json.loads(entry.value)
        topic_id = parse_topic_id(value["id"])
        kept: Mapping[int, PartitionState] = {}
        if old is not None and old.id == topic_id:
            kept = old.partitions
        elif old is not None:
            self._names.pop(old.id, None)
            self._partitions_of.pop(name, None)
        self._topics[name] = Topic(name, topic_id, entry.version, value["config"], kept)
        self._names[topic_id] = name

    def _partition(self, key: str, entry: Entry | None) -> None:
        self._copy_topics()
        _, id_text, index_text = key.split("/")
        topic_id = self._ids.get(id_text)
        if topic_id is None:
            topic_id = self._ids[id_text] = parse_topic_id(id_text)
        name = self._names.get(topic_id)
        if name is None:
            return  # the topic was deleted earlier in the same commit
        index = int(index_text)
        partitions = self._partitions(name)
        self._touched_topics[name] = None
        self._touched_partitions[TopicPartition(name, index)] = None
        if entry is None:
            partitions.pop(index, None)
            return
        state = self._states.get(entry)  # on a single broker thousands of partitions are equal: one object serves all
        if state is None:
            state = self._states[entry] = _decode_partition(entry)
        partitions[index] = state

    def _broker(self, broker_id: int, entry: Entry | None) -> None:
        if self._brokers is None:
            self._brokers = dict(self._old.brokers)
        self._touched_brokers[broker_id] = None
        if entry is None:
            self._brokers.pop(broker_id, None)
            return
        value = json.loads(entry.value)
        endpoints = tuple(Endpoint(*endpoint) for endpoint in value["endpoints"])
        self._brokers[broker_id] = RegisteredBroker(
            broker_id,
            value["epoch"],
            value["session"],
            endpoints,
            value["rack"],
            entry.version,
            value["home"],
        )

    def _directories_of(self, broker_id: int, entry: Entry | None) -> None:
        """A delta does not name them: they are looked up when a broker registers."""
        if self._directories is None:
            self._directories = dict(self._old.directories)
        if entry is None:
            self._directories.pop(broker_id, None)
        else:
            self._directories[broker_id] = StoredDirectories(tuple(json.loads(entry.value)), entry.version)

    def _life(self, broker_id: int, entry: Entry | None) -> None:
        """A delta does not name it: it changes with the registration."""
        if self._lives is None:
            self._lives = dict(self._old.lives)
        if entry is None:
            self._lives.pop(broker_id, None)
        else:
            epoch, process = json.loads(entry.value)
            self._lives[broker_id] = StoredLife(epoch, process, entry.version)

    def _config(self, whose: str, entry: Entry | None) -> None:
        if self._configs is None:
            self._configs = dict(self._old.broker_configs)
        self._touched_configs[whose] = None
        _store(self._configs, whose, entry)

    def _group_config(self, group_id: str, entry: Entry | None) -> None:
        """A delta does not name groups: a group's settings are looked up when they are needed."""
        if self._group_configs is None:
            self._group_configs = dict(self._old.group_configs)
        _store(self._group_configs, group_id, entry)

    def _single(self, key: str, entry: Entry | None) -> None:
        if key == CLUSTER:
            self._fields["cluster_id"] = entry.value.decode() if entry else ""
        elif key == CONTROLLER:
            broker, session = json.loads(entry.value) if entry else (NO_BROKER, NO_SESSION)
            self._fields.update(controller_id=broker, controller_session=session)
            self._fields["controller_version"] = entry.version if entry else -1
        elif key == FEATURES:
            self._fields["features"] = Features(json.loads(entry.value), entry.version) if entry else NO_FEATURES
        elif key in (CONTROLLER_EPOCH, BROKER_EPOCH, BROKER_IDS, PRODUCER_IDS, DOTTED_NAMES):
            self._fields[key] = StoredCounter(int(entry.value), entry.version) if entry else ABSENT


def _store(configs: dict[str, StoredConfig], whose: str, entry: Entry | None) -> None:
    if entry is None:
        configs.pop(whose, None)
    else:
        configs[whose] = StoredConfig(json.loads(entry.value), entry.version)

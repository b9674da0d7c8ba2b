"""Decides about topics: create, delete, add partitions.

Each topic of a command succeeds or fails by itself. The checks, their order and their messages are Kafka's (4.3),
because people read them.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from log.ids import ZERO_TOPIC_ID, TopicId, TopicPartition, folder_of
from service.cluster.controller import DECIDED_A_TURN, ItemRefused, MetadataDecision, raised
from service.cluster.image import (
    DOTTED_NAMES,
    Image,
    PartitionState,
    Topic,
    encode_partition,
    encode_topic,
    partition_key,
    topic_key,
)
from service.cluster.placement import placing
from service.settings.setting import BYTES_OF_ONE, ConfigError
from service.settings.topic import check_topic_config
from service.stores.port import Check, Create, Delete, Op, Put
from service.turns import COUNTED_A_TURN, Steps, Turn
from service.wire.error_codes import ErrorCode

MAX_NAME_LENGTH = 249
MAX_FOLDER_NAME_LENGTH = 255
"""The longest name that usual file systems have for a folder."""
MAX_NEW_PARTITIONS = 10_000
"""The most partitions that one request creates, as in Kafka. One commit must stay small enough for every store."""
SETTINGS_MAX = 1_000
"""The most settings for one new topic. There are some forty."""

AGAIN_BYTES = 4
"""How many bytes of its id are others when a creation is tried again."""
USE_DEFAULT = -1
_NAME = re.compile(r"[a-zA-Z0-9._-]+\Z")


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create. `id` is a fresh one. `assignment` names the replicas of each partition; if it is empty, they
    are placed automatically.
    """

    name: str
    id: TopicId
    partitions: int = USE_DEFAULT
    replication_factor: int = USE_DEFAULT
    assignment: tuple[tuple[int, tuple[int, ...]], ...] = ()
    config: tuple[tuple[str, str | None], ...] = ()


@dataclass(frozen=True, slots=True)
class TopicResult:
    """The result for one topic. If there is no error, `topic` is the topic as it is afterwards, or as it would be if
    this was only a validation.
    """

    name: str
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    topic: Topic | None = None
    id: TopicId = ZERO_TOPIC_ID


def check_topic_name(name: str) -> str | None:
    """Why a topic can't have this name; None if it can."""
    problem = None
    if not name:
        problem = "the empty string is not allowed"
    elif name in (".", ".."):
        problem = f"'{name}' is not allowed"
    elif len(name) > MAX_NAME_LENGTH:
        problem = f"the length of '{name}' is longer than the max allowed length {MAX_NAME_LENGTH}"
    elif not _NAME.match(name):
        problem = f"'{name}' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"
    return None if problem is None else f"Topic name is invalid: {problem}"


def _folded(name: str) -> str:
    """The topic's name as metrics show it, where '.' and '_' are the same."""
    return name.replace(".", "_")


@dataclass(frozen=True, slots=True)
class CreateTopics:
    """`room` is how many partitions may be created."""

    topics: tuple[NewTopic, ...]
    default_partitions: int
    default_replication_factor: int
    validate_only: bool = False
    room: int = MAX_NEW_PARTITIONS

    def decide(self, image: Image, *, retried: bool) -> Steps[MetadataDecision[list[TopicResult]]]:
        turn = Turn(DECIDED_A_TURN)
        results: list[TopicResult] = []
        ops: list[Op] = []
        room, start = self.room, 0
        by_folded: dict[str, str] = {}
        known = Turn(COUNTED_A_TURN)
        for topic in image.topics.values():
            if known.is_over():
                yield
            start += len(topic.partitions)
            by_folded[_folded(topic.name)] = topic.name
        has_dots = False
        for new in self.topics:
            settings = new.config[:SETTINGS_MAX]
            size = sum([len(value or "") for _, value in settings])
            if turn.is_over(1 + len(settings) + len(new.assignment) + size // BYTES_OF_ONE):
                yield
            if retried:
                existing = image.topics.get(new.name)
                if existing is not None and existing.id[AGAIN_BYTES:] == new.id[AGAIN_BYTES:]:
                    results.append(TopicResult(new.name, topic=existing, id=existing.id))
                    continue
                new = replace(new, id=_id_again(new.id, image))
            try:
                topic = yield from self._create(new, image, by_folded, start, room)
            except ItemRefused as refused:
                results.append(TopicResult(new.name, refused.error, refused.message))
                continue
            room -= len(topic.partitions)
            start += len(topic.partitions)
            by_folded[_folded(new.name)] = new.name
            has_dots = has_dots or "." in new.name or "_" in new.name
            results.append(TopicResult(new.name, topic=topic, id=topic.id))
            ops.append(Create(topic_key(topic.name), encode_topic(topic.id, len(topic.partitions), topic.config)))
            ops += yield from _new_partitions(topic.id, topic.partitions, turn)
        if has_dots and ops:
            # Two names that collide have different keys, so two brokers could create them at the same time. Raising
            # this counter makes one of the two commits fail.
            ops.append(raised(DOTTED_NAMES, image.dotted_names, image.dotted_names.value + 1))
        return MetadataDecision(results, () if self.validate_only else tuple(ops))

    def _create(self, new: NewTopic, image: Image, by_folded: Mapping[str, str], start: int, room: int) -> Steps[Topic]:
        if (problem := check_topic_name(new.name)) is not None:
            raise ItemRefused(ErrorCode.INVALID_TOPIC_EXCEPTION, problem)
        if new.name in image.topics:
            raise ItemRefused(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{new.name}' already exists.")
        if (other := by_folded.get(_folded(new.name))) is not None:
            message = f"Topic '{new.name}' collides with existing topic: {other}"
            raise ItemRefused(ErrorCode.INVALID_TOPIC_EXCEPTION, message)
        config = _checked_config(new.config)
        replicas = _assigned(new, image) if new.assignment else (yield from self._placed(new, image, start, room))
        if len(replicas) > room:
            raise ItemRefused(ErrorCode.POLICY_VIOLATION, "Excessively large number of partitions per request.")
        turn = Turn(COUNTED_A_TURN)
        states: dict[int, PartitionState] = {}
        for index, ids in enumerate(replicas):
            if turn.is_over():
                yield
            states[index] = _fresh(ids)
        return Topic(new.name, new.id, 0, config, states)

    def _placed(self, new: NewTopic, image: Image, start: int, room: int) -> Steps[Sequence[tuple[int, ...]]]:
        partitions, replicas = new.partitions, new.replication_factor
        if replicas < USE_DEFAULT or replicas == 0:
            message = "Replication factor must be larger than 0, or -1 to use the default value."
            raise ItemRefused(ErrorCode.INVALID_REPLICATION_FACTOR, message)
        if partitions < USE_DEFAULT or partitions == 0:
            message = "Number of partitions was set to an invalid non-positive value."
            raise ItemRefused(ErrorCode.INVALID_PARTITIONS, message)
        partitions = self.default_partitions if partitions == USE_DEFAULT else partitions
        replicas = self.default_replication_factor if replicas == USE_DEFAULT else replicas
        if partitions > room:
            raise ItemRefused(ErrorCode.POLICY_VIOLATION, "Excessively large number of partitions per request.")
        _check_replication(replicas, image)
        return (yield from placing(image.brokers.values(), partitions=partitions, replicas=replicas, start=start))


def _id_again(fresh: TopicId, image: Image) -> TopicId:
    """The id with which a creation whose answer was lost is tried again. Perhaps it was made, and somebody has deleted
    it since: a broker that hears of all that at once would go on with the copy that it has. Only the beginning is
    another, so that the next try knows it.
    """
    return TopicId((image.number % 256**AGAIN_BYTES).to_bytes(AGAIN_BYTES) + fresh[AGAIN_BYTES:])


def _check_replication(replicas: int, image: Image) -> None:
    registered = len(image.brokers)
    if replicas > registered:
        raise ItemRefused(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Unable to replicate the partition {replicas} time(s): The target replication factor of {replicas} "
            f"cannot be reached "
            f"because only {registered} broker(s) are registered or some brokers have all their log directories "
            f"cordoned.",
        )


def _checked_config(given: tuple[tuple[str, str | None], ...]) -> dict[str, str]:
    if len(given) > SETTINGS_MAX:
        raise ItemRefused(ErrorCode.INVALID_CONFIG, f"More than {SETTINGS_MAX} settings for one topic.")
    config: dict[str, str] = {}
    for name, value in given:
        if value is None:
            raise ItemRefused(ErrorCode.INVALID_CONFIG, f"Null value not supported for topic configs: {name}")
        config[name] = value
    try:
        check_topic_config(config)
    except ConfigError as error:
        raise ItemRefused(ErrorCode.INVALID_CONFIG, str(error)) from error
    return config


def _assigned(new: NewTopic, image: Image) -> list[tuple[int, ...]]:
    if new.replication_factor != USE_DEFAULT:
        message = "A manual partition assignment was specified, but replication factor was not set to -1."
        raise ItemRefused(ErrorCode.INVALID_REQUEST, message)
    if new.partitions != USE_DEFAULT:
        message = "A manual partition assignment was specified, but numPartitions was not set to -1."
        raise ItemRefused(ErrorCode.INVALID_REQUEST, message)
    if len(new.assignment) > MAX_NEW_PARTITIONS:
        raise ItemRefused(ErrorCode.POLICY_VIOLATION, "Excessively large number of partitions per request.")
    assignment: dict[int, tuple[int, ...]] = {}
    factor: int | None = None
    for index, replicas in new.assignment:
        if index in assignment:
            message = f"Found multiple manual partition assignments for partition {index}"
            raise ItemRefused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)
        _check_replicas(replicas, image, factor)
        factor = len(replicas)
        assignment[index] = replicas
    if sorted(assignment) != list(range(len(assignment))):
        message = "partitions should be a consecutive 0-based integer sequence"
        raise ItemRefused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)
    return [assignment[index] for index in range(len(assignment))]


def _check_replicas(replicas: tuple[int, ...], image: Image, factor: int | None) -> None:
    if not replicas:
        message = "The manual partition assignment includes an empty replica list."
        raise ItemRefused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)
    for position, broker in enumerate(replicas):
        if broker in replicas[:position]:
            message = f"The manual partition assignment includes the broker {broker} more than once."
            raise ItemRefused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)
        if broker not in image.brokers:
            message = f"The manual partition assignment includes broker {broker}, but no such broker is registered."
            raise ItemRefused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)
    if factor is not None and factor != len(replicas):
        message = (
            f"The manual partition assignment includes a partition with {len(replicas)} replica(s), but this is not "
            f"consistent with previous partitions, which have {factor} replica(s)."
        )
        raise ItemRefused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)


def _fresh(replicas: tuple[int, ...]) -> PartitionState:
    return PartitionState(replicas, replicas, leader=replicas[0], leader_epoch=0)


def _new_partitions(topic_id: TopicId, partitions: Mapping[int, PartitionState], turn: Turn) -> Steps[list[Op]]:
    ops: list[Op] = []
    for index, state in partitions.items():
        if turn.is_over():
            yield
        ops.append(Create(partition_key(topic_id, index), encode_partition(state)))
    return ops


@dataclass(frozen=True, slots=True)
class DeleteTopics:
    """Topics to delete, by id. A name may belong to another topic by the time the command is decided."""

    ids: tuple[TopicId, ...]

    def decide(self, image: Image, *, retried: bool) -> Steps[MetadataDecision[list[TopicResult]]]:
        turn = Turn(DECIDED_A_TURN)
        results: list[TopicResult] = []
        ops: list[Op] = []
        for topic_id in self.ids:
            if turn.is_over():
                yield
            topic = image.topic_by_id(topic_id)
            if topic is None:
                error = ErrorCode.NONE if retried else ErrorCode.UNKNOWN_TOPIC_ID
                results.append(TopicResult("", error, id=topic_id))
                continue
            results.append(TopicResult(topic.name, id=topic_id))
            ops.append(Delete(topic_key(topic.name), topic.version))
            for index, state in topic.partitions.items():
                if turn.is_over():
                    yield
                ops.append(Delete(partition_key(topic_id, index), state.partition_epoch))
        return MetadataDecision(results, tuple(ops))


@dataclass(frozen=True, slots=True)
class MorePartitions:
    """`count` is the wanted number of partitions in all. `assignment` names the replicas of each new one; with None
    they are placed automatically.
    """

    name: str
    count: int
    assignment: tuple[tuple[int, ...], ...] | None = None


@dataclass(frozen=True, slots=True)
class CreatePartitions:
    """If an answer was lost, a topic that was made again since it was `seen` gets none: they may have been made for the
    former one. The reply is the error that lets the caller look, and ask again.
    """

    topics: tuple[MorePartitions, ...]
    validate_only: bool = False
    seen: Image | None = None

    def decide(self, image: Image, *, retried: bool) -> Steps[MetadataDecision[list[TopicResult]]]:
        turn = Turn(DECIDED_A_TURN)
        results: list[TopicResult] = []
        ops: list[Op] = []
        room = MAX_NEW_PARTITIONS
        for wanted in self.topics:
            if turn.is_over(1 + len(wanted.assignment or ())):
                yield
            topic = image.topics.get(wanted.name)
            try:
                if topic is None:
                    raise ItemRefused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                if not (retried and len(topic.partitions) == wanted.count):
                    if retried and not self._has_seen(topic):
                        message = "The partitions may have been made as asked, and the topic been made again since."
                        raise ItemRefused(ErrorCode.REQUEST_TIMED_OUT, message)
                    made = yield from _added(wanted, topic, image, room)
                    room -= len(made)
                    value = encode_topic(topic.id, wanted.count, topic.config)
                    ops += changed_topic(topic, value)
                    ops += yield from _new_partitions(topic.id, made, turn)
                results.append(TopicResult(wanted.name, topic=topic, id=topic.id))
            except ItemRefused as refused:
                results.append(TopicResult(wanted.name, refused.error, refused.message))
        return MetadataDecision(results, () if self.validate_only else tuple(ops))

    def _has_seen(self, topic: Topic) -> bool:
        seen = None if self.seen is None else self.seen.topics.get(topic.name)
        return seen is not None and seen.id == topic.id


def changed_topic(topic: Topic, value: bytes) -> tuple[Op, ...]:
    """Put another value for a topic. A topic that was deleted and made again has the versions of the former one, so
    the version alone does not show that the image is old: the new topic would get the id of the former one. The key of
    a partition has the id in it.
    """
    exists = Check(partition_key(topic.id, 0), topic.partitions[0].partition_epoch)
    return exists, Put(topic_key(topic.name), value, topic.version)


def _added(wanted: MorePartitions, topic: Topic, image: Image, room: int) -> Steps[dict[int, PartitionState]]:
    present = len(topic.partitions)
    if wanted.count == present:
        raise ItemRefused(ErrorCode.INVALID_PARTITIONS, f"Topic already has {present} partition(s).")
    if wanted.count < present:
        message = (
            f"The topic {topic.name} currently has {present} partition(s); {wanted.count} would not be an increase."
        )
        raise ItemRefused(ErrorCode.INVALID_PARTITIONS, message)
    if len(folder_of(TopicPartition(topic.name, wanted.count - 1))) > MAX_FOLDER_NAME_LENGTH:
        message = f"With a name of {len(topic.name)} characters a topic can't have {wanted.count} partitions."
        raise ItemRefused(ErrorCode.INVALID_PARTITIONS, message)
    added = wanted.count - present
    if max(added, len(wanted.assignment or ())) > room:
        raise ItemRefused(ErrorCode.POLICY_VIOLATION, "Excessively large number of partitions per request.")
    factor = len(topic.partitions[0].replicas)
    if wanted.assignment is None:
        _check_replication(factor, image)
        replicas: Sequence[tuple[int, ...]] = yield from placing(
            image.brokers.values(), partitions=added, replicas=factor, start=present
        )
    else:
        replicas = wanted.assignment
        if len(replicas) != added:
            message = (
                f"Attempted to add {added} additional partition(s), but only {len(replicas)} assignment(s) "
                f"were specified."
            )
            raise ItemRefused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)
        for ids in replicas:
            _check_replicas(ids, image, factor)
    return {present + number: _fresh(ids) for number, ids in enumerate(replicas)}

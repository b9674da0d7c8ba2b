"""The records of `__consumer_offsets`, to and from bytes, as Kafka writes them.

A key is a record type (two bytes, the number in Kafka's definitions) and a struct. A value is a version and a struct. A
record without a value is a tombstone. Records are written from this package's objects, and read into the structs of the
wire.
"""

import struct
from collections.abc import Callable, Collection, Generator, Iterable, Mapping
from contextlib import suppress
from functools import lru_cache
from typing import NamedTuple, TypeVar

from log.steps import done_at_once
from service.groups.classic_group import ClassicGroup, ClassicMember
from service.groups.consumer_group import (
    ClassicFacts,
    ConsumerMember,
    EpochsByTopic,
    ResolvedRegex,
    SaidByMember,
    TargetByTopic,
)
from service.groups.offsets import CommittedOffset
from service.groups.states import MemberState
from service.groups.verdicts import RecordPair
from service.wire.base import Struct
from service.wire.codec import decode_data, decode_data_in_steps, encode_data
from service.wire.decoders import Malformed, long_varint
from service.wire.encoders import varint
from service.wire.messages import (
    ClassicMemberMetadata,
    ClassicProtocol,
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupCurrentMemberAssignmentValueTopicPartitions,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
    GroupMetadataKey,
    GroupMetadataValue,
    LegacyOffsetCommitKey,
    OffsetCommitKey,
    OffsetCommitValue,
)

PREFIX_BYTES = 2  # the record type, a number

OffsetKey = LegacyOffsetCommitKey | OffsetCommitKey
ConsumerPartKey = (
    ConsumerGroupPartitionMetadataKey
    | ConsumerGroupMemberMetadataKey
    | ConsumerGroupTargetAssignmentMetadataKey
    | ConsumerGroupTargetAssignmentMemberKey
    | ConsumerGroupCurrentMemberAssignmentKey
    | ConsumerGroupRegularExpressionKey
)
ConsumerKey = ConsumerGroupMetadataKey | ConsumerPartKey
Key = OffsetKey | GroupMetadataKey | ConsumerKey
KeyOfMember = (
    ConsumerGroupMemberMetadataKey | ConsumerGroupTargetAssignmentMemberKey | ConsumerGroupCurrentMemberAssignmentKey
)


def _by_prefix(keys: dict[int, type[Key]]) -> dict[bytes, type[Key]]:
    return {number.to_bytes(PREFIX_BYTES, "big"): key for number, key in keys.items()}


# The structs of keys, by the first bytes of the key.
OFFSET_KEYS = _by_prefix({0: LegacyOffsetCommitKey, 1: OffsetCommitKey})
CLASSIC_KEYS = _by_prefix({2: GroupMetadataKey})
CONSUMER_KEYS = _by_prefix(
    {
        3: ConsumerGroupMetadataKey,
        4: ConsumerGroupPartitionMetadataKey,
        5: ConsumerGroupMemberMetadataKey,
        6: ConsumerGroupTargetAssignmentMetadataKey,
        7: ConsumerGroupTargetAssignmentMemberKey,
        8: ConsumerGroupCurrentMemberAssignmentKey,
        16: ConsumerGroupRegularExpressionKey,
    }
)
KEY_TYPES = OFFSET_KEYS | CLASSIC_KEYS | CONSUMER_KEYS
PREFIX_OF_KEY = {key: prefix for prefix, key in KEY_TYPES.items()}
KEYS_OF_MEMBER = (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupMemberMetadataKey,
)
VERSIONS = tuple(number.to_bytes(2, "big") for number in range(5))

# The versions of values that Kafka 4.3 writes. Monitoring tools that read this topic know no later versions. Only
# version 1 has a field for an offset's own time of expiry.
OFFSET_VERSION = 4
EXPIRING_OFFSET_VERSION = 1
GROUP_METADATA_VERSION = 3
CONSUMER_VERSION = 0

# How many bytes a name may have. The id of a member is made of a client id or instance id and up to 64 bytes more.
NAME_BYTES_MAX = (1 << 15) - 1 - 64

# How many bytes the record of a classic group may have: as many as with Kafka, where it has to fit into a batch of the
# default size. To write a megabyte takes most of a turn of the loop.
GROUP_BYTES_MAX = 1_000_000

# How many different things that members say are kept at hand, and how many bytes or topics each of them may have.
SAID_ALIKE = 100
SAID_BYTES = 1_000
SAID_TOPICS = 30

# How many different short lists of partitions of one topic are kept at hand, and how many partitions these may have: so
# few that each length in their bytes is one byte.
PARTITIONS_ALIKE = 5_000
FEW_PARTITIONS = 31

# How many topics of a member are read in one turn of the loop: a millisecond or two.
TOPICS_READ_A_TURN = 2_500

EPOCH_ALONE = struct.Struct(">hib")  # the version, the group's epoch, no tagged field
EPOCH_AND_HASH = struct.Struct(">hi3Bq")  # the version, the group's epoch, one tagged field: the hash
HASH_TAG = (1, 0, 8)  # how many tagged fields, which one, its length
CURRENT_HEAD = struct.Struct(">hiib")  # the version, the member's epoch, the one before, its state
TOPIC_ID_BYTES = 16
# What is raised where bytes are not as usual. They may be right all the same: then the codec reads them.
UNUSUAL = (ValueError, IndexError, struct.error, Malformed)
NO_TAGS = b"\0"
EPOCHS_TAG = b"\1\0"  # one tagged field, number 0

Value = TypeVar("Value", bound=Struct)
Part = TypeVar("Part")
Turns = Generator[None, None, Part]  # yields when a turn is over


def fits(*names: str | None) -> bool:
    """Whether records can hold these names. Keys and old values have 16 bits for a name's length; requests have
    more.
    """
    for name in names:
        if name is not None and len(name) > NAME_BYTES_MAX // 4 and len(name.encode()) > NAME_BYTES_MAX:
            return False
    return True


class TargetOfMember(NamedTuple):
    target: TargetByTopic


class CurrentAssignment(NamedTuple):
    """What the record of a member's present assignment says, in the order in which `ConsumerMember` has it."""

    member_epoch: int
    previous_epoch: int
    state: MemberState
    assigned: EpochsByTopic
    revoking: EpochsByTopic


# The keys and values that were written last, by their bytes. A live coordinator applies a record right after writing
# it, and with this need not decode it. Reading an entry removes it.
_known_keys: dict[bytes, Key] = {}
_known_values: dict[bytes, Struct | SaidByMember | TargetOfMember | CurrentAssignment] = {}
KNOWN_AT_MOST = 20_000  # a decision about a group of thousands of members writes three records for each of them


def read_key(key: bytes) -> Key | None:
    """The key; None for a record type that is unknown here (share groups, streams groups, future types)."""
    if (known := _known_keys.pop(key, None)) is not None:
        return known
    key_type = KEY_TYPES.get(key[:PREFIX_BYTES])
    return None if key_type is None else decode_data(key_type, 0, memoryview(key)[PREFIX_BYTES:])


def read_value(cls: type[Value], value: bytes) -> Value:
    if type(known := _known_values.pop(value, None)) is cls:
        return known
    return decode_data(cls, int.from_bytes(value[:2], "big"), memoryview(value)[2:])


def read_value_in_turns(cls: type[Value], value: bytes) -> Turns[Value]:
    return decode_data_in_steps(cls, int.from_bytes(value[:2], "big"), memoryview(value)[2:])


def read_ahead(key: bytes, value: bytes) -> Turns[None]:
    """Read the value of a large record in several turns, right before it is applied. It is kept at hand until then."""
    key_type = KEY_TYPES.get(key[:PREFIX_BYTES])
    read: Struct | SaidByMember | TargetOfMember | CurrentAssignment
    if key_type is ConsumerGroupCurrentMemberAssignmentKey:
        read = yield from _current_in_turns(value)
    elif key_type is ConsumerGroupTargetAssignmentMemberKey:
        read = TargetOfMember((yield from _target_in_turns(value)))
    elif key_type is ConsumerGroupMemberMetadataKey:
        read = _said((yield from read_value_in_turns(ConsumerGroupMemberMetadataValue, value)))
    elif key_type is ConsumerGroupRegularExpressionKey:
        read = yield from read_value_in_turns(ConsumerGroupRegularExpressionValue, value)
    elif key_type is GroupMetadataKey:
        read = yield from read_value_in_turns(GroupMetadataValue, value)
    else:
        return
    _note_value(value, read)


def tombstone(key: Key) -> RecordPair:
    return _key(key), None


def _key(key: Key) -> bytes:
    return _note_key(key, PREFIX_OF_KEY[type(key)] + encode_data(key, 0))


def _key_of_member(key: KeyOfMember) -> bytes:
    """By hand, because each join and each step of each member writes some."""
    return _note_key(key, _stem_of_member(type(key), key.group_id) + _text(key.member_id))


@lru_cache(maxsize=1_000)
def _stem_of_member(kind: type[KeyOfMember], group_id: str) -> bytes:
    """The key without the member, which is last."""
    return PREFIX_OF_KEY[kind] + _text(group_id)


def _note_key(key: Key, written: bytes) -> bytes:
    _known_keys[written] = key
    if len(_known_keys) > KNOWN_AT_MOST:
        _known_keys.clear()
    return written


def _record(key: Key, value: Struct, version: int) -> RecordPair:
    written = VERSIONS[version] + encode_data(value, version)
    _note_value(written, value)
    return _key(key), written


def _note_value(written: bytes, value: Struct | SaidByMember | TargetOfMember | CurrentAssignment) -> None:
    _known_values[written] = value
    if len(_known_values) > KNOWN_AT_MOST:
        _known_values.clear()


# Offsets --------------------------------------------------------------------------------------------------------------


# Offsets are most of what is written. So their bytes are written and read here by hand, if they are as usual: the
# present version, a short metadata, a topic with an id. The parts that the offsets of one request share are made once.
OFFSET_BEFORE_METADATA = struct.Struct(">hqiB")  # version, offset, leader epoch, length of the metadata plus one
OFFSET_BEHIND_METADATA = struct.Struct(">q3B16s")  # time of the commit, then one tagged field: the topic's id
ONE_TOPIC_ID = (1, 0, 16)  # how many tagged fields, which one, its length
SHORT_METADATA_BYTES = 126
NO_TOPIC_ID = bytes(16)


partition_bytes = struct.Struct(">i").pack
before_metadata = OFFSET_BEFORE_METADATA.pack


def behind_metadata(commit_ms: int, topic_id: bytes) -> bytes:
    return OFFSET_BEHIND_METADATA.pack(commit_ms, *ONE_TOPIC_ID, topic_id)


def offset_key(group_id: str, topic: str, partition: int) -> bytes:
    return offset_key_stem(group_id, topic) + partition_bytes(partition)


def offset_tombstone(group_id: str, topic: str, partition: int) -> RecordPair:
    return offset_key(group_id, topic, partition), None


@lru_cache(maxsize=1_000)
def offset_key_stem(group_id: str, topic: str) -> bytes:
    """The key of an offset without the partition, which is last."""
    return PREFIX_OF_KEY[OffsetCommitKey] + _text(group_id) + _text(topic)


def read_offset_key(key: bytes) -> tuple[str, str, int]:
    """Group, topic and partition."""
    group_id, topic = _names(key[:-4])
    return group_id, topic, int.from_bytes(key[-4:], "big", signed=True)


@lru_cache(maxsize=1_000)
def _names(stem: bytes) -> tuple[str, str]:
    read = read_key(stem + bytes(4))
    assert isinstance(read, OffsetKey)
    if stem[PREFIX_BYTES:] != _text(read.group) + _text(read.topic):
        raise ValueError("the key of an offset does not end with its partition")
    return read.group, read.topic


def offset_value(committed: CommittedOffset) -> bytes:
    offset, leader_epoch, metadata, commit_ms, expire_ms, topic_id, _ = committed
    written = metadata.encode()
    if expire_ms is None and topic_id != NO_TOPIC_ID and len(written) <= SHORT_METADATA_BYTES:
        before = before_metadata(OFFSET_VERSION, offset, leader_epoch, len(written) + 1)
        return before + written + behind_metadata(commit_ms, topic_id)
    value = OffsetCommitValue(
        offset=offset,
        leader_epoch=leader_epoch,
        metadata=metadata,
        commit_timestamp=commit_ms,
        expire_timestamp=expire_ms if expire_ms is not None else -1,
        topic_id=topic_id,
    )
    version = OFFSET_VERSION if expire_ms is None else EXPIRING_OFFSET_VERSION
    return VERSIONS[version] + encode_data(value, version)


def read_offset(value: bytes) -> CommittedOffset:
    start, end = OFFSET_BEFORE_METADATA.size, len(value) - OFFSET_BEHIND_METADATA.size
    if end >= start:
        version, offset, leader_epoch, length = OFFSET_BEFORE_METADATA.unpack_from(value)
        if version == OFFSET_VERSION and length == end - start + 1 <= SHORT_METADATA_BYTES + 1:
            commit_ms, tag, topic_id = _behind_metadata(value[end:])
            if tag == ONE_TOPIC_ID:
                return CommittedOffset(offset, leader_epoch, value[start:end].decode(), commit_ms, None, topic_id)
    said = read_value(OffsetCommitValue, value)
    return CommittedOffset(
        said.offset,
        said.leader_epoch,
        said.metadata,
        said.commit_timestamp,
        None if said.expire_timestamp == -1 else said.expire_timestamp,
        said.topic_id,
    )


@lru_cache(maxsize=1_000)
def _behind_metadata(data: bytes) -> tuple[int, tuple[int, ...], bytes]:
    """Offsets that were committed together share one time and one topic id, which saves memory."""
    commit_ms, *tag, topic_id = OFFSET_BEHIND_METADATA.unpack(data)
    return commit_ms, tuple(tag), topic_id


# Classic groups -------------------------------------------------------------------------------------------------------


def classic_group_record(group: ClassicGroup, assignments: Mapping[str, bytes]) -> RecordPair:
    """The group's record: the group as it is now, with these assignments."""
    return _key(GroupMetadataKey(group.group_id)), b"".join(_parts_of_record(group, assignments))


def classic_group_record_that_fits(group: ClassicGroup, assignments: Mapping[str, bytes]) -> RecordPair | None:
    """The same, or None if it is too large."""
    parts = _parts_of_record(group, assignments)
    if sum(map(len, parts)) > GROUP_BYTES_MAX:
        return None
    return _key(GroupMetadataKey(group.group_id)), b"".join(parts)


def _parts_of_record(group: ClassicGroup, assignments: Mapping[str, bytes]) -> list[bytes]:
    name = group.protocol_name
    value = GroupMetadataValue(
        group.protocol_type or "", group.generation, name, group.leader, group.state_timestamp_ms, []
    )
    parts = [VERSIONS[GROUP_METADATA_VERSION], encode_data(value, GROUP_METADATA_VERSION)[:-4]]
    parts.append(len(group.members).to_bytes(4, "big"))
    for member in group.members.values():
        noted = member.noted
        assignment = assignments.get(member.member_id, b"")
        parts += (
            noted[1] if noted is not None and noted[0] == name else note_member(member, name),
            len(assignment).to_bytes(4, "big"),
            assignment,
        )
    return parts


def note_member(member: ClassicMember, protocol_name: str | None) -> bytes:
    """The bytes of the member in its group's record, without its assignment. They are kept with the member. The record
    holds all members, and for thousands of them building all bytes anew would take longer than one turn of the loop.
    """
    if member.noted is None or member.noted[0] != protocol_name:
        subscription = member.metadata(protocol_name) if protocol_name is not None else b""
        noted = b"".join(
            (
                _text(member.member_id),
                b"\xff\xff" if member.instance_id is None else _text(member.instance_id),
                _text(member.client_id),
                _text(member.client_host),
                struct.pack(">iii", member.rebalance_timeout_ms, member.session_timeout_ms, len(subscription)),
                subscription,
            )
        )
        member.noted = protocol_name, noted
    return member.noted[1]


def _text(text: str) -> bytes:
    data = text.encode()
    return len(data).to_bytes(2, "big") + data


def instance_renamed_record(group: ClassicGroup, instance_id: str, member_id: str) -> RecordPair | None:
    """The group's last record, with this instance under its new member id; None if the instance was not in it."""
    if group.stored is None:
        return None
    value = read_value(GroupMetadataValue, group.stored)
    for member in value.members:
        if member.group_instance_id == instance_id:
            if value.leader == member.member_id:
                value.leader = member_id
            member.member_id = member_id
            return _record(GroupMetadataKey(group.group_id), value, GROUP_METADATA_VERSION)
    return None


def empty_classic_group_record(group_id: str, state_timestamp_ms: int) -> RecordPair:
    """The record of a group without members, which one has begun to join."""
    value = GroupMetadataValue("", 0, None, None, state_timestamp_ms, [])
    return _record(GroupMetadataKey(group_id), value, GROUP_METADATA_VERSION)


def classic_group_tombstone(group_id: str) -> RecordPair:
    return tombstone(GroupMetadataKey(group_id))


# Consumer groups ------------------------------------------------------------------------------------------------------


def consumer_epoch_record(group_id: str, epoch: int, metadata_hash: int) -> RecordPair:
    """By hand, because each join writes one."""
    if metadata_hash:
        value = EPOCH_AND_HASH.pack(CONSUMER_VERSION, epoch, *HASH_TAG, metadata_hash)
    else:
        value = EPOCH_ALONE.pack(CONSUMER_VERSION, epoch, 0)
    _note_value(value, ConsumerGroupMetadataValue(epoch, metadata_hash))
    return _note_key(ConsumerGroupMetadataKey(group_id), _key_of_group(group_id)), value


@lru_cache(maxsize=1_000)
def _key_of_group(group_id: str) -> bytes:
    return PREFIX_OF_KEY[ConsumerGroupMetadataKey] + _text(group_id)


def consumer_member_record(
    group_id: str, member: ConsumerMember, *, names: tuple[str, ...] | None = None
) -> RecordPair:
    """`names`: the topics that the member names, if they are at hand in an order. Thousands that are sorted already
    need not be sorted again.
    """
    if member.classic is None and len(member.subscribed_topics) <= SAID_TOPICS:
        value = _common_member_value(member.said)
    else:
        each_once = names is not None and len(names) == len(member.subscribed_topics)
        value = _member_value(member.said, names if names is not None and each_once else member.subscribed_topics)
    if len(value) > SAID_BYTES:
        _note_value(value, member.said)
    return _key_of_member(ConsumerGroupMemberMetadataKey(group_id, member.member_id)), value


def _member_value(member: SaidByMember, names: Collection[str]) -> bytes:
    classic = None
    if member.classic is not None:
        protocols = [ClassicProtocol(name, metadata) for name, metadata in member.classic.protocols]
        classic = ClassicMemberMetadata(member.classic.session_timeout_ms, protocols)
    value = ConsumerGroupMemberMetadataValue(
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(names),
        subscribed_topic_regex=member.subscribed_regex,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        server_assignor=member.server_assignor,
        classic_member_metadata=classic,
    )
    return VERSIONS[CONSUMER_VERSION] + encode_data(value, CONSUMER_VERSION)


@lru_cache(maxsize=SAID_ALIKE)
def _common_member_value(member: SaidByMember) -> bytes:
    """Members of one application often say the same. Their records are made and read once, and they share one set of
    topics.
    """
    return _member_value(member, member.subscribed_topics)


def read_said(value: bytes) -> SaidByMember:
    return _read_common(value) if len(value) <= SAID_BYTES else _read_said(value)


def _read_said(value: bytes) -> SaidByMember:
    if type(known := _known_values.pop(value, None)) is SaidByMember:
        return known
    return _said(read_value(ConsumerGroupMemberMetadataValue, value))


def _said(said: ConsumerGroupMemberMetadataValue) -> SaidByMember:
    return SaidByMember(
        said.instance_id,
        said.rack_id,
        said.rebalance_timeout_ms,
        said.client_id,
        said.client_host,
        frozenset(said.subscribed_topic_names),
        said.subscribed_topic_regex,
        said.server_assignor,
        _read_classic_facts(said),
    )


_read_common = lru_cache(maxsize=SAID_ALIKE)(_read_said)


def target_epoch_record(group_id: str, epoch: int, timestamp_ms: int) -> RecordPair:
    value = ConsumerGroupTargetAssignmentMetadataValue(epoch, timestamp_ms)
    return _record(ConsumerGroupTargetAssignmentMetadataKey(group_id), value, CONSUMER_VERSION)


# What members have and get is most of what a rebalance writes, and one member may have thousands of topics. So these
# two records are written and read by hand, and the parts of topics that look alike are made once.


def target_record(group_id: str, member_id: str, target: TargetByTopic) -> RecordPair:
    topics = [
        topic_id + (_few_of_target if len(partitions) <= FEW_PARTITIONS else _part_of_target)(partitions)
        for topic_id, partitions in target.items()
    ]
    value = b"".join((VERSIONS[CONSUMER_VERSION], _count(len(topics)), *topics, NO_TAGS))
    _note_value(value, TargetOfMember(target))
    return _key_of_member(ConsumerGroupTargetAssignmentMemberKey(group_id, member_id)), value


def current_record(group_id: str, member: ConsumerMember) -> RecordPair:
    epochs, assigned, revoking = member[1:4], member.assigned, member.revoking
    value = CURRENT_HEAD.pack(CONSUMER_VERSION, *epochs) + _topics_held(assigned) + _topics_held(revoking) + NO_TAGS
    _note_value(value, CurrentAssignment(*epochs, assigned, revoking))
    return _key_of_member(ConsumerGroupCurrentMemberAssignmentKey(group_id, member.member_id)), value


def _topics_held(held: EpochsByTopic) -> bytes:
    if not held:
        return NO_TOPICS
    parts = [_count(len(held))]
    alike: dict[int, bytes] = {}  # topics whose partitions were given in one step share one object that tells them
    for topic_id, given in held.items():
        part = alike.get(id(given))
        if part is None:
            part_of = _few_held if len(given) <= FEW_PARTITIONS else _part_of_held
            part = alike[id(given)] = part_of(tuple(sorted(given.items())))
        parts += topic_id, part
    return b"".join(parts)


def _part_of_target(partitions: frozenset[int]) -> bytes:
    return _numbers(sorted(partitions)) + NO_TAGS


def _part_of_held(given: tuple[tuple[int, int], ...]) -> bytes:
    """Partitions, and the epochs at which they were given in a tagged field."""
    epochs = _numbers([epoch for _, epoch in given])
    return b"".join((_numbers([partition for partition, _ in given]), EPOCHS_TAG, varint(len(epochs)), epochs))


_few_of_target = lru_cache(maxsize=PARTITIONS_ALIKE)(_part_of_target)
_few_held = lru_cache(maxsize=PARTITIONS_ALIKE)(_part_of_held)


def read_target(value: bytes) -> TargetByTopic:
    if type(known := _known_values.pop(value, None)) is TargetOfMember:
        return known.target
    return done_at_once(_target_in_turns(value))


def _target_in_turns(value: bytes) -> Turns[TargetByTopic]:
    with suppress(*UNUSUAL):
        target, end = yield from _read_topics(value, 2, 4, -2, _read_few_of_target, _read_part_of_target)
        if (value[:2], value[end:]) == (VERSIONS[CONSUMER_VERSION], NO_TAGS):
            return target
    said = yield from read_value_in_turns(ConsumerGroupTargetAssignmentMemberValue, value)
    return {topic.topic_id: frozenset(topic.partitions) for topic in said.topic_partitions}


def read_current(value: bytes) -> CurrentAssignment:
    if type(known := _known_values.pop(value, None)) is CurrentAssignment:
        return known
    return done_at_once(_current_in_turns(value))


def _current_in_turns(value: bytes) -> Turns[CurrentAssignment]:
    with suppress(*UNUSUAL):
        version, member_epoch, previous_epoch, state = CURRENT_HEAD.unpack_from(value)
        assigned, end = yield from _read_topics(value, CURRENT_HEAD.size, 8, -3, _read_few_held, _read_part_of_held)
        revoking, end = yield from _read_topics(value, end, 8, -3, _read_few_held, _read_part_of_held)
        if (version, value[end:]) == (CONSUMER_VERSION, NO_TAGS):
            return CurrentAssignment(member_epoch, previous_epoch, MemberState.of_number(state), assigned, revoking)
    said = yield from read_value_in_turns(ConsumerGroupCurrentMemberAssignmentValue, value)
    return CurrentAssignment(
        said.member_epoch,
        said.previous_member_epoch,
        MemberState.of_number(said.state),
        _read_held(said.assigned_partitions, said.member_epoch),
        _read_held(said.partitions_pending_revocation, said.member_epoch),
    )


def _read_topics(
    value: bytes,
    at: int,
    partition_bytes: int,
    other_bytes: int,
    read_few: Callable[[bytes], Part],
    read_part: Callable[[bytes, int], tuple[Part, int]],
) -> Turns[tuple[dict[bytes, Part], int]]:
    """A list of topics, each an id and its part, and where the list ends. A part of few partitions has so many bytes
    for each, counting from its first byte, which is one more than they are.
    """
    count, at = _read_count(value, at)
    topics: dict[bytes, Part] = {}
    for left in range(count, 0, -TOPICS_READ_A_TURN):
        for _ in range(min(left, TOPICS_READ_A_TURN)):
            start = at + TOPIC_ID_BYTES
            topic_id, first = value[at:start], value[start]
            if first <= FEW_PARTITIONS + 1:
                at = start + partition_bytes * first + other_bytes
                topics[topic_id] = read_few(value[start:at])
            else:
                topics[topic_id], at = read_part(value, start)
        if left > TOPICS_READ_A_TURN:
            yield
    return topics, at


def _read_part_of_target(value: bytes, at: int) -> tuple[frozenset[int], int]:
    partitions, at = _read_numbers(value, at)
    if not value.startswith(NO_TAGS, at):
        raise ValueError("tags that nobody knows")
    return frozenset(partitions), at + len(NO_TAGS)


def _read_part_of_held(value: bytes, at: int) -> tuple[Mapping[int, int], int]:
    partitions, at = _read_numbers(value, at)
    if not value.startswith(EPOCHS_TAG, at):
        raise ValueError("no epochs")
    size, at = _read_varint(value, at + len(EPOCHS_TAG))
    epochs, end = _read_numbers(value, at)
    if end != at + size:
        raise ValueError("the epochs are not as long as their field")
    return dict(zip(partitions, epochs, strict=True)), end


@lru_cache(maxsize=PARTITIONS_ALIKE)
def _read_few_of_target(part: bytes) -> frozenset[int]:
    return _read_whole(_read_part_of_target, part)


@lru_cache(maxsize=PARTITIONS_ALIKE)
def _read_few_held(part: bytes) -> Mapping[int, int]:
    return _read_whole(_read_part_of_held, part)


def _read_whole(read_part: Callable[[bytes, int], tuple[Part, int]], part: bytes) -> Part:
    read, end = read_part(part, 0)
    if end != len(part):
        raise ValueError("the part has another length than its first byte says")
    return read


def _read_numbers(value: bytes, at: int) -> tuple[tuple[int, ...], int]:
    count, at = _read_count(value, at)
    return struct.unpack_from(f">{count}i", value, at), at + 4 * count


def _read_count(value: bytes, at: int) -> tuple[int, int]:
    length, at = _read_varint(value, at)
    if not length:
        raise ValueError("no list")
    return length - 1, at


def _read_varint(value: bytes, at: int) -> tuple[int, int]:
    first = value[at]
    return (first, at + 1) if first < 0x80 else long_varint(value, at + 1, first)


def _numbers(numbers: list[int]) -> bytes:
    return _count(len(numbers)) + struct.pack(f">{len(numbers)}i", *numbers)


def _count(length: int) -> bytes:
    """The length of a list, as the compact encoding has it."""
    return SHORT_COUNTS[length] if length < len(SHORT_COUNTS) else varint(length + 1)


SHORT_COUNTS = tuple(varint(length + 1) for length in range(127))
NO_TOPICS = _count(0)


def regex_record(group_id: str, regex: str, resolved: ResolvedRegex) -> RecordPair:
    value = ConsumerGroupRegularExpressionValue(sorted(resolved.topics), resolved.version, resolved.timestamp_ms)
    return _record(ConsumerGroupRegularExpressionKey(group_id, regex), value, CONSUMER_VERSION)


def member_tombstones(group_id: str, member_id: str) -> tuple[RecordPair, ...]:
    """The tombstones of a member. The order matters: Kafka, reading this log, fails on the tombstone of a member that
    still has an assignment.
    """
    return (
        tombstone(ConsumerGroupCurrentMemberAssignmentKey(group_id, member_id)),
        tombstone(ConsumerGroupTargetAssignmentMemberKey(group_id, member_id)),
        tombstone(ConsumerGroupMemberMetadataKey(group_id, member_id)),
    )


class MembersTombstones(NamedTuple):
    """Those of what members have, and of the members themselves."""

    held: list[RecordPair]
    members: list[RecordPair]


def members_tombstones(group_id: str, member_ids: Iterable[str]) -> MembersTombstones:
    group, members = _text(group_id), [_text(member_id) for member_id in member_ids]  # of thousands: written by hand
    current, target, metadata = (PREFIX_OF_KEY[key] + group for key in KEYS_OF_MEMBER)
    held: list[RecordPair] = [(current + member, None) for member in members]
    held += [(target + member, None) for member in members]
    return MembersTombstones(held, [(metadata + member, None) for member in members])


def consumer_group_tombstones(group_id: str, of_members: MembersTombstones, regexes: Iterable[str]) -> list[RecordPair]:
    return [
        *of_members.held,
        tombstone(ConsumerGroupTargetAssignmentMetadataKey(group_id)),
        *of_members.members,
        *(tombstone(ConsumerGroupRegularExpressionKey(group_id, regex)) for regex in regexes),
        tombstone(ConsumerGroupPartitionMetadataKey(group_id)),
        tombstone(ConsumerGroupMetadataKey(group_id)),
    ]


def partition_metadata_tombstone(group_id: str) -> RecordPair:
    return tombstone(ConsumerGroupPartitionMetadataKey(group_id))


def regex_tombstone(group_id: str, regex: str) -> RecordPair:
    return tombstone(ConsumerGroupRegularExpressionKey(group_id, regex))


def _read_classic_facts(value: ConsumerGroupMemberMetadataValue) -> ClassicFacts | None:
    said = value.classic_member_metadata
    if said is None:
        return None
    return ClassicFacts(
        said.session_timeout_ms, tuple((protocol.name, protocol.metadata) for protocol in said.supported_protocols)
    )


def _read_held(
    topics: list[ConsumerGroupCurrentMemberAssignmentValueTopicPartitions], member_epoch: int
) -> EpochsByTopic:
    """The partitions that a member holds. A record from before Kafka 4.3 has no epochs: its partitions count as given
    at the member's epoch.
    """
    held: dict[bytes, dict[int, int]] = {}
    for topic in topics:
        epochs = topic.assignment_epochs
        if epochs is None or len(epochs) != len(topic.partitions):
            epochs = [max(member_epoch, 0)] * len(topic.partitions)
        held[topic.topic_id] = dict(zip(topic.partitions, epochs, strict=True))
    return held

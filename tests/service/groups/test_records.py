"""The records of `__consumer_offsets`: bytes that Apache Kafka 4.3 wrote are read and written again alike."""

from collections.abc import Callable

import pytest

from service.groups.classic_group import ClassicGroup, ClassicMember
from service.groups.consumer_group import ClassicFacts, ConsumerMember, ResolvedRegex
from service.groups.coordinator import GroupCoordinator
from service.groups.offsets import CommittedOffset
from service.groups.records import (
    Key,
    classic_group_record,
    consumer_epoch_record,
    consumer_group_tombstones,
    consumer_member_record,
    current_record,
    empty_classic_group_record,
    members_tombstones,
    offset_key,
    offset_value,
    read_current,
    read_key,
    read_offset,
    read_offset_key,
    read_target,
    read_value,
    regex_record,
    target_epoch_record,
    target_record,
    tombstone,
)
from service.groups.settings import GroupSettings
from service.groups.states import MemberState
from service.groups.verdicts import RecordPair
from service.wire.base import Struct
from service.wire.codec import MalformedRequest, encode_data
from service.wire.messages import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
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
    MemberMetadata,
    OffsetCommitKey,
    OffsetCommitValue,
)
from service.wire.messages import (
    ConsumerGroupCurrentMemberAssignmentValueTopicPartitions as HeldPartitions,
)
from service.wire.messages import (
    ConsumerGroupTargetAssignmentMemberValueTopicPartition as TargetPartitions,
)
from tests.service.groups.driver import Driver, Topics

# Taken from a broker's log: key, value, and what they are.
FROM_KAFKA: list[tuple[str, str, Key, type[Struct]]] = [
    (
        "0001000763323732343836000c6f726465727332373234383600000000",
        "0004000000000000002a000000030278000001a1fe94339c01001039716dadaaf6479ba4a9f214e523fc11",
        OffsetCommitKey("c272486", "orders272486", 0),
        OffsetCommitValue,
    ),
    (
        "0002000763323732343836",
        "00030008636f6e73756d657200000001000572616e6765002b636c69656e742d31626566643534322d366137312d34326137"
        "2d623362322d336431623736643462633566000001a1fe94330900000001002b636c69656e742d31626566643534322d3661"
        "37312d343261372d623362322d336431623736643462633566ffff0006636c69656e74000a2f3132372e302e302e3100004e"
        "20000027100000001c000100000001000c6f7264657273323732343836ffffffff000000000000000961737369676e656431",
        GroupMetadataKey("c272486"),
        GroupMetadataValue,
    ),
    (
        "000300096b7278323732343930",
        "00000000000201000862678db921e03ccd",
        ConsumerGroupMetadataKey("krx272490"),
        ConsumerGroupMetadataValue,
    ),
    (
        "000500096d6967323732343939002b636c69656e742d66306163653732352d383833642d346463632d396336302d39626435"
        "3435633662613164",
        "0000000007636c69656e740b2f3132372e302e302e31020d6f72646572733237323439390100004e200001004d0100002710"
        "020672616e67653f000100000001000c6f7264657273323732343939ffffffff00000001000c6f7264657273323732343939"
        "00000004000000000000000100000002000000030000",
        ConsumerGroupMemberMetadataKey("mig272499", "client-f0ace725-883d-4dcc-9c60-9bd545c6ba1d"),
        ConsumerGroupMemberMetadataValue,
    ),
    (
        "000600096b7278323732343930",
        "000000000002010008000001a1fe94577d",
        ConsumerGroupTargetAssignmentMetadataKey("krx272490"),
        ConsumerGroupTargetAssignmentMetadataValue,
    ),
    (
        "000700096b727832373234393000027231",
        "00000327621813a70e4b29aad64c34e2516fc50700000000000000010000000200000003000000040000000500a0904bd4bd"
        "844645a0e0e5c597aebad10300000000000000010000",
        ConsumerGroupTargetAssignmentMemberKey("krx272490", "r1"),
        ConsumerGroupTargetAssignmentMemberValue,
    ),
    (
        "000800096b727832373234393000027231",
        "00000000000200000001000327621813a70e4b29aad64c34e2516fc507000000000000000100000002000000030000000400"
        "00000501001907000000020000000200000002000000020000000200000002a0904bd4bd844645a0e0e5c597aebad1030000"
        "0000000000010100090300000002000000020100",
        ConsumerGroupCurrentMemberAssignmentKey("krx272490", "r1"),
        ConsumerGroupCurrentMemberAssignmentValue,
    ),
    (
        "001000096b72783237323439300015286f72646572737c6576656e747329323732343930",
        "0000030d6576656e74733237323439300d6f72646572733237323439300000000000000521000001a1fe94564000",
        ConsumerGroupRegularExpressionKey("krx272490", "(orders|events)272490"),
        ConsumerGroupRegularExpressionValue,
    ),
]


def offset_record(group_id: str, topic: str, partition: int, committed: CommittedOffset) -> tuple[bytes, bytes]:
    return offset_key(group_id, topic, partition), offset_value(committed)


# A member of the new protocol carries no facts of the old one, which Kafka writes as a null inside a tag.
NEW_MEMBER = "0000000007636c69656e740b2f3132372e302e302e31010c6f74682e2a32373232353200004e200001000100"


@pytest.mark.parametrize(("key", "value", "meaning", "value_type"), FROM_KAFKA)
def test_records_of_kafka_are_read_and_written_alike(
    key: str, value: str, meaning: Key, value_type: type[Struct]
) -> None:
    assert read_key(bytes.fromhex(key)) == meaning
    assert tombstone(meaning) == (bytes.fromhex(key), None)
    stored = bytes.fromhex(value)
    version = int.from_bytes(stored[:2], "big")
    assert stored[:2] + encode_data(read_value(value_type, stored), version) == stored


def test_groups_of_kafka_come_to_life() -> None:
    """The same records in a log: a classic group with its offset, a group of both protocols, one with an expression."""
    driver = Driver(topics=Topics())
    for key, value, _, _ in FROM_KAFKA:
        driver.machine.apply(bytes.fromhex(key), bytes.fromhex(value))
    classic = driver.classic("c272486")
    assert (classic.state, classic.members[0].assignment) == ("Stable", b"assigned1")
    assert driver.committed("c272486", "orders272486") == 42
    (mixed,) = driver.consumer("mig272499").members
    assert mixed.uses_classic_protocol
    expression = driver.consumer("krx272490")
    assert (expression.epoch, expression.assignment_epoch) == (2, 2)
    assert [member.member_epoch for member in expression.members] == [2]


def test_classic_groups_and_offsets_are_written_in_the_versions_that_kafka_writes() -> None:
    """Burrow reads groups from this topic and refuses a version it does not know."""
    offset, group = [(bytes.fromhex(key), bytes.fromhex(value)) for key, value, _, _ in FROM_KAFKA[:2]]
    classic = ClassicGroup.from_stored("c272486", group[1], read_value(GroupMetadataValue, group[1]))
    assignments = {member.member_id: member.assignment for member in classic.members.values()}
    assert classic_group_record(classic, assignments) == group
    begun = empty_classic_group_record("c272486", 1)[1]
    assert begun is not None
    assert begun[:2] == group[1][:2]
    assert offset_record("c272486", "orders272486", 0, read_offset(offset[1])) == offset


def test_a_member_of_the_new_protocol_is_read_as_kafka_writes_it() -> None:
    said = read_value(ConsumerGroupMemberMetadataValue, bytes.fromhex(NEW_MEMBER))
    assert (said.client_id, said.subscribed_topic_regex, said.classic_member_metadata) == (
        "client",
        "oth.*272252",
        None,
    )


TOPIC = b"t" * 16
HELD = {TOPIC: {3: 5, 1: 4}, b"u" * 16: {0: 2}}
CLASSIC = ClassicFacts(10_000, (("range", b"subscription"), ("sticky", b"")))
MEMBER = ConsumerMember(
    "m", 7, 6, MemberState.UNREVOKED_PARTITIONS, "i", "rack", 30_000, "client", "/host", frozenset({"b", "a"}), "a.*",
    "uniform", HELD, HELD, CLASSIC,
)  # fmt: skip
DYNAMIC = ConsumerMember("n", subscribed_topics=frozenset({"a"}), subscribed_regex=None)
GROUP = ClassicGroup("g", generation=3, protocol_type="consumer", protocol_name="range", leader="m")
GROUP.add(ClassicMember("m", None, "client", "/host", 30_000, 10_000, (("range", b"subscription"),)))


@pytest.mark.parametrize(
    ("record", "kind"),
    [
        (lambda: offset_record("g", "t", 1, CommittedOffset(4, -1, "", 5, None, TOPIC)), OffsetCommitValue),
        (lambda: offset_record("g", "t", 1, CommittedOffset(4, 2, "x", 5, 9, TOPIC)), OffsetCommitValue),
        (lambda: classic_group_record(GROUP, {"m": b"assignment"}), GroupMetadataValue),
        (lambda: empty_classic_group_record("g", 5), GroupMetadataValue),
        (lambda: consumer_epoch_record("g", 4, 77), ConsumerGroupMetadataValue),
        (lambda: consumer_epoch_record("g", 2**31 - 1, 0), ConsumerGroupMetadataValue),
        (lambda: consumer_epoch_record("g", 4, -(2**63)), ConsumerGroupMetadataValue),
        (lambda: consumer_member_record("g", MEMBER), ConsumerGroupMemberMetadataValue),
        (lambda: consumer_member_record("g", DYNAMIC), ConsumerGroupMemberMetadataValue),
        (lambda: target_epoch_record("g", 4, 77), ConsumerGroupTargetAssignmentMetadataValue),
        (
            lambda: regex_record("g", "a.*", ResolvedRegex(frozenset({"b", "a"}), 3, 4)),
            ConsumerGroupRegularExpressionValue,
        ),
    ],
)
def test_what_was_just_written_is_known_as_the_log_will_say_it(
    record: Callable[[], tuple[bytes, bytes]], kind: type[Struct]
) -> None:
    key, value = record()
    known, decoded = [(read_key(key), read_value(kind, value)) for _ in range(2)]
    assert known == decoded


@pytest.mark.parametrize(("topics", "partitions"), [(0, 0), (1, 1), (2, 3), (127, 1), (200, 70), (20_000, 1)])
def test_what_members_have_and_get_is_written_by_hand_as_by_the_codec(topics: int, partitions: int) -> None:
    ids = [number.to_bytes(16, "big") for number in range(topics)]
    held = {topic_id: {each: each * 7 for each in reversed(range(partitions))} for topic_id in ids}
    state = MemberState.UNREVOKED_PARTITIONS
    member = ConsumerMember("m", 9, -1, state, assigned=held, revoking={TOPIC: {3: -1}})
    numbers = list(range(partitions))
    told = [HeldPartitions(topic_id, numbers, [each * 7 for each in numbers]) for topic_id in ids]
    current = ConsumerGroupCurrentMemberAssignmentValue(9, -1, state, told, [HeldPartitions(TOPIC, [3], [-1])])
    key, value = current_record("gruppe \xfc", member)
    assert key == b"\0\x08" + encode_data(ConsumerGroupCurrentMemberAssignmentKey("gruppe \xfc", "m"), 0)
    assert value == b"\0\0" + encode_data(current, 0)
    known, decoded = read_current(value), read_current(value)
    assert known is not decoded
    assert known == decoded == (9, -1, state, held, {TOPIC: {3: -1}})
    target = {topic_id: frozenset(numbers) for topic_id in ids}
    key, value = target_record("g", "", target)
    assert key == b"\0\x07" + encode_data(ConsumerGroupTargetAssignmentMemberKey("g", ""), 0)
    told_target = [TargetPartitions(topic_id, numbers) for topic_id in ids]
    assert value == b"\0\0" + encode_data(ConsumerGroupTargetAssignmentMemberValue(told_target), 0)
    assert read_target(value) is target
    assert read_target(value) == target


@pytest.mark.parametrize("metadata_hash", [0, 1, -1, 2**63 - 1, -(2**63)])
def test_what_each_join_writes_is_written_by_hand_as_by_the_codec(metadata_hash: int) -> None:
    key, value = consumer_epoch_record("gruppe \xfc", 7, metadata_hash)
    assert key == b"\0\3" + encode_data(ConsumerGroupMetadataKey("gruppe \xfc"), 0)
    assert value == b"\0\0" + encode_data(ConsumerGroupMetadataValue(7, metadata_hash), 0)
    key, _ = consumer_member_record("gruppe \xfc", DYNAMIC)
    assert key == b"\0\5" + encode_data(ConsumerGroupMemberMetadataKey("gruppe \xfc", "n"), 0)


def value_of(record: RecordPair) -> bytes:
    _, value = record
    assert value is not None
    return value


def test_topics_with_the_same_partitions_share_what_a_record_says_of_them() -> None:
    held = {number.to_bytes(16, "big"): {0: number % 2, 1: 5} for number in range(100)}
    value = value_of(current_record("g", ConsumerMember("m", 9, 8, assigned=held)))
    read_current(value)
    assert len({id(given) for given in read_current(value).assigned.values()}) == 2
    value = value_of(target_record("g", "m", {topic_id: frozenset(given) for topic_id, given in held.items()}))
    read_target(value)
    assert len({id(partitions) for partitions in read_target(value).values()}) == 1


def test_what_is_not_as_this_version_writes_it_is_read_by_the_codec() -> None:
    """Before Kafka 4.3 there were no epochs; a later version may have more tagged fields, here as there."""
    partitions = [0, 1]
    told = [HeldPartitions(TOPIC, partitions, None)]
    before = b"\0\0" + encode_data(ConsumerGroupCurrentMemberAssignmentValue(9, 8, 0, told, []), 0)
    assert read_current(before) == (9, 8, MemberState.STABLE, {TOPIC: {0: 9, 1: 9}}, {})
    current = value_of(current_record("g", ConsumerMember("m", 9, 8, assigned={TOPIC: {0: 7, 1: 9}})))
    assert read_current(current[:-1] + b"\1\5\1x") == (9, 8, MemberState.STABLE, {TOPIC: {0: 7, 1: 9}}, {})
    target = value_of(target_record("g", "m", {TOPIC: frozenset(partitions)}))
    assert read_target(target[:-1] + b"\1\5\1x") == {TOPIC: {0, 1}}
    assert read_target(target[:-2] + b"\1\5\1x" + b"\0") == {TOPIC: {0, 1}}


@pytest.mark.parametrize("partitions", [0, 1, 40])
def test_what_ends_too_early_is_refused(partitions: int) -> None:
    held = {TOPIC: dict.fromkeys(range(partitions), 3)}
    current = value_of(current_record("g", ConsumerMember("m", 9, 8, assigned=held, revoking=held)))
    target = value_of(target_record("g", "m", {TOPIC: frozenset(range(partitions))}))
    for end in range(len(target)):
        with pytest.raises(MalformedRequest):
            read_target(target[:end])
    for end in range(len(current)):
        with pytest.raises(MalformedRequest):
            read_current(current[:end])


def test_a_list_that_is_null_is_refused() -> None:
    with pytest.raises(MalformedRequest):
        read_target(b"\0\0" + b"\0" + b"\0")
    with pytest.raises(MalformedRequest):
        read_current(b"\0\0" + bytes(9) + b"\0\1" + b"\0")


@pytest.mark.parametrize("members", [0, 1, 3])
def test_a_group_is_written_as_its_schema_has_it(members: int) -> None:
    group = ClassicGroup("grüße", generation=7, protocol_type="consumer" if members else None, state_timestamp_ms=99)
    group.protocol_name = "range" if members else None
    told: list[MemberMetadata] = []
    for number in range(members):
        instance = "ß" if number == 1 else None
        both = ("m" + "ü" * number, instance, "client", "/häuschen", 30_000, 10_000 + number)
        group.add(ClassicMember(*both, (("sticky", b"no"), ("range", b"yes" * number))))
        told.append(MemberMetadata(*both, b"yes" * number, b"a" * number))
    for _ in range(2):  # the second time from what is kept of the first
        _, value = classic_group_record(group, {each.member_id: each.assignment for each in told})
        leader = group.leader
        schema = GroupMetadataValue(group.protocol_type or "", 7, group.protocol_name, leader, 99, told)
        assert value == b"\0\3" + encode_data(schema, 3)


def test_a_member_that_says_something_new_is_written_anew() -> None:
    group = ClassicGroup("g", protocol_name="range")
    group.add(ClassicMember("m", None, "c", "/h", 1, 1, (("range", b"old"), ("sticky", b"s"))))
    classic_group_record(group, {})
    ask = Driver().join_command(protocols=(("range", b"new"), ("sticky", b"s")))
    group.update(group.members["m"], ask, None)
    for name, said in (("range", b"new"), ("sticky", b"s")):
        group.protocol_name = name
        _, value = classic_group_record(group, {})
        assert value is not None
        assert read_value(GroupMetadataValue, value).members[0].subscription == said


def test_records_of_kinds_that_we_do_not_know_are_passed_over() -> None:
    machine = GroupCoordinator(GroupSettings(), Topics(), lambda: 0)
    machine.apply(bytes.fromhex("000b00016b"), b"share group")
    machine.apply(bytes.fromhex("7fff"), None)
    assert machine.durable_facts() == GroupCoordinator(GroupSettings(), Topics(), lambda: 0).durable_facts()


def test_offsets_of_the_oldest_kind_of_key_are_read() -> None:
    driver = Driver()
    old_key = bytes.fromhex("0000") + encode_data(OffsetCommitKey("g", "orders", 0), 0)
    driver.machine.apply(old_key, offset_record("g", "orders", 0, CommittedOffset(5, -1, "", 1, None, bytes(16)))[1])
    assert driver.committed() == 5


@pytest.mark.parametrize("expires", [None, 99])
def test_an_offset_survives_its_record(expires: int | None) -> None:
    topic_id = bytes(16) if expires is not None else b"i" * 16
    leader_epoch = -1 if expires is not None else 4
    committed = CommittedOffset(5, leader_epoch, "note", 1, expires, topic_id)
    key, value = offset_record("g", "orders", 3, committed)
    assert read_key(key) == OffsetCommitKey("g", "orders", 3)
    assert value is not None
    assert read_offset(value) == committed


@pytest.mark.parametrize("metadata", ["", "note", "é" * 63, "é" * 64, "m" * 126, "m" * 127, "m" * 4096])
@pytest.mark.parametrize("topic_id", [bytes(16), b"i" * 16])
def test_offsets_are_written_and_read_by_hand_as_by_the_codec(metadata: str, topic_id: bytes) -> None:
    committed = CommittedOffset(1 << 40, 7, metadata, 1_700_000_000_000, None, topic_id)
    key, value = offset_record("größe", "orders", 65_536, committed)
    said = OffsetCommitValue(1 << 40, 7, metadata, 1_700_000_000_000, topic_id=topic_id)
    assert key == b"\0\1" + encode_data(OffsetCommitKey("größe", "orders", 65_536), 0)
    assert value == b"\0\4" + encode_data(said, 4)
    assert read_offset_key(key) == ("größe", "orders", 65_536)
    assert read_offset(value) == committed


def test_an_offset_with_other_tagged_fields_is_read() -> None:
    """As a later Kafka may write it: this field has the length of a topic id, but is none."""
    committed = CommittedOffset(5, 4, "note", 1, None, b"i" * 16)
    _, value = offset_record("g", "orders", 3, committed)
    assert value is not None
    assert value[-18:-16] == b"\0\x10"
    assert read_offset(value[:-18] + b"\1\x10" + value[-16:]) == committed._replace(topic_id=bytes(16))
    assert read_offset(value[:-19] + b"\2" + value[-18:] + b"\1\1x") == committed


@pytest.mark.parametrize("cut", range(1, 46))
def test_an_offset_that_is_cut_off_is_not_read(cut: int) -> None:
    _, value = offset_record("g", "orders", 3, CommittedOffset(5, 4, "note", 1, None, b"i" * 16))
    assert value is not None
    with pytest.raises(MalformedRequest):
        read_offset(value[:-cut])


def test_the_tombstones_of_a_whole_group_are_written_by_hand_as_by_the_codec() -> None:
    keys = [key for key, _ in consumer_group_tombstones("größe", members_tombstones("größe", ["ä"]), [])]
    assert [read_key(key) for key in keys] == [
        ConsumerGroupCurrentMemberAssignmentKey("größe", "ä"),
        ConsumerGroupTargetAssignmentMemberKey("größe", "ä"),
        ConsumerGroupTargetAssignmentMetadataKey("größe"),
        ConsumerGroupMemberMetadataKey("größe", "ä"),
        ConsumerGroupPartitionMetadataKey("größe"),
        ConsumerGroupMetadataKey("größe"),
    ]


def test_the_key_of_an_offset_ends_with_its_partition() -> None:
    key = offset_key("g", "orders", 3)
    for wrong in (key[:-1], key + b"\0"):
        with pytest.raises((MalformedRequest, ValueError)):
            read_offset_key(wrong)


def test_tombstones_of_groups_that_are_not_there_change_nothing() -> None:
    machine = GroupCoordinator(GroupSettings(), Topics(), lambda: 0)
    for _, _, meaning, _ in FROM_KAFKA:
        machine.apply(*tombstone(meaning))
    machine.apply(*tombstone(ConsumerGroupPartitionMetadataKey("g")))
    assert machine.durable_facts() == GroupCoordinator(GroupSettings(), Topics(), lambda: 0).durable_facts()


def test_an_old_brokers_partition_metadata_is_removed_at_the_next_change() -> None:
    driver = Driver()
    driver.beat("a", 0)
    key = tombstone(ConsumerGroupPartitionMetadataKey("g"))
    driver.machine.apply(key[0], bytes.fromhex("0000") + b"\x01\x00")
    driver.topics.put("orders", 5)
    driver.beat("a", 2)
    assert key in driver.log[-1].records

"""Coordinators' records, byte by byte as Apache Kafka 4.3 writes them (its own generated classes wrote these)."""

from __future__ import annotations

import pytest

from service.wire import messages as m
from service.wire.base import Struct
from service.wire.codec import MalformedRequest, decode_data, encode_data

TOPIC_ID = bytes.fromhex("0102030405060708090a0b0c0d0e0f10")
OTHER_TOPIC_ID = bytes.fromhex("00000000000000010000000000000002")
COMMITTED_MS = 1_700_000_000_123


def member(**values: object) -> m.MemberMetadata:
    made = m.MemberMetadata(
        member_id="m-1", client_id="c", client_host="/10.0.0.1", session_timeout=45_000, subscription=b"\1\2\3"
    )
    for name, value in values.items():
        setattr(made, name, value)
    return made


def group(timestamp_ms: int, only: m.MemberMetadata) -> m.GroupMetadataValue:
    return m.GroupMetadataValue(
        protocol_type="consumer",
        generation=9,
        protocol="range",
        leader=None,
        current_state_timestamp=timestamp_ms,
        members=[only],
    )


def transaction(**values: object) -> m.TransactionLogValue:
    made = m.TransactionLogValue(
        producer_id=1000,
        producer_epoch=3,
        transaction_timeout_ms=60_000,
        transaction_status=1,
        transaction_partitions=[m.PartitionsSchema(topic="orders", partition_ids=[0, 2])],
        transaction_last_update_timestamp_ms=COMMITTED_MS,
        transaction_start_timestamp_ms=1_700_000_000_000,
    )
    for name, value in values.items():
        setattr(made, name, value)
    return made


COMMITTED = m.OffsetCommitValue(offset=42, metadata="größe", commit_timestamp=COMMITTED_MS)
WRITTEN_BY_KAFKA: list[tuple[Struct, int, str]] = [
    (m.OffsetCommitKey("payments", "orders", 7), 0, "00087061796d656e747300066f726465727300000007"),
    (COMMITTED, 0, "000000000000002a00076772c3b6c39f650000018bcfe5687b"),
    (
        m.OffsetCommitValue(42, metadata="größe", commit_timestamp=COMMITTED_MS, expire_timestamp=1_800_000_000_000),
        1,
        "000000000000002a00076772c3b6c39f650000018bcfe5687b000001a3185c5000",
    ),
    (COMMITTED, 2, "000000000000002a00076772c3b6c39f650000018bcfe5687b"),
    (
        m.OffsetCommitValue(42, leader_epoch=5, metadata="größe", commit_timestamp=COMMITTED_MS),
        3,
        "000000000000002a0000000500076772c3b6c39f650000018bcfe5687b",
    ),
    (
        m.OffsetCommitValue(42, leader_epoch=5, metadata="größe", commit_timestamp=COMMITTED_MS, topic_id=TOPIC_ID),
        4,
        "000000000000002a00000005086772c3b6c39f650000018bcfe5687b0100100102030405060708090a0b0c0d0e0f10",
    ),
    (m.GroupMetadataKey("payments"), 0, "00087061796d656e7473"),
    (
        group(-1, member()),
        0,
        "0008636f6e73756d657200000009000572616e6765ffff0000000100036d2d3100016300092f31302e302e302e310000afc800000003"
        "01020300000000",
    ),
    (
        group(-1, member(rebalance_timeout=300_000)),
        1,
        "0008636f6e73756d657200000009000572616e6765ffff0000000100036d2d3100016300092f31302e302e302e31000493e00000afc8"
        "0000000301020300000000",
    ),
    (
        group(COMMITTED_MS, member(rebalance_timeout=300_000)),
        2,
        "0008636f6e73756d657200000009000572616e6765ffff0000018bcfe5687b0000000100036d2d3100016300092f31302e302e302e31"
        "000493e00000afc80000000301020300000000",
    ),
    (
        group(COMMITTED_MS, member(rebalance_timeout=300_000, group_instance_id="static-1")),
        3,
        "0008636f6e73756d657200000009000572616e6765ffff0000018bcfe5687b0000000100036d2d3100087374617469632d3100016300"
        "092f31302e302e302e31000493e00000afc80000000301020300000000",
    ),
    (
        group(COMMITTED_MS, member(rebalance_timeout=300_000, group_instance_id="static-1")),
        4,
        "09636f6e73756d6572000000090672616e6765000000018bcfe5687b02046d2d31097374617469632d3102630a2f31302e302e302e31"
        "000493e00000afc804010203010000",
    ),
    (m.ConsumerGroupMetadataKey("g"), 0, "000167"),
    (m.ConsumerGroupMetadataValue(epoch=3, metadata_hash=77), 0, "00000003010008000000000000004d"),
    (m.ConsumerGroupMemberMetadataKey("g", "m"), 0, "00016700016d"),
    (
        m.ConsumerGroupMemberMetadataValue(
            instance_id="i",
            rack_id=None,
            client_id="c",
            client_host="h",
            subscribed_topic_names=["a", "b"],
            subscribed_topic_regex=None,
            rebalance_timeout_ms=1000,
            server_assignor="uniform",
            classic_member_metadata=m.ClassicMemberMetadata(45_000, [m.ClassicProtocol("range", b"\x09\x08")]),
        ),
        0,
        "02690002630268030261026200000003e808756e69666f726d010011010000afc8020672616e67650309080000",
    ),
    (m.ConsumerGroupMemberMetadataValue(client_id="c", client_host="h"), 0, "0101026302680101ffffffff0100"),
    # Not sent is a struct of defaults here; null is written out, as 0 and not as -1 because it stands in a tag.
    (m.ConsumerGroupMemberMetadataValue(classic_member_metadata=None), 0, "010101010101ffffffff0101000100"),
    (m.ConsumerGroupTargetAssignmentMetadataKey("g"), 0, "000167"),
    (m.ConsumerGroupTargetAssignmentMetadataValue(4), 0, "0000000400"),
    (m.ConsumerGroupTargetAssignmentMemberKey("g", "m"), 0, "00016700016d"),
    (
        m.ConsumerGroupTargetAssignmentMemberValue(
            [m.ConsumerGroupTargetAssignmentMemberValueTopicPartition(OTHER_TOPIC_ID, [0, 3])]
        ),
        0,
        "02000000000000000100000000000000020300000000000000030000",
    ),
    (m.ConsumerGroupCurrentMemberAssignmentKey("g", "m"), 0, "00016700016d"),
    (
        m.ConsumerGroupCurrentMemberAssignmentValue(
            member_epoch=5,
            previous_member_epoch=4,
            state=1,
            assigned_partitions=[m.ConsumerGroupCurrentMemberAssignmentValueTopicPartitions(OTHER_TOPIC_ID, [1])],
        ),
        0,
        "00000005000000040102000000000000000100000000000000020200000001000100",
    ),
    (m.ConsumerGroupRegularExpressionKey("g", "o.*"), 0, "00016700036f2e2a"),
    (
        m.ConsumerGroupRegularExpressionValue(["orders"], 2, COMMITTED_MS),
        0,
        "02076f726465727300000000000000020000018bcfe5687b00",
    ),
    (m.TransactionLogKey("pay-1"), 0, "00057061792d31"),
    (
        transaction(),
        0,
        "00000000000003e800030000ea60010000000100066f72646572730000000200000000000000020000018bcfe5687b0000018bcfe56800",
    ),
    (
        transaction(previous_producer_id=999, client_transaction_version=2),
        1,
        "00000000000003e800030000ea600102076f7264657273030000000000000002000000018bcfe5687b0000018bcfe568000200080000"
        "0000000003e702020002",
    ),
    (
        m.TransactionLogValue(producer_id=1, transaction_partitions=None),
        1,
        "000000000000000100000000000000000000000000000000000000000000000000",
    ),
]


@pytest.mark.parametrize(
    ("record", "version", "written"),
    WRITTEN_BY_KAFKA,
    ids=[f"{type(record).__name__}-{version}-{at}" for at, (record, version, _) in enumerate(WRITTEN_BY_KAFKA)],
)
def test_records_are_written_and_read_as_kafka_does(record: Struct, version: int, written: str) -> None:
    assert encode_data(record, version).hex() == written
    assert decode_data(type(record), version, bytes.fromhex(written)) == record


def test_a_version_that_nobody_defined_is_refused() -> None:
    with pytest.raises(MalformedRequest, match="no version 5"):
        decode_data(m.OffsetCommitValue, 5, b"")
    with pytest.raises(MalformedRequest, match="no version"):
        decode_data(m.MetadataRequestTopic, 0, b"")

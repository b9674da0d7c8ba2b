"""Short ways to say what conversations say often. Everything here only builds messages and batches."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from log.batch import NewRecord, build_batch, crc32c
from service.wire.messages import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)

T0 = 1_700_000_000_000
NO_ID = bytes(16)
STRANGE_ID = bytes(range(16))

BASE_OFFSET_AT, LENGTH_AT, MAGIC_AT, CRC_AT, CHECKED_FROM = 0, 8, 16, 17, 21
ATTRIBUTES_AT, LAST_DELTA_AT, BASE_TIMESTAMP_AT, MAX_TIMESTAMP_AT, COUNT_AT = 21, 23, 27, 35, 57


def records(count: int, *, first_timestamp: int = T0, size: int = 10, step_ms: int = 1) -> list[NewRecord]:
    return [
        (b"key-%d" % number, bytes([97 + number % 26]) * size, (), first_timestamp + number * step_ms)
        for number in range(count)
    ]


def batch(
    count: int = 1,
    *,
    first_timestamp: int = T0,
    size: int = 10,
    codec: int = 0,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
    control: bool = False,
    step_ms: int = 1,
) -> bytes:
    return build_batch(
        records(count, first_timestamp=first_timestamp, size=size, step_ms=step_ms),
        codec=codec,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        transactional=transactional,
        control=control,
    )


def patched(whole: bytes, layout: str, at: int, value: int, *, checksum: bool = True) -> bytes:
    """A batch with one field of its header overwritten; with `checksum` the checksum is made right again."""
    changed = bytearray(whole)
    struct.pack_into(layout, changed, at, value)
    if checksum:
        struct.pack_into(">I", changed, CRC_AT, crc32c(bytes(changed[CHECKED_FROM:])))
    return bytes(changed)


def produce(
    topic: str,
    data: bytes | None,
    *,
    partition: int = 0,
    acks: int = -1,
    transactional_id: str | None = None,
    topic_id: bytes = NO_ID,
    timeout_ms: int = 10_000,
) -> ProduceRequest:
    """Name and id both: the version decides which one travels."""
    one = TopicProduceData(
        name=topic, topic_id=topic_id, partition_data=[PartitionProduceData(index=partition, records=data)]
    )
    return ProduceRequest(transactional_id=transactional_id, acks=acks, timeout_ms=timeout_ms, topic_data=[one])


def fetch(
    topic: str,
    offset: int = 0,
    *,
    partition: int = 0,
    topic_id: bytes = NO_ID,
    max_wait_ms: int = 0,
    min_bytes: int = 0,
    max_bytes: int = 1 << 20,
    partition_max_bytes: int = 1 << 20,
    isolation_level: int = 0,
    current_leader_epoch: int = -1,
    session_id: int = 0,
    session_epoch: int = -1,
    last_fetched_epoch: int = -1,
) -> FetchRequest:
    one = FetchPartition(
        partition=partition,
        current_leader_epoch=current_leader_epoch,
        fetch_offset=offset,
        partition_max_bytes=partition_max_bytes,
        last_fetched_epoch=last_fetched_epoch,
    )
    return FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        isolation_level=isolation_level,
        session_id=session_id,
        session_epoch=session_epoch,
        topics=[FetchTopic(topic=topic, topic_id=topic_id, partitions=[one])],
    )


def list_offsets(
    topic: str, *timestamps: int, isolation_level: int = 0, partition: int = 0, current_leader_epoch: int = -1
) -> ListOffsetsRequest:
    asked = [
        ListOffsetsPartition(partition_index=partition, current_leader_epoch=current_leader_epoch, timestamp=timestamp)
        for timestamp in timestamps
    ]
    return ListOffsetsRequest(
        replica_id=-1,
        isolation_level=isolation_level,
        topics=[ListOffsetsTopic(name=topic, partitions=asked)],
        timeout_ms=5_000,
    )


def commit(
    group: str,
    topic: str,
    offsets: Sequence[int],
    *,
    topic_id: bytes = NO_ID,
    member: str = "",
    generation: int = -1,
    instance: str | None = None,
    metadata: str | None = "",
) -> OffsetCommitRequest:
    """Offsets of partitions 0, 1, ..."""
    rows = [
        OffsetCommitRequestPartition(partition_index=number, committed_offset=offset, committed_metadata=metadata)
        for number, offset in enumerate(offsets)
    ]
    return OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=generation,
        member_id=member,
        group_instance_id=instance,
        topics=[OffsetCommitRequestTopic(name=topic, topic_id=topic_id, partitions=rows)],
    )

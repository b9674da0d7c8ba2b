"""ListOffsets, OffsetForLeaderEpoch and DeleteRecords: where a partition begins, ends, and was when."""

from __future__ import annotations

from service.wire.messages import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from service.wire.messages.versions import ApiKey
from tests.conformance.say import T0, batch, fetch, list_offsets, produce
from tests.conformance.talk import Talk, stable_versions

SPECIALS = (-1, -2, -3, -4, -5, -6, -7, -100)


def filled(talk: Talk) -> str:
    """Three batches of four records, a second apart, the middle one younger than the last."""
    topic = talk.topic()
    for start in (T0, T0 + 100_000, T0 + 50_000):
        talk.quietly(produce(topic, batch(4, first_timestamp=start, step_ms=1_000)), 11)
    return topic


def every_version_and_special(talk: Talk) -> None:
    topic = filled(talk)
    for version in stable_versions(ApiKey.LIST_OFFSETS):
        for special in SPECIALS:
            talk.ask(list_offsets(topic, special), version, why=f"timestamp {special}")
    empty = talk.topic()
    for special in SPECIALS[:5]:
        talk.ask(list_offsets(empty, special), why=f"timestamp {special} of nothing")


def by_time(talk: Talk) -> None:
    topic = filled(talk)
    times = (
        0,
        T0 - 1,
        T0,
        T0 + 1,
        T0 + 3_000,
        T0 + 3_001,
        T0 + 50_000,
        T0 + 53_000,
        T0 + 103_000,
        T0 + 103_001,
        2**63 - 1,
    )
    for when in times:
        talk.ask(list_offsets(topic, when), why=f"T0{when - T0:+d}")
    talk.ask(list_offsets(talk.topic(), T0), why="in an empty partition")
    for codec in (1, 4):
        packed = talk.topic()
        talk.quietly(produce(packed, batch(4, codec=codec, step_ms=1_000)), 11)
        talk.ask(list_offsets(packed, T0 + 1_500), why=f"inside a batch of codec {codec}")


def what_is_not_there(talk: Talk) -> None:
    topic = filled(talk)
    for version in (1, 4, 7):
        talk.ask(list_offsets("no-such-topic", -1), version, why="no such topic")
        talk.ask(list_offsets(topic, -1, partition=1), version, why="partition 1")
        talk.ask(list_offsets(topic, -1, partition=-1), version, why="partition -1")
    talk.ask(list_offsets("bad name", -1), 7, why="a bad name")
    talk.ask(list_offsets(topic, -1, -2), 7, why="one partition twice")
    talk.ask(ListOffsetsRequest(replica_id=-1, topics=[]), 7, why="nothing")
    talk.ask(list_offsets(topic), 7, why="no partitions")
    for epoch in (-1, 0, 1, 50):
        talk.ask(list_offsets(topic, -1, current_leader_epoch=epoch), 7, why=f"in epoch {epoch}")
    talk.ask(list_offsets(topic, -1, isolation_level=1), 7, why="committed only")
    talk.ask(list_offsets(topic, -1, isolation_level=9), 7, why="isolation 9")
    replica = ListOffsetsTopic(name=topic, partitions=[ListOffsetsPartition(partition_index=0, timestamp=-1)])
    for replica_id in (-2, 1, 9):
        talk.ask(ListOffsetsRequest(replica_id=replica_id, topics=[replica]), 7, why=f"by replica {replica_id}")


def ends_of_epochs(talk: Talk) -> None:
    topic = filled(talk)

    def ask(version: int, leader_epoch: int, current: int, why: str, name: str = "", partition: int = 0) -> None:
        row = OffsetForLeaderPartition(partition=partition, current_leader_epoch=current, leader_epoch=leader_epoch)
        rows = [OffsetForLeaderTopic(topic=name or topic, partitions=[row])]
        talk.ask(OffsetForLeaderEpochRequest(replica_id=-1, topics=rows), version, why=why)

    for version in stable_versions(ApiKey.OFFSET_FOR_LEADER_EPOCH):
        for epoch in (-1, 0, 1, 2**31 - 1, -5):
            ask(version, epoch, -1, f"epoch {epoch}")
        for current in (0, 1, 9):
            ask(version, 0, current, f"while in epoch {current}")
        ask(version, 0, -1, "no such topic", name="no-such-topic")
        ask(version, 0, -1, "partition 1", partition=1)
    talk.ask(OffsetForLeaderEpochRequest(replica_id=-1, topics=[]), 4, why="nothing")


def deleting_records(talk: Talk) -> None:
    topic = filled(talk)

    def delete(offset: int, name: str = "", partition: int = 0) -> DeleteRecordsRequest:
        row = DeleteRecordsPartition(partition_index=partition, offset=offset)
        return DeleteRecordsRequest(topics=[DeleteRecordsTopic(name=name or topic, partitions=[row])], timeout_ms=5_000)

    for version in stable_versions(ApiKey.DELETE_RECORDS):
        talk.ask(delete(version + 1), version, why=f"below {version + 1}")
    talk.ask(delete(0), why="below 0: nothing to do")
    talk.ask(delete(2), why="below what is gone already")
    talk.ask(delete(13), why="beyond the end")
    talk.ask(delete(-2), why="below -2")
    talk.ask(delete(1, name="no-such-topic"), why="no such topic")
    talk.ask(delete(1, partition=3), why="partition 3")
    talk.ask(DeleteRecordsRequest(topics=[], timeout_ms=100), why="nothing")
    talk.ask(list_offsets(topic, -2), 7, why="the start")
    talk.ask(list_offsets(topic, T0), 7, why="a time that was deleted")
    talk.ask(fetch(topic, 3), 12, why="from the start")
    talk.ask(delete(-1), why="all there is")
    for special in (-1, -2, -3, -4):
        talk.ask(list_offsets(topic, special), why=f"timestamp {special} afterwards")
    talk.ask(produce(topic, batch()), 11, why="a record after that")


def deleting_records_of_compacted_topics(talk: Talk) -> None:
    topic = talk.topic(settings={"cleanup.policy": "compact"})
    talk.quietly(produce(topic, batch(4)), 11)
    row = DeleteRecordsPartition(partition_index=0, offset=2)
    talk.ask(DeleteRecordsRequest(topics=[DeleteRecordsTopic(name=topic, partitions=[row])], timeout_ms=5_000))
    internal = DeleteRecordsTopic(
        name="__consumer_offsets", partitions=[DeleteRecordsPartition(partition_index=0, offset=0)]
    )
    talk.group()
    talk.ask(DeleteRecordsRequest(topics=[internal], timeout_ms=5_000), why="an internal topic")


CONVERSATIONS = (
    every_version_and_special,
    by_time,
    what_is_not_there,
    ends_of_epochs,
    deleting_records,
    deleting_records_of_compacted_topics,
)

"""OffsetCommit, OffsetFetch and OffsetDelete: whose offsets, by whom, and what may not be committed."""

from __future__ import annotations

from collections.abc import Sequence

from service.wire.codec import encode_data
from service.wire.messages import (
    ConsumerProtocolSubscription,
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from service.wire.messages.versions import ApiKey
from tests.conformance.conversations.classic_groups import alone, joining, leaving, new_member_id, syncing
from tests.conformance.conversations.consumer_groups import beat, join, partitions_in_order
from tests.conformance.plain import Plain, sorted_by
from tests.conformance.say import NO_ID, STRANGE_ID, commit
from tests.conformance.talk import Talk, stable_versions


def committed(
    group: str,
    topics: Sequence[tuple[str, Sequence[int]]] | None,
    *,
    topic_id: bytes = NO_ID,
    member: str | None = None,
    epoch: int = -1,
    stable: bool = False,
) -> OffsetFetchRequest:
    """The question in both forms: of one group (to version 7) and of several (from 8 on)."""
    old = (
        None
        if topics is None
        else [OffsetFetchRequestTopic(name=name, partition_indexes=list(p)) for name, p in topics]
    )
    new = None
    if topics is not None:
        new = [OffsetFetchRequestTopics(name=name, topic_id=topic_id, partition_indexes=list(p)) for name, p in topics]
    one = OffsetFetchRequestGroup(group_id=group, member_id=member, member_epoch=epoch, topics=new)
    return OffsetFetchRequest(group_id=group, topics=old, groups=[one], require_stable=stable)


def by_partition(answer: dict[str, Plain]) -> Plain:
    """Topics and partitions come in any order where all were asked for."""
    for group in [answer, *rows_of(answer, "groups")]:
        topics = rows_of(group, "topics")
        for topic in topics:
            topic["partitions"] = sorted_by(topic.get("partitions", []), "partition_index")
        if topics:
            group["topics"] = sorted_by(group["topics"], "name", "topic_id")
    return answer


def rows_of(holder: dict[str, Plain], name: str) -> list[dict[str, Plain]]:
    rows = holder.get(name, [])
    assert isinstance(rows, list)
    return [row for row in rows if isinstance(row, dict)]


def every_version(talk: Talk) -> None:
    topic = talk.topic(partitions=3)
    topic_id = talk.topic_id(topic)
    for version in stable_versions(ApiKey.OFFSET_COMMIT):
        group = talk.group()
        talk.ask(commit(group, topic, [version, 7], topic_id=topic_id, metadata="note"), version)
        for reading in stable_versions(ApiKey.OFFSET_FETCH) if version == 10 else (7, 9):
            asked = committed(group, [(topic, [0, 1, 2])], topic_id=topic_id)
            talk.ask(asked, reading, why=f"after a commit of version {version}")
    group = talk.group()
    talk.quietly(commit(group, topic, [1, 2, 3], topic_id=topic_id))
    for version in stable_versions(ApiKey.OFFSET_FETCH):
        if version >= 2:
            talk.ask(committed(group, None), version, why="all", keep=by_partition)


def what_was_never_committed(talk: Talk) -> None:
    topic = talk.topic(partitions=2)
    topic_id = talk.topic_id(topic)
    group = talk.group()
    for version in stable_versions(ApiKey.OFFSET_FETCH):
        talk.ask(committed(group, [(topic, [0, 1, 5])], topic_id=topic_id), version, why="no such group")
        if version < 10:
            talk.ask(committed(group, [("no-such-topic", [0])]), version, why="no such topic")
        else:
            talk.ask(committed(group, [("", [0])], topic_id=STRANGE_ID), version, why="no such topic")
        if version >= 2:
            talk.ask(committed(group, None), version, why="all of no group")
        talk.ask(committed("", [(topic, [0])], topic_id=topic_id), version, why="a group without a name")
    talk.ask(committed(group, []), 7, why="of no topics")
    talk.ask(OffsetFetchRequest(groups=[]), 8, why="of no groups")
    one = OffsetFetchRequestGroup(group_id=group, topics=[OffsetFetchRequestTopics(name=topic, partition_indexes=[0])])
    talk.ask(OffsetFetchRequest(groups=[one, one]), 8, why="of one group twice")


def offsets_at_the_edges(talk: Talk) -> None:
    topic = talk.topic()
    group = talk.group()
    for offset in (0, -1, -2, 2**63 - 1, 1_000_000):
        talk.ask(commit(group, topic, [offset]), 9, why=f"offset {offset}")
        talk.ask(committed(group, [(topic, [0])]), 9, why=f"offset {offset}")
    for metadata in (None, "", "ünïcode", "x" * 4_096, "x" * 4_097):
        size = "null" if metadata is None else f"of {len(metadata)}"
        talk.ask(commit(group, topic, [5], metadata=metadata), 9, why=f"a note {size}")
        talk.ask(committed(group, [(topic, [0])]), 9, why=f"a note {size}", keep=size_of_note)
    row = OffsetCommitRequestPartition(partition_index=0, committed_offset=9, committed_leader_epoch=3)
    with_epoch = OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=-1,
        topics=[OffsetCommitRequestTopic(name=topic, partitions=[row])],
        retention_time_ms=5,
    )
    for version in (2, 4, 6, 9):
        talk.ask(with_epoch, version, why="with a leader epoch")
        talk.ask(committed(group, [(topic, [0])]), 9, why="with a leader epoch")


def size_of_note(answer: dict[str, Plain]) -> Plain:
    partition = rows_of(rows_of(rows_of(answer, "groups")[0], "topics")[0], "partitions")[0]
    return {**partition, "metadata": len(str(partition.get("metadata", "")))}


def what_is_not_there(talk: Talk) -> None:
    topic = talk.topic()
    group = talk.group()
    for version in (2, 6, 9):
        talk.ask(commit(group, "no-such-topic", [1]), version, why="no such topic")
        talk.ask(commit(group, "bad name", [1]), version, why="a bad name")
        talk.ask(commit(group, topic, [1, 2]), version, why="one partition too many")
        talk.ask(commit("", topic, [1]), version, why="a group without a name")
    talk.ask(commit(group, "", [1], topic_id=STRANGE_ID), 10, why="an id nobody has")
    talk.ask(commit(group, "", [1]), 10, why="the id of nothing")
    talk.ask(OffsetCommitRequest(group_id=group, generation_id_or_member_epoch=-1, topics=[]), 9, why="nothing")
    twice = [OffsetCommitRequestPartition(partition_index=0, committed_offset=offset) for offset in (1, 2)]
    rows = [OffsetCommitRequestTopic(name=topic, partitions=twice)]
    talk.ask(OffsetCommitRequest(group_id=group, generation_id_or_member_epoch=-1, topics=rows), 9, why="one twice")
    talk.ask(committed(group, [(topic, [0])]), 9, why="one twice")
    talk.ask(committed(group, [(topic, [0, 0])]), 9, why="asked twice")


def members_and_strangers(talk: Talk) -> None:
    topic = talk.topic()
    group = talk.group()
    talk.ask(commit(group, topic, [1], member="nobody", generation=1), 9, why="into no group, as a member")
    talk.ask(commit(group, topic, [1], member="nobody"), 9, why="into no group, with an id alone")
    member, generation = alone(talk, group)
    for version in (2, 7, 9):
        talk.ask(commit(group, topic, [2], member=member, generation=generation), version, why="a member")
        talk.ask(commit(group, topic, [2]), version, why="from outside, while there are members")
        talk.ask(commit(group, topic, [2], member="nobody", generation=generation), version, why="an id nobody has")
        for why, wrong in {"the generation before": generation - 1, "one to come": generation + 1, "none": -1}.items():
            talk.ask(commit(group, topic, [2], member=member, generation=wrong), version, why=f"in {why}")
    talk.ask(
        commit(group, topic, [2], member=member, generation=generation, instance="place"),
        9,
        why="with a place nobody has",
    )
    asked = committed(group, [(topic, [0])], member=member, epoch=generation)
    talk.ask(asked, 9, why="read as a classic member")
    talk.ask(leaving(group, member))
    talk.ask(commit(group, topic, [3], member=member, generation=generation), 9, why="after leaving")
    talk.ask(commit(group, topic, [4]), 9, why="from outside, into an empty group")
    talk.ask(committed(group, [(topic, [0])]), 9, why="at last")


def while_rebalancing(talk: Talk) -> None:
    topic = talk.topic()
    group = talk.group()
    second = talk.connect()
    member, generation = alone(talk, group)
    other = new_member_id(talk, group, second)
    waiting = talk.send(joining(group, other), why="the second", on=second)
    talk.wait_for(lambda: beating_says(talk, group, member, generation) == 27)
    talk.ask(commit(group, topic, [2], member=member, generation=generation), 9, why="while preparing")
    answer = talk.ask(joining(group, member), why="the first again", keep=lambda found: found.get("error_code", 0))
    talk.hear(waiting)
    generation = answer.generation_id if answer is not None else -1
    talk.ask(commit(group, topic, [3], member=member, generation=generation), 9, why="while completing")
    talk.ask(syncing(group, member, generation, {member: b"a", other: b"b"}))
    talk.ask(commit(group, topic, [4], member=member, generation=generation), 9, why="stable again")


def beating_says(talk: Talk, group: str, member: str, generation: int) -> int:
    from tests.conformance.conversations.classic_groups import beating

    return talk.quietly(beating(group, member, generation)).error_code


def members_of_consumer_groups(talk: Talk) -> None:
    topic = talk.topic()
    topic_id = talk.topic_id(topic)
    group = talk.group()
    talk.ask(join(group, "one", topic), keep=partitions_in_order)
    for version in (8, 9, 10):
        for epoch in (0, 1, 2, -1):
            asked = commit(group, topic, [version], member="one", generation=epoch, topic_id=topic_id)
            talk.ask(asked, version, why=f"in epoch {epoch}")
            reading = committed(group, [(topic, [0])], member="one", epoch=epoch, topic_id=topic_id)
            talk.ask(reading, version, why=f"in epoch {epoch}")
        talk.ask(commit(group, topic, [5], topic_id=topic_id), version, why="from outside")
        talk.ask(
            commit(group, topic, [5], member="nobody", generation=1, topic_id=topic_id), version, why="by a stranger"
        )
        stranger = committed(group, [(topic, [0])], member="nobody", epoch=1, topic_id=topic_id)
        talk.ask(stranger, version, why="by a stranger")
    talk.ask(committed(group, [(topic, [0])], stable=True), 7, why="stable offsets")
    talk.ask(beat(group, "one", -1))
    talk.ask(commit(group, topic, [6]), 9, why="from outside, into an empty group")


def deleting(talk: Talk) -> None:
    topic, other = talk.topic(partitions=2), talk.topic()
    group = talk.group()

    def delete(name: str, *partitions: int, of: str | None = None) -> OffsetDeleteRequest:
        rows = [OffsetDeleteRequestPartition(partition_index=partition) for partition in partitions]
        return OffsetDeleteRequest(
            group_id=group if of is None else of, topics=[OffsetDeleteRequestTopic(name=name, partitions=rows)]
        )

    talk.ask(delete(topic, 0), why="of no group")
    talk.ask(delete(topic, 0, of=""), why="of a group without a name")
    talk.ask(commit(group, topic, [1, 2]), 9)
    talk.ask(delete(topic, 0), why="one that is there")
    talk.ask(delete(topic, 0), why="one that is gone")
    talk.ask(delete(topic, 9), why="a partition that is not there")
    talk.ask(delete("no-such-topic", 0), why="a topic that is not there")
    talk.ask(OffsetDeleteRequest(group_id=group, topics=[]), why="none")
    talk.ask(committed(group, [(topic, [0, 1])]), 9, why="what is left")
    member = new_member_id(talk, group)
    wishes = b"\0\1" + encode_data(ConsumerProtocolSubscription(topics=[topic]), 1)
    talk.ask(joining(group, member, protocols={"range": wishes}))
    talk.ask(syncing(group, member, 1, {member: b""}))
    talk.quietly(commit(group, topic, [5, 5], member=member, generation=1), 9)
    talk.quietly(commit(group, other, [5], member=member, generation=1), 9)
    talk.ask(delete(topic, 1), why="of a topic that a member reads")
    talk.ask(delete(other, 0), why="of a topic that no member reads")
    modern = talk.group()
    talk.ask(join(modern, "one", topic), keep=partitions_in_order)
    talk.quietly(commit(modern, topic, [5], member="one", generation=1), 9)
    talk.ask(delete(topic, 0, of=modern), why="of a topic that a member of a consumer group reads")


CONVERSATIONS = (
    every_version,
    what_was_never_committed,
    offsets_at_the_edges,
    what_is_not_there,
    members_and_strangers,
    while_rebalancing,
    members_of_consumer_groups,
    deleting,
)

"""Metadata, DescribeTopicPartitions, DescribeCluster, FindCoordinator: who leads what, and where."""

from __future__ import annotations

from service.wire.messages import (
    DescribeClusterRequest,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsRequestCursor,
    DescribeTopicPartitionsRequestTopicRequest,
    FindCoordinatorRequest,
    MetadataRequest,
    MetadataRequestTopic,
)
from service.wire.messages.versions import ApiKey
from tests.conformance.plain import Plain, sorted_by
from tests.conformance.say import NO_ID, STRANGE_ID
from tests.conformance.talk import Talk, stable_versions


def metadata(*names: str, create: bool = False, operations: bool = False) -> MetadataRequest:
    return MetadataRequest(
        topics=[MetadataRequestTopic(name=name) for name in names],
        allow_auto_topic_creation=create,
        include_cluster_authorized_operations=operations,
        include_topic_authorized_operations=operations,
    )


def by_topic(answer: dict[str, Plain]) -> Plain:
    """Topics come in any order."""
    return {**answer, "topics": sorted_by(answer.get("topics", []), "name", "topic_id")}


def known_and_unknown_topics(talk: Talk) -> None:
    one, three = talk.topic(), talk.topic(partitions=3)
    for version in stable_versions(ApiKey.METADATA):
        if version >= 4:
            talk.ask(metadata(one, three, "no-such-topic"), version, keep=by_topic)
        else:  # these versions make what they do not find
            talk.ask(metadata(one, three), version, keep=by_topic)
    talk.ask(metadata(one, one), why="the same topic twice", keep=by_topic)
    talk.ask(metadata(one, operations=True), 8, why="with what one may do")
    talk.ask(metadata(one, operations=True), 12, why="with what one may do")


def no_topics_and_all_topics(talk: Talk) -> None:
    topic = talk.topic()

    def ours(answer: dict[str, Plain]) -> Plain:
        rows = answer.get("topics", [])
        assert isinstance(rows, list)
        mine: list[Plain] = [row for row in rows if isinstance(row, dict) and row.get("name") == topic]
        return {**answer, "topics": mine}

    for version in stable_versions(ApiKey.METADATA):
        none = MetadataRequest(topics=[], allow_auto_topic_creation=False)
        talk.ask(none, version, why="no topics", keep=ours if version == 0 else None)
        if version >= 1:
            talk.ask(
                MetadataRequest(topics=None, allow_auto_topic_creation=False), version, why="all topics", keep=ours
            )


def bad_names(talk: Talk) -> None:
    for version in (1, 8, 12):
        for name in ("", ".", "..", "with space", "ünïcode", "x" * 250, "a/b"):
            talk.ask(metadata(name), version, why=f"topic {name[:12]!r} of {len(name)}")
    talk.ask(metadata("", create=True), why="an empty name, to be made")
    talk.ask(metadata("with space", create=True), why="a bad name, to be made")
    talk.ask(metadata("__no_such_internal", create=False), why="internal-looking")


def topics_by_id(talk: Talk) -> None:
    topic = talk.topic()
    topic_id = talk.topic_id(topic)

    def by_id(*topics: MetadataRequestTopic) -> MetadataRequest:
        return MetadataRequest(topics=list(topics), allow_auto_topic_creation=False)

    for version in (12, 13):
        talk.ask(by_id(MetadataRequestTopic(topic_id=topic_id, name=None)), version, why="by its id")
        talk.ask(by_id(MetadataRequestTopic(topic_id=STRANGE_ID, name=None)), version, why="by an id nobody has")
        talk.ask(by_id(MetadataRequestTopic(topic_id=topic_id, name=topic)), version, why="by id and name")
        talk.ask(by_id(MetadataRequestTopic(topic_id=NO_ID, name=None)), version, why="by nothing")
    known, unknown = (MetadataRequestTopic(topic_id=one, name=None) for one in (topic_id, STRANGE_ID))
    talk.ask(by_id(known, unknown), why="both", keep=by_topic)
    talk.ask(by_id(known), 10, why="a version whose ids are not used")


def topics_made_by_asking(talk: Talk) -> None:
    name = talk.topic_name()
    talk.ask(metadata(name, create=True), why="not there yet", keep=lambda answer: answer.get("topics"))
    talk.topic_id(name)
    talk.ask(metadata(name), why="made with the broker's number of partitions")
    other = talk.topic_name()
    talk.ask(metadata(other), 3, why="versions before 4 make topics", keep=lambda answer: answer.get("topics"))
    talk.topic_id(other)
    talk.ask(metadata(other), why="made by version 3")


def partitions_described_in_pages(talk: Talk) -> None:
    first, second = talk.topic(partitions=3), talk.topic(partitions=2)

    def describe(
        *names: str, limit: int = 2_000, cursor: DescribeTopicPartitionsRequestCursor | None = None
    ) -> DescribeTopicPartitionsRequest:
        return DescribeTopicPartitionsRequest(
            topics=[DescribeTopicPartitionsRequestTopicRequest(name=name) for name in names],
            response_partition_limit=limit,
            cursor=cursor,
        )

    talk.ask(describe(first, second), why="two topics")
    talk.ask(describe(second, first), why="in another order")
    talk.ask(describe(first, first), why="one topic twice")
    talk.ask(describe("no-such-topic", first), why="one that is not there")
    talk.ask(describe("bad name"), why="a bad name")
    for limit in (0, -1, 1, 2, 3, 4):
        talk.ask(describe(first, second, limit=limit), why=f"at most {limit} partitions")
    cursors = {
        "the middle of the first": (first, 1),
        "the second": (second, 0),
        "behind its last partition": (first, 3),
        "a negative partition": (first, -1),
        "a topic that is not asked for": ("zzz", 0),
    }
    for why, (topic, partition) in cursors.items():
        cursor = DescribeTopicPartitionsRequestCursor(topic_name=topic, partition_index=partition)
        talk.ask(describe(first, second, limit=2, cursor=cursor), why=f"from {why}")


def the_cluster(talk: Talk) -> None:
    for version in stable_versions(ApiKey.DESCRIBE_CLUSTER):
        talk.ask(DescribeClusterRequest(), version)
        talk.ask(
            DescribeClusterRequest(include_cluster_authorized_operations=True), version, why="with what one may do"
        )
    for kind in (2, 3, -1):
        talk.ask(DescribeClusterRequest(endpoint_type=kind), 1, why=f"endpoints of kind {kind}")
    talk.ask(DescribeClusterRequest(include_fenced_brokers=True), 2, why="fenced brokers too")


def coordinators(talk: Talk) -> None:
    talk.transactional_id()
    group = talk.group()
    for version in stable_versions(ApiKey.FIND_COORDINATOR):
        for kind in (0, 1, 2, -1) if version else (0,):
            asked = FindCoordinatorRequest(key=group, key_type=kind, coordinator_keys=[group] if version >= 4 else [])
            talk.ask(asked, version, why=f"of kind {kind}")
        empty = FindCoordinatorRequest(key="", key_type=0, coordinator_keys=["", group] if version >= 4 else [])
        talk.ask(empty, version, why="of a group without a name")
    talk.ask(FindCoordinatorRequest(key_type=0, coordinator_keys=[]), 4, why="of nothing")
    talk.ask(FindCoordinatorRequest(key_type=0, coordinator_keys=[group, group]), 4, why="of one group twice")


CONVERSATIONS = (
    known_and_unknown_topics,
    no_topics_and_all_topics,
    bad_names,
    topics_by_id,
    topics_made_by_asking,
    partitions_described_in_pages,
    the_cluster,
    coordinators,
)

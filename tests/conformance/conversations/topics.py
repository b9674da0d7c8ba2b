"""CreateTopics, DeleteTopics, CreatePartitions: what is made, what is refused and why."""

from __future__ import annotations

from collections.abc import Mapping

from service.wire.messages import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
    MetadataRequest,
    MetadataRequestTopic,
)
from service.wire.messages.versions import ApiKey
from tests.conformance.plain import Plain, sorted_by
from tests.conformance.say import NO_ID, STRANGE_ID
from tests.conformance.talk import Talk, stable_versions

# Versions 5 and above answer with the topic's settings; what they are is compared in the family of settings.
SETTINGS_OF_INTEREST = ("cleanup.policy", "retention.ms", "segment.bytes", "max.message.bytes", "compression.type")


def new(
    name: str,
    partitions: int = 1,
    replicas: int = 1,
    *,
    settings: Mapping[str, str | None] | None = None,
    assigned: Mapping[int, list[int]] | None = None,
) -> CreatableTopic:
    return CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=replicas,
        configs=[CreatableTopicConfig(name=key, value=value) for key, value in (settings or {}).items()],
        assignments=[
            CreatableReplicaAssignment(partition_index=index, broker_ids=brokers)
            for index, brokers in (assigned or {}).items()
        ],
    )


def create(*topics: CreatableTopic, only_check: bool = False) -> CreateTopicsRequest:
    return CreateTopicsRequest(topics=list(topics), timeout_ms=10_000, validate_only=only_check)


def short(answer: dict[str, Plain]) -> Plain:
    """Topics in the order of their names, with a few of their settings."""
    rows = sorted_by(answer.get("topics", []), "name")
    assert isinstance(rows, list)
    for row in rows:
        assert isinstance(row, dict)
        configs = row.get("configs")
        if isinstance(configs, list):
            of_interest: list[Plain] = [
                one for one in configs if isinstance(one, dict) and one.get("name") in SETTINGS_OF_INTEREST
            ]
            row["configs"] = sorted_by(of_interest, "name")
        if row.get("topic_id"):
            row["topic_id"] = "<id>"
    return {**answer, "topics": rows}


def described(talk: Talk, name: str, *, partitions: int = 1) -> None:
    talk.topic_id(name, partitions=partitions)  # Kafka answers CreatePartitions before its Metadata shows them
    talk.ask(MetadataRequest(topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=False), 12)


def every_version(talk: Talk) -> None:
    for version in stable_versions(ApiKey.CREATE_TOPICS):
        name = talk.topic_name()
        talk.ask(create(new(name, 3, settings={"retention.ms": "1000"})), version, keep=short)
        talk.ask(create(new(name)), version, why="again", keep=short)
        talk.ask(create(new(talk.topic_name()), only_check=True), version, why="only to check", keep=short)
        described(talk, name)
    for version in stable_versions(ApiKey.DELETE_TOPICS):
        name = talk.topic()
        state = DeleteTopicState(name=name)
        asked = DeleteTopicsRequest(topics=[state], topic_names=[name], timeout_ms=10_000)
        talk.ask(asked, version)
        talk.ask(asked, version, why="again")
    topic = talk.topic()
    for version in stable_versions(ApiKey.CREATE_PARTITIONS):
        row = CreatePartitionsTopic(name=topic, count=version + 2, assignments=None)
        talk.ask(CreatePartitionsRequest(topics=[row], timeout_ms=10_000), version)
        talk.ask(CreatePartitionsRequest(topics=[row], timeout_ms=10_000), version, why="again")
    described(talk, topic, partitions=row.count)


def names(talk: Talk) -> None:
    bad = ("", ".", "..", "with space", "a/b", "ünïcode", "x" * 250)
    for name in bad:
        talk.ask(create(new(name)), why=f"{name[:10]!r} of {len(name)}", keep=short)
    longest = (talk.topic_name() + "x" * 249)[:249]
    talk.ask(create(new(longest)), why="of 249", keep=short)
    stem = talk.topic_name()
    talk.ask(create(new(f"{stem}.dot")), why="with a dot", keep=short)
    talk.ask(create(new(f"{stem}_dot")), why="that collides with it", keep=short)
    talk.ask(create(new("__consumer_offsets")), why="of an internal topic", keep=short)


def numbers(talk: Talk) -> None:
    for partitions in (0, -1, -2, 1, 40):
        name = talk.topic_name()
        talk.ask(create(new(name, partitions)), why=f"{partitions} partitions", keep=short)
        talk.ask(create(new(talk.topic_name(), partitions)), 2, why=f"{partitions} partitions", keep=short)
    for replicas in (0, -1, -2, 2, 100):
        talk.ask(create(new(talk.topic_name(), 1, replicas)), why=f"{replicas} replicas", keep=short)
    talk.ask(create(new(talk.topic_name(), -1, -1)), why="the broker's defaults", keep=short)


def assignments(talk: Talk) -> None:
    cases: dict[str, CreatableTopic] = {
        "to this broker": new(talk.topic_name(), -1, -1, assigned={0: [1], 1: [1]}),
        "and a number of partitions": new(talk.topic_name(), 2, -1, assigned={0: [1], 1: [1]}),
        "and a number of replicas": new(talk.topic_name(), -1, 1, assigned={0: [1]}),
        "to a broker nobody knows": new(talk.topic_name(), -1, -1, assigned={0: [9]}),
        "twice to one broker": new(talk.topic_name(), -1, -1, assigned={0: [1, 1]}),
        "to no broker": new(talk.topic_name(), -1, -1, assigned={0: []}),
        "with a hole": new(talk.topic_name(), -1, -1, assigned={0: [1], 2: [1]}),
        "from one on": new(talk.topic_name(), -1, -1, assigned={1: [1]}),
        "to a negative broker": new(talk.topic_name(), -1, -1, assigned={0: [-1]}),
    }
    for why, topic in cases.items():
        talk.ask(create(topic), why=why, keep=short)


def settings(talk: Talk) -> None:
    cases: dict[str, dict[str, str | None]] = {
        "good": {"retention.ms": "5000", "cleanup.policy": "compact,delete"},
        "unknown": {"no.such.setting": "1"},
        "not a number": {"retention.ms": "soon"},
        "out of range": {"retention.ms": "-2"},
        "no such policy": {"cleanup.policy": "shred"},
        "an empty policy": {"cleanup.policy": ""},
        "null": {"retention.ms": None},
        "a segment too small": {"segment.bytes": "1"},
        "a ratio above one": {"min.cleanable.dirty.ratio": "1.5"},
        "not a truth": {"unclean.leader.election.enable": "perhaps"},
        "no such codec": {"compression.type": "rar"},
        "a number with spaces": {"retention.ms": " 5000 "},
        "two that disagree": {"max.compaction.lag.ms": "1", "min.compaction.lag.ms": "2"},
        "a broker's setting": {"log.retention.ms": "5"},
        "more in-sync replicas than replicas": {"min.insync.replicas": "2"},
        "no name": {"": "5"},
        "a number too large": {"retention.ms": "99999999999999999999"},
        "a timestamp type nobody has": {"message.timestamp.type": "Never"},
    }
    for why, wanted in cases.items():
        talk.ask(create(new(talk.topic_name(), settings=wanted)), why=why, keep=short)
        talk.ask(create(new(talk.topic_name(), settings=wanted), only_check=True), why=f"{why}, to check", keep=short)


def several_at_once(talk: Talk) -> None:
    one, two = talk.topic_name(), talk.topic_name()
    talk.ask(create(new(one), new("bad name"), new(two, 0)), why="one good, two bad", keep=short)
    twice = talk.topic_name()
    talk.ask(create(new(twice), new(twice)), why="one name twice", keep=short)
    talk.ask(create(), why="none")
    talk.ask(CreateTopicsRequest(topics=[new(talk.topic_name())], timeout_ms=0), why="no time", keep=short)
    talk.ask(CreateTopicsRequest(topics=[new(talk.topic_name())], timeout_ms=-1), why="negative time", keep=short)


def deleting(talk: Talk) -> None:
    topic = talk.topic()
    topic_id = talk.topic_id(topic)

    def delete(*states: DeleteTopicState) -> DeleteTopicsRequest:
        return DeleteTopicsRequest(
            topics=list(states), topic_names=[state.name or "" for state in states], timeout_ms=10_000
        )

    talk.ask(delete(DeleteTopicState(name=None, topic_id=STRANGE_ID)), why="by an id nobody has")
    talk.ask(delete(DeleteTopicState(name=None, topic_id=NO_ID)), why="by nothing")
    talk.ask(delete(DeleteTopicState(name=topic, topic_id=topic_id)), why="by id and name")
    talk.ask(delete(DeleteTopicState(name="no-such-topic")), why="no such topic")
    talk.ask(delete(DeleteTopicState(name="no-such-topic")), 1, why="no such topic")
    talk.ask(delete(DeleteTopicState(name="bad name")), why="a bad name")
    talk.ask(delete(DeleteTopicState(name="")), why="no name")
    talk.ask(delete(DeleteTopicState(name=topic), DeleteTopicState(name=topic)), why="one name twice")
    talk.ask(delete(), why="none")
    talk.ask(delete(DeleteTopicState(name=None, topic_id=topic_id)), why="by its id")
    again = talk.topic()
    talk.ask(
        delete(DeleteTopicState(name="no-such-topic"), DeleteTopicState(name=again)),
        5,
        why="one of two is there",
        keep=lambda answer: sorted_by(answer["responses"], "name"),
    )
    talk.ask(
        MetadataRequest(topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False), 12, why="gone"
    )


def growing(talk: Talk) -> None:
    topic = talk.topic(partitions=2)

    def grow(
        count: int, assigned: list[list[int]] | None = None, *, name: str = "", only_check: bool = False
    ) -> CreatePartitionsRequest:
        rows = None if assigned is None else [CreatePartitionsAssignment(broker_ids=brokers) for brokers in assigned]
        one = CreatePartitionsTopic(name=name or topic, count=count, assignments=rows)
        return CreatePartitionsRequest(topics=[one], timeout_ms=10_000, validate_only=only_check)

    for count in (-1, 0, 1, 2):
        talk.ask(grow(count), why=f"to {count}")
    talk.ask(grow(4, only_check=True), why="only to check")
    talk.ask(grow(4, [[1]]), why="too few assignments")
    talk.ask(grow(3, [[1], [1]]), why="too many assignments")
    talk.ask(grow(3, [[9]]), why="to a broker nobody knows")
    talk.ask(grow(3, [[1, 1]]), why="twice to one broker")
    talk.ask(grow(3, []), why="assignments, but none")
    talk.ask(grow(3, [[1]]), why="to this broker")
    talk.ask(grow(5), why="to five")
    talk.ask(grow(5, name="no-such-topic"), why="no such topic")
    two = [CreatePartitionsTopic(name=topic, count=count, assignments=None) for count in (6, 7)]
    talk.ask(CreatePartitionsRequest(topics=two, timeout_ms=10_000), why="one name twice")
    talk.ask(CreatePartitionsRequest(topics=[], timeout_ms=10_000), why="none")
    described(talk, topic, partitions=5)


CONVERSATIONS = (every_version, names, numbers, assignments, settings, several_at_once, deleting, growing)

"""Fetch: every version, bounds, byte limits, long polls, sessions and leader epochs."""

from __future__ import annotations

import time
from collections.abc import Sequence

from service.wire.messages import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic
from service.wire.messages.versions import ApiKey
from tests.conformance.plain import Plain
from tests.conformance.say import NO_ID, STRANGE_ID, batch, fetch, produce
from tests.conformance.talk import Talk, stable_versions


def filled(talk: Talk, *, batches: int = 5, count: int = 2, size: int = 100) -> str:
    topic = talk.topic()
    for _ in range(batches):
        talk.quietly(produce(topic, batch(count, size=size)), 11)
    return topic


def every_version(talk: Talk) -> None:
    topic = filled(talk)
    topic_id = talk.topic_id(topic)
    for version in stable_versions(ApiKey.FETCH):
        for isolation in (0, 1):
            asked = fetch(topic, 3, topic_id=topic_id, isolation_level=isolation)
            talk.ask(asked, version, why=f"isolation {isolation}")


def offsets_at_the_edges(talk: Talk) -> None:
    topic = filled(talk)
    for offset in (0, 1, 9, 10, 11, 2**62, -1, -2, -(2**63)):
        talk.ask(fetch(topic, offset), 12, why=f"from {offset}")
    empty = talk.topic()
    for offset in (0, 1, -1):
        talk.ask(fetch(empty, offset), 12, why=f"an empty partition from {offset}")


def what_is_not_there(talk: Talk) -> None:
    topic = filled(talk, batches=1)
    topic_id = talk.topic_id(topic)
    for version in (4, 12):
        talk.ask(fetch("no-such-topic"), version, why="no such topic")
        talk.ask(fetch("bad name"), version, why="a bad name")
        for partition in (1, -1):
            talk.ask(fetch(topic, partition=partition), version, why=f"partition {partition}")
    for version in (13, 17):
        talk.ask(fetch("", topic_id=STRANGE_ID), version, why="an id nobody has")
        talk.ask(fetch("", topic_id=NO_ID), version, why="the id of nothing")
        talk.ask(fetch("", topic_id=topic_id, partition=1), version, why="partition 1 by id")
    talk.ask(FetchRequest(max_wait_ms=0, topics=[]), 12, why="nothing")
    talk.ask(fetch(topic, isolation_level=2), 12, why="isolation 2")


def byte_limits(talk: Talk) -> None:
    topic = filled(talk)
    one = len(batch(2, size=100))
    for limit in (-1, 0, 1, 60, one - 1, one, one + 1, 2 * one, 2 * one + 70, 2**31 - 1):
        talk.ask(fetch(topic, partition_max_bytes=limit), 12, why=f"{limit} bytes of the partition")
        talk.ask(fetch(topic, max_bytes=limit), 12, why=f"{limit} bytes in all")


def byte_limits_over_partitions(talk: Talk) -> None:
    first, second, empty = filled(talk), filled(talk), talk.topic()
    one = len(batch(2, size=100))

    def ask(*topics: str, max_bytes: int, partition_max_bytes: int, why: str) -> None:
        rows = [
            FetchTopic(
                topic=name,
                partitions=[FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=partition_max_bytes)],
            )
            for name in topics
        ]
        talk.ask(FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=max_bytes, topics=rows), 12, why=why)

    ask(first, second, max_bytes=1, partition_max_bytes=1, why="one byte")
    ask(empty, first, second, max_bytes=1, partition_max_bytes=1, why="one byte, the first is empty")
    ask(first, second, max_bytes=3 * one, partition_max_bytes=2 * one, why="three batches, two of each")
    ask(first, second, max_bytes=one, partition_max_bytes=10 * one, why="one batch in all")
    ask(first, second, max_bytes=0, partition_max_bytes=0, why="nothing")
    ask(second, first, max_bytes=2 * one, partition_max_bytes=2 * one, why="the order asked for")


def long_polls(talk: Talk) -> None:
    topic = talk.topic()
    talk.ask(fetch(topic, max_wait_ms=400, min_bytes=0), 12, why="no bytes wanted", timed=True)
    talk.ask(fetch(topic, max_wait_ms=0, min_bytes=1), 12, why="no time to wait", timed=True)
    talk.ask(fetch(topic, max_wait_ms=400, min_bytes=1), 12, why="nothing comes", timed=True)
    talk.ask(fetch(topic, 5, max_wait_ms=400, min_bytes=1), 12, why="out of range", timed=True)
    talk.ask(fetch("no-such-topic", max_wait_ms=400, min_bytes=1), 12, why="no such topic", timed=True)
    waiting = talk.send(fetch(topic, max_wait_ms=5_000, min_bytes=1), 12, why="something comes", on=talk.connect())
    time.sleep(0.1)
    talk.quietly(produce(topic, batch()), 11)
    talk.hear(waiting)
    size = len(batch())
    waiting = talk.send(
        fetch(topic, max_wait_ms=1_000, min_bytes=3 * size), 12, why="too little comes", on=talk.connect()
    )
    time.sleep(0.1)
    talk.quietly(produce(topic, batch()), 11)
    talk.hear(waiting, timed=True)
    waiting = talk.send(fetch(topic, max_wait_ms=9_000, min_bytes=3 * size), 12, why="enough comes", on=talk.connect())
    time.sleep(0.1)
    talk.quietly(produce(topic, batch()), 11)
    talk.hear(waiting)


def leader_epochs(talk: Talk) -> None:
    topic = filled(talk, batches=1)
    for epoch in (-1, 0, 1, 99):
        talk.ask(fetch(topic, current_leader_epoch=epoch), 12, why=f"in epoch {epoch}")
    for epoch in (0, 1, 7):
        talk.ask(fetch(topic, 1, last_fetched_epoch=epoch), 12, why=f"having read in epoch {epoch}")
    talk.ask(fetch(topic, 9, last_fetched_epoch=0), 12, why="having read beyond the end")


def sessions(talk: Talk) -> None:
    first, second = filled(talk, batches=1), talk.topic()

    def ask(
        topics: Sequence[tuple[str, int]],
        *,
        session: int,
        epoch: int,
        why: str,
        forget: Sequence[str] = (),
        keep_id: bool = True,
    ) -> int:
        rows = [
            FetchTopic(
                topic=name, partitions=[FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)]
            )
            for name, offset in topics
        ]
        request = FetchRequest(
            max_wait_ms=0,
            max_bytes=1 << 20,
            session_id=session,
            session_epoch=epoch,
            topics=rows,
            forgotten_topics_data=[ForgottenTopic(topic=name, partitions=[0]) for name in forget],
        )
        answer = talk.ask(request, 12, why=why)
        return answer.session_id if answer is not None else 0

    talk.ask(fetch(first, session_id=0, session_epoch=-1), 12, why="no session wanted")
    session = ask([(first, 0), (second, 0)], session=0, epoch=0, why="a new session")
    ask([], session=session, epoch=1, why="nothing changed: data again, because the offset did not move")
    ask([(first, 2)], session=session, epoch=2, why="the offset moved: nothing to tell")
    ask([], session=session, epoch=3, why="still nothing to tell")
    talk.quietly(produce(second, batch()), 11)
    ask([], session=session, epoch=4, why="news of the second")
    ask([(second, 1)], session=session, epoch=5, why="read")
    ask([], session=session, epoch=5, why="an epoch again")
    ask([], session=session, epoch=9, why="an epoch too far")
    ask([], session=session, epoch=6, why="the right epoch after a wrong one")
    talk.quietly(produce(first, batch()), 11)
    ask([], session=session, epoch=7, forget=[first], why="the first is forgotten")
    ask([("no-such-topic", 0)], session=session, epoch=8, why="a topic that is not there joins")
    ask([], session=session, epoch=9, why="and is told of again")
    ask([], session=session + 1, epoch=1, why="a session nobody has")
    ask([(first, 0)], session=session, epoch=-1, why="the end of the session")
    ask([], session=session, epoch=10, why="after the end")
    ask([(first, 0)], session=123_456, epoch=0, why="a new session that names an old one")
    ask([(first, 0)], session=123_456, epoch=-1, why="the end of a session nobody has")
    ask([], session=0, epoch=5, why="an epoch without a session")


def one_partition_named_twice(talk: Talk) -> None:
    topic = filled(talk, batches=1)
    rows = [FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20) for offset in (0, 1)]
    talk.ask(FetchRequest(max_wait_ms=0, max_bytes=1 << 20, topics=[FetchTopic(topic=topic, partitions=rows)]), 12)


def after_records_were_deleted(talk: Talk) -> None:
    from service.wire.messages import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic

    topic = filled(talk)
    cut = DeleteRecordsTopic(name=topic, partitions=[DeleteRecordsPartition(partition_index=0, offset=5)])
    talk.quietly(DeleteRecordsRequest(topics=[cut], timeout_ms=5_000))
    for offset in (0, 4, 5, 6):
        talk.ask(fetch(topic, offset), 12, why=f"from {offset}")


def from_an_internal_topic(talk: Talk) -> None:
    def without_records(answer: dict[str, Plain]) -> Plain:
        return " ".join(sorted(answer))

    talk.group()
    talk.ask(fetch("__consumer_offsets"), 12, keep=without_records)


CONVERSATIONS = (
    every_version,
    offsets_at_the_edges,
    what_is_not_there,
    byte_limits,
    byte_limits_over_partitions,
    long_polls,
    leader_epochs,
    sessions,
    one_partition_named_twice,
    after_records_were_deleted,
    from_an_internal_topic,
)

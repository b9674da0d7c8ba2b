"""Produce: every version, every codec, and every way to send a batch that must be refused without changing anything."""

from __future__ import annotations

from log.batch import build_batch
from service.wire.messages import PartitionProduceData, ProduceRequest, TopicProduceData
from service.wire.messages.versions import ApiKey
from tests.conformance.connection import SILENCE_SECONDS
from tests.conformance.plain import Plain, sorted_by
from tests.conformance.say import (
    ATTRIBUTES_AT,
    BASE_OFFSET_AT,
    BASE_TIMESTAMP_AT,
    COUNT_AT,
    CRC_AT,
    LAST_DELTA_AT,
    LENGTH_AT,
    MAGIC_AT,
    MAX_TIMESTAMP_AT,
    STRANGE_ID,
    T0,
    batch,
    fetch,
    list_offsets,
    patched,
    produce,
)
from tests.conformance.talk import Talk, stable_versions

HOUR_MS = 3_600_000


def end_of(talk: Talk, topic: str, why: str = "the end") -> None:
    talk.ask(list_offsets(topic, -1), 7, why=why)


def stored(talk: Talk, topic: str, why: str = "what is stored") -> None:
    talk.ask(fetch(topic), 12, why=why)


def every_version(talk: Talk) -> None:
    topic = talk.topic()
    topic_id = talk.topic_id(topic)
    for version in stable_versions(ApiKey.PRODUCE):
        for acks in (1, -1):
            talk.ask(produce(topic, batch(3), acks=acks, topic_id=topic_id), version, why=f"acks={acks}")
    stored(talk, topic)


def every_codec(talk: Talk) -> None:
    topic = talk.topic()
    for codec in range(5):
        for version in (3, 6, 7, 11):
            talk.ask(produce(topic, batch(3, size=100, codec=codec)), version, why=f"codec {codec}")
    stored(talk, topic)


def acknowledgements(talk: Talk) -> None:
    topic = talk.topic()
    for acks in (-2, 2, 100, 32767, -32768):
        talk.ask(produce(topic, batch(), acks=acks), 11, why=f"acks={acks}")
    talk.ask(produce(topic, batch(), acks=0), 11, why="acks=0", patience_seconds=SILENCE_SECONDS)
    end_of(talk, topic)


def nothing_is_answered_without_acknowledgements(talk: Talk) -> None:
    """With acks=0 the next request's answer is the next thing on the connection; a mistake closes it."""
    topic = talk.topic()
    connection = talk.connect()
    talk.send(produce(topic, batch(), acks=0), 11, on=connection)
    talk.ask(list_offsets(topic, -1), 7, why="on the same connection", on=connection)
    other = talk.connect()
    talk.send(produce("no-such-topic", batch(), acks=0), 11, on=other)
    talk.ask(list_offsets(topic, -1), 7, why="after a produce to a topic that is not there", on=other)


def topics_and_partitions_that_are_not_there(talk: Talk) -> None:
    topic = talk.topic()
    for version in (3, 9, 12):
        talk.ask(produce("no-such-topic", batch()), version, why="to a topic that is not there")
        talk.ask(produce("bad name", batch()), version, why="to a bad name")
        talk.ask(produce("", batch()), version, why="to no name")
        for partition in (1, -1, 2**31 - 1):
            talk.ask(produce(topic, batch(), partition=partition), version, why=f"to partition {partition}")
    talk.ask(produce("", batch(), topic_id=STRANGE_ID), 13, why="to an id nobody has")
    talk.ask(produce("", batch()), 13, why="to the id of nothing")
    end_of(talk, topic)


def in_order(answer: dict[str, Plain]) -> Plain:
    """Topics and partitions come in any order."""
    topics = sorted_by(answer.get("responses", []), "name")
    assert isinstance(topics, list)
    for topic in topics:
        assert isinstance(topic, dict)
        topic["partition_responses"] = sorted_by(topic.get("partition_responses", []), "index", "base_offset")
    return topics


def several_partitions_at_once(talk: Talk) -> None:
    first, second = talk.topic(partitions=2), talk.topic()

    def ask(*rows: tuple[str, list[int]], why: str) -> None:
        topics = [
            TopicProduceData(
                name=name, partition_data=[PartitionProduceData(index=p, records=batch(2)) for p in partitions]
            )
            for name, partitions in rows
        ]
        talk.ask(ProduceRequest(acks=-1, timeout_ms=5_000, topic_data=topics), 11, why=why, keep=in_order)

    ask((first, [0, 1]), (second, [0]), why="all good")
    ask((first, [0, 5]), (second, [0]), why="one partition is not there")
    ask((second, [0]), ("no-such-topic", [0]), why="one topic is not there")
    ask((first, [0, 0]), why="one partition twice")
    ask((first, [0]), (first, [1]), why="one topic twice")
    ask((first, []), why="a topic without partitions")
    ask(why="no topics")
    end_of(talk, first)


def records_that_are_missing(talk: Talk) -> None:
    topic = talk.topic()
    for version in (3, 9, 11):
        talk.ask(produce(topic, None), version, why="null", patience_seconds=SILENCE_SECONDS)
        talk.ask(produce(topic, b""), version, why="nothing")
    end_of(talk, topic)


def several_batches_in_one_partition(talk: Talk) -> None:
    topic = talk.topic()
    for version in (3, 11):
        talk.ask(produce(topic, batch(2) + batch(2)), version, why="two batches")
    end_of(talk, topic)


def headers_that_lie(talk: Talk) -> None:
    topic = talk.topic()
    good = batch(3)
    bad = {
        "a wrong checksum": patched(good, ">I", CRC_AT, 1, checksum=False),
        "a checksum of zero": patched(good, ">I", CRC_AT, 0, checksum=False),
        "magic 0": patched(good, ">b", MAGIC_AT, 0),
        "magic 1": patched(good, ">b", MAGIC_AT, 1),
        "magic 3": patched(good, ">b", MAGIC_AT, 3),
        "magic -1": patched(good, ">b", MAGIC_AT, -1),
        "a count of zero": patched(good, ">i", COUNT_AT, 0),
        "a count too low": patched(good, ">i", COUNT_AT, 2),
        "a count too high": patched(good, ">i", COUNT_AT, 4),
        "a negative count": patched(good, ">i", COUNT_AT, -1),
        "a last offset too low": patched(good, ">i", LAST_DELTA_AT, 1),
        "a last offset too high": patched(good, ">i", LAST_DELTA_AT, 9),
        "a negative last offset": patched(good, ">i", LAST_DELTA_AT, -1),
        "count and last offset that agree but lie": patched(patched(good, ">i", COUNT_AT, 5), ">i", LAST_DELTA_AT, 4),
        "a length one too short": patched(good, ">i", LENGTH_AT, len(good) - 13),
        "a length one too long": patched(good, ">i", LENGTH_AT, len(good) - 11),
        "a length of zero": patched(good, ">i", LENGTH_AT, 0),
        "a length of 48": patched(good, ">i", LENGTH_AT, 48),
        "a negative length": patched(good, ">i", LENGTH_AT, -1),
        "a length of two gigabytes": patched(good, ">i", LENGTH_AT, 2**31 - 1),
        "half a batch": good[:40],
        "eleven bytes": good[:11],
        "one byte": good[:1],
        "a byte behind the batch": good + b"\0",
        "a second batch cut short": good + good[:30],
        "codec 5": patched(good, ">h", ATTRIBUTES_AT, 5),
        "codec 7": patched(good, ">h", ATTRIBUTES_AT, 7),
        "a codec it is not compressed in": patched(good, ">h", ATTRIBUTES_AT, 4),
        "reserved bits": patched(good, ">h", ATTRIBUTES_AT, 0x700),
        "a delete horizon": patched(good, ">h", ATTRIBUTES_AT, 0x40),
        "the bit of LogAppendTime": patched(good, ">h", ATTRIBUTES_AT, 0x08),
        "a maximum timestamp that lies": patched(good, ">q", MAX_TIMESTAMP_AT, T0 + 99),
        "a maximum timestamp of -1": patched(good, ">q", MAX_TIMESTAMP_AT, -1),
        "a base timestamp of -1": patched(good, ">q", BASE_TIMESTAMP_AT, -1),
        "a base offset of seven": patched(good, ">q", BASE_OFFSET_AT, 7, checksum=False),
        "a negative base offset": patched(good, ">q", BASE_OFFSET_AT, -5, checksum=False),
    }
    for why, data in bad.items():
        talk.ask(produce(topic, data), 11, why=why)
    end_of(talk, topic)
    talk.ask(produce(topic, patched(good, ">I", CRC_AT, 1, checksum=False)), 3, why="a wrong checksum")
    talk.ask(produce(topic, good), 11, why="a good batch after all that")
    stored(talk, topic)


def batches_only_a_broker_may_write(talk: Talk) -> None:
    topic = talk.topic()
    talk.ask(produce(topic, batch(control=True)), 11, why="a control batch")
    producer = batch(control=True, transactional=True, producer_id=1, producer_epoch=0, base_sequence=0)
    talk.ask(produce(topic, producer, transactional_id="t"), 11, why="a marker")
    end_of(talk, topic)


def sizes(talk: Talk) -> None:
    small = talk.topic(settings={"max.message.bytes": "1000"})
    talk.ask(produce(small, batch(size=900)), 11, why="just below the topic's limit")
    talk.ask(produce(small, batch(size=1_000)), 11, why="above the topic's limit")
    talk.ask(produce(small, batch(50, size=100, codec=4)), 11, why="compressed to below the limit")
    usual = talk.topic()
    talk.ask(produce(usual, batch(size=1_048_500)), 11, why="just below the broker's limit")
    talk.ask(produce(usual, batch(size=1_048_600)), 11, why="above the broker's limit")
    end_of(talk, small)
    end_of(talk, usual)


def timestamps(talk: Talk) -> None:
    append = talk.topic(settings={"message.timestamp.type": "LogAppendTime"})
    talk.ask(produce(append, batch(2)), 11, why="to a topic with the broker's clock")
    stored(talk, append)
    limited = talk.topic(
        settings={"message.timestamp.before.max.ms": "3600000", "message.timestamp.after.max.ms": "3600000"}
    )
    talk.ask(produce(limited, batch(2, first_timestamp=T0)), 11, why="too old")
    talk.ask(produce(limited, batch(2, first_timestamp=T0 + 10**12)), 11, why="too far ahead")
    usual = talk.topic()
    talk.ask(produce(usual, batch(2, first_timestamp=T0 + 10**12)), 11, why="too far ahead for any topic")
    talk.ask(produce(usual, batch(2, first_timestamp=0)), 11, why="of 1970")
    talk.ask(produce(usual, batch(1, first_timestamp=-1)), 11, why="of no time")
    talk.ask(produce(usual, batch(1, first_timestamp=-2)), 11, why="of before time")
    end_of(talk, usual)


def compacted_topics_want_keys(talk: Talk) -> None:
    topic = talk.topic(settings={"cleanup.policy": "compact"})
    without = build_batch([(b"k", b"v", (), T0), (None, b"v", (), T0)])
    for version in (3, 7, 8, 11):
        talk.ask(produce(topic, without), version, why="one record without a key")
    talk.ask(produce(topic, batch(2)), 11, why="all with keys")
    end_of(talk, topic)


def topics_that_recompress(talk: Talk) -> None:
    for wanted in ("uncompressed", "gzip", "snappy", "lz4", "zstd"):
        topic = talk.topic(settings={"compression.type": wanted})
        for codec in (0, 1, 4):
            talk.ask(produce(topic, batch(3, size=50, codec=codec)), 11, why=f"codec {codec} to {wanted}")
        stored(talk, topic, f"what is stored as {wanted}")


def compressed_rubbish(talk: Talk) -> None:
    topic = talk.topic()
    for codec in (1, 2, 3, 4):
        good = batch(3, size=100, codec=codec)
        body = b"\x55" * (len(good) - 61)
        talk.ask(produce(topic, patched(good[:61] + body, ">h", ATTRIBUTES_AT, codec)), 11, why=f"codec {codec}")
        talk.ask(produce(topic, patched(good, ">i", COUNT_AT, 2)), 11, why=f"codec {codec}, a count too low")
    end_of(talk, topic)


def producers_without_transactions(talk: Talk) -> None:
    topic = talk.topic()
    talk.ask(produce(topic, batch(), transactional_id="nobody"), 11, why="a transactional id, a plain batch")
    talk.ask(produce(topic, batch(producer_id=77_000, producer_epoch=0, base_sequence=-1)), 11, why="no sequence")
    talk.ask(
        produce(topic, batch(transactional=True, producer_id=77_001, producer_epoch=0, base_sequence=0)),
        11,
        why="transactional, no id",
    )
    end_of(talk, topic)


def room_is_reserved_for_internal_topics(talk: Talk) -> None:
    for name in ("__consumer_offsets", "__transaction_state"):
        talk.ask(produce(name, batch()), 11, why=f"to {name}")


CONVERSATIONS = (
    every_version,
    every_codec,
    acknowledgements,
    nothing_is_answered_without_acknowledgements,
    topics_and_partitions_that_are_not_there,
    several_partitions_at_once,
    records_that_are_missing,
    several_batches_in_one_partition,
    headers_that_lie,
    batches_only_a_broker_may_write,
    sizes,
    timestamps,
    compacted_topics_want_keys,
    topics_that_recompress,
    compressed_rubbish,
    producers_without_transactions,
    room_is_reserved_for_internal_topics,
)

"""How long a batch lives by the times in its header, with oncelog and with Apache Kafka.

    python -m tests.conformance.retention

Each batch of tests/log/header_times.py, with each codec, is written to a topic of its own that keeps a day. After the
brokers have looked for what is too old, both must have kept the same, and told the same latest times. Ends with 0 then.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from log.config import DAY_MS
from tests.conformance.families import EQUAL_SETTINGS
from tests.conformance.say import list_offsets, produce
from tests.conformance.talk import Talk
from tests.log.header_times import TimedBatch, hiding_batches, timed_batches
from tests.peers import kafka
from tests.peers.kafka import ApacheKafka
from tests.peers.ours import Oncelog
from tests.peers.process import BrokerProcess

LOOK_MS = 1000
LOOKS = 5
EARLIEST, LATEST_TIME = -2, -3
SETTINGS = {
    **EQUAL_SETTINGS,
    "log.initial.task.delay.ms": str(LOOK_MS),
    "log.retention.check.interval.ms": str(LOOK_MS),
    # what is written is old when it comes
    "log.message.timestamp.before.max.ms": str(100 * 365 * DAY_MS),
}

Fate = tuple[bool, tuple[int, int] | None]
"""Whether a batch stays, and offset and time of its latest record."""


def latest_of(talk: Talk, topic: str) -> tuple[int, int] | None:
    (found,) = talk.quietly(list_offsets(topic, LATEST_TIME), 7).topics[0].partitions
    return (found.offset, found.timestamp) if found.offset >= 0 else None


def fates(broker: BrokerProcess, batches: list[tuple[TimedBatch, int]]) -> list[Fate]:
    """What the broker does with each batch; it is started and stopped here."""
    broker.start()
    talk = Talk(broker.port, "retention")
    try:
        topics = [talk.topic(settings={"retention.ms": str(DAY_MS)}) for _ in batches]
        latest: list[tuple[int, int] | None] = []
        for topic, (batch, codec) in zip(topics, batches, strict=True):
            (answer,) = talk.quietly(produce(topic, batch.built(codec)), 11).responses[0].partition_responses
            assert answer.error_code == 0, (broker.name, batch, codec, answer)
            latest.append(latest_of(talk, topic))
        time.sleep(LOOKS * LOOK_MS / 1000)
        stay = [talk.quietly(list_offsets(topic, EARLIEST), 7).topics[0].partitions[0].offset == 0 for topic in topics]
        return list(zip(stay, latest, strict=True))
    finally:
        talk.close()
        broker.kill()


def main() -> int:
    if why_not := kafka.missing():
        print(f"Apache Kafka cannot run here: {why_not}", file=sys.stderr)
        return 2
    now_ms = time.time_ns() // 1_000_000
    batches = [(batch, codec) for batch in timed_batches(now_ms) + hiding_batches(now_ms) for codec in range(5)]
    with tempfile.TemporaryDirectory() as folder:
        ours = fates(Oncelog(Path(folder) / "ours", settings=SETTINGS), batches)
        theirs = fates(ApacheKafka(Path(folder) / "theirs", settings=SETTINGS), batches)
    wrong = 0
    for (batch, codec), our, their in zip(batches, ours, theirs, strict=True):
        if our != their or our != (batch.stays, batch.latest):
            wrong += 1
            print(f"{batch}, codec {codec}: oncelog {our}, Apache Kafka {their}")
    print(
        f"{len(batches)} batches compared, {sum(stays for stays, _ in theirs)} stay with Apache Kafka, {wrong} differ"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

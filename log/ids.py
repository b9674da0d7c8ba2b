"""Names for numbers: what identifies a topic, a partition, a position, a producer.

Plain values only; every package may import this module. Frequently called functions take a plain `int` with a clear
parameter name. A `NewType` is used where two numbers of the same shape could be confused unnoticed.
"""

import base64
import binascii
from typing import Final, NamedTuple, NewType

Offset = NewType("Offset", int)
LeaderEpoch = NewType("LeaderEpoch", int)
ProducerId = NewType("ProducerId", int)
ProducerEpoch = NewType("ProducerEpoch", int)
TopicId = NewType("TopicId", bytes)
"""Sixteen raw bytes; printed as Kafka prints them."""

NO_OFFSET: Final = -1
NO_EPOCH: Final = -1
NO_PRODUCER_ID: Final = -1
NO_PRODUCER_EPOCH: Final = -1
NO_SEQUENCE: Final = -1
NO_TIMESTAMP: Final = -1
ZERO_TOPIC_ID: Final = TopicId(bytes(16))

TOPIC_ID_BYTES: Final = 16


class TopicPartition(NamedTuple):
    """One partition of one topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


def folder_of(topic_partition: TopicPartition) -> str:
    """The folder that holds a partition, named as Kafka names it."""
    return f"{topic_partition.topic}-{topic_partition.partition}"


def partition_of(folder: str) -> TopicPartition | None:
    """The partition that a folder holds, or None when the name is not one of ours."""
    topic, dash, number = folder.rpartition("-")
    if not (topic and dash and number.isascii() and number.isdigit()) or number != str(int(number)):
        return None
    return TopicPartition(topic, int(number))


def format_topic_id(topic_id: bytes) -> str:
    """Twenty-two characters of url-safe base64, without padding."""
    assert len(topic_id) == TOPIC_ID_BYTES
    return base64.urlsafe_b64encode(topic_id).decode("ascii").rstrip("=")


def parse_topic_id(text: str) -> TopicId:
    """The inverse of `format_topic_id`; ValueError when the text is not a topic id."""
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"not a topic id: {text!r}") from error
    if len(raw) != TOPIC_ID_BYTES:
        raise ValueError(f"not a topic id: {text!r}")
    return TopicId(raw)

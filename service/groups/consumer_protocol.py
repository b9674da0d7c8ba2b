"""The consumer's own protocol, embedded in classic groups: the subscription and the assignment of a member.

The bytes are a version number and a struct. Newer versions only append fields, so an unknown version is read as the
newest known one. A coordinator mostly passes these bytes on unread. It needs their contents for the expiry of offsets,
and to turn a group from one protocol into the other.
"""

import struct
from dataclasses import dataclass
from typing import TypeVar

from service.wire.codec import MAX_REQUEST_ELEMENTS, MalformedRequest, decode_data
from service.wire.messages import ConsumerProtocolAssignment, ConsumerProtocolSubscription

Read = TypeVar("Read", ConsumerProtocolAssignment, ConsumerProtocolSubscription)

PROTOCOL_TYPE = "consumer"
NEWEST_VERSION = 3
VERSION_BYTES = 2
NO_USER_DATA = b"\xff\xff\xff\xff"


@dataclass(frozen=True, slots=True)
class Subscription:
    version: int
    topics: tuple[str, ...]
    owned: tuple[tuple[str, tuple[int, ...]], ...]
    rack_id: str | None


def read_version(data: bytes) -> int | None:
    if len(data) < VERSION_BYTES:
        return None
    version = int.from_bytes(data[:VERSION_BYTES], "big", signed=True)
    return None if version < 0 else version


def _read(cls: type[Read], version: int, data: bytes) -> Read:
    """What stands behind the version. A member may name as much as any request: its bytes are read in one turn."""
    return decode_data(cls, version, memoryview(data)[VERSION_BYTES:], MAX_REQUEST_ELEMENTS)


def read_subscription(data: bytes) -> Subscription | None:
    """None when the bytes are not a subscription."""
    version = read_version(data)
    if version is None:
        return None
    try:
        said = _read(ConsumerProtocolSubscription, min(version, NEWEST_VERSION), data)
    except MalformedRequest:
        return None
    owned = tuple((topic.topic, tuple(topic.partitions)) for topic in said.owned_partitions)
    return Subscription(version, tuple(said.topics), owned, said.rack_id)


def subscribed_topics(data: bytes) -> tuple[str, ...] | None:
    """Only the topics. They are read as version 0, because every version begins like it."""
    if read_version(data) is None:
        return None
    try:
        return tuple(_read(ConsumerProtocolSubscription, 0, data).topics)
    except MalformedRequest:
        return None


def written_topics(topics: tuple[str, ...]) -> bytes:
    """What a subscription to these topics has behind its version. It says itself where it ends."""
    parts = [struct.pack(">i", len(topics))]
    for topic in topics:
        name = topic.encode()
        parts += (struct.pack(">h", len(name)), name)
    return b"".join(parts)


@dataclass(frozen=True, slots=True)
class Assignment:
    partitions: tuple[tuple[str, tuple[int, ...]], ...]
    user_data: bytes | None


def read_assignment(data: bytes) -> Assignment | None:
    """None when the bytes are not an assignment; no bytes at all are an empty one."""
    if not data:
        return Assignment((), None)
    version = read_version(data)
    if version is None:
        return None
    try:
        said = _read(ConsumerProtocolAssignment, min(version, NEWEST_VERSION), data)
    except MalformedRequest:
        return None
    return Assignment(
        tuple((topic.topic, tuple(topic.partitions)) for topic in said.assigned_partitions), said.user_data
    )


def write_assignment(partitions: list[tuple[str, list[int]]], version: int) -> bytes:
    """An assignment without user data, in the one form that all versions have. It is written by hand, because a group
    that turns into a classic one needs those of thousands of members in one turn of the loop.
    """
    parts = [struct.pack(">hi", min(version, NEWEST_VERSION), len(partitions))]
    for topic, numbers in partitions:
        name = topic.encode()
        parts += (struct.pack(">h", len(name)), name, struct.pack(f">{len(numbers) + 1}i", len(numbers), *numbers))
    parts.append(NO_USER_DATA)
    return b"".join(parts)

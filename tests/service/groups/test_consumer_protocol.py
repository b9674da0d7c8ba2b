"""The consumer's embedded protocol: what is written by hand is what the codec writes, and how much is read."""

import pytest

from service.groups.consumer_protocol import (
    NEWEST_VERSION,
    read_assignment,
    read_subscription,
    subscribed_topics,
    write_assignment,
    written_topics,
)
from service.wire.codec import MAX_REQUEST_ELEMENTS, encode_data
from service.wire.messages import (
    ConsumerProtocolAssignment,
    ConsumerProtocolAssignmentTopicPartition,
    ConsumerProtocolSubscription,
)


@pytest.mark.parametrize("version", range(NEWEST_VERSION + 3))
@pytest.mark.parametrize("partitions", [[], [("orders", [])], [("orders", [0, 7, 2**31 - 1]), ("été", [3])]])
def test_an_assignment_is_written_as_the_codec_writes_it(partitions: list[tuple[str, list[int]]], version: int) -> None:
    known = min(version, NEWEST_VERSION)
    topics = [ConsumerProtocolAssignmentTopicPartition(topic, numbers) for topic, numbers in partitions]
    by_codec = known.to_bytes(2, "big") + encode_data(ConsumerProtocolAssignment(topics, None), known)
    written = write_assignment(partitions, version)
    assert written == by_codec
    read = read_assignment(written)
    assert read is not None
    assert read.partitions == tuple((topic, tuple(numbers)) for topic, numbers in partitions)


def test_a_subscription_names_no_more_topics_than_a_request_may() -> None:
    """Millions of empty names would be read in one turn, again and again."""
    for count, is_read in ((MAX_REQUEST_ELEMENTS, True), (MAX_REQUEST_ELEMENTS + 1, False)):
        said = b"\0\0" + encode_data(ConsumerProtocolSubscription(["t"] * count), 0)
        assert (subscribed_topics(said) is not None) is is_read
        assert (read_subscription(said) is not None) is is_read


@pytest.mark.parametrize("topics", [(), ("orders",), ("orders", "été")])
def test_every_subscription_to_the_same_topics_begins_alike(topics: tuple[str, ...]) -> None:
    for version in range(NEWEST_VERSION + 1):
        said = ConsumerProtocolSubscription(list(topics), b"its own")
        assert encode_data(said, version).startswith(written_topics(topics))

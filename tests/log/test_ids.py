import pytest
from hypothesis import given
from hypothesis import strategies as st

from log.ids import (
    ZERO_TOPIC_ID,
    TopicId,
    TopicPartition,
    folder_of,
    format_topic_id,
    parse_topic_id,
    partition_of,
)


@given(st.binary(min_size=16, max_size=16))
def test_a_topic_id_survives_its_text(raw: bytes) -> None:
    text = format_topic_id(TopicId(raw))
    assert len(text) == 22
    assert parse_topic_id(text) == raw


def test_topic_ids_look_as_kafka_prints_them() -> None:
    assert format_topic_id(ZERO_TOPIC_ID) == "AAAAAAAAAAAAAAAAAAAAAA"
    assert format_topic_id(bytes(range(240, 256))) == "8PHy8_T19vf4-fr7_P3-_w"


@pytest.mark.parametrize("text", ["", "AAAA", "not an id!", "A" * 23, "é" * 22])
def test_what_is_no_topic_id_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a topic id"):
        parse_topic_id(text)


@given(st.text("abc.-_09", min_size=1, max_size=10), st.integers(0, 2**31 - 1))
def test_a_partition_survives_the_name_of_its_folder(topic: str, partition: int) -> None:
    pair = TopicPartition(topic, partition)
    assert partition_of(folder_of(pair)) == pair
    assert str(pair) == folder_of(pair)


@pytest.mark.parametrize("name", ["", "-0", "topic", "topic-", "topic-x", "topic-01", "topic-٣", "topic-0.deleted"])
def test_other_folders_are_no_partitions(name: str) -> None:
    assert partition_of(name) is None

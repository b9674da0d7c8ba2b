"""Keys go where every Kafka client sends them; rows without a key fill one partition after the other."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka import Message, Producer
from hypothesis import example, given, settings
from hypothesis import strategies as st

from spark_sink.partitioner import STICKY_BYTES, NoSuchPartition, Partitioner, murmur2

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of the library's own making
    from kafka.partitioner.default import murmur2 as murmur2_of_kafka_python

keys = st.binary(max_size=40) | st.sampled_from([3, 4, 5, 8, 100]).map(lambda size: bytes(range(size)))


def binary(values: list[bytes | None]) -> pa.BinaryArray:
    return pa.array(values, pa.binary())


def same_topic(count: int, partitions: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.full(count, partitions)


@given(keys=st.lists(keys, min_size=1, max_size=30), skipped=st.integers(0, 3))
@example(keys=[b""], skipped=0)
@example(keys=[b"\xff\xff\xff"], skipped=0)
@settings(max_examples=300, deadline=None)
def test_the_hash_is_that_of_kafka_python(keys: list[bytes], skipped: int) -> None:
    hashes = murmur2(binary([b"skipped"] * skipped + keys)[skipped:])  # type: ignore[arg-type]
    assert hashes.tolist() == [murmur2_of_kafka_python(key) & 0xFFFFFFFF for key in keys]


def test_keys_go_where_librdkafka_sends_them(bootstrap: str, new_topic: Callable[..., str]) -> None:
    topic = new_topic(7)
    keys = [b"%d" % (number * number) for number in range(300)]
    placed: dict[bytes | None, int | None] = {}

    def note(error: object, message: Message) -> None:
        assert error is None, error
        placed[message.key()] = message.partition()

    producer = Producer({"bootstrap.servers": bootstrap, "partitioner": "murmur2_random"})
    for key in keys:
        producer.produce(topic, b"", key, on_delivery=note)
    producer.flush(30)
    chosen = Partitioner(5).choose(binary([*keys]), None, same_topic(len(keys), 7), 1000)
    assert dict(zip(keys, chosen.tolist(), strict=True)) == placed


def test_each_row_is_placed_among_the_partitions_of_its_own_topic() -> None:
    keys: list[bytes | None] = [b"a", b"b", b"c", b"d"]
    counts = np.array([1, 3, 1, 100])
    chosen = Partitioner(0).choose(binary(keys), None, counts, 100)
    wanted = [(murmur2_of_kafka_python(key) & 0x7FFFFFFF) % count for key, count in zip(keys, counts, strict=True)]
    assert chosen.tolist() == wanted


def test_rows_without_a_key_stay_together_until_there_are_enough_of_them() -> None:
    partitioner = Partitioner(2)
    few = [partitioner.choose(None, None, same_topic(10, 4), 1000).tolist() for _ in range(5)]
    assert few == [[partition] * 10 for partition in (2, 3, 0, 1, 2)]
    many = partitioner.choose(None, None, same_topic(1000, 4), 3 * STICKY_BYTES).tolist()
    assert Counter(many).keys() == {3, 0, 1}
    assert many == sorted(many, key=[3, 0, 1].index)  # in three runs: three batches, not a thousand


def test_rows_with_and_without_keys_are_mixed() -> None:
    keys: list[bytes | None] = [b"a", None, b"a", None]
    with_key = (murmur2_of_kafka_python(b"a") & 0x7FFFFFFF) % 5
    other = (with_key + 1) % 5
    chosen = Partitioner(other).choose(binary(keys), None, same_topic(4, 5), 100)
    assert chosen.tolist() == [with_key, other, with_key, other]


def test_the_column_partition_goes_before_the_key() -> None:
    named = pa.array([2, None, 0], pa.int32())
    with_key = (murmur2_of_kafka_python(b"k") & 0x7FFFFFFF) % 3
    chosen = Partitioner(0).choose(binary([b"k"] * 3), named, same_topic(3, 3), 100)
    assert chosen.tolist() == [2, with_key, 0]


@pytest.mark.parametrize("wrong", [-1, 3])
def test_a_partition_that_does_not_exist_is_refused(wrong: int) -> None:
    named = pa.array([0, wrong], pa.int32())
    with pytest.raises(NoSuchPartition, match=f"column 'partition' is {wrong}, .* partitions 0 to 2"):
        Partitioner(0).choose(None, named, same_topic(2, 3), 100)

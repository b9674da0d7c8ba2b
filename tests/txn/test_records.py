"""The records of `__transaction_state` against Kafka's own definition of them, and against bytes from anywhere."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from log.ids import TopicPartition
from service.wire.codec import decode_data, encode_data
from service.wire.messages import PartitionsSchema, TransactionLogKey, TransactionLogValue
from tests.rules import rule
from txn.records import FEW, BadRecord, _write_few, read_key, read_value, write_key, write_value
from txn.states import State, Txn

I16 = st.integers(-1, 2**15 - 1)
I64 = st.integers(0, 2**63 - 1)
TEXT = st.text(st.characters(codec="utf-8"), max_size=200)
NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=20)
PARTITIONS = st.lists(
    st.builds(TopicPartition, st.sampled_from(["orders", "payments", "__consumer_offsets"]), st.integers(0, 2**31 - 1)),
    max_size=8,
    unique=True,
).map(lambda partitions: tuple(sorted(partitions)))
TXNS = st.builds(
    Txn,
    transactional_id=NAMES,
    producer_id=I64,
    producer_epoch=I16,
    state=st.sampled_from(list(State)),
    timeout_ms=st.integers(0, 2**31 - 1),
    updated_ms=I64,
    partitions=PARTITIONS,
    started_ms=st.integers(-1, 2**62),
    previous_producer_id=st.integers(-1, 2**62),
    last_producer_epoch=I16,
    next_producer_id=st.integers(-1, 2**62),
    next_producer_epoch=I16,
    client_version=st.integers(0, 2),
    sealed_ms=st.integers(-1, 2**62),
    decided_token=st.integers(-1, 2**63 - 1),
    decided_by=TEXT,
    decided_before=TEXT,
    committed_id=st.integers(-1, 2**62),
    committed_epoch=I16,
).map(lambda txn: txn._replace(partitions=()) if txn.state is State.EMPTY else txn)


@given(TXNS)
def test_what_is_written_is_read_again(txn: Txn) -> None:
    assert read_key(write_key(txn.transactional_id)) == txn.transactional_id
    assert read_value(txn.transactional_id, write_value(txn)) == txn


def as_kafka_says(txn: Txn) -> TransactionLogValue:
    by_topic: dict[str, list[int]] = {}
    for topic, partition in txn.partitions:
        by_topic.setdefault(topic, []).append(partition)
    grouped = [PartitionsSchema(topic, partitions) for topic, partitions in by_topic.items()]
    return TransactionLogValue(
        producer_id=txn.producer_id,
        previous_producer_id=txn.previous_producer_id,
        next_producer_id=txn.next_producer_id,
        producer_epoch=txn.producer_epoch,
        next_producer_epoch=txn.next_producer_epoch,
        transaction_timeout_ms=txn.timeout_ms,
        transaction_status=txn.state.value,
        transaction_partitions=None if txn.state is State.EMPTY else grouped,
        transaction_last_update_timestamp_ms=txn.updated_ms,
        transaction_start_timestamp_ms=txn.started_ms,
        client_transaction_version=txn.client_version,
    )


@rule(
    "B.8",
    "the records are Kafka's TransactionLogKey and TransactionLogValue; our tags are skipped by other readers",
)
@given(TXNS)
def test_a_reader_made_from_kafkas_definition_reads_our_records(txn: Txn) -> None:
    assert decode_data(TransactionLogKey, 0, memoryview(write_key(txn.transactional_id))[2:]).transactional_id == (
        txn.transactional_id
    )
    value = write_value(txn)
    assert value[:2] == b"\0\1"
    assert decode_data(TransactionLogValue, 1, memoryview(value)[2:]) == as_kafka_says(txn)


@rule("B.8", "values of version 0 (no tags) and 1 are read")
@given(TXNS, st.sampled_from([0, 1]))
def test_we_read_what_is_written_from_kafkas_definition(txn: Txn, version: int) -> None:
    plain = txn._replace(sealed_ms=-1, decided_token=-1, last_producer_epoch=-1, decided_by="", decided_before="")
    plain = plain._replace(committed_id=-1, committed_epoch=-1)
    if version == 0:
        plain = plain._replace(previous_producer_id=-1, next_producer_id=-1, next_producer_epoch=-1, client_version=0)
    encoded = version.to_bytes(2, "big") + encode_data(as_kafka_says(plain), version)
    assert read_value(txn.transactional_id, encoded) == plain
    if version == 1:
        assert write_value(plain) == encoded


@rule("B.8", "a key of a later version is skipped")
def test_a_key_that_nobody_knows_yet_is_skipped() -> None:
    assert read_key(b"\0\1\0\3abc") is None


@given(TXNS, st.data())
def test_damaged_values_are_named_as_such(txn: Txn, data: st.DataObject) -> None:
    """Any prefix, and any byte changed, is read or refused: nothing else escapes, and nothing is allocated for a
    count.
    """
    value = write_value(txn)
    cut = value[: data.draw(st.integers(0, len(value) - 1))]
    with pytest.raises(BadRecord):
        read_value("x", cut)
    at = data.draw(st.integers(0, len(value) - 1))
    changed = value[:at] + bytes([data.draw(st.integers(0, 255))]) + value[at + 1 :]
    try:
        read_value("x", changed)
    except BadRecord:
        return


@given(st.binary(max_size=40))
def test_any_bytes_are_a_key_or_refused(key: bytes) -> None:
    try:
        read_key(key)
    except BadRecord:
        return


def test_no_long_list_of_partitions_is_kept() -> None:
    _write_few.cache_clear()
    for count in (1, FEW, FEW + 1, 3_000):
        partitions = tuple(TopicPartition("orders", index) for index in range(count))
        txn = Txn("pay", 1, 0, State.ONGOING, 60_000, 0, partitions, 0)
        assert read_value("pay", write_value(txn)) == txn
    assert _write_few.cache_info().currsize == 2

"""What the reading half makes of answers: aborted transactions, markers, cut and damaged batches; who reads what."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from log.batch import NewRecord, build_batch
from log.control import ControlType, build_marker
from log.ids import TopicPartition
from service.client.cluster import READ_COMMITTED, Cluster
from service.client.failures import ClientFailure
from service.client.member import assign_ranges
from service.client.pool import Address, parse_addresses
from service.client.reader import Reader, ReadRecord, Selection
from service.wire.messages import AbortedTransaction, FetchableTopicResponse, FetchResponse, FetchResponsePartitionData

ORDERS = TopicPartition("orders", 0)


def _record(value: bytes) -> NewRecord:
    return (None, value, (), 0)


def _batch(offset: int, *values: bytes, producer_id: int = -1, transactional: bool = False) -> bytes:
    epoch = 0 if producer_id >= 0 else -1
    return build_batch(
        [_record(value) for value in values],
        base_offset=offset,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=epoch,
        transactional=transactional,
    )


def _marker(offset: int, kind: ControlType, producer_id: int) -> bytes:
    return build_marker(
        kind, producer_id=producer_id, producer_epoch=0, coordinator_epoch=0, timestamp_ms=0, base_offset=offset
    )


# Producer 1 aborts its first transaction and commits its second; producer 2's lies around both and is committed.
LOG = [
    _batch(0, b"a1", producer_id=1, transactional=True),
    _batch(1, b"plain"),
    _batch(2, b"b", producer_id=2, transactional=True),
    _marker(3, ControlType.ABORT, 1),
    _batch(4, b"a2", producer_id=1, transactional=True),
    _marker(5, ControlType.COMMIT, 1),
    _marker(6, ControlType.COMMIT, 2),
]
ABORTED = [AbortedTransaction(producer_id=1, first_offset=0)]


def _read(data: bytes, wanted: Selection, *, offset: int = 0) -> tuple[list[ReadRecord], int]:
    """What the reader hands out of an answer with `data`, and where it would go on."""

    async def read() -> tuple[list[ReadRecord], int]:
        partition = FetchResponsePartitionData(records=data, aborted_transactions=list(ABORTED))
        response = FetchResponse(responses=[FetchableTopicResponse(topic="orders", partitions=[partition])])
        reader = Reader(Cluster([Address("nowhere", 1)], client_id="test", timeout_s=1), {ORDERS: offset}, wanted)
        found = [record async for _, records in reader._open(response) for record in records]
        return found, reader.positions[ORDERS]

    return asyncio.run(read())


def test_aborted_records_and_markers_are_not_handed_out() -> None:
    found, position = _read(b"".join(LOG), Selection(READ_COMMITTED))
    assert [each.record.value for each in found] == [b"plain", b"b", b"a2"]
    assert position == 7


def test_aborted_records_and_markers_are_shown_when_asked_for() -> None:
    found, _ = _read(b"".join(LOG), Selection(READ_COMMITTED, control=True, aborted=True))
    assert [each.record.offset for each in found] == list(range(7))
    assert [each.record.offset for each in found if each.aborted] == [0]
    assert [each.control for each in found if each.control] == ["abort", "commit", "commit"]


def test_records_before_the_position_are_not_handed_out_again() -> None:
    found, position = _read(_batch(0, b"a", b"b", b"c"), Selection(), offset=1)
    assert [each.record.value for each in found] == [b"b", b"c"]
    assert position == 3


def test_a_cut_batch_at_the_end_is_fetched_again() -> None:
    found, position = _read(_batch(0, b"a") + _batch(1, b"b")[:-1], Selection())
    assert [each.record.value for each in found] == [b"a"]
    assert position == 1


def test_a_damaged_batch_ends_the_reading() -> None:
    data = bytearray(_batch(0, b"a"))
    data[-1] ^= 1
    with pytest.raises(ClientFailure, match="offset 0 is damaged"):
        _read(bytes(data), Selection())


@given(
    counts=st.dictionaries(st.sampled_from(["x", "y", "z"]), st.integers(1, 9)),
    wishes=st.dictionaries(
        st.text("abc", max_size=3), st.sets(st.sampled_from(["x", "y", "z"])).map(sorted), min_size=1
    ),
)
def test_every_wanted_partition_is_read_by_one_member(counts: dict[str, int], wishes: dict[str, list[str]]) -> None:
    shares = assign_ranges(wishes, counts)
    assert sorted(shares) == sorted(wishes)
    given_out = sorted(partition for share in shares.values() for partition in share)
    wanted = {topic for topics in wishes.values() for topic in topics}
    assert given_out == sorted(
        TopicPartition(topic, n) for topic in counts if topic in wanted for n in range(counts[topic])
    )
    for topic in counts:
        sizes = [sum(part.topic == topic for part in shares[member]) for member in wishes if topic in wishes[member]]
        assert not sizes or max(sizes) - min(sizes) <= 1
        assert all(part.topic in wishes[member] for member, share in shares.items() for part in share)


@pytest.mark.parametrize(
    ("text", "addresses"),
    [
        ("localhost:9092", [Address("localhost", 9092)]),
        ("a:1, b", [Address("a", 1), Address("b", 9092)]),
        (":7", [Address("localhost", 7)]),
        ("[::1]:7", [Address("::1", 7)]),
        ("::1", [Address("::1", 9092)]),
    ],
)
def test_addresses_are_read(text: str, addresses: list[Address]) -> None:
    assert parse_addresses(text) == addresses

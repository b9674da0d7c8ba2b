"""What one client writes is what every client reads, byte for byte, in each codec, and stored in that codec."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.clients.kits import HERE, LIBRARIES, Confluent, Kcat, Kit, Message, Read
from tests.clients.raw import CODECS, stored_batches
from tests.outside import needs
from tests.peers.chosen import Address

by_kit = pytest.mark.parametrize(
    "kit", [*LIBRARIES, pytest.param(Kcat(), marks=needs("kcat"))], ids=lambda kit: kit.name
)
by_library = pytest.mark.parametrize("library", LIBRARIES, ids=lambda kit: kit.name)

LINES = [Message(f"value {n} {'x' * 60}".encode(), f"key-{n % 7}".encode()) for n in range(60)]


@by_kit
@pytest.mark.parametrize("codec", CODECS)
def test_every_client_reads_what_a_client_wrote_and_it_is_stored_in_the_codec_asked_for(
    broker: Address, new_topic: Callable[..., str], kit: Kit, codec: str
) -> None:
    topic = new_topic()
    kit.produce(broker.bootstrap, topic, LINES, codec=codec)

    assert {batch.codec for batch in stored_batches(broker.port, topic, 0)} == {codec}
    for reader in HERE:
        got = reader.consume(broker.bootstrap, topic, len(LINES))
        assert [read.offset for read in got] == list(range(len(LINES))), reader.name
        assert [(read.message.key, read.message.value) for read in got] == [(m.key, m.value) for m in LINES], (
            reader.name
        )


@by_library
def test_headers_keys_nulls_and_timestamps_come_back_as_they_went(
    broker: Address, new_topic: Callable[..., str], library: Kit
) -> None:
    topic = new_topic()
    now = int(time.time() * 1000)
    written = [
        Message(b"plain", timestamp_ms=now),
        Message(None, b"tombstone", timestamp_ms=now - 1),
        Message(b"", b"", timestamp_ms=1),
        Message(
            b"\x00\xff" * 50, b"\x00", (("h", b"1"), ("h", b"2"), ("", b""), ("ünïcode", b"\xff")), now - 86_400_000
        ),
        Message(b"empty header", b"k", (("empty", b""),), now),
    ]
    library.produce(broker.bootstrap, topic, written)

    for reader in LIBRARIES:
        got = reader.consume(broker.bootstrap, topic, len(written))
        assert [read.message for read in got] == written, reader.name


@pytest.mark.parametrize("library", LIBRARIES[:2], ids=lambda kit: kit.name)
def test_a_header_without_a_value_is_not_a_header_with_an_empty_one(
    broker: Address, new_topic: Callable[..., str], library: Kit
) -> None:
    """kafka-python reads such headers but refuses to write them."""
    topic = new_topic()
    written = Message(b"v", b"k", (("empty", b""), ("null", None)), int(time.time() * 1000))
    library.produce(broker.bootstrap, topic, [written])

    for reader in LIBRARIES:
        assert [read.message for read in reader.consume(broker.bootstrap, topic, 1)] == [written], reader.name


@needs("kcat")
def test_kcat_reads_and_writes_headers_and_null_values(broker: Address, new_topic: Callable[..., str]) -> None:
    topic = new_topic()
    written = [
        Message(b"one", b"k", (("trace", b"42"), ("again", b"yes"))),
        Message(None, b"gone"),
        Message(b"three"),
    ]
    Kcat().produce(broker.bootstrap, topic, written)

    for reader in (Kcat(), Confluent()):
        got = [read.message for read in reader.consume(broker.bootstrap, topic, 3)]
        assert [(m.value, m.key, m.headers) for m in got] == [(m.value, m.key, m.headers) for m in written]


@by_library
def test_large_messages_and_many_batches_keep_their_order(
    broker: Address, new_topic: Callable[..., str], library: Kit
) -> None:
    topic = new_topic()
    written = [Message(bytes([n]) * 300_000) for n in range(40)]
    library.produce(broker.bootstrap, topic, written)

    got = library.consume(broker.bootstrap, topic, len(written))

    assert [read.message.value for read in got] == [message.value for message in written]


@pytest.mark.parametrize("codec", CODECS[1:])
def test_a_topic_that_asks_for_a_codec_stores_in_it(broker: Address, new_topic: Callable[..., str], codec: str) -> None:
    topic = new_topic(compression_type=codec)
    Confluent().produce(broker.bootstrap, topic, LINES)

    assert {batch.codec for batch in stored_batches(broker.port, topic, 0)} == {codec}
    assert values(Confluent().consume(broker.bootstrap, topic, len(LINES))) == [message.value for message in LINES]


def test_a_topic_with_log_append_time_stamps_the_brokers_clock(broker: Address, new_topic: Callable[..., str]) -> None:
    topic = new_topic(message_timestamp_type="LogAppendTime")
    before = int(time.time() * 1000)
    Confluent().produce(broker.bootstrap, topic, [Message(b"v", timestamp_ms=1_000)])
    after = int(time.time() * 1000)

    for reader in HERE:
        (read,) = reader.consume(broker.bootstrap, topic, 1)
        assert read.message.timestamp_ms is not None
        assert before - 1 <= read.message.timestamp_ms <= after + 1, reader.name


def values(got: list[Read]) -> list[bytes | None]:
    return [read.message.value for read in got]

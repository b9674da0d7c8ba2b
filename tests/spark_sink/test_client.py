"""The wire client alone, against a broker process: no Spark in here."""

from __future__ import annotations

import io
import socket
import threading
import time
from collections.abc import Callable

import pytest
from confluent_kafka import Producer
from kio.schema.errors import ErrorCode
from kio.schema.fetch.v12 import FetchRequest, FetchResponse
from kio.schema.fetch.v12.request import FetchPartition, FetchTopic
from kio.schema.types import TopicName, TransactionalId
from kio.serial import entity_writer
from kio.static.primitive import i8, i16, i32, i64

from service.wire import messages as theirs
from service.wire.codec import decode_request
from spark_sink.client import TRANSACTION, Client, ClientSettings, milliseconds
from spark_sink.errors import BrokerError, ConnectionLost, UnsupportedByBroker, check
from spark_sink.messages import (
    DescribeBranchesRequest,
    DescribeBranchesResponse,
    DescribedRoot,
    EndBranchesRequest,
    EndBranchesResponse,
    NamedBranch,
)
from tests.clients.topics import Topics
from tests.peers.process import BrokerProcess, free_port
from tests.spark_sink.conftest import settings_for


def fetch(topic: str, offset: int, *, partition: int = 0, wait_ms: int = 0) -> FetchRequest:
    part = FetchPartition(partition=i32(partition), fetch_offset=i64(offset), partition_max_bytes=i32(1 << 20))
    return FetchRequest(
        max_wait=milliseconds(wait_ms),
        min_bytes=i32(1),
        isolation_level=i8(1),
        topics=(FetchTopic(topic=TopicName(topic), partitions=(part,)),),
        forgotten_topics_data=(),
    )


def produce(bootstrap: str, topic: str, *values: bytes) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    for value in values:
        producer.produce(topic, value, partition=0)
    assert producer.flush(20) == 0


def test_topics_and_their_leaders(client: Client, new_topic: Callable[..., str]) -> None:
    topic = new_topic(3)
    assert sorted(client.topics([topic])[topic].leaders) == [0, 1, 2]
    assert topic in client.topics(None)
    assert not [name for name in client.topics(None) if name.startswith("__")]
    assert client.leader(topic, 2) in client.topics([topic])[topic].leaders.values()


def test_a_missing_topic_is_absent_and_is_not_created(client: Client, topics: Topics) -> None:
    missing = topics.name()
    assert client.topics([missing]) == {}
    assert client.topics([missing]) == {}
    with pytest.raises(BrokerError, match="UNKNOWN_TOPIC_OR_PARTITION") as error:
        client.leader(missing, 0)
    assert error.value.retriable


def test_answers_can_be_collected_in_any_order(client: Client, bootstrap: str, new_topic: Callable[..., str]) -> None:
    topic = new_topic()
    for number in range(5):
        produce(bootstrap, topic, b"%d" % number)  # a batch each
    node = client.leader(topic, 0)
    pending = [client.send(node, fetch(topic, offset), FetchResponse) for offset in range(5)]
    sizes = {}
    for offset in (3, 0, 4, 1, 2):
        (part,) = pending[offset].result().responses[0].partitions
        assert (part.error_code, part.high_watermark) == (ErrorCode.none, 5)
        sizes[offset] = len(part.records or b"")
    assert sorted(sizes, key=lambda offset: sizes[offset]) == [4, 3, 2, 1, 0]
    assert pending[3].result() is pending[3].result()


def test_an_answer_that_waited_is_not_late(client: Client, new_topic: Callable[..., str]) -> None:
    """A reader asks ahead. If what it does with its rows takes longer than a request may, nobody is at fault."""
    topic = new_topic()
    node = client.leader(topic, 0)
    pending = client.send(node, fetch(topic, 0), FetchResponse, timeout_seconds=0.2)
    time.sleep(0.4)  # longer than the request may take
    assert pending.result().responses[0].partitions[0].high_watermark == 0


def test_a_decision_and_the_question_what_was_decided(client: Client, name: str) -> None:
    root = TransactionalId(name)

    def describe() -> DescribedRoot:
        node = client.coordinator(TRANSACTION, name)
        answer = client.ask(node, DescribeBranchesRequest(roots=(root,)), DescribeBranchesResponse)
        check(answer.roots[0].error_code, "describing")
        return answer.roots[0]

    def decide(token: int, *branches: NamedBranch) -> tuple[bool, int]:
        request = EndBranchesRequest(root=root, token=i64(token), committed=True, branches=branches)
        answer = client.ask(client.coordinator(TRANSACTION, name), request, EndBranchesResponse)
        check(answer.error_code, "deciding", answer.error_message)
        return answer.decided_now, answer.last_token

    try:
        described = client.retrying(describe)
    except UnsupportedByBroker:
        pytest.skip("this broker knows no branches")
    assert (described.root, described.last_token, described.open_branches) == (name, -1, ())
    assert client.retrying(lambda: decide(7)) == (True, 7)
    assert decide(7) == (False, 7)
    assert describe().last_token == 7

    unknown = NamedBranch(transactional_id=TransactionalId(f"{name}::8/nobody"))
    with pytest.raises(BrokerError, match=r"deciding: the broker answered INVALID_TXN_STATE \(48\): .*nobody"):
        decide(8, unknown)


def test_our_own_messages_are_written_as_the_broker_defines_them() -> None:
    """The broker's codec is the oracle: it is made from the definitions, the classes here were written by hand."""
    mine = EndBranchesRequest(
        root=TransactionalId("r"),
        token=i64(3),
        committed=True,
        branches=(NamedBranch(transactional_id=TransactionalId("r::3/a"), producer_epoch=i16(4)),),
    )
    body = io.BytesIO()
    entity_writer(EndBranchesRequest)(body, mine)
    assert decode_request(20000, 0, body.getvalue()) == theirs.EndBranchesRequest(
        "r", 3, True, [theirs.NamedBranch("r::3/a", -1, 4)], -1, -1
    )


def test_a_restarted_broker_is_found_again(own_broker: BrokerProcess) -> None:
    topic = Topics(own_broker.bootstrap, "restart").create()
    with Client(settings_for(own_broker.bootstrap)) as client:
        assert client.leader(topic, 0) >= 0
        own_broker.kill()
        threading.Timer(0.3, own_broker.start).start()

        def ask() -> int:
            answer = client.ask(client.leader(topic, 0), fetch(topic, 0), FetchResponse)
            return answer.responses[0].partitions[0].high_watermark

        assert client.retrying(ask) == 0


def test_what_waits_on_a_lost_connection_fails(own_broker: BrokerProcess) -> None:
    topic = Topics(own_broker.bootstrap, "lost").create()
    with Client(settings_for(own_broker.bootstrap)) as client:
        node = client.leader(topic, 0)
        pending = [client.send(node, fetch(topic, 0, wait_ms=20_000), FetchResponse) for _ in range(2)]
        own_broker.kill()
        for each in pending:
            with pytest.raises(ConnectionLost, match=f"lost the connection to {own_broker.bootstrap}"):
                each.result()


class SilentBroker:
    """Accepts connections and answers nothing, or what it is told to."""

    def __init__(self, answer: bytes = b"") -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._answer = answer
        self._accepted: list[socket.socket] = []
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._accepted.append(connection)
            if self._answer:
                connection.sendall(self._answer)

    def close(self) -> None:
        self._listener.close()
        for connection in self._accepted:
            connection.close()


def test_a_silent_broker_is_given_up_at_the_deadline() -> None:
    silent = SilentBroker()
    settings = ClientSettings((("127.0.0.1", silent.port),), connect_timeout_seconds=0.2)
    started = time.monotonic()
    with Client(settings) as client, pytest.raises(ConnectionLost, match="timed out") as error:
        client.retrying(lambda: client.topics(None), patience_seconds=1)
    assert time.monotonic() - started >= 1
    assert "tried again and again for 1 s" in error.value.__notes__
    silent.close()


def test_what_takes_long_is_told_long_before_it_is_given_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr(time, "monotonic", lambda: now)
    monkeypatch.setattr(time, "sleep", sleep)
    told_at = []
    monkeypatch.setattr(caplog.handler, "emit", lambda record: told_at.append((now, record.getMessage())))
    with Client(ClientSettings((("127.0.0.1", free_port()),))) as client, pytest.raises(ConnectionLost):
        client.retrying(lambda: client.topics(None))
    ((seconds, message),) = told_at
    assert seconds < 5 < now
    assert "no broker answers: cannot connect to 127.0.0.1" in message
    assert "trying again for up to 11" in message


def test_a_first_broker_that_says_nothing_is_told_of_before_the_others_are_tried(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = 0.0

    def black_hole(address: tuple[str, int], settings: ClientSettings) -> socket.socket:
        nonlocal now
        now += settings.connect_timeout_seconds
        raise TimeoutError("timed out")

    monkeypatch.setattr(time, "monotonic", lambda: now)
    monkeypatch.setattr("spark_sink.client.open_socket", black_hole)
    told_at = []
    monkeypatch.setattr(caplog.handler, "emit", lambda record: told_at.append((now, record.getMessage())))
    servers = (("10.0.0.1", 9092), ("10.0.0.2", 9092), ("10.0.0.3", 9092))
    with Client(ClientSettings(servers)) as client, pytest.raises(ConnectionLost):
        client.retrying(lambda: client.topics(None), patience_seconds=60)
    assert told_at[0] == (4.0, "cannot connect to 10.0.0.1:9092: timed out")
    assert len(told_at) == 4, "each once, and that it is tried again"


def test_another_protocol_is_named() -> None:
    talker = SilentBroker(b"HTTP/1.1 400 Bad Request\r\n")
    settings = ClientSettings((("127.0.0.1", talker.port),))
    with Client(settings) as client, pytest.raises(ConnectionLost, match="speaks another protocol"):
        client.topics(None)
    talker.close()


def test_nobody_there() -> None:
    port = free_port()
    settings = ClientSettings((("127.0.0.1", port), ("localhost", port)))
    with Client(settings) as client, pytest.raises(ConnectionLost, match=r"no broker answers: .*127.*; .*localhost"):
        client.topics(None)


def test_what_the_broker_does_not_offer_is_named(client: Client) -> None:
    class Strange(FetchRequest):
        __version__ = i16(99)

    with pytest.raises(UnsupportedByBroker, match="does not offer Strange version 99"):
        client.ask(None, Strange(**{f: getattr(fetch("t", 0), f) for f in fetch("t", 0).__slots__}), FetchResponse)


def test_the_second_bootstrap_address_is_used(bootstrap: str) -> None:
    good = settings_for(bootstrap).bootstrap
    with Client(ClientSettings((("127.0.0.1", free_port()), *good))) as client:
        assert client.topics(["nothing-like-this"]) == {}

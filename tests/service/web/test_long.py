"""What is long is copied in several turns of the loop: 15 MB held it for 60 to 120 ms."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock, MagicMock

import msgspec
import pytest
import requests
from aiohttp import web
from msgspec import UNSET, Raw
from multidict import CIMultiDict

from log.batch import NewRecord, build_batch, read_header
from log.ids import TopicPartition
from service.api.produce import keep
from service.turns import Turn, done_in_turns
from service.web import producing, records, sending
from service.web.answers import list_in_turns
from service.web.compatible import _bytes_of
from service.web.consuming import records_inside
from service.web.event_format import from_structured
from service.web.forwarding import forward
from service.web.gateway import Gateway
from service.web.looking import RECORD_BYTES_MAX, BodyScan
from service.web.producers import Producer
from service.web.producing import (
    BatchOut,
    PlacedRecords,
    RecordPlace,
    TransactionOut,
    in_runs,
    let_go,
    place_all,
    write_alone,
    written_down,
)
from service.web.records import (
    NUMBERS_AT_ONCE,
    Partitioner,
    RecordIn,
    RecordOut,
    long_numbers_as_text,
    one_line,
    with_text_numbers,
)
from service.web.sending import OutgoingBatch, batch_of, send_one_each
from service.web.unpacking import body_of
from service.wire.messages import ConditionalBatch
from tests.service.web.kit import Coming, Http, Served, asking, read_all, turns_of

MIB = 1 << 20
LONG = bytes(16 * MIB)


def test_a_long_body_is_put_together_in_turns() -> None:
    class InPieces(Coming):
        def is_eof(self) -> bool:
            return False

        async def readany(self) -> bytes:
            some, self.rest = self.rest[: 64 << 10], self.rest[64 << 10 :]
            return some

        content_type = "application/octet-stream"

    assert turns_of(body_of(cast(Any, InPieces(LONG)))) >= 16


def test_a_long_record_is_built_in_turns() -> None:
    record: NewRecord = (None, LONG, (), 1)
    assert turns_of(batch_of([record])) >= 16
    producer = Producer(cast(Gateway, None), "a")
    producer.producer_id, producer.epoch = 7, 1
    built = [asyncio.run(producer.build_any(TopicPartition("t", 0), [record])) for _ in range(2)]
    assert [read_header(each.batch).base_sequence for each in built] == [0, 1]
    assert built[1].batch == producer_batch(record, 7, 1, 1)


def producer_batch(record: NewRecord, producer_id: int, epoch: int, sequence: int) -> bytes:
    own: dict[str, Any] = {"producer_id": producer_id, "producer_epoch": epoch, "base_sequence": sequence}
    return build_batch([record], **own, transactional=True)


def gateway_of(partitions: int) -> Any:
    topic = MagicMock(partitions=dict.fromkeys(range(partitions)), config={})
    topic.name = "t"
    gateway = MagicMock(config=SimpleNamespace(message_max_bytes=MIB))
    gateway.topic.return_value = topic
    return gateway


def spread(partitions: int, records: int, value: bytes) -> PlacedRecords:
    where = [TopicPartition("t", each) for each in range(partitions)]
    order = [(each, number) for number in range(records) for each in where]
    return PlacedRecords({each: [(None, value, (), 1)] * records for each in where}, order, "t")


def test_records_of_many_partitions_are_cut_in_turns() -> None:
    assert turns_of(in_runs(gateway_of(40), spread(40, 400, b"x"))) >= 8


def test_batches_for_many_partitions_are_built_in_turns() -> None:
    gateway = gateway_of(40)
    producer = Producer(gateway, "a")
    gateway.producers.transaction.return_value.__aenter__.return_value = producer
    producer.write = AsyncMock(side_effect=LookupError)  # type: ignore[method-assign]

    async def work() -> None:
        with pytest.raises(LookupError):
            await write_alone(gateway, spread(40, 1, bytes(400_000)), seal=MagicMock())

    assert turns_of(work()) >= 20


def test_long_values_are_placed_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    gateway, given = gateway_of(1), RecordIn(value_base64="AAAA" * 250_000)
    topics = {"t": gateway.topic("t")}
    assert turns_of(place_all(gateway, [given] * 20, "t", Partitioner(0), 0, topics)) >= 10


@pytest.mark.parametrize(("batches", "size_bytes"), [(1, 16 * MIB), (20, 800_000)])
def test_what_the_log_is_given_is_copied_in_turns(
    monkeypatch: pytest.MonkeyPatch, batches: int, size_bytes: int
) -> None:
    """The log changes what it is given, and another leader may have to be given the same."""
    outgoing = [OutgoingBatch(TopicPartition("t", each), bytes(size_bytes), 1) for each in range(batches)]
    given: list[object] = []

    async def send_here(gateway: object, some: Sequence[OutgoingBatch], *_: object) -> None:
        for each in some:
            assert each.copy is not None
            given.append(each.copy.obj)
            each.copy[:1] = b"x"
            each.written(0, -1)

    monkeypatch.setattr(sending, "_send_here", send_here)
    gateway = MagicMock(node_id=1)
    gateway.image.partition.return_value = SimpleNamespace(leader=1, isr=(1,))
    assert turns_of(send_one_each(gateway, outgoing)) >= 10
    assert len(given) == batches
    assert all(bytes(each.batch[:1]) == b"\0" for each in outgoing)


@pytest.mark.parametrize("transaction", [UNSET, TransactionOut(7, 1)])
def test_a_long_answer_is_made_in_turns(transaction: Any) -> None:
    def answer() -> BatchOut:
        places = [RecordPlace(0, offset, UNSET, 5) for offset in range(99_999)]
        return BatchOut("applied", places, "results", transaction)

    assert turns_of(written_down(answer())) >= 5
    assert asyncio.run(written_down(answer())) == msgspec.json.encode(answer())


def test_what_a_long_request_was_made_of_is_freed_in_turns() -> None:
    """The objects of 100,000 records were freed at once, in up to 37 ms."""
    placed = PlacedRecords({}, [])
    for number in range(50_000):
        placed.add(TopicPartition("t", 0), (b"k", b"%d" % number, (), 0))
    assert turns_of(let_go(*placed.lists)) >= 40
    assert max(map(len, placed.lists)) <= producing.RUN_RECORDS


def test_a_long_batch_of_another_broker_is_not_copied() -> None:
    for size_bytes, is_copied in (16 * MIB, False), (1000, True):
        frame = memoryview(bytearray(size_bytes))
        data = ConditionalBatch(records=frame)
        keep([data])
        assert (data.records is not frame) is is_copied


def test_what_is_beside_the_records_is_not_copied_to_be_measured() -> None:
    scan = BodyScan(b'{"a":1,"records":[{},{}],"b":[2]}')
    asyncio.run(scan.look())
    assert scan.rest_bytes == len(scan.rest) == len(b'{"a":1,"records":[],"b":[2]}')


def test_an_event_is_decoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is long in it was looked at twice."""
    from service.web import event_format

    looked: list[int] = []
    decoder = event_format._event

    def decode(body: bytes) -> object:
        looked.append(len(body))
        return decoder.decode(body)

    monkeypatch.setattr(event_format, "_event", SimpleNamespace(decode=decode))
    body = b'{"id":"1","source":"a","specversion":"1.0","type":"b","data":"%b"}' % (b"x" * 10_000)
    assert from_structured(body, 0)[1] == body
    assert looked
    assert max(looked) < 200


def test_an_event_in_structured_mode_is_as_long_as_a_record(served: Served, http: Http, topic: str) -> None:
    about = b'{"id":"1","source":"a","specversion":"1.0","type":"b","data":"%b"}'
    media = {"Content-Type": "application/cloudevents+json"}
    assert http.post("/v1/topics", {"name": topic, "configs": {"max.message.bytes": str(32 * MIB)}}).status == 201
    fits = about % (b"x" * (RECORD_BYTES_MAX - len(about) + 2))
    path = f"/v1/topics/{topic}/events"
    assert http.post(path, fits, headers=media).status == 200
    refused = http.post(path, fits + b" ", headers=media)
    assert (refused.status, refused.json["type"]) == (413, "/problems/record-too-large")
    binary = {"ce-id": "1", "ce-source": "a", "ce-specversion": "1.0", "ce-type": "b"}
    assert http.post(path, LONG[:-1], headers=binary).status == 200
    assert [each.value for each in read_all(served.bootstrap, topic)] == [fits, LONG[:-1]]


def test_a_long_record_is_written_and_read_as_it_is(served: Served, http: Http, topic: str) -> None:
    """By every way that a long batch takes: alone, in a transaction, and to a topic that refuses it."""
    value = bytes(range(256)) * (14 * MIB // 256)
    octets = {"Content-Type": "application/octet-stream", "Record-Header-a": "b"}
    path = f"/v1/topics/{topic}/records"
    refused = http.post(path, value, headers=octets)
    assert (refused.status, refused.json["kafka_error"]) == (413, "MESSAGE_TOO_LARGE")
    configs = {"configs": {"max.message.bytes": str(32 * MIB)}}
    assert http.ask("PATCH", f"/v1/topics/{topic}/configs", configs).status == 204
    assert http.post(f"{path}?key=k", value, headers=octets).status == 200
    for _ in range(2):
        answer = http.post(path, value, headers={**octets, "Idempotency-Key": f'"{topic}"'})
        assert answer.status == 200
    seen = [(each.key, each.value, each.headers) for each in read_all(served.bootstrap, topic)]
    assert seen == [(b"k", value, [("a", b"b")]), (None, value, [("a", b"b")])]
    assert requests.get(f"{http.url}{path.replace('/records', '/partitions/0/records')}", timeout=30).status_code == 200
    assert len(value) > producing.BATCH_BYTES
    shown = base64.b64encode(value).decode()
    for media, before in ("text/event-stream", "data: "), ("application/x-ndjson", ""):
        told = requests.get(
            f"{http.url}/v1/topics/{topic}/stream?from=earliest&until=end", headers={"Accept": media}, timeout=60
        ).text
        lines = [line.removeprefix(before) for line in told.splitlines() if line.startswith(before + '{"topic"')]
        assert [json.loads(line)["value_base64"] for line in lines] == [shown] * 2
    assert [json.loads(line)["cursor"].rpartition("@")[2] for line in lines] == ["0:1", "0:2"]


@pytest.mark.parametrize("show", [msgspec.json.Encoder().encode, with_text_numbers])
def test_long_values_are_put_into_an_answer_in_turns(show: Any) -> None:
    """Each was copied four times as a whole: 16 MiB of what JSON escapes held the loop for 200 ms."""
    long, short = Raw(b'"%b"' % (b"x" * 16 * MIB)), Raw(b"1")
    items = [RecordOut("t", 0, offset, 0, value=value) for offset, value in enumerate([long, short, short, long])]
    inside = partial(records_inside, show=show)
    assert turns_of(list_in_turns(items, inside)) > 32
    assert asyncio.run(list_in_turns(items, inside)) == b"[%b]" % inside(items)
    assert asyncio.run(list_in_turns(items[1:3], inside, b"<", b">")) == b"<%b>" % inside(items[1:3])
    events = [{"id": "1", "data": long, "more": short}, {"id": "2"}]
    encode = lambda some: msgspec.json.encode(some)[1:-1]  # noqa: E731
    assert asyncio.run(list_in_turns(events, encode)) == msgspec.json.encode(events)


def test_a_long_body_is_forwarded_in_pieces() -> None:
    """It was copied as a whole for the connection to the other broker: 20 ms for 16 MiB."""
    sent: list[bytes] = []

    @asynccontextmanager
    async def request(method: str, url: Any, *, data: Any, headers: Any) -> AsyncIterator[Any]:
        assert headers["Content-Length"] == str(len(LONG))
        sent.extend([piece async for piece in data])

        async def iter_any() -> AsyncIterator[bytes]:
            for at in range(0, len(LONG), MIB):
                yield LONG[at : at + MIB]

        yield SimpleNamespace(status=200, headers=CIMultiDict[str](), content=SimpleNamespace(iter_any=iter_any))

    gateway = MagicMock(node_id=1)
    gateway.image.brokers.get.return_value.endpoint.return_value.url = "http://127.0.0.1:1"
    gateway.env.clock.monotonic.return_value = 0.0
    gateway.http.return_value.request = request
    answers: list[web.StreamResponse] = []

    async def forwarded() -> None:
        answers.append(await forward(gateway, 2, asking(headers={}, method="POST", path_qs="/v1/records"), LONG))

    assert turns_of(forwarded()) >= 16, "the answer is put together in turns"
    assert cast(web.Response, answers[0]).body == LONG == b"".join(sent)
    assert max(map(len, sent)) <= 256 << 10


NUMBER = b"-12345678901234567"
SHAPES = {
    "escapes": b'"%b",' % (b"\\n" * (RECORD_BYTES_MAX // 2)),
    "a string": b'"%b",' % (b"x" * RECORD_BYTES_MAX),
    "lists": b"[]," * (RECORD_BYTES_MAX // 3),
    "truth": b"true," * (RECORD_BYTES_MAX // 5),
    "blanks": b" " * RECORD_BYTES_MAX,
}


@pytest.mark.parametrize("shape", SHAPES)
def test_long_numbers_are_looked_for_in_turns(shape: str) -> None:
    """Behind 1.5 MiB without any it took one turn of 40 to 118 ms to come to the first."""
    for begins in (SHAPES[shape], b""):
        before, after = b"[" + begins, SHAPES[shape] + b"0]"
        made: list[bytes] = []

        async def look(content: bytes, made: list[bytes] = made) -> None:
            made.append(await done_in_turns(long_numbers_as_text(content, Turn(NUMBERS_AT_ONCE))))

        assert turns_of(look(before + NUMBER + b"," + after)) >= 10
        assert made == [before + b'"%b"' % NUMBER + b"," + after]


@pytest.mark.parametrize("at_once", [2, 3, 7, 100])
def test_a_long_number_is_found_wherever_the_text_is_cut(monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    for name in ("SCANNED_AT_ONCE", "NUMBERS_AT_ONCE"):
        monkeypatch.setattr(records, name, at_once)
    for ahead in range(9):
        given = b'{"%b\\\\\\"": [%b, 1.5e3, -7, "%b\\"", true, %b]}' % (b"\\" * 2 * ahead, NUMBER, NUMBER, NUMBER[1:])
        wanted = given.replace(b"[%b" % NUMBER, b'["%b"' % NUMBER).replace(b"%b]" % NUMBER[1:], b'"%b"]' % NUMBER[1:])
        steps = long_numbers_as_text(given, Turn(at_once))
        assert asyncio.run(done_in_turns(steps)) == wanted


def test_json_is_one_line_without_being_written_anew() -> None:
    """Of 1.5 MiB that took 10 to 24 ms. What is JSON has its line breaks nowhere but between tokens."""
    assert one_line(b'{"a":\r\n [1,\n2],  "b": "\\n"}\n') == b'{"a": [1,2],  "b": "\\n"}'
    long = b'[1,  "%b"]' % (b"x" * MIB)
    assert _bytes_of("JSON", msgspec.Raw(long)) == long

"""Bodies looked through before they are decoded."""

from __future__ import annotations

import asyncio
import json
import time
import tracemalloc
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, MagicMock, patch

import msgspec
import pytest

from log.batch import build_batch
from service.web import producing
from service.web.holding import Holder, Holding
from service.web.looking import BYTES_AT_ONCE, RECORD, RECORD_BYTES_MAX, TOP, BodyScan, refuse_doubles
from service.web.problems import Problem
from service.web.producing import BatchIn, _read_line, _write_lines, in_runs, place_all, read_batch, write_alone
from service.web.records import HEADERS_MAX, Partitioner, RecordIn, new_record
from service.web.sending import OutgoingBatch
from tests.service.web.kit import TURN_S, longest_turn_s


def read(body: bytes, holder: Holder | None = None) -> list[RecordIn]:
    return asyncio.run(read_batch(body, holder or Holder(Holding(1 << 30))))[1]


@pytest.mark.parametrize("filling", [0, 4_000])
@pytest.mark.parametrize(
    "wrong",
    [
        '{"value":1,"value":2}',
        '{"key":"a","value":{"key":1},"key":"b"}',
        '{"value":1,"v\\u0061lue":2}',
        '{"key":"\\u003a","value":1,"value":2}',
        '{"headers":{"a":"1","a":"2"},"value":1}',
        '{"headers":[{"name":"a","name":"b","value":"1"}]}',
        '{"key":null,"value":1,"key":"x"}',
    ],
)
def test_a_member_that_is_there_twice_is_refused(wrong: str, filling: int) -> None:
    good = '{"key":"a:b","value":{"a":"b:c","d":[{}]}},' * filling
    body = f'{{"records":[{good}{wrong}]}}'.encode()
    with pytest.raises(Problem, match="twice"):
        read(body)


def test_a_list_that_is_there_twice_is_refused() -> None:
    with pytest.raises(Problem, match="twice"):
        read(b'{"records":[{"value":1}],"records":[]}')
    with pytest.raises(Problem, match="twice"):
        read(b'{"records":[%b{}],"records":[]}' % (b'{"value":1},' * 20_000))


@pytest.mark.parametrize("filling", [0, 4_000])
@pytest.mark.parametrize(
    "record",
    [
        {"value": {"a": ":", "b": [{"a": 1}, {"a": 2}]}, "key": "a:b"},
        {"key": None, "value": None},
        {"headers": {"a": "1:2"}, "timestamp": "2026-01-01T00:00:00Z", "value_string": '"}],{'},
        {"headers": [{"name": "a", "value": "1"}] * 2, "value": "\\", "partition": 0, "topic": "x:y"},
        {"value": '\u2028"\\', "key": "\\u003a"},
    ],
)
def test_a_body_is_read_as_the_decoder_reads_it(record: dict[str, Any], filling: int) -> None:
    records = [record, *[{"key": "k", "value": {"n": number}} for number in range(filling)], record]
    offsets = {"group": "g", "offsets": [{"topic": "t", "partition": 0, "offset": 1}]}
    body = json.dumps({"offsets": offsets, "records": records, "expected": []}, indent=1).encode()
    batch, found = asyncio.run(read_batch(body, Holder(Holding(1 << 30))))
    whole = msgspec.json.decode(body, type=BatchIn)
    assert msgspec.json.encode(found) == msgspec.json.encode(whole.records)
    assert batch.offsets == whole.offsets


def test_members_of_a_value_are_the_clients_own() -> None:
    read(b'{"records":[{"value":{"a":1,"a":{"a":2,"a":3}},"key":"x"},{"value":[{"b":1,"b":1}]}]}')
    known = [RecordIn(value=msgspec.Raw(b'{"a":1}'))]
    asyncio.run(refuse_doubles(b'{"value":{"a":1,"a":2}}', known, is_record=True))


@pytest.mark.parametrize(
    "body",
    [
        b'{"records":[' + b"{}," * 40_000 + b"{}]}",
        b'{"records":[' + b'{"value":[' + b"{}," * 1_700_000 + b"{}]}]}",
        b'{"records":[{"value_string":"' + b"x" * 6_000_000 + b'"}]}',
        b'{"records":['
        + b'{"key":"user-7","value":{"n":7,"name":"someone","filling":[1,2,3,"%b"]}},' % (b"x" * 80) * 99_000
        + b"{}]}",
        b'{"records":[{"headers":{' + b",".join(b'"%x":""' % each for each in range(350_000)) + b"}}]}",
        b'"' + b'\\"' * 3_000_000,
        b"]" * 6_000_000,
    ],
    ids=["empty", "one value", "one string", "many", "headers", "no end", "no beginning"],
)
def test_a_long_body_is_read_in_turns_of_the_loop(body: bytes) -> None:
    async def scenario() -> None:
        try:
            await read_batch(body, Holder(Holding(1 << 30)))
        except Problem as problem:
            assert problem.slug in ("malformed", "record-too-large")

    assert longest_turn_s(scenario()) < TURN_S


NAMED = b'{"headers":{%b}}' % b",".join(b'"%x":"a"' % each for each in range(4096, 4096 + HEADERS_MAX))


def test_headers_that_are_members_of_an_object_are_counted() -> None:
    """15 MB of them made 200 MB, of which 15 counted."""
    for body, names in (
        (b'{"records":[%b]}' % b",".join([NAMED] * 5), 5 * HEADERS_MAX),
        (b'{"records":[{"headers":{%b}},{}]}' % b",".join(b'"%x":""' % each for each in range(8_000)), 8_000),
    ):
        holder = Holder(Holding(1 << 30))
        tracemalloc.start()
        made = [new_record(each, 0) for each in read(body, holder)]
        made_bytes, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert sum(len(each[2]) for each in made) == names
        assert made_bytes / 2 < holder.bytes < 3 * made_bytes
    full = Holding(30 << 20)

    async def no_room() -> None:
        await Holder(full).take(1 << 20)
        await read_batch(b'{"records":[%b]}' % b",".join([NAMED] * 20), Holder(full))

    with pytest.raises(Problem, match="all the memory"):
        asyncio.run(no_room())


LISTS = b"[" + b"[]," * 500_000 + b"[]]"


@pytest.mark.parametrize(
    "line",
    [
        b'{"value":%b,"headers":[{"name":"a"}]}' % LISTS,
        b'{"headers":[' + b",".join([b'{"name":"a"}'] * 1_000_000) + b"]}",
        b'{"headers":{' + b",".join(b'"%x":null' % each for each in range(1_000_000)) + b"}}",
        b"\n".join([b'{"value":[' + b"[]," * 80 + b'[]],"headers":[{"name":"a"}]}'] * 2_000),
        b'{"value":[' + b"[]," * 43_000 + b'[]],"headers":[{"name":"a"}]}',
        b'{"value":1,"' * 40_000,
    ],
    ids=["a long value", "headers", "named headers", "many", "a short one", "no end"],
)
def test_lines_are_read_in_turns_of_the_loop(line: bytes) -> None:
    """A line of 16 MiB, packed in 15 KB, was decoded and scanned in one turn of 5 s."""
    gateway: Any = MagicMock()
    gateway.env.clock.wall_ms.return_value = 0

    async def scenario() -> None:
        with (
            patch.object(producing, "topic_to_write", AsyncMock()),
            patch.object(producing, "_write_told", AsyncMock()),
        ):
            await _write_lines(gateway, line.split(b"\n"), 0, "t")

    with patch.object(producing, "batch_bytes", return_value=1 << 20):
        assert longest_turn_s(scenario()) < 0.4 * TURN_S


@pytest.mark.parametrize("sealed", [False, True])
def test_many_headers_are_placed_and_built_in_turns(sealed: bool) -> None:
    """110 records of 10,000 headers were placed in one turn of 0.3 s."""
    records = read(b'{"records":[%b]}' % b",".join([NAMED] * 120))
    topic = MagicMock(partitions={0: None}, config={})
    topic.name = "t"
    gateway = MagicMock(producers=MagicMock(), config=SimpleNamespace(message_max_bytes=1 << 20))
    gateway.topic.return_value = topic
    producer = gateway.producers.transaction.return_value.__aenter__.return_value
    producer.build_any = AsyncMock(side_effect=lambda where, run: OutgoingBatch(where, build_batch(run), len(run)))
    producer.write = AsyncMock(side_effect=LookupError)

    async def work() -> None:
        placed = await place_all(gateway, records, "t", Partitioner(0), 0, {"t": topic})
        if sealed:
            with pytest.raises(LookupError):
                await write_alone(gateway, placed, seal=MagicMock())
            return
        runs = await in_runs(gateway, placed)
        assert [len(run) for _, run in runs] == [1] * 120

    assert longest_turn_s(work()) < TURN_S


def test_a_long_line_is_read_as_a_short_one() -> None:
    for wrong, why in (
        ('"key":1', "str"),
        ('"value":1,"value":2', "twice"),
        (f'"headers":{json.dumps(dict.fromkeys(range(HEADERS_MAX + 1)))}', "at most 10000"),
        ('"headers":[{"name":"a"}', "not JSON"),
    ):
        for filling in ("", '"value_string":"%s",' % ("x" * 200_000)):
            with pytest.raises(Problem, match=why) as refused:
                new_record(asyncio.run(_read_line(b"{%b}" % (filling + wrong).encode())), 0)
            assert "records" not in refused.value.more, "a line is no record of a list"
    line = b'{"key":"k","value":%b,"headers":{"a":"b"}}'
    (long, short) = (asyncio.run(_read_line(line % value)) for value in (LISTS, b"[[]]"))
    assert new_record(long, 0) == (b"k", LISTS, (("a", b"b"),), 0)
    assert new_record(short, 0) == (b"k", b"[[]]", (("a", b"b"),), 0)


def test_too_many_records_are_refused() -> None:
    with pytest.raises(Problem, match="more than"):
        read(b'{"records":[' + b"{}," * 100_000 + b"{}]}")


@pytest.mark.parametrize("filling", [0, 200_000])
@pytest.mark.parametrize("as_list", [False, True])
def test_headers_are_as_many_as_can_be_read(filling: int, as_list: bool) -> None:
    """380,000 names of one record were decoded in one turn."""

    def written(count: int) -> int:
        names = [str(number) for number in range(count)]
        headers = [{"name": each} for each in names] if as_list else dict.fromkeys(names)
        body = {"records": [{"value": "x" * filling + ",[,"}, {"headers": headers, "value": [[1]] * 20_000}] * 2}
        given = read(json.dumps(body, separators=(",", ":")).encode())
        return len(new_record(given[1], 0)[2])

    assert written(HEADERS_MAX) == HEADERS_MAX
    with pytest.raises(Problem, match="at most 10000 headers"):
        written(HEADERS_MAX + 1)


def test_cuts_are_between_records() -> None:
    record = b'{"value":[{"a":"},{"}]}'
    scan = BodyScan(b'{"records":[' + (record + b" ,\n") * 9000 + record + b"]}")
    asyncio.run(scan.look())
    pieces = list(scan.pieces)
    assert len(pieces) > 3
    assert sum(len(json.loads(piece)) for piece in pieces) == 9001


def scan_turns(body: bytes) -> list[float]:
    """The processor's time of each step of a scan."""
    turns, before = [], time.thread_time()
    for _ in BodyScan(body).steps():
        turns.append(time.thread_time() - before)
        before = time.thread_time()
    return [*turns, time.thread_time() - before]


def names(count: int) -> bytes:
    return b",".join(b'"%x":1' % each for each in range(count))


@pytest.mark.parametrize(
    ("body", "depth"),
    [
        (b'{%b,"records":[]}' % names(400_000), RECORD),
        (b'{"records":[{%b}]}' % names(400_000), RECORD),
        (b'{"records":[{"headers":[{%b}]}]}' % names(400_000), RECORD),
        (b"{%b}" % names(400_000), TOP),
        (b'{%b,"z":' % names(900) * 400, TOP),
        (b"[{" * 500_000, TOP),
        (b'{"records":[{"%b":1}]}' % (b"x" * 1_000_000), RECORD),
    ],
    ids=["beside records", "in a record", "in a header", "in a line", "around it", "nested", "a long one"],
)
def test_the_names_that_a_scan_keeps_are_bounded(body: bytes, depth: int) -> None:
    """16 MiB of them, which came as 238 KB, took 170 MB."""
    scan = BodyScan(body, depth)
    tracemalloc.start()
    try:
        with pytest.raises(Problem, match=r"more than 11000 members|nested too deeply|name is longer"):
            for _ in scan.steps():
                pass
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def test_many_names_in_one_after_the_other_are_taken() -> None:
    read(b'{"records":[%b{}]}' % (b'{"value":{%b},"headers":{"a":"","b":""}},' % names(20_000) * 30))
    read(b'{"records":[%b{}]}' % (b'{"headers":[{"name":"a","value":""}]},' * 30_000))


@pytest.mark.parametrize("content", [b"\\n" * 750_000, b'\\"' * 750_000, b"x" * 1_500_000])
def test_a_long_string_is_scanned_in_several_steps(content: bytes) -> None:
    body = b'{"records":[{"headers":{"a":"b"},"value":"%b"}]}' % content
    turns = scan_turns(body)
    assert len(turns) > 100
    assert max(turns) < sum(turns) / 4
    (record,) = read(body)
    assert bytes(record.value) == b'"%b"' % content  # type: ignore[arg-type]


def test_a_string_that_is_too_long_is_refused_before_its_end() -> None:
    scan = BodyScan(b'{"records":[{"value":"' + b"\\n" * (8 << 20) + b'"}]}')
    steps = 0
    with pytest.raises(Problem, match="longer than"):
        for _ in scan.steps():
            steps += 1
    assert 0 < steps < 2 * RECORD_BYTES_MAX // BYTES_AT_ONCE


@pytest.mark.parametrize("before", range(0, 60, 3))
def test_strings_may_be_cut_anywhere(before: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.web.looking.BYTES_AT_ONCE", 40)
    tail = b'{"key":"%b","value":"\\\\\\"]},{\\n","timestamp":1},{"k\\u0065y":"","value":{"a":"\\\\","a":2}}]}'
    body = b'{"records":[' + tail % (b"y" * before)
    scan = BodyScan(body, cut_bytes=0)
    asyncio.run(scan.look())
    assert [len(msgspec.json.decode(piece)) for piece in scan.pieces] == [1, 1]
    with pytest.raises(Problem, match="twice"):
        asyncio.run(BodyScan(body.replace(b'"timestamp"', b'"k\\u0065y"')).look())
    for end in range(len(body)):
        asyncio.run(BodyScan(body[:end]).look())

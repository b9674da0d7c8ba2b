"""Long values of records as they are shown."""

from __future__ import annotations

import asyncio
import base64
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from log.batch import build_batch, read_records
from log.ids import TopicPartition
from service.web import fetching, long_json, long_values
from service.web.consuming import _encode, records_inside
from service.web.event_format import EventOut, to_binary
from service.web.fetching import Held, Lens, Piece, opened
from service.web.holding import Holder, Holding
from service.web.records import with_text_numbers
from tests.service.web.kit import turns_of

MIB = 1 << 20
LONG_BYTES = bytes(16 * MIB)
PARTITION = TopicPartition("orders", 0)
VALUES = (
    b'{"a": [1, "\\n\xc3\xa9"],\r\n "b": 12345678901234567890}', b"[1,]", b'"\xff"', b"null", b"x\xe2\x82", b" ",
    "\u20ac\U0001f34e\n\"".encode() * 9, b'[%b"x"]' % (b'"a,b" , {"c":[]},' * 9), b"\x00\x01\\", b"x" * 31,
)  # fmt: skip
EVENT = (("ce_id", b"1"), ("ce_source", b"/a"), ("ce_specversion", b"1.0"), ("ce_type", b"b"))
MEDIA = (None, b"application/json", b"text/plain", b"image/png", b"application/cloudevents+json")


async def read(value: bytes, lens: Lens, headers: tuple[tuple[str, bytes | None], ...] = ()) -> Any:
    held = Held(Holder(Holding(1 << 30)))
    gateway: Any = SimpleNamespace(env=SimpleNamespace(blocking=asyncio.to_thread))
    piece = Piece(PARTITION, 0, data=bytes(build_batch([(b"k", value, headers, 5)])))
    async for records, _ in opened(gateway, piece, 0, lens, 1, held):
        (record,) = records
    return record


def both_ways(monkeypatch: pytest.MonkeyPatch, value: bytes, headers: Any = (), **lens: Any) -> list[Any]:
    found = []
    for at_once in (long_values.SHOWN_AT_ONCE, 0):
        monkeypatch.setattr(fetching, "SHOWN_AT_ONCE", at_once)
        found.append(asyncio.run(read(value, Lens(**lens), headers)))
    return found


@pytest.fixture
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_values, "SLICE_BYTES", 3)
    monkeypatch.setattr(long_json, "PIECE_BYTES", 8)


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("form", ["auto", "json", "string", "base64"])
@pytest.mark.parametrize("text_numbers", [False, True])
@pytest.mark.usefixtures("small_slices")
def test_a_long_value_is_shown_as_a_short_one(
    monkeypatch: pytest.MonkeyPatch, value: bytes, form: str, text_numbers: bool
) -> None:
    show = with_text_numbers if text_numbers else _encode
    headers = (("a", b"b"),)
    found = both_ways(monkeypatch, value, headers, form=form, text_numbers=text_numbers)
    at_once, in_turns = [msgspec.json.decode(b"[%b]" % records_inside([each], show)) for each in found]
    assert at_once == in_turns


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("media", MEDIA)
@pytest.mark.parametrize("is_event", [False, True])
@pytest.mark.parametrize("in_lines", [False, True])
@pytest.mark.usefixtures("small_slices")
def test_an_event_with_long_data_is_shown_as_one_with_short_data(
    monkeypatch: pytest.MonkeyPatch, value: bytes, media: bytes | None, is_event: bool, in_lines: bool
) -> None:
    headers = (EVENT if is_event else ()) + (() if media is None else (("Content-Type", media),))
    found = both_ways(monkeypatch, value, headers, as_events=True, in_lines=in_lines)
    at_once, in_turns = [msgspec.json.decode(_encode(each.content)) for each in found]
    assert at_once == in_turns
    assert (found[0].content.get("data") is None) == (found[1].content.get("data") is None)
    if not in_lines:
        assert to_binary(found[0]) == to_binary(found[1])
        assert to_binary(found[1])[1] == value


LONG = {
    "JSON": b"[" + b'{"a":1},' * (2 * MIB - 1) + b"0]",
    "text": b"x" * (16 * MIB),
    "lines": b"x\n" * (8 * MIB),
    "wide": "\u20ac".encode() * (5 * MIB),
    "bytes": b"\xff" * (16 * MIB),
}


@pytest.mark.parametrize("kind", LONG)
@pytest.mark.parametrize("form", ["auto", "string", "base64", "event"])
def test_a_long_value_is_shown_in_turns(kind: str, form: str) -> None:
    """16 MiB took turns of up to 85 ms: to judge whether it is JSON, to decode it, and to encode it."""
    batch, found = build_batch([(b"k", LONG[kind], (("a", b"b"),), 5)]), []
    lens = Lens(as_events=True, in_lines=False) if form == "event" else Lens(form=form)
    gateway: Any = SimpleNamespace(env=SimpleNamespace(blocking=asyncio.to_thread))

    async def work() -> None:
        piece = Piece(PARTITION, 0, data=bytes(batch))
        async for records, _ in opened(gateway, piece, 0, lens, 1, Held(Holder(Holding(1 << 30)))):
            await asyncio.sleep(0)
            found.append(to_binary(records[0]) if isinstance(records[0], EventOut) else _encode(records[0]))

    assert turns_of(work()) > 16 * MIB // long_values.SLICE_BYTES // 2
    assert len(found) == 1


def test_a_long_batch_is_copied_in_turns_before_its_record_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both copies of 16 MiB were made in one turn: 15 ms."""
    turns, begun = [0], list[int]()

    def begin(*what: Any, **how: Any) -> Any:
        begun.append(turns[0])
        return read_records(*what, **how)

    async def count() -> None:
        while True:
            turns[0] += 1
            await asyncio.sleep(0)

    async def scene() -> None:
        task = asyncio.ensure_future(count())
        assert bytes((await read(LONG_BYTES, Lens(form="base64"))).value_base64)[1:-1] == base64.b64encode(LONG_BYTES)
        task.cancel()

    monkeypatch.setattr(fetching, "read_records", begin)
    asyncio.run(scene())
    assert begun[0] >= 16


def test_base64_is_cut_between_whole_groups() -> None:
    assert long_values.SLICE_BYTES % 3 == 0
    assert base64.b64encode(b"x" * 4)[-1:] == b"="

"""Long JSON in pieces."""

from __future__ import annotations

import gc
import json
import random
from typing import Any

import msgspec
import pytest

from log.steps import done_at_once
from service.turns import done_in_turns
from service.web import long_json
from service.web.long_json import compact, is_json
from tests.service.web.kit import TURN_S, longest_turn_s

MIB = 1 << 20
_decoded = msgspec.json.Decoder(msgspec.Raw).decode


def judged(content: bytes) -> bool:
    try:
        _decoded(content)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


def any_json(rng: random.Random, deep: int = 0) -> Any:
    kind = rng.randrange(7 if deep < 6 else 4)
    if kind == 0:
        return rng.choice([None, True, False, 0, -1, 1.5, 10**20, 1e300])
    if kind in (1, 2, 3):
        return "".join(rng.choice('ab",:{}[]\\/\n\u00e9\U0001f34e \x01') for _ in range(rng.choice([0, 1, 5, 60])))
    if kind == 4:
        return {any_json(rng, 9) or "": any_json(rng, deep + 1) for _ in range(rng.randrange(5))}
    return [any_json(rng, deep + 1) for _ in range(rng.randrange(6))]


def texts(seed: int) -> list[bytes]:
    """A text, and what becomes of it when something is lost, added or another."""
    rng = random.Random(seed)
    whole = json.dumps(
        [any_json(rng) for _ in range(4)], indent=rng.choice([None, 1]), ensure_ascii=rng.random() < 0.5
    ).encode()
    found = [whole, whole + b" ", whole + b",", b"," + whole, whole + whole, whole[:-1], b"[" + whole, b" "]
    for _ in range(60):
        at = rng.randrange(len(whole))
        added = rng.choice([b"", b"", b",", b'"', b"[", b"]", b"{", b"}", b":", b"\\", b"0", b" ", b"x", b",,"])
        found.append(whole[:at] + added + whole[at + rng.randrange(2) :])
    return found


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("piece_bytes", [1, 7, 50])
def test_it_is_judged_as_in_one_piece(monkeypatch: pytest.MonkeyPatch, seed: int, piece_bytes: int) -> None:
    monkeypatch.setattr(long_json, "PIECE_BYTES", piece_bytes)
    monkeypatch.setattr(long_json, "STRING_BYTES", max(piece_bytes, long_json._ESCAPE_BYTES))
    for text in texts(seed):
        assert done_at_once(is_json(text)) == judged(text), text


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("piece_bytes", [1, 7, 50])
def test_it_is_written_as_in_one_piece(monkeypatch: pytest.MonkeyPatch, seed: int, piece_bytes: int) -> None:
    monkeypatch.setattr(long_json, "PIECE_BYTES", piece_bytes)
    text = texts(seed)[0]
    wanted = json.dumps(json.loads(text), ensure_ascii=False, separators=(",", ":"))
    assert done_at_once(compact(text)) == wanted


NO_JSON = {
    "an object that ends as a list": b'[{"a":1],',
    "a list that ends as an object": b"[[1},",
    "two values": b"1 2,",
    "a comma that nothing is behind": b"[1,]",
    "a comma that nothing is ahead of": b"[,1]",
    "no name": b'[{"a":1,2},',
    "a bad escape": b'["%b\\x' % (b"y" * MIB),
    "a bad character": b'["%b\x01' % (b"y" * MIB),
    "a cut escape": b'["%b\\u12' % (b"y" * MIB),
    "too deep": b"[0," * 2000,
}


@pytest.mark.parametrize("where", [0, 100_000])
@pytest.mark.parametrize("wrong", NO_JSON)
def test_what_is_wrong_anywhere_makes_it_no_json(wrong: str, where: int) -> None:
    text = b"[%b%b%b]" % (b"12," * where, NO_JSON[wrong], b'"x",' * 100_000 + b"0")
    assert not judged(text) if wrong != "too deep" else True
    assert not done_at_once(is_json(text))


SHAPES = {
    "numbers": b"[" + b"1," * (8 * MIB - 1) + b"1]",
    "lists": b"[" + b"[]," * (5 * MIB) + b"[]]",
    "nested": b"[" + (b"[" * 400 + b"]" * 400 + b",") * (16 * MIB // 801 - 1) + b"0]",
    "objects": b"[" + b'{"a":1},' * (2 * MIB - 1) + b"0]",
    "names": b"{" + b'"a":{},' * (2 * MIB) + b'"b":0}',
    "a string": b'"%b"' % (b"x" * (16 * MIB - 2)),
    "escapes": b'["%b"]' % (b"\\n" * (8 * MIB - 4)),
    "commas": b'["%b"]' % (b",\\\\" * (5 * MIB)),
    "strings of commas": b"[" + b'",",' * (4 * MIB - 1) + b"0]",
}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_long_one_is_judged_in_turns(shape: str) -> None:
    """16 MiB took one turn of 40 to 65 ms."""
    found: list[bool] = []

    async def work() -> None:
        found.append(await done_in_turns(is_json(SHAPES[shape])))

    assert longest_turn_s(work()) < TURN_S / 4
    assert found == [True]


DEEP = b'{"%b":' % (b"," * 2000) * 900 + b"1" + b"}" * 900


def test_what_has_no_place_to_cut_is_looked_through_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of it so far was copied, and counted up to 32 times, for each 32 KiB more: that took turns of 45 ms."""
    looked: list[int] = []
    look = long_json._behind_last_comma

    def counted(plain: bytes, *more: Any) -> int:
        looked.append(len(plain))
        return look(plain, *more)

    monkeypatch.setattr(long_json, "_behind_last_comma", counted)
    assert judged(DEEP)
    assert done_at_once(is_json(DEEP))
    assert len(DEEP) // 2 < sum(looked) <= len(DEEP)
    assert done_at_once(compact(DEEP)) == DEEP.decode()


@pytest.mark.parametrize("item", [b'["b,"]', b'["b"]', b"[[]]", b"{{}}", b'"b,"', b'"b"', b"]", b"["])
def test_more_than_json_can_have_ahead_of_a_comma_is_refused_soon(item: bytes) -> None:
    text = b'[{"a,":%b,0' % (item * (9 * MIB // 5 // len(item)))
    assert not judged(text)
    assert len(list(is_json(text))) <= 2


@pytest.mark.parametrize("item", [b"1", b"[]", b'{"a": 1}', b'",\\n"', b"0.1", b'{"%b": 0}' % (b"x" * 40_000)])
def test_a_long_one_is_written_in_turns(item: bytes) -> None:
    """1.5 MiB took up to 90 ms."""
    count = 3 * MIB // 2 // (len(item) + 2)
    text = b"[%b]" % b", ".join([item] * count)
    made: list[str] = []

    async def work() -> None:
        made.append(await done_in_turns(compact(text)))

    gc.freeze()  # as a broker does: what a collection looks through is the test's own
    try:
        assert longest_turn_s(work()) < TURN_S / 4
    finally:
        gc.unfreeze()
    assert made[0].encode() == b"[%b]" % b",".join([item.replace(b": ", b":")] * count)

"""Long JSON, judged and written anew in pieces, each of which takes a short turn of the loop.

A piece ends behind a comma that is in no string. With the lists and objects around it that are open there, it is JSON
by itself, and so the decoders judge it. What always holds: a text is JSON if all its pieces are, and only then. But one
that has no such comma in 2 MiB, long strings left out, is taken for none: nobody writes that.
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator
from typing import NamedTuple

import msgspec

from service.turns import Steps

PIECE_BYTES = 32 << 10
"""How much is judged or written anew in one turn of the loop: 3 ms, if it is nothing but brackets or numbers."""
STRING_BYTES = 128 << 10
"""How much of a long string is looked through in one turn."""
UNCUT_BYTES_MAX = 2 << 20
DEEP_MAX = 1_000
"""How many lists and objects may be in each other. The decoders take no more either."""
MARKS_MAX = 4 * DEEP_MAX + 2
"""So many quotes and brackets are ahead of a comma at most: what is open is closed, and as much is opened with names.
Where there are more, it is no JSON.
"""
_QUOTE, _LIST, _OBJECT = b'"[{'
_CLOSING = {b"]"[0]: _LIST, b"}"[0]: _OBJECT}
_NO_BRACKETS = bytes(each for each in range(256) if each not in b"[]{}")
_HEX = "[0-9a-fA-F]"
_HIGH, _LOW = f"[dD][89abAB]{_HEX}{{2}}", f"[dD][c-fC-F]{_HEX}{{2}}"
_ESCAPED = rf'["\\/bfnrt]|u(?:(?![dD][89a-fA-F]){_HEX}{{4}}|{_HIGH}\\u{_LOW})'
_STRING_PART = re.compile(rf'(?:[^"\\\x00-\x1f]++|\\(?:{_ESCAPED}))*+'.encode())
_ESCAPE_BYTES = len(rb"\ud83c\udf4e")
_is_json = msgspec.json.Decoder(msgspec.Raw).decode


class NotJson(ValueError):
    """The text is none."""


class Framed(NamedTuple):
    ahead: bytes
    """What is open where it begins, with a first item, as another one follows."""
    text: bytes
    behind: bytes
    """The last item, and the end of what is still open."""


class _Names(NamedTuple):
    """The names of those items, if they are in an object, as JSON."""

    first: bytes
    last: bytes


_ANY_NAMES = _Names(b'"a"', b'"b"')
_OWN_NAMES = _Names(b'"\\ud800"', b'"\\udc00"')
"""Names that no object has which can be written anew: half a surrogate pair is no text."""
_ESCAPED_BYTES = len(rb"\ud800") - 1
"""So much shorter such a name is as text."""


def is_json(content: bytes) -> Steps[bool]:
    """Whether it is JSON. The caller knows that it is UTF-8."""
    try:
        for piece in _pieces(content, _ANY_NAMES):
            if piece is not None:
                _is_json(b"".join(piece))
            yield
    except (NotJson, msgspec.DecodeError, RecursionError):
        return False
    return True


def compact(content: bytes) -> Steps[str]:
    """The JSON as `json.dumps` writes it, without blanks; but where an object names a member twice, and that far from
    each other, both are left. Raises what `json.dumps` raises. The caller knows that it is JSON of 2 MiB at most.
    """
    made: list[str] = []
    for piece in _pieces(content, _OWN_NAMES, keeps_strings=True):
        if piece is not None:
            whole = json.loads(b"".join(piece))
            text = json.dumps(whole, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
            made.append(text[_length(piece.ahead) : len(text) - _length(piece.behind)])
        yield
    return "".join(made)


def _length(added: bytes) -> int:
    return len(added) - _ESCAPED_BYTES * added.count(b"\\")


def _pieces(content: bytes, names: _Names, *, keeps_strings: bool = False) -> Generator[Framed | None]:
    """The pieces; None where a turn is over before there is one. Without `keeps_strings` a long string is looked
    through here, and an empty one is in its place. Each byte is looked at in the turn that reads it, and once more when
    the piece is cut.
    """
    around = b""
    rest, plain = bytearray(), bytearray()  # what is in no piece yet, as it is and without escapes
    in_string = is_escaped = False
    marks = at = 0
    while at + PIECE_BYTES < len(content):
        window = content[at : at + PIECE_BYTES]
        at += PIECE_BYTES
        fresh = _without_escapes(window, is_escaped)
        is_escaped = fresh.endswith(b"\\")
        cut = _behind_last_comma(fresh, in_string)
        known = len(rest)
        rest += window
        plain += fresh
        if cut:
            cut += known
            closed, opened = _brackets(bytes(plain[:cut]), around)
            left = around[: len(around) - closed]
            base = around[max(len(left) - 1, 0) :]
            around = left + opened
            if not around or len(around) > DEEP_MAX:
                raise NotJson
            yield Framed(_ahead(base, names), bytes(rest[:cut]), _behind(around[max(len(left) - 1, 0) :], names))
            del rest[:cut], plain[:cut]
            in_string, marks = plain.count(b'"') % 2 == 1, 0
            continue
        marks += _marks(fresh, in_string)
        in_string ^= fresh.count(b'"') % 2 == 1
        text_bytes = len(plain) - plain.rfind(b'"')
        if in_string and not keeps_strings and text_bytes > PIECE_BYTES // 2:
            del rest[-text_bytes:], plain[-text_bytes:]
            rest += b'""'
            plain += b'""'
            at = yield from _behind_string(content, at - text_bytes + 1)
            in_string = is_escaped = False
        if marks > MARKS_MAX or len(rest) > UNCUT_BYTES_MAX:
            raise NotJson
        yield None
    yield Framed(_ahead(around, names), bytes(rest) + content[at:], b"")


def _without_escapes(window: bytes, is_escaped: bool) -> bytes:
    """The same length, with no quote that is in a string. It ends with a backslash if that escapes what follows."""
    plain = b"_" + window[1:] if is_escaped else window
    return plain.replace(b"\\\\", b"__").replace(b'\\"', b"__") if b"\\" in plain else plain


def _behind_last_comma(plain: bytes, in_string: bool) -> int:
    """Where a piece may end; 0: nowhere. `in_string`: it begins there."""
    end = len(plain)
    if (plain.count(b'"') + in_string) % 2:
        end = plain.rfind(b'"')
    for _ in range(DEEP_MAX + 2):  # so many strings are no names and one value
        comma = plain.rfind(b",", 0, max(end, 0))
        if comma < 0:
            return 0
        if plain.count(b'"', comma, end) % 2 == 0:
            return comma + 1
        end = plain.rfind(b'"', 0, comma)  # where the string begins that it is in
    raise NotJson


def _marks(plain: bytes, in_string: bool) -> int:
    """How many quotes, and brackets out of strings, it has."""
    texts = plain.split(b'"')
    return len(texts) - 1 + len(b"".join(texts[in_string::2]).translate(None, _NO_BRACKETS))


def _brackets(plain: bytes, around: bytes) -> tuple[int, bytes]:
    """How many of the lists and objects around it the piece closes, and those that it leaves open."""
    outside = b"".join(plain.split(b'"')[::2]) if b'"' in plain else plain
    closed, opened = 0, bytearray()
    for each in outside.translate(None, _NO_BRACKETS).replace(b"[]", b"").replace(b"{}", b""):
        if (kind := _CLOSING.get(each)) is None:
            opened.append(each)
            if len(opened) > DEEP_MAX:
                raise NotJson
        elif opened:
            if opened.pop() != kind:
                raise NotJson
        else:
            closed += 1
            if closed >= len(around) or around[-closed] != kind:
                raise NotJson
    return closed, bytes(opened)


def _ahead(around: bytes, names: _Names) -> bytes:
    if not around:
        return b""
    return b"".join(b"[" if each == _LIST else b"{%b:" % names.first for each in around) + b"0,"


def _behind(around: bytes, names: _Names) -> bytes:
    item = b"0" if around[-1] == _LIST else b"%b:0" % names.last
    return item + around[::-1].replace(b"[", b"]").replace(b"{", b"}")


def _behind_string(content: bytes, at: int) -> Steps[int]:
    """Where the string ends whose text goes on at `at`."""
    while True:
        end = min(at + STRING_BYTES, len(content))
        found = _STRING_PART.match(content, at, end)
        assert found is not None  # it matches nothing, too
        stop = found.end()
        if stop < len(content) and content[stop] == _QUOTE:
            return stop + 1
        if stop == at or stop <= end - _ESCAPE_BYTES:
            raise NotJson
        at = stop
        yield

"""JSON bodies, looked through: whether an object names a member twice, which the decoder does not say, and where a long
list of records can be cut, so that it is decoded in turns of the loop.

What always holds: what lies inside a record's `value` is the client's own; nothing is asked of it here. What is not
JSON is for the decoder to say.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import msgspec
from msgspec import UNSET

from service.web.problems import Problem
from service.web.records import RecordIn

TOKENS_AT_ONCE = 20_000
"""Looked at in one turn of the loop: 3 ms."""
CUT_BYTES = 64 << 10
_TOKEN = re.compile(rb'"(?:[^"\\]++|\\.?)*+(?:"|\Z)|[{}\[\]:,]', re.DOTALL)
_LIST, _OBJECT, _COLON, _COMMA, _QUOTE = b'[{:,"'
RECORDS_MAX = 100_000
"""In one body."""
RECORD_BYTES_MAX = 4 << 20
"""Of a record as JSON, which is decoded in one turn; bytes may be longer (`application/octet-stream`)."""
RECORDS, VALUE = b'"records"', b'"value"'
TOP, LIST, RECORD = 1, 2, 3
"""How deep the members of the body are, its records, and a record's members."""


class Look:
    """At one body."""

    def __init__(self, text: bytes, record: int = RECORD) -> None:
        self._text = text
        self._record = record
        self.records_at = self.records_end = -1
        """Where what is in the list of records begins and ends."""
        self.cuts: list[int] = []
        """Commas between records, some way apart."""

    def all(self) -> None:
        for _ in self.steps():
            pass

    def steps(self) -> Iterator[None]:
        """A turn of the loop each. Problem, if a member is named twice."""
        text = self._text
        names: list[set[bytes] | None] = []
        exempt = 0  # so deep is the value that is the client's own; 0 outside of one
        name, last_cut, last_comma, records = b"", 0, 0, 0
        for count, token in enumerate(_TOKEN.finditer(text)):
            at = token.start()
            kind = text[at]
            if kind == _QUOTE:
                name = token.group()
            elif kind == _COLON:
                if names and (known := names[-1]) is not None and not exempt:
                    if b"\\" in name:
                        name = _plain(name)
                    if name in known:
                        raise Problem("malformed", f"{name[:60].decode(errors='replace')} is there twice in an object")
                    known.add(name)
                    if name == VALUE and len(names) == self._record:
                        exempt = self._record + 1
            elif kind == _COMMA:
                if exempt > len(names):
                    exempt = 0
                if len(names) == LIST and self.records_end < 0 <= self.records_at:
                    records += 1
                    if records >= RECORDS_MAX:
                        raise Problem("record-too-large", f"there are more than {RECORDS_MAX} records")
                    _refuse_long(at - last_comma)
                    last_comma = at
                    if at - last_cut >= CUT_BYTES:
                        self.cuts.append(at)
                        last_cut = at
            elif kind in (_LIST, _OBJECT):
                if kind == _LIST and len(names) == TOP and name == RECORDS and self.records_at < 0:
                    self.records_at = last_cut = last_comma = at + 1
                names.append(set() if kind == _OBJECT and not exempt else None)
            else:
                if exempt > len(names):
                    exempt = 0
                if not names:
                    return
                names.pop()
                if len(names) == TOP and self.records_end < 0 <= self.records_at:
                    _refuse_long(at - last_comma)
                    self.records_end = at
            if count % TOKENS_AT_ONCE == TOKENS_AT_ONCE - 1:
                if self.records_end < 0 <= self.records_at:
                    _refuse_long(at - last_comma)
                yield

    @property
    def pieces(self) -> Iterator[bytes]:
        """The list of records as lists, none of them long but where a record is."""
        text, start = self._text, self.records_at
        for end in (*self.cuts, self.records_end):
            yield b"[%b]" % text[start:end]
            start = end + 1

    @property
    def rest(self) -> bytes:
        """The body without its records."""
        return self._text[: self.records_at] + self._text[self.records_end :]


def _refuse_long(size_bytes: int) -> None:
    if size_bytes > RECORD_BYTES_MAX:
        raise Problem("record-too-large", f"a record is longer than {RECORD_BYTES_MAX} bytes: send it as bytes")


def _plain(name: bytes) -> bytes:
    """Without the escapes that a name may be written with."""
    try:
        return msgspec.json.encode(msgspec.json.decode(name, type=str))
    except msgspec.MsgspecError:
        return name


def refuse_doubles(body: bytes, records: Sequence[RecordIn], *, is_record: bool = False) -> None:
    """Raise a problem if an object of the body (or, `is_record`, of a record alone) names a member twice: the decoder
    took the last one.

    Then there are more colons in the body than in the records that were made of it. Where these are not easily counted
    all of it is looked through.
    """
    if body.count(b":") != (not is_record) + _colons(records) or b"\\u" in body:
        Look(body, 1 if is_record else RECORD).all()


def _colons(records: Sequence[RecordIn]) -> int:
    """In their text, if it has nothing else in it than keys, partitions and values."""
    members = 0
    texts = []
    for each in records:
        if (value := each.value) is not UNSET:
            members += 1
            texts.append(bytes(value))
        if (key := each.key) is not None:
            members += 1
            if ":" in key:
                members += key.count(":")
        if each.partition is not None:
            members += 1
        if (topic := each.topic) is not None:
            members += 1 + topic.count(":")
    return members + b"".join(texts).count(b":")

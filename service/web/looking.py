"""Scans a JSON body before it is decoded: whether an object names a member twice, which the decoder does not tell, and
where a long list of records can be cut, so that it is decoded in several turns of the loop.

What always holds: what is inside a record's `value` belongs to the client and is not judged here. A body that is no
JSON is left to the decoder, which refuses it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Sequence

import msgspec
from msgspec import UNSET

from service.web.problems import Problem
from service.web.records import HEADERS_MAX, TOO_MANY_HEADERS, RecordIn

BYTES_AT_ONCE = 8 << 10
"""How much is scanned in one turn of the loop: 4 ms if it has nothing but names, or nothing but brackets."""
CUT_BYTES = 64 << 10
_IN_STRING = rb'(?:[^"\\]++|\\.)*+(")?'
_REST_OF_STRING = re.compile(_IN_STRING, re.DOTALL)
"""Its group is the closing quote, if that is there."""
_TOKEN = re.compile(rb'"' + _IN_STRING + rb"|[{}\[\]:,]", re.DOTALL)
_LIST, _OBJECT, _COLON, _COMMA, _QUOTE = b'[{:,"'
RECORDS_MAX = 100_000
"""The most records in one body."""
RECORD_BYTES_MAX = 3 << 19
"""The longest record or event as JSON, because it is decoded in one turn: 8 ms, if it is nothing but short numbers. A
value of 1 MiB, which is what topics take by default, fits as base64. A record as bytes (`application/octet-stream`),
and an event in binary mode, may be longer.
"""
RECORDS, VALUE = b'"records"', b'"value"'
NAMES_MAX = HEADERS_MAX + 1_000
"""The most members of an object and of those around it: their names are kept. What is in values doesn't count."""
NAME_BYTES_MAX = 64 << 10
"""The longest name of a member as JSON, because it is looked up in one turn."""
DEEP_MAX = 1_000
"""How many lists and objects may be in each other. The decoder takes no more either."""
TOP, LIST, RECORD = 1, 2, 3
"""The depths of the body's members, of its records, and of a record's members."""


class BodyScan:
    """The scan of one body."""

    def __init__(
        self,
        text: bytes,
        record: int = RECORD,
        name: bytes = RECORDS,
        *,
        cut_bytes: int = CUT_BYTES,
        value: bytes = VALUE,
    ) -> None:
        self._text = text
        self._record = record
        self._value = value
        """The name of the member that belongs to the client, in quotes."""
        self._name = name
        """The name of the list of records, in quotes."""
        self._cut_bytes = cut_bytes
        self.records_at = self.records_end = -1
        """Where the content of the list of records begins and ends."""
        self.members = 0
        """How many members the body has, if it is an object."""
        self.cuts: list[int] = []
        """The positions of commas between records, at least `cut_bytes` from each other."""

    async def look(self) -> None:
        """Scan the body, in several turns of the loop. Raises a problem if a member is named twice."""
        for _ in self.steps():
            await asyncio.sleep(0)

    def steps(self) -> Iterator[None]:
        """The scan, of which each step fits into a turn of the loop."""
        text = self._text
        names: list[set[bytes] | None] = []
        exempt = 0  # the depth of the client's own value; 0 outside of one
        name, last_cut, last_comma, records, items = b"", 0, 0, 0, 0
        quote = end = kept = 0  # where the last string is; how many names are kept
        is_open, start = False, 0
        while start < len(text):
            for token in _TOKEN.finditer(text, start, start + BYTES_AT_ONCE):
                at = token.start()
                kind = text[at]
                if kind == _QUOTE:
                    quote, end = token.span()
                    is_open = token.lastindex is None  # it is cut off, or goes on behind these bytes
                elif kind == _COLON:
                    if names and (known := names[-1]) is not None and not exempt:
                        if end - quote > NAME_BYTES_MAX:
                            long = Problem("record-too-large", f"a name is longer than {NAME_BYTES_MAX} bytes")
                            raise self._about(records, long)
                        name = text[quote:end]
                        if b"\\" in name:
                            name = _plain(name)
                        if name in known:
                            twice = f"{name[:60].decode(errors='replace')} is there twice in an object"
                            raise self._about(records, Problem("malformed", twice))
                        known.add(name)
                        kept += 1
                        if kept > NAMES_MAX:
                            many = Problem("record-too-large", f"an object has more than {NAMES_MAX} members")
                            raise self._about(records, many)
                        self.members += len(names) == 1
                        if name == self._value and len(names) == self._record:
                            exempt = self._record + 1
                elif kind == _COMMA:
                    if exempt > len(names):
                        exempt = 0
                    if len(names) == LIST and self.records_end < 0 <= self.records_at:
                        _refuse_long(at - last_comma, records)
                        records += 1
                        if records >= RECORDS_MAX:
                            raise Problem("record-too-large", f"there are more than {RECORDS_MAX} records")
                        last_comma, items = at, 0
                        if at - last_cut >= self._cut_bytes:
                            self.cuts.append(at)
                            last_cut = at
                    elif len(names) == self._record + 1 and not exempt:
                        items += 1
                        if items >= HEADERS_MAX:
                            raise self._about(records, Problem("record-too-large", TOO_MANY_HEADERS))
                elif kind in (_LIST, _OBJECT):
                    if kind == _LIST and len(names) == TOP and name == self._name and self.records_at < 0:
                        self.records_at = last_cut = last_comma = at + 1
                    names.append(set() if kind == _OBJECT and not exempt else None)
                    if len(names) > DEEP_MAX:
                        raise self._about(records, Problem("malformed", "it is nested too deeply"))
                else:
                    if exempt > len(names):
                        exempt = 0
                    if not names:
                        return
                    kept -= len(names.pop() or ())
                    if len(names) == TOP and self.records_end < 0 <= self.records_at:
                        _refuse_long(at - last_comma, records)
                        self.records_end = at
            start = end if is_open else start + BYTES_AT_ONCE
            while True:
                if self.records_end < 0 <= self.records_at:
                    _refuse_long(start - last_comma, records)
                if start >= len(text):
                    return
                yield
                if not is_open:
                    break
                rest = _REST_OF_STRING.match(text, start, start + BYTES_AT_ONCE)
                assert rest is not None  # it matches nothing, too: behind the last byte, or before a lone backslash
                is_open = rest.lastindex is None and rest.end() > start
                start = end = rest.end()

    def _about(self, index: int, problem: Problem) -> Problem:
        """The problem, which says in which record it is if it is in one of a list."""
        return problem.about_record(index) if self.records_end < 0 <= self.records_at else problem

    @property
    def pieces(self) -> Iterator[bytes]:
        """The list of records in several lists. A list is long only if one of its records is."""
        text, start = self._text, self.records_at
        for end in (*self.cuts, self.records_end):
            yield b"[%b]" % text[start:end]
            start = end + 1

    @property
    def rest(self) -> bytes:
        """The body without its records."""
        return self._text[: self.records_at] + self._text[self.records_end :]

    @property
    def rest_bytes(self) -> int:
        return len(self._text) - (self.records_end - self.records_at)


def _refuse_long(size_bytes: int, index: int) -> None:
    if size_bytes > RECORD_BYTES_MAX:
        problem = Problem("record-too-large", f"it is longer than {RECORD_BYTES_MAX} bytes: send it as bytes")
        raise problem.about_record(index)


def _plain(name: bytes) -> bytes:
    """The name without the escapes that it may be written with."""
    try:
        return msgspec.json.encode(msgspec.json.decode(name, type=str))
    except msgspec.MsgspecError:
        return name


async def refuse_doubles(body: bytes, records: Sequence[RecordIn], *, is_record: bool = False) -> None:
    """Raise a problem if an object of the body (with `is_record`: of a single record) names a member twice. The decoder
    has silently taken the last one.

    In that case the body has more colons than the records that were made of it. If these are not easily counted, the
    whole body is scanned.
    """
    if body.count(b":") != (not is_record) + _colons(records) or b"\\u" in body:
        await BodyScan(body, TOP if is_record else RECORD).look()


def _colons(records: Sequence[RecordIn]) -> int:
    """The number of colons in the records' text; only records of nothing but keys, partitions and values can be
    counted.
    """
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

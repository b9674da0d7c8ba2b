"""Long values of records as they are shown, made in several turns of the loop.

What always holds: they are shown as short ones are. What is made here is JSON already (`Raw`), also where a string
stands otherwise: to encode it once more would take as long again.
"""

from __future__ import annotations

import base64
import codecs
from collections.abc import Iterator
from typing import cast

import msgspec
from msgspec import UNSET, Raw

from service.turns import Steps
from service.web.long_json import is_json
from service.web.records import CR, JUDGED_BYTES_MAX, LF, RecordOut, one_line

SHOWN_AT_ONCE = 1 << 20
"""A longer value is shown in several turns: to judge, decode or encode 16 MiB takes 40 to 85 ms each."""
SLICE_BYTES = 192 << 10
"""How much is done in one turn. Base64 has no rest of three bytes in it."""
_encode = msgspec.json.Encoder().encode


def shown_long(content: bytes, form: str, out: RecordOut) -> Steps[None]:
    """Put a long value into `out`, in the form that the client has asked for."""
    out.value = UNSET
    if form == "base64" or not (yield from is_text(content)):
        out.value_base64 = cast(str, (yield from as_base64(content)))
    elif (form == "json" or (form == "auto" and len(content) <= JUDGED_BYTES_MAX)) and (yield from is_json(content)):
        out.value = Raw((yield from in_one_line(content)))
    else:
        out.value_string = cast(str, (yield from as_string(content)))


def is_text(content: bytes) -> Steps[bool]:
    """Whether it is UTF-8."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        for piece in _slices(content):
            decoder.decode(piece)
            yield
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return False
    return True


def as_string(content: bytes) -> Steps[Raw]:
    """The text as a JSON string."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    made = bytearray(b'"')
    for piece in _slices(content):
        made += _encode(decoder.decode(piece))[1:-1]
        yield
    made += b'"'
    return Raw(made)  # to copy it would take a turn of its own


def as_base64(content: bytes) -> Steps[Raw]:
    """The bytes as a JSON string."""
    made = bytearray(b'"')
    for piece in _slices(content):
        made += base64.b64encode(piece)
        yield
    made += b'"'
    return Raw(made)


def in_one_line(content: bytes) -> Steps[bytes | bytearray]:
    """The JSON without line breaks."""
    if LF not in content and CR not in content:
        return content
    made = bytearray()
    for piece in _slices(content):
        made += one_line(piece)
        yield
    return made


def _slices(content: bytes) -> Iterator[bytes]:
    for at in range(0, len(content), SLICE_BYTES):
        yield content[at : at + SLICE_BYTES]

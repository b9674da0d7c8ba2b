"""Reads bodies of requests, and makes bodies of answers."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast
from urllib.parse import unquote_plus, unquote_to_bytes

import msgspec
import zstandard
from aiohttp import HttpVersion11, web
from isal import igzip, isal_zlib
from msgspec import Raw, Struct
from msgspec.structs import asdict, astuple, replace

from log.copies import COPIED_AT_ONCE, Buffer, joined
from service.turns import done_in_turns
from service.web.holding import HOLDER
from service.web.problems import Problem
from service.web.routing import JSON, STREAMING

if TYPE_CHECKING:
    from service.web.gateway import Gateway

HASHED_AT_ONCE = 256 << 10
ENCODED_AT_ONCE = 1 << 20
ITEM_BYTES = 400
"""What an item of a list counts for at least: a short one takes as long as so much of a long one."""
PACKED_FROM_BYTES = 1400
CODECS: dict[str, Callable[[bytes], bytes]] = {
    "zstd": lambda body: zstandard.ZstdCompressor(level=1).compress(body),
    "gzip": lambda body: igzip.compress(body, 1),
}


class Packer(Protocol):
    def compress(self, piece: bytes) -> bytes: ...
    def flush(self) -> bytes: ...


PACKERS: dict[str, Callable[[], Packer]] = {
    "zstd": lambda: zstandard.ZstdCompressor(level=1).compressobj(),
    "gzip": lambda: cast(Packer, isal_zlib.compressobj(1, isal_zlib.DEFLATED, 31)),
}
GIVEN_AT_ONCE = 256 << 10

_MARK = b'"\\ud800"'
"""Half a surrogate pair is no text, so this is in no JSON that was judged or made here."""
_WHOLE = re.compile(r"-?[0-9]{1,24}")
_QUALITY = re.compile(r"q=(0(?:\.[0-9]{0,3})?|1(?:\.0{0,3})?)")

T = TypeVar("T")
R = TypeVar("R")
_encode = msgspec.json.Encoder().encode


def as_json(value: Any, *, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(body=_encode(value), status=status, content_type=JSON, headers=headers)


async def list_in_turns(
    items: Sequence[R], inside: Callable[[Sequence[R]], bytes], before: bytes = b"[", after: bytes = b"]"
) -> bytes:
    """A JSON list of these items, and what is around it. `inside` makes of some of them what is inside the list. A long
    one is made in several turns of the loop.
    """
    parts, begin, size_bytes = list[Buffer]((before,)), 0, 0
    for end, item in enumerate(items, 1):
        size_bytes += ITEM_BYTES + _length_of(item)
        if size_bytes >= ENCODED_AT_ONCE:
            parts += (*_in_pieces(items[begin:end], inside), b",")
            begin, size_bytes = end, 0
            await asyncio.sleep(0)
    if begin < len(items) or not items:
        parts.append(inside(items[begin:] if begin else items))
    else:
        parts.pop()
    parts.append(after)
    return await as_one(parts)


def _in_pieces(items: Sequence[R], inside: Callable[[Sequence[R]], bytes]) -> Iterator[Buffer]:
    """What is inside a list of these items. What is long in the last one is a piece of its own: to copy it takes a turn
    of its own.
    """
    short, long = without_long(items[-1])
    return in_pieces(inside([*items[:-1], short] if long else items), long)


def without_long(item: R) -> tuple[R, list[Raw]]:
    """The same with a mark wherever it has long JSON, and that."""
    members = item if isinstance(item, dict) else asdict(item) if isinstance(item, Struct) else {}
    long = {name: each for name, each in members.items() if isinstance(each, Raw) and len(each) >= ENCODED_AT_ONCE}
    if not long:
        return item, []
    marked = dict.fromkeys(long, Raw(_MARK))
    without = {**item, **marked} if isinstance(item, dict) else replace(cast(Struct, item), **marked)
    return cast(R, without), list(long.values())


def in_pieces(text: bytes, long: Sequence[Raw]) -> Iterator[Buffer]:
    """The text, with that in the place of the marks."""
    first, *others = text.split(_MARK) if long else [text]
    yield first
    for each, behind in zip(long, others, strict=True):
        yield memoryview(each)
        yield behind


async def as_one(pieces: Sequence[Buffer]) -> bytes:
    """The pieces, one after the other. Long ones are copied in several turns of the loop."""
    return b"".join(pieces) if sum(map(len, pieces)) <= COPIED_AT_ONCE else await done_in_turns(joined(pieces))


def _length_of(thing: Any) -> int:
    """About how long it is as JSON, without names and what is short."""
    kind = type(thing)
    if kind is str or kind is Raw:
        return len(thing)
    if kind is dict:
        return sum(map(_length_of, thing.values()))
    if kind is list:
        return sum(map(_length_of, thing))
    return sum(map(_length_of, astuple(thing))) if isinstance(thing, Struct) else 0


def read_json(body: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    """The body as the decoder's type. A body that is no JSON, or that has another shape, is a problem."""
    try:
        refuse_bytes(body)
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise Problem("malformed", f"the body does not fit: {error}") from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise Problem("malformed", f"the body is not JSON: {error}") from None
    except UnicodeDecodeError:
        raise Problem("malformed", "the body is not UTF-8") from None


def refuse_bytes(text: bytes) -> None:
    """Raises UnicodeDecodeError if it is not UTF-8: the decoder does not look into what is left as it came (`Raw`)."""
    if not text.isascii():
        text.decode()


def codec_of(accepted: str) -> str | None:
    """The codec for an answer to a client that accepts these; None: the answer is not compressed."""
    if not accepted:
        return None
    offered: dict[str, float] = {}
    for part in accepted.lower().split(","):
        name, _, quality = part.partition(";")
        offered[name.strip()] = _quality(quality.replace(" ", ""))
    best = max(CODECS, key=lambda each: offered.get(each, 0.0))  # of two that are liked alike the first
    return best if offered.get(best, 0.0) > 0 else None


def _quality(given: str) -> float:
    """How much something is liked, from 0 to 1."""
    if not given:
        return 1.0
    found = _QUALITY.fullmatch(given)
    return 0.0 if found is None else float(found[1])


async def give(
    request: web.Request, response: web.StreamResponse, content: bytes, before_last: Callable[[], None] = lambda: None
) -> None:
    """Write a part of an answer, little by little as the client takes it. `before_last` is called before the last
    piece: behind that the client may have it all.
    """
    if request.transport is None:
        raise ConnectionResetError("the client is gone")
    with request[HOLDER].given(len(content), request.transport):
        for at in range(0, len(content), GIVEN_AT_ONCE):
            if at + GIVEN_AT_ONCE >= len(content):
                before_last()
            await response.write(content[at : at + GIVEN_AT_ONCE])


async def tell(request: web.Request, response: web.StreamResponse, content: bytes) -> None:
    """Write a report on a part of the body, the rest of which the request goes on to hold."""
    if request.transport is None:
        raise ConnectionResetError("the client is gone")
    with request[HOLDER].told(request.transport):
        await response.write(content)


class PiecedAnswer:
    """An answer that is made piece by piece while its client takes it. It is packed if the client likes that."""

    def __init__(self, gateway: Gateway, request: web.Request, media: str) -> None:
        self._gateway = gateway
        self._request = request
        self.response = web.StreamResponse(headers={"Content-Type": media})
        codec = codec_of(request.headers.get("Accept-Encoding", ""))
        self._packer = None if codec is None else PACKERS[codec]()
        if codec is not None:
            self.response.headers.update({"Content-Encoding": codec, "Vary": "Accept-Encoding"})

    async def begin(self) -> None:
        if self._request.version < HttpVersion11:
            self.response.force_close()  # the end of the connection is that of the answer
        await self.response.prepare(self._request)
        self._request[STREAMING] = True

    async def write(self, piece: bytes) -> None:
        if self._packer is not None:
            piece = await self._gateway.env.blocking(self._packer.compress, piece)
        await give(self._request, self.response, piece)

    async def end(self, piece: bytes) -> None:
        await self.write(piece)
        if self._packer is not None:
            await self.response.write(self._packer.flush())
        await self.response.write_eof()


async def sha256_of(gateway: Gateway, *parts: bytes) -> str:
    """The digest of the parts, one after the other. Long parts are hashed beside the loop."""
    if sum(map(len, parts)) <= HASHED_AT_ONCE:
        return sha256(*parts)
    found: str = await gateway.env.blocking(sha256, *parts)
    return found


def sha256(*parts: bytes) -> str:
    asked = hashlib.sha256()
    for part in parts:
        asked.update(part)
    return asked.hexdigest()


def query_bytes(request: web.Request, name: str) -> bytes | None:
    """The value of a query parameter as it was sent, which need not be UTF-8: otherwise different keys become one."""
    for part in request.rel_url.raw_query_string.split("&"):
        given, _, value = part.partition("=")
        if unquote_plus(given) == name:
            return unquote_to_bytes(value.replace("+", " ").encode("utf-8", "surrogateescape"))
    return None


def query_int(request: web.Request, name: str, default: int, *, least: int = 0, most: int = 2**63 - 1) -> int:
    given = request.query.get(name)
    if given is None:
        return default
    value = int(given) if _WHOLE.fullmatch(given) else None
    if value is None or not least <= value <= most:
        raise Problem("malformed", f"{name} is a whole number from {least} to {most}, not {given[:40]!r}")
    return value


def query_choice(request: web.Request, name: str, *choices: str) -> str:
    """The value of a query parameter, which is one of `choices`. The first is the default."""
    given = request.query.get(name, choices[0])
    if given not in choices:
        raise Problem("malformed", f"{name} is one of {', '.join(choices)}, not {given[:40]!r}")
    return given


def query_flag(request: web.Request, name: str) -> bool:
    """Whether a query parameter says yes. Its name alone does."""
    given = request.query.get(name, "false")
    if given.lower() not in ("", "true", "1", "false", "0"):
        raise Problem("malformed", f"{name} is true or false, not {given[:40]!r}")
    return given.lower() not in ("false", "0")


def refuse_query(request: web.Request, known: Collection[str]) -> None:
    """Raise a problem if the query has a name that means nothing here, or one twice."""
    for name in request.query:
        if name not in known:
            what = f"it knows {', '.join(sorted(known))}" if known else "it knows none"
            raise Problem("malformed", f"the query has {name[:40]!r}, which means nothing here: {what}")
        if len(request.query.getall(name)) > 1:
            raise Problem("malformed", f"the query has {name!r} more than once")


def path_int(request: web.Request, name: str, *, most: int = 2**31 - 1) -> int:
    given = request.match_info[name]
    if not (given.isascii() and given.isdigit() and len(given) < 20 and int(given) <= most):
        raise Problem("malformed", f"{name} is a whole number, not {given[:40]!r}")
    return int(given)

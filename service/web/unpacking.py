"""Bodies of requests, and what undoes their Content-Encoding.

aiohttp undoes it as well, but takes a body that ends before its packing does for a whole one. A part of a file must
not become a record.

What always holds: a packed body is taken only if it ends where its packing ends. However small it came, no more is
unpacked at a time than a piece, and no more of a whole body than a body may have. Nobody else waits for longer than a
few pieces take, also if there is nothing in them.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator, Iterator
from sys import getsizeof

import zstandard
from aiohttp import web

from service.web.answers import as_one
from service.web.forwarding import media_of
from service.web.holding import HOLDER
from service.web.looking import RECORDS_MAX
from service.web.problems import Problem
from service.web.routing import OCTETS

PIECE_BYTES = 64 << 10
PIECES_AT_ONCE = 8
"""How many pieces of a whole body are unpacked in one turn of the loop: 2 ms."""
RAW_AT_ONCE = 256 << 10
"""How much of a body that is not packed is handed on in one turn of the loop."""
PACKED_AT_ONCE = 16 << 10
"""How much is given to the unpacking at a time. It copies what it leaves."""
BITE_BYTES = 128
"""How much of zstd is given to the unpacking at a time: 4 bytes may become 128 KiB, and so one bite no more than 4 MiB.
"""
WINDOW_BYTES = 8 << 20
"""The most that is kept of an unpacked body as long as the next piece of it may come, as RFC 9659 says."""
NOTHING_ELSE = b"No frame that is cut off ends with that."
ONE_MORE = zstandard.compress(NOTHING_ELSE)
OBJECT_BYTES = 700
"""What is made of an object of a JSON body until it is answered. A hundred thousand records took 698 bytes each beside
their text, if they have nothing but a number, and 1084 with a header, which is an object as well.
"""
ITEM_S = 300.0
"""How long a body that is read as it comes may go without a whole line or record."""
ENCODINGS = ("gzip", "x-gzip", "deflate", "zstd", "identity")
BODY = web.RequestKey("body", bytes)
GZIP = 31
"""zlib's `wbits` for a gzip header with the largest window; without a header they are negative."""


class Objects:
    """Counts the objects of a JSON body of which something is made: its records, and headers, which have a name. What
    is in a record's value is left as it came.
    """

    def __init__(self, *, are_counted: bool) -> None:
        self._are_counted = are_counted
        self._objects = self._names = 0

    def look_at(self, piece: bytes) -> None:
        if self._are_counted:
            self._objects += piece.count(b"{")
            self._names += piece.count(b'"name"') + piece.count(b"\\u00")  # which may be a letter of it

    def bytes_with(self, size_bytes: int) -> int:
        """What a body of this length holds when it is decoded."""
        return size_bytes + OBJECT_BYTES * min(self._objects, RECORDS_MAX + self._names)


class Unpacker:
    """Unpacks the pieces of a body one after the other."""

    def __init__(self, encoding: str) -> None:
        self._encoding = encoding
        self._part: zlib._Decompress | None = None
        """The part that is under way: gzip may have several, one after the other."""
        self._zstd = zstandard.ZstdDecompressor(max_window_size=WINDOW_BYTES) if encoding == "zstd" else None
        """Of this body alone: what is made of one keeps its state in it."""
        self._frames = None if self._zstd is None else self._zstd.decompressobj(read_across_frames=True)
        """All parts of zstd: to begin each of them anew would take 8 us, and one needs 8 bytes only."""
        self._idle_bytes = 0 if self._zstd is None else self._zstd.memory_size()
        self._size_bytes = 0
        self._has_part = False

    @property
    def window_bytes(self) -> int:
        """What is kept of what was unpacked, because the next piece may repeat it. With gzip it is 32 KiB at most,
        which is not counted. What zstd has reserved and not yet filled takes no memory.
        """
        return 0 if self._zstd is None else min(self._zstd.memory_size() - self._idle_bytes, self._size_bytes)

    def feed(self, packed: bytes) -> Iterator[bytes]:
        """The pieces that are complete now. Some are empty: to unpack what has nothing in it takes time, too."""
        feed = self._feed if self._frames is None else self._feed_frames
        try:
            for at in range(0, len(packed), PACKED_AT_ONCE):
                yield from feed(packed[at : at + PACKED_AT_ONCE])
        except (zlib.error, zstandard.ZstdError) as error:
            raise self._refused(str(error)) from None

    def _feed_frames(self, packed: bytes) -> Iterator[bytes]:
        assert self._frames is not None
        self._has_part = True
        found: list[bytes] = []
        size_bytes = 0
        for at in range(0, len(packed), BITE_BYTES):
            some = self._frames.decompress(packed[at : at + BITE_BYTES])
            found.append(some)
            size_bytes += len(some)
            self._size_bytes += len(some)
            if size_bytes >= PIECE_BYTES or at + BITE_BYTES >= len(packed):
                whole, found, size_bytes = b"".join(found), [], 0
                for start in range(0, len(whole) or 1, PIECE_BYTES):
                    yield whole[start : start + PIECE_BYTES]

    def _feed(self, packed: bytes) -> Iterator[bytes]:
        while packed:
            if self._part is None:
                self._part = self._next_part(packed)
            yield from self._unpack(self._part, packed)
            packed = b""
            if self._part.eof:
                packed, self._part = self._part.unused_data, None
            yield b""

    def end(self) -> None:
        if self._part is not None or not self._has_part or not self._is_between_frames():
            raise self._refused("it ends too early")

    def _is_between_frames(self) -> bool:
        """Whether one more frame is taken for one. What is in the middle of a frame takes it for something else. It is
        fed byte by byte: zstd looks whether a whole frame comes, also in the middle of another's head.
        """
        if self._frames is None:
            return True
        try:
            return b"".join(self._frames.decompress(bytes((each,))) for each in ONE_MORE) == NOTHING_ELSE
        except zstandard.ZstdError:
            return False

    def _next_part(self, packed: bytes) -> zlib._Decompress:
        if self._has_part and self._encoding == "deflate":
            raise self._refused("there is more behind its end")
        self._has_part = True
        # Some clients take deflate's name for what it says, and send no header of zlib's.
        is_bare = self._encoding == "deflate" and packed[0] & 0xF != zlib.DEFLATED
        return zlib.decompressobj(GZIP if self._encoding == "gzip" else -zlib.MAX_WBITS if is_bare else zlib.MAX_WBITS)

    def _unpack(self, part: zlib._Decompress, packed: bytes) -> Iterator[bytes]:
        while not part.eof:
            piece = part.decompress(packed, PIECE_BYTES)
            packed = part.unconsumed_tail
            if piece:
                yield piece
            elif not packed:
                return

    def _refused(self, why: str) -> Problem:
        return Problem("malformed", f"the body is not packed as Content-Encoding says ({self._encoding}): {why}")


def encoding_of(request: web.Request) -> str:
    """How the body is packed. If that is not known, it would be taken for the record itself."""
    for name, known in ("Content-Encoding", ENCODINGS), ("Transfer-Encoding", ("chunked",)):
        if name in request.headers and (given := ", ".join(request.headers.getall(name))).lower() not in known:
            raise Problem("unsupported-media-type", f"{name}: {given[:100]}: {', '.join(known)} is known")
    encoding: str = request.headers.get("Content-Encoding", "identity").lower()
    return "gzip" if encoding == "x-gzip" else encoding  # RFC 9110, 8.4.1.3


def has_come(request: web.Request) -> bool:
    """Whether the whole body is there, so that nothing is to be waited for, which costs 10 us. Most come with their
    heads.
    """
    return request.content.is_eof()


def refuse_long(request: web.Request, most_bytes: int | None) -> None:
    """Raise a problem if the head says that the body is longer than it may be."""
    most_bytes = min(request.client_max_size, most_bytes or request.client_max_size)
    if (request.content_length or 0) > most_bytes:
        raise _too_long(most_bytes)


def _too_long(most_bytes: int) -> Problem:
    return Problem("record-too-large", f"the body is longer than {most_bytes} bytes")


async def body_of(request: web.Request, most_bytes: int | None = None) -> bytes:
    """The whole body, unpacked. It is at most so long, and never longer than `http.max.body.bytes` says."""
    if BODY not in request:
        encoding = encoding_of(request)
        is_packed, is_text = encoding != "identity", media_of(request) != OCTETS
        most_bytes = min(request.client_max_size, most_bytes or request.client_max_size)
        body = await _whole(request, most_bytes, counts_objects=is_text and not is_packed)
        if is_packed and request.body_exists:
            body = await _unpacked(request, Unpacker(encoding), body, most_bytes, counts_objects=is_text)
        request[BODY] = body
    return request[BODY]


async def _whole(request: web.Request, most_bytes: int, *, counts_objects: bool) -> bytes:
    pieces: list[bytes] = []
    size_bytes = held_bytes = 0
    objects, holder, content = Objects(are_counted=counts_objects), request[HOLDER], request.content
    while some := content.read_nowait() if has_come(request) else await holder.come(content.readany()):
        pieces.append(some)
        size_bytes += len(some)
        held_bytes += getsizeof(some)
        objects.look_at(some)
        if size_bytes > most_bytes:
            raise _too_long(most_bytes)
        await holder.take(objects.bytes_with(held_bytes))
    return await as_one(pieces)


async def _others_first(request: web.Request) -> None:
    """Give others their turn. Raises if the client is gone meanwhile: little that came may be much to do."""
    await asyncio.sleep(0)
    if request.transport is None:
        raise ConnectionResetError("the client is gone")


async def _unpacked(
    request: web.Request, unpacker: Unpacker, packed: bytes, most_bytes: int, *, counts_objects: bool
) -> bytes:
    pieces: list[bytes] = []
    size_bytes, objects, holder = 0, Objects(are_counted=counts_objects), request[HOLDER]
    for number, piece in enumerate(unpacker.feed(packed)):
        if piece:
            pieces.append(piece)
        size_bytes += len(piece)
        objects.look_at(piece)
        if size_bytes > most_bytes:
            raise Problem("record-too-large", f"the body unpacks to more than {most_bytes} bytes")
        if number % PIECES_AT_ONCE == PIECES_AT_ONCE - 1:
            await holder.take(len(packed) + unpacker.window_bytes + objects.bytes_with(size_bytes))
            await _others_first(request)
    unpacker.end()
    await holder.take(objects.bytes_with(size_bytes))
    return await as_one(pieces)


class Pace:
    """How slowly a body may come that is read as it comes. `moved` is called when a whole line or record has come
    and was dealt with; single bytes that drip in are no progress.
    """

    def __init__(self) -> None:
        self.window_bytes = 0
        """What its unpacker keeps."""
        self.moved()

    def moved(self) -> None:
        self.due_s = asyncio.get_running_loop().time() + ITEM_S


async def pieces_of(request: web.Request, pace: Pace) -> AsyncIterator[bytes]:
    """The body as it comes, unpacked. Raises a problem if it comes too slowly."""
    encoding = encoding_of(request)
    unpacker = None if encoding == "identity" else Unpacker(encoding)
    while came := await _next_of(request, pace):
        if unpacker is None:
            for at in range(0, len(came), RAW_AT_ONCE):
                yield came[at : at + RAW_AT_ONCE]
                await _others_first(request)
            continue
        for piece in unpacker.feed(came):
            if piece:
                pace.window_bytes = unpacker.window_bytes
                yield piece
            await _others_first(request)
    if unpacker is not None:
        unpacker.end()


async def _next_of(request: web.Request, pace: Pace) -> bytes:
    """What has come, or comes next; nothing at the body's end."""
    try:
        async with asyncio.timeout_at(pace.due_s):
            return await request[HOLDER].come(request.content.readany())
    except TimeoutError:
        raise Problem("too-slow", f"no whole line or record came for {ITEM_S:g} s") from None

"""Packed bodies over HTTP."""

from __future__ import annotations

import asyncio
import gzip
import json
import random
import re
import time
import tracemalloc
import zlib
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from itertools import accumulate
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock, MagicMock

import pytest
import zstandard
from aiohttp import web

from service.web import producing
from service.web.holding import HOLDER, SMALL_BYTES, Holder, Holding
from service.web.problems import Problem
from service.web.producing import write_stream
from service.web.unpacking import PACKED_AT_ONCE, PIECE_BYTES, PIECES_AT_ONCE, Pace, Unpacker, body_of, pieces_of
from tests.service.web.kit import ROOT, Coming, Http, Served, read_all, turns_of

CONTENT = random.Random(14).randbytes(300) * 3_000


def bare_deflate(content: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(content) + packer.flush()


PACKED: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "gzip": ("gzip", gzip.compress),
    "zstd": ("zstd", zstandard.compress),
    "deflate": ("deflate", zlib.compress),
    "bare deflate": ("deflate", bare_deflate),
}
EACH = pytest.mark.parametrize(("encoding", "pack"), PACKED.values(), ids=PACKED)


def unpacked(encoding: str, packed: bytes, at_once: int = 1 << 20) -> bytes:
    unpacker = Unpacker(encoding)
    pieces: list[bytes] = []
    for at in range(0, len(packed), at_once):
        pieces += unpacker.feed(packed[at : at + at_once])
    unpacker.end()
    assert all(len(each) <= PIECE_BYTES for each in pieces)
    return b"".join(pieces)


@EACH
@pytest.mark.parametrize("at_once", [1, 7, 1 << 20])
def test_a_body_is_unpacked_however_it_comes(encoding: str, pack: Callable[[bytes], bytes], at_once: int) -> None:
    packed = pack(CONTENT)
    assert unpacked(encoding, packed, at_once) == CONTENT
    assert unpacked(encoding, pack(b""), at_once) == b""
    if encoding != "deflate":
        assert unpacked(encoding, packed + pack(b"more"), at_once) == CONTENT + b"more"


@EACH
def test_a_body_that_ends_before_its_packing_is_refused(encoding: str, pack: Callable[[bytes], bytes]) -> None:
    packed = pack(CONTENT[:2000])
    for end in range(len(packed)):
        with pytest.raises(Problem, match="packed"):
            unpacked(encoding, packed[:end])


@EACH
@pytest.mark.parametrize("at_once", [1, 1 << 20])
def test_what_stands_behind_a_packed_body_is_refused(
    encoding: str, pack: Callable[[bytes], bytes], at_once: int
) -> None:
    for more in (b"x", b"\0\0", b"{}" * 20):
        with pytest.raises(Problem, match="packed"):
            unpacked(encoding, pack(CONTENT) + more, at_once)


@EACH
def test_a_small_stream_with_much_in_it_holds_up_nobody(encoding: str, pack: Callable[[bytes], bytes]) -> None:
    """211 bytes with 6 MiB of empty lines stopped everything for two seconds."""

    async def read() -> None:
        async for _ in pieces_of(cast(web.Request, Coming(pack(b"\n" * (6 << 20)), encoding)), Pace()):
            pass

    assert turns_of(read()) >= (6 << 20) // PIECE_BYTES


@pytest.mark.parametrize(
    "empty", [gzip.compress(b""), zstandard.compress(b""), b"\x50\x2a\x4d\x18\0\0\0\0"], ids=["gzip", "zstd", "skipped"]
)
def test_a_body_of_many_empty_parts_holds_up_nobody(empty: bytes) -> None:
    """A MiB of them took four seconds in one turn of the loop: what was left was copied each time. With a turn for each
    they took one second still, because zstd began anew with each.
    """
    request = Coming(empty * 50_000, "gzip" if empty[0] == 0x1F else "zstd")
    turns = 50_000 if empty[0] == 0x1F else len(empty) * 50_000 // PACKED_AT_ONCE

    async def read() -> None:
        async for _ in pieces_of(cast(web.Request, request), Pace()):
            pass

    assert turns_of(read()) >= turns
    request.rest = empty * 50_000
    began_s = time.process_time()
    assert turns_of(body_of(cast(web.Request, request))) >= turns // PIECES_AT_ONCE
    assert time.process_time() - began_s < 0.7


def test_many_frames_are_a_body_only_where_one_of_them_ends() -> None:
    """Frames with a checksum, without the length of their content, empty ones, and some that are to be skipped."""
    plain = zstandard.ZstdCompressor(write_checksum=True)
    frames = [plain.compress(b"one"), zstandard.compress(b""), b"\x50\x2a\x4d\x18\3\0\0\0abc"]
    unsized = plain.compressobj()
    frames += [unsized.compress(b"two") + unsized.flush(), zstandard.compress(CONTENT[:400]), plain.compress(b"")]
    packed, ends = b"".join(frames), set(accumulate(map(len, frames)))
    for end in range(1, len(packed) + 1):
        try:
            unpacked("zstd", packed[:end], 1 + end % 200)
        except Problem:
            assert end not in ends
        else:
            assert end in ends


@EACH
def test_bodies_that_come_at_the_same_time_are_unpacked_apart(encoding: str, pack: Callable[[bytes], bytes]) -> None:
    """Those of zstd shared their decoder: each broke the other, or got what was the other's."""
    contents = [random.Random(seed).randbytes(200_000) for seed in (1, 2)]
    packed, unpackers = [pack(each) for each in contents], [Unpacker(encoding) for _ in contents]
    found = [bytearray(), bytearray()]
    for at in range(0, max(map(len, packed)), 10_000):
        for number, unpacker in enumerate(unpackers):
            found[number] += b"".join(unpacker.feed(packed[number][at : at + 10_000]))
    for unpacker in unpackers:
        unpacker.end()
    assert found == contents


def test_a_window_that_would_keep_much_memory_is_refused() -> None:
    """4.5 KB kept 128 MiB for as long as their connection was open. RFC 9659 has 8 MiB for all."""

    def packed(window_log: int) -> bytes:
        chosen = zstandard.ZstdCompressionParameters(window_log=window_log)
        return zstandard.ZstdCompressor(compression_params=chosen).compressobj().compress(bytes(16 << 20))

    with pytest.raises(Problem, match="too much memory"):
        list(Unpacker("zstd").feed(packed(24)))
    assert len(b"".join(Unpacker("zstd").feed(packed(23)))) > 8 << 20
    assert unpacked("zstd", zstandard.compress(bytes(16 << 20), 19)) == bytes(16 << 20)


def test_what_a_window_keeps_is_counted_while_the_body_comes() -> None:
    """A hundred slow bodies kept 800 MB in windows of 8 MiB. What is reserved for a small body takes no memory."""
    lines = random.Random(3).randbytes(1 << 20).replace(b"\n", b".") + b"\n"

    async def held_bytes(content: bytes) -> int:
        packer = zstandard.ZstdCompressor(level=19).compressobj()
        request = Coming(packer.compress(content) + packer.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK), "zstd")
        with suppress(Problem):  # the body ends too early
            async for _ in producing._lines(cast(web.Request, request), 1 << 30):
                pass
        return cast(int, request[HOLDER].bytes)

    assert 6 << 20 <= asyncio.run(held_bytes(lines * 6)) <= 10 << 20
    assert asyncio.run(held_bytes(b"a line\n" * 100)) == 0


@pytest.mark.parametrize("pack", [bytes, gzip.compress, zstandard.compress], ids=["plain", "gzip", "zstd"])
def test_what_is_made_of_a_body_is_counted(pack: Callable[[bytes], bytes]) -> None:
    """80 bodies of 100,000 records, 9 MB each, held 3.8 GB."""
    encoding = {bytes: "identity", gzip.compress: "gzip", zstandard.compress: "zstd"}[pack]

    def held_bytes(body: bytes, media: str = "application/json") -> int:
        request = Coming(pack(body), encoding)
        request.content_type = media
        assert asyncio.run(body_of(cast(web.Request, request))) == body
        return cast(int, request[HOLDER].bytes)

    body = b'{"records":[' + b",".join([b'{"value":1}'] * 100_000) + b"]}"
    tracemalloc.start()
    _, records = asyncio.run(producing.read_batch(body, Holder(Holding(1 << 30))))
    decoded_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(records) == 100_000
    assert decoded_bytes < held_bytes(body) < 5 * decoded_bytes
    assert held_bytes(body, "application/octet-stream") < len(body) + 100
    points = b'{"records":[{"value":[' + b",".join([b'{"p":{"x":1,"y":1}}'] * 300_000) + b"]}]}"
    assert held_bytes(points) < len(points) + 80_000_000, "nothing is made of what is in a value: it counted 420 MB"
    headers = b'{"records":[{"headers":[' + b",".join([b'{"name":""}'] * 200_000) + b"]}]}"
    assert held_bytes(headers) > 140_000_000
    many = b'{"records":[' + b"{}," * 10_900 + b"{}]}"
    assert len(many) <= SMALL_BYTES + 16
    assert held_bytes(many) > 7_000_000, "300 of them held 1.4 GB, and none was counted"
    few = b'{"records":[' + b'{"headers":[{"name":"a"}],"value":"%b"},' % (b"x" * 1000) * 10 + b"{}]}"
    assert held_bytes(few) == 0, "a small body with few records always finds room"


def test_lines_are_counted_while_they_are_written() -> None:
    """128 KiB of short lines take 3 MB once they are split, for as long as the client does not read the reports."""

    async def scene() -> list[tuple[int, int]]:
        request, seen = Coming(b"aa\n" * 80_000), []
        tracemalloc.start()
        async for _, lines in producing._lines(cast(web.Request, request), 1 << 20):
            seen.append((tracemalloc.get_traced_memory()[0], request[HOLDER].bytes))
            lines.clear()
        tracemalloc.stop()
        assert request[HOLDER].bytes == 0
        return seen

    ((made_bytes, held_bytes),) = asyncio.run(scene())
    assert made_bytes > 3 << 20
    assert 0.8 < held_bytes / made_bytes < 1.5


def test_lines_that_come_together_are_written_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(*_: object) -> bytes:
        return b""

    monkeypatch.setattr(producing, "_write_plain_lines", nothing)
    monkeypatch.setattr(web, "StreamResponse", MagicMock(return_value=AsyncMock()))
    gateway: Any = SimpleNamespace(config=SimpleNamespace(http_max_body_bytes=1))
    assert turns_of(write_stream(gateway, cast(web.Request, Coming(b"1\n" * 20_000)), "t")) >= 40


@pytest.mark.parametrize("empty", [b"\n", b"\r\n", b" \n", b" \t \r\n"])
def test_empty_lines_are_counted_and_cost_next_to_nothing(monkeypatch: pytest.MonkeyPatch, empty: bytes) -> None:
    """130 KB of them, packed, took 84 seconds of the processor's time; and those that have blanks 1.4 s for 100 MB."""
    written: list[tuple[list[bytes], int]] = []

    async def write(_: object, lines: list[bytes], first_number: int, __: object) -> bytes:
        written.append((lines, first_number))
        return b""

    monkeypatch.setattr(producing, "_write_plain_lines", write)
    monkeypatch.setattr(web, "StreamResponse", MagicMock(return_value=AsyncMock()))
    gateway: Any = SimpleNamespace(config=SimpleNamespace(http_max_body_bytes=1))
    looked_at: list[int] = []
    lines_of = producing._lines

    async def counted(*given: Any) -> AsyncIterator[tuple[int, list[bytes]]]:
        async for number, some in lines_of(*given):
            looked_at.append(len(some))
            yield number, some

    monkeypatch.setattr(producing, "_lines", counted)
    lines = 1 << 20
    body = gzip.compress(empty * lines + b"1\n" + empty * 1500 + b"2\n")
    asyncio.run(write_stream(gateway, cast(web.Request, Coming(body, "gzip")), "t"))
    assert len(written) <= 4, "the others were empty"
    found = [(first + at, line) for some, first in written for at, line in enumerate(some) if line.strip()]
    assert found == [(lines, b"1"), (lines + 1501, b"2")]
    assert sum(looked_at) < 2000


def test_a_long_line_that_comes_in_pieces_is_put_together_once() -> None:
    """Each piece was put behind all that had come before: 200 clients with a line of 10 MB each held up all others."""
    request = cast(web.Request, Coming(zstandard.compress(b"\n \n" + b"x" * (15 << 20) + b"\nlast"), "zstd"))

    async def read() -> list[tuple[int, list[int]]]:
        return [(empty, [len(line) for line in lines]) async for empty, lines in producing._lines(request, 16 << 20)]

    began_s = time.process_time()
    assert asyncio.run(read()) == [(2, []), (0, [15 << 20]), (0, [4])]
    assert time.process_time() - began_s < 0.7


@pytest.mark.parametrize(
    "packed", [gzip.compress(bytes(16 << 20)), zstandard.compress(b"") * 100_000], ids=["long", "empty"]
)
def test_a_body_is_not_unpacked_for_a_client_that_is_gone(packed: bytes) -> None:
    request = Coming(packed, "gzip" if packed[0] == 0x1F else "zstd")
    request.transport = None

    async def read() -> None:
        async for _ in pieces_of(cast(web.Request, request), Pace()):
            pass

    with pytest.raises(ConnectionResetError):
        asyncio.run(body_of(cast(web.Request, request)))
    request.rest = packed
    with pytest.raises(ConnectionResetError):
        asyncio.run(read())


def cut(http: Http, path: str, media: str, encoding: str, body: bytes, *, chunked: bool, method: str = "POST") -> Any:
    def pieces() -> Iterator[bytes]:
        yield from (body[at : at + 100] for at in range(0, len(body), 100))

    headers = {"Content-Type": media, "Content-Encoding": encoding}
    if method == "PUT":
        headers["Idempotency-Key"] = f'"{path}"'
    data = pieces() if chunked else body
    return http.session.request(method, http.url + path, data=data, headers=headers, timeout=30)


@EACH
@pytest.mark.parametrize("chunked", [False, True], ids=["whole", "chunked"])
@pytest.mark.parametrize("method", ["POST", "PUT"])
def test_what_is_left_of_a_file_is_not_written(
    served: Served,
    http: Http,
    topic: str,
    encoding: str,
    pack: Callable[[bytes], bytes],
    chunked: bool,
    method: str,
) -> None:
    """It was: the beginning as the record, or an empty record, and the answer was that it was applied."""
    assert http.post("/v1/topics", {"name": topic}).status == 201
    path, octets = f"/v1/topics/{topic}/records", "application/octet-stream"
    packed = pack(CONTENT[:2000])
    for end in (1, len(packed) // 2, len(packed) - 1):
        answer = cut(http, path, octets, encoding, packed[:end], chunked=chunked, method=method)
        assert (answer.status_code, answer.json()["type"], answer.json()["outcome"]) == (
            400,
            "/problems/malformed",
            "none",
        )
    assert read_all(served.bootstrap, topic) == []
    assert cut(http, path, octets, encoding, packed, chunked=chunked, method=method).status_code == 200
    (seen,) = read_all(served.bootstrap, topic)
    assert seen.value == CONTENT[:2000]


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_a_stream_tells_that_the_rest_of_it_did_not_come(served: Served, http: Http, topic: str, encoding: str) -> None:
    """Method: packed lines of which the end is missing. The first lines are written, as always, and told."""
    assert http.post("/v1/topics", {"name": topic}).status == 201
    lines = b"".join(b'{"value":"%s"}\n' % random.Random(each).randbytes(500).hex().encode() for each in range(500))
    body = PACKED[encoding][1](lines)[:-3000]
    answer = cut(http, f"/v1/topics/{topic}/records", "application/x-ndjson", encoding, body, chunked=True)
    *reports, last = map(json.loads, answer.text.splitlines())
    assert [each["offset"] for each in reports] == list(range(len(reports)))
    assert (last["line"], last["problem"]["type"]) == (len(reports), "/problems/malformed")
    assert len(read_all(served.bootstrap, topic)) == len(reports) > 0


def test_a_stream_of_the_other_proxy_tells_it_too(http: Http, topic: str) -> None:
    assert http.post("/v1/topics", {"name": topic}).status == 201
    cluster = http.get("/v1/cluster").json["cluster_id"]
    path = f"/v3/clusters/{cluster}/topics/{topic}/records"
    body = gzip.compress(b'{"value":{"type":"JSON","data":1}}')
    answer = cut(http, path, "application/json", "gzip", body[:-4], chunked=False)
    told = [json.loads(each) for each in answer.text.splitlines()]
    assert told[-1]["error_code"] == 40002, told
    assert cut(http, path, "application/json", "gzip", body, chunked=False).json()["error_code"] == 200
    assert cut(http, path, "application/json", "br", b"x", chunked=False).status_code == 415


def test_every_handler_reads_bodies_unpacked() -> None:
    """aiohttp leaves them packed, and does not count what they hold."""
    for file in (ROOT / "service/web").rglob("*.py"):
        if file.name != "unpacking.py":
            text = file.read_text()
            assert not re.search(r"request\.(read|post|text|json|multipart)\(|request\.content\.", text), file

import gzip
import random
import struct
import tracemalloc
import zlib
from collections.abc import Callable
from functools import partial
from typing import Any

import cramjam
import lz4.frame
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

import log.compress
from log.compress import (
    MAX_MEMBERS,
    XERIAL_MAGIC,
    BadCompression,
    Codec,
    UnpacksTooLarge,
    compress,
    decompress,
    told_plain_bytes,
)

PACKING = [codec for codec in Codec if codec is not Codec.NONE]


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("plain", [b"", b"x", b"words " * 20_000, random.Random(1).randbytes(100_000)])
def test_plain_bytes_survive_every_codec(codec: Codec, plain: bytes) -> None:
    assert decompress(codec, compress(codec, plain)) == plain


@pytest.mark.parametrize("codec", Codec)
def test_packed_bytes_tell_how_long_they_were(codec: Codec) -> None:
    plain = b"words " * 20_000
    assert told_plain_bytes(codec, memoryview(compress(codec, plain))) == len(plain)


def test_a_raw_snappy_block_tells_and_a_zstd_stream_does_not() -> None:
    assert told_plain_bytes(Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(b"words " * 9))) == 54
    packer = zstandard.ZstdCompressor().compressobj()
    assert told_plain_bytes(Codec.ZSTD, packer.compress(b"words") + packer.flush()) is None


@given(codec=st.integers(0, 7), packed=st.binary(max_size=60), xerial=st.booleans())
def test_rubbish_tells_nothing_absurd(codec: int, packed: bytes, xerial: bool) -> None:
    told = told_plain_bytes(codec, XERIAL_MAGIC + packed if xerial else packed)
    assert told is None or 0 <= told <= 128 << 20


@pytest.mark.parametrize("codec", PACKING)
def test_a_bomb_is_refused_at_the_limit(codec: Codec) -> None:
    packed = compress(codec, bytes(5_000_000))
    assert len(decompress(codec, packed, limit_bytes=5_000_000)) == 5_000_000
    with pytest.raises(BadCompression, match="more than was allowed"):
        decompress(codec, packed, limit_bytes=4_999_999)


@pytest.mark.parametrize("codec", PACKING)
def test_a_bomb_is_not_unpacked_to_see_how_large_it_is(codec: Codec) -> None:
    packed = compress(codec, bytes(40_000_000))
    tracemalloc.start()
    try:
        with pytest.raises(BadCompression):
            decompress(codec, packed, limit_bytes=1_000_000)
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()


def test_a_size_that_is_only_claimed_reserves_nothing() -> None:
    huge = struct.pack("<I", 0xFD2FB528) + b"\xe0" + struct.pack("<Q", 1 << 60) + b"\x01\x00\x00"
    with pytest.raises(BadCompression):
        decompress(Codec.ZSTD, huge)
    with pytest.raises(BadCompression):
        decompress(Codec.SNAPPY, b"\xff\xff\xff\xff\x0f" + b"\x00" * 10)


def test_a_zstd_window_beyond_the_limit_is_refused() -> None:
    parameters = zstandard.ZstdCompressionParameters(window_log=30, enable_ldm=True)
    packer = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    packed = packer.compress(bytes(100)) + packer.flush()
    with pytest.raises(BadCompression):
        decompress(Codec.ZSTD, packed)


@pytest.mark.parametrize("codec", PACKING)
def test_cut_bytes_are_refused(codec: Codec) -> None:
    packed = compress(codec, random.Random(2).randbytes(3000))
    for size in (1, 5, len(packed) // 2, len(packed) - 1):
        with pytest.raises(BadCompression):
            decompress(codec, packed[:size])


@pytest.mark.parametrize("codec", PACKING)
@given(st.data())
def test_damaged_bytes_are_plain_bytes_or_refused(codec: Codec, data: st.DataObject) -> None:
    """Nothing but `BadCompression` comes out, whatever goes in."""
    packed = bytearray(compress(codec, b"some plain bytes, some more plain bytes" * 10))
    for _ in range(data.draw(st.integers(1, 4))):
        packed[data.draw(st.integers(0, len(packed) - 1))] = data.draw(st.integers(0, 255))
    try:
        assert len(decompress(codec, bytes(packed), limit_bytes=100_000)) <= 100_000
    except BadCompression:
        return


@pytest.mark.parametrize("codec", PACKING)
@given(noise=st.binary(max_size=200))
def test_noise_is_refused_or_harmless(codec: Codec, noise: bytes) -> None:
    try:
        decompress(codec, noise, limit_bytes=1000)
    except BadCompression:
        return


def test_other_writers_are_understood() -> None:
    """What Java, librdkafka and Python clients send: other levels, raw snappy, several gzip members, lz4 checksums."""
    plain = b"the same words " * 1000
    assert decompress(Codec.GZIP, gzip.compress(plain, 9)) == plain
    assert decompress(Codec.GZIP, gzip.compress(plain[:100]) + gzip.compress(plain[100:])) == plain
    assert decompress(Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(plain))) == plain
    assert decompress(Codec.LZ4, lz4.frame.compress(plain, content_checksum=True, block_linked=True)) == plain
    packer = zstandard.ZstdCompressor(level=10).compressobj()  # a frame that does not tell its size
    assert decompress(Codec.ZSTD, packer.compress(plain) + packer.flush()) == plain


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4])
def test_members_of_all_sizes_are_unpacked(codec: Codec) -> None:
    parts = [b"", b"a", random.Random(1).randbytes(100_000), b"", b"b" * 300, random.Random(2).randbytes(1000), b""]
    packed = b"".join(compress(codec, part) for part in parts)
    assert decompress(codec, packed) == b"".join(parts)
    with pytest.raises(BadCompression):
        decompress(codec, packed[:-1])
    with pytest.raises(UnpacksTooLarge):
        decompress(codec, packed, limit_bytes=len(b"".join(parts)) - 1)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4])
def test_thousands_of_empty_members_are_refused(codec: Codec) -> None:
    """3 MB of them took a minute, and the cleaner met them again and again."""
    empty, plain = compress(codec, b""), b"word"
    assert decompress(codec, MAX_MEMBERS // 2 * empty + compress(codec, plain)) == plain
    with pytest.raises(BadCompression, match="members"):
        decompress(codec, MAX_MEMBERS * empty + compress(codec, plain))


class Counting:
    """An unpacker that counts the bytes that are copied from behind the ends of members."""

    copied = 0

    def __init__(self, new: Callable[[], Any]) -> None:
        self._unpacker = new()
        self.decompress = self._unpacker.decompress

    @property
    def eof(self) -> bool:
        return bool(self._unpacker.eof)

    @property
    def unused_data(self) -> bytes:
        unused: bytes = self._unpacker.unused_data or b""
        Counting.copied += len(unused)
        return unused


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4])
def test_what_follows_a_member_is_copied_a_few_times_at_most(codec: Codec, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"_new_{codec.name.lower()}"
    monkeypatch.setattr(log.compress, name, partial(Counting, getattr(log.compress, name)))
    monkeypatch.setattr(Counting, "copied", 0)
    packed = 500 * compress(codec, random.Random(1).randbytes(1000))
    assert len(decompress(codec, packed)) == 500_000
    assert len(packed) <= Counting.copied < 4 * len(packed)


def test_ours_are_understood_by_others() -> None:
    plain = b"the same words " * 10_000
    assert zlib.decompress(compress(Codec.GZIP, plain), wbits=31) == plain
    assert lz4.frame.decompress(compress(Codec.LZ4, plain)) == plain
    assert zstandard.ZstdDecompressor().decompress(compress(Codec.ZSTD, plain)) == plain
    framed = compress(Codec.SNAPPY, plain)
    assert framed.startswith(XERIAL_MAGIC)


def test_an_unknown_codec_is_refused_both_ways() -> None:
    for codec in (5, 6, 7):
        with pytest.raises(BadCompression):
            decompress(codec, b"")
        with pytest.raises(BadCompression):
            compress(codec, b"")

"""The four codecs of Kafka's record batches, each bounded in output size.

What always holds: `decompress` never returns more than `limit_bytes` and never holds much more than that while it
works, whatever the input claims; anything wrong with the input is a `BadCompression`, never an exception of the codec's
library.
"""

import struct
import zlib
from collections.abc import Iterator
from enum import IntEnum
from typing import Final, Protocol, TypeVar, cast

import cramjam
import lz4.frame
import zstandard
from isal import isal_zlib

MAX_PLAIN_BYTES: Final = 128 << 20
"""How much one batch may unpack to: a hundred times a full batch of 1 MB. A decompression bomb needs gigabytes."""

LZ4_DEFAULT_LEVEL: Final = 9
XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
XERIAL_HEADER_BYTES: Final = 16
XERIAL_BLOCK_BYTES: Final = 32 << 10
ZSTD_WINDOW_BYTES: Final = 64 << 20
"""A frame that asks for a larger window is refused: the window is reserved before a byte is unpacked."""
ZSTD_LOOK_BYTES: Final = 1 << 20
TOLD_WITHIN_BYTES: Final = 32
"""More bytes than the head of a frame takes in any codec."""
MAX_MEMBERS: Final = 1000
"""Clients write one."""
FURTHER_MEMBER_BYTES: Final = 256
"""So much of a further member of gzip or lz4 is unpacked first, and then twice as much each time."""
GZIP: Final = 31
"""zlib's `wbits` for a gzip header with the largest window."""
GZIP_ERROR: Final = cast(type[Exception], isal_zlib.error)
"""It is a class, although the library's type stub calls it an instance."""

Packed = TypeVar("Packed", bytes, memoryview)


class Codec(IntEnum):
    """The low three bits of a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class BadCompression(ValueError):
    """The compressed bytes are broken, or unpack to more than was allowed."""


class UnpacksTooLarge(BadCompression):
    """The compressed bytes may be correct, but they unpack to more than was allowed."""

    def __init__(self) -> None:
        super().__init__("unpacks to more than was allowed")


def compress(codec: int, plain: bytes | memoryview, level: int | None = None) -> bytes:
    """`plain` packed as Kafka's own clients would pack it. `level` is Kafka's number, None the codec's default."""
    match codec:
        case Codec.NONE:
            return bytes(plain)
        case Codec.GZIP:
            # isal is ten times as fast as zlib, but has no levels to speak of.
            if level in (None, -1):
                packer = isal_zlib.compressobj(wbits=GZIP)
                return bytes(packer.compress(plain) + packer.flush())
            return zlib.compress(plain, level, GZIP)
        case Codec.SNAPPY:
            return _pack_xerial(plain)
        case Codec.LZ4:
            return bytes(
                lz4.frame.compress(
                    plain,
                    # As in Kafka: its default is the fast method, every other level the thorough one's.
                    compression_level=0 if level in (None, LZ4_DEFAULT_LEVEL) else level,
                    block_size=lz4.frame.BLOCKSIZE_MAX64KB,
                    block_linked=False,
                )
            )
        case Codec.ZSTD:
            return zstandard.ZstdCompressor(level=3 if level is None else level).compress(plain)
    raise BadCompression(f"no codec has the number {codec}")


def decompress(codec: int, packed: bytes | memoryview, *, limit_bytes: int = MAX_PLAIN_BYTES) -> bytes:
    """The plain bytes, or `BadCompression`."""
    try:
        match codec:
            case Codec.NONE:
                return bytes(packed)
            case Codec.GZIP:
                return _unpack_stream(_new_gzip, packed, limit_bytes)
            case Codec.SNAPPY:
                return _unpack_snappy(bytes(packed), limit_bytes)
            case Codec.LZ4:
                return _unpack_stream(_new_lz4, packed, limit_bytes)
            case Codec.ZSTD:
                return _unpack_zstd(packed, limit_bytes)
    except (GZIP_ERROR, zstandard.ZstdError, cramjam.DecompressionError, RuntimeError, EOFError) as error:
        raise BadCompression(str(error)) from error
    raise BadCompression(f"no codec has the number {codec}")


def told_plain_bytes(codec: int, packed: Packed) -> int | None:
    """The unpacked size that the packed bytes tell about themselves; None if they don't tell it. Nothing is unpacked.

    Nothing is checked either: the writer may have lied, and gzip tells the size of the last member only.
    """
    try:
        told = _told_plain_bytes(codec, packed)
    except (BadCompression, zstandard.ZstdError, cramjam.DecompressionError, RuntimeError):
        return None
    return told if told is not None and 0 <= told <= MAX_PLAIN_BYTES else None


def _told_plain_bytes(codec: int, packed: Packed) -> int | None:
    head = bytes(packed[:TOLD_WITHIN_BYTES])
    match codec:
        case Codec.NONE:
            return len(packed)
        case Codec.GZIP:
            return int.from_bytes(packed[-4:], "little")
        case Codec.SNAPPY if head.startswith(XERIAL_MAGIC):
            return sum(cramjam.snappy.decompress_raw_len(bytes(block[:5])) for block in _xerial_blocks(packed))
        case Codec.SNAPPY:
            return int(cramjam.snappy.decompress_raw_len(head[:5]))
        case Codec.LZ4:
            return lz4.frame.get_frame_info(head)["content_size"] or None
        case Codec.ZSTD:
            return zstandard.frame_content_size(head)  # -1 where it says nothing
    return None


class _Unpacker(Protocol):
    """What the stream decoders of gzip and lz4 have in common."""

    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes | None: ...

    def decompress(self, data: bytes | memoryview, max_length: int) -> bytes: ...


class _NewUnpacker(Protocol):
    def __call__(self) -> _Unpacker: ...


def _new_gzip() -> _Unpacker:
    unpacker: _Unpacker = isal_zlib.decompressobj(wbits=GZIP)
    return unpacker


def _new_lz4() -> _Unpacker:
    unpacker: _Unpacker = lz4.frame.LZ4FrameDecompressor()
    return unpacker


def _unpack_stream(new_unpacker: _NewUnpacker, packed: bytes | memoryview, limit_bytes: int) -> bytes:
    """Unpack gzip or lz4. Both formats allow several members in a row. Each must be complete, all together must fit
    into the limit, and there must be fewer than `MAX_MEMBERS`: empty ones take time, and no room.

    A library copies what it is given behind the end of a member. So only the first member, which nearly always is the
    only one, is given all bytes at once.
    """
    packed = memoryview(packed)
    parts: list[bytes] = []
    room, at, piece = limit_bytes, 0, len(packed)
    for _ in range(MAX_MEMBERS):
        if at == len(packed):
            return b"".join(parts)
        unpacker = new_unpacker()
        while not unpacker.eof:
            if at >= len(packed):
                raise BadCompression("the compressed bytes end too early")
            given = packed[at : at + piece]
            part = unpacker.decompress(given, max_length=room + 1)
            room -= len(part)
            if room < 0:
                raise UnpacksTooLarge
            parts.append(part)
            at += len(given)
            piece *= 2
        at -= len(unpacker.unused_data or b"")
        piece = FURTHER_MEMBER_BYTES
    raise BadCompression(f"there are {MAX_MEMBERS} members or more")


def _unpack_zstd(packed: bytes | memoryview, limit_bytes: int) -> bytes:
    """Unpack one frame; every client writes just one. It is done in one call, because a stream does not notice a frame
    that ends too early.
    """
    if not packed:
        return b""
    claimed = zstandard.frame_content_size(packed)
    if claimed > limit_bytes:
        raise UnpacksTooLarge
    decompressor = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW_BYTES)
    try:
        return decompressor.decompress(packed, max_output_size=limit_bytes, allow_extra_data=False)
    except zstandard.ZstdError:
        if _is_longer(decompressor, packed, limit_bytes):  # the library has one error for this and for a torn frame
            raise UnpacksTooLarge from None
        raise


def _is_longer(decompressor: zstandard.ZstdDecompressor, packed: bytes | memoryview, limit_bytes: int) -> bool:
    room = limit_bytes
    with decompressor.stream_reader(packed) as reader:
        while room >= 0 and (part := reader.read(ZSTD_LOOK_BYTES)):
            room -= len(part)
    return room < 0


def _unpack_snappy(packed: bytes, limit_bytes: int) -> bytes:
    """Java frames its snappy in blocks (xerial); librdkafka sends one raw block. Readers must take both."""
    if not packed.startswith(XERIAL_MAGIC):
        return _unpack_snappy_block(packed, limit_bytes)
    parts: list[bytes] = []
    room = limit_bytes
    for block in _xerial_blocks(packed):
        part = _unpack_snappy_block(block, room)
        room -= len(part)
        parts.append(part)
    return b"".join(parts)


def _xerial_blocks(packed: Packed) -> Iterator[Packed]:
    at = XERIAL_HEADER_BYTES
    while at < len(packed):
        if at + 4 > len(packed):
            raise BadCompression("a snappy block has no size")
        (size,) = struct.unpack_from(">i", packed, at)
        at += 4
        if size < 0 or at + size > len(packed):
            raise BadCompression("a snappy block is longer than the bytes that follow")
        yield packed[at : at + size]
        at += size


def _unpack_snappy_block(block: bytes, limit_bytes: int) -> bytes:
    claimed = cramjam.snappy.decompress_raw_len(block)
    if claimed > limit_bytes:
        raise UnpacksTooLarge
    return bytes(cramjam.snappy.decompress_raw(block))


def _pack_xerial(plain: bytes | memoryview) -> bytes:
    parts = [XERIAL_MAGIC, struct.pack(">ii", 1, 1)]
    for at in range(0, len(plain), XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(plain[at : at + XERIAL_BLOCK_BYTES]))
        parts += (struct.pack(">i", len(block)), block)
    return b"".join(parts)

"""Kafka's four codecs, framed as Kafka's readers want them, over the compressors that pyarrow brings.

gzip and zstd are taken as pyarrow makes them. Snappy stands in the blocks of snappy-java ("xerial"), and LZ4 in frames
of independent 64 KB blocks: the Java client refuses linked ones, and pyarrow links them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

import pyarrow as pa

NONE = 0
CODES = {"none": NONE, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
LEVELS = {"gzip": (-1, 9), "lz4": (1, 17), "zstd": (-131072, 22)}  # as in Kafka

_XERIAL_HEADER = b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK_BYTES = 32 * 1024
# Magic; version 1, blocks independent, no checksums; 64 KB blocks; the checksum of these two bytes.
_LZ4_HEADER = b"\x04\x22\x4d\x18\x60\x40\x82"
_LZ4_BLOCK_BYTES = 64 * 1024
_LZ4_STORED = 0x80000000
_LZ4_END = bytes(4)

Compressor = Callable[[memoryview], bytes]


def compressor(name: str, level: int | None = None) -> Compressor:
    """What turns the records of a batch into the compressed ones. `name` is one of `CODES`, but not `none`."""
    codec = pa.Codec("lz4_raw" if name == "lz4" else name, compression_level=level)

    def block(data: memoryview) -> bytes:
        packed: bytes = codec.compress(pa.py_buffer(data), asbytes=True)
        return packed

    def xerial(data: memoryview) -> bytes:
        parts = [_XERIAL_HEADER]
        for at in range(0, len(data), _XERIAL_BLOCK_BYTES):
            packed = block(data[at : at + _XERIAL_BLOCK_BYTES])
            parts += (struct.pack(">i", len(packed)), packed)
        return b"".join(parts)

    def lz4_frame(data: memoryview) -> bytes:
        parts: list[bytes | memoryview] = [_LZ4_HEADER]
        for at in range(0, len(data), _LZ4_BLOCK_BYTES):
            plain = data[at : at + _LZ4_BLOCK_BYTES]
            packed = block(plain)
            if len(packed) < len(plain):
                parts += (struct.pack("<I", len(packed)), packed)
            else:
                parts += (struct.pack("<I", len(plain) | _LZ4_STORED), plain)
        parts.append(_LZ4_END)
        return b"".join(parts)

    return {"snappy": xerial, "lz4": lz4_frame}.get(name, block)

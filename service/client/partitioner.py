"""The hash by which Kafka's Java client chooses a partition, so that `oncelog produce` puts a key where all do."""

from __future__ import annotations

_MASK = 0xFFFFFFFF
_MULTIPLIER = 0x5BD1E995


def murmur2(data: bytes) -> int:
    """Murmur 2 with the seed that Kafka uses, as a number of 32 bits without sign."""
    length = len(data)
    value = (0x9747B28C ^ length) & _MASK
    whole = length & ~3
    for at in range(0, whole, 4):
        word = int.from_bytes(data[at : at + 4], "little") * _MULTIPLIER & _MASK
        word = (word ^ word >> 24) * _MULTIPLIER & _MASK
        value = (value * _MULTIPLIER & _MASK) ^ word
    if whole != length:
        value = (value ^ int.from_bytes(data[whole:], "little")) * _MULTIPLIER & _MASK
    value = (value ^ value >> 13) * _MULTIPLIER & _MASK
    return value ^ value >> 15


def partition_for_key(key: bytes, partition_count: int) -> int:
    """Where the Java client's default partitioner sends `key`."""
    return (murmur2(key) & 0x7FFFFFFF) % partition_count

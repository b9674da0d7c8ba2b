"""Which partition of an internal topic a group lives in.

Every Kafka broker computes the same number, so this must never change.
"""

import codecs
from functools import lru_cache

UTF_16 = codecs.lookup("utf-16-be")
"""Found now, because to find it opens files, and later there may be no descriptor left for them."""


def java_string_hash(text: str) -> int:
    """What `String.hashCode()` answers in Java: over UTF-16 units, as a signed 32-bit number."""
    value = 0
    if text.isascii():  # nearly always, and in a third of the time
        for unit in text.encode():
            value = (31 * value + unit) & 0xFFFFFFFF
        return value - (1 << 32) if value & 0x80000000 else value
    units, _ = UTF_16.encode(text, "surrogatepass")
    for at in range(0, len(units), 2):
        value = (31 * value + (units[at] << 8 | units[at + 1])) & 0xFFFFFFFF
    return value - (1 << 32) if value & 0x80000000 else value


@lru_cache(maxsize=16_384)
def partition_for(key: str, partition_count: int) -> int:
    """The partition of `__consumer_offsets` or `__transaction_state` that coordinates `key`. Results are cached,
    because every request needs one.
    """
    value = java_string_hash(key)
    # The lowest 32-bit number has no positive counterpart in 32 bits. Kafka takes 0 for it.
    return 0 if value == -(1 << 31) else abs(value) % partition_count

# Hot path: one hash for every row with a key. Measured by tests/spark_sink/measure_encode.py.
"""Which partition a row goes to: as Kafka's default partitioner says, a whole column at a time.

A row that names its partition goes there. A row with a key goes where every Kafka client sends that key: the murmur2
hash of its bytes modulo the number of partitions. Rows without a key have no place of their own; Kafka's clients fill
a batch of one partition, then one of the next, and so do we: few large batches instead of many small ones.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_sink.encode import Longs, offsets
from spark_sink.errors import OncelogError

Words32 = npt.NDArray[np.uint32]

SEED = np.uint32(0x9747B28C)
M = np.uint32(0x5BD1E995)
R = np.uint32(24)
SIGN = np.uint32(0x7FFFFFFF)
WORD_BYTES = 4

# Rows without a key stay with a partition for about that many bytes before they turn to the next one.
STICKY_BYTES = 64 * 1024


class NoSuchPartition(OncelogError, ValueError):
    """A row names a partition that its topic does not have."""

    def __init__(self, row: int, wanted: int, has: int) -> None:
        super().__init__(row, wanted, has)
        self.row = row
        self.wanted = wanted
        self.has = has

    def __str__(self) -> str:
        return f"column 'partition' is {self.wanted}, and the topic has the partitions 0 to {self.has - 1}"


def murmur2(keys: pa.BinaryArray) -> Words32:
    """Kafka's hash of each key. What it says of a null means nothing.

    Words of four bytes are taken from all keys at once: the first of every key, then the second of those that have
    two, and so on.
    """
    edges = offsets(keys)
    begins, sizes = edges[:-1], np.diff(edges)
    hashes = SEED ^ sizes.astype(np.uint32)
    if not sizes.any():
        return _finished(hashes)
    if sizes.min() == sizes.max():
        return _finished(_mixed(keys.buffers()[2], begins, sizes, hashes))
    order = np.argsort(-sizes, kind="stable")  # those that have a further word stand in front
    hashes[order] = _mixed(keys.buffers()[2], begins[order], sizes[order], hashes[order])
    return _finished(hashes)


def _mixed(content: pa.Buffer, begins: Longs, sizes: Longs, hashes: Words32) -> Words32:
    """The hashes after all bytes of the keys went in. Long keys stand before short ones."""
    data = np.frombuffer(content, np.uint8)
    # Every four neighbouring bytes as a word, wherever they begin.
    words: Words32 = np.ndarray(max(len(data) - WORD_BYTES + 1, 0), "<u4", buffer=data, strides=(1,))
    counts = sizes // WORD_BYTES
    for number in range(int(counts[0])):
        some = int(np.searchsorted(-counts, -number))  # as many keys have that word
        word = words[begins[:some] + number * WORD_BYTES] * M
        word ^= word >> R
        hashes[:some] = (hashes[:some] * M) ^ (word * M)
    rests = sizes % WORD_BYTES
    at = begins + counts * WORD_BYTES
    for number in range(WORD_BYTES - 1):
        has = np.flatnonzero(rests > number)
        hashes[has] ^= data[at[has] + number].astype(np.uint32) << np.uint32(8 * number)
    hashes[np.flatnonzero(rests)] *= M
    return hashes


def _finished(hashes: Words32) -> Words32:
    hashes ^= hashes >> np.uint32(13)
    hashes *= M
    hashes ^= hashes >> np.uint32(15)
    return hashes


class Partitioner:
    """Chooses partitions for one writer. Different writers should start at different `turn`s."""

    def __init__(self, turn: int) -> None:
        self._turn = turn

    def choose(self, key: pa.BinaryArray | None, named: pa.Int32Array | None, counts: Longs, size_bytes: int) -> Longs:
        """The partition of each row. `counts`: how many its topic has; `size_bytes`: of all rows together."""
        if key is None or key.null_count == len(key):
            chosen = self._in_turn(counts, size_bytes)
        else:
            chosen = (murmur2(key) & SIGN).astype(np.int64) % counts
            if key.null_count:
                keyless = np.flatnonzero(key.is_null().to_numpy(zero_copy_only=False))
                chosen[keyless] = self._in_turn(counts[keyless], size_bytes * len(keyless) // len(key))
        if named is not None and named.null_count < len(named):
            rows = np.flatnonzero(named.is_valid().to_numpy(zero_copy_only=False))
            wanted = named.fill_null(0).to_numpy()[rows].astype(np.int64)
            wrong = np.flatnonzero((wanted < 0) | (wanted >= counts[rows]))
            if len(wrong):
                row = int(rows[wrong[0]])
                raise NoSuchPartition(row, int(wanted[wrong[0]]), int(counts[row]))
            chosen[rows] = wanted
        return chosen

    def _in_turn(self, counts: Longs, size_bytes: int) -> Longs:
        """Neighbouring rows together, in as many partitions as there are bytes for."""
        runs = max(1, min(size_bytes // STICKY_BYTES, int(counts.max(initial=1))))
        run = self._turn + np.arange(len(counts)) * runs // max(len(counts), 1)
        self._turn += runs
        return run % counts

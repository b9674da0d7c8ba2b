"""Fetch version 4 by hand: what is stored, without any client's or our own code between the bytes and the test."""

from __future__ import annotations

import socket
import struct
from typing import NamedTuple

BATCH_HEADER = struct.Struct(">qiibIhiqqqhii")
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


class StoredBatch(NamedTuple):
    """The facts of one stored batch that no client shows."""

    first_offset: int
    magic: int
    codec: str
    transactional: bool
    control: bool
    producer_id: int
    record_count: int


def stored_batches(port: int, topic: str, partition: int, *, offset: int = 0) -> list[StoredBatch]:
    """The batches of one partition from `offset` on (up to 64 MB of them)."""
    records = _fetch(port, topic, partition, offset)
    batches = []
    at = 0
    while at + BATCH_HEADER.size <= len(records):
        first, size, _, magic, _, attributes, _, _, _, producer, _, _, count = BATCH_HEADER.unpack_from(records, at)
        at += 12 + size
        if at > len(records):
            break
        codec = CODECS[attributes & 7]
        batches.append(StoredBatch(first, magic, codec, bool(attributes & 16), bool(attributes & 32), producer, count))
    return batches


def _fetch(port: int, topic: str, partition: int, offset: int) -> bytes:
    name = topic.encode()
    limit = 64 << 20
    body = struct.pack(">hhih", 1, 4, 1, -1)  # Fetch version 4, no client id
    body += struct.pack(">iiiib", -1, 100, 1, limit, 0)
    body += struct.pack(">ih", 1, len(name)) + name + struct.pack(">iiqi", 1, partition, offset, limit)
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(struct.pack(">i", len(body)) + body)
        (size,) = struct.unpack(">i", _exactly(connection, 4))
        answer = _exactly(connection, size)
    # correlation id, throttle time, one topic, its name, one partition
    at = 4 + 4 + 4 + 2 + len(name) + 4
    _, error, _, _, aborted = struct.unpack_from(">ihqqi", answer, at)
    assert error == 0, f"fetch answered error {error}"
    at += struct.calcsize(">ihqqi") + max(aborted, 0) * 16
    (size,) = struct.unpack_from(">i", answer, at)
    return answer[at + 4 : at + 4 + max(size, 0)]


def _exactly(connection: socket.socket, size: int) -> bytes:
    received = b""
    while len(received) < size:
        piece = connection.recv(size - len(received))
        assert piece, "the broker closed the connection"
        received += piece
    return received


def offered_versions(port: int) -> dict[int, tuple[int, int]]:
    """What ApiVersions version 0 answers: API key to lowest and highest version."""
    body = struct.pack(">hhih", 18, 0, 1, -1)
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(struct.pack(">i", len(body)) + body)
        (size,) = struct.unpack(">i", _exactly(connection, 4))
        answer = _exactly(connection, size)
    (count,) = struct.unpack_from(">i", answer, 6)
    rows = (struct.unpack_from(">hhh", answer, 10 + 6 * row) for row in range(count))
    return {key: (lowest, highest) for key, lowest, highest in rows}

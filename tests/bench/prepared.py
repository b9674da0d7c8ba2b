"""A load maker whose client costs next to nothing: batches are built once, sent and fetched over plain sockets.

Of each answer only the error code is read. Each partition has one thread and one connection.
"""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from log.batch import build_batch
from service.wire.base import Struct
from service.wire.codec import encode_request, write_request_header
from service.wire.messages import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    InitProducerIdRequest,
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from service.wire.messages.versions import ApiKey

PRODUCE_VERSION = 7
FETCH_VERSION = 11
INIT_VERSION = 0
INIT_ERROR_AT = 4 + 4
"""Behind correlation id and throttle time."""
IN_FLIGHT = 5
FETCH_BYTES = 1 << 20
BIG_BATCH_BYTES = 500_000


@dataclass(frozen=True)
class Load:
    """What was moved, and how long it took."""

    messages: int
    payload_bytes: int
    seconds: float

    @property
    def per_second(self) -> float:
        return self.messages / self.seconds

    @property
    def mb_per_second(self) -> float:
        return self.payload_bytes / self.seconds / 1e6


def messages_in_a_full_batch(size: int) -> int:
    return max(BIG_BATCH_BYTES // size, 1)


def a_batch(count: int, size: int) -> bytes:
    """`count` messages of `size` bytes that hardly compress, stamped now."""
    now_ms = int(time.time() * 1000)
    noise = os.urandom(size * count)
    return build_batch([(None, noise[n * size : (n + 1) * size], (), now_ms) for n in range(count)])


def produce(port: int, topic: str, *, partitions: int, batches: int, batch: bytes, count: int, size: int) -> Load:
    """Send one batch of `count` messages of `size` bytes `batches` times to each partition, acks=1."""

    def send_all(partition: int) -> None:
        data = [PartitionProduceData(index=partition, records=batch)]
        request = ProduceRequest(
            acks=1, timeout_ms=30_000, topic_data=[TopicProduceData(name=topic, partition_data=data)]
        )
        frame = _frame(ApiKey.PRODUCE, PRODUCE_VERSION, request)
        error_at = _error_at(topic)
        with Line(port) as line:
            waiting = 0
            for _ in range(batches):
                if waiting == IN_FLIGHT:
                    line.answered(error_at)
                    waiting -= 1
                line.send(frame)
                waiting += 1
            for _ in range(waiting):
                line.answered(error_at)

    seconds = _together(send_all, partitions)
    return Load(batches * partitions * count, batches * partitions * count * size, seconds)


def produce_each(port: int, topic: str, batches: Iterable[bytes]) -> None:
    """Send these batches to the topic's only partition, one after the other, acks=1."""
    error_at = _error_at(topic)
    with Line(port) as line:
        waiting = 0
        for batch in batches:
            data = [PartitionProduceData(index=0, records=batch)]
            request = ProduceRequest(
                acks=1, timeout_ms=30_000, topic_data=[TopicProduceData(name=topic, partition_data=data)]
            )
            if waiting == IN_FLIGHT:
                line.answered(error_at)
                waiting -= 1
            line.send(_frame(ApiKey.PRODUCE, PRODUCE_VERSION, request))
            waiting += 1
        for _ in range(waiting):
            line.answered(error_at)


def fetch(port: int, topic: str, *, partitions: int, batches: int, batch: bytes, count: int, size: int) -> Load:
    """Read what `produce` wrote, each partition from its beginning to its end."""

    def read_all(partition: int) -> None:
        rows = [FetchPartition(partition=partition, fetch_offset=0, partition_max_bytes=FETCH_BYTES)]
        request = FetchRequest(
            max_wait_ms=500, min_bytes=1, max_bytes=16 * FETCH_BYTES, topics=[FetchTopic(topic=topic, partitions=rows)]
        )
        frame = bytearray(_frame(ApiKey.FETCH, FETCH_VERSION, request))
        # partition, leader epoch, then the offset that changes from request to request
        offset_at = frame.rindex(struct.pack(">iiq", partition, -1, 0)) + 8
        error_at = 4 + 4 + 2 + 4 + 4 + 2 + len(topic) + 4 + 4
        size_at = error_at + 2 + 8 + 8 + 8 + 4 + 4
        done = 0
        with Line(port) as line:
            while done < batches:
                struct.pack_into(">q", frame, offset_at, done * count)
                line.send(frame)
                answer = line.answered(error_at)
                done += struct.unpack_from(">i", answer, size_at)[0] // len(batch)

    seconds = _together(read_all, partitions)
    return Load(batches * partitions * count, batches * partitions * count * size, seconds)


def first_write(port: int, topic: str, *, patience_seconds: float) -> float:
    """Try until one message is acknowledged by all replicas. Returns that moment, by the monotonic clock."""
    data = [PartitionProduceData(index=0, records=a_batch(1, 100))]
    request = ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[TopicProduceData(name=topic, partition_data=data)])
    send_until_accepted(port, request, topic=topic, patience_seconds=patience_seconds)
    return time.monotonic()


def first_decision(port: int, *, patience_seconds: float) -> float:
    """Try until the transaction coordinator takes a new id. Returns that moment, by the monotonic clock."""
    frame = _frame(ApiKey.INIT_PRODUCER_ID, INIT_VERSION, InitProducerIdRequest("after-the-others", 60_000))
    _send_until_accepted(port, frame, INIT_ERROR_AT, patience_seconds)
    return time.monotonic()


def send_until_accepted(port: int, request: ProduceRequest, *, topic: str, patience_seconds: float) -> None:
    """Send one request again and again until its first partition accepts it."""
    _send_until_accepted(port, _frame(ApiKey.PRODUCE, PRODUCE_VERSION, request), _error_at(topic), patience_seconds)


def _send_until_accepted(port: int, frame: bytes, error_at: int, patience_seconds: float) -> None:
    until = time.monotonic() + patience_seconds
    while True:
        try:
            with Line(port) as line:
                line.send(frame)
                line.answered(error_at)
                return
        except (OSError, Refused):
            if time.monotonic() > until:
                raise
            time.sleep(0.002)


def stream(port: int, requests: Iterator[ProduceRequest], *, topic: str) -> None:
    """Requests one after another on one connection, a few on their way at a time."""
    with Line(port) as line:
        waiting = 0
        for request in requests:
            if waiting == 50 * IN_FLIGHT:
                line.answered(_error_at(topic))
                waiting -= 1
            line.send(_frame(ApiKey.PRODUCE, PRODUCE_VERSION, request))
            waiting += 1
        for _ in range(waiting):
            line.answered(_error_at(topic))


def _error_at(topic: str) -> int:
    """Where an answer to Produce has the first error code: behind correlation id, count, name, count, index."""
    return 4 + 4 + 2 + len(topic) + 4 + 4


class Refused(RuntimeError):
    """The broker answered a write or a fetch with an error."""


class Line:
    """A socket with whole frames."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = bytearray(32 * FETCH_BYTES)
        self._view = memoryview(self._buffer)

    def __enter__(self) -> Line:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def send(self, frame: bytes | bytearray) -> None:
        self._socket.sendall(frame)

    def answered(self, error_at: int) -> memoryview:
        """The next answer without its length; its error code must be none."""
        self._fill(4)
        size = int.from_bytes(self._view[:4], "big")
        self._fill(size)
        (error,) = struct.unpack_from(">h", self._view, error_at)
        if error:
            raise Refused(f"error {error}")
        return self._view[:size]

    def _fill(self, size: int) -> None:
        got = 0
        while got < size:
            count = self._socket.recv_into(self._view[got:size])
            if not count:
                raise ConnectionResetError("the broker closed the connection")
            got += count


def _frame(key: ApiKey, version: int, request: Struct) -> bytes:
    frame = write_request_header(key, version, 1, "load") + encode_request(key, version, request)
    return struct.pack(">i", len(frame)) + frame


def _together(work: Callable[[int], None], count: int) -> float:
    """Run `work(0..count-1)` at once; how long all took. The first failure is raised."""
    failures: list[BaseException] = []

    def guarded(number: int) -> None:
        try:
            work(number)
        except (OSError, Refused) as failure:
            failures.append(failure)

    threads = [threading.Thread(target=guarded, args=(number,)) for number in range(count)]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return time.monotonic() - began

"""What a connection and a request cost: `python -m tests.service.net.measure`. The numbers: service/net/README.md.

A server process of its own; its processor time is divided by the requests it answered, so that the client and the other
tenants of the machine do not count.
"""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import struct
import subprocess
import sys
import time

import psutil
import uvloop

from service.net.server import PeerInfo, Reply, serve
from service.wire.codec import RequestHeader, decode_request, encode_request, encode_response, write_request_header
from service.wire.messages import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)

IDLE_CONNECTIONS = 5000


class ProduceDoor:
    """Reads a Produce and answers it, and does nothing else."""

    def connected(self, peer: PeerInfo) -> PeerInfo:
        return peer

    def disconnected(self, session: PeerInfo) -> None:
        pass

    def hurry(self, session: PeerInfo) -> None:
        pass

    def request(self, session: PeerInfo, header: RequestHeader, body: memoryview) -> Reply:
        request = decode_request(header.api_key, header.api_version, body)
        topics = [
            TopicProduceResponse(
                topic.name,
                topic.topic_id,
                [PartitionProduceResponse(each.index, 0, 5, -1, 0) for each in topic.partition_data],
            )
            for topic in request.topic_data
        ]
        return encode_response(header.api_key, header.api_version, ProduceResponse(topics))


class Bare(asyncio.BufferedProtocol):
    """The least that Python can do: read, and write as many bytes as the answer has."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.descriptor = transport.get_extra_info("socket").fileno()
        self.buffer = memoryview(bytearray(65536))
        self.received = 0

    def get_buffer(self, hint: int) -> memoryview:
        return self.buffer

    def buffer_updated(self, count: int) -> None:
        self.received += count
        answers, self.received = divmod(self.received, len(FRAME))
        if answers:
            os.write(self.descriptor, ANSWER * answers)


def produce_frame(size: int) -> bytes:
    data = TopicProduceData("orders", partition_data=[PartitionProduceData(2, bytes(size))])
    body = encode_request(0, 11, ProduceRequest(acks=1, timeout_ms=30_000, topic_data=[data]))
    request = write_request_header(0, 11, 7, "rdkafka") + body
    return struct.pack(">i", len(request)) + request


FRAME = produce_frame(500)
ANSWER = struct.pack(">i", 59) + bytes(59)


async def be_server(kind: str) -> None:
    loop = asyncio.get_running_loop()
    if kind == "bare":
        listener = await loop.create_server(Bare, "127.0.0.1", 0)
        print(listener.sockets[0].getsockname()[1], flush=True)
    else:
        print((await serve(loop, "127.0.0.1", 0, ProduceDoor())).port, flush=True)
    await loop.run_in_executor(None, sys.stdin.read)


class Subject:
    """A server process."""

    def __init__(self, kind: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", __spec__.name, kind], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())
        self.seen = psutil.Process(self.process.pid)

    def cpu_s(self) -> tuple[float, float]:
        times = self.seen.cpu_times()
        return times.user, times.system

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(10)


def exchange(port: int, requests: int, window: int) -> None:
    """Sends `requests` frames, `window` of them unanswered at a time."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(FRAME)
        answer_bytes = len(connection.recv(4096))
        for _ in range(requests // window):
            connection.sendall(FRAME * window)
            left = answer_bytes * window
            while left:
                left -= len(connection.recv(min(left, 1 << 16)))


def request_cost(kind: str, window: int) -> str:
    subject = Subject(kind)
    exchange(subject.port, 5000, window)
    best = (1e9, 1e9)
    requests = 60_000
    for _ in range(5):
        before = subject.cpu_s()
        exchange(subject.port, requests, window)
        after = subject.cpu_s()
        best = min(best, ((after[0] - before[0]) / requests * 1e6, (after[1] - before[1]) / requests * 1e6))
    subject.end()
    return f"{best[0]:.1f} user, {best[1]:.1f} system"


def idle_cost() -> str:
    needed = IDLE_CONNECTIONS + 100
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(needed, hard)), hard))
    subject = Subject("ours")
    exchange(subject.port, 100, 5)
    before = subject.seen.memory_info().rss
    connections = []
    for _ in range(IDLE_CONNECTIONS):
        connection = socket.create_connection(("127.0.0.1", subject.port))
        connection.sendall(FRAME)
        connection.recv(4096)
        connections.append(connection)
    time.sleep(3)
    grown = subject.seen.memory_info().rss - before
    cpu = sum(subject.cpu_s())
    time.sleep(5)
    cpu = (sum(subject.cpu_s()) - cpu) / 5
    for connection in connections:
        connection.close()
    subject.end()
    return f"{grown / 1e6:.0f} MB, {grown / IDLE_CONNECTIONS / 1000:.1f} KB each, {cpu * 100:.1f} % of a core"


def main() -> None:
    if len(sys.argv) > 1:
        uvloop.run(be_server(sys.argv[1]))
        return
    print("microseconds of processor time for one Produce of 500 bytes")
    for window in (1, 5, 50):
        print(f"{window} at a time: ours {request_cost('ours', window)}; bare {request_cost('bare', window)}")
    print(f"{IDLE_CONNECTIONS} idle connections: {idle_cost()}")


if __name__ == "__main__":
    main()

"""Connections to an HTTP server in this process, without a socket: what comes is cut wherever a test wants it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any, NamedTuple

from log.batch import read_records
from log.ids import TopicPartition
from service.broker.node import Broker
from service.web.app import WebServer
from service.web.lane import Lane

PATIENCE_S = 30.0
TURNS = 3
"""Of the loop, in which what came first is looked at before more comes."""
QUIET_TURNS = 8
_PASSING = re.compile(rb"(?i)\n(?:date|server|content-length):[^\r]*\r(?=\n)")
_NUMBERS = re.compile(rb'(?<="offset":)\d+|(?<="timestamp":)\d+')


class Pipe(asyncio.Transport):
    """The server's end of a connection."""

    def __init__(self, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self.protocol: asyncio.Protocol = protocol
        self.told = bytearray()
        self.waiting_bytes = 0
        """How much of the answers a test says is not taken yet."""
        self._is_closing = False
        self._is_reading = True
        self._unread: list[bytes] = []
        protocol.connection_made(self)

    # what a client does

    async def send(self, pieces: Iterable[bytes]) -> None:
        for piece in pieces:
            self._unread.append(piece)
            self._feed()
            for _ in range(TURNS):
                await asyncio.sleep(0)

    def end(self) -> None:
        """The client says no more."""
        if not self._is_closing and not self.protocol.eof_received():
            self.close()

    def _feed(self) -> None:
        while self._unread and self._is_reading and not self._is_closing:
            self.protocol.data_received(self._unread.pop(0))

    # what a server does

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        if not self._is_closing:
            self.told += data

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview[Any]]) -> None:
        self.write(b"".join(list_of_data))

    def get_write_buffer_size(self) -> int:
        return self.waiting_bytes

    def pause_reading(self) -> None:
        self._is_reading = False

    def resume_reading(self) -> None:
        if not self._is_reading:
            self._is_reading = True
            asyncio.get_running_loop().call_soon(self._feed)

    def is_reading(self) -> bool:
        return self._is_reading

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)

    abort = close

    def get_protocol(self) -> Any:
        """aiohttp by itself does not know when a request came, which counts only for readers of version 2."""
        return self.protocol if isinstance(self.protocol, Lane) else SimpleNamespace(came_s=0.0)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 1) if name == "peername" else default


class Told(NamedTuple):
    """What the server answered, without what is another each time, and what is in the log since."""

    answers: bytes
    is_closed: bool
    written: list[tuple[bytes | None, bytes | None]]


class Server:
    def __init__(self, web: WebServer, broker: Broker, topic: str) -> None:
        self.web = web
        self._broker = broker
        self._where = TopicPartition(topic, 0)

    @property
    def end_offset(self) -> int:
        partition = self._broker.partitions.get(self._where)
        assert partition is not None
        return partition.log.end_offset

    def _written(self, since: int) -> list[tuple[bytes | None, bytes | None]]:
        partition = self._broker.partitions.get(self._where)
        assert partition is not None
        return [
            (record.key, record.value)
            for header, batch in partition.log.scan(since, self.end_offset)
            if not header.is_control
            for record in read_records(batch, header)
        ]

    async def ask(self, pieces: Iterable[bytes], *, lane: bool = True, ends_after: int = -1) -> Told:
        """What comes of a connection on which the pieces arrive one after the other. `ends_after`: the client says that
        it has said all, when for so many turns of the loop nothing was told.
        """
        since = self.end_offset
        manager = self.web._runner.server
        assert manager is not None
        manager._kwargs["auto_decompress"] = False  # as the connections behind lanes: we unpack bodies ourselves
        pipe = Pipe(self.web._connected() if lane else manager())
        await pipe.send(pieces)
        turns = told_bytes = 0
        while turns < ends_after:
            turns = turns + 1 if len(pipe.told) == told_bytes else 0
            told_bytes = len(pipe.told)
            await asyncio.sleep(0)
        if ends_after >= 0:
            pipe.end()
        async with asyncio.timeout(PATIENCE_S):
            while await self._is_busy(pipe):
                pass
        told = Told(plain(bytes(pipe.told)), pipe.is_closing(), self._written(since))
        pipe.close()
        await asyncio.sleep(0)
        return told

    @property
    def is_busy(self) -> bool:
        return self._broker.requests.http.under_way > 0

    async def _is_busy(self, pipe: Pipe) -> bool:
        """Whether something may still be told."""
        before = len(pipe.told)
        for _ in range(QUIET_TURNS):
            await asyncio.sleep(0)
        return self.is_busy or len(pipe.told) > before


def plain(answers: bytes) -> bytes:
    """Without what is another each time; chunks are joined."""
    found = b""
    while answers:
        head, empty, answers = answers.partition(b"\r\n\r\n")
        if b"chunked" in head.lower():
            body = b""
            while True:
                size, _, answers = answers.partition(b"\r\n")
                if not size or not int(size, 16):
                    answers = answers[2:]
                    break
                body += answers[: int(size, 16)]
                answers = answers[int(size, 16) + 2 :]
            answers = body + answers if not size else answers
        else:
            length = re.search(rb"(?i)content-length: (\d+)", head)
            size_bytes = int(length[1]) if length else 0
            body, answers = answers[:size_bytes], answers[size_bytes:]
        found += head + empty + body
    return _NUMBERS.sub(b"0", _PASSING.sub(b"", found))

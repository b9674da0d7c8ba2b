"""One connection to a broker on which every frame is written and read by hand, good frames and bad ones.

What always holds: nothing is retried and nothing is checked here; a broker that closes or stays silent is an outcome.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from enum import Enum

from service.wire.base import Struct
from service.wire.codec import encode_request, write_request_header
from service.wire.messages.schemas import MESSAGES

CLIENT_ID = "conformance"
PATIENCE_SECONDS = 20.0
SILENCE_SECONDS = 1.0


class NoAnswer(Enum):
    """What can come instead of an answer."""

    CLOSED = "closed"
    SILENT = "silent"


def api_key_of(request: Struct) -> int:
    """The API that a request message belongs to."""
    key = MESSAGES[type(request).__name__][1]
    assert key is not None, f"{type(request).__name__} is no request"
    return key


class Connection:
    """Frames out, frames in."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_SECONDS)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._next_correlation_id = 1

    def send(self, request: Struct, version: int, *, claimed_version: int | None = None) -> int:
        """Send a request; its correlation id. `claimed_version` is what the header says when that is not the truth."""
        key = api_key_of(request)
        body = encode_request(key, version, request)
        correlation_id = self._next_correlation_id
        self._next_correlation_id += 1
        said = version if claimed_version is None else claimed_version
        self.send_frame(write_request_header(key, said, correlation_id, CLIENT_ID) + body)
        return correlation_id

    def send_frame(self, frame: bytes) -> None:
        self.send_bytes(struct.pack(">i", len(frame)) + frame)

    def send_bytes(self, data: bytes) -> None:
        with contextlib.suppress(ConnectionError):  # a broker that has closed shows in what `receive` finds
            self._socket.sendall(data)

    def receive(self, *, patience_seconds: float = PATIENCE_SECONDS) -> bytes | NoAnswer:
        """The next frame without its length."""
        self._socket.settimeout(patience_seconds)
        try:
            prefix = self._exactly(4)
            return self._exactly(struct.unpack(">i", prefix)[0])
        except TimeoutError:
            return NoAnswer.SILENT
        except ConnectionError:
            return NoAnswer.CLOSED

    def finish_writing(self) -> None:
        """Half-close: nothing more will come from here."""
        self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._socket.close()

    def _exactly(self, size: int) -> bytes:
        received = bytearray()
        while len(received) < size:
            piece = self._socket.recv(size - len(received))
            if not piece:
                raise ConnectionResetError
            received += piece
        return bytes(received)

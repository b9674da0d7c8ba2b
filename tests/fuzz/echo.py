"""A server process for hostile peers: `python -m tests.fuzz.echo FILE`. Prints its port; ends when its input does.

It reads every request as a broker would and answers with what an answer holds by default; a Fetch is answered with
FETCH_BYTES of FILE, as stored bytes are. It grants little time, so that a test need not wait.
"""

from __future__ import annotations

import asyncio
import os
import sys

import uvloop

from log.disk import FileSlice, RealDisk
from service.net import server as server_module
from service.net.server import Limits, PeerInfo, Reply, serve
from service.wire import messages
from service.wire.codec import API_NAMES, RequestHeader, decode_request, encode_response
from service.wire.messages import ApiVersion, ApiVersionsResponse, FetchResponse
from service.wire.messages.versions import VERSIONS, ApiKey

RECEIVE_TIMEOUT_S = 1.0
SEND_TIMEOUT_S = 1.5
IDLE_TIMEOUT_S = 2.0
FETCH_BYTES = 64 << 20


class EchoDoor:
    def __init__(self, stored: FileSlice) -> None:
        self.stored = stored

    def connected(self, peer: PeerInfo) -> PeerInfo:
        return peer

    def disconnected(self, session: PeerInfo) -> None:
        pass

    def hurry(self, session: PeerInfo) -> None:
        pass

    def request(self, session: PeerInfo, header: RequestHeader, body: memoryview) -> Reply:
        key, version = header.api_key, header.api_version
        decode_request(key, version, body)
        if key == ApiKey.API_VERSIONS:
            keys = [ApiVersion(api_key=each.value, min_version=a, max_version=b) for each, (a, b) in VERSIONS.items()]
            return encode_response(key, version, ApiVersionsResponse(api_keys=keys))
        if key == ApiKey.FETCH:
            stored = self.stored
            return [*encode_response(key, version, FetchResponse()), FileSlice(stored.file, 0, stored.size)]
        return encode_response(key, version, getattr(messages, f"{API_NAMES[key]}Response")())


async def main(path: str) -> None:
    server_module.LOOK_S = 0.2
    folder, name = os.path.split(path)
    stored = FileSlice(RealDisk(folder).open(name), 0, FETCH_BYTES)
    limits = Limits(receive_timeout_s=RECEIVE_TIMEOUT_S, send_timeout_s=SEND_TIMEOUT_S, idle_timeout_s=IDLE_TIMEOUT_S)
    loop = asyncio.get_running_loop()
    server = await serve(loop, "127.0.0.1", 0, EchoDoor(stored), limits)
    print(server.port, flush=True)
    await loop.run_in_executor(None, sys.stdin.read)
    await server.close(grace_s=0.1)


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1]))

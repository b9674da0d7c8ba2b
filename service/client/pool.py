"""Connections to brokers by their addresses, made when first needed: `ask(address, request)`.

What always holds: there is one connection for each address and lane, however many requests are made at once. A broker
answers a connection's requests in their order. So a request that it lets wait on purpose has a connection for itself,
and requests that may wait for something else than others do have a lane: they hold up no other. Nothing waits longer
than the timeout for a connection, and no longer for its answer, by the loop's clock. Requests that wait for the same
connection share the outcome. A connection that failed or was ended is dropped, and the next request makes a new one. A
failure is a `ClientFailure` that names the address.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
from collections.abc import Hashable
from typing import NamedTuple, TypeVar

from service.client.connection import Client, ClientError
from service.client.failures import ClientFailure, FailureKind
from service.wire.base import Request, Struct

R = TypeVar("R", bound=Struct)

IDLE_MAX = 16
"""How many connections on which nothing waits any more are kept for each address."""


class Address(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_addresses(text: str) -> list[Address]:
    """`host:port,host` to addresses; the port may be left out. Raises ValueError."""
    addresses = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        host, separator, port = part.rpartition(":")
        if not separator or (":" in host and not host.startswith("[")):
            host, port = part, "9092"
        if "/" in host or not 0 < int(port) < 2**16:
            raise ValueError(part)
        addresses.append(Address(host.strip("[]") or "localhost", int(port)))
    if not addresses:
        raise ValueError("no address")
    return addresses


class Pool:
    """See the module."""

    def __init__(self, *, client_id: str, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._client_id = client_id
        self._clients: dict[tuple[Address, Hashable], Client] = {}
        self._connecting: dict[tuple[Address, Hashable], asyncio.Future[ClientFailure | None]] = {}
        """Attempts under way. An attempt ends in its failure; or in None if there is a connection, or if the caller who
        made it was cancelled.
        """
        self._waited: dict[Address, list[Client]] = {}
        """Connections on which requests have waited and nothing is asked now."""

    @property
    def connected(self) -> list[Address]:
        """The addresses with a connection, oldest first."""
        return [address for address, _ in self._clients]

    async def close(self) -> None:
        clients = [*self._clients.values(), *(each for idle in self._waited.values() for each in idle)]
        self._clients, self._waited = {}, {}
        for client in clients:
            await client.close()

    async def ask(
        self,
        address: Address,
        request: Request[R],
        *,
        wait_s: float = 0.0,
        version: int | None = None,
        lane: Hashable = None,
    ) -> R:
        """The answer of the broker at `address`. `wait_s`: how long the broker may wait on purpose before it answers.
        `version`: None is the newest that both sides know. `lane`: requests with the same one share a connection.
        """
        if wait_s > 0:
            return await self._ask_apart(address, request, wait_s, version)
        client = await self.client(address, lane)
        try:
            return await self._answer(client, address, request, self.timeout_s, version)
        except ClientFailure:
            self._forget(address, lane, client)
            raise

    async def _ask_apart(self, address: Address, request: Request[R], wait_s: float, version: int | None) -> R:
        """Ask on a connection for this request alone. A request that is given up does not go on waiting there."""
        idle = self._waited.setdefault(address, [])
        idle[:] = [each for each in idle if each.is_open]  # the broker ends those that were idle for long
        client = idle.pop() if idle else await self._connect(address, self.timeout_s)
        is_answered = False
        try:
            answer = await self._answer(client, address, request, self.timeout_s + wait_s, version)
            is_answered = True
        finally:
            if is_answered and len(idle) < IDLE_MAX and self._waited.get(address) is idle:
                idle.append(client)
            else:
                client.abort()
        return answer

    async def _answer(
        self, client: Client, address: Address, request: Request[R], patience_s: float, version: int | None
    ) -> R:
        try:
            async with asyncio.timeout(patience_s):
                return await client.request(request, version)
        except TimeoutError:
            message = f"{address} did not answer within {self.timeout_s:g} s"
        except ClientError as error:
            message = f"{address}: {error}"
        except OSError as error:
            message = f"{address}: the connection broke: {reason(error)}"
        raise ClientFailure(message, FailureKind.UNREACHABLE, may_come_late=True)

    async def client(self, address: Address, lane: Hashable = None) -> Client:
        """The connection to `address`, made if there is none."""
        place = address, lane
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.timeout_s
        while True:
            known = self._clients.get(place)
            if known is not None and known.is_open:
                return known
            attempt = self._connecting.get(place)
            if attempt is None:
                return await self._attempt(place, deadline - loop.time())
            await asyncio.wait([attempt])
            if (failure := attempt.result()) is not None:
                raise ClientFailure(failure.message, failure.kind)

    async def _attempt(self, place: tuple[Address, Hashable], patience_s: float) -> Client:
        attempt = self._connecting[place] = asyncio.get_running_loop().create_future()
        failed: ClientFailure | None = None
        try:
            client = await self._connect(place[0], patience_s)
            for lost in [where for where, each in self._clients.items() if not each.is_open]:
                del self._clients[lost]  # of lanes that are not used any more
            self._clients[place] = client
        except ClientFailure as failure:
            failed = failure
            raise
        finally:
            del self._connecting[place]
            attempt.set_result(failed)
        return client

    async def _connect(self, address: Address, patience_s: float) -> Client:
        client = Client(address.host, address.port, self._client_id)
        try:
            async with asyncio.timeout(patience_s):
                await client.connect()
        except TimeoutError:
            message = f"no broker answered at {address} within {self.timeout_s:g} s"
        except (OSError, ClientError) as error:
            message = f"no broker at {address}: {reason(error)}"
        else:
            return client
        raise ClientFailure(message, FailureKind.UNREACHABLE)

    def _forget(self, address: Address, lane: Hashable, client: Client) -> None:
        """Drop the connection that failed, and no other: another caller may have made a new one meanwhile."""
        if self._clients.get((address, lane)) is client:
            del self._clients[address, lane]
        client.abort()  # to close it would wait until the broker has taken what was not sent yet


def reason(error: BaseException) -> str:
    """The text of an operating system's error, without its number and without asyncio's words."""
    if isinstance(error, socket.gaierror):
        return error.strerror or str(error)
    number = error.errno if isinstance(error, OSError) else None
    if number is None:
        # If a name has several addresses, asyncio puts the errors of all of them into one text.
        first = re.search(r"\[Errno (\d+)\]", str(error))
        number = int(first[1]) if first else None
    return os.strerror(number) if number is not None else str(error) or type(error).__name__

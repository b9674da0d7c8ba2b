"""Listens on a port and keeps its connections: how many there may be, which of them are too slow, and what memory they
share.

It runs on uvloop, on asyncio, and on a simulated loop alike. It starts no thread, and uses no clock but the loop's. An
error in one connection affects no other.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, deque
from dataclasses import dataclass
from mmap import mmap
from typing import TYPE_CHECKING, Any, Generic, TypeAlias

from service.net.connection import FRAMES_A_TURN, READ_BYTES, Connection
from service.net.door import CLOSE, NO_REPLY, OWN_BYTES, Door, Held, PeerInfo, Reply, SessionT, Signal
from service.net.pages import free, fresh
from service.net.room import Room

if TYPE_CHECKING:
    from ssl import SSLContext

    from log.disk import FileSlice
    from service.net.outbox import Outbox

__all__ = ["CLOSE", "NO_REPLY", "Door", "Held", "Limits", "PeerInfo", "Reply", "Room", "Server", "Signal", "serve"]

logger = logging.getLogger("oncelog.net")

# The longest request without records: ten times what a client with 15,000 partitions sends, and short enough to be read
# soon.
OTHER_REQUEST_BYTES = 8 * 1024 * 1024
# The size of a buffer for one long frame: a Produce of 1 MiB, the default limit of clients, with its header.
BUFFER_BYTES = 1024 * 1024 + READ_BYTES
assert BUFFER_BYTES < OWN_BYTES, "a frame that is promised its own bytes gets a buffer of its own"
# The most buffers that are lent at once (70 MB). Further long frames get buffers that grow with the bytes that have
# come.
MAX_BUFFERS = 64
# The time between two looks at all connections. A look at 5,000 connections takes 3 ms.
LOOK_S = 2.0
# How many connections the kernel completes while we are busy. The kernel limits this to net.core.somaxconn.
BACKLOG = 1024
# What members of groups send every few seconds or when the group changes, thousands of them at the same moment:
# JoinGroup, Heartbeat, LeaveGroup, SyncGroup, ConsumerGroupHeartbeat, ShareGroupHeartbeat and StreamsGroupHeartbeat.
OF_MEMBERS = frozenset({11, 12, 13, 14, 68, 76, 88})
# How many connections whose clients have gone end in one turn. One takes some 15 us, and thousands may go together.
ENDED_A_TURN = 100


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a server for its peers."""

    request_bytes: int = 100 * 1024 * 1024  # of a (Conditional)Produce; other requests have OTHER_REQUEST_BYTES at most
    idle_timeout_s: float = 600.0
    receive_timeout_s: float = 30.0  # for a whole request, plus a second for each LEAST_BYTES_A_SECOND
    send_timeout_s: float = 60.0  # while the peer reads nothing of what waits for it


Burst: TypeAlias = "list[tuple[Outbox, list[bytes | FileSlice]]]"


class LentBuffer(bytearray):
    """A buffer of BUFFER_BYTES, which is lent and given back."""


class Server(Generic[SessionT]):
    """The connections of one listening port, and what they share."""

    def __init__(self, loop: asyncio.AbstractEventLoop, door: Door[SessionT], limits: Limits, room: Room) -> None:
        self.loop = loop
        self.door = door
        self.limits = limits
        self.room = room
        self.least_limit = min(limits.request_bytes, OTHER_REQUEST_BYTES)
        self.scratch = memoryview(bytearray(2 * READ_BYTES))
        self.read_window = self.scratch[:READ_BYTES]
        self._answers: dict[asyncio.Future[Any], None] = {}  # that are being made
        self.port = 0
        self._listener: asyncio.AbstractServer | None = None
        self._connections: dict[Connection[SessionT], None] = {}
        self._closing = False
        self.frames_left = FRAMES_A_TURN  # how many requests may start before other tasks have their turn
        # Requests of these start after that: first those of the others, then those of members.
        self._next: dict[bool, OrderedDict[Connection[SessionT], None]] = {False: OrderedDict(), True: OrderedDict()}
        self._turn: asyncio.Handle | None = None
        self.burst: Burst | None = None
        """Answers that leave together; None when no turn is taken. To write to many sockets takes a third of the time
        when no other work is in between: a client that gets one answer at a time sleeps after each, and must be woken
        for the next.
        """
        self._ended: deque[Connection[SessionT]] = deque()  # clients send nothing more on these
        self._spare: list[LentBuffer] = []
        self._least_spare = 0  # the fewest that were unused since the last look
        self._lent = 0
        self._timer: asyncio.TimerHandle | None = None
        self._emptied: asyncio.Future[None] | None = None  # answered when the last connection has ended

    @property
    def connections(self) -> int:
        return len(self._connections)

    async def start(self, host: str | None, port: int, tls: SSLContext | None = None) -> None:
        if port == 0 and host is None:
            host = "0.0.0.0"  # otherwise IPv4 and IPv6 would each take a free port of their own
        listener = await self.loop.create_server(lambda: Connection(self), host, port, backlog=BACKLOG, ssl=tls)
        self._listener = listener
        self.port = int(listener.sockets[0].getsockname()[1])
        self._timer = self.loop.call_later(LOOK_S, self._look)

    async def close(self, grace_s: float = 1.0) -> None:
        """Stops listening, waits at most `grace_s` for answers in work, sends them, and ends all connections."""
        self._closing = True
        if self._listener is not None:
            self._listener.close()
        if self._timer is not None:
            self._timer.cancel()
        for connection in self._connections:
            connection.stop_taking()
        until_s = self.loop.time() + grace_s
        while self._answers and (left_s := until_s - self.loop.time()) > 0:  # some are made in tasks of what was found
            await asyncio.wait(list(self._answers), timeout=left_s)
        for connection in list(self._connections):
            connection.close()
        for newcomer in [newcomer for newcomer in self.room.waiting if newcomer.server is self]:
            newcomer.abort()
        if not self._connections:
            return
        self._emptied = self.loop.create_future()
        await asyncio.wait([self._emptied], timeout=grace_s)
        for connection in list(self._connections):
            connection.abort()
        await self._emptied

    # ------------------------------------------------------------ what connections ask

    def receive(self, connection: Connection[SessionT]) -> None:
        """A new connection has come."""
        if self._closing:
            connection.abort()
        else:
            self.room.receive(connection)

    def keep(self, connection: Connection[SessionT]) -> None:
        """The connection was admitted."""
        self._connections[connection] = None

    def forget(self, connection: Connection[SessionT]) -> bool:
        """The connection has ended. Returns whether it had been admitted."""
        if connection not in self._connections:
            self.room.waiting.pop(connection, None)
            return False
        del self._connections[connection]
        self.room.leave(connection.peer)
        if self._emptied is not None and not self._connections and not self._emptied.done():
            self._emptied.set_result(None)
        return True

    def hold(self, answer: asyncio.Future[Any]) -> None:
        """Keeps a task, or what an answer is made of, until `let_go`; the loop itself has a weak reference only."""
        self._answers[answer] = None

    def let_go(self, answer: asyncio.Future[Any]) -> None:
        del self._answers[answer]

    def wait_for_turn(self, connection: Connection[SessionT], api_key: int) -> None:
        """Other tasks have their turn before the next request of this connection, of this API, starts. Otherwise
        thousands of connections that ask at the same moment would be answered in one turn of the loop.
        """
        self._next[api_key in OF_MEMBERS][connection] = None
        if self._turn is None:
            self._turn = self.loop.call_soon(self._take_turns)

    def waits_for_turn(self, connection: Connection[SessionT]) -> bool:
        return any(connection in waiting for waiting in self._next.values())

    def _take_turns(self) -> None:
        """Members of groups have half of a turn, and all else the other half; what one does not need the other has.
        Thousands of members send heartbeats, or join, at the same moment: a client that wants something else does not
        wait behind them, nor its answer until theirs are made.
        """
        self._turn = None
        others, members = self._next.values()
        self.frames_left = FRAMES_A_TURN
        kept = min(len(members), FRAMES_A_TURN // 2)
        theirs: Burst = []
        self.burst = theirs
        try:
            self._start_some(others, kept)
            self.burst = []
            _send(theirs)
            self._start_some(members, 0)
            self._start_some(others, 0)
        finally:
            last, self.burst = self.burst, None
            _send(last)
        if (others or members) and self._turn is None:
            self._turn = self.loop.call_soon(self._take_turns)

    def _start_some(self, waiting: OrderedDict[Connection[SessionT], None], kept: int) -> None:
        """Let these start requests, until only `kept` more may start in this turn."""
        given, self.frames_left = self.frames_left, max(self.frames_left - kept, 0)
        kept = given - self.frames_left
        while waiting and self.frames_left:
            connection, _ = waiting.popitem(last=False)
            connection.proceed()
        self.frames_left += kept

    def end_soon(self, connection: Connection[SessionT]) -> None:
        """The client is gone: end the connection in a turn in which not too many others end."""
        if not self._ended:
            self.loop.call_soon(self._end_some)
        self._ended.append(connection)

    def _end_some(self) -> None:
        for _ in range(min(ENDED_A_TURN, len(self._ended))):
            self._ended.popleft().end()
        if self._ended:
            self.loop.call_soon(self._end_some)

    def take_buffer(self, wanted: int, have: int) -> memoryview:
        """A buffer of `wanted` bytes. If no long buffer is free, one that is twice as long as what has come."""
        if wanted <= BUFFER_BYTES and (self._spare or self._lent < MAX_BUFFERS):
            self._lent += 1
            if not self._spare:
                return memoryview(LentBuffer(BUFFER_BYTES))[:wanted]
            buffer = self._spare.pop()
            self._least_spare = min(self._least_spare, len(self._spare))
            return memoryview(buffer)[:wanted]
        return fresh(wanted, have)

    def may_hold(self, connection: Connection[SessionT], wanted: int, have: int) -> bool:
        """Whether there is room for the buffer that `take_buffer` would give."""
        return self.room.request_bytes.hold(connection, wanted if wanted <= BUFFER_BYTES else min(wanted, 2 * have))

    def give_back(self, buffer: memoryview) -> None:
        owner: Any = buffer.obj
        if isinstance(owner, LentBuffer):
            self._lent -= 1
            self._spare.append(owner)

    def free(self, buffer: mmap) -> None:
        """Nobody needs this buffer any more."""
        task = self.loop.create_task(free(buffer))
        self.hold(task)
        task.add_done_callback(self.let_go)

    # ------------------------------------------------------------ now and then

    def _look(self) -> None:
        """Ends connections that are overdue, and frees buffers that were not needed since the last look."""
        self._timer = self.loop.call_later(LOOK_S, self._look)
        now = self.loop.time()
        for connection in list(self._connections):
            reason = connection.overdue(now)
            if reason is not None:
                logger.info("the connection of %s is closed: %s", connection.peer, reason)
                connection.abort()
        self.room.fill()  # the limit may have been raised
        if self.room.refused:
            logger.warning(
                "%d connections were refused: too many are open (max.connections, max.connections.per.ip, ulimit -n)",
                self.room.refused,
            )
            self.room.refused = 0
        del self._spare[: self._least_spare]
        self._least_spare = len(self._spare)


def _send(burst: Burst) -> None:
    for outbox, answers in burst:
        outbox.send(answers)


async def serve(
    loop: asyncio.AbstractEventLoop,
    host: str | None,
    port: int,
    door: Door[SessionT],
    limits: Limits | None = None,
    room: Room | None = None,
    tls: SSLContext | None = None,
) -> Server[SessionT]:
    """A server that is listening; with `port` 0 it takes a free port. Raises OSError if it can't listen. The servers of
    one broker share a `room`. A server with `tls` takes TLS connections only.
    """
    server = Server(loop, door, limits or Limits(), room or Room())
    await server.start(host, port, tls)
    return server

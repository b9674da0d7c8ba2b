# Hot path: every request enters here; `python -m tests.bench --only throughput` answers for it.
"""One connection of a client: it reads bytes, gives whole requests to the door, and sends the answers in the order of
the requests.

What always holds:
- A frame with a wrong length is refused before any memory is allocated for it. A buffer grows only with the bytes that
  came.
- The next request starts when all earlier ones are answered and their answers have left. There is one exception: a
  Produce may start while only Produces are unanswered (at most MAX_PRODUCES), because a producer that pipelines must
  not wait for each fsync. While a request still needs its bytes (`Held`), no other request starts. Bytes of requests
  that may not start are kept here; when there are READ_AHEAD_BYTES of them, the socket is no longer read.
- The bytes of a frame that is longer than one read count against a limit of the broker (`request_bytes.py`), until the
  frame is handled and no longer `Held`. Where there is no room, the socket is not read.
- Whatever a peer does affects only its own connection.

Where the bytes are: all connections of a server read into the server's one scratch buffer, because a read and the
handling of what was read are one step of the loop. Bytes that are left over (part of a frame, or frames that may not
start) are copied, and put back in front of the next read. From LARGE_BYTES on they move to a buffer of their own, and
the rest of their frame is read into that buffer directly. A very long one grows where it is (`pages.py`). An idle
connection holds no buffer at all.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from mmap import mmap
from struct import Struct
from typing import TYPE_CHECKING, Any, Generic, cast

from service.net.door import CLOSE, NO_REPLY, Held, PeerInfo, Reply, SessionT, Signal
from service.net.outbox import Outbox
from service.net.pages import longer
from service.turns import MadeLater
from service.wire.codec import OF_RECORDS, MalformedRequest, RequestHeader, read_request_header, write_response_header
from service.wire.messages.versions import ApiKey

if TYPE_CHECKING:
    from log.disk import FileSlice
    from service.net.server import Server

logger = logging.getLogger("oncelog.net")

READ_BYTES = 64 * 1024  # one read, unless the rest of a longer frame is known to be coming
LARGE_BYTES = 32 * 1024  # left-over bytes of this size get a buffer of their own; fewer are cheaper to copy
READ_AHEAD_BYTES = LARGE_BYTES
MAX_PRODUCES = 256  # unanswered Produces of one connection; librdkafka sends 5 to 1,000,000, Java 5
FRAMES_A_TURN = 24  # requests, of all connections together, before other tasks have their turn
REPLY_BYTES_A_WRITE = 64 * 1024  # answers of one turn are joined up to this size, then written
LEAST_BYTES_A_SECOND = 16 * 1024  # the slowest rate of a request that takes longer than its timeout
LEAST_FRAME_BYTES = 8  # key, version, correlation id
TCPI_MIN_RTT_AT = 148  # the field's position in Linux's struct tcp_info
NO_ROUND_TRIP_US = 2**32 - 1

NO_HEADER = RequestHeader(-1, -1, -1, None)
PRODUCE = ApiKey.PRODUCE.value
unpack_size = Struct(">i").unpack_from
unpack_size_and_key = Struct(">ih").unpack_from


class Unanswered:
    """A request whose answer is not ready, or may not be sent yet because of earlier requests."""

    __slots__ = ("header", "reply")

    def __init__(self, header: RequestHeader, reply: Reply | None) -> None:
        self.header = header
        self.reply = reply


class Connection(asyncio.BufferedProtocol, Generic[SessionT]):
    """The asyncio protocol of one connection that a server has accepted."""

    __slots__ = (
        "_blocked",
        "_ended",
        "_frames",
        "_frames_seen",
        "_held",
        "_kept",
        "_large",
        "_large_end",
        "_outbox",
        "_progress_seen",
        "_reading_paused",
        "_receiving_since",
        "_sending_since",
        "_server",
        "_session",
        "_taking",
        "_transport",
        "_unanswered",
        "_used_at",
        "_waiting",
        "_wants_room",
        "peer",
    )

    def __init__(self, server: Server[SessionT]) -> None:
        self._server = server
        self._transport: asyncio.Transport
        self._outbox: Outbox
        self._session: SessionT
        self.peer = PeerInfo("", 0)
        self._taking = False  # whether requests may start
        self._waiting = False  # waits for room among the broker's connections
        self._kept = b""  # bytes left over, if they are few
        self._large: memoryview | None = None  # otherwise the buffer with them, up to _large_end
        self._large_end = 0
        self._blocked = False  # the bytes left over begin with a frame that may not start
        self._ended = False  # the client sends no more
        self._reading_paused = False
        self._held = False  # the last request still needs its bytes: nothing may start
        self._wants_room = False  # it holds some of the broker's request bytes, or waits for them
        self._unanswered: deque[Unanswered] = deque()
        self._frames = 0  # how many frames have come
        # What the last look at this connection saw, and since when nothing has changed.
        self._frames_seen = self._progress_seen = 0
        self._used_at = self._receiving_since = self._sending_since = server.loop.time()

    # ------------------------------------------------------------ what the transport says

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport = cast(asyncio.Transport, transport)  # uvloop's class does not derive from it
        address = transport.get_extra_info("peername") or ("", 0)
        self.peer = PeerInfo(str(address[0]), int(address[1]), round_trip_us(transport))
        self._outbox = Outbox(self._server.loop, transport, self.proceed)
        # The limits differ by one: TLS pauses at `high`, plain TCP above it. Either may call `pause_writing` before
        # this returns.
        transport.set_write_buffer_limits(high=1, low=0)
        self._server.receive(self)

    def wait(self) -> None:
        """There is no room for this connection yet: what it sends is kept as bytes."""
        self._waiting = self._blocked = True

    def let_in(self) -> None:
        """Requests are taken from now on."""
        self._server.keep(self)
        self._session = self._server.door.connected(self.peer)
        self._waiting = False
        self._taking = True
        self._used_at = self._receiving_since = self._sending_since = self._server.loop.time()
        self.proceed()

    def connection_lost(self, error: Exception | None) -> None:
        self._outbox.drop()
        self._kept = b""
        self._forget_large()
        if not self._held:  # a request in work keeps its bytes until it is done
            self._release()
        self._unanswered.clear()
        self._taking = False
        if self._server.forget(self):
            self._server.door.disconnected(self._session)

    def eof_received(self) -> bool:
        """A client that stops sending reads no answers: the connection ends. But its last Produces may be requests that
        want no answer, and only wait for their turn. They start before that. (A transport with TLS closes whatever
        this returns.)
        """
        self._ended = True
        if not self._has_produce_left():
            self._server.end_soon(self)
        return self._transport.get_extra_info("sslcontext") is None

    def end(self) -> None:
        if not self._transport.is_closing():
            self._transport.close()

    def pause_writing(self) -> None:
        self._outbox.pause()

    def resume_writing(self) -> None:
        self._outbox.resume()

    def get_buffer(self, hint: int) -> memoryview:
        large = self._large
        if large is not None:
            if self._large_end == len(large):
                large = self._grow()
            return large[self._large_end :]
        kept = self._kept
        if not kept:
            return self._server.read_window
        scratch = self._server.scratch
        have = len(kept)
        scratch[:have] = kept
        return scratch[have : have + READ_BYTES]

    def buffer_updated(self, count: int) -> None:
        large, server = self._large, self._server
        if large is None:
            end = len(self._kept) + count
            if server.frames_left or not 6 <= end < LARGE_BYTES or not self._taking:
                self._take(server.scratch, end)
                return
            # Nothing may start in this turn. When thousands of clients ask at once, the loop does no more than this for
            # most of them before others have their turn.
            self._kept = bytes(server.scratch[:end])
            self._blocked = True
            server.wait_for_turn(self, unpack_size_and_key(self._kept)[1])
            return
        self._large_end += count
        if self._large_end == len(large):  # the frame is whole, or its buffer must grow
            self._take(large, self._large_end)

    # ------------------------------------------------------------ frames

    def _take(self, buffer: memoryview, end: int) -> None:
        """Handles the frames in `buffer[:end]` and keeps what is left."""
        start = self._handle_frames(buffer, end) if self._taking else 0 if self._waiting else end
        self._keep(buffer, start, end)
        if self._ended and not self._has_produce_left():
            self._transport.close()

    def proceed(self) -> None:
        """Handles the bytes that were kept because their request could not start yet."""
        if not self._blocked or not self._taking or self._outbox.busy:
            if self._wants_room:
                self._server.room.request_bytes.step_back(self)
            return
        large = self._large
        if large is not None:
            self._take(large, self._large_end)
        else:
            kept = self._kept
            scratch, end = self._server.scratch, len(kept)
            scratch[:end] = kept
            self._take(scratch, end)

    def _handle_frames(self, buffer: memoryview, end: int) -> int:
        """Starts the requests in `buffer[:end]` as far as the order allows. Returns the position where it stopped."""
        server, session, unanswered, outbox = self._server, self._session, self._unanswered, self._outbox
        least_limit = server.least_limit
        self._blocked = False
        busy = outbox.busy
        out: list[bytes | FileSlice] = []
        gathered = start = 0
        while end - start >= 4:
            (size,) = unpack_size(buffer, start)
            if not LEAST_FRAME_BYTES <= size <= least_limit and not self._size_is_right(buffer, start, end, size):
                start = self._close_in_turn(end)
                break
            after = start + 4 + size
            if (unanswered or busy) and end - start >= 6 and not self._may_overtake(buffer, start):
                self._blocked = True
                if unanswered:
                    server.door.hurry(session)
                break
            if after > end:
                break
            if not server.frames_left:
                self._blocked = True
                server.wait_for_turn(self, unpack_size_and_key(buffer, start)[1])
                break
            server.frames_left -= 1
            self._frames += 1
            frame = buffer[start + 4 : after]
            start = after
            try:
                header = read_request_header(frame)
                reply = server.door.request(session, header, frame[header.body_at :])
            except MalformedRequest as wrong:
                logger.info("%s sent a malformed request: %s", self.peer, wrong)
                start = self._close_in_turn(end)
                break
            except Exception:
                logger.exception("a request of %s failed; its connection is closed", self.peer)
                start = self._close_in_turn(end)
                break
            if type(reply) is list:
                if unanswered:
                    unanswered.append(Unanswered(header, reply))
                    continue
                size = sum(map(len, reply))
                out.append(write_response_header(size, header))
                out += reply
                gathered += size
                if gathered > REPLY_BYTES_A_WRITE:
                    outbox.send(out)
                    busy = outbox.busy
                    out = []
                    gathered = 0
            elif reply is NO_REPLY:
                continue
            elif type(reply) is Held:
                self._held = True
                self._await(header, self._released(reply.first, buffer.obj))
            elif isinstance(reply, Signal):
                start = self._close_in_turn(end)
                break
            else:
                assert not isinstance(reply, (list, Held))
                self._await(header, reply)
        if out:
            if server.burst is None or unanswered:
                outbox.send(out)
            else:
                server.burst.append((outbox, out))
        if unanswered and unanswered[0].reply is not None:
            self._answer_in_order()
        return start

    def _size_is_right(self, buffer: memoryview, start: int, end: int, size: int) -> bool:
        """Whether a frame of an unusual size is allowed."""
        limits = self._server.limits
        if LEAST_FRAME_BYTES <= size <= limits.request_bytes:
            if end - start < 6:
                return True  # its kind is not known yet, and nothing is allocated for it yet
            if unpack_size_and_key(buffer, start)[1] in OF_RECORDS:
                return True
        logger.warning(
            "%s%s announced a request of %d bytes%s; its connection is closed",
            self.peer, _client_named(buffer[start + 4 : end]), size, _what_it_speaks(size) or self._what_is_taken(size),
        )  # fmt: skip
        return False

    def _what_is_taken(self, size: int) -> str:
        most = self._server.limits.request_bytes
        return f", more than socket.request.max.bytes = {most}" if size > most else ""

    def _close_in_turn(self, end: int) -> int:
        """Starts no further request, and closes the connection when all earlier ones are answered. Returns `end`,
        because no byte is left to handle.
        """
        self._taking = False
        self._unanswered.append(Unanswered(NO_HEADER, CLOSE))
        return end

    def _may_overtake(self, buffer: memoryview, start: int) -> bool:
        """Whether the request at `start` may start before all earlier ones are answered: a Produce may, if only
        Produces are unanswered.
        """
        unanswered = self._unanswered
        return (
            not self._held
            and not self._outbox.busy
            and len(unanswered) < MAX_PRODUCES
            and unanswered[0].header.api_key == PRODUCE
            and unpack_size_and_key(buffer, start)[1] == PRODUCE
        )

    def _has_produce_left(self) -> bool:
        """Whether the bytes left over begin with a whole Produce that waits for nothing but its turn, or Produces."""
        kept = self._kept if self._large is None else self._large[: self._large_end]
        if not self._taking or not self._blocked or len(kept) < 6:
            return False
        size, api_key = unpack_size_and_key(kept, 0)
        behind_produces = not self._unanswered or self._unanswered[0].header.api_key == PRODUCE
        return api_key == PRODUCE and 4 + size <= len(kept) and behind_produces

    # ------------------------------------------------------------ what is left over

    def _keep(self, buffer: memoryview, start: int, end: int) -> None:
        have = end - start
        if self._wants_room and start and not self._held:
            self._release()  # the frame that these bytes were for is handled
        if have >= LARGE_BYTES:
            self._keep_large(buffer, start, end)
        else:
            self._kept = bytes(buffer[start:end]) if have else b""
            if self._large is not None:
                self._forget_large()
        if self._blocked and have >= READ_AHEAD_BYTES:
            if not self._reading_paused:
                self._reading_paused = True
                self._transport.pause_reading()
        elif self._reading_paused:
            self._reading_paused = False
            if not self._transport.is_closing():
                self._transport.resume_reading()

    def _keep_large(self, buffer: memoryview, start: int, end: int) -> None:
        """Moves what is left to a buffer that is as long as its frame. If no long buffer is free, the buffer is only
        twice as long as what has come.
        """
        have = wanted = end - start
        here = start == 0 and buffer is self._large
        if not self._blocked:
            wanted = 4 + unpack_size(buffer, start)[0]
            if here and len(buffer) == wanted:
                return
            self._wants_room = True
            self._blocked = not self._server.may_hold(self, wanted, have)
        if self._blocked:
            if here:
                return
            wanted = have
        self._take_longer(buffer, start, end, wanted)

    def _take_longer(self, buffer: memoryview, start: int, end: int, wanted: int) -> memoryview:
        """Move the bytes to a buffer that is longer, unless theirs can be."""
        have = end - start
        large = longer(buffer, wanted, have) if start == 0 else None
        if large is None:
            large = self._server.take_buffer(wanted, have)
            large[:have] = buffer[start:end]
            self._forget_large()
        self._kept = b""
        self._large = large
        self._large_end = have
        return large

    def _grow(self) -> memoryview:
        """Gives a longer buffer to a frame that has filled its buffer."""
        assert self._large is not None
        have = self._large_end
        return self._take_longer(self._large, 0, have, max(have + READ_BYTES, 4 + unpack_size(self._large, 0)[0]))

    def _forget_large(self) -> None:
        if self._large is not None:
            self._server.give_back(self._large)
            self._large = None
            self._large_end = 0

    def _release(self) -> None:
        if self._wants_room:
            self._wants_room = False
            self._server.room.request_bytes.release(self)

    # ------------------------------------------------------------ answers

    def _await(self, header: RequestHeader, reply: Awaitable[Reply]) -> None:
        waiting = Unanswered(header, None)
        self._unanswered.append(waiting)
        if isinstance(reply, MadeLater):
            self._server.hold(reply.found)
            reply.found.add_done_callback(partial(self._found, waiting, reply.make))
        else:
            self._answer_in_task(waiting, reply)

    def _answer_in_task(self, waiting: Unanswered, reply: Awaitable[Reply]) -> None:
        task = self._server.loop.create_task(self._answer_later(waiting, reply))
        self._server.hold(task)
        task.add_done_callback(self._server.let_go)

    async def _released(self, first: Awaitable[Reply | Awaitable[Reply]], owner: object) -> Reply:
        """The answer to a request that needs its bytes, which are `owner`'s, until `first` is done."""
        try:
            reply = await first
        finally:
            self._held = False
            if isinstance(owner, mmap):
                self._server.free(owner)
            self._release()  # no later long frame has begun to be read
            self.proceed()
        return reply if isinstance(reply, (list, Signal)) else await reply

    def go_on(self) -> None:
        """Read on, a little later: there may be room for the rest of a long frame."""
        self._server.loop.call_soon(self.proceed)

    async def _answer_later(self, waiting: Unanswered, reply: Awaitable[Reply]) -> None:
        try:
            waiting.reply = await reply
        except Exception as error:  # noqa: BLE001 - logged with its trace; only this connection ends
            waiting.reply = self._failed(error)
        self._answer_from(waiting)

    def _found(
        self,
        waiting: Unanswered,
        make: Callable[[asyncio.Future[Any]], Reply | Awaitable[Reply]],
        found: asyncio.Future[Any],
    ) -> None:
        """The same for an answer that needs no task, unless it takes one to make it."""
        self._server.let_go(found)
        try:
            reply = make(found)
        except asyncio.CancelledError:
            reply = CLOSE
        except Exception as error:  # noqa: BLE001 - logged with its trace; only this connection ends
            reply = self._failed(error)
        if isinstance(reply, (list, Signal)):
            waiting.reply = reply
            self._answer_from(waiting)
        else:
            self._answer_in_task(waiting, reply)

    def _failed(self, error: BaseException) -> Reply:
        logger.error("a request of %s failed; its connection is closed", self.peer, exc_info=error)
        return CLOSE

    def _answer_from(self, waiting: Unanswered) -> None:
        if self._unanswered and self._unanswered[0] is waiting:
            self._answer_in_order()
            self.proceed()

    def _answer_in_order(self) -> None:
        """Sends the answers whose turn has come."""
        unanswered = self._unanswered
        out: list[bytes | FileSlice] = []
        while unanswered:
            reply = unanswered[0].reply
            if reply is None:
                break
            header = unanswered.popleft().header
            if type(reply) is list:
                out.append(write_response_header(sum(map(len, reply)), header))
                out += reply
            elif reply is CLOSE:
                self._outbox.send(out)
                self.close()
                return
        if out:
            self._outbox.send(out)

    # ------------------------------------------------------------ the end

    def overdue(self, now: float) -> str | None:
        """Why this connection must be ended; None if it need not be. This is checked every few seconds, so that
        requests need not read the clock.
        """
        limits = self._server.limits
        received = self._large_end if self._large is not None else len(self._kept)
        held = self._server.room.request_bytes
        is_served = self._frames != self._frames_seen or self._unanswered or self._outbox.busy
        if is_served or self in held.waiting or self._server.waits_for_turn(self):
            self._frames_seen = self._frames
            self._used_at = self._receiving_since = now
        elif not received:
            self._receiving_since = now
        if not self._outbox.busy or self._outbox.progress != self._progress_seen:
            self._progress_seen = self._outbox.progress
            self._sending_since = now
        if now - self._sending_since > limits.send_timeout_s:
            return "it does not read its answers"
        # While other connections wait for room, none has longer than the timeout.
        more_s = 0.0 if held.waiting else received / LEAST_BYTES_A_SECOND
        if now - self._receiving_since > limits.receive_timeout_s + more_s:
            return "it does not finish its request"
        if now - self._used_at > limits.idle_timeout_s:
            return "it was idle"
        return None

    @property
    def server(self) -> Server[SessionT]:
        return self._server

    def stop_taking(self) -> None:
        """No request starts any more; those that have started are answered."""
        self._taking = False

    def close(self) -> None:
        """Takes no more requests, and ends the connection when all finished answers are sent."""
        self._taking = False
        self._unanswered.clear()
        self._outbox.finish()

    def abort(self) -> None:
        """Ends the connection now."""
        self._transport.abort()


def _client_named(frame: memoryview) -> str:
    """The client's id for a log line, if the request's beginning has it."""
    try:
        client_id = read_request_header(frame).client_id
    except MalformedRequest:
        return ""
    return f", client {client_id!r}," if client_id else ""


def _what_it_speaks(size: int) -> str:
    """What another protocol the client seems to speak. The first four bytes are then no size, but tell the protocol."""
    first = size.to_bytes(4, "big", signed=True)
    if first[:2] == b"\x16\x03":
        return " (as a TLS client does; this listener speaks plain text)"
    if first in (b"GET ", b"POST", b"PUT ", b"HEAD", b"OPTI", b"PRI "):
        return " (as an HTTP client does)"
    return ""


def round_trip_us(transport: asyncio.Transport) -> int | None:
    """The shortest round trip that the kernel has measured on this connection. On a new connection it is that of the
    handshake.
    """
    real = transport.get_extra_info("socket")
    if sys.platform != "linux" or not hasattr(real, "getsockopt"):
        return None
    facts: bytes = real.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCPI_MIN_RTT_AT + 4)
    microseconds = int.from_bytes(facts[TCPI_MIN_RTT_AT:], sys.byteorder)
    return microseconds if 0 < microseconds < NO_ROUND_TRIP_US else None

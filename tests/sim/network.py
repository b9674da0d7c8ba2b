"""A network of streams, as asyncio's transports show it: delayed, split, joined, blocked, reset; never corrupted, never
out of order within a stream.

What always holds:
 - Each direction of a connection is an ordered stream. What was sent before an end or a reset arrives before it.
 - Bytes that don't fit into the window stay in the sender's transport: they die with its process, and `pause_writing`
   is called as they pile up.
 - Between a blocked pair of hosts nothing arrives; what was sent meanwhile arrives, in order, after healing.
 - A killed process's peers are told by its kernel. After a power cut nobody is told: peers wait, until they send
   something to a machine that is up again.
 - Kernels go on while a process is paused: connections are accepted and bytes received for it.

`SimLoop.create_server` and `create_connection` call it, and what plants faults.
"""

from __future__ import annotations

import asyncio
import errno
from asyncio import transports
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.sim.loop import SimLoop
    from tests.sim.world import Host, World

WINDOW_BYTES = 256 * 1024  # what two kernels hold of one direction: send buffer and receive window together
HIGH_WATER_BYTES = 64 * 1024  # asyncio's own default

END = None  # in a stream: the writer has closed its side
Segment = bytes | ConnectionError | None


class SimServer(asyncio.AbstractServer):
    """A listening port of one process."""

    def __init__(self, loop: SimLoop, factory: Callable[[], asyncio.BaseProtocol], port: int) -> None:
        self.loop = loop
        self.factory = factory
        self.port = port
        self._serving = False

    @property
    def sockets(self) -> tuple[SimSocket, ...]:
        return (
            (SimSocket((self.loop.world.network.address_of(self.loop.host.name), self.port)),) if self._serving else ()
        )

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self.loop

    def is_serving(self) -> bool:
        return self._serving

    async def start_serving(self) -> None:
        if not self._serving:
            self.loop.world.network.listen(self)
            self._serving = True

    async def serve_forever(self) -> None:
        await self.start_serving()
        await self.loop.create_future()

    def close(self) -> None:
        if self._serving:
            self._serving = False
            self.loop.world.network.unlisten(self)

    async def wait_closed(self) -> None:
        return

    async def __aenter__(self) -> SimServer:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()


class SimSocket:
    """What remains of a socket here: its name. It has no descriptor."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address

    def getsockname(self) -> tuple[str, int]:
        return self._address


class SimTransport(transports.Transport):
    """One end of a connection."""

    def __init__(self, network: Network, loop: SimLoop, own: tuple[str, int], other: tuple[str, int]) -> None:
        super().__init__({"sockname": own, "peername": other})
        self.network = network
        self.loop = loop
        self.host = loop.host
        self.key = network.world.identity()
        self.peer: SimTransport
        self.gone = False  # connection_lost was called or never will be: nothing arrives here any more
        self._protocol: asyncio.BaseProtocol | None = None
        self._made = False
        self._closing = False
        self._end_wanted = False
        self._out: deque[bytes] = deque()
        self._out_bytes = 0
        self._in_flight = 0  # sent, and not yet taken by the peer's protocol
        self._writing_paused = False
        self._high, self._low = HIGH_WATER_BYTES, HIGH_WATER_BYTES // 4
        self._in: deque[Segment] = deque()
        self._reading_paused = False
        self._read_scheduled = False
        self._lost_by: Exception | None = None
        self.last_arrival = 0.0

    # -- asyncio.Transport

    def attach(self, protocol: asyncio.BaseProtocol, made: asyncio.Future[None] | None = None) -> None:
        self._protocol = protocol
        self.loop.call_soon(self._announce)
        if made is not None:
            self.loop.call_soon(_answer, made)

    def _announce(self) -> None:
        assert self._protocol is not None
        self._made = True
        self._protocol.connection_made(self)
        if self.gone:  # reset before the protocol came
            self.loop.call_soon(self._protocol.connection_lost, self._lost_by)
        self._wake_reader()

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert self._protocol is not None
        return self._protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def is_closing(self) -> bool:
        return self._closing

    def is_reading(self) -> bool:
        return not self._reading_paused and not self._closing

    def pause_reading(self) -> None:
        self._reading_paused = True

    def resume_reading(self) -> None:
        self._reading_paused = False
        self._wake_reader()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = HIGH_WATER_BYTES if high is None else high
        self._low = self._high // 4 if low is None else low
        self._check_writing()

    def get_write_buffer_size(self) -> int:
        return self._out_bytes

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def can_write_eof(self) -> bool:
        return True

    def write(self, data: Any) -> None:
        if self._end_wanted and not self._closing:
            raise RuntimeError("Cannot call write() after write_eof()")
        if self._closing or not len(data):
            return
        copy = bytes(data)
        self._out.append(copy)
        self._out_bytes += len(copy)
        self._pump()
        self._check_writing()

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def write_eof(self) -> None:
        if not self._end_wanted and not self._closing:
            self._end_wanted = True
            self._pump()

    def close(self) -> None:
        """Send what is buffered, then end the connection."""
        if self._closing:
            return
        self._closing = True
        if self._out:
            self._end_wanted = True
        else:
            self._finish()

    def abort(self) -> None:
        """End the connection now; what is buffered is dropped and the peer gets a reset."""
        if self.gone:
            return
        self._closing = True
        self._out.clear()
        self._out_bytes = 0
        self.network.reset(self)
        self.loop.call_soon(self.lose, None)

    # -- inside

    def _finish(self) -> None:
        if self._in and not self.gone:  # closing with unread bytes resets the connection, as Linux does
            self.network.reset(self)
        else:
            self.network.transmit(self, END)
        self.loop.call_soon(self.lose, None)

    def _pump(self) -> None:
        """Hand the kernel what fits into the window."""
        while self._out and self._in_flight < WINDOW_BYTES:
            data = self._out.popleft()
            room = WINDOW_BYTES - self._in_flight
            if len(data) > room:
                self._out.appendleft(data[room:])
                data = data[:room]
            self._out_bytes -= len(data)
            self._in_flight += len(data)
            self.network.transmit(self, data)
        if self._end_wanted and not self._out:
            self._end_wanted = False
            if self._closing:
                self._finish()
            else:
                self.network.transmit(self, END)

    def _check_writing(self) -> None:
        protocol = self._protocol
        if protocol is None or self.gone or self._closing:
            return
        if not self._writing_paused and self._out_bytes > self._high:
            self._writing_paused = True
            protocol.pause_writing()
        elif self._writing_paused and self._out_bytes <= self._low:
            self._writing_paused = False
            protocol.resume_writing()

    def acknowledged(self, size: int) -> None:
        """The peer's protocol has taken `size` bytes; called on this end's loop."""
        self._in_flight -= size
        if self.gone:
            return
        if self._out or self._end_wanted:
            self._pump()
        self._check_writing()

    def lose(self, error: Exception | None) -> None:
        if self.gone:
            return
        self.gone = self._closing = True
        self._lost_by = error
        self.network.forget(self)
        if self._made:
            assert self._protocol is not None
            self._protocol.connection_lost(error)

    def arrive(self, segment: Segment) -> None:
        """The kernel got something for this end."""
        if self.gone or self._closing:
            if isinstance(segment, bytes):
                self.network.reset(self)  # nobody is there to take it
            return
        before = self._in[-1] if self._in else END
        if isinstance(segment, bytes) and isinstance(before, bytes) and self.network.joins():
            self._in[-1] = before + segment
        else:
            self._in.append(segment)
        self._wake_reader()

    def _wake_reader(self) -> None:
        if self._read_scheduled or self.gone or not self._made or not self._in:
            return
        if self._reading_paused and not isinstance(self._in[-1], ConnectionError):
            return
        self._read_scheduled = True
        self.loop.call_soon(self._readable)

    def _readable(self) -> None:
        self._read_scheduled = False
        if self.gone or self._closing or not self._in:
            return
        if self._reading_paused:
            if isinstance(self._in[-1], ConnectionError):  # a selector reports a reset to writers too
                self.lose(self._in[-1])
            return
        segment = self._in.popleft()
        if isinstance(segment, ConnectionError):
            self.lose(segment)
        elif segment is END:
            if not self._protocol.eof_received():  # type: ignore[union-attr]
                self.close()
        else:
            peer = self.peer
            peer.loop.call_soon(peer.acknowledged, len(segment))
            self._deliver(segment)
        self._wake_reader()

    def _deliver(self, data: bytes) -> None:
        protocol = self._protocol
        if isinstance(protocol, asyncio.BufferedProtocol):
            rest = memoryview(data)
            while rest and not self._closing:
                buffer = memoryview(protocol.get_buffer(len(rest)))
                size = min(len(buffer), len(rest))
                assert size, "get_buffer() returned an empty buffer"
                buffer[:size] = rest[:size]
                protocol.buffer_updated(size)
                rest = rest[size:]
                if rest and self._reading_paused:
                    self._in.appendleft(bytes(rest))
                    self.peer._in_flight += len(rest)
                    return
        else:
            protocol.data_received(data)  # type: ignore[union-attr]


def _answer(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


class Attempt:
    """A connection being asked for."""

    def __init__(self, outcome: asyncio.Future[SimTransport]) -> None:
        self.outcome = outcome
        self.abandoned = False
        self.made: SimTransport | None = None

    def abandon(self) -> None:
        self.abandoned = True
        if self.made is not None:
            self.made.network.reset(self.made)
            self.made.gone = True

    def fail(self, error: OSError) -> None:
        if not self.outcome.done():
            self.outcome.set_exception(error)


class Network:
    def __init__(self, world: World) -> None:
        self.world = world
        self.chance = world.stream("network")
        self.bytes_sent = 0
        self.segments_sent = 0
        self.slowness: dict[str, float] = {}  # host -> seconds added to everything it sends or gets
        self._listeners: dict[tuple[str, int], SimServer] = {}
        self._open: dict[int, SimTransport] = {}  # in order of their making
        self._blocked: dict[
            tuple[str, str], list[tuple[SimTransport | None, Callable[..., object], tuple[Any, ...]]]
        ] = {}
        self._addresses: dict[str, str] = {}
        self._names: dict[str, str] = {}
        self._last_port = 40_000
        self._stale: dict[str, list[SimTransport]] = {}  # host that lost power -> peers that have not heard of it

    # -- names

    def address_of(self, name: str | None, near: Host | None = None) -> str:
        """The address of a host by name or address; what every machine calls itself means `near`."""
        if name in (None, "", "localhost", "127.0.0.1", "0.0.0.0", "::") and near is not None:
            name = near.name
        assert name is not None
        if name in self._names:
            return name
        if name not in self._addresses:
            address = f"10.0.0.{len(self._addresses) + 1}"
            self._addresses[name] = address
            self._names[address] = name
        return self._addresses[name]

    def free_port(self) -> int:
        self._last_port += 1
        return self._last_port

    def listen(self, server: SimServer) -> None:
        place = (server.loop.host.name, server.port)
        if place in self._listeners:
            raise OSError(
                errno.EADDRINUSE, f"error while attempting to bind on address {place!r}: address already in use"
            )
        self._listeners[place] = server

    def unlisten(self, server: SimServer) -> None:
        self._listeners.pop((server.loop.host.name, server.port), None)

    # -- streams

    def joins(self) -> bool:
        """Whether two pieces that wait for a reader become one."""
        return self.chance.random() < self.world.timing.join_chance

    def _delay(self, source: str, target: str) -> float:
        timing, chance = self.world.timing, self.chance.random
        delay = timing.latency_least + chance() * timing.latency_spread
        if chance() < timing.spike_chance:
            delay += chance() * timing.latency_spike
        slowness = self.slowness
        return delay + slowness.get(source, 0.0) + slowness.get(target, 0.0) if slowness else delay

    def _carry(
        self,
        source: str,
        target: str,
        when: float,
        sender: SimTransport | None,
        action: Callable[..., object],
        *arguments: Any,
    ) -> None:
        """Let `action` happen at the target at `when`; while the pair is blocked it is held back."""
        if self._blocked and (held := self._blocked.get((source, target))) is not None:
            held.append((sender, action, arguments))
        else:
            self.world.at(when, action, *arguments)

    def connect(self, loop: SimLoop, host: str, port: int) -> Attempt:
        attempt = Attempt(loop.create_future())
        source = loop.host.name
        target = self._names[self.address_of(host, loop.host)]
        there = self._delay(source, target)
        self._carry(source, target, self.world.now + there, None, self._asked, attempt, loop, target, port)
        timeout = TimeoutError(errno.ETIMEDOUT, f"no answer from {host}:{port}")
        self.world.after(self.world.timing.connect_timeout, attempt.fail, timeout)
        return attempt

    def _asked(self, attempt: Attempt, loop: SimLoop, target: str, port: int) -> None:
        """The target's kernel is asked for a connection."""
        source, world = loop.host.name, self.world
        machine = world.hosts.get(target)
        if machine is None or not machine.powered or attempt.abandoned or loop.dead:
            return
        back = world.now + self._delay(target, source)
        server = self._listeners.get((target, port))
        if server is None:
            refused = ConnectionRefusedError(errno.ECONNREFUSED, f"{target}:{port} refused")
            self._carry(target, source, back, None, attempt.fail, refused)
            return
        near = (self.address_of(source), self.free_port())
        far = (self.address_of(target), port)
        client, accepted = SimTransport(self, loop, near, far), SimTransport(self, server.loop, far, near)
        client.peer, accepted.peer = accepted, client
        for transport in (client, accepted):
            self._open[transport.key] = transport
        attempt.made = client
        server.loop.call_soon(self._accept, server, accepted)
        self._carry(target, source, back, None, self._answered, attempt, client)

    @staticmethod
    def _accept(server: SimServer, accepted: SimTransport) -> None:
        accepted.attach(server.factory())

    def _answered(self, attempt: Attempt, client: SimTransport) -> None:
        if attempt.abandoned or attempt.outcome.done() or client.loop.dead:
            self.reset(client)
        else:
            attempt.outcome.set_result(client)

    def transmit(self, sender: SimTransport, segment: Segment) -> None:
        """Put bytes, the end or a reset on the way to the sender's peer."""
        receiver, world = sender.peer, self.world
        source, target = sender.host.name, receiver.host.name
        self.segments_sent += 1
        when = max(sender.last_arrival, world.now + self._delay(source, target))
        if isinstance(segment, bytes):
            self.bytes_sent += len(segment)
            world.mix(segment)
            if len(segment) > 1 and self.chance.random() < world.timing.split_chance:
                cut = 1 + int(self.chance.random() * (len(segment) - 1))
                self._carry(source, target, when, sender, self._reach, receiver, segment[:cut])
                segment = segment[cut:]
                when += self.chance.random() * world.timing.latency_spread
        sender.last_arrival = when
        self._carry(source, target, when, sender, self._reach, receiver, segment)

    def _reach(self, receiver: SimTransport, segment: Segment) -> None:
        """A segment reaches the receiver's machine."""
        if not receiver.loop.dead:
            receiver.arrive(segment)
        elif receiver.host.powered and isinstance(segment, bytes):
            self.reset(receiver)  # the process is gone, its kernel says so
        # else: into the void

    def reset(self, sender: SimTransport) -> None:
        if not sender.peer.gone:
            self.transmit(sender, ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"))

    def forget(self, transport: SimTransport) -> None:
        self._open.pop(transport.key, None)

    # -- hosts come and go

    def went_down(self, host: Host, loop: SimLoop, *, power: bool) -> None:
        for transport in [each for each in self._open.values() if each.loop is loop]:
            transport.gone = True
            self.forget(transport)
            if power:
                self._stale.setdefault(host.name, []).append(transport)
            elif transport._in:
                self.reset(transport)
            else:
                self.transmit(
                    transport,
                    END
                    if self.chance.random() < 0.5
                    else ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"),
                )
        for place in [place for place, server in self._listeners.items() if server.loop is loop]:
            del self._listeners[place]

    def came_up(self, host: Host) -> None:
        """Peers that wait for an acknowledgement from the machine's former life send again, and hear of its death."""
        for transport in self._stale.pop(host.name, ()):
            peer = transport.peer
            if not peer.gone and peer._in_flight:
                self.world.after(self.chance.random(), self.reset, transport)

    # -- faults

    def block(self, source: str, target: str) -> None:
        """Nothing gets from `source` to `target` until `heal`."""
        self._blocked.setdefault((source, target), [])

    def blocked_pairs(self) -> list[tuple[str, str]]:
        return list(self._blocked)

    def heal(self, source: str | None = None, target: str | None = None) -> None:
        """Open one pair, or all. What was held back sets out now, in order."""
        for pair in [pair for pair in self._blocked if source is None or pair == (source, target)]:
            for sender, action, arguments in self._blocked.pop(pair):
                when = self.world.now + self._delay(*pair)
                if sender is not None:
                    when = sender.last_arrival = max(sender.last_arrival, when)
                self.world.at(when, action, *arguments)

    def cut_connections(self, host: str, share: float = 1.0) -> None:
        """Something between breaks connections of `host`: both ends get a reset."""
        for transport in list(self._open.values()):
            if transport.host.name == host and not transport.gone and self.chance.random() < share:
                for end in (transport, transport.peer):
                    self._reach(end, ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"))

    def close(self) -> None:
        self._open.clear()
        self._blocked.clear()
        self._listeners.clear()
        self._stale.clear()

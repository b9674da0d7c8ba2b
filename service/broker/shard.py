"""Runs one deciding machine (a group coordinator, a transaction coordinator) over one internal partition.

The machine decides; the shard makes its decision durable and only then lets the answers leave. The machine's
durable state is changed by `apply` alone,
here and when the partition is replayed, so there is one path to state. An append that fails is not undone: the
shard is dropped, everybody who waits is
told to look for the coordinator again, and whoever leads next replays the log.

What always holds: answers leave in the order of their decisions, after every record they rest on (their own and
all earlier ones) is committed.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

from log.batch import BatchHeader, CorruptBatch, build_batch, read_records
from log.control import ControlType, read_marker
from log.disk import DiskFault
from service.broker.partition import Appended, Partition, PartitionLost
from service.broker.ports import Env

logger = logging.getLogger("oncelog.coordinator")

BATCHES_AT_ONCE = 64  # replayed before others get a turn: a long log must not stop the loop


class Decision(Protocol):
    @property
    def records(self) -> Sequence[tuple[bytes, bytes | None]]: ...
    @property
    def answers(self) -> Sequence[tuple[object, object]]: ...
    @property
    def effects(self) -> Sequence[object]: ...
    @property
    def producer_id(self) -> int: ...
    @property
    def producer_epoch(self) -> int: ...


class Machine(Protocol):
    def decide(self, command: Any, token: int, now_ms: int) -> Decision: ...
    def apply(self, key: bytes, value: bytes | None) -> None: ...
    def next_deadline_ms(self) -> int | None: ...
    def expire(self, now_ms: int) -> Decision: ...


@runtime_checkable
class TakesTransactions(Protocol):
    """A machine whose partition producers write to in transactions: committed offsets."""

    def apply(self, key: bytes, value: bytes | None, *, producer_id: int = -1, producer_epoch: int = -1) -> None: ...
    def apply_marker(self, producer_id: int, producer_epoch: int, committed: bool) -> None: ...


MachineT = TypeVar("MachineT", bound=Machine)


class NotCoordinator(Exception):
    """This broker does not (or no longer) coordinate this key: look it up again."""


class CoordinatorLoading(Exception):
    """The coordinator's log is still being replayed: ask again in a moment."""


class Shard(Generic[MachineT]):
    """One machine and the internal partition that is its memory."""

    def __init__(self, partition: Partition, machine: MachineT, env: Env, post: Callable[[Any], None]) -> None:
        self.partition = partition
        self.machine = machine
        self.loaded = False
        self.dropped = False
        self._env = env
        self._post = post
        self._waiting: dict[object, asyncio.Future[Any]] = {}
        self._last_token = 0
        self._written_end_offset = 0
        self._undelivered: deque[tuple[int, Decision]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms: int | None = None
        self._started_ms = env.clock.wall_ms() - int(env.clock.monotonic() * 1000)

    def now_ms(self) -> int:
        """The wall clock as it was at the start, moved on by the steady clock: a clock that jumps ends nobody's
        session.
        """
        return self._started_ms + int(self._env.clock.monotonic() * 1000)

    # -- from the log

    async def load(self) -> None:
        """Replay the log; afterwards commands are taken. What can't be read leaves the partition out of service."""
        try:
            await self._load()
        except PartitionLost:
            self.drop()
        except DiskFault as fault:
            self.drop()
            self.partition.folder.fail(fault)
        except CorruptBatch as error:
            logger.critical("%s can't be replayed: %s", self.partition.topic_partition, error)
            self.drop()
            self.partition.fail()

    async def _load(self) -> None:
        log = self.partition.log
        # After a crash the log's tail is committed only once it is durable again: without it we would forget.
        if (uncommitted := self.partition.committed(log.end_offset)) is not None:
            await uncommitted
        async with log.alone():  # compaction must not take away the segments that are being read
            replayed_to = log.start_offset
            while replayed_to < (end_offset := log.end_offset):  # a marker may come while we replay
                for count, (header, batch) in enumerate(log.scan(replayed_to, end_offset)):
                    self._replay(header, batch)
                    if count % BATCHES_AT_ONCE == BATCHES_AT_ONCE - 1:
                        await asyncio.sleep(0)
                        if self.dropped:
                            return
                replayed_to = end_offset  # compaction may have taken the last batches
        self._written_end_offset = log.end_offset
        self.loaded = True
        self._set_timer()

    def _replay(self, header: BatchHeader, batch: memoryview) -> None:
        if not header.is_control:
            for record in read_records(batch, header):
                assert record.key is not None, "every record of a coordinator has a key"
                self._apply(record.key, record.value, header.producer_id, header.producer_epoch)
        elif (kind := read_marker(batch).type) is not None:
            self.marked(header.producer_id, header.producer_epoch, kind)

    def marked(self, producer_id: int, producer_epoch: int, kind: ControlType) -> None:
        """A transaction's marker stands in the partition: what it left pending is decided."""
        machine: object = self.machine
        if isinstance(machine, TakesTransactions):
            machine.apply_marker(producer_id, producer_epoch, kind is ControlType.COMMIT)

    def _apply(self, key: bytes, value: bytes | None, producer_id: int, producer_epoch: int) -> None:
        if producer_id < 0:
            self.machine.apply(key, value)
        else:
            machine: object = self.machine
            assert isinstance(machine, TakesTransactions), "nobody's transaction writes here"
            machine.apply(key, value, producer_id=producer_id, producer_epoch=producer_epoch)

    def drop(self) -> None:
        """Forget everything: this broker no longer leads the partition, or can't write to it."""
        if self.dropped:
            return
        self.dropped = True
        if self._timer is not None:
            self._timer.cancel()
        waiting, self._waiting = self._waiting, {}
        self._undelivered.clear()
        for answer in waiting.values():
            if not answer.done():
                answer.set_exception(NotCoordinator())

    # -- from outside

    def handle(self, command: Any) -> asyncio.Future[Any]:
        """Decide on a command. The future is answered when the answer may leave; it fails with `NotCoordinator` if
        that can't be promised.
        """
        if self.dropped:
            raise NotCoordinator
        if not self.loaded:
            raise CoordinatorLoading
        token = self._last_token = self._last_token + 1
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[token] = answer
        self._carry_out(self.machine.decide(command, token, self.now_ms()))
        return answer

    def tell(self, command: Any) -> None:
        """Decide on a command nobody waits for: what is not done is done by whoever coordinates next, or was not
        worth it.
        """
        self.handle(command).add_done_callback(lambda answer: answer.cancelled() or answer.exception())

    def _carry_out(self, decision: Decision) -> None:
        if decision.records and not self._write(decision):
            self.drop()
            return
        try:
            uncommitted = self.partition.committed(self._written_end_offset)
        except PartitionLost:
            self.drop()
            return
        if uncommitted is None and not self._undelivered:
            self._deliver(decision)
        elif decision.answers or decision.effects:
            self._undelivered.append((self._written_end_offset, decision))
            if uncommitted is not None:
                uncommitted.add_done_callback(self._committed)
        self._set_timer()

    def _write(self, decision: Decision) -> bool:
        """Apply and append as one batch; no await, so nobody sees the one without the other."""
        now_ms = self._env.clock.wall_ms()
        producer_id, producer_epoch = decision.producer_id, decision.producer_epoch
        for key, value in decision.records:
            self._apply(key, value, producer_id, producer_epoch)
        batch = build_batch(
            [(key, value, (), now_ms) for key, value in decision.records],
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            transactional=producer_id >= 0,
        )
        appended = self.partition.append_own(bytearray(batch), now_ms=now_ms)
        if not isinstance(appended, Appended):
            logger.error("%s can't be written: %s", self.partition.topic_partition, appended.error.name)
            return False
        self._written_end_offset = appended.end_offset
        return True

    def _committed(self, uncommitted: asyncio.Future[None]) -> None:
        if uncommitted.cancelled() or uncommitted.exception() is not None:
            self.drop()
            return
        while self._undelivered and self._undelivered[0][0] <= self.partition.high_watermark:
            _, decision = self._undelivered.popleft()
            self._deliver(decision)

    def _deliver(self, decision: Decision) -> None:
        for token, reply in decision.answers:
            answer = self._waiting.pop(token, None)
            if answer is not None and not answer.done():
                answer.set_result(reply)
        for effect in decision.effects:
            self._post(effect)

    # -- time

    def _set_timer(self) -> None:
        deadline_ms = self.machine.next_deadline_ms()
        if deadline_ms == self._timer_ms or self.dropped:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_ms = None, deadline_ms
        if deadline_ms is not None:
            delay = max(deadline_ms - self.now_ms(), 0) / 1000
            self._timer = asyncio.get_running_loop().call_later(delay, self._expire)

    def _expire(self) -> None:
        self._timer = self._timer_ms = None
        if not self.dropped:
            self._carry_out(self.machine.expire(self.now_ms()))

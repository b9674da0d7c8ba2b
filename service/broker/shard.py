"""Runs one deciding machine (a group coordinator, a transaction coordinator) over one internal partition.

The machine decides; the shard makes its decision durable and only then lets the answers leave. The machine's
durable state is changed by `apply` alone,
here and when the partition is replayed, so there is one path to state. An append that fails is not undone: the
shard is dropped, everybody who waits is
told to look for the coordinator again, and the next leader replays the log; this broker itself, a little later, if
it still leads (`coordinators.py`).

What always holds: answers leave in the order of their decisions, after every record they rest on (their own and
all earlier ones) is committed. What a machine raises stays here: the command is refused, nothing of it is applied, and
the other commands and timers go on.

A record of the log that no machine can read, in a batch whose checksum is right, was written by somebody who does not
know the format. It is named, stays where it is, and is passed over: it decides nothing, and one such record must not
take a coordinator from everybody. A batch whose checksum is wrong has lost what it said, which may have been a
decision: such a partition is not served.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

from log.batch import BatchHeader, CorruptBatch, Record, build_plain_batch, checksum_ok, read_records
from log.control import ControlType, read_marker
from log.disk import DiskFault
from service.broker.partition import Appended, Partition, PartitionLost
from service.ports import Env

logger = logging.getLogger("oncelog.coordinator")

TURN_BYTES = 256 << 10
"""Replayed before others get a turn: a long log must not stop the loop."""
BATCH_WORTH_BYTES = 4 << 10
"""What a batch counts at least."""
NAMED_AT_MOST = 10
"""Records that can't be read and are named one by one in a replay; of more there is only the number."""
REST_MS_MIN, REST_MS_MAX = 1_000, 60_000
"""How long the timer rests when what was due has raised."""


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


class DecisionFailed(Exception):
    """The machine raised: nothing was decided, and the same command would raise again."""


@dataclass(slots=True)
class Mishaps:
    """What went wrong in the shards of one kind since the start."""

    decisions: int = 0
    """Commands that made a machine raise."""
    expiries: int = 0
    """Times that what was due raised."""
    records: int = 0
    """Records that were passed over in a replay."""
    rebuilt: int = 0
    """Shards that were given up and replayed again while their partition was still led."""


class Shard(Generic[MachineT]):
    """One machine and the internal partition that is its memory."""

    def __init__(
        self,
        partition: Partition,
        machine: MachineT,
        env: Env,
        post: Callable[[Any], None],
        mishaps: Mishaps,
        on_given_up: Callable[["Shard[MachineT]"], None],
    ) -> None:
        self.partition = partition
        self.machine = machine
        self.loaded = False
        self.dropped = False
        self._env = env
        self._post = post
        self._mishaps = mishaps
        self._on_given_up = on_given_up
        self._unreadable = 0
        self._waiting: dict[object, asyncio.Future[Any]] = {}
        self._last_token = 0
        self._written_end_offset = 0
        self._undelivered: deque[tuple[int, Decision]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms: int | None = None
        self._rest_ms = self._rest_until_ms = 0
        self._started_ms = env.clock.wall_ms() - int(env.clock.monotonic() * 1000)

    def now_ms(self) -> int:
        """The wall clock as it was at the start, moved on by the steady clock: a clock that jumps ends nobody's
        session.
        """
        return self._started_ms + int(self._env.clock.monotonic() * 1000)

    # -- from the log

    async def load(self) -> None:
        """Replay the log; afterwards commands are taken. A batch that rotted leaves the partition out of service."""
        try:
            await self._load()
        except PartitionLost:
            self._give_up()
        except DiskFault as fault:
            self.partition.folder.blame(fault, self.partition.topic_partition)
            self._give_up()
        except CorruptBatch as error:
            logger.critical("%s can't be replayed: %s", self.partition.topic_partition, error)
            self.drop()
            self.partition.fail()
        except Exception:
            logger.exception("%s can't be replayed now", self.partition.topic_partition)
            self._give_up()

    async def _load(self) -> None:
        log = self.partition.log
        if (too_few := self.partition.enough_in_sync()) is not None:  # what is decided meanwhile could not be written
            await too_few
        # After a crash the log's tail is committed only once it is durable again: without it we would forget.
        if (uncommitted := self.partition.committed(log.end_offset)) is not None:
            await uncommitted
        async with log.alone():  # compaction must not take away the segments that are being read
            replayed_to = log.start_offset
            while replayed_to < (end_offset := log.end_offset):  # a marker may come while we replay
                turn_bytes = 0
                for header, batch in log.scan(replayed_to, end_offset):
                    self._replay(header, batch)
                    turn_bytes += max(header.size_bytes, BATCH_WORTH_BYTES)
                    if turn_bytes >= TURN_BYTES:
                        turn_bytes = 0
                        await asyncio.sleep(0)
                        if self.dropped:
                            return
                replayed_to = end_offset  # compaction may have taken the last batches
        if self._unreadable > NAMED_AT_MOST:
            logger.error("%s: %d records were passed over", self.partition.topic_partition, self._unreadable)
        self._written_end_offset = log.end_offset
        self.loaded = True
        self._set_timer()

    def _replay(self, header: BatchHeader, batch: memoryview) -> None:
        if not checksum_ok(batch, header):
            raise CorruptBatch(f"the checksum of the batch at offset {header.base_offset} is wrong")
        try:
            if not header.is_control:
                for record in read_records(batch, header):
                    self._replay_record(record, header)
            elif (kind := read_marker(batch).type) is not None:
                self.marked(header.producer_id, header.producer_epoch, kind)
        except CorruptBatch as error:
            self._pass_over(header.base_offset, error)

    def _replay_record(self, record: Record, header: BatchHeader) -> None:
        try:
            assert record.key is not None, "every record of a coordinator has a key"
            self._apply(record.key, record.value, header.producer_id, header.producer_epoch)
        except Exception as error:  # noqa: BLE001 - whatever a stranger's bytes make a machine raise, it is named
            self._pass_over(record.offset, error)

    def _pass_over(self, offset: int, error: Exception) -> None:
        self._unreadable += 1
        self._mishaps.records += 1
        if self._unreadable <= NAMED_AT_MOST:
            logger.error(
                "%s: the record at offset %d can't be read, and is passed over: %r",
                *(self.partition.topic_partition, offset, error),
            )

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

    def _give_up(self) -> None:
        """What is in memory may not be what is in the log. The log says it again, if this broker still leads it."""
        if not self.dropped:
            self.drop()
            self._on_given_up(self)

    # -- from outside

    def handle(self, command: Any) -> asyncio.Future[Any]:
        """Decide on a command. The future is answered when the answer may leave; it fails with `NotCoordinator` if
        that can't be promised, and with `DecisionFailed` if the machine raises.
        """
        if self.dropped:
            raise NotCoordinator
        if not self.loaded:
            raise CoordinatorLoading
        token = self._last_token = self._last_token + 1
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[token] = answer
        try:
            decision = self.machine.decide(command, token, self.now_ms())
        except Exception:
            logger.exception("%s: %s can't be decided", self.partition.topic_partition, type(command).__name__)
            self._refuse((token,))
            self._set_timer()
        else:
            self._carry_out(decision)
        return answer

    def _refuse(self, tokens: Iterable[object]) -> None:
        self._mishaps.decisions += 1
        for token in tokens:
            answer = self._waiting.pop(token, None)
            if answer is not None and not answer.done():
                answer.set_exception(DecisionFailed())

    def tell(self, command: Any) -> None:
        """Decide on a command nobody waits for: what is not done is done by the next coordinator, or was not
        worth it.
        """
        self.handle(command).add_done_callback(lambda answer: answer.cancelled() or answer.exception())

    def _carry_out(self, decision: Decision) -> None:
        if decision.records and not self._write(decision):
            self._give_up()
            return
        try:
            uncommitted = self.partition.committed(self._written_end_offset)
        except PartitionLost:
            self._give_up()
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
        try:
            for key, value in decision.records:
                self._apply(key, value, producer_id, producer_epoch)
            batch = build_plain_batch(decision.records, now_ms, producer_id=producer_id, producer_epoch=producer_epoch)
        except Exception:
            logger.exception("%s: a decision can't be applied", self.partition.topic_partition)
            self._refuse([token for token, _ in decision.answers])
            return False
        appended = self.partition.append_own(batch, now_ms=now_ms)
        if not isinstance(appended, Appended):
            logger.error("%s can't be written: %s", self.partition.topic_partition, appended.error.name)
            return False
        self._written_end_offset = appended.end_offset
        return True

    def _committed(self, uncommitted: asyncio.Future[None]) -> None:
        if uncommitted.cancelled() or uncommitted.exception() is not None:
            self._give_up()
            return
        while self._undelivered and self._undelivered[0][0] <= self.partition.high_watermark:
            _, decision = self._undelivered.popleft()
            self._deliver(decision)

    def _deliver(self, decision: Decision) -> None:
        for token, reply in decision.answers:
            answer = self._waiting.pop(token, None)
            if answer is not None and not answer.done():
                answer.set_result(reply)
        try:
            for effect in decision.effects:
                self._post(effect)
        except Exception:
            # What has to be done follows from the log: a replay does it.
            logger.exception("%s: what follows from a decision can't be done", self.partition.topic_partition)
            self._give_up()

    # -- time

    def _set_timer(self) -> None:
        deadline_ms = self.machine.next_deadline_ms()
        if deadline_ms == self._timer_ms or self.dropped:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_ms = None, deadline_ms
        if deadline_ms is not None:
            delay = max(max(deadline_ms, self._rest_until_ms) - self.now_ms(), 0) / 1000
            self._timer = asyncio.get_running_loop().call_later(delay, self._expire)

    def _expire(self) -> None:
        self._timer = self._timer_ms = None
        if self.dropped:
            return
        try:
            decision = self.machine.expire(self.now_ms())
        except Exception:
            self._mishaps.expiries += 1
            self._rest_ms = min(max(2 * self._rest_ms, REST_MS_MIN), REST_MS_MAX)
            self._rest_until_ms = self.now_ms() + self._rest_ms
            logger.exception(
                "%s: what is due can't be done; it is tried again in %d ms",
                *(self.partition.topic_partition, self._rest_ms),
            )
            self._set_timer()
        else:
            self._rest_ms = self._rest_until_ms = 0
            self._carry_out(decision)

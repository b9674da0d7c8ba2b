"""Runs one deciding machine (a group coordinator, a transaction coordinator) over one internal partition.

The machine decides. The shard makes the decision durable, and only then lets the answers leave. The machine's durable
state is changed by `apply` alone, both here and when the partition is replayed, so there is one path to state. A failed
append is not undone. Instead the shard is dropped, all waiting clients are told to look for the coordinator again, and
the next leader replays the log. If this broker still leads, it replays the log itself a little later
(`coordinators.py`).

The first decision of a turn of the loop is written at once. Those that follow in the same turn are gathered, and
written together as one batch before the next turn: thousands of members of a group may send heartbeats at the same
moment, and to append a batch costs more than most decisions. Until then the machine is ahead of the log. So all that
depends on the order in the log has them written first: a producer's batch, a marker, a look at what is committed.

What always holds: answers leave in the order of their decisions. Before an answer leaves, all records up to its
decision are committed, those of earlier decisions included. An exception in a machine does not leave the shard: the
command is refused, none of it is applied, and other commands and timers go on.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any, Generic

from log.batch import CorruptBatch, build_plain_batch
from log.control import ControlType
from log.disk import DiskFault
from service.broker.machine import Decision, MachineT, Mishaps
from service.broker.partition import Appended, PartitionLost
from service.broker.replay import LeaveToOthers, Replay
from service.ports import Env
from service.turns import breathe
from service.wire.error_codes import ErrorCode

logger = logging.getLogger("oncelog.coordinator")

ANSWERS_A_TURN = 64
"""How many answers that waited for a commit are given before other tasks run. Each takes some 30 microseconds."""
GATHERED_BYTES = 64 << 10
"""The most that the keys and values of gathered decisions have together."""
REST_MS_MIN, REST_MS_MAX = 1_000, 60_000
"""The shortest and the longest pause of the timer after work that was due has raised."""


class NotCoordinator(Exception):
    """This broker does not, or no longer, coordinate the key. The client should look up the coordinator again."""


class CoordinatorLoading(Exception):
    """The coordinator's log is still being replayed. The client should ask again in a moment."""


class DecisionFailed(Exception):
    """The machine raised an exception. Nothing was decided, and the same command would raise again."""


class OneATurn:
    """Lets the shards of one kind work one after the other, each in a turn of the loop of its own. Shards that were
    loaded at the same moment have much to do at the same moment. All together they would hold the loop for long.
    """

    def __init__(self) -> None:
        self._is_over = True  # the turn in which one has worked
        self._waiting: deque[Callable[[], None]] = deque()

    def do(self, work: Callable[[], None]) -> None:
        """At once, if none has worked in this turn."""
        self._waiting.append(work)
        if self._is_over:
            self._next()

    def _next(self) -> None:
        self._is_over = not self._waiting
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._next)
            self._waiting.popleft()()


class FewAnswersATurn:
    """Lets the shards of one kind give so many answers in one turn of the loop. Each wakes a task that sends it, and a
    slow disk or follower may commit the decisions of thousands of clients at once.
    """

    def __init__(self) -> None:
        self._left = ANSWERS_A_TURN
        self._waiting: dict[Callable[[], None], None] = {}

    def may_give(self, answers: int, go_on: Callable[[], None]) -> bool:
        """Whether the answers of one more decision may be given now. If not, `go_on` is called in a later turn."""
        if self._left == ANSWERS_A_TURN:
            asyncio.get_running_loop().call_soon(self._next_turn)
        if self._left > 0:
            self._left -= max(answers, 1)
            return True
        self._waiting[go_on] = None
        return False

    async def turn(self, answers: int) -> None:
        """Wait until so many answers may be given."""
        come: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def go_on() -> None:
            if not come.done() and self.may_give(answers, go_on):
                come.set_result(None)

        go_on()
        await come

    def _next_turn(self) -> None:
        self._left = ANSWERS_A_TURN
        while self._left > 0 and self._waiting:  # who gets no further is last in the next turn
            go_on = next(iter(self._waiting))
            del self._waiting[go_on]
            go_on()


class Shard(Generic[MachineT]):
    """One machine, and the internal partition that holds its records."""

    def __init__(
        self,
        replay: Replay[MachineT],
        env: Env,
        post: Callable[[Sequence[Any]], None],
        mishaps: Mishaps,
        on_given_up: Callable[[Shard[MachineT]], None],
        leave_to_others: LeaveToOthers,
        due: OneATurn,
        answers: FewAnswersATurn,
        *,
        is_first: bool = False,
    ) -> None:
        self.partition = replay.partition
        self.is_first = is_first
        """Whether no shard of this partition was loaded before in this leader epoch, by any process. Otherwise what a
        former shard has sent in the same epoch may still be under way.
        """
        self.machine = replay.machine
        self._taking_transactions = replay.taking_transactions
        self.loaded = False
        self.loaded_s = math.inf
        """Since when, on the monotonic clock."""
        self.dropped = False
        self._replay = replay
        self._env = env
        self._loop = asyncio.get_running_loop()  # each look for it asks the kernel for the process's number
        self._post = post
        self._mishaps = mishaps
        self._on_given_up = on_given_up
        self._leave_to_others = leave_to_others
        self._due = due
        self._answers = answers
        self._waiting: dict[object, asyncio.Future[Any]] = {}
        self._last_token = 0
        self._written_end_offset = 0
        self._gathered: list[Decision] = []
        self._gathered_bytes = 0
        self._gathers = False  # a decision was written in this turn: those that follow are gathered
        self._undelivered: deque[tuple[int, Decision]] = deque()
        self._awaits = False  # the commit of the first of these
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms: int | None = None
        self._is_due = False  # its turn comes soon, and then the timer is set anew
        self._rest_ms = self._rest_until_ms = 0
        self._started_ms = env.clock.wall_ms() - int(env.clock.monotonic() * 1000)

    def committed(self) -> asyncio.Future[None] | None:
        """None if all that the machine knows is committed. Otherwise a future, as `Partition.committed` gives it."""
        self.write_gathered()
        if self.dropped:  # what the machine knew may never have been written
            raise PartitionLost(ErrorCode.NOT_COORDINATOR)
        return self.partition.committed(self._written_end_offset)

    def now_ms(self) -> int:
        """The wall clock's time at the start, plus the time that has passed on the monotonic clock. So a jump of the
        wall clock ends no client's session.
        """
        return self._started_ms + int(self._env.clock.monotonic() * 1000)

    # -- from the log

    async def load(self) -> None:
        """Replay what is left of the log, then take commands. A damaged batch takes the partition out of service."""
        try:
            await self._load()
        except PartitionLost:
            self._give_up()
        except DiskFault as fault:
            self.partition.folder.blame(fault, self.partition.topic_partition)
            self._give_up()
        except CorruptBatch as error:
            self.partition.folder.blame(error, self.partition.topic_partition)
            self.drop()
            self._leave_to_others(self.partition, error)
        except Exception:
            logger.exception("%s can't be replayed now", self.partition.topic_partition)
            self._give_up()

    async def _load(self) -> None:
        log = self.partition.log
        if (too_few := self.partition.enough_in_sync()) is not None:  # until then nothing could be written
            await too_few
        # After a crash the tail of the log counts as committed only when it is durable again. A decision read from it
        # before that could be lost again.
        found_end_offset = log.end_offset
        if (uncommitted := self.partition.committed(found_end_offset)) is not None:
            await uncommitted
        assert found_end_offset <= self.partition.high_watermark, "what is replayed can't be lost any more"
        replay = self._replay
        async with log.alone():  # compaction must not take away the segments that are being read
            if not replay.holds:
                self._give_up()
                return
            while True:
                for _ in chain(replay.up_to(log.end_offset), replay.make_ready()):
                    await breathe()
                    if self.dropped:
                        return
                if replay.at_offset == log.end_offset:  # otherwise a marker has come meanwhile
                    break
        replay.tell_passed_over()
        self._written_end_offset = log.end_offset
        self.loaded, self.loaded_s = True, self._env.clock.monotonic()
        self._set_timer()

    def marked(self, producer_id: int, producer_epoch: int, kind: ControlType) -> None:
        """The partition has a marker: the transaction's pending records are decided by it. Answers that tell of this
        wait until the marker is committed.
        """
        self._written_end_offset = self.partition.log.end_offset
        if self._taking_transactions is not None:
            self._taking_transactions.apply_marker(producer_id, producer_epoch, kind is ControlType.COMMIT)

    def drop(self) -> None:
        """Forget everything, because this broker no longer leads the partition, or can't write to it."""
        if self.dropped:
            return
        self.dropped = True
        if self._timer is not None:
            self._timer.cancel()
        waiting, self._waiting = self._waiting, {}
        self._gathered.clear()
        self._undelivered.clear()
        for answer in waiting.values():
            if not answer.done():
                answer.set_exception(NotCoordinator())

    def _give_up(self) -> None:
        """Drop a shard whose memory may differ from the log. It is loaded again from the log, if this broker still
        leads the partition.
        """
        if not self.dropped:
            self.drop()
            self._on_given_up(self)

    # -- from outside

    def handle(self, command: Any) -> asyncio.Future[Any]:
        """Decide on a command. The future is answered when the answer may leave. It fails with `NotCoordinator` if the
        decision may not last, and with `DecisionFailed` if the machine raises.
        """
        if self.dropped:
            raise NotCoordinator
        if not self.loaded:
            raise CoordinatorLoading
        token = self._last_token = self._last_token + 1
        answer: asyncio.Future[Any] = self._loop.create_future()
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

    def tell(self, command: Any, hear: Callable[[Any], None] = lambda verdict: None) -> None:
        """Decide on a command whose answer nobody waits for; `hear`, which is called with it, decides nothing. If it
        fails, the next coordinator decides it anew, or it was not needed.
        """

        def answered(answer: asyncio.Future[Any]) -> None:
            if not answer.cancelled() and answer.exception() is None:
                hear(answer.result())

        self.handle(command).add_done_callback(answered)

    def _carry_out(self, decision: Decision) -> None:
        if not decision.records:
            if self._gathered:
                self._gathered.append(decision)
            else:
                self._answer(decision)
            return
        if not self._apply(decision):
            self._give_up()
            return
        if not self._gathers or decision.producer_id >= 0:
            self.write_gathered()
            if self._write((decision,)):
                self._answer(decision)
            return
        size = sum([len(key) + len(value or b"") for key, value in decision.records])
        if self._gathered_bytes + size > GATHERED_BYTES:
            self.write_gathered()
        self._gathered.append(decision)
        self._gathered_bytes += size

    def _apply(self, decision: Decision) -> bool:
        """Whether the machine could take up the decision. There is no await until its records are in the log, or
        gathered for it.
        """
        try:
            if decision.producer_id < 0:
                apply = self.machine.apply
                for key, value in decision.records:
                    apply(key, value)
            else:
                assert self._taking_transactions is not None, "nobody's transaction writes here"
                producer_id, producer_epoch = decision.producer_id, decision.producer_epoch
                for key, value in decision.records:
                    self._taking_transactions.apply(key, value, producer_id=producer_id, producer_epoch=producer_epoch)
        except Exception:
            logger.exception("%s: a decision can't be applied", self.partition.topic_partition)
            self._refuse([token for token, _ in decision.answers])
            return False
        return True

    def write_gathered(self) -> None:
        """Now the log has all that the machine knows, unless the shard was given up. Nothing is answered yet: what
        follows from an answer could be decided before what the caller is about to write.
        """
        if self._gathered:
            gathered, self._gathered, self._gathered_bytes = self._gathered, [], 0
            if self._write(gathered):
                self._undelivered += [(self._written_end_offset, decision) for decision in gathered]

    def _write(self, decisions: Sequence[Decision]) -> bool:
        """Append what these decisions say as one batch. They are one producer's, or nobody's."""
        if self.dropped:
            return False
        if not self._gathers:
            self._gathers = True
            self._loop.call_soon(self._end_turn)
        now_ms = self._env.clock.wall_ms()
        first = decisions[0]
        records = first.records if len(decisions) == 1 else [pair for each in decisions for pair in each.records]
        try:
            batch = build_plain_batch(
                records, now_ms, producer_id=first.producer_id, producer_epoch=first.producer_epoch
            )
            appended = self.partition.append_own(batch, now_ms=now_ms)
        except Exception:
            logger.exception("%s: a decision can't be written", self.partition.topic_partition)
            if len(decisions) == 1:  # otherwise it may be another's fault: the clients ask again
                self._refuse([token for token, _ in first.answers])
            self._give_up()
            return False
        if not isinstance(appended, Appended):
            logger.error("%s can't be written: %s", self.partition.topic_partition, appended.error.name)
            self._give_up()
            return False
        assert self._written_end_offset <= appended.base_offset, "the machine knows all that was written before"
        assert appended.end_offset - appended.base_offset == len(records), "what was applied is in the log"
        self._written_end_offset = appended.end_offset
        return True

    def _end_turn(self) -> None:
        self._gathers = bool(self._gathered)  # the next turn's, too, if there are so many
        if self._gathers:
            self._loop.call_soon(self._end_turn)
            self.write_gathered()
        if self._undelivered and not self._awaits:
            self._await_commit()
        self._set_timer()

    def _answer(self, decision: Decision) -> None:
        """What is decided is in the log: the answers leave when it is committed."""
        if not self.partition.is_leading:
            self._give_up()
            return
        if not self._undelivered and self._written_end_offset <= self.partition.high_watermark:
            self._deliver(decision)
        elif decision.answers or decision.effects:
            self._undelivered.append((self._written_end_offset, decision))
            if len(self._undelivered) == 1:
                self._await_commit()
        self._set_timer()

    def _await_commit(self) -> None:
        """Wait for the first decision that is not delivered. One wait at a time is enough, and thousands of decisions
        may become committed at the same moment.
        """
        try:
            uncommitted = self.partition.committed(self._undelivered[0][0])
        except PartitionLost:
            self._give_up()
            return
        if uncommitted is None:
            self._deliver_committed()
        elif not self._awaits:
            self._awaits = True
            uncommitted.add_done_callback(self._committed)

    def _committed(self, uncommitted: asyncio.Future[None]) -> None:
        self._awaits = False
        if uncommitted.cancelled() or uncommitted.exception() is not None:
            self._give_up()
        else:
            self._deliver_committed()

    def _deliver_committed(self) -> None:
        while self._undelivered and self._undelivered[0][0] <= self.partition.high_watermark:
            _, decision = self._undelivered[0]
            if not self._answers.may_give(len(decision.answers), self._deliver_committed):
                return
            self._undelivered.popleft()
            self._deliver(decision)
        if self._undelivered:
            self._await_commit()

    def _deliver(self, decision: Decision) -> None:
        for token, reply in decision.answers:
            answer = self._waiting.pop(token, None)
            if answer is not None and not answer.done():
                answer.set_result(reply)
        try:
            if decision.effects:
                self._post(decision.effects)
        except Exception:
            # The effects follow from the log: a replay produces them again.
            logger.exception(
                "%s: the effects of a decision could not be carried out; the log is replayed",
                self.partition.topic_partition,
            )
            self._give_up()

    # -- time

    def _set_timer(self) -> None:
        deadline_ms = self.machine.next_deadline_ms()
        if deadline_ms == self._timer_ms or self.dropped or self._is_due:
            return
        if self._timer is not None:
            assert self._timer_ms is not None
            if deadline_ms is None or deadline_ms > self._timer_ms:
                return  # Most deadlines are put off before they come. A timer that comes too early is set anew then.
            self._timer.cancel()
        self._timer, self._timer_ms = None, deadline_ms
        if deadline_ms is not None:
            delay = max(max(deadline_ms, self._rest_until_ms) - self.now_ms(), 0) / 1000
            self._timer = self._loop.call_later(delay, self._come_due)

    def _come_due(self) -> None:
        self._is_due = True
        self._due.do(self._expire)

    def _expire(self) -> None:
        self._timer = self._timer_ms = None
        self._is_due = False
        if self.dropped:
            return
        try:
            decision = self.machine.expire(self.now_ms())
        except Exception:
            self._mishaps.expiries += 1
            self._rest_ms = min(max(2 * self._rest_ms, REST_MS_MIN), REST_MS_MAX)
            self._rest_until_ms = self.now_ms() + self._rest_ms
            logger.exception(
                "%s: work that is due failed; it is tried again in %d ms",
                *(self.partition.topic_partition, self._rest_ms),
            )
            self._set_timer()
        else:
            self._rest_ms = self._rest_until_ms = 0
            self._carry_out(decision)

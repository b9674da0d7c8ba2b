"""A group coordinator on a real shard, from a seed: many commands in one turn of the loop, which the shard writes
together.

Everything is real but the loop's time, the disk and the clients. In one turn come, in any order: commits, commits of
open transactions, deletions, heartbeats of members, what is due, markers, and readers who ask while decisions of the
same turn are gathered and not yet written. Appends find no room, or too few in sync; the disk fails; the power is cut;
the leadership ends and begins anew.

Checked throughout: the log has what was decided, in the order of the requests, markers in their places and nothing
else. An answer is given only once all records up to its decision are committed, and answers come in the order of their
decisions. What an answer rests on is there after every crash. After each turn the machine that lives is what a replay
of the log makes.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import random
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, NamedTuple

from idempotence.producers import ProducerStates
from isolation.stable import StableOffsets
from log.batch import read_records
from log.config import LogConfig
from log.control import ControlType, read_marker
from log.disk import DiskFault
from log.ids import TopicId, TopicPartition
from log.partition_log import PartitionLog
from service.broker import shard as shards
from service.broker.coordinators import Coordinators
from service.broker.internal_topics import GROUPS
from service.broker.log_folder import LogFolder
from service.broker.marker_courier import MarkerWriter
from service.broker.partition import Partition, PartitionLost
from service.broker.partition_table import PartitionTable
from service.broker.shard import DecisionFailed, NotCoordinator, Shard
from service.groups.commands import (
    Command,
    CommitOffsets,
    CommitReply,
    CommitTransactionalOffsets,
    ConsumerHeartbeat,
    ConsumerHeartbeatReply,
    DeleteGroup,
    DeleteOffsets,
    FetchOffsets,
    ForgetTopic,
    JoinGroup,
    NameGroups,
    OffsetToCommit,
    PartitionsAsked,
)
from service.groups.coordinator import GroupCoordinator
from service.groups.settings import ConsumerTimes, GroupSettings
from service.groups.verdicts import GroupDecision
from service.ports import LoopTasks
from tests.log.memory_disk import MemoryDisk
from tests.service.groups.driver import Topics, with_soft_epochs_of
from tests.sim.group_world import Broken, without_empty
from tests.sim.run import replaced

ME = 1
HERE = TopicPartition(GROUPS.name, 0)
TOPIC_ID = TopicId(b"offsets".rjust(16, b"."))
WALL_MS = 1_700_000_000_000
MEMBERS = ("a", "b", "c")
GROUP_NAMES = ("plain", "moving", "modern")
TURNS = 120
LEAVE = -1


class Written(NamedTuple):
    """A record, or (without a key) a marker, as the log has it."""

    key: bytes | None
    value: bytes | None
    producer_id: int


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop whose time stands still while there is anything to do, and jumps to the next timer when there is not."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 1_000.0

    def time(self) -> float:
        return self.now_s

    def _run_once(self) -> None:
        if not self._ready and self._scheduled:  # type: ignore[attr-defined]
            self.now_s = max(self.now_s, self._scheduled[0].when())  # type: ignore[attr-defined]
        super()._run_once()  # type: ignore[misc]


class FullDisk(MemoryDisk):
    """Some appends find no room."""

    def __init__(self) -> None:
        super().__init__()
        self.refused = 0

    def change(self, kind: str, path: str) -> None:
        if kind == "append" and self.refused and path.endswith(".log"):
            self.refused -= 1
            raise DiskFault(errno.ENOSPC, "no room", path)
        super().change(kind, path)


class Watched(GroupCoordinator):
    """The real machine. It tells what it decides, and for which request."""

    decided: Callable[[GroupDecision], None] = staticmethod(lambda decision: None)

    def decide(self, command: Command, token: Any, now_ms: int) -> GroupDecision:
        decision = super().decide(command, token, now_ms)
        self.decided(decision)
        return decision

    def expire(self, now_ms: int) -> GroupDecision:
        decision = super().expire(now_ms)
        self.decided(decision)
        return decision


class Life:
    """What a loaded shard has decided, and what is to be in the log for it, from `begin` on."""

    def __init__(self, shard: Shard[GroupCoordinator]) -> None:
        self.shard = shard
        self.begin = shard.partition.log.end_offset
        self.expected: list[Written] = []
        self.ends: dict[object, int] = {}
        """At which offset all is written that the answer to this request rests on."""
        self.last_answered = 0

    @property
    def end(self) -> int:
        return self.begin + len(self.expected)

    def decided(self, decision: GroupDecision) -> None:
        self.expected += [Written(key, value, decision.producer_id) for key, value in decision.records]
        for token, _ in decision.answers:
            self.ends[token] = self.end


class GatheringWorld:
    def __init__(self, seed: int) -> None:
        self.chance = chance = random.Random(seed)
        self.loop = asyncio.get_running_loop()
        clock = SimpleNamespace(
            monotonic=self.loop.time, wall_ms=lambda: WALL_MS + int(1000 * (self.loop.time() - 1_000))
        )
        self.tasks = LoopTasks(self._failed)
        self.env: Any = SimpleNamespace(clock=clock, tasks=self.tasks)
        self.wall_ms: Callable[[], int] = clock.wall_ms
        self.broken: Broken | None = None
        self.topics = Topics(t=2, u=1)
        times = ConsumerTimes(chance.choice((50, 3_000)), 20, 0)
        self.settings = GroupSettings(
            group_initial_rebalance_delay_ms=0,
            group_min_session_timeout_ms=1,
            consumer_times=lambda group_id: times,
            offsets_retention_check_interval_ms=500,
        )
        self.disk = FullDisk()
        self.log: list[Written] = []
        """What was in the log when it was looked at last."""
        self.safe = 0
        """So much of it answers rest on."""
        self.offset = self.epoch = self.producers = 0
        self.open: dict[int, None] = {}
        self.members: dict[str, int] = {}
        self.answers: dict[type[Any], int] = {}
        self._open()

    def _failed(self, name: str, error: BaseException) -> None:
        self.fail(error if isinstance(error, Broken) else Broken(f"NothingRaises: {name}: {error!r}"))

    def fail(self, broken: Broken) -> None:
        self.broken = self.broken or broken

    # -- the broker

    def _open(self) -> None:
        """The process starts, and leads."""
        stable = StableOffsets()
        producers = ProducerStates(stable.open_transactions)
        folder = LogFolder("here", self.disk, lambda folder: None, reserve_bytes=0)
        config = LogConfig(segment_bytes=self.chance.choice((600, 1 << 20)), cleanup_policy=("compact",))
        log = PartitionLog.open(
            self.disk, "offsets-0", config, (producers, stable), known=None, now_ms=self.wall_ms(), topic_id=TOPIC_ID
        )
        self.partition = Partition(HERE, TOPIC_ID, log, folder, producers, stable)
        partitions = PartitionTable()
        partitions.add(self.partition)
        self.coordinators: Coordinators[GroupCoordinator] = Coordinators(
            GROUPS,
            lambda partition: Watched(self.settings, self.topics, self.wall_ms),
            lambda partition, effects: None,
            partitions,
            lambda: None,  # type: ignore[arg-type, return-value]
            self.env,
            lambda partition, error: self.fail(Broken(f"LogCanBeRead: {error}")),
            self._loaded,
        )
        self.markers = MarkerWriter(partitions, self.coordinators, self.env)
        self.life: Life | None = None
        found = self._found(0)
        if found[: self.safe] != self.log[: self.safe]:
            self.fail(Broken(f"AnswersLast: {self.safe} records were answered for, of which {len(found)} are left"))
        self.log = found
        self._replay_anew()
        self._lead()

    def _replay_anew(self) -> None:
        self.reader, self.read_to = GroupCoordinator(self.settings, self.topics, self.wall_ms), 0

    def _lead(self) -> None:
        self.epoch += 1
        self.partition.lead(self.epoch, ME, (ME,), (ME,), fsync=True)
        self.coordinators.led(self.partition)

    def _loaded(self, shard: Shard[GroupCoordinator]) -> None:
        life = self.life = Life(shard)
        machine = shard.machine
        assert isinstance(machine, Watched)
        machine.decided = life.decided
        self.log = self._found(0)
        self.check()

    @property
    def shard(self) -> Shard[GroupCoordinator] | None:
        """The one that takes commands."""
        shard = self.coordinators.at(0)
        return shard if shard is not None and shard.loaded and not shard.dropped else None

    # -- the checkers

    def _found(self, offset: int) -> list[Written]:
        """What the log has from there on."""
        found = []
        for header, batch in self.partition.log.scan(offset):
            if header.is_control:
                commits = read_marker(batch).type is ControlType.COMMIT
                found.append(Written(None, b"commit" if commits else b"abort", header.producer_id))
            else:
                producer_id = header.producer_id if header.is_transactional else -1
                found += [Written(record.key, record.value, producer_id) for record in read_records(batch, header)]
        return found

    def check(self) -> None:
        self.log += self._found(len(self.log))
        life, shard = self.life, self.shard
        if life is None:
            return
        written = self.log[life.begin :]
        if written != life.expected[: len(written)]:
            raise Broken("LogIsWhatWasDecided: it has something else, or in another order")
        if shard is None or shard is not life.shard or shard._gathered:
            return
        if len(written) < len(life.expected):
            raise Broken(f"LogIsWhatWasDecided: it lacks {len(life.expected) - len(written)} records")
        for each in self.log[self.read_to :]:
            if each.key is None:
                self.reader.apply_marker(each.producer_id, 0, each.value == b"commit")
            else:
                self.reader.apply(each.key, each.value, producer_id=each.producer_id)
        self.read_to = len(self.log)
        live = without_empty(shard.machine.durable_facts())
        if live != with_soft_epochs_of(live, without_empty(self.reader.durable_facts())):
            raise Broken("LiveEqualsReplay: the machine that lives is not what its log makes")

    def _rests_on(self, life: Life, end: int, what: str) -> None:
        """Somebody is told something that follows from all that is written below this offset."""
        self.check()
        if self.partition.high_watermark < end:
            raise Broken(f"AnswersFollowCommits: {what} is answered at {self.partition.high_watermark}, not {end}")
        if self.log[life.begin : end] != life.expected[: end - life.begin]:
            raise Broken(f"AnswersFollowCommits: {what} is answered, and was not written")
        self.safe = max(self.safe, end)

    # -- the clients

    def ask(self, command: Command, heard: Callable[[Any], None] = lambda reply: None) -> None:
        shard, life, partition = self.shard, self.life, self.partition
        if shard is None or life is None or shard is not life.shard:
            return
        try:
            answer = shard.handle(command)
        except NotCoordinator:
            return
        token = shard._last_token

        def answered(answer: asyncio.Future[Any]) -> None:
            failure = answer.exception()
            if isinstance(failure, DecisionFailed):
                self.fail(Broken(f"NothingRaises: {command}"))
            if failure is not None or self.partition is not partition:
                return  # the client asks again; or its broker died when it was about to hear
            try:
                self._rests_on(life, life.ends[token], type(command).__name__)
                if token < life.last_answered and not isinstance(command, JoinGroup):
                    raise Broken(f"AnswersInOrder: {token} after {life.last_answered}")
            except Broken as broken:
                self.fail(broken)
            if not isinstance(command, JoinGroup):  # that waits for others
                life.last_answered = token
            self.answers[type(command)] = self.answers.get(type(command), 0) + 1
            heard(answer.result())

        answer.add_done_callback(answered)

    def offsets(self) -> tuple[OffsetToCommit, ...]:
        found = []
        for _ in range(self.chance.randint(1, 3)):
            name = self.chance.choice("tu")
            self.offset += 1
            metadata = "m" * self.chance.choice((0, 0, 10, 300))
            found.append(OffsetToCommit(name, self.topics.id_of(name), 0, self.offset, -1, metadata))
        return tuple(found)

    def commit(self) -> None:
        def heard(reply: CommitReply) -> None:
            assert reply.fault is None, reply

        self.ask(CommitOffsets("plain", "", None, -1, self.offsets()), heard)

    def commit_in_transaction(self) -> None:
        if self.open and self.chance.random() < 0.5:
            producer_id = self.chance.choice(list(self.open))
        else:
            producer_id = self.producers = self.producers + 1
        if self.shard is None:
            return
        self.open[producer_id] = None
        self.ask(CommitTransactionalOffsets("plain", "", None, -1, self.offsets(), producer_id, 0))

    def end_transaction(self) -> None:
        """As its coordinator does, to whom the marker's commit is told."""
        life = self.life
        if not self.open or self.shard is None or life is None or self.shard is not life.shard:
            return
        producer_id, commits = self.chance.choice(list(self.open)), self.chance.random() < 0.6
        outcome = self.markers.write(
            HERE, producer_id=producer_id, producer_epoch=0, commit=commits, coordinator_epoch=0, transaction_version=1
        )
        if isinstance(outcome, tuple):
            del self.open[producer_id]
            life.expected.append(Written(None, b"commit" if commits else b"abort", producer_id))

    def delete(self) -> None:
        name = self.chance.choice("tu")
        self.ask(
            self.chance.choice(
                (
                    DeleteOffsets("plain", ((name, (0,)),)),
                    DeleteGroup(self.chance.choice(GROUP_NAMES)),
                    ForgetTopic(name, self.topics.id_of(name)),
                )
            )
        )

    def beat(self) -> None:
        member = self.chance.choice(MEMBERS)
        epoch = self.members.get(member, 0)
        leaves = epoch > 0 and self.chance.random() < 0.2
        wanted = ("t",) if epoch == 0 else None
        owned: dict[bytes, tuple[int, ...]] | None = {} if epoch == 0 else None

        def heard(reply: ConsumerHeartbeatReply) -> None:
            self.members[member] = 0 if reply.fault is not None or leaves else reply.member_epoch

        self.ask(
            ConsumerHeartbeat(
                "modern", member, LEAVE if leaves else epoch, None, None, 1_000, wanted, None, None, owned, "c", "h", ""
            ),
            heard,
        )

    def join(self) -> None:
        protocols = (("range", b""),)
        self.ask(
            JoinGroup(
                "moving", "", None, "consumer", protocols, 60, 60, "c", "h", f"fresh{self.chance.random()}", False
            )
        )

    def look(self) -> None:
        """Readers: one who asks the machine, and one who looks at it once all that it knows is committed."""
        if self.chance.random() < 0.6:
            asked = tuple(PartitionsAsked(name, self.topics.id_of(name), (0,)) for name in "tu")
            self.ask(self.chance.choice((FetchOffsets("plain", None, -1, asked, False), NameGroups())))
            return
        shard, life, partition = self.shard, self.life, self.partition
        if shard is None or life is None or shard is not life.shard:
            return
        end = life.end
        with suppress(PartitionLost):
            committed = shard.committed()
            if committed is None:
                self._rests_on(life, end, "a look")
            else:

                def look(committed: asyncio.Future[None]) -> None:
                    if committed.exception() is None and self.partition is partition:
                        with self.failing():
                            self._rests_on(life, end, "a look")

                committed.add_done_callback(look)

    def failing(self) -> Failing:
        return Failing(self)

    # -- what befalls the broker

    async def befall(self) -> None:
        what = self.chance.choice(("no room", "no room", "too few", "failure", "power", "resign", "resign"))
        if what == "no room":
            self.disk.refused = self.chance.choice((1, 2, 4))
        elif what == "too few":
            config = self.partition.log.config
            self.partition.set_config(replace(config, min_insync_replicas=2), fsync=True)
            self.burst()
            await self.some_turns()
            if not self.partition.offline:
                self.partition.set_config(config, fsync=True)
        elif what == "failure":
            self.disk.fail_at = self.disk.changes + self.chance.randint(1, 6)
            self.burst()
            await self.some_turns()
            await self.crash()
        elif what == "power":
            await self.crash()
        elif self.partition.is_leading:
            self.partition.resign()
            self.coordinators.lost(0)
            await self.some_turns()
            self._lead()

    async def crash(self) -> None:
        self.coordinators.lost(0)
        await self.tasks.cancel_all()
        self.disk.cut_power(self.chance)
        self._open()
        # Transactions whose offsets are lost had nothing else here, and are never heard of again.
        self.open = {each: None for each in self.open if each in self.partition.stable.open_transactions}

    # -- time

    async def flush(self) -> None:
        with suppress(DiskFault):
            await self.partition.flush()

    def burst(self) -> None:
        """All this comes in one turn."""
        deeds = [self.commit, self.commit, self.commit_in_transaction, self.end_transaction, self.delete]
        deeds += [self.beat, self.beat, self.join, self.look, self.look]
        for _ in range(self.chance.choice((1, 3, 10))):
            self.chance.choice(deeds)()

    async def some_turns(self) -> None:
        for _ in range(self.chance.randint(1, 4)):
            await asyncio.sleep(0)

    async def live(self) -> None:
        for _ in range(TURNS):
            with self.failing():
                self.burst()
            if self.chance.random() < 0.5:
                self.tasks.spawn("flush", self.flush())
            if self.chance.random() < 0.06:
                await self.befall()
            await self.some_turns()
            with self.failing():
                self.check()
            if self.broken is not None:
                raise self.broken
            if self.chance.random() < 0.3:
                await asyncio.sleep(self.chance.choice((0.001, 0.03, 0.2, 12.0)))  # the longest pause of a rebuild
        await self.heal()

    async def heal(self) -> None:
        """In peace everything is answered."""
        self.disk.refused = 0
        if self.partition.offline:
            await self.crash()
        for _ in range(20):
            await asyncio.sleep(12.0)
            await self.flush()
        shard = self.shard
        if shard is None:
            raise Broken("CoordinatorComesBack: nobody coordinates after 240 s of peace")
        given: list[Any] = []
        self.ask(CommitOffsets("plain", "", None, -1, self.offsets()), given.append)
        await self.some_turns()
        await self.flush()
        await asyncio.sleep(1.0)
        if self.broken is not None:
            raise self.broken
        if not given:
            raise Broken("EverybodyIsAnswered: a commit is not, in peace")
        self.check()
        await self.tasks.cancel_all()


class Failing:
    """What is broken here is told at the end of the turn: the loop would only log it."""

    def __init__(self, world: GatheringWorld) -> None:
        self._world = world

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if isinstance(error, Broken):
            self._world.fail(error)
        return isinstance(error, Broken)


def run(seed: int) -> str:
    """The promise that was broken and how; empty if none was."""
    try:
        live(seed)
    except Broken as broken:
        return str(broken)
    except AssertionError:  # of the broker
        return f"NothingRaises: {traceback.format_exc()}"
    return ""


def live(seed: int) -> GatheringWorld:
    """`Broken` if a promise was."""

    async def run() -> GatheringWorld:
        world = GatheringWorld(seed)
        await world.live()
        return world

    chance = random.Random(seed)
    loop = VirtualLoop()
    logger = logging.getLogger("oncelog")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        with (
            replaced(shards, "GATHERED_BYTES", chance.choice((200, 64 << 10))),
            replaced(shards, "ANSWERS_A_TURN", chance.choice((1, 3, 64))),
        ):
            return loop.run_until_complete(run())
    finally:
        logger.setLevel(level)
        loop.run_until_complete(_end())
        loop.close()


async def _end() -> None:
    for task in asyncio.all_tasks():
        if task is not asyncio.current_task():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

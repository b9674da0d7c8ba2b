"""Gives each partition the role on this broker that the metadata says, and makes a follower's log equal to its
leader's.

A follower asks its leader by Fetch, as a consumer does: with one connection and one session for all partitions that the
same broker leads. It appends the batches as they come. Where its history differs from the leader's, the answer says
from which offset on (KIP-320). The follower cuts its log there, and asks again.

What always holds:
 - The offset that a follower asks for says that it holds everything below, in this history; where durability is
   `fsync`, on disk (R12). An answer is used only if the partition still has the role in which the question was asked.
 - A failure in one partition affects no other. The partition pauses, longer each time, and its trouble is shown; the
   others go on.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice

from log.batch import HEADER_BYTES, BatchHeader, CorruptBatch, read_header
from log.cutting import distrust, durable_after_cut
from log.disk import DiskFault
from log.ids import TopicPartition
from log.laying import is_large
from log.partition_log import PartitionLog
from log.removal import keep_start, raise_start_offset
from log.replica import cut_by_epoch
from log.unbroken import unbroken
from service.broker.fetch_sessions import LookAround
from service.broker.housekeeper import Housekeeper
from service.broker.in_sync import InSyncSets
from service.broker.large import checksum_of, laid_beside
from service.broker.partition import NOBODY, Following, Partition
from service.broker.partition_table import PartitionTable
from service.broker.throttling import Throttle, Throttles
from service.client.connection import Client, ClientError
from service.client.failures import error_name
from service.cluster.controller import RaiseLeaderEpoch, Refusal
from service.cluster.image import Delta, PartitionState, RegisteredBroker
from service.cluster.metadata import ClusterMetadata, MetadataLost
from service.ports import Env
from service.settings.broker import BrokerConfig
from service.turns import Turn, breathe, done_in_turns, in_turns
from service.wire.error_codes import ErrorCode
from service.wire.messages import (
    ApiVersionsRequest,
    FetchPartition,
    FetchRequest,
    FetchRequestReplicaState,
    FetchResponse,
    FetchResponsePartitionData,
    FetchTopic,
    ForgottenTopic,
)

logger = logging.getLogger("oncelog.replication")

FIRST_REST_S = 0.02
"""The first pause before a leader, or one partition of it, is asked again. Each further pause is twice as long."""
SLOW_S = 0.05
"""The longest time for which a flush, a large batch that is laid beside its log, or a change of a log's files delays
the other partitions of a fetch. A partition for which it takes longer is left out of the fetch until it is done.
"""
NO_SESSION, SESSION_BEGINS = 0, 0
LAST_SESSION_EPOCH = 2**31 - 1
ASKED_A_TURN = 500
"""About so many partitions a question is made in one turn of the loop. A round takes up no more of those of which
nobody knows whether there is news.
"""
BATCHES_A_TURN = 100
"""The most batches that are appended in one turn of the loop, and the most partitions that have none."""
BATCH_WORTH_BYTES = 16 << 10
"""So many bytes take about as long to append as a batch."""
CHANGES_BYTES = 32 << 20
"""So many bytes of answers are kept for logs whose files have to change first. Beyond it, an answer for one more such
log is not kept: it comes again when there is room. Otherwise a slow disk costs as much memory as partitions need it.
"""
LIVES_A_TURN = 1_000
"""So many partitions are told in one turn that a follower has begun another life."""
RAISED_AGAIN_S = 1.0
"""The pause before a leader epoch that could not be raised is tried again."""
SEGMENT_WORTH = 16
"""To begin a segment takes about as long as to append so many batches."""

TopicIdPartition = tuple[bytes, int]
"""Topic id and partition."""


@dataclass(frozen=True, slots=True)
class FetchingParts:
    """The parts of the broker that copying from leaders uses."""

    env: Env
    config: BrokerConfig
    metadata: ClusterMetadata
    housekeeper: Housekeeper


@dataclass(slots=True)
class Kept:
    """The bytes of answers that are kept for changes under way, of all leaders."""

    bytes: int = 0

    @property
    def is_full(self) -> bool:
        return self.bytes >= CHANGES_BYTES


class Replication:
    def __init__(self, parts: FetchingParts, partitions: PartitionTable) -> None:
        self._parts = parts
        self._partitions = partitions
        self._fetchers: dict[int, Fetcher] = {}
        self._kept = Kept()
        self._raising: dict[TopicPartition, int] = {}
        """The leader epochs in which this broker is to lead, instead of one that the log has left behind."""
        self.in_sync = InSyncSets(parts.env, parts.config, parts.metadata, partitions)
        self.throttles = Throttles(parts.env, parts.metadata)

    def begin(self) -> None:
        self.throttles.begin()
        self._parts.metadata.subscribe(self._brokers_changed)
        self._parts.env.tasks.spawn("in-sync sets", self.in_sync.run())

    def lead(self, partition: Partition, state: PartitionState, *, fsync: bool) -> bool:
        """This broker leads the partition. Returns True if a leadership begins, False if only the replicas of the
        present one may have changed.
        """
        assert state.leader == self._parts.metadata.broker_id, "the metadata names this broker"
        begins = not partition.is_leading or partition.leader_epoch != state.leader_epoch
        if not begins and partition.replicas.replicas == state.replicas:
            partition.decided(state.isr, state.partition_epoch, state.eligible)
            self._release(partition)
            return False
        self._forget(partition)
        partition.lead(
            state.leader_epoch,
            state.leader,
            state.replicas,
            state.isr,
            fsync=fsync,
            partition_epoch=state.partition_epoch,
            eligible=state.eligible,
            now_ms=self.in_sync.now_ms(),
        )
        self._release(partition)
        if begins:
            partition.close_gap(now_ms=self._parts.env.clock.wall_ms())
        return begins

    def must_raise(self, partition: Partition, state: PartitionState) -> bool:
        """Whether this broker is to lead in an epoch that the log has left behind: the metadata was brought back from a
        backup that is older. Followers would refuse what is written in it. So this broker asks for a later epoch.
        """
        latest = partition.log.epochs.latest
        if latest <= state.leader_epoch:
            return False
        if partition.topic_partition not in self._raising:
            logger.warning(
                "%s: its log goes on to leader epoch %d, but the metadata knows %d: it is older. Whatever this broker's"
                " log does not have is cut from the other copies",
                *(partition.topic_partition, latest, state.leader_epoch),
            )
        if not self._raising:
            self._parts.env.tasks.spawn("leader epochs that the metadata does not know", self._raise_epochs())
        self._raising[partition.topic_partition] = latest + 1
        return True

    async def _raise_epochs(self) -> None:
        metadata = self._parts.metadata
        try:
            while self._raising:
                topic_partition, at_least = next(iter(self._raising.items()))
                try:
                    raised = await metadata.execute(RaiseLeaderEpoch(topic_partition, metadata.broker_id, at_least))
                except Exception as error:  # until it leads in a later epoch, nobody can use the partition
                    if not isinstance(error, MetadataLost):
                        logger.exception("%s can't lead in epoch %d yet", topic_partition, at_least)
                    self._raising[topic_partition] = self._raising.pop(topic_partition)  # others come first
                    await asyncio.sleep(RAISED_AGAIN_S)
                    continue
                if isinstance(raised, Refusal) and raised.error is not ErrorCode.NOT_LEADER_OR_FOLLOWER:
                    logger.error("%s can't lead in epoch %d: %s", topic_partition, at_least, raised.message)
                if self._raising.get(topic_partition) == at_least:
                    del self._raising[topic_partition]
        finally:
            self._raising.clear()

    def _release(self, partition: Partition) -> None:
        """If fewer replicas must be in sync than before, there may be enough now while others are still eligible. A
        proposal then takes the eligible ones out, so that nothing waits for them.
        """
        if partition.replicas.is_held_back:
            self.in_sync.consider(partition)

    def follow(self, partition: Partition, state: PartitionState, *, fsync: bool) -> None:
        """Another broker leads the partition, or no broker does, or this one `must_raise` the epoch before it does."""
        leader = NOBODY if state.leader == self._parts.metadata.broker_id else state.leader
        role = partition.follow(leader, state.leader_epoch, fsync=fsync)
        role.in_sync = self._parts.metadata.broker_id in state.isr
        if leader == NOBODY:
            self._forget(partition)
            return
        fetcher = self._fetchers.get(state.leader)
        if fetcher is None:
            fetcher = Fetcher(state.leader, self._parts, self.throttles.following, self._kept)
            self._fetchers[state.leader] = fetcher
        if not fetcher.follows(partition, role):
            self._forget(partition)
            fetcher.add(partition, role)

    def stop(self, partition: Partition) -> None:
        """This broker does not hold the partition any more, or does not know what the metadata says now."""
        self._forget(partition)
        partition.resign()

    def fail(self, partition: Partition) -> None:
        """The partition's disk has failed."""
        self._forget(partition)
        partition.fail()
        self.in_sync.give_up(partition)

    def leave_to_others(self, partition: Partition, error: DiskFault | CorruptBatch) -> None:
        """What is committed here can't be replayed. If this broker led, nobody would be the coordinator. So this copy
        leaves the in-sync set, unless nobody else could lead (`InSyncSets.give_up`).
        """
        if isinstance(error, CorruptBatch):
            logger.critical(
                "%s is damaged and not served. `oncelog log verify` shows where. If others are in sync, stop the broker"
                " and remove %s/%s, and it is copied anew",
                *(partition.topic_partition, partition.folder.name, partition.log.folder),
            )
        else:
            logger.critical(
                "%s can't be read and is not served until this broker starts again", partition.topic_partition
            )
        self.fail(partition)
        if isinstance(error, CorruptBatch) and partition.is_replicated:
            self._parts.env.tasks.spawn(f"damage of {partition.topic_partition}", partition.note_damage())

    def _forget(self, partition: Partition) -> None:
        for fetcher in self._fetchers.values():
            fetcher.forget(partition)

    def followed(self) -> Iterable["FollowedPartition"]:
        """The state of each partition that this broker follows."""
        return [followed for leader in sorted(self._fetchers) for followed in self._fetchers[leader].followed()]

    def stuck(self, since_s: float) -> Iterable[tuple[int, TopicPartition, str]]:
        """What this broker has not been able to copy since then: the leader, the partition, and why."""
        for leader, fetcher in list(self._fetchers.items()):
            for followed in fetcher.followed():
                trouble, troubled_s = fetcher.trouble or (followed.trouble, followed.troubled_s)
                if followed.held_up_s is not None and (hold := followed.hold):
                    trouble, troubled_s = fetcher.trouble or (hold, followed.held_up_s)
                if trouble and troubled_s <= since_s:
                    yield leader, followed.partition.topic_partition, trouble

    def _brokers_changed(self, delta: Delta) -> None:
        for broker_id in delta.brokers:
            old, new = delta.old.brokers.get(broker_id), delta.new.brokers.get(broker_id)
            if new is None or (old is not None and old.epoch == new.epoch):
                continue
            if broker_id in self._fetchers:
                self._fetchers[broker_id].leader_is_back()
            self._parts.env.tasks.spawn(f"another life of broker {broker_id}", self._began(broker_id, new.epoch))

    async def _began(self, broker_id: int, broker_epoch: int) -> None:
        """A broker has begun another life. Until a partition hears of that, it is as if this broker heard later of the
        registration.
        """
        async for partition in in_turns(self._partitions, LIVES_A_TURN):
            if partition.is_replicated and partition.is_leading:
                partition.replicas.began_another_life(broker_id, broker_epoch, now_ms=self.in_sync.now_ms())


@dataclass(slots=True)
class FollowedPartition:
    """One partition that this broker follows, and the state of copying it."""

    partition: Partition
    role: Following
    rest_s: float = 0.0
    rests_until_s: float = 0.0
    trouble: str = ""
    troubled_s: float = 0.0
    """Since when there has been trouble."""
    flushing: asyncio.Task[None] | None = None
    laying: asyncio.Task[None] | None = None
    """The last large batch, on its way into the log."""
    changing: asyncio.Task[None] | None = None
    """The last answer for which more than the end of the log had to change."""
    waits_for_folder: bool = False
    """A large batch came while the folder was busy with another one."""
    waits_for_room: Kept | None = None
    """Its files had to change, and there was no room for the answer."""
    is_held_back: bool = False
    """The throttle lets nothing be copied."""
    held_up_s: float | None = None
    """Since when there is a `hold`."""

    @property
    def hold(self) -> str:
        """Why nothing can be appended yet: what was copied last is not durable, the files are changed, a large batch is
        laid, this partition's or another's that comes next to this one's, or the throttle allows none. Empty if it can.
        """
        folder = self.partition.folder
        if self.partition.must_flush:
            return f"the data folder {folder.name} is slow to make durable what is copied"
        if self.changing is not None and not self.changing.done():
            return f"its files in {folder.name} have to change first, and are in use for long, or their disk is slow"
        is_laid = self.laying is not None and not self.laying.done()
        if is_laid or (self.waits_for_folder and folder.copying.locked()):
            return f"the data folder {folder.name} is slow to take a large batch"
        if self.waits_for_room is not None and self.waits_for_room.is_full:
            return "its files have to change first, and wait until those of others have changed"
        if self.is_held_back:
            return "this broker's follower.replication.throttled.rate holds it back"
        return ""

    @property
    def holds(self) -> bool:
        """Whether the partition still has `role`."""
        return self.partition.role is self.role

    def rest(self, now_s: float, longest_s: float, trouble: str) -> None:
        self.rest_s = min(max(2 * self.rest_s, FIRST_REST_S), longest_s)
        self.rests_until_s = now_s + self.rest_s
        if trouble != self.trouble:
            self.troubled_s = self.troubled_s if self.trouble else now_s
            self.trouble = trouble
            logger.info("%s can't follow broker %d: %s", self.partition.topic_partition, self.role.leader, trouble)

    def get_on(self) -> None:
        if self.trouble:
            logger.info("%s follows broker %d again", self.partition.topic_partition, self.role.leader)
        self.rest_s, self.trouble = 0.0, ""


class Fetcher:
    """Copies the partitions that one broker leads and this one follows. Its task begins with the first partition, and
    ends when there is none left.

    A round costs what has changed, not what is followed. A partition is quiet when the leader's session has the present
    question about it, and nothing came in answer; `_stirred` has those that are not. All are looked at again
    and again: retention raises a log's start, which is part of the question, and the fetcher has no part in that. What
    is new waits in `_unasked`: a round takes up some of it.
    """

    def __init__(self, leader: int, parts: FetchingParts, throttle: Throttle, kept: Kept) -> None:
        self._leader = leader
        self._parts = parts
        self._throttle = throttle
        self._kept = kept
        self._followed: dict[TopicIdPartition, FollowedPartition] = {}
        self._stirred: dict[TopicIdPartition, FollowedPartition] = {}
        self._unasked: dict[TopicIdPartition, FollowedPartition] = {}
        self._gone: dict[TopicIdPartition, None] = {}
        self._look_around = LookAround[TopicIdPartition]()
        self._running = False
        self._client: Client | None = None
        self._connecting: asyncio.Timeout | None = None
        """The end of the patience with an attempt to connect that is under way."""
        self._session_id, self._session_epoch = NO_SESSION, SESSION_BEGINS
        self._told: dict[TopicIdPartition, FetchPartition] = {}
        self._rests = False
        """The throttle lets nothing be copied of what it concerns."""
        self._rest_s = 0.0
        self.trouble: tuple[str, float] | None = None
        """Why the leader can't be asked, and since when."""
        self._woken = asyncio.Event()
        self._is_parked = False
        self._has_hurried = False
        """Whether the leader was told that the fetch need not wait any longer."""

    # -- what is followed

    def followed(self) -> list[FollowedPartition]:
        return list(self._followed.values())

    def follows(self, partition: Partition, role: Following) -> bool:
        followed = self._followed.get(_key(partition))
        return followed is not None and followed.partition is partition and followed.role is role

    def add(self, partition: Partition, role: Following) -> None:
        assert partition.role is role and role.leader == self._leader, "each partition is copied from its leader"
        key = _key(partition)
        self._followed[key] = self._unasked[key] = FollowedPartition(partition, role)
        self._gone.pop(key, None)
        self._woken.set()
        if not self._running:
            self._running = True
            self._parts.env.tasks.spawn(f"fetcher from broker {self._leader}", self._run())
        elif self._is_parked and not self._has_hurried:
            self._has_hurried = True
            self._parts.env.tasks.spawn(f"hurry to broker {self._leader}", self._hurry())

    def forget(self, partition: Partition) -> None:
        key = _key(partition)
        followed = self._followed.get(key)
        if followed is not None and followed.partition is partition:
            del self._followed[key]
            self._stirred.pop(key, None)
            self._unasked.pop(key, None)
            self._gone[key] = None

    def leader_is_back(self) -> None:
        """The leader has registered again, perhaps at another address."""
        self._rest_s = 0.0
        self._woken.set()
        if self._client is not None:
            self._client.abort()
        if self._connecting is not None and not self._connecting.expired():
            self._connecting.reschedule(0.0)  # the former address may be silent for long

    async def _hurry(self) -> None:
        """The fetch that waits at the leader does not include the new partitions. The leader answers it when another
        request comes, and the session goes on.
        """
        if self._client is not None:
            with suppress(OSError, ClientError):  # the fetch meets the same
                await self._client.request(ApiVersionsRequest(), version=0)

    def _now_s(self) -> float:
        return self._parts.env.clock.monotonic()

    # -- asking

    async def _run(self) -> None:
        try:
            while self._followed:
                try:
                    await self._round()
                except Exception as error:
                    logger.exception("fetching from broker %d failed; it is tried again", self._leader)
                    await self._lost(error)
        finally:
            self._running = False
            client, self._client = self._client, None
            if client is not None:
                client.abort()

    async def _round(self) -> None:
        self._woken.clear()
        await self._flush()
        try:
            client = await self._connected()
        except (OSError, ClientError, TimeoutError) as error:
            await self._lost(error)
            return
        now_s, rest_s = self._now_s(), self._throttle.rest_s
        for key in list(islice(self._unasked, ASKED_A_TURN)):
            self._stirred[key] = self._unasked.pop(key)
        begins_rest, self._rests = bool(rest_s) and not self._rests, bool(rest_s)
        # What is quiet is in the leader's session, and more of it would come.
        due_to_look = self._followed if begins_rest else self._look_around.due(self._followed, now_s * 1000)
        for key in due_to_look:
            if key not in self._unasked:
                self._stirred.setdefault(key, self._followed[key])
        rests_s = 0.0 if self._unasked else float("inf")
        if self._session_epoch == SESSION_BEGINS:
            self._told.clear()
        due: dict[TopicIdPartition, FollowedPartition] = {}
        news: dict[bytes, FetchTopic] = {}
        turn = Turn(ASKED_A_TURN)
        for key, followed in list(self._stirred.items()):
            if turn.is_over():
                await breathe()
            # A question is made in the turn that finds it due: meanwhile any partition may get another role and more
            # bytes.
            if self._stirred.get(key) is not followed:
                continue
            if not followed.holds:
                self.forget(followed.partition)  # it turned out to be damaged
                continue
            followed.is_held_back = rest_s > 0 and self._throttle.concerns(
                followed.partition.topic_partition, self._parts.metadata.broker_id
            )
            if followed.hold:
                followed.held_up_s = now_s if followed.held_up_s is None else followed.held_up_s
                rests_s = min(rests_s, rest_s if followed.is_held_back else SLOW_S)
            elif followed.rests_until_s <= now_s:
                followed.held_up_s, followed.waits_for_room = None, None
                due[key] = followed
                self._gone.pop(key, None)
                self._add_news(news, key, followed)
                continue
            else:
                rests_s = min(rests_s, followed.rests_until_s - now_s)
            if key in self._told:
                self._gone[key] = None
        if not due and len(self._stirred) + len(self._unasked) == len(self._followed):
            await self._wait(rests_s if self._followed else FIRST_REST_S)
            return
        try:
            answer = await self._ask(client, list(news.values()), rests_s)
        except (OSError, ClientError, TimeoutError) as error:
            await self._lost(error)
            return
        self._rest_s, self.trouble = 0.0, None
        if answer.error_code:
            logger.info("broker %d ended the fetch session: %s", self._leader, error_name(answer.error_code))
            self._end_session()
            return
        # A dictionary keeps the order of the answer. A set would bring the partitions into another one in each process.
        named = dict.fromkeys(
            (topic.topic_id, data.partition_index) for topic in answer.responses for data in topic.partitions
        )
        for key in named:
            if (told_of := self._followed.get(key)) is not None:
                self._stirred[key] = told_of
                self._unasked.pop(key, None)
        await self._take(answer)
        for key, followed in due.items():
            if key not in named:  # nothing is new, and nothing is wrong
                followed.get_on()
                if self._session_id != NO_SESSION and self._stirred.get(key) is followed:
                    del self._stirred[key]

    async def _wait(self, longest_s: float) -> None:
        try:
            async with asyncio.timeout(longest_s):
                await self._woken.wait()
        except TimeoutError:
            return

    async def _connected(self) -> Client:
        if self._client is None:
            broker = self._parts.metadata.image.brokers.get(self._leader)
            if broker is None:
                raise ConnectionError(f"broker {self._leader} is not registered")
            host, port = address_of(broker, self._parts.config.inter_broker_listener_name)
            client = Client(host, port, f"replica-{self._parts.metadata.broker_id}")
            async with asyncio.timeout(self._parts.config.replica_socket_timeout_ms / 1000) as self._connecting:
                try:
                    await client.connect()
                finally:
                    self._connecting = None
            self._client = client
            self._end_session()
        return self._client

    async def _lost(self, error: Exception) -> None:
        """The connection broke, or none could be made."""
        client, self._client = self._client, None
        if client is not None:
            client.abort()
        why = str(error) or type(error).__name__
        if self.trouble is None:
            logger.info("broker %d can't be asked: %s", self._leader, why)
        self.trouble = why, self._now_s() if self.trouble is None else self.trouble[1]
        self._rest_s = min(max(2 * self._rest_s, FIRST_REST_S), self._parts.config.replica_fetch_backoff_ms / 1000)
        await self._wait(self._rest_s)

    def _end_session(self) -> None:
        self._session_epoch = SESSION_BEGINS
        self._told.clear()
        self._gone.clear()
        self._stirred.clear()
        self._unasked = dict(self._followed)

    async def _ask(self, client: Client, news: list[FetchTopic], until_next_s: float) -> FetchResponse:
        config = self._parts.config
        wait_ms = int(min(config.replica_fetch_wait_max_ms, max(until_next_s, 0.0) * 1000))
        request = FetchRequest(
            replica_state=FetchRequestReplicaState(self._parts.metadata.broker_id, self._parts.metadata.broker_epoch),
            max_wait_ms=wait_ms,
            min_bytes=config.replica_fetch_min_bytes,
            max_bytes=config.replica_fetch_response_max_bytes,
            session_id=self._session_id,
            session_epoch=self._session_epoch,
            topics=news,
            forgotten_topics_data=self._not_wanted(),
        )
        self._is_parked, self._has_hurried = True, False
        try:
            async with asyncio.timeout((wait_ms + config.replica_socket_timeout_ms) / 1000):
                answer = await client.request(request)
        finally:
            self._is_parked = False
        if not answer.error_code:
            self._session_id = answer.session_id
            if self._session_id == NO_SESSION:  # the leader has no room: each request names all
                self._session_epoch = SESSION_BEGINS
            else:
                self._session_epoch = 1 if self._session_epoch == LAST_SESSION_EPOCH else self._session_epoch + 1
        return answer

    def _add_news(self, news: dict[bytes, FetchTopic], key: TopicIdPartition, followed: FollowedPartition) -> None:
        """The question about this partition, if the leader's session does not have it yet."""
        wanted = self._wanted(followed)
        if self._told.get(key) != wanted:
            self._told[key] = wanted
            news.setdefault(key[0], FetchTopic(topic_id=key[0])).partitions.append(wanted)

    def _wanted(self, followed: FollowedPartition) -> FetchPartition:
        log = followed.partition.log
        end_offset = log.end_offset
        return FetchPartition(
            followed.partition.topic_partition.partition,
            followed.role.leader_epoch,
            end_offset,
            log.epochs.epoch_at(end_offset - 1) if end_offset > log.start_offset else -1,
            log.start_offset,
            self._parts.config.replica_fetch_max_bytes,
        )

    def _not_wanted(self) -> list[ForgottenTopic]:
        """What the leader's session has, and is not asked for now."""
        topics: dict[bytes, ForgottenTopic] = {}
        for key in self._gone:
            if self._told.pop(key, None) is not None:
                topics.setdefault(key[0], ForgottenTopic(topic_id=key[0])).partitions.append(key[1])
        self._gone.clear()
        return list(topics.values())

    # -- taking

    async def _take(self, answer: FetchResponse) -> None:
        turn, loop = Turn(BATCHES_A_TURN), asyncio.get_running_loop()
        until_s = loop.time() + SLOW_S
        for topic in answer.responses:
            for data in topic.partitions:
                key = topic.topic_id, data.partition_index
                followed, asked = self._followed.get(key), self._told.get(key)
                if followed is None or asked is None or not self._is_answered(followed, asked):
                    continue  # its role has changed since
                if _changes_files(followed.partition.log, data):
                    if data.records and self._kept.is_full:
                        followed.waits_for_room = self._kept
                        continue  # it comes again
                    changing = self._take_beside(followed, data, turn)
                    await asyncio.wait([changing], timeout=max(until_s - loop.time(), 0))
                else:
                    await self._alone(followed, partial(self._take_one, followed, data, turn))
                if turn.is_over():
                    await breathe()

    def _take_beside(
        self, followed: FollowedPartition, data: FetchResponsePartitionData, turn: Turn
    ) -> asyncio.Task[None]:
        """The same for an answer for which this may have to wait: for others that use the files, and for the disk. If
        that takes long, it goes on beside the fetches for other partitions.
        """
        assert not isinstance(data.records, list), "what is received is bytes"
        kept = len(data.records or b"")
        if is_large(kept):
            kept += self._parts.config.replica_fetch_response_max_bytes  # the rest of the answer is kept with it
        else:
            data.records = bytes(data.records or b"")
        self._kept.bytes += kept
        name = f"change of {followed.partition.topic_partition}"
        work = self._alone(followed, partial(self._take_one, followed, data, turn))
        followed.changing = self._parts.env.tasks.spawn(name, work)
        followed.changing.add_done_callback(lambda _: self._kept_no_more(kept))
        return followed.changing

    def _kept_no_more(self, size: int) -> None:
        self._kept.bytes -= size

    async def _alone(self, followed: FollowedPartition, work: Callable[[], Awaitable[None]]) -> None:
        """Do the work. If it fails, the partition pauses, and no other is affected."""
        try:
            await work()
        except CorruptBatch as error:
            self._rest(followed, str(error))
        except DiskFault as fault:
            followed.partition.folder.blame(fault, followed.partition.topic_partition)
            self._rest(followed, str(fault))
        except Exception:  # an error in one partition
            logger.exception("%s can't follow", followed.partition.topic_partition)
            self._rest(followed, "an error of this broker's own")

    @staticmethod
    def _is_answered(followed: FollowedPartition, asked: FetchPartition) -> bool:
        """Whether the answer is still of use: the partition has the same role and the same end as when it was asked
        for.
        """
        same = asked.current_leader_epoch == followed.role.leader_epoch
        return same and followed.holds and asked.fetch_offset == followed.partition.log.end_offset

    async def _take_one(self, followed: FollowedPartition, data: FetchResponsePartitionData, turn: Turn) -> None:
        partition, log = followed.partition, followed.partition.log
        if not followed.holds:
            return
        # An empty log has nothing to lose, whether it stands below or above the leader's log.
        reach = log.end_offset if log.end_offset > log.start_offset else -1
        # Deletions that stood above this log's end, and below this offset, have left the leader's log.
        forgotten = 0 if data.snapshot_id is None else data.snapshot_id.end_offset
        out_of_range = data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        if out_of_range and (data.log_start_offset > reach or (forgotten and not followed.role.in_sync)):
            await self._start_over(followed, data.log_start_offset)
        elif data.error_code:
            self._rest(followed, f"it answers {error_name(data.error_code)}")
        elif data.diverging_epoch is not None:
            await self._cut(followed, data.diverging_epoch.epoch, data.diverging_epoch.end_offset)
        else:
            if data.records:
                assert not isinstance(data.records, list), "what is received is bytes"
                records = memoryview(data.records)
                if (begins := _begins_inside(records, log)) is not None:
                    await self._start_over(followed, begins)
                if _lacks_deletions(log, data):
                    await self._forget(followed, forgotten)
                is_taken = await self._append(followed, records, turn)
                self._throttle.moved(partition.topic_partition, self._parts.metadata.broker_id, len(data.records))
                if not is_taken or not followed.holds:
                    return
            assert followed.holds, "a high watermark is learned in the role in which it was asked for"
            partition.learn_high_watermark(data.high_watermark)
            await self._raise_start(followed, data.log_start_offset)
            followed.get_on()

    def _rest(self, followed: FollowedPartition, trouble: str) -> None:
        followed.rest(self._now_s(), self._parts.config.replica_fetch_backoff_ms / 1000, trouble)

    async def _append(self, followed: FollowedPartition, records: memoryview, turn: Turn) -> bool:
        """Append the whole batches of an answer. An incomplete batch at its end comes again with the next answer. Other
        tasks have turns in between. If the partition then has another role, the rest is not appended. Nor is it behind
        a large batch that is not in the log yet, or failed: False.

        A batch is not appended if the one behind it overlaps: the base offset, which no checksum covers, may have
        rotted and be too high, and the offsets below it would be lost here.
        """
        partition = followed.partition
        now_ms = self._parts.env.clock.wall_ms()
        at, header = 0, _header_at(records, 0)
        while header is not None and followed.holds:
            end = at + header.size_bytes
            if end > len(records):
                return True
            behind = _header_at(records, end)
            if behind is not None and behind.base_offset < header.next_offset:
                told = f"offsets {header.base_offset} to {header.last_offset}, and then {behind.base_offset}"
                raise CorruptBatch(f"the leader sent {told}")
            batch = records[at:end]
            segments = len(partition.log.segments)
            if is_large(len(batch)):
                if not await self._take_large(followed, batch, header):
                    return False
            else:
                partition.append_replicated(batch, header, now_ms=now_ms)
            worth = 1 + header.size_bytes // BATCH_WORTH_BYTES
            worth += SEGMENT_WORTH * max(len(partition.log.segments) - segments, 0)
            at, header = end, behind
            if turn.is_over(worth):
                await breathe()
        return True

    async def _take_large(self, followed: FollowedPartition, batch: memoryview, header: BatchHeader) -> bool:
        """Append a large batch. If that takes long, it goes on beside the fetches for other partitions: their folders
        may be in order. A folder takes one batch at a time, and no more of them are kept in memory. Returns False if
        the batch is not in the log now.
        """
        partition = followed.partition
        followed.waits_for_folder = partition.folder.copying.locked()
        if followed.waits_for_folder:
            return False  # it comes again
        name = f"large batch of {partition.topic_partition}"
        work = self._alone(followed, partial(self._append_large, followed, batch, header))
        followed.laying = self._parts.env.tasks.spawn(name, work)
        await asyncio.wait([followed.laying], timeout=SLOW_S)
        return followed.laying.done() and partition.log.end_offset == header.next_offset

    async def _append_large(self, followed: FollowedPartition, batch: memoryview, header: BatchHeader) -> None:
        """Append a batch that is laid beside the log first. It is not appended if the partition has another role then,
        or the log has moved to another folder: it comes again, if it is still wanted.
        """
        partition, env = followed.partition, self._parts.env
        log = partition.log
        async with partition.folder.copying:
            checksum = await env.blocking(checksum_of, batch)
            if not followed.holds or (laid := await laid_beside(env, partition, log, batch)) is None:
                return
        try:
            if followed.holds and laid.fits(log):
                partition.append_replicated(batch, header, now_ms=env.clock.wall_ms(), checksum=checksum, laid=laid)
        finally:
            laid.discard()

    async def _raise_start(self, followed: FollowedPartition, leader_start_offset: int) -> None:
        log = followed.partition.log
        start_offset = min(leader_start_offset, log.end_offset)
        if start_offset > log.start_offset:
            await raise_start_offset(log, start_offset)

    async def _cut(self, followed: FollowedPartition, leader_epoch: int, leader_end_offset: int) -> None:
        partition, log = followed.partition, followed.partition.log
        offset = cut_by_epoch(
            log.epochs, log.end_offset, leader_epoch=leader_epoch, leader_end_offset=leader_end_offset
        )
        assert offset >= 0, "a cut leaves the log's beginning where it is"
        if offset >= log.end_offset:
            self._rest(followed, f"its history parted from ours at offset {leader_end_offset}, where ours ends")
            return
        logger.info(
            "%s is cut from offset %d to %d: broker %d has another history from there on",
            *(partition.topic_partition, log.end_offset, offset, self._leader),
        )
        durable = durable_after_cut(log, offset)
        async with (
            self._parts.housekeeper.distrusting(partition, durable),
            log.alone(),
            _distrusting(log, durable, offset),
        ):
            # Retention or the cleaner may have changed the segments meanwhile, so that a cut may restart the log now.
            # Then it is not what was prepared for: the next round asks again.
            is_cut = False
            if followed.holds and durable_after_cut(log, offset) >= durable:
                is_cut = await done_in_turns(partition.cut(offset))
            if not is_cut:
                await keep_start(log)

    async def _forget(self, followed: FollowedPartition, forgotten_below: int) -> None:
        """The batches that are copied now lack deletions. So it is noted that this log lacks them, and if it is empty,
        its views forget what those deletions would have ended.
        """
        log = followed.partition.log
        if log.start_offset == log.end_offset:
            await self._start_over(followed, log.end_offset)
        async with log.alone():
            if followed.holds:
                await log.forget_below(forgotten_below)
            if not followed.holds:  # another role has begun meanwhile, without what would have been copied
                log.forgotten_below = min(log.forgotten_below, log.end_offset)

    async def _start_over(self, followed: FollowedPartition, offset: int) -> None:
        partition, log = followed.partition, followed.partition.log
        if log.start_offset < log.end_offset:
            logger.warning(
                "%s starts over at offset %d, where the log of broker %d begins: it ended at %d, and can't go on from"
                " there",
                *(partition.topic_partition, offset, self._leader, log.end_offset),
            )
        async with self._parts.housekeeper.distrusting(partition, 0), log.alone(), _distrusting(log, 0, offset):
            if followed.holds:
                await done_in_turns(partition.start_over(offset))
            else:
                await keep_start(log)

    async def _flush(self) -> None:
        """Make durable what was copied. A flush that was begun in an earlier round is not waited for."""
        begun: list[asyncio.Task[None]] = []
        for followed in self._stirred.values():
            if followed.partition.must_flush and (followed.flushing is None or followed.flushing.done()):
                name = f"flush {followed.partition.topic_partition}"
                followed.flushing = self._parts.env.tasks.spawn(name, self._flush_one(followed))
                begun.append(followed.flushing)
        if begun:
            await asyncio.wait(begun, timeout=SLOW_S)

    async def _flush_one(self, followed: FollowedPartition) -> None:
        partition = followed.partition
        try:
            await partition.flush()
        except DiskFault as fault:
            partition.folder.fail(fault)
            self._rest(followed, str(fault))


def _changes_files(log: PartitionLog, data: FetchResponsePartitionData) -> bool:
    """Whether more may follow from this answer than that its batches are appended."""
    if data.error_code:
        return data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    if data.diverging_epoch is not None or data.log_start_offset > log.start_offset:
        return True
    return bool(data.records) and (log.start_offset == log.end_offset or _lacks_deletions(log, data))


def _lacks_deletions(log: PartitionLog, data: FetchResponsePartitionData) -> bool:
    """Whether the batches of this answer lack deletions, and the log does not know that yet."""
    if data.snapshot_id is None:
        return False
    forgotten = data.snapshot_id.end_offset
    return forgotten > log.forgotten_below or (forgotten > 0 and log.start_offset == log.end_offset)


def _key(partition: Partition) -> TopicIdPartition:
    return bytes(partition.topic_id), partition.topic_partition.partition


def address_of(broker: RegisteredBroker, listener: str | None) -> tuple[str, int]:
    """The address at which other brokers ask this broker."""
    endpoint = (broker.endpoint(listener) if listener is not None else None) or broker.endpoints[0]
    return endpoint.host, endpoint.port


@asynccontextmanager
async def _distrusting(log: PartitionLog, durable: int, offset: int) -> AsyncIterator[None]:
    """`distrust` before a cut. If the cut fails, or the task is cancelled before it, the start is kept again: after a
    crash, what was deleted below it could be read.
    """
    try:
        await unbroken(distrust(log, durable, offset))
        yield
    except BaseException:
        with suppress(DiskFault):  # the first fault is told, and the disk remembers its own faults
            await unbroken(keep_start(log))
        raise


def _header_at(records: memoryview, at: int) -> BatchHeader | None:
    """The header of the batch at `at`; None if the answer ends before it or inside it."""
    return read_header(records, at) if len(records) - at >= HEADER_BYTES else None


def _begins_inside(records: memoryview, log: PartitionLog) -> int | None:
    """The base offset of the first batch, if this log is empty and stands inside that batch: the leader's log begins
    there.
    """
    if log.start_offset < log.end_offset or len(records) < HEADER_BYTES:
        return None
    header = read_header(records)
    return header.base_offset if header.base_offset < log.end_offset <= header.last_offset else None

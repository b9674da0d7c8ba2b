# Hot path: one call a Fetch request, one `_read` a fetched partition; `python -m tests.bench --only throughput`
# answers for it.
"""Fetch, versions 4 to 18 (7: sessions, 12: leader epochs, 13: topic ids).

Answers hand out stored bytes as slices of segment files; nothing is read here. The first partition with data gives
at least one batch however small the limits are, so that a reader always gets on. With too little to say the request
waits, until enough has become readable or its time is over.

Gaps: no preferred read replica (version 11) is ever named; a diverging epoch (version 12) is told to whoever sends
its last fetched epoch.
"""

import asyncio
from collections.abc import Awaitable, Iterable
from dataclasses import dataclass

from log.batch import CorruptBatch
from log.disk import DiskFault
from service.api.list_offsets import leader_epoch_error
from service.broker.fetch_sessions import FIRST_EPOCH, SESSIONLESS_EPOCH, FetchSession, SessionKey, Wanted
from service.broker.node import Broker
from service.broker.partition import Partition
from service.broker.session import Session
from service.wire.codec import RequestHeader
from service.wire.error_codes import ErrorCode
from service.wire.messages import (
    AbortedTransaction,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    FetchResponseEpochEndOffset,
    FetchResponsePartitionData,
)

TOPIC_IDS_SINCE = 13
READ_COMMITTED = 1
# Once an answer to a client nearby carries so much, other partitions wait for the next one: that comes at once, and
# what is larger has left the caches before it is read. Who is farther away gets in one answer what ten round trips
# would carry at 1 GB/s, so that the way costs it little.
NEAR_ANSWER_BYTES = 3 * 512 * 1024
ANSWER_BYTES_PER_ROUND_TRIP_US = 10_000
NO_RECORDS = b""
LONGEST_WAIT_MS = 5 * 60 * 1000
"""What librdkafka lets one ask for. Who asks for more is told sooner that there is nothing, and asks again."""


def handle(
    broker: Broker, session: Session, header: RequestHeader, request: FetchRequest
) -> FetchResponse | Awaitable[FetchResponse]:
    by_id = header.api_version >= TOPIC_IDS_SINCE
    now_ms = broker.env.clock.wall_ms()
    fetch_session: FetchSession | None = None
    if request.session_epoch in (FIRST_EPOCH, SESSIONLESS_EPOCH):
        if request.session_id:
            broker.fetch_sessions.close(request.session_id)
        wanted = dict(_wanted(request, by_id))
        if request.session_epoch == FIRST_EPOCH:
            fresh_id = broker.env.rng.randrange(1, 2**31)
            fetch_session = broker.fetch_sessions.open(fresh_id, wanted, by_topic_id=by_id, now_ms=now_ms)
    else:
        fetch_session = broker.fetch_sessions.find(request.session_id)
        if fetch_session is None:
            return FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if fetch_session.epoch != request.session_epoch:
            return FetchResponse(error_code=ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if fetch_session.by_topic_id != by_id:
            return FetchResponse(error_code=ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        fetch_session.update(_wanted(request, by_id), _forgotten(request, by_id))
        if fetch_session.wanted:
            broker.fetch_sessions.use(fetch_session, now_ms=now_ms)
            wanted = fetch_session.wanted
        else:
            broker.fetch_sessions.close(fetch_session.session_id)
            fetch_session, wanted = None, {}
    incremental = request.session_epoch > FIRST_EPOCH and fetch_session is not None
    attempt = Attempt(broker, request, by_id, wanted, fetch_session, incremental, session)
    if attempt.read() or request.max_wait_ms <= 0:
        return attempt.answer()
    return attempt.wait()


def _wanted(request: FetchRequest, by_id: bool) -> Iterable[tuple[SessionKey, Wanted]]:
    for topic in request.topics:
        name = topic.topic_id if by_id else topic.topic
        for partition in topic.partitions:
            yield (
                (name, partition.partition),
                Wanted(
                    partition.partition,
                    partition.fetch_offset,
                    partition.partition_max_bytes,
                    partition.current_leader_epoch,
                    partition.last_fetched_epoch,
                    partition.log_start_offset,
                ),
            )


def _forgotten(request: FetchRequest, by_id: bool) -> Iterable[SessionKey]:
    for topic in request.forgotten_topics_data:
        for partition in topic.partitions:
            yield topic.topic_id if by_id else topic.topic, partition


@dataclass(slots=True, eq=False)
class Attempt:
    """One Fetch being answered: read, and read again whenever a watched partition moved."""

    broker: Broker
    request: FetchRequest
    by_id: bool
    wanted: dict[SessionKey, Wanted]
    session: FetchSession | None
    incremental: bool
    caller: Session
    found: dict[SessionKey, FetchResponsePartitionData] | None = None
    woken: asyncio.Future[None] | None = None

    def read(self) -> bool:
        """Read every wanted partition; True if the answer need not wait."""
        self.found = found = {}
        budget = min(self.request.max_bytes, self.broker.config.fetch_max_bytes)
        least, round_trip_us = min(self.request.min_bytes, budget), self.caller.round_trip_us
        enough = budget
        if round_trip_us is not None:
            enough = max(NEAR_ANSWER_BYTES, round_trip_us * ANSWER_BYTES_PER_ROUND_TRIP_US, least)
        size, counted, urgent = 0, 0, not self.wanted
        for key in self._in_turn():
            wanted, partition = self.wanted[key], self._partition(key)
            got = counts = 0
            if isinstance(partition, ErrorCode):
                data = _error(wanted.partition, partition)
                data.aborted_transactions = []  # only a partition that is there answers with none at all
            else:
                left = budget - size if size < enough else 0
                data, got, counts = self._read_one(partition, wanted, left, least, at_least_one=size == 0)
            size += got
            counted += counts
            urgent = urgent or data.error_code != 0 or data.diverging_epoch is not None
            found[key] = data
        if round_trip_us is not None and self.session is None:
            self._keep_turns(ended_early=size >= enough)
        return urgent or counted >= least

    def _in_turn(self) -> Iterable[SessionKey]:
        """The wanted partitions: first those that had no turn lately, in the client's order. A session has its own."""
        if self.session is not None or not self.caller.fetched:
            return self.wanted
        turns = {key: turn for turn, key in enumerate(self.caller.fetched)}
        return sorted(self.wanted, key=lambda key: turns.get(key, -1))

    def _keep_turns(self, *, ended_early: bool) -> None:
        """Remember who was given something when we ended an answer. Where it ended by itself, or by the client's own
        limit, who comes first is the client's business.
        """
        assert self.found is not None
        turns = self.caller.fetched
        if not ended_early:
            turns.clear()
            return
        for key, data in self.found.items():
            if data.records:
                turns.pop(key, None)
                turns[key] = None

    def _partition(self, key: SessionKey) -> Partition | ErrorCode:
        name, index = key
        table = self.broker.partitions
        if isinstance(name, bytes):
            partitions, unknown = table.topic_by_id(name), ErrorCode.UNKNOWN_TOPIC_ID
        else:
            partitions, unknown = table.topic(name), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if partitions is None:
            return unknown
        return partitions.get(index) or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def _read_one(
        self, partition: Partition, wanted: Wanted, budget: int, least: int, *, at_least_one: bool
    ) -> tuple[FetchResponsePartitionData, int, int]:
        """The partition's part of the answer, its bytes, and what they count for when the client wants `least`: what a
        limit cut short counts as the limit, though only whole batches are given.
        """
        index, log = wanted.partition, partition.log
        if error := leader_epoch_error(partition, wanted.current_leader_epoch):
            return _error(index, error), 0, 0
        high_watermark, stable = partition.high_watermark, partition.last_stable_offset
        if wanted.last_fetched_epoch >= 0:
            epoch, end_offset = log.epochs.end_offset_for_epoch(wanted.last_fetched_epoch, log.end_offset)
            if epoch < 0:
                return _error(index, ErrorCode.OFFSET_OUT_OF_RANGE), 0, 0
            if epoch < wanted.last_fetched_epoch or end_offset < wanted.fetch_offset:
                diverging = FetchResponseEpochEndOffset(epoch, end_offset)
                data = FetchResponsePartitionData(index, 0, high_watermark, stable, log.start_offset, diverging)
                data.aborted_transactions, data.records = None, NO_RECORDS
                return data, 0, 0
        if not log.start_offset <= wanted.fetch_offset <= log.end_offset:
            return _error(index, ErrorCode.OFFSET_OUT_OF_RANGE), 0, 0
        committed = self.request.isolation_level == READ_COMMITTED
        limit = stable if committed else high_watermark
        aborted: list[AbortedTransaction] | None = [] if committed else None
        data = FetchResponsePartitionData(
            index, 0, high_watermark, stable, log.start_offset, aborted_transactions=aborted, records=NO_RECORDS
        )
        if wanted.fetch_offset >= limit or (budget <= 0 and not at_least_one):
            return data, 0, 0
        most = max(min(wanted.max_bytes, budget), 0)
        try:
            stored = partition.read(
                wanted.fetch_offset,
                max_bytes=most,
                limit_offset=limit,
                at_least_one=at_least_one,
            )
            if stored is None:
                return data, 0, most
            cut_short = stored.size < least and log.reach_of(stored) < limit
            if aborted is not None and partition.stable.has_aborted:
                ranges = partition.stable.aborted(wanted.fetch_offset, min(log.reach_of(stored), limit))
                aborted.extend(AbortedTransaction(producer_id, first_offset) for producer_id, first_offset in ranges)
        except (DiskFault, CorruptBatch) as failure:
            return _error(index, partition.unreadable(failure)), 0, 0
        data.records = [stored]
        return data, stored.size, max(stored.size, most) if cut_short else stored.size

    def answer(self) -> FetchResponse:
        assert self.found is not None
        session_id = self.session.session_id if self.session is not None else 0
        topics: dict[str | bytes, FetchableTopicResponse] = {}
        for key, wanted in self.wanted.items():
            data = self.found[key]
            if self.session is not None and not self._worth_telling(wanted, data):
                continue
            name, _ = key
            topic = topics.get(name)
            if topic is None:
                topic = FetchableTopicResponse()
                if isinstance(name, bytes):
                    topic.topic_id = name
                else:
                    topic.topic = name
                topics[name] = topic
            topic.partitions.append(data)
        if self.session is not None:
            self.session.answered([key for key, data in self.found.items() if data.records])
        return FetchResponse(session_id=session_id, responses=list(topics.values()))

    def _worth_telling(self, wanted: Wanted, data: FetchResponsePartitionData) -> bool:
        news = (
            not self.incremental
            or bool(data.records)
            or data.error_code != wanted.told_error
            or data.error_code != 0
            or data.diverging_epoch is not None
            or data.high_watermark != wanted.told_high_watermark
            or data.log_start_offset != wanted.told_log_start_offset
        )
        if news:
            wanted.told_high_watermark = data.high_watermark
            wanted.told_log_start_offset = data.log_start_offset
            wanted.told_error = data.error_code
        return news

    async def wait(self) -> FetchResponse:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + min(self.request.max_wait_ms, LONGEST_WAIT_MS) / 1000
        watched = [partition for key in self.wanted if not isinstance(partition := self._partition(key), ErrorCode)]
        for partition in watched:
            partition.watch(self)
        try:
            while True:
                self.woken = loop.create_future()
                timer = loop.call_at(deadline, self.moved)
                try:
                    with self.caller.waits():
                        await self.woken
                finally:
                    timer.cancel()
                if self.read() or loop.time() >= deadline:
                    return self.answer()
        finally:
            for partition in watched:
                partition.unwatch(self)

    def moved(self) -> None:
        if self.woken is not None and not self.woken.done():
            self.woken.set_result(None)


def _error(index: int, error: ErrorCode) -> FetchResponsePartitionData:
    return FetchResponsePartitionData(index, error, -1, -1, -1, aborted_transactions=None, records=NO_RECORDS)

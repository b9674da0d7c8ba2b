# Hot path: one call a Fetch request; `python -m tests.bench --only throughput` answers for it.
"""Fetch, versions 4 to 18 (7: sessions, 12: leader epochs, 13: topic ids, 16: who leads instead).

`service.broker.reading` decides what is read. Here are fetch sessions, and the choice of what goes into the answer. If
there is too little to answer, the request waits until more can be read or its time is over.

A broker that copies names its id and its life (version 15). It reads up to the end of the log, and the offset that it
asks for tells what it already holds.

If `replica.selector.class` says so, a consumer is sent to a follower in its rack (version 11), and reads there.

Gap: a diverging epoch (version 12) is told to every reader that sends its last fetched epoch.
"""

from collections.abc import Awaitable, Collection, Container, Iterable
from dataclasses import dataclass

from isolation.read_view import AnyIsolation, FollowerIsolation, Isolation
from service.api.directions import Directions
from service.broker.fetch_sessions import (
    FIRST_EPOCH,
    SESSIONLESS_EPOCH,
    FetchSession,
    FetchSessions,
    SessionKey,
    WantedPartition,
)
from service.broker.partition_table import PartitionTable
from service.broker.reading import READ_AT_ONCE, Copier, PartitionRead, Reading, ReadTerms
from service.broker.replication import Replication
from service.broker.session import Session
from service.cluster.metadata import ClusterMetadata
from service.ports import Env
from service.settings.broker import BrokerConfig
from service.turns import Steps, Turn, breathe, done_in_turns, freed, slices_in_turns
from service.wire.codec import MAX_REQUEST_ELEMENTS, RequestHeader
from service.wire.error_codes import ErrorCode
from service.wire.messages import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchResponseEpochEndOffset,
    FetchResponseLeaderIdAndEpoch,
    FetchResponseNodeEndpoint,
    FetchResponsePartitionData,
    SnapshotId,
)

FOLLOWERS_SINCE = 11
TOPIC_IDS_SINCE = 13
DIRECTIONS_SINCE = 16
WRONG_DOOR = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)
NO_RECORDS = b""
READ_COMMITTED = 1
TopicsByKey = dict[str | bytes, FetchableTopicResponse]
"""What is told of each topic, by its name or id."""


@dataclass(frozen=True, slots=True)
class FetchParts:
    """The parts of the broker that an answer needs."""

    env: Env
    config: BrokerConfig
    metadata: ClusterMetadata
    partitions: PartitionTable
    fetch_sessions: FetchSessions
    replication: Replication


def handle(
    parts: FetchParts, session: Session, header: RequestHeader, request: FetchRequest
) -> FetchResponse | Awaitable[FetchResponse]:
    session.is_hurried = False
    by_id = header.api_version >= TOPIC_IDS_SINCE
    topics = request.topics
    if len(topics) > READ_AT_ONCE or sum([len(topic.partitions) for topic in topics]) > READ_AT_ONCE:
        return _named_in_turns(parts, session, header, request, by_id)
    forgotten = request.forgotten_topics_data
    if forgotten and (
        len(forgotten) > READ_AT_ONCE or sum([len(each.partitions) for each in forgotten]) > READ_AT_ONCE
    ):
        return _named_in_turns(parts, session, header, request, by_id)
    wanted: dict[SessionKey, WantedPartition] = {}
    for topic in topics:
        name = topic.topic_id if by_id else topic.topic
        for partition in topic.partitions:
            wanted[name, partition.partition] = _wanted(partition)
    return _answer(parts, session, header, request, wanted, by_id)


async def _named_in_turns(
    parts: FetchParts, session: Session, header: RequestHeader, request: FetchRequest, by_id: bool
) -> FetchResponse:
    wanted: dict[SessionKey, WantedPartition] = {}
    turn = Turn(READ_AT_ONCE)
    for topic in request.topics:
        if turn.is_over():
            await breathe()
        name = topic.topic_id if by_id else topic.topic
        for partition in topic.partitions:
            if turn.is_over():
                await breathe()
            wanted[name, partition.partition] = _wanted(partition)
    named: list[Collection[object]] = [wanted, request.forgotten_topics_data]
    fetch_session = parts.fetch_sessions.find(request.session_id)
    if fetch_session is not None and (fetch_session.epoch, fetch_session.by_topic_id) == (request.session_epoch, by_id):
        async for some in slices_in_turns(wanted.items(), READ_AT_ONCE):
            fetch_session.update(some, ())
        async for keys in slices_in_turns(_forgotten(request, by_id), READ_AT_ONCE):
            fetch_session.update((), keys)
        wanted, request.forgotten_topics_data = {}, []
    answer = _answer(parts, session, header, request, wanted, by_id)
    made = await answer if isinstance(answer, Awaitable) else answer
    del answer, wanted, fetch_session
    await done_in_turns(freed(named))
    return made


def _answer(
    parts: FetchParts,
    session: Session,
    header: RequestHeader,
    request: FetchRequest,
    wanted: dict[SessionKey, WantedPartition],
    by_id: bool,
) -> FetchResponse | Awaitable[FetchResponse]:
    fetch_session: FetchSession | None = None
    copier = _copier(parts, request)
    if request.session_epoch in (FIRST_EPOCH, SESSIONLESS_EPOCH):
        if request.session_id:
            parts.fetch_sessions.close(request.session_id)
        if request.session_epoch == FIRST_EPOCH:
            now_ms = parts.env.clock.wall_ms()
            fresh_id = parts.env.rng.randrange(1, 2**31)
            fetch_session = parts.fetch_sessions.open(
                fresh_id, wanted, by_topic_id=by_id, now_ms=now_ms, is_follower=copier is not None
            )
    else:
        fetch_session = parts.fetch_sessions.find(request.session_id)
        if fetch_session is None:
            return FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if fetch_session.epoch != request.session_epoch:
            return FetchResponse(error_code=ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if fetch_session.by_topic_id != by_id:
            return FetchResponse(error_code=ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        if wanted or request.forgotten_topics_data:
            fetch_session.update(wanted.items(), _forgotten(request, by_id))
        if len(fetch_session.wanted) > MAX_REQUEST_ELEMENTS:  # nobody could name them all in a request of his own
            parts.fetch_sessions.close(fetch_session.session_id)
            return FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if fetch_session.wanted:
            parts.fetch_sessions.use(fetch_session, now_ms=parts.env.clock.wall_ms())
        else:
            parts.fetch_sessions.close(fetch_session.session_id)
            fetch_session, wanted = None, {}
    incremental = request.session_epoch > FIRST_EPOCH and fetch_session is not None
    isolation: AnyIsolation = Isolation.READ_UNCOMMITTED
    if request.isolation_level == READ_COMMITTED:
        isolation = Isolation.READ_COMMITTED
    if copier is not None:
        isolation = FollowerIsolation.LOG_END
    if fetch_session is not None:
        fetch_session.asked(
            isolation,
            None if copier is None else (copier.broker_id, copier.broker_epoch),
            has_readers=copier is not None and copier.has_readers,
            now_ms=parts.replication.in_sync.now_ms(),
        )
        wanted = fetch_session.stirred
    terms = ReadTerms(
        isolation,
        request.min_bytes,
        min(request.max_bytes, parts.config.fetch_max_bytes),
        request.max_wait_ms,
        copier is None and header.api_version >= FOLLOWERS_SINCE,
        _nearer(parts, request.rack_id) if request.rack_id else (),
    )
    reading = Reading(parts.partitions, session, terms, wanted, fetch_session, copier)
    answer = FetchAnswer(reading, incremental, parts.metadata, header.api_version >= DIRECTIONS_SINCE)
    for _ in (steps := reading.steps()):
        return answer.in_turns(steps)  # there is more to read than one turn allows
    if reading.is_enough or request.max_wait_ms <= 0:
        return answer.now()
    return answer.wait()


def _copier(parts: FetchParts, request: FetchRequest) -> Copier | None:
    """The broker that asks, if it is a broker."""
    state = request.replica_state
    broker_id, epoch = (request.replica_id, -1) if state is None else (state.replica_id, state.replica_epoch)
    if broker_id < 0:
        return None
    replication, has_readers = parts.replication, parts.config.replica_selector_class is not None
    registered = parts.metadata.image.brokers.get(broker_id)
    is_known = registered is not None and epoch <= registered.epoch
    return Copier(broker_id, epoch, is_known, replication.in_sync, replication.throttles.leading, has_readers)


def _nearer(parts: FetchParts, rack: str) -> Container[int]:
    """The brokers in the reader's rack; none if this broker is in it, or if all clients read from leaders."""
    if parts.config.replica_selector_class is None or rack == parts.config.broker_rack:
        return ()
    return [each.id for each in parts.metadata.image.brokers.values() if each.rack == rack]


def _wanted(partition: FetchPartition) -> WantedPartition:
    return WantedPartition(
        partition.partition,
        partition.fetch_offset,
        partition.partition_max_bytes,
        partition.current_leader_epoch,
        partition.last_fetched_epoch,
        partition.log_start_offset,
    )


def _forgotten(request: FetchRequest, by_id: bool) -> Iterable[SessionKey]:
    for topic in request.forgotten_topics_data:
        for partition in topic.partitions:
            yield topic.topic_id if by_id else topic.topic, partition


@dataclass(slots=True)
class FetchAnswer:
    """The part of a reading that the client is told."""

    reading: Reading
    incremental: bool
    metadata: ClusterMetadata
    gives_directions: bool
    directions: Directions | None = None

    async def wait(self) -> FetchResponse:
        await self.reading.wait()
        return await self._long() if self.reading.takes_turns else self.now()

    async def in_turns(self, steps: Steps[None]) -> FetchResponse:
        await breathe()
        await done_in_turns(steps)
        if not self.reading.is_enough and self.reading.terms.max_wait_ms > 0:
            await self.reading.wait()
        return await self._long()

    async def _long(self) -> FetchResponse:
        topics: TopicsByKey = {}
        served: list[SessionKey] = []
        quiet: list[SessionKey] = []
        async for some in slices_in_turns(list(self.reading.wanted.items()), READ_AT_ONCE):
            self._tell(some, topics, served, quiet)
        made = self._response(topics, served, quiet)
        found: list[dict[SessionKey, PartitionRead]] = [self.reading.found]
        self.reading.found = {}
        await done_in_turns(freed(found))
        return made

    def now(self) -> FetchResponse:
        topics: TopicsByKey = {}
        served: list[SessionKey] = []
        quiet: list[SessionKey] = []
        self._tell(self.reading.wanted.items(), topics, served, quiet)
        return self._response(topics, served, quiet)

    def _tell(
        self,
        some: Iterable[tuple[SessionKey, WantedPartition]],
        topics: TopicsByKey,
        served: list[SessionKey],
        quiet: list[SessionKey],
    ) -> None:
        """Put into `topics` what is told of some partitions. `served` and `quiet` get those that have records, and
        those that have nothing more.
        """
        found, session = self.reading.found, self.reading.session
        for key, wanted in some:
            data = found.get(key)
            if data is None:  # another request of the same session names it, and came while this one was read
                continue
            if data.records is not None:
                served.append(key)
            if data.is_quiet:
                quiet.append(key)
            if session is not None and not self._worth_telling(wanted, data):
                continue
            name, index = key
            topic = topics.get(name)
            if topic is None:
                topic = topics[name] = FetchableTopicResponse()
                if isinstance(name, bytes):
                    topic.topic_id = name
                else:
                    topic.topic = name
            answer = _partition_data(index, data)
            if data.error:
                self.directions = self.directions or Directions(self.metadata, self.reading.caller)
                self._direct(key, answer, self.directions)
            topic.partitions.append(answer)

    def _response(self, topics: TopicsByKey, served: list[SessionKey], quiet: list[SessionKey]) -> FetchResponse:
        session = self.reading.session
        session_id = 0
        if session is not None:
            session_id = session.session_id
            if served or quiet:
                session.answered(served, quiet)
        response = FetchResponse(0, ErrorCode.NONE, session_id, list(topics.values()))
        if self.directions is not None:
            response.node_endpoints = [
                FetchResponseNodeEndpoint(node_id, endpoint.host, endpoint.port, rack)
                for node_id, (endpoint, rack) in self.directions.nodes.items()
            ]
        return response

    def _direct(self, key: SessionKey, answer: FetchResponsePartitionData, directions: Directions) -> None:
        """Name the leader of a partition that this broker does not lead."""
        answer.error_code = directions.error(*key, ErrorCode(answer.error_code))
        if answer.error_code in WRONG_DOOR and self.gives_directions:
            leader = directions.leader(*key)
            if leader is not None:
                answer.current_leader = FetchResponseLeaderIdAndEpoch(*leader)

    def _worth_telling(self, wanted: WantedPartition, found: PartitionRead) -> bool:
        news = (
            not self.incremental
            or found.records is not None
            or found.error != wanted.told_error
            or found.error != ErrorCode.NONE
            or found.diverging is not None
            or found.nearer >= 0
            or found.high_watermark != wanted.told_high_watermark
            or found.log_start_offset != wanted.told_log_start_offset
        )
        if news:
            wanted.told_high_watermark = found.high_watermark
            wanted.told_log_start_offset = found.log_start_offset
            wanted.told_error = found.error
        return news


def refused(request: FetchRequest) -> FetchResponse:
    """The answer to a session that may not copy: Kafka's error for each partition. Unlike in Kafka, no fetch session is
    made.
    """
    topics = [
        FetchableTopicResponse(
            topic.topic,
            topic.topic_id,
            [
                FetchResponsePartitionData(
                    each.partition, ErrorCode.TOPIC_AUTHORIZATION_FAILED, high_watermark=-1, records=NO_RECORDS
                )
                for each in topic.partitions
            ],
        )
        for topic in request.topics
    ]
    return FetchResponse(responses=topics)


def _partition_data(index: int, found: PartitionRead) -> FetchResponsePartitionData:
    # These in the order of the fields, and the others afterwards: names would double the time.
    data = FetchResponsePartitionData(
        index, found.error, found.high_watermark, found.last_stable_offset, found.log_start_offset
    )
    data.preferred_read_replica = found.nearer
    data.records = NO_RECORDS if found.records is None else [found.records]
    data.aborted_transactions = found.aborted
    if found.diverging is not None:
        data.diverging_epoch = FetchResponseEpochEndOffset(*found.diverging)
    if found.forgotten_below:
        data.snapshot_id = SnapshotId(found.forgotten_below, epoch=0)
    return data

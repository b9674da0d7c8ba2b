"""Transactional producers and readers made of single requests: what is sent, when, in which version and over which
connection is the test's choice, and every error code comes back as it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple, cast

from log.batch import NewRecord, build_batch, read_header, read_records, split
from log.control import ControlType, read_marker
from service.client.connection import Client
from service.wire.error_codes import ErrorCode
from service.wire.messages import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    DescribeTransactionsRequest,
    DescribeTransactionsResponseTransactionState,
    EndTxnRequest,
    FindCoordinatorRequest,
    InitProducerIdRequest,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from tests.conformance.say import fetch, list_offsets, produce

PATIENCE_SECONDS = 20.0
BY_NAME = 12  # the newest version of Produce and Fetch that name topics
COMING = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.UNSTABLE_OFFSET_COMMIT,
)
"""What a client waits through: the broker says that it will be otherwise in a moment."""

Place = tuple[str, int]
NEWEST: Mapping[str, int] = {"produce": 12, "end": 5, "offsets": 5}
OLD: Mapping[str, int] = {"produce": 11, "end": 4, "offsets": 4}


async def until(look: Callable[[], Awaitable[Any]], accept: Callable[[Any], bool]) -> Any:
    """Ask until the answer is accepted."""
    last = None
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                last = await look()
                if accept(last):
                    return last
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"waited {PATIENCE_SECONDS} s in vain; the last answer was {last!r}") from None


class Writer:
    """One instance of a transactional producer. It believes what it is told, and keeps count of its sequences.

    `versions` chooses its protocol: `NEWEST` is transaction version 2, `OLD` is what clients spoke before.
    """

    def __init__(self, client: Client, transactional_id: str, versions: Mapping[str, int] = NEWEST) -> None:
        self.client = client
        self.transactional_id = transactional_id
        self.versions = versions
        self.id = -1
        self.epoch = -1
        self.sequences: dict[Place, int] = {}

    async def init(self, *, timeout_ms: int = 60_000, version: int = 5, named: bool = False) -> ErrorCode:
        """Ask for a pair, once. `named`: as the one it is (KIP-360)."""
        request = InitProducerIdRequest(
            transactional_id=self.transactional_id,
            transaction_timeout_ms=timeout_ms,
            producer_id=self.id if named else -1,
            producer_epoch=self.epoch if named else -1,
        )
        answer = await self.client.request(request, version)
        if answer.error_code == ErrorCode.NONE:
            self.take(answer.producer_id, answer.producer_epoch)
        return ErrorCode(answer.error_code)

    async def begin(self, *, timeout_ms: int = 60_000) -> None:
        """Look the coordinator up, as every client does (that creates `__transaction_state`), and get a pair."""
        asked = FindCoordinatorRequest(key_type=1, coordinator_keys=[self.transactional_id])
        await until(lambda: self.client.request(asked, 4), lambda told: not told.coordinators[0].error_code)
        error = await until(lambda: self.init(timeout_ms=timeout_ms), lambda code: code not in COMING)
        assert error is ErrorCode.NONE, error

    def take(self, producer_id: int, epoch: int) -> None:
        if (producer_id, epoch) != (self.id, self.epoch):
            self.id, self.epoch, self.sequences = producer_id, epoch, {}

    def data(self, values: tuple[str, ...], *, sequence: int, transactional: bool = True) -> bytes:
        records: list[NewRecord] = [(None, value.encode(), (), 1_700_000_000_000) for value in values]
        return build_batch(
            records,
            producer_id=self.id,
            producer_epoch=self.epoch,
            base_sequence=sequence,
            transactional=transactional,
        )

    async def send(
        self,
        topic: str,
        *values: str,
        partition: int = 0,
        sequence: int | None = None,
        transactional: bool = True,
        version: int | None = None,
    ) -> ErrorCode:
        """Write one batch, once."""
        place = (topic, partition)
        first = self.sequences.get(place, 0) if sequence is None else sequence
        batch = self.data(values, sequence=first, transactional=transactional)
        request = produce(topic, batch, partition=partition, transactional_id=self.transactional_id)
        answer = await self.client.request(request, self.versions["produce"] if version is None else version)
        error = ErrorCode(answer.responses[0].partition_responses[0].error_code)
        if error is ErrorCode.NONE and sequence is None:
            self.sequences[place] = first + len(values)
        return error

    async def sent(self, topic: str, *values: str, partition: int = 0) -> None:
        """Write one batch, adding the partition first where the protocol wants it; ask again as a client does."""
        if self.versions is OLD:
            added = await until(lambda: self.add(topic, partition=partition), lambda code: code not in COMING)
            assert added is ErrorCode.NONE, added
        error = await until(lambda: self.send(topic, *values, partition=partition), lambda code: code not in COMING)
        assert error is ErrorCode.NONE, error

    async def add(self, topic: str, *, partition: int = 0, version: int = 3) -> ErrorCode:
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self.id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name=topic, partitions=[partition])],
        )
        answer = await self.client.request(request, version)
        return ErrorCode(answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code)

    async def add_group(self, group: str, *, version: int = 3) -> ErrorCode:
        """The first of a broker's life brings the groups' topic about, and is told to come again."""
        request = AddOffsetsToTxnRequest(self.transactional_id, self.id, self.epoch, group)
        while (answer := await self.client.request(request, version)).error_code in COMING:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        return ErrorCode(answer.error_code)

    async def commit_offset(
        self,
        group: str,
        topic: str,
        offset: int,
        *,
        partition: int = 0,
        member: str = "",
        generation: int = -1,
        instance: str | None = None,
        version: int | None = None,
    ) -> ErrorCode:
        row = TxnOffsetCommitRequestPartition(partition, offset, committed_metadata="")
        request = TxnOffsetCommitRequest(
            transactional_id=self.transactional_id,
            group_id=group,
            producer_id=self.id,
            producer_epoch=self.epoch,
            generation_id=generation,
            member_id=member,
            group_instance_id=instance,
            topics=[TxnOffsetCommitRequestTopic(topic, [row])],
        )
        answer = await self.client.request(request, self.versions["offsets"] if version is None else version)
        return ErrorCode(answer.topics[0].partitions[0].error_code)

    async def committed_offset(self, group: str, topic: str, offset: int) -> None:
        """Commit an offset in the transaction, adding the group first where the protocol wants it."""
        asked = FindCoordinatorRequest(key_type=0, coordinator_keys=[group])
        await until(lambda: self.client.request(asked, 4), lambda told: not told.coordinators[0].error_code)
        if self.versions is OLD:
            added = await until(lambda: self.add_group(group), lambda code: code not in COMING)
            assert added is ErrorCode.NONE, added
        error = await until(lambda: self.commit_offset(group, topic, offset), lambda code: code not in COMING)
        assert error is ErrorCode.NONE, error

    async def end(self, *, commit: bool, version: int | None = None) -> ErrorCode:
        """End the transaction, once; go on with the pair that the answer names."""
        request = EndTxnRequest(self.transactional_id, self.id, self.epoch, commit)
        version = self.versions["end"] if version is None else version
        answer = await self.client.request(request, version)
        if answer.error_code == ErrorCode.NONE and version >= 5:
            self.take(answer.producer_id, answer.producer_epoch)
        return ErrorCode(answer.error_code)

    async def commit(self) -> None:
        error = await until(lambda: self.end(commit=True), lambda code: code not in COMING)
        assert error is ErrorCode.NONE, error

    async def abort(self) -> None:
        error = await until(lambda: self.end(commit=False), lambda code: code not in COMING)
        assert error is ErrorCode.NONE, error

    async def described(self) -> DescribeTransactionsResponseTransactionState:
        answer = await self.client.request(DescribeTransactionsRequest([self.transactional_id]))
        state: DescribeTransactionsResponseTransactionState = answer.transaction_states[0]
        return state

    async def settled(self) -> str:
        """Wait until no marker is missing; the state."""
        state = await until(self.described, lambda told: not told.error_code and at_rest(told.transaction_state))
        name: str = state.transaction_state
        return name

    def twin(self, client: Client | None = None) -> Writer:
        """The same instance on another connection: same pair, same sequences."""
        twin = Writer(client or self.client, self.transactional_id, self.versions)
        twin.id, twin.epoch, twin.sequences = self.id, self.epoch, dict(self.sequences)
        return twin


def at_rest(state: str) -> bool:
    return state in ("Empty", "CompleteCommit", "CompleteAbort")


# ---------------------------------------------------------------- looking


class Seen(NamedTuple):
    """One partition as readers of both isolations find it, each from offset 0."""

    committed: list[str]
    uncommitted: list[str]
    stable_offset: int
    end_offset: int

    @property
    def open(self) -> bool:
        """Whether a transaction that is not ended holds readers back."""
        return self.stable_offset < self.end_offset


async def seen(client: Client, topic: str, partition: int = 0) -> Seen:
    """Read everything, twice; and hold what is read against what ListOffsets says and against the markers."""
    committed, stable = await _read(client, topic, partition, isolation=1)
    uncommitted, end = await _read(client, topic, partition, isolation=0)
    latest = list_offsets(topic, -1, partition=partition, isolation_level=1)
    told = (await client.request(latest, 7)).topics[0].partitions[0]
    # A leader that has just begun may not know yet how far its predecessor came.
    assert told.offset >= stable or told.error_code == ErrorCode.OFFSET_NOT_AVAILABLE, "the stable offset went back"
    return Seen(committed, uncommitted, stable, end)


async def settled(client: Client, topic: str, partition: int = 0) -> Seen:
    """What readers find once nothing is open any more."""
    found = await until(lambda: seen(client, topic, partition), lambda now: not now.open)
    assert isinstance(found, Seen)
    return found


async def _read(client: Client, topic: str, partition: int, *, isolation: int) -> tuple[list[str], int]:
    """Values, and the offset where the reader stands in the end."""
    values: list[str] = []
    offset = 0
    while True:
        request = fetch(topic, offset, partition=partition, isolation_level=isolation)
        answer = (await client.request(request, BY_NAME)).responses[0].partitions[0]
        assert not answer.error_code, ErrorCode(answer.error_code)
        listed = answer.aborted_transactions
        assert (listed is None) == (isolation == 0), "only a reader of committed data gets a list"
        records = b"" if answer.records is None else bytes(cast(memoryview, answer.records))
        if not records:
            return values, offset
        aborted = [(row.producer_id, row.first_offset) for row in listed or ()]
        found, offset = _visible(records, offset, aborted)
        values += found


def _visible(records: bytes, offset: int, aborted: list[tuple[int, int]]) -> tuple[list[str], int]:
    """What the Java client does with an answer: markers end what the list has begun."""
    values: list[str] = []
    aborting: dict[int, None] = {}
    for header, batch in split(records):
        aborting.update({who: None for who, first in aborted if first <= header.last_offset})
        aborted = [(who, first) for who, first in aborted if first > header.last_offset]
        if header.is_control:
            if read_marker(batch).type is ControlType.ABORT:
                aborting.pop(header.producer_id, None)
        elif not (header.is_transactional and header.producer_id in aborting):
            for record in read_records(bytes(batch), read_header(batch)):
                if record.offset >= offset:
                    assert record.value is not None
                    values.append(record.value.decode())
        offset_after = header.next_offset
    return values, offset_after


async def group_offset(client: Client, group: str, topic: str, *, stable: bool = True, partition: int = 0) -> int:
    """The committed offset, -1 if there is none; waits, if asked for stable ones, for what is pending."""
    request = OffsetFetchRequest(
        groups=[
            OffsetFetchRequestGroup(group, topics=[OffsetFetchRequestTopics(topic, partition_indexes=[partition])])
        ],
        require_stable=stable,
    )

    async def look() -> tuple[ErrorCode, int]:
        answer = (await client.request(request, 9)).groups[0]
        if answer.error_code:
            return ErrorCode(answer.error_code), -1
        row = answer.topics[0].partitions[0]
        return ErrorCode(row.error_code), row.committed_offset

    error, offset = await until(look, lambda told: told[0] not in COMING)
    assert error is ErrorCode.NONE, error
    assert isinstance(offset, int)
    return offset

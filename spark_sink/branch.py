"""One writer's share of a transaction that many write: open a branch, append batches to it, seal it; and the decision.

A branch is an ordinary transactional producer whose transactional id begins with `<root>::<token>/<mark>`. Its commit
seals it: nothing is visible until the decision over the root names it. The mark is for those who have to find a root
by its open branches (`roots_with_open`).

What always holds:

- Batches of a partition are sent in order, at most five of them unanswered: as many as a broker remembers, so that a
  batch that is sent again is known there.
- What failed and may work later is sent again as it is, with the sequence numbers it had, so it is stored once; after
  a failure one batch of a partition at a time, until all are through.
- `seal` returns only if every batch was acknowledged.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from time import monotonic, sleep, time
from uuid import UUID

import numpy as np
import pyarrow as pa
from kio.schema.describe_transactions.v0 import DescribeTransactionsRequest, DescribeTransactionsResponse
from kio.schema.end_txn.v5 import EndTxnRequest, EndTxnResponse
from kio.schema.errors import ErrorCode
from kio.schema.init_producer_id.v5 import InitProducerIdRequest, InitProducerIdResponse
from kio.schema.list_transactions.v0 import ListTransactionsRequest, ListTransactionsResponse
from kio.schema.produce.v13 import ProduceRequest, ProduceResponse
from kio.schema.produce.v13.request import PartitionProduceData, TopicProduceData
from kio.schema.produce.v13.response import PartitionProduceResponse
from kio.schema.types import ProducerId, TransactionalId
from kio.static.primitive import Records, i16, i32, i64

from spark_sink.client import NO_ID, TRANSACTION, Client, Pending, milliseconds
from spark_sink.columns import described
from spark_sink.decode import Decoder, visible, whole_batches
from spark_sink.encode import RecordBatch, Target
from spark_sink.errors import BrokerError, OncelogError, OptionError, TopicMadeAnew, check
from spark_sink.messages import (
    DescribeBranchesRequest,
    DescribeBranchesResponse,
    DescribedRoot,
    EndBranchesRequest,
    EndBranchesResponse,
    NamedBranch,
)
from spark_sink.options import TopicPartition

logger = logging.getLogger(__name__)

ALL_REPLICAS = i16(-1)
UNANSWERED_PER_PARTITION = 5
# Bytes that were sent and not yet acknowledged: enough to keep a broker busy while the next rows are encoded.
UNANSWERED_BYTES = 16 << 20
# Of one request, unless a single batch is larger. Other clients send no more by default, and our brokers keep buffers
# for that: a larger request takes them twice the time. They hang up on one beyond their socket.request.max.bytes.
REQUEST_BYTES = 1_000_000
GIVE_UP_SECONDS = 5.0
VISIBLE_SECONDS = 10.0
VISIBLE_POLL_SECONDS = 0.002
DECIDED_BUT_NOT_MARKED = "PrepareCommit"
UNDECIDED = ("Empty", "Ongoing")
FENCED = (ErrorCode.invalid_producer_epoch, ErrorCode.producer_fenced, ErrorCode.invalid_producer_id_mapping)
REFUSALS = {
    ErrorCode.invalid_timestamp: "a row's column 'timestamp' is further from now than the topic's"
    " message.timestamp.after.max.ms and message.timestamp.before.max.ms allow",
    ErrorCode.message_too_large: "the topic's max.message.bytes is less than it was a minute ago",
}


class BranchFenced(OncelogError):
    """The transaction this writer belongs to is decided, or was aborted, or has another owner."""


@dataclass(slots=True)
class _Flight:
    """A Produce request that was sent."""

    batches: list[RecordBatch]
    topics: dict[UUID, str]
    pending: Pending[ProduceResponse]
    size_bytes: int


class Branch:
    """What one attempt of one task writes. Used once, by one thread."""

    def __init__(self, client: Client, root: str, token: int, name: str) -> None:
        self.transactional_id = TransactionalId(f"{root}::{token}/{name}")
        self.producer_id = ProducerId(-1)
        self.producer_epoch = i16(-1)
        self._client = client
        self._root = root
        self._unacknowledged: dict[TopicPartition, deque[RecordBatch]] = {}
        self._flights: deque[_Flight] = deque()

    def open(self, timeout_ms: int) -> None:
        """Begin. `BranchFenced`: there is nothing to begin, its token was decided before."""
        request = InitProducerIdRequest(
            transactional_id=self.transactional_id, transaction_timeout=milliseconds(timeout_ms)
        )

        def attempt() -> InitProducerIdResponse:
            node = self._client.coordinator(TRANSACTION, self._root)
            answer = self._client.ask(node, request, InitProducerIdResponse)
            if answer.error_code == ErrorCode.invalid_transaction_timeout:
                problem = f"the broker takes no transactions of {timeout_ms} ms (its transaction.max.timeout.ms)"
                raise OptionError("kafka.transaction.timeout.ms", problem)
            self._check(answer.error_code, "beginning to write")
            return answer

        answer = self._client.retrying(attempt)
        self.producer_id, self.producer_epoch = answer.producer_id, answer.producer_epoch

    def send(self, batches: Iterable[RecordBatch]) -> None:
        """Append. Returns before the batches are acknowledged, and waits for earlier ones when too many aren't."""
        for wave in _waves(batches):
            # For all of it first: while room is made, whatever is unacknowledged may be sent again.
            for batch in wave:
                self._make_room(batch)
            for batch in wave:
                self._unacknowledged.setdefault(batch.target.topic_partition, deque()).append(batch)
            try:
                for node, share in self._requests(wave):
                    self._flights.append(self._launch(node, share))
            except OncelogError as error:
                self._recover(error)

    def flush(self) -> None:
        """Return when everything is acknowledged."""
        while self._flights:
            self._settle()
        assert not any(self._unacknowledged.values()), "what was sent is acknowledged or in flight"

    def seal(self) -> NamedBranch:
        """Say that all is written. The result names the branch to the process that decides."""
        self.flush()
        answer = self._client.retrying(lambda: self._end(committed=True))
        return NamedBranch(
            transactional_id=self.transactional_id,
            producer_id=answer.producer_id,
            producer_epoch=answer.producer_epoch,
        )

    def give_up(self) -> None:
        """Abort, if that is quickly done. Nothing hangs on it: whatever is open at the next decision is aborted then,
        and what never sees one when its time is over."""
        try:
            self._client.retrying(lambda: self._end(committed=False), patience_seconds=GIVE_UP_SECONDS)
        except OncelogError as error:
            logger.info(
                "%s stays until it is aborted by the next decision or by time: %s", self.transactional_id, error
            )

    def _end(self, *, committed: bool) -> EndTxnResponse:
        request = EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            committed=committed,
        )
        node = self._client.coordinator(TRANSACTION, self._root)
        answer = self._client.ask(node, request, EndTxnResponse)
        self._check(answer.error_code, "sealing what was written" if committed else "aborting")
        return answer

    def _check(self, code: ErrorCode, doing: str, detail: str | None = None) -> None:
        if code in FENCED:
            raise BranchFenced(f"{doing}: {self.transactional_id} is no longer open ({code.name.upper()})")
        check(code, doing, detail)

    def _make_room(self, batch: RecordBatch) -> None:
        while self._flights and (
            len(self._unacknowledged.get(batch.target.topic_partition, ())) >= UNANSWERED_PER_PARTITION
            or sum(flight.size_bytes for flight in self._flights) > UNANSWERED_BYTES
        ):
            self._settle()

    def _requests(self, wave: Iterable[RecordBatch]) -> list[tuple[int, list[RecordBatch]]]:
        """Which broker gets which batches, in requests of bounded size."""
        requests: list[tuple[int, list[RecordBatch]]] = []
        open_ones: dict[int, tuple[list[RecordBatch], int]] = {}
        for batch in wave:
            self._check_same_topic(batch.target)
            node = self._client.leader(*batch.target.topic_partition)
            share, size_bytes = open_ones.get(node, ([], REQUEST_BYTES))
            if size_bytes + len(batch.data) > REQUEST_BYTES:
                share, size_bytes = [], 0
                requests.append((node, share))
            share.append(batch)
            open_ones[node] = share, size_bytes + len(batch.data)
        return requests

    def _check_same_topic(self, target: Target) -> None:
        """Rows were placed among the partitions of one topic, and would be misplaced in another of its name."""
        if target.topic_id in (None, self._client.topic(target.topic).id):
            return
        found = self._client.topics([target.topic]).get(target.topic)  # what was known may be older than the target
        if found is not None and found.id != target.topic_id:
            raise TopicMadeAnew(
                f"topic {target.topic!r} was deleted and made anew while it was written to: nothing is written, and the"
                " batch can run again"
            )

    def _launch(self, node: int, batches: list[RecordBatch]) -> _Flight:
        by_topic: dict[UUID, list[PartitionProduceData]] = {}
        topics: dict[UUID, str] = {}
        for batch in batches:
            data = PartitionProduceData(index=i32(batch.target.partition), records=Records(batch.data))
            topic_id = batch.target.topic_id or self._client.topic(batch.target.topic).id
            topics[topic_id] = batch.target.topic
            by_topic.setdefault(topic_id, []).append(data)
        request = ProduceRequest(
            transactional_id=self.transactional_id,
            acks=ALL_REPLICAS,
            timeout=milliseconds(int(self._client.settings.request_timeout_seconds * 1000)),
            topic_data=tuple(
                TopicProduceData(topic_id=topic_id, partition_data=tuple(data)) for topic_id, data in by_topic.items()
            ),
        )
        pending = self._client.send(node, request, ProduceResponse)
        return _Flight(batches, topics, pending, sum(len(batch.data) for batch in batches))

    def _settle(self) -> None:
        """Collect the oldest answer."""
        flight = self._flights.popleft()
        try:
            self._collect(flight)
        except OncelogError as error:
            self._recover(error)

    def _collect(self, flight: _Flight) -> None:
        """Take note of what is acknowledged; raise the first error of what isn't."""
        answer = flight.pending.result()
        results: dict[TopicPartition, PartitionProduceResponse] = {
            (flight.topics[topic.topic_id or NO_ID], partition.index): partition
            for topic in answer.responses
            for partition in topic.partition_responses
        }
        problem: OncelogError | None = None
        for batch in flight.batches:
            result = results[batch.target.topic_partition]
            if result.error_code in (ErrorCode.none, ErrorCode.duplicate_sequence_number):
                self._unacknowledged[batch.target.topic_partition].remove(batch)
                continue
            try:
                doing = f"writing to partition {batch.target.partition} of topic {batch.target.topic!r}"
                refusal = REFUSALS.get(result.error_code) or result.error_message
                if result.error_code == ErrorCode.invalid_timestamp:
                    refusal = f"{refusal}; {_furthest_from_now(batch)}"
                self._check(result.error_code, doing, refusal)
            except OncelogError as error:
                problem = problem or error
        if problem is not None:
            raise problem

    def _recover(self, error: OncelogError) -> None:
        """After a failure that may pass: see which batches came through, and send the others again."""
        while True:
            if not (error.retriable or self._follows_a_lost_one(error)):
                raise error
            if not self._flights:
                break
            flight = self._flights.popleft()
            try:
                self._collect(flight)
            except OncelogError as another:
                error = another
        self._client.forget()
        self._client.retrying(self._send_again)

    def _follows_a_lost_one(self, error: OncelogError) -> bool:
        """A batch is out of order when the one before it failed."""
        return isinstance(error, BrokerError) and error.code == ErrorCode.out_of_order_sequence_number

    def _send_again(self) -> None:
        while wave := [waiting[0] for waiting in self._unacknowledged.values() if waiting]:
            flights = [self._launch(node, share) for node, share in self._requests(wave)]
            for flight in flights:
                self._collect(flight)


def _furthest_from_now(batch: RecordBatch) -> str:
    """The row that a broker will have meant."""
    decoder = Decoder(batch.target.topic, batch.target.partition, headers=False)
    seen = visible(whole_batches(batch.data), batch.data, ())
    rows = pa.Table.from_batches(decoder.record_batches(batch.data, seen, start=0, end=batch.count))
    when_ms = rows.column("timestamp").cast(pa.timestamp("ms", "UTC"), safe=False).cast(pa.int64()).to_numpy()
    row = int(np.argmax(np.abs(when_ms - int(time() * 1000))))
    key, value = (rows.column(name).combine_chunks() for name in ("key", "value"))
    return f"{described(key, value, row)} has {rows.column('timestamp')[row]}"


def _waves(batches: Iterable[RecordBatch]) -> list[list[RecordBatch]]:
    """In order, with at most one batch of a partition in a wave: a request holds no more."""
    waves: list[list[RecordBatch]] = []
    seen: dict[TopicPartition, int] = {}
    for batch in batches:
        number = seen.get(batch.target.topic_partition, 0)
        seen[batch.target.topic_partition] = number + 1
        if number == len(waves):
            waves.append([])
        waves[number].append(batch)
    return waves


def last_decided(client: Client, root: str) -> int:
    """The token of the last decision over a root, -1 if there was none."""
    return last_decision(client, root).last_token


def last_decision(client: Client, root: str) -> DescribedRoot:
    request = DescribeBranchesRequest(roots=(TransactionalId(root),))

    def attempt() -> DescribedRoot:
        answer = client.ask(client.coordinator(TRANSACTION, root), request, DescribeBranchesResponse)
        (told,) = answer.roots
        check(told.error_code, f"asking what was decided for {root!r}")
        return told

    return client.retrying(attempt)


def decide(
    client: Client, root: str, token: int, branches: Collection[NamedBranch], by: str = ""
) -> EndBranchesResponse:
    """Commit these branches together and abort whatever else is open, unless the token was decided before."""
    return client.retrying(lambda: _end(client, root, token, branches, committed=True, by=by))


def await_visible(client: Client, root: str, branches: Collection[NamedBranch]) -> None:
    """Return when readers see what was decided: the coordinator answers first, and then marks the partitions. Who
    writes and then counts expects no less. The decision stands, whether this is quick or not."""
    request = DescribeTransactionsRequest(transactional_ids=tuple(branch.transactional_id for branch in branches))
    deadline = monotonic() + VISIBLE_SECONDS

    def marked() -> bool:
        told = client.ask(client.coordinator(TRANSACTION, root), request, DescribeTransactionsResponse)
        for one in told.transaction_states:
            if one.error_code != ErrorCode.transactional_id_not_found:  # it is done, and was forgotten
                check(one.error_code, f"asking whether {one.transactional_id} is visible")
        return all(one.transaction_state != DECIDED_BUT_NOT_MARKED for one in told.transaction_states)

    try:
        while (left := deadline - monotonic()) > 0:
            if client.retrying(marked, patience_seconds=left):
                return
            sleep(VISIBLE_POLL_SECONDS)
    except OncelogError as error:
        logger.info("what %s decided may not be visible yet: %s", root, error)


def abandon(client: Client, root: str, token: int, *, for_good: bool = False) -> None:
    """Abort whatever is open, if that is quickly done. A decision stays as it is.

    `for_good`: nobody will use the token again, so it is decided, for nothing: a task that is dying and has not opened
    its branch yet can't do so any more.
    """
    try:
        client.retrying(lambda: _end(client, root, token, (), committed=for_good), patience_seconds=GIVE_UP_SECONDS)
    except OncelogError as error:
        logger.info("branches of %s stay until they are aborted by the next decision or by time: %s", root, error)


def roots_with_open(client: Client, token: int, mark: str) -> list[str]:
    """The roots that have open branches of this token and mark. Empty if that can't quickly be known."""
    question = ListTransactionsRequest(state_filters=UNDECIDED)
    begins = f"{token}/{mark}"

    def attempt() -> list[str]:
        found = set()
        for node in client.brokers():
            answer = client.ask(node, question, ListTransactionsResponse)
            check(answer.error_code, "looking for open transactions")
            for one in answer.transaction_states:
                root, _, rest = one.transactional_id.partition("::")
                if rest.startswith(begins):
                    found.add(root)
        return sorted(found)

    try:
        return client.retrying(attempt, patience_seconds=GIVE_UP_SECONDS)
    except OncelogError as error:
        logger.info("branches of %s may stay until they are aborted by the next decision or by time: %s", mark, error)
        return []


def _end(
    client: Client, root: str, token: int, branches: Collection[NamedBranch], *, committed: bool, by: str = ""
) -> EndBranchesResponse:
    request = EndBranchesRequest(
        root=TransactionalId(root), token=i64(token), committed=committed, branches=tuple(branches), decided_by=by
    )
    answer = client.ask(client.coordinator(TRANSACTION, root), request, EndBranchesResponse)
    check(answer.error_code, f"deciding over {token} of {root!r}", answer.error_message)
    return answer

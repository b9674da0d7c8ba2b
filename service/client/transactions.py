"""What coordinators know about transactions, and what the leaders of partitions know about them.

Both are asked, because they can differ: if a transaction is open in a partition and no coordinator knows it as open,
nothing will ever end it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from log.ids import TopicPartition
from service.client.cluster import (
    LATEST,
    MOVED,
    READ_COMMITTED,
    RETRY_PAUSE_S,
    Cluster,
    Deadline,
    by_topic,
)
from service.client.failures import ClientFailure, FailureKind, refused
from service.wire.error_codes import ErrorCode
from service.wire.messages import (
    DescribeBranchesRequest,
    DescribedRoot,
    DescribeProducersRequest,
    DescribeProducersRequestTopicRequest,
    DescribeTransactionsRequest,
    DescribeTransactionsResponseTransactionState,
    FindCoordinatorRequest,
    InitProducerIdRequest,
    ListTransactionsRequest,
    ListTransactionsResponseTransactionState,
    ProducerState,
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from txn.branches import BranchId, branch_of

TRANSACTION = 1
"""The type of key in FindCoordinator: a transactional id."""
COORDINATORS = "__transaction_state"
"""The topic whose leaders coordinate transactions."""
NO_TIMEOUT_MS = 2**31 - 1
"""The timeout of a transaction that an external coordinator decides (KIP-939): it never ends because of time."""
NEXT_TIMEOUT_MS = 1
"""The timeout that `fence` sends, because the request needs one. The next client that initializes the id sets its
own.
"""

GRACE_MS = 15_000
"""How late a timeout may be before it is called overdue. Coordinators look for timeouts every ten seconds, and their
clocks may differ from this one.
"""

ONGOING = "Ongoing"
# In these states the transaction may be open in a partition: it is not decided, or its marker is not written yet.
OPEN_STATES = frozenset({ONGOING, "PrepareCommit", "PrepareAbort"})


@dataclass(frozen=True, slots=True)
class TransactionState:
    """What a coordinator knows of a transactional id."""

    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    coordinator: int
    timeout_ms: int
    started_ms: int
    partitions: list[TopicPartition]

    @property
    def is_open(self) -> bool:
        return self.state in OPEN_STATES

    @property
    def branch(self) -> BranchId | None:
        return branch_of(self.transactional_id)

    @property
    def ends_ms(self) -> int:
        """When the coordinator aborts the transaction at the latest; -1: never, or it is not open.

        The timeout of a branch begins again when the branch is sealed. No answer tells when that was, so it is counted
        as late as it can have been.
        """
        if self.state != ONGOING or self.started_ms < 0 or self.timeout_ms == NO_TIMEOUT_MS:
            return -1
        return self.started_ms + self.timeout_ms * (1 if self.branch is None else 2)


class Standing(NamedTuple):
    """What is known about a transaction that is open in a partition, and whether it hangs."""

    holder: TransactionState | None
    """The coordinator's transaction whose end will write a marker to the partition; None if there is none."""
    named: TransactionState | None
    """The holder, or else the best guess: the transaction that had the producer id last."""
    hangs: bool
    reason: str


def standing(partition: TopicPartition, transactions: Sequence[TransactionState], now_ms: int) -> Standing:
    """Judge a transaction that is open in `partition`. `transactions` is what coordinators know of its producer id."""
    holder = _holder(partition, transactions)
    if holder is None:
        named = max(transactions, key=lambda each: each.producer_epoch, default=None)
        return Standing(None, named, True, "no coordinator has it open")
    ongoing = holder.state == ONGOING
    ends_ms = holder.ends_ms if ongoing else holder.started_ms + holder.timeout_ms
    if holder.started_ms >= 0 and 0 <= ends_ms < now_ms - GRACE_MS:
        reason = "open longer than its timeout" if ongoing else "decided, and its marker is missing"
        return Standing(holder, holder, True, reason)
    return Standing(holder, holder, False, "open" if ongoing else "decided, its marker is on the way")


def _holder(partition: TopicPartition, transactions: Iterable[TransactionState]) -> TransactionState | None:
    return next((each for each in transactions if each.is_open and partition in each.partitions), None)


class Listed(NamedTuple):
    """A transactional id in a list, and the node that coordinates it."""

    transaction: ListTransactionsResponseTransactionState
    coordinator: int


class ReadableEnds(NamedTuple):
    """How far readers of committed data can read a partition, and how far all others can."""

    last_stable_offset: int
    high_watermark: int


async def list_transactions(
    cluster: Cluster,
    *,
    states: Sequence[str] = (),
    producer_ids: Sequence[int] = (),
    longer_than_ms: int = -1,
    nodes: Sequence[int] | None = None,
) -> list[Listed]:
    """Every transactional id that fits the filters, sorted by name: of the coordinators on these nodes (None: of
    all).
    """
    request = ListTransactionsRequest(
        state_filters=list(states), producer_id_filters=list(producer_ids), duration_filter=longer_than_ms
    )
    found = []
    for node in await cluster.nodes() if nodes is None else nodes:
        deadline = Deadline(cluster.timeout_s)
        while (response := await cluster.ask(request, node=node)).error_code:
            if response.error_code not in MOVED or deadline.passed():
                raise refused(f"transactions of broker {node}", response.error_code)
            await asyncio.sleep(RETRY_PAUSE_S)
        # With a minimum duration Kafka also lists ids without an open transaction, as if they had begun in 1970.
        found += [
            Listed(each, node)
            for each in response.transaction_states
            if longer_than_ms < 0 or each.transaction_state in OPEN_STATES
        ]
    return sorted(found, key=lambda each: each.transaction.transactional_id)


async def coordinator_of(cluster: Cluster, transactional_id: str) -> int:
    """The node that coordinates the id. If there is none yet, this waits for it."""
    deadline = Deadline(cluster.timeout_s)
    while True:
        request = FindCoordinatorRequest(
            key=transactional_id, key_type=TRANSACTION, coordinator_keys=[transactional_id]
        )
        response = await cluster.ask(request)
        found = response.coordinators[0] if response.coordinators else response
        code = found.error_code
        if not code:
            if found.node_id in await cluster.nodes():
                return found.node_id
            # The node is unknown: the broker was started after the last metadata request.
            await cluster.metadata([])
            code = ErrorCode.COORDINATOR_NOT_AVAILABLE
        if code not in MOVED or deadline.passed():
            raise refused(f"coordinator of {transactional_id}", code, found.error_message)
        await asyncio.sleep(RETRY_PAUSE_S)


async def find_transaction(cluster: Cluster, transactional_id: str) -> TransactionState | None:
    """What the coordinator knows of the id; None if it knows no such id."""
    deadline = Deadline(cluster.timeout_s)
    while True:
        node = await coordinator_of(cluster, transactional_id)
        request = DescribeTransactionsRequest(transactional_ids=[transactional_id])
        (answer,) = (await cluster.ask(request, node=node)).transaction_states
        if not answer.error_code:
            return _transaction(answer, node)
        if answer.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
            return None
        if answer.error_code not in MOVED or deadline.passed():
            raise refused(f"transactional id {transactional_id}", answer.error_code)
        await asyncio.sleep(RETRY_PAUSE_S)


async def transactions_of(
    cluster: Cluster, producer_ids: Iterable[int], nodes: Sequence[int] | None = None
) -> dict[int, list[TransactionState]]:
    """What coordinators (all, or those on these nodes) know of these producer ids. One producer id can have belonged to
    several branches in turn. Raises ClientFailure if all are asked and what one of them knows can't be told.
    """
    wanted = sorted(set(producer_ids))
    found: dict[int, list[TransactionState]] = {}
    if not wanted:
        return found
    coordinators = await _coordinators(cluster) if nodes is None else {}
    ids_by_node: dict[int, list[str]] = {}
    for listed in await list_transactions(cluster, producer_ids=wanted, nodes=nodes):
        ids_by_node.setdefault(listed.coordinator, []).append(listed.transaction.transactional_id)
    for node, ids in ids_by_node.items():
        for transaction in await described_by(cluster, node, ids):
            found.setdefault(transaction.producer_id, []).append(transaction)
    if nodes is None and await _coordinators(cluster) != coordinators:
        raise ClientFailure("coordinators of transactions have moved meanwhile", FailureKind.UNREACHABLE)
    return found


async def _coordinators(cluster: Cluster) -> dict[int, tuple[int, int]]:
    """Who coordinates each partition of transactional ids, and since which epoch. While one of them has no leader,
    nobody knows what is open there.
    """
    (topic,) = await cluster.metadata([COORDINATORS])
    if topic.error_code and topic.error_code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        raise refused(f"topic {COORDINATORS}", topic.error_code)
    nodes = await cluster.nodes()
    for each in topic.partitions:
        if each.leader_id not in nodes:
            message = f"what is open can't be told: {COORDINATORS} partition {each.partition_index} has no leader now"
            raise ClientFailure(message, FailureKind.UNREACHABLE)
    return {each.partition_index: (each.leader_id, each.leader_epoch) for each in topic.partitions}


async def described_by(cluster: Cluster, node: int, transactional_ids: Sequence[str]) -> list[TransactionState]:
    """What this coordinator knows of the ids; or another one, of ids that have moved."""
    found = []
    response = await cluster.ask(DescribeTransactionsRequest(transactional_ids=list(transactional_ids)), node=node)
    for answer in response.transaction_states:
        if not answer.error_code:
            transaction: TransactionState | None = _transaction(answer, node)
        else:  # the coordinator has moved meanwhile, or the id was forgotten
            transaction = await find_transaction(cluster, answer.transactional_id)
        if transaction is not None:
            found.append(transaction)
    return found


def _transaction(answer: DescribeTransactionsResponseTransactionState, node: int) -> TransactionState:
    return TransactionState(
        transactional_id=answer.transactional_id,
        state=answer.transaction_state,
        producer_id=answer.producer_id,
        producer_epoch=answer.producer_epoch,
        coordinator=node,
        timeout_ms=answer.transaction_timeout_ms,
        started_ms=answer.transaction_start_time_ms,
        partitions=sorted(TopicPartition(each.topic, number) for each in answer.topics for number in each.partitions),
    )


async def find_root(cluster: Cluster, root: str) -> DescribedRoot | None:
    """The last decision and the open branches of a root; None if the brokers know no branches, like Kafka's."""
    if not await cluster.offers(DescribeBranchesRequest()):
        return None
    deadline = Deadline(cluster.timeout_s)
    while True:
        node = await coordinator_of(cluster, root)
        (answer,) = (await cluster.ask(DescribeBranchesRequest(roots=[root]), node=node)).roots
        if not answer.error_code:
            return answer
        if answer.error_code not in MOVED or deadline.passed():
            raise refused(f"branches of {root}", answer.error_code)
        await asyncio.sleep(RETRY_PAUSE_S)


async def producers_of(
    cluster: Cluster, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, list[ProducerState]]:
    """The producers of each partition, as its leader knows them. If a leader has moved, the new one is asked."""
    deadline = Deadline(cluster.timeout_s)
    missing = list(partitions)
    found: dict[TopicPartition, list[ProducerState]] = {}
    while missing:
        for node, led in (await cluster.by_leader(missing)).items():
            topics = [
                DescribeProducersRequestTopicRequest(name, [each.partition for each in of_topic])
                for name, of_topic in by_topic(led).items()
            ]
            response = await cluster.ask(DescribeProducersRequest(topics=topics), node=node)
            for topic in response.topics:
                for answer in topic.partitions:
                    partition = TopicPartition(topic.name, answer.partition_index)
                    if not answer.error_code:
                        found[partition] = sorted(answer.active_producers, key=lambda each: each.producer_id)
                        continue
                    if answer.error_code not in MOVED or deadline.passed():
                        raise refused(
                            f"producers of {partition.topic} partition {partition.partition}",
                            answer.error_code,
                            answer.error_message,
                        )
                    cluster.forget_leader(partition)
        missing = [partition for partition in missing if partition not in found]
        if missing:
            await asyncio.sleep(RETRY_PAUSE_S)
    return found


async def stable_offsets(cluster: Cluster, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, ReadableEnds]:
    """For each partition how far readers of committed data can read, and how far all others can."""
    wanted: Mapping[TopicPartition, int] = dict.fromkeys(partitions, LATEST)
    # The stable offset is asked for first. If a transaction ends in between, the partition looks blocked although it no
    # longer is, which does no harm: no open transaction is found there. In the other order the high watermark could be
    # below the stable offset.
    stable = await cluster.list_offsets(wanted, isolation=READ_COMMITTED)
    ends = await cluster.list_offsets(wanted)
    return {each: ReadableEnds(stable[each].offset, ends[each].offset) for each in wanted}


async def fence(cluster: Cluster, transactional_id: str) -> int:
    """Abort the id's open transaction in all its partitions, and fence its producer. Returns an error code, or 0."""
    request = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=NEXT_TIMEOUT_MS)
    deadline = Deadline(cluster.timeout_s)
    while True:
        response = await cluster.ask(request, node=await coordinator_of(cluster, transactional_id))
        again = response.error_code in MOVED or response.error_code == ErrorCode.CONCURRENT_TRANSACTIONS
        if not again or deadline.passed():
            return response.error_code
        await asyncio.sleep(RETRY_PAUSE_S)


async def abort_hanging(cluster: Cluster, partition: TopicPartition, producer: ProducerState) -> TransactionState | int:
    """Abort the producer's open transaction in this partition only, if no coordinator will end it. Returns an error
    code, or 0; or the coordinator's transaction, and then nothing was done.

    If a coordinator ended the transaction before it was asked, the partition says that it is not open any more.
    """
    known = await transactions_of(cluster, [producer.producer_id])
    if (holder := _holder(partition, known.get(producer.producer_id, []))) is not None:
        return holder
    opened = (await producers_of(cluster, [partition]))[partition]
    if (producer.producer_id, producer.current_txn_start_offset) not in [
        (each.producer_id, each.current_txn_start_offset) for each in opened
    ]:
        return ErrorCode.INVALID_TXN_STATE
    marker = WritableTxnMarker(
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        transaction_result=False,
        topics=[WritableTxnMarkerTopic(partition.topic, [partition.partition])],
        # If the partition has no earlier marker of this producer, it knows no coordinator epoch, and any is accepted.
        coordinator_epoch=max(producer.coordinator_epoch, 0),
    )
    deadline = Deadline(cluster.timeout_s)
    while True:
        response = await cluster.ask(WriteTxnMarkersRequest(markers=[marker]), node=await cluster.leader(partition))
        code = response.markers[0].topics[0].partitions[0].error_code
        if code != ErrorCode.REQUEST_TIMED_OUT or deadline.passed():  # who asks again waits for the same marker
            return code

"""Transactions as the wire has them: what coordinators know of them, and what the leaders of partitions do.

The two are asked apart because they can differ: a transaction that is open in a partition and at no coordinator is
one that nobody will ever end. `service.cli.txn` calls this.
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
from service.client.failures import refused
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
"""FindCoordinator's word for what kind of key it is given."""
NO_TIMEOUT_MS = 2**31 - 1
"""The timeout of a transaction that an outside coordinator decides (KIP-939): it never ends by itself."""
NEXT_TIMEOUT_MS = 1
"""The next to initialize brings its own timeout; one must be named."""

GRACE_MS = 15_000
"""Coordinators look for what is overdue every ten seconds, and their clocks need not be ours."""

ONGOING = "Ongoing"
# The states in which a partition may still hold records of the transaction open: not decided, or the marker on its way.
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
        """When its coordinator aborts it at the latest; -1: never by itself, or it is not open.

        The wait of a branch begins anew when it is sealed, and when that was no answer tells: at its last moment at
        the latest.
        """
        if self.state != ONGOING or self.started_ms < 0 or self.timeout_ms == NO_TIMEOUT_MS:
            return -1
        return self.started_ms + self.timeout_ms * (1 if self.branch is None else 2)


class Standing(NamedTuple):
    """What is to be thought of a transaction that is open in a partition."""

    holder: TransactionState | None
    """The transaction whose end will bring a marker there."""
    named: TransactionState | None
    """That, or the best guess at whose it was: the last that had the producer id."""
    hangs: bool
    reason: str


def standing(partition: TopicPartition, transactions: Sequence[TransactionState], now_ms: int) -> Standing:
    """Given what coordinators know of its producer id."""
    holder = next((each for each in transactions if each.is_open and partition in each.partitions), None)
    if holder is None:
        named = max(transactions, key=lambda each: each.producer_epoch, default=None)
        return Standing(None, named, True, "no coordinator has it open")
    ongoing = holder.state == ONGOING
    ends_ms = holder.ends_ms if ongoing else holder.started_ms + holder.timeout_ms
    if holder.started_ms >= 0 and 0 <= ends_ms < now_ms - GRACE_MS:
        reason = "open longer than its timeout" if ongoing else "decided, and its marker is missing"
        return Standing(holder, holder, True, reason)
    return Standing(holder, holder, False, "open" if ongoing else "decided, its marker is on the way")


class Listed(NamedTuple):
    """A transactional id in a list, and the node that coordinates it."""

    transaction: ListTransactionsResponseTransactionState
    coordinator: int


class Stable(NamedTuple):
    """How far a partition can be read, with and without what is undecided."""

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
    """Every transactional id that fits, by name: of every coordinator, or of those on these nodes."""
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
        # Asked for long ones, Kafka names those too that have nothing open: these began in 1970.
        found += [
            Listed(each, node)
            for each in response.transaction_states
            if longer_than_ms < 0 or each.transaction_state in OPEN_STATES
        ]
    return sorted(found, key=lambda each: each.transaction.transactional_id)


async def coordinator_of(cluster: Cluster, transactional_id: str) -> int:
    """The node that coordinates the id, waited for while it is being found."""
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
            # A broker that came up after we asked who is there.
            await cluster.metadata([])
            code = ErrorCode.COORDINATOR_NOT_AVAILABLE
        if code not in MOVED or deadline.passed():
            raise refused(f"coordinator of {transactional_id}", code, found.error_message)
        await asyncio.sleep(RETRY_PAUSE_S)


async def find_transaction(cluster: Cluster, transactional_id: str) -> TransactionState | None:
    """What the id's coordinator knows; None if it knows no such id."""
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
    several branches in turn.
    """
    wanted = sorted(set(producer_ids))
    found: dict[int, list[TransactionState]] = {}
    if not wanted:
        return found
    ids_by_node: dict[int, list[str]] = {}
    for listed in await list_transactions(cluster, producer_ids=wanted, nodes=nodes):
        ids_by_node.setdefault(listed.coordinator, []).append(listed.transaction.transactional_id)
    for node, ids in ids_by_node.items():
        response = await cluster.ask(DescribeTransactionsRequest(transactional_ids=ids), node=node)
        for answer in response.transaction_states:
            if not answer.error_code:
                transaction: TransactionState | None = _transaction(answer, node)
            else:  # its coordinator moved between the two questions, or it was forgotten
                transaction = await find_transaction(cluster, answer.transactional_id)
            if transaction is not None:
                found.setdefault(transaction.producer_id, []).append(transaction)
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
    """What became of the branches of an id; None where brokers know no branches, as Kafka's do not."""
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
    """Who writes to each partition, by its leader; a leader that moved is found."""
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


async def stable_offsets(cluster: Cluster, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Stable]:
    """Where readers of committed records stop, and where the others do."""
    wanted: Mapping[TopicPartition, int] = dict.fromkeys(partitions, LATEST)
    # In this order: what ends in between makes a partition look pinned that no longer is, and then no open
    # transaction is found there. The other way round a high watermark could lie before the stable offset.
    stable = await cluster.list_offsets(wanted, isolation=READ_COMMITTED)
    ends = await cluster.list_offsets(wanted)
    return {each: Stable(stable[each].offset, ends[each].offset) for each in wanted}


async def fence(cluster: Cluster, transactional_id: str) -> int:
    """Abort what the id has open, in all its partitions, and shut its producer out; an error code, or 0."""
    request = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=NEXT_TIMEOUT_MS)
    deadline = Deadline(cluster.timeout_s)
    while True:
        response = await cluster.ask(request, node=await coordinator_of(cluster, transactional_id))
        again = response.error_code in MOVED or response.error_code == ErrorCode.CONCURRENT_TRANSACTIONS
        if not again or deadline.passed():
            return response.error_code
        await asyncio.sleep(RETRY_PAUSE_S)


async def write_abort_marker(cluster: Cluster, partition: TopicPartition, producer: ProducerState) -> int:
    """End in one partition what the producer has open there; an error code, or 0."""
    marker = WritableTxnMarker(
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        transaction_result=False,
        topics=[WritableTxnMarkerTopic(partition.topic, [partition.partition])],
        # Without a marker before this one the partition knows of no coordinator, and any will do.
        coordinator_epoch=max(producer.coordinator_epoch, 0),
    )
    response = await cluster.ask(WriteTxnMarkersRequest(markers=[marker]), node=await cluster.leader(partition))
    return response.markers[0].topics[0].partitions[0].error_code

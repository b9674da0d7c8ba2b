"""Admits a transactional write to a partition only if the transaction coordinator says that the partition belongs to an
open transaction.

From transaction version 2 on (Produce 12, TxnOffsetCommit 5) the partition's leader adds the partition to the
transaction. Older clients add it themselves, and the leader asks the coordinator whether they did (KIP-890). In both
cases a guard is taken before the coordinator is asked, and is checked at the append. If another batch of the producer
was written in between, the answer could be about another transaction, and the guard is not valid any more (R13).

A coordinator that was replaced and does not know it still has the transaction open that its successor has ended. With
an older client the next transaction has the same epoch. So an answer counts only if no marker of a later coordinator is
in the partition. The guard tells of a marker that comes meanwhile.

A transaction knows its partitions by topic name. A topic that was deleted and made again is another topic, of which the
coordinator may not have heard. It would send the marker to where the deleted one was led, and the new one would never
get it. So a coordinator on another broker is told the topic's id, and confirms only what it has heard of (R16).

What always holds: a write that the coordinator did not confirm is refused. The error tells the client whether to try
again, to abort, or to give up. And a transaction whose markers can't be written holds up no other: a coordinator on
another broker says at once that they are owed, and is asked again (as by Kafka, KAFKA-18654), so no answer on its
connections waits for them.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from idempotence.producers import Guard
from log.ids import NO_EPOCH, TopicPartition
from log.steps import done_at_once
from service.broker.acceptance import RefusedBatch
from service.broker.coordinators import Coordinators
from service.broker.partition import Partition
from service.broker.peers import PeerAway, Peers
from service.broker.shard import CoordinatorLoading, DecisionFailed, NotCoordinator
from service.groups.partitioning import partition_for
from service.ports import Env
from service.turns import Steps, Turn, done_in_turns, slices_in_turns
from service.wire.error_codes import ErrorCode
from service.wire.messages import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic, AddPartitionsToTxnTransaction
from txn.commands import AddPartitions, VerifyPartitions
from txn.coordinator import TxnCoordinator
from txn.verdicts import Added, Busy, Fenced, InvalidRequest, TokenDecided, UnknownId, Verdict, Verified, WrongProducer

TRY_AGAIN = RefusedBatch(ErrorCode.NOT_ENOUGH_REPLICAS, "The transaction coordinator could not be asked; try again.")
BUSY = RefusedBatch(ErrorCode.CONCURRENT_TRANSACTIONS)
ATTEMPTS = 3
LANES = 8
"""The number of connections to another coordinator. It answers in order on each, when its decision is committed."""
GUARDS_A_TURN = 500
ASKED_TOGETHER = 1_000
"""The most partitions that another coordinator is asked about in one request."""
PATIENCE_MS = 1_000
"""How long a write waits for the markers of the producer's last transaction, before the client is told to try again."""
PAUSE_S = 0.002
"""How long the gate waits before it asks again about markers that are owed: mostly they are written by then. Each pause
is twice as long as the last one, so those that can't be written cost some ten questions.
"""


Refusals = dict[TopicPartition, RefusedBatch]


@dataclass(slots=True)
class TransactionalWriter:
    """The producer of a write: its transaction, and what its protocol version can do. Never changed; not frozen,
    because that takes longer, and one is made for each transaction.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    sequence: int
    adds_itself: bool
    """The client leaves it to the leader to add the partition (transaction version 2)."""
    knows_abortable: bool
    """The client knows the error TRANSACTION_ABORTABLE."""

    @property
    def pair(self) -> tuple[int, int]:
        return self.producer_id, self.producer_epoch


class TransactionGate:
    def __init__(self, coordinators: Coordinators[TxnCoordinator], peers: Peers, env: Env) -> None:
        self._coordinators = coordinators
        self._peers = peers
        self._env = env

    async def admit(
        self, wanted: Sequence[tuple[Partition, TransactionalWriter]], *, timeout_ms: int
    ) -> list[Guard | RefusedBatch | None]:
        """Check the partitions that one producer is about to write to in a transaction. Returns for each partition the
        guard for the append, None if none is needed, or why the write is refused. The coordinator is asked once for
        all.
        """
        admitted: list[Guard | RefusedBatch | None] = [None] * len(wanted)
        left = list(range(len(wanted)))
        are_few = len(wanted) < GUARDS_A_TURN
        loop = asyncio.get_running_loop()
        until_s = loop.time() + min(PATIENCE_MS, timeout_ms) / 1000
        pause_s = PAUSE_S
        attempts = 0
        while attempts < ATTEMPTS:
            guarding = self._guards(wanted, left)
            guards = done_at_once(guarding) if are_few else await done_in_turns(guarding)
            if not guards:
                return admitted
            writer = wanted[0][1]
            partitions = [wanted[index][0] for index in guards]
            epoch = NO_EPOCH if writer.adds_itself else self._coordinators.epoch(writer.transactional_id)
            refused = await self._ask(partitions, writer, max(until_s - loop.time(), 0.0))
            if _are_markers_owed(refused) and (left_s := until_s - loop.time()) > 0:
                # When they are written, these guards are not valid any more: take new ones before the next question.
                await asyncio.sleep(min(pause_s, left_s))
                pause_s *= 2
                continue
            attempts += 1
            judging = _judge(wanted, guards, refused, epoch, admitted)
            left = done_at_once(judging) if are_few else await done_in_turns(judging)
            if not left:
                return admitted
        for index in left:
            admitted[index] = TRY_AGAIN
        return admitted

    def _guards(
        self, wanted: Sequence[tuple[Partition, TransactionalWriter]], indexes: Sequence[int]
    ) -> Steps[dict[int, Guard]]:
        """Guards for those that need one. All of them are taken before the coordinator is asked."""
        turn = Turn(GUARDS_A_TURN)
        guards = {}
        for index in indexes:
            if turn.is_over():
                yield
            assert wanted[index][1].pair == wanted[0][1].pair, "one answer of the coordinator is about one producer"
            if (guard := self._guard(*wanted[index])) is not None:
                guards[index] = guard
        return guards

    def _guard(self, partition: Partition, writer: TransactionalWriter) -> Guard | None:
        return partition.producers.start_verification(
            writer.producer_id,
            epoch=writer.producer_epoch,
            sequence=writer.sequence,
            newest_protocol=writer.adds_itself,
            now_ms=self._env.clock.wall_ms(),
        )

    async def _ask(self, asked: Sequence[Partition], writer: TransactionalWriter, patience_s: float) -> Refusals:
        partitions = tuple([partition.topic_partition for partition in asked])
        command: AddPartitions | VerifyPartitions
        if writer.adds_itself:
            patience_ms = round(1000 * patience_s)
            command = AddPartitions(writer.transactional_id, *writer.pair, partitions, patience_ms=patience_ms)
        else:
            command = VerifyPartitions(writer.transactional_id, *writer.pair, partitions)
        try:
            verdict = await self._coordinators.handle(writer.transactional_id, command)
        except NotCoordinator:
            return await self._ask_elsewhere(asked, writer)
        except CoordinatorLoading:
            return dict.fromkeys(partitions, TRY_AGAIN)
        except DecisionFailed:
            return dict.fromkeys(partitions, RefusedBatch(ErrorCode.UNKNOWN_SERVER_ERROR))
        concerned = verdict.missing if isinstance(verdict, Verified) else partitions
        refused = _refusal(verdict, writer)
        return {} if refused is None else dict.fromkeys(concerned, refused)

    async def _ask_elsewhere(self, asked: Sequence[Partition], writer: TransactionalWriter) -> Refusals:
        refused: Refusals = {}
        async for some in slices_in_turns(asked, ASKED_TOGETHER):
            refused |= await self._ask_leader(some, writer)
            if _are_markers_owed(refused):
                return dict.fromkeys([partition.topic_partition for partition in asked], BUSY)
        return refused

    async def _ask_leader(self, asked: Sequence[Partition], writer: TransactionalWriter) -> Refusals:
        """Ask the broker that coordinates the transactional id, with AddPartitionsToTxn as brokers send it."""
        leader = self._coordinators.leader(writer.transactional_id)
        partitions = [partition.topic_partition for partition in asked]
        topics: dict[str, AddPartitionsToTxnTopic] = {}
        for partition in asked:
            name, index = partition.topic_partition
            topics.setdefault(name, AddPartitionsToTxnTopic(name, [], partition.topic_id)).partitions.append(index)
        transaction = AddPartitionsToTxnTransaction(
            writer.transactional_id,
            writer.producer_id,
            writer.producer_epoch,
            not writer.adds_itself,
            list(topics.values()),
        )
        lane = partition_for(writer.transactional_id, LANES)
        try:
            answer = await self._peers.ask(leader, AddPartitionsToTxnRequest([transaction]), lane=lane)
        except PeerAway:
            return dict.fromkeys(partitions, TRY_AGAIN)
        if answer.error_code:
            return dict.fromkeys(partitions, TRY_AGAIN)
        codes = {
            TopicPartition(topic.name, each.partition_index): each.partition_error_code
            for result in answer.results_by_transaction
            for topic in result.topic_results
            for each in topic.results_by_partition
        }
        told = {partition: codes.get(partition, ErrorCode.UNKNOWN_SERVER_ERROR) for partition in partitions}
        return {partition: _refusal_of(code, writer) for partition, code in told.items() if code}


def _are_markers_owed(refused: Refusals) -> bool:
    """Whether a writer that adds itself comes too early: the markers of its last transaction are not written yet."""
    return any(why.error is ErrorCode.CONCURRENT_TRANSACTIONS for why in refused.values())


def _judge(
    wanted: Sequence[tuple[Partition, TransactionalWriter]],
    guards: dict[int, Guard],
    refused: Refusals,
    epoch: int,
    admitted: list[Guard | RefusedBatch | None],
) -> Steps[list[int]]:
    """Note who is admitted by a coordinator in that epoch, which matters only for clients that add partitions
    themselves. Returns the indexes that have to be asked for once more."""
    turn = Turn(GUARDS_A_TURN)
    left = []
    for index, guard in guards.items():
        if turn.is_over():
            yield
        partition, writer = wanted[index]
        if (why := refused.get(partition.topic_partition)) is not None:
            admitted[index] = why
        elif not writer.adds_itself and partition.producers.coordinator_epoch(writer.producer_id) > epoch:
            admitted[index] = TRY_AGAIN
        elif partition.producers.is_current(guard):
            admitted[index] = guard
        else:
            # While this waited for the answer, the marker of the producer's last transaction was written. The answer is
            # right, but the guard is not valid any more. Take a new guard and ask again; the coordinator now answers at
            # once.
            left.append(index)
    return left


def _refusal_of(code: int, writer: TransactionalWriter) -> RefusedBatch:
    """The refusal for the client, given the error of a coordinator on another broker, which may be of a later release
    and know more codes.
    """
    match code:
        case ErrorCode.TRANSACTION_ABORTABLE:
            return _refusal(Verified((TopicPartition("", 0),)), writer) or TRY_AGAIN
        case ErrorCode.CONCURRENT_TRANSACTIONS:
            return _refusal(Busy(), writer) or TRY_AGAIN
        case ErrorCode.PRODUCER_FENCED | ErrorCode.INVALID_PRODUCER_EPOCH:
            return RefusedBatch(ErrorCode.INVALID_PRODUCER_EPOCH)
        case (
            ErrorCode.INVALID_PRODUCER_ID_MAPPING
            | ErrorCode.INVALID_REQUEST
            | ErrorCode.INVALID_TXN_STATE
            | ErrorCode.UNKNOWN_SERVER_ERROR
        ):
            return RefusedBatch(ErrorCode(code))
        case _:
            return TRY_AGAIN  # loading, or moved, or its image lacks the partition, or a code that only it knows


def _refusal(verdict: Verdict, writer: TransactionalWriter) -> RefusedBatch | None:
    match verdict:
        case Added() | Verified(()):
            return None
        case Verified():
            error = ErrorCode.TRANSACTION_ABORTABLE if writer.knows_abortable else ErrorCode.INVALID_TXN_STATE
            return RefusedBatch(error, "The partition is not in the transaction.")
        case Busy():
            return BUSY if writer.adds_itself else TRY_AGAIN
        case Fenced() | TokenDecided():
            return RefusedBatch(ErrorCode.INVALID_PRODUCER_EPOCH)
        case UnknownId() | WrongProducer():
            return RefusedBatch(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        case InvalidRequest():
            return RefusedBatch(ErrorCode.INVALID_REQUEST)
        case _:
            return RefusedBatch(ErrorCode.INVALID_TXN_STATE)

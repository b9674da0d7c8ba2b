"""The gate alone: what a coordinator says, here or at another broker, and what the writer is told."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from idempotence.producers import Guard
from log.ids import TopicId, TopicPartition
from service.broker.acceptance import RefusedBatch
from service.broker.coordinators import Coordinators
from service.broker.partition import Partition
from service.broker.peers import PeerAway, Peers
from service.broker.shard import CoordinatorLoading, DecisionFailed, NotCoordinator
from service.broker.transaction_gate import (
    ASKED_TOGETHER,
    ATTEMPTS,
    GUARDS_A_TURN,
    TRY_AGAIN,
    TransactionalWriter,
    TransactionGate,
)
from service.ports import Env
from service.wire.error_codes import ErrorCode
from service.wire.messages import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
)
from txn.commands import AddPartitions, VerifyPartitions
from txn.coordinator import TxnCoordinator
from txn.states import State
from txn.verdicts import Added, Busy, Fenced, UnknownId, Verdict, Verified, WrongState

FIRST, SECOND = TopicPartition("orders", 0), TopicPartition("orders", 1)
TOPIC_ID = TopicId(bytes(range(16)))
ELSEWHERE = 7
EPOCH = 4


def writer(*, newest: bool = True, knows_abortable: bool = True) -> TransactionalWriter:
    return TransactionalWriter("pay", 5, 3, 0, adds_itself=newest, knows_abortable=knows_abortable)


def guard(number: int) -> Guard:
    """The number stands for what a partition gives out: the gate hands it on, and looks at nothing in it."""
    return cast(Guard, number)


@dataclass
class Producers:
    """What a partition knows of the producer. A guard is good so many times, beginning with the last."""

    is_open: bool = False
    spoiled: int = 0
    given: int = 0
    obeyed: int = -1

    def start_verification(self, *_: object, **__: object) -> Guard | None:
        if self.is_open:
            return None
        self.given += 1
        return guard(self.given)

    def is_current(self, given: Guard) -> bool:
        return cast(int, given) > self.spoiled

    def coordinator_epoch(self, producer_id: int) -> int:
        return self.obeyed


@dataclass
class Coordinator:
    """Answers every question with the same, and keeps what it was asked."""

    answer: Verdict | Exception
    asked: list[Any] = field(default_factory=list)

    async def handle(self, transactional_id: str, command: Any) -> Verdict:
        self.asked.append(command)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def leader(self, transactional_id: str) -> int:
        return ELSEWHERE

    def epoch(self, transactional_id: str) -> int:
        return EPOCH


@dataclass
class Far:
    """The coordinator at another broker: a code for each partition."""

    codes: Mapping[TopicPartition, int] | None
    asked: list[AddPartitionsToTxnRequest] = field(default_factory=list)
    busy: int = 0
    """So many times it first says that the markers of the producer's last transaction are owed."""

    async def ask(self, node: int, request: AddPartitionsToTxnRequest, *, lane: int) -> AddPartitionsToTxnResponse:
        assert node == ELSEWHERE
        self.asked.append(request)
        if self.codes is None:
            raise PeerAway
        is_busy = len(self.asked) <= self.busy
        rows = [
            AddPartitionsToTxnPartitionResult(each.partition, ErrorCode.CONCURRENT_TRANSACTIONS if is_busy else code)
            for each, code in self.codes.items()
        ]
        topic = AddPartitionsToTxnTopicResult("orders", rows)
        return AddPartitionsToTxnResponse(results_by_transaction=[AddPartitionsToTxnResult("pay", [topic])])


async def admitting(
    coordinator: Coordinator,
    *,
    peers: Far | None = None,
    who: TransactionalWriter | None = None,
    partitions: Sequence[tuple[TopicPartition, Producers]] | None = None,
    timeout_ms: int = 20,
) -> list[Guard | RefusedBatch | None]:
    gate = TransactionGate(
        cast(Coordinators[TxnCoordinator], coordinator),
        cast(Peers, peers or Far(None)),
        cast(Env, SimpleNamespace(clock=SimpleNamespace(wall_ms=lambda: 1))),
    )
    wanted = [
        (
            cast(Partition, SimpleNamespace(topic_partition=name, topic_id=TOPIC_ID, producers=producers)),
            who or writer(),
        )
        for name, producers in partitions or [(FIRST, Producers())]
    ]
    return await gate.admit(wanted, timeout_ms=timeout_ms)


def admitted(*given: Any, **terms: Any) -> list[Guard | RefusedBatch | None]:
    return asyncio.run(admitting(*given, **terms))


def code(outcome: Guard | RefusedBatch | None) -> ErrorCode | None:
    return outcome.error if isinstance(outcome, RefusedBatch) else None


def test_where_the_transaction_is_open_nobody_is_asked() -> None:
    coordinator = Coordinator(Added())
    assert admitted(coordinator, partitions=[(FIRST, Producers(is_open=True))]) == [None]
    assert not coordinator.asked


def test_a_new_client_has_its_partitions_added_and_an_older_one_is_looked_up() -> None:
    coordinator = Coordinator(Added())
    both = [(FIRST, Producers()), (SECOND, Producers())]
    assert admitted(coordinator, partitions=both, timeout_ms=500) == [guard(1), guard(1)]
    (asked,) = coordinator.asked
    assert isinstance(asked, AddPartitions), "one question for all"
    assert (asked.partitions, asked.patience_ms) == ((FIRST, SECOND), 500)
    coordinator = Coordinator(Verified(()))
    assert admitted(coordinator, who=writer(newest=False)) == [guard(1)]
    assert isinstance(coordinator.asked[0], VerifyPartitions)


@pytest.mark.parametrize(
    ("answer", "who", "told"),
    [
        (Busy(), writer(), ErrorCode.CONCURRENT_TRANSACTIONS),
        (Busy(), writer(newest=False), ErrorCode.NOT_ENOUGH_REPLICAS),
        (Fenced(2, 3), writer(), ErrorCode.INVALID_PRODUCER_EPOCH),
        (UnknownId(), writer(), ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        (WrongState(State.EMPTY), writer(), ErrorCode.INVALID_TXN_STATE),
        (Verified((FIRST,)), writer(newest=False), ErrorCode.TRANSACTION_ABORTABLE),
        (Verified((FIRST,)), writer(newest=False, knows_abortable=False), ErrorCode.INVALID_TXN_STATE),
        (CoordinatorLoading(), writer(), ErrorCode.NOT_ENOUGH_REPLICAS),
        (DecisionFailed(), writer(), ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
def test_each_answer_tells_the_writer_what_to_do_next(
    answer: Verdict | Exception, who: TransactionalWriter, told: ErrorCode
) -> None:
    assert [code(each) for each in admitted(Coordinator(answer), who=who)] == [told]


def test_only_what_is_missing_is_refused() -> None:
    both = [(FIRST, Producers()), (SECOND, Producers())]
    outcome = admitted(Coordinator(Verified((SECOND,))), who=writer(newest=False), partitions=both)
    assert [code(each) for each in outcome] == [None, ErrorCode.TRANSACTION_ABORTABLE]
    assert outcome[0] == guard(1)


def test_a_guard_that_was_overtaken_is_taken_and_asked_about_again() -> None:
    """The marker of the producer's last transaction came in while the coordinator was asked."""
    coordinator = Coordinator(Added())
    overtaken = [(FIRST, Producers()), (SECOND, Producers(spoiled=1))]
    assert admitted(coordinator, partitions=overtaken) == [guard(1), guard(2)]
    assert [each.partitions for each in coordinator.asked] == [(FIRST, SECOND), (SECOND,)]
    coordinator = Coordinator(Added())
    assert admitted(coordinator, partitions=[(FIRST, Producers(spoiled=ATTEMPTS))]) == [TRY_AGAIN]
    assert len(coordinator.asked) == ATTEMPTS


def test_another_broker_is_asked_again_while_markers_are_owed() -> None:
    """It answers in order on each connection, so it may keep no answer back. The guards from before the markers are of
    no use, so new ones are taken.
    """
    far = Far({FIRST: ErrorCode.NONE}, busy=ATTEMPTS + 1)
    producers = Producers(spoiled=ATTEMPTS + 1)
    outcome = admitted(Coordinator(NotCoordinator()), peers=far, partitions=[(FIRST, producers)], timeout_ms=60_000)
    assert outcome == [guard(ATTEMPTS + 2)]
    assert len(far.asked) == ATTEMPTS + 2


def test_a_client_is_told_that_its_markers_are_owed_when_its_patience_is_over() -> None:
    many = [(TopicPartition("orders", index), Producers()) for index in range(ASKED_TOGETHER + 1)]
    far = Far({name: ErrorCode.NONE for name, _ in many}, busy=1_000)
    outcome = admitted(Coordinator(NotCoordinator()), peers=far, partitions=many, timeout_ms=0)
    assert [code(each) for each in outcome] == [ErrorCode.CONCURRENT_TRANSACTIONS] * len(many)
    assert len(far.asked) == 1, "the rest belongs to the same transaction"


@pytest.mark.parametrize("coordinator", [Coordinator(Verified(())), Coordinator(NotCoordinator())])
def test_a_coordinator_that_was_replaced_admits_nobody_of_an_older_protocol(coordinator: Coordinator) -> None:
    """It believes in a transaction that its successor has ended: the partition has the successor's marker."""
    both = [(FIRST, Producers(obeyed=EPOCH)), (SECOND, Producers(obeyed=EPOCH + 1))]
    far = Far({FIRST: ErrorCode.NONE, SECOND: ErrorCode.NONE})
    outcome = admitted(coordinator, peers=far, who=writer(newest=False), partitions=both)
    assert outcome == [guard(1), TRY_AGAIN]
    assert admitted(coordinator, peers=far, partitions=both) == [guard(2), guard(2)], "the epoch names the transaction"


@pytest.mark.parametrize("turn", range(4))
def test_a_marker_that_comes_while_very_many_guards_are_taken_overtakes_the_first(turn: int) -> None:
    """It may come in any turn: before the coordinator is asked, while it is, and when it has answered."""
    many = [(TopicPartition("orders", index), Producers()) for index in range(3 * GUARDS_A_TURN)]

    async def handle(transactional_id: str, command: Any) -> Verdict:
        await asyncio.sleep(0)
        return Added()

    async def marker() -> None:
        for _ in range(turn):
            await asyncio.sleep(0)
        many[0][1].spoiled = many[0][1].given

    async def scene() -> list[Guard | RefusedBatch | None]:
        coming = asyncio.ensure_future(marker())
        found = await admitting(
            cast(Coordinator, SimpleNamespace(handle=handle, epoch=lambda transactional_id: EPOCH)), partitions=many
        )
        await coming
        return found

    outcome = asyncio.run(scene())
    assert outcome == [guard(1 if many[0][1].spoiled == 0 else 2), *[guard(1)] * (len(many) - 1)]


def test_very_many_partitions_are_told_to_another_broker_some_at_a_time() -> None:
    many = [(TopicPartition("orders", index), Producers()) for index in range(2 * ASKED_TOGETHER + 1)]
    far = Far({name: ErrorCode.NONE for name, _ in many[1:]})
    outcome = admitted(Coordinator(NotCoordinator()), peers=far, partitions=many)
    assert [code(each) for each in outcome] == [ErrorCode.UNKNOWN_SERVER_ERROR, *[None] * (len(many) - 1)]
    assert [len(each.transactions[0].topics[0].partitions) for each in far.asked] == [ASKED_TOGETHER] * 2 + [1]


@pytest.mark.parametrize(
    ("answered", "who", "told"),
    [
        (ErrorCode.NONE, writer(), None),
        (ErrorCode.CONCURRENT_TRANSACTIONS, writer(), ErrorCode.CONCURRENT_TRANSACTIONS),
        (ErrorCode.CONCURRENT_TRANSACTIONS, writer(newest=False), ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.PRODUCER_FENCED, writer(), ErrorCode.INVALID_PRODUCER_EPOCH),
        (ErrorCode.TRANSACTION_ABORTABLE, writer(knows_abortable=False), ErrorCode.INVALID_TXN_STATE),
        (ErrorCode.NOT_COORDINATOR, writer(), ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, writer(), ErrorCode.NOT_ENOUGH_REPLICAS),
        (32_000, writer(), ErrorCode.NOT_ENOUGH_REPLICAS),
    ],
    ids=lambda value: "a code nobody knows" if value == 32_000 else None,
)
def test_another_brokers_coordinator_is_asked_and_its_words_are_those_of_ours(
    answered: int, who: TransactionalWriter, told: ErrorCode | None
) -> None:
    far = Far({FIRST: answered})
    assert [code(each) for each in admitted(Coordinator(NotCoordinator()), peers=far, who=who)] == [told]
    (transaction,) = far.asked[0].transactions
    assert transaction.verify_only is not who.adds_itself


def test_a_partition_that_another_broker_says_nothing_of_is_refused() -> None:
    both = [(FIRST, Producers()), (SECOND, Producers())]
    outcome = admitted(Coordinator(NotCoordinator()), peers=Far({FIRST: ErrorCode.NONE}), partitions=both)
    assert [code(each) for each in outcome] == [None, ErrorCode.UNKNOWN_SERVER_ERROR]


def test_a_coordinator_that_is_away_is_asked_again_by_the_client() -> None:
    assert admitted(Coordinator(NotCoordinator()), peers=Far(None)) == [TRY_AGAIN]

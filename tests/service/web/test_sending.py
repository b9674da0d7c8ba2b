"""What becomes of batches on their way to leaders that move, fall silent, or are nowhere; the leaders are stand-ins."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from log.batch import build_batch, read_header
from log.ids import TopicPartition
from service.client.failures import ClientFailure, FailureKind
from service.web import sending
from service.web.gateway import Gateway
from service.web.problems import Problem
from service.web.sending import OutgoingBatch, ProducerIds, send, send_one_each
from service.wire.error_codes import ErrorCode
from service.wire.messages import (
    ConditionalProduceRequest,
    ConditionalProduceResponse,
    ConditionalResult,
    InitProducerIdRequest,
    InitProducerIdResponse,
)

SILENT = ClientFailure("it fell silent", FailureKind.UNREACHABLE)
NOBODY = -1


class Elsewhere:
    """A gateway to leaders that are other brokers: `says` is what each question in turn is answered. What is asked is
    written all the same, and what has been written is known by its sequence numbers.
    """

    def __init__(self, *says: int | Exception, partitions: int = 1) -> None:
        self.says = list(says)
        self.log: dict[int, list[bytes]] = {each: [] for each in range(partitions)}
        self.known: dict[tuple[int, int, int], int] = {}
        self.leaders = dict.fromkeys(self.log, 2)
        self.then: Callable[[], None] = lambda: None
        self.given = 0
        image = SimpleNamespace(partition=self.state, topics={"t": SimpleNamespace(id=bytes(16))})
        self.node_id, self.image = 1, image
        self.own_session = None
        self.producer_ids = ProducerIds(cast(Gateway, self))

    def state(self, partition: TopicPartition) -> Any:
        leader = self.leaders[partition.partition]
        return SimpleNamespace(leader=leader, isr=(leader,))

    async def ask(self, node: int, request: object, session: object = None, needs: object = None) -> object:
        if isinstance(request, InitProducerIdRequest):
            self.given += 1
            return InitProducerIdResponse(producer_id=self.given, producer_epoch=0)
        assert isinstance(request, ConditionalProduceRequest)
        says = self.says.pop(0) if self.says else ErrorCode.NONE
        results = []
        for each in request.batches:
            code = says if isinstance(says, int) else 0
            offset = self.append(each.partition_index, bytes(each.records or b""))
            results.append(ConditionalResult(code, may_be_written=bool(code), base_offset=offset))
        self.then()
        if isinstance(says, Exception):
            raise says
        return ConditionalProduceResponse(results=results)

    def append(self, index: int, batch: bytes) -> int:
        header = read_header(batch)
        place = header.producer_id, index, header.base_sequence
        if header.producer_id < 0 or place not in self.known:
            self.known[place] = len(self.log[index])
            self.log[index].append(batch)
        return self.known[place]


def batch(index: int = 0) -> OutgoingBatch:
    return OutgoingBatch(TopicPartition("t", index), build_batch([(None, b"x", (), 1000)]), 1)


def sent(gateway: Elsewhere, batches: Sequence[OutgoingBatch]) -> Sequence[OutgoingBatch]:
    asyncio.run(send(cast(Gateway, gateway), batches))
    return batches


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "TIMEOUT_S", 0.1)
    monkeypatch.setattr(sending, "PAUSE_S", 0.001)


@pytest.mark.parametrize("says", [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.REQUEST_TIMED_OUT, SILENT])
def test_what_a_leader_appended_before_it_was_replaced_is_written_once(says: int | Exception) -> None:
    gateway = Elsewhere(says)
    (one,) = sent(gateway, [batch()])
    assert (one.error, one.base_offset, one.in_doubt) == (0, 0, False)
    assert len(gateway.log[0]) == 1


def test_a_batch_is_sent_again_when_the_last_transaction_of_its_producer_is_finished() -> None:
    (one,) = sent(Elsewhere(*[ErrorCode.CONCURRENT_TRANSACTIONS] * 3), [batch()])
    assert (one.error, one.base_offset) == (0, 0)


def test_what_nobody_answers_for_is_in_doubt() -> None:
    gateway = Elsewhere(*[SILENT] * 1000)
    (one,) = sent(gateway, [batch()])
    assert (one.problem().outcome, len(gateway.log[0])) == ("unknown", 1)


def test_a_doubt_is_not_forgotten_when_the_next_leader_refuses() -> None:
    gateway = Elsewhere(SILENT)
    gateway.then = lambda: gateway.leaders.update({0: NOBODY})
    (one,) = sent(gateway, [batch()])
    assert (one.problem().slug, one.problem().outcome) == ("outcome-unknown", "unknown")


def test_numbers_go_on_after_a_batch_and_are_given_up_in_doubt() -> None:
    gateway = Elsewhere()
    sent(gateway, [batch()])
    sent(gateway, [batch()])
    assert [read_header(each)[9:12] for each in gateway.log[0]] == [(1, 0, 0), (1, 0, 1)]
    gateway.says = [SILENT] * 1000
    sent(gateway, [batch()])
    gateway.says = []
    sent(gateway, [batch()])
    assert read_header(gateway.log[0][-1])[9:12] == (2, 0, 0)


def test_what_was_written_stays_told_though_another_partition_has_no_leader() -> None:
    gateway = Elsewhere(partitions=2)
    gateway.leaders[1] = NOBODY
    there, nowhere = sent(gateway, [batch(0), batch(1)])
    assert (there.error, there.base_offset) == (0, 0)
    assert (nowhere.problem().slug, nowhere.problem().outcome) == ("not-now", "none")


def test_several_batches_of_a_partition_are_each_answered() -> None:
    gateway = Elsewhere()
    batches = sent(gateway, [batch(), batch(), batch()])
    assert [each.base_offset for each in batches] == [0, 1, 2]


def test_what_a_broker_answers_for_by_its_leadership_is_not_sent_to_the_next_leader() -> None:
    gateway, one = Elsewhere(), batch()
    one.numbered = True
    with pytest.raises(Problem) as refused:
        asyncio.run(send_one_each(cast(Gateway, gateway), [one], transactional_id="one", internal=True))
    assert (refused.value.slug, refused.value.outcome, gateway.log[0]) == ("not-now", "none", [])


@pytest.mark.parametrize("first", [ErrorCode.NOT_LEADER_OR_FOLLOWER, SILENT])
def test_a_batch_is_not_sent_again_once_its_transaction_takes_nothing_more(first: int | Exception) -> None:
    """A partition moved for as long as it took to seal the branch elsewhere, and the batch got into it afterwards."""
    gateway, one = Elsewhere(first), batch()
    one.numbered = True
    answers = iter([ErrorCode.NONE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.PRODUCER_FENCED])

    async def refusal() -> int:
        return next(answers)

    asyncio.run(send_one_each(cast(Gateway, gateway), [one], transactional_id="one", refusal=refusal))
    assert (one.error, len(gateway.log[0])) == (ErrorCode.PRODUCER_FENCED, 1)
    assert one.problem().outcome == "unknown", "the first attempt may be there"


def test_a_partition_that_is_led_here_and_is_not_here_is_no_unknown_one() -> None:
    """It comes or goes in a moment: the client was told once and for all that there is no such topic."""
    gateway, asked = Elsewhere(), list[str]()

    def topic(name: str) -> None:
        asked.append(name)
        gateway.leaders[0] = 2

    more: Any = gateway
    more.partitions = SimpleNamespace(topic=topic)
    more.writing = SimpleNamespace(env=SimpleNamespace(clock=SimpleNamespace(wall_ms=int)))
    gateway.leaders[0] = 1
    (one,) = sent(gateway, [batch()])
    assert (one.error, one.base_offset, asked) == (0, 0, ["t"])

"""Markers on their way: to partitions that can't take them yet, and to other brokers."""

import asyncio
import dataclasses
from collections import Counter
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

from log.ids import TopicPartition
from log.tally import Histogram
from service.broker import marker_courier
from service.broker.marker_courier import LONGEST_RETRY_S, QUICK, RETRY_S, SLOW, MarkerCourier
from service.broker.partition import PartitionLost
from service.broker.peers import PeerAway
from service.broker.shard import NotCoordinator
from service.cluster.controller import RaiseLeaderEpoch, Refusal
from service.cluster.image import PartitionState
from service.cluster.metadata import MetadataLost
from service.wire.error_codes import ErrorCode
from service.wire.messages import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from txn.commands import MarkersWritten
from txn.markers import SendMarkers
from txn.verdicts import MarkersNoted

ORDERS, PAYMENTS = TopicPartition("orders", 0), TopicPartition("payments", 1)
MARKERS = SendMarkers("pay", 7, 1, True, 2, (ORDERS, PAYMENTS))
OTHERS = SendMarkers("sell", 8, 3, False, 2, (PAYMENTS,))
HERE, THERE = 1, 2


class StandIn(SimpleNamespace):
    __hash__ = object.__hash__  # type: ignore[assignment]


class Stage:
    """A courier between a coordinator, a writer and other brokers that are stand-ins. `orders` is led here."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, payments_led_by: int = HERE) -> None:
        self.refusals = 0
        self.written: list[TopicPartition] = []
        self.told: list[MarkersWritten] = []
        self.delays: list[float] = []
        self.asked: list[tuple[int, int, WriteTxnMarkersRequest]] = []
        self.answer: Callable[[WriteTxnMarkersRequest], WriteTxnMarkersResponse] = self.taken
        self.leaders = {ORDERS: HERE, PAYMENTS: payments_led_by}
        self.work: list[Coroutine[Any, Any, None]] = []
        self.shard: Any = StandIn(tell=self.hear, dropped=False)
        self.completed = Histogram()
        self.coordinator: Any = SimpleNamespace(
            leader_epoch=3, is_leading=True, topic_partition=TopicPartition("__transaction_state", 5)
        )
        monkeypatch.setattr(marker_courier, "asyncio", SimpleNamespace(sleep=self.sleep))
        self.raised_to: list[int] = []
        self.refused_raises = 0
        image = SimpleNamespace(partition=self.state, topics={})
        metadata: Any = SimpleNamespace(image=image, broker_id=HERE, execute=self.execute)
        transactions: Any = SimpleNamespace(at=lambda index: self.shard)
        peers: Any = SimpleNamespace(ask=self.ask, is_there=lambda broker_id: True)
        env: Any = SimpleNamespace(
            clock=SimpleNamespace(monotonic=lambda: 0.0),
            tasks=SimpleNamespace(spawn=lambda name, work: self.work.append(work)),
        )
        self.courier = MarkerCourier(transactions, self, metadata, peers, env, self.completed)  # type: ignore[arg-type]

    def hear(self, told: MarkersWritten, answer: Callable[[object], None]) -> None:
        self.told.append(told)
        answer(MarkersNoted(complete=ORDERS in told.partitions))

    def post(self, *every: SendMarkers) -> None:
        self.courier.post(self.coordinator, every or (MARKERS,))

    def loaded(self, *owed: SendMarkers, is_first: bool) -> None:
        self.shard.partition, self.shard.is_first = self.coordinator, is_first
        self.shard.machine = SimpleNamespace(owed_markers=lambda: iter(owed))
        self.courier.resume(self.shard)

    def run(self) -> None:
        """Everything that was begun, one after the other, and what that begins."""

        async def main() -> None:
            while self.work:
                await self.work.pop(0)

        asyncio.run(main())

    def run_all(self) -> None:
        """The same, but all at the same time. There is an end: no task that has begun is left."""

        async def main() -> None:
            running: set[asyncio.Future[None]] = set()
            while self.work or running:
                running |= {asyncio.ensure_future(self.work.pop(0)) for _ in list(self.work)}
                await asyncio.sleep(0)
                for ended in [each for each in running if each.done()]:
                    running.remove(ended)
                    ended.result()

        asyncio.run(main())

    async def execute(self, command: RaiseLeaderEpoch) -> int:
        self.raised_to.append(command.at_least)
        if self.refused_raises:
            self.refused_raises -= 1
            if self.refused_raises == 1:
                raise RuntimeError("this broker's own mistake")
            raise MetadataLost(ErrorCode.NOT_CONTROLLER, "the store does not answer")
        self.coordinator.leader_epoch = command.at_least
        return command.at_least

    async def sleep(self, delay_s: float) -> None:
        self.delays.append(delay_s)

    def state(self, topic_partition: TopicPartition) -> PartitionState:
        return PartitionState((1, 2), (1, 2), self.leaders[topic_partition], 0)

    # -- the writer

    def partition(self, topic_partition: TopicPartition) -> Any:
        led = self.leaders[topic_partition] == HERE
        return SimpleNamespace(is_leading=True) if led else None

    def write(self, topic_partition: TopicPartition, **_: Any) -> Any:
        if topic_partition == PAYMENTS and self.refusals:
            self.refusals -= 1
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        self.written.append(topic_partition)
        return SimpleNamespace(high_watermark=1), SimpleNamespace(end_offset=1)

    # -- the other brokers

    async def ask(self, broker_id: int, request: WriteTxnMarkersRequest, *, lane: int) -> WriteTxnMarkersResponse:
        self.asked.append((broker_id, lane, request))
        return self.answer(request)

    def taken(self, request: WriteTxnMarkersRequest, code: ErrorCode = ErrorCode.NONE) -> WriteTxnMarkersResponse:
        return WriteTxnMarkersResponse(
            [
                WritableTxnMarkerResult(
                    marker.producer_id,
                    [
                        WritableTxnMarkerTopicResult(
                            topic.name,
                            [WritableTxnMarkerPartitionResult(index, code) for index in topic.partition_indexes],
                        )
                        for topic in marker.topics
                    ],
                )
                for marker in request.markers
            ]
        )


def told(*partitions: TopicPartition, of: SendMarkers = MARKERS) -> MarkersWritten:
    return MarkersWritten(of.transactional_id, of.producer_id, of.producer_epoch, partitions)


def test_a_marker_is_sent_until_it_is_taken_and_less_and_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch)
    stage.refusals = 9
    stage.post()
    assert stage.told == [told(ORDERS)], "what is slow holds up nobody else"
    stage.run()
    assert stage.written == [ORDERS, PAYMENTS]
    assert stage.delays[:4] == [RETRY_S, 2 * RETRY_S, 4 * RETRY_S, 8 * RETRY_S]
    assert stage.delays[-1] == LONGEST_RETRY_S
    assert stage.told == [told(ORDERS), told(PAYMENTS)]


@pytest.mark.parametrize("end", ["another epoch", "another shard", "resigned"])
def test_who_coordinates_no_more_carries_nothing(monkeypatch: pytest.MonkeyPatch, end: str) -> None:
    stage = Stage(monkeypatch)
    stage.refusals = 9
    stage.post()
    if end == "another epoch":
        stage.coordinator.leader_epoch = 4
    elif end == "another shard":
        stage.shard = SimpleNamespace(tell=stage.told.append, dropped=False)
    else:
        stage.coordinator.is_leading = False
    stage.run()
    assert stage.written == [ORDERS]
    assert stage.refusals == 8, "asked once, by the one who coordinated then"


def test_markers_for_another_broker_go_there_together(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch, payments_led_by=THERE)
    stage.post()
    stage.post(OTHERS)
    assert stage.told == [told(ORDERS)]
    stage.run()
    [(broker_id, lane, request)] = stage.asked
    assert (broker_id, lane) == (THERE, QUICK)
    assert [
        (marker.producer_id, marker.transaction_result, marker.coordinator_epoch) for marker in request.markers
    ] == [
        (7, True, 3),
        (8, False, 3),
    ]
    assert stage.told == [told(ORDERS), told(PAYMENTS), told(PAYMENTS, of=OTHERS)]


@pytest.mark.parametrize("trouble", ["no answer", "refused", "half an answer", "a code nobody knows"])
def test_what_another_broker_has_not_taken_goes_again_by_a_lane_of_its_own(
    monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    stage = Stage(monkeypatch, payments_led_by=THERE)

    def once(request: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse:
        stage.answer = stage.taken
        if trouble == "refused":
            return stage.taken(request, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if trouble == "half an answer":
            return WriteTxnMarkersResponse([])
        if trouble == "a code nobody knows":
            return stage.taken(request, 32_000)  # type: ignore[arg-type]
        raise PeerAway

    stage.answer = once
    stage.post()
    stage.run()
    assert [lane for _, lane, _ in stage.asked] == [QUICK, SLOW]
    assert stage.told == [told(ORDERS), told(PAYMENTS)]


@pytest.mark.parametrize("rest", ["a code nobody knows", "nothing"])
def test_what_another_broker_has_taken_is_told_and_not_sent_again_whatever_it_says_of_the_rest(
    monkeypatch: pytest.MonkeyPatch, rest: str
) -> None:
    """An older client's next transaction has the same epoch, and a marker that is sent again would end it."""
    stage = Stage(monkeypatch, payments_led_by=THERE)

    def once(request: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse:
        stage.answer = stage.taken
        first = stage.taken(request).markers[:1]
        if rest == "nothing":
            return WriteTxnMarkersResponse(first)
        return WriteTxnMarkersResponse(
            [*first, *stage.taken(request, 32_000).markers[1:]]  # type: ignore[arg-type]
        )

    stage.answer = once
    stage.post()
    stage.post(OTHERS)
    stage.run()
    assert [[marker.producer_id for marker in request.markers] for _, _, request in stage.asked] == [[7, 8], [8]]
    assert stage.told == [told(ORDERS), told(PAYMENTS), told(PAYMENTS, of=OTHERS)]


def test_a_partition_that_moves_gets_its_marker_where_it_is_led_then(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch, payments_led_by=THERE)

    def moved(request: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse:
        stage.leaders[PAYMENTS] = HERE
        return stage.taken(request, ErrorCode.NOT_LEADER_OR_FOLLOWER)

    stage.answer = moved
    stage.post()
    stage.run()
    assert stage.written == [ORDERS, PAYMENTS]
    assert stage.told == [told(ORDERS), told(PAYMENTS)]


def test_an_answer_that_comes_after_the_coordinator_changed_is_told_to_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same pair may be in its next transaction by then."""
    stage = Stage(monkeypatch, payments_led_by=THERE)

    def late(request: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse:
        stage.shard = SimpleNamespace(tell=stage.told.append, dropped=False)
        return stage.taken(request)

    stage.answer = late
    stage.post()
    stage.run()
    assert stage.told == [told(ORDERS)]


@pytest.mark.parametrize("version", [0, 1, 2])
@pytest.mark.parametrize("sent", [False, True], ids=["never left", "may come late"])
def test_a_marker_of_an_older_client_that_may_come_late_is_outdated_before_it_goes_again(
    monkeypatch: pytest.MonkeyPatch, version: int, sent: bool
) -> None:
    """The next transaction has the same epoch: the copy under way would end it."""
    stage = Stage(monkeypatch, payments_led_by=THERE)
    markers = SendMarkers("pay", 7, 1, True, version, (ORDERS, PAYMENTS))

    def once(request: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse:
        stage.answer = stage.taken
        raise PeerAway("the connection broke", may_come_late=sent)

    stage.answer = once
    stage.post(markers)
    stage.run()
    if sent and version < 2:
        assert stage.raised_to == [4]
        assert len(stage.asked) == 1, "the coordinator of the next epoch sends it"
        assert stage.told == [told(ORDERS, of=markers)]
    else:
        assert stage.raised_to == []
        assert len(stage.asked) == 2
        assert stage.told == [told(ORDERS, of=markers), told(PAYMENTS, of=markers)]


def test_while_the_epoch_can_not_be_raised_a_marker_that_may_come_late_is_not_sent_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = Stage(monkeypatch, payments_led_by=THERE)
    stage.refused_raises = 3
    markers = SendMarkers("pay", 7, 1, True, 0, (PAYMENTS,))

    def lost(request: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse:
        raise PeerAway("the connection broke", may_come_late=True)

    stage.answer = lost
    stage.post(markers)
    stage.run()
    assert stage.raised_to == [4] * 4
    assert len(stage.asked) == 1
    assert stage.told == []


def many_doubtful(stage: Stage) -> None:
    """Markers of an older client that another broker may still carry out, sent one after the other."""

    def lost(request: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse:
        raise PeerAway("the connection broke", may_come_late=True)

    stage.answer = lost
    stage.post(*(SendMarkers(f"pay-{at}", at, 1, True, 0, (PAYMENTS,)) for at in range(20)))


def test_all_markers_that_may_come_late_share_one_raise_of_the_epoch(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stage = Stage(monkeypatch, payments_led_by=THERE)
    many_doubtful(stage)
    asked = 0

    async def execute(command: RaiseLeaderEpoch) -> int:
        nonlocal asked
        asked += 1
        for _ in range(5):
            await asyncio.sleep(0)
        stage.coordinator.leader_epoch = command.at_least
        return command.at_least

    stage.courier._metadata.execute = execute  # type: ignore[assignment, method-assign]
    stage.run_all()
    assert (asked, stage.coordinator.leader_epoch) == (1, 4)
    assert caplog.text.count("are to obey epoch 4") == 1


def test_why_the_epoch_can_not_be_raised_is_logged_once_and_again_when_the_outcome_changes(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stage = Stage(monkeypatch, payments_led_by=THERE)
    stage.refused_raises = 30  # the last but one for another reason
    many_doubtful(stage)
    stage.run_all()
    assert stage.raised_to == [4] * 31
    logged = [each for each in caplog.records if each.name == "oncelog.transactions" and each.levelname == "ERROR"]
    assert [record.getMessage().split(": ")[-1] for record in logged] == [
        "the store does not answer",
        'RuntimeError("this broker\'s own mistake")',
        "the store does not answer",
    ]
    assert caplog.text.count("it leads in epoch 4 now") == 1


def test_the_next_shard_raises_the_epoch_though_the_former_one_still_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the former one waits for may take long."""
    stage = Stage(monkeypatch, payments_led_by=THERE)
    many_doubtful(stage)
    asked: list[Any] = []
    the_next = asyncio.Event()

    async def execute(command: RaiseLeaderEpoch) -> int:
        asked.append(stage.shard)
        if len(asked) == 1:
            stage.shard.dropped = True
            stage.shard = StandIn(tell=stage.hear, dropped=False)
            stage.loaded(dataclasses.replace(MARKERS, transaction_version=0), is_first=False)
            await the_next.wait()
        else:
            the_next.set()
        stage.coordinator.leader_epoch = command.at_least
        return command.at_least

    stage.courier._metadata.execute = execute  # type: ignore[assignment, method-assign]
    stage.run_all()
    assert len(asked) == 2
    assert asked[1] is stage.shard
    assert stage.courier._raising == {}


def test_a_raise_that_is_impossible_does_not_keep_a_lower_one_from_markers_that_need_only_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A partition may have heard of an epoch to which there is no way."""
    stage = Stage(monkeypatch, payments_led_by=THERE)
    markers = SendMarkers("pay", 7, 1, True, 0, (PAYMENTS,))
    stage.post(markers)
    [owed] = stage.courier._outboxes[THERE, QUICK]

    async def execute(command: RaiseLeaderEpoch) -> int | Refusal:
        if command.at_least > 4:
            stage.courier._outdate(owed)
            return Refusal(ErrorCode.INVALID_REQUEST)
        stage.coordinator.leader_epoch = command.at_least
        return command.at_least

    stage.courier._metadata.execute = execute  # type: ignore[assignment, method-assign]
    stage.courier._raise_epoch(owed, 2**31 - 1)
    stage.run_all()
    assert stage.coordinator.leader_epoch == 4


@pytest.mark.parametrize("version", [0, 1, 2])
@pytest.mark.parametrize("is_first", [False, True], ids=["after another shard", "first in its epoch"])
def test_a_marker_that_a_former_shard_may_have_sent_is_outdated_before_it_is_sent(
    monkeypatch: pytest.MonkeyPatch, version: int, is_first: bool
) -> None:
    stage = Stage(monkeypatch)
    stage.loaded(dataclasses.replace(MARKERS, transaction_version=version), is_first=is_first)
    stage.run()
    if not is_first and version < 2:
        assert stage.raised_to == [4]
        assert stage.written == [], "the coordinator of the next epoch sends it"
    else:
        assert stage.raised_to == []
        assert stage.written == [ORDERS, PAYMENTS]


def test_while_the_epoch_can_not_be_raised_nothing_is_sent_that_a_former_shard_may_have_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = Stage(monkeypatch)
    stage.refused_raises = 3
    stage.loaded(OTHERS, dataclasses.replace(MARKERS, transaction_version=0), is_first=False)
    stage.run()
    assert stage.raised_to == [4] * 4
    assert stage.delays == [RETRY_S, 2 * RETRY_S, 4 * RETRY_S]
    assert stage.written == [PAYMENTS], "the epoch of the producer tells this one from others, whenever it comes"
    assert stage.told == [told(PAYMENTS, of=OTHERS)]


def test_a_shard_that_is_dropped_after_its_replay_raises_no_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch)
    stage.loaded(dataclasses.replace(MARKERS, transaction_version=0), is_first=False)
    stage.shard.dropped = True
    stage.run()
    assert stage.raised_to == []


MANY = dataclasses.replace(MARKERS, partitions=tuple(TopicPartition("wide", index) for index in range(40)))


def after(stage: Stage, count: int, change: Callable[[], None]) -> None:
    """Let something change as soon as so many markers are written."""
    write = stage.write

    def written(topic_partition: TopicPartition, **terms: Any) -> Any:
        outcome = write(topic_partition, **terms)
        if len(stage.written) == count:
            asyncio.get_running_loop().call_soon(change)
        return outcome

    stage.write = written  # type: ignore[method-assign]


ONE_EACH = tuple(dataclasses.replace(MANY, producer_id=at, partitions=(at_,)) for at, at_ in enumerate(MANY.partitions))


@pytest.mark.parametrize("every", [(MANY,), ONE_EACH], ids=["of one transaction", "of many that are decided together"])
def test_very_many_markers_are_written_in_turns(
    monkeypatch: pytest.MonkeyPatch, every: tuple[SendMarkers, ...]
) -> None:
    stage = Stage(monkeypatch)
    stage.leaders |= dict.fromkeys(MANY.partitions, HERE)
    stage.post(*every)
    assert stage.written == []
    stage.run()
    assert stage.written == list(MANY.partitions)
    assert [partition for each in stage.told for partition in each.partitions] == stage.written
    assert len(stage.told) == max(len(every), len(MANY.partitions) // marker_courier.WRITTEN_A_TURN)


@pytest.mark.parametrize("end", ["another epoch", "another shard", "resigned"])
def test_who_coordinates_no_more_stops_between_two_turns(monkeypatch: pytest.MonkeyPatch, end: str) -> None:
    stage = Stage(monkeypatch)
    stage.leaders |= dict.fromkeys(MANY.partitions, HERE)

    def change() -> None:
        if end == "another epoch":
            stage.coordinator.leader_epoch = 4
        elif end == "another shard":
            stage.shard = SimpleNamespace(tell=stage.told.append, dropped=False)
        else:
            stage.coordinator.is_leading = False

    after(stage, marker_courier.WRITTEN_A_TURN, change)
    stage.post(MANY)
    stage.run()
    assert len(stage.written) == marker_courier.WRITTEN_A_TURN
    assert len(stage.told) == 1


def test_a_partition_whose_leader_moves_between_two_turns_is_sent_to_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = Stage(monkeypatch)
    stage.leaders |= dict.fromkeys(MANY.partitions, HERE)
    last = MANY.partitions[-1]
    after(stage, 1, lambda: stage.leaders.update({last: THERE}))
    stage.post(MANY)
    stage.run()
    assert [broker_id for broker_id, _, _ in stage.asked] == [THERE]
    assert stage.told[-1] == told(last, of=MANY)
    assert len([partition for each in stage.told for partition in each.partitions]) == len(MANY.partitions)


def test_a_marker_that_can_not_be_written_holds_up_no_other(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stage = Stage(monkeypatch)
    stage.leaders |= dict.fromkeys(MANY.partitions, HERE)
    write, failures = stage.write, [OSError("out of luck")]

    def failing(topic_partition: TopicPartition, **terms: Any) -> Any:
        if topic_partition == MANY.partitions[3] and failures:
            raise failures.pop()
        return write(topic_partition, **terms)

    stage.write = failing  # type: ignore[method-assign]
    stage.post(MANY)
    stage.run()
    assert sorted(stage.written) == list(MANY.partitions)
    assert stage.told[-1] == told(MANY.partitions[3], of=MANY)
    assert "could not be written; it is tried again" in caplog.text


def test_markers_that_are_committed_together_are_told_together(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch)
    waiters: list[asyncio.Future[None]] = []

    def uncommitted(topic_partition: TopicPartition, **_: Any) -> Any:
        waiters.append(asyncio.get_running_loop().create_future())
        return SimpleNamespace(high_watermark=0, committed=lambda _: waiters[-1]), SimpleNamespace(end_offset=1)

    stage.write = uncommitted  # type: ignore[method-assign]

    async def scene() -> None:
        stage.post()
        for waiter in waiters:
            waiter.set_result(None)
        await asyncio.sleep(0)
        [tell] = stage.work
        await tell

    asyncio.run(scene())
    assert stage.told == [told(ORDERS, PAYMENTS)]


def test_a_marker_that_is_committed_after_the_coordinator_changed_is_told_to_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neither is it sent again, if it was not committed."""
    stage = Stage(monkeypatch)
    waiters: list[asyncio.Future[None]] = []

    def uncommitted(topic_partition: TopicPartition, **_: Any) -> Any:
        waiters.append(asyncio.get_running_loop().create_future())
        return SimpleNamespace(high_watermark=0, committed=lambda _: waiters[-1]), SimpleNamespace(end_offset=1)

    stage.write = uncommitted  # type: ignore[method-assign]

    async def scene() -> None:
        stage.post()
        stage.shard.dropped = True
        waiters[0].set_result(None)
        waiters[1].set_exception(PartitionLost(ErrorCode.NOT_LEADER_OR_FOLLOWER))
        await asyncio.sleep(0)

    asyncio.run(scene())
    assert stage.told == []
    assert stage.work == []


def test_a_coordinator_that_gives_up_while_it_is_told_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was not told is sent again by its successor."""
    stage = Stage(monkeypatch)
    waiters: list[asyncio.Future[None]] = []

    def uncommitted(topic_partition: TopicPartition, **_: Any) -> Any:
        waiters.append(waiter := asyncio.get_running_loop().create_future())
        return SimpleNamespace(high_watermark=0, committed=lambda _: waiter), SimpleNamespace(end_offset=1)

    def tell_once(command: MarkersWritten, answer: object) -> None:
        if stage.shard.dropped:
            raise NotCoordinator
        stage.told.append(command)
        stage.shard.dropped = True

    stage.write = uncommitted  # type: ignore[method-assign]
    stage.shard.tell = tell_once
    other_coordinator: Any = SimpleNamespace(
        leader_epoch=3, is_leading=True, topic_partition=TopicPartition("__transaction_state", 6)
    )
    shards = {5: stage.shard, 6: SimpleNamespace(tell=stage.hear, dropped=False)}
    stage.courier._transactions.at = shards.get  # type: ignore[assignment, method-assign]

    async def scene() -> None:
        stage.post(MARKERS, OTHERS)
        stage.courier.post(other_coordinator, (dataclasses.replace(OTHERS, producer_id=9),))
        for waiter in waiters:
            waiter.set_result(None)
        await asyncio.sleep(0)
        for work in stage.work:
            await work

    asyncio.run(scene())
    assert stage.told == [told(ORDERS, PAYMENTS), told(PAYMENTS, of=dataclasses.replace(OTHERS, producer_id=9))]


def test_how_long_the_end_of_a_transaction_took_is_counted_when_no_marker_is_owed_any_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = Stage(monkeypatch)
    stage.post(OTHERS)
    stage.run()
    assert (len(stage.told), sum(stage.completed.counts)) == (1, 0)
    stage.post(MARKERS)
    stage.run()
    assert (len(stage.told), sum(stage.completed.counts)) == (2, 1)


def test_of_very_many_markers_that_another_broker_has_taken_few_are_told_in_a_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each may be the end of a transaction, and others wait for their turn meanwhile."""
    stage = Stage(monkeypatch, payments_led_by=THERE)
    every = [dataclasses.replace(OTHERS, producer_id=at) for at in range(marker_courier.SENT_TOGETHER)]
    turns, heard = [0], Counter[int]()
    hear = stage.shard.tell

    def hears(told: MarkersWritten, answer: Callable[[object], None]) -> None:
        heard[turns[0]] += 1
        hear(told, answer)

    async def count_turns() -> None:
        while True:
            turns[0] += 1
            await asyncio.sleep(0)

    async def main() -> None:
        counting = asyncio.ensure_future(count_turns())
        while stage.work:
            await stage.work.pop(0)
        counting.cancel()

    stage.shard.tell = hears
    stage.post(*every)
    asyncio.run(main())
    assert len(stage.asked) == 1
    assert stage.told == [told(PAYMENTS, of=each) for each in every]
    assert max(heard.values()) <= 200

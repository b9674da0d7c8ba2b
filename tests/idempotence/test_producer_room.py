"""What the partitions of one broker may remember together."""

from collections.abc import Callable

import pytest

from idempotence.producer_room import LOOKS_AT_ONCE, ProducerRoom
from idempotence.producers import IDLE_S, ProducerStates
from idempotence.verdicts import ACCEPTED, TooManyProducers, Verdict
from tests import batches

NOW_S = 1_700_000_000
COUNT = 3 * LOOKS_AT_ONCE
Evict = Callable[[ProducerStates, int, int], tuple[int, int]]


class Broker:
    def __init__(self, limit: int, partitions: int = 2) -> None:
        self.room = ProducerRoom(limit, lambda: self.partitions)
        self.open: dict[int, int] = {}
        self.partitions = [ProducerStates(self.open, room=self.room) for _ in range(partitions)]
        self.now_s = NOW_S

    def write(self, partition: int, producer_id: int, sequence: int = 0) -> Verdict:
        header, batch = batches.data(producer_id, sequence=sequence)
        verdict = self.partitions[partition].check(header, now_ms=self.now_s * 1_000)
        if verdict is ACCEPTED:
            self.partitions[partition].apply(header, batch)
        return verdict

    @property
    def remembered(self) -> int:
        return sum(map(len, self.partitions))


def test_partitions_share_the_room_and_known_producers_go_on() -> None:
    broker = Broker(3)
    assert [broker.write(0, 1), broker.write(1, 1), broker.write(1, 2)] == [ACCEPTED] * 3
    assert broker.write(0, 3) == TooManyProducers(3)
    assert broker.write(1, 3) == TooManyProducers(3)
    assert broker.write(0, 1, sequence=1) is ACCEPTED
    assert (broker.room.refused, broker.room.evicted) == (2, 0)


def test_the_idle_of_every_partition_go_before_anybody_is_refused() -> None:
    broker = Broker(4)
    broker.open[2] = 0
    for producer_id in (1, 2, 3):
        broker.write(0, producer_id)
    broker.now_s += IDLE_S
    broker.write(0, 3, sequence=1)
    assert [broker.write(1, 10), broker.write(1, 11)] == [ACCEPTED] * 2
    assert [facts.producer_id for facts in broker.partitions[0].describe()] == [2, 3]
    assert broker.write(1, 12) == TooManyProducers(4)
    assert (broker.room.refused, broker.room.evicted) == (1, 1)


def test_a_partition_that_goes_leaves_its_room() -> None:
    broker = Broker(2)
    assert [broker.write(0, 1), broker.write(0, 2)] == [ACCEPTED] * 2
    assert broker.write(1, 3) == TooManyProducers(2)
    del broker.partitions[0]
    broker.now_s += 1
    assert broker.write(0, 3) is ACCEPTED


def test_markers_of_strangers_fill_nothing() -> None:
    broker = Broker(5)
    broker.write(0, 1)
    for stranger in range(1_000):
        header, batch = batches.marker(100 + stranger, commit=False, offset=stranger)
        states = broker.partitions[stranger % 2]
        assert states.check_marker(header, coordinator_epoch=0, transaction_version=2) is ACCEPTED
        states.apply(header, batch)
    assert broker.remembered <= 5
    assert broker.room.refused == 0
    broker.now_s += 1
    assert broker.write(1, 2) is ACCEPTED
    assert broker.write(0, 1, sequence=1) is ACCEPTED


class Counted(list[ProducerStates]):
    looks = 0

    def __iter__(self):  # type: ignore[no-untyped-def]
        self.looks += 1
        return super().__iter__()


@pytest.mark.parametrize("full", [False, True])
def test_nobody_counts_all_producers_for_each_new_one(full: bool) -> None:
    broker = Broker(100 if full else 1_000)
    broker.partitions = counted = Counted(broker.partitions)
    for producer_id in range(1_000):
        broker.write(producer_id % 2, producer_id)
    assert counted.looks <= 4


@pytest.mark.parametrize("crowded", ["the broker", "the partition"])
@pytest.mark.parametrize(
    "idle", [range(10), range(COUNT - 10, COUNT), range(0, COUNT, 1_000), range(COUNT // 2, COUNT)]
)
def test_nobody_is_refused_while_any_producer_is_idle(crowded: str, idle: range) -> None:
    """However many others there are, and wherever the idle ones stand among them."""
    broker = Broker(COUNT if crowded == "the broker" else 2 * COUNT, partitions=1)
    broker.partitions = [ProducerStates(broker.open, limit=COUNT, room=broker.room)]
    for producer_id in range(COUNT):
        broker.write(0, producer_id)
    broker.now_s += IDLE_S
    for producer_id in range(COUNT):
        if producer_id not in idle:
            broker.write(0, producer_id, sequence=1)
    assert [broker.write(0, COUNT + number) for number in range(len(idle))] == [ACCEPTED] * len(idle)
    assert broker.write(0, 10**6) == TooManyProducers(COUNT)
    assert broker.remembered == COUNT
    assert not any(facts.producer_id in idle for facts in broker.partitions[0].describe())


def test_an_idle_producer_is_found_behind_a_partition_with_very_many_others() -> None:
    broker = Broker(COUNT + 2, partitions=5)
    broker.write(3, 1)
    broker.write(4, 1)
    broker.now_s += IDLE_S
    for producer_id in range(COUNT):
        broker.write(0, producer_id)
    assert broker.write(1, 1) is ACCEPTED
    assert [len(states) for states in broker.partitions] == [COUNT, 1, 0, 0, 0]


def test_a_search_is_bounded_and_the_next_one_looks_further(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of ten producers only the epoch is known; these may go whenever they wrote."""
    broker = Broker(2 * COUNT)
    broker.partitions = [ProducerStates(broker.open, limit=COUNT, room=broker.room)]
    looks: list[int] = []
    for name in ("evict_oldest", "evict_idle"):
        monkeypatch.setattr(ProducerStates, name, counted(getattr(ProducerStates, name), looks))
    for producer_id in range(COUNT):
        if producer_id < COUNT - 10:
            broker.write(0, producer_id)
        else:
            header, batch = batches.marker(producer_id, commit=False, offset=producer_id)
            broker.partitions[0].apply(header, batch)
    tries = 0
    while broker.write(0, 10**6) is not ACCEPTED:
        broker.now_s += 1
        tries += 1
    assert 0 < tries <= 3
    assert max(looks) == LOOKS_AT_ONCE


def test_where_all_old_ones_are_in_transactions_the_look_for_them_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Broker(COUNT, partitions=1)
    looks: list[int] = []
    monkeypatch.setattr(ProducerStates, "evict_oldest", counted(ProducerStates.evict_oldest, looks))
    for producer_id in range(COUNT):
        broker.write(0, producer_id)
        broker.open[producer_id] = producer_id
    for _ in range(5):
        broker.now_s += IDLE_S
        assert broker.write(0, 10**6) == TooManyProducers(COUNT)
    assert max(looks) <= LOOKS_AT_ONCE
    assert broker.remembered == COUNT


def counted(evict: Evict, looks: list[int]) -> Evict:
    def looking(states: ProducerStates, now_s: int, at_most: int) -> tuple[int, int]:
        gone, looked = evict(states, now_s, at_most)
        looks.append(looked)
        return gone, looked

    return looking


def test_a_clock_that_is_put_back_keeps_nobody_out_for_long() -> None:
    broker = Broker(2)
    assert [broker.write(0, 1), broker.write(0, 2)] == [ACCEPTED] * 2
    assert broker.write(1, 3) == TooManyProducers(2)
    del broker.partitions[0]
    broker.now_s -= 3_600
    assert broker.write(0, 3) is ACCEPTED


def test_a_partition_that_is_full_is_looked_through_once_a_second_however_many_ask(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    states = ProducerStates({}, limit=10)
    looks = []
    looking = ProducerStates.evict_idle

    def noted(self: ProducerStates, now_s: int, at_most: int) -> tuple[int, int]:
        looks.append(now_s)
        return looking(self, now_s, at_most)

    monkeypatch.setattr(ProducerStates, "evict_idle", noted)
    for second in (NOW_S, NOW_S + 1):
        for producer_id in range(500):
            header, batch = batches.data(producer_id)
            if states.check(header, now_ms=second * 1_000) is ACCEPTED:
                states.apply(header, batch)
    assert (len(states), looks) == (10, [NOW_S, NOW_S + 1])

"""Shelves against a plain dictionary."""

from collections.abc import Collection, Iterator
from itertools import chain, islice

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from idempotence import shelves as room
from idempotence.shelves import SHELF_MOST, Shelves


def told(lent: list[Collection[bytes]]) -> list[bytes]:
    return sorted(chain.from_iterable(lent))


def walk(shelves: Shelves) -> Iterator[list[int]]:
    """The ids on one shelf after the other."""
    at: int | None = 0
    while at is not None:
        shelf, at = shelves.shelf_at(at)
        yield list(shelf)


@pytest.fixture
def small_shelves(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(room, "SHELF_MOST", 2)
    return 2


same_shelves = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
CHANGES = st.lists(st.tuples(st.sampled_from(["put", "put", "remove", "lend"]), st.integers(0, 19)), max_size=60)


@same_shelves
@given(CHANGES)
def test_what_was_lent_stays_and_the_rest_goes_on(small_shelves: int, changes: list[tuple[str, int]]) -> None:
    shelves, plain = Shelves(), dict[int, bytes]()
    lent: list[tuple[list[Collection[bytes]], list[bytes]]] = []
    for number, (what, producer_id) in enumerate(changes):
        if what == "put":
            shelves.put(producer_id, b"%d;" % number)
            plain.pop(producer_id, None)
            plain[producer_id] = b"%d;" % number
        elif what == "remove" and producer_id in plain:
            shelves.remove(producer_id)
            del plain[producer_id]
        else:
            lent.append((shelves.lend(), sorted(plain.values())))
        assert len(shelves) == len(plain)
        assert [shelves.get(number) for number in range(20)] == [plain.get(number) for number in range(20)]
        on_each = list(walk(shelves))
        assert len(on_each) == shelves.shelves
        assert sorted(chain.from_iterable(on_each)) == sorted(plain)
        assert on_each == [[producer_id for producer_id in plain if producer_id in shelf] for shelf in on_each]
        assert max(map(len, on_each)) <= small_shelves
        assert all(on_each) or len(on_each) == 1, "an empty shelf is taken away"
    for collections, then in lent:
        assert told(collections) == then


def test_a_shelf_that_is_taken_away_leaves_the_others_lent(small_shelves: int) -> None:
    for gone in range(10):
        shelves = Shelves()
        for producer_id in range(10):
            shelves.put(producer_id, b"before")
        lent = shelves.lend()
        (together,) = (ids for ids in walk(shelves) if gone in ids)
        for producer_id in together:
            shelves.remove(producer_id)
        for producer_id in range(10):
            shelves.put(producer_id, b"after")
        assert told(lent) == [b"before"] * 10


@same_shelves
@given(CHANGES, CHANGES)
def test_a_walk_meets_all_that_stay_however_the_shelves_change_meanwhile(
    small_shelves: int, before: list[tuple[str, int]], meanwhile: list[tuple[str, int]]
) -> None:
    shelves = Shelves()

    def change(what: str, producer_id: int) -> None:
        if what == "put":
            shelves.put(producer_id, b"")
        elif what == "remove" and shelves.get(producer_id) is not None:
            shelves.remove(producer_id)

    for each in before:
        change(*each)
    stay = set(chain.from_iterable(walk(shelves))) - {
        producer_id for what, producer_id in meanwhile if what == "remove"
    }
    met = set[int]()
    ahead = iter(meanwhile)
    for ids in walk(shelves):
        met.update(ids)
        for each in islice(ahead, 3):
            change(*each)
    assert met >= stay


@pytest.mark.parametrize("apart", [1, 64, 1 << 16, 1 << 40])
def test_no_shelf_has_more_than_can_be_looked_through_in_a_turn(apart: int) -> None:
    """Clients choose the ids: with multiples of 64 all producers were on one shelf of 64."""
    shelves = Shelves()
    count = 10 * SHELF_MOST
    for number in range(count):
        shelves.put(number * apart, b"%d" % number)
    lent = shelves.lend()
    assert max(map(len, lent)) <= SHELF_MOST
    assert len(lent) <= 2 * count // SHELF_MOST
    for number in range(0, count, 3):
        shelves.put(number * apart, b"changed")
    for number in range(1, count, 3):
        shelves.remove(number * apart)
    assert told(lent) == sorted(b"%d" % number for number in range(count))
    assert len(shelves) == count - len(range(1, count, 3))


def test_few_producers_are_handed_out_in_the_order_in_which_they_came() -> None:
    shelves = Shelves()
    ids = [5, 3, 9, 1]
    for producer_id in ids:
        shelves.put(producer_id, b"%d" % producer_id)
    assert list(chain.from_iterable(shelves.lend())) == [b"5", b"3", b"9", b"1"]


def test_shelves_that_became_empty_leave_one() -> None:
    shelves = Shelves()
    for number in range(3 * SHELF_MOST):
        shelves.put(number, b"")
    for number in range(3 * SHELF_MOST):
        shelves.remove(number)
    assert (len(shelves), shelves.shelves) == (0, 1)

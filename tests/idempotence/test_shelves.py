"""Shelves against a plain dictionary."""

from hypothesis import given
from hypothesis import strategies as st

from idempotence.shelves import SHELVES, SPREAD_ABOVE, Shelves
from log.views import whole


def filled(count: int) -> Shelves:
    shelves = Shelves()
    for number in range(count):
        shelves.put(number, b"%d" % number)
    return shelves


CHANGES = st.lists(st.tuples(st.sampled_from(["put", "remove", "lend"]), st.integers(0, 9)), max_size=30)


@given(CHANGES)
def test_what_was_lent_stays_and_the_rest_goes_on(changes: list[tuple[str, int]]) -> None:
    shelves, plain = Shelves(), dict[int, bytes]()
    lent: list[tuple[object, bytes]] = []
    for number, (what, producer_id) in enumerate(changes):
        if what == "put":
            shelves.put(producer_id, b"%d;" % number)
            plain[producer_id] = b"%d;" % number
        elif what == "remove" and producer_id in plain:
            shelves.remove(producer_id)
            del plain[producer_id]
        else:
            lent.append((shelves.lend(), b"".join(plain.values())))
        assert (dict(shelves.items()), len(shelves)) == (plain, len(plain))
        assert shelves.get(producer_id) == plain.get(producer_id)
    for collections, then in lent:
        assert whole(collections) == then  # type: ignore[arg-type]


def test_many_producers_stand_on_many_shelves() -> None:
    shelves = filled(2 * SPREAD_ABOVE)
    before = dict(shelves.items())
    lent = shelves.lend()
    assert len(lent) == SHELVES
    assert max(map(len, lent)) == 2 * SPREAD_ABOVE // SHELVES
    for number in range(0, 2 * SPREAD_ABOVE, 3):
        shelves.put(number, b"changed")
    for number in range(1, 2 * SPREAD_ABOVE, 3):
        shelves.remove(number)
    assert sorted(whole(lent)) == sorted(b"".join(before.values()))
    assert len(shelves) == 2 * SPREAD_ABOVE - len(range(1, 2 * SPREAD_ABOVE, 3))

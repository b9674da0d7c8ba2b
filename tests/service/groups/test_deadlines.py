"""Deadlines come up in order, where they were last moved to, once."""

from hypothesis import given
from hypothesis.strategies import integers, lists, sampled_from, tuples

import service.groups.deadlines
from service.groups.deadlines import PUT_RIGHT_AT_ONCE, SPARED, Deadlines
from tests.sim.run import replaced


def due(deadlines: Deadlines[str], now_ms: int) -> list[str]:
    found = []
    while (name := deadlines.pop_due(now_ms)) is not None:
        found.append(name)
    return found


def test_nothing_is_due_before_its_time() -> None:
    deadlines: Deadlines[str] = Deadlines()
    deadlines.set("a", 10)
    assert due(deadlines, 9) == []
    assert due(deadlines, 10) == ["a"]
    assert due(deadlines, 100) == []


def test_a_moved_deadline_falls_due_where_it_was_moved_to() -> None:
    deadlines: Deadlines[str] = Deadlines()
    deadlines.set("later", 10)
    deadlines.set("later", 30)
    deadlines.set("earlier", 40)
    deadlines.set("earlier", 20)
    assert due(deadlines, 19) == []
    assert deadlines.next_ms() == 20
    assert due(deadlines, 25) == ["earlier"]
    assert deadlines.next_ms() == 30


def test_a_cancelled_deadline_never_falls_due() -> None:
    deadlines: Deadlines[str] = Deadlines()
    deadlines.set("a", 10)
    deadlines.cancel("a")
    deadlines.cancel("unknown")
    assert "a" not in deadlines
    assert due(deadlines, 100) == []
    assert deadlines.next_ms() is None


def test_a_deadline_set_if_absent_stays_where_it_is() -> None:
    deadlines: Deadlines[str] = Deadlines()
    deadlines.set_if_absent("a", 10)
    deadlines.set_if_absent("a", 5)
    assert deadlines.next_ms() == 10


def test_cancelled_deadlines_take_no_room_until_their_time() -> None:
    """A client may choose weeks, and members come and go by the thousand every hour."""
    deadlines: Deadlines[str] = Deadlines()
    for number in range(100):
        deadlines.set(f"kept {number}", 1_000 + number)
    for number in range(10_000):
        deadlines.set(f"gone {number}", 1 << 31)
        deadlines.cancel(f"gone {number}")
    assert len(deadlines._heap) <= 2 * 100 + SPARED + 1
    assert due(deadlines, 2_000) == [f"kept {number}" for number in range(100)]
    assert deadlines.next_ms() is None


def test_a_deadline_behind_very_many_that_were_moved_falls_due_after_a_few_short_looks() -> None:
    """Thousands of members may have joined at the same moment. To put all their entries right takes long."""
    deadlines: Deadlines[str] = Deadlines()
    for number in range(3 * PUT_RIGHT_AT_ONCE):
        deadlines.set(f"moved {number}", 10)
        deadlines.set(f"moved {number}", 1_000)
    deadlines.set("a", 20)
    for _ in range(3):
        assert deadlines.next_ms() == 10, "the next look is due at once"
        assert deadlines.pop_due(20) is None
        assert sum(listed_ms == 1_000 for listed_ms, _, _ in deadlines._heap) % PUT_RIGHT_AT_ONCE == 0
    assert deadlines.next_ms() == 20
    assert due(deadlines, 20) == ["a"]
    assert deadlines.next_ms() == 1_000


Action = tuples(sampled_from(["set", "cancel", "pop"]), sampled_from("abc"), integers(0, 50))


@given(lists(Action, max_size=60), sampled_from([0, SPARED]))
def test_deadlines_agree_with_a_dictionary(actions: list[tuple[str, str, int]], spared: int) -> None:
    with replaced(service.groups.deadlines, "SPARED", spared):
        agree_with_a_dictionary(actions)


def agree_with_a_dictionary(actions: list[tuple[str, str, int]]) -> None:
    deadlines: Deadlines[str] = Deadlines()
    model: dict[str, int] = {}
    for kind, name, time_ms in actions:
        if kind == "set":
            deadlines.set(name, time_ms)
            model[name] = time_ms
        elif kind == "cancel":
            deadlines.cancel(name)
            model.pop(name, None)
        else:
            expected = sorted(name for name, due_ms in model.items() if due_ms <= time_ms)
            assert sorted(due(deadlines, time_ms)) == expected
            for each in expected:
                del model[each]
        first_ms, next_ms = min(model.values(), default=None), deadlines.next_ms()
        assert first_ms is None or (next_ms is not None and next_ms <= first_ms)
        if kind == "pop":
            assert next_ms == first_ms

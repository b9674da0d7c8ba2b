"""How offsets are written down, how far a batch goes, and how it is cut into tasks."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from spark_sink.offsets import (
    INITIAL,
    Offsets,
    Range,
    begins_of,
    end_of_batch,
    from_json,
    ids_of,
    is_initial,
    limited,
    tasks,
    to_json,
)

parts = st.tuples(st.sampled_from(["a", "b", "c.d-e_f"]), st.integers(0, 20))
positions = st.dictionaries(parts, st.integers(0, 1 << 50), max_size=8)


@given(offsets=positions, begins=positions)
def test_an_end_is_read_as_it_was_written(offsets: Offsets, begins: Offsets) -> None:
    ids = {topic: f"id of {topic}" for topic, _ in offsets}
    end = json.loads(json.dumps(end_of_batch(offsets, begins, ids | {"another": "id"})))
    assert from_json(end) == offsets
    assert begins_of({}, end) == begins
    assert ids_of(end) == ids
    assert not is_initial(end)


def test_a_batch_begins_where_its_start_says_unless_that_is_of_another_topic_or_behind_its_end() -> None:
    start = {"@ids": {"same": "1", "anew": "2"}, "same": {"0": 5}, "anew": {"0": 5}, "old": {"0": 5}}
    init = {"same": {"0": 4}, "anew": {"0": 0, "1": 0}, "old": {"0": 1}}
    end = {"@ids": {"same": "1", "anew": "3", "old": "4"}, "@init": init, "same": {"0": 9}, "anew": {"0": 9, "1": 9}}
    assert begins_of(start, end | {"old": {"0": 5}}) == {
        ("same", 0): 5, ("anew", 0): 0, ("anew", 1): 0, ("old", 0): 5
    }  # fmt: skip
    assert begins_of(start, end | {"old": {"0": 3}})["old", 0] == 1


@given(offsets=positions, data=st.data())
def test_equal_positions_are_equal_text(offsets: Offsets, data: st.DataObject) -> None:
    shuffled = dict(data.draw(st.permutations(list(offsets.items()))))
    assert json.dumps(to_json(shuffled)) == json.dumps(to_json(offsets))


def test_the_first_start_names_nothing() -> None:
    assert is_initial(INITIAL)
    assert from_json(INITIAL) == {}


@given(start=positions, more=positions, most=st.integers(1, 1 << 40))
def test_a_limit_leaves_no_partition_behind_and_is_nearly_kept(start: Offsets, more: Offsets, most: int) -> None:
    latest = {part: offset + more.get(part, 0) for part, offset in start.items()}
    end = limited(start, latest, most)
    waiting = [part for part in latest if latest[part] > start[part]]
    assert end.keys() == latest.keys()
    assert all(start[part] < end[part] <= latest[part] for part in waiting)
    taken = sum(end[part] - start[part] for part in end)
    assert taken <= most + len(waiting)
    assert end == latest or taken >= min(most - len(waiting), 1)


ranges = st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 5000)), max_size=6).map(
    lambda pairs: [Range("t", number, start, start + size) for number, (start, size) in enumerate(pairs)]
)


@given(planned=ranges, at_least=st.none() | st.integers(1, 40), most=st.none() | st.integers(1, 3000))
def test_tasks_cover_the_ranges_once(planned: list[Range], at_least: int | None, most: int | None) -> None:
    found = tasks(planned, at_least=at_least, most_records=most)
    assert [(each.partition, offset) for each in planned for offset in range(each.start, each.end)] == [
        (each.partition, offset) for each in found for offset in range(each.start, each.end)
    ]
    assert all(each.size > 0 for each in found)
    if most:
        assert all(each.size <= most for each in found)


def test_large_ranges_are_cut_into_more_tasks_than_small_ones() -> None:
    planned = [Range("t", 0, 0, 10), Range("t", 1, 0, 1000), Range("t", 2, 5, 5)]
    assert [(each.partition, each.start, each.end) for each in tasks(planned, at_least=5, most_records=None)] == [
        (0, 0, 10), (1, 0, 250), (1, 250, 500), (1, 500, 750), (1, 750, 1000),
    ]  # fmt: skip
    assert [each.size for each in tasks(planned, at_least=None, most_records=400)] == [10, 333, 333, 334]
    assert len(tasks(planned, at_least=2, most_records=None)) == 2

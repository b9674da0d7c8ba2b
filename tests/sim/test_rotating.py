from __future__ import annotations

from tests.sim.rotating import PARTS, commits, next_part

BUGS = "abcdefghij"


class Kept(dict[str, int]):
    def set(self, key: str, value: int) -> None:
        self[key] = value


def test_runs_in_a_row_hunt_every_planted_bug_once() -> None:
    kept = Kept()
    hunted = [bug for _ in range(PARTS) for bug in next_part(BUGS, "bugs", kept)]
    assert sorted(hunted) == list(BUGS)
    assert [bug for _ in range(PARTS) for bug in next_part(BUGS, "bugs", kept)] == hunted


def test_a_new_clone_goes_on_with_each_commit() -> None:
    assert next_part(BUGS, "bugs", Kept()) == BUGS[commits() % PARTS :: PARTS]

"""Whether a group keeps up, by Burrow's rules, one scene a rule."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from monitoring.burrow import COMMITS, REACHED_MAX, BurrowStatus, Window

SECOND = 1_000
START = 1_700_000_000_000


def judged(commits: Sequence[tuple[int, int]], *, later_s: int = 1) -> BurrowStatus:
    """Commits as (offset, end of the partition), one every ten seconds; judged some seconds after the last."""
    window = Window()
    for number, (offset, end_offset) in enumerate(commits):
        window.take(offset, START + number * 10 * SECOND, end_offset)
    offset, end_offset = commits[-1]
    return window.judge(end_offset - offset, START + ((len(commits) - 1) * 10 + later_s) * SECOND)


@pytest.mark.parametrize(
    ("what", "commits", "later_s", "expected"),
    [
        ("at the end", [(1, 5), (3, 5), (5, 5)], 1, BurrowStatus.OK),
        ("at the end since long ago", [(1, 5), (3, 5), (5, 5)], 900, BurrowStatus.OK),
        ("far behind and gaining", [(10, 1000), (200, 1010), (500, 1020)], 1, BurrowStatus.OK),
        ("falling behind", [(10, 20), (20, 40), (30, 60)], 1, BurrowStatus.WARN),
        ("was at the end in between", [(10, 20), (40, 40), (50, 70)], 1, BurrowStatus.OK),
        ("commits the same again and again", [(10, 20), (10, 40), (10, 60)], 1, BurrowStatus.STALL),
        ("went back", [(10, 20), (5, 40), (7, 60)], 1, BurrowStatus.REWIND),
        ("went back and got there again", [(10, 20), (5, 40), (12, 60)], 1, BurrowStatus.WARN),
        (
            "commits no more, and was at the end while that is remembered",
            [(10, 20), (20, 40), (30, 60)],
            30,
            BurrowStatus.WARN,
        ),
        ("commits no more", [(10, 100), (20, 110), (30, 120)], 30, BurrowStatus.STOP),
    ],
)
def test_what_the_last_commits_show(
    what: str, commits: Sequence[tuple[int, int]], later_s: int, expected: BurrowStatus
) -> None:
    assert judged(commits, later_s=later_s) is expected, what


def test_only_the_last_commits_count() -> None:
    went_back_long_ago = [(100, 200), *((offset, 300 + offset) for offset in range(10, 10 + COMMITS))]
    assert judged(went_back_long_ago) is BurrowStatus.WARN


def test_two_commits_within_a_second_count_as_one() -> None:
    window = Window()
    window.take(1, START, 10)
    window.take(5, START + 500, 10)
    window.take(4, START + 2_000, 10)
    assert window.judge(6, START + 2_100) is BurrowStatus.REWIND
    window.take(9, START + 4_000, 20)
    assert window.judge(11, START + 4_100) is BurrowStatus.WARN, "9 is beyond all that was committed"


def test_the_same_commit_seen_twice_is_one_commit() -> None:
    window = Window()
    for look in range(30):
        window.take(3, START, 5 + look)
    assert window.judge(31, START + 60_000) is BurrowStatus.OK, "one commit tells no rhythm"
    assert window.judge(31, START + 60_001) is BurrowStatus.STOP, (
        "one commit, and the log went on for longer than is remembered"
    )


def test_how_long_a_group_is_behind_is_told_by_when_the_record_it_has_not_read_was_seen() -> None:
    window = Window()
    assert window.behind_ms(10, 10, 1_000) == 0
    assert window.behind_ms(10, 12, 2_000) == 0
    assert window.behind_ms(10, 20, 5_000) == 3_000
    assert window.behind_ms(12, 20, 6_000) == 1_000, "it has read what was there at 2 s, and not what came until 5 s"
    assert window.behind_ms(20, 20, 7_000) == 0
    assert window.behind_ms(20, 21, 9_000) == 0
    assert window.behind_ms(20, 20, 9_500) == 0, "what was left are markers, which nobody reads"
    assert window.behind_ms(20, 22, 9_600) == 0


def test_a_group_that_reads_nothing_for_long_is_behind_since_the_first_record_however_many_come() -> None:
    window = Window()
    behind = [window.behind_ms(0, end, 1_000 * end) for end in range(1, 1_001)]
    assert behind == [1_000 * (end - 1) for end in range(1, 1_001)]
    assert len(window._reached) <= 2 * REACHED_MAX
    assert 0 < window.behind_ms(900, 1_001, 1_001_000) <= 101_000, "with ends forgotten, not more than true"

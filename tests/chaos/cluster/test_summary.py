"""The summary's last line counts what copiers lost and doubled, too."""

from __future__ import annotations

from tests.chaos.cluster.run import Summary
from tests.chaos.run import Judged


def test_what_a_copier_lost_is_counted() -> None:
    summary = Summary(is_judged=True)
    assert summary.is_clean
    summary.verdict.lost.append("t-0: value 7")
    summary.copies = Judged(["Java, key-0: lost [1, 2], doubled [3]"], lost=2, doubled=1)
    assert "ambiguous 0, lost 3, doubled 1, torn 0" in str(summary)
    assert "Java, key-0: lost [1, 2], doubled [3]" in str(summary)
    summary.verdict.lost.clear()
    assert not summary.is_clean

"""Long lists of what a log is made of are told in pages."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from isolation.aborted import AbortedRange
from service.web import logs

GATEWAY = SimpleNamespace(node_id=1)


def pages(show: Any, partition: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    offset: int | None = 0
    while offset is not None:
        request = SimpleNamespace(query={"offset": str(offset)})
        page = json.loads(show.__wrapped__(GATEWAY, request, partition).body)
        found.append(page)
        offset = page["next_offset"]
    return found


@pytest.mark.parametrize("count", [0, 1, 3, 4, 7])
def test_aborted_transactions_and_segments_come_in_pages(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(logs, "TOLD_MAX", 3)
    ranges = [AbortedRange(7, 10 * each, 10 * each + 5) for each in range(count)]
    undecided = [AbortedRange(8, 10 * count - 1, 10 * count + 1)]
    partition = SimpleNamespace(
        log=SimpleNamespace(
            start_offset=0,
            end_offset=10 * count,
            segments=[
                SimpleNamespace(
                    base_offset=10 * each,
                    end_offset=10 * each + 10,
                    size_bytes=100,
                    largest_timestamp=5,
                    sealed=each < count - 1,
                )
                for each in range(count)
            ],
        ),
        high_watermark=10 * count,
        stable=SimpleNamespace(
            aborted_ranges=lambda first, end: (
                each for each in [*ranges, *undecided] if each.last_offset >= first and each.first_offset < end
            )
        ),
    )
    told = pages(logs.aborted, partition)
    assert [each["last_offset"] for page in told for each in page["aborted"]] == [each.last_offset for each in ranges]
    assert all(len(page["aborted"]) <= 3 for page in told)
    told = pages(logs.segments, partition)
    assert [each["base_offset"] for page in told for each in page["segments"]] == [10 * each for each in range(count)]
    assert len(told) == max(-(-count // 3), 1)
    assert [each["active"] for page in told for each in page["segments"]] == [False] * (count - 1) + [True] * (
        count > 0
    )

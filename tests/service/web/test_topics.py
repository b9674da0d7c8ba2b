"""Topics as HTTP makes, widens and sets them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.service.web.kit import Http


@pytest.mark.parametrize(
    ("assignments", "status"),
    [
        ([[7, 8, 9]], 422),
        ([[7]], 422),
        ([], 422),
        ([[1], [1]], 422),
        ([[]], 422),
        ([[-1]], 400),
        ([[2**31]], 400),
        ([["1"]], 400),
    ],
)
def test_new_partitions_go_where_they_are_assigned_to_or_are_not_made(
    http: Http, topic: str, assignments: Any, status: int
) -> None:
    """The assignments were dropped in silence."""
    made = http.post("/v1/topics", {"name": topic, "partitions": 1})
    (broker,) = made.json["partitions"][0]["replicas"]
    refused = http.post(f"/v1/topics/{topic}/partitions", {"count": 2, "assignments": assignments})
    assert (refused.status, refused.json["outcome"]) == (status, "none")
    assert len(http.get(f"/v1/topics/{topic}").json["partitions"]) == 1
    if status == 400:
        assert http.post("/v1/topics", {"name": f"{topic}-new", "assignments": assignments}).status == 400
    dry = http.post(f"/v1/topics/{topic}/partitions?validate_only=true", {"count": 2, "assignments": [[broker]]})
    assert (dry.status, len(dry.json["partitions"])) == (200, 1)
    wider = http.post(f"/v1/topics/{topic}/partitions", {"count": 2, "assignments": [[broker]]})
    assert (wider.status, [each["replicas"] for each in wider.json["partitions"]]) == (200, [[broker]] * 2)

"""Topics as HTTP makes, widens and sets them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.service.web.kit import Answer, Http


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


@pytest.mark.parametrize(
    ("place", "setting"),
    [
        ("/v1/topics/{topic}/configs", "retention.ms"),
        ("/v1/groups/{topic}/configs", "consumer.session.timeout.ms"),
        ("/v1/brokers/1/configs", "log.segment.bytes"),
        ("/v1/cluster/configs", "log.retention.ms"),
    ],
)
def test_of_many_who_change_settings_of_one_version_one_wins(http: Http, topic: str, place: str, setting: str) -> None:
    """Each broker compared the version with its own image, and asked then: both of two might win."""
    http.post("/v1/topics", {"name": topic})
    place = place.replace("{topic}", topic)
    clients = [Http(http.url) for _ in range(8)]
    values = [str(48_000_000 + number) if setting != "consumer.session.timeout.ms" else str(45_100 + number)
              for number in range(len(clients))]  # fmt: skip
    try:
        for _ in range(5):
            shown = http.get(place)
            assert shown.status == 200, shown

            def patch(client: Http, value: str, version: str = shown.headers["ETag"]) -> Answer:
                headers = {"If-Match": f'"of-another", {version}'}
                return client.ask("PATCH", place, {"configs": {setting: value}}, headers=headers)

            with ThreadPoolExecutor(len(clients)) as pool:
                answers = list(pool.map(patch, clients, values))
            assert sorted(each.status for each in answers) == [204] + [412] * (len(clients) - 1)
            (winner,) = (value for value, each in zip(values, answers, strict=True) if each.status == 204)
            assert http.get(place).json["configs"][setting]["value"] == winner
            refused = next(each for each in answers if each.status == 412)
            assert (refused.json["type"], refused.json["outcome"]) == ("/problems/precondition-failed", "none")
            assert http.ask("PATCH", place, {"configs": {setting: None}}, headers={"If-Match": "*"}).status == 204
    finally:
        for each in clients:
            each.session.close()


def test_settings_that_are_wrong_or_of_a_broker_that_is_away_are_refused(http: Http, topic: str) -> None:
    assert http.get("/v1/brokers/77/configs").status == 404
    assert http.ask("PATCH", "/v1/brokers/77/configs", {"configs": {}}).status == 404
    for place in (f"/v1/groups/{topic}/configs", "/v1/brokers/1/configs", "/v1/cluster/configs"):
        refused = http.ask("PATCH", place, {"configs": {"consumer.session.timeout.ms": "1", "listeners": "x"}})
        assert (refused.status, refused.json["outcome"]) == (422, "none"), refused
    meant = {"configs": {"log.segment.bytes": "50000000"}}
    assert http.ask("PATCH", "/v1/brokers/1/configs?validate_only=true", meant).status == 204
    assert http.get("/v1/brokers/1/configs?documentation").json["configs"]["log.segment.bytes"]["value"] != "50000000"

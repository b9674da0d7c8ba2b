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


def test_a_flag_in_the_query_is_yes_or_no_however_it_is_written(http: Http, topic: str) -> None:
    """`False` was taken for yes: nothing was made, and the answer was 200."""
    assert http.post("/v1/transactions", {"transactional_id": topic}).status == 201  # it makes an internal topic
    for given in ("False", "FALSE", "0", "false"):
        assert http.post(f"/v1/topics?validate_only={given}", {"name": f"{topic}-{given}"}).status == 201
    for given in ("=True", "=true", "=1", ""):
        assert http.post(f"/v1/topics?validate_only{given}", {"name": topic}).status == 200
    assert http.get(f"/v1/topics/{topic}").status == 404
    for path in ("/v1/topics?internal=no", "/v1/brokers/1/configs?documentation=yes"):
        assert http.get(path).status == 400
    refused = http.post("/v1/topics?validate_only=off", {"name": topic})
    assert (refused.status, refused.json["detail"]) == (400, "validate_only is true or false, not 'off'")
    assert http.get("/v1/topics?internal=TRUE").json["topics"] != http.get("/v1/topics?internal=0").json["topics"]


@pytest.mark.parametrize(
    ("method", "path", "named"),
    [
        ("GET", "/v1/topics?interna=true", "interna"),
        ("GET", "/v1/topics?internal=true&internal=false", "internal"),
        ("POST", "/v1/topics?validate-only=true", "validate-only"),
        ("GET", "/v1/topics/t/partitions/0/records?ofset=5", "ofset"),
        ("GET", "/v1/topics/t/partitions/0/records?offset=5&offset=6", "offset"),
        ("GET", "/v1/topics/t/stream?until=end&fom=earliest", "fom"),
        ("POST", "/v1/records?partition=1", "partition"),
        ("POST", "/v1/topics/t/records?partition=1&key=zz", "partition"),
        ("PUT", "/v1/topics/t/records?partitions=1", "partitions"),
        ("DELETE", "/v1/topics/t?force=true", "force"),
    ],
)
def test_a_name_in_the_query_that_means_nothing_or_comes_twice_is_refused(
    http: Http, method: str, path: str, named: str
) -> None:
    """It was dropped, so that a slip of the pen brought other records, or sent them elsewhere."""
    headers = {"Content-Type": "application/json"}
    if method == "PUT":
        headers |= {"Idempotency-Key": f'"{path}"'}
    refused = http.ask(method, path, b'{"records": [{"topic": "t", "value": 1}]}', headers=headers)
    assert (refused.status, refused.json["type"], refused.json["outcome"]) == (400, "/problems/malformed", "none")
    assert repr(named) in refused.json["detail"]


def test_a_query_that_others_choose_is_passed_over(http: Http, topic: str) -> None:
    assert http.post("/v1/topics", {"name": topic, "partitions": 1}).status == 201
    event = {"ce-id": "1", "ce-source": "s", "ce-type": "t", "ce-specversion": "1.0"}
    assert http.post(f"/v1/topics/{topic}/events?access_token=x", b"1", headers=event).status == 200
    media = {"Content-Type": "application/vnd.kafka.json.v2+json"}
    assert http.post(f"/topics/{topic}?pretty=1", b'{"records": [{"value": 1}]}', headers=media).status == 200
    for path in ("/openapi.json?v=2", "/docs?x", "/livez?verbose", "/metrics?name=x", "/v3/clusters?pretty=1"):
        assert http.get(path).status == 200, path


def test_offsets_of_a_group_are_set_with_what_comes_with_them(http: Http, topic: str) -> None:
    """Metadata and leader epoch were dropped, and of two offsets of a partition one was."""
    assert http.post("/v1/topics", {"name": topic, "partitions": 2}).status == 201
    place = f"/v1/groups/{topic}/offsets"
    offsets: list[dict[str, Any]] = [
        {"topic": topic, "partition": 0, "offset": 0, "metadata": "here", "leader_epoch": 0},
        {"topic": topic, "partition": 1, "offset": 0},
    ]
    told = [{"topic": topic, "partition": 0, "offset": 0, "metadata": "here"}, offsets[1]]
    assert http.put(place, {"offsets": offsets}).json == {"offsets": told}
    assert http.get(place).json == {"offsets": told}
    long, twice = [offsets[0] | {"metadata": "x" * 5000}], [offsets[1], offsets[1] | {"offset": 1}]
    for wrong in (long, twice, [offsets[0] | {"leader_epoch": -2}]):
        refused = http.put(place, {"offsets": wrong})
        assert (refused.status, refused.json["type"]) == (422, "/problems/invalid-request")
        wrong_batch = {"records": [], "offsets": {"group": topic, "offsets": wrong}}
        assert http.post("/v1/records", wrong_batch).status == 422
    for idle in ({"to": "earliest", "offsets": offsets}, {"offsets": offsets, "topics": [topic]},
                 {"to": "latest", "timestamp": 5}, {"to": "earliest", "shift": 0}):  # fmt: skip
        refused = http.put(place, idle)
        assert (refused.status, refused.json["type"]) == (422, "/problems/invalid-request")
    assert http.get(place).json == {"offsets": told}

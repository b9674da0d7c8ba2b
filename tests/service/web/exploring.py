"""Requests generated from the OpenAPI document, at a live broker: `make fuzz-http`."""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import content_type_conformance, response_schema_conformance

from tests.service.web.kit import PATIENCE_S, Http, Served

NDJSON = "application/x-ndjson"
LINES = [b'{"value":1}', b'{"key":"k","value_string":"v"}', b'{"topic":"explored","value":2}', b"", b"x"]
schemathesis.openapi.media_type(NDJSON, st.lists(st.sampled_from(LINES)).map(b"\n".join))

SHAPE = [response_schema_conformance, content_type_conformance]
INSTANCE = {"group": "explored", "instance": "explored"}
TOPIC = "explored"
PARTITIONS = 2
RECORDS = 20
"""These are there: most requests of their kind are made of them."""


def explore(served: Served, cases: int) -> tuple[Counter[GenerationMode], Counter[str]]:
    """How many requests that fit the document, and that do not, were answered, and how often each operation did what
    it was asked for; AssertionError at the first answer that must not be.
    """
    http = Http(served.url)
    http.post("/v1/topics", {"name": TOPIC, "partitions": PARTITIONS})
    http.post(f"/v1/topics/{TOPIC}/records", {"records": [{"value": number} for number in range(RECORDS)]})
    document = http.get("/openapi.json").json
    cluster = http.get("/v3/clusters").json["data"][0]["cluster_id"]
    http.session.close()
    schema: Any = schemathesis.openapi.from_dict(document)
    schema.config.update(base_url=served.url)
    asked: Counter[GenerationMode] = Counter()
    done: Counter[str] = Counter()
    sent: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for result in schema.get_all_operations():
        operation = result.ok()
        documented = document["paths"][operation.path][operation.method.lower()]["responses"]
        for mode in GenerationMode:
            asked[mode] += _explore_one(operation, mode, documented, served.url, cluster, cases, done, sent)
        body = document["paths"][operation.path][operation.method.lower()].get("requestBody", {"content": ()})
        unsent = body["content"] - sent[operation.label].keys()
        assert not unsent, (operation.label, unsent)
    return asked, done


def _explore_one(
    operation: Any,
    mode: GenerationMode,
    documented: dict[str, Any],
    url: str,
    cluster: str,
    cases: int,
    done: Counter[str],
    sent: Mapping[str, Counter[str]],
) -> int:
    asked = 0

    def once(case: Any) -> None:
        nonlocal asked
        for wait in ("wait_ms", "timeout"):
            if case.query and wait in case.query:
                case.query[wait] = 1
        if operation.path.endswith("/stream"):
            case.query = {**(case.query or {}), "until": "end"}
        if "cluster" in case.path_parameters and asked % 4:
            case.path_parameters["cluster"] = cluster
        if "topic" in case.path_parameters and asked % 4 and operation.method.lower() != "delete":
            case.path_parameters["topic"] = TOPIC
            if "partition" in case.path_parameters:
                case.path_parameters["partition"] = asked % PARTITIONS
            if "offset" in case.path_parameters:
                case.path_parameters["offset"] = asked % RECORDS
        if "instance" in case.path_parameters and asked % 4:
            requests.post(
                f"{url}/consumers/{INSTANCE['group']}", json={"name": INSTANCE["instance"]}, timeout=PATIENCE_S
            )
            case.path_parameters.update(INSTANCE)
        answer = case.call(timeout=PATIENCE_S)
        asked += 1
        sent[operation.label][str(case.media_type)] += 1
        done[operation.label] += answer.status_code < 400
        shown = case.method, answer.request.url, answer.request.body, answer.status_code, answer.text[:500]
        assert answer.status_code < 500 or answer.status_code in (503, 504), shown
        if answer.request.url.partition("?")[0].count("/") != url.count("/") + operation.path.count("/"):
            return  # an empty part of the path made it another one
        if answer.status_code >= 400:
            media = answer.headers["content-type"][0].partition(";")[0]
            assert media in documented["default"]["content"], shown
            if media == "application/problem+json":
                assert answer.json()["outcome"] in ("none", "applied", "unknown"), shown
        assert str(answer.status_code) in documented, shown
        if answer.status_code < 400 and answer.content:
            case.validate_response(answer, checks=SHAPE)

    limits = settings(
        max_examples=cases,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
    )
    try:
        limits(given(case=operation.as_strategy(generation_mode=mode))(once))()
        if mode is GenerationMode.POSITIVE:  # and each kind of body for certain
            for media in {each.media_type for each in operation.body} - sent[operation.label].keys():
                of_kind = operation.as_strategy(generation_mode=mode).filter(lambda case: case.media_type == media)  # noqa: B023
                settings(limits, max_examples=1)(given(case=of_kind)(once))()
    except Unsatisfiable:
        assert mode is GenerationMode.NEGATIVE, operation.label  # nothing that it takes could be wrong
    return asked


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--cases", type=int, default=300, help="of each operation, that fit the document, and as many that do not"
    )
    cases = parser.parse_args().cases
    with tempfile.TemporaryDirectory(prefix="oncelog-http-") as folder:
        served = Served(Path(folder) / "data")
        try:
            asked, done = explore(served, cases)
        finally:
            served.stop()
        assert "Traceback" not in served.log, served.log
    print(f"{asked.total()} requests, {done.total()} of them done, every answer as documented")


if __name__ == "__main__":
    main()

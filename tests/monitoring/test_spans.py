"""Spans of transactions: what a collector is sent is what OpenTelemetry's own definitions read, and tells it all."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from email.message import Message
from pathlib import Path
from typing import Any

import pytest
import requests
from confluent_kafka import Producer
from google.protobuf.json_format import ParseDict
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Status

from log.ids import TopicPartition
from monitoring.spans import FOLLOWED_MAX, KEPT_MAX, Span, Spans, document, trace_id_of
from tests.monitoring.test_prometheus import PATIENCE_S, in_transaction, wait_for
from tests.peers.receiver import OK, REFUSED, Receiver
from tests.service.web.kit import Http, Served, read_all
from txn.states import State, Txn

HERE, THERE = TopicPartition("orders", 0), TopicPartition("orders", 1)


def txn(state: State, at_ms: int, *partitions: TopicPartition, name: str = "pay", began_ms: int = 1_000) -> Txn:
    return Txn(name, 7, 3, state, 60_000, at_ms, partitions, began_ms)


def ids_as_bytes(given: Any) -> Any:
    """OpenTelemetry's JSON writes ids in hexadecimal, protobuf's in base64; else they are the same."""
    if isinstance(given, list):
        return [ids_as_bytes(each) for each in given]
    if isinstance(given, dict):
        return {
            key: base64.b64encode(bytes.fromhex(value)).decode() if key.endswith("Id") else ids_as_bytes(value)
            for key, value in given.items()
        }
    return given


def spans_in(told: Any) -> list[Any]:
    """By OpenTelemetry's definitions, which refuse what they don't know."""
    request = ParseDict(ids_as_bytes(told), ExportTraceServiceRequest())
    ((scope,),) = (each.scope_spans for each in request.resource_spans)
    return list(scope.spans)


def read(told: Any) -> dict[str, Any]:
    """The spans of one transaction, by their names."""
    return {span.name: span for span in spans_in(told)}


def test_a_transaction_is_told_from_its_first_partition_to_its_last_marker() -> None:
    spans = Spans()
    spans.moved(txn(State.ONGOING, 1_000, HERE), "")
    spans.moved(txn(State.ONGOING, 1_200, HERE, THERE), "")
    spans.moved(txn(State.PREPARE_COMMIT, 1_500, HERE, THERE), "")
    spans.marked("pay", [THERE], 1_510)
    assert spans.take(100) == []
    spans.moved(txn(State.COMPLETE_COMMIT, 1_530), "")
    told = read(document(spans.take(100), instance="1", version="1"))
    times = {
        name: ((span.start_time_unix_nano // 10**6), span.end_time_unix_nano // 10**6) for name, span in told.items()
    }
    assert times == {
        "transaction": (1_000, 1_530),
        "until decided": (1_000, 1_500),
        "markers": (1_500, 1_530),
        "partition orders-0": (1_000, 1_530),
        "partition orders-1": (1_200, 1_510),
    }
    whole = told["transaction"]
    assert whole.trace_id.hex() == trace_id_of("pay", 1_000)
    assert {span.parent_span_id for name, span in told.items() if span is not whole} == {whole.span_id}
    assert len({span.span_id for span in told.values()}) == 5


@pytest.mark.parametrize("why", ["", "timeout", "fenced"])
def test_one_that_was_aborted_failed_and_says_why(why: str) -> None:
    spans = Spans()
    spans.moved(txn(State.ONGOING, 1_000, HERE), "")
    spans.moved(txn(State.PREPARE_ABORT, 1_500, HERE), why)
    spans.moved(txn(State.COMPLETE_ABORT, 1_530), "")
    status = read(document(spans.take(100), instance="1", version="1"))["transaction"].status
    assert (status.code, status.message) == (Status.STATUS_CODE_ERROR, why or "abort")


def test_who_takes_over_a_transaction_tells_all_of_it() -> None:
    spans = Spans()
    spans.moved(txn(State.PREPARE_COMMIT, 1_500, HERE), "")
    spans.moved(txn(State.COMPLETE_COMMIT, 1_530), "")
    assert {span.name: span.start_ms for span in spans.take(100)}["partition orders-0"] == 1_000


def test_what_nobody_fetches_is_forgotten_and_counted() -> None:
    spans = Spans()
    for number in range(FOLLOWED_MAX + 5):
        spans.moved(txn(State.ONGOING, 1_000, HERE, name=f"pay-{number}"), "")
    assert spans.lost == 5
    for number in range(FOLLOWED_MAX):
        spans.moved(txn(State.PREPARE_COMMIT, 1_500, HERE, name=f"pay-{number}"), "")
        spans.moved(txn(State.COMPLETE_COMMIT, 1_530, name=f"pay-{number}"), "")
    kept = spans.take(10**6)
    assert len(kept) <= KEPT_MAX
    assert spans.lost == 5 + 4 * FOLLOWED_MAX - len(kept)


def test_a_name_that_is_no_text_is_sent_all_the_same() -> None:
    told = document([Span("00" * 16, "00" * 8, "", "x\udcff", 1, 2, (("id", "\udcff"),))], instance="1", version="1")
    assert json.loads(json.dumps(told).encode())


class Collector(Receiver):
    """Takes what is sent, as OpenTelemetry's does."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        super().__init__()

    def take(self, path: str, headers: Message, body: bytes) -> int:
        if path != "/v1/traces" or headers["Content-Type"] != "application/json":
            return REFUSED
        self.spans += spans_in(json.loads(body))
        return OK


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    yield made
    made.stop()


def test_a_broker_sends_its_transactions_to_a_collector(collector: Collector, tmp_path: Path) -> None:
    few = {"transaction.state.log.num.partitions": "1", "otlp.endpoint": collector.url}
    served = Served(tmp_path / "data", **few)
    Http(served.url).post("/v1/topics", {"name": "orders"})
    in_transaction(served.bootstrap, "commits", "orders").commit_transaction(PATIENCE_S)
    in_transaction(served.bootstrap, "aborts", "orders").abort_transaction(PATIENCE_S)

    def outcomes() -> dict[str, str]:
        found = {}
        for span in list(collector.spans):
            said = {each.key: each.value.string_value for each in span.attributes}
            if span.name == "transaction":
                found[said["oncelog.transactional_id"]] = said["oncelog.outcome"]
        return found

    wait_for(lambda: outcomes() == {"commits": "commit", "aborts": "abort"})
    assert served.stop() == 0


def test_a_collector_that_is_away_is_told_of_once_and_disturbs_nobody(tmp_path: Path) -> None:
    few = {"transaction.state.log.num.partitions": "1", "otlp.endpoint": "http://127.0.0.1:9"}
    served = Served(tmp_path / "data", **few)
    Http(served.url).post("/v1/topics", {"name": "orders"})
    for number in range(3):
        in_transaction(served.bootstrap, f"pay-{number}", "orders").commit_transaction(PATIENCE_S)
    wait_for(lambda: "spans can't be sent" in served.log)
    metrics = requests.get(f"{served.url}/metrics", timeout=PATIENCE_S).text
    assert re.search(r"^oncelog_spans_lost_total [1-9]", metrics, re.MULTILINE)
    assert served.stop() == 0
    assert served.log.count("spans can't be sent") == 1


def test_the_header_by_which_traces_are_followed_is_left_as_it_is(tmp_path: Path) -> None:
    """By either way in, by either way out."""
    served = Served(tmp_path / "data")
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    http = Http(served.url)
    http.post("/v1/topics", {"name": "orders"})
    producer = Producer({"bootstrap.servers": served.bootstrap})
    producer.produce("orders", b"by wire", headers={"traceparent": parent, "tracestate": "a=1"})
    assert producer.flush(PATIENCE_S) == 0
    http.post("/v1/topics/orders/records", {"records": [{"value": 1, "headers": {"traceparent": parent}}]})
    assert [dict(each.headers)["traceparent"] for each in read_all(served.bootstrap, "orders")] == [parent.encode()] * 2
    page = http.get("/v1/topics/orders/partitions/0/records?offset=earliest").json
    assert [each["headers"][0] for each in page["records"]] == [{"name": "traceparent", "value": parent}] * 2
    assert served.stop() == 0

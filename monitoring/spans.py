"""Spans of transactions, as OpenTelemetry has them: one for the whole, from its first partition to its last marker.
Inside it are one for each partition, one for the time until the decision, and one for the markers.

A coordinator tells each move of a transaction. Its spans are made when its last marker is written. The names and ids of
a trace are computed from the transaction alone, so any program that computes them gets the same.

What always holds: the numbers of transactions that are followed and of spans that are kept are limited. What exceeds
the limit is counted and forgotten. Nothing waits for any of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Final

from monitoring.shapes import Txn

FOLLOWED_MAX: Final = 10_000
KEPT_MAX: Final = 20_000
PARTITIONS_MAX: Final = 200
"""How many partitions of one transaction get a span."""
INTERNAL: Final = 1
OK, ERROR = 1, 2
PartitionName = tuple[str, int]
"""Of a topic and a partition."""


@dataclass(frozen=True, slots=True)
class Span:
    trace_id: str
    span_id: str
    parent_id: str
    name: str
    start_ms: int
    end_ms: int
    attributes: tuple[tuple[str, str | int], ...] = ()
    failure: str = ""


@dataclass(slots=True)
class Followed:
    """A transaction that is not finished."""

    began_ms: int
    decided_ms: int = -1
    why: str = ""
    commits: bool = False
    pair: tuple[int, int] = (-1, -1)
    begun: dict[PartitionName, int] = field(default_factory=dict)
    marked: dict[PartitionName, int] = field(default_factory=dict)


class Spans:
    def __init__(self) -> None:
        self.lost = 0
        """How many spans and transactions found no room."""
        self._followed: dict[str, Followed] = {}
        self._ready: deque[Span] = deque()

    def moved(self, after: Txn, why: str) -> None:
        state = after.state.label
        name = after.transactional_id
        if state == "Ongoing":
            self._goes_on(name, after)
        elif state.startswith("Prepare"):
            followed = self._goes_on(name, after)
            if followed is not None:
                followed.decided_ms, followed.commits = after.updated_ms, state == "PrepareCommit"
                followed.why = why
        elif state.startswith("Complete"):
            followed = self._followed.pop(name, None)
            if followed is not None and followed.decided_ms >= 0:
                self._keep(_spans_of(name, followed, after.updated_ms))
        else:
            self._followed.pop(name, None)

    def _goes_on(self, name: str, txn: Txn) -> Followed | None:
        followed = self._followed.get(name)
        if followed is None or followed.began_ms != txn.started_ms:
            if name not in self._followed and len(self._followed) >= FOLLOWED_MAX:
                self.lost += 1
                return None
            followed = self._followed[name] = Followed(txn.started_ms)
        if followed.decided_ms < 0 and txn.state.label == "Ongoing":
            followed.pair = txn.producer_id, txn.producer_epoch
        # If another coordinator saw it begin, its beginning is taken as that of the whole.
        at_ms = txn.updated_ms if txn.state.label == "Ongoing" else txn.started_ms
        for partition in txn.partitions[:PARTITIONS_MAX]:
            followed.begun.setdefault(partition, at_ms)
        return followed

    def marked(self, name: str, partitions: Iterable[PartitionName], at_ms: int) -> None:
        """The markers of these partitions are written."""
        followed = self._followed.get(name)
        if followed is not None:
            for partition in partitions:
                if partition in followed.begun:
                    followed.marked[partition] = at_ms

    def take(self, most: int) -> list[Span]:
        """Take the oldest spans; they are forgotten here."""
        return [self._ready.popleft() for _ in range(min(most, len(self._ready)))]

    def _keep(self, spans: Sequence[Span]) -> None:
        if len(self._ready) + len(spans) > KEPT_MAX:
            self.lost += len(spans)
        else:
            self._ready.extend(spans)


def _spans_of(name: str, followed: Followed, ended_ms: int) -> list[Span]:
    trace_id = trace_id_of(name, followed.began_ms)
    whole = _span_id(trace_id, "transaction")
    outcome = "commit" if followed.commits else followed.why or "abort"
    failure = "" if followed.commits else outcome
    attributes = (
        ("messaging.system", "kafka"),
        ("oncelog.transactional_id", name),
        ("oncelog.producer_id", followed.pair[0]),
        ("oncelog.producer_epoch", followed.pair[1]),
        ("oncelog.outcome", outcome),
        ("oncelog.partitions", len(followed.begun)),
    )
    spans = [
        Span(trace_id, whole, "", "transaction", followed.began_ms, ended_ms, attributes, failure),
        Span(trace_id, _span_id(trace_id, "decision"), whole, "until decided", followed.began_ms, followed.decided_ms),
        Span(trace_id, _span_id(trace_id, "markers"), whole, "markers", followed.decided_ms, ended_ms),
    ]
    for (topic, partition), at_ms in followed.begun.items():
        where = f"{topic}-{partition}"
        span_id = _span_id(trace_id, f"partition {where}")
        until_ms = followed.marked.get((topic, partition), ended_ms)
        of = (("messaging.destination.name", topic), ("messaging.destination.partition.id", str(partition)))
        spans.append(Span(trace_id, span_id, whole, f"partition {where}", at_ms, until_ms, of))
    return spans


def trace_id_of(transactional_id: str, began_ms: int) -> str:
    named = f"{transactional_id}\0{began_ms}".encode("utf-8", "surrogateescape")
    return blake2b(named, digest_size=16).hexdigest()


def _span_id(trace_id: str, name: str) -> str:
    return blake2b(f"{trace_id}\0{name}".encode("utf-8", "surrogateescape"), digest_size=8).hexdigest()


# --- OTLP/JSON -------------------------------------------------------------------------------------------------------


def document(spans: Sequence[Span], *, instance: str, version: str) -> dict[str, Any]:
    """An ExportTraceServiceRequest, in OpenTelemetry's JSON."""
    resource = (("service.name", "oncelog"), ("service.instance.id", instance), ("service.version", version))
    return {
        "resourceSpans": [
            {
                "resource": {"attributes": _attributes(resource)},
                "scopeSpans": [
                    {"scope": {"name": "oncelog.transactions"}, "spans": [_written(each) for each in spans]}
                ],
            }
        ]
    }


def _written(span: Span) -> dict[str, Any]:
    found: dict[str, Any] = {
        "traceId": span.trace_id,
        "spanId": span.span_id,
        "name": _text(span.name),
        "kind": INTERNAL,
        "startTimeUnixNano": str(span.start_ms * 1_000_000),
        "endTimeUnixNano": str(max(span.end_ms, span.start_ms) * 1_000_000),
        "attributes": _attributes(span.attributes),
        "status": {"code": ERROR, "message": span.failure} if span.failure else {"code": OK},
    }
    if span.parent_id:
        found["parentSpanId"] = span.parent_id
    return found


def _attributes(pairs: Iterable[tuple[str, str | int]]) -> list[dict[str, Any]]:
    return [
        {"key": key, "value": {"stringValue": _text(value)} if isinstance(value, str) else {"intValue": str(value)}}
        for key, value in pairs
    ]


def _text(value: str) -> str:
    """A name may have bytes that are no text, which JSON does not allow."""
    return value.encode("utf-8", "replace").decode()

"""Errors as HTTP tells them: problem details (RFC 9457), with what a client of an exactly-once store must know.

What always holds: every error is a problem with a slug from the table below, and tells its `outcome`: `none` (nothing
was written), `applied` (it was written) or `unknown` (it may have been written). If a request with an unknown outcome
can be repeated, repeating it tells the outcome. If single records of a request are to blame, `records` has their
numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal
from urllib.parse import quote

import msgspec
from aiohttp import web

from service.broker.writing import MAY_BE_WRITTEN
from service.client.failures import ClientFailure, FailureKind
from service.wire.error_codes import ErrorCode as E

Outcome = Literal["none", "applied", "unknown"]
MEDIA_TYPE = "application/problem+json"
_OF_PATHS = "/%:@!$&'()*+,;="
"""What stands in the path of a URI as it is, beside letters, digits and `-._~`."""


class ProblemKind(msgspec.Struct, frozen=True):
    status: int
    title: str
    retriable: bool = False


PROBLEMS: Mapping[str, ProblemKind] = {
    "malformed": ProblemKind(400, "The request can't be read"),
    "bad-key": ProblemKind(400, "The Idempotency-Key is missing, is none, or is not taken here"),
    "unauthenticated": ProblemKind(401, "The caller's identity is not known"),
    "denied": ProblemKind(403, "The caller may not do this"),
    "not-found": ProblemKind(404, "There is no such thing"),
    "unknown-topic": ProblemKind(404, "There is no such topic or partition"),
    "unknown-group": ProblemKind(404, "There is no such group"),
    "unknown-transaction": ProblemKind(404, "There is no such transaction"),
    "method-not-allowed": ProblemKind(405, "The resource knows no such method"),
    "not-acceptable": ProblemKind(406, "No representation that the client accepts"),
    "too-slow": ProblemKind(408, "The body took too long", retriable=True),
    "request-in-flight": ProblemKind(409, "A request with this Idempotency-Key is under way", retriable=True),
    "expected-offset-mismatch": ProblemKind(409, "Another request has appended before"),
    "producer-fenced": ProblemKind(409, "Another producer has taken the transactional id over"),
    "concurrent-transactions": ProblemKind(409, "The last transaction of this id is being finished", retriable=True),
    "invalid-txn-state": ProblemKind(409, "The transaction is not in a state for this"),
    "batch-gap": ProblemKind(409, "A batch before this one is missing"),
    "stale-member": ProblemKind(409, "The group has moved on; join again"),
    "rebalance": ProblemKind(409, "The group is rebalancing", retriable=True),
    "exists": ProblemKind(409, "It exists already"),
    "group-active": ProblemKind(409, "The group has members"),
    "conflict": ProblemKind(409, "It contradicts what is there"),
    "member-expired": ProblemKind(410, "There is no such member any more"),
    "transaction-expired": ProblemKind(410, "The transaction is over"),
    "precondition-failed": ProblemKind(412, "It is not as If-Match says"),
    "record-too-large": ProblemKind(413, "Too large"),
    "unsupported-media-type": ProblemKind(415, "The body's media type or encoding is not known here"),
    "offset-out-of-range": ProblemKind(416, "The partition has no such offset"),
    "expectation-failed": ProblemKind(417, "What the head expects is not known here"),
    "invalid-record": ProblemKind(422, "A record is not acceptable"),
    "invalid-request": ProblemKind(422, "What is asked for is not acceptable"),
    "invalid-config": ProblemKind(422, "A setting is not acceptable"),
    "key-reused": ProblemKind(422, "The Idempotency-Key belongs to another request"),
    "batch-changed": ProblemKind(422, "A batch of this number was written with other records"),
    "too-many-streams": ProblemKind(429, "Too many streams are open", retriable=True),
    "throttled": ProblemKind(429, "Too much at once", retriable=True),
    "head-too-long": ProblemKind(431, "The head of the request is too long"),
    "server-error": ProblemKind(500, "The broker failed"),
    "not-now": ProblemKind(503, "Not now; try again", retriable=True),
    "not-enough-replicas": ProblemKind(503, "Not enough replicas are in sync", retriable=True),
    "outcome-unknown": ProblemKind(504, "It is not known whether it was done"),
}

OF_ERROR: Mapping[E, str] = {
    E.SASL_AUTHENTICATION_FAILED: "unauthenticated",
    E.TOPIC_DELETION_DISABLED: "denied",
    E.TOPIC_AUTHORIZATION_FAILED: "denied",
    E.GROUP_AUTHORIZATION_FAILED: "denied",
    E.CLUSTER_AUTHORIZATION_FAILED: "denied",
    E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "denied",
    E.UNKNOWN_TOPIC_OR_PARTITION: "unknown-topic",
    E.UNKNOWN_TOPIC_ID: "unknown-topic",
    E.GROUP_ID_NOT_FOUND: "unknown-group",
    E.TRANSACTIONAL_ID_NOT_FOUND: "unknown-transaction",
    E.RESOURCE_NOT_FOUND: "not-found",
    E.PRODUCER_FENCED: "producer-fenced",
    E.INVALID_PRODUCER_EPOCH: "producer-fenced",
    E.INVALID_PRODUCER_ID_MAPPING: "producer-fenced",
    E.CONCURRENT_TRANSACTIONS: "concurrent-transactions",
    E.INVALID_TXN_STATE: "invalid-txn-state",
    E.TRANSACTION_ABORTABLE: "invalid-txn-state",
    E.ILLEGAL_GENERATION: "stale-member",
    E.STALE_MEMBER_EPOCH: "stale-member",
    E.FENCED_MEMBER_EPOCH: "stale-member",
    E.FENCED_INSTANCE_ID: "stale-member",
    E.REBALANCE_IN_PROGRESS: "rebalance",
    E.TOPIC_ALREADY_EXISTS: "exists",
    E.NON_EMPTY_GROUP: "group-active",
    E.GROUP_SUBSCRIBED_TO_TOPIC: "group-active",
    E.INVALID_UPDATE_VERSION: "precondition-failed",
    E.UNRELEASED_INSTANCE_ID: "conflict",
    E.INCONSISTENT_GROUP_PROTOCOL: "conflict",
    E.TRANSACTION_COORDINATOR_FENCED: "conflict",
    E.UNKNOWN_MEMBER_ID: "member-expired",
    E.MESSAGE_TOO_LARGE: "record-too-large",
    E.RECORD_LIST_TOO_LARGE: "record-too-large",
    E.OFFSET_OUT_OF_RANGE: "offset-out-of-range",
    E.INVALID_RECORD: "invalid-record",
    E.CORRUPT_MESSAGE: "invalid-record",
    E.INVALID_TIMESTAMP: "invalid-record",
    E.UNSUPPORTED_COMPRESSION_TYPE: "invalid-record",
    E.INVALID_CONFIG: "invalid-config",
    E.POLICY_VIOLATION: "invalid-request",
    E.INVALID_TRANSACTION_TIMEOUT: "invalid-request",
    E.INVALID_TOPIC_EXCEPTION: "invalid-request",
    E.INVALID_PARTITIONS: "invalid-request",
    E.INVALID_REPLICATION_FACTOR: "invalid-request",
    E.INVALID_REPLICA_ASSIGNMENT: "invalid-request",
    E.INVALID_REQUEST: "invalid-request",
    E.INVALID_GROUP_ID: "invalid-request",
    E.INVALID_SESSION_TIMEOUT: "invalid-request",
    E.INVALID_REGULAR_EXPRESSION: "invalid-request",
    E.OFFSET_METADATA_TOO_LARGE: "invalid-request",
    E.UNSUPPORTED_ASSIGNOR: "invalid-request",
    E.UNSUPPORTED_VERSION: "invalid-request",
    E.THROTTLING_QUOTA_EXCEEDED: "throttled",
    E.GROUP_MAX_SIZE_REACHED: "throttled",
    E.NOT_ENOUGH_REPLICAS: "not-enough-replicas",
    E.NOT_LEADER_OR_FOLLOWER: "not-now",
    E.FENCED_LEADER_EPOCH: "not-now",
    E.UNKNOWN_LEADER_EPOCH: "not-now",
    E.OFFSET_NOT_AVAILABLE: "not-now",
    E.OUT_OF_ORDER_SEQUENCE_NUMBER: "not-now",
    E.LEADER_NOT_AVAILABLE: "not-now",
    E.COORDINATOR_LOAD_IN_PROGRESS: "not-now",
    E.COORDINATOR_NOT_AVAILABLE: "not-now",
    E.NOT_COORDINATOR: "not-now",
    E.UNSTABLE_OFFSET_COMMIT: "not-now",
    E.NOT_CONTROLLER: "not-now",
    E.STALE_BROKER_EPOCH: "not-now",
    E.KAFKA_STORAGE_ERROR: "not-now",
    E.REQUEST_TIMED_OUT: "outcome-unknown",
    E.NOT_ENOUGH_REPLICAS_AFTER_APPEND: "outcome-unknown",
}
RETRY_AFTER_S = "1"
MAY_BE_DONE = MAY_BE_WRITTEN | {E.NOT_CONTROLLER, E.STALE_BROKER_EPOCH}
"""The last two mean that a broker lost its session, perhaps while a change was under way."""


class ProblemDetails(msgspec.Struct, omit_defaults=True):
    """The body of every answer that is an error."""

    type: str
    title: str
    status: int
    outcome: Outcome
    retriable: bool
    detail: str | None = None
    instance: str | None = None
    kafka_error: str | None = None
    kafka_error_code: int | None = None
    records: list[int] | None = None
    """The records of the request that are to blame, counted from 0."""
    topic: str | None = None
    partition: int | None = None
    expected_offset: int | None = None
    """Where the request expected the partition to end."""
    next_offset: int | None = None
    """Where it ends instead: who has read up to there may expect that."""


class Problem(Exception):
    """Raised by handlers: the request is answered with this problem."""

    def __init__(
        self,
        slug: str,
        detail: str | None = None,
        *,
        error: int | None = None,
        outcome: Outcome = "none",
        headers: Mapping[str, str] | None = None,
        **more: Any,
    ) -> None:
        super().__init__(detail or slug)
        self.slug = slug
        self.detail = detail
        self.error = error
        self.outcome: Outcome = outcome
        self.headers = dict(headers or {})
        self.more = more

    def about_record(self, index: int) -> Problem:
        """The problem, which says which record of the request it is about."""
        self.detail = f"record {index}: {self.detail or self.kind.title}"
        self.more["records"] = [index]
        return self

    @property
    def kind(self) -> ProblemKind:
        return PROBLEMS[self.slug]

    def body(self, instance: str | None = None) -> bytes:
        kind = self.kind
        name = code = None
        if self.error is not None:
            code, name = int(self.error), error_name(self.error)
        details = ProblemDetails(
            f"/problems/{self.slug}", kind.title, kind.status, self.outcome, kind.retriable, self.detail, instance
        )
        details.kafka_error, details.kafka_error_code = name, code
        if not self.more:
            return msgspec.json.encode(details)
        return msgspec.json.encode(msgspec.to_builtins(details) | self.more)

    @property
    def all_headers(self) -> dict[str, str]:
        """The headers of the answer, with the time after which to come again if that helps."""
        if self.kind.retriable and self.kind.status in (409, 429, 503):
            return {"Retry-After": RETRY_AFTER_S, **self.headers}
        return self.headers

    def response(self, request: web.Request) -> web.Response:
        return web.Response(
            body=self.body(quote(request.rel_url.raw_path, _OF_PATHS)),
            status=self.kind.status,
            content_type=MEDIA_TYPE,
            headers=self.all_headers,
        )


def error_name(code: int) -> str:
    try:
        return E(code).name
    except ValueError:
        return f"ERROR_{code}"


def of_error(
    code: int, detail: str | None = None, *, writing: bool = False, in_doubt: bool = False, **more: Any
) -> Problem:
    """The problem for one of Kafka's errors. With `writing`, the error itself tells whether the request may have been
    carried out all the same. `in_doubt`: whatever the error is, it may have been.
    """
    slug = OF_ERROR.get(E(code) if code in E.__members__.values() else E.UNKNOWN_SERVER_ERROR, "server-error")
    if slug == "outcome-unknown" and not writing:
        slug = "not-now"
    outcome: Outcome = "unknown" if in_doubt or (writing and code in MAY_BE_DONE) else "none"
    return Problem(slug, detail, error=code, outcome=outcome, **more)


def of_failure(failure: ClientFailure, *, changes: bool) -> Problem:
    """The problem for what another broker was asked and did not answer. `changes`: it was to change something."""
    slug, outcome = "not-now", "none"
    if changes and failure.may_come_late:
        slug, outcome = "outcome-unknown", "unknown"
    match failure.kind:
        case FailureKind.NOT_FOUND:
            slug = "not-found"
        case FailureKind.NOT_AUTHORIZED:
            slug = "denied"
        case FailureKind.REFUSED:
            slug = "conflict"
        case FailureKind.OUTCOME_UNKNOWN:
            slug, outcome = "outcome-unknown", "unknown"
    return Problem(slug, failure.message, outcome=outcome)  # type: ignore[arg-type]

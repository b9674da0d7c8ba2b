"""A row for each operation: its handler, and what the OpenAPI document says of it. Both come from the same table."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from aiohttp import web

from service.api.rules import Rule, anybody

if TYPE_CHECKING:
    from service.web.gateway import Gateway
    from service.web.problems import Problem
    from service.web.taking import Given

Handler = Callable[["Gateway", web.Request], Awaitable[web.StreamResponse]]
JSON = "application/json"
NDJSON = "application/x-ndjson"
OCTETS = "application/octet-stream"
SSE = "text/event-stream"
IDEMPOTENCY_KEY, REPLAYED = "Idempotency-Key", "Idempotency-Replayed"
BODY_BYTES = 256 << 10
"""The longest body in which no records are: what it asks for is made of it in one turn of the loop."""
LIST_BYTES = 1 << 20
"""The longest body that names what may be many: offsets of 15,000 partitions, or the 10,000 branches of a decision."""
STREAMING = web.RequestKey("streaming", bool)
"""A request has this once the head of its answer is sent: no other answer is possible then."""
FOLLOWS = web.RequestKey("follows", bool)
"""A request has this if its answer is a stream that does nothing but tell: it ends as soon as its client is gone."""
ENDED: web.RequestKey[Callable[[Given | None], None]] = web.RequestKey("ended")
"""A request has this if somebody must know whether its client has the answer. None: it was not written as a whole."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of the query, or a header: its name, JSON schema and meaning."""

    name: str
    schema: dict[str, Any]
    about: str
    place: str = "query"
    is_needed: bool = False


@dataclass(frozen=True, slots=True)
class Route:
    """An operation. The path is written as aiohttp wants it: `/v1/topics/{topic}`."""

    method: str
    path: str
    handle: Handler
    summary: str
    tag: str
    body: Any = None
    """The type of a JSON body."""
    body_media: Sequence[str] = ()
    """Further media types of the body; if `body` has no type, all its media types."""
    body_bytes_max: int | None = BODY_BYTES
    """The longest body. None: only `http.max.body.bytes` bounds it, and the handler works on it in turns."""
    body_streams: bool = False
    """The handler reads the body as it comes."""
    answer: Any = None
    """The type of a JSON answer."""
    answer_media: str = JSON
    more_media: Sequence[str] = ()
    """Other media types the answer may have."""
    line: Any = None
    """The type of a line, if the answer may be lines of JSON."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """The headers of the answer that tell something, and what that is."""
    status: int = 200
    also: Sequence[int] = ()
    """Further statuses that are not problems."""
    problems: Sequence[int] = ()
    refuse: Callable[[Problem], web.Response] | None = None
    """Makes the answer for a problem, if the API is not ours and has a form of its own."""
    refusal: tuple[str, Any] | None = None
    """The media type and the type of the answers of `refuse`."""
    parameters: Sequence[Parameter] = ()
    any_query: bool = False
    """The query may have names that mean nothing here, because others choose the URL."""
    documented: bool = True
    answers_head: bool = True
    """A GET that may be asked as HEAD. Not one that moves a reader on, or that does not end."""
    tells_of_client: bool = False
    """A GET by which a reader's client asks: it moves the reader on, or says that the client is there and has what it
    was given. A page of another site must not say so for it.
    """
    only_asks: bool = False
    """It changes nothing, although it is no GET."""
    authorize: Rule = anybody
    """Who may use the operation: decided by the session and by the names in the path."""

    @property
    def changes(self) -> bool:
        return self.method != "GET" and not self.only_asks

    @property
    def query(self) -> frozenset[str] | None:
        """The names that the query may have. None: all, because it is asked by other people's programs, or by eye."""
        if self.any_query or not self.path.startswith("/v1/"):
            return None
        return frozenset(each.name for each in self.parameters if each.place == "query")

    @property
    def refuses_key(self) -> bool:
        """A client that sends an Idempotency-Key with a change relies on it, so it is never ignored there. An operation
        that honours it has it among its parameters.
        """
        return self.changes and all(each.name != IDEMPOTENCY_KEY for each in self.parameters)


def integer(name: str, about: str, *, least: int = 0, most: int = 2**63 - 1) -> Parameter:
    return Parameter(name, {"type": "integer", "minimum": least, "maximum": most}, about)


def text(name: str, about: str, *choices: str) -> Parameter:
    return Parameter(name, {"type": "string", **({"enum": list(choices)} if choices else {})}, about)


def flag(name: str, about: str) -> Parameter:
    return Parameter(name, {"type": "boolean"}, about)


def header(name: str, about: str) -> Parameter:
    return Parameter(name, {"type": "string"}, about, "header")

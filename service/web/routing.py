"""One row for each operation: what serves it, and what the OpenAPI document says of it. The same table does both."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aiohttp import web

from service.api.rules import Rule, anybody

if TYPE_CHECKING:
    from service.web.gateway import Gateway
    from service.web.problems import Problem

Handler = Callable[["Gateway", web.Request], Awaitable[web.StreamResponse]]
JSON = "application/json"
NDJSON = "application/x-ndjson"
STREAMING = web.RequestKey("streaming", bool)
"""A request has this once the head of its answer is gone, so that nothing else can be answered."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """Of the query (or a header): its name, JSON schema, meaning."""

    name: str
    schema: dict[str, Any]
    about: str
    place: str = "query"


@dataclass(frozen=True, slots=True)
class Route:
    """`path` as aiohttp writes it: `/v1/topics/{topic}`."""

    method: str
    path: str
    handle: Handler
    summary: str
    tag: str
    body: Any = None
    """The type of a JSON body."""
    body_media: Sequence[str] = ()
    """Other media types the body may have; all of them, where there is no type."""
    answer: Any = None
    """The type of a JSON answer."""
    answer_media: str = JSON
    more_media: Sequence[str] = ()
    """Other media types the answer may have."""
    status: int = 200
    also: Sequence[int] = ()
    """Further statuses that are no problems."""
    problems: Sequence[int] = ()
    refuse: Callable[[Problem], web.Response] | None = None
    """How problems are told, if not as problem details: by the rules of somebody else's API."""
    refusal: tuple[str, Any] | None = None
    """Media and type of what `refuse` tells."""
    parameters: Sequence[Parameter] = ()
    documented: bool = True
    authorize: Rule = anybody
    """Who may: judged by the session and by what the path names."""


def integer(name: str, about: str, *, least: int = 0, most: int = 2**63 - 1) -> Parameter:
    return Parameter(name, {"type": "integer", "minimum": least, "maximum": most}, about)


def text(name: str, about: str, *choices: str) -> Parameter:
    return Parameter(name, {"type": "string", **({"enum": list(choices)} if choices else {})}, about)


def flag(name: str, about: str) -> Parameter:
    return Parameter(name, {"type": "boolean"}, about)


def header(name: str, about: str) -> Parameter:
    return Parameter(name, {"type": "string"}, about, "header")

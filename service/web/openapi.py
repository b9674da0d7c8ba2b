"""The API describes itself: the OpenAPI document, a page for people, and a page for each problem. All are made from the
table of routes and the types of bodies.
"""

from __future__ import annotations

import html
import json
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
from aiohttp import web

from service.web.documents import documents
from service.web.gateway import Gateway
from service.web.problems import MEDIA_TYPE, PROBLEMS, Problem, ProblemDetails, ProblemKind
from service.web.routing import IDEMPOTENCY_KEY, JSON, NDJSON, REPLAYED, SSE, Parameter, Route

_BRACES = re.compile(r"\{(\w+)(?::[^{}]*(?:\{[^{}]*\}[^{}]*)*)?\}")
ABOUT = """\
An exactly-once transactional event store over HTTP. Every broker answers every request.

Every error is a problem (RFC 9457) that says its `outcome`: `none` (nothing was written), `applied` (it was), or
`unknown` (it may have been; an Idempotency-Key makes it safe to ask again, a transaction tells by GET).

Operations that list `Idempotency-Key` apply a request with a key once. Every other operation that changes something
refuses a key (400); where nothing is changed, it means nothing.

Integers may be larger than 2^53; where records are read, `int64=string` shows those as strings.
"""
_OF_PROBLEMS: Final = {"Retry-After": "After how many seconds to send it again, where that may help."}
_OF_REPEATED: Final = {REPLAYED: "`true` if this is the answer of an earlier request with the same key."}
WHOLE_NUMBERS = frozenset({"partition", "number", "offset"})
EXAMPLES: Final[Mapping[tuple[str, str], Any]] = {
    ("POST", "/v1/topics"): {"name": "orders", "partitions": 3},
    ("POST", "/v1/topics/{topic}/records"): {"records": [{"key": "anna", "value": {"fruit": "apple"}}]},
    ("POST", "/v1/records"): {"records": [{"topic": "orders", "key": "anna", "value": {"fruit": "apple"}}]},
    ("POST", "/v1/transactions"): {"transactional_id": "cash-desk-1"},
    ("PUT", "/v1/transactions/{txn:[^/:]+}/batches/{number}"): {"records": [{"topic": "orders", "value": "a pear"}]},
    ("PUT", "/v1/groups/{group}/offsets"): {"to": "earliest", "topics": ["orders"]},
}
"""Bodies to begin with, on `/docs` and in forms."""
NAMES: Final = {"topic": "orders", "group": "billing", "partition": "0", "number": "0"}
"""What the paths of examples have for their parameters; any other is for the reader to fill in."""


def _hook(kind: type) -> dict[str, Any]:
    if kind is msgspec.Raw:
        return {"description": "Any JSON."}
    raise NotImplementedError


def path_of(route: Route) -> str:
    return _BRACES.sub(r"{\1}", route.path)


def _operation_id(route: Route) -> str:
    return f"{route.handle.__module__.rpartition('.')[2]}_{route.handle.__name__}_{path_of(route).count('/')}"


def _in_path(name: str) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string", "minLength": 1}
    if name in WHOLE_NUMBERS:
        schema = {"type": "integer", "minimum": 0, "maximum": 2**63 - 1 if name == "offset" else 2**31 - 1}
    return {"name": name, "in": "path", "required": True, "schema": schema}


def _parameter(parameter: Parameter) -> dict[str, Any]:
    return {
        "name": parameter.name,
        "in": parameter.place,
        "required": parameter.is_needed,
        "schema": parameter.schema,
        "description": parameter.about,
    }


def _headers(told: Mapping[str, str]) -> dict[str, Any]:
    return {name: {"description": about, "schema": {"type": "string"}} for name, about in told.items()}


def _told(route: Route) -> dict[str, Any]:
    """The headers of the answer if all is well."""
    is_repeatable = any(each.name == IDEMPOTENCY_KEY for each in route.parameters)
    return _headers({**(_OF_REPEATED if is_repeatable else {}), **route.headers})


def _lines(schema: dict[str, Any]) -> dict[str, Any]:
    """Lines of JSON; version 3.1 of OpenAPI has no other word for them."""
    about = "Lines of JSON, each of which is of the type in `contentSchema`."
    return {"type": "string", "contentMediaType": NDJSON, "contentSchema": schema, "description": about}


def document(routes: Sequence[Route]) -> dict[str, Any]:
    """The document, in OpenAPI 3.1."""
    shown = [route for route in routes if route.documented]
    types = [kind for route in shown for kind in (route.body, route.answer, route.line) if kind is not None]
    types += [route.refusal[1] for route in shown if route.refusal is not None]
    unique = list(dict.fromkeys([*types, ProblemDetails]))
    schemas, components = msgspec.json.schema_components(
        unique, schema_hook=_hook, ref_template="#/components/schemas/{name}"
    )
    for each in components.values():
        for member in each.get("properties", {}).values():
            if member.get("format") == "int64":
                member["type"] = ["integer", "string"]  # a client may ask for strings
    schema_of = dict(zip(unique, schemas, strict=True))
    as_problem = {MEDIA_TYPE: {"schema": schema_of[ProblemDetails]}}
    paths: dict[str, dict[str, Any]] = {}
    for route in shown:
        responses: dict[str, Any] = {}
        for status in (route.status, *route.also):
            answer: dict[str, Any] = {"description": "Done" if status < 400 else "Not now"}
            if route.answer is not None:
                answer["content"] = {route.answer_media: {"schema": schema_of[route.answer]}}
            elif route.answer_media == SSE:
                answer["content"] = {SSE: {}}  # a schema would be taken for that of each event
            elif route.answer_media != JSON and status != 204:
                answer["content"] = {route.answer_media: {"schema": {"type": "string"}}}
            for media in route.more_media:
                answer.setdefault("content", {})[media] = {"schema": {}}
            if route.line is not None and status != 204:
                answer.setdefault("content", {})[NDJSON] = {"schema": _lines(schema_of[route.line])}
            if headers := _told(route):
                answer["headers"] = headers
            responses[str(status)] = answer
        told = dict(as_problem)
        if route.refusal is not None:
            media, kind = route.refusal
            told[media] = {"schema": schema_of[kind]}
        problem = {"description": "A problem", "content": told, "headers": _headers(_OF_PROBLEMS)}
        has_body = route.body is not None or bool(route.body_media)
        for status in sorted({400, *route.problems, *((413,) if has_body else ())}):  # what can't be read is refused
            responses[str(status)] = problem
        if has_body and route.body_bytes_max is not None:
            told_why = f"A problem, also if the body is longer than {route.body_bytes_max} bytes"
            responses["413"] = {**problem, "description": told_why}
        responses["default"] = problem
        operation: dict[str, Any] = {
            "operationId": _operation_id(route),
            "summary": route.summary.partition(". ")[0].rstrip("."),
            "description": route.summary,
            "tags": [route.tag],
            "parameters": [
                *(_in_path(name) for name in _BRACES.findall(route.path)),
                *map(_parameter, route.parameters),
            ],
            "responses": responses,
        }
        if has_body:
            content: dict[str, Any] = {} if route.body is None else {JSON: {"schema": schema_of[route.body]}}
            text = {"schema": {"type": "string"}}
            for media in route.body_media:
                content[media] = content.get(JSON, text) if media.endswith("+json") else text
            operation["requestBody"] = {"required": True, "content": content}
        paths.setdefault(path_of(route), {})[route.method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {"title": "oncelog", "version": "1", "description": ABOUT},
        "paths": paths,
        "components": {"schemas": components},
    }


async def as_document(gateway: Gateway, request: web.Request) -> web.Response:
    return web.Response(body=_documents(gateway), content_type=JSON)


def _documents(gateway: Gateway) -> bytes:
    if gateway.document is None:
        gateway.document = msgspec.json.encode(document(gateway.routes))
    return gateway.document


# -- for people

_STYLE = """\
body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222;background:#fff}
code,pre{font:14px/1.4 ui-monospace,monospace}pre{background:#f3f3f3;padding:.6rem;overflow-x:auto}
section{border-top:1px solid #ddd;padding:.5rem 0}h3 code{font-size:1rem}
td{padding:.1rem .8rem .1rem 0;vertical-align:top}
@media(max-width:40rem){body{overflow-wrap:anywhere}td{display:block}}
@media(prefers-color-scheme:dark){body{color:#ddd;background:#181818}pre{background:#262626}a{color:#8bf}}
"""
_POLICY = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'", "X-Frame-Options": "DENY"}


def _page(title: str, body: Iterable[str]) -> web.Response:
    text = (
        f"<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style><h1>{html.escape(title)}</h1>{''.join(body)}"
    )
    return web.Response(text=text, content_type="text/html", headers=_POLICY)


def _shown(route: Route, base: str) -> Iterable[str]:
    path = path_of(route)
    yield f"<section><h3><code>{route.method} {html.escape(path)}</code></h3><p>{_prose(route.summary)}</p>"
    if route.parameters:
        yield "<table>"
        for each in route.parameters:
            choices = " ".join(map(str, each.schema.get("enum", ())))
            place = "" if each.place == "query" else f" ({each.place})"
            about = _prose(f"{each.about} {choices}".strip())
            yield f"<tr><td><code>{html.escape(each.name)}</code>{place}<td>{about}"
        yield "</table>"
    yield f"<pre>{html.escape(_curl(route, base + path))}</pre></section>"


def _prose(text: str) -> str:
    """The text as HTML. What stands in backticks is code."""
    return re.sub("`([^`]+)`", r"<code>\1</code>", html.escape(text))


def _curl(route: Route, url: str) -> str:
    """A command to copy: as it is if there is an example of the body, otherwise to be filled in."""
    for name, value in NAMES.items():
        url = url.replace(f"{{{name}}}", value)
    example = EXAMPLES.get((route.method, route.path))
    parts = ["curl"]
    if route.method != "GET":
        parts.append(f"-X {route.method}")
    if route.body is not None:
        parts.append(f"--json {shlex.quote('…' if example is None else json.dumps(example))}")
    return " ".join([*parts, url])


async def docs(gateway: Gateway, request: web.Request) -> web.Response:
    """Every operation by its tag, and links to the pages of the documentation."""
    routes = [route for route in gateway.routes if route.documented]
    body = [f"<p>{_prose(each)}</p>" for each in ABOUT.split("\n\n")]
    body.append("<p><a href=/openapi.json>openapi.json</a></p>")
    for tag in dict.fromkeys(route.tag for route in routes):
        body.append(f"<h2>{html.escape(tag)}</h2>")
        for route in routes:
            if route.tag == tag:
                body.extend(_shown(route, f"http://{request.host}"))
    body.append("<h2>documents</h2><ul>")
    body.extend(f"<li><a href='/docs/{name}'>{name}</a>" for name in map(html.escape, documents()))
    body.append("</ul>")
    return _page("oncelog over HTTP", body)


async def to_docs(gateway: Gateway, request: web.Request) -> web.StreamResponse:
    raise web.HTTPFound("/docs")


async def problem(gateway: Gateway, request: web.Request) -> web.Response:
    """What a problem's type means."""
    slug = request.match_info["slug"]
    kind: ProblemKind | None = PROBLEMS.get(slug)
    if kind is None:
        raise Problem("not-found", "there is no such problem")
    again = "The same request may be sent again." if kind.retriable else "Sent again as it is it will not be better."
    return _page(f"{kind.status} {slug}", [f"<p>{html.escape(kind.title)}. {again}</p>"])


ROUTES = (
    Route("GET", "/openapi.json", as_document, "This API as an OpenAPI document.", "about", documented=False),
    Route("GET", "/docs", docs, "This API for people.", "about", documented=False),
    Route("GET", "/docs/", to_docs, "To this API for people.", "about", documented=False),
    Route("GET", "/problems/{slug}", problem, "What a problem means.", "about", documented=False),
)

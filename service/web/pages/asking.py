"""The HTTP API through forms: any of its requests, and writing records. A page sends what `curl` would send, to this
broker's own listener, and shows the command. It has no other way to write.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import secrets
import shlex
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qsl, quote

from aiohttp import ClientError, ClientTimeout, web
from yarl import URL

from service.web.gateway import Gateway
from service.web.openapi import EXAMPLES
from service.web.pages.render import page
from service.web.pages.views import Facts, PageView, framed
from service.web.problems import Problem
from service.web.routing import JSON, Route
from service.web.unpacking import body_of

WAIT_S: Final = 5.0
"""How long an answer may take. A stream never ends, so what has come by then is shown."""
SHOWN_BYTES: Final = 64 << 10
FORM_BYTES: Final = 3 << 20
"""The longest form: a million characters, if each is escaped."""
FORM_FIELDS: Final = 20
METHODS: Final = ("GET", "POST", "PUT", "PATCH", "DELETE")
HOW: Final = ("committed", "plain", "aborted", "open")
OPEN_MS: Final = 60_000


@dataclass(frozen=True, slots=True)
class TriedRequest:
    """A request as a person has filled it in."""

    method: str
    path: str
    headers: tuple[tuple[str, str], ...] = ()
    body: str = ""

    def curl(self, url: str) -> str:
        parts = ["curl", *(["-X", self.method] if self.method != "GET" else []), shlex.quote(url + self.path)]
        for name, value in self.headers:
            parts += ["-H", shlex.quote(f"{name}: {value}")]
        if self.body:
            parts += ["-d", shlex.quote(self.body)]
        return " ".join(parts)


@dataclass(frozen=True, slots=True)
class Answered:
    status: int
    headers: tuple[tuple[str, str], ...]
    text: str
    is_cut: bool
    took_ms: float


async def ask_own(gateway: Gateway, request: web.Request, asked: TriedRequest) -> Answered:
    """Send the request to the address at which the page was asked for. No other address can be named."""
    assert request.transport is not None
    host, port = request.transport.get_extra_info("sockname")[:2]
    url = URL.build(scheme=request.scheme, host=host, port=port)
    url = URL(f"{url}{quote(asked.path, safe='/?&=%:@+,;~-._')}", encoded=True)
    headers = dict(asked.headers)
    if "Authorization" in request.headers:
        headers["Authorization"] = request.headers["Authorization"]
    began_s = time.monotonic()
    content, is_cut = b"", False
    try:
        async with gateway.http().request(
            asked.method,
            url,
            data=asked.body.encode("utf-8", "replace") or None,
            headers=headers,
            allow_redirects=False,
            timeout=ClientTimeout(total=6 * WAIT_S),
        ) as answer:
            try:
                async with asyncio.timeout(WAIT_S):
                    while len(content) < SHOWN_BYTES and (some := await answer.content.read(SHOWN_BYTES)):
                        content += some
            except TimeoutError:
                is_cut = True
            is_cut = is_cut or len(content) >= SHOWN_BYTES
            took_ms = (time.monotonic() - began_s) * 1000
            text = content[:SHOWN_BYTES].decode("utf-8", "replace")
            return Answered(answer.status, tuple(answer.headers.items()), _laid_out(text), is_cut, took_ms)
    except (ClientError, TimeoutError, OSError, ValueError) as error:
        raise Problem("invalid-request", f"it could not be sent: {error or type(error).__name__}") from None


def _laid_out(text: str) -> str:
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except ValueError:
        return text


def headers_of(text: str) -> tuple[tuple[str, str], ...]:
    """The headers: `Name: value`, one in each line."""
    found = []
    for line in text.splitlines():
        if line.strip():
            name, colon, value = line.partition(":")
            if not colon or not name.strip():
                raise Problem("malformed", f"{line[:60]!r} is no header: a name, a colon, a value")
            found.append((name.strip(), value.strip()))
    return tuple(found)


async def form_of(gateway: Gateway, request: web.Request) -> dict[str, str]:
    """What was filled in, with plain line ends. Browsers send others."""
    body = await body_of(request)
    if len(body) > FORM_BYTES:
        raise Problem("record-too-large", f"a form has at most {FORM_BYTES} bytes")
    try:
        return await gateway.env.blocking(_filled_in, body)
    except ValueError:
        raise Problem("malformed", f"a form has at most {FORM_FIELDS} fields") from None


def _filled_in(body: bytes) -> dict[str, str]:
    given = parse_qsl(body.decode(errors="replace"), keep_blank_values=True, max_num_fields=FORM_FIELDS)
    return {name: value.replace("\r\n", "\n") for name, value in given}


# --- any request -----------------------------------------------------------------------------------------------------


async def playground(look: PageView) -> Facts:
    method, path = look.query.get("method", "GET"), look.query.get("path", "/v1/topics")
    template = (method, look.query.get("template", path))
    body = json.dumps(EXAMPLES[template], indent=1) if template in EXAMPLES else ""
    asked = TriedRequest(method if method in METHODS else "GET", path[:2000], _JSON if body else (), body)
    return _playground(look.gateway, asked)


_JSON: Final = (("Content-Type", JSON),)


def _playground(gateway: Gateway, asked: TriedRequest, **more: Any) -> Facts:
    by_tag: dict[str, list[dict[str, str]]] = {}
    for route in gateway.routes:
        if route.documented and route.method in METHODS:
            by_tag.setdefault(route.tag, []).append(_operation(route))
    return {
        "title": "HTTP",
        "asked": asked,
        "headers": "\n".join(f"{name}: {value}" for name, value in asked.headers),
        "operations": by_tag,
        "methods": METHODS,
        "answer": None,
        "curl": "",
        "why": "",
        **more,
    }


def _operation(route: Route) -> dict[str, str]:
    path = "".join(part.partition(":")[0] + ("}" if ":" in part else "") for part in _split(route.path))
    return {"method": route.method, "path": path, "template": route.path, "summary": route.summary.partition(". ")[0]}


def _split(path: str) -> list[str]:
    """The path in pieces, each of which ends with a parameter."""
    pieces, rest = [], path
    while "}" in rest:
        head, _, rest = rest.partition("}")
        pieces.append(head if ":" in head.partition("{")[2] else head + "}")
    return [*pieces, *([rest] if rest else [])]


async def play(gateway: Gateway, request: web.Request) -> web.StreamResponse:
    form = await form_of(gateway, request)
    method, path = form.get("method", "GET"), form.get("path", "").strip()
    try:
        asked = TriedRequest(method, path, headers_of(form.get("headers", "")), form.get("body", ""))
    except Problem as problem:
        asked = TriedRequest(method, path, (), form.get("body", ""))
        return _shown(gateway, "playground", _playground(gateway, asked, why=str(problem)), 400)
    why = ""
    if method not in METHODS:
        why = "there is no such method."
    elif not path.startswith("/") or path.startswith(("//", "/ui")):
        why = "a path begins with a slash, and is one of the API."
    elif "{" in path:
        why = "fill in what stands in braces."
    if why:
        return _shown(gateway, "playground", _playground(gateway, asked, why=why), 400)
    try:
        answer = await ask_own(gateway, request, asked)
    except Problem as problem:
        return _shown(gateway, "playground", _playground(gateway, asked, why=str(problem)), 400)
    curl = asked.curl(f"{request.scheme}://{request.host}")
    return _shown(gateway, "playground", _playground(gateway, asked, answer=answer, curl=curl))


def _shown(gateway: Gateway, name: str, found: Facts, status: int = 200) -> web.Response:
    return page(framed(gateway, name, found), status=status)


# --- records ---------------------------------------------------------------------------------------------------------


async def producing(look: PageView) -> Facts:
    topic = look.gateway.topic(look.match["topic"])
    partition = look.query.get("partition", "")
    return _producing(look.gateway, topic.name, {"partition": partition if partition.isdigit() else ""})


def _producing(gateway: Gateway, topic: str, form: Mapping[str, str], **more: Any) -> Facts:
    return {
        "title": f"Write to {topic}",
        "name": topic,
        "partitions": len(gateway.topic(topic).partitions),
        "form": {"how": "committed", "key": "", "value": "", "headers": "", "partition": "", "id": "", **form},
        "once": secrets.token_hex(16),
        "open_s": OPEN_MS // 1000,
        "done_here": [],
        "commands": [],
        "why": "",
        **more,
    }


async def produce(gateway: Gateway, request: web.Request) -> web.StreamResponse:
    name = gateway.topic(request.match_info["topic"]).name
    form = await form_of(gateway, request)
    commands: list[str] = []
    try:
        done = await _write(gateway, request, name, form, commands)
    except Problem as problem:
        more = _producing(gateway, name, form, why=str(problem), commands=commands)
        return _shown(gateway, "produce", more, 409)
    return _shown(gateway, "produce", _producing(gateway, name, form, done_here=done, commands=commands))


async def _write(
    gateway: Gateway, request: web.Request, topic: str, form: Mapping[str, str], commands: list[str]
) -> list[str]:
    """What became of the records, in words. If the form is sent twice, as by a second click, a committed record is
    written once.
    """
    here = f"{request.scheme}://{request.host}"

    async def ask(method: str, path: str, body: object = None, *more: tuple[str, str]) -> dict[str, Any]:
        text = "" if body is None else json.dumps(body, ensure_ascii=False)
        asked = TriedRequest(method, path, (*(_JSON if text else ()), *more), text)
        commands.append(asked.curl(here))
        answer = await ask_own(gateway, request, asked)
        told = json.loads(answer.text) if answer.text else {}
        if answer.status >= 400:
            raise Problem("conflict", told.get("detail") or told.get("title") or f"status {answer.status}")
        return dict(told)

    how = form.get("how", "")
    if how not in HOW:
        raise Problem("invalid-request", "it was not said how to write it")
    record = _record(form)
    if how in ("plain", "committed"):
        said = hashlib.sha256(json.dumps([form.get("once", ""), record]).encode()).hexdigest()
        once = (("Idempotency-Key", f'"{said}"'),) if how == "committed" else ()
        told = await ask("POST", f"/v1/topics/{quote(topic, safe='')}/records", {"records": [record]}, *once)
        return [_place(topic, told, "committed" if how == "committed" else "written")]
    transactional_id = form.get("id", "").strip() or f"ui-{topic}"
    begun = await ask("POST", "/v1/transactions", {"transactional_id": transactional_id, "timeout_ms": OPEN_MS})
    txn = f"/v1/transactions/{begun['txn']}"
    told = await ask("PUT", f"{txn}/batches/0", {"records": [{"topic": topic, **record}]})
    done = [_place(topic, told, f"written in a transaction of {transactional_id}")]
    if how == "aborted":
        await ask("POST", f"{txn}:abort")
        return [*done, "The transaction was aborted: readers of committed records never see it."]
    return [
        *done,
        f"It is open: readers of committed records wait there until it is aborted, after {OPEN_MS // 1000} seconds"
        " by itself.",
    ]


def _place(topic: str, told: Mapping[str, Any], how: str) -> str:
    place = told["results"][0]
    return f"{topic}-{place['partition']}, offset {place['offset']}: {how}."


def _record(form: Mapping[str, str]) -> dict[str, Any]:
    record: dict[str, Any] = {}
    if form.get("key"):
        record["key"] = form["key"]
    if form.get("tombstone") != "1":
        record["value_string"] = form.get("value", "")
    if headers := headers_of(form.get("headers", "")):
        record["headers"] = [{"name": name, "value": value} for name, value in headers]
    if partition := form.get("partition", "").strip():
        if not (partition.isascii() and partition.isdigit() and len(partition) < 10):
            raise Problem("invalid-request", f"{partition[:20]!r} is no partition")
        record["partition"] = int(partition)
    return record

"""Actions of pages: a transaction that holds up readers can be ended. The operator confirms by typing its name, and
only pages of this broker may send the request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from typing import Final
from urllib.parse import quote

from aiohttp import web

from log.ids import TopicPartition
from service.client.failures import ClientFailure, error_name
from service.client.transactions import (
    ONGOING,
    TransactionState,
    abort_hanging,
    fence,
    find_transaction,
    producers_of,
)
from service.web.gateway import Gateway, Inside
from service.web.origins import is_at
from service.web.pages.asking import form_of
from service.web.pages.render import page, shown
from service.web.pages.views import framed
from service.web.problems import Problem
from service.web.routing import Handler

ACTED_S: Final = 10.0
"""How long an action may take."""


async def abort_id(gateway: Gateway, request: web.Request) -> web.StreamResponse:
    """Abort what a transactional id has open in all partitions, and fence its producer."""
    name = request.match_info["id"]
    back = f"/ui/transactions/{quote(name, safe='')}"
    if refused := not_meant(await form_of(gateway, request), name):
        return refuse(gateway, refused, back)
    return await acted(gateway, back, _abort_id(gateway, name, back))


async def _abort_id(gateway: Gateway, name: str, back: str) -> web.StreamResponse:
    cluster = Inside(gateway, ACTED_S)
    known = await find_transaction(cluster, name)
    if known is None or known.state != ONGOING:
        return refuse(gateway, f"{name} has no transaction to abort.", back)
    if code := await fence(cluster, name):
        return refuse(gateway, f"the coordinator refused it: {error_name(code)}.", back)
    raise web.HTTPSeeOther(f"{back}?done=aborted")


async def abort_in(gateway: Gateway, request: web.Request) -> web.StreamResponse:
    """Write the marker that a hanging transaction lacks in one partition. Refused if a coordinator has the transaction
    open.
    """
    topic, number = request.match_info["topic"], int(request.match_info["partition"])
    partition = TopicPartition(topic, number)
    back = f"/ui/topics/{quote(topic, safe='')}"
    gateway.state(partition)
    form = await form_of(gateway, request)
    if refused := not_meant(form, f"{topic}-{number}"):
        return refuse(gateway, refused, back)
    start = form.get("start_offset", "")
    return await acted(gateway, back, _abort_in(gateway, partition, start, back))


async def _abort_in(gateway: Gateway, partition: TopicPartition, start: str, back: str) -> web.StreamResponse:
    cluster = Inside(gateway, ACTED_S)
    found = (await producers_of(cluster, [partition]))[partition]
    chosen = [each for each in found if str(each.current_txn_start_offset) == start and start != "-1"]
    if not chosen:
        return refuse(gateway, f"no open transaction begins at offset {start} there.", back)
    outcome = await abort_hanging(cluster, partition, chosen[0])
    if isinstance(outcome, TransactionState):
        whose = outcome.transactional_id
        return refuse(gateway, f"its coordinator has it open: abort it by its id, {whose}.", back)
    if outcome:
        return refuse(gateway, f"the partition's leader refused the marker: {error_name(outcome)}.", back)
    raise web.HTTPSeeOther(f"{back}?done=aborted")


async def acted(gateway: Gateway, back: str, work: Awaitable[web.StreamResponse]) -> web.StreamResponse:
    """What the work answers, or a page that says why it was not done."""
    try:
        async with asyncio.timeout(ACTED_S):
            return await work
    except TimeoutError:
        why = f"no answer within {ACTED_S:.0f} seconds. It may be done after all: look before you do it again."
        return refuse(gateway, why, back)
    except (ClientFailure, Problem) as failure:
        return refuse(gateway, str(failure), back)


def not_meant(form: Mapping[str, str], name: str) -> str | None:
    """Why this is not to be done; None if a person has typed the name to confirm it. A name with characters that nobody
    can see or type is typed as it is shown.
    """
    confirmed = form.get("confirm", "")
    return (
        None if confirmed in (name, shown(name)) else "what was typed to confirm it is not the name; nothing was done."
    )


def own_pages_only(handle: Handler) -> Handler:
    """For a form that changes something: refuse requests from pages that are not ours, before their bodies are read."""

    async def checked(gateway: Gateway, request: web.Request) -> web.StreamResponse:
        origin = request.headers.get("Origin")
        if request.headers.get("Sec-Fetch-Site", "same-origin") != "same-origin" or (
            origin is not None and not is_at(origin, request.host)
        ):
            return refuse(gateway, "the request came from another site.", "/ui")
        return await handle(gateway, request)

    return checked


def refuse(gateway: Gateway, why: str, back: str) -> web.Response:
    return page(framed(gateway, "refused", {"title": "Not done", "why": why, "back": back}), status=409)

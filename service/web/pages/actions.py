"""What a page can do: end a transaction that holds readers up, and move a group. Confirmed by typing its name, and only
from a page of this broker's own.
"""

from __future__ import annotations

from urllib.parse import quote, urlsplit

from aiohttp import web

from log.ids import TopicPartition
from service.client.failures import ClientFailure, error_name
from service.client.groups import commit_offsets, committed_offsets
from service.client.transactions import (
    ONGOING,
    fence,
    find_transaction,
    producers_of,
    standing,
    transactions_of,
    write_abort_marker,
)
from service.web.gateway import Gateway
from service.web.pages.facts import offsets_of
from service.web.pages.render import page, render
from service.web.pages.views import kept_of


async def abort_id(gateway: Gateway, request: web.Request) -> web.StreamResponse:
    """Abort what a transactional id has open, everywhere, and shut its producer out."""
    name = request.match_info["id"]
    back = f"/ui/transactions/{quote(name, safe='')}"
    cluster = kept_of(gateway).cluster
    if refused := await _not_meant(request, name):
        return _refuse(gateway, refused, back)
    known = await find_transaction(cluster, name)
    if known is None or known.state != ONGOING:
        return _refuse(gateway, f"{name} has no transaction to abort.", back)
    try:
        code = await fence(cluster, name)
    except ClientFailure as failure:
        return _refuse(gateway, str(failure), back)
    if code:
        return _refuse(gateway, f"the coordinator refused it: {error_name(code)}.", back)
    raise web.HTTPSeeOther(f"{back}?done=aborted")


async def abort_in(gateway: Gateway, request: web.Request) -> web.StreamResponse:
    """Write the marker that a hanging transaction lacks in one partition; never where a coordinator has it open."""
    topic, number = request.match_info["topic"], int(request.match_info["partition"])
    partition = TopicPartition(topic, number)
    back = f"/ui/topics/{quote(topic, safe='')}"
    gateway.state(partition)
    if refused := await _not_meant(request, f"{topic}-{number}"):
        return _refuse(gateway, refused, back)
    start = str((await request.post()).get("start_offset", ""))
    cluster = kept_of(gateway).cluster
    found = (await producers_of(cluster, [partition]))[partition]
    chosen = [each for each in found if str(each.current_txn_start_offset) == start and start != "-1"]
    if not chosen:
        return _refuse(gateway, f"no open transaction begins at offset {start} there.", back)
    known = await transactions_of(cluster, [chosen[0].producer_id])
    judged = standing(partition, known.get(chosen[0].producer_id, []), gateway.broker.env.clock.wall_ms())
    if judged.holder is not None:
        whose = judged.holder.transactional_id
        return _refuse(gateway, f"its coordinator has it open: abort it by its id, {whose}.", back)
    if code := await write_abort_marker(cluster, partition, chosen[0]):
        return _refuse(gateway, f"the partition's leader refused the marker: {error_name(code)}.", back)
    raise web.HTTPSeeOther(f"{back}?done=aborted")


async def reset_group(gateway: Gateway, request: web.Request) -> web.StreamResponse:
    """Let a group begin anew, or skip everything there is, in all partitions that it has read. Nobody may be in it."""
    name = request.match_info["group"]
    back = f"/ui/groups/{quote(name, safe='')}"
    cluster = kept_of(gateway).cluster
    if refused := await _not_meant(request, name):
        return _refuse(gateway, refused, back)
    to = (await request.post()).get("to", "")
    if to not in ("start", "end"):
        return _refuse(gateway, "it was not said where the group shall go on.", back)
    try:
        committed = await committed_offsets(cluster, name)
        there = await offsets_of(gateway.broker, cluster, committed)
        wanted = {each: offsets.start if to == "start" else offsets.high for each, offsets in there.items()}
        if not wanted:
            return _refuse(gateway, f"{name} has committed nothing that could be moved.", back)
        await cluster.metadata({each.topic for each in wanted})
        code = await commit_offsets(cluster, name, wanted)
    except ClientFailure as failure:
        return _refuse(gateway, str(failure), back)
    if code:
        return _refuse(gateway, f"the coordinator refused it ({error_name(code)}): is anybody in the group?", back)
    raise web.HTTPSeeOther(f"{back}?done=moved+to+the+{to}")


async def _not_meant(request: web.Request, typed: str) -> str | None:
    """Why this is not what somebody at one of our pages asked for."""
    origin = request.headers.get("Origin")
    if request.headers.get("Sec-Fetch-Site", "same-origin") != "same-origin" or (
        origin is not None and urlsplit(origin).netloc != request.host
    ):
        return "the request came from another site."
    confirmed = (await request.post()).get("confirm", "")
    return None if confirmed == typed else "what was typed to confirm it is not the name; nothing was done."


def _refuse(gateway: Gateway, why: str, back: str) -> web.Response:
    broker = gateway.broker
    text = render(
        "refused.html",
        title="Not done",
        why=why,
        back=back,
        here="",
        node_id=broker.node_id,
        cluster_id=broker.cluster_id,
        live=False,
        missing=[],
        done="",
        search="",
    )
    return page(text, status=409)

"""The pages under `/ui`. Each gathers its facts and hands them to a template.

An open page asks for itself again as a stream (`?live=1`), and gets its content whenever that has changed. Equal pages
share the facts, so that a hundred open pages cost as much as one. All open pages together take a hundredth of the
broker's time at most: if they would take more, they are refreshed less often.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from aiohttp import web

from log.ids import TopicPartition
from service.broker.health import CLOCK, FAILED, FULL, HTTP, STRANGER, STUCK, UNREACHABLE
from service.broker.internal_topics import INTERNAL_TOPICS
from service.client.failures import ClientFailure, FailureKind
from service.client.groups import GroupWithMembers, describe_group, list_groups
from service.client.transactions import find_root, find_transaction, producers_of
from service.settings.setting import MAX_LONG
from service.turns import in_turns, slices_in_turns
from service.web.fetching import Held
from service.web.gateway import Gateway
from service.web.pages import facts, tracing
from service.web.pages.facts import NAMED, Told
from service.web.pages.near import NearCluster
from service.web.pages.render import HEADERS, fragment, is_compiled, page, render, template
from service.web.problems import Problem
from service.web.routing import STREAMING
from service.wire.messages import DescribedTrouble, ListedGroup, ProducerState

LIVE_S: Final = 2.0
LIVE_S_MAX: Final = 15.0
SHARE: Final = 0.01
"""The share of the broker's time for all open pages together."""
STREAMS_MAX: Final = 200
HISTORY: Final = 150
"""How many samples the overview's curves have: five minutes, while the page is open."""
PRODUCERS_MAX: Final = 200
CACHED_MAX: Final = 100
GROUPS_FRESH_S: Final = 5.0
TOPICS_A_TURN: Final = 50
BARS_A_TURN: Final = 5
TRACED_PARTITIONS: Final = 20
NO_SESSION: Final = (
    "this broker has no session with the metadata store. Until it has one again it leads nothing, and shows the "
    "cluster as it was"
)
BATCHES_MAX: Final = 300
FOLDERS: Final = {FAILED: "OncelogLogFolderFailed", FULL: "OncelogDiskFull"}
BETWEEN: Final = (UNREACHABLE, STRANGER, CLOCK, HTTP, STUCK)
"""Of what brokers find wrong between them. Replicas that are not in sync are counted, and a lost session is told by the
broker itself.
"""
Facts = dict[str, Any]
Troubled = tuple[int, DescribedTrouble]
View = Callable[["PageView"], Awaitable[Facts]]


@dataclass(slots=True)
class Sample:
    at_s: float
    records_in: float
    bytes_in: float
    bytes_out: float


class Drawn(NamedTuple):
    """A page as it was drawn lately."""

    text: str
    status: int
    at_s: float
    took_s: float
    cost_s: float
    """The shorter of the last two times. The first drawing also compiles the template, and any drawing may have had to
    wait.
    """


@dataclass(slots=True)
class Kept:
    """What the pages of one broker keep from one drawing to the next. Losing it does no harm."""

    cluster: NearCluster
    followed: Counter[str] = field(default_factory=Counter)
    """How many viewers each open page has."""
    history: list[Sample] = field(default_factory=list)
    locks: dict[str, asyncio.Lock] = field(default_factory=dict)
    rendered: dict[str, Drawn] = field(default_factory=dict)
    groups: list[ListedGroup] = field(default_factory=list)
    groups_s: float = -math.inf
    """When the groups were listed."""
    late: facts.AllLateGroups | None = None
    late_s: float = -math.inf


@dataclass(slots=True)
class PageView:
    """One drawing of a page."""

    gateway: Gateway
    kept: Kept
    told: Told
    query: Mapping[str, str]
    match: Mapping[str, str]

    @property
    def cluster(self) -> NearCluster:
        return self.kept.cluster

    @property
    def search(self) -> str:
        return self.query.get("search", "").strip()[:255]

    @property
    def number(self) -> int:
        return _whole(self.query.get("page", "1"), 1)


def _whole(text: str, otherwise: int) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else otherwise


# --- how a page is made ----------------------------------------------------------------------------------------------


def kept_of(gateway: Gateway) -> Kept:
    if gateway.pages is None:
        gateway.pages = Kept(NearCluster(gateway))
    assert isinstance(gateway.pages, Kept)
    return gateway.pages


def framed(gateway: Gateway, template: str, found: Facts, *, here: str = "") -> str:
    """The page with its frame. `here`: its place in the menu, if that is not the name of its template."""
    around = {
        "here": here or template,
        "node_id": gateway.node_id,
        "cluster_id": gateway.image.cluster_id,
        "live": False,
        "missing": [],
        "done": "",
        "search": "",
    }
    return render(f"{template}.html", **{**around, **found})


def showing(
    name: str, view: View, *, live: bool = True
) -> Callable[[Gateway, web.Request], Awaitable[web.StreamResponse]]:
    """The handler of a page. `name` is its template and its place in the menu."""

    async def handle(gateway: Gateway, request: web.Request) -> web.StreamResponse:
        kept = kept_of(gateway)
        if "live" in request.query:
            return await _follow(gateway, kept, request)
        drawn = await shown(gateway, kept, request, LIVE_S / 2)
        return page(drawn.text, status=drawn.status)

    async def shown(gateway: Gateway, kept: Kept, request: web.Request, fresh_s: float) -> Drawn:
        loop = asyncio.get_running_loop()
        query = _query(request)
        key, asked_s = _key(request.path, query), loop.time()
        async with kept.locks.setdefault(key, asyncio.Lock()):
            found = kept.rendered.get(key)
            if found is not None and asked_s - found.at_s < fresh_s and "done" not in query:
                return found
            began_s = loop.time()
            text, status = await _make(gateway, kept, request, query)
            if len(kept.rendered) >= CACHED_MAX:
                kept.rendered.clear()
                kept.locks.clear()
            took_s = loop.time() - began_s
            cost_s = 0.0 if found is None else min(took_s, found.took_s)
            drawn = kept.rendered[key] = Drawn(text, status, loop.time(), took_s, cost_s)
            return drawn

    async def _make(gateway: Gateway, kept: Kept, request: web.Request, query: Mapping[str, str]) -> tuple[str, int]:
        told = Told()
        if not gateway.in_session:
            told.lacks("what the cluster is now", NO_SESSION)
        if not is_compiled(f"{name}.html"):  # compiling may take longer than a turn of the loop
            await gateway.env.blocking(template, f"{name}.html")
        look = PageView(gateway, kept, told, query, request.match_info)
        try:
            found = await view(look)
        except Problem as problem:
            nothing = {"title": problem.kind.title, "why": str(problem)}
            return framed(gateway, "nothing", nothing, here=name), problem.kind.status
        more = {"live": live, "missing": told.missing, "search": look.search, "done": query.get("done", "")}
        return framed(gateway, name, {**more, **found}), 200

    async def _follow(gateway: Gateway, kept: Kept, request: web.Request) -> web.StreamResponse:
        if kept.followed.total() >= STREAMS_MAX:
            return web.Response(status=503, text="too many pages are open")
        headers = {**HEADERS, "Content-Type": "text/event-stream"}
        if request.method == "HEAD":
            return web.Response(headers=headers)
        response = web.StreamResponse(headers=headers)
        key, pause_s = _key(request.path, _query(request)), LIVE_S
        kept.followed[key] += 1
        request[STREAMING] = True
        try:
            await response.prepare(request)
            last = ""
            while not gateway.closing.is_set():
                drawn = await shown(gateway, kept, request, pause_s / 2)
                content = fragment(drawn.text)
                lines = "".join(f"data: {line}\n" for line in content.splitlines()) if content != last else ": \n"
                last = content
                await response.write(f"{lines}\n".encode("utf-8", "replace"))
                try:
                    pause_s = pause_between(drawn.cost_s, len(kept.followed))
                    await asyncio.wait_for(gateway.closing.wait(), pause_s)
                except TimeoutError:
                    continue
        except ConnectionResetError:
            return response  # the page was closed
        finally:
            kept.followed[key] -= 1
            kept.followed += Counter()  # drop pages that have no viewers any more
        return response

    return handle


def _query(request: web.Request) -> dict[str, str]:
    return {key: value for key, value in request.query.items() if key != "live"}


def _key(path: str, query: Mapping[str, str]) -> str:
    return f"{path}?{sorted(query.items())}"


def pause_between(cost_s: float, pages: int) -> float:
    """The pause before an open page is drawn again, if a drawing costs this and so many different pages are open."""
    return min(max(cost_s * pages / SHARE, LIVE_S), LIVE_S_MAX)


# --- the pages -------------------------------------------------------------------------------------------------------


async def overview(look: PageView) -> Facts:
    told, gateway = look.told, look.gateway
    image = gateway.image
    totals = await facts.totals(gateway.here.coordination)
    held = await facts.held_here(gateway)
    placed = await facts.placement(gateway)
    blockers = await facts.blockers_of(told, gateway, look.cluster, held.opened, placed.elsewhere)
    loading = [
        kind
        for kind, coordinators in (
            ("groups", gateway.here.coordination.groups),
            ("transactions", gateway.here.coordination.transactions),
        )
        if not all(shard.loaded for shard in coordinators.shards())
    ]
    hanging = [each for each in blockers if each.hangs]
    late = await _late_groups(look)
    troubles = await facts.troubles(told, gateway, look.cluster)
    findings = [*_severe(look, placed, hanging, troubles), *_mild(placed, late, loading, troubles)]
    now_s = asyncio.get_running_loop().time()
    sample = Sample(now_s, held.records_in, held.bytes_in, held.bytes_out)
    history = look.kept.history
    if not history or sample.at_s - history[-1].at_s >= LIVE_S / 2:
        history.append(sample)
        del history[:-HISTORY]
    return {
        "title": "Overview",
        "findings": findings,
        "severe": any(each.severe for each in findings),
        "groups_known": late.is_known,
        "brokers": len(image.brokers),
        "controller": image.controller_id,
        "topics": len(image.topics),
        "partitions": placed.partitions,
        "totals": totals,
        "hanging": len(hanging),
        "blockers": blockers[:10],
        "now_ms": gateway.env.clock.wall_ms(),
        "curves": [
            ("Records written, a second", _curve(history, "records_in"), "number"),
            ("Bytes written, a second", _curve(history, "bytes_in"), "size"),
            ("Bytes read, a second", _curve(history, "bytes_out"), "size"),
        ],
    }


class Finding(NamedTuple):
    """What is not well, and the pages that tell more of it."""

    what: str
    runbook: str
    """The name of the alert whose page says what to do."""
    pages: Sequence[tuple[str, str]] = ()
    """Names and paths."""
    more: int = 0
    """How many there are beside those named."""
    severe: bool = False


def _finding(what: str, runbook: str, names: Iterable[str], path: str, *, severe: bool = False) -> Finding:
    """A finding about some that are named. `path` is that of the page of each, or of all."""
    every = list(dict.fromkeys(names))
    pages = [(name, path.format(quote(name, safe=""))) for name in every[:NAMED]]
    return Finding(what, runbook, pages, len(every) - len(pages), severe)


def _severe(
    look: PageView, placed: facts.Placement, hanging: list[facts.BlockingTransaction], troubles: list[Troubled]
) -> Iterator[Finding]:
    if not look.gateway.in_session:
        yield Finding(
            "This broker has no session with the metadata store, and leads nothing.", "OncelogSessionLost", severe=True
        )
    for node, replicas in sorted(placed.away.items()):
        what = f"Broker {node} is away. It holds {replicas} replica{'s' if replicas > 1 else ''}. See"
        yield _finding(what, "OncelogBrokerDown", ["brokers"], "/ui/{}", severe=True)
    if placed.leaderless:
        what = f"Partitions without a leader, which nobody can write to or read: {placed.leaderless.total()}, of"
        yield _finding(what, "OncelogOfflinePartitions", placed.leaderless, "/ui/topics/{}", severe=True)
    if placed.refusing:
        what = f"Partitions with too few replicas in sync, so that acks=all is refused: {placed.refusing.total()}, of"
        yield _finding(what, "OncelogUnderMinIsr", placed.refusing, "/ui/topics/{}", severe=True)
    for node, each in troubles:
        if each.kind in FOLDERS:
            yield _finding(f"Broker {node}: {each.says}. See", FOLDERS[each.kind], ["brokers"], "/ui/{}", severe=True)
    if hanging:
        what = f"Transactions that nobody will end, and that readers wait for: {len(hanging)}, in"
        where = (f"{each.partition.topic}-{each.partition.partition}" for each in hanging)
        yield _finding(what, "OncelogHangingTransaction", where, "/ui/transactions#hanging", severe=True)


def _mild(
    placed: facts.Placement, late: facts.AllLateGroups, loading: list[str], troubles: list[Troubled]
) -> Iterator[Finding]:
    between = [f"Broker {node}: {each.says}." for node, each in troubles if each.kind in BETWEEN]
    for what in between[:NAMED]:
        yield Finding(what, "OncelogTrouble")
    if len(between) > NAMED:
        yield Finding(f"`oncelog doctor` tells {len(between) - NAMED} more like that.", "OncelogTrouble")
    if placed.under:
        yield Finding(f"Partitions that lack a replica: {placed.under}.", "OncelogUnderReplicated")
    standing = [name for name, status in late.status.items() if status != "WARN"]
    if standing:
        what = f"Groups that stand still although there is more to read: {len(standing)}."
        yield _finding(what, "OncelogGroupStopped", standing, "/ui/groups/{}")
    if loading:
        what = f"Coordinators of {' and '.join(loading)} are loading: they can't tell everything yet."
        yield Finding(what, "OncelogCoordinatorsLoading")


@dataclass(frozen=True, slots=True)
class Curve:
    now: float | None
    points: str


def _curve(history: list[Sample], what: str, width: int = 240, height: int = 48) -> Curve:
    """The differences a second, as the points of a polyline."""
    rates = [
        max((getattr(later, what) - getattr(earlier, what)) / (later.at_s - earlier.at_s), 0)
        for earlier, later in pairwise(history)
        if later.at_s - earlier.at_s < 10 * LIVE_S
    ]
    if not rates:
        return Curve(None, "")
    top = max(rates) or 1
    step = width / max(len(rates) - 1, 1)
    points = (f"{index * step:.1f},{height - 2 - (height - 4) * rate / top:.1f}" for index, rate in enumerate(rates))
    return Curve(rates[-1], " ".join(points))


async def transactions(look: PageView) -> Facts:
    gateway = look.gateway
    which = look.query.get("which", "open")
    shown, counts = await facts.transactions(
        look.told, gateway, look.cluster, which=which, search=look.search, number=look.number
    )
    blockers = await facts.blockers(look.told, gateway, look.cluster)
    return {
        "title": "Transactions",
        "which": which,
        "cut": shown,
        "counts": counts,
        "hanging": [each for each in blockers if each.hangs],
        "now_ms": gateway.env.clock.wall_ms(),
    }


async def transaction(look: PageView) -> Facts:
    name, gateway, cluster = look.match["id"], look.gateway, look.cluster
    known = await look.told.ask("its coordinator", find_transaction(cluster, name), None)
    root = await look.told.ask("its branches", find_root(cluster, name), None)
    if known is None and not look.told.missing and (root is None or (root.last_token < 0 and not root.open_branches)):
        raise Problem("unknown-transaction", f"no coordinator knows the transactional id {name!r}")
    history = await look.told.ask("its history", tracing.history(cluster, name), tracing.History())
    wanted = look.query.get("began", "")
    past = next((each for each in history.transactions if str(each.began_ms) == wanted), None)
    if past is None and history.transactions:
        past = history.transactions[0]
    is_open = known is not None and known.is_open and past is not None and past.began_ms == known.started_ms
    is_decided = past is not None and past.decided_ms is not None
    partitions = known.partitions if known is not None and is_open else [] if past is None else past.partitions
    shown = facts.cut(partitions, look.number, TRACED_PARTITIONS)
    rows, batches = await _traced(look, past, shown, is_open=is_open and not is_decided)
    now_ms = gateway.env.clock.wall_ms()
    return {
        "title": name,
        "name": name,
        "known": known,
        "age_s": (now_ms - known.started_ms) / 1000 if known and known.is_open and known.started_ms >= 0 else None,
        "root": root,
        "history": history,
        "past": past,
        "is_open": is_open,
        "cut": shown._replace(rows=rows),
        "batches": batches,
        "now_ms": now_ms,
    }


async def _traced(
    look: PageView, past: tracing.Past | None, shown: facts.Cut, *, is_open: bool
) -> tuple[list[dict[str, Any]], list[tracing.Traced]]:
    """For each shown partition, where the transaction lies in it; and all its batches by their time."""
    gateway, cluster = look.gateway, look.cluster
    there = [each for each in shown.rows if gateway.image.partition(each) is not None]
    if past is None or not there:
        return [{"partition": each, "first": None, "offsets": None, "found": None} for each in shown.rows], []
    offsets = await facts.offsets_of(look.told, gateway, cluster, there)
    led = [each for each in there if each in offsets]
    firsts: dict[TopicPartition, int] = {}
    if is_open:
        for each, producers in (await _producers(look, led)).items():
            for producer in producers:
                if producer.producer_id == past.producer_id and producer.current_txn_start_offset >= 0:
                    firsts[each] = producer.current_txn_start_offset
        led = [each for each in led if each in firsts]  # it has written nothing yet in the others
    by_leader = facts.led_by(gateway, led).items()
    asks = {node: tracing.traced(cluster, past, places, firsts) for node, places in by_leader}
    found: dict[TopicPartition, tracing.PartitionTrace] = {}
    for traces in (await look.told.ask_each("what stands in the logs", asks)).values():
        found |= traces
    rows: list[dict[str, Any]] = []
    for each in shown.rows:
        traced = found.get(each)
        first = traced.batches[0].header.base_offset if traced and traced.batches else None
        # A topic that was deleted and made again has nothing of it: what its coordinator wrote names no topic's id.
        is_there = is_open or (traced is not None and (traced.batches or traced.skipped))
        told = offsets.get(each) if is_there else None
        rows.append({"partition": each, "first": first, "offsets": told, "found": traced})
    batches = sorted((batch for traced in found.values() for batch in traced.batches), key=_when)
    return rows, batches[:BATCHES_MAX]


async def _producers(look: PageView, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, list[ProducerState]]:
    """The producers of partitions, as far as their leaders tell."""
    found: dict[TopicPartition, list[ProducerState]] = {}
    asks = {node: producers_of(look.cluster, led) for node, led in facts.led_by(look.gateway, partitions).items()}
    for there in (await look.told.ask_each("producers", asks)).values():
        found |= there
    return found


def _when(batch: tracing.Traced) -> tuple[bool, int]:
    """The order by time, with markers last: brokers stamp these, and clients' clocks may differ."""
    return batch.header.is_control, batch.header.max_timestamp


async def topics(look: PageView) -> Facts:
    gateway = look.gateway
    internal = look.query.get("internal", "") == "1"
    names = sorted(
        name for name in gateway.image.topics if look.search in name and (internal or name not in INTERNAL_TOPICS)
    )
    shown = facts.cut(names, look.number)
    wanted = [
        TopicPartition(name, index)
        for name in shown.rows
        for index in list(gateway.image.topics[name].partitions)[:100]
    ]
    offsets = await facts.offsets_of(look.told, gateway, look.cluster, wanted)
    rows = []
    for name in shown.rows:
        states = gateway.image.topics[name].partitions
        there = [offsets[each] for index in states if (each := TopicPartition(name, index)) in offsets]
        rows.append(
            {
                "name": name,
                "partitions": len(states),
                "replicas": max((len(state.replicas) for state in states.values()), default=0),
                "records": sum(each.high - each.start for each in there) if there else None,
                "held_up": sum(each.held_up for each in there),
                "under": sum(len(state.isr) < len(state.replicas) for state in states.values()),
                "leaderless": sum(facts.leader_of(gateway.image, state) < 0 for state in states.values()),
            }
        )
    return {"title": "Topics", "cut": shown._replace(rows=rows), "internal": internal}


async def topic(look: PageView) -> Facts:
    name, gateway = look.match["topic"], look.gateway
    described = look.gateway.topic(name)
    shown = facts.cut(list(described.partitions), look.number)
    wanted = [TopicPartition(name, index) for index in shown.rows]
    offsets = await facts.offsets_of(look.told, gateway, look.cluster, wanted)
    blockers = await facts.blockers(look.told, gateway, look.cluster, name)
    configs = await look.told.ask("settings", facts.settings_of(look.cluster, gateway.node_id, facts.TOPIC, name), [])
    rows = []
    async for each in in_turns(wanted, BARS_A_TURN):
        held, state = gateway.partitions.get(each), described.partitions[each.partition]
        missing = (node for node in state.replicas if node not in state.isr)
        there = offsets.get(each)
        rows.append(
            {
                "partition": each.partition,
                "state": state,
                "lacks": [str(node) if node in gateway.image.brokers else f"{node} (away)" for node in missing],
                "leader": facts.leader_of(gateway.image, state),
                "offsets": there,
                "aborted": [] if held is None or there is None else there.aborted(held.stable),
                "aborted_count": None if held is None or there is None else held.stable.aborted_from(there.start),
                "blocker": next((found for found in blockers if found.partition == each), None),
                "size": None if held is None else held.log.size_bytes,
            }
        )
    return {
        "title": name,
        "name": name,
        "cut": shown._replace(rows=rows),
        "blockers": blockers,
        "configs": [each for each in configs if not facts.is_default(each)],
        "now_ms": gateway.env.clock.wall_ms(),
    }


async def messages(look: PageView) -> Facts:
    name, gateway = look.match["topic"], look.gateway
    partition = TopicPartition(name, _whole(look.match["partition"], -1))
    look.gateway.state(partition)
    isolation, asked = look.query.get("isolation", "committed"), look.query.get("offset", "")
    if isolation not in ("committed", "uncommitted", "everything"):
        raise Problem("malformed", f"isolation is committed, uncommitted or everything, not {isolation!r}")
    if asked and not (asked.isascii() and asked.isdigit() and len(asked) <= len(str(MAX_LONG))):
        raise Problem("malformed", f"offset is a number of at most {len(str(MAX_LONG))} digits, not {asked!r}")
    found = await facts.offsets_of(look.told, gateway, look.cluster, [partition])
    offsets = found.get(partition)
    rows: list[facts.ShownRecord] = []
    offset = following = 0
    if offsets is not None:
        end = offsets.stable if isolation == "committed" else offsets.high
        first = int(asked) if asked else offsets.start if look.search else max(end - 25, 0)
        offset = min(max(first, offsets.start), end)
        with gateway.holding.of_request() as holder:
            search, held = look.search.encode(), Held(holder)
            rows, following = await look.told.ask(
                "records",
                facts.messages(gateway, look.cluster, partition, offsets, offset, isolation, search, held),
                (rows, offset),
            )
    return {
        "title": f"{name} partition {partition.partition}",
        "name": name,
        "partition": partition.partition,
        "offsets": offsets,
        "isolation": isolation,
        "offset": offset,
        "following": following,
        "before": max(offset - facts.MESSAGES, 0),
        "rows": rows,
        "headers_shown": facts.HEADERS_SHOWN,
    }


async def producers(look: PageView) -> Facts:
    gateway, wanted = look.gateway, look.query.get("topic", "")
    rows = []
    more = False
    if wanted:
        described = look.gateway.topic(wanted)
        partitions = [TopicPartition(wanted, index) for index in list(described.partitions)[: facts.PAGE]]
        found = await _producers(look, partitions)
        rows = [(each, producer) for each in partitions for producer in found.get(each, [])]
        more = len(rows) > PRODUCERS_MAX
    counts = []
    async for name in in_turns(sorted(gateway.image.topics), TOPICS_A_TURN):
        held = (gateway.partitions.topic(name) or {}).values()
        if remembered := sum(len(each.producers) for each in held):
            tallies = [each.tally for each in held]
            counts.append(
                {
                    "topic": name,
                    "producers": remembered,
                    "duplicates": sum(each.duplicates for each in tallies),
                    "out_of_order": sum(each.out_of_order for each in tallies),
                    "fenced": sum(each.fenced for each in tallies),
                    "outside": sum(each.outside_transaction for each in tallies),
                }
            )
    counts.sort(key=lambda row: -int(str(row["producers"])))
    return {
        "title": "Producers",
        "topic": wanted,
        "rows": rows[:PRODUCERS_MAX],
        "more": more,
        "cut": facts.cut(counts, look.number),
        "now_ms": gateway.env.clock.wall_ms(),
    }


async def _listed_groups(look: PageView) -> list[ListedGroup]:
    """All groups. To list ten thousand takes longer than a page may take, so the list is kept for a while."""
    kept, now_s = look.kept, asyncio.get_running_loop().time()
    if now_s - kept.groups_s > GROUPS_FRESH_S:
        brokers = look.gateway.image.brokers
        answers = await look.told.ask_each("groups", {each: list_groups(kept.cluster, [each]) for each in brokers})
        by_name = {group.group_id: group for answer in answers.values() for group in answer}
        listed = [by_name[name] for name in sorted(by_name)]
        if len(answers) < len(brokers):
            return listed
        kept.groups, kept.groups_s = listed, now_s
    return kept.groups


async def _late_groups(look: PageView) -> facts.AllLateGroups:
    """Kept for a while, because other brokers have to be asked; but not without what one of them did not tell."""
    kept, now_s = look.kept, asyncio.get_running_loop().time()
    if kept.late is None or now_s - kept.late_s > GROUPS_FRESH_S:
        missing = look.told.missing
        late = await facts.late_groups(look.told, look.gateway, look.cluster)
        if look.told.missing != missing:
            return late
        kept.late, kept.late_s = late, now_s
    return kept.late


async def groups(look: PageView) -> Facts:
    gateway, which = look.gateway, look.query.get("which", "all")
    late = await _late_groups(look)
    listed = await _listed_groups(look)
    if which == "late":
        by_name = {each.group_id: each for each in listed}
        listed = [by_name[name] for name in late.status if name in by_name]
    shown = await facts.groups(look.told, gateway, look.cluster, listed, search=look.search, number=look.number)
    return {
        "title": "Groups",
        "cut": shown,
        "which": which,
        "late": late,
    }


async def _described(look: PageView, name: str) -> GroupWithMembers | None:
    try:
        return await describe_group(look.cluster, name)
    except ClientFailure as failure:
        if failure.kind is not FailureKind.NOT_FOUND:
            raise
        return None


async def group(look: PageView) -> Facts:
    name, gateway = look.match["group"], look.gateway
    described = await look.told.ask("its members", _described(look, name), None)
    if described is None and not look.told.missing:
        raise Problem("unknown-group", f"no coordinator knows the group {name!r}")
    lags = await facts.lags(look.told, gateway, look.cluster, name)
    readers = {} if described is None else {each: member for member in described.members for each in member.partitions}
    return {
        "title": name,
        "name": name,
        "described": described,
        "lags": lags[:500],
        "all_left": facts.left_of(lags),
        "readers": readers,
        "status": (await _late_groups(look)).of(name),
    }


async def nothing(look: PageView) -> Facts:
    raise Problem("not-found", f"there is no page /ui/{look.match['path']}")


async def brokers(look: PageView) -> Facts:
    image = look.gateway.image
    led = dict.fromkeys(image.brokers, 0)
    held = dict.fromkeys(image.brokers, 0)
    behind = dict.fromkeys(image.brokers, 0)
    async for some in slices_in_turns(facts.placed(image), facts.PARTITIONS_A_TURN):
        for _, _, state in some:
            if state.leader in led:
                led[state.leader] += 1
            for replica in state.replicas:
                if replica in held:
                    held[replica] += 1
                    behind[replica] += replica not in state.isr
    asks = {node: facts.folders_of(look.cluster, node) for node in image.brokers}
    folders = await look.told.ask_each("folders", asks)
    troubles = await facts.troubles(look.told, look.gateway, look.cluster)
    rows = [
        (registered, led[node], held[node], behind[node], folders.get(node, []))
        for node, registered in image.brokers.items()
    ]
    return {
        "title": "Brokers",
        "rows": rows,
        "full": {(node, each.about) for node, each in troubles if each.kind == FULL},
        "away": sorted((await facts.placement(look.gateway)).away.items()),
        "controller": image.controller_id,
        "epoch": image.controller_epoch.value,
    }


async def settings(look: PageView) -> Facts:
    gateway = look.gateway
    configs = await look.told.ask(
        "settings", facts.settings_of(look.cluster, gateway.node_id, facts.BROKER, str(gateway.node_id)), []
    )
    found = [each for each in configs if look.search.lower() in f"{each.name} {each.documentation}".lower()]
    return {
        "title": "Settings",
        "differing": [each for each in found if not facts.is_default(each)],
        "others": [each for each in found if facts.is_default(each)],
    }

"""How long the pages of a large broker take, and how long the longest turn of the loop while they are made, in seconds
of this thread on a processor: what others do on the machine is not counted. Then when Chromium paints each, by
the clock, with what the broker computed added. The status says whether both hold: a page under 100 ms, the first paint
under 300.

python -m tests.ui.measure [TOPICS [GROUPS]]       ten partitions each; default 1540 and 10,000
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from playwright.sync_api import Route, sync_playwright

from service.garbage import Garbage
from service.web.app import TABLES
from service.web.gateway import Gateway
from service.web.metrics import scraper_of
from service.web.pages import asking, moving, views
from service.web.pages.facts import Told
from service.web.pages.render import template
from service.web.pages.views import PageView, View, framed, kept_of
from service.wire.messages import OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitRequestTopic
from tests.service.api.txn_stage import TxnStage, Writer, on_txn_stage
from tests.ui.screenshots import CHROMIUM

PARTITIONS = 10
LOOKS = 5
SETTLED_S = 3.0
"""Until the markers of all that was ended are written and what was made is no news to the collector: no page's work."""
WIDE = 1_000
"""Partitions of the largest transaction."""
PAINTED = "performance.getEntriesByName('first-contentful-paint')"
PAGE_MS, PAINT_MS = 100.0, 300.0
TEMPLATES = {"ended": "transaction"}
STATIC = Path(views.__file__).parent / "static"
made: dict[str, tuple[float, str]] = {}
"""How many milliseconds each page took, and its text."""


async def scene(stage: TxnStage) -> None:
    topics = int(sys.argv[1]) if len(sys.argv) > 1 else 1_540
    groups = int(sys.argv[2]) if len(sys.argv) > 2 else 10_000
    for number in range(topics):
        await stage.create(f"events-{number}", PARTITIONS)
    for number in range(groups):
        parts = [OffsetCommitRequestPartition(index, 0) for index in range(PARTITIONS)]
        topic = OffsetCommitRequestTopic(f"events-{number % topics}", partitions=parts)
        await stage.ask(OffsetCommitRequest(f"group-{number}", topics=[topic]), 9)
    for number in range(50):
        writer = Writer(stage, f"pay-{number}")
        await writer.init()
        await writer.write(f"events-{number}", "x")
    large = Writer(stage, "large")
    await large.init()
    for number in range(WIDE):
        await large.write(f"events-{number}", "x")
    await large.end(commit=True)
    collecting = asyncio.create_task(Garbage().run())
    await asyncio.sleep(SETTLED_S)
    gateway = Gateway(stage.broker, scraper_of(stage.broker))
    gateway.routes = [route for table in TABLES for route in table]
    kept = kept_of(gateway)
    print(f"{topics * PARTITIONS} partitions, {groups} groups")
    for name, view, match in (
        ("overview", views.overview, {}),
        ("transactions", views.transactions, {}),
        ("transaction", views.transaction, {"id": "pay-1"}),
        ("ended", views.transaction, {"id": "large"}),
        ("topics", views.topics, {}),
        ("topic", views.topic, {"topic": "events-1"}),
        ("messages", views.messages, {"topic": "events-1", "partition": "0"}),
        ("producers", views.producers, {}),
        ("groups", views.groups, {}),
        ("group", views.group, {"group": "group-1"}),
        ("brokers", views.brokers, {}),
        ("settings", views.settings, {}),
        ("produce", asking.producing, {"topic": "events-1"}),
        ("playground", asking.playground, {}),
        ("reset", moving.reset_plan, {"group": "group-1"}),
        ("replicas", moving.replicas_plan, {"topic": "events-1"}),
    ):

        async def look(name: str = name, view: View = view, match: Mapping[str, str] = match) -> str:
            told = Told()
            await asyncio.to_thread(template, f"{TEMPLATES.get(name, name)}.html")
            found = await view(PageView(gateway, kept, told, {}, match))
            return framed(gateway, TEMPLATES.get(name, name), {"missing": told.missing, **found})

        taken: list[float] = []
        turns: list[float] = []
        for _ in range(LOOKS):
            began = time.thread_time()
            text = await look()
            taken.append((time.thread_time() - began) * 1000)
        for _ in range(LOOKS):
            kept.groups_s = -math.inf
            ticking = asyncio.create_task(longest_turn())
            await asyncio.sleep(0)
            await look()
            await asyncio.sleep(0)
            ticking.cancel()
            turns.append(await ticking * 1000)
        made[name] = statistics.median(taken), text
        print(
            f"{name:14} {statistics.median(taken):7.1f} ms (first {taken[0]:.1f}), longest turn"
            f" {sorted(turns)[LOOKS // 2]:.1f} ms, {len(text) / 1000:.0f} kB"
        )
    collecting.cancel()


async def longest_turn() -> float:
    """Of the loop, until it is cancelled."""
    longest, last = 0.0, time.thread_time()
    with contextlib.suppress(asyncio.CancelledError):
        while True:
            await asyncio.sleep(0)
            longest, last = max(longest, time.thread_time() - last), time.thread_time()
    return longest


def painted() -> dict[str, float]:
    """When Chromium has painted each page first, in milliseconds; the middle one of several looks. It gets the page at
    once: what the broker computes for it is not in it.
    """

    def answer(route: Route) -> None:
        name = route.request.url.rpartition("/")[2].partition("?")[0]
        if name in made:
            route.fulfill(body=made[name][1], content_type="text/html; charset=utf-8")
        elif (STATIC / name).is_file():
            route.fulfill(path=STATIC / name)
        else:
            route.abort()

    found: dict[str, float] = {}
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for name in made:
            looks = []
            for _ in range(LOOKS):
                context = browser.new_context()  # with an empty cache
                page = context.new_page()
                page.route("**/*", answer)
                page.goto(f"http://broker.example/ui/{name}", wait_until="load")
                page.wait_for_function(f"{PAINTED}.length > 0")
                looks.append(page.evaluate(f"{PAINTED}[0].startTime"))
                context.close()
            found[name] = statistics.median(looks)
        browser.close()
    return found


def verdict() -> bool:
    paints = painted()
    slow = {name: ms for name, (ms, _) in made.items() if ms >= PAGE_MS}
    late = {name: ms + made[name][0] for name, ms in paints.items() if ms + made[name][0] >= PAINT_MS}
    worst = max(made, key=lambda name: made[name][0])
    last = max(paints, key=lambda name: paints[name] + made[name][0])
    for what, wrong, name, ms, most in (
        ("pages", slow, worst, made[worst][0], PAGE_MS),
        ("first paint", late, last, paints[last] + made[last][0], PAINT_MS),
    ):
        held = "holds" if not wrong else f"DOES NOT HOLD for {', '.join(sorted(wrong))}"
        print(f"{what} under {most:.0f} ms: {held}; the slowest is {name} with {ms:.0f} ms")
    return not (slow or late)


with tempfile.TemporaryDirectory() as folder:
    on_txn_stage(Path(folder), scene, broker_session_timeout_ms="600000")
sys.exit(0 if verdict() else 1)

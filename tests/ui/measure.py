"""How long the pages of a large broker take, and how long the longest turn of the loop while they are made, in seconds
of this thread on a processor: what others do on the machine is not counted.

python -m tests.ui.measure [TOPICS [GROUPS]]       ten partitions each; default 1540 and 10,000
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

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

PARTITIONS = 10
LOOKS = 5
SETTLED_S = 3.0
"""Until the markers of all that was ended are written and what was made is no news to the collector: no page's work."""
WIDE = 1_000
"""Partitions of the largest transaction."""
TEMPLATES = {"ended": "transaction"}


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

        taken, turns = [], []
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
        print(
            f"{name:14} {sorted(taken)[LOOKS // 2]:7.1f} ms (first {taken[0]:.1f}), longest turn"
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


with tempfile.TemporaryDirectory() as folder:
    on_txn_stage(Path(folder), scene, broker_session_timeout_ms="600000")

"""How long a scrape of many partitions takes, and how long its longest step holds the loop, in seconds of this
thread on a processor: what others do on the machine is not counted.

    python -m tests.monitoring.measure [TOPICS]      ten partitions each; default 1540
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from pathlib import Path

from monitoring.collectors import Scrape
from monitoring.exposition import Lines
from service.garbage import Garbage
from service.wire.messages import OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitRequestTopic
from tests.service.api.txn_stage import TxnStage, Writer, on_txn_stage

SCRAPES = 5
GROUPS = 1_000
PARTITIONS = 10


async def scene(stage: TxnStage) -> None:
    topics = int(sys.argv[1]) if len(sys.argv) > 1 else 1_540
    for number in range(topics):
        await stage.create(f"events-{number}", PARTITIONS)
    writer = Writer(stage, "pay")
    await writer.init()
    await writer.write("events-0", "x")
    for number in range(GROUPS):
        parts = [OffsetCommitRequestPartition(index, 0) for index in range(PARTITIONS)]
        topic = OffsetCommitRequestTopic(f"events-{number % topics}", partitions=parts)
        await stage.ask(OffsetCommitRequest(f"group-{number}", topics=[topic]), 9)
    collecting = asyncio.create_task(Garbage().run())
    await asyncio.sleep(0)
    scrape = Scrape(stage.broker, version="1")
    for _ in range(SCRAPES):
        lines, steps, size_bytes = Lines(), [], 0
        for work in (scrape.gather(lines), lines.render(openmetrics=True)):
            began = time.thread_time()
            for piece in work:
                size_bytes += len(piece.encode()) if piece else 0
                steps.append(time.thread_time() - began)
                began = time.thread_time()
        steps.sort()
        print(
            f"{topics * PARTITIONS} partitions, {GROUPS * PARTITIONS} committed offsets: {size_bytes / 1e6:.1f} MB in"
            f" {sum(steps):.2f} s, {len(steps)} steps, longest {steps[-1] * 1000:.1f} ms, then {steps[-2] * 1000:.1f}"
        )
    collecting.cancel()


with tempfile.TemporaryDirectory() as folder:
    on_txn_stage(Path(folder), scene, broker_session_timeout_ms="600000")

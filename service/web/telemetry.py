"""Sends spans of the transactions that this broker coordinates, by OTLP over HTTP, to the address in `otlp.endpoint`.

Nothing waits for it, and nothing is tried again for long. Spans that the collector does not take are lost, and counted.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

import msgspec
from aiohttp import ClientError, ClientSession, ClientTimeout

from monitoring.spans import Spans, document
from service.web.metrics import our_version
from txn.tally import TxnTally

logger = logging.getLogger("oncelog.telemetry")

EVERY_S: Final = 1.0
AT_ONCE: Final = 500
"""How many spans are encoded at once, in about 5 ms."""
TIMEOUT_S: Final = 10.0


async def export_spans(tally: TxnTally, endpoint: str, *, broker_id: int) -> None:
    """Send spans for as long as the broker lives."""
    spans = tally.follower = Spans()
    url = f"{endpoint.rstrip('/')}/v1/traces"
    failing = False
    async with ClientSession(timeout=ClientTimeout(total=TIMEOUT_S)) as session:
        while True:
            await asyncio.sleep(EVERY_S)
            while taken := spans.take(AT_ONCE):
                told = document(taken, instance=str(broker_id), version=our_version())
                try:
                    async with session.post(
                        url, data=msgspec.json.encode(told), headers={"Content-Type": "application/json"}
                    ) as answer:
                        answer.raise_for_status()
                except (ClientError, TimeoutError, OSError) as error:
                    spans.lost += len(taken)
                    if not failing:
                        logger.warning("spans can't be sent to %s: %s", url, error or type(error).__name__)
                    failing = True
                    break
                if failing:
                    logger.warning("spans are sent to %s again; %d were lost", url, spans.lost)
                failing = False

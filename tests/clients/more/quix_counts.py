"""quixstreams with exactly-once: numbers the messages of each key and keeps the count in its state, until it is killed.

Started by quix.py, in an environment of its own, with bootstrap address, group, source, target and a folder for state.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from quixstreams import Application  # type: ignore[import-not-found]

PAUSE_SECONDS = 0.01

bootstrap, group, source, target, folder = sys.argv[1:]
application = Application(
    broker_address=bootstrap,
    consumer_group=group,
    processing_guarantee="exactly-once",
    auto_offset_reset="earliest",
    state_dir=folder,
    commit_every=150,
    consumer_extra_config={"session.timeout.ms": 6000, "heartbeat.interval.ms": 1000},
    producer_extra_config={"transaction.timeout.ms": 10000},
)


def numbered(value: dict[str, int], state: Any) -> dict[str, int]:
    time.sleep(PAUSE_SECONDS)  # slow enough to be killed half way
    count = state.get("count", 0) + 1
    state.set("count", count)
    return {**value, "count": count}


messages = application.dataframe(application.topic(source, key_deserializer="str", value_deserializer="json"))
messages.apply(numbered, stateful=True).to_topic(application.topic(target, key_serializer="str"))
application.run()

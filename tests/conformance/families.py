"""All conversations, and how they are held with one broker."""

from __future__ import annotations

import concurrent.futures
import json
from collections.abc import Sequence
from pathlib import Path

from tests.conformance.compare import Transcripts
from tests.conformance.conversations import (
    classic_groups,
    committed_offsets,
    consumer_groups,
    fetch,
    frames,
    metadata,
    offsets,
    produce,
    security,
    settings,
    topics,
    transactions,
)
from tests.conformance.talk import Conversation, Step, hold
from tests.peers.process import QUICK_SETTINGS

FAMILIES: dict[str, tuple[Conversation, ...]] = {
    "frames": frames.CONVERSATIONS,
    "metadata": metadata.CONVERSATIONS,
    "topics": topics.CONVERSATIONS,
    "settings": settings.CONVERSATIONS,
    "security": security.CONVERSATIONS,
    "produce": produce.CONVERSATIONS,
    "fetch": fetch.CONVERSATIONS,
    "offsets": offsets.CONVERSATIONS,
    "classic_groups": classic_groups.CONVERSATIONS,
    "consumer_groups": consumer_groups.CONVERSATIONS,
    "committed_offsets": committed_offsets.CONVERSATIONS,
    "transactions": transactions.CONVERSATIONS,
}
RECORDED = Path(__file__).with_name("recorded")

# What both brokers are started with. The node number appears in answers.
EQUAL_SETTINGS = {
    **QUICK_SETTINGS,
    "node.id": "1",
    # As Kafka: what the operating system has taken is readable. (Kafka ignores a key that it does not know.)
    "log.durability": "os",
    # What conversations write is old; nothing may be deleted for its age while they last.
    "log.initial.task.delay.ms": "3600000",
    "log.retention.check.interval.ms": "3600000",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
}

# Conversations mostly wait: for long polls, for rebalances, for a connection to stay silent.
AT_ONCE = 4
# What settings change, the whole broker shows. Of several producers whose transactions Kafka verifies in one go, all
# are answered in the words of the first one's version: TRANSACTION_ABORTABLE for INVALID_TXN_STATE, or the reverse.
ONE_BY_ONE = ("settings", "transactions")


def hold_family(family: str, port: int, *, only: str = "") -> Transcripts:
    """All conversations of a family (those whose name contains `only`), several at a time where they may."""
    chosen = [one for one in FAMILIES[family] if only in f"{family}.{one.__name__}"]

    def talk(conversation: Conversation) -> Sequence[Step]:
        return hold(conversation, family=family, port=port)

    with concurrent.futures.ThreadPoolExecutor(1 if family in ONE_BY_ONE else AT_ONCE) as pool:
        held = list(pool.map(talk, chosen))
    return {f"{family}.{one.__name__}": steps for one, steps in zip(chosen, held, strict=True)}


def read_recorded(family: str) -> Transcripts:
    found: Transcripts = json.loads((RECORDED / f"{family}.json").read_text())
    return found


def write_recorded(family: str, transcripts: Transcripts) -> None:
    """One step a line, so that a change shows as a change of lines."""
    lines = []
    for name, steps in transcripts.items():
        rows = ",\n".join(f"    {json.dumps(step, ensure_ascii=False)}" for step in steps)
        lines.append(f"  {json.dumps(name)}: [\n{rows}\n  ]")
    RECORDED.mkdir(exist_ok=True)
    (RECORDED / f"{family}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")

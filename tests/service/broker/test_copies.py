"""Replicas are asked for their copies in turns of the loop, however many partitions there are."""

import asyncio
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any, cast

import pytest

from log.ids import TopicPartition
from service.broker import copies as copies_module
from service.broker.copies import Copies
from service.broker.peers import PeerAway
from service.wire.messages import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from tests.service.web.kit import turns_of

MANY = 100


class Peers:
    def __init__(self, *, away: bool) -> None:
        self.away = away

    async def ask(self, broker: int, request: ListOffsetsRequest) -> ListOffsetsResponse:
        if self.away:
            raise PeerAway
        topic = ListOffsetsTopicResponse("orders", [ListOffsetsPartitionResponse(each) for each in range(MANY)])
        return ListOffsetsResponse(topics=[topic])


def asking(what: str) -> Coroutine[Any, Any, object]:
    tasks: Any = SimpleNamespace(spawn=lambda name, work: asyncio.ensure_future(work))
    copies = Copies(cast(Any, Peers(away=what != "an answer")), tasks)
    if what == "an answer":
        return copies._ask(1, {"orders": list(range(MANY))}, {})
    candidates = {TopicPartition("orders", index): (1,) for index in range(MANY)}
    return copies.best_first(candidates) if what == "an order" else copies.without_any(candidates)


@pytest.mark.parametrize(("what", "steps"), [("an answer", 1), ("an order", 1), ("those without anything", 2)])
def test_others_have_their_turns_while_replicas_of_very_many_partitions_are_asked(
    monkeypatch: pytest.MonkeyPatch, what: str, steps: int
) -> None:
    """With 15,400 partitions that could be led only uncleanly the order alone took 13 ms."""
    monkeypatch.setattr(copies_module, "NAMED_A_TURN", 1)
    assert turns_of(asking(what)) >= steps * (MANY - 1)

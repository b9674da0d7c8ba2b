"""What a member does with commits that its coordinator does not take."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from log.ids import TopicPartition
from service.client import member
from service.client.cluster import Cluster
from service.client.failures import ClientFailure
from service.client.member import Member
from service.client.pool import Address
from service.wire.error_codes import ErrorCode

READ = {TopicPartition("orders", 0): 7}


@pytest.fixture
def codes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What the coordinator answers, one code after another; the last one for ever."""
    told: list[int] = []

    async def answer(*_: object, **__: object) -> int:
        return told.pop(0) if len(told) > 1 else told[0]

    monkeypatch.setattr(member, "commit_offsets", answer)
    monkeypatch.setattr(member, "RETRY_PAUSE_S", 0.001)
    return told


def _member(*, timeout_s: float = 10.0) -> Member:
    return Member(Cluster([Address("localhost", 9092)], client_id="test", timeout_s=timeout_s), "readers", ["orders"])


@pytest.mark.parametrize("moved", [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR])
def test_a_coordinator_that_loads_or_moves_gets_the_offsets_again(codes: list[int], moved: ErrorCode) -> None:
    """The last commit of `oncelog consume -g` was dropped when its broker had just started, and it ended with 0."""
    codes += [moved, moved, ErrorCode.NONE]
    asyncio.run(_member().commit(READ))
    assert codes == [ErrorCode.NONE]


def test_a_coordinator_that_never_loads_is_a_failure(codes: list[int]) -> None:
    codes += [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS]
    with pytest.raises(ClientFailure, match="COORDINATOR_LOAD_IN_PROGRESS"):
        asyncio.run(_member(timeout_s=0.01).commit(READ))


@pytest.mark.parametrize(
    ("answers", "is_done"),
    [
        ([ErrorCode.COORDINATOR_LOAD_IN_PROGRESS], False),
        ([ErrorCode.NOT_COORDINATOR], False),
        ([ErrorCode.ILLEGAL_GENERATION], True),
        ([ErrorCode.NONE], True),
    ],
)
def test_offsets_that_can_be_committed_later_are_kept(codes: list[int], answers: Sequence[int], is_done: bool) -> None:
    codes += answers
    assert asyncio.run(_member().commit_if_reachable(READ)) is is_done

"""Flushing that fails takes the folder out of service, whatever it failed of."""

from __future__ import annotations

import asyncio

import pytest

from log.disk import DiskFault
from service.broker.flusher import Flusher


class Failing:
    def __init__(self, error: Exception) -> None:
        self._error = error

    async def flush(self) -> None:
        raise self._error


def test_a_failed_disk_is_told_and_the_worker_ends() -> None:
    faults: list[DiskFault] = []
    flusher = Flusher(faults.append)
    fault = DiskFault(5, "an I/O error")
    flusher.request(Failing(fault))
    asyncio.run(asyncio.wait_for(flusher.run(), 5))
    assert faults == [fault]


def test_an_unforeseen_failure_is_told_like_a_failed_disk_and_not_hidden() -> None:
    faults: list[DiskFault] = []
    flusher = Flusher(faults.append)
    flusher.request(Failing(KeyError("a bug")))
    with pytest.raises(KeyError):
        asyncio.run(asyncio.wait_for(flusher.run(), 5))
    assert len(faults) == 1 and "KeyError" in str(faults[0])

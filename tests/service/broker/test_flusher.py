"""Flushing that fails takes the folder out of service, whatever it failed of."""

from __future__ import annotations

import asyncio
import errno

import pytest

import service.broker.flusher
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


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE])
def test_what_passes_is_flushed_again_by_the_same_workers(monkeypatch: pytest.MonkeyPatch, error: int) -> None:
    monkeypatch.setattr(service.broker.flusher, "AGAIN_S", 0)
    faults: list[DiskFault] = []

    class Passing:
        attempts = 0
        flushed = asyncio.Event()

        async def flush(self) -> None:
            self.attempts += 1
            if self.attempts < 3:
                raise DiskFault(error, "not now")
            self.flushed.set()

    async def main() -> None:
        flusher, partition = Flusher(faults.append), Passing()
        flusher.request(partition)
        worker = asyncio.ensure_future(flusher.run())
        await asyncio.wait_for(partition.flushed.wait(), 5)
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)
        assert partition.attempts == 3

    asyncio.run(main())
    assert [fault.errno for fault in faults] == [error, error]


def test_an_unforeseen_failure_is_told_like_a_failed_disk_and_not_hidden() -> None:
    faults: list[DiskFault] = []
    flusher = Flusher(faults.append)
    flusher.request(Failing(KeyError("a bug")))
    with pytest.raises(KeyError):
        asyncio.run(asyncio.wait_for(flusher.run(), 5))
    assert len(faults) == 1 and "KeyError" in str(faults[0])

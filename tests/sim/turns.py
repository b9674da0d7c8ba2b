"""Very much is done in several turns of the loop. In half of the runs little is done so, too: each partition, batch,
guard and marker takes a turn of its own, and anything may change in between. In some runs ordinary batches are taken
for large ones.
"""

import asyncio
import contextlib
import random
from collections.abc import Iterator
from typing import Any, Final, Literal
from unittest import mock

import log.compaction
import log.durability
import log.laying
import log.relocation
import log.segment
import log.snapshots
import service.api.fetch
import service.api.produce
import service.broker.closing
import service.broker.holdings
import service.broker.marker_courier
import service.broker.reading
import service.broker.replication
import service.broker.transaction_gate
import service.broker.writing
import service.cluster.image
import txn.coordinator
from log.durability import LogDurability
from service.turns import Turn

SHORT: Final[tuple[tuple[Any, str, Any], ...]] = (
    (log.compaction, "REMOVED_A_TURN", 1),
    (log.durability, "REMOVED_A_STEP", 1),
    (log.relocation, "PIECE_BYTES", 200),
    (log.segment, "REBUILT_AT_ONCE_BYTES", 0),
    (log.segment, "REBUILT_BATCHES", 1),
    (log.segment, "WALKED_BATCHES", 40),
    (log.snapshots, "REMOVED_A_TURN", 1),
    (service.api.fetch, "READ_AT_ONCE", 1),
    (service.api.produce, "NAMED_A_TURN", 1),
    (service.broker.closing, "SYNCED_TOGETHER", 1),  # or the whole disk would hardly ever be synced at once
    (service.broker.holdings, "AT_ONCE", 0),
    (service.broker.holdings, "Turn", lambda at_once: Turn(1)),
    (service.broker.marker_courier, "TOLD_A_TURN", 1),
    (service.broker.marker_courier, "WRITTEN_AT_ONCE", 0),
    (service.broker.marker_courier, "WRITTEN_A_TURN", 1),
    (service.broker.reading, "LISTED_AT_ONCE", 1),
    (service.broker.reading, "READ_AT_ONCE", 1),
    (service.broker.replication, "ASKED_A_TURN", 1),
    (service.broker.transaction_gate, "ASKED_TOGETHER", 1),
    (service.broker.transaction_gate, "GUARDS_A_TURN", 1),
    (service.broker.writing, "WRITES_AT_ONCE", 1),
    (service.cluster.image, "APPLIED_A_TURN", 1),
    (txn.coordinator, "END_AT_ONCE", 1),
    (txn.coordinator, "LOOKED_AT_ONCE", 1),
)

LARGE: Final = (61, 200, 500, 2_000)
"""Batches longer than this are laid beside the log: in some runs nearly all, in others a few."""


@contextlib.contextmanager
def short_turns(chance: random.Random) -> Iterator[None]:
    with contextlib.ExitStack() as patches:
        if chance.random() < 0.5:
            for module, name, value in SHORT:
                patches.enter_context(mock.patch.object(module, name, value))
        if chance.random() < 0.4:
            patches.enter_context(mock.patch.object(log.laying, "LARGE_BYTES", chance.choice(LARGE)))
        yield


BUSY_ODDS, BUSY_SECONDS = 0.4, 0.4


@contextlib.contextmanager
def busy_logs(chance: random.Random, waited_for: set[str]) -> Iterator[None]:
    """Who wants a log for himself often waits for it, as if somebody else were at work on it: what he decided before
    may be wrong then. `waited_for` tells of whose folders.
    """

    class BusyLock(asyncio.Lock):
        def __init__(self, folder: str) -> None:
            super().__init__()
            self._folder = folder

        async def acquire(self) -> Literal[True]:
            await super().acquire()
            if chance.random() < BUSY_ODDS:
                waited_for.add(self._folder)
                try:
                    await asyncio.sleep(BUSY_SECONDS * chance.random())
                except BaseException:
                    self.release()
                    raise
                finally:
                    waited_for.discard(self._folder)
            return True

    def alone(durability: LogDurability) -> asyncio.Lock:
        if durability._lock is None:
            durability._lock = BusyLock(durability._log.folder)
        return durability._lock

    with mock.patch.object(LogDurability, "alone", alone):
        yield

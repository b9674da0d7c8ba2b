"""Fresh producer ids for this broker: blocks reserved in the metadata store before their first id leaves."""

import asyncio
import logging

from idempotence.producer_ids import ProducerIds
from service.cluster.controller import AllocateProducerIds
from service.cluster.metadata import ClusterMetadata, MetadataLost
from service.ports import Env

logger = logging.getLogger("oncelog.broker")


class ProducerIdSource:
    def __init__(self, metadata: ClusterMetadata, env: Env) -> None:
        self._metadata = metadata
        self._env = env
        self._supply = ProducerIds()
        self._reserving = asyncio.Lock()

    def take(self) -> int | None:
        """One at once, or None while there is none: a block is on its way then."""
        taken = self._supply.take()
        if self._supply.running_low and not self._reserving.locked():
            self._env.tasks.spawn("reserve producer ids", self._refill_ahead())
        return taken

    async def _refill_ahead(self) -> None:
        try:
            await self.refill()
        except MetadataLost as lost:
            logger.info("producer ids can't be reserved now: %s", lost)  # who finds none left reserves them, or is told

    async def refill(self) -> None:
        """Reserve a further block if the supply runs low."""
        async with self._reserving:
            if self._supply.running_low:
                self._supply.add(await self._metadata.execute(AllocateProducerIds()))

    async def next(self) -> int:
        """An id that nobody ever had. Raises what the metadata store raises when it can't be reached."""
        while (taken := self._supply.take()) is None:
            await self.refill()
        return taken

"""Fresh producer ids for this broker. A block of ids is reserved in the metadata store before the first id of the block
is given out.
"""

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
        """An id, or None if there is none right now; a block is being reserved then."""
        taken = self._supply.take()
        if self._supply.running_low and not self._reserving.locked():
            self._env.tasks.spawn("reserve producer ids", self._refill_ahead())
        return taken

    async def _refill_ahead(self) -> None:
        try:
            await self.refill()
        except MetadataLost as lost:
            logger.info("producer ids can't be reserved now: %s", lost)  # `next` reserves a block itself, or raises

    async def refill(self) -> None:
        """Reserve a further block if the supply runs low."""
        async with self._reserving:
            if self._supply.running_low:
                self._supply.add(await self._metadata.execute(AllocateProducerIds()))

    async def next(self) -> int:
        """An id that was never given out before. Raises `MetadataLost` if the metadata store can't be reached."""
        while (taken := self._supply.take()) is None:
            await self.refill()
        return taken

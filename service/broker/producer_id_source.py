"""Fresh producer ids for this broker. A block of ids is reserved in the metadata store before the first id of the block
is given out.

What always holds: there is one question to the store at a time, and all who need its answer share it. A store that is
silent refuses a question after half a minute. If each asked in turn, the tenth would wait for five.
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
        self._reserved: asyncio.Future[None] | None = None

    def take(self) -> int | None:
        """An id, or None if there is none right now; a block is being reserved then."""
        taken = self._supply.take()
        if self._supply.running_low:
            self._reserve()
        return taken

    def _reserve(self) -> asyncio.Future[None]:
        if self._reserved is None:
            self._reserved = asyncio.get_running_loop().create_future()
            self._env.tasks.spawn("reserve producer ids", self._ask_store(self._reserved))
        return self._reserved

    async def _ask_store(self, reserved: asyncio.Future[None]) -> None:
        try:
            self._supply.add(await self._metadata.execute(AllocateProducerIds()))
            reserved.set_result(None)
        except MetadataLost as lost:
            logger.info("producer ids can't be reserved now: %s", lost)
            reserved.set_exception(lost)
            reserved.exception()  # marks the error as seen: perhaps nobody waits
        except Exception as error:  # those who wait must not take it for their own cancellation
            logger.exception("producer ids can't be reserved now")
            reserved.set_exception(error)
            reserved.exception()
        finally:
            self._reserved = None
            reserved.cancel()  # unless it was answered

    async def refill(self) -> None:
        """Reserve a further block if the supply runs low. Raises `MetadataLost` if the metadata store can't be
        reached.
        """
        if self._supply.running_low:
            await asyncio.shield(self._reserve())

    async def next(self) -> int:
        """An id that was never given out before. Raises `MetadataLost` if the metadata store can't be reached."""
        while (taken := self._supply.take()) is None:
            await self.refill()
        return taken

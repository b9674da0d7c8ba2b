"""Producer ids are reserved ahead of need, and again after a store that could not be asked."""

import asyncio
from types import SimpleNamespace
from typing import Any

from idempotence.producer_ids import ProducerIdBlock
from service.broker.producer_id_source import ProducerIdSource
from service.cluster.controller import AllocateProducerIds
from service.cluster.metadata import MetadataLost
from service.ports import LoopTasks
from service.wire.error_codes import ErrorCode


def test_a_store_that_can_not_be_asked_ends_no_task_and_is_asked_again() -> None:
    failed: list[BaseException] = []

    async def main() -> None:
        away = True

        async def execute(command: AllocateProducerIds) -> ProducerIdBlock:
            if away:
                raise MetadataLost(ErrorCode.NOT_CONTROLLER, "the session is over")
            return ProducerIdBlock(1000, 1000)

        env: Any = SimpleNamespace(tasks=LoopTasks(lambda name, error: failed.append(error)))
        metadata: Any = SimpleNamespace(execute=execute)
        source = ProducerIdSource(metadata, env)
        assert source.take() is None
        for _ in range(3):
            await asyncio.sleep(0)
        away = False
        assert source.take() is None
        for _ in range(3):
            await asyncio.sleep(0)
        assert source.take() == 1000
        await env.tasks.cancel_all()

    asyncio.run(main())
    assert failed == []

"""Producer ids are reserved ahead of need, and again after a store that could not be asked."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

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


@pytest.mark.parametrize("why", [MetadataLost(ErrorCode.NOT_CONTROLLER, "the session is over"), RuntimeError("a bug")])
def test_all_who_wait_for_ids_are_refused_together_when_the_store_can_not_be_asked(why: Exception) -> None:
    """If each asked the store in turn, and each question took the store's whole patience, the last would wait for ever.
    The next question is a new one.
    """

    async def main() -> None:
        asked: list[asyncio.Future[ProducerIdBlock]] = []

        async def execute(command: AllocateProducerIds) -> ProducerIdBlock:
            asked.append(asyncio.get_running_loop().create_future())
            return await asked[-1]

        env: Any = SimpleNamespace(tasks=LoopTasks(lambda name, error: None))
        source = ProducerIdSource(cast("Any", SimpleNamespace(execute=execute)), env)
        waiting = [asyncio.create_task(work) for work in (source.next(), source.next(), source.refill(), source.next())]
        await asyncio.sleep(0.01)
        waiting[0].cancel()
        await asyncio.sleep(0.01)
        asked[0].set_exception(why)
        told = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 1)
        assert [type(each) for each in told] == [asyncio.CancelledError, *[type(why)] * 3]
        later = asyncio.create_task(source.next())
        await asyncio.sleep(0.01)
        asked[1].set_result(ProducerIdBlock(1000, 1000))
        assert (await later, len(asked)) == (1000, 2)

    asyncio.run(main())

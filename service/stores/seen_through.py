"""Work that goes on when its caller is cancelled. A store's change must reach all watchers once it was begun."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from service.ports import Env

T = TypeVar("T")


async def seen_through(env: Env, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`. The work is done to its end even if the caller is cancelled."""
    answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    async def job() -> None:
        try:
            result = await work
        except Exception as error:  # noqa: BLE001 - the caller is told
            if not answer.done():
                answer.set_exception(error)
        else:
            if not answer.done():
                answer.set_result(result)
        finally:
            if not answer.done():
                answer.cancel()

    env.tasks.spawn("metadata store", job())
    return await answer

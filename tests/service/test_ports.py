"""The tasks of a process."""

import asyncio

from service.ports import LoopTasks


def test_a_task_that_begins_while_others_end_is_ended_too() -> None:
    """It would go on while a broker that stops closes its logs."""

    async def main() -> None:
        tasks = LoopTasks(lambda name, error: None)
        ending, begun = asyncio.Event(), asyncio.Event()

        async def ends_slowly() -> None:
            try:
                await asyncio.sleep(3600)
            finally:
                ending.set()
                await begun.wait()

        async def begins_another() -> None:
            await ending.wait()
            tasks.spawn("another", asyncio.sleep(3600))
            begun.set()
            await asyncio.sleep(3600)

        tasks.spawn("first", begins_another())
        tasks.spawn("second", ends_slowly())
        await asyncio.sleep(0)
        await tasks.cancel_all()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())


def test_tasks_that_begin_others_again_and_again_end_too() -> None:
    """Two of them kept the end busy with what they had begun last."""

    async def child() -> None:
        await asyncio.sleep(60)

    async def main() -> None:
        tasks = LoopTasks(lambda name, error: None)

        async def parent() -> None:
            while True:
                await asyncio.wait([tasks.spawn("child", child())])

        for _ in range(2):
            tasks.spawn("parent", parent())
        await asyncio.sleep(0)
        async with asyncio.timeout(30):
            await tasks.cancel_all()

    asyncio.run(main())

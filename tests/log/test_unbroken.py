"""A change of several steps goes on to its end while its caller is cancelled, however often."""

import asyncio
from contextlib import suppress

import pytest

from log.unbroken import unbroken


@pytest.mark.parametrize("times", [1, 2, 3])
@pytest.mark.parametrize("fails", [False, True])
def test_a_caller_that_is_cancelled_again_still_waits_for_the_end(times: int, fails: bool) -> None:
    """Found by the simulation: after the second time the caller went on, and nobody saw how the change ended."""
    unseen: list[dict[str, object]] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: unseen.append(context))
        steps, may_end = [], asyncio.Event()

        async def change() -> None:
            await may_end.wait()
            steps.append("changed")
            if fails:
                raise OSError("the disk has failed")

        async def call() -> None:
            try:
                await unbroken(change())
            finally:
                steps.append("the caller goes on")

        caller = asyncio.create_task(call())
        for _ in range(times):
            await asyncio.sleep(0.01)
            caller.cancel()
        await asyncio.sleep(0.01)
        may_end.set()
        with pytest.raises(asyncio.CancelledError):
            await caller
        assert steps == ["changed", "the caller goes on"]

    asyncio.run(main())
    assert not unseen


@pytest.mark.parametrize("times", [1, 2])
def test_what_waits_for_what_never_comes_is_cut_short(times: int) -> None:
    async def main() -> None:
        caller = asyncio.create_task(unbroken(asyncio.Event().wait(), patience_s=0.05))
        for _ in range(times):
            await asyncio.sleep(0.01)
            caller.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.wait_for(caller, 10)
        assert caller.cancelled()

    asyncio.run(main())

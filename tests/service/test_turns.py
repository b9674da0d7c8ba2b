"""Long work in turns: counting, and freeing what nobody needs any more. What is made later, without a task."""

import asyncio
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from log.steps import done_at_once
from service.turns import COUNTED_A_TURN, FREED_A_TURN, MadeLater, Steps, Thing, counted, done_in_turns, freed
from service.wire.messages import (
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsResponse,
    MetadataRequest,
    MetadataRequestTopic,
)

MANY = 40 * FREED_A_TURN


def results_of(steps: Steps[Thing], look: Callable[[], Any]) -> list[Any]:
    """What `look` says after each step."""
    seen: list[Any] = []
    while True:
        try:
            next(steps)
        except StopIteration:
            return seen
        seen.append(look())


def test_many_things_are_counted_in_turns() -> None:
    names = ["one", "other"] * COUNTED_A_TURN
    assert len(results_of(counted(names), lambda: None)) == 2
    assert done_at_once(counted(names)) == {"one": COUNTED_A_TURN, "other": COUNTED_A_TURN}
    assert results_of(counted(["one"]), lambda: None) == []


class Counted:
    """Says how many of them there are."""

    alive = 0

    def __init__(self) -> None:
        Counted.alive += 1

    def __del__(self) -> None:
        Counted.alive -= 1


LONG: dict[str, Callable[[], Any]] = {
    "a list": lambda: [Counted() for _ in range(MANY)],
    "a tuple": lambda: tuple([Counted() for _ in range(MANY)]),
    "a mapping": lambda: {number: Counted() for number in range(MANY)},
    "lists": lambda: [[Counted() for _ in range(10)] for _ in range(MANY // 10)],
    "a message": lambda: MetadataRequest([Counted() for _ in range(MANY)]),  # type: ignore[misc]
    "parts of a message": lambda: MetadataRequest(
        [MetadataRequestTopic([Counted() for _ in range(10)]) for _ in range(MANY // 10)]  # type: ignore[arg-type]
    ),
}


@pytest.mark.parametrize("what", LONG)
def test_what_is_long_is_freed_in_turns(what: str) -> None:
    made = [LONG[what]()]
    assert Counted.alive == MANY
    left = [MANY, *results_of(freed(made), lambda: Counted.alive)]
    assert Counted.alive == 0
    assert max(more - fewer for more, fewer in pairwise(left)) <= MANY / 2
    assert len(left) >= 3


def test_what_others_hold_is_left_to_them() -> None:
    configs = [CreatableTopicConfigs("key") for _ in range(10)]
    results = [CreatableTopicResult(str(number), configs=configs) for number in range(MANY)]
    first = results[0]
    answer = CreateTopicsResponse(topics=results)
    made: list[Any] = [answer]
    done_at_once(freed(made))
    assert len(answer.topics) == MANY
    del answer, results
    made = [CreateTopicsResponse(topics=[first] * 3)]
    done_at_once(freed(made))
    assert (first.name, len(first.configs or ())) == ("0", 10)


def test_what_is_made_of_a_future_can_be_awaited() -> None:
    async def slowly(number: int) -> int:
        await asyncio.sleep(0.01)
        return number + 1

    async def of(later: MadeLater[int]) -> int:
        return await later

    async def main() -> None:
        loop = asyncio.get_running_loop()
        found: list[asyncio.Future[int]] = [loop.create_future() for _ in range(5)]
        at_once = asyncio.create_task(of(MadeLater(found[0], lambda found: found.result() + 1)))
        in_a_while = asyncio.create_task(of(MadeLater(found[1], lambda found: slowly(found.result()))))
        failed = asyncio.create_task(of(MadeLater(found[2], lambda found: found.result())))
        made_of_failure = asyncio.create_task(of(MadeLater(found[3], lambda found: int(found.exception() is not None))))
        unwanted = asyncio.create_task(of(MadeLater(found[4], lambda found: found.result())))
        await asyncio.sleep(0.01)
        assert not at_once.done()
        found[0].set_result(1)
        found[1].set_result(2)
        found[2].set_exception(ValueError())
        found[3].set_exception(ValueError())
        unwanted.cancel()
        assert await at_once == 2
        assert not in_a_while.done()
        assert await in_a_while == 3
        with pytest.raises(ValueError):
            await failed
        assert await made_of_failure == 1
        with pytest.raises(asyncio.CancelledError):
            await unwanted
        assert not found[4].done()  # who has given up takes nothing from others

    asyncio.run(main(), debug=True)


async def sliced(name: str, slices: int, seen: list[str]) -> None:
    def steps() -> Steps[None]:
        for _ in range(slices):
            seen.append(name)
            yield

    await done_in_turns(steps())


async def with_ends_of_turns(works: list[asyncio.Task[None]], seen: list[str]) -> None:
    """Notes in `seen` where a turn of the loop ends, until all these works are done."""
    while not all(work.done() for work in works):
        seen.append("|")
        await asyncio.sleep(0)


def test_of_several_long_works_one_goes_on_in_each_turn() -> None:
    async def scene() -> list[str]:
        seen: list[str] = []
        works = [asyncio.ensure_future(sliced(name, 5, seen)) for name in "abc"]
        await with_ends_of_turns(works, seen)
        return seen

    turns = "".join(asyncio.run(scene())).split("|")
    first, *later = [turn for turn in turns if turn]
    assert first == "abc", "a work begins at once"
    assert later == list("abcabcabcabc"), "then they take turns"


def test_a_long_work_alone_goes_on_in_every_turn() -> None:
    async def scene() -> list[str]:
        seen: list[str] = []
        await with_ends_of_turns([asyncio.ensure_future(sliced("a", 5, seen))], seen)
        return seen

    assert "".join(asyncio.run(scene())).strip("|") == "a|a|a|a|a"


def test_a_long_work_that_is_cancelled_as_it_waits_holds_up_no_other() -> None:
    async def scene() -> list[str]:
        seen: list[str] = []
        works = [asyncio.ensure_future(sliced(name, 5, seen)) for name in "abc"]
        await asyncio.sleep(0)
        works[1].cancel()
        await with_ends_of_turns(works, seen)
        return seen

    seen = asyncio.run(scene())
    assert [seen.count(name) for name in "abc"] == [5, 1, 5]

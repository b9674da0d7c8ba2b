"""Long work in several turns of the loop: one request may name 60,000 things, and an answer may have any number of
them.

A coroutine waits between two turns. What can't wait, such as a decision of a machine, is a generator of steps: it
yields when its turn is over, and the functions below let others have a turn then.

What always holds: of all the long works of a loop that wait here, one goes on in each turn. If all did, a turn would
take as long as a slice of each: while partitions move there are a dozen of them.
"""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterable
from itertools import islice
from sys import getrefcount
from typing import Any, Final, Generic, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

Thing = TypeVar("Thing")
Found = TypeVar("Found")
Steps: TypeAlias = Generator[None, None, Thing]

NAMED_A_TURN: Final = 500
"""How many things that a request names are looked up, or are answered, in one turn. Each takes a few microseconds."""

COUNTED_A_TURN: Final = 2_500
FREED_A_TURN: Final = 500


class Turn:
    """Counts what is done in one turn of the loop after the other."""

    __slots__ = ("_left", "_room")

    def __init__(self, at_once: int) -> None:
        self._left = self._room = at_once

    def is_over(self, done: int = 1) -> bool:
        """Note that so much more is done. Returns whether others are to have a turn now."""
        self._left -= done
        if self._left > 0:
            return False
        self._left = self._room
        return True


class _Line:
    """The long works of one loop that wait for their turn."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_next_taken = False

    async def wait(self) -> None:
        loop = asyncio.get_running_loop()
        if self._is_next_taken:
            waiter: asyncio.Future[None] = loop.create_future()
            self._waiting.append(waiter)
            await waiter
        else:
            self._is_next_taken = True
            loop.call_soon(self._pass_on)
            await asyncio.sleep(0)

    def _pass_on(self) -> None:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():  # otherwise it was cancelled
                waiter.set_result(None)
                asyncio.get_running_loop().call_soon(self._pass_on)
                return
        self._is_next_taken = False


_lines: WeakKeyDictionary[asyncio.AbstractEventLoop, _Line] = WeakKeyDictionary()


async def breathe() -> None:
    """Let other tasks have a turn: to be awaited between two slices of long work."""
    loop = asyncio.get_running_loop()
    line = _lines.get(loop)
    if line is None:
        line = _lines[loop] = _Line()
    await line.wait()


async def in_turns(things: Iterable[Thing], at_once: int) -> AsyncIterator[Thing]:
    """`things`, one after the other. After each `at_once` of them other tasks get a turn."""
    for count, thing in enumerate(things):
        if count and count % at_once == 0:
            await breathe()
        yield thing


async def slices_in_turns(things: Iterable[Thing], at_once: int) -> AsyncIterator[list[Thing]]:
    """`things` in slices of this size; one empty slice if there are none. Between two slices other tasks get a turn."""
    ahead = iter(things)
    yield (some := list(islice(ahead, at_once)))
    while len(some) == at_once and (some := list(islice(ahead, at_once))):
        await breathe()
        yield some


def counted(things: Iterable[Thing]) -> Steps[Counter[Thing]]:
    """How often each of these is there."""
    times: Counter[Thing] = Counter()
    ahead = iter(things)
    while some := list(islice(ahead, COUNTED_A_TURN)):
        times.update(some)
        if len(some) == COUNTED_A_TURN:
            yield
    return times


def _step(steps: Steps[Thing]) -> tuple[Thing] | None:
    """Take one step. Returns the result if it was the last one."""
    try:
        next(steps)
    except StopIteration as end:
        return (end.value,)
    return None


async def done_in_turns(steps: Steps[Thing]) -> Thing:
    """The result of these steps. After each step other tasks get a turn."""
    while True:
        if (made := _step(steps)) is not None:
            return made[0]
        await breathe()


def now_or_in_turns(steps: Steps[Thing]) -> Thing | Awaitable[Thing]:
    """The result of these steps. If the first step is the last one, the result is there at once."""
    made = _step(steps)
    return _after_a_turn(steps) if made is None else made[0]


async def _after_a_turn(steps: Steps[Thing]) -> Thing:
    await breathe()
    return await done_in_turns(steps)


class MadeLater(Generic[Thing]):
    """What `make` makes of `found` once that is done. Who needs it calls `make` then, or awaits this. So it takes no
    future of its own, and a task only if what is made has to be awaited: each costs as much as many an answer.
    """

    __slots__ = ("found", "make")

    def __init__(
        self, found: asyncio.Future[Found], make: Callable[[asyncio.Future[Found]], Thing | Awaitable[Thing]]
    ) -> None:
        self.found: asyncio.Future[Any] = found
        self.make: Callable[[asyncio.Future[Any]], Thing | Awaitable[Thing]] = make

    def __await__(self) -> Generator[Any, None, Thing]:
        return self._made().__await__()

    async def _made(self) -> Thing:
        await asyncio.wait((self.found,))  # `make` looks how it has ended
        made = self.make(self.found)
        return await made if isinstance(made, Awaitable) else made


def freed(dead: list[Any]) -> Steps[None]:
    """Free these things, the last references to which are in this list. To free the objects of a long request at once
    takes as long as to read it. What others hold, too, is left to them.
    """
    turn = Turn(FREED_A_TURN)
    while dead:
        thing = dead.pop()
        if turn.is_over():
            yield
        if getrefcount(thing) > ALONE:
            continue
        parts = _parts_of(thing)
        thing = None
        if not parts or _parts_of(parts[0]):
            dead += parts
            parts.clear()
        while parts:
            some = min(len(parts), FREED_A_TURN)
            del parts[-some:]
            if turn.is_over(some // 2):
                yield


def _parts_of(thing: Any) -> list[Any]:
    """The things that this one holds, of which there may be many; none if it is small."""
    kind = type(thing)
    if kind is list or kind is tuple:
        return list(thing)
    if kind is dict:
        return list(thing.values())
    fields = [getattr(thing, name, None) for name in getattr(kind, "__match_args__", ())]
    return [part for part in fields if type(part) in (list, tuple, dict) and part]


def _count_alone() -> int:
    """What `getrefcount` says of an object that only a variable holds."""
    thing = [object()].pop()
    return getrefcount(thing)


ALONE: Final = _count_alone()

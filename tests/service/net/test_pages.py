"""Very long frames: their buffers cost what has come, grow where they are, and are given back piece by piece."""

import asyncio
import mmap
import random

import pytest

from service.net.pages import FREED_AT_ONCE, MAPPED_FROM_BYTES, free, fresh, longer
from service.net.server import Held, Reply, Server
from tests.service.net.kit import LOOPS, PRODUCE, EchoDoor, connect, frame, run, serving, until

LONG = 3 * FREED_AT_ONCE


def mapping(view: memoryview) -> mmap.mmap:
    whole = view.obj
    assert isinstance(whole, mmap.mmap)
    return whole


def resident_pages() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1])


def test_a_buffer_costs_nothing_before_it_is_used() -> None:
    before = resident_pages()
    view = fresh(64 << 20, 64 << 20)
    assert (resident_pages() - before) * mmap.PAGESIZE < 16 << 20
    view[-1] = 7
    assert (view[0], view[-1]) == (0, 7)


def test_a_machine_that_promises_no_more_memory_gives_an_ordinary_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object, **__: object) -> mmap.mmap:
        raise OSError(12, "no memory")

    monkeypatch.setattr("mmap.mmap", none)
    view = fresh(MAPPED_FROM_BYTES, 1 << 20)
    assert isinstance(view.obj, bytearray)
    assert len(view.obj) == len(view) == 2 << 20, "it is filled with zeros, and may not be longer than what has come"


def test_an_ordinary_buffer_is_at_most_twice_as_long_as_what_has_come() -> None:
    for wanted, have, expected in ((MAPPED_FROM_BYTES - 1, 40_000, 80_000), (50_000, 40_000, 50_000)):
        view = fresh(wanted, have)
        assert isinstance(view.obj, bytearray)
        assert len(view.obj) == len(view) == expected


def test_a_buffer_grows_where_it_is_up_to_twice_of_what_has_come() -> None:
    part = fresh(MAPPED_FROM_BYTES, 1 << 19)
    assert len(part) == 1 << 20
    part[:5] = b"bytes"
    grown = longer(part, MAPPED_FROM_BYTES, len(part))
    assert grown is not None
    assert (len(grown), bytes(grown[:5])) == (2 << 20, b"bytes")
    assert longer(part, MAPPED_FROM_BYTES + 1, len(part)) is None, "the buffer is not so long"
    assert longer(memoryview(bytearray(10)), 5, 5) is None


def test_what_somebody_still_looks_at_is_not_taken_away() -> None:
    async def main() -> None:
        view = fresh(LONG, LONG)
        whole = mapping(view)
        await free(whole)
        assert len(whole) == LONG
        view.release()
        await free(whole)
        assert len(whole) <= FREED_AT_ONCE

    asyncio.run(main())


@pytest.mark.parametrize("loop", LOOPS)
def test_a_very_long_frame_comes_whole_in_one_buffer_which_is_given_back(
    loop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[memoryview] = []
    owners: list[mmap.mmap] = []
    take_buffer = Server.take_buffer

    def noted(server: Server[object], wanted: int, have: int) -> memoryview:
        taken.append(take_buffer(server, wanted, have))
        return taken[-1]

    monkeypatch.setattr(Server, "take_buffer", noted)
    body = random.Random(1).randbytes(LONG)

    async def main() -> None:
        door = EchoDoor()

        async def first(held: memoryview) -> Reply:
            await asyncio.sleep(0)
            return [b"as it came" if held == body else b"changed"]

        def answer(held: memoryview) -> Held[Reply]:
            owners.append(mapping(held))
            return Held(first(held))

        door.answers[1] = answer
        async with serving(door) as server:
            peer = await connect(server)
            await peer.send(frame(1, body, api_key=PRODUCE))
            assert await peer.answer() == (1, b"as it came")
            taken_once = len(taken)
            taken.clear()
            await peer.send(frame(2, b"short"))
            assert await peer.answer() == (2, b"short")
            assert taken_once == 1, "it was never copied into a longer one"
            await until(lambda: len(owners[0]) <= FREED_AT_ONCE)

    run(loop, main)

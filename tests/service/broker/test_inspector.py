"""Whose records are looked at first, and where batches are packed. That no turn looks at more than it may:
tests/service/api/test_produce.py.
"""

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest

from log.batch import build_batch
from log.compress import Codec
from log.config import LogConfig
from service.broker import inspector as module
from service.broker.acceptance import Inspected
from service.broker.inspector import Inspector, Row
from service.ports import RealEnv
from tests.log.memory_disk import MemoryDisk

COMPACTED = LogConfig(cleanup_policy=("compact",))
NOW_MS = 10**12


class Threads(RealEnv):
    """Its threads are turns of the loop; `ran` names what ran in them."""

    def __init__(self) -> None:
        super().__init__(MemoryDisk())
        self.ran: list[str] = []

    async def blocking(self, function: Callable[..., Any], *arguments: Any) -> Any:
        self.ran.append(function.__name__)
        await asyncio.sleep(0)
        return function(*arguments)


def batch_of(records: int, codec: Codec = Codec.ZSTD) -> memoryview:
    return memoryview(build_batch([(b"k", b"", (), NOW_MS)] * records, codec=codec))


async def order_of(batches: dict[str, memoryview]) -> list[str]:
    """In which order the looks at these batches end, which begin in the order of the dictionary."""
    inspector, ended = Inspector(Threads()), []

    async def look(name: str, batch: memoryview) -> None:
        found = await inspector.inspect(batch, COMPACTED, NOW_MS)
        assert found.refused is None
        ended.append(name)

    await asyncio.gather(*(look(name, batch) for name, batch in batches.items()))
    return ended


@pytest.mark.parametrize("little_bytes", [1, 20_000, 1 << 20], ids=["all much", "some much", "all little"])
def test_a_batch_of_few_records_waits_for_no_more_than_the_one_that_is_looked_at(
    little_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LITTLE_BYTES", little_bytes)
    bombs = {f"bomb {number}": batch_of(20_000) for number in range(5)}
    ended = asyncio.run(order_of(bombs | {"honest": batch_of(1_500)}))
    assert ended.index("honest") == (0 if little_bytes == 20_000 else 1)
    assert sorted(ended) == sorted((*bombs, "honest"))


def test_what_unpacks_to_much_does_not_keep_what_unpacks_to_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its few kilobytes don't tell how much is in it, and its header tells few records."""
    monkeypatch.setattr(module, "LITTLE_BYTES", 100_000)
    much = memoryview(build_batch([(b"k", bytes(1_000), (), NOW_MS)] * 1_600, codec=Codec.ZSTD))
    assert len(much) < 100_000
    ended = asyncio.run(order_of({"much": much, "more": much, "little": batch_of(1_500)}))
    assert ended[0] == "little"


def test_nobody_waits_for_ever_in_a_row() -> None:
    """Although those that come later cost less each time."""

    async def scene() -> None:
        row, let_in = Row(), []

        async def wait(cost: int) -> None:
            async with row.turn(cost):
                let_in.append(cost)
                await asyncio.sleep(0)

        cheap = [asyncio.ensure_future(wait(2)) for _ in range(3)]
        await asyncio.sleep(0)
        dear = asyncio.ensure_future(wait(50))
        for number in range(100):
            cheap.append(asyncio.ensure_future(wait(2)))
            await cheap[number]
        await asyncio.gather(*cheap, dear)
        assert 20 < let_in.index(50) < 30

    asyncio.run(scene())


@pytest.mark.parametrize("turns", range(6))
def test_who_gives_up_the_wait_leaves_the_row_to_others(turns: int) -> None:
    async def scene() -> None:
        row, let_in = Row(), []

        async def wait(name: str) -> None:
            async with row.turn(1):
                let_in.append(name)
                await asyncio.sleep(0)

        tasks = [asyncio.ensure_future(wait(name)) for name in ("first", "leaves", "last")]
        for _ in range(turns):
            await asyncio.sleep(0)
        tasks[1].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await wait("later")
        assert [name for name in let_in if name != "leaves"] == ["first", "last", "later"]

    asyncio.run(asyncio.wait_for(scene(), 10))


@pytest.mark.parametrize(
    ("settings", "is_its_own"),
    [
        ({"compression_type": "gzip"}, True),
        ({"compression_type": "gzip", "compression_gzip_level": 9}, False),
        ({"compression_type": "lz4"}, True),
        ({"compression_type": "lz4", "compression_lz4_level": 17}, False),
        ({"compression_type": "zstd"}, True),
        ({"compression_type": "zstd", "compression_zstd_level": 22}, False),
        ({"compression_type": "snappy"}, True),
        ({"compression_type": "snappy", "compression_zstd_level": 22}, True),
    ],
)
def test_on_the_loop_a_batch_is_packed_only_at_the_codecs_own_level(settings: dict[str, Any], is_its_own: bool) -> None:
    """At another level 64 KB take up to 46 ms. Very small batches are packed at once at any level."""
    config = LogConfig(**settings)
    value = bytes(random.Random(1).choices(b"abcd", k=60_000))
    batch, small = (memoryview(build_batch([(b"k", each, (), NOW_MS)])) for each in (value, value[:500]))

    async def scene() -> None:
        env = Threads()
        inspector = Inspector(env)
        assert inspector.inspect_now(small, config, NOW_MS) is not None
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        at_once: Inspected | None = inspector.inspect_now(batch, config, NOW_MS)
        assert (at_once is not None) is is_its_own
        found = at_once or await inspector.inspect(batch, config, NOW_MS)
        assert found.records is not None
        assert len(found.records) < len(batch)
        assert env.ran == ([] if at_once else ["unpack", "pack"])

    asyncio.run(scene())

"""A ledger's records: read as they were written, and made in turns, however many keys one commit touches."""

import asyncio

import pytest

from service.stores.ledger import KEYS_A_TURN, StoredValue, decoded, encoded, slices


@pytest.mark.parametrize("count", [0, 1, KEYS_A_TURN - 1, KEYS_A_TURN, KEYS_A_TURN + 1, 3 * KEYS_A_TURN])
def test_a_record_is_read_as_it_was_written(count: int) -> None:
    changed: dict[str, StoredValue | None] = {
        f"k{number}": StoredValue(bytes([number % 256, 0xFF]), number, number % 3 or None) for number in range(count)
    }
    changed |= {"gone": None}

    async def main() -> None:
        read = await decoded(await encoded(changed))
        assert read == changed
        assert list(read) == list(changed)
        assert await decoded(await encoded({})) == {}
        assert await decoded(b"") == {}

    asyncio.run(main())


def test_others_have_their_turns_while_very_many_keys_are_worked_on() -> None:
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def main() -> None:
        nonlocal turns
        others = asyncio.create_task(count())
        changed: dict[str, StoredValue | None] = {
            f"k{number}": StoredValue(b"v", 0, None) for number in range(15 * KEYS_A_TURN)
        }
        record = await encoded(changed)
        assert turns >= 14
        turns = 0
        await decoded(record)
        assert turns >= 14
        turns = 0
        async for _ in slices(range(15 * KEYS_A_TURN)):
            pass
        assert turns >= 14
        others.cancel()

    asyncio.run(main())

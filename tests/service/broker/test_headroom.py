"""What a folder keeps back, when it refuses producers, and when it serves them again: on a small simulated disk."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from log.disk import Disk, DiskFault
from service.broker.headroom import LONGEST_DELAY_S, PROBE_BYTES, RESERVE, Headroom, make_room_to_start
from tests.sim.disk import SimDisk
from tests.sim.world import Host, World

TOTAL, WANTED = 160_000, 20_000
RESERVED = 10_000  # a sixteenth of the disk
Scene = Callable[[Disk, SimDisk], Coroutine[Any, Any, None]]


def on_a_small_disk(scene: Scene, capacity_bytes: int = TOTAL) -> None:
    world = World(1)
    device = SimDisk(world.stream("disk"), capacity_bytes=capacity_bytes)

    async def main(_: Host) -> None:
        await scene(device.mount(), device)

    host = world.host("machine", main, disk=device)
    world.run(until=1000, stop=lambda: not host.alive)
    try:
        if host.exited[0] is not None:
            raise host.exited[0]
    finally:
        world.close()


def leave(disk: Disk, device: SimDisk, free_bytes: int) -> None:
    """Somebody else's file leaves so much of the disk."""
    file = disk.open("somebody else's", create=True)
    file.truncate(0)
    file.append((bytes(device.capacity_bytes - device.used_bytes - free_bytes),))
    file.close()


async def begun(disk: Disk, wanted_bytes: int = WANTED) -> Headroom:
    headroom = Headroom("data", disk, wanted_bytes)
    await headroom.begin()
    return headroom


def test_a_reserve_is_set_aside_once_and_never_more_than_a_part_of_the_disk() -> None:
    async def scene(disk: Disk, device: SimDisk) -> None:
        for _ in range(2):
            assert not (await begun(disk)).is_short
            assert disk.open(RESERVE).size == RESERVED
        assert not (await begun(disk, 3000)).is_short
        assert disk.open(RESERVE).size == 3000
        assert not (await begun(disk, 0)).is_short
        assert not disk.exists(RESERVE)

    on_a_small_disk(scene, TOTAL)
    on_a_small_disk(scene, TOTAL)


def test_producers_are_slowed_then_refused_then_served_again(caplog: pytest.LogCaptureFixture) -> None:
    async def scene(disk: Disk, device: SimDisk) -> None:
        headroom = await begun(disk)
        for free_bytes, delay_s in ((5 * RESERVED, 0.0), (2 * RESERVED, 0.0), (RESERVED * 3 // 2, LONGEST_DELAY_S / 2)):
            leave(disk, device, free_bytes)
            await headroom.look()
            assert not headroom.is_short
            assert headroom.delay_s == pytest.approx(delay_s)
        for free_bytes in (RESERVED - 1, RESERVED // 2, RESERVED + 1):  # a little more is not enough
            leave(disk, device, free_bytes)
            await headroom.look()
            assert (headroom.is_short, headroom.delay_s, disk.exists(RESERVE)) == (True, 0.0, True)
        leave(disk, device, 4 * RESERVED)
        await headroom.look()
        assert not headroom.is_short

    with caplog.at_level(logging.WARNING, "oncelog.disk"):
        on_a_small_disk(scene)
    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]


def test_while_producers_are_served_what_works_beside_them_leaves_them_enough() -> None:
    """When they are not, it may take all that is left: it may be what makes room."""

    async def scene(disk: Disk, device: SimDisk) -> None:
        headroom = await begun(disk)
        leave(disk, device, headroom.kept_for_producers)
        await headroom.look()
        assert not headroom.is_short
        leave(disk, device, RESERVED - 1)
        await headroom.look()
        assert (headroom.is_short, headroom.kept_for_producers) == (True, 0)
        leave(disk, device, 4 * RESERVED)
        await headroom.look()
        assert RESERVED < headroom.kept_for_producers < 2 * RESERVED

    on_a_small_disk(scene)


def test_what_was_appended_since_the_last_look_counts() -> None:
    """A fast producer must not fill the disk between two looks."""

    async def scene(disk: Disk, device: SimDisk) -> None:
        headroom = await begun(disk)
        leave(disk, device, 3 * RESERVED)
        await headroom.look()
        headroom.took(2 * RESERVED)
        assert not headroom.is_short
        headroom.took(1)
        assert headroom.is_short

    on_a_small_disk(scene)


@pytest.mark.parametrize("hit", [True, False], ids=["a write found no room", "a look found next to none"])
def test_the_reserve_is_given_up_when_it_is_needed_and_set_aside_again_before_producers_are_served(hit: bool) -> None:
    async def scene(disk: Disk, device: SimDisk) -> None:
        headroom = await begun(disk)
        file = disk.open("decisions", create=True)
        leave(disk, device, 0)
        if hit:
            with pytest.raises(DiskFault):
                file.append((b"x",))
            headroom.run_out()
        else:
            await headroom.look()
            await headroom.look()
        assert (headroom.is_short, disk.exists(RESERVE)) == (True, False)
        file.append((bytes(RESERVED),))
        for free_bytes in (0, 2 * RESERVED):
            leave(disk, device, free_bytes)
            await headroom.look()
            assert (headroom.is_short, disk.exists(RESERVE)) == (True, False)
        leave(disk, device, 4 * RESERVED)
        await headroom.look()
        assert (headroom.is_short, disk.open(RESERVE).size) == (False, RESERVED)

    on_a_small_disk(scene)


def test_without_a_reserve_a_full_disk_is_tried_before_it_counts_as_having_room() -> None:
    """A quota says nothing of itself when asked how much is free."""

    async def scene(disk: Disk, device: SimDisk) -> None:
        headroom = await begun(disk, 0)
        headroom.run_out()
        device.fail_next("append", error=28, path_part=RESERVE)
        await headroom.look()
        assert headroom.is_short
        await headroom.look()
        assert (headroom.is_short, disk.exists(RESERVE)) == (False, False)

    on_a_small_disk(scene, 4 * PROBE_BYTES)


def test_what_is_needed_while_it_is_set_aside_is_given_up_at_once() -> None:
    async def scene(disk: Disk, device: SimDisk) -> None:
        headroom = await begun(disk)
        headroom.run_out()
        looking = asyncio.get_running_loop().create_task(headroom.look())
        await asyncio.sleep(0)
        headroom.run_out()
        await looking
        assert (headroom.is_short, disk.exists(RESERVE)) == (True, False)

    on_a_small_disk(scene)


def test_a_start_on_a_full_disk_finds_a_little_room() -> None:
    async def scene(disk: Disk, device: SimDisk) -> None:
        await begun(disk)
        make_room_to_start(disk)
        assert disk.exists(RESERVE) == (device.capacity_bytes > TOTAL)

    on_a_small_disk(scene)
    on_a_small_disk(scene, 64 * PROBE_BYTES)

"""What only the simulated disk can do: lose, tear, rot, refuse, and die in the middle."""

import asyncio
import errno
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from log.disk import DiskFault
from tests.sim.disk import SECTOR_BYTES, Mount, SimDisk
from tests.sim.world import Host, World

SEEDS = range(60)


class Machine:
    """One host with a disk; each step is what one life of its process does."""

    def __init__(self, seed: int) -> None:
        self.world = World(seed)
        self.disk = SimDisk(self.world.stream("disk"))
        self.step: Callable[[Mount], Coroutine[Any, Any, None]] | None = None
        self.done = False

        async def main(host: Host) -> None:
            assert self.step is not None
            await self.step(self.disk.mount())
            self.done = True
            await asyncio.get_running_loop().create_future()

        self.host = self.world.host("machine", main, disk=self.disk, boot=False)
        self.world.host("company", lambda _: asyncio.sleep(10**6), boot=True)

    def life(self, step: Callable[[Mount], Coroutine[Any, Any, None]]) -> bool:
        """Boot, do the step; True if the process lived to its end. It goes on living."""
        self.step, self.done = step, False
        self.host.boot()
        return self.go()

    def go(self) -> bool:
        self.world.run(until=self.world.now + 100, stop=lambda: self.done or not self.host.alive)
        assert not self.world.failures, [str(failure) for failure in self.world.failures]
        return self.done


def survivors(
    step: Callable[[Mount], Coroutine[Any, Any, None]], path: str, *, power: bool = True
) -> list[bytes | None]:
    """For many seeds: what `path` holds after `step` and a crash."""
    found: list[bytes | None] = []
    for seed in SEEDS:
        machine = Machine(seed)
        assert machine.life(step)
        (machine.host.cut_power if power else machine.host.kill)()

        async def look(disk: Mount) -> None:
            found.append(disk.read(path) if disk.exists(path) else None)

        assert machine.life(look)
        machine.world.close()
    return found


DATA = bytes(range(1, 251)) * 40  # 10,000 bytes, never zero, not a multiple of a sector


async def synced_then_more(disk: Mount) -> None:
    file = disk.open("a", create=True)
    file.append([DATA[:3000]])
    await file.fsync()
    await disk.sync_dir("")
    file.append([DATA[3000:7000]])
    file.append([DATA[7000:]])


def test_a_kill_loses_nothing() -> None:
    assert set(survivors(synced_then_more, "a", power=False)) == {DATA}


def test_a_power_cut_keeps_what_was_synced_and_tears_the_rest_by_sectors() -> None:
    found = survivors(synced_then_more, "a")
    holes = 0
    for image in found:
        assert image is not None
        assert image[:3000] == DATA[:3000]
        assert len(image) <= len(DATA)
        for start in range(0, len(image), SECTOR_BYTES):
            sector = slice(max(start, 3000), min(start + SECTOR_BYTES, len(image)))
            holes += image[sector] != DATA[sector]
    assert holes, "no seed lost a sector in the middle"
    assert any(image == DATA for image in found), "no seed kept everything"
    assert any(image == DATA[:3000] for image in found), "no seed lost everything"


def test_an_fsync_promises_only_what_was_appended_before_it_began() -> None:
    async def step(disk: Mount) -> None:
        file = disk.open("a", create=True)
        file.append([b"before"])
        await disk.sync_dir("")
        syncing = asyncio.get_running_loop().create_task(file.fsync())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        file.append([b"after"])
        await syncing

    assert set(survivors(step, "a")) == {b"before", b"beforeafter"}


def test_a_name_is_lost_without_a_sync_of_its_folder() -> None:
    async def step(disk: Mount) -> None:
        disk.mkdir("t")
        await disk.sync_dir("")
        file = disk.open("t/a", create=True)
        file.append([b"x"])
        await file.fsync()
        await disk.sync_dir("")  # the wrong folder

    assert set(survivors(step, "t/a")) == {None, b"x"}


def test_a_folder_that_was_not_synced_takes_its_files_along() -> None:
    async def step(disk: Mount) -> None:
        disk.mkdir("t")
        file = disk.open("t/a", create=True)
        file.append([b"x"])
        await file.fsync()
        await disk.sync_dir("t")  # the folder's own name is in its parent

    assert set(survivors(step, "t/a")) == {None, b"x"}


def test_name_changes_survive_as_a_prefix() -> None:
    async def step(disk: Mount) -> None:
        for name in "abcdef":
            file = disk.open(name, create=True)
            file.append([b"x"])
            await file.fsync()
        disk.unlink("a")
        disk.rename("b", "a")

    seen = set()
    for seed in SEEDS:
        machine = Machine(seed)
        assert machine.life(step)
        machine.host.cut_power()

        async def look(disk: Mount) -> None:
            seen.add("".join(sorted(disk.listdir(""))))

        assert machine.life(look)
        machine.world.close()
    assert seen == {"", "a", "ab", "abc", "abcd", "abcde", "abcdef", "bcdef", "acdef"}


def test_what_is_removed_from_one_folder_does_not_come_back_because_another_one_was_synced_before() -> None:
    async def step(disk: Mount) -> None:
        for folder in ("s", "t"):
            disk.mkdir(folder)
        disk.open("s/a", create=True)
        await disk.sync_dir("")
        await disk.sync_dir("s")
        disk.open("t/b", create=True)
        disk.discard("s/a")
        disk.discard("t/b")
        await disk.sync_dir("s")
        await disk.sync_dir("t")

    assert set(survivors(step, "t/b")) == {None}


def test_a_move_between_folders_happens_whole_or_not_at_all() -> None:
    async def step(disk: Mount) -> None:
        disk.mkdir("from")
        disk.mkdir("to")
        file = disk.open("from/a", create=True)
        file.append([b"x"])
        await file.fsync()
        for folder in ("", "from", "to"):
            await disk.sync_dir(folder)
        disk.rename("from/a", "to/a")

    outcomes = list(zip(survivors(step, "from/a"), survivors(step, "to/a"), strict=True))
    assert set(outcomes) == {(b"x", None), (None, b"x")}


def test_an_atomic_write_is_the_old_or_the_new_at_every_crash_within_it() -> None:
    """The process dies at each of its disk calls in turn, by kill and by power cut."""

    async def first(disk: Mount) -> None:
        await disk.write_atomic("state", b"old" * 500)

    async def second(disk: Mount) -> None:
        await disk.write_atomic("state", b"new" * 500)

    outcomes = set()
    for seed in range(5):
        for power in (False, True):
            for call in range(1, 20):
                machine = Machine(seed)
                assert machine.life(first)
                machine.host.kill()
                machine.step = second
                machine.done = False
                machine.host.boot()
                machine.disk.trip_after(call, machine.host.cut_power if power else machine.host.kill)
                machine.go()
                lived = machine.host.alive
                machine.host.cut_power()

                async def look(disk: Mount, lived: bool = lived) -> None:
                    content = disk.read("state")
                    assert content in (b"old" * 500, b"new" * 500)
                    outcomes.add((content[:3], lived))

                assert machine.life(look)
                machine.world.close()
    assert outcomes == {(b"old", False), (b"new", False), (b"new", True)}


def test_a_process_dies_within_a_call_and_its_handlers_reach_nothing() -> None:
    machine = Machine(1)
    reached = []

    async def step(disk: Mount) -> None:
        file = disk.open("a", create=True)
        machine.disk.trip_after(1, machine.host.kill)
        try:
            file.append([DATA])
        except OSError:
            reached.append("taken for a disk fault")
        finally:
            try:
                disk.open("b", create=True)
            except OSError:
                reached.append("taken for a disk fault")
        reached.append("went on")

    assert not machine.life(step)
    assert reached == []
    assert [path for path, _, _ in machine.disk.files()] == ["a"]


def test_a_dead_process_touches_its_disk_no_more() -> None:
    """A handle kept from a former life is of no use."""
    machine = Machine(1)
    kept: list[Mount] = []

    async def step(disk: Mount) -> None:
        kept.append(disk)

    assert machine.life(step)
    machine.host.kill()
    assert machine.life(step)
    with pytest.raises(BaseException, match="dead process") as caught:
        kept[0].open("a", create=True)
    assert not isinstance(caught.value, Exception)
    kept[1].open("a", create=True)


def test_a_failed_fsync_loses_what_it_should_have_written() -> None:
    async def step(disk: Mount) -> None:
        file = disk.open("a", create=True)
        await disk.sync_dir("")
        file.append([b"gone"])
        disk.device.fail_next("fsync")
        with pytest.raises(DiskFault):
            await file.fsync()
        assert file.pread(4, 0) == b"gone"  # from the cache
        with pytest.raises(DiskFault):
            await file.fsync()

    assert set(survivors(step, "a")) == {b""}


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_a_failed_append_leaves_the_file_as_it_was(error: int) -> None:
    machine = Machine(1)

    async def step(disk: Mount) -> None:
        file = disk.open("a", create=True)
        file.append([b"abc"])
        disk.device.fail_next("append", error=error)
        with pytest.raises(DiskFault) as caught:
            file.append([b"def"])
        assert caught.value.errno == error
        assert (file.size, file.pread(9, 0)) == (3, b"abc")

    assert machine.life(step)


def test_a_full_disk_refuses_appends() -> None:
    machine = Machine(1)
    machine.disk.capacity_bytes = 1000

    async def step(disk: Mount) -> None:
        file = disk.open("a", create=True)
        file.append([bytes(900)])
        with pytest.raises(DiskFault) as caught:
            file.append([bytes(101)])
        assert caught.value.errno == errno.ENOSPC
        assert file.size == 900

    assert machine.life(step)


def test_a_flipped_bit_is_read_before_and_after_a_power_cut() -> None:
    machine = Machine(1)

    async def step(disk: Mount) -> None:
        file = disk.open("a", create=True)
        file.append([b"\0\0\0"])
        await file.fsync()
        await disk.sync_dir("")
        disk.device.flip_bit("a", 1, 3)
        assert disk.read("a") == b"\0\x08\0"

    async def look(disk: Mount) -> None:
        assert disk.read("a") == b"\0\x08\0"

    assert machine.life(step)
    machine.host.cut_power()
    assert machine.life(look)


def test_an_unpinned_file_may_have_to_be_found_by_its_name() -> None:
    """As when descriptors are short: without a pin an unlinked file is sooner or later out of reach."""
    machine = Machine(1)

    async def step(disk: Mount) -> None:
        file = disk.open("a", create=True)
        file.append([b"x"])
        file.pin()
        disk.unlink("a")
        assert all(file.pread(1, 0) == b"x" for _ in range(1000))
        file.unpin()
        with pytest.raises(DiskFault) as raised:
            for _ in range(1000):
                file.pread(1, 0)
        assert raised.value.is_missing

    assert machine.life(step)

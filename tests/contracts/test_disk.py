"""What every `Disk` does, asked of the real one and of the simulated one.

Each test is a coroutine that gets a fresh, empty disk. On the real disk it runs under `asyncio.run` in a temporary
folder, on the simulated one inside a world. Crashes and planted faults, which only the simulation can cause, are in
`tests/sim/test_disk.py`.
"""

import asyncio
import errno
import os
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from log.disk import Disk, DiskFault, FileSlice, RealDisk
from tests.sim.disk import SimDisk
from tests.sim.world import Host, World

Body = Callable[[Disk], Coroutine[Any, Any, None]]
Runner = Callable[[Body], None]


def on_the_real_disk(root: Path) -> Runner:
    def run(body: Body) -> None:
        async def main() -> None:
            disk = RealDisk(str(root), open_files_max=3)
            try:
                await body(disk)
            finally:
                disk.close()

        asyncio.run(main())

    return run


def in_the_simulation() -> Runner:
    def run(body: Body) -> None:
        world = World(1)

        async def main(host: Host) -> None:
            assert host.disk is not None
            await body(host.disk.mount())

        host = world.host("machine", main, disk=SimDisk(world.stream("disk")))
        world.run(until=1000, stop=lambda: not host.alive)
        try:
            if host.exited[0] is not None:
                raise host.exited[0]
        finally:
            world.close()

    return run


@pytest.fixture(params=["real", "simulated"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Runner:
    return on_the_real_disk(tmp_path) if request.param == "real" else in_the_simulation()


def test_what_was_appended_is_read_back_whole(run: Runner) -> None:
    async def body(disk: Disk) -> None:
        file = disk.open("a.log", create=True)
        assert file.size == 0
        assert file.append([b"one", bytearray(b"two"), memoryview(b"three")]) == 0
        assert file.append([b"four"]) == 11
        assert file.size == 15
        assert file.pread(15, 0) == b"onetwothreefour"
        assert file.pread(4, 3) == b"twot"
        assert file.path == "a.log"

    run(body)


def test_reading_past_the_end_gives_what_is_there(run: Runner) -> None:
    async def body(disk: Disk) -> None:
        file = disk.open("a", create=True)
        file.append([b"abc"])
        assert file.pread(10, 1) == b"bc"
        assert file.pread(10, 3) == b""
        assert file.pread(10, 30) == b""

    run(body)


def test_an_append_of_nothing_changes_nothing(run: Runner) -> None:
    async def body(disk: Disk) -> None:
        file = disk.open("a", create=True)
        assert file.append([b""]) == 0
        assert file.size == 0

    run(body)


def test_a_truncated_file_goes_on_at_its_new_end(run: Runner) -> None:
    async def body(disk: Disk) -> None:
        file = disk.open("a", create=True)
        file.append([b"0123456789"])
        file.truncate(4)
        assert file.size == 4
        assert file.append([b"x"]) == 4
        assert file.pread(100, 0) == b"0123x"

    run(body)


def test_a_file_opened_again_holds_what_was_written(run: Runner) -> None:
    async def body(disk: Disk) -> None:
        file = disk.open("a", create=True)
        file.append([b"abc"])
        file.close()
        again = disk.open("a")
        assert again.size == 3
        assert again.append([b"d"]) == 3
        assert again.pread(9, 0) == b"abcd"
        assert disk.read("a") == b"abcd"

    run(body)


def test_a_file_that_is_not_there_is_not_opened_unless_it_is_to_be_created(run: Runner) -> None:
    async def body(disk: Disk) -> None:
        with pytest.raises(FileNotFoundError):
            disk.open("a")
        with pytest.raises(FileNotFoundError):
            disk.read("a")
        assert not disk.exists("a")
        disk.open("a", create=True)
        assert disk.exists("a")
        with pytest.raises(FileExistsError):
            disk.open("a", create=True, exclusive=True)
        disk.open("b", create=True, exclusive=True)

    run(body)


def test_none_of_these_refusals_ends_the_disk(run: Runner) -> None:
    async def body(disk: Disk) -> None:
        for missing in (disk.read, disk.listdir, disk.open):
            with pytest.raises(FileNotFoundError):
                missing("nowhere")
        disk.unlink("nowhere")
        disk.discard("nowhere")
        disk.mkdir("here")
        disk.mkdir("here")
        disk.open("a", create=True).append([b"fine"])

    run(body)


def test_folders_list_their_names(run: Runner) -> None:
    async def body(disk: Disk) -> None:
        assert disk.listdir("") == []
        disk.mkdir("t-0")
        disk.open("t-0/00.log", create=True)
        disk.open("t-0/00.index", create=True)
        disk.open("meta", create=True)
        assert sorted(disk.listdir("")) == ["meta", "t-0"]
        assert sorted(disk.listdir("t-0")) == ["00.index", "00.log"]
        assert disk.exists("t-0")
        assert disk.exists("t-0/00.log")

    run(body)


def test_a_rename_replaces_its_target(run: Runner) -> None:
    async def body(disk: Disk) -> None:
        disk.open("a", create=True).append([b"new"])
        disk.open("b", create=True).append([b"old"])
        disk.rename("a", "b")
        assert disk.read("b") == b"new"
        assert sorted(disk.listdir("")) == ["b"]

    run(body)


def test_a_renamed_folder_takes_its_files_along(run: Runner) -> None:
    async def body(disk: Disk) -> None:
        disk.mkdir("t-0")
        disk.open("t-0/a", create=True).append([b"x"])
        disk.rename("t-0", "t-0-delete")
        assert disk.read("t-0-delete/a") == b"x"
        assert not disk.exists("t-0")
        disk.discard("t-0-delete")
        assert not disk.exists("t-0-delete")

    run(body)


def test_a_discarded_name_is_free_at_once(run: Runner) -> None:
    async def body(disk: Disk) -> None:
        for content in (b"first", b"second", b"third"):
            disk.mkdir("t-0")
            disk.mkdir("t-0/below")
            for path in ("t-0/a", "t-0/below/b", "single"):
                assert not disk.exists(path)
                disk.open(path, create=True).append([content])
            open_part = FileSlice(disk.open("t-0/a"), 0, len(content))
            open_part.pin()
            disk.discard("t-0")
            disk.discard("single")
            assert open_part.read() == content
            open_part.unpin()
        disk.sweep()
        await disk.sync_dir("")

    run(body)


def test_a_pinned_slice_outlives_its_file(run: Runner) -> None:
    async def body(disk: Disk) -> None:
        file = disk.open("a", create=True)
        file.append([b"0123456789"])
        part = FileSlice(file, 2, 5)
        part.pin()
        disk.unlink("a")
        file.close()
        for name in range(10):  # enough to take the turn of every descriptor that is not pinned
            disk.open(str(name), create=True).append([b"x"])
        assert len(part) == 5
        assert part.read() == b"23456"
        part.unpin()
        with pytest.raises(DiskFault):
            file.pread(1, 0)

    run(body)


def test_a_file_closed_is_read_no_more(run: Runner) -> None:
    async def body(disk: Disk) -> None:
        file = disk.open("a", create=True)
        file.append([b"x"])
        file.close()
        with pytest.raises(DiskFault):
            file.pread(1, 0)

    run(body)


def test_many_files_are_open_at_once(run: Runner) -> None:
    """More than the real disk here keeps descriptors for."""

    async def body(disk: Disk) -> None:
        files = [disk.open(str(number), create=True) for number in range(20)]
        for turn in range(3):
            for number, file in enumerate(files):
                file.append([b"%d.%d;" % (number, turn)])
        for number, file in enumerate(files):
            assert file.pread(100, 0) == b"".join(b"%d.%d;" % (number, turn) for turn in range(3))

    run(body)


def test_what_is_synced_can_be_read_as_before(run: Runner) -> None:
    async def body(disk: Disk) -> None:
        disk.mkdir("t")
        file = disk.open("t/a", create=True)
        file.append([b"abc"])
        await asyncio.gather(file.fsync(), disk.sync_dir("t"), disk.sync_dir(""), disk.sync_all())
        file.append([b"d"])
        assert file.pread(9, 0) == b"abcd"

    run(body)


def test_an_atomic_write_replaces_the_whole_file_and_leaves_nothing_beside_it(run: Runner) -> None:
    async def body(disk: Disk) -> None:
        disk.mkdir("t")
        await disk.write_atomic("t/state", b"a long first version")
        await asyncio.gather(*(disk.write_atomic("t/state", b"second") for _ in range(3)))
        assert disk.read("t/state") == b"second"
        assert disk.listdir("t") == ["state"]

    run(body)


def test_a_cancelled_wait_does_not_stop_an_atomic_write(run: Runner) -> None:
    async def body(disk: Disk) -> None:
        writing = asyncio.get_running_loop().create_task(disk.write_atomic("state", b"all of it"))
        await asyncio.sleep(0)
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)
        await disk.sync_dir("")
        assert disk.read("state") == b"all of it"

    run(body)


def test_a_failed_change_is_final_and_reads_go_on(run: Runner) -> None:
    async def body(disk: Disk) -> None:
        file = disk.open("a", create=True)
        file.append([b"abc"])
        disk.mkdir("folder")
        with pytest.raises(DiskFault) as caught:
            disk.rename("a", "folder")
        assert caught.value.errno == errno.EISDIR
        for change in (
            lambda: file.append([b"d"]),
            lambda: file.truncate(0),
            lambda: disk.mkdir("t"),
            lambda: disk.unlink("a"),
        ):
            with pytest.raises(DiskFault):
                change()
        for wait in (file.fsync, lambda: disk.sync_dir(""), disk.sync_all, lambda: disk.write_atomic("b", b"x")):
            with pytest.raises(DiskFault):
                await wait()
        assert file.pread(9, 0) == b"abc"
        assert disk.read("a") == b"abc"

    run(body)


def test_there_is_room_and_it_shrinks(run: Runner) -> None:
    async def body(disk: Disk) -> None:
        total, before = disk.space()
        assert total >= before > 0
        if isinstance(disk, RealDisk):
            return  # others use the same file system
        disk.open("a", create=True).append([bytes(1000)])
        assert disk.space() == (total, before - 1000)
        disk.unlink("a")
        assert disk.space() == (total, before)

    run(body)


def test_a_descriptor_is_real_or_none(run: Runner) -> None:
    async def body(disk: Disk) -> None:
        file = disk.open("a", create=True)
        file.append([b"abc"])
        descriptor = file.fileno()
        if descriptor is not None:
            assert os.pread(descriptor, 3, 0) == b"abc"
        assert (descriptor is None) == (not isinstance(disk, RealDisk))

    run(body)

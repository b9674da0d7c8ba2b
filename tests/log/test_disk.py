"""The real disk. What every disk promises is tested by the contract suite; here is what only this one has."""

import asyncio
import errno
import os
import resource
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from log.disk import DISCARDED, PARTITION_METADATA, SYNCS_AT_ONCE, DiskFault, FileSlice, RealDisk, RealFile

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs pwritev")


def test_appends_follow_each_other_and_survive_a_new_handle(tmp_path: Path) -> None:
    disk = RealDisk(str(tmp_path))
    file = disk.open("a", create=True)
    assert file.append([b"one", memoryview(b"two")]) == 0
    assert file.append([bytearray(b"three")]) == 6
    assert disk.open("a").size == file.size == 11
    assert file.pread(100, 3) == b"twothree"
    file.truncate(3)
    assert file.append([b"!"]) == 3
    assert disk.read("a") == b"one!"
    disk.close()


def test_a_file_tells_when_it_was_changed_or_what_was_said_since(tmp_path: Path) -> None:
    disk = RealDisk(str(tmp_path))
    file = disk.open("a", create=True)
    os.utime(tmp_path / "a", (1, 1))
    assert file.modified_ms() == 1000
    file.append([b"one"])
    assert abs(file.modified_ms() - time.time() * 1000) < 60_000
    file.set_modified(1_700_000_000_123)
    assert disk.open("a").modified_ms() == 1_700_000_000_123
    disk.close()


def test_only_so_many_descriptors_stay_open_and_nobody_notices(tmp_path: Path) -> None:
    disk = RealDisk(str(tmp_path), open_files_max=4)
    files = [disk.open(f"f{index}", create=True) for index in range(20)]
    for round in range(3):
        for index, file in enumerate(files):
            file.append([b"%d" % (index % 10)])
            assert file.pread(1, round) == b"%d" % (index % 10)
            assert open_descriptors(tmp_path) <= 4
    disk.close()
    assert open_descriptors(tmp_path) == 0


def open_descriptors(folder: Path) -> int:
    found = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            found += os.readlink(f"/proc/self/fd/{name}").startswith(str(folder))
        except FileNotFoundError:
            continue
    return found


def test_a_pinned_slice_stays_readable_when_its_file_is_gone(tmp_path: Path) -> None:
    disk = RealDisk(str(tmp_path), open_files_max=2)
    file = disk.open("a", create=True)
    file.append([b"0123456789"])
    stored = FileSlice(file, 2, 5)
    stored.pin()
    stored.pin()
    disk.unlink("a")
    file.close()
    for index in range(5):
        disk.open(f"other{index}", create=True)
    assert stored.read() == b"23456"
    stored.unpin()
    assert os.pread(file.fileno(), 1, 0) == b"0"
    stored.unpin()
    with pytest.raises(DiskFault):
        stored.read()
    disk.close()


def test_pinning_opens_the_file_while_its_name_is_there(tmp_path: Path) -> None:
    disk = RealDisk(str(tmp_path), open_files_max=1)
    file = disk.open("a", create=True)
    file.append([b"abc"])
    disk.open("b", create=True)
    disk.open("c", create=True)  # by now the first descriptor has been closed
    file.pin()
    disk.unlink("a")
    assert file.pread(3, 0) == b"abc"
    disk.close()


def test_files_opened_in_another_thread_take_no_turns(tmp_path: Path) -> None:
    disk = RealDisk(str(tmp_path), open_files_max=1)
    opened: list[RealFile] = []
    thread = threading.Thread(target=lambda: opened.extend(disk.open(f"t{n}", create=True) for n in range(3)))
    thread.start()
    thread.join()
    disk.open("mine", create=True)
    disk.open("mine too", create=True)
    for file in opened:
        assert file._descriptor >= 0
        file.close()
    disk.close()


def test_a_failed_write_is_cut_back_and_final(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = RealDisk(str(tmp_path))
    file = disk.open("a", create=True)
    file.append([b"whole"])
    half_a_write_then(monkeypatch, errno.EIO)
    with pytest.raises(DiskFault) as fault:
        file.append([b"half"])
    assert fault.value.errno == errno.EIO
    monkeypatch.undo()
    assert file.size == 5
    assert disk.read("a") == b"whole"
    for change in (
        lambda: file.append([b"more"]),
        lambda: file.truncate(0),
        lambda: disk.unlink("a"),
        lambda: disk.open("b", create=True),
        lambda: asyncio.run(file.fsync()),
        lambda: asyncio.run(disk.write_atomic("c", b"")),
    ):
        with pytest.raises(DiskFault) as again:
            change()
        assert again.value is disk.fault
    assert file.pread(5, 0) == b"whole"
    disk.close()


def half_a_write_then(monkeypatch: pytest.MonkeyPatch, error: int) -> None:
    """A write takes two bytes, and the next one fails."""
    real = os.pwritev

    def refuse(*_: object) -> int:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(os, "pwritev", lambda fd, buffers, at: real(fd, [b"ha"], at))
    monkeypatch.setattr(os, "pwrite", refuse)


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT])
def test_a_write_that_finds_no_room_is_taken_back_and_the_disk_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    disk = RealDisk(str(tmp_path))
    file = disk.open("a", create=True)
    file.append([b"whole"])
    half_a_write_then(monkeypatch, error)
    with pytest.raises(DiskFault) as fault:
        file.append([b"half"])
    assert fault.value.passing
    assert (disk.fault, file.size, disk.read("a")) == (None, 5, b"whole")
    monkeypatch.undo()
    assert file.append([b"more"]) == 5
    assert disk.read("a") == b"wholemore"
    disk.close()


def test_a_name_that_the_file_system_refuses_concerns_nobody_else(tmp_path: Path) -> None:
    disk = RealDisk(str(tmp_path))
    with pytest.raises(DiskFault) as fault:
        disk.mkdir("n" * 256)
    assert fault.value.passing
    disk.mkdir("orders-0")
    assert (disk.fault, disk.listdir("")) == (None, ["orders-0"])
    disk.close()


def test_a_write_that_took_less_than_it_was_given_is_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = RealDisk(str(tmp_path))
    file = disk.open("a", create=True)
    real = os.pwritev
    monkeypatch.setattr(os, "pwritev", lambda fd, buffers, at: real(fd, [buffers[0][:2]], at))
    assert file.append([b"whole", b"and all"]) == 0
    assert disk.read("a") == b"wholeand all"
    disk.close()


def test_half_a_write_that_cannot_be_cut_off_is_final(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = RealDisk(str(tmp_path))
    file = disk.open("a", create=True)
    half_a_write_then(monkeypatch, errno.ENOSPC)

    def refuse(*_: object) -> None:
        raise OSError(errno.EIO, "lost")

    monkeypatch.setattr(os, "ftruncate", refuse)
    with pytest.raises(DiskFault, match="could not be cut off"):
        file.append([b"half"])
    assert disk.fault is not None
    disk.close()


def test_an_fsync_that_finds_no_room_is_final(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a file system had taken, and now has no place for, is gone."""
    disk = RealDisk(str(tmp_path))
    file = disk.open("a", create=True)
    file.append([b"x"])

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fdatasync", full)
    with pytest.raises(DiskFault) as fault:
        asyncio.run(file.fsync())
    assert not fault.value.passing
    assert disk.fault is not None
    disk.close()


def test_names_and_atomic_writes_that_find_no_room_leave_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = RealDisk(str(tmp_path))
    asyncio.run(disk.write_atomic("state", b"old"))
    disk.open("goes", create=True).append([b"x"])

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for name in ("makedirs", "fsync"):
        monkeypatch.setattr(os, name, full)
    with pytest.raises(DiskFault) as fault:
        disk.mkdir("t")
    assert fault.value.passing
    with pytest.raises(DiskFault) as fault:
        asyncio.run(disk.write_atomic("state", b"new"))
    assert fault.value.passing
    disk.discard("goes")  # without a name to hide it under, it goes at once
    assert (disk.fault, disk.listdir("")) == (None, ["state"])
    monkeypatch.undo()
    asyncio.run(disk.write_atomic("state", b"new"))
    assert disk.read("state") == b"new"
    disk.close()


def test_a_folder_without_room_for_another_name_tells_its_topic_until_it_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If we die between two of the steps, a later topic of that name must not get what is left."""
    disk = RealDisk(str(tmp_path))
    disk.mkdir("orders-0")
    for name in ("a", PARTITION_METADATA, "z", "y"):
        disk.open(f"orders-0/{name}", create=True).close()

    def no_room(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    steps = []
    remove = os.unlink

    def watched(path: str, **where: Any) -> None:
        steps.append(set(disk.listdir("orders-0")))
        remove(path, **where)

    monkeypatch.setattr(os, "rename", no_room)
    monkeypatch.setattr(os, "unlink", watched)
    disk.discard("orders-0")
    assert not disk.exists("orders-0")
    assert [len(left) for left in steps] == [4, 3, 2, 1]
    assert all(PARTITION_METADATA in left for left in steps)
    disk.close()


def test_an_atomic_write_that_finds_no_descriptor_for_its_folder_has_not_happened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be the plan of a swap, and who is told that it failed clears away what it is about."""
    disk = RealDisk(str(tmp_path))
    asyncio.run(disk.write_atomic("state", b"old"))
    opening = os.open

    def no_folder(path: str, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_DIRECTORY:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return opening(path, flags, mode)

    monkeypatch.setattr(os, "open", no_folder)
    monkeypatch.setattr("log.disk.DESCRIPTOR_PATIENCE_S", 0.0)
    with pytest.raises(DiskFault) as fault:
        asyncio.run(disk.write_atomic("state", b"new"))
    assert fault.value.passing
    assert (disk.fault, disk.read("state"), disk.listdir("")) == (None, b"old", ["state"])
    disk.close()


def test_a_failed_fsync_is_final_even_if_nobody_waits_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = RealDisk(str(tmp_path))
    file = disk.open("a", create=True)

    def fail(_: int) -> None:
        raise OSError(errno.EIO, "lost")

    monkeypatch.setattr(os, "fdatasync", fail)

    async def give_up() -> None:
        waiting = asyncio.ensure_future(file.fsync())
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(give_up())
    disk.close()
    assert disk.fault is not None
    with pytest.raises(DiskFault):
        file.append([b"x"])


def test_a_thread_that_has_synced_one_file_goes_on_with_the_next_and_holds_up_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that takes long for one file serves the others meanwhile, and no more threads are woken than there are."""
    disk, asked, slow, woken = RealDisk(str(tmp_path)), threading.Event(), threading.Event(), 0
    submit = disk._syncers.submit

    def counted(*job: Any) -> Any:
        nonlocal woken
        woken += 1
        return submit(*job)

    monkeypatch.setattr(disk._syncers, "submit", counted)

    async def scene() -> None:
        late = asyncio.ensure_future(disk.in_syncers("a", slow.wait))
        others = [asyncio.ensure_future(disk.in_syncers("b", asked.wait)) for _ in range(50)]
        await asyncio.sleep(0)
        asked.set()
        await asyncio.gather(*others)
        told = woken, late.done()
        slow.set()
        await late
        assert told == (SYNCS_AT_ONCE, False)
        await disk.in_syncers("c", asked.wait)  # the threads have gone to sleep since

    asyncio.run(asyncio.wait_for(scene(), 20))
    disk.close()


def test_what_is_missing_makes_no_fault_of_the_disk_unless_the_data_folder_is(tmp_path: Path) -> None:
    disk = RealDisk(str(tmp_path / "data"))
    for there in (True, False):
        if there:
            disk.mkdir("")
        else:
            shutil.rmtree(tmp_path / "data")
        with pytest.raises(FileNotFoundError):
            disk.open("t-0/0.log")
        with pytest.raises(DiskFault) as gone:
            disk.open("t-0/0.log", create=True)
        with pytest.raises(DiskFault):
            asyncio.run(disk.write_atomic("t-0/1", b"x"))
        with pytest.raises(DiskFault):
            asyncio.run(disk.sync_dir("t-0"))
        assert gone.value.is_missing
        assert (disk.fault is None) is there
    disk.close()


def test_files_that_are_synced_together_are_so_at_the_same_time_and_each_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, both, synced = RealDisk(str(tmp_path)), threading.Barrier(2), list[int]()
    files = [disk.open(name, create=True) for name in "ab"]
    bad = files[0].fileno()

    def sync(descriptor: int) -> None:
        both.wait(10)
        if descriptor == bad:
            raise OSError(errno.EIO, "broken")
        time.sleep(0.05)
        synced.append(descriptor)

    monkeypatch.setattr("log.disk.os.fdatasync", sync)
    with pytest.raises(DiskFault, match="broken"):
        asyncio.run(disk.sync_files(files))
    assert synced == [files[1].fileno()]
    assert disk.fault is not None
    disk.close()


def test_each_who_waits_for_a_sync_is_told_of_its_own_and_nothing_is_done_for_who_is_gone(tmp_path: Path) -> None:
    disk, slow, done = RealDisk(str(tmp_path)), threading.Event(), list[str]()

    def fails() -> None:
        raise OSError(errno.EIO, "broken")

    async def scene() -> None:
        held = [asyncio.ensure_future(disk.in_syncers("slow", slow.wait)) for _ in range(SYNCS_AT_ONCE)]
        await asyncio.sleep(0)
        gone = asyncio.ensure_future(disk.in_syncers("gone", done.append, "gone"))
        failed = asyncio.ensure_future(disk.in_syncers("failed", fails))
        good = asyncio.ensure_future(disk.in_syncers("good", done.append, "good"))
        await asyncio.sleep(0)
        gone.cancel()
        slow.set()
        await asyncio.gather(*held)
        with pytest.raises(DiskFault, match="broken"):
            await failed
        await good

    asyncio.run(asyncio.wait_for(scene(), 20))
    assert done == ["good"]
    assert disk.fault is not None
    disk.close()


def test_names_change_as_asked(tmp_path: Path) -> None:
    disk = RealDisk(str(tmp_path))
    disk.mkdir("folder")
    disk.mkdir("folder")
    disk.open("folder/a", create=True).append([b"a"])
    with pytest.raises(FileExistsError):
        disk.open("folder/a", create=True, exclusive=True)
    with pytest.raises(FileNotFoundError):
        disk.open("folder/b")
    with pytest.raises(FileNotFoundError):
        disk.listdir("nowhere")
    disk.open("folder/b", create=True)
    disk.rename("folder/a", "folder/b")
    assert disk.read("folder/b") == b"a"
    assert disk.listdir("folder") == ["b"]
    disk.unlink("folder/a")
    disk.discard("folder")
    disk.discard("folder")
    assert not disk.exists("folder")
    assert disk.space().total_bytes > disk.space().free_bytes > 0
    disk.close()


def test_an_atomic_write_leaves_nothing_beside_the_file(tmp_path: Path) -> None:
    disk = RealDisk(str(tmp_path))
    for content in (b"first", b"second"):
        asyncio.run(disk.write_atomic("a", content))
        assert disk.read("a") == content
    asyncio.run(disk.sync_dir(""))
    assert disk.listdir("") == ["a"]
    disk.close()


def test_what_is_discarded_is_removed_beside_the_loop_and_at_the_next_start_if_a_crash_came_first(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        disk = RealDisk(str(tmp_path))
        disk.mkdir("t-0")
        disk.open("t-0/a", create=True).append([b"x"])
        (tmp_path / DISCARDED).mkdir()
        (tmp_path / DISCARDED / "7").write_bytes(b"left by a crash")
        (tmp_path / DISCARDED / "12").mkdir()
        (tmp_path / DISCARDED / "12" / "b").write_bytes(b"left by a crash")
        disk.sweep()
        disk.discard("t-0")
        assert not disk.exists("t-0")
        disk._remover.submit(lambda: None).result()  # it takes one thing after the other
        assert os.listdir(tmp_path / DISCARDED) == []
        disk.close()

    asyncio.run(main())


def test_a_file_that_is_closed_while_a_thread_syncs_it_harms_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller was cancelled, and the descriptor closed at once. The thread met a bad descriptor, which was taken for
    a failure of the disk: the whole folder went out of service.
    """
    syncs, goes_on = threading.Event(), threading.Event()
    sync = os.fdatasync

    def slow(descriptor: int) -> None:
        syncs.set()
        assert goes_on.wait(30)
        sync(descriptor)

    async def main() -> None:
        disk = RealDisk(str(tmp_path))
        monkeypatch.setattr("log.disk.os.fdatasync", slow)
        for together in (False, True):
            syncs.clear()
            goes_on.clear()
            file = disk.open("a", create=True)
            syncing = asyncio.ensure_future(disk.sync_files([file]) if together else file.fsync())
            assert await asyncio.to_thread(syncs.wait, 30)
            syncing.cancel()
            await asyncio.wait([syncing])
            file.close()
            goes_on.set()
        disk.close()
        assert disk.fault is None
        assert not [name for name in os.listdir("/proc/self/fd") if links_to(name) == f"{tmp_path}/a"]

    asyncio.run(main())


def test_a_sync_is_told_also_if_its_file_can_t_be_closed_after_it(tmp_path: Path) -> None:
    """No further thread could be started for that. The flush that waited for the sync waited for ever."""

    async def main() -> None:
        disk = RealDisk(str(tmp_path))

        def can_t() -> None:
            raise RuntimeError("can't start new thread")

        with pytest.raises(RuntimeError, match="new thread"):
            async with asyncio.timeout(30):
                await disk.in_syncers("a", lambda: None, over=can_t)
        await disk.in_syncers("a", lambda: None)
        disk.close()

    asyncio.run(main())


def links_to(descriptor: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except FileNotFoundError:
        return ""


def test_nothing_waits_for_the_removal_of_what_was_discarded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes a minute for a topic of 100 GB. The checkpoints and new names of all other partitions, and the stop of
    the broker, waited for it.
    """
    removes, goes_on = threading.Event(), threading.Event()

    def unlink(path: str) -> None:
        removes.set()
        assert goes_on.wait(30)
        os.remove(path)

    async def main() -> None:
        disk = RealDisk(str(tmp_path))
        disk.mkdir("t-0")
        for name in "abc":
            disk.open(f"t-0/{name}", create=True).close()
        monkeypatch.setattr("log.disk.os.unlink", unlink)
        disk.discard("t-0")
        assert removes.wait(30)
        await disk.write_atomic("checkpoint", b"1")
        await disk.sync_dir("")
        closing = asyncio.ensure_future(asyncio.to_thread(disk.close))
        while not disk._closing.is_set():  # noqa: ASYNC110 - another thread sets it
            await asyncio.sleep(0.01)
        goes_on.set()
        await closing
        (left,) = (tmp_path / DISCARDED).iterdir()
        assert len(list(left.iterdir())) == 2  # the next start removes them
        disk = RealDisk(str(tmp_path))
        disk.sweep()
        disk._remover.submit(lambda: None).result()
        assert os.listdir(tmp_path / DISCARDED) == []
        disk.close()

    asyncio.run(main())


def test_a_removal_that_fails_is_noted(tmp_path: Path) -> None:
    """Nobody waits for it, so it must not be lost."""

    async def main() -> None:
        disk = RealDisk(str(tmp_path))
        (tmp_path / "file").touch()
        disk._remover.submit(disk._do, "file", os.rmdir, (tmp_path / "file",))
        disk._remover.submit(lambda: None).result()
        with pytest.raises(DiskFault):
            await disk.sync_dir("")
        disk.close()

    asyncio.run(main())


def test_a_process_without_descriptors_is_no_failure_of_the_disk(tmp_path: Path) -> None:
    """The disk gives up files of its own that nobody uses; beside the loop it waits until one is free."""

    async def body() -> None:
        disk = RealDisk(str(tmp_path))
        files = [disk.open(f"{number}", create=True) for number in range(4)]
        for file in files:
            file.append([b"x"])
        with no_descriptors_left():
            disk.mkdir("more")
            more = disk.open("more/5", create=True)
            more.append([b"y"])
            assert disk.listdir("more") == ["5"]
            assert disk.read("0") == b"x"
            disk.discard("3")
            writing = asyncio.ensure_future(disk.write_atomic("atomic", b"z"))
            await asyncio.sleep(0.05)  # it meets the shortage, if it is quick
        await writing
        assert disk.fault is None
        assert [file.pread(1, 0) for file in files[:3]] == [b"x"] * 3
        disk.close()

    asyncio.run(body())


@contextmanager
def no_descriptors_left() -> Iterator[None]:
    """Every descriptor that the process may have is taken."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(number) for number in os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 2, before[1]))
    taken = []
    try:
        with suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        yield
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_file_that_was_removed_while_its_descriptor_had_been_given_back_is_a_fault_of_its_own(tmp_path: Path) -> None:
    disk = RealDisk(str(tmp_path), open_files_max=1)
    first, second = (disk.open(name, create=True) for name in ("a", "b"))
    first.append([b"x"])
    second.append([b"y"])
    (tmp_path / "a").unlink()
    with pytest.raises(DiskFault, match="No such file"):
        first.pread(1, 0)
    assert second.pread(1, 0) == b"y"
    assert disk.fault is None
    disk.close()


def test_a_folder_is_at_another_place_than_its_copies(tmp_path: Path) -> None:
    """The next process finds it where it was."""
    own, copy = tmp_path / "own", tmp_path / "copy"
    own.mkdir()
    place = RealDisk(str(own)).place()
    shutil.copytree(own, copy)
    assert RealDisk(str(own)).place() == place
    assert RealDisk(str(copy)).place() != place
    own.rename(tmp_path / "renamed")
    copy.rename(own)
    assert RealDisk(str(own)).place() != place

"""The port to the disk, and the real disk.

What always holds:
* An append is whole or did not happen. What was appended changes only by `patch`, which is for files that nobody reads
  yet.
* A change that fails raises a `DiskFault`, and the fault is final: the disk answers every later change with the same
  one, because nobody knows what is on the platter. Reads go on.
* There is one exception, a fault that passes by itself (`DiskFault.passing`): an append, a new file or folder, or an
  atomic write found no room or no free descriptor, or a name was refused. It is taken back whole, nothing has changed,
  and the caller may try again. A failed fsync never passes, for whatever reason it failed: the bytes may be lost.
* A file or folder that is missing (`DiskFault.is_missing`) is final for what it belongs to, but not for the disk, as
  long as the data folder is there: somebody has removed it.
* `fsync`, `sync_dir` and `write_atomic` are awaited. The latter two run in the one writer thread of the disk, fsyncs in
  a few threads of their own. What was discarded is removed in one more. All else is a plain call into the page cache.
* Nothing is durable before the `fsync` of its file, and of its folder's names, has returned.
* Name changes (create, rename, unlink) survive a power cut as a prefix of the order in which they were made.

A `File` is used by one thread at a time.
"""

import asyncio
import ctypes
import errno
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from log.batch import Buffer
from log.unbroken import unbroken

T = TypeVar("T")

OPEN_FILES_MAX: Final = 1024
"""How many descriptors stay open. When there are more, one that was not used for long is closed. It is opened again on
demand.
"""
SYNCS_AT_ONCE: Final = 4
NO_DESCRIPTORS: Final = (errno.EMFILE, errno.ENFILE)
"""The process, or the machine, has as many files and connections open as it may. That is no failure of the disk."""
NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT)
"""The disk is full, or its owner may not use more of it. That is no failure of the disk either."""
NAME_REFUSED: Final = (errno.ENAMETOOLONG, errno.EMLINK)
"""The file system has no such long names, or not so many folders in one. That concerns one partition."""
NOT_RESERVED: Final = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)
"""The file system can't reserve room. That is no failure of the disk."""
DESCRIPTOR_PATIENCE_S: Final = 10.0
"""How long a thread beside the loop waits for a free descriptor."""
TEMPORARY: Final = ".tmp"
DISCARDED: Final = ".discarded"
"""The folder in which a real disk keeps files that are being removed. `sweep` removes what a crash left there."""
BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"
"""The kernel's own name for the time since it started: containers have that of their machine."""
PARTITION_METADATA: Final = "partition.metadata"
"""The file that tells which topic a partition's folder belongs to (`log/identity.py`)."""


class DiskFault(OSError):
    """The disk failed. A failed change is final for this disk, unless the fault is `passing`."""

    @property
    def passing(self) -> bool:
        """Nothing was changed, and the same may succeed later."""
        return self.errno in (*NO_ROOM, *NO_DESCRIPTORS, *NAME_REFUSED)

    @property
    def is_missing(self) -> bool:
        """A file or folder is not there."""
        return self.errno == errno.ENOENT


class File(Protocol):
    """An append-only file."""

    @property
    def path(self) -> str: ...
    @property
    def size(self) -> int: ...
    def append(self, buffers: Sequence[Buffer]) -> int:
        """All buffers at the end of the file, or `DiskFault` and the file as it was. Returns where they start."""

    def reserve(self, size_bytes: int) -> None:
        """Take the room for so many bytes at the end of an empty file, before they are appended. A rename of the file
        then finds nothing to do but the name: ext4 writes out a file without its places when it replaces another.
        """

    def patch(self, position: int, data: Buffer) -> None:
        """Write over bytes of the file, all within its first sector: after a crash they are the old ones or the new."""

    def pread(self, size: int, position: int) -> bytes:
        """The bytes that are there; fewer than `size` only at the end of the file."""

    def truncate(self, size: int) -> None: ...
    def modified_ms(self) -> int:
        """When the file was last changed, by the wall clock, or what `set_modified` has said since."""

    def set_modified(self, modified_ms: int) -> None: ...
    async def fsync(self) -> None:
        """What was appended before the call is durable when it returns."""

    def fileno(self) -> int | None:
        """A descriptor to read or map, valid until the next await; None where there is none."""

    def pin(self) -> None:
        """Keep the bytes readable until `unpin`, even if the file is removed or other files need descriptors."""

    def unpin(self) -> None: ...
    def close(self) -> None:
        """Nobody will ask for this file again; pinned readers still finish."""


class Disk(Protocol):
    """One data folder. Paths are relative to it, with slashes."""

    fault: DiskFault | None
    """The fault that made this disk unusable for changes. A file that can't be read makes no such fault. Who takes the
    folder out of service for another reason sets it.
    """

    def place(self) -> str:
        """Tells this folder from all its copies, here and on other machines. A process that is started again finds the
        folder at the same place, unless the machine was started again, or the disk moved, in between.
        """

    def open(self, path: str, *, create: bool = False, exclusive: bool = False) -> File:
        """FileNotFoundError without `create`; FileExistsError with `exclusive`."""

    def read(self, path: str) -> bytes:
        """A whole small file; FileNotFoundError when it is not there."""

    def listdir(self, path: str) -> list[str]:
        """The names in a folder, in any order; FileNotFoundError when it is not there."""

    def exists(self, path: str) -> bool: ...
    def mkdir(self, path: str) -> None:
        """One folder; fine when it is there."""

    def rename(self, source: str, target: str) -> None:
        """Replaces `target`."""

    def unlink(self, path: str) -> None:
        """Fine when it is gone."""

    def discard(self, path: str) -> None:
        """Remove a file, or a folder and all in it. The name is free at once; another thread gives the bytes back
        later. Fine when it is gone.
        """

    def sweep(self) -> None:
        """Remove, in another thread, what was discarded before a crash and is still there."""

    async def sync_files(self, files: Sequence[File]) -> None:
        """`File.fsync` of all of these, at the same time. If some fail, it raises when all have ended."""

    async def sync_dir(self, path: str) -> None:
        """The names of this folder are durable when it returns. The data folder itself is the empty path."""

    async def sync_all(self) -> None:
        """Everything that was changed before the call is durable when it returns. It costs more than one fsync, and far
        less than thousands.
        """

    async def write_atomic(self, path: str, data: Buffer) -> None:
        """After any crash the file holds its old bytes or the new ones; durable when it returns."""

    def space(self) -> "Space":
        """`DiskFault` when the file system does not answer. Such a fault is not final for the disk."""


class Space(NamedTuple):
    """How large the file system below a data folder is, and how much of it can still be written."""

    total_bytes: int
    free_bytes: int


class FileSlice:
    """Stored bytes on their way out. A caller that keeps a slice past the next await must pin it, and unpin it once."""

    __slots__ = ("file", "position", "size")

    def __init__(self, file: File, position: int, size: int) -> None:
        self.file = file
        self.position = position
        self.size = size

    def __len__(self) -> int:
        return self.size

    def pin(self) -> None:
        self.file.pin()

    def unpin(self) -> None:
        self.file.unpin()

    def fileno(self) -> int | None:
        return self.file.fileno()

    def read(self) -> bytes:
        return self.file.pread(self.size, self.position)

    async def in_thread(
        self, blocking: Callable[..., Coroutine[Any, Any, Any]], function: Callable[..., T], *more: Any
    ) -> T:
        """`function` of this slice, and of `more`, which `blocking` runs in a thread. A file that a thread reads must
        not be closed.
        """
        self.pin()
        try:
            found: T = await unbroken(blocking(function, self, *more))
        finally:
            self.unpin()
        return found


# ---------------------------------------------------------------- the real one


class RealFile:
    """A file of a `RealDisk`. Its descriptor may be closed between calls and is opened again when needed."""

    __slots__ = ("_closed", "_descriptor", "_disk", "_pins", "path", "size", "used")

    def __init__(self, disk: "RealDisk", path: str, descriptor: int, size: int) -> None:
        self._disk = disk
        self._descriptor = descriptor
        self._pins = 0
        self._closed = False
        self.path = path
        self.size = size
        self.used = True

    def append(self, buffers: Sequence[Buffer]) -> int:
        if self._disk.fault is not None:
            raise self._disk.fault
        descriptor = self._descriptor if self._descriptor >= 0 else self._reopen()
        self.used = True
        position = self.size
        wanted = sum(map(len, buffers))
        try:
            written = os.pwritev(descriptor, buffers, position)
            if written != wanted:
                _write_rest(descriptor, buffers, written, position)
        except OSError as error:
            raise self._taken_back(error, descriptor) from error
        self.size = position + wanted
        return position

    def _taken_back(self, error: OSError, descriptor: int) -> DiskFault:
        """Cut off what a failed append has written. If that fails, too, the fault is final."""
        try:
            os.ftruncate(descriptor, self.size)
        except OSError as second:
            why = f"{error.strerror}, and the half-written bytes could not be cut off: {second.strerror}"
            return self._disk.fail(OSError(errno.EIO, why), self.path)
        return self._disk.fail(error, self.path)

    def reserve(self, size_bytes: int) -> None:
        self._disk.check()
        descriptor = self.fileno()
        try:
            os.posix_fallocate(descriptor, 0, size_bytes)
        except OSError as error:
            if error.errno not in NOT_RESERVED:
                raise self._taken_back(error, descriptor) from error

    def patch(self, position: int, data: Buffer) -> None:
        self._disk.check()
        try:
            written = os.pwrite(self.fileno(), data, position)
        except OSError as error:
            raise self._disk.fail(error, self.path) from error
        assert written == len(data), "the bytes have their room already"

    def pread(self, size: int, position: int) -> bytes:
        descriptor = self._descriptor if self._descriptor >= 0 else self._reopen()
        self.used = True
        try:
            return os.pread(descriptor, size, position)
        except OSError as error:
            raise DiskFault(error.errno, error.strerror, self.path) from error

    def truncate(self, size: int) -> None:
        self._disk.check()
        try:
            os.ftruncate(self.fileno(), size)
        except OSError as error:
            raise self._disk.fail(error, self.path) from error
        self.size = size

    def modified_ms(self) -> int:
        try:
            return os.fstat(self.fileno()).st_mtime_ns // 1_000_000
        except OSError as error:
            raise DiskFault(error.errno, error.strerror, self.path) from error

    def set_modified(self, modified_ms: int) -> None:
        self._disk.check()
        try:
            os.utime(self.fileno(), ns=(modified_ms * 1_000_000,) * 2)
        except OSError as error:
            raise self._disk.fail(error, self.path) from error

    async def fsync(self) -> None:
        await self._disk.sync_file(self)

    def fileno(self) -> int:
        self.used = True
        return self._descriptor if self._descriptor >= 0 else self._reopen()

    def pin(self) -> None:
        if self._descriptor < 0:
            self._reopen()  # now, while the name is still there
        with self._disk.lock:
            self._pins += 1

    def unpin(self) -> None:
        with self._disk.lock:
            assert self._pins > 0, "unpinned more often than pinned"
            self._pins -= 1
            if self._closed and not self._pins and self._descriptor >= 0:
                # The file may have been unlinked. Then closing it gives its room back, which takes long.
                self._disk.close_beside(self._descriptor)
                self._descriptor = -1
                self._disk.forget(self)

    def close(self) -> None:
        with self._disk.lock:
            self._closed = True
            self.release()

    def release(self) -> bool:
        """Give the descriptor back unless somebody needs it. The caller holds the disk's lock."""
        if self._pins or self._descriptor < 0:
            return False
        os.close(self._descriptor)
        self._descriptor = -1
        self._disk.forget(self)
        return True

    def _reopen(self) -> int:
        if self._closed:
            raise DiskFault(errno.EBADF, "the file was closed", self.path)
        try:
            self._descriptor = self._disk.open_descriptor(self, self.path, os.O_RDWR)
        except FileNotFoundError as error:
            raise DiskFault(error.errno, error.strerror, self.path) from error
        return self._descriptor


class SyncJob(NamedTuple):
    """A job for the syncing threads, and who waits for it."""

    path: str
    job: Callable[..., object]
    args: tuple[object, ...]
    over: Callable[[], None] | None
    done: asyncio.Future[None]


class RealDisk:
    """A folder of the machine's file system."""

    def __init__(self, root: str, *, open_files_max: int = OPEN_FILES_MAX) -> None:
        self.fault: DiskFault | None = None
        self.lock = threading.RLock()
        self._root = root
        self._open_files_max = open_files_max
        # Oldest first. Only files opened by the thread that made the disk (the loop's) are listed here, and only these
        # are closed to make room. If another thread's file were closed, that could happen between the moment in which
        # the thread reads the descriptor's number and its system call. Other threads close what they open.
        self._open_files: dict[RealFile, None] = {}
        self._owner = threading.get_ident()
        self._discards = time.time_ns()  # above every number that an earlier process has used
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="disk-writer")
        # These two give room back, which takes half a second for each gigabyte. Nothing waits for that.
        self._remover = ThreadPoolExecutor(1, thread_name_prefix="disk-remover")
        self._closer = ThreadPoolExecutor(1, thread_name_prefix="disk-closer")
        self._closing = threading.Event()
        self._syncers = ThreadPoolExecutor(SYNCS_AT_ONCE, thread_name_prefix="disk-sync")
        self._to_sync: deque[SyncJob] = deque()
        self._syncing = 0
        """How many threads look for jobs in `_to_sync`. Both are changed with the lock held."""

    def __reduce__(self) -> tuple[type["RealDisk"], tuple[str]]:
        """In another process it is the same folder, with descriptors and threads of its own."""
        return RealDisk, (self._root,)

    def place(self) -> str:
        try:
            boot = Path(BOOT_ID).read_text("ascii").strip()
        except OSError:  # another system than Linux: a copy on another machine may seem to be at the same place
            boot = ""
        try:
            state = os.stat(self._root)
        except OSError as error:
            raise DiskFault(error.errno, error.strerror, self._root) from error
        return f"{boot}:{state.st_dev}:{state.st_ino}"

    # -- files

    def open(self, path: str, *, create: bool = False, exclusive: bool = False) -> RealFile:
        flags = os.O_RDWR | (os.O_CREAT if create else 0) | (os.O_EXCL if exclusive else 0)
        if create:
            self.check()
        file = RealFile(self, path, -1, 0)
        try:
            descriptor = self.open_descriptor(file, path, flags)
        except FileNotFoundError as error:
            if create:  # somebody has removed the folder
                raise self.fail(error, path) from error
            raise
        file._descriptor = descriptor
        file.size = os.fstat(descriptor).st_size
        return file

    def open_descriptor(self, file: RealFile, path: str, flags: int) -> int:
        """A new descriptor. If the loop's thread opens it, it may be closed later to make room for others."""
        try:
            descriptor = self._spared(lambda: os.open(self._real(path), flags | os.O_CLOEXEC, 0o644))
        except (FileNotFoundError, FileExistsError):
            raise
        except OSError as error:
            raise DiskFault(error.errno, error.strerror, path) from error
        if threading.get_ident() == self._owner:
            with self.lock:
                self._open_files[file] = None
                if len(self._open_files) > self._open_files_max:
                    self._close_one(spare=file)
        return descriptor

    def _close_one(self, spare: RealFile | None = None) -> bool:
        """Close the oldest file that was not used lately. A used one goes to the back of the queue (second chance)."""
        for _ in range(2 * len(self._open_files)):
            oldest = next(iter(self._open_files))
            if oldest is not spare and not oldest.used and oldest.release():
                return True
            oldest.used = False
            del self._open_files[oldest]
            self._open_files[oldest] = None
        return False

    def _spared(self, call: Callable[[], T]) -> T:
        """The result of `call`. If the process has no descriptor left for it, the loop's thread closes one of the
        disk's files; other threads wait until a descriptor is free.
        """
        patience_ends_s = time.monotonic() + DESCRIPTOR_PATIENCE_S
        while True:
            try:
                return call()
            except OSError as error:
                if error.errno not in NO_DESCRIPTORS or not self._make_room(patience_ends_s):
                    raise

    def _make_room(self, patience_ends_s: float) -> bool:
        if threading.get_ident() == self._owner:
            with self.lock:
                return self._close_one()
        time.sleep(0.01)
        return time.monotonic() < patience_ends_s

    def close_beside(self, descriptor: int) -> None:
        """Close a descriptor that nobody uses any more, in another thread."""
        self._closer.submit(os.close, descriptor)

    def forget(self, file: RealFile) -> None:
        self._open_files.pop(file, None)

    def read(self, path: str) -> bytes:
        try:
            return self._spared(Path(self._real(path)).read_bytes)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise DiskFault(error.errno, error.strerror, path) from error

    # -- names

    def listdir(self, path: str) -> list[str]:
        try:
            return self._spared(lambda: os.listdir(self._real(path)))
        except FileNotFoundError:
            raise
        except OSError as error:
            raise DiskFault(error.errno, error.strerror, path) from error

    def exists(self, path: str) -> bool:
        return os.path.exists(self._real(path))

    def mkdir(self, path: str) -> None:
        self._change(path, lambda real: os.makedirs(real, exist_ok=True))

    def rename(self, source: str, target: str) -> None:
        self._change(source, lambda real: os.replace(real, self._real(target)), room_matters=False)

    def unlink(self, path: str) -> None:
        self._change(path, _unlink_if_there, room_matters=False)

    def discard(self, path: str) -> None:
        self._change(path, self._hide, room_matters=False)

    def _hide(self, real_path: str) -> None:
        """Move the file or folder to `.discarded`, and let the remover's thread remove it."""
        try:
            os.makedirs(self._real(DISCARDED), exist_ok=True)
            with self.lock:
                self._discards += 1
                hidden = self._real(f"{DISCARDED}/{self._discards}")
            os.rename(real_path, hidden)
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            self._remove_in_place(real_path)  # there is not even room for another name: this makes some
            return
        self._remover.submit(self._do, real_path, self._remove, (hidden,))

    def sweep(self) -> None:
        if self.exists(DISCARDED):
            for name in self.listdir(DISCARDED):
                path = f"{DISCARDED}/{name}"
                self._remover.submit(self._do, path, self._remove, (self._real(path),))

    def _remove(self, real_path: str) -> None:
        """When the disk is closed meanwhile, the rest is left to the next start."""
        if not os.path.isdir(real_path) or os.path.islink(real_path):
            _unlink_if_there(real_path)
            return
        for name in os.listdir(real_path):
            if not self._closing.is_set():
                self._remove(f"{real_path}/{name}")
        if not self._closing.is_set():
            os.rmdir(real_path)

    def _remove_in_place(self, real_path: str) -> None:
        """Remove what keeps its name meanwhile. If we die halfway, a partition's folder still tells its topic.
        Otherwise a later topic of that name would get what is left in it.
        """
        if os.path.isdir(real_path):
            for name in os.listdir(real_path):
                if name != PARTITION_METADATA:
                    self._remove(f"{real_path}/{name}")
        self._remove(real_path)

    def _change(self, path: str, change: Callable[[str], None], *, room_matters: bool = True) -> None:
        """Change a name. `room_matters`: if there is no room the caller tries again later. Without it, a change that
        finds no room is a final fault, because it can't be left half done.
        """
        self.check()
        try:
            self._spared(lambda: change(self._real(path)))
        except OSError as error:
            if error.errno in (*NO_ROOM, *NAME_REFUSED) and not room_matters:
                error = OSError(errno.EIO, f"a name could not be changed: {error.strerror}")
            raise self.fail(error, path) from error

    # -- what is awaited

    async def sync_dir(self, path: str) -> None:
        await self.in_writer(path, _sync_dir, self._real(path))

    async def sync_all(self) -> None:
        await self.in_writer("", _sync_file_system, self._root)

    async def write_atomic(self, path: str, data: Buffer) -> None:
        await self.in_writer(path, _write_atomic, self._real(path), data)

    async def in_writer(self, path: str, job: Callable[..., None], *args: object) -> None:
        """Run a change in the writer's thread, after all changes before it. A failure is noted in that thread, so that
        it is not lost if the caller is cancelled.
        """
        self.check()
        await asyncio.get_running_loop().run_in_executor(self._writer, self._do, path, job, args)

    async def sync_files(self, files: Sequence[File]) -> None:
        jobs: list[asyncio.Future[None]] = []
        try:
            for file in files:
                jobs.append(self.sync_file(file))
            if jobs:
                await asyncio.wait(jobs)
        finally:
            for job in jobs:
                job.cancel()
        for failure in [job.exception() for job in jobs]:
            if failure is not None:
                raise failure

    def sync_file(self, file: File) -> asyncio.Future[None]:
        """Begin `File.fsync`. The file is pinned until it is over: a thread may still use the descriptor of one whose
        caller has been cancelled.
        """
        file.pin()
        try:
            return self.in_syncers(file.path, _sync, os.fdatasync, file.fileno(), over=file.unpin)
        except BaseException:
            file.unpin()
            raise

    def in_syncers(
        self, path: str, job: Callable[..., object], *args: object, over: Callable[[], None] | None = None
    ) -> asyncio.Future[None]:
        """The same for jobs that need not wait for others. They run at the same time, and file systems join several
        fsyncs into one commit of their journal. To wake a thread takes longer than many an fsync, so one that is awake
        goes on as long as there are jobs. `over` is called in the thread when the job is done, or is not done because
        nobody waits for it.
        """
        self.check()
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        with self.lock:
            self._to_sync.append(SyncJob(path, job, args, over, done))
            wakes_one = self._syncing < SYNCS_AT_ONCE
            self._syncing += wakes_one
        if wakes_one:
            self._syncers.submit(self._sync_waiting)
        return done

    def _sync_waiting(self) -> None:
        """Do the jobs that wait, in one of the threads for them, until none does. Each is told at once: the next one
        may take long.
        """
        while True:
            with self.lock:
                if not self._to_sync:
                    self._syncing -= 1
                    return
                path, job, args, over, done = self._to_sync.popleft()
            failure: Exception | None = None
            try:
                try:
                    if not done.cancelled():
                        self._do(path, job, args)
                finally:
                    if over is not None:
                        over()
            except Exception as error:  # noqa: BLE001 - the caller that waits for the job is told
                failure = error
            with suppress(RuntimeError):  # the loop is closed, and nobody waits
                done.get_loop().call_soon_threadsafe(_tell, done, failure)

    def _do(self, path: str, job: Callable[..., object], args: tuple[object, ...]) -> None:
        try:
            self._spared(lambda: job(*args))
        except OSError as error:
            raise self.fail(error, path) from error

    # -- state

    def space(self) -> "Space":
        try:
            state = os.statvfs(self._root)
        except OSError as error:
            raise DiskFault(error.errno, error.strerror, self._root) from error
        return Space(state.f_blocks * state.f_frsize, state.f_bavail * state.f_frsize)

    def check(self) -> None:
        """Raises the fault that made this disk unusable."""
        if self.fault is not None:
            raise self.fault

    def fail(self, error: OSError, path: str) -> DiskFault:
        """Remember the first failure of the disk that does not pass; every change after it meets the same one."""
        fault = DiskFault(error.errno, error.strerror or str(error), path)
        harms_one = fault.is_missing and os.path.isdir(self._root)
        if self.fault is None and not fault.passing and not harms_one:
            self.fault = fault
        return fault

    def close(self) -> None:
        """Close every descriptor and end the threads. The disk is not used again. Discarded files that are still there
        are removed at the next start.
        """
        self._closing.set()
        self._writer.shutdown(cancel_futures=True)
        self._remover.shutdown(cancel_futures=True)
        self._syncers.shutdown()
        self._closer.shutdown()
        with self.lock:
            for file in list(self._open_files):
                file.close()

    def _real(self, path: str) -> str:
        return f"{self._root}/{path}" if path else self._root


def _unlink_if_there(real_path: str) -> None:
    try:
        os.unlink(real_path)
    except FileNotFoundError:
        return


def _write_rest(descriptor: int, buffers: Sequence[Buffer], written: int, position: int) -> None:
    """Write what a short write has left over. The next write takes more bytes, or its error tells why it can't."""
    position += written
    for buffer in buffers:
        rest = memoryview(buffer)[written:]
        written = max(written - len(buffer), 0)
        while rest:
            taken = os.pwrite(descriptor, rest, position)
            if not taken:
                raise OSError(errno.ENOSPC, "not all bytes were taken")
            rest, position = rest[taken:], position + taken


def _tell(done: asyncio.Future[None], failure: Exception | None) -> None:
    if done.done():
        return  # it was cancelled
    if failure is None:
        done.set_result(None)
    else:
        done.set_exception(failure)


def _sync(sync: Callable[[int], None], descriptor: int) -> None:
    """Sync, and take "no room" for a final failure. A file system that looks for room this late has lost bytes that it
    had accepted.
    """
    try:
        sync(descriptor)
    except OSError as error:
        if error.errno in NO_ROOM:
            raise OSError(errno.EIO, f"what was written could not be made durable: {error.strerror}") from error
        raise


def _sync_dir(real_path: str) -> None:
    descriptor = os.open(real_path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _sync(os.fsync, descriptor)
    finally:
        os.close(descriptor)


def _sync_file_system(real_path: str) -> None:
    """Unlike `os.sync`, this waits and reports errors, and for this file system alone."""
    descriptor = os.open(real_path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _sync(_syncfs, descriptor)
    finally:
        os.close(descriptor)


def _syncfs(descriptor: int) -> None:
    if ctypes.CDLL(None, use_errno=True).syncfs(descriptor) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _write_atomic(real_path: str, data: Buffer) -> None:
    temporary = real_path + TEMPORARY
    # The folder is opened first. After the rename nothing may fail with an error that passes: the caller would believe
    # that nothing has changed.
    folder = os.open(os.path.dirname(real_path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, real_path)
        _sync(os.fsync, folder)
    except OSError:
        _unlink_if_there(temporary)  # nobody needs it, and it may be what fills the disk
        raise
    finally:
        os.close(folder)

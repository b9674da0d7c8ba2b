"""A disk with a page cache and a platter, behind the port of `log.disk`.

A process sees the cache. A kill leaves the cache as it is. A power cut leaves the platter, and of what was not synced
whatever luck had it that the kernel wrote back: any subset of a file's dirty sectors, and of the name changes a prefix
of the order in which they were made.

What always holds:
 - Bytes are on the platter for sure once an fsync has returned that began after they were appended; names, once a
   `sync_dir` of their folder has. It makes no other folder's names durable, which is more than journalling file systems
   would need and no more than POSIX promises.
 - A failed fsync leaves the pages clean and unwritten, as Linux does: a later fsync succeeds and proves nothing about
   them.
 - A process that died can't touch its disk: every call of it raises `ProcessDied`.
 - The same seed and the same calls give the same faults.

`SimDisk` is the device, `Mount` is the `Disk` port as one process sees it, with the port's rule that the first failed
change is final for that process, unless it passes.

Faults are planted through `SimDisk.faults`, `fail_next`, `flip_bit` and `trip_after`,
which ends the process in the middle of one of its disk calls.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import random
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import count
from typing import TYPE_CHECKING, Any

from log.batch import Buffer
from log.disk import DISCARDED, TEMPORARY, DiskFault, File, Space

if TYPE_CHECKING:
    from tests.sim.world import Host

PASSES_WHEN = {"append", "reserve", "create", "truncate", "mkdir"}
"""What may be tried again when it found no room."""
ODDS = {"append": "append_error", "pread": "read_error", "fsync": "fsync_error"}
"""Where `DiskFaults` has the odds of calls that have odds of their own."""
SECTOR_BYTES = 512  # written whole or not at all
HANG_SECONDS = 6.0
LUCK = (0.0, 0.5, 0.9, 1.0)  # how much of what was not synced survives a power cut


@dataclass(slots=True)
class DiskFaults:
    """How often each call fails by itself, and how long what takes time takes."""

    append_error: float = 0.0
    read_error: float = 0.0
    short_read: float = 0.0
    fsync_error: float = 0.0
    name_error: float = 0.0
    fsync_seconds: float = 0.002
    stall_chance: float = 0.01
    stall_seconds: float = 0.2
    no_descriptor: float = 0.0  # how often a file that is not open can't be opened
    eviction: float = 0.02  # how often an unpinned file must be opened anew by its name, as when descriptors are short


@dataclass(slots=True)
class Planted:
    """One fault to come: the `after`-th matching call from now on fails."""

    operation: str
    path_part: str
    error: int
    after: int
    times: int


@dataclass(slots=True)
class Trip:
    """The process is to die within one of its disk calls."""

    operations: int  # how many more calls it survives
    path_part: str
    then: Callable[[], None]


@dataclass(slots=True)
class Dirty:
    """One change to a file that is not on the platter yet: bytes at a position, or (without bytes) a new size."""

    number: int
    position: int
    data: bytes | None


@dataclass(eq=False, slots=True)
class Inode:
    number: int
    cache: bytearray = field(default_factory=bytearray)
    platter: bytearray = field(default_factory=bytearray)
    dirty: list[Dirty] = field(default_factory=list)
    modified_ms: int = 0

    def harden(self, up_to_number: int) -> None:
        """Everything changed up to `up_to_number` reaches the platter."""
        kept = 0
        for change in self.dirty:
            if change.number > up_to_number:
                break
            write(self.platter, change.position, change.data)
            kept += 1
        del self.dirty[:kept]

    def lose_power(self, chance: random.Random) -> int:
        """Play the lottery for what is dirty; returns how many sectors were lost."""
        lost = 0
        luck = chance.choice(LUCK)
        sizes_kept = chance.randrange(len(self.dirty) + 1)
        for place, change in enumerate(self.dirty):
            if change.data is None:
                if place < sizes_kept:
                    write(self.platter, change.position, None)
                continue
            start = 0
            while start < len(change.data):
                end = min(len(change.data), start + SECTOR_BYTES - (change.position + start) % SECTOR_BYTES)
                if chance.random() < luck:
                    write(self.platter, change.position + start, change.data[start:end])
                else:
                    lost += 1
                start = end
        self.dirty.clear()
        self.cache = bytearray(self.platter)
        return lost


def write(image: bytearray, position: int, data: bytes | None) -> None:
    if data is None:
        if position < len(image):
            del image[position:]
        else:
            image.extend(bytes(position - len(image)))
        return
    if position > len(image):
        image.extend(bytes(position - len(image)))  # a hole reads as zeros
    image[position : position + len(data)] = data


@dataclass(eq=False, slots=True)
class Folder:
    number: int
    entries: dict[str, Inode | Folder] = field(default_factory=dict)
    durable: dict[str, Inode | Folder] = field(default_factory=dict)


@dataclass(eq=False, slots=True)
class NameChange:
    """Entries of folders set, or removed where there is no node. A move is two of them, and both happen or none."""

    parts: tuple[tuple[Folder, str, Inode | Folder | None], ...]

    def apply(self, entries_of: Callable[[Folder], dict[str, Inode | Folder]]) -> None:
        for folder, name, node in self.parts:
            if node is None:
                entries_of(folder).pop(name, None)
            else:
                entries_of(folder)[name] = node


class SimDisk:
    """The device. It outlives processes and power cuts."""

    def __init__(self, chance: random.Random, *, capacity_bytes: int = 1 << 40) -> None:
        self.chance = chance
        self.faults = DiskFaults()
        self.capacity_bytes = self._whole_capacity_bytes = capacity_bytes
        self.owner: Host | None = None
        self.life = 0  # the process that may use it
        self.operations = 0
        self.sectors_lost = 0
        self.names_lost = 0
        self.faults_given = 0
        self.trip: Trip | None = None
        self.root = Folder(0)
        self.used_bytes = 0
        self.name_changes: list[NameChange] = []  # not durable yet, in the order they were made
        self.hanging: tuple[Folder, ...] = ()
        self.hanging_parts: tuple[str, ...] = ()
        self.power_cuts = 0
        self._numbers = 0
        self._planted: list[Planted] = []

    def mount(self, name: str = "") -> Mount:
        """The disk, or the folder of that name at its root, as the process of the present life sees it."""
        folder: Inode | Folder = self.root
        if name:
            folder = self.root.entries.setdefault(name, Folder(self.number()))
            self.root.durable[name] = folder  # made when the machine was set up
        assert isinstance(folder, Folder)
        return Mount(self, self.life, folder)

    def replace(self) -> None:
        """Another disk is put in its place, an empty one. No process may use it now."""
        assert self.life < 0, "the process is gone"
        self.root = Folder(self.number())
        self.used_bytes = 0
        self.name_changes.clear()
        self._planted.clear()

    def remove(self, path: str) -> None:
        """Somebody removes a folder, and syncs the disk. No process may use it now."""
        assert self.life < 0, "the process is gone"
        for change in self.name_changes:
            change.apply(lambda folder: folder.durable)
        self.name_changes.clear()
        gone, (*above, name) = self.find(path), parts_of(path)
        parent = self.find("/".join(above))
        assert isinstance(gone, Folder)
        assert isinstance(parent, Folder)
        self.used_bytes -= sum(len(node.cache) for node in gone.entries.values() if isinstance(node, Inode))
        for entries in (parent.entries, parent.durable):
            entries.pop(name, None)

    def number(self) -> int:
        self._numbers += 1
        return self._numbers

    # -- planting faults

    def names(self, folder: str) -> list[str]:
        """What a folder at the root holds now, as a process sees it; the process notices nothing."""
        found = self.root.entries.get(folder)
        return list(found.entries) if isinstance(found, Folder) else []

    def fail_next(
        self, operation: str, *, error: int = errno.EIO, path_part: str = "", after: int = 0, times: int = 1
    ) -> None:
        """Let the matching call after the next `after` ones fail. Operations: append, pread, fsync, sync_dir, and the
        names of the port's other calls.
        """
        self._planted.append(Planted(operation, path_part, error, after, times))

    def hang(self, *names: str, path_parts: Sequence[str] = ("",)) -> None:
        """Whatever waits for the platter of these folders waits long, from now on; or only files of such paths."""
        self.hanging = tuple(self.mount(name).root for name in names)
        self.hanging_parts = tuple(path_parts)

    def trip_after(self, operations: int, then: Callable[[], None], *, path_part: str = "") -> None:
        """Call `then`, which ends the process, within a disk call so many calls from now."""
        self.trip = Trip(operations, path_part, then)

    def heal(self) -> None:
        """No more faults, and room again. What a process has already seen fail stays failed for it."""
        self._planted.clear()
        self.hanging = ()
        self.capacity_bytes = self._whole_capacity_bytes
        for name in ("no_descriptor", "append_error", "read_error", "short_read", "fsync_error", "name_error"):
            setattr(self.faults, name, 0.0)

    def flip_bit(self, path: str, position: int, bit: int) -> None:
        """Rot: the platter has changed, and a reader sees it."""
        inode = self.find(path)
        assert isinstance(inode, Inode)
        inode.cache[position] ^= 1 << bit
        if position < len(inode.platter):
            inode.platter[position] ^= 1 << bit

    def cut_short(self, path: str, size: int) -> None:
        """Rot: the end of a file is gone."""
        inode = self.find(path)
        assert isinstance(inode, Inode)
        self.used_bytes -= len(inode.cache) - size
        del inode.cache[size:], inode.platter[size:]

    def take_away(self, path: str) -> None:
        """Rot: a file is gone. A process that has it open still sees it."""
        *above, name = parts_of(path)
        inode, folder = self.find(path), self.find("/".join(above))
        assert isinstance(inode, Inode)
        assert isinstance(folder, Folder)
        self.used_bytes -= len(inode.cache)
        for entries in (folder.entries, folder.durable):
            entries.pop(name, None)

    def find(self, path: str, root: Folder | None = None) -> Inode | Folder:
        node: Inode | Folder | None = root or self.root
        for part in parts_of(path):
            node = node.entries.get(part) if isinstance(node, Folder) else None
            if node is None:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        assert node is not None
        return node

    def files(self) -> list[tuple[str, int, int]]:
        """Every file by path: (path, size in the cache, bytes that are surely on the platter's image)."""
        found: list[tuple[str, int, int]] = []

        def walk(folder: Folder, prefix: str) -> None:
            for name in sorted(folder.entries):
                node = folder.entries[name]
                if isinstance(node, Folder):
                    walk(node, f"{prefix}{name}/")
                else:
                    found.append((prefix + name, len(node.cache), len(node.platter)))

        walk(self.root, "")
        return found

    # -- what happens to the machine

    def process_gone(self, *, power: bool) -> None:
        self.life = -1
        self.trip = None
        if power:
            self.power_cuts += 1
            self._lose_names()
            self._lose_sectors()

    def _lose_names(self) -> None:
        kept = self.chance.randrange(len(self.name_changes) + 1)
        for change in self.name_changes[:kept]:
            change.apply(lambda folder: folder.durable)
        self.names_lost += len(self.name_changes) - kept
        self.name_changes.clear()
        for folder in self._folders():
            folder.entries = dict(folder.durable)

    def _lose_sectors(self) -> None:
        inodes: dict[int, Inode] = {}
        for folder in self._folders():
            inodes.update((node.number, node) for node in folder.entries.values() if isinstance(node, Inode))
        for _, inode in sorted(inodes.items()):
            self.sectors_lost += inode.lose_power(self.chance)
        self.used_bytes = sum(len(inode.cache) for inode in inodes.values())

    def _folders(self) -> list[Folder]:
        """Every folder that the process sees or the platter holds, each once."""
        found: dict[int, Folder] = {}
        waiting = [self.root]
        while waiting:
            folder = waiting.pop()
            if folder.number not in found:
                found[folder.number] = folder
                waiting.extend(
                    node for node in (*folder.entries.values(), *folder.durable.values()) if isinstance(node, Folder)
                )
        return [found[number] for number in sorted(found)]

    # -- called by mounts

    def alive(self, life: int) -> None:
        if life != self.life:
            raise process_died()

    def begin(self, life: int, operation: str, path: str) -> None:
        """Every call passes here before it does anything: the dead are stopped, planted and drawn faults are raised."""
        if life != self.life:
            raise process_died()
        self.operations += 1
        if self.owner is not None:
            self.owner.world.mix(f"{operation} {path}".encode())
        for planted in self._planted:
            if planted.operation == operation and planted.path_part in path:
                if planted.after > 0:
                    planted.after -= 1
                    continue
                planted.times -= 1
                if planted.times <= 0:
                    self._planted.remove(planted)
                self.fail(planted.error, path)
        if (odd := getattr(self.faults, ODDS.get(operation, "name_error"))) and self.chance.random() < odd:
            self.fail(self.chance.choice((errno.EIO, errno.ENOSPC)) if operation == "append" else errno.EIO, path)

    def take_descriptor(self, path: str) -> None:
        if (odd := self.faults.no_descriptor) and self.chance.random() < odd:
            self.fail(errno.EMFILE, path)

    def fail(self, error: int, path: str) -> None:
        self.faults_given += 1
        raise DiskFault(error, os.strerror(error), path)

    def tripped(self, path: str) -> bool:
        """Whether the process dies in this call."""
        trip = self.trip
        if trip is None or trip.path_part not in path:
            return False
        trip.operations -= 1
        if trip.operations > 0:
            return False
        self.trip = None
        trip.then()
        return True

    async def delay(self, life: int, root: Folder, path: str = "") -> None:
        faults = self.faults
        seconds = faults.fsync_seconds * (0.25 + 1.5 * self.chance.random())
        if self.chance.random() < faults.stall_chance:
            seconds += faults.stall_seconds * self.chance.random()
        if root in self.hanging and any(part in path for part in self.hanging_parts):
            seconds += HANG_SECONDS * self.chance.random()
        await asyncio.sleep(seconds)
        self.alive(life)

    def change_names(self, *parts: tuple[Folder, str, Inode | Folder | None]) -> None:
        change = NameChange(parts)
        change.apply(lambda folder: folder.entries)
        self.name_changes.append(change)

    def harden_names(self, folder: Folder, changes: list[NameChange]) -> None:
        """Of `changes`, those of the folder become durable, and with a move what its other folder had changed before,
        not what that changed later: this may belong to a move whose own first folder is not durable.
        """
        folders, hardened = {folder}, set[int]()
        for change in reversed(changes):
            for touched, _, _ in change.parts:
                if touched in folders:
                    hardened.add(id(change))
                    folders.update([other for other, _, _ in change.parts])
                    break
        kept = []
        for change in self.name_changes:
            if id(change) in hardened:
                change.apply(lambda folder: folder.durable)
            else:
                kept.append(change)
        self.name_changes = kept


def process_died() -> BaseException:
    from tests.sim.world import ProcessDied  # the world imports this module

    return ProcessDied("a dead process touched its disk")


@lru_cache(maxsize=1 << 14)
def parts_of(path: str) -> tuple[str, ...]:
    return tuple([part for part in path.split("/") if part not in ("", ".")])


class Mount:
    """The disk as one life of a process sees it."""

    def __init__(self, device: SimDisk, life: int, root: Folder) -> None:
        self.device = device
        self.root = root
        self.life = life
        self.fault: DiskFault | None = None
        self._writer = asyncio.Lock()

    def place(self) -> str:
        return f"{self.device.power_cuts}:{self.root.number}"

    # -- files

    def open(self, path: str, *, create: bool = False, exclusive: bool = False) -> SimFile:
        existing = self._lookup("open", path)
        if existing is None and not create:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        self.device.take_descriptor(path)
        if existing is None:
            with Change(self, "create", path):
                self._find_room(path)
                folder, name = self._place(path)
                existing = Inode(self.device.number())
                self.device.change_names((folder, name, existing))
        elif exclusive:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        if isinstance(existing, Folder):
            raise DiskFault(errno.EISDIR, os.strerror(errno.EISDIR), path)
        return SimFile(self, path, existing)

    def read(self, path: str) -> bytes:
        node = self._lookup("read", path)
        if not isinstance(node, Inode):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        self.device.take_descriptor(path)
        return bytes(node.cache)

    def exists(self, path: str) -> bool:
        return self._lookup("exists", path) is not None

    def listdir(self, path: str) -> list[str]:
        node = self._lookup("listdir", path)
        if not isinstance(node, Folder):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        names = list(node.entries)
        self.device.chance.shuffle(names)  # no order was promised
        return names

    # -- names

    def mkdir(self, path: str) -> None:
        with Change(self, "mkdir", path):
            self._find_room(path)
            folder = self.root
            for part in parts_of(path):
                if part not in folder.entries:
                    self.device.change_names((folder, part, Folder(self.device.number())))
                node = folder.entries[part]
                if not isinstance(node, Folder):
                    raise DiskFault(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
                folder = node

    def rename(self, source: str, target: str) -> None:
        with Change(self, "rename", source):
            folder, name = self._place(source)
            node = self._found(folder, name, source)
            to_folder, to_name = self._place(target)
            if isinstance(to_folder.entries.get(to_name), Folder) and not isinstance(node, Folder):
                raise DiskFault(errno.EISDIR, os.strerror(errno.EISDIR), source)
            if (folder, name) != (to_folder, to_name):
                self._forget_bytes(to_folder.entries.get(to_name))
                self.device.change_names((folder, name, None), (to_folder, to_name, node))

    def unlink(self, path: str) -> None:
        with Change(self, "unlink", path):
            folder, name = self._place(path)
            if name in folder.entries:
                self._forget_bytes(folder.entries[name])
                self.device.change_names((folder, name, None))

    def discard(self, path: str) -> None:
        with Change(self, "discard", path):
            folder, name = self._place(path)
            if name not in folder.entries:
                return
            hidden = next(free for n in count() if (free := f"{DISCARDED}{n}") not in self.root.entries)
            self.device.change_names((folder, name, None), (self.root, hidden, folder.entries[name]))
            self._remove(self.root, hidden, hidden)

    def sweep(self) -> None:
        for name in [name for name in self.root.entries if name.startswith(DISCARDED)]:
            self._remove(self.root, name, name)

    def _remove(self, folder: Folder, name: str, path: str) -> None:
        """Leaves first; the process may die between any two of them."""
        node = folder.entries[name]
        if isinstance(node, Folder):
            for child in list(node.entries):
                self._remove(node, child, f"{path}/{child}")
        self._forget_bytes(node)
        self.device.change_names((folder, name, None))
        if self.device.tripped(path):
            raise process_died()

    def _forget_bytes(self, node: Inode | Folder | None) -> None:
        if isinstance(node, Inode):
            self.device.used_bytes -= len(node.cache)

    # -- what is awaited

    async def sync_files(self, files: Sequence[File]) -> None:
        """In any order, but not at the same time."""
        with contextlib.ExitStack() as pins:
            for file in files:
                file.pin()
                pins.callback(file.unpin)
            for file in self.device.chance.sample(files, len(files)):
                await file.fsync()

    async def sync_dir(self, path: str) -> None:
        self.check()
        await self.in_writer(self._sync_dir(path))

    async def sync_all(self) -> None:
        self.check()
        await self.in_writer(self._sync_all())

    async def _sync_all(self) -> None:
        """One wait for all of it, as one barrier is enough for a file system."""
        dirty = [(inode, inode.dirty[-1].number) for inode in self._inodes(self.device.root) if inode.dirty]
        changes = list(self.device.name_changes)
        await self.device.delay(self.life, self.root)
        try:
            with Change(self, "sync_all", ""):
                for inode, up_to in dirty:
                    inode.harden(up_to)
                for change in changes:
                    change.apply(lambda folder: folder.durable)
                self.device.name_changes = [each for each in self.device.name_changes if each not in changes]
        except DiskFault:
            for inode, up_to in dirty:
                inode.dirty = [change for change in inode.dirty if change.number > up_to]
            raise

    def _inodes(self, folder: Folder) -> Iterator[Inode]:
        for node in folder.entries.values():
            if isinstance(node, Folder):
                yield from self._inodes(node)
            else:
                yield node

    async def write_atomic(self, path: str, data: Buffer) -> None:
        self.check()
        await self.in_writer(self._write_atomic(path, data))

    async def in_writer(self, job: Coroutine[Any, Any, None]) -> None:
        """One job after the other, as in the real disk's one writer thread."""

        async def turn() -> None:
            async with self._writer:
                await job

        await self.beside(turn())

    async def beside(self, job: Coroutine[Any, Any, None]) -> None:
        """As in a thread of the real disk: a wait that is cancelled doesn't stop its job."""
        task = asyncio.get_running_loop().create_task(job, name=f"disk writer {self.device.number()}")
        task.add_done_callback(lambda task: task.cancelled() or task.exception())
        await asyncio.shield(task)

    async def _sync_dir(self, path: str) -> None:
        self.device.take_descriptor(path)
        await self._sync_names(path)

    async def _sync_names(self, path: str) -> None:
        changes = list(self.device.name_changes)
        await self.device.delay(self.life, self.root)
        with Change(self, "sync_dir", path):
            node = self.device.find(path, self.root)
            assert isinstance(node, Folder), f"{path} is a file"
            self.device.harden_names(node, changes)

    async def _write_atomic(self, path: str, data: Buffer) -> None:
        temporary = path + TEMPORARY
        self.device.take_descriptor(path)  # for the folder, to the end
        file = self.open(temporary, create=True)
        file.pin()
        file.truncate(0)
        try:
            file.append([data])
        except DiskFault:
            if self.fault is None:
                self.unlink(temporary)
            raise
        await file.sync_now()
        file.unpin()
        self.rename(temporary, path)
        await self._sync_names(path.rpartition("/")[0])

    def _find_room(self, path: str) -> None:
        """For a new name."""
        if self.device.used_bytes >= self.device.capacity_bytes:
            self.device.fail(errno.ENOSPC, path)

    # -- state

    def space(self) -> Space:
        self.device.alive(self.life)
        return Space(self.device.capacity_bytes, max(0, self.device.capacity_bytes - self.device.used_bytes))

    def check(self) -> None:
        """Raises the fault that made this disk unusable for changes."""
        self.device.alive(self.life)
        if self.fault is not None:
            raise self.fault

    # -- paths

    def _lookup(self, operation: str, path: str) -> Inode | Folder | None:
        self.device.begin(self.life, operation, path)
        try:
            return self.device.find(path, self.root)
        except FileNotFoundError:
            return None

    def _place(self, path: str) -> tuple[Folder, str]:
        """The folder that holds `path`, and the name in it."""
        *folders, name = parts_of(path)
        folder = "/".join(folders)
        try:
            node = self.device.find(folder, self.root)
        except FileNotFoundError as error:
            raise DiskFault(error.errno, error.strerror, path) from error
        assert isinstance(node, Folder), f"{folder} is a file"
        return node, name

    @staticmethod
    def _found(folder: Folder, name: str, path: str) -> Inode | Folder:
        if name not in folder.entries:
            raise DiskFault(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return folder.entries[name]


class Change:
    """A change: refused after a failure, final when it fails itself, and the process may die before or after it."""

    __slots__ = ("_mount", "_operation", "_path")

    def __init__(self, mount: Mount, operation: str, path: str) -> None:
        self._mount, self._operation, self._path = mount, operation, path

    def __enter__(self) -> None:
        mount = self._mount
        mount.check()
        if mount.device.trip is not None and mount.device.tripped(self._path):
            raise process_died()
        try:
            mount.device.begin(mount.life, self._operation, self._path)
        except DiskFault as fault:
            self._failed(fault)

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, FileNotFoundError | DiskFault):
            self._failed(error)
        elif error is None and self._mount.device.trip is not None and self._mount.device.tripped(self._path):
            raise process_died()

    def _failed(self, error: FileNotFoundError | DiskFault) -> None:
        mount = self._mount
        if not isinstance(error, DiskFault):
            mount.fault = mount.fault or DiskFault(error.errno, error.strerror, self._path)
            raise mount.fault from error
        if error.passing and self._operation in PASSES_WHEN:
            raise error
        mount.fault = mount.fault or DiskFault(error.errno if not error.passing else errno.EIO, str(error), self._path)
        raise mount.fault from None


class SimFile:
    """An append-only file of one process."""

    def __init__(self, mount: Mount, path: str, inode: Inode) -> None:
        self.path = path
        self._mount = mount
        self._device = mount.device
        self._inode = inode
        self.size = len(inode.cache)
        self._pins = 0
        self._closed = False

    def append(self, buffers: Sequence[Buffer]) -> int:
        self._touch()
        device = self._device
        data = b"".join(buffers)
        position = self.size
        with Change(self._mount, "append", self.path):
            if data and device.used_bytes + len(data) > device.capacity_bytes:
                self._tear(data, position)
                device.fail(errno.ENOSPC, self.path)
            if device.trip is not None and device.trip.operations == 1 and self.path.find(device.trip.path_part) >= 0:
                data = data[
                    : device.chance.randrange(len(data) + 1)
                ]  # the process dies before the kernel has taken it all
            self._change(Dirty(device.number(), position, data))
            device.used_bytes += len(data)
            self.size = position + len(data)
        return position

    def reserve(self, size_bytes: int) -> None:
        """Nothing is kept for the file: what comes in between may take the room."""
        self._touch()
        with Change(self._mount, "reserve", self.path):
            if self._device.used_bytes + size_bytes > self._device.capacity_bytes:
                self._device.fail(errno.ENOSPC, self.path)

    def patch(self, position: int, data: Buffer) -> None:
        self._touch()
        assert position + len(data) <= min(self.size, SECTOR_BYTES), "what is patched is in the first sector"
        with Change(self._mount, "patch", self.path):
            self._change(Dirty(self._device.number(), position, bytes(data)))

    def pread(self, size: int, position: int) -> bytes:
        self._touch()
        self._device.begin(self._mount.life, "pread", self.path)
        odd = self._device.faults.short_read
        if odd and size > 1 and self._device.chance.random() < odd:
            size = self._device.chance.randrange(size)
        return bytes(memoryview(self._inode.cache)[position : position + size])

    def truncate(self, size: int) -> None:
        self._touch()
        with Change(self._mount, "truncate", self.path):
            self._device.used_bytes += size - len(self._inode.cache)
            self._change(Dirty(self._device.number(), size, None))
            self.size = size

    async def fsync(self) -> None:
        self._mount.check()
        self.pin()
        try:
            await self._mount.beside(self.sync_now())
        finally:
            self.unpin()

    async def sync_now(self) -> None:
        """What the writer does; the caller has pinned the file."""
        inode = self._inode
        up_to = inode.dirty[-1].number if inode.dirty else 0
        await self._device.delay(self._mount.life, self._mount.root, self.path)
        try:
            with Change(self._mount, "fsync", self.path):
                inode.harden(up_to)
        except DiskFault:
            inode.dirty = [change for change in inode.dirty if change.number > up_to]  # the kernel calls them clean
            raise

    def fileno(self) -> int | None:
        return None

    def pin(self) -> None:
        self._touch()
        self._pins += 1

    def unpin(self) -> None:
        assert self._pins > 0, "unpinned more often than pinned"
        self._pins -= 1

    def close(self) -> None:
        self._closed = True

    def modified_ms(self) -> int:
        self._touch()
        return self._inode.modified_ms

    def set_modified(self, modified_ms: int) -> None:
        self._touch()
        with Change(self._mount, "set_modified", self.path):
            self._inode.modified_ms = modified_ms

    def _change(self, change: Dirty) -> None:
        owner = self._device.owner
        if owner is not None:
            self._inode.modified_ms = int(1000 * (owner.world.epoch_seconds + owner.world.now + owner.clock_offset))
        write(self._inode.cache, change.position, change.data)
        self._inode.dirty.append(change)

    def _tear(self, data: bytes, position: int) -> None:
        """The file system takes what there is room for; the port then takes it back."""
        taken = max(self._device.capacity_bytes - self._device.used_bytes, 0)
        if taken:
            self._change(Dirty(self._device.number(), position, data[:taken]))
            self._take_back(position)

    def _take_back(self, size: int) -> None:
        self._change(Dirty(self._device.number(), size, None))

    def _touch(self) -> None:
        """Make sure of a descriptor: without a pin it may have been closed meanwhile, and then only the name leads to
        the bytes.
        """
        device = self._device
        device.alive(self._mount.life)
        if self._pins:
            return
        if self._closed:
            raise DiskFault(errno.EBADF, "the file was closed", self.path)
        device.take_descriptor(self.path)
        if device.faults.eviction and device.chance.random() < device.faults.eviction:
            try:
                node = device.find(self.path, self._mount.root)
            except FileNotFoundError as error:
                raise DiskFault(error.errno, error.strerror, self.path) from error
            assert isinstance(node, Inode)
            self._inode = node

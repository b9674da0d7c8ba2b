"""A disk in memory that can lose power: a small stand-in for the real one in the tests of `log`.

Every file has what a process sees and what survives. A power cut keeps fsynced bytes, of each later write any of its
sectors, and of the name changes a prefix. A kill keeps everything, because the kernel lives on.
"""

import asyncio
import errno
import posixpath
import random
from collections.abc import Sequence
from typing import NamedTuple

from log.batch import Buffer
from log.disk import DiskFault, File, Space

SECTOR_BYTES = 512


class Node:
    """The content of one file, whatever its name."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.durable = b""
        self.pending: list[tuple[int, bytes | None]] = []  # (position, written bytes), or (size, None) for a cut
        self.modified_ms = 0

    def settle(self, count: int) -> None:
        """The first `count` pending changes are durable."""
        self.durable = apply_all(self.durable, self.pending[:count])
        del self.pending[:count]


def apply_all(image: bytes, changes: Sequence[tuple[int, bytes | None]]) -> bytes:
    changed = bytearray(image)
    for position, written in changes:
        write(changed, position, written)
    return bytes(changed)


def write(image: bytearray, position: int, written: bytes | None) -> None:
    if written is None:
        del image[position:]
        return
    if len(image) < position:
        image.extend(bytes(position - len(image)))
    image[position : position + len(written)] = written


class MemoryFile:
    def __init__(self, disk: "MemoryDisk", path: str, node: Node) -> None:
        self.disk = disk
        self.path = path
        self.node = node
        self.pins = 0
        self.closed = False

    @property
    def size(self) -> int:
        return len(self.node.data)

    def append(self, buffers: Sequence[Buffer]) -> int:
        self.disk.change("append", self.path)
        assert not self.closed
        written = b"".join(buffers)
        position = len(self.node.data)
        self.node.data += written
        self.node.modified_ms = self.disk.now_ms
        self.node.pending.append((position, written))
        return position

    def reserve(self, size_bytes: int) -> None:
        self.disk.change("reserve", self.path)
        assert not self.node.data

    def patch(self, position: int, data: Buffer) -> None:
        self.disk.change("patch", self.path)
        assert position + len(data) <= min(len(self.node.data), SECTOR_BYTES)
        write(self.node.data, position, bytes(data))
        self.node.pending.append((position, bytes(data)))

    def pread(self, size: int, position: int) -> bytes:
        assert not self.closed or self.pins
        return bytes(self.node.data[position : position + size])

    def truncate(self, size: int) -> None:
        self.disk.change("truncate", self.path)
        del self.node.data[size:]
        self.node.pending.append((size, None))
        self.node.modified_ms = self.disk.now_ms

    def modified_ms(self) -> int:
        return self.node.modified_ms

    def set_modified(self, modified_ms: int) -> None:
        self.disk.change("set_modified", self.path)
        self.node.modified_ms = modified_ms

    async def fsync(self) -> None:
        count = len(self.node.pending)
        await asyncio.sleep(0)
        self.disk.change("fsync", self.path)
        self.node.settle(count)

    def fileno(self) -> int | None:
        return None

    def pin(self) -> None:
        self.pins += 1

    def unpin(self) -> None:
        self.pins -= 1

    def close(self) -> None:
        self.closed = True


class NameChange(NamedTuple):
    kind: str
    path: str
    target: str = ""
    node: Node | None = None


class MemoryDisk:
    def __init__(self) -> None:
        self.files: dict[str, Node] = {}
        self.folders: dict[str, None] = {"": None}
        self.durable_files: dict[str, Node] = {}
        self.durable_folders: dict[str, None] = {"": None}
        self.pending_names: list[NameChange] = []
        self.now_ms = 0
        """What the clock says by which files are told to be changed."""
        self.fault: DiskFault | None = None
        self.changes = 0
        self.fail_at: int | None = None
        """The number of the change that fails, counted from the start."""
        self.ops: list[str] = []

    # -- faults

    def change(self, kind: str, path: str) -> None:
        """Every change of the disk passes here."""
        if self.fault is not None:
            raise self.fault
        self.changes += 1
        self.ops.append(f"{kind} {path}")
        if self.fail_at is not None and self.changes >= self.fail_at:
            self.fault = DiskFault(errno.EIO, "injected", path)
            raise self.fault

    def cut_power(self, rng: random.Random) -> None:
        """What survives becomes all there is."""
        for op in self.pending_names[: rng.randrange(len(self.pending_names) + 1)]:
            self._settle_name(op)
        self.pending_names.clear()
        nodes = {id(node): node for node in (*self.files.values(), *self.durable_files.values())}
        for node in nodes.values():
            luck = rng.choice((0.0, 0.5, 0.9, 1.0))
            node.durable = survivors(node, luck, rng)
            node.data = bytearray(node.durable)
            node.pending.clear()
        self.files = dict(self.durable_files)
        self.folders = dict(self.durable_folders)
        self.fault = None
        self.fail_at = None

    # -- Disk

    def place(self) -> str:
        return str(id(self))

    def open(self, path: str, *, create: bool = False, exclusive: bool = False) -> MemoryFile:
        if path not in self.files:
            if not create:
                raise FileNotFoundError(path)
            assert posixpath.dirname(path) in self.folders, f"no folder for {path}"
            node = Node()
            self._change_name(NameChange("create", path, node=node))
            self.files[path] = node
        elif exclusive:
            raise FileExistsError(path)
        return MemoryFile(self, path, self.files[path])

    def read(self, path: str) -> bytes:
        file = self.open(path)
        return file.pread(file.size, 0)

    def listdir(self, path: str) -> list[str]:
        if path not in self.folders:
            raise FileNotFoundError(path)
        names = [name for name in (*self.files, *self.folders) if name and posixpath.dirname(name) == path]
        return [posixpath.basename(name) for name in reversed(names)]

    def exists(self, path: str) -> bool:
        return path in self.files or path in self.folders

    def mkdir(self, path: str) -> None:
        if path not in self.folders:
            self._change_name(NameChange("mkdir", path))
            self.folders[path] = None

    def rename(self, source: str, target: str) -> None:
        self._change_name(NameChange("rename", source, target))
        rename_in(self.files, self.folders, source, target)

    def unlink(self, path: str) -> None:
        if path in self.files:
            self._change_name(NameChange("unlink", path))
            del self.files[path]

    def discard(self, path: str) -> None:
        self.unlink(path)
        if path in self.folders:
            self._change_name(NameChange("remove_tree", path))
            remove_in(self.files, self.folders, path)

    def sweep(self) -> None:
        """Nothing is left over: what is discarded is gone."""

    async def sync_files(self, files: Sequence[File]) -> None:
        for file in files:
            await file.fsync()

    async def sync_dir(self, path: str) -> None:
        ours = [index for index, op in enumerate(self.pending_names) if posixpath.dirname(op.path) == path]
        count = ours[-1] + 1 if ours else 0
        settled = self.pending_names[:count]
        await asyncio.sleep(0)
        self.change("sync_dir", path)
        for op in settled:
            if self.pending_names and self.pending_names[0] is op:
                self._settle_name(self.pending_names.pop(0))

    async def sync_all(self) -> None:
        for path in list(self.files):
            await self.open(path).fsync()
        while self.pending_names:
            await self.sync_dir(posixpath.dirname(self.pending_names[-1].path))

    async def write_atomic(self, path: str, data: Buffer) -> None:
        temporary = self.open(path + ".tmp", create=True)
        temporary.truncate(0)
        temporary.append([data])
        await temporary.fsync()
        self.rename(path + ".tmp", path)
        await self.sync_dir(posixpath.dirname(path))

    def space(self) -> Space:
        return Space(1 << 41, 1 << 40)

    # -- names

    def _change_name(self, op: NameChange) -> None:
        self.change(op.kind, op.path)
        self.pending_names.append(op)

    def _settle_name(self, op: NameChange) -> None:
        if op.kind == "create":
            assert op.node is not None
            self.durable_files[op.path] = op.node
        elif op.kind == "mkdir":
            self.durable_folders[op.path] = None
        elif op.kind == "rename":
            rename_in(self.durable_files, self.durable_folders, op.path, op.target)
        elif op.kind == "unlink":
            self.durable_files.pop(op.path, None)
        else:
            remove_in(self.durable_files, self.durable_folders, op.path)


def rename_in(files: dict[str, Node], folders: dict[str, None], source: str, target: str) -> None:
    if source in files:
        files[target] = files.pop(source)
        return
    if source in folders:
        del folders[source]
        folders[target] = None
        for path in [path for path in files if path.startswith(source + "/")]:
            files[target + path[len(source) :]] = files.pop(path)


def remove_in(files: dict[str, Node], folders: dict[str, None], folder: str) -> None:
    folders.pop(folder, None)
    for path in [path for path in files if path.startswith(folder + "/")]:
        del files[path]


def survivors(node: Node, luck: float, rng: random.Random) -> bytes:
    """Of what was not synced, any sectors: a later one can be there although an earlier one is not."""
    image = bytearray(node.durable)
    cuts = rng.randrange(len(node.pending) + 1)
    for index, (position, written) in enumerate(node.pending):
        if written is None:
            if index < cuts:
                write(image, position, None)
            continue
        at = 0
        while at < len(written):
            end = min(len(written), at + SECTOR_BYTES - (position + at) % SECTOR_BYTES)
            if rng.random() < luck:
                write(image, position + at, written[at:end])
            at = end
    return bytes(image)

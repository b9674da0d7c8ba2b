"""The description that a data folder has of itself (`meta.properties`, as in Kafka): its cluster, its broker, which of
the broker's folders it is, and the version of its layout.

A folder is refused before anything in it is touched if it belongs to another cluster or another node, has a newer
layout, or holds something else. A broker with several folders does not start if one of its known folders is missing and
an empty folder stands in its place. Most likely a disk is not mounted then, and going on would mean to forget what is
on it.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from log.disk import TEMPORARY, Disk
from log.manifest import remove_manifest
from service.broker.losses import LOST
from service.broker.notes import write_notes
from service.broker.unremoved import UNREMOVED

logger = logging.getLogger("oncelog.broker")

META_FILE: Final = "meta.properties"
LAYOUT: Final = 2
"""Raised when an older version can't read what this one writes: the snapshots of 2 tell where markers are."""
HARMLESS: Final = ("lost+found", "meta.db", "meta.db-wal", "meta.db-journal", "brokers", META_FILE + TEMPORARY)
"""What may be in a folder that is not claimed yet, besides hidden files. A first start that was killed leaves the
metadata.
"""


class StartError(Exception):
    """The broker can't start; the text is one clear line for the operator."""


@dataclass(frozen=True, slots=True)
class FolderFacts:
    """`directory_id` is the id of this folder. `directories` has the ids of all folders of its broker, this one
    included.
    """

    layout: int
    cluster_id: str
    node_id: int
    directory_id: str
    directories: tuple[str, ...]

    def to_text(self) -> str:
        return (
            f"version=1\noncelog.layout={self.layout}\ncluster.id={self.cluster_id}\nnode.id={self.node_id}\n"
            f"directory.id={self.directory_id}\noncelog.directories={','.join(self.directories)}\n"
        )


def read_facts(disk: Disk, name: str) -> FolderFacts | None:
    """The folder's description; None for a new folder."""
    if not disk.exists(META_FILE):
        strange = sorted(each for each in disk.listdir("") if each not in HARMLESS and not each.startswith("."))
        if strange:
            raise StartError(f"{name} is no data folder of oncelog's, and not empty (it holds {strange[0]})")
        return None
    lines = disk.read(META_FILE).decode("utf-8", "replace").splitlines()
    values = dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))
    try:
        layout, node_id = int(values["oncelog.layout"]), int(values["node.id"])
        if layout > LAYOUT:
            raise StartError(
                f"{name} was written by a newer oncelog (layout {layout}, this one knows {LAYOUT}):"
                " start that version, or name another folder"
            )
        # Folders that were claimed before they had ids get theirs at this start.
        directories = tuple(filter(None, values.get("oncelog.directories", "").split(",")))
        return FolderFacts(layout, values["cluster.id"], node_id, values.get("directory.id", ""), directories)
    except (KeyError, ValueError):
        raise StartError(f"{name}/{META_FILE} is not one of oncelog's: this is no data folder of ours") from None


def read_all(disks: Mapping[str, Disk]) -> dict[str, FolderFacts | None]:
    """The descriptions of all folders of a broker. Raises `StartError` if they do not agree."""
    found = {name: read_facts(disk, name) for name, disk in disks.items()}
    claimed = [(name, facts) for name, facts in found.items() if facts is not None]
    for name, facts in claimed:
        first_name, first = claimed[0]
        if facts.cluster_id != first.cluster_id:
            raise StartError(
                f"{name} belongs to cluster {facts.cluster_id}, {first_name} to cluster {first.cluster_id}"
            )
        if facts.node_id != first.node_id:
            raise StartError(f"{name} belongs to broker {facts.node_id}, {first_name} to broker {first.node_id}")
    new = [name for name, facts in found.items() if facts is None]
    present = [facts.directory_id for _, facts in claimed]
    if new and any(directory not in present for _, facts in claimed for directory in facts.directories):
        raise StartError(
            f"{new[0]} is empty, and a data folder that this broker had is missing: mount its disk. If it is lost,"
            f" start once without {new[0]}; what was in it is lost then, too"
        )
    return found


def missing_folders(found: Mapping[str, FolderFacts | None]) -> int:
    """How many of the broker's known folders are missing here."""
    present = {facts.directory_id for facts in found.values() if facts is not None}
    had = {directory for facts in found.values() if facts is not None for directory in facts.directories}
    return len(had - present)


def any_away(found: Mapping[str, FolderFacts | None]) -> bool:
    """Whether one of the broker's folders is away, or was away when the broker was started without it. So it is until a
    start has come to its end: if one dies on its way, the next one must know that what it finds may not be the newest.
    """
    known = [facts for facts in found.values() if facts is not None and facts.directory_id]
    present = {facts.directory_id for facts in known}
    return any(set(facts.directories) != present for facts in known)


class Claimed(NamedTuple):
    """The ids of a broker's folders, in order, and where the first of them is (`Disk.place`). By them the cluster
    recognises the broker after a restart.
    """

    directories: tuple[str, ...]
    place: str


async def claim(disks: Mapping[str, Disk], *, cluster_id: str, node_id: int, fresh_id: Callable[[], str]) -> Claimed:
    """Write into every folder to which cluster and broker it belongs, and which other folders the broker has, unless
    one is or was away: that is left to the end of the start (`agree`).
    """
    found = read_all(disks)
    if missing := missing_folders(found):
        logger.critical(
            "this broker had %d more data folder(s) than it was started with: partitions that were there are empty now",
            missing,
        )
        # So it may not go on leading as if nothing was lost (R4, R5). It must not, either, if the process dies here and
        # the next start finds no folder missing.
        for disk in disks.values():
            await remove_manifest(disk)
    is_whole = not any_away(found)
    # A folder's notes hold only if this broker was never started without it: what they name may have been used again.
    claimed = [facts for facts in found.values() if facts is not None]
    for name, disk in disks.items():
        facts = found[name]
        if facts is not None and any(facts.directory_id not in other.directories for other in claimed):
            await write_notes(disk, UNREMOVED, ())
            await write_notes(disk, LOST, ())
    for name, disk in disks.items():
        facts = found[name]
        if facts is None or not facts.directory_id:
            # Only its own id at first. If a crash follows, folders that were not claimed yet must not count as missing.
            own_id = fresh_id()
            new = found[name] = FolderFacts(LAYOUT, cluster_id, node_id, own_id, (own_id,))
            await disk.write_atomic(META_FILE, new.to_text().encode())
    if is_whole:
        await agree(disks)
    names = {facts.directory_id: name for name, facts in sorted(found.items()) if facts is not None}
    directories = tuple(sorted(names))
    return Claimed(directories, disks[names[directories[0]]].place())


async def agree(disks: Mapping[str, Disk]) -> None:
    """From now on the broker has these folders and no others, and none of them was ever away."""
    found = {name: facts for name, facts in read_all(disks).items() if facts is not None}
    directories = tuple(sorted(facts.directory_id for facts in found.values()))
    for name, facts in found.items():
        now = replace(facts, layout=LAYOUT, directories=directories)
        if facts != now:
            await disks[name].write_atomic(META_FILE, now.to_text().encode())

"""What a data folder says of itself: whose it is, which one of its broker's folders, and which version of the layout it
is in (`meta.properties`, as Kafka's).

A folder of another cluster, of another node or of a newer layout is refused before anything in it is touched, and so
is one that holds something else. A broker with several folders does not start while one is missing that it had, and
an empty one stands in its place: most likely a disk is not mounted, and to go on would be to forget what is on it.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from log.disk import TEMPORARY, Disk

logger = logging.getLogger("oncelog.broker")

META_FILE: Final = "meta.properties"
LAYOUT: Final = 1
HARMLESS: Final = ("lost+found", "meta.db", "meta.db-wal", "meta.db-journal", "brokers", META_FILE + TEMPORARY)
"""What may be in a folder that we have not claimed yet, besides hidden files: a first start that was killed leaves the
metadata.
"""


class StartError(Exception):
    """The broker can't start; the text is one clear line for the operator."""


@dataclass(frozen=True, slots=True)
class FolderFacts:
    """`directory_id` tells this folder from its broker's others, which `directories` names, this one included."""

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
    """What the folder says of itself, or None for a new one."""
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
    """What all folders of a broker say, in agreement."""
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
    """How many folders the broker had that are not among these."""
    present = {facts.directory_id for facts in found.values() if facts is not None}
    had = {directory for facts in found.values() if facts is not None for directory in facts.directories}
    return len(had - present)


async def claim(disks: Mapping[str, Disk], *, cluster_id: str, node_id: int, fresh_id: Callable[[], str]) -> str:
    """Write into every folder whose it is, and which others its broker has. The id of the first of them by which a
    later life of this broker is known.
    """
    found = read_all(disks)
    if missing := missing_folders(found):
        logger.critical(
            "this broker had %d more data folder(s) than it was started with: partitions that were there are empty now",
            missing,
        )
    for name, disk in disks.items():
        facts = found[name]
        if facts is None or not facts.directory_id:
            # By itself at first: after a crash in between, a folder that was not claimed must not seem to be missing.
            own_id = fresh_id()
            new = found[name] = FolderFacts(LAYOUT, cluster_id, node_id, own_id, (own_id,))
            await disk.write_atomic(META_FILE, new.to_text().encode())
    directories = tuple(sorted(facts.directory_id for facts in found.values() if facts))
    for name, facts in found.items():
        if facts is not None and facts.directories != directories:
            await disks[name].write_atomic(META_FILE, replace(facts, directories=directories).to_text().encode())
    return directories[0]

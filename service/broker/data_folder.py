"""What a data folder says of itself: whose it is, and which version of the layout it is in (`meta.properties`, as
Kafka's).

A folder of another cluster, of another node or of a newer layout is refused before anything in it is touched.
"""

from dataclasses import dataclass

from log.disk import Disk

META_FILE = "meta.properties"
LAYOUT = 1


class StartError(Exception):
    """The broker can't start; the text is one clear line for whoever started it."""


@dataclass(frozen=True, slots=True)
class FolderFacts:
    layout: int
    cluster_id: str
    node_id: int

    def to_text(self) -> str:
        return f"version=1\noncelog.layout={self.layout}\ncluster.id={self.cluster_id}\nnode.id={self.node_id}\n"


def read_facts(disk: Disk, name: str) -> FolderFacts | None:
    """What the folder says of itself, or None for a new one."""
    if not disk.exists(META_FILE):
        return None
    lines = disk.read(META_FILE).decode("utf-8", "replace").splitlines()
    values = dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))
    try:
        facts = FolderFacts(int(values["oncelog.layout"]), values["cluster.id"], int(values["node.id"]))
    except (KeyError, ValueError):
        raise StartError(f"{name}/{META_FILE} is not one of oncelog's: this is no data folder of ours") from None
    if facts.layout > LAYOUT:
        raise StartError(
            f"{name} was written by a newer oncelog (layout {facts.layout}, this one knows {LAYOUT}):"
            " start that version, or name another folder"
        )
    return facts


async def claim(disk: Disk, name: str, *, cluster_id: str, node_id: int) -> None:
    """Write into a new folder whose it is; refuse one that belongs elsewhere."""
    facts = read_facts(disk, name)
    if facts is None:
        await disk.write_atomic(META_FILE, FolderFacts(LAYOUT, cluster_id, node_id).to_text().encode())
    elif facts.cluster_id != cluster_id:
        raise StartError(f"{name} belongs to cluster {facts.cluster_id}, not to {cluster_id}")
    elif facts.node_id != node_id:
        raise StartError(f"{name} belongs to broker {facts.node_id}, not to {node_id}")

"""Whose a data folder is: what is claimed, what is refused, and that a crash at any point leads to another start."""

import asyncio
import itertools

import pytest

from log.disk import DiskFault
from log.manifest import read_manifest, write_manifest
from service.broker.data_folder import LAYOUT, META_FILE, FolderFacts, StartError, agree, claim, read_all
from service.broker.losses import LOST
from service.broker.notes import read_notes, write_notes
from service.broker.unremoved import UNREMOVED
from tests.log.memory_disk import MemoryDisk

_ids = map("id{}".format, itertools.count(1))


def start(disks: dict[str, MemoryDisk], cluster_id: str = "c", node_id: int = 1) -> None:
    read_all(disks)
    asyncio.run(claim(disks, cluster_id=cluster_id, node_id=node_id, fresh_id=lambda: next(_ids)))
    asyncio.run(agree(disks))  # at the end


def known(disks: dict[str, MemoryDisk]) -> list[FolderFacts]:
    return [facts for facts in read_all(disks).values() if facts is not None]


def test_folders_are_claimed_once_and_known_again() -> None:
    disks = {"a": MemoryDisk(), "b": MemoryDisk()}
    start(disks)
    before = [disk.read(META_FILE) for disk in disks.values()]
    start(disks)
    assert [disk.read(META_FILE) for disk in disks.values()] == before
    own = sorted(facts.directory_id for facts in known(disks))
    assert len(own) == 2
    assert [sorted(facts.directories) for facts in known(disks)] == [own, own]


@pytest.mark.parametrize("writes", range(4))
def test_a_crash_between_two_claims_does_not_keep_the_next_start_from_going_on(
    writes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that was not claimed yet must not be taken for one that is missing."""
    disks = {"a": MemoryDisk(), "b": MemoryDisk()}
    left = writes
    original = MemoryDisk.write_atomic

    async def until_the_crash(disk: MemoryDisk, path: str, data: bytes) -> None:
        nonlocal left
        if not left:
            raise DiskFault(5, "died", path)
        left -= 1
        await original(disk, path, data)

    monkeypatch.setattr(MemoryDisk, "write_atomic", until_the_crash)
    with pytest.raises(DiskFault):
        start(disks)
    monkeypatch.undo()
    start(disks)
    assert len({facts.directory_id for facts in known(disks)}) == 2
    assert len({facts.directories for facts in known(disks)}) == 1


def test_an_empty_folder_where_one_is_missing_is_refused() -> None:
    a, b = MemoryDisk(), MemoryDisk()
    start({"a": a, "b": b})
    with pytest.raises(StartError, match="b is empty, and a data folder that this broker had is missing"):
        start({"a": a, "b": MemoryDisk()})
    start({"a": a})  # it was taken out on purpose
    start({"a": a, "b": MemoryDisk()})  # and another came


@pytest.mark.parametrize("file", [LOST, UNREMOVED])
def test_the_notes_of_a_folder_that_was_away_are_void(file: str) -> None:
    """What they name may have been used again meanwhile."""
    a, b = MemoryDisk(), MemoryDisk()
    start({"a": a, "b": b})
    asyncio.run(write_notes(b, file, [("one", "other")]))
    start({"a": a, "b": b})
    assert read_notes(b, file)
    start({"a": a})
    start({"a": a, "b": b})
    assert not read_notes(b, file)


@pytest.mark.parametrize("dies", [False, True])
def test_a_start_without_one_of_its_folders_is_none_after_a_stop_in_order(
    dies: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was in that folder is lost. If the broker went on leading, the others would cut their logs to nothing."""
    a, b = MemoryDisk(), MemoryDisk()
    start({"a": a, "b": b})
    for disk in (a, b):
        asyncio.run(write_manifest(disk, (), life=1))
    if dies:
        with monkeypatch.context() as patch, pytest.raises(DiskFault):
            patch.setattr(MemoryDisk, "write_atomic", died)
            start({"a": a})
    start({"a": a})
    assert not read_manifest(a).is_there
    asyncio.run(write_manifest(a, (), life=1))
    start({"a": a})  # the next time nothing is missing
    assert read_manifest(a).is_there


async def died(disk: MemoryDisk, path: str, data: bytes) -> None:
    raise DiskFault(5, "died", path)


def test_a_further_folder_is_taken_in() -> None:
    a, b = MemoryDisk(), MemoryDisk()
    start({"a": a})
    start({"a": a, "b": b})
    assert [len(facts.directories) for facts in known({"a": a, "b": b})] == [2, 2]
    with pytest.raises(StartError, match="missing"):
        start({"a": a, "b": MemoryDisk()})


@pytest.mark.parametrize("names", [["letter.txt"], ["orders-0"], [".lock", "lost+found", "thesis"]])
def test_a_folder_that_holds_something_else_is_refused(names: list[str]) -> None:
    disk = MemoryDisk()
    for name in names:
        disk.mkdir(name)
    with pytest.raises(StartError, match="not empty"):
        start({"a": disk})


def test_what_a_killed_first_start_leaves_is_no_reason_to_refuse() -> None:
    disk = MemoryDisk()
    for name in (".lock", ".discarded", "lost+found", "meta.db", "meta.db-wal", "meta.properties.tmp"):
        disk.mkdir(name)
    start({"a": disk})


def test_folders_of_two_clusters_or_brokers_do_not_go_together() -> None:
    a, b, c = MemoryDisk(), MemoryDisk(), MemoryDisk()
    start({"a": a})
    start({"b": b}, cluster_id="other")
    start({"c": c}, node_id=2)
    for strange in (b, c):
        with pytest.raises(StartError, match="belongs to"):
            start({"a": a, "x": strange})


def test_folders_from_before_there_were_ids_get_theirs() -> None:
    disk = MemoryDisk()
    disk.open(META_FILE, create=True).append([b"version=1\noncelog.layout=1\ncluster.id=c\nnode.id=1\n"])
    start({"a": disk})
    (facts,) = known({"a": disk})
    assert (facts.layout, facts.cluster_id) == (LAYOUT, "c"), "the version before this one says that it can't read it"
    assert facts.directories == (facts.directory_id,)

"""A partition that a start finds in two data folders: the one that holds all is served, the other one goes aside.

Found by the simulation: the disk failed that was to keep the decision of a move. The partition went on in its other
folder, and after a power cut it was in both. The broker refused to start.
"""

import asyncio
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from log.batch import split
from log.checkpoints import CLEANED_OFFSET, DAMAGED_OFFSET, GAPS_OFFSET, START_OFFSET, read_offset
from log.config import LogConfig
from log.disk import PARTITION_METADATA, DiskFault, RealDisk
from log.manifest import RECOVERY_POINTS
from log.partition_log import PartitionLog
from log.relocation import FORMER, FUTURE, Relocation, of_stem
from log.removal import raise_start_offset
from service.broker.data_folder import META_FILE, StartError
from service.broker.folder_moves import FolderMoves
from service.broker.found_folders import FIRST_LOG, STRAY
from service.broker.opening import PartitionMaker
from tests.service.api.admin_stage import Stage
from tests.service.broker.test_found_folders import BATCHES, OTHER, Machine
from tests.service.broker.topic_stage import write


class Homes(Machine):
    """The partition has moved from the first folder to the second one and was written to there. Then a power cut undid
    the decision: `home` is there again, and lacks that.
    """

    def __init__(self, folder: Path, *written: bytes) -> None:
        super().__init__(folder)
        before = folder / "before"
        shutil.copytree(self.home, before)
        self.home.rename(self.two / "orders-0")
        self.moved = self.two / "orders-0"

        async def goes_on(stage: Stage) -> None:
            await write(await stage.served("orders"), *written)

        if written:
            self.live(goes_on)
            self.crash()
        before.rename(self.home)
        for each in self.all:
            (each / RECOVERY_POINTS).unlink(missing_ok=True)

    def judge(self, home: Path, end_offset: int, *, start_offset: int = 0) -> None:
        """It is served from `home`, has all, and goes on."""

        async def scene(stage: Stage) -> None:
            partition = await stage.served("orders")
            assert (Path(partition.folder.name), partition.offline) == (home, False)
            assert (partition.log.start_offset, partition.log.end_offset) == (start_offset, end_offset)
            await write(partition, b"more")

        self.live(scene)

    def strays(self) -> list[Path]:
        return [stray for each in self.all for stray in each.glob(f"*{STRAY}")]


def torn(log: Path) -> None:
    log.write_bytes(log.read_bytes()[:-5])


def emptied(log: Path) -> None:
    log.write_bytes(b"")


@pytest.mark.parametrize("harm", [None, torn, emptied], ids=["whole", "the end is torn", "nothing is left"])
def test_what_has_moved_is_served_when_its_disk_has_forgotten_the_decision(
    tmp_path: Path, harm: Callable[[Path], None] | None, caplog: pytest.LogCaptureFixture
) -> None:
    machine = Homes(tmp_path, b"x", b"y")
    if harm is not None:
        harm(machine.home / FIRST_LOG)
    before = (machine.home / FIRST_LOG).read_bytes()
    machine.judge(machine.two, BATCHES + 2)
    (stray,) = machine.strays()
    assert stray.parent == machine.one
    assert (stray / FIRST_LOG).read_bytes() == before, "it is kept as it was found"
    holds = f"{machine.moved} holds offsets 0 to {BATCHES + 1}, which is all that this one holds"
    assert f"{machine.home} is called {stray.name} from now on: {holds}" in caplog.text
    machine.crash()
    machine.judge(machine.two, BATCHES + 3)


def test_what_has_not_moved_is_served_if_it_holds_more(tmp_path: Path) -> None:
    """Its copy had lost what nobody had been told to be durable."""
    machine = Homes(tmp_path)
    torn(machine.moved / FIRST_LOG)
    machine.judge(machine.one, BATCHES)
    assert [stray.parent for stray in machine.strays()] == [machine.two]


@pytest.mark.parametrize("was_away", [False, True])
def test_what_was_compacted_since_it_moved_is_served_if_no_data_folder_was_away(tmp_path: Path, was_away: bool) -> None:
    """What the former folder has is gone in the other one. Found by the simulation."""
    machine = Homes(tmp_path, b"x", b"y")
    log = machine.moved / FIRST_LOG
    (_, before), (_, after) = split(log.read_bytes())
    assert bytes(before) == (machine.home / FIRST_LOG).read_bytes()
    log.write_bytes(after)
    for checkpoint in (GAPS_OFFSET, CLEANED_OFFSET):
        (machine.moved / checkpoint).write_text(f"0\n{BATCHES + 1}\n")
    if not was_away:
        machine.judge(machine.two, BATCHES + 2)
        assert [stray.parent for stray in machine.strays()] == [machine.one]
        return
    facts = machine.one / META_FILE
    facts.write_text(re.sub("(oncelog.directories=[^,]*),.*", r"\1", facts.read_text()))
    refused(machine, f"offsets 0 to {BATCHES - 1}", f"offsets 0 to {BATCHES + 1}")


def test_of_two_that_hold_the_same_the_one_that_is_known_to_be_durable_is_served(tmp_path: Path) -> None:
    machine = Homes(tmp_path)
    (machine.two / RECOVERY_POINTS).write_text(f"0\n1\norders 0 {BATCHES}\n")
    machine.judge(machine.two, BATCHES)
    assert [stray.parent for stray in machine.strays()] == [machine.one]


def refused(machine: Homes, one: str, two: str) -> None:
    """Twice, and nothing is changed by that."""
    before = {path: path.read_bytes() for home in (machine.home, machine.moved) for path in home.iterdir()}
    folders = {machine.one: one, machine.two: two}
    for _ in range(2):
        with pytest.raises(StartError, match="move that one away which is not to be used") as told:
            machine.start()
        assert "most likely the one on a disk that had failed, or that this broker was started without" in str(
            told.value
        )
        for folder, holds in folders.items():
            assert f"in {folder} ({holds})" in str(told.value)
    assert {path: path.read_bytes() for home in (machine.home, machine.moved) for path in home.iterdir()} == before
    assert machine.strays() == []


def test_of_two_that_were_written_to_neither_is_chosen(tmp_path: Path) -> None:
    """The broker was started without the one, and then without the other."""
    machine = Homes(tmp_path, b"x")
    moved = machine.moved.rename(tmp_path / "away")

    async def goes_on(stage: Stage) -> None:
        await write(await stage.served("orders"), b"y", b"z")

    machine.live(goes_on)
    machine.crash()
    moved.rename(machine.moved)
    for each in machine.all:
        (each / RECOVERY_POINTS).unlink(missing_ok=True)
    refused(machine, f"offsets 0 to {BATCHES + 1}", f"offsets 0 to {BATCHES}")


def test_one_that_lacks_what_was_durable_in_it_is_not_set_aside(tmp_path: Path) -> None:
    machine = Homes(tmp_path, b"x")
    torn(machine.home / FIRST_LOG)
    (machine.one / RECOVERY_POINTS).write_text(f"0\n1\norders 0 {BATCHES}\n")
    lost = f"nothing, and ends at offset 0; it had offsets up to {BATCHES - 1} once"
    refused(machine, lost, f"offsets 0 to {BATCHES}")


def test_what_a_manifest_says_of_two_is_known_to_the_next_start_too(tmp_path: Path) -> None:
    """The first start was refused, and had removed the manifest. So the next one set the folder aside that had held
    more.
    """
    machine = Homes(tmp_path)
    moved = machine.moved.rename(tmp_path / "away")

    async def goes_on(stage: Stage) -> None:
        await write(await stage.served("orders"), b"y")

    machine.live(goes_on)
    moved.rename(machine.moved)
    (machine.one / RECOVERY_POINTS).unlink(missing_ok=True)
    torn(machine.home / FIRST_LOG)
    lost = f"offsets 0 to {BATCHES - 1}; it had offsets up to {BATCHES} once"
    refused(machine, lost, f"offsets 0 to {BATCHES - 1}")


def test_one_that_is_recovered_otherwise_than_it_was_read_is_not_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Homes(tmp_path, b"x", b"y")
    add = PartitionMaker.add

    def reads_otherwise(*args: Any) -> Any:
        torn(machine.moved / FIRST_LOG)
        return add(*args)

    with monkeypatch.context() as patch, pytest.raises(StartError) as told:
        patch.setattr(PartitionMaker, "add", reads_otherwise)
        machine.start()
    read = f"{machine.moved} held offsets 0 to {BATCHES + 1}, and was recovered as offsets 0 to {BATCHES - 1}"
    assert str(told.value).startswith(read)
    assert f"{machine.home} holds offsets 0 to {BATCHES - 1}" in str(told.value)
    assert (machine.home.exists(), machine.strays()) == (True, [])


def test_one_that_does_not_tell_its_topic_is_not_judged(tmp_path: Path) -> None:
    """It may be of a topic that was deleted."""
    machine = Homes(tmp_path, b"x")
    (machine.moved / PARTITION_METADATA).unlink()
    refused(machine, f"offsets 0 to {BATCHES - 1}", f"offsets 0 to {BATCHES}")


def test_one_of_a_topic_that_was_made_again_is_none_of_the_two(tmp_path: Path) -> None:
    machine = Homes(tmp_path, b"x", b"y")
    (machine.moved / PARTITION_METADATA).write_bytes(OTHER)
    machine.judge(machine.one, BATCHES)
    assert [stray.parent for stray in machine.strays()] == [machine.two]


def cannot_be_read(machine: Homes, monkeypatch: pytest.MonkeyPatch) -> str:
    opened = RealDisk.open

    def fails(disk: RealDisk, path: str, **how: Any) -> Any:
        if Path(disk._real(path)) == machine.home / FIRST_LOG:
            raise DiskFault(5, "Input/output error", path)
        return opened(disk, path, **how)

    monkeypatch.setattr(RealDisk, "open", fails)
    return "nothing, and ends at offset 0; it can't be read: Input/output error"


def test_one_that_cannot_be_read_is_not_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Homes(tmp_path, b"x")
    refused(machine, cannot_be_read(machine, monkeypatch), f"offsets 0 to {BATCHES}")


def test_what_was_deleted_in_the_folder_that_goes_aside_stays_deleted(tmp_path: Path) -> None:
    machine = Homes(tmp_path)

    async def deletes() -> None:
        disk = RealDisk(str(machine.two))
        log = PartitionLog.open(disk, "orders-0", LogConfig(), (), known=None, now_ms=0)
        await raise_start_offset(log, 7)
        disk.close()

    asyncio.run(deletes())
    (machine.one / RECOVERY_POINTS).write_text(f"0\n1\norders 0 {BATCHES}\n")
    machine.judge(machine.one, BATCHES, start_offset=7)
    assert read_offset(RealDisk(str(machine.one)), "orders-0", START_OFFSET) == 7


STEPS = ["flush", "point", "aside", "durable"]


@pytest.mark.parametrize("step", STEPS)
def test_a_start_that_died_as_it_put_one_aside_is_followed_by_one_that_thinks_alike(
    tmp_path: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Homes(tmp_path, b"x")
    (machine.one / RECOVERY_POINTS).write_text("0\n1\norders 0 0\n")

    async def died(*_: object) -> None:
        raise DiskFault(5, "died", "")

    def died_at_once(*_: object) -> None:
        raise DiskFault(5, "died", "")

    async def not_durable(disk: RealDisk, path: str) -> None:
        if any(machine.one.glob(f"*{STRAY}")):
            raise DiskFault(5, "died", "")

    with monkeypatch.context() as patch, pytest.raises(DiskFault, match="died"):
        if step == "flush":
            patch.setattr(PartitionLog, "flush", died)
        elif step == "point":
            patch.setattr("service.broker.housekeeper.Housekeeper.forget_in_a_start", died)
        elif step == "aside":
            patch.setattr(PartitionMaker, "_move_aside", staticmethod(died_at_once))
        else:
            patch.setattr(RealDisk, "sync_dir", not_durable)
        machine.start()
    machine.judge(machine.two, BATCHES + 1)
    assert [stray.parent for stray in machine.strays()] == [machine.one]


def test_a_third_one_is_judged_like_the_second(tmp_path: Path) -> None:
    machine = Homes(tmp_path, b"x")
    third = machine.three / "orders-0"
    shutil.copytree(machine.home, third)
    torn(third / FIRST_LOG)
    machine.judge(machine.two, BATCHES + 1)
    assert {stray.parent for stray in machine.strays()} == {machine.one, machine.three}


def test_a_copy_of_the_one_that_holds_less_is_no_reason_to_serve_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A move was under way besides. It does not go on here: it would end in that folder."""
    monkeypatch.setattr(FolderMoves, "resume", lambda moves: None)
    machine = Homes(tmp_path, b"x")
    shutil.copytree(machine.moved, machine.three / (machine.stem + FUTURE))
    torn(machine.three / (machine.stem + FUTURE) / FIRST_LOG)
    machine.judge(machine.two, BATCHES + 1)
    assert not any(machine.three.glob("*orders*"))


class MovedOn(Homes):
    """The partition was about to move on, from the second folder to the third one, when the machine died: what it left
    is called `former` there, and its copy has no name yet.
    """

    def __init__(self, folder: Path, *written: bytes) -> None:
        super().__init__(folder, *written)
        asyncio.run(self._moves_on())
        self.left, self.copy = self.two / (self.stem + FORMER), self.three / (self.stem + FUTURE)
        assert (self.left.exists(), self.copy.exists(), self.moved.exists()) == (True, True, False)

    async def _moves_on(self) -> None:
        two, three = RealDisk(str(self.two)), RealDisk(str(self.three))
        topic = of_stem(self.stem)
        assert topic is not None
        log = PartitionLog.open(two, "orders-0", LogConfig(), (), known=None, now_ms=0, topic_id=topic[0])
        relocation = Relocation(log, two, three, *topic, blocking=asyncio.to_thread)

        async def died(*_: object) -> None:
            pass

        relocation._settle = died  # type: ignore[assignment]
        assert await relocation.take_over(
            "orders-0",
            now_ms=0,
            breathe=died,
            may=lambda: True,
            decided=lambda: None,
            origin_failed=lambda fault: None,
            target_failed=lambda fault: None,
        )
        for disk in (two, three):
            disk.close()


@pytest.mark.parametrize("dies", ["", "service.broker.opening.PartitionMaker._open", "service.broker.opening.agree"])
def test_what_has_moved_on_is_served_when_a_disk_before_has_forgotten_that_it_moved(
    tmp_path: Path, dies: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by reading: what that disk held was taken for the partition, and all else was removed."""
    machine = MovedOn(tmp_path, b"x", b"y")
    if dies:

        async def died(*_: object, **__: object) -> None:
            raise DiskFault(5, "died", "")

        with monkeypatch.context() as patch, pytest.raises(DiskFault, match="died"):
            patch.setattr(dies, died)
            machine.start()
    machine.judge(machine.three, BATCHES + 2)
    assert [stray.parent for stray in machine.strays()] == [machine.one]
    assert not machine.left.exists()
    machine.crash()
    machine.judge(machine.three, BATCHES + 3)


def test_what_had_moved_on_with_nothing_new_is_served_from_either(tmp_path: Path) -> None:
    machine = MovedOn(tmp_path)
    machine.judge(machine.one, BATCHES)
    assert (machine.left.exists(), machine.strays()) == (False, [])


def test_what_was_durable_only_in_the_copy_is_served(tmp_path: Path) -> None:
    """It was flushed there before the decision, and counted as durable from then on."""
    machine = MovedOn(tmp_path, b"x")
    torn(machine.left / FIRST_LOG)
    machine.judge(machine.three, BATCHES + 1)
    assert [stray.parent for stray in machine.strays()] == [machine.one]


def test_what_an_earlier_move_left_does_not_make_a_later_copy_the_partition(tmp_path: Path) -> None:
    """The copy is whole, but was not decided on."""
    machine = MovedOn(tmp_path, b"x", b"y")
    machine.home.rename(machine.one / machine.left.name)
    machine.left.rename(machine.moved)
    machine.judge(machine.two, BATCHES + 2)
    assert machine.strays() == []


def test_a_copy_that_was_not_made_whole_is_not_taken_for_the_partition(tmp_path: Path) -> None:
    """Even if it is not known what the former move left."""
    machine = MovedOn(tmp_path, b"x", b"y")
    machine.home.rename(machine.one / machine.left.name)
    machine.left.rename(machine.moved)
    torn(machine.one / machine.left.name / FIRST_LOG)
    (machine.copy / GAPS_OFFSET).unlink()
    (machine.one / machine.left.name / DAMAGED_OFFSET).write_text("0\n1\n")
    machine.judge(machine.two, BATCHES + 2)


def both_written(machine: MovedOn, _: pytest.MonkeyPatch) -> str:
    """The broker was started without the second and the third folder meanwhile."""
    left, copy = machine.left.rename(machine.two / "away"), machine.copy.rename(machine.three / "away")

    async def goes_on(stage: Stage) -> None:
        await write(await stage.served("orders"), b"z")

    machine.live(goes_on)
    machine.crash()
    (machine.one / RECOVERY_POINTS).unlink(missing_ok=True)
    left.rename(machine.left)
    copy.rename(machine.copy)
    return f"offsets 0 to {BATCHES}"


def is_damaged(machine: MovedOn, _: pytest.MonkeyPatch) -> str:
    (machine.home / DAMAGED_OFFSET).write_text("0\n1\n")
    return f"offsets 0 to {BATCHES - 1}; a read has found damage in it"


@pytest.mark.parametrize("harm", [both_written, is_damaged, cannot_be_read])
def test_if_it_is_not_sure_that_it_has_moved_on_nothing_is_removed(
    tmp_path: Path, harm: Callable[[MovedOn, pytest.MonkeyPatch], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = MovedOn(tmp_path, b"x", b"y")
    holds = harm(machine, monkeypatch)
    folders = (machine.home, machine.left, machine.copy)
    before = {path: path.read_bytes() for home in folders for path in home.iterdir()}
    for _ in range(2):
        with pytest.raises(StartError, match="Move that orders-0 away which is not to be used") as told:
            machine.start()
        assert f"{machine.home} holds {holds}; {machine.left} holds offsets 0 to {BATCHES + 1}" in str(told.value)
        assert f"{machine.copy} holds offsets 0 to {BATCHES + 1}. " in str(told.value)
    assert {path: path.read_bytes() for home in folders for path in home.iterdir()} == before
    monkeypatch.undo()
    machine.home.rename(tmp_path / "away")
    machine.judge(machine.three, BATCHES + 2)

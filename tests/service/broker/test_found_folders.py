"""What becomes of each folder that a start finds. The table of `service/broker/found_folders.py` says what is right.
For each row there is a scene here that plants such a folder, and the folder is looked for after the start.

Found by reading: copies that a move had left, and folders of topics that had been made again, were removed though they
alone held what they held.
"""

import asyncio
import errno
import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from log.disk import PARTITION_METADATA, DiskFault, RealDisk
from log.ids import TopicPartition, format_topic_id
from log.manifest import MANIFEST, RECOVERY_POINTS
from log.relocation import FORMER, FUTURE, stem_of
from service.api.routes import OFFERED
from service.broker import found_folders
from service.broker.data_folder import META_FILE
from service.broker.found_folders import FIRST_LOG, STRAY
from service.broker.joining import join
from service.broker.node import Broker
from service.cluster.image import Image
from service.ports import RealClock, RealEnv
from service.settings.broker import BrokerConfig
from service.stores.memory import MemoryServer, MemoryStore
from tests.service.api.admin_stage import Stage, on_stage
from tests.service.broker.topic_stage import FSYNC, values, write

ROWS = dict(re.findall(r"^\| ([NC]\d) \|.*\| (\w+) \|$", found_folders.__doc__ or "", re.M))
ORDERS = TopicPartition("orders", 0)
OTHER = f"version: 0\ntopic_id: {format_topic_id(bytes(15) + b'1')}\n".encode()
BATCHES = 20


class Machine:
    """Three data folders of one broker, with a partition `orders-0` in the first, as a crash left them."""

    def __init__(self, folder: Path) -> None:
        self.one, self.two, self.three = self.all = [folder / name for name in ("one", "two", "three")]
        for each in self.all:
            each.mkdir()
        self.metadata = MemoryServer(RealClock())
        self.stem = ""
        self.live(self._write)
        self.crash()
        self.home = self.one / "orders-0"
        self.former, self.future = self.one / (self.stem + FORMER), self.two / (self.stem + FUTURE)

    async def _write(self, stage: Stage) -> None:
        self.stem = stem_of(await stage.create("orders"), 0)  # type: ignore[arg-type]
        await write(await stage.served("orders"), *[b"x"] * BATCHES)

    def live(self, scene: Callable[[Stage], object], folders: Sequence[Path] = ()) -> None:
        first, *more = folders or self.all
        on_stage(first, scene, FSYNC, metadata=self.metadata, more_folders=more)  # type: ignore[arg-type]

    def crash(self) -> None:
        for folder in self.all:
            (folder / MANIFEST).unlink(missing_ok=True)

    def start(self, *, knows: str = "all", placed: bool = True, without: Path | None = None) -> dict[str, Path]:
        """Open the logs and die. `knows`: what the metadata knows; `placed`: it places the partition here. Returns
        where the partition is used.
        """
        used: dict[str, Path] = {}

        async def opens() -> None:
            disks = {str(each): RealDisk(str(each)) for each in self.all if each != without}
            env = RealEnv(next(iter(disks.values())))
            store = MemoryStore(self.metadata, env)
            broker = Broker(
                env, BrokerConfig({"node.id": "1", "log.reserve.bytes": "0", **FSYNC}), store, disks, OFFERED
            )
            await join(
                *(disks, broker.metadata),
                configured_id=1,
                listener=None,
                fresh_id=lambda: format_topic_id(env.unique()),
            )
            try:
                image = Image() if knows == "nothing" else broker.metadata.image
                if knows == "the topic":
                    topics = {name: replace(topic, partitions={}) for name, topic in image.topics.items()}
                    image = replace(image, topics=topics)
                await broker.maker.open_all(image, 1 if placed else 2)
                used.update((str(each.topic_partition), Path(each.folder.name)) for each in broker.partitions)
            finally:
                await broker.metadata.close()
                for disk in disks.values():
                    disk.close()

        asyncio.run(opens())
        return used

    def decide(self) -> None:
        """The partition has been moved from the first to the second data folder, but its copy is not named yet."""
        shutil.copytree(self.home, self.future)
        self.home.rename(self.former)

    def begin(self, folder: Path) -> Path:
        """A copy that has not come far."""
        copy = folder / (self.stem + FUTURE)
        shutil.copytree(self.home, copy)
        (copy / FIRST_LOG).write_bytes((copy / FIRST_LOG).read_bytes()[:200])
        return copy


class Planted:
    """A folder that is found again whatever it is called now."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._open = os.open(path, os.O_RDONLY)  # its inode is not given to another folder meanwhile

    def found(self) -> Path | None:
        node = os.fstat(self._open).st_ino
        return next((each for each in self.path.parent.iterdir() if each.stat().st_ino == node), None)

    def fate(self, used: dict[str, Path]) -> str:
        now = self.found()
        if now is None:
            return "removed"
        if now.name.endswith(STRAY):
            return "aside"
        if now.name == "orders-0" and used.get("orders-0") == now.parent:
            return "used"
        return "left" if now == self.path else now.name


def tells(text: bytes) -> Callable[[Machine], Path]:
    def plant(machine: Machine) -> Path:
        (machine.home / PARTITION_METADATA).write_bytes(text)
        return machine.home

    return plant


def nothing_known(machine: Machine) -> Path:
    (machine.home / PARTITION_METADATA).unlink()
    return machine.home


def home(machine: Machine) -> Path:
    return machine.home


def former(machine: Machine) -> Path:
    machine.decide()
    return machine.former


def former_beside_home(machine: Machine) -> Path:
    shutil.copytree(machine.home, machine.former)
    return machine.former


def former_alone(machine: Machine) -> Path:
    machine.decide()
    shutil.rmtree(machine.future)
    return machine.former


def future(machine: Machine) -> Path:
    machine.decide()
    return machine.future


def future_beside_home(machine: Machine) -> Path:
    return machine.begin(machine.two)


def future_alone(machine: Machine) -> Path:
    machine.decide()
    shutil.rmtree(machine.former)
    return machine.future


def blank(machine: Machine) -> Path:
    machine.future.mkdir()
    return machine.future


def never_written(machine: Machine) -> Path:
    """Of a log that nobody had written to, so that it has no folder of its own."""
    machine.home.rename(machine.future)
    for path in machine.future.iterdir():
        if path.name == FIRST_LOG:
            path.write_bytes(b"")
        elif path.name != PARTITION_METADATA:
            path.unlink()
    return machine.future


UNKNOWN, ONLY_TOPIC, ELSEWHERE = {"knows": "nothing"}, {"knows": "the topic"}, {"placed": False}
SCENES: list[tuple[str, Callable[[Machine], Path], Mapping[str, Any]]] = [
    ("N1", home, {}),
    ("N2", nothing_known, {}),
    ("N3", tells(b""), {}),
    ("N4", tells(OTHER), {}),
    ("N5", home, ELSEWHERE),
    ("N6", home, UNKNOWN),
    ("N6", home, ONLY_TOPIC),
    ("N6", tells(OTHER), ELSEWHERE),
    ("N6", nothing_known, ELSEWHERE),
    ("C1", blank, {}),
    ("C1", blank, ELSEWHERE),
    ("C1", blank, UNKNOWN),
    ("C1", never_written, {}),
    ("C2", former, UNKNOWN),
    ("C2", future, UNKNOWN),
    ("C2", future, ONLY_TOPIC),
    ("C3", former, ELSEWHERE),
    ("C3", future, ELSEWHERE),
    ("C4", future, {}),
    ("C5", former_alone, {}),
    ("C5", future_alone, {}),
    ("C6", former_beside_home, {"away": True}),
    ("C6", future_beside_home, {"away": True}),
    ("C6", former_beside_home, {"was away": True}),
    ("C6", future_beside_home, {"was away": True}),
    ("C7", former, {}),
    ("C7", former_beside_home, {}),
    ("C7", future_beside_home, {}),
]


def test_each_row_of_the_table_has_a_scene() -> None:
    assert ROWS.keys() == {row for row, _, _ in SCENES}
    assert set(ROWS.values()) == {fate.value for fate in found_folders.Fate}


@pytest.mark.parametrize(
    "dies",
    ["", "service.broker.opening.PartitionMaker._settle_moves", "service.broker.opening.agree"],
    ids=["", "a start died at its beginning", "a start died at its end"],
)
@pytest.mark.parametrize(("row", "plant", "given"), SCENES)
def test_a_folder_that_is_found_meets_the_fate_that_the_table_says(
    tmp_path: Path,
    row: str,
    plant: Callable[[Machine], Path],
    given: Mapping[str, Any],
    dies: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    machine = Machine(tmp_path)
    if given.get("was away"):
        machine.start(without=machine.three)
    planted = Planted(plant(machine))
    log = planted.path / FIRST_LOG
    before = log.read_bytes() if log.exists() else b""
    circumstances = {key: value for key, value in given.items() if key in ("knows", "placed")}
    without = machine.three if given.get("away") else None
    if dies:

        async def died(*_: object, **__: object) -> None:
            raise DiskFault(5, "died", "")

        with monkeypatch.context() as patch, pytest.raises(DiskFault):
            patch.setattr(dies, died)
            machine.start(**circumstances, without=without)
    used = machine.start(**circumstances, without=without)
    assert planted.fate(used) == ROWS[row]
    now = planted.found()
    if ROWS[row] != "removed":
        assert now is not None
        assert before != b""
        assert (now / FIRST_LOG).read_bytes() == before
    if ROWS[row] == "aside":
        assert now is not None
        assert f"{planted.path} is called {now.name} from now on" in caplog.text
    machine.start(**circumstances, without=without)
    assert planted.found() == now, "the next start thinks alike"


def test_a_copy_that_had_not_come_far_is_served_only_if_nothing_better_is_kept_from_view(tmp_path: Path) -> None:
    """The partition had moved from one folder to the next, and was on its way to a third. What it was in the first was
    still there, and the disk that it was on is away. What it was at first was removed, the beginning of it was served.
    """
    machine = Machine(tmp_path)
    begun = machine.begin(machine.three)
    machine.decide()
    machine.future.rename(machine.two / "orders-0")
    before = (machine.former / FIRST_LOG).read_bytes()
    assert machine.start(without=machine.two) == {"orders-0": machine.three}
    (stray,) = machine.one.glob(f"*{STRAY}")
    assert (stray / FIRST_LOG).read_bytes() == before
    assert not begun.exists()
    for _ in range(2):
        assert machine.start() == {"orders-0": machine.two}, "nothing was written to the beginning of it"
    assert list(machine.three.glob(f"*{STRAY}"))


def test_a_move_is_finished_when_the_metadata_knows_its_topic_again(tmp_path: Path) -> None:
    """The store had been brought back from before the topic was made: all of it was removed without a word."""
    machine = Machine(tmp_path)
    machine.decide()
    assert machine.start(knows="nothing") == {}

    async def scene(stage: Stage) -> None:
        partition = await stage.served("orders")
        assert (partition.folder.name, values(partition)) == (str(machine.two), BATCHES)

    machine.live(scene)


def test_a_folder_of_a_lost_topic_is_kept_when_a_topic_of_its_name_is_made(tmp_path: Path) -> None:
    """Which a producer does that goes on."""
    machine = Machine(tmp_path)
    planted, before = Planted(machine.home), (machine.home / FIRST_LOG).read_bytes()
    machine.metadata = MemoryServer(RealClock())
    for folder in machine.all:  # as after a restore of the metadata
        (folder / META_FILE).unlink()
        for path in folder.iterdir():
            path.rename(tmp_path / path.name)

    async def scene(stage: Stage) -> None:
        (tmp_path / "orders-0").rename(machine.home)
        await stage.create("orders")
        await write(await stage.served("orders"), b"new")

    machine.live(scene)
    now = planted.found()
    assert now is not None
    assert now.name == f"{machine.stem}.1{STRAY}"
    assert (now / FIRST_LOG).read_bytes() == before


def test_what_was_moved_aside_is_put_back_as_the_documentation_says(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    former_alone(machine)

    async def anew(stage: Stage) -> None:
        await write(await stage.served("orders"), b"new")

    async def scene(stage: Stage) -> None:
        assert values(await stage.served("orders")) == BATCHES

    machine.live(anew)
    (stray,) = machine.one.glob(f"*{STRAY}")
    (named,) = (folder / "orders-0" for folder in machine.all if (folder / "orders-0").exists())
    named.rename(tmp_path / "meanwhile")
    stray.rename(machine.home)
    for folder in machine.all:
        for name in (MANIFEST, RECOVERY_POINTS):
            (folder / name).unlink(missing_ok=True)
    machine.live(scene)


def test_a_copy_that_takes_the_partition_over_is_not_measured_by_what_had_its_name(tmp_path: Path) -> None:
    """A folder of another topic was in its way, and had come further. The copy was taken for damaged, and not
    served.
    """
    machine = Machine(tmp_path)
    machine.decide()
    in_the_way = machine.two / "orders-0"
    shutil.copytree(machine.former, in_the_way)
    (in_the_way / PARTITION_METADATA).write_bytes(OTHER)
    (machine.two / RECOVERY_POINTS).write_text("0\n1\norders 0 999\n")

    async def scene(stage: Stage) -> None:
        partition = stage.broker.partitions.get(ORDERS)
        assert partition is not None
        assert (partition.folder.name, partition.offline, values(partition)) == (str(machine.two), False, BATCHES)

    machine.live(scene)


def in_the_way(machine: Machine) -> None:
    tells(OTHER)(machine)


def in_the_way_of_a_copy(machine: Machine) -> None:
    machine.decide()
    shutil.copytree(machine.former, machine.two / "orders-0")
    (machine.two / "orders-0" / PARTITION_METADATA).write_bytes(OTHER)


@pytest.mark.parametrize("plant", [in_the_way, in_the_way_of_a_copy])
def test_a_full_disk_keeps_no_point_of_what_is_moved_aside(
    tmp_path: Path, plant: Callable[[Machine], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The list of points had no room to be written anew, so what took the name was measured by it after a crash, and
    not served.
    """
    machine = Machine(tmp_path)
    plant(machine)
    for folder in machine.all:
        (folder / RECOVERY_POINTS).write_text("0\n2\nother 7 9\norders 0 999\n")

    async def full(disk: RealDisk, path: str, data: bytes) -> None:
        raise DiskFault(errno.ENOSPC, "no room", path)

    with monkeypatch.context() as patch:
        patch.setattr(RealDisk, "write_atomic", full)
        machine.start()
    assert not any((folder / RECOVERY_POINTS).exists() for folder in machine.all)

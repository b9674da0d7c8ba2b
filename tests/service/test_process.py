"""What keeps a broker from starting is told in one line, and leaves the data as it was."""

import asyncio
import errno
import os
import sys
from pathlib import Path

import pytest

from log.disk import DiskFault, RealDisk
from log.manifest import read_manifest
from service.broker.data_folder import META_FILE, StartError
from service.broker.node import Broker
from service.cluster.image import Image, PartitionState, Topic
from service.process import SWITCH_S, refuse_fewer, run_broker
from service.settings.broker import BrokerConfig
from tests.service.cluster.worlds import topic_id


def start_and_stop(folder: Path) -> None:
    async def main() -> None:
        stop = asyncio.Event()

        def ready(_: Broker, web: object) -> None:
            stop.set()

        config = BrokerConfig({"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(folder), "http.listeners": ""})
        await run_broker(config, on_opening=lambda _: None, on_ready=ready, stop=stop)

    asyncio.run(main())


def test_a_thread_that_has_flushed_does_not_wait_long_for_the_interpreter(tmp_path: Path) -> None:
    """While records are looked at in short turns, an fsync's thread came up to 5 s late with Python's own interval. How
    late depends on the turns: so this asks for the interval alone.
    """
    before = sys.getswitchinterval()
    try:
        start_and_stop(tmp_path)
        assert sys.getswitchinterval() == pytest.approx(SWITCH_S)
        assert SWITCH_S < 0.001, "a turn in which records are looked at"
    finally:
        sys.setswitchinterval(before)


def test_a_broker_whose_id_another_process_has_taken_stops_and_says_so(tmp_path: Path) -> None:
    async def main() -> None:
        def ready(broker: Broker, web: object) -> None:
            # As when it has lost its session, and meanwhile another process has begun a session and registered.
            broker.metadata._process += 1
            broker.metadata._lost("The session with the metadata store is over.")

        config = BrokerConfig({"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(tmp_path), "http.listeners": ""})
        async with asyncio.timeout(20):
            await run_broker(config, on_opening=lambda _: None, on_ready=ready, stop=asyncio.Event())

    with pytest.raises(StartError, match="id taken: another process has registered as broker 1 "):
        asyncio.run(main())
    assert read_manifest(RealDisk(str(tmp_path))).life == -1, "nobody takes its folder for that of the last life"


def stored(folder: Path) -> dict[str, bytes]:
    """But for the metadata, of which every start has its own session."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if not path.name.startswith("meta.db")}


@pytest.mark.parametrize("error", [errno.EMFILE, errno.ENFILE, errno.EIO])
@pytest.mark.parametrize("looks", range(3))
def test_a_file_that_can_not_be_read_at_the_start_is_told_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int, looks: int
) -> None:
    """The folder is asked whose it is before it is locked, before the cluster is joined, and after."""
    start_and_stop(tmp_path)
    before = stored(tmp_path)
    whole, left = RealDisk.read, looks

    def read(disk: RealDisk, path: str) -> bytes:
        nonlocal left
        if path == META_FILE:
            left -= 1
            if left < 0:
                raise DiskFault(error, os.strerror(error), path)
        return whole(disk, path)

    monkeypatch.setattr(RealDisk, "read", read)
    with pytest.raises(StartError) as told:
        start_and_stop(tmp_path)
    assert str(told.value) == f"{META_FILE} in {tmp_path}: {os.strerror(error)}"
    assert stored(tmp_path) == before


def test_a_disk_that_is_full_when_the_folder_is_claimed_is_told_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def write_atomic(_disk: RealDisk, path: str, _data: bytes) -> None:
        raise DiskFault(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    monkeypatch.setattr(RealDisk, "write_atomic", write_atomic)
    with pytest.raises(StartError, match=rf"^{META_FILE} in {tmp_path}: No space left on device$"):
        start_and_stop(tmp_path)


@pytest.mark.parametrize(("holders", "own", "wanted"), [((1, 2), 1, 2), ((1, 3), 1, 3), ((4,), 1, 4), ((1, 2), 2, 2)])
def test_so_many_brokers_are_asked_for_as_have_the_ids_of_all(holders: tuple[int, ...], own: int, wanted: int) -> None:
    """It asked for 2 where 1 and 3 hold something: the next start was refused as well."""
    topic = Topic("orders", topic_id(1), 0, {}, {0: PartitionState(holders, holders, holders[0], 0)})
    with pytest.raises(StartError, match=rf"serve --brokers {wanted}\)"):
        refuse_fewer(Image(topics={"orders": topic}), own, 1)

"""A data folder that was put back from an earlier copy lacks what the broker has taken since. It does not count as that
of a broker that stopped in order, though it tells of a stop in order.
"""

import asyncio
import shutil
from pathlib import Path

import pytest

from tests.service.broker.cluster_stage import SECOND, ClusterStage, on_cluster_stage, until


def put_back(folder: Path, copy: Path) -> None:
    shutil.rmtree(folder)
    shutil.copytree(copy, folder)


def test_a_copy_of_before_does_not_lead_while_who_has_everything_is_away(tmp_path: Path) -> None:
    """It led: it was eligible, and what both had acknowledged since was cut from the other one, too."""
    own, copy = tmp_path / "1", tmp_path / "copy"

    async def scene(stage: ClusterStage) -> None:
        await stage.create(1, 2, min_insync_replicas="2")
        await stage.in_sync(1, 2)
        await stage.write("before")
        await stage.stop(1)
        shutil.copytree(own, copy)
        await stage.start(1)
        await stage.in_sync(1, 2)
        await stage.write("since")
        await stage.stop(1)
        put_back(own, copy)
        await stage.kill(2)
        await stage.start(1)
        assert (stage.state().isr, stage.state().eligible) == ((2,), ())
        await stage.start(2)
        await stage.in_sync(1, 2)
        await stage.alike(1, 2)
        assert stage.partition(1).log.end_offset == 2

    on_cluster_stage(tmp_path, scene, 1, 2)


def test_a_copy_of_one_of_several_folders_does_not_lead_either(tmp_path: Path) -> None:
    """The other folder tells of the last stop."""
    (tmp_path / f"1{SECOND}").mkdir()
    copy = tmp_path / "copy"

    async def scene(stage: ClusterStage) -> None:
        await stage.create(1, 2, min_insync_replicas="2")
        await stage.in_sync(1, 2)
        await stage.write("before")
        home = Path(stage.partition(1).folder.name)
        await stage.stop(1)
        shutil.copytree(home, copy)
        await stage.start(1)
        await stage.in_sync(1, 2)
        await stage.write("since")
        await stage.stop(1)
        put_back(home, copy)
        await stage.kill(2)
        await stage.start(1)
        assert (stage.state().isr, stage.state().eligible) == ((2,), ())
        await stage.start(2)
        await stage.in_sync(1, 2)
        assert stage.partition(1).log.end_offset == 2

    on_cluster_stage(tmp_path, scene, 1, 2)


def test_the_folder_of_the_last_stop_in_order_is_trusted(tmp_path: Path) -> None:
    """Also after a life that has begun again and again: each session is one."""

    async def scene(stage: ClusterStage) -> None:
        await stage.create(1, 2, min_insync_replicas="2")
        await stage.in_sync(1, 2)
        await stage.write("before")
        metadata = stage.broker(1).metadata
        for _ in range(2):
            lost = metadata.sessions_lost
            stage.end_session(1)
            await until(lambda: metadata.sessions_lost > lost and metadata.in_session)  # noqa: B023
            await stage.in_sync(1, 2)
        await stage.write("since")
        await stage.broker(1).holdings.hand_over()  # else it may join once more while its port is closed
        await stage.stop(1)
        await stage.kill(2)
        await stage.start(1)
        await until(lambda: stage.state().leader == 1)
        assert stage.partition(1).log.end_offset == 2

    on_cluster_stage(tmp_path, scene, 1, 2)


def test_a_broker_on_a_copy_made_meanwhile_waits_while_the_first_one_lives(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It took the id, and the first one stopped: what that had acknowledged since the copy was not in it."""
    (tmp_path / "copies").mkdir()

    async def scene(stage: ClusterStage) -> None:
        await stage.create(1, 2)
        await stage.in_sync(1, 2)
        await stage.write("before")
        shutil.copytree(tmp_path / "1", tmp_path / "copies" / "1")
        beside = stage.beside(tmp_path / "copies")
        coming = asyncio.ensure_future(beside.start(1))
        await until(lambda: "id taken" in caplog.text)
        await stage.write("since")
        assert stage.partition(1).is_leading and not coming.done()
        await stage.kill(1)
        await coming
        stage.lives[1] = beside.lives.pop(1)
        await stage.in_sync(1, 2)
        await stage.alike(1, 2)
        assert stage.partition(1).log.end_offset == 2

    on_cluster_stage(tmp_path, scene, 1, 2)

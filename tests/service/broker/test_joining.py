"""A broker with an empty folder whose id is registered: by one that lives, or by one that has died."""

import asyncio
from pathlib import Path

import pytest

from service.broker.data_folder import META_FILE, StartError
from tests.service.broker.cluster_stage import ClusterStage, on_cluster_stage, until


def test_an_id_whose_holder_answers_is_refused_at_once(tmp_path: Path) -> None:
    """Only after twice the session timeout, and without a word before, the new broker gave up."""
    (tmp_path / "new").mkdir()

    async def scene(stage: ClusterStage) -> None:
        address = stage.broker(1).bootstrap
        async with asyncio.timeout(5):
            with pytest.raises(StartError, match=f"^id taken: broker 1 answers at {address}. "):
                await stage.beside(tmp_path / "new").start(1)
        assert not (tmp_path / "new" / "1" / META_FILE).exists()
        assert stage.broker(1).metadata.in_session

    on_cluster_stage(tmp_path, scene, 1)


@pytest.mark.parametrize("stranger", [False, True], ids=["nobody answers", "another broker answers"])
def test_an_id_whose_holder_does_not_answer_is_waited_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, stranger: bool
) -> None:
    (tmp_path / "new").mkdir()
    given = {"listeners": "PLAINTEXT://127.0.0.1:0"}

    async def scene(stage: ClusterStage) -> None:
        host, _, port = stage.broker(1).bootstrap.rpartition(":")
        for server in stage.lives[1].servers:
            await server.close()
        if stranger:
            await stage.stop(2)
            given["listeners"] = f"PLAINTEXT://{host}:{port}"
            await stage.start(2)
            given["listeners"] = "PLAINTEXT://127.0.0.1:0"
        beside = stage.beside(tmp_path / "new")
        coming = asyncio.ensure_future(beside.start(1))
        await until(lambda: f"does not answer at {host}:{port}" in caplog.text)
        assert not coming.done()
        await stage.kill(1)
        await coming
        stage.lives[1] = beside.lives.pop(1)

    on_cluster_stage(tmp_path, scene, 1, 2, given=given)

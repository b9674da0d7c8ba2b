"""What the housekeeper writes down, while logs are being cut."""

from pathlib import Path

from log.manifest import read_recovery_points
from tests.service.api.admin_stage import Stage, on_stage
from tests.service.broker.topic_stage import write


def test_of_two_cuts_of_one_log_that_overlap_each_is_kept_in_mind_until_it_is_done(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        await stage.create("orders")
        partition = await stage.served("orders")
        for _ in range(10):
            await write(partition, b"x")
        await partition.flush()
        keeper, folder = stage.broker.housekeeper, partition.folder

        async def point() -> int | None:
            await keeper.write_points(folder)
            return read_recovery_points(folder.disk).get(partition.topic_partition)

        assert await point() == 10
        async with keeper.distrusting(partition, 6):
            assert await point() == 6
            shorter = keeper.distrusting(partition, 3)
            await shorter.__aenter__()
            assert await point() == 3
        assert await point() == 3
        await shorter.__aexit__(None, None, None)
        assert await point() == 10

    on_stage(tmp_path, scene, {"log.durability": "os"})

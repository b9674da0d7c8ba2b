"""ApiVersions: what each version of a client can bear to hear."""

from pathlib import Path

import pytest

from service.wire.messages import ApiVersionsRequest
from tests.service.api.admin_stage import Stage, on_stage


@pytest.mark.parametrize("version", [3, 4])
def test_features_whose_lowest_level_is_0_are_named_to_clients_that_can_read_them(tmp_path: Path, version: int) -> None:
    """Java's clients from 3.0 to 3.8 know version 3, and end when they read of a level 0 (KAFKA-17011)."""

    async def scene(stage: Stage) -> None:
        answer = await stage.ask(ApiVersionsRequest("client", "1.0"), version)
        supported = {feature.name: (feature.min_version, feature.max_version) for feature in answer.supported_features}
        both = {"group.version": (0, 1), "transaction.version": (0, 2)}
        assert supported == (both if version == 4 else {})
        finalized = {feature.name: feature.max_version_level for feature in answer.finalized_features}
        assert finalized == {"group.version": 1, "transaction.version": 2}

    on_stage(tmp_path, scene)

"""A lookup by time that had to wait for its turn answers by what is true when it comes."""

import asyncio
from pathlib import Path

import pytest

from service.api.list_offsets import ListOffsetsParts, handle
from service.broker.session import Session
from service.wire.codec import RequestHeader
from service.wire.error_codes import ErrorCode
from service.wire.messages import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from service.wire.messages.versions import ApiKey
from tests.service.api.admin_stage import Stage, on_stage
from tests.service.broker.topic_stage import write

OLD_MS = 0


@pytest.mark.parametrize("meanwhile", ["it stops leading", "more is committed"])
def test_after_its_turn_a_lookup_asks_again_who_leads_and_how_far_may_be_seen(tmp_path: Path, meanwhile: str) -> None:
    async def scene(stage: Stage) -> None:
        await stage.create("orders")
        partition = await stage.served("orders")
        parts = ListOffsetsParts(stage.broker.partitions, stage.broker.env)
        await parts.time_lookups.acquire()
        wanted = ListOffsetsTopic("orders", [ListOffsetsPartition(0, -1, OLD_MS)])
        request, header = ListOffsetsRequest(-1, 0, [wanted]), RequestHeader(ApiKey.LIST_OFFSETS, 11, 1, "client")
        asking = asyncio.ensure_future(handle(parts, Session("10.0.0.9", 1234), header, request))
        await asyncio.sleep(0)
        assert not asking.done()
        if meanwhile == "it stops leading":
            partition.resign()
        else:
            await write(partition, b"x")
        parts.time_lookups.release()
        [answer] = (await asking).topics[0].partitions
        if meanwhile == "it stops leading":
            assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        else:
            assert (answer.error_code, answer.offset) == (0, 0)

    on_stage(tmp_path, scene, {"log.durability": "os"})

"""A client's knowledge of the brokers."""

import asyncio

import pytest

from service.client.cluster import Cluster
from service.client.failures import ClientFailure
from service.client.pool import Address
from service.wire.messages import DescribeClusterRequest


def test_a_broker_that_has_left_meanwhile_is_told_as_such() -> None:
    """Another broker had just named it, and the client ended with a KeyError."""

    async def scene() -> None:
        async with Cluster([Address("localhost", 1)], client_id="test", timeout_s=1) as cluster:
            with pytest.raises(ClientFailure, match="broker 3 is not in the cluster now"):
                await cluster.ask(DescribeClusterRequest(), node=3)

    asyncio.run(scene())

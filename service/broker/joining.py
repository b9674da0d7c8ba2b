"""Finds out which broker of which cluster this is: from its data folders, its settings and the metadata store, which
must agree.

What always holds: nothing in a folder is touched before the three agree, and no empty folder gets the id of a broker
that lives.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping

from log.disk import Disk
from service.broker.data_folder import Claimed, StartError, claim, read_all
from service.broker.replication import address_of
from service.client.connection import Client, ClientError
from service.cluster.metadata import ClusterMetadata, MetadataLost
from service.wire.messages import DescribeHealthRequest

logger = logging.getLogger("oncelog.broker")

ANSWER_S = 3.0


async def join(
    disks: Mapping[str, Disk],
    metadata: ClusterMetadata,
    *,
    configured_id: int,
    listener: str | None,
    fresh_id: Callable[[], str],
) -> Claimed:
    """Start the metadata, which knows this broker's id and cluster then, and claim the data folders. `listener` is the
    one at which brokers ask each other.
    """
    node_id, cluster_id = -1, ""
    for facts in read_all(disks).values():
        if facts is not None:
            node_id, cluster_id = facts.node_id, facts.cluster_id
    is_new = node_id < 0
    if node_id >= 0 and configured_id not in (-1, node_id):
        raise StartError(f"node.id is {configured_id}, but the data folder belongs to broker {node_id}")
    await metadata.start(
        broker_id=node_id if node_id >= 0 else configured_id,
        cluster_id=cluster_id or fresh_id(),
        founding=not cluster_id,
    )
    stored = metadata.image.cluster_id
    if cluster_id and not stored:
        raise StartError(
            f"the data folder belongs to cluster {cluster_id}, but the metadata store is empty: bring back"
            " what was there (meta.db, unless store.url names another), or name another folder"
        )
    if cluster_id and stored != cluster_id:
        raise StartError(f"the metadata store is of cluster {stored}, the data folder of {cluster_id}")
    if is_new:
        await _refuse_id_of_the_living(metadata, listener)
        try:
            await metadata.wait_for_id()
        except MetadataLost as lost:
            raise StartError(f"the cluster refused this broker: {lost}") from None
    return await claim(disks, cluster_id=stored, node_id=metadata.broker_id, fresh_id=fresh_id)


async def _refuse_id_of_the_living(metadata: ClusterMetadata, listener: str | None) -> None:
    """Refuse this broker's id at once if who is registered with it answers. A registration may outlive its broker, so
    without an answer it is waited for. This broker does not listen yet: the answer is not its own.
    """
    holder = metadata.image.brokers.get(metadata.broker_id)
    if holder is None:
        return
    host, port = address_of(holder, listener)
    try:
        async with asyncio.timeout(ANSWER_S), Client(host, port, f"join-{holder.id}") as client:
            told = await client.request(DescribeHealthRequest())
    except (OSError, ClientError, TimeoutError):
        pass
    else:
        if (told.broker_id, told.cluster_id) == (holder.id, metadata.image.cluster_id):
            raise StartError(
                f"id taken: broker {holder.id} answers at {host}:{port}. Give this one a node.id of its own, or none"
            )
    logger.warning(
        "broker %d is registered, but does not answer at %s:%d: this one waits for the end of that one's session",
        *(holder.id, host, port),
    )

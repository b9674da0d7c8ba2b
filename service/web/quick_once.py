"""Writing requests that have nothing special but an Idempotency-Key: a JSON batch of keys and values, or bytes, for one
partition. This broker answers for the key. Every other request goes the general way (`producing.py`) from its
beginning, which also tells what is wrong with it; nothing was done here then.

What always holds: the answer, and what is written, are those of the general way. A request that is repeated may come by
either.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from log.ids import TopicPartition
from service.broker.internal_topics import HTTP_KEYS
from service.broker.session import Session
from service.client.failures import ClientFailure
from service.web.gateway import ASKING, Gateway
from service.web.idempotency import KeyRecord, asked_for, read_key
from service.web.problems import Problem, of_failure
from service.web.producing import BatchOut, PlacedRecords, Seal, write_together
from service.web.quick import BODY_BYTES_MAX, NOT_NOW, Answer, Plain, Told, partition_of, read_json
from service.web.routing import JSON, OCTETS, REPLAYED

READ: dict[str, Callable[[bytes], list[Plain] | None]] = {JSON: read_json, OCTETS: lambda body: [(None, body)]}
_REPLAYED = f"{REPLAYED}: true\r\n".encode()


def write(
    media: str, given_key: bytes, gateway: Gateway, session: Session, path: str, topic_name: str, body: bytes
) -> Answer:
    topic = gateway.image.topics.get(topic_name)
    if len(body) > BODY_BYTES_MAX:
        return None
    if topic is None:
        return NOT_NOW
    try:
        key = read_key(given_key.decode())
    except Problem:
        return None
    home = gateway.home(HTTP_KEYS, key)
    partition, state = gateway.partitions.get(home), gateway.image.partition(home)
    if partition is None or not partition.is_leading or state is None or state.leader != gateway.node_id:
        return NOT_NOW
    if (records := READ[media](body)) is None:
        return None
    index = partition_of(gateway, topic, records)
    if index < 0:
        return None
    where, now_ms = TopicPartition(topic_name, index), gateway.env.clock.wall_ms()
    placed = PlacedRecords(
        {where: [(each, value, (), now_ms) for each, value in records]},
        [(where, number) for number in range(len(records))],
        topic_name,
    )
    asked = asked_for("POST", path, media)
    sealed = gateway.keys.claim(home.partition, key, asked, body)
    if sealed is not None and gateway.sharing.takes(placed, sealed):
        return _shared(sealed, gateway.keys.share(sealed, placed, session))
    return _once(gateway, session, key, asked, body, placed)


async def _shared(sealed: KeyRecord, written: asyncio.Future[BatchOut]) -> Told:
    try:
        await written
    except ClientFailure as failure:
        raise of_failure(failure, changes=True) from None
    return sealed.answer, b""


async def _once(gateway: Gateway, session: Session, key: str, asked: bytes, body: bytes, placed: PlacedRecords) -> Told:
    ASKING.set(session)

    async def write_sealed(seal: Seal) -> BatchOut:
        return await write_together(gateway, placed, seal=seal)

    try:
        answer = await gateway.keys.once(key, asked, body, write_sealed)
    except ClientFailure as failure:
        raise of_failure(failure, changes=True) from None
    return answer.body, _REPLAYED if answer.is_replayed else b""

"""Clients by HTTP that were written for somebody else's servers: a sender of CloudEvents, and consumer instances of
version 2 of Confluent's REST Proxy.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

from log.ids import TopicPartition
from service.client.partitioner import partition_for_key
from tests.sim.history import Outcome
from tests.sim.plan import INPUT, OUTPUT
from tests.sim.web_clients import Answer, Told, WebActor
from tests.sim.workload import Clients, Unanswered

READERS = "readers"
BATCHED = "application/cloudevents-batch+json"
V2 = "application/vnd.kafka.v2+json"
BINARY = "application/vnd.kafka.binary.v2+json"


class EventWriter(WebActor):
    """Writes batches of CloudEvents, each under a key, and asks again until it is answered."""

    async def turn(self) -> None:
        await asyncio.sleep(2 * self.chance.random())
        number = self.clients.world.identity()
        topic = self.chance.choice((INPUT, OUTPUT))
        values: list[tuple[TopicPartition, bytes | None, bytes]] = []
        for value in self.values(self.chance.randrange(1, 6), f"{self.name}p{number}"):
            key = b"k%d" % self.chance.randrange(6)
            index = partition_for_key(key, self.history.topics[topic].partitions)
            event = {
                "specversion": "1.0",
                "type": "made.up",
                "source": f"/simulation/{index}",
                "id": value.decode(),
                "partitionkey": key.decode(),
            }
            values.append((TopicPartition(topic, index), key, json.dumps(event, separators=(",", ":")).encode()))
        body = b"[" + b",".join(event for _, _, event in values) + b"]"
        post = self.post_of(f"{self.name}-{number}", values, body)
        post.path, post.media = f"/v1/topics/{topic}/events", BATCHED
        for _ in range(self.chance.choice((1, 1, 2))):
            answer = await self.post(post)
            if answer.status != 200 and not self.in_doubt and post.txn.outcome is Outcome.UNKNOWN:
                post.txn.outcome = Outcome.FAILED


class InstanceReader(WebActor):
    """Reads as an instance of a group, which commits by itself or is told to. What the group has committed, some client
    has got. An instance whose answer was lost is left alone: the next request would say that the answer was seen.
    """

    def __init__(self, clients: Clients, name: str, brokers: Sequence[str], told: Told) -> None:
        super().__init__(clients, name, brokers, told)

    async def turn(self) -> None:
        chance = self.chance
        name = f"{self.name}-{self.clients.world.identity()}".replace(" ", "-")
        place = f"/consumers/{READERS}/instances/{name}"
        commits_itself = chance.random() < 0.5
        wishes = {"name": name, "format": "binary", "auto.offset.reset": "earliest"}
        made = json.dumps({**wishes, "auto.commit.enable": "true" if commits_itself else "false"}).encode()
        if not await self._make(made, place):
            return
        for _ in range(chance.choice((3, 10, 30))):
            try:
                answer = await self._read(place)
            except Unanswered:
                return  # it is not known what the answer held
            if answer.status == 404 and chance.random() < 0.5 and await self._make(made, place):
                continue  # lost with its broker, and made again
            if answer.status == 404:
                return
            if answer.status == 200:
                records = answer.json
                if records and chance.random() < 0.3:
                    return  # it is lost on its way
                self.told.got_by_instances.update(
                    (each["topic"], each["partition"], each["offset"]) for each in records
                )
                if not commits_itself and chance.random() < 0.7:
                    await self._commit(place, records)
            await asyncio.sleep(0.5 * chance.random())
        if chance.random() < 0.7:
            await self.web.ask("DELETE", place, media=V2)

    async def settle(self) -> None:
        await self.judge_group(READERS, self.told.got_by_instances)

    async def _make(self, made: bytes, place: str) -> bool:
        answer = await self.web.ask("POST", f"/consumers/{READERS}", made, media=V2)
        if answer.status != 200:
            return False
        wanted = json.dumps({"topics": [INPUT, OUTPUT]}).encode()
        return (await self.web.ask("POST", f"{place}/subscription", wanted, media=V2)).status == 204

    async def _read(self, place: str) -> Answer:
        timeout, most = self.chance.choice((10, 500, 3000)), self.chance.choice((1, 300, 100_000))
        return await self.web.ask("GET", f"{place}/records?timeout={timeout}&max_bytes={most}", accept=BINARY)

    async def _commit(self, place: str, records: list[dict[str, Any]]) -> None:
        body = b""
        if records and self.chance.random() < 0.5:
            newest = {(each["topic"], each["partition"]): each["offset"] for each in records}
            offsets = [{"topic": where[0], "partition": where[1], "offset": offset} for where, offset in newest.items()]
            body = json.dumps({"offsets": offsets}).encode()
        try:
            await self.web.ask("POST", f"{place}/offsets", body, media=V2)
        except Unanswered:
            return

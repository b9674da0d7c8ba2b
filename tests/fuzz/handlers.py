"""Besieges a live broker: requests that are well made and mean harm, to every handler, while honest clients' records,
transactions, groups and settings lie beside what is attacked.

The promise: every request is answered; nothing is logged as the broker's own failure; memory stays bounded; afterwards
honest clients find everything as it was, open transactions and members included, and a restart finds the same.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections import Counter
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic  # type: ignore[attr-defined]

from service.client.connection import Client, ClientError, api_key_of
from service.net.server import OTHER_REQUEST_BYTES
from service.wire.codec import encode_request
from service.wire.messages import DescribeTransactionsRequest, MetadataRequest
from tests.fuzz.hostile import OFFERED, WAITING, World, hostile
from tests.peers.ours import Oncelog
from tests.peers.process import QUICK_SETTINGS

HONEST, VICTIM = "honest", "victim"
PATIENCE_S = 30.0
CONNECTIONS = 8
GROWTH_MAX_BYTES = 256 << 20
OPEN_TRANSACTION_MS = 15 * 60 * 1000
FAILURES = re.compile(r"Traceback|failed; its connection is closed|CRITICAL|never retrieved")


class Siege:
    """One broker and its honest clients; `with` starts and ends them."""

    def __init__(self, folder: Path) -> None:
        self.broker = Oncelog(folder, settings={**QUICK_SETTINGS, "auto.create.topics.enable": "false"})
        self.world = World([HONEST], [VICTIM, "victim-compacted"])
        self.asked: Counter[str] = Counter()
        self.closed: Counter[str] = Counter()

    def __enter__(self) -> Self:
        self.broker.start()
        try:
            self._prepare()
        except BaseException:
            self.broker.kill()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.member.close()
        self.broker.kill()

    # ------------------------------------------------------------ what is honest

    def _prepare(self) -> None:
        self.settings: dict[str, str | int | float | bool] = {
            "bootstrap.servers": self.broker.bootstrap,
            "log_level": 0,
        }
        admin = AdminClient(self.settings)
        topics = [NewTopic(name, 2, 1) for name in (HONEST, VICTIM)]
        topics.append(NewTopic("victim-compacted", 2, 1, config={"cleanup.policy": "compact"}))
        for created in admin.create_topics(topics).values():
            created.result(PATIENCE_S)
        for name in (HONEST, VICTIM):
            self._write(name, f"{name}-plain", range(100))
            for transactional_id, commit in ((f"{name}-committed", True), (f"{name}-aborted", False)):
                producer = self._transactional(transactional_id)
                self._write(name, transactional_id, range(30), producer)
                (producer.commit_transaction if commit else producer.abort_transaction)(PATIENCE_S)
            self._commit_offsets(name)
        self.open = self._transactional(f"{HONEST}-open")
        self._write(HONEST, "open", range(10), self.open)
        self.member = Consumer({**self.settings, "group.id": f"{HONEST}-live", "auto.offset.reset": "latest"})
        self.member.subscribe([HONEST])
        while not self.member.assignment():
            self.member.poll(0.05)
        self.before = self._found()
        self.base_bytes = self.broker.resident_bytes()

    def _transactional(self, transactional_id: str) -> Producer:
        timeout = {"transaction.timeout.ms": OPEN_TRANSACTION_MS}
        producer = Producer({**self.settings, "transactional.id": transactional_id, **timeout})
        producer.init_transactions(PATIENCE_S)
        producer.begin_transaction()
        return producer

    def _write(self, topic: str, what: str, numbers: range, producer: Producer | None = None) -> None:
        producer = producer or Producer({**self.settings, "enable.idempotence": True})
        for number in numbers:
            producer.produce(topic, f"{what} {number}", partition=number % 2)
        assert producer.flush(PATIENCE_S) == 0

    def _commit_offsets(self, topic: str) -> None:
        consumer = Consumer({**self.settings, "group.id": f"{topic}-group"})
        consumer.commit(offsets=[TopicPartition(topic, index, 7 + index) for index in range(2)], asynchronous=False)
        consumer.close()

    def _found(self) -> dict[str, Any]:
        """Everything that honest clients can see."""
        group = {"group.id": f"{HONEST}-group", "isolation.level": "read_committed", "enable.auto.commit": False}
        consumer = Consumer({**self.settings, **group})
        admin = AdminClient(self.settings)
        resource = ConfigResource(ConfigResource.Type.TOPIC, HONEST)
        configs = admin.describe_configs([resource])[resource].result(PATIENCE_S)
        records = {}
        for index in range(2):
            low, _ = consumer.get_watermark_offsets(TopicPartition(HONEST, index), PATIENCE_S)
            consumer.assign([TopicPartition(HONEST, index, low)])
            records[index] = self._read(consumer, f"{HONEST}-committed {28 + index}")
        committed = consumer.committed([TopicPartition(HONEST, index) for index in range(2)], PATIENCE_S)
        consumer.close()
        return {
            "records": records,
            "offsets": [(each.partition, each.offset) for each in committed],
            "settings": {name: entry.value for name, entry in configs.items()},
            "transactions": asyncio.run(self._transactions()),
        }

    @staticmethod
    def _read(consumer: Consumer, last: str) -> list[tuple[int | None, bytes | None]]:
        found: list[tuple[int | None, bytes | None]] = []
        while not found or found[-1][1] != last.encode():
            message = consumer.poll(PATIENCE_S)
            assert message is not None and message.error() is None, f"after {found[-1:]}: {message and message.error()}"
            found.append((message.offset(), message.value()))
        return found

    async def _transactions(self) -> list[tuple[str, str, int]]:
        names = [f"{HONEST}-{what}" for what in ("committed", "aborted", "open")]
        async with Client("127.0.0.1", self.broker.port) as client:
            answer = await client.request(DescribeTransactionsRequest(names))
        return [(each.transactional_id, each.transaction_state, each.producer_id) for each in answer.transaction_states]

    # ------------------------------------------------------------ the attack

    def attack(self, seed: int, count: int, *, many: int) -> None:
        """`count` requests, every API and version in turn."""
        asyncio.run(self._attack(seed, count, many))

    async def _attack(self, seed: int, count: int, many: int) -> None:
        chance = random.Random(seed)
        clients = [Client("127.0.0.1", self.broker.port) for _ in range(CONNECTIONS)]
        for client in clients:
            await client.connect()
        await self._look(clients[0])
        at = chance.randrange(len(OFFERED))
        plan = [OFFERED[(at + step) % len(OFFERED)] for step in range(count)]
        todo = iter([(name, version, hostile(chance, name, version, self.world, many=many)) for name, version in plan])
        await asyncio.gather(*(self._send_all(client, todo) for client in clients))
        for client in clients:
            await client.close()

    async def _send_all(self, client: Client, todo: Any) -> None:
        for name, version, request in todo:
            if len(encode_request(api_key_of(type(request)), version, request)) > OTHER_REQUEST_BYTES - 1000:
                continue  # longer than granted
            self.asked[name] += 1
            patience_s = 0.1 if name in WAITING else PATIENCE_S
            try:
                async with asyncio.timeout(patience_s):
                    await client.request(request, version)
                continue
            except TimeoutError:
                assert name in WAITING, f"not answered within {PATIENCE_S} s: {name} v{version}: {request!r:.2000}"
            except (OSError, ClientError) as error:
                assert self.broker.running(), f"the broker died of {name} v{version}: {request!r:.2000}"
                self.closed[f"{name} v{version}: {error}"] += 1
            await client.close()
            await client.connect()

    async def _look(self, client: Client) -> None:
        """Ids and numbers as they are, so that requests come close."""
        answer = await client.request(MetadataRequest(None))
        self.world.ids = [topic.topic_id for topic in answer.topics if topic.name.startswith(VICTIM)]  # type: ignore[union-attr]
        self.world.numbers = [3, 7, 100, 130]

    # ------------------------------------------------------------ afterwards

    def longest_turn_ms(self) -> int:
        """What the loop computed at most before others had their turn; 0 if it was never long."""
        turns = re.findall(r"of which (\d+) ms were spent computing", self.broker.log_path.read_text(errors="replace"))
        return max(map(int, turns), default=0)

    def judge(self) -> None:
        """Everything honest is as it was, goes on, and is there after a restart."""
        log = self.broker.log_path.read_text(errors="replace")
        failure = FAILURES.search(log)
        assert failure is None, log[max(0, failure.start() - 500) : failure.start() + 4000]
        assert not self.closed, self.closed.most_common(5)
        assert self.broker.resident_bytes() - self.base_bytes < GROWTH_MAX_BYTES, "the broker grew"
        now = self._found()
        for what, before in self.before.items():
            assert now[what] == before, f"{what} of honest clients: {before!r:.1500} are now {now[what]!r:.1500}"
        self.open.commit_transaction(PATIENCE_S)
        seen = self._read(self.member, "open 9")
        assert {value for _, value in seen} >= {b"open 9"}
        after = self._found()
        assert [state for _, state, _ in after["transactions"]] == ["CompleteCommit", "CompleteAbort", "CompleteCommit"]
        self.broker.restart()
        assert self._found() == after

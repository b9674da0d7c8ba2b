"""Consoles and admin clients of others see a proper cluster: brokers, topics, partitions, groups."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from kaskade.admin import KaskadeAdmin
from textual.widgets import DataTable

from tests.clients.libraries import kafka
from tests.service.web.kit import PATIENCE_S, Http, Served


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Two topics, one written to, and a group that has read a part of it."""
    few = {"offsets.topic.num.partitions": "2", "transaction.state.log.num.partitions": "2"}
    served = Served(tmp_path_factory.mktemp("consoles") / "data", **few)
    http = Http(served.url)
    for name, partitions in (("orders", 3), ("invoices", 2)):
        assert http.post("/v1/topics", {"name": name, "partitions": partitions}).status == 201
    producer = Producer({"bootstrap.servers": served.bootstrap, "transactional.id": "desk"})
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    for number in range(30):
        producer.produce("orders", b"x", partition=number % 3)
    producer.commit_transaction(PATIENCE_S)
    consumer = Consumer({"bootstrap.servers": served.bootstrap, "group.id": "billing"})
    consumer.commit(offsets=[TopicPartition("orders", each, 4) for each in range(3)], asynchronous=False)
    consumer.close()
    yield served
    served.kill()


def test_kaskade_shows_topics_their_replicas_and_groups(broker: Served) -> None:
    """The console itself, without a terminal."""

    def rows(table: DataTable[Any]) -> list[list[str]]:
        return [[str(cell) for cell in table.get_row_at(number)] for number in range(table.row_count)]

    async def filled(app: KaskadeAdmin, pilot: Any, where: str) -> list[list[str]]:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                await pilot.pause(0.1)
                found = app.screen.query(where)
                seen = rows(found.first(DataTable)) if found else []
                if seen and not any("…" in row for row in seen):
                    return seen

    async def scene() -> None:
        app = KaskadeAdmin({"bootstrap.servers": broker.bootstrap})
        async with app.run_test(size=(160, 50)) as pilot:
            topics = {row[0]: row for row in await filled(app, pilot, "#topics-table")}
            assert {"orders", "invoices"} <= topics.keys()
            _, partitions, replicas, in_sync, groups, *_ = topics["orders"]
            assert (partitions, replicas, in_sync, groups) == ("3", "1", "1", "1")
            assert topics["invoices"][4] == "0"

    asyncio.run(scene())


def test_confluents_admin_client_describes_the_cluster(broker: Served) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    cluster = admin.describe_cluster().result(PATIENCE_S)
    assert [node.id for node in cluster.nodes] == [cluster.controller.id]
    groups = admin.list_consumer_groups().result(PATIENCE_S)
    assert [each.group_id for each in groups.valid] == ["billing"]
    assert groups.errors == []


def test_kafka_pythons_admin_client_describes_the_cluster(broker: Served) -> None:
    admin = kafka.KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    try:
        assert {"orders", "invoices"} <= set(admin.list_topics())
        (described,) = admin.describe_topics(["orders"])
        assert len(described["partitions"]) == 3
        assert "billing" in {each["group_id"] for each in admin.list_groups()}
        assert len(admin.describe_cluster()["brokers"]) == 1
    finally:
        admin.close()

"""Kafka's own transactional tools against the broker: its system test's copier with random aborts, its performance
tool, and the operator's `kafka-transactions`. Needs Java, and Maven to fetch Kafka's jars once.
"""

from __future__ import annotations

import os
import subprocess

import pytest

from log.ids import TopicPartition
from service.wire.error_codes import ErrorCode
from tests.clients.kits import Confluent, Message
from tests.clients.topics import Topics
from tests.faults.scenario import in_loop, stage
from tests.faults.writer import Writer, seen, settled
from tests.peers import kafka
from tests.rules import rule

pytestmark = pytest.mark.skipif(kafka.missing() is not None, reason=kafka.missing() or "")
MESSAGES = 1_000


@pytest.fixture(scope="module", autouse=True)
def jars() -> None:
    try:
        kafka.fetch_jars()
    except subprocess.CalledProcessError:
        pytest.skip("mvn could not fetch Kafka's jars")


def tool(name: str, *arguments: str) -> str:
    command = kafka.tool_command(f"org.apache.kafka.tools.{name}", *arguments)
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False, env=dict(os.environ))
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def rows(table: str) -> list[dict[str, str]]:
    """What a tool prints as a table, tabs between the cells."""
    header, *lines = ([cell.strip() for cell in line.split("\t")] for line in table.splitlines() if "\t" in line)
    return [dict(zip(header, line, strict=False)) for line in lines]


@rule("C", "TransactionalMessageCopier with random aborts copies each message once")
@in_loop
async def test_the_copier_copies_each_message_once(port: int, topics: Topics, name: str) -> None:
    source, target = topics.create(), topics.create()
    async with stage(port) as here:
        client = await here.connect()
        # Without a marker at its end: the tool counts offsets, and would wait for a message in its place.
        Confluent().produce(f"127.0.0.1:{port}", source, [Message(b"%d" % number) for number in range(MESSAGES)])
        tool(
            "TransactionalMessageCopier",
            *("--broker-list", f"127.0.0.1:{port}", "--input-topic", source, "--input-partition", "0"),
            *("--output-topic", target, "--max-messages", f"{MESSAGES}", "--consumer-group", name),
            *("--transaction-size", "50", "--transactional-id", name, "--enable-random-aborts", "--group-mode"),
        )
        found = await settled(client, target)
        assert found.committed == [f"{number}" for number in range(MESSAGES)]


@rule("C", "ProducerPerformance writes everything it counted, in transactions")
@in_loop
async def test_the_performance_tool_writes_in_transactions(port: int, topic: str, name: str) -> None:
    async with stage(port) as here:
        tool(
            "ProducerPerformance",
            *("--bootstrap-server", f"127.0.0.1:{port}", "--topic", topic, "--num-records", "2000"),
            *("--record-size", "100", "--throughput", "-1", "--transactional-id", name),
            *("--transaction-duration-ms", "50"),
        )
        assert len((await settled(await here.connect(), topic)).committed) == 2_000


@rule("B.7", "kafka-transactions lists, describes, finds and aborts a transaction that hangs")
@in_loop
async def test_an_operator_ends_a_transaction_that_hangs(port: int, topic: str, name: str) -> None:
    broker = ("--bootstrap-server", f"127.0.0.1:{port}")
    place = TopicPartition(topic, 0)
    where = ("--topic", place.topic, "--partition", f"{place.partition}")
    async with stage(port) as here:
        client = await here.connect()
        writer = Writer(client, name)
        await writer.begin()
        await writer.sent(topic, "hangs")
        assert (await seen(client, topic)).open

        listed = {row["TransactionalId"]: row for row in rows(tool("TransactionsCommand", *broker, "list"))}
        assert listed[name]["TransactionState"] == "Ongoing"
        (told,) = rows(tool("TransactionsCommand", *broker, "describe", "--transactional-id", name))
        assert (told["ProducerId"], told["TopicPartitions"]) == (f"{writer.id}", str(place))
        (producer,) = rows(tool("TransactionsCommand", *broker, "describe-producers", *where))
        assert producer["CurrentTransactionStartOffset"] == "0"
        # The coordinator knows it and will end it in time: it is not one that hangs for good.
        assert not rows(tool("TransactionsCommand", *broker, "find-hanging", *where))

        tool("TransactionsCommand", *broker, "abort", *where, "--start-offset", "0")
        found = await settled(client, topic)
        assert (found.committed, found.uncommitted) == ([], ["hangs"])
        assert await writer.end(commit=False) is ErrorCode.NONE

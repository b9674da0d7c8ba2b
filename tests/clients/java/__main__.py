"""Apache Kafka's own command line tools, and a program on its Java client, against our broker.

    python -m tests.clients.java [PART OF A CHECK'S NAME]

Needs Java 17 with its compiler, and Maven once for the jars; says so and ends well when they are not there.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.clients.programs import CheckFailed, expect, main, run
from tests.peers import kafka
from tests.peers.kafka import JARS, fetch_jars, tool_command

TOOLS = "org.apache.kafka.tools"
PROGRAM = Path(__file__).with_name("JavaClient.java")


def tool(name: str, *arguments: str, given: str = "", status: int | None = 0) -> str:
    """One of Kafka's tools by its class."""
    return run(tool_command(name if "." in name else f"{TOOLS}.{name}", *arguments), given=given, status=status)


def topic(bootstrap: str, name: str, partitions: int = 2) -> str:
    tool("TopicCommand", "--bootstrap-server", bootstrap, "--create", "--topic", name, "--partitions", str(partitions))
    return name


def topics(bootstrap: str) -> None:
    here = ["--bootstrap-server", bootstrap]
    made = tool(
        "TopicCommand",
        *here,
        "--create",
        "--topic",
        "tools",
        "--partitions",
        "3",
        "--replication-factor",
        "1",
        "--config",
        "retention.ms=60000",
    )
    expect(made, "Created topic tools.")
    expect(tool("TopicCommand", *here, "--create", "--topic", "tools", status=1), "already exists")
    expect(tool("TopicCommand", *here, "--list"), "tools")
    described = tool("TopicCommand", *here, "--describe", "--topic", "tools")
    expect(described, "PartitionCount: 3", "ReplicationFactor: 1", "retention.ms=60000", "Partition: 2", "Leader: ")
    tool("TopicCommand", *here, "--alter", "--topic", "tools", "--partitions", "5")
    expect(tool("TopicCommand", *here, "--describe", "--topic", "tools"), "PartitionCount: 5")
    tool("TopicCommand", *here, "--delete", "--topic", "tools")
    if "tools" in tool("TopicCommand", *here, "--list").split():
        raise CheckFailed("the deleted topic is still listed")


def configs(bootstrap: str) -> None:
    name = topic(bootstrap, "configured")
    config = [
        "kafka.admin.ConfigCommand",
        "--bootstrap-server",
        bootstrap,
        "--entity-type",
        "topics",
        "--entity-name",
        name,
    ]
    expect(
        tool(*config, "--alter", "--add-config", "retention.ms=1234,cleanup.policy=[compact,delete]"),
        "Completed updating",
    )
    expect(tool(*config, "--describe"), "retention.ms=1234", "cleanup.policy=compact,delete")
    expect(tool(*config, "--alter", "--delete-config", "retention.ms"), "Completed updating")
    if "retention.ms=1234" in tool(*config, "--describe"):
        raise CheckFailed("the setting that was taken back is still there")
    expect(tool(*config, "--alter", "--add-config", "no.such=1", status=1), "InvalidConfiguration")
    expect(tool(*config, "--describe", "--all"), "segment.bytes=1073741824")
    brokers = ["kafka.admin.ConfigCommand", "--bootstrap-server", bootstrap, "--entity-type", "brokers"]
    expect(tool(*brokers, "--entity-default", "--describe"), "Default configs for brokers")


def console(bootstrap: str) -> None:
    name = topic(bootstrap, "console", 1)
    lines = "a:one\nb:two\nc:three\n"
    properties = ["--reader-property", "parse.key=true", "--reader-property", "key.separator=:"]
    tool("ConsoleProducer", "--bootstrap-server", bootstrap, "--topic", name, *properties, given=lines)
    consumer = f"{TOOLS}.consumer.ConsoleConsumer"
    shown = ["--formatter-property", "print.key=true", "--formatter-property", "print.offset=true"]
    read = tool(
        consumer,
        "--bootstrap-server",
        bootstrap,
        "--topic",
        name,
        "--from-beginning",
        "--max-messages",
        "3",
        "--group",
        "console-readers",
        *shown,
    )
    expect(read, "Offset:0\ta\tone", "Offset:2\tc\tthree")


def console_with_the_new_protocol(bootstrap: str) -> None:
    name = topic(bootstrap, "console-848", 3)
    tool("ConsoleProducer", "--bootstrap-server", bootstrap, "--topic", name, given="x\ny\nz\n")
    read = tool(
        f"{TOOLS}.consumer.ConsoleConsumer",
        "--bootstrap-server",
        bootstrap,
        "--topic",
        name,
        "--from-beginning",
        "--max-messages",
        "3",
        "--group",
        "readers-848",
        "--command-property",
        "group.protocol=consumer",
    )
    expect(read, "x", "y", "z", "Processed a total of 3 messages")


def every_codec(bootstrap: str) -> None:
    name = topic(bootstrap, "codecs", 1)
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        tool(
            "ConsoleProducer",
            "--bootstrap-server",
            bootstrap,
            "--topic",
            name,
            "--command-property",
            f"compression.type={codec}",
            given=f"in {codec}\n" * 50,
        )
    consumer = f"{TOOLS}.consumer.ConsoleConsumer"
    read = tool(consumer, "--bootstrap-server", bootstrap, "--topic", name, "--from-beginning", "--max-messages", "250")
    expect(read, "in none", "in gzip", "in snappy", "in lz4", "in zstd", "Processed a total of 250 messages")


def offsets(bootstrap: str) -> None:
    name = topic(bootstrap, "offsets", 1)
    tool("ConsoleProducer", "--bootstrap-server", bootstrap, "--topic", name, given="1\n2\n3\n4\n")
    shell = ["GetOffsetShell", "--bootstrap-server", bootstrap, "--topic", name]
    expect(tool(*shell), f"{name}:0:4")
    expect(tool(*shell, "--time", "earliest"), f"{name}:0:0")
    expect(tool(*shell, "--time", "latest"), f"{name}:0:4")
    expect(tool(*shell, "--time", "max-timestamp"), f"{name}:0:")
    expect(tool(*shell, "--time", "0"), f"{name}:0:0")
    tool(*shell, "--time", "earliest-local")


def delete_records(bootstrap: str) -> None:
    name = topic(bootstrap, "trimmed", 1)
    tool("ConsoleProducer", "--bootstrap-server", bootstrap, "--topic", name, given="1\n2\n3\n4\n")
    plan = {"partitions": [{"topic": name, "partition": 0, "offset": 3}], "version": 1}
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(plan, file)
        file.flush()
        deleted = tool("DeleteRecordsCommand", "--bootstrap-server", bootstrap, "--offset-json-file", file.name)
    expect(deleted, f"{name}-0\tlow_watermark: 3")
    shell = ["GetOffsetShell", "--bootstrap-server", bootstrap, "--topic", name, "--time", "earliest"]
    expect(tool(*shell), f"{name}:0:3")


def consumer_groups(bootstrap: str) -> None:
    name = topic(bootstrap, "grouped", 2)
    tool("ConsoleProducer", "--bootstrap-server", bootstrap, "--topic", name, given="x\n" * 20)
    tool(
        f"{TOOLS}.consumer.ConsoleConsumer",
        "--bootstrap-server",
        bootstrap,
        "--topic",
        name,
        "--from-beginning",
        "--max-messages",
        "20",
        "--group",
        "tool-group",
    )
    groups = [f"{TOOLS}.consumer.group.ConsumerGroupCommand", "--bootstrap-server", bootstrap]
    expect(tool(*groups, "--list"), "tool-group")
    expect(tool(*groups, "--list", "--state"), "tool-group", "Empty")
    described = tool(*groups, "--describe", "--group", "tool-group")
    expect(described, "LAG", name)
    expect(tool(*groups, "--describe", "--group", "tool-group", "--state"), "Empty")
    tool(*groups, "--describe", "--group", "tool-group", "--members", "--verbose")
    reset = tool(*groups, "--group", "tool-group", "--topic", name, "--reset-offsets", "--to-earliest", "--execute")
    expect(reset, "NEW-OFFSET", name)
    lags = [
        line.split()[5] for line in tool(*groups, "--describe", "--group", "tool-group").splitlines() if name in line
    ]
    if sum(int(lag) for lag in lags) != 20:
        raise CheckFailed(f"the lag after a reset to the earliest: {lags}")
    expect(tool(*groups, "--delete-offsets", "--group", "tool-group", "--topic", name), "Successful")
    expect(tool(*groups, "--delete", "--group", "tool-group"), "successful")
    if "tool-group" in tool(*groups, "--list"):
        raise CheckFailed("the deleted group is still listed")
    expect(tool("GroupsCommand", "--bootstrap-server", bootstrap, "--list"), "GROUP")


def performance(bootstrap: str) -> None:
    name = topic(bootstrap, "performance", 4)
    producer = tool(
        "ProducerPerformance",
        "--topic",
        name,
        "--num-records",
        "200000",
        "--record-size",
        "100",
        "--throughput",
        "-1",
        "--bootstrap-server",
        bootstrap,
    )
    expect(producer, "200000 records sent")
    consumer = tool(
        "ConsumerPerformance",
        "--bootstrap-server",
        bootstrap,
        "--topic",
        name,
        "--num-records",
        "200000",
        "--timeout",
        "20000",
    )
    expect(consumer, "200000")
    tool(
        "EndToEndLatency",
        "--bootstrap-server",
        bootstrap,
        "--topic",
        name,
        "--num-records",
        "200",
        "--producer-acks",
        "1",
        "--record-size",
        "100",
    )


def transactional_performance(bootstrap: str) -> None:
    name = topic(bootstrap, "transactional", 2)
    produced = tool(
        "ProducerPerformance",
        "--topic",
        name,
        "--num-records",
        "20000",
        "--record-size",
        "100",
        "--throughput",
        "-1",
        "--bootstrap-server",
        bootstrap,
        "--transactional-id",
        "performance",
        "--transaction-duration-ms",
        "50",
    )
    expect(produced, "20000 records sent")
    consumed = tool(
        f"{TOOLS}.consumer.ConsoleConsumer",
        "--bootstrap-server",
        bootstrap,
        "--topic",
        name,
        "--from-beginning",
        "--max-messages",
        "20000",
        "--isolation-level",
        "read_committed",
    )
    expect(consumed, "Processed a total of 20000 messages")


def verifiable(bootstrap: str) -> None:
    name = topic(bootstrap, "verifiable", 3)
    sent = tool(
        "VerifiableProducer",
        "--bootstrap-server",
        bootstrap,
        "--topic",
        name,
        "--max-messages",
        "500",
        "--throughput",
        "-1",
        "--acks",
        "-1",
    )
    if sent.count('"producer_send_success"') != 500:
        raise CheckFailed(f"not all of 500 were acknowledged: {sent[-500:]}")
    for protocol in ("classic", "consumer"):
        received = tool(
            "VerifiableConsumer",
            "--bootstrap-server",
            bootstrap,
            "--topic",
            name,
            "--group-id",
            f"verifiable-{protocol}",
            "--group-protocol",
            protocol,
            "--max-messages",
            "500",
            "--reset-policy",
            "earliest",
            "--verbose",
        )
        if received.count('"record_data"') != 500:
            raise CheckFailed(f"{protocol}: {received.count('record_data')} of 500 were read")
        expect(received, '"offsets_committed"', '"success":true')


def transactional_copier(bootstrap: str) -> None:
    source, target = topic(bootstrap, "copied-from", 1), topic(bootstrap, "copied-to", 2)
    tool(
        "VerifiableProducer",
        "--bootstrap-server",
        bootstrap,
        "--topic",
        source,
        "--max-messages",
        "300",
        "--throughput",
        "-1",
    )
    copied = tool(
        "TransactionalMessageCopier",
        "--broker-list",
        bootstrap,
        "--input-topic",
        source,
        "--input-partition",
        "0",
        "--output-topic",
        target,
        "--max-messages",
        "300",
        "--consumer-group",
        "copiers",
        "--transaction-size",
        "10",
        "--transactional-id",
        "copier",
        "--enable-random-aborts",
    )
    expect(copied, '"stage":"ProcessLoop"')
    read = tool(
        f"{TOOLS}.consumer.ConsoleConsumer",
        "--bootstrap-server",
        bootstrap,
        "--topic",
        target,
        "--from-beginning",
        "--max-messages",
        "300",
        "--isolation-level",
        "read_committed",
    )
    values = sorted(int(line) for line in read.splitlines() if line.strip().isdigit())
    if values != list(range(300)):
        raise CheckFailed(f"{len(values)} values, {len(set(values))} of them different, instead of 300")


def transactions_command(bootstrap: str) -> None:
    name = topic(bootstrap, "looked-at", 1)
    tool(
        "ProducerPerformance",
        "--topic",
        name,
        "--num-records",
        "100",
        "--record-size",
        "100",
        "--throughput",
        "-1",
        "--bootstrap-server",
        bootstrap,
        "--transactional-id",
        "looked-at-id",
        "--transaction-duration-ms",
        "50",
    )
    here = ["TransactionsCommand", "--bootstrap-server", bootstrap]
    expect(tool(*here, "list"), "looked-at-id", "CompleteCommit")
    expect(tool(*here, "describe", "--transactional-id", "looked-at-id"), "looked-at-id", "CompleteCommit")
    expect(
        tool(*here, "describe-producers", "--topic", name, "--partition", "0"), "ProducerId", "LatestCoordinatorEpoch"
    )
    tool(*here, "find-hanging", "--topic", name, "--partition", "0")


def the_cluster(bootstrap: str) -> None:
    versions = tool("BrokerApiVersionsCommand", "--bootstrap-server", bootstrap)
    expect(versions, "Produce(0): ", "Fetch(1): ", "EndTxn(26): ", "ConsumerGroupHeartbeat(68): ")
    expect(tool("ClusterTool", "cluster-id", "--bootstrap-server", bootstrap), "Cluster ID: ")
    expect(tool("LogDirsCommand", "--bootstrap-server", bootstrap, "--describe"), '"logDirs"')


def java_client(bootstrap: str) -> None:
    """Produce, consume under both protocols, administration and transactions through the client library."""
    classes = JARS.parent / "classes"
    classes.mkdir(exist_ok=True)
    subprocess.run(["javac", "-cp", f"{JARS}/*", "-d", str(classes), str(PROGRAM)], check=True)
    printed = run(["java", "-Xmx256m", "-cp", f"{classes}:{JARS}/*", "JavaClient", bootstrap, str(time.time_ns())])
    expect(printed, "produced", "consumed classic", "consumed consumer", "administered", "committed", "aborted", "done")


CHECKS = {
    "topics": topics,
    "configs": configs,
    "console producer and consumer": console,
    "console consumer, group.protocol=consumer": console_with_the_new_protocol,
    "codecs": every_codec,
    "offsets": offsets,
    "delete-records": delete_records,
    "consumer-groups": consumer_groups,
    "performance": performance,
    "verifiable producer and consumer": verifiable,
    "cluster": the_cluster,
    "Java client": java_client,
    "performance in transactions": transactional_performance,
    "transactions command": transactions_command,
    "transactional message copier": transactional_copier,
}


def missing() -> str | None:
    why = kafka.missing()
    if why is None and shutil.which("javac") is None:
        why = "no javac on the path"
    if why is None:
        fetch_jars()
    return why


if __name__ == "__main__":
    sys.exit(main(CHECKS, missing))

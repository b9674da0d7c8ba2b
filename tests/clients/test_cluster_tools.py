"""What Kafka's own tools do to a cluster, done to ours: reassignments with throttles, progress and cancellation,
elections, what is under-replicated. Needs Java, and Maven to fetch Kafka's jars once.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from tests.clients.kits import Confluent, Message
from tests.clients.three import out_of_sync, three_brokers, within_minutes
from tests.peers import kafka, zookeeper
from tests.peers.ours import Oncelog
from tests.peers.process import QUICK_SETTINGS

pytestmark = pytest.mark.skipif(kafka.missing() is not None, reason=kafka.missing() or "")

TOPIC = "moved"
MESSAGES = 2_000


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[dict[int, Oncelog]]:
    if reason := zookeeper.missing():
        pytest.skip(reason)
    try:
        kafka.fetch_jars()
    except subprocess.CalledProcessError:
        pytest.skip("mvn could not fetch Kafka's jars")
    with three_brokers(tmp_path, {"leader.imbalance.check.interval.seconds": "3600"}) as started:
        yield started


def tool(name: str, broker: Oncelog, *arguments: str, status: int = 0) -> str:
    command = kafka.tool_command(name, "--bootstrap-server", broker.bootstrap, *arguments)
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == status, done.stdout[-1000:] + done.stderr[-2000:]
    return done.stdout


def topics(broker: Oncelog, *arguments: str) -> str:
    return tool("org.apache.kafka.tools.TopicCommand", broker, *arguments)


class Reassignment:
    """`kafka-reassign-partitions` with one plan."""

    def __init__(
        self, folder: Path, broker: Oncelog, plan: dict[int, list[int]], folders: dict[int, list[str]] | None = None
    ) -> None:
        self._broker = broker
        self._file = folder / "plan.json"
        rows: list[dict[str, object]] = [
            {"topic": TOPIC, "partition": number, "replicas": replicas} for number, replicas in plan.items()
        ]
        for row in rows if folders else ():
            row["log_dirs"] = folders[row["partition"]]  # type: ignore[index]
        self._file.write_text(json.dumps({"version": 1, "partitions": rows}))

    def __call__(self, *arguments: str) -> str:
        name = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
        return tool(name, self._broker, *arguments, "--reassignment-json-file", str(self._file))


def configs(broker: Oncelog, *arguments: str) -> str:
    return tool("kafka.admin.ConfigCommand", broker, *arguments)


@pytest.mark.timeout(900)
def test_partitions_are_moved_throttled_verified_and_the_throttle_is_taken_away(
    brokers: dict[int, Oncelog], tmp_path: Path
) -> None:
    one = brokers[1]
    topics(one, "--create", "--topic", TOPIC, "--replica-assignment", "1:2,1:2")
    written = [Message(b"%d" % number + bytes(1_000)) for number in range(MESSAGES)]
    Confluent().produce(one.bootstrap, TOPIC, written)
    move = Reassignment(tmp_path, one, {0: [3, 2], 1: [1, 2, 3]})
    assert "Successfully started partition reassignments" in move("--execute", "--throttle", "1")
    assert "throttled.rate=1 " in configs(one, "--entity-type", "brokers", "--entity-name", "3", "--describe")
    assert "throttled.replicas" in configs(one, "--entity-type", "topics", "--entity-name", TOPIC, "--describe")
    under_way = move("--verify", "--preserve-throttles")
    assert "is still in progress" in under_way, under_way
    listed = tool("org.apache.kafka.tools.reassign.ReassignPartitionsCommand", one, "--list")
    assert f"{TOPIC}-0: replicas:" in listed, listed
    move("--execute", "--additional", "--throttle", "100000000")
    done = within_minutes(
        lambda: move("--verify", "--preserve-throttles"), lambda told: "still in progress" not in told
    )
    assert "is completed" in done
    assert "Clearing" in move("--verify")
    assert "throttled.rate" not in configs(one, "--entity-type", "brokers", "--entity-name", "3", "--describe")
    described = topics(one, "--describe", "--topic", TOPIC)
    assert "Replicas: 3,2" in described, described
    assert "Replicas: 1,2,3" in described, described
    read = Confluent().consume(brokers[3].bootstrap, TOPIC, MESSAGES)
    assert [each.message.value for each in read] == [each.value for each in written]


@pytest.mark.timeout(900)
def test_a_move_that_gets_nowhere_is_cancelled(brokers: dict[int, Oncelog], tmp_path: Path) -> None:
    one = brokers[1]
    topics(one, "--create", "--topic", TOPIC, "--replica-assignment", "1:2")
    Confluent().produce(one.bootstrap, TOPIC, [Message(bytes(1_000)) for _ in range(MESSAGES)])
    move = Reassignment(tmp_path, one, {0: [1, 3]})
    move("--execute", "--throttle", "1")
    assert "is still in progress" in move("--verify", "--preserve-throttles")
    assert "Successfully cancelled" in move("--cancel")
    assert "Replicas: 1,2" in topics(one, "--describe", "--topic", TOPIC)


@pytest.mark.timeout(900)
def test_the_tools_say_what_is_under_replicated_and_elect_who_should_lead(brokers: dict[int, Oncelog]) -> None:
    one = brokers[1]
    settings = ["--config", "min.insync.replicas=2"]
    topics(one, "--create", "--topic", TOPIC, "--replica-assignment", "2:1,1:2", *settings)
    here = ["--describe", "--topic", TOPIC]
    assert topics(one, *here, "--under-replicated-partitions") == ""
    brokers[2].kill()
    lacking = within_minutes(lambda: topics(one, *here, "--under-replicated-partitions"))
    assert lacking.count(f"Topic: {TOPIC}") == 2, lacking
    assert topics(one, *here, "--under-min-isr-partitions").count(f"Topic: {TOPIC}") == 2
    assert topics(one, *here, "--unavailable-partitions") == ""
    brokers[2].start(patience_seconds=180)
    within_minutes(lambda: out_of_sync(AdminClient({"bootstrap.servers": one.bootstrap})), lambda lacking: not lacking)
    assert topics(one, *here, "--at-min-isr-partitions").count(f"Topic: {TOPIC}") == 2
    election = ["--election-type", "preferred", "--topic", TOPIC, "--partition"]
    name = "org.apache.kafka.tools.LeaderElectionCommand"
    assert "Successfully completed leader election" in tool(name, one, *election, "0")
    assert "Valid replica already elected" in tool(name, one, *election, "1")
    assert "Leader: 2" in topics(one, *here)


@pytest.mark.timeout(900)
def test_a_replica_moves_to_another_folder_of_its_broker(tmp_path: Path) -> None:
    """`kafka-reassign-partitions` with folders in its plan; `kafka-log-dirs` shows it. A throttle holds it back."""
    try:
        kafka.fetch_jars()
    except subprocess.CalledProcessError:
        pytest.skip("mvn could not fetch Kafka's jars")
    folders = [str(tmp_path / name) for name in ("one", "two")]
    broker = WithFolders(tmp_path / "broker", settings={**QUICK_SETTINGS, "node.id": "1"})
    broker.folders = folders
    broker.start()
    try:
        topics(broker, "--create", "--topic", TOPIC, "--partitions", "1")
        written = [Message(b"%d" % number + bytes(1_000)) for number in range(MESSAGES)]
        Confluent().produce(broker.bootstrap, TOPIC, written)
        home = next(folder for folder in folders if (Path(folder) / f"{TOPIC}-0").exists())
        other = next(folder for folder in folders if folder != home)
        away = Reassignment(tmp_path, broker, {0: [1]}, {0: [other]})
        away("--execute", "--replica-alter-log-dirs-throttle", "1000")
        assert "is still in progress" in away("--verify", "--preserve-throttles")
        assert [each[:2] for each in _copies(broker)] == [(home, False), (other, True)]
        assert _copies(broker)[1][2] > 0
        away("--cancel", "--preserve-throttles")
        stay = Reassignment(tmp_path, broker, {0: [1]}, {0: [home]})
        stay("--execute", "--additional", "--replica-alter-log-dirs-throttle", "100000000")
        assert [each[:2] for each in _copies(broker)] == [(home, False)]
        away = Reassignment(tmp_path, broker, {0: [1]}, {0: [other]})
        away("--execute", "--additional", "--replica-alter-log-dirs-throttle", "100000000")
        done = within_minutes(
            lambda: away("--verify", "--preserve-throttles"), lambda told: "still in progress" not in told
        )
        assert "completed successfully" in done, done
        assert _copies(broker) == [(other, False, 0)]
        read = Confluent().consume(broker.bootstrap, TOPIC, MESSAGES)
        assert [each.message.value for each in read] == [each.value for each in written]
    finally:
        broker.kill()


class WithFolders(Oncelog):
    folders: list[str]

    def command(self) -> list[str]:
        command = super().command()
        command[command.index("--data") + 1] = ",".join(self.folders)
        return command


def _copies(broker: Oncelog) -> list[tuple[str, bool, int]]:
    """Folder, whether it is a copy under way, and how far behind; as `kafka-log-dirs` shows it, the home first."""
    told = tool("org.apache.kafka.tools.LogDirsCommand", broker, "--describe", "--topic-list", TOPIC)
    [told] = [line for line in told.splitlines() if line.startswith("{")]
    found = [
        (folder["logDir"], partition["isFuture"], partition["offsetLag"])
        for folder in json.loads(told)["brokers"][0]["logDirs"]
        for partition in folder["partitions"]
    ]
    return sorted(found, key=lambda each: each[1])

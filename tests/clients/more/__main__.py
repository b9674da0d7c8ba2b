"""Further clients against our broker: kafkajs, @platformatic/kafka and cloudevents on Node.js; franz-go, sarama,
kafka-go and confluent-kafka-go in Go; rskafka in Rust; older and newer Java clients than the tools have; Kafka Streams
and Connect; MirrorMaker 2; Apache Flink; Spring Kafka; Pekko Connectors; quixstreams in Python.

    python -m tests.clients.more [PART OF A CHECK'S NAME]

A language that this machine lacks is skipped with a word on it. Libraries come from the languages' own registries and
stay in `.cache/clients`.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from pathlib import Path

from tests.clients.more import connect, flink, java, mirror, pekko, quix, spring
from tests.clients.programs import Check, expect, main, run
from tests.peers.process import CACHE
from tests.service.web.kit import Served

CLIENTS = Path(__file__).parents[1]
BUILT = CACHE / "clients"
EVERYTHING = ("produced", "consumed", "administered", "transacted", "done")
QUIET = {"KAFKAJS_NO_PARTITIONER_WARNING": "1"}
JAVA = ("java", "javac", "mvn")
JAVA_CLIENTS = ("2.1.1", "2.8.2", "3.3.2", "3.9.1")
WITHOUT_TRANSACTIONS = ("produced", "consumed", "administered", "done")


def node(program: str, *, modern: bool = False) -> Check:
    """A program of tests/clients/node. `modern`: on the Node.js that npm brings."""

    def check(bootstrap: str) -> None:
        folder = _node_folder()
        runtime = str(folder / "node_modules" / "node" / "bin" / "node") if modern else "node"
        expect(run([runtime, program, bootstrap, _word()], folder=folder, environment=QUIET), *EVERYTHING)

    return check


def _node_folder() -> Path:
    """Programs and their libraries."""
    folder = BUILT / "node"
    folder.mkdir(parents=True, exist_ok=True)
    for file in (CLIENTS / "node").iterdir():
        shutil.copy(file, folder)
    run(["npm", "install", "--no-audit", "--no-fund", "--silent"], folder=folder, patience_seconds=300)
    return folder


def cloudevents(_bootstrap: str) -> None:
    """With a broker of its own, which serves HTTP too."""
    folder = _node_folder()
    with tempfile.TemporaryDirectory() as data:
        served = Served(Path(data) / "data")
        try:
            printed = run(
                ["node", "cloudevents.mjs", served.bootstrap, served.url, _word()], folder=folder, environment=QUIET
            )
            expect(printed, "posted", "produced", "consumed", "fetched")
        finally:
            served.stop()


def go(name: str, wanted: tuple[str, ...]) -> Check:
    """A program of tests/clients/go, built once and again when it changed."""

    def check(bootstrap: str) -> None:
        binary = BUILT / "go" / name
        run(["go", "build", "-o", str(binary), f"./{name}"], folder=CLIENTS / "go", patience_seconds=400)
        expect(run([str(binary), bootstrap, _word()]), *wanted)

    return check


def franz_tests(bootstrap: str) -> None:
    """franz-go's own test of transactions: chains of groups pass records on while members come and go. Its twin without
    transactions is left out: it loses count when a member is late for the short sessions of this broker.
    """
    binary = BUILT / "go" / "franz-tests"
    build = ["go", "test", "-c", "-o", str(binary), "github.com/twmb/franz-go/pkg/kgo"]
    run(build, folder=CLIENTS / "go", patience_seconds=400)
    told = {"KGO_SEEDS": bootstrap, "KGO_TEST_RF": "1", "KGO_TEST_RECORDS": "10000", "KGO_LOG_LEVEL": "none"}
    program = [str(binary), "-test.v", "-test.run", "TestTxnEtl", "-test.timeout", "9m"]
    expect(run(program, environment=told, patience_seconds=600), "--- PASS: TestTxnEtl (")


def rust(bootstrap: str) -> None:
    """The program of tests/clients/rust."""
    built = {"CARGO_TARGET_DIR": str(BUILT / "rust")}
    run(["cargo", "build", "--quiet"], folder=CLIENTS / "rust", environment=built, patience_seconds=600)
    expect(run([str(BUILT / "rust" / "debug" / "oncelog-clients-rust"), bootstrap, _word()]), *WITHOUT_TRANSACTIONS)


def _word() -> str:
    """What makes the names of one run its own."""
    return str(time.time_ns())


def _available() -> dict[str, Check]:
    needed: dict[str, tuple[tuple[str, ...], Check]] = {
        "kafkajs (Node.js)": (("node", "npm"), node("kafkajs.js")),
        "@platformatic/kafka (Node.js)": (("node", "npm"), node("platformatic.mjs", modern=True)),
        "cloudevents (Node.js)": (("node", "npm"), cloudevents),
        "franz-go (Go)": (("go",), go("franz", EVERYTHING)),
        "franz-go's own test of transactions, every kind of group (Go)": (("go",), franz_tests),
        "sarama (Go)": (("go",), go("sarama", EVERYTHING)),
        "segmentio/kafka-go (Go)": (("go",), go("segmentio", WITHOUT_TRANSACTIONS)),
        "confluent-kafka-go (Go)": (("go", "gcc"), go("confluent", EVERYTHING)),
        "rskafka (Rust)": (("cargo",), rust),
        **{f"kafka-clients {version} (Java)": (JAVA, java.older_client(version)) for version in JAVA_CLIENTS},
        "kafka-clients 4.4.0 (Java)": (JAVA, java.newer_client("4.4.0")),
        "Kafka Streams 4.3.0 (Java)": (JAVA, java.streams("4.3.0")),
        f"Kafka Connect {connect.CONNECT}, exactly-once source (Java)": (JAVA, connect.carries),
        f"MirrorMaker 2 of Kafka {connect.CONNECT}, exactly-once (Java)": (JAVA, mirror.mirrors),
        f"Apache Flink {flink.FLINK}, KafkaSink, ids from a pool (Java)": (JAVA, flink.copies("POOLING")),
        f"Apache Flink {flink.FLINK}, KafkaSink, ids counted on (Java)": (JAVA, flink.copies("INCREMENTING")),
        f"Apache Flink {flink.FLINK}, resumed transactions (Java)": (JAVA, flink.resumes),
        **{
            f"Spring Kafka {spring.SPRING}, groups by the {protocol} protocol (Java)": (JAVA, spring.copies(protocol))
            for protocol in ("classic", "consumer")
        },
        f"Pekko Connectors {pekko.PEKKO}, transactional streams (Java)": (JAVA, pekko.copies),
        f"{quix.LIBRARY} (Python)": ((), quix.counts),
    }
    found = {}
    for name, (programs, check) in needed.items():
        absent = [program for program in programs if shutil.which(program) is None]
        if absent:
            print(f"skipped {name}: no {' and no '.join(absent)} on the path")
        else:
            found[name] = check
    return found


if __name__ == "__main__":
    sys.exit(main(_available(), lambda: None))  # Python is always here

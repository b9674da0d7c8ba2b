"""Apache Kafka itself, one broker in KRaft mode, from the jars of Maven Central: the oracle and the peer.

`fetch_jars` needs Java 17 and mvn once; later runs find the jars under `.cache/kafka`. `missing()` says in one line
what is not there, so that a test can skip with a reason.
"""

from __future__ import annotations

import fcntl
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests import outside
from tests.peers.process import CACHE, QUICK_SETTINGS, BrokerProcess, free_port

POM = Path(__file__).with_name("pom.xml")
JARS = CACHE / "kafka" / "libs"
CLUSTER_ID = "b25jZWxvZy1jb25mb3JtAA"
COPY_JARS = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"


def missing() -> str | None:
    """Why Apache Kafka cannot run here, or None."""
    return outside.missing("java") if _jars_are_there() else outside.missing("java", "mvn")


def fetch_jars() -> Path:
    """The folder with Kafka's jars, fetched when it is not there yet. Two processes may ask at once."""
    JARS.parent.mkdir(parents=True, exist_ok=True)
    with (JARS.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not _jars_are_there():
            partial = JARS.with_name("libs.partial")
            shutil.rmtree(partial, ignore_errors=True)
            subprocess.run(["mvn", "-q", "-B", "-f", str(POM), COPY_JARS, f"-DoutputDirectory={partial}"], check=True)
            partial.rename(JARS)
    return JARS


def tool_command(main_class: str, *arguments: str, heap: str = "256m") -> list[str]:
    """The command line of one of Kafka's own tools."""
    return [*_java(heap, JARS.parent, quick=True), main_class, *arguments]


def _jars_are_there() -> bool:
    return JARS.is_dir()


def _java(heap: str, folder: Path, *, quick: bool) -> list[str]:
    logging = folder / "log4j2.properties"
    if not logging.exists():
        logging.parent.mkdir(parents=True, exist_ok=True)
        logging.write_text(
            "rootLogger.level=WARN\nrootLogger.appenderRef.only.ref=Only\nappender.only.type=Console\n"
            "appender.only.name=Only\nappender.only.target=SYSTEM_ERR\nappender.only.layout.type=PatternLayout\n"
            "appender.only.layout.pattern=%d %p %c: %m%n\n"
        )
    # The first compiler tier alone starts sooner; a measured broker gets both.
    compiler = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"] if quick else ["-XX:+UseG1GC"]
    return ["java", f"-Xmx{heap}", *compiler, f"-Dlog4j2.configurationFile={logging}", "-cp", f"{JARS}/*"]


class ApacheKafka(BrokerProcess):
    """A Kafka broker that is its own controller, or one of several that are theirs (`together`)."""

    name = "Apache Kafka"

    def __init__(
        self,
        folder: Path,
        *,
        settings: Mapping[str, str] = QUICK_SETTINGS,
        port: int | None = None,
        heap: str = "512m",
        quick_start: bool = True,
    ) -> None:
        super().__init__(folder, settings=settings, port=port)
        self._controller_port = free_port()
        self._node_id = 1
        self._voters = [self._controller]
        self._heap = heap
        self._quick_start = quick_start

    @classmethod
    def together(cls, brokers: Sequence[ApacheKafka]) -> None:
        """They form one cluster, with numbers from 1 on. Called before any of them starts."""
        for number, broker in enumerate(brokers, 1):
            broker._node_id = number
        voters = [broker._controller for broker in brokers]
        for broker in brokers:
            broker._voters = voters

    @property
    def _controller(self) -> str:
        return f"{self._node_id}@127.0.0.1:{self._controller_port}"

    @property
    def data(self) -> Path:
        return self.folder / "data"

    def prepare(self) -> None:
        fetch_jars()
        properties = {
            "process.roles": "broker,controller",
            "node.id": str(self._node_id),
            "controller.quorum.voters": ",".join(self._voters),
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{self._controller_port}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "log.dirs": str(self.data),
            **self.settings,
        }
        self._properties.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
        if not (self.data / "meta.properties").exists():
            format_command = [
                *_java("256m", self.folder, quick=True),
                "kafka.tools.StorageTool",
                "format",
                "-t",
                CLUSTER_ID,
                "-c",
                str(self._properties),
            ]
            subprocess.run(format_command, check=True, capture_output=True)

    def command(self) -> list[str]:
        java = _java(self._heap, self.folder, quick=self._quick_start)
        return [*java, f"-Xms{self._heap}", "kafka.Kafka", str(self._properties)]

    @property
    def _properties(self) -> Path:
        return self.folder / "server.properties"

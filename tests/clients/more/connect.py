"""Kafka Connect: two workers with exactly-once sources carry the lines of a file into a topic, and from there into
another file, while one after the other is killed.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, TopicPartition

from tests.clients.more.java import fetched
from tests.clients.programs import CheckFailed
from tests.clients.topics import Topics
from tests.peers.process import free_port

CONNECT = "4.3.0"
LINES_AT_ONCE = 20
PATIENCE_SECONDS = 180.0

Connector = dict[str, Any]


class ConnectProcess:
    """One of Connect's programs with its settings; started again with the same ones after a kill."""

    def __init__(self, main_class: str, settings: Mapping[str, str], folder: Path) -> None:
        self.port = free_port()
        settings = {**settings, "listeners": f"http://127.0.0.1:{self.port}"}
        properties = folder / f"{self.port}.properties"
        properties.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        jars = fetched(f"connect-{CONNECT}", "connect.xml", f"-Dconnect.version={CONNECT}")
        logging = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
        java = ["java", "-Xmx384m", "-XX:TieredStopAtLevel=1", logging, "-cp", f"{jars}/*"]
        self._command = [*java, f"org.apache.kafka.connect.{main_class}", str(properties)]
        self._log = folder / f"{self.port}.log"
        self.start()

    def start(self) -> None:
        with self._log.open("a") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def printed(self) -> str:
        return self._log.read_text()[-1500:]


class Workers:
    """Several workers of one Connect cluster, and the connectors' REST interface at any of them."""

    def __init__(self, bootstrap: str, folder: Path, name: str) -> None:
        strings = "org.apache.kafka.connect.storage.StringConverter"
        settings = {
            "bootstrap.servers": bootstrap,
            "group.id": name,
            "exactly.once.source.support": "enabled",
            "key.converter": strings,
            "value.converter": strings,
            "offset.flush.interval.ms": "1000",
            "session.timeout.ms": "6000",
            "heartbeat.interval.ms": "1000",
            "scheduled.rebalance.max.delay.ms": "3000",
        }
        for memory in ("offset", "config", "status"):
            settings[f"{memory}.storage.topic"] = f"{name}-{memory}"
            settings[f"{memory}.storage.replication.factor"] = "-1"
        workers = [ConnectProcess("cli.ConnectDistributed", settings, folder) for _ in range(2)]
        self._by_port = {worker.port: worker for worker in workers}

    def any(self) -> int:
        return next(iter(self._by_port))

    def put(self, connector: str, config: Mapping[str, str]) -> None:
        self._call("PUT", self.any(), f"{connector}/config", config)

    def offsets(self, connector: str) -> list[Connector]:
        found: list[Connector] = self._call("GET", self.any(), f"{connector}/offsets")["offsets"]
        return found

    def change(self, method: str, connector: str, what: str, body: Mapping[str, Any] | None = None) -> None:
        self._call(method, self.any(), f"{connector}/{what}", body)

    def kill_the_one_that_runs(self, connector: str) -> None:
        """Kill the worker that has the connector's task, and start it again."""
        self.until(lambda: self._tasks(connector) == ["RUNNING"], f"{connector} runs")
        task = self._status(connector)["tasks"][0]
        worker = self._by_port[int(task["worker_id"].rpartition(":")[2])]
        worker.kill()
        worker.start()

    def stop(self, connector: str) -> None:
        self.change("PUT", connector, "stop")
        self.until(lambda: self._tasks(connector) == [], f"{connector} stops")

    def answer(self) -> bool:
        return all(self._call("GET", port, "") is not None for port in self._by_port)

    def until(self, holds: Callable[[], bool], what: str) -> None:
        """A worker that starts or rebalances answers with an error: it is asked again."""
        last: object = None
        until = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < until:
            try:
                if holds():
                    return
            except OSError as refused:
                last = refused
            time.sleep(0.2)
        printed = "\n".join(worker.printed() for worker in self._by_port.values())
        raise CheckFailed(f"in vain: {what}; {last}: {printed}")

    def kill(self) -> None:
        for worker in self._by_port.values():
            worker.kill()

    def _status(self, connector: str) -> Connector:
        found: Connector = self._call("GET", self.any(), f"{connector}/status")
        return found

    def _tasks(self, connector: str) -> list[str]:
        return [task["state"] for task in self._status(connector)["tasks"]]

    def _call(self, method: str, port: int, path: str, body: Mapping[str, Any] | None = None) -> Any:
        address = f"http://127.0.0.1:{port}/connectors/{path}".rstrip("/")
        request = urllib.request.Request(address, method=method, headers={"Content-Type": "application/json"})
        if body is not None:
            request.data = json.dumps(body).encode()
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.loads(answer.read() or b"null")


def carries(bootstrap: str) -> None:
    """Each line is in the topic once and in order, and comes out at least once, though each connector's worker is
    killed; the offsets that Connect keeps can be read, changed and deleted."""
    name = f"connect-{time.time_ns()}"
    topic = Topics(bootstrap, name).create()
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "source"), Path(folder, "target")
        source.touch()
        target.touch()
        workers = Workers(bootstrap, Path(folder), name)
        try:
            workers.until(workers.answer, "workers answer")
            workers.put("source", _source(source, topic))
            workers.put("sink", _sink(target, topic))
            for connector in ("source", "sink", "source"):
                _carry(workers, source, target, f"before {connector}'s worker is killed")
                workers.kill_the_one_that_runs(connector)
            _carry(workers, source, target, "after the last kill")
            workers.until(workers.answer, "workers answer again")
            lines, read = source.read_text().splitlines(), _read(bootstrap, topic)
            if read != lines[: len(read)]:
                raise CheckFailed(
                    f"{len(read)} lines are in the topic, {len(set(read))} different ones of {len(lines)}"
                )
            _change_offsets(workers, source, topic)
        finally:
            workers.kill()


def _source(file: Path, topic: str) -> dict[str, str]:
    exactly_once = {"exactly.once.support": "required", "transaction.boundary": "poll"}
    return {"connector.class": "FileStreamSource", "file": str(file), "topic": topic, **exactly_once}


def _sink(file: Path, topic: str) -> dict[str, str]:
    committed = {"consumer.override.isolation.level": "read_committed", "consumer.override.session.timeout.ms": "6000"}
    return {"connector.class": "FileStreamSink", "file": str(file), "topics": topic, **committed}


def _carry(workers: Workers, source: Path, target: Path, when: str) -> None:
    """Write lines until the first ones of them, and all before, have come out."""
    written = source.read_text().splitlines()
    wanted = {*written, str(len(written))}
    number = len(written)

    def came_out() -> bool:
        nonlocal number
        with source.open("a") as file:
            file.writelines(f"{number + each}\n" for each in range(LINES_AT_ONCE))
        number += LINES_AT_ONCE
        return wanted.issubset(target.read_text().splitlines())

    workers.until(came_out, f"lines come out {when}")


def _change_offsets(workers: Workers, source: Path, topic: str) -> None:
    for connector in ("source", "sink"):
        workers.stop(connector)
    file, place = {"filename": str(source)}, {"kafka_topic": topic, "kafka_partition": 0}
    changed = {
        "source": {"partition": file, "offset": {"position": 0}},
        "sink": {"partition": place, "offset": {"kafka_offset": 1}},
    }
    for connector, offset in changed.items():
        if not workers.offsets(connector):
            raise CheckFailed(f"{connector} has no offsets")
        workers.change("PATCH", connector, "offsets", {"offsets": [offset]})
        if workers.offsets(connector) != [offset]:
            raise CheckFailed(f"{connector} has {workers.offsets(connector)} instead of {offset}")
        workers.change("DELETE", connector, "offsets")
        if workers.offsets(connector):
            raise CheckFailed(f"{connector} has {workers.offsets(connector)}, which were deleted")


def _read(bootstrap: str, topic: str) -> list[str]:
    settings = {"bootstrap.servers": bootstrap, "group.id": "connect-unused", "isolation.level": "read_committed"}
    consumer = Consumer({**settings, "enable.auto.commit": False, "enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[str] = []
    while True:
        message = consumer.poll(PATIENCE_SECONDS)
        value = None if message is None or message.error() is not None else message.value()
        if value is None:  # the end
            consumer.close()
            return found
        found.append(value.decode())

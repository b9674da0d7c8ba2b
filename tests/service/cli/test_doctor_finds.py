"""What `oncelog doctor` looks for and a healthy cluster never shows: each check fails once, and tells the cause, the
cure, and by its status whether something must be done.
"""

from __future__ import annotations

import asyncio
import ctypes
import resource
import shutil
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest

from log.disk import DiskFault, RealDisk, Space
from service.broker import health
from service.cli import doctor
from service.cli.failures import Exit
from service.client.http_port import why_no_http
from service.cluster.image import Image, PartitionState
from service.process import listen
from service.settings.broker import WEB, Endpoint
from service.wire.messages import FindCoordinatorRequest
from tests.service.broker import cluster_stage
from tests.service.broker.cluster_stage import ClusterStage, on_cluster_stage, until
from tests.service.broker.test_health import Shifted, closed_port
from tests.service.cli.kit import oncelog
from tests.service.web.kit import PATIENCE_S, Served

Found = tuple[str, str, Any]
"""State, finding and cure."""


class Doctor:
    """What it says of the cluster of a stage, whose brokers are in this process."""

    def __init__(self, stage: ClusterStage) -> None:
        self._stage = stage
        self.status = 0

    async def finds(self, *checks: str) -> list[Found]:
        broker = next(iter(self._stage.lives.values())).broker
        endpoint = broker.metadata.image.brokers[broker.metadata.broker_id].endpoint("PLAINTEXT")
        assert endpoint is not None
        told = await asyncio.to_thread(oncelog, "doctor", "--timeout", "5", "-o", "json", bootstrap=endpoint.address)
        self.status = told.status
        return [(row["state"], row["finding"], row["cure"]) for row in told.json() if row["check"] in checks]


def examine(folder: Path, scene: Callable[[ClusterStage, Doctor], Awaitable[None]], *nodes: int, **each: Any) -> None:
    on_cluster_stage(folder, lambda stage: scene(stage, Doctor(stage)), *nodes, **each)


@pytest.fixture
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "LASTS_S", 0.0)


@pytest.mark.usefixtures("no_waiting")
def test_a_broker_that_is_away_and_what_it_leaves_behind(tmp_path: Path) -> None:
    async def scene(stage: ClusterStage, ask: Doctor) -> None:
        await stage.create(1, 2, name="thin")
        await stage.create(1, 2, name="refusing", min_insync_replicas="2")
        await stage.create(2, name="leaderless")
        assert await ask.finds("replication") == [
            (
                "warning",
                "1 topics are on one broker only: leaderless",
                "`oncelog topic reassign TOPIC --replication-factor 2`; for new topics --replicas 2, or"
                " default.replication.factor",
            )
        ]
        assert ask.status == 0, "a warning is not a failure"
        await stage.kill(2)
        metadata = stage.broker(1).metadata
        await until(lambda: all(2 not in each.isr for each in states(metadata.image) if each.leader == 1))
        assert await ask.finds("brokers") == [
            (
                "problem",
                "broker 2 is away, and 3 replicas with it",
                "start it again (its log says why it ended); if it is gone for good: `oncelog cluster drain`",
            )
        ]
        assert ask.status == Exit.CONDITION
        gone, refusing, thin = await ask.finds("partitions")
        assert gone == (
            "problem",
            "1 have no leader: leaderless-0",
            "bring back a broker of their in-sync sets, on its disk (`oncelog topic describe`)",
        )
        assert refusing[:2] == ("problem", "1 have too few replicas in sync: refusing-0")
        assert "bring back the brokers that hold them" in refusing[2]
        assert thin[:2] in [("warning", f"2 lack a replica: {names}") for names in BOTH]
        assert thin[2] == "is a broker down, its disk slow, or the network to it?"
        for _ in range(2):
            await stage.broker(1).health.look()
        ((state, finding, cure),) = await ask.finds("health")
        assert (state, cure) == ("problem", "start that broker, or see what its log says")
        assert "broker 1: broker 2 has no copy in sync of " in finding

    examine(tmp_path, scene, 1, 2)


def test_the_last_replica_in_sync_came_back_without_its_disk(tmp_path: Path) -> None:
    """It said to bring back a broker of the in-sync set: that broker led without a record then."""

    async def scene(stage: ClusterStage, ask: Doctor) -> None:
        await stage.create(1, 2, min_insync_replicas="1")
        await stage.write("a")
        await stage.in_sync(1, 2)
        await stage.alike(1, 2)
        await stage.stop(2)
        await stage.in_sync(1)
        await stage.stop(1)
        shutil.rmtree(tmp_path / "1")
        await stage.start(1)
        await stage.start(2)
        assert await ask.finds("partitions") == [
            (
                "problem",
                "1 have no leader, for the disk of the last replica in sync is gone: orders-0",
                "let another copy lead, with what it has: `oncelog topic elect TOPIC --unclean`; or is that disk to be"
                " had (docs/cluster.md, what a loss costs)?",
            )
        ]

    examine(tmp_path, scene, 1, 2)


BOTH = ("refusing-0, thin-0", "thin-0, refusing-0")


def states(image: Image) -> list[PartitionState]:
    return [state for topic in image.topics.values() for state in topic.partitions.values()]


def test_a_drained_broker_leaves_fewer_copies(tmp_path: Path) -> None:
    """The plan did not say so, and it found as many copies as brokers allow."""

    async def scene(stage: ClusterStage, ask: Doctor) -> None:
        await stage.create(1, 2, 3, min_insync_replicas="2")
        await stage.create(1, 2, 3, name="careless", min_insync_replicas="1")
        await stage.in_sync(1, 2, 3)
        assert [state for state, _, _ in await ask.finds("replication")] == ["ok"]
        told = await asyncio.to_thread(oncelog, "cluster", "drain", "3", "--yes", bootstrap=stage.broker(1).bootstrap)
        assert told.status == 0, told.err
        assert "2 partition(s) keep fewer copies" in told.err
        assert "1 of them only as many as min.insync.replicas" in told.err
        cure = "`oncelog topic reassign TOPIC --replication-factor N`"
        why = "fewer copies than default.replication.factor, or only as many as min.insync.replicas"
        assert await ask.finds("replication") == [("warning", f"1 topics have {why}: orders", cure)]
        stage.broker(1).config.__dict__["default_replication_factor"] = 3
        ((_, finding, _),) = await ask.finds("replication")
        assert finding.startswith("2 topics have fewer copies")

    examine(tmp_path, scene)


def test_a_cluster_that_nobody_controls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(stage: ClusterStage, ask: Doctor) -> None:
        metadata = stage.broker(1).metadata
        monkeypatch.setattr(metadata, "image", replace(metadata.image, controller_id=-1))
        ((state, finding, cure),) = await ask.finds("controller")
        assert (state, finding) == ("problem", "no broker controls the cluster")
        assert "bring the metadata store back" in cure
        assert ask.status == Exit.CONDITION

    examine(tmp_path, scene, 1)


@pytest.mark.usefixtures("no_waiting")
def test_what_is_wrong_between_brokers(tmp_path: Path) -> None:
    """One has lost its session, another's clock is ahead, and the third is at somebody else's address."""
    own = closed_port()
    given = {1: {"listeners": f"PLAINTEXT://127.0.0.1:{own}"}}

    async def scene(stage: ClusterStage, ask: Doctor) -> None:
        stage.broker(2).env.clock = Shifted()
        for _ in range(2):
            await stage.broker(1).health.look()
        stage.broker(1).metadata._lost("It does not answer.")
        stage.broker(1).health.troubles += list(stage.broker(1).health._of_session())
        found = {finding.partition(": ")[2]: cure for _, finding, cure in await ask.finds("health")}
        assert ask.status == Exit.CONDITION
        (clock,) = [cure for says, cure in found.items() if says.startswith("the clock of broker 2 is ")]
        assert clock == "run chrony or systemd-timesyncd on both machines"
        (session,) = [cure for says, cure in found.items() if says.startswith("this broker leads nothing for now")]
        assert "is the metadata store (ZooKeeper, PostgreSQL) up" in session

    examine(tmp_path, scene, 1, 2, each=lambda node: given.get(node, {}))


def test_brokers_at_wrong_addresses(tmp_path: Path) -> None:
    own, nobody = closed_port(), closed_port()
    given = {
        1: {"listeners": f"PLAINTEXT://127.0.0.1:{own}"},
        2: {"advertised.listeners": f"PLAINTEXT://127.0.0.1:{own}"},
        3: {"advertised.listeners": f"PLAINTEXT://127.0.0.1:{nobody}"},
    }

    async def scene(stage: ClusterStage, ask: Doctor) -> None:
        for _ in range(2):
            await stage.broker(1).health.look()
        found = await ask.finds("health")
        assert ask.status == Exit.CONDITION
        (stranger,) = {cure for _, says, cure in found if "leads to broker 1" in says}
        assert stranger == "give each broker its own advertised.listeners"
        (unreachable,) = {cure for _, says, cure in found if "broker 3 can't be reached" in says}
        assert "mend its advertised.listeners" in unreachable
        ((state, says, cure),) = await ask.finds("brokers")
        assert state == "problem"
        assert says.startswith("broker 3 does not answer: ")
        assert "does its advertised.listeners name an address that can be reached from here?" in cure

    examine(tmp_path, scene, 1, 2, 3, each=lambda node: given[node])


@pytest.mark.usefixtures("no_waiting")
def test_what_can_not_be_copied(tmp_path: Path) -> None:
    port = closed_port()
    given = {1: {"advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}"}}

    async def scene(stage: ClusterStage, ask: Doctor) -> None:
        await stage.create(1, 2)
        await stage.in_sync(1)
        follower = stage.lives.pop(1)  # so that the follower is asked
        for _ in range(2):
            await stage.broker(2).health.look()
        found = await ask.finds("health")
        stage.lives[1] = follower
        (cure,) = [cure for _, says, cure in found if "orders-0 can't be copied from broker 1" in says]
        assert cure == "mend what it says; the partitions are copied on by themselves then"
        assert ask.status == Exit.CONDITION

    examine(tmp_path, scene, 1, 2, each=lambda node: given.get(node, {}))


def test_an_http_api_that_nobody_reaches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where another broker can't reach it, requests are not forwarded. Where only we can't, it may be meant so."""
    port = closed_port()
    monkeypatch.setattr(cluster_stage, "listen", partial(listen, web=[Endpoint(WEB, "127.0.0.1", port, WEB)]))

    async def scene(stage: ClusterStage, ask: Doctor) -> None:
        (state, says, cure), _ = await ask.finds("http")
        assert ask.status == 0
        assert state == "warning"
        assert f"the HTTP API of broker 1 can't be reached from here at http://127.0.0.1:{port}: " in says
        assert "Connect call failed" in says
        assert "open the port" in cure
        for _ in range(2):
            await stage.broker(1).health.look()
        ((state, says, cure),) = await ask.finds("health")
        assert ask.status == Exit.CONDITION
        assert state == "problem"
        assert f"broker 1: the HTTP API of broker 2 can't be reached at http://127.0.0.1:{port}, where " in says
        assert "open its HTTP port to the other brokers" in cure
        answering = await asyncio.start_server(answer_in_http, "127.0.0.1", port)
        async with answering:
            await stage.broker(1).health.look()
            assert await ask.finds("http", "health") == [
                ("ok", "brokers reach each other, also by HTTP, their clocks agree, and replicas keep up", None),
                ("ok", "2 HTTP APIs, and each answers here", None),
            ]

    examine(tmp_path, scene, 1, 2)


async def answer_in_http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n")
    writer.close()


def test_who_answers_something_else_or_nothing_has_no_http() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async def other(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-none\r\n")
        await reader.read()  # until the other end closes
        writer.close()

    async def main() -> list[str | None]:
        found = []
        for who in (silent, other, answer_in_http):
            async with await asyncio.start_server(who, "127.0.0.1", 0) as server:
                host, port = server.sockets[0].getsockname()
                found.append(await why_no_http(1, host, port, 0.3))
        return found

    told = ["no answer within 0.3 s", "what answers there is not HTTP", None]
    assert asyncio.run(main()) == told


def test_another_broker_at_an_address_is_not_the_one_that_is_looked_for(tmp_path: Path) -> None:
    """As where each broker of a cluster says that its HTTP API is on its own localhost."""
    served = Served(tmp_path / "data")
    place = urlsplit(served.url)
    try:
        assert place.hostname is not None and place.port is not None
        found = [asyncio.run(why_no_http(node, place.hostname, place.port, PATIENCE_S)) for node in (1, 2)]
        assert found == [None, "broker 1 answers there"]
    finally:
        served.stop()


def test_folders_that_no_partition_uses(tmp_path: Path) -> None:
    async def scene(stage: ClusterStage, ask: Doctor) -> None:
        (folder,) = stage.broker(1).folders
        assert (await ask.finds("disks"))[0][0] == "ok"
        folder.unused = {"AAAAAAAAAAAAAAAAAAAAAA-0.1.stray": 3 << 20, "orders-0": 0}
        ((state, finding, cure),) = await ask.finds("disks")
        assert (state, ask.status) == ("warning", 0)
        assert finding == (
            f"broker 1: {folder.name} has 2 folders that no partition uses, such as AAAAAAAAAAAAAAAAAAAAAA-0.1.stray,"
            " with 3 MiB in all"
        )
        assert "docs/operating.md" in cure
        assert (await ask.finds("health"))[0][0] == "ok"

    examine(tmp_path, scene, 1)


def test_disks_that_failed_are_full_or_nearly_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(stage: ClusterStage, ask: Doctor) -> None:
        (folder,) = stage.broker(1).folders
        where = f"{folder.name} of broker 1"
        monkeypatch.setattr(RealDisk, "space", lambda _: Space(100 << 30, 9 << 30))
        (room,) = await ask.finds("disks")
        assert ask.status == 0
        assert room[:2] == ("warning", f"{where} has 9 % free")
        assert "lower retention, trim a topic, or give it a larger disk, before producers are refused" in room[2]
        folder.headroom.is_short = True
        (full,) = await ask.finds("disks")
        assert ask.status == Exit.CONDITION
        assert full[:2] == ("problem", f"{where} is full: producers are refused")
        assert "lower retention, trim a topic, or give it a larger disk: producers go on" in full[2]
        folder.failed = DiskFault(5, "Input/output error", folder.name)
        (failed,) = await ask.finds("disks")
        assert failed[:2] == ("problem", f"{where} is out of service")
        assert failed[2] == "see the broker's log; replace the disk and start the broker again"
        assert ask.status == Exit.CONDITION
        folder.failed = None

    examine(tmp_path, scene, 1)


def test_an_internal_topic_that_forgets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(stage: ClusterStage, ask: Doctor) -> None:
        await stage.wire(1).ask(FindCoordinatorRequest(coordinator_keys=["billing"]))  # which makes it
        await until(lambda: stage.holds(1, "__consumer_offsets"))
        assert (await ask.finds("settings"))[0][0] == "ok"
        metadata = stage.broker(1).metadata  # nobody can set it now
        topic = replace(metadata.image.topics["__consumer_offsets"], config={"cleanup.policy": "delete"})
        monkeypatch.setattr(metadata, "image", replace(metadata.image, topics={topic.name: topic}))
        ((state, finding, cure),) = await ask.finds("settings")
        assert (state, finding) == (
            "problem",
            "internal topics without the cleanup.policy that they need: __consumer_offsets (compact)",
        )
        assert "`oncelog config set -t TOPIC cleanup.policy=POLICY`" in cure
        assert ask.status == Exit.CONDITION

    examine(tmp_path, scene, 1, given={"offsets.topic.num.partitions": "1"})


def test_limits_and_the_clock_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(_: ClusterStage, ask: Doctor) -> None:
        monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 1024))
        monkeypatch.setattr(ctypes, "CDLL", lambda _: SimpleNamespace(adjtimex=lambda _: doctor.NOT_KEPT))
        limits, clock = await ask.finds("limits", "clock")
        assert limits[:2] == ("warning", "a process here may open 1024 files")
        assert "raise the hard limit (LimitNOFILE=, ulimits:)" in limits[2]
        assert clock[:2] == ("warning", "nothing keeps this machine's clock in step")
        assert "run chrony or systemd-timesyncd" in clock[2]
        assert ask.status == 0, "the machine need not be a broker's"

    examine(tmp_path, scene, 1)

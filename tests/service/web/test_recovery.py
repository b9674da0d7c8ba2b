"""A broker is started again. Its former life has left a transaction for HTTP open, whose coordinator can't load yet."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession

import service.web.idempotency
import service.web.producers
import service.web.producing
import service.web.sharing
from log.ids import TopicPartition
from service.broker.internal_topics import HTTP_KEYS, TRANSACTIONS
from service.broker.marker_courier import MarkerCourier
from service.broker.shard import Shard
from service.client.failures import ClientFailure, FailureKind
from service.ports import RealClock
from service.settings.broker import Endpoint
from service.stores.memory import MemoryServer
from service.web.app import WebServer
from service.web.producers import PRODUCERS_MAX, Producer
from service.wire.messages import EndTxnRequest
from tests.service.api.admin_stage import Stage, on_stage
from tests.service.api.txn_stage import until

COORDINATORS = 4
SETTINGS = {"transaction.state.log.num.partitions": f"{COORDINATORS}", "log.durability": "os"}
GONE = ClientFailure("the broker dies here", FailureKind.UNREACHABLE)
OPEN = "__http-1-0"
HOME = TopicPartition(TRANSACTIONS.name, TRANSACTIONS.partition_of(OPEN, COORDINATORS))
KEY, OTHER_KEY = (
    "a",
    next(each for each in "bcdefg" if HTTP_KEYS.partition_of(each, 16) != HTTP_KEYS.partition_of("a", 16)),
)


class Life:
    """One life of the broker, and its client."""

    def __init__(self, stage: Stage, web: WebServer, client: ClientSession) -> None:
        self.stage, self.web = stage, web
        self._client = client
        self._url = f"http://127.0.0.1:{web.endpoints[0].port}/v1/topics"

    async def post(self, topic: str, key: str) -> tuple[int, bool]:
        """The status of the answer, and whether it is an earlier one."""
        headers = {"Idempotency-Key": f'"{key}"'}
        body = {"records": [{"value": key}]}
        async with self._client.post(f"{self._url}/{topic}/records", json=body, headers=headers) as answer:
            return answer.status, "Idempotency-Replayed" in answer.headers

    async def until_answered(self, topic: str, key: str) -> bool:
        """Repeat blindly, as a client does. Whether the answer is an earlier one."""
        async with asyncio.timeout(20):
            while True:
                status, is_replayed = await self.post(topic, key)
                if status == 200:
                    return is_replayed
                await asyncio.sleep(0.05)

    async def committed(self, topic: str) -> list[str]:
        """What readers see when all is decided."""
        partition = await self.stage.served(topic)
        await until(lambda: partition.last_stable_offset == partition.log.end_offset)
        async with self._client.get(f"{self._url}/{topic}/partitions/0/records?offset=0&wait_ms=0") as answer:
            return [each["value"] for each in (await answer.json())["records"]]


def live(
    folder: Path, metadata: MemoryServer, scene: Callable[[Life], Awaitable[None]], *, recovers: bool = True
) -> None:
    async def served(stage: Stage) -> None:
        web = WebServer(stage.broker, connections_max=10)
        await web.start([Endpoint("HTTP", "127.0.0.1", 0, "HTTP")])
        if recovers:
            web.begin()
        stage.broker.ready.set()
        try:
            async with asyncio.timeout(60), ClientSession() as client:
                await scene(Life(stage, web, client))
        finally:
            await web.stop()

    on_stage(folder, served, SETTINGS, metadata=metadata)


async def dies(*_: object, **__: object) -> None:
    raise GONE


def no_markers(*_: object) -> None:
    """The broker dies before it sends any."""


DEATHS: dict[str, list[tuple[Any, str, Any]]] = {
    "before the key's record": [
        *((module, "seal_all", dies) for module in (service.web.producing, service.web.sharing)),
        (Producer, "end", dies),
    ],
    "before the commit": [(Producer, "end", dies)],
    "before the markers": [(MarkerCourier, "post", no_markers)],
    "before the answer": [],
}
"""Where the former life ends, and what stops it there."""


def first_life(folder: Path, metadata: MemoryServer, death: str) -> EndTxnRequest:
    """A request with the key `KEY`, in which the broker dies. The commit that may still be on its way."""
    late: list[EndTxnRequest] = []
    write = Producer.write

    async def noted(producer: Producer, *given: Any, **more: Any) -> None:
        await write(producer, *given, **more)
        late[:] = [EndTxnRequest(producer.transactional_id, producer.producer_id, producer.epoch, committed=True)]

    async def scene(life: Life) -> None:
        for topic in ("here", "beside"):
            await life.stage.create(topic)
            await life.stage.served(topic)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Producer, "write", noted)
            for where, name, instead in DEATHS[death]:
                patch.setattr(where, name, instead)
            await life.post("here", KEY)
        assert late[0].transactional_id == OPEN

    live(folder, metadata, scene)
    return late[0]


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """The coordinator of the id `OPEN` loads when this is set; and nobody waits for long."""
    gate = asyncio.Event()
    load = Shard.load

    async def later(shard: Shard[Any]) -> None:
        if shard.partition.topic_partition == HOME:
            await gate.wait()
        await load(shard)

    gate.set()
    monkeypatch.setattr(Shard, "load", later)
    monkeypatch.setattr(service.web.idempotency, "TIMEOUT_S", 0.5)
    monkeypatch.setattr(service.web.producers, "OWNED_WITHIN_S", 0.2)
    return gate


@pytest.mark.parametrize("death", DEATHS)
def test_only_who_may_repeat_what_is_open_waits_for_its_coordinator(
    tmp_path: Path, gate: asyncio.Event, death: str
) -> None:
    """One coordinator that could not load closed all calls with a key, and all that are written in a transaction."""
    metadata = MemoryServer(RealClock())
    first_life(tmp_path, metadata, death)
    gate.clear()

    async def scene(life: Life) -> None:
        assert await life.until_answered("beside", OTHER_KEY) is False
        status, replayed = await life.post("here", KEY)
        if death in ("before the commit", "before the markers"):
            assert status == 503, "the record of the key is there, and nobody knows what becomes of it"
        else:
            assert (status, replayed) == (200, death == "before the answer")
        gate.set()
        assert await life.until_answered("here", KEY) is (death != "before the commit")
        assert (await life.committed("here"), await life.committed("beside")) == ([KEY], [OTHER_KEY])

    live(tmp_path, metadata, scene)


@pytest.mark.parametrize("recovers", [False, True], ids=["before the recovery", "after it"])
def test_a_commit_that_comes_late_and_a_repeated_call_write_once(
    tmp_path: Path, gate: asyncio.Event, *, recovers: bool
) -> None:
    metadata = MemoryServer(RealClock())
    commit = first_life(tmp_path, metadata, "before the commit")
    gate.clear()

    async def scene(life: Life) -> None:
        repeated = asyncio.ensure_future(life.until_answered("here", KEY))
        assert await life.until_answered("beside", OTHER_KEY) is False
        gate.set()
        if recovers:
            assert await repeated is False
        shard = life.stage.broker.coordination.transactions.at(HOME.partition)
        assert shard is not None
        await until(lambda: shard.loaded)
        assert bool((await life.stage.ask(commit)).error_code) is recovers
        if not recovers:
            life.web.begin()
            assert await repeated is True
        assert await life.committed("here") == [KEY]

    live(tmp_path, metadata, scene, recovers=recovers)


def own_and_die(original: Callable[[Producer], Awaitable[None]]) -> Callable[[Producer], Awaitable[None]]:
    async def own(producer: Producer) -> None:
        await original(producer)
        await dies()

    return own


@pytest.mark.parametrize("own", [dies, own_and_die(Producer.own)], ids=["before an id is taken over", "after that"])
def test_a_broker_that_dies_while_it_recovers_writes_once(
    tmp_path: Path, gate: asyncio.Event, monkeypatch: pytest.MonkeyPatch, own: Callable[[Producer], Awaitable[None]]
) -> None:
    metadata = MemoryServer(RealClock())
    first_life(tmp_path, metadata, "before the commit")

    async def second(life: Life) -> None:
        await life.post("here", KEY)

    with monkeypatch.context() as patch:
        patch.setattr(Producer, "own", own)
        live(tmp_path, metadata, second)

    async def third(life: Life) -> None:
        assert await life.until_answered("here", KEY) is False
        assert await life.committed("here") == [KEY]

    live(tmp_path, metadata, third)


def test_an_id_that_recovery_asks_for_is_lent_to_nobody_meanwhile(
    tmp_path: Path, gate: asyncio.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whose id was taken over once more would be fenced in the middle of a transaction."""
    metadata = MemoryServer(RealClock())
    first_life(tmp_path, metadata, "before the commit")
    owned: list[str] = []
    go_on = asyncio.Event()
    own, state = Producer.own, Producer.state

    async def noted(producer: Producer) -> None:
        owned.append(producer.transactional_id)
        await own(producer)

    async def later(producer: Producer) -> str:
        if producer.transactional_id == OPEN:
            await go_on.wait()
        return await state(producer)

    monkeypatch.setattr(Producer, "own", noted)
    monkeypatch.setattr(Producer, "state", later)

    async def scene(life: Life) -> None:
        life.web.begin()
        pool = life.web.gateway.producers
        await until(lambda: len(pool._idle) == PRODUCERS_MAX - 1)
        pool._idle.clear()  # as if as many calls had come
        assert await life.until_answered("beside", OTHER_KEY) is False
        assert owned == [f"__http-1-{PRODUCERS_MAX}"]
        go_on.set()
        assert await life.until_answered("here", KEY) is False
        assert (owned[1], owned.count(OPEN)) == (OPEN, 1)

    live(tmp_path, metadata, scene, recovers=False)

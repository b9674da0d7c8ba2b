"""Requests with an Idempotency-Key that come together share a transaction, and nothing else."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import uuid
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast
from urllib.parse import urlsplit

import msgspec
import pytest

import service.web.sharing
from log.ids import TopicPartition
from service.broker.session import Session
from service.web.gateway import ASKING, Gateway
from service.web.idempotency import KeyRecord, Keys, Memory
from service.web.problems import Outcome, Problem
from service.web.producers import PRODUCERS_MAX, ProducerPool
from service.web.producing import BatchOut, PlacedRecords
from service.web.sharing import GATHERED_S, GROUPS_MAX, Sharing
from tests.service.web.kit import PATIENCE_S, Http, Served, read_all

Requests = Sequence[tuple[str, bytes]]


def at_once(served: Served, path: str, requests: Requests) -> list[tuple[int, Any]]:
    """Send the requests, each with its key and on a connection of its own, before any answer is read."""
    place = urlsplit(served.url)
    connections = [socket.create_connection((place.hostname, place.port), PATIENCE_S) for _ in requests]
    for connection, (key, body) in zip(connections, requests, strict=True):
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nIdempotency-Key: {key}\r\n"
        connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    answers = []
    for connection in connections:
        answer = http.client.HTTPResponse(connection)
        answer.begin()
        answers.append((answer.status, json.loads(answer.read())))
        connection.close()
    return answers


def of_values(count: int, **more: object) -> Requests:
    return [
        (f'"{uuid.uuid4()}"', json.dumps({"records": [{"value": number, **more}]}).encode()) for number in range(count)
    ]


def transaction(answer: Any) -> tuple[int, int]:
    return answer["transaction"]["producer_id"], answer["transaction"]["epoch"]


def test_requests_that_come_together_share_transactions_and_are_known_by_their_keys(
    served: Served, http: Http, topic: str
) -> None:
    path, requests = f"/v1/topics/{topic}/records", of_values(40)
    http.post(path, {"records": [{"value": "first"}]})
    answers = at_once(served, path, requests)
    assert [status for status, _ in answers] == [200] * 40
    assert len({transaction(answer) for _, answer in answers}) < 40
    there = {(each.partition, each.offset): each.value for each in read_all(served.bootstrap, topic)}
    for number, (_, answer) in enumerate(answers):
        (place,) = answer["results"]
        assert there[place["partition"], place["offset"]] == b"%d" % number
    assert len(there) == 41
    for (key, body), (_, answer) in zip(requests, answers, strict=True):
        again = http.post(path, body, headers={"Idempotency-Key": key, "Content-Type": "application/json"})
        assert (again.headers["Idempotency-Replayed"], again.json) == ("true", answer)
    assert len(read_all(served.bootstrap, topic)) == 41


def test_a_request_that_is_refused_does_not_take_those_with_it_that_share_its_transaction(
    served: Served, http: Http, topic: str
) -> None:
    http.post("/v1/topics", {"name": topic, "partitions": 1, "configs": {"cleanup.policy": "compact"}})
    keyed, keyless = of_values(30, key="k"), of_values(3)
    requests = [*keyed[:10], keyless[0], *keyed[10:20], keyless[1], *keyed[20:], keyless[2]]
    answers = at_once(served, f"/v1/topics/{topic}/records", requests)
    assert [status for status, _ in answers] == [422 if each in keyless else 200 for each in requests]
    assert sorted(each.value or b"" for each in read_all(served.bootstrap, topic)) == sorted(
        b"%d" % number for number in range(30)
    )


def test_requests_that_are_small_enough_alone_are_not_too_large_together(
    served: Served, http: Http, topic: str
) -> None:
    http.post("/v1/topics", {"name": topic, "partitions": 1, "configs": {"max.message.bytes": "1500"}})
    answers = at_once(served, f"/v1/topics/{topic}/records", of_values(30, headers=[{"name": "h", "value": "x" * 500}]))
    assert [status for status, _ in answers] == [200] * 30
    assert len({transaction(answer) for _, answer in answers}) < 30


# -- what is not known


WHERE = TopicPartition("keys", 0)
OURSELVES = Session("ourselves", 0)


class Bench:
    """A server's keys and sharing, without a cluster: what is written is only noted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.written: list[str] = []
        self.askers: list[object] = []
        self.begun: asyncio.Queue[None] = asyncio.Queue()
        self.tasks: list[asyncio.Task[None]] = []
        self.gate = asyncio.Event()
        self.hanging: set[str] = set()
        """Topics whose leader never answers."""
        self.failure: Problem | None = None
        env = SimpleNamespace(clock=SimpleNamespace(wall_ms=lambda: 1000), tasks=SimpleNamespace(spawn=self.spawn))
        gateway: Any = SimpleNamespace(env=env, needed_by=self.needed_by, own_session=OURSELVES)
        gateway.closing = asyncio.Event()
        self.sharing = gateway.sharing = Sharing(cast(Gateway, gateway))
        self.keys = Keys(cast(Gateway, gateway))
        partition = SimpleNamespace(leader_epoch=5, log=SimpleNamespace(end_offset=0))
        self.memory = self.keys._memories[0] = Memory(WHERE, cast(Any, partition))
        self.memory.is_loaded = True
        monkeypatch.setattr(Sharing, "_transact", self.transact)
        monkeypatch.setattr(service.web.sharing, "write_alone", self.alone)

    def needed_by(self, partitions: Sequence[TopicPartition]) -> frozenset[int]:
        return frozenset([2 if each.topic in self.hanging else 1 for each in partitions])

    def spawn(self, name: str, work: Any) -> asyncio.Task[None]:
        self.tasks.append(asyncio.ensure_future(work))
        return self.tasks[-1]

    async def transact(self, needs: frozenset[int], wishes: Sequence[Any]) -> list[BatchOut]:
        self.written.append(f"{len(wishes)} together")
        self.askers.append(ASKING.get())
        for offset, wish in enumerate(wishes):
            wish.seal.record(msgspec.json.encode(BatchOut("applied", [])))
            wish.seal.written(offset)
        self.begun.put_nowait(None)
        if 2 in needs:
            await asyncio.Event().wait()
        await self.gate.wait()
        if self.failure is not None:
            raise self.failure
        return [BatchOut("applied", []) for _ in wishes]

    async def alone(self, gateway: object, placed: PlacedRecords, *, seal: Any) -> BatchOut:
        self.written.append("one alone")
        self.askers.append(ASKING.get())
        seal.record(msgspec.json.encode(BatchOut("applied", [])))
        seal.written(7)
        return BatchOut("applied", [])

    def ask(self, key: str, topic: str = "t", headers: int = 0, asker: Session | None = None) -> asyncio.Task[Any]:
        placed = PlacedRecords({}, [])
        placed.add(TopicPartition(topic, 0), (None, b"x", (("h", b""),) * headers, 0))
        record = KeyRecord(self.keys, self.memory, key, "print")

        async def asked() -> object:
            ASKING.set(asker or OURSELVES)
            return await self.keys._write(record, lambda seal: self.sharing.write(placed, seal))

        return asyncio.ensure_future(asked())


def on_bench(monkeypatch: pytest.MonkeyPatch, scene: Callable[[Bench], Any]) -> None:
    async def play() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await scene(Bench(monkeypatch))

    asyncio.run(play())


@pytest.mark.parametrize(
    ("outcome", "told", "written"),
    [
        ("unknown", ["unknown", "unknown"], ["2 together"]),
        ("none", ["applied", "applied"], ["2 together", "one alone", "one alone"]),
    ],
)
def test_only_what_is_certain_not_to_be_there_is_written_again(
    monkeypatch: pytest.MonkeyPatch, outcome: Outcome, told: list[str], written: list[str]
) -> None:
    async def scene(bench: Bench) -> None:
        bench.failure = Problem("outcome-unknown", outcome=outcome)
        bench.gate.set()
        answers = await asyncio.gather(bench.ask("a"), bench.ask("b"), return_exceptions=True)
        assert [getattr(each, "outcome", None) or json.loads(cast(bytes, each))["outcome"] for each in answers] == told
        assert bench.written == written
        assert not bench.keys._under_way
        assert (bench.keys._memories == {}) == (outcome == "unknown")

    on_bench(monkeypatch, scene)


def test_a_request_whose_client_is_gone_keeps_its_key_until_it_is_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    """Were the key forgotten at once, the same request could be written again beside the first."""

    async def scene(bench: Bench) -> None:
        first, second = bench.ask("a"), bench.ask("b")
        await bench.begun.get()
        first.cancel()
        await asyncio.wait([first])
        assert len(bench.keys._under_way) == 2
        bench.gate.set()
        await second
        assert not bench.keys._under_way
        assert sorted(offset for offset, _ in bench.memory.offsets.values()) == [0, 1]

    on_bench(monkeypatch, scene)


def test_requests_wait_only_briefly_for_the_transaction_before_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(bench: Bench) -> None:
        loop = asyncio.get_running_loop()
        slow = [bench.ask("a"), bench.ask("b")]
        await bench.begun.get()
        began_s = loop.time()
        later = [bench.ask("c"), bench.ask("d"), bench.ask("e")]
        await bench.begun.get()
        assert loop.time() - began_s >= GATHERED_S / 2
        assert bench.written == ["2 together", "3 together"]
        bench.gate.set()
        await asyncio.gather(*slow, *later)
        while bench.sharing._queues:  # noqa: ASYNC110 - it ends by itself
            await asyncio.sleep(0.001)

    on_bench(monkeypatch, scene)


@pytest.mark.parametrize("waits", [False, True])
def test_who_is_answered_shares_the_next_transaction_with_those_that_wait(
    monkeypatch: pytest.MonkeyPatch, waits: bool
) -> None:
    """One began alone, and all others shared the transaction after it; or two halves took turns."""
    monkeypatch.setattr(service.web.sharing, "JOINED_S", 0.2)
    monkeypatch.setattr(service.web.sharing, "GATHERED_S", PATIENCE_S)

    async def scene(bench: Bench) -> None:
        first = [bench.ask("a"), bench.ask("b")]
        await bench.begun.get()
        next_ones = [bench.ask("c")] if waits else []
        bench.gate.set()
        await asyncio.gather(*first)
        next_ones.append(bench.ask("d"))
        await asyncio.sleep(0)
        next_ones.append(bench.ask("e"))
        await asyncio.gather(*next_ones)
        assert bench.written == ["2 together", f"{len(next_ones)} together"]

    on_bench(monkeypatch, scene)


def test_the_next_transaction_begins_when_all_that_were_answered_are_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service.web.sharing, "JOINED_S", 2 * PATIENCE_S)

    async def scene(bench: Bench) -> None:
        bench.gate.set()

        async def client(number: int) -> None:
            for each in range(3):
                await bench.ask(f"{number}-{each}")
                for _ in range(5 * number):
                    await asyncio.sleep(0)  # other clients' requests come in other turns of the loop

        await asyncio.gather(*map(client, range(4)))
        assert bench.written == ["4 together"] * 3

    on_bench(monkeypatch, scene)


def test_who_is_alone_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service.web.sharing, "JOINED_S", PATIENCE_S)

    async def scene(bench: Bench) -> None:
        for key in ("a", "b", "c"):
            await bench.ask(key)
        assert bench.written == ["one alone"] * 3

    on_bench(monkeypatch, scene)


def test_a_leader_that_never_answers_holds_up_only_what_needs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of these requests began a transaction of its own, until there were no more for anybody."""

    async def scene(bench: Bench) -> None:
        bench.hanging.add("far")
        bench.gate.set()
        hung = []
        for number in range(3 * GROUPS_MAX):
            hung += [bench.ask(f"{number}-{each}", "far") for each in range(2)]
            await asyncio.sleep(2 * GATHERED_S)
        assert len(bench.written) == GROUPS_MAX
        await asyncio.gather(bench.ask("a"), bench.ask("b"))
        waiting = bench.sharing._queues[frozenset([1, 2])].wishes
        assert len(waiting) == 2 * (3 - 1) * GROUPS_MAX
        for wish in waiting:
            wish.came_s -= 31
        for task in bench.tasks[:1]:
            task.cancel()
        for each in hung[2 * GROUPS_MAX :]:
            with pytest.raises(Problem) as told:
                await each
            assert (told.value.slug, told.value.outcome) == ("not-now", "none")
        for task in bench.tasks:
            task.cancel()
        await asyncio.gather(*hung, return_exceptions=True)

    on_bench(monkeypatch, scene)


def test_who_has_waited_for_long_is_not_given_the_refusal_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(bench: Bench) -> None:
        bench.failure = Problem("invalid-record")
        asked = [bench.ask("a"), bench.ask("b")]
        await bench.begun.get()
        monkeypatch.setattr(service.web.sharing, "TIMEOUT_S", -1.0)
        bench.gate.set()
        for each in asked:
            with pytest.raises(Problem) as told:
                await each
            assert (told.value.slug, told.value.outcome) == ("not-now", "none")
        assert bench.written == ["2 together"]

    on_bench(monkeypatch, scene)


def test_requests_with_many_headers_share_with_fewer_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixty of these took a turn of 18 ms."""

    async def scene(bench: Bench) -> None:
        bench.gate.set()
        await asyncio.gather(*(bench.ask(f"{number}", headers=700) for number in range(40)))
        assert bench.written == ["8 together"] * 5

    on_bench(monkeypatch, scene)


def test_what_is_shared_is_done_in_nobodys_name_and_what_is_alone_in_its_clients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scene(bench: Bench) -> None:
        bench.failure = Problem("invalid-record")
        bench.gate.set()
        alice, bob = Session("alice", 1), Session("bob", 2)
        await asyncio.gather(bench.ask("a", asker=alice), bench.ask("b", asker=bob))
        assert bench.askers == [OURSELVES, alice, bob]

    on_bench(monkeypatch, scene)


def test_a_pool_of_transactions_has_room_for_others_while_a_broker_hangs() -> None:
    async def scene() -> None:
        async with asyncio.timeout(PATIENCE_S):
            pool = ProducerPool(cast(Gateway, SimpleNamespace(node_id=1)))
            forever = asyncio.Event()

            async def hang() -> None:
                async with pool._share_of(frozenset([1, 2])):
                    await forever.wait()

            hung = [asyncio.ensure_future(hang()) for _ in range(2 * PRODUCERS_MAX)]
            await asyncio.sleep(0.01)
            async with pool._share_of(frozenset([1, 3])):
                pass
            forever.set()
            await asyncio.gather(*hung)
            assert not pool._rooms

    asyncio.run(scene())

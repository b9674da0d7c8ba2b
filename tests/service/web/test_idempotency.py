"""Requests that are repeated with their Idempotency-Key, also over the death of the broker."""

from __future__ import annotations

import asyncio
import json
import random
import re
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

import service.web.idempotency
from isolation.aborted import AbortedRange
from log.batch import build_plain_batch, read_header, restamp
from log.config import LogConfig
from log.control import ControlType, build_marker
from log.disk import Disk, DiskFault
from log.ids import ProducerId, TopicPartition
from log.partition_log import PartitionLog
from service.broker.internal_topics import HTTP_KEYS
from service.ports import RealEnv
from service.web.app import _told
from service.web.idempotency import (
    FORGOTTEN_AT_ONCE,
    IS_NEW,
    LEARNT_AT_ONCE_BYTES,
    Keys,
    Memory,
    Remembered,
    _digest,
)
from service.web.problems import Problem
from tests.log.memory_disk import MemoryDisk
from tests.service.web.kit import PATIENCE_S, ROOT, Answer, Http, Served, read_all, turns_of

BODY = {"records": [{"value": 1}, {"value": 2}]}


def post(http: Http, topic: str, key: str, body: Any = None, path: str = "/v1/topics/{}/records") -> Answer:
    return http.post(path.format(topic), body or BODY, headers={"Idempotency-Key": key})


def fresh() -> str:
    return f'"{uuid.uuid4()}"'


def test_the_answer_has_the_same_form_with_a_key_and_without(http: Http, topic: str) -> None:
    """With a key each place named the topic, and the answer as a whole did not."""
    for path, body in (
        (f"/v1/topics/{topic}/records", {"records": [{"value": 1}]}),
        ("/v1/records", {"records": [{"topic": topic, "value": 1}]}),
    ):
        without, keyed = (
            http.post(path, body, headers=headers).json for headers in ({}, {"Idempotency-Key": f'"form-of-{path}"'})
        )
        assert keyed.pop("transaction")
        assert (keyed.keys(), keyed["results"][0].keys()) == (without.keys(), without["results"][0].keys())


def test_a_repeated_request_is_given_the_first_answer_and_writes_nothing(
    served: Served, http: Http, topic: str
) -> None:
    key = fresh()
    first, again = post(http, topic, key), post(http, topic, key)
    assert (first.status, again.status) == (200, 200), first
    assert first.json == again.json
    assert "Idempotency-Replayed" not in first.headers
    assert again.headers["Idempotency-Replayed"] == "true"
    assert len(read_all(served.bootstrap, topic)) == 2
    bare = key.strip('"')
    assert post(http, topic, bare).headers["Idempotency-Replayed"] == "true"


def test_as_many_records_as_a_body_may_have_are_written_with_a_key(http: Http, topic: str) -> None:
    """Their places are in the key's record. With times of their own these were more than a batch may have."""
    chance = random.Random(1)
    records = [{"value": 1, "timestamp": chance.randrange(2**39, 2**40)} for _ in range(100_000)]
    body, key = json.dumps({"records": records}).encode(), {"Idempotency-Key": f'"many-{topic}"'}
    first, again = (
        http.post(f"/v1/topics/{topic}/records", body, headers={"Content-Type": "application/json", **key})
        for _ in range(2)
    )
    assert first.status == 200, first.json["detail"]
    assert len(first.json["results"]) == 100_000
    assert (again.headers["Idempotency-Replayed"], again.json) == ("true", first.json)


def test_a_key_belongs_to_one_request(served: Served, http: Http, topic: str) -> None:
    key = fresh()
    assert post(http, topic, key).status == 200
    for answer in (post(http, topic, key, {"records": [{"value": 3}]}), post(http, f"{topic}-b", key)):
        assert (answer.status, answer.json["type"], answer.json["outcome"]) == (422, "/problems/key-reused", "none")
    assert len(read_all(served.bootstrap, topic)) == 2


@pytest.mark.parametrize(
    "parameters",
    [";p", ";p=1", ";a=1.5; b=tok/en;c=?0", ';*x-1="a;\\"b"', ";p=:AAE=:", ";p=@1659578233", ';p=%"f%c3"', "  "],
)
def test_parameters_are_no_part_of_a_key(http: Http, topic: str, parameters: str) -> None:
    """A valid item of structured fields was refused."""
    key = fresh()
    first, again, other = (post(http, topic, each) for each in (key, key + parameters, key + parameters))
    assert first.json == again.json == other.json, again
    assert again.headers["Idempotency-Replayed"] == "true"


@pytest.mark.parametrize("key", ["order;a", "order; a", "order;a=1", "order;"])
def test_a_key_without_quotes_has_no_parameters(served: Served, http: Http, topic: str, key: str) -> None:
    """`order;a` and `order;b` were one key: what came second was told as written, and was not."""
    assert http.post("/v1/topics", {"name": topic}).status == 201
    answer = post(http, topic, key)
    assert (answer.status, answer.json["type"]) == (400, "/problems/bad-key")
    assert read_all(served.bootstrap, topic) == []


PRODUCED_V2, PRODUCED_V3 = {"records": [{"value": 1}]}, {"value": {"type": "JSON", "data": 1}}


@pytest.mark.parametrize(
    ("method", "path", "body", "media"),
    [
        ("POST", "/topics/{topic}", PRODUCED_V2, "application/vnd.kafka.json.v2+json"),
        ("POST", "/topics/{topic}/partitions/0", PRODUCED_V2, "application/vnd.kafka.json.v2+json"),
        ("POST", "/v3/clusters/{cluster}/topics/{topic}/records", PRODUCED_V3, "application/json"),
        ("POST", "/v3/clusters/{cluster}/topics/{topic}/records:batch", {"entries": [{"id": "1"}]}, "application/json"),
        ("POST", "/v1/topics/{topic}/records", {"value": 1}, "application/x-ndjson"),
        ("POST", "/v1/transactions", {"transactional_id": "{topic}"}, "application/json"),
        ("PATCH", "/v1/topics/{topic}/configs", {"configs": {"retention.ms": "1"}}, "application/json"),
        ("DELETE", "/v1/topics/{topic}", None, "application/json"),
        ("POST", "/v1/topics", {"name": "{topic}-more"}, "application/json"),
    ],
)
def test_a_key_that_is_not_honoured_is_refused_and_nothing_is_done(
    served: Served, http: Http, topic: str, method: str, path: str, body: Any, media: str
) -> None:
    """It was ignored: what was sent twice was written twice."""
    assert http.post("/v1/topics", {"name": topic}).status == 201
    before = http.get(f"/v1/topics/{topic}/configs").json
    cluster = http.get("/v3/clusters").json["data"][0]["cluster_id"]
    content = None if body is None else json.dumps(body).replace("{topic}", topic)
    headers = {"Content-Type": media, "Idempotency-Key": fresh()}
    answer = http.ask(method, path.format(topic=topic, cluster=cluster), content, headers=headers)
    assert answer.status == 400, answer
    assert "Idempotency-Key" in str(answer.json)
    assert read_all(served.bootstrap, topic) == []
    assert http.get(f"/v1/topics/{topic}/configs").json == before
    assert f"{topic}-more" not in str(http.get("/v1/topics").json)
    assert topic not in str(http.get("/v1/transactions").json)


def test_where_nothing_changes_a_key_means_nothing(http: Http, topic: str) -> None:
    assert post(http, topic, fresh()).status == 200
    for method in ("GET", "HEAD"):
        path = f"/v1/topics/{topic}/partitions/0/records"
        assert http.ask(method, path, headers={"Idempotency-Key": fresh()}).status == 200
    assert http.ask("OPTIONS", f"/v1/topics/{topic}/events", headers={"Idempotency-Key": fresh()}).status == 200


def test_every_operation_that_changes_something_lists_the_key_or_refuses_it(http: Http) -> None:
    """Those that list it are all in the document of the API, and in docs/http.md."""
    document = http.get("/openapi.json").json
    listing = {
        (method.upper(), path)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
        if any(each["name"] == "Idempotency-Key" for each in operation["parameters"])
    }
    assert listing == {
        ("POST", "/v1/records"),
        ("POST", "/v1/topics/{topic}/records"),
        ("PUT", "/v1/topics/{topic}/records"),
        ("POST", "/v1/topics/{topic}/events"),
    }
    for method, path in sorted(listing):
        assert f"`{path}`" in (ROOT / "docs" / "http.md").read_text(), (method, path)
    for path, methods in document["paths"].items():
        for method in methods.keys() - {"get", "options"}:
            if (method.upper(), path) in listing or path.endswith(":find-hanging"):
                continue
            filled = re.sub(r"\{\w+\}", "1", path)
            answer = http.ask(method.upper(), filled, b"{}", headers={"Idempotency-Key": '"x"'})
            assert (answer.status, "Idempotency-Key" in str(answer.json)) == (400, True), (method, filled, answer)


@pytest.mark.parametrize(
    "key",
    ['"', '""', "two words", '"' + "x" * 300 + '"', '"\xe4"', '"a";', '"a";P=1', '"a" ;p=1', '"a", "b"', '"a";p='],
)
def test_a_key_that_is_none_is_refused(http: Http, topic: str, key: str) -> None:
    answer = post(http, topic, key.encode("latin-1"))  # type: ignore[arg-type]
    assert (answer.status, answer.json["type"]) == (400, "/problems/bad-key")


def test_a_request_that_was_refused_may_be_sent_again_mended(http: Http, topic: str) -> None:
    key = fresh()
    assert post(http, topic, key, {"records": [{"partition": 99}]}).status == 404
    assert post(http, topic, key).status == 200


def test_of_twins_at_the_same_time_one_is_applied(served: Served, topic: str) -> None:
    key = fresh()
    answers: list[Answer] = []
    start = threading.Barrier(8)

    def one() -> None:
        client = Http(served.url)
        start.wait()
        answers.append(post(client, topic, key))
        client.session.close()

    threads = [threading.Thread(target=one) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {answer.status for answer in answers} <= {200, 409}
    assert len({str(answer.json) for answer in answers if answer.status == 200}) == 1
    assert all(answer.headers["Retry-After"] for answer in answers if answer.status == 409)
    assert len(read_all(served.bootstrap, topic)) == 2


def test_a_key_outlives_the_death_of_the_broker_at_any_moment(tmp_path: Path) -> None:
    """Clients repeat blindly, with the same keys, while the broker is killed again and again."""
    served = Served(tmp_path / "data")
    url = [served.url]
    rounds = 40
    done: dict[int, Any] = {}
    wrong: list[Any] = []
    ready = threading.Event()
    ready.set()

    def client(first: int) -> None:
        for number in range(first, rounds, 4):
            body = {"records": [{"topic": f"t{each}", "value": number} for each in range(2)]}
            key = f'"key-{number}"'
            while True:
                ready.wait()
                connection = Http(url[0])
                try:
                    answer = post(connection, "", key, body, "/v1/records")
                except OSError:
                    continue
                finally:
                    connection.session.close()
                if answer.status == 200:
                    done[number] = answer.json
                    break
                if answer.status not in (409, 503, 504):
                    wrong.append(answer)
                    return

    threads = [threading.Thread(target=client, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    for kill in range(4):
        while len(done) < 5 + 8 * kill and not wrong:
            threading.Event().wait(0.002)
        ready.clear()
        served.kill()
        served.start()
        url[0] = served.url
        ready.set()
    for thread in threads:
        thread.join()
    http = Http(served.url)
    try:
        assert not wrong
        for topic in ("t0", "t1"):
            numbers = sorted(int(each.value or b"") for each in read_all(served.bootstrap, topic))
            assert numbers == list(range(rounds)), "each was applied once"
        for number, answer in done.items():
            body = {"records": [{"topic": f"t{each}", "value": number} for each in range(2)]}
            again = post(http, "", f'"key-{number}"', body, "/v1/records")
            assert (again.headers.get("Idempotency-Replayed"), again.json) == ("true", answer)
    finally:
        http.session.close()
        served.stop()
    assert "Traceback" not in served.log, served.log


@pytest.mark.parametrize(
    ("path", "headers", "changed"),
    [
        ("/v1/topics/{}/events", {"ce-id": "1", "ce-source": "s", "ce-type": "t", "ce-specversion": "1.0"}, "ce-id"),
        (
            "/v1/topics/{}/records",
            {"Content-Type": "application/octet-stream", "Record-Header-a": "1"},
            "Record-Header-a",
        ),
    ],
)
def test_headers_that_are_written_belong_to_the_request_of_a_key(
    http: Http, topic: str, path: str, headers: dict[str, str], changed: str
) -> None:
    headers = {**headers, "Idempotency-Key": fresh()}
    assert http.post(path.format(topic), b"x", headers=headers).status == 200
    again = http.post(path.format(topic), b"x", headers=headers)
    assert (again.status, again.headers["Idempotency-Replayed"]) == (200, "true")
    other = http.post(path.format(topic), b"x", headers={**headers, changed: "2"})
    assert (other.status, other.json["type"]) == (422, "/problems/key-reused")


def test_an_event_is_the_same_however_its_headers_are_written_and_ordered(http: Http, topic: str) -> None:
    """What stands between may write the names of headers in capitals, or in another order: the event is the same."""
    attributes = {"id": "1", "source": "s", "type": "t", "specversion": "1.0"}
    key = {"Idempotency-Key": fresh()}
    lower = {f"ce-{name}": each for name, each in attributes.items()}
    forms = (lower, {f"Ce-{name.title()}": each for name, each in attributes.items()}, dict(reversed(lower.items())))
    answers = [http.post(f"/v1/topics/{topic}/events", b"x", headers={**form, **key}) for form in forms]
    assert [each.status for each in answers] == [200] * 3, answers
    assert [each.headers.get("Idempotency-Replayed") for each in answers] == [None, "true", "true"]
    other = http.post(f"/v1/topics/{topic}/events", b"x", headers={**lower, "ce-id": "s", "ce-source": "1", **key})
    assert (other.status, other.json["type"]) == (422, "/problems/key-reused")


def test_the_order_and_the_letters_of_a_records_headers_belong_to_its_request(http: Http, topic: str) -> None:
    headers = {"Content-Type": "application/octet-stream", "Idempotency-Key": fresh()}
    pair = {"Record-Header-a": "1", "Record-Header-b": "2"}
    path = f"/v1/topics/{topic}/records"
    assert http.post(path, b"x", headers={**headers, **pair}).status == 200
    for others in dict(reversed(pair.items())), {"Record-Header-A": "1", "Record-Header-b": "2"}:
        assert http.post(path, b"x", headers={**headers, **others}).status == 422


# -- what was written before


WHERE = TopicPartition(HTTP_KEYS.name, 0)


def log_of_keys(keys: int, first_ms: int = 10**12) -> PartitionLog:
    """Each key has a batch of its own and a marker, as if its request came alone; one comes a millisecond."""
    log = PartitionLog.open(MemoryDisk(), "keys-0", LogConfig(), (), known=None, now_ms=0)
    for number in range(keys):
        record = msgspec.json.encode(Remembered("print", msgspec.Raw(b'{"outcome":"applied"}')))
        offset, ms = 2 * number, first_ms + number
        batch = build_plain_batch([(b"%d" % number, record)], ms, producer_id=7, producer_epoch=0, base_sequence=number)
        restamp(batch, base_offset=offset, leader_epoch=0)
        marker = build_marker(
            ControlType.ABORT if number % 10 == 9 else ControlType.COMMIT, producer_id=7, producer_epoch=0,
            coordinator_epoch=0, timestamp_ms=ms, base_offset=offset + 1, leader_epoch=0,
        )  # fmt: skip
        for each in batch, marker:
            log.append(each, read_header(each), now_ms=0)
    return log


class Led:
    """A partition of keys that this broker leads, without a cluster; every tenth key was aborted."""

    def __init__(self, log: PartitionLog) -> None:
        self.log, self.stable = log, self
        self.is_leading, self.leader_epoch, self.last_stable_offset = True, 1, log.end_offset
        self.failures: list[object] = []
        self.unreadable = self.failures.append

    def aborted_ranges(self, first: int, end: int) -> Iterator[AbortedRange]:
        return (AbortedRange(ProducerId(7), at, at + 1) for at in range(18, end, 20) if at + 1 >= first)


def beside(partitions: dict[TopicPartition, Any], now_ms: int = 10**12, kept_ms: int = 10**9) -> Any:
    """What keys need of a gateway. Its clock can be set."""
    env = RealEnv(cast(Disk, None))
    env.clock = cast(Any, SimpleNamespace(wall_ms=lambda: gateway.now_ms))
    config = SimpleNamespace(http_idempotency_retention_ms=kept_ms)
    topic = SimpleNamespace(partitions=[*partitions.values()])
    gateway: Any = SimpleNamespace(env=env, config=config, partitions=partitions, topic=lambda _: topic, now_ms=now_ms)
    gateway.closing = asyncio.Event()
    return gateway


def digest_of(number: int) -> bytes:
    return _digest(b"%d" % number)


def test_keys_that_all_became_old_are_forgotten_a_few_with_each_request() -> None:
    """A day after a night's import its 100,000 keys were forgotten in one turn of the loop, in 1.5 seconds."""
    partition = Led(log_of_keys(0))
    gateway = beside({WHERE: partition}, now_ms=0)
    known = Memory(WHERE, cast(Any, partition))
    known.is_loaded = True
    for number in range(20_000):
        known.note(digest_of(number), number, 0)
    gateway.now_ms = 10**12
    before_s = time.thread_time()
    known.forget_old(gateway)
    assert len(known.offsets) == 20_000 - FORGOTTEN_AT_ONCE
    assert known.find(gateway, digest_of(19_999)) is None, "its time is over though it is not forgotten"
    for _ in range(100):
        known.forget_old(gateway)
    assert not known.offsets
    assert time.thread_time() - before_s < 0.5


def test_the_keys_of_all_partitions_are_learnt_in_short_turns_of_the_loop() -> None:
    """After a restart the partitions were read side by side, a thousand records of each in one turn: nobody was served
    for most of a second.
    """
    log, kept = log_of_keys(3000), list[Memory]()
    partition = Led(log)
    gateway = beside({WHERE: partition})
    kept += (Memory(WHERE, cast(Any, partition)) for _ in range(16))

    async def learn() -> None:
        await asyncio.wait([each.learning(gateway) for each in kept])

    slices = sum(header.size_bytes for header in log.headers(0, log.end_offset)) // LEARNT_AT_ONCE_BYTES
    assert turns_of(learn()) >= 16 * slices > 100
    expected = {digest_of(number): (2 * number, 10**12 + number) for number in range(3000) if number % 10 != 9}
    assert all(each.is_loaded and each.offsets == expected for each in kept)


def test_keys_whose_time_is_over_are_not_learnt() -> None:
    partition = Led(log_of_keys(3000))
    gateway = beside({WHERE: partition}, now_ms=10**12 + 3000, kept_ms=100)
    known = Memory(WHERE, cast(Any, partition))

    async def learn() -> None:
        await known.learning(gateway)

    asyncio.run(learn())
    assert min(known.offsets.values()) == (5800, 10**12 + 2900)
    assert len(known.offsets) == 90


def test_who_asks_for_a_key_waits_for_a_limited_time_while_the_keys_are_learnt(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time was looked at only before the log was read: a request waited for as long as that took."""
    partition = Led(log_of_keys(10))
    keys, go_on, begun = Keys(beside({WHERE: partition})), asyncio.Event(), 0
    read = Memory._read
    monkeypatch.setattr(service.web.idempotency, "TIMEOUT_S", 0.05)

    async def slow(known: Memory, gateway: Any) -> None:
        nonlocal begun
        begun += 1
        await go_on.wait()
        await read(known, gateway)

    monkeypatch.setattr(Memory, "_read", slow)

    async def scene() -> None:
        for _ in range(2):
            async with asyncio.timeout(PATIENCE_S):
                with pytest.raises(Problem) as refused:
                    await keys._memory("k")
            assert (refused.value.kind.status, refused.value.outcome) == (503, "unknown"), "it may be a repetition"
        go_on.set()
        known = await keys._memory("k")
        assert (len(known.offsets), begun) == (9, 1), "they are learnt once, though nobody waits"

    asyncio.run(scene())


def test_keys_are_learnt_anew_after_the_log_could_not_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    partition = Led(log_of_keys(10))
    keys, read = Keys(beside({WHERE: partition})), PartitionLog.read
    faults = [DiskFault(5, "not now", "keys-0")]

    def faulty(log: PartitionLog, offset: int, **how: Any) -> Any:
        if faults:
            raise faults.pop()
        return read(log, offset, **how)

    monkeypatch.setattr(PartitionLog, "read", faulty)

    async def scene() -> None:
        assert len((await keys._memory("k")).offsets) == 9

    asyncio.run(scene())
    assert len(partition.failures) == 1


def rot(log: PartitionLog, offset: int, before: bytes, after: bytes) -> None:
    """Other bytes stand in the stored batch at this offset, for the first of these."""
    stored = log.read(offset, max_bytes=0, limit_offset=log.end_offset, at_least_one=True)
    assert stored is not None
    at = stored.position + stored.read().index(before)
    cast(Any, stored.file).node.data[at : at + len(before)] = after


@pytest.mark.parametrize("unpacked_at_once", [1, 64 << 10])
def test_no_key_is_answered_for_while_one_has_rotted(monkeypatch: pytest.MonkeyPatch, unpacked_at_once: int) -> None:
    """No checksum was looked at: the key was another one, and the request that was repeated was written once more."""
    monkeypatch.setattr(service.web.idempotency, "UNPACKED_AT_ONCE_BYTES", unpacked_at_once)
    log = log_of_keys(1000)
    rot(log, 1600, b"800", b"80Z")
    partition = Led(log)
    keys = Keys(beside({WHERE: partition}))

    async def refused() -> Problem:
        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises(Problem) as refusal:
                await keys._memory("k")
        return refusal.value

    async def scene() -> None:
        for _ in range(3):
            problem = await refused()
            assert (problem.kind.status, problem.outcome) == (503, "unknown"), "it may be a repetition"
            assert "__http_idempotency partition 0" in str(problem.detail)
        assert keys.claim(0, "80Z", b"asked", b"") is None
        assert [str(each) for each in partition.failures] == ["the checksum of the batch at offset 1600 is wrong"]
        rot(log, 1600, b"80Z", b"800")
        known = await keys._memory("k")
        expected = {digest_of(number): (2 * number, 10**12 + number) for number in range(1000) if number % 10 != 9}
        assert list(known.offsets.items()) == list(expected.items()), "learning goes on where it failed"

    asyncio.run(scene())


@pytest.mark.parametrize("unpacked_at_once", [1, 64 << 10])
def test_an_answer_that_has_rotted_is_not_given(monkeypatch: pytest.MonkeyPatch, unpacked_at_once: int) -> None:
    monkeypatch.setattr(service.web.idempotency, "UNPACKED_AT_ONCE_BYTES", unpacked_at_once)
    log = log_of_keys(10)
    partition = Led(log)
    keys = Keys(beside({WHERE: partition}))

    async def scene() -> None:
        known = await keys._memory("4")
        rot(log, 8, b"applied", b"implied")
        with pytest.raises(Problem) as refused:
            await known.recall(keys._gateway, 8, "4")
        assert (refused.value.kind.status, refused.value.outcome) == (503, "unknown")

    asyncio.run(scene())
    assert len(partition.failures) == 1


@pytest.mark.parametrize("value", [b'{"answer":{}}', b'{"fingerprint":1,"answer":{}}', b"\xff", b'{"finger'])
def test_a_record_that_is_none_of_a_key_is_no_answer(value: bytes) -> None:
    """The request failed with a traceback, and 500."""
    log = log_of_keys(0)
    batch = build_plain_batch([(b"4", value)], 10**12)
    log.append(batch, read_header(batch), now_ms=0)
    partition = Led(log)
    gateway = beside({WHERE: partition})

    async def scene() -> None:
        with pytest.raises(Problem) as refused:
            await Memory(WHERE, cast(Any, partition)).recall(gateway, 0, "4")
        assert (refused.value.kind.status, refused.value.outcome) == (503, "unknown")

    asyncio.run(scene())
    assert len(partition.failures) == 1


def test_a_key_that_is_written_while_the_older_ones_are_learnt_is_the_newest() -> None:
    """It was the first: until its time was over, no older one was forgotten."""
    partition = Led(log_of_keys(3000))
    gateway = beside({WHERE: partition}, now_ms=10**12 + 3000, kept_ms=10_000)
    known = Memory(WHERE, cast(Any, partition))

    async def scene() -> None:
        learning = known.learning(gateway)
        await asyncio.sleep(0)
        known.note(digest_of(-1), 10**6, gateway.now_ms + 5000)
        known.note(digest_of(2998), 4, 0)
        await learning

    asyncio.run(scene())
    assert len(known.offsets) == 2701
    assert known.offsets[digest_of(2998)] == (5996, 10**12 + 2998), "the higher offset counts"
    gateway.now_ms = 10**12 + 14_000
    for _ in range(14):
        known.forget_old(gateway)
    assert [*known.offsets] == [digest_of(-1)]


@pytest.mark.parametrize("is_forwarded", [False, True])
def test_nothing_is_kept_of_keys_that_are_led_elsewhere(monkeypatch: pytest.MonkeyPatch, is_forwarded: bool) -> None:
    """A million keys of a partition that had moved away were kept for ever."""
    partitions = {WHERE._replace(partition=index): Led(log_of_keys(3000)) for index in range(2)}
    gateway = beside(cast(Any, partitions))
    keys, names = Keys(gateway), [str(number) for number in range(100)]
    of = {HTTP_KEYS.partition_of(each, 2): each for each in names}

    async def elsewhere(*_: object) -> Any:
        return 2

    gateway.coordinator, gateway.node_id = elsewhere, 1
    monkeypatch.setattr(service.web.idempotency, "forward", elsewhere)

    async def scene() -> None:
        lost = await keys._memory(of[0])
        assert len(lost.offsets) == 2700
        partitions[WHERE].is_leading = False
        if is_forwarded:
            await keys.serve(make_mocked_request("POST", "/", headers={"Idempotency-Key": "k"}), b"", cast(Any, None))
            assert not keys._memories
        else:
            await keys._memory(of[1])
            assert [*keys._memories] == [1]
        for _ in range(20):
            await asyncio.sleep(0)
        assert not lost.offsets

    asyncio.run(scene())


def test_a_server_that_stops_begins_no_task_for_keys_that_it_forgets() -> None:
    """A request that was cut off last began one after all tasks had been ended: it was destroyed while it waited."""
    keys = Keys(beside({WHERE: Led(log_of_keys(3000))}))

    async def scene() -> None:
        await keys._memory("k")
        keys._gateway.closing.set()
        keys._drop(0)
        assert not keys._memories
        assert [*asyncio.all_tasks()] == [asyncio.current_task()]

    asyncio.run(scene())


@pytest.mark.parametrize("problem", [Problem("not-now"), Problem("too-slow"), Problem("not-enough-replicas")])
def test_a_repetition_that_is_held_up_does_not_say_that_nothing_was_applied(problem: Problem) -> None:
    """A broker that was not ready told it so, though the first request had been applied."""
    told = []
    for method, key, is_new in ("POST", "k", False), ("PUT", "k", False), ("POST", "k", True), ("POST", "", False):
        problem.outcome = "none"
        request = make_mocked_request(method, "/v1/records", headers={"Idempotency-Key": key} if key else {})
        if is_new:
            request[IS_NEW] = True
        answer = _told(request, problem)
        assert isinstance(answer, web.Response)
        told.append(json.loads(cast(bytes, answer.body))["outcome"])
    assert told == ["unknown", "unknown", "none", "none"]


def test_a_request_that_waited_for_a_memory_that_was_dropped_meanwhile_asks_the_next_one() -> None:
    """A write that failed drops the memory of its keys' partition, also while requests wait for their turn to use it. A
    repeat that went on with the dropped one would not know what was written since, and be written once more.
    """
    partition = Led(log_of_keys(0))
    keys = Keys(beside({WHERE: partition}))

    async def scene() -> None:
        first = Memory(WHERE, cast(Any, partition))
        keys._memories[0] = first
        waiting = asyncio.create_task(keys._memory("k"))
        await asyncio.sleep(0)
        learning = first.learning(keys._gateway)
        keys._drop(0)
        second = keys._memories[0] = Memory(WHERE, cast(Any, partition))
        first.is_loaded = True
        assert await waiting is second
        assert learning.cancelled(), "nobody needs it any more"

    asyncio.run(scene())


@pytest.mark.parametrize("what", ["raw", "file", "event"])
def test_a_repeated_request_is_answered_as_before_whatever_its_topic_is_by_now(
    served: Served, http: Http, topic: str, what: str
) -> None:
    """It was looked at first: where its partition is gone it was told that nothing had been written; and where the
    topic is gone, that was made again.
    """
    headers = {"Idempotency-Key": fresh(), "Content-Type": "application/octet-stream"}
    path, method = f"/v1/topics/{topic}/records?partition=2", "PUT" if what == "file" else "POST"
    if what == "event":
        path = f"/v1/topics/{topic}/events"
        headers |= {"ce-id": "1", "ce-source": "s", "ce-type": "t", "ce-specversion": "1.0"}
    assert http.post("/v1/topics", {"name": topic, "partitions": 3}).status == 201
    first = http.ask(method, path, b"abc", headers=headers)
    assert (first.status, first.json["outcome"]) == (200, "applied")
    for partitions in 1, 0:
        assert http.delete(f"/v1/topics/{topic}").status == 204
        if partitions:
            assert http.post("/v1/topics", {"name": topic, "partitions": partitions}).status == 201
        again = http.ask(method, path, b"abc", headers=headers)
        assert (again.status, again.headers["Idempotency-Replayed"], again.json) == (200, "true", first.json)
    assert http.get(f"/v1/topics/{topic}").status == 404

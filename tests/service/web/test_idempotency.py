"""Requests that are repeated with their Idempotency-Key, also over the death of the broker."""

from __future__ import annotations

import asyncio
import threading
import uuid
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from log.ids import TopicPartition
from service.broker.internal_topics import HTTP_KEYS
from service.web.idempotency import Keys, Memory
from tests.service.web.kit import Answer, Http, Served, read_all

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


def test_a_key_belongs_to_one_request(served: Served, http: Http, topic: str) -> None:
    key = fresh()
    assert post(http, topic, key).status == 200
    for answer in (post(http, topic, key, {"records": [{"value": 3}]}), post(http, f"{topic}-b", key)):
        assert (answer.status, answer.json["type"], answer.json["outcome"]) == (422, "/problems/key-reused", "none")
    assert len(read_all(served.bootstrap, topic)) == 2


@pytest.mark.parametrize("key", ['"', '""', "two words", '"' + "x" * 300 + '"', '"\xe4"'])
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


def test_a_request_that_waited_for_a_memory_that_was_dropped_meanwhile_asks_the_next_one() -> None:
    """A write that failed drops the memory of its keys' partition, also while requests wait for their turn to use it. A
    repeat that went on with the dropped one would not know what was written since, and be written once more.
    """
    where = TopicPartition(HTTP_KEYS.name, 0)
    log = SimpleNamespace(start_offset=0, end_offset=0, scan=lambda *_: iter(()))
    stable = SimpleNamespace(aborted=lambda *_: [])
    partition: Any = SimpleNamespace(is_leading=True, leader_epoch=1, last_stable_offset=0, log=log, stable=stable)
    topic = SimpleNamespace(partitions=[partition])
    gateway: Any = SimpleNamespace(topic=lambda _: topic, partitions={where: partition})

    async def scene() -> None:
        keys, dropped = Keys(gateway), Memory(where, partition)
        keys._memories[0] = dropped
        await dropped._loading.acquire()
        waiting = asyncio.create_task(keys._memory("k"))
        await asyncio.sleep(0)
        dropped._is_loaded = True
        keys._memories[0] = Memory(where, partition)
        dropped._loading.release()
        assert await waiting is keys._memories[0]

    asyncio.run(scene())

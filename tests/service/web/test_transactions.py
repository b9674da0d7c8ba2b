"""Transactions as resources, over real HTTP."""

from __future__ import annotations

import asyncio
import re
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import requests
from confluent_kafka import Producer

from log.ids import TopicPartition
from service.client.cluster import Cluster
from service.client.groups import commit_offsets
from service.client.pool import parse_addresses
from service.client.transactions import TransactionState, find_transaction
from service.web import groups, transactions
from service.web.problems import Problem
from service.web.transactions import Name, OpenTransactions, _seen
from tests.service.cli.kit import oncelog
from tests.service.web.kit import PATIENCE_S, Answer, Http, Served, read_all
from tests.service.web.pipes import Server
from tests.service.web.test_cuts import at_server
from txn.states import State, Txn


def begin(http: Http, transactional_id: str, **more: Any) -> str:
    answer = http.post("/v1/transactions", {"transactional_id": transactional_id, **more})
    assert answer.status == 201, answer
    assert answer.headers["Location"] == f"/v1/transactions/{answer.json['txn']}"
    location: str = answer.headers["Location"]
    return location


def put(http: Http, txn: str, number: int, *records: dict[str, Any]) -> Answer:
    return http.put(f"{txn}/batches/{number}", {"records": list(records)})


def values(served: Served, topic: str) -> list[bytes | None]:
    return [each.value for each in read_all(served.bootstrap, topic)]


def test_what_is_written_shows_after_the_commit_and_all_at_once(served: Served, http: Http, topic: str) -> None:
    other = f"{topic}-b"
    txn = begin(http, topic)
    first = put(http, txn, 0, {"topic": topic, "value": 0}, {"topic": other, "value": 1})
    assert (first.status, first.json["outcome"]) == (200, "none"), first
    assert put(http, txn, 1, {"topic": topic, "value": 2}).status == 200
    state = http.get(txn).json
    assert (state["state"], state["outcome"], state["next_batch"]) == ("Ongoing", "none", 2)
    assert values(served, topic) == []
    offsets = {"offsets": [{"topic": topic, "partition": 0, "offset": 7}]}
    told = http.put(f"{txn}/offsets/group-{topic}", offsets)
    assert (told.status, told.json) == (200, {"outcome": "none"})
    for _ in range(2):
        answer = http.post(f"{txn}:commit")
        assert (answer.status, answer.json["state"], answer.json["outcome"]) == (200, "CompleteCommit", "applied")
    assert values(served, topic) == [b"0", b"2"]
    assert values(served, other) == [b"1"]
    assert http.get(f"/v1/groups/group-{topic}/offsets").json["offsets"][0]["offset"] == 7
    assert http.get(txn).json["outcome"] == "applied"
    late = http.post(f"{txn}:abort")
    assert (late.status, late.json["outcome"]) == (409, "applied")
    late = put(http, txn, 2, {"topic": topic, "value": 3})
    assert (late.status, late.json["outcome"]) == (409, "applied")


def test_committed_offsets_are_not_told_while_a_transaction_is_about_to_commit_others(http: Http, topic: str) -> None:
    """Who asks goes on there: told the offset from before, it would write again what the transaction has written."""
    assert http.post("/v1/topics", {"name": topic}).status == 201
    first = {"offsets": [{"topic": topic, "partition": 0, "offset": 0}]}
    assert http.put(f"/v1/groups/group-{topic}/offsets", first).status == 200
    txn = begin(http, topic)
    assert put(http, txn, 0, *({"topic": topic, "value": number} for number in range(7))).status == 200
    offsets = {"offsets": [{"topic": topic, "partition": 0, "offset": 7}]}
    assert http.put(f"{txn}/offsets/group-{topic}", offsets).status == 200
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(requests.get, f"{http.url}/v1/groups/group-{topic}/offsets", timeout=PATIENCE_S)
        time.sleep(0.3)
        assert not asked.done()
        assert http.post(f"{txn}:commit").json["outcome"] == "applied"
        assert asked.result().json()["offsets"] == [{"topic": topic, "partition": 0, "offset": 7}]


def test_a_group_that_is_deleted_is_not_made_again_by_what_it_took_along(http: Http, topic: str) -> None:
    group = f"group-{topic}"
    offsets = {"offsets": [{"topic": topic, "partition": 0, "offset": 10}]}
    assert http.post("/v1/topics", {"name": topic}).status == 201
    txn = begin(http, topic)
    assert http.put(f"{txn}/offsets/{group}", offsets).status == 200
    assert http.delete(f"/v1/groups/{group}").status == 204
    assert http.post(f"{txn}:commit").json["outcome"] == "applied"
    assert http.get(f"/v1/groups/{group}").status == 404


def test_a_group_is_not_shifted_from_where_a_transaction_is_about_to_move_it(served: Served, topic: str) -> None:
    """The transaction's offset was dropped without a word: its commit was `applied`, and the group one before where it
    had been.
    """
    http, group = Http(served.url), f"group-{topic}"
    assert http.post("/v1/topics", {"name": topic}).status == 201
    assert http.post(f"/v1/topics/{topic}/records", {"records": [{"value": 1}] * 20}).status == 200
    first = {"offsets": [{"topic": topic, "partition": 0, "offset": 3}]}
    assert http.put(f"/v1/groups/{group}/offsets", first).status == 200
    txn = begin(http, topic)
    offsets = {"offsets": [{"topic": topic, "partition": 0, "offset": 10}]}
    assert http.put(f"{txn}/offsets/{group}", offsets).status == 200
    told = http.put(f"/v1/groups/{group}/offsets", {"to": "shift", "shift": -1})
    assert (told.status, told.json["outcome"], told.json["kafka_error"]) == (503, "none", "UNSTABLE_OFFSET_COMMIT")
    assert re.search(
        rf"for {topic} partition 0\. .*__consumer_offsets partition \d+\..*/{group}/lag", told.json["detail"]
    )
    page = requests.get(f"{served.url}/ui/groups/{group}/reset?to=shift&value=-1", timeout=PATIENCE_S).text
    assert "a transaction is open with offsets" in page
    command = [*served.program, "group", "reset", group, "--shift", "-1", "--yes", "-b", served.bootstrap]
    shifted = subprocess.run(command, capture_output=True, text=True, cwd=served.tree, check=False)
    assert shifted.returncode and "UNSTABLE_OFFSET_COMMIT" in shifted.stderr, shifted
    assert http.post(f"{txn}:commit").json["outcome"] == "applied"
    assert http.get(f"/v1/groups/{group}/offsets").json == offsets
    moved = http.put(f"/v1/groups/{group}/offsets", {"to": "shift", "shift": -1})
    assert (moved.status, moved.json["offsets"][0]["offset"]) == (200, 9)


def test_a_batch_is_written_once_however_often_it_is_put(served: Served, http: Http, topic: str) -> None:
    txn = begin(http, topic)
    first = put(http, txn, 0, {"topic": topic, "value": 0})
    again = put(http, txn, 0, {"topic": topic, "value": 0})
    assert first.json == again.json
    assert again.headers["Batch-Replayed"] == "true"
    changed = put(http, txn, 0, {"topic": topic, "value": 1})
    assert (changed.status, changed.json["type"]) == (422, "/problems/batch-changed")
    gap = put(http, txn, 2, {"topic": topic, "value": 1})
    assert (gap.status, gap.json["type"], gap.json["next_batch"]) == (409, "/problems/batch-gap", 1)
    assert http.post(f"{txn}:commit").status == 200
    assert values(served, topic) == [b"0"]


def test_an_aborted_transaction_leaves_nothing(served: Served, http: Http, topic: str) -> None:
    txn = begin(http, topic)
    assert put(http, txn, 0, {"topic": topic, "value": 0}).status == 200
    for _ in range(2):
        answer = http.post(f"{txn}:abort")
        assert (answer.status, answer.json["outcome"]) == (200, "none")
    assert values(served, topic) == []
    late = http.post(f"{txn}:commit")
    assert (late.status, late.json["outcome"]) == (410, "none")


def test_a_batch_that_was_refused_whole_may_be_put_again_mended(served: Served, http: Http, topic: str) -> None:
    txn = begin(http, topic)
    assert put(http, txn, 0, {"topic": topic, "value": 0, "partition": 9}).status == 404
    assert put(http, txn, 0, {"topic": topic, "value": "x" * 2_000_000}).status == 413
    assert put(http, txn, 0, {"topic": topic, "value": 0}).status == 200
    assert http.post(f"{txn}:commit").status == 200
    assert values(served, topic) == [b"0"]


def test_an_id_of_which_no_path_could_be_made_is_refused(served: Served, http: Http, topic: str) -> None:
    longest = topic + "é" * ((transactions.ID_BYTES_MAX - len(topic)) // 2)
    txn = begin(http, longest)
    assert put(http, txn, 0, {"topic": topic, "value": 0}).status == 200
    group = "g" * 255
    offsets = {"offsets": [{"topic": topic, "partition": 0, "offset": 1}]}
    assert http.put(f"{txn}/offsets/{group}", offsets).status == 200
    assert http.post(f"{txn}:commit").status == 200
    refused = http.post("/v1/transactions", {"transactional_id": longest + "ab"})
    assert (refused.status, refused.json["outcome"]) == (422, "none")


def test_who_begins_later_shuts_the_former_owner_out(served: Served, http: Http, topic: str) -> None:
    first = begin(http, topic)
    assert put(http, first, 0, {"topic": topic, "value": "first"}).status == 200
    refused = http.post("/v1/transactions", {"transactional_id": topic, "steal": False})
    assert (refused.status, refused.json["type"]) == (409, "/problems/concurrent-transactions")
    second = begin(http, topic)
    assert put(http, second, 0, {"topic": topic, "value": "second"}).status == 200
    for answer in (put(http, first, 1, {"topic": topic, "value": 1}), http.post(f"{first}:commit")):
        assert (answer.status, answer.json["kafka_error"]) == (409, "PRODUCER_FENCED"), answer
    assert http.post(f"{second}:commit").status == 200
    assert values(served, topic) == [b'"second"']


def test_who_does_not_steal_leaves_alone_what_was_begun_and_not_written_yet(http: Http, topic: str) -> None:
    """It was taken over, as it had no partitions; and of several who asked at once each was told that it had it."""
    wanted = {"transactional_id": topic, "steal": False}

    def ask() -> int:
        return http.post("/v1/transactions", wanted).status

    with ThreadPoolExecutor(4) as clients:
        assert sorted(each.result() for each in [clients.submit(ask) for _ in range(4)]) == [201, 409, 409, 409]
    first = begin(http, topic)
    assert ask() == 409
    assert http.post(f"{first}:commit").status == 200
    assert ask() == 201, "it was ended, although nothing was written"


def test_a_begin_for_which_there_is_no_room_takes_nothing_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the id's owner had open was aborted, each time that it was refused."""
    monkeypatch.setattr(transactions, "SESSIONS_MAX", 1)

    async def scene(server: Server) -> None:
        for name, status in (b"a", b"201"), (b"b", b"429"), (b"a", b"201"):
            body = b'{"transactional_id":"%b"}' % name
            head = b"POST /v1/transactions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            told = await server.ask([head + b"Content-Length: %d\r\n\r\n" % len(body) + body])
            assert told.answers.startswith(b"HTTP/1.1 " + status)
        assert await find_transaction(server.web.gateway.cluster, "a") is not None
        assert await find_transaction(server.web.gateway.cluster, "b") is None

    at_server(tmp_path, scene)


def test_what_became_of_a_transaction_that_others_followed_is_told_where_it_is_known(tmp_path: Path) -> None:
    """It was `unknown` for ever, although its successor had aborted it. A broker that is started again knows it,
    too.
    """
    served = Served(tmp_path / "data")
    http = Http(served.url)
    try:
        oldest, committed, opened, unused, last = (begin_one(http, each) for each in (True, True, False, None, None))

        def told(txn: str) -> tuple[str, str]:
            answer = http.get(txn).json
            return answer["state"], answer["outcome"]

        for _ in range(2):
            assert told(oldest) == ("Superseded", "unknown"), "another was committed after it"
            assert told(committed) == ("Superseded", "applied")
            assert told(opened) == told(unused) == ("Superseded", "none")
            assert told(last) == ("Empty", "none")
            served.stop()
            served.start()
            http = Http(served.url)
        late = put(http, opened, 1, {"topic": "t", "value": 1})
        assert (late.status, late.json["type"], late.json["outcome"]) == (409, "/problems/producer-fenced", "none")
        late = put(http, committed, 1, {"topic": "t", "value": 1})
        assert (late.status, late.json["type"], late.json["outcome"]) == (409, "/problems/invalid-txn-state", "applied")
        assert [http.post(f"{each}:commit").status for each in (committed, opened, oldest)] == [200, 409, 409]
        assert [http.post(f"{each}:abort").status for each in (committed, opened, oldest)] == [409, 200, 409]
        assert values(served, "t") == [b"1", b"1"]
    finally:
        served.stop()


def test_what_another_client_commits_under_the_id_is_not_told_of_a_transaction_that_wrote_nothing(
    served: Served, http: Http, topic: str
) -> None:
    """It was told to be applied: such a commit does not raise the epoch, as one of this transaction would have."""
    txn = begin(http, topic)
    thief = Producer({"bootstrap.servers": served.bootstrap, "transactional.id": topic})
    thief.init_transactions(PATIENCE_S)
    thief.begin_transaction()
    thief.produce(topic, b"other")
    thief.commit_transaction(PATIENCE_S)
    told = http.get(txn).json
    assert (told["state"], told["outcome"]) == ("Superseded", "none")
    for answer in (put(http, txn, 0, {"topic": topic, "value": 1}), http.post(f"{txn}:commit"), http.get(txn)):
        assert answer.json["outcome"] == "none", answer
    assert http.post(f"{txn}:abort").status == 200
    assert http.get(txn).json["outcome"] == "unknown", "it was committed before the other one, or never: nobody knows"
    assert values(served, topic) == [b"other"]


FRESH = (7, -1)
NOBODY = (-1, -1)


@pytest.mark.parametrize(
    ("named", "state", "present", "last", "told"),
    [
        ("x", State.ONGOING, (7, 3), FRESH, ("Ongoing", "none")),
        ("x", State.PREPARE_COMMIT, (7, 4), (7, 3), ("PrepareCommit", "applied")),
        ("x", State.COMPLETE_COMMIT, (7, 4), (7, 3), ("CompleteCommit", "applied")),
        ("x", State.COMPLETE_COMMIT, (8, 0), (7, 3), ("CompleteCommit", "applied")),
        ("x", State.COMPLETE_COMMIT, (7, 4), (7, 4), ("Superseded", "unknown")),
        ("x", State.PREPARE_COMMIT, (7, 4), (7, 4), ("Superseded", "unknown")),
        ("x", State.COMPLETE_COMMIT, (7, 4), NOBODY, ("Superseded", "unknown")),
        ("x", State.COMPLETE_ABORT, (7, 4), NOBODY, ("CompleteAbort", "none")),
        ("x", State.COMPLETE_ABORT, (7, 4), FRESH, ("CompleteAbort", "none")),
        ("x", State.COMPLETE_ABORT, (7, 5), FRESH, ("Superseded", "none")),
        ("x", State.COMPLETE_ABORT, (7, 5), (7, 3), ("Superseded", "applied")),
        ("x", State.EMPTY, (7, 4), NOBODY, ("Superseded", "unknown")),
        ("r::1/a", State.PREPARE_COMMIT, (7, 4), (7, 3), ("PrepareCommit", "applied")),
        ("r::1/a", State.COMPLETE_COMMIT, (7, 5), (7, 3), ("CompleteCommit", "applied")),
        ("r::1/a", State.PREPARE_COMMIT, (7, 5), (7, 4), ("Superseded", "unknown")),
        ("r::1/a", State.COMPLETE_COMMIT, (7, 6), (7, 4), ("Superseded", "unknown")),
        ("r::1/a", State.COMPLETE_ABORT, (7, 5), FRESH, ("CompleteAbort", "none")),
    ],
)
def test_what_became_of_a_transaction_is_told_if_the_coordinator_knows_it(
    monkeypatch: pytest.MonkeyPatch,
    named: str,
    state: State,
    present: tuple[int, int],
    last: tuple[int, int],
    told: tuple[str, str],
) -> None:
    """The commit of another owner of the id was taken for its own: of an epoch that is higher by one; of a branch, by
    two, while markers were written. `last` is the pair of the last commit.
    """
    txn = Txn(named, *present, state, 1000, 0, committed_id=last[0], committed_epoch=last[1])
    found = TransactionState(named, state.label, *present, 1, 1000, -1, [])

    async def looked_up(_: object, ids: list[str], look: Any) -> dict[str, Any]:
        return {ids[0]: look(Mock(describe=lambda _: Mock(txn=txn)), ids[0])}

    monkeypatch.setattr("service.web.transactions.looked_up", looked_up)
    seen = asyncio.run(_seen(Mock(open_transactions=OpenTransactions()), Name(named, 7, 3), found))
    assert (seen.state, seen.outcome) == told


def begin_one(http: Http, is_committed: bool | None) -> str:
    """The next transaction of one id, with a record; committed, or left open. None: it has none."""
    txn = begin(http, "one")
    if is_committed is not None:
        assert put(http, txn, 0, {"topic": "t", "value": 1}).status == 200
    if is_committed:
        assert http.post(f"{txn}:commit").status == 200
    return txn


def test_a_transaction_that_took_too_long_was_aborted(served: Served, http: Http, topic: str) -> None:
    txn = begin(http, topic, timeout_ms=200)
    assert put(http, txn, 0, {"topic": topic, "value": 0}).status == 200
    deadline = time.monotonic() + 30
    while http.get(txn).json["state"] == "Ongoing":
        assert time.monotonic() < deadline
        time.sleep(0.05)
    answer = http.post(f"{txn}:commit")
    assert (answer.status, answer.json["type"], answer.json["outcome"]) == (
        410, "/problems/transaction-expired", "none",
    )  # fmt: skip
    assert values(served, topic) == []


def test_a_transaction_that_wrote_nothing_may_be_ended(http: Http, topic: str) -> None:
    assert http.post(f"{begin(http, topic)}:commit").status == 200
    assert http.post(f"{begin(http, topic)}:abort").status == 200


def test_an_open_transaction_can_only_be_aborted_after_the_broker_died(tmp_path: Path) -> None:
    served = Served(tmp_path / "data")
    http = Http(served.url)
    txn, decided = begin(http, "mine"), begin(http, "other")
    for each in txn, decided:
        assert put(http, each, 0, {"topic": "t", "value": 0}).status == 200
    assert http.post(f"{decided}:commit").json["outcome"] == "applied"
    served.kill()
    served.start()
    http.session.close()
    http = Http(served.url)
    assert http.get(txn).json["state"] == "Ongoing"
    for answer in (
        put(http, txn, 1, {"topic": "t", "value": 1}),
        http.put(f"{txn}/offsets/g", {"offsets": []}),
        http.post(f"{txn}:commit"),
    ):
        unknown = 409, "/problems/invalid-txn-state", "none"
        assert (answer.status, answer.json["type"], answer.json["outcome"]) == unknown
    for _ in range(2):
        assert http.post(f"{txn}:abort").json["state"] in ("PrepareAbort", "CompleteAbort")
    assert http.post(f"{decided}:commit").json["outcome"] == "applied", "it is decided"
    assert values(served, "t") == [b"0"]
    http.session.close()
    served.stop()


def test_an_operator_finds_transactions(http: Http, topic: str) -> None:
    txn = begin(http, topic)
    assert put(http, txn, 0, {"topic": topic, "value": 0}).status == 200
    ongoing = http.get("/v1/transactions?state=Ongoing").json["transactions"]
    assert http.get("/v1/transactions?state=ongoing").status == 400  # and not that there are none
    assert topic in [each["transactional_id"] for each in ongoing]
    assert http.post("/v1/transactions:find-hanging", {"topics": [topic]}).json == {"hanging": []}
    producers = http.get(f"/v1/topics/{topic}/partitions/0/producers").json["producers"]
    assert [each["transaction_start_offset"] for each in producers] == [0]
    pinned = {"topic": topic, "partition": 0, "producer_id": producers[0]["producer_id"]}
    assert http.post("/v1/partitions:abort-transaction", pinned).status == 409, "its coordinator will end it"
    assert http.post(f"{txn}:abort").status == 200
    assert http.get("/v1/transactions/nothing").status == 404


def test_a_transaction_that_never_was_is_not_said_to_be_taken_over(http: Http, topic: str) -> None:
    """A commit was refused with that, where who asked was told that there is none. One that is forgotten may have been
    committed, and nobody knows.
    """
    begun = http.get(begin(http, topic)).json
    never, forgotten = Name(topic, begun["producer_id"], begun["epoch"] + 1), Name(f"other-{topic}", 1, 0)
    for name, outcome in (never, "none"), (forgotten, "unknown"):
        path = f"/v1/transactions/{name}"
        offsets = {"offsets": [{"topic": topic, "partition": 0, "offset": 7}]}
        for answer in (
            *(http.get(path), http.post(f"{path}:commit"), http.post(f"{path}:abort")),
            *(put(http, path, 0, {"topic": topic, "value": 0}), http.put(f"{path}/offsets/g", offsets)),
        ):
            problem = answer.json
            assert (answer.status, problem["type"]) == (404, "/problems/unknown-transaction"), problem
            assert problem["outcome"] == outcome


def test_a_branch_over_which_nobody_could_decide_is_not_begun(http: Http) -> None:
    answer = http.post("/v1/transactions", {"transactional_id": "zeros::007/a"})
    assert (answer.status, answer.json["type"]) == (422, "/problems/invalid-request"), answer
    assert "zeros::7/a" in answer.json["detail"]


def test_several_processes_write_one_transaction(served: Served, http: Http, topic: str) -> None:
    root = f"root-of-{topic}"
    decisions = f"/v1/branches/{root}/decisions"
    txns = [begin(http, f"{root}::1/part-{number}") for number in range(3)]
    for number, txn in enumerate(txns):
        assert put(http, txn, 0, {"topic": topic, "value": number}).status == 200
    named = []
    for txn in txns[:2]:
        first, again = http.post(f"{txn}:commit"), http.post(f"{txn}:commit")
        assert (first.status, first.json["state"], first.json["outcome"]) == (200, "Sealed", "none")
        assert again.json == first.json
        shown = http.get(txn).json  # it was "Ongoing", and had no name
        assert (shown["state"], shown["outcome"], shown["branch"]) == ("Sealed", "none", first.json["branch"])
        named.append(first.json["branch"])
    late = put(http, txns[0], 1, {"topic": topic, "value": "late"})
    assert (late.status, late.json["type"]) == (409, "/problems/invalid-txn-state")
    assert values(served, topic) == []
    waiting = http.get(f"/v1/branches/{root}").json
    assert (waiting["last_token"], [each["name"] for each in waiting["open"]]) == (-1, ["part-0", "part-1", "part-2"])

    refused = http.put(f"{decisions}/1", {"commit": True, "branches": [*named, {"name": "part-2"}]})
    assert (refused.status, refused.json["kafka_error"], refused.json["outcome"]) == (409, "INVALID_TXN_STATE", "none")
    decision = {"commit": True, "branches": named, "decided_by": "driver 1"}
    first, again = http.put(f"{decisions}/1", decision), http.put(f"{decisions}/1", decision)
    assert first.json == {"outcome": "applied", "decided_now": True, "last_token": 1, "decided_by": "driver 1"}
    assert again.json == first.json | {"decided_now": False}
    assert values(served, topic) == [b"0", b"1"]
    for more in ({"decided_by": "driver 2"}, {"decided_by": ""}):  # both were said to have written nothing of it
        other = http.put(f"{decisions}/1", decision | more)
        assert (other.json["outcome"], other.json["decided_by"]) == ("applied", "driver 1")
    for name, outcome in (("part-2", "none"), ("part-9", "unknown")):
        body = {"commit": True, "branches": [{"name": name}], "decided_by": "driver 2"}
        assert http.put(f"{decisions}/1", body).json["outcome"] == outcome
    superseded = [each | {"producer_id": each["producer_id"] + 100_000} for each in named]
    other = http.put(f"{decisions}/1", {"commit": True, "branches": superseded, "decided_by": "driver 2"})
    assert other.json["outcome"] == "none"
    partly = http.put(f"{decisions}/1", {"commit": True, "branches": [*named, {"name": "part-2"}]})
    assert partly.json["outcome"] == "unknown"
    assert [http.get(txn).json["outcome"] for txn in txns] == ["applied", "applied", "none"]
    assert http.post(f"{txns[2]}:commit").json["outcome"] == "none"
    assert http.post("/v1/transactions", {"transactional_id": f"{root}::1/late"}).status == 409


def test_branches_are_thrown_away_and_their_token_stays_free(served: Served, http: Http, topic: str) -> None:
    root = f"root-of-{topic}"
    txn = begin(http, f"{root}::7/a")
    assert put(http, txn, 0, {"topic": topic, "value": 0}).status == 200
    assert http.post(f"{txn}:commit").json["state"] == "Sealed"
    answer = http.put(f"/v1/branches/{root}/decisions/7", {"commit": False})
    assert answer.json == {"outcome": "none", "decided_now": False}
    assert http.get(txn).json["outcome"] == "none"
    assert values(served, topic) == []
    txn = begin(http, f"{root}::7/b")
    assert put(http, txn, 0, {"topic": topic, "value": 1}).status == 200
    named = http.post(f"{txn}:commit").json["branch"]
    assert http.put(f"/v1/branches/{root}/decisions/7", {"commit": True, "branches": [named]}).json["decided_now"]
    assert values(served, topic) == [b"1"]
    thrown = http.put(f"/v1/branches/{root}/decisions/7", {"commit": False, "branches": [named]}).json
    assert thrown == {"outcome": "applied", "decided_now": False, "last_token": 7}, "a lost answer: it was told none"
    for branches in [], [{"name": "a"}], [named, {"name": "a"}]:  # "a" is forgotten since "b" has its producer id
        thrown = http.put(f"/v1/branches/{root}/decisions/7", {"commit": False, "branches": branches}).json
        assert (thrown["outcome"], thrown["decided_now"]) == ("unknown", False)
    assert http.put(f"/v1/branches/{root}/decisions/8", {"commit": False}).json.get("last_token", 7) == 7, "it was -1"
    for token in ("-1", "9223372036854775808", "x"):
        assert http.put(f"/v1/branches/{root}/decisions/{token}", {"commit": True}).status == 400


def test_offsets_that_a_transaction_holds_up_are_waited_for_no_longer_than_their_client_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked_s: list[float] = []

    async def never_settled(*about: object) -> tuple[groups.Committed, set[TopicPartition]]:
        asked_s.append(time.monotonic())
        return {}, {TopicPartition("t", 0)}

    monkeypatch.setattr(groups, "offsets_by_now", never_settled)
    gateway, request = Mock(waiting=nullcontext), Mock(transport=object())

    async def scene() -> None:
        asking = asyncio.ensure_future(groups.committed_by(gateway, request, "g", None))
        await asyncio.sleep(2.0)
        assert not asking.done()
        assert len(asked_s) < 12, "not fifty times a second"
        request.transport = None
        with pytest.raises(Problem, match="gone"):
            await asyncio.wait_for(asking, 5.0)
        asked = len(asked_s)
        await asyncio.sleep(0.8)
        assert len(asked_s) == asked

    asyncio.run(scene())


def test_a_group_without_a_name_has_no_link_on_the_page(served: Served, topic: str) -> None:
    """Any client of Kafka's can make one. The link had no text, and led to a page that there is not."""
    http = Http(served.url)
    assert http.post("/v1/topics", {"name": topic}).status == 201

    async def commit() -> None:
        async with Cluster(parse_addresses(served.bootstrap), client_id="test", timeout_s=PATIENCE_S) as cluster:
            (partition, *_) = await cluster.partitions_of(topic)
            assert await commit_offsets(cluster, "", {partition: 0}) == 0

    asyncio.run(commit())
    page, deadline = "", time.monotonic() + 15
    while "(no name)" not in page and time.monotonic() < deadline:  # the list may be some seconds old
        page = requests.get(f"{served.url}/ui/groups", timeout=PATIENCE_S).text
        time.sleep(0.5)
    assert "(no name)" in page
    assert 'href="/ui/groups/"' not in page
    assert oncelog("group", "delete", "", "--yes", bootstrap=served.bootstrap).status == 0

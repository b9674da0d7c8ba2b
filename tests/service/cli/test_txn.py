"""`oncelog txn`, against a broker with transactions that are open, that hang, and that are branches of one."""

from __future__ import annotations

import itertools
import shutil
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer

from log.ids import TopicPartition
from service.cli.failures import Exit
from service.cli.txn import judge
from service.client.transactions import GRACE_MS, NO_TIMEOUT_MS, ReadableEnds, TransactionState
from service.wire.messages import ProducerState
from tests.service.cli.kit import PATIENCE_S, Ended, Serving, oncelog

Run = Callable[..., Ended]

_numbers = itertools.count()


def serving(data: Path) -> Serving:
    few = "transaction.state.log.num.partitions=2"
    return Serving("--data", str(data), "--host", "127.0.0.1", "--port", "0", "-o", few)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(tmp_path_factory.mktemp("broker") / "data") as running:
        yield running.bootstrap


@pytest.fixture
def run(broker: str) -> Run:
    """A command against the broker that is expected to succeed, unless another status is asked for."""

    def command(*arguments: str, status: int = 0) -> Ended:
        ended = oncelog(*arguments, bootstrap=broker)
        assert ended.status == status, ended
        return ended

    return command


@pytest.fixture
def topic(run: Run) -> str:
    """A topic of two partitions that no other test knows."""
    name = f"topic-{next(_numbers)}"
    run("topic", "create", name, "-p", "2")
    return name


def opened(broker: str, transactional_id: str, topic: str, *values: str) -> Producer:
    """A producer whose transaction has these values in partition 0, acknowledged."""
    producer = Producer(
        {
            "bootstrap.servers": broker,
            "transactional.id": transactional_id,
            "transaction.timeout.ms": 60_000,
            "linger.ms": 0,
            "log_level": 0,  # the broker goes before the producer does
        }
    )
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, value, partition=0)
    assert producer.flush(PATIENCE_S) == 0
    return producer


def end(run: Run, producer: Producer, transactional_id: str, *, commit: bool) -> None:
    """Return when the markers are written too: a client is told before."""
    (producer.commit_transaction if commit else producer.abort_transaction)(PATIENCE_S)
    deadline = time.monotonic() + PATIENCE_S
    while "Complete" not in run("txn", "describe", transactional_id).out:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def of_topic(rows: Any, topic: str) -> Any:
    return [row for row in rows if row["topic"] == topic]


def test_an_open_transaction_is_listed_with_its_state(run: Run, broker: str, topic: str) -> None:
    producer = opened(broker, f"id-{topic}", topic, "a")
    (row,) = [row for row in run("txn", "ls", "-o", "json").json() if row["transactional_id"] == f"id-{topic}"]
    assert row["state"] == "Ongoing"
    number = str(row["producer_id"])
    assert run("txn", "ls", "--producer-id", number, "--state", "ongoing", "-o", "name").out == f"id-{topic}\n"
    assert run("txn", "ls", "--producer-id", number, "--state", "Empty").out == ""
    assert run("txn", "ls", "--producer-id", number, "--longer-than", "1h").out == ""
    assert run("txn", "ls", "--producer-id", number, "--longer-than", "0s", "-o", "name").out == f"id-{topic}\n"
    end(run, producer, f"id-{topic}", commit=True)
    assert run("txn", "ls", "--producer-id", number).out.startswith(f"id-{topic}\tComplete")
    assert run("txn", "ls", "--producer-id", number, "--longer-than", "0s").out == ""


def test_an_open_transaction_is_described_until_when_at_most(run: Run, broker: str, topic: str) -> None:
    producer = opened(broker, f"id-{topic}", topic, "a")
    (row,) = run("txn", "describe", f"id-{topic}", "-o", "json").json()
    assert (row["state"], row["partitions"], row["timeout_ms"]) == ("Ongoing", [f"{topic}-0"], 60_000)
    since, until = (datetime.fromisoformat(row[each]) for each in ("since", "until"))
    assert (until - since).total_seconds() == 60
    assert 0 <= row["age_ms"] < PATIENCE_S * 1000
    assert row["root"] is None
    end(run, producer, f"id-{topic}", commit=False)
    (row,) = run("txn", "describe", f"id-{topic}", "-o", "json").json()
    assert (row["since"], row["age_ms"], row["until"]) == (None, None, None)


def test_what_is_not_there_ends_with_3(run: Run, topic: str) -> None:
    for arguments in (
        ("txn", "describe", "nope"),
        ("txn", "trace", "nope"),
        ("txn", "abort", "nope", "--yes"),
        ("txn", "abort", topic, "0", "--start-offset", "0", "--yes"),
        ("txn", "abort", topic, "9", "--start-offset", "0", "--yes"),
        ("txn", "producers", "nope"),
        ("txn", "producers", topic, "-p", "9"),
    ):
        ended = run(*arguments, status=int(Exit.NOT_FOUND))
        assert ended.err.count("\n") == 1, arguments


@pytest.mark.parametrize(
    "arguments",
    [
        ("abort", "id"),
        ("abort", "id", "--start-offset", "3", "--yes"),
        ("abort", "orders", "0", "--yes"),
        ("abort", "orders", "first", "--start-offset", "3", "--yes"),
        ("hanging", "--older-than", "15"),
        ("ls", "--longer-than", "soon"),
        ("ls", "--state", "Running"),
    ],
)
def test_a_wrong_call_ends_with_2_before_any_broker_is_asked(arguments: tuple[str, ...]) -> None:
    assert oncelog("txn", *arguments, bootstrap="127.0.0.1:1").status == Exit.USAGE


def test_producers_are_shown_with_where_their_transactions_begin(run: Run, broker: str, topic: str) -> None:
    producer = opened(broker, f"id-{topic}", topic, "a", "b")
    (row,) = run("txn", "producers", topic, "-o", "json").json()
    assert (row["partition"], row["last_sequence"], row["first_open_offset"]) == (0, 1, 0)
    end(run, producer, f"id-{topic}", commit=True)
    (row,) = run("txn", "producers", topic, "--partition", "0", "-o", "json").json()
    assert row["first_open_offset"] is None
    assert run("txn", "producers", topic, "--partition", "1").out == ""


def test_who_pins_a_partition_is_told_and_is_not_called_hanging(run: Run, broker: str, topic: str) -> None:
    producer = opened(broker, f"id-{topic}", topic, "a", "b", "c")
    (described,) = run("txn", "describe", f"id-{topic}", "-o", "json").json()
    (row,) = of_topic(run("txn", "hanging", "--older-than", "0s", "-o", "json").json(), topic)
    assert (row["transactional_id"], row["producer_id"]) == (f"id-{topic}", described["producer_id"])
    assert (row["since"], row["until"]) == (described["since"], described["until"])
    assert (row["last_stable_offset"], row["high_watermark"], row["pinned_records"]) == (0, 3, 3)
    assert (row["hangs"], row["reason"]) == (False, "open")
    assert of_topic(run("txn", "hanging", "-o", "json").json(), topic) == [], "it is younger than 15 minutes"
    end(run, producer, f"id-{topic}", commit=True)
    assert of_topic(run("txn", "hanging", "--older-than", "0s", "-o", "json").json(), topic) == []


def test_a_transaction_that_no_coordinator_has_open_hangs_until_it_is_aborted(tmp_path: Path) -> None:
    """Coordinators that lost their memory leave such; so did clients of old, who wrote after the end (KIP-890)."""
    with serving(tmp_path / "data") as running:
        oncelog("topic", "create", "orders", "-p", "2", bootstrap=running.bootstrap)
        opened(running.bootstrap, "lost", "orders", "a", "b")
    for folder in (tmp_path / "data").glob("__transaction_state-*"):
        shutil.rmtree(folder)
    with serving(tmp_path / "data") as running:

        def run(*arguments: str, status: int = 0) -> Ended:
            ended = oncelog(*arguments, bootstrap=running.bootstrap)
            assert ended.status == status, ended
            return ended

        (producer,) = run("txn", "producers", "orders", "-o", "json").json()
        ended = run("txn", "hanging", "--older-than", "0s", "-o", "json", status=int(Exit.CONDITION))
        (row,) = ended.json()
        assert (row["topic"], row["partition"], row["producer_id"]) == ("orders", 0, producer["producer_id"])
        assert (row["transactional_id"], row["until"], row["hangs"]) == (None, None, True)
        assert (row["since"], row["first_open_offset"], row["pinned_records"]) == (producer["last_write"], 0, 2)
        assert ended.err.count("\n") == 1
        run("txn", "abort", "orders", "0", "--start-offset", "1", "--yes", status=int(Exit.NOT_FOUND))
        run("txn", "abort", "orders", "0", "--start-offset", "0", "--yes")
        assert run("txn", "hanging", "--older-than", "0s").out == ""
        assert run("consume", "orders", "-e").out == ""


def test_a_transaction_is_aborted_by_its_id_and_its_producer_shut_out(run: Run, broker: str, topic: str) -> None:
    producer = opened(broker, f"id-{topic}", topic, "a")
    run("txn", "abort", f"id-{topic}", "--yes")
    with pytest.raises(KafkaException):
        producer.commit_transaction(PATIENCE_S)
    assert run("consume", topic, "-e").out == ""
    assert "no transaction to abort" in run("txn", "abort", f"id-{topic}", "--yes", status=1).err


def test_no_partition_is_torn_out_of_a_transaction_that_its_coordinator_has_open(
    run: Run, broker: str, topic: str
) -> None:
    producer = opened(broker, f"id-{topic}", topic, "a")
    ended = run("txn", "abort", topic, "0", "--start-offset", "0", "--yes", status=1)
    assert f"id-{topic}" in ended.err
    end(run, producer, f"id-{topic}", commit=True)
    assert run("consume", topic, "-e").out == "a\n"


def test_a_trace_shows_how_far_each_partition_can_be_read(run: Run, broker: str, topic: str) -> None:
    first = opened(broker, f"first-{topic}", topic, "a", "b")
    second = opened(broker, f"second-{topic}", topic, "c")
    assert run("txn", "trace", f"second-{topic}").out == f"second-{topic}\t{topic}\t0\t2\t0\t3\n"
    trace = run("txn", "trace", f"second-{topic}", "-o", "json").json()
    assert trace["transaction"] == run("txn", "describe", f"second-{topic}", "-o", "json").json()[0] | {
        "age_ms": trace["transaction"]["age_ms"]
    }
    assert (trace["last_token"], trace["branches"]) == (None, [])
    table = run("txn", "trace", f"second-{topic}", "-o", "table").out
    assert "LAST STABLE OFFSET" in table
    end(run, first, f"first-{topic}", commit=True)
    end(run, second, f"second-{topic}", commit=True)
    assert run("txn", "trace", f"second-{topic}").out == ""


def test_a_trace_of_a_root_shows_its_branches(run: Run, broker: str, topic: str) -> None:
    root = f"root-{topic}"
    names = [f"{root}::7/part-{number}" for number in range(2)]
    writers = [opened(broker, name, topic, "x") for name in names]
    writers[0].commit_transaction(PATIENCE_S)  # which seals it, and commits nothing
    trace = run("txn", "trace", root, "-o", "json").json()
    assert trace["transaction"] is None
    assert sorted(each["transactional_id"] for each in trace["branches"]) == names
    assert {(each["root"], each["token"]) for each in trace["branches"]} == {(root, 7)}
    assert sorted(each["first_open_offset"] for each in trace["partitions"]) == [0, 1]
    (described,) = run("txn", "describe", names[1], "-o", "json").json()
    since, until = (datetime.fromisoformat(described[each]) for each in ("since", "until"))
    assert (until - since).total_seconds() == 120, "sealed at the last moment it waits as long again"
    for name in names:
        run("txn", "abort", name, "--yes")
    assert run("txn", "trace", names[0], "-o", "json").json()["transaction"]["state"] == "CompleteAbort"


NOW_MS = 1_000_000_000
PLACE = TopicPartition("orders", 3)


@pytest.mark.parametrize(
    ("transaction", "hangs", "reason"),
    [
        (None, True, "no coordinator has it open"),
        (("CompleteAbort", 1000, 60_000, []), True, "no coordinator has it open"),
        (("Ongoing", 1000, 60_000, [TopicPartition("orders", 2)]), True, "no coordinator has it open"),
        (("Ongoing", 60_000 + GRACE_MS, 60_000, [PLACE]), False, "open"),
        (("Ongoing", 60_001 + GRACE_MS, 60_000, [PLACE]), True, "open longer than its timeout"),
        (("Ongoing", NOW_MS, NO_TIMEOUT_MS, [PLACE]), False, "open"),
        (("PrepareCommit", 1000, 60_000, [PLACE]), False, "decided, its marker is on the way"),
        (("PrepareAbort", 60_001 + GRACE_MS, 60_000, [PLACE]), True, "decided, and its marker is missing"),
    ],
)
def test_what_hangs_is_what_nobody_holds_or_what_is_overdue(
    transaction: tuple[str, int, int, list[TopicPartition]] | None, hangs: bool, reason: str
) -> None:
    known = []
    if transaction is not None:
        state, age_ms, timeout_ms, partitions = transaction
        known = [TransactionState("id", state, 4000, 1, 1, timeout_ms, NOW_MS - age_ms, partitions)]
    producer = ProducerState(4000, 0, 5, NOW_MS - 9, -1, 20)
    row = judge(PLACE, producer, known, ReadableEnds(20, 26), NOW_MS)
    assert (row.hangs, row.reason, row.pinned_records) == (hangs, reason, 6)
    assert row.transactional_id == (None if transaction is None else "id")

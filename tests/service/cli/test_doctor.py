"""`oncelog doctor`, `top` and `txn watch`, against a broker on which something is open and something is wrong."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from service.cli.failures import Exit
from service.client.cluster import Cluster
from service.wire.base import Struct
from service.wire.messages import DescribeEndsRequest
from tests.monitoring.test_prometheus import in_transaction, wait_for, write_unasked
from tests.peers import zookeeper
from tests.peers.zookeeper import ZooKeeperServer
from tests.service.cli.kit import COMMAND, ROOT, Running, Serving, oncelog
from tests.service.web.kit import Served

CLEARED = b"\x1b[2J"
"""What click sends to a terminal so that it is empty."""


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Serving]:
    few = ("-o", "transaction.state.log.num.partitions=2", "-o", "offsets.topic.num.partitions=2")
    unasked = ("-o", "transaction.partition.verification.enable=false", "-o", "http.listeners=http://127.0.0.1:0")
    with Serving("--data", str(tmp_path / "data"), "--host", "127.0.0.1", "--port", "0", *few, *unasked) as running:
        oncelog("topic", "create", "orders", bootstrap=running.bootstrap)
        yield running


@pytest.fixture
def bootstrap(serving: Serving) -> str:
    return serving.bootstrap


def test_a_cluster_that_is_well_is_said_to_be(serving: Serving, bootstrap: str) -> None:
    in_transaction(bootstrap, "pay", "orders").commit_transaction(30)
    url = f"{serving.facts['http'][0]}/v1/topics/orders/records"
    headers = {"Idempotency-Key": "a", "Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(url, b'{"records": [{"value": 1}]}', headers)) as answer:
        assert answer.status == 200  # and there is the topic of these keys, which forgets on purpose
    ended = oncelog("doctor", "-o", "json", bootstrap=bootstrap)
    rows = {row["check"]: row for row in ended.json()}
    assert ended.status == 0, ended
    assert {row["state"] for name, row in rows.items() if name not in ("limits", "disks", "clock")} == {"ok"}
    assert set(rows) == {
        *(
            "brokers",
            "health",
            "session",
            "controller",
            "partitions",
            "replication",
            "disks",
            "settings",
            "transactions",
        ),
        *("groups", "limits", "clock", "http"),
    }


def test_what_is_wrong_is_named_with_its_cure_and_by_the_status(bootstrap: str) -> None:
    write_unasked(bootstrap, "orders", 4_242)
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "gone"})
    consumer.commit(offsets=[TopicPartition("orders", 0, 0)], asynchronous=False)
    consumer.close()
    ended = oncelog("doctor", "-o", "json", bootstrap=bootstrap)
    rows = {row["check"]: row for row in ended.json()}
    assert ended.status == Exit.CONDITION
    assert rows["transactions"]["state"] == "problem"
    assert "orders-0 at 0" in rows["transactions"]["finding"]
    assert "oncelog txn abort" in rows["transactions"]["cure"]
    assert rows["groups"]["state"] == "warning"
    assert "gone (1)" in rows["groups"]["finding"]
    told = oncelog("txn", "hanging", "-o", "json", bootstrap=bootstrap)  # as the cure says, however young it is
    assert told.status == Exit.CONDITION
    assert [(row["topic"], row["hangs"]) for row in told.json()] == [("orders", True)]


def test_a_lag_in_which_markers_count_is_told_as_at_most(bootstrap: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By brokers that do not tell markers from records, such as Apache Kafka's."""
    in_transaction(bootstrap, "pay", "orders").commit_transaction(30)
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "gone"})
    consumer.commit(offsets=[TopicPartition("orders", 0, 0)], asynchronous=False)
    consumer.close()

    def told() -> tuple[str, int, str]:
        (row,) = [
            row for row in oncelog("doctor", "-o", "json", bootstrap=bootstrap).json() if row["check"] == "groups"
        ]
        look = oncelog("top", "-n", "1", "-o", "ndjson", bootstrap=bootstrap).json()
        (read,) = look["reads"]
        return row["finding"], read["lag"], read["lag_is"]

    assert told() == ("1 have lag and no members: gone (1)", 1, "exact")

    async def offers(cluster: Cluster, request: Struct, *, node: int | None = None) -> bool:
        return not isinstance(request, DescribeEndsRequest)

    monkeypatch.setattr(Cluster, "offers", offers)
    assert told() == ("1 have lag and no members: gone (at most 2)", 2, "at most")


def test_groups_that_there_is_no_time_for_are_counted(bootstrap: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It looked at 200 groups, and said that none stands still."""
    in_transaction(bootstrap, "pay", "orders").commit_transaction(30)
    for number in range(3):
        consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": f"gone-{number}"})
        consumer.commit(offsets=[TopicPartition("orders", 0, 0)], asynchronous=False)
        consumer.close()
    looked = oncelog("top", "-n", "1", "-o", "json", bootstrap=bootstrap)
    assert ({row["group"] for row in looked.json()["reads"]}, looked.err) == ({"gone-0", "gone-1", "gone-2"}, "")
    monkeypatch.setattr("service.cli.top.GROUPS_S", 0.0)
    looked = oncelog("top", "-n", "1", "-o", "json", bootstrap=bootstrap)
    assert looked.json()["reads"] == []
    assert "3 of 3 groups were not looked at" in looked.err
    monkeypatch.setattr("service.cli.doctor.GROUPS_S", 0.0)
    found = [row for row in oncelog("doctor", "-o", "json", bootstrap=bootstrap).json() if row["check"] == "groups"]
    assert [(row["state"], row["finding"]) for row in found] == [
        ("warning", "3 of 3 were not looked at: it would take too long")
    ]


def test_a_group_whose_members_do_not_get_on_is_named_with_the_offset(bootstrap: str) -> None:
    """One that has read everything but a marker gets on well enough."""
    in_transaction(bootstrap, "pay", "orders").commit_transaction(30)
    with reading(bootstrap, "done", 1), reading(bootstrap, "stuck", 0):
        (row,) = [
            row for row in oncelog("doctor", "-o", "json", bootstrap=bootstrap).json() if row["check"] == "groups"
        ]
    assert row["state"] == "warning"
    assert "1 committed nothing for 6 s" in row["finding"]
    assert "stuck (orders-0 at 0)" in row["finding"]


@contextmanager
def reading(bootstrap: str, group: str, offset: int) -> Iterator[None]:
    """A member of a group that has committed once and never commits again."""
    settings = {"bootstrap.servers": bootstrap, "group.id": group, "enable.auto.commit": False}
    consumer = Consumer(settings)
    consumer.commit(offsets=[TopicPartition("orders", 0, offset)], asynchronous=False)
    consumer.subscribe(["orders"])
    wait_for(lambda: consumer.poll(0.1) is None and bool(consumer.assignment()))
    try:
        yield
    finally:
        consumer.close()


@pytest.mark.skipif(zookeeper.missing() is not None, reason=zookeeper.missing() or "")
def test_a_broker_that_has_lost_its_session_is_named(tmp_path: Path) -> None:
    """It still answers, and the cluster looks as it did."""
    keeper = ZooKeeperServer(tmp_path / "keeper")
    keeper.start()
    try:
        where = ("-o", f"zookeeper.connect={keeper.address}", "-o", "broker.session.timeout.ms=2000")
        few = ("-o", "offsets.topic.num.partitions=2", "-o", "http.listeners=http://127.0.0.1:0")
        with Serving("--data", str(tmp_path / "data"), "--host", "127.0.0.1", "--port", "0", *where, *few) as running:
            oncelog("topic", "create", "orders", bootstrap=running.bootstrap)

            def session() -> tuple[int, str]:
                ended = oncelog("doctor", "--timeout", "2", "-o", "json", bootstrap=running.bootstrap)
                return ended.status, next(row["state"] for row in ended.json() if row["check"] == "session")

            assert session()[1] == "ok"
            keeper.stop()
            wait_for(lambda: session() == (Exit.CONDITION, "problem"))
    finally:
        keeper.stop()


def test_no_broker_at_all_is_another_status() -> None:
    assert oncelog("doctor", "--timeout", "1", bootstrap="127.0.0.1:1").status == Exit.UNREACHABLE


def test_top_tells_who_writes_reads_and_waits(bootstrap: str) -> None:
    open_one = in_transaction(bootstrap, "pay", "orders")
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "readers"})
    consumer.commit(offsets=[TopicPartition("orders", 0, 0)], asynchronous=False)
    with Running("top", "-n", "3", "--every", "2", "-o", "ndjson", "-b", bootstrap) as top:
        first = json.loads(top.line())
        assert first["writes"] == [{"topic": "orders", "records_per_s": None, "end_offset": 1}]
        assert first["waits"][0]["transactional_id"] == "pay"
        began_s = time.monotonic()
        for _ in range(2000):
            open_one.produce("orders", b"x", partition=0)
        assert open_one.flush(30) == 0
        consumer.commit(offsets=[TopicPartition("orders", 0, 1000)], asynchronous=False)
        second, third = json.loads(top.line()), json.loads(top.line())
        passed_s = time.monotonic() - began_s
        assert top.ended().status == 0
    consumer.close()
    writes = [look["writes"][0]["records_per_s"] for look in (second, third)]
    reads = [look["reads"][0]["records_per_s"] for look in (second, third)]
    # Two seconds or more lie between two looks. On a slow machine what is written falls into both.
    assert (third["writes"][0]["end_offset"], third["reads"][0]["lag"]) == (2001, 1001)
    assert 2000 / passed_s <= sum(writes) <= 1001, (writes, passed_s)
    assert 1000 / passed_s <= sum(reads) <= 501, (reads, passed_s)
    open_one.abort_transaction(30)


def test_top_draws_anew_on_a_terminal(bootstrap: str) -> None:
    """Each look takes the place of the one before, until ctrl-C."""
    ours, theirs = pty.openpty()
    command = [*COMMAND, "top", "--every", "0.2", "-b", bootstrap]
    with subprocess.Popen(command, cwd=ROOT, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True) as top:
        os.close(theirs)
        shown = b""
        try:
            while shown.count(CLEARED) < 3:
                assert select.select([ours], [], [], 30)[0], shown
                shown += os.read(ours, 1 << 16)
            top.send_signal(signal.SIGINT)
            assert top.wait(30) == Exit.INTERRUPTED
        finally:
            top.kill()
            os.close(ours)
    _, one, two, _ = shown.decode().split(CLEARED.decode(), 3)
    for look in one, two:
        assert all(word in look for word in ("writes", "reads", "waits", "orders", "RECORDS PER S")), look
        assert "Traceback" not in look


def test_open_transactions_are_watched(bootstrap: str) -> None:
    open_one = in_transaction(bootstrap, "pay", "orders")
    ended = oncelog("txn", "watch", "-n", "2", "--every", "0.2", "-o", "ndjson", bootstrap=bootstrap)
    looks = [json.loads(line) for line in ended.out.splitlines()]
    assert [(look["transactional_id"], look["partitions"]) for look in looks] == [("pay", ["orders-0"])] * 2
    open_one.abort_transaction(30)


@pytest.mark.timeout(180)
def test_what_is_watched_is_seen_again_when_its_broker_is_back(tmp_path: Path) -> None:
    """Both commands ended when the broker went away, the very moment that they are watched for."""
    served = Served(
        tmp_path / "data", **{"offsets.topic.num.partitions": "1", "transaction.state.log.num.partitions": "1"}
    )
    where = ("-o", "ndjson", "-b", served.bootstrap, "--timeout", "3")
    try:
        oncelog("topic", "create", "orders", bootstrap=served.bootstrap)
        oncelog("produce", "orders", stdin=b"one\ntwo\n", bootstrap=served.bootstrap)
        oncelog("consume", "orders", "--group", "billing", "-e", "-n", "1", bootstrap=served.bootstrap)
        in_transaction(served.bootstrap, "pay", "orders")
        with (
            Running("txn", "watch", "--every", "0.3", *where) as open_ones,
            Running("group", "lag", "billing", "--watch", *where) as lag,
        ):
            for each in (open_ones, lag):
                assert json.loads(each.line()), "seen before"
            served.stop()
            for each in (open_ones, lag):
                assert each.stderr is not None
                assert each.stdout is not None
                assert b"oncelog: " in each.stderr.readline()
                while select.select([each.stdout], [], [], 0)[0]:
                    assert os.read(each.stdout.fileno(), 65_536), "it has ended"
            served.start()
            assert json.loads(open_ones.line())["transactional_id"] == "pay"
            assert json.loads(lag.line())["group"] == "billing"
        late = oncelog("group", "lag", "billing", "--watch", "--fail-above", "0", bootstrap=served.bootstrap)
        assert late.status == Exit.CONDITION, late
    finally:
        served.stop()


@pytest.mark.timeout(300)
def test_what_brokers_find_wrong_between_them_is_told_with_its_cure(tmp_path: Path) -> None:
    """Of two brokers one stands still: its port accepts connections, and nobody answers them."""
    several = ("--host", "127.0.0.1", "--port", "0", "--brokers", "2", "-o", "http.listeners=http://127.0.0.1:0")
    patient = ("-o", "broker.session.timeout.ms=300000")  # otherwise it is soon no broker of the cluster any more
    with Serving("--data", str(tmp_path / "data"), *several, *patient) as running:
        first, second = running.facts["brokers"]

        def health() -> str:
            ended = oncelog("doctor", "--timeout", "2", "-o", "tsv", bootstrap=first["bootstrap"])
            return next(line for line in ended.out.splitlines() if line.startswith("health"))

        wait_for(lambda: health().split("\t")[1] == "ok")
        os.kill(second["process_id"], signal.SIGSTOP)
        try:
            wait_for(lambda: "broker 1: broker 2 can't be reached at 127.0.0.1:" in health())
            assert "advertised.listeners" in health().split("\t")[3]
            assert "its process hangs" in health().split("\t")[3]
            with urllib.request.urlopen(first["http"][0] + "/metrics") as answer:
                assert 'oncelog_trouble{kind="unreachable",about="broker 2"} 1' in answer.read().decode()
            began_s = time.monotonic()
            ended = oncelog("doctor", "--timeout", "5", "-o", "json", bootstrap=first["bootstrap"])
            assert time.monotonic() - began_s < 15, "it is waited for once, not by each check"
            found = {row["check"]: row for row in ended.json()}
            assert "broker 2 does not answer: no answer within 5 s" in found["brokers"]["finding"]
            assert "of the brokers that answer" in found["disks"]["finding"]
            ended = oncelog("top", "-n", "2", "--every", "0.2", bootstrap=first["bootstrap"])
            assert ended.status == 0, "it goes on without what can't be told"
            assert "broker 2 does not answer: no answer within 1 s; what it leads" in ended.err
        finally:
            os.kill(second["process_id"], signal.SIGCONT)

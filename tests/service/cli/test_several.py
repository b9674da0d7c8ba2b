"""`oncelog serve --brokers`: several brokers on one machine, as processes."""

import asyncio
import contextlib
import fcntl
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from log.manifest import MANIFEST
from service.broker.data_folder import StartError
from service.cli.demo import LOCK, PREFIX, _folder
from service.supervisor import BrokerProcess
from tests.peers import zookeeper
from tests.service.cli.kit import COMMAND, ROOT, Running, Serving, oncelog

PATIENCE_S = 30.0
WITH_ZOOKEEPER = pytest.mark.skipif(zookeeper.missing() is not None, reason=zookeeper.missing() or "")


def _several(data: Path, count: int, *more: str) -> Serving:
    return Serving("--data", str(data), "--host", "127.0.0.1", "--port", "0", "--brokers", str(count), *more)


def _leaders(admin: AdminClient, topic: str) -> dict[int, int]:
    return {index: each.leader for index, each in admin.list_topics(topic, timeout=10).topics[topic].partitions.items()}


def _in_sync(admin: AdminClient, topic: str) -> list[int]:
    return [len(each.isrs) for each in admin.list_topics(topic, timeout=10).topics[topic].partitions.values()]


def _wait(condition: object, what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def _is_gone(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.timeout(300)
def test_a_single_broker_becomes_the_first_of_several_and_one_that_dies_is_started_again(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with Serving.on(data) as single:
        for topic in ("before", "earlier"):
            assert oncelog("produce", topic, stdin=b"kept\n", bootstrap=single.bootstrap).status == 0
        single.stop()
    with _several(data, 2) as serving:
        admin = AdminClient({"bootstrap.servers": serving.bootstrap})
        internal = ("topic", "reassign", "__consumer_offsets", "__transaction_state", "--replicas", "2")
        ended = oncelog(*internal, bootstrap=serving.bootstrap)
        assert (ended.status, ended.out) == (3, "")
        assert "__consumer_offsets does not exist yet: it is made with the first group;" in ended.err
        assert "__transaction_state does not exist yet: it is made with the first transaction\n" in ended.err
        written = oncelog("produce", "before", "--txn-id", "first", stdin=b"kept too\n", bootstrap=serving.bootstrap)
        assert written.status == 0, written.err
        ended = oncelog(*internal, "--yes", bootstrap=serving.bootstrap)
        assert ended.status == 0, ended.err
        assert "__consumer_offsets does not exist yet" in ended.err
        _wait(lambda: min(_in_sync(admin, "__transaction_state")) == 2, "one that is there gets its copies")
        create = ("topic", "create", "orders", "-p", "4", "--replication-factor", "1")
        created = oncelog(*create, bootstrap=serving.bootstrap)
        assert (created.status, created.out) == (0, "orders\t4\t1\n")
        _wait(lambda: sorted(_leaders(admin, "orders").values()) == [1, 1, 2, 2], "partitions are spread")
        planned = oncelog("cluster", "spread", bootstrap=serving.bootstrap)
        [moved] = [line.split("\t")[0] for line in planned.out.splitlines() if line.endswith("\t0\t1\t2")]
        assert planned.status == 2, "the plan is shown, and not carried out"
        assert oncelog("cluster", "spread", "--yes", bootstrap=serving.bootstrap).status == 0
        _wait(lambda: _leaders(admin, moved) == {0: 2}, "the second gets its share")
        for topic in ("before", "earlier"):
            assert "kept" in oncelog("consume", topic, "--exit-at-end", bootstrap=serving.bootstrap).out
        for strange in (("cluster", "drain", "7"), ("topic", "reassign", "orders", "--brokers", "1,7")):
            ended = oncelog(*strange, "--yes", bootstrap=serving.bootstrap)
            assert (ended.status, ended.out) == (3, "")
            assert "broker 7 is not in the cluster" in ended.err
        second = serving.facts["brokers"][1]["process_id"]
        os.kill(second, signal.SIGKILL)
        delivered: list[int] = []
        producer = Producer({"bootstrap.servers": serving.bootstrap, "enable.idempotence": True})
        for index in range(4):
            producer.produce(
                "orders", b"value", partition=index, on_delivery=lambda error, message: delivered.append(not error)
            )
        assert producer.flush(PATIENCE_S) == 0
        assert delivered == [1] * 4, "its partitions are led again by the broker that was started again"
        assert serving.stop().status == 0
    assert _is_gone(second)


@pytest.mark.timeout(300)
def test_leaders_go_back_to_a_broker_that_is_there_again_when_the_plan_is_agreed_to(tmp_path: Path) -> None:
    with _several(tmp_path, 2) as serving:
        admin = AdminClient({"bootstrap.servers": serving.bootstrap})
        oncelog("topic", "create", "orders", "-p", "4", "--replicas", "2", bootstrap=serving.bootstrap)
        _wait(lambda: sorted(_leaders(admin, "orders").values()) == [1, 1, 2, 2], "leaders are spread")
        before = _leaders(admin, "orders")
        os.kill(serving.facts["brokers"][1]["process_id"], signal.SIGKILL)
        _wait(lambda: set(_leaders(admin, "orders").values()) == {1}, "the first leads all")
        _wait(lambda: _in_sync(admin, "orders") == [2] * 4, "the second is back")
        planned = oncelog("cluster", "rebalance", bootstrap=serving.bootstrap)
        assert planned.status == 2, "the plan is shown, and not carried out"
        theirs = [f"orders\t{index}\t1\t2" for index in sorted(before) if before[index] == 2]
        assert [line for line in planned.out.splitlines() if line.startswith("orders")] == theirs
        assert set(_leaders(admin, "orders").values()) == {1}
        assert oncelog("cluster", "rebalance", "--yes", bootstrap=serving.bootstrap).status == 0
        _wait(lambda: _leaders(admin, "orders") == before, "each leads its share again")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("also_errors", [False, True])
def test_moves_are_carried_out_although_nobody_reads_the_plan(tmp_path: Path, also_errors: bool) -> None:
    """`oncelog cluster drain 2 --yes | head -1` ended with 0, and had moved nothing."""
    with _several(tmp_path, 2) as serving:
        oncelog("topic", "create", "orders", "--partitions", "4", "--replicas", "2", bootstrap=serving.bootstrap)
        reading, writing = os.pipe()
        os.close(reading)
        try:
            drain = [*COMMAND, "cluster", "drain", "2", "--yes", "-b", serving.bootstrap]
            errors = writing if also_errors else subprocess.PIPE
            ended = subprocess.run(drain, stdout=writing, stderr=errors, cwd=ROOT, timeout=PATIENCE_S, check=False)
        finally:
            os.close(writing)
        assert ended.returncode == 0
        assert also_errors or b"fewer copies" in ended.stderr
        assert _partitions(serving.bootstrap) == {1: True, 2: False}


@pytest.mark.timeout(300)
def test_a_broker_that_hangs_is_replaced_and_comes_back_by_itself(tmp_path: Path) -> None:
    """A hung process kept its connection to the store, and so led for ever what it led."""
    with _several(tmp_path, 3, "-o", "broker.session.timeout.ms=3000") as serving:
        # A client that has asked the hung broker must ask another one in time.
        settings: dict[str, str | int | float | bool] = {
            "bootstrap.servers": serving.bootstrap,
            "socket.timeout.ms": 2000,
        }
        admin = AdminClient(settings)
        admin.create_topics([NewTopic("orders", 6, 3)])["orders"].result(20)
        _wait(lambda: sorted(_leaders(admin, "orders").values()) == [1, 1, 2, 2, 3, 3], "partitions are spread")
        hung = serving.facts["brokers"][2]["process_id"]
        os.kill(hung, signal.SIGSTOP)
        try:
            _wait(lambda: 3 not in _leaders(admin, "orders").values(), "others lead what it led")
            producer = Producer({**settings, "acks": "all"})
            for number in range(60):
                producer.produce("orders", b"%d" % number, partition=number % 6)
            assert producer.flush(PATIENCE_S) == 0
        finally:
            os.kill(hung, signal.SIGCONT)
        _wait(lambda: _partitions(serving.bootstrap) == {1: True, 2: True, 3: True}, "it is back")
        _wait(lambda: _in_sync(admin, "orders") == [3] * 6, "and in sync")
        read = oncelog("consume", "orders", "--exit-at-end", "-f", "%s\\n", bootstrap=serving.bootstrap).out.split()
        assert sorted(read) == sorted(map(str, range(60)))


@pytest.mark.timeout(300)
def test_brokers_stop_in_order_although_one_is_paused(tmp_path: Path) -> None:
    with _several(tmp_path, 2, "-o", "broker.session.timeout.ms=2000") as serving:
        os.kill(serving.facts["brokers"][1]["process_id"], signal.SIGSTOP)
        time.sleep(4)  # its session is over
        assert serving.stop().status == 0


@pytest.mark.timeout(300)
def test_a_pause_of_the_process_that_holds_the_store_takes_no_broker_for_dead(tmp_path: Path) -> None:
    """The brokers lead nothing while they can't know of their sessions, and go on by them afterwards."""
    with _several(tmp_path, 2, "-o", "broker.session.timeout.ms=2000") as serving:
        admin = AdminClient({"bootstrap.servers": serving.bootstrap})
        admin.create_topics([NewTopic("orders", 4, 2)])["orders"].result(20)
        serving.process.send_signal(signal.SIGSTOP)
        time.sleep(5)
        serving.process.send_signal(signal.SIGCONT)
        producer = Producer({"bootstrap.servers": serving.bootstrap, "acks": "all"})
        for number in range(4):
            producer.produce("orders", b"value", partition=number)
        assert producer.flush(PATIENCE_S) == 0
        said = serving.stop().err
    assert said.count("the metadata store answers again") == 2
    assert "is over" not in said and "silent" not in said, said


@pytest.mark.timeout(300)
def test_the_way_back_is_refused_with_the_command_that_makes_it_possible(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with _several(data, 2) as serving:
        oncelog("topic", "create", "orders", "--partitions", "4", bootstrap=serving.bootstrap)
        assert serving.stop().status == 0
    for few in ([], ["--brokers", "1"]):
        refused = Running("serve", "--data", str(data), "--port", "0", *few).ended()
        assert refused.status == 1
        assert "the metadata names brokers [2] too: start all of them (oncelog serve --brokers 2)" in refused.err
        assert "oncelog cluster drain 2" in refused.err
    assert (data / MANIFEST).exists(), "a start that is refused leaves what the clean stop wrote"


def test_of_several_brokers_none_is_told_that_it_is_alone(tmp_path: Path) -> None:
    """What is wrong with the settings is said all the same, by each."""
    settings = ["-o", "default.replication.factor=2", "-o", "nmu.partitions=3"]
    with Serving("--data", str(tmp_path), "--host", "127.0.0.1", "--port", "0", "--brokers", "2", *settings) as serving:
        said = serving.stop().err
    assert "there is one broker" not in said
    assert "nmu.partitions is not a key" in said


def test_several_brokers_say_where_their_pages_are(tmp_path: Path) -> None:
    http = "http.listeners=http://127.0.0.1:0"
    with Running(*f"serve --host 127.0.0.1 --port 0 --brokers 2 -o {http} --data {tmp_path}".split()) as serving:
        (line,) = [line for line in _until(serving, "To try it").splitlines() if "HTTP" in line]
        assert re.fullmatch(r"  HTTP +http://127.0.0.1:\d+, http://127.0.0.1:\d+", line)


def test_brokers_end_with_the_process_that_holds_their_store(tmp_path: Path) -> None:
    with _several(tmp_path / "data", 2) as serving:
        processes = [each["process_id"] for each in serving.facts["brokers"]]
        serving.kill()
        _wait(lambda: all(map(_is_gone, processes)), "they stop")


def _addresses(bootstrap: str) -> list[str | None]:
    return [row["address"] for row in oncelog("cluster", "-o", "json", bootstrap=bootstrap).json()]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("metadata", [[], pytest.param(["--zookeeper"], marks=WITH_ZOOKEEPER)], ids=["", "zookeeper"])
def test_the_demo_keeps_what_was_committed_while_brokers_die_and_are_emptied(metadata: list[str]) -> None:
    port = _free_ports(3)
    with Running("demo", "--port", str(port), *metadata) as demo:
        told = _until(demo, "sort -n")
        bootstrap = f"127.0.0.1:{port}"
        producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "demo"})
        producer.init_transactions(PATIENCE_S)
        producer.begin_transaction()
        for number in range(1000):
            producer.produce("numbers", b"%d" % number)
        producer.commit_transaction(PATIENCE_S)
        victim = int(re.findall(r"broker 3 .* process (\d+)", told)[0])
        os.kill(victim, signal.SIGKILL)
        (line,) = re.findall(r"^  (.+ cluster -b .+)$", told, re.M)
        assert subprocess.run(line, shell=True, check=True, cwd=ROOT, capture_output=True).stdout
        numbers = [*map(str, range(1000))]
        # A reader that comes in the moment of the death is told that nobody answers, and asks again.
        _wait(lambda: sorted(_numbers(bootstrap)) == sorted(numbers), "nothing is lost, nothing is there twice")
        _wait(lambda: _addresses(bootstrap) == [f"127.0.0.1:{port + number}" for number in range(3)], "it is back")
        reassigned = oncelog("topic", "reassign", "numbers", "--replication-factor", "2", "--yes", bootstrap=bootstrap)
        assert reassigned.status == 0, reassigned.err
        drained = oncelog("cluster", "drain", "3", "--yes", bootstrap=bootstrap)
        assert drained.status == 0, drained.err
        rows = [line.split("\t") for line in oncelog("cluster", "-o", "tsv", bootstrap=bootstrap).out.splitlines()]
        assert [row[4] for row in rows if row[0] == "3"] == ["0"], "it holds nothing"
        _wait(lambda: _partitions(bootstrap) == {1: True, 2: True, 3: False}, "its folder is empty")
        described = json.loads(oncelog("broker", "describe", "2", "-o", "json", bootstrap=bootstrap).out)
        assert described["address"] == f"127.0.0.1:{port + 1}"
        assert described["settings"]["min.insync.replicas"] == "2"
        assert "compression.type" not in described["settings"]
        assert "min.insync.replicas=2" in oncelog("broker", "describe", "2", "-o", "table", bootstrap=bootstrap).out
        assert oncelog("broker", "describe", "9", bootstrap=bootstrap).status == 3
        assert sorted(_numbers(bootstrap)) == sorted(numbers)
        demo.send_signal(signal.SIGINT)
        assert demo.ended().status == 0


def test_a_demo_that_can_t_start_says_why() -> None:
    port = _free_ports(2)
    with socket.create_server(("127.0.0.1", port + 1)):
        told = oncelog("demo", "--brokers", "2", "--port", str(port))
    assert told.status == 1
    assert f"broker 2 did not start (status 1): can't listen on 127.0.0.1:{port + 1}" in told.err


def test_a_broker_that_ends_with_a_traceback_says_its_last_line(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "raise RuntimeError('the disk is made of cheese')"]
    with pytest.raises(StartError, match=r"status 1\): RuntimeError: the disk is made of cheese$"):
        asyncio.run(BrokerProcess(1, command, tmp_path / "brokers.log").start())


def test_the_words_of_a_broker_that_did_not_start_may_be_in_a_file_that_was_moved(tmp_path: Path) -> None:
    """As logrotate does. It ended the task that starts the broker again."""
    log = tmp_path / "brokers.log"
    command = [sys.executable, "-c", f"import os; os.rename({str(log)!r}, {str(log) + '.1'!r})"]
    with pytest.raises(StartError, match=r"broker 1 did not start \(status 0\)$"):
        asyncio.run(BrokerProcess(1, command, log).start())


def test_a_demo_removes_what_one_that_was_killed_has_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing of one that runs, of one that begins, or what only has such a name."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    elsewhere = tmp_path / "elsewhere"
    for name in ("killed", "runs", "begins"):
        (tmp_path / f"{PREFIX}{name}" / "data").mkdir(parents=True)
    elsewhere.mkdir()
    (tmp_path / f"{PREFIX}link").symlink_to(elsewhere)
    for folder in (elsewhere, tmp_path / f"{PREFIX}killed", tmp_path / f"{PREFIX}runs"):
        (folder / LOCK).touch()
    with (tmp_path / f"{PREFIX}runs" / LOCK).open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with socket.create_server(("127.0.0.1", 0)) as taken:
            assert oncelog("demo", "--brokers", "1", "--port", str(taken.getsockname()[1])).status == 1
    left = {path.name.removeprefix(PREFIX) for path in tmp_path.iterdir()}
    assert left == {"runs", "begins", "link", "elsewhere"}
    assert (elsewhere / LOCK).exists()


def test_the_lock_of_what_a_demo_has_left_is_removed_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A removal that was interrupted had often begun with it, and nobody went on."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    left = tmp_path / f"{PREFIX}killed"
    (left / "data").mkdir(parents=True)
    for name in (LOCK, *(f"data/{number}" for number in range(20)), *(f"{number}.log" for number in range(20))):
        (left / name).touch()
    removed: list[str] = []
    unlink = os.unlink

    def noted(path: str | Path, **more: int) -> None:
        removed.append(Path(path).name)
        unlink(path, **more)

    monkeypatch.setattr(os, "unlink", noted)
    with _folder():
        assert removed.index(LOCK) == 40
        assert not left.exists()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("is_up", [True, False], ids=["up", "starting"])
def test_a_demo_that_is_told_to_end_again_and_again_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals, is_up: bool
) -> None:
    """The second Ctrl-C left its data when it came while that was removed."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with Running("demo", "--brokers", "1", "--port", "0", stderr=subprocess.DEVNULL) as demo:
        if is_up:
            assert demo.line()
        else:
            _wait(lambda: list(tmp_path.iterdir()), "it has begun")
        deadline = time.monotonic() + PATIENCE_S
        while demo.poll() is None:
            assert time.monotonic() < deadline, "it ends"
            demo.send_signal(number)
            time.sleep(0.001)
    assert list(tmp_path.iterdir()) == []
    assert demo.returncode in ((0,) if is_up else (0, 130))


def _partitions(bootstrap: str) -> dict[int, bool]:
    """Whether each broker's folder holds any."""
    listed = json.loads(oncelog("broker", "list", "-o", "json", bootstrap=bootstrap).out)
    return {each["broker"]: each["partitions"] > 0 for each in listed}


def _free_ports(count: int) -> int:
    """The first of so many ports in a row that are free, and so are those of their HTTP servers."""
    while True:
        with contextlib.ExitStack() as held:
            port = held.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1]
            try:
                for place in (*range(port + 1, port + count), *range(port - 1010, port - 1010 + count)):
                    held.enter_context(socket.create_server(("127.0.0.1", place)))
            except OSError:
                continue
            return int(port)


def _until(running: Running, last: str) -> str:
    """A ZooKeeper and three brokers take their time on a machine that has other things to do."""
    told, deadline = "", time.monotonic() + 4 * PATIENCE_S
    while last not in told:
        told += running.line().decode()
        assert running.poll() is None and time.monotonic() < deadline, told
    return told


def _numbers(bootstrap: str) -> list[str]:
    return oncelog("consume", "numbers", "--exit-at-end", "-f", "%s\\n", bootstrap=bootstrap).out.split()


def test_more_brokers_than_there_are_ports_are_refused(tmp_path: Path) -> None:
    ended = Running("serve", "--data", str(tmp_path), "--port", "65534", "--brokers", "3").ended()
    assert ended.status == 1
    assert "3 brokers need the ports 65534 to 65536" in ended.err


@pytest.mark.parametrize("brokers", ["0", "many", "-1"])
def test_a_number_of_brokers_that_cannot_be_is_told(tmp_path: Path, brokers: str) -> None:
    ended = Running("serve", "--data", str(tmp_path / "data"), "--brokers", brokers).ended()
    assert ended.status == 2
    assert "a number from 1 to 100, or auto" in ended.err

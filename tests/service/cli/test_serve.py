"""`oncelog serve` as a process: what it tells, what keeps it from starting, how it ends, what survives a kill."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from log.manifest import MANIFEST
from service.broker.data_folder import LAYOUT
from service.cli.data_lock import LOCK_FILE
from service.cli.failures import CliError
from service.cli.serve import LINES_A_PERIOD, LONGEST_LINE, PERIOD_S, OneLine, Seldom, how_many
from tests.peers.process import free_port
from tests.service.cli.kit import COMMAND, PATIENCE_S, ROOT, Ended, Running, Serving, oncelog, process


def _refused(*arguments: str, prefix: tuple[str, ...] = ()) -> Ended:
    """A start that is meant to fail: it says why in one line, and prints nothing else."""
    ended = _failed(*arguments, prefix=prefix)
    assert ended.err.count("\n") == 1, ended.err
    assert ended.err.startswith("oncelog: ")
    return ended


def _failed(*arguments: str, prefix: tuple[str, ...] = ()) -> Ended:
    done = subprocess.run(
        [*prefix, *COMMAND, "serve", "--host", "127.0.0.1", *arguments],
        capture_output=True,
        timeout=PATIENCE_S,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    ended = Ended(done.returncode, done.stdout.decode(), done.stderr.decode())
    assert ended.status not in (0, None)
    assert ended.out == ""
    return ended


def _files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != ".lock"
    }


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with Serving.on(tmp_path_factory.mktemp("broker") / "data") as serving:
        yield serving


def test_it_tells_where_it_is(broker: Serving) -> None:
    assert set(broker.facts) == {"bootstrap", "http", "data", "node_id", "cluster_id", "process_id"}
    host, _, port = broker.bootstrap.rpartition(":")
    socket.create_connection((host, int(port))).close()
    assert Path(broker.facts["data"][0]).is_dir()


def test_the_banner_has_the_address_the_folder_and_lines_to_copy(tmp_path: Path) -> None:
    """The lines are tried literally, as far as the programs in them are on this machine."""
    data = tmp_path / "data"
    flags = ("--host", "127.0.0.1", "--port", "0", "--data", str(data))
    with Running("serve", *flags, stderr=subprocess.DEVNULL) as serving:
        banner = ""
        while " consume greetings " not in banner:
            line = serving.line().decode()
            assert line, banner
            banner += line
        _try_the_lines_of(banner, data)


def test_an_ipv6_address_is_printed_as_clients_read_it(tmp_path: Path) -> None:
    if not socket.has_ipv6 or not Path("/proc/net/if_inet6").exists():
        pytest.skip("this machine has no IPv6")
    with Serving("--host", "::1", "--port", "0", "--data", str(tmp_path / "data")) as serving:
        assert serving.bootstrap.startswith("[::1]:")
        assert oncelog("produce", "orders", stdin=b"one\n", bootstrap=serving.bootstrap).status == 0


def test_listeners_may_have_names_of_their_own(tmp_path: Path) -> None:
    """The clients of each are told an address of that listener: of brokers, of the controller and of coordinators."""
    first, second = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    config = tmp_path / "server.properties"
    config.write_text(
        f"listeners=clients://{first},BACKUP://{second}\n"
        "listener.security.protocol.map=clients:plaintext,BACKUP:PLAINTEXT\n"
    )
    with Serving("-c", str(config), "--data", str(tmp_path / "data")):
        for address in (first, second):
            for command in (
                ("topic", "create", "orders"),
                ("config", "set", "--topic", "orders", "retention.ms=5000"),
                ("config", "set", "log.cleaner.backoff.ms=100"),
                ("group", "reset", "readers", "--topic", "orders", "--to", "earliest", "--yes"),
                ("topic", "delete", "--yes", "orders"),
            ):
                done = oncelog(*command, bootstrap=address)
                assert done.status == 0, (command, done.err)


def _try_the_lines_of(banner: str, data: Path) -> None:
    assert str(data) in banner
    address = banner.partition("bootstrap address")[2].split()[0]
    assert not address.endswith(":0")
    python_line = banner.partition("/tmp/try/bin/python -c ")[2].partition("get())'")[0] + "get())'"
    commands = [f"{sys.executable} -c {python_line}"]
    if shutil.which("kcat"):
        commands += [line for line in banner.splitlines() if "kcat" in line]
    for line in commands:
        subprocess.run(line, shell=True, check=True, timeout=PATIENCE_S, capture_output=True)
    written = oncelog("consume", "greetings", "-e", "-b", address).out.splitlines()
    assert written == ["hello from Python", "hello"][: len(commands)]


def test_a_second_broker_on_the_folder_is_refused(broker: Serving) -> None:
    ended = _refused("--port", "0", "--data", broker.facts["data"][0])
    assert f"is in use by another broker (process {broker.facts['process_id']}); --data FOLDER takes" in ended.err
    assert oncelog("topic", "ls", bootstrap=broker.bootstrap).status == 0


def test_a_port_in_use_is_told_before_the_folder_is_filled(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        ended = _refused("--port", str(port), "--data", str(tmp_path / "data"))
    assert ended.err == f"oncelog: can't listen on 127.0.0.1:{port}: the port is in use; --port N takes another\n"
    assert _files(tmp_path / "data") == {}


def test_flags_do_not_take_the_place_of_listeners_that_can_not_be_served(tmp_path: Path) -> None:
    ended = _refused("-o", "listeners=SASL_SSL://:9095", "--port", "0", "--data", str(tmp_path / "data"))
    assert "SASL_SSL" in ended.err and not (tmp_path / "data").exists()


def test_a_host_that_is_not_ours_is_told(tmp_path: Path) -> None:
    assert "can't listen on 192.0.2.1:0" in _refused("--host", "192.0.2.1", "--port", "0", "--data", str(tmp_path)).err


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    ended = _refused("--port", "0", "--data", str(tmp_path / "file" / "data"))
    assert ended.err == f"oncelog: the data folder {tmp_path}/file/data can't be written: Not a directory\n"


def test_a_relative_folder_is_told_to_others_as_it_is_called_anywhere(tmp_path: Path) -> None:
    """As Kafka tells it: who asks is somewhere else."""
    data = tmp_path / "data"
    with Serving("--host", "127.0.0.1", "--port", "0", "--data", os.path.relpath(data, ROOT)) as serving:
        (row,) = oncelog("broker", "list", "-o", "json", bootstrap=serving.bootstrap).json()
        assert row["folder"] == str(ROOT / os.path.relpath(data, ROOT))


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="no setpriv on this machine")
@pytest.mark.parametrize("was_used", [False, True])
def test_an_unwritable_folder_is_told(tmp_path: Path, was_used: bool) -> None:
    """Also one whose files may be written: the broker came up, and only its stop said so."""
    data = tmp_path / "data"
    data.mkdir()
    if was_used:
        (data / LOCK_FILE).touch()
    data.chmod(0o500)
    # Not even root may write what it has no capability for.
    prefix = ("setpriv", "--bounding-set=-dac_override") if os.geteuid() == 0 else ()
    ended = _refused("--port", "0", "--data", str(data), prefix=prefix)
    assert ended.err == f"oncelog: the data folder {data} can't be written: Permission denied\n"


def test_data_folders_may_be_named_in_another_order_and_more_be_added_anywhere(tmp_path: Path) -> None:
    one, two, three = (str(tmp_path / name) for name in ("one", "two", "three"))
    for number, folders in enumerate(((one, two), (two, one), (three, one, two))):
        with Serving("--data", ",".join(folders), "--host", "127.0.0.1", "--port", "0") as serving:
            wrote = oncelog("produce", "orders", stdin=b"x\n", bootstrap=serving.bootstrap)
            assert wrote.status == 0, wrote
            assert oncelog("consume", "orders", "-e", bootstrap=serving.bootstrap).out == "x\n" * (number + 1)
            assert serving.stop().status == 0


def test_it_does_not_run_without_its_assertions(tmp_path: Path) -> None:
    ended = _refused("--port", "0", "--data", str(tmp_path / "data"), prefix=("env", "PYTHONOPTIMIZE=1"))
    assert "does not run under python -O" in ended.err
    assert _files(tmp_path / "data") == {}


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("rubbish", "is no URL"),
        ("mysql://x/y", "not offered"),
        ("sqlite+aiosqlite:///x", "not offered"),
        ("sqlite:///:memory:", "would forget every topic at the stop"),
        ("sqlite:////nosuch/meta.db", "unable to open database file"),
    ],
)
def test_a_store_that_cannot_be_is_told(tmp_path: Path, url: str, why: str) -> None:
    ended = _refused("--port", "0", "--data", str(tmp_path / "data"), "-o", f"store.url={url}")
    assert why in ended.err
    assert not list((tmp_path / "data").glob("m*"))


def test_a_folder_may_be_called_anything(tmp_path: Path) -> None:
    data = tmp_path / "what? 50%25 #1 ä:b@c"
    for _ in range(2):
        with Serving.on(data) as serving:
            assert oncelog("produce", "orders", stdin=b"one\n", bootstrap=serving.bootstrap).status == 0
            assert serving.stop().status == 0
    assert (data / "meta.db").exists()
    assert [path.name for path in tmp_path.iterdir()] == [data.name]


def _small_disk(folder: Path, free_kib: int) -> tuple[str, ...]:
    """What runs a command with `folder` on a disk of its own that has so much room left."""
    full = f"head -c {1024 - free_kib}K /dev/zero > {folder}/ballast"
    script = f'mount -t tmpfs -o size=1m none {folder} && {full} && exec "$@"'
    return ("unshare", "--map-root-user", "--mount", "sh", "-c", script, "sh")


def _can_mount(folder: Path) -> bool:
    if shutil.which("unshare") is None:
        return False
    return subprocess.run([*_small_disk(folder, 1024), "true"], capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize("free_kib", [0, 4, 32, 64])
def test_a_full_disk_is_told(tmp_path: Path, free_kib: int) -> None:
    """Full at once, after the lock file, and within the metadata."""
    if not _can_mount(tmp_path):
        pytest.skip("this machine lets nobody mount a small disk")
    ended = _refused("--port", "0", "--data", str(tmp_path / "data"), prefix=_small_disk(tmp_path, free_kib))
    assert "full" in ended.err or "No space left" in ended.err


def test_a_broker_whose_disk_is_full_as_it_registers_tries_for_a_while_and_says_why_it_ends(tmp_path: Path) -> None:
    if not _can_mount(tmp_path):
        pytest.skip("this machine lets nobody mount a small disk")
    ended = _failed("--port", "0", "--data", str(tmp_path / "data"), prefix=_small_disk(tmp_path, 96))
    why = ended.err.splitlines()[-1]
    assert why.startswith("oncelog: ")
    assert "full" in why


def test_a_folder_of_a_newer_version_is_refused_and_left_alone(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with Serving.on(data) as serving:
        assert serving.stop().status == 0
    meta = data / "meta.properties"
    meta.write_text(meta.read_text().replace(f"oncelog.layout={LAYOUT}", "oncelog.layout=999"))
    before = _files(data)
    assert "newer" in _refused("--port", "0", "--data", str(data)).err
    assert _files(data) == before


def test_a_folder_of_apache_kafka_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "meta.properties").write_text("version=1\nnode.id=1\ncluster.id=abc\n")
    _refused("--port", "0", "--data", str(tmp_path))
    assert list(_files(tmp_path)) == ["meta.properties"]


def test_a_folder_of_somebody_elses_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear all")
    assert "not empty (it holds letter.txt)" in _refused("--port", "0", "--data", str(tmp_path)).err
    assert list(_files(tmp_path)) == ["letter.txt"]


def test_metadata_that_are_gone_are_not_replaced_by_empty_ones(tmp_path: Path) -> None:
    """The records would still be there, and nobody could see them. Nor are empty ones made beside: if the metadata were
    in another folder, which was not named this time, they would be found instead next time.
    """
    data = tmp_path / "data"
    with Serving.on(data) as serving:
        assert oncelog("produce", "orders", stdin=b"a\n", bootstrap=serving.bootstrap).status == 0
        assert serving.stop().status == 0
    (data / "meta.db").rename(tmp_path / "kept")
    assert "no meta.db is there: name all folders" in _refused("--port", "0", "--data", str(data)).err
    assert not (data / "meta.db").exists()
    (tmp_path / "kept").rename(data / "meta.db")
    with Serving.on(data) as serving:
        assert oncelog("consume", "orders", "-e", bootstrap=serving.bootstrap).out == "a\n"


def test_the_lag_of_a_group_is_told_where_it_is_known_when_a_disk_has_failed(tmp_path: Path) -> None:
    folders, settings = f"log.dirs={tmp_path}/a,{tmp_path}/b", ("-o", "offsets.topic.num.partitions=1")
    with Serving("-o", folders, *settings, "--host", "127.0.0.1", "--port", "0") as serving:

        def run(*arguments: str, stdin: bytes = b"") -> Ended:
            return oncelog(*arguments, stdin=stdin, bootstrap=serving.bootstrap)

        run("topic", "create", "orders", "-p", "4")
        for number in range(4):
            run("produce", "orders", "-p", str(number), stdin=b"a\n")
        assert run("group", "reset", "readers", "--to", "earliest", "-t", "orders", "--yes").status == 0
        failing = tmp_path / ("b" if (tmp_path / "a" / "__consumer_offsets-0").exists() else "a")
        lost = sorted(int(path.name.rpartition("-")[2]) for path in failing.glob("orders-*"))
        assert 0 < len(lost) < 4
        for path in failing.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        deadline = time.monotonic() + PATIENCE_S
        while all(row["lag"] is not None for row in run("group", "lag", "readers", "-o", "json").json()):
            assert time.monotonic() < deadline
        rows = run("group", "lag", "readers", "-o", "json").json()
        assert {row["partition"]: row["lag"] for row in rows} == {
            number: None if number in lost else 1 for number in range(4)
        }
        refused = run("group", "lag", "readers", "--fail-above", "5")
        assert (refused.status, f"{len(lost)} partition(s) are behind is unknown" in refused.err) == (1, True)
        described = run("group", "describe", "readers", "-o", "json").json()
        assert [row["lag"] for row in described["partitions"]].count(None) == len(lost)


def test_a_disk_that_is_not_mounted_is_missed(tmp_path: Path) -> None:
    folders = f"log.dirs={tmp_path}/a,{tmp_path}/b"
    with Serving("-o", folders, "--host", "127.0.0.1", "--port", "0") as serving:
        assert serving.stop().status == 0
    (tmp_path / "b").rename(tmp_path / "elsewhere")
    assert f"{tmp_path}/b is empty" in _refused("--port", "0", "-o", folders).err
    shutil.rmtree(tmp_path / "b")
    (tmp_path / "elsewhere").rename(tmp_path / "b")
    with Serving("-o", folders, "--host", "127.0.0.1", "--port", "0"):
        pass


def test_a_folder_named_twice_is_told(tmp_path: Path) -> None:
    assert "named twice" in _refused("--port", "0", "-o", f"log.dirs={tmp_path}/a,{tmp_path}/b/../a").err


def test_a_setting_that_is_wrong_is_told_with_2(tmp_path: Path) -> None:
    ended = _refused("--port", "0", "--data", str(tmp_path / "data"), "-o", "log.segment.bytes=few")
    assert ended.status == 2
    assert "log.segment.bytes" in ended.err
    assert not (tmp_path / "data").exists()


def test_problems_of_the_settings_are_a_line_each(tmp_path: Path) -> None:
    ended = oncelog("serve", "--data", str(tmp_path / "data"), "-o", "log.segment.bytes=few", "-o", "num.partitions=0")
    assert ended.status == 2
    assert [line[:22] for line in ended.err.splitlines()] == ["oncelog: Invalid value"] * 2


def test_a_file_that_is_not_there_is_told_with_2(tmp_path: Path) -> None:
    assert _refused("-c", str(tmp_path / "server.properties")).status == 2


def test_a_server_properties_of_kafkas_starts_it(tmp_path: Path) -> None:
    """The file that Kafka is shipped with, but for the folder and the port. What can't be honoured is named."""
    properties = tmp_path / "server.properties"
    properties.write_text(
        f"""
# Licensed to the Apache Software Foundation (ASF) under one or more contributor license agreements.
broker.id=0
listeners=PLAINTEXT://127.0.0.1:0
num.network.threads=3
num.io.threads=8
socket.send.buffer.bytes=102400
socket.receive.buffer.bytes=102400
socket.request.max.bytes=104857600
log.dirs={tmp_path}/data
num.partitions=3
num.recovery.threads.per.data.dir=1
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
log.retention.hours=168
log.retention.check.interval.ms=300000
group.initial.rebalance.delay.ms=0
"""
    )
    with Serving("-c", str(properties)) as serving:
        assert serving.facts["data"] == [f"{tmp_path}/data"]
        created = oncelog("topic", "create", "orders", "-o", "json", bootstrap=serving.bootstrap)
        assert created.json()[0]["partitions"] == 3
        ended = serving.stop()
    assert ended.status == 0
    assert "num.io.threads" in ended.err


def test_a_client_that_asks_in_vain_without_end_does_not_fill_the_log(tmp_path: Path) -> None:
    began_s = time.monotonic()
    with Serving.on(tmp_path / "data") as serving:
        for _ in range(60):
            with socket.create_connection(("127.0.0.1", serving.port)) as client:
                client.sendall(struct.pack(">ihhih", 10, 999, 0, 1, -1))
                assert client.recv(1) == b"", "its connection is closed"
        said = [line for line in serving.stop().err.splitlines() if "API 999" in line]
    periods = (time.monotonic() - began_s) // PERIOD_S + 1
    assert LINES_A_PERIOD <= len(said) <= LINES_A_PERIOD * periods
    assert "more of this kind are left out for" in said[LINES_A_PERIOD - 1]


def test_a_client_that_sends_what_is_no_http_without_end_does_not_fill_the_log(tmp_path: Path) -> None:
    """Also a line that each gets without a trace is few of its kind."""
    began_s = time.monotonic()
    data = ("--data", str(tmp_path / "data"), "--port", "0")
    with Serving(*data, "--host", "127.0.0.1", "-o", "http.listeners=http://127.0.0.1:0") as serving:
        port = urlsplit(serving.facts["http"][0]).port
        for _ in range(60):
            with socket.create_connection(("127.0.0.1", port)) as client:
                client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nno header\r\n\r\n")
                assert client.recv(100).startswith(b"HTTP/1.0 400")
        said = [line for line in serving.stop().err.splitlines() if "Error handling request" in line]
    periods = (time.monotonic() - began_s) // PERIOD_S + 1
    assert LINES_A_PERIOD <= len(said) <= LINES_A_PERIOD * periods, said
    assert "more of this kind are left out for" in said[LINES_A_PERIOD - 1]


def test_what_a_client_has_named_forges_no_line_of_the_log() -> None:
    def said(name: str) -> str:
        return OneLine("%(message)s").format(logging.LogRecord("oncelog", logging.INFO, "", 1, "%s, ü", (name,), None))

    assert said("a\n2026 ERROR oncelog.disk: forged\r\x1b[2J\u2028") == (
        "a\\n2026 ERROR oncelog.disk: forged\\r\\x1b[2J\\u2028, ü"
    )
    assert said("x" * 30_000) == "x" * LONGEST_LINE + "... (30003 characters)"


def test_lines_that_were_left_out_are_counted() -> None:
    now_s, seldom = 100.0, Seldom(lambda: now_s)

    def said(text: str, *filled_in: object) -> str | None:
        record = logging.LogRecord("oncelog.door", logging.INFO, "", 1, text, filled_in, None)
        return record.getMessage() if seldom.filter(record) else None

    assert [said("%d asks", number) for number in range(9)] == [f"{number} asks" for number in range(9)]
    now_s += 4
    assert said("%d asks", 9) == "9 asks (more of this kind are left out for 6 s)"
    assert [said("%d asks", number) for number in range(3)] == [None] * 3
    assert said("%d is refused", 7) == "7 is refused", "it is of another kind"
    now_s += 6
    assert said("%d asks", 8) == "8 asks (3 of this kind were left out before)"
    assert said("%d asks", 9) == "9 asks"
    now_s += 60
    assert said("%d asks", 9) == "9 asks"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_cleanly(tmp_path: Path, number: int) -> None:
    """Status 0, and the next start has nothing to repair."""
    data = tmp_path / "data"
    with Serving.on(data) as serving:
        assert oncelog("produce", "orders", stdin=b"one\ntwo\n", bootstrap=serving.bootstrap).status == 0
        ended = serving.stop(number)
    said = [line for line in ended.err.splitlines() if "oncelog.loop" not in line]  # a busy machine is told of
    assert (ended.status, ended.out, said) == (0, "", [])
    assert oncelog("log", "verify", str(data)).status == 0
    with Serving.on(data) as again:
        assert oncelog("consume", "orders", "-e", bootstrap=again.bootstrap).out == "one\ntwo\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("more", [[], ["--brokers", "2"]], ids=["one", "several"])
def test_a_signal_ends_cleanly_what_has_just_begun_to_start(tmp_path: Path, number: int, more: list[str]) -> None:
    """It died of the signal until a second or more after its start."""
    os.mkfifo(pipe := tmp_path / "server.properties")
    with Running("serve", "-c", str(pipe), *more) as serving:
        with pipe.open("wb"):  # which waits until it is read from
            serving.send_signal(number)
        assert serving.ended() == (0, "", "oncelog: stopped while starting\n")


def test_a_signal_that_comes_twice_at_once_is_one(tmp_path: Path) -> None:
    """`timeout` sends its signal to the process and to its group."""
    with Serving.on(tmp_path / "data") as serving:
        serving.process.send_signal(signal.SIGTERM)
        assert serving.stop(signal.SIGTERM).status == 0
    assert (tmp_path / "data" / MANIFEST).exists()


def test_a_kill_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    """The reports of `produce` are the acknowledgements; the kill comes in the middle of the stream."""
    data = tmp_path / "data"
    with Serving.on(data) as serving:
        assert oncelog("topic", "create", "orders", "-p", "2", bootstrap=serving.bootstrap).status == 0
        flags = ("-o", "tsv", "-b", serving.bootstrap, "--timeout", "2")
        with Running("produce", "orders", *flags, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as producing:
            assert producing.stdin is not None
            for number in range(20):
                producing.stdin.write(b"record %d\n" % number)
                producing.stdin.flush()
                assert producing.line().startswith(b"orders\t")
            serving.kill()
            producing.stdin.write(b"too late\n")
            producing.stdin.close()
            producing.wait(PATIENCE_S)
        # Sent into a broken connection, or never sent: it says that it does not know, or that nobody is there.
        assert producing.returncode in (5, 7)
    assert oncelog("log", "verify", str(data)).status == 0
    with Serving.on(data, port=serving.port) as again:
        read = oncelog("consume", "orders", "-e", bootstrap=again.bootstrap).out.splitlines()
    assert sorted(read) == sorted(f"record {number}" for number in range(20))


def test_the_topics_of_a_killed_broker_are_there_again(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with Serving.on(data) as serving:
        oncelog("topic", "create", "orders", "-c", "retention.ms=1000000", bootstrap=serving.bootstrap)
        serving.kill()
    with Serving.on(data) as again:
        (topic,) = oncelog("topic", "describe", "orders", "-o", "json", bootstrap=again.bootstrap).json()
    assert topic["settings"] == {"retention.ms": "1000000"}


def test_the_address_for_other_commands_is_no_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONCELOG_BOOTSTRAP", "localhost:9092")
    with Serving.on(tmp_path / "data") as serving:
        ended = serving.stop()
    assert ended.status == 0
    assert "bootstrap" not in ended.err


def test_an_environment_variable_is_a_setting(tmp_path: Path) -> None:
    ended = process("serve", "--data", str(tmp_path / "data"), ONCELOG_LOG_SEGMENT_BYTES="few")
    assert ended.status == 2
    assert "log.segment.bytes" in ended.err


def _write(bootstrap: str, text: bytes) -> None:
    assert oncelog("produce", "orders", stdin=text, bootstrap=bootstrap) == Ended(0, "", "")


def test_who_reads_in_a_group_reads_on_after_a_crash_of_the_broker(tmp_path: Path) -> None:
    """The member keeps asking, and the group is a fold over the log: nobody joins anew, nothing is read twice."""
    data = tmp_path / "data"
    with Serving.on(data) as serving:
        _write(serving.bootstrap, b"before\n")
        flags = ("-g", "readers", "-n", "2", "-b", serving.bootstrap, "--timeout", "20")
        with Running("consume", "orders", *flags) as reading:
            assert reading.line() == b"before\n"
            serving.kill()
            with Serving.on(data, port=serving.port) as again:
                _write(again.bootstrap, b"after\n")
                assert reading.ended() == Ended(0, "after\n", "")
                (row,) = oncelog("group", "lag", "readers", "-o", "json", bootstrap=again.bootstrap).json()
                assert row["lag"] == 0


def test_readers_do_not_hold_up_a_stop(tmp_path: Path) -> None:
    """A long poll is answered or cut; either way the reader learns of it and the broker ends with 0."""
    with Serving.on(tmp_path / "data") as serving:
        _write(serving.bootstrap, b"one\n")
        with Running("consume", "orders", "-b", serving.bootstrap, "--timeout", "2") as reading:
            assert reading.line() == b"one\n"
            assert serving.stop().status == 0
            ended = reading.ended()
            assert (ended.status, ended.err.count("\n")) == (5, 1)


def test_how_many_brokers_is_a_decimal_number_or_a_core_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {3})
    assert (how_many("auto"), how_many("7")) == (1, 7)
    for told in ("²", "0", "101", "-1", "x", ""):
        with pytest.raises(CliError, match="a number from 1 to 100, or auto"):
            how_many(told)

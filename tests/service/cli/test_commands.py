"""The commands that talk to a broker, against ours."""

from __future__ import annotations

import itertools
import json
import os
import pty
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from service.cli.failures import Exit
from service.client.cluster import Cluster
from service.client.failures import ClientFailure, FailureKind
from service.client.transaction import Transaction
from service.wire.base import Struct
from service.wire.error_codes import ErrorCode
from service.wire.messages import DescribeEndsRequest
from tests.service.cli.kit import COMMAND, PATIENCE_S, ROOT, Ended, Running, Serving, oncelog, process

CONCURRENT, NOT_COORDINATOR = ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.NOT_COORDINATOR

_numbers = itertools.count()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    quick = ("-o", "group.initial.rebalance.delay.ms=0", "-o", "offsets.topic.num.partitions=2")
    data = tmp_path_factory.mktemp("broker") / "data"
    with Serving("--data", str(data), "--host", "127.0.0.1", "--port", "0", *quick) as serving:
        yield serving.bootstrap


Run = Callable[..., Ended]


@pytest.fixture
def run(broker: str) -> Run:
    """A command against the broker that is expected to succeed, unless another status is asked for."""

    def command(*arguments: str, stdin: bytes | None = None, status: int = 0) -> Ended:
        ended = oncelog(*arguments, stdin=stdin, bootstrap=broker)
        assert ended.status == status, ended
        return ended

    return command


@pytest.fixture
def topic(run: Run) -> str:
    """A topic of three partitions that no other test knows."""
    name = f"topic-{next(_numbers)}"
    run("topic", "create", name, "-p", "3")
    return name


def test_a_created_topic_is_listed_and_described(run: Run) -> None:
    (created,) = run("topic", "create", "created", "-p", "2", "-c", "retention.ms=1000000", "-o", "json").json()
    listed = {row["name"]: row for row in run("topic", "ls", "-o", "json").json()}
    assert listed["created"] == created
    (described,) = run("topic", "describe", "created", "-o", "json").json()
    assert described["settings"] == {"retention.ms": "1000000"}
    assert [part["partition"] for part in described["partitions"]] == [0, 1]
    assert [(part["start_offset"], part["end_offset"]) for part in described["partitions"]] == [(0, 0), (0, 0)]


def test_the_port_of_the_http_api_is_told_as_such(tmp_path: Path) -> None:
    with Serving(
        "--data", str(tmp_path), "--host", "127.0.0.1", "--port", "0", "-o", "http.listeners=http://127.0.0.1:0"
    ) as serving:
        web = serving.facts["http"][0].removeprefix("http://")
        assert "that is an HTTP port" in oncelog("topic", "ls", "-b", web).err


@pytest.mark.parametrize(
    "arguments",
    [
        ("topic", "create", "{}"),
        ("topic", "describe", "{}"),
        ("group", "describe", "{}"),
        ("txn", "describe", "{}"),
        ("config", "set", "log.retention.ms={}"),
        ("config", "get", "-t", "{}"),
        ("consume", "{}", "-e"),
    ],
)
def test_a_name_that_is_not_utf8_is_refused_in_one_line(run: Run, arguments: tuple[str, ...]) -> None:
    name = os.fsdecode(b"caf\xff")
    ended = run(*(each.format(name) for each in arguments), status=2)
    assert ended.err.count("\n") == 1
    assert ended.err.startswith("oncelog: ")
    assert "is not text in UTF-8" in ended.err


@pytest.mark.parametrize(
    "arguments",
    [
        ("topic", "trim", "{}", "--yes", "--before", f"@{2**63}"),
        ("consume", "{}", "-e", "-o", f"@{2**63}"),
        ("consume", "{}", "-e", "-o", str(2**63)),
        ("consume", "{}", "-e", "-p", str(2**40)),
        ("group", "reset", "some", "-t", "{}", "--yes", "--to", f"@{2**63}"),
        ("group", "reset", "some", "-t", "{}", "--yes", "--to", "9" * 30),
    ],
)
def test_a_number_beyond_the_protocols_shows_no_traceback(broker: str, topic: str, arguments: tuple[str, ...]) -> None:
    """An offset is held to what the log has, as any other; a partition does not exist."""
    assert oncelog(*(each.format(topic) for each in arguments), bootstrap=broker).status in (0, 2, 3)


def test_settings_of_a_broker_that_is_not_there_are_not_found(run: Run) -> None:
    assert run("config", "get", "--broker", "99", status=3).err == "oncelog: broker 99 is not in the cluster\n"


def test_a_misspelt_setting_is_taken_with_a_warning(run: Run, topic: str) -> None:
    """Brokers keep any key, as Kafka does: only the broker's log told of it."""
    told = run("config", "set", "log.retentoin.ms=5").err
    assert told.startswith("oncelog: log.retentoin.ms is no setting of the cluster, and does nothing; did you mean ")
    assert "log.retention.ms" in told
    assert "nosuch is no setting of the cluster" in run("config", "set", "-d", "nosuch").err
    assert f"nosuch is no setting of topic {topic}" in run("topic", "alter", topic, "-d", "nosuch").err
    assert run("config", "set", "-t", topic, "retention.ms=5").err == ""
    assert run("config", "set", "log.retention.ms=600000", "num.io.threads=2").err == ""
    run("config", "set", "-d", "log.retention.ms", "-d", "log.retentoin.ms", "-d", "num.io.threads")


def test_a_topic_that_exists_is_not_created_again(run: Run, topic: str) -> None:
    assert "TOPIC_ALREADY_EXISTS" in run("topic", "create", topic, status=1).err
    assert run("topic", "create", topic, "--if-not-exists").out == ""


def test_a_dry_run_creates_nothing(run: Run) -> None:
    run("topic", "create", "never", "--dry-run")
    assert "never" not in run("topic", "ls", "-o", "name").out.split()


def test_what_is_not_there_ends_with_3(run: Run, topic: str) -> None:
    for arguments in (
        ("topic", "describe", "nope"),
        ("topic", "delete", "nope", "--yes"),
        ("consume", "nope", "-e"),
        ("consume", topic, "-p", "9", "-e"),
        ("produce", topic, "-p", "9"),
        ("consume", topic, "-o", "17", "-e", "-n", "1", "-p", "0"),
        ("group", "describe", "nope"),
        ("group", "delete", "nope", "--yes"),
        ("config", "get", "-t", topic, "no.such.key"),
    ):
        ended = run(*arguments, stdin=b"x\n", status=int(Exit.NOT_FOUND))
        assert ended.err.count("\n") == 1, arguments


def test_a_deleted_topic_is_gone(run: Run, topic: str) -> None:
    run("topic", "delete", topic, "--yes")
    assert topic not in run("topic", "ls", "-o", "name").out.split()


def test_partitions_only_grow(run: Run, topic: str) -> None:
    run("topic", "partitions", topic, "5")
    assert len(run("topic", "describe", topic, "-o", "json").json()[0]["partitions"]) == 5
    assert "INVALID_PARTITIONS" in run("topic", "partitions", topic, "2", status=1).err


def test_trimming_drops_what_is_older(run: Run, topic: str) -> None:
    run("produce", topic, "-p", "1", stdin=b"a\nb\nc\n")
    assert "--yes" in run("topic", "trim", topic, "-p", "1", "--before", "2", status=2).err
    assert run("topic", "trim", topic, "-p", "1", "--before", "2", "--yes").out == f"{topic}\t1\t2\n"
    assert run("consume", topic, "-e").out == "c\n"
    run("topic", "trim", topic, "--before", "end", "--yes")
    assert run("consume", topic, "-e").out == ""


def test_leaders_are_elected_for_the_partitions_that_are_named_alone(run: Run, topic: str) -> None:
    """An unclean election of another one would lose what that one has."""
    for more in ((), ("--unclean",)):
        ended = run("topic", "elect", topic, "-p", "1", *more, "--yes")
        assert ended.out == f"{topic}\t1\tnot needed\n"
    ended = run("topic", "elect", topic, "-p", "77", "--unclean", "--yes", status=Exit.NOT_FOUND)
    assert ended.err == f"oncelog: topic {topic} has no partition 77\n"


def test_trimming_beyond_the_end_of_one_partition_drops_nothing_in_the_others(run: Run, topic: str) -> None:
    run("produce", topic, "-p", "1", stdin=b"a\nb\nc\n")
    run("produce", topic, "-p", "2", stdin=b"d\n")
    ended = run("topic", "trim", topic, "-p", "1", "-p", "2", "--before", "2", "--yes", status=Exit.NOT_FOUND)
    assert ended == Ended(Exit.NOT_FOUND, "", f"oncelog: {topic} partition 2 ends at 1\n")
    assert sorted(run("consume", topic, "-e").out.split()) == ["a", "b", "c", "d"]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_lines_come_back_in_every_codec(run: Run, topic: str, codec: str) -> None:
    lines = b"".join(b"line %d\n" % number for number in range(1000))
    run("produce", topic, "-p", "0", "-z", codec, stdin=lines)
    assert run("consume", topic, "-e").out.encode() == lines


def test_a_record_comes_back_as_it_was_written(run: Run, topic: str) -> None:
    document = {
        "key": "k",
        "value_base64": "/wA=",
        "headers": [{"key": "a", "value": "1"}, {"key": "a", "value": None}],
        "timestamp": "2025-11-21T13:46:00.123Z",
    }
    (delivered,) = map(
        json.loads,
        run("produce", topic, "--input", "json", "-o", "json", stdin=json.dumps(document).encode()).out.splitlines(),
    )
    (read,) = map(json.loads, run("consume", topic, "-e", "-o", "json").out.splitlines())
    assert {**read, **document} == read
    assert (read["partition"], read["offset"]) == (delivered["partition"], delivered["offset"])


def test_a_topic_can_be_copied_with_a_pipe(run: Run, topic: str) -> None:
    run("produce", topic, "--key-sep", ":", "-H", "x=y", stdin=b"k1:v1\nk2:\n:v3\nv4\n")
    copied = run("consume", topic, "-J", "-e").out
    run("topic", "create", f"{topic}-copy", "-p", "3")
    run("produce", f"{topic}-copy", "--input", "ndjson", stdin=copied.encode())
    again = run("consume", f"{topic}-copy", "-J", "-e").out.replace(f"{topic}-copy", topic)
    assert _but_producers(again) == _but_producers(copied)


def _but_producers(lines: str) -> list[dict[str, Any]]:
    """The records without who wrote them, partition by partition: their order among each other is nobody's promise."""
    records = [json.loads(line) for line in lines.splitlines()]
    for record in records:
        del record["producer_id"], record["producer_epoch"]
    return sorted(records, key=lambda record: (record["partition"], record["offset"]))


def test_a_transaction_is_visible_and_told_of_when_it_is_committed(broker: str, run: Run, topic: str) -> None:
    with Running("produce", topic, "--txn-id", "import", "-o", "json", "-b", broker, stdin=subprocess.PIPE) as writing:
        assert writing.stdin is not None
        writing.stdin.write(b"a\nb\n")
        deadline = time.monotonic() + PATIENCE_S
        while not run("consume", topic, "-e", "--isolation", "uncommitted").out:
            assert time.monotonic() < deadline
        assert run("consume", topic, "-e").out == ""
        ended = writing.ended()
    assert (ended.status, ended.err) == (0, "")
    assert [json.loads(line)["offset"] for line in ended.out.splitlines()] == [0, 1]
    assert sorted(run("consume", topic, "-e").out.split()) == ["a", "b"]
    (transaction,) = run("txn", "describe", "import", "-o", "json").json()
    assert transaction["state"] == "CompleteCommit"


@pytest.mark.parametrize(
    ("answers", "status"),
    [
        ([0, CONCURRENT, NOT_COORDINATOR, CONCURRENT, 0], 0),
        ([CONCURRENT, 0, 0], 0),
        ([0, CONCURRENT, ErrorCode.PRODUCER_FENCED], 0),  # the next owner was let in when the markers were written
        ([0, ClientFailure("gone", FailureKind.UNREACHABLE), 0], 0),
        ([0, ClientFailure("forbidden", FailureKind.NOT_AUTHORIZED)], 0),  # it is committed all the same
        ([CONCURRENT, ErrorCode.PRODUCER_FENCED, 0], 1),  # the last answer is to its abort
    ],
)
def test_a_commit_ends_when_readers_see_it(
    answers: list[int | ClientFailure], status: int, run: Run, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = list(answers)

    async def end(transaction: Transaction, *, committed: bool) -> int:
        answer = left.pop(0)
        if isinstance(answer, ClientFailure):
            raise answer
        return answer

    monkeypatch.setattr(Transaction, "_end", end)
    run("produce", topic, "--txn-id", uuid4().hex, stdin=b"a\n", status=status)
    assert left == []


def test_a_long_input_is_committed_in_pieces(run: Run, topic: str) -> None:
    told = run("produce", topic, "--txn-id", "pieces", "--txn-size", "2", "-o", "json", stdin=b"1\n2\n3\n4\n5\n").out
    assert len(told.splitlines()) == 5
    assert sorted(run("consume", topic, "-e").out.split()) == ["1", "2", "3", "4", "5"]
    marked = run("consume", topic, "-e", "--isolation", "uncommitted", "--show-control", "-J").out.splitlines()
    assert sum("control" in json.loads(line) for line in marked) >= 3


def test_input_that_is_no_record_aborts_the_transaction(run: Run, topic: str) -> None:
    stdin = b'{"value": "1"}\n{"value": "2"}\nnot JSON\n{"value": "3"}\n'
    arguments = ("produce", topic, "--txn-id", "bad", "--txn-size", "1", "--input", "ndjson")
    told = run(*arguments, stdin=stdin, status=2).err
    assert told.startswith("oncelog: line 3: not JSON")
    assert told.endswith("; 2 records were committed before, its transaction is aborted\n")
    assert sorted(run("consume", topic, "-e").out.split()) == ["1", "2"]
    run("produce", topic, "--txn-size", "2", stdin=b"a", status=2)


def test_a_writer_that_loses_its_transactional_id_is_told_so(broker: str, run: Run, topic: str) -> None:
    with Running("produce", topic, "--txn-id", "stolen", "-b", broker, stdin=subprocess.PIPE) as writing:
        assert writing.stdin is not None
        writing.stdin.write(b"first\n")
        deadline = time.monotonic() + PATIENCE_S
        while not run("consume", topic, "-e", "--isolation", "uncommitted").out:
            assert time.monotonic() < deadline
        run("produce", topic, "--txn-id", "stolen", stdin=b"second\n")
        writing.stdin.write(b"third\n")
        ended = writing.ended()
    assert ended.status == 1
    assert "another producer has taken it over" in ended.err
    assert run("consume", topic, "-e").out == "second\n"


@pytest.mark.parametrize("flags", [(), ("--txn-id", "typed")])
def test_ctrl_c_ends_what_is_typed(broker: str, run: Run, topic: str, flags: tuple[str, ...]) -> None:
    """A thread that waits for the keyboard must not keep the command: nobody types any more."""
    ours, theirs = pty.openpty()
    try:
        command = [*COMMAND, "produce", topic, *flags, "-b", broker]
        with subprocess.Popen(command, stdin=theirs, stderr=subprocess.PIPE, cwd=ROOT) as writing:
            os.write(ours, b"a\n")
            deadline = time.monotonic() + PATIENCE_S
            while not run("consume", topic, "-e", "--isolation", "uncommitted").out:
                assert time.monotonic() < deadline
            writing.send_signal(signal.SIGINT)
            try:
                writing.wait(timeout=PATIENCE_S)
            finally:
                writing.kill()
            assert writing.returncode == 130
    finally:
        os.close(ours)
        os.close(theirs)
    assert run("consume", topic, "-e").out == ("" if flags else "a\n")


def test_what_a_command_changed_is_told_when_asked(run: Run, topic: str) -> None:
    (altered,) = run("topic", "alter", topic, "-c", "retention.ms=5000", "-o", "json").json()
    assert (altered["value"], altered["origin"]) == ("5000", "topic")
    (grown,) = run("topic", "partitions", topic, "5", "-o", "json").json()
    assert (grown["name"], grown["partitions"]) == (topic, 5)
    (taken_back,) = run("config", "set", "-t", topic, "-d", "retention.ms", "-o", "json").json()
    assert taken_back["origin"] == "default"
    run("produce", topic, "--txn-id", "told", stdin=b"a\n")
    run("consume", topic, "-g", f"group-of-{topic}", "-e")
    (group,) = run("group", "delete", f"group-of-{topic}", "--yes", "-o", "json").json()
    assert (group["group"], group["state"]) == (f"group-of-{topic}", "Empty")
    assert run("topic", "delete", topic, "--yes", "-o", "name").out == f"{topic}\n"


def test_yaml_holds_what_json_holds(run: Run, topic: str) -> None:
    run("topic", "alter", topic, "-c", "retention.ms=5000")
    assert run("topic", "describe", topic, "-o", "yaml").out.startswith(f'- name: "{topic}"\n  id: "')
    described = run("topic", "describe", topic, "-o", "yaml").out
    assert '  settings:\n    "retention.ms": "5000"\n  partitions:\n    - topic: "' in described
    assert "      replicas:\n        - 1\n" in described
    assert "      offline: []\n" in described
    assert run("group", "ls", "-o", "yaml", "--state", "dead").out == "[]\n"


def test_equal_keys_share_a_partition(run: Run, topic: str) -> None:
    run("produce", topic, "--key-sep", ":", stdin=b"a:1\nb:1\nc:1\na:2\nb:2\nc:2\n")
    printed = run("consume", topic, "-e", "-f", r"%k %p\n").out.split("\n")
    assert len(set(printed)) == 4  # three keys, and the end


def test_raw_input_is_one_record(run: Run, topic: str, tmp_path: Path) -> None:
    (tmp_path / "picture").write_bytes(b"\x00\n\xff\n")
    run("produce", topic, "--input", "raw", "--file", str(tmp_path / "picture"))
    assert [json.loads(line)["value_base64"] for line in run("consume", topic, "-J", "-e").out.splitlines()] == [
        "AAr/Cg=="
    ]


@pytest.mark.parametrize("text", [b"not json\n", b"[1]\n", b'{"timestamp": "soon"}\n'])
def test_input_that_is_no_record_ends_with_2_and_writes_nothing(run: Run, topic: str, text: bytes) -> None:
    run("produce", topic, "--input", "ndjson", stdin=text, status=2)
    assert run("consume", topic, "-e").out == ""


def test_the_records_before_a_bad_line_are_written_and_counted(run: Run, topic: str) -> None:
    """They were dropped up to 256 KiB, without a word: a second try wrote those twice that were there already."""
    lines = [b'{"value": "%06d"}' % number for number in range(30_000)]
    text = b"\n".join([*lines, b"", b'{"vaue": 1}', *lines])
    told = run("produce", topic, "--input", "ndjson", stdin=text, status=2).err
    assert told.startswith("oncelog: line 30002: a record has no field 'vaue'")
    assert told.endswith("; 30000 records were written before it\n")
    assert len(run("consume", topic, "-e").out.split()) == 30_000


def test_the_records_before_a_bad_one_of_a_list_are_written_and_counted(run: Run, topic: str) -> None:
    told = run("produce", topic, "--input", "json", stdin=b'[{"value": "a"}, 7, {"value": "b"}]', status=2).err
    assert told == "oncelog: record 2: a record is a JSON object; 1 record was written before it\n"
    assert run("consume", topic, "-e").out == "a\n"


def test_json_nested_too_deeply_is_refused(run: Run, topic: str) -> None:
    told = run("produce", topic, "--input", "json", stdin=b"[" * 100_000, status=2).err
    assert told == "oncelog: the JSON is nested too deeply; 0 records were written before it\n"


@pytest.mark.parametrize("arguments", [("--key-sep", ""), ("--txn-id", "a", "--txn-size", "99999999999999999999999")])
def test_a_wrong_call_of_produce_ends_with_2(run: Run, topic: str, arguments: tuple[str, ...]) -> None:
    assert "Usage: oncelog produce" in run("produce", topic, *arguments, stdin=b"a:b\n", status=2).err


def test_a_record_too_large_is_refused(run: Run, topic: str) -> None:
    run("topic", "alter", topic, "-c", "max.message.bytes=1000")
    assert "MESSAGE_TOO_LARGE" in run("produce", topic, stdin=b"x" * 2000, status=1).err


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        ("beginning", "abcd"),
        ("end", ""),
        ("1", "bcd"),
        ("-1", "d"),
        ("-99", "abcd"),
        ("@2025-01-01T00:00:02Z", "cd"),
        ("@9999999999999", ""),
    ],
)
def test_reading_starts_where_it_is_told_to(run: Run, topic: str, start: str, expected: str) -> None:
    lines = [json.dumps({"value": each, "timestamp": f"2025-01-01T00:00:0{at}Z"}) for at, each in enumerate("abcd")]
    run("produce", topic, "-p", "2", "--input", "ndjson", stdin="\n".join(lines).encode())
    assert run("consume", topic, "-p", "2", "-e", "-o", start, "-f", "%s").out == expected


def test_a_count_ends_the_reading(run: Run, topic: str) -> None:
    run("produce", topic, "-p", "0", stdin=b"a\nb\nc\n")
    assert run("consume", topic, "-n", "2").out == "a\nb\n"


def test_a_reader_that_left_ends_it_quietly(broker: str, run: Run, topic: str) -> None:
    """`oncelog consume … | head -1`."""
    run("produce", topic, stdin=b"a line\n" * 50_000)
    consume = " ".join([*COMMAND, "consume", topic, "-e", "-b", broker])
    script = f"set -o pipefail; {consume} | head -1"
    done = subprocess.run(["bash", "-c", script], capture_output=True, timeout=PATIENCE_S, cwd=ROOT, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"a line\n", b"")


def test_a_group_goes_on_where_it_stopped(run: Run, topic: str) -> None:
    group = f"group-of-{topic}"
    run("produce", topic, "-p", "0", stdin=b"a\nb\nc\n")
    assert run("consume", topic, "-g", group, "-n", "2").out == "a\nb\n"
    assert run("consume", topic, "-g", group, "-e").out == "c\n"
    assert run("consume", topic, "-g", group, "-e").out == ""
    (row,) = run("group", "lag", group, "-o", "json").json()
    assert (row["topic"], row["partition"], row["committed_offset"], row["end_offset"], row["lag"]) == (
        topic,
        0,
        3,
        3,
        0,
    )


def test_lag_above_the_limit_ends_with_6(run: Run, topic: str) -> None:
    group = f"group-of-{topic}"
    run("produce", topic, "-p", "0", stdin=b"a\nb\nc\n")
    run("consume", topic, "-g", group, "-n", "1")
    run("group", "lag", group, "--fail-above", "2")
    assert "2" in run("group", "lag", group, "--fail-above", "1", status=6).err


def test_a_broker_that_does_not_tell_markers_from_records_has_its_offsets_counted(
    run: Run, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as Apache Kafka's. The lag is told as "at most", and so is what goes beyond a limit."""
    group = f"group-of-{topic}"
    run("produce", topic, "-p", "0", "--txn-id", topic, "--txn-size", "1", stdin=b"a\nb\nc\n")
    run("consume", topic, "-g", group, "-n", "1")
    (row,) = run("group", "lag", group, "-o", "json").json()
    assert (row["committed_offset"], row["end_offset"], row["lag"], row["lag_is"]) == (2, 6, 2, "exact")

    async def offers(cluster: Cluster, request: Struct, *, node: int | None = None) -> bool:
        return not isinstance(request, DescribeEndsRequest)

    monkeypatch.setattr(Cluster, "offers", offers)
    ended = run("group", "lag", group, "-o", "json")
    assert [(each["lag"], each["lag_is"]) for each in ended.json()] == [(4, "at most")]
    assert "markers count" in ended.err
    assert ": at most 4" in run("group", "lag", group, "--fail-above", "3", status=6).err
    run("group", "lag", group, "--fail-above", "4")


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (("--to", "earliest"), 0),
        (("--to", "latest"), 3),
        (("--to", "1"), 1),
        (("--to", "99"), 3),
        (("--shift", "-2"), 1),
        (("--to", "@2020-01-01"), 0),
    ],
)
def test_a_reset_moves_the_group(run: Run, topic: str, flags: tuple[str, str], expected: int) -> None:
    group = f"group-of-{topic}"
    run("produce", topic, "-p", "0", stdin=b"a\nb\nc\n")
    run("consume", topic, "-g", group, "-e")
    asked = ("group", "reset", group, *flags, "-t", topic, "-p", "0", "-o", "json")
    planned = run(*asked, "--dry-run").json()
    assert run("group", "lag", group, "-o", "json").json()[0]["committed_offset"] == 3
    assert run(*asked, "--yes").json() == planned
    assert planned[0]["new_offset"] == expected
    assert run("group", "lag", group, "-o", "json").json()[0]["committed_offset"] == expected


def test_a_deleted_group_is_gone(run: Run, topic: str) -> None:
    group = f"group-of-{topic}"
    run("produce", topic, stdin=b"a\n")
    run("consume", topic, "-g", group, "-e")
    assert group in run("group", "ls", "-o", "name").out.split()
    run("group", "delete", group, "--yes")
    assert group not in run("group", "ls", "-o", "name").out.split()


def test_a_member_leaves_when_it_is_told_to_end(broker: str, run: Run, topic: str) -> None:
    """SIGTERM is how scripts end it; the group must not wait for a session to run out."""
    group = f"group-of-{topic}"
    with Running("consume", topic, "-g", group, "-b", broker) as consuming:
        members: list[dict[str, object]] = []
        deadline = time.monotonic() + PATIENCE_S
        while not any(row["partitions"] for row in members):
            assert time.monotonic() < deadline
            ended = oncelog("group", "members", group, "-o", "json", bootstrap=broker)
            members = ended.json() if ended.status == 0 else []
        assert [row["partitions"] for row in members] == [[f"{topic}-0", f"{topic}-1", f"{topic}-2"]]
        assert "stop them first" in run("group", "reset", group, "--to", "earliest", "-t", topic, "--yes", status=1).err
        consuming.send_signal(signal.SIGTERM)
        assert consuming.ended() == Ended(128 + signal.SIGTERM, "", "")
    assert run("group", "describe", group, "-o", "json").json()["state"] == "Empty"


def test_an_interrupted_consume_ends_with_130(broker: str, topic: str) -> None:
    with Running("consume", topic, "-b", broker) as consuming:
        oncelog("produce", topic, stdin=b"a\n", bootstrap=broker)
        assert consuming.line() == b"a\n"
        consuming.send_signal(signal.SIGINT)
        assert consuming.ended() == Ended(130, "", "")


def test_settings_of_a_topic_are_read_and_changed(run: Run, topic: str) -> None:
    run("config", "set", "-t", topic, "retention.ms=5000", "cleanup.policy=compact,delete")
    diff = {row["name"]: row for row in run("config", "diff", "-t", topic, "-o", "json").json()}
    assert {name: row["value"] for name, row in diff.items()} == {
        "retention.ms": "5000",
        "cleanup.policy": "compact,delete",
    }
    assert {row["origin"] for row in diff.values()} == {"topic"}
    assert {name: row["default"] for name, row in diff.items()} == {
        "retention.ms": "604800000",
        "cleanup.policy": "delete",
    }
    run("config", "set", "-t", topic, "-d", "retention.ms")
    assert run("config", "get", "-t", topic, "retention.ms").out == "retention.ms\t604800000\tdefault\n"


def test_a_setting_that_is_none_is_refused(run: Run, topic: str) -> None:
    assert "INVALID_CONFIG" in run("config", "set", "-t", topic, "retention.ms=soon", status=1).err
    run("topic", "alter", topic, status=2)


def test_settings_of_the_broker_say_where_they_come_from(run: Run) -> None:
    rows = {row["name"]: row for row in run("config", "get", "-o", "json").json()}
    assert rows["group.initial.rebalance.delay.ms"]["origin"] == "file"
    assert rows["num.partitions"]["origin"] == "default"
    run("config", "set", "log.retention.ms=7000")
    assert run("config", "get", "log.retention.ms").out == "log.retention.ms\t7000\tcluster\n"
    (row,) = run("config", "get", "log.retention.ms", "-o", "json").json()
    assert row["default"] == "604800000", "milliseconds, though Kafka's default is in hours"
    run("config", "set", "-d", "log.retention.ms")


def test_names_of_topics_and_groups_are_completed(broker: str, run: Run, topic: str) -> None:
    def completed(words: str) -> list[str]:
        ended = process(
            _ONCELOG_COMPLETE="bash_complete",
            COMP_WORDS=words,
            COMP_CWORD=str(words.count(" ")),
            ONCELOG_BOOTSTRAP=broker,
        )
        return [line.partition(",")[2] for line in ended.out.splitlines()]

    run("produce", topic, stdin=b"a\n")
    run("consume", topic, "-g", f"group-of-{topic}", "-e")
    assert completed(f"oncelog topic describe {topic}") == [topic]
    assert completed(f"oncelog group lag group-of-{topic}") == [f"group-of-{topic}"]


def test_a_terminal_gets_a_table(broker: str, topic: str) -> None:
    ours, theirs = pty.openpty()
    try:
        command = [*COMMAND, "topic", "ls", "-b", broker]
        environment = {**os.environ, "TERM": "dumb", "COLUMNS": "120"}
        done = subprocess.run(command, stdout=theirs, timeout=PATIENCE_S, cwd=ROOT, env=environment, check=False)
        assert done.returncode == 0
        printed = os.read(ours, 1 << 16).decode()
    finally:
        os.close(ours)
        os.close(theirs)
    assert printed.split()[:4] == ["NAME", "PARTITIONS", "REPLICATION", "FACTOR"]
    assert topic in printed

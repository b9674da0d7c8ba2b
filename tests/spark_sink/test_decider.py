"""A batch that was decided before is this query's own, or the query fails: no row is dropped in silence."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast
from uuid import uuid4

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql.types import StructType

from spark_sink import sink
from spark_sink.branch import decide, last_decided, last_decision
from spark_sink.client import Client
from spark_sink.decider import Decider, conflict, name_of_app
from spark_sink.errors import OptionError
from spark_sink.sink_options import read_sink_options
from tests.clients.topics import Topics
from tests.spark_sink.reading import values
from tests.spark_sink.test_sink_branch import Task

VALUE = StructType().add("value", "string")
Run = Callable[..., None]


@pytest.fixture(autouse=True)
def disconnect() -> Iterator[None]:
    yield
    for connected in sink._connected.values():
        connected.client.close()
    sink._connected.clear()


@pytest.fixture
def topic(topics: Topics) -> str:
    return topics.create()


@pytest.fixture
def run(bootstrap: str, topic: str, name: str, tmp_path: Path) -> Run:
    """One batch of a stream, as Spark runs it: the offsets are noted, a task writes a row, and the driver commits."""

    def run(
        batch: int, *rows: str, query: str, run: str, reads: str | None = "", more: dict[str, str] | None = None
    ) -> None:
        offsets = tmp_path / query / "offsets"
        offsets.mkdir(parents=True, exist_ok=True)
        if reads is not None:  # None: the checkpoint is where the driver's Python can't read it
            (offsets / str(batch)).write_text(reads or " ".join(rows))
        given = {
            "kafka.bootstrap.servers": bootstrap, "topic": topic, "root": name,
            "checkpointLocation": f"file://{tmp_path / query}", **(more or {}),
        }  # fmt: skip
        options = read_sink_options(given, streaming=True)
        properties = {"sql.streaming.queryId": query, "spark.jobGroup.id": run}
        batches = iter([pa.record_batch({"value": rows})])
        written = sink.write(options, name, batch, cast(TaskContext, Task(**properties)), batches)
        sink.commit(options, name, batch, [written])

    return run


def test_a_batch_that_runs_again_after_a_crash_writes_nothing_and_the_query_goes_on(
    run: Run, bootstrap: str, topic: str
) -> None:
    run(0, "a", query="q", run="first")
    run(1, "b", query="q", run="first")
    run(1, "b", query="q", run="second")
    run(1, "b", query="q", run="third")
    run(2, "c", query="q", run="third")
    run(2, "c", query="q", run="third")  # its answer was lost
    assert values(bootstrap, topic) == ["a", "b", "c"]


@pytest.mark.parametrize("batch", [0, 1])
def test_a_second_query_with_the_same_root_fails_before_its_rows_are_dropped(
    run: Run, bootstrap: str, topic: str, name: str, batch: int
) -> None:
    run(0, "a", query="q", run="first")
    run(1, "b", query="q", run="first")
    with pytest.raises(sink.DecidedByAnother, match=f"batch {batch} of '{name}' was not written.*skipDecided=true"):
        run(batch, "lost?", query="other", run="its first")
    run(2, "c", query="q", run="first")
    assert values(bootstrap, topic) == ["a", "b", "c"]


def test_a_running_query_whose_number_was_decided_meanwhile_by_a_stranger_fails(
    run: Run, bootstrap: str, topic: str
) -> None:
    run(0, "a", query="q", run="first")
    run(5, "stranger's", query="other", run="its first")
    with pytest.raises(sink.DecidedByAnother, match="a later batch, 5, is decided"):
        run(1, "lost?", query="q", run="first")
    assert values(bootstrap, topic) == ["a", "stranger's"]


def test_of_two_runs_of_one_query_the_one_that_comes_second_fails(run: Run) -> None:
    """A copied checkpoint: both have the same query id, and read the same."""
    run(0, "a", query="q", run="first")
    run(1, "b", query="q", run="first")
    run(1, "b", query="q", run="copy")  # its first batch may be the last one of a run that has died
    run(2, "c", query="q", run="copy")
    with pytest.raises(sink.DecidedByAnother, match="a later batch, 2, is decided"):
        run(1, "b", query="q", run="first")
    run(3, "d", query="q", run="copy")
    run(4, "e", query="q", run="first")
    with pytest.raises(sink.DecidedByAnother, match="while this run was under way"):
        run(4, "e", query="q", run="copy")


def test_a_copied_checkpoint_that_went_its_own_way_fails_in_its_first_batch(run: Run) -> None:
    run(0, "a", query="q", run="first", reads="offsets 0 to 10")
    with pytest.raises(sink.DecidedByAnother, match="read other offsets"):
        run(0, "b", query="q", run="copy", reads="offsets 0 to 12")


def test_a_restored_checkpoint_that_can_not_be_read_is_told_by_the_number_of_rows(
    run: Run, bootstrap: str, topic: str
) -> None:
    """The backup is one batch old, and the batch takes also what has come since."""
    run(0, "a", query="q", run="first", reads=None)
    run(1, "b", query="q", run="first", reads=None)
    run(1, "b", query="q", run="second", reads=None)  # a crash
    with pytest.raises(sink.DecidedByAnother, match="with 1 rows, and has 2 now: the checkpoint was copied or rewound"):
        run(1, "b", "lost?", query="q", run="restored", reads=None)
    run(2, query="q", run="second", reads=None)
    with pytest.raises(sink.DecidedByAnother, match="with 0 rows, and has 1 now"):
        run(2, "lost?", query="q", run="restored", reads=None)
    assert values(bootstrap, topic) == ["a", "b"]


def test_a_batch_with_chance_in_it_is_known_by_its_offsets_whatever_its_rows_are(
    run: Run, bootstrap: str, topic: str
) -> None:
    run(0, "a", query="q", run="first", reads="offsets 0 to 10")
    run(0, "a", "b", query="q", run="second", reads="offsets 0 to 10")
    assert values(bootstrap, topic) == ["a"]


def test_who_asks_for_it_goes_on_without_the_rows_and_is_told(
    run: Run, caplog: pytest.LogCaptureFixture, bootstrap: str, topic: str
) -> None:
    run(0, "a", query="q", run="first")
    run(0, "dropped", query="other", run="its first", more={"skipDecided": "true"})
    assert values(bootstrap, topic) == ["a"]
    (warning,) = [record.getMessage() for record in caplog.records]
    assert "was not written: it was decided by another one, query q in run first" in warning


def test_a_decision_of_before_that_names_nobody_is_taken_for_the_same_batch_with_a_warning(
    run: Run, client: Client, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    decide(client, name, 0, ())
    run(0, "a", query="q", run="first")
    (warning,) = [record.getMessage() for record in caplog.records]
    assert "left no name" in warning
    run(1, "b", query="q", run="first")


def test_a_decision_of_before_that_left_no_count_is_taken_for_the_same_batch(
    run: Run, client: Client, name: str, bootstrap: str, topic: str
) -> None:
    decide(client, name, 0, (), str(Decider(query="q", run="first")))
    run(0, "a", query="q", run="second", reads=None)
    run(1, "b", query="q", run="second", reads=None)
    assert values(bootstrap, topic) == ["b"]


def test_a_name_that_is_written_in_another_way_is_nobodys() -> None:
    me = Decider(query="q", run="r", reads="0", rows=0)
    assert Decider.read(str(me)) == me
    assert [Decider.read(text) for text in ("", "spark", "[]", '{"later": 1}')] == [None] * 4


# -- batch writes


def write_version(
    bootstrap: str,
    row: str | list[str],
    app: str,
    version: int,
    topic: str | None = None,
    column: str = "",
    query: str = "",
    root: str | None = None,
    run: str = "",
    batch: int = 0,
) -> None:
    given = {"kafka.bootstrap.servers": bootstrap, "txnAppId": app, "txnVersion": str(version)}
    options = read_sink_options(given | ({"topic": topic} if topic else {}), streaming=False)
    schema = VALUE if topic else StructType().add("value", "string").add("topic", "string")
    writer = sink.BatchSink(options, schema)
    columns = {"value": [row] if isinstance(row, str) else row} | ({} if topic else {"topic": [column]})
    of_query = {"sql.streaming.queryId": query, "streaming.sql.batchId": str(batch), "spark.jobGroup.id": run}
    properties = of_query if query else {}
    rows = iter([pa.record_batch(columns)])
    root = writer._root = root or writer._root
    writer.commit([sink.write(options, root, version, cast(TaskContext, Task(**properties)), rows)])


def test_applications_and_topics_whose_names_look_alike_have_roots_of_their_own(
    bootstrap: str, topic: str, name: str
) -> None:
    write_version(bootstrap, "to the topic", name, 0, topic=topic)
    write_version(bootstrap, "by the column", f"{name}/{topic}", 0, column=topic)
    assert values(bootstrap, topic) == ["by the column", "to the topic"]


def test_a_version_that_may_have_been_written_under_the_former_root_is_refused(
    client: Client, bootstrap: str, topic: str, name: str
) -> None:
    app = f"{name}/x"
    decide(client, app, 7, ())
    with pytest.raises(OptionError, match=r"'txnAppId': version 7 of .* higher txnVersion"):
        write_version(bootstrap, "a", app, 7, column=topic)
    write_version(bootstrap, "b", app, 8, column=topic)
    assert values(bootstrap, topic) == ["b"]
    assert last_decided(client, app) == 7


def test_a_long_name_of_an_application_is_remembered_too(bootstrap: str, topic: str, name: str) -> None:
    app = name + "\N{SNOWMAN}" * 1000
    for row in ("a", "b"):
        write_version(bootstrap, row, app, 0, topic=topic)
    with pytest.raises(sink.DecidedByAnother):
        write_version(bootstrap, "c", f"{app}!", 0, topic=topic, root=f"{app}/{topic}")
    assert values(bootstrap, topic) == ["a"]


def test_another_query_that_writes_the_versions_of_an_application_fails(bootstrap: str, topic: str, name: str) -> None:
    write_version(bootstrap, "a", name, 0, topic=topic, query="q")
    write_version(bootstrap, "a", name, 0, topic=topic, query="q")
    with pytest.raises(sink.DecidedByAnother, match=f"txnAppId '{name}'.* in query q"):
        write_version(bootstrap, "lost?", name, 0, topic=topic, query="other")
    assert values(bootstrap, topic) == ["a"]


def test_a_query_whose_checkpoint_was_restored_from_a_backup_fails_before_rows_of_foreach_batch_are_dropped(
    bootstrap: str, topic: str, name: str
) -> None:
    def each(batch: int, *rows: str, run: str) -> None:
        write_version(bootstrap, list(rows), name, batch, topic=topic, query="q", batch=batch, run=run)

    first, second, restored = (str(uuid4()) for _ in range(3))
    for batch, row in enumerate("abc"):
        each(batch, row, run=first)
    each(2, "c", run=second)  # a crash
    with pytest.raises(sink.DecidedByAnother, match=r"a later version, 2, is decided by txnAppId .* was rewound"):
        each(1, "b", "lost?", run=restored)
    with pytest.raises(sink.DecidedByAnother, match="with 1 rows, and has 2 now"):
        each(2, "c", "lost?", run=restored)
    for run in (second, "a group of its own"):
        each(3, "d", run=run)
        with pytest.raises(sink.DecidedByAnother, match="with 1 rows, and has 2 now"):
            each(3, "d", "lost?", run=restored if run == second else run)
    assert values(bootstrap, topic) == ["a", "b", "c", "d"]


def test_a_batch_that_writes_several_versions_may_run_again(bootstrap: str, topic: str, name: str) -> None:
    for run, batch in ((str(uuid4()), 0), (str(uuid4()), 0), (str(uuid4()), 1)):
        for part in (0, 1):
            row = f"{batch}-{part}"
            write_version(bootstrap, row, name, 2 * batch + part, topic=topic, query="q", batch=batch, run=run)
    assert values(bootstrap, topic) == ["0-0", "0-1", "1-0", "1-1"]


def test_versions_that_a_former_program_decided_without_their_batch_are_passed_over() -> None:
    mine, before = (Decider("q", app="a", topic="t", batch=batch) for batch in (7, None))
    assert conflict(mine, 14, 15, before, None) is None
    assert conflict(mine, 14, 15, replace(before, batch=8), None)


def test_a_second_write_of_a_batch_to_the_same_topic_fails_instead_of_dropping_its_rows(
    bootstrap: str, topic: str, name: str
) -> None:
    first, second = str(uuid4()), str(uuid4())
    write_version(bootstrap, "good", name, 0, topic=topic, query="q", run=first)
    with pytest.raises(sink.DecidedByAnother, match=r"another write of the same batch.* give it a txnAppId"):
        write_version(bootstrap, "bad", name, 0, topic=topic, query="q", run=first)
    write_version(bootstrap, "good", name, 0, topic=topic, query="q", run=second)
    write_version(bootstrap, "bad", f"{name}-bad", 0, topic=topic, query="q", run=second)
    assert values(bootstrap, topic) == ["bad", "good"]


def test_a_write_whose_answer_was_lost_is_no_second_one(bootstrap: str, topic: str, name: str) -> None:
    given = {"kafka.bootstrap.servers": bootstrap, "topic": topic, "txnAppId": name, "txnVersion": "0"}
    writer = sink.BatchSink(read_sink_options(given, streaming=False), VALUE)
    of_query = {"sql.streaming.queryId": "q", "streaming.sql.batchId": "0", "spark.jobGroup.id": str(uuid4())}
    task = cast(TaskContext, Task(**of_query))
    written = sink.write(writer._options, writer._root, 0, task, iter([pa.record_batch({"value": ["a"]})]))
    for _ in range(2):
        writer.commit([written])
    assert values(bootstrap, topic) == ["a"]


def test_the_longest_name_of_a_decider_is_remembered(client: Client, name: str) -> None:
    longest = Decider(
        query=str(uuid4()), run=str(uuid4()), rows=10**18, app=name_of_app("a" * 498), topic="t" * 249, batch=10**18,
        write=uuid4().hex,
    )  # fmt: skip
    decide(client, name, 0, (), str(longest))
    assert Decider.read(last_decision(client, name).decided_by) == longest

"""What is measured, inside PySpark: one application for all contenders, so that they share its warmth and its weather.

Run by `python -m tests.spark.bench`, which hands over a plan as JSON. Prints one line of JSON for each number.
"""

from __future__ import annotations

import functools
import itertools
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]
from pyspark.sql import DataFrame, SparkSession

PARTITIONS = 4
ROW_BYTES = 100
A_TRIGGER = 1_000_000
A_SINK_TRIGGER = 500_000
SINK_TRIGGERS = 7
A_SMALL_TRIGGER = 4_000
SMALL_TRIGGERS = 25
PATIENCE_SECONDS = 200

_numbers = itertools.count()


class Contender(NamedTuple):
    """A data source on a broker, with settings of Spark's that its users may or may not have made."""

    name: str
    format: str
    bootstrap: str
    conf: dict[str, str]


class NotMeasured(Exception):
    """This contender has no such figure."""


class Bench:
    def __init__(self, spark: SparkSession, plan: dict[str, Any]) -> None:
        self.spark = spark
        self.topic: str = plan["topic"]
        self.rows: int = plan["rows"]
        self.sink_rows: int = plan["sink_rows"]
        self.calls = Path(plan["calls"])

    # -- figures: rows a second, or milliseconds

    def batch_source(self, who: Contender) -> float:
        frame = self._from(self.spark.read, who).load()
        began = time.monotonic()
        frame.write.format("noop").mode("overwrite").save()
        return self.rows / (time.monotonic() - began)

    def stream_source(self, who: Contender) -> float:
        frame = self._from(self.spark.readStream, who).option("maxOffsetsPerTrigger", str(A_TRIGGER)).load()
        return _throughput(self._run(frame.writeStream.format("noop")))

    def batch_sink(self, who: Contender) -> float:
        with_topic = self._to(self._cached.write, who)
        began = time.monotonic()
        with_topic.save()
        return self.sink_rows / (time.monotonic() - began)

    def stream_sink(self, who: Contender) -> float:
        """From Spark's own source, into whichever sink."""
        source = self._source(who).option("maxOffsetsPerTrigger", str(A_SINK_TRIGGER))
        stream = self._to(source.load().select("value").writeStream, who)
        return _throughput(self._run(stream, triggers=min(self.rows // A_SINK_TRIGGER, SINK_TRIGGERS)))

    def micro_batch(self, who: Contender) -> float:
        """How long a small micro-batch takes in all, source and Spark's own logs included."""
        source = self._source(who).option("maxOffsetsPerTrigger", str(A_SMALL_TRIGGER)).load().select("value")
        progress = self._run(self._to(source.writeStream, who), triggers=SMALL_TRIGGERS)
        return float(statistics.median(one["durationMs"]["triggerExecution"] for one in progress[3:]))

    def added(self, who: Contender) -> float:
        """What a micro-batch spends in the calls that are there for exactly-once alone: milliseconds, median."""
        if who.format != "oncelog":
            raise NotMeasured("it decides nothing")
        self.calls.write_text("")
        self.micro_batch(who._replace(format=timed_sink(self.spark, self.calls)))
        tasks: dict[int, dict[str, float]] = {}
        decisions: dict[int, float] = {}
        for line in self.calls.read_text().splitlines():
            batch, branch, milliseconds = json.loads(line)
            if branch:
                spent = tasks.setdefault(batch, {})
                spent[branch] = spent.get(branch, 0.0) + milliseconds
            else:
                decisions[batch] = decisions.get(batch, 0.0) + milliseconds
        return statistics.median(max(tasks[batch].values()) + decisions[batch] for batch in sorted(tasks)[3:-1])

    # -- parts

    @functools.cached_property
    def _cached(self) -> DataFrame:
        """Rows to write, in memory before anything is measured."""
        frame = self.spark.range(0, self.sink_rows, 1, PARTITIONS).selectExpr(
            f"cast(rpad(cast(id as string), {ROW_BYTES}, 'abcdefghij') as binary) as value"
        )
        frame.cache().count()
        return frame

    def _source(self, who: Contender) -> Any:
        reader = self.spark.readStream.format("kafka").option("kafka.bootstrap.servers", who.bootstrap)
        return reader.option("subscribe", self.topic).option("startingOffsets", "earliest")

    def _from(self, reader: Any, who: Contender) -> Any:
        reader = reader.format(who.format).option("kafka.bootstrap.servers", who.bootstrap)
        return reader.option("subscribe", self.topic).option("startingOffsets", "earliest")

    def _to(self, writer: Any, who: Contender) -> Any:
        topic = f"written-{next(_numbers)}"
        admin = AdminClient({"bootstrap.servers": who.bootstrap})
        admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(30)
        writer = writer.format(who.format).option("kafka.bootstrap.servers", who.bootstrap).option("topic", topic)
        # Spark takes batch writes of some sources as appends only, and the stream's mode is append by default.
        return writer.mode("append") if hasattr(writer, "mode") else writer

    def _run(self, writer: Any, triggers: int | None = None) -> list[dict[str, Any]]:
        """Run a query to the end of what is there, or for so many triggers; what Spark reports of each."""
        with tempfile.TemporaryDirectory(prefix="oncelog-bench-") as folder:
            writer = writer.option("checkpointLocation", folder)
            if triggers is None:
                query = writer.trigger(availableNow=True).start()
                query.awaitTermination(PATIENCE_SECONDS)
            else:
                query = writer.start()
                until = time.monotonic() + PATIENCE_SECONDS
                while query.isActive and ((last := query.lastProgress) is None or last["batchId"] + 1 < triggers):
                    if time.monotonic() > until:
                        raise TimeoutError(f"no {triggers} triggers in {PATIENCE_SECONDS} s")
                    time.sleep(0.02)
                query.stop()
            if query.exception() is not None:
                raise query.exception()
            return [one for one in query.recentProgress if one["numInputRows"]]


def timed_sink(spark: SparkSession, calls: Path) -> str:
    """The name of a sink that is ours, and notes how long it takes to open and to seal a branch, to decide, and until
    readers see the decision: all that a sink without transactions would not do.
    """
    from spark_sink import OncelogDataSource
    from spark_sink.sink import StreamSink

    class TimedSink(StreamSink):
        def write(self, iterator: Any) -> Any:
            _time_calls(str(calls))
            return super().write(iterator)

        def commit(self, messages: Any, batchId: int) -> None:
            _time_calls(str(calls))
            super().commit(messages, batchId)

    class Timed(OncelogDataSource):
        @classmethod
        def name(cls) -> str:
            return "oncelog-timed"

        def streamWriter(self, schema: Any, overwrite: bool) -> Any:
            sink = super().streamWriter(schema, overwrite)
            sink.__class__ = TimedSink
            return sink

    spark.dataSource.register(Timed)
    return Timed.name()


def _time_calls(calls: str) -> None:
    """In one of Spark's Python processes, for good. Each line: batch, branch (none: the decision), milliseconds."""
    import json
    import time

    from spark_sink import sink
    from spark_sink.branch import Branch

    def timed(function: Callable[..., Any], token_and_branch: Callable[..., tuple[int, str]]) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            began = time.monotonic()
            try:
                return function(*given, **named)
            finally:
                spent = (time.monotonic() - began) * 1000
                with open(calls, "a") as file:
                    file.write(json.dumps([*token_and_branch(*given), spent]) + "\n")

        call.is_timed = True  # type: ignore[attr-defined]
        return call

    def of_branch(branch: Branch, *_: Any) -> tuple[int, str]:
        return int(branch.transactional_id.partition("::")[2].partition("/")[0]), branch.transactional_id

    def of_decision(_client: Any, _root: str, token: int, *_: Any) -> tuple[int, str]:
        return token, ""

    def of_waiting(_client: Any, _root: str, branches: Any) -> tuple[int, str]:
        return int(branches[0].transactional_id.partition("::")[2].partition("/")[0]), ""

    if not hasattr(Branch.open, "is_timed"):
        Branch.open = timed(Branch.open, of_branch)  # type: ignore[method-assign]
        Branch._end = timed(Branch._end, of_branch)  # type: ignore[method-assign]
        for name, of in (("decide", of_decision), ("await_visible", of_waiting)):
            setattr(sink, name, timed(getattr(sink, name), of))


def _throughput(progress: list[dict[str, Any]]) -> float:
    """Without the first trigger, which also starts the query."""
    assert len(progress) > 2, f"only {len(progress)} triggers"
    seconds = sum(one["durationMs"]["triggerExecution"] for one in progress[1:]) / 1000
    return float(sum(one["numInputRows"] for one in progress[1:]) / seconds)


FIGURES: dict[str, Callable[[Bench, Contender], float]] = {
    "batch source, rows/s": Bench.batch_source,
    "stream source, rows/s": Bench.stream_source,
    "batch sink, rows/s": Bench.batch_sink,
    "stream sink, rows/s": Bench.stream_sink,
    f"micro-batch of {A_SMALL_TRIGGER:,} rows, ms": Bench.micro_batch,
    "of it for exactly-once, ms": Bench.added,
}


def measure(bench: Bench, plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Contenders take turns, so that slow minutes of the machine hit all. The first round only warms up."""
    contenders = [Contender(*given) for given in plan["contenders"]]
    for figure, turn in itertools.product(plan["figures"], range(plan["runs"] + 1)):
        for who in contenders:
            before = {name: bench.spark.conf.get(name, None) for name in who.conf}
            for name, wanted in who.conf.items():
                bench.spark.conf.set(name, wanted)
            try:
                value = FIGURES[figure](bench, who)
            except NotMeasured:
                continue
            except Exception as failure:  # noqa: BLE001 - a figure that fails shall not cost the others
                yield {"figure": figure, "contender": who.name, "failure": f"{type(failure).__name__}: {failure}"}
                continue
            finally:
                for name, old in before.items():
                    if old is None:
                        bench.spark.conf.unset(name)
                    else:
                        bench.spark.conf.set(name, old)
            if turn:
                yield {"figure": figure, "contender": who.name, "value": value}


def main() -> None:
    plan = json.loads(sys.argv[1])
    spark = (
        SparkSession.builder.master("local[2]")
        .appName("bench")
        .config("spark.jars", plan["jars"])
        .config("spark.driver.memory", "4g")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")  # queries that are stopped are no errors
    for told in measure(Bench(spark, plan), plan):
        print("measured " + json.dumps(told), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()

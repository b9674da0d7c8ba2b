"""What docs/spark.md tells to type works as it stands there; only broker and folders are those of the test."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from spark_sink.options import SINK_NAMES, SOURCE_NAMES
from spark_sink.sink_options import read_sink_options
from tests.clients.topics import Topics
from tests.peers.process import ROOT, BrokerProcess
from tests.spark_sink.producing import produce
from tests.spark_sink.reading import values

PAGE = (ROOT / "docs" / "spark.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


@pytest.mark.timeout(300)
def test_every_block_of_code_runs_as_it_stands(
    spark: SparkSession, own_broker: BrokerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics = Topics(own_broker.bootstrap, "docs")
    for topic in ("orders", "loud-orders", "numbers", "counts", "others"):
        monkeypatch.setattr(topics, "name", lambda name=topic: name)
        topics.create()
    produce(own_broker.bootstrap, "orders", [b"one", b"two"])
    produce(own_broker.bootstrap, "others", [b"three", b"four", b"five"])
    # A query that goes on for ever is stopped when it has read what there is.
    monkeypatch.setattr(StreamingQuery, "awaitTermination", lambda query: query.processAllAvailable())

    def here(text: str) -> str:
        return text.replace("localhost:9092", own_broker.bootstrap).replace("/data/", f"{tmp_path}/")

    # The page doesn't say where the stream of its last example comes from: from a topic that nothing else writes to.
    there = spark.readStream.format("oncelog").option("kafka.bootstrap.servers", own_broker.bootstrap)
    stream = there.option("subscribe", "others").option("startingOffsets", "earliest").load()
    known: dict[str, Any] = {"spark": spark, "stream": stream.select("key", "value")}
    for view in ("orders", "seen"):  # the session is shared with other tests
        spark.catalog.dropTempView(view)
    try:
        for code in blocks("python"):
            exec(here(code), known)
            for query in spark.streams.active:
                query.processAllAvailable()
                query.stop()
        assert values(own_broker.bootstrap, "loud-orders") == ["ONE", "TWO"]
        assert len(values(own_broker.bootstrap, "numbers")) == 1000
        assert values(own_broker.bootstrap, "counts") == ["3"], "of three without a key"
        for script in blocks("sql"):
            for statement in filter(str.strip, here(script).split(";\n")):
                found = spark.sql(statement.rstrip(";\n")).collect()
        assert len(found) == 15, "what was there, what foreachBatch wrote, what was inserted"
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxBytesPerBatch")
        for view in ("orders", "seen"):
            spark.catalog.dropTempView(view)


def test_every_make_target_and_folder_that_is_named_is_there() -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert set(re.findall(r"`make ([a-z-]+)", PAGE)) <= {*targets}
    assert all((ROOT / "docs" / path).exists() for path in re.findall(r"\]\((\.\.?/[^)]*)\)", PAGE))
    assert re.findall(r"^pip install (\S+)", PAGE, re.MULTILINE) == ["./spark_sink"]
    assert (ROOT / "spark_sink" / "pyproject.toml").exists()


def test_every_option_of_ours_is_told_and_every_option_told_is_known() -> None:
    tables = PAGE[PAGE.index("### Options of the sink") : PAGE.index("**Where a stream is.**")]
    told = {
        name for row in re.findall(r"^\| (`.*?) \|", tables, re.MULTILINE) for name in re.findall(r"`([\w.]+)`", row)
    }
    assert {*SOURCE_NAMES, *SINK_NAMES} <= told
    producers = {name: "1" for name in told if name.startswith("kafka.") and name not in ("kafka.isolation.level",)}
    read_sink_options(producers | {"kafka.bootstrap.servers": "b:1", "kafka.compression.type": "gzip"}, streaming=True)

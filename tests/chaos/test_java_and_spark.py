"""Copiers on a Java machine: named where they can't run, left alone until they are at work, and as far as they say."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests import outside
from tests.chaos import java_and_spark, run
from tests.chaos.java_and_spark import AT_WORK, JAVA, ON_JAVA, SPARK, able
from tests.chaos.run import Copier
from tests.chaos.spark_copies import read_offsets
from tests.clients.kits import eventually


def test_what_can_not_run_is_left_out_and_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(outside, "missing", lambda *programs: f"no {programs[0]}")
    monkeypatch.setattr(outside, "missing_java", lambda: "no java")
    assert able(["aiokafka", JAVA, SPARK]) == ["aiokafka"]
    assert capsys.readouterr().out == "Java is left out: no javac\nSpark is left out: no java\n"


def batch_is_done(checkpoint: Path, number: int, offsets: str) -> None:
    for name in ("offsets", "commits"):
        (checkpoint / name).mkdir(parents=True, exist_ok=True)
        (checkpoint / name / f".{number}.crc").touch()
    (checkpoint / "offsets" / str(number)).write_text(f'v1\n{{"batchWatermarkMs":0}}\n{offsets}')
    (checkpoint / "commits" / str(number)).touch()


def test_a_stream_is_as_far_as_its_last_batch_that_is_done(tmp_path: Path) -> None:
    (tmp_path / "commits").mkdir()
    assert read_offsets(tmp_path, "in") == {}
    batch_is_done(tmp_path, 9, '{"@ids":{"in":"x"},"in":{"0":300,"1":0}}')
    batch_is_done(tmp_path, 10, '{"@ids":{"in":"x"},"in":{"0":600,"1":7}}')
    (tmp_path / "offsets" / "11").write_text('v1\n{}\n{"in":{"0":900,"1":9}}')  # under way
    assert read_offsets(tmp_path, "in") == {0: 600, 1: 7}


@pytest.mark.parametrize("client", ON_JAVA)
def test_what_starts_on_java_is_not_killed_before_it_is_at_work(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, client: str
) -> None:
    program = (
        "import pathlib, time\nwhile not pathlib.Path('go').exists(): time.sleep(0.01)\nprint('at work', flush=True)"
    )
    monkeypatch.setattr(java_and_spark, "command", lambda *_: [sys.executable, "-c", f"{program}\ntime.sleep(60)"])
    monkeypatch.setattr(run, "ROOT", tmp_path)
    copier = Copier(client, "nowhere", "in", "out", tmp_path, "")
    copier.log.write_bytes(AT_WORK)  # in a life before
    copier.keep_running()
    try:
        assert not copier.strike()
        (tmp_path / "go").touch()
        eventually(copier.strike)
    finally:
        copier.kill()

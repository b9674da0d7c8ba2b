"""A driver killed at each point where its death means something else, and started again on the same checkpoint.

A minute and a half on a quiet machine, nearly all of it Spark's start; which is why it has a command of its own.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.clients.topics import Topics
from tests.peers.process import ROOT
from tests.spark_sink.dying_driver import DEATHS, FILES, ROWS_PER_FILE
from tests.spark_sink.reading import values

SECONDS_PER_DRIVER = 900  # thirty; two hundred beside twelve busy loops on two cores. Who needs more hangs
KILLED = -9


@pytest.mark.timeout(4 * SECONDS_PER_DRIVER)
def test_every_row_is_there_once_wherever_the_driver_dies(bootstrap: str, topics: Topics, tmp_path: Path) -> None:
    """Killed while writing, when all is sealed and nothing decided, and when it is decided and Spark has not noted it;
    and one decision whose answer is lost: each in a batch of its own, each time started again. In the last batch no
    driver dies, but the first attempts of its tasks fail."""
    topic = topics.create(3)
    for folder in ("input", "happened"):
        (tmp_path / folder).mkdir()
    rows = [f"{number:05}" for number in range(FILES * ROWS_PER_FILE)]
    for number in range(FILES):
        mine = rows[number * ROWS_PER_FILE :][:ROWS_PER_FILE]
        (tmp_path / "input" / f"{number}.txt").write_text("\n".join(mine) + "\n")

    deaths = len(DEATHS) - 1  # the lost answer ends the query alone
    statuses = [run_driver(bootstrap, topic, tmp_path) for _ in range(deaths + 1)]

    assert statuses == [KILLED] * deaths + [0], (tmp_path / "drivers.log").read_text()[-5000:]
    happened = sorted(file.name for file in (tmp_path / "happened").iterdir())
    assert happened == sorted(f"{batch} {point}" for batch, point in DEATHS.items())
    assert values(bootstrap, topic) == rows


def run_driver(bootstrap: str, topic: str, folder: Path) -> int:
    command = [sys.executable, "-m", "tests.spark_sink.dying_driver", bootstrap, topic, str(folder)]
    with (folder / "drivers.log").open("ab") as log:
        driver = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,  # a process group of its own, to be killed as a whole
        )
        try:
            return driver.wait(SECONDS_PER_DRIVER)
        finally:
            if driver.poll() is None:
                os.killpg(driver.pid, signal.SIGKILL)
                driver.wait()

"""`oncelog demo` with all that can run beside it: one command from nothing to a cluster over a real ZooKeeper, under
load, with its page, Prometheus and two Spark pipelines. A broker dies, it goes on, and nothing is left in the end.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import pytest
import requests

from service.cli.companions import PIPELINES
from tests.outside import needs
from tests.service.cli.kit import Running, oncelog
from tests.service.cli.test_several import _free_ports

PATIENCE_S = 240.0
MEMORY_MOST = 4 << 30
pytestmark = [
    pytest.mark.timeout(900),
    needs("java", "prometheus"),
    pytest.mark.skipif(find_spec("spark_sink") is None, reason="no oncelog-spark in this environment"),
]


def wait(holds: Callable[[], Any], what: str) -> Any:
    until = time.monotonic() + PATIENCE_S
    while True:
        try:
            if found := holds():
                return found
        except (requests.ConnectionError, KeyError, IndexError):
            pass  # it is not up yet
        assert time.monotonic() < until, what
        time.sleep(0.5)


def committed(bootstrap: str, topic: str) -> int:
    """How many records a reader of committed ones has read there."""
    lags = oncelog("group", "lag", "demo-readers", "-o", "json", bootstrap=bootstrap)
    return sum(row["committed_offset"] or 0 for row in lags.json() if row["topic"] == topic) if lags.status == 0 else 0


def test_one_command_brings_up_all_of_it_and_takes_all_of_it_down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ONCELOG_HTTP_LISTENERS")  # which tests/__init__.py sets: other tests' brokers have none
    port = _free_ports(3)
    with Running("demo", "--brokers", "3", "--zookeeper", "--spark", "--load", "--port", str(port)) as demo:
        told, began_s = "", time.monotonic()
        while "sort -n" not in told:
            told += demo.line().decode()
            assert demo.poll() is None, demo.ended()
            assert time.monotonic() < began_s + PATIENCE_S, told
        bootstrap = f"127.0.0.1:{port}"
        (page,) = re.findall(r"page +(\S+)", told)
        (prometheus,) = re.findall(r"Prometheus +(http://\S+?)/alerts", told)
        (folder,) = re.findall(r"goes to (\S+)/brokers.log", told)
        try:
            wait(lambda: "load-1" in requests.get(f"{page}/transactions?which=all", timeout=20).text, "the load")
            up = {"query": "count(up == 1)"}
            query = f"{prometheus}/api/v1/query"
            wait(
                lambda: requests.get(query, up, timeout=20).json()["data"]["result"][0]["value"][1] == "3", "Prometheus"
            )
            for pipeline in PIPELINES:
                wait(lambda topic=pipeline.writes: committed(bootstrap, topic), f"what {pipeline.name} makes is read")  # type: ignore[misc]
            before = committed(bootstrap, "entries")
            victim = int(re.findall(r"broker 2 .* process (\d+)", told)[0])
            os.kill(victim, signal.SIGKILL)
            wait(lambda: committed(bootstrap, "entries") > before + 100, "it goes on without a broker")
        except AssertionError:
            for name in ("load", *(f"spark-{each.name}" for each in PIPELINES), "readers", "prometheus"):
                if (log := Path(folder) / f"{name}.log").exists():
                    print(name, log.read_text(errors="replace")[:5000])
            raise
        children = psutil.Process(demo.pid).children(recursive=True)
        assert len(children) >= 8
        together = sum(each.memory_full_info().pss for each in children)
        print(f"all of it takes {together >> 20} MiB")
        assert together < MEMORY_MOST, "it fits in a laptop"
        demo.send_signal(signal.SIGINT)
        demo.wait(60)
        assert demo.returncode == 0
        _, alive = psutil.wait_procs(children, 20)
        assert alive == []
        assert not os.path.exists(folder)


def test_no_process_is_left_of_a_demo_that_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ONCELOG_HTTP_LISTENERS")
    port = _free_ports(1)
    with Running("demo", "--brokers", "1", "--zookeeper", "--load", "--port", str(port)) as demo:
        wait(lambda: demo.line() or demo.poll() is not None, "it is up")
        time.sleep(2)
        children = psutil.Process(demo.pid).children(recursive=True)
        assert len(children) >= 3
        demo.kill()
        _, alive = psutil.wait_procs(children, 20)
        assert alive == []

"""`make chaos-cluster`: three brokers and a real ZooKeeper ensemble are killed, paused and cut off from each other,
while clients write, in transactions and without, and others are killed while they copy a topic: Kafka's protocol in C
and in Java, HTTP, and Spark with our source and sink.

`python -m tests.chaos.cluster --seconds 600 --seed 7`; the seed chooses what befalls whom, the machine does the rest.
With `--careless` the settings are such that acknowledged records get lost: who judges must notice.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import random
import shutil
import sys
import tempfile
from pathlib import Path

from tests import outside
from tests.chaos.cluster.faults import DISK_FAILED, KINDS
from tests.chaos.cluster.run import run
from tests.chaos.java_and_spark import ON_JAVA, able
from tests.chaos.over_http import CARELESS, OVER_HTTP
from tests.chaos.worker import CLIENTS
from tests.peers import network, zookeeper
from tests.peers.process import ROOT

INSIDE = "--inside"
COPIERS = ("confluent-kafka", *OVER_HTTP, *ON_JAVA)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.cluster", description=__doc__)
    parser.add_argument("--seconds", type=float, default=120.0, help="how long there are faults")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--kind", choices=tuple(KINDS), action="append", help="default: all")
    parser.add_argument(
        "--client",
        choices=(*CLIENTS, *OVER_HTTP, *ON_JAVA, *CARELESS, "none"),
        action="append",
        help=f"who copies; default: {', '.join(COPIERS)}",
    )
    parser.add_argument("--careless", action="store_true", help="acks=1 and unclean elections")
    parser.add_argument("--keep", type=Path, default=None, help="keep data and logs in this folder, though all is well")
    parser.add_argument(INSIDE, nargs="*", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.inside is None:
        if why := network.missing() or zookeeper.missing():
            print(f"cannot run: {why}", file=sys.stderr)
            return 2
        # Before: what is missing is fetched, and in a world of its own there is no way to where it comes from.
        clients = able(chosen.client or COPIERS)
        command = [sys.executable, "-m", "tests.chaos.cluster", *sys.argv[1:], INSIDE, *clients]
        status = network.in_a_world_of_its_own(command, cwd=ROOT)
        if status < 0:  # a client library crashed
            print(f"the run was not judged: signal {-status} ended it", file=sys.stderr)
        return status
    network.end_with_maker()
    seed = random.randrange(1 << 32) if chosen.seed is None else chosen.seed
    print(f"seed {seed}, {chosen.seconds:g} s{', careless' if chosen.careless else ''}", flush=True)
    folder = (chosen.keep or Path(tempfile.mkdtemp(prefix="oncelog-chaos-"))).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    summary = run(
        folder,
        seconds=chosen.seconds,
        seed=seed,
        kinds=_possible(chosen.kind or list(KINDS)),
        clients=[client for client in chosen.inside if client != "none"],
        careless=chosen.careless,
    )
    print(summary, flush=True)
    if not summary.is_clean:
        print(f"data and logs are in {folder}", flush=True)
    elif chosen.keep is None:
        shutil.rmtree(folder)
    return 0 if summary.is_clean else 1


def _possible(kinds: list[str]) -> list[str]:
    """What can't be done here is named."""
    if DISK_FAILED in kinds and (why := outside.missing("cc")):
        print(f"left out: {DISK_FAILED}: {why}", flush=True)
        return [kind for kind in kinds if kind != DISK_FAILED]
    return kinds


if __name__ == "__main__":
    faulthandler.enable()  # a client library may crash
    status = main()
    sys.stdout.flush()
    # Without waiting for the threads of a client library: what hangs there is told in the summary.
    os._exit(status)

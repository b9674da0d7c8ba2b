"""Many producers that commit one small transaction after another, a thread each, in a process of their own.

On confluent-kafka and not in load.c: the librdkafka of Debian 12 spends 1.7 ms of CPU on each transaction, so that
sixteen of them would measure the load maker.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from typing import Final

from confluent_kafka import Producer

from tests.bench.native import PATIENCE_SECONDS, LoadFailed, Outcome

WARM_UP: Final = 20
"""Transactions of each producer before any counts."""


def run(bootstrap: str, topic: str, seconds: float, producers: int, *, abort: bool = False) -> Outcome:
    """Commit (or abort) for so many seconds, in a process of its own."""
    what = "abort" if abort else "commit"
    command = [sys.executable, "-m", __name__, bootstrap, topic, str(seconds), str(producers), what]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)
    if done.returncode:
        raise LoadFailed(f"{' '.join(command)}: {done.stderr.strip()[-500:]}")
    outcome: Outcome = json.loads(done.stdout)
    return outcome


def main(bootstrap: str, topic: str, seconds: float, producers: int, *, abort: bool) -> None:
    ended = [0] * producers
    warm = threading.Barrier(producers + 1)

    def work(number: int) -> None:
        settings = {
            "bootstrap.servers": bootstrap,
            "transactional.id": f"small-{number}",
            "linger.ms": 0,
            "log_level": 2,
        }
        producer = Producer(settings)
        producer.init_transactions(60)

        def one() -> None:
            producer.begin_transaction()
            producer.produce(topic, b"x" * 100)
            producer.flush()  # an abort would throw away what was not sent yet
            if abort:
                producer.abort_transaction(60)
            else:
                producer.commit_transaction(60)

        for _ in range(WARM_UP):
            one()
        warm.wait()
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            one()
            ended[number] += 1

    threads = [threading.Thread(target=work, args=(number,)) for number in range(producers)]
    for thread in threads:
        thread.start()
    warm.wait(PATIENCE_SECONDS)
    began = time.monotonic()
    for thread in threads:
        thread.join()
    took = time.monotonic() - began
    print(json.dumps({"messages": sum(ended), "seconds": took, "per_second": sum(ended) / took}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4]), abort=sys.argv[5] == "abort")

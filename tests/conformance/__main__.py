"""The same conversations with oncelog and with Apache Kafka, answers compared.

    python -m tests.conformance              both brokers, started here
    python -m tests.conformance --record     Kafka alone: write its answers to tests/conformance/recorded
    python -m tests.conformance --recorded   oncelog against the answers recorded earlier; no Java needed
    python -m tests.conformance --twice      Kafka against itself: what shows is chance that nobody smoothed over

Ends with 0 when every difference is explained in docs/differences.md.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.conformance.compare import Transcripts, differences, read_excuses, sort_out
from tests.conformance.families import EQUAL_SETTINGS, FAMILIES, hold_family, read_recorded, write_recorded
from tests.peers import kafka
from tests.peers.kafka import ApacheKafka
from tests.peers.ours import Oncelog
from tests.peers.process import BrokerProcess


def hold_all(broker: BrokerProcess, families: Sequence[str], only: str) -> dict[str, Transcripts]:
    """Everything with one broker, which is started and stopped here."""
    broker.start()
    held: dict[str, Transcripts] = {}
    try:
        for family in families:
            began = time.monotonic()
            held[family] = hold_family(family, broker.port, only=only)
            steps = sum(len(transcript) for transcript in held[family].values())
            took = time.monotonic() - began
            print(
                f"{broker.name}: {family}, {len(held[family])} conversations, {steps} steps, {took:.1f} s",
                file=sys.stderr,
            )
            assert broker.running(), f"{broker.name} ended:\n{broker.log_tail()}"
    finally:
        if broker.running():
            broker.kill()
    return held


def compare(oracle: dict[str, Transcripts], other: dict[str, Transcripts], *, excused: bool, whole: bool) -> int:
    """Print what differs; the number of differences that nobody explains, and of explanations that nobody needs."""
    found = [one for family in oracle for one in differences(oracle[family], other[family])]
    unexplained, idle = sort_out(found, read_excuses() if excused else [])
    for one in unexplained:
        print(one)
    steps = sum(len(steps) for transcripts in oracle.values() for steps in transcripts.values())
    print(f"{steps} steps compared, {len(found)} differences, {len(unexplained)} of them unexplained")
    if not whole:
        return len(unexplained)
    for line in idle:
        print(f"docs/differences.md: nothing differs any more at {line!r}")
    return len(unexplained) + len(idle)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__.partition("\n")[0])
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--record", action="store_true", help="write Kafka's answers to tests/conformance/recorded")
    how.add_argument("--recorded", action="store_true", help="compare with the answers recorded earlier")
    how.add_argument("--twice", action="store_true", help="compare Kafka with itself")
    parser.add_argument("--only", default="", metavar="TEXT", help="conversations whose family.name contains this")
    chosen = parser.parse_args()
    families = [
        family
        for family, conversations in FAMILIES.items()
        if any(chosen.only in f"{family}.{one.__name__}" for one in conversations)
    ]
    why_not = None if chosen.recorded else kafka.missing()
    if why_not:
        print(f"Apache Kafka cannot run here: {why_not}. Use --recorded.", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        where = Path(folder)
        apache = ApacheKafka(where / "kafka", settings=EQUAL_SETTINGS)
        if chosen.record:
            for family, transcripts in hold_all(apache, families, "").items():
                write_recorded(family, transcripts)
            return 0
        if chosen.recorded:
            oracle: dict[str, Transcripts] = {
                family: {name: steps for name, steps in read_recorded(family).items() if chosen.only in name}
                for family in families
            }
            ours = hold_all(Oncelog(where / "ours", settings=EQUAL_SETTINGS), families, chosen.only)
            return min(compare(oracle, ours, excused=True, whole=not chosen.only), 1)
        second: BrokerProcess = ApacheKafka(where / "again", settings=EQUAL_SETTINGS)
        if not chosen.twice:
            second = Oncelog(where / "ours", settings=EQUAL_SETTINGS)
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            both = [pool.submit(hold_all, broker, families, chosen.only) for broker in (apache, second)]
            oracle, other = (each.result() for each in both)
        return min(compare(oracle, other, excused=not chosen.twice, whole=not chosen.only), 1)


if __name__ == "__main__":
    sys.exit(main())

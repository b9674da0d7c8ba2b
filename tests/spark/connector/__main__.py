"""Spark's own Kafka connector, unchanged, and our data source against our broker.

    python -m tests.spark.connector [PART OF A CHECK'S NAME]           Spark's own: `make spark-connector`
    python -m tests.spark.connector --ours [PART OF A CHECK'S NAME]    ours on each PySpark: `make spark-versions`

Starts a broker and runs checks.py, which needs PySpark, in environments that have it. `ONCELOG_TEST_BROKER=kafka` runs
the checks of Spark's own against Apache Kafka: that is how the checks are checked.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from tests.clients.programs import chosen_broker
from tests.peers.process import ROOT
from tests.spark.environment import (
    CONNECTOR_PYSPARK,
    EVERY_PYSPARK,
    CannotInstall,
    connector_jars,
    environment_of,
    interpreter,
    missing,
    tidy_up_when_told_to_end,
)


def check(python: Path, only: str, **environment: str) -> int:
    with chosen_broker() as bootstrap:
        given = {**environment_of(python, ROOT), "ONCELOG_TEST_BOOTSTRAP": bootstrap, **environment}
        command = [str(python), "-m", "tests.spark.connector.checks", only]
        return subprocess.run(command, env=given, check=False).returncode


def main() -> int:
    tidy_up_when_told_to_end()
    parser = argparse.ArgumentParser(prog="python -m tests.spark.connector", description=__doc__.partition("\n")[0])
    parser.add_argument("only", nargs="?", default="", metavar="NAME", help="part of the names of checks")
    parser.add_argument("--ours", action="store_true", help="our data source instead of Spark's own connector")
    parser.add_argument("--pyspark", action="append", help=f"for ours; default: {', '.join(EVERY_PYSPARK)}")
    chosen = parser.parse_args()
    failed = 0
    why = missing(connector=not chosen.ours)
    try:
        if why is None and chosen.ours:
            for version in chosen.pyspark or EVERY_PYSPARK:
                python = interpreter(version)
                print(f"PySpark {version}", flush=True)
                failed |= check(python, chosen.only, SPARK_FORMAT="oncelog")
        elif why is None:
            python, jars = interpreter(CONNECTOR_PYSPARK), connector_jars()
            failed = check(python, chosen.only, SPARK_CONNECTOR_JARS=jars)
    except CannotInstall as failure:
        why = str(failure)
    if why is not None:
        print(f"skipped: {why}")
    return failed


if __name__ == "__main__":
    sys.exit(main())

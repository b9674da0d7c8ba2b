"""Spark's own Kafka connector, unchanged, against our broker: `make spark-connector`.

    python -m tests.spark.connector [PART OF A CHECK'S NAME]

Starts a broker and runs checks.py, which needs PySpark, in an environment that has it. `ONCELOG_TEST_BROKER=kafka` runs
the same checks against Apache Kafka: that is how the checks are checked.
"""

from __future__ import annotations

import subprocess
import sys

from tests.clients.programs import chosen_broker
from tests.peers.process import ROOT
from tests.spark.environment import (
    CONNECTOR_PYSPARK,
    CannotInstall,
    connector_jars,
    environment_of,
    interpreter,
    missing,
)


def main() -> int:
    why = missing(connector=True)
    if why is None:
        try:
            python, jars = interpreter(CONNECTOR_PYSPARK), connector_jars()
        except CannotInstall as failure:
            why = str(failure)
    if why is not None:
        print(f"skipped: {why}")
        return 0
    with chosen_broker() as bootstrap:
        environment = {
            **environment_of(python, ROOT),
            "ONCELOG_TEST_BOOTSTRAP": bootstrap,
            "SPARK_CONNECTOR_JARS": jars,
        }
        checks = [str(python), "-m", "tests.spark.connector.checks", *sys.argv[1:]]
        return subprocess.run(checks, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())

"""Copiers that run in a Java machine: Kafka's own client library (`Copies.java`), and Spark with our source and sink
(`spark_copies.py`). Where one can't run, it is said why.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from tests import outside
from tests.clients.java.programs import java_program
from tests.peers import kafka

JAVA, SPARK = "Java", "Spark"
ON_JAVA = (JAVA, SPARK)
AT_WORK = b"at work\n"
"""What they print when they have copied something."""
SOURCE = Path(__file__).with_name("Copies.java")


def missing(client: str) -> str | None:
    """Why this copier can't run here, or None. What it needs is fetched and built."""
    if client == SPARK:
        return outside.missing_java()
    if client != JAVA:
        return None
    if why := outside.missing("javac") or kafka.missing():
        return why
    try:
        java_program(SOURCE)
    except subprocess.CalledProcessError as failure:
        return f"no jars of Kafka's, or its program can't be compiled: {failure}"
    return None


def able(clients: Iterable[str]) -> list[str]:
    """Those of them that can run here. The others are named, with the reason."""
    found = []
    for client in clients:
        if why := missing(client):
            print(f"{client} is left out: {why}", flush=True)
        else:
            found.append(client)
    return found


def command(client: str, bootstrap: str, source: str, target: str, group: str, checkpoint: Path) -> list[str] | None:
    """None where it is none of these."""
    words = (bootstrap, source, target, group)
    match client:
        case "Java":
            return java_program(SOURCE, *words)
        case "Spark":
            return [sys.executable, "-m", "tests.chaos.spark_copies", *words, str(checkpoint)]
    return None

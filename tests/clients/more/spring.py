"""Spring Kafka's listener container with transactions: listeners that fail, and a process killed half way."""

from __future__ import annotations

from tests.clients.more.copying import copies_once
from tests.clients.more.java import compiled, fetched, java
from tests.clients.programs import Check

SPRING = "4.0.0"


def copies(protocol: str) -> Check:
    """By either protocol of groups."""

    def check(bootstrap: str) -> None:
        jars = fetched(f"spring-kafka-{SPRING}", "spring.xml", f"-Dspring.version={SPRING}")
        program = [*java(compiled("SpringCopies.java", jars), jars), "SpringCopies"]
        copies_once(bootstrap, "spring", program, protocol)

    return check

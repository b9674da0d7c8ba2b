"""Pekko Connectors' transactional streams, which were Alpakka's, in a process killed half way."""

from __future__ import annotations

from tests.clients.more.copying import copies_once
from tests.clients.more.java import compiled, fetched, java

PEKKO = "1.1.0"


def copies(bootstrap: str) -> None:
    jars = fetched(f"pekko-{PEKKO}", "pekko.xml", f"-Dpekko.version={PEKKO}")
    copies_once(bootstrap, "pekko", [*java(compiled("PekkoCopies.java", jars), jars), "PekkoCopies"])

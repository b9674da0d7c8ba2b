"""Topics for one test, made through confluent-kafka's admin client and named so that tests never share one."""

from __future__ import annotations

import itertools
from concurrent.futures import Future

from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]


class Topics:
    def __init__(self, bootstrap: str, prefix: str, *, replicas: int = 1) -> None:
        self.admin = AdminClient({"bootstrap.servers": bootstrap})
        self._prefix = prefix
        self._replicas = replicas
        self._numbers = itertools.count()

    def name(self) -> str:
        """A name that no topic has."""
        return f"t-{self._prefix}-{next(self._numbers)}"

    def create(self, partitions: int = 1, **settings: str) -> str:
        """A new topic; setting names with underscores for dots."""
        name = self.name()
        config = {key.replace("_", "."): value for key, value in settings.items()}
        futures: dict[str, Future[None]] = self.admin.create_topics(
            [NewTopic(name, num_partitions=partitions, replication_factor=self._replicas, config=config)]
        )
        futures[name].result(20)
        return name

"""Limits how fast replicas that move are copied (KIP-73): the bytes a second that a broker sends to followers, and that
it receives as a follower.

What always holds: only replicas that their topic's settings name are throttled, and none that is in sync. So a write
with acks=all never waits for a throttle.
"""

from log.ids import TopicPartition
from service.cluster.image import Delta, Image
from service.cluster.metadata import ClusterMetadata
from service.ports import Env

EVERY_REPLICA = "*"


class Throttle:
    """The throttle of one direction. After bytes were moved, no more are moved until the time that they take at the
    rate has passed.
    """

    def __init__(self, env: Env, metadata: ClusterMetadata, *, rate: str, replicas: str) -> None:
        """`rate` is the name of the broker's setting, `replicas` the name of the topic's setting."""
        self._env = env
        self._metadata = metadata
        self._rate_key = rate
        self._replicas_key = replicas
        self._rate: int | None = None
        self._paid_until_s = 0.0
        self._named: dict[str, tuple[str, frozenset[str]]] = {}
        """By topic: the setting, and the replicas that it names. They may be thousands, and are asked for each one."""

    def take_rate(self, image: Image) -> None:
        own, all_brokers = (image.broker_config(whose).values for whose in (str(self._metadata.broker_id), "default"))
        given = own.get(self._rate_key, all_brokers.get(self._rate_key))
        self._rate = None if given is None else max(int(given), 1)
        self._paid_until_s = min(self._paid_until_s, self._env.clock.monotonic())
        self._named.clear()

    @property
    def is_on(self) -> bool:
        return self._rate is not None

    def concerns(self, partition: TopicPartition, follower: int) -> bool:
        """Whether the throttle applies to the copying of `partition` by `follower`."""
        if self._rate is None:
            return False
        topic = self._metadata.image.topics.get(partition.topic)
        state = topic.partitions.get(partition.partition) if topic is not None else None
        if topic is None or state is None or follower in state.isr:
            return False
        given = topic.config.get(self._replicas_key, "")
        setting, named = self._named.get(topic.name, ("", frozenset()))
        if setting != given:
            named = frozenset(given.split(","))
            self._named[topic.name] = given, named
        return EVERY_REPLICA in named or f"{partition.partition}:{self._metadata.broker_id}" in named

    def holds_back(self, partition: TopicPartition, follower: int) -> bool:
        """Whether nothing may be copied right now."""
        if self._rate is None:  # first, because this is asked for each partition of each fetch
            return False
        return self._env.clock.monotonic() < self._paid_until_s and self.concerns(partition, follower)

    def moved(self, partition: TopicPartition, follower: int, size_bytes: int) -> None:
        if self._rate is not None and self.concerns(partition, follower):
            now_s = self._env.clock.monotonic()
            self._paid_until_s = max(self._paid_until_s, now_s) + size_bytes / self._rate


class Throttles:
    def __init__(self, env: Env, metadata: ClusterMetadata) -> None:
        self._metadata = metadata
        self.leading = Throttle(
            *(env, metadata),
            rate="leader.replication.throttled.rate",
            replicas="leader.replication.throttled.replicas",
        )
        self.following = Throttle(
            *(env, metadata),
            rate="follower.replication.throttled.rate",
            replicas="follower.replication.throttled.replicas",
        )

    def begin(self) -> None:
        self._metadata.subscribe(self._heard)
        self._take_rates(self._metadata.image)

    def _heard(self, delta: Delta) -> None:
        if delta.broker_configs:
            self._take_rates(delta.new)

    def _take_rates(self, image: Image) -> None:
        self.leading.take_rate(image)
        self.following.take_rate(image)

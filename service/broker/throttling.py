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
DEBT_S = 1.0
"""Who moves bytes rests as soon as the debt is so long, until half of it is paid. So one answer, or a fetch that comes
half a second late, costs nothing of the rate.
"""
LOOKS_AGAIN_S = 0.25
"""The longest rest before who is held back looks again: another rate may hold, or the replica may have come in sync."""


class Throttle:
    """The throttle of one direction. The bytes that were moved are a debt: the time that they take at the rate."""

    def __init__(self, env: Env, metadata: ClusterMetadata, *, rate: str, replicas: str) -> None:
        """`rate` is the name of the broker's setting, `replicas` the name of the topic's setting."""
        self._env = env
        self._metadata = metadata
        self._rate_key = rate
        self._replicas_key = replicas
        self._rate: int | None = None
        self._paid_at_s = self._rests_until_s = 0.0
        self._named: dict[str, tuple[str, frozenset[str]]] = {}
        """By topic: the setting, and the replicas that it names. They may be thousands, and are asked for each one."""

    def take_rate(self, image: Image) -> None:
        given = self._given(image, self._metadata.broker_id)
        self._named.clear()
        rate = None if given is None else max(int(given), 1)
        if rate != self._rate:
            self._rate = rate
            self._paid_at_s = self._rests_until_s = 0.0

    def _given(self, image: Image, broker_id: int) -> str | None:
        own, all_brokers = (image.broker_config(whose).values for whose in (str(broker_id), "default"))
        return own.get(self._rate_key, all_brokers.get(self._rate_key))

    @property
    def rest_s(self) -> float:
        """After what time to look again whether something may be moved; 0 if it may now."""
        if self._rate is None:
            return 0.0
        left_s = self._rests_until_s - self._env.clock.monotonic()
        if left_s <= 0:
            return 0.0
        return min(left_s + 0.001, LOOKS_AGAIN_S)  # else a timer that counts in milliseconds might end too early

    def concerns(self, partition: TopicPartition, follower: int) -> bool:
        """Whether the throttle applies to the copying of `partition` by `follower`."""
        return self._rate is not None and self._names(partition, follower, self._metadata.broker_id)

    def concerns_there(self, partition: TopicPartition, follower: int) -> bool:
        """Whether the throttle of this direction that the follower's broker has applies to it."""
        is_set = self._given(self._metadata.image, follower) is not None
        return is_set and self._names(partition, follower, follower)

    def _names(self, partition: TopicPartition, follower: int, broker_id: int) -> bool:
        topic = self._metadata.image.topics.get(partition.topic)
        state = topic.partitions.get(partition.partition) if topic is not None else None
        if topic is None or state is None or follower in state.isr:
            return False
        given = topic.config.get(self._replicas_key, "")
        setting, named = self._named.get(topic.name, ("", frozenset()))
        if setting != given:
            named = frozenset(given.split(","))
            self._named[topic.name] = given, named
        return EVERY_REPLICA in named or f"{partition.partition}:{broker_id}" in named

    def holds_back(self, partition: TopicPartition, follower: int) -> bool:
        """Whether nothing may be copied right now."""
        if self._rate is None:  # first, because this is asked for each partition of each fetch
            return False
        return self._env.clock.monotonic() < self._rests_until_s and self.concerns(partition, follower)

    def moved(self, partition: TopicPartition, follower: int, size_bytes: int) -> None:
        if self._rate is not None and self.concerns(partition, follower):
            now_s = self._env.clock.monotonic()
            self._paid_at_s = max(self._paid_at_s, now_s) + size_bytes / self._rate
            if self._paid_at_s - now_s >= DEBT_S:
                self._rests_until_s = self._paid_at_s - DEBT_S / 2


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

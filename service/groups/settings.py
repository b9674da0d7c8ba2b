"""The settings of groups, by Kafka's names with underscores. Plain values; all coordinators of a broker share them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

UNLIMITED = (1 << 31) - 1


class ConsumerTimes(NamedTuple):
    """The times that can be set for each consumer group, or for all of them. Defaults are Kafka's."""

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    assignment_interval_ms: int = 1_000


def default_times(group_id: str) -> ConsumerTimes:
    return ConsumerTimes()


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """Defaults are Kafka's."""

    group_min_session_timeout_ms: int = 6_000
    group_max_session_timeout_ms: int = 1_800_000
    group_initial_rebalance_delay_ms: int = 3_000
    group_max_size: int = UNLIMITED
    consumer_times: Callable[[str], ConsumerTimes] = default_times  # of a group, as they are set now
    group_consumer_max_size: int = UNLIMITED
    group_consumer_assignors: tuple[str, ...] = ("uniform", "range")  # the first is the default
    group_consumer_migration_policy: str = "bidirectional"
    offset_metadata_max_bytes: int = 4_096
    offsets_retention_ms: int = 7 * 24 * 60 * 60_000
    offsets_retention_check_interval_ms: int = 600_000

    # How long a classic member may wait in its first JoinGroup. It has no id yet and can't send heartbeats, so only
    # this limit shows that it is gone. Kafka has the same number, and not among its documented settings.
    new_member_join_timeout_ms: int = 300_000

    @property
    def may_upgrade(self) -> bool:
        return self.group_consumer_migration_policy in ("bidirectional", "upgrade")

    @property
    def may_downgrade(self) -> bool:
        return self.group_consumer_migration_policy in ("bidirectional", "downgrade")

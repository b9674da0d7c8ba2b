"""The settings of one log, by the names Kafka gives them (dots and dashes as underscores), with Kafka's defaults.

A plain value that checks nothing: settings are checked where they come in (`service.settings`). All partitions of a
topic can share one object.
"""

from dataclasses import dataclass, field
from typing import Final

UNLIMITED: Final = 2**63 - 1
HOUR_MS: Final = 3_600_000
DAY_MS: Final = 24 * HOUR_MS


@dataclass(frozen=True, slots=True)
class LogConfig:
    """All settings of a topic."""

    cleanup_policy: tuple[str, ...] = ("delete",)
    compression_type: str = "producer"
    compression_gzip_level: int = -1
    compression_lz4_level: int = 9
    compression_zstd_level: int = 3
    delete_retention_ms: int = DAY_MS
    flush_messages: int = UNLIMITED
    flush_ms: int = UNLIMITED
    index_interval_bytes: int = 4096
    max_compaction_lag_ms: int = UNLIMITED
    max_message_bytes: int = 1_048_588
    message_timestamp_after_max_ms: int = HOUR_MS
    message_timestamp_before_max_ms: int = UNLIMITED
    message_timestamp_type: str = "CreateTime"
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    min_insync_replicas: int = 1
    retention_bytes: int = -1
    retention_ms: int = 7 * DAY_MS
    segment_bytes: int = 1 << 30
    segment_index_bytes: int = 10 << 20
    segment_jitter_ms: int = 0
    segment_ms: int = 7 * DAY_MS
    # What follows from them. Every write asks for it, so it is worked out once.
    compacts: bool = field(init=False, compare=False, repr=False)
    opens_batches: bool = field(init=False, compare=False, repr=False)
    """Whether the records in a client's batches must be looked at. Otherwise the batch headers are enough."""
    newest_believed_ms: int = field(init=False, compare=False, repr=False)
    """A header is believed about its newest record if that is no older than this. Retention waits as much longer, so
    that no record lives shorter than it should.
    """

    def __post_init__(self) -> None:
        compacts = "compact" in self.cleanup_policy
        packs = self.compression_type != "producer"
        object.__setattr__(self, "compacts", compacts)
        object.__setattr__(self, "opens_batches", packs or compacts or self.message_timestamp_before_max_ms < UNLIMITED)
        believed_ms = min(HOUR_MS, self.retention_ms // 24) if self.deletes and self.retention_ms >= 0 else HOUR_MS
        object.__setattr__(self, "newest_believed_ms", believed_ms)

    def may_hide_newest(self, base_timestamp: int, max_timestamp: int, now_ms: int) -> bool:
        """Whether a client's header may be wrong about the newest record, so that the record would live shorter than it
        should. Sarama wrote -1 there for years. KafkaJS forgets the records to which it gives the present time, if
        others have times of their own. Kafka takes the time from the records whatever the header says.
        """
        if self.message_timestamp_type != "CreateTime":
            return False
        return max_timestamp < base_timestamp or max_timestamp < now_ms - self.newest_believed_ms

    @property
    def deletes(self) -> bool:
        return "delete" in self.cleanup_policy

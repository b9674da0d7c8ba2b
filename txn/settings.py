"""The settings of transactions. Plain values, each with the name of its setting; nothing is read from files here."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TxnSettings:
    max_timeout_ms: int = 900_000
    """transaction.max.timeout.ms"""
    id_expiration_ms: int = 604_800_000
    """transactional.id.expiration.ms"""
    forget_interval_ms: int = 3_600_000
    """transaction.remove.expired.transaction.cleanup.interval.ms: how often every id is looked at"""
    two_phase_commit_enabled: bool = False
    """transaction.two.phase.commit.enable"""

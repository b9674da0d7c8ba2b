"""Incremental fetch sessions (KIP-227): a reader of many partitions names them once. Afterwards requests and answers
carry only what changed.

What always holds: every session has an id of its own. Each request of a session carries the next epoch, so that a lost
or repeated request is noticed. A partition that has nothing new is left out of the answer. The number of sessions is
bounded; a reader for which there is no room is served without a session.

Pure: time and fresh ids come in as arguments.
"""

from collections.abc import Iterable
from dataclasses import dataclass

SESSIONLESS_EPOCH = -1
FIRST_EPOCH = 0
EPOCH_MAX = 2**31 - 1
IDLE_BEFORE_EVICTION_MS = 120_000  # Kafka's bound: a busy session is never thrown out for a new one

SessionKey = tuple[str | bytes, int]  # topic name (before version 13) or topic id, and partition


@dataclass(slots=True)
class Wanted:
    """What a reader wants of one partition, and what the last answer told it about the partition."""

    partition: int
    fetch_offset: int
    max_bytes: int
    current_leader_epoch: int
    last_fetched_epoch: int
    log_start_offset: int
    told_high_watermark: int = -1
    told_log_start_offset: int = -1
    told_error: int = 0


@dataclass(slots=True)
class FetchSession:
    session_id: int
    by_topic_id: bool
    wanted: dict[SessionKey, Wanted]
    epoch: int
    used_ms: int

    def update(self, changed: Iterable[tuple[SessionKey, Wanted]], forgotten: Iterable[SessionKey]) -> None:
        for key, wanted in changed:
            known = self.wanted.get(key)
            if known is None:
                self.wanted[key] = wanted
            else:
                known.fetch_offset = wanted.fetch_offset
                known.max_bytes = wanted.max_bytes
                known.current_leader_epoch = wanted.current_leader_epoch
                known.last_fetched_epoch = wanted.last_fetched_epoch
                known.log_start_offset = wanted.log_start_offset
        for key in forgotten:
            self.wanted.pop(key, None)

    def answered(self, keys_with_data: Iterable[SessionKey]) -> None:
        """Move the partitions that got data to the end of the order, so that a busy partition does not starve the
        others.
        """
        for key in keys_with_data:
            if (wanted := self.wanted.pop(key, None)) is not None:
                self.wanted[key] = wanted


class FetchSessions:
    def __init__(self, *, slots: int) -> None:
        self._slots = slots
        self._sessions: dict[int, FetchSession] = {}  # oldest use first

    def __len__(self) -> int:
        return len(self._sessions)

    def find(self, session_id: int) -> FetchSession | None:
        return self._sessions.get(session_id)

    def close(self, session_id: int) -> None:
        self._sessions.pop(session_id, None)

    def open(
        self, fresh_id: int, wanted: dict[SessionKey, Wanted], *, by_topic_id: bool, now_ms: int
    ) -> FetchSession | None:
        """A new session; None if there is no room, no partition is wanted, or the id is taken."""
        if not wanted or fresh_id in self._sessions:
            return None
        if len(self._sessions) >= self._slots:
            oldest = next(iter(self._sessions.values()), None)
            if oldest is None or now_ms - oldest.used_ms <= IDLE_BEFORE_EVICTION_MS:
                return None
            self.close(oldest.session_id)
        session = self._sessions[fresh_id] = FetchSession(fresh_id, by_topic_id, wanted, FIRST_EPOCH + 1, now_ms)
        return session

    def use(self, session: FetchSession, *, now_ms: int) -> None:
        """Note that the session was used: it is now the last to be evicted."""
        session.epoch = 1 if session.epoch == EPOCH_MAX else session.epoch + 1
        session.used_ms = now_ms
        self._sessions[session.session_id] = self._sessions.pop(session.session_id)

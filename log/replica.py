"""The replica set of one partition as its leader sees it: who is in sync, and up to where everybody in sync holds
the log.

What always holds: the high watermark never falls while this leader leads, and never passes what any member of the
in-sync set (or of a set that is being
proposed) is known to hold durably. A partition on a single broker is a set of one member, and the same rule then
says: what this broker holds durably.

Pure: the partition tells it of appended, flushed and fetched offsets and of decided in-sync sets; it answers with
the high watermark.
"""

from dataclasses import dataclass


@dataclass(slots=True)
class Follower:
    """What a follower has shown by its last fetch. Before the first one nothing is known (-1)."""

    held_end_offset: int = -1
    caught_up_ms: int = -1
    broker_epoch: int = -1


class ReplicaSet:
    """Leader's view. `isr` is what the metadata store holds; `pending_isr` is a proposal whose answer is not known
    yet, and counts too.
    """

    __slots__ = (
        "_followers",
        "_high_watermark",
        "_own_end_offset",
        "isr",
        "leader",
        "leader_epoch",
        "pending_isr",
        "replicas",
    )

    def __init__(
        self, leader: int, leader_epoch: int, replicas: tuple[int, ...], isr: tuple[int, ...], *, high_watermark: int
    ) -> None:
        assert leader in isr and leader in replicas
        self.leader = leader
        self.leader_epoch = leader_epoch
        self.replicas = replicas
        self.isr = isr
        self.pending_isr: tuple[int, ...] = ()
        self._followers = {member: Follower() for member in replicas if member != leader}
        self._high_watermark = high_watermark
        self._own_end_offset = high_watermark

    @property
    def high_watermark(self) -> int:
        return self._high_watermark

    def holds(self, own_end_offset: int) -> bool:
        """The leader itself holds everything below `own_end_offset`. True if the high watermark moved."""
        self._own_end_offset = own_end_offset
        if len(self.isr) == 1 and not self.pending_isr:  # measured: nearly every call of a single broker ends here
            if own_end_offset > self._high_watermark:
                self._high_watermark = own_end_offset
                return True
            return False
        return self._advance()

    def fetched(self, member: int, offset: int, *, broker_epoch: int, now_ms: int) -> bool:
        """A follower asked from `offset`, so it holds everything below. True if the high watermark moved."""
        follower = self._followers[member]
        follower.held_end_offset = offset
        follower.broker_epoch = broker_epoch
        if offset >= self._own_end_offset:
            follower.caught_up_ms = now_ms
        return self._advance()

    def decided(self, isr: tuple[int, ...]) -> bool:
        """The metadata store holds `isr` now; nothing is proposed any more. True if the high watermark moved."""
        assert self.leader in isr
        self.isr, self.pending_isr = isr, ()
        return self._advance()

    def _advance(self) -> bool:
        counted = dict.fromkeys((*self.isr, *self.pending_isr))
        lowest = min(
            self._own_end_offset if member == self.leader else self._followers[member].held_end_offset
            for member in counted
        )
        if lowest <= self._high_watermark:
            return False
        self._high_watermark = lowest
        return True

"""The replica set of one partition: as its leader sees it (who is in sync, and up to where everybody in sync holds the
log), and what a follower must cut off before it may copy on.

What always holds: the high watermark never falls while this leader leads, and never passes what any member of the
in-sync set, or of a set that may have been proposed (R7), is known to hold durably. While fewer are in sync than must
be, or others are eligible to lead, it stays where it is: who left the set then has everything that was ever committed
(R14). A partition on a single broker is a set of one member, and the same rule then says: what this broker holds
durably.

What a follower has shown counts for the life of the broker that showed it: a broker that began another life may have
lost what it held (R8).

Pure: the partition tells it of appended, flushed and fetched offsets and of decided in-sync sets; it answers with the
high watermark and with the in-sync set that should be proposed. Times are of a clock that is never set.
"""

from collections.abc import Container, Mapping
from dataclasses import dataclass

from log.epochs import LeaderEpochs
from log.ids import NO_OFFSET


@dataclass(slots=True)
class Follower:
    """What a follower has shown by its fetches. Before the first one nothing is known (-1)."""

    held_end_offset: int = -1
    start_offset: int = -1
    broker_epoch: int = -1
    caught_up_ms: int = 0
    """When it last had everything that the leader had then."""
    fetched_ms: int = 0
    leader_end_offset: int = NO_OFFSET
    """Where the leader's log ended at the last fetch."""


Proposal = tuple[tuple[int, int], ...]
"""The members of an in-sync set, each with the epoch of its broker."""


class ReplicaSet:
    """Leader's view. `isr` is what the metadata store holds; `pending_isr` names the members of every proposal since
    then that may have been accepted, and they count too. `eligible` are those that may lead next though they are not in
    sync.
    """

    __slots__ = (
        "_doubtful",
        "_epoch_start_offset",
        "_followers",
        "_high_watermark",
        "_is_alone",
        "_is_proposing",
        "_min_in_sync",
        "_own_end_offset",
        "eligible",
        "is_short",
        "isr",
        "leader",
        "leader_epoch",
        "partition_epoch",
        "pending_isr",
        "replicas",
    )

    def __init__(
        self,
        leader: int,
        leader_epoch: int,
        replicas: tuple[int, ...],
        isr: tuple[int, ...],
        *,
        high_watermark: int,
        epoch_start_offset: int = 0,
        partition_epoch: int = 0,
        eligible: tuple[int, ...] = (),
        min_in_sync: int = 1,
        doubtful: tuple[int, ...] = (),
        now_ms: int = 0,
    ) -> None:
        assert leader in isr and leader in replicas
        self.leader = leader
        self.leader_epoch = leader_epoch
        self.replicas = replicas
        self.isr = isr
        self.eligible = eligible
        self.partition_epoch = partition_epoch
        self.pending_isr = doubtful
        self._doubtful = doubtful  # those of them whose proposal was answered by nobody
        self._is_proposing = False
        self._followers = {member: Follower(caught_up_ms=now_ms) for member in replicas if member != leader}
        self._high_watermark = high_watermark
        self._own_end_offset = high_watermark
        self._epoch_start_offset = epoch_start_offset
        self._min_in_sync = min_in_sync
        self._note_who_counts()

    @property
    def high_watermark(self) -> int:
        return self._high_watermark

    @property
    def followers(self) -> Mapping[int, Follower]:
        """What each of them has shown. To look at."""
        return self._followers

    # -- the high watermark

    def holds(self, own_end_offset: int) -> bool:
        """The leader itself holds everything below `own_end_offset`. True if the high watermark moved."""
        self._own_end_offset = own_end_offset
        if self._is_alone:  # measured: nearly every call of a single broker ends here
            if own_end_offset > self._high_watermark:
                self._high_watermark = own_end_offset
                return True
            return False
        return self._advance()

    def is_former_life(self, member: int, broker_epoch: int) -> bool:
        """Whether that broker has shown itself in a later life already."""
        return broker_epoch < self._followers[member].broker_epoch

    def fetched(
        self, member: int, offset: int, *, start_offset: int, log_end_offset: int, broker_epoch: int, now_ms: int
    ) -> bool:
        """A follower asked from `offset`, on the same branch of history, so it holds everything below, from
        `start_offset` on; the leader's log ends at `log_end_offset`. True if the high watermark moved.
        """
        assert not self.is_former_life(member, broker_epoch), "what a former life held is not held any more"
        follower = self._followers[member]
        if offset >= log_end_offset:
            follower.caught_up_ms = now_ms
        elif offset >= follower.leader_end_offset > NO_OFFSET:
            follower.caught_up_ms = max(follower.caught_up_ms, follower.fetched_ms)
        follower.held_end_offset, follower.start_offset = offset, start_offset
        follower.broker_epoch = broker_epoch
        follower.fetched_ms, follower.leader_end_offset = now_ms, log_end_offset
        return self._advance()

    def began_another_life(self, member: int, broker_epoch: int, *, now_ms: int) -> None:
        """The metadata says so: nothing is known of what the broker holds until it asks again."""
        follower = self._followers.get(member)
        if follower is not None and follower.broker_epoch < broker_epoch:
            self._followers[member] = Follower(broker_epoch=broker_epoch, caught_up_ms=now_ms)

    def best_of(self, brokers: Container[int], offset: int) -> int:
        """Of these, the follower in sync that holds most, if it holds what a reader at `offset` wants; else -1."""
        best, most = -1, -1
        for member in self.isr:
            if member == self.leader or member not in brokers:
                continue
            follower = self._followers[member]
            if 0 <= follower.start_offset <= offset <= follower.held_end_offset > most:
                best, most = member, follower.held_end_offset
        return best

    def start_at(self, offset: int) -> bool:
        """Whether nobody who may lead next has anything below `offset`, but this leader."""
        return all(
            member == self.leader or self._followers[member].start_offset >= offset
            for member in (*self.isr, *self.pending_isr, *self.eligible)
        )

    def require(self, min_in_sync: int) -> bool:
        """So many must be in sync from now on. True if the high watermark moved."""
        self._min_in_sync = min_in_sync
        self._note_who_counts()
        return self._advance()

    def _note_who_counts(self) -> None:
        # Whether fewer are in sync than must be. A set can't be asked for more members than it has.
        self.is_short = len(self.isr) < min(self._min_in_sync, len(self.replicas))
        self._is_alone = len(self.isr) == 1 and not self.pending_isr and not self.is_short and not self.eligible

    @property
    def is_held_back(self) -> bool:
        """Whether enough are in sync, and yet nothing is committed, since others may lead next."""
        return not self.is_short and bool(self.eligible)

    def _advance(self) -> bool:
        if self.is_short or self.eligible:
            return False
        counted = dict.fromkeys((*self.isr, *self.pending_isr))
        lowest = min(
            self._own_end_offset if member == self.leader else self._followers[member].held_end_offset
            for member in counted
        )
        if lowest <= self._high_watermark:
            return False
        self._high_watermark = lowest
        return True

    # -- the in-sync set

    def proposal(
        self, lives: Mapping[int, int], *, log_start_offset: int, log_end_offset: int, now_ms: int, lag_ms: int
    ) -> Proposal | None:
        """The in-sync set that should hold now, if that is another than does. `lives`: the epochs of the brokers that
        are registered.

        Out goes who has not caught up for `lag_ms`, or is gone. In comes who holds everything that may have been
        committed: up to the high watermark, and up to where this leader's epoch began, below which earlier leaders may
        have committed more than this one knows; nothing that was deleted; and who has shown that in its present life.

        While there is a doubt the set is proposed even if it is the one that holds: what was proposed before can't be
        accepted then, and nobody has to be counted for it. So it is while this leader is held back.
        """
        if self._is_proposing:
            return None
        members = tuple(
            member
            for member in self.replicas
            if member == self.leader
            or (
                not self._lags(member, log_end_offset, now_ms, lag_ms)
                if member in self.isr
                else self._has_caught_up(member, lives, log_start_offset)
            )
        )
        members = tuple(member for member in members if member in lives)
        is_known = sorted(members) == sorted(self.isr) and not self._doubtful and not self.is_held_back
        if is_known or self.leader not in members:
            return None
        kept = tuple(member for member in self.isr if member in members)
        joined = tuple(member for member in members if member not in kept)
        return tuple((member, lives[member]) for member in (*kept, *joined))

    def _lags(self, member: int, log_end_offset: int, now_ms: int, lag_ms: int) -> bool:
        follower = self._followers[member]
        return follower.held_end_offset < log_end_offset and now_ms - follower.caught_up_ms > lag_ms

    def _has_caught_up(self, member: int, lives: Mapping[int, int], log_start_offset: int) -> bool:
        follower = self._followers[member]
        return (
            follower.held_end_offset >= max(self._high_watermark, self._epoch_start_offset)
            and follower.start_offset >= log_start_offset
            and follower.broker_epoch >= 0
            and follower.broker_epoch == lives.get(member)
        )

    def is_worth_asking(self, member: int) -> bool:
        """Whether `proposal` may have something to say after a fetch of this member."""
        return member not in self.isr and not self._is_proposing

    def proposed(self, proposal: Proposal) -> None:
        """That set may hold from now on, until something else is known."""
        assert not self._is_proposing, "one proposal at a time"
        self._is_proposing = True
        self.pending_isr = tuple(dict.fromkeys((*self.pending_isr, *(member for member, _ in proposal))))
        self._note_who_counts()

    def refused(self, *, doubtful: bool) -> bool:
        """The proposal was not accepted; `doubtful`: or nobody knows, and then it counts until the next set is known.
        True if the high watermark moved.
        """
        self._is_proposing = False
        if doubtful:
            self._doubtful = self.pending_isr
        self.pending_isr = self._doubtful
        self._note_who_counts()
        return self._advance()

    def decided(self, isr: tuple[int, ...], partition_epoch: int, eligible: tuple[int, ...] = ()) -> bool:
        """The metadata store holds `isr` and `eligible` since `partition_epoch`; nothing that was proposed before can
        be accepted any more. True if the high watermark moved.
        """
        assert self.leader in isr
        if partition_epoch <= self.partition_epoch:
            return False  # known already
        self.isr, self.eligible, self.partition_epoch = isr, eligible, partition_epoch
        self.pending_isr, self._doubtful = (), ()
        self._is_proposing = False
        self._note_who_counts()
        return self._advance()


def cut_by_epoch(epochs: LeaderEpochs, end_offset: int, *, leader_epoch: int, leader_end_offset: int) -> int:
    """Where a follower's log, which ends at `end_offset`, must be cut when the leader says that of all epochs up to the
    follower's latest the largest it knows is `leader_epoch`, and that this one ended at `leader_end_offset`.

    Where the follower knows that epoch, both hold the same up to where the shorter one of them ends it. Where it does
    not, everything it has from after that epoch is another history's; what is left is compared again.
    """
    known, known_end_offset = epochs.end_offset_for_epoch(leader_epoch, end_offset)
    if known < 0:
        return min(leader_end_offset, end_offset)
    if known != leader_epoch:
        return min(known_end_offset, end_offset)
    return min(known_end_offset, leader_end_offset, end_offset)

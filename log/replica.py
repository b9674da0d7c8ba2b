"""The replica set of one partition as its leader sees it: who is in sync, and up to which offset all in-sync replicas
hold the log. Also: what a follower must cut off before it goes on copying.

What always holds: while this leader leads, the high watermark never falls. It never passes what any member of the
in-sync set, or of a proposed set that may have been accepted (R7), is known to hold durably. The high watermark does
not move while fewer replicas are in sync than required, or while others are eligible to lead. So a replica that left
the set at such a time still has everything that was ever committed (R14). A partition on a single broker has a set of
one member, and by the same rule its high watermark is what this broker holds durably.

What a follower has shown to hold counts only for that life of its broker. A broker that began another life may have
lost it (R8).

This is a machine. Appended, flushed and fetched offsets and decided in-sync sets go in; the high watermark and the
in-sync set to propose come out. Times are those of a steady clock.
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
    """When the follower last held everything that the leader held at that time."""
    fetched_ms: int = 0
    leader_end_offset: int = NO_OFFSET
    """Where the leader's log ended at the last fetch."""
    began: tuple[int, int] | None = None
    """Set when the follower begins with an empty log: the epoch of its broker, and the leader's `times_forgotten` then.
    None: it has not begun so under this leader, or it has held all that is committed since.
    """
    advanced_ms: int = 0
    """When the follower last showed to hold more than before."""


Proposal = tuple[tuple[int, int], ...]
"""The members of an in-sync set, each with the epoch of its broker."""


class ReplicaSet:
    """The leader's view of the replicas. `isr` is the in-sync set in the metadata store. `pending_isr` has the members
    of every later proposal that may have been accepted; they count, too. `eligible` are the replicas that may lead next
    although they are not in sync.
    """

    __slots__ = (
        "_doubtful",
        "_epoch_start_offset",
        "_followers",
        "_is_alone",
        "_is_proposing",
        "_min_in_sync",
        "_own_end_offset",
        "eligible",
        "high_watermark",
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
        assert all(member in replicas for member in (*isr, *eligible)), "only replicas may lead next"
        self.leader = leader
        self.leader_epoch = leader_epoch
        self.replicas = replicas
        self.isr = isr
        self.eligible = eligible
        self.partition_epoch = partition_epoch
        self.pending_isr = doubtful
        self._doubtful = doubtful  # members of `pending_isr` from proposals whose answers were lost
        self._is_proposing = False
        self._followers = {member: Follower(caught_up_ms=now_ms) for member in replicas if member != leader}
        self.high_watermark = high_watermark
        self._own_end_offset = high_watermark
        self._epoch_start_offset = epoch_start_offset
        self._min_in_sync = min_in_sync
        self._note_who_counts()

    @property
    def followers(self) -> Mapping[int, Follower]:
        """What each follower has shown. Not to be changed."""
        return self._followers

    def goes_on(self, earlier: "ReplicaSet") -> None:
        """The same leadership had `earlier` until now, with other replicas. What followers have shown holds still."""
        assert self.leader_epoch == earlier.leader_epoch, "in another leadership followers may hold something else"
        for member in self._followers:
            self._followers[member] = earlier._followers.get(member, self._followers[member])

    # -- the high watermark

    def holds(self, own_end_offset: int) -> bool:
        """The leader itself holds everything below `own_end_offset`. True if the high watermark moved."""
        self._own_end_offset = own_end_offset
        if self._is_alone:  # the fast way, measured: on a single broker nearly every call ends here
            if own_end_offset > self.high_watermark:
                self.high_watermark = own_end_offset
                return True
            return False
        return self._advance()

    def is_former_life(self, member: int, broker_epoch: int) -> bool:
        """Whether that broker has already fetched in a later life."""
        return broker_epoch < self._followers[member].broker_epoch

    def fetched(
        self, member: int, offset: int, *, start_offset: int, log_end_offset: int, broker_epoch: int, now_ms: int
    ) -> bool:
        """A follower with the same history as the leader has fetched from `offset`. So it holds everything from
        `start_offset` up to `offset`. The leader's log ends at `log_end_offset`. True if the high watermark moved.
        """
        assert not self.is_former_life(member, broker_epoch), "what a former life held is not held any more"
        assert offset <= log_end_offset, "a follower with the leader's history holds no more than the leader"
        follower = self._followers[member]
        if offset > follower.held_end_offset:
            follower.advanced_ms = now_ms
        if offset >= max(self.high_watermark, self._epoch_start_offset):
            follower.began = None
        if offset >= log_end_offset:
            follower.caught_up_ms = now_ms
        elif offset >= follower.leader_end_offset > NO_OFFSET:
            follower.caught_up_ms = max(follower.caught_up_ms, follower.fetched_ms)
        follower.held_end_offset, follower.start_offset = offset, start_offset
        follower.broker_epoch = broker_epoch
        follower.fetched_ms, follower.leader_end_offset = now_ms, log_end_offset
        return self._advance()

    def held_all(self, member: int, *, broker_epoch: int, until_ms: int) -> None:
        """This life of a follower held all that the leader had at that time."""
        follower = self._followers.get(member)
        if follower is not None and follower.broker_epoch == broker_epoch:
            follower.caught_up_ms = max(follower.caught_up_ms, until_ms)

    def began_another_life(self, member: int, broker_epoch: int, *, now_ms: int) -> None:
        """By the metadata this broker has begun another life. What it holds is unknown until it fetches again."""
        follower = self._followers.get(member)
        if follower is not None and follower.broker_epoch < broker_epoch:
            self._followers[member] = Follower(broker_epoch=broker_epoch, caught_up_ms=now_ms)

    def begins(self, member: int, broker_epoch: int, times_forgotten: int) -> None:
        """A follower with an empty log asks for the leader's, from its start. If nothing is committed above that, it is
        no copy that others have to mind.
        """
        follower = self._followers[member]
        if follower.held_end_offset < max(self.high_watermark, self._epoch_start_offset):
            follower.began = broker_epoch, times_forgotten

    def has_begun(self, member: int, broker_epoch: int, times_forgotten: int) -> bool:
        """Whether this life of a follower began with an empty log, and no deletion has left the leader's log since."""
        return self._followers[member].began == (broker_epoch, times_forgotten)

    def is_being_copied(self, times_forgotten: int, now_ms: int, within_ms: int) -> bool:
        """Whether a follower that began with an empty log is getting on. If a deletion left the leader's log now, it
        would have to begin again.
        """
        return any(
            follower.began is not None
            and follower.began[1] == times_forgotten
            and now_ms - follower.advanced_ms <= within_ms
            for follower in self._followers.values()
        )

    def best_of(self, brokers: Container[int], offset: int) -> int:
        """The in-sync follower among `brokers` that holds the most, if a reader can read at `offset` there; else -1."""
        best, most = -1, -1
        for member in self.isr:
            if member == self.leader or member not in brokers:
                continue
            follower = self._followers[member]
            if 0 <= follower.start_offset <= offset <= follower.held_end_offset > most:
                best, most = member, follower.held_end_offset
        return best

    def start_at(self, offset: int) -> bool:
        """Whether all other replicas that may lead next have their log start at `offset` or above."""
        return all(
            member == self.leader or self._followers[member].start_offset >= offset
            for member in (*self.isr, *self.pending_isr, *self.eligible)
        )

    def require(self, min_in_sync: int) -> bool:
        """From now on at least `min_in_sync` replicas must be in sync. True if the high watermark moved."""
        self._min_in_sync = min_in_sync
        self._note_who_counts()
        return self._advance()

    def _note_who_counts(self) -> None:
        # `is_short`: fewer replicas are in sync than required. A partition can't require more than its replicas.
        self.is_short = len(self.isr) < min(self._min_in_sync, len(self.replicas))
        self._is_alone = len(self.isr) == 1 and not self.pending_isr and not self.is_short and not self.eligible

    @property
    def is_held_back(self) -> bool:
        """Whether enough replicas are in sync but nothing is committed, because eligible ones may lead next."""
        return not self.is_short and bool(self.eligible)

    def _advance(self) -> bool:
        if self.is_short or self.eligible:
            return False
        lowest, followers = self._own_end_offset, self._followers
        for member in (*self.isr, *self.pending_isr):
            if member != self.leader and followers[member].held_end_offset < lowest:
                lowest = followers[member].held_end_offset
        if lowest <= self.high_watermark:
            return False
        self.high_watermark = lowest
        return True

    # -- the in-sync set

    def proposal(
        self,
        lives: Mapping[int, int],
        *,
        joiner: int | None,
        log_start_offset: int,
        log_end_offset: int,
        now_ms: int,
        lag_ms: int,
    ) -> Proposal | None:
        """The in-sync set to propose now; None if nothing should change. `lives`: the epochs of the registered brokers.

        A replica leaves the set if it has not caught up for `lag_ms`, or if its broker is gone. `joiner`, which has
        just fetched, joins the set if it would not have to leave at once and, in its present life, has shown to hold
        everything that may have been committed, and nothing that was deleted. Everything that may have been committed:
        up to the high watermark, and up to the offset where this leader's epoch began, because earlier leaders may have
        committed up to there without this one knowing.

        A replica that hangs, or whose disk has failed, does not fetch. And while too few are in sync, the high
        watermark may stand far below the log's end. If those who hold no more than that joined, they would join and
        leave by turns, and each time writes would be taken and then refused.

        While the answer to an earlier proposal is missing, the present set is proposed again, even unchanged: once it
        is accepted the earlier proposal can't be, and its members need not be counted any more. The same is done while
        this leader is held back.
        """
        if self._is_proposing:
            return None
        members = tuple(
            member
            for member in self.replicas
            if member == self.leader
            or (
                not self._lags(member, log_end_offset, now_ms, lag_ms)
                and (member in self.isr or (member == joiner and self._has_caught_up(member, lives, log_start_offset)))
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
            follower.held_end_offset >= max(self.high_watermark, self._epoch_start_offset)
            and follower.start_offset >= log_start_offset
            and follower.broker_epoch >= 0
            and follower.broker_epoch == lives.get(member)
        )

    def is_worth_asking(self, member: int) -> bool:
        """Whether a fetch of this member may lead to a proposal."""
        return member not in self.isr and not self._is_proposing

    def proposed(self, proposal: Proposal) -> None:
        """The set was proposed. From now on it may be in force, until the answer is known."""
        assert not self._is_proposing, "one proposal at a time"
        assert any(member == self.leader for member, _ in proposal), "a leader never leaves the set that it leads"
        self._is_proposing = True
        self.pending_isr = tuple(dict.fromkeys((*self.pending_isr, *(member for member, _ in proposal))))
        self._note_who_counts()

    def refused(self, *, doubtful: bool) -> bool:
        """The proposal was not accepted. `doubtful`: its answer was lost, so it may have been accepted, and its members
        count until the next set is known. True if the high watermark moved.
        """
        self._is_proposing = False
        if doubtful:
            self._doubtful = self.pending_isr
        self.pending_isr = self._doubtful
        self._note_who_counts()
        return self._advance()

    def decided(self, isr: tuple[int, ...], partition_epoch: int, eligible: tuple[int, ...] = ()) -> bool:
        """The metadata store holds `isr` and `eligible` since `partition_epoch`. No earlier proposal can be accepted
        any more. True if the high watermark moved.
        """
        assert self.leader in isr
        assert all(member in self.replicas for member in (*isr, *eligible)), "only replicas may lead next"
        if partition_epoch <= self.partition_epoch:
            return False  # this state, or a later one, is known already
        self.isr, self.eligible, self.partition_epoch = isr, eligible, partition_epoch
        self.pending_isr, self._doubtful = (), ()
        self._is_proposing = False
        self._note_who_counts()
        return self._advance()


def cut_by_epoch(epochs: LeaderEpochs, end_offset: int, *, leader_epoch: int, leader_end_offset: int) -> int:
    """Where a follower must cut its log, which ends at `end_offset`. The leader was asked for the follower's latest
    epoch. It answers with the largest epoch it knows up to that one, `leader_epoch`, and with the offset at which that
    epoch ended in its log, `leader_end_offset`.

    If the follower knows the epoch, both logs are the same up to where the epoch ends in the shorter of the two. If the
    follower does not know it, everything that the follower wrote after it belongs to another history. That is cut off,
    and the rest is compared again.
    """
    known, known_end_offset = epochs.end_offset_for_epoch(leader_epoch, end_offset)
    if known < 0:
        return min(leader_end_offset, end_offset)
    if known != leader_epoch:
        return min(known_end_offset, end_offset)
    return min(known_end_offset, leader_end_offset, end_offset)

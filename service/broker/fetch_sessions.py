"""Incremental fetch sessions (KIP-227): a reader of many partitions names them once. Afterwards requests and answers
carry only what changed.

What always holds: every session has an id of its own. Each request of a session carries the next epoch, so that a lost
or repeated request is noticed. A partition that has nothing new is left out of the answer. The number of sessions is
bounded; a reader for which there is no room is served without a session. There is always room for a follower, unless
followers have it all: it takes the place of a client.

A request costs what has changed, not what the session holds. A partition is quiet when the reader was told all there
is: it is not looked at again until it says that it has moved, or the reader names it. Should a partition fail to say
so, it is found all the same: all partitions are looked at again and again, some with each request (`LookAround`).

Pure: time and fresh ids come in as arguments.
"""

from bisect import bisect_left, insort
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from isolation.read_view import AnyIsolation

SESSIONLESS_EPOCH = -1
FIRST_EPOCH = 0
EPOCH_MAX = 2**31 - 1
SAFE_MS = 120_000
"""For so long after it began, or was last used, a client's session does not lose its place to another client, and a
follower's does not to another follower. Kafka's bound.
"""

LOOK_AROUND_MS = 5_000
LOOKED_AT_A_SECOND = 500
"""A round among very many takes longer. It costs a broker of 15,000 partitions a few hundredths of a core."""
LET_GO_AT_ONCE = 1_000
HEARD_WITHIN_MS = 500  # Kafka's bound: how long a follower waits for an answer about nothing

Key = TypeVar("Key")
Weight = tuple[bool, int, int]
"""What decides which session loses its place: whether it is a follower's, how many partitions it has, and its id."""
SessionKey = tuple[str | bytes, int]  # topic name (before version 13) or topic id, and partition


class LookAround(Generic[Key]):
    """Goes round the keys of a table. If all came at once, a broker of thousands of partitions would be slow at that
    moment, and so would all that began together with it.
    """

    __slots__ = ("_ahead", "_owed", "_since_ms")

    def __init__(self) -> None:
        self._ahead: list[Key] = []
        """The rest of the round, the last key first."""
        self._owed = 0.0
        self._since_ms: float | None = None

    def due(self, table: Collection[Key], now_ms: float) -> list[Key]:
        """The keys whose turn has come since the last question."""
        round_ms = max(LOOK_AROUND_MS, len(table) * 1000 / LOOKED_AT_A_SECOND)
        since_ms = now_ms if self._since_ms is None else self._since_ms
        self._since_ms = now_ms
        self._owed += len(table) * (now_ms - since_ms) / round_ms
        count = min(int(self._owed), len(table))
        self._owed = self._owed - count if count < len(table) else 0.0
        found: list[Key] = []
        while len(found) < count:
            if not self._ahead:
                self._ahead = list(table)[::-1]
            key = self._ahead.pop()
            if key in table:  # one that has left takes nobody's turn
                found.append(key)
        return found


class WatchedPartition(Protocol):
    """A partition that says when it has moved."""

    def watch(self, watcher: "WantedPartition", *, tail: bool = False) -> None: ...

    def unwatch(self, watcher: "WantedPartition") -> None: ...

    def held_all(self, member: int, *, broker_epoch: int, until_ms: int) -> None: ...


class WaitingReader(Protocol):
    """A request that waits for more."""

    def moved(self) -> None: ...


@dataclass(slots=True, eq=False)
class WantedPartition:
    """What a reader wants of one partition, and what the last answer told it about the partition. In a session this
    also watches the partition.
    """

    partition: int
    fetch_offset: int
    max_bytes: int
    current_leader_epoch: int
    last_fetched_epoch: int
    log_start_offset: int
    told_high_watermark: int = -1
    told_log_start_offset: int = -1
    told_error: int = 0
    has_moved: bool = True
    """The partition has moved since it was last looked at, or the reader wants something else of it."""
    _key: SessionKey = ("", -1)
    _session: "FetchSession | None" = None
    _source: WatchedPartition | None = None

    def looked_at(self, source: WatchedPartition, session: "FetchSession", key: SessionKey) -> None:
        """From now on hear of what happens in this partition, until there may be more to read, or until the session
        drops it.
        """
        self.has_moved = False
        if self._source is not source and session.wanted.get(key) is self:
            self.let_go()
            self._source, self._session, self._key = source, session, key
            source.watch(self, tail=session.copier is not None)

    def let_go(self) -> None:
        """Hear nothing any more."""
        if self._source is not None:
            self._source.unwatch(self)
            self._source = None

    def moved(self) -> None:
        """There may be more to read."""
        session = self._stir()
        self.let_go()  # the next look at it begins to watch again; so a session that is not used any more costs nothing
        for reader in session.readers:
            reader.moved()

    def committed(self) -> None:
        """The high watermark has moved. A follower that has readers is told at once. Any other is told when there is
        something else to tell of the partition, or with its next request after HEARD_WITHIN_MS: an answer about a small
        transaction would tell of little else. Until then it takes less for committed: for its retention and its
        compaction, and if it begins as a leader while it can't hear from enough others how much that is.
        """
        session = self._session
        assert session is not None, "only who watches is told"
        if session.has_readers:
            self._stir()
            for reader in session.readers:
                reader.moved()
        else:
            session.unheard[self._key] = self

    def stir_if_watching(self) -> None:
        """There may be something to tell of this partition. If it does not watch, it is looked at in any case."""
        if self._source is not None:
            self._stir()

    def _stir(self) -> "FetchSession":
        session, source = self._session, self._source
        assert session is not None and source is not None, "only who watches is told"
        self.has_moved = True
        if self._key not in session.stirred:
            session.stirred[self._key] = self
            if session.copier is not None:
                member, broker_epoch = session.copier
                source.held_all(member, broker_epoch=broker_epoch, until_ms=session.asked_ms)
        return session


@dataclass(slots=True, eq=False)
class FetchSession:
    session_id: int
    by_topic_id: bool
    wanted: dict[SessionKey, WantedPartition]
    epoch: int
    weight: Weight
    began_ms: int
    used_ms: int
    is_closed: bool = False
    """Nobody goes on with it. What waits in it is not told of news any more."""
    stirred: dict[SessionKey, WantedPartition] = field(default_factory=dict)
    """What is not quiet, in the order in which the partitions take turns."""
    readers: dict[WaitingReader, None] = field(default_factory=dict)
    """The requests of this session that wait."""
    copier: tuple[int, int] | None = None
    """The id and the epoch of the broker that asks, if it is one."""
    has_readers: bool = False
    """Clients may read from the broker that asks."""
    asked_ms: int = 0
    """When the reader last asked, by a steady clock."""
    unheard: dict[SessionKey, WantedPartition] = field(default_factory=dict)
    """Where the high watermark has moved since the reader was last told of all such partitions."""
    _heard_ms: int = 0
    _look_around: LookAround[SessionKey] = field(default_factory=LookAround)
    _isolation: AnyIsolation | None = None

    def __post_init__(self) -> None:
        self.stirred.update(self.wanted)

    def update(self, changed: Iterable[tuple[SessionKey, WantedPartition]], forgotten: Iterable[SessionKey]) -> None:
        for key, wanted in changed:
            known = self.wanted.get(key)
            if known is None:
                self.wanted[key] = self.stirred[key] = wanted
            else:
                same_epoch = wanted.current_leader_epoch == known.current_leader_epoch
                if not same_epoch or wanted.fetch_offset < known.fetch_offset:
                    # It asks in another role, or it has cut its log. From the answer before it took nothing else.
                    known.told_high_watermark = known.told_log_start_offset = -1
                known.fetch_offset = wanted.fetch_offset
                known.max_bytes = wanted.max_bytes
                known.current_leader_epoch = wanted.current_leader_epoch
                known.last_fetched_epoch = wanted.last_fetched_epoch
                known.log_start_offset = wanted.log_start_offset
                known.has_moved = True
                self.stirred.setdefault(key, known)
        for key in forgotten:
            if (known := self.wanted.pop(key, None)) is not None:
                known.let_go()
                self.stirred.pop(key, None)

    def asked(self, isolation: AnyIsolation, copier: tuple[int, int] | None, *, has_readers: bool, now_ms: int) -> None:
        """The reader asks at this time of a steady clock. No partition is quiet if the reader asks for another
        isolation or in another life. Otherwise some are looked at again: each, in a while.
        """
        if now_ms - self._heard_ms >= HEARD_WITHIN_MS:
            self._heard_ms = now_ms
            for wanted in self.unheard.values():
                wanted.stir_if_watching()
            self.unheard.clear()
        is_same = isolation is self._isolation and copier == self.copier
        self._isolation, self.copier, self.has_readers, self.asked_ms = isolation, copier, has_readers, now_ms
        due = self._look_around.due(self.wanted, now_ms)
        if not is_same:
            self.stirred.update(self.wanted)  # those that are in it keep their place
            return
        for key in due:
            self.stirred.setdefault(key, self.wanted[key])

    def answered(self, keys_with_data: Iterable[SessionKey], quiet: Iterable[SessionKey]) -> None:
        """Move the partitions that got data to the end of the order, so that a busy partition does not starve the
        others. Those that have nothing more are quiet, if they have not moved meanwhile.
        """
        for key in keys_with_data:
            if (wanted := self.stirred.pop(key, None)) is not None:
                self.stirred[key] = wanted
        for key in quiet:
            if (wanted := self.stirred.get(key)) is not None and not wanted.has_moved:
                del self.stirred[key]

    def let_go(self, most: int) -> int:
        """Nobody asks any more. Hear nothing of so many partitions, and return of how many."""
        gone = 0
        while self.wanted and gone < most:
            self.wanted.popitem()[1].let_go()
            gone += 1
        return gone


class FetchSessions:
    def __init__(self, *, slots: int) -> None:
        self._slots = slots
        self._sessions: dict[int, FetchSession] = {}  # oldest use first
        self._young: dict[int, FetchSession] = {}  # oldest first
        self._grown: list[Weight] = []
        """The weights of the others, sorted."""
        self._closed: list[FetchSession] = []

    def __len__(self) -> int:
        return len(self._sessions)

    def find(self, session_id: int) -> FetchSession | None:
        return self._sessions.get(session_id)

    def close(self, session_id: int) -> None:
        if (session := self._sessions.pop(session_id, None)) is not None:
            if self._young.pop(session_id, None) is None:
                self._take_out(session.weight)
            session.is_closed = True
            for reader in session.readers:
                reader.moved()
            self._closed.append(session)
            self._let_go()

    def _take_out(self, weight: Weight) -> None:
        del self._grown[bisect_left(self._grown, weight)]

    def _let_go(self) -> None:
        """A closed session hears nothing any more. If it has very many partitions, some are left to later requests."""
        left = LET_GO_AT_ONCE
        while self._closed and left:
            left -= self._closed[-1].let_go(left)
            if not self._closed[-1].wanted:
                del self._closed[-1]

    def open(
        self,
        fresh_id: int,
        wanted: dict[SessionKey, WantedPartition],
        *,
        by_topic_id: bool,
        now_ms: int,
        is_follower: bool = False,
    ) -> FetchSession | None:
        """A new session; None if there is no room, no partition is wanted, or the id is taken."""
        self._let_go()
        if not wanted or fresh_id in self._sessions:
            return None
        if len(self._sessions) >= self._slots:
            loser = self._loser((is_follower, len(wanted), 0), now_ms)
            if loser is None:
                return None
            self.close(loser)
        weight = is_follower, len(wanted), fresh_id
        session = FetchSession(fresh_id, by_topic_id, wanted, FIRST_EPOCH + 1, weight, began_ms=now_ms, used_ms=now_ms)
        self._sessions[fresh_id] = self._young[fresh_id] = session
        return session

    def _loser(self, newcomer: Weight, now_ms: int) -> int | None:
        """Which session loses its place to a new one, by Kafka's rule: one that was not used for long, or else the
        lightest of those that are not safe, if the new one is a follower's and that one is not, or has more partitions.
        No client's place is safe from a follower.
        """
        oldest = next(iter(self._sessions.values()), None)
        if oldest is not None and now_ms - oldest.used_ms > SAFE_MS:
            return oldest.session_id
        while self._young:
            session_id, eldest = next(iter(self._young.items()))
            if now_ms - eldest.began_ms <= SAFE_MS:
                break
            del self._young[session_id]
            insort(self._grown, eldest.weight)
        lightest = self._grown[:1]
        is_follower, _, _ = newcomer
        if is_follower:
            lightest += [young.weight for young in self._young.values() if not young.weight[0]]
        if not lightest or newcomer < min(lightest):
            return None
        _, _, loser = min(lightest)
        return loser

    def use(self, session: FetchSession, *, now_ms: int) -> None:
        """Note that the session was used: it is now the last that has not been used for long."""
        self._let_go()
        session.epoch = 1 if session.epoch == EPOCH_MAX else session.epoch + 1
        session.used_ms = now_ms
        self._sessions[session.session_id] = self._sessions.pop(session.session_id)
        is_follower, size, session_id = session.weight
        if size != len(session.wanted):
            if is_grown := session_id not in self._young:
                self._take_out(session.weight)
            session.weight = is_follower, len(session.wanted), session_id
            if is_grown:
                insort(self._grown, session.weight)

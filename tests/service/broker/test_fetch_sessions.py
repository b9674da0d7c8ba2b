"""Fetch sessions: epochs, room, eviction, the order of the row, and what is looked at."""

import pytest

from isolation.read_view import Isolation
from service.broker.fetch_sessions import (
    EPOCH_MAX,
    HEARD_WITHIN_MS,
    LET_GO_AT_ONCE,
    LOOK_AROUND_MS,
    LOOKED_AT_A_SECOND,
    SAFE_MS,
    FetchSession,
    FetchSessions,
    LookAround,
    SessionKey,
    WantedPartition,
)


def row(*indexes: int) -> dict[SessionKey, WantedPartition]:
    return {("t", index): WantedPartition(index, 0, 1000, -1, -1, -1) for index in indexes}


def opened(sessions: FetchSessions, session_id: int, now_ms: int = 0) -> FetchSession:
    assert opens(sessions, session_id, 1, now_ms=now_ms)
    session = sessions.find(session_id)
    assert session is not None
    return session


def opens(
    sessions: FetchSessions, session_id: int, partitions: int, *, now_ms: int = 0, is_follower: bool = False
) -> bool:
    wanted = row(*range(partitions))
    opened = sessions.open(session_id, wanted, by_topic_id=False, now_ms=now_ms, is_follower=is_follower)
    return opened is not None


def held(sessions: FetchSessions) -> list[int]:
    return [session_id for session_id in range(20) if sessions.find(session_id)]


def test_a_new_session_expects_epoch_one() -> None:
    assert opened(FetchSessions(slots=1), 7).epoch == 1


def test_nothing_is_remembered_for_a_reader_of_nothing() -> None:
    assert FetchSessions(slots=1).open(7, {}, by_topic_id=False, now_ms=0) is None


def test_a_full_house_turns_newcomers_away_until_somebody_was_idle_for_long() -> None:
    sessions = FetchSessions(slots=1)
    opened(sessions, 1)
    assert sessions.open(2, row(0), by_topic_id=False, now_ms=SAFE_MS) is None
    assert sessions.open(2, row(0), by_topic_id=False, now_ms=SAFE_MS + 1) is not None
    assert sessions.find(1) is None
    assert len(sessions) == 1


def test_a_used_session_is_not_the_oldest_any_more() -> None:
    sessions = FetchSessions(slots=2)
    first = opened(sessions, 1)
    opened(sessions, 2)
    sessions.use(first, now_ms=10)
    opened(sessions, 3, now_ms=SAFE_MS + 5)
    assert sessions.find(2) is None
    assert sessions.find(1) is first


def test_a_follower_takes_the_place_of_the_smallest_client_however_busy_and_young() -> None:
    sessions = FetchSessions(slots=3)
    for session_id, partitions in ((1, 3), (2, 2), (3, 4)):
        assert opens(sessions, session_id, partitions)
    assert opens(sessions, 4, 1, is_follower=True)
    assert held(sessions) == [1, 3, 4]


def test_a_followers_place_is_safe_from_clients_and_at_first_from_other_followers() -> None:
    sessions = FetchSessions(slots=1)
    assert opens(sessions, 1, 2, is_follower=True)
    first = sessions.find(1)
    assert first is not None
    sessions.use(first, now_ms=SAFE_MS)
    assert not opens(sessions, 2, 3, now_ms=SAFE_MS, is_follower=True)
    assert not opens(sessions, 2, 3, now_ms=SAFE_MS + 1)
    assert not opens(sessions, 2, 2, now_ms=SAFE_MS + 1, is_follower=True)
    assert opens(sessions, 2, 3, now_ms=SAFE_MS + 1, is_follower=True)
    assert held(sessions) == [2]


def test_a_client_takes_the_place_of_one_that_began_long_ago_and_has_fewer_partitions() -> None:
    sessions = FetchSessions(slots=2)
    grows = opened(sessions, 1)
    assert opens(sessions, 2, 2)
    young = SAFE_MS // 2
    for session_id in (1, 2):
        session = sessions.find(session_id)
        assert session is not None
        sessions.use(session, now_ms=young)
    assert not opens(sessions, 3, 9, now_ms=young), "both are young"
    assert not opens(sessions, 3, 1, now_ms=SAFE_MS + 1)
    grows.update(row(1, 2).items(), ())
    sessions.use(grows, now_ms=SAFE_MS + 1)
    assert not opens(sessions, 3, 2, now_ms=SAFE_MS + 1)
    assert opens(sessions, 3, 3, now_ms=SAFE_MS + 1)
    assert held(sessions) == [1, 3]
    sessions.close(1)
    assert opens(sessions, 4, 1, now_ms=SAFE_MS + 2), "there is room"
    assert not opens(sessions, 5, 9, now_ms=SAFE_MS + 2)


def test_a_request_that_waits_hears_that_its_session_has_lost_its_place() -> None:
    sessions, waiting = FetchSessions(slots=1), Waiting()
    lost = opened(sessions, 1)
    lost.readers[waiting] = None
    assert opens(sessions, 2, 1, is_follower=True)
    assert lost.is_closed
    assert waiting.woken == 1


def test_the_epoch_wraps_past_zero() -> None:
    sessions = FetchSessions(slots=1)
    session = opened(sessions, 1)
    session.epoch = EPOCH_MAX
    sessions.use(session, now_ms=0)
    assert session.epoch == 1


def test_who_got_data_goes_to_the_end_of_the_row() -> None:
    sessions = FetchSessions(slots=1)
    session = sessions.open(1, row(0, 1, 2), by_topic_id=False, now_ms=0)
    assert session is not None
    session.answered([("t", 0)], [])
    assert [index for _, index in session.stirred] == [1, 2, 0]


def test_an_update_keeps_what_the_reader_was_told_and_forgets_what_it_dropped() -> None:
    sessions = FetchSessions(slots=1)
    session = sessions.open(1, row(0, 1), by_topic_id=False, now_ms=0)
    assert session is not None
    session.wanted["t", 0].told_high_watermark = 5
    session.update(
        [(("t", 0), WantedPartition(0, 9, 10, -1, -1, -1)), (("t", 2), WantedPartition(2, 0, 10, -1, -1, -1))],
        [("t", 1)],
    )
    assert list(session.wanted) == [("t", 0), ("t", 2)]
    assert session.wanted["t", 0].fetch_offset == 9
    assert session.wanted["t", 0].told_high_watermark == 5


@pytest.mark.parametrize(("epoch", "fetch_offset"), [(4, 9), (3, 8)])
def test_who_asks_in_another_epoch_or_after_a_cut_is_told_all_again(epoch: int, fetch_offset: int) -> None:
    sessions = FetchSessions(slots=1)
    key = "t", 0
    session = sessions.open(1, {key: WantedPartition(0, 9, 10, 3, -1, 2)}, by_topic_id=False, now_ms=0)
    assert session is not None
    session.wanted[key].told_high_watermark, session.wanted[key].told_log_start_offset = 8, 5
    session.update([(key, WantedPartition(0, fetch_offset, 10, epoch, -1, 2))], [])
    assert (session.wanted[key].told_high_watermark, session.wanted[key].told_log_start_offset) == (-1, -1)


class Partition:
    """Notes who watches it, and what a follower is said to have held."""

    def __init__(self) -> None:
        self.watchers: dict[WantedPartition, bool] = {}
        self.held: list[tuple[int, int, int]] = []

    def watch(self, watcher: WantedPartition, *, tail: bool = False) -> None:
        self.watchers[watcher] = tail

    def unwatch(self, watcher: WantedPartition) -> None:
        del self.watchers[watcher]

    def held_all(self, member: int, *, broker_epoch: int, until_ms: int) -> None:
        self.held.append((member, broker_epoch, until_ms))


class Waiting:
    woken = 0

    def moved(self) -> None:
        self.woken += 1


def looked_at(
    *, copier: tuple[int, int] | None = None, has_readers: bool = False, sessions: FetchSessions | None = None
) -> tuple[FetchSession, Partition, Waiting]:
    """A session of two partitions that is told all there is, and a request of it that waits."""
    sessions = FetchSessions(slots=1) if sessions is None else sessions
    session = sessions.open(1, row(0, 1), by_topic_id=False, now_ms=0)
    assert session is not None
    ask(session, at_ms=0, copier=copier, has_readers=has_readers)
    partition, waiting = Partition(), Waiting()
    for key, wanted in session.wanted.items():
        wanted.looked_at(partition, session, key)
    session.answered([], list(session.wanted))
    session.readers[waiting] = None
    return session, partition, waiting


def ask(
    session: FetchSession,
    *,
    at_ms: int,
    copier: tuple[int, int] | None = None,
    has_readers: bool = False,
    isolation: Isolation = Isolation.READ_UNCOMMITTED,
) -> None:
    session.asked(isolation, copier, has_readers=has_readers, now_ms=at_ms)


def test_what_is_quiet_is_looked_at_again_when_it_has_moved_and_is_not_watched_until_then() -> None:
    session, partition, waiting = looked_at()
    assert not session.stirred
    first = session.wanted["t", 0]
    first.moved()
    assert list(session.stirred) == [("t", 0)]
    assert waiting.woken == 1
    assert list(partition.watchers) == [session.wanted["t", 1]]
    first.looked_at(partition, session, ("t", 0))
    assert first in partition.watchers


def test_what_moves_between_the_look_and_the_answer_is_not_quiet() -> None:
    session, partition, _ = looked_at()
    first = session.wanted["t", 0]
    first.moved()
    first.looked_at(partition, session, ("t", 0))
    first.moved()
    session.answered([], [("t", 0)])
    assert list(session.stirred) == [("t", 0)]


def test_what_the_reader_names_again_is_not_quiet_by_the_answer_to_an_earlier_request() -> None:
    session, _, _ = looked_at()
    session.update([(("t", 0), WantedPartition(0, 3, 10, -1, -1, -1))], [])
    session.answered([], [("t", 0)])
    assert list(session.stirred) == [("t", 0)]


def test_a_follower_hears_of_the_high_watermark_at_once_if_it_has_readers_and_else_with_what_else_there_is() -> None:
    for has_readers in (False, True):
        session, partition, waiting = looked_at(copier=(2, 12), has_readers=has_readers)
        session.wanted["t", 0].committed()
        assert list(session.stirred) == [("t", 0)] * has_readers
        assert waiting.woken == has_readers
        session.wanted["t", 0].moved()  # it was watched still
        assert waiting.woken == has_readers + 1
        assert set(partition.watchers.values()) == {True}


def test_a_follower_without_readers_hears_of_the_high_watermark_within_the_time_of_an_empty_answer() -> None:
    """It began as a leader with one of five seconds ago, and with too few others hid what was acknowledged since."""
    session, partition, _ = looked_at(copier=(2, 12))
    ask(session, at_ms=HEARD_WITHIN_MS, copier=(2, 12))
    session.wanted["t", 0].committed()
    ask(session, at_ms=2 * HEARD_WITHIN_MS - 1, copier=(2, 12))
    assert not session.stirred
    ask(session, at_ms=2 * HEARD_WITHIN_MS, copier=(2, 12))
    assert list(session.stirred) == [("t", 0)]
    session.wanted["t", 0].looked_at(partition, session, ("t", 0))
    session.answered([], [("t", 0)])
    ask(session, at_ms=3 * HEARD_WITHIN_MS, copier=(2, 12))
    assert not session.stirred
    session.wanted["t", 1].committed()
    session.update([], [("t", 1)])
    ask(session, at_ms=4 * HEARD_WITHIN_MS, copier=(2, 12))
    assert not session.stirred, "nobody asks for it any more"


def test_a_follower_of_a_quiet_partition_held_all_of_it_when_it_last_asked() -> None:
    session, partition, _ = looked_at(copier=(2, 12))
    ask(session, at_ms=700, copier=(2, 12))
    session.wanted["t", 0].moved()
    assert partition.held == [(2, 12, 700)]


def test_nothing_is_quiet_for_another_life_another_isolation_or_after_a_while() -> None:
    session, _, _ = looked_at(copier=(2, 12))
    for at_ms, stirred in ((LOOK_AROUND_MS // 2 - 1, 0), (LOOK_AROUND_MS // 2, 1), (LOOK_AROUND_MS, 2)):
        ask(session, at_ms=at_ms, copier=(2, 12))
        assert list(session.stirred) == list(session.wanted)[:stirred]
    for change in ({"copier": (2, 13)}, {"isolation": Isolation.READ_COMMITTED}):
        session, _, _ = looked_at()
        ask(session, at_ms=1, **change)
        assert list(session.stirred) == list(session.wanted)


def test_a_look_around_takes_some_with_each_request_and_each_once_in_the_round() -> None:
    """A broker of thousands of partitions looked at all in one moment, and all brokers of the cluster in the same."""
    around, table = LookAround[SessionKey](), {("t", index): None for index in range(10)}
    assert around.due(table, 70_000) == []
    looks = [around.due(table, 70_000 + at_ms) for at_ms in range(500, 5_001, 500)]
    assert looks == [[key] for key in table]
    assert around.due(table, 75_001) == []
    assert around.due(table, 99_000) == list(table), "after a pause each once, and not as often as was missed"
    assert around.due(table, 99_499) == []
    del table["t", 1], table["t", 2]
    table["t", 10] = None
    seen = [key for at_ms in range(99_500, 108_000, 300) for key in around.due(table, at_ms)]
    assert set(table) <= set(seen)
    many = dict.fromkeys(range(20_000))
    shrinks = LookAround[int]()
    shrinks.due(many, 0)
    assert len(shrinks.due(many, 100)) == 50
    few = dict.fromkeys(range(100, 110))
    left = {key for at_ms in range(600, 5_700, 500) for key in shrinks.due(few, at_ms)}
    assert left == few.keys(), "those that have left take no time"
    slow = LookAround[int]()
    assert slow.due(many, 0) == []
    assert len(slow.due(many, LOOK_AROUND_MS)) == LOOKED_AT_A_SECOND * LOOK_AROUND_MS // 1000


def test_a_session_that_is_closed_or_drops_a_partition_watches_it_no_more() -> None:
    sessions = FetchSessions(slots=1)
    session, partition, _ = looked_at(sessions=sessions)
    session.update([], [("t", 1)])
    assert list(partition.watchers) == [session.wanted["t", 0]]
    sessions.close(session.session_id)
    assert not partition.watchers


def test_a_closed_session_of_very_many_partitions_lets_go_of_some_at_each_request() -> None:
    sessions, partition = FetchSessions(slots=2), Partition()
    wanted = row(*range(3 * LET_GO_AT_ONCE))
    closed = sessions.open(1, wanted, by_topic_id=False, now_ms=0)
    used = sessions.open(2, row(0), by_topic_id=False, now_ms=0)
    assert closed is not None
    assert used is not None
    for key, each in wanted.items():
        each.looked_at(partition, closed, key)
    left = []
    sessions.close(1)
    while partition.watchers:
        left.append(len(partition.watchers))
        sessions.use(used, now_ms=0)
    assert left == [2 * LET_GO_AT_ONCE, LET_GO_AT_ONCE]


def test_what_the_session_dropped_while_it_was_looked_at_is_not_watched() -> None:
    session, partition, _ = looked_at()
    dropped = session.wanted["t", 1]
    session.update([], [("t", 1)])
    dropped.looked_at(partition, session, ("t", 1))
    assert list(partition.watchers) == [session.wanted["t", 0]]
    assert not session.stirred

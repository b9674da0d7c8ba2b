"""Fetch sessions: epochs, room, eviction and the order of the row."""

from service.broker.fetch_sessions import (
    EPOCH_MAX,
    IDLE_BEFORE_EVICTION_MS,
    FetchSession,
    FetchSessions,
    SessionKey,
    Wanted,
)


def row(*indexes: int) -> dict[SessionKey, Wanted]:
    return {("t", index): Wanted(index, 0, 1000, -1, -1, -1) for index in indexes}


def opened(sessions: FetchSessions, session_id: int, now_ms: int = 0) -> FetchSession:
    session = sessions.open(session_id, row(0), by_topic_id=False, now_ms=now_ms)
    assert session is not None
    return session


def test_a_new_session_expects_epoch_one() -> None:
    assert opened(FetchSessions(slots=1), 7).epoch == 1


def test_nothing_is_remembered_for_a_reader_of_nothing() -> None:
    assert FetchSessions(slots=1).open(7, {}, by_topic_id=False, now_ms=0) is None


def test_a_full_house_turns_newcomers_away_until_somebody_was_idle_for_long() -> None:
    sessions = FetchSessions(slots=1)
    opened(sessions, 1)
    assert sessions.open(2, row(0), by_topic_id=False, now_ms=IDLE_BEFORE_EVICTION_MS) is None
    assert sessions.open(2, row(0), by_topic_id=False, now_ms=IDLE_BEFORE_EVICTION_MS + 1) is not None
    assert sessions.find(1) is None
    assert len(sessions) == 1


def test_a_used_session_is_not_the_oldest_any_more() -> None:
    sessions = FetchSessions(slots=2)
    first = opened(sessions, 1)
    opened(sessions, 2)
    sessions.use(first, now_ms=10)
    opened(sessions, 3, now_ms=IDLE_BEFORE_EVICTION_MS + 5)
    assert sessions.find(2) is None
    assert sessions.find(1) is first


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
    session.answered([("t", 0)])
    assert [index for _, index in session.wanted] == [1, 2, 0]


def test_an_update_keeps_what_the_reader_was_told_and_forgets_what_it_dropped() -> None:
    sessions = FetchSessions(slots=1)
    session = sessions.open(1, row(0, 1), by_topic_id=False, now_ms=0)
    assert session is not None
    session.wanted["t", 0].told_high_watermark = 5
    session.update([(("t", 0), Wanted(0, 9, 10, -1, -1, -1)), (("t", 2), Wanted(2, 0, 10, -1, -1, -1))], [("t", 1)])
    assert list(session.wanted) == [("t", 0), ("t", 2)]
    assert session.wanted["t", 0].fetch_offset == 9
    assert session.wanted["t", 0].told_high_watermark == 5

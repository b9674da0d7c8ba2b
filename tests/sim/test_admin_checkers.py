"""The promises about topics, settings and retention: silent on a valid history, heard when broken in one place."""

from collections.abc import Callable

import pytest

from log.ids import TopicPartition
from tests.sim.admin_checkers import ADMIN_CHECKERS
from tests.sim.checkers import judge
from tests.sim.history import (
    Deletion,
    Held,
    History,
    Outcome,
    Read,
    Reborn,
    RebornRead,
    RebornWrite,
    SettingSeen,
    SettingSet,
    Topic,
    Write,
)

OLD, NEW = b"old", b"new"
KEPT = TopicPartition("kept", 0)
SURE = Held.POWER_CUT


def valid_history() -> History:
    """A topic deleted and made again, a setting changed twice, and a topic whose records go after three seconds."""
    history = History(topics={"kept": Topic("kept", 1, retained=True, retention_seconds=3.0)})
    history.reborn = [Reborn(OLD, 1.0, 5.0, 5.5), Reborn(NEW, 7.0)]
    history.reborn_writes = [
        RebornWrite(OLD, (b"1", b"2"), SURE, 2.0, 2.5, Outcome.OK, 0),
        RebornWrite(OLD, (b"3",), SURE, 3.0),
        RebornWrite(NEW, (b"4",), SURE, 8.0, 8.5, Outcome.OK, 0),
        RebornWrite(NEW, (b"5",), SURE, 9.0, 9.5, Outcome.OK, 1),
    ]
    history.reborn_reads = [
        RebornRead(OLD, ((0, b"1"), (1, b"2"), (2, b"3")), 3, SURE, 4.0, 4.5),
        RebornRead(NEW, ((0, b"4"), (1, b"5")), 2, SURE, 10.0, 10.5),
    ]
    history.settings_set = [
        SettingSet("t", "k", "1", 1.0, 1.5, Outcome.OK),
        SettingSet("t", "k", "2", 2.0, 2.5, Outcome.OK),
        SettingSet("t", "k", "3", 3.0),
    ]
    history.settings_seen = [
        SettingSeen("t", "k", value, at, at + 0.1) for value, at in (("1", 1.6), ("2", 2.6), ("3", 9))
    ]
    for number in range(10):
        records = ((None, b"%d" % number),)
        write = Write("w", 1, KEPT, records, -1, SURE, 1.0 * number, number + 0.1, Outcome.OK, number)
        write.stamped = write.last_stamped = 1.0 * number
        history.writes.append(write)
    history.reads = [Read("r", KEPT, 9, 10, (), 10, 4, SURE, 9.5, 9.6)]
    return history


def inherit(history: History) -> None:
    history.reborn_reads[1].records = ((0, b"1"), (1, b"4"), (2, b"5"))


def go_on_where_the_old_one_ended(history: History) -> None:
    history.reborn_writes[2].base_offset = 3


def serve_after_the_deletion(history: History) -> None:
    history.reborn_reads[0].invoked = 6.0


def take_after_the_deletion(history: History) -> None:
    history.reborn_writes.append(RebornWrite(OLD, (b"6",), SURE, 6.0, 6.5, Outcome.OK, 3))


def lose_what_was_acknowledged(history: History) -> None:
    history.reborn_reads[1].records = ((0, b"4"),)


def forget_a_setting(history: History) -> None:
    history.settings_seen.append(SettingSeen("t", "k", "1", 4.0, 4.1))


def take_what_is_young(history: History) -> None:
    history.reads[0].log_start_offset = 10


DAMAGES: dict[Callable[[History], None], str] = {
    inherit: "ARecreatedTopicBeginsAnew",
    go_on_where_the_old_one_ended: "ARecreatedTopicBeginsAnew",
    serve_after_the_deletion: "ARecreatedTopicBeginsAnew",
    take_after_the_deletion: "ARecreatedTopicBeginsAnew",
    lose_what_was_acknowledged: "ARecreatedTopicBeginsAnew",
    forget_a_setting: "SettingsSurvive",
    take_what_is_young: "RetentionTakesTheExpiredOnly",
}


def test_a_valid_history_breaks_no_promise() -> None:
    assert judge(valid_history(), ADMIN_CHECKERS) == []


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_damage_is_caught_by_the_promise_it_breaks(damage: Callable[[History], None]) -> None:
    history = valid_history()
    damage(history)
    assert DAMAGES[damage] in {violation.promise for violation in judge(history, ADMIN_CHECKERS)}


def test_every_checker_is_shown_to_catch_something() -> None:
    assert set(DAMAGES.values()) == {type(checker).__name__ for checker in ADMIN_CHECKERS}


def test_what_somebody_deleted_or_a_set_clock_made_old_may_be_gone() -> None:
    history = valid_history()
    take_what_is_young(history)
    history.deletions.append(Deletion(KEPT, 10, SURE, 9.0, 9.1, Outcome.OK))
    assert judge(history, ADMIN_CHECKERS) == []
    history.deletions.clear()
    history.clock_jumped = True
    assert judge(history, ADMIN_CHECKERS) == []

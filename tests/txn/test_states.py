import inspect

import txn.states
from tests.rules import rule
from txn import branches, coordinator, decisions
from txn.states import LEGAL, MOVES, State, draw


def test_the_diagram_in_the_text_is_the_table() -> None:
    text = inspect.getdoc(txn.states) or ""
    shown = [line.strip() for line in text.splitlines() if " -> " in line]
    assert shown == [line.rstrip() for line in draw().splitlines()]


def test_every_function_that_makes_a_move_exists() -> None:
    named = sorted({name for move in MOVES for name in move.by} - {"reuse"})
    known = {**vars(decisions), **vars(branches), **vars(coordinator.TxnCoordinator)}
    for name in named:
        assert name in known or f"decide_{name}" in known, name


@rule("B.8", "the states' numbers in the log are Kafka's: Empty 0 to CompleteAbort 5")
def test_states_are_numbered_and_named_as_in_kafka() -> None:
    assert [(state.value, state.label) for state in State] == [
        (0, "Empty"),
        (1, "Ongoing"),
        (2, "PrepareCommit"),
        (3, "PrepareAbort"),
        (4, "CompleteCommit"),
        (5, "CompleteAbort"),
    ]


def test_a_decided_transaction_can_only_be_completed_as_decided() -> None:
    assert [target for source, target in LEGAL if source is State.PREPARE_COMMIT] == [State.COMPLETE_COMMIT]
    assert [target for source, target in LEGAL if source is State.PREPARE_ABORT] == [State.COMPLETE_ABORT]


def test_nothing_open_or_undecided_is_ever_forgotten() -> None:
    forgotten = [source for source, target in LEGAL if target is None]
    assert forgotten == [State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT]

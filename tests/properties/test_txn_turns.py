"""Branches of one root under a coordinator that ends one to three of them in a turn, so that decisions and changes of
owner take many. Between any two turns everything else happens: other requests, timeouts, turns that fail. And after
each, a successor that knows only what is written by then must come to the same outcome, whatever happens to it first.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from unittest.mock import patch

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from log.ids import TopicPartition
from tests.rules import rule
from tests.txn.shard import PlainShard, Record
from txn import coordinator
from txn.branches import branch_of, is_open, is_sealed, token_of
from txn.commands import AddPartitions, EndBranches, EndTransaction, InitProducer, MarkersWritten, NamedBranch
from txn.markers import SendMarkers
from txn.records import read_key, read_value
from txn.states import NO_TOKEN, State, Txn
from txn.verdicts import Decided, Ended, Initialized, Sealed, TxnDecision

ROOT = "clicks"
PARTITIONS = [TopicPartition("orders", index) for index in range(3)]
COMMITS, ABORTS = (State.PREPARE_COMMIT, State.COMPLETE_COMMIT), (State.PREPARE_ABORT, State.COMPLETE_ABORT)
TIMEOUTS_MS = (5_000, 60_000)
MONTHS_MS = 91 * 86_400_000
PATIENCE_MS = 500
MANY_TURNS = 500


class Defect(Exception):
    """Stands for one in the coordinator."""


@dataclass
class Story:
    """What a log says by itself, record after record."""

    asked: dict[str, EndBranches]
    """Decisions, by who made them."""
    decided: dict[int, dict[str, None]] = field(default_factory=dict)
    """By token: the branches that were named."""
    committed: dict[str, None] = field(default_factory=dict)
    open: dict[str, Txn] = field(default_factory=dict)
    root: Txn | None = None

    def read(self, batch: list[Record]) -> None:
        for key, value in batch:
            name = read_key(key)
            assert name is not None
            txn = None if value is None else read_value(name, value)
            if name == ROOT:
                self._look_at_root(txn)
                self.root = txn
            else:
                self._look_at_branch(name, txn)

    def _look_at_root(self, txn: Txn | None) -> None:
        if txn is None:
            return
        before, told = self.root, NO_TOKEN if self.root is None else self.root.decided_token
        if txn.decided_token != told:
            assert txn.decided_token > told, "a token is decided once, and none goes back"
            named = dict.fromkeys(branch.transactional_id for branch in self.asked[txn.decided_by].branches)
            concerned = {name for name, branch in self.open.items() if token_of(branch) <= txn.decided_token}
            assert concerned == set(named), "what is not named is aborted before, and what is named is open"
            assert all(is_sealed(self.open[name]) for name in named)
            self.decided[txn.decided_token] = named
        elif txn.state is State.EMPTY and (before is None or before.holder != txn.holder):
            assert not self.open, "a new owner has aborted what was open"

    def _look_at_branch(self, name: str, txn: Txn | None) -> None:
        self.open.pop(name, None)
        if txn is None:
            return
        is_named = name in self.decided.get(token_of(txn), {})
        if is_open(txn):
            self.open[name] = txn
            assert not is_named, "it has been committed by its root"
        elif txn.state in COMMITS:
            assert is_named, "committed without a decision"
            self.committed[name] = None
        else:
            assert txn.state in ABORTS
            assert not is_named, "aborted though its root has committed it"

    def check_all_have_followed(self) -> None:
        assert set(self.committed) == {name for named in self.decided.values() for name in named}


class Shard(PlainShard):
    """Notes where a crash would come between two turns."""

    def __init__(self) -> None:
        super().__init__()
        self.between: list[int] = []

    def _carry_out(self, decision: TxnDecision, own_token: int = 0) -> None:
        super()._carry_out(decision, own_token)
        if decision.records and (self.machine._works or self.machine._branches.undone):
            self.between.append(len(self.batches))

    def turn(self) -> None:
        self._carry_out(self.machine.expire(self.now_ms))

    def rest(self) -> None:
        """All that can be done now is done."""
        for _ in range(MANY_TURNS):
            at_ms = self.machine.next_deadline_ms()
            if at_ms is None or at_ms > self.now_ms:
                return
            self.turn()
        raise AssertionError("it never comes to rest")

    def fail(self, turns: int) -> None:
        """A turn that raises as it is about to move something, after so many moves; perhaps it does not get there."""
        left, move = turns, coordinator._Draft.move

        def moved(draft: coordinator._Draft, txn: Txn, why: str = "") -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise Defect
            move(draft, txn, why)

        with patch.object(coordinator._Draft, "move", moved):
            try:
                decision = self.machine.expire(self.now_ms)
            except Defect:
                return
        self._carry_out(decision)


@dataclass
class Writer:
    """Of one branch, as it knows it."""

    name: str
    pair: tuple[int, int]
    sealed: NamedBranch | None = None


class Drivers:
    """Who write, seal, give up, decide, and take the root over."""

    def __init__(self) -> None:
        self.shard = Shard()
        self.asked: dict[str, EndBranches] = {}
        self.story = Story(self.asked)
        self.writers: list[Writer] = []
        self.owner = (-1, -1)
        self.unanswered: dict[int, object] = {}
        self.markers: dict[tuple[int, int], bool] = {}
        self._seen = self._numbers = 0

    def ask(self, command: object) -> object:
        answer = self.shard.ask(command)
        if answer is None:
            self.unanswered[self.shard._last_token] = command
        else:
            self._hear(command, answer)
        return answer

    def _hear(self, command: object, answer: object) -> None:
        assert answer is not None
        if isinstance(command, InitProducer) and command.transactional_id == ROOT and isinstance(answer, Initialized):
            self.owner = (answer.producer_id, answer.producer_epoch)
        if isinstance(command, EndBranches) and isinstance(answer, Decided):
            assert answer.last_token >= command.token
            assert answer.now is (answer.last_token == command.token and answer.by == command.decided_by)
            for branch in command.branches if answer.now else ():
                txn = self.shard.machine._txns.get(branch.transactional_id)
                assert txn is None or txn.state in COMMITS, "it has followed before anybody is told"

    def _number(self) -> int:
        self._numbers += 1
        return self._numbers

    @property
    def decided(self) -> int:
        return self.shard.machine.last_decision(ROOT).token

    def _writer(self, which: int) -> Writer | None:
        return self.writers[-1 - which % len(self.writers)] if self.writers else None

    # -- what can happen

    def open(self, which: int, how: int) -> None:
        token = max(0, self.decided + min(which, 2))
        name = f"{ROOT}::{token}/{self._number()}"
        answer = self.ask(InitProducer(name, TIMEOUTS_MS[how % 2]))
        if isinstance(answer, Initialized):
            assert token > self.decided
            self.writers.append(Writer(name, (answer.producer_id, answer.producer_epoch)))
            self.ask(AddPartitions(name, *self.writers[-1].pair, tuple(PARTITIONS[: how % 3])))

    def seal(self, which: int, how: int) -> None:
        if writer := self._writer(which):
            answer = self.ask(EndTransaction(writer.name, *writer.pair, commit=True))
            if isinstance(answer, Sealed):
                writer.sealed = NamedBranch(writer.name, answer.producer_id, answer.producer_epoch)

    def write(self, which: int, how: int) -> None:
        """A few writers do all they have to do."""
        for _ in range(1 + which):
            self.open(1, how)
            self.seal(0, how)

    def give_up(self, which: int, how: int) -> None:
        """The writer of a branch aborts it, and begins anew, as soon as that is done."""
        if not (writer := self._writer(which)):
            return
        pair = (writer.sealed.producer_id, writer.sealed.producer_epoch) if writer.sealed else writer.pair
        answer = self.ask(EndTransaction(writer.name, *pair, commit=False))
        if isinstance(answer, Ended):
            writer.pair, writer.sealed = (answer.producer_id, answer.producer_epoch), None
        if how % 4 == 1:
            self.ask(InitProducer(writer.name, TIMEOUTS_MS[how % 2], patience_ms=PATIENCE_MS))
        elif how % 4 > 1:
            self.ask(AddPartitions(writer.name, *writer.pair, (PARTITIONS[0],), patience_ms=PATIENCE_MS))

    def decide(self, which: int, how: int) -> None:
        """Over all that is ready, or all but one; perhaps it is only thrown away."""
        token = max(0, self.decided + min(which, 1) + which // 3)
        ready = [writer.sealed for writer in self.writers if writer.sealed and token_of_name(writer.name) == token]
        named = tuple(each for each in ready[how // 4 :] if each.transactional_id in self.story.open)
        pair = self.owner if how % 2 else (-1, -1)
        self._decide(EndBranches(ROOT, token, how % 4 < 3, named, *pair, decided_by=f"d{self._number()}"))

    def again(self, which: int, how: int) -> None:
        """One who has no answer, or lost it, asks once more."""
        if self.asked:
            before = list(self.asked.values())[-1 - which % len(self.asked)]
            self._decide(replaced_by(before, f"d{self._number()}"))

    def _decide(self, command: EndBranches) -> None:
        self.asked[command.decided_by] = command
        self.ask(command)

    def own(self, which: int, how: int) -> None:
        pair = self.owner if which % 2 else (-1, -1)
        self.ask(InitProducer(ROOT, 60_000, *pair, patience_ms=PATIENCE_MS * (how % 2)))

    def own_transaction(self, which: int, how: int) -> None:
        """The root's owner ends one of its own, perhaps without having written anything."""
        self.ask(AddPartitions(ROOT, *self.owner, tuple(PARTITIONS[: which % 2])))
        answer = self.ask(EndTransaction(ROOT, *self.owner, commit=how % 2 == 0))
        if isinstance(answer, Ended):
            self.owner = (answer.producer_id, answer.producer_epoch)

    def meet(self, which: int, how: int) -> None:
        """The root and a branch begin anew in one turn: each waits for an end of something that has written nothing."""
        self.shard.rest()
        self.own(0, 0)
        if which:
            self.open(1, 0)
            self.give_up(0, how)
        self.own_transaction(0, how)
        if not which:
            self.open(1, 0)
            self.give_up(0, how)
        self.own(0, 1)

    def mark(self, which: int, how: int) -> None:
        for owed in list(self.shard.machine.owed_markers())[which:]:
            pair = (owed.producer_id, owed.producer_epoch)
            self.ask(MarkersWritten(owed.transactional_id, *pair, owed.partitions[how % 2 :]))

    def turn(self, which: int, how: int) -> None:
        for _ in range(1 + which):
            self.shard.turn()

    def wait(self, which: int, how: int) -> None:
        """Time passes while nobody has a turn."""
        self.shard.now_ms += (1, 600, 6_000, 61_000)[which]

    def fail(self, which: int, how: int) -> None:
        """A turn fails, perhaps just when somebody's patience ends. Those after it do not."""
        self.shard.now_ms += PATIENCE_MS * (how % 2)
        self.shard.fail(which)
        if how > 3:
            self.shard.rest()
            waiting = {token for each in self.shard.machine._waiting.values() for token in each}
            assert waiting >= self.unanswered.keys() - self.shard.answers.keys(), "somebody is forgotten"

    def restart(self, which: int, how: int) -> None:
        self.unanswered.clear()
        before = dict(everything(self.shard))
        self.shard.restart(compacted=how % 2 == 0)
        assert dict(everything(self.shard)) == before

    # -- what always holds

    def look(self, how: int) -> None:
        for token in [token for token in self.unanswered if token in self.shard.answers]:
            self._hear(self.unanswered.pop(token), self.shard.answers[token])
        for effect in self.shard.take_effects():
            assert isinstance(effect, SendMarkers)
            pair = (effect.producer_id, effect.producer_epoch)
            assert self.markers.setdefault(pair, effect.commit) is effect.commit, "told both ways"
        for cut in self.shard.between:
            self.crash(cut, FUTURES[(cut + how) % len(FUTURES)])
        self.shard.between.clear()
        for batch in self.shard.batches[self._seen :]:
            self.story.read(batch)
        self._seen = len(self.shard.batches)
        check_shown(self.shard, self.story)
        held = [txn.producer_id for txn in self.shard.machine.all()]
        assert len(held) == len(set(held)), "two ids under one producer id"

    def crash(self, cut: int, future: "Future") -> None:
        """A successor that knows so many batches comes to the outcome that these decide."""
        shard, story = Shard(), Story(dict(self.asked))
        shard.ids = self.shard.ids
        shard.now_ms = self.shard.now_ms
        for batch in self.shard.batches[:cut]:
            shard.log += batch
            shard.batches.append(batch)
            story.read(batch)
        shard.restart(compacted=cut % 2 == 0)
        check_shown(shard, story)
        future(shard, story)
        shard.rest()
        for batch in shard.batches[cut:]:
            story.read(batch)
        story.check_all_have_followed()
        check_shown(shard, story)

    def end(self) -> None:
        self.shard.rest()
        self.shard.now_ms += PATIENCE_MS
        self.shard.rest()
        self.look(0)
        self.story.check_all_have_followed()
        assert not self.unanswered, "somebody waits for ever"
        self.restart(0, 0)


# -- what a successor meets first


def nothing(shard: Shard, story: Story) -> None:
    """It has all the time it needs."""


def a_new_owner(shard: Shard, story: Story) -> None:
    for _ in range(2):  # while branches follow a decision, it is asked to come back
        shard.ask(InitProducer(ROOT, 60_000))
        shard.rest()
        shard.write_all_markers()
    assert isinstance(shard.ask(InitProducer(ROOT, 60_000)), Initialized)


def the_same_decision(shard: Shard, story: Story) -> None:
    nobodys = EndBranches(ROOT, 0, commit=True)
    command = story.asked["successor"] = replaced_by([nobodys, *story.asked.values()][-1], "successor")
    for _ in range(2):
        shard.ask(command)
        shard.rest()


def writers_that_give_up(shard: Shard, story: Story) -> None:
    for txn in list(shard.machine._txns.values()):
        if txn.transactional_id != ROOT and is_open(txn):
            shard.ask(EndTransaction(txn.transactional_id, *txn.holder, commit=False))


def nobody_for_a_minute(shard: Shard, story: Story) -> None:
    shard.now_ms += 61_000


def nobody_for_months(shard: Shard, story: Story) -> None:
    shard.now_ms += MONTHS_MS


def turns_that_fail(shard: Shard, story: Story) -> None:
    for moves in (0, 1):
        shard.fail(moves)


Future = Callable[[Shard, Story], None]
FUTURES: tuple[Future, ...] = (
    *(nothing, a_new_owner, the_same_decision, writers_that_give_up),
    *(nobody_for_a_minute, nobody_for_months, turns_that_fail),
)


def check_shown(shard: PlainShard, story: Story) -> None:
    """Nobody is shown as open or aborted what is decided."""
    last = shard.machine.last_decision(ROOT)
    assert all(token_of_name(each) > last.token for each in last.open_branches)
    shown = dict(everything(shard))
    for named in story.decided.values():
        for name in named:
            assert name not in shown or shown[name].state in COMMITS


def everything(shard: PlainShard) -> list[tuple[str, Txn]]:
    return [(txn.transactional_id, txn) for txn in shard.machine.all()]


def token_of_name(transactional_id: str) -> int:
    branch = branch_of(transactional_id)
    assert branch is not None
    return branch.token


def replaced_by(command: EndBranches, who: str) -> EndBranches:
    return EndBranches(command.root, command.token, command.commit, command.branches, decided_by=who)


ACTS = (
    *("open", "open", "seal", "write", "write", "give_up", "decide", "decide", "again", "own", "own_transaction"),
    *("meet", "mark", "mark", "turn", "turn", "turn", "wait", "fail", "restart"),
)
STEPS = st.lists(st.tuples(st.sampled_from(ACTS), st.integers(0, 3), st.integers(0, 7)), max_size=50)

BEGUN_TOGETHER = [("meet", 1, 1), ("meet", 1, 3)]
OUT_OF_PATIENCE_AS_A_TURN_FAILS = [("open", 1, 1), ("give_up", 0, 1), ("write", 3, 1), ("own", 0, 0), ("fail", 0, 1)]


@rule("T", "a token is decided once; what commits is exactly what its decision named; nothing of it stays open")
@settings(deadline=None, max_examples=300)
@given(STEPS, st.sampled_from((1, 2, 3, 100)), st.sampled_from((1, 2, 1_000)))
@example(BEGUN_TOGETHER, 2, 1_000)
@example(BEGUN_TOGETHER, 100, 1_000)
@example(OUT_OF_PATIENCE_AS_A_TURN_FAILS, 1, 1_000)
def test_branches_commit_by_one_decision_or_not_at_all(
    steps: list[tuple[str, int, int]], ends: int, looks: int
) -> None:
    with patch.multiple(coordinator, END_AT_ONCE=ends, LOOKED_AT_ONCE=looks):
        drivers = Drivers()
        for act, which, how in steps:
            getattr(drivers, act)(which, how)
            drivers.look(how)
        drivers.end()


@rule("T", "a decision, or a change of owner, has one outcome, whatever a crash leaves of its turns and comes next")
@pytest.mark.parametrize("future", FUTURES)
@pytest.mark.parametrize("what", ["decide", "own"])
def test_what_takes_several_turns_has_one_outcome_whatever_a_crash_leaves_of_it(what: str, future: Future) -> None:
    with patch.multiple(coordinator, END_AT_ONCE=1):
        drivers = Drivers()
        drivers.open(1, 1)
        drivers.write(1, 1)
        drivers.write(1, 0)  # who come last are out of time first
        drivers.look(0)
        if what == "decide":
            drivers.decide(1, 4)
        else:
            drivers.own(0, 0)
        drivers.shard.rest()
        assert len(drivers.shard.between) >= 4
        for cut in drivers.shard.between:
            drivers.crash(cut, future)
        drivers.end()
        assert len(drivers.story.committed) == (3 if what == "decide" else 0)

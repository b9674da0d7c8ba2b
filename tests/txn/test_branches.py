"""Transactions with many writers: names, and what a decision may and may not do."""

from dataclasses import replace
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from idempotence.producer_ids import next_block
from log.ids import TopicPartition
from tests.rules import rule
from tests.txn.shard import PlainShard
from txn import coordinator
from txn.branches import MAX_BRANCHES, MAX_DECIDED_BY, MAX_UNDECIDED, BranchId, branch_of, home_of
from txn.commands import AddPartitions, EndBranches, EndTransaction, InitProducer, NamedBranch, VerifyPartitions
from txn.deadlines import DECISION_RETENTION_MS
from txn.records import write_key, write_value
from txn.states import State, Txn
from txn.verdicts import (
    ADDED,
    BUSY,
    NO_PRODUCER_IDS,
    BranchFault,
    BranchNotReady,
    Decided,
    Discarded,
    Ended,
    Fenced,
    Initialized,
    InvalidRequest,
    Sealed,
    TokenDecided,
    Verdict,
    WrongState,
)

WEEK_MS = 604_800_000
ORDERS = [TopicPartition("orders", index) for index in range(4)]


class Writers:
    """Tasks that write branches of root `clicks`."""

    def __init__(self) -> None:
        self.shard = PlainShard()

    def open(self, token: int, name: str, *partitions: TopicPartition, timeout_ms: int = 60_000) -> NamedBranch:
        transactional_id = str(BranchId("clicks", token, name))
        verdict = self.shard.ask(InitProducer(transactional_id, timeout_ms))
        assert isinstance(verdict, Initialized), verdict
        pair = (verdict.producer_id, verdict.producer_epoch)
        if partitions:
            assert self.shard.ask(AddPartitions(transactional_id, *pair, partitions)) is ADDED
        return NamedBranch(transactional_id, *pair)

    def seal(self, branch: NamedBranch, version: int = 2) -> Verdict | None:
        return self.end(branch, commit=True, version=version)

    def end(self, branch: NamedBranch, *, commit: bool, version: int = 2) -> Verdict | None:
        pair = (branch.producer_id, branch.producer_epoch)
        return self.shard.ask(EndTransaction(branch.transactional_id, *pair, commit, version))

    def write(self, token: int, name: str, *partitions: TopicPartition) -> NamedBranch:
        """All that a task does; what it reports to its driver."""
        branch = self.open(token, name, *partitions)
        verdict = self.seal(branch)
        assert isinstance(verdict, Sealed)
        return NamedBranch(branch.transactional_id, verdict.producer_id, verdict.producer_epoch)

    def decide(
        self,
        token: int,
        *branches: NamedBranch,
        commit: bool = True,
        owner: tuple[int, int] = (-1, -1),
        by: str = "",
    ) -> object:
        return self.shard.ask(EndBranches("clicks", token, commit, branches, *owner, by))

    def decide_in_turns(self, token: int, *branches: NamedBranch, commit: bool = True, by: str = "") -> Verdict:
        """A decision that may be too large for one turn."""
        self.decide(token, *branches, commit=commit, by=by)
        return self.answer()

    def answer(self) -> Verdict:
        """The answer to the last command, after the turns that it takes."""
        self.shard.tick(0)
        return self.shard.answers[self.shard._last_token]

    def state(self, branch: NamedBranch) -> State:
        return self.shard.txn(branch.transactional_id).state


# ---------------------------------------------------------------- names


def test_a_branch_is_named_by_root_token_and_name() -> None:
    assert branch_of("clicks::17/part-3") == BranchId("clicks", 17, "part-3")
    assert branch_of("a::b::0/x::1/y/z") == BranchId("a::b", 0, "x::1/y/z")
    assert home_of("clicks::17/part-3") == "clicks"


@pytest.mark.parametrize(
    "ordinary", ["pay", "a::b", "a::17", "a::17/", "::17/x", "a::x17/y", "a::-1/x", "a:17/x", f"a::{2**63}/x", ""]
)
def test_other_ids_are_nobodys_branch(ordinary: str) -> None:
    assert branch_of(ordinary) is None
    assert home_of(ordinary) == ordinary


def test_a_token_that_is_written_in_another_way_is_refused() -> None:
    """A decision names a branch by root, token and name, and found none that was begun as `clicks::007/a`."""
    shard = PlainShard()
    for token in "007", "00", "0" * 18 + "1":
        assert isinstance(shard.ask(InitProducer(f"clicks::{token}/a", 60_000)), InvalidRequest)
    for token in "7", "0", "100":
        assert isinstance(shard.ask(InitProducer(f"clicks::{token}/a", 60_000)), Initialized)


@given(
    st.text(min_size=1).filter(lambda root: branch_of(f"{root}::0/x") == BranchId(root, 0, "x")),
    st.integers(0, 2**63 - 1),
    st.text(min_size=1),
)
def test_a_name_is_read_as_it_was_written(root: str, token: int, name: str) -> None:
    assert branch_of(str(BranchId(root, token, name))) == BranchId(root, token, name)


# ---------------------------------------------------------------- the decision


@rule("T", "the named branches commit, every other open one up to the token aborts; a few are one record batch")
def test_a_decision_is_one_batch() -> None:
    writers = Writers()
    first, second = writers.write(17, "a", ORDERS[0]), writers.write(17, "b", ORDERS[0], ORDERS[1])
    loser, stale = writers.open(17, "b-again", ORDERS[1]), writers.open(16, "x", ORDERS[2])
    later = writers.open(18, "c", ORDERS[3])
    before = len(writers.shard.batches)
    assert writers.decide(17, first, second) == Decided(17, 17, now=True)
    assert len(writers.shard.batches) == before + 1
    assert len(writers.shard.batches[-1]) == 5
    assert writers.state(first) is writers.state(second) is State.PREPARE_COMMIT
    assert writers.state(loser) is writers.state(stale) is State.PREPARE_ABORT
    assert writers.state(later) is State.ONGOING


@rule("T", "the same token again is answered, not decided again; the new attempt's branches are thrown away")
def test_a_repeated_decision_is_answered() -> None:
    writers = Writers()
    done = writers.write(17, "a", ORDERS[0])
    writers.decide(17, done)
    assert writers.decide(17, done) == Decided(17, 17, now=False)
    assert writers.decide(17) == Decided(17, 17, now=False)
    assert writers.decide(16) == Decided(16, 17, now=False)
    writers.shard.restart()
    assert writers.decide(17, done) == Decided(17, 17, now=False)


def test_who_comes_with_a_decided_token_is_told_who_decided_and_who_before() -> None:
    writers = Writers()
    assert writers.decide(16, by="first") == Decided(16, 16, now=True, by="first")
    assert writers.decide(17, by="second") == Decided(17, 17, now=True, by="second", before="first")
    writers.shard.restart()
    assert writers.decide(17, by="third") == Decided(17, 17, now=False, by="second", before="first")
    assert writers.decide(18) == Decided(18, 18, now=True, by="", before="second")
    assert isinstance(writers.decide(19, by="x" * (MAX_DECIDED_BY + 1)), InvalidRequest)
    assert writers.shard.machine.last_decision("clicks").token == 18
    writers.decide(20, by="fourth")
    assert writers.shard.machine.last_decision("clicks").by == "fourth"


def test_who_has_given_a_branch_up_begins_nothing_more_in_it_once_its_token_is_decided() -> None:
    """Found by the simulation: the branch was open again, nobody would decide over it, and its readers waited."""
    writers = Writers()
    quitter = writers.open(17, "slow", ORDERS[0])
    told = writers.end(quitter, commit=False)
    assert isinstance(told, Ended)
    writers.shard.write_all_markers()
    add = AddPartitions(quitter.transactional_id, told.producer_id, told.producer_epoch, (ORDERS[1],))
    writers.decide(17)
    assert writers.shard.ask(add) == TokenDecided(17, 17)
    assert writers.state(quitter) is State.COMPLETE_ABORT
    assert writers.shard.machine.last_decision("clicks").open_branches == ()


def test_who_has_given_a_branch_up_may_begin_anew_before_its_token_is_decided() -> None:
    writers = Writers()
    quitter = writers.open(17, "slow", ORDERS[0])
    told = writers.end(quitter, commit=False)
    assert isinstance(told, Ended)
    writers.shard.write_all_markers()
    add = AddPartitions(quitter.transactional_id, told.producer_id, told.producer_epoch, (ORDERS[1],))
    assert writers.shard.ask(add) is ADDED
    writers.decide(17)
    assert writers.state(quitter) is State.PREPARE_ABORT


@rule("T", "opening, adding to or sealing a branch of a decided token is refused: zombies write nothing")
def test_a_zombie_of_a_decided_token_is_refused() -> None:
    writers = Writers()
    zombie, done = writers.open(17, "slow", ORDERS[0]), writers.write(17, "a", ORDERS[0])
    writers.decide(17, done)
    add = AddPartitions(zombie.transactional_id, zombie.producer_id, zombie.producer_epoch, (ORDERS[1],))
    assert writers.shard.ask(add) == Fenced(0, 1)
    assert writers.seal(zombie) == Fenced(0, 1)
    assert writers.end(zombie, commit=False) == Fenced(0, 1)
    assert writers.shard.ask(InitProducer("clicks::17/new", 60_000)) == TokenDecided(17, 17)
    assert writers.shard.ask(InitProducer("clicks::3/new", 60_000)) == TokenDecided(3, 17)
    assert writers.shard.ask(InitProducer(zombie.transactional_id, 60_000)) == TokenDecided(17, 17)
    writers.shard.write_all_markers()
    assert writers.shard.ask(InitProducer(zombie.transactional_id, 60_000)) == TokenDecided(17, 17)


@rule(
    "T",
    "a named branch must be of this root and token, held by the named pair, open and sealed; else nothing changes",
)
def test_a_decision_over_a_branch_that_is_not_ready_changes_nothing() -> None:
    writers = Writers()
    ready = writers.write(17, "a", ORDERS[0])
    unsealed, other_token = writers.open(17, "b", ORDERS[0]), writers.write(18, "c", ORDERS[0])
    gone = writers.write(17, "d", ORDERS[0])
    assert isinstance(writers.end(gone, commit=False), Ended)
    stranger = NamedBranch(ready.transactional_id, ready.producer_id, ready.producer_epoch - 1)
    faults = [
        (unsealed, BranchFault.NOT_SEALED),
        (other_token, BranchFault.OTHER_TOKEN),
        (gone, BranchFault.NOT_OPEN),
        (stranger, BranchFault.OTHER_PRODUCER),
        (NamedBranch("clicks::17/never", 1, 0), BranchFault.UNKNOWN),
        (NamedBranch("others::17/x", 1, 0), BranchFault.NOT_A_BRANCH),
        (NamedBranch("pay", 1, 0), BranchFault.NOT_A_BRANCH),
    ]
    log = len(writers.shard.log)
    for branch, fault in faults:
        assert writers.decide(17, branch) == BranchNotReady(branch.transactional_id, fault)
    assert writers.decide(17, ready, unsealed) == BranchNotReady(unsealed.transactional_id, BranchFault.NOT_SEALED)
    assert writers.decide(17, ready, ready) == BranchNotReady(ready.transactional_id, BranchFault.NAMED_TWICE)
    assert len(writers.shard.log) == log
    assert isinstance(writers.decide(17, ready), Decided)


@rule("T", "a commit by the branch's own writer seals it and commits nothing; its repeat is answered alike")
@pytest.mark.parametrize("version", [0, 1, 2])
def test_a_branch_is_sealed_by_its_writers_commit(version: int) -> None:
    writers = Writers()
    branch = writers.open(17, "a", ORDERS[0])
    sealed = Sealed(branch.producer_id, branch.producer_epoch + 1)
    assert writers.seal(branch, version) == sealed
    assert writers.state(branch) is State.ONGOING
    writers.shard.restart()
    assert writers.seal(branch, version) == sealed
    assert isinstance(writers.decide(17, NamedBranch(branch.transactional_id)), Decided)


@rule(
    "T", "a sealed branch takes nothing more, from the pair that wrote it or the one that sealed it; it can be aborted"
)
def test_a_sealed_branch_is_whole() -> None:
    writers = Writers()
    writer = writers.open(17, "a", ORDERS[0])
    sealed = writers.write(17, "b", ORDERS[0])
    writers.seal(writer)
    for epoch, said in ((0, Fenced(0, 1)), (1, WrongState(State.ONGOING))):
        add = AddPartitions(writer.transactional_id, writer.producer_id, epoch, (ORDERS[1],))
        assert writers.shard.ask(add) == said
        verify = VerifyPartitions(writer.transactional_id, writer.producer_id, epoch, (ORDERS[0],))
        assert writers.shard.ask(verify) == said, "an older client's write to a partition that is in it"
    holder = NamedBranch(writer.transactional_id, writer.producer_id, 1)
    assert writers.end(holder, commit=True) == WrongState(State.ONGOING)
    assert writers.end(writer, commit=False) == Fenced(0, 1)
    assert writers.end(holder, commit=False) == Ended(writer.producer_id, 2)
    assert writers.end(sealed, commit=False, version=1) == Ended(sealed.producer_id, 2)


@rule("T", "sealing at the end of the epochs takes a fresh producer id for what comes after")
def test_a_branch_can_be_sealed_at_the_last_epoch() -> None:
    writers = Writers()
    txn = Txn("clicks::17/a", 7, 32_766, State.ONGOING, 60_000, 1, (ORDERS[0],), writers.shard.now_ms)
    writers.shard.log.append((write_key(txn.transactional_id), write_value(txn)))
    writers.shard.restart()
    writer = NamedBranch("clicks::17/a", 7, 32_766)
    assert writers.seal(writer) == Sealed(1, 0)
    assert writers.decide(17, NamedBranch("clicks::17/a", 1, 0)) == Decided(17, 17, now=True)
    assert [(each.producer_id, each.producer_epoch) for each in writers.shard.write_all_markers()] == [(7, 32_767)]
    assert writers.shard.txn("clicks::17/a").holder == (1, 1)


@rule("T", "a branch that wrote nothing is decided without a marker")
def test_a_branch_without_rows_owes_no_marker() -> None:
    writers = Writers()
    empty, idle = writers.write(17, "a"), writers.open(17, "b")
    assert writers.decide(17, empty) == Decided(17, 17, now=True)
    assert list(writers.shard.machine.owed_markers()) == []
    assert (writers.state(empty), writers.state(idle)) == (State.COMPLETE_COMMIT, State.COMPLETE_ABORT)


@rule("T", "an abort throws the open branches up to the token away, decides nothing, and can't undo a decision")
def test_an_abort_is_not_remembered() -> None:
    writers = Writers()
    first = writers.write(17, "a", ORDERS[0])
    assert writers.decide(17, first, commit=False) == Discarded(1)
    assert writers.state(first) is State.PREPARE_ABORT
    again = writers.write(17, "a-again", ORDERS[0])
    assert writers.decide(17, again) == Decided(17, 17, now=True)
    assert writers.decide(17, commit=False) == Decided(17, 17, now=False)
    assert writers.state(again) is State.PREPARE_COMMIT


@rule("T", "a new owner of the root fences the old one and aborts what is open, whatever its token")
def test_a_new_owner_aborts_what_is_open() -> None:
    writers = Writers()
    old_owner = writers.shard.init("clicks")
    branches = [writers.write(17, "a", ORDERS[0]), writers.open(18, "b", ORDERS[1])]
    new_owner = writers.shard.init("clicks")
    assert [writers.state(branch) for branch in branches] == [State.PREPARE_ABORT] * 2
    writers.shard.write_all_markers()
    assert [writers.state(branch) for branch in branches] == [State.COMPLETE_ABORT] * 2
    assert writers.decide(17, owner=old_owner) == Fenced(old_owner[1], new_owner[1])
    assert writers.decide(17, owner=new_owner) == Decided(17, 17, now=True)


@rule("T", "the repeat of an owner's init, its answer having been lost, aborts nothing")
def test_a_repeated_init_of_the_owner_aborts_nothing() -> None:
    writers = Writers()
    pair = writers.shard.init("clicks")
    writers.shard.ask(InitProducer("clicks", 60_000, *pair))
    branch = writers.open(17, "a", ORDERS[0])
    assert writers.shard.ask(InitProducer("clicks", 60_000, *pair)) == Initialized(pair[0], pair[1] + 1)
    assert writers.state(branch) is State.ONGOING


@rule("T", "the root's own open transaction has to be ended first")
def test_a_root_with_a_transaction_of_its_own_decides_nothing() -> None:
    writers = Writers()
    pair = writers.shard.init("clicks")
    writers.shard.ask(AddPartitions("clicks", *pair, (ORDERS[0],)))
    assert writers.decide(17) == WrongState(State.ONGOING)


@rule("T", "a decision over branches leaves what became of the root's own last transaction to be told")
@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("version", [0, 2])
def test_a_repeated_end_of_the_root_is_answered_the_same_after_a_decision(commit: bool, version: int) -> None:
    writers = Writers()
    pair = writers.shard.init("clicks")
    writers.shard.ask(AddPartitions("clicks", *pair, (ORDERS[0],), version))
    end = EndTransaction("clicks", *pair, commit, version)
    answer = writers.shard.ask(end)
    assert isinstance(answer, Ended)
    writers.shard.write_all_markers()
    assert writers.decide(1) == Decided(1, 1, now=True)
    writers.shard.restart(compacted=True)
    assert writers.shard.ask(end) == answer
    other = writers.shard.ask(EndTransaction("clicks", *pair, not commit, version))
    assert isinstance(other, WrongState | Fenced)


@rule("T", "a branch that its root's new owner discards owes its markers also when its own time is up in that moment")
def test_a_branch_discarded_and_out_of_time_at_once_owes_its_markers() -> None:
    writers = Writers()
    shard = writers.shard
    pair = shard.init("clicks")
    branch = writers.open(1, "a", ORDERS[0], timeout_ms=1_000)
    shard.ask(AddPartitions("clicks", *pair, ()))
    shard.ask(EndTransaction("clicks", *pair, commit=True))
    assert shard.ask(InitProducer("clicks", 60_000, patience_ms=5_000)) is None
    shard.now_ms += 1_001  # the loop was held up: the completion and the timeout are due at once
    shard.tick(0)
    (answer,) = shard.take_late_answers()
    assert isinstance(answer, Initialized)
    assert shard.txn(branch.transactional_id).state is State.PREPARE_ABORT
    shard.restart(compacted=True)
    assert [owed.transactional_id for owed in shard.machine.owed_markers()] == [branch.transactional_id]


@rule("T", "a branch whose driver died is aborted by time: unsealed since it began, sealed since it was sealed")
def test_branches_are_ended_by_time() -> None:
    writers = Writers()
    idle = writers.open(17, "idle", timeout_ms=60_000)
    unsealed = writers.open(17, "a", ORDERS[0], timeout_ms=60_000)
    sealed = writers.open(17, "b", ORDERS[1], timeout_ms=60_000)
    writers.shard.tick(30_000)
    writers.seal(sealed)
    writers.shard.tick(30_001)
    assert writers.state(idle) is State.COMPLETE_ABORT
    assert writers.state(unsealed) is State.PREPARE_ABORT
    assert writers.state(sealed) is State.ONGOING
    writers.shard.tick(30_000)
    assert writers.state(sealed) is State.PREPARE_ABORT


@rule(
    "T", "a new branch takes over the producer id of a finished one: a query needs as many as it has writers at a time"
)
def test_a_thousand_batches_need_two_producer_ids() -> None:
    writers = Writers()
    taken: dict[int, int] = {}
    for token in range(1_000):
        branches = [writers.write(token, name, ORDERS[0]) for name in ("a", "b")]
        for branch in branches:
            assert branch.producer_epoch > taken.get(branch.producer_id, -1)
            taken[branch.producer_id] = branch.producer_epoch
        writers.decide(token, *branches)
        writers.shard.write_all_markers()
    assert len(taken) == 2
    assert len(list(writers.shard.machine.all())) == 3


def test_a_producer_id_whose_epochs_ran_out_is_not_taken_over() -> None:
    writers = Writers()
    seen: dict[int, None] = {}
    for token in range(32_766 // 2 + 2):
        branch = writers.open(token, "a")
        seen[branch.producer_id] = None
        assert branch.producer_epoch <= 32_766
        writers.decide(token, commit=False)
    assert len(seen) == 2


@rule(
    "T",
    "a decision outlives the seven days of an ordinary id, so that a query that stood still repeats no batch",
)
def test_a_decision_is_remembered_for_ninety_days() -> None:
    writers = Writers()
    writers.decide(17, writers.write(17, "a", ORDERS[0]))
    writers.shard.write_all_markers()
    writers.shard.tick(4 * WEEK_MS)
    assert writers.decide(17) == Decided(17, 17, now=False)
    writers.shard.tick(DECISION_RETENTION_MS + 2 * 3_600_000)
    assert writers.shard.machine.last_decision("clicks").token == -1


def test_what_is_open_and_what_was_decided_can_be_asked_for() -> None:
    writers = Writers()
    assert writers.shard.machine.last_decision("clicks") == (-1, -1, -1, (), "")
    branch = writers.write(17, "a", ORDERS[0])
    assert writers.shard.machine.last_decision("clicks").open_branches == (branch.transactional_id,)
    writers.decide(17, branch)
    assert writers.shard.machine.last_decision("clicks")[:3] == (17, 2, 0)
    described = writers.shard.machine.describe(branch.transactional_id)
    assert described is not None
    assert described.root == "clicks"


@rule("T", "so many branches of one root may wait for a decision, which aborts all that it does not name")
def test_branches_that_wait_for_a_decision_are_not_without_number() -> None:
    writers = Writers()
    for block in range(1, 2 + MAX_UNDECIDED // 1_000):
        writers.shard.ids.add(next_block(100_000 * block))
    for number in range(MAX_UNDECIDED):
        writers.open(1, f"t{number}")
    too_many = InitProducer(str(BranchId("clicks", 1, "more")), 60_000)
    assert isinstance(writers.shard.ask(too_many), InvalidRequest)
    assert isinstance(writers.shard.ask(InitProducer("other::1/a", 60_000)), Initialized)
    assert writers.decide_in_turns(1) == Decided(1, 1, now=True)
    assert isinstance(writers.shard.ask(InitProducer(str(BranchId("clicks", 2, "more")), 60_000)), Initialized)


@rule("T", "a branch that finds no place because decided ones wait for their markers is asked to come back")
def test_branches_whose_markers_are_not_written_yet_are_waited_for_and_refuse_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They were counted as if they waited for a decision: with markers that were late, a query's next batch failed."""
    monkeypatch.setattr(coordinator, "MAX_UNDECIDED", 4)
    writers = Writers()
    decided = [writers.write(1, name, ORDERS[0]) for name in ("a", "b")]
    assert writers.decide(1, *decided) == Decided(1, 1, now=True)
    for name in ("a", "b"):
        writers.write(2, name, ORDERS[0])
    one_more = InitProducer(str(BranchId("clicks", 2, "c")), 60_000)
    assert writers.shard.ask(one_more) is BUSY
    assert writers.shard.ask(replace(one_more, patience_ms=1_000)) is None
    writers.shard.tick(1_000)
    assert writers.shard.answers[writers.shard._last_token] is BUSY
    writers.shard.write_all_markers()
    for name in ("c", "d"):
        writers.write(2, name, ORDERS[0])
    assert isinstance(writers.shard.ask(InitProducer(str(BranchId("clicks", 2, "e")), 60_000)), InvalidRequest)


def test_senseless_decisions_are_refused() -> None:
    writers = Writers()
    assert isinstance(writers.shard.ask(EndBranches("", 1, commit=True)), InvalidRequest)
    assert isinstance(writers.shard.ask(EndBranches("r" * 32_768, 1, commit=True)), InvalidRequest)
    assert isinstance(writers.shard.ask(EndBranches("a::1/x", 1, commit=True)), InvalidRequest)
    assert isinstance(writers.decide(-1), InvalidRequest)
    assert isinstance(writers.decide(1, owner=(5, 0)), InvalidRequest)
    many = tuple(NamedBranch(f"clicks::1/{index}", 1, 0) for index in range(MAX_BRANCHES + 1))
    assert isinstance(writers.decide(1, *many), InvalidRequest)


def test_a_first_decision_without_producer_ids_is_asked_to_come_back() -> None:
    writers = Writers()
    while writers.shard.ids.take() is not None:
        continue
    assert writers.decide(1) is NO_PRODUCER_IDS


# ---------------------------------------------------------------- more branches than fit into a turn


@pytest.fixture
def one_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator, "END_AT_ONCE", 1)


MANY = {
    "commit": EndBranches("clicks", 1, commit=True),
    "abort": EndBranches("clicks", 1, commit=False),
    "own": InitProducer("clicks", 60_000),
}


@rule("T", "no turn ends more than a hundred branches, whatever a client asks for: it would hold the loop")
@pytest.mark.parametrize("what", [*MANY])
def test_no_turn_ends_more_than_a_hundred_branches(what: str) -> None:
    """A decision over 10,000 branches was one turn of 160 ms, and so was the abort of those of a former owner."""
    writers = Writers()
    writers.shard.ids.add(next_block(100_000))
    named = [writers.write(1, f"named-{number}", ORDERS[0]) for number in range(330)]
    others = [writers.write(1, f"other-{number}", ORDERS[0]) for number in range(330)]
    others += [writers.open(0, f"early-{number}", ORDERS[0]) for number in range(33)]
    later = writers.open(2, "later", ORDERS[0])
    before, command = len(writers.shard.batches), MANY[what]
    if what == "commit":
        assert isinstance(command, EndBranches)
        command = replace(command, branches=tuple(named))
    assert writers.shard.ask(command) is None
    assert isinstance(writers.answer(), Decided | Discarded | Initialized)
    assert max(len(batch) for batch in writers.shard.batches[before:]) <= coordinator.END_AT_ONCE + 1
    ended = State.PREPARE_COMMIT if what == "commit" else State.PREPARE_ABORT
    assert {writers.state(branch) for branch in named} == {ended}
    assert {writers.state(branch) for branch in others} == {State.PREPARE_ABORT}
    assert writers.state(later) is (State.PREPARE_ABORT if what == "own" else State.ONGOING)
    committed = [markers.commit for markers in writers.shard.machine.owed_markers()]
    assert (committed.count(True), committed.count(False)) == {
        "commit": (330, 363),
        "abort": (0, 693),
        "own": (0, 694),
    }[what]


def test_branches_with_long_ids_are_ended_in_small_batches() -> None:
    writers = Writers()
    named = [writers.write(1, f"{number}-{'x' * 30_000}", ORDERS[0]) for number in range(20)]
    before = len(writers.shard.batches)
    assert isinstance(writers.decide_in_turns(1, *named), Decided)
    sizes = [sum(len(key) + len(value or b"") for key, value in batch) for batch in writers.shard.batches[before:]]
    assert max(sizes) < coordinator.END_AT_ONCE_BYTES + 31_000
    assert {writers.state(branch) for branch in named} == {State.PREPARE_COMMIT}


@rule("T", "a decision of many steps is all or nothing, wherever a crash cuts it")
@pytest.mark.parametrize("compacted", [False, True])
@pytest.mark.usefixtures("one_a_turn")
def test_a_decision_that_a_crash_cuts_is_all_or_nothing(compacted: bool) -> None:
    outcomes = []
    for kept in range(12):
        writers = Writers()
        named = [writers.write(17, name, ORDERS[0]) for name in ("a", "b", "c")]
        others = [writers.write(17, "a-again", ORDERS[1]), writers.open(16, "x", ORDERS[2])]
        before = len(writers.shard.batches)
        told = writers.decide_in_turns(17, *named, by="me")
        assert told == Decided(17, 17, now=True, by="me")
        del writers.shard.batches[before + kept :]
        writers.shard.log = [record for batch in writers.shard.batches for record in batch]
        writers.shard.restart(compacted=compacted)
        decided = writers.shard.machine.last_decision("clicks").token == 17
        outcomes.append(decided)
        if decided:  # those that have not followed yet are shown as decided, and nobody ends them otherwise
            assert all(writers.state(branch) is State.PREPARE_COMMIT for branch in named)
            assert writers.shard.machine.last_decision("clicks").open_branches == ()
            writers.shard.wall_ahead_ms = 120_000
        writers.shard.tick(0)
        if decided:
            assert {writers.state(branch) for branch in others} == {State.PREPARE_ABORT}
        else:
            assert {writers.state(branch) for branch in named} == {State.ONGOING}
            assert writers.decide_in_turns(17, *named) == Decided(17, 17, now=True)
        assert {writers.state(branch) for branch in named} == {State.PREPARE_COMMIT}
        committed = [each.transactional_id for each in writers.shard.machine.owed_markers() if each.commit]
        assert sorted(committed) == sorted(branch.transactional_id for branch in named)
        live = {txn.transactional_id: txn for txn in writers.shard.machine.all()}
        writers.shard.restart()
        assert {txn.transactional_id: txn for txn in writers.shard.machine.all()} == live
        assert writers.decide(17, *named) == Decided(17, 17, now=False, by="me" if decided else "")
    assert outcomes == sorted(outcomes)
    assert True in outcomes
    assert False in outcomes


@rule("T", "while a decision is made nobody else moves what it is about, nor does time; the client asks again")
@pytest.mark.usefixtures("one_a_turn")
def test_what_a_decision_is_about_is_moved_by_nothing_else_meanwhile() -> None:
    writers = Writers()
    ready, giving_up = writers.write(17, "a", ORDERS[0]), writers.write(17, "b", ORDERS[0])
    open_one, later = writers.open(17, "a-again", ORDERS[1]), writers.open(18, "c", ORDERS[1])
    writers.open(16, "stale", ORDERS[1])
    assert writers.decide(17, ready, giving_up) is None
    own = writers.shard._last_token
    assert writers.end(giving_up, commit=False) is BUSY
    assert writers.seal(open_one) is BUSY
    assert writers.shard.ask(InitProducer("clicks::17/d", 60_000)) is BUSY
    assert writers.shard.ask(InitProducer("clicks", 60_000, patience_ms=1_000)) is BUSY
    assert writers.decide(17, ready) is BUSY
    assert isinstance(writers.seal(later), Sealed)
    assert isinstance(writers.shard.ask(InitProducer("pay", 60_000)), Initialized)
    writers.shard.now_ms += 120_000  # all of them are out of time
    writers.shard.tick(0)
    assert writers.shard.answers[own] == Decided(17, 17, now=True)
    assert [writers.state(branch) for branch in (ready, giving_up)] == [State.PREPARE_COMMIT] * 2
    assert writers.state(open_one) is State.PREPARE_ABORT
    assert writers.state(later) is State.PREPARE_ABORT  # by time
    assert isinstance(writers.shard.ask(InitProducer("clicks", 60_000)), Initialized)


@pytest.mark.usefixtures("one_a_turn")
def test_what_has_still_to_follow_a_decision_is_moved_by_nothing_else() -> None:
    writers = Writers()
    first, last = writers.write(17, "a", ORDERS[0]), writers.write(17, "b", ORDERS[0])
    assert writers.decide(17, first, last) is None
    writers.shard.restart()  # the client is told to ask the next coordinator
    recorded = {each: txn.state for each, txn in writers.shard.machine._txns.items()}
    assert recorded[last.transactional_id] is State.ONGOING
    assert writers.state(last) is State.PREPARE_COMMIT
    assert writers.end(last, commit=False) is BUSY
    assert writers.shard.ask(InitProducer(last.transactional_id, 60_000)) is BUSY
    assert writers.shard.ask(InitProducer("clicks", 60_000)) is BUSY
    assert writers.decide(18) is BUSY
    next_one = writers.open(18, "a", ORDERS[0])
    writers.shard.now_ms += 59_000
    writers.shard.tick(2_000)
    assert writers.state(last) is State.PREPARE_COMMIT
    assert writers.state(next_one) is State.PREPARE_ABORT
    assert writers.decide(18) == Decided(18, 18, now=True)


@pytest.mark.usefixtures("one_a_turn")
def test_a_branch_that_finds_no_place_while_others_are_decided_over_is_asked_to_come_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(coordinator, "MAX_UNDECIDED", 2)
    writers = Writers()
    decided = [writers.write(1, name, ORDERS[0]) for name in ("a", "b")]
    one_more = InitProducer(str(BranchId("clicks", 2, "c")), 60_000)
    assert isinstance(writers.shard.ask(one_more), InvalidRequest)
    writers.decide(1, *decided)
    assert writers.shard.ask(one_more) is BUSY


@pytest.mark.usefixtures("one_a_turn")
def test_a_decision_that_is_refused_in_a_later_turn_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator, "LOOKED_AT_ONCE", 1)
    writers = Writers()
    ready, unsealed = writers.write(17, "a", ORDERS[0]), writers.open(17, "b", ORDERS[0])
    writers.open(16, "stale", ORDERS[1])
    before = len(writers.shard.log)
    told = writers.decide_in_turns(17, ready, unsealed)
    assert told == BranchNotReady(unsealed.transactional_id, BranchFault.NOT_SEALED)
    assert len(writers.shard.log) == before


def test_a_new_owner_that_is_refused_aborts_nothing() -> None:
    writers = Writers()
    writers.shard.init("clicks")
    branch = writers.open(17, "a", ORDERS[0])
    assert isinstance(writers.shard.ask(InitProducer("clicks", 60_000, 999, 3)), Fenced)
    assert writers.state(branch) is State.ONGOING


def test_a_log_whose_decisions_are_one_batch_each_is_replayed_as_before() -> None:
    """So were they written until branches followed the root in batches of their own: the root's record came first."""
    writers = Writers()
    done, loser = writers.write(17, "a", ORDERS[0]), writers.open(17, "b", ORDERS[1])
    assert writers.decide(17, done) == Decided(17, 17, now=True)
    batch = sorted(writers.shard.batches[-1], key=lambda record: record[0] != write_key("clicks"))
    writers.shard.log[-len(batch) :] = batch
    writers.shard.restart()
    before = len(writers.shard.log)
    writers.shard.tick(0)
    assert len(writers.shard.log) == before
    assert (writers.state(done), writers.state(loser)) == (State.PREPARE_COMMIT, State.PREPARE_ABORT)


@pytest.mark.parametrize("begins", ["anew", "with a partition"])
def test_a_new_owner_aborts_also_what_is_begun_in_the_same_decision(begins: str) -> None:
    """Both have waited for markers, the branch's command a little longer than the root's."""
    writers = Writers()
    owner, ask = writers.shard.init("clicks"), writers.shard.ask
    branch = writers.open(1, "a")
    ask(AddPartitions(branch.transactional_id, branch.producer_id, branch.producer_epoch, ()))
    ended = writers.end(branch, commit=False)
    assert isinstance(ended, Ended)
    ask(AddPartitions("clicks", *owner, ()))
    ask(EndTransaction("clicks", *owner, commit=True))
    pair = (ended.producer_id, ended.producer_epoch)
    begin = (
        InitProducer(branch.transactional_id, 60_000, patience_ms=1_000)
        if begins == "anew"
        else AddPartitions(branch.transactional_id, *pair, (ORDERS[0],), patience_ms=1_000)
    )
    assert ask(begin) is None
    assert ask(InitProducer("clicks", 60_000, patience_ms=1_000)) is None
    assert isinstance(writers.answer(), Initialized)
    assert writers.state(branch) in (State.PREPARE_ABORT, State.COMPLETE_ABORT)
    assert not writers.shard.machine.last_decision("clicks").open_branches


@pytest.mark.usefixtures("one_a_turn")
def test_a_turn_that_fails_leaves_nobody_without_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    writers = Writers()
    named = [writers.write(17, name, ORDERS[0]) for name in "abc"]
    for name in "xyz":
        writers.write(16, name, ORDERS[1])
    assert writers.decide(17, *named) is None
    monkeypatch.setattr(coordinator, "discard", Mock(side_effect=RuntimeError("a defect")))
    with pytest.raises(RuntimeError):
        writers.answer()
    monkeypatch.undo()
    assert writers.answer() is BUSY
    assert writers.decide_in_turns(17, *named) == Decided(17, 17, now=True)
    assert {writers.state(branch) for branch in named} == {State.PREPARE_COMMIT}


@pytest.mark.parametrize("days", [0, 91])
@pytest.mark.usefixtures("one_a_turn")
def test_what_is_decided_follows_after_a_start_by_itself_however_late_that_is(days: int) -> None:
    writers = Writers()
    named = [writers.write(17, name, ORDERS[0]) for name in "abcde"]
    assert writers.decide(17, *named) is None
    writers.shard.restart()
    writers.shard.wall_ahead_ms = days * 86_400_000
    writers.shard.tick(0)
    assert {writers.state(branch) for branch in named} == {State.PREPARE_COMMIT}
    assert not writers.shard.machine.last_decision("clicks").open_branches

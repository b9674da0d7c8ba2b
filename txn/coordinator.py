"""The transaction coordinator of one partition of `__transaction_state`: a machine over the ids that live there.

`decide` answers commands. `apply` takes up records: those of a decision, or those of a log that is replayed. `expire`
does what is due. The shard (`service/broker/shard.py`) makes a decision durable before its answers and effects leave.

What always holds:
 - Only `apply` changes durable state. A decision consists of legal moves (`states.MOVES`).
 - All records of a decision are in one batch. A decision over branches may take several: what it aborts comes first,
   because an open branch may be aborted at any time. Then one record decides, the root's, and what that commits may
   follow later (`branch_index.py`). Who asks about the same branches meanwhile is told `Busy`.
 - Effects can be derived again from state (`owed_markers`).
 - A command that has to wait for markers waits until they are written, or until its patience ends; then it is told
   `Busy`. Waiting commands are in memory only: after a change of leader their callers ask the next coordinator.
 - Waiting times are measured by `now_ms`, a clock that is never set. Stored times are those of the wall clock. If that
   is set to another time, no id is forgotten and no transaction is ended for it.
"""

import heapq
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from itertools import islice
from typing import Final, NamedTuple, TypeAlias, assert_never

from log.clock import ClockWatch
from log.ids import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, TopicPartition
from txn.branch_index import BranchIndex
from txn.branches import (
    MAX_TOKEN,
    MAX_UNDECIDED,
    branch_of,
    check_decision,
    fault_of,
    is_aborted_by,
    is_open,
    is_sealed,
    remember,
    reusable,
    token_of,
)
from txn.commands import (
    AddPartitions,
    Command,
    EndBranches,
    EndTransaction,
    InitProducer,
    MarkersWritten,
    VerifyPartitions,
)
from txn.deadlines import TxnDeadlines, forget_after_ms
from txn.decisions import (
    Judgement,
    TakeId,
    commit_branch,
    complete,
    create,
    decide_add_partitions,
    decide_end,
    decide_init,
    decide_verify,
    discard,
    fence,
)
from txn.markers import OwedMarkers, SendMarkers, markers_of
from txn.records import read_key, read_value, write_key, write_value
from txn.settings import TxnSettings
from txn.states import COMPLETED, LEGAL, NO_TOKEN, PREPARED, State, Txn
from txn.tally import FENCED, TIMEOUT, TxnTally
from txn.verdicts import (
    BUSY,
    NO_PRODUCER_IDS,
    BranchFault,
    BranchNotReady,
    Decided,
    Discarded,
    InvalidRequest,
    MarkersNoted,
    TokenDecided,
    TxnDecision,
    Verdict,
)

MAX_WAITING: Final = 10_000
"""How many commands may wait for markers. One more is told `Busy` at once, as by Kafka."""
END_AT_ONCE: Final = 100
"""How many transactions one decision ends: those that timed out, and the branches of a root. More follow in the next
turn of the loop.
"""
END_AT_ONCE_BYTES: Final = 64 << 10
"""Nothing more is ended or forgotten by a decision that has so many bytes. The ids, or the lists of partitions, are
long.
"""
LOOKED_AT_ONCE: Final = 1_000
"""How many ids one decision looks at: whether they are unused, or branches that can be decided over. More follow in the
next turn of the loop.
"""
ROOT_TIMEOUT_MS: Final = 60_000
"""The timeout of a root that was made by its first decision: Kafka's default. It has no effect, because such a root
writes nothing itself.
"""


class DescribedTxn(NamedTuple):
    """One id as transaction tools show it. While markers are being written, only partitions without one are listed."""

    txn: Txn
    partitions: tuple[TopicPartition, ...]
    root: str | None


class LastDecision(NamedTuple):
    """What a root remembers."""

    token: int
    """The last decided token; -1: none was decided yet."""
    producer_id: int
    producer_epoch: int
    open_branches: tuple[str, ...]
    by: str = ""


class _Waiting(NamedTuple):
    command: Command
    token: int
    until_ms: int


class _Written(NamedTuple):
    """A record of a decision with the object that its bytes came from: `apply` need not decode them again."""

    key: bytes
    transactional_id: str
    txn: Txn | None
    why: str = ""


class _Draft:
    """A decision in the making. Its changes are kept apart from the machine's state; `get` sees both."""

    def __init__(self, txns: dict[str, Txn], now_ms: int, wall_ms: int) -> None:
        self._txns = txns
        self.now_ms = now_ms
        self.wall_ms = wall_ms
        self.moved: dict[str, Txn | None] = {}
        self.records: list[tuple[bytes, bytes | None]] = []
        self.written: list[_Written] = []
        self.answers: list[tuple[int, Verdict]] = []
        self.effects: list[object] = []
        self.resumed: dict[int, None] = {}
        """Commands that waited for markers, and wait no more."""
        self.looked_at = 0
        self._bytes = 0

    def is_full(self) -> bool:
        """Whether what can as well be done in the next turn is to be left to that."""
        return len(self.records) >= END_AT_ONCE or self.is_long() or self.looked_at >= LOOKED_AT_ONCE

    def is_long(self) -> bool:
        return self._bytes >= END_AT_ONCE_BYTES

    def get(self, transactional_id: str) -> Txn | None:
        if transactional_id in self.moved:
            return self.moved[transactional_id]
        return self._txns.get(transactional_id)

    def _state(self, transactional_id: str) -> State | None:
        txn = self.get(transactional_id)
        return None if txn is None else txn.state

    def move(self, txn: Txn, why: str = "") -> None:
        assert (self._state(txn.transactional_id), txn.state) in LEGAL, (self._state(txn.transactional_id), txn)
        key, value = write_key(txn.transactional_id), write_value(txn)
        self.moved[txn.transactional_id] = txn
        self.records.append((key, value))
        self._bytes += len(key) + len(value)
        self.written.append(_Written(key, txn.transactional_id, txn, why))
        if txn.state in PREPARED:
            self.effects.append(markers_of(txn, txn.partitions))

    def carry_out(self, outcome: Judgement) -> Verdict:
        if outcome.moved is not None:
            self.move(outcome.moved)
        return outcome.verdict

    def forget(self, transactional_id: str) -> None:
        assert (self._state(transactional_id), None) in LEGAL
        key = write_key(transactional_id)
        self.moved[transactional_id] = None
        self.records.append((key, None))
        self._bytes += len(key)
        self.written.append(_Written(key, transactional_id, None))


_Steps: TypeAlias = Generator[None, None, Verdict]


class _Work:
    """A command that may take several turns. The next one goes on with another draft."""

    def __init__(self, draft: _Draft, waiting: _Waiting, upto_token: int) -> None:
        self.draft = draft
        self.waiting = waiting
        self.upto_token = upto_token
        """Branches with a later token are not concerned."""


class TxnCoordinator:
    """The coordinator for the transactional ids of one partition."""

    def __init__(
        self, take_id: TakeId, settings: TxnSettings, wall_ms: Callable[[], int], tally: TxnTally | None = None
    ) -> None:
        """`take_id` gives a producer id that was never used, or None while there is none."""
        self._tally = TxnTally() if tally is None else tally
        self._take_id = take_id
        self._settings = settings
        self._wall_ms = wall_ms
        self._clock = ClockWatch()
        self._txns: dict[str, Txn] = {}
        self._branches = BranchIndex()
        self._works: dict[str, tuple[_Work, _Steps]] = {}
        self._lost: dict[int, None] = {}
        self._owed = OwedMarkers()
        self._deadlines = TxnDeadlines()
        self._waiting: dict[str, dict[int, _Waiting]] = {}
        self._waiting_count = 0
        self._waiting_until: list[tuple[int, int, str]] = []
        self._forget_next_ms = 0
        self._not_looked_at: Iterator[str] | None = None
        self._decided: deque[_Written] = deque()

    # -- the machine

    def decide(self, command: Command, token: int, now_ms: int) -> TxnDecision:
        """The decision about a command. The answer has this `token`; it is in this decision or in a later one."""
        draft = self._begin(now_ms)
        patience_ms: int = getattr(command, "patience_ms", 0)
        try:
            self._take(draft, _Waiting(command, token, now_ms + patience_ms))
        except Exception:
            self._throw_away(draft)
            self._lost.pop(token, None)  # the shard refuses it
            raise
        return self._finish(draft)

    def apply(self, key: bytes, value: bytes | None) -> None:
        """Take up one record of the log; `BadRecord` if it can't be read."""
        if self._decided and self._decided[0].key is key:
            _, transactional_id, txn, why = self._decided.popleft()
            if txn is not None:
                self._tally.count(self._txns.get(transactional_id), txn, why)
            self._put(transactional_id, txn)
        elif (known := read_key(key)) is not None:
            self._put(known, None if value is None else read_value(known, value))

    @staticmethod
    def only_last_counts(key: bytes, value: bytes | None) -> bool:
        """What is known of an id is what its last record says."""
        return True

    def next_deadline_ms(self) -> int | None:
        """The time at which `expire` must be called at the latest; None: never."""
        candidates = []
        if (abort_ms := self._deadlines.next_ms()) is not None:
            candidates.append(abort_ms)
        if self._waiting_until:
            candidates.append(self._waiting_until[0][0])
        if self._txns:
            candidates.append(self._forget_next_ms)
        if self._owed.settled or self._works or self._branches.undone or self._lost:
            candidates.append(0)
        return min(candidates, default=None)

    def expire(self, now_ms: int) -> TxnDecision:
        """Abort transactions that took too long, forget unused ids, answer commands whose patience has ended."""
        draft = self._begin(now_ms)
        try:
            self._expire(draft)
        except Exception:
            self._throw_away(draft)
            raise
        return self._finish(draft)

    def _expire(self, draft: _Draft) -> None:
        now_ms = draft.now_ms
        for txn in list(islice(self._owed.settled.values(), END_AT_ONCE)):
            if draft.is_full():
                break
            self._complete(draft, txn)
        self._follow_decisions(draft)
        for transactional_id in self._deadlines.due(now_ms, at_most=END_AT_ONCE):
            if draft.is_full():
                break
            # A command that was carried out earlier in this decision may have ended the transaction already.
            if transactional_id not in draft.moved and not self._is_held(transactional_id):
                txn_due = self._txns[transactional_id]
                ended = fence(txn_due, same_client=True, wall_ms=draft.wall_ms, take_id=self._take_id)
                draft.move(ended, TIMEOUT)
        if now_ms >= self._forget_next_ms:
            self._forget_idle(draft)
        self._answer_impatient(draft)
        if self._works and not draft.is_full():  # last: what fails after it would undo what it has done
            self._go_on(draft, next(iter(self._works)))

    def _throw_away(self, draft: _Draft) -> None:
        """Something has failed, and nothing of this decision is done. Those whose commands it has answered, begun or
        gone on with are told `Busy` by the next one.
        """
        self._lost |= draft.resumed
        self._lost.update((token, None) for token, _ in draft.answers)
        for about, (work, _) in list(self._works.items()):
            if work.draft is draft:
                del self._works[about]
                self._lost[work.waiting.token] = None

    # -- looking in

    def owed_markers(self) -> Iterator[SendMarkers]:
        """All markers that still have to be written, derived from state. After a replay these are sent again."""
        return self._owed.all()

    @property
    def owed_count(self) -> int:
        """How many markers still have to be written."""
        return self._owed.count

    def owed_by(self, transactional_id: str) -> SendMarkers | None:
        """The markers of one id that still have to be written."""
        return self._owed.of(transactional_id)

    def describe(self, transactional_id: str) -> DescribedTxn | None:
        txn = self._txns.get(transactional_id)
        if txn is None:
            return None
        owed = self._owed.partitions(transactional_id)
        branch = branch_of(transactional_id)
        txn = self._branches.decided(txn)
        return DescribedTxn(txn, txn.partitions if owed is None else owed, None if branch is None else branch.root)

    def all(self) -> Iterator[Txn]:
        """Every id, oldest first."""
        return map(self._branches.decided, self._txns.values())

    def last_decision(self, root: str) -> LastDecision:
        """The last decided token of a root, and the branches that wait for a decision."""
        txn = self._txns.get(root)
        undecided = tuple(self._branches.open.get(root, ()))
        if txn is None:
            return LastDecision(NO_TOKEN, NO_PRODUCER_ID, NO_PRODUCER_EPOCH, undecided)
        if root in self._branches.undone:
            committed = self._branches.sealed(root, txn.decided_token)
            undecided = tuple(branch for branch in undecided if branch not in committed)
        return LastDecision(txn.decided_token, *txn.holder, undecided, txn.decided_by)

    # -- commands

    def _take(self, draft: _Draft, waiting: _Waiting) -> None:
        command = waiting.command
        if isinstance(command, VerifyPartitions | MarkersWritten):
            self._answer(draft, waiting, self._verdict_on(draft, command))
            return
        about = command.root if isinstance(command, EndBranches) else command.transactional_id
        if self._is_held(about):
            draft.answers.append((waiting.token, BUSY))
        elif isinstance(command, InitProducer):
            work = _Work(draft, waiting, MAX_TOKEN)
            self._works[about] = work, self._init(work, command)
            self._go_on(draft, about)
        elif isinstance(command, EndBranches):
            work = _Work(draft, waiting, command.token)
            self._works[about] = work, self._end_branches(work, command)
            self._go_on(draft, about)
        else:
            self._answer(draft, waiting, self._verdict_on(draft, command))

    def _go_on(self, draft: _Draft, about: str) -> None:
        work, steps = self._works[about]
        work.draft = draft
        try:
            next(steps)
        except StopIteration as end:
            del self._works[about]
            self._answer(draft, work.waiting, end.value)

    def _is_held(self, transactional_id: str) -> bool:
        """Whether the id is part of a decision that is being made, or is still to follow one."""
        if not self._works and not self._branches.undone:
            return False
        branch = branch_of(transactional_id)
        if branch is None:
            return transactional_id in self._works or transactional_id in self._branches.undone
        if branch.root in self._works:
            return branch.token <= self._works[branch.root][0].upto_token
        root = self._branches.undone.get(branch.root)
        return root is not None and transactional_id in self._branches.sealed(branch.root, root.decided_token)

    def _answer(self, draft: _Draft, waiting: _Waiting, verdict: Verdict) -> None:
        if verdict is BUSY and waiting.until_ms > draft.now_ms and self._let_wait(waiting):
            draft.resumed.pop(waiting.token, None)
            return
        draft.answers.append((waiting.token, verdict))

    def _verdict_on(
        self, draft: _Draft, command: AddPartitions | VerifyPartitions | EndTransaction | MarkersWritten
    ) -> Verdict:
        match command:
            case AddPartitions():
                txn = draft.get(command.transactional_id)
                if txn is not None and txn.state in COMPLETED and (decided := self._token_decided(draft, command)):
                    return decided  # the branch ended and its writer begins again: nothing would ever decide over it
                return draft.carry_out(decide_add_partitions(txn, command, wall_ms=draft.wall_ms))
            case VerifyPartitions():
                return decide_verify(draft.get(command.transactional_id), command).verdict
            case EndTransaction():
                txn = draft.get(command.transactional_id)
                return draft.carry_out(decide_end(txn, command, wall_ms=draft.wall_ms, take_id=self._take_id))
            case MarkersWritten():
                return self._markers_written(draft, command)
        assert_never(command)

    @staticmethod
    def _token_decided(draft: _Draft, ask: InitProducer | AddPartitions) -> TokenDecided | None:
        """The refusal if the command is about a branch whose token its root has decided: it can't be opened any
        more.
        """
        branch = branch_of(ask.transactional_id)
        root = None if branch is None else draft.get(branch.root)
        if branch is None or root is None or branch.token > root.decided_token:
            return None
        return TokenDecided(branch.token, root.decided_token)

    def _init(self, work: _Work, ask: InitProducer) -> _Steps:
        draft = work.draft
        txn = draft.get(ask.transactional_id)
        branch = branch_of(ask.transactional_id)
        finished = None
        if branch is not None:
            if str(branch) != ask.transactional_id:  # decisions name branches by their tokens' values
                return InvalidRequest(f"the token of a branch has no zeros in front: {branch.token}")
            if decided := self._token_decided(draft, ask):
                return decided
            finished = self._finished_branch(draft, branch.root) if txn is None else None
            others = self._branches.all.get(branch.root, {})
            if txn is None and finished is None and len(others) >= MAX_UNDECIDED:
                if self._is_held(branch.root) or any(self._txns[each].state in PREPARED for each in others):
                    return BUSY  # it is decided, and leaves its place when its markers are written
                return InvalidRequest(f"{MAX_UNDECIDED} branches of one root wait for a decision")
        outcome = decide_init(
            txn, ask, wall_ms=draft.wall_ms, take_id=self._take_id, settings=self._settings, finished=finished
        )
        if outcome.moved is None:
            return outcome.verdict
        if finished is not None:
            draft.forget(finished.transactional_id)
        if branch is None and (txn is None or outcome.moved.holder != txn.holder):
            # The root has a new owner (this is not a repeated request): the open branches of the former one are
            # aborted.
            yield from self._abort_branches(work, ask.transactional_id)
        assert work.draft.get(ask.transactional_id) is txn, "nobody else moves what is held"
        work.draft.move(outcome.moved, FENCED if ask.producer_id == NO_PRODUCER_ID else "")
        return outcome.verdict

    def _end_branches(self, work: _Work, ask: EndBranches) -> _Steps:
        root = work.draft.get(ask.root)
        if refused := check_decision(root, ask):
            return refused
        if root is not None and ask.token <= root.decided_token:
            yield from self._abort_branches(work, ask.root)
            return Decided(ask.token, root.decided_token, now=False, by=root.decided_by, before=root.decided_before)
        if not ask.commit:
            return Discarded((yield from self._abort_branches(work, ask.root)))
        named: dict[str, None] = {}
        for branch in ask.branches:
            if work.draft.is_full():
                yield
            work.draft.looked_at += 1
            fault = fault_of(branch, work.draft.get(branch.transactional_id), ask)
            if branch.transactional_id in named:
                fault = BranchFault.NAMED_TWICE
            if fault is not None:
                return BranchNotReady(branch.transactional_id, fault)
            named[branch.transactional_id] = None
        decided = root
        if decided is None:
            decided = create(ask.root, ROOT_TIMEOUT_MS, wall_ms=work.draft.wall_ms, take_id=self._take_id).moved
        if decided is None:
            return NO_PRODUCER_IDS
        yield from self._abort_branches(work, ask.root, named)
        draft = work.draft
        assert draft.get(ask.root) is root, "nobody else moves what is held"
        known = self._with_moved(draft, ask.root, self._branches.sealed(ask.root, ask.token))
        sealed = [txn for each in known if (txn := draft.get(each)) is not None and is_open(txn) and is_sealed(txn)]
        assert sum(token_of(txn) == ask.token for txn in sealed) == len(named), "it commits what it names, and no more"
        draft.move(remember(decided, ask, wall_ms=draft.wall_ms))
        self._commit_branches(draft, named)
        if any(branch not in draft.moved for branch in named):
            # The caller is told when all have followed: their writers are fenced then, where markers can be written at
            # once.
            yield
            while ask.root in self._branches.undone:
                yield
        return Decided(ask.token, ask.token, now=True, by=ask.decided_by, before=decided.decided_by)

    def _abort_branches(self, work: _Work, root: str, named: Collection[str] = ()) -> Generator[None, None, int]:
        """Abort every open branch that is concerned and not named. Returns how many these were."""
        aborted = 0
        for transactional_id in self._with_moved(work.draft, root, self._branches.open.get(root, {})):
            if work.draft.is_full():
                yield
            work.draft.looked_at += 1
            branch = work.draft.get(transactional_id)
            if branch is not None and is_aborted_by(branch, named, work.upto_token):
                work.draft.move(discard(branch, wall_ms=work.draft.wall_ms))
                aborted += 1
        return aborted

    @staticmethod
    def _with_moved(draft: _Draft, root: str, known: Mapping[str, None]) -> list[str]:
        """These branches, and those of this root that the draft has moved: they may have become such."""
        moved = [each for each in draft.moved if (branch := branch_of(each)) is not None and branch.root == root]
        return list(dict.fromkeys([*known, *moved]))

    def _commit_branches(self, draft: _Draft, decided: Collection[str]) -> None:
        """As many of those that their root has committed as fit into this decision."""
        for transactional_id in decided:
            if draft.is_full():
                return
            branch = draft.get(transactional_id)
            assert branch is not None, "what is decided is not forgotten"
            draft.move(commit_branch(branch, wall_ms=draft.wall_ms))

    def _follow_decisions(self, draft: _Draft) -> None:
        for root in list(islice(self._branches.undone.values(), END_AT_ONCE)):
            decided = self._branches.sealed(root.transactional_id, root.decided_token)
            self._commit_branches(draft, list(islice(decided, END_AT_ONCE)))

    def _markers_written(self, draft: _Draft, ask: MarkersWritten) -> Verdict:
        pair = (ask.producer_id, ask.producer_epoch)
        self._tally.mark(ask.transactional_id, ask.partitions, draft.wall_ms)
        settled = self._owed.settle(ask.transactional_id, pair=pair, partitions=ask.partitions)
        if settled is not None:
            self._complete(draft, settled)
        return MarkersNoted(complete=settled is not None)

    def _complete(self, draft: _Draft, txn: Txn) -> None:
        """Every marker is written. Commands that waited for that are carried out."""
        draft.move(complete(txn, wall_ms=draft.wall_ms))
        resumed = self._waiting.pop(txn.transactional_id, {})
        self._waiting_count -= len(resumed)
        draft.resumed.update(dict.fromkeys(resumed))
        for waiting in resumed.values():
            self._take(draft, waiting)

    # -- waiting

    def _let_wait(self, waiting: _Waiting) -> bool:
        if self._waiting_count >= MAX_WAITING:
            return False
        command = waiting.command
        assert isinstance(command, InitProducer | AddPartitions | EndTransaction)
        self._waiting.setdefault(command.transactional_id, {})[waiting.token] = waiting
        self._waiting_count += 1
        heapq.heappush(self._waiting_until, (waiting.until_ms, waiting.token, command.transactional_id))
        return True

    def _answer_impatient(self, draft: _Draft) -> None:
        while self._waiting_until and self._waiting_until[0][0] <= draft.now_ms:
            _, token, transactional_id = heapq.heappop(self._waiting_until)
            waiting = self._waiting.get(transactional_id, {})
            if waiting.pop(token, None) is None:
                continue  # the command was answered before its patience ended
            self._waiting_count -= 1
            draft.answers.append((token, BUSY))
            if not waiting:
                del self._waiting[transactional_id]

    def _finished_branch(self, draft: _Draft, root: str) -> Txn | None:
        """A branch of the root whose producer id a new one can take over."""
        for transactional_id in self._branches.finished.get(root, ()):
            txn = draft.get(transactional_id)
            if txn is not None and reusable(txn):
                return txn
        return None

    # -- time

    def _forget_idle(self, draft: _Draft) -> None:
        """Check some ids in a round over all of them, and forget the unused ones."""
        if self._not_looked_at is None:
            self._not_looked_at = iter(list(self._txns))
        looked_at = 0
        while looked_at < LOOKED_AT_ONCE:
            if draft.is_long():
                return
            if (transactional_id := next(self._not_looked_at, None)) is None:
                self._not_looked_at = None
                self._forget_next_ms = draft.now_ms + self._settings.forget_interval_ms
                return
            looked_at += 1
            txn = draft.get(transactional_id)
            if txn is None or (kept_ms := forget_after_ms(txn, self._settings)) is None:
                continue
            if self._is_held(transactional_id):
                continue
            if draft.wall_ms - self._clock.since_ms(txn.updated_ms) >= kept_ms:
                draft.forget(transactional_id)

    # -- state

    def _begin(self, now_ms: int) -> _Draft:
        wall_ms = self._wall_ms()
        self._clock.look(now_ms, wall_ms)
        self._deadlines.note_time(now_ms, wall_ms)
        return _Draft(self._txns, now_ms, wall_ms)

    def _finish(self, draft: _Draft) -> TxnDecision:
        assert not self._decided, "every record that was decided on must be applied before the next decision"
        self._decided.extend(draft.written)
        draft.answers += [(token, BUSY) for token in self._lost]
        self._lost.clear()
        return TxnDecision(tuple(draft.records), tuple(draft.answers), tuple(draft.effects))

    def _put(self, transactional_id: str, txn: Txn | None) -> None:
        if txn is None:
            self._txns.pop(transactional_id, None)
            self._deadlines.forget(transactional_id)
            self._owed.forget(transactional_id)
        else:
            self._txns[transactional_id] = txn
            self._deadlines.follow(txn)
            self._owed.follow(txn)
        self._branches.follow(transactional_id, txn)

"""The transaction coordinator of one partition of `__transaction_state`: a machine over the ids that live there.

`decide` answers commands. `apply` takes up records: those of a decision, or those of a log that is replayed. `expire`
does what is due. The shard (`service/broker/shard.py`) makes a decision durable before its answers and effects leave.

What always holds:
 - Only `apply` changes durable state. A decision consists of legal moves (`states.MOVES`).
 - All records of a decision are in one batch. That alone makes a decision over branches atomic.
 - Effects can be derived again from state (`owed_markers`).
 - A command that has to wait for markers waits until they are written, or until its patience ends; then it is told
   `Busy`. Waiting commands are in memory only: after a change of leader their callers ask the next coordinator.
 - Waiting times are measured by `now_ms`, a clock that is never set. Stored times are those of the wall clock. If that
   is set to another time, no id is forgotten and no transaction is ended for it.
"""

import heapq
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final, NamedTuple, assert_never

from log.clock import ClockWatch
from log.ids import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, TopicPartition
from txn.branches import MAX_UNDECIDED, branch_of, check_decision, decide_together, find_unready, is_open, reusable
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
"""How many timed-out transactions one decision ends. More follow in the next turn of the loop."""
LOOKED_AT_ONCE: Final = 1_000
"""How many ids one decision checks for being unused. More follow in the next turn of the loop."""
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

    def get(self, transactional_id: str) -> Txn | None:
        if transactional_id in self.moved:
            return self.moved[transactional_id]
        return self._txns.get(transactional_id)

    def _state(self, transactional_id: str) -> State | None:
        txn = self.get(transactional_id)
        return None if txn is None else txn.state

    def move(self, txn: Txn, why: str = "") -> None:
        assert (self._state(txn.transactional_id), txn.state) in LEGAL, (self._state(txn.transactional_id), txn)
        key = write_key(txn.transactional_id)
        self.moved[txn.transactional_id] = txn
        self.records.append((key, write_value(txn)))
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
        self.written.append(_Written(key, transactional_id, None))


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
        self._branches: dict[str, dict[str, None]] = {}
        self._finished: dict[str, dict[str, None]] = {}
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
        self._take(draft, _Waiting(command, token, now_ms + patience_ms))
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
        if self._owed.settled:
            candidates.append(0)
        return min(candidates, default=None)

    def expire(self, now_ms: int) -> TxnDecision:
        """Abort transactions that took too long, forget unused ids, answer commands whose patience has ended."""
        draft = self._begin(now_ms)
        for txn in list(islice(self._owed.settled.values(), END_AT_ONCE)):
            self._complete(draft, txn)
        for transactional_id in self._deadlines.due(now_ms, at_most=END_AT_ONCE):
            # A command that was carried out earlier in this decision may have ended the transaction already.
            if transactional_id not in draft.moved:
                txn_due = self._txns[transactional_id]
                ended = fence(txn_due, same_client=True, wall_ms=draft.wall_ms, take_id=self._take_id)
                draft.move(ended, TIMEOUT)
        if now_ms >= self._forget_next_ms:
            self._forget_idle(draft)
        self._answer_impatient(draft)
        return self._finish(draft)

    # -- looking in

    def owed_markers(self) -> Iterator[SendMarkers]:
        """All markers that still have to be written, derived from state. After a replay these are sent again."""
        return self._owed.all()

    def owed_by(self, transactional_id: str) -> SendMarkers | None:
        """The markers of one id that still have to be written."""
        return self._owed.of(transactional_id)

    def describe(self, transactional_id: str) -> DescribedTxn | None:
        txn = self._txns.get(transactional_id)
        if txn is None:
            return None
        owed = self._owed.partitions(transactional_id)
        branch = branch_of(transactional_id)
        return DescribedTxn(txn, txn.partitions if owed is None else owed, None if branch is None else branch.root)

    def all(self) -> Iterator[Txn]:
        """Every id, oldest first."""
        return iter(self._txns.values())

    def last_decision(self, root: str) -> LastDecision:
        """The last decided token of a root, and the branches that wait for a decision."""
        txn = self._txns.get(root)
        undecided = tuple(branch.transactional_id for branch in self._open_branches(None, root))
        if txn is None:
            return LastDecision(NO_TOKEN, NO_PRODUCER_ID, NO_PRODUCER_EPOCH, undecided)
        return LastDecision(txn.decided_token, *txn.holder, undecided, txn.decided_by)

    # -- commands

    def _take(self, draft: _Draft, waiting: _Waiting) -> None:
        verdict = self._verdict_on(draft, waiting.command)
        if verdict is BUSY and waiting.until_ms > draft.now_ms and self._let_wait(waiting):
            return
        draft.answers.append((waiting.token, verdict))

    def _verdict_on(self, draft: _Draft, command: Command) -> Verdict:
        match command:
            case InitProducer():
                return self._init(draft, command)
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
            case EndBranches():
                return self._end_branches(draft, command)
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

    def _init(self, draft: _Draft, ask: InitProducer) -> Verdict:
        txn = draft.get(ask.transactional_id)
        branch = branch_of(ask.transactional_id)
        finished = None
        if branch is not None:
            if str(branch) != ask.transactional_id:  # decisions name branches by their tokens' values
                return InvalidRequest(f"the token of a branch has no zeros in front: {branch.token}")
            if decided := self._token_decided(draft, ask):
                return decided
            finished = self._finished_branch(draft, branch.root) if txn is None else None
            others = self._branches.get(branch.root, {})
            if txn is None and finished is None and len(others) >= MAX_UNDECIDED:
                if any(self._txns[each].state in PREPARED for each in others):
                    return BUSY  # it is decided, and leaves its place when its markers are written
                return InvalidRequest(f"{MAX_UNDECIDED} branches of one root wait for a decision")
        outcome = decide_init(
            txn, ask, wall_ms=draft.wall_ms, take_id=self._take_id, settings=self._settings, finished=finished
        )
        if outcome.moved is None:
            return outcome.verdict
        if finished is not None:
            draft.forget(finished.transactional_id)
        draft.move(outcome.moved, FENCED if ask.producer_id == NO_PRODUCER_ID else "")
        if branch is None and (txn is None or outcome.moved.holder != txn.holder):
            # The root has a new owner (this is not a repeated request): the open branches of the former one are
            # aborted.
            for open_branch in self._open_branches(draft, ask.transactional_id):
                draft.move(discard(open_branch, wall_ms=draft.wall_ms))
        return outcome.verdict

    def _end_branches(self, draft: _Draft, ask: EndBranches) -> Verdict:
        root = draft.get(ask.root)
        if refused := check_decision(root, ask):
            return refused
        branches = self._branches_of(draft, ask.root)
        if root is not None and ask.token <= root.decided_token:
            self._carry_out_together(draft, branches, ask, commit=False)
            return Decided(ask.token, root.decided_token, now=False, by=root.decided_by, before=root.decided_before)
        if not ask.commit:
            return Discarded(self._carry_out_together(draft, branches, ask, commit=False))
        if unready := find_unready(branches, ask):
            return unready
        if root is None:
            root = create(ask.root, ROOT_TIMEOUT_MS, wall_ms=draft.wall_ms, take_id=self._take_id).moved
        if root is None:
            return NO_PRODUCER_IDS
        # The root's state does not change: a client that repeats the end of the root's own last transaction must still
        # be told how it ended.
        draft.move(
            root._replace(
                updated_ms=draft.wall_ms,
                decided_token=ask.token,
                decided_by=ask.decided_by,
                decided_before=root.decided_by,
            )
        )
        self._carry_out_together(draft, branches, ask, commit=True)
        return Decided(ask.token, ask.token, now=True, by=ask.decided_by, before=root.decided_by)

    def _carry_out_together(self, draft: _Draft, branches: dict[str, Txn], ask: EndBranches, *, commit: bool) -> int:
        """Abort every open branch up to the token. With `commit` the named ones are committed instead. Returns how many
        branches were ended.
        """
        named = {branch.transactional_id: None for branch in ask.branches} if commit else {}
        decided = decide_together(branches.values(), named, ask.token)
        for branch, commits in decided:
            decide_branch = commit_branch if commits else discard
            draft.move(decide_branch(branch, wall_ms=draft.wall_ms))
        return len(decided)

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
        for waiting in self._waiting.pop(txn.transactional_id, {}).values():
            self._waiting_count -= 1
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

    # -- branches of a root

    def _branches_of(self, draft: _Draft | None, root: str) -> dict[str, Txn]:
        """All branches of a root, with the changes of this draft."""
        found = {}
        for transactional_id in self._branches.get(root, ()):
            txn = self._txns[transactional_id] if draft is None else draft.get(transactional_id)
            if txn is not None:
                found[transactional_id] = txn
        return found

    def _open_branches(self, draft: _Draft | None, root: str) -> list[Txn]:
        return [txn for txn in self._branches_of(draft, root).values() if is_open(txn)]

    def _finished_branch(self, draft: _Draft, root: str) -> Txn | None:
        """A branch of the root whose producer id a new one can take over."""
        for transactional_id in self._finished.get(root, ()):
            txn = draft.get(transactional_id)
            if txn is not None and reusable(txn):
                return txn
        return None

    # -- time

    def _forget_idle(self, draft: _Draft) -> None:
        """Check some ids in a round over all of them, and forget the unused ones."""
        if self._not_looked_at is None:
            self._not_looked_at = iter(list(self._txns))
        looked_at = list(islice(self._not_looked_at, LOOKED_AT_ONCE))
        for transactional_id in looked_at:
            txn = draft.get(transactional_id)
            if txn is None or (kept_ms := forget_after_ms(txn, self._settings)) is None:
                continue
            if draft.wall_ms - self._clock.since_ms(txn.updated_ms) >= kept_ms:
                draft.forget(transactional_id)
        if len(looked_at) < LOOKED_AT_ONCE:
            self._not_looked_at = None
            self._forget_next_ms = draft.now_ms + self._settings.forget_interval_ms

    # -- state

    def _begin(self, now_ms: int) -> _Draft:
        wall_ms = self._wall_ms()
        self._clock.look(now_ms, wall_ms)
        self._deadlines.note_time(now_ms, wall_ms)
        return _Draft(self._txns, now_ms, wall_ms)

    def _finish(self, draft: _Draft) -> TxnDecision:
        assert not self._decided, "every record that was decided on must be applied before the next decision"
        self._decided.extend(draft.written)
        return TxnDecision(tuple(draft.records), tuple(draft.answers), tuple(draft.effects))

    def _put(self, transactional_id: str, txn: Txn | None) -> None:
        branch = branch_of(transactional_id)
        if txn is None:
            self._txns.pop(transactional_id, None)
            self._deadlines.forget(transactional_id)
            self._owed.forget(transactional_id)
        else:
            self._txns[transactional_id] = txn
            self._deadlines.follow(txn)
            self._owed.follow(txn)
        if branch is not None:
            _enter(self._branches, branch.root, transactional_id, present=txn is not None)
            _enter(self._finished, branch.root, transactional_id, present=txn is not None and reusable(txn))


def _enter(index: dict[str, dict[str, None]], root: str, transactional_id: str, *, present: bool) -> None:
    if present:
        index.setdefault(root, {})[transactional_id] = None
    elif root in index:
        index[root].pop(transactional_id, None)
        if not index[root]:
            del index[root]

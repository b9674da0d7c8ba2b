"""The life of one transactional id: its states, the moves between them, and what may be trusted in each.

    (new)          -> Empty           create remember
    Empty          -> Empty           init end remember
    Empty          -> Ongoing         add_partitions
    Empty          -> CompleteCommit  commit_branch
    Empty          -> CompleteAbort   end fence discard
    Ongoing        -> Ongoing         add_partitions end resume
    Ongoing        -> PrepareCommit   end commit_branch
    Ongoing        -> PrepareAbort    end fence discard
    PrepareCommit  -> CompleteCommit  complete
    PrepareAbort   -> CompleteAbort   complete
    CompleteCommit -> Empty           init
    CompleteCommit -> Ongoing         add_partitions
    CompleteCommit -> CompleteCommit  end remember
    CompleteCommit -> CompleteAbort   end
    CompleteAbort  -> Empty           init
    CompleteAbort  -> Ongoing         add_partitions
    CompleteAbort  -> CompleteAbort   end remember
    Empty          -> (gone)          expire reuse
    CompleteCommit -> (gone)          expire reuse
    CompleteAbort  -> (gone)          expire reuse

A test draws these lines from `MOVES`, and `TxnCoordinator` decides no other moves: it asserts that. What the log has is
taken up as it is.

What may be trusted:
 - Empty, CompleteCommit, CompleteAbort: no partition waits for a marker of this id, and its list of partitions is
   empty.
 - Ongoing: every partition that holds, or may come to hold, a batch of the transaction is listed. The list only grows.
 - PrepareCommit, PrepareAbort: the outcome is decided for good; only markers are missing. `producer_epoch` is the
   markers' epoch. With version 2 it is above the epoch of every batch of the transaction.
 - In every state `holder` is the one pair (producer id, epoch) whose commands are carried out. It never goes back: the
   epoch rises, or the producer id is fresh.
 - (`previous_producer_id`, `last_producer_epoch`) is the pair that the client of the present holder had before. A
   request with that pair repeats one that was already carried out. After another client has taken over the id there is
   no such pair.

A transaction that never began moves to Complete at once when it is ended. Kafka's states PrepareEpochFence and Dead
exist in its memory only and have no counterpart here: a fence is one move, and a forgotten id is gone.
"""

from enum import Enum
from typing import Final, NamedTuple

from log.ids import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_TIMESTAMP, TopicPartition

NO_TOKEN: Final = -1
TWO_PHASE_TIMEOUT_MS: Final = 2**31 - 1
"""A transaction with this timeout is never aborted because of time (KIP-939)."""


class State(Enum):
    """The values are those in the log; the labels are those in Kafka's tools."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5

    @property
    def label(self) -> str:
        return "".join(word.capitalize() for word in self.name.split("_"))


PREPARED: Final = (State.PREPARE_COMMIT, State.PREPARE_ABORT)
COMPLETED: Final = (State.COMPLETE_COMMIT, State.COMPLETE_ABORT)
AT_REST: Final = (State.EMPTY, *COMPLETED)


class Move(NamedTuple):
    """A move from one state (None: new) to another (None: gone), and the functions of `decisions.py` and `branches.py`
    that make it.
    """

    source: State | None
    target: State | None
    by: tuple[str, ...]


MOVES: Final = (
    Move(None, State.EMPTY, ("create", "remember")),
    Move(State.EMPTY, State.EMPTY, ("init", "end", "remember")),
    Move(State.EMPTY, State.ONGOING, ("add_partitions",)),
    Move(State.EMPTY, State.COMPLETE_COMMIT, ("commit_branch",)),
    Move(State.EMPTY, State.COMPLETE_ABORT, ("end", "fence", "discard")),
    Move(State.ONGOING, State.ONGOING, ("add_partitions", "end", "resume")),
    Move(State.ONGOING, State.PREPARE_COMMIT, ("end", "commit_branch")),
    Move(State.ONGOING, State.PREPARE_ABORT, ("end", "fence", "discard")),
    Move(State.PREPARE_COMMIT, State.COMPLETE_COMMIT, ("complete",)),
    Move(State.PREPARE_ABORT, State.COMPLETE_ABORT, ("complete",)),
    Move(State.COMPLETE_COMMIT, State.EMPTY, ("init",)),
    Move(State.COMPLETE_COMMIT, State.ONGOING, ("add_partitions",)),
    Move(State.COMPLETE_COMMIT, State.COMPLETE_COMMIT, ("end", "remember")),
    Move(State.COMPLETE_COMMIT, State.COMPLETE_ABORT, ("end",)),
    Move(State.COMPLETE_ABORT, State.EMPTY, ("init",)),
    Move(State.COMPLETE_ABORT, State.ONGOING, ("add_partitions",)),
    Move(State.COMPLETE_ABORT, State.COMPLETE_ABORT, ("end", "remember")),
    Move(State.EMPTY, None, ("expire", "reuse")),
    Move(State.COMPLETE_COMMIT, None, ("expire", "reuse")),
    Move(State.COMPLETE_ABORT, None, ("expire", "reuse")),
)

LEGAL: Final = {(move.source, move.target): None for move in MOVES}


def draw() -> str:
    """The diagram above."""

    def name(state: State | None, absent: str) -> str:
        return state.label if state is not None else absent

    return "\n".join(
        f"{name(move.source, '(new)'):14} -> {name(move.target, '(gone)'):14}  {' '.join(move.by)}" for move in MOVES
    )


class Txn(NamedTuple):
    """Everything that is durable about one transactional id. Never changed in place: a move makes a new one."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    state: State
    timeout_ms: int
    updated_ms: int
    partitions: tuple[TopicPartition, ...] = ()
    started_ms: int = NO_TIMESTAMP
    previous_producer_id: int = NO_PRODUCER_ID
    last_producer_epoch: int = NO_PRODUCER_EPOCH
    next_producer_id: int = NO_PRODUCER_ID
    """The producer id that takes over when the transaction is complete, because `producer_id` has no epochs left or the
    transaction was handed on.
    """
    next_producer_epoch: int = NO_PRODUCER_EPOCH
    client_version: int = 0
    """The transaction version of the client that moved it last: 2 if epochs move with every transaction."""
    sealed_ms: int = NO_TIMESTAMP
    """Of a branch: when its writer sealed it."""
    decided_token: int = NO_TOKEN
    """Of a root: the token of its last decision."""
    decided_by: str = ""
    """Of a root: who made its last decision, in the decider's own words; empty: it did not say."""
    decided_before: str = ""
    """Of a root: who made the decision before that."""
    committed_id: int = NO_PRODUCER_ID
    committed_epoch: int = NO_PRODUCER_EPOCH
    """The pair with which the last committed transaction was written. A new id has its own first producer id, and no
    epoch: everything is known of it. Without a producer id nothing is known: older versions, and Kafka, keep no pair.
    """

    @property
    def handed_on(self) -> bool:
        """Whether everything is written and the holder can only end it: the branch is sealed, or another client has
        taken over the prepared transaction (KIP-939).
        """
        return self.next_producer_id != NO_PRODUCER_ID and self.state in (State.EMPTY, State.ONGOING)

    @property
    def holder(self) -> tuple[int, int]:
        """The pair whose commands are carried out. While markers are being written it is the successor's."""
        if self.handed_on:
            return self.next_producer_id, self.next_producer_epoch
        if self.state in PREPARED:
            return self.successor
        return self.producer_id, self.producer_epoch

    @property
    def successor(self) -> tuple[int, int]:
        """The pair that becomes the holder when a prepared transaction is complete. The answer to the client names
        it.
        """
        if self.next_producer_id != NO_PRODUCER_ID:
            return self.next_producer_id, max(self.next_producer_epoch, 0)
        return self.producer_id, self.producer_epoch

    def was_committed(self, producer_id: int, epoch: int) -> bool | None:
        """Whether what was written with this pair, which holds the id no more, was committed. None: that is not known,
        because it came before the last commit, or the pair is none of the past.
        """
        if (producer_id, epoch) == (self.committed_id, self.committed_epoch):
            return True
        is_present = producer_id == self.producer_id
        if self.committed_id == NO_PRODUCER_ID or (is_present and epoch >= self.producer_epoch):
            return None
        if producer_id == self.committed_id:
            return False if epoch > self.committed_epoch else None
        return False if is_present else None  # it is later than the last commit, whose producer id is used up

    @property
    def is_two_phase(self) -> bool:
        return self.timeout_ms == TWO_PHASE_TIMEOUT_MS

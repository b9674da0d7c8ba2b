"""What a transaction coordinator answers, and the shape of its decisions.

Every verdict is one thing that can be true of a command; `service/api/wire_codes.py` turns them into Kafka's error
codes, which differ by API and version.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Final

from log.ids import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, TopicPartition
from txn.states import State

# ---------------------------------------------------------------- carried out


@dataclass(frozen=True, slots=True)
class Initialized:
    """The caller is the holder now. If a prepared transaction was kept, its own pair is in the answer, too."""

    producer_id: int
    producer_epoch: int
    ongoing_producer_id: int = NO_PRODUCER_ID
    ongoing_producer_epoch: int = NO_PRODUCER_EPOCH


@dataclass(frozen=True, slots=True)
class Added:
    """The partitions are in the transaction."""


@dataclass(frozen=True, slots=True)
class Verified:
    """There is an open transaction. `missing` are the partitions that are not in it."""

    missing: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class Ended:
    """The transaction was ended as asked, now or before. The client goes on with this pair (version 2)."""

    producer_id: int
    producer_epoch: int


@dataclass(frozen=True, slots=True)
class Sealed:
    """The branch is sealed and waits for the decision of its root, which must name this pair. It can still be
    aborted.
    """

    producer_id: int
    producer_epoch: int


@dataclass(frozen=True, slots=True)
class Decided:
    """The token is decided: by this command (`now`), or by an earlier one. In that case no branch that this command
    names takes part.

    `last_token` is the token of the root's last decision: the one asked for, or a later one. `by` made the last
    decision, and `before` the one before it.
    """

    token: int
    last_token: int
    now: bool
    by: str = ""
    before: str = ""


@dataclass(frozen=True, slots=True)
class Discarded:
    """This many open branches are aborted; nothing is decided."""

    branches: int


@dataclass(frozen=True, slots=True)
class MarkersNoted:
    """The markers are noted. `complete`: no partition lacks one any more."""

    complete: bool


# ---------------------------------------------------------------- refused


@dataclass(frozen=True, slots=True)
class Busy:
    """The last transaction is decided and its markers are being written: ask again."""


@dataclass(frozen=True, slots=True)
class Fenced:
    """Another client, or this one in a later transaction, holds the id."""

    producer_epoch: int
    current_epoch: int


@dataclass(frozen=True, slots=True)
class UnknownId:
    """This transactional id was never initialized, or it expired."""


@dataclass(frozen=True, slots=True)
class WrongProducer:
    """The id belongs to another producer id."""

    producer_id: int
    current_producer_id: int


@dataclass(frozen=True, slots=True)
class WrongState:
    """The command is not allowed in this state."""

    state: State


@dataclass(frozen=True, slots=True)
class InvalidRequest:
    """The command contradicts itself."""

    reason: str


@dataclass(frozen=True, slots=True)
class InvalidTimeout:
    """The broker does not allow such a timeout."""

    timeout_ms: int
    max_timeout_ms: int


@dataclass(frozen=True, slots=True)
class TwoPhaseCommitDisabled:
    """Two-phase commit, whose transactions have no timeout, was not enabled by the operator."""


@dataclass(frozen=True, slots=True)
class NoProducerIds:
    """There is no fresh producer id at the moment: ask again."""


@dataclass(frozen=True, slots=True)
class TokenDecided:
    """The token of this branch is decided already: its writer is too late."""

    token: int
    decided_token: int


class BranchFault(Enum):
    """Why a named branch can't take part. The values are for people."""

    NOT_A_BRANCH = "is not a branch of this root"
    OTHER_TOKEN = "belongs to another token"
    UNKNOWN = "is unknown"
    OTHER_PRODUCER = "is held by another producer id or epoch"
    NOT_OPEN = "was ended already"
    NOT_SEALED = "is not sealed"
    NAMED_TWICE = "is named twice"


@dataclass(frozen=True, slots=True)
class BranchNotReady:
    """The decision was not taken, because of this branch; nothing has changed."""

    transactional_id: str
    fault: BranchFault


Verdict = (
    Initialized
    | Added
    | Verified
    | Ended
    | Sealed
    | Decided
    | Discarded
    | MarkersNoted
    | Busy
    | Fenced
    | UnknownId
    | WrongProducer
    | WrongState
    | InvalidRequest
    | InvalidTimeout
    | TwoPhaseCommitDisabled
    | NoProducerIds
    | TokenDecided
    | BranchNotReady
)

ADDED: Final = Added()
BUSY: Final = Busy()
UNKNOWN_ID: Final = UnknownId()
NO_PRODUCER_IDS: Final = NoProducerIds()


@dataclass(frozen=True, slots=True)
class TxnDecision:
    """Records to write as ONE batch, and the answers and effects that may leave once it is committed. Each answer has
    the token that came with its command.
    """

    records: tuple[tuple[bytes, bytes | None], ...] = ()
    answers: tuple[tuple[int, Verdict], ...] = ()
    effects: tuple[object, ...] = ()
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH
    """Always none: the records of this coordinator belong to no producer's transaction."""

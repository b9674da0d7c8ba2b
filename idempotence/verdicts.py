"""What the producers' view says about a batch: one class for each thing that can be true of it.

`service/api/wire_codes.py` turns verdicts into Kafka's error codes; nothing here knows the wire.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Accepted:
    """The batch is new, in order, and of the current epoch: append it."""


@dataclass(frozen=True, slots=True)
class Duplicate:
    """This same batch is in the log already. Answer as the first time; write nothing."""

    first_offset: int
    last_offset: int
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class OutOfOrder:
    """The batch does not continue where this producer's last one ended."""

    sequence: int
    expected: int


@dataclass(frozen=True, slots=True)
class StaleEpoch:
    """The producer has a later epoch here: a newer client has written, or the coordinator has ended its transaction."""

    epoch: int
    current_epoch: int


@dataclass(frozen=True, slots=True)
class NotInTransaction:
    """A transactional batch that no coordinator has confirmed to belong to an open transaction."""


@dataclass(frozen=True, slots=True)
class TransactionOpen:
    """A batch outside of any transaction, from a producer whose transaction is open on this partition."""

    first_offset: int


@dataclass(frozen=True, slots=True)
class CoordinatorFenced:
    """A marker of a coordinator that has been replaced."""

    coordinator_epoch: int
    current_epoch: int


@dataclass(frozen=True, slots=True)
class TooManyProducers:
    """The partition remembers as many producers as it may; idle ones are forgotten in time."""

    limit: int


Verdict = (
    Accepted
    | Duplicate
    | OutOfOrder
    | StaleEpoch
    | NotInTransaction
    | TransactionOpen
    | CoordinatorFenced
    | TooManyProducers
)

ACCEPTED = Accepted()

"""What a transaction coordinator can be asked, by anybody and over any protocol.

`patience_ms`: how long the caller would rather wait than be told `Busy` while markers of the id's last transaction
are travelling. Kafka answers at once and its clients come back after 20 ms or more; here the answer comes as soon as
the markers are written, mostly within a millisecond.
"""

from dataclasses import dataclass

from log.ids import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, TopicPartition


@dataclass(frozen=True, slots=True)
class InitProducer:
    """A client takes over the id (nothing expected), or goes on after an error (expecting to be the pair it names)."""

    transactional_id: str
    timeout_ms: int
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH
    two_phase_commit: bool = False
    keep_prepared: bool = False
    patience_ms: int = 0


@dataclass(frozen=True, slots=True)
class AddPartitions:
    """The transaction is about to write to these partitions. A group's offsets are its partition of
    `__consumer_offsets`.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: tuple[TopicPartition, ...]
    transaction_version: int = 2
    patience_ms: int = 0


@dataclass(frozen=True, slots=True)
class VerifyPartitions:
    """A leader asks: are these partitions in the open transaction?"""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class EndTransaction:
    """Commit or abort. The commit of a branch seals it: its writer has everything acknowledged and writes no more."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    commit: bool
    transaction_version: int = 2
    patience_ms: int = 0


@dataclass(frozen=True, slots=True)
class NamedBranch:
    """One branch that takes part in a decision: its id, and the pair that its seal answered (-1: any writer that sealed
    it).
    """

    transactional_id: str
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH


@dataclass(frozen=True, slots=True)
class EndBranches:
    """Decide over all branches of `root` with a token up to `token`: the named ones are committed, the others aborted.

    With `commit=False` nothing is decided: every open branch up to the token is thrown away, and the token may be
    tried again. The owner's pair may be named (-1: not named); then a former owner decides nothing. `decided_by` says
    who decides, in the caller's own words.
    """

    root: str
    token: int
    commit: bool
    branches: tuple[NamedBranch, ...] = ()
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH
    decided_by: str = ""


@dataclass(frozen=True, slots=True)
class MarkersWritten:
    """Leaders have written the markers of a prepared transaction to these partitions, or the partitions are gone for
    good.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: tuple[TopicPartition, ...]


Command = InitProducer | AddPartitions | VerifyPartitions | EndTransaction | EndBranches | MarkersWritten

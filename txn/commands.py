"""The commands of a transaction coordinator, independent of any protocol.

`patience_ms`: how long the caller is ready to wait while the markers of the id's last transaction are being written.
After that time it is told `Busy`. Kafka says so at once, and its clients come back after 20 ms or more. Here the answer
comes as soon as the markers are written, mostly within a millisecond.
"""

from dataclasses import dataclass

from log.ids import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, TopicPartition


@dataclass(frozen=True, slots=True)
class InitProducer:
    """A client takes over the id (it names no pair), or goes on after an error (it names the pair that it had).

    `spares_ongoing`: it is refused while a transaction is ongoing, instead of aborting that. The wire can't say so.
    """

    transactional_id: str
    timeout_ms: int
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH
    two_phase_commit: bool = False
    keep_prepared: bool = False
    patience_ms: int = 0
    spares_ongoing: bool = False


@dataclass(frozen=True, slots=True)
class AddPartitions:
    """The transaction is about to write to these partitions. For the offsets of a group that is the group's partition
    of `__consumer_offsets`.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: tuple[TopicPartition, ...]
    transaction_version: int = 2
    patience_ms: int = 0


@dataclass(frozen=True, slots=True)
class VerifyPartitions:
    """The leader of partitions asks whether they are in the open transaction."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class EndTransaction:
    """Commit or abort. The commit of a branch seals it: all that its writer sent is acknowledged, and it writes no
    more.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    commit: bool
    transaction_version: int = 2
    patience_ms: int = 0


@dataclass(frozen=True, slots=True)
class NamedBranch:
    """One branch that takes part in a decision: its id, and the pair from the answer to its sealing (-1: any pair)."""

    transactional_id: str
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH


@dataclass(frozen=True, slots=True)
class EndBranches:
    """Decide over all branches of `root` with a token up to `token`: the named ones are committed, the others aborted.

    With `commit=False` nothing is decided: every open branch up to the token is aborted, and the token may be tried
    again. If the caller names the root's own pair (-1: not named), a former owner of the root can't decide.
    `decided_by` says who decides, in the caller's own words.
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
    """The markers of a prepared transaction have been written to these partitions, or the partitions were deleted."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: tuple[TopicPartition, ...]


Command = InitProducer | AddPartitions | VerifyPartitions | EndTransaction | EndBranches | MarkersWritten

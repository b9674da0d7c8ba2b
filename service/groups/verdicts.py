"""What a coordinator can answer besides success, and the shape of its decisions.

A `Fault` has the name of the protocol's error; error numbers are found in `service/api`. A `GroupDecision` holds the
records that must become durable, in order, and the answers that may be sent after that. Each answer has the token that
came with its command.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, NamedTuple

from service.groups.offsets import OffsetsByTopic

_new = tuple.__new__  # takes half the time of a class's own constructor

Token = object
"""Names a command that is to be answered: the shard gives it, and finds by it where the answer goes."""
Answer = tuple[Token, object]
RecordPair = tuple[bytes, bytes | None]

# How many bytes the records of a decision may have: the largest batch that the topic takes if nothing else is set, but
# for the batch's header. Each record has some bytes besides its key and value.
BATCH_BYTES_MAX = 1_048_588 - 61
RECORD_FRAME_BYTES = 20
# What can as well be written later is cut into batches of about so many.
PART_BYTES = 500_000


class MoreThanABatch(Exception):
    """A decision would write more than one batch may hold. Nothing of it has happened."""


def batch_bytes(records: Collection[RecordPair]) -> int:
    return RECORD_FRAME_BYTES * len(records) + sum([len(key) + len(value or b"") for key, value in records])


class Fault(Enum):
    """Why a command was refused."""

    COORDINATOR_LOAD_IN_PROGRESS = auto()
    NOT_COORDINATOR = auto()
    OFFSET_METADATA_TOO_LARGE = auto()
    ILLEGAL_GENERATION = auto()
    INCONSISTENT_GROUP_PROTOCOL = auto()
    INVALID_GROUP_ID = auto()
    UNKNOWN_MEMBER_ID = auto()
    INVALID_SESSION_TIMEOUT = auto()
    REBALANCE_IN_PROGRESS = auto()
    UNSUPPORTED_VERSION = auto()
    INVALID_REQUEST = auto()
    NON_EMPTY_GROUP = auto()
    GROUP_ID_NOT_FOUND = auto()
    MEMBER_ID_REQUIRED = auto()
    GROUP_MAX_SIZE_REACHED = auto()
    FENCED_INSTANCE_ID = auto()
    GROUP_SUBSCRIBED_TO_TOPIC = auto()
    UNSTABLE_OFFSET_COMMIT = auto()
    FENCED_MEMBER_EPOCH = auto()
    UNRELEASED_INSTANCE_ID = auto()
    UNSUPPORTED_ASSIGNOR = auto()
    STALE_MEMBER_EPOCH = auto()
    INVALID_REGULAR_EXPRESSION = auto()
    UNKNOWN_SERVER_ERROR = auto()


class GroupRefusal(NamedTuple):
    """A fault and, for the APIs that have a message, a sentence for the reader of the client's log."""

    fault: Fault
    message: str = ""


class GroupDecision(NamedTuple):
    """Records to write in one batch, answers to send once they are committed.

    With a `producer_id` the records belong to that producer's open transaction: they are written as its batch.
    """

    records: tuple[RecordPair, ...] = ()
    answers: tuple[Answer, ...] = ()
    effects: tuple[object, ...] = ()
    producer_id: int = -1
    producer_epoch: int = -1


class Replacement(NamedTuple):
    """A group that takes the place of one of another kind; None: no group is left. The records of the decision from
    `first` up to `end` say the same. They are for replays: `apply` takes the group as it is, because applying three
    records for each of thousands of members would take longer than one turn of the loop.
    """

    group_id: str
    group: Any
    first: int
    end: int


class OffsetsPut(NamedTuple):
    """The offsets that so many records of a decision put, from the record with `first_key` on. They are applied as they
    are, with the first record: decoding them again would take as long as all the rest of the decision.
    """

    first_key: bytes
    records: int
    group_id: str
    offsets: OffsetsByTopic


@dataclass(slots=True)
class Draft:
    """A decision in the making, and the time it is made at.

    `now_ms` is the time of a clock that is never set: sessions and other waiting times are measured by it. `wall_ms` is
    the time of the wall clock, which may have been set since. Stored times are stamped and compared by it.
    """

    now_ms: int
    wall_ms: int
    records: list[RecordPair] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    kept: list[Answer] | None = None  # where the answers are kept that a later decision is to give
    producer_id: int = -1
    producer_epoch: int = -1
    replacement: Replacement | None = None
    offsets: OffsetsPut | None = None

    def answer(self, token: Token, reply: object) -> None:
        (self.answers if self.kept is None else self.kept).append((token, reply))

    def has_room(self, more: Collection[RecordPair] = (), bytes_max: int = BATCH_BYTES_MAX) -> bool:
        """Whether these records may be written with those that are here. One alone can't be cut, and always may: that
        of a member with more than a hundred thousand partitions, or of an expression that most topics match.
        """
        if len(self.records) + len(more) <= 1:
            return True
        return batch_bytes(self.records) + batch_bytes(more) <= bytes_max

    def must_fit(self) -> None:
        """Give the decision up if it is too large. Kafka gives up there, too, and tells UNKNOWN_SERVER_ERROR. A
        decision that changes what is in no record asks before that.
        """
        if not self.has_room():
            raise MoreThanABatch(f"{len(self.records)} records of {batch_bytes(self.records)} bytes are no batch")

    def seal(self) -> GroupDecision:
        return _new(
            GroupDecision, (tuple(self.records), tuple(self.answers), (), self.producer_id, self.producer_epoch)
        )

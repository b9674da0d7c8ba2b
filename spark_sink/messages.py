"""The two requests that are not Kafka's: the decision over many writers, and the question what was decided.

They are written down as kio writes down Kafka's own, so that kio reads and writes them. Both go to the coordinator of
the root.
"""

from dataclasses import dataclass, field
from typing import ClassVar

from kio.schema.errors import ErrorCode
from kio.schema.request_header.v2.header import RequestHeader
from kio.schema.response_header.v1.header import ResponseHeader
from kio.schema.types import ProducerId, TransactionalId
from kio.static.constants import EntityType
from kio.static.primitive import i16, i32Timedelta, i64

NOBODY = ProducerId(-1)
NO_EPOCH = i16(-1)


class _EndBranches:
    __slots__ = ()
    __version__: ClassVar[i16] = i16(0)
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = i16(20000)


class _DescribeBranches:
    __slots__ = ()
    __version__: ClassVar[i16] = i16(0)
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = i16(20001)


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedBranch(_EndBranches):
    """A branch that takes part; the pair is what EndTxn answered to its writer, -1 and -1: any writer that sealed
    it.
    """

    __type__: ClassVar = EntityType.nested
    __header_schema__: ClassVar[type[RequestHeader]] = RequestHeader
    transactional_id: TransactionalId = field(metadata={"kafka_type": "string"})
    producer_id: ProducerId = field(metadata={"kafka_type": "int64"}, default=NOBODY)
    producer_epoch: i16 = field(metadata={"kafka_type": "int16"}, default=NO_EPOCH)


@dataclass(frozen=True, slots=True, kw_only=True)
class EndBranchesRequest(_EndBranches):
    """Committed: the named branches commit and every other open one up to the token aborts, in one step. Otherwise all
    of these abort and nothing is decided. The same token again is answered, not decided again."""

    __type__: ClassVar = EntityType.request
    __header_schema__: ClassVar[type[RequestHeader]] = RequestHeader
    root: TransactionalId = field(metadata={"kafka_type": "string"})
    token: i64 = field(metadata={"kafka_type": "int64"})
    committed: bool = field(metadata={"kafka_type": "bool"})
    branches: tuple[NamedBranch, ...]
    producer_id: ProducerId = field(metadata={"kafka_type": "int64"}, default=NOBODY)
    producer_epoch: i16 = field(metadata={"kafka_type": "int16"}, default=NO_EPOCH)
    decided_by: str = field(metadata={"kafka_type": "string", "tag": 0}, default="")
    """Remembered with the token. A broker that doesn't know it passes over it, and so does a client in the answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndBranchesResponse(_EndBranches):
    __type__: ClassVar = EntityType.response
    __header_schema__: ClassVar[type[ResponseHeader]] = ResponseHeader
    throttle_time: i32Timedelta = field(metadata={"kafka_type": "timedelta_i32"})
    error_code: ErrorCode = field(metadata={"kafka_type": "error_code"})
    error_message: str | None = field(metadata={"kafka_type": "string"}, default=None)
    decided_now: bool = field(metadata={"kafka_type": "bool"})
    """False: it was decided before, and the branches named now are thrown away."""
    last_token: i64 = field(metadata={"kafka_type": "int64"}, default=i64(-1))
    """The token of the root's last decision; -1: there was none."""
    decided_by: str = field(metadata={"kafka_type": "string", "tag": 0}, default="")
    """Who made it; empty: nobody said."""
    decided_before: str = field(metadata={"kafka_type": "string", "tag": 1}, default="")
    """Who made the decision before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeBranchesRequest(_DescribeBranches):
    __type__: ClassVar = EntityType.request
    __header_schema__: ClassVar[type[RequestHeader]] = RequestHeader
    roots: tuple[TransactionalId, ...] = field(metadata={"kafka_type": "string"})


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedRoot(_DescribeBranches):
    __type__: ClassVar = EntityType.nested
    __header_schema__: ClassVar[type[ResponseHeader]] = ResponseHeader
    error_code: ErrorCode = field(metadata={"kafka_type": "error_code"})
    root: TransactionalId = field(metadata={"kafka_type": "string"})
    last_token: i64 = field(metadata={"kafka_type": "int64"}, default=i64(-1))
    producer_id: ProducerId = field(metadata={"kafka_type": "int64"}, default=NOBODY)
    producer_epoch: i16 = field(metadata={"kafka_type": "int16"}, default=NO_EPOCH)
    open_branches: tuple[str, ...] = field(metadata={"kafka_type": "string"})
    decided_by: str = field(metadata={"kafka_type": "string", "tag": 0}, default="")


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeBranchesResponse(_DescribeBranches):
    __type__: ClassVar = EntityType.response
    __header_schema__: ClassVar[type[ResponseHeader]] = ResponseHeader
    throttle_time: i32Timedelta = field(metadata={"kafka_type": "timedelta_i32"})
    roots: tuple[DescribedRoot, ...]

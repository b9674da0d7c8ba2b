"""What a machine on a shard looks like: the group coordinator, the transaction coordinator."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, runtime_checkable

from service.turns import Steps


class Decision(Protocol):
    @property
    def records(self) -> Sequence[tuple[bytes, bytes | None]]: ...
    @property
    def answers(self) -> Sequence[tuple[object, object]]: ...
    @property
    def effects(self) -> Sequence[object]: ...
    @property
    def producer_id(self) -> int: ...
    @property
    def producer_epoch(self) -> int: ...


class Machine(Protocol):
    def decide(self, command: Any, token: int, now_ms: int) -> Decision: ...
    def apply(self, key: bytes, value: bytes | None) -> None: ...
    def next_deadline_ms(self) -> int | None: ...
    def expire(self, now_ms: int) -> Decision: ...
    def only_last_counts(self, key: bytes, value: bytes | None) -> bool:
        """Whether this record, which is in no transaction, leaves nothing behind if another one with its key is
        applied next.
        """


@runtime_checkable
class TakesTransactions(Protocol):
    """A machine with a partition that is also written to in producers' transactions: committed offsets."""

    def apply(self, key: bytes, value: bytes | None, *, producer_id: int = -1, producer_epoch: int = -1) -> None: ...
    def apply_marker(self, producer_id: int, producer_epoch: int, committed: bool) -> None: ...


@runtime_checkable
class ReadsInTurns(Protocol):
    """A machine with records of which one may take longer than a turn. Both functions yield when a turn is over."""

    def read_ahead(self, key: bytes, value: bytes) -> Steps[None]:
        """Read a large record right before it is applied."""

    def make_ready(self) -> Steps[None]:
        """When the whole log was applied, and before the first decision: what the machine would need long for then."""


MachineT = TypeVar("MachineT", bound=Machine)


@dataclass(slots=True)
class Mishaps:
    """What went wrong in the shards of one kind since the start."""

    decisions: int = 0
    """How many commands made a machine raise."""
    expiries: int = 0
    """How often work that was due made a machine raise."""
    records: int = 0
    """How many records a replay skipped."""
    rebuilt: int = 0
    """How many shards were given up, and replayed again, while this broker still led their partition."""

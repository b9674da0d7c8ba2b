"""The port to the metadata store: the small part of the cluster's state that must never fork.

Keys are paths without a leading slash (`topics/orders`); values are a few bytes. What always holds, whatever stands
behind it:
- A commit happens wholly or not at all, and commits have one order, given by a number that rises.
- `Create` makes a key with version 0 and fails if it exists; `Put` raises the version by one; `Put`, `Delete` and
  `Check` fail unless the version is the one named. A
key that was deleted and made again starts at 0: a caller that must not be fooled by that fences on a counter that is
never deleted.
- An ephemeral key goes when its session ends. A session's id is never used again, and a session that ended never
  comes back.
- `UNKNOWN` means that the answer was lost: the commit may have happened or not, or may happen while nobody waits.
  Read before deciding again.
- A watch is a hint that comes in order: it opens with a `Snapshot`, and what it missed it owns up to with a `Gap`
  followed by another.

Callers: `service.cluster.metadata`. Implementations: `memory`, `sql`, and `ledger` over `zookeeper` or `postgres`.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol


class Result(Enum):
    """How a commit ended."""

    OK = "ok"
    CONFLICT = "conflict"
    EXPIRED = "expired"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Create:
    key: str
    value: bytes
    ephemeral: bool = False


@dataclass(frozen=True, slots=True)
class Put:
    key: str
    value: bytes
    version: int


@dataclass(frozen=True, slots=True)
class Delete:
    key: str
    version: int


@dataclass(frozen=True, slots=True)
class Check:
    key: str
    version: int


Op = Create | Put | Delete | Check


class Entry(NamedTuple):
    """What a key holds."""

    value: bytes
    version: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything, as of commit `number`."""

    number: int
    entries: dict[str, Entry]


@dataclass(frozen=True, slots=True)
class Change:
    """What commit `number` did: keys in the order of its ops; None where a key was deleted."""

    number: int
    entries: tuple[tuple[str, Entry | None], ...]


@dataclass(frozen=True, slots=True)
class Gap:
    """Changes were missed; a `Snapshot` follows."""


Event = Snapshot | Change | Gap


class StoreError(Exception):
    """The store can't be used; the text is one clear line for the operator."""


class StoreFailed(StoreError):
    """A commit could not be written, and surely did not happen."""


class StoreTooNew(StoreError):
    """The store was written by a newer version."""


class StoreSession(Protocol):
    @property
    def id(self) -> int: ...

    def lease_left(self) -> float:
        """Seconds for which this session surely still counts as alive, with a safety margin; at 0 or below stop
        acting on it.
        """
        ...

    async def commit(self, *ops: Op) -> tuple[Result, int]:
        """Do all of `ops` or nothing. The number is the commit's where the result is OK, else that of the newest
        commit known. Raises `StoreFailed`.
        """
        ...

    async def read(self, prefix: str) -> dict[str, Entry]:
        """Every key that begins with `prefix`, at least as new as every commit answered before the call. Raises
        `SessionExpired`.
        """
        ...

    def watch(self) -> AsyncIterator[Event]:
        """What is committed from now on, opened by a `Snapshot`. Ends when the session ends."""
        ...

    async def close(self) -> None:
        """End the session now: its ephemeral keys go."""
        ...


class SessionExpired(Exception):
    """The session is over: everything that rested on it is void."""


class MetadataStore(Protocol):
    async def session(self, timeout_s: float) -> StoreSession: ...

    async def close(self) -> None: ...

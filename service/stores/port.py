"""The port to the metadata store: the small part of the cluster's state of which there must never be two versions.

Keys are paths without a leading slash (`topics/orders`); values are a few bytes. What always holds, for every
implementation:
- A commit happens wholly or not at all, and commits have one order, given by a number that rises.
- `Create` makes a key with version 0, and fails if the key exists. `Put` raises the version by one. `Put`, `Delete` and
  `Check` fail unless the version is the one named. A key that is deleted and created again starts at version 0, so its
  version does not show that. Code for which this matters also checks a counter that is never deleted.
- An ephemeral key is removed when its session ends. A session's id is never used again, and a session that ended never
  comes back.
- `UNKNOWN` means that the answer was lost: the commit may have happened or not, or may still happen. Read before
  deciding again.
- A watch tells of commits in their order. It begins with a `StoreSnapshot`. If it missed commits it gives a `Gap`, and
  after that another `StoreSnapshot`.

Implementations: `memory`, `sql`, `shared`, and `ledger` over `zookeeper` or `postgres`.
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
    """The value and the version of a key."""

    value: bytes
    version: int


@dataclass(frozen=True, slots=True)
class StoreSnapshot:
    """All keys, as of commit `number`."""

    number: int
    entries: dict[str, Entry]


@dataclass(frozen=True, slots=True)
class Change:
    """What commit `number` changed: keys in the order of its ops, with None for a key that was deleted."""

    number: int
    entries: tuple[tuple[str, Entry | None], ...]


@dataclass(frozen=True, slots=True)
class Gap:
    """Changes were missed; a `StoreSnapshot` follows."""


Event = StoreSnapshot | Change | Gap


class StoreError(Exception):
    """The store can't be used; the text is one clear line for the operator."""


class StoreFailed(StoreError):
    """A commit could not be written. It certainly did not happen."""


class StoreTooNew(StoreError):
    """The store was written by a newer version."""


class StoreSession(Protocol):
    @property
    def id(self) -> int: ...

    def lease_left(self) -> float:
        """For how many seconds this session certainly still counts as alive, with a safety margin. At 0 or below, the
        broker must not act on it.
        """
        ...

    async def commit(self, *ops: Op) -> tuple[Result, int]:
        """Do all of `ops` or nothing. If the result is OK, the number is that of this commit, otherwise that of the
        newest commit known. Raises `StoreFailed`.
        """
        ...

    async def read(self, prefix: str) -> dict[str, Entry]:
        """Every key that begins with `prefix`. This includes every commit that was answered before the call. Raises
        `SessionExpired`.
        """
        ...

    async def newest(self) -> int | None:
        """The number of the newest commit; None if the store does not answer. It includes every commit that any session
        was answered before the call, even if the server that is asked has been replaced and does not know it: it
        answers only what the others agree to. This session was not over then. Nothing is committed. Raises
        `SessionExpired`.
        """
        ...

    def watch(self) -> AsyncIterator[Event]:
        """A `StoreSnapshot`, and then every commit from now on. Ends when the session ends."""
        ...

    async def close(self) -> None:
        """End the session now. Its ephemeral keys are removed."""
        ...


class SessionExpired(Exception):
    """The session is over: everything that depended on it is void."""


class MetadataStore(Protocol):
    async def session(self, timeout_s: float) -> StoreSession: ...

    async def close(self) -> None: ...

"""What a fold over the log looks like to the log.

What always holds: a view sees every batch once and in offset order, or in a recovery those that it must see; what it
knows follows from the batches it has seen since its last `restore`. The log calls; views live in other packages
(`idempotence.producers`, `isolation.stable`) and know nothing of files.
"""

from collections.abc import Collection, Sequence
from itertools import chain
from typing import Protocol

from log.batch import BatchHeader, Buffer

Content = bytes | Sequence[Collection[bytes]]
"""What a view knows: the bytes, or collections of parts that make them up. Millions of parts are handed out at once,
and are put together later, a collection at a time, between other work.
"""


def whole(content: Content) -> bytes:
    return content if isinstance(content, bytes) else b"".join(chain.from_iterable(content))


class View(Protocol):
    """A fold over the batches of one partition."""

    @property
    def name(self) -> str:
        """Names the view's part of a snapshot; never changes."""

    @property
    def must_see_all(self) -> bool:
        """False where of the batches between two markers each producer's first and last five tell all there is: what
        is asked of a view of millions of small batches that is to be rebuilt soon.
        """

    def apply(self, header: BatchHeader, batch: Buffer) -> None:
        """The next batch. `batch` is valid during the call only."""

    def snapshot(self) -> Content:
        """All that is known, for `restore`. It stays as it is while the view goes on."""

    def restore(self, data: bytes | None) -> None:
        """Know what the snapshot says and nothing else; None: know nothing."""

    def set_start_offset(self, offset: int) -> None:
        """Everything below `offset` has left the log."""

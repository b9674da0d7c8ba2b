"""What a fold over the log looks like to the log.

What always holds: a view sees every batch once and in offset order (in a recovery only those that it must see). What it
knows follows from its last `restore` and the batches it has seen since. The views are in other packages
(`idempotence.producers`, `isolation.stable`) and know nothing of files.
"""

from collections.abc import Collection, Sequence
from itertools import chain
from typing import Protocol

from log.batch import BatchHeader, Buffer

Content = bytes | Sequence[Collection[Buffer]]
"""What a view knows, as bytes or as collections of parts of these bytes. A view hands out millions of parts at once;
they are put together later, one collection at a time, between other work.
"""


def whole(content: Content) -> bytes:
    return content if isinstance(content, bytes) else b"".join(chain.from_iterable(content))


class View(Protocol):
    """A fold over the batches of one partition."""

    @property
    def name(self) -> str:
        """The name of the view's part in a snapshot. It never changes."""

    @property
    def must_see_all(self) -> bool:
        """Whether `apply` needs every batch. False: between two markers it needs only the first and the last five
        batches of each producer, so that a view over millions of small batches can be rebuilt quickly.
        """

    def apply(self, header: BatchHeader, batch: Buffer) -> None:
        """The next batch. `batch` is valid during the call only."""

    def snapshot(self) -> Content:
        """All that the view knows, for `restore`. Later batches don't change what was returned."""

    def restore(self, data: bytes | None) -> None:
        """Replace all that the view knows by what the snapshot says; None: the view knows nothing then."""

    def set_start_offset(self, offset: int) -> None:
        """Everything below `offset` has left the log."""

"""What a fold over the log looks like to the log.

What always holds: a view sees every batch once and in offset order (in a recovery only those that it must see). What it
knows follows from the snapshot that it was last restored from, and the batches it has seen since. The views are in
other packages (`idempotence.producers`, `isolation.stable`) and know nothing of files.
"""

from collections.abc import Collection, Generator, Sequence
from itertools import chain
from typing import Protocol, Self

from log.batch import BatchHeader, Buffer

Content = Buffer | Sequence[Collection[Buffer]]
"""What a view knows, as bytes or as collections of parts of these bytes. A view hands out millions of parts at once;
they are put together later, one collection at a time, between other work.
"""


def whole(content: Content) -> bytes:
    return bytes(content) if isinstance(content, Buffer) else b"".join(chain.from_iterable(content))


def joining(content: Content) -> Generator[None, None, Buffer]:
    """`whole`, step by step. Other work may be done between two steps."""
    if isinstance(content, Buffer):
        return content
    data = bytearray()
    for parts in content:
        data += b"".join(parts)
        yield
    return data


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
        """All that the view knows, for `restoring`. Later batches don't change what was returned."""

    def restoring(self, data: Buffer | None) -> Generator[None, None, None]:
        """Replace all that the view knows by what the snapshot says, step by step; None: the view knows nothing then.
        Other work may be done between two steps, but not with this view.
        """

    def anew(self) -> Self:
        """Another view of this kind, which knows nothing. It can be restored and fed beside this one."""

    def swap(self, other: Self) -> None:
        """This view knows what the other one has known, and the other way round. This takes no time."""

    def set_start_offset(self, offset: int) -> None:
        """Everything below `offset` has left the log."""

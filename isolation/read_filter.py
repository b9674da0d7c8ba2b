"""The reader's half of isolation: from stored batches and the aborted list to the batches an application may see.

A Kafka client does this by itself; the HTTP API, the command line and the tests read through here. What always holds:
markers are never shown; a batch is dropped if its producer's aborted transaction reaches over it, and is shown
otherwise, in the order of the log.
"""

from collections.abc import Iterable, Iterator

from log.batch import BatchHeader, Buffer, split
from log.control import ControlType, read_marker


def visible_batches(
    batches: Buffer, aborted: Iterable[tuple[int, int]] | None
) -> Iterator[tuple[BatchHeader, memoryview]]:
    """The data batches to show. `aborted` is the list that came with them; None: a reader of uncommitted data, who
    sees all data.
    """
    waiting = sorted((first_offset, producer_id) for producer_id, first_offset in aborted or ())
    waiting.reverse()  # the next to begin stands last
    aborting: dict[int, None] = {}
    for header, batch in split(batches):
        while waiting and waiting[-1][0] <= header.last_offset:
            aborting[waiting.pop()[1]] = None
        if header.is_control:
            if header.producer_id in aborting and read_marker(batch).type is ControlType.ABORT:
                del aborting[header.producer_id]
        elif not (header.is_transactional and header.producer_id in aborting):
            yield header, batch

"""Batches for tests of the folds: small, real bytes, placed where the test says."""

from log.batch import BatchHeader, build_batch, read_header
from log.control import ControlType, build_marker

Batch = tuple[BatchHeader, bytes]


def data(
    producer_id: int = 1,
    *,
    epoch: int = 0,
    sequence: int = 0,
    count: int = 1,
    offset: int = 0,
    transactional: bool = False,
    timestamp_ms: int = 1_000,
) -> Batch:
    """A batch of `count` records."""
    batch = build_batch(
        [(b"k", b"v", (), timestamp_ms)] * count,
        base_offset=offset,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=transactional,
    )
    return read_header(batch), batch


def marker(
    producer_id: int = 1,
    *,
    commit: bool,
    epoch: int = 0,
    offset: int = 0,
    coordinator_epoch: int = 0,
    timestamp_ms: int = 1_000,
) -> Batch:
    """The end of a transaction."""
    batch = build_marker(
        ControlType.COMMIT if commit else ControlType.ABORT,
        producer_id=producer_id,
        producer_epoch=epoch,
        coordinator_epoch=coordinator_epoch,
        timestamp_ms=timestamp_ms,
        base_offset=offset,
    )
    return read_header(batch), batch

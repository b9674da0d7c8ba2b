"""Control batches: the markers that end a transaction in a partition.

What always holds: a marker is a batch of one record, with the transactional and the control bit set. It carries the
producer id and epoch of the transaction that it ends, and no sequence. Key: version i16, type i16. Value: version i16,
coordinator epoch i32. A control record of another kind is read as `type=None`: it has an offset and no meaning here.
"""

import struct
from enum import Enum
from typing import Final, NamedTuple

from log.batch import (
    CONTROL,
    HEADER_BYTES,
    MAGIC,
    TRANSACTIONAL,
    BatchHeader,
    Buffer,
    CorruptBatch,
    assemble,
    read_header,
    read_records,
)
from log.ids import NO_EPOCH, NO_SEQUENCE

MARKER_VERSION: Final = 0
_KEY: Final = struct.Struct(">hh")
_VALUE: Final = struct.Struct(">hi")
# A marker exactly as Kafka and oncelog write it. It is written and read in one step, because there are many: one for
# each transaction and each partition that it wrote to.
_USUAL: Final = struct.Struct(">IBhhBhiB")
_USUAL_BYTES: Final = HEADER_BYTES + _USUAL.size
_USUAL_BEGINNING: Final = (0x20_00_00_00, 0x08)
"""The record's size, attributes, two deltas; the size of its key."""
_USUAL_VALUE_SIZE: Final = 0x0C


class ControlType(Enum):
    """How a transaction ended."""

    ABORT = 0
    COMMIT = 1


_KINDS: Final = {kind.value: kind for kind in ControlType}


class Marker(NamedTuple):
    """What a control batch says; `type` is None for kinds that are not ours."""

    type: ControlType | None
    coordinator_epoch: int


def build_marker(
    type: ControlType,
    *,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
    timestamp_ms: int,
    base_offset: int = 0,
    leader_epoch: int = NO_EPOCH,
) -> bytes:
    """The batch that ends the producer's transaction in one partition."""
    record = _USUAL.pack(
        *_USUAL_BEGINNING, MARKER_VERSION, type.value, _USUAL_VALUE_SIZE, MARKER_VERSION, coordinator_epoch, 0
    )
    header = BatchHeader(
        *(base_offset, 0, leader_epoch, MAGIC, 0, TRANSACTIONAL | CONTROL, 0),
        *(timestamp_ms, timestamp_ms, producer_id, producer_epoch, NO_SEQUENCE, 1),
    )
    return bytes(assemble(header, record))


def read_marker(batch: Buffer, header: BatchHeader | None = None) -> Marker:
    """What the control batch says; `CorruptBatch` when it is not one. Its `header` need not be read if it is known."""
    if header is None:
        header = read_header(batch)
    if not header.is_control:
        raise CorruptBatch("not a control batch")
    if len(batch) == _USUAL_BYTES and (usual := _USUAL.unpack_from(batch, HEADER_BYTES))[:2] == _USUAL_BEGINNING:
        _, _, version, kind, value_size, _, coordinator_epoch, _ = usual
        if version == MARKER_VERSION and kind in _KINDS and value_size == _USUAL_VALUE_SIZE:
            return Marker(_KINDS[kind], coordinator_epoch)
    record = next(read_records(batch, header), None)
    if record is None:
        return Marker(None, NO_EPOCH)  # a cleaner took the record and kept the batch for its producer
    key, value = record.key or b"", record.value or b""
    if len(key) < _KEY.size:
        raise CorruptBatch("the key of a control record is too short")
    version, kind = _KEY.unpack_from(key)
    if version < 0:
        raise CorruptBatch(f"version {version} of a control record")
    if kind not in (ControlType.ABORT.value, ControlType.COMMIT.value):
        return Marker(None, NO_EPOCH)
    if len(value) < _VALUE.size:
        raise CorruptBatch("the value of a marker is too short")
    _, coordinator_epoch = _VALUE.unpack_from(value)
    return Marker(ControlType(kind), coordinator_epoch)

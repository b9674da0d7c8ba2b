"""What a leader checks of a client's batch before it may enter the log, and what it changes in it on request of
the topic.

Nothing here touches the log. A batch is judged by its header and checksum alone; its records are opened only where
the topic asks for it: keys on a compacted topic, another compression.

Called by `Partition.append_from_client` for every produced batch, so the usual way through is a dozen comparisons.
"""

from dataclasses import dataclass

from log.batch import (
    CHECKED_FROM,
    CRC_AT,
    HEADER_BYTES,
    LENGTH_AT,
    MAGIC,
    MAGIC_AT,
    PREFIX_BYTES,
    BatchHeader,
    CorruptBatch,
    build_batch,
    crc32c,
    read_header,
    read_records,
)
from log.config import LogConfig
from service.wire.error_codes import ErrorCode

CODECS = {"uncompressed": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}


@dataclass(frozen=True, slots=True)
class Refused:
    """Why a batch did not enter the log; `culprits` are the records to blame, by index, where single ones are."""

    error: ErrorCode
    message: str | None = None
    culprits: tuple[int, ...] = ()


def one_batch(records: memoryview) -> memoryview | Refused:
    """The one batch that a Produce request carries for a partition, by its length alone; a torn rest is left out."""
    if len(records) < HEADER_BYTES:
        return Refused(ErrorCode.INVALID_RECORD, "There is no whole record batch.")
    size_bytes = _size_bytes(records, 0)
    if size_bytes < HEADER_BYTES:
        return Refused(ErrorCode.CORRUPT_MESSAGE, f"A batch of {size_bytes} bytes can't be.")
    if size_bytes > len(records):
        return Refused(ErrorCode.INVALID_RECORD, "There is no whole record batch.")
    magic = records[MAGIC_AT]
    if magic != MAGIC:
        error = ErrorCode.INVALID_RECORD if magic < MAGIC else ErrorCode.CORRUPT_MESSAGE
        return Refused(error, f"Record batches are of magic 2, not {magic}.")
    left = len(records) - size_bytes
    if left >= PREFIX_BYTES and PREFIX_BYTES < _size_bytes(records, size_bytes) <= left:
        return Refused(ErrorCode.INVALID_RECORD, "A produce request carries one record batch for each partition.")
    return records[:size_bytes]


def _size_bytes(records: memoryview, at: int) -> int:
    return int.from_bytes(records[at + LENGTH_AT : at + PREFIX_BYTES], "big", signed=True) + PREFIX_BYTES


def inspect_batch(batch: memoryview, config: LogConfig, now_ms: int) -> BatchHeader | Refused:
    """The header of a whole batch, or why it may not be appended."""
    if len(batch) > config.max_message_bytes:
        return _too_large(len(batch), config)
    if crc32c(batch[CHECKED_FROM:]) != int.from_bytes(batch[CRC_AT:CHECKED_FROM], "big"):
        return Refused(ErrorCode.CORRUPT_MESSAGE, "The checksum does not fit the batch.")
    try:
        header = read_header(batch)
    except CorruptBatch as error:
        return Refused(ErrorCode.INVALID_RECORD, str(error))
    if header.record_count <= 0 or header.last_offset_delta + 1 != header.record_count or header.base_offset != 0:
        return Refused(
            ErrorCode.INVALID_RECORD,
            f"The batch counts {header.record_count} records and {header.last_offset_delta + 1} offsets"
            f" from {header.base_offset} on.",
        )
    if header.is_control:
        return Refused(ErrorCode.INVALID_RECORD, "Clients are not allowed to write control records.")
    if header.codec > CODECS["zstd"]:
        return Refused(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"Compression {header.codec} is unknown.")
    if header.producer_id >= 0 and header.base_sequence < 0:
        return Refused(
            ErrorCode.INVALID_RECORD,
            f"Invalid sequence number {header.base_sequence} in record batch with producer id {header.producer_id}.",
        )
    if config.message_timestamp_type == "CreateTime":
        return _check_timestamps(batch, header, config, now_ms) or header
    return header


def _check_timestamps(batch: memoryview, header: BatchHeader, config: LogConfig, now_ms: int) -> Refused | None:
    oldest_ms = now_ms - config.message_timestamp_before_max_ms
    newest_ms = now_ms + config.message_timestamp_after_max_ms
    if header.max_timestamp <= newest_ms and oldest_ms < 0:
        return None  # the header tells of the newest record; of the oldest, which need not be the first, it does not
    try:
        times = [record.timestamp for record in read_records(batch, header)]
    except CorruptBatch as error:
        return Refused(ErrorCode.CORRUPT_MESSAGE, str(error))
    culprits = tuple(index for index, time in enumerate(times) if time >= 0 and not oldest_ms <= time <= newest_ms)
    if not culprits and header.max_timestamp <= newest_ms:
        return None
    message = f"The timestamp is out of the range that the topic takes: [{oldest_ms}, {newest_ms}]."
    return Refused(ErrorCode.INVALID_TIMESTAMP, message, culprits or (0,))


def missing_key(records: memoryview, header: BatchHeader) -> Refused | None:
    """A compacted topic can't keep a record that has no key."""
    try:
        culprits = tuple(index for index, record in enumerate(read_records(records, header)) if record.key is None)
    except CorruptBatch as error:
        return Refused(ErrorCode.CORRUPT_MESSAGE, str(error))
    if not culprits:
        return None
    return Refused(ErrorCode.INVALID_RECORD, "Compacted topic cannot accept message without key.", culprits)


def wanted_codec(header: BatchHeader, config: LogConfig) -> int:
    """The codec the topic wants this batch stored in: the producer's own unless configured otherwise."""
    if config.compression_type == "producer":
        return header.codec
    return CODECS[config.compression_type]


def recompressed(records: memoryview, header: BatchHeader, codec: int, config: LogConfig) -> bytearray | Refused:
    """The same records under another codec, packed as hard as the topic asks."""
    levels = {
        CODECS["gzip"]: config.compression_gzip_level,
        CODECS["lz4"]: config.compression_lz4_level,
        CODECS["zstd"]: config.compression_zstd_level,
    }
    try:
        opened = list(read_records(records, header))
    except CorruptBatch as error:
        return Refused(ErrorCode.CORRUPT_MESSAGE, str(error))
    batch = bytearray(
        build_batch(
            opened,
            base_offset=header.base_offset,
            codec=codec,
            level=levels.get(codec),
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            base_sequence=header.base_sequence,
            transactional=header.is_transactional,
        )
    )
    return batch if len(batch) <= config.max_message_bytes else _too_large(len(batch), config)


def _too_large(size_bytes: int, config: LogConfig) -> Refused:
    return Refused(
        ErrorCode.MESSAGE_TOO_LARGE,
        f"The record batch size is {size_bytes} bytes, more than the maximum of {config.max_message_bytes}.",
    )

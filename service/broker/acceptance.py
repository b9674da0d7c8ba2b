"""The checks that a leader makes on a client's batch before the batch may enter the log, and the changes that the topic
asks for.

Nothing here touches the log. Most batches are judged by their header and checksum alone. The records are only looked at
where the topic asks for it (keys on a compacted topic, a limit to the age of records, another compression), and where
the header may be wrong about the time of the newest record. A batch may hold a million records, so that work is done
in steps. `BatchInspection` has the steps; `service.broker.inspector` decides when each step runs.

This runs for every produced batch, so the common path is a dozen comparisons.
"""

import struct
from dataclasses import dataclass
from itertools import islice
from typing import Final

from log.batch import (
    CHECKED_FROM,
    CODEC_BITS,
    CONTROL,
    CRC_AT,
    DELETE_HORIZON,
    HEADER_BYTES,
    LENGTH_AT,
    LOG_APPEND_TIME,
    MAGIC,
    MAGIC_AT,
    PREFIX_BYTES,
    RECORD_BYTES_MIN,
    TRANSACTIONAL,
    BatchHeader,
    Buffer,
    CorruptBatch,
    assemble,
    crc32c,
    read_header,
    skim_records,
    with_checksum,
)
from log.compress import MAX_PLAIN_BYTES, BadCompression, Codec, UnpacksTooLarge, compress, decompress
from log.config import UNLIMITED, LogConfig
from log.ids import NO_TIMESTAMP
from log.laying import is_large
from service.wire.error_codes import ErrorCode

PLAIN_BYTES_A_BYTE = 1 << 15
"""The most bytes that one compressed byte can unpack to. The extreme is zstd, which can store a block of 128 KiB in
four bytes. A header that counts more records than that lies. If it were accepted, the batch would use up offsets for
records that do not exist.
"""
BROKERS_BITS = DELETE_HORIZON | LOG_APPEND_TIME
"""Attributes that only a broker may set. Kafka accepts a batch in which the client has set them, and so do we, but the
bits are cleared. A client could otherwise name a delete horizon, and its tombstones would go before every reader has
seen them.
"""
RECORDS_AT_ONCE = 1_000
BYTES_AT_ONCE = 64 << 10
"""The most records, and the most uncompressed bytes, that are looked at in one turn of the loop. That takes 0.8 ms."""
SLOW_LEVELS = 32
"""How many times as much a byte counts that is to be packed at another level than the codec's own. 64 KB took 0.6 ms at
the codecs' own levels, and up to 46 ms at others (zstd 22).
"""
CULPRITS_MAX = 1_000
"""The most records that are named one by one in a refusal. Kafka names all of them, which can make an answer a hundred
times as large as the request.
"""
ZSTD = 4
CODECS = {"uncompressed": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": ZSTD}

_read_length = struct.Struct(">i").unpack_from


@dataclass(frozen=True, slots=True)
class RefusedBatch:
    """Why a batch did not enter the log. `culprits` are the indexes of the records to blame, where single records are
    to blame. If the log does not end where the batch expects, `end_offset` is where it does.
    """

    error: ErrorCode
    message: str | None = None
    culprits: tuple[int, ...] = ()
    end_offset: int = -1


WRONG_CHECKSUM = RefusedBatch(ErrorCode.CORRUPT_MESSAGE, "The checksum does not fit the batch.")


def one_batch(records: memoryview) -> memoryview | RefusedBatch:
    """The one batch that a Produce request carries for a partition. Only its length is read; bytes of a further,
    incomplete batch are left out.
    """
    came_bytes = len(records)
    if came_bytes < HEADER_BYTES:
        return RefusedBatch(ErrorCode.INVALID_RECORD, "There is no whole record batch.")
    size_bytes = _size_bytes(records, 0)
    if size_bytes < HEADER_BYTES:
        return RefusedBatch(ErrorCode.CORRUPT_MESSAGE, f"A batch of {size_bytes} bytes can't be.")
    if size_bytes > came_bytes:
        return RefusedBatch(ErrorCode.INVALID_RECORD, "There is no whole record batch.")
    magic = records[MAGIC_AT]
    if magic != MAGIC:
        error = ErrorCode.INVALID_RECORD if magic < MAGIC else ErrorCode.CORRUPT_MESSAGE
        return RefusedBatch(error, f"Record batches are of magic 2, not {magic}.")
    left = came_bytes - size_bytes
    if not left:
        return records
    if left >= PREFIX_BYTES and PREFIX_BYTES < _size_bytes(records, size_bytes) <= left:
        return RefusedBatch(ErrorCode.INVALID_RECORD, "A produce request carries one record batch for each partition.")
    return records[:size_bytes]


def _size_bytes(records: memoryview, at: int) -> int:
    (length,) = _read_length(records, at + LENGTH_AT)
    return int(length) + PREFIX_BYTES


def inspect_batch(
    batch: memoryview, config: LogConfig, now_ms: int, checksum: int | None = None
) -> BatchHeader | RefusedBatch:
    """The header of a whole batch, or why it may not be appended. `checksum`: it was reckoned before."""
    size_bytes = len(batch)
    if size_bytes > config.max_message_bytes:
        return _too_large(size_bytes, config)
    try:
        header = read_header(batch)
    except CorruptBatch as error:
        if (crc32c(batch[CHECKED_FROM:]) if checksum is None else checksum) != int.from_bytes(
            batch[CRC_AT:CHECKED_FROM], "big"
        ):
            return WRONG_CHECKSUM
        return RefusedBatch(ErrorCode.INVALID_RECORD, str(error))
    # Unpacking the header once is faster than a look-up by name for each check.
    base_offset, _, _, _, crc, attributes, last_delta, _, _, producer_id, _, base_sequence, count = header
    if (crc32c(batch[CHECKED_FROM:]) if checksum is None else checksum) != crc:
        return WRONG_CHECKSUM
    if count <= 0 or last_delta + 1 != count or base_offset != 0:
        return RefusedBatch(
            ErrorCode.INVALID_RECORD,
            f"The batch counts {count} records and {last_delta + 1} offsets from {base_offset} on.",
        )
    payload_bytes = size_bytes - HEADER_BYTES
    codec = attributes & CODEC_BITS
    plain_bytes = min(payload_bytes * PLAIN_BYTES_A_BYTE, MAX_PLAIN_BYTES) if codec else payload_bytes
    if count * RECORD_BYTES_MIN > plain_bytes:
        return RefusedBatch(ErrorCode.INVALID_RECORD, f"The batch can't hold the {count} records it counts.")
    if attributes & CONTROL:
        return RefusedBatch(ErrorCode.INVALID_RECORD, "Clients are not allowed to write control records.")
    if codec > ZSTD:
        return RefusedBatch(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"Compression {codec} is unknown.")
    if producer_id < 0:
        if attributes & TRANSACTIONAL:  # no marker could ever end its transaction
            return RefusedBatch(ErrorCode.INVALID_RECORD, "A transactional batch must have a producer id.")
    elif base_sequence < 0:
        return RefusedBatch(
            ErrorCode.INVALID_RECORD,
            f"Invalid sequence number {base_sequence} in record batch with producer id {producer_id}.",
        )
    return header


# ---------------------------------------------------------------- what is inside


@dataclass(slots=True)
class Inspected:
    """The result of a look into a batch. It is valid as long as the topic has these settings."""

    config: LogConfig
    refused: RefusedBatch | None = None
    records: bytearray | None = None
    """The batch in the compression that the topic wants; None if the batch came in that compression."""
    newest_ms: int | None = None
    """The time of the newest record, if the header says another one."""


class BatchInspection:
    """A batch whose records must be looked at: it is unpacked, judged in steps, and packed again if the topic wants
    another compression.
    """

    def __init__(self, header: BatchHeader, config: LogConfig, now_ms: int) -> None:
        self.header = header
        self.result = Inspected(config)
        # A timestamp beyond what the field can hold is never in time, whatever the topic accepts.
        self._oldest_ms = max(now_ms - config.message_timestamp_before_max_ms, -UNLIMITED)
        self._newest_ms = min(now_ms + config.message_timestamp_after_max_ms, UNLIMITED)
        self._payload: bytes | memoryview = b""
        self._at = self._index = 0
        self._latest_ms = NO_TIMESTAMP
        self._keyless: list[int] = []
        self._untimely: list[int] = []

    def unpack(self, batch: Buffer, limit_bytes: int = MAX_PLAIN_BYTES) -> None:
        """Unpack the records. This is compiled code that releases the interpreter lock. Raises `BadCompression`, as
        `decompress` does.
        """
        payload: bytes | memoryview = memoryview(batch)[HEADER_BYTES : self.header.size_bytes]
        if not is_large(len(payload)):  # a step looks at it faster then; to copy 90 MB would hold the interpreter
            payload = bytes(payload)
        codec = self.header.codec
        self._payload = decompress(codec, payload, limit_bytes=limit_bytes) if codec else payload

    @property
    def plain_bytes(self) -> int:
        return len(self._payload)

    def refuse_unpacking(self, error: BadCompression) -> None:
        """Choose the error. A client that is told "too large" splits the batch and sends the parts. That would not help
        with a batch that can't be unpacked, so such a batch gets an error that stops the client.
        """
        if isinstance(error, UnpacksTooLarge):
            message = f"The batch holds more than {MAX_PLAIN_BYTES} bytes once it is unpacked."
            self.result.refused = RefusedBatch(ErrorCode.MESSAGE_TOO_LARGE, message)
        else:
            self.result.refused = RefusedBatch(ErrorCode.INVALID_RECORD, str(error))

    def judge(self, records: int) -> bool:
        """Look at the next `records` records. Returns True when the batch is judged: all records were seen, or it is
        refused.
        """
        count = self.header.record_count
        try:
            if not count:
                raise CorruptBatch("the batch has no records")
            if count * RECORD_BYTES_MIN > len(self._payload):
                raise CorruptBatch(f"{count} records can't be in {len(self._payload)} bytes")
            indexes = range(self._index, min(self._index + records, count))
            self._at, keyless, deltas = skim_records(self._payload, self._at, indexes)
            self._index = indexes.stop
            if self._index == count and self._at != len(self._payload):
                raise CorruptBatch(f"{len(self._payload) - self._at} bytes after the last record")
        except CorruptBatch as error:
            self.result.refused = RefusedBatch(ErrorCode.INVALID_RECORD, str(error))
            return True
        self._note(indexes.start, keyless, deltas)
        if self._index < count:
            return False
        self.result.refused = self._verdict()
        return True

    def _note(self, first_index: int, keyless: list[int], deltas: list[int]) -> None:
        base_ms = self.header.base_timestamp
        self._keyless += keyless[: CULPRITS_MAX - len(self._keyless)]
        self._latest_ms = max(self._latest_ms, base_ms + max(deltas))
        if base_ms + min(deltas) < self._oldest_ms or self._latest_ms > self._newest_ms:
            untimely = (
                first_index + index
                for index, delta in enumerate(deltas)
                if base_ms + delta != NO_TIMESTAMP and not self._oldest_ms <= base_ms + delta <= self._newest_ms
            )
            self._untimely += islice(untimely, CULPRITS_MAX - len(self._untimely))

    def _verdict(self) -> RefusedBatch | None:
        config = self.result.config
        if config.compacts and self._keyless:
            message = "Compacted topic cannot accept message without key."
            return RefusedBatch(ErrorCode.INVALID_RECORD, message, tuple(self._keyless))
        if config.message_timestamp_type != "CreateTime":
            return None
        if self._untimely or self.header.max_timestamp > self._newest_ms:
            message = f"The timestamp is out of the range that the topic takes: [{self._oldest_ms}, {self._newest_ms}]."
            return RefusedBatch(ErrorCode.INVALID_TIMESTAMP, message, tuple(self._untimely) or (0,))
        if self.header.max_timestamp != self._latest_ms:
            self.result.newest_ms = self._latest_ms
        return None

    @property
    def is_to_be_packed(self) -> bool:
        return self.result.refused is None and wanted_codec(self.header, self.result.config) != self.header.codec

    @property
    def may_pack_slowly(self) -> bool:
        """Whether the topic asks for another compression than the batch has, at another level than the codec's own."""
        codec = wanted_codec(self.header, self.result.config)
        return codec != self.header.codec and _level(codec, self.result.config) != _level(codec, _OWN_LEVELS)

    def pack(self) -> None:
        """Pack the same records with the codec and level of the topic. Compiled code that releases the interpreter
        lock.
        """
        config, header = self.result.config, self.header
        codec = wanted_codec(header, config)
        packed = compress(codec, self._payload, _level(codec, config))
        size_bytes = HEADER_BYTES + len(packed)
        if size_bytes > config.max_message_bytes:
            self.result.refused = _too_large(size_bytes, config)
            return
        attributes = header.attributes & ~CODEC_BITS | codec
        latest_ms = self._latest_ms if config.message_timestamp_type == "CreateTime" else header.max_timestamp
        self.result.records = assemble(header._replace(attributes=attributes, max_timestamp=latest_ms), packed)


def must_inspect(header: BatchHeader, config: LogConfig, now_ms: int) -> bool:
    """Whether the records must be looked at. If not, the header alone tells whether the batch may be appended. A look
    at the records may still be due before that (`LogConfig.may_hide_newest`).
    """
    if config.opens_batches and (config.compacts or wanted_codec(header, config) != header.codec):
        return True
    if config.message_timestamp_type != "CreateTime":
        return False
    newest_ms = header.max_timestamp
    if newest_ms < header.base_timestamp:
        return True
    # The header has the timestamp of the newest record. It does not have the timestamp of the oldest record, which need
    # not be the first.
    return (
        newest_ms > now_ms + config.message_timestamp_after_max_ms or config.message_timestamp_before_max_ms <= now_ms
    )


def inspect_at_once(batch: Buffer, header: BatchHeader, config: LogConfig, now_ms: int) -> Inspected:
    """Look at the whole batch at once."""
    inspection = BatchInspection(header, config, now_ms)
    limit_bytes = MAX_PLAIN_BYTES
    opens = config.opens_batches or header.max_timestamp < header.base_timestamp
    if not opens:
        # This batch is only looked at because its header has a timestamp out of range, and it will be refused. It was
        # not split into steps, so the look is limited to what fits one turn.
        limit_bytes = BYTES_AT_ONCE
        inspection.result.refused = RefusedBatch(
            ErrorCode.INVALID_TIMESTAMP, "The batch has a timestamp that is out of range."
        )
        if header.record_count > RECORDS_AT_ONCE:
            return inspection.result
    try:
        inspection.unpack(batch, limit_bytes)
    except BadCompression as error:
        if opens:
            inspection.refuse_unpacking(error)
        return inspection.result
    inspection.judge(header.record_count)
    if inspection.is_to_be_packed:
        inspection.pack()
    return inspection.result


def wanted_codec(header: BatchHeader, config: LogConfig) -> int:
    """The codec the topic wants this batch stored in: the producer's own unless configured otherwise."""
    if config.compression_type == "producer":
        return header.codec
    return CODECS[config.compression_type]


_OWN_LEVELS: Final = LogConfig()


def _level(codec: int, config: LogConfig) -> int | None:
    match codec:
        case Codec.GZIP:
            return config.compression_gzip_level
        case Codec.LZ4:
            return config.compression_lz4_level
        case Codec.ZSTD:
            return config.compression_zstd_level
    return None


def stored_bytes(batch: memoryview, inspected: Inspected | None) -> int:
    """The size with which the batch is stored."""
    return len(batch if inspected is None or inspected.records is None else inspected.records)


def as_stored(
    header: BatchHeader, inspected: Inspected | None, config: LogConfig, now_ms: int
) -> tuple[BatchHeader, int]:
    """The header with which the batch is stored, and the time of the append, if the topic's records have that."""
    max_timestamp, append_time_ms = header.max_timestamp, -1
    if inspected is not None and inspected.records is not None:
        header = read_header(inspected.records)
        max_timestamp = header.max_timestamp
    elif inspected is not None and inspected.newest_ms is not None:
        max_timestamp = inspected.newest_ms
    attributes = header.attributes & ~BROKERS_BITS
    if config.message_timestamp_type == "LogAppendTime":
        attributes |= LOG_APPEND_TIME
        max_timestamp = append_time_ms = now_ms
    stored = header._replace(attributes=attributes, max_timestamp=max_timestamp)
    return stored if stored == header else with_checksum(stored, header), append_time_ms


def _too_large(size_bytes: int, config: LogConfig) -> RefusedBatch:
    return RefusedBatch(
        ErrorCode.MESSAGE_TOO_LARGE,
        f"The record batch size is {size_bytes} bytes, more than the maximum of {config.max_message_bytes}.",
    )

"""What a leader checks of a client's batch before it may enter the log, and what it changes in it on request of
the topic.

Nothing here touches the log. A batch is judged by its header and checksum alone; its records are looked into only where
the topic asks for it (keys on a compacted topic, a limit to how old a record may be, another compression), and then in
steps, since there may be a million of them: `Opening` has the steps, `service.broker.opener` their turns.

Called for every produced batch, so the usual way through is a dozen comparisons.
"""

from dataclasses import dataclass
from itertools import islice

from log.batch import (
    CHECKED_FROM,
    CODEC_BITS,
    CRC_AT,
    DELETE_HORIZON,
    HEADER_BYTES,
    LENGTH_AT,
    LOG_APPEND_TIME,
    MAGIC,
    MAGIC_AT,
    PREFIX_BYTES,
    RECORD_BYTES_MIN,
    BatchHeader,
    Buffer,
    CorruptBatch,
    assemble,
    crc32c,
    read_header,
    skim_records,
)
from log.compress import MAX_PLAIN_BYTES, BadCompression, UnpacksTooLarge, compress, decompress
from log.config import UNLIMITED, LogConfig
from log.ids import NO_TIMESTAMP
from service.wire.error_codes import ErrorCode

PLAIN_BYTES_A_BYTE = 1 << 15
"""No codec unpacks a byte to more: zstd says a block of 128 KiB in four. A batch that counts more records lies, and
would take the offsets of those it does not have."""
BROKERS_BITS = DELETE_HORIZON | LOG_APPEND_TIME
"""Attributes that are a broker's to set. Kafka takes the batch all the same, and so do we, but not these bits: a client
that names a delete horizon would have its tombstones go before every reader has seen them."""
RECORDS_AT_ONCE = 1_000
BYTES_AT_ONCE = 64 << 10
"""A turn of the loop looks into so much, plain, and no more: 0.8 ms."""
CULPRITS_MAX = 1_000
"""So many records are blamed one by one. Kafka names all of them, and an answer can be a hundred times the request."""
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
    payload_bytes = len(batch) - HEADER_BYTES
    plain_bytes = min(payload_bytes * PLAIN_BYTES_A_BYTE, MAX_PLAIN_BYTES) if header.codec else payload_bytes
    if header.record_count * RECORD_BYTES_MIN > plain_bytes:
        return Refused(ErrorCode.INVALID_RECORD, f"The batch can't hold the {header.record_count} records it counts.")
    if header.is_control:
        return Refused(ErrorCode.INVALID_RECORD, "Clients are not allowed to write control records.")
    if header.codec > CODECS["zstd"]:
        return Refused(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"Compression {header.codec} is unknown.")
    if header.producer_id >= 0 and header.base_sequence < 0:
        return Refused(
            ErrorCode.INVALID_RECORD,
            f"Invalid sequence number {header.base_sequence} in record batch with producer id {header.producer_id}.",
        )
    return header


# ---------------------------------------------------------------- what is inside


@dataclass(slots=True)
class Opened:
    """What a look into a batch has come to. It holds while the settings are these."""

    config: LogConfig
    refused: Refused | None = None
    records: bytearray | None = None
    """The batch as the topic wants it compressed, if that is another way than it came."""


class Opening:
    """A batch that must be looked into: unpacked, judged in steps, packed again if the topic wants it otherwise."""

    def __init__(self, header: BatchHeader, config: LogConfig, now_ms: int) -> None:
        self.header = header
        self.opened = Opened(config)
        # What doesn't fit its field is never in time, whatever the topic takes.
        self._oldest_ms = max(now_ms - config.message_timestamp_before_max_ms, -UNLIMITED)
        self._newest_ms = min(now_ms + config.message_timestamp_after_max_ms, UNLIMITED)
        self._payload = b""
        self._at = self._index = 0
        self._latest_ms = NO_TIMESTAMP
        self._keyless: list[int] = []
        self._untimely: list[int] = []

    def unpack(self, batch: Buffer, limit_bytes: int = MAX_PLAIN_BYTES) -> None:
        """Compiled code that leaves the interpreter to others. `BadCompression` as `decompress` says."""
        payload = bytes(batch[HEADER_BYTES : self.header.size_bytes])
        self._payload = decompress(self.header.codec, payload, limit_bytes=limit_bytes)

    @property
    def plain_bytes(self) -> int:
        return len(self._payload)

    def refuse_unpacking(self, error: BadCompression) -> None:
        """Clients split a batch that is too large. What can't be unpacked came so: sent again it would be no better."""
        if isinstance(error, UnpacksTooLarge):
            message = f"The batch holds more than {MAX_PLAIN_BYTES} bytes once it is unpacked."
            self.opened.refused = Refused(ErrorCode.MESSAGE_TOO_LARGE, message)
        else:
            self.opened.refused = Refused(ErrorCode.INVALID_RECORD, str(error))

    def judge(self, records: int) -> bool:
        """Look at so many more records. Whether that was all."""
        count = self.header.record_count
        try:
            if count * RECORD_BYTES_MIN > len(self._payload):
                raise CorruptBatch(f"{count} records can't be in {len(self._payload)} bytes")
            indexes = range(self._index, min(self._index + records, count))
            self._at, keyless, deltas = skim_records(self._payload, self._at, indexes)
            self._index = indexes.stop
            if self._index == count and self._at != len(self._payload):
                raise CorruptBatch(f"{len(self._payload) - self._at} bytes after the last record")
        except CorruptBatch as error:
            self.opened.refused = Refused(ErrorCode.INVALID_RECORD, str(error))
            return True
        self._note(indexes.start, keyless, deltas)
        if self._index < count:
            return False
        self.opened.refused = self._verdict()
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

    def _verdict(self) -> Refused | None:
        config = self.opened.config
        if config.compacts and self._keyless:
            message = "Compacted topic cannot accept message without key."
            return Refused(ErrorCode.INVALID_RECORD, message, tuple(self._keyless))
        if config.message_timestamp_type != "CreateTime":
            return None
        if self._untimely or self.header.max_timestamp > self._newest_ms:
            message = f"The timestamp is out of the range that the topic takes: [{self._oldest_ms}, {self._newest_ms}]."
            return Refused(ErrorCode.INVALID_TIMESTAMP, message, tuple(self._untimely) or (0,))
        return None

    @property
    def is_to_be_packed(self) -> bool:
        return self.opened.refused is None and wanted_codec(self.header, self.opened.config) != self.header.codec

    def pack(self) -> None:
        """The same records under the codec of the topic, packed as hard as it asks. Compiled code, as `unpack` is."""
        config, header = self.opened.config, self.header
        codec = wanted_codec(header, config)
        levels = {
            CODECS["gzip"]: config.compression_gzip_level,
            CODECS["lz4"]: config.compression_lz4_level,
            CODECS["zstd"]: config.compression_zstd_level,
        }
        packed = compress(codec, self._payload, levels.get(codec))
        size_bytes = HEADER_BYTES + len(packed)
        if size_bytes > config.max_message_bytes:
            self.opened.refused = _too_large(size_bytes, config)
            return
        attributes = header.attributes & ~CODEC_BITS | codec
        latest_ms = self._latest_ms if config.message_timestamp_type == "CreateTime" else header.max_timestamp
        self.opened.records = assemble(header._replace(attributes=attributes, max_timestamp=latest_ms), packed)


def must_open(header: BatchHeader, config: LogConfig, now_ms: int) -> bool:
    """Whether the header alone does not tell if the batch may be appended as it is."""
    if config.opens_batches and (config.compacts or wanted_codec(header, config) != header.codec):
        return True
    if config.message_timestamp_type != "CreateTime":
        return False
    # The header tells of the newest record; of the oldest, which need not be the first, it does not.
    latest_ms = max(header.max_timestamp, header.base_timestamp)
    return (
        latest_ms > now_ms + config.message_timestamp_after_max_ms or config.message_timestamp_before_max_ms <= now_ms
    )


def open_at_once(batch: Buffer, header: BatchHeader, config: LogConfig, now_ms: int) -> Opened:
    """What is inside, all in one go."""
    opening = Opening(header, config, now_ms)
    limit_bytes = MAX_PLAIN_BYTES
    if not config.opens_batches:
        # Only the times in its header brought it here, to be refused: nobody has cut it into steps, and need not.
        limit_bytes = BYTES_AT_ONCE
        opening.opened.refused = Refused(ErrorCode.INVALID_TIMESTAMP, "The batch has a timestamp that is out of range.")
        if header.record_count > RECORDS_AT_ONCE:
            return opening.opened
    try:
        opening.unpack(batch, limit_bytes)
    except BadCompression as error:
        if config.opens_batches:
            opening.refuse_unpacking(error)
        return opening.opened
    opening.judge(header.record_count)
    if opening.is_to_be_packed:
        opening.pack()
    return opening.opened


def wanted_codec(header: BatchHeader, config: LogConfig) -> int:
    """The codec the topic wants this batch stored in: the producer's own unless configured otherwise."""
    if config.compression_type == "producer":
        return header.codec
    return CODECS[config.compression_type]


def _too_large(size_bytes: int, config: LogConfig) -> Refused:
    return Refused(
        ErrorCode.MESSAGE_TOO_LARGE,
        f"The record batch size is {size_bytes} bytes, more than the maximum of {config.max_message_bytes}.",
    )

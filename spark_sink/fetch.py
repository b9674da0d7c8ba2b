"""Fetches one partition from one offset to another, whatever happens to brokers meanwhile."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import suppress
from time import monotonic
from uuid import UUID

import pyarrow as pa
from kio.schema.errors import ErrorCode
from kio.schema.fetch.v13 import FetchRequest, FetchResponse
from kio.schema.fetch.v13.request import FetchPartition, FetchTopic
from kio.schema.fetch.v13.response import PartitionData
from kio.static.primitive import i8, i32, i64

from spark_sink.client import Client, Pending, milliseconds
from spark_sink.decode import Decoder, visible, whole_batches
from spark_sink.errors import BrokerError, CorruptBatch, DataLost, OncelogError, TopicMadeAnew, check
from spark_sink.log_offsets import edges
from spark_sink.offsets import Range
from spark_sink.options import Edge, SourceOptions

logger = logging.getLogger(__name__)

# How many bytes a record may take, as long as nothing is known: a small range shall not fetch what lies behind it.
FIRST_GUESS_BYTES = 1024
SMALLEST_FETCH_BYTES = 64 << 10
# A broker that lags behind may still tell of a topic that was deleted, or of the end of a log that it leads no more.
# After so long it is believed.
LAGGING_SECONDS = 5.0

GONE = (ErrorCode.unknown_topic_or_partition, ErrorCode.unknown_topic_id)


class NotYetReadable(OncelogError):
    """The broker has nothing to give at an offset that was readable when the range was planned."""

    retriable = True

    def __init__(self, message: str, *, high_watermark: int) -> None:
        super().__init__(message)
        self.high_watermark = high_watermark


def read_range(client: Client, range_: Range, options: SourceOptions) -> Iterator[pa.RecordBatch]:
    """The records of a range. The next chunk is on its way while this one is decoded."""
    name = f"{range_.topic}-{range_.partition}"
    decoder = Decoder(range_.topic, range_.partition, headers=options.headers)
    fetcher = _Fetcher(client, range_, options)
    position = range_.start
    try:
        while position < range_.end:
            try:
                part = client.retrying(lambda at=position: fetcher.chunk(at))  # type: ignore[misc]
            except TopicMadeAnew as error:
                report_loss(options, f"{name} should be read from offset {position} to {range_.end}, but {error}")
                return
            except BrokerError as error:
                if error.code in GONE:
                    report_loss(options, f"{name} should be read from offset {position} to {range_.end}, and is gone")
                    return
                if error.code != ErrorCode.offset_out_of_range:
                    raise
                position = _after_loss(client, range_, position, options)
                continue
            except NotYetReadable as error:
                if options.fail_on_data_loss or error.high_watermark >= range_.end:
                    raise
                report_loss(options, f"{error}: it has lost its end")
                return
            chunk = part.records or b""
            batches = list(whole_batches(chunk))
            if not batches or batches[-1].last_offset < position:
                raise CorruptBatch(f"{name}: {len(chunk)} bytes hold no whole batch at offset {position}")
            first, position = position, batches[-1].last_offset + 1
            fetcher.learn(len(chunk), position - first)
            if position < range_.end:
                fetcher.ask(position)
            aborted = [(each.producer_id, each.first_offset) for each in part.aborted_transactions or ()]
            kept = visible(batches, chunk, aborted if options.committed else ())
            yield from decoder.record_batches(chunk, kept, start=first, end=range_.end)
    finally:
        fetcher.close()


def _after_loss(client: Client, range_: Range, position: int, options: SourceOptions) -> int:
    """The log no longer holds `position`. Where to go on, if that is allowed."""
    part = (range_.topic, range_.partition)
    begin = client.retrying(lambda: edges(client, [part], Edge.EARLIEST, committed=options.committed))[part]
    go_on = min(begin, range_.end) if begin > position else range_.end
    report_loss(
        options,
        f"{range_.topic}-{range_.partition} should be read from offset {position} to {range_.end}, but "
        + (
            f"begins at {begin}: it was deleted up to there" if begin > position else "ends before: it has lost its end"
        ),
    )
    return go_on


def report_loss(options: SourceOptions, what: str) -> None:
    """As in Spark: an error, or a warning if failOnDataLoss is false."""
    if options.fail_on_data_loss:
        raise DataLost(f"records were lost before they were read: {what}. Set failOnDataLoss=false to go on without")
    logger.warning("records were lost before they were read: %s", what)


class _Fetcher:
    """Asks for chunks of one partition, the next one ahead of time."""

    def __init__(self, client: Client, range_: Range, options: SourceOptions) -> None:
        self._client = client
        self._range = range_
        self._options = options
        self._record_bytes = float(FIRST_GUESS_BYTES)
        self._ahead: tuple[int, Pending[FetchResponse]] | None = None
        self._another_since: float | None = None
        self._short_since: float | None = None

    def ask(self, position: int) -> None:
        """Send for what is at `position`. If that can't be sent, `chunk` finds out."""
        with suppress(OncelogError):
            self._ahead = position, self._send(position)

    def chunk(self, position: int) -> PartitionData:
        """What is at `position`. Tries once."""
        ahead, self._ahead = self._ahead, None
        pending = ahead[1] if ahead and ahead[0] == position else self._send(position)
        answer = pending.result()
        name = f"{self._range.topic}-{self._range.partition}"
        check(answer.error_code, f"reading {name}")
        part = answer.responses[0].partitions[0]
        if part.error_code == ErrorCode.offset_out_of_range and not self._options.fail_on_data_loss:
            self._look_again(position)
        check(part.error_code, f"reading {name} at offset {position}")
        self._short_since = None
        if not part.records:
            raise NotYetReadable(
                f"{name} has nothing readable at offset {position}, and should be read to {self._range.end}; its last "
                f"stable offset is {part.last_stable_offset}, its high watermark {part.high_watermark}",
                high_watermark=part.high_watermark,
            )
        return part

    def _look_again(self, position: int) -> None:
        """Records that a log has lost at its end are passed over for good. So the leader is asked: a broker that leads
        no more may know less.
        """
        part = (self._range.topic, self._range.partition)
        begin = edges(self._client, [part], Edge.EARLIEST, committed=self._options.committed)[part]
        now = monotonic()
        self._short_since = self._short_since or now
        if begin <= position and now - self._short_since < LAGGING_SECONDS:
            raise NotYetReadable(f"{part[0]}-{part[1]} ends before offset {position}", high_watermark=-1)

    def learn(self, size_bytes: int, offsets: int) -> None:
        self._record_bytes = size_bytes / offsets

    def close(self) -> None:
        """A caller that gives up half-way leaves no answer behind that the next one would have to read."""
        if self._ahead is not None:
            self._ahead[1].connection.close()

    def _send(self, position: int) -> Pending[FetchResponse]:
        most = max(SMALLEST_FETCH_BYTES, int((self._range.end - position) * self._record_bytes * 1.1))
        part = FetchPartition(
            partition=i32(self._range.partition),
            fetch_offset=i64(position),
            partition_max_bytes=i32(min(most, self._options.fetch_bytes)),
        )
        request = FetchRequest(
            max_wait=milliseconds(self._options.fetch_wait_ms),
            min_bytes=i32(1),
            isolation_level=i8(self._options.committed),
            topics=(FetchTopic(topic_id=self._topic_id(), partitions=(part,)),),
            forgotten_topics_data=(),
        )
        leader = self._client.leader(self._range.topic, self._range.partition)
        return self._client.send(leader, request, FetchResponse)

    def _topic_id(self) -> UUID:
        """That of the topic that was meant when the range was planned."""
        found = self._client.topic(self._range.topic)
        if not self._range.topic_id or str(found.id) == self._range.topic_id:
            return found.id
        now = monotonic()
        self._another_since = self._another_since or now
        problem = f"topic {self._range.topic!r} was deleted and made anew"
        raise TopicMadeAnew(problem, retriable=now - self._another_since < LAGGING_SECONDS)

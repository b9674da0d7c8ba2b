# Hot path: one call a request that writes to one partition here; `python -m tests.bench --only web` answers for it.
"""Writing requests that need nothing but one append: a JSON batch of keys and values, or bytes, for one partition that
this broker leads. Every other request goes the general way (`producing.py`) from its beginning; nothing was done here
then.

What always holds: the answer is the one that the general way would have given, byte for byte.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Protocol

import msgspec
from msgspec import Raw

from log.batch import build_plain_batch
from log.ids import TopicPartition
from service.broker.acceptance import RefusedBatch
from service.broker.partition import Appended
from service.broker.session import Session
from service.broker.writing import Write, Writing
from service.client.partitioner import partition_for_key
from service.cluster.image import Topic
from service.web.answers import refuse_bytes
from service.web.gateway import CLIENT_ID, Gateway
from service.web.problems import Problem
from service.web.records import NULL
from service.web.sending import TERMS, OutgoingBatch

BODY_BYTES_MAX = 128 << 10
"""A longer body is handled in several turns of the loop."""
RECORDS_MAX = 2000
BACKSLASH = 0x5C
Plain = tuple[bytes | None, bytes | None]
Told = tuple[bytes, bytes]
"""The body of an answer, and further header lines."""


class NotNow:
    """This broker can't serve the request the short way as things are. One like it may go that way soon."""


NOT_NOW = NotNow()
Answer = bytes | Awaitable[Told] | NotNow | None
"""None: the request, and probably others like it, must go the general way. An awaitable may raise a problem."""


class AnswerForm(Protocol):
    """How an answer is written."""

    def written(self, topic_name: str, index: int, appended: Appended, records: int, now_ms: int) -> bytes: ...

    def refused(self, problem: Problem, index: int, records: int) -> bytes:
        """The answer for what was appended and could not be promised; or the problem is raised."""


class PlainRecord(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    value: Raw
    key: str | None = None


class PlainBatch(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    records: list[PlainRecord]


_plain = msgspec.json.Decoder(PlainBatch).decode
_plain_record = msgspec.json.Decoder(PlainRecord).decode


def write_json(gateway: Gateway, topic_name: str, body: bytes) -> Answer:
    records = read_json(body)
    return None if records is None else write(gateway, topic_name, records, OWN)


def read_json(body: bytes) -> list[Plain] | None:
    """The records of a JSON body, if it has nothing but keys and values."""
    if len(body) > BODY_BYTES_MAX:
        return None
    try:
        refuse_bytes(body)
        given = _plain(body).records
    except (msgspec.MsgspecError, RecursionError, ValueError):
        return None  # something is wrong with the body, or it has more members
    if not 0 < len(given) <= RECORDS_MAX:
        return None
    return _records(given, body, 1)


def read_lines(lines: Sequence[bytes]) -> list[Plain] | None:
    """The record of each line, if every line has nothing but a key and a value."""
    text = b"".join(lines)
    try:
        refuse_bytes(text)
        given = [_plain_record(line) for line in lines]
    except (msgspec.MsgspecError, RecursionError, ValueError):
        return None
    return _records(given, text, 0)


def _records(given: Sequence[PlainRecord], text: bytes, members: int) -> list[Plain] | None:
    """The records that were decoded from the text, which has `members` other members. None if a member may be there
    twice (see `looking.py`).
    """
    try:
        keys = [None if each.key is None else each.key.encode() for each in given]
    except UnicodeEncodeError:
        return None
    values = [bytes(each.value) for each in given]
    members += len(values) + len(keys) - keys.count(None)
    inside = b"".join(values).count(b":") + b"".join(filter(None, keys)).count(b":")
    if text.count(b":") != members + inside or (BACKSLASH in text and b"\\u" in text):
        return None
    if NULL not in values:
        return list(zip(keys, values, strict=True))
    return [(key, None if value == NULL else value) for key, value in zip(keys, values, strict=True)]


def write_bytes(gateway: Gateway, topic_name: str, body: bytes) -> Answer:
    return write(gateway, topic_name, [(None, body)], OWN)


def write(gateway: Gateway, topic_name: str, records: Sequence[Plain], form: AnswerForm) -> Answer:
    topic = gateway.image.topics.get(topic_name)
    partitions = gateway.partitions.topic(topic_name)
    if topic is None or partitions is None:
        return NOT_NOW
    index = partition_of(gateway, topic, records)
    if index < 0:
        return None
    partition = partitions.get(index)
    if partition is None or not partition.is_leading or topic.partitions[index].leader != gateway.node_id:
        return NOT_NOW
    now_ms = gateway.env.clock.wall_ms()
    batch = build_plain_batch(records, now_ms)
    write = Write(partitions, index, memoryview(batch))
    writing = Writing(gateway.writing, TERMS, (write,))
    if not writing.begin():
        return NOT_NOW
    writing.append()
    if not isinstance(write.outcome, Appended):
        return NOT_NOW  # the append was refused: the general way tells why
    if writing.is_settled:
        return form.written(topic_name, index, write.outcome, len(records), now_ms)
    return _when_settled(topic_name, index, writing, len(records), now_ms, form)


def partition_of(gateway: Gateway, topic: Topic, records: Sequence[Plain]) -> int:
    """The partition of all records; -1 if they go to several."""
    count = len(topic.partitions)
    if count == 1:
        return 0
    first = records[0][0]
    if any(key != first for key, _ in records):
        return -1
    return gateway.next_turn() % count if first is None else partition_for_key(first, count)


async def _when_settled(
    topic_name: str, index: int, writing: Writing, records: int, now_ms: int, form: AnswerForm
) -> Told:
    await writing.settle(Session(CLIENT_ID, 0))
    (write,) = writing.writes
    outcome = write.outcome
    if isinstance(outcome, RefusedBatch):
        refused = OutgoingBatch(TopicPartition(topic_name, index), b"", records, in_doubt=True)
        refused.refused(outcome.error, outcome.message)
        return form.refused(refused.problem(), index, records), b""
    return form.written(topic_name, index, outcome, records, now_ms), b""


class _Own:
    """The form of this API's own answers."""

    def written(self, topic_name: str, index: int, appended: Appended, records: int, now_ms: int) -> bytes:
        first = appended.base_offset
        timestamp = appended.log_append_time_ms if appended.log_append_time_ms >= 0 else now_ms
        head, tail = b'{"partition":%d,"offset":' % index, b',"timestamp":%d}' % timestamp
        places = (tail + b"," + head).join([b"%d" % offset for offset in range(first, first + records)])
        return b'{"outcome":"applied","results":[%b%b%b],"topic":"%b"}' % (head, places, tail, topic_name.encode())

    def refused(self, problem: Problem, index: int, records: int) -> bytes:
        raise problem


OWN = _Own()

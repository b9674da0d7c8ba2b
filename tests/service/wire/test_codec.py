"""What the codec promises beyond agreeing with kio: headers, unknown tags, nulls, bounds, and whose bytes are whose."""

from __future__ import annotations

import random
import struct
import tracemalloc
from collections.abc import Generator, Iterator
from typing import Any

import pytest
from kio.schema.errors import ErrorCode as KioErrorCode

from log.disk import FileSlice
from service.wire import encoders, messages
from service.wire.base import Struct
from service.wire.codec import (
    MAX_PRODUCE_ELEMENTS,
    MAX_REQUEST_ELEMENTS,
    MalformedRequest,
    RequestHeader,
    decode_request,
    decode_request_in_steps,
    decode_response,
    encode_request,
    encode_response,
    encode_response_in_steps,
    read_request_header,
    read_response_header,
    write_request_header,
    write_response_header,
)
from service.wire.decoders import ELEMENTS_A_STEP, LONGEST_STRING, MOST_TAGS
from service.wire.error_codes import ErrorCode
from service.wire.layout import is_flexible, layout_of
from service.wire.messages import (
    ApiVersionsResponse,
    CreatableTopicResult,
    CreateTopicsResponse,
    DescribeGroupsRequest,
    FetchableTopicResponse,
    FetchResponse,
    FetchResponsePartitionData,
    JoinGroupRequest,
    ListedGroup,
    ListGroupsResponse,
    MetadataRequest,
    MetadataRequestTopic,
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from service.wire.messages.schemas import MESSAGES, STRUCTS
from service.wire.messages.versions import VERSIONS, ApiKey
from tests.service.wire.making import REQUESTS, RESPONSES, make


def produce(records: bytes) -> ProduceRequest:
    partition = PartitionProduceData(index=3, records=records)
    return ProduceRequest(acks=-1, timeout_ms=5, topic_data=[TopicProduceData("orders", partition_data=[partition])])


# ---------------------------------------------------------------- numbers


def test_an_error_message_is_clipped_to_what_a_string_may_hold() -> None:
    """It may repeat a name that is as long as a string may be, and say what is wrong with it."""
    for version in (2, 7):
        topic = CreatableTopicResult("y" * 32_767, error_code=17, error_message="wrong: " + "é" * 32_767)
        answer = encode_response(19, version, CreateTopicsResponse(topics=[topic]))
        read = decode_response(19, version, b"".join(part for part in answer if isinstance(part, bytes)))
        assert read.topics[0].error_message == "wrong: " + "é" * 16_380


def test_error_codes_are_kafkas() -> None:
    """kio has the names in lower case."""
    assert {each.name: each.value for each in ErrorCode} == {each.name.upper(): each.value for each in KioErrorCode}


def test_every_request_has_a_key_and_an_answer_in_the_same_versions() -> None:
    requests = {key or 0: (name, versions) for name, (kind, key, versions, _) in MESSAGES.items() if kind == "request"}
    assert sorted(requests) == sorted(VERSIONS) == sorted(ApiKey)
    for name, versions in requests.values():
        assert MESSAGES[name.replace("Request", "Response")][2] == versions


def test_every_class_has_exactly_the_fields_of_its_schema() -> None:
    for name, lines in STRUCTS.items():
        assert getattr(messages, name).field_names == tuple(line.split(" ")[0] for line in lines)


# ---------------------------------------------------------------- headers


@pytest.mark.parametrize("client_id", [None, "", "größe", "x" * 300])
@pytest.mark.parametrize("version", [0, 11])
def test_a_request_header_reads_as_it_was_written(client_id: str | None, version: int) -> None:
    written = write_request_header(ApiKey.PRODUCE, version, -7, client_id)
    header = read_request_header(memoryview(written + b"body"))
    assert (header.api_key, header.api_version, header.correlation_id) == (0, version, -7)
    assert header.client_id == client_id
    assert header.body_at == len(written)


def test_unknown_tags_of_a_request_header_are_skipped() -> None:
    written = write_request_header(ApiKey.METADATA, 12, 1, "me")[:-1]
    tags = b"\x02" + b"\x07\x03abc" + b"\xce\xc2\x01" + b"\xc8\x01" + b"z" * 200
    assert read_request_header(written + tags + b"body").body_at == len(written) + len(tags)


def test_the_header_of_an_unknown_api_can_be_read() -> None:
    """The door must know what was asked for in order to refuse it."""
    header = read_request_header(struct.pack(">hhih", 999, 5, 12, 2) + b"me")
    assert (header.api_key, header.api_version, header.client_id) == (999, 5, "me")


@pytest.mark.parametrize("frame", [b"", b"\0" * 9, struct.pack(">hhih", 3, 1, 1, 5) + b"abc"])
def test_a_request_header_that_is_cut_off_is_malformed(frame: bytes) -> None:
    with pytest.raises(MalformedRequest):
        read_request_header(frame)


def test_tags_of_a_header_that_end_behind_the_frame_or_are_too_many_are_malformed() -> None:
    written = write_request_header(ApiKey.METADATA, 12, 1, None)[:-1]
    too_many = b"\x80\x01" + b"\x09\x00" * 128
    for tags in (
        b"\x01\x00\x7f",
        b"\x05",
        b"\xff\xff\xff\xff\x0f\x01\x01",
        b"\xff" * 9,
        b"\x01" + b"\xff" * 9,
        too_many,
    ):
        with pytest.raises(MalformedRequest):
            read_request_header(written + tags)


def test_an_answer_to_api_versions_never_has_a_tagged_header() -> None:
    """Its reader may be older than tagged fields; every other flexible answer has them."""
    versions = RequestHeader(ApiKey.API_VERSIONS, 4, 9, None)
    metadata = RequestHeader(ApiKey.METADATA, 12, 9, None)
    assert write_response_header(10, versions) == struct.pack(">ii", 14, 9)
    assert write_response_header(10, metadata) == struct.pack(">ii", 15, 9) + b"\0"
    assert read_response_header(18, 4, struct.pack(">i", 9)) == (9, 4)
    assert read_response_header(3, 12, struct.pack(">i", 9) + b"\0") == (9, 5)
    assert read_response_header(3, 8, struct.pack(">i", 9)) == (9, 4)


# ---------------------------------------------------------------- tags and versions

UNKNOWN_TAGS = b"\x02" + b"\xa0\x9c\x01" + b"\x03abc" + b"\xff\xff\xff\xff\x07" + b"\x90\x03" + b"q" * 400


class BodyWithUnknownTags(encoders.EncoderBody):
    """Ends every struct with tags from the future, in place of the known ones."""

    def struct(self, struct: str, depth: int) -> None:
        for field in layout_of(struct, self.writer.version).plain:
            self.field(field, depth)
        self.flush()
        self.line(f"write({UNKNOWN_TAGS!r})")


@pytest.fixture
def _tags_from_the_future(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(encoders, "EncoderBody", BodyWithUnknownTags)
    yield


def without_tagged(message: Struct, version: int) -> Struct:
    layout = layout_of(type(message).__name__, version)
    for field in layout.tagged:
        setattr(message, field.name, field.default)
    for field in layout.plain:
        value = getattr(message, field.name)
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, Struct):
                without_tagged(each, version)
    return message


@pytest.mark.usefixtures("_tags_from_the_future")
def test_unknown_tags_are_skipped_in_every_struct_of_every_flexible_api() -> None:
    """KIP-482: who does not know a tag skips it. Each struct of each message carries two unknown ones."""
    for name, version in [*REQUESTS, *RESPONSES]:
        if not is_flexible(name, version):
            continue
        _, key, *_ = MESSAGES[name]
        assert key is not None
        message = without_tagged(make(random.Random(f"{name} {version}"), name, version), version)
        (body,) = encoders.compile_encoder(name, version)(message)
        assert isinstance(body, bytes)
        assert body.count(UNKNOWN_TAGS) >= 1
        decode = decode_request if name.endswith("Request") else decode_response
        assert decode(key, version, body) == message


def test_a_known_tag_must_be_as_long_as_it_says() -> None:
    body = encode_response(18, 4, ApiVersionsResponse(finalized_features_epoch=5))
    (whole,) = body
    assert isinstance(whole, bytes)
    at = whole.index(b"\x01\x08")
    for size in (b"\x07", b"\x09"):
        with pytest.raises(MalformedRequest):
            decode_response(18, 4, whole[: at + 1] + size + whole[at + 2 :] + b"\0")


def test_a_field_the_version_lacks_is_left_out_and_reads_as_its_default() -> None:
    request = MetadataRequest([MetadataRequestTopic(name="a")], False, True, True)
    assert decode_request(3, 0, encode_request(3, 0, request)) == MetadataRequest([MetadataRequestTopic(name="a")])
    assert decode_request(3, 8, encode_request(3, 8, request)) == request


def test_bytes_behind_a_message_are_ignored() -> None:
    body = encode_request(3, 12, MetadataRequest())
    assert decode_request(3, 12, body + b"more") == MetadataRequest()


@pytest.mark.parametrize(("api_key", "version"), [(3, 99), (0, 2), (7, 0), (-1, 0), (3, -1)])
def test_an_api_or_version_that_does_not_exist_is_malformed(api_key: int, version: int) -> None:
    with pytest.raises(MalformedRequest):
        decode_request(api_key, version, b"\0" * 50)


# ---------------------------------------------------------------- nulls and bounds


def test_a_null_is_accepted_only_where_the_version_allows_one() -> None:
    assert decode_request(3, 1, struct.pack(">i", -1)).topics is None
    with pytest.raises(MalformedRequest, match="topics"):
        decode_request(3, 0, struct.pack(">i", -1))
    with pytest.raises(MalformedRequest, match="group_id"):
        decode_request(12, 0, struct.pack(">hihh", -1, 1, 0, 0))


@pytest.mark.parametrize(
    ("api_key", "version", "body"),
    [
        (3, 8, struct.pack(">i", 2**31 - 1)),  # topics by a count of four bytes
        (3, 12, b"\xff\xff\xff\xff\x0f"),  # by a varint
        (0, 9, b"\x00\x00\x01\x00\x00\x00\x05" + b"\xff\xff\xff\xff\x0f"),  # the twelve bytes that end kio's process
        (0, 9, b"\x00\x00\x01\x00\x00\x00\x05" + b"\x02\x02a\x02\x00\x00\x00\x01" + b"\xff\xff\xff\xff\x0f"),  # records
        (1, 12, bytes(21) + b"\xfe\xff\xff\xff\x0f"),
        (8, 2, struct.pack(">h", 32767)),  # a string
        (37, 0, struct.pack(">ih", 1, 1) + b"t" + struct.pack(">ii", 1, 2**30)),  # an array of numbers, in a struct
        (3, 12, b"\x01\x00\x00" + b"\xff\xff\xff\xff\x0f"),  # tagged fields
        (3, 12, b"\x01\x00\x00" + b"\x80\x01" + b"\x09\x00" * 128),  # more of them than any struct has
        (3, 12, b"\x01\x00\x00" + b"\x01\x09\xff\xff\xff\xff\x0f"),  # the size of one
        (3, 12, b"\xff" * 12),  # a varint without end
        (3, 12, b"\xff\xff\xff\xff\x1f"),  # one of 33 bits
    ],
)
def test_a_count_or_length_that_the_bytes_cannot_hold_costs_nothing(api_key: int, version: int, body: bytes) -> None:
    with pytest.raises(MalformedRequest):
        decode_request(api_key, version, body)
    tracemalloc.start()
    try:
        with pytest.raises(MalformedRequest):
            decode_request(api_key, version, body)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


def test_a_message_has_a_most_of_elements_however_long_its_frame_is() -> None:
    """Megabytes of empty topics would cost a hundred times their size, and time."""
    empty_topics = b"\x00" + b"\x00\x01" + b"\x00\x00\x00\x05"
    count = MAX_PRODUCE_ELEMENTS + 1
    compact = count + 1
    varint = bytes([compact & 0x7F | 0x80, compact >> 7 & 0x7F | 0x80, compact >> 14])
    with pytest.raises(MalformedRequest, match="topic_data"):
        decode_request(0, 9, empty_topics + varint + b"\x01\x01\x00" * count + b"\x00")


@pytest.mark.parametrize("in_steps", [False, True])
def test_tagged_fields_count_as_elements(in_steps: bool) -> None:
    """Millions that nobody knows would be skipped in one turn."""
    topic = b"\x00" * 16 + b"\x02a" + bytes([MOST_TAGS]) + b"\x09\x00" * MOST_TAGS
    most = MAX_REQUEST_ELEMENTS // (MOST_TAGS + 1)

    def read(count: int) -> list[Any]:
        body = bytes([count + 1 & 0x7F | 0x80, count + 1 >> 7]) + topic * count + b"\x00\x00\x00"
        return ended(decode_request_in_steps(3, 12, body)) if in_steps else [decode_request(3, 12, body)]

    *steps, request = read(most)
    assert len(request.topics) == most
    assert len(steps) >= (most * (MOST_TAGS + 1) // (ELEMENTS_A_STEP + MOST_TAGS) if in_steps else 0)
    with pytest.raises(MalformedRequest):
        read(most + 1)


@pytest.mark.parametrize(("name", "version"), REQUESTS)
def test_a_request_reads_in_steps_as_it_does_at_once(name: str, version: int) -> None:
    key = MESSAGES[name][1]
    assert key is not None
    body = encode_request(key, version, make(random.Random(version), name, version))
    (read,) = ended(decode_request_in_steps(key, version, body))
    assert read == decode_request(key, version, body)


@pytest.mark.parametrize(("name", "version"), RESPONSES)
def test_an_answer_is_written_in_steps_as_it_is_at_once(name: str, version: int) -> None:
    key = MESSAGES[name][1]
    assert key is not None
    answer = make(random.Random(version), name, version)
    (written,) = ended(encode_response_in_steps(key, version, answer))
    assert written == encode_response(key, version, answer)


def ended(steps: Generator[None, None, Any]) -> list[Any]:
    """What came of the steps, behind a None for each but the last."""
    found: list[Any] = []
    while True:
        try:
            found.append(next(steps))
        except StopIteration as end:
            return [*found, end.value]


def test_a_long_message_is_read_and_written_in_many_steps() -> None:
    count = 10 * ELEMENTS_A_STEP
    names = [f"group {number}" for number in range(count)]
    body = encode_request(15, 5, DescribeGroupsRequest(names))
    *steps, request = ended(decode_request_in_steps(15, 5, body))
    assert len(steps) >= 9
    assert request.groups == names
    answer = ListGroupsResponse(groups=[ListedGroup(name) for name in names])
    *steps, parts = ended(encode_response_in_steps(16, 5, answer))
    assert len(steps) >= 9
    assert max(map(len, parts)) < 3 * sum(map(len, parts)) / len(parts)
    assert [b"".join(parts)] == encode_response(16, 5, answer)


def test_what_is_malformed_is_so_in_steps_too() -> None:
    with pytest.raises(MalformedRequest, match="groups"):
        ended(decode_request_in_steps(15, 5, b"\xff\xff\x01"))


def test_text_that_is_not_utf8_is_malformed() -> None:
    with pytest.raises(MalformedRequest):
        decode_request(3, 1, struct.pack(">ih", 1, 2) + b"\xff\xfe")


def test_no_string_is_longer_than_the_records_of_coordinators_hold() -> None:
    """In versions with compact strings the length would allow it."""
    for name, fits in (("g" * LONGEST_STRING, True), ("g" * (LONGEST_STRING + 1), False), ("é" * 20_000, False)):
        body = encode_request(11, 9, JoinGroupRequest(group_id="g", member_id="m", group_instance_id=name))
        if fits:
            assert decode_request(11, 9, body).group_instance_id == name
        else:
            with pytest.raises(MalformedRequest, match="32767"):
                decode_request(11, 9, body)


# ---------------------------------------------------------------- whose bytes


@pytest.mark.parametrize("size", [10, 100_000])
def test_records_of_a_produce_are_a_writable_view_of_the_frame(size: int) -> None:
    """They are stamped in place and written from there, whether the message is short or long."""
    frame = bytearray(encode_request(0, 11, produce(b"r" * size)))
    records = decode_request(0, 11, memoryview(frame)).topic_data[0].partition_data[0].records
    assert isinstance(records, memoryview)
    records[:3] = b"now"
    assert frame.count(b"now" + b"r" * 7) == 1


def test_what_else_a_request_holds_is_its_own() -> None:
    frame = bytearray(encode_request(0, 11, produce(b"r" * 100_000)))
    request = decode_request(0, 11, memoryview(frame))
    frame[:] = bytes(len(frame))
    assert request.topic_data[0].name == "orders"


class Slice(FileSlice):
    def __init__(self, size: int) -> None:
        self.size = size


def test_slices_of_files_stay_slices_and_bytes_around_them_are_joined() -> None:
    first, second = Slice(70), Slice(200)
    response = FetchResponse(
        responses=[
            FetchableTopicResponse(
                topic="t",
                partitions=[
                    FetchResponsePartitionData(partition_index=0, records=[first, b"tail"]),
                    FetchResponsePartitionData(partition_index=1, records=b"plain"),
                    FetchResponsePartitionData(partition_index=2, records=[b"a", b"b", second]),
                ],
            )
        ]
    )
    for version in (4, 11, 12):
        parts = encode_response(1, version, response)
        assert [type(part) for part in parts] == [bytes, Slice, bytes, Slice, bytes][: 5 if version == 12 else 4]
        assert parts[1] is first
        assert parts[3] is second
        whole = b"".join(part if isinstance(part, bytes) else b"s" * part.size for part in parts)
        (topic,) = decode_response(1, version, whole).responses
        assert [bytes(each.records) for each in topic.partitions] == [b"s" * 70 + b"tail", b"plain", b"ab" + b"s" * 200]

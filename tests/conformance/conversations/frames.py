"""Frames that are not what they should be, versions that nobody offers, and what a client may add without harm."""

from __future__ import annotations

import struct
from typing import Any

from service.wire.codec import encode_request, write_request_header
from service.wire.error_codes import ErrorCode
from service.wire.messages import ApiVersionsRequest, MetadataRequest, MetadataRequestTopic
from service.wire.messages.versions import VERSIONS, ApiKey
from tests.conformance.plain import Plain
from tests.conformance.say import batch, produce
from tests.conformance.talk import Sent, Talk, stable_versions

METADATA = ApiKey.METADATA.value


def by_name(answer: dict[str, Plain]) -> Plain:
    """APIs and features as tables, so that one that is missing is one difference."""
    rows = answer.get("api_keys", [])
    assert isinstance(rows, list)
    names = {key.value: key.name for key in ApiKey}
    offered: dict[str, Plain] = {}
    for row in rows:
        assert isinstance(row, dict)
        key = int(str(row.get("api_key", 0)))
        offered[names.get(key, f"API {key}")] = f"{row.get('min_version', 0)}-{row.get('max_version', 0)}"
    tables: dict[str, Plain] = {"api_keys": offered}
    for kind in ("supported_features", "finalized_features"):
        features = answer.get(kind, [])
        assert isinstance(features, list)
        tables[kind] = {str(one["name"]): {**one, "name": ""} for one in features if isinstance(one, dict)}
    return {**answer, **tables}


def offered_versions(talk: Talk) -> None:
    """Which APIs and versions a broker says it offers."""
    for version in stable_versions(ApiKey.API_VERSIONS):
        talk.ask(ApiVersionsRequest("conformance", "1.0"), version, keep=by_name)
    talk.ask(ApiVersionsRequest("conformance", "1.0"), 3, why="of a version that nobody has", claimed_version=77)
    talk.ask(ApiVersionsRequest("", "1.0"), 3, why="without the name of the software")
    talk.ask(ApiVersionsRequest("spaces are bad", "1.0"), 3, why="with a bad name")
    talk.ask(ApiVersionsRequest("conformance", "-1-"), 3, why="with a bad version of the software")


def versions_outside_what_is_offered(talk: Talk) -> None:
    """One above the newest and one below the oldest version of each API, as header alone with an empty body."""
    for key, (lowest, highest) in VERSIONS.items():
        if key == ApiKey.API_VERSIONS:
            continue
        for version in {lowest - 1, highest + 1}:
            header = struct.pack(">hhih", key, version, 9, -1) + b"\0"
            talk.raw(header, f"{key.name} v{version}")


def unknown_apis(talk: Talk) -> None:
    for key in (-1, 93, 999, 32767):
        talk.raw(struct.pack(">hhih", key, 0, 9, -1), f"api key {key}")


def lengths_that_lie(talk: Talk) -> None:
    whole = write_request_header(METADATA, 1, 9, "x") + encode_request(METADATA, 1, MetadataRequest(topics=[]))
    talk.raw_bytes(struct.pack(">i", -1) + whole, "a negative length")
    talk.raw_bytes(struct.pack(">i", 0) + whole, "a length of nothing")
    talk.raw_bytes(struct.pack(">i", 0x7FFFFFFF) + whole, "a length of two gigabytes")
    talk.raw_bytes(struct.pack(">i", 104_857_601) + whole, "a length of one byte more than may be")
    talk.raw_bytes(struct.pack(">i", len(whole) + 10) + whole, "a length longer than what came")
    talk.raw(whole[:5], "half a header")
    talk.raw(whole[:9], "a header without the client's name")
    talk.raw(struct.pack(">hhih", METADATA, 1, 9, 50) + b"short", "a client's name longer than the frame")
    talk.raw(whole[:-2], "a body cut short")
    talk.raw(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "a frame of text")
    talk.raw_bytes(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "a web browser")


def bodies_that_lie(talk: Talk) -> None:
    def metadata(version: int, body: bytes) -> bytes:
        return write_request_header(METADATA, version, 9, "x") + body

    talk.raw(metadata(1, struct.pack(">i", 0x7FFFFFFF)), "a count of two thousand million")
    talk.raw(metadata(1, struct.pack(">i", -2)), "a count of minus two")
    talk.raw(metadata(9, b"\xff\xff\xff\xff\x0f\0\0\0\0"), "a compact count of four thousand million")
    talk.raw(metadata(1, struct.pack(">ih", 1, -1)), "null where a name must be")
    talk.raw(metadata(1, struct.pack(">ih", 1, 4) + b"\xff\xfe\xfd\xfc"), "a name that is not UTF-8")


def bytes_behind_a_request(talk: Talk) -> None:
    for version in (1, 9):
        body = encode_request(METADATA, version, MetadataRequest(topics=[], allow_auto_topic_creation=False))
        connection = talk.connect()
        connection.send_frame(write_request_header(METADATA, version, 9, "x") + body + b"\0\1\2\3")
        frame = connection.receive(patience_seconds=2)
        talk.note(f"Metadata v{version} with bytes behind it", "answered" if isinstance(frame, bytes) else frame.value)


def unknown_tags_are_skipped(talk: Talk) -> None:
    """A tagged field that nobody knows, at the end of a request and in its header."""
    body = encode_request(METADATA, 12, MetadataRequest(topics=[], allow_auto_topic_creation=False))
    tagged = body[:-1] + b"\x01\x63\x03abc"
    header = write_request_header(METADATA, 12, 9, "x")
    for why, frame in {
        "in the body": header + tagged,
        "in the header": header[:-1] + b"\x01\x63\x03abc" + body,
    }.items():
        connection = talk.connect()
        connection.send_frame(frame)
        got = connection.receive(patience_seconds=2)
        talk.note(f"an unknown tag {why}", "answered" if isinstance(got, bytes) else got.value)


def a_client_without_a_name(talk: Talk) -> None:
    connection = talk.connect()
    connection.send_frame(
        write_request_header(METADATA, 1, 9, None) + encode_request(METADATA, 1, MetadataRequest(topics=[]))
    )
    got = connection.receive(patience_seconds=2)
    talk.note("a null client id", "answered" if isinstance(got, bytes) else got.value)


def names_of_fields(answer: dict[str, Plain]) -> Plain:
    return " ".join(sorted(answer))


def answers_keep_the_order_of_requests(talk: Talk) -> None:
    """Ten requests at once on one connection, slow ones among them."""
    topic = talk.topic()
    data = batch()
    sent: list[Sent[Any]] = []
    for number in range(5):
        sent.append(talk.send(produce(topic, data), 11, why=f"number {number}"))
        names = [MetadataRequestTopic(name=topic)]
        sent.append(
            talk.send(MetadataRequest(topics=names, allow_auto_topic_creation=False), 8, why=f"number {number}")
        )
    for each in sent:
        talk.hear(each, keep=names_of_fields)


def half_closed_clients_get_their_answer(talk: Talk) -> None:
    connection = talk.connect()
    sent = talk.send(ApiVersionsRequest(), 0, why="and nothing more", on=connection)
    connection.finish_writing()
    talk.hear(sent, keep=lambda answer: answer.get("error_code", ErrorCode.NONE))


CONVERSATIONS = (
    offered_versions,
    versions_outside_what_is_offered,
    unknown_apis,
    lengths_that_lie,
    bodies_that_lie,
    bytes_behind_a_request,
    unknown_tags_are_skipped,
    a_client_without_a_name,
    answers_keep_the_order_of_requests,
    half_closed_clients_get_their_answer,
)

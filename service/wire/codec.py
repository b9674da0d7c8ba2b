"""Bytes to messages and back, for every API and version; for brokers, clients and the records of coordinators.

A codec is compiled for a (message, version) when it is first used (decoders.py, encoders.py) and kept. Decoding raises
MalformedRequest and nothing else, whatever the bytes; what it may allocate is bounded by how many bytes there are.
Bytes behind a message are ignored, as Kafka does. `service.net` reads headers and `service.api` bodies with it.
"""

from __future__ import annotations

import struct
from collections.abc import Generator
from struct import Struct as Format
from typing import TYPE_CHECKING, Any, TypeVar, cast

from service.wire.base import Struct
from service.wire.decoders import MOST_TAGS, Decode, Malformed, compile_decoder, long_varint
from service.wire.encoders import Encode, compile_encoder
from service.wire.layout import UnknownVersion, within
from service.wire.messages.schemas import MESSAGES
from service.wire.messages.versions import ApiKey

if TYPE_CHECKING:
    from log.disk import FileSlice

StructClass = TypeVar("StructClass", bound=Struct)

REQUEST_HEADER = Format(">hhih")
RESPONSE_HEADER = Format(">ii")
RESPONSE_HEADER_WITH_TAGS = Format(">iix")  # an empty section of tagged fields


# Elements of all arrays of one message, and its tagged fields. Twice what a client names that reads or commits 15,000
# topics of one partition each, and some 15 MB at worst. Answers come from a broker that was chosen, and name every
# partition of a cluster several times.
MAX_REQUEST_ELEMENTS = 60_000
# A Produce is read in one turn. As many would be topics of one partition each on a broker that leads five thousand, and
# no producer has a batch for each of them at once.
MAX_PRODUCE_ELEMENTS = 10_000
OF_RECORDS: frozenset[int] = frozenset((ApiKey.PRODUCE, ApiKey.CONDITIONAL_PRODUCE))
MOST_ELEMENTS: dict[int, int] = dict.fromkeys(OF_RECORDS, MAX_PRODUCE_ELEMENTS)
MAX_ELEMENTS = 20_000_000


class MalformedRequest(Exception):
    """The bytes are not the message that they say they are. The connection that they came from is to be closed."""


class RequestHeader:
    """What stands before a request. `body_at` is where its body starts in the frame."""

    __slots__ = ("api_key", "api_version", "body_at", "client_id", "correlation_id")

    def __init__(self, api_key: int, api_version: int, correlation_id: int, client_id: str | None, body_at: int = 0):
        self.api_key = api_key
        self.api_version = api_version
        self.correlation_id = correlation_id
        self.client_id = client_id
        self.body_at = body_at

    def __repr__(self) -> str:
        return (
            f"RequestHeader(api_key={self.api_key}, api_version={self.api_version}, "
            f"correlation_id={self.correlation_id}, client_id={self.client_id!r}, body_at={self.body_at})"
        )


def _first_flexible(side: str) -> dict[int, int]:
    """API key -> the first version whose messages of this side are flexible. Those that have none are missing."""
    found: dict[int, int] = {}
    for kind, key, _, flexible in MESSAGES.values():
        if kind == side and key is not None and flexible != "none":
            found[key] = int(flexible.removesuffix("+"))
    return found


NEVER = 1 << 15  # above every version, which are 16 bits with a sign
FLEXIBLE_REQUESTS = _first_flexible("request")
# An ApiVersions answer always has the first header, because its reader may not know yet what the broker speaks.
FLEXIBLE_RESPONSE_HEADERS = {**_first_flexible("response"), ApiKey.API_VERSIONS.value: NEVER}
API_NAMES = {key: name.removesuffix("Request") for name, (kind, key, *_) in MESSAGES.items() if kind == "request"}


def read_request_header(frame: memoryview | bytes) -> RequestHeader:
    """The header of a whole frame (without its length). An unknown API or version is not an error here."""
    try:
        api_key, api_version, correlation_id, size = REQUEST_HEADER.unpack_from(frame)
        at = 10
        client_id = None
        if size >= 0:
            at += size
            if at > len(frame):
                raise Malformed("client_id: longer than what remains")
            client_id = str(frame[10:at], "utf-8")
        if api_version >= FLEXIBLE_REQUESTS.get(api_key, NEVER):
            at += 1
            if frame[at - 1]:
                at = _skip_tags(frame, at, frame[at - 1])
        return RequestHeader(api_key, api_version, correlation_id, client_id, at)
    except (struct.error, IndexError, UnicodeDecodeError, Malformed) as wrong:
        raise MalformedRequest(f"request header: {wrong}") from wrong


def _skip_tags(frame: memoryview | bytes, at: int, count: int) -> int:
    """Where the tagged fields end of which `count` begin at `at`."""
    if count > MOST_TAGS:
        raise Malformed("more tagged fields than can be there")
    for _ in range(count):
        tag = frame[at]
        at += 1
        if tag > 127:
            _, at = long_varint(frame, at, tag)
        size = frame[at]
        at += 1
        if size > 127:
            size, at = long_varint(frame, at, size)
        at += size
    if at > len(frame):
        raise Malformed("tagged fields are longer than what remains")
    return at


def write_request_header(api_key: int, version: int, correlation_id: int, client_id: str | None) -> bytes:
    """The header of a request, as clients write it."""
    name = b"" if client_id is None else client_id.encode()
    size = -1 if client_id is None else len(name)
    tags = b"\0" if version >= FLEXIBLE_REQUESTS.get(api_key, NEVER) else b""
    return REQUEST_HEADER.pack(api_key, version, correlation_id, size) + name + tags


def write_response_header(size_bytes: int, header: RequestHeader) -> bytes:
    """The length of the frame and the header of the answer to `header` whose body has `size_bytes`."""
    if header.api_version >= FLEXIBLE_RESPONSE_HEADERS.get(header.api_key, NEVER):
        return RESPONSE_HEADER_WITH_TAGS.pack(size_bytes + 5, header.correlation_id)
    return RESPONSE_HEADER.pack(size_bytes + 4, header.correlation_id)


def read_response_header(api_key: int, version: int, frame: memoryview | bytes) -> tuple[int, int]:
    """(correlation id, where the body starts) of a whole frame (without its length)."""
    try:
        correlation_id = int.from_bytes(frame[:4], "big", signed=True)
        if len(frame) < 4:
            raise Malformed("too short")
        if version < FLEXIBLE_RESPONSE_HEADERS.get(api_key, NEVER):
            return correlation_id, 4
        return correlation_id, _skip_tags(frame, 5, frame[4])
    except (IndexError, Malformed) as wrong:
        raise MalformedRequest(f"response header: {wrong}") from wrong


# Compiled codecs: (key << 16 | version) for requests and responses, (name, version) for the rest.
_request_decoders: dict[int, Decode] = {}
_request_encoders: dict[int, Encode] = {}
_response_decoders: dict[int, Decode] = {}
_response_encoders: dict[int, Encode] = {}
_step_decoders: dict[int, Decode] = {}  # of requests
_step_encoders: dict[int, Encode] = {}  # of responses
_data_decoders: dict[tuple[str, int], Decode] = {}
_data_encoders: dict[tuple[str, int], Encode] = {}
_step_data_decoders: dict[tuple[str, int], Decode] = {}


def decode_request(api_key: int, version: int, body: memoryview | bytes) -> Any:
    """The request in `body`. Its records are views of `body`, everything else is its own."""
    decode = _request_decoders.get(api_key << 16 | version)
    if decode is None:
        decode = _request_decoders[api_key << 16 | version] = _new_decoder(api_key, version, "Request")
    try:
        return decode(body, 0, len(body), MOST_ELEMENTS.get(api_key, MAX_REQUEST_ELEMENTS))
    except (struct.error, IndexError, UnicodeDecodeError, Malformed) as wrong:
        raise MalformedRequest(str(wrong)) from wrong


def encode_response(api_key: int, version: int, response: Struct) -> list[bytes | FileSlice]:
    """The body of an answer, in parts: no two of bytes are neighbours."""
    encode = _response_encoders.get(api_key << 16 | version)
    if encode is None:
        encode = compile_encoder(API_NAMES[api_key] + "Response", version)
        _response_encoders[api_key << 16 | version] = encode
    return encode(response)


def decode_request_in_steps(api_key: int, version: int, body: bytes) -> Generator[None, None, Any]:
    """The same, yielding after each millisecond or two of work."""
    decode = _step_decoders.get(api_key << 16 | version)
    if decode is None:
        decode = _new_decoder(api_key, version, "Request", in_steps=True)
        _step_decoders[api_key << 16 | version] = decode
    try:
        request: Any = yield from decode(body, 0, len(body), MOST_ELEMENTS.get(api_key, MAX_REQUEST_ELEMENTS))
    except (struct.error, IndexError, UnicodeDecodeError, Malformed) as wrong:
        raise MalformedRequest(str(wrong)) from wrong
    return request


def encode_response_in_steps(
    api_key: int, version: int, response: Struct
) -> Generator[None, None, list[bytes | FileSlice]]:
    """The body of an answer, in parts that are put together in a millisecond or two each, with a yield after each."""
    encode = _step_encoders.get(api_key << 16 | version)
    if encode is None:
        encode = compile_encoder(API_NAMES[api_key] + "Response", version, in_steps=True)
        _step_encoders[api_key << 16 | version] = encode
    return cast(Generator[None, None, "list[bytes | FileSlice]"], encode(response))


def encode_request(api_key: int, version: int, request: Struct) -> bytes:
    """The body of a request."""
    encode = _request_encoders.get(api_key << 16 | version)
    if encode is None:
        encode = compile_encoder(API_NAMES[api_key] + "Request", version)
        _request_encoders[api_key << 16 | version] = encode
    return _only_bytes(encode(request))


def decode_response(api_key: int, version: int, body: memoryview | bytes) -> Any:
    """The answer in `body`. Its records are views of `body`, everything else is its own."""
    decode = _response_decoders.get(api_key << 16 | version)
    if decode is None:
        decode = _response_decoders[api_key << 16 | version] = _new_decoder(api_key, version, "Response")
    return _decoded(decode, body, MAX_ELEMENTS)


def encode_data(data: Struct, version: int) -> bytes:
    """A struct that travels inside other bytes (a subscription, a coordinator's record), without its version number."""
    name = type(data).__name__
    encode = _data_encoders.get((name, version))
    if encode is None:
        encode = _data_encoders[name, version] = compile_encoder(name, version)
    return _only_bytes(encode(data))


def decode_data(
    cls: type[StructClass], version: int, data: memoryview | bytes, most_elements: int = MAX_ELEMENTS
) -> StructClass:
    """The opposite of `encode_data`. MalformedRequest, too, if `cls` has no such version."""
    name = cls.__name__
    decode = _data_decoders.get((name, version))
    if decode is None:
        decode = _data_decoders[name, version] = _new_data_decoder(name, version)
    decoded: StructClass = _decoded(decode, data, most_elements)
    return decoded


def decode_data_in_steps(
    cls: type[StructClass], version: int, data: memoryview | bytes
) -> Generator[None, None, StructClass]:
    """The same, yielding after each millisecond or two of work."""
    name = cls.__name__
    decode = _step_data_decoders.get((name, version))
    if decode is None:
        decode = _step_data_decoders[name, version] = _new_data_decoder(name, version, in_steps=True)
    try:
        decoded: StructClass = yield from decode(data, 0, len(data), MAX_ELEMENTS)
    except (struct.error, IndexError, UnicodeDecodeError, Malformed) as wrong:
        raise MalformedRequest(str(wrong)) from wrong
    return decoded


def _new_data_decoder(name: str, version: int, *, in_steps: bool = False) -> Decode:
    if name not in MESSAGES or not within(version, MESSAGES[name][2]):
        raise MalformedRequest(f"{name} has no version {version}")
    return compile_decoder(name, version, in_steps=in_steps)


def _new_decoder(api_key: int, version: int, side: str, *, in_steps: bool = False) -> Decode:
    name = API_NAMES.get(api_key)
    if name is None:
        raise MalformedRequest(f"no API has the key {api_key}")
    try:
        return compile_decoder(name + side, version, in_steps=in_steps)
    except UnknownVersion as unknown:
        raise MalformedRequest(str(unknown)) from unknown


def _decoded(decode: Decode, body: memoryview | bytes, most_elements: int) -> Any:
    try:
        return decode(body, 0, len(body), most_elements)
    except (struct.error, IndexError, UnicodeDecodeError, Malformed) as wrong:
        raise MalformedRequest(str(wrong)) from wrong


def _only_bytes(parts: list[bytes | FileSlice]) -> bytes:
    if not parts:
        return b""
    (part,) = parts
    assert isinstance(part, bytes)
    return part

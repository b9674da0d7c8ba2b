"""Our codec against kio, for every API in every version, in both directions.

kio is generated from the same definitions by other people's code. What both agree on is the protocol.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from service.wire.base import Struct
from service.wire.codec import (
    decode_data,
    decode_request,
    decode_response,
    encode_data,
    encode_request,
    encode_response,
)
from service.wire.messages.schemas import MESSAGES
from tests.service.wire.making import DATA, KAFKAS, make
from tests.service.wire.oracle import kio_bytes, kio_message

KNOWN_TO_KIO = [each for each in KAFKAS if each not in DATA or each[0].startswith("ConsumerProtocol")]


def ours_encodes(message: Struct, version: int) -> bytes:
    name = type(message).__name__
    kind, key, *_ = MESSAGES[name]
    if kind == "request":
        assert key is not None
        return encode_request(key, version, message)
    if kind == "response":
        assert key is not None
        parts = encode_response(key, version, message)
        assert all(isinstance(part, bytes) for part in parts)
        assert len(parts) <= 1
        return b"".join(part for part in parts if isinstance(part, bytes))
    return encode_data(message, version)


def ours_decodes(cls: type[Struct], version: int, data: bytes) -> Any:
    kind, key, *_ = MESSAGES[cls.__name__]
    if kind == "request":
        assert key is not None
        return decode_request(key, version, memoryview(data))
    if kind == "response":
        assert key is not None
        return decode_response(key, version, memoryview(data))
    return decode_data(cls, version, memoryview(data))


def agree(message: Struct, version: int) -> None:
    name = type(message).__name__
    ours = ours_encodes(message, version)
    assert kio_message(name, version, ours) == message
    assert ours_decodes(type(message), version, kio_bytes(message, version)) == message
    assert ours_decodes(type(message), version, ours) == message


@pytest.mark.parametrize("name", sorted({name for name, _ in KNOWN_TO_KIO}))
def test_kio_reads_what_we_write_and_we_read_what_kio_writes(name: str) -> None:
    for version in [version for each, version in KNOWN_TO_KIO if each == name]:
        chance = random.Random(f"{name} {version}")
        for _ in range(8):
            agree(make(chance, name, version), version)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.sampled_from(KNOWN_TO_KIO), st.randoms(use_true_random=False))
def test_any_message_that_can_be_made_reads_the_same_in_both_codecs(
    place: tuple[str, int], chance: random.Random
) -> None:
    name, version = place
    agree(make(chance, name, version), version)

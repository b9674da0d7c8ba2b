"""Feeds frames to the codec in this process and judges what it does with them.

The promise: MalformedRequest or a message, nothing else; a message that was read can be written, and what was written
reads the same; memory does not grow; no frame takes long.
"""

from __future__ import annotations

import random
import resource
import time
from collections.abc import Iterable
from typing import Any

from service.wire import messages
from service.wire.base import Struct
from service.wire.codec import (
    MalformedRequest,
    decode_data,
    decode_request,
    decode_response,
    encode_data,
    encode_request,
    encode_response,
    read_request_header,
)
from service.wire.messages.schemas import MESSAGES
from tests.fuzz.mutation import Frame, Target, mutants
from tests.service.wire.making import ALL

MUTANTS_A_MESSAGE = 100
WRITTEN_EVERY = 4  # of the accepted: writing and comparing costs more than reading
# Beyond what the process held after a warm-up of every codec.
GROWTH_MAX_BYTES = 64 << 20
# Of processor time. A frame is a few hundred bytes; reading it takes microseconds.
FRAME_MAX_S = 0.5


class Judge:
    """Counts what became of frames; raises AssertionError with the frame at the first breach."""

    def __init__(self) -> None:
        self.frames = 0
        self.accepted = 0
        self.slowest_s = 0.0

    def see(self, frame: Frame) -> None:
        name, version = frame.target
        self.frames += 1
        message, took = timed(frame)
        if took >= FRAME_MAX_S:  # a collection may fall into a reading: it is the frame's fault if it happens again
            message, took = timed(frame)
        self.slowest_s = max(self.slowest_s, took)
        assert took < FRAME_MAX_S, f"{name} v{version} took {took:.3f} s for {frame.data.hex()}"
        if message is None:
            return
        self.accepted += 1
        if self.accepted % WRITTEN_EVERY:
            return
        again = decoded(frame.target, encoded(frame.target, message))
        # By text: a number that is not one is not equal to itself.
        assert repr_of(again) == repr_of(message), f"{name} v{version} reads {frame.data.hex()} but not what it wrote"

    def see_header(self, data: bytes) -> None:
        self.frames += 1
        try:
            header = read_request_header(memoryview(data))
        except MalformedRequest:
            return
        except BaseException as error:
            raise AssertionError(f"a header raised {error!r} on {data.hex()}") from error
        self.accepted += 1
        assert 10 <= header.body_at <= len(data)


def repr_of(message: Struct) -> str:
    return repr(plain(message))


def plain(value: Any) -> Any:
    """Views as bytes, structs as tuples."""
    if isinstance(value, Struct):
        return (type(value).__name__, *(plain(getattr(value, name)) for name in type(value).field_names))
    if isinstance(value, list):
        return [plain(each) for each in value]
    return bytes(value) if isinstance(value, memoryview) else value


def timed(frame: Frame) -> tuple[Any, float]:
    """The message, None if it was refused, and the processor time that reading it took."""
    name, version = frame.target
    start = time.thread_time()
    try:
        message = decoded(frame.target, memoryview(frame.data))
    except MalformedRequest:
        message = None
    except BaseException as error:
        raise AssertionError(f"{name} v{version} raised {error!r} on {frame.data.hex()}") from error
    return message, time.thread_time() - start


def decoded(target: Target, data: memoryview | bytes) -> Struct:
    kind, key, *_ = MESSAGES[target.name]
    message: Struct
    if kind == "request":
        assert key is not None
        message = decode_request(key, target.version, data)
    elif kind == "response":
        assert key is not None
        message = decode_response(key, target.version, data)
    else:
        message = decode_data(getattr(messages, target.name), target.version, data)
    return message


def encoded(target: Target, message: Struct) -> bytes:
    kind, key, *_ = MESSAGES[target.name]
    if kind == "request":
        assert key is not None
        return encode_request(key, target.version, message)
    if kind == "response":
        assert key is not None
        return b"".join(part for part in encode_response(key, target.version, message) if isinstance(part, bytes))
    return encode_data(message, target.version)


def frames(seed: int, count: int) -> Iterable[Frame]:
    """`count` frames, every API and version in turn, beginning anywhere."""
    chance = random.Random(seed)
    at = chance.randrange(len(ALL))
    while count > 0:
        at = (at + 1) % len(ALL)
        batch = min(count, MUTANTS_A_MESSAGE)
        yield from mutants(chance, Target(*ALL[at]), batch)
        count -= batch


def resident_max_bytes() -> int:
    """The most this process ever held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

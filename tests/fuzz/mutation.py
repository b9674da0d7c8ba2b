"""Hostile frames: well-made messages of every API and version, damaged where it hurts.

A message is written by an encoder that notes where each length and count stands; the mutations know these places. All
choices come from one `random.Random`, so that a seed and a number name a frame for ever.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple, TypeVar

from service.wire import encoders
from service.wire.layout import is_flexible
from tests.service.wire.making import ALL, make

T = TypeVar("T")

BOMBS = [
    struct.pack(">i", 2**31 - 1),
    struct.pack(">i", -1),
    struct.pack(">i", -(2**31)),
    struct.pack(">i", 1_000_000),
    struct.pack(">h", 2**15 - 1),
    struct.pack(">h", -1),
    b"\xff\xff\xff\xff\x0f",  # varints: 2**32 - 1
    b"\xfe\xff\xff\xff\x0f",
    b"\xff\xff\xff\xff\x07",
    b"\x80\x80\x80\x80\x80\x80\x80\x80\x00",
    b"\xff" * 10,
    b"\x80\x01",
    b"\xff\x7f",
    b"\x00",
]
# Tagged fields: one nobody knows, known ones, a size that lies, the same one twice, very many.
TAG_SECTIONS = [
    b"\x01\xff\xff\x03\x03abc",
    b"\x01\x00\x00",
    b"\x01\x00\x7f",
    b"\x02\x00\x01\x00\x00\x01\x00",
    b"\x01\x01\xff\xff\xff\xff\x0f",
    b"\xff\xff\xff\xff\x0f",
    b"\x7f" + b"\x05\x00" * 127,
]


class Target(NamedTuple):
    """What a frame is fed to."""

    name: str
    version: int


class Frame(NamedTuple):
    target: Target
    data: bytes


class MarkingBody(encoders.EncoderBody):
    """Notes in `marks` where the lengths and counts are."""

    def length(self, type_name: str) -> None:
        self.flush()
        self.line("marks.append(sum(map(len, out)))")
        super().length(type_name)


@cache
def marking_encoder(name: str, version: int) -> tuple[Callable[[Any], Any], list[int]]:
    writer = encoders.EncoderWriter(version, is_flexible(name, version))
    marks: list[int] = []
    writer.scope["marks"] = marks
    plain, encoders.EncoderBody = encoders.EncoderBody, MarkingBody  # type: ignore[misc]
    try:
        return writer.compile(name), marks
    finally:
        encoders.EncoderBody = plain  # type: ignore[misc]


def well_made(chance: random.Random, target: Target) -> tuple[bytes, list[int]]:
    """The bytes of a message, and where its lengths and counts are."""
    encode, marks = marking_encoder(*target)
    marks.clear()
    parts = encode(make(chance, *target))
    return b"".join(parts), [mark for mark in marks if parts and mark < len(parts[0])]


def mutants(chance: random.Random, target: Target, count: int) -> Iterator[Frame]:
    """`count` damaged frames from one well-made message."""
    data, marks = well_made(chance, target)
    for _ in range(count):
        frame = data
        for _ in range(pick(chance, (1, 1, 1, 2, 4))):
            frame = pick(chance, MUTATIONS)(chance, frame, marks)
        wrong = Target(*chance.choice(ALL)) if chance.random() < 0.05 else target
        yield Frame(wrong, frame)


def below(chance: random.Random, end: int) -> int:
    """What `randrange` gives, at a third of its price: choices are most of the cost of a frame."""
    return int(chance.random() * end)


def pick(chance: random.Random, among: Sequence[T]) -> T:
    return among[int(chance.random() * len(among))]


def cut(chance: random.Random, data: bytes, marks: list[int]) -> bytes:
    return data[: below(chance, len(data) + 1)]


def bomb(chance: random.Random, data: bytes, marks: list[int]) -> bytes:
    """A length or count that the rest can't hold, or a null, in place of one."""
    at = pick(chance, marks) if marks else below(chance, len(data) + 1)
    what = pick(chance, BOMBS)
    return data[:at] + what + data[at + pick(chance, (0, 1, len(what))) :]


def off_by_some(chance: random.Random, data: bytes, marks: list[int]) -> bytes:
    """A length or count that is almost right."""
    if not marks or not data:
        return data
    at = min(pick(chance, marks) + below(chance, 4), len(data) - 1)
    return data[:at] + bytes([(data[at] + pick(chance, (-2, -1, 1, 2))) & 0xFF]) + data[at + 1 :]


def flip(chance: random.Random, data: bytes, marks: list[int]) -> bytes:
    if not data:
        return data
    at = below(chance, len(data))
    return data[:at] + bytes([data[at] ^ 1 << below(chance, 8)]) + data[at + 1 :]


def noise(chance: random.Random, data: bytes, marks: list[int]) -> bytes:
    at = below(chance, len(data) + 1)
    return data[:at] + chance.randbytes(1 + below(chance, 29)) + data[at + below(chance, 30) :]


def other_tags(chance: random.Random, data: bytes, marks: list[int]) -> bytes:
    """A section of tagged fields where an empty one may have been."""
    at = data.find(0, below(chance, len(data) + 1))
    if at < 0:
        at = len(data)
    return data[:at] + pick(chance, TAG_SECTIONS) + data[at + 1 :]


def moved(chance: random.Random, data: bytes, marks: list[int]) -> bytes:
    """One part twice, or in the place of another: types that don't belong there."""
    first, second = sorted((below(chance, len(data) + 1), below(chance, len(data) + 1)))
    at = below(chance, len(data) + 1)
    return data[:at] + data[first:second] + data[at:]


def only_noise(chance: random.Random, data: bytes, marks: list[int]) -> bytes:
    return chance.randbytes(below(chance, 200))


MUTATIONS = [cut, bomb, bomb, bomb, off_by_some, flip, noise, other_tags, moved, only_noise]

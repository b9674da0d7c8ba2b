"""A short run of the long one, and every way to cut a message short."""

from __future__ import annotations

import random

import pytest

from service.wire.codec import MalformedRequest, write_request_header
from tests.fuzz.codec import Judge, decoded, frames
from tests.fuzz.mutation import Frame, Target, well_made
from tests.service.wire.making import ALL

SHORT_RUN = 60_000


def test_hostile_frames_are_read_or_refused_and_nothing_else() -> None:
    judge = Judge()
    for frame in frames(seed=20_26, count=SHORT_RUN):
        judge.see(frame)
    # The mutations damage, but not always: a run that refuses or accepts everything tests nothing.
    assert 0.1 < judge.accepted / judge.frames < 0.9


def test_a_message_of_any_api_cut_at_any_byte_is_refused() -> None:
    """Nothing that the definitions describe can be read from fewer bytes than it has."""
    for name, version in ALL:
        target = Target(name, version)
        data, _ = well_made(random.Random(f"{name} {version}"), target)
        step = max(1, len(data) // 60)
        for end in [*range(0, len(data), step), len(data) - 1]:
            if end < 0:
                continue
            with pytest.raises(MalformedRequest):
                decoded(target, memoryview(data)[:end])


def test_hostile_headers_are_read_or_refused() -> None:
    judge = Judge()
    chance = random.Random(7)
    for _ in range(20_000):
        header = bytearray(
            write_request_header(
                chance.randrange(-2, 80), chance.randrange(-1, 20), 1, chance.choice([None, "c", "x" * 200])
            )
        )
        for _ in range(chance.randrange(4)):
            header[chance.randrange(len(header))] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)))
        judge.see_header(bytes(header[: chance.randrange(len(header) + 1)] if chance.random() < 0.3 else header))
    assert judge.accepted > 1000


def test_the_same_seed_makes_the_same_frames() -> None:
    """Or a breach could not be looked at again."""
    first: list[Frame] = list(frames(seed=3, count=2000))
    assert first == list(frames(seed=3, count=2000))
    assert first != list(frames(seed=4, count=2000))

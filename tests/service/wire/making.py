"""Makes messages: every field of a version, nulls where they may be, empty and long values among them.

All choices come from one source, `random.Random` or Hypothesis, so that a message can be made again.
"""

from __future__ import annotations

import random
from functools import cache
from typing import Any

from service.wire import messages
from service.wire.base import Struct
from service.wire.error_codes import ErrorCode
from service.wire.layout import Field, layout_of
from service.wire.messages.schemas import MESSAGES

INTEGERS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
ERRORS = [int(each) for each in ErrorCode]
TEXTS = ["", "a", "topic", "größe", "x" * 126, "y" * 127, "z" * 128, "w" * 300]


def versions_of(name: str) -> range:
    first, _, last = MESSAGES[name][2].partition("-")
    return range(int(first), int(last or first) + 1)


ALL = [(name, version) for name in MESSAGES for version in versions_of(name)]
REQUESTS = [each for each in ALL if MESSAGES[each[0]][0] == "request"]
RESPONSES = [each for each in ALL if MESSAGES[each[0]][0] == "response"]
# The keys of APIs of our own, which nobody else knows, start here; Kafka's are below 100. So do the tags of our own.
OWN_KEYS, OWN_TAGS = 20_000, 10_000
KAFKAS = [each for each in ALL if (MESSAGES[each[0]][1] or 0) < OWN_KEYS]
DATA = [each for each in ALL if MESSAGES[each[0]][0] not in ("request", "response")]


known_layout = cache(layout_of)


def make(chance: random.Random, name: str, version: int) -> Struct:
    """A message whose fields of `version` are random, whose others hold their defaults."""
    message: Struct = getattr(messages, name)()
    layout = known_layout(name, version)
    for field in (*layout.plain, *layout.tagged):
        setattr(message, field.name, value(chance, field, version))
    return message


def is_own(field: Field) -> bool:
    return field.tag is not None and field.tag >= OWN_TAGS


def value(chance: random.Random, field: Field, version: int) -> Any:
    if is_own(field) or (field.tag is not None and chance.random() < 0.4):
        return field.default  # a tag of our own always: kio reads no message with a tag that it does not know
    if field.nullable and chance.random() < 0.2:
        return None
    if field.is_array:
        return [element(chance, field, version) for _ in range(chance.choice([0, 1, 1, 2, 3]))]
    return element(chance, field, version)


def element(chance: random.Random, field: Field, version: int) -> Any:
    if field.is_struct:
        made = make(chance, field.type, version)
        # A tagged struct that holds its defaults and one that was not sent are the same to kio; we say None.
        return None if field.tag is not None and not field.is_array and made == type(made)() else made
    match field.type:
        case "bool":
            return chance.random() < 0.5
        case "uint16":
            return chance.randrange(2**16)
        case "uint32":
            return chance.randrange(2**32)
        case "float64":
            return chance.choice([0.0, -1.5, 1e300, chance.random()])
        case "string":
            return chance.choice(TEXTS)
        case "uuid":
            return chance.choice([bytes(16), chance.randbytes(16)])
        case "bytes" | "records":
            return chance.randbytes(chance.choice([0, 1, 127, 128, 500]))
    return integer(chance, field)


def integer(chance: random.Random, field: Field) -> int:
    """Of any size, but only what kio has a Python type for: known errors, times since 1970."""
    bits = INTEGERS[field.type]
    if "error_code" in field.name:
        return chance.choice(ERRORS)
    top = 1 << (bits - 1)
    if bits == 64 and (field.name.endswith("_ms") or "timestamp" in field.name or "time" in field.name):
        return chance.choice([0, 1, 1_700_000_000_123, 2**40])
    return chance.choice([0, 1, -1, top - 1, -top, chance.randrange(-top, top)])

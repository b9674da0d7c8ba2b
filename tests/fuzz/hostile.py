"""Requests that are well made and mean harm: every field of every API at the edge of what its type can say.

Names are drawn from a world: what exists and may be harmed (any client may delete it), what exists and may only be
asked about, and what does not exist. All choices come from one `random.Random`.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from log.batch import CRC_AT, HEADER_BYTES, build_batch, crc32c
from service.api.routes import ROUTES
from service.wire import messages
from service.wire.base import Struct
from service.wire.layout import Field
from service.wire.messages.schemas import MESSAGES
from service.wire.messages.versions import ApiKey
from tests.service.wire.making import INTEGERS, known_layout

NAME_OF_KEY = {key: name for name, (kind, key, *_) in MESSAGES.items() if kind == "request" and key is not None}
OFFERED = [
    (NAME_OF_KEY[key], version) for key, route in ROUTES.items() for version in range(route.lowest, route.highest + 1)
]

# What these do to what they name is what they are for.
HARMFUL = {
    NAME_OF_KEY[key]
    for key in (
        *(ApiKey.PRODUCE, ApiKey.OFFSET_COMMIT, ApiKey.OFFSET_DELETE, ApiKey.TXN_OFFSET_COMMIT, ApiKey.DELETE_RECORDS),
        *(ApiKey.DELETE_TOPICS, ApiKey.DELETE_GROUPS, ApiKey.CREATE_PARTITIONS, ApiKey.INIT_PRODUCER_ID),
        *(ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.ADD_OFFSETS_TO_TXN, ApiKey.END_TXN, ApiKey.WRITE_TXN_MARKERS),
        *(ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP, ApiKey.HEARTBEAT, ApiKey.LEAVE_GROUP, ApiKey.CONSUMER_GROUP_HEARTBEAT),
        *(ApiKey.ALTER_CONFIGS, ApiKey.INCREMENTAL_ALTER_CONFIGS, ApiKey.END_BRANCHES),
    )
}
# These may wait for as long as they say.
WAITING = {"FetchRequest", "JoinGroupRequest", "SyncGroupRequest"}

TEXTS = [
    "",
    " ",
    ".",
    "..",
    "a/b",
    "\0",
    "é" * 40,
    "x" * 249,
    "x" * 250,
    "y" * 32_767,
    "::",
    "victim::b",
    "-1",
    "2147483648",
]
KEYS = [
    "retention.ms",
    "cleanup.policy",
    "max.message.bytes",
    "segment.ms",
    "no.such.key",
    "",
    "consumer.session.timeout.ms",
]
INTERNAL = ["__consumer_offsets", "__transaction_state"]
MOST_PARTITIONS = 20  # of a topic made here: a broker that has a hundred thousand of them is busy with honest work


@dataclass
class World:
    """What exists. `honest` is never harmed."""

    honest: list[str]
    victims: list[str]
    ids: list[bytes] = field(default_factory=list)
    """Of topics and of members."""
    numbers: list[int] = field(default_factory=list)
    """Producer ids, epochs, offsets as they are."""


def hostile(chance: random.Random, name: str, version: int, world: World, *, many: int = 3) -> Struct:
    """A request of that version. `many`: elements of an array, now and then."""
    return _Maker(chance, name, version, world, many).struct(name)


class _Maker:
    def __init__(self, chance: random.Random, name: str, version: int, world: World, many: int) -> None:
        self.chance = chance
        self.name = name
        self.version = version
        self.many = many
        self.numbers = world.numbers
        self.ids = [bytes(16), b"\xff" * 16, *world.ids]
        self.names = [*world.victims, *world.victims, *(INTERNAL if name != "CreateTopicsRequest" else []), *TEXTS]
        if name not in HARMFUL:
            self.names += 2 * world.honest
            if name == "CreateTopicsRequest":
                self.names = [*world.victims, *TEXTS]

    def struct(self, name: str) -> Struct:
        message: Struct = getattr(messages, name)()
        layout = known_layout(name, self.version)
        for each in (*layout.plain, *layout.tagged):
            if each.tag is None or self.chance.random() < 0.5:
                setattr(message, each.name, self.value(each))
        self._spare(message)
        return message

    def _spare(self, message: Struct) -> None:
        """Takes back what is no attack but an order: a broker that shall take no connections takes none."""
        if hasattr(message, "resource_type") and self.name in HARMFUL and message.resource_type == 4:
            message.resource_type = self.chance.choice([2, 8, 16, 32, 0, 127])
        if isinstance(message, messages.CreatableTopic | messages.CreatePartitionsTopic):
            for count in ("num_partitions", "count"):
                if 0 < getattr(message, count, 0) < 100_000:
                    setattr(message, count, self.chance.randrange(MOST_PARTITIONS))

    def value(self, each: Field) -> Any:
        if each.nullable and self.chance.random() < 0.2:
            return None
        if not each.is_array:
            return self.element(each)
        count = self.chance.choice([0, 1, 1, 1, 2, 3])
        if self.many and self.chance.random() < 0.1:
            count, self.many = self.many, 0  # one long array in a request
        some = [self.element(each) for _ in range(min(count, 50))]
        return some if count <= len(some) else [self.chance.choice(some) for _ in range(count)]

    def element(self, each: Field) -> Any:
        if each.is_struct:
            return self.struct(each.type)
        match each.type:
            case "bool":
                return self.chance.random() < 0.5
            case "string":
                return self.chance.choice(KEYS if each.name in ("config_name", "configuration_keys") else self.names)
            case "uuid":
                return self.chance.choice(self.ids)
            case "records":
                return batch(self.chance, self.numbers)
            case "bytes":
                return self.chance.choice([b"", b"\0", self.chance.randbytes(100), bytes(40_000)])
            case "float64":
                return self.chance.choice([0.0, -1.0, float("inf"), float("nan")])
            case "uint16" | "uint32":
                return self.chance.choice([0, 1, 2 ** int(each.type[4:]) - 1])
        return self.integer(each)

    def integer(self, each: Field) -> int:
        top = 1 << (INTEGERS[each.type] - 1)
        choices = [0, 1, 1, -1, -2, 2, top - 1, -top, top - 2, self.chance.randrange(-top, top)]
        choices += [number for number in self.numbers if -top <= number < top]
        if each.name == "acks":
            return self.chance.choice([-1, 1, 1, 7])
        return self.chance.choice(choices)


def batch(chance: random.Random, numbers: list[int]) -> bytes:
    """A record batch that carries a right checksum over a header that may say anything."""
    now_ms = chance.choice([0, -1, 1_800_000_000_000, 2**62])
    records = [(b"k", b"v" * chance.choice([0, 1, 1000]), (), now_ms)] * chance.choice([1, 2, 5])
    data = bytearray(build_batch(records))
    for _ in range(chance.choice([0, 1, 1, 2, 4])):
        at, size = chance.choice(
            [(0, 8), (8, 4), (12, 4), (21, 2), (23, 4), (27, 8), (35, 8), (43, 8), (51, 2), (53, 4), (57, 4)]
        )
        top = 1 << (8 * size - 1)
        edges = [
            0,
            1,
            -1,
            top - 1,
            -top,
            0x10,
            0x20,
            0x30,
            0x40,
            *(number for number in numbers if -top <= number < top),
        ]
        data[at : at + size] = chance.choice(edges).to_bytes(size, "big", signed=True)
    if chance.random() < 0.1:
        del data[chance.randrange(HEADER_BYTES, len(data)) :]
    data[CRC_AT : CRC_AT + 4] = crc32c(bytes(data[CRC_AT + 4 :])).to_bytes(4, "big")
    return bytes(data)

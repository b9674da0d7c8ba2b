"""What one struct looks like in one version: `messages/schemas.py`, parsed for the two compilers of codecs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from service.wire import messages
from service.wire.base import StructType, fresh_default
from service.wire.messages.schemas import MESSAGES, STRUCTS

# Struct format characters of the types whose size never changes.
FIXED_FORMATS = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "uint16": "H",
    "uint32": "I",
    "int32": "i",
    "int64": "q",
    "float64": "d",
    "uuid": "16s",
}
FIXED_SIZES = {"?": 1, "b": 1, "B": 1, "h": 2, "H": 2, "I": 4, "i": 4, "q": 8, "d": 8, "16s": 16}


class UnknownVersion(LookupError):
    """Nobody defined this message in this version."""


@dataclass(frozen=True, slots=True)
class Field:
    """One field as it is in one version."""

    name: str
    type: str  # without the brackets of an array
    is_array: bool
    nullable: bool
    tag: int | None
    default: Any

    @property
    def is_struct(self) -> bool:
        return self.type[0].isupper()


@dataclass(frozen=True, slots=True)
class Layout:
    """A struct in one version: fields in order, tagged fields by tag, and fields this version does not have."""

    cls: StructType
    plain: tuple[Field, ...]
    tagged: tuple[Field, ...]
    absent: tuple[Field, ...]


def within(version: int, versions: str) -> bool:
    """Whether `version` is in a range as the definitions write it: `3`, `3-5`, `3+`, `none`."""
    if versions == "none":
        return False
    if versions.endswith("+"):
        return version >= int(versions[:-1])
    first, _, last = versions.partition("-")
    return int(first) <= version <= int(last or first)


def is_flexible(message: str, version: int) -> bool:
    """Whether `message` has compact lengths and tagged fields in `version`; UnknownVersion if it lacks that."""
    if message not in MESSAGES or not within(version, MESSAGES[message][2]):
        raise UnknownVersion(f"{message} has no version {version}")
    return within(version, MESSAGES[message][3])


def layout_of(struct: str, version: int) -> Layout:
    cls: StructType = getattr(messages, struct)
    plain: list[Field] = []
    tagged: list[Field] = []
    absent: list[Field] = []
    for line in STRUCTS[struct]:
        name, type_name, versions, *rest = line.split(" ")
        more = dict(word.split("=") for word in rest)
        tagged_versions, _, tag = more.get("tagged", "none:0").partition(":")
        is_tagged = within(version, tagged_versions)
        field = Field(
            name,
            type_name.removeprefix("[]"),
            type_name.startswith("[]"),
            within(version, more.get("null", "none")),
            int(tag) if is_tagged else None,
            fresh_default(cls, name),
        )
        if is_tagged:
            tagged.append(field)
        else:
            (plain if within(version, versions) else absent).append(field)
    return Layout(cls, tuple(plain), tuple(sorted(tagged, key=lambda each: each.tag or 0)), tuple(absent))


def least_bytes(field: Field, version: int, flexible: bool) -> int:
    """How many bytes `field` takes at least: what bounds a count before anything is allocated for it."""
    length_of_variable = 1 if flexible else 2 if field.type == "string" else 4
    if field.is_array:
        return 1 if flexible else 4
    if field.is_struct:
        return 1 if field.nullable else least_struct_bytes(field.type, version, flexible)
    if field.type in FIXED_FORMATS:
        return FIXED_SIZES[FIXED_FORMATS[field.type]]
    return length_of_variable


def least_element_bytes(field: Field, version: int, flexible: bool) -> int:
    """The same for one element of an array. Never 0, so that a count is always bounded."""
    element = Field(field.name, field.type, False, False, None, None)
    return max(1, least_bytes(element, version, flexible))


def least_struct_bytes(struct: str, version: int, flexible: bool) -> int:
    return flexible + sum(least_bytes(field, version, flexible) for field in layout_of(struct, version).plain)


class FunctionBody:
    """The lines of a function that is being written, and the formats of the fields of fixed size that wait to be packed
    or unpacked together.
    """

    def __init__(self, *, flexible: bool, in_steps: bool) -> None:
        self.flexible = flexible
        self.in_steps = in_steps
        self.lines: list[str] = []
        self.indent = 1
        self.formats: list[str] = []

    def line(self, text: str) -> None:
        self.lines.append(" " * self.indent + text)

"""What one configuration key is: its name, type, default, checks and meaning.

The tables beside this (a broker's keys, a topic's, a group's) are rows of this one shape. A `Setting` turns the text
that a user wrote into a value. If it can't, it says why in Kafka's own words, because clients show that message to
people.

A `Setting` in a class body is read as an attribute of that class's instances (`config.num_partitions`). The attribute
is typed, and as fast as any other: the value is in the instance's `__dict__`, where Python looks first.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Any, Final, Generic, TypeVar, overload

T = TypeVar("T")

MAX_INT = 2**31 - 1
MAX_LONG = 2**63 - 1

MAX_SETTINGS: Final = 500
"""The most settings of one topic, broker or group. Kafka has some three hundred for a broker."""
MAX_BYTES: Final = 64 << 10
"""The most bytes that the settings of one topic, broker or group take. All are read whenever one changes."""
BYTES_OF_ONE: Final = 150
"""So many bytes of a value take as long to read as it takes to look its setting up."""
LONGEST_VALUE: Final = 2**15 - 1
"""A longer value can't be shown in every version of DescribeConfigs. A list that is appended to could become longer."""

_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]+\Z", re.ASCII)


class ConfigError(Exception):
    """A value that can't be accepted. The text says which and why, with one line for each problem."""


class ConfigType(IntEnum):
    """Kafka's types, by their numbers on the wire (DescribeConfigs). A value of unknown type may be a secret."""

    UNKNOWN = 0
    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class Mode(Enum):
    """For which scope a broker's key may be changed while the broker runs."""

    READ_ONLY = "read-only"
    PER_BROKER = "per-broker"
    CLUSTER_WIDE = "cluster-wide"


class Status(Enum):
    """What effect a key has here."""

    IMPLEMENTED = "implemented"
    NO_EFFECT = "accepted without effect"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Synonym:
    """A broker's key that gives a topic's key its default. The topic's value is the broker's value times `factor` (for
    example hours to milliseconds).
    """

    name: str
    factor: int = 1


@dataclass(frozen=True)
class Setting(Generic[T]):
    """One key. `parse` also checks the value. `default_text` is the default as a user would write it; None means that
    there is no default.
    """

    name: str
    kind: ConfigType
    default: T
    default_text: str | None
    parse: Callable[[str], T]
    doc: str
    mode: Mode = Mode.READ_ONLY
    status: Status = Status.IMPLEMENTED
    synonyms: tuple[Synonym, ...] = ()
    choices: str = ""

    @property
    def sensitive(self) -> bool:
        return self.kind in (ConfigType.PASSWORD, ConfigType.UNKNOWN)

    @property
    def attribute(self) -> str:
        return self.name.replace(".", "_")

    @overload
    def __get__(self, instance: None, owner: type) -> "Setting[T]": ...

    @overload
    def __get__(self, instance: object, owner: type) -> T: ...

    def __get__(self, instance: object | None, owner: type) -> "Setting[T] | T":
        # This is not a data descriptor, so an instance's own `__dict__` wins. This method runs for the class only.
        if instance is None:
            return self
        raise AttributeError(f"{self.name} was not given its value")


def text_of(value: object) -> str | None:
    """A value as a user would write it."""
    match value:
        case None:
            return None
        case bool():
            return str(value).lower()
        case tuple():
            return ",".join(value)
        case _:
            return str(value)


def check_room(values: Mapping[str, str]) -> None:
    """Raise `ConfigError` if these are more than one topic, broker or group may have."""
    if len(values) > MAX_SETTINGS:
        raise ConfigError(f"More than {MAX_SETTINGS} settings of one resource.")
    for name, value in values.items():
        if len(value.encode()) > LONGEST_VALUE:
            raise ConfigError(f"The value of {name} is longer than {LONGEST_VALUE} bytes.")
    if settings_bytes(values) > MAX_BYTES:
        raise ConfigError(f"The settings of one resource take more than {MAX_BYTES} bytes.")


def settings_bytes(values: Mapping[str, str]) -> int:
    """How much there is to read in these settings, roughly."""
    return sum(map(len, values)) + sum(map(len, values.values()))


def invalid(name: str, value: object, why: str) -> ConfigError:
    return ConfigError(f"Invalid value {value} for configuration {name}: {why}")


# --- parsing, as Kafka's ConfigDef does it -------------------------------------------------------------------------


def parse_whole_number(name: str, text: str, kind: ConfigType) -> int:
    bits = {ConfigType.SHORT: 15, ConfigType.INT: 31, ConfigType.LONG: 63}[kind]
    trimmed = text.strip()
    if _WHOLE_NUMBER.match(trimmed) and len(trimmed) <= 40:
        value = int(trimmed)
        if -(2**bits) <= value < 2**bits:
            return value
    raise invalid(name, trimmed, f"Not a number of type {kind.name}")


def parse_boolean(name: str, text: str) -> bool:
    match text.strip().lower():
        case "true":
            return True
        case "false":
            return False
        case _:
            raise invalid(name, text.strip(), "Expected value to be either true or false")


def parse_double(name: str, text: str) -> float:
    try:
        return float(text.strip())
    except ValueError:
        raise invalid(name, text.strip(), "Not a number of type DOUBLE") from None


def split_list(text: str) -> tuple[str, ...]:
    trimmed = text.strip()
    return tuple(item.strip() for item in trimmed.split(",")) if trimmed else ()


def check_range(name: str, value: float, at_least: float | None, at_most: float | None) -> None:
    if at_least is not None and value < at_least:
        raise invalid(name, value, f"Value must be at least {at_least}")
    if at_most is not None and value > at_most:
        raise invalid(name, value, f"Value must be no more than {at_most}")


def check_choice(name: str, value: str, choices: Sequence[str]) -> None:
    if value not in choices:
        raise invalid(name, value, f"String must be one of: {', '.join(choices)}")


def _range_text(at_least: float | None, at_most: float | None) -> str:
    low = "" if at_least is None else f"{at_least}"
    return f"[{low},...,{at_most}]" if at_most is not None else f"[{low},...]" if low else ""


# --- rows of the tables ---------------------------------------------------------------------------------------------


def _number(
    name: str, kind: ConfigType, at_least: int | None, at_most: int | None, also: Callable[[str, int], None] | None
) -> Callable[[str], int]:
    def parse(text: str) -> int:
        value = parse_whole_number(name, text, kind)
        check_range(name, value, at_least, at_most)
        if also is not None:
            also(name, value)
        return value

    return parse


def integer(
    name: str,
    default: int,
    doc: str,
    *,
    kind: ConfigType = ConfigType.INT,
    at_least: int | None = None,
    at_most: int | None = None,
    also: Callable[[str, int], None] | None = None,
    **more: Any,
) -> Setting[int]:
    parse = _number(name, kind, at_least, at_most, also)
    return Setting(name, kind, default, str(default), parse, doc, choices=_range_text(at_least, at_most), **more)


def long(
    name: str, default: int, doc: str, *, at_least: int | None = None, at_most: int | None = None, **more: Any
) -> Setting[int]:
    return integer(name, default, doc, kind=ConfigType.LONG, at_least=at_least, at_most=at_most, **more)


def optional_integer(
    name: str,
    doc: str,
    *,
    kind: ConfigType = ConfigType.INT,
    at_least: int | None = None,
    also: Callable[[str, int], None] | None = None,
    **more: Any,
) -> Setting[int | None]:
    parse = _number(name, kind, at_least, None, also)
    return Setting(name, kind, None, None, parse, doc, choices=_range_text(at_least, None), **more)


def optional_long(name: str, doc: str, *, at_least: int | None = None, **more: Any) -> Setting[int | None]:
    return optional_integer(name, doc, kind=ConfigType.LONG, at_least=at_least, **more)


def double(
    name: str, default: float, doc: str, *, at_least: int | None = None, at_most: int | None = None, **more: Any
) -> Setting[float]:
    def parse(text: str) -> float:
        value = parse_double(name, text)
        check_range(name, value, at_least, at_most)
        return value

    choices = _range_text(at_least, at_most)
    return Setting(name, ConfigType.DOUBLE, default, str(default), parse, doc, choices=choices, **more)


def boolean(name: str, default: bool, doc: str, **more: Any) -> Setting[bool]:
    def parse(text: str) -> bool:
        return parse_boolean(name, text)

    return Setting(name, ConfigType.BOOLEAN, default, str(default).lower(), parse, doc, **more)


def text(name: str, default: str, doc: str, *, one_of: Sequence[str] = (), **more: Any) -> Setting[str]:
    def parse(value: str) -> str:
        if one_of:
            check_choice(name, value, one_of)
        return value

    return Setting(name, ConfigType.STRING, default, default, parse, doc, choices=", ".join(one_of), **more)


def optional_text(name: str, doc: str, *, one_of: Sequence[str] = (), **more: Any) -> Setting[str | None]:
    def parse(value: str) -> str | None:
        if value and one_of:
            check_choice(name, value, one_of)
        return value or None

    return Setting(name, ConfigType.STRING, None, None, parse, doc, choices=", ".join(one_of), **more)


def password(name: str, doc: str, **more: Any) -> Setting[str | None]:
    return Setting(name, ConfigType.PASSWORD, None, None, lambda value: value or None, doc, **more)


def listing(
    name: str,
    default: Sequence[str],
    doc: str,
    *,
    one_of: Sequence[str] = (),
    also: Callable[[str, tuple[str, ...]], None] | None = None,
    **more: Any,
) -> Setting[tuple[str, ...]]:
    def parse(value: str) -> tuple[str, ...]:
        items = tuple(dict.fromkeys(split_list(value)))
        if "" in items:
            raise ConfigError(f"Configuration '{name}' values must not be empty.")
        for item in items:
            if one_of:
                check_choice(name, item, one_of)
        if also is not None:
            also(name, items)
        return items

    choices = ", ".join(one_of)
    return Setting(name, ConfigType.LIST, tuple(default), ",".join(default), parse, doc, choices=choices, **more)


def optional_listing(name: str, doc: str, **more: Any) -> Setting[tuple[str, ...] | None]:
    parse = listing(name, (), doc).parse
    return Setting(name, ConfigType.LIST, None, None, lambda value: parse(value) or None, doc, **more)

"""The class behind every message: slots, defaults, equality, a short repr. The messages and the codec use it.

A message reads like a dataclass and type checkers take it for one, `dataclasses.replace` and `fields` work on it. It is
not made by `dataclasses.dataclass`, because that compiles three functions a class while importing: 240 ms for the 270
classes of the protocol, a quarter of the time a broker has to start. Here `__init__` is compiled when first called.
"""

from __future__ import annotations

import dataclasses
from dataclasses import MISSING, Field, field
from functools import cache
from typing import Any, Generic, TypeVar, dataclass_transform

Response = TypeVar("Response", bound="Struct", covariant=True)


class LazyFields:
    """`__dataclass_fields__`, built once; a descriptor, so that classes and instances both find it."""

    def __get__(self, instance: object, owner: StructType) -> dict[str, Field[Any]]:
        return _fields_of(owner)


@cache
def _fields_of(owner: StructType) -> dict[str, Field[Any]]:
    twin = dataclasses.make_dataclass(
        owner.__name__, [(name, "object", _as_field(owner.defaults[name])) for name in owner.field_names]
    )
    return {each.name: each for each in dataclasses.fields(twin)}


def _as_field(default: Any) -> Any:
    return field(default_factory=default.default_factory) if isinstance(default, Field) else field(default=default)


@dataclass_transform(field_specifiers=(field,))
class StructType(type):
    """Turns a class body of `name: type = default` into a slotted class."""

    field_names: tuple[str, ...]
    defaults: dict[str, Any]  # a value, or a `field(default_factory=...)`

    def __new__(mcls, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> StructType:
        names = tuple(namespace.get("__annotations__", ()))
        defaults = {each: namespace.pop(each) for each in names}
        namespace["__slots__"] = namespace["__match_args__"] = names
        made = super().__new__(mcls, name, bases, namespace)
        made.field_names = names
        made.defaults = defaults
        return made


class Struct(metaclass=StructType):
    """One struct of the protocol. Mutable, compared by value, not hashable."""

    __dataclass_fields__ = LazyFields()

    def __init__(self, *values: Any, **named: Any) -> None:
        cls = type(self)
        cls.__init__ = _compiled_init(cls)  # type: ignore[method-assign]
        cls.__init__(self, *values, **named)

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        for name in type(self).field_names:  # noqa: SIM110 - `all` makes a generator, and followers compare all the time
            if getattr(self, name) != getattr(other, name):
                return False
        return True

    def __repr__(self) -> str:
        """What differs from the defaults."""
        shown = (
            f"{name}={getattr(self, name)!r}"
            for name in type(self).field_names
            if getattr(self, name) != fresh_default(type(self), name)
        )
        return f"{type(self).__name__}({', '.join(shown)})"


class Request(Struct, Generic[Response]):
    """A request, which knows the type of its answer."""


def fresh_default(cls: StructType, name: str) -> Any:
    """The value that a field holds when nobody gave one."""
    default = cls.defaults[name]
    if not isinstance(default, Field):
        return default
    assert default.default_factory is not MISSING
    return default.default_factory()


def _compiled_init(cls: StructType) -> Any:
    """`__init__` of `cls`, with the defaults as parameters' defaults and a fresh object for each factory."""
    scope: dict[str, Any] = {}
    parameters, lines = [], []
    for name, default in cls.defaults.items():
        scope[f"default_{name}"] = default
        parameters.append(f"{name}=default_{name}")
        if isinstance(default, Field):
            scope[f"fresh_{name}"] = default.default_factory
            lines.append(f"self.{name} = fresh_{name}() if {name} is default_{name} else {name}")
        else:
            lines.append(f"self.{name} = {name}")
    source = f"def __init__({', '.join(['self', *parameters])}):\n " + "\n ".join(lines or ["pass"])
    exec(source, scope)
    return scope["__init__"]

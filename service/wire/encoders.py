"""Compiles the encoder of one struct in one version: a message to bytes, and slices of files between them.

What always holds: a field that the version lacks is left out; a tagged field is written only when it differs from its
default. Values come from our own code, so nothing is forgiven: a null where none may be, or a number that does not fit,
raises. Straight source like that of the decoders: neighbouring fields of fixed size, and the length or count behind
them, are one `Struct.pack`; `in_steps`, a generator as there.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct, pack
from typing import TYPE_CHECKING, Any

from service.wire.decoders import ELEMENTS_A_STEP, LONGEST_STRING
from service.wire.layout import FIXED_FORMATS, Field, FunctionBody, Layout, is_flexible, layout_of

if TYPE_CHECKING:
    from log.disk import FileSlice

Encode = Callable[[Any], "list[bytes | FileSlice]"]


def compile_encoder(message: str, version: int, *, in_steps: bool = False) -> Encode:
    """The encoder of `message`: `encode(message) -> parts`. Bytes are never neighbours, unless they come `in_steps`."""
    writer = EncoderWriter(version, is_flexible(message, version))
    return writer.compile(message, in_steps=in_steps)


def varint(value: int) -> bytes:
    """An unsigned varint, least significant seven bits first."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def clipped(text: str) -> bytes:
    """A text, or so much of its beginning as a string of the protocol may hold."""
    data = text.encode()
    if len(data) <= LONGEST_STRING:
        return data
    return data[:LONGEST_STRING].decode(errors="ignore").encode()


def stored_size(records: bytes | memoryview | list[bytes | FileSlice]) -> int:
    """How many bytes `records` are, wherever they lie."""
    if isinstance(records, list):
        return sum(len(each) if isinstance(each, (bytes, memoryview)) else each.size for each in records)
    return len(records)


def add_stored(
    done: list[bytes | FileSlice], out: list[bytes | memoryview], records: bytes | memoryview | list[bytes | FileSlice]
) -> None:
    """Adds `records` behind what was written: bytes to `out`; before a slice of a file, `out` moves to `done`."""
    if not isinstance(records, list):
        out.append(records)
        return
    for each in records:
        if isinstance(each, (bytes, memoryview)):
            out.append(each)
            continue
        if out:
            done.append(b"".join(out))
            out.clear()
        done.append(each)


class EncoderWriter:
    """Writes the functions of one message in one version."""

    def __init__(self, version: int, flexible: bool) -> None:
        self.version = version
        self.flexible = flexible
        self.functions: list[str] = []
        self.scope: dict[str, Any] = {
            "pack": pack,
            "varint": varint,
            "clipped": clipped,
            "stored_size": stored_size,
            "add_stored": add_stored,
            "length_byte": [bytes([value]) for value in range(128)],
        }

    def compile(self, message: str, *, in_steps: bool = False) -> Encode:
        body = EncoderBody(self, in_steps=in_steps)
        body.struct(message, 0)
        body.flush()
        lines = ["def encode(o0):", " done = []", " out = []", " write = out.append"]
        if in_steps:
            lines.append(f" step = {ELEMENTS_A_STEP}")
        lines += [*body.lines, " if out: done.append(b''.join(out))", " return done"]
        if in_steps:
            lines.append(" yield")  # a generator, also where there is no array
        self.functions.append("\n".join(lines))
        exec(compile("\n\n".join(self.functions), f"<encoder of {message} v{self.version}>", "exec"), self.scope)
        encode: Encode = self.scope["encode"]
        return encode

    def constant(self, name: str, value: Any) -> str:
        self.scope[name] = value
        return name

    def tags_function(self, layout: Layout) -> str:
        """A function that writes the tagged fields of `o0`, their count first."""
        name = f"tags_{len(self.functions)}"
        self.functions.append("")  # takes the name
        lines = [f"def {name}(o0):", " section = []"]
        for field in layout.tagged:
            body = EncoderBody(self)
            body.indent = 2
            body.field(field, 0)
            body.flush()
            lines += [f" if {is_set(field, 'o0')}:", "  out = []", "  write = out.append", *body.lines]
            lines += ["  value = b''.join(out)", f"  section.append(varint({field.tag}) + varint(len(value)) + value)"]
        lines += [" return varint(len(section)) + b''.join(section)"]
        self.functions[int(name.removeprefix("tags_"))] = "\n".join(lines)
        return name


def is_set(field: Field, own: str) -> str:
    """The condition under which a tagged field is written."""
    value = f"{own}.{field.name}"
    if field.default is None:
        return f"{value} is not None"
    if field.is_array and field.nullable:
        return f"{value} is None or {value}"
    if field.is_struct:
        return f"{value} != {field.type}()"
    return value if not field.default else f"{value} != {field.default!r}"


class EncoderBody(FunctionBody):
    """The lines of one function, and the values of fixed size that wait to be packed together."""

    def __init__(self, writer: EncoderWriter, *, in_steps: bool = False) -> None:
        super().__init__(flexible=writer.flexible, in_steps=in_steps)
        self.writer = writer
        self.values: list[str] = []

    def packed(self) -> str:
        """The expression of what waits, which is then done; b'' if nothing does."""
        formats, values = "".join(self.formats), ", ".join(self.values)
        self.formats, self.values = [], []
        if not formats:
            return "b''"
        if not values:  # only zeros
            return repr(bytes(len(formats)))
        name = "pack_" + formats.replace("?", "z")
        return f"{self.writer.constant(name, Struct('>' + formats).pack)}({values})"

    def flush(self) -> None:
        if self.formats:
            self.line(f"write({self.packed()})")

    def length(self, type_name: str) -> None:
        """Writes what waits and the length or count `n` (-1: null)."""
        if not self.flexible:
            self.formats.append("h" if type_name == "string" else "i")
            self.values.append("n")
            self.flush()
            return
        if not self.formats:
            self.line("write(length_byte[n + 1] if n < 127 else varint(n + 1))")
            return
        formats, values = list(self.formats), list(self.values)
        long = self.packed()
        self.formats, self.values = [*formats, "B"], [*values, "n + 1"]
        self.line(f"write({self.packed()} if n < 127 else {long} + varint(n + 1))")

    def struct(self, struct: str, depth: int) -> None:
        layout = layout_of(struct, self.writer.version)
        for field in layout.plain:
            self.field(field, depth)
        if not self.flexible:
            return
        if not layout.tagged:
            self.formats.append("x")
            return
        self.flush()
        for field in layout.tagged:
            if field.is_struct:
                self.writer.constant(field.type, type(field.default))
        tags = self.writer.tags_function(layout)
        condition = " or ".join(is_set(field, f"o{depth}") for field in layout.tagged)
        self.line(f"write({tags}(o{depth}) if {condition} else b'\\0')")

    def field(self, field: Field, depth: int) -> None:
        value = f"o{depth}.{field.name}"
        if field.is_array:
            self.array(field, value, depth)
        elif field.is_struct:
            self.single_struct(field, value, depth)
        elif field.type in FIXED_FORMATS:
            self.formats.append(FIXED_FORMATS[field.type])
            self.values.append(value)
        elif field.type == "records":
            self.records(field, value)
        else:
            self.variable(field, value, field.nullable)

    def variable(self, field: Field, value: str, nullable: bool) -> None:
        encoded = "value.encode()" if field.type == "string" else "value"
        if field.name == "error_message":  # may repeat what a client said, and more: a name may be as long as a string
            encoded = "clipped(value)"
        if nullable:
            self.line(f"value = {value}")
            self.line("if value is None:")
            self.line(" value = b''")
            self.line(" n = -1")
            self.line("else:")
            if encoded != "value":
                self.line(f" value = {encoded}")
            self.line(" n = len(value)")
        else:
            self.line(f"value = {encoded.replace('value', value)}")
            self.line("n = len(value)")
        self.length(field.type)
        self.line("write(value)")

    def records(self, field: Field, value: str) -> None:
        self.line(f"value = {value}")
        self.line(f"n = {'-1 if value is None else ' if field.nullable else ''}stored_size(value)")
        self.length(field.type)
        self.line("if n > 0: add_stored(done, out, value)")

    def single_struct(self, field: Field, value: str, depth: int) -> None:
        inner = f"o{depth + 1}"
        if not field.nullable:
            self.flush()
            self.line(f"{inner} = {value}")
            self.struct(field.type, depth + 1)
            self.flush()
            return
        self.flush()
        self.line(f"{inner} = {value}")
        null = "\\xff" if field.tag is None else "\\0"  # as Kafka writes it in tags
        self.line(f"if {inner} is None: write(b'{null}')")
        self.line("else:")
        self.indent += 1
        self.formats.append("b")
        self.values.append("1")
        self.struct(field.type, depth + 1)
        self.flush()
        self.indent -= 1

    def array(self, field: Field, value: str, depth: int) -> None:
        elements = f"a{depth}"
        self.line(f"{elements} = {value}")
        if field.nullable:
            self.line(f"if {elements} is None: n = -1; {elements} = ()")
            self.line(f"else: n = len({elements})")
        else:
            self.line(f"n = len({elements})")
        self.length("array")
        if field.type in FIXED_FORMATS and field.type != "uuid":
            self.line(f'if n > 0: write(pack(f">{{n}}{FIXED_FORMATS[field.type]}", *{elements}))')
            return
        if field.type == "uuid":
            self.line(f"for element in {elements}: write(pack('16s', element))")
            return
        inner = f"o{depth + 1}" if field.is_struct else "element"
        self.line(f"for {inner} in {elements}:")
        self.indent += 1
        if self.in_steps:
            self.line("step -= 1")
            self.line("if step < 0:")
            # Joining all parts at the end would take longer than a turn.
            self.line(" if out: done.append(b''.join(out)); out.clear()")
            self.line(f" step = {ELEMENTS_A_STEP}; yield")
        if field.is_struct:
            self.struct(field.type, depth + 1)
            self.flush()
        else:
            self.variable(field, inner, nullable=False)
        self.indent -= 1

"""Compiles the decoder of one struct in one version: bytes to a message, without trusting them. codec.py calls it.

What always holds: no count or length is believed before it is compared with the bytes that remain (a count times the
least size of an element), a message holds no more elements and tagged fields than the caller allows, a null is accepted
only where the version allows one, an unknown tag is skipped, and nothing nests deeper than the definitions do. Whatever
is wrong raises Malformed, `struct.error`, IndexError or UnicodeDecodeError, which codec.py turns into MalformedRequest.

The source that is compiled is straight: neighbouring fields of fixed size, and the length or count behind them, are one
`Struct.unpack_from`; a struct inside an array is a loop, not a call. So the cost is that of the fields:

    def decode(view, at, end, left):
        buf = bytes(view)
        text = bytes.decode
        o0 = new(ListOffsetsRequest)
        o0.replica_id, o0.isolation_level, n = unpack_ibB(buf, at)
        at += 6
        ...

`in_steps`, it is a generator that yields after each ELEMENTS_A_STEP elements of arrays (but those in tagged fields) and
returns the message: a long one takes more than its turn.

Bytes are quicker to index, slice and turn into text than a view is (a name: 0.10 us, not 0.23), so a message is copied
first, unless it carries records and is so long that the copy would cost more than it saves.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct, unpack_from
from typing import Any

from service.wire.layout import (
    FIXED_FORMATS,
    FIXED_SIZES,
    Field,
    FunctionBody,
    is_flexible,
    layout_of,
    least_element_bytes,
    least_struct_bytes,
)

# Up to here copying a message with records is cheaper than reading its fields from a view (0.1 us for each 4 KB).
SMALL_BYTES = 8192

# Older versions have no room for more, and neither have the records of coordinators, which keep what requests name.
# Kafka's readers refuse longer ones too.
LONGEST_STRING = 2**15 - 1

ELEMENTS_A_STEP = 1_000  # a millisecond or two

MOST_TAGS = 127  # of one struct: as many as one byte counts. No definition has more than ten.

Decode = Callable[[memoryview | bytes, int, int, int], Any]


class Malformed(Exception):
    """These bytes are not that message."""


def compile_decoder(message: str, version: int, *, in_steps: bool = False) -> Decode:
    """The decoder of `message`: `decode(buffer, at, end, most_elements) -> message`. Bytes behind it are ignored."""
    writer = DecoderWriter(version, is_flexible(message, version))
    return writer.compile(message, in_steps=in_steps)


def long_varint(buffer: memoryview | bytes, at: int, value: int) -> tuple[int, int]:
    """The rest of an unsigned varint whose first byte, `value`, says that more follow."""
    value &= 0x7F
    for shift in (7, 14, 21, 28):
        byte = buffer[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value > 0xFFFFFFFF:
                break
            return value, at
    raise Malformed("a varint does not fit 32 bits")


class DecoderWriter:
    """Writes the functions of one message in one version. One object `o<depth>` is being filled at each depth."""

    def __init__(self, version: int, flexible: bool) -> None:
        self.version = version
        self.flexible = flexible
        self.functions: list[str] = []
        self.scope: dict[str, Any] = {
            "new": object.__new__,
            "unpack_from": unpack_from,
            "long_varint": long_varint,
            "Malformed": Malformed,
            "view_text": lambda view: str(view, "utf-8"),
        }
        self.has_records = False

    def compile(self, message: str, *, in_steps: bool = False) -> Decode:
        body = DecoderBody(self, in_steps=in_steps)
        if in_steps:
            body.line(f"step = {ELEMENTS_A_STEP}")
        body.struct(message, 0)
        body.line("return o0")
        if in_steps:
            body.line("yield")  # a generator, also where there is no array
        lines = ["def decode(view, at, end, left):", " text = bytes.decode", " buf = bytes(view)"]
        if self.has_records:
            lines[-1] = f" if end <= {SMALL_BYTES}: buf = bytes(view)"
            lines.append(" else: buf = view; text = view_text")
        self.functions.append("\n".join([*lines, *body.lines]))
        source = "\n\n".join(self.functions)
        exec(compile(source, f"<decoder of {message} v{self.version}>", "exec"), self.scope)
        decode: Decode = self.scope["decode"]
        return decode

    def constant(self, name: str, value: Any) -> str:
        self.scope[name] = value
        return name

    def tags_function(self, tagged: tuple[Field, ...]) -> str:
        """A function that reads `count` tagged fields into `o`. Rarely called: most messages carry no tags."""
        name = f"tags_{len(self.functions)}"
        self.functions.append("")  # takes the name
        body = DecoderBody(self)
        body.lines = [
            f"def {name}(buf, at, end, left, count, o0):",
            " text = bytes.decode if isinstance(buf, bytes) else view_text",
            " left -= count",
            f" if count > {MOST_TAGS} or left < 0:",
            '  raise Malformed("more tagged fields than can be there")',
            " for _ in range(count):",
        ]
        body.indent = 2
        for target in ("tag", "size"):
            body.line(f"{target} = buf[at]")
            body.line("at += 1")
            body.rest_of_varint(target)
        body.line("tag_end = at + size")
        body.line('if tag_end > end: raise Malformed("a tagged field is longer than what remains")')
        for field in tagged:
            body.line(f"if tag == {field.tag}:")
            body.indent += 1
            body.field(field, 0)
            body.flush()
            body.line(f'if at != tag_end: raise Malformed("{field.name}: not as long as its tag says")')
            body.indent -= 1
        body.line("at = tag_end")
        body.indent = 1
        body.line("return at, left")
        self.functions[int(name.removeprefix("tags_"))] = "\n".join(body.lines)
        return name


class DecoderBody(FunctionBody):
    """The lines of one function, and the fields of fixed size that wait to be unpacked together."""

    def __init__(self, writer: DecoderWriter, *, in_steps: bool = False) -> None:
        super().__init__(flexible=writer.flexible, in_steps=in_steps)
        self.writer = writer
        self.targets: list[str] = []

    def fixed(self, format_character: str, target: str) -> None:
        self.formats.append(format_character)
        self.targets.append(target)

    def flush(self) -> None:
        if not self.formats:
            return
        size = sum(FIXED_SIZES[each] for each in self.formats)
        if self.formats == ["B"]:
            self.line(f"{self.targets[0]} = buf[at]")
        else:
            text = "".join(self.formats)
            unpack = self.writer.constant("unpack_" + text.replace("?", "z"), Struct(">" + text).unpack_from)
            self.line(f"{', '.join(self.targets)}{',' if len(self.targets) == 1 else ''} = {unpack}(buf, at)")
        self.line(f"at += {size}")
        self.formats, self.targets = [], []

    def struct(self, struct: str, depth: int) -> None:
        """Fills a new `o<depth>`."""
        layout = layout_of(struct, self.writer.version)
        own = f"o{depth}"
        self.line(f"{own} = new({self.writer.constant(struct, layout.cls)})")
        for field in (*layout.absent, *layout.tagged):
            self.line(f"{own}.{field.name} = {self.default(field)}")
        for field in layout.plain:
            self.field(field, depth)
        if self.flexible:
            self.fixed("B", "n")
            self.flush()
            tags = self.writer.tags_function(layout.tagged)
            self.line(f"if n: at, left = {tags}(buf, at, end, left, n, {own}){'; step -= n' if self.in_steps else ''}")
        self.flush()

    def default(self, field: Field) -> str:
        if field.is_array and field.default is not None:
            return "[]"
        if field.is_struct and field.default is not None:
            return f"{self.writer.constant(field.type, type(field.default))}()"
        return repr(field.default)

    def field(self, field: Field, depth: int) -> None:
        if field.is_array:
            self.array(field, depth)
        elif field.is_struct:
            self.single_struct(field, depth)
        elif field.type in FIXED_FORMATS:
            self.fixed(FIXED_FORMATS[field.type], f"o{depth}.{field.name}")
        else:
            self.variable(field, f"o{depth}.{field.name}", field.nullable)

    def length(self, type_name: str) -> None:
        """Reads a length or count into `n`, -1 if null."""
        if not self.flexible:
            self.fixed("h" if type_name == "string" else "i", "n")
            self.flush()
            return
        self.fixed("B", "n")
        self.flush()
        self.rest_of_varint("n")
        self.line("n -= 1")

    def rest_of_varint(self, target: str) -> None:
        """Completes an unsigned varint whose first byte is in `target`: the second byte here, more by a call."""
        self.line(f"if {target} > 127:")
        self.line(" more = buf[at]")
        self.line(f" if more < 128: {target} += (more << 7) - 128; at += 1")
        self.line(f" else: {target}, at = long_varint(buf, at, {target})")

    def variable(self, field: Field, target: str, nullable: bool) -> None:
        """A string, bytes, or records: into `target`, which may be an attribute or a local."""
        if self.flexible and field.type == "string":
            self.compact_string(field, target, nullable)
            return
        self.length(field.type)
        self.line("after = at + n")
        if nullable:
            self.line("if n < 0:")
            self.line(f" {target} = None")
            self.line("else:")
            self.indent += 1
            self.line(f'if after > end: raise Malformed("{field.name}: longer than what remains")')
        else:
            self.line(f'if not at <= after <= end: raise Malformed("{field.name}: null or longer than what remains")')
        if field.type == "string":
            self.line(f"{target} = text(buf[at:after])")
        elif field.type == "bytes":
            self.line(f"{target} = bytes(buf[at:after])")
        else:
            self.writer.has_records = True
            self.line(f"{target} = view[at:after]")
        self.line("at = after")
        if nullable:
            self.indent -= 1

    def compact_string(self, field: Field, target: str, nullable: bool) -> None:
        """A string whose length and one is a varint; null is 0. Many are empty or null, and read in half the time."""
        self.fixed("B", "n")
        self.flush()
        self.rest_of_varint("n")
        self.line("if n > 1:")
        self.line(f' if n > {LONGEST_STRING + 1}: raise Malformed("a string of more than {LONGEST_STRING} bytes")')
        self.line(" after = at + n - 1")
        self.line(f' if after > end: raise Malformed("{field.name}: longer than what remains")')
        self.line(f" {target} = text(buf[at:after])")
        self.line(" at = after")
        self.line(f"elif n: {target} = ''")
        self.line(f"else: {target} = None" if nullable else f'else: raise Malformed("{field.name}: null")')

    def single_struct(self, field: Field, depth: int) -> None:
        if field.nullable:
            self.fixed("b", "n")
            self.flush()
            # A null is -1, but 0 where the struct stands in a tag: Kafka writes its group members' so.
            self.line("if n < 0:" if field.tag is None else "if n <= 0:")
            self.line(f" o{depth}.{field.name} = None")
            self.line("else:")
            self.indent += 1
        else:
            self.flush()
        self.struct(field.type, depth + 1)
        self.line(f"o{depth}.{field.name} = o{depth + 1}")
        if field.nullable:
            self.indent -= 1

    def array(self, field: Field, depth: int) -> None:
        self.length("array")
        target = f"o{depth}.{field.name}"
        if field.nullable:
            self.line("if n < 0:")
            self.line(f" {target} = None")
            self.line("else:")
            self.indent += 1
        else:
            self.line(f'if n < 0: raise Malformed("{field.name}: null")')
        least = least_element_bytes(field, self.writer.version, self.flexible)
        if field.is_struct:
            least = max(1, least_struct_bytes(field.type, self.writer.version, self.flexible))
        self.line("left -= n")
        self.line(f'if n * {least} > end - at or left < 0: raise Malformed("{field.name}: more than can be there")')
        if field.type in FIXED_FORMATS and field.type != "uuid":
            character = FIXED_FORMATS[field.type]
            self.line(f'{target} = list(unpack_from(f">{{n}}{character}", buf, at))')
            self.line(f"at += n * {FIXED_SIZES[character]}")
        elif field.type == "uuid":
            self.line(f"{target} = [bytes(buf[i : i + 16]) for i in range(at, at + n * 16, 16)]")
            self.line("at += n * 16")
        else:
            self.line(f"{target} = a{depth} = []")
            self.line("for _ in range(n):")
            self.indent += 1
            if self.in_steps:
                self.line("step -= 1")
                self.line(f"if step < 0: step = {ELEMENTS_A_STEP}; yield")
            if field.is_struct:
                self.struct(field.type, depth + 1)
                self.line(f"a{depth}.append(o{depth + 1})")
            else:
                self.variable(field, "element", nullable=False)
                self.line(f"a{depth}.append(element)")
            self.indent -= 1
        if field.nullable:
            self.indent -= 1

"""Writes the package messages/ from Kafka's message definitions. Run by hand when the protocol moves:

    python -m service.wire.generate FOLDER_WITH_JSON

The folder holds the `*.json` files that Kafka's jars carry under `common/message/` (kafka-clients,
kafka-group-coordinator, kafka-transaction-coordinator). Our own APIs stand in own/, in the same form, with keys from
20000 on, far above Kafka's. OWN_FIELDS has what our brokers tell each other in Kafka's messages, with tags from 10000
on, which others skip. Nothing imports this module at run time.

A struct keeps its name from the JSON; where two messages below use one name for structs of their own, each is prefixed
with the name of its message (`FetchResponseSnapshotId`). The messages hold the union of all versions.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

APIS = """
Produce Fetch ListOffsets Metadata OffsetCommit OffsetFetch FindCoordinator JoinGroup Heartbeat LeaveGroup SyncGroup
DescribeGroups ListGroups SaslHandshake ApiVersions CreateTopics DeleteTopics DeleteRecords InitProducerId
OffsetForLeaderEpoch AddPartitionsToTxn AddOffsetsToTxn EndTxn WriteTxnMarkers TxnOffsetCommit DescribeAcls CreateAcls
DeleteAcls DescribeConfigs AlterConfigs AlterReplicaLogDirs DescribeLogDirs SaslAuthenticate CreatePartitions
DeleteGroups ElectLeaders IncrementalAlterConfigs AlterPartitionReassignments ListPartitionReassignments OffsetDelete
DescribeClientQuotas AlterClientQuotas DescribeUserScramCredentials AlterUserScramCredentials DescribeQuorum
AlterPartition UpdateFeatures DescribeCluster DescribeProducers AllocateProducerIds DescribeTransactions
ListTransactions ConsumerGroupHeartbeat ConsumerGroupDescribe GetTelemetrySubscriptions PushTelemetry
ListConfigResources DescribeTopicPartitions
"""

OWN_APIS = "EndBranches DescribeBranches ConditionalProduce DescribeHealth DescribeEnds"

DATA = """
ConsumerProtocolSubscription ConsumerProtocolAssignment
LegacyOffsetCommitKey LegacyOffsetCommitValue OffsetCommitKey OffsetCommitValue GroupMetadataKey GroupMetadataValue
ConsumerGroupMetadataKey ConsumerGroupMetadataValue ConsumerGroupPartitionMetadataKey
ConsumerGroupPartitionMetadataValue ConsumerGroupMemberMetadataKey ConsumerGroupMemberMetadataValue
ConsumerGroupTargetAssignmentMetadataKey ConsumerGroupTargetAssignmentMetadataValue
ConsumerGroupTargetAssignmentMemberKey ConsumerGroupTargetAssignmentMemberValue
ConsumerGroupCurrentMemberAssignmentKey ConsumerGroupCurrentMemberAssignmentValue
ConsumerGroupRegularExpressionKey ConsumerGroupRegularExpressionValue TransactionLogKey TransactionLogValue
"""

OWN_FIELDS = {
    "AddPartitionsToTxnTopic": {"name": "TopicId", "type": "uuid", "taggedVersions": "4+", "tag": 10_000},
    "WritableTxnMarkerTopic": {"name": "TopicId", "type": "uuid", "taggedVersions": "1+", "tag": 10_000},
}
"""By struct. Transactions know topics by name, and a topic that was made again is another one."""

MESSAGES = [*(api + side for api in (APIS + OWN_APIS).split() for side in ("Request", "Response")), *DATA.split()]
PYTHON_TYPES = {
    "bool": "bool",
    "int8": "int",
    "int16": "int",
    "uint16": "int",
    "uint32": "int",
    "int32": "int",
    "int64": "int",
    "float64": "float",
    "string": "str",
    "bytes": "bytes",
    "uuid": "bytes",
}
HEAD = "# Generated from Kafka's message definitions by service/wire/generate.py; do not edit.\n"
LINE = 120


@dataclass
class FieldDefinition:
    name: str
    type: str  # a primitive, a struct's Python name, or either behind []
    versions: str
    nullable: str
    tagged: str
    tag: int | None
    default: Any


@dataclass
class StructDefinition:
    name: str
    docstring: str
    fields: list[FieldDefinition] = field(default_factory=list)


@dataclass
class MessageDefinition:
    name: str
    kind: str
    api_key: int | None
    versions: str
    flexible: str
    unstable: bool


def read_definition(path: Path) -> dict[str, Any]:
    lines = path.read_text().splitlines()
    text = "\n".join(line for line in lines if not line.lstrip().startswith("//"))
    definition: dict[str, Any] = json.loads(text)
    return definition


def snake_case(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def struct_type(type_name: str) -> str | None:
    """The name of the struct that a field's type mentions, if it mentions one."""
    bare = type_name.removeprefix("[]")
    return bare if bare[0].isupper() else None


def struct_names(definition: dict[str, Any]) -> Iterator[str]:
    yield definition["name"]
    for struct in definition.get("commonStructs", []):
        yield struct["name"]
        yield from nested_names(struct["fields"])
    yield from nested_names(definition.get("fields", []))


def nested_names(fields: list[dict[str, Any]]) -> Iterator[str]:
    for each in fields:
        if "fields" in each:
            name = struct_type(each["type"])
            assert name
            yield name
            yield from nested_names(each["fields"])


def default_of(type_name: str, given: object, nullable: bool, tagged: bool) -> Any:
    if given == "null" or (type_name[0].isupper() and tagged and not nullable):
        return None
    if type_name.startswith("[]"):
        return []
    if type_name == "string":
        return str(given or "")
    if type_name in ("bytes", "records"):
        return None if nullable and type_name == "records" else b""
    if type_name == "uuid":
        return bytes(16)
    if type_name == "bool":
        return given in (True, "true")
    if type_name == "float64":
        return float(str(given or 0))
    if type_name[0].isupper():
        return ...
    return int(str(given), 0) if given is not None else 0


class Module:
    """Everything one run collects, in an order in which each struct follows those it mentions."""

    def __init__(self, folder: Path) -> None:
        own = Path(__file__).parent / "own"
        definitions = [read_definition(path) for path in (*sorted(folder.glob("*.json")), *sorted(own.glob("*.json")))]
        self.definitions = {each["name"]: each for each in definitions if each.get("validVersions") != "none"}
        self.uses = Counter(struct for name in MESSAGES for struct in struct_names(self.definitions[name]))
        self.structs: dict[str, StructDefinition] = {}
        self.messages: dict[str, MessageDefinition] = {}

    def add(self, name: str) -> None:
        definition = self.definitions[name]
        message = MessageDefinition(
            name,
            definition["type"],
            definition.get("apiKey"),
            definition["validVersions"],
            definition["flexibleVersions"],
            bool(definition.get("latestVersionUnstable")),
        )
        self.messages[name] = message
        shared = {struct["name"]: struct for struct in definition.get("commonStructs", [])}
        self.add_struct(message, name, definition["fields"], shared)

    def python_name(self, message: MessageDefinition, struct: str) -> str:
        return struct if self.uses[struct] == 1 or struct == message.name else message.name + struct

    def add_struct(
        self, message: MessageDefinition, name: str, fields: list[dict[str, Any]], shared: dict[str, dict[str, Any]]
    ) -> None:
        docstring = f"Part of {message.name}."
        if name == message.name:
            docstring = f"Versions {message.versions}, flexible: {message.flexible}."
            if message.api_key is not None:
                docstring = f"Key {message.api_key}, v" + docstring[1:]
        struct = StructDefinition(self.python_name(message, name), docstring)
        for each in [*fields, OWN_FIELDS[name]] if name in OWN_FIELDS else fields:
            type_name = each["type"]
            inner = struct_type(type_name)
            if inner and self.python_name(message, inner) not in self.structs:
                self.add_struct(message, inner, each.get("fields") or shared[inner]["fields"], shared)
            if inner:
                type_name = type_name.replace(inner, self.python_name(message, inner))
            tagged = each.get("taggedVersions", "none")
            versions = each.get("versions", tagged)
            nullable = each.get("nullableVersions", "none")
            default = default_of(type_name, each.get("default"), nullable != "none", tagged != "none")
            name_here = snake_case(each["name"])
            struct.fields.append(
                FieldDefinition(name_here, type_name, versions, nullable, tagged, each.get("tag"), default)
            )
        self.structs[struct.name] = struct


def annotation(each: FieldDefinition, in_response: bool) -> str:
    if each.type == "records":
        return "StoredRecords" if in_response else "bytes | memoryview | None"
    bare = each.type.removeprefix("[]")
    text = PYTHON_TYPES.get(bare, bare)
    if each.type.startswith("[]"):
        text = f"list[{text}]"
    optional = each.nullable != "none" or (each.default is None and bare[0].isupper())
    return text + (" | None" if optional else "")


def default_text(each: FieldDefinition) -> str:
    if each.default is ...:
        return f"field(default_factory={each.type})"
    if each.default == [] and each.type.startswith("[]"):
        return "field(default_factory=list)"
    if each.type == "uuid":
        return "ZERO_UUID"
    if isinstance(each.default, str):
        return json.dumps(each.default)
    if isinstance(each.default, bytes):
        return 'b""'
    return repr(each.default)


def comment(each: FieldDefinition) -> str:
    text = each.versions
    if each.nullable != "none":
        text += f", null {each.nullable}"
    if each.tagged != "none":
        text += f", tag {each.tag}"
    return text


def write_messages(module: Module) -> str:
    out = [
        HEAD,
        '"""Every message as one class: the union of its versions.',
        "",
        "The comment behind a field says in which versions it is on the wire, where it may be null, and its tag if it",
        "has one. A field absent from the version that was read holds its default; one absent from the version that is",
        "written is left out. A tagged struct is None unless it was sent. Whatever speaks the protocol calls this.",
        '"""',
        "",
        "from __future__ import annotations",
        "",
        "from dataclasses import field",
        "from typing import TYPE_CHECKING, TypeAlias",
        "",
        "from service.wire.base import Request, Struct",
        "",
        "if TYPE_CHECKING:",
        "    from log.disk import FileSlice",
        "",
        "    StoredRecords: TypeAlias = bytes | memoryview | list[bytes | FileSlice] | None",
        "",
        "ZERO_UUID = bytes(16)",
    ]
    for struct in module.structs.values():
        base = "Struct"
        if module.messages.get(struct.name, MessageDefinition("", "", None, "", "", False)).kind == "request":
            base = f'Request["{struct.name.removesuffix("Request")}Response"]'
        out += ["", "", f"class {struct.name}({base}):", f'    """{struct.docstring}"""', ""]
        for each in struct.fields:
            in_response = "Response" in struct.docstring or struct.name.endswith("Response")
            line = f"    {each.name}: {annotation(each, in_response)} = {default_text(each)}"
            out.append(f"{line}  # {comment(each)}")
        if not struct.fields:
            out.pop()
    return "\n".join(out) + "\n"


def schema_line(each: FieldDefinition) -> str:
    words = [each.name, each.type, each.versions]
    if each.nullable != "none":
        words.append(f"null={each.nullable}")
    if each.tagged != "none":
        words.append(f"tagged={each.tagged}:{each.tag}")
    return " ".join(words)


def write_schemas(module: Module) -> str:
    out = [
        HEAD,
        '"""What is on the wire in which version, as text that codec.py parses when it compiles a codec.',
        "",
        "A field reads `name type versions [null=versions] [tagged=versions:tag]`. Defaults are those of the classes.",
        "MESSAGES: name -> (kind, key, versions, flexible versions).",
        '"""',
        "",
        "MESSAGES: dict[str, tuple[str, int | None, str, str]] = {",
    ]
    for message in module.messages.values():
        values = (message.kind, message.api_key, message.versions, message.flexible)
        words = ", ".join("None" if value is None else json.dumps(value) for value in values)
        out.append(f'    "{message.name}": ({words}),')
    out += ["}", "", "STRUCTS: dict[str, tuple[str, ...]] = {"]
    for struct in module.structs.values():
        lines = [f'"{schema_line(each)}"' for each in struct.fields]
        if not lines:
            out.append(f'    "{struct.name}": (),')
            continue
        one = f'    "{struct.name}": ({", ".join(lines)}{"," if len(lines) == 1 else ""}),'
        if len(one) <= LINE and len(lines) == 1:
            out.append(one)
        else:
            out += [f'    "{struct.name}": (', *(f"        {line}," for line in lines), "    ),"]
    return "\n".join([*out, "}"]) + "\n"


def write_versions(module: Module) -> str:
    requests = sorted(
        (message for message in module.messages.values() if message.kind == "request"),
        key=lambda each: each.api_key or 0,
    )
    out = [
        HEAD,
        '"""The numbers of the APIs, and the versions of each that we can read and write (ends inclusive).',
        "",
        "The newest version of an API in NEWEST_IS_UNSTABLE is one that Kafka itself does not offer yet.",
        '"""',
        "",
        "from enum import IntEnum",
        "",
        "",
        "class ApiKey(IntEnum):",
        '    """The key that opens every request, by its name in Kafka."""',
        "",
    ]
    names = {message.name: snake_case(message.name.removesuffix("Request")).upper() for message in requests}
    out += [f"    {names[message.name]} = {message.api_key}" for message in requests]
    out += ["", "", "VERSIONS: dict[ApiKey, tuple[int, int]] = {"]
    for message in requests:
        first, _, last = message.versions.partition("-")
        out.append(f"    ApiKey.{names[message.name]}: ({first}, {last or first}),")
    unstable = [f"ApiKey.{names[message.name]}" for message in requests if message.unstable]
    out += ["}", "", f"NEWEST_IS_UNSTABLE: frozenset[ApiKey] = frozenset({{{', '.join(unstable)}}})"]
    return "\n".join(out) + "\n"


def main(folder: str) -> None:
    module = Module(Path(folder))
    for name in MESSAGES:
        module.add(name)
    here = Path(__file__).parent / "messages"
    (here / "__init__.py").write_text(write_messages(module))
    (here / "schemas.py").write_text(write_schemas(module))
    (here / "versions.py").write_text(write_versions(module))


if __name__ == "__main__":
    main(sys.argv[1])

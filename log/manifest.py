"""What a data folder remembers about all its partitions: the manifest of a clean stop, the recovery points, and the
high watermarks of the partitions that other brokers hold, too.

What always holds:
* The manifest is the last thing that a clean stop writes. The next start removes it, durably, before it changes
  anything. So either the manifest is true of the files, or it is not there. It has one line of text for the whole, with
  a checksum, and one for each partition, so that 15,000 partitions open without touching one of their files. A line
  says whose folder it is: while this broker is away, a topic may be deleted and another one be made with its name.
* The manifest names the life of the broker that it ends. It is true of the files of an older copy of the folder, too;
  but only after the broker's last life nothing is missing from them.
* The recovery points may lag: what is below a partition's point was durable when the points were written. The high
  watermarks may lag, too: what is below was committed. Both are in Kafka's text format, but the high watermarks are
  under the ids of the topics: a topic of the same name, made after a deletion, has nothing to do with them.
"""

import asyncio
import base64
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, Final, TypeVar

from log.batch import crc32c
from log.disk import Disk
from log.ids import TopicId, TopicPartition, format_topic_id, parse_topic_id
from log.partition_log import CleanState
from log.segment import IndexFacts, SegmentFacts

MANIFEST: Final = "clean-shutdown.manifest"
RECOVERY_POINTS: Final = "recovery-point-offset-checkpoint"
HIGH_WATERMARKS: Final = "replication-offset-checkpoint"
VERSION: Final = 2
"""Of the manifest. The first one did not name the life."""
UNNAMED_LIFE: Final = 0
"""The life in a manifest that an earlier release wrote."""
LINES_A_TURN: Final = 2_000
"""How many offsets are put into words in one turn of the loop. Each takes a microsecond."""

Key = TypeVar("Key")


class Manifest(Mapping[str, CleanState]):
    """The facts of a clean stop, by folder. A line is read when its folder is asked for. `life` is the life of the
    broker that stopped; None if there was no manifest.
    """

    def __init__(self, lines: Iterable[bytes] = (), *, life: int | None = None) -> None:
        self.life = life
        self._lines = {_folder_of(line): line for line in lines}

    @property
    def is_there(self) -> bool:
        return self.life is not None

    def __getitem__(self, folder: str) -> CleanState:
        return _decode_state(self._lines[folder])

    def __iter__(self) -> Iterator[str]:
        return iter(self._lines)

    def __len__(self) -> int:
        return len(self._lines)


async def write_manifest(disk: Disk, states: Iterable[CleanState], *, life: int) -> None:
    """Say that everything was closed cleanly. Nothing in the data folder changes after this."""
    body = b'{"life":%d}\n' % life + b"".join(_encode_state(state) + b"\n" for state in states)
    head = json.dumps({"version": VERSION, "crc32c": crc32c(body)}).encode("ascii")
    await disk.write_atomic(MANIFEST, head + b"\n" + body)


def read_manifest(disk: Disk) -> Manifest:
    """The facts of the last stop if it was a clean one; otherwise an empty manifest."""
    try:
        data = disk.read(MANIFEST)
    except FileNotFoundError:
        return Manifest()
    head, _, body = data.partition(b"\n")
    if _is_right(head, body, version=1):
        return Manifest(body.splitlines(), life=UNNAMED_LIFE)
    if not _is_right(head, body, version=VERSION):
        return Manifest()
    first, *lines = body.splitlines()
    return Manifest(lines, life=json.loads(first)["life"])


async def remove_manifest(disk: Disk) -> None:
    """After this the next stop counts as a crash until a manifest is written again."""
    if disk.exists(MANIFEST):
        disk.unlink(MANIFEST)
        await disk.sync_dir("")


async def write_recovery_points(disk: Disk, points: Mapping[TopicPartition, int]) -> None:
    """`points`: the flushed offset of each partition (`PartitionLog.flushed_offset`), or a lower one. Never a higher
    one: recovery would take lost bytes for damage.
    """
    await _write_offsets(disk, RECOVERY_POINTS, points.items(), str)


def read_recovery_points(disk: Disk) -> dict[TopicPartition, int]:
    """What was written last; nothing when there is no such file or it can't be read."""
    return _read_offsets(disk, RECOVERY_POINTS)


async def write_high_watermarks(disk: Disk, high_watermarks: Mapping[tuple[TopicId, int], int]) -> None:
    await _write_offsets(disk, HIGH_WATERMARKS, high_watermarks.items(), bytes.hex)


def read_high_watermarks(disk: Disk) -> dict[tuple[TopicId, int], int]:
    """What was written last; nothing when there is no such file or it can't be read."""
    try:
        lines = _read_offsets(disk, HIGH_WATERMARKS).items()
        return {(TopicId(bytes.fromhex(topic_id)), index): offset for (topic_id, index), offset in lines}
    except ValueError:  # written before the ids stood there
        return {}


async def _write_offsets(
    disk: Disk, name: str, offsets: Collection[tuple[tuple[Key, int], int]], text_of: Callable[[Key], str]
) -> None:
    """The caller leaves `offsets` as it is meanwhile: of very many, others get a turn after each LINES_A_TURN."""
    lines = ["0", str(len(offsets))]
    for count, ((topic, index), offset) in enumerate(offsets, start=1):
        lines.append(f"{text_of(topic)} {index} {offset}")
        if count % LINES_A_TURN == 0:
            await asyncio.sleep(0)
    await disk.write_atomic(name, ("\n".join(lines) + "\n").encode("utf-8"))


def _read_offsets(disk: Disk, name: str) -> dict[TopicPartition, int]:
    try:
        version, count, *lines = disk.read(name).decode("utf-8").splitlines()
        points = {}
        for line in lines:
            topic, partition, offset = line.split(" ")
            points[TopicPartition(topic, int(partition))] = int(offset)
        return points if version == "0" and int(count) == len(points) else {}
    except (FileNotFoundError, ValueError):
        return {}


# ---------------------------------------------------------------- lines


def _is_right(head: bytes, body: bytes, *, version: int) -> bool:
    try:
        fields = json.loads(head)
    except ValueError:
        return False
    return bool(fields == {"version": version, "crc32c": crc32c(body)})


def _folder_of(line: bytes) -> str:
    """The folder's name, taken from the line without parsing it: a name has no character that JSON would escape."""
    assert line.startswith(_FOLDER_FIRST)
    return line[len(_FOLDER_FIRST) : line.index(b'"', len(_FOLDER_FIRST))].decode("ascii")


_FOLDER_FIRST: Final = b'{"folder":"'


def _encode_state(state: CleanState) -> bytes:
    fields: dict[str, Any] = {
        "folder": state.folder,
        "start": state.start_offset,
        "end": state.end_offset,
        "segments": state.segments,
        "epochs": state.epochs,
        "snapshots": state.snapshots,
        "forgotten": state.forgotten_below,
        "topic": None if state.topic_id is None else format_topic_id(state.topic_id),
        "views": {name: base64.b64encode(data).decode("ascii") for name, data in state.views.items()},
    }
    return json.dumps(fields, separators=(",", ":")).encode("utf-8")


def _decode_state(line: bytes) -> CleanState:
    fields = json.loads(line)
    return CleanState(
        fields["folder"],
        fields["start"],
        fields["end"],
        tuple(_decode_segment(segment) for segment in fields["segments"]),
        tuple((epoch, start) for epoch, start in fields["epochs"]),
        tuple(fields["snapshots"]),
        {name: base64.b64decode(data) for name, data in fields["views"].items()},
        # An earlier release did not know these two.
        fields.get("forgotten", 0),
        parse_topic_id(topic) if (topic := fields.get("topic")) is not None else None,
    )


def _decode_segment(fields: list[Any]) -> SegmentFacts:
    facts = SegmentFacts(*fields)  # an earlier release did not know the last one
    return facts if facts.indexes is None else facts._replace(indexes=IndexFacts._make(facts.indexes))

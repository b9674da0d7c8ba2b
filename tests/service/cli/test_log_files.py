"""`oncelog log`: dump, verify and stats, on files made here and damaged on purpose."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from log.batch import build_batch
from log.control import ControlType, build_marker
from service.cli.data_lock import locked
from tests.service.cli.kit import oncelog

NOW_MS = 1_763_732_760_000


def _batches() -> list[bytes]:
    marker = build_marker(
        ControlType.COMMIT,
        producer_id=7,
        producer_epoch=0,
        coordinator_epoch=0,
        timestamp_ms=NOW_MS + 9,
        base_offset=4,
        leader_epoch=0,
    )
    return [
        build_batch([(b"k", b"v%d" % n, (), NOW_MS + n) for n in range(3)], base_offset=0, leader_epoch=0),
        build_batch(
            [(None, b"\xff", (("h", b"x"),), NOW_MS)],
            base_offset=3,
            leader_epoch=0,
            codec=4,
            producer_id=7,
            producer_epoch=0,
            base_sequence=0,
            transactional=True,
        ),
        marker,
    ]


@pytest.fixture
def partition(tmp_path: Path) -> Path:
    """A partition of two segments, the first with its indexes."""
    folder = tmp_path / "orders-0"
    folder.mkdir()
    batches = _batches()
    (folder / f"{0:020}.log").write_bytes(b"".join(batches[:2]))
    (folder / f"{0:020}.index").write_bytes(struct.pack(">II", 3, len(batches[0])))
    (folder / f"{0:020}.timeindex").write_bytes(struct.pack(">qI", NOW_MS + 2, 2))
    (folder / f"{4:020}.log").write_bytes(batches[2])
    return folder


def test_dump_shows_every_batch(partition: Path) -> None:
    rows = oncelog("log", "dump", str(partition), "-o", "json").json()
    shown = [(row["segment"], row["base_offset"], row["last_offset"], row["codec"], row["control"]) for row in rows]
    assert shown == [
        (f"orders-0/{0:020}.log", 0, 2, "none", None),
        (f"orders-0/{0:020}.log", 3, 3, "zstd", None),
        (f"orders-0/{4:020}.log", 4, 4, "none", "commit"),
    ]
    assert [row["producer_id"] for row in rows] == [-1, 7, 7]
    assert all(row["checksum_ok"] for row in rows)


def test_dump_opens_batches_when_asked(partition: Path) -> None:
    rows = oncelog("log", "dump", str(partition), "--records", "-o", "json").json()
    assert [(row["offset"], row["value"]) for row in rows[:4]] == [(0, "v0"), (1, "v1"), (2, "v2"), (3, "0xff")]
    assert rows[3]["headers"] == ["h=x"]


def test_dump_reads_indexes(partition: Path) -> None:
    size = len(_batches()[0])
    assert oncelog("log", "dump", str(partition / f"{0:020}.index")).out == f"orders-0/{0:020}.index\t3\t{size}\n"
    (entry,) = oncelog("log", "dump", str(partition / f"{0:020}.timeindex"), "-o", "json").json()
    assert (entry["timestamp"], entry["offset"]) == ("2025-11-21T13:46:00.002Z", 2)


def test_sound_files_verify(partition: Path) -> None:
    ended = oncelog("log", "verify", str(partition.parent), "-o", "json")
    assert ended.status == 0
    (row,) = ended.json()
    assert (row["partition"], row["segments"], row["batches"], row["records"]) == ("orders-0", 2, 3, 5)
    assert (row["end_offset"], row["damage"]) == (5, [])


def _flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


Ruin = Callable[[Path], object]

RUINS: dict[str, tuple[Ruin, str]] = {
    "a flipped bit in a record": (lambda folder: _flip(folder / f"{0:020}.log", 70), "wrong checksum"),
    "a flipped bit in a magic": (lambda folder: _flip(folder / f"{0:020}.log", 16), "magic"),
    "a flipped bit in a length": (lambda folder: _flip(folder / f"{0:020}.log", 9), ""),
    "an index that points elsewhere": (
        lambda folder: (folder / f"{0:020}.index").write_bytes(struct.pack(">II", 3, 5)),
        "no batch",
    ),
    "a time index that falls": (
        lambda folder: (folder / f"{0:020}.timeindex").write_bytes(struct.pack(">qIqI", 9, 0, 3, 1)),
        "cannot be",
    ),
    "a segment with offsets of the one before": (
        lambda folder: (folder / f"{4:020}.log").rename(folder / f"{2:020}.log"),
        "inside the segment before",
    ),
}


@pytest.mark.parametrize("name", RUINS)
def test_verify_finds(name: str, partition: Path) -> None:
    ruin, reason = RUINS[name]
    ruin(partition)
    ended = oncelog("log", "verify", str(partition))
    assert ended.status == 6
    assert reason in ended.out
    assert ended.err.count("\n") == 1


def test_what_follows_damage_is_still_found(partition: Path) -> None:
    """One bad length must not hide the rest of the segment."""
    _flip(partition / f"{0:020}.log", 9)
    rows = oncelog("log", "dump", str(partition), "-o", "json").json()
    assert [row["base_offset"] for row in rows] == [3, 4]


@pytest.mark.parametrize("tail", [b"\0" * 100, b"torn", _batches()[0][:80]], ids=["zeros", "scraps", "half a batch"])
def test_a_torn_tail_is_told_but_is_no_damage(tail: bytes, partition: Path) -> None:
    """A crash may leave it behind what was acknowledged."""
    last = partition / f"{4:020}.log"
    last.write_bytes(last.read_bytes() + tail)
    ended = oncelog("log", "verify", str(partition), "-o", "json")
    assert ended.status == 0
    assert [damage["torn_tail"] for damage in ended.json()[0]["damage"]] == [True]


def test_after_a_clean_stop_there_is_no_torn_tail_but_damage(partition: Path) -> None:
    last = partition / f"{4:020}.log"
    last.write_bytes(last.read_bytes()[:-1])
    assert oncelog("log", "verify", str(partition)).status == 0
    (partition.parent / "clean-shutdown.manifest").touch()
    assert oncelog("log", "verify", str(partition)).status == 6


def test_a_torn_tail_of_an_earlier_segment_is_damage(partition: Path) -> None:
    first = partition / f"{0:020}.log"
    first.write_bytes(first.read_bytes() + b"torn")
    assert oncelog("log", "verify", str(partition)).status == 6


def test_verify_says_when_a_broker_is_writing(partition: Path) -> None:
    with locked([partition.parent]):
        assert "a broker runs on" in oncelog("log", "verify", str(partition.parent)).err
    assert oncelog("log", "verify", str(partition.parent)).err == ""


def test_a_folder_without_segments_is_not_found(tmp_path: Path) -> None:
    assert [oncelog("log", each, str(tmp_path)).status for each in ("dump", "verify", "stats")] == [3, 3, 3]


def test_stats_count_by_partition_by_topic_and_all(partition: Path) -> None:
    other, third = partition.parent / "orders-1", partition.parent / "bills-0"
    for number, folder in enumerate((other, third)):
        folder.mkdir()
        (folder / f"{0:020}.log").write_bytes(
            build_batch(
                [(None, b"x" * 1000, (), NOW_MS - 60_000)] * 10, base_offset=0, leader_epoch=0, codec=1 + number
            )
        )
    rows = {
        (row["kind"], row["name"]): row for row in oncelog("log", "stats", str(partition.parent), "-o", "json").json()
    }
    assert list(rows) == [
        ("partition", "bills-0"),
        ("partition", "orders-0"),
        ("partition", "orders-1"),
        ("topic", "bills"),
        ("topic", "orders"),
        ("all", "all"),
    ]
    sizes = [len(batch) for batch in _batches()]
    first = rows["partition", "orders-0"]
    assert {**first, "compression_ratio": None} == {
        "kind": "partition",
        "name": "orders-0",
        "segments": 2,
        "batches": 3,
        "records": 5,
        "size_bytes": sum(sizes),
        "index_bytes": 20,
        "records_per_batch": 2.0,  # the marker is no record of anybody's
        "largest_batch_bytes": max(sizes),
        "codecs": {"none": 2, "zstd": 1},
        "compression_ratio": None,
        "first_timestamp": "2025-11-21T13:46:00.000Z",
        "last_timestamp": "2025-11-21T13:46:00.009Z",
        "transactional_batches": 2,
        "control_batches": 1,
        "producers": 1,
        "damaged_bytes": 0,
    }
    topic, everything = rows["topic", "orders"], rows["all", "all"]
    assert (topic["segments"], topic["batches"], topic["records"]) == (3, 4, 15)
    assert topic["codecs"] == {"gzip": 1, "none": 2, "zstd": 1}
    assert (topic["first_timestamp"], topic["last_timestamp"]) == ("2025-11-21T13:45:00.000Z", first["last_timestamp"])
    assert (everything["records"], everything["producers"]) == (25, 1)
    assert everything["size_bytes"] == sum(path.stat().st_size for path in partition.parent.rglob("*.log"))
    packed = [(folder / f"{0:020}.log").stat().st_size - 61 for folder in (other, third)]
    for row, size in zip((rows["partition", "orders-1"], rows["partition", "bills-0"]), packed, strict=True):
        assert row["compression_ratio"] == pytest.approx(10_100 / size, rel=0.01)


def test_stats_are_sorted_and_cut(partition: Path) -> None:
    for name, records in (("a-0", 1), ("b-0", 9)):
        (partition.parent / name).mkdir()
        batch = build_batch([(None, b"", (), NOW_MS)] * records, base_offset=0, leader_epoch=0)
        (partition.parent / name / f"{0:020}.log").write_bytes(batch)
    ended = oncelog("log", "stats", str(partition.parent), str(partition), "--sort", "records", "--top", "2")
    shown = [(cells[0], cells[1], cells[3]) for cells in (line.split("\t") for line in ended.out.splitlines())]
    assert shown == [
        ("partition", "b-0", "9"),
        ("partition", "orders-0", "5"),
        ("topic", "b", "9"),
        ("topic", "orders", "5"),
        ("all", "all", "15"),
    ]


def test_stats_read_headers_alone_and_tell_of_what_is_none(partition: Path) -> None:
    """A rotten record changes nothing; a rotten length hides one batch, and what follows is counted."""
    _flip(partition / f"{0:020}.log", 70)
    ended = oncelog("log", "stats", str(partition), "-o", "json")
    assert (ended.json()[0]["records"], ended.json()[0]["damaged_bytes"], ended.err) == (5, 0, "")
    _flip(partition / f"{0:020}.log", 9)
    ended = oncelog("log", "stats", str(partition), "-o", "json")
    assert ended.status == 0
    assert (ended.json()[0]["records"], ended.json()[0]["damaged_bytes"]) == (2, len(_batches()[0]))
    assert f"{len(_batches()[0])} bytes are no batch" in ended.err


def test_stats_go_on_when_a_segment_can_not_be_read(partition: Path) -> None:
    """A running broker removes segments; a link that points nowhere stands for one that is gone."""
    (partition / f"{4:020}.log").unlink()
    (partition / f"{4:020}.log").symlink_to("gone")
    ended = oncelog("log", "stats", str(partition), "-o", "json")
    assert (ended.status, ended.json()[0]["segments"], ended.json()[0]["records"]) == (0, 1, 4)
    assert "can't be read: No such file" in ended.err

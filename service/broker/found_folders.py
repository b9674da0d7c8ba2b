"""What a start makes of each folder that it finds in the broker's data folders, and what becomes of a folder that is in
the way of a new partition.

What always holds: only what is known to be superseded is removed. Everything else that this broker can't use is kept,
counted (`LogFolder.unused`), and named in the log. The metadata may have been brought back from before a partition came
here, or its topic was made; then nobody else may have what is in the folder. An operator removes it.

A folder is *named* like a partition (`orders-0`), or it is a *copy*: a `.future` or `.former` folder, which a move
between data folders left (`log/relocation.py`). A folder is *blank* if it tells no topic and nothing in it was ever
flushed. A stray is a folder that was moved *aside*: it is called `….stray` from then on.

| row | folder | what is known | then |
|---|---|---|---|
| N1 | named | it tells the topic whose partition of that name is placed here | used |
| N2 | named | it tells no topic, and is not blank; a partition of that name is placed here | used |
| N3 | named | it is blank; a partition of that name is placed here | removed |
| N4 | named | it tells another topic than that whose partition of that name is placed here | aside |
| N5 | named | it tells a topic of that name, whose partition is placed on other brokers | aside |
| N6 | named | none of these: the metadata knows no such partition | left |
| C1 | copy | it is blank, or it is of a log that nobody had written to | removed |
| C2 | copy | the metadata knows no such partition | left |
| C3 | copy | its partition is placed on other brokers | aside |
| C4 | `.future` | there is a `.former`, and no folder with the partition's name that is used | used |
| C5 | copy | there is no folder with the partition's name that is used | aside |
| C6 | copy | there is one, but a data folder is away, or was: the copy may be newer | aside |
| C7 | copy | there is one, and the copy is older or not complete | removed |

Of several rows the first one counts. If several folders would be used for one partition (N1, N2), the one that holds
all that is in the others is used, and they go aside (`log/twins.py`). If that is not sure, or two copies would take a
partition over (C4), the start is refused. A folder with the partition's name is not used, either, if the partition had
moved on, to a `.future`, and a failed disk has forgotten that it had left: then the `.former`, or the `.future`, holds
what is not in the named folder. If the `.future` holds all, C4 counts. If not, the start is refused.
A data folder is away if the broker is started without it, and was away if it was started without it and is now started
with it (`data_folder.any_away`). When a partition is made while the broker runs, a folder that is in its way is removed
if it is blank, and goes aside otherwise.
"""

from enum import Enum
from itertools import count
from typing import Final

from log.disk import PARTITION_METADATA, Disk, DiskFault
from log.identity import read_topic_id, was_never_flushed
from log.ids import TopicId
from log.segment import LOG_SUFFIX

STRAY: Final = ".stray"
FIRST_LOG: Final = f"{0:020}{LOG_SUFFIX}"


class Fate(Enum):
    USED = "used"
    LEFT = "left"
    ASIDE = "aside"
    REMOVED = "removed"


def fate_of_named(
    tells: TopicId | None, *, placed: TopicId | None, blank: bool = False, is_known: bool = False
) -> Fate:
    """`placed`: the topic whose partition of that name is placed here. If there is none, `is_known` says whether the
    metadata knows the partition of that name of the topic that the folder tells.
    """
    if placed is None:
        return Fate.ASIDE if is_known else Fate.LEFT
    if tells is None:
        return Fate.REMOVED if blank else Fate.USED
    return Fate.USED if tells == placed else Fate.ASIDE


def fate_of_copy(*, has_nothing: bool, is_known: bool, is_placed: bool, has_home: bool, was_away: bool) -> Fate:
    """Of one that does not take the partition over (C4). `has_home`: a folder with the partition's name is used."""
    if has_nothing:
        return Fate.REMOVED
    if not is_known:
        return Fate.LEFT
    return Fate.REMOVED if is_placed and has_home and not was_away else Fate.ASIDE


def told_by(disk: Disk, folder: str) -> TopicId | None:
    try:
        return read_topic_id(disk, folder)
    except DiskFault:  # perhaps it is a file
        return None


def is_blank(disk: Disk, folder: str) -> bool:
    try:
        return read_topic_id(disk, folder) is None and was_never_flushed(disk, folder)
    except DiskFault:
        return False


def has_nothing(disk: Disk, copy: str) -> bool:
    """Whether the copy is blank, or of a log that nobody had written to."""
    if set(disk.listdir(copy)) <= {PARTITION_METADATA, FIRST_LOG} and disk.exists(f"{copy}/{FIRST_LOG}"):
        file = disk.open(f"{copy}/{FIRST_LOG}")
        size_bytes = file.size
        file.close()
        return size_bytes == 0
    return is_blank(disk, copy)


def stray_name(disk: Disk, stem: str) -> str:
    """A name that is free. `stem` is short enough for every file system (`log.relocation.stem_of`)."""
    return next(name for number in count(1) if not disk.exists(name := f"{stem}.{number}{STRAY}"))


def size_of(disk: Disk, folder: str) -> int | None:
    """The bytes of the files in a folder; None if there is no such folder any more. Called in a thread beside the loop:
    a folder may hold very many files.
    """
    try:
        names = disk.listdir(folder)
    except FileNotFoundError:
        return None
    except DiskFault:
        return 0
    size_bytes = 0
    for name in names:
        try:
            file = disk.open(f"{folder}/{name}")
        except (FileNotFoundError, DiskFault):
            continue  # removed meanwhile, or no file
        size_bytes += file.size
        file.close()
    return size_bytes

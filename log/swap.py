"""Replace sealed segments by their compacted successors; a crash at any point leaves the old ones or the new ones.

The steps: the new segments are written and made durable beside the old ones, under names that end in `.cleaned`. One
atomic write of the plan is the decision. Then the names are changed, one segment after the other, and then the plan is
removed. A restart without a plan removes the `.cleaned` files. A restart with a plan changes the names again; that does
no harm where they are changed already.

What always holds: while there is a plan, or a power cut could bring one back, every `.cleaned` file belongs to that
plan. So the removal of a plan is made durable before a cleaner makes the next `.cleaned` file.
"""

import json
from collections.abc import Collection, Iterator, Sequence
from typing import Final, NamedTuple

from log.disk import Disk
from log.segment import LOG_SUFFIX, OFFSET_SUFFIX, SUFFIXES, TIME_SUFFIX, segment_name

PLAN: Final = "compaction-swap.json"
CLEANED: Final = ".cleaned"


class BadPlan(ValueError):
    """The bytes are not a plan."""


class SwapPlan(NamedTuple):
    """The base offsets of the new segments and of the old ones. A new segment may have the name of an old one.

    Afterwards the log may have gaps below `cleaned_offset`. Everything below it was durable before the swap.
    """

    add: Sequence[int]
    remove: Sequence[int]
    cleaned_offset: int

    def encode(self) -> bytes:
        return json.dumps(self._asdict()).encode("ascii")

    @classmethod
    def decode(cls, data: bytes) -> "SwapPlan":
        """The inverse of `encode`; `BadPlan` for anything else."""
        try:
            fields = json.loads(data)
            return cls(tuple(map(int, fields["add"])), tuple(map(int, fields["remove"])), int(fields["cleaned_offset"]))
        except (ValueError, LookupError, TypeError) as error:
            raise BadPlan(f"{PLAN} can't be read") from error


def read_plan(disk: Disk, folder: str) -> SwapPlan | None:
    """The plan of a swap that was decided, and perhaps not finished. `BadPlan` if it can't be read."""
    path = f"{folder}/{PLAN}"
    return SwapPlan.decode(disk.read(path)) if disk.exists(path) else None


def names_after_swap(plan: SwapPlan, found: dict[int, str], names: Collection[str]) -> dict[int, str]:
    """The segments of a log as they are when the swap is finished, by base offset, each with the name that it has now.
    `found` are those that have their names already, `names` is all that is in the folder.
    """
    after = {base_offset: name for base_offset, name in found.items() if base_offset not in plan.remove}
    for base_offset in plan.add:
        name = segment_name(base_offset)
        after[base_offset] = name + CLEANED if name + CLEANED in names else name
    return after


def take_name(disk: Disk, folder: str, base_offset: int) -> None:
    """Give a new segment its name. It may be done twice, also after a crash in between."""
    for suffix in (OFFSET_SUFFIX, TIME_SUFFIX, LOG_SUFFIX):
        path = f"{folder}/{segment_name(base_offset, suffix)}"
        if disk.exists(path + CLEANED):
            disk.discard(path)  # renaming over a large file would remove it at once, which takes long
            disk.rename(path + CLEANED, path)


def remove_old(disk: Disk, folder: str, plan: SwapPlan) -> Iterator[None]:
    """Remove the old segments that the new ones have not replaced, step by step. It may be done twice."""
    replaced = set(plan.add)
    for base_offset in plan.remove:
        if base_offset not in replaced:
            for suffix in SUFFIXES:
                disk.discard(f"{folder}/{segment_name(base_offset, suffix)}")
            yield


async def forget_plan(disk: Disk, folder: str) -> None:
    """Remove the plan durably. The new names and the cleaned offset must be durable already."""
    disk.unlink(f"{folder}/{PLAN}")
    await disk.sync_dir(folder)


def finish_swap(disk: Disk, folder: str) -> SwapPlan | None:
    """After a crash: finish a swap that was decided, and remove the files of one that was not.

    The plan stays until the names are durable; the next flush of the log removes it.
    """
    plan = read_plan(disk, folder)
    if plan is not None:
        for base_offset in plan.add:
            take_name(disk, folder, base_offset)
        for _ in remove_old(disk, folder, plan):
            pass
    for name in sorted(disk.listdir(folder)):
        if name.endswith(CLEANED):
            disk.unlink(f"{folder}/{name}")
    return plan

"""Replace sealed segments by their compacted successors; a crash at any point leaves the old ones or the new ones.

How it goes: the new segments are written and made durable beside the old ones, under names with `.cleaned` at the end;
then one atomic write of the plan decides; then names change; then the plan goes. A restart without a plan throws the
`.cleaned` files away, a restart with one changes the names again, which harms nobody when they are changed already.

What always holds: while a plan is there, or could be there again after a power cut, a `.cleaned` file is one that it
means. So a plan is forgotten durably before a cleaner makes the next such file.
"""

import json
from collections.abc import Sequence
from typing import Final, NamedTuple

from log.disk import Disk
from log.segment import LOG_SUFFIX, OFFSET_SUFFIX, SUFFIXES, TIME_SUFFIX, segment_name

PLAN: Final = "compaction-swap.json"
CLEANED: Final = ".cleaned"


class BadPlan(ValueError):
    """The bytes are not a plan."""


class SwapPlan(NamedTuple):
    """Base offsets of the segments that come and of those that go. One that comes may replace one of its name.

    Below `cleaned_offset` the log may have gaps afterwards; it was durable before.
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


def change_names(disk: Disk, folder: str, plan: SwapPlan) -> None:
    """Let the new segments stand where the old ones stood. Can be done twice: the plan says what is missing."""
    for base_offset in plan.add:
        for suffix in (OFFSET_SUFFIX, TIME_SUFFIX, LOG_SUFFIX):
            path = f"{folder}/{segment_name(base_offset, suffix)}"
            if disk.exists(path + CLEANED):
                disk.discard(path)  # to rename over it would be to remove it here and now
                disk.rename(path + CLEANED, path)
    for base_offset in plan.remove:
        if base_offset not in plan.add:
            for suffix in SUFFIXES:
                disk.discard(f"{folder}/{segment_name(base_offset, suffix)}")


async def forget_plan(disk: Disk, folder: str) -> None:
    """The new names are durable, and so is the offset below which the log is cleaned now."""
    disk.unlink(f"{folder}/{PLAN}")
    await disk.sync_dir(folder)


def finish_swap(disk: Disk, folder: str) -> SwapPlan | None:
    """After a crash: go through with a swap that was decided, forget one that was not.

    The plan stays until the names are durable; the next flush of the log takes it away.
    """
    plan = None
    if disk.exists(f"{folder}/{PLAN}"):
        plan = SwapPlan.decode(disk.read(f"{folder}/{PLAN}"))
        change_names(disk, folder, plan)
    for name in sorted(disk.listdir(folder)):
        if name.endswith(CLEANED):
            disk.unlink(f"{folder}/{name}")
    return plan

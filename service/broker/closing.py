"""Closes the logs of a broker that stops: everything is made durable, then each folder's manifest is written. The next
start opens the logs by the manifest.

What always holds: a folder's manifest is written last, and names only logs that were closed without a fault.
"""

from collections.abc import Sequence

from log.disk import DiskFault
from log.manifest import write_manifest
from log.partition_log import CleanState
from service.broker.housekeeper import Housekeeper
from service.broker.log_folder import LogFolder
from service.broker.partition_table import PartitionTable
from service.turns import breathe

CLOSED_AT_ONCE = 256
"""How many logs are closed before other tasks run."""
SYNCED_TOGETHER = 64
"""From this many files on that are not durable, the whole disk is synced with one call instead of file by file."""


async def close_logs(
    partitions: PartitionTable, folders: Sequence[LogFolder], housekeeper: Housekeeper, *, life: int
) -> None:
    for folder in folders:
        await _sync_together(partitions, folder)
    states: dict[LogFolder, list[CleanState]] = {folder: [] for folder in folders}
    for count, partition in enumerate(partitions):
        if partition.folder.failed is None:
            try:
                state = await partition.log.close()
            except DiskFault as fault:
                partition.harmed(fault)
                continue
            if state is not None:
                states[partition.folder].append(state)
        if count % CLOSED_AT_ONCE == 0:
            await breathe()
    for folder, closed in states.items():
        await housekeeper.write_high_watermarks(folder)
        if folder.failed is None:
            try:
                await write_manifest(folder.disk, closed, life=life)
            except DiskFault as fault:
                folder.fail(fault)  # the next start recovers the logs by reading them


async def _sync_together(partitions: PartitionTable, folder: LogFolder) -> None:
    """Make many files durable with one call. Otherwise a stop would take longer the more segments there are."""
    logs = [each.log for each in partitions if each.folder is folder and each.log.durability.lost is None]
    unflushed = [log for log in logs if log.durability.unsynced_files]
    if folder.failed is not None or sum(log.durability.unsynced_files for log in unflushed) < SYNCED_TOGETHER:
        return
    ends = [log.end_offset for log in unflushed]
    try:
        for log in unflushed:
            log.durability.write_hints()
        await folder.disk.sync_all()
    except DiskFault as fault:
        folder.fail(fault)
        return
    assert ends == [log.end_offset for log in unflushed], "nothing is written to logs that are being closed"
    for log in unflushed:
        log.durability.note_disk_synced()

"""DescribeLogDirs, versions 1 to 5 (4: size of the disk and its free room, 5: cordoned folders, of which there are
none).

For each data folder it lists the sizes of the named partitions, or of all. It also lists copies that are on their way
to another folder, and how much they still lack. A folder that is out of service is answered with an error and no list.
"""

from collections.abc import Iterator, Sequence

from log.disk import DiskFault
from service.broker.folder_moves import FolderMoves, Move
from service.broker.log_folder import LogFolder
from service.broker.partition import Partition
from service.broker.partition_table import PartitionTable
from service.broker.session import Session
from service.wire.codec import RequestHeader
from service.wire.error_codes import ErrorCode
from service.wire.messages import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)


def handle(
    folders: Sequence[LogFolder],
    partitions: PartitionTable,
    moves: FolderMoves,
    session: Session,
    header: RequestHeader,
    request: DescribeLogDirsRequest,
) -> DescribeLogDirsResponse:
    asked = list(_asked(partitions, request))
    moving = {move.partition: move for move in moves.under_way()}
    copies = [moving[partition] for partition in asked if partition in moving]
    return DescribeLogDirsResponse(results=[_folder(folder, asked, copies) for folder in folders])


def _asked(partitions: PartitionTable, request: DescribeLogDirsRequest) -> Iterator[Partition]:
    if request.topics is None:
        yield from partitions
        return
    wanted: dict[str, dict[int, None]] = {}
    for topic in request.topics:
        wanted.setdefault(topic.topic, {}).update(dict.fromkeys(topic.partitions))
    for name, indexes in wanted.items():
        held = partitions.topic(name) or {}
        yield from (held[index] for index in indexes if index in held)


def _folder(folder: LogFolder, asked: list[Partition], copies: list[Move]) -> DescribeLogDirsResult:
    if folder.failed is not None:
        return DescribeLogDirsResult(ErrorCode.KAFKA_STORAGE_ERROR, folder.name)
    try:
        total_bytes, free_bytes = folder.disk.space()
    except DiskFault:
        return DescribeLogDirsResult(ErrorCode.KAFKA_STORAGE_ERROR, folder.name)
    topics: dict[str, DescribeLogDirsTopic] = {}

    def add(partition: Partition, size_bytes: int, behind: int, *, is_copy: bool) -> None:
        name, index = partition.topic_partition
        topic = topics.setdefault(name, DescribeLogDirsTopic(name))
        topic.partitions.append(DescribeLogDirsPartition(index, size_bytes, behind, is_copy))

    for partition in asked:
        if partition.folder is folder:
            add(partition, partition.log.size_bytes, 0, is_copy=False)
    for move in copies:
        if move.target is folder and move.partition.folder is not folder:
            add(move.partition, move.copied_bytes, move.behind, is_copy=True)
    return DescribeLogDirsResult(0, folder.name, list(topics.values()), total_bytes, free_bytes)

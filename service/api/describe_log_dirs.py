"""DescribeLogDirs, versions 1 to 5 (4: size of the disk and its free room, 5: cordoned folders, of which there are
none).

For each data folder it lists the sizes of the named partitions, or of all. It also lists copies that are on their way
to another folder, and how much they still lack. A folder that is out of service is answered with an error and no list.
"""

from collections.abc import Awaitable, Sequence

from log.disk import DiskFault
from service.broker.folder_moves import FolderMove, FolderMoves
from service.broker.log_folder import LogFolder
from service.broker.partition import Partition
from service.broker.partition_table import PartitionTable
from service.broker.session import Session
from service.turns import NAMED_A_TURN, Steps, Turn, now_or_in_turns
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
) -> DescribeLogDirsResponse | Awaitable[DescribeLogDirsResponse]:
    return now_or_in_turns(_described(folders, partitions, moves, request))


def _described(
    folders: Sequence[LogFolder], partitions: PartitionTable, moves: FolderMoves, request: DescribeLogDirsRequest
) -> Steps[DescribeLogDirsResponse]:
    turn = Turn(NAMED_A_TURN)
    asked = yield from _asked(partitions, request, turn)
    moving = {move.partition: move for move in moves.under_way()}
    copies = [moving[partition] for partition in asked if partition in moving]
    results = []
    for folder in folders:
        results.append((yield from _folder(folder, asked, copies, turn)))
    return DescribeLogDirsResponse(results=results)


def _asked(partitions: PartitionTable, request: DescribeLogDirsRequest, turn: Turn) -> Steps[list[Partition]]:
    if request.topics is None:
        return list(partitions)
    wanted: dict[Partition, None] = {}
    for topic in request.topics:
        if turn.is_over():
            yield
        held = partitions.topic(topic.topic) or {}
        for index in topic.partitions:
            if turn.is_over():
                yield
            if index in held:
                wanted[held[index]] = None
    return list(wanted)


def _folder(
    folder: LogFolder, asked: list[Partition], copies: list[FolderMove], turn: Turn
) -> Steps[DescribeLogDirsResult]:
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
        if turn.is_over():
            yield
        if partition.folder is folder:
            add(partition, partition.log.size_bytes, 0, is_copy=False)
    for move in copies:
        if turn.is_over():
            yield
        if move.target is folder and move.partition.folder is not folder:
            add(move.partition, move.copied_bytes, move.behind, is_copy=True)
    return DescribeLogDirsResult(0, folder.name, list(topics.values()), total_bytes, free_bytes)

"""AlterReplicaLogDirs, versions 1 and 2: partitions of this broker are to be in other data folders of its.

Answered at once: the copying goes on afterwards, and DescribeLogDirs shows how far it is. The folder in which a
partition is calls a move off. Of a partition that this broker does not hold yet the folder is remembered, while the
broker runs, and the answer is REPLICA_NOT_AVAILABLE; that is how a reassignment names folders.
"""

from log.ids import TopicPartition
from service.broker.folder_moves import FolderMoves
from service.broker.session import Session
from service.wire.codec import RequestHeader
from service.wire.messages import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)


def handle(
    moves: FolderMoves, session: Session, header: RequestHeader, request: AlterReplicaLogDirsRequest
) -> AlterReplicaLogDirsResponse:
    topics: dict[str, AlterReplicaLogDirTopicResult] = {}
    for folder in request.dirs:
        for topic in folder.topics:
            results = topics.setdefault(topic.name, AlterReplicaLogDirTopicResult(topic.name)).partitions
            for index in topic.partitions:
                error = moves.ask(TopicPartition(topic.name, index), folder.path)
                results.append(AlterReplicaLogDirPartitionResult(index, error))
    return AlterReplicaLogDirsResponse(results=list(topics.values()))

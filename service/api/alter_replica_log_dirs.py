"""AlterReplicaLogDirs, versions 1 and 2: moves partitions of this broker to others of its data folders.

The request is answered at once. The copying goes on afterwards, and DescribeLogDirs shows its progress. A request for
the folder in which the partition is ends a move. If this broker does not hold the partition yet, the answer is
REPLICA_NOT_AVAILABLE, and the broker remembers the folder for as long as it runs. A reassignment names its folders in
this way.
"""

from collections.abc import Awaitable

from log.ids import TopicPartition
from service.broker.folder_moves import FolderMoves
from service.broker.session import Session
from service.turns import NAMED_A_TURN, Steps, Turn, now_or_in_turns
from service.wire.codec import RequestHeader
from service.wire.messages import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)

A_MOVE = 10
"""How much longer it takes to begin a move, with a folder, than to look up a topic."""


def handle(
    moves: FolderMoves, session: Session, header: RequestHeader, request: AlterReplicaLogDirsRequest
) -> AlterReplicaLogDirsResponse | Awaitable[AlterReplicaLogDirsResponse]:
    return now_or_in_turns(_asked(moves, request))


def _asked(moves: FolderMoves, request: AlterReplicaLogDirsRequest) -> Steps[AlterReplicaLogDirsResponse]:
    turn = Turn(NAMED_A_TURN)
    topics: dict[str, AlterReplicaLogDirTopicResult] = {}
    for folder in request.dirs:
        if turn.is_over():
            yield
        for topic in folder.topics:
            if turn.is_over():
                yield
            results = topics.setdefault(topic.name, AlterReplicaLogDirTopicResult(topic.name)).partitions
            for index in topic.partitions:
                if turn.is_over(A_MOVE):
                    yield
                error = moves.ask(TopicPartition(topic.name, index), folder.path)
                results.append(AlterReplicaLogDirPartitionResult(index, error))
    return AlterReplicaLogDirsResponse(results=list(topics.values()))

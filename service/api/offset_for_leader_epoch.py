"""OffsetForLeaderEpoch, versions 2 to 4: where a leader epoch ended in our log. A reader or follower finds out from
that where its history parted from ours.
"""

from collections.abc import Awaitable

from log.batch import CorruptBatch
from log.disk import DiskFault
from log.ids import TopicPartition
from service.broker.partition_table import PartitionTable
from service.broker.reading import leader_epoch_error
from service.broker.session import Session
from service.turns import NAMED_A_TURN, Steps, Turn, now_or_in_turns
from service.wire.codec import RequestHeader
from service.wire.error_codes import ErrorCode
from service.wire.messages import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderEpochResponseEpochEndOffset,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)

A_LOOK_INTO_A_LOG = 5
"""How much longer that takes than what a turn is measured by."""


def handle(
    partitions: PartitionTable, session: Session, header: RequestHeader, request: OffsetForLeaderEpochRequest
) -> OffsetForLeaderEpochResponse | Awaitable[OffsetForLeaderEpochResponse]:
    return now_or_in_turns(_answers(partitions, request))


def _answers(partitions: PartitionTable, request: OffsetForLeaderEpochRequest) -> Steps[OffsetForLeaderEpochResponse]:
    turn = Turn(NAMED_A_TURN)
    results = []
    for topic in request.topics:
        if turn.is_over():
            yield
        answers = []
        for wanted in topic.partitions:
            if turn.is_over(A_LOOK_INTO_A_LOG):
                yield
            answers.append(_answer(partitions, topic.topic, wanted))
        results.append(OffsetForLeaderTopicResult(topic.topic, answers))
    return OffsetForLeaderEpochResponse(topics=results)


def _answer(
    partitions: PartitionTable, topic: str, wanted: OffsetForLeaderPartition
) -> OffsetForLeaderEpochResponseEpochEndOffset:
    partition = partitions.get(TopicPartition(topic, wanted.partition))
    if partition is None:
        return OffsetForLeaderEpochResponseEpochEndOffset(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, wanted.partition)
    if error := leader_epoch_error(partition, wanted.current_leader_epoch):
        return OffsetForLeaderEpochResponseEpochEndOffset(error, wanted.partition)
    log = partition.log
    epoch, end_offset = log.epochs.end_offset_for_epoch(wanted.leader_epoch, log.end_offset)
    try:
        # Where the next epoch begins may be known only as far as a gap. A reader that stands in the gap has read all
        # that was before it, and must not be told that this was taken back.
        end_offset = log.behind_gap(end_offset)
    except (DiskFault, CorruptBatch) as failure:
        return OffsetForLeaderEpochResponseEpochEndOffset(partition.unreadable(failure), wanted.partition)
    if epoch >= 0:  # a reader below the start is not told that this was taken back, but that it is gone
        end_offset = max(end_offset, log.start_offset)
    return OffsetForLeaderEpochResponseEpochEndOffset(0, wanted.partition, epoch, end_offset)

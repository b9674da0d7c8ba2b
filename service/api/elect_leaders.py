"""ElectLeaders, versions 0 to 2 (1: unclean elections). Every broker accepts it."""

from collections.abc import Iterable, Mapping, Sequence

from log.ids import TopicPartition
from service.api.admin_answers import executed
from service.broker.copies import Copies
from service.broker.session import Session
from service.cluster.controller import Refusal, Successors
from service.cluster.election import candidates
from service.cluster.image import Image
from service.cluster.metadata import ClusterMetadata
from service.cluster.reassign_commands import PREFERRED, UNCLEAN, ElectLeaders, all_partitions
from service.turns import NAMED_A_TURN, Turn, breathe, in_turns
from service.wire.codec import RequestHeader
from service.wire.error_codes import ErrorCode
from service.wire.messages import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)


async def handle(
    metadata: ClusterMetadata,
    copies: Copies,
    session: Session,
    header: RequestHeader,
    request: ElectLeadersRequest,
) -> ElectLeadersResponse:
    if request.election_type not in (PREFERRED, UNCLEAN):
        return await _unknown_type(request)
    only = None
    if request.topic_partitions is not None:
        named: dict[TopicPartition, None] = {}
        turn = Turn(NAMED_A_TURN)
        for each in request.topic_partitions:
            if turn.is_over():
                await breathe()
            for index in each.partitions:
                if turn.is_over():
                    await breathe()
                named[TopicPartition(each.topic, index)] = None
        only = tuple(named)
    unclean = {}
    if request.election_type == UNCLEAN:
        image = metadata.image
        best = await copies.best_first(await _candidates(image, only))
        unclean = {each: Successors.asked(image, each, best[each]) async for each in in_turns(best, NAMED_A_TURN)}
    results = await executed(metadata, ElectLeaders(request.election_type, only, metadata.min_in_sync(), unclean))
    if isinstance(results, Refusal):
        return ElectLeadersResponse(error_code=results.error)
    topics: dict[str, list[PartitionResult]] = {}
    async for result in in_turns(results, NAMED_A_TURN):
        told = PartitionResult(result.partition.partition, result.error, result.message)
        topics.setdefault(result.partition.topic, []).append(told)
    return ElectLeadersResponse(
        replica_election_results=[
            ReplicaElectionResult(name, each) async for name, each in in_turns(topics.items(), NAMED_A_TURN)
        ]
    )


async def _unknown_type(request: ElectLeadersRequest) -> ElectLeadersResponse:
    error, message = ErrorCode.INVALID_REQUEST, f"Unknown election type {request.election_type}"
    results = []
    turn = Turn(NAMED_A_TURN)
    for topic in request.topic_partitions or ():
        refused = []
        for index in topic.partitions:
            if turn.is_over():
                await breathe()
            refused.append(PartitionResult(index, error, message))
        if turn.is_over():
            await breathe()
        results.append(ReplicaElectionResult(topic.topic, refused))
    return ElectLeadersResponse(error_code=error, replica_election_results=results)


async def _candidates(image: Image, only: Iterable[TopicPartition] | None) -> Mapping[TopicPartition, Sequence[int]]:
    found = {}
    async for partition in in_turns(all_partitions(image) if only is None else only, NAMED_A_TURN):
        state = image.partition(partition)
        if state is not None and (replicas := candidates(state, image.brokers)):
            found[partition] = replicas
    return found

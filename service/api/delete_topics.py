"""DeleteTopics, versions 1 to 6 (5: messages, 6: by id as well as by name).

When this is answered, no request finds the topic any more. Its files are removed a little later. Answers come in the
order of the request; a topic that was named twice is answered once.
"""

from collections import Counter

from log.ids import ZERO_TOPIC_ID, TopicId
from service.api.admin_answers import executed
from service.broker.internal_topics import INTERNAL_TOPICS, kept_from_clients
from service.broker.session import Session
from service.cluster.controller import Refusal
from service.cluster.image import Image
from service.cluster.metadata import ClusterMetadata
from service.cluster.topic_commands import DeleteTopics
from service.settings.broker import BrokerConfig
from service.turns import NAMED_A_TURN, Steps, Turn, counted, done_in_turns, in_turns, slices_in_turns
from service.wire.codec import RequestHeader
from service.wire.error_codes import ErrorCode
from service.wire.messages import DeletableTopicResult, DeleteTopicsRequest, DeleteTopicsResponse, DeleteTopicState

STATES_SINCE = 6
TOPICS_A_COMMIT = 500
"""The most topics of a request that are deleted in one commit."""
DISABLED_SINCE = 3

NO_SUCH_NAME = "This server does not host this topic-partition."
NO_SUCH_ID = "This server does not host this topic ID."


async def handle(
    metadata: ClusterMetadata,
    config: BrokerConfig,
    session: Session,
    header: RequestHeader,
    request: DeleteTopicsRequest,
) -> DeleteTopicsResponse:
    if header.api_version >= STATES_SINCE:
        wanted = request.topics
    else:
        wanted = [DeleteTopicState(name) async for name in in_turns(request.topic_names, NAMED_A_TURN)]
    if not config.delete_topic_enable:
        disabled = header.api_version >= DISABLED_SINCE
        error = ErrorCode.TOPIC_DELETION_DISABLED if disabled else ErrorCode.INVALID_REQUEST
        message = "Topic deletion is disabled."
        return DeleteTopicsResponse(
            responses=[
                DeletableTopicResult(topic.name, topic.topic_id, error, message)
                async for topic in in_turns(wanted, NAMED_A_TURN)
            ]
        )
    answers = await done_in_turns(_resolved(metadata.image, wanted))
    async for some in slices_in_turns(answers, TOPICS_A_COMMIT):
        await _delete(metadata, [answer for answer in some if answer.error_code == ErrorCode.NONE])
    return DeleteTopicsResponse(responses=answers)


async def _delete(metadata: ClusterMetadata, wanted: list[DeletableTopicResult]) -> None:
    """Delete these topics, and answer what became of it."""
    if not wanted:
        return
    results = await executed(metadata, DeleteTopics(tuple(TopicId(answer.topic_id) for answer in wanted)))
    if isinstance(results, Refusal):
        became = [(results.error, results.message)] * len(wanted)
    else:
        became = [(result.error, _message(result.error)) for result in results]
    for answer, (error, message) in zip(wanted, became, strict=True):
        answer.error_code, answer.error_message = error, message


def _message(error: ErrorCode) -> str | None:
    return NO_SUCH_ID if error is ErrorCode.UNKNOWN_TOPIC_ID else None


def _resolved(image: Image, wanted: list[DeleteTopicState]) -> Steps[list[DeletableTopicResult]]:
    """An answer for each named topic. One without an error has the name and the id of a topic that is to be deleted."""
    names = yield from counted(topic.name for topic in wanted if topic.name is not None)
    ids = yield from counted(topic.topic_id for topic in wanted if topic.name is None)
    answers: dict[tuple[str | None, bytes], DeletableTopicResult] = {}
    turn = Turn(NAMED_A_TURN)
    for topic in wanted:
        if turn.is_over():
            yield
        if topic.name is None and image.topic_names.get(TopicId(topic.topic_id)) in names:
            continue  # already refused by its name
        answers.setdefault((topic.name, topic.topic_id), _one(image, topic, names, ids))
    return list(answers.values())


def _one(image: Image, wanted: DeleteTopicState, names: Counter[str], ids: Counter[bytes]) -> DeletableTopicResult:
    def refused(error: ErrorCode, message: str) -> DeletableTopicResult:
        return DeletableTopicResult(wanted.name, wanted.topic_id, error, message)

    if wanted.name is None:
        if wanted.topic_id == ZERO_TOPIC_ID:
            return refused(ErrorCode.INVALID_REQUEST, "Neither topic name nor id were specified.")
        if ids[wanted.topic_id] > 1:
            return refused(ErrorCode.INVALID_REQUEST, "Duplicate topic id.")
        topic = image.topic_by_id(TopicId(wanted.topic_id))
        if topic is None:
            return refused(ErrorCode.UNKNOWN_TOPIC_ID, NO_SUCH_ID)
    else:
        if wanted.topic_id != ZERO_TOPIC_ID:
            return refused(ErrorCode.INVALID_REQUEST, "You may not specify both topic name and topic id.")
        if names[wanted.name] > 1:
            return refused(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
        topic = image.topics.get(wanted.name)
        if topic is None:
            return refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, NO_SUCH_NAME)
        if topic.id in ids:
            message = "The provided topic name maps to an ID that was already supplied."
            return DeletableTopicResult(wanted.name, topic.id, ErrorCode.INVALID_REQUEST, message)
    if topic.name in INTERNAL_TOPICS:
        return refused(ErrorCode.INVALID_TOPIC_EXCEPTION, kept_from_clients(topic.name))
    return DeletableTopicResult(topic.name, topic.id)

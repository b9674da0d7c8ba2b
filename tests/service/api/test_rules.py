"""Who may ask what. Listeners that ask for proof come with the security settings; here one is made by hand."""

import asyncio
import logging
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import pytest

from log.batch import build_batch
from service.api.broker_door import BrokerDoor
from service.api.listener import Listener
from service.api.routes import ROUTES
from service.api.rules import anybody
from service.broker.session import ANONYMOUS, Principal
from service.net.door import CLOSE, Held, PeerInfo
from service.wire.base import Request
from service.wire.codec import RequestHeader, decode_response, encode_request
from service.wire.error_codes import ErrorCode
from service.wire.messages import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
    ConditionalBatch,
    ConditionalProduceRequest,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    HeartbeatRequest,
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from service.wire.messages.schemas import MESSAGES
from tests.service.api.txn_stage import TxnStage, on_txn_stage

ALICE = Principal("User", "alice")
OPEN = Listener("PLAINTEXT")
PROVEN = Listener("PROVEN", authenticate=lambda peer: ALICE)
ADMIN = "__admin_client"
FOLLOWER = FetchRequest(replica_id=2, topics=[FetchTopic("orders", partitions=[FetchPartition(0)])])
READER = FetchRequest(topics=[FetchTopic("orders", partitions=[FetchPartition(0)])])


async def asked(stage: TxnStage, listener: Listener, request: Request[Any], version: int, client_id: str = "x") -> Any:
    """What the door of that listener answers a client."""
    door = BrokerDoor(stage.broker, listener)
    _, key, *_ = MESSAGES[type(request).__name__]
    assert key is not None
    session = door.connected(PeerInfo("10.0.0.9", 1234))
    header = RequestHeader(key, version, 1, client_id)
    answer: Any = door.request(session, header, memoryview(bytearray(encode_request(key, version, request))))
    if isinstance(answer, Held):
        answer = await answer.first
    if isinstance(answer, Awaitable):
        answer = await answer
    door.disconnected(session)
    return answer if answer is CLOSE else decode_response(key, version, b"".join(answer))


def test_a_session_is_whom_its_listener_takes_it_for(tmp_path: Path) -> None:
    async def scene(stage: TxnStage) -> None:
        for listener, principal in ((OPEN, ANONYMOUS), (PROVEN, ALICE)):
            session = BrokerDoor(stage.broker, listener).connected(PeerInfo("10.0.0.9", 1234))
            assert (session.listener, session.principal) == (listener.name, principal)

    on_txn_stage(tmp_path, scene)


MARKERS = WriteTxnMarkersRequest([WritableTxnMarker(7, 0, True, [WritableTxnMarkerTopic("orders", [0])], 0)])
ANY_TRANSACTION = AddPartitionsToTxnRequest(
    [AddPartitionsToTxnTransaction("pay", 7, 0, True, [AddPartitionsToTxnTopic("orders", [0])])]
)
CONDITIONAL = ConditionalProduceRequest(None, 5_000, [ConditionalBatch("orders", 0, -1, b"")])


def codes(answer: Any) -> list[int]:
    """The error of each partition, or of the whole."""
    match answer:
        case AddPartitionsToTxnResponse():
            return [answer.error_code]
        case FetchResponse():
            return [each.error_code for topic in answer.responses for each in topic.partitions]
        case WriteTxnMarkersResponse():
            topics = [topic for marker in answer.markers for topic in marker.topics]
            return [each.error_code for topic in topics for each in topic.partitions]
        case _:
            return [each.error_code for each in answer.results]


@pytest.mark.parametrize(
    ("request_", "version", "error"),
    [
        (MARKERS, 1, ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
        (ANY_TRANSACTION, 4, ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
        (CONDITIONAL, 0, ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
        (FOLLOWER, 12, ErrorCode.TOPIC_AUTHORIZATION_FAILED),
    ],
)
def test_what_brokers_ask_of_each_other_a_proven_client_may_not_ask(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, request_: Request[Any], version: int, error: ErrorCode
) -> None:
    """It is told so by the error that Kafka has for it, and its connection goes on."""

    async def scene(stage: TxnStage) -> None:
        assert codes(await asked(stage, OPEN, request_, version)) not in ([], [error])
        with caplog.at_level(logging.WARNING):
            assert codes(await asked(stage, PROVEN, request_, version)) == [error]
        assert "User:alice may not ask" in caplog.text

    on_txn_stage(tmp_path, scene)


def test_every_api_that_not_anybody_may_ask_says_so_to_the_others() -> None:
    refusing = [route.name for route in ROUTES.values() if route.authorize is not anybody]
    assert refusing == [route.name for route in ROUTES.values() if route.refused is not None]
    assert {"FETCH", "ADD_PARTITIONS_TO_TXN", "WRITE_TXN_MARKERS", "CONDITIONAL_PRODUCE"} == set(refusing)


def test_what_every_client_asks_a_proven_one_may_ask(tmp_path: Path) -> None:
    async def scene(stage: TxnStage) -> None:
        beat = await asked(stage, PROVEN, HeartbeatRequest("group", 1, "nobody"), 4)
        assert beat.error_code == ErrorCode.UNKNOWN_MEMBER_ID
        added = await asked(stage, PROVEN, AddPartitionsToTxnRequest(v3_and_below_transactional_id="pay"), 3)
        assert (added.error_code, added.results_by_topic_v3_and_below) == (ErrorCode.NONE, [])
        read = await asked(stage, PROVEN, READER, 12)
        assert read.responses[0].partitions[0].error_code == ErrorCode.NONE

    on_txn_stage(tmp_path, scene)


def test_the_name_of_kafkas_tools_opens_nothing_to_a_proven_client(tmp_path: Path) -> None:
    """The coordinators' own topics stay closed to it."""

    async def scene(stage: TxnStage) -> None:
        async def written(listener: Listener, client_id: str) -> int:
            batch = build_batch([(b"\x00\x7f", None, (), 1)])
            data = TopicProduceData("__consumer_offsets", partition_data=[PartitionProduceData(0, batch)])
            answer = await asked(stage, listener, ProduceRequest(None, 1, 5_000, [data]), 9, client_id)
            return int(answer.responses[0].partition_responses[0].error_code)

        async with asyncio.timeout(10):
            assert await written(OPEN, "x") == ErrorCode.INVALID_TOPIC_EXCEPTION
            assert await written(OPEN, ADMIN) == ErrorCode.NONE
            assert await written(PROVEN, ADMIN) == ErrorCode.INVALID_TOPIC_EXCEPTION

    on_txn_stage(tmp_path, scene)

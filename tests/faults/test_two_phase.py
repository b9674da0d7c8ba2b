"""External two-phase commit (KIP-939) against a real process: what is prepared outlives its client, its broker and
every timeout, and the next instance ends it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.client.connection import Client
from service.wire.error_codes import ErrorCode
from service.wire.messages import InitProducerIdRequest, InitProducerIdResponse
from tests.clients.topics import Topics
from tests.faults.scenario import in_loop, stage
from tests.faults.writer import COMING, Writer, group_offset, seen, settled, until
from tests.peers.chosen import new_broker
from tests.peers.process import BrokerProcess
from tests.rules import rule

VERSION = 6
EXTERNAL = "transaction.two.phase.commit.enable"


@pytest.fixture
def two_phase_broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    broker = new_broker(tmp_path / "own", **{EXTERNAL: "true", "transaction.max.timeout.ms": "1000"})
    broker.start()
    yield broker
    if broker.running():
        broker.kill()


async def init(writer: Writer, *, two_phase: bool = True, keep: bool = False) -> InitProducerIdResponse:
    """Take the id, as a participant of somebody else's decision."""
    request = InitProducerIdRequest(
        writer.transactional_id, 1_000, enable2_pc=two_phase, keep_prepared_txn=keep, producer_id=-1, producer_epoch=-1
    )
    answer = await until(
        lambda: writer.client.request(request, VERSION), lambda told: ErrorCode(told.error_code) not in COMING
    )
    assert isinstance(answer, InitProducerIdResponse)
    if not answer.error_code:
        writer.take(answer.producer_id, answer.producer_epoch)
    return answer


@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
@rule("B.3", "what is prepared outlives timeouts, its client and its broker; keepPrepared gives a pair to end it with")
@in_loop
async def test_a_prepared_transaction_is_ended_by_the_next_instance(
    two_phase_broker: BrokerProcess, name: str, commit: bool
) -> None:
    broker = two_phase_broker
    topic = Topics(broker.bootstrap, name).create()
    async with Client("127.0.0.1", broker.port) as client:
        await Writer(client, f"{name}-first").begin(timeout_ms=1_000)  # brings the coordinator about
        prepared = Writer(client, name)
        assert (await init(prepared)).error_code == ErrorCode.NONE
        await prepared.sent(topic, "prepared")
        await prepared.committed_offset(name, topic, 7)
        await asyncio.sleep(1.5)  # longer than transaction.max.timeout.ms
    broker.kill()
    broker.start()
    async with Client("127.0.0.1", broker.port) as client:
        heir = Writer(client, name)
        answer = await init(heir, keep=True)
        assert (answer.ongoing_txn_producer_id, answer.ongoing_txn_producer_epoch) == (prepared.id, prepared.epoch)
        assert (heir.id, heir.epoch) == (prepared.id, prepared.epoch + 1)
        assert (await seen(client, topic)).open
        zombie = prepared.twin(client)
        assert await zombie.end(commit=not commit) is ErrorCode.PRODUCER_FENCED
        for version in (10, 11, 12):  # older clients' writes are not added, but verified
            refused = await heir.send(topic, "more", version=version)
            assert refused is ErrorCode.INVALID_TXN_STATE, "it can only end what is prepared"
        await (heir.commit() if commit else heir.abort())
        await heir.sent(topic, "next")
        await heir.commit()
        assert (await settled(client, topic)).committed == (["prepared", "next"] if commit else ["next"])
        assert await group_offset(client, name, topic) == (7 if commit else -1)


@rule(
    "B.3", "an init that keeps nothing aborts what is prepared; with nothing prepared keepPrepared is an ordinary init"
)
@in_loop
async def test_an_ordinary_init_aborts_what_is_prepared(two_phase_broker: BrokerProcess, name: str) -> None:
    topic = Topics(two_phase_broker.bootstrap, name).create()
    async with stage(two_phase_broker.port) as here:
        client = await here.connect()
        await Writer(client, f"{name}-first").begin(timeout_ms=1_000)
        prepared, heir = Writer(client, name), Writer(client, name)
        assert (await init(prepared, keep=True)).ongoing_txn_producer_id == -1
        await prepared.sent(topic, "prepared")
        assert (await init(heir)).error_code == ErrorCode.NONE
        await heir.sent(topic, "next")
        await heir.commit()
        assert await prepared.end(commit=True) is ErrorCode.PRODUCER_FENCED
        assert (await settled(client, topic)).committed == ["next"]


@rule("B.3", "two-phase commit that is not enabled: 53; keepPrepared without two-phase commit: INVALID_REQUEST")
@in_loop
async def test_two_phase_commit_that_is_not_allowed(port: int, two_phase_broker: BrokerProcess, name: str) -> None:
    async with stage(port) as ordinary, stage(two_phase_broker.port) as allowed:
        for here, two_phase, keep, expected in (
            (ordinary, True, False, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
            (ordinary, False, True, ErrorCode.INVALID_REQUEST),
            (allowed, False, True, ErrorCode.INVALID_REQUEST),
        ):
            writer = Writer(await here.connect(), name)
            await Writer(writer.client, f"{name}-first").begin(timeout_ms=1_000)
            assert (await init(writer, two_phase=two_phase, keep=keep)).error_code == expected

"""Requests that arrive late, twice, on another connection, or when their client is in its next transaction already.

The reports of Jepsen on Kafka (KAFKA-17754) began with such requests: an end of transaction n that ended n+1.
"""

from __future__ import annotations

import asyncio

import pytest

from service.wire.error_codes import ErrorCode
from service.wire.messages import (
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    ProduceRequest,
    TxnOffsetCommitRequest,
)
from tests.faults.proxy import Caught, Fault
from tests.faults.scenario import Stage, in_loop, stage
from tests.faults.writer import OLD, Writer, group_offset, settled, until
from tests.rules import rule

PLAIN = pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])


async def held_back(stage: Stage, writer: Writer, request: type, attempt: object) -> Caught:
    """Start `attempt` (a coroutine that sends `request` behind the proxy) and give its client a new connection while
    the request is still on its way.
    """
    caught = stage.proxy.rule(request, Fault.HOLD)
    task = asyncio.ensure_future(attempt)  # type: ignore[call-overload]
    request_on_its_way = await caught.caught()
    await writer.client.close()
    with pytest.raises(OSError):
        await task
    writer.client = await stage.connect_behind_proxy()
    assert isinstance(request_on_its_way, Caught)
    return request_on_its_way


@PLAIN
@rule("C", "KAFKA-17754: an end on its way while its client goes on does not end the next transaction")
@in_loop
async def test_an_end_on_its_way_does_not_end_the_next_transaction(
    port: int, topic: str, name: str, commit: bool
) -> None:
    async with stage(port) as here:
        writer = Writer(await here.connect_behind_proxy(), name)
        await writer.begin()
        await writer.sent(topic, "first")
        late = await held_back(here, writer, EndTxnRequest, writer.end(commit=commit))
        assert await writer.end(commit=commit) is ErrorCode.NONE
        await writer.sent(topic, "second")

        late.release()
        assert (await late.answer()).error_code == ErrorCode.PRODUCER_FENCED
        assert (await writer.described()).transaction_state == "Ongoing"

        await writer.sent(topic, "third")
        await (writer.abort() if commit else writer.commit())
        found = await settled(await here.connect(), topic)
        assert found.committed == (["first"] if commit else ["second", "third"])
        assert found.uncommitted == ["first", "second", "third"], "nothing was written twice"


@PLAIN
@rule("C", "an end that comes again is answered as before while nothing happened since, and refused ever after")
@in_loop
async def test_an_end_delivered_again_and_again(port: int, topic: str, name: str, commit: bool) -> None:
    async with stage(port) as here:
        writer = Writer(await here.connect_behind_proxy(), name)
        await writer.begin()
        await writer.sent(topic, "first")
        rule_of_end = here.proxy.rule(EndTxnRequest, Fault.WATCH)
        assert await writer.end(commit=commit) is ErrorCode.NONE
        end = await rule_of_end.caught()
        await writer.settled()

        again = await end.redeliver()
        assert (again.error_code, again.producer_id, again.producer_epoch) == (0, writer.id, writer.epoch)

        await writer.sent(topic, "second")
        assert (await end.redeliver()).error_code == ErrorCode.PRODUCER_FENCED
        await (writer.abort() if commit else writer.commit())
        await writer.settled()
        assert (await end.redeliver()).error_code == ErrorCode.PRODUCER_FENCED
        await writer.sent(topic, "third")
        assert (await end.redeliver()).error_code == ErrorCode.PRODUCER_FENCED
        await (writer.abort() if commit else writer.commit())

        found = await settled(await here.connect(), topic)
        assert found.committed == (["first"] if commit else ["second", "third"])


@PLAIN
@rule("C", "an end that is delivered twice in a row ends one transaction and is answered twice alike")
@in_loop
async def test_an_end_delivered_twice_in_a_row(port: int, topic: str, name: str, commit: bool) -> None:
    async with stage(port) as here:
        writer = Writer(await here.connect_behind_proxy(), name)
        await writer.begin()
        await writer.sent(topic, "first")
        twice = here.proxy.rule(EndTxnRequest, Fault.TWICE)
        assert await writer.end(commit=commit) is ErrorCode.NONE
        end = await twice.caught()
        first, second = await end.answer(), await end.answer()
        assert second.error_code in (ErrorCode.NONE, ErrorCode.CONCURRENT_TRANSACTIONS)
        if second.error_code == ErrorCode.NONE:
            assert second == first
        await writer.sent(topic, "second")
        await writer.commit()
        found = await settled(await here.connect(), topic)
        assert found.committed == (["first", "second"] if commit else ["second"])


@PLAIN
@rule("C", "a write on its way while its transaction is ended and the next begun is in neither")
@in_loop
async def test_a_write_on_its_way_does_not_get_into_the_next_transaction(
    port: int, topic: str, name: str, commit: bool
) -> None:
    async with stage(port) as here:
        writer = Writer(await here.connect_behind_proxy(), name)
        await writer.begin()
        await writer.sent(topic, "first")
        late = await held_back(here, writer, ProduceRequest, writer.send(topic, "late"))
        await (writer.commit() if commit else writer.abort())
        await writer.sent(topic, "second")

        late.release()
        answer = (await late.answer()).responses[0].partition_responses[0]
        assert answer.error_code == ErrorCode.INVALID_PRODUCER_EPOCH
        await writer.commit()
        late_again = (await late.redeliver()).responses[0].partition_responses[0]
        assert late_again.error_code == ErrorCode.INVALID_PRODUCER_EPOCH

        found = await settled(await here.connect(), topic)
        assert found.uncommitted == ["first", "second"]
        assert found.committed == (["first", "second"] if commit else ["second"])


@rule("C", "a write delivered again on another connection, in its own transaction, is answered and written once")
@in_loop
async def test_a_write_delivered_again_is_written_once(port: int, topic: str, name: str) -> None:
    async with stage(port) as here:
        writer = Writer(await here.connect_behind_proxy(), name)
        await writer.begin()
        writes = here.proxy.rule(ProduceRequest, Fault.WATCH, times=2)
        await writer.sent(topic, "first")
        first = await writes.caught()
        await writer.sent(topic, "second")
        for _ in range(2):
            again = (await first.redeliver()).responses[0].partition_responses[0]
            assert (again.error_code, again.base_offset) == (ErrorCode.NONE, 0)
        twice = here.proxy.rule(ProduceRequest, Fault.TWICE)
        assert await writer.send(topic, "third") is ErrorCode.NONE
        third = await twice.caught()
        answers = [(await third.answer()).responses[0].partition_responses[0] for _ in range(2)]
        # A repeat names the batch's timestamp as its append time, as Kafka's does; all else is the same answer.
        assert [(answer.error_code, answer.base_offset) for answer in answers] == [(ErrorCode.NONE, 2)] * 2
        await writer.commit()
        found = await settled(await here.connect(), topic)
        assert found.committed == found.uncommitted == ["first", "second", "third"]


@rule("B.2", "an older client's write that comes after the end of its transaction opens nothing (KIP-890, part 1)")
@pytest.mark.parametrize(
    ("version", "refusal"),
    [(10, ErrorCode.INVALID_TXN_STATE), (11, ErrorCode.TRANSACTION_ABORTABLE)],
    ids=["before", "since"],
)
@in_loop
async def test_an_older_clients_late_write_opens_no_transaction(
    port: int, topic: str, name: str, version: int, refusal: ErrorCode
) -> None:
    async with stage(port) as here:
        writer = Writer(await here.connect_behind_proxy(), name, OLD)
        await writer.begin()
        await writer.sent(topic, "first")
        late = await held_back(here, writer, ProduceRequest, writer.send(topic, "late", version=version))
        await writer.abort()
        assert await writer.settled() == "CompleteAbort"
        # The next transaction is on another partition: the late write must not join it here.
        late.release()
        assert (await late.answer()).responses[0].partition_responses[0].error_code == refusal
        found = await settled(await here.connect(), topic)
        assert (found.committed, found.uncommitted) == ([], ["first"])


@rule("B.4", "an older client's AddPartitionsToTxn that comes again is in the transaction then open, and pins nothing")
@in_loop
async def test_an_older_clients_late_add_of_partitions_pins_nothing(port: int, topic: str, name: str) -> None:
    async with stage(port) as here:
        writer = Writer(await here.connect_behind_proxy(), name, OLD)
        await writer.begin()
        adds = here.proxy.rule(AddPartitionsToTxnRequest, Fault.WATCH)
        await writer.sent(topic, "first")
        await writer.commit()
        await writer.settled()
        late = await adds.caught()
        again = await late.redeliver()
        assert again.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code == ErrorCode.NONE
        assert not (await settled(await here.connect(), topic)).open, "nothing was written: nobody is held back"
        await writer.sent(topic, "second")
        await late.redeliver()
        await writer.commit()
        assert (await settled(await here.connect(), topic)).committed == ["first", "second"]


@PLAIN
@rule("C", "offsets on their way while their transaction is ended and the next begun are in neither")
@in_loop
async def test_offsets_on_their_way_do_not_get_into_the_next_transaction(
    port: int, topic: str, name: str, commit: bool
) -> None:
    async with stage(port) as here:
        writer = Writer(await here.connect_behind_proxy(), name)
        await writer.begin()
        await writer.committed_offset(name, topic, 10)
        late = await held_back(here, writer, TxnOffsetCommitRequest, writer.commit_offset(name, topic, 11))
        await (writer.commit() if commit else writer.abort())
        await writer.sent(topic, "second")

        late.release()
        refused = (await late.answer()).topics[0].partitions[0].error_code
        assert refused in (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED)
        await writer.commit()
        await late.redeliver()
        assert await group_offset(await here.connect(), name, topic) == (10 if commit else -1)


@rule("B.3", "an init that comes again, its client being in a transaction, aborts nothing (KIP-360's pair is too old)")
@in_loop
async def test_a_late_init_of_the_same_instance_aborts_nothing(port: int, topic: str, name: str) -> None:
    async with stage(port) as here:
        writer = Writer(await here.connect_behind_proxy(), name)
        await writer.begin()
        watched = here.proxy.rule(InitProducerIdRequest, Fault.WATCH, where=lambda init: init.producer_id >= 0)
        assert await until(lambda: writer.init(named=True), lambda code: not code) is ErrorCode.NONE
        late = await watched.caught()
        again = await late.redeliver()
        assert (again.producer_id, again.producer_epoch) == (writer.id, writer.epoch), "its repeat is answered alike"
        await writer.sent(topic, "kept")
        assert (await late.redeliver()).error_code == ErrorCode.PRODUCER_FENCED
        await writer.commit()
        assert (await settled(await here.connect(), topic)).committed == ["kept"]

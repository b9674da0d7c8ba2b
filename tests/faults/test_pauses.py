"""A broker that stands still (SIGSTOP) for longer and shorter than the timeouts that run meanwhile."""

from __future__ import annotations

import asyncio
import os
import signal

from confluent_kafka import Producer

from service.client.connection import Client
from service.wire.error_codes import ErrorCode
from tests.clients.topics import Topics
from tests.faults.scenario import in_loop
from tests.faults.writer import Writer, settled, until
from tests.peers.process import BrokerProcess
from tests.rules import rule


async def pause(broker: BrokerProcess, seconds: float) -> None:
    os.kill(broker.pid, signal.SIGSTOP)
    await asyncio.sleep(seconds)
    os.kill(broker.pid, signal.SIGCONT)


@rule("B.7", "a pause longer than one transaction's timeout and shorter than another's ends the one and not the other")
@in_loop
async def test_a_pause_between_two_timeouts(own_broker: BrokerProcess, name: str) -> None:
    topics = Topics(own_broker.bootstrap, name)
    brief_topic, long_topic = topics.create(), topics.create()
    async with Client("127.0.0.1", own_broker.port) as client:
        brief, patient = Writer(client, f"{name}-brief"), Writer(client, f"{name}-patient")
        await brief.begin(timeout_ms=1_000)
        await patient.begin(timeout_ms=60_000)
        await brief.sent(brief_topic, "too slow")
        await patient.sent(long_topic, "before")
        await pause(own_broker, 1.3)
        state = await until(brief.described, lambda told: told.transaction_state == "CompleteAbort")
        assert state.producer_epoch == brief.epoch + 1, "the epoch moved: whatever is on its way is refused"
        assert await brief.send(brief_topic, "too late") is ErrorCode.INVALID_PRODUCER_EPOCH
        assert await brief.end(commit=True) is ErrorCode.PRODUCER_FENCED
        await patient.sent(long_topic, "after")
        await patient.commit()
        assert (await settled(client, long_topic)).committed == ["before", "after"]
        assert (await settled(client, brief_topic)).committed == []
        await brief.begin()
        await brief.sent(brief_topic, "in time")
        await brief.commit()
        assert (await settled(client, brief_topic)).committed == ["in time"]


@rule("C", "a pause longer than the client's request timeout: it repeats what the broker has, and nothing is doubled")
@in_loop
async def test_a_pause_longer_than_a_request_timeout(own_broker: BrokerProcess, name: str) -> None:
    topic = Topics(own_broker.bootstrap, name).create()

    def write() -> None:
        settings = {"bootstrap.servers": own_broker.bootstrap, "transactional.id": name, "linger.ms": 0, "log_level": 0}
        producer = Producer({**settings, "socket.timeout.ms": 500, "request.timeout.ms": 500})
        producer.init_transactions(20)
        started.set_result(None)
        for number in range(60):
            producer.begin_transaction()
            producer.produce(topic, f"{number}".encode(), partition=0)
            producer.flush(20)
            producer.commit_transaction(20)

    class Started:
        """Says to the loop that the first transaction may begin."""

        def __init__(self) -> None:
            self._loop = asyncio.get_running_loop()
            self.came = asyncio.Event()

        def set_result(self, _: None) -> None:
            self._loop.call_soon_threadsafe(self.came.set)

    started = Started()
    writing = asyncio.ensure_future(asyncio.to_thread(write))
    await started.came.wait()
    for _ in range(2):
        await asyncio.sleep(0.05)
        await pause(own_broker, 1.2)
    await writing
    async with Client("127.0.0.1", own_broker.port) as client:
        assert (await settled(client, topic)).committed == [f"{number}" for number in range(60)]

"""Connections by their addresses: what waits holds up nothing else, and what was ended is not used again."""

from __future__ import annotations

import asyncio
import socket

import pytest

from service.client.connection import Client
from service.client.failures import ClientFailure
from service.client.pool import IDLE_MAX, Address, Pool
from service.wire.messages import InitProducerIdRequest, MetadataResponse
from tests.service.client.test_connection import SmallBroker, topic
from tests.service.net.kit import run, serving, until


def test_a_request_that_waits_on_purpose_holds_up_no_other() -> None:
    async def main() -> None:
        broker = SmallBroker()
        broker.hold = asyncio.Event()
        pool = Pool(client_id="test", timeout_s=5.0)
        async with serving(broker) as server:
            place = Address("127.0.0.1", server.port)
            waiting = [
                asyncio.ensure_future(pool.ask(place, topic(f"t{at}"), wait_s=3.0)) for at in range(IDLE_MAX + 4)
            ]
            await until(lambda: broker.seen.count((3, 13)) == len(waiting))
            assert (await pool.ask(place, InitProducerIdRequest())).producer_id == 5
            waiting[0].cancel()
            broker.hold.set()
            answers = await asyncio.gather(*waiting[1:])
            assert [each.topics[0].name for each in answers] == [f"t{at}" for at in range(1, IDLE_MAX + 4)]
            (idle,) = pool._waited.values()
            assert len(idle) == IDLE_MAX
            await pool.ask(place, topic("again"), wait_s=3.0)
            assert len(idle) == IDLE_MAX
            await pool.close()
            assert not any(each.is_open for each in idle)

    run("uvloop", main)


def test_a_request_of_another_lane_is_not_held_up() -> None:
    async def main() -> None:
        broker = SmallBroker()
        broker.hold = asyncio.Event()
        pool = Pool(client_id="test", timeout_s=5.0)
        async with serving(broker) as server:
            place = Address("127.0.0.1", server.port)
            held = asyncio.ensure_future(pool.ask(place, topic("t"), lane="slow"))
            await until(lambda: (3, 13) in broker.seen)
            behind = asyncio.ensure_future(pool.ask(place, InitProducerIdRequest(), lane="slow"))
            assert (await pool.ask(place, InitProducerIdRequest(), lane="other")).producer_id == 5
            assert not behind.done()
            broker.hold.set()
            await asyncio.gather(held, behind)
            assert pool.connected == [place, place]
        await pool.close()

    run("uvloop", main)


@pytest.mark.parametrize("wait_s", [0.0, 1.0])
def test_a_connection_that_the_broker_has_ended_is_not_used_again(wait_s: float) -> None:
    async def main() -> None:
        pool = Pool(client_id="test", timeout_s=5.0)
        async with serving(SmallBroker()) as server:
            place = Address("127.0.0.1", server.port)
            for _ in range(2):
                answer: MetadataResponse = await pool.ask(place, topic("t"), wait_s=wait_s)
                assert answer.topics[0].name == "t"
                client: Client = pool._waited[place][0] if wait_s else pool._clients[place, None]
                client.abort()  # as if the broker had
                while client.is_open:  # noqa: ASYNC110  the client does not tell
                    await asyncio.sleep(0.002)
        await pool.close()

    run("uvloop", main)


@pytest.mark.parametrize("lane", ["one", "each"])
def test_all_who_wait_for_a_silent_broker_are_told_at_the_same_time(lane: str) -> None:
    """One after the other tried anew, for the whole timeout: the sixth was told after six of them."""

    async def main() -> None:
        pool = Pool(client_id="test", timeout_s=0.4)
        loop = asyncio.get_running_loop()
        with socket.create_server(("127.0.0.1", 0)) as silent:
            place = Address("127.0.0.1", silent.getsockname()[1])
            began_s = loop.time()
            asking = [pool.ask(place, topic("t"), lane=at if lane == "each" else lane) for at in range(6)]
            told = await asyncio.gather(*asking, return_exceptions=True)
            assert all(isinstance(each, ClientFailure) and not each.may_come_late for each in told), told
            assert 0.39 < loop.time() - began_s < 0.8
        assert not pool._connecting

    run("uvloop", main)


def test_those_who_wait_have_a_connection_though_the_one_who_makes_it_gives_up() -> None:
    async def main() -> None:
        pool = Pool(client_id="test", timeout_s=5.0)
        async with serving(SmallBroker()) as server:
            place = Address("127.0.0.1", server.port)
            first, *others = [asyncio.ensure_future(pool.client(place)) for _ in range(4)]
            await asyncio.sleep(0)
            first.cancel()
            (client,) = set(await asyncio.gather(*others))
            assert client.is_open and first.cancelled()
        await pool.close()

    run("uvloop", main)


def test_a_connection_on_which_nothing_goes_on_is_dropped_without_waiting_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A broker that had not taken all bytes held the caller that dropped its connection, without end."""

    async def forever(*_: object) -> None:
        await asyncio.Event().wait()

    async def main() -> None:
        pool = Pool(client_id="test", timeout_s=0.2)
        async with serving(SmallBroker()) as server:
            place = Address("127.0.0.1", server.port)
            client = await pool.client(place)
            monkeypatch.setattr(Client, "request", forever)
            monkeypatch.setattr(Client, "close", forever)
            async with asyncio.timeout(5):
                with pytest.raises(ClientFailure):
                    await pool.ask(place, topic("t"))
            await until(lambda: not client.is_open)

    run("uvloop", main)

"""The cluster and its brokers."""

from __future__ import annotations

import msgspec
from aiohttp import web

from service.settings.broker import WEB
from service.web.answers import as_json, path_int
from service.web.gateway import Gateway
from service.web.problems import Problem
from service.web.routing import Route


class ListenerOut(msgspec.Struct):
    listener: str
    host: str
    port: int


class BrokerOut(msgspec.Struct):
    id: int
    rack: str | None
    listeners: list[ListenerOut]
    http: str | None
    partitions_led: int


class Brokers(msgspec.Struct):
    brokers: list[BrokerOut]


class ClusterOut(msgspec.Struct):
    cluster_id: str
    controller: int
    brokers: list[int]
    topics: int
    partitions: int


def _brokers(gateway: Gateway) -> list[BrokerOut]:
    image = gateway.image
    led: dict[int, int] = {}
    for topic in image.topics.values():
        for state in topic.partitions.values():
            led[state.leader] = led.get(state.leader, 0) + 1
    found = []
    for broker in image.brokers.values():
        web_endpoint = broker.endpoint(WEB)
        listeners = [
            ListenerOut(each.listener, each.host, each.port) for each in broker.endpoints if each.listener != WEB
        ]
        url = None if web_endpoint is None else web_endpoint.url
        found.append(BrokerOut(broker.id, broker.rack, listeners, url, led.get(broker.id, 0)))
    return sorted(found, key=lambda each: each.id)


async def brokers(gateway: Gateway, request: web.Request) -> web.Response:
    return as_json(Brokers(_brokers(gateway)))


async def broker(gateway: Gateway, request: web.Request) -> web.Response:
    wanted = path_int(request, "broker")
    found = next((each for each in _brokers(gateway) if each.id == wanted), None)
    if found is None:
        raise Problem("not-found", f"there is no broker {wanted} now")
    return as_json(found)


async def cluster(gateway: Gateway, request: web.Request) -> web.Response:
    image = gateway.image
    partitions = sum(len(topic.partitions) for topic in image.topics.values())
    return as_json(
        ClusterOut(
            *(gateway.image.cluster_id, image.controller_id, sorted(image.brokers)), len(image.topics), partitions
        )
    )


ROUTES = (
    Route("GET", "/v1/cluster", cluster, "The cluster at a glance.", "cluster", answer=ClusterOut),
    Route("GET", "/v1/brokers", brokers, "The brokers that are there now.", "cluster", answer=Brokers),
    Route("GET", "/v1/brokers/{broker}", broker, "One broker.", "cluster", answer=BrokerOut, problems=(400, 404)),
)

"""`/metrics`: this broker's metrics, for Prometheus and for people who read text (`monitoring/`)."""

import asyncio
from collections.abc import Collection
from importlib.metadata import PackageNotFoundError, version

from aiohttp import web

from log.ids import TopicPartition
from monitoring import shapes
from monitoring.collectors import Scrape
from monitoring.scraping import Elsewhere, Holders, Places, Scraper, content_type, wants_openmetrics
from service.broker.internal_topics import TRANSACTIONS
from service.client.cluster import LATEST, READ_COMMITTED
from service.client.failures import ClientFailure
from service.client.transactions import transactions_of
from service.web.gateway import Gateway
from service.web.pages.facts import leader_of
from service.web.pages.near import NearCluster
from service.web.routing import Route

ELSEWHERE_S = 2.0


def our_version() -> str:
    try:
        return version("oncelog")
    except PackageNotFoundError:  # run from a clone that was never installed
        return "unknown"


def scraper_of(broker: shapes.Broker, elsewhere: Elsewhere | None = None, holders: Holders | None = None) -> Scraper:
    return Scraper(Scrape(broker, version=our_version()), elsewhere, holders)


async def offsets_elsewhere(gateway: Gateway, wanted: Places) -> dict[tuple[str, int], tuple[int, int]]:
    """Offsets, as the leaders tell them within a short time: a broker that does not answer must not hold up a
    scrape.
    """
    cluster = NearCluster(gateway)
    image = gateway.image
    partitions = [TopicPartition(*place) for place in wanted]
    there = [each for each in partitions if (state := image.partition(each)) and leader_of(image, state) >= 0]
    if not there:
        return {}
    try:
        async with asyncio.timeout(ELSEWHERE_S):
            await cluster.metadata({each.topic for each in there})
            latest = dict.fromkeys(there, LATEST)
            stable = await cluster.list_offsets(latest, isolation=READ_COMMITTED, all_of_them=False)
            highs = await cluster.list_offsets(latest, all_of_them=False)
    except (ClientFailure, TimeoutError):
        return {}
    return {
        (each.topic, each.partition): (min(stable[each].offset, highs[each].offset), highs[each].offset)
        for each in there
        if each in stable and each in highs
    }


async def holders_elsewhere(gateway: Gateway, producer_ids: Collection[int]) -> dict[int, str] | None:
    """Open transactions, as all coordinators tell them within a short time. If one coordinator does not answer, the
    list is unknown.
    """
    image = gateway.image
    if any(leader_of(image, state) < 0 for state in image.topics[TRANSACTIONS.name].partitions.values()):
        return None
    try:
        async with asyncio.timeout(ELSEWHERE_S):
            cluster = NearCluster(gateway)
            await cluster.metadata([])
            found = await transactions_of(cluster, producer_ids)
    except (ClientFailure, TimeoutError):
        return None
    return {
        producer_id: each.transactional_id
        for producer_id, transactions in found.items()
        for each in transactions
        if each.is_open
    }


async def scrape(gateway: Gateway, request: web.Request) -> web.StreamResponse:
    openmetrics = wants_openmetrics(request.headers.get("Accept", ""))
    response = web.StreamResponse(headers={"Content-Type": content_type(openmetrics=openmetrics)})
    pieces = gateway.here.scraper.text(openmetrics=openmetrics)
    await response.prepare(request)
    async for piece in pieces:
        await response.write(piece)
    await response.write_eof()
    return response


ROUTES = (
    Route(
        "GET",
        "/metrics",
        scrape,
        "The broker's metrics, in Prometheus's text format or as OpenMetrics.",
        "health",
        answer_media="text/plain",
    ),
)

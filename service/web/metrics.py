"""`/metrics`: this broker's metrics, for Prometheus and for people who read text (`monitoring/`)."""

from collections.abc import Collection
from importlib.metadata import PackageNotFoundError, version

from aiohttp import web

from log.ids import TopicPartition
from monitoring import shapes
from monitoring.collectors import Scrape
from monitoring.scraping import Elsewhere, Holders, LowestOffsets, Scraper, content_type, wants_openmetrics
from service.client.ends import Ends
from service.client.transactions import transactions_of
from service.web.gateway import Gateway
from service.web.pages.facts import Told, all_coordinate, ends_there, led_by
from service.web.pages.views import kept_of
from service.web.routing import Route


def our_version() -> str:
    try:
        return version("oncelog")
    except PackageNotFoundError:  # run from a clone that was never installed
        return "unknown"


def scraper_of(broker: shapes.Broker, elsewhere: Elsewhere | None = None, holders: Holders | None = None) -> Scraper:
    return Scraper(Scrape(broker, version=our_version()), elsewhere, holders)


async def ends_elsewhere(gateway: Gateway, wanted: LowestOffsets) -> dict[tuple[str, int], Ends]:
    """The ends of partitions, as far as the leaders tell them within a short time: a broker that does not answer must
    not hold up a scrape, nor hide what others tell.
    """
    cluster = kept_of(gateway).cluster
    since = {TopicPartition(*place): offset for place, offset in wanted.items()}
    asks = {node: ends_there(cluster, node, led, since) for node, led in led_by(gateway, since).items()}
    answers = await Told().ask_each("offsets", asks)
    return {(each.topic, each.partition): ends for there in answers.values() for each, ends in there.items()}


async def holders_elsewhere(gateway: Gateway, producer_ids: Collection[int]) -> dict[int, str] | None:
    """Open transactions, as all coordinators tell them within a short time. If one coordinator does not answer, the
    list is unknown.
    """
    image, cluster = gateway.image, kept_of(gateway).cluster
    if not all_coordinate(image):
        return None
    asks = {node: transactions_of(cluster, producer_ids, [node]) for node in image.brokers}
    answers = await Told().ask_each("transactions", asks)
    if len(answers) < len(asks):
        return None
    return {
        producer_id: each.transactional_id
        for there in answers.values()
        for producer_id, transactions in there.items()
        for each in transactions
        if each.is_open
    }


async def scrape(gateway: Gateway, request: web.Request) -> web.StreamResponse:
    openmetrics = wants_openmetrics(request.headers.get("Accept", ""))
    headers = {"Content-Type": content_type(openmetrics=openmetrics)}
    if request.method == "HEAD":  # aiohttp would send what is written in pieces all the same
        return web.Response(headers=headers)
    response = web.StreamResponse(headers=headers)
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

"""`/metrics`: what this broker has to say about itself, for Prometheus and whoever reads text (`monitoring/`)."""

from importlib.metadata import PackageNotFoundError, version

from aiohttp import web

from monitoring.collectors import Scrape
from monitoring.scraping import Scraper, content_type, wants_openmetrics
from service.broker.node import Broker
from service.web.gateway import Gateway
from service.web.routing import Route


def scraper_of(broker: Broker) -> Scraper:
    try:
        ours = version("oncelog")
    except PackageNotFoundError:  # run from a clone that was never installed
        ours = "unknown"
    return Scraper(Scrape(broker, version=ours))


async def scrape(gateway: Gateway, request: web.Request) -> web.StreamResponse:
    openmetrics = wants_openmetrics(request.headers.get("Accept", ""))
    response = web.StreamResponse(headers={"Content-Type": content_type(openmetrics=openmetrics)})
    pieces = gateway.scraper.text(openmetrics=openmetrics)
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

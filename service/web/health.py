"""Whether this broker is alive, and whether it can be used: for orchestrators and load balancers.

A broker whose session with the metadata store may be over leads nothing (R9): it neither reads nor writes for anybody,
so it is not ready. It is alive all the same: to start it again would not bring the store back.
"""

from collections.abc import Iterator

import msgspec
from aiohttp import web

from service.web.answers import as_json
from service.web.gateway import Gateway
from service.web.routing import Route, flag


class ReadinessCheck(msgspec.Struct):
    """A condition that must hold before the broker can be used."""

    name: str
    ok: bool
    detail: str | None = None


class Readiness(msgspec.Struct, omit_defaults=True):
    ready: bool
    node_id: int
    checks: list[ReadinessCheck] | None = None


class Liveness(msgspec.Struct):
    alive: bool


def checks(gateway: Gateway) -> Iterator[ReadinessCheck]:
    failed = [folder.name for folder in gateway.here.folders if folder.failed is not None]
    yield ReadinessCheck("serving", gateway.ready.is_set(), "logs are open and the broker is registered")
    why = gateway.why_out_of_session
    yield ReadinessCheck("session", not why, why or "the metadata store counts this broker as alive")
    controller = gateway.image.controller
    why = "no registered broker controls the cluster" if controller is None else f"broker {controller.id}"
    yield ReadinessCheck("controller", controller is not None, why)
    yield ReadinessCheck("folders", not failed, ", ".join(failed) or None)


async def live(gateway: Gateway, request: web.Request) -> web.Response:
    return as_json(Liveness(True))


async def ready(gateway: Gateway, request: web.Request) -> web.Response:
    found = list(checks(gateway))
    is_ready = all(check.ok for check in found)
    shown = found if "verbose" in request.query or not is_ready else None
    return as_json(Readiness(is_ready, gateway.node_id, shown), status=200 if is_ready else 503)


_LIVE = "Whether the process answers."
_READY = "Whether the broker can be used: 200, or 503 with what is missing."
_VERBOSE = (flag("verbose", "Name every check."),)
ROUTES = (
    Route("GET", "/livez", live, _LIVE, "health", answer=Liveness),
    Route("GET", "/healthy", live, _LIVE, "health", answer=Liveness, documented=False),
    Route("GET", "/readyz", ready, _READY, "health", answer=Readiness, also=(503,), parameters=_VERBOSE),
    Route("GET", "/ready", ready, _READY, "health", answer=Readiness, also=(503,), documented=False),
)

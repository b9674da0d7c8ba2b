"""Judges where requests of browsers come from. Pages of other sites must neither change nor read what is here.

What always holds: a program that is no browser is served under every name. It says nothing of what is looked at here.
"""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from aiohttp import web

from service.settings.broker import BrokerConfig
from service.web.forwarding import FORWARDED


class Origins:
    """What one broker's settings say of pages and names."""

    def __init__(self, config: BrokerConfig) -> None:
        self._named = frozenset(config.http_cors_origins)
        endpoints = *config.advertised_endpoints(), *config.web_endpoints
        self._hosts = {each.host.lower() for each in endpoints} | {_host_of(each) for each in self._named}

    def are_named(self, origin: str | None) -> bool:
        """Whether the settings let pages of this origin use the API."""
        return origin is not None and not self._named.isdisjoint((origin, "*"))

    def are_foreign(self, request: web.Request) -> bool:
        """Whether a page of another origin has sent the request, which the settings do not name. Browsers say that with
        requests that they send without asking first, too. What another broker forwards was judged there.
        """
        origin, site = request.headers.get("Origin"), request.headers.get("Sec-Fetch-Site")
        if FORWARDED in request.headers or self.are_named(origin):
            return False
        if site is not None:
            return site not in ("same-origin", "none")
        return origin is not None and not is_at(origin, request.host)

    def are_borrowed(self, request: web.Request) -> bool:
        """Whether a browser asks under a name that may be anybody's. Who owns a name can let it resolve to any address,
        and the browser then takes pages from there for this broker's own. An address says what it is, and nobody can
        own a name without a dot.
        """
        if not _is_of_browser(request) or "*" in self._named or self.are_named(request.headers.get("Origin")):
            return False
        host = _host_of(f"//{request.headers.get('Host', '')}")
        return "." in host and host not in self._hosts and not _is_address(host)


def is_at(origin: str, host: str) -> bool:
    """Whether a page of this origin came from that host."""
    try:
        return urlsplit(origin).netloc.lower() == host.lower()
    except ValueError:  # it is no address
        return False


def _is_of_browser(request: web.Request) -> bool:
    """What a page reads from its own origin tells nothing of the page, where there is no TLS. But every browser tells
    its languages, and no script can keep it from that. Programs on Node tell them too, and a mode besides, which
    browsers tell only where there is TLS, or of localhost.
    """
    headers = request.headers
    return (
        "Origin" in headers
        or "Sec-Fetch-Site" in headers
        or ("Accept-Language" in headers and "Sec-Fetch-Mode" not in headers)
    )


def _host_of(url: str) -> str:
    try:
        return (urlsplit(url).hostname or "").rstrip(".")
    except ValueError:  # no browser sends that
        return ""


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True

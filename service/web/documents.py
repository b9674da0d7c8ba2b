"""The documentation as text. An alert names its runbook as `docs/runbooks/NAME.md`; every broker serves it under that
path.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from aiohttp import web

from service.web.gateway import Gateway
from service.web.problems import Problem
from service.web.routing import Route

DOCUMENTS: Final = Path(__file__).resolve().parents[2] / "docs"
"""The folder beside our packages, both in a clone and where a wheel was installed."""
_HEADERS: Final = {"X-Content-Type-Options": "nosniff", "Cache-Control": "max-age=3600"}


def documents() -> dict[str, Path]:
    """Every page by its name, such as `runbooks/index.md`."""
    found = [*DOCUMENTS.glob("*.md"), *DOCUMENTS.glob("runbooks/*.md"), *DOCUMENTS.glob("llms.txt")]
    return {str(path.relative_to(DOCUMENTS)): path for path in sorted(found)}


async def document(gateway: Gateway, request: web.Request) -> web.Response:
    """One page. Its name is looked up in the list of pages and never becomes part of a path."""
    found = documents().get(request.match_info["name"])
    if found is None:
        raise Problem("not-found", "there is no such document; /docs lists them")
    return web.Response(text=found.read_text(), content_type="text/plain", charset="utf-8", headers=_HEADERS)


ROUTES = (Route("GET", "/docs/{name:.+}", document, "A page of the documentation.", "about", documented=False),)

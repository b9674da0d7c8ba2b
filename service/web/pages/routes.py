"""The table of pages."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from aiohttp import web

from service.web.gateway import Gateway
from service.web.pages import actions, asking, moving, views
from service.web.pages.actions import own_pages_only
from service.web.pages.render import HEADERS
from service.web.pages.views import showing
from service.web.problems import Problem
from service.web.routing import Handler, Route

STATIC: Final = Path(__file__).parent / "static"
FORM: Final = "application/x-www-form-urlencoded"
TYPES: Final = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


async def static(gateway: Gateway, request: web.Request) -> web.Response:
    """One of our few files. Its name is looked up in the list of files and never becomes part of a path."""
    found = {path.name: path for path in STATIC.iterdir()}.get(request.match_info["name"])
    if found is None:
        raise Problem("not-found", "there is no such file")
    headers = {**HEADERS, "Cache-Control": "max-age=3600"}
    return web.Response(body=found.read_bytes(), content_type=TYPES[found.suffix], headers=headers)


async def home(gateway: Gateway, request: web.Request) -> web.StreamResponse:
    raise web.HTTPFound("/ui")


def _page(path: str, handle: Handler, summary: str, method: str = "GET") -> Route:
    media = (FORM,) if method == "POST" else ()
    return Route(method, path, handle, summary, "ui", body_media=media, body_bytes_max=None, documented=False)


ROUTES = (
    _page("/", home, "To the pages."),
    _page("/ui/", home, "To the pages."),
    _page("/ui", showing("overview", views.overview), "Is the cluster well."),
    _page("/ui/transactions", showing("transactions", views.transactions), "What is open, and since when."),
    _page("/ui/transactions/{id}", showing("transaction", views.transaction), "One transactional id."),
    _page("/ui/transactions/{id}/abort", own_pages_only(actions.abort_id), "End it.", "POST"),
    _page("/ui/topics", showing("topics", views.topics), "Topics."),
    _page("/ui/topics/{topic}", showing("topic", views.topic), "One topic's partitions."),
    _page("/ui/topics/{topic}/produce", showing("produce", asking.producing, live=False), "Write to it."),
    _page("/ui/topics/{topic}/produce", own_pages_only(asking.produce), "Write a record.", "POST"),
    _page("/ui/topics/{topic}/replicas", showing("replicas", moving.replicas_plan), "Which brokers would hold it."),
    _page("/ui/topics/{topic}/replicas", own_pages_only(moving.move_replicas), "Move them.", "POST"),
    _page("/ui/topics/{topic}/replicas/stop", own_pages_only(moving.stop_moving), "Move them no further.", "POST"),
    _page("/ui/topics/{topic}/{partition:[0-9]{1,9}}", showing("messages", views.messages, live=False), "Its records."),
    _page(
        "/ui/topics/{topic}/{partition:[0-9]{1,9}}/abort", own_pages_only(actions.abort_in), "End what hangs.", "POST"
    ),
    _page("/ui/producers", showing("producers", views.producers), "Producers."),
    _page("/ui/groups", showing("groups", views.groups), "Groups, and how far they are."),
    _page("/ui/groups/{group}", showing("group", views.group), "One group."),
    _page("/ui/groups/{group}/reset", showing("reset", moving.reset_plan, live=False), "Where it would go on."),
    _page("/ui/groups/{group}/reset", own_pages_only(moving.reset_group), "Move it.", "POST"),
    _page("/ui/brokers", showing("brokers", views.brokers), "Brokers and their disks."),
    _page("/ui/settings", showing("settings", views.settings, live=False), "Settings, and what differs."),
    _page("/ui/http", showing("playground", asking.playground, live=False), "Any request."),
    _page("/ui/http", own_pages_only(asking.play), "Send it.", "POST"),
    _page("/ui/static/{name}", static, "Style and script."),
    _page("/ui/{path:.+}", showing("nothing", views.nothing, live=False), "No page."),
)

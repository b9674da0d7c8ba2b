"""From facts to HTML: the templates, how figures are written, and what a browser may do with a page.

What always holds: every name and value is escaped. A page needs nothing from other hosts, runs no script but our own
file, and says so in its headers.
"""

from __future__ import annotations

import html
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from aiohttp import web
from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup

HERE: Final = Path(__file__).parent
HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}
SHOWN_CHARACTERS: Final = 300
_UNITS: Final = ((86_400, "d"), (3_600, "h"), (60, "min"))


def duration(seconds: float | None) -> str:
    """The duration in at most two units: `2 h 5 min`."""
    if seconds is None:
        return "–"
    if seconds < 1:
        return f"{round(seconds * 1000)} ms"
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    for index, (size, name) in enumerate(_UNITS):
        if whole >= size:
            rest = whole % size
            small, small_name = (*_UNITS, (1, "s"))[index + 1]
            return f"{whole // size} {name}" + (f" {rest // small} {small_name}" if rest >= small else "")
    return f"{whole} s"


def size(count: float | None) -> str:
    if count is None:
        return "–"
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if count < 1000 or unit == "TB":
            return f"{count:.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.1f} {unit}"
        count /= 1000
    return ""


def number(value: float | None) -> str:
    """The number with thin spaces between thousands."""
    return "–" if value is None else f"{value:,.0f}".replace(",", "\u2009")


def moment(ms: int | None, *, exact: bool = False) -> str:
    """The time to the second. With `exact` to the millisecond, for places where it matters what came first."""
    if ms is None or ms < 0:
        return "–"
    try:
        at = datetime.fromtimestamp(ms // 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return str(ms)
    shown = f"{at:%Y-%m-%d %H:%M:%S}" + (f".{ms % 1000:03}" if exact else "")
    return Markup("<time>{}</time>").format(shown)


def shown(value: bytes | str | None) -> str:
    """Bytes as text if they are text, otherwise in hexadecimal. Invisible characters are written out."""
    if value is None:
        return "null"
    if isinstance(value, bytes):
        try:
            text = value.decode()
        except UnicodeDecodeError:
            return "0x" + value[: SHOWN_CHARACTERS // 2].hex() + ("…" if len(value) > SHOWN_CHARACTERS // 2 else "")
    else:
        text = value
    short = text[:SHOWN_CHARACTERS] + ("…" if len(text) > SHOWN_CHARACTERS else "")
    return "".join(each if each.isprintable() else f"\\u{ord(each):04x}" for each in short)


_environment = Environment(
    loader=FileSystemLoader(HERE / "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_environment.filters.update(duration=duration, size=size, number=number, moment=moment, shown=shown)


_AROUND: Final = ("page.html", "parts.html")
_compiled: dict[str, Template] = {}


def is_compiled(name: str) -> bool:
    return name in _compiled


def template(name: str) -> Template:
    """A template, compiled with its parts when it is first needed. Any thread may call this."""
    if name not in _compiled:
        for part in _AROUND:
            _environment.get_template(part)
        _compiled[name] = _environment.get_template(name)
    return _compiled[name]


def render(name: str, /, **facts: Any) -> str:
    return template(name).render(**facts)


def page(text: str, *, status: int = 200) -> web.Response:
    return web.Response(text=text, status=status, content_type="text/html", headers=HEADERS)


def fragment(whole: str) -> str:
    """The content of `<main>`: all that an open page needs when it changes."""
    start = whole.index("<main")
    return whole[start : whole.index("</main>", start) + len("</main>")]


def escape(text: str) -> str:
    return html.escape(text)

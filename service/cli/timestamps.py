"""Times as users write and read them: RFC 3339 in UTC, or milliseconds since 1970 as the wire has them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from service.settings.setting import MAX_LONG

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def rfc3339(timestamp_ms: int) -> str | None:
    """`2026-11-21T13:46:00.123Z`; None for the wire's "no timestamp" and for times that no calendar has."""
    if timestamp_ms < 0:
        return None
    try:
        moment = _EPOCH + timedelta(milliseconds=timestamp_ms)
    except OverflowError:
        return None
    return moment.replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"


def parse_moment(text: str) -> int:
    """Milliseconds since 1970 from `1763732760123`, `2026-11-21`, `2026-11-21T13:46:00Z`; without a zone it is UTC.

    Raises ValueError.
    """
    if text.lstrip("-").isdigit():
        timestamp_ms = int(text)
        if not -MAX_LONG <= timestamp_ms <= MAX_LONG:
            raise ValueError("no timestamp on the wire is as large")
        return timestamp_ms
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - _EPOCH) // timedelta(milliseconds=1)

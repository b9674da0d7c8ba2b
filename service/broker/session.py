"""Who is at the other end of a connection. Every request passes the door together with its session, so that
whatever must know the caller can.
"""

import asyncio
from dataclasses import dataclass, field

from service.broker.fetch_sessions import SessionKey


@dataclass(slots=True)
class Session:
    host: str
    port: int
    round_trip_us: int | None = None
    listener: str = "PLAINTEXT"
    principal: str = "User:ANONYMOUS"
    software_name: str = ""
    software_version: str = ""
    produce_turn: asyncio.Future[None] | None = None
    """Done when the last Produce of this connection that had to wait before its append has appended."""
    fetched: dict[SessionKey, None] = field(default_factory=dict)
    """Partitions that answers to Fetch gave something of before they ended early, the latest last."""

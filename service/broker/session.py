"""Who is at the other end of a connection. Every request passes the door together with its session, so that
whatever must know the caller can.
"""

import asyncio
from dataclasses import dataclass


@dataclass(slots=True)
class Session:
    host: str
    port: int
    listener: str = "PLAINTEXT"
    principal: str = "User:ANONYMOUS"
    software_name: str = ""
    software_version: str = ""
    produce_turn: asyncio.Future[None] | None = None
    """Done when the last Produce of this connection that had to wait before its append has appended."""

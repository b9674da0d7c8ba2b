"""Whether a broker's HTTP API is where it says that it is."""

import asyncio
import contextlib
import re

MOST_BYTES = 16 << 10
BEGINS = b"HTTP/1."
_WHO = re.compile(rb'"node_id": ?(\d+)')
"""`/readyz` says it, also of a broker that is not ready."""


async def why_no_http(broker: int, host: str, port: int, within_s: float) -> str | None:
    """Why the broker's HTTP API is not there; None if it is. An answer that does not say from whom it is counts as the
    broker's: it may have too many connections.
    """
    try:
        async with asyncio.timeout(within_s):
            answer = await _answer(host, port)
    except TimeoutError:
        return f"no answer within {within_s:g} s"
    except (OSError, UnicodeError) as error:  # the last of a host that can't be a name
        return str(error)
    if not answer.startswith(BEGINS):
        return "what answers there is not HTTP"
    who = _WHO.search(answer)
    return None if who is None or int(who[1]) == broker else f"broker {int(who[1])} answers there"


async def _answer(host: str, port: int) -> bytes:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(b"GET /readyz HTTP/1.1\r\nHost: oncelog\r\nConnection: close\r\n\r\n")
        answer = b""
        while len(answer) < MOST_BYTES and (piece := await reader.read(MOST_BYTES)):
            answer += piece
            if not answer.startswith(BEGINS):
                break  # it need not end by itself
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
    return answer

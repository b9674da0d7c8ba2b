"""Whether HTTP is answered at an address. What is answered does not matter."""

import asyncio
import contextlib

ENOUGH_BYTES = 64


async def why_no_http(host: str, port: int, within_s: float) -> str | None:
    """Why nobody speaks HTTP there; None if somebody does."""
    try:
        async with asyncio.timeout(within_s):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                writer.write(b"GET /livez HTTP/1.1\r\nHost: oncelog\r\nConnection: close\r\n\r\n")
                answer = await reader.read(ENOUGH_BYTES)
            finally:
                writer.close()
                with contextlib.suppress(OSError):
                    await writer.wait_closed()
    except TimeoutError:
        return f"no answer within {within_s:g} s"
    except OSError as error:
        return str(error)
    return None if answer.startswith(b"HTTP/1.") else "what answers there is not HTTP"

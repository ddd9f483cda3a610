"""The bodies of HTTP answers. aiohttp."""

from __future__ import annotations

import aiohttp


async def beginning(content: aiohttp.StreamReader, most_bytes: int) -> bytes:
    """All of a body, or its first `most_bytes`; one `read` gives only what has come by then."""
    body = bytearray()
    while len(body) < most_bytes and (piece := await content.read(most_bytes - len(body))):
        body += piece
    return bytes(body)

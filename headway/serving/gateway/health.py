"""Whether a replica that answered 500 says itself that it is unwell."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import aiohttp

ASK_S = 2.0
"""Longest wait for its word."""
KEPT_S = 1.0
"""A word counts for so long: a thousand 500s in a second are one question."""
_UNKNOWN = frozenset((404, 405, 501))
"""There is no such page."""


class Health:
    """Asks replicas how they are.

    Args:
        connections: to ask with; stays the caller's.
    """

    def __init__(self, connections: aiohttp.ClientSession) -> None:
        self._connections = connections
        self._words: dict[str, tuple[float, asyncio.Future[bool]]] = {}

    async def well(self, url: str, headers: Mapping[str, str]) -> bool:
        """False where `/health`, or `/v1/models` where there is no such page, fails: 5xx, or no answer in ASK_S.

        Args:
            url: of the replica, without a path.
            headers: to ask with.
        """
        loop = asyncio.get_running_loop()
        at_s, word = self._words.get(url, (0.0, None))
        if word is None or loop.time() - at_s > KEPT_S:
            self._words = {each: kept for each, kept in self._words.items() if loop.time() - kept[0] <= KEPT_S}
            word = asyncio.ensure_future(self._asked(url, headers))
            self._words[url] = loop.time(), word
        return await asyncio.shield(word)  # others wait for the same word

    async def _asked(self, url: str, headers: Mapping[str, str]) -> bool:
        try:
            async with asyncio.timeout(ASK_S):
                status = await self._status(f"{url}/health", headers)
                if status in _UNKNOWN:
                    status = await self._status(f"{url}/v1/models", headers)
        except (TimeoutError, aiohttp.ClientError, OSError):
            return False
        return status < 500 or status in _UNKNOWN

    async def _status(self, url: str, headers: Mapping[str, str]) -> int:
        async with self._connections.get(url, headers=headers, allow_redirects=False) as answer:
            return answer.status

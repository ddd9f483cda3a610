"""The longest request that a live engine takes, as it says itself. aiohttp."""

from __future__ import annotations

import json

import aiohttp
from yarl import URL

from headway.serving.bodies import beginning

ANSWER_S = 10.0
"""How long an answer is waited for, seconds."""
MOST_BYTES = 1 << 20
"""Of an answer: of one that has more the beginning is read, which is no JSON."""


async def context_of(url: URL, model: str) -> int | None:
    """Tokens of prompt and answer together: `max_model_len` in the list of models, which vLLM and SGLang have.

    None: it does not say. Nor does an engine that is not there, and whoever sends it a call will be told so.

    Args:
        url: of the engine, without `/v1`.
        model: its name there.
    """
    timeout = aiohttp.ClientTimeout(total=ANSWER_S)
    try:
        async with aiohttp.ClientSession(timeout=timeout) as session, session.get(url / "v1" / "models") as answer:
            listed = json.loads(await beginning(answer.content, MOST_BYTES))["data"]
            found = [each.get("max_model_len") for each in listed if each["id"] == model]
    except (TimeoutError, OSError, aiohttp.ClientError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return found[0] if found and isinstance(found[0], int) and found[0] > 0 else None

"""What a replica serves, asked of the replica itself."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import replace

import aiohttp

from headway.serving.bodies import beginning
from headway.serving.gateway.discovery.source import Replicas, Source
from headway.serving.replica import ReplicaSpec

_LOG = logging.getLogger(__name__)
MOST_BYTES = 1 << 20  # of an answer: a list of models is some kilobytes
FIRST_RETRY_S = 0.5


class AskError(Exception):
    """A replica did not say which models it serves; the text says why."""


async def ask_models(
    session: aiohttp.ClientSession, url: str, *, timeout_s: float, headers: Mapping[str, str] | None = None
) -> tuple[str, ...]:
    """The names in the `/v1/models` of the engine at `url`.

    Raises:
        AskError: no answer in time, a status other than 200, or not a list of models.
    """
    try:
        async with session.get(
            f"{url}/v1/models",
            headers=headers,
            timeout=aiohttp.ClientTimeout(total=timeout_s),
            allow_redirects=False,
        ) as response:
            body = await beginning(response.content, MOST_BYTES + 1)
            status = response.status
    except TimeoutError:
        raise AskError(f"no answer from /v1/models within {timeout_s:g} s") from None
    except (aiohttp.ClientError, OSError) as error:
        raise AskError(f"/v1/models: {error or type(error).__name__}") from None
    if status != 200:
        raise AskError(f"/v1/models answers {status}")
    if len(body) > MOST_BYTES:
        raise AskError(f"/v1/models answers with more than {MOST_BYTES} bytes")
    try:
        entries = json.loads(body)["data"]
        names = [entry["id"] for entry in entries]
    except (ValueError, KeyError, TypeError):
        raise AskError("/v1/models answers with something that is no list of models") from None
    if not names or not all(isinstance(name, str) and name for name in names):
        raise AskError("/v1/models names no model")
    return tuple(dict.fromkeys(names))


class AskingSource:
    """Another source's replicas, with the models of those that have none asked of them.

    A replica is given when it has said what it serves, so that no request goes to one that would refuse it; one that
    says nothing is asked again, at most every `refresh_s`, and that is said once. One that answered is asked again
    every `refresh_s`: an adapter may have been loaded, or another model started at the same address. If it then does
    not answer it keeps its models: whether it lives is the circuit breaker's business.

    A set of which no replica has answered yet is held back until the first one does, for `timeout_s` at most: where all
    addresses change at once, as in a roll-out, those before take requests until then, and no client is told that there
    is no replica.
    """

    def __init__(
        self,
        source: Source,
        session: aiohttp.ClientSession,
        *,
        timeout_s: float = 5.0,
        refresh_s: float = 60.0,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.name = source.name
        self._source = source
        self._session = session
        self._timeout_s = timeout_s
        self._refresh_s = refresh_s
        self._headers = headers

    async def watch(self) -> AsyncGenerator[Replicas, None]:
        """As `Source.watch`."""
        news: asyncio.Queue[Replicas | Exception | None] = asyncio.Queue()
        models: dict[ReplicaSpec, tuple[str, ...]] = {}
        asking: dict[ReplicaSpec, asyncio.Task[None]] = {}

        async def follow() -> None:
            try:
                async with aclosing(self._source.watch()) as updates:
                    async for replicas in updates:
                        news.put_nowait(replicas)
            except Exception as error:
                news.put_nowait(error)

        async def ask(replica: ReplicaSpec) -> None:
            async for found in self._answers(replica):
                models[replica] = found
                news.put_nowait(None)

        following = asyncio.create_task(follow())
        found: Replicas = ()
        given: Replicas | None = None
        clock = asyncio.get_running_loop().time
        held_until_s: float | None = None
        try:
            while True:
                change = None
                try:
                    async with asyncio.timeout_at(held_until_s):
                        change = await news.get()
                except TimeoutError:
                    pass
                if isinstance(change, Exception):
                    raise change
                if change is not None:
                    found = change
                    for gone in [replica for replica in asking if replica not in found]:
                        asking.pop(gone).cancel()
                        models.pop(gone, None)
                    for replica in found:
                        if not replica.models and replica not in asking:
                            asking[replica] = asyncio.create_task(ask(replica))
                    if found and given is None and not any(r.models for r in found):
                        continue  # the first answers are a moment away: an empty fleet would be news of nothing
                complete = tuple(
                    replica if replica.models else replace(replica, models=models[replica])
                    for replica in found
                    if replica.models or replica in models
                )
                if not found or complete or not given:
                    held_until_s = None
                else:
                    held_until_s = held_until_s or clock() + self._timeout_s
                    if clock() < held_until_s:
                        continue
                    held_until_s = None
                if complete != given:
                    given = complete
                    yield complete
        finally:
            tasks = [following, *asking.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _answers(self, replica: ReplicaSpec) -> AsyncGenerator[tuple[str, ...], None]:
        """Its models, whenever they differ from those before."""
        known: tuple[str, ...] | None = None
        said = False
        wait_s = FIRST_RETRY_S
        while True:
            try:
                models = await ask_models(self._session, replica.url, timeout_s=self._timeout_s, headers=self._headers)
            except AskError as error:
                if not said:
                    kept = "its models stay as they were" if known is not None else "it gets no requests until it says"
                    _LOG.warning("replica %s at %s: %s; %s", replica.name, replica.url, error, kept)
                    said = True
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, self._refresh_s)
                continue
            if said:
                _LOG.warning("replica %s at %s: serves %s", replica.name, replica.url, ", ".join(models))
            said, wait_s = False, FIRST_RETRY_S
            if models != known:
                known = models
                yield models
            await asyncio.sleep(self._refresh_s)

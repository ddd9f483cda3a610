"""From options to sources, and several sources as one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing

import aiohttp

from headway.serving.gateway.discovery.models import AskingSource
from headway.serving.gateway.discovery.options import (
    DiscoveryOptions,
    DnsOptions,
    FileOptions,
    KubernetesOptions,
    StaticOptions,
)
from headway.serving.gateway.discovery.source import Replicas, Source
from headway.serving.replica import ReplicaSpec

_LOG = logging.getLogger(__name__)


def source_of(options: DiscoveryOptions) -> Source:
    """The source that some options describe. UsageError where it needs what is not installed, or its file is bad."""
    match options:
        case StaticOptions():
            return StaticSource(tuple(replica.spec() for replica in options.replicas))
        case FileOptions():
            from headway.serving.gateway.discovery.file import FileSource

            return FileSource(options)
        case DnsOptions():
            from headway.serving.gateway.discovery.dns import DnsSource

            return DnsSource(options)
        case KubernetesOptions():
            from headway.serving.gateway.discovery.kubernetes import KubernetesSource

            return KubernetesSource(options)


def discovery_of(
    options: Sequence[DiscoveryOptions],
    session: aiohttp.ClientSession,
    *,
    headers: Mapping[str, str] | None = None,
) -> Source:
    """All that the gateway needs: the sources as one, and replicas asked for the models that they weren't said to have.

    Args:
        options: at least one source.
        session: to ask with; stays the caller's.
        headers: to ask with, e.g. the engines' key.

    Raises:
        UsageError: as `source_of`.
    """
    sources = [source_of(each) for each in options]
    return AskingSource(sources[0] if len(sources) == 1 else MergedSource(sources), session, headers=headers)


class StaticSource:
    """A list that does not change."""

    name = "static list"

    def __init__(self, replicas: Replicas) -> None:
        self._replicas = replicas

    async def watch(self) -> AsyncGenerator[Replicas, None]:
        """The list, once."""
        yield self._replicas
        await asyncio.Event().wait()


class MergedSource:
    """The replicas of several sources. Of two with one name the first source's counts, and that is said once.

    The set is first given when every source has answered or `first_wait_s` have passed, so that a gateway does not
    begin with a part of its fleet; a source that is late joins when it answers.
    """

    def __init__(self, sources: Sequence[Source], *, first_wait_s: float = 5.0) -> None:
        self._sources = sources
        self._first_wait_s = first_wait_s
        self.name = ", ".join(source.name for source in sources)

    async def watch(self) -> AsyncGenerator[Replicas, None]:
        """As `Source.watch`. A source that ends with an error ends this with the same one."""
        news: asyncio.Queue[tuple[int, Replicas | Exception]] = asyncio.Queue()

        async def follow(index: int, source: Source) -> None:
            try:
                async with aclosing(source.watch()) as updates:
                    async for replicas in updates:
                        news.put_nowait((index, replicas))
            except Exception as error:
                news.put_nowait((index, error))

        clock = asyncio.get_running_loop().time
        patient_until_s = clock() + self._first_wait_s
        tasks = [asyncio.create_task(follow(index, source)) for index, source in enumerate(self._sources)]
        known: list[Replicas | None] = [None] * len(self._sources)
        said: set[str] = set()
        given: Replicas | None = None
        try:
            while True:
                impatient = given is None and any(known)
                try:
                    async with asyncio.timeout_at(patient_until_s if impatient else None):
                        index, replicas = await news.get()
                except TimeoutError:
                    pass
                else:
                    if isinstance(replicas, Exception):
                        raise replicas
                    known[index] = replicas
                    if given is None and None in known and clock() < patient_until_s:
                        continue
                merged = self._merge(known, said)
                if merged != given:
                    given = merged
                    yield merged
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _merge(self, known: Sequence[Replicas | None], said: set[str]) -> Replicas:
        merged: dict[str, ReplicaSpec] = {}
        for source, replicas in zip(self._sources, known, strict=True):
            for replica in replicas or ():
                if replica.name not in merged:
                    merged[replica.name] = replica
                elif replica.name not in said:
                    said.add(replica.name)
                    _LOG.warning(
                        "%s: there is another replica named %s; this one is left out", source.name, replica.name
                    )
        return tuple(merged.values())

"""Asking each replica's `/metrics` how loaded its engine is, many times a second."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import aiohttp

from headway.serving.gateway.metric_names import EngineNames, NoReportError, read
from headway.serving.replica import EngineReport, ReplicaSpec

_LOG = logging.getLogger(__name__)
MOST_BYTES = 4 << 20  # vLLM's page is 40 to 200 kB
JITTER = 0.1  # of the interval, either way: replicas that joined together are not asked together for ever


@dataclass(frozen=True, slots=True)
class ScrapeRules:
    """How replicas are asked.

    Attributes:
        interval_s: from one question to the next (0.1 in the Lodestar paper).
        timeout_s: for an answer. No second question goes out before that, so a slow replica is asked less often.
        at_most_s: longest wait between questions to a replica that gives none; the wait doubles with each failure.
    """

    interval_s: float = 0.1
    timeout_s: float = 1.0
    at_most_s: float = 10.0


class Scraper:
    """One task per replica, with at most one question under way to each.

    A replica that has no usable metrics is said to be silent at once, with the reason, and the log says so once. One
    that does not answer in time is not: its last report grows old, and the fleet's limit decides.

    Attributes:
        failures: failed questions by kind: `timeout`, `connection`, `status`, `oversized`, `garbage`.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        *,
        report: Callable[[str, EngineReport], None],
        silent: Callable[[str, str], None],
        rules: ScrapeRules | None = None,
        seed: int = 0,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """
        Args:
            session: to ask with; stays the caller's.
            report: called with a replica's name and what its engine says.
            silent: called with a replica's name and why it says nothing of use. At the first of several failures.
            rules: how often, and with which limits.
            seed: of the jitter.
            headers: to ask with, e.g. the engines' key.
        """
        self.failures: Counter[str] = Counter()
        self._session = session
        self._report = report
        self._silent = silent
        self._rules = rules if rules is not None else ScrapeRules()
        self._random = random.Random(seed)
        self._headers = {"Accept": "text/plain", "Accept-Encoding": "identity", **(headers or {})}
        self._tasks: dict[str, tuple[str, asyncio.Task[None]]] = {}

    def follow(self, replicas: Iterable[ReplicaSpec]) -> None:
        """Ask exactly these from now on. Call it with the whole set whenever that changes."""
        wanted = {spec.name: spec.url for spec in replicas}
        for name in [name for name, (url, _) in self._tasks.items() if wanted.get(name) != url]:
            self._tasks.pop(name)[1].cancel()
        for name, url in wanted.items():
            if name not in self._tasks:
                self._tasks[name] = url, asyncio.create_task(self._ask_for_ever(name, url), name=f"scrape {name}")

    async def close(self) -> None:
        """Ask nobody any more."""
        tasks = [task for _, task in self._tasks.values()]
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _ask_for_ever(self, name: str, url: str) -> None:
        clock = asyncio.get_running_loop().time
        known: EngineNames | None = None
        failed, said = 0, ""
        await asyncio.sleep(self._random.random() * self._rules.interval_s)
        while True:
            begun_s = clock()
            try:
                known, report = read(await self._page(url), known)
            except _ScrapeError as error:
                self.failures[error.kind] += 1
                why, at_once = str(error), error.kind in ("status", "oversized")
            except NoReportError as error:
                self.failures["garbage"] += 1
                why, at_once = str(error), True
            else:
                if said:
                    _LOG.warning("replica %s: %s/metrics can be read again (%s)", name, url, known.engine)
                failed, said, why = 0, "", ""
                self._report(name, report)
            if why:
                failed += 1
                if at_once:
                    self._silent(name, why)
                if why != said and (at_once or failed > 1):  # one lost answer is not worth a line
                    _LOG.warning("replica %s: %s/metrics: %s; it is routed to by what was sent to it", name, url, why)
                    said = why
            interval_s = min(self._rules.interval_s * 2 ** min(failed, 30), self._rules.at_most_s)
            if not failed:
                interval_s = self._rules.interval_s
            interval_s *= 1 + JITTER * (2 * self._random.random() - 1)
            await asyncio.sleep(max(0.0, begun_s + interval_s - clock()))

    async def _page(self, url: str) -> bytes:
        limit = aiohttp.ClientTimeout(total=self._rules.timeout_s)
        try:
            async with self._session.get(
                f"{url}/metrics", headers=self._headers, timeout=limit, allow_redirects=False
            ) as response:
                if response.status != 200:
                    raise _ScrapeError("status", f"answers {response.status}")
                parts, size = [], 0
                async for part in response.content.iter_any():
                    parts.append(part)
                    size += len(part)
                    if size > MOST_BYTES:
                        response.close()
                        raise _ScrapeError("oversized", f"answers with more than {MOST_BYTES >> 20} MiB")
                return b"".join(parts)
        except TimeoutError:
            raise _ScrapeError("timeout", f"no answer within {self._rules.timeout_s:g} s") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise _ScrapeError("connection", str(error) or type(error).__name__) from None


class _ScrapeError(Exception):
    def __init__(self, kind: str, why: str) -> None:
        super().__init__(why)
        self.kind = kind

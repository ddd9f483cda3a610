"""A pool at work: its replicas as they come and go, its routers, which of its replicas are full."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing

import aiohttp

from headway.decide.journal import Journal, Record, ServingRecord
from headway.errors import UsageError
from headway.serving.fleet import Fleet
from headway.serving.gateway.config import Pool
from headway.serving.gateway.discovery.build import discovery_of
from headway.serving.gateway.doubts import Doubts
from headway.serving.gateway.scrape import Scraper, ScrapeRules
from headway.serving.policies import known_as
from headway.serving.policy import Policy
from headway.serving.replica import EngineReport, ReplicaSpec
from headway.serving.router import Router

_LONGEST_NAME = 40
RELOADED = ("policy", "options", "seed", "strategies", "shed_hopeless", "ask_usage", "models")
"""Fields of a pool that may change while it runs."""


class Clock:
    """Seconds since the epoch that only go forward, whatever is done to the machine's clock meanwhile."""

    def __init__(self) -> None:
        self._offset_s = time.time() - time.monotonic()

    def now_s(self) -> float:
        """The time."""
        return self._offset_s + time.monotonic()


class Notes:
    """A journal that others hear too: metrics, traces, the line that says a replica has come.

    Args:
        below: where records are written; None: nowhere.
        heard: each is called with every record.
    """

    def __init__(self, below: Journal | None, heard: Sequence[Callable[[Record], None]]) -> None:
        self._below, self._heard = below, tuple(heard)

    @property
    def dropped(self) -> int:
        """Records that could not be written (count)."""
        return self._below.dropped if self._below is not None else 0

    def write(self, record: Record) -> None:
        """Append one record."""
        for hear in self._heard:
            hear(record)
        if self._below is not None:
            self._below.write(record)


class Named:
    """A journal that knows of which pool its `ServingRecord`s are: two pools' policies must not be taken for one."""

    def __init__(self, below: Journal, pool: str) -> None:
        self._below, self._pool = below, pool

    @property
    def dropped(self) -> int:
        """Records that could not be written (count)."""
        return self._below.dropped

    def write(self, record: Record) -> None:
        """Append one record."""
        named = record.model_copy(update={"group": self._pool}) if isinstance(record, ServingRecord) else record
        self._below.write(named)


class RunningPool:
    """One pool.

    Attributes:
        pool: as configured.
        fleet: its replicas.
        router: that of the configured policy.
        doubts: the replicas' 500s.

    Args:
        pool: as configured.
        clock: of all decisions.
        journal: for what is decided.
        record_blocks: whether records hold prompts' hashes.
        most_open: requests open at one replica.
        authorization: for the replicas, where the configuration replaces the clients'; else empty.
        policy_of: makes a policy of a pool by its name.
    """

    def __init__(
        self,
        pool: Pool,
        *,
        clock: Clock,
        journal: Journal,
        record_blocks: bool,
        most_open: int,
        authorization: str,
        policy_of: Callable[[Pool, str], Policy],
    ) -> None:
        self.pool = pool
        self.fleet = Fleet()
        self.doubts = Doubts()
        self._authorization = authorization
        self._clock, self._journal, self._record_blocks = clock, Named(journal, pool.name), record_blocks
        self._policy_of = policy_of
        self.router = self._router(pool.policy, pool)
        self._routers: dict[str, Router] = {known_as(pool.policy): self.router}
        self._urls: dict[str, str] = {}
        self._scraper: Scraper | None = None
        self._open: Counter[str] = Counter()
        self._full: set[str] = set()
        self.most_open = most_open

    @property
    def full(self) -> set[str]:
        """Replicas that have as many open requests as they may."""
        return self._full

    @property
    def models(self) -> tuple[str, ...]:
        """What clients may ask for: as configured, or what the replicas serve; sorted."""
        return tuple(sorted(self.pool.models)) or self.fleet.models()

    def base(self, replica: str) -> str:
        """Where a replica is: what comes before the path. Raises KeyError where it has left."""
        return self._urls[replica]

    def authorization_for(self, client: str) -> str:
        """What a replica gets as Authorization, of a request that came with `client`; empty: nothing."""
        return client if self.pool.authorization == "forward" else self._authorization

    def own_headers(self) -> dict[str, str]:
        """For what the gateway itself asks replicas."""
        return {"Authorization": self._authorization} if self._authorization else {}

    def open_requests(self) -> Mapping[str, int]:
        """Open requests by replica (count)."""
        return self._open

    @property
    def journal_errors(self) -> int:
        """Records at which the journal, or one that hears them, broke (count)."""
        return sum(router.journal_errors for router in self._routers.values())

    @property
    def scrape_failures(self) -> Mapping[str, int]:
        """Failed questions for replicas' metrics, by kind (count)."""
        return self._scraper.failures if self._scraper is not None else {}

    def entered(self, replica: str) -> None:
        """A request goes to a replica."""
        self._open[replica] += 1
        if self._open[replica] >= self.most_open:
            self._full.add(replica)

    def left(self, replica: str) -> None:
        """A request has ended at a replica."""
        self._open[replica] -= 1
        if self._open[replica] < self.most_open:
            self._full.discard(replica)
        if not self._open[replica]:
            del self._open[replica]

    def router_for(self, strategy: str) -> Router:
        """The router of a policy that a client asked for; made when it is first asked for.

        It shares the fleet with the pool's own, and so what is known of load and caches. Raises UsageError for one
        that the configuration does not allow.
        """
        name = known_as(strategy[:_LONGEST_NAME])
        known = self._routers.get(name)
        if known is not None:
            return known
        if "*" not in self.pool.strategies and name not in map(known_as, self.pool.strategies):
            raise UsageError(
                f"routing-strategy {name!r} is not offered here",
                hint=f"one of {', '.join((self.pool.policy, *self.pool.strategies))}",
            )
        router = self._routers[name] = self._router(name, self.pool)
        return router

    def set_policy(self, pool: Pool) -> None:
        """Another policy from now on, as `pool` has it. Requests in flight end with the one that chose for them."""
        if (pool.policy, pool.options, pool.seed) != (self.pool.policy, self.pool.options, self.pool.seed):
            self.router = self._router(pool.policy, pool)
            self._routers = {known_as(pool.policy): self.router}
        changed = {name: getattr(pool, name) for name in RELOADED}
        self.pool = self.pool.model_copy(update=changed)

    async def follow(self, connections: aiohttp.ClientSession) -> None:
        """Keep the fleet as its sources say, and its load fresh, until cancelled. UsageError: a source is wrong.

        Args:
            connections: to ask replicas with.
        """
        headers = self.own_headers()
        scraper = self._scraper = Scraper(
            connections,
            report=self._report,
            silent=self._silent,
            rules=ScrapeRules(interval_s=self.pool.scrape_s),
            headers=headers,
        )
        try:
            async with aclosing(discovery_of(self.pool.sources, connections, headers=headers).watch()) as updates:
                async for replicas in updates:
                    self._set(replicas)
                    scraper.follow(replicas)
        finally:
            await scraper.close()

    def _router(self, policy: str, pool: Pool) -> Router:
        return Router(
            self.fleet, self._policy_of(pool, policy), journal=self._journal, record_blocks=self._record_blocks
        )

    def _set(self, replicas: tuple[ReplicaSpec, ...]) -> None:
        now_s = self._clock.now_s()
        wanted = {spec.name for spec in replicas}
        for name in self.fleet.names:
            if name not in wanted:
                self.router.leave(name, now_s)
                self._urls.pop(name, None)
                self.doubts.answered(name)
        for spec in replicas:
            self._urls[spec.name] = spec.url
            self.router.join(spec, now_s)

    def _report(self, name: str, report: EngineReport) -> None:
        self.router.report(name, report, self._clock.now_s())

    def _silent(self, name: str, why: str) -> None:
        self.router.silent(name, self._clock.now_s(), why)

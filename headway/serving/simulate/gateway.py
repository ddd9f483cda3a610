"""What the gateway does between clients and engines, without sockets: the same router, the same calls. Pure.

It sees of the engines what a gateway sees: answers as they come over the network, and metrics that are polled and late.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headway.errors import UsageError
from headway.serving.engine.types import EngineProfile, Token
from headway.serving.replica import EngineReport
from headway.serving.request import End
from headway.serving.router import NoReplicaError, Router
from headway.serving.simulate.engine import TimedEngine
from headway.serving.simulate.load import Planned
from headway.sim.engine.loop import Callback, Loop


@dataclass(frozen=True, slots=True)
class GatewayRules:
    """How the gateway and its network work.

    Attributes:
        network_s: least delay of a message between gateway and engine, one way, seconds.
        jitter_s: mean of what each request's messages take longer, drawn once per attempt, seconds (exponential).
        poll_s: from one poll of the engines' metrics to the next, seconds.
        poll_delay_s: age of a report when it is taken in, seconds.
        attempts: how often a request is sent at most, each time to another replica (count).
    """

    network_s: float = 0.0003
    jitter_s: float = 0.0002
    poll_s: float = 0.1
    poll_delay_s: float = 0.005
    attempts: int = 2


@dataclass(slots=True, eq=False)
class _Flight:
    planned: Planned
    tried: tuple[str, ...]
    delay_s: float
    first: bool = False


@dataclass(slots=True, eq=False)
class _Server:
    """A replica's machine: an engine that runs, or none."""

    engine: TimedEngine | None
    flights: dict[str, _Flight]


class SimulatedGateway:
    """One gateway before one fleet.

    Args:
        loop: the clock.
        router: routes; the replicas join it elsewhere.
        rules: delays and limits.
        seed: of the delays.
    """

    def __init__(self, loop: Loop, router: Router, rules: GatewayRules, *, seed: int) -> None:
        self._loop = loop
        self._router = router
        self._rules = rules
        self._random = random.Random(seed)
        self._servers: dict[str, _Server] = {}
        self._counted_s = float("-inf")

    @property
    def engines(self) -> Mapping[str, TimedEngine]:
        """The engines that run, by replica."""
        return {name: it.engine for name, it in self._servers.items() if it.engine is not None}

    def start(self, replica: str, profile: EngineProfile) -> None:
        """An engine comes up, with an empty cache."""
        self.kill(replica)
        server = _Server(None, {})
        server.engine = TimedEngine(self._loop, profile, lambda token: self._produced(server, token))
        self._servers[replica] = server

    def kill(self, replica: str) -> None:
        """A replica's machine dies; the gateway notices a network delay later."""
        server = self._servers.get(replica)
        if server is None or server.engine is None:
            return
        self._count_tokens(server)
        server.engine.stop()
        server.engine = None
        for flight in server.flights.values():
            self._answer(flight, lambda flight=flight: self._failed(flight, "connection reset"))  # type: ignore[misc]
        server.flights.clear()

    def slow_down(self, replica: str, factor: float) -> None:
        """A replica's steps take `factor` times as long as its profile says."""
        server = self._servers.get(replica)
        if server is not None and server.engine is not None:
            server.engine.slow_down(factor)

    def arrive(self, planned: Planned) -> None:
        """A client's request is there."""
        self._send(planned, (), "")

    def poll(self) -> None:
        """Ask every engine for its metrics, which come `poll_delay_s` later."""
        reports: list[tuple[str, EngineReport]] = []
        for name, server in self._servers.items():
            if server.engine is None:
                continue
            reports.append((name, server.engine.core.report()))
        self._loop.after(self._rules.poll_delay_s, lambda: self._reported(reports))

    def _reported(self, reports: Sequence[tuple[str, EngineReport]]) -> None:
        for name, report in reports:
            self._router.report(name, report, self._loop.now_s)

    def _count_tokens(self, server: _Server) -> None:
        """The router learns how far answers are: a gateway counts each token, here it is enough before a decision."""
        if server.engine is not None:
            for id_, tokens in server.engine.core.produced(self._loop.now_s).items():
                if server.flights[id_].first:
                    self._router.progress(id_, tokens)

    def _send(self, planned: Planned, tried: tuple[str, ...], why: str) -> None:
        now_s = self._loop.now_s
        request = planned.request
        if now_s - self._counted_s >= self._rules.poll_s:
            self._counted_s = now_s
            for server in self._servers.values():
                self._count_tokens(server)
        try:
            choice = self._router.route(request, now_s, frozenset(tried), why=why)
        except NoReplicaError as error:
            self._router.refused(request, now_s, status=503, reason=str(error))
            return
        rules = self._rules
        delay_s = rules.network_s
        if rules.jitter_s:
            delay_s += self._random.expovariate(1 / rules.jitter_s)
        flight = _Flight(planned, (*tried, choice.replica), delay_s)
        self._loop.after(delay_s, lambda: self._reach(flight))

    def _answer(self, flight: _Flight, callback: Callback) -> None:
        self._loop.after(flight.delay_s, callback)

    def _reach(self, flight: _Flight) -> None:
        """A request is at its replica."""
        server = self._servers[flight.tried[-1]]
        if server.engine is None:
            self._answer(flight, lambda: self._failed(flight, "connection refused"))
            return
        job = flight.planned.job
        server.flights[job.id] = flight
        try:
            server.engine.submit(job)
        except UsageError as error:
            del server.flights[job.id]
            what = str(error)
            self._answer(flight, lambda: self._rejected(flight, what))

    def _produced(self, server: _Server, token: Token) -> None:
        flight = server.flights[token.id]
        if token.number == 1:
            self._answer(flight, lambda: self._first_token(flight))
        if token.last:
            del server.flights[token.id]
            self._answer(flight, lambda: self._done(flight, token))

    # Back at the gateway.

    def _first_token(self, flight: _Flight) -> None:
        flight.first = True
        self._router.first_token(flight.planned.request.id, self._loop.now_s)

    def _done(self, flight: _Flight, token: Token) -> None:
        self._router.finished(token.id, self._loop.now_s, output_tokens=token.number, cached_tokens=token.cached_tokens)

    def _rejected(self, flight: _Flight, what: str) -> None:
        self._router.finished(flight.planned.request.id, self._loop.now_s, output_tokens=0, status=400, why=what)

    def _failed(self, flight: _Flight, what: str) -> None:
        if not flight.first and len(flight.tried) < self._rules.attempts:
            self._send(flight.planned, flight.tried, what)
            return
        self._router.finished(flight.planned.request.id, self._loop.now_s, end=End.FAILED, status=502, why=what)

"""Run a load over a fleet. Pure; the same arguments give the same result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headway.decide.journal import Journal, ServingRecord
from headway.errors import HeadwayError, UsageError
from headway.serving.fleet import Fleet, FleetRules
from headway.serving.policy import Policy
from headway.serving.router import Router
from headway.serving.simulate.gateway import GatewayRules, SimulatedGateway
from headway.serving.simulate.load import Load
from headway.serving.simulate.replicas import Event, Join, Kill, Leave, Replica, Slow, check
from headway.serving.simulate.result import Collector, Row
from headway.sim.engine.loop import Loop


@dataclass(frozen=True, slots=True)
class Result:
    """What a run gave.

    Attributes:
        rows: one per request that has ended, in order of arrival.
        records: what changed in the fleet or the policy.
        end_s: when the last request ended, or the run was stopped, simulated seconds.
        events: callbacks on the simulated clock, for the cost per event.
        steps: series of engine steps, as far as they are told apart.
        preemptions: by all engines that run at the end.
        unfinished: requests that came and had not ended when the run was stopped.
    """

    rows: list[Row]
    records: list[ServingRecord]
    end_s: float
    events: int
    steps: int
    preemptions: int
    unfinished: int


def simulate(
    fleet: Sequence[Replica],
    load: Load,
    policy: Policy,
    *,
    events: Sequence[Event] = (),
    rules: GatewayRules | None = None,
    fleet_rules: FleetRules | None = None,
    journal: Journal | None = None,
    seed: int = 0,
    most_waiting: int | None = None,
) -> Result:
    """Route every request of a load and run it to its end.

    Args:
        fleet: the replicas that are there from the begin.
        load: what comes.
        policy: routes; it learns and changes, so take a new one for each run.
        events: what happens to replicas.
        rules, fleet_rules: of the gateway and of the router's fleet; None: their defaults.
        journal: gets every record, too.
        seed: of the network's delays.
        most_waiting: stop the run once more requests than these are in flight; None: never.

    Raises UsageError for names or blocks that don't fit together.
    """
    return _Run(fleet, load, policy, rules or GatewayRules(), fleet_rules, journal, seed, most_waiting).run(events)


class _Run:
    def __init__(
        self,
        fleet: Sequence[Replica],
        load: Load,
        policy: Policy,
        rules: GatewayRules,
        fleet_rules: FleetRules | None,
        journal: Journal | None,
        seed: int,
        most_waiting: int | None,
    ) -> None:
        if not fleet:
            raise UsageError("a fleet needs a replica")
        if rules.poll_s <= 0 or rules.attempts < 1:
            raise UsageError("poll_s must be above 0, attempts at least 1", where="gateway rules")
        self._fleet = fleet
        self._load = load
        self._rules = rules
        self._most_waiting = most_waiting
        self._collector = Collector(journal, self._ended)
        self._loop = Loop()
        self._router = Router(Fleet(fleet_rules), policy, journal=self._collector)
        self._gateway = SimulatedGateway(self._loop, self._router, rules, seed=seed)
        self._came = 0
        self._end_s = 0.0

    def run(self, events: Sequence[Event]) -> Result:
        check(self._fleet, events, self._load.block_tokens)
        for it in self._fleet:
            self._join(it)
        for event in events:
            self._plan(event)
        if self._load.requests:
            self._loop.at(self._load.requests[0].at_s, self._arrive)
            self._poll()
            self._loop.run()
        if self._router.journal_errors:
            raise HeadwayError("the journal failed: a simulation's journal must take every record")
        engines = self._gateway.engines.values()
        return Result(
            rows=sorted(self._collector.rows, key=lambda row: int(row.id)),
            records=self._collector.records,
            end_s=self._end_s,
            events=self._loop.events,
            steps=sum(it.events for it in engines),
            preemptions=sum(it.core.preemptions for it in engines),
            unfinished=self._came - len(self._collector.rows),
        )

    def _plan(self, event: Event) -> None:
        loop, gateway = self._loop, self._gateway
        match event:
            case Slow(name, factor, from_s, until_s):
                loop.at(from_s, lambda: gateway.slow_down(name, factor))
                if until_s != float("inf"):
                    loop.at(until_s, lambda: gateway.slow_down(name, 1.0))
            case Kill(name, at_s):
                loop.at(at_s, lambda: gateway.kill(name))
            case Leave(name, at_s):
                loop.at(at_s, lambda: self._router.leave(name, loop.now_s))
            case Join(joining, at_s):
                loop.at(at_s, lambda: self._join(joining))

    def _join(self, it: Replica) -> None:
        self._gateway.start(it.name, it.profile)
        self._router.join(it.spec, self._loop.now_s)

    def _arrive(self) -> None:
        planned = self._load.requests[self._came]
        self._came += 1
        if self._came < len(self._load.requests):
            self._loop.at(self._load.requests[self._came].at_s, self._arrive)
        self._gateway.arrive(planned)
        if self._most_waiting is not None and self._came - len(self._collector.rows) > self._most_waiting:
            self._end_s = self._loop.now_s
            self._loop.stop()

    def _poll(self) -> None:
        self._gateway.poll()
        self._loop.after(self._rules.poll_s, self._poll)

    def _ended(self, row: Row) -> None:
        self._end_s = self._loop.now_s
        if len(self._collector.rows) == len(self._load.requests):
            self._loop.stop()

"""Plans from capacities that nobody has to find out: the upper reference for tuners. Pure.

At every operation the capacities that others leave at this instant are read, and the best plan for them is taken at
once: no detection, no trial, no return. Connections whose way through the fabric lost capacity are made again until
they get another one. What it does not know: what happens during the operation, what other jobs send and will do
next, and which of a job's own flows meet on one link between switches. So it is no bound: a tuner, which measures, can
be better where load changes faster than an operation or where the job's own flows collide.

Objective: least predicted time of this operation (`predict`). Steps and bytes: those of the plan.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from headway.cluster.model import Cluster
from headway.collectives.agreement import LARGE_BYTES
from headway.collectives.candidates import candidates
from headway.collectives.decider import TYPICAL_BYTES
from headway.collectives.limits import lower_bound
from headway.collectives.plan import Collective, Plan
from headway.collectives.plan_book import PlanBook
from headway.collectives.plan_codec import encode
from headway.collectives.verify import check
from headway.decide.journal import DecisionRecord, Journal, OperationRecord, StartRecord
from headway.sim.engine.network import Flow, Network
from headway.sim.execution.connections import Pair, pair_key
from headway.sim.jobs.job import OperationDone

KNOWN = "the capacities are known, and this is the best plan for them"
"""Why a clairvoyant job's plan changes, in its journal."""

REMEMBERED = 64
"""Networks whose plans are kept (count): load that comes and goes asks for the same plans again and again."""


CLEAR_SHARE = 0.9
"""A link between switches with less than this part of its own rate is avoided."""

MOST_TIMES = 32
"""New connections for one pair (count): with one of two ways clear, all fail once in 4 billion pairs."""


class Ways:
    """The ways of a job's connections through the switches: which of them to make again.

    Args:
        network: whose capacities are read.
        hosts: rank -> host of the fabric.
        key: the job's, see `connections.job_key`.
    """

    def __init__(self, network: Network, hosts: Sequence[int], key: int) -> None:
        self._network, self._hosts, self._key = network, tuple(hosts), key
        links = network.fabric.links
        router = network.fabric.router
        used = sorted(set(hosts))
        ends: set[int] = set()
        for host in used[1:]:
            for route in (router.route(used[0], host, 0), router.route(host, used[0], 0)):
                ends.update((route[0], route[-1]) if route else ())
        self._between = [index for index in range(len(links)) if index not in ends]
        self._known: dict[frozenset[int], dict[Pair, int]] = {frozenset(): {}}

    def clear(self) -> Mapping[Pair, int]:
        """Pairs of ranks -> how often to make their connection again, for the capacities of this instant."""
        links = self._network.fabric.links
        bad = frozenset(
            link for link in self._between if self._network.capacity_Bps(link) < CLEAR_SHARE * links[link].capacity_Bps
        )
        if bad not in self._known:
            ranks = range(len(self._hosts))
            times = {(src, dst): self._times(src, dst, bad) for src in ranks for dst in ranks if src != dst}
            self._known[bad] = {pair: count for pair, count in times.items() if count}
        return self._known[bad]

    def _times(self, src: int, dst: int, bad: frozenset[int]) -> int:
        route = self._network.fabric.router.route
        for times in range(MOST_TIMES):
            way = route(self._hosts[src], self._hosts[dst], pair_key(self._key, src, dst, times))
            if bad.isdisjoint(way):
                return times
        return 0


@dataclass(frozen=True)
class _Choice:
    plan: Plan
    predicted_s: float
    limit_s: float


class ClairvoyantPlans:
    """The plan source of a job that knows what every link has left.

    Args:
        book: the plans for small operations, and the idle ones that are candidates too.
        cluster_now: the job's cluster with what others leave of its links at this instant.
        group: the job's name.
        clock: the simulated time, seconds.
        journal: takes the job's records; a change of plan is written as `keep`.
        ways: the ways of its connections; None: there is one only.
    """

    def __init__(
        self,
        book: PlanBook,
        cluster_now: Callable[[], Cluster],
        *,
        group: str,
        clock: Callable[[], float],
        journal: Journal,
        ways: Ways | None = None,
    ) -> None:
        self._book = book
        self._cluster_now = cluster_now
        self._group = group
        self._clock = clock
        self._journal = journal
        self._choices: dict[tuple[Collective, int, int, tuple[float, ...]], _Choice] = {}
        self._in_force: dict[tuple[Collective, int, int], Plan] = {}
        self._limits_s: dict[int, float] = {}
        self._ways = ways
        self.reroutes: Mapping[Pair, int] = {}
        cluster, first = book.cluster, book.idle(Collective.ALL_REDUCE, TYPICAL_BYTES)
        hosts = [cluster.hosts[host] for host in cluster.host_of]
        journal.write(
            StartRecord(
                t_s=clock(),
                group=group,
                world_size=cluster.world_size,
                hosts=[host.name for host in hosts],
                policy="clairvoyant",
                racks=[cluster.racks[host.rack].name if host.rack is not None else "" for host in hosts],
                plan=first.name,
                plan_trees=encode(first),
            )
        )

    def plan_for(self, number: int, collective: Collective, size_bytes: int, root: int) -> Plan:
        """The best plan for the capacities of this instant; small operations keep their idle plan."""
        idle = self._book.idle(collective, size_bytes, root)
        if size_bytes < LARGE_BYTES:
            return idle
        if self._ways is not None:
            self.reroutes = self._ways.clear()
        cluster = self._cluster_now()
        choice = self._choice(cluster, collective, size_bytes, root, idle)
        key = (collective, size_bytes, root)
        before = self._in_force.get(key, idle)
        if choice.plan.trees != before.trees:
            self._journal.write(
                DecisionRecord(
                    t_s=self._clock(),
                    group=self._group,
                    epoch=number,
                    action="keep",
                    collective=collective.value,
                    size_bytes=size_bytes,
                    reason=KNOWN,
                    from_operation=number,
                    plan_before=before.name,
                    plan_after=choice.plan.name,
                    plan_trees=encode(choice.plan),
                    predicted_s=choice.predicted_s,
                    limit_s=choice.limit_s,
                )
            )
        self._in_force[key] = choice.plan
        self._limits_s[number] = choice.limit_s
        return choice.plan

    def flow_started(self, number: int, src: int, dst: int, flow: Flow) -> None:
        """Nothing to learn."""

    def operation_done(self, done: OperationDone) -> None:
        """Into the journal, as rank 0 saw it."""
        limit_s = self._limits_s.pop(done.number, None)
        if done.size_bytes >= LARGE_BYTES:
            self._journal.write(
                OperationRecord(
                    t_s=done.ended_s[0],
                    group=self._group,
                    rank=0,
                    operation=done.number,
                    collective=done.collective.value,
                    size_bytes=done.size_bytes,
                    plan=done.plan.name,
                    duration_s=done.ended_s[0] - done.ready_s[0],
                    limit_s=limit_s,
                )
            )

    def finish(self) -> None:
        """All is written."""

    def _choice(self, cluster: Cluster, collective: Collective, size_bytes: int, root: int, idle: Plan) -> _Choice:
        key = (collective, size_bytes, root, tuple(link.capacity_Bps for link in cluster.links))
        known = self._choices.get(key)
        if known is None:
            costs = self._book.costs
            best = candidates(cluster, collective, size_bytes, "packing", idle, idle, root=root, costs=costs)[0]
            check(best.plan, collective)
            limit_s = lower_bound(cluster, collective, size_bytes, root=root).time_s
            known = _Choice(best.plan, best.predicted_s, limit_s)
            if len(self._choices) >= REMEMBERED:
                del self._choices[next(iter(self._choices))]
            self._choices[key] = known
        return known

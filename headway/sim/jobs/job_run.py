"""A job on the simulated network: ranks that repeat a loop of computing and communicating. Pure.

A rank goes on to its next phase when its own part of the last has ended; a collective's ranks begin when each is ready.
What a rank does between two communications is known as soon as the first has ended, so computing takes no events.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from headway.cluster.model import Cluster
from headway.collectives.limits import lower_bound
from headway.collectives.plan import Collective, Plan
from headway.collectives.predict import CostModel
from headway.errors import HeadwayError
from headway.lab.draws import ComputeTimes
from headway.lab.jobs import Job, Phase
from headway.sim.engine.loop import Timer
from headway.sim.engine.network import Flow, Network
from headway.sim.execution import collective
from headway.sim.execution.collective import Execution
from headway.sim.execution.connections import Connections, job_key, pair_key
from headway.sim.execution.host_model import DEFAULT_HOST, HostModel
from headway.sim.execution.running import HELD, OnFlow, Running
from headway.sim.jobs.interleaved import Push, PushedJob, push_of
from headway.sim.jobs.job import OperationDone, PlanSource
from headway.sim.result import IterationResult, JobResult, OperationResult


class SpanSink(Protocol):
    """Wants to know what every rank does when, for a trace."""

    def span(self, job: str, rank: int, kind: str, begin_s: float, end_s: float) -> None:
        """Rank `rank` of `job` was busy with `kind`: `compute`, `send`, or a collective's name.

        Called as soon as both times are known, which for computing is in advance.
        """
        ...


@dataclass(frozen=True)
class Setting:
    """What all jobs of a run have in common.

    Attributes:
        network: what they send over.
        execution: how plans are carried out.
        costs: fixed costs of messages.
        host: what the ends of connections add, in PIECES.
        seed: of the run.
        spans: who wants to know what each rank does.
        push_of: how hard each job's flows push; None: their weights stay.
    """

    network: Network
    execution: Execution
    costs: CostModel
    host: HostModel = DEFAULT_HOST
    seed: int = 0
    spans: SpanSink | None = None
    push_of: Callable[[Job], Push | None] = push_of


@dataclass(slots=True)
class _Communication:
    """A communicating phase that some rank has come to, or will have at a time that is known.

    Attributes:
        ready_s: when each rank comes to it; `HELD` where that is not known yet.
        missing: ranks of which it is not known.
        first: due when its first rank comes to it.
        running: under way, if a collective.
    """

    number: int
    iteration: int
    phase: Phase
    kind: str
    size_bytes: int
    limit_s: float
    missing: int
    ready_s: list[float]
    first_s: float = HELD
    first: Timer | None = None
    plan: Plan | None = None
    running: Running | None = None


@dataclass(slots=True)
class _Iteration:
    start_s: float = float("inf")
    end_s: float = 0.0
    ended: int = 0


class JobRun:
    """One job from its start to its last iteration.

    Args:
        job: its loop.
        hosts: rank -> host of the fabric.
        cluster: the ranks on hosts with the rates of free links.
        make_plans: makes what chooses its plans; called when the job begins.
        setting: of the run.
        on_end: called at the end of the last iteration, if the job has a number of them.
    """

    def __init__(
        self,
        job: Job,
        hosts: Sequence[int],
        cluster: Cluster,
        make_plans: Callable[[], PlanSource],
        setting: Setting,
        on_end: Callable[[], None],
    ) -> None:
        self.job = job
        self.hosts = tuple(hosts)
        self._make_plans = make_plans
        self._source: PlanSource | None = None
        self._setting = setting
        self._loop = setting.network.loop
        self._on_end = on_end
        self._key = job_key(job.name, setting.seed)
        push = setting.push_of(job)
        self._pushed = PushedJob(setting.network, push, self._first_link) if push is not None else None
        self._times = [ComputeTimes(job, rank, seed=setting.seed) for rank in range(len(hosts))]
        self._at = [0] * len(hosts)
        self._kinds = [phase.kind for phase in job.loop]
        self._ranks_of = [_ranks_of(phase, len(hosts)) for phase in job.loop]
        self._idle = frozenset(range(len(hosts))).difference(*self._ranks_of)
        self._communicates = [kind != "compute" for kind in self._kinds]
        self._sizes = [
            phase.size_bytes if phase.kind == "send" else phase.vector_bytes(len(hosts)) for phase in job.loop
        ]
        self._limits_s = [phase_limit_s(phase, cluster) for phase in job.loop]
        self._unruled: _Communication | None = None
        self._open: dict[tuple[int, int], _Communication] = {}
        self._begun: dict[int, _Iteration] = {}
        self._iterations: list[IterationResult] = []
        self._operations: list[OperationResult] = []

    def begin(self) -> None:
        """Let its first iteration begin at the job's start. Call before the loop runs."""
        self._loop.at(self.job.start, self._begin)

    def result(self) -> JobResult:
        """What has ended by now."""
        ended = [each for each in self._iterations if each.end_s <= self._loop.now_s]
        names = self._setting.network.fabric.hosts
        return JobResult(self.job.name, [names[host] for host in self.hosts], ended, list(self._operations))

    @property
    def iterations_done(self) -> int:
        """How many have ended, or will when their last rank has computed."""
        return len(self._iterations)

    def finish(self) -> None:
        """The run has ended."""
        if self._source is not None:
            self._source.finish()

    @property
    def _plans(self) -> PlanSource:
        assert self._source is not None, "the job has begun"
        return self._source

    def _begin(self) -> None:
        self._source = self._make_plans()
        for rank in range(len(self.hosts)):
            self._go_on(rank, self._loop.now_s)

    def _go_on(self, rank: int, now_s: float) -> None:
        """Rank `rank` has ended, at `now_s`, all before its place in the loop: take it to its next communication."""
        while True:
            iteration, index = divmod(self._at[rank], len(self._kinds))
            if index == 0:
                if iteration == self.job.iterations:
                    return
                if self.job.period is not None:
                    now_s = max(now_s, self.job.start + iteration * self.job.period)
                begun = self._begun.setdefault(iteration, _Iteration())
                begun.start_s = min(begun.start_s, now_s)
            if self._kinds[index] == "compute":
                end_s = now_s + self._times[rank].draw(self.job.loop[index])
                self._span(rank, "compute", now_s, end_s)
                now_s = end_s
            elif rank in self._ranks_of[index]:
                self._arrive(rank, now_s, iteration, index)
                return
            if self._pass(rank, now_s) and rank in self._idle:  # it waits for nobody: one iteration at a time
                self._loop.at(now_s, partial(self._go_on, rank, now_s))
                return

    def _pass(self, rank: int, now_s: float) -> bool:
        """Rank `rank` has ended its phase; whether that was the last of an iteration."""
        self._at[rank] += 1
        iteration, index = divmod(self._at[rank], len(self._kinds))
        if index:
            return False
        begun = self._begun[iteration - 1]
        begun.end_s = max(begun.end_s, now_s)
        begun.ended += 1
        if begun.ended == len(self.hosts):
            del self._begun[iteration - 1]
            self._iterations.append(IterationResult(begun.start_s, begun.end_s))
            if iteration == self.job.iterations:
                self._loop.at(begun.end_s, self._on_end)
        return True

    def _arrive(self, rank: int, ready_s: float, iteration: int, index: int) -> None:
        """Rank `rank` comes to a communication at `ready_s`, now or later."""
        communication = self._open.get((iteration, index))
        if communication is None:
            number = iteration * sum(self._communicates) + sum(self._communicates[:index])
            communication = _Communication(
                number,
                iteration,
                self.job.loop[index],
                self._kinds[index],
                size_bytes=self._sizes[index],
                limit_s=self._limits_s[index],
                missing=len(self._ranks_of[index]),
                ready_s=[HELD] * len(self.hosts),
            )
            self._open[iteration, index] = communication
        communication.ready_s[rank] = ready_s
        communication.missing -= 1
        if not communication.missing:
            del self._open[iteration, index]
        if communication.kind == "send":
            if not communication.missing:
                both_s = max(communication.ready_s[each] for each in self._ranks_of[index])
                self._loop.at(both_s, partial(self._send, communication))
        elif communication.running is not None:
            if ready_s > self._loop.now_s:
                self._loop.at(ready_s, partial(communication.running.begin, rank))
            else:
                communication.running.begin(rank)
        elif ready_s < communication.first_s and communication is not self._unruled:
            if communication.first is not None:
                communication.first.cancel()
            communication.first_s = ready_s
            communication.first = self._loop.at(ready_s, partial(self._collective, communication))

    def _collective(self, communication: _Communication) -> None:
        """The first rank has come to a collective."""
        phase, number = communication.phase, communication.number
        kind = Collective(communication.kind)
        plan = self._plans.plan_for(number, kind, communication.size_bytes, phase.root)
        if plan is None:
            if self._unruled is communication:
                raise HeadwayError(
                    f"job {self.job.name}: operation {number} has no plan, and there is nothing to wait for"
                )
            self._unruled = communication
            return
        self._unruled = None
        communication.plan = plan
        communication.running = collective.start(
            self._setting.network,
            plan,
            kind,
            communication.size_bytes,
            hosts=self.hosts,
            execution=self._setting.execution,
            ready=communication.ready_s,
            weight=self.job.weight,
            priority=self.job.priority,
            key=self._connections(),
            costs=self._setting.costs,
            host=self._setting.host,
            on_done=partial(self._done, communication),
            on_rank=partial(self._rank_ended, communication),
            on_flow=self._on_flow(number),
        )

    def _on_flow(self, number: int) -> OnFlow | None:
        """Who is told of the flows of a collective."""
        learns = partial(self._plans.flow_started, number) if self.job.policy != "off" else None
        if self._pushed is None or learns is None:
            return learns if self._pushed is None else self._pushed.flow_started
        pushed = self._pushed

        def told(src: int, dst: int, flow: Flow) -> None:
            learns(src, dst, flow)
            pushed.flow_started(src, dst, flow)

        return told

    def _first_link(self, src: int, dst: int) -> int:
        """Of the way from one rank to another on another host."""
        key = self._connections()
        way_key = key(src, dst) if isinstance(key, Connections) else pair_key(key, src, dst)
        return self._setting.network.fabric.router.route(self.hosts[src], self.hosts[dst], way_key)[0]

    def _connections(self) -> Connections | int:
        """What flows' keys are made from; compares equal until another flow gets a new connection."""
        again = self._plans.reroutes
        return Connections(self._key, frozenset(again.items())) if again else self._key

    def _done(self, communication: _Communication, ended_s: Sequence[float]) -> None:
        plan = communication.plan
        assert plan is not None
        kind, ready_s = Collective(communication.kind), communication.ready_s
        number, size_bytes = communication.number, communication.size_bytes
        self._plans.operation_done(OperationDone(number, kind, size_bytes, plan, ready_s, ended_s))
        self._record(communication, plan.name, max(ready_s), max(ended_s))
        if self._unruled is not None:
            self._collective(self._unruled)

    def _send(self, communication: _Communication) -> None:
        """Both ranks have come to a send."""
        phase = communication.phase

        def on_done() -> None:
            ready_s = communication.ready_s
            self._record(communication, "", max(ready_s[phase.src], ready_s[phase.dst]), self._loop.now_s)
            self._rank_ended(communication, phase.dst, self._loop.now_s)

        flow = self._setting.network.start(
            self.hosts[phase.src],
            self.hosts[phase.dst],
            phase.size_bytes,
            key=pair_key(self._key, phase.src, phase.dst),
            weight=self.job.weight,
            priority=self.job.priority,
            on_sent=lambda: self._rank_ended(communication, phase.src, self._loop.now_s),
            on_done=on_done,
        )
        if self._pushed is not None:
            self._pushed.flow_started(phase.src, phase.dst, flow)

    def _rank_ended(self, communication: _Communication, rank: int, end_s: float) -> None:
        self._span(rank, communication.kind, communication.ready_s[rank], end_s)
        self._pass(rank, end_s)
        self._go_on(rank, end_s)

    def _record(self, communication: _Communication, plan: str, start_s: float, end_s: float) -> None:
        self._operations.append(
            OperationResult(
                job=self.job.name,
                number=communication.number,
                iteration=communication.iteration,
                kind=communication.kind,
                size_bytes=communication.size_bytes,
                plan=plan,
                start_s=start_s,
                end_s=end_s,
                free_limit_s=communication.limit_s,
            )
        )

    def _span(self, rank: int, kind: str, begin_s: float, end_s: float) -> None:
        if self._setting.spans is not None:
            self._setting.spans.span(self.job.name, rank, kind, begin_s, end_s)


def _ranks_of(phase: Phase, ranks: int) -> Sequence[int]:
    match phase.kind:
        case "compute":
            return ()
        case "send":
            return (phase.src, phase.dst)
        case _:
            return range(ranks)


def phase_limit_s(phase: Phase, cluster: Cluster) -> float:
    """Least time of one phase on links that nobody else uses; 0 for computing. Latency is left out."""
    if phase.kind == "compute":
        return 0.0
    if phase.kind != "send":
        size_bytes = phase.vector_bytes(cluster.world_size)
        return lower_bound(cluster, Collective(phase.kind), size_bytes, root=phase.root).time_s
    rates = [cluster.links[link].capacity_Bps for link in cluster.route(phase.src, phase.dst)]
    return phase.size_bytes / min(rates) if rates else 0.0

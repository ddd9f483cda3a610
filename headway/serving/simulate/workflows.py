"""Workflows on engines, on a simulated clock. Pure; the same arguments give the same result.

Runs of each workflow come as a Poisson process. A run's draws depend on the seed and its number only, and its arrival
on the rate besides, so that two rates, two plans or two rules are compared on the same runs (common random numbers).
The last counted run comes just when it should in the mean: a Poisson process of which the number of arrivals within a
time is known, so that the rate is the one that was asked for, also where few runs are counted.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from headway.errors import UsageError
from headway.serving.engine.types import Job
from headway.serving.prefix import mix
from headway.serving.workflows.calls import Call
from headway.serving.workflows.programs.drive import drive
from headway.serving.workflows.programs.form import CallModel, Context, Workflow
from headway.sim.engine.loop import Loop


class Servers(Protocol):
    """Everything that answers calls."""

    block_tokens: int
    """In a block of the prompts of programs that make them (`Context`); where models differ, the largest (count)."""

    def submit(self, model: str, job: Job) -> None:
        """A call is there; `Ended` is told when it has its last token. UsageError where nobody could run it."""
        ...


Ended: TypeAlias = Callable[[str], None]
"""Told the id of a job that has ended."""
Serve: TypeAlias = Callable[[Loop, Ended], Servers]
"""Starts servers on a clock."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """Runs of one kind.

    Attributes:
        workflow: its name.
        program: makes a run.
        rate: runs per second, Poisson.
        warm_up: runs that come first and are not counted (count).
        runs: runs that are counted after those (count).
        cool_down: runs that still come after those (count), so that the last counted ones do not end on engines that
            grow idle; None: they come until all counted runs have ended.
        most_mean_s: stop once the mean latency of the counted runs is certain to be more, seconds.
    """

    workflow: str
    program: Workflow
    rate: float
    warm_up: int
    runs: int
    cool_down: int | None = None
    most_mean_s: float = float("inf")


class Order(Protocol):
    """Which calls go first where calls wait: lower first."""

    def __call__(self, run: int, depth: int) -> int:
        """For a call of the run that came as number `run` of all, after `depth` other calls of that run in sequence."""
        ...


@dataclass(frozen=True, slots=True)
class RunRow:
    """One run.

    Attributes:
        workflow, id: which.
        counted: whether it is one that figures are made from.
        arrived_s: when it came, seconds from the begin.
        end_s: when it had ended; None: it had not when all was stopped.
        calls: that it made so far (count).
    """

    workflow: str
    id: str
    counted: bool
    arrived_s: float
    end_s: float | None
    calls: int

    @property
    def latency_s(self) -> float | None:
        """From its arrival to its end; None where it has not ended."""
        return None if self.end_s is None else self.end_s - self.arrived_s


@dataclass(frozen=True, slots=True)
class Simulated:
    """What became of the runs.

    Attributes:
        rows: in order of arrival.
        calls: all that have ended, in the order of their ends; of runs under way at the end too.
        end_s: when all was stopped.
        overrun: stopped because more runs were in flight, or latencies longer, than allowed.
        events: callbacks on the clock, for the cost per event.
    """

    rows: list[RunRow]
    calls: list[Call]
    end_s: float
    overrun: bool
    events: int

    def counted_calls(self) -> list[Call]:
        """Calls of counted runs that have ended: a trace of whole runs."""
        whole = {row.id for row in self.rows if row.counted and row.end_s is not None}
        return [call for call in self.calls if call.run in whole]


def run_workflows(
    serve: Serve,
    traffic: Sequence[Traffic],
    *,
    seed: int,
    order: Order | None = None,
    most_in_flight: int | None = None,
    keep_calls: bool = True,
) -> Simulated:
    """Run workflows until all counted runs have ended.

    Args:
        serve: starts the servers.
        traffic: what comes; no two workflows of one name.
        seed: of the runs and their arrivals.
        order: priorities in the engines' queues; None: first come, first served.
        most_in_flight: stop once more runs than these are in flight, since they pile up; None: never.
        keep_calls: whether the calls are wanted.

    Raises UsageError for traffic that makes no sense, or a call that no engine can run.
    """
    if not traffic or len({it.workflow for it in traffic}) < len(traffic):
        raise UsageError("workflows need names, each another", where="traffic")
    for it in traffic:
        if it.rate <= 0 or it.runs < 1 or it.warm_up < 0 or (it.cool_down or 0) < 0:
            raise UsageError(
                "rate and runs must be above 0, warm_up and cool_down not below", where=f"traffic {it.workflow}"
            )
    return _Simulation(serve, traffic, seed, order, most_in_flight, keep_calls).run()


@dataclass(slots=True, eq=False)
class _Run:
    traffic: Traffic
    id: str
    number: int
    counted: bool
    arrived_s: float
    end_s: float | None = None
    calls: int = 0


@dataclass(slots=True, eq=False)
class _Latencies:
    """Of the counted runs of a workflow so far."""

    ended_s: float = 0.0
    under_way: int = 0
    arrivals_s: float = 0.0
    """Sum of the times at which those under way came."""

    def least_sum_s(self, now_s: float) -> float:
        return self.ended_s + self.under_way * now_s - self.arrivals_s


@dataclass(slots=True, eq=False)
class _Asked:
    run: _Run
    step: CallModel
    id: str
    start_s: float
    done: Callable[[Call], None]


class _Simulation:
    def __init__(
        self,
        serve: Serve,
        traffic: Sequence[Traffic],
        seed: int,
        order: Order | None,
        most_in_flight: int | None,
        keep_calls: bool,
    ) -> None:
        self._loop = Loop()
        self._servers = serve(self._loop, self._answered)
        self._traffic = traffic
        self._seed = seed
        self._order = order
        self._most_in_flight = most_in_flight
        self._keep_calls = keep_calls
        self._asked: dict[str, _Asked] = {}
        self._runs: list[_Run] = []
        self._calls: list[Call] = []
        self._latencies = {it.workflow: _Latencies() for it in traffic}
        self._in_flight = 0
        self._missing = sum(it.runs for it in traffic)
        self._overrun = False

    def run(self) -> Simulated:
        for index, it in enumerate(self._traffic):
            self._come(it, _gaps_s(it, random.Random(mix(mix(self._seed & 0xFFFF_FFFF) + index + 1))), 0)
        self._loop.run()
        rows = [RunRow(it.traffic.workflow, it.id, it.counted, it.arrived_s, it.end_s, it.calls) for it in self._runs]
        return Simulated(rows, self._calls, self._loop.now_s, self._overrun, self._loop.events)

    def _come(self, traffic: Traffic, gaps_s: Iterator[float], number: int) -> None:
        """The next run of a workflow comes."""
        self._loop.after(next(gaps_s), lambda: self._begin(traffic, gaps_s, number))

    def _begin(self, traffic: Traffic, gaps_s: Iterator[float], number: int) -> None:
        counted = traffic.warm_up <= number < traffic.warm_up + traffic.runs
        run = _Run(traffic, f"{traffic.workflow}-{number}", len(self._runs), counted, self._loop.now_s)
        self._runs.append(run)
        self._in_flight += 1
        latencies = self._latencies[traffic.workflow]
        if counted:
            latencies.under_way += 1
            latencies.arrivals_s += run.arrived_s
        too_many = self._most_in_flight is not None and self._in_flight > self._most_in_flight
        if too_many or latencies.least_sum_s(self._loop.now_s) > traffic.most_mean_s * traffic.runs:
            self._overrun = True
            self._loop.stop()
            return
        if traffic.cool_down is None or number + 1 < traffic.warm_up + traffic.runs + traffic.cool_down:
            self._come(traffic, gaps_s, number + 1)
        context = Context(seed=self._seed, run=number, block_tokens=self._servers.block_tokens)
        drive(traffic.program(context), _Hosted(self, run), lambda result, depth: self._ended(run))

    def _ended(self, run: _Run) -> None:
        run.end_s = self._loop.now_s
        self._in_flight -= 1
        if run.counted:
            latencies = self._latencies[run.traffic.workflow]
            latencies.ended_s += run.end_s - run.arrived_s
            latencies.under_way -= 1
            latencies.arrivals_s -= run.arrived_s
            self._missing -= 1
            if not self._missing:
                self._loop.stop()

    def after(self, seconds: float, done: Callable[[], None]) -> None:
        self._loop.after(seconds, done)

    def ask(self, run: _Run, step: CallModel, depth: int, done: Callable[[Call], None]) -> None:
        id_ = f"{run.id}/{run.calls}"
        self._asked[id_] = _Asked(run, step, str(run.calls), self._loop.now_s, done)
        run.calls += 1
        priority = self._order(run.number, depth) if self._order is not None else 0
        prompt = step.prompt
        self._servers.submit(step.model, Job(id_, prompt.tokens, step.output_tokens, prompt.blocks, priority))

    def _answered(self, id_: str) -> None:
        asked = self._asked.pop(id_)
        prompt = asked.step.prompt
        call = Call(
            workflow=asked.run.traffic.workflow,
            run=asked.run.id,
            id=asked.id,
            model=asked.step.model,
            start_s=asked.start_s,
            end_s=self._loop.now_s,
            input_tokens=prompt.tokens,
            output_tokens=asked.step.output_tokens,
            blocks=prompt.blocks,
            block_tokens=prompt.block_tokens,
        )
        if self._keep_calls:
            self._calls.append(call)
        asked.done(call)


def _gaps_s(traffic: Traffic, chance: random.Random) -> Iterator[float]:
    """Times from run to run, without an end; those up to the last counted run add up to their mean."""
    planned = [chance.expovariate(1.0) for _ in range(traffic.warm_up + traffic.runs)]
    factor = len(planned) / sum(planned)
    for gap in planned:
        yield gap * factor / traffic.rate
    while True:
        yield chance.expovariate(traffic.rate)


class _Hosted:
    """Where the steps of one run happen."""

    def __init__(self, simulation: _Simulation, run: _Run) -> None:
        self._simulation = simulation
        self._run = run

    def call(self, step: CallModel, depth: int, done: Callable[[Call], None]) -> None:
        self._simulation.ask(self._run, step, depth, done)

    def after(self, seconds: float, done: Callable[[], None]) -> None:
        self._simulation.after(seconds, done)

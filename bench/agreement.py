"""How well predictions agree with the lab: `python -m bench.agreement --out FILE.json [--quick]`. Needs root.

Every pair of a network and a plan runs in the lab, on the executor that live jobs use, and is predicted by
`collectives.predict` and simulated from the same scenario. All ranks begin together, on free links; a time is from
then until the last rank has its result, and the measured one is the median of the repeats.

Jobs that share links run in the lab as `headway lab run` runs them, and in the simulator; a row is the median time of
one job's iterations without the first, which opens connections.

Which spine a flow takes is chance, in the lab as in the simulator: in racks the ranks are started anew several times,
and the simulated time is the median over as many draws.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from bench.grid_script import as_script
from headway.bench.lab_jobs import run_jobs
from headway.bench.lab_site import in_force
from headway.bench.plan_runs import plan_ranks
from headway.cluster.model import Cluster
from headway.collectives.candidates import candidates, idle_plan
from headway.collectives.chunking import chunk_bytes_for, link_rate_Bps
from headway.collectives.families import direct, double_tree, ring, star
from headway.collectives.plan import Collective, Plan
from headway.collectives.plan_codec import encode
from headway.collectives.predict import predict
from headway.errors import HeadwayError, UsageError
from headway.lab.effects import effects_of
from headway.lab.files import load_scenario, parse_scenario
from headway.lab.lab import Lab
from headway.lab.scenario import Event, Scenario
from headway.sim import collective
from headway.sim.background import Background
from headway.sim.collective import Execution
from headway.sim.loop import Loop
from headway.sim.network import Network
from headway.sim.result import JobResult
from headway.sim.run import simulate
from headway.sim.topologies import cluster_of, fabric_of

MB = 1_000_000
ALL = Collective.ALL_REDUCE
WARM_UP = 2
REPEATS = 7
SETTLED_S = 0.1
"""When a simulated operation begins: events at the start have happened."""
JOBS_LIMIT_S = 120.0
FRESH_STARTS = 6
"""How often the ranks are started anew where chance picks the ways."""
BUDGET_S = 7.0
"""A pair stops repeating after this long, but not before three times."""

Grid = Mapping[str, Mapping[int, tuple[str, ...]]]
"""Shipped scenario -> megabytes -> plans."""

FAMILIES = ("ring", "direct", "double-tree", "packing")
GRID: Grid = {
    "star8": {1: (*FAMILIES[:3], "star"), 4: (*FAMILIES[:3], "star"), 16: FAMILIES[:3]},
    "star8-udp50-down": {1: FAMILIES, 4: FAMILIES, 16: ("ring", "packing")},
    "star8-udp50-up": {4: FAMILIES},
    "star8-udp50-both": {4: FAMILIES},
    "star8-udp75-down": {4: FAMILIES},
    "star8-udp75-up": {4: FAMILIES},
    "star8-udp75-both": {4: FAMILIES},
    "star8-tcp-down": {4: FAMILIES, 16: ("ring", "packing")},
    "rack2x4": {4: FAMILIES, 16: ("ring",)},
    "rack2x4-slow-uplink": {4: FAMILIES},
    "rack2x4-udp50-uplink": {4: FAMILIES},
    "wan4": {1: FAMILIES, 4: FAMILIES},
    "wan4-congested": {4: FAMILIES},
}
JOBS: Mapping[str, Sequence[Mapping[str, object]]] = {
    "two rings over all hosts": [
        {"name": "a", "hosts": 8, "iterations": 8, "loop": [{"all_reduce": "4MB"}], "plan": "ring"},
        {"name": "b", "hosts": 8, "loop": [{"all_reduce": "4MB"}], "plan": "ring"},
    ],
    "ring and direct over four shared hosts": [
        {"name": "a", "hosts": ["host0", "host1", "host2", "host3"], "iterations": 8,
         "loop": [{"compute": "20ms"}, {"all_reduce": "4MB"}], "plan": "ring"},
        {"name": "b", "hosts": ["host2", "host3", "host4", "host5"], "loop": [{"all_reduce": "2MB"}], "plan": "direct"},
    ],
    "ring beside a steady sender": [
        {"name": "a", "hosts": 4, "iterations": 8, "loop": [{"all_reduce": "4MB"}], "plan": "ring"},
        {"name": "b", "hosts": ["host7", "host2"], "loop": [{"send": "100MB"}]},
    ],
    "two senders to one host": [
        {"name": "a", "hosts": ["host0", "host2"], "iterations": 8, "loop": [{"send": "8MB"}]},
        {"name": "b", "hosts": ["host1", "host2"], "loop": [{"send": "100MB"}]},
    ],
}  # fmt: skip
"""Jobs on star8."""
QUICK: Grid = {"star8": {4: ("ring", "direct")}, "star8-udp50-down": {4: ("ring", "packing")}}


@dataclass(frozen=True)
class Pair:
    """A plan for one size in one scenario.

    Attributes:
        scenario: with the events that are in force, and no jobs.
        plan_name: as the table has it.
        plan: what runs.
        size_bytes: of the whole vector.
    """

    scenario: Scenario
    plan_name: str
    plan: Plan
    size_bytes: int

    @property
    def chunk_bytes(self) -> int:
        """Piece size, for all three."""
        return chunk_bytes_for(self.plan, ALL, self.size_bytes, 4, link_rate_Bps(cluster_of(self.scenario)))

    @property
    def by_chance(self) -> bool:
        """Whether flows may take several ways."""
        return self.scenario.racks is not None


@dataclass(frozen=True)
class Row:
    """One pair's times, seconds.

    Attributes:
        scenario, plan, size_bytes: which pair, or which jobs; `trees` is the plan, encoded, empty for jobs.
        times_s: measured, each repeat.
        predicted_s, simulated_s: by the model, which knows one job only, and by the simulator.
    """

    scenario: str
    plan: str
    size_bytes: int
    trees: str
    times_s: Sequence[float]
    predicted_s: float | None
    simulated_s: float

    @property
    def measured_s(self) -> float:
        """Median of the repeats."""
        return statistics.median(self.times_s)

    @property
    def spread(self) -> float:
        """Half the distance between the quartiles, over the median."""
        quarters = statistics.quantiles(self.times_s, n=4, method="inclusive")
        return (quarters[2] - quarters[0]) / 2 / self.measured_s

    def error(self, by: str) -> float | None:
        """`predicted` or `simulated` over measured, less 1."""
        told = self.predicted_s if by == "predicted" else self.simulated_s
        return None if told is None else told / self.measured_s - 1


def events_at_start(scenario: Scenario) -> tuple[Event, ...]:
    """The events that are in force at time 0."""
    return tuple(event for event in scenario.events if event.start == 0)


def pairs_of(name: str, grid: Grid) -> Iterator[Pair]:
    """The pairs of one scenario."""
    whole = load_scenario(name)
    scenario = whole.model_copy(update={"events": events_at_start(whole)})
    ranks = len(scenario.host_names)
    for megabytes, plans in grid[name].items():
        size_bytes = megabytes * MB // (4 * ranks) * (4 * ranks)
        for plan in plans:
            yield Pair(scenario, plan, plan_of(plan, scenario, size_bytes), size_bytes)


def plan_of(name: str, scenario: Scenario, size_bytes: int) -> Plan:
    """A family as HEADWAY_PLAN holds it, or for `packing` what the planner takes when it knows the events."""
    ranks = len(scenario.host_names)
    match name:
        case "ring":
            return ring(range(ranks))
        case "direct":
            return direct([1.0] * ranks)
        case "double-tree":
            return double_tree(range(ranks))
        case "star":
            return star(ranks, 0)
    free = cluster_of(scenario)
    idle = idle_plan(free, ALL, size_bytes)
    return candidates(loaded(scenario), ALL, size_bytes, "packing", idle, idle)[0].plan


def loaded(scenario: Scenario) -> Cluster:
    """Payload rates that the scenario's events leave."""
    effects = [effects_of(event, scenario.targets_of(event)) for event in scenario.events]
    return cluster_of(scenario, in_force=effects)


def measured_s(lab: Lab, pairs: Sequence[Pair], *, quick: bool) -> list[list[float]]:
    """Times of each pair, in turns, so that whatever else the machine does hits all alike."""
    by_chance = pairs[0].by_chance
    starts, repeats = (FRESH_STARTS, 2) if by_chance else (1, REPEATS)
    if quick:
        starts, repeats = min(starts, 2), min(repeats, 3)
    times_s: list[list[float]] = [[] for _ in pairs]
    with in_force(lab, pairs[0].scenario.events):
        for _ in range(starts):
            with plan_ranks(lab) as ranks:
                for turn in range(WARM_UP + repeats):
                    for pair, mine in zip(pairs, times_s, strict=True):
                        warm = turn >= (WARM_UP if pair.size_bytes < 8 * MB else 1)
                        if len(mine) >= 3 and sum(mine) > BUDGET_S and not by_chance:
                            continue
                        taken_s = ranks.time_s(pair.plan, ALL, pair.size_bytes, pair.chunk_bytes)
                        if warm:
                            mine.append(taken_s)
    return times_s


def simulated_s(pair: Pair) -> float:
    """Seconds of one operation on free links, with the events in force; by chance, the median of some draws."""
    return statistics.median(_simulated_s(pair, key) for key in range(FRESH_STARTS if pair.by_chance else 1))


def _simulated_s(pair: Pair, key: int) -> float:
    network = Network(Loop(), fabric_of(pair.scenario))
    background = Background(network, pair.scenario, lambda record: None)
    background.start()
    network.loop.run(SETTLED_S)
    collective.start(
        network,
        pair.plan,
        ALL,
        pair.size_bytes,
        hosts=range(pair.plan.size),
        execution=Execution.PIECES,
        key=key,
        chunk_bytes=pair.chunk_bytes,
        element_bytes=4,
        on_done=lambda ends_s: network.loop.stop(),
    )
    network.loop.run()
    background.stop()
    return network.loop.now_s - SETTLED_S


def job_rows(name: str) -> list[Row]:
    """Run and simulate jobs of `JOBS`; a row for each."""
    idle = load_scenario("star8")
    data = {"name": name, "hosts": len(idle.host_names), "access": "200Mbit", "jobs": JOBS[name]}
    scenario = parse_scenario(data, where="bench.agreement")
    with Lab.up(scenario) as lab:
        ran = run_jobs(lab, limit_s=JOBS_LIMIT_S)
    if not ran.ended.ok:
        raise HeadwayError(f"{name}: {ran.ended.failure}")
    simulated = simulate(scenario, execution=Execution.PIECES)
    rows = []
    for job in scenario.jobs:
        times_s, told_s = (_steady_s(jobs[job.name]) for jobs in (ran.jobs, simulated.jobs))
        if len(times_s) < 2 or not told_s:
            continue  # a job without a number of iterations may not get far
        size_bytes = max(phase.size_bytes for phase in job.loop)
        plan = f"job {job.name}, {job.plan or 'send'}"
        rows.append(Row(name, plan, size_bytes, "", times_s, None, statistics.median(told_s)))
    return rows


def _steady_s(job: JobResult) -> list[float]:
    return [iteration.duration_s for iteration in job.iterations[1:]]


def rows_of(name: str, grid: Grid, *, quick: bool) -> list[Row]:
    """Measure and predict all pairs of one scenario, in one lab."""
    pairs = list(pairs_of(name, grid))
    with Lab.up(pairs[0].scenario.model_copy(update={"jobs": ()})) as lab:
        all_times_s = measured_s(lab, pairs, quick=quick)
    return [
        Row(
            scenario=name,
            plan=pair.plan_name,
            size_bytes=pair.size_bytes,
            trees=encode(pair.plan),
            times_s=times_s,
            predicted_s=predict(pair.plan, loaded(pair.scenario), ALL, pair.size_bytes, pair.chunk_bytes).time_s,
            simulated_s=simulated_s(pair),
        )
        for pair, times_s in zip(pairs, all_times_s, strict=True)
    ]


def line(row: Row) -> str:
    """One row of the table."""
    errors = [row.error(by) for by in ("predicted", "simulated")]
    told = " ".join(f"{error:>+9.1%}" if error is not None else f"{'-':>9}" for error in errors)
    millis = row.measured_s * 1e3
    return f"{row.scenario:38} {row.plan:13} {row.size_bytes / MB:5.1f} {millis:9.1f} {row.spread:6.1%} {told}"


HEADER = f"{'scenario':38} {'plan':13} {'MB':>5} {'ms':>9} {'spread':>6} {'predicted':>9} {'simulated':>9}"


def summary(rows: Sequence[Row], by: str) -> str:
    """Median and 95th percentile of the errors' sizes, and the worst three pairs."""
    errors = [(abs(error), row) for row in rows if (error := row.error(by)) is not None]
    if not errors:
        return f"{by}: nothing"
    sizes = sorted(size for size, _ in errors)
    p95 = sizes[min(len(sizes) - 1, round(0.95 * (len(sizes) - 1)))]
    worst = sorted(errors, key=lambda pair: -pair[0])[:3]
    told = "; ".join(f"{row.scenario} {row.plan} {row.size_bytes / MB:.0f} MB {size:.1%}" for size, row in worst)
    return f"{by}: {len(sizes)} pairs, |error| median {statistics.median(sizes):.1%}, p95 {p95:.1%}; worst: {told}"


def run(out: Path, grid: Grid, jobs: Sequence[str], *, quick: bool, say: Callable[[str], None]) -> None:
    """Measure the grid and the jobs; `out` is replaced after each scenario."""
    out.parent.mkdir(parents=True, exist_ok=True)
    rows: list[Row] = []
    say(HEADER)
    work = [partial(rows_of, name, grid, quick=quick) for name in grid]
    work += [partial(job_rows, name) for name in jobs]
    for measure in work:
        for row in measure():
            rows.append(row)
            say(line(row))
        draft = out.with_suffix(".draft")
        draft.write_text(json.dumps({"v": 1, "rows": [asdict(row) for row in rows]}, indent=1))
        draft.replace(out)
    for by in ("predicted", "simulated"):
        say(summary(rows, by))


def main() -> None:
    """The script."""
    parser = argparse.ArgumentParser(prog="bench.agreement", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--quick", action="store_true", help="four pairs, in half a minute")
    parser.add_argument("--scenarios", help="only these, with commas between")
    options = parser.parse_args()
    grid, jobs = (QUICK, []) if options.quick else (GRID, list(JOBS))
    if options.scenarios is not None:
        chosen = [name for name in options.scenarios.split(",") if name]
        unknown = [name for name in chosen if name not in grid and name not in jobs]
        if unknown:
            known = ", ".join([*grid, *jobs])
            raise UsageError(f"unknown scenario {unknown[0]!r}", where="--scenarios", hint=f"known: {known}")
        grid = {name: grid[name] for name in chosen if name in grid}
        jobs = [name for name in chosen if name in jobs]
    begun_s = time.monotonic()
    run(options.out, grid, jobs, quick=options.quick, say=lambda text: print(text, flush=True))
    print(f"{time.monotonic() - begun_s:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    as_script("bench.agreement", main)

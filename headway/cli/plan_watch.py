"""`headway plan watch`: what was promised against what is, and a new plan when it would be clearly better."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from headway.cli.called import read_all_calls
from headway.cli.plan_profiles import check_profiles, gpu_bytes, workflows_of
from headway.cli.plan_words import forecast_words, print_plan
from headway.cli.tables import plain_table, print_table
from headway.cluster.units import parse_time
from headway.errors import UsageError
from headway.report.words import counted
from headway.serving.allocation.drift import LEAST_RUNS, Compared, compare, rate_of
from headway.serving.allocation.files import (
    read_aggregates,
    read_nodes,
    read_plan,
    read_profiles,
    write_aggregates,
    write_plan,
)
from headway.serving.allocation.interference import PER_NEIGHBOUR, Interference
from headway.serving.allocation.migrate import keeping, started, stopped, within, worth
from headway.serving.allocation.predict import Predictor
from headway.serving.allocation.search import search
from headway.serving.allocation.types import Demand, Plan
from headway.serving.workflows.aggregate import aggregate
from headway.serving.workflows.aggregate_types import Aggregate
from headway.serving.workflows.calls import Run
from headway.serving.workflows.record import by_workflow, runs_of

PLAIN_WIDTH = 120


def watch(
    journal: Annotated[list[Path], typer.Option(help="The gateway's journal, or recorded calls; repeatable.")],
    plan: Annotated[Path, typer.Option(help="The plan in force.")] = Path("plan.yaml"),
    workflows: Annotated[
        Path | None, typer.Option(help="What it was made for. [default: beside the plan, where make put it]")
    ] = None,
    profiles: Annotated[Path, typer.Option(help="From `headway profile`.")] = Path("profiles.yaml"),
    nodes: Annotated[Path, typer.Option(help="The machines.")] = Path("nodes.yaml"),
    last: Annotated[str, typer.Option(metavar="TIME", help="Only the runs of the last so much time: 1h.")] = "",
    better: Annotated[float, typer.Option(help="By how much a new plan's latency must be less to be proposed.")] = 0.1,
    most_moves: Annotated[int | None, typer.Option(help="Instances that a new plan may start. [default: any]")] = None,
    interference: Annotated[float, typer.Option(help="As for `plan make`.")] = PER_NEIGHBOUR,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the proposed plan.")] = None,
    every: Annotated[str, typer.Option(metavar="TIME", help="Look again and again, until interrupted.")] = "",
) -> None:
    """Say what has drifted from what the plan was made for, and propose a new one where that is clearly better.

    Exit code 1: something has drifted.
    """
    window_s = parse_time(last, where="--last") if last else None
    every_s = parse_time(every, where="--every") if every else None
    if every_s is not None and every_s < 1:
        raise UsageError(f"{every} is less than a second", where="--every")
    if not 0 <= better < 1:
        raise UsageError(f"{better:g} is not from 0 to below 1", where="--better")
    if most_moves is not None and most_moves < 0:
        raise UsageError(f"{most_moves} is below 0", where="--most-moves")
    looking = _Looking(
        old=read_plan(plan),
        expected={each.workflow: each for each in read_aggregates(workflows or workflows_of(plan))},
        profiles=profiles,
        nodes=nodes,
        interference=Interference(interference),
        better=better,
        most_moves=most_moves,
        output=output,
    )
    if not looking.old.instances:
        raise UsageError("is not placed", where=str(plan), hint="headway plan make places what it makes")
    while True:
        drifted = looking.look(_recent(runs_of(read_all_calls(journal)), window_s))
        if every_s is None:
            if drifted:
                raise typer.Exit(1)
            return
        time.sleep(every_s)
        print()


class _Looking:
    def __init__(
        self,
        *,
        old: Plan,
        expected: dict[str, Aggregate],
        profiles: Path,
        nodes: Path,
        interference: Interference,
        better: float,
        most_moves: int | None,
        output: Path | None,
    ) -> None:
        self.old, self._expected, self._output = old, expected, output
        self._slices, self._profiles = read_profiles(profiles)
        self._nodes = read_nodes(nodes)
        self._of = {"profiles": profiles, "nodes": nodes}
        self._interference, self._better, self._most_moves = interference, better, most_moves

    def look(self, runs: Sequence[Run]) -> bool:
        """Compare, print and propose: whether anything has drifted."""
        forecasts = {each.workflow: each for each in self.old.forecasts}
        measured: dict[str, tuple[Aggregate, float]] = {}
        figures: list[Compared] = []
        seen = by_workflow(runs)
        for name in sorted({*forecasts, *seen}):
            own = seen.get(name, [])
            if name not in forecasts or name not in self._expected:
                print(f"{name}: {counted(len(own), 'run')}, and the plan was not made for it")
            elif len(own) < LEAST_RUNS:
                print(f"{name}: {counted(len(own), 'run')} seen: {LEAST_RUNS} are needed to say anything")
            else:
                found, rate = aggregate(own), rate_of([run.start_s for run in own])
                measured[name] = (found, rate)
                figures += compare(self._expected[name], forecasts[name], found, rate=rate)
        if not figures:
            return False
        _print_figures(figures)
        drifted = [each for each in figures if each.drifted]
        print(f"{counted(len(drifted), 'figure')} drifted" if drifted else "nothing has drifted")
        if drifted:
            self._propose(measured)
        return bool(drifted)

    def _propose(self, measured: dict[str, tuple[Aggregate, float]]) -> None:
        demands = []
        for forecast in self.old.forecasts:
            name = forecast.workflow
            found, rate = measured.get(name, (self._expected[name], forecast.rate))
            demands.append(Demand(found, rate or forecast.rate))
        check_profiles(self._profiles, self._nodes, demands, **self._of)
        predictor = self._calibrated(demands, set(measured))
        domains = [len(domain) for node in self._nodes for domain in node.domains]
        now = replace(self.old, forecasts=predictor.forecast(demands, self.old.shares, self.old.instances))
        new = search(
            demands,
            predictor,
            gpus=sum(domains),
            slices_per_gpu=self._slices,
            domain_gpus=domains,
            gpu_bytes=gpu_bytes(self._nodes),
        )
        new = keeping(new, self.old, self._nodes)
        new = replace(new, forecasts=predictor.forecast(demands, new.shares, new.instances))
        if self._most_moves is not None and len(started(self.old, new)) > self._most_moves:
            new = within(self.old, new, self._nodes, demands, predictor, most_moves=self._most_moves)
        print("\nas it is, with what was measured:")
        for each in now.forecasts:
            print(f"  {forecast_words(each)}")
        missed, latency_s = worth(now)
        new_missed, new_latency_s = worth(new)
        if not (
            new_missed < missed - 0.01 or (new_missed <= missed and new_latency_s < latency_s * (1 - self._better))
        ):
            print(f"no plan is clearly better (by {self._better:.0%})")
            return
        come, go = started(self.old, new), stopped(self.old, new)
        print(f"proposed: {counted(len(come), 'instance')} to start, {len(go)} to stop")
        for it in go:
            print(f"  stop  {it.model} #{it.number} on {it.node} GPU {', '.join(map(str, it.gpus))}")
        for it in come:
            print(f"  start {it.model} #{it.number} on {it.node} GPU {', '.join(map(str, it.gpus))}")
        print()
        print_plan(new, self._nodes, most_rejected=0)
        if self._output is not None:
            write_plan(self._output, new)
            beside = workflows_of(self._output)
            write_aggregates(beside, [demand.aggregate for demand in demands])
            print(f"wrote {self._output} and {beside}")

    def _calibrated(self, demands: Sequence[Demand], measured: set[str]) -> Predictor:
        """A predictor that says of the plan in force what was measured."""
        plain = Predictor(self._profiles, interference=self._interference, slices_per_gpu=self._slices)
        factors = {}
        for demand, said in zip(demands, plain.forecast(demands, self.old.shares, self.old.instances), strict=True):
            other_s, is_s = demand.aggregate.other_s, demand.aggregate.latency_s
            if said.workflow in measured and other_s < said.latency_s < float("inf") and is_s > other_s:
                factors[said.workflow] = (is_s - other_s) / (said.latency_s - other_s)
        return Predictor(
            self._profiles, interference=self._interference, calibration=factors, slices_per_gpu=self._slices
        )


def _recent(runs: Sequence[Run], window_s: float | None) -> list[Run]:
    """The runs that began in the last so many seconds before the last end."""
    if window_s is None or not runs:
        return list(runs)
    since_s = max(run.end_s for run in runs) - window_s
    return [run for run in runs if run.start_s >= since_s]


def _print_figures(figures: Sequence[Compared]) -> None:
    table = plain_table()
    for name in ("workflow", "figure"):
        table.add_column(name, no_wrap=True)
    for name in ("expected", "measured", "off by", "allowed"):
        table.add_column(name, justify="right")
    table.add_column("")
    before = ""
    for each in figures:
        unit = {"rate": "/s", "latency": " s"}.get(each.what, "")
        off = each.measured - each.expected
        relative = each.what != "share" and 0 < each.expected < float("inf")
        table.add_row(
            each.workflow if each.workflow != before else "",
            f"{each.model} {each.what}".strip(),
            f"{each.expected:.3g}{unit}",
            f"{each.measured:.3g}{unit}",
            f"{off / each.expected:+.0%}" if relative else f"{off:+.3g}",
            f"{each.tolerance / each.expected:.0%}" if relative else f"{each.tolerance:.3g}",
            "drifted" if each.drifted else "",
        )
        before = each.workflow
    print_table(table, plain_width=PLAIN_WIDTH)

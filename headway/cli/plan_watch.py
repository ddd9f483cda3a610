"""`headway plan watch`: what was promised against what is, and a new plan when it would be clearly better."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from enum import IntEnum
from pathlib import Path
from typing import Annotated

import typer

from headway.cli.called import read_calls_there_are, spare_inputs
from headway.cli.plan_figures import interference_of, plain
from headway.cli.plan_files import check_output
from headway.cli.plan_profiles import check_profiles, workflows_of
from headway.cli.plan_way import EqualParts, Way, Within, best, way_of, with_reasons
from headway.cli.plan_within import over_words
from headway.cli.plan_words import forecast_words, print_plan
from headway.cli.shown import cell, print_line
from headway.cli.tables import plain_table, print_table
from headway.cluster.units import parse_time
from headway.errors import UsageError
from headway.report.words import counted
from headway.serving.allocation.drift import LEAST_RUNS, Compared, compare, rate_of
from headway.serving.allocation.files import (
    AGGREGATES,
    PLAN,
    read_aggregates,
    read_nodes,
    read_plan,
    read_profiles,
    write_aggregates,
    write_plan,
)
from headway.serving.allocation.interference import PER_NEIGHBOUR, Interference
from headway.serving.allocation.migrate import gone, in_few_moves, remaining, started, staying, stopped, worth
from headway.serving.allocation.place import check_places
from headway.serving.allocation.predict import Predictor
from headway.serving.allocation.types import Demand, Instance, Plan
from headway.serving.workflows.aggregate import aggregate
from headway.serving.workflows.aggregate_types import Aggregate
from headway.serving.workflows.calls import Run
from headway.serving.workflows.record import by_workflow, runs_of

PLAIN_WIDTH = 120
MOST_EVERY_H = 744
"""Hours between two looks, 31 days: more are taken for a slip of the keyboard, and the clock has an end."""


def watch(
    journal: Annotated[list[Path], typer.Option(help="The gateway's journal, or recorded calls; repeatable.")],
    plan: Annotated[Path, typer.Option(help="The plan in force.")] = Path("plan.yaml"),
    workflows: Annotated[
        Path | None, typer.Option(help="What it was made for. [default: beside the plan, where make put it]")
    ] = None,
    profiles: Annotated[Path, typer.Option(help="From `headway profile`.")] = Path("profiles.yaml"),
    nodes: Annotated[Path, typer.Option(help="The machines that there are now.")] = Path("nodes.yaml"),
    last: Annotated[str, typer.Option(metavar="TIME", help="Only the runs of the last so much time: 1h.")] = "",
    better: Annotated[
        float,
        typer.Option(
            help="By what part a new plan's latency must be less to be proposed; where limits are missed (--within), "
            "the worst latency over its limit, unless the new plan keeps them all."
        ),
    ] = 0.1,
    most_moves: Annotated[int | None, typer.Option(help="Instances that a new plan may start. [default: any]")] = None,
    interference: Annotated[float, typer.Option(help="As for `plan make`.")] = PER_NEIGHBOUR,
    within: Within = None,
    equal_parts: EqualParts = False,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the proposed plan.")] = None,
    every: Annotated[str, typer.Option(metavar="TIME", help="Look again and again, until interrupted.")] = "",
) -> None:
    """Say what has drifted from what the plan was made for, and propose a new one where that is clearly better.

    Exit code 1: something has drifted, a limit is missed, or GPUs of the plan are gone. 3: none of these, but of some
    workflow too few runs were seen to tell.
    """
    window_s = parse_time(last, where="--last") if last else None
    every_s = parse_time(every, where="--every") if every else None
    if window_s == 0:
        raise UsageError("no run began in no time", where="--last")
    if every_s is not None and every_s < 1:
        raise UsageError(f"{every} is less than a second", where="--every")
    if every_s is not None and every_s > MOST_EVERY_H * 3600:
        raise UsageError(f"{every} is more than {MOST_EVERY_H}h", where="--every")
    if not 0 <= better < 1:
        raise UsageError(f"{better:g} is not from 0 to below 1", where="--better")
    if most_moves is not None and most_moves < 0:
        raise UsageError(f"{most_moves} is below 0", where="--most-moves")
    made_for = workflows or workflows_of(plan, by="--plan")
    if output is not None:
        beside = workflows_of(output, by="--output")
        spare_inputs([output, beside], [*journal, plan, made_for, profiles, nodes])
        check_output(output, PLAN)
        check_output(beside, AGGREGATES)
    old = read_plan(plan)
    looking = _Looking(
        old=old,
        expected={each.workflow: each for each in read_aggregates(made_for)},
        profiles=profiles,
        nodes=nodes,
        interference=interference_of(interference),
        better=better,
        most_moves=most_moves,
        way=way_of(within, equal_parts, [each.workflow for each in old.forecasts], by=str(plan)),
        output=output,
    )
    if not old.instances:
        raise UsageError("is not placed", where=str(plan), hint="headway plan make places what it makes")
    check_places(old, where=str(plan))
    while True:
        told = looking.look(_recent(runs_of(read_calls_there_are(journal, wait=every_s is not None)), window_s))
        if every_s is None:
            raise typer.Exit(told)
        sys.stdout.flush()
        time.sleep(every_s)
        print()


class Told(IntEnum):
    """What a look at the calls told: the exit code."""

    AS_PLANNED = 0
    DRIFTED = 1
    TOO_FEW = 3


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
        way: Way,
        output: Path | None,
    ) -> None:
        self.old, self._expected, self._output = old, expected, output
        self._slices, self._profiles = read_profiles(profiles)
        self._nodes = read_nodes(nodes)
        self._of = {"profiles": profiles, "nodes": nodes}
        self._gone, self._left = gone(old, self._nodes), remaining(old, self._nodes)
        self._interference, self._better, self._most_moves, self._way = interference, better, most_moves, way

    def look(self, runs: Sequence[Run]) -> Told:
        """Compare, print and propose."""
        if self._gone:
            nodes, which = self._of["nodes"], counted(len(self._gone), "instance")
            print_line(f"of {which} {nodes} does not have the GPUs, or does not join them: nobody is served there")
            for it in self._gone:
                print_line(_placed(it), indent="  ")
        elif not runs:
            print(f"no run of a workflow is recorded yet: {LEAST_RUNS} of each are needed to say anything")
            return Told.TOO_FEW
        forecasts = {each.workflow: each for each in self.old.forecasts}
        measured: dict[str, tuple[Aggregate, float]] = {}
        figures: list[Compared] = []
        few = False
        seen = by_workflow(runs)
        for name in sorted({*forecasts, *seen}):
            own = seen.get(name, [])
            if name not in forecasts or name not in self._expected:
                print_line(f"{name}: {counted(len(own), 'run')}, and the plan was not made for it")
            elif len(own) < LEAST_RUNS:
                few = True
                print_line(f"{name}: {counted(len(own), 'run')} seen: {LEAST_RUNS} are needed to say anything")
            else:
                found, rate = aggregate(own), rate_of([run.start_s for run in own])
                measured[name] = (found, rate)
                figures += compare(self._expected[name], forecasts[name], found, rate=rate)
        drifted = [each for each in figures if each.drifted]
        if figures:
            _print_figures(figures)
            print(f"{counted(len(drifted), 'figure')} drifted" if drifted else "nothing has drifted")
        limits_s = self._way.limits_s
        over = {name: over_words(name, it.latency_s, limits_s) for name, (it, _) in measured.items()}
        for name, words in over.items():
            if words:
                print_line(f"{name}: measured {plain(measured[name][0].latency_s)} s in the mean{words}")
        if drifted or any(over.values()) or self._gone:
            try:
                self._propose(measured)
            except UsageError as error:  # what was measured cannot be planned for; what was seen is still so
                print_line(f"no plan can be proposed: {error}")
            return Told.DRIFTED
        return Told.TOO_FEW if few else Told.AS_PLANNED

    def _propose(self, measured: dict[str, tuple[Aggregate, float]]) -> None:
        demands = []
        for forecast in self.old.forecasts:
            name = forecast.workflow
            if name not in self._expected:
                raise UsageError(f"the plan is for {name}, and what that was like is not known (--workflows)")
            found, rate = measured.get(name, (self._expected[name], forecast.rate))
            demands.append(Demand(found, rate or forecast.rate))
        check_profiles(self._profiles, self._nodes, demands, **self._of)
        predictor = self._calibrated(demands, set(measured))
        now = self._as_it_is(demands, predictor)
        print("\nas it is, with what was measured:")
        unplanned = self._unplanned(demands)
        lost = {it.model for it in self._gone}.intersection(unplanned)
        for demand, each in zip(demands, now.forecasts, strict=True):
            missing = sorted(lost.intersection(use.model for use in demand.aggregate.uses))
            if missing:  # the forecast is of the other models' calls alone
                words = f"{each.workflow} at {plain(each.rate)}/s: not served: no engine has {', '.join(missing)}"
            else:
                words = f"{forecast_words(each)}{over_words(each.workflow, each.latency_s, self._way.limits_s)}"
            print_line(words, indent="  ")
        never = [model for model in unplanned if model not in lost]
        if never:
            print_line(f"and no engine serves {', '.join(never)}", indent="  ")
        made = best(demands, predictor, self._nodes, self._way, self._slices)
        apart, limits_s = self._way.equal_parts, self._way.limits_s
        new = staying(made.plan, self.old, made.nodes, demands, predictor, apart=apart, limits_s=limits_s)
        whole = True
        if self._most_moves is not None and len(started(self._left, new)) > self._most_moves:
            whole, most = False, self._most_moves
            few = in_few_moves(
                self.old, new, self._nodes, demands, predictor, most_moves=most, apart=apart, limits_s=limits_s
            )
            if few is None:
                raise UsageError(f"{most} are too few to start", where="--most-moves")
            new = few
        if made.enough:
            print_line(made.enough)
        is_worth = worth(now, limits_s)
        if unplanned:
            is_worth = replace(is_worth, short=1.0, latency_s=0.0)
        if not worth(new, limits_s).clearly_better(is_worth, by=self._better):
            print(f"no plan is clearly better (by {self._better:.0%})")
            return
        if whole:  # a neighbour of a part of the way lost by the moves that it takes, and not by its figures
            new = with_reasons(new, made.nodes, demands, predictor, self._way)
        come, go = started(self._left, new), stopped(self._left, new)
        print(f"proposed: {counted(len(come), 'instance')} to start, {len(go)} to stop")
        for it in go:
            print_line(f"stop {_placed(it)}", indent="  ")
        for it in come:
            print_line(f"start {_placed(it)}", indent="  ")
        print()
        print_plan(new, self._nodes, most_rejected=0)
        if self._output is not None:
            write_plan(self._output, new)
            beside = workflows_of(self._output, by="--output")
            write_aggregates(beside, [demand.aggregate for demand in demands])
            print(f"wrote {self._output} and {beside}")

    def _unplanned(self, demands: Sequence[Demand]) -> list[str]:
        """Models that are called and of which the plan in force has nothing, or nothing left."""
        called = {use.model for demand in demands for use in demand.aggregate.uses}
        return sorted(called - {share.model for share in self._left.shares})

    def _as_it_is(self, demands: Sequence[Demand], predictor: Predictor) -> Plan:
        """What is left of the plan in force, with forecasts for what was measured but calls to models that it lacks."""
        unplanned = set(self._unplanned(demands))
        known = [replace(each, aggregate=_without(each.aggregate, unplanned)) for each in demands]
        return replace(self._left, forecasts=predictor.forecast(known, self._left.shares, self._left.instances))

    def _calibrated(self, demands: Sequence[Demand], measured: set[str]) -> Predictor:
        """A predictor that says of the plan in force what was measured, of workflows that call only its models.

        Where one of these has lost instances it is not known whether they served what was measured: it does not count.
        """
        lost = {it.model for it in self._gone}
        plain = Predictor(self._profiles, interference=self._interference, slices_per_gpu=self._slices)
        factors = {}
        for demand, said in zip(demands, self._as_it_is(demands, plain).forecasts, strict=True):
            other_s, is_s = demand.aggregate.other_s, demand.aggregate.latency_s
            called = {use.model for use in demand.aggregate.uses}
            if called & lost or self._unplanned([demand]) or said.workflow not in measured:
                continue
            if other_s < said.latency_s < float("inf") and is_s > other_s:
                factors[said.workflow] = (is_s - other_s) / (said.latency_s - other_s)
        return Predictor(
            self._profiles, interference=self._interference, calibration=factors, slices_per_gpu=self._slices
        )


def _placed(it: Instance) -> str:
    return f"{it.model} #{it.number} on {it.node} GPU {', '.join(map(str, it.gpus))}"


def _without(aggregate: Aggregate, models: set[str]) -> Aggregate:
    return replace(aggregate, uses=tuple(use for use in aggregate.uses if use.model not in models))


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
            cell(each.workflow if each.workflow != before else ""),
            cell(f"{each.model} {each.what}".strip()),
            f"{plain(each.expected)}{unit}",
            f"{plain(each.measured)}{unit}",
            f"{off / each.expected:+.0%}" if relative else f"{off:+.3g}",
            f"{each.tolerance / each.expected:.0%}" if relative else f"{each.tolerance:.3g}",
            "drifted" if each.drifted else "",
        )
        before = each.workflow
    print_table(table, plain_width=PLAIN_WIDTH)

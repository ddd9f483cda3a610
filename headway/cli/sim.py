"""`headway sim`: scenarios on a simulated network. `headway sim SCENARIO` is `headway sim run SCENARIO`."""

from __future__ import annotations

import importlib
import signal
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Self

import typer
from rich.table import Table

from headway.cli.journals import check_writable, write_all
from headway.cli.tables import plain_table, print_table
from headway.cluster.units import format_rate, format_time, parse_bytes, parse_time
from headway.collectives.candidates import POLICIES
from headway.decide.journal import to_line
from headway.errors import UsageError
from headway.lab.files import load_scenario
from headway.lab.scenario import Scenario
from headway.report.sim_page import render_run
from headway.report.sim_summary import JobSummary, LinkSummary, job_summaries, link_summaries, result_json
from headway.report.sim_trace import TraceRecorder
from headway.report.words import counted
from headway.sim.engine.realism import IDEAL, LAB, Realism, SlowStart
from headway.sim.execution.collective import Execution
from headway.sim.formats.astra_network import fabric_of, read_network
from headway.sim.run import Simulation, with_default_job
from headway.sim.studies.event_limits import event_limits_s, free_limits_s
from headway.sim.traces.trace_plans import NO_COSTS

PARTS: dict[str, str] = {
    "trace": "headway.cli.sim_trace:trace",
    "sweep": "headway.cli.sim_sweep:sweep",
    "compare": "headway.cli.sim_compare:compare",
    "flows": "headway.cli.sim_flows:flows",
}
"""Other verbs: the module and the function in it."""

REALISM = {"ideal": IDEAL, "lab": LAB}
SIZE = "16MB"
ITERATIONS = 20
POLICY = "off"
MOST_PIECES_RANKS = 64
"""Ranks of all jobs up to which `pieces` is the default execution: its cost grows with the messages."""
SHOWN_LINKS = 5
PLAIN_WIDTH = 120  # columns where the output is no terminal


app = typer.Typer(no_args_is_help=True, help="Scenarios on a simulated network.")


@app.command()
def run(
    scenario: Annotated[str, typer.Argument(metavar="SCENARIO", help="A shipped scenario's name, or a file.")],
    execution: Annotated[
        str | None,
        typer.Option(
            metavar="pieces|rounds|streams", help="How plans are carried out; default: pieces up to 64 ranks."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of noise, random placement and ECMP.")] = 0,
    until: Annotated[
        str | None, typer.Option(metavar="TIME", help="End here on the simulated clock, e.g. 60s.")
    ] = None,
    network: Annotated[
        Path | None, typer.Option(metavar="FILE", help="An ASTRA-sim network instead of the scenario's own.")
    ] = None,
    size: Annotated[
        str | None, typer.Option(metavar="SIZE", help=f"Without jobs: of each all-reduce; default {SIZE}.")
    ] = None,
    iterations: Annotated[
        int | None, typer.Option(min=1, help=f"Without jobs: how many all-reduces; default {ITERATIONS}.")
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(
            metavar="|".join((*POLICIES, "clairvoyant")), help=f"Without jobs: who chooses plans; default {POLICY}."
        ),
    ] = None,
    realism: Annotated[
        str, typer.Option(metavar="|".join(REALISM), help="What is added to the fluid: nothing, or what the lab shows.")
    ] = "ideal",
    incast: Annotated[
        float | None,
        typer.Option(metavar="0..1", help="How much longer, as a part, a link into a host with many senders takes."),
    ] = None,
    slow_start: Annotated[bool, typer.Option("--slow-start", help="New flows begin with TCP's first window.")] = False,
    journal: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the journal.")] = None,
    trace: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a trace for Perfetto.")] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write times and links as JSON.")
    ] = None,
    page: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a page with pictures.")] = None,
) -> None:
    """Run a scenario's jobs; without any, all hosts all-reduce together."""
    chosen = _with_jobs(load_scenario(scenario), size, iterations, policy)
    how = _execution(execution, chosen)
    until_s = parse_time(until, where="--until") if until is not None else float("inf")
    fabric = fabric_of(read_network(network)) if network is not None else None
    recorder = TraceRecorder() if trace is not None or page is not None else None
    added = _realism(realism, incast, slow_start=slow_start)
    costs = NO_COSTS if fabric is not None and "costs" not in chosen.model_fields_set else None
    simulation = Simulation(chosen, execution=how, costs=costs, realism=added, seed=seed, fabric=fabric, spans=recorder)
    if recorder is not None:
        recorder.network = simulation.network
    check_writable(journal, trace, json_file, page)
    begun = time.perf_counter()
    with _Progress(simulation), _Interruptible(simulation) as interruption:
        simulation.run(until_s)
    took_s = time.perf_counter() - begun
    result = simulation.result()
    limits_s = event_limits_s(chosen, result, seed=seed) if fabric is None else free_limits_s(result)
    hosts = counted(len(simulation.network.fabric.hosts), "host")
    lead = f"{hosts}, {counted(len(chosen.jobs), 'job')}, {how.value}"
    print(f"{chosen.name}: {lead}")
    _print_jobs(job_summaries(result, limits_s))
    _print_links(link_summaries(result))
    print(f"{result.end_s:.4g} s of network, {result.events} events, simulated in {format_time(took_s)}", flush=True)

    def drawn() -> str:
        assert recorder is not None
        return render_run(result, limits_s, recorder.spans, recorder.used(), title=chosen.name, lead=lead)

    write_all(
        (
            (journal, lambda: "".join(f"{to_line(record)}\n" for record in result.records)),
            (json_file, lambda: result_json(result, limits_s)),
            (trace, lambda: recorder.trace_json(result) if recorder is not None else ""),
            (page, drawn),
        )
    )
    if interruption.happened:
        print("headway: interrupted; above is what had ended", file=sys.stderr)
        raise typer.Exit(130)


def _realism(name: str, incast: float | None, *, slow_start: bool) -> Realism:
    if name not in REALISM:
        raise UsageError(f"{name!r} is none", where="--realism", hint=f"one of {', '.join(REALISM)}")
    chosen = REALISM[name]
    if incast is not None:
        chosen = replace(chosen, incast=incast)
    return replace(chosen, slow_start=SlowStart()) if slow_start else chosen


class _Interruptible:
    """Ctrl-C ends the run between two events, where all is consistent; a second one ends the program."""

    def __init__(self, simulation: Simulation) -> None:
        self._loop = simulation.network.loop
        self.happened = False

    def __enter__(self) -> Self:
        self._before = signal.signal(signal.SIGINT, self._stop)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._before)

    def _stop(self, *_: object) -> None:
        self.happened = True
        self._loop.stop()
        signal.signal(signal.SIGINT, self._before)


class _Progress:
    """A line on the terminal that says how far a run is, every second."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._show, daemon=True) if sys.stderr.isatty() else None

    def __enter__(self) -> None:
        if self._thread is not None:
            self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()
            sys.stderr.write("\r\033[K")

    def _show(self) -> None:
        wanted = sum(job.job.iterations or 0 for job in self._simulation.jobs.values())
        while not self._over.wait(1.0):
            done = sum(job.iterations_done for job in self._simulation.jobs.values() if job.job.iterations)
            now_s = self._simulation.network.loop.now_s
            sys.stderr.write(f"\r\033[K{now_s:.4g} s of network, {done} of {wanted} iterations")
            sys.stderr.flush()


def _with_jobs(scenario: Scenario, size: str | None, iterations: int | None, policy: str | None) -> Scenario:
    if scenario.jobs:
        for option, value in (("--size", size), ("--iterations", iterations), ("--policy", policy)):
            if value is not None:
                raise UsageError("the scenario has jobs of its own", where=option, hint="set it in the file")
        return scenario
    if policy is not None and policy not in (*POLICIES, "clairvoyant"):
        hint = f"one of {', '.join((*POLICIES, 'clairvoyant'))}"
        raise UsageError(f"{policy!r} is no policy", where="--policy", hint=hint)
    size_bytes = parse_bytes(size if size is not None else SIZE, where="--size")
    if size_bytes <= 0:
        raise UsageError("must be above 0", where="--size")
    return with_default_job(
        scenario, size_bytes=size_bytes, iterations=iterations or ITERATIONS, policy=policy or POLICY
    )


def _execution(name: str | None, scenario: Scenario) -> Execution:
    if name is None:
        ranks = sum(
            (job.hosts if isinstance(job.hosts, int) else len(job.hosts)) * job.ranks_per_host for job in scenario.jobs
        )
        return Execution.PIECES if ranks <= MOST_PIECES_RANKS else Execution.STREAMS
    try:
        return Execution(name)
    except ValueError:
        known = ", ".join(each.value for each in Execution)
        raise UsageError(f"{name!r} is no execution", where="--execution", hint=f"one of {known}") from None


def _print_jobs(jobs: list[JobSummary]) -> None:
    table = _columns("job", "ranks", "iterations", "mean", "p50", "p99", "algbw MB/s", "limit %", "plans")
    for job in jobs:
        plans = ", ".join(job.plans[:2]) + (f" and {len(job.plans) - 2} more" if len(job.plans) > 2 else "")
        table.add_row(
            job.name,
            str(job.ranks),
            str(job.iterations),
            *(format_time(time_s) if time_s is not None else "-" for time_s in (job.mean_s, job.p50_s, job.p99_s)),
            f"{job.algbw_Bps / 1e6:.2f}" if job.algbw_Bps is not None else "-",
            f"{100 * job.limit:.1f}" if job.limit is not None else "-",
            plans or "-",
        )
    print_table(table, plain_width=PLAIN_WIDTH)


def _print_links(links: list[LinkSummary]) -> None:
    table = _columns("busiest links", "rate", "events took %", "in use %")
    for link in links[:SHOWN_LINKS]:
        taken = f"{100 * link.taken:.1f}" if link.taken else "-"
        table.add_row(link.name, format_rate(link.capacity_Bps), taken, f"{100 * link.used:.1f}")
    if links:
        print_table(table, plain_width=PLAIN_WIDTH)


def _columns(first: str, *others: str) -> Table:
    table = plain_table()
    table.add_column(first, no_wrap=True)
    for name in others:
        table.add_column(name, justify="left" if name == "plans" else "right", no_wrap=name != "plans")
    return table


for verb, place in PARTS.items():
    module, _, function = place.partition(":")
    app.command(verb)(getattr(importlib.import_module(module), function))

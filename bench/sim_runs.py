"""What whole runs of the simulator cost: `python -m bench.sim_runs --out FILE.json --plot FILE.svg`.

The shipped scenario `leafspine-1024x32`, made smaller and larger: a rack for every 16 hosts, and jobs of 32 ranks like
its own, each on random hosts, as streams. Two tables: hosts and jobs that grow together, every host with one rank; and
more and more jobs on 1,024 hosts; 64 of them share each host between two. Every run has a process of its own. Time is
processor time, from building the network to the result, after the code is loaded and compiled; time per event is
without building. Memory is the most that the process ever held, the loaded code with it. `--replay FILE.json` prints
and draws saved figures.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.own_process import measured, write
from bench.scale_picture import Curve, Plot, draw_plots
from headway.bench.markdown import table
from headway.lab.files import parse_scenario, scenario_mapping
from headway.lab.scenario import Scenario
from headway.sim.execution.collective import Execution
from headway.sim.run import Simulation, simulate

SCENARIO = "leafspine-1024x32"
RANKS = 32
HOSTS_PER_RACK = 16
COMPUTES_ms = range(60, 100, 5)
START_ms = 7
HOSTS = (64, 128, 256, 512, 1024, 2048, 4096)
JOBS = (1, 2, 4, 8, 16, 32, 64)
FIXED_HOSTS = 1024
ITERATIONS = 30


@dataclass(frozen=True)
class Case:
    """So many jobs of `RANKS` ranks on so many hosts."""

    hosts: int
    jobs: int
    iterations: int


@dataclass(frozen=True)
class Run:
    """What a case took.

    Attributes:
        network_s: simulated time. processor_s: of this machine. build_s: of it, to place jobs and build the
            network. event_us: the rest, for each event.
        peak_MB: 1e6 bytes, the most that the process held. loaded_MB: what it held before the run.
    """

    hosts: int
    jobs: int
    iterations: int
    network_s: float
    events: int
    processor_s: float
    build_s: float
    event_us: float
    peak_MB: float
    loaded_MB: float


def scaled(hosts: int, jobs: int, iterations: int) -> Scenario:
    """The shipped scenario with other numbers: `scaled(1024, 32, 1000)` has the hosts, racks and jobs of its file."""
    changed = {
        "extends": SCENARIO,
        "hosts": hosts,
        "racks": {"racks": hosts // HOSTS_PER_RACK},
        "jobs": [_job(number, iterations) for number in range(jobs)],
    }
    return parse_scenario(scenario_mapping(changed, base=Path.cwd(), where=SCENARIO), where=SCENARIO)


def _job(number: int, iterations: int) -> dict[str, object]:
    compute_ms = COMPUTES_ms[number % len(COMPUTES_ms)]
    return {
        "name": f"job{number}",
        "hosts": RANKS,
        "placement": "random",
        "seed": number,
        "start": f"{START_ms * number}ms",
        "iterations": iterations,
        "loop": [{"compute": f"{compute_ms}ms", "noise": "2%"}, {"all_reduce": "256MB"}],
    }


def peak_bytes() -> int:
    """The most memory that this process has held; unlike getrusage's, not that of the process which started it."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("VmHWM:")).split()[1])


def measure(case: Case) -> Run:
    """In this process."""
    simulate(scaled(RANKS, 1, 1), execution=Execution.STREAMS)
    loaded_bytes = peak_bytes()
    scenario = scaled(case.hosts, case.jobs, case.iterations)
    begun_s = time.process_time()
    simulation = Simulation(scenario, execution=Execution.STREAMS)
    built_s = time.process_time()
    simulation.run()
    result = simulation.result()
    ended_s = time.process_time()
    return Run(
        hosts=case.hosts,
        jobs=case.jobs,
        iterations=case.iterations,
        network_s=result.end_s,
        events=result.events,
        processor_s=ended_s - begun_s,
        build_s=built_s - begun_s,
        event_us=(ended_s - built_s) / result.events * 1e6,
        peak_MB=peak_bytes() / 1e6,
        loaded_MB=loaded_bytes / 1e6,
    )


def shown(runs: Sequence[Run]) -> str:
    """As a table."""
    heads = ("hosts", "jobs", "network s", "events", "processor s", "to build, s", "us per event", "peak MB")
    return table(
        heads,
        [
            (
                str(run.hosts),
                str(run.jobs),
                f"{run.network_s:.2f}",
                f"{run.events:,}",
                f"{run.processor_s:.2f}",
                f"{run.build_s:.2f}",
                f"{run.event_us:.1f}",
                f"{run.peak_MB:.0f}",
            )
            for run in runs
        ],
    )


def picture(grown: Sequence[Run], fixed: Sequence[Run]) -> str:
    """Both tables as the text of an SVG file."""
    lines = (("as many hosts as ranks", grown), (f"{FIXED_HOSTS:,} hosts", fixed))
    seconds = tuple(Curve(name, tuple((run.jobs * RANKS, run.processor_s) for run in runs)) for name, runs in lines)
    memory = tuple(Curve(name, tuple((run.jobs * RANKS, run.peak_MB) for run in runs)) for name, runs in lines)
    iterations = grown[0].iterations
    plots = (
        Plot(f"Processor time of {iterations} iterations", "ranks, 32 in each job", "s", seconds),
        Plot("Peak memory of the process", "ranks, 32 in each job", "MB", memory, linear=True),
    )
    return draw_plots(plots, label="processor time and memory of whole simulations over their ranks")


def main() -> None:
    """Measure, print, write and draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="write the figures here, as JSON")
    parser.add_argument("--plot", type=Path, help="write a picture here, as SVG")
    parser.add_argument("--replay", type=Path, help="measure nothing: figures that --out wrote")
    parser.add_argument("--iterations", type=int, default=ITERATIONS, help="of each job")
    options = parser.parse_args()
    cases = {
        "hosts": [Case(hosts, hosts // RANKS, options.iterations) for hosts in HOSTS],
        "jobs": [Case(FIXED_HOSTS, jobs, options.iterations) for jobs in JOBS],
    }
    found: dict[str, list[Run]] = {}
    for name in cases:
        if options.replay is not None:
            found[name] = [Run(**run) for run in json.loads(options.replay.read_text())[name]]
        else:
            found[name] = measured(measure, cases[name])
        print(shown(found[name]), end="\n\n", flush=True)
    loaded_MB = max(run.loaded_MB for runs in found.values() for run in runs)
    print(f"Of the memory, {loaded_MB:.0f} MB are the loaded code.")
    if options.out is not None:
        write(options.out, found)
    if options.plot is not None:
        options.plot.parent.mkdir(parents=True, exist_ok=True)
        options.plot.write_text(picture(found["hosts"], found["jobs"]))


if __name__ == "__main__":
    main()

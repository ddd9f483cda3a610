"""Jobs that take turns, on real TCP in the lab: `python -m bench.interleave --out DIR [--quick] [--only SECTION]`.

Every trial is a scenario that runs in the lab and, from the same object, in the simulator. Needs root.

main     identical jobs in every way to share a link: mean and p99 over the isolated time, iterations until settled
shifts   offsets between two jobs, iteration by iteration, beside the paper's formula and the simulator
variety  unequal sizes, periods, noise, too much, arrival, departure
harm     a plain download beside jobs that take turns; and what interleaving costs a job that is alone
ddp      two jobs that all-reduce on shared hosts
react    the same with a loaded host: REACT's plans, interleaving, neither, both

An iteration's time is from its begin to the next one's. Isolated: the median of the same job's iterations while it is
alone on the same hosts, measured in the same run. Settled: see `headway.bench.settling`. Trials of senders run
several at once (`--at-once`), on hosts and links of their own in one lab; they share the machine's processors.

DIR gets SECTION.json (every iteration's begin and end, replaced after each lab) and SECTION.md. `--replay` prints the
tables of such files again, without a lab.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from bench.grid_script import as_script
from bench.interleave_cases import (
    ACTUATORS,
    ALONE,
    DDP_COMPUTE_S,
    DDP_WAYS,
    DOWNLOAD_ALONE,
    HARM,
    HARM_WAYS,
    MAIN,
    PLAIN,
    REACT_COMPUTE_S,
    REACT_WAYS,
    SHIFTS,
    SINGLE,
    SINGLE_WAYS,
    VARIETY_WAYS,
    WAYS,
    Case,
    GroupTrial,
    Trial,
    scenario_of,
    variety,
)
from bench.interleave_tables import TABLES, Times, Told
from headway.bench.lab_jobs import run_jobs
from headway.decide.journal import DecisionRecord, EventRecord, parse_lines
from headway.errors import HeadwayError, UsageError
from headway.interleave.actuator import why_not
from headway.lab.lab import Lab
from headway.lab.scenario import Scenario
from headway.lab.timeline import Player
from headway.sim.execution.collective import Execution
from headway.sim.result import JobResult
from headway.sim.run import simulate

SECTIONS = ("main", "shifts", "variety", "harm", "ddp", "react")
AT_ONCE = 6
"""With all six links full, two cores that others used too kept iterations of 1 s within 0.2 % (median), 6 % at most."""
LAB_S = 4.0
"""Building a lab, starting ranks, and taking all down."""


@dataclass
class Section:
    """Of one run of the script."""

    name: str
    options: Mapping[str, object]
    told: list[Told] = field(default_factory=list)

    def save(self, out: Path) -> None:
        """Replace the file as a whole."""
        document = {"v": 1, "section": self.name, "options": self.options, "trials": [asdict(t) for t in self.told]}
        draft = out / f"{self.name}.draft"
        draft.write_text(json.dumps(document, indent=1) + "\n")
        draft.replace(out / f"{self.name}.json")


@dataclass(frozen=True)
class Options:
    """Of all sections: repeats, iterations, and trials at once."""

    repeat: int
    iterations: int
    at_once: int
    quick: bool


def say(text: str) -> None:
    """Progress, apart from the tables."""
    print(text, file=sys.stderr, flush=True)


def sender_trials(section: str, options: Options) -> list[Trial]:
    """Of a section of senders, those of about the same length beside each other."""
    alone = 6 if options.quick else 8

    def ways(case: Case, names: Sequence[str], iterations: int, repeats: int) -> list[Trial]:
        count = iterations * (2 if case.changes else 1)
        return [Trial(section, case, WAYS[name], r, count) for name in names for r in range(repeats)]

    def alones(cases: Sequence[Case]) -> list[Trial]:
        return [Trial(section, case, ALONE, 0, alone) for case in cases]

    n, repeat = options.iterations, options.repeat
    if section == "main":
        return alones(MAIN) + [t for case in MAIN for t in ways(case, tuple(WAYS), n, repeat)]
    if section == "shifts":
        return alones([SHIFTS]) + ways(SHIFTS, (PLAIN, "static", *ACTUATORS), max(6, n // 2), repeat)
    if section == "variety":
        n = max(6, n // 2)
        cases = variety(n)
        return alones(cases) + [t for case in cases for t in ways(case, VARIETY_WAYS, n, max(1, repeat - 1))]
    n = max(5, n // 2)
    single = ways(SINGLE, SINGLE_WAYS, max(5, n // 2), repeat)
    jobs_alone = Case(HARM.name, HARM.senders[:-1])
    return [*alones([jobs_alone, DOWNLOAD_ALONE]), *single, *ways(HARM, HARM_WAYS, n, repeat)]


def batches(trials: Sequence[Trial], at_once: int) -> list[list[Trial]]:
    """Neighbours together; those alone in labs of their own, which take another time."""
    found: list[list[Trial]] = []
    for trial in trials:
        last = found[-1] if found else []
        alike = last and (last[0].way == ALONE) == (trial.way == ALONE)
        if alike and len(last) < at_once:
            last.append(trial)
        else:
            found.append([trial])
    return found


def group_trials(section: str, options: Options) -> list[GroupTrial]:
    """Of a section of collectives; one repeat, as each takes long to start."""
    ways, compute_s = (DDP_WAYS, DDP_COMPUTE_S) if section == "ddp" else (REACT_WAYS, REACT_COMPUTE_S)
    n = max(4, options.iterations // 2 if section == "ddp" else options.iterations * 11 // 20)
    # A plan for a loaded link takes about ten operations to be tried and kept.
    return [
        GroupTrial(section, way, compute_s, max(4, n * 3 // (10 if way.policy == "off" else 5)) if way.alone else n)
        for way in ways
    ]


def usable(name: str) -> bool:
    """Whether an actuator works here; says so if not."""
    reason = why_not(name) if name else None
    if reason is not None:
        say(f"without {name}: {reason}")
    return reason is None


def estimate_s(section: str, options: Options) -> float:
    """About how long a section takes."""
    if section in ("ddp", "react"):
        return sum(LAB_S + trial.estimate_s for trial in group_trials(section, options))
    made = batches(sender_trials(section, options), options.at_once)
    return sum(LAB_S + max(trial.estimate_s for trial in batch) for batch in made)


def _times(job: JobResult) -> Times:
    return Times([each.start_s for each in job.iterations], [each.end_s for each in job.iterations])


def run_in_lab(
    scenario: Scenario, *, limit_s: float, backend: str = "headway", journals: Path | None = None
) -> dict[str, JobResult]:
    """The scenario's jobs, with its events from zero on. HeadwayError when a rank failed."""
    with Lab.up(scenario) as lab:
        if any(event.type == "load" for event in scenario.events):
            lab.warm_up()
        written: list[EventRecord] = []
        player = Player(lab, scenario, written.append)
        try:
            ran = run_jobs(
                lab, backend=backend, journals=journals, limit_s=limit_s, on_zero=player.start, on_tick=player.check
            )
        finally:
            player.stop()
    if not ran.ended.ok:
        raise HeadwayError(str(ran.ended.failure))
    return dict(ran.jobs)


def run_batch(batch: Sequence[Trial]) -> list[Told]:
    """Trials side by side in one lab, and in the simulator."""
    scenario = scenario_of(batch)
    error, lab = "", {}
    try:
        lab = run_in_lab(scenario, limit_s=60 + 4 * max(trial.estimate_s for trial in batch))
    except HeadwayError as failure:
        error = str(failure)
    simulated = simulate(scenario, execution=Execution.STREAMS).jobs
    told = []
    for number, trial in enumerate(batch):
        names = [job.name for job in scenario.jobs if job.name.startswith(f"t{number}-")]
        told.append(
            Told(
                trial.case.name, trial.way.name, trial.repeat,
                [] if error else [_times(lab[name]) for name in names],
                [_times(simulated[name]) for name in names], error=error,
            )
        )  # fmt: skip
    return told


def run_group(trial: GroupTrial, journals: Path) -> Told:
    """One trial of collectives, in the lab and in the simulator."""
    scenario, way = trial.scenario(), trial.way
    folder = journals / f"{way.name.replace(' ', '-').replace(',', '')}-{trial.repeat}"
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.jsonl"):
        old.unlink()
    simulated = [] if way.backend == "gloo" else [_times(job) for job in simulate(scenario).jobs.values()]
    try:
        lab = run_in_lab(
            scenario, limit_s=120 + 4 * trial.estimate_s, backend=way.backend,
            journals=None if way.backend == "gloo" else folder,
        )  # fmt: skip
    except HeadwayError as failure:
        return Told(trial.section, way.name, trial.repeat, simulated=simulated, error=str(failure))
    switched = [] if way.policy == "off" else [_switches(folder / f"{name}.jsonl") for name in lab]
    return Told(trial.section, way.name, trial.repeat, [_times(job) for job in lab.values()], simulated, switched)


def _switches(journal: Path) -> tuple[int, int]:
    """Changes of plan in all, and in the last half of the journal's time."""
    records = list(parse_lines(journal.read_text().splitlines(), where=str(journal)))
    changed = [
        r.t_s for r in records if isinstance(r, DecisionRecord) and r.action != "hold" and r.plan_before != r.plan_after
    ]
    if not records:
        return 0, 0
    middle_s = (records[0].t_s + records[-1].t_s) / 2
    return len(changed), sum(t_s >= middle_s for t_s in changed)


def run_section(name: str, options: Options, out: Path) -> Section:
    """Measure all of it; what failed is said and left out."""
    section = Section(name, asdict(options))
    begun_s = time.monotonic()

    def took(what: str, told: Sequence[Told]) -> None:
        section.told += told
        section.save(out)
        failed = [each.error for each in told if each.error]
        say(f"{time.monotonic() - begun_s:6.0f} s  {name}: {what}" + (f": {failed[0]}" if failed else ""))

    if name in ("ddp", "react"):
        for group in group_trials(name, options):
            if usable(group.way.actuator):
                took(group.way.name, [run_group(group, out / f"{name}-journals")])
        return section
    trials = sender_trials(name, options)
    works = {each: usable(each) for each in dict.fromkeys(trial.way.actuator for trial in trials)}
    for batch in batches([trial for trial in trials if works[trial.way.actuator]], options.at_once):
        what = ", ".join(dict.fromkeys(f"{trial.case.name} {trial.way.name}" for trial in batch))
        took(what, run_batch(batch))
    return section


def read(path: Path) -> Section:
    """What `Section.save` wrote. UsageError for another file."""
    try:
        document = json.loads(path.read_text())
        told = []
        for each in document["trials"]:
            times = {name: [Times(**job) for job in each[name]] for name in ("lab", "simulated")}
            told.append(Told(**{**each, **times, "switches": [tuple(job) for job in each["switches"]]}))
        return Section(document["section"], document["options"], told)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"holds no trials of this script ({error})", where=str(path)) from None


def print_tables(section: Section, out: Path) -> None:
    """To the standard output and to a file."""
    text = "\n\n".join(TABLES[section.name](section.told))
    (out / f"{section.name}.md").write_text(text + "\n")
    print(text + "\n", flush=True)


def main() -> None:
    """The script."""
    parser = argparse.ArgumentParser(
        prog="bench.interleave", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--quick", action="store_true", help="one repeat, 12 iterations")
    parser.add_argument("--only", metavar="SECTION,...", help=f"of {', '.join(SECTIONS)}")
    parser.add_argument("--repeat", type=int, help="of each trial of senders (3); variety has one less")
    parser.add_argument("--iterations", type=int, help="of the main section (40); others in proportion")
    parser.add_argument(
        "--at-once", type=int, default=AT_ONCE, help=f"trials of senders side by side in one lab ({AT_ONCE})"
    )
    parser.add_argument("--replay", action="store_true", help="print the tables of what DIR holds; no lab")
    arguments = parser.parse_args()
    chosen = SECTIONS if arguments.only is None else tuple(arguments.only.split(","))
    unknown = [name for name in chosen if name not in SECTIONS]
    if unknown:
        raise UsageError(f"unknown section {unknown[0]!r}", where="--only", hint=f"known: {', '.join(SECTIONS)}")
    options = Options(
        repeat=arguments.repeat or (1 if arguments.quick else 3),
        iterations=arguments.iterations or (12 if arguments.quick else 40),
        at_once=arguments.at_once,
        quick=arguments.quick,
    )
    if min(options.repeat, options.at_once) < 1 or options.iterations < 8:
        raise UsageError("repeats and trials at once are at least 1, iterations at least 8", where="the options")
    arguments.out.mkdir(parents=True, exist_ok=True)
    if arguments.replay:
        for name in chosen:
            print_tables(read(arguments.out / f"{name}.json"), arguments.out)
        return
    takes = {name: estimate_s(name, options) for name in chosen}
    say(
        "about "
        + ", ".join(f"{name} {math.ceil(s)} s" for name, s in takes.items())
        + f": {sum(takes.values()) / 60:.0f} min"
    )
    failed = False
    for name in chosen:
        section = run_section(name, options, arguments.out)
        print_tables(section, arguments.out)
        failed = failed or any(told.error for told in section.told)
    if failed:
        raise HeadwayError("a trial failed: see above")


if __name__ == "__main__":
    as_script("bench.interleave", main)

"""What trials of `bench.interleave` gave, and the tables of it. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from bench.interleave_cases import (
    ACTUATORS,
    ALONE,
    DOWNLOAD_ALONE,
    DOWNLOAD_BYTES,
    HARM,
    MAIN,
    PERIOD_S,
    PLAIN,
    SHIFTS,
    SINGLE,
    Case,
    LINK_Bps,
    central,
    variety,
)
from headway.bench.markdown import table
from headway.bench.settling import (
    Lap,
    formula_offsets_s,
    from_iteration,
    laps,
    mean,
    offsets_s,
    p99,
    rate_Bps,
    settled,
    spread,
    steps,
)
from headway.interleave.aggressiveness import Aggressiveness

LATER = 10
"""The goal is to be settled by then. What begins later is "late"; in a short run, its second half."""
SHOWN = 12
"""Offsets in a line."""
LEARNT = 2
"""Iterations until bytes per iteration are known."""
NEARLY = 0.95


@dataclass(frozen=True)
class Times:
    """When each iteration of a job began and ended, seconds."""

    begins_s: Sequence[float]
    ends_s: Sequence[float]


@dataclass(frozen=True)
class Told:
    """What one trial gave. Jobs are in order.

    Attributes:
        lab, simulated: jobs' times. Nothing simulated: the simulator knows no such thing.
        switches: of each job's plans, and those in the last half of its time; of jobs that tune.
        error: why there is nothing from the lab.
    """

    case: str
    way: str
    repeat: int
    lab: Sequence[Times] = ()
    simulated: Sequence[Times] = ()
    switches: Sequence[tuple[int, int]] = ()
    error: str = ""


Jobs = Sequence[Sequence[Lap]]


def isolated_s(alone: Sequence[Times]) -> list[float]:
    """Of each job, the median of its iterations but the first, which opens the window."""
    found = []
    for times in alone:
        own = [(lap.begin_s, lap.over) for lap in laps(times.begins_s, 1.0)]
        found.append(statistics.median(over for _, over in (own[1:] or own)))
    return found


def _alone(told: Sequence[Told], case: str, way: str = ALONE.name) -> list[float]:
    """Isolated times in the lab; empty where that trial failed."""
    found = next((each for each in told if each.case == case and each.way == way and each.lab), None)
    return [] if found is None else isolated_s(found.lab)


def _runs(told: Sequence[Told], case: str, way: str) -> list[Told]:
    return [each for each in told if each.case == case and each.way == way and each.lab]


def _ways(told: Sequence[Told], case: str) -> list[str]:
    return list(dict.fromkeys(each.way for each in told if each.case == case and each.way != ALONE.name))


def _laps(times: Sequence[Times], alone_s: Sequence[float]) -> Jobs:
    return [laps(mine.begins_s, s) for mine, s in zip(times, alone_s, strict=False)]


def _late(jobs: Jobs) -> Jobs:
    return [mine[min(LATER, len(mine) // 2) :] for mine in jobs]


def _over(values: Sequence[float], digits: int = 3) -> str:
    """Median and range."""
    known = [value for value in values if value == value]
    if not known:
        return ""
    middle, least, most = spread(known)
    text = f"{middle:.{digits}f}"
    return text if len(known) == 1 else f"{text} ({least:.{digits}f}-{most:.{digits}f})"


def _since_s(case: Case, times: Sequence[Times]) -> float:
    """The last change: an arrival, or the end of a job that leaves."""
    ends_s = [t.ends_s[-1] for s, t in zip(case.senders, times, strict=False) if s.iterations and t.ends_s]
    return max([case.since_s, *ends_s])


def _stay(case: Case, jobs: Jobs) -> Jobs:
    """Those that do not leave."""
    return [mine for sender, mine in zip(case.senders, jobs, strict=False) if not sender.iterations]


def _count(case: Case, times: Sequence[Times], jobs: Jobs) -> tuple[str, str]:
    """Iterations until settled, and the part of the later ones that is undisturbed."""
    found = settled(_stay(case, jobs), since_s=_since_s(case, times))
    return ("never", "") if found is None else (str(found.after), f"{found.kept:.0%}")


def _line(case: Case, told: Sequence[Told], way: str, plain: Mapping[str, float]) -> list[str]:
    """One way to share: everything of the main table."""
    alone_s = _alone(told, case.name)
    runs = _runs(told, case.name, way)
    every = [_laps(run.lab, alone_s) for run in runs]
    late = [_late(jobs) for jobs in every]
    counts = [_count(case, run.lab, jobs) for run, jobs in zip(runs, every, strict=True)]
    means, tails = [mean(jobs) for jobs in every], [p99(jobs) for jobs in every]
    simulated = [_laps(run.simulated, [s.period_s for s in case.senders]) for run in runs]
    sim_counts = [_count(case, run.simulated, jobs)[0] for run, jobs in zip(runs, simulated, strict=True)]
    late_mean = [mean(jobs) for jobs in late]
    gains = ["", ""]
    if plain and means:
        now = {"mean": statistics.median(late_mean), "p99": statistics.median(p99(jobs) for jobs in late)}
        gains = [f"{plain[name] / value:.2f}" if value == value else "" for name, value in now.items()]
    return [
        way, _over(means), _over(tails), _over(late_mean), _over([p99(jobs) for jobs in late]), *gains,
        ", ".join(count for count, _ in counts), ", ".join(kept for _, kept in counts if kept),
        _over([mean(jobs) for jobs in simulated]), ", ".join(dict.fromkeys(sim_counts)),
    ]  # fmt: skip


HEADS = (
    "way", "mean", "p99", "late mean", "late p99", "gain of late mean", "gain of late p99", "settled after",
    "undisturbed since", "simulated mean", "simulated settled",
)  # fmt: skip


def _case(case: Case, told: Sequence[Told]) -> list[str]:
    alone_s = _alone(told, case.name)
    if not alone_s:
        return []
    late = [_late(_laps(run.lab, alone_s)) for run in _runs(told, case.name, PLAIN)]
    plain = {}
    if late:
        plain = {"mean": statistics.median(map(mean, late)), "p99": statistics.median(map(p99, late))}
    planned = central(case)
    text = (
        f"{case.name}: isolated {', '.join(f'{s:.3f} s' for s in alone_s)}; limit of any schedule {planned.limit:.3f}"
    )
    text += f", best with held periods {planned.stretch:.3f}"
    if plain:
        best = {name: value / planned.limit for name, value in plain.items()}
        text += f"; largest possible gain over {PLAIN} {best['mean']:.2f} (p99 {best['p99']:.2f})"
    return [text, table(HEADS, [_line(case, told, way, plain) for way in _ways(told, case.name)])]


def main_tables(told: Sequence[Told]) -> list[str]:
    """Identical jobs: times over the isolated ones, median over repeats and range; gains over plain CUBIC."""
    return [part for case in MAIN for part in _case(case, told)]


def variety_tables(told: Sequence[Told]) -> list[str]:
    """Jobs that are not alike. When one came is read from the simulated run, where it begins on time."""
    names = list(dict.fromkeys(each.case for each in told))
    cases = {case.name: case for case in variety(1)}
    parts = []
    for name in names:
        case = cases[name]
        third = next((t for t in told if t.case == name and t.simulated and t.way == PLAIN), None)
        if case.since_s and third is not None:
            case = Case(name, case.senders, since_s=third.simulated[-1].begins_s[0])
        parts += _case(case, told)
    return parts


def shift_tables(told: Sequence[Told]) -> list[str]:
    """Offsets of the second job, begin of sending, beside the formula and the simulator."""
    alone_s = _alone(told, SHIFTS.name)
    if not alone_s:
        return []
    f, share = Aggressiveness(), SHIFTS.senders[0].share
    period_s = statistics.fmean(alone_s)
    rows, errors = [], []
    for way in _ways(told, SHIFTS.name):
        for run in _runs(told, SHIFTS.name, way):
            measured, simulated = (offsets_s(t[0].begins_s, t[1].begins_s) for t in (run.lab, run.simulated))
            rows.append((f"{way}, {run.repeat + 1}", _thousandths(measured)))
            if way in ACTUATORS:
                told_s = formula_offsets_s(f, measured[LEARNT], SHOWN - LEARNT, period_s=period_s, share=share)
                rows.append((f"formula from iteration {LEARNT}", _thousandths([*measured[:LEARNT], *told_s])))
            if run.repeat == 0:
                rows.append((f"{way}, simulated", _thousandths(simulated)))
            taken = steps(f, measured[LEARNT:], period_s=period_s, share=share)
            acted = [step for step in taken if step.apart_s < NEARLY * share * period_s]
            if acted:
                off = statistics.median(step.measured_s - step.formula_s for step in acted)
                ratio = sum(step.measured_s for step in acted) / sum(step.formula_s for step in acted)
                errors.append((f"{way}, {run.repeat + 1}", str(len(acted)), f"{off * 1e3:+.0f}", f"{ratio:.2f}"))
    return [
        f"{SHIFTS.name}: offset of the second job at each iteration's begin, ms; "
        f"no overlap is {share * period_s * 1e3:.0f}",
        table(("", "ms"), rows),
        f"Shifts from iteration {LEARNT} on while the jobs are less than {NEARLY:.0%} of that apart: "
        "measured less formula, and their sums",
        table(("", "iterations", "median difference, ms", "measured / formula"), errors),
    ]


def _thousandths(offsets: Sequence[float]) -> str:
    return " ".join(f"{offset * 1e3:.0f}" for offset in offsets[:SHOWN])


def _download_Bps(times: Sequence[Times]) -> float:
    """Of the last of these jobs, while all the others go on: in a lab of several trials it outlives its own."""
    *jobs, download = times
    until_s = min((job.ends_s[-1] for job in jobs if job.ends_s), default=math.inf)
    return rate_Bps(DOWNLOAD_BYTES, download.begins_s, download.ends_s, until_s=until_s)


def harm_tables(told: Sequence[Told]) -> list[str]:
    """What a plain download gets beside jobs, and what the jobs get; and a job without a competitor."""
    parts, rows = [], []
    alone_s = _alone(told, HARM.name)
    free = [_download_Bps(run.lab) for run in _runs(told, DOWNLOAD_ALONE.name, ALONE.name)]
    for way in _ways(told, HARM.name) if alone_s else ():
        runs = _runs(told, HARM.name, way)
        jobs = [_laps(run.lab[:2], alone_s) for run in runs]
        rates = [_download_Bps(run.lab) / 1e6 for run in runs]
        model = [_download_Bps(run.simulated) / 1e6 for run in runs]
        late = [_late(each) for each in jobs]
        model_jobs = [mean(_laps(run.simulated[:2], [PERIOD_S] * 2)) for run in runs]
        rows.append(
            [way, _over(rates, 2), _over([rate * 1e6 / LINK_Bps for rate in rates], 2), _over([mean(j) for j in jobs]),
             _over([p99(j) for j in jobs]), _over([mean(j) for j in late]), _over(model, 2), _over(model_jobs)]
        )  # fmt: skip
    if rows:
        alone = f"; alone it gets {free[0] / 1e6:.2f} MB/s" if free else ""
        parts.append(f"{HARM.name}: the download is plain CUBIC; the link carries {LINK_Bps / 1e6:.2f} MB/s{alone}")
        heads = ("jobs", "download, MB/s", "part of the link", "jobs' mean", "p99", "late mean",
                 "simulated download", "simulated mean")  # fmt: skip
        parts.append(table(heads, rows))
    single = _runs(told, SINGLE.name, PLAIN)
    if single:
        base_s = statistics.median(s for run in single for s in isolated_s(run.lab))
        costs = []
        for way in _ways(told, SINGLE.name):
            own = [from_iteration(_laps(run.lab, [base_s]), 1) for run in _runs(told, SINGLE.name, way)]
            costs.append([way, _over([mean(j) for j in own], 4), _over([p99(j) for j in own], 4)])
        parts.append(f"{SINGLE.name}, without a competitor: over {PLAIN} alone ({base_s:.4f} s, median)")
        parts.append(table(("way", "mean", "p99"), costs))
    return parts


def _groups(told: Sequence[Told], references: Mapping[str, str], title: str) -> list[str]:
    """Two jobs of collectives. `references`: way -> the way that holds its isolated time."""
    rows = []
    for run in (each for each in told if each.lab):
        own_s = [statistics.fmean(lap.over for lap in laps(t.begins_s, 1.0)[1:]) for t in run.lab]
        model_s = [statistics.fmean(lap.over for lap in laps(t.begins_s, 1.0)[1:]) for t in run.simulated]
        reference = next((each for each in told if each.way == references.get(run.way) and each.lab), None)
        figures = [""] * 4
        if reference is not None:
            base_s = [statistics.fmean(lap.over for lap in laps(t.begins_s, 1.0)[1:]) for t in reference.lab]
            jobs = _laps(run.lab, base_s)
            late = _late(jobs)
            count = settled(jobs)
            figures = [f"{mean(jobs):.3f}", f"{p99(jobs):.3f}", f"{mean(late):.3f}" if late[0] else "",
                       "never" if count is None else f"{count.after} ({count.kept:.0%})"]  # fmt: skip
        rows.append(
            [run.way, ", ".join(f"{s:.3f}" for s in own_s), *figures, ", ".join(f"{s:.3f}" for s in model_s),
             ", ".join(f"{all_} ({late_})" for all_, late_ in run.switches)]
        )  # fmt: skip
    heads = ("way", "iteration of each job, s", "mean over alone", "p99", "late mean", "settled after",
             "simulated, s", "switches (in the last half)")  # fmt: skip
    return [title, table(heads, rows)]


def ddp_tables(told: Sequence[Told]) -> list[str]:
    """Jobs of collectives on shared hosts."""
    references = {each.way: f"{each.way.partition(',')[0]}, alone" for each in told if not each.way.endswith("alone")}
    return _groups(told, references, "Two jobs that compute and all-reduce 8 MB on the same four hosts of star8")


def react_tables(told: Sequence[Told]) -> list[str]:
    """The same with one host loaded."""
    references = {each.way: "alone, link free" for each in told if each.way != "alone, link free"}
    return _groups(
        told, references, "The same with UDP on half of one host's downlink; times over those alone and free"
    )


TABLES: Mapping[str, Callable[[Sequence[Told]], list[str]]] = {
    "main": main_tables,
    "shifts": shift_tables,
    "variety": variety_tables,
    "harm": harm_tables,
    "ddp": ddp_tables,
    "react": react_tables,
}

"""How well predictions agree with the lab: `python -m bench.agreement --out FILE.json [--quick]`. Needs root.

Every pair of a network and a plan runs in the lab, on the executor that live jobs use, and is predicted by
`collectives.predict` and simulated from the same scenario. All ranks begin together, on free links; a time is from
then until the last rank has its result, and the measured one is the median of the repeats.

Jobs that share links run in the lab as `headway lab run` runs them, and in the simulator; a row is the median time of
one job's iterations without the first, which opens connections.

Which spine a flow takes is chance. In racks the ranks are started anew several times, and times are means: for each
start the links' counters tell how the flows were spread, and of many simulated draws the nearest one is taken.

`--replay FILE` predicts and simulates the pairs of an earlier run anew, without a lab.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from bench.agreement_cases import (
    ALL,
    GRID,
    JOBS,
    MB,
    MODELS,
    QUICK,
    Grid,
    Pair,
    Uneven,
    jobs_scenario,
    pairs_of,
    predicted_s,
    scenario_of,
    simulated_jobs_s,
    simulated_s,
    steady_s,
    uneven,
)
from bench.grid_script import as_script
from headway.bench.lab_jobs import run_jobs
from headway.bench.lab_site import in_force
from headway.bench.plan_runs import plan_ranks
from headway.collectives.plan_codec import decode, encode
from headway.errors import HeadwayError, UsageError
from headway.lab.lab import Lab
from headway.sim.topologies import PAYLOAD_SHARE

TOLD = ("predicted", "ideal", "lab")
"""By `collectives.predict`; simulated as fluids; simulated with what the lab adds."""
WARM_UP = 2
REPEATS = 7
STARTS = 6
"""How often the ranks are started anew where chance picks the ways."""
JOBS_LIMIT_S = 120.0
BUDGET_S = 7.0
"""A pair stops repeating after this long, but not before three times."""


@dataclass(frozen=True)
class Row:
    """One pair's times, seconds.

    Attributes:
        scenario, plan, size_bytes: which pair. trees: the plan, encoded.
        job: which of the scenario's jobs; then `plan` is the family and `trees` is empty. Else empty.
        times_s: measured, each repeat.
        predicted_s: by the model, which knows one job only.
        ideal_s, lab_s: simulated as fluids, and with what the lab adds (`headway sim --realism`).
        spreads: of each repeat, where chance picked the ways.
    """

    scenario: str
    job: str
    plan: str
    size_bytes: int
    trees: str
    times_s: Sequence[float]
    predicted_s: float | None = None
    ideal_s: float | None = None
    lab_s: float | None = None
    spreads: Sequence[Uneven] = ()

    @property
    def measured_s(self) -> float:
        """Median of the repeats; the mean where each was another draw."""
        return statistics.fmean(self.times_s) if self.spreads else statistics.median(self.times_s)

    @property
    def spread(self) -> float:
        """Half the distance between the quartiles, over the median."""
        quarters = statistics.quantiles(self.times_s, n=4, method="inclusive")
        return (quarters[2] - quarters[0]) / 2 / self.measured_s

    def error(self, by: str) -> float | None:
        """What one of `TOLD` says over measured, less 1."""
        told = {"predicted": self.predicted_s, "ideal": self.ideal_s, "lab": self.lab_s}[by]
        return None if told is None else told / self.measured_s - 1


Times = tuple[list[float], list[Uneven]]
"""Seconds of each repeat of a pair, and where chance picks the ways how its flows were spread."""


def timed(lab: Lab, pairs: Sequence[Pair], *, quick: bool) -> list[Times]:
    """Each pair's repeats, one right after the other: TCP forgets what a path can carry when it pauses."""
    by_chance = pairs[0].by_chance
    starts, warm_up, repeats = (STARTS, 1, 1) if by_chance else (1, WARM_UP, REPEATS)
    if quick:
        starts, repeats = min(starts, 2), min(repeats, 3)
    told: list[Times] = [([], []) for _ in pairs]
    with in_force(lab, pairs[0].scenario.events):
        for _ in range(starts):
            with plan_ranks(lab) as ranks:
                for pair, (times_s, spreads) in zip(pairs, told, strict=True):
                    before = _carried_bytes(lab)
                    for turn in range(warm_up + repeats):
                        if turn > warm_up + 2 and sum(times_s) > BUDGET_S:
                            break
                        taken_s = ranks.time_s(pair.plan, ALL, pair.size_bytes, pair.chunk_bytes)
                        if turn >= warm_up:
                            times_s.append(taken_s)
                    if by_chance:
                        after = _carried_bytes(lab)
                        whole = {name: after[name] - before[name] for name in after}
                        spreads.append({name: each / (warm_up + repeats) for name, each in uneven(whole).items()})
    return told


def _carried_bytes(lab: Lab) -> dict[str, float]:
    """Payload of each link so far, about."""
    return {str(link): counters.bytes * PAYLOAD_SHARE for link, counters in lab.counters().items()}


def rows_of(name: str, grid: Grid, *, quick: bool) -> list[Row]:
    """Measure and predict all pairs of one scenario, in one lab."""
    pairs = list(pairs_of(name, grid))
    with Lab.up(pairs[0].scenario) as lab:
        told = timed(lab, pairs, quick=quick)
    return [
        _told(Row(name, "", pair.plan_name, pair.size_bytes, encode(pair.plan), times_s, spreads=spreads), pair)
        for pair, (times_s, spreads) in zip(pairs, told, strict=True)
    ]


def _told(row: Row, pair: Pair) -> Row:
    ideal_s, lab_s = (simulated_s(pair, row.spreads, MODELS[name]) for name in ("ideal", "lab"))
    return replace(row, predicted_s=predicted_s(pair), ideal_s=ideal_s, lab_s=lab_s)


def job_rows(name: str) -> list[Row]:
    """Run and simulate jobs of `JOBS`; a row for each that gets far enough."""
    scenario = jobs_scenario(name)
    with Lab.up(scenario) as lab:
        ran = run_jobs(lab, limit_s=JOBS_LIMIT_S)
    if not ran.ended.ok:
        raise HeadwayError(f"{name}: {ran.ended.failure}")
    rows = []
    for job in scenario.jobs:
        times_s = steady_s(ran.jobs[job.name])
        if len(times_s) >= 2:
            size_bytes = max(phase.size_bytes for phase in job.loop)
            rows.append(Row(name, job.name, job.plan or "send", size_bytes, "", times_s))
    return _told_jobs(rows)


def _told_jobs(rows: Sequence[Row]) -> list[Row]:
    """Rows of one scenario's jobs, simulated."""
    ideal, lab = (simulated_jobs_s(jobs_scenario(rows[0].scenario), MODELS[name]) for name in ("ideal", "lab"))
    return [replace(row, ideal_s=ideal.get(row.job), lab_s=lab.get(row.job)) for row in rows]


def replayed(rows: Sequence[Row]) -> Iterator[Row]:
    """The rows with their measured times, predicted and simulated anew."""
    for row in rows:
        if row.job:
            yield from _told_jobs([row])
        else:
            yield _told(row, Pair(scenario_of(row.scenario), row.plan, decode(row.trees), row.size_bytes))


def read(path: Path) -> list[Row]:
    """The rows that `run` wrote. UsageError for another file."""
    try:
        document = json.loads(path.read_text())
        return [Row(**row) for row in document["rows"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"holds no rows of this script ({error})", where=str(path)) from None


def _name(row: Row) -> str:
    return f"{row.job}: {row.plan}" if row.job else row.plan


def line(row: Row) -> str:
    """One row of the table."""
    errors = [row.error(by) for by in TOLD]
    told = " ".join(f"{error:>+9.1%}" if error is not None else f"{'-':>9}" for error in errors)
    name = _name(row)
    millis = row.measured_s * 1e3
    return f"{row.scenario:38} {name:13} {row.size_bytes / MB:5.1f} {millis:9.1f} {row.spread:6.1%} {told}"


HEADER = f"{'scenario':38} {'plan':13} {'MB':>5} {'ms':>9} {'spread':>6} " + " ".join(f"{by:>9}" for by in TOLD)


def summary(rows: Sequence[Row], by: str) -> str:
    """Median and 95th percentile of the errors' sizes, and the worst three pairs."""
    errors = [(abs(error), row) for row in rows if (error := row.error(by)) is not None]
    if not errors:
        return f"{by}: nothing"
    sizes = sorted(size for size, _ in errors)
    p95 = sizes[min(len(sizes) - 1, round(0.95 * (len(sizes) - 1)))]
    worst = sorted(errors, key=lambda pair: -pair[0])[:3]
    told = "; ".join(f"{row.scenario}, {_name(row)}, {row.size_bytes / MB:.0f} MB {size:.1%}" for size, row in worst)
    return f"{by}: {len(sizes)} pairs, |error| median {statistics.median(sizes):.1%}, p95 {p95:.1%}; worst: {told}"


def measured(grid: Grid, jobs: Sequence[str], *, quick: bool) -> Iterator[Row]:
    """All rows, one lab after the other."""
    for name in grid:
        yield from rows_of(name, grid, quick=quick)
    for name in jobs:
        yield from job_rows(name)


def run(rows: Iterator[Row], out: Path, say: Callable[[str], None]) -> None:
    """Print each row as it comes, and a summary; `out` is replaced as a whole after each."""
    out.parent.mkdir(parents=True, exist_ok=True)
    done: list[Row] = []
    say(HEADER)
    for row in rows:
        done.append(row)
        say(line(row))
        draft = out.with_suffix(".draft")
        draft.write_text(json.dumps({"v": 1, "rows": [asdict(each) for each in done]}, indent=1))
        draft.replace(out)
    for by in TOLD:
        say(summary(done, by))


def main() -> None:
    """The script."""
    parser = argparse.ArgumentParser(prog="bench.agreement", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--quick", action="store_true", help="four pairs, in half a minute")
    parser.add_argument("--scenarios", help="only these, with commas between")
    parser.add_argument("--replay", type=Path, help="take the measured times from this file; no lab")
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
    if options.replay is not None:
        rows = replayed([row for row in read(options.replay) if row.scenario in (*grid, *jobs)])
    else:
        rows = measured(grid, jobs, quick=options.quick)
    run(rows, options.out, say=lambda text: print(text, flush=True))
    print(f"{time.monotonic() - begun_s:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    as_script("bench.agreement", main)

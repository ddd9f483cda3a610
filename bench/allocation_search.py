"""How good and how fast the search for shares of GPUs is: `python -m bench.allocation_search`.

Regret: seeded cases (`bench.allocation_cases`) small enough that looking at every plan ends. Where the best plan
carries the demanded rates, regret is the cost of what was found over the best cost, less one; where a search finds no
plan that carries them although there is one, or a smaller common fraction of them, that is counted by itself. Both for
the search of `headway plan make` and for Scepsy's rule.

Seconds: the search alone, on larger cases, against models, GPUs and parts of a GPU.

With --profiles and --aggregates the same for measured or modelled profiles: each workflow alone and all together, on
4, 8 and 16 GPUs, at loads from 0.3 to 1.1 of what can be carried.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from bench.allocation_cases import Case, case, most_common_rates
from headway.errors import UsageError
from headway.serving.allocation.exhaustive import explore_all
from headway.serving.allocation.files import read_aggregates, read_profiles
from headway.serving.allocation.interference import Interference
from headway.serving.allocation.predict import Predictor
from headway.serving.allocation.scepsy import explore_scepsy
from headway.serving.allocation.search import Found, explore, room
from headway.serving.allocation.types import Demand

SMALL = (  # models, GPUs, f, workflows
    (2, 4, 4, 1),
    (3, 4, 4, 1),
    (3, 4, 10, 1),
    (4, 4, 4, 1),
    (4, 8, 4, 1),
    (3, 8, 10, 1),
    (4, 4, 4, 2),
    (4, 8, 4, 2),
)
LARGE = tuple((models, gpus, f) for f in (4, 10) for models in (2, 3, 4, 5, 6) for gpus in (4, 8, 16, 32))
LOADS = (0.3, 0.5, 0.7, 0.8, 0.9, 1.1)
EQUAL = 2e-4
"""Costs and fractions that differ by less are the same: the search proves its best but for 1e-4."""


@dataclass(frozen=True, slots=True)
class Compared:
    """One case, by two or three searches.

    Attributes:
        name: of the case.
        best: cost and fraction of the best plan; `best_exact`: known to be the best, by looking at all or by bounds.
        found, rule: cost, fraction and seconds of the search, and of Scepsy's rule; None: no place for all models.
    """

    name: str
    best: tuple[float, float]
    best_exact: bool
    found: tuple[float, float, float]
    rule: tuple[float, float, float] | None


def compare(name: str, made: Case, *, everything: bool) -> Compared:
    """Runs the searches on one case; `everything`: looks at every plan too, else takes the search for the best."""
    found, seconds = timed(lambda: explore(made.demands, made.predictor, made.there))
    best = explore_all(made.demands, made.predictor, made.there) if everything else found
    try:
        rule, rule_s = timed(lambda: explore_scepsy(made.demands, made.predictor, made.there))
    except UsageError:
        told = None
    else:
        told = (rule.cost, rule.fraction, rule_s)
    return Compared(name, (best.cost, best.fraction), best.exact, (found.cost, found.fraction, seconds), told)


def timed(call: Callable[[], Found]) -> tuple[Found, float]:
    """What it gives and the seconds it takes."""
    started = time.perf_counter()
    found = call()
    return found, time.perf_counter() - started


def cases(models: int, gpus: int, f: int, workflows: int, count: int, load: float | None = None) -> Iterator[Case]:
    """So many that can be made: models that have no place together are left out."""
    seed = made = 0
    while made < count:
        seed += 1
        try:
            yield case(seed, models=models, gpus=gpus, slices_per_gpu=f, workflows=workflows, load=load)
        except UsageError:
            continue
        made += 1


def line(name: str, rows: Sequence[Compared]) -> str:
    """A table's line: regret of the search, then of Scepsy's rule."""
    cells = [f"{name:<34}{len(rows):>5}{sum(row.best[1] >= 1 for row in rows):>6}"]
    for which in (0, 1):
        regrets, less, lost = [], [], 0
        for row in rows:
            got = row.found if which == 0 else row.rule
            if got is None:
                lost += 1
            elif got[1] < row.best[1] * (1 - EQUAL) or got[1] < 1 <= row.best[1]:
                less.append(got[1] / row.best[1])
            elif row.best[1] >= 1:
                regrets.append(max(0.0, got[0] / row.best[0] - 1 - EQUAL))
        cells.append(
            f"{quantile(regrets, 0.5):>9.2%}{quantile(regrets, 0.95):>8.1%}{max(regrets, default=0):>8.1%}"
            f"{sum(each <= 0.03 for each in regrets) / max(1, len(regrets)):>7.0%}{len(less):>6}"
            f"{min(less, default=1.0):>7.2f}{lost:>5}"
        )
    return "".join(cells)


def quantile(values: Sequence[float], part: float) -> float:
    """0 of no values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))] if ordered else 0.0


HEAD = (
    f"{'':<34}{'cases':>5}{'carry':>6}"
    + f"{'regret: p50':>12}{'p95':>5}{'max':>8}{'<=3%':>7}{'less':>6}{'least':>7}{'none':>5}" * 2
)


def regret(count: int) -> list[Compared]:
    """The table of regret."""
    print("regret against looking at every plan: the search | Scepsy's rule")
    print("less: plans with a smaller common fraction of the rates than the best; least: the smallest, over the best's")
    print(HEAD)
    found = []
    for models, gpus, f, workflows in SMALL:
        name = f"{models} models, {gpus} GPUs in 1/{f}, {workflows} workflow{'s' if workflows > 1 else ''}"
        rows = []
        for made in cases(models, gpus, f, workflows, count):
            try:
                rows.append(compare(name, made, everything=True))
            except UsageError:
                continue  # too many plans to look at
        print(line(name, rows), flush=True)
        found += rows
    print(line("all", found))
    return found


def speed(count: int) -> list[Compared]:
    """The table of seconds; regret of Scepsy's rule against what is proved to be best."""
    print("\nseconds of the search: median and most, and how many were proved to be best")
    print(f"{'GPUs':<12}{'f':>4}" + "".join(f"{gpus:>24}" for gpus in (4, 8, 16, 32)))
    found = []
    rows: dict[tuple[int, int, int], list[Compared]] = {}
    for models, gpus, f in LARGE:
        if models > gpus:
            continue
        name = f"{models} models, {gpus} GPUs in 1/{f}"
        rows[models, gpus, f] = [compare(name, made, everything=False) for made in cases(models, gpus, f, 1, count)]
        found += rows[models, gpus, f]
    for f in (4, 10):
        for models in (2, 3, 4, 5, 6):
            cells = []
            for gpus in (4, 8, 16, 32):
                each = rows.get((models, gpus, f), [])
                seconds = [row.found[2] for row in each]
                exact = sum(row.best_exact for row in each)
                cells.append(
                    f"{statistics.median(seconds):>9.3f}{max(seconds):>8.3f}{exact:>4}/{len(each)}"
                    if each
                    else f"{'-':>24}"
                )
            print(f"{models} models    {f:>4}" + "".join(f"{cell:>24}" for cell in cells), flush=True)
    print("\nScepsy's rule against what is proved to be best, on the same cases")
    print(HEAD)
    for models in (2, 3, 4, 5, 6):
        print(line(f"{models} models", [row for key, each in rows.items() if key[0] == models for row in each]))
    return found


def profiled(profiles: Path, aggregates: Path) -> list[Compared]:
    """The same tables for profiles from files."""
    f, known = read_profiles(profiles)
    workflows = read_aggregates(aggregates)
    predictor = Predictor(known, interference=Interference())
    groups = [[each] for each in workflows] + ([workflows] if len(workflows) > 1 else [])
    print(f"\n{profiles}: regret of the search | of Scepsy's rule; against every plan where that ends")
    print(HEAD)
    found = []
    for group in groups:
        for gpus in (4, 8, 16):
            name = f"{'+'.join(each.workflow for each in group)}, {gpus} GPUs"[:34]
            there = room(gpus, f, min(8, gpus))
            try:
                demands = [Demand(each, most_common_rates(predictor, [Demand(each, 1.0)], there)) for each in group]
                most = most_common_rates(predictor, demands, there)
            except UsageError as error:
                print(f"{name:<34} {error}")
                continue
            rows = []
            for load in LOADS:
                at = tuple(replace(demand, rate=demand.rate * most * load) for demand in demands)
                made = Case(at, predictor, there, load)
                try:
                    rows.append(compare(name, made, everything=True))
                except UsageError:
                    rows.append(compare(name, made, everything=False))
            print(line(name, rows), flush=True)
            found += rows
    return found


def main() -> None:
    """Run, print, and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--cases", type=int, default=100, help="for each line of the first table; a fifth of it for times"
    )
    parser.add_argument("--profiles", type=Path, help="a file of profiles, in place of the seeded cases")
    parser.add_argument("--aggregates", type=Path, help="a file of workflows that call these models")
    parser.add_argument("--out", type=Path, help="write all figures here, as JSON")
    options = parser.parse_args()
    if (options.profiles is None) != (options.aggregates is None):
        parser.error("--profiles and --aggregates go together")
    if options.profiles is not None:
        found = profiled(options.profiles, options.aggregates)
    else:
        found = regret(options.cases) + speed(max(1, options.cases // 5))
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps([asdict(row) for row in found], indent=1) + "\n")


if __name__ == "__main__":
    main()

"""The routing study, simulated: `python -m bench.routing_study --out DIR [--only rates|cells|shifts|traces]`.

Every policy on 8 equal and on 7 + 8 unequal replicas, under seven loads, each at three shares of the rate that the
fleet can just serve: mean and p99 TTFT after a warm-up, and the regret against the best hand-written policy of the
cell. Then shifts: sharing from 5 to 50 %, the rate doubled, a replica slowed three times, one killed. With `--trace`,
Mooncake's own traces too. A run goes on where an earlier one with the same code stopped.
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from pydantic import JsonValue
from rich.console import Console

from bench.grid_script import as_script
from bench.routing_cell import find_saturation, run_cell, run_shift
from headway.bench.pool import run_cells
from headway.bench.progress import Shown
from headway.errors import HeadwayError
from headway.serving.policies import NAMES
from headway.sim.studies.cells import Cell, Row

FLEETS = ("8xA30", "7xA30+8xV100")
LOADS = ("conversation", "toolagent", "sharing-10", "sharing-30", "sharing-50", "sharing-70", "mixed")
SHARES = (0.6, 0.8, 0.95)
"""Of the rate that the fleet just serves under LMetric."""
POLICIES = tuple(name for name in NAMES if name != "learned")
SHIFTS = ("sharing 5 to 50 %", "rate x2", "slow", "kill")
SHIFT_POLICIES = ("least-requests", "prefix-and-load", "lmetric", "least-work", "learned")
REQUESTS = 6000
WARM_UP = 3000
SHIFT_REQUESTS = 12_000
BASE = "prefix-and-load"


def rate_cells(fleets: Sequence[str], loads: Sequence[str], seed: int) -> list[Cell]:
    """One cell for each fleet and load: the rate that it just serves."""
    return [
        Cell({"fleet": fleet, "load": load}, {"fleet": fleet, "load": load, "seed": seed})
        for fleet in fleets
        for load in loads
    ]


def policy_cells(rates: Mapping[tuple[str, str], float], seed: int) -> list[Cell]:
    """The grid, policy by policy."""
    cells = []
    for policy in (*POLICIES, "learned"):
        for (fleet, load), most in rates.items():
            for share in SHARES:
                shown: dict[str, JsonValue] = {
                    "fleet": fleet,
                    "load": load,
                    "share": share,
                    "policy": policy,
                    "seed": seed,
                }
                work: dict[str, JsonValue] = {
                    **shown,
                    "rate": most * share,
                    "requests": REQUESTS,
                    "warm_up": WARM_UP,
                }
                cells.append(Cell(shown, work))
    return cells


def shift_cells(rates: Mapping[tuple[str, str], float], seed: int) -> list[Cell]:
    """Shifts on the equal fleet under `mixed`, and under 5 % sharing that becomes 50 %."""
    cells = []
    for policy in reversed(SHIFT_POLICIES):
        for shift in SHIFTS:
            sharing = shift.startswith("sharing")
            load = "shift-5-50" if sharing else "mixed"
            share = {"rate x2": 0.45, "slow": 0.7, "kill": 0.7}.get(shift, 0.9)
            most = rates["8xA30", "sharing-10" if sharing else "mixed"]
            shown: dict[str, JsonValue] = {"shift": shift, "policy": policy, "seed": seed}
            work: dict[str, JsonValue] = {
                **shown,
                "fleet": "8xA30",
                "load": load,
                "rate": most * share,
                "requests": SHIFT_REQUESTS,
                "step": 2.0 if shift == "rate x2" else None,
            }
            cells.append(Cell(shown, work))
    return cells


def number(row: Row, name: str) -> float:
    """A figure of a row; infinite where it has none."""
    value = row.values.get(name)
    return float(value) if isinstance(value, int | float) else float("inf")


def grid_table(rows: Sequence[Row], figure: str, scale: float = 1000.0) -> str:
    """Markdown: one line per cell, one column per policy; the best hand-written one in bold."""
    cells: dict[tuple[str, str, str], dict[str, float]] = {}
    for row in rows:
        at = row.parameters
        cells.setdefault((str(at["fleet"]), str(at["load"]), str(at["share"])), {})[str(at["policy"])] = number(
            row, figure
        )
    lines = ["| fleet | load | of saturation | " + " | ".join((*POLICIES, "learned")) + " |"]
    lines.append("| --- | --- | ---: |" + " ---: |" * (len(POLICIES) + 1))
    for (fleet, load, share), by_policy in cells.items():
        best = min(by_policy.get(policy, float("inf")) for policy in POLICIES)
        shown = []
        for policy in (*POLICIES, "learned"):
            value = by_policy.get(policy, float("inf"))
            text = f"{value * scale:.0f}"
            shown.append(f"**{text}**" if value == best and policy != "learned" else text)
        lines.append(f"| {fleet} | {load} | {share} | " + " | ".join(shown) + " |")
    return "\n".join(lines)


def regrets(rows: Sequence[Row], figure: str) -> dict[str, list[float]]:
    """For each policy, its figure over that of the best hand-written policy, cell by cell."""
    cells: dict[tuple[str, str, str], dict[str, float]] = {}
    for row in rows:
        at = row.parameters
        cells.setdefault((str(at["fleet"]), str(at["load"]), str(at["share"])), {})[str(at["policy"])] = number(
            row, figure
        )
    ratios: dict[str, list[float]] = {policy: [] for policy in (*POLICIES, "learned")}
    for by_policy in cells.values():
        best = min(value for policy, value in by_policy.items() if policy in POLICIES)
        for policy in ratios:
            ratios[policy].append(by_policy.get(policy, float("inf")) / best)
    return ratios


def regret_table(rows: Sequence[Row]) -> str:
    """Markdown: per policy the regret over all cells, and the gain over prefix-and-load."""
    means, tails = regrets(rows, "mean_ttft_s"), regrets(rows, "p99_ttft_s")
    lines = [
        "| policy | mean TTFT / best heuristic: mean | worst | within 5 % | p99 / best: mean | worst | "
        f"{BASE} / it, mean TTFT: mean | geometric mean | p99: mean |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for policy in (*POLICIES, "learned"):
        mean, tail = means[policy], tails[policy]
        gains = [base / own for base, own in zip(means[BASE], mean, strict=True)]
        tail_gains = [base / own for base, own in zip(tails[BASE], tail, strict=True)]
        within = sum(1 for it in mean if it <= 1.05)
        lines.append(
            f"| {policy} | {statistics.fmean(mean):.2f} | {max(mean):.2f} | {within} of {len(mean)} | "
            f"{statistics.fmean(tail):.2f} | {max(tail):.2f} | {statistics.fmean(gains):.2f} | "
            f"{statistics.geometric_mean(gains):.2f} | {statistics.fmean(tail_gains):.2f} |"
        )
    return "\n".join(lines)


def shift_table(rows: Sequence[Row]) -> str:
    """Markdown: TTFT before and after a shift, and how long until it is good again."""
    lines = [
        "| shift | policy | before, ms | worst window, ms | settles at, ms | mean after, ms | "
        "requests until good | s until good | failed |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in sorted(rows, key=lambda it: SHIFTS.index(str(it.parameters["shift"]))):
        at = row.parameters
        figures = [number(row, name) * 1000 for name in ("before_s", "worst_s", "settled_s", "after_s")]
        lines.append(
            f"| {at['shift']} | {at['policy']} | "
            + " | ".join(f"{figure:.0f}" for figure in figures)
            + f" | {number(row, 'requests_until_good'):.0f} | {number(row, 'seconds_until_good'):.0f} | "
            f"{number(row, 'failed'):.0f} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Parse, run, print."""
    parser = argparse.ArgumentParser(prog="python -m bench.routing_study", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder of the rows")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--fleets", default=",".join(FLEETS))
    parser.add_argument("--loads", default=",".join(LOADS))
    parser.add_argument("--trace", type=Path, action="append", default=[], help="a Mooncake trace, as one more load")
    parser.add_argument("--only", choices=("cells", "shifts"), help="leave out the other part")
    asked = parser.parse_args()
    loads = [*asked.loads.split(","), *(str(path) for path in asked.trace)]
    console = Console(stderr=True)

    def run(
        part: str, cells: list[Cell], function: Callable[[Mapping[str, JsonValue]], Mapping[str, JsonValue]]
    ) -> list[Row]:
        rows = run_cells(cells, function, workers=asked.workers, out=asked.out / part, progress=Shown(console))
        failed = [row for row in rows if row.error]
        if failed:
            raise HeadwayError(
                f"{len(failed)} cells failed, the first: {dict(failed[0].parameters)}: {failed[0].error}"
            )
        return rows

    found = run("rates", rate_cells(asked.fleets.split(","), loads, asked.seed), find_saturation)
    rates = {(str(row.parameters["fleet"]), str(row.parameters["load"])): number(row, "rate") for row in found}
    print("| fleet | load | saturation, requests/s |\n| --- | --- | ---: |")
    for (fleet, load), rate in rates.items():
        print(f"| {fleet} | {load} | {rate:.2f} |")
    if asked.only != "shifts":
        rows = run("cells", policy_cells(rates, asked.seed), run_cell)
        print("\nMean TTFT, ms\n\n" + grid_table(rows, "mean_ttft_s"))
        print("\np99 TTFT, ms\n\n" + grid_table(rows, "p99_ttft_s"))
        print("\n" + regret_table(rows))
    if asked.only != "cells":
        print("\n" + shift_table(run("shifts", shift_cells(rates, asked.seed), run_shift)))


if __name__ == "__main__":
    as_script("bench.routing_study", main)

"""REACT's simulation study: `python -m bench.react_study --out DIR [--quick | --only ...]`.

Rows as JSON lines, tables as markdown.

Three patterns (ring and double binary tree all-reduce, recursive-doubling all-gather) on 8 to 1,024 hosts of 10 Gbit/s,
with congestion on hosts and in the fabric and with lost links, for one job and for several that tune on the same
links; policies off (the pattern as it is), react, packing, and one that knows the capacities. A run goes on where an
earlier one with the same code stopped.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pydantic import JsonValue
from rich.console import Console

from bench.grid_script import as_script
from headway.bench.pool import run_cells
from headway.bench.progress import Shown
from headway.cluster.model import Cluster, star
from headway.collectives.candidates import candidates
from headway.collectives.families import double_tree, ring
from headway.collectives.plan import Collective, Plan
from headway.collectives.react import moves
from headway.collectives.step_cost import rounds_time
from headway.errors import UsageError
from headway.sim.studies.cells import Row
from headway.sim.studies.react import Pattern, Policy, Study, run

HOSTS = (8, 16, 32, 64, 128, 256, 512, 1024)
PATTERNS: tuple[Pattern, ...] = ("ring", "double tree", "recursive doubling")
POLICIES: tuple[Policy, ...] = ("off", "react", "packing", "clairvoyant")
ON_HOSTS = (
    "idle", "uplink at 50 %", "uplink at 25 %", "downlink at 50 %", "downlink at 25 %", "one host of 8 at 50 %",
    "uplink lost",
)  # fmt: skip
LARGE = ("idle", "uplink at 50 %", "downlink at 25 %", "one host of 8 at 50 %")
IN_FABRIC = ("racks idle", "rack uplink at 25 %", "spine path lost")
MOST_HOSTS_ROUNDS = 16
MOST_HOSTS_FABRIC = 64
LARGE_FROM = 512
"""From so many hosts on, only the conditions of `LARGE`."""
OPERATIONS_OF_SEVERAL = 150


def one_job(hosts: Sequence[int]) -> list[Study]:
    """Cells with a single job, as a fluid; in rounds too where that is affordable."""
    cells = [
        Study(pattern, n, condition, policy)
        for n in hosts
        for pattern in PATTERNS
        for condition in (LARGE if n >= LARGE_FROM else ON_HOSTS) + (IN_FABRIC if n <= MOST_HOSTS_FABRIC else ())
        for policy in POLICIES
    ]
    in_rounds = [
        replace(cell, execution="rounds")
        for cell in cells
        if cell.hosts <= MOST_HOSTS_ROUNDS and cell.condition in ON_HOSTS
    ]
    return cells + in_rounds


def several_jobs(hosts: Sequence[int], jobs: Sequence[int]) -> list[Study]:
    """Cells with several jobs of one policy on the same hosts."""
    return [
        Study("ring", n, condition, policy, jobs=count, operations=OPERATIONS_OF_SEVERAL)
        for n in hosts
        for count in jobs
        for condition in ("idle", "uplink at 50 %", "one host of 8 at 50 %")
        for policy in POLICIES
    ]


def table(rows: Sequence[Row]) -> str:
    """algbw in MB/s over the untuned pattern, and share of the lower bound, policy by policy."""
    lines = [
        "| pattern | hosts | condition | jobs | execution | off, MB/s | "
        + " | ".join(f"{policy} / off | {policy} / limit" for policy in POLICIES[1:])
        + " |",
        "| --- | ---: | --- | ---: | --- | ---: | " + "---: | " * 6,
    ]
    done = {tuple(row.parameters.values()): row for row in rows}
    for row in rows:
        pattern, hosts, condition, policy, jobs, execution = row.parameters.values()
        if policy != "off":
            continue
        off = _value(row, "algbw_Bps")
        cells = [
            str(pattern),
            str(hosts),
            str(condition),
            str(jobs),
            str(execution),
            f"{off / 1e6:.0f}" if off else "failed",
        ]
        for other in POLICIES[1:]:
            tuned = done.get((pattern, hosts, condition, other, jobs, execution))
            rate = _value(tuned, "algbw_Bps") if tuned is not None else 0.0
            share = _value(tuned, "of_limit") if tuned is not None else 0.0
            cells += [f"{rate / off:.2f}", f"{share:.0%}"] if rate and off else ["", ""]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def switches_table(rows: Sequence[Row]) -> str:
    """Changes of plan, for cells with several jobs: in all, and in the second half."""
    lines = [
        "| hosts | jobs | condition | policy | each, MB/s | all / limit | changes per job | in the second half |",
        "| ---: | ---: | --- | --- | --- | ---: | --- | --- |",
    ]
    for row in rows:
        p, v = row.parameters, row.values
        if p["jobs"] != 1 and not row.error:
            each = ", ".join(f"{float(str(rate)) / 1e6:.0f}" for rate in _listed(v["rates_Bps"]))
            lines.append(
                f"| {p['hosts']} | {p['jobs']} | {p['condition']} | {p['policy']} | {each} | "
                f"{_value(row, 'of_limit'):.0%} | {v['switches']} | {v['late_switches']} |"
            )
    return "\n".join(lines)


def planner_table(hosts: Sequence[int]) -> str:
    """Seconds that `candidates` takes, the median of three."""
    lines = ["| hosts | congested | react, s | packing, s |", "| ---: | --- | ---: | ---: |"]
    for n in hosts:
        for name, bad in (("one uplink", [n // 2]), ("one host of 8", list(range(0, n, 8)))):
            free = star(n, 1.2e9, alpha_s=5e-6)
            slow = free
            for host in bad:
                down = 1.2e9 if name == "one uplink" else 0.6e9
                slow = slow.with_host(host, uplink_Bps=0.6e9, downlink_Bps=down)
            lines.append(
                f"| {n} | {name} | {_seconds(slow, free, 'react'):.3f} | {_seconds(slow, free, 'packing'):.3f} |"
            )
    return "\n".join(lines)


def worked_example() -> str:
    """The paper's worked example, as near as a setting of round numbers comes to it.

    The paper's own setting is not known to us. Of some 100,000 settings (4 to 16 hosts, 10 to 800 Gbit/s, latencies up
    to 10 us, vectors of 64 KiB to 64 MiB, one link at a quarter to nine tenths) none gives both times exactly, and
    16 come within 1.5 % of both. So this is no reproduction, only a setting in which the gain is the same.
    """
    cluster = star(16, 25e9, alpha_s=1e-6)
    slow = cluster.with_host(1, uplink_Bps=12.5e9)
    before = rounds_time(ring(range(16)), slow, Collective.ALL_REDUCE, 4 * 2**20)
    moved = moves(ring(range(16)), slow, cluster, Collective.ALL_REDUCE, 4 * 2**20)
    plan, after = min(moved, key=lambda each: abs(each[1] - 576e-6))
    return (
        "Worked example (paper: 656 us to 576 us, 14 % faster), by the cost in rounds: 16 hosts at 200 Gbit/s, 1 us a "
        f"hop, 4 MiB, one uplink at half: ring {before * 1e6:.0f} us, {plan.name} {after * 1e6:.0f} us "
        f"({before / after - 1:.0%} faster)."
    )


def _seconds(slow: Cluster, free: Cluster, policy: str) -> float:
    current: Plan = double_tree(range(slow.world_size)) if policy == "react" else ring(range(slow.world_size))
    times_s = []
    for _ in range(3):
        begin_s = time.perf_counter()
        candidates(slow, Collective.ALL_REDUCE, 2**27, policy, current, current, baseline=free)
        times_s.append(time.perf_counter() - begin_s)
    return statistics.median(times_s)


def _listed(values: JsonValue) -> list[JsonValue]:
    return values if isinstance(values, list) else []


def _value(row: Row, name: str) -> float:
    return float(str(row.values.get(name, 0.0)))


def main() -> None:
    """Run what is missing, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder of the rows and of study.md")
    parser.add_argument("--quick", action="store_true", help="up to 32 hosts, 2 jobs")
    parser.add_argument("--most-hosts", type=int, default=HOSTS[-1])
    parser.add_argument("--only", default="", help="cells whose parameters have all of these, e.g. hosts=1024,jobs=1")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    args = parser.parse_args()
    hosts = [n for n in HOSTS if n <= (32 if args.quick else args.most_hosts)]
    studies = one_job(hosts) + several_jobs((8,) if args.quick else (8, 32), (2,) if args.quick else (2, 4, 8))
    cells = [study.cell() for study in studies]
    for wanted in filter(None, args.only.split(",")):
        name, _, value = wanted.partition("=")
        if any(name not in cell.parameters for cell in cells):
            known = ", ".join(cells[0].parameters)
            raise UsageError(f"{name!r} is no parameter", where="--only", hint=f"one of {known}")
        cells = [cell for cell in cells if str(cell.parameters[name]) == value]
    if not cells:
        raise UsageError("no cell is like that", where="--only")
    rows = run_cells(
        cells,
        run,
        workers=args.workers,
        out=args.out,
        progress=Shown(Console(stderr=True)),
    )
    text = "\n\n".join([table(rows), switches_table(rows), planner_table(hosts), worked_example()])
    (args.out / "study.md").write_text(text + "\n")
    print(text)
    failed = [row for row in rows if row.error]
    for row in failed:
        print(f"failed: {dict(row.parameters)}: {row.error}")


if __name__ == "__main__":
    as_script("react_study", main)

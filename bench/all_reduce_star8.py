"""All-reduce on 8 hosts at 200 Mbit/s, one of them loaded by a neighbour: every backend side by side.

    python -m bench.all_reduce_star8 [--conditions idle,udp50-down] [--sizes 4MB,16MB] [--backends gloo,headway]

Prints a markdown table: algbw in MB/s (1e6 bytes per second) of the median iteration, with the range. Each backend
takes its turn in every iteration. Headway's groups first run until their plan rests; what that costs is measured by
`bench.reaction`. Each cell is saved as soon as it is there, and a run with the same --out goes on where it stopped.
The whole takes about half an hour; needs root.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from headway.bench.grid import Grid, run_grid
from headway.bench.markdown import algbw_table
from headway.bench.results import load
from headway.bench.run import new_results
from headway.bench.session import Measurement, parse_backends
from headway.bench.table import line
from headway.cluster.units import parse_bytes, parse_time
from headway.errors import HeadwayError

CONDITIONS = {
    "idle": "star8",
    "udp50-down": "star8-udp50-down",
    "udp50-up": "star8-udp50-up",
    "udp50-both": "star8-udp50-both",
    "udp75-down": "star8-udp75-down",
    "udp75-up": "star8-udp75-up",
    "udp75-both": "star8-udp75-both",
    "tcp-down": "star8-tcp-down",
}
BACKENDS = "gloo,openmpi,mpich,headway:react,headway:packing"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--conditions", default=",".join(CONDITIONS))
    parser.add_argument("--sizes", default="1MB,4MB,16MB,64MB")
    parser.add_argument("--backends", default=BACKENDS)
    parser.add_argument("--iterations", type=int, default=5, help="of each cell at the most")
    parser.add_argument("--budget", default="8s", help="a backend that has spent this on a cell stops")
    parser.add_argument("--settle-size", default="16MB")
    parser.add_argument("--out", type=Path, default=Path("out/bench/star8.json"))
    arguments = parser.parse_args()

    unknown = [name for name in arguments.conditions.split(",") if name not in CONDITIONS]
    if unknown:
        parser.error(f"unknown condition {unknown[0]} (known: {', '.join(CONDITIONS)})")
    backends = parse_backends(arguments.backends)
    grid = Grid(
        base="star8",
        conditions={name: CONDITIONS[name] for name in arguments.conditions.split(",")},
        sizes_bytes=[parse_bytes(text, where="--sizes") for text in arguments.sizes.split(",")],
        backends=backends,
        how=Measurement(
            iterations=arguments.iterations, warmup=0, checks=1, budget_s=parse_time(arguments.budget, where="--budget")
        ),
        settle_size_bytes=parse_bytes(arguments.settle_size, where="--settle-size"),
    )
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    results = load(arguments.out) if arguments.out.exists() else new_results("lab star8, 8 hosts")

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    run_grid(grid, results, arguments.out, say=say, on_row=lambda row: say(line(row)))
    print(algbw_table(results.rows, backends))
    if results.failed:
        raise HeadwayError("a result was wrong or missing: see the table")


if __name__ == "__main__":
    try:
        main()
    except HeadwayError as error:
        sys.exit(f"all_reduce_star8: {error}")

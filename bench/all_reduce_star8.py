"""All-reduce on 8 hosts at 200 Mbit/s, one of them loaded by a neighbour: every backend side by side.

    python -m bench.all_reduce_star8 [--conditions idle,udp50-down] [--sizes 4MB,16MB] [--backends gloo,headway]

Prints a markdown table: algbw in MB/s (1e6 bytes per second) of the median iteration, with the range. Each backend
takes its turn in every iteration. Headway's groups first run until their plan rests; what that costs is measured by
`bench.reaction`. Each cell is saved as soon as it is there, and a run with the same --out goes on where it stopped.
The whole takes about half an hour; needs root.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from bench.grid_script import as_script, chosen, run_and_print
from headway.bench.grid import Grid
from headway.bench.session import Measurement, parse_backends
from headway.cluster.units import parse_bytes, parse_time

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

    grid = Grid(
        base="star8",
        conditions=chosen(arguments.conditions, CONDITIONS),
        sizes_bytes=[parse_bytes(text, where="--sizes") for text in arguments.sizes.split(",")],
        backends=parse_backends(arguments.backends),
        how=Measurement(
            iterations=arguments.iterations, warmup=0, checks=1, budget_s=parse_time(arguments.budget, where="--budget")
        ),
        settle_size_bytes=parse_bytes(arguments.settle_size, where="--settle-size"),
    )
    run_and_print(grid, arguments.out, where="lab star8, 8 hosts")


if __name__ == "__main__":
    as_script("all_reduce_star8", main)

"""All-reduce on two racks of four hosts, with one of the two uplinks of a rack slow: gloo, Headway and the limit.

    python -m bench.rack2x4 [--conditions idle,slow-uplink,udp50-uplink] [--sizes 4MB,16MB,64MB] [--backends ...]

Prints a markdown table as bench.all_reduce_star8 does. Needs root.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from bench.grid_script import as_script, chosen, run_and_print
from headway.bench.grid import Grid
from headway.bench.session import Measurement, parse_backends
from headway.cluster.units import parse_bytes

CONDITIONS = {"idle": "rack2x4", "slow-uplink": "rack2x4-slow-uplink", "udp50-uplink": "rack2x4-udp50-uplink"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--conditions", default=",".join(CONDITIONS))
    parser.add_argument("--sizes", default="4MB,16MB,64MB")
    parser.add_argument("--backends", default="gloo,headway:react,headway:packing")
    parser.add_argument("--iterations", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("out/bench/rack2x4.json"))
    arguments = parser.parse_args()

    grid = Grid(
        base="rack2x4",
        conditions=chosen(arguments.conditions, CONDITIONS),
        sizes_bytes=[parse_bytes(text, where="--sizes") for text in arguments.sizes.split(",")],
        backends=parse_backends(arguments.backends),
        how=Measurement(iterations=arguments.iterations, warmup=0, checks=1, budget_s=15.0),
        settle_size_bytes=16_000_000,
    )
    run_and_print(grid, arguments.out, where="lab rack2x4, 8 hosts in 2 racks")


if __name__ == "__main__":
    as_script("rack2x4", main)

"""All-reduce on two racks of four hosts, with one of the two uplinks of a rack slow: gloo, Headway and the limit.

    python -m bench.rack2x4 [--conditions idle,slow-uplink,udp50-uplink] [--sizes 4MB,16MB,64MB] [--backends ...]

Prints a markdown table as bench.all_reduce_star8 does. Needs root.
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
from headway.cluster.units import parse_bytes
from headway.errors import HeadwayError

CONDITIONS = {"idle": "rack2x4", "slow-uplink": "rack2x4-slow-uplink", "udp50-uplink": "rack2x4-udp50-uplink"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--conditions", default=",".join(CONDITIONS))
    parser.add_argument("--sizes", default="4MB,16MB,64MB")
    parser.add_argument("--backends", default="gloo,headway:react,headway:packing")
    parser.add_argument("--iterations", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("out/bench/rack2x4.json"))
    arguments = parser.parse_args()

    unknown = [name for name in arguments.conditions.split(",") if name not in CONDITIONS]
    if unknown:
        parser.error(f"unknown condition {unknown[0]} (known: {', '.join(CONDITIONS)})")
    backends = parse_backends(arguments.backends)
    grid = Grid(
        base="rack2x4",
        conditions={name: CONDITIONS[name] for name in arguments.conditions.split(",")},
        sizes_bytes=[parse_bytes(text, where="--sizes") for text in arguments.sizes.split(",")],
        backends=backends,
        how=Measurement(iterations=arguments.iterations, warmup=0, checks=1, budget_s=15.0),
        settle_size_bytes=16_000_000,
    )
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    results = load(arguments.out) if arguments.out.exists() else new_results("lab rack2x4, 8 hosts in 2 racks")

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
        sys.exit(f"rack2x4: {error}")

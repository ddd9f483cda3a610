"""DDP training steps per second before, under and after congestion: examples/train.py over gloo and Headway.

    python -m bench.ddp [--backends gloo,headway] [--scenario star8-demo] [--repeats 1]

Prints a markdown table of medians over steps, with quartiles. Needs root.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from headway.bench.markdown import table
from headway.bench.training import Phases, TrainingRun, train, weights_differ
from headway.decide.journal_file import FileJournal
from headway.errors import HeadwayError
from headway.lab.files import load_scenario
from headway.lab.lab import Lab

ROWS = (("before", False), ("under", False), ("under", True), ("after", False), ("after", True))


def cell(times_s: Sequence[float]) -> str:
    """Steps per second of the median step, and between the quartiles."""
    rates = sorted(1 / time_s for time_s in times_s)
    if len(rates) < 4:
        return f"{statistics.median(rates):.2f}"
    low, _, high = statistics.quantiles(rates, n=4)
    return f"{statistics.median(rates):.2f} ({low:.2f}-{high:.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backends", default="gloo,headway:packing")
    parser.add_argument("--scenario", default="star8-demo", help="its first event is the neighbour")
    parser.add_argument("--before", type=int, default=20)
    parser.add_argument("--under", type=int, default=40)
    parser.add_argument("--after", type=int, default=40)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("out/bench/ddp"))
    arguments = parser.parse_args()

    backends = arguments.backends.split(",")
    scenario = load_scenario(arguments.scenario)
    phases = Phases(arguments.before, arguments.under, arguments.after)
    runs: dict[str, list[TrainingRun]] = {backend: [] for backend in backends}
    with Lab.up(scenario) as lab:
        for repeat in range(arguments.repeats):
            folder = arguments.out / str(repeat)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "events.jsonl").unlink(missing_ok=True)
            events = FileJournal(folder / "events.jsonl")
            for backend in backends:
                print(f"repeat {repeat}: {backend}", file=sys.stderr, flush=True)
                runs[backend].append(train(lab, backend, scenario.events[0], phases, folder, events=events))
            events.close()
            print(f"weights differ by {weights_differ([r[-1] for r in runs.values()]):.1e}", file=sys.stderr)
    rows = []
    for phase, settled in ROWS:
        label = phase + (", second half" if settled else "")
        speeds = [cell([t for run in runs[b] for t in run.times_s(phase, settled=settled)]) for b in backends]
        shares = [statistics.median(run.limit_percent(phase, settled=settled) for run in runs[b]) for b in backends]
        rows.append([label, *speeds, *(f"{share:.0f} %" for share in shares)])
    print(table(["phase", *(f"{b}, steps/s" for b in backends), *(f"{b} / limit" for b in backends)], rows))


if __name__ == "__main__":
    try:
        main()
    except HeadwayError as error:
        sys.exit(f"ddp: {error}")

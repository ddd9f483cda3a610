"""How fast Headway reacts, how fast it goes back, and how often it changes its mind.

    python -m bench.reaction [--events udp75-down,udp50-down,udp75-up,tcp-down] [--hosts 3,5] [--policy packing]
        [--parts react,onoff,two] [--minutes 3]

react: all-reduces of 8 MB run all the time; a neighbour comes for a while and leaves; from the journal come the
operations and seconds from its coming to the plan that was kept, and from its leaving to the idle plan.
onoff: the neighbour of star8-onoff; switches per hour. two: two jobs that both tune, on the same loaded links.
Needs root.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from headway.bench.data import DATA_TYPES, Cell
from headway.bench.lab_site import LabSite
from headway.bench.markdown import table
from headway.bench.run import SEED
from headway.bench.session import StartedRanks, prepare_part, started
from headway.bench.worker import Reply, RunPart
from headway.collectives.plan import Collective
from headway.decide.journal import EventRecord, Record, parse_lines
from headway.errors import HeadwayError
from headway.lab.files import load_scenario
from headway.lab.lab import Lab
from headway.lab.scenario import Event
from headway.lab.timeline import Player
from headway.report.figures import Reaction, reactions, switches
from headway.report.runs import Run, runs_of

SIZE_BYTES = 8_000_000
IDLE_S, LOADED_S, FREE_S = 15.0, 40.0, 40.0


def say(text: str) -> None:
    """Progress, apart from the tables."""
    print(text, file=sys.stderr, flush=True)


class Job:
    """One group that runs all-reduces without a pause until it is told to stop."""

    def __init__(self, ranks: StartedRanks, backend: str, size: int) -> None:
        self._ranks, self._backend = ranks, backend
        self._cell = Cell(Collective.ALL_REDUCE, SIZE_BYTES // 4, DATA_TYPES["float"], "sum", -1, size, SEED)
        self._stop = threading.Event()
        self._error: HeadwayError | None = None
        self._thread = threading.Thread(target=self._run, name="job")

    def _run(self) -> None:
        try:
            self._check(self._ranks.prepare(prepare_part(self._backend, self._cell)))
            while not self._stop.is_set():
                self._check(self._ranks.run(RunPart(backend=self._backend, iterations=1, check=True)))
        except HeadwayError as error:
            self._error = error

    def _check(self, replies: Sequence[Reply]) -> None:
        for reply in replies:
            if reply.error or reply.wrong:
                raise HeadwayError(f"{self._backend}: {reply}")

    def __enter__(self) -> Job:
        self._thread.start()
        return self

    def __exit__(self, *unused: object) -> None:
        self._stop.set()
        self._thread.join()

    def check(self) -> None:
        """Raise what went wrong in the job, if anything did."""
        if self._error is not None:
            raise self._error


def measured(
    lab: Lab, policy: str, folder: Path, during: Callable[[Callable[[EventRecord], None]], None], *, jobs: int = 1
) -> list[Run]:
    """Run `jobs` jobs while `during` plays with the network, and return what their journals say."""
    events: list[Record] = []
    site = LabSite(lab)
    folders = [folder / f"job{number}" for number in range(jobs)]
    with ExitStack() as stack:
        running = []
        for place in folders:
            place.mkdir(parents=True, exist_ok=True)
            for old in place.glob("*.jsonl"):
                old.unlink()
            backend = f"headway:{policy}"
            ranks = stack.enter_context(started(site, [backend], timeout_s=60, journals=str(place)))
            running.append(stack.enter_context(Job(ranks, backend, site.ranks)))
        during(events.append)
        for job in running:
            job.check()
    journals = []
    for place in folders:
        path = place / f"headway-{policy}.jsonl"
        journals.append((place.name, list(parse_lines(path.read_text().splitlines(), where=str(path)))))
    return runs_of([*journals, ("events", events)])


def come_and_go(lab: Lab, event: Event) -> Callable[[Callable[[EventRecord], None]], None]:
    """Idle, then the event, then idle."""

    def play(written: Callable[[EventRecord], None]) -> None:
        targets = lab.scenario.targets_of(event)
        what = "; ".join(event.what(target) for target in targets)
        links = [f"{direction}link of {target}" for target in targets for direction in event.directions]
        time.sleep(IDLE_S)
        lab.apply(event)
        written(EventRecord(t_s=time.time(), event=event.id, phase="begin", what=what, links=links))
        try:
            time.sleep(LOADED_S)
        finally:
            lab.undo(event)
        written(EventRecord(t_s=time.time(), event=event.id, phase="end", what=what, links=links))
        time.sleep(FREE_S)

    return play


def summary(name: str, found: Sequence[Reaction]) -> list[str]:
    """One line of the table of reactions."""

    def spread(values: Sequence[float | None], digits: int) -> str:
        known = [value for value in values if value is not None]
        if not known:
            return "never"
        text = f"{statistics.median(known):.{digits}f} ({min(known):.{digits}f}-{max(known):.{digits}f})"
        return text if len(known) == len(values) else f"{text}, {len(known)} of {len(values)}"

    right = sum(1 for reaction in found if reaction.blame_right)
    return [
        name,
        spread([r.detection_s for r in found], 1),
        f"{right} of {len(found)}",
        spread([r.better_after_operations for r in found], 0),
        spread([r.reaction_s for r in found], 1),
        spread([r.recovery_s for r in found], 1),
    ]


def part_react(lab: Lab, arguments: argparse.Namespace) -> None:
    """Reaction to one neighbour that comes and goes, on several hosts."""
    rows = []
    for name in arguments.events.split(","):
        (template,) = load_scenario(f"star8-{name}").events
        found = []
        for host in arguments.hosts.split(","):
            event = template.model_copy(update={"target": (f"host{host}",)})
            say(f"{name} at host{host}")
            (run,) = measured(lab, arguments.policy, arguments.out / f"{name}-{host}", come_and_go(lab, event))
            found += reactions(run)
            say(f"  {summary(name, reactions(run))}, {switches(run)} switches")
        rows.append(summary(name, found))
    heads = [
        "neighbour",
        "detected, s",
        "blame right",
        "better plan, operations",
        "better plan, s",
        "idle plan again, s",
    ]
    print(table(heads, rows))


def part_onoff(lab: Lab, arguments: argparse.Namespace) -> None:
    """Switches under load that comes and goes at random."""
    scenario = load_scenario("star8-onoff")

    def play(written: Callable[[EventRecord], None]) -> None:
        player = Player(lab, scenario, written)
        player.start()
        try:
            time.sleep(60 * arguments.minutes)
        finally:
            player.stop()

    (run,) = measured(lab, arguments.policy, arguments.out / "onoff", play)
    print(table(["on-off load", "minutes", "switches", "per hour"], [_rate("star8-onoff", run)]))


def part_two(lab: Lab, arguments: argparse.Namespace) -> None:
    """Switches of two jobs that both tune."""
    (event,) = load_scenario("star8-udp75-down").events

    def play(written: Callable[[EventRecord], None]) -> None:
        time.sleep(IDLE_S)
        lab.apply(event)
        try:
            time.sleep(60 * arguments.minutes)
        finally:
            lab.undo(event)

    runs = measured(lab, arguments.policy, arguments.out / "two", play, jobs=2)
    print(table(["two tuning jobs", "minutes", "switches", "per hour"], [_rate(run.label, run) for run in runs]))


def _rate(name: str, run: Run) -> list[str]:
    changes = switches(run)
    return [name, f"{run.end_s / 60:.1f}", str(changes), f"{changes / run.end_s * 3600:.0f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", default="udp75-down,udp50-down,udp75-up,tcp-down")
    parser.add_argument("--hosts", default="3,5,0")
    parser.add_argument("--policy", default="packing", choices=("packing", "react"))
    parser.add_argument("--parts", default="react,onoff,two")
    parser.add_argument("--minutes", type=float, default=3.0, help="of onoff and of two")
    parser.add_argument("--out", type=Path, default=Path("out/bench/reaction"))
    arguments = parser.parse_args()
    parts = {"react": part_react, "onoff": part_onoff, "two": part_two}
    with Lab.up(load_scenario("star8")) as lab:
        lab.warm_up()
        for name in arguments.parts.split(","):
            if name not in parts:
                parser.error(f"unknown part {name}")
            parts[name](lab, arguments)
            print()


if __name__ == "__main__":
    try:
        with suppress(KeyboardInterrupt):
            main()
    except HeadwayError as error:
        sys.exit(f"reaction: {error}")

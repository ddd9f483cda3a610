"""What `headway lab run` does: a command or a scenario's jobs in a lab, with the events played beside them."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from headway.bench.job_measures import sentence, to_json
from headway.bench.lab_jobs import check_jobs, headlines, run_jobs
from headway.cli.journals import write_text
from headway.cluster.units import format_rate, format_time
from headway.decide.journal import EventRecord, to_line
from headway.errors import UsageError
from headway.lab.lab import Lab
from headway.lab.ranks import RunResult
from headway.lab.scenario import Scenario
from headway.lab.signals import Deferred
from headway.lab.timeline import Player


@dataclass(frozen=True)
class Hooks:
    """What runs beside the work.

    Attributes:
        on_line, on_tick, limit_s: as in `Lab.run_processes`.
        on_zero: to be called when the work begins.
    """

    on_line: Callable[[str, str], None]
    on_tick: Callable[[], None]
    on_zero: Callable[[], None]
    limit_s: float | None


class Work(Protocol):
    """What is to be run in a lab."""

    def run(self, lab: Lab, hooks: Hooks) -> RunResult:
        """Run it to its end."""
        ...


@dataclass(frozen=True)
class Command:
    """The same command on every host."""

    argv: list[str]

    def run(self, lab: Lab, hooks: Hooks) -> RunResult:
        """See `Work`; events begin when the ranks are started."""
        hooks.on_zero()
        return lab.run_ranks(self.argv, on_line=hooks.on_line, on_tick=hooks.on_tick, echo=True, limit_s=hooks.limit_s)


class Jobs:
    """The scenario's jobs.

    Args:
        scenario: with jobs.
        backend: of torch.distributed.
        out: file for the times; None: none.
        journals: folder for the jobs' journals; None: none are kept.

    UsageError: they cannot run in a lab, or a path does not serve. Nothing is built by then.
    """

    def __init__(self, scenario: Scenario, backend: str, out: Path | None, journals: Path | None) -> None:
        check_jobs(scenario, backend=backend)
        self._backend, self._out, self._journals = backend, out, journals
        if out is not None and not out.parent.is_dir():
            raise UsageError("there is no such folder", where=f"--json: {out.parent}")
        if journals is not None:
            try:
                journals.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise UsageError(f"cannot be made ({error.strerror})", where=f"--journals: {journals}") from None

    def run(self, lab: Lab, hooks: Hooks) -> RunResult:
        """See `Work`; events begin with the jobs' zero of time. Prints a line for each job at the end.

        A line before says who runs where, and which actuator or congestion control its connections have.
        """
        for line in headlines(lab.scenario, backend=self._backend):
            say(line)
        done = run_jobs(
            lab, backend=self._backend, journals=self._journals, limit_s=hooks.limit_s, echo=True,
            on_line=hooks.on_line, on_zero=hooks.on_zero, on_tick=hooks.on_tick,
        )  # fmt: skip
        for job in done.jobs.values():
            print(sentence(job))
        if self._out is not None:
            write_text(self._out, to_json(lab.scenario.name, self._backend, done.jobs))
        return done.ended


def run_in_lab(scenario: Scenario, work: Work, *, journal: Path | None, text: str | None, limit_s: float | None) -> int:
    """Build a lab, run `work` in it, take it down; the exit code.

    Args:
        journal: file for a record of each event's begin and end.
        text: events begin when a rank prints a line with it; None: with the work.
        limit_s: end all after this long.
    """

    def write(record: EventRecord) -> None:
        say(f"event {record.event} {record.phase}s: {record.what}")
        if journal is not None:
            with journal.open("a") as file:
                file.write(to_line(record) + "\n")

    begun = time.monotonic()
    with Deferred() as signals, Lab.up(scenario) as lab:
        signals.check()
        say(f"{headline(scenario)}{_impairments(lab)}; lab {lab.id} up in {format_time(time.monotonic() - begun)}")
        if any(event.type == "load" for event in scenario.events):
            lab.warm_up()
        player = Player(lab, scenario, write)
        waiting = [text] if text is not None else []

        def on_line(_label: str, line: str) -> None:
            if waiting and waiting[0] in line:
                waiting.clear()
                player.start()

        def on_zero() -> None:
            if text is None:
                player.start()

        try:
            result = work.run(lab, Hooks(on_line, player.check, on_zero, limit_s))
        finally:
            player.stop()
    if not result.ok:
        say(f"failed after {format_time(result.duration_s)}: {result.failure}; all others were ended")
        return 1
    if waiting and scenario.events:
        say(f"no line had {text!r} in it, so no event ever began")
    return 0


def headline(scenario: Scenario) -> str:
    """A scenario in one line."""
    access = {entry.access or scenario.access for entry in scenario.host_entries}
    rates = [format_rate(rate) for rates in access for rate in (rates.up, rates.down)]
    rate = rates[0] if len(set(rates)) == 1 else f"{min(rates)} to {max(rates)}"
    racks = f" in {len(scenario.rack_names)} racks" if scenario.racks else ""
    return f"{scenario.name}: {len(scenario.host_names)} hosts{racks}, {rate}, {scenario.congestion_control}"


def _impairments(lab: Lab) -> str:
    return f", delay and loss by {lab.record.impairments}" if any(link.relayed for link in lab.topology.links) else ""


def say(line: str) -> None:
    """A line of the lab's own, beside those of the ranks."""
    sys.stderr.write(f"[lab] {line}\n")
    sys.stderr.flush()

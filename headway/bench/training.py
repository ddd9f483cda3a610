"""Training in a lab while a neighbour comes and goes: the same steps for every backend, each with a journal.

The neighbour comes after a number of steps and leaves after another, so that every backend sees it in the same steps.
The script under test is an ordinary torchrun script; what is known of it is what it prints.
"""

from __future__ import annotations

import re
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import headway
from headway.collectives.limits import lower_bound
from headway.collectives.plan import Collective
from headway.decide.journal import EventRecord, OperationRecord, StartRecord
from headway.decide.journal_file import FileJournal
from headway.errors import HeadwayError, UsageError
from headway.lab.lab import Lab
from headway.lab.scenario import Event

_GRADIENTS = re.compile(r"training on (\d+) ranks over (\S+): (\d+) bytes of gradients")
_STEP = re.compile(r"step (\d+) loss (\S+) time (\S+) s")
STEP_LIMIT_S = 30.0
"""Longer than any step under any load here; a run that exceeds it for all its steps together has hung."""


@dataclass(frozen=True)
class Phases:
    """How many steps before the neighbour comes, while it is there, and after it has left."""

    before: int
    under: int
    after: int

    @property
    def total(self) -> int:
        """All steps."""
        return self.before + self.under + self.after

    def name(self, step: int) -> str:
        """`before`, `under` or `after`; empty for a step that saw a change, or the first, which pays for start-up."""
        if step in (0, self.before, self.before + self.under):
            return ""
        if step < self.before:
            return "before"
        return "under" if step < self.before + self.under else "after"


@dataclass(frozen=True)
class Step:
    """One step as rank 0 printed it; `ended_s` is the wall clock when its line came."""

    number: int
    loss: float
    time_s: float
    ended_s: float


@dataclass
class TrainingRun:
    """One backend's run.

    Attributes:
        backend: what `--backend` was given; with the policy after a colon for headway.
        phases: when the neighbour was there.
        gradient_bytes: bytes that every step sums over all ranks.
        steps: in order.
        limits_s: no plan sums the gradients faster, in each phase.
        journal: its file of operations and decisions.
        weights: file of the weights at the end.
    """

    backend: str
    phases: Phases
    journal: Path
    weights: Path
    gradient_bytes: int = 0
    steps: list[Step] = field(default_factory=list)
    limits_s: dict[str, float] = field(default_factory=dict)

    def times_s(self, phase: str, *, settled: bool = False) -> list[float]:
        """Times of a phase's steps; of its second half if `settled`."""
        times = [step.time_s for step in self.steps if self.phases.name(step.number) == phase]
        return times[len(times) // 2 :] if settled else times

    def steps_per_s(self, phase: str, *, settled: bool = False) -> float:
        """1 / median step time; not a number when there was no step."""
        times = self.times_s(phase, settled=settled)
        return 1 / statistics.median(times) if times else float("nan")

    def algbw_Bps(self, phase: str, *, settled: bool = False) -> float:
        """Gradient bytes over the median step time, computing included."""
        return self.gradient_bytes * self.steps_per_s(phase, settled=settled)

    def limit_percent(self, phase: str, *, settled: bool = False) -> float:
        """The limit's time over the median step time, in percent."""
        return 100 * self.limits_s.get(phase, float("nan")) * self.steps_per_s(phase, settled=settled)


def default_script() -> Path:
    """examples/train.py of the source tree. UsageError when Headway was installed without it."""
    script = Path(headway.__file__).parents[1] / "examples" / "train.py"
    if not script.is_file():
        raise UsageError("examples/train.py is not there", where=str(script), hint="run from a source tree")
    return script


def train(
    lab: Lab,
    backend: str,
    event: Event,
    phases: Phases,
    folder: Path,
    *,
    script: Path | None = None,
    events: FileJournal,
    on_step: Callable[[TrainingRun, Step], None] = lambda run, step: None,
    on_change: Callable[[TrainingRun, str], None] = lambda run, what: None,
) -> TrainingRun:
    """Train once on every host of `lab` and return what was seen.

    Args:
        backend: `gloo`, `headway` or `headway:POLICY`.
        event: the neighbour.
        folder: gets the journal `BACKEND.jsonl` and the weights `BACKEND.pt`.
        events: the journal of the network's events.
        on_step: called after each step.
        on_change: called with words when the neighbour comes or leaves.

    Raises:
        HeadwayError: training failed; says which host and its last lines.
    """
    name, _, policy = backend.partition(":")
    label = backend.replace(":", "-")
    run = TrainingRun(backend, phases, folder / f"{label}.jsonl", folder / f"{label}.pt")
    run.journal.unlink(missing_ok=True)
    watcher = _Watcher(lab, run, event, events, on_step, on_change)
    environment = {"HEADWAY_JOURNAL": str(run.journal)} if name == "headway" else {}
    if policy:
        environment["HEADWAY_POLICY"] = policy
    lab.warm_up()
    try:
        result = lab.run_ranks(
            [sys.executable, str(script or default_script()), "--backend", name, "--steps", str(phases.total),
             "--save", str(run.weights)],
            env=environment, on_line=watcher.line, limit_s=60 + STEP_LIMIT_S * phases.total,
        )  # fmt: skip
    finally:
        watcher.close()
    if not result.ok:
        raise HeadwayError(f"training over {backend}: {result.failure}: {' | '.join(watcher.tail)}")
    if len(run.steps) != phases.total:
        raise HeadwayError(f"training over {backend}: printed {len(run.steps)} of {phases.total} steps")
    return run


class _Watcher:
    """Reads rank 0's lines, brings and removes the neighbour, and keeps a journal for a backend that has none."""

    def __init__(
        self,
        lab: Lab,
        run: TrainingRun,
        event: Event,
        events: FileJournal,
        on_step: Callable[[TrainingRun, Step], None],
        on_change: Callable[[TrainingRun, str], None],
    ) -> None:
        self._lab, self._run, self._event, self._events = lab, run, event, events
        self._on_step, self._on_change = on_step, on_change
        self._journal = None if run.backend.startswith("headway") else FileJournal(run.journal)
        self._present = False
        self.tail: deque[str] = deque(maxlen=6)

    def line(self, host: str, text: str) -> None:
        """One line of output of one host."""
        text = text.rstrip()
        if host != self._lab.hosts[0].name:
            self.tail.append(f"{host}: {text}")
            return
        opening, step = _GRADIENTS.search(text), _STEP.search(text)
        if opening:
            self._begin(int(opening.group(3)))
        elif step:
            self._step(Step(int(step.group(1)), float(step.group(2)), float(step.group(3)), time.time()))
        else:
            self.tail.append(f"{host}: {text}")

    def _begin(self, gradient_bytes: int) -> None:
        self._run.gradient_bytes = gradient_bytes
        self._set_limit("before")
        if self._journal is not None:
            hosts = [host.name for host in self._lab.hosts]
            self._journal.write(
                StartRecord(t_s=time.time(), world_size=len(hosts), hosts=hosts, policy=self._run.backend, plan="ring")
            )

    def _set_limit(self, phase: str) -> None:
        cluster = self._lab.cluster(with_events=True)
        bound = lower_bound(cluster, Collective.ALL_REDUCE, self._run.gradient_bytes)
        self._run.limits_s[phase] = bound.time_s

    def _step(self, step: Step) -> None:
        self._run.steps.append(step)
        if self._journal is not None:
            name = self._run.phases.name(step.number)
            self._journal.write(
                OperationRecord(
                    t_s=step.ended_s, rank=0, operation=step.number, collective=Collective.ALL_REDUCE.value,
                    size_bytes=self._run.gradient_bytes, plan="ring", duration_s=step.time_s,
                    limit_s=self._run.limits_s.get(name),
                )
            )  # fmt: skip
        self._on_step(self._run, step)
        phases = self._run.phases
        if step.number + 1 == phases.before:
            self._change(come=True)
        elif step.number + 1 == phases.before + phases.under:
            self._change(come=False)

    def _change(self, *, come: bool) -> None:
        if come:
            self._lab.apply(self._event)
        else:
            self._lab.undo(self._event)
        self._present = come
        self._set_limit("under" if come else "after")
        what = "; ".join(self._event.what(target) for target in self._lab.scenario.targets_of(self._event))
        links = [
            f"{direction}link of {target}"
            for target in self._lab.scenario.targets_of(self._event)
            for direction in self._event.directions
        ]
        self._events.write(
            EventRecord(
                t_s=time.time(), event=f"{self._event.id} ({self._run.backend})", phase="begin" if come else "end",
                what=what, links=links,
            )
        )  # fmt: skip
        self._on_change(self._run, what if come else "the neighbour has left")

    def close(self) -> None:
        """Take the neighbour away if it is still there, and close the journal."""
        if self._present:
            self._change(come=False)
        if self._journal is not None:
            self._journal.close()


def weights_differ(runs: Sequence[TrainingRun]) -> float:
    """The largest absolute difference between any weight of the first run and the same one of another."""
    import torch

    states = [torch.load(run.weights, weights_only=True) for run in runs]
    worst = 0.0
    for state in states[1:]:
        for name, tensor in states[0].items():
            worst = max(worst, float((tensor - state[name]).abs().max()))
    return worst

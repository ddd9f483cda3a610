"""The recorded runs of one model: which calls came together, what lay between them, and jobs made of them. Pure."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from headway.serving.engine.types import Job
from headway.serving.workflows.blocks import Copies, check_lengths
from headway.serving.workflows.calls import Call

TOGETHER = 0.1
"""Of a model's mean call: a run's calls that begin within so much time are one burst (1)."""


@dataclass(frozen=True, slots=True)
class Burst:
    """What a run asked a model for at one instant.

    Attributes:
        calls: at least one.
        pause_s: from the end of the run's burst before it to its beginning: tools, other models; 0 for the first.
        took_s: from its beginning to the end of its last call, as recorded.
    """

    calls: tuple[Call, ...]
    pause_s: float
    took_s: float


class Recorded:
    """The calls of one model, by runs.

    Attributes:
        runs: the bursts of each run in order of time.
        bursty: whether any calls came together.

    Args:
        calls: of that model, at least one, of any runs.
        seed: of the names that blocks get in copies.

    Raises:
        UsageError: calls without token counts.
    """

    def __init__(self, calls: Sequence[Call], *, seed: int) -> None:
        check_lengths(calls)
        together_s = TOGETHER * fmean(call.end_s - call.start_s for call in calls)
        runs = defaultdict(list)
        for call in sorted(calls, key=lambda call: (call.start_s, call.id)):
            runs[call.workflow, call.run].append(call)
        self.runs = [_bursts(run, together_s) for run in runs.values()]
        self.bursty = any(len(burst.calls) > 1 for run in self.runs for burst in run)
        self._copies = Copies(runs.values(), seed=seed)

    def begun(self, choose: random.Random, runs: int) -> list[tuple[int, int]]:
        """So many runs as one meets them at any moment: which run and at which of its bursts, long ones more often."""
        which = choose.choices(range(len(self.runs)), weights=[len(it) for it in self.runs], k=runs)
        return [(run, choose.randrange(len(self.runs[run]))) for run in which]

    def job(self, id_: str, call: Call, copy: int) -> Job:
        """A call in the run's copy of that number; what has no answer (embeddings) gets one of one token."""
        return Job(id_, call.input_tokens, max(1, call.output_tokens), self._copies.renamed(call.blocks, copy))


def part(burst: Burst, spread: int, choose: random.Random) -> tuple[Call, ...]:
    """What one of `spread` instances gets of a burst: every so many-th call, from one that is chosen at random."""
    return burst.calls[choose.randrange(spread) :: spread]


def _bursts(calls: Sequence[Call], together_s: float) -> list[Burst]:
    """A run's calls in order of their starts, those together that begin within `together_s` of the first."""
    groups: list[list[Call]] = []
    for call in calls:
        if groups and call.start_s - groups[-1][0].start_s <= together_s:
            groups[-1].append(call)
        else:
            groups.append([call])
    bursts = []
    ended_s = groups[0][0].start_s
    for group in groups:
        begin_s, end_s = group[0].start_s, max(call.end_s for call in group)
        bursts.append(Burst(tuple(group), max(0.0, begin_s - ended_s), end_s - begin_s))
        ended_s = max(ended_s, end_s)
    return bursts

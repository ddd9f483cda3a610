"""Recorded runs of a workflow as its program: which call waited for which is read off their times. Pure.

A recording says when calls began and ended, not why. What it shows for sure is a quiet moment: when no call of a run is
in flight, all that comes later has waited for all that came before, or might as well have. Hence

1. a run is cut where it is quiet, into parts that come one after the other, each some time (a tool's, the
   application's) after the last call of the one before has ended: rounds, barriers and sequences come out exactly;
2. within a part, a call that begins when others of it have ended waits for the one that ended last before it, and for
   that alone: branches side by side, each a sequence, come out as they were;
3. a call of a part that begins before any of it has ended begins so long after the part's begin as it did.

Times between calls are kept, those of calls are left to the engines. What rule 2 gets wrong: a barrier of some branches
while another one goes on (the call after it waits for the slowest recorded one, whichever is the slowest now), and two
branches of which one happens to begin a call just after the other has ended one.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

from headway.errors import UsageError
from headway.serving.prefix import mix
from headway.serving.workflows.blocks import Copies, block_size, check_lengths
from headway.serving.workflows.calls import Call, Run
from headway.serving.workflows.programs.form import All, CallModel, Context, Program, Sleep
from headway.serving.workflows.programs.prompt import Prompt


@dataclass(slots=True)
class Asked:
    """A call, how long it came after what it waited for, and what waited for it.

    Attributes:
        call: as recorded.
        after_s: seconds from the end of the call that it waited for, or from the begin of its part.
        then: the calls that waited for it alone.
    """

    call: Call
    after_s: float
    then: list[Asked] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Part:
    """What comes between two quiet moments.

    Attributes:
        after_s: seconds from the end of the part before, or from the run's begin.
        calls: those that waited for nothing in it, in order of their begins.
    """

    after_s: float
    calls: tuple[Asked, ...]


def parts_of(run: Run) -> list[Part]:
    """A run's parts, in order; see the rules above."""
    parts: list[Part] = []
    quiet_s = run.start_s
    for calls in _between_quiet(run.calls):
        begin_s = calls[0].start_s
        first: list[Asked] = []
        in_flight: list[tuple[float, int, Asked]] = []
        awaited: Asked | None = None
        for number, call in enumerate(calls):
            while in_flight and in_flight[0][0] <= call.start_s:
                awaited = heappop(in_flight)[2]
            asked = Asked(call, call.start_s - (begin_s if awaited is None else awaited.call.end_s))
            (first if awaited is None else awaited.then).append(asked)
            heappush(in_flight, (call.end_s, number, asked))
        parts.append(Part(begin_s - quiet_s, tuple(first)))
        quiet_s = max(call.end_s for call in calls)
    return parts


def _between_quiet(calls: Sequence[Call]) -> Iterator[list[Call]]:
    """Calls, in order of their begins, in groups that are cut where none is in flight."""
    group: list[Call] = []
    end_s = 0.0
    for call in calls:
        if group and call.start_s >= end_s:
            yield group
            group = []
        end_s = max(end_s, call.end_s) if group else call.end_s
        group.append(call)
    if group:
        yield group


class Recorded:
    """Runs of one workflow as they were recorded, then all of them again in a random order, then in another one.

    A run that comes again shares with other runs' prompts what it shared when it was recorded, and has new blocks for
    the rest; within the run prompts go on from one another as they did.

    Args:
        runs: recorded, of one workflow, at least one.
        seed: of the orders.
    """

    def __init__(self, runs: Sequence[Run], *, seed: int = 0) -> None:
        if not runs:
            raise UsageError("no run was recorded", where="runs")
        check_lengths(call for run in runs for call in run.calls)
        self._runs = [parts_of(run) for run in runs]
        self._copies = Copies([run.calls for run in runs], seed=seed)
        self._seed = seed
        self._order: tuple[int, list[int]] = (-1, [])
        self._block_tokens = {
            model: block_size(call for run in runs for call in run.calls if call.model == model)
            for model in sorted({call.model for run in runs for call in run.calls})
        }

    @property
    def block_tokens(self) -> dict[str, int]:
        """Tokens in a block of each model's prompts."""
        return dict(self._block_tokens)

    def __call__(self, context: Context) -> Program:
        """One run."""
        for part in self._runs[self._number(context.run)]:
            if part.after_s > 0:
                yield Sleep(part.after_s)
            yield All([self._branch(asked, context.run) for asked in part.calls])

    def _number(self, run: int) -> int:
        """Which of the recorded runs comes as number `run`: its place in `runs`."""
        turn, at = divmod(run, len(self._runs))
        if turn != self._order[0]:
            order = list(range(len(self._runs)))
            if turn:
                random.Random(mix(mix(self._seed) ^ turn)).shuffle(order)
            self._order = (turn, order)
        return self._order[1][at]

    def _branch(self, asked: Asked, copy: int) -> Program:
        if asked.after_s > 0:
            yield Sleep(asked.after_s)
        call = asked.call
        blocks = self._copies.renamed(call.blocks, copy)
        prompt = Prompt(self._block_tokens[call.model], call.input_tokens, blocks)
        yield CallModel(call.model, prompt, max(1, call.output_tokens))
        if asked.then:
            yield All([self._branch(it, copy) for it in asked.then])

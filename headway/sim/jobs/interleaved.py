"""Flows whose weight follows their job's iteration, as an actuator makes real ones push (`headway.interleave`). Pure.

Each connection (an ordered pair of a job's ranks) has an `IterationTracker` of its own, as in a live job. It hears of
the first byte of every flow, of the last, and of every `STEPS`th part of an iteration in between; so a connection is
plain, weight 1, until its traffic is periodic, and again when it no longer is. F is held over each such part at its
value in the part's middle: it is off by at most slope / (2 * STEPS), and by nothing on average. Two jobs 20 ms apart in
1 s are then off by 0.02 ms one iteration later.

A flow's own weight, and a plan's share of it, are multiplied by F. Costs a solve of the rates for each part: some ten
thousand a second of wall clock, for each connection.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from headway.interleave.aggressiveness import Aggressiveness
from headway.interleave.iterations import IterationTracker
from headway.lab.jobs import Job
from headway.sim.engine.network import Flow, Network
from headway.sim.execution.connections import Pair

STEPS = 256
"""Parts of an iteration's bytes, each with its own F, unless a `Push` says otherwise."""


@dataclass(frozen=True)
class Push:
    """How hard a job's flows push.

    Attributes:
        weight: ratio -> F; the ratio is None while traffic is not periodic.
        known_bytes: ordered pair of ranks -> bytes per iteration, for those that need not be learned.
        steps: parts of an iteration's bytes, each with its own F.
    """

    weight: Callable[[float | None], float]
    known_bytes: Mapping[Pair, int] = field(default_factory=dict)
    steps: int = STEPS


def push_of(job: Job) -> Push | None:
    """What the job's `interleave` asks for; None without one."""
    if job.interleave is None:
        return None
    asked = job.interleave
    return Push(Aggressiveness(slope=asked.slope, intercept=asked.intercept, most=asked.most).weight)


class PushedJob:
    """The connections of one job.

    Args:
        network: that its flows are on.
        push: how hard they push.
        first_link: of the way from one rank to another: what has left over it has been sent.
    """

    def __init__(self, network: Network, push: Push, first_link: Callable[[int, int], int]) -> None:
        self._network = network
        self._push = push
        self._first_link = first_link
        self._connections: dict[Pair, _Connection] = {}

    def flow_started(self, src: int, dst: int, flow: Flow) -> None:
        """A flow from rank `src` to rank `dst` has begun at this instant, with the weight of a plain one.

        In PIECES it is on one link of the way, else on all.
        """
        links = self._network.links_of(flow)
        if not links:
            return
        connection = self._connections.get((src, dst))
        if connection is None:
            known = self._push.known_bytes.get((src, dst))
            connection = self._connections[src, dst] = _Connection(self._network, self._push, known)
        connection.begin(flow, counts=links[0] == self._first_link(src, dst))


class _Connection:
    """One ordered pair of ranks.

    Attributes:
        weights: flows under way, and what they weigh when plain. counted: those whose bytes count.
        done_bytes: of counted flows that have ended.
    """

    def __init__(self, network: Network, push: Push, known_bytes: int | None) -> None:
        self._network = network
        self._weight, self._steps = push.weight, push.steps
        self._known_bytes = known_bytes
        self._tracker = IterationTracker()
        self._weights: dict[Flow, float] = {}
        self._counted: list[Flow] = []
        self._done_bytes = 0.0
        self._part: int | None = None
        self._now = push.weight(None)

    def begin(self, flow: Flow, *, counts: bool) -> None:
        for old in [each for each in self._weights if each.ended]:
            del self._weights[old]
        self._weights[flow] = flow.weight
        if counts and flow.size_bytes > 0:
            total_bytes = self._total_bytes()
            # An iteration begins with its first byte, which leaves now.
            self._tracker.sent(self._network.loop.now_s, round(total_bytes) + 1, idle=not self._counted)
            self._counted.append(flow)
            self._choose(total_bytes)
            self._await_part(flow)
            self._await_end(flow)
        if self._now != 1.0:
            self._network.set_weight(flow, self._weights[flow] * self._now)

    def _total_bytes(self) -> float:
        """Sent by now."""
        for flow in [each for each in self._counted if each.ended]:
            self._counted.remove(flow)
            self._done_bytes += flow.final_bytes
        return self._done_bytes + sum(map(self._network.sent_bytes, self._counted))

    def _look(self) -> None:
        """More bytes have left."""
        total_bytes = self._total_bytes()
        self._tracker.sent(self._network.loop.now_s, round(total_bytes), idle=False)
        self._choose(total_bytes)

    def _ratio(self, total_bytes: float) -> float | None:
        if self._known_bytes is not None:
            return round(total_bytes) % self._known_bytes / self._known_bytes
        return self._tracker.ratio

    def _choose(self, total_bytes: float) -> None:
        """Take the weight of the part that has been reached."""
        ratio = self._ratio(total_bytes)
        part = None if ratio is None else self._part_of(ratio)
        if part == self._part:
            return
        self._part = part
        self._now = self._weight(None if part is None else (part + 0.5) / self._steps)
        for flow, plain in self._weights.items():
            self._network.set_weight(flow, plain * self._now)

    def _part_of(self, ratio: float) -> int:
        return min(self._steps - 1, int(ratio * self._steps))

    def _await_part(self, flow: Flow) -> None:
        """Look again at the next part's first byte; never while there are none."""
        total_bytes = self._total_bytes()
        ratio, whole_bytes = self._ratio(total_bytes), self._known_bytes or self._tracker.iteration_bytes
        if flow.ended or ratio is None or whole_bytes is None:
            return
        left = (self._part_of(ratio) + 1) / self._steps - ratio
        more_bytes = math.ceil(total_bytes + (left if left > 0 else 1 / self._steps) * whole_bytes) - total_bytes

        def reached() -> None:
            self._look()
            self._await_part(flow)

        self._network.on_bytes(flow, self._network.sent_bytes(flow) + max(1.0, more_bytes), reached)

    def _await_end(self, flow: Flow) -> None:
        """Look again at its last byte, also if it is given more to send until then."""

        def rest() -> None:
            if not flow.ended:
                self._await_end(flow)

        def reached() -> None:
            self._look()
            loop = self._network.loop
            if self._network.sent_bytes(flow) < flow.size_bytes - 0.5:
                self._await_end(flow)
            else:
                loop.at(loop.now_s, rest)  # at this instant somebody may still give it more

        self._network.on_bytes(flow, flow.size_bytes, reached)

"""A plan in rounds: in each round a rank sends and receives, and waits for all of that before the next. Pure.

The rounds are those of `collectives.schedule`, as `collectives.rounds` runs them: what a rank sends in a round leaves
when it gets there, whether the receiver has got there or not, and a receive ends when its bytes have come. Recursive
doubling takes REACT's steps (`step_cost`): one with each partner, and no pieces. What a rank sends to another in one
round is one flow: a connection sends one message after the other, and the round waits for all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from headway.collectives.pieces import cut
from headway.collectives.plan import Plan
from headway.collectives.schedule import rounds
from headway.collectives.step_cost import doubling_steps, is_doubling
from headway.sim.engine.network import Flow
from headway.sim.execution.running import Call, Running

KEPT = 32


@dataclass(slots=True)
class _Step:
    """One rank's part in one round.

    Attributes:
        round: number of the round.
        sends: (receiver, bytes). receives: how many ranks it gets something from.
        messages: that it sends and receives.
    """

    round: int
    sends: list[tuple[int, int]]
    receives: int
    messages: int


_kept: dict[tuple[object, ...], tuple[Plan, list[list[_Step]]]] = {}


def _steps(call: Call) -> list[list[_Step]]:
    """Each rank's rounds, those in which it takes part."""
    key = (id(call.plan), call.collective, call.size_bytes, call.chunk_bytes, call.element_bytes)
    kept = _kept.get(key)
    if kept is None:
        if len(_kept) >= KEPT:
            del _kept[next(iter(_kept))]
        kept = _kept[key] = (call.plan, _make_steps(call))
    return kept[1]


def _make_steps(call: Call) -> list[list[_Step]]:
    steps: list[list[_Step]] = [[] for _ in range(call.plan.size)]

    def step_of(rank: int, number: int) -> _Step:
        mine = steps[rank]
        if not mine or mine[-1].round != number:
            mine.append(_Step(number, [], 0, 0))
        return mine[-1]

    for number, transfers in enumerate(_doubling(call) if is_doubling(call.plan) else _scheduled(call)):
        for (src, dst), (size_bytes, messages) in transfers.items():
            sender, receiver = step_of(src, number), step_of(dst, number)
            sender.sends.append((dst, size_bytes))
            sender.messages += messages
            receiver.receives += 1
            receiver.messages += messages
    return steps


_Round = dict[tuple[int, int], tuple[int, int]]
"""(sender, receiver) -> (bytes, messages)."""


def _scheduled(call: Call) -> Iterable[_Round]:
    pieces = cut(call.plan, call.collective, call.size_bytes, call.element_bytes, call.chunk_bytes)
    for transfers in rounds(call.plan, call.collective, pieces.per_tree):
        one: _Round = {}
        for transfer in transfers:
            piece = pieces.numbers[transfer.tree, transfer.piece]
            pair = transfer.src, transfer.dst
            size_bytes, messages = one.get(pair, (0, 0))
            one[pair] = size_bytes + pieces.last[piece] - pieces.first[piece], messages + 1
        yield one


def _doubling(call: Call) -> Iterable[_Round]:
    pieces = cut(call.plan, call.collective, call.size_bytes, call.element_bytes, max(1, call.size_bytes))
    edges, step = doubling_steps(call.plan)
    last = int(step.max(initial=0))
    up: list[_Round] = [{} for _ in range(last + 1)]
    down: list[_Round] = [{} for _ in range(last + 1)]
    for tree, rank, parent, at in zip(
        *(each.tolist() for each in (edges.tree, edges.rank, edges.parent, step)), strict=True
    ):
        if not pieces.per_tree[tree]:
            continue
        piece = pieces.numbers[tree, 0]
        size_bytes = pieces.last[piece] - pieces.first[piece]
        for half, pair, number in ((up, (rank, parent), last - at), (down, (parent, rank), at)):
            before = half[number].get(pair, (0, 0))
            half[number][pair] = before[0] + size_bytes, 1
    halves = [*(up if call.collective.reduces else ()), *(down if call.collective.spreads else ())]
    return [one for one in halves if one]


class RoundRun(Running):
    """One operation in rounds."""

    def __init__(self, call: Call, ready: Sequence[float] | None) -> None:
        super().__init__(call, ready)
        self._steps = _steps(call)
        ranks = range(call.plan.size)
        self._at = [-1] * call.plan.size
        self._waits = [0 for _ in ranks]
        self._arrived: list[dict[int, int]] = [{} for _ in ranks]
        self._flows: dict[Flow, None] = {}
        self._sent_bytes = 0.0

    def weighted_flows(self) -> Iterable[tuple[Flow, float]]:
        """See `Running`."""
        return [(flow, 1.0) for flow in self._flows]

    def sent_bytes(self) -> float:
        """See `Running`."""
        return self._sent_bytes + sum(map(self.call.network.sent_bytes, self._flows))

    def begun(self, ranks: Sequence[int]) -> None:
        """See `Running`."""
        for rank in ranks:
            self._next(rank)

    def _next(self, rank: int) -> None:
        """The rank has done its round."""
        self._at[rank] += 1
        if self._at[rank] == len(self._steps[rank]):
            self.rank_ended(rank, self.loop.now_s)
            return
        step = self._steps[rank][self._at[rank]]
        cpu_s = step.messages * self.call.costs.per_message_s
        if cpu_s > 0:
            self.loop.after(cpu_s, partial(self._post, rank, step))
        else:
            self._post(rank, step)

    def _post(self, rank: int, step: _Step) -> None:
        if self.stopped:
            return
        self._waits[rank] = len(step.sends) + step.receives - self._arrived[rank].pop(step.round, 0)
        for dst, size_bytes in step.sends:
            self._send(rank, dst, size_bytes, step.round)
        if not self._waits[rank]:  # it only receives, and all had come
            self._next(rank)

    def _send(self, src: int, dst: int, size_bytes: int, number: int) -> None:
        def sent() -> None:
            del self._flows[flow]
            self._sent_bytes += size_bytes
            self._one_less(src)

        flow = self.call.flow(
            src, dst, size_bytes, self.weight, on_sent=sent, on_done=partial(self._receive, dst, number)
        )
        self._flows[flow] = None

    def _receive(self, rank: int, number: int) -> None:
        at = self._at[rank]
        steps = self._steps[rank]
        if at >= 0 and at < len(steps) and steps[at].round == number and self._waits[rank]:
            self._one_less(rank)
        else:
            self._arrived[rank][number] = self._arrived[rank].get(number, 0) + 1

    def _one_less(self, rank: int) -> None:
        self._waits[rank] -= 1
        if not self._waits[rank]:
            self._next(rank)

"""The sheet's toy: 1 call to A, then 2 rounds of 4 parallel calls to B with a barrier; servers of slots, first come
first served. It has no tokens; it is there to hold definitions against.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from random import Random

from headway.serving.workflows.calls import Call

ROUNDS: Sequence[tuple[str, int]] = (("A", 1), ("B", 4), ("B", 4))
SLOTS = {"A": 4, "B": 16}


def toy_calls(*, rate: float, runs: int, seed: int, call_s: Callable[[Random], float]) -> list[Call]:
    """All calls of some runs.

    Args:
        rate: runs per second, Poisson.
        runs: how many.
        seed: of arrivals and durations.
        call_s: draws how long a slot works on a call, seconds.
    """
    random = Random(seed)
    events: list[tuple[float, int, int, str]] = []  # (when, order, run, model whose slot comes free; empty: arrives)
    order = 0
    now_s = 0.0
    for run in range(runs):
        now_s += random.expovariate(rate)
        heapq.heappush(events, (now_s, order := order + 1, run, ""))
    free = dict(SLOTS)
    queues: dict[str, deque[tuple[int, float]]] = {model: deque() for model in SLOTS}
    stage = [-1] * runs
    missing = [0] * runs
    asked: dict[int, float] = {}  # by the order of the event that ends the call
    calls: list[Call] = []

    def begin(model: str) -> None:
        nonlocal order
        while free[model] and queues[model]:
            run, asked_s = queues[model].popleft()
            free[model] -= 1
            order += 1
            asked[order] = asked_s
            heapq.heappush(events, (now_s + call_s(random), order, run, model))

    while events:
        now_s, number, run, model = heapq.heappop(events)
        if model:
            free[model] += 1
            calls.append(Call("toy", str(run), str(len(calls)), model, asked.pop(number), now_s, 1, 1))
            missing[run] -= 1
        if not missing[run] and stage[run] + 1 < len(ROUNDS):
            stage[run] += 1
            following, width = ROUNDS[stage[run]]
            missing[run] = width
            queues[following].extend([(run, now_s)] * width)
            begin(following)
        if model:
            begin(model)
    return calls

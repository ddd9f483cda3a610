"""The rate at which a fleet no longer keeps up, to choose the rates of a study by. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headway.errors import UsageError
from headway.serving.policies import build
from headway.serving.policy import Policy
from headway.serving.simulate.load import Load
from headway.serving.simulate.replicas import Replica
from headway.serving.simulate.result import summary
from headway.serving.simulate.run import simulate

UNLOADED_REQUESTS = 50
"""Requests that measure what a TTFT is where nothing waits (count)."""
UNLOADED_GAP_S = 30.0
"""Between those, seconds in the mean: on a fleet, longer than they take."""
PATIENCE = 5.0
"""A fleet keeps up while the mean TTFT is at most so many times that (1). Near saturation TTFT rises so steeply that
the rate hardly depends on it."""
WAITING_PER_REPLICA = 200
"""Requests in flight for each replica from which on it has not kept up, whatever TTFT says (count)."""


def saturation(
    fleet: Sequence[Replica],
    load: Load,
    *,
    policy: Callable[[], Policy] = lambda: build("lmetric"),
    patience: float = PATIENCE,
    within: float = 0.02,
    seed: int = 0,
) -> float:
    """Requests per second at which the load, stretched or pressed in time, is just served; by bisection.

    Some 10 to 15 runs of the load: give it a few thousand requests, and not many more.

    Args:
        fleet: the replicas.
        load: what comes; the first quarter of it is warm-up.
        policy: makes a good heuristic for each run.
        patience: see PATIENCE.
        within: how exactly (1).
        seed: of the runs.
    """
    if len(load.requests) < 4 * UNLOADED_REQUESTS:
        raise UsageError(f"a load of {len(load.requests)} requests is too short to find a rate", where="load")
    alone = load.first(UNLOADED_REQUESTS).scaled(1 / UNLOADED_GAP_S)
    unloaded_s = summary(simulate(fleet, alone, policy(), seed=seed).rows).ttft.mean_s

    def keeps_up(rate: float) -> bool:
        most = WAITING_PER_REPLICA * len(fleet)
        result = simulate(fleet, load.scaled(rate), policy(), seed=seed, most_waiting=most)
        if result.unfinished:
            return False
        return summary(result.rows, warm_up_requests=len(load.requests) // 4).ttft.mean_s <= patience * unloaded_s

    low = high = len(fleet) / unloaded_s  # what prompts alone would allow
    while keeps_up(high):
        low, high = high, 2 * high
    while low == high or not keeps_up(low):
        high, low = low, low / 2
    while high > low * (1 + within):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if keeps_up(middle) else (low, middle)
    return low

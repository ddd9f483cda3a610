"""No schedule of operations, rulings and delays makes two ranks run one operation under different plans."""

from __future__ import annotations

import random
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.collectives.agreement import LARGE_BYTES, EpochClock, Ruling, encode_plans
from headway.collectives.families import direct, ring
from headway.collectives.plan import Collective, Plan, PlanError

RANKS = 3
PLANS: dict[str, Plan | None] = {
    "ring": ring((0, 1, 2)),
    "turned": ring((0, 2, 1)),
    "direct": direct((0.5, 0.25, 0.25)),
    "idle": None,
}


class _Rank:
    """A rank that starts its operations when its clock admits them, and takes rulings when they arrive."""

    def __init__(self, sizes: list[int], first: tuple[float, int]) -> None:
        self.clock = EpochClock(epoch_weight=first[0], lead_operations=first[1])
        self.sizes = sizes
        self.number = 0
        self.ran: list[str] = []
        self.inbox: deque[Ruling] = deque()

    def step(self) -> tuple[int, int] | None:
        """Try to run the next operation; (epoch, first ruled operation) when it ended an epoch."""
        if self.number >= len(self.sizes):
            return None
        admission = self.clock.admit(self.number, self.sizes[self.number])
        if not admission.admitted:
            return None
        plan = self.clock.tuned_plan(Collective.ALL_REDUCE)
        self.ran.append(plan.name if plan else "idle")
        self.number += 1
        if admission.ends_epoch is None:
            return None
        assert self.clock.ruled_from is not None
        return admission.ends_epoch, self.clock.ruled_from


@given(
    sizes=st.lists(st.sampled_from([1, 4096, LARGE_BYTES, 8 << 20]), min_size=1, max_size=60),
    first=st.tuples(st.sampled_from([0.02, 1.0, 3.0]), st.integers(0, 3)),
    choices=st.lists(
        st.tuples(st.sampled_from(sorted(PLANS)), st.sampled_from([0.02, 1.0, 2.5]), st.integers(0, 3)), min_size=60
    ),
    seed=st.integers(0, 2**32),
)
def test_every_rank_runs_every_operation_under_the_same_plan(
    sizes: list[int], first: tuple[float, int], choices: list[tuple[str, float, int]], seed: int
) -> None:
    order = random.Random(seed)
    ranks = [_Rank(sizes, first) for _ in range(RANKS)]
    reported: dict[int, list[int]] = {}
    idle_steps = 0
    while any(rank.number < len(sizes) for rank in ranks):
        rank = order.choice(ranks)
        before = rank.number
        ended = rank.step()
        if ended is not None:
            epoch, ruled_from = ended
            reported.setdefault(epoch, []).append(ruled_from)
            assert len(set(reported[epoch])) == 1, "the ranks cut their epochs differently"
            if len(reported[epoch]) == RANKS:
                name, weight, lead = choices[epoch % len(choices)]
                ruling = Ruling(
                    epoch=epoch,
                    from_operation=ruled_from,
                    plans=encode_plans({Collective.ALL_REDUCE: PLANS[name]}),
                    epoch_weight=weight,
                    lead_operations=lead,
                )
                for each in ranks:
                    each.inbox.append(ruling)
        if rank.inbox and order.random() < 0.3:
            rank.clock.receive(rank.inbox.popleft())
        idle_steps = 0 if rank.number > before else idle_steps + 1
        assert idle_steps < 10_000, "the ranks wait for each other for ever"
    assert all(rank.ran == ranks[0].ran for rank in ranks)


def test_a_ruling_holds_from_the_operation_it_names() -> None:
    clock = EpochClock(epoch_weight=2.0, lead_operations=1)
    assert [clock.admit(n, LARGE_BYTES).ends_epoch for n in range(2)] == [None, 0]
    assert clock.ruled_from == 3
    assert clock.admit(2, LARGE_BYTES).in_epoch is False
    waiting = clock.admit(3, LARGE_BYTES)
    assert (waiting.admitted, waiting.awaited_epoch) == (False, 0)
    plans = encode_plans({Collective.ALL_REDUCE: PLANS["turned"]})
    clock.receive(Ruling(epoch=0, from_operation=3, plans=plans, epoch_weight=2.0, lead_operations=0))
    assert clock.admit(3, LARGE_BYTES).admitted
    assert clock.tuned_plan(Collective.ALL_REDUCE) == PLANS["turned"]
    assert clock.tuned_plan(Collective.ALL_GATHER) is None


def test_a_ruling_for_another_operation_shows_that_the_ranks_disagree() -> None:
    clock = EpochClock(epoch_weight=1.0, lead_operations=0)
    clock.admit(0, LARGE_BYTES)
    clock.receive(Ruling(epoch=0, from_operation=2, plans={}, epoch_weight=1.0, lead_operations=0))
    with pytest.raises(PlanError, match="same collectives in the same order"):
        clock.admit(1, LARGE_BYTES)


def test_small_operations_make_long_epochs() -> None:
    clock = EpochClock(epoch_weight=1.0, lead_operations=0)
    ends = [clock.admit(n, 4096).ends_epoch for n in range(64)]
    assert ends == [None] * 63 + [0]

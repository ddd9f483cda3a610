"""Which plan an operation runs: the idle plan of its size, or the tuned one. Pure.

Every rank holds the same book: it is a function of the cluster's shape, the settings and the rulings received, all of
which are the same everywhere. What a rank measured itself never enters here.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from headway.cluster.model import Cluster
from headway.collectives.agreement import LARGE_BYTES
from headway.collectives.candidates import idle_plan
from headway.collectives.families import direct, double_tree, ring, star
from headway.collectives.plan import Collective, Plan
from headway.collectives.predict import DEFAULT_COSTS, CostModel, predict
from headway.collectives.verify import check
from headway.errors import UsageError

ROOTED = (Collective.BROADCAST, Collective.REDUCE)

PINNABLE = ("ring", "direct", "double-tree", "star")
"""Families that a user can hold on to; the last two carry an all-reduce only."""


@dataclass
class PlanBook:
    """Plans by (collective, size bucket, root), made once each.

    Attributes:
        cluster: hosts and ranks with their nominal capacities, the same on every rank.
        policy: `packing`, `react` or `off`.
        bitwise: only plans whose sums have the same bits whoever is the root.
        pinned: a family that the user holds on to, or empty.
        costs: of messages, for predictions.
    """

    cluster: Cluster
    policy: str
    bitwise: bool
    pinned: str = ""
    costs: CostModel = DEFAULT_COSTS
    _made: dict[tuple[Collective, int, int], Plan] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.pinned and self.pinned not in PINNABLE:
            raise UsageError(f"{self.pinned!r} is no plan", where="HEADWAY_PLAN", hint=f"one of {', '.join(PINNABLE)}")
        if self.bitwise and self.pinned in ("ring", "double-tree"):
            raise UsageError(
                f"{self.pinned!r} adds in another order than the ranks'",
                where="HEADWAY_PLAN",
                hint="with HEADWAY_BITWISE take direct or star",
            )

    def idle(self, collective: Collective, size_bytes: int, root: int = 0) -> Plan:
        """The plan for an uncongested network; a pinned family wins where it can carry the collective."""
        key = (collective, size_bytes.bit_length(), root if collective in ROOTED else 0)
        plan = self._made.get(key)
        if plan is None:
            plan = self._make(collective, size_bytes, root)
            check(plan, collective)
            self._made[key] = plan
        return plan

    def choose(self, collective: Collective, size_bytes: int, root: int, tuned: Plan | None) -> Plan:
        """The tuned plan for a large operation of a collective that has one, else the idle plan."""
        if tuned is not None and size_bytes >= LARGE_BYTES and collective not in ROOTED:
            return tuned
        return self.idle(collective, size_bytes, root)

    def bitwise_cost(self, size_bytes: int) -> float:
        """What bitwise mode costs an undisturbed all-reduce, as predicted: its time over the best plan's, less 1."""
        free = idle_plan(self.cluster, Collective.ALL_REDUCE, size_bytes, self.policy, costs=self.costs)
        ours = self.idle(Collective.ALL_REDUCE, size_bytes)
        times = [
            predict(plan, self.cluster, Collective.ALL_REDUCE, size_bytes, costs=self.costs).time_s
            for plan in (ours, free)
        ]
        return times[0] / times[1] - 1 if times[1] > 0 else 0.0

    def _make(self, collective: Collective, size_bytes: int, root: int) -> Plan:
        ranks = range(self.cluster.world_size)
        if self.pinned == "ring" and collective not in ROOTED:
            return ring(ranks)
        if self.pinned == "direct" and collective not in ROOTED:
            return direct([1.0] * len(ranks))
        if self.pinned == "double-tree" and collective is Collective.ALL_REDUCE:
            return double_tree(ranks)
        if self.pinned == "star" and collective is Collective.ALL_REDUCE:
            return star(len(ranks), 0)
        return idle_plan(
            self.cluster, collective, size_bytes, self.policy, bitwise=self.bitwise, root=root, costs=self.costs
        )

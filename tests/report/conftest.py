"""A made-up journal for tests: 8 ranks, one congested downlink. Its figures are invented and are no result."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from headway.collectives.plan import Plan, Tree
from headway.collectives.plan_codec import encode
from headway.decide.journal import (
    DecisionRecord,
    EventRecord,
    FindingRecord,
    FlowRecord,
    OperationRecord,
    OptionRecord,
    Record,
    StartRecord,
    to_line,
)

RANKS = 8
RATE_BPS = 25e6  # 200 Mbit/s
SIZE_BYTES = 16 * 2**20
SLOW = 3
WALL_S = 1_800_000_000.0
EPOCH = 5  # operations


def chain(order: list[int], share: float) -> Tree:
    parents = [-1] * len(order)
    for above, below in itertools.pairwise(order):
        parents[below] = above
    return Tree(tuple(parents), share)


def ring() -> Plan:
    order = list(range(RANKS))
    return Plan("ring", RANKS, tuple(chain(order[k:] + order[:k], 1 / RANKS) for k in range(RANKS)))


def slow_last() -> Plan:
    healthy = [r for r in range(RANKS) if r != SLOW]
    trees = tuple(chain([*healthy[k:], *healthy[:k], SLOW], 1 / len(healthy)) for k in range(len(healthy)))
    return Plan("chains over 7, host 3 last", RANKS, trees)


class Writer:
    """Plays a run: operations one after the other, an epoch's flows and decision every `EPOCH` operations."""

    def __init__(self, seed: int, start_s: float) -> None:
        self.random = random.Random(seed)
        self.now_s = start_s
        self.records: list[Record] = []
        self.operation = 0
        self.epoch = 0
        self.epoch_began_s = start_s

    def run_epoch(self, plan: Plan, algbw_Bps: float, limit_Bps: float, slow_share: float) -> float:
        durations = []
        for _ in range(EPOCH):
            duration_s = SIZE_BYTES / algbw_Bps * self.random.uniform(0.97, 1.04)
            self.now_s += duration_s
            durations.append(duration_s)
            self.records.append(
                OperationRecord(
                    t_s=self.now_s,
                    rank=0,
                    operation=self.operation,
                    collective="all_reduce",
                    size_bytes=SIZE_BYTES,
                    plan=plan.name,
                    duration_s=duration_s,
                    limit_s=SIZE_BYTES / limit_Bps,
                )
            )
            self.operation += 1
            self.now_s += 0.05
        self._flows(plan, slow_share)
        self.epoch += 1
        return sum(durations) / len(durations)

    def _flows(self, plan: Plan, slow_share: float) -> None:
        moved: dict[tuple[int, int], float] = {}
        for tree in plan.trees:
            for rank, parent in enumerate(tree.parents):
                if parent >= 0:
                    for pair in ((rank, parent), (parent, rank)):
                        moved[pair] = moved.get(pair, 0.0) + tree.share * SIZE_BYTES * EPOCH
        span_s = self.now_s - self.epoch_began_s
        for (src, dst), size in sorted(moved.items()):
            rate_Bps = RATE_BPS * self.random.uniform(0.88, 0.97) * (slow_share if dst == SLOW else 1.0)
            self.records.append(
                FlowRecord(
                    t_s=self.now_s,
                    epoch=self.epoch,
                    src=src,
                    dst=dst,
                    acked_bytes=round(size),
                    network_limited_s=size / rate_Bps,
                    rate_Bps=rate_Bps,
                    rtt_s=0.004 if dst == SLOW and slow_share < 1 else 0.001,
                    retransmits=12 if dst == SLOW and slow_share < 1 else 0,
                    span_s=span_s,
                )
            )
        self.epoch_began_s = self.now_s

    def decide(self, action: str, reason: str, before: Plan, after: Plan, **fields: object) -> None:
        # Validated from a dict, as a reader does it: `action` is a plain string here.
        record = DecisionRecord.model_validate(
            {
                "t_s": self.now_s,
                "epoch": self.epoch,
                "action": action,
                "reason": reason,
                "from_operation": self.operation,
                "plan_before": before.name,
                "plan_after": after.name,
                "plan_trees": encode(after),
                **fields,
            }
        )
        self.records.append(record)

    def event(self, phase: str) -> None:
        self.records.append(
            EventRecord.model_validate(
                {
                    "t_s": self.now_s,
                    "event": "neighbour",
                    "phase": phase,
                    "what": "UDP load of 100 Mbit/s into host 3",
                    "links": [f"downlink of host {SLOW}"],
                }
            )
        )


def finding(capacity_Bps: float) -> FindingRecord:
    return FindingRecord(
        link=f"downlink of host {SLOW}",
        capacity_Bps=capacity_Bps,
        baseline_Bps=RATE_BPS * 0.95,
        pattern="steady",
        samples=40,
    )


def make_records(*, seed: int = 1, tuned: bool = True, start_s: float = WALL_S) -> list[Record]:
    """A run of 90 operations: free, congested, free again. Without `tuned` it keeps its ring, as gloo would."""
    w = Writer(seed, start_s)
    idle, better, worse = ring(), slow_last(), Plan("direct with shares", RANKS, ring().trees)
    w.records.append(
        StartRecord(
            t_s=start_s,
            world_size=RANKS,
            hosts=[f"host {r}" for r in range(RANKS)],
            policy="packing" if tuned else "off",
            settings={"chunk": "256KiB"},
            plan=idle.name,
            plan_trees=encode(idle),
        )
    )
    limits = {"free": 14.3e6, "slow": 12.5e6}
    for _ in range(4):
        measured_s = w.run_epoch(idle, 13.7e6, limits["free"], 1.0)
        if tuned:
            w.decide("hold", "no finding", idle, idle, measured_s=measured_s)
    w.event("begin")
    slow_s = w.run_epoch(idle, 6.7e6, limits["slow"], 0.5)
    bound_s = SIZE_BYTES / limits["slow"]
    if not tuned:
        for _ in range(5):
            w.run_epoch(idle, 6.7e6, limits["slow"], 0.5)
    else:
        common = {"findings": [finding(12.2e6)], "limit_s": bound_s, "reference_s": slow_s}
        options = [
            OptionRecord(plan=better.name, predicted_s=1.37, bottleneck="uplink of host 0"),
            OptionRecord(plan=worse.name, predicted_s=1.36, bottleneck="downlink of host 3"),
            OptionRecord(plan=idle.name, predicted_s=2.42, bottleneck="downlink of host 3"),
        ]
        w.decide("try", "least predicted time", idle, worse, predicted_s=1.36, options=options, **common)
        measured_s = w.run_epoch(worse, 6.4e6, limits["slow"], 0.5)
        w.decide("revert", "slower than before", worse, idle, measured_s=measured_s, **common)
        measured_s = w.run_epoch(idle, 6.7e6, limits["slow"], 0.5)
        options[1] = options[1].model_copy(update={"tabu": True})
        w.decide("try", "next best", idle, better, predicted_s=1.37, options=options, **common)
        measured_s = w.run_epoch(better, 11.8e6, limits["slow"], 0.52)
        w.decide("keep", "at least 5 % better", better, better, measured_s=measured_s, predicted_s=1.37, **common)
        for _ in range(4):
            measured_s = w.run_epoch(better, 11.8e6, limits["slow"], 0.52)
            w.decide("hold", "no better plan", better, better, measured_s=measured_s, **common)
    w.event("end")
    if tuned:
        tuned_s = w.run_epoch(better, 11.9e6, limits["free"], 1.0)
        doubt = {"predicted_s": 1.2, "reference_s": tuned_s}
        w.decide("try", "no congestion is seen any more: is ring good again?", better, idle, **doubt)
        measured_s = w.run_epoch(idle, 13.7e6, limits["free"], 1.0)
        reason = "ring measured at 0.87 of chains: congestion has ended"
        w.decide("restore", reason, idle, idle, measured_s=measured_s, reference_s=tuned_s)
    for _ in range(4):
        measured_s = w.run_epoch(idle, 13.7e6, limits["free"], 1.0)
        if tuned:
            w.decide("hold", "no finding", idle, idle, measured_s=measured_s)
    return w.records


@pytest.fixture
def records() -> list[Record]:
    """The tuned run."""
    return make_records()


@pytest.fixture
def untuned() -> list[Record]:
    """The same congestion without a tuner, an hour earlier."""
    return make_records(seed=2, tuned=False, start_s=WALL_S - 3600)


@pytest.fixture
def write_journal(tmp_path: Path) -> Callable[[str, list[Record]], Path]:
    """Write records as a journal file and return its path."""

    def write(name: str, lines: list[Record]) -> Path:
        path = tmp_path / name
        path.write_text("".join(to_line(record) + "\n" for record in lines))
        return path

    return write

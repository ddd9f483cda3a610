"""A job whose ranks run one collective after the other on a `FakeNetwork`, with a real tuner."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from headway.collectives.plan import Collective, Plan
from headway.collectives.tuner import Tuner
from headway.collectives.verdict import EpochMeasures, OperationTime, Planner, Verdict
from headway.observe.summary import RankSummary, summarise
from tests.fakes.network import FakeNetwork


@dataclass
class TunedJob:
    """Runs operations of one size, epoch by epoch, and obeys the verdicts."""

    network: FakeNetwork
    tuner: Tuner
    planner: Planner
    collective: Collective = Collective.ALL_REDUCE
    size_bytes: int = 8_000_000
    pause_s: float = 0.0
    now_s: float = 0.0
    number: int = 0
    epoch: int = 0
    weight: float = 1.0
    verdicts: list[tuple[float, Verdict]] = field(default_factory=list)
    times: list[tuple[float, float, Plan]] = field(default_factory=list)

    def plan(self) -> Plan:
        """The plan that the next operation runs."""
        return self.tuner.plan(self.collective) or self.planner.idle(self.collective, self.size_bytes)

    def run_epoch(self) -> Verdict:
        """One epoch and its verdict."""
        plan = self.plan()
        spans, samples = [], []
        for _ in range(max(1, round(self.weight))):
            span, new = self.network.run(plan, self.collective, self.size_bytes, number=self.number, start_s=self.now_s)
            spans.append(span)
            samples += new
            self.times.append((span.end_s, span.end_s - span.start_s, plan))
            self.now_s = span.end_s + self.pause_s
            self.number += 1
        summaries = [
            RankSummary.from_json(
                summarise(rank, [sample for sample in samples if sample.src == rank], spans).to_json()
            )
            for rank in range(self.network.cluster.world_size)
        ]
        operations = [
            OperationTime(span.number, self.collective, self.size_bytes, span.end_s - span.start_s) for span in spans
        ]
        verdict = self.tuner.decide(EpochMeasures(self.epoch, self.now_s, operations, summaries))
        self.weight = verdict.epoch_weight
        self.epoch += 1
        self.verdicts.append((self.now_s, verdict))
        return verdict

    def run_until(self, end_s: float) -> None:
        """Epochs until the clock passes `end_s`."""
        while self.now_s < end_s:
            self.run_epoch()

    def actions(self) -> Counter[str]:
        """How often each action was taken."""
        return Counter(verdict.action for _, verdict in self.verdicts)

    def at(self, actions: Sequence[str]) -> list[float]:
        """When any of `actions` was taken."""
        return [when_s for when_s, verdict in self.verdicts if verdict.action in actions]

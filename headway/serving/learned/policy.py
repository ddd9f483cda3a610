"""Routes by the predicted time to first token, and learns from what was measured. Pure."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from headway.decide.journal import ServingRecord
from headway.serving.learned.features import Features
from headway.serving.learned.guard import Arm, Guard, GuardRules
from headway.serving.learned.hash_filter import HashFilter
from headway.serving.learned.options import LearnedOptions
from headway.serving.learned.pools import Pools
from headway.serving.learned.scorer import Scorer, Vector
from headway.serving.learned.trainer import InlineTrainer, Job, Result, Trainer
from headway.serving.policy import Candidate, Choice, Policy
from headway.serving.request import End, Outcome, Request

MOST_PENDING = 100_000
"""Requests without a first token that are remembered: the oldest are forgotten, as those that were never sent must be."""


@dataclass(frozen=True, slots=True)
class _Pending:
    row: Vector
    input_tokens: int
    predicted_s: float | None
    arm: Arm | None


class LearnedPolicy:
    """The replica with the least predicted TTFT (Lodestar, arXiv 2606.00946)."""

    name = "learned"

    def __init__(
        self,
        heuristic: Policy,
        trainer: Trainer,
        *,
        seed: int,
        options: LearnedOptions | None = None,
    ) -> None:
        self._heuristic, self._trainer, self._options = heuristic, trainer, options or LearnedOptions()
        self._random = random.Random(seed)
        self._seed = seed
        self._features = Features()
        self._pools = Pools(fresh=self._options.fresh, replay=self._options.replay, seed=seed)
        self._filter = HashFilter(saturation=self._options.saturation)
        self._guard = Guard(GuardRules(control_share=self._options.control_share))
        self._scorer: Scorer | None = None
        self._pending: dict[str, _Pending] = {}
        self._new = 0
        self._rounds = 0
        self._offered = 0
        self._records: list[ServingRecord] = []

    def choose(self, request: Request, candidates: Sequence[Candidate], now_s: float) -> Choice:
        """Who answers, and why."""
        self._swap(now_s)
        heuristic = self._heuristic.choose(request, candidates, now_s)
        rows = self._features.rows(request, candidates)
        choice, arm = self._decide(request, candidates, rows, heuristic)
        at = next(i for i, c in enumerate(candidates) if c.name == choice.replica)
        self._pending.pop(request.id, None)
        self._pending[request.id] = _Pending(rows[at], request.input_tokens, choice.predicted_ttft_s, arm)
        if len(self._pending) > MOST_PENDING:
            del self._pending[next(iter(self._pending))]
        return choice

    def _decide(
        self, request: Request, candidates: Sequence[Candidate], rows: Vector, heuristic: Choice
    ) -> tuple[Choice, Arm | None]:
        scorer = self._scorer
        if scorer is None:
            have = len(self._pools)
            return _fallen(heuristic, f"learned has {have} of {self._options.least_samples} samples"), None
        column = scorer.outside(rows, self._options.range_tolerance)
        if column is not None:
            return _fallen(heuristic, f"{self._features.name(column)} outside what was learnt"), None
        predicted_s = scorer.predict_s(rows)
        by_name = {c.name: float(p) for c, p in zip(candidates, predicted_s, strict=True)}
        arm = self._guard.arm(self._random.random())
        if arm is Arm.HEURISTIC:
            why = "control arm" if self._guard.trusted else "learned is not trusted"
            return _fallen(heuristic, why, by_name), arm
        if self._options.explore and self._random.random() < self._options.explore:
            name = self._random.choice(candidates).name
            return Choice(name, "explored", self.name, by_name, by_name[name]), None
        kept = self._filter.kept(request, candidates)
        rewards = -predicted_s[kept]
        if self._options.price:
            rewards = rewards - self._options.price * rows[kept, 1] / 1000.0
        best = near_best(rewards, self._options.near_best)
        at = kept[int(best[0] if len(best) == 1 else self._random.choice(list(best)))]
        name = candidates[at].name
        filtered = f" of {len(kept)} that its prefix hashes to" if len(kept) < len(candidates) else ""
        reason = f"predicted {predicted_s[at]:.3f} s, the least{filtered}"
        return Choice(name, reason, self.name, by_name, by_name[name]), arm

    def first_token(self, request_id: str, ttft_s: float, now_s: float) -> None:
        """Learn from it."""
        self._heuristic.first_token(request_id, ttft_s, now_s)
        pending = self._pending.pop(request_id, None)
        if pending is not None:
            self._learn(pending, ttft_s, now_s)

    def observe(self, outcome: Outcome, now_s: float) -> None:
        """Learn from what ended without a first token."""
        self._heuristic.observe(outcome, now_s)
        pending = self._pending.pop(outcome.request.id, None)
        if pending is None:
            return
        if outcome.end is End.FAILED:
            self._compare(pending, float("inf"), now_s)
        elif outcome.ttft_s is not None:
            self._learn(pending, outcome.ttft_s, now_s)
        elif pending.predicted_s is not None and outcome.e2e_s > pending.predicted_s:
            self._learn(pending, outcome.e2e_s, now_s)

    def records(self) -> list[ServingRecord]:
        """Models swapped, guard-rail moves."""
        records, self._records = self._records, []
        return records

    def _learn(self, pending: _Pending, ttft_s: float, now_s: float) -> None:
        self._pools.add(pending.row, ttft_s)
        self._new += 1
        self._compare(pending, ttft_s, now_s)
        due = self._options.least_samples if self._scorer is None else self._options.retrain_every
        if self._new >= due and not self._trainer.busy:
            self._train(now_s)

    def _compare(self, pending: _Pending, ttft_s: float, now_s: float) -> None:
        if pending.arm is None or pending.predicted_s is None:
            return
        move = self._guard.measured(pending.arm, ttft_s, pending.predicted_s, pending.input_tokens)
        if move is not None:
            self._records.append(
                ServingRecord(
                    t_s=now_s,
                    event=move.event,
                    policy=self.name,
                    what=move.what,
                    samples=move.samples,
                    measured_s=move.learned_s,
                    reference_s=move.heuristic_s,
                )
            )

    def _train(self, now_s: float) -> None:
        left = self._pools.left
        self._offered, self._new = len(left), 0
        self._rounds += 1
        job = Job(
            fresh=self._pools.fresh,
            replay=self._pools.replay,
            left=left,
            keep=round(self._options.keep_share * len(left)),
            previous=self._scorer,
            devices=self._features.devices,
            seed=self._seed + self._rounds,
            how=self._options.fit,
            warm=self._options.warm,
        )
        self._trainer.start(job, now_s)

    def _swap(self, now_s: float) -> None:
        result = self._trainer.poll(now_s)
        if result is None:
            return
        if isinstance(result, Result):
            self._scorer = result.scorer
            self._pools.keep(self._offered, result.picked)
            self._guard.model_changed()
            what = f"model {self._rounds} from {result.scorer.samples} samples"
            self._records.append(ServingRecord(t_s=now_s, event="model", policy=self.name, what=what, samples=result.scorer.samples))
        else:
            self._records.append(ServingRecord(t_s=now_s, event="model", policy=self.name, what=result))


def near_best(rewards: Vector, share: float) -> np.ndarray:
    """Indices of the rewards within `share` of the greatest."""
    best = float(rewards.max())
    return np.flatnonzero(rewards >= best - share * abs(best))


def _fallen(heuristic: Choice, why: str, predicted_s: Mapping[str, float] | None = None) -> Choice:
    scores = predicted_s if predicted_s is not None else heuristic.scores
    return Choice(
        heuristic.replica,
        f"{why}; {heuristic.reason}",
        heuristic.by,
        scores,
        predicted_s[heuristic.replica] if predicted_s is not None else None,
    )
